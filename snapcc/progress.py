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
    """The steps of one run of a command, one at a time.

    Args:
        quiet: say nothing.
        stream: where to; standard error by default.
    """

    def __init__(self, quiet: bool = False, stream: TextIO | None = None) -> None:
        self._quiet = quiet
        self._stream = stream or sys.stderr

    def note(self, text: str) -> None:
        """A line that stays."""
        self._write(f"snapcc: {text}\n")

    @contextlib.contextmanager
    def step(self, text: str) -> Iterator[None]:
        """A step that may take a while, shown as soon as it begins."""
        start = time.monotonic()
        if not self._quiet and self._stream.isatty():
            from rich.console import Console

            with Console(file=self._stream).status(f"{text} ..."):
                yield
            if (seconds := time.monotonic() - start) >= LONG:
                self.note(f"{text}: {seconds:.1f} s")
            return
        self._write(f"snapcc: {text} ...")
        try:
            yield
        except BaseException:
            self._write("\n")
            raise
        self._write(f" {time.monotonic() - start:.1f} s\n")

    def _write(self, text: str) -> None:
        if not self._quiet:
            self._stream.write(text)
            self._stream.flush()
