"""The command that shows what slice and concat cost: nothing is copied by the ring, each cache four times by naive."""

import runpy
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "naive_copies.py"


def test_naive_copies_each_cache_and_the_ring_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert runpy.run_path(str(SCRIPT))["main"](["--slots", "64", "--layers", "1"]) == 0
    printed = capsys.readouterr().out.splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in printed[2:]]
    # the branch that appends copies a cache first, the other joins one, one of them is taken and stored
    assert rows == [
        ["snapstream", "16,384 bytes", "0 bytes", "0.00", "0 of 0 bytes"],
        ["naive", "16,384 bytes", "65,536 bytes", "4.00", "6 of 49,152 bytes"],
    ]
