"""Which buffers stay in the nearest tier, and when: given up by furthest next use, packed first fit, then improved."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import gcd
from random import Random

import numpy as np

from .machine import Tier
from .packing import Legal, Packing, Span
from .residency import Item, Residency, Stay, traffic


@dataclass(frozen=True)
class _Gap:
    """A gap of an item that is kept in the nearest tier."""

    item: Item
    number: int
    first: int
    last: int


Rank = Callable[[int, int, int], float]
"""How gladly a buffer is given up: by the steps to its next use, its bytes, and the moves that giving it up costs."""


def _furthest(steps: int, size: int, cost: int) -> float:
    return steps


def _cheapest(steps: int, size: int, cost: int) -> float:
    return steps / cost


def _roomiest(steps: int, size: int, cost: int) -> float:
    return size * steps / cost


_RANKS: tuple[Rank, ...] = (_furthest, _cheapest, _roomiest)


MOST_ROOMS = 32
"""The most rooms of which all that make a difference are tried."""

FIRST_ROOMS = 8
"""How many of the smallest are tried where there are more."""

FINE, COARSE, SMALL = 16, 2, 40
"""Into how many parts each power of two is divided: the first for so many buffers or fewer, the second for more."""

PATIENCE = 100
"""Rounds without a gain after which stays are good enough."""

_ORDERS = 4
"""In at most how many orders chosen stays are packed until all find room."""

_WORK = 1600
"""The most buffers times rounds without a gain: many rounds for small graphs, few for large ones."""


def keep_first(
    items: Sequence[Item], legal: Legal, base: int, end: int | None, fixed: Mapping[Span, int] | None = None
) -> Residency:
    """Every buffer in the nearest tier for its whole life, largest first, as far as there is room for that.

    Args:
        items: the buffers.
        legal: where the tier lets a buffer start.
        base: its first byte that may be used.
        end: the first that may not; None for a tier without end.
        fixed: what stands in the tier in any case, and where.
    """
    packed = _Packed(_around(fixed or {}, legal, base, end))
    packed.add((item, (0, len(item.life.uses) - 1)) for item in items)
    return packed.residency(items)


def keep(
    items: Sequence[Item],
    tier: Tier,
    base: int,
    end: int,
    patience: int = PATIENCE,
    fixed: Mapping[Span, int] | None = None,
) -> list[Residency]:
    """Stays for as many buffers as a room takes, so that few bytes are moved; for growing rooms up to a tier's end.

    In each room: at each step with more bytes than there is room for, the buffer with the furthest next use is given
    up until then (Belady); what is kept is packed first fit, largest first, and what was given up without need comes
    back into the holes that are left. That is done with three orders of giving up (the furthest; the furthest for each
    move that it costs; the most bytes and steps for each move). The best of these and of the smaller room's stays is
    then improved: the stays around a step are taken out and put back in another order, where that moves fewer bytes.

    What is found for a room, with the room's end, does not depend on the rooms behind it, and which rooms are tried not
    on the tier's end, but for those behind that. So a larger tier has all that a smaller one has, and more.

    Args:
        items: the buffers.
        tier: the nearest tier.
        base: its first byte that may be used.
        end: the first that may not.
        patience: the rounds without a gain after which the stays in a room are good enough.
        fixed: what stands in the tier in any case, and where.

    Returns:
        the stays by room, those that move the fewest bytes last.
    """
    fixed = fixed or {}
    behind = _around(fixed, tier.legal, base, None).end
    found: list[Residency] = [Residency({}, sum(traffic(item, []) for item in items), behind)]
    for room in [*([behind] if behind > base else []), *_rooms(items, tier, behind, end)]:
        if not found[-1].traffic:
            break
        empty = _around(fixed, tier.legal, base, room)
        free = _free(items, fixed, empty)
        best = found[-1]
        for rank in _RANKS:
            packed = _pack(items, _sweep(items, free, rank), empty.copy())
            packed.refill(items)
            best = min(best, packed.residency(items), key=lambda r: r.traffic)
        best = _improve(items, best, empty, free, patience)
        if best.traffic < found[-1].traffic:
            found.append(replace(best, end=room))
    return found


def around(
    items: Sequence[Item], found: Residency, legal: Legal, base: int, fixed: Mapping[Span, int], end: int
) -> Residency:
    """The stays of a residency that find room around what is fixed, largest first."""
    packed = _Packed(_around(fixed, legal, base, end))
    packed.add((item, stay) for item in items for stay in found.of(item.name))
    return replace(packed.residency(items), end=end)


def _around(fixed: Mapping[Span, int], legal: Legal, base: int, end: int | None) -> Packing:
    """The tier with what is fixed in it."""
    packing = Packing(legal, base, end)
    for span, offset in fixed.items():
        packing.add_at(span, offset)
    return packing


def _free(items: Iterable[Item], fixed: Iterable[Span], packing: Packing) -> dict[int, int]:
    """By step at which anything is used, in order, the bytes that what is fixed leaves."""
    steps = {step for item in items for step in item.life.uses} | {
        step for span in fixed for step in (span.first, span.last)
    }
    return {step: packing.room - packing.used(step) for step in sorted(steps)}


def _rooms(items: Sequence[Item], tier: Tier, base: int, limit: int) -> list[int]:
    """The ends of the rooms that are tried, in order.

    All in which more may be kept than in the room before where those are few; else the first of them, and the parts of
    powers of two.
    """
    grain = int(tier.granularity.value)
    sizes = [-(-item.bytes // grain) * grain for item in items if item.bytes]
    if not sizes:
        return []
    step = gcd(
        *sizes, *([int(tier.unit.value)] if tier.unit is not None and base + max(sizes) > tier.unit.value else [])
    )
    least, most = base + -(-min(sizes) // step) * step, base + sum(sizes) // step * step
    few = (most - least) // step < MOST_ROOMS
    rooms = {least + step * n for n in range((most - least) // step + 1 if few else FIRST_ROOMS)} | {most}
    if not few:
        parts = FINE if len(items) <= SMALL else COARSE
        octaves = range(most.bit_length())
        ends = ((part << octave) // parts for octave in octaves for part in range(parts, 2 * parts))
        rooms |= {end - (end - base) % step for end in ends}
    return sorted(room for room in rooms if least <= room <= min(limit, most))


def _improve(
    items: Sequence[Item], best: Residency, empty: Packing, free: Mapping[int, int], patience: int
) -> Residency:
    """Stays that move fewer bytes: again and again some are taken out and others put in."""
    random = Random(0)
    steps = list(free)
    idle, last = 0, best
    while best.traffic and idle < min(patience, _WORK // len(items)):
        idle += 1
        kept = {item.name: _gaps(last.of(item.name), item) for item in items}
        if idle % 2:
            _insert(items, kept, free, random)
        else:
            _take_out(items, kept, steps, random)
        _add(items, kept, free, random)
        found = _shuffled(items, kept, empty, random)
        if found.traffic <= last.traffic:
            last = found
        if found.traffic < best.traffic:
            idle, best = 0, found
    return best


def _gaps(stays: Iterable[Stay], item: Item) -> set[int]:
    return {gap for first, last in stays for gap in range(first, max(last, first + 1))} & set(item.gaps)


def _shuffled(items: Sequence[Item], kept: Mapping[str, set[int]], empty: Packing, random: Random) -> Residency:
    """What of the gaps finds room first fit, in the best of a few random orders in which large stays come early."""
    chosen = [(item, stay) for item in items for stay in _stays(item, kept[item.name])]
    best: Residency | None = None
    for _ in range(_ORDERS):
        packed = _Packed(empty.copy())
        for item, stay in sorted(chosen, key=lambda s: -s[0].bytes * random.uniform(0.5, 1.5)):
            packed.add([(item, stay)])
        found = packed.residency(items)
        best = found if best is None or found.traffic < best.traffic else best
        if not packed.left:
            break
    assert best is not None
    return best


def _take_out(items: Iterable[Item], kept: dict[str, set[int]], steps: Sequence[int], random: Random) -> None:
    """Takes out some of the gaps around a step."""
    at, wide = random.choice(steps), random.randrange(4)
    for item in items:
        spans = {gap: item.span(gap) for gap in kept[item.name]}
        near = {g for g, (first, last) in spans.items() if first <= at + wide and last >= at - wide}
        kept[item.name] -= {g for g in sorted(near) if random.random() < 0.4}


def _insert(items: Iterable[Item], kept: dict[str, set[int]], free: Mapping[int, int], random: Random) -> None:
    """Keeps a gap whatever is in its way: where its bytes do not fit, what saves least for its bytes is given up."""
    most = max(free.values(), default=0)
    missing = [(i, gap) for i in items if i.bytes <= most for gap in i.gaps if gap not in kept[i.name]]
    if not missing:
        return
    new, gap = random.choice(missing)
    kept[new.name].add(gap)
    first, last = new.span(gap)
    for step in (s for s in free if first <= s <= last):
        there = {i: {g for g in kept[i.name] if i.span(g)[0] <= step <= i.span(g)[1]} for i in items}
        used = sum(item.bytes for item, gaps in there.items() if gaps)
        losses = []
        for item, gaps in there.items():
            if gaps and item.name != new.name:
                before, after = _stays(item, kept[item.name]), _stays(item, kept[item.name] - gaps)
                losses.append(((traffic(item, after) - traffic(item, before)) / item.bytes, item.name, item))
        for _, name, item in sorted(losses, key=lambda loss: loss[:2]):
            if used <= free[step]:
                break
            kept[name] -= there[item]
            used -= item.bytes


def _add(items: Iterable[Item], kept: dict[str, set[int]], free: Mapping[int, int], random: Random) -> None:
    """Keeps more gaps, in a random order in which those that save much come early, as long as their bytes fit."""
    index = {step: i for i, step in enumerate(free)}
    left = np.array(list(free.values()), dtype=np.int64)
    wanted = []
    power = random.choice((0.0, 0.5, 1.0))
    for item in items:
        mine = _stays(item, kept[item.name])
        for first, last in mine:
            left[index[item.life.uses[first]] : index[item.life.uses[last]] + 1] -= item.bytes
        for gap in set(item.gaps) - kept[item.name]:
            first, last = item.span(gap)
            saved = traffic(item, mine) - traffic(item, _stays(item, kept[item.name] | {gap}))
            value = saved / ((last - first + 1) * item.bytes or 1) ** power
            wanted.append((-value * random.uniform(0.3, 1.7), item.name, gap, item))
    for _, name, gap, item in sorted(wanted, key=lambda w: w[:3]):
        first, last = (index[step] for step in item.span(gap))
        # the step of a use is taken already where the gap on its other side is kept
        first += gap - 1 in kept[name]
        last -= gap + 1 in kept[name]
        if first > last or left[first : last + 1].min() >= item.bytes:
            left[first : last + 1] -= item.bytes
            kept[name].add(gap)


def _sweep(items: Iterable[Item], free: Mapping[int, int], rank: Rank) -> dict[str, set[int]]:
    """The gaps to keep, by buffer, when at each step with more bytes than are free something is given up."""
    most = max(free.values(), default=0)
    gaps = [_Gap(i, g, *i.span(g)) for i in items if i.bytes <= most for g in i.gaps]
    gaps.sort(key=lambda g: (g.first, g.item.name, g.number))
    starts = {step: list(starting) for step, starting in groupby(gaps, key=lambda g: g.first)}
    kept = {item.name: set(item.gaps) if item.bytes <= most else set() for item in items}
    alive: dict[str, list[_Gap]] = {}
    used = 0
    for step, room in free.items():
        for name, mine in list(alive.items()):
            alive[name] = [g for g in mine if g.last >= step]
            if not alive[name]:
                used -= mine[0].item.bytes
                del alive[name]
        for gap in starts.get(step, ()):
            if gap.item.name not in alive:
                used += gap.item.bytes
            alive.setdefault(gap.item.name, []).append(gap)
        while used > room:
            name = max(alive, key=lambda n: (*_gladly(alive[n], kept[n], step, rank), n))
            kept[name] -= {g.number for g in alive[name]}
            used -= alive.pop(name)[0].item.bytes
    return kept


def _gladly(gaps: list[_Gap], kept: set[int], step: int, rank: Rank) -> tuple[float, int]:
    """How gladly a buffer is given up at a step; one that is in use there, and was kept for that, least."""
    item = gaps[0].item
    if any(g.last == step for g in gaps):
        return -1.0, item.bytes
    gap = gaps[0]
    stored = any(g not in kept for g in range(_written(item, gap.number), gap.number))
    cost = item.needed(gap.number) * (1 + (not stored))
    return rank(gap.last - step, item.bytes, max(cost, 1)), item.bytes


def _written(item: Item, gap: int) -> int:
    """The last use up to a gap's own that changes the contents."""
    return max((u for u in range(gap + 1) if item.life.uses[u] in item.life.writes), default=0)


