"""Offsets in one memory for tensors that live at different times: first fit, largest first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np


class Legal(Protocol):
    """Where a tensor may start: the lowest legal offset from ``offset`` on, for ``size`` bytes."""

    def __call__(self, offset: int, size: int) -> int:
        """The offset, in bytes."""


@dataclass(frozen=True)
class Span:
    """``bytes`` that are needed from step ``first`` to step ``last``, both included."""

    name: str
    bytes: int
    first: int
    last: int


class Packing:
    """A memory from ``base`` to ``end`` (bytes; None: without end), filled one span after the other."""

    def __init__(self, legal: Legal, base: int = 0, end: int | None = None) -> None:
        self._legal = legal
        self._base = base
        self._limit = end
        self._count = 0
        # columns: first step, last step, offset, end of the bytes; grown by doubling
        self._rows = np.zeros((64, 4), dtype=np.int64)
        self.offsets: dict[str, int] = {}
        self.end = base

    @property
    def room(self) -> int:
        """The bytes of the memory; as many as can be where it has no end."""
        return (2**62 if self._limit is None else self._limit) - self._base

    def copy(self) -> Packing:
        """The same memory with the same spans, to be filled further."""
        made = Packing(self._legal, self._base, self._limit)
        made._count, made._rows, made.end = self._count, self._rows.copy(), self.end
        made.offsets = dict(self.offsets)
        return made

    def used(self, step: int) -> int:
        """The bytes of the spans that are needed at a step."""
        rows = self._rows[: self._count]
        rows = rows[(rows[:, 0] <= step) & (rows[:, 1] >= step)]
        return int((rows[:, 3] - rows[:, 2]).sum())

    def add(self, span: Span) -> bool:
        """Puts a span at the lowest legal offset that is free for its whole time; False if there is none."""
        if span.bytes == 0:
            self.offsets[span.name] = 0
            return True
        rows = self._rows[: self._count]
        meets = rows[(rows[:, 0] <= span.last) & (rows[:, 1] >= span.first)]
        offset = self._legal(self._base, span.bytes)
        for start, end in meets[np.argsort(meets[:, 2], kind="stable")][:, 2:].tolist():
            if offset + span.bytes <= start:
                break
            if end > offset:
                offset = self._legal(end, span.bytes)
        if self._limit is not None and offset + span.bytes > self._limit:
            return False
        self._put(span, offset)
        return True

    def add_at(self, span: Span, offset: int) -> bool:
        """Puts a span at an offset, which a part of it has already; False if that is not free for its whole time."""
        rows = self._rows[: self._count]
        meets = (rows[:, 0] <= span.last) & (rows[:, 1] >= span.first)
        meets &= (rows[:, 2] < offset + span.bytes) & (rows[:, 3] > offset)
        if meets.any():
            return False
        self._put(span, offset)
        return True

    def add_all(self, spans: Iterable[Span]) -> list[Span]:
        """Puts spans, largest first; gives those that found no place."""
        ordered = sorted(spans, key=lambda s: (-s.bytes, s.first, s.name))
        return [span for span in ordered if not self.add(span)]

    def _put(self, span: Span, offset: int) -> None:
        self.offsets[span.name] = offset
        self.end = max(self.end, offset + span.bytes)
        if self._count == len(self._rows):
            self._rows = np.concatenate([self._rows, np.zeros_like(self._rows)])
        self._rows[self._count] = (span.first, span.last, offset, offset + span.bytes)
        self._count += 1
