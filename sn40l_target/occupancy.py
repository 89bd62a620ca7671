"""How full each tier is while a function runs: what the pictures of a plan are drawn from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate

from .lifetime import Steps
from .schema import Plan, Tensor

STAGE_BUFFER, PREFETCH = "stage buffer", "prefetched weight"
"""What the buffers of sections count as, beside the kinds of tensors."""


@dataclass(frozen=True)
class Occupancy:
    """A section's time, in seconds from its function's start, and the bytes that stand in each tier by kind.

    The bytes are of everything that is there while any op of the section runs. Weights, caches and states count in
    every section of every function: they stay.
    """

    section: str
    start: float
    end: float
    bytes: Mapping[str, Mapping[str, int]]

    def total(self, tier: str) -> int:
        """The bytes of all kinds in a tier."""
        return sum(self.bytes[tier].values())


def occupancy(plan: Plan, function: str) -> list[Occupancy]:
    """The occupancy of a function of the plan, section by section in the order of time."""
    sections = [section for section in plan.sections if section.function == function]
    steps = Steps([section.ops for section in sections], 1 + max((s.ops[-1] for s in sections), default=0))
    changes: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0] * (len(sections) + 2))
    for tensor in {(t.tier, t.name): t for t in plan.tensors if t.shared}.values():
        changes[tensor.tier, tensor.kind][0] += tensor.bytes
    for tensor in plan.tensors:
        if tensor.function == function and not tensor.shared:
            here = changes[tensor.tier, _kind(tensor)]
            here[steps.of(tensor.first_use)] += tensor.bytes
            here[steps.of(tensor.last_use) + 1] -= tensor.bytes
    held = {key: list(accumulate(each)) for key, each in changes.items()}
    numbers = {section.name: number for number, section in enumerate(sections)}
    found = []
    for time in (t for t in plan.schedule if t.function == function):
        at = numbers[time.section]
        bytes_ = {
            tier.name: {kind: each[at] for (name, kind), each in held.items() if name == tier.name and each[at]}
            for tier in plan.machine.tiers
        }
        found.append(Occupancy(time.section, time.start, time.end, bytes_))
    return found


def _kind(tensor: Tensor) -> str:
    if tensor.of is None:
        return tensor.kind
    return PREFETCH if tensor.role == "prefetch" else STAGE_BUFFER
