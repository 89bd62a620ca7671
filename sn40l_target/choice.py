"""How each function is cut and placed: the fastest of cuts that do not depend on the machine.

A cut comes from the rules of ``sections.py``, from what streams (every weight whose bytes are used for at least so many
operations, for each number that occurs in the function; and none), and from the most that a section may have: any
number of stages and bytes, or powers of two of them. A machine tries all of these that are within its own units. What a
cut takes of the nearest tier does not depend on the machine's figures either, so that a larger machine tries all that a
smaller one tries, and nothing takes it longer. Of equally fast cuts the first counts: the one with the longest sections
and the fewest weights that stay.

How large buffers are comes last: as large as the machine lets them be while the function takes no longer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf

from torch_mlir import ir

from .errors import place
from .graph import Function
from .machine import Machine
from .placement import Kernel, Placed, Placer, Shared, Way
from .schedule import Timeline
from .schema import FunctionCut, Section
from .sections import Cut, Cutter, Limits
from .tiling import Made, Tiler
from .traffic import accesses

SAME = 1e-9
"""Times that differ by less than this part of them are the same."""


@dataclass(frozen=True)
class Chosen:
    """A function's sections, its placement, when they run, and the cuts that were tried."""

    kernels: Sequence[Kernel]
    placed: Placed
    timeline: Timeline
    cuts: Sequence[FunctionCut]


@dataclass(frozen=True)
class _Candidate:
    """A cut, and where it comes from."""

    reuse: float | None
    limits: Limits
    cuts: Sequence[Cut]


class Chooser:
    """The ways to cut and place one function on a machine.

    Args:
        function: the function.
        machine: what it is planned for.
        patience: see ``stays.keep``.
    """

    def __init__(self, function: Function, machine: Machine, patience: int) -> None:
        self._function = function
        self._machine = machine
        self._near = machine.tiers[0]
        self._patience = patience
        self._tiler = Tiler(function, machine)
        self._cutter = Cutter(function, self._tiler)
        self._touched = accesses(function)

    def choose(self, shared: Shared) -> Chosen | None:
        """The fastest cut with its placement; None where nothing fits.

        A cut is placed only where its bound is below what is found already: the time that it takes where all that a
        call needs stands in the nearest tier, and half of that is for weights that are read ahead.
        """
        tried: list[tuple[_Candidate, float, float | None]] = []
        found: tuple[_Candidate, Sequence[Kernel], Way] | None = None
        times = [inf]
        for candidate in self._candidates(times):
            most = min(times) * (1 - SAME)
            kernels = self._least(candidate.cuts)
            placer = Placer(self._function, kernels, self._machine, shared)
            bound = self._seconds(kernels, placer.ideal())
            if bound >= most:
                tried.append((candidate, bound, None))
                continue
            seconds, way = placer.best(partial(self._seconds, kernels), most, self._patience)
            tried.append((candidate, bound, None if way is None else seconds))
            if way is not None and seconds < most:
                found = candidate, kernels, way
                times.append(seconds)
        if found is None:
            return None
        chosen, least, way = found
        large, way = self._enlarged(chosen.cuts, least, way, min(times), shared)
        cuts = [self._described(*each, each[0] is chosen) for each in tried]
        return Chosen(large, way.placed, self._timeline(large, way.placed), cuts)

    def all(self) -> list[list[Kernel]]:
        """Every cut within the machine's units, with its least buffers."""
        return [self._least(candidate.cuts) for candidate in self._candidates([inf])]

    def _candidates(self, times: Sequence[float]) -> Iterator[_Candidate]:
        """The different cuts within the machine's units, those with the longest sections first.

        Args:
            times: cuts whose launches alone take as long as one of them are left out; there may be more with each cut.
        """
        seen: set[tuple[tuple[int, frozenset[ir.Value]], ...]] = set()
        units = int(self._machine.compute_units.value)
        for stages in (None, *_powers(1, units)):
            for bytes_ in (None, *_powers(self._near.unit_bytes, self._near.bytes)):
                for reuse in (None, *reversed(self._cutter.reuses)):
                    limits = Limits(stages, bytes_)
                    stays = self._cutter.stays(reuse, limits)
                    cuts = self._cutter.cut(stays, limits, min(times) / self._machine.launch.value)
                    if cuts is None:
                        continue
                    key = tuple((cut.part.ops[-1], cut.part.resident) for cut in cuts)
                    if key not in seen and all(self._within(cut) for cut in cuts):
                        yield _Candidate(reuse, limits, cuts)
                    seen.add(key)

    def _within(self, cut: Cut) -> bool:
        """Whether a section is within the machine's units; one op is, or the function has no plan."""
        part = cut.part
        if len(part.ops) == 1 and not part.resident:
            return True
        return len(part.ops) <= self._machine.compute_units.value and self._tiler.bytes(part) <= self._near.bytes

    def _least(self, cuts: Sequence[Cut]) -> list[Kernel]:
        return self._kernels(cuts, [self._tiler.least(cut.part) for cut in cuts])

    def _kernels(self, cuts: Sequence[Cut], made: Sequence[Made]) -> list[Kernel]:
        """Each section with its stages and what it needs in the nearest tier."""
        function, found = self._function, []
        for name, cut, parts in zip(self._cutter.names(cuts), cuts, made, strict=True):
            ops = cut.part.ops
            section = Section(
                function=function.name,
                name=name,
                ops=ops,
                operations=tuple(function.ops[position].name for position in ops),
                location=place(function.ops[ops[0]].location),
                starts=cut.starts,
                streams={function.ids[v]: tuple(sorted(dims)) for v, dims in cut.part.streams.items() if dims},
                stages=parts.stages,
            )
            found.append(Kernel(section, parts.needs, parts.pipeline, parts.elements))
        return found

    def _enlarged(
        self, cuts: Sequence[Cut], kernels: Sequence[Kernel], way: Way, seconds: float, shared: Shared
    ) -> tuple[Sequence[Kernel], Way]:
        """The same cut with buffers as large as leave it as fast; what is faster by chance is not taken either."""
        for room in (self._near.bytes >> shift for shift in range(0, 8, 2)):
            large = self._kernels(cuts, [self._tiler.section(cut.part, room) for cut in cuts])
            for other in Placer(self._function, large, self._machine, shared).alike(way):
                if abs(self._seconds(large, other.placed) - seconds) <= SAME * seconds:
                    return large, other
        return kernels, way

    def _timeline(self, kernels: Sequence[Kernel], placed: Placed) -> Timeline:
        return Timeline(self._function, kernels, placed, self._machine, self._touched)

    def _seconds(self, kernels: Sequence[Kernel], placed: Placed) -> float:
        return self._timeline(kernels, placed).seconds()

    def _described(self, candidate: _Candidate, bound: float, seconds: float | None, chosen: bool) -> FunctionCut:
        return FunctionCut(
            function=self._function.name,
            reuse=candidate.reuse,
            stages=candidate.limits.stages,
            bytes=candidate.limits.bytes,
            sections=len(candidate.cuts),
            bound=bound,
            seconds=seconds,
            chosen=chosen,
        )


def _powers(least: int, most: int) -> list[int]:
    """The least number times powers of two, up to the most there may be, that first."""
    return [least << shift for shift in reversed(range((most // least).bit_length()))]
