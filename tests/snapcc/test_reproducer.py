"""What is kept where the compiler fails: enough to repeat it by one command, and no weights."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import decoders
import plain_decoders
import pytest
import torch

from snapcc import cli
from snapcc.compiler.passes import pipelines
from snapcc.compiler.passes.apply_policy import ApplyPolicy
from snapcc.compiler.passes.manager import parse_pipeline, pipeline_text
from snapcc.frontend import importer
from snapcc.reproducer import Reproducer, on_failure
from snapcc.runtime import iree_compile
from snapcc.sn40l_target import plan as planning
from snapcc.sn40l_target.plan import Sn40lPlan

DECODER = next(decoder for decoder in decoders.GOOD if decoder.name == "monocle")
SIZES = "--sink=2 --recent=8 --topk=4 --obs-window=4 --prompt=20 --quiet"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("reproducer") / "model.pt2"
    torch.export.save(DECODER.program(), path)
    return path


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder of the command."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def fail(capsys: pytest.CaptureFixture[str], model: Path, *more: str) -> tuple[str, str]:
    """Runs the compile command, which must fail: its error's lines before the note, and what the note says to run."""
    assert cli.main([str(model), *SIZES.split(), *more]) == 1
    output, errors = capsys.readouterr()
    assert output == ""
    error, _, note = errors.rpartition("note: ")
    found = re.fullmatch(r"(?P<folder>\S+) holds what repeats this, without weights: (?P<command>sh \S+)\n", note)
    assert found is not None, errors
    return error, found["command"]


def again(command: str) -> str:
    done = subprocess.run(command.split(), capture_output=True, text=True)
    assert done.returncode != 0
    return done.stderr


def assert_no_weights(folder: Path) -> None:
    kept = b"".join(path.read_bytes() for path in folder.iterdir())
    assert b"dense_resource" not in kept
    for name, tensor in DECODER.program().state_dict.items():
        first = tensor.detach().flatten()[:4]
        assert first.numpy().tobytes() not in kept, name
        assert f"{first[0].item():.6e}".encode() not in kept, name


