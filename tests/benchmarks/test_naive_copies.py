"""The command that shows what slice and concat cost: nothing is copied by the ring, each cache four times by naive."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "naive_copies.py"


def test_naive_copies_each_cache_and_the_ring_none() -> None:
    command = [sys.executable, SCRIPT, "--slots", "64", "--layers", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in done.stdout.splitlines()[2:]]
    # the branch that appends copies a cache first, the other joins one, one of them is taken and stored
    assert rows == [
        ["snapstream", "16,384 bytes", "0 bytes", "0.00", "0 of 0 bytes"],
        ["naive", "16,384 bytes", "65,536 bytes", "4.00", "6 of 49,152 bytes"],
    ]
