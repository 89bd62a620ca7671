"""Near ties of a selection: where they are, the reference's other choice, and that a comparison says it took one."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from decoders import GOOD
from numpy.typing import NDArray
from plain_decoders import PLAIN

from snapcc.compiler.dialect.policy import Policy
from snapcc.runtime import verification
from snapcc.runtime.generation import Row
from snapcc.runtime.reference import Boundary, Reference
from snapcc.runtime.selection import ranked
from snapcc.runtime.verification import compare, compare_at_ties

POLICY = Policy(2, 8, 4, 4)
STEPS = 6
WITHOUT_ROTATION = next(decoder for decoder in GOOD if decoder.name == "abacus")
"""It computes in its weights' type throughout."""


def prompt(length: int = 30) -> list[int]:
    return [int(t) for t in np.random.default_rng(1).integers(0, PLAIN.vocabulary, length)]


@pytest.fixture(scope="module")
def reference() -> Reference:
    return Reference(PLAIN.program(), PLAIN.inputs, POLICY)


def followed(reference: Reference, others: Sequence[Boundary]) -> Row:
    """A row as a program gives it that makes the other choice at some boundaries."""
    row = Row(tuple(prompt()))
    row.logits = [reference.prefill(row.prompt)]
    reference.rewind(others)
    for _ in range(STEPS - 1):
        row.tokens.append(int(row.logits[-1].argmax()))
        row.logits.append(reference.decode(row.tokens[-1]))
    row.tokens.append(int(row.logits[-1].argmax()))
    return row


def scored(*scores: float) -> NDArray[np.float32]:
    """Logits [1, 1, T] whose softmax over the candidates has these weights, up to a factor."""
    around = [0.0] * POLICY.sink, np.log(np.array(scores)), [0.0] * POLICY.recent
    return np.concatenate(around).astype(np.float32)[None, None]


def test_the_boundary_of_a_selection() -> None:
    one_query = Policy(2, 8, 4, 1, pool="none")
    found = ranked(scored(5, 1, 4, 2, 2.002, 3), 16, one_query)
    assert found.kept.tolist() == [2, 4, 6, 7]
    assert (found.last, found.next) == (6, 5)
    assert found.gap == pytest.approx(0.002 / 2.002, rel=1e-3)
    everything = ranked(scored(5, 1, 4), 13, one_query)
    assert (everything.kept.tolist(), everything.last, everything.next) == ([2, 3, 4], None, None)


def test_the_other_choice_is_made_and_unmade(reference: Reference) -> None:
    reference.prefill(prompt())
    before, boundaries = [positions.copy() for positions in reference.selected], reference.boundaries
    assert [b.gap for b in boundaries] == sorted(b.gap for b in boundaries)
    first = boundaries[0]
    reference.rewind([first])
    row = reference.selected[first.attention][first.head].tolist()
    assert row == sorted({*before[first.attention][first.head].tolist(), first.left} - {first.kept})
    reference.rewind([])
    for now, then in zip(reference.selected, before, strict=True):
        np.testing.assert_array_equal(now, then)


@pytest.mark.parametrize("count", [1, 2])
def test_a_row_right_with_the_other_choice_is_so_only_with_it_said(
    reference: Reference, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference.prefill(prompt())
    others = reference.boundaries[:count]
    row = followed(reference, others)
    assert not compare(row, reference, "f32").holds
    # as far apart as these are, rounding did not choose
    assert not compare_at_ties(row, reference, "f32").holds
    monkeypatch.setitem(verification.NEAR, "f32", others[-1].gap)
    found = compare_at_ties(row, reference, "f32")
    assert (found.holds, found.ties) == (True, others)
    row.logits[3] = np.roll(row.logits[3], 1)
    spoilt = compare_at_ties(row, reference, "f32")
    assert (spoilt.holds, spoilt.ties) == (False, ())


def test_an_exact_tie_broken_the_wrong_way_is_wrong() -> None:
    """Pooled by the maximum, neighbours of a high score tie exactly; the lowest position is the one to keep."""
    pooled = Reference(PLAIN.program(), PLAIN.inputs, replace(POLICY, pool="max", pool_size=3))
    pooled.prefill(prompt())
    tie = pooled.boundaries[0]
    assert (tie.gap, tie.left - tie.kept) == (0, 1)
    row = followed(pooled, [tie])
    found = compare_at_ties(row, pooled, "f32")
    assert (found.holds, found.ties) == (False, ())
    assert compare_at_ties(followed(pooled, []), pooled, "f32").holds


class Choice:
    """One boundary; what is decoded says which choice was made there, the first unless told."""

    def __init__(self, gap: float) -> None:
        self.boundaries = (Boundary(gap, 0, 0, 4, 5),)
        self._other = False

    def prefill(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        self._other = False
        return np.array([1, 0], np.float32)

    def rewind(self, others: Sequence[Boundary]) -> None:
        self._other = bool(others)

    def decode(self, token: int) -> NDArray[np.float32]:
        return np.array([1, int(self._other)], np.float32)


@pytest.mark.parametrize(("gap_in_f32", "holds"), [(0.0, False), (1e-4, True)])
def test_a_tie_in_bf16_is_exact_where_it_is_one_in_f32_too(gap_in_f32: float, holds: bool) -> None:
    other = Row((1, 2, 3), [0, 0], [np.array([1, 0], np.float32), np.array([1, 1], np.float32)])
    oracle = Choice(0.0)
    found = compare_at_ties(other, oracle, "bf16", Choice(gap_in_f32))
    assert (found.holds, found.ties) == (holds, oracle.boundaries if holds else ())


def test_the_reference_in_f32_has_the_same_weights_and_no_rounding() -> None:
    """Of a program in bf16 it is near that program, and equal to a module of the same weights in f32."""
    narrow = WITHOUT_ROTATION.module().to(torch.bfloat16)
    arguments = torch.utils._pytree.tree_map(
        lambda x: x.to(torch.bfloat16) if isinstance(x, torch.Tensor) and x.is_floating_point() else x,
        WITHOUT_ROTATION.arguments(2, 3, 5),
    )
    program = torch.export.export(narrow, arguments, dynamic_shapes=WITHOUT_ROTATION.shapes, strict=False)
    wide = Reference(program, WITHOUT_ROTATION.inputs, POLICY, wide=True).prefill(prompt())
    whole = WITHOUT_ROTATION.module().to(torch.bfloat16).float()
    right, _ = WITHOUT_ROTATION.step(whole, torch.tensor([prompt()]), 0, WITHOUT_ROTATION.caches(1))
    np.testing.assert_allclose(wide, right.reshape(-1, right.shape[-1])[-1].detach().numpy(), atol=1e-4)
    given = Reference(program, WITHOUT_ROTATION.inputs, POLICY).prefill(prompt())
    assert 1e-4 < np.abs(given - wide).max() < 0.2
