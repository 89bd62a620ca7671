"""The compiled program against PyTorch: the same prompts, the reference fed the program's own tokens.

In f32 a fixed tolerance holds. In bf16 and f16 no fixed one can: rounding adds up over layers, and where two candidates
of a selection score nearly the same, rounding decides which one is kept. So the reference measures it. It runs in the
program's type and again in f32 on the same weights, each with its own selection; the distance between the two is what
rounding does to this model on these tokens. A compiled program rounds as often but elsewhere, so by the triangle
inequality it may lie about twice that distance from PyTorch in the same type: ``ROUNDING``. docs/precision.md shows how
much of it is used.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from .generation import Row

if TYPE_CHECKING:
    from .reference import Boundary

TOLERANCE = 1e-4
"""How far a logit may lie from the reference's in f32, for logits below 1; for larger ones, in units of the step's
largest."""

ROUNDING = 2.0
"""In bf16 and f16: how many times the distance between the reference in that type and in f32 a logit may lie from the
former, the largest distance of the row's steps; at least ``TOLERANCE``."""

UNIT = {"f32": 0.0, "f16": 2.0**-10, "bf16": 2.0**-7}
"""By the weights' type, the unit in the last place of 1: what rounding does to a step is never taken for less than that
of its largest logit."""

NEAR = {"f32": 1e-5, "f16": 2.0**-8, "bf16": 2.0**-5}
"""By the weights' type, the relative gap at a selection's boundary below which rounding may decide which of the two
candidates is kept. Scores are sums of exponentials, so that an error of a logit is a relative error of a score: about
ten roundings of 2^-24 in f32, and in f16 and bf16 eight of 2^-11 and 2^-8, those of the queries and keys before it."""

MOST_TIES = 16
"""How many near ties of a row are tried, the nearest first: each costs the row's decoding in PyTorch."""


