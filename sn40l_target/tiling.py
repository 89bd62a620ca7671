"""How a section's ops are tiled, and what its stages and buffers take of the machine's units.

A tile of an op is a tile of its loops. It is as large as possible such that two copies of what it touches of each
operand fit in one memory unit, so that a stage fills one while the next stage reads the other; the copies stand in
banks of their own. What is no multiple of a loop's extent is avoided where a divisor is near. What a section streams
goes from stage to stage in blocks: parts of the dimensions that are streamed, and the whole of all others.

A buffer has memory units to itself. Where even the smallest tile is larger than a unit, or a tensor stays whole, it
spans units for its bytes; where a stage reads faster than one unit gives, it may span more for the rate. A section of
one op that takes more than there is goes without tensors that stay whole, then with smaller and smaller tiles, then
with buffers that share units, in banks of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, prod

from torch_mlir import ir

from .bounds import element_bytes, interval, shape, size
from .graph import Function
from .loops import Loops, loops_of
from .machine import SHARED, Machine, Tier
from .pipeline import Part, Pipeline
from .schema import BufferRole, Stage
from .storage import definition, destinations, is_blank, is_tensor, root

_MOVES = frozenset({"arith.constant", "arith.index_cast", "arith.select", "arith.bitcast"})

_WIDENS = frozenset({"arith.extf", "arith.extsi", "arith.extui"})

_MANY = 2**62
"""More blocks than any stream has steps: each block is one step."""


@dataclass(frozen=True)
class Need:
    """What a section keeps of a tensor in the nearest tier while it runs, unless the tensor stands there whole.

    Attributes:
        tensor: the buffer's name.
        role: see ``schema.Tensor``.
        bytes: of one copy.
        copies: two where one is filled while the other is read.
        least: what all copies take, in whole memory units or banks.
        wide: the units for the rate at which it is read, in bytes; at least ``least``.
        passing: nothing outside the section uses the tensor, so that it stands nowhere else.
    """

    tensor: str
    role: BufferRole
    bytes: int
    copies: int
    least: int
    wide: int
    passing: bool


@dataclass(frozen=True)
class Made:
    """A section's stages on their shares of the machine, what it needs in the nearest tier, and how it runs.

    ``elements`` are the element types in which the stages compute.
    """

    stages: tuple[Stage, ...]
    needs: tuple[Need, ...]
    pipeline: Pipeline
    elements: tuple[str, ...]


_Touch = tuple[str, bool, int]
"""A buffer's name, whether it must be there whole, and the bytes of it that are there at a time."""


@dataclass(frozen=True)
class _Size:
    """How small a section's buffers are.

    ``blocks`` is into how many streams are cut, ``share`` the bytes for two tiles of a tensor, ``whole`` whether what
    is used at computed places, or again for each block, is there whole, ``dense`` whether buffers share units.
    """

    blocks: int
    share: int
    whole: bool = True
    dense: bool = False


