"""Decoders written by hand whose attention has more than queries, keys and values, or whose layers share their caches.

Each has several of the forms that attention takes, so that all of them are covered by few programs.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from decoders import (
    PAST,
    POSITIONS,
    QUERY,
    ROWS,
    Decoder,
    Refused,
    RmsNorm,
    _ids,
    _places,
    _rand,
    rotate_halves,
)
from plain_decoders import _plain
from torch import Tensor, nn
from torch.nn import functional

from snapcc.runtime.reference import ProgramInputs


class Estuary(nn.Module):
    """A window that fits into the slots, one that does not and none, by layer; learned logits as attention sinks, in
    one more column or, in the second layer, as a factor told from the logits' logsumexp; queries and keys normed; half
    of the features rotated; attention beside the MLP; scaled logits."""

    WINDOWS = (6, 20, None)

    def __init__(self) -> None:
        super().__init__()
        self.silt = nn.Embedding(73, 32)
        self.calm, self.ask, self.answer = (nn.ModuleList(RmsNorm(n) for _ in self.WINDOWS) for n in (32, 8, 8))
        self.inflow = nn.ModuleList(nn.Linear(32, 32 + 16 + 16 + 48) for _ in self.WINDOWS)
        self.outflow = nn.ModuleList(nn.Linear(32 + 48, 32) for _ in self.WINDOWS)
        self.sinks = nn.ParameterList(torch.randn(4) for _ in self.WINDOWS)

    @staticmethod
    def turned(x: Tensor, at: Tensor) -> Tensor:
        """RoPE of the first half of the features of [B, H, Q, 8]."""
        return torch.cat((rotate_halves(x[..., :4].transpose(1, 2), at).transpose(1, 2), x[..., 4:]), -1)

    def forward(self, ids: Tensor, at: Tensor, *water: Tensor) -> tuple[Tensor, ...]:
        """ids, at [B, Q]; water (k, v of each layer) [B, 2, T, 8] -> logits [B, Q, 73], the grown water."""
        b, n = ids.shape
        x, grown = self.silt(ids), []
        for i, window in enumerate(self.WINDOWS):
            q, k, v, wide = self.inflow[i](self.calm[i](x)).split((32, 16, 16, 48), -1)
            q, k, v = (part.unflatten(-1, (-1, 8)).transpose(1, 2) for part in (q, k, v))
            q, k = self.turned(self.ask[i](q), at), self.turned(self.answer[i](k), at)
            k, v = torch.cat((water[2 * i], k), 2), torch.cat((water[2 * i + 1], v), 2)
            grown += [k, v]
            scores = torch.einsum("bhgqd,bhkd->bhgqk", q.unflatten(1, (2, 2)), k).flatten(1, 2) * 0.4
            key = torch.arange(k.shape[2])
            seen = key <= at[:, None, :, None]
            if window is not None:
                seen = seen & (key > at[:, None, :, None] - window)
            scores = torch.where(seen, scores, -torch.inf)
            if i == 1:
                shares = scores.softmax(-1).unflatten(1, (2, 2))
                kept = (scores.logsumexp(-1) - self.sinks[i].view(4, 1)).sigmoid()
                mixed = (torch.einsum("bhgqk,bhkd->bqhgd", shares, v).flatten(2, 3) * kept.mT[..., None]).flatten(2)
            else:
                column = self.sinks[i].view(1, 4, 1, 1).expand(b, 4, n, 1)
                shares = torch.cat((scores, column), -1).softmax(-1)[..., :-1].unflatten(1, (2, 2))
                mixed = torch.einsum("bhgqk,bhkd->bqhgd", shares, v).flatten(2)
            x = x + self.outflow[i](torch.cat((mixed, functional.gelu(wide)), -1))
        return (functional.linear(x, self.silt.weight) * 0.5, *grown)


class Gnomon(nn.Module):
    """ALiBi and no other positions; keys and values side by side in one tensor of each layer, [B, T, 2, H, D]; an index
    gives each query head its KV head in one layer, and a product with a one for it in the other."""

    def __init__(self) -> None:
        super().__init__()
        self.shadow = nn.Embedding(79, 32)
        self.edge = nn.ModuleList(nn.LayerNorm(32) for _ in range(2))
        self.cast, self.fall = (nn.ModuleList(nn.Linear(32, n) for _ in range(2)) for n in (64, 32))
        self.register_buffer("steepness", torch.tensor([0.5, 0.25, 0.125, 0.0625]), persistent=False)
        self.register_buffer("owner", torch.tensor([0, 0, 1, 1]), persistent=False)

    def forward(self, hours: list[Tensor], ids: Tensor, at: Tensor) -> tuple[list[Tensor], Tensor]:
        """ids, at [B, Q]; hours [B, T, 2, 2, 8] (keys and values, heads) -> the grown hours, logits [B, Q, 79]."""
        x, later = self.shadow(ids), []
        for i, (edge, cast, fall, hour) in enumerate(zip(self.edge, self.cast, self.fall, hours, strict=True)):
            q, kv = cast(edge(x)).split(32, -1)
            hour = torch.cat((hour, kv.unflatten(-1, (2, 2, 8))), 1)
            later.append(hour)
            pairs = functional.one_hot(self.owner, 2).float()
            k, v = (part[:, :, self.owner] if i == 0 else pairs @ part for part in hour.unbind(2))
            scores = torch.einsum("bqhd,bkhd->bhqk", q.unflatten(-1, (4, 8)), k) / 8**0.5
            back = torch.arange(k.shape[1]) - at[:, None, :, None]
            scores = (scores + back * self.steepness.view(4, 1, 1)).masked_fill(back > 0, -1e30)
            mixed = scores.softmax(-1) @ v.transpose(1, 2)
            x = x + fall(mixed.transpose(1, 2).flatten(2))
        return later, x @ self.shadow.weight.t()


class Terrazzo(nn.Module):
    """Chunks of 5 tokens, and a layer that sees all; values normed after the cache; a position table; one KV head that
    broadcasting repeats; queries scaled by their position."""

    CHUNKS = (5, None, 5)

    def __init__(self) -> None:
        super().__init__()
        self.chips, self.grid, self.grout = nn.Embedding(59, 32), nn.Embedding(POSITIONS, 32), RmsNorm(32)
        self.sand, self.seal = (nn.ModuleList(RmsNorm(n) for _ in self.CHUNKS) for n in (32, 8))
        self.pour, self.set = (
            nn.ModuleList(nn.Linear(*n, bias=False) for _ in self.CHUNKS) for n in ((32, 48), (32, 32))
        )

    def forward(
        self, ids: Tensor, floor: dict[str, tuple[Tensor, ...]]
    ) -> tuple[Tensor, dict[str, tuple[Tensor, ...]]]:
        """ids [B, Q]; floor {"k", "v"} of [B, 1, T, 8] for each layer -> logits [B, Q, 59], the grown floor."""
        past = floor["k"][0].shape[2]
        spot = torch.arange(past, past + ids.shape[1])
        x, keys, values = self.chips(ids) + self.grid(spot), [], []
        for i, chunk in enumerate(self.CHUNKS):
            q, k, v = self.pour[i](self.sand[i](x)).unflatten(-1, (6, 8)).transpose(1, 2).split((4, 1, 1), 1)
            q = q * (1 + 0.1 * torch.log1p(spot // 8))[:, None]
            k, v = torch.cat((floor["k"][i], k), 2), torch.cat((floor["v"][i], v), 2)
            keys.append(k)
            values.append(v)
            key = torch.arange(k.shape[2])
            seen = key <= spot[:, None]
            if chunk is not None:
                seen = seen & (key // chunk == spot[:, None] // chunk)
            scores = (q @ k.mT * 8**-0.5).masked_fill(~seen, torch.finfo(q.dtype).min)
            x = x + self.set[i]((scores.softmax(-1) @ self.seal[i](v)).transpose(1, 2).flatten(2))
        return self.grout(x) @ self.chips.weight.t(), {"k": tuple(keys), "v": tuple(values)}


class Echo(nn.Module):
    """Layers 0 and 2 are one layer run twice, each time with a cache of its own; layers 1 and 3 have queries alone and
    read the caches of layer 0 or 2, with the tokens leading: [T, B, H, D]."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = nn.Embedding(67, 32)
        self.hush, self.hush_again = RmsNorm(32), nn.ModuleList(RmsNorm(32) for _ in range(2))
        self.shout, self.back = nn.Linear(32, 64, bias=False), nn.Linear(32, 32, bias=False)
        self.listen, self.tell = (nn.ModuleList(nn.Linear(32, 32) for _ in range(2)) for _ in range(2))

    @staticmethod
    def heard(q: Tensor, at: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [B, Q, 32], k, v [T, B, 2, 8] -> [B, Q, 32]."""
        q = rotate_halves(q.unflatten(-1, (4, 8)), at)
        k, v = (x.permute(1, 2, 0, 3) for x in (k, v))
        seen = torch.arange(k.shape[2]) <= at[:, None, :, None]
        mixed = functional.scaled_dot_product_attention(q.transpose(1, 2), k, v, attn_mask=seen, enable_gqa=True)
        return mixed.transpose(1, 2).flatten(2)

    def forward(self, ids: Tensor, at: Tensor, wall: list[tuple[Tensor, Tensor]]) -> Any:
        """ids, at [B, Q] -> logits [B, Q, 67], the grown wall."""
        x, grown = self.calls(ids), []
        for hush, listen, tell, (k, v) in zip(self.hush_again, self.listen, self.tell, wall, strict=True):
            q, new_k, new_v = self.shout(self.hush(x)).split((32, 16, 16), -1)
            k = torch.cat((k, rotate_halves(new_k.unflatten(-1, (2, 8)), at).transpose(0, 1)), 0)
            v = torch.cat((v, new_v.unflatten(-1, (2, 8)).transpose(0, 1)), 0)
            grown.append((k, v))
            x = x + self.back(self.heard(q, at, k, v))
            x = x + tell(self.heard(listen(hush(x)), at, k, v))
        return x @ self.calls.weight.t(), grown


class Crossed(nn.Module):
    """Two of four heads change places after the cache."""

    def forward(self, keys: Tensor) -> Tensor:
        """[B, 4, T, D]."""
        return keys[:, torch.tensor([1, 0, 2, 3])]


CROSSED = Refused(
    _plain("crossed", 1, keys=Crossed, values=Crossed),
    "an index takes heads out of the cache, and which query heads share one is not seen",
    "aten.index",
    Crossed.forward,
)


class Blended(nn.Module):
    """Each head is two of the cache's, the first two of the first two and the others of the others."""

    def __init__(self, by: str) -> None:
        super().__init__()
        self.by = by
        self.register_buffer("shares", torch.block_diag(torch.rand(2, 2), torch.rand(2, 2)), persistent=False)

    def forward(self, keys: Tensor) -> Tensor:
        """[B, 4, T, D]."""
        if self.by == "sum":
            return (keys[:, None] * self.shares[:, :, None, None]).sum(2)
        return torch.einsum("gh,bhtd->bgtd", self.shares, keys)


BLENDED = tuple(
    Refused(
        _plain(f"blended-by-{by}", 1, keys=partial(Blended, by), values=partial(Blended, by)),
        "heads are made of a part of the cache's, and which share one is not seen",
        op,
        Blended.forward,
    )
    for by, op in (("sum", "aten.sum"), ("product", "aten.bmm"))
)

_TOKENS = {0: ROWS, 1: QUERY}

FORMS = (
    Decoder(
        "estuary",
        Estuary,
        lambda b, q, t: (_ids(b, q), _places(b, q, t), *(_rand(b, 2, t, 8) for _ in range(6))),
        (_TOKENS, _TOKENS, ({0: ROWS, 2: PAST},) * 6),
        ProgramInputs(tokens=0, positions=1, caches=tuple((2 + i, 1 + i, 2) for i in range(6))),
        73,
        (0, 0, 1, 1),
    ),
    Decoder(
        "gnomon",
        Gnomon,
        lambda b, q, t: ([_rand(b, t, 2, 2, 8) for _ in range(2)], _ids(b, q), _places(b, q, t)),
        ([{0: ROWS, 1: PAST}] * 2, _TOKENS, _TOKENS),
        ProgramInputs(tokens=2, positions=3, caches=((0, 0, 1), (1, 1, 1)), logits=2),
        79,
        (0, 0, 1, 1),
    ),
    Decoder(
        "terrazzo",
        Terrazzo,
        lambda b, q, t: (_ids(b, q), {name: tuple(_rand(b, 1, t, 8) for _ in range(3)) for name in ("k", "v")}),
        (_TOKENS, {name: ({0: ROWS, 2: PAST},) * 3 for name in ("k", "v")}),
        ProgramInputs(tokens=0, caches=tuple((1 + i, 1 + i, 2) for i in range(6))),
        59,
        (0, 0, 0, 0),
    ),
    Decoder(
        "echo",
        Echo,
        lambda b, q, t: (_ids(b, q), _places(b, q, t), [(_rand(t, b, 2, 8), _rand(t, b, 2, 8)) for _ in range(2)]),
        (_TOKENS, _TOKENS, [({0: PAST, 1: ROWS},) * 2] * 2),
        ProgramInputs(tokens=0, positions=1, caches=tuple((2 + i, 1 + i, 0) for i in range(4))),
        67,
        (0, 0, 1, 1),
    ),
)
