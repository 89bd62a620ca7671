"""Each lowered kv op, run by IREE, against a plain NumPy rendering of design section 3."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lowered import Program, function, tensor

from snapcc.compiler.dialect.kv import Reach
from snapcc.compiler.dialect.policy import Policy
from snapcc.runtime.selection import select

B, H, G, D = 3, 2, 2, 16
NUMPY = {"f32": np.dtype(np.float32), "bf16": np.dtype(ml_dtypes.bfloat16)}


@dataclass(frozen=True)
class Selection:
    """A configuration of ``kv.topk_select``: the policy, the compiled length N, and what else changes its code."""

    policy: Policy
    n: int
    element: str = "f32"
    softcap: float = 0.0
    heads: int = H
    group: int = G
    features: int = D
    indexed: bool = False
    bias: bool = False
    sinks: bool = False
    reach: Reach = field(default_factory=Reach)
    shared: bool = False

    @property
    def scale(self) -> float:
        return self.features**-0.5


SELECTIONS = {
    "average": Selection(Policy(2, 8, 4, 4), 40),
    "widest": Selection(Policy(3, 7, 11, 5, pool="max", pool_size=7, score="all"), 40, "bf16"),
    "no_sink_one_query": Selection(Policy(0, 8, 16, 1, pool="none"), 20),
    "many_blocks": Selection(Policy(1, 16, 40, 8, pool="max", pool_size=3), 200, "bf16", 2.0, 3, 1),
    "no_room": Selection(Policy(2, 8, 4, 4), 9),
    "biased": Selection(Policy(2, 8, 4, 4), 40, bias=True, softcap=2.0),
    "sinks": Selection(Policy(2, 8, 4, 4, score="all"), 40, bias=True, sinks=True),
    "windowed": Selection(Policy(2, 8, 6, 4), 40, reach=Reach(window=19)),
    "chunked": Selection(Policy(2, 8, 6, 4, score="all"), 40, reach=Reach(chunk=23)),
    "shared": Selection(Policy(2, 8, 4, 4), 40, shared=True),
    "indexed": Selection(Policy(2, 8, 6, 4), 40, indexed=True),
    "indexed_sinks": Selection(Policy(2, 8, 6, 4, score="all"), 40, indexed=True, sinks=True),
    "exact": Selection(Policy(1, 2, 12, 1, pool="none"), 150, heads=1, group=1, features=1),
}

LAYOUTS = {
    "heads_first": ([H, -1, D], 2, 1),
    "tokens_first": ([-1, H, D], 1, 2),
    "no_heads": ([-1, D], 1, -1),
    "features_first": ([H, D, -1], 3, 1),
}
"""Shape of a cache's row with -1 at its sequence axis, that axis and the head axis."""

COMPACTIONS = {
    f"{layout}_{element}_{order}_{number}": (layout, element, policy, order)
    for layout, element, order in (
        ("heads_first", "f32", "ring"),
        ("tokens_first", "bf16", "ring"),
        ("no_heads", "f32", "ring"),
        ("heads_first", "f32", "time"),
    )
    for number, policy in enumerate([Policy(2, 8, 4, 4), Policy(0, 5, 0, 1)])
}
N = 24
SLOTTED = [Policy(2, 8, 4, 4), Policy(0, 5, 3, 1), Policy(4, 1, 0, 1)]
UPDATES = {f"{layout}_{element}": (layout, element) for layout in LAYOUTS for element in NUMPY}
C = 9
M = 11
"""The tokens of an extend, more than the ring takes."""
RING = Policy(2, 5, 2, 1)


def slots(policy: Policy) -> str:
    return f"sink = {policy.sink} : i64, ring = {policy.recent} : i64"


def cache_shape(layout: str, rows: int, tokens: int) -> list[int]:
    return [rows, *(tokens if d < 0 else d for d in LAYOUTS[layout][0])]


def selection_function(name: str, case: Selection) -> str:
    p = case.policy
    bounds = (("sliding_window", case.reach.window), ("chunk", case.reach.chunk))
    q = tensor([1, case.heads, case.group, case.n, case.features], case.element)
    k = tensor([1, case.heads, case.n, case.features], case.element)
    attributes = (
        f'{slots(p)}, selected = {p.topk} : i64, window = {p.window} : i64, pool = "{p.pool}", '
        f'pool_size = {p.pool_size} : i64, score = "{p.score}", scale = {case.scale} : f64, '
        f"softcap = {case.softcap} : f64, "
        f"operandSegmentSizes = array<i32: 1, 1, 1, {int(case.indexed)}, {int(case.bias)}, {int(case.sinks)}>"
        + "".join(f", {name} = {bound}" for name, bound in bounds if bound)
    )
    more = [tensor(list(x.shape), "i1" if x.dtype == bool else "f32") for x in more_operands(case)]
    result = tensor([1 if case.shared else case.heads, p.topk], "i64")
    return function(name, "kv.topk_select", [q, k, "tensor<i64>", *more], result, attributes)


