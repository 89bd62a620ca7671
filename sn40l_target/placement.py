"""Each buffer to tiers and offsets: nearest tier first, by lifetime, spilling what is needed latest.

What the ops of a section touch is there while the section runs: whole in the nearest tier, or in a buffer there. So
places are by section, and what a section takes of the nearest tier is one sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from .errors import PlacementError
from .graph import Function, Program
from .lifetime import Steps
from .machine import SHARED, Machine
from .packing import Packing, Span
from .pipeline import Pipeline
from .residency import Item, Move, Residency, moves
from .schema import Section, Tensor, count, memory_map
from .stays import around, keep, keep_first
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
    """A section, what it needs in the nearest tier of tensors that do not stand there whole, and how it runs.

    ``elements`` are the element types in which its stages compute.
    """

    section: Section
    needs: Sequence[Need]
    pipeline: Pipeline
    elements: Sequence[str]


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
    on in blocks has no place but its stage buffer. The steps of moves are positions of ops. ``crowded``: not everything
    that may stand in the nearest tier does, so that there is no room there for weights that are read ahead.
    """

    places: Mapping[str, Sequence[Place]]
    moves: Mapping[str, Sequence[Move]] = field(default_factory=dict)
    stages: Sequence[StageBuffer] = ()
    crowded: bool = False


Cost = Callable[[Placed], float]
"""What a placement of a function costs: of several that are found, the cheapest is taken."""

Ends = Mapping[str, int | None]
"""By tier, the first byte that may not be used; None for a tier without end."""


@dataclass(frozen=True)
class Shared:
    """Where weights, caches and states stand, by tier; the end of what a call may use of each tier behind them; and
    what found no place."""

    packings: Mapping[str, Packing]
    ends: Ends
    left: Sequence[Buffer]


@dataclass(frozen=True)
class Way:
    """One way to place what a function needs for a call.

    ``ends`` is how far it goes, by tier; ``residency`` what stands in the nearest tier for a while, None where all does
    for its whole life; ``left`` what found no place; ``needed`` what would be enough of the nearest tier, where a
    section needs more than there is.
    """

    placed: Placed
    ends: Mapping[str, int]
    residency: Residency | None = None
    left: Sequence[Buffer] = ()
    needed: int = 0

    @property
    def fits(self) -> bool:
        """Whether it is a placement."""
        return not self.left and not self.needed


def place_shared(program: Program, machine: Machine, ends: Ends) -> list[Shared]:
    """The ways to place what all functions share; the last only for what has no plan in another.

    Weights before caches, bigger before smaller, from the lowest byte on, in the first tier that takes their kind. What
    does not fit in a tier is not, and nothing behind it in that order, so that a larger tier has all that a smaller one
    has. Where not everything fits, or leaves a call less than it may ever want of a tier, another way leaves it that.
    What has a place in none of these ways goes where there is room.
    """
    greedy = _in_order(program, machine, ends, 0)
    middle = [tier.name for tier in machine.tiers[1:-1]]
    spare = [end - greedy.packings[tier].end for tier in middle if (end := greedy.ends[tier]) is not None]
    wanted = max((_wanted(function, machine) for function in program.functions.values()), default=0)
    if not greedy.left and min(spare, default=wanted) >= wanted:
        return [greedy]
    found = [way for way in (_in_order(program, machine, ends, wanted), greedy) if not way.left]
    return [*found, _anywhere(program, machine, ends)]


def _wanted(function: Function, machine: Machine) -> int:
    """What a call takes of a tier behind the nearest where each op is a section and nothing stands in the nearest."""
    packing = Packing(machine.tiers[-1].legal)
    local = (buffer for buffer in function.buffers.values() if buffer.kind not in SHARED)
    lives = function.lifetimes
    packing.add_all(Span(b.name, b.bytes, lives[b.name].first, lives[b.name].last) for b in local)
    return packing.end


