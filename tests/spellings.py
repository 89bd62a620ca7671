"""Decoders that differ in how they keep, grow and read their caches: every spelling that must end in the same program.

``SPELLINGS`` compile and equal the oracle; ``UNSAFE`` must be refused at the line of the method that they name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from decoders import PAST, QUERY, ROWS, Decoder, Refused, rotate_halves
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._pytree import register_dataclass

from snapcc.runtime.reference import ProgramInputs

WORDS, WIDTH, HEADS, FEATURES = 61, 32, 2, 8

Entry = Any
Grown = tuple[Tensor, Tensor, Entry]


class Scribe(nn.Module):
    """Two layers of attention with two KV heads; ``grow`` and ``bind`` say how its caches are kept."""

    layers = 2

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.ask = nn.ModuleList(nn.Linear(WIDTH, 2 * HEADS * FEATURES) for _ in range(self.layers))
        self.keep = nn.ModuleList(nn.Linear(WIDTH, 2 * HEADS * FEATURES) for _ in range(self.layers))
        self.tell = nn.ModuleList(nn.Linear(2 * HEADS * FEATURES, WIDTH) for _ in range(self.layers))

    def grow(self, layer: int, past: Any, k: Tensor, v: Tensor) -> Grown:
        """The whole of the keys and values [B, H, T, D] with the new ones behind, and what of the layer is returned."""
        raise NotImplementedError

    def bind(self, past: Any, entries: list[Entry]) -> Any:
        """What is returned for ``past``, of the entries of all layers."""
        return entries

    def attend(self, q: Tensor, keys: Tensor, values: Tensor, places: Tensor) -> Tensor:
        """q [B, 2 H, Q, D]; keys and values [B, H, T, D] -> [B, Q, 2 H D]."""
        seen = torch.arange(keys.shape[2]) <= places[..., :, None]
        mixed = functional.scaled_dot_product_attention(
            q, keys, values, seen if places.ndim == 1 else seen[:, None], enable_gqa=True
        )
        return mixed.transpose(1, 2).flatten(2)

    def step(self, ids: Tensor, places: Tensor, past: Any) -> Any:
        """ids [B, Q]; places [B, Q] or [Q] -> logits [B, Q, V], the caches, grown."""
        x, entries = self.words(ids), []
        shape = (*ids.shape, -1, FEATURES)
        rows = places if places.ndim == 2 else places[None]
        for layer in range(self.layers):
            q = rotate_halves(self.ask[layer](x).view(shape), rows).transpose(1, 2)
            k, v = self.keep[layer](x).view(*ids.shape, 2, HEADS, FEATURES).unbind(2)
            k, v = rotate_halves(k, rows).transpose(1, 2), v.transpose(1, 2)
            keys, values, entry = self.grow(layer, past, k, v)
            x = x + self.tell[layer](self.attend(q, keys, values, places))
            entries.append(entry)
        return x @ self.words.weight.t(), self.bind(past, entries)

    def forward(self, ids: Tensor, places: Tensor, past: Any) -> Any:
        """ids, places [B, Q]."""
        return self.step(ids, places, past)


class Scraps(Scribe):
    """Concats of several pieces, nested, onto empty tensors; slices and narrows that keep everything."""

    def grow(self, layer: int, past: list[list[Tensor]], k: Tensor, v: Tensor) -> Grown:
        old_k, old_v = past[layer]
        length = old_k.shape[2]
        total = length + k.shape[2]
        if layer == 0:
            keys = torch.cat([torch.empty(0), old_k, k], dim=-2)
            values = torch.cat([old_v[:, :, :length], old_v[:, :, length:], v], dim=2)
            return keys, values[:, :, :], [keys, values]
        keys = torch.cat([torch.cat([k.new_zeros(k.shape[0], HEADS, 0, FEATURES), old_k[:, :]], 2), k], 2)
        left, right = (torch.cat([old_v[..., part], v[..., part]], 2) for part in (slice(4), slice(4, None)))
        values = torch.cat([left, right], -1)
        return keys[:, :, -total:], values.narrow(2, 0, total), [keys.narrow(2, 0, total), values]


class Inserts(Scribe):
    """New tokens written behind the past into a longer tensor, or added to a padded one."""

    layers = 3

    def grow(self, layer: int, past: list[list[Tensor]], k: Tensor, v: Tensor) -> Grown:
        old_k, old_v = past[layer]
        length, fresh = old_k.shape[2], k.shape[2]
        longer_k, longer_v = (functional.pad(old, (0, 0, 0, fresh)) for old in (old_k, old_v))
        places = torch.arange(length, length + fresh)
        if layer == 0:
            keys = longer_k + functional.pad(k, (0, 0, length, 0))
            values = old_v.new_empty(v.shape[0], HEADS, length + fresh, FEATURES)
            values[:, :, :length] = old_v
            values[:, :, length:] = v
        elif layer == 1:
            keys = torch.slice_scatter(longer_k, k, 2, length)
            values = longer_v.index_copy(2, places, v)
        else:
            keys = longer_k.clone()
            keys[:, :, places] = k
            values = longer_v.clone()
            values.narrow(2, length, fresh).copy_(v)
        return keys, values, [keys, values]


class Shelf(Scribe):
    """One tensor [L, 2, B, H, T, D] for everything, grown by one concat on the stack."""

    def grow(self, layer: int, past: Tensor, k: Tensor, v: Tensor) -> Grown:
        keys, values = torch.cat((past[layer, 0], k), 2), torch.cat((past[layer, 1], v), 2)
        return keys, values, torch.stack((k, v))

    def bind(self, past: Tensor, entries: list[Tensor]) -> Tensor:
        return torch.cat([past, torch.stack(entries)], dim=-2)


class Folio(Scribe):
    """One tensor [B, L, T, H, 2 D]: layers behind the rows, keys and values side by side; a stack of grown layers."""

    def grow(self, layer: int, past: Tensor, k: Tensor, v: Tensor) -> Grown:
        both = torch.cat((past[:, layer], torch.cat((k, v), -1).transpose(1, 2)), 1)
        keys, values = both.transpose(1, 2).split(FEATURES, -1)
        return keys, values, both

    def bind(self, past: Tensor, entries: list[Tensor]) -> Tensor:
        return torch.stack(entries, 1)


class Ream(Scribe):
    """One tensor [2 L, B, H, T, D], divided by a view, ``unbind`` and ``chunk``; layers are put together anew."""

    def grow(self, layer: int, past: Tensor, k: Tensor, v: Tensor) -> Grown:
        old = past.view(self.layers, 2, *past.shape[1:]).unbind(0)[layer].chunk(2)
        keys, values = (torch.cat((half.squeeze(0), new), 2) for half, new in zip(old, (k, v), strict=True))
        return keys, values, torch.stack((keys, values))

    def bind(self, past: Tensor, entries: list[Tensor]) -> Tensor:
        return torch.stack(entries).flatten(0, 1)


class Quire(Shelf):
    """As ``Ream``, grown by one concat on the divided tensor."""

    def grow(self, layer: int, past: Tensor, k: Tensor, v: Tensor) -> Grown:
        return super().grow(layer, past.unflatten(0, (self.layers, 2)), k, v)

    def bind(self, past: Tensor, entries: list[Tensor]) -> Tensor:
        return super().bind(past.unflatten(0, (self.layers, 2)), entries).flatten(0, 1)


class Diptych(Scribe):
    """A tensor [2, B, H, T, D] for the keys and values of each layer, in a dict of tuples."""

    def grow(self, layer: int, past: dict[str, tuple[Tensor]], k: Tensor, v: Tensor) -> Grown:
        (old,) = past[f"layer{layer}"]
        both = torch.cat([old, torch.stack([k, v])], 3)
        keys, values = both.unbind(0)
        return keys, values, (both,)

    def bind(self, past: dict[str, tuple[Tensor]], entries: list[tuple[Tensor]]) -> dict[str, tuple[Tensor]]:
        return dict(zip(past, entries, strict=True))


@dataclass
class Page:
    """The keys [T, B, H, D] and values [T, B, H, D] of a layer."""

    keys: Tensor
    values: Tensor


register_dataclass(Page, field_names=["keys", "values"], serialized_type_name="spellings.Page")


class Scroll(Scribe):
    """Tokens first: dataclasses of [T, B, H, D]."""

    def grow(self, layer: int, past: list[Page], k: Tensor, v: Tensor) -> Grown:
        keys = torch.cat((past[layer].keys, k.permute(2, 0, 1, 3)))
        values = torch.cat((past[layer].values, v.permute(2, 0, 1, 3)))
        return keys.permute(1, 2, 0, 3), values.permute(1, 2, 0, 3), Page(keys, values)


class Uncounted(Scraps):
    """No positions: they follow from the length of the past."""

    def forward(self, ids: Tensor, past: list[list[Tensor]]) -> Any:
        """ids [B, Q]."""
        length = past[0][0].shape[2]
        return self.step(ids, torch.arange(length, length + ids.shape[1]), past)


class Started(Shelf):
    """The position of the first new token, a scalar."""

    def forward(self, ids: Tensor, start: Tensor, past: Tensor) -> Any:
        """ids [B, Q], start []."""
        return self.step(ids, start + torch.arange(ids.shape[1]), past)


class Shared(Diptych):
    """Positions [Q], the same for all rows."""


class Single(Scribe):
    """One layer, keys and values as one list; the unsafe ones differ from it in one place."""

    layers = 1

    def grow(self, layer: int, past: list[Tensor], k: Tensor, v: Tensor) -> Grown:
        keys, values = self.join(past[0], k), self.join(past[1], v)
        return self.read(keys, past[0], k), values, [self.out(keys), values]

    def bind(self, past: list[Tensor], entries: list[list[Tensor]]) -> list[Tensor]:
        return entries[0]

    def join(self, old: Tensor, new: Tensor) -> Tensor:
        """The grown cache."""
        return torch.cat((old, new), 2)

    def read(self, grown: Tensor, old: Tensor, new: Tensor) -> Tensor:
        """What attention reads."""
        return grown

    def out(self, grown: Tensor) -> Tensor:
        """What is returned."""
        return grown


class NewestFirst(Single):
    """The new tokens in front of the past."""

    def join(self, old: Tensor, new: Tensor) -> Tensor:
        return torch.cat((new, old), 2)


class Reversed(Single):
    """The past returned backwards."""

    def out(self, grown: Tensor) -> Tensor:
        return grown.flip(2)


class Faded(Single):
    """The grown cache returned scaled."""

    def out(self, grown: Tensor) -> Tensor:
        return grown * 0.5


class Swapped(Single):
    """The oldest token changes its place at each step."""

    def join(self, old: Tensor, new: Tensor) -> Tensor:
        return torch.cat((old.roll(1, 2), new), 2)


class Doubled(Single):
    """Attention reads the new tokens in the place of the oldest as well."""

    def read(self, grown: Tensor, old: Tensor, new: Tensor) -> Tensor:
        return torch.cat((new, grown[:, :, new.shape[2] :]), 2)


def _ids(b: int, q: int) -> Tensor:
    return torch.arange(b * q).view(b, q) % WORDS


def _places(b: int, q: int, t: int) -> Tensor:
    return torch.arange(t, t + q).repeat(b, 1)


def _rand(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def _decoder(
    name: str,
    build: Callable[[], nn.Module],
    past: Callable[[int, int], Any],
    shapes: Any,
    caches: tuple[tuple[int, int, int], ...],
    positions: Callable[[int, int, int], Tensor] | None = _places,
    position_shapes: Any = None,
) -> Decoder:
    """A spelling's decoder: ``past(rows, length)`` makes its caches, flat inputs are tokens, positions, caches."""
    places = [] if positions is None else [{0: ROWS, 1: QUERY} if position_shapes is None else position_shapes]
    return Decoder(
        name,
        build,
        lambda b, q, t: (_ids(b, q), *([] if positions is None else [positions(b, q, t)]), past(b, t)),
        ({0: ROWS, 1: QUERY}, *places, shapes),
        ProgramInputs(tokens=0, positions=None if positions is None else 1, caches=caches),
        WORDS,
    )