def more_operands(case: Selection) -> list[np.ndarray]:
    """Visible [1, N, N], bias [1, H, G, N] and sinks [H, G], where the case has them.

    Few keys are visible, and to every third query none but its own.
    """
    seen = random([1, case.n, case.n], seed=9) > 1
    seen[:, ::3] = np.eye(case.n, dtype=bool)[::3]
    indexed = [seen] if case.indexed else []
    bias = [2 * random([1, case.heads, case.group, case.n], seed=7).astype(np.float32)] if case.bias else []
    return indexed + bias + ([2 * random([case.heads, case.group], seed=8).astype(np.float32)] if case.sinks else [])


def compaction_function(name: str, layout: str, element: str, policy: Policy, order: str) -> str:
    _, axis, head_axis = LAYOUTS[layout]
    heads = H if head_axis > 0 else 1
    operands = [tensor(cache_shape(layout, 1, N), element), "tensor<i64>"]
    if policy.topk:
        operands.append(tensor([heads, policy.topk], "i64"))
    attributes = f'{slots(policy)}, axis = {axis} : i64, head_axis = {head_axis} : i64, order = "{order}"'
    return function(name, "kv.compact", operands, tensor(cache_shape(layout, 1, policy.slots), element), attributes)


def state_functions(name: str, layout: str, element: str) -> str:
    """Functions that update a cache, extend, read and write one of its rows, as a state named after them."""
    cache = tensor(cache_shape(layout, B, C), element)
    more = tensor(cache_shape(layout, 1, M), element)
    one, row = tensor(cache_shape(layout, B, 1), element), tensor(cache_shape(layout, 1, C), element)
    i64, i1 = tensor([B], "i64"), tensor([B], "i1")
    load, store = f'"kv.state_load"() {{state = "{name}"}} : () -> {cache}', f'{{state = "{name}"}} : ({cache}) -> ()'
    return f"""
func.func @update_{name}(%rows: {one}, %slots: {i64}, %active: {i1}) {{
  %old = {load}
  %new = "kv.ring_update"(%old, %rows, %slots, %active) {{axis = {LAYOUTS[layout][1]} : i64}}
      : ({cache}, {one}, {i64}, {i1}) -> {cache}
  "kv.state_store"(%new) {store}
  return
}}
func.func @extend_{name}(%rows: {more}, %row: tensor<i64>, %start: tensor<i64>, %length: tensor<i64>) {{
  %old = {load}
  %new = "kv.ring_extend"(%old, %rows, %row, %start, %length) {{axis = {LAYOUTS[layout][1]} : i64, {slots(RING)}}}
      : ({cache}, {more}, tensor<i64>, tensor<i64>, tensor<i64>) -> {cache}
  "kv.state_store"(%new) {store}
  return
}}
func.func @read_{name}(%row: tensor<i64>) -> {row} {{
  %old = {load}
  %one = "kv.read_row"(%old, %row) : ({cache}, tensor<i64>) -> {row}
  return %one : {row}
}}
func.func @write_{name}(%value: {row}, %row: tensor<i64>) {{
  %old = {load}
  %new = "kv.write_row"(%old, %value, %row) : ({cache}, {row}, tensor<i64>) -> {cache}
  "kv.state_store"(%new) {store}
  return
}}"""


MASKS = {
    "plain": (5, 21, 6, None, False, False),
    "causal": (19, 19, 4, None, False, True),
    "all": (2, 9, 9, None, False, False),
    "by_key": (1, 33, 8, 2, True, False),
    "by_query": (7, 30, 1, 3, True, False),
    "one": (1, 1, 1, None, False, False),
}
"""Q, T, the count, the rank of ``visible``, whether there are positions, and whether it is causal."""


