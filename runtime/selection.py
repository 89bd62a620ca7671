"""Which positions a prompt's selected slots keep: the NumPy rendering of the policy's prefill selection.

Written for reading and for comparison, not for speed: the compiled selection and the reference are both held to it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from snapcc.compiler.dialect.policy import Policy

# A logit at or below this is masked: models mask with -inf, a dtype's minimum, -1e9 or, at the mildest, -1e4.
MASKED = -9e3


def select(logits: NDArray[np.float32], length: int, policy: Policy) -> NDArray[np.int64]:
    """The positions that the top-K slots of one layer and one KV head keep after a prompt.

    Args:
        logits: [G, W, T] f32, the model's own logits before its softmax: G query heads of the KV head's group,
            the last W queries of the prompt (oldest first), all T = ``length`` keys. Keys that come after a query
            need not be masked; keys that the model itself hides are -inf (or very negative). T + 1 with a sink
            behind the keys, which no query's softmax over all keys leaves out. A query that sees no candidate, as
            in a chunk that begins behind them, has no say in ``score="candidates"``.
        length: L, the tokens of the prompt.
        policy: S, R, K, W, the pooling and the score.

    Returns:
        [n] int64, ascending, n = clip(L - S - R, 0, K).

    Raises:
        ValueError: the logits' shape does not fit ``length`` and ``policy``, or the logits have no finite maximum.
    """
    return ranked(logits, length, policy).kept


@dataclass(frozen=True)
class Ranked:
    """The candidates of one layer and one KV head around the boundary of their selection.

    Attributes:
        kept: [n] int64, the selected positions, ascending.
        last: the selected position of the lowest score; None where none is selected or none is left out.
        next: the position of the highest score that is left out; None where ``last`` is.
        gap: how far their scores lie apart, relative to the former's; infinity where there is no such pair.
    """

    kept: NDArray[np.int64]
    last: int | None = None
    next: int | None = None
    gap: float = math.inf


def ranked(logits: NDArray[np.float32], length: int, policy: Policy) -> Ranked:
    """``select``, with the two candidates that would change places first.

    Args, Raises: as for ``select``.
    """
    kept = policy.selected(length)
    if kept == 0:
        return Ranked(np.zeros(0, np.int64))
    wanted = f"[G, W = {policy.window}, T = {length} (+ 1)]"
    if logits.ndim != 3 or logits.shape[1] != policy.window or logits.shape[2] not in (length, length + 1):
        raise ValueError(f"the logits must be {wanted}, got {list(logits.shape)}")

    candidates = slice(policy.sink, length - policy.recent)
    # what the model hides has no weight, also where it hides all candidates
    logits = np.where(logits <= MASKED, -np.inf, logits.astype(np.float32))
    if policy.score == "candidates":
        weights = _softmax(logits[:, :, candidates])
    else:
        query = np.arange(length - policy.window, length)[:, None]
        seen = np.arange(logits.shape[2]) <= query
        seen[:, length:] = True
        weights = _softmax(np.where(seen, logits, -np.inf))[:, :, candidates]
    scores = _pool(weights.sum(axis=1), policy).mean(axis=0)
    # A stable sort of the negated scores puts equal scores in the order of their positions.
    order = np.argsort(-scores, kind="stable")
    best = np.sort(order[:kept]).astype(np.int64) + policy.sink
    if kept == len(order):
        return Ranked(best)
    last, following = int(order[kept - 1]), int(order[kept])
    lower, higher = float(scores[following]), float(scores[last])
    gap = (higher - lower) / higher if higher > 0 else 0.0
    return Ranked(best, last + policy.sink, following + policy.sink, gap)


def _softmax(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """Softmax over the last axis, f32; zeros where everything is hidden."""
    peak = logits.max(axis=-1, keepdims=True)
    if np.isnan(peak).any() or np.isposinf(peak).any():
        raise ValueError("the logits of a query of the observation window have no finite maximum")
    hidden = np.isneginf(peak)
    weights = np.exp(logits - np.where(hidden, 0, peak))
    return np.asarray(weights / np.where(hidden, 1, weights.sum(axis=-1, keepdims=True)), np.float32)


def _pool(scores: NDArray[np.float32], policy: Policy) -> NDArray[np.float32]:
    """Pool [G, N] along N with stride 1: outside the candidates an average sees zeros, a maximum nothing."""
    if policy.pool == "none":
        return scores
    size, reach = policy.pool_size, policy.pool_size // 2
    outside = 0.0 if policy.pool == "avg" else -np.inf
    padded = np.pad(scores, ((0, 0), (reach, reach)), constant_values=outside)
    windows = np.lib.stride_tricks.sliding_window_view(padded, size, axis=1)
    pooled = windows.mean(axis=-1) if policy.pool == "avg" else windows.max(axis=-1)
    return np.asarray(pooled, np.float32)