def test_a_pass_of_mlirs(
    model: Path, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # a verifier of torch-mlir's that refuses every kv op
    steps = ["torch-verify-linalg-on-tensors-backend-contract"]
    monkeypatch.setattr(pipelines, "apply_policy", lambda *_: steps)
    error, command = fail(capsys, model)
    assert "error: Module does not conform to the linalg-on-tensors backend contract" in error
    assert len(error.splitlines()) < 20
    assert command == "sh snapcc-reproducer-static/repeat.sh"
    assert "error: Module does not conform to the linalg-on-tensors backend contract" in again(command)
    folder = here / "snapcc-reproducer-static"
    assert {path.name for path in folder.iterdir()} == {"input.mlir", "repeat.sh", "versions.json", "error.txt"}
    assert '"kv.append"' in (folder / "input.mlir").read_text()
    assert Path(decoders.__file__).name in (folder / "input.mlir").read_text()
    assert {"snapcc", "torch", "torch-mlir", "iree-base-compiler"} < set(
        json.loads((folder / "versions.json").read_text())
    )
    assert_no_weights(folder)
    # a second one does not take the first one's place
    assert fail(capsys, model)[1] == "sh snapcc-reproducer-static-2/repeat.sh"
    assert {path.name for path in here.iterdir()} == {"snapcc-reproducer-static", "snapcc-reproducer-static-2"}


def test_a_pass_of_ours(
    model: Path, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # no such pooling: a mistake of whoever calls the pass
    monkeypatch.setattr(pipelines, "apply_policy", lambda *_: [ApplyPolicy(2, 8, 4, 4, 1, "median")])
    error, command = fail(capsys, model, "--reproducer-dir", "kept/here")
    assert "pool must be one of avg, max, none, got 'median'" in error
    assert command == "sh kept/here/snapcc-reproducer-static/repeat.sh"
    assert "pool must be one of avg, max, none, got 'median'" in again(command)
    assert [path.name for path in here.iterdir()] == ["kept"]


def test_the_planner(
    model: Path, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def faulty(*_: Any) -> None:
        raise KeyError("a buffer")

    monkeypatch.setattr(planning, "plan", faulty)
    error, _ = fail(capsys, model)
    assert error == "error: internal error, KeyError: 'a buffer' (set SNAPCC_TRACEBACK=1 to see where)\n"
    folder = here / "snapcc-reproducer-sn40l"
    assert "builtin.module(sn40l-plan)" in (folder / "repeat.sh").read_text()
    assert "in faulty" in (folder / "error.txt").read_text()
    # the fault is not in the command's own process
    assert subprocess.run(["sh", str(folder / "repeat.sh")]).returncode == 0


def test_iree_compile(
    model: Path, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tool = here / "bin" / "tool"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\necho some last words >&2\nkill -SEGV $$\n")
    tool.chmod(0o755)
    monkeypatch.setattr(iree_compile, "_tool", lambda: str(tool))
    error, command = fail(capsys, model, "--target=host")
    assert error == "error: iree-compile crashed (SIGSEGV) on the module decode\n  some last words\n"
    assert command == "sh snapcc-reproducer-iree-decode/repeat.sh"
    done = subprocess.run(command.split(), capture_output=True, text=True)
    assert (done.returncode, done.stderr.splitlines()[0]) == (-11, "some last words")
    assert_no_weights(here / "snapcc-reproducer-iree-decode")
    assert {path.name for path in here.iterdir()} == {"bin", "snapcc-reproducer-iree-decode"}


def test_a_refusal_keeps_nothing(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.export.save(plain_decoders.REFUSED[0].decoder.program(), here / "model.pt2")
    assert cli.main(["model.pt2", *SIZES.split()]) == 1
    assert "note:" not in capsys.readouterr().err
    assert [path.name for path in here.iterdir()] == ["model.pt2"]


def test_where_nothing_can_be_kept_the_error_is_said_all_the_same(here: Path) -> None:
    (here / "file").write_text("")
    with pytest.raises(KeyError) as caught, on_failure(Reproducer(here / "file", "kv", b"", ["true"])):
        raise KeyError("first")
    assert caught.value.__notes__ == [f"what repeats this could not be kept in {here / 'file'}: File exists"]


def test_an_interrupt_keeps_nothing(here: Path) -> None:
    with pytest.raises(KeyboardInterrupt), on_failure(Reproducer(here, "kv", b"", ["true"])):
        raise KeyboardInterrupt
    assert list(here.iterdir()) == []


def test_a_pipeline_is_its_text() -> None:
    steps = [ApplyPolicy(2, 8, 4, 4, 3, "max", 7, "all"), "func.func(canonicalize,cse)", Sn40lPlan()]
    text = pipeline_text(steps)
    assert text.startswith("kv-apply-policy{sink=2 ")
    assert text.endswith(",func.func(canonicalize,cse),sn40l-plan")
    assert parse_pipeline(text, [ApplyPolicy, Sn40lPlan]) == steps


def operations(path: Path) -> list[str]:
    """The lines of a module without locations, and without the weights' names: where all are blank, equal ones share
    one."""
    lines = [re.sub(r" loc\(.*|parameter = .*?}", "", line) for line in path.read_text().splitlines()]
    return [line for line in lines if not line.startswith("#loc")]


def test_torch_mlirs_importer(
    model: Path, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def faulty(*_: Any, **__: Any) -> None:
        raise RuntimeError("no such operator")

    with monkeypatch.context() as patched:
        patched.setattr(importer.FxImporter, "import_program", faulty)
        error, command = fail(capsys, model, "--batch=2")
    assert error == "error: no such operator\n"
    assert command == "sh snapcc-reproducer-torch/repeat.sh"
    folder = here / "snapcc-reproducer-torch"
    assert {path.name for path in folder.iterdir()} == {"input.pt2", "repeat.sh", "versions.json", "error.txt"}
    assert_no_weights(folder)
    # the fault is not in the command's own process, which imports the program as it was wanted
    script = (folder / "repeat.sh").read_text()
    (folder / "repeat.sh").write_text(script.replace("/dev/null", "out.mlir"))
    assert subprocess.run(["sh", str(folder / "repeat.sh")], stderr=subprocess.DEVNULL).returncode == 0
    assert cli.main([str(model), *SIZES.split(), "--batch=2", "--compile-to=torch", "-o", "own.mlir"]) == 0
    assert operations(folder / "out.mlir") == operations(here / "own.mlir")