def mask_function(name: str, q: int, t: int, count: int, rank: int | None, placed: bool, causal: bool) -> str:
    operands = [tensor([B, q, t], "f32")]
    if rank is not None:
        operands.append(tensor([B, q, t] if rank == 3 else [B, t], "i1"))
    if placed:
        operands.append(tensor([B, t], "i64"))
    attributes = (
        f"count = {count} : i64, causal = {str(causal).lower()}, "
        f"operandSegmentSizes = array<i32: 1, {int(rank is not None)}, {int(placed)}>"
    )
    return function(f"mask_{name}", "kv.topk_mask", operands, tensor([B, q, t], "i1"), attributes)


CONCATS = {
    "heads_first": ("heads_first", "f32", Policy(2, 8, 4, 4)),
    "tokens_first": ("tokens_first", "bf16", Policy(0, 5, 3, 1)),
    "no_sink_or_selection": ("features_first", "f32", Policy(0, 3, 0, 1)),
    "one_recent": ("no_heads", "f32", Policy(2, 1, 2, 1)),
}


def concat_function(name: str, layout: str, element: str, policy: Policy) -> str:
    cache, i64, i1 = tensor(cache_shape(layout, B, policy.slots), element), tensor([B], "i64"), tensor([B], "i1")
    operands = [cache, tensor(cache_shape(layout, B, 1), element), i64, i1]
    attributes = f"{slots(policy)}, axis = {LAYOUTS[layout][1]} : i64"
    return function(f"concat_{name}", "kv.concat_update", operands, cache, attributes)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    """All the ops in one module: compiling is what takes time."""
    i64 = tensor([B], "i64")
    parts = [selection_function(f"select_{name}", case) for name, case in SELECTIONS.items()]
    parts += [compaction_function(f"compact_{name}", *case) for name, case in COMPACTIONS.items()]
    parts += [state_functions(name, *case) for name, case in UPDATES.items()]
    parts += [concat_function(name, *case) for name, case in CONCATS.items()]
    parts += [mask_function(name, *case) for name, case in MASKS.items()]
    for i, p in enumerate(SLOTTED):
        selected = f"{slots(p)}, selected = {p.topk} : i64"
        parts.append(function(f"slots_{i}", "kv.slots", [i64], i64, slots(p)))
        parts.append(function(f"visible_{i}", "kv.visible", [i64, i64], tensor([B, p.slots], "i1"), selected))
        seen = tensor([1, M, p.slots + M], "i1")
        one_row = ["tensor<i64>", "tensor<i64>", "tensor<1xi64>"]
        parts.append(function(f"visible_extend_{i}", "kv.visible_extend", one_row, seen, selected))
        kept = [tensor([B, 2, p.topk], "i64")] if p.topk else []
        tokens = tensor([B, len(kept) + 1, p.slots], "i64")
        parts.append(function(f"tokens_{i}", "kv.slot_positions", [i64, *kept], tokens, slots(p)))
        parts.append(function(f"count_{i}", "kv.selected_count", ["tensor<i64>"], "tensor<1xi64>", selected))
    return Program("\n".join(parts), tmp_path_factory.mktemp("ops"))


def random(shape: list[int], element: str = "f32", seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32).astype(NUMPY[element])


def bits(array: np.ndarray) -> np.ndarray:
    return array.view(f"u{array.dtype.itemsize}")


@pytest.mark.parametrize("index", range(len(SLOTTED)))
def test_slots_visible_and_count(program: Program, index: int) -> None:
    policy = SLOTTED[index]
    fixed = policy.sink + policy.recent
    for first in range(0, 3 * fixed, B):
        positions = np.arange(first, first + B)
        np.testing.assert_array_equal(program(f"slots_{index}", positions), [policy.slot(t) for t in positions])
        counts = np.array([0, policy.topk, first % (policy.topk + 1)])
        want = [
            [c < min(t + 1, fixed) or fixed <= c < fixed + n for c in range(policy.slots)]
            for t, n in zip(positions, counts, strict=True)
        ]
        np.testing.assert_array_equal(program(f"visible_{index}", positions, counts).astype(bool), want)
    for length in range(1, policy.slots + 3):
        assert program(f"count_{index}", np.array(length)) == [policy.selected(length)]


