"""What the frontend finds out about an exported program, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from frontend_decoders import BATCH, PAST, QUERY, VOCABULARY, Fixed, InPlace, Rotary, Stacked, export
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional

from snapcc.frontend import CacheInput, Decoder, Extent, FrontendError, Range, Role, from_program

GROWING = {0: BATCH, 1: PAST}
TOKENS = {0: BATCH, 1: QUERY}


def roles(decoder: Decoder) -> dict[str, str]:
    return {i.name: str(i.role) for i in decoder.inputs}


def test_roles_by_use() -> None:
    decoder = from_program(Rotary.program(), name="rotary")
    assert roles(decoder) == {
        "words": "tokens",
        "where": "positions",
        "memory_k": "cache",
        "memory_v": "cache",
    }
    assert decoder.caches == (CacheInput("memory_k", 2, 1, 0, 1), CacheInput("memory_v", 3, 2, 0, 1))
    assert decoder.inputs[2].shape == (Extent(batch=1), Extent(past=1), Extent(2), Extent(8))
    assert (decoder.name, decoder.logits, decoder.vocabulary) == ("rotary", 0, VOCABULARY)
    assert (decoder.batch, decoder.query, decoder.past) == (Range(1, 8), Range(1, 64), Range(0, 128))
    assert decoder.max_positions == 129
    assert decoder.supports_prefill


def test_a_stacked_cache_a_position_table_and_a_mask() -> None:
    program = Stacked.program()
    decoder = from_program(program)
    assert roles(decoder) == {"a": "tokens", "b": "positions", "store": "cache", "allowed": "other"}
    assert decoder.caches == (CacheInput("store", 2, 1, row_axis=1, axis=3),)
    assert decoder.inputs[3].shape == (Extent(1), Extent(1), Extent(query=1), Extent(query=1, past=1))
    assert decoder.max_positions == 40  # the table's rows
    declared = from_program(program, causal_masks={"allowed"})
    assert roles(declared)["allowed"] == "causal_mask"


class Counting(Rotary):
    """Counts its steps in a tensor that comes in and goes out."""

    def forward(self, words: Tensor, where: Tensor, memory: dict[str, Tensor], steps: Tensor) -> Any:
        return *super().forward(words, where, memory), steps + words.shape[1]


def test_state_beside_the_caches_is_not_dropped() -> None:
    cache = {0: BATCH, 1: PAST}
    dynamic = ({0: BATCH, 1: QUERY}, {0: BATCH, 1: QUERY}, {"k": cache, "v": cache}, {0: BATCH})
    decoder = from_program(
        export(Counting(), (*Counting.arguments(2, 3, 5), torch.zeros(2, dtype=torch.long)), dynamic)
    )
    assert roles(decoder)["steps"] == "state"
    (state,) = decoder.states
    assert (state.name, state.row_axis, state.initial) == ("steps", 0, None)
    assert decoder.prefill_refusal == (
        "it carries state beside its caches (steps), which the padding behind a prompt would spoil"
    )


def test_a_program_of_fixed_length() -> None:
    decoder = from_program(Fixed.program())
    assert roles(decoder) == {"tok": "tokens", "at": "positions", "latents": "cache"}
    assert (decoder.batch, decoder.query, decoder.past) == (Range(2, 2), Range(1, 1), Range(7, 7))
    assert decoder.max_positions is None
    assert not decoder.supports_prefill
    assert decoder.prefill_refusal == "the program was exported for a past of 7, and a prompt has none"
    for lengths, message in (
        ((3, 1, 7), r"cannot take batch = 3: it was exported for 2; export it with a dynamic batch that includes 3"),
        ((2, 2, 7), r"cannot take query = 2: it was exported for 1"),
        ((2, 1, 8), r"cannot take past = 8: it was exported for 7"),
    ):
        with pytest.raises(FrontendError, match=message):
            decoder.specialise(*lengths)


def test_roles_by_name_where_use_tells_nothing() -> None:
    decoder = from_program(InPlace.program())
    assert roles(decoder) == {"tokens": "tokens", "cache_0": "cache", "cache_1": "cache"}
    assert decoder.logits == 2
    assert [c.output_index for c in decoder.caches] == [0, 1]


class OneHot(nn.Module):
    """Tokens that no table is indexed by, of a name that says nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(VOCABULARY, 8))

    def forward(self, x: Tensor, y: Tensor, cache: Tensor) -> tuple[Tensor, Tensor]:
        hidden = functional.one_hot(x, VOCABULARY).float() @ self.table + y[..., None] / 7
        grown = torch.cat([cache, hidden], 1)
        return torch.softmax(hidden @ grown.mT, -1) @ grown @ self.table.T, grown


def one_hot() -> Any:
    ids = torch.zeros(2, 3, dtype=torch.long)
    return export(OneHot(), (ids, ids.clone(), torch.zeros(2, 5, 8)), (TOKENS, TOKENS, GROWING))


