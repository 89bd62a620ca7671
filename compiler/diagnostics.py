"""Refusals at the user's own source line."""

from __future__ import annotations

from torch_mlir import ir

from .dialect.locations import LocatedError


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
