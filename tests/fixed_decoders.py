"""Decoders written by hand whose caches have a fixed length, for the tests of every room.

Each takes one token of each row and returns its caches at the length that they came in with, or, ``snapshot``, one
entry longer. ``FIXED`` are those that may be replaced by slots; ``REFUSED_FIXED`` are those where that is not provable.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from decoders import PerWidth, RmsNorm, rotate_halves, seeded
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

LENGTH = 14  # entries of each cache
ROWS = Dim("rows", min=1, max=64)


class Behind(nn.Module):
    """Joined behind the past; the caller cuts the cache."""

    def forward(self, cache: Tensor, new: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        """cache [B, H, T, D], new [B, H, 1, D] -> what attention reads, what is returned."""
        grown = torch.cat([cache, new], 2)
        return grown, grown


class SliceAndJoin(nn.Module):
    """The oldest is cut off before the new one is joined."""

    def forward(self, cache: Tensor, new: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        """As ``Behind``."""
        kept = torch.cat((cache[:, :, 1:], new), dim=2)
        return kept, kept


class JoinAndSlice(nn.Module):
    """Attention sees past and new; the oldest is cut off on return."""

    def forward(self, cache: Tensor, new: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        """As ``Behind``."""
        grown = torch.cat((cache, new), dim=2)
        return grown, grown[:, :, 1:]


class RollAndWrite(nn.Module):
    """Rolled by one, the new one written at the end."""

    def forward(self, cache: Tensor, new: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        """As ``Behind``."""
        rolled = torch.roll(cache, -1, 2)
        rolled[:, :, -1:] = new
        return rolled, rolled


class Assign(nn.Module):
    """``cache[:, :, position] = new``, in place, one start for all rows."""

    def forward(self, cache: Tensor, new: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        """As ``Behind``."""
        cache[:, :, places.view(1)] = new
        return cache, cache


class AssignRows(nn.Module):
    """``cache[row, :, position] = new``, each row at its own position."""

    def forward(self, cache: Tensor, new: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        """As ``Behind``."""
        cache = cache.clone()
        cache[torch.arange(cache.shape[0]), :, places.view(-1)] = new.squeeze(2)
        return cache, cache


class IndexCopy(nn.Module):
    """``index_copy`` at a 0-d position."""

    def forward(self, cache: Tensor, new: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        """As ``Behind``."""
        cache = cache.index_copy(2, places.reshape(()), new)
        return cache, cache


class Scatter(nn.Module):
    """``scatter`` of the new rows, each row of the batch at its own position."""

    def forward(self, cache: Tensor, new: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        """As ``Behind``."""
        cache = torch.scatter(cache, 2, places.view(-1, 1, 1, 1).expand_as(new), new)
        return cache, cache


class OneHot(nn.Module):
    """Selected by a mask of one place."""

    def forward(self, cache: Tensor, new: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        """As ``Behind``."""
        here = torch.arange(cache.shape[2]) == places.view(-1, 1)
        cache = torch.where(here[:, None, :, None], new, cache)
        return cache, cache


class Wrapped(nn.Module):
    """Written at the position modulo the length."""

    def forward(self, cache: Tensor, new: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        """As ``Behind``."""
        cache = cache.index_copy(2, places.view(1) % cache.shape[2], new)
        return cache, cache


class First(nn.Module):
    """Written at index 0, whatever the position."""

    def forward(self, cache: Tensor, new: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        """As ``Behind``."""
        cache = torch.slice_scatter(cache, new, 2, 0, 1)
        return cache, cache


class Late(nn.Module):
    """Written one place behind the position."""

    def forward(self, cache: Tensor, new: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        """As ``Behind``."""
        cache = torch.index_copy(cache, 2, places.view(1) + 1, new)
        return cache, cache


class BesideOld(nn.Module):
    """Attention reads the old cache beside the new one."""

    def forward(self, cache: Tensor, new: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        """As ``Behind``."""
        written = cache.index_copy(2, places.view(1), new)
        return torch.cat([cache, new], 2) * 0.5, written


class UpTo(nn.Module):
    """Indices up to the position."""

    def forward(self, length: int, places: Tensor) -> Tensor:
        """places [B] or [1] -> which of ``length`` entries are seen, [B or 1, 1, 1, T] bool."""
        return torch.arange(length) <= places.view(-1, 1, 1, 1)


class Latest(nn.Module):
    """As many of the last entries as there are tokens."""

    def forward(self, length: int, places: Tensor) -> Tensor:
        """As ``UpTo``."""
        return torch.arange(length) >= length - 1 - places.view(-1, 1, 1, 1)


class Everything(nn.Module):
    """All entries."""

    def forward(self, length: int, places: Tensor) -> Tensor:
        """As ``UpTo``."""
        return torch.ones(1, 1, 1, length, dtype=torch.bool)


class Before(nn.Module):
    """Indices before the position: the newest token is hidden."""

    def forward(self, length: int, places: Tensor) -> Tensor:
        """As ``UpTo``."""
        return torch.arange(length) < places.view(-1, 1, 1, 1)


class Window(nn.Module):
    """The last five tokens."""

    def forward(self, length: int, places: Tensor) -> Tensor:
        """As ``UpTo``."""
        key = torch.arange(length)
        return (key <= places.view(-1, 1, 1, 1)) & (key > places.view(-1, 1, 1, 1) - 5)


class ByPlace(nn.Module):
    """The position as the program takes it."""

    def forward(self, places: Tensor, cache: Tensor) -> Tensor:
        """places [B], [B, 1] or [1] -> positions for the rotation, [B or 1, 1]."""
        return places.view(-1, 1)


class ByLength(nn.Module):
    """The position taken from the cache's length."""

    def forward(self, places: Tensor, cache: Tensor) -> Tensor:
        """As ``ByPlace``."""
        return torch.full((1, 1), cache.shape[2])


