"""Decoders written by hand in plain PyTorch, deliberately unlike one another, for the tests of every room.

``GOOD`` are decoders whose cache may be replaced by slots. Each knows how to build its seeded module, how to export it
with symbolic rows, query tokens and past, and which flat inputs are what.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.nn import functional
from torch.utils._pytree import tree_flatten, tree_unflatten

from snapcc.runtime.reference import ProgramInputs

POSITIONS = 512  # rows of position tables and mask buffers: the most tokens that such a decoder takes
ROWS = Dim("rows", min=1, max=64)
QUERY = Dim("query", min=1, max=256)
PAST = Dim("past", min=0, max=256)

_PROGRAMS: dict[str, ExportedProgram] = {}


@dataclass(frozen=True)
class Decoder:
    """A decoder and what a test needs to know about it.

    Attributes:
        name: for test ids.
        build: the module class; ``module()`` seeds and builds it.
        arguments: ``(rows, queries, past)`` -> example arguments of ``forward``.
        shapes: the dynamic shapes of its arguments.
        inputs: what its flat inputs and outputs are.
        vocabulary: number of token ids.
        heads: the KV head of each row of its attention's logits, batch 1.
    """

    name: str
    build: Callable[[], nn.Module]
    arguments: Callable[[int, int, int], tuple[Any, ...]]
    shapes: Any
    inputs: ProgramInputs
    vocabulary: int
    heads: tuple[int, ...] = ()

    def module(self) -> nn.Module:
        """The seeded module, ready for inference."""
        return seeded(self.build)

    def program(self) -> ExportedProgram:
        """The module's program with symbolic rows, query tokens and past; exported once per test run."""
        if self.name not in _PROGRAMS:
            _PROGRAMS[self.name] = torch.export.export(
                self.module(), self.arguments(2, 3, 5), dynamic_shapes=self.shapes, strict=False
            )
        return _PROGRAMS[self.name]

    def caches(self, rows: int) -> list[Tensor]:
        """Its caches before the first token."""
        flat, _ = tree_flatten(self.arguments(rows, 1, 0))
        return [flat[index] for index, _, _ in self.inputs.caches]

    def step(
        self, module: nn.Module, tokens: Tensor, past: int, caches: Sequence[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        """Run ``tokens`` [B, Q] behind ``past`` tokens eagerly: logits [B, Q, V] (or of the last), grown caches."""
        rows, queries = tokens.shape
        flat, spec = tree_flatten(self.arguments(rows, queries, past))
        flat[self.inputs.tokens] = tokens
        if self.inputs.positions is not None:
            flat[self.inputs.positions] = torch.arange(past, past + queries).expand(rows, queries)
        for (index, _, _), cache in zip(self.inputs.caches, caches, strict=True):
            flat[index] = cache
        with torch.no_grad():
            results, _ = tree_flatten(module(*tree_unflatten(flat, spec)))
        return results[self.inputs.logits], [results[output] for _, output, _ in self.inputs.caches]


@dataclass(frozen=True)
class Refused:
    """A decoder that must be refused, and why.

    Attributes:
        decoder: the decoder itself.
        because: the reason we expect, in words.
        op: the op that the refusal names ("" where the reason is a value, not an op).
        place: the method whose source line the refusal names.
    """

    decoder: Decoder
    because: str
    op: str
    place: Callable[..., Any]

    @property
    def name(self) -> str:
        """For test ids."""
        return self.decoder.name

    @property
    def lines(self) -> tuple[str, int, int]:
        """File, first and last line of ``place``."""
        body, first = inspect.getsourcelines(self.place)
        return inspect.getsourcefile(self.place) or "", first, first + len(body) - 1


def seeded(build: Callable[[], nn.Module]) -> nn.Module:
    """A module of seeded weights: none stays at zero or one, lest a dropped one go unseen; logits of order one."""
    torch.manual_seed(7)
    module = build()
    for name, weight in module.named_parameters():
        if weight.ndim == 1:
            nn.init.normal_(weight, mean=0.0 if "bias" in name else 1.0, std=0.2)
    for part in module.modules():
        if isinstance(part, nn.Embedding):
            nn.init.normal_(part.weight, std=0.3)
    return module.eval().requires_grad_(False)


def _ids(rows: int, queries: int) -> Tensor:
    return torch.arange(rows * queries).view(rows, queries) % 61


def _places(rows: int, queries: int, past: int) -> Tensor:
    return torch.arange(past, past + queries).repeat(rows, 1)


class RmsNorm(nn.Module):
    """Root-mean-square norm (written out, not torch's)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """[.., width] -> [.., width]."""
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.gain


def rotate_halves(x: Tensor, places: Tensor, base: float = 10_000.0) -> Tensor:
    """RoPE of [B, Q, H, D] whose pairs are (i, i + D/2)."""
    half = x.shape[-1] // 2
    angle = places[:, :, None, None] * base ** (-torch.arange(half) / half)
    first, second = x[..., :half], x[..., half:]
    return torch.cat((first * angle.cos() - second * angle.sin(), second * angle.cos() + first * angle.sin()), -1)


def rotate_pairs(x: Tensor, angle: Tensor) -> Tensor:
    """RoPE whose pairs are neighbours: x [.., D], angle broadcasting to [.., D/2]."""
    even, odd = x[..., 0::2], x[..., 1::2]
    turned = (even * angle.cos() - odd * angle.sin(), even * angle.sin() + odd * angle.cos())
    return torch.stack(turned, -1).flatten(-2)


class Ledger(nn.Module):
    """[B, T, H, D] caches as (k, v) tuples, einsum with a group axis, mask by positions, tied embedding."""

    class Page(nn.Module):
        """One layer."""

        def __init__(self) -> None:
            super().__init__()
            self.enter, self.middle = RmsNorm(32), RmsNorm(32)
            self.ask, self.key, self.value = (nn.Linear(32, n, bias=False) for n in (32, 16, 16))
            self.back = nn.Linear(32, 32, bias=False)
            self.gate, self.up, self.down = (nn.Linear(*n, bias=False) for n in ((32, 48), (32, 48), (48, 32)))

        def forward(
            self, x: Tensor, places: Tensor, entry: tuple[Tensor, Tensor]
        ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
            """x [B, Q, 32]."""
            b, n, _ = x.shape
            y = self.enter(x)
            q = rotate_halves(self.ask(y).view(b, n, 4, 8), places).view(b, n, 2, 2, 8) / math.sqrt(8)
            k = torch.cat([entry[0], rotate_halves(self.key(y).view(b, n, 2, 8), places)], dim=1)
            v = torch.cat([entry[1], self.value(y).view(b, n, 2, 8)], dim=1)
            scores = torch.einsum("bqhgd,bkhd->bhgqk", q, k)
            seen = torch.arange(k.shape[1])[None, None, :] <= places[:, :, None]
            scores = torch.where(seen[:, None, None], scores, torch.finfo(scores.dtype).min)
            mixed = torch.einsum("bhgqk,bkhd->bqhgd", scores.softmax(-1), v)
            x = x + self.back(mixed.reshape(b, n, 32))
            y = self.middle(x)
            return x + self.down(functional.silu(self.gate(y)) * self.up(y)), (k, v)

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(97, 32)
        self.pages = nn.ModuleList(self.Page() for _ in range(2))
        self.last = RmsNorm(32)

    def forward(self, ids: Tensor, places: Tensor, ledger: list[tuple[Tensor, Tensor]]) -> Any:
        """ids, places [B, Q] -> logits [B, Q, 97], the grown ledger."""
        x, grown = self.words(ids), []
        for page, entry in zip(self.pages, ledger, strict=True):
            x, entry = page(x, places, entry)
            grown.append(entry)
        return self.last(x) @ self.words.weight.t(), grown


class Abacus(nn.Module):
    """[B, H, T, D] caches as flat arguments, no position input, a position table, tril mask, last logits only."""

    def __init__(self) -> None:
        super().__init__()
        self.token_table, self.position_table = nn.Embedding(83, 48), nn.Embedding(POSITIONS, 48)
        self.norms = nn.ModuleList(nn.LayerNorm(48) for _ in range(5))
        self.fused = nn.ModuleList(nn.Linear(48, 48 + 24 + 24) for _ in range(2))
        self.out = nn.ModuleList(nn.Linear(48, 48) for _ in range(2))
        self.wide = nn.ModuleList(nn.Linear(48, 64) for _ in range(2))
        self.narrow = nn.ModuleList(nn.Linear(64, 48) for _ in range(2))
        self.head = nn.Linear(48, 83)

    @staticmethod
    def beads(x: Tensor, count: int) -> Tensor:
        """[B, Q, count * 8] -> [B, count, Q, 8]."""
        return x.unflatten(-1, (count, 8)).transpose(1, 2)

    @staticmethod
    def spread(x: Tensor) -> Tensor:
        """[B, 3, T, 8] -> [B, 6, T, 8], each head twice in a row."""
        b, h, t, d = x.shape
        return x[:, :, None].expand(b, h, 2, t, d).reshape(b, 2 * h, t, d)

    def column(self, layer: int, x: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """One layer."""
        q, k, v = self.fused[layer](self.norms[2 * layer](x)).split([48, 24, 24], dim=-1)
        keys = torch.cat((keys, self.beads(k, 3)), 2)
        values = torch.cat((values, self.beads(v, 3)), 2)
        total, fresh = keys.size(2), x.size(1)
        score = self.beads(q, 6).matmul(self.spread(keys).transpose(2, 3)) / 8**0.5
        future = torch.ones(total, total, dtype=torch.bool).tril()[total - fresh :].logical_not()
        weight = torch.softmax(score.masked_fill(future, float("-inf")), dim=-1)
        x = x + self.out[layer](weight.matmul(self.spread(values)).transpose(1, 2).flatten(2))
        return x + self.narrow[layer](functional.gelu(self.wide[layer](self.norms[2 * layer + 1](x)))), keys, values

    def forward(self, x: Tensor, k0: Tensor, v0: Tensor, k1: Tensor, v1: Tensor) -> tuple[Tensor, ...]:
        """x [B, Q] ids -> logits [B, 83], grown k0, v0, k1, v1."""
        past = k0.size(2)
        h = self.token_table(x) + self.position_table(torch.arange(past, past + x.size(1)))
        h, k0, v0 = self.column(0, h, k0, v0)
        h, k1, v1 = self.column(1, h, k1, v1)
        return self.head(self.norms[4](h[:, -1])), k0, v0, k1, v1


class Monocle(nn.Module):
    """One KV head, [B, T, D] caches in a dict, triu(-inf) mask, interleaved rotation, f32 softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.lens = nn.Embedding(61, 32)
        self.pre, self.post = (nn.ModuleList(RmsNorm(32) for _ in range(2)) for _ in range(2))
        self.look = nn.ModuleList(nn.Linear(32, 4 * 8 + 8 + 8, bias=False) for _ in range(2))
        self.see = nn.ModuleList(nn.Linear(32, 32, bias=False) for _ in range(2))
        self.think = nn.ModuleList(nn.Linear(32, 32) for _ in range(2))
        self.register_buffer("speeds", 500.0 ** (-torch.arange(4) / 4), persistent=False)

    def forward(self, cache: dict[str, Tensor], at: Tensor, t: Tensor) -> dict[str, Any]:
        """t, at [B, Q] -> {"cache": grown, "scores": logits [B, Q, 61]}."""
        x, grown = self.lens(t), dict(cache)
        angle = at.unsqueeze(-1) * self.speeds
        for i in range(2):
            q, k, v = self.look[i](self.pre[i](x)).split((32, 8, 8), -1)
            q = rotate_pairs(q.unflatten(-1, (4, 8)).permute(0, 2, 1, 3), angle[:, None])
            k = grown[f"keys{i}"] = torch.cat((cache[f"keys{i}"], rotate_pairs(k, angle)), 1)
            v = grown[f"values{i}"] = torch.cat((cache[f"values{i}"], v), 1)
            logits = torch.matmul(q, k.unsqueeze(1).mT) * 8**-0.5
            veil = torch.full((q.shape[2], k.shape[1]), float("-inf")).triu(k.shape[1] - q.shape[2] + 1)
            share = functional.softmax(logits + veil, dim=-1, dtype=torch.float32).to(x.dtype)
            x = x + self.see[i]((share @ v.unsqueeze(1)).permute(0, 2, 1, 3).reshape(x.shape))
            x = x + torch.tanh(self.think[i](self.post[i](x)))
        return {"cache": grown, "scores": x @ self.lens.weight.T}


class Carousel(nn.Module):
    """bmm on [B * H, T, D], KV heads tiled by repeat, a bool buffer as mask, positions from the cache's length."""

    def __init__(self) -> None:
        super().__init__()
        self.seats = nn.Embedding(71, 32)
        self.smooth = nn.ModuleList(nn.LayerNorm(32) for _ in range(3))
        self.wq, self.wo = (nn.ModuleList(nn.Linear(32, 32) for _ in range(3)) for _ in range(2))
        self.wk, self.wv = (nn.ModuleList(nn.Linear(32, 16) for _ in range(3)) for _ in range(2))
        self.exit = nn.Linear(32, 71, bias=False)
        self.register_buffer("earlier", torch.ones(POSITIONS, POSITIONS, dtype=torch.bool).tril())

    def turn(self, x: Tensor, horses: int, start: int) -> Tensor:
        """[B, Q, horses * 8] -> [B, horses, Q, 8], rotated from position ``start`` on."""
        b, n, _ = x.shape
        angle = torch.arange(start, start + n)[:, None] / 100.0 ** (torch.arange(4) / 4)
        return rotate_pairs(x.reshape(b, n, horses, 8).transpose(1, 2), angle)

    def forward(self, riders: Tensor, rings: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """riders [B, Q] ids, rings (k, v of each layer, flat) -> logits [B, Q, 71], grown rings."""
        x, grown = self.seats(riders), []
        b, n = riders.shape
        past = rings[0].shape[2]
        for i in range(3):
            y = self.smooth[i](x)
            k = torch.cat((rings[2 * i], self.turn(self.wk[i](y), 2, past)), dim=2)
            v = torch.cat((rings[2 * i + 1], self.wv[i](y).reshape(b, n, 2, 8).transpose(1, 2)), dim=2)
            grown += [k, v]
            flat_q = self.turn(self.wq[i](y), 4, past).reshape(b * 4, n, 8)
            flat_k = (k / 8**0.5).repeat(1, 2, 1, 1).reshape(b * 4, past + n, 8)
            flat_v = v.repeat(1, 2, 1, 1).reshape(b * 4, past + n, 8)
            scores = torch.bmm(flat_q, flat_k.transpose(1, 2))
            scores = scores.masked_fill(~self.earlier[past : past + n, : past + n], -1e9)
            mixed = torch.bmm(scores.float().softmax(2).type_as(x), flat_v)
            x = x + self.wo[i](mixed.reshape(b, 4, n, 8).transpose(1, 2).reshape(b, n, 32))
        return self.exit(x), grown


class Prism(nn.Module):
    """Fused attention with a bool mask, KV heads by repeat_interleave, rotation tables looked up by position."""

    def __init__(self) -> None:
        super().__init__()
        self.glass = nn.Embedding(101, 48)
        self.faces = nn.ModuleList(RmsNorm(48) for _ in range(2))
        self.q, self.o = (nn.ModuleList(nn.Linear(48, 48, bias=False) for _ in range(2)) for _ in range(2))
        self.kv = nn.ModuleList(nn.Linear(48, 32, bias=False) for _ in range(2))
        angle = torch.arange(POSITIONS)[:, None] * 1000.0 ** (-torch.arange(4) / 4)
        self.register_buffer("cosines", angle.cos().repeat(1, 2), persistent=False)
        self.register_buffer("sines", angle.sin().repeat(1, 2), persistent=False)

    def bend(self, x: Tensor, where: Tensor) -> Tensor:
        """RoPE of [B, Q, H, 8]."""
        swapped = torch.cat((-x[..., 4:], x[..., :4]), -1)
        return x * self.cosines[where].unsqueeze(2) + swapped * self.sines[where].unsqueeze(2)

    def forward(self, light: Tensor, ks: list[Tensor], vs: list[Tensor], where: Tensor) -> tuple[Any, ...]:
        """light, where [B, Q]; ks, vs of [B, T, 2, 8] -> grown ks, grown vs, logits [B, 1, 101]."""
        x, new_ks, new_vs = self.glass(light) * 48**0.25, [], []
        for face, wq, wkv, wo, k, v in zip(self.faces, self.q, self.kv, self.o, ks, vs, strict=True):
            y = face(x)
            fresh_k, fresh_v = wkv(y).view(*y.shape[:2], 2, 2, 8).unbind(2)
            k, v = torch.cat([k, self.bend(fresh_k, where)], 1), torch.cat([v, fresh_v], 1)
            new_ks.append(k)
            new_vs.append(v)
            q = self.bend(wq(y).view(*y.shape[:2], 6, 8), where)
            allowed = torch.arange(k.size(1)) <= where[:, None, :, None]
            mixed = functional.scaled_dot_product_attention(
                q.transpose(1, 2),
                k.repeat_interleave(3, dim=2).transpose(1, 2),
                v.repeat_interleave(3, dim=2).transpose(1, 2),
                attn_mask=allowed,
                scale=0.3,
            )
            x = x + wo(mixed.transpose(1, 2).flatten(2))
        return new_ks, new_vs, functional.linear(x[:, -1:], self.glass.weight)


class Quarry(nn.Module):
    """No positions at all; logits with the keys before the queries, softmax over the middle axis, softcap."""

    def __init__(self) -> None:
        super().__init__()
        self.stones = nn.Embedding(67, 32)
        self.level = nn.ModuleList(nn.LayerNorm(32) for _ in range(2))
        self.cut = nn.ModuleList(nn.Linear(32, 3 * 32) for _ in range(2))
        self.haul = nn.ModuleList(nn.Linear(32, 32) for _ in range(2))
        self.surface = nn.Linear(32, 67)

    def forward(self, pit: tuple[tuple[Tensor, Tensor], ...], load: Tensor) -> tuple[Any, Tensor]:
        """load [B, Q] ids, pit of [B, T, 4, 8] -> the grown pit, logits [B, Q, 67]."""
        x, deeper = self.stones(load), []
        for level, cut, haul, (k, v) in zip(self.level, self.cut, self.haul, pit, strict=True):
            q, new_k, new_v = cut(level(x)).chunk(3, dim=-1)
            k = torch.cat((k, new_k.reshape(*load.shape, 4, 8)), dim=1)
            v = torch.cat((v, new_v.reshape(*load.shape, 4, 8)), dim=1)
            scores = torch.einsum("bthd,bqhd->bhtq", k * 8**-0.25, q.reshape(*load.shape, 4, 8) * 8**-0.25)
            scores = 2.0 * torch.tanh(scores / 2.0)
            late = torch.ones(k.shape[1], load.shape[1], dtype=torch.bool).tril(load.shape[1] - k.shape[1] - 1)
            weights = scores.masked_fill(late, torch.finfo(scores.dtype).min).softmax(dim=2)
            x = x + haul(torch.einsum("bhtq,bthd->bqhd", weights, v).flatten(2))
            deeper.append((k, v))
        return tuple(deeper), self.surface(x)


class Drawer(nn.Module):
    """[B, T, H * D] caches with the heads side by side, groups by broadcasting, additive -1e9 mask."""

    def __init__(self) -> None:
        super().__init__()
        self.labels = nn.Embedding(89, 32)
        self.tidy = nn.ModuleList(RmsNorm(32) for _ in range(4))
        self.pull = nn.ModuleList(nn.Linear(32, 32 + 16 + 16, bias=False) for _ in range(2))
        self.push = nn.ModuleList(nn.Linear(32, 32, bias=False) for _ in range(2))
        self.fold = nn.ModuleList(nn.Linear(32, 32) for _ in range(2))

    def forward(self, item: Tensor, slot: Tensor, *drawers: Tensor) -> tuple[Tensor, ...]:
        """item, slot [B, Q]; drawers (k, v of each layer) -> logits [B, Q, 89], the grown drawers."""
        b, n = item.shape
        x, grown = self.labels(item), []
        for i in range(2):
            q, k, v = self.pull[i](self.tidy[2 * i](x)).split([32, 16, 16], dim=2)
            k = rotate_halves(k.view(b, n, 2, 8), slot).view(b, n, 16)
            k, v = torch.cat((drawers[2 * i], k), 1), torch.cat((drawers[2 * i + 1], v), 1)
            grown += [k, v]
            q = rotate_halves(q.view(b, n, 4, 8), slot).view(b, n, 2, 2, 8).permute(0, 2, 3, 1, 4)
            keys = k.view(b, -1, 2, 1, 8).permute(0, 2, 3, 4, 1)
            values = v.view(b, -1, 2, 1, 8).permute(0, 2, 3, 1, 4)
            hide = (torch.arange(k.shape[1]).view(1, 1, -1) > slot.unsqueeze(2)).to(x.dtype) * -1e9
            share = torch.softmax(torch.matmul(q, keys) * 8**-0.5 + hide[:, None, None], -1)
            x = x + self.push[i](torch.matmul(share, values).permute(0, 3, 1, 2, 4).reshape(b, n, 32))
            x = x + functional.relu(self.fold[i](self.tidy[2 * i + 1](x)))
        return (x @ self.labels.weight.T, *grown)


def _rand(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def _pairs(first: int, output: int, axis: int, layers: int = 2) -> tuple[tuple[int, int, int], ...]:
    """Caches that stand side by side in inputs and outputs."""
    return tuple((first + i, output + i, axis) for i in range(2 * layers))


GOOD = (
    Decoder(
        "ledger",
        Ledger,
        lambda b, q, t: (_ids(b, q), _places(b, q, t), [(_rand(b, t, 2, 8), _rand(b, t, 2, 8)) for _ in range(2)]),
        ({0: ROWS, 1: QUERY}, {0: ROWS, 1: QUERY}, [({0: ROWS, 1: PAST},) * 2] * 2),
        ProgramInputs(tokens=0, positions=1, caches=_pairs(2, 1, 1)),
        97,
        (0, 0, 1, 1),
    ),
    Decoder(
        "abacus",
        Abacus,
        lambda b, q, t: (_ids(b, q), *(_rand(b, 3, t, 8) for _ in range(4))),
        ({0: ROWS, 1: QUERY}, *[{0: ROWS, 2: PAST}] * 4),
        ProgramInputs(tokens=0, caches=_pairs(1, 1, 2)),
        83,
        (0, 0, 1, 1, 2, 2),
    ),
    Decoder(
        "monocle",
        Monocle,
        lambda b, q, t: (
            {f"{name}{i}": _rand(b, t, 8) for name in ("keys", "values") for i in range(2)},
            _places(b, q, t),
            _ids(b, q),
        ),
        (
            {f"{name}{i}": {0: ROWS, 1: PAST} for name in ("keys", "values") for i in range(2)},
            *[{0: ROWS, 1: QUERY}] * 2,
        ),
        ProgramInputs(tokens=5, positions=4, caches=_pairs(0, 0, 1), logits=4),
        61,
        (0, 0, 0, 0),
    ),
    Decoder(
        "carousel",
        Carousel,
        lambda b, q, t: (_ids(b, q), [_rand(b, 2, t, 8) for _ in range(6)]),
        ({0: ROWS, 1: QUERY}, [{0: ROWS, 2: PAST}] * 6),
        ProgramInputs(tokens=0, caches=_pairs(1, 1, 2, layers=3)),
        71,
        (0, 1, 0, 1),
    ),
    Decoder(
        "prism",
        Prism,
        lambda b, q, t: (
            _ids(b, q),
            [_rand(b, t, 2, 8) for _ in range(2)],
            [_rand(b, t, 2, 8) for _ in range(2)],
            _places(b, q, t),
        ),
        ({0: ROWS, 1: QUERY}, *[[{0: ROWS, 1: PAST}] * 2] * 2, {0: ROWS, 1: QUERY}),
        ProgramInputs(tokens=0, positions=5, caches=_pairs(1, 0, 1), logits=4),
        101,
        (0, 0, 0, 1, 1, 1),
    ),
    Decoder(
        "quarry",
        Quarry,
        lambda b, q, t: (tuple((_rand(b, t, 4, 8), _rand(b, t, 4, 8)) for _ in range(2)), _ids(b, q)),
        ((({0: ROWS, 1: PAST},) * 2,) * 2, {0: ROWS, 1: QUERY}),
        ProgramInputs(tokens=4, caches=_pairs(0, 0, 1), logits=4),
        67,
        (0, 1, 2, 3),
    ),
    Decoder(
        "drawer",
        Drawer,
        lambda b, q, t: (_ids(b, q), _places(b, q, t), *(_rand(b, t, 16) for _ in range(4))),
        ({0: ROWS, 1: QUERY}, {0: ROWS, 1: QUERY}, ({0: ROWS, 1: PAST},) * 4),
        ProgramInputs(tokens=0, positions=1, caches=_pairs(2, 1, 1)),
        89,
        (0, 0, 1, 1),
    ),
)