def _in_order(program: Program, machine: Machine, ends: Ends, kept: int) -> Shared:
    """What all functions share, so many bytes of each tier but the nearest and the last left for a call."""
    packings = {tier.name: Packing(tier.legal, 0, ends[tier.name]) for tier in machine.tiers}
    rooms = dict(ends)
    waiting = [b for kind in SHARED for b in _largest_first(program.shared.values()) if b.kind == kind]
    for number, tier in enumerate(machine.tiers):
        end, closed, behind = ends[tier.name], False, list[Buffer]()
        last = number == len(machine.tiers) - 1
        limit = end if end is None or not number or last else end - kept
        trial = Packing(tier.legal, 0, limit)
        for buffer in waiting:
            takes = buffer.kind in tier.kinds and not (closed and not last)
            if takes and trial.add(Span(buffer.name, buffer.bytes, 0, 0)):
                packings[tier.name].add_at(Span(buffer.name, buffer.bytes, 0, 0), trial.offsets[buffer.name])
            else:
                closed |= buffer.kind in tier.kinds
                behind.append(buffer)
        if closed and number and not last and end is not None:
            rooms[tier.name] = min(trial.end + kept, end)
        waiting = behind
    return Shared(packings, rooms, waiting)


def _anywhere(program: Program, machine: Machine, ends: Ends) -> Shared:
    """What all functions share, each in the first tier that takes its kind and has room."""
    packings = {tier.name: Packing(tier.legal, 0, ends[tier.name]) for tier in machine.tiers}
    left: list[Span] = []
    for kind in SHARED:
        spans = [Span(b.name, b.bytes, 0, 0) for b in program.shared.values() if b.kind == kind]
        for tier in machine.tiers:
            if kind in tier.kinds:
                spans = packings[tier.name].add_all(spans)
        left += spans
    return Shared(packings, ends, [program.shared[span.name] for span in left])


def _largest_first(buffers: Iterable[Buffer]) -> list[Buffer]:
    return sorted(buffers, key=lambda b: (-b.bytes, b.name))


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


