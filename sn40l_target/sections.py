"""Where the program is cut into sections: the fused kernels that a machine is given whole, one after the other.

Inside a section ops are stages that stand beside one another on the machine and pass tiles on. A section is a run of
ops in the program's order; it ends where one of these rules says so, and nowhere else.

*What streams.* A contraction with a weight streams its tokens past the weight where each byte of the weight is used
often enough to keep the compute units busy: operations per byte at or above the machine's peak over the bandwidth of
the memory that weights live in. Elsewhere the weights stream past the tokens, which are then there whole. A contraction
that starts a section without a weight (attention, scores) streams over the loops that all its operands have (heads):
these are problems of their own. Elementwise ops, views and reductions over other dimensions pass a stream on.

1. *Barrier.* An op needs the whole of a tensor that its own section streams: it reduces the streamed dimension, does
   not walk it in the same order as its other operands (keys against queries), or reads at computed places.
2. *Nothing arrives.* A contraction all of whose inputs come from earlier sections has no stage to be passed tiles by.
3. *Row reduction.* Behind a contraction a whole row is reduced before anything else passes (a norm on the residual
   stream): only that tensor is alive, so to end there costs the least, and the units are free for what follows.
4. *Units.* The section's stages or their buffers are more than the machine's compute units or memory units. A weight
   that alone is more than the memory units does not stay: it streams past the tokens again for each block of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from torch_mlir import ir

from snapcc.compiler.dialect.kv import string

from .bounds import DYNAMIC, shape, size
from .graph import Function
from .loops import Loops, loops_of
from .machine import Machine
from .storage import definition, destinations, is_blank, is_tensor, is_view, keeps_contents, root
from .tiling import Part


@dataclass(frozen=True)
class Cut:
    """A section: its name, why it starts, and its part of the function: the ops that do work, and what streams."""

    name: str
    starts: str
    part: Part


START = "the function starts"


def cut(function: Function, machine: Machine, fits: Callable[[Part], bool]) -> list[Cut]:
    """The sections of a function, in order.

    Args:
        function: as ``read_program`` gives it.
        machine: whose balance decides what streams.
        fits: whether ops are within the machine's units as one section.
    """
    return _Cutter(function, machine, fits).cuts()


class _Cutter:
    def __init__(self, function: Function, machine: Machine, fits: Callable[[Part], bool]) -> None:
        self._function = function
        self._machine = machine
        self._fits = fits
        self._loops = [loops_of(op) for op in function.ops]
        self._flow = self._find_flow()
        self._narrow = self._find_narrow()
        self._written = self._find_written()
        # of each tensor: the number of the section that made it, and the dimensions along which it is streamed there
        self._home: dict[ir.Value, int] = {}
        self._streams: dict[ir.Value, frozenset[int]] = {}
        self._done: list[_Open] = []
        self._kept: dict[int, frozenset[ir.Value]] = {}

    def cuts(self) -> list[Cut]:
        """Visits the ops in order."""
        for position, op in enumerate(self._function.ops):
            if is_view(op):
                self._pass_view(op)
            elif self._function.graph.nodes[f"{self._function.name}:{position}"]["works"]:
                self._visit(position, op)
        names = self._names()
        return [
            Cut(name, o.starts, self._part(o, o.ops, o.resident)) for name, o in zip(names, self._done, strict=True)
        ]

    # -- names ---------------------------------------------------------------------------------------------------------

    def _names(self) -> list[str]:
        """Each section by its contents: the weights that it contracts, the states that it writes, or what it does.

        The n-th section without weights or states that does a thing has number n, as have layers that repeat it.
        """
        seen: Counter[str] = Counter()
        found = []
        for section in self._done:
            known = [w for p in section.ops if (w := self._weight(p)) is not None]
            weights = list(dict.fromkeys(string(w.owner, "parameter") for _, w in known))
            states = [s for p in section.ops for s in self._written.get(p, ())]
            if weights:
                name = _joined(weights)
            elif states:
                name = f"write.{_listed(states)}"
            else:
                kind = self._does(section)
                name = f"{kind}.{seen[kind]}"
                seen[kind] += 1
            seen[name] += 1
            found.append(f"{self._function.name}:{name}" + (f"#{seen[name]}" if seen[name] > 1 else ""))
        return found

    def _does(self, section: _Open) -> str:
        """``select``: integers are made of the flow; ``attend``: tensors of it are contracted; ``move``: neither."""
        made = [r for r in section.made if r in self._flow]
        if any(isinstance(ir.RankedTensorType(r.type).element_type, ir.IntegerType) for r in made):
            return "select"
        loops = any(self._function.ops[p].name == "scf.for" for p in section.ops)
        return "attend" if loops or section.contracts else "move"

    # -- what depends on the tokens ------------------------------------------------------------------------------------

    def _parameter(self, value: ir.Value) -> ir.Value | None:
        """The weight that a tensor is, or a view of."""
        start = root(value)
        op = definition(start)
        return start if op is not None and op.name == "kv.parameter" else None

    def _weight(self, position: int) -> tuple[int, ir.Value] | None:
        """Of a contraction with a weight, the weight's operand number and the weight."""
        loops = self._loops[position]
        if loops is None or not loops.contracts:
            return None
        found = [(i, w) for i, v in enumerate(loops.inputs) if (w := self._parameter(v)) is not None]
        return found[0] if found else None

    def _inputs(self, position: int) -> Iterator[ir.Value]:
        """The tensors that an op reads, destinations that it keeps the contents of included."""
        op = self._function.ops[position]
        skipped = {o for o, _ in destinations(op) if is_blank(op.operands[o]) or not keeps_contents(op, o)}
        yield from (v for i, v in enumerate(op.operands) if is_tensor(v) and i not in skipped)
        yield from self._function.captured.get(position, ())

    def _find_flow(self) -> set[ir.Value]:
        """The tensors on the tokens' way through the weights: not tables, masks and slots made of positions."""
        flow: set[ir.Value] = set()
        for position, op in enumerate(self._function.ops):
            looked_up = any(self._parameter(v) is not None for v in self._function.captured.get(position, ()))
            if looked_up or self._weight(position) is not None or any(v in flow for v in self._inputs(position)):
                flow.update(r for r in op.results if is_tensor(r))
        return flow

    def _find_narrow(self) -> dict[int, ir.Value]:
        """The positions in front of which a single tensor of the flow is alive, and a row of it is reduced next."""
        last: dict[ir.Value, int] = {}
        for position, op in enumerate(self._function.ops):
            if op.name != "kv.state_store":
                last.update((root(v), position) for v in self._inputs(position) if v in self._flow)
        found: dict[int, ir.Value] = {}
        alive: set[ir.Value] = set()
        for position, op in enumerate(self._function.ops):
            alive = {v for v in alive if last.get(v, -1) >= position}
            if len(alive) == 1 and not is_view(op) and self._reduces_next(position):
                found[position] = next(iter(alive))
            if not is_view(op):
                alive.update(r for r in op.results if r in self._flow)
        return found

    def _find_written(self) -> dict[int, list[str]]:
        """By position of an op, the states that its result is stored in."""
        found: dict[int, list[str]] = {}
        positions = {op: position for position, op in enumerate(self._function.ops)}
        for op in self._function.ops:
            made = definition(root(op.operands[0])) if op.name == "kv.state_store" else None
            if made is not None:
                found.setdefault(positions[made], []).append(string(op, "state"))
        return found

    def _reduces_next(self, position: int) -> bool:
        """Whether ops from a position on reduce a tensor of the flow before they contract one."""
        first = self._loops[position]
        if first is None or not any(v in self._flow for v in self._inputs(position)):
            return False
        for later in range(position, len(self._function.ops)):
            loops = self._loops[later]
            if loops is None or is_view(self._function.ops[later]):
                continue
            if loops.contracts:
                return False
            if loops.reductions and any(v in self._flow for v in loops.inputs):
                return True
        return False

    # -- one op --------------------------------------------------------------------------------------------------------

    def _visit(self, position: int, op: ir.Operation) -> None:
        reason = self._ends(position)
        if reason is not None:
            self._done.append(_Open(reason))
        here, number = self._done[-1], len(self._done) - 1
        here.ops.append(position)
        loops = self._loops[position]
        here.contracts |= loops is not None and loops.contracts
        here.resident |= self._stays(position)
        streamed = self._result_streams(position, first=reason is not None and reason != START)
        for result in op.results:
            if is_tensor(result):
                self._home[result] = number
                self._streams[result] = streamed
                here.made.append(result)

    def _ends(self, position: int) -> str | None:
        """Why a section starts at an op; None where the section before goes on."""
        if not self._done:
            return START
        here, number = self._done[-1], len(self._done) - 1
        if position in self._narrow and here.contracts:
            return f"row reduction: of {self._id(self._narrow[position])}, and nothing else passes"
        homes = [self._home[v] for v in self._inputs(position) if v in self._home]
        blocked = self._blocked(position)
        if blocked is not None:
            return f"barrier: the whole of {self._id(blocked)} is needed"
        loops = self._loops[position]
        if loops is not None and loops.contracts and homes and number not in homes:
            return "nothing arrives: all inputs come from earlier sections"
        if not self._fits(self._part(here, [*here.ops, position], here.resident | self._stays(position))):
            return "units: the section before is full"
        return None

    def _part(self, section: _Open, ops: Sequence[int], resident: Iterable[ir.Value]) -> Part:
        return Part(tuple(ops), frozenset(resident), {v: self._streams[v] for v in section.made})

    def _id(self, value: ir.Value) -> str:
        return self._function.ids[value]

    def _stays(self, position: int) -> frozenset[ir.Value]:
        """The weight of a contraction whose bytes are each used often enough for the tokens to stream past it."""
        if position not in self._kept:
            weight, loops = self._weight(position), self._loops[position]
            kept = frozenset[ir.Value]()
            if weight is not None and loops is not None:
                element = str(ir.RankedTensorType(weight[1].type).element_type)
                balance = self._machine.peak_of(element) / self._machine.home("weight").bandwidth.value
                alone = Part((position,), frozenset({weight[1]}), {})
                if 2 * loops.steps / size(weight[1]) >= balance and self._fits(alone):
                    kept = alone.resident
            self._kept[position] = kept
        return self._kept[position]

    def _streamed(self, value: ir.Value) -> frozenset[int]:
        """The dimensions along which a tensor arrives from its own section."""
        return self._streams[value] if self._home.get(value) == len(self._done) - 1 else frozenset()

    def _blocked(self, position: int) -> ir.Value | None:
        """A tensor that streams in this section and that an op needs the whole of."""
        op, loops = self._function.ops[position], self._loops[position]
        arriving = [v for v in self._inputs(position) if self._streamed(v)]
        if not arriving:
            return None
        captured = self._function.captured.get(position, ())
        for value in arriving:
            if value in captured:
                return value
        if loops is not None:
            return self._out_of_step(loops)
        if op.name in ("linalg.softmax", "tensor.concat"):
            attribute = "dimension" if op.name == "linalg.softmax" else "dim"
            axis = int(ir.IntegerAttr(op.attributes[attribute]).value)
            return next((v for v in arriving if axis in self._streamed(v)), None)
        return None if op.name in _PASSING else arriving[0]

    def _out_of_step(self, loops: Loops) -> ir.Value | None:
        """An operand of a nest of loops that does not arrive in the order in which the nest makes its result."""
        walked: dict[ir.Value, frozenset[int]] = {}
        for number, value in enumerate(loops.operands):
            streamed = self._streamed(value)
            if streamed:
                at = loops.at(number)
                by = {at[d] for d in streamed}
                if None in by or by & loops.reductions:
                    return value
                walked[value] = frozenset(loop for loop in by if loop is not None)
        orders = set(walked.values())
        return None if len(orders) < 2 else list(walked)[-1]

    def _result_streams(self, position: int, first: bool) -> frozenset[int]:
        """The dimensions along which an op's result is made."""
        op, loops = self._function.ops[position], self._loops[position]
        result = next((r for r in op.results if is_tensor(r)), None)
        if result is None or op.name in ("kv.scatter", "tensor.insert_slice"):
            return frozenset()
        if op.name == "scf.for" and first:
            # what a loop builds is there when the loop ends
            return _long(result, range(len(shape(result))))
        if loops is None:
            return frozenset(d for v in self._inputs(position) for d in self._streamed(v))
        streaming = {loops.at(i)[d] for i, v in enumerate(loops.operands) for d in self._streamed(v)}
        weight = self._weight(position)
        if weight is not None and self._stays(position):
            streaming |= set(loops.at(1 - weight[0])) - set(loops.at(weight[0]))
        elif first and weight is None and loops.contracts:
            streaming |= set(loops.at(0)) & set(loops.at(1))
        out = loops.at(len(loops.inputs))
        return _long(result, [d for d, loop in enumerate(out) if loop in streaming - {None}])

    def _pass_view(self, op: ir.Operation) -> None:
        source, result = op.operands[0], op.results[0]
        if source in self._home:
            self._home[result] = self._home[source]
            self._streams[result] = _through_view(op, self._streams[source])
            self._done[self._home[source]].made.append(result)