class Oracle(Protocol):
    """What gives the right logits, as ``snapcc.runtime.reference.Reference`` does."""

    def prefill(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """The last token's logits [V] f32 of a new sequence."""

    def decode(self, token: int) -> NDArray[np.float32]:
        """The logits [V] f32 after one more token."""

    def extend(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """The last token's logits [V] f32 after more tokens."""


class Choosing(Oracle, Protocol):
    """An oracle that can make the other choice where a selection was close, as ``Reference`` can."""

    @property
    def boundaries(self) -> tuple[Boundary, ...]:
        """Where the last prompt's selections end, the nearest pair first."""

    def rewind(self, others: Sequence[Boundary]) -> None:
        """Goes back to the end of the prompt, with the other choice at some of its boundaries."""


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
        rounding: the largest distance of a logit of the reference from its f32 form; 0 in f32.
        ties: the boundaries at which the reference had to make its other choice for the row to be right.
    """

    steps: int
    difference: float
    largest: float
    first_difference: int | None
    agreeing: int
    first_disagreement: int | None
    holds: bool
    rounding: float = 0.0
    ties: tuple[Boundary, ...] = ()


def compare(
    row: Row,
    oracle: Oracle,
    dtype: str,
    wide: Oracle | None = None,
    each: Callable[[int], None] = lambda step: None,
) -> Comparison:
    """Compares a row's logits and tokens with the oracle's, teacher-forced on the row's own tokens.

    Args:
        row: what the program gave.
        oracle: the reference; it starts a new sequence.
        dtype: the weights' type, a key of ``NEAR``.
        wide: the reference in f32 on the same weights, needed in bf16 and f16.
        each: called after each step with its number.

    Raises:
        ValueError: a narrow type, and no ``wide``.
    """
    if dtype != "f32" and wide is None:
        raise ValueError(f"a comparison in {dtype} needs the reference in f32 too")
    exact = None if wide is None or dtype == "f32" else _follow(row, wide)
    return _judge(row, _follow(row, oracle, each), exact, UNIT[dtype])


def compare_at_ties(row: Row, oracle: Choosing, dtype: str, wide: Choosing | None = None) -> Comparison:
    """``compare``; where the row is not right, the reference's other choices at near ties of its selection are tried.

    One after the other, the nearest first; a choice that brings the logits nearer stays. A row that is right only so
    has them as ``ties``, for the caller to say.

    An exact tie has one right choice, the lower position: rounding is no excuse for the other. A tie in bf16 or f16 is
    exact where it is one in f32 too; else rounding made it.
    """
    found = compare(row, oracle, dtype, wide)
    exact_ties = {boundary for boundary in (wide or oracle).boundaries if boundary.gap == 0}
    near = [b for b in oracle.boundaries if b.gap <= NEAR[dtype] and b not in exact_ties][:MOST_TIES]
    if found.holds or not near or not row.logits:
        return found
    exact = None if wide is None or dtype == "f32" else _follow(row, wide)
    first = oracle.prefill(row.prompt)
    best = found
    taken: list[Boundary] = []
    for boundary in near:
        oracle.rewind([*taken, boundary])
        others = [first, *_behind_prompt(row, oracle)]
        tried = _judge(row, others, exact, UNIT[dtype])
        if tried.difference < best.difference:
            best, taken = tried, [*taken, boundary]
        if best.holds:
            return replace(best, ties=tuple(taken))
    return found


def _follow(row: Row, oracle: Oracle, each: Callable[[int], None] = lambda step: None) -> list[NDArray[np.float32]]:
    """The oracle's logits at each of a row's steps, fed the row's own tokens."""
    followed = []
    for step, logits in enumerate(itertools.chain(_of_prompt(row, oracle), _behind_prompt(row, oracle))):
        followed.append(logits)
        each(step)
    return followed


def _of_prompt(row: Row, oracle: Oracle) -> Iterator[NDArray[np.float32]]:
    """The oracle's logits behind a row's prompt, if the row has any."""
    if row.logits:
        yield oracle.prefill(row.prompt)


def _behind_prompt(row: Row, oracle: Oracle) -> Iterator[NDArray[np.float32]]:
    """The oracle's logits at a row's steps behind its prompt's."""
    decoded = len(row.logits) - (1 if row.turn is None else 2)
    for token in row.tokens[: max(decoded, 0)]:
        yield oracle.decode(token)
    if row.turn is not None:
        yield oracle.extend(row.turn)


def _judge(
    row: Row, right: Sequence[NDArray[np.float32]], exact: Sequence[NDArray[np.float32]] | None, unit: float
) -> Comparison:
    """A row's logits beside the reference's, and beside those of its f32 form in a narrow type."""
    pairs = list(zip(row.logits, right, strict=True))
    differences = [float(np.abs(logits - wanted).max()) for logits, wanted in pairs]
    largest = [float(np.abs(wanted).max()) for wanted in right]
    agrees = [int(wanted.argmax()) == int(logits.argmax()) for logits, wanted in pairs]
    missing = [float(wanted.max() - wanted[int(logits.argmax())]) for logits, wanted in pairs]
    rounding = 0.0
    if exact is not None:
        rounding = max((float(np.abs(w - e).max()) for w, e in zip(right, exact, strict=True)), default=0.0)
    allowed = [max(TOLERANCE * max(1.0, bound), ROUNDING * max(rounding, unit * bound)) for bound in largest]
    # written so that a NaN is outside
    within = [d <= a for d, a in zip(differences, allowed, strict=True)]
    chosen = agrees if exact is None else [m <= a for m, a in zip(missing, allowed, strict=True)]
    return Comparison(
        steps=len(differences),
        difference=float(np.max(differences, initial=0.0)),
        largest=float(np.max(largest, initial=0.0)),
        first_difference=_first_false(within),
        agreeing=sum(agrees),
        first_disagreement=_first_false(agrees),
        holds=all(within) and all(chosen),
        rounding=rounding,
    )


def _first_false(values: Sequence[bool]) -> int | None:
    return next((step for step, value in enumerate(values) if not value), None)
