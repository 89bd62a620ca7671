"""An .mlir file as MODEL: from a phase's file on to each later phase, as if it had been reached at once."""

from pathlib import Path

import decoders
import pytest
import torch

from snapcc import cli
from snapcc.options import FILES, PHASES
from snapcc.phase_file import is_mlir, read

DECODER = next(decoder for decoder in decoders.GOOD if decoder.name == "monocle")
SIZES = ["--sink=2", "--recent=8", "--topk=4", "--obs-window=4", "--quiet"]
MLIR = PHASES[1:]


@pytest.fixture(scope="module")
def phases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every phase's file of two rows."""
    folder = tmp_path_factory.mktemp("phases")
    torch.export.save(DECODER.program(), folder / "model.pt2")
    more = ["--batch=2", "--prompt=20", "--compile-to=iree", f"--dump-compilation-phases-to={folder}"]
    assert cli.main([str(folder / "model.pt2"), *SIZES, *more, f"-o{folder / 'out.mlir'}"]) == 0
    return folder


@pytest.mark.parametrize("phase", MLIR[:-1])
def test_from_a_phase_to_all_later_ones(
    phase: str, phases: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # under another name: it is known by what is in it
    (tmp_path / "model").write_bytes((phases / FILES[phase]).read_bytes())
    arguments = [*SIZES, "--compile-to=iree", f"--dump-compilation-phases-to={tmp_path / 'dumps'}"]
    assert cli.main([str(tmp_path / "model"), *arguments]) == 0, capsys.readouterr().err
    later = MLIR[MLIR.index(phase) + 1 :]
    assert sorted(path.name for path in (tmp_path / "dumps").iterdir()) == [FILES[each] for each in later]
    for each in later:
        found, expected = (folder / FILES[each] for folder in (tmp_path / "dumps", phases))
        assert unlocated(found) == unlocated(expected), each
    assert capsys.readouterr().out == (tmp_path / "dumps" / FILES["iree"]).read_text()


def unlocated(path: Path) -> list[str]:
    """The lines without locations, whose names depend on the order in which they were met."""
    lines = (line.partition(" loc(")[0] for line in path.read_text().splitlines())
    return [line for line in lines if line.strip() and not line.startswith("#loc")]


@pytest.mark.parametrize("phase", MLIR[:-1])
def test_phases_are_told_by_their_ops(phase: str, phases: Path) -> None:
    assert is_mlir(phases / FILES[phase])
    assert read(phases / FILES[phase]).phase == phase


def test_what_does_not_follow_is_refused(phases: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refused(path: Path, *arguments: str, status: int = 2) -> str:
        assert cli.main([str(path), *SIZES, *arguments]) == status
        output, errors = capsys.readouterr()
        assert output == ""
        return errors

    def written(text: str) -> Path:
        (tmp_path / "model.mlir").write_text(text)
        return tmp_path / "model.mlir"

    static, kv = phases / FILES["static"], phases / FILES["kv"]
    without = "is of the phase static, and an .mlir file holds no weights, so that no artifact is made of it: give"
    assert f"{without} --compile-to with a later phase (linalg, sn40l, iree)" in refused(static)
    assert without in refused(static, "--compile-to=kv")
    assert "is of the phase iree, the last one" in refused(phases / FILES["iree"], "--compile-to=iree")
    assert "--target host has no phase sn40l" in refused(static, "--compile-to=sn40l", "--target=host")
    assert "--batch 3 was asked for, and" in refused(kv, "--compile-to=static", "--batch=3")
    assert "= 15 slots, and the program was made for 13 past tokens" in refused(kv, "--compile-to=static", "--topk=5")
    assert "has no function: it is no program" in refused(written("module {}"), "--compile-to=iree")
    other = written(kv.read_text().replace("@decode(", "@other("))
    assert "has no function @decode that grows a cache" in refused(other, "--compile-to=static")
    errors = refused(written("module {\n  func.func @f() {\n"), "--compile-to=iree", status=1)
    assert errors.startswith(f"{tmp_path / 'model.mlir'}:2:19: error: ")
