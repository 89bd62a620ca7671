"""Greedy generation: several rows, each at its own position, through one decode program."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .engine import PositionError, Program, RowError


@dataclass
class Row:
    """What one row gave.

    Attributes:
        prompt: its prompt.
        tokens: the new tokens; the first follows from the prefill's logits.
        logits: the logits [V] f32 from which each of them was taken.
        turn: a next turn, behind which the last of the new tokens was taken: the new token before it, which no decode
            has had, and more. None where there was none.
    """

    prompt: tuple[int, ...]
    tokens: list[int] = field(default_factory=list)
    logits: list[NDArray[np.float32]] = field(default_factory=list)
    turn: tuple[int, ...] | None = None


def generate(
    program: Program,
    prompts: Sequence[Sequence[int]],
    count: int,
    forced: Sequence[Sequence[int]] | None = None,
    stop: Collection[int] = (),
    each: Callable[[int], None] = lambda step: None,
) -> list[Row]:
    """New tokens for each prompt: the largest logit, ties to the lowest token.

    Args:
        program: what computes.
        prompts: one per row, at most the batch.
        count: how many new tokens each row gets.
        forced: tokens that are taken instead of the largest logit, ``count`` per row.
        stop: tokens after which a row takes no more.
        each: called after each step with its number, from 0, the prefills.

    Returns:
        a row per prompt.

    Raises:
        RowError: more prompts than rows.
        PositionError: a row would run past the model's last position.
        InputError: from the engine, for a prompt that it cannot take.
    """
    batch, limit = program.spec.batch, program.spec.max_positions
    if len(prompts) > batch:
        raise RowError(f"{len(prompts)} prompts do not fit into the program's {batch} rows")
    for index, prompt in enumerate(prompts):
        last = len(prompt) + count - 2
        if last >= limit:
            raise PositionError(
                f"row {index}: a prompt of {len(prompt)} tokens and {count} new ones need position {last}, and the "
                f"model's last is {limit - 1}"
            )
    rows = [Row(tuple(int(token) for token in prompt)) for prompt in prompts]

    def take(index: int, logits: NDArray[np.float32]) -> None:
        taken = rows[index].tokens
        taken.append(int(logits.argmax()) if forced is None else int(forced[index][len(taken)]))
        rows[index].logits.append(logits)

    if count > 0:
        for index, row in enumerate(rows):
            take(index, program.prefill(row.prompt, index))
        each(0)
    for step in range(1, count):
        tokens, positions, active = (np.zeros(batch, kind) for kind in (np.int64, np.int64, np.bool_))
        for index, row in enumerate(rows):
            if row.tokens[-1] not in stop:
                tokens[index], positions[index] = row.tokens[-1], len(row.prompt) + step - 1
                active[index] = True
        if not active.any():
            break
        logits = program.decode(tokens, positions, active)
        for index in np.flatnonzero(active).tolist():
            take(index, logits[index])
        each(step)
    return rows


def take_turns(program: Program, rows: Sequence[Row], more: Sequence[Sequence[int]]) -> None:
    """Extends each row that has new tokens by its last one and ``more``, and takes the new token behind them.

    Raises:
        InputError: from the engine, for tokens that it cannot take.
    """
    for index, (row, tokens) in enumerate(zip(rows, more, strict=True)):
        row.turn = (row.tokens[-1], *(int(token) for token in tokens))
        logits = program.extend(row.turn, index, len(row.prompt) + len(row.tokens) - 1)
        row.tokens.append(int(logits.argmax()))
        row.logits.append(logits)