@pytest.mark.parametrize("index", range(len(SLOTTED)))
def test_what_new_tokens_see_is_what_they_would_one_at_a_time(program: Program, index: int) -> None:
    """The slots filled one token at a time, each token then looked up where it stands: in a slot, or among the new."""
    policy = SLOTTED[index]
    for start in range(3 * (policy.sink + policy.recent)):
        for length in (1, M - 1, M):
            n = start % (policy.topk + 1)
            held = {policy.slot(t): policy.slot(t) for t in range(start)}
            want = np.zeros([1, M, policy.slots + M], bool)
            for i in range(length):
                held[policy.slot(start + i)] = policy.slots + i
                want[0, i, [*held.values(), *range(policy.slots - policy.topk, policy.slots - policy.topk + n)]] = True
            got = program(f"visible_extend_{index}", np.array(start), np.array(length), np.array([n])).astype(bool)
            np.testing.assert_array_equal(got[:, :length], want[:, :length], err_msg=f"start {start}, {length} tokens")
            assert not got[:, :, policy.slots + length :].any()


@pytest.mark.parametrize("name", UPDATES)
def test_ring_extend_leaves_what_one_at_a_time_would(program: Program, name: str) -> None:
    layout, element = UPDATES[name]
    axis = LAYOUTS[layout][1]
    want = random(cache_shape(layout, B, C), element)
    np.moveaxis(want, axis, 1)[1, 4] = np.nan
    cache = program.device_array(want.copy())
    for step, (row, start, length) in enumerate([(0, 0, 1), (2, 0, M), (0, 1, 4), (1, 7, 5), (1, 12, M), (0, 5, 6)]):
        rows = random(cache_shape(layout, 1, M), element, step)
        # padding is not stored
        np.moveaxis(rows, axis, 1)[:, length:] = np.nan
        program(f"extend_{name}", rows, np.array(row), np.array(start), np.array(length), cache)
        for j in range(length):
            np.moveaxis(want, axis, 1)[row, RING.slot(start + j)] = np.moveaxis(rows, axis, 1)[0, j]
        np.testing.assert_array_equal(bits(cache.to_host()), bits(want), err_msg=f"step {step}")
        np.testing.assert_array_equal(bits(program(f"read_{name}", np.array(row), cache)), bits(want[row : row + 1]))


@pytest.mark.parametrize("index", range(len(SLOTTED)))
def test_each_visible_slot_has_its_tokens_position(program: Program, index: int) -> None:
    policy = SLOTTED[index]
    fixed = policy.sink + policy.recent
    selected = np.arange(B * 2 * policy.topk).reshape(B, 2, policy.topk)
    for first in range(0, 3 * fixed, B):
        positions = np.arange(first, first + B)
        got = program(f"tokens_{index}", positions, *([selected] if policy.topk else []))
        np.testing.assert_array_equal(got[:, :, fixed:], selected if policy.topk else np.zeros((B, 1, 0)))
        for row, t in enumerate(positions):
            for token in range(t + 1):
                if token < policy.sink or token > t - policy.recent:
                    assert (got[row, :, policy.slot(token)] == token).all(), (t, token)


def test_a_position_far_out_has_a_slot(program: Program) -> None:
    policy = SLOTTED[0]
    positions = np.array([2**31 + 5, 2**40 + 1, -7])
    want = [policy.slot(int(positions[0])), policy.slot(int(positions[1])), 0]
    np.testing.assert_array_equal(program("slots_0", positions), want)


