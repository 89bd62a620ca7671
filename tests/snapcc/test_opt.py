"""snapcc-opt: what it prints, where it says an error is, and its exit statuses."""

import dataclasses
import re
from pathlib import Path
from typing import ClassVar

import pytest
from torch_mlir import ir

from snapcc import opt, registry

GOOD = """func.func @good() -> !torch.vtensor<[64],f32> {
  %w = "kv.parameter"() {parameter = "norm.weight"} : () -> !torch.vtensor<[64],f32>
  return %w : !torch.vtensor<[64],f32>
}
"""
BAD = GOOD.replace("norm.weight", "").replace("good", "bad")


def write(folder: Path, text: str) -> str:
    path = folder / "case.mlir"
    path.write_text(text)
    return str(path)


def test_parses_verifies_and_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert opt.main([write(tmp_path, GOOD)]) == 0
    output, errors = capsys.readouterr()
    assert 'parameter = "norm.weight"' in output
    assert errors == ""


def test_an_error_has_its_line_in_the_whole_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, f"{GOOD}// -----\n{BAD}// -----\n{GOOD}")
    assert opt.main([path, "--split-input-file"]) == 1
    output, errors = capsys.readouterr()
    assert errors == f"{path}:7:8: error: 'kv.parameter' op parameter must name a weight, got \"\"\n"
    assert output.count("func.func @good") == 2


def test_nothing_is_written_where_a_piece_fails(tmp_path: Path) -> None:
    target = tmp_path / "out.mlir"
    assert opt.main([write(tmp_path, BAD), "-o", str(target)]) == 1
    assert not target.exists()
    assert opt.main([write(tmp_path, GOOD), "-o", str(target)]) == 0
    assert "norm.weight" in target.read_text()


def test_runs_mlir_passes_inside_functions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = GOOD.replace("return", '%u = "kv.parameter"() {parameter = "b"} : () -> tensor<2xf32>\n  return')
    assert opt.main([write(tmp_path, text), "--pass-pipeline=builtin.module(func.func(canonicalize),cse)"]) == 0
    assert '"b"' not in capsys.readouterr().out


def test_source_locations_are_printed_when_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = GOOD.replace("[64],f32>\n  return", '[64],f32> loc("model.py":12:3)\n  return')
    assert opt.main([write(tmp_path, text), "--mlir-print-debuginfo"]) == 0
    assert 'loc("model.py":12:3)' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--no-such-option"], 2, "error: unrecognized arguments: --no-such-option"),
        ([], 2, "error: a file is needed, or - for standard input"),
        (["/no/such/file.mlir"], 1, "error: /no/such/file.mlir: No such file or directory"),
        (["FILE", "--pass-pipeline=kv-no-such-pass"], 1, "error: there is no pass 'kv-no-such-pass'"),
        (["FILE", "--pass-pipeline=no-such-pass"], 1, "'no-such-pass' does not refer to a registered pass"),
        (["FILE", "--pass-pipeline=builtin.module(cse"], 1, "a bracket is not closed in the pipeline"),
    ],
)
def test_wrong_uses(
    arguments: list[str], status: int, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, GOOD)
    assert opt.main([path if a == "FILE" else a for a in arguments]) == status
    output, errors = capsys.readouterr()
    assert message in errors
    assert "Traceback" not in errors
    assert output == ""


PIPELINE = "--pass-pipeline=builtin.module(kv-lower-parameters,cse)"


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("--mlir-print-ir-before-all", r"IR Dump Before LowerParameters: kv-lower-parameters[^$]*IR Dump Before CSE"),
        ("--mlir-print-ir-after-all", r"IR Dump After LowerParameters: kv-lower-parameters[^$]*IR Dump After CSE"),
        ("--mlir-timing", r"Execution time report[^$]*%\)\s+LowerParameters\n[^$]*Total"),
    ],
)
def test_mlirs_instrumentation(option: str, expected: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert opt.main([write(tmp_path, GOOD), PIPELINE, option]) == 0
    output, errors = capfd.readouterr()
    assert re.search(expected, errors)
    assert output.count("func.func @good") == 1


def test_the_ir_after_each_pass_below_a_folder(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tree = tmp_path / "tree"
    assert opt.main([write(tmp_path, GOOD), PIPELINE, f"--mlir-print-ir-tree-dir={tree}"]) == 0
    assert capfd.readouterr().err == ""
    assert sorted(path.name for path in tree.rglob("*.mlir")) == ["0_kv-lower-parameters.mlir", "1_cse.mlir"]


@dataclasses.dataclass(frozen=True)
class Faulty:
    """A pass with a mistake in it."""

    name: ClassVar[str] = "kv-faulty"

    def run(self, module: ir.Operation) -> None:
        raise KeyError(module.name)


def test_a_mistake_of_ours_is_one_line_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "named_in", lambda pipeline: [Faulty])
    assert opt.main([write(tmp_path, GOOD), "--pass-pipeline=kv-faulty"]) == 1
    errors = capsys.readouterr().err
    assert errors == ("error: internal error, KeyError: 'builtin.module' (set SNAPCC_TRACEBACK=1 to see where)\n")
    monkeypatch.setenv("SNAPCC_TRACEBACK", "1")
    opt.main([write(tmp_path, GOOD), "--pass-pipeline=kv-faulty"])
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_lists_every_pass_with_what_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    assert opt.main(["--list-passes"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition("{")[0] for line in lines[::2]] == [kind.name for kind in registry.every()]
    assert all(line.strip() for line in lines)


def test_each_pass_is_found_by_its_name() -> None:
    for kind in registry.every():
        assert registry.named_in(f"cse,{kind.name},func.func(canonicalize)") == [kind]
