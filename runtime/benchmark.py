"""How fast a program is: medians of rounds in which everything that is compared takes its turn."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .engine import Program
from .exported import ExportedDecoder

_STEPS = 4
"""Decode steps a round: one alone is too short for a clock on a machine that does other things as well."""


def medians(tasks: Mapping[str, Callable[[], object]], rounds: int, each: Callable[[int], None]) -> dict[str, float]:
    """The median time of each task, in seconds.

    A round runs every task once, so that what slows the machine down for a while slows all of them down. One round
    before the first is not counted.

    Args:
        tasks: by name.
        rounds: how many times are taken of each.
        each: called after each round with its number.
    """
    times: dict[str, list[float]] = {name: [] for name in tasks}
    for number in range(rounds + 1):
        for name, task in tasks.items():
            start = time.perf_counter()
            task()
            times[name].append(time.perf_counter() - start)
        each(number)
    return {name: statistics.median(taken[1:]) for name, taken in times.items()}


def reading(size: int) -> Callable[[], object]:
    """Reads ``size`` bytes from memory with as many threads as PyTorch uses: the floor of a step that needs them once.

    The memory is one buffer that no cache can hold, read as often as it takes.
    """
    words = max(size // 4, 1)
    held = torch.ones(words, dtype=torch.float32)
    return lambda: held.sum()


def decoding(program: Program, past: int) -> Callable[[], object]:
    """``_STEPS`` decode steps of all rows, from position ``past`` on; the time is the same at every position."""
    rows = program.spec.batch
    tokens = np.zeros(rows, np.int64)

    def steps() -> None:
        for step in range(_STEPS):
            program.decode(tokens, np.full(rows, past + step))

    return steps


def prefilling(program: Program, prompt: Sequence[int]) -> Callable[[], NDArray[np.float32]]:
    """A prompt into row 0."""
    return lambda: program.prefill(prompt, 0)


def in_pytorch(decoder: ExportedDecoder, tokens: Sequence[int], past: int, repeat: int = 1) -> Callable[[], object]:
    """The exported program on one row: ``tokens`` behind ``past`` cached tokens, ``repeat`` times over."""
    caches = [decoder.cache(i, past, seed=0) for i in range(len(decoder.inputs.caches))]
    arguments = decoder.arguments(tokens, past, caches)

    def run() -> Any:
        with torch.no_grad():
            for _ in range(repeat):
                decoder.module(*arguments)

    return run


def compare(
    program: Program,
    decoder: ExportedDecoder,
    *,
    weights: int,
    slots: int,
    rounds: int,
    each: Callable[[int], None] = lambda number: None,
) -> dict[str, Any]:
    """Decode steps and prompts of a program, beside the reading of the same bytes and beside PyTorch.

    PyTorch runs the exported program as the user wrote it, with its attention whole and a cache of as many tokens as
    there are slots, on one row.

    Args:
        program: what is measured.
        decoder: its exported program.
        weights: the bytes of the weights.
        slots: C, all of which a step sees.
        rounds: how many times are taken.
        each: called after each round with its number.

    Returns:
        ``threads``, ``rounds``, ``read_gb_per_s``, and ``decode`` and ``prefill``, whose times are medians.
    """
    caches = sum(state.bytes for state in program.spec.states.values())
    past = min(slots, program.spec.max_positions - _STEPS - 1)
    tasks: dict[str, Callable[[], object]] = {
        "read": reading(weights + caches),
        "decode": decoding(program, past),
        "decode, PyTorch": in_pytorch(decoder, [0], min(slots, past) - 1, _STEPS),
    }
    for length in program.spec.prompts:
        prompt = [0] * length
        tasks[f"prefill_{length}"] = prefilling(program, prompt)
        tasks[f"prefill_{length}, PyTorch"] = in_pytorch(decoder, prompt, 0)
    took = medians(tasks, rounds, each)
    step = took["decode"] / _STEPS
    return {
        "rounds": rounds,
        "threads": torch.get_num_threads(),
        "read_gb_per_s": (weights + caches) / took["read"] / 1e9,
        "decode": {
            "rows": program.spec.batch,
            "median_ms": 1e3 * step,
            "weight_bytes": weights,
            "cache_bytes": caches,
            "over_reading": step / took["read"],
            "over_pytorch": step / (took["decode, PyTorch"] / _STEPS),
        },
        "prefill": [
            {
                "length": length,
                "median_ms": 1e3 * took[f"prefill_{length}"],
                "over_pytorch": took[f"prefill_{length}"] / took[f"prefill_{length}, PyTorch"],
            }
            for length in program.spec.prompts
        ],
    }
