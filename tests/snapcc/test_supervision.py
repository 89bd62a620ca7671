"""Signals that end the compiler from within: a line for the user, exit status 1, nothing half written."""

import subprocess
import sys
from pathlib import Path

import decoders
import pytest
import torch

DECODER = next(decoder for decoder in decoders.GOOD if decoder.name == "monocle")
SIZES = ["--sink=2", "--recent=8", "--topk=4", "--obs-window=4", "--prompt=20", "--extend=0"]

CRASH = """
import os, sys
from snapcc import cli, contents
from snapcc.compiler.passes import manager

run = manager.run

def crash_at(number):
    def crashing(module, steps, *more):
        if any(getattr(step, "name", "") == "kv-apply-policy" for step in steps):
            os.kill(os.getpid(), number)
        run(module, steps, *more)
    manager.run = crashing

def die(*_):
    os.kill(os.getpid(), 9)

"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.pt2"
    torch.export.save(DECODER.program(), path)
    return path


def crash(how: str, folder: Path, *more: str) -> list[str]:
    """The last lines that the command says on standard error."""
    (folder / "temporary").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", f"{CRASH}\n{how}\nsys.exit(cli.entry())", "model.pt2", *SIZES, "--target=host", *more],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "TMPDIR": str(folder / "temporary")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stderr
    assert list((folder / "temporary").iterdir()) == []
    return done.stderr.splitlines()


def test_native_code_that_crashes_in_a_pass(model: Path) -> None:
    here = model.parent
    *_, error, note = crash("crash_at(11)", here, "--compile-to=linalg")
    assert error == (
        "error: the compiler crashed in the phase static (SIGSEGV): a fault of snapcc, or of the native code that it "
        "uses"
    )
    folder = here.resolve() / "snapcc-reproducer-static"
    assert note == f"note: {folder} holds what repeats this, without weights: sh {folder}/repeat.sh"
    assert '"kv.append"' in (folder / "input.mlir").read_text()
    # the fault was the test's own, so that the pass does its work there
    assert subprocess.run(["sh", str(folder / "repeat.sh")]).returncode == 0
    assert {path.name for path in here.iterdir()} == {"model.pt2", "temporary", folder.name}


def test_a_kill_while_the_artifact_is_written(model: Path) -> None:
    *_, error = crash("contents.store_weights = die", model.parent)
    assert error == (
        "error: the compiler was killed (SIGKILL): often no memory is left; free some, or compile for less"
    )
    assert {path.name for path in model.parent.iterdir()} == {"model.pt2", "temporary"}