def test_roles_by_declaration() -> None:
    program = one_hot()
    with pytest.raises(FrontendError, match=r"no tokens input: none of x, y, cache is .* --input tokens=NAME"):
        from_program(program)
    decoder = from_program(program, inputs={"tokens": "x", "positions": "y"})
    assert roles(decoder) == {"x": "tokens", "y": "positions", "cache": "cache"}
    assert roles(from_program(program, inputs={"tokens": "x"}))["y"] == "other"
    with pytest.raises(FrontendError, match=r"--input tokens=z: the program has no such input; it has x, y, cache"):
        from_program(program, inputs={"tokens": "z"})
    with pytest.raises(FrontendError, match=r"takes tokens=NAME and positions=NAME, not cache=x"):
        from_program(program, inputs={"cache": "x"})
    with pytest.raises(FrontendError, match=r"--causal-mask m: the program has no such input"):
        from_program(program, causal_masks=["m"])


class Small(nn.Module):
    """A decoder without attention; what differs is given."""

    def __init__(self, step: Any) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, 8)
        self.step = step

    def forward(self, tokens: Tensor, cache: Tensor) -> Any:
        return self.step(self, tokens, cache)


def small(step: Any, dynamic: Any = (TOKENS, GROWING)) -> Any:
    return export(Small(step), (torch.zeros(2, 3, dtype=torch.long), torch.zeros(2, 5, 8)), dynamic)


def grow(cache: Tensor, rows: Tensor) -> Tensor:
    return torch.cat([cache, rows], 1)


def test_no_cache_is_refused() -> None:
    program = small(lambda m, t, c: (m.table(t) @ m.table.weight.T, m.table(t) + c.sum()))
    with pytest.raises(FrontendError, match=r"no cache: none of its inputs tokens, cache comes back .* torch\.cat"):
        from_program(program)


def test_a_cache_that_grows_by_another_number_is_refused() -> None:
    def step(m: Any, tokens: Tensor, cache: Tensor) -> Any:
        x = m.table(tokens)
        return x @ m.table.weight.T, grow(cache, x[:, :1])

    with pytest.raises(FrontendError, match=r"the cache cache grows by 1 along its axis 1, but the tokens tokens have"):
        from_program(small(step))


def test_several_outputs_that_could_be_logits_are_refused() -> None:
    def step(m: Any, tokens: Tensor, cache: Tensor) -> Any:
        x = m.table(tokens)
        return x @ torch.ones(8, 5), x @ torch.ones(8, 6), grow(cache, x)

    with pytest.raises(FrontendError, match=r"2 outputs that could be the logits"):
        from_program(small(step))


def test_several_inputs_that_could_be_tokens_are_refused() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(VOCABULARY, 8)

        def forward(self, one: Tensor, other: Tensor, cache: Tensor) -> Any:
            x = self.table(one) + self.table(other)
            return x @ self.table.weight.T, grow(cache, x)

    ids = torch.zeros(2, 3, dtype=torch.long)
    program = export(Two(), (ids, ids.clone(), torch.zeros(2, 5, 8)), (TOKENS, TOKENS, GROWING))
    with pytest.raises(FrontendError, match=r"several inputs could be the tokens: one, other; say which with --input"):
        from_program(program)
    assert roles(from_program(program, inputs={"tokens": "other"}))["other"] == "tokens"


def test_a_buffer_that_is_written_is_an_input_and_an_output() -> None:
    class Buffered(Small):
        def __init__(self) -> None:
            super().__init__(None)
            self.register_buffer("kept", torch.zeros(2, 3, 8))

        def forward(self, tokens: Tensor, cache: Tensor) -> Any:
            x = self.table(tokens)
            self.kept.copy_(x)
            return x @ self.table.weight.T, grow(cache, x)

    program = export(Buffered(), (torch.zeros(2, 3, dtype=torch.long), torch.zeros(2, 5, 8)), ({}, {1: PAST}))
    decoder = from_program(program)
    assert decoder.input_names == ["b_kept", "tokens", "cache"]
    assert roles(decoder) == {"b_kept": "other", "tokens": "tokens", "cache": "cache"}


def test_a_number_as_an_input_is_refused() -> None:
    class Started(Small):
        def forward(self, tokens: Tensor, start: int, cache: Tensor) -> Any:
            x = self.table(tokens) + start
            return x @ self.table.weight.T, grow(cache, x)

    arguments = (torch.zeros(2, 3, dtype=torch.long), 4, torch.zeros(2, 5, 8))
    program = export(Started(None), arguments, (TOKENS, Dim.DYNAMIC, GROWING))
    with pytest.raises(FrontendError, match=r"the input start is a Python number .* pass it as an integer tensor"):
        from_program(program)


def test_one_query_token_only() -> None:
    decoder = from_program(
        export(
            Small(lambda m, t, c: (m.table(t) @ m.table.weight.T, grow(c, m.table(t)))),
            (torch.zeros(2, 1, dtype=torch.long), torch.zeros(2, 5, 8)),
            ({0: BATCH}, GROWING),
        )
    )
    assert decoder.query == Range(1, 1)
    assert decoder.prefill_refusal == "the program was exported for one query token"
    assert decoder.specialise(3, 1, 0) is not None


