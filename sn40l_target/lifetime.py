"""From when until when each buffer holds something, in steps of the program's order.

A step is the position of an op in its block: the order of the program is the order of execution.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Lifetime:
    """The steps at which a buffer is written or read.

    ``first`` and ``last`` are both included; ``uses`` are all steps, in order; at those in ``writes`` its contents
    change, at every other one they are read; at those in ``updates`` they are read and then change.
    """

    first: int
    last: int
    uses: tuple[int, ...]
    writes: frozenset[int]
    updates: frozenset[int]

    def reads(self, step: int) -> bool:
        """Whether the contents from before a use matter to it."""
        return step in self.updates or step not in self.writes


def lifetimes(
    uses: Mapping[str, Sequence[int]], writes: Mapping[str, Collection[int]], updates: Mapping[str, Collection[int]]
) -> dict[str, Lifetime]:
    """Lifetimes by buffer.

    Args:
        uses: the steps at which each buffer is written or read, in order; at least one each.
        writes: the uses that change a buffer's contents.
        updates: those of them that read the old contents too.
    """
    found = {}
    for name, steps in uses.items():
        seen = tuple(dict.fromkeys(steps))
        changed, kept = frozenset(writes.get(name, ())), frozenset(updates.get(name, ()))
        found[name] = Lifetime(seen[0], seen[-1], seen, changed, kept)
    return found