class Placer:
    """The ways to place what a function needs for a call, around what all functions share.

    The buffers of its sections, each while its section runs, then whole tensors. Where the nearest tier is too small
    for all that is alive in one section, tensors leave it between two sections (``stays.keep``); those have a home in
    the first tier behind it with room, those that move the most for their bytes first, and every section has buffers
    for all that it touches.

    Args:
        function: the function.
        kernels: its sections in order.
        machine: its tiers, nearest first.
        shared: what all functions share.
    """

    def __init__(self, function: Function, kernels: Sequence[Kernel], machine: Machine, shared: Shared) -> None:
        self._function = function
        self._kernels = kernels
        self._machine = machine
        self._shared = shared.packings
        self._ends = shared.ends
        self._near = machine.tiers[0]
        self._base = self._shared[self._near.name].end
        self._steps = Steps([kernel.section.ops for kernel in kernels], len(function.ops))
        passing = {need.tensor for kernel in kernels for need in kernel.needs if need.passing}
        self._items = [
            Item(name, buffer.bytes, self._steps.life(function.lifetimes[name]))
            for name, buffer in function.buffers.items()
            if buffer.kind not in SHARED and name not in passing
        ]
        self._nearest = [item for item in self._items if function.buffers[item.name].kind in self._near.kinds]

    def best(self, cost: Cost, most: float, patience: int) -> tuple[float, Way | None]:
        """The cheapest way; None, of infinite cost, where nothing fits or all that does costs ``most`` or more."""
        whole = self.whole(wide=False)
        if whole is not None and whole.fits:
            # nothing that leaves the nearest tier for a while is faster: it moves more, and reads no weights ahead
            return cost(whole.placed), whole
        least, found = inf, None
        if cost(self._least()) < most:
            for way in self.staying(patience):
                # of equals the last, which moves the fewest bytes
                if way.fits and (own := cost(way.placed)) <= least:
                    least, found = own, way
        return least, found

    def whole(self, wide: bool) -> Way | None:
        """Everything in the nearest tier for its whole life; None where there is no room for that.

        Args:
            wide: whether buffers are as wide as their rate asks for.
        """
        end, stages = self._ends[self._near.name], self._stages(wide, None)
        if end is not None and _end(stages) > end:
            return None
        first = keep_first(self._nearest, self._near.legal, self._base, end, _spans(stages))
        # where there is no other tier, nothing can leave this one for a while
        alone = len(self._machine.tiers) == 1
        return self._local(first, stages) if end is None or not first.traffic or alone else None

    def everything(self) -> Way:
        """Everything in the nearest tier as if that had no end."""
        stages = self._stages(False, None)
        return self._local(keep_first(self._nearest, self._near.legal, self._base, None, _spans(stages)), stages)

    def ideal(self) -> Placed:
        """Nothing but what all functions share: no way takes less time."""
        return Placed(self._shared_places())

    def alike(self, way: Way) -> Iterator[Way]:
        """Everything in the nearest tier, or no more than a way of other sizes of buffers has there."""
        if way.residency is None:
            yield from (found for wide in (True, False) if (found := self.whole(wide)) is not None and found.fits)
            return
        end, least = self._ends[self._near.name], _end(self._stages(False, Residency()))
        if end is None or least <= end:
            found = _crowded(self._local(*self._settled(way.residency, least)), way.residency)
            if found.fits:
                yield found

    def _least(self) -> Placed:
        """The buffers of sections alone: no way has less in the nearest tier or moves less."""
        return Placed(self._shared_places(), {}, self._stages(False, None), crowded=True)

    def staying(self, patience: int) -> list[Way]:
        """Everything at home but for stays; the stays that move the fewest bytes last."""
        end, at_home = self._ends[self._near.name], self._stages(False, Residency())
        if end is None or _end(at_home) > end or len(self._machine.tiers) == 1:
            needed = min(_end(at_home), self.everything().ends[self._near.name])
            return [replace(_crowded(self._local(Residency(), at_home), Residency()), needed=needed)]
        kept = keep(self._nearest, self._near, self._base, end, patience, _spans(self._stages(False, None)))
        settled = [self._settled(residency, _end(at_home)) for residency in kept]
        return [_crowded(self._local(*each), each[0]) for each in settled]

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

    def _shared_places(self) -> dict[str, list[Place]]:
        """Where what all functions share stands, of what this one uses."""
        places: dict[str, list[Place]] = {}
        for buffer in self._function.buffers.values():
            for holder, packing in self._shared.items():
                if buffer.kind in SHARED and buffer.name in packing.offsets:
                    life = self._function.lifetimes[buffer.name]
                    places[buffer.name] = [Place(holder, packing.offsets[buffer.name], life.first, life.last)]
        return places

    def _local(self, residency: Residency, stages: Sequence[StageBuffer]) -> Way:
        near, *far = self._machine.tiers
        function, steps = self._function, self._steps
        places = self._shared_places()
        moved: dict[str, list[Move]] = {}
        homeless: list[tuple[Item, int, int]] = []
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
            end, last = self._ends[tier.name], tier is far[-1]
            # as if the tier had no end: a larger one has all that a smaller one has
            packing = Packing(tier.legal, self._shared[tier.name].end, end if last else None)
            most[tier.name] = packing.end
            waiting = homeless
            homeless = []
            for item, first, final in waiting:
                takes = function.buffers[item.name].kind in tier.kinds
                if takes and packing.add(Span(item.name, item.bytes, first, final)):
                    offset, moves_ = packing.offsets[item.name], moved[item.name]
                    if end is None or offset + item.bytes <= end:
                        place = self._place(item, tier.name, offset, first, final)
                        # it is filled from there before the last section, or spilled to there behind the first
                        starts = moves_[0].step if moves_[0].kind == "spill" else place.first
                        ends = moves_[-1].step if moves_[-1].kind == "fill" else place.last
                        places[item.name].append(Place(tier.name, offset, starts, ends))
                        most[tier.name] = max(most[tier.name], offset + item.bytes)
                        continue
                homeless.append((item, first, final))
        left = [function.buffers[item.name] for item, _, _ in homeless]
        return Way(Placed(places, moved, stages), most, left=left)

    def _place(self, item: Item, tier: str, offset: int, first: int, last: int) -> Place:
        """A place from one step to another; an item's first and last are those of its own first and last use."""
        life = self._function.lifetimes[item.name]
        starts = life.first if first == item.life.first else self._steps.first(first)
        ends = life.last if last == item.life.last else self._steps.last(last)
        return Place(tier, offset, starts, ends)


def _crowded(way: Way, residency: Residency) -> Way:
    """A way on which not everything stands in the nearest tier."""
    return replace(way, placed=replace(way.placed, crowded=True), residency=residency)


