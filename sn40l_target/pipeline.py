"""How the stages of a section run beside one another, and what that makes of their compute units.

A section is set up once: each of its stages has its compute units for as long as the section runs. Where a stage passes
a stream on, it and the next run at the same time. Where it hands a whole tensor over, the next one waits for it, and
its units with it. So stages that streams link are a group, which takes as long as its slowest stage, and groups run one
after the other along the tensors that they hand over: a section's arithmetic takes as long as its longest chain of
groups.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace
from math import sqrt

from torch_mlir import ir

from .graph import Function
from .storage import root


@dataclass(frozen=True)
class Part:
    """Ops, by position, that are to be one section.

    ``resident`` are the weights that stay while tokens stream past them, ``streams`` the dimensions, by tensor, along
    which the ops pass it on in blocks.
    """

    ops: tuple[int, ...]
    resident: frozenset[ir.Value]
    streams: Mapping[ir.Value, frozenset[int]]

    def __hash__(self) -> int:
        return hash((self.ops, self.resident))


@dataclass(frozen=True)
class _Group:
    """Stages, by number, that run at the same time; or one after the other where ``waits``.

    ``before`` are the groups, by number, that hand it a tensor; ``level`` is how many stand in the longest chain of
    groups in front of it.
    """

    stages: Sequence[int]
    waits: bool
    before: Sequence[int]
    level: int


class Pipeline:
    """The stages of a part, in the order of its ops."""

    def __init__(self, function: Function, part: Part) -> None:
        self._count = len(part.ops)
        self._groups = _groups(function, part)

    def shares(self, work: Sequence[int], units: int) -> list[int]:
        """Compute units for each stage, at least one, by its arithmetic operations.

        Groups that run one after the other have units by the square roots of their operations, which makes the sum of
        their times least; what runs at the same time has units by its operations, so that it ends at the same time.
        Units go one by one to the stage that lacks most of its due (Adams's method of apportionment), so that with more
        units no stage ever has fewer.
        """
        levels: dict[int, int] = defaultdict(int)
        for group in self._groups:
            levels[group.level] += sum(work[s] for s in group.stages)
        due = [0.0] * self._count
        for group in self._groups:
            for stage in group.stages:
                due[stage] = work[stage] / sqrt(levels[group.level]) if work[stage] else 0.0
        return _apportioned(due, units)

    def seconds(self, stages: Sequence[float]) -> float:
        """How long the longest chain of groups takes, where each stage takes so long by itself."""
        ends: list[float] = []
        for group in self._groups:
            own = [stages[s] for s in group.stages]
            start = max((ends[g] for g in group.before), default=0.0)
            ends.append(start + (sum(own) if group.waits else max(own)))
        return max(ends, default=0.0)


def _groups(function: Function, part: Part) -> list[_Group]:
    """The groups, each behind those that hand it a tensor."""
    makers = {r: n for n, position in enumerate(part.ops) for r in function.ops[position].results}
    group = list(range(len(part.ops)))
    handed: list[tuple[int, int]] = []
    for stage, position in enumerate(part.ops):
        for value in function.reads[position]:
            maker = makers.get(root(value))
            if maker is None:
                continue
            if not part.streams.get(value):
                handed.append((maker, stage))
            elif group[maker] != group[stage]:
                linked = group[maker], group[stage]
                group = [linked[0] if g == linked[1] else g for g in group]
    stages: dict[int, list[int]] = defaultdict(list)
    for stage, number in enumerate(group):
        stages[number].append(stage)
    before: dict[int, set[int]] = {number: set() for number in stages}
    for maker, stage in handed:
        before[group[stage]].add(group[maker])
    found: list[_Group] = []
    numbers: dict[int, int] = {}
    while left := [g for g in stages if g not in numbers]:
        ready = [g for g in left if before[g] <= numbers.keys()]
        # groups that wait for one another count as stages that run one after the other
        for members in [[g] for g in ready] or [left]:
            ahead = sorted({numbers[b] for g in members for b in before[g] if b in numbers})
            level = 1 + max((found[n].level for n in ahead), default=-1)
            found.append(_Group(sorted(s for g in members for s in stages[g]), not ready, ahead, level))
        first = len(found) - max(len(ready), 1)
        numbers.update({g: first + n for n, g in enumerate(ready)} or dict.fromkeys(left, first))
    return found


def _apportioned(due: Sequence[float], units: int) -> list[int]:
    """Whole units by what is due, at least one each."""
    total, spare = sum(due), units - len(due)
    if total <= 0 or spare <= 0:
        return [1] * len(due)
    # no more than each has in the end, as the next unit goes to whoever has least of its due
    shares = [max(1, int(d / total * spare) - 1) for d in due]
    waiting = [(-d / s, number) for number, (d, s) in enumerate(zip(due, shares, strict=True))]
    heapify(waiting)
    for _ in range(units - sum(shares)):
        number = waiting[0][1]
        shares[number] += 1
        heapreplace(waiting, (-due[number] / shares[number], number))
    return shares
