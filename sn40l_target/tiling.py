"""How a section's ops are tiled, and what its stages and buffers take of the machine's units.

A tile of an op is a tile of its loops. It is as large as possible such that two copies of what it touches of each
operand fit in one memory unit, so that a stage fills one while the next stage reads the other; the copies stand in
banks of their own. What is no multiple of a loop's extent is avoided where a divisor is near. Where even the smallest
tile is larger, or a tensor stays whole, a buffer spans units for its bytes; where a stage reads faster than one unit
gives, it spans units for the rate, as far as there are any left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil

from torch_mlir import ir

from .bounds import element_bytes, interval, size
from .graph import Function
from .loops import Loops, loops_of
from .machine import Machine, Tier
from .schema import Role, Stage, StageBuffer
from .storage import definition, destinations, is_blank, is_tensor, root

_MOVES = frozenset({"arith.constant", "arith.index_cast", "arith.select", "arith.bitcast"})


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
    return loops.steps * sum(name.startswith(("arith.", "math.")) and name not in _MOVES for name in body)


class Tiler:
    """The stages and buffers of a function's ops on a machine."""

    def __init__(self, function: Function, machine: Machine) -> None:
        self._function = function
        self._machine = machine
        self._tier = machine.tiers[0]
        self._loops = [loops_of(op) for op in function.ops]
        self._values = {name: value for value, name in function.ids.items()}
        self._reads = [[root(v) for v in op.operands if is_tensor(v)] for op in function.ops]
        self._seen: dict[tuple[int, bool, tuple[int, ...]], list[StageBuffer]] = {}
        self._tiles: dict[tuple[int, tuple[int, ...]], tuple[int, ...]] = {}

    def fits(self, ops: Sequence[int], resident: frozenset[ir.Value]) -> bool:
        """Whether ops are within the machine's units as one section, with one compute unit a stage."""
        if len(ops) > int(self._machine.compute_units.value):
            return False
        return sum(b.memory_units for b in self._buffers(ops, resident, {})) <= self._tier.units

    def section(
        self, ops: Sequence[int], resident: frozenset[ir.Value], streamed: Mapping[ir.Value, frozenset[int]]
    ) -> tuple[tuple[Stage, ...], tuple[StageBuffer, ...]]:
        """A section's stages and buffers; what it streams is in as many tiles as it has stages, if it is so long."""
        caps = {position: self._caps(position, len(ops), streamed) for position in ops}
        work = [work_of(self._function.ops[position]) for position in ops]
        shares = _shares(work, int(self._machine.compute_units.value))
        stages = tuple(
            Stage(
                op=position, loops=loops.extents, tile=self.tile(position, caps[position]), work=w, compute_units=units
            )
            if (loops := self._loops[position]) is not None
            else Stage(op=position, loops=(), tile=(), work=w, compute_units=units)
            for position, w, units in zip(ops, work, shares, strict=True)
        )
        return stages, self._spread(stages, self._buffers(ops, resident, caps))

    def tile(self, position: int, caps: tuple[int, ...] = ()) -> tuple[int, ...]:
        """How many steps of each of an op's loops one tile takes, with at most ``caps`` of each if given."""
        found = self._tiles.get((position, caps))
        if found is None:
            loops = self._loops[position]
            assert loops is not None
            found = self._tiles[position, caps] = _tile(loops, self._tier, caps or loops.extents)
        return found

    def _caps(self, position: int, stages: int, streamed: Mapping[ir.Value, frozenset[int]]) -> tuple[int, ...]:
        loops = self._loops[position]
        if loops is None:
            return ()
        caps = list(loops.extents)
        at = loops.at(len(loops.inputs))
        for dimension in streamed.get(self._function.ops[position].results[0], frozenset()):
            loop = at[dimension]
            if loop is not None:
                caps[loop] = _divisor(caps[loop], -(-caps[loop] // stages))
        return tuple(caps)

    def _buffers(
        self, ops: Sequence[int], resident: frozenset[ir.Value], caps: dict[int, tuple[int, ...]]
    ) -> list[StageBuffer]:
        """One buffer for each tensor that the ops read or write, as large as the largest tile of it."""
        found: dict[str, StageBuffer] = {}
        for position in ops:
            key = position, not resident.isdisjoint(self._reads[position]), caps.get(position, ())
            if key not in self._seen:
                touched = self._touched(position, resident, caps.get(position, ()))
                self._seen[key] = [self._buffer(*part) for part in touched]
            for buffer in self._seen[key]:
                old = found.get(buffer.tensor)
                # what must be whole for one op is whole for all
                if old is None or _outweighs(buffer, old):
                    found[buffer.tensor] = buffer
        return list(found.values())

    def _touched(
        self, position: int, resident: frozenset[ir.Value], caps: tuple[int, ...]
    ) -> list[tuple[str, Role, int]]:
        op, loops = self._function.ops[position], self._loops[position]
        half = self._tier.unit_bytes // 2
        touched: list[tuple[str, Role, int]] = []
        if loops is not None:
            tile = self.tile(position, caps)
            for number, value in enumerate(loops.operands):
                if number >= len(loops.inputs):
                    value = op.results[number - len(loops.inputs)]
                elif is_blank(value):
                    continue
                source = root(value)
                if source in resident:
                    touched.append((self._name(source), "resident", size(source)))
                else:
                    touched.append((self._name(source), "tile", loops.tile_bytes(number, tile)))
        else:
            into = {o for o, _ in destinations(op) if is_blank(op.operands[o])}
            values = [v for i, v in enumerate(op.operands) if is_tensor(v) and i not in into]
            touched += [
                (self._name(root(v)), "tile", min(size(v), half)) for v in (*values, *op.results) if is_tensor(v)
            ]
        for value in self._function.captured.get(position, ()):
            source = root(value)
            made = definition(source)
            # a weight that is looked up in is read row by row from where it stands
            if made is None or made.name != "kv.parameter":
                touched.append((self._name(source), "resident", size(source)))
        scratch = self._function.buffers.get(f"{self._function.name}:{position}.scratch")
        if scratch is not None:
            touched.append((scratch.name, "scratch", scratch.bytes))
        return touched

    def _name(self, value: ir.Value) -> str:
        return self._function.ids[value]

    def _buffer(self, name: str, role: Role, bytes_: int) -> StageBuffer:
        copies = 2 if role == "tile" else 1
        banks = copies * ceil(bytes_ / self._tier.bank)
        units = ceil(banks * self._tier.bank / self._tier.unit_bytes)
        return StageBuffer(tensor=name, role=role, bytes=bytes_, copies=copies, memory_units=units)

    def _spread(self, stages: Sequence[Stage], buffers: Sequence[StageBuffer]) -> tuple[StageBuffer, ...]:
        """Buffers with the units that the rate of the slowest stage, or of memory, takes; while there are any left."""
        rate = self._tier.bandwidth.value / self._tier.units
        seconds = max(*(self._seconds(stage) for stage in stages), self._streaming(buffers))
        left = self._tier.units - sum(b.memory_units for b in buffers)
        found: list[StageBuffer] = []
        for buffer in buffers:
            value = self._values.get(buffer.tensor)
            wanted = ceil(size(value) / seconds / rate) if value is not None and seconds > 0 else 0
            more = max(0, min(wanted - buffer.memory_units, left))
            left -= more
            found.append(buffer.model_copy(update={"memory_units": buffer.memory_units + more}))
        return tuple(found)

    def _streaming(self, buffers: Sequence[StageBuffer]) -> float:
        """How long the weights and states that a section reads take from where they live."""
        values = [v for b in buffers if (v := self._values.get(b.tensor)) is not None]
        made = [(v, op.name) for v in values if (op := definition(v)) is not None]
        bytes_ = sum(size(v) for v, name in made if name in ("kv.parameter", "kv.state_load"))
        return bytes_ / self._machine.home("weight").bandwidth.value

    def _seconds(self, stage: Stage) -> float:
        results = [r for r in self._function.ops[stage.op].results if is_tensor(r)]
        element = str(ir.RankedTensorType(results[0].type).element_type) if results else ""
        one = self._machine.peak_of(element) / self._machine.compute_units.value
        return stage.work / (stage.compute_units * one)


def _shares(work: Sequence[int], units: int) -> list[int]:
    """Compute units by work, at least one for each stage; what rounding leaves goes to the most loaded."""
    shares = [max(1, units * w // max(sum(work), 1)) for w in work]
    while sum(shares) > units and max(shares) > 1:
        shares[shares.index(max(shares))] -= 1
    for _ in range(units - sum(shares) if any(work) else 0):
        loads = [w / s for w, s in zip(work, shares, strict=True)]
        shares[loads.index(max(loads))] += 1
    return shares


def _divisor(extent: int, most: int) -> int:
    """The largest divisor of an extent that is at most ``most``; ``most`` itself where that is less than half of it."""
    divisor = next(d for d in range(max(1, most), 0, -1) if extent % d == 0)
    return divisor if 2 * divisor >= most else most


def _tile(loops: Loops, tier: Tier, caps: tuple[int, ...]) -> tuple[int, ...]:
    """The largest tile two copies of whose operands each fit in a unit, in banks of their own.

    The loop that is cut is the one with the most steps among those that walk the operand that is too large, a
    parallel one before one that is reduced; an operand's last dimension is not cut below one step of the memory while
    anything else can be.
    """
    half = tier.unit_bytes // tier.bank // 2 * tier.bank or tier.unit_bytes // 2
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


def _outweighs(buffer: StageBuffer, other: StageBuffer) -> bool:
    """Whether a buffer serves where another of the same tensor does: whole, or with larger tiles."""
    return (buffer.role == "resident", buffer.bytes) > (other.role == "resident", other.bytes)
