"""The compiled program against PyTorch: the same prompts, the reference fed the program's own tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .generation import Row

TOLERANCE = {"f32": 5e-4, "bf16": 4e-2, "f16": 5e-3}
"""By the weights' type, how far a logit may lie from the reference's, for logits below 1; for larger ones, in units of
the step's largest. bf16 keeps 8 bits and f16 11, and errors add up over layers. In f32 they stay below 1e-4,
but two candidates whose scores differ by less than f32's rounding may change places in the selection of a head: on
SmolLM2 one such swap among 90 heads was seen to move logits by 2e-4 of the largest."""


class Oracle(Protocol):
    """What gives the right logits, as ``snapcc.runtime.reference.Reference`` does."""

    def prefill(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """The last token's logits [V] f32 of a new sequence."""

    def decode(self, token: int) -> NDArray[np.float32]:
        """The logits [V] f32 after one more token."""


@dataclass(frozen=True)
class Comparison:
    """One row's agreement.

    Attributes:
        steps: how many logits were compared.
        difference: the largest absolute difference of a logit.
        largest: the largest absolute logit of the reference.
        first_difference: the first step whose logits are out of tolerance; None if there is none.
        agreeing: at how many steps the program's token is the reference's own choice.
        first_disagreement: the first step where it is not; None if there is none.
        holds: whether the row is right: every step within tolerance, and in f32 every token the reference's choice.
            In bf16 and f16 a token is right where the reference's logit of it is within tolerance of its largest.
    """

    steps: int
    difference: float
    largest: float
    first_difference: int | None
    agreeing: int
    first_disagreement: int | None
    holds: bool


def compare(row: Row, oracle: Oracle, dtype: str, each: Callable[[int], None] = lambda step: None) -> Comparison:
    """Compares a row's logits and tokens with the oracle's, teacher-forced on the row's own tokens.

    Args:
        row: what the program gave.
        oracle: the reference; it starts a new sequence.
        dtype: the weights' type, a key of ``TOLERANCE``.
        each: called after each step with its number.
    """
    differences, largest, missing, agrees = [], [], [], []
    for step, logits in enumerate(row.logits):
        right = oracle.prefill(row.prompt) if step == 0 else oracle.decode(row.tokens[step - 1])
        differences.append(float(np.abs(logits - right).max()))
        largest.append(float(np.abs(right).max()))
        agrees.append(int(right.argmax()) == int(logits.argmax()))
        missing.append(float(right.max() - right[int(logits.argmax())]))
        each(step)
    allowed = [TOLERANCE[dtype] * max(1.0, bound) for bound in largest]
    # written so that a NaN is outside
    within = [d <= a for d, a in zip(differences, allowed, strict=True)]
    chosen = agrees if dtype == "f32" else [m <= a for m, a in zip(missing, allowed, strict=True)]
    return Comparison(
        steps=len(differences),
        difference=float(np.max(differences, initial=0.0)),
        largest=float(np.max(largest, initial=0.0)),
        first_difference=_first_false(within),
        agreeing=sum(agrees),
        first_disagreement=_first_false(agrees),
        holds=all(within) and all(chosen),
    )


def _first_false(values: Sequence[bool]) -> int | None:
    return next((step for step, value in enumerate(values) if not value), None)