def _pairs(layers: int, first: int = 2, axis: int = 2) -> tuple[tuple[int, int, int], ...]:
    return tuple((first + i, 1 + i, axis) for i in range(2 * layers))


def _lists(layers: int) -> Callable[[int, int], Any]:
    return lambda b, t: [[_rand(b, HEADS, t, FEATURES) for _ in range(2)] for _ in range(layers)]


SHELF = (lambda b, t: _rand(2, 2, b, HEADS, t, FEATURES), {2: ROWS, 4: PAST}, ((2, 1, 4),))
REAM = (lambda b, t: _rand(4, b, HEADS, t, FEATURES), {1: ROWS, 3: PAST}, ((2, 1, 3),))
DIPTYCH = (
    lambda b, t: {f"layer{i}": (_rand(2, b, HEADS, t, FEATURES),) for i in range(2)},
    {f"layer{i}": ({1: ROWS, 3: PAST},) for i in range(2)},
    ((2, 1, 3), (3, 2, 3)),
)

SPELLINGS = (
    _decoder("scraps", Scraps, _lists(2), [[{0: ROWS, 2: PAST}] * 2] * 2, _pairs(2)),
    _decoder("inserts", Inserts, _lists(3), [[{0: ROWS, 2: PAST}] * 2] * 3, _pairs(3)),
    _decoder("shelf", Shelf, *SHELF),
    _decoder("ream", Ream, *REAM),
    _decoder("quire", Quire, *REAM),
    _decoder("folio", Folio, lambda b, t: _rand(b, 2, t, HEADS, 2 * FEATURES), {0: ROWS, 2: PAST}, ((2, 1, 2),)),
    _decoder(
        "scroll",
        Scroll,
        lambda b, t: [Page(*(_rand(t, b, HEADS, FEATURES) for _ in range(2))) for _ in range(2)],
        [[{0: PAST, 1: ROWS}] * 2] * 2,
        _pairs(2, axis=0),
    ),
    _decoder("uncounted", Uncounted, _lists(2), [[{0: ROWS, 2: PAST}] * 2] * 2, _pairs(2, first=1), positions=None),
    _decoder("started", Started, *SHELF, positions=lambda b, q, t: torch.tensor(t), position_shapes={}),
    _decoder("shared", Shared, *DIPTYCH, positions=lambda b, q, t: torch.arange(t, t + q), position_shapes={0: QUERY}),
)


def _unsafe(build: type[Single], because: str, op: str, place: Callable[..., Any]) -> Refused:
    past = (lambda b, t: [_rand(b, HEADS, t, FEATURES) for _ in range(2)], [{0: ROWS, 2: PAST}] * 2, _pairs(1))
    return Refused(_decoder(build.__name__.lower(), build, *past), because, op, place)


UNSAFE = (
    _unsafe(NewestFirst, "slots are filled behind the past", "aten.cat", NewestFirst.join),
    _unsafe(Reversed, "the past comes back in another order", "aten.flip", Reversed.out),
    _unsafe(Faded, "the past comes back changed", "aten.mul", Faded.out),
    _unsafe(Swapped, "the past comes back in another order", "aten.", Swapped.join),
    _unsafe(Doubled, "attention does not read the cache that is returned", "aten.cat", Doubled.read),
)
