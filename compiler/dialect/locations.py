"""Places in the user's source, from MLIR's locations, and errors at them."""

from __future__ import annotations

import sysconfig
from pathlib import Path

from torch_mlir import ir

_LIBRARIES = tuple({sysconfig.get_path(p) for p in ("stdlib", "purelib", "platlib")})


class LocatedError(Exception):
    """What is wrong with a program, and where in the user's source.

    ``str()`` is ``file:line:col: error: message``, or ``error: message`` where no place is known. ``place`` is the
    place alone, "" where none is known.
    """

    def __init__(self, where: ir.Location | None, message: str) -> None:
        self.place = source_line(where)
        super().__init__(f"{self.place}: error: {message}" if self.place else f"error: {message}")


def _frames(location: ir.Location) -> list[tuple[str, int, int]]:
    """The file positions in a location, innermost frame first."""
    if isinstance(location, ir.FileLineColLoc):
        return [(location.filename, location.start_line, location.start_col)]
    if isinstance(location, ir.CallSiteLoc):
        return _frames(location.callee) + _frames(location.caller)
    if isinstance(location, ir.FusedLoc):
        return [frame for inner in location.locations for frame in _frames(inner)]
    if isinstance(location, ir.NameLoc):
        return _frames(location.child_loc)
    return []


def source_line(location: ir.Location | None) -> str:
    """``file:line:col`` of the innermost frame that is the model's, not PyTorch's; "" if none is known.

    A model of transformers is the user's model, though it lies among the installed libraries.
    """
    if location is None:
        return ""
    frames = _frames(location)
    own = [f for f in frames if not _is_machinery(f[0])]
    chosen = (own or frames)[:1]
    return "".join(f"{name}:{line}:{max(column, 1)}" for name, line, column in chosen)


def _is_machinery(filename: str) -> bool:
    inside = any(filename.startswith(root) for root in _LIBRARIES)
    return inside and "transformers" not in Path(filename).parts
