"""Small decoders in plain PyTorch, deliberately unlike one another, for the frontend's tests."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.nn import functional

VOCABULARY, HEADS, WIDTH = 61, 2, 8
HIDDEN = HEADS * WIDTH
BATCH, QUERY, PAST = Dim("batch", min=1, max=8), Dim("query", min=1, max=64), Dim("past", min=0, max=128)


def export(
    model: nn.Module, arguments: tuple[Any, ...], dynamic: tuple[Any, ...] | None, seed: int = 0
) -> ExportedProgram:
    """The model in eval mode, exported, its 1-D parameters made non-trivial."""
    torch.manual_seed(seed)
    model.eval().requires_grad_(False)
    for name, parameter in model.named_parameters():
        nn.init.normal_(parameter, 1.0 if "norm" in name else 0.0, 0.3)
    return torch.export.export(model, arguments, dynamic_shapes=dynamic, strict=False)


class Rotary(nn.Module):
    """Rotations from positions under no_grad, a non-persistent buffer, tied weights, constants, [B, T, H, D]."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, HIDDEN)
        self.qkv = nn.Linear(HIDDEN, 3 * HIDDEN)
        self.head = nn.Linear(HIDDEN, VOCABULARY, bias=False)
        self.head.weight = self.table.weight
        self.drop = nn.Dropout(0.1)
        self.register_buffer("frequencies", torch.arange(1, WIDTH // 2 + 1) / WIDTH, persistent=False)
        self.register_buffer("unused", torch.ones(3))
        self.register_buffer("even", torch.arange(HIDDEN) % 2 == 0)
        self.gain = torch.linspace(0.5, 1.5, HIDDEN)
        self.offset = torch.tensor([0.25])

    def forward(self, words: Tensor, where: Tensor, memory: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        batch, length = words.shape
        x = self.drop(self.table(words)) * self.gain + self.offset
        with torch.no_grad():
            angles = where[..., None] * self.frequencies
            cos, sin = angles.cos()[:, :, None], angles.sin()[:, :, None]

        def turn(t: Tensor) -> Tensor:
            a, b = t.chunk(2, -1)
            return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)

        q, k, v = (t.view(batch, length, HEADS, WIDTH) for t in self.qkv(x).split(HIDDEN, -1))
        keys = torch.cat([memory["k"], turn(k)], 1)
        values = torch.cat([memory["v"], v], 1)
        logits = torch.einsum("bqhd,bthd->bhqt", turn(q), keys) / WIDTH**0.5
        hidden = torch.arange(keys.shape[1])[None, None, None, :] > where[:, None, :, None]
        weights = logits.masked_fill(hidden, float("-inf")).softmax(-1)
        out = torch.einsum("bhqt,bthd->bqhd", weights, values).reshape(batch, length, HIDDEN)
        out = torch.where(self.even, out, -out) * torch.tensor([0.5, 2.0] * (HIDDEN // 2))
        return self.head(functional.silu(out + x)), {"k": keys, "v": values}

    @staticmethod
    def arguments(batch: int, query: int, past: int, dtype: torch.dtype = torch.float32) -> tuple[Any, ...]:
        cache = torch.randn(2, batch, past, HEADS, WIDTH).to(dtype)
        return (*tokens(batch, query, past), {"k": cache[0].clone(), "v": cache[1].clone()})

    @classmethod
    def program(cls, model: nn.Module | None = None, dtype: torch.dtype = torch.float32) -> ExportedProgram:
        cache = {0: BATCH, 1: PAST}
        dynamic = ({0: BATCH, 1: QUERY}, {0: BATCH, 1: QUERY}, {"k": cache, "v": cache})
        return export(model or cls(), cls.arguments(2, 3, 5, dtype), dynamic)


class Stacked(nn.Module):
    """One input [2, B, H, T, D] for keys and values, learned positions, SDPA with grouped heads and a bool mask."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, HIDDEN)
        self.places = nn.Embedding(40, HIDDEN)
        self.q = nn.Linear(HIDDEN, 2 * HIDDEN)
        self.kv = nn.Linear(HIDDEN, 2 * HIDDEN)
        self.out = nn.Linear(2 * HIDDEN, VOCABULARY)

    def forward(self, a: Tensor, b: Tensor, store: Tensor, allowed: Tensor) -> tuple[Tensor, Tensor]:
        batch, length = a.shape
        x = self.words(a) + self.places(b + 1)
        q = self.q(x).view(batch, length, 2 * HEADS, WIDTH).transpose(1, 2)
        k, v = self.kv(x).view(batch, length, 2, HEADS, WIDTH).permute(2, 0, 3, 1, 4).unbind(0)
        old_k, old_v = store.unbind(0)
        keys, values = torch.cat([old_k, k], -2), torch.cat([old_v, v], -2)
        y = functional.scaled_dot_product_attention(q, keys, values, attn_mask=allowed, enable_gqa=True, scale=0.3)
        return self.out(y.transpose(1, 2).flatten(2)), torch.stack([keys, values])

    @staticmethod
    def arguments(batch: int, query: int, past: int) -> tuple[Any, ...]:
        allowed = torch.arange(past + query)[None, :] <= torch.arange(query)[:, None] + past
        return (*tokens(batch, query, past), torch.randn(2, batch, HEADS, past, WIDTH), allowed[None, None].clone())

    @classmethod
    def program(cls) -> ExportedProgram:
        dynamic = ({0: BATCH, 1: QUERY}, {0: BATCH, 1: QUERY}, {1: BATCH, 3: PAST}, {2: QUERY, 3: Dim("total", min=1)})
        return export(cls(), cls.arguments(2, 3, 5), dynamic)


class Fixed(nn.Module):
    """One token a call at a fixed past, tokens and positions [B], a latent cache [B, T, D], matmul attention."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(VOCABULARY, HIDDEN))
        self.down = nn.Parameter(torch.empty(HIDDEN, WIDTH))
        self.up = nn.Parameter(torch.empty(WIDTH, HIDDEN))

    def forward(self, tok: Tensor, at: Tensor, latents: Tensor) -> tuple[Tensor, Tensor]:
        x = self.table[tok] * torch.cos(at[:, None] * 0.1)
        grown = torch.cat([latents, (x @ self.down)[:, None]], 1)
        keys = grown @ self.up
        weights = torch.softmax(torch.matmul(x[:, None], keys.transpose(1, 2)), -1)
        return (x + torch.matmul(weights, keys)[:, 0]) @ self.table.T, grown

    @staticmethod
    def arguments(batch: int = 2, past: int = 7) -> tuple[Any, ...]:
        words, places = tokens(batch, 1, past)
        return words[:, 0].clone(), places[:, 0].clone(), torch.randn(batch, past, WIDTH)

    @classmethod
    def program(cls) -> ExportedProgram:
        return export(cls(), cls.arguments(), None)


class InPlace(nn.Module):
    """Values written in place, positions counted from the cache's length, one-hot tokens, causal SDPA."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(VOCABULARY, HIDDEN))

    def forward(self, tokens: Tensor, cache: list[Tensor]) -> tuple[list[Tensor], Tensor]:
        batch, length = tokens.shape
        past = cache[0].shape[2]
        x = functional.one_hot(tokens, VOCABULARY).float() @ self.table
        x = x + torch.sin(torch.arange(past, past + length))[:, None]
        x.mul_(2.0)
        k = torch.empty(batch, length, HEADS, WIDTH)
        k[..., : WIDTH // 2] = x.view(batch, length, HEADS, WIDTH)[..., WIDTH // 2 :]
        k[..., WIDTH // 2 :] = 1.0
        keys = torch.cat([cache[0], k.transpose(1, 2)], 2)
        values = torch.cat([cache[1], x.view(batch, length, HEADS, WIDTH).transpose(1, 2)], 2)
        allowed = torch.ones(length, past + length, dtype=torch.bool).tril(past)
        y = functional.scaled_dot_product_attention(k.transpose(1, 2), keys, values, allowed)
        return [keys, values], y.transpose(1, 2).reshape(batch, length, HIDDEN) @ self.table.T

    @staticmethod
    def arguments(batch: int, query: int, past: int) -> tuple[Any, ...]:
        return tokens(batch, query, past)[0], [torch.randn(batch, HEADS, past, WIDTH) for _ in range(2)]

    @classmethod
    def program(cls) -> ExportedProgram:
        cache = {0: BATCH, 2: PAST}
        return export(cls(), cls.arguments(2, 3, 5), ({0: BATCH, 1: QUERY}, [cache, cache]))


def tokens(batch: int, query: int, past: int) -> tuple[Tensor, Tensor]:
    """Random tokens and the positions after ``past``, both [B, Q]."""
    ids = torch.randint(0, VOCABULARY, (batch, query))
    return ids, (torch.arange(query) + past).expand(batch, query).contiguous()
