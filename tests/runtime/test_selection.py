from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch.nn import functional

from snapcc.compiler.dialect.policy import Policy
from snapcc.runtime.selection import select


def by_torch(logits: NDArray[np.float32], length: int, policy: Policy) -> NDArray[np.float64]:
    """The candidates' scores [N] by PyTorch's softmax and pooling, in f64."""
    x = torch.from_numpy(logits).double()
    if policy.score == "all":
        later = torch.ones(length, length, dtype=torch.bool).triu(1)[-policy.window :]
        weights = x.masked_fill(later, float("-inf")).softmax(-1)[..., policy.sink : length - policy.recent]
    else:
        weights = x[..., policy.sink : length - policy.recent].softmax(-1)
    scores = weights.sum(1)
    reach = policy.pool_size // 2
    if policy.pool == "avg":
        scores = functional.avg_pool1d(scores[:, None], policy.pool_size, 1, reach, count_include_pad=True)[:, 0]
    elif policy.pool == "max":
        scores = functional.max_pool1d(scores[:, None], policy.pool_size, 1, reach)[:, 0]
    return scores.mean(0).numpy()


@st.composite
def cases(draw: st.DrawFn) -> tuple[NDArray[np.float32], int, Policy]:
    sink, recent, topk = draw(st.integers(0, 4)), draw(st.integers(1, 9)), draw(st.integers(0, 12))
    policy = Policy(
        sink,
        recent,
        topk,
        window=draw(st.integers(1, recent)),
        pool=draw(st.sampled_from(("avg", "max", "none"))),
        pool_size=draw(st.sampled_from((1, 3, 5, 7))),
        score=draw(st.sampled_from(("candidates", "all"))),
    )
    length = draw(st.integers(1, sink + recent + 30))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    logits = 3 * rng.standard_normal((draw(st.integers(1, 3)), policy.window, length))
    return logits.astype(np.float32), length, policy


@given(cases())
@settings(deadline=None, max_examples=200)
def test_no_candidate_left_out_scores_higher_than_one_kept(case: tuple[NDArray[np.float32], int, Policy]) -> None:
    logits, length, policy = case
    kept = select(logits, length, policy)
    assert len(kept) == policy.selected(length) == min(max(length - policy.sink - policy.recent, 0), policy.topk)
    assert (np.diff(kept) > 0).all()
    if len(kept) == 0:
        return
    assert kept[0] >= policy.sink
    assert kept[-1] < length - policy.recent
    scores = by_torch(logits, length, policy)
    left = np.setdiff1d(np.arange(len(scores)), kept - policy.sink)
    if len(left):
        assert scores[kept - policy.sink].min() >= scores[left].max() - 1e-6


@given(st.data())
@settings(deadline=None, max_examples=200)
def test_ties_go_to_the_lowest_position(data: st.DataObject) -> None:
    # One query head, one query: softmax keeps order and ties exactly, and so does a maximum over neighbours.
    size = data.draw(st.sampled_from((1, 3, 5)))
    policy = Policy(data.draw(st.integers(0, 3)), 4, data.draw(st.integers(1, 8)), 1, "max", size)
    candidates = data.draw(st.lists(st.integers(-2, 2), min_size=1, max_size=25))
    length = policy.sink + len(candidates) + policy.recent
    logits = np.full((1, 1, length), 9.0, np.float32)
    logits[0, 0, policy.sink : length - policy.recent] = candidates
    reach = size // 2
    pooled = [max(candidates[max(i - reach, 0) : i + reach + 1]) for i in range(len(candidates))]
    best = sorted(range(len(pooled)), key=lambda i: (-pooled[i], i))[: policy.topk]
    assert select(logits, length, policy).tolist() == sorted(policy.sink + i for i in best)


def test_average_counts_the_zeros_outside_the_candidates() -> None:
    # Equal logits: of ten candidates (positions 2 to 11) the two at either edge average zeros in.
    policy = Policy(2, 4, 4, 4)
    logits = np.zeros((2, 4, 16), np.float32)
    assert select(logits, 16, policy).tolist() == [4, 5, 6, 7]
    assert select(logits, 16, Policy(2, 4, 8, 4)).tolist() == [3, 4, 5, 6, 7, 8, 9, 10]


def test_pooling_does_not_see_sinks_and_recent_tokens() -> None:
    logits = np.zeros((1, 1, 16), np.float32)
    logits[..., :2] = logits[..., 12:] = 50.0
    for score in ("candidates", "all"):
        assert select(logits, 16, Policy(2, 4, 2, 1, "max", 5, score)).tolist() == [2, 3]


def test_score_all_hides_the_keys_after_each_query() -> None:
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((2, 3, 20)).astype(np.float32)
    future = logits.copy()
    future[:, 0, 18:] = future[:, 1, 19:] = 1e4
    policy = Policy(2, 5, 4, 3, "avg", 3, "all")
    assert select(future, 20, policy).tolist() == select(logits, 20, policy).tolist()


def test_the_scores_differ_where_queries_look_elsewhere() -> None:
    # The first query looks almost only at a sink: over all keys its choice of candidate weighs little.
    logits = np.full((1, 2, 12), -5.0, np.float32)
    logits[0, 0, 0], logits[0, 0, 4], logits[0, 1, 6] = 9.0, 2.0, 1.5
    assert select(logits, 12, Policy(1, 4, 1, 2, "none")).tolist() == [4]
    assert select(logits, 12, Policy(1, 4, 1, 2, "none", score="all")).tolist() == [6]


def test_nothing_is_selected_where_everything_fits() -> None:
    policy = Policy(2, 6, 4, 3)
    for length in (1, 3, 8):
        assert select(np.zeros((1, min(3, length), length), np.float32), length, policy).shape == (0,)
    assert select(np.zeros((1, 3, 9), np.float32), 9, policy).tolist() == [2]


def test_wrong_logits_are_refused() -> None:
    policy = Policy(2, 6, 4, 3)
    with pytest.raises(ValueError, match=r"must be \[G, W = 3, T = 20 \(\+ 1\)\], got \[1, 4, 20\]"):
        select(np.zeros((1, 4, 20), np.float32), 20, policy)
    with pytest.raises(ValueError, match="no finite maximum"):
        select(np.full((1, 3, 20), np.nan, np.float32), 20, policy)


def test_a_query_that_sees_no_candidate_has_no_say() -> None:
    """As that of a chunk which begins behind them: the other queries decide, or the order where there is none."""
    logits = np.full((1, 3, 20), -np.inf, np.float32)
    assert select(logits, 20, Policy(2, 6, 2, 3, "none")).tolist() == [2, 3]
    logits[0, 0, 2:14] = np.arange(12)
    assert select(logits, 20, Policy(2, 6, 2, 3, "none")).tolist() == [12, 13]
