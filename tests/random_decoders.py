"""Decoders made at random: how attention is written is drawn, part by part, by hypothesis.

Everything that can be drawn is provable, so each must compile and equal the oracle; what is not is kept out here, with
its reason.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from decoders import PAST, POSITIONS, QUERY, ROWS, Decoder, RmsNorm, _ids, _places, _rand, rotate_pairs
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from snapcc.compiler.dialect.policy import Policy
from snapcc.runtime.reference import ProgramInputs

Layout = Literal["bhtd", "bthd", "tbhd", "bhdt", "btf"]
VOCABULARY, WIDTH = 61, 24


@dataclass(frozen=True)
class Plan:
    """What a decoder does; ``reaches`` has per layer 0 (all tokens), a window, or a chunk as a negative number.

    ``layout``: the dimensions of a cache, rows, heads, tokens and features (``f``: heads and features together).
    ``joined``: keys and values in one tensor, along a new first dimension. ``counted``: positions come from the cache's
    length and are no input.
    """

    reaches: tuple[int, ...]
    kv_heads: int
    group: int
    features: int
    layout: Layout
    joined: bool
    grouping: Literal["expand", "interleave", "tile", "broadcast", "einsum", "index", "product"]
    fused: bool
    mask: Literal["where", "fill", "add", "keep"]
    softcap: float
    extra: Literal["", "sinks", "alibi"]
    positions: Literal["none", "learned", "rotary", "partial"]
    counted: bool
    bias: bool
    qk_norm: bool
    value_norm: bool
    parallel: bool
    last: bool
    wide: bool
    policy: Policy

    @property
    def heads(self) -> int:
        """The query heads."""
        return self.kv_heads * self.group


PLAINEST = Plan(
    reaches=(0,),
    kv_heads=2,
    group=2,
    features=8,
    layout="bhtd",
    joined=False,
    grouping="expand",
    fused=True,
    mask="keep",
    softcap=0.0,
    extra="",
    positions="rotary",
    counted=False,
    bias=False,
    qk_norm=False,
    value_norm=False,
    parallel=False,
    last=False,
    wide=False,
    policy=Policy(2, 8, 4, 4),
)
"""A plan with nothing unusual, for what differs from it in one place."""


def _consistent(plan: Plan) -> bool:
    # PyTorch's fused op has neither, and a bias along the keys moves a sink's distance from them: refused
    return not (plan.fused and (plan.softcap or plan.extra == "sinks"))


def plans() -> st.SearchStrategy[Plan]:
    """All plans."""
    policies = st.builds(
        lambda sink, recent, topk, pool, score: Policy(sink, recent, topk, min(4, recent), *pool, score),
        st.integers(0, 3),
        st.integers(4, 9),
        st.integers(0, 5),
        st.sampled_from([("avg", 5), ("max", 3), ("none", 1)]),
        st.sampled_from(["candidates", "all"]),
    )
    return st.builds(
        Plan,
        reaches=st.lists(st.sampled_from([0, 0, 5, 17, -4, -16]), min_size=1, max_size=2).map(tuple),
        kv_heads=st.integers(1, 3),
        group=st.integers(1, 3),
        features=st.sampled_from([4, 8]),
        layout=st.sampled_from(["bhtd", "bthd", "tbhd", "bhdt", "btf"]),
        joined=st.booleans(),
        grouping=st.sampled_from(["expand", "interleave", "tile", "broadcast", "einsum", "index", "product"]),
        fused=st.booleans(),
        mask=st.sampled_from(["where", "fill", "add", "keep"]),
        softcap=st.sampled_from([0.0, 2.0]),
        extra=st.sampled_from(["", "", "sinks", "alibi"]),
        positions=st.sampled_from(["none", "learned", "rotary", "partial"]),
        counted=st.booleans(),
        bias=st.booleans(),
        qk_norm=st.booleans(),
        value_norm=st.booleans(),
        parallel=st.booleans(),
        last=st.booleans(),
        wide=st.booleans(),
        policy=policies,
    ).filter(_consistent)


class Drawn(nn.Module):
    """A decoder as a plan says."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.plan = plan
        layers, inner, kept = len(plan.reaches), plan.heads * plan.features, plan.kv_heads * plan.features
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        if plan.positions == "learned":
            self.places = nn.Embedding(POSITIONS, WIDTH)
        self.norms = nn.ModuleList(RmsNorm(WIDTH) for _ in range(2 * layers))
        self.of_heads = nn.ModuleList(RmsNorm(plan.features) for _ in range(3 * layers))
        self.qkv = nn.ModuleList(nn.Linear(WIDTH, inner + 2 * kept, bias=plan.bias) for _ in range(layers))
        self.out = nn.ModuleList(nn.Linear(inner, WIDTH, bias=plan.bias) for _ in range(layers))
        self.mlp = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(layers))
        self.sinks = nn.ParameterList(torch.randn(plan.heads) for _ in range(layers))
        self.register_buffer("slopes", 2.0 ** -torch.arange(1.0, plan.heads + 1), persistent=False)
        index = torch.arange(plan.kv_heads)
        tiled = plan.layout in ("tbhd", "btf")
        self.register_buffer("owner", index.repeat(plan.group) if tiled else index.repeat_interleave(plan.group))

    def turn(self, x: Tensor, at: Tensor) -> Tensor:
        """Positions into [B, Q, H, D]; at [B or 1, Q]."""
        width = {"rotary": self.plan.features, "partial": self.plan.features // 2}.get(self.plan.positions, 0)
        if not width:
            return x
        angle = at[:, :, None, None] * 100.0 ** (-torch.arange(width // 2) / (width // 2))
        return torch.cat((rotate_pairs(x[..., :width], angle), x[..., width:]), -1)

    def stored(self, x: Tensor) -> Tensor:
        """[B, Q, H, D] in the cache's layout."""
        if self.plan.layout == "btf":
            return x.flatten(2)
        return x.permute(["bthd".index(letter) for letter in self.plan.layout])

    def read(self, x: Tensor) -> Tensor:
        """The cache as [B, H, T, D]."""
        if self.plan.layout == "btf":
            return x.unflatten(2, (self.plan.kv_heads, self.plan.features)).transpose(1, 2)
        return x.permute([self.plan.layout.index(letter) for letter in "bhtd"])

    def spread(self, x: Tensor) -> Tensor:
        """[B, H, T, D] for each query head, [B, H * G, T, D]."""
        plan = self.plan
        if plan.grouping == "index":
            return x[:, self.owner]
        if plan.grouping == "product":
            return torch.einsum("gh,bhtd->bgtd", functional.one_hot(self.owner, plan.kv_heads).to(x.dtype), x)
        if plan.grouping == "tile":
            return x.repeat(1, plan.group, 1, 1)
        if plan.grouping == "interleave":
            return x.repeat_interleave(plan.group, 1)
        return x[:, :, None].expand(-1, -1, plan.group, -1, -1).flatten(1, 2)

    def visible(self, keys: int, at: Tensor, reach: int) -> Tensor:
        """at [B or 1, Q] -> [B or 1, 1, Q, T] bool."""
        key, query = torch.arange(keys), at[:, None, :, None]
        seen = key <= query
        if reach > 0:
            seen = seen & (query - key < reach)
        elif reach < 0:
            seen = seen & (key // -reach == query // -reach)
        return seen

    def attend(self, i: int, q: Tensor, k: Tensor, v: Tensor, at: Tensor) -> Tensor:
        """q [B, H * G, Q, D], k and v [B, H, T, D] -> [B, H * G, Q, D]."""
        plan = self.plan
        seen = self.visible(k.shape[2], at, plan.reaches[i])
        added = torch.zeros(()).expand(seen.shape).masked_fill(~seen, -1e9 if plan.mask == "add" else -math.inf)
        if plan.extra == "alibi":
            distance = torch.arange(k.shape[2]) - at[:, None, :, None]
            added = torch.where(seen, distance * self.slopes.view(-1, 1, 1), added)
        if plan.fused:
            mask = seen if plan.mask in ("keep", "where") and plan.extra != "alibi" else added
            k, v = self.spread(k), self.spread(v)
            return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=0.4)
        apart = plan.grouping in ("broadcast", "einsum")
        if apart:
            grouped = q.unflatten(1, (plan.kv_heads, plan.group))
            if plan.grouping == "einsum":
                scores = torch.einsum("bhgqd,bhtd->bhgqt", grouped, k).flatten(1, 2)
            else:
                scores = (grouped @ k.unsqueeze(2).mT).flatten(1, 2)
        else:
            k, v = self.spread(k), self.spread(v)
            scores = q @ k.mT
        scores = scores * 0.4
        if plan.softcap:
            scores = plan.softcap * torch.tanh(scores / plan.softcap)
        if plan.mask == "add" or plan.extra == "alibi":
            scores = scores + added
        elif plan.mask == "fill":
            scores = scores.masked_fill(~seen, torch.finfo(scores.dtype).min)
        else:
            scores = torch.where(seen, scores, -math.inf)
        if plan.extra == "sinks":
            column = self.sinks[i].view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
            shares = torch.cat((scores, column), -1).softmax(-1)[..., :-1]
        else:
            shares = scores.softmax(-1, dtype=torch.float32 if plan.wide else None)
        if not apart:
            return shares @ v
        shares = shares.unflatten(1, (plan.kv_heads, plan.group))
        if plan.grouping == "einsum":
            return torch.einsum("bhgqt,bhtd->bhgqd", shares, v).flatten(1, 2)
        return (shares @ v.unsqueeze(2)).flatten(1, 2)

    def forward(self, ids: Tensor, at: Tensor, caches: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """ids [B, Q], at [B or 1, Q] -> logits [B, Q or 1, V], the grown caches."""
        plan, axis = self.plan, _token_axis(self.plan)
        x, grown = self.words(ids), []
        if plan.positions == "learned":
            x = x + self.places(at)
        for i in range(len(plan.reaches)):
            y = self.norms[2 * i](x)
            kept = plan.kv_heads * plan.features
            parts = self.qkv[i](y).split((kept * plan.group, kept, kept), -1)
            q, k, v = (part.unflatten(-1, (-1, plan.features)) for part in parts)
            if plan.qk_norm:
                q, k = self.of_heads[3 * i](q), self.of_heads[3 * i + 1](k)
            q, k = self.turn(q, at), self.turn(k, at)
            new = [self.stored(k), self.stored(v)]
            if plan.joined:
                both = torch.cat((caches[i], torch.stack(new)), axis)
                grown.append(both)
                k, v = both.unbind(0)
            else:
                k, v = (torch.cat((old, part), axis) for old, part in zip(caches[2 * i : 2 * i + 2], new, strict=True))
                grown += [k, v]
            k, v = self.read(k), self.read(v)
            if plan.value_norm:
                v = self.of_heads[3 * i + 2](v)
            mixed = self.attend(i, q.transpose(1, 2), k, v, at).transpose(1, 2).flatten(2)
            x = x + self.out[i](mixed)
            x = x + torch.tanh(self.mlp[i](y if plan.parallel else self.norms[2 * i + 1](x)))
        return (x[:, -1:] if plan.last else x) @ self.words.weight.t(), grown


class Counted(Drawn):
    """Counts its positions from the length of its first cache."""

    def forward(self, ids: Tensor, caches: list[Tensor]) -> tuple[Tensor, list[Tensor]]:  # type: ignore[override]
        """As ``Drawn``."""
        past = caches[0].shape[_token_axis(self.plan)]
        return super().forward(ids, torch.arange(past, past + ids.shape[1])[None], caches)


def _token_axis(plan: Plan) -> int:
    return plan.layout.index("t") + plan.joined


def drawn(plan: Plan) -> Decoder:
    """The decoder of a plan."""
    axis, count = _token_axis(plan), len(plan.reaches) * (1 if plan.joined else 2)
    extents = {"h": plan.kv_heads, "d": plan.features, "f": plan.kv_heads * plan.features}

    def cache(b: int, t: int) -> Tensor:
        shape = [{"b": b, "t": t}.get(letter, extents.get(letter, 0)) for letter in plan.layout]
        return _rand(*([2] if plan.joined else []), *shape)

    def arguments(b: int, q: int, t: int) -> tuple[Any, ...]:
        places = () if plan.counted else (_places(b, q, t),)
        return _ids(b, q), *places, [cache(b, t) for _ in range(count)]

    tokens = {0: ROWS, 1: QUERY}
    grown = {plan.layout.index("b") + plan.joined: ROWS, axis: PAST}
    shapes = (tokens, *(() if plan.counted else (tokens,)), [grown] * count)
    first = 1 if plan.counted else 2
    caches = tuple((first + i, 1 + i, axis) for i in range(count))
    inputs = ProgramInputs(tokens=0, positions=None if plan.counted else 1, caches=caches)
    build = Counted if plan.counted else Drawn
    return Decoder(repr(plan), lambda: build(plan), arguments, shapes, inputs, VOCABULARY)
