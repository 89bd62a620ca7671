"""Each buffer to tiers and offsets: nearest tier first, by lifetime, spilling what is needed latest.

What the ops of a section touch is there while the section runs: whole in the nearest tier, or in a buffer there. So
places are by section, and what a section takes of the nearest tier is one sum.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from .errors import PlacementError
from .graph import Function, Program
from .lifetime import Steps
from .machine import SHARED, Machine
from .packing import Packing, Span
from .residency import Item, Move, Residency, moves
from .schema import Section, Tensor, count, memory_map
from .stays import PATIENCE, around, keep, keep_first
from .storage import Buffer
from .tiling import Need


@dataclass(frozen=True)
class Place:
    """A tier's name, an offset in bytes, and the ops, by position, from when until when a buffer stands there."""

    tier: str
    offset: int
    first: int
    last: int


@dataclass(frozen=True)
class Kernel:
    """A section, and what it needs in the nearest tier of tensors that do not stand there whole."""

    section: Section
    needs: Sequence[Need]


@dataclass(frozen=True)
class StageBuffer:
    """A buffer of a section, by its number in the function: for what, its offset and its bytes."""

    section: int
    need: Need
    offset: int
    bytes: int


@dataclass(frozen=True)
class Placed:
    """Where a function's buffers stand, by buffer and nearest tier first, and what each of them moves.

    A buffer that all functions share has one place for ever. Any other stands in the nearest tier for its whole life,
    or for stays in it, with a home in a tier further away from its first move to its last; one that a section passes
    on in blocks has no place but its stage buffer. The steps of moves are positions of ops.
    """

    places: Mapping[str, Sequence[Place]]
    moves: Mapping[str, Sequence[Move]] = field(default_factory=dict)
    stages: Sequence[StageBuffer] = ()


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
    large: _Local | None

    @property
    def left(self) -> list[Buffer]:
        return [*self.shared_left, *(b for left in self.local_left.values() for b in left)]


@dataclass(frozen=True)
class _Local:
    """One way to place what a function needs for a call.

    ``large`` is a section that needs more of the nearest tier than there is; ``needed`` is what would be enough.
    """

    placed: Placed
    ends: Mapping[str, int]
    left: Sequence[Buffer]
    large: Kernel | None = None
    needed: int = 0


Kernels = Mapping[str, Sequence[Kernel]]
"""By function, its sections in order."""


def place_program(
    program: Program, kernels: Kernels, machine: Machine, cost: Cost, patience: int = PATIENCE
) -> dict[str, Placed]:
    """Places every buffer of every function, and the buffers of every section.

    Weights, caches and states stand in the first tier that takes their kind and has room: weights before caches,
    bigger before smaller, from the lowest byte on. Behind them in the nearest tier stands what a function needs for one
    call, over whatever the other functions have there: the buffers of its sections, each while its section runs, then
    whole tensors. Where that is too small for all that is alive in one section, tensors leave it between two sections
    (``stays.keep``); those have a home in the first tier behind it with room, those that move the most for their
    bytes first, and every section has buffers for all that it touches. Buffers are as wide as their rate asks for where
    that is no slower.

    Args:
        program: the functions.
        kernels: their sections.
        machine: its tiers, nearest first.
        cost: what a placement costs.
        patience: see ``stays.keep``.

    Raises:
        PlacementError: tensors that fit in no tier, or an op whose least tiles are too large for the nearest; the
            message holds the memory map and the bytes that are lacking.
    """
    ends = {tier.name: tier.bytes for tier in machine.tiers}
    packed = _pack(program, kernels, machine, ends, cost, patience)
    if packed.left or packed.large:
        raise _overflow(program, kernels, machine, packed, patience)
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
            part=buffer.bytes,
        )
        for place in places
    ]


def stage_tensors(
    function: Function, kernels: Sequence[Kernel], stages: Sequence[StageBuffer], tier: str
) -> list[Tensor]:
    """The buffers of a function's sections in the nearest tier, as the plan has them."""
    found = []
    for stage in stages:
        need, section = stage.need, kernels[stage.section].section
        buffer, life = function.buffers[need.tensor], function.lifetimes[need.tensor]
        found.append(
            Tensor(
                function=function.name,
                name=need.tensor if need.passing else f"{section.name}/{need.tensor}",
                kind=buffer.kind if need.passing else "scratch",
                bytes=stage.bytes,
                tier=tier,
                offset=stage.offset,
                first_use=life.first if need.passing else section.ops[0],
                last_use=life.last if need.passing else section.ops[-1],
                section=section.name,
                location=buffer.location,
                values=tuple(buffer.values) if need.passing else (),
                role=need.role,
                of=None if need.passing else need.tensor,
                copies=need.copies,
                part=need.bytes,
            )
        )
    return found


