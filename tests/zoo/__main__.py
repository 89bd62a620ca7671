"""Measures the zoo and writes docs/coverage.md: ``make zoo``, or ``python -m tests.zoo`` with options.

Each entry has a process of its own with a time limit, and a result under build/zoo that is not made again unless it is
asked for, so that an interrupted run goes on.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from dataclasses import asdict
from pathlib import Path

from .coverage import OUTCOMES, Result, page, summary
from .measure import measure
from .models import ENTRIES, group_of

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "build" / "zoo"
PAGE = ROOT / "docs" / "coverage.md"


def main() -> int:
    """Measures what is missing, and writes the page; gives the exit status."""
    every = [name for group in ENTRIES.values() for name in group]
    parser = argparse.ArgumentParser(prog="python -m tests.zoo", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="NAME", default=[], help="measure these, also where measured")
    parser.add_argument(
        "--groups", nargs="+", choices=list(ENTRIES), default=list(ENTRIES), help="of these groups (all)"
    )
    parser.add_argument("--again", nargs="+", choices=OUTCOMES, default=[], help="also those with these results")
    parser.add_argument("--limit", type=int, default=600, help="seconds for an entry (600)")
    options = parser.parse_args()
    if unknown := sorted(set(options.only) - set(every)):
        parser.error(f"there is no entry {unknown[0]}; the entries are {', '.join(every)}")
    RESULTS.mkdir(parents=True, exist_ok=True)
    wanted = options.only or [
        name
        for group in options.groups
        for name in ENTRIES[group]
        if (known := read(name)) is None or known.outcome in options.again
    ]
    for index, name in enumerate(wanted, 1):
        print(f"[{index}/{len(wanted)}] {name} ...", end="", flush=True)
        start = time.monotonic()
        result = measured(name, options.limit)
        print(f" {result.outcome}, {time.monotonic() - start:.0f} s {result.message}", flush=True)
    results = [result for name in every if (result := read(name)) is not None]
    PAGE.write_text(page(results, ENTRIES))
    print(*summary(results, ENTRIES), sep="\n")
    return 0


def measured(name: str, limit: int) -> Result:
    """Measures an entry in a process of its own; one that does not end well or in time is a fault."""
    # a copy of this process, so that PyTorch is imported once for all
    process = multiprocessing.get_context("fork").Process(target=_measure, args=(name,))
    process.start()
    process.join(limit)
    lost = "" if process.exitcode == 0 else f"the process ended with status {process.exitcode}"
    if process.is_alive():
        lost = f"not done after {limit} s"
        process.kill()
        process.join()
    if lost:
        _write(Result(name, group_of(name), "?", "fault", message=lost))
    result = read(name)
    assert result is not None
    return result


def _measure(name: str) -> None:
    _write(measure(name))


def _write(result: Result) -> None:
    """Writes an entry's result, whole or not at all."""
    part = _file(result.name).with_suffix(".part")
    part.write_text(json.dumps(asdict(result), indent=1) + "\n")
    part.replace(_file(result.name))


def read(name: str) -> Result | None:
    """An entry's result; None where it was not measured."""
    file = _file(name)
    return Result(**json.loads(file.read_text())) if file.is_file() else None


def _file(name: str) -> Path:
    return RESULTS / f"{name}.json"


if __name__ == "__main__":
    sys.exit(main())