@dataclass
class _Open:
    """A section while ops are added to it."""

    starts: str
    ops: list[int] = field(default_factory=list)
    made: list[ir.Value] = field(default_factory=list)
    resident: set[ir.Value] = field(default_factory=set)
    contracts: bool = False


_PASSING = frozenset({"tensor.pad", "tensor.insert_slice", "tensor.concat", "linalg.softmax", "kv.scatter"})


def _joined(weights: Sequence[str]) -> str:
    """Weights' names as one, what they share at the front only once: ``layers.0.mlp.gate_proj+up_proj``."""
    names = [w.removesuffix(".weight").split(".") for w in weights]
    shared = 0
    while all(len(n) > shared + 1 for n in names) and len({n[shared] for n in names}) == 1:
        shared += 1
    return ".".join([*names[0][:shared], _listed([".".join(n[shared:]) for n in names])])


def _listed(names: Sequence[str]) -> str:
    """Names as one, the first of them only where they are many."""
    return "+".join(names) if len(names) <= 6 else f"{names[0]}+{len(names) - 1}_more"


def _long(value: ir.Value, dimensions: Iterable[int]) -> frozenset[int]:
    extents = shape(value)
    return frozenset(d for d in dimensions if extents[d] > 1)


def _through_view(op: ir.Operation, streamed: frozenset[int]) -> frozenset[int]:
    """The dimensions of a view that are streamed where those of its source are."""
    if not streamed:
        return streamed
    source, result = op.operands[0], op.results[0]
    loops = loops_of(op)
    if loops is not None:
        moved = {loops.at(0)[d] for d in streamed}
        return _long(result, [d for d, loop in enumerate(loops.at(1)) if loop in moved])
    if op.name in ("tensor.expand_shape", "tensor.collapse_shape"):
        groups = [
            [int(ir.IntegerAttr(i).value) for i in ir.ArrayAttr(g)]
            for g in ir.ArrayAttr(op.attributes["reassociation"])
        ]
        if op.name == "tensor.expand_shape":
            return _long(result, [d for s in streamed for d in groups[s]])
        return _long(result, [g for g, group in enumerate(groups) if set(group) & streamed])
    if op.name == "tensor.extract_slice":
        kept, dimensions = list(shape(result)), list[int]()
        for d, extent in enumerate(ir.DenseI64ArrayAttr(op.attributes["static_sizes"])):
            # a dimension of one step may be dropped, and does not stream
            if len(dimensions) < len(kept) and (extent in (kept[len(dimensions)], DYNAMIC)):
                dimensions.append(d)
        return _long(result, [i for i, d in enumerate(dimensions) if d in streamed])
    return (
        _long(result, streamed)
        if len(shape(source)) == len(shape(result))
        else _long(result, range(len(shape(result))))
    )