def expected_selection(case: Selection, q: np.ndarray, k: np.ndarray, length: int) -> np.ndarray:
    policy = case.policy
    n = policy.selected(length)
    if n == 0:
        return np.zeros((1 if case.shared else case.heads, policy.topk), np.int64)
    more = more_operands(case)
    query, key = np.arange(length - policy.window, length)[:, None], np.arange(length)
    of_heads: list[np.ndarray] = []
    for h in range(case.heads):
        queries = q[0, h, :, length - policy.window : length].astype(np.float32)
        logits = np.einsum("gwd,td->gwt", queries, k[0, h, :length].astype(np.float32)) * np.float32(case.scale)
        if case.softcap:
            logits = case.softcap * np.tanh(logits / case.softcap)
        if case.bias:
            logits = logits + more[int(case.indexed)][0, h, :, None, :length]
        if case.indexed:
            logits = np.where(more[0][0, length - policy.window : length, :length], logits, -np.inf)
        if case.reach.window:
            logits = np.where(query - key < case.reach.window, logits, -np.inf)
        if case.reach.chunk:
            logits = np.where(key >= query // case.reach.chunk * case.reach.chunk, logits, -np.inf)
        of_heads.append(logits.astype(np.float32))
    groups = [np.concatenate(of_heads)] if case.shared else of_heads
    want = np.zeros((len(groups), policy.topk), np.int64)
    for h, logits in enumerate(groups):
        if case.sinks:
            column = np.broadcast_to(more[-1][h][:, None, None], (*logits.shape[:2], 1))
            logits = np.concatenate((logits, column), axis=2)
        want[h, :n] = select(logits, length, policy)
    return want


@pytest.mark.parametrize("name", [n for n in SELECTIONS if n != "exact"])
def test_selection(program: Program, name: str) -> None:
    case = SELECTIONS[name]
    p, n = case.policy, case.n
    fixed = p.sink + p.recent
    lengths = {1, p.window - 1, fixed, fixed + 1, fixed + 2, fixed + p.topk, fixed + p.topk + 1, n - 1, n}
    for length in sorted(at for at in lengths if 1 <= at <= n):
        q = 2 * random([1, case.heads, case.group, n, case.features], case.element, length)
        k = random([1, case.heads, n, case.features], case.element, length + 1000)
        got = program(f"select_{name}", q.astype(NUMPY[case.element]), k, np.array(length), *more_operands(case))
        want = expected_selection(case, q, k, length)
        np.testing.assert_array_equal(got, want, err_msg=f"length {length}")


def test_padding_is_never_selected(program: Program) -> None:
    case, length = SELECTIONS["average"], 20
    q, k = random([1, H, G, case.n, D]), random([1, H, case.n, D], seed=1)
    want = program("select_average", q, k, np.array(length))
    k[:, :, length:] *= 1e6
    np.testing.assert_array_equal(program("select_average", q, k, np.array(length)), want)
    assert want.max() < length - case.policy.recent


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_selection_with_ties_is_that_of_a_sort(program: Program, data: st.DataObject) -> None:
    case = SELECTIONS["exact"]
    p = case.policy
    length = data.draw(st.integers(1, case.n), "length")
    spread = data.draw(st.integers(0, 12), "spread")
    logits = data.draw(st.lists(st.integers(-spread, spread), min_size=case.n, max_size=case.n), "logits")
    q = np.ones([1, 1, 1, case.n, 1], np.float32)
    k = np.array(logits, np.float32).reshape(1, 1, case.n, 1)
    candidates = range(p.sink, max(length - p.recent, p.sink))
    best = sorted(candidates, key=lambda t: (-logits[t], t))[: p.topk]
    want = [*sorted(best), *[0] * (p.topk - len(best))]
    assert program("select_exact", q, k, np.array(length))[0].tolist() == want


@settings(max_examples=60, deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("name", MASKS)
def test_an_index_chooses_the_largest_scores_of_what_is_seen(program: Program, name: str, data: st.DataObject) -> None:
    """Few different scores, so that many are equal: of these the lowest positions are chosen."""
    q, t, count, rank, placed, causal = MASKS[name]
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32), "seed"))
    scores = rng.choice(np.array([-3.5, -1e-30, -0.0, 0.0, 0.25, 7.0, -np.inf], np.float32), [B, q, t])
    seen = np.broadcast_to(rng.random([B, q, t] if rank == 3 else [B, 1, t]) < rng.random(), [B, q, t])
    positions = np.stack([rng.permutation(3 * t)[:t] for _ in range(B)])
    more = [] if rank is None else [seen if rank == 3 else seen[:, 0]]
    got = program(f"mask_{name}", scores, *more, *([positions] if placed else [])).astype(bool)
    want = np.zeros([B, q, t], bool)
    for b, i in np.ndindex(B, q):
        keys = [j for j in range(t) if (rank is None or seen[b, i, j]) and (not causal or j <= i)]
        order = positions[b] if placed else np.arange(t)
        want[b, i, sorted(keys, key=lambda j: (-scores[b, i, j], order[j]))[:count]] = True
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("name", COMPACTIONS)
def test_compaction(program: Program, name: str) -> None:
    layout, element, policy, order = COMPACTIONS[name]
    _, axis, head_axis = LAYOUTS[layout]
    fixed = policy.sink + policy.recent
    heads = H if head_axis > 0 else 1
    for length in [1, policy.sink + 1, fixed - 1, fixed, fixed + 1, fixed + policy.topk - 1, fixed + 5, N]:
        cache = random(cache_shape(layout, 1, N), element, length)
        # what stands in the padding must not come through, not even as 0 * NaN
        by_token = np.moveaxis(cache, axis, 1)
        by_token[:, length:] = np.nan
        rng, count = np.random.default_rng(length), policy.selected(length)
        positions = np.zeros((heads, policy.topk), np.int64)
        for h in range(heads if count else 0):
            chosen = rng.choice(np.arange(policy.sink, length - policy.recent), count, replace=False)
            positions[h, :count] = np.sort(chosen)
        want = np.zeros(cache_shape(layout, 1, policy.slots), cache.dtype)
        into = np.moveaxis(want, axis, 1)
        for t in range(min(policy.sink, length)):
            into[0, t] = by_token[0, t]
        for t in range(max(policy.sink, length - policy.recent), length):
            into[0, policy.slot(t) if order == "ring" else t - max(length - fixed, 0)] = by_token[0, t]
        for h in range(heads):
            for s in range(count):
                # a cache without heads has one selection; with them, the head axis follows the token axis here
                where = (0, fixed + s) if head_axis < 0 else (0, fixed + s, h)
                source = (0, positions[h, s]) if head_axis < 0 else (0, positions[h, s], h)
                into[where] = by_token[source]
        arguments: list[Any] = [cache, np.array(length), *([positions] if policy.topk else [])]
        np.testing.assert_array_equal(
            bits(program(f"compact_{name}", *arguments)), bits(want), err_msg=f"length {length}"
        )


