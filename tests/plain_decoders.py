"""A decoder with nothing unusual, and decoders that differ from it in one part, for which they must be refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from decoders import (
    PAST,
    QUERY,
    ROWS,
    Decoder,
    Refused,
    RmsNorm,
    _ids,
    _pairs,
    _places,
    _rand,
    rotate_halves,
)
from torch import Tensor, nn

from snapcc.runtime.reference import ProgramInputs


class Same(nn.Module):
    """The cached keys or values [B, H, T, D] as they are."""

    def forward(self, x: Tensor) -> Tensor:
        """[B, H, T, D]."""
        return x


class Causal(nn.Module):
    """Which of ``keys`` keys the query at each place sees."""

    def forward(self, keys: int, places: Tensor) -> Tensor:
        """places [B, Q] -> [B, 1, Q, T] bool."""
        return torch.arange(keys) <= places[:, None, :, None]


class PerWidth(nn.Module):
    """Scales the logits by 1 / sqrt(D)."""

    def forward(self, scores: Tensor) -> Tensor:
        """[B, H, Q, T]."""
        return scores * 8**-0.5


class Nothing(nn.Module):
    """What is added to attention's result [B, H, Q, D]."""

    def forward(self, values: Tensor) -> Tensor | float:
        """values [B, H, T, D]."""
        return 0.0


class Plain(nn.Module):
    """A decoder with nothing unusual; the refused ones differ from it in one part.

    Each part is a module, since torch.export names the line of the innermost ``forward``.
    """

    def __init__(
        self,
        layers: int = 2,
        keys: nn.Module | None = None,
        values: nn.Module | None = None,
        visible: nn.Module | None = None,
        scale: nn.Module | None = None,
        extra: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(61, 32)
        self.norms = nn.ModuleList(RmsNorm(32) for _ in range(layers))
        self.qkv = nn.ModuleList(nn.Linear(32, 96, bias=False) for _ in range(layers))
        self.project = nn.ModuleList(nn.Linear(32, 32, bias=False) for _ in range(layers))
        self.keys, self.values = keys or Same(), values or Same()
        self.visible, self.scale, self.extra = visible or Causal(), scale or PerWidth(), extra or Nothing()

    def forward(self, ids: Tensor, places: Tensor, caches: list[tuple[Tensor, Tensor]]) -> Any:
        """ids, places [B, Q]; caches of [B, 4, T, 8] -> logits [B, Q, 61], grown caches."""
        x, grown = self.embed(ids), []
        for norm, qkv, project, (k, v) in zip(self.norms, self.qkv, self.project, caches, strict=True):
            parts = qkv(norm(x)).view(*ids.shape, 3, 4, 8).unbind(2)
            q, new_k = (rotate_halves(part, places).transpose(1, 2) for part in parts[:2])
            k, v = torch.cat((k, new_k), 2), torch.cat((v, parts[2].transpose(1, 2)), 2)
            grown.append((k, v))
            scores = self.scale(q @ self.keys(k).transpose(2, 3))
            scores = scores.masked_fill(~self.visible(k.shape[2], places), float("-inf"))
            mixed = scores.softmax(-1) @ self.values(v) + self.extra(v)
            x = x + project(mixed.transpose(1, 2).flatten(2))
        return x @ self.embed.weight.t(), grown


class MeanOfRows(nn.Module):
    """The mean of all values."""

    def forward(self, values: Tensor) -> Tensor:
        """[B, H, T, D] -> [B, H, 1, D]."""
        return values.mean(2, keepdim=True)


class LateRotation(nn.Module):
    """Rotates the keys after the cache, each by its index in it."""

    def forward(self, keys: Tensor) -> Tensor:
        """[B, H, T, D]."""
        return rotate_halves(keys.transpose(1, 2), torch.arange(keys.shape[2])[None]).transpose(1, 2)


class RunningSum(nn.Module):
    """Running sums along the cache."""

    def forward(self, values: Tensor) -> Tensor:
        """[B, H, T, D]."""
        return torch.cumsum(values, dim=2)


class Sorted(nn.Module):
    """Each feature sorted along the cache."""

    def forward(self, keys: Tensor) -> Tensor:
        """[B, H, T, D]."""
        return torch.sort(keys, dim=2).values


class Prefix(nn.Module):
    """Every query sees the first four tokens, also those after it."""

    def forward(self, keys: int, places: Tensor) -> Tensor:
        """[B, 1, Q, T] bool."""
        key = torch.arange(keys)
        return (key <= places[:, None, :, None]) | (key < 4)


class Blurred(nn.Module):
    """A convolution along the cache."""

    def __init__(self) -> None:
        super().__init__()
        self.taps = nn.Conv1d(8, 8, kernel_size=3, padding=1, groups=8, bias=False)

    def forward(self, values: Tensor) -> Tensor:
        """[B, H, T, D]."""
        return self.taps(values.transpose(2, 3).flatten(0, 1)).unflatten(0, values.shape[:2]).transpose(2, 3)


class LogLength(nn.Module):
    """Scales the logits by the logarithm of the number of keys."""

    def forward(self, scores: Tensor) -> Tensor:
        """[B, H, Q, T]."""
        length = torch.full((), scores.shape[3], dtype=torch.float32)
        return scores * length.log() * 8**-0.5


class Newest(nn.Module):
    """The newest value, taken by its index in the cache."""

    def forward(self, values: Tensor) -> Tensor:
        """[B, H, T, D] -> [B, H, 1, D]."""
        return values[:, :, -1:]


def _plain(name: str, layers: int, **parts: Callable[[], nn.Module]) -> Decoder:
    return Decoder(
        name,
        lambda: Plain(layers, **{part: build() for part, build in parts.items()}),
        lambda b, q, t: (_ids(b, q), _places(b, q, t), [(_rand(b, 4, t, 8), _rand(b, 4, t, 8)) for _ in range(layers)]),
        ({0: ROWS, 1: QUERY}, {0: ROWS, 1: QUERY}, [({0: ROWS, 2: PAST},) * 2] * layers),
        ProgramInputs(tokens=0, positions=1, caches=_pairs(2, 1, 2, layers)),
        61,
        (0, 1, 2, 3),
    )


PLAIN = _plain("plain", 2)

REFUSED = (
    Refused(
        _plain("mean-of-rows", 1, extra=MeanOfRows),
        "a mean over the cache counts empty slots and forgets evicted ones",
        "aten.mean",
        MeanOfRows.forward,
    ),
    Refused(
        _plain("late-rotation", 1, keys=LateRotation),
        "each key is rotated by its index in the cache, which is a slot and not a position",
        "",
        LateRotation.forward,
    ),
    Refused(
        _plain("running-sum", 1, values=RunningSum),
        "a running sum depends on the order of the cache's entries",
        "aten.cumsum",
        RunningSum.forward,
    ),
    Refused(_plain("sorted", 1, keys=Sorted), "a sort moves the cache's entries", "aten.sort", Sorted.forward),
    Refused(
        _plain("prefix", 1, visible=Prefix), "the mask lets a query see tokens that come after it", "", Prefix.forward
    ),
    Refused(
        _plain("blurred", 1, values=Blurred),
        "a convolution along the cache mixes neighbouring entries",
        "aten.convolution",
        Blurred.forward,
    ),
    Refused(_plain("log-length", 1, scale=LogLength), "the number of keys scales the logits", "", LogLength.forward),
    Refused(
        _plain("newest", 1, extra=Newest),
        "an entry is taken by its index in the cache, and the newest may be in any slot",
        "aten.slice",
        Newest.forward,
    ),
)
