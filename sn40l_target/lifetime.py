"""From when until when each buffer holds something, in steps of the program's order.

A step is the position of an op in its block: the order of the program is the order of execution. Where ops run together
as stages of sections, the steps are the sections: what two ops of one section use is there at the same time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Lifetime:
    """The steps at which a buffer is written or read.

    ``first`` and ``last`` are both included; ``uses`` are all steps, in order; at those in ``writes`` its contents
    change, at every other one they are read; at those in ``updates`` they are read and then change, at those in
    ``rereads`` they change and are read again within the step.
    """

    first: int
    last: int
    uses: tuple[int, ...]
    writes: frozenset[int]
    updates: frozenset[int]
    rereads: frozenset[int] = frozenset()

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


class Steps:
    """A function's sections as steps, and one more for what is left behind the last of them (a return).

    An op that is in no section (a view, a return) belongs to the step of the section behind it.

    Args:
        sections: the positions of each section's ops, in order.
        ops: how many ops the function has.
    """

    def __init__(self, sections: Sequence[Sequence[int]], ops: int) -> None:
        self._starts = [positions[0] for positions in sections]
        self._ends = [positions[-1] for positions in sections]
        self._end = max(ops - 1, 0)

    def of(self, position: int) -> int:
        """The step of the op at a position."""
        return bisect_left(self._ends, position)

    def first(self, step: int) -> int:
        """The position of a step's first op."""
        return self._starts[step] if step < len(self._starts) else self._end

    def last(self, step: int) -> int:
        """The position of a step's last op."""
        return self._ends[step] if step < len(self._ends) else self._end

    def life(self, life: Lifetime) -> Lifetime:
        """A lifetime by position, by step."""
        inside: dict[int, list[int]] = {}
        for use in life.uses:
            inside.setdefault(self.of(use), []).append(use)
        writes = {step for step, uses in inside.items() if not life.writes.isdisjoint(uses)}
        rereads = set()
        for step in writes:
            first = next(use for use in inside[step] if use in life.writes)
            if any(use > first and life.reads(use) for use in inside[step]):
                rereads.add(step)
        return Lifetime(
            first=self.of(life.first),
            last=self.of(life.last),
            uses=tuple(inside),
            writes=frozenset(writes),
            updates=frozenset(step for step in writes if life.reads(inside[step][0])),
            rereads=frozenset(rereads),
        )
