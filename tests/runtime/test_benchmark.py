"""Medians of tasks that take turns."""

from __future__ import annotations

import itertools
import time

import pytest

from snapcc.runtime import benchmark


def test_tasks_take_turns_and_the_first_round_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.accumulate([0.0, 9.0, 0.0, 5.0, *[0.0, 2.0, 0.0, 3.0] * 2, 0.0, 7.0, 0.0, 8.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    order: list[str] = []
    rounds: list[int] = []
    took = benchmark.medians({n: lambda n=n: order.append(n) for n in "ab"}, 3, rounds.append)
    assert took == {"a": 2.0, "b": 3.0}
    assert order == ["a", "b"] * 4
    assert rounds == [0, 1, 2, 3]


def test_reading_reads_as_many_bytes_as_it_says() -> None:
    assert float(benchmark.reading(4000)()) == 1000.0  # type: ignore[arg-type]
