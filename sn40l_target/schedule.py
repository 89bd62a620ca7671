"""When each section of a function runs and how long that takes: the time model.

A section takes the longest of what its parts take: its stages' arithmetic on their compute units, what it reads and
writes in the nearest tier, and what it streams from and to each tier behind it; starting it costs the machine's launch
on top. Stages run at the same time where streams link them, and wait for one another elsewhere (``pipeline.py``). What
goes to a tier, or comes from one, passes through those in front of it.

Sections run one after the other. Fills and spills stand between them and overlap with nothing. The weights of the next
section may be prefetched while a section runs, into one of two halves of what is left of the nearest tier behind
everything else, used in turn; a weight that fits there only in part is prefetched in part. One socket has no traffic on
its links.

Sustained rates are not published, so that rates are peaks. What a figure's range makes of a time is its best and its
worst.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import prod
from typing import Literal

import networkx as nx

from .bounds import shape
from .graph import Function
from .machine import Figure, Machine
from .placement import Kernel, Place, Placed
from .schema import FunctionTime, Section, SectionTime, Stage, Transfer
from .storage import is_tensor
from .traffic import Access


@dataclass
class Load:
    """What a section asks of the machine.

    Attributes:
        stages: each stage and the element type that it computes.
        near: bytes read and written in the nearest tier.
        far: bytes of each tier behind it, by the tier that they stand in, without ``weights``.
        weights: bytes to read of each weight, by name.
        moved: bytes of fills and spills, by the tier of the home.
    """

    stages: Sequence[tuple[Stage, str]]
    near: int = 0
    far: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    weights: dict[str, int] = field(default_factory=dict)
    moved: dict[str, int] = field(default_factory=lambda: defaultdict(int))


Figures = Literal["value", "best", "worst"]
"""Which of a figure's numbers is taken: its value, or the end of its range that makes things faster or slower."""


def rate(figure: Figure, which: Figures, slow: bool = False) -> float:
    """A figure's number; ``slow`` for one of which more is slower.

    Args:
        figure: the figure.
        which: its value or an end of its range.
        slow: whether more of it makes things slower (a launch), not faster (a bandwidth).
    """
    ends = {"value": figure.value, "best": figure.high, "worst": figure.low}
    if slow:
        ends |= {"best": figure.low, "worst": figure.high}
    found = ends[which]
    return float(figure.value if found is None else found)


