"""Each buffer to a tier and an offset: nearest tier first, by lifetime, spilling what is needed latest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from .errors import PlacementError
from .graph import Function, Program
from .lifetime import Lifetime
from .machine import SHARED, Machine, Tier
from .packing import Packing, Span
from .schema import Tensor, count, memory_map
from .storage import Buffer


@dataclass(frozen=True)
class Place:
    """A tier's name and an offset in bytes."""

    tier: str
    offset: int


Places = Mapping[str, Mapping[str, Place]]
"""By function, then by buffer; a shared buffer has the same place in each function that uses it."""


Ends = Mapping[str, int | None]
"""By tier, the first byte that may not be used; None for a tier without end."""


@dataclass(frozen=True)
class _Packed:
    """The tiers' contents, by tier: what all functions share and, by function, the rest; and what found no place."""

    shared: Mapping[str, Packing]
    local: Mapping[str, Mapping[str, Packing]]
    shared_left: Sequence[Buffer]
    local_left: Mapping[str, Sequence[Buffer]]

    @property
    def left(self) -> list[Buffer]:
        return [*self.shared_left, *(b for left in self.local_left.values() for b in left)]

    def end(self, tier: str) -> int:
        """The first byte of a tier that nothing uses."""
        return max(packings[tier].end for packings in (self.shared, *self.local.values()))

    def places(self, function: Function) -> dict[str, Place]:
        """The places of a function's buffers."""
        return {
            name: Place(tier, offset)
            for packings in (self.shared, self.local[function.name])
            for tier, packing in packings.items()
            for name, offset in packing.offsets.items()
            if name in function.buffers
        }


def place_program(program: Program, machine: Machine) -> Places:
    """Places every buffer of every function.

    Weights, caches and states stand in the first tier that takes their kind and has room: weights before caches,
    bigger before smaller, from the lowest byte on. What a function needs for one call stands behind them, in the
    first tier that takes its kind, over whatever the other functions have there. Where that tier is too small for
    what is alive at one step, the tensor whose next use is furthest goes to the next tier, for its whole life.

    Raises:
        PlacementError: tensors that fit in no tier; the message holds the memory map and the bytes that are lacking.
    """
    packed = _pack(program, machine, {tier.name: tier.bytes for tier in machine.tiers})
    if packed.left:
        raise _overflow(program, machine, packed)
    return {function.name: packed.places(function) for function in program.functions.values()}


def tensor(function: Function, buffer: Buffer, place: Place, section: str | None) -> Tensor:
    """A buffer of a function at its place, as the plan has it."""
    life = function.lifetimes[buffer.name]
    return Tensor(
        function=function.name,
        name=buffer.name,
        kind=buffer.kind,
        bytes=buffer.bytes,
        tier=place.tier,
        offset=place.offset,
        first_use=life.first,
        last_use=life.last,
        section=section,
        location=buffer.location,
        values=tuple(buffer.values),
    )


def _pack(program: Program, machine: Machine, ends: Ends) -> _Packed:
    shared, shared_left = _pack_shared(program, machine, ends)
    local: dict[str, dict[str, Packing]] = {}
    local_left: dict[str, list[Buffer]] = {}
    for name, function in program.functions.items():
        local[name], local_left[name] = _pack_local(function, machine, shared, ends)
    return _Packed(shared, local, shared_left, local_left)


def _pack_shared(program: Program, machine: Machine, ends: Ends) -> tuple[dict[str, Packing], list[Buffer]]:
    packings = {tier.name: Packing(tier.legal, 0, ends[tier.name]) for tier in machine.tiers}
    left: list[Span] = []
    for kind in SHARED:
        spans = [Span(b.name, b.bytes, 0, 0) for b in program.shared.values() if b.kind == kind]
        for tier in machine.tiers:
            if kind in tier.kinds:
                spans = packings[tier.name].add_all(spans)
        left += spans
    return packings, [program.shared[span.name] for span in left]


