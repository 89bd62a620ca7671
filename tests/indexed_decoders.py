"""Decoders written by hand whose attention sees the keys that an index chooses, as DeepSeek's sparse attention does."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from decoders import PAST, QUERY, ROWS, Decoder, Refused, RmsNorm, _ids, _places, _rand, rotate_halves
from torch import Tensor, nn

from snapcc.runtime.reference import ProgramInputs

HEADS, KV_HEADS, WIDTH, LATENT, CHOSEN = 4, 2, 8, 32, 6


class Concordance(nn.Module):
    """Keys of an index in a cache of their own, [B, T, 6]; the second layer sees what the first layer's index chose."""

    INDEX, VOICES = 6, 12

    class Leaf(nn.Module):
        """One layer."""

        def __init__(self) -> None:
            super().__init__()
            self.norm = RmsNorm(LATENT)
            self.q = nn.Linear(LATENT, HEADS * WIDTH, bias=False)
            self.k, self.v = (nn.Linear(LATENT, KV_HEADS * WIDTH, bias=False) for _ in range(2))
            self.o = nn.Linear(HEADS * WIDTH, LATENT, bias=False)

        def forward(
            self, y: Tensor, places: Tensor, past: Sequence[Tensor], hidden: Tensor
        ) -> tuple[Tensor, list[Tensor]]:
            """y [B, Q, 32]; hidden [B, Q, T] to add to the logits."""
            b, n, _ = y.shape
            q = rotate_halves(self.q(y).view(b, n, HEADS, WIDTH), places).transpose(1, 2)
            k = rotate_halves(self.k(y).view(b, n, KV_HEADS, WIDTH), places).transpose(1, 2)
            v = self.v(y).view(b, n, KV_HEADS, WIDTH).transpose(1, 2)
            grown = [torch.cat([old, new], 2) for old, new in zip(past, (k, v), strict=True)]
            k, v = (x.repeat_interleave(HEADS // KV_HEADS, 1) for x in grown)
            weights = torch.softmax(q @ k.transpose(2, 3) / math.sqrt(WIDTH) + hidden[:, None], -1)
            return self.o((weights @ v).transpose(1, 2).flatten(2)), grown

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(83, LATENT)
        self.leaves = nn.ModuleList(self.Leaf() for _ in range(2))
        self.voices = nn.Linear(LATENT, self.VOICES * self.INDEX, bias=False)
        self.entry = nn.Linear(LATENT, self.INDEX, bias=False)
        self.weigh = nn.Linear(LATENT, self.VOICES, bias=False)

    def chosen(self, y: Tensor, places: Tensor, entries: Tensor, seen: Tensor) -> Tensor:
        """y [B, Q, 32], entries [B, T, 6], seen [B, Q, T] -> 0 where a key is chosen, else -inf."""
        voices = rotate_halves(self.voices(y).unflatten(-1, (self.VOICES, self.INDEX)), places)
        scores = torch.relu(torch.einsum("bqid,btd->bqit", voices, entries))
        scores = torch.einsum("bqit,bqi->bqt", scores, self.weigh(y)).masked_fill(~seen, -math.inf)
        best = scores.topk(torch.sym_min(entries.shape[1], CHOSEN), -1).indices
        return torch.full_like(scores, -math.inf).scatter(-1, best, 0.0)

    def forward(self, words: Tensor, places: Tensor, index: Tensor, pages: list[tuple[Tensor, Tensor]]) -> Any:
        """words, places [B, Q]; the index's keys and two layers' keys and values -> logits [B, Q, 83], all grown."""
        x, hidden, grown = self.words(words), None, []
        for leaf, past in zip(self.leaves, pages, strict=True):
            y = leaf.norm(x)
            if hidden is None:
                # rotated, so that a token that comes twice has two scores
                index = torch.cat([index, rotate_halves(self.entry(y)[:, :, None], places)[:, :, 0]], 1)
                seen = torch.arange(index.shape[1]) <= places[:, :, None]
                hidden = self.chosen(y, places, index, seen) + torch.where(seen, 0.0, -1e9)
            more, new = leaf(y, places, past, hidden)
            grown.append(tuple(new))
            x = x + more
        return x @ self.words.weight.t(), index, grown


class Sieve(nn.Module):
    """No cache of its own for the index: the keys of all heads together choose, and what is chosen is a bool mask."""

    def __init__(self) -> None:
        super().__init__()
        self.grain = nn.Embedding(83, LATENT)
        self.norm = RmsNorm(LATENT)
        self.qkv = nn.Linear(LATENT, 3 * HEADS * WIDTH, bias=False)
        self.o = nn.Linear(HEADS * WIDTH, LATENT, bias=False)

    def kept(self, q: Tensor, k: Tensor, seen: Tensor) -> Tensor:
        """q [B, Q, H, D], k [B, T, H, D], seen [B, Q, T] -> [B, 1, Q, T], true where a key is chosen."""
        scores = (q.flatten(2) @ k.flatten(2).transpose(1, 2)).where(seen, -math.inf).transpose(1, 2)
        best = scores.topk(torch.sym_min(k.shape[1], CHOSEN), dim=1, sorted=False)[1]
        kept = torch.zeros_like(scores, dtype=torch.bool).scatter(1, best, True)
        return (kept.transpose(1, 2) & seen)[:, None]

    def forward(self, k_past: Tensor, v_past: Tensor, grain: Tensor, places: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Caches [B, T, H, D]; grain, places [B, Q] -> the grown caches, logits [B, Q, 83]."""
        x = self.grain(grain)
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, HEADS, WIDTH)).unbind(2)
        q, k = (rotate_halves(y, places) for y in (q, k))
        k, v = torch.cat([k_past, k], 1), torch.cat([v_past, v], 1)
        kept = self.kept(q, k, torch.arange(k.shape[1]) <= places[:, :, None])
        logits = torch.einsum("bqhd,bthd->bhqt", q, k) / math.sqrt(WIDTH)
        weights = torch.softmax(logits.masked_fill(~kept, torch.finfo(x.dtype).min), -1)
        x = x + self.o(torch.einsum("bhqt,bthd->bqhd", weights, v).flatten(2))
        return k, v, x @ self.grain.weight.t()


class EachHead(Sieve):
    """Each head chooses keys of its own."""

    def kept(self, q: Tensor, k: Tensor, seen: Tensor) -> Tensor:
        """[B, H, Q, T]."""
        scores = torch.einsum("bqhd,bthd->bhqt", q, k).where(seen[:, None], -math.inf)
        best = scores.topk(torch.sym_min(k.shape[1], CHOSEN), -1).indices
        return torch.zeros_like(scores, dtype=torch.bool).scatter(-1, best, True)


class Counted(Sieve):
    """What is chosen is looked at as a number: the place of a key."""

    def kept(self, q: Tensor, k: Tensor, seen: Tensor) -> Tensor:
        """[B, 1, Q, T]."""
        scores = (q.flatten(2) @ k.flatten(2).transpose(1, 2)).where(seen, -math.inf)
        best = scores.topk(1, -1).indices
        return ((torch.arange(k.shape[1]) <= best) & seen)[:, None]


class Unmasked(Sieve):
    """The index chooses among keys that are yet to come too."""

    def kept(self, q: Tensor, k: Tensor, seen: Tensor) -> Tensor:
        """[B, 1, Q, T]."""
        return super().kept(q, k, torch.ones_like(seen)) & seen[:, None]


class Smallest(Sieve):
    """The keys with the smallest scores are chosen."""

    def kept(self, q: Tensor, k: Tensor, seen: Tensor) -> Tensor:
        """[B, 1, Q, T]."""
        scores = (q.flatten(2) @ k.flatten(2).transpose(1, 2)).where(seen, math.inf)
        best = scores.topk(torch.sym_min(k.shape[1], CHOSEN), -1, largest=False).indices
        return torch.zeros_like(scores, dtype=torch.bool).scatter(-1, best, True)[:, None]


_TOKENS = {0: ROWS, 1: QUERY}
_PAIR = ({0: ROWS, 2: PAST},) * 2


def _sieve(name: str, build: type[Sieve]) -> Decoder:
    return Decoder(
        name,
        build,
        lambda b, q, t: (_rand(b, t, HEADS, WIDTH), _rand(b, t, HEADS, WIDTH), _ids(b, q), _places(b, q, t)),
        ({0: ROWS, 1: PAST}, {0: ROWS, 1: PAST}, _TOKENS, _TOKENS),
        ProgramInputs(tokens=2, positions=3, caches=((0, 0, 1), (1, 1, 1)), logits=2),
        83,
        (0,) * HEADS,
    )


INDEXED = (
    Decoder(
        "concordance",
        Concordance,
        lambda b, q, t: (
            _ids(b, q),
            _places(b, q, t),
            _rand(b, t, Concordance.INDEX),
            [(_rand(b, KV_HEADS, t, WIDTH), _rand(b, KV_HEADS, t, WIDTH)) for _ in range(2)],
        ),
        (_TOKENS, _TOKENS, {0: ROWS, 1: PAST}, [_PAIR, _PAIR]),
        ProgramInputs(tokens=0, positions=1, caches=((2, 1, 1), (3, 2, 2), (4, 3, 2), (5, 4, 2), (6, 5, 2))),
        83,
        (0,) * HEADS,
    ),
    _sieve("sieve", Sieve),
)

NO_INDEX = (
    Refused(_sieve("each_head", EachHead), "an index chooses other keys for other heads", "", Sieve.forward),
    Refused(_sieve("counted", Counted), "the indices of the keys that an index chooses are used", "", Sieve.forward),
    Refused(_sieve("unmasked", Unmasked), "is not plainly causal", "", Sieve.forward),
    Refused(_sieve("smallest", Smallest), "the keys with the smallest scores are chosen", "", Sieve.forward),
)
