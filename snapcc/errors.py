"""Every failure as the lines that a user sees: ``file:line:col: error: ...``, never a traceback unless asked for."""

from __future__ import annotations

import os
import sys
import traceback
from typing import Any

TRACEBACK = "SNAPCC_TRACEBACK"
"""The environment variable that shows the Python traceback of a failure (any value but the empty one)."""

_MISTAKES = (AssertionError, AttributeError, ImportError, LookupError, NameError, TypeError)
"""What no code of ours raises for a user to read."""


def report(error: BaseException, source: str | None = None) -> None:
    """Writes the error's lines to standard error.

    Args:
        error: what was raised.
        source: the name of the file whose text MLIR parsed under the name ``-``.
    """
    if os.environ.get(TRACEBACK):
        traceback.print_exception(error)
    for line in describe(error):
        print(_renamed(line, source), file=sys.stderr)
    sys.stderr.flush()


def describe(error: BaseException) -> list[str]:
    """The lines of an error: ``place: error: message`` and ``place: note: message``."""
    return [*_lines(error), *(f"note: {note}" for note in getattr(error, "__notes__", ()))]


def _lines(error: BaseException) -> list[str]:
    from torch_mlir import ir

    from snapcc.compiler.dialect.locations import LocatedError

    if isinstance(error, LocatedError):
        return str(error).splitlines()
    if isinstance(error, ir.MLIRError):
        diagnostics = list(error.error_diagnostics)
        return [line for d in diagnostics for line in _diagnostic("error", d)] or [f"error: {error}"]
    text = str(error) or type(error).__name__
    if isinstance(error, OSError) and error.strerror:
        text = f"{error.filename}: {error.strerror}" if error.filename is not None else error.strerror
    if isinstance(error, _MISTAKES):
        text = f"internal error, {type(error).__name__}: {text} (set {TRACEBACK}=1 to see where)"
    return [f"error: {text}"]


def _diagnostic(kind: str, diagnostic: Any) -> list[str]:
    from torch_mlir import ir

    from snapcc.compiler.dialect.locations import source_line

    # a diagnostic's location comes without its class; the way through the attribute gives it
    place = source_line(ir.Location.from_attr(diagnostic.location.attr, diagnostic.location.context))
    head = f"{place}: {kind}" if place else kind
    notes = [line for note in diagnostic.notes for line in _diagnostic("note", note)]
    # "see current operation" may be followed by the whole module
    first, *more = str(diagnostic.message).splitlines() or [""]
    shown = [f"{first} ..."] if more and kind == "note" else [first, *more]
    return [f"{head}: {shown[0]}", *shown[1:], *notes]


def _renamed(line: str, source: str | None) -> str:
    return f"{source}{line[1:]}" if source is not None and line.startswith("-:") else line
