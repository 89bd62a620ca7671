"""The plan as data: where each tensor of the program stands, from when until when, and who uses it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sized
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from .machine import SHARED, Kind, Machine

SCHEMA_VERSION = 4

STATE_PREFIX = "state:"
"""Before the name of a cache or a state in the name of its tensor: a weight may have the same name."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


BufferRole = Literal["tile", "resident", "prefetch"]
"""What a buffer in the nearest tier is for.

``tile``: parts of a tensor that one stage fills, or memory, while another reads the part before: two copies, in banks
of their own. ``resident``: a tensor that stays whole while the section runs (a weight that tokens stream past, a tensor
read at computed places) and stands elsewhere. ``prefetch``: a weight, or the first bytes of it, that is read while the
section in front runs.
"""


class Tensor(_Frozen):
    """One place of one storage of one function, or a buffer in the nearest tier while a section runs.

    A weight, a cache or a state stands in every function that uses it, at the same place, and holds it between
    calls too. Any other tensor that the nearest tier has no room for has several places, one entry for each: stays in
    that tier, and a home in a tier behind it. An op uses the tensor at its place in the nearest of the tiers where it
    stands at the op's step; a ``Transfer`` takes the contents from one place to another. ``first_use`` and
    ``last_use`` are positions of ops in the function, both included; what is read from ``offset`` on by any op
    between them was written there by then. ``section`` is the section that first writes the
    tensor, or first reads it where no section writes it; None where none does either. ``values`` are the ids of the
    SSA values that it holds, one after the other or as views: ``<function>:<position>`` of the op that makes the
    value, with ``#<number>`` where that op has several results, and ``<function>:arg<number>``. An op's scratch has
    no value; its name is ``<function>:<position>.scratch``.

    While a section runs, each tensor that its ops touch stands whole in the nearest tier, or has a buffer there: an
    entry of its own with a ``role``, named ``<section>/<tensor>``, that is a buffer ``of`` that tensor. A tensor that a
    section streams and that nothing else uses stands nowhere whole: its entry is itself of the role ``tile``, with its
    values. ``bytes`` are what an entry takes, of which ``copies`` times ``part`` hold something: a buffer has memory
    units, or banks of one, to itself, for its bytes or for the rate at which it is read.
    """

    function: str
    name: str
    kind: Kind
    bytes: int = Field(ge=0)
    tier: str
    offset: int = Field(ge=0)
    first_use: int = Field(ge=0)
    last_use: int = Field(ge=0)
    section: str | None
    location: str
    values: tuple[str, ...]
    role: Literal["whole", BufferRole] = "whole"
    of: str | None = None
    copies: int = Field(default=1, ge=1)
    part: int = Field(ge=0)

    @property
    def end(self) -> int:
        """The first byte behind the tensor."""
        return self.offset + self.bytes

    @property
    def shared(self) -> bool:
        """Whether it outlives a call and stands at one place for all functions."""
        return self.kind in SHARED


class Stage(_Frozen):
    """One op of a section on its share of the machine.

    ``loops`` are the extents of the op's loops and ``tile`` how many steps of each one tile takes (both empty for an op
    that is no nest of loops over affine indices); ``work`` the arithmetic operations of the whole op.
    """

    op: int
    loops: tuple[int, ...]
    tile: tuple[int, ...]
    work: int = Field(ge=0)
    compute_units: int = Field(ge=1)


class Section(_Frozen):
    """A kernel: the ops that run together as stages, in order, by position.

    ``starts`` says which rule ended the section before it; ``streams`` the dimensions along which it makes values block
    by block, by the values' ids.
    """

    function: str
    name: str
    ops: tuple[int, ...]
    operations: tuple[str, ...]
    location: str
    starts: str
    streams: Mapping[str, tuple[int, ...]]
    stages: tuple[Stage, ...]

    @property
    def work(self) -> int:
        """Arithmetic operations of all stages."""
        return sum(stage.work for stage in self.stages)

    @property
    def compute_units(self) -> int:
        """Of all stages."""
        return sum(stage.compute_units for stage in self.stages)


class Copy(_Frozen):
    """Bytes that a section moves from one tensor to another because an update could not be made in place.

    Where source and target are the same scratch, the copy is inside a loop and counts one iteration.
    """

    function: str
    section: str
    source: str
    target: str
    bytes: int


class Transfer(_Frozen):
    """A move of a tensor's contents between two of its places.

    ``fill``: from its home to the nearest tier, before the op at position ``step``. ``spill``: the other way, after it.
    ``prefetch``: of a weight, or the first ``bytes`` of it, to one of two buffers in the nearest tier, while the
    section in front of the one that starts at ``step`` runs.
    """

    function: str
    kind: Literal["fill", "spill", "prefetch"]
    tensor: str
    bytes: int
    step: int
    source_tier: str
    source: int
    target_tier: str
    target: int


class SectionTime(_Frozen):
    """When a section runs, in seconds from its function's start.

    ``start`` is behind the fills and spills in front of it, which take ``transfers``, and in front of its ``launch``.
    ``parts``: what it would take for its arithmetic alone ("compute") and for its traffic in each tier alone; ``bound``
    is the longest of them. A section may take less than a part of it says where weights were prefetched.
    """

    function: str
    section: str
    start: float
    end: float
    transfers: float
    launch: float
    parts: dict[str, float]
    bound: str


class FunctionTime(_Frozen):
    """How long a call of a function takes, in seconds, and how many tokens it takes in.

    ``seconds`` at the figures' values, ``best`` and ``worst`` at the ends of their ranges. ``caching``: the part of
    ``seconds`` in sections that nothing returned depends on; in prefill that is selection, ring and compaction.
    """

    function: str
    tokens: int
    seconds: float
    best: float
    worst: float
    caching: float

    @property
    def tokens_per_second(self) -> float:
        """At the figures' values; 0 for a function that takes no time."""
        return self.tokens / self.seconds if self.seconds else 0.0