def _stays(item: Item, gaps: Iterable[int]) -> list[Stay]:
    """Gaps that follow one another, as stays."""
    found: list[Stay] = []
    for gap in sorted(gaps):
        last = min(gap + 1, len(item.life.uses) - 1)
        if found and found[-1][1] == gap:
            found[-1] = (found[-1][0], last)
        else:
            found.append((gap, last))
    return found


class _Packed:
    """Stays with offsets, and those that found no room."""

    def __init__(self, packing: Packing) -> None:
        self.packing = packing
        self.offsets: dict[str, dict[Stay, int]] = {}
        self.left: list[tuple[Item, Stay]] = []

    def add(self, stays: Iterable[tuple[Item, Stay]]) -> None:
        """Adds stays, largest first."""
        ordered = sorted(stays, key=lambda s: (-s[0].bytes, s[0].life.uses[s[1][0]], s[0].name))
        for item, stay in ordered:
            if self.packing.add(_span(item, stay)):
                self.offsets.setdefault(item.name, {})[stay] = self.packing.offsets[_span(item, stay).name]
            else:
                self.left.append((item, stay))

    def split(self) -> None:
        """A long stay that found no room may find some for a part of it."""
        parts = [(i, (u, u + 1)) for i, (first, last) in self.left if last - first > 1 for u in range(first, last)]
        for item, stay in parts:
            self._refill(item, stay)

    def refill(self, items: Iterable[Item]) -> None:
        """Keeps more gaps where there is room for them, those first that save most for their bytes and steps."""
        wanted = []
        for item in items:
            mine = self.offsets.get(item.name, {})
            for gap in item.gaps:
                stay = _stays(item, [gap])[0]
                if any(a <= gap and stay[1] <= b for a, b in mine):
                    continue
                first, last = item.span(gap)
                saved = traffic(item, list(mine)) - traffic(item, _joined([*mine, stay]))
                wanted.append((-saved / ((last - first + 1) * item.bytes or 1), item.name, gap, item, stay))
        for *_, item, stay in sorted(wanted, key=lambda w: w[:3]):
            self._refill(item, stay)

    def _refill(self, item: Item, stay: Stay) -> None:
        """Keeps one more gap, at the offset of the stays that it joins."""
        mine = self.offsets.setdefault(item.name, {})
        before = next((s for s in mine if s[1] == stay[0]), None)
        behind = next((s for s in mine if s[0] == stay[1]), None)
        at = {mine[s] for s in (before, behind) if s is not None}
        if len(at) > 1:
            return
        # the steps of the uses at either end are taken already where a stay is there
        first = item.life.uses[stay[0]] + (before is not None)
        last = item.life.uses[stay[1]] - (behind is not None)
        span = Span(f"{item.name} {stay[0]}", item.bytes, first, last)
        if first <= last and not (self.packing.add_at(span, at.pop()) if at else self.packing.add(span)):
            return
        offset = self.packing.offsets.get(span.name)
        joined = (before[0] if before else stay[0], behind[1] if behind else stay[1])
        for old in (before, behind):
            if old is not None:
                offset = mine.pop(old)
        assert offset is not None
        mine[joined] = offset

    def residency(self, items: Iterable[Item]) -> Residency:
        """The stays, and what all buffers move."""
        moved = sum(traffic(item, list(self.offsets.get(item.name, {}))) for item in items)
        return Residency({name: dict(sorted(stays.items())) for name, stays in self.offsets.items() if stays}, moved)


def _joined(stays: Sequence[Stay]) -> list[Stay]:
    found: list[Stay] = []
    for first, last in sorted(stays):
        if found and found[-1][1] == first:
            found[-1] = (found[-1][0], last)
        else:
            found.append((first, last))
    return found


def _span(item: Item, stay: Stay) -> Span:
    return Span(f"{item.name} {stay[0]}", item.bytes, item.life.uses[stay[0]], item.life.uses[stay[1]])


def _pack(items: Iterable[Item], kept: Mapping[str, set[int]], empty: Packing) -> _Packed:
    packed = _Packed(empty)
    packed.add((item, stay) for item in items for stay in _stays(item, kept[item.name]))
    packed.split()
    return packed
