"""Each buffer to tiers and offsets: nearest tier first, by lifetime, spilling what is needed latest."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from .errors import PlacementError
from .graph import Function, Program
from .machine import SHARED, Machine
from .packing import Packing, Span
from .residency import PATIENCE, Item, Move, Residency, keep, keep_first, moves
from .schema import Tensor, count, memory_map
from .storage import Buffer


@dataclass(frozen=True)
class Place:
    """A tier's name, an offset in bytes, and the steps from when until when a buffer stands there, both included."""

    tier: str
    offset: int
    first: int
    last: int


@dataclass(frozen=True)
class Placed:
    """Where a function's buffers stand, by buffer and nearest tier first, and what each of them moves.

    A buffer that all functions share has one place for ever. Any other stands in the nearest tier for its whole life,
    or for stays in it, with a home in a tier further away from its first move to its last.
    """

    places: Mapping[str, Sequence[Place]]
    moves: Mapping[str, Sequence[Move]] = field(default_factory=dict)


Cost = Callable[[Function, Placed], float]
"""What a placement of a function costs: of several that are found, the cheapest is taken."""

Ends = Mapping[str, int | None]
"""By tier, the first byte that may not be used; None for a tier without end."""


@dataclass(frozen=True)
class _Packed:
    """What all functions share, by tier; each function's placement; the tiers' ends; and what found no place."""

    shared: Mapping[str, Packing]
    local: Mapping[str, Placed]
    ends: Mapping[str, int]
    shared_left: Sequence[Buffer]
    local_left: Mapping[str, Sequence[Buffer]]

    @property
    def left(self) -> list[Buffer]:
        return [*self.shared_left, *(b for left in self.local_left.values() for b in left)]


@dataclass(frozen=True)
class _Local:
    """One way to place what a function needs for a call."""

    placed: Placed
    ends: Mapping[str, int]
    left: Sequence[Buffer]


def place_program(program: Program, machine: Machine, cost: Cost, patience: int = PATIENCE) -> dict[str, Placed]:
    """Places every buffer of every function.

    Weights, caches and states stand in the first tier that takes their kind and has room: weights before caches,
    bigger before smaller, from the lowest byte on. What a function needs for one call stands behind them in the
    nearest tier, over whatever the other functions have there. Where that is too small for what is alive at one step,
    buffers leave it between two uses (``residency.keep``); those have a home in the first tier behind it with room,
    those that move the most for their bytes first.

    Args:
        program: the functions.
        machine: its tiers, nearest first.
        cost: what a placement costs.
        patience: see ``residency.keep``.

    Raises:
        PlacementError: tensors that fit in no tier; the message holds the memory map and the bytes that are lacking.
    """
    packed = _pack(program, machine, {tier.name: tier.bytes for tier in machine.tiers}, cost, patience)
    if packed.left:
        raise _overflow(program, machine, packed, patience)
    return dict(packed.local)


def tensors(function: Function, name: str, places: Sequence[Place], section: str | None) -> list[Tensor]:
    """A buffer of a function at its places, as the plan has it."""
    buffer = function.buffers[name]
    return [
        Tensor(
            function=function.name,
            name=name,
            kind=buffer.kind,
            bytes=buffer.bytes,
            tier=place.tier,
            offset=place.offset,
            first_use=place.first,
            last_use=place.last,
            section=section,
            location=buffer.location,
            values=tuple(buffer.values),
        )
        for place in places
    ]


def _pack(program: Program, machine: Machine, ends: Ends, cost: Cost | None, patience: int) -> _Packed:
    """Places everything; without a cost, so that little is used behind the tiers' capacities."""
    shared, shared_left = _pack_shared(program, machine, ends)
    local: dict[str, Placed] = {}
    local_left: dict[str, Sequence[Buffer]] = {}
    most = {tier.name: shared[tier.name].end for tier in machine.tiers}
    for name, function in program.functions.items():
        found = _ways(function, machine, shared, ends, patience)
        whole = [way for way in found if not way.left]
        if cost is not None and not shared_left:
            # of equals the last, which moves the fewest bytes
            best = min(reversed(whole), key=lambda way: cost(function, way.placed), default=found[-1])
        else:
            best = min(
                whole or found,
                key=lambda way: sum(max(way.ends[t.name] - t.bytes, 0) for t in machine.tiers if t.name in way.ends),
            )
        local[name], local_left[name] = best.placed, best.left
        most = {tier: max(end, best.ends.get(tier, 0)) for tier, end in most.items()}
    return _Packed(shared, local, most, shared_left, local_left)