def _pack_local(
    function: Function, machine: Machine, shared: Mapping[str, Packing], ends: Ends
) -> tuple[dict[str, Packing], list[Buffer]]:
    packings: dict[str, Packing] = {}
    left = [b for b in function.buffers.values() if b.kind not in SHARED]
    for tier in machine.tiers:
        spans = [_span(function, b) for b in left if b.kind in tier.kinds]
        packings[tier.name] = _fill(tier, shared[tier.name].end, ends[tier.name], spans, function.lifetimes)
        left = [b for b in left if b.name not in packings[tier.name].offsets]
    return packings, left


def _span(function: Function, buffer: Buffer) -> Span:
    life = function.lifetimes[buffer.name]
    return Span(buffer.name, buffer.bytes, life.first, life.last)


def _fill(tier: Tier, base: int, end: int | None, spans: Sequence[Span], lives: Mapping[str, Lifetime]) -> Packing:
    """As many spans as a tier takes from ``base`` on."""
    packing = Packing(tier.legal, base, end)
    if not packing.add_all(spans) or end is None:
        return packing
    packing = Packing(tier.legal, base, end)
    kept = _keep(spans, lives, end - base, int(tier.granularity.value))
    packing.add_all(kept)
    # what was given up too early, or only for want of one hole that is large enough, takes the holes that are left
    packing.add_all(s for s in spans if s.name not in packing.offsets)
    return packing


def _keep(spans: Iterable[Span], lives: Mapping[str, Lifetime], room: int, step: int) -> list[Span]:
    """The spans that are left when, at each step with more bytes than ``room``, the furthest next use goes."""
    sizes = {span.name: -(-span.bytes // step) * step for span in spans}
    kept: dict[str, Span] = {}
    alive: dict[str, Span] = {}
    for span in sorted(spans, key=lambda s: (s.first, s.name)):
        if span.bytes > room:
            continue
        alive = {n: s for n, s in alive.items() if s.last >= span.first}
        alive[span.name] = kept[span.name] = span
        used = sum(sizes[n] for n in alive)
        while used > room:
            gone = max(alive, key=lambda n: (lives[n].next_use(span.first), sizes[n], n))
            used -= sizes[gone]
            del alive[gone], kept[gone]
    return list(kept.values())


def _lacking(program: Program, machine: Machine) -> dict[str, int]:
    """The bytes that tiers lack, by tier: with so many more, the program has a plan."""
    ends: dict[str, int | None] = {tier.name: tier.bytes for tier in machine.tiers}
    while left := (packed := _pack(program, machine, ends)).left:
        # each of them may go to the last tier that takes its kind, without end
        ends.update({[t.name for t in machine.tiers if b.kind in t.kinds][-1]: None for b in left})
    return {t.name: packed.end(t.name) - t.bytes for t in machine.tiers if packed.end(t.name) > t.bytes}


def _overflow(program: Program, machine: Machine, packed: _Packed) -> PlacementError:
    short = " and ".join(f"{name} lacks {n:,} bytes" for name, n in _lacking(program, machine).items())
    failed = [name for name, left in packed.local_left.items() if left]
    what = "the program's weights, caches and states" if packed.shared_left else failed[0]
    left = packed.shared_left or packed.local_left[failed[0]]
    shown = [
        tensor(function, function.buffers[name], place, None)
        for function in program.functions.values()
        for name, place in packed.places(function).items()
        if function.buffers[name].kind in SHARED or function.name == what
    ]
    lines = [
        f"no room on {machine.name} for {what}: {short}; memory map:",
        memory_map(machine, shown),
        f"without a place: {count(left)}, {sum(b.bytes for b in left):,} bytes",
    ]
    biggest = sorted(left, key=lambda b: (-b.bytes, b.name))[:12]
    lines += [f"  {b.bytes:>15,} bytes  {b.kind:<10}  {b.name}  ({b.location})" for b in biggest]
    return PlacementError("\n".join(lines))
