"""The command that compares programs with PyTorch in the same precision, on its smallest case."""

import runpy
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "agreement.py"


def test_agreement_prints_a_line_per_preset_and_type(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--seeds", "1", "--layers", "1", "--kv", "window", "--dtype", "f16"]
    assert runpy.run_path(str(SCRIPT))["main"](arguments) == 0
    printed = capsys.readouterr().out.splitlines()
    (row,) = [[cell.strip() for cell in line.strip("|").split("|")] for line in printed[2:]]
    assert [row[0], row[1], row[7], row[8]] == ["`window`", "f16", "0", "yes"]
    difference, rounding, times = (float(cell) for cell in row[4:7])
    assert 0 < difference <= 4 * rounding
    assert times <= 4