def _spans(stages: Sequence[StageBuffer]) -> dict[Span, int]:
    return {Span(f"{s.section}/{s.need.tensor}", s.bytes, s.section, s.section): s.offset for s in stages}


def _end(stages: Sequence[StageBuffer]) -> int:
    return max((stage.offset + stage.bytes for stage in stages), default=0)


def no_room(
    program: Program, kernels: Mapping[str, Sequence[Sequence[Kernel]]], machine: Machine, patience: int
) -> PlacementError:
    """Why a program has no plan: the tiers that are too small, by how much, and the memory map.

    Args:
        program: the functions.
        kernels: the cuts of each function, by its name.
        machine: its tiers.
        patience: see ``stays.keep``.
    """
    ends = {tier.name: tier.bytes for tier in machine.tiers}
    shared = place_shared(program, machine, ends)[-1]
    found = {
        name: _least(function, kernels[name], machine, shared, patience) for name, function in program.functions.items()
    }
    for name, (way, own) in found.items():
        if way.needed and not shared.left:
            large = max(own, key=lambda kernel: sum(need.least for need in kernel.needs))
            return _too_large(program.functions[name], large, way.needed, machine)
    lacking = _lacking(program, kernels, machine, patience)
    short = " and ".join(f"{name} lacks {n:,} bytes" for name, n in lacking.items())
    failed = next((name for name, (way, _) in found.items() if way.left), "")
    what = "the program's weights, caches and states" if shared.left else failed
    left = shared.left or found[failed][0].left
    shown = [
        tensor
        for function in program.functions.values()
        for name, places in found[function.name][0].placed.places.items()
        for tensor in tensors(function, name, places, None)
        if function.buffers[name].kind in SHARED or function.name == what
    ]
    lines = [
        f"no room on {machine.name} for {what}: {short}; memory map:",
        memory_map(machine, shown),
        f"without a place: {count(left)}, {sum(b.bytes for b in left):,} bytes",
    ]
    biggest = _largest_first(left)[:12]
    lines += [f"  {b.bytes:>15,} bytes  {b.kind:<10}  {b.name}  ({b.location})" for b in biggest]
    return PlacementError("\n".join(lines))


def _least(
    function: Function, cuts: Sequence[Sequence[Kernel]], machine: Machine, shared: Shared, patience: int
) -> tuple[Way, Sequence[Kernel]]:
    """The cut and the way that lack the least of the tiers."""

    def lacks(way: Way) -> tuple[int, int]:
        return way.needed, sum(max(end - machine.tier(tier).bytes, 0) for tier, end in way.ends.items())

    found: list[tuple[Way, Sequence[Kernel]]] = []
    for kernels in cuts:
        placer = Placer(function, kernels, machine, shared)
        whole = placer.whole(wide=False)
        found += [(way, kernels) for way in ([whole] if whole is not None else placer.staying(patience))]
    return min(found, key=lambda f: (not f[0].fits, *lacks(f[0])))


def _lacking(
    program: Program, kernels: Mapping[str, Sequence[Sequence[Kernel]]], machine: Machine, patience: int
) -> dict[str, int]:
    """The bytes that tiers lack, by tier: with so many more, the program has a plan."""
    ends: dict[str, int | None] = {tier.name: tier.bytes for tier in machine.tiers}
    while True:
        found = []
        for shared in place_shared(program, machine, ends):
            ways = [_least(f, kernels[name], machine, shared, patience)[0] for name, f in program.functions.items()]
            left = [*shared.left, *(b for way in ways for b in way.left)]
            most = {t.name: max([shared.packings[t.name].end, *(w.ends[t.name] for w in ways)]) for t in machine.tiers}
            lacks = {t.name: most[t.name] - t.bytes for t in machine.tiers if most[t.name] > t.bytes}
            found.append((lacks, left))
        whole = [lacks for lacks, left in found if not left]
        if whole:
            return min(whole, key=lambda lacks: sum(lacks.values()))
        # each of them may go to the last tier that takes its kind, without end
        ends.update({[t.name for t in machine.tiers if b.kind in t.kinds][-1]: None for _, left in found for b in left})


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
