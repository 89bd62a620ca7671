"""Decoders written by hand that carry more than caches from step to step, for the tests of every room.

``STATEFUL`` are those whose other state is carried; ``REFUSED_STATES`` are those where it is not provable that each row
keeps its own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from decoders import ROWS, RmsNorm, rotate_halves, seeded
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.nn import functional

PAST = Dim("past", min=0, max=256)
WIDTH = 16


class Heads(nn.Module):
    """Attention of two heads over a cache [B, H, T, D] that grows."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = RmsNorm(WIDTH)
        self.project, self.back = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor, places: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x [B, Q, 16], places [B, Q] -> what is added to x, the grown caches."""
        q, new_k, new_v = (part.unflatten(-1, (2, 8)) for part in self.project(self.enter(x)).split(WIDTH, -1))
        q, new_k = rotate_halves(q, places), rotate_halves(new_k, places)
        k, v = torch.cat([k, new_k.transpose(1, 2)], 2), torch.cat([v, new_v.transpose(1, 2)], 2)
        seen = torch.arange(k.shape[2]) <= places[:, None, :, None]
        y = functional.scaled_dot_product_attention(q.transpose(1, 2), k, v, attn_mask=seen)
        return self.back(y.transpose(1, 2).flatten(2)), k, v


class Loom(nn.Module):
    """Inputs and outputs: the last tokens before a convolution, a recurrent layer's state with its rows second, a sum
    of one number that knows no rows, and the number of steps so far."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.heads = nn.Embedding(61, WIDTH), Heads()
        self.taps = nn.Conv1d(WIDTH, WIDTH, 4, groups=WIDTH)
        self.mix = nn.Conv1d(WIDTH, WIDTH, 2, bias=False)
        self.cell = nn.GRUCell(WIDTH, WIDTH)
        self.exit = nn.Linear(WIDTH, 61)

    def forward(
        self,
        ids: Tensor,
        places: Tensor,
        k: Tensor,
        v: Tensor,
        last: Tensor,
        hidden: Tensor,
        fading: Tensor,
        steps: Tensor,
    ) -> tuple[Tensor, ...]:
        """ids, places [B, 1], last [B, 16, 3], hidden [1, B, 16], fading [], steps [] i64."""
        x = self.words(ids)
        window = torch.cat([last, x.transpose(1, 2)], -1)
        x = x + functional.silu(self.taps(window)).transpose(1, 2) + self.mix(window[..., -2:]).transpose(1, 2)
        y, k, v = self.heads(x, places, k, v)
        x = x + y
        inner = self.cell(x[:, 0], hidden[0])
        fading = fading * 0.75 + 0.5
        x = x + inner[:, None] * fading + torch.sin(steps * 0.7)
        return self.exit(x), k, v, window[..., 1:], inner[None], fading, steps + 1


