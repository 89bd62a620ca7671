"""A command in a process of its own: native code can end it, and the user still learns in which phase.

What compiles in our own process (torch's exporter, torch-mlir, MLIR) can end it by a signal: a failed assertion, a bad
access, no memory left. So the command runs in a child, forked before anything heavy is imported, and the parent only
waits. Where a signal ends the child, the parent says so with exit status 1, keeps the reproducer of the phase that was
under way, and clears away what is half written.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import NoReturn

from . import announcements, artifact, reproducer

_PR_SET_PDEATHSIG = 1


def supervised(command: Callable[[], int]) -> int:
    """The command's exit status, and 1 where a signal ended it."""
    # the child's temporary files go there too
    folder = Path(tempfile.mkdtemp(prefix="snapcc-"))
    child = os.fork()
    if child == 0:
        _be_the_child(command, folder)
    try:
        status = _wait(child)
        if not os.WIFSIGNALED(status):
            return os.WEXITSTATUS(status)
        _report(signal.Signals(os.WTERMSIG(status)), folder)
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _be_the_child(command: Callable[[], int], folder: Path) -> NoReturn:
    if sys.platform == "linux":
        import ctypes

        # what kills the parent for good, such as a time limit, must not leave the compiler running
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    tempfile.tempdir = os.environ["TMPDIR"] = str(folder)
    announcements.announce_in(folder)
    raise SystemExit(command())


def _wait(child: int) -> int:
    """Waits, and gives the status as ``os.waitpid`` does; a signal that is to end us is for the child."""

    def forward(number: int, frame: FrameType | None) -> None:
        os.kill(child, number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, forward)
    return os.waitpid(child, 0)[1]


def _report(number: signal.Signals, folder: Path) -> None:
    artifact.clear_announced(folder)
    begun = reproducer.announced(folder)
    phase = "" if begun is None else f" in the phase {begun.phase}"
    if number is signal.SIGKILL:
        said = f"the compiler was killed{phase} (SIGKILL): often no memory is left; free some, or compile for less"
    else:
        said = f"the compiler crashed{phase} ({number.name}): a fault of snapcc, or of the native code that it uses"
    # the child was about to end a line of progress
    print(f"\nerror: {said}", file=sys.stderr)
    if begun is not None:
        print(f"note: {begun.keep(said)}", file=sys.stderr)