@pytest.mark.parametrize("name", UPDATES)
def test_ring_update_and_write_row(program: Program, name: str) -> None:
    layout, element = UPDATES[name]
    axis = LAYOUTS[layout][1]
    want = random(cache_shape(layout, B, C), element)
    # a row that is not active keeps its bytes, whatever they are
    np.moveaxis(want, axis, 1)[1, 4] = np.nan
    cache = program.device_array(want.copy())
    for step, (at, active) in enumerate(
        [((0, 4, C - 1), (True, False, True)), ((3, 3, 3), (True, True, True)), ((1, 4, 1), (False, False, False))]
    ):
        rows = random(cache_shape(layout, B, 1), element, step)
        program(f"update_{name}", rows, np.array(at), np.array(active), cache)
        for b in range(B):
            if active[b]:
                np.moveaxis(want, axis, 1)[b, at[b]] = np.moveaxis(rows, axis, 1)[b, 0]
        np.testing.assert_array_equal(bits(cache.to_host()), bits(want), err_msg=f"step {step}")
    for row in (2, 0):
        value = random(cache_shape(layout, 1, C), element, row)
        program(f"write_{name}", value, np.array(row), cache)
        want[row] = value[0]
        np.testing.assert_array_equal(bits(cache.to_host()), bits(want), err_msg=f"row {row}")


@pytest.mark.parametrize("name", CONCATS)
def test_concat_update(program: Program, name: str) -> None:
    """Rows at positions of their own, below S, at the last free slot and beyond; the second is idle at times."""
    layout, element, policy = CONCATS[name]
    axis, fixed = LAYOUTS[layout][1], policy.sink + policy.recent
    cache = random(cache_shape(layout, B, policy.slots), element)
    for step, start in enumerate([0, 1, fixed - 1, fixed, fixed + 5]):
        positions, active = np.array([start, start + 1, start + fixed]), np.array([True, step % 2 == 0, True])
        rows, want = random(cache_shape(layout, B, 1), element, step), cache.copy()
        for b in np.flatnonzero(active):
            into, new = np.moveaxis(want, axis, 1)[b], np.moveaxis(rows, axis, 1)[b, 0]
            if positions[b] >= fixed:
                into[policy.sink : fixed - 1] = into[policy.sink + 1 : fixed].copy()
            into[min(positions[b], fixed - 1)] = new
        given = program(f"concat_{name}", cache, rows, positions, active)
        np.testing.assert_array_equal(bits(given), bits(want), err_msg=f"step {step}")
        cache = want


def test_nothing_is_written_outside_the_cache(program: Program) -> None:
    want = random(cache_shape("heads_first", B, C))
    cache = program.device_array(want.copy())
    rows = random(cache_shape("heads_first", B, 1), seed=1)
    program("update_heads_first_f32", rows, np.array([-3, 10**6, 2]), np.array([True] * B), cache)
    for b, slot in enumerate((0, C - 1, 2)):
        want[b, :, slot] = rows[b, :, 0]
    value = random(cache_shape("heads_first", 1, C), seed=2)
    program("write_heads_first_f32", value, np.array(99), cache)
    want[B - 1] = value[0]
    np.testing.assert_array_equal(cache.to_host(), want)
