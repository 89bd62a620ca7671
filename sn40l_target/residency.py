"""When each buffer of a function stands in the nearest tier, and the bytes that it moves while it does not.

A step is a section. A buffer is used at some steps, and between two uses it is kept in the nearest tier or it is not. A
stay is a run of uses between which it is kept. Outside its stays a buffer is read and written where it has its home, in
a tier further away. Every such access, and every fill or spill at either end of a stay, moves the whole buffer once;
contents that are in the home already are not written there again. The sum of these bytes is what the planner and the
exact solver minimise.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

from .lifetime import Lifetime

Stay = tuple[int, int]
"""The numbers of the first and the last use of a stay, both included."""


@dataclass(frozen=True)
class Item:
    """A buffer that may stand in the nearest tier."""

    name: str
    bytes: int
    life: Lifetime

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def gaps(self) -> range:
        """The numbers of the times between two uses, each that of the use in front; 0 for an only use itself."""
        return range(max(len(self.life.uses) - 1, 1))

    def span(self, gap: int) -> tuple[int, int]:
        """The first and the last step of a gap, both included."""
        uses = self.life.uses
        return uses[gap], uses[min(gap + 1, len(uses) - 1)]

    def needed(self, use: int) -> bool:
        """Whether the contents after a use are read before they are written over."""
        rest = self.life.uses[use + 1 :]
        return next((self.life.reads(step) for step in rest), False)


@dataclass(frozen=True)
class Move:
    """One move of a whole buffer between the nearest tier and its home.

    ``fill``: before ``step``, to the nearest tier. ``spill``: after it, to the home. ``read`` and ``write``: by the
    step itself, straight from or to the home.
    """

    kind: Literal["fill", "spill", "read", "write"]
    step: int


def moves(item: Item, stays: Sequence[Stay]) -> list[Move]:
    """The moves of a buffer that has the given stays, in order."""
    found: list[Move] = []
    starts, ends = {first for first, _ in stays}, {last for _, last in stays}
    inside = {use for first, last in stays for use in range(first, last + 1)}
    at_home = False
    for use, step in enumerate(item.life.uses):
        reads, writes = item.life.reads(step), step in item.life.writes
        if use not in inside:
            found += [Move("read", step)] if reads else []
            found += [Move("write", step)] if writes else []
            found += [Move("read", step)] if step in item.life.rereads else []
            at_home = True
            continue
        if use in starts and use and reads:
            found.append(Move("fill", step))
        at_home = at_home and not writes
        if use in ends and not at_home and item.needed(use):
            found.append(Move("spill", step))
            at_home = True
    return found


def traffic(item: Item, stays: Iterable[Stay]) -> int:
    """The bytes that a buffer with the given stays moves between the nearest tier and its home."""
    return item.bytes * _count(item, tuple(stays))


@lru_cache(maxsize=2**16)
def _count(item: Item, stays: tuple[Stay, ...]) -> int:
    return len(moves(item, stays))


@dataclass
class Residency:
    """The stays of each buffer in the nearest tier, with their offsets, and the bytes that all buffers move.

    ``end`` is that of the room that they were found for; None for one without end.
    """

    stays: dict[str, dict[Stay, int]] = field(default_factory=dict)
    traffic: int = 0
    end: int | None = None

    def of(self, name: str) -> dict[Stay, int]:
        """A buffer's stays."""
        return self.stays.get(name, {})