def _pack(
    program: Program, kernels: Kernels, machine: Machine, ends: Ends, cost: Cost | None, patience: int
) -> _Packed:
    """Places everything; without a cost, so that little is used behind the tiers' capacities."""
    shared, shared_left = _pack_shared(program, machine, ends)
    local: dict[str, Placed] = {}
    local_left: dict[str, Sequence[Buffer]] = {}
    large: _Local | None = None
    most = {tier.name: shared[tier.name].end for tier in machine.tiers}
    for name, function in program.functions.items():
        found = _Placer(function, kernels[name], machine, shared, ends).ways(patience)
        whole = [way for way in found if not way.left and way.large is None]
        if cost is not None and not shared_left:
            # of equals the last, which moves the fewest bytes
            best = min(reversed(whole), key=lambda way: cost(function, way.placed), default=found[-1])
        else:
            best = min(
                whole or found,
                key=lambda way: sum(max(way.ends[t.name] - t.bytes, 0) for t in machine.tiers if t.name in way.ends),
            )
        local[name], local_left[name] = best.placed, best.left
        large = large or (best if best.large is not None else None)
        most = {tier: max(end, best.ends.get(tier, 0)) for tier, end in most.items()}
    return _Packed(shared, local, most, shared_left, local_left, large)


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


class _Placer:
    """The ways to place what a function needs for a call."""

    def __init__(
        self,
        function: Function,
        kernels: Sequence[Kernel],
        machine: Machine,
        shared: Mapping[str, Packing],
        ends: Ends,
    ) -> None:
        self._function = function
        self._kernels = kernels
        self._machine = machine
        self._shared = shared
        self._ends = ends
        self._near = machine.tiers[0]
        self._base = shared[self._near.name].end
        self._steps = Steps([kernel.section.ops for kernel in kernels], len(function.ops))
        passing = {need.tensor for kernel in kernels for need in kernel.needs if need.passing}
        self._items = [
            Item(name, buffer.bytes, self._steps.life(function.lifetimes[name]))
            for name, buffer in function.buffers.items()
            if buffer.kind not in SHARED and name not in passing
        ]
        self._nearest = [item for item in self._items if function.buffers[item.name].kind in self._near.kinds]

    def ways(self, patience: int) -> list[_Local]:
        """The ways; those that move the fewest bytes last."""
        legal, end = self._near.legal, self._ends[self._near.name]
        found: list[_Local] = []
        for wide in (False, True):
            stages = self._stages(wide, None)
            if end is not None and _end(stages) > end:
                continue
            first = keep_first(self._nearest, legal, self._base, end, _spans(stages))
            # where there is no other tier, nothing can leave this one for a while
            if end is None or not first.traffic or len(self._machine.tiers) == 1:
                found.append(self._local(first, stages))
        if found:
            return found
        at_home = self._stages(False, Residency())
        if end is None or _end(at_home) > end:
            large = max(self._kernels, key=lambda kernel: sum(need.least for need in kernel.needs))
            whole = self._stages(False, None)
            everything = self._local(keep_first(self._nearest, legal, self._base, None, _spans(whole)), whole)
            needed = min(_end(at_home), everything.ends[self._near.name])
            return [replace(self._local(Residency(), at_home), large=large, needed=needed)]
        kept = keep(self._nearest, self._near, self._base, end, patience, _spans(self._stages(False, None)))
        return [self._local(*self._settled(residency, _end(at_home))) for residency in kept]

    def _settled(self, found: Residency, least: int) -> tuple[Residency, list[StageBuffer]]:
        """Stays together with the buffers of what does not stay; those that find no room any more are given up.

        All is within the room that the stays were found for, or the one that the buffers of everything take.
        """
        end = max(found.end or 0, least)
        while True:
            stages = self._stages(False, found)
            kept = around(self._nearest, found, self._near.legal, self._base, _spans(stages), end)
            if all(kept.of(name).keys() == stays.keys() for name, stays in found.stays.items()):
                return kept, stages
            found = kept

    def _stages(self, wide: bool, residency: Residency | None) -> list[StageBuffer]:
        """The buffers of each section for what does not stand whole in the nearest tier, from its base on.

        Args:
            wide: whether they are as wide as their rate asks for.
            residency: what stands there whole, and when; None for all that may.
        """
        found: list[StageBuffer] = []
        always = set(self._shared[self._near.name].offsets)
        whole: dict[str, list[range]] = {}
        for item in self._nearest:
            uses = item.life.uses
            stays = [(0, len(uses) - 1)] if residency is None else residency.of(item.name)
            whole[item.name] = [range(uses[first], uses[last] + 1) for first, last in stays]
        for number, kernel in enumerate(self._kernels):
            at = self._near.legal(self._base, self._near.unit_bytes)
            for need in kernel.needs:
                stands = need.tensor in always or any(number in stay for stay in whole.get(need.tensor, ()))
                if need.passing or not stands:
                    taken = need.wide if wide else need.least
                    at = self._near.legal(at, taken)
                    found.append(StageBuffer(number, need, at, taken))
                    at += taken
        return found

    def _local(self, residency: Residency, stages: Sequence[StageBuffer]) -> _Local:
        near, *far = self._machine.tiers
        function, steps = self._function, self._steps
        places: dict[str, list[Place]] = {}
        moved: dict[str, list[Move]] = {}
        homeless: list[tuple[Item, int, int]] = []
        for buffer in function.buffers.values():
            for holder, packing in self._shared.items():
                if buffer.kind in SHARED and buffer.name in packing.offsets:
                    life = function.lifetimes[buffer.name]
                    places[buffer.name] = [Place(holder, packing.offsets[buffer.name], life.first, life.last)]
        for item in self._items:
            stays, uses = residency.of(item.name), item.life.uses
            places[item.name] = [self._place(item, near.name, o, uses[a], uses[b]) for (a, b), o in stays.items()]
            found = moves(item, list(stays))
            if found:
                homeless.append((item, found[0].step, found[-1].step))
                moved[item.name] = [
                    Move(m.kind, steps.last(m.step) if m.kind == "spill" else steps.first(m.step)) for m in found
                ]
        homeless.sort(key=lambda h: (-len(moved[h[0].name]), -h[0].bytes, h[1], h[0].name))
        whole = (
            p.offset + function.buffers[n].bytes for n, all_ in places.items() for p in all_ if p.tier == near.name
        )
        most = {near.name: max(_end(stages), max(whole, default=0))}
        for tier in far:
            packing = Packing(tier.legal, self._shared[tier.name].end, self._ends[tier.name])
            waiting = homeless
            homeless = []
            for item, first, last in waiting:
                takes = function.buffers[item.name].kind in tier.kinds
                if takes and packing.add(Span(item.name, item.bytes, first, last)):
                    offset, moves_ = packing.offsets[item.name], moved[item.name]
                    place = self._place(item, tier.name, offset, first, last)
                    # it is filled from there before the last section, or spilled to there behind the first
                    starts = moves_[0].step if moves_[0].kind == "spill" else place.first
                    ends = moves_[-1].step if moves_[-1].kind == "fill" else place.last
                    places[item.name].append(Place(tier.name, offset, starts, ends))
                else:
                    homeless.append((item, first, last))
            most[tier.name] = packing.end
        left = [function.buffers[item.name] for item, _, _ in homeless]
        return _Local(Placed(places, moved, stages), most, left)

    def _place(self, item: Item, tier: str, offset: int, first: int, last: int) -> Place:
        """A place from one step to another; an item's first and last are those of its own first and last use."""
        life = self._function.lifetimes[item.name]
        starts = life.first if first == item.life.first else self._steps.first(first)
        ends = life.last if last == item.life.last else self._steps.last(last)
        return Place(tier, offset, starts, ends)


