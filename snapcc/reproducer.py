"""What repeats a failure of the compiler: the failing phase's input, the command, the versions, the error.

A folder ``snapcc-reproducer-<phase>`` (with a number where there is one already)::

    input.mlir      the IR that the phase began with: valid, with the source's locations, without weights; of the torch
                    phase it is input.pt2, the exported program
    repeat.sh       the one command that repeats the failure: snapcc-opt, iree-compile or snapcc
    versions.json   of snapcc and of what it uses
    error.txt       the error with its Python traceback

Refusals, and what does not fit the machine, are no failures: they say what to do and keep nothing. A phase whose native
code ends the whole process is told of beforehand (``snapcc.announcements``); ``snapcc.supervision`` keeps the folder.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import announcements, interrupts, versions

INPUT = "input.mlir"
INPUT_PROGRAM = "input.pt2"
SCRIPT = "repeat.sh"


@dataclass(frozen=True)
class Reproducer:
    """What repeats one phase.

    Attributes:
        where: the folder for the reproducer's.
        phase: what is done, for the folder's name.
        source: what the phase begins with; a function where it is dear to make, and then kept of errors alone, not
            where a signal ends the process.
        command: what repeats it, run in the reproducer's folder.
        input: the name of the file for ``source``.
    """

    where: Path
    phase: str
    source: bytes | Callable[[], bytes]
    command: Sequence[str]
    input: str = INPUT

    def keep(self, error: str) -> str:
        """Writes the folder; a note for the user that names it, or says why there is none."""
        try:
            folder = self._write(error)
        except Exception as second:
            # not in the way of the error that it is kept for
            reason = second.strerror if isinstance(second, OSError) else f"{type(second).__name__}: {second}"
            return f"what repeats this could not be kept in {self.where}: {reason}"
        return f"{folder} holds what repeats this, without weights: sh {folder / SCRIPT}"

    def _write(self, error: str) -> Path:
        self.where.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=".snapcc-reproducer-", dir=self.where))
        try:
            (folder / self.input).write_bytes(self.source if isinstance(self.source, bytes) else self.source())
            (folder / SCRIPT).write_text(f'#!/bin/sh\ncd "$(dirname "$0")" && exec {shlex.join(self.command)}\n')
            found = {"snapcc": versions.own(), "python": sys.version} | versions.tools()
            (folder / "versions.json").write_text(json.dumps(found, indent=2) + "\n")
            (folder / "error.txt").write_text(error)
            folder.chmod(0o755)
            return folder.rename(_free(self.where / f"snapcc-reproducer-{self.phase}"))
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise


def announced(folder: Path) -> Reproducer | None:
    """The phase that was under way, by what ``folder`` says."""
    try:
        content = json.loads((folder / "phase.json").read_text())
        return Reproducer(Path(content.pop("where")), source=(folder / "source").read_bytes(), **content)
    except FileNotFoundError:
        return None


def importing(inputs: Mapping[str, str], causal_masks: Sequence[str], sizes: Mapping[str, object]) -> list[str]:
    """The command that takes a reproducer's exported program to the torch phase.

    Args:
        inputs: the names of the tokens and the positions.
        causal_masks: the names of mask inputs that are plainly causal.
        sizes: further options by name.
    """
    command = [sys.executable, "-m", "snapcc.cli", "compile", INPUT_PROGRAM, "--compile-to=torch", "-o", "/dev/null"]
    command += [f"--input={','.join(f'{role}={name}' for role, name in inputs.items())}"]
    return [*command, *(f"--causal-mask={n}" for n in causal_masks), *(f"--{k}={v}" for k, v in sizes.items())]


def optimizer(pipeline: str) -> list[str]:
    """The command that runs a pipeline on a reproducer's input; ``pipeline`` as ``snapcc-opt`` takes it."""
    command = [sys.executable, "-m", "snapcc.opt", INPUT, f"--pass-pipeline=builtin.module({pipeline})"]
    return [*command, "-o", "/dev/null"]


@contextlib.contextmanager
def on_failure(reproducer: Reproducer, expected: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Keeps a reproducer where the body fails, and adds a note to the error that names it.

    Args:
        reproducer: what repeats the body.
        expected: errors that are no failures of the compiler.
    """
    with _announcing(reproducer):
        try:
            yield
        except expected:
            raise
        except Exception as error:
            if interrupts.came():
                raise KeyboardInterrupt from error
            error.add_note(reproducer.keep("".join(traceback.format_exception(error))))
            raise


@contextlib.contextmanager
def _announcing(reproducer: Reproducer) -> Iterator[None]:
    told = announcements.folder()
    if told is None or not isinstance(reproducer.source, bytes):
        yield
        return
    content = {"where": str(reproducer.where.resolve()), "phase": reproducer.phase, "input": reproducer.input}
    (told / "source").write_bytes(reproducer.source)
    (told / "phase.json").write_text(json.dumps(content | {"command": list(reproducer.command)}))
    try:
        yield
    finally:
        (told / "phase.json").unlink()


def _free(path: Path) -> Path:
    number, free = 1, path
    while free.exists():
        number += 1
        free = path.with_name(f"{path.name}-{number}")
    return free
