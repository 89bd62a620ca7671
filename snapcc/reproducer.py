"""What repeats a failure of the compiler: the failing phase's input, the command, the versions, the error.

A folder ``snapcc-reproducer-<phase>`` (with a number where there is one already)::

    input.mlir      the IR that the phase began with: valid, with the source's locations, without weights
    repeat.sh       the one command that repeats the failure: snapcc-opt or iree-compile
    versions.json   of snapcc and of what it uses
    error.txt       the error with its Python traceback

Refusals, and what does not fit the machine, are no failures: they say what to do and keep nothing.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import shutil
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

from . import versions

INPUT = "input.mlir"
SCRIPT = "repeat.sh"


def optimizer(pipeline: str) -> list[str]:
    """The command that runs a pipeline on a reproducer's input; ``pipeline`` as ``snapcc-opt`` takes it."""
    command = [sys.executable, "-m", "snapcc.opt", INPUT, f"--pass-pipeline=builtin.module({pipeline})"]
    return [*command, "-o", "/dev/null"]


@contextlib.contextmanager
def on_failure(
    where: Path, phase: str, source: bytes, command: Sequence[str], expected: tuple[type[Exception], ...] = ()
) -> Iterator[None]:
    """Keeps a reproducer where the body fails, and adds a note to the error that names it.

    Args:
        where: the folder for the reproducer's.
        phase: what the body does, for the folder's name.
        source: the IR that the body begins with.
        command: what repeats it, run in the reproducer's folder.
        expected: errors that are no failures of the compiler.
    """
    try:
        yield
    except expected:
        raise
    except Exception as error:
        try:
            folder = _keep(where, phase, source, command, error)
        except OSError as second:
            error.add_note(f"what repeats this could not be kept in {where}: {second.strerror}")
        else:
            error.add_note(f"{folder} holds what repeats this, without weights: sh {folder / SCRIPT}")
        raise


def _keep(where: Path, phase: str, source: bytes, command: Sequence[str], error: Exception) -> Path:
    where.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=".snapcc-reproducer-", dir=where))
    try:
        (folder / INPUT).write_bytes(source)
        (folder / SCRIPT).write_text(f'#!/bin/sh\ncd "$(dirname "$0")" && exec {shlex.join(command)}\n')
        found = {"snapcc": versions.own(), "python": sys.version} | versions.tools()
        (folder / "versions.json").write_text(json.dumps(found, indent=2) + "\n")
        (folder / "error.txt").write_text("".join(traceback.format_exception(error)))
        folder.chmod(0o755)
        return folder.rename(_free(where / f"snapcc-reproducer-{phase}"))
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _free(path: Path) -> Path:
    number, free = 1, path
    while free.exists():
        number += 1
        free = path.with_name(f"{path.name}-{number}")
    return free
