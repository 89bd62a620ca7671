"""How full each tier is while a function runs: what the pictures of a plan are drawn from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from .machine import Kind
from .schema import Plan


@dataclass(frozen=True)
class Occupancy:
    """A section's time, in seconds from its function's start, and the bytes that stand in each tier by kind.

    The bytes are those of the op of the section at which the tier is fullest. Weights, caches and states count in
    every section of every function: they stay. The buffers of prefetched weights do not count.
    """

    section: str
    start: float
    end: float
    bytes: Mapping[str, Mapping[Kind, int]]

    def total(self, tier: str) -> int:
        """The bytes of all kinds in a tier."""
        return sum(self.bytes[tier].values())


def occupancy(plan: Plan, function: str) -> list[Occupancy]:
    """The occupancy of a function of the plan, section by section in the order of time."""
    kept: dict[tuple[str, Kind, str], int] = {(t.tier, t.kind, t.name): t.bytes for t in plan.tensors if t.shared}
    starts: dict[tuple[str, Kind], dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for (home, kind, _), size in kept.items():
        starts[home, kind][0] += size
    for tensor in plan.tensors:
        if tensor.function == function and not tensor.shared:
            changes = starts[tensor.tier, tensor.kind]
            changes[tensor.first_use] += tensor.bytes
            changes[tensor.last_use + 1] -= tensor.bytes
    ops = {section.name: section.ops for section in plan.sections if section.function == function}
    last = max((positions[-1] for positions in ops.values()), default=-1)
    held = {key: _running(changes, last) for key, changes in starts.items()}
    found = []
    for time in (t for t in plan.schedule if t.function == function):
        bytes_: dict[str, dict[Kind, int]] = {}
        for tier in plan.machine.tiers:
            kinds = {kind: at for (name, kind), at in held.items() if name == tier.name}
            totals = {p: sum(at[p] for at in kinds.values()) for p in ops[time.section]}
            fullest = max(totals, key=lambda position: totals[position])
            bytes_[tier.name] = {kind: at[fullest] for kind, at in kinds.items() if at[fullest]}
        found.append(Occupancy(time.section, time.start, time.end, bytes_))
    return found


def _running(changes: Mapping[int, int], last: int) -> list[int]:
    total, found = 0, []
    for position in range(last + 1):
        total += changes.get(position, 0)
        found.append(total)
    return found
