"""Says on standard error what is being done: a spinner on a terminal, a line per step elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import TextIO

LONG = 1.0
"""Seconds; a step that took longer leaves a line behind on a terminal."""


class Progress:
    """The steps of one run of a command.

    Args:
        quiet: say nothing.
        stream: where to; standard error by default.
    """

    def __init__(self, quiet: bool = False, stream: TextIO | None = None) -> None:
        self._quiet = quiet
        self._stream = stream or sys.stderr

    def note(self, text: str) -> None:
        """A line that stays."""
        if not self._quiet:
            print(f"snapcc: {text}", file=self._stream, flush=True)

    @contextlib.contextmanager
    def step(self, text: str) -> Iterator[None]:
        """A step that may take a while, shown as soon as it begins."""
        start = time.monotonic()
        with self._shown(text):
            yield
        seconds = time.monotonic() - start
        if seconds >= LONG:
            self.note(f"{text}: {seconds:.1f} s")

    @contextlib.contextmanager
    def _shown(self, text: str) -> Iterator[None]:
        if self._quiet or not self._stream.isatty():
            self.note(f"{text} ...")
            yield
            return
        from rich.console import Console

        with Console(file=self._stream).status(f"{text} ..."):
            yield
