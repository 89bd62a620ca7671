"""From when until when each buffer holds something, in steps of the program's order.

A step is the position of an op in its block: the order of the program is the order of execution.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Lifetime:
    """``first`` and ``last`` step, both included, at which a buffer is written or read; ``uses`` are all, in order."""

    first: int
    last: int
    uses: tuple[int, ...]

    def next_use(self, step: int) -> int:
        """The first use at or after a step that is not past ``last``."""
        return self.uses[bisect_left(self.uses, step)]


def lifetimes(uses: Mapping[str, Sequence[int]], on_entry: Collection[str]) -> dict[str, Lifetime]:
    """Lifetimes by buffer.

    Args:
        uses: the steps at which each buffer is written or read, in order; at least one each.
        on_entry: buffers that hold something before the first step (a function's arguments).
    """
    found = {}
    for name, steps in uses.items():
        seen = tuple(dict.fromkeys((0, *steps) if name in on_entry else steps))
        found[name] = Lifetime(seen[0], seen[-1], seen)
    return found
