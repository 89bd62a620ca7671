"""Decoders written by hand that cache latents, as DeepSeek's do: expanded to keys and values after they are read."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from decoders import PAST, POSITIONS, QUERY, ROWS, Decoder, RmsNorm, _ids, _places, _rand, rotate_pairs
from torch import Tensor, nn
from torch.nn import functional

from snapcc.runtime.reference import ProgramInputs

HEADS, KEY, VALUE, ROTATED, WIDTH = 4, 8, 8, 4, 32


def angles() -> Tensor:
    """[POSITIONS, ROTATED / 2]."""
    return torch.arange(POSITIONS)[:, None] * 100.0 ** (-torch.arange(ROTATED // 2) / (ROTATED // 2))


class Loft(nn.Module):
    """Like V2: latents, normed, and rotated keys side by side in one cache [B, T, 24 + 4]; one product expands both."""

    LATENT = 24

    def __init__(self) -> None:
        super().__init__()
        self.boards = nn.Embedding(83, WIDTH)
        self.sand, self.wax = (nn.ModuleList(RmsNorm(n) for _ in range(2)) for n in (WIDTH, self.LATENT))
        self.ask = nn.ModuleList(nn.Linear(WIDTH, HEADS * (KEY + ROTATED), bias=False) for _ in range(2))
        self.down = nn.ModuleList(nn.Linear(WIDTH, self.LATENT + ROTATED, bias=False) for _ in range(2))
        self.up = nn.ModuleList(nn.Linear(self.LATENT, HEADS * (KEY + VALUE), bias=False) for _ in range(2))
        self.out = nn.ModuleList(nn.Linear(HEADS * VALUE, WIDTH, bias=False) for _ in range(2))
        self.register_buffer("angles", angles(), persistent=False)

    def forward(self, nails: Tensor, spots: Tensor, loft: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """nails, spots [B, Q]; a cache for each layer -> logits [B, Q, 83], the grown caches."""
        x, grown, turn = self.boards(nails), [], self.angles[spots]
        for sand, wax, ask, down, up, out, past in zip(
            self.sand, self.wax, self.ask, self.down, self.up, self.out, loft, strict=True
        ):
            b, n, _ = x.shape
            y = sand(x)
            q = ask(y).view(b, n, HEADS, KEY + ROTATED).transpose(1, 2)
            q = torch.cat([q[..., :KEY], rotate_pairs(q[..., KEY:], turn[:, None])], -1)
            latent, rotated = down(y).split([self.LATENT, ROTATED], -1)
            both = torch.cat([past, torch.cat([wax(latent), rotate_pairs(rotated, turn)], -1)], 1)
            grown.append(both)
            latents, rotated = both[..., : self.LATENT], both[..., self.LATENT :]
            made = up(latents).view(b, -1, HEADS, KEY + VALUE).transpose(1, 2)
            k, v = made[..., :KEY], made[..., KEY:]
            k = torch.cat([k, rotated[:, None].expand(-1, HEADS, -1, -1)], -1)
            seen = torch.arange(both.shape[1]) <= spots[:, None, :, None]
            mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)
            x = x + out(mixed.transpose(1, 2).flatten(2))
        return x @ self.boards.weight.t(), grown


class Attic(nn.Module):
    """Like V3, with a low rank for queries; latents [B, T, 6] are normed after the cache, a weight for each head."""

    LATENT = 6

    class Beam(nn.Module):
        """One layer."""

        def __init__(self, latent: int) -> None:
            super().__init__()
            self.enter, self.middle, self.dust = RmsNorm(WIDTH), RmsNorm(12), RmsNorm(latent)
            self.low = nn.Linear(WIDTH, 12, bias=False)
            self.high = nn.Linear(12, HEADS * (KEY + ROTATED), bias=False)
            self.latent = nn.Linear(WIDTH, latent, bias=False)
            self.turned = nn.Linear(WIDTH, ROTATED, bias=False)
            self.keys = nn.Parameter(torch.randn(HEADS, latent, KEY) / math.sqrt(latent))
            self.values = nn.Parameter(torch.randn(HEADS, latent, VALUE) / math.sqrt(latent))
            self.out = nn.Linear(HEADS * VALUE, WIDTH, bias=False)

        def forward(
            self, x: Tensor, turn: Tensor, spots: Tensor, entry: tuple[Tensor, Tensor]
        ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
            """x [B, Q, 32]."""
            y = self.enter(x)
            q = self.high(self.middle(self.low(y))).unflatten(-1, (HEADS, KEY + ROTATED)).transpose(1, 2)
            q = torch.cat([rotate_pairs(q[..., :ROTATED], turn[:, None]), q[..., ROTATED:]], -1)
            latents = torch.cat([entry[0], self.latent(y)], 1)
            rotated = torch.cat([entry[1], rotate_pairs(self.turned(y), turn)], 1)
            shared = self.dust(latents)[:, None]
            k = torch.cat([rotated[:, None].expand(-1, HEADS, -1, -1), shared @ self.keys], -1)
            scores = torch.einsum("bhqd,bhkd->bhqk", q, k) * (KEY + ROTATED) ** -0.5
            seen = torch.arange(latents.shape[1]) <= spots[:, None, :, None]
            weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
            return x + self.out((weights @ (shared @ self.values)).transpose(1, 2).flatten(2)), (latents, rotated)

    def __init__(self) -> None:
        super().__init__()
        self.boxes = nn.Embedding(83, WIDTH)
        self.beams = nn.ModuleList(self.Beam(self.LATENT) for _ in range(2))
        self.register_buffer("angles", angles(), persistent=False)

    def forward(
        self, boxes: Tensor, spots: Tensor, attic: Sequence[tuple[Tensor, Tensor]]
    ) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """boxes, spots [B, Q]; two caches for each layer -> logits [B, Q, 83], the grown caches."""
        x, grown, turn = self.boxes(boxes), [], self.angles[spots]
        for beam, entry in zip(self.beams, attic, strict=True):
            x, entry = beam(x, turn, spots, entry)
            grown.append(entry)
        return x @ self.boxes.weight.t(), grown


_TOKENS = {0: ROWS, 1: QUERY}

LATENT = (
    Decoder(
        "loft",
        Loft,
        lambda b, q, t: (_ids(b, q), _places(b, q, t), [_rand(b, t, Loft.LATENT + ROTATED) for _ in range(2)]),
        (_TOKENS, _TOKENS, [{0: ROWS, 1: PAST}] * 2),
        ProgramInputs(tokens=0, positions=1, caches=((2, 1, 1), (3, 2, 1))),
        83,
        (0,) * HEADS,
    ),
    Decoder(
        "attic",
        Attic,
        lambda b, q, t: (
            _ids(b, q),
            _places(b, q, t),
            [(_rand(b, t, Attic.LATENT), _rand(b, t, ROTATED)) for _ in range(2)],
        ),
        (_TOKENS, _TOKENS, [({0: ROWS, 1: PAST},) * 2] * 2),
        ProgramInputs(tokens=0, positions=1, caches=((2, 1, 1), (3, 2, 1), (4, 3, 1), (5, 4, 1))),
        83,
        (0,) * HEADS,
    ),
)
