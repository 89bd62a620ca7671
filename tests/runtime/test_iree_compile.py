"""iree-compile as a process: what its failures look like to a user, and what it leaves behind."""

import re
import subprocess
import tempfile
from pathlib import Path

import pytest

from snapcc.runtime import iree_compile
from snapcc.runtime.iree_compile import IreeCompileError, compile_module, stream_ir, target_flags

ADD = b"""func.func @add(%a: tensor<4xf32>) -> tensor<4xf32> {
  %b = arith.addf %a, %a : tensor<4xf32>
  return %b : tensor<4xf32>
}
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where reproducers go."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_compiles_and_leaves_nothing_behind(tmp_path: Path, temporary: Path) -> None:
    compile_module(ADD, tmp_path / "add.vmfb", target_flags("cpu"))
    assert (tmp_path / "add.vmfb").stat().st_size > 1000
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("device", ["vulkan", "cuda"])
def test_compiles_for_gpus_without_one(device: iree_compile.Device, tmp_path: Path) -> None:
    compile_module(ADD, tmp_path / "add.vmfb", target_flags(device))
    assert (tmp_path / "add.vmfb").exists()


def test_a_refused_module_is_an_error(tmp_path: Path, temporary: Path) -> None:
    with pytest.raises(IreeCompileError) as caught:
        compile_module(ADD.replace(b"%a, %a", b"%a, %c"), tmp_path / "decode.vmfb", target_flags("cpu"))
    first, error = str(caught.value).splitlines()
    assert first == "iree-compile failed with exit status 1 on the module decode"
    assert re.search(r"decode\.mlir:2:23: error: use of undeclared SSA value name", error)
    assert list(temporary.iterdir()) == []


def test_a_crash_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "tool"
    tool.write_text("#!/bin/sh\necho some last words >&2\nkill -SEGV $$\n")
    tool.chmod(0o755)
    monkeypatch.setattr(iree_compile, "_tool", lambda: str(tool))
    with pytest.raises(
        IreeCompileError, match=r"iree-compile crashed \(SIGSEGV\) on the module add\n  some last words"
    ):
        compile_module(ADD, tmp_path / "add.vmfb", ())


def test_an_interrupt_leaves_nothing_behind(tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess.Popen, "communicate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        compile_module(ADD, tmp_path / "add.vmfb", ())
    assert list(temporary.iterdir()) == []


def test_stream_ir_names_the_dispatches() -> None:
    assert "stream.cmd.dispatch" in stream_ir(ADD, target_flags("cpu"))
