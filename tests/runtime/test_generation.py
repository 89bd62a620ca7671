"""Generation and comparison on a program whose logits are known: the last token and the position decide them."""

from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from snapcc.runtime.engine import PositionError, Program, ProgramSpec, RowError
from snapcc.runtime.generation import Row, generate
from snapcc.runtime.verification import TOLERANCE, compare

V = 16


def logits_of(token: int, position: int) -> NDArray[np.float32]:
    return np.cos(np.arange(V, dtype=np.float32) * (token + 1) + position)


class Toy:
    """A model without memory; notes what it was asked."""

    def __init__(self, batch: int = 3, limit: int = 50) -> None:
        self.spec = ProgramSpec({}, batch, V, limit, "cpu")
        self.calls: list[Any] = []

    def prefill(self, tokens: Any, row: int) -> NDArray[np.float32]:
        self.calls.append(("prefill", row))
        return logits_of(tokens[-1], len(tokens) - 1)

    def decode(self, tokens: Any, positions: Any, active: Any) -> NDArray[np.float32]:
        self.calls.append(("decode", positions.tolist(), active.tolist()))
        rows = zip(tokens, positions, strict=True)
        return np.stack([logits_of(int(t), int(p)) for t, p in rows])


def run(toy: Toy, *arguments: Any, **options: Any) -> list[Row]:
    return generate(cast(Program, toy), *arguments, **options)


def expected(prompt: list[int], count: int) -> list[int]:
    tokens, last, position = [], prompt[-1], len(prompt) - 1
    for _ in range(count):
        last = int(logits_of(last, position).argmax())
        position += 1
        tokens.append(last)
    return tokens


def test_rows_stand_at_positions_of_their_own() -> None:
    toy = Toy()
    prompts = [[1, 2, 3], [4]]
    rows = run(toy, prompts, 4)
    assert [row.tokens for row in rows] == [expected(prompt, 4) for prompt in prompts]
    assert toy.calls[:3] == [("prefill", 0), ("prefill", 1), ("decode", [3, 1, 0], [True, True, False])]
    assert toy.calls[-1] == ("decode", [5, 3, 0], [True, True, False])
    assert [len(row.logits) for row in rows] == [4, 4]


def test_forced_tokens_are_fed_and_kept() -> None:
    rows = run(Toy(), [[1]], 3, forced=[[7, 8, 9]])
    assert rows[0].tokens == [7, 8, 9]
    np.testing.assert_array_equal(rows[0].logits[2], logits_of(8, 2))


def test_a_row_stops_after_its_end_and_the_others_go_on() -> None:
    toy = Toy()
    long, short = expected([1, 2, 3], 6), expected([4], 6)
    end = short[1]
    assert end not in long
    rows = run(toy, [[1, 2, 3], [4]], 6, stop={end})
    assert rows[0].tokens == long
    assert rows[1].tokens == short[:2]
    assert toy.calls[-1] == ("decode", [7, 0, 0], [True, False, False])


def test_all_rows_stopped_ends_it() -> None:
    toy = Toy()
    rows = run(toy, [[4]], 6, stop=set(range(V)))
    assert len(rows[0].tokens) == 1
    assert toy.calls == [("prefill", 0)]


def test_ties_go_to_the_lowest_token() -> None:
    class Flat(Toy):
        def prefill(self, tokens: Any, row: int) -> NDArray[np.float32]:
            return np.array([0, 2, 2, 1], np.float32)

    assert run(Flat(), [[1]], 1)[0].tokens == [1]


def test_no_new_tokens() -> None:
    toy = Toy()
    assert run(toy, [[1]], 0)[0].tokens == []
    assert toy.calls == []


def test_refused_before_anything_is_computed() -> None:
    toy = Toy()
    with pytest.raises(RowError, match="4 prompts do not fit into the program's 3 rows"):
        run(toy, [[1]] * 4, 1)
    with pytest.raises(PositionError, match=r"row 1: a prompt of 40 tokens and 12 new ones need position 50"):
        run(toy, [[1], [1] * 40], 12)
    assert toy.calls == []
    run(toy, [[1], [1] * 40], 11)


class Exact:
    """An oracle that agrees, but for an error added to the logits of one step."""

    def __init__(self, step: int | None = None, error: float = 0.0, token: int = 0) -> None:
        self._step, self._error, self._token = step, error, token
        self._position = 0
        self._count = 0

    def prefill(self, tokens: Any) -> NDArray[np.float32]:
        self._position = len(tokens) - 1
        return self._next(tokens[-1])

    def decode(self, token: int) -> NDArray[np.float32]:
        self._position += 1
        return self._next(token)

    def _next(self, token: int) -> NDArray[np.float32]:
        logits = logits_of(token, self._position)
        if self._count == self._step:
            logits[self._token] += self._error
        self._count += 1
        return logits


@pytest.fixture
def row() -> Row:
    return run(Toy(), [[1, 2, 3]], 5)[0]


def test_agreement(row: Row) -> None:
    result = compare(row, Exact(), "f32")
    assert (result.holds, result.steps, result.agreeing, result.difference) == (True, 5, 5, 0.0)
    assert (result.first_difference, result.first_disagreement) == (None, None)


def test_the_first_difference_is_named(row: Row) -> None:
    result = compare(row, Exact(3, 2 * TOLERANCE), "f32")
    assert (result.holds, result.first_difference, result.first_disagreement) == (False, 3, None)
    assert result.difference == pytest.approx(2 * TOLERANCE, rel=1e-2)
    assert compare(row, Exact(3, TOLERANCE / 2), "f32").holds


def test_another_choice_is_named(row: Row) -> None:
    other = (row.tokens[2] + 1) % V
    result = compare(row, Exact(2, 9.0, other), "f32")
    assert (result.holds, result.agreeing, result.first_disagreement) == (False, 4, 2)


class Fixed:
    """An oracle of one step."""

    def __init__(self, *logits: float) -> None:
        self._logits = np.array(logits, np.float32)

    def prefill(self, tokens: Any) -> NDArray[np.float32]:
        return self._logits

    def decode(self, token: int) -> NDArray[np.float32]:
        raise AssertionError(token)


@pytest.mark.parametrize(("rounding", "holds"), [(0.12, True), (0.09, False)])
def test_half_precision_may_differ_by_what_rounding_does(rounding: float, holds: bool) -> None:
    """The reference's distance from its f32 form says how much; another token is right where the logits are."""
    row = Row((1,), [0], [np.array([1.0, 0.8], np.float32)])
    result = compare(row, Fixed(0.8, 1.0), "bf16", Fixed(0.8 + rounding, 1.0))
    assert (result.holds, result.agreeing, result.first_disagreement) == (holds, 0, 0)
    assert result.rounding == pytest.approx(rounding, rel=1e-3)
    assert not compare(row, Fixed(0.8, 1.0), "f32").holds
    with pytest.raises(ValueError, match="a comparison in bf16 needs the reference in f32 too"):
        compare(row, Fixed(0.8, 1.0), "bf16")


def test_a_nan_never_holds(row: Row) -> None:
    row.logits[1] = np.full(V, np.nan, np.float32)
    assert not compare(row, Exact(), "bf16", Exact()).holds
    assert not compare(row, Exact(), "f32").holds
