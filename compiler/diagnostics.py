"""Refusals and remarks at the user's own source line."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from torch_mlir import ir

from .dialect.locations import LocatedError, source_line


class Refusal(LocatedError):
    """A program that snapcc will not rewrite: where, what and why, and what the user can do.

    ``str()`` is ``file:line:col: error: reason; hint``, or ``error: ...`` where no location is known.
    """

    def __init__(self, where: ir.Location | ir.Operation | ir.OpView | ir.Value | None, reason: str, hint: str) -> None:
        super().__init__(_location(where), f"{reason}; {hint}")
        self.reason = reason
        self.hint = hint


def _location(where: ir.Location | ir.Operation | ir.OpView | ir.Value | None) -> ir.Location | None:
    if where is None or isinstance(where, ir.Location):
        return where
    return where.location


@dataclass(frozen=True)
class Remark:
    """What a pass did or left alone, and why: ``str()`` is ``file:line:col: remark: text``."""

    where: ir.Location | ir.Operation | ir.Value
    text: str

    def __str__(self) -> str:
        place = source_line(_location(self.where))
        return f"{place}: remark: {self.text}" if place else f"remark: {self.text}"


def print_remark(remark: Remark) -> None:
    """Prints a remark on standard error, as MLIR's own tools do."""
    print(remark, file=sys.stderr)
