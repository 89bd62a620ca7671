"""What can be wrong with a program or a machine for a plan, and where in the user's source."""

from __future__ import annotations

from torch_mlir import ir


class ProgramError(ValueError):
    """A program that cannot be planned: not the linalg phase's form, or a size that is not known."""


class PlacementError(ValueError):
    """A program that does not fit in the machine; the message prints the memory map."""


class PlanError(RuntimeError):
    """A plan that breaks its own rules, as the checker sees it: a fault of the planner."""


def place(location: ir.Location) -> str:
    """``file:line`` of a location's innermost frame outside PyTorch, or of its innermost; "?" where none is known."""
    frames = _frames(location)
    own = [f for f in frames if "/torch/" not in f.filename]
    return next((f"{f.filename}:{f.start_line}" for f in own or frames), "?")


def _frames(location: ir.Location) -> list[ir.FileLineColLoc]:
    if isinstance(location, ir.FileLineColLoc):
        return [location]
    if isinstance(location, ir.CallSiteLoc):
        return _frames(location.callee) + _frames(location.caller)
    if isinstance(location, ir.NameLoc):
        return _frames(location.child_loc)
    if isinstance(location, ir.FusedLoc):
        return [frame for inner in location.locations for frame in _frames(inner)]
    return []