def work_of(op: ir.Operation) -> int:
    """The arithmetic operations of an op: the body's for every step of the loops, those of a loop for each iteration.

    Loops that end early count as long as their longest iteration.
    """
    if op.name == "scf.for":
        low, high, step = (interval(v) for v in list(op.operands)[:3])
        trips = max(0, -(-(high.high - low.low) // max(step.low, 1)))
        return trips * sum(work_of(inner.operation) for inner in op.regions[0].blocks[0].operations)
    loops = loops_of(op)
    if loops is None or not op.regions:
        return 2 * size(op.results[0]) if op.name == "linalg.softmax" else 0
    body = [str(inner.operation.name) for block in op.regions[0].blocks for inner in block.operations]
    # the units multiply narrow numbers and add them up in wide ones
    free = _MOVES | _WIDENS if loops.contracts else _MOVES
    return loops.steps * sum(name.startswith(("arith.", "math.")) and name not in free for name in body)


def computes_in(op: ir.Operation) -> str:
    """The element type that decides how fast an op is: of what a contraction multiplies, of what others make."""
    loops = loops_of(op)
    taken = {_element(v) for v in loops.inputs} if loops is not None and loops.contracts else set()
    made = [_element(r) for r in op.results if is_tensor(r)]
    return taken.pop() if len(taken) == 1 else next(iter(made), "")


def _element(value: ir.Value) -> str:
    return str(ir.RankedTensorType(value.type).element_type)


class Tiler:
    """The stages and buffers of a function's ops on a machine."""

    def __init__(self, function: Function, machine: Machine) -> None:
        self._function = function
        self._machine = machine
        self._tier = machine.tiers[0]
        self._loops = [loops_of(op) for op in function.ops]
        self._held = {value: name for name, buffer in function.buffers.items() for value in buffer.values}
        self._reads = [[root(v) for v in op.operands if is_tensor(v)] for op in function.ops]
        self._moved: dict[int, list[str]] = {}
        for move in function.moves:
            self._moved.setdefault(move.position, []).extend((move.source, move.target))
        self._touched: dict[tuple[int, frozenset[ir.Value], tuple[int, ...], _Size], list[_Touch]] = {}
        self._tiles: dict[tuple[int, tuple[int, ...], int], tuple[int, ...]] = {}
        self._work: dict[int, int] = {}
        self._elements: dict[int, str] = {}
        self._sections: dict[tuple[Part, _Size], Made] = {}
        self._bytes: dict[Part, int] = {}
        self._many = _Size(_MANY, 2 * int(self._tier.granularity.value) if self._tier.flat else self._tier.unit_bytes)

    def bytes(self, part: Part) -> int:
        """What the least buffers of a section take of the nearest tier.

        That depends on the units, banks and steps of the tier, not on how many it has of them.
        """
        if part not in self._bytes:
            self._bytes[part] = self._end(self._needs(part, self._least(part)))
        return self._bytes[part]

    def growth(self) -> Growth:
        """For what ``bytes`` comes to while ops are added to a section."""
        return Growth(self._grown, self._tier)

    def _grown(
        self, position: int, kept: frozenset[ir.Value], streams: Mapping[ir.Value, frozenset[int]]
    ) -> Iterator[_Touch]:
        """What an op touches as one of several in a section with the least buffers, and blocks of what it makes."""
        size_ = self._many
        yield from self._touches(position, kept, self._caps(position, streams, size_), size_)
        for value, dimensions in streams.items():
            held = self._held.get(self._function.ids[value])
            if held is not None and dimensions:
                yield held, False, _block(value, dimensions, size_.blocks)

    def least(self, part: Part) -> Made:
        """A section with the least buffers: streams go one step at a time."""
        return self._made(part, self._least(part))

    def section(self, part: Part, room: int) -> Made:
        """A section with buffers as large as so many bytes of the nearest tier allow.

        What it streams is in as many blocks as it has stages, if so long.
        """
        for tried in self._sizes(part):
            if self._end(self._needs(part, tried)) <= room:
                break
        made = self._made(part, tried)
        return replace(made, needs=self._widened(made.stages, made.needs))

    def _made(self, part: Part, size_: _Size) -> Made:
        key = part, size_
        if key in self._sections:
            return self._sections[key]
        pipeline = Pipeline(self._function, part)
        work = [self._operations(position) for position in part.ops]
        shares = pipeline.shares(work, int(self._machine.compute_units.value))
        stages = []
        for position, operations, units in zip(part.ops, work, shares, strict=True):
            loops = self._loops[position]
            extents = () if loops is None else loops.extents
            tile = () if loops is None else self._tile(position, self._caps(position, part.streams, size_), size_.share)
            stages.append(Stage(op=position, loops=extents, tile=tile, work=operations, compute_units=units))
        elements = tuple(self._element(position) for position in part.ops)
        found = self._sections[key] = Made(tuple(stages), tuple(self._needs(part, size_)), pipeline, elements)
        return found

    def _element(self, position: int) -> str:
        if position not in self._elements:
            self._elements[position] = computes_in(self._function.ops[position])
        return self._elements[position]

    def _operations(self, position: int) -> int:
        if position not in self._work:
            self._work[position] = work_of(self._function.ops[position])
        return self._work[position]

    def _least(self, part: Part) -> _Size:
        """The size of the least buffers; where they are of several ops, each has units to itself."""
        if len(part.ops) == 1 and not part.resident:
            return _Size(_MANY, 1, whole=False, dense=True)
        return self._many

    def _tile(self, position: int, caps: tuple[int, ...], share: int) -> tuple[int, ...]:
        """How many steps of each of an op's loops one tile takes, at most ``caps``, if so two copies fit in a share."""
        key = position, caps, share
        found = self._tiles.get(key)
        if found is None:
            loops = self._loops[position]
            assert loops is not None
            found = self._tiles[key] = _tile(loops, self._tier, caps, share)
        return found

    def _sizes(self, part: Part) -> Iterator[_Size]:
        """Sizes of a section's buffers, smaller and smaller: blocks, then what stays whole, then each op's tiles."""
        share = _share(self._machine)
        longest = max((max(shape(v)) for v, dimensions in part.streams.items() if dimensions), default=1)
        blocks = len(part.ops)
        yield _Size(blocks, share)
        while blocks < longest:
            blocks *= 2
            yield _Size(blocks, share)
        while share > 1:
            yield _Size(blocks, share, whole=False)
            share //= 2
        yield _Size(blocks, share, whole=False, dense=True)

    def _end(self, needs: Sequence[Need]) -> int:
        # where there is no other tier, all that does not pass stands whole in this one
        alone, end = len(self._machine.tiers) == 1, 0
        for need in needs:
            if need.passing or not alone:
                end = self._tier.legal(end, need.least) + need.least
        return end

    def _caps(self, position: int, streams: Mapping[ir.Value, frozenset[int]], size_: _Size) -> tuple[int, ...]:
        """At most how many steps of each loop one tile takes, so that streams are passed on in blocks."""
        loops = self._loops[position]
        if loops is None:
            return ()
        caps = list(loops.extents)
        at = loops.at(len(loops.inputs))
        for dimension in streams.get(self._function.ops[position].results[0], frozenset()):
            loop = at[dimension]
            if loop is not None:
                caps[loop] = _divisor(caps[loop], -(-caps[loop] // size_.blocks))
        return tuple(caps)

    def _needs(self, part: Part, size_: _Size) -> list[Need]:
        """One buffer for each tensor that the ops read or write, as large as the largest part of it at a time."""
        most: dict[str, tuple[bool, int]] = {}
        users: dict[str, set[int]] = {}
        for position in part.ops:
            resident = part.resident.intersection(self._reads[position])
            caps = self._caps(position, part.streams, size_)
            for tensor, whole, bytes_ in self._touches(position, resident, caps, size_):
                # what must be whole for one op is whole for all
                most[tensor] = max(most.get(tensor, (False, 0)), (whole, bytes_))
                users.setdefault(tensor, set()).add(position)
        passing = self._passing(part)
        for value, dimensions in part.streams.items():
            held = self._held.get(self._function.ids[value])
            # one that no other op of the section takes is not passed on
            if held is not None and dimensions and (len(users[held]) > 1 or held in passing):
                most[held] = max(most.get(held, (False, 0)), (False, _block(value, dimensions, size_.blocks)))
        return [
            self._need(tensor, whole, bytes_, tensor in passing, size_.dense)
            for tensor, (whole, bytes_) in most.items()
        ]

    def _touches(
        self, position: int, resident: frozenset[ir.Value], caps: tuple[int, ...], size_: _Size
    ) -> list[_Touch]:
        key = position, resident, caps, size_
        if key not in self._touched:
            self._touched[key] = list(self._touch(*key))
        return self._touched[key]

    def _touch(
        self, position: int, resident: frozenset[ir.Value], caps: tuple[int, ...], size_: _Size
    ) -> Iterator[_Touch]:
        """The buffers that an op touches: whether each must be there whole, and how much of it is at a time."""
        op, loops = self._function.ops[position], self._loops[position]
        half = max(size_.share // 2, 1)
        for value, bytes_ in self._parts(position, caps, size_.share):
            source = root(value)
            held = self._held.get(self._function.ids[source])
            stays = size_.whole and source in resident
            if held is not None:
                yield held, stays, size(source) if stays else bytes_
        for value in self._function.captured.get(position, ()):
            source = root(value)
            made = definition(source)
            held = self._held.get(self._function.ids[source])
            # a weight that is looked up in is read row by row from where it stands
            rows = made is not None and made.name == "kv.parameter"
            if held is not None and (rows or not size_.whole):
                row = size(op.results[0]) if loops is not None else size(source)
                yield held, False, min(row, size(source), half)
            elif held is not None:
                yield held, True, size(source)
        for name in (f"{self._function.name}:{position}.scratch", *self._moved.get(position, ())):
            if name in self._function.buffers:
                yield name, False, min(self._function.buffers[name].bytes, half)

    def _parts(self, position: int, caps: tuple[int, ...], share: int) -> Iterator[tuple[ir.Value, int]]:
        """The operands and results of an op, and the bytes of each that one tile touches."""
        op, loops = self._function.ops[position], self._loops[position]
        if loops is None:
            into = {o for o, _ in destinations(op) if is_blank(op.operands[o])}
            values = [v for i, v in enumerate(op.operands) if i not in into]
            yield from ((v, min(size(v), max(share // 2, 1))) for v in (*values, *op.results) if is_tensor(v))
            return
        tile = self._tile(position, caps, share)
        for number, value in enumerate(loops.operands):
            made = number - len(loops.inputs)
            yield op.results[made] if made >= 0 else value, loops.tile_bytes(number, tile)

    def _passing(self, part: Part) -> set[str]:
        """The buffers that the ops make, pass on in blocks, and alone use."""
        inside, streamed = set(part.ops), {v for v, dimensions in part.streams.items() if dimensions}
        made: dict[str, list[ir.Value]] = {}
        for position in part.ops:
            for result in self._function.ops[position].results:
                held = self._held.get(self._function.ids[result])
                if held is not None:
                    made.setdefault(held, []).append(result)
        return {
            name
            for name, values in made.items()
            # what a loop builds is there when the loop ends
            if streamed.issuperset(values)
            and not any(v.owner.name == "scf.for" for v in values)
            and self._function.buffers[name].kind not in SHARED
            and inside.issuperset(self._function.lifetimes[name].uses)
        }

    def _need(self, tensor: str, whole: bool, bytes_: int, passing: bool, dense: bool) -> Need:
        copies = 1 if whole else 2
        least = _least_bytes(self._tier, copies, bytes_, dense)
        return Need(tensor, "resident" if whole else "tile", bytes_, copies, least, least, passing)

    def _widened(self, stages: Sequence[Stage], needs: Sequence[Need]) -> tuple[Need, ...]:
        """With the units that the rate of the slowest stage, or of memory, takes; while there are any left."""
        unit = self._tier.unit_bytes
        rate = self._tier.bandwidth.value / max(self._tier.units, 1)
        buffers = self._function.buffers
        kept = sum(buffers[n.tensor].bytes for n in needs if buffers[n.tensor].kind in SHARED)
        streaming = kept / self._machine.home("weight").bandwidth.value
        seconds = max(*(self._seconds(stage) for stage in stages), streaming)
        left = self._tier.units - sum(_rounded(need.least, unit) // unit for need in needs)
        found: list[Need] = []
        for need in needs:
            wanted = ceil(buffers[need.tensor].bytes / seconds / rate) if seconds > 0 else 0
            more = max(0, min(wanted - _rounded(need.least, unit) // unit, left))
            left -= more
            found.append(replace(need, wide=_rounded(need.least, unit) + more * unit if more else need.least))
        return tuple(found)

    def _seconds(self, stage: Stage) -> float:
        one = self._machine.peak_of(self._element(stage.op)) / self._machine.compute_units.value
        return stage.work / (stage.compute_units * one)


class Growth:
    """What the least buffers of a section take of the nearest tier while ops are added to it.

    That is at least what ``Tiler.bytes`` gives for two ops or more: a tensor that passes is taken for one that stays
    where there is no other tier.
    """

    def __init__(
        self,
        touches: Callable[[int, frozenset[ir.Value], Mapping[ir.Value, frozenset[int]]], Iterable[_Touch]],
        tier: Tier,
    ) -> None:
        self._touches = touches
        self._tier = tier
        self._most: dict[str, tuple[bool, int]] = {}
        self._takes: dict[str, int] = {}
        self._total = 0

    def add(self, position: int, kept: frozenset[ir.Value], streams: Mapping[ir.Value, frozenset[int]]) -> int:
        """Adds an op.

        Args:
            position: of the op.
            kept: the weight that stays.
            streams: the dimensions along which its results, and their views, are passed on.

        Returns:
            the bytes of all ops so far.
        """
        for tensor, whole, bytes_ in self._touches(position, kept, streams):
            before = self._most.get(tensor, (False, -1))
            if (whole, bytes_) > before:
                self._most[tensor] = whole, bytes_
                takes = _least_bytes(self._tier, 1 if whole else 2, bytes_, dense=False)
                self._total += takes - self._takes.get(tensor, 0)
                self._takes[tensor] = takes
        return self._total


def _least_bytes(tier: Tier, copies: int, bytes_: int, dense: bool) -> int:
    """What so many copies take of a tier, in banks of their own, and in units unless buffers share those."""
    least = copies * _rounded(bytes_, tier.bank)
    return least if dense else _rounded(least, tier.unit_bytes)


def _rounded(bytes_: int, step: int) -> int:
    return -(-bytes_ // step) * step


def _share(machine: Machine) -> int:
    """The bytes of the nearest tier for one stage's tiles of one tensor, two of which fit: those of a unit.

    A flat memory is shared by as many stages as there are compute units.
    """
    tier = machine.tiers[0]
    return max(tier.bytes // int(machine.compute_units.value), 1) if tier.flat else tier.unit_bytes


def _block(value: ir.Value, dimensions: frozenset[int], blocks: int) -> int:
    """The bytes of a tensor that are passed on at a time, where the given dimensions are streamed in so many blocks."""
    extents = [_divisor(n, -(-n // blocks)) if d in dimensions else n for d, n in enumerate(shape(value))]
    return prod(extents) * element_bytes(ir.RankedTensorType(value.type).element_type)


def _divisor(extent: int, most: int) -> int:
    """The largest divisor of an extent that is at most ``most``; ``most`` itself where that is less than half of it."""
    divisor = next(d for d in range(max(1, most), 0, -1) if extent % d == 0)
    return divisor if 2 * divisor >= most else most


def _tile(loops: Loops, tier: Tier, caps: tuple[int, ...], share: int) -> tuple[int, ...]:
    """The largest tile two copies of whose operands each fit in a share, in banks of their own.

    The loop that is cut is the one with the most steps among those that walk the operand that is too large, a
    parallel one before one that is reduced; an operand's last dimension is not cut below one step of the memory while
    anything else can be.
    """
    half = share // tier.bank // 2 * tier.bank or share // 2
    tile = list(caps)
    vectors = _vectors(loops, int(tier.granularity.value))
    while True:
        large = max(range(len(loops.operands)), key=lambda i: loops.tile_bytes(i, tile))
        if loops.tile_bytes(large, tile) <= half:
            return tuple(tile)
        walking = [loop for loop in range(len(tile)) if tile[loop] > 1 and _walks(loops, large, tile, loop)]
        if not walking:
            return tuple(tile)
        loop = min(walking, key=lambda i: (tile[i] <= vectors.get(i, 1), i in loops.reductions, -tile[i], i))
        tile[loop] = _divisor(loops.extents[loop], tile[loop] // 2)


def _vectors(loops: Loops, step: int) -> dict[int, int]:
    """For each loop that walks an operand's last dimension, the elements of one step of the memory."""
    found: dict[int, int] = {}
    for number, operand in enumerate(loops.operands):
        at = loops.at(number)
        if at and at[-1] is not None:
            elements = step // element_bytes(ir.RankedTensorType(operand.type).element_type)
            found[at[-1]] = max(found.get(at[-1], 1), elements)
    return found


def _walks(loops: Loops, operand: int, tile: Sequence[int], loop: int) -> bool:
    """Whether fewer steps of a loop make an operand's tile smaller."""
    less = [1 if i == loop else t for i, t in enumerate(tile)]
    return loops.tile_bytes(operand, less) < loops.tile_bytes(operand, tile)