class FunctionCut(_Frozen):
    """A way to cut a function that was tried, and how long it takes, in seconds; the fastest is chosen.

    ``reuse``: tokens stream past weights whose bytes are used for at least so many operations; None where past none.
    ``stages`` and ``bytes``: the most that a section may have, of stages and of the nearest tier for its least buffers;
    None for as many as the machine has. ``sections``: how many it makes. ``bound``: what it takes at least; ``seconds``
    is None where that was too much for it to be placed, or where it has no placement.
    """

    function: str
    reuse: float | None
    stages: int | None
    bytes: int | None
    sections: int
    bound: float
    seconds: float | None
    chosen: bool


class TierUse(_Frozen):
    """How full a tier is. ``shared`` bytes stay; ``peak`` is the end of the highest tensor of any function."""

    tier: str
    capacity: int
    tensors: int
    bytes: int
    shared: int
    peak: int
    share: float


class Plan(_Frozen):
    """Where each tensor of the program's functions stands on a machine."""

    version: int = SCHEMA_VERSION
    machine: Machine
    functions: tuple[str, ...]
    tensors: tuple[Tensor, ...]
    sections: tuple[Section, ...]
    copies: tuple[Copy, ...]
    transfers: tuple[Transfer, ...]
    schedule: tuple[SectionTime, ...]
    time: tuple[FunctionTime, ...]
    cuts: tuple[FunctionCut, ...]

    def summary(self) -> tuple[TierUse, ...]:
        """Each tier's use over all functions; a tensor that several functions share counts once."""
        return tuple(
            TierUse(
                tier=tier.name,
                capacity=tier.bytes,
                tensors=len(here),
                bytes=sum(t.bytes for t in here),
                shared=sum(t.bytes for t in here if t.shared),
                peak=(peak := max((t.end for t in here), default=0)),
                share=peak / tier.bytes,
            )
            for tier in self.machine.tiers
            for here in [_once(t for t in self.tensors if t.tier == tier.name)]
        )

    def beside(self, section: Section) -> list[Tensor]:
        """What stands in the nearest tier while a section runs: its buffers, and what stays there whole."""
        near = self.machine.tiers[0].name
        last = section.ops[-1]
        ends = (s.ops[-1] for s in self.sections if s.function == section.function)
        # what is between two sections (an argument, a view) belongs to the second
        before = max((end for end in ends if end < last), default=-1)
        return [
            t
            for t in self.tensors
            if t.tier == near
            and (t.shared or (t.function == section.function and t.first_use <= last and before < t.last_use))
        ]

    def memory_units(self, section: Section) -> int:
        """How many units of the nearest tier hold anything while a section runs."""
        unit = self.machine.tiers[0].unit_bytes
        spans = sorted((t.offset // unit, -(-t.end // unit)) for t in self.beside(section) if t.bytes)
        count = reached = 0
        for first, end in spans:
            count += max(end - max(first, reached), 0)
            reached = max(reached, end)
        return count

    def to_json(self) -> str:
        """The plan as JSON text: the fields above and ``summary``."""
        content = self.model_dump(mode="json")
        content["summary"] = [use.model_dump(mode="json") for use in self.summary()]
        return json.dumps(content, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """A plan from ``to_json``'s text.

        Raises:
            ValueError: the text is a plan of another version of this schema, or no plan.
        """
        content = json.loads(text)
        version = content.get("version") if isinstance(content, dict) else None
        if version != SCHEMA_VERSION:
            raise ValueError(f"the plan has version {version}, and this snapcc reads version {SCHEMA_VERSION}")
        content.pop("summary", None)
        return cls.model_validate(content)

    def memory_map(self, biggest: int = 12) -> str:
        """The tiers, and in each the biggest tensors with their ranges, as lines for a person."""
        return memory_map(self.machine, self.tensors, biggest)


def _once(tensors: Iterable[Tensor]) -> list[Tensor]:
    return list({(t.name,) if t.shared else (t.name, t.function, t.tier, t.first_use): t for t in tensors}.values())


def memory_map(machine: Machine, tensors: Iterable[Tensor], biggest: int = 12) -> str:
    """Each tier with its capacity and use, then its tensors, biggest first, each with its range and bytes."""
    lines = []
    every = _once(tensors)
    for tier in machine.tiers:
        here = sorted((t for t in every if t.tier == tier.name), key=lambda t: (-t.bytes, t.offset, t.name))
        peak = max((t.end for t in here), default=0)
        lines.append(f"{tier.name}: {peak:,} of {tier.bytes:,} bytes ({peak / tier.bytes:.1%}), {count(here)}")
        lines += [
            f"  [0x{t.offset:010x}, 0x{t.end:010x})  {t.bytes:>15,} bytes  {t.kind:<10}  {t.name}  ({_when(t)})"
            for t in here[:biggest]
        ]
        if len(here) > biggest:
            rest = here[biggest:]
            lines.append(f"  and {len(rest)} more, {sum(t.bytes for t in rest):,} bytes")
    return "\n".join(lines)


def count(tensors: Sized) -> str:
    """How many tensors, in words."""
    return f"{len(tensors)} tensor" if len(tensors) == 1 else f"{len(tensors)} tensors"


def _when(tensor: Tensor) -> str:
    if tensor.shared:
        return "always"
    return f"{tensor.function}, steps {tensor.first_use} to {tensor.last_use}, {tensor.location}"