class Timeline:
    """The sections of a function in time, at some of the machine's figures.

    Args:
        function: the function.
        kernels: its sections in order.
        placed: where its buffers stand; one without a place stands in the nearest tier.
        machine: what it runs on.
        touched: what its ops read and write (``traffic.accesses``).
    """

    def __init__(
        self,
        function: Function,
        kernels: Sequence[Kernel],
        placed: Placed,
        machine: Machine,
        touched: Mapping[int, Sequence[Access]],
    ) -> None:
        self._function = function
        self._kernels = kernels
        self._sections = [kernel.section for kernel in kernels]
        self._placed = placed
        self._machine = machine
        self._near = machine.tiers[0]
        self._touched = touched
        self._starts = _starts(self._sections)
        self._loads = [self._load(kernel) for kernel in kernels]
        self._add_moves()
        self._homes = {n: p[0] for n, p in placed.places.items() if p and function.buffers[n].kind == "weight"}
        taken = [
            p.offset + function.buffers[n].bytes
            for n, places in placed.places.items()
            for p in places
            if p.tier == self._near.name
        ]
        taken += [stage.offset + stage.bytes for stage in placed.stages]
        # two halves of the same size behind everything else, each at the start of a unit
        self._base = self._near.legal(max(taken, default=0), self._near.unit_bytes)
        half = (self._near.bytes - self._base) // 2
        self._half = max(half // self._near.unit_bytes * self._near.unit_bytes, 0)
        if placed.crowded or self._base + 2 * self._half > self._near.bytes:
            self._half = 0

    def seconds(self, which: Figures = "value") -> float:
        """When the last section ends."""
        return max((s.end for s in self.sections(which)), default=0.0)

    def sections(self, which: Figures = "value") -> list[SectionTime]:
        """Each section's times, in seconds from the function's start."""
        machine, found = self._machine, list[SectionTime]()
        bandwidth = {tier.name: rate(tier.bandwidth, which) for tier in machine.tiers}
        # the slowest of the tiers that a move passes through
        reach = dict(zip(bandwidth, accumulate(bandwidth.values(), min), strict=True))
        launch = rate(machine.launch, which, slow=True)
        free: dict[str, float] = defaultdict(float)
        before = end = 0.0
        for kernel, load in zip(self._kernels, self._loads, strict=True):
            section = kernel.section
            moving = sum(bytes_ / reach[tier] for tier, bytes_ in load.moved.items())
            start = end + moving
            runs = start + launch
            parts = {self._near.name: load.near / bandwidth[self._near.name]}
            ready = runs
            early = {name: bytes_ for name, (_, bytes_) in self._prefetched(load).items()}
            late = {name: bytes_ - early.get(name, 0) for name, bytes_ in load.weights.items()}
            for number, tier in enumerate(machine.tiers[1:], start=1):
                behind = {t.name for t in machine.tiers[number:]}
                ahead = sum(n for name, n in early.items() if self._homes[name].tier in behind)
                rest = sum(n for home, n in load.far.items() if home in behind)
                rest += sum(n for name, n in late.items() if self._homes[name].tier in behind)
                parts[tier.name] = (ahead + rest) / bandwidth[tier.name]
                if ahead:
                    free[tier.name] = max(free[tier.name], before) + ahead / bandwidth[tier.name]
                if rest:
                    free[tier.name] = max(free[tier.name], runs) + rest / bandwidth[tier.name]
                if ahead or rest:
                    ready = max(ready, free[tier.name])
            compute = kernel.pipeline.seconds([self._compute(stage, element, which) for stage, element in load.stages])
            end = max(runs + compute, runs + parts[self._near.name], ready)
            parts = {"compute": compute, **parts}
            found.append(
                SectionTime(
                    function=self._function.name,
                    section=section.name,
                    start=start,
                    end=end,
                    transfers=moving,
                    launch=launch,
                    parts=parts,
                    bound=max(parts, key=lambda p: parts[p]),
                )
            )
            before = start
        return found

    def prefetches(self) -> list[Transfer]:
        """The weights that are read ahead, each into its section's buffer, in the order of the sections."""
        found = []
        for number, (section, load) in enumerate(zip(self._sections, self._loads, strict=True)):
            for name, (offset, bytes_) in self._prefetched(load).items():
                home = self._homes[name]
                found.append(
                    Transfer(
                        function=self._function.name,
                        kind="prefetch",
                        tensor=name,
                        bytes=bytes_,
                        step=section.ops[0],
                        source_tier=home.tier,
                        source=home.offset,
                        target_tier=self._near.name,
                        target=self._base + number % 2 * self._half + offset,
                    )
                )
        return found

    def time(self) -> FunctionTime:
        """The function's times as the plan has them."""
        sections = self.sections()
        serving = self._serving()
        apart = [t for s, t in zip(self._sections, sections, strict=True) if not serving & set(s.ops)]
        return FunctionTime(
            function=self._function.name,
            tokens=_tokens(self._function),
            seconds=self.seconds(),
            best=self.seconds("best"),
            worst=self.seconds("worst"),
            caching=sum(t.end - t.start for t in apart),
        )

    def _prefetched(self, load: Load) -> dict[str, tuple[int, int]]:
        """By weight that is read ahead, where in its half it goes, and the bytes."""
        early: dict[str, tuple[int, int]] = {}
        end = 0
        for name, bytes_ in load.weights.items():
            offset = self._near.legal(end, bytes_)
            if offset < self._half:
                early[name] = offset, min(bytes_, self._half - offset)
                end = offset + early[name][1]
        return early

    def _compute(self, stage: Stage, element: str, which: Figures) -> float:
        machine = self._machine
        peaks = {e: rate(figure, which) for e, figure in machine.peak.items()}
        one = peaks.get(element, min(peaks.values())) / machine.compute_units.value
        return stage.work / (stage.compute_units * one)

    def _load(self, kernel: Kernel) -> Load:
        section = kernel.section
        load = Load(list(zip(section.stages, kernel.elements, strict=True)))
        far: dict[str, int] = {}
        for position in section.ops:
            for access in self._touched.get(position, ()):
                place = self._at(access.buffer, position)
                # whatever a stage reads or writes passes through the nearest tier
                load.near += access.bytes
                if place is None or place.tier == self._near.name:
                    continue
                if self._function.buffers[access.buffer].kind == "weight":
                    load.weights[access.buffer] = max(load.weights.get(access.buffer, 0), access.bytes)
                elif access.writes:
                    load.far[place.tier] += access.bytes
                else:
                    # stages that read the same tensor are given it at the same time
                    load.far[place.tier] += max(access.bytes - far.get(access.buffer, 0), 0)
                    far[access.buffer] = max(far.get(access.buffer, 0), access.bytes)
        return load

    def _add_moves(self) -> None:
        """Fills and spills, to the section that runs at their step or next."""
        loads = dict(zip((section.name for section in self._sections), self._loads, strict=True))
        for name, moves in self._placed.moves.items():
            for move in moves:
                if move.kind in ("fill", "spill") and move.step in self._starts:
                    home = next(p for p in self._placed.places[name] if p.tier != self._near.name)
                    loads[self._starts[move.step]].moved[home.tier] += self._function.buffers[name].bytes

    def _at(self, buffer: str, position: int) -> Place | None:
        places = self._placed.places.get(buffer, ())
        return next((p for p in places if p.first <= position <= p.last), places[0] if places else None)

    def _serving(self) -> set[int]:
        """The positions of the ops that what is returned depends on: all others only fill caches."""
        graph = self._function.graph
        ends = [node for node, op in graph.nodes(data="op") if op == "func.return"]
        nodes = {n for end in ends for n in nx.ancestors(graph, end)} if any(graph.in_degree(e) for e in ends) else None
        return {p for n, p in graph.nodes(data="position") if nodes is None or n in nodes}


def _starts(sections: Sequence[Section]) -> Mapping[int, str]:
    """By position, the section that runs then, or the next one that does."""
    found: dict[int, str] = {}
    at = 0
    for section in sections:
        found.update(dict.fromkeys(range(at, section.ops[-1] + 1), section.name))
        at = section.ops[-1] + 1
    return found


def _tokens(function: Function) -> int:
    """How many tokens a call takes: as many as its first argument has elements."""
    argument = next((v for v, name in function.ids.items() if name == f"{function.name}:arg0"), None)
    return prod(shape(argument)) if argument is not None and is_tensor(argument) else 0
