"""What can be wrong with a program or a machine for a plan, and where in the user's source."""

from __future__ import annotations

from torch_mlir import ir

from snapcc.compiler.dialect.locations import LocatedError, source_line


class ProgramError(LocatedError):
    """A program that cannot be planned: not the linalg phase's form, or a size that is not known."""


class PlacementError(LocatedError):
    """A program that does not fit in the machine; the message prints the memory map."""

    def __init__(self, message: str, where: ir.Location | None = None) -> None:
        super().__init__(where, message)


class PlanError(RuntimeError):
    """A plan that breaks its own rules, as the checker sees it: a fault of the planner."""


def place(location: ir.Location) -> str:
    """``file:line`` of a location in the model's own source; "?" where none is known."""
    return source_line(location).rpartition(":")[0] or "?"