def _pack_shared(program: Program, machine: Machine, ends: Ends) -> tuple[dict[str, Packing], list[Buffer]]:
    packings = {tier.name: Packing(tier.legal, 0, ends[tier.name]) for tier in machine.tiers}
    left: list[Span] = []
    for kind in SHARED:
        spans = [Span(b.name, b.bytes, 0, 0) for b in program.shared.values() if b.kind == kind]
        for tier in machine.tiers:
            if kind in tier.kinds:
                spans = packings[tier.name].add_all(spans)
        left += spans
    return packings, [program.shared[span.name] for span in left]


def _ways(
    function: Function, machine: Machine, shared: Mapping[str, Packing], ends: Ends, patience: int
) -> list[_Local]:
    """The ways to place what a function needs for a call; those that move the fewest bytes last."""
    near = machine.tiers[0]
    local = [b for b in function.buffers.values() if b.kind not in SHARED]
    items = [Item(b.name, b.bytes, function.lifetimes[b.name]) for b in local]
    nearest = [i for i, b in zip(items, local, strict=True) if b.kind in near.kinds]
    base, end = shared[near.name].end, ends[near.name]
    first = keep_first(nearest, near.legal, base, end)
    # where there is no other tier, nothing can leave this one for a while
    if end is None or not first.traffic or len(machine.tiers) == 1:
        found = [first]
    else:
        found = keep(nearest, near, base, end, patience)
    return [_local(function, machine, shared, ends, items, residency) for residency in found]


def _local(
    function: Function,
    machine: Machine,
    shared: Mapping[str, Packing],
    ends: Ends,
    items: Sequence[Item],
    residency: Residency,
) -> _Local:
    near, *far = machine.tiers
    places: dict[str, list[Place]] = {}
    moved: dict[str, list[Move]] = {}
    homeless: list[tuple[Item, int, int]] = []
    for buffer in function.buffers.values():
        for holder, packing in shared.items():
            if buffer.kind in SHARED and buffer.name in packing.offsets:
                life = function.lifetimes[buffer.name]
                places[buffer.name] = [Place(holder, packing.offsets[buffer.name], life.first, life.last)]
    for item in items:
        stays, uses = residency.of(item.name), item.life.uses
        places[item.name] = [Place(near.name, offset, uses[a], uses[b]) for (a, b), offset in stays.items()]
        found = moves(item, list(stays))
        if found:
            moved[item.name] = found
            homeless.append((item, found[0].step, found[-1].step))
    homeless.sort(key=lambda h: (-len(moved[h[0].name]), -h[0].bytes, h[1], h[0].name))
    most = {
        near.name: max(
            (p.offset + function.buffers[n].bytes for n, all_ in places.items() for p in all_ if p.tier == near.name),
            default=0,
        )
    }
    for tier in far:
        packing = Packing(tier.legal, shared[tier.name].end, ends[tier.name])
        waiting = homeless
        homeless = []
        for item, first, last in waiting:
            takes = function.buffers[item.name].kind in tier.kinds
            if takes and packing.add(Span(item.name, item.bytes, first, last)):
                places[item.name].append(Place(tier.name, packing.offsets[item.name], first, last))
            else:
                homeless.append((item, first, last))
        most[tier.name] = packing.end
    left = [function.buffers[item.name] for item, _, _ in homeless]
    return _Local(Placed(places, moved), most, left)


def _lacking(program: Program, machine: Machine, patience: int) -> dict[str, int]:
    """The bytes that tiers lack, by tier: with so many more, the program has a plan."""
    ends: dict[str, int | None] = {tier.name: tier.bytes for tier in machine.tiers}
    while left := (packed := _pack(program, machine, ends, None, patience)).left:
        # each of them may go to the last tier that takes its kind, without end
        ends.update({[t.name for t in machine.tiers if b.kind in t.kinds][-1]: None for b in left})
    return {t.name: packed.ends[t.name] - t.bytes for t in machine.tiers if packed.ends[t.name] > t.bytes}


def _overflow(program: Program, machine: Machine, packed: _Packed, patience: int) -> PlacementError:
    short = " and ".join(f"{name} lacks {n:,} bytes" for name, n in _lacking(program, machine, patience).items())
    failed = [name for name, left in packed.local_left.items() if left]
    what = "the program's weights, caches and states" if packed.shared_left else failed[0]
    left = packed.shared_left or packed.local_left[failed[0]]
    shown = [
        tensor
        for function in program.functions.values()
        for name, places in packed.local[function.name].places.items()
        for tensor in tensors(function, name, places, None)
        if function.buffers[name].kind in SHARED or function.name == what
    ]
    lines = [
        f"no room on {machine.name} for {what}: {short}; memory map:",
        memory_map(machine, shown),
        f"without a place: {count(left)}, {sum(b.bytes for b in left):,} bytes",
    ]
    biggest = sorted(left, key=lambda b: (-b.bytes, b.name))[:12]
    lines += [f"  {b.bytes:>15,} bytes  {b.kind:<10}  {b.name}  ({b.location})" for b in biggest]
    return PlacementError("\n".join(lines))