def test_a_past_that_cannot_be_empty() -> None:
    program = small(
        lambda m, t, c: (m.table(t) @ m.table.weight.T, grow(c, m.table(t))),
        (TOKENS, {0: BATCH, 1: Dim("past", min=4, max=9)}),
    )
    decoder = from_program(program)
    assert decoder.past == Range(4, 9)
    assert decoder.prefill_refusal == "the program was exported for a past of 4 to 9, and a prompt has none"
    with pytest.raises(FrontendError, match=r"cannot take past = 10: it was exported for 4 to 9"):
        decoder.specialise(2, 1, 10)


def test_a_condition_that_the_export_took_for_granted_is_checked() -> None:
    def step(m: Any, tokens: Tensor, cache: Tensor) -> Any:
        x = m.table(tokens)
        return (x if cache.shape[1] > 3 else -x) @ m.table.weight.T, grow(cache, x)

    decoder = from_program(small(step, (TOKENS, {0: BATCH, 1: Dim.AUTO})))
    assert decoder.past == Range(4, None)  # the condition, as torch.export writes it down
    with pytest.raises(FrontendError, match=r"cannot take past = 3: it was exported for 4 or more"):
        decoder.specialise(2, 1, 3)


def test_a_length_that_must_be_a_multiple() -> None:
    half = Dim("half", min=1, max=8)
    program = small(
        lambda m, t, c: (m.table(t) @ m.table.weight.T, grow(c, m.table(t))), (TOKENS, {0: BATCH, 1: 2 * half + 1})
    )
    decoder = from_program(program)
    assert decoder.past == Range(3, 17)
    assert decoder.specialise(2, 1, 7) is not None
    with pytest.raises(FrontendError, match=r"cannot take batch 2, query 1, past 8: its dimension .* would be 7/2"):
        decoder.specialise(2, 1, 8)


def test_the_role_enumeration_is_text() -> None:
    assert [str(r) for r in Role] == ["tokens", "positions", "causal_mask", "cache", "counter", "state", "other"]


class Placed(nn.Module):
    """A decoder with two inputs that could say where its tokens stand."""

    def __init__(self, turn: Any, hide: Any) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, 8)
        self.turn, self.hide = turn, hide

    def forward(self, tokens: Tensor, first: Tensor, second: Tensor, cache: Tensor) -> Any:
        x = self.turn(self.table(tokens), first, second)
        grown = grow(cache, x)
        hidden = self.hide(torch.arange(grown.shape[1]), first, second)
        logits = torch.where(hidden, -torch.inf, x @ grown.mT)
        return torch.softmax(logits, -1) @ grown @ self.table.weight.T, grown


def placed(turn: Any, hide: Any) -> Any:
    ids = torch.zeros(2, 3, dtype=torch.long)
    arguments = (ids, ids.clone(), ids.clone(), torch.zeros(2, 5, 8))
    return export(Placed(turn, hide), arguments, (TOKENS, TOKENS, TOKENS, GROWING))


def test_a_rotation_decides_before_a_mask() -> None:
    program = placed(lambda x, a, b: x * torch.cos(b[..., None]), lambda keys, a, b: keys > a[..., None])
    found = roles(from_program(program))
    assert (found["first"], found["second"]) == ("other", "positions")


def test_a_mask_decides_where_nothing_is_rotated() -> None:
    program = placed(lambda x, a, b: x + a[..., None] / 7, lambda keys, a, b: keys > b[..., None])
    found = roles(from_program(program))
    assert (found["first"], found["second"]) == ("other", "positions")


def test_two_rotations_are_ambiguous() -> None:
    program = placed(lambda x, a, b: x * torch.cos(a[..., None]) + b[..., None].sin(), lambda keys, a, b: keys > 99)
    with pytest.raises(FrontendError, match=r"several inputs could be the positions: first, second; .*positions=NAME"):
        from_program(program)
    found = roles(from_program(program, inputs={"positions": "first"}))
    assert (found["first"], found["second"]) == ("positions", "other")


def test_conditions_of_the_export_end_the_lengths() -> None:
    class Biased(nn.Module):
        """A bias for each of the 40 last tokens."""

        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(VOCABULARY, 8)
            self.biases = nn.Parameter(torch.zeros(40, 8))

        def forward(self, tokens: Tensor, cache: Tensor) -> Any:
            x = self.table(tokens)
            past = torch.cat([cache, x], 1)
            weights = (past + self.biases[max(0, 40 - past.shape[1]) :]).softmax(1)
            return (x + (weights * past).sum(1, keepdim=True)) @ self.table.weight.T, past

    arguments = (torch.zeros(2, 3, dtype=torch.long), torch.randn(2, 5, 8))
    dynamic = ({0: Dim.DYNAMIC, 1: Dim.DYNAMIC}, {0: Dim.DYNAMIC, 1: Dim.DYNAMIC})
    decoder = from_program(export(Biased(), arguments, dynamic))
    assert decoder.max_positions in (39, 40)
    decoder.specialise(2, 1, decoder.max_positions - 1)
    with pytest.raises(FrontendError):
        decoder.specialise(2, 1, decoder.max_positions)
