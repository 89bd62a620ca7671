"""The command that compares programs with PyTorch in the same precision, on its smallest case."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "agreement.py"


def test_agreement_prints_a_line_per_preset_and_type() -> None:
    command = [sys.executable, SCRIPT, "--seeds", "1", "--layers", "1", "--kv", "window", "--dtype", "f16"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    (row,) = [[cell.strip() for cell in line.strip("|").split("|")] for line in done.stdout.splitlines()[2:]]
    assert [row[0], row[1], row[7], row[8]] == ["`window`", "f16", "0", "yes"]
    difference, rounding, times = (float(cell) for cell in row[4:7])
    assert 0 < difference <= 4 * rounding
    assert times <= 4