class Kiln(nn.Module):
    """Buffers written in place: a state-space layer's memory that does not start with zeros, and the last four tokens'
    values, which are no cache of attention's; the caches are inputs."""

    def __init__(self, rows: int = 2) -> None:
        super().__init__()
        self.words, self.heads = nn.Embedding(61, WIDTH), Heads()
        self.enter, self.exit = nn.Linear(WIDTH, 12), nn.Linear(WIDTH, 61)
        self.decay, self.gate = nn.Parameter(torch.randn(WIDTH, 4)), nn.Linear(WIDTH, WIDTH)
        self.register_buffer("memory", torch.linspace(-1, 1, WIDTH * 4).view(1, WIDTH, 4).repeat(rows, 1, 1))
        self.register_buffer("recent", torch.zeros(rows, 4, WIDTH), persistent=False)

    def forward(self, ids: Tensor, places: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """ids, places [B, 1]."""
        x = self.words(ids)
        self.recent.copy_(torch.cat([self.recent[:, 1:], x], 1))
        x = x + torch.tanh(self.recent.mean(1, keepdim=True)) * self.gate(x)
        y, k, v = self.heads(x, places, k, v)
        x = x + y
        b, c, step = self.enter(x[:, 0]).split(4, -1)
        step = functional.softplus(step.mean(-1, keepdim=True))[..., None]
        fresh = torch.exp(-step * torch.exp(self.decay)) * self.memory + step * b[:, None] * x[:, 0, :, None]
        self.memory.copy_(fresh)
        return self.exit(x + (fresh * c[:, None]).sum(-1)[:, None]), k, v


class Shuttle(nn.Module):
    """Two layers that each mix a token with the one before it (token shift): the new state is not made of the old."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(61, WIDTH)
        self.heads = nn.ModuleList(Heads() for _ in range(2))
        self.before, self.feed = (nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2)) for _ in range(2))
        self.norms = nn.ModuleList(RmsNorm(WIDTH) for _ in range(2))
        self.exit = nn.Linear(WIDTH, 61)

    def forward(
        self, ids: Tensor, places: Tensor, caches: list[tuple[Tensor, Tensor]], shifts: list[Tensor]
    ) -> tuple[Tensor, list[tuple[Tensor, Tensor]], list[Tensor]]:
        """ids, places [B, 1], shifts [B, 16]."""
        x, grown, after = self.words(ids), [], []
        for i, (k, v) in enumerate(caches):
            y = self.norms[i](x)
            after.append(y[:, 0])
            x = x + torch.sigmoid(self.before[i](shifts[i]))[:, None] * self.feed[i](y)
            y, k, v = self.heads[i](x, places, k, v)
            x, grown = x + y, [*grown, (k, v)]
        return self.exit(x), grown, after


class Abridged(nn.Module):
    """Caches of a fixed length, cut and joined, beside a shorter window that a convolution reads."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.exit = nn.Embedding(61, WIDTH), nn.Linear(WIDTH, 61)
        self.taps = nn.Parameter(torch.randn(WIDTH, 4))
        self.project = nn.Linear(WIDTH, 3 * WIDTH, bias=False)

    def forward(self, ids: Tensor, places: Tensor, k: Tensor, v: Tensor, last: Tensor) -> tuple[Tensor, ...]:
        """ids, places [B, 1], k, v [B, 14, 16], last [B, 16, 3]."""
        x = self.words(ids)
        window = torch.cat([last, x.transpose(1, 2)], -1)
        x = x + torch.tanh((window * self.taps).sum(-1))[:, None] * torch.cos(places * 0.1)[..., None]
        q, new_k, new_v = self.project(x).split(WIDTH, -1)
        k, v = torch.cat([k[:, 1:], new_k], 1), torch.cat([v[:, 1:], new_v], 1)
        old = torch.arange(14) < 13 - places
        y = functional.scaled_dot_product_attention(q, k, v, attn_mask=~old[:, None])
        return self.exit(x + y), k, v, window[..., 1:]


@dataclass(frozen=True)
class Stateful:
    """A decoder that carries state: its module, example arguments for (rows, past), and their dynamic shapes.

    ``rows`` is the fixed number of rows of one that has some in buffers.
    """

    name: str
    build: Callable[[], nn.Module]
    arguments: Callable[[int, int], tuple[Any, ...]]
    shapes: Any
    rows: int | None = None

    def module(self) -> nn.Module:
        """The seeded module."""
        return seeded(self.build)

    def program(self) -> ExportedProgram:
        """Exported for one query token, with symbolic rows where it has no buffers, and a symbolic past."""
        arguments = self.arguments(self.rows or 3, 5)
        return torch.export.export(self.module(), arguments, dynamic_shapes=self.shapes, strict=False)

    def start(self) -> tuple[Any, ...]:
        """The arguments of one row (or of the fixed number) before the first token: zeros."""
        return torch.utils._pytree.tree_map(torch.zeros_like, self.arguments(self.rows or 1, 0))


def _tokens(rows: int) -> tuple[Tensor, Tensor]:
    return torch.arange(rows)[:, None] % 61, torch.full((rows, 1), 5)


def _cache(rows: int, past: int) -> Tensor:
    return torch.randn(rows, 2, past, 8)


_BOTH = ({0: ROWS}, {0: ROWS})
_GROWING = {0: ROWS, 2: PAST}

STATEFUL = (
    Stateful(
        "loom",
        Loom,
        lambda b, t: (
            *_tokens(b),
            _cache(b, t),
            _cache(b, t),
            torch.randn(b, WIDTH, 3),
            torch.randn(1, b, WIDTH),
            torch.tensor(0.5),
            torch.tensor(1),
        ),
        (*_BOTH, _GROWING, _GROWING, {0: ROWS}, {1: ROWS}, None, None),
    ),
    Stateful(
        "kiln",
        Kiln,
        lambda b, t: (*_tokens(b), _cache(b, t), _cache(b, t)),
        (None, None, {2: PAST}, {2: PAST}),
        rows=2,
    ),
    Stateful(
        "shuttle",
        Shuttle,
        lambda b, t: (
            *_tokens(b),
            [(_cache(b, t), _cache(b, t)) for _ in range(2)],
            [torch.randn(b, WIDTH) for _ in range(2)],
        ),
        (*_BOTH, [(_GROWING, _GROWING)] * 2, [{0: ROWS}] * 2),
    ),
    Stateful(
        "abridged",
        Abridged,
        lambda b, t: (*_tokens(b), torch.randn(b, 14, WIDTH), torch.randn(b, 14, WIDTH), torch.randn(b, WIDTH, 3)),
        (*_BOTH, {0: ROWS}, {0: ROWS}, {0: ROWS}),
    ),
)


class Ledgered(nn.Module):
    """Attention, and one input and output that ``carry`` updates."""

    def __init__(self, carry: nn.Module) -> None:
        super().__init__()
        self.words, self.heads, self.exit = nn.Embedding(61, WIDTH), Heads(), nn.Linear(WIDTH, 61)
        self.carry = carry

    def forward(self, ids: Tensor, places: Tensor, k: Tensor, v: Tensor, state: Tensor) -> tuple[Tensor, ...]:
        """ids, places [B, 1], state as ``carry`` has it."""
        x = self.words(ids)
        y, k, v = self.heads(x, places, k, v)
        out, state = self.carry(x + y, state, k.shape[2])
        return self.exit(out), k, v, state


class NextRow(nn.Module):
    """Each row gets its neighbour's state."""

    def forward(self, x: Tensor, state: Tensor, total: int) -> tuple[Tensor, Tensor]:
        """x [B, 1, 16], state [B, 16] -> what goes on, the next state."""
        return x + state[:, None], torch.roll(state, 1, 0) + x[:, 0]


class MeanRow(nn.Module):
    """One state for all rows, their mean."""

    def forward(self, x: Tensor, state: Tensor, total: int) -> tuple[Tensor, Tensor]:
        """As ``NextRow``, state [16]."""
        return x + state, state * 0.5 + x.mean((0, 1))


class ByLength(nn.Module):
    """Fades with the number of tokens in the cache."""

    def forward(self, x: Tensor, state: Tensor, total: int) -> tuple[Tensor, Tensor]:
        """As ``NextRow``."""
        return x + state[:, None], state / total + x[:, 0]


@dataclass(frozen=True)
class RefusedState:
    """A decoder whose state is refused: the part that carries it, the shape of one row's state, and why."""

    carry: type[nn.Module]
    because: str
    rows: bool = True

    @property
    def name(self) -> str:
        """For test ids."""
        return self.carry.__name__

    @property
    def lines(self) -> tuple[str, range]:
        """The file and the lines that the refusal names."""
        body, first = inspect.getsourcelines(self.carry.forward)
        return inspect.getsourcefile(self.carry) or "", range(first, first + len(body))

    def program(self) -> ExportedProgram:
        """The decoder's program."""
        state = torch.randn(3, WIDTH) if self.rows else torch.randn(WIDTH)
        return torch.export.export(
            seeded(lambda: Ledgered(self.carry())),
            (*_tokens(3), _cache(3, 5), _cache(3, 5), state),
            dynamic_shapes=(*_BOTH, _GROWING, _GROWING, {0: ROWS} if self.rows else None),
            strict=False,
        )


REFUSED_STATES = (
    RefusedState(NextRow, r"'torch\.aten\.index_select' takes a part of the rows of the batch"),
    RefusedState(MeanRow, r"'torch\.aten\.mean\.dim' reduces the rows of the batch", rows=False),
    RefusedState(ByLength, "depends on the cache's length"),
)
