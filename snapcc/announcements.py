"""What is under way, told beforehand in a folder, for the case that a signal ends the process."""

from __future__ import annotations

from pathlib import Path

_folder: Path | None = None


def announce_in(folder: Path) -> None:
    """From here on phases (``snapcc.reproducer``) and artifacts (``snapcc.artifact``) are told of in ``folder``."""
    global _folder
    _folder = folder


def folder() -> Path | None:
    """Where to tell; None where nobody looks."""
    return _folder
