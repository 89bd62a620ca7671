"""An interrupt, or the request to end, as ``KeyboardInterrupt``; known also where another exception takes its place.

An exception that is raised in a Python function which MLIR calls comes out on the other side as a ``RuntimeError``.
"""

from __future__ import annotations

import signal
from types import FrameType
from typing import NoReturn

_came = False


def take() -> None:
    """From here on SIGINT and SIGTERM raise ``KeyboardInterrupt``, so that what is half written goes."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _raise)


def came() -> bool:
    """Whether there was one: an exception is then no failure."""
    return _came


def _raise(number: int, frame: FrameType | None) -> NoReturn:
    global _came
    _came = True
    # a second one, as where a terminal and the parent both send it, would cut the clearing up short
    for other in (signal.SIGINT, signal.SIGTERM):
        signal.signal(other, signal.SIG_IGN)
    raise KeyboardInterrupt