def _spans(stages: Sequence[StageBuffer]) -> dict[Span, int]:
    return {Span(f"{s.section}/{s.need.tensor}", s.bytes, s.section, s.section): s.offset for s in stages}


def _end(stages: Sequence[StageBuffer]) -> int:
    return max((stage.offset + stage.bytes for stage in stages), default=0)


def _lacking(program: Program, kernels: Kernels, machine: Machine, patience: int) -> dict[str, int]:
    """The bytes that tiers lack, by tier: with so many more, the program has a plan."""
    ends: dict[str, int | None] = {tier.name: tier.bytes for tier in machine.tiers}
    while left := (packed := _pack(program, kernels, machine, ends, None, patience)).left:
        # each of them may go to the last tier that takes its kind, without end
        ends.update({[t.name for t in machine.tiers if b.kind in t.kinds][-1]: None for b in left})
    return {t.name: packed.ends[t.name] - t.bytes for t in machine.tiers if packed.ends[t.name] > t.bytes}


def _overflow(program: Program, kernels: Kernels, machine: Machine, packed: _Packed, patience: int) -> PlacementError:
    if packed.large is not None and packed.large.large is not None and not packed.shared_left:
        kernel = packed.large.large
        return _too_large(program.functions[kernel.section.function], kernel, packed.large.needed, machine)
    lacking = _lacking(program, kernels, machine, patience)
    short = " and ".join(f"{name} lacks {n:,} bytes" for name, n in lacking.items())
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


def _too_large(function: Function, kernel: Kernel, needed: int, machine: Machine) -> PlacementError:
    """An op whose tensors do not fit in the nearest tier, each cut to its least tile."""
    near, position = machine.tiers[0], kernel.section.ops[0]
    stages, at = [], 0
    for need in kernel.needs:
        stages.append(StageBuffer(0, need, near.legal(at, need.least), need.least))
        at = stages[-1].offset + need.least
    op = function.ops[position]
    lines = [
        f"no room on {machine.name} for '{op.name}' in its least tiles: {near.name} lacks {needed - near.bytes:,} "
        f"bytes of {needed:,}; give it a smaller shape, or the machine more of {near.name}; memory map:",
        memory_map(machine, stage_tensors(function, [kernel], stages, near.name)),
    ]
    return PlacementError("\n".join(lines), op.location)
