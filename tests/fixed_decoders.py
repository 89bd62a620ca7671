"""Decoders written by hand whose caches have a fixed length, for the tests of every room.

Each takes one token of each row and returns its caches at the length that they came in with, or, ``snapshot``, one
entry longer. ``FIXED`` are those that may be replaced by slots; ``REFUSED_FIXED`` are those where that is not provable.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from decoders import RmsNorm, rotate_halves, seeded
from plain_decoders import PerWidth
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from snapcc.runtime.reference import ProgramInputs

LENGTH = 14  # entries of each cache
ROWS = Dim("rows", min=1, max=64)

_PROGRAMS: dict[tuple[str, int | None], ExportedProgram] = {}


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


class Grid(nn.Module):
    """``index_put`` at a grid of indices for all four dimensions."""

    def forward(self, cache: Tensor, new: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        """As ``Behind``."""
        rows, heads, features = (torch.arange(n) for n in new.shape[:2] + new.shape[3:])
        grid = (rows[:, None, None, None], heads[:, None, None], places.view(-1, 1, 1, 1), features)
        cache = torch.index_put(cache, [index.expand(new.shape) for index in grid], new)
        return cache, cache


class OneHot(nn.Module):
    """Selected by a mask of one place."""

    def forward(self, cache: Tensor, new: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        """As ``Behind``."""
        here = torch.arange(cache.shape[2]) == places.view(-1, 1)
        cache = torch.where(here[:, None, :, None], new, cache)
        return cache, cache


def item(places: Tensor, length: int) -> int:
    """The position as a Python number, of which torch.export is told that it lies in the cache."""
    at: Any = places.item()
    torch._check(at >= 0)
    torch._check(at < length)
    return at


class Narrow(nn.Module):
    """``narrow(position.item()).copy_(new)``."""

    def forward(self, cache: Tensor, new: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        """As ``Behind``."""
        cache.narrow(2, item(places, cache.shape[2]), 1).copy_(new)
        return cache, cache


class Select(nn.Module):
    """``select(position.item()).copy_(new)``."""

    def forward(self, cache: Tensor, new: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        """As ``Behind``."""
        cache = cache.clone()
        cache.select(2, item(places, cache.shape[2])).copy_(new.squeeze(2))
        return cache, cache


class SliceScatter(nn.Module):
    """``slice_scatter`` at ``position.item()``."""

    def forward(self, cache: Tensor, new: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        """As ``Behind``."""
        at = item(places, cache.shape[2])
        cache = torch.slice_scatter(cache, new, 2, at, at + 1)
        return cache, cache


class Between(nn.Module):
    """The new one joined between what is before its place and behind it."""

    def forward(self, cache: Tensor, new: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        """As ``Behind``."""
        at = item(places, cache.shape[2])
        cache = torch.cat([cache[:, :, :at], new, cache[:, :, at + 1 :]], 2)
        return cache, cache


class ShiftWhenFull(nn.Module):
    """Written at the position until the cache is full; from then on the oldest is cut off, by a start that is read."""

    def forward(self, cache: Tensor, new: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        """As ``Behind``."""
        length = cache.shape[2]
        drop = item((places - (length - 1)).clamp(0, 1), 2)
        at = item(places.clamp(max=length - 1), length)
        kept = torch.cat([cache[:, :, drop:], torch.zeros(cache.shape[0], 4, drop, 8)], 2)
        kept[:, :, at : at + 1] = new
        return kept, kept


class RollWhenFull(nn.Module):
    """As ``ShiftWhenFull``, by a roll."""

    def forward(self, cache: Tensor, new: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        """As ``Behind``."""
        length = cache.shape[2]
        drop = item((places - (length - 1)).clamp(0, 1), 2)
        at = item(places.clamp(max=length - 1), length)
        rolled = torch.roll(cache, -drop, 2)
        kept = torch.slice_scatter(rolled, new, 2, at, at + 1)
        return kept, kept


class Wrapped(nn.Module):
    """Written at the position modulo the length."""

    def forward(self, cache: Tensor, new: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        """As ``Behind``."""
        cache = cache.index_copy(2, places.view(1) % cache.shape[2], new)
        return cache, cache


class WrappedRows(nn.Module):
    """As ``Wrapped``, each row of the batch at its own position."""

    def forward(self, cache: Tensor, new: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        """As ``Behind``."""
        place = places.view(-1, 1, 1, 1) % cache.shape[2]
        cache = torch.scatter(cache, 2, place.expand_as(new), new)
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


class FirstRows(nn.Module):
    """Every row written at the first one's position."""

    def forward(self, cache: Tensor, new: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        """As ``Behind``."""
        at = item(places[0], cache.shape[2])
        cache = torch.slice_scatter(cache, new, 2, at, at + 1)
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


class UpToNumber(nn.Module):
    """As ``UpTo``, of a Python number."""

    def forward(self, length: int, places: Tensor) -> Tensor:
        """As ``UpTo``."""
        return (torch.arange(length) <= places.item()).view(1, 1, 1, length)


class Held(nn.Module):
    """Entries of a ring that hold a token, by the position of the latest that was written there."""

    def forward(self, length: int, places: Tensor) -> Tensor:
        """As ``UpTo``."""
        newest = places.view(-1, 1, 1, 1)
        return newest - (newest - torch.arange(length)) % length >= 0


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


class HeldWindow(nn.Module):
    """The last five tokens of a ring, by the position of the latest that was written at an index."""

    def forward(self, length: int, places: Tensor) -> Tensor:
        """As ``UpTo``."""
        newest = places.view(-1, 1, 1, 1)
        age = (newest - torch.arange(length)) % length
        return (newest - age >= 0) & (age < 5)


class LatestWindow(nn.Module):
    """The last five entries, as many as there are tokens."""

    def forward(self, length: int, places: Tensor) -> Tensor:
        """As ``UpTo``."""
        age = length - 1 - torch.arange(length)
        return (age <= places.view(-1, 1, 1, 1)) & (age < 5)


class ByPlace(nn.Module):
    """The position as the program takes it."""

    def forward(self, places: Tensor, cache: Tensor) -> Tensor:
        """places [B], [B, 1] or [1] -> positions for the rotation, [B or 1, 1]."""
        return places.view(-1, 1)


class ByNumber(nn.Module):
    """An entry of a table at the position as a Python number."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.arange(64.0))

    def forward(self, places: Tensor, cache: Tensor) -> Tensor:
        """As ``ByPlace``."""
        at = item(places, 64)
        return self.table[at : at + 1].view(1, 1)


class ByLength(nn.Module):
    """The position taken from the cache's length."""

    def forward(self, places: Tensor, cache: Tensor) -> Tensor:
        """As ``ByPlace``."""
        return torch.full((1, 1), cache.shape[2])


class Softmax(nn.Module):
    """Weights of the keys alone."""

    def forward(self, scores: Tensor) -> Tensor:
        """[B, H, 1, T] -> as much."""
        return scores.softmax(-1)


class WithSinks(nn.Module):
    """Joins a logit for each head behind those of the keys."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("sinks", torch.tensor([0.5, -1.0, 2.0, 0.0]))

    def forward(self, scores: Tensor) -> Tensor:
        """As ``Softmax``."""
        sinks = self.sinks.view(1, 4, 1, 1).expand(scores.shape[0], -1, -1, -1)
        return torch.cat((scores, sinks), -1).softmax(-1)[..., :-1]


class LogLength(nn.Module):
    """Scales the logits by a number made of the cache's length."""

    def forward(self, scores: Tensor) -> Tensor:
        """[B, H, 1, T]."""
        return scores * torch.tensor(float(scores.shape[-1])).log() * 8**-0.5


class Sloped(nn.Module):
    """Adds what grows linearly along the keys, at another rate for each head."""

    def forward(self, scores: Tensor) -> Tensor:
        """[B, H, 1, T]."""
        return scores * 8**-0.5 + torch.arange(scores.shape[3]) * torch.tensor([0.5, 0.2, 0.1, 0.03]).view(4, 1, 1)


class Kept(nn.Module):
    """Two layers, four heads; how each of its four caches takes the new token in and what it sees are parts."""

    def __init__(
        self,
        takes: Sequence[type[nn.Module]],
        visible: type[nn.Module] = UpTo,
        turn: type[nn.Module] = ByPlace,
        scale: type[nn.Module] = PerWidth,
        weigh: type[nn.Module] = Softmax,
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(61, 32)
        self.norms = nn.ModuleList(RmsNorm(32) for _ in range(2))
        self.qkv = nn.ModuleList(nn.Linear(32, 96, bias=False) for _ in range(2))
        self.project = nn.ModuleList(nn.Linear(32, 32, bias=False) for _ in range(2))
        self.takes = nn.ModuleList(takes[i % len(takes)]() for i in range(4))
        self.visible, self.turn, self.scale, self.weigh = visible(), turn(), scale(), weigh()

    def forward(self, ids: Tensor, places: Tensor, caches: list[tuple[Tensor, Tensor]]) -> Any:
        """ids [B, 1], places; caches of [B, 4, T, 8] -> logits [B, 1, 61], caches."""
        x, after = self.embed(ids), []
        takes = iter(self.takes)
        for norm, qkv, project, (k, v) in zip(self.norms, self.qkv, self.project, caches, strict=True):
            parts = qkv(norm(x)).view(*ids.shape, 3, 4, 8).unbind(2)
            q, new = (rotate_halves(part, self.turn(places, k)).transpose(1, 2) for part in parts[:2])
            k, kept_k = next(takes)(k, new, places)
            v, kept_v = next(takes)(v, parts[2].transpose(1, 2), places)
            after.append((kept_k, kept_v))
            scores = self.scale(q @ k.transpose(2, 3))
            scores = scores.masked_fill(~self.visible(k.shape[2], places), float("-inf"))
            x = x + project((self.weigh(scores) @ v).transpose(1, 2).flatten(2))
        return x @ self.embed.weight.t(), after


class Buffered(nn.Module):
    """Keeps its caches and its step counter in buffers; the batch is fixed."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Kept([IndexCopy])
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
        take: how its caches take a new token in, one way or several by turns.
        parts: the others of ``Kept``.
        places: the shape of its positions; -1 stands for the rows.
        length: entries of a cache that comes in.
        slots: what it dictates.
    """

    name: str
    take: type[nn.Module] | tuple[type[nn.Module], ...]
    parts: dict[str, type[nn.Module]] = field(default_factory=dict)
    places: tuple[int, ...] = (-1,)
    length: int = LENGTH
    slots: int = LENGTH

    @property
    def inputs(self) -> ProgramInputs:
        """What its flat inputs and outputs are: two caches of each layer."""
        return ProgramInputs(tokens=0, positions=1, caches=tuple((2 + i, 1 + i, 2) for i in range(4)))

    def module(self) -> nn.Module:
        """The seeded module, ready for inference."""
        takes = self.take if isinstance(self.take, tuple) else (self.take,)
        return seeded(lambda: Kept(takes, **self.parts))

    def program(self, rows: int | None = None) -> ExportedProgram:
        """The module's program, with a symbolic batch or one of ``rows``; exported once per test run."""
        if (self.name, rows) not in _PROGRAMS:
            _PROGRAMS[self.name, rows] = self._exported(rows)
        return _PROGRAMS[self.name, rows]

    def _exported(self, rows: int | None) -> ExportedProgram:
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
    Fixed("shifted", (SliceAndJoin, RollAndWrite), {"visible": Latest}, (-1, 1)),
    Fixed("join-and-slice", JoinAndSlice, {"visible": Everything}, slots=LENGTH + 1),
    Fixed("by-rows", (AssignRows, Scatter, OneHot, Grid), places=(-1, 1)),
    Fixed("by-index", (Assign, IndexCopy), places=()),
    Fixed("by-number", (Narrow, Select, SliceScatter, Between), {"visible": UpToNumber}, (1,)),
    Fixed("when-full", (ShiftWhenFull, RollWhenFull), {"turn": ByNumber}, (1, 1)),
    Fixed("ring", Wrapped, {"visible": Held}, (1,)),
    Fixed("ring-by-rows", WrappedRows, {"visible": Held}),
)


OTHERWISE = (
    (
        Fixed("ring-window", WrappedRows, {"visible": HeldWindow}),
        Fixed("shifted-window", SliceAndJoin, {"visible": LatestWindow}),
        Fixed("window", Scatter, {"visible": Window}),
    ),
    (
        Fixed("sloped", Scatter, {"scale": Sloped}),
        Fixed("shifted-sloped", SliceAndJoin, {"scale": Sloped, "visible": Latest}),
    ),
    (
        Fixed("behind-sinks", Behind, {"weigh": WithSinks}, slots=LENGTH + 1),
        Fixed("sinks", Scatter, {"weigh": WithSinks}),
    ),
)
"""Decoders whose attention has a window, a bias along the keys or sinks; those of a group have one oracle."""


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
    RefusedFixed(Fixed("first-rows", FirstRows), "nor at the index of each row's position", FirstRows.forward),
    RefusedFixed(Fixed("beside-old", BesideOld, places=(1,)), "reads the cache .* as it was before", BesideOld.forward),
    RefusedFixed(Fixed("newest-hidden", Scatter, {"visible": Before}), "does not see key 0", Softmax.forward),
    RefusedFixed(Fixed("stale-seen", Scatter, {"visible": Everything}), "sees key 1", Softmax.forward),
    RefusedFixed(Fixed("by-length", Behind, {"turn": ByLength}), "takes the number 14", Kept.forward),
    RefusedFixed(
        Fixed("log-length", Behind, {"scale": LogLength}), "may have been made of that length", Softmax.forward
    ),
)