class LogLength(nn.Module):
    """Scales the logits by a number made of the cache's length."""

    def forward(self, scores: Tensor) -> Tensor:
        """[B, H, 1, T]."""
        return scores * torch.tensor(float(scores.shape[-1])).log() * 8**-0.5


class Kept(nn.Module):
    """Two layers, four heads; how it takes the new token in and what it sees are parts."""

    def __init__(
        self,
        take: type[nn.Module],
        visible: type[nn.Module] = UpTo,
        turn: type[nn.Module] = ByPlace,
        scale: type[nn.Module] = PerWidth,
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(61, 32)
        self.norms = nn.ModuleList(RmsNorm(32) for _ in range(2))
        self.qkv = nn.ModuleList(nn.Linear(32, 96, bias=False) for _ in range(2))
        self.project = nn.ModuleList(nn.Linear(32, 32, bias=False) for _ in range(2))
        self.take, self.visible, self.turn, self.scale = take(), visible(), turn(), scale()

    def forward(self, ids: Tensor, places: Tensor, caches: list[tuple[Tensor, Tensor]]) -> Any:
        """ids [B, 1], places; caches of [B, 4, T, 8] -> logits [B, 1, 61], caches."""
        x, after = self.embed(ids), []
        for norm, qkv, project, (k, v) in zip(self.norms, self.qkv, self.project, caches, strict=True):
            parts = qkv(norm(x)).view(*ids.shape, 3, 4, 8).unbind(2)
            q, new = (rotate_halves(part, self.turn(places, k)).transpose(1, 2) for part in parts[:2])
            k, kept_k = self.take(k, new, places)
            v, kept_v = self.take(v, parts[2].transpose(1, 2), places)
            after.append((kept_k, kept_v))
            scores = self.scale(q @ k.transpose(2, 3))
            scores = scores.masked_fill(~self.visible(k.shape[2], places), float("-inf"))
            x = x + project((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
        return x @ self.embed.weight.t(), after


class Buffered(nn.Module):
    """Keeps its caches and its step counter in buffers; the batch is fixed."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Kept(IndexCopy)
        for i in range(4):
            self.register_buffer(f"cache_{i}", torch.zeros(3, 4, LENGTH, 8), persistent=False)
        self.register_buffer("step", torch.zeros(1, dtype=torch.int64))

    def forward(self, ids: Tensor) -> Tensor:
        """ids [3, 1] -> logits [3, 1, 61]."""
        held = [getattr(self, f"cache_{i}") for i in range(4)]
        logits, after = self.inner(ids, self.step, [(held[0], held[1]), (held[2], held[3])])
        for cache, new in zip(held, (*after[0], *after[1]), strict=True):
            cache.copy_(new)
        self.step += 1
        return logits


def buffered() -> ExportedProgram:
    """The program of ``Buffered``."""
    return torch.export.export(seeded(Buffered), (torch.zeros(3, 1, dtype=torch.int64),), strict=False)


@dataclass(frozen=True)
class Fixed:
    """A decoder of fixed length and what a test needs to know about it.

    Attributes:
        name: for test ids.
        parts: those of ``Kept``.
        places: the shape of its positions; -1 stands for the rows.
        length: entries of a cache that comes in.
        slots: what it dictates.
    """

    name: str
    take: type[nn.Module]
    parts: dict[str, type[nn.Module]] = field(default_factory=dict)
    places: tuple[int, ...] = (-1,)
    length: int = LENGTH
    slots: int = LENGTH

    def module(self) -> nn.Module:
        """The seeded module, ready for inference."""
        return seeded(lambda: Kept(self.take, **self.parts))

    def program(self, rows: int | None = None) -> ExportedProgram:
        """The module's program, with a symbolic batch or one of ``rows``."""
        batch = rows or 2
        arguments = (
            torch.arange(batch)[:, None],
            torch.full([batch if extent < 0 else extent for extent in self.places], 3),
            [tuple(torch.randn(batch, 4, self.length, 8) for _ in range(2)) for _ in range(2)],
        )
        batched = None if rows else {0: ROWS}
        shapes = (batched, batched if -1 in self.places else None, [(batched, batched)] * 2)
        return torch.export.export(self.module(), arguments, dynamic_shapes=shapes, strict=False)


FIXED = (
    Fixed("behind", Behind, slots=LENGTH + 1),
    Fixed("slice-and-join", SliceAndJoin, {"visible": Latest}),
    Fixed("join-and-slice", JoinAndSlice, {"visible": Everything}, slots=LENGTH + 1),
    Fixed("roll-and-write", RollAndWrite, {"visible": Latest}, (-1, 1)),
    Fixed("assign", Assign, places=(1,)),
    Fixed("assign-rows", AssignRows),
    Fixed("index-copy", IndexCopy, places=()),
    Fixed("scatter", Scatter, places=(-1, 1)),
    Fixed("one-hot", OneHot),
)


@dataclass(frozen=True)
class RefusedFixed:
    """A decoder that must be refused.

    Attributes:
        decoder: the decoder itself.
        because: words of the refusal.
        place: the method whose lines the refusal names.
    """

    decoder: Fixed
    because: str
    place: Callable[..., Any]

    @property
    def lines(self) -> tuple[str, range]:
        """File and lines of ``place``."""
        body, first = inspect.getsourcelines(self.place)
        return inspect.getsourcefile(self.place) or "", range(first, first + len(body))


REFUSED_FIXED = (
    RefusedFixed(Fixed("first", First), "neither behind the past ones nor at the index", First.forward),
    RefusedFixed(Fixed("late", Late, places=(1,)), "neither behind the past ones nor at the index", Late.forward),
    RefusedFixed(Fixed("beside-old", BesideOld, places=(1,)), "reads the cache .* as it was before", BesideOld.forward),
    RefusedFixed(Fixed("newest-hidden", Scatter, {"visible": Before}), "does not see key 0", Kept.forward),
    RefusedFixed(Fixed("window", Scatter, {"visible": Window}), "does not see key 0", Kept.forward),
    RefusedFixed(Fixed("stale-seen", Scatter, {"visible": Everything}), "sees key 1", Kept.forward),
    RefusedFixed(Fixed("by-length", Behind, {"turn": ByLength}), "takes the number 14", Kept.forward),
    RefusedFixed(Fixed("log-length", Behind, {"scale": LogLength}), "may have been made of that length", Kept.forward),
)
