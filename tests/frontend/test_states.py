"""Which output is the next value of which input, and what a state starts with."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from snapcc.frontend import Decoder, FrontendError, from_program

WIDTH = 8


class Table(nn.Module):
    """A decoder of one layer whose states ``update`` makes of (states, x [B, 1, 8], positions [B, 1])."""

    def __init__(self, update: Callable[..., Any], buffers: dict[str, Tensor]) -> None:
        super().__init__()
        self.words, self.exit = nn.Embedding(31, WIDTH), nn.Linear(WIDTH, 31)
        self.update = update
        for name, value in buffers.items():
            self.register_buffer(name, value)

    def forward(self, ids: Tensor, places: Tensor, k: Tensor, states: list[Tensor]) -> tuple[Any, ...]:
        """ids, places [B, 1], k [B, T, 8]."""
        x = self.words(ids) * torch.cos(places * 0.1)[..., None]
        k = torch.cat([k, x], 1)
        y = torch.softmax(x @ k.mT, -1) @ k
        read, after = self.update(self, states, x)
        return self.exit(y + read), k, after


def decoder(
    update: Callable[..., Any], *states: Tensor, buffers: dict[str, Tensor] | None = None, rows: int = 2
) -> Decoder:
    module = Table(update, buffers or {}).eval().requires_grad_(False)
    arguments = (torch.ones(rows, 1, dtype=torch.long),) * 2
    cache, past = torch.randn(rows, 5, WIDTH), torch.export.Dim("past", min=0)
    ids, places = (argument.clone() for argument in arguments)
    program = torch.export.export(
        module, (ids, places, cache, list(states)), dynamic_shapes=(None, None, {1: past}, [None] * len(states))
    )
    return from_program(program)


def pairs(found: Decoder) -> dict[str, int]:
    return {state.name: state.output_index for state in found.states}


def rows(count: int = 1) -> list[Tensor]:
    return [torch.randn(2, WIDTH) for _ in range(count)]


def test_outputs_are_the_inputs_of_their_shape_in_order() -> None:
    # a token shift: no state is made of its own old value
    shifted = decoder(lambda m, s, x: (x + s[0][:, None] + s[1][:, None], [x[:, 0], x[:, 0] + s[0]]), *rows(2))
    assert pairs(shifted) == {"states_0": 2, "states_1": 3}
    others = decoder(
        lambda m, s, x: (x + s[0][:, None] * s[1].sum(), [s[1] + x[:, 0, :3], s[0] * 0.5]), *rows(), torch.ones(2, 3)
    )
    assert pairs(others) == {"states_0": 3, "states_1": 2}


def test_another_order_or_number_is_refused() -> None:
    swapped = lambda m, s, x: (x + s[0][:, None] - s[1][:, None], [s[1] * 0.5, s[0] + x[:, 0]])  # noqa: E731
    with pytest.raises(
        FrontendError, match=r"test_states\.py:\d+\) stands where the next value of the input states_0 is"
    ):
        decoder(swapped, *rows(2))
    fewer = lambda m, s, x: (x + s[0][:, None] - s[1][:, None], [s[0] + s[1]])  # noqa: E731
    with pytest.raises(FrontendError, match="but 1 outputs and 2 inputs have that shape: return one updated value for"):
        decoder(fewer, *rows(2))


def test_an_output_that_no_state_is_made_of_is_none() -> None:
    # a hidden state that is returned too, of no input's shape
    found = decoder(lambda m, s, x: (x + s[0][:, None], [s[0] * 0.5, x[:, 0, :3]]), *rows())
    assert pairs(found) == {"states_0": 2}


def test_a_buffer_that_is_overwritten_before_it_is_read_is_none() -> None:
    def rewrite(module: Any, states: list[Tensor], x: Tensor) -> tuple[Tensor, list[Tensor]]:
        module.scratch.copy_(x[:, 0] * 2)
        return module.scratch[:, None], []

    assert decoder(rewrite, buffers={"scratch": torch.ones(2, WIDTH)}).states == ()


def test_a_buffer_that_only_counts_is_kept() -> None:
    def count(module: Any, states: list[Tensor], x: Tensor) -> tuple[Tensor, list[Tensor]]:
        module.seen.add_(x[:, 0].abs())
        return x, []

    (state,) = decoder(count, buffers={"seen": torch.zeros(2, WIDTH)}).states
    assert (state.row_axis, state.initial) == (0, None)


def accumulate(module: Any, states: list[Tensor], x: Tensor) -> tuple[Tensor, list[Tensor]]:
    module.seen.add_(x[:, 0])
    return module.seen[:, None], []


def test_what_a_buffer_starts_with() -> None:
    start = torch.arange(WIDTH).float().repeat(2, 1)
    found = decoder(accumulate, buffers={"seen": start})
    assert [state.initial for state in found.states] == ["seen"]
    assert torch.equal(found.weights()["seen"], start)
    with pytest.raises(FrontendError, match="buffer seen starts with other values in each row"):
        decoder(accumulate, buffers={"seen": torch.arange(2.0 * WIDTH).view(2, WIDTH)})


@pytest.mark.parametrize(
    ("update", "state", "message"),
    [
        (
            lambda m, s, x: (x * s[0][:, None], [~s[0]]),
            torch.ones(2, WIDTH).bool(),
            "holds torch.bool: keep it in one of",
        ),
        (
            lambda m, s, x: (x + s[0][:, None].float(), [s[0] * 0.5]),
            torch.ones(2, WIDTH).double(),
            "holds torch.float64",
        ),
    ],
)
def test_types_that_no_state_has(update: Callable[..., Any], state: Tensor, message: str) -> None:
    with pytest.raises(FrontendError, match=re.escape(message)):
        decoder(update, state)
