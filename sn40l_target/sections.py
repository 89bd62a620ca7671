"""Where the program is cut into sections: the fused kernels that a machine is given whole, one after the other.

Inside a section ops are stages that stand beside one another on the machine and pass tiles on. A section is a run of
ops in the program's order; it ends where one of these rules says so, and nowhere else.

*What streams.* A contraction with a weight may stream its tokens past the weight, which stays; else the weight streams
past the tokens, which are there whole. It does where each byte of the weight is used for as many operations as a cut
asks for (``choice.py`` says which cuts are tried). What is made for it of tensors that stand whole streams too, along
the tokens. A contraction that starts a section without a weight (attention,
scores) streams over the loops that all its operands have (heads): these are problems of their own. Elementwise ops,
views and reductions over other dimensions pass a stream on.

1. *Barrier.* An op needs the whole of a tensor that its own section streams: it reduces the streamed dimension, does
   not walk it in the same order as its other operands (keys against queries), or reads at computed places.
2. *Nothing arrives.* A contraction all of whose inputs come from earlier sections has no stage to be passed tiles by.
3. *Row reduction.* Behind a contraction a whole row is reduced before anything else passes (a norm on the residual
   stream): only that tensor is alive, so to end there costs the least, and the units are free for what follows.
4. *Units.* The section's stages or their least buffers are more than the compute units or the memory that a section may
   have. A weight that alone is more than that memory does not stay.

Where the first three rules end a section depends on where it starts, and on nothing in front of that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import inf

from torch_mlir import ir

from snapcc.compiler.dialect.kv import string

from .bounds import DYNAMIC, shape, size
from .graph import Function
from .loops import Loops, loops_of
from .pipeline import Part
from .storage import definition, is_tensor, is_view, root
from .tiling import Growth, Tiler


@dataclass(frozen=True)
class Cut:
    """A section: why it starts, and its part of the function: the ops that do work, and what streams."""

    starts: str
    part: Part


START = "the function starts"

Stays = frozenset[int]
"""The contractions, by position, whose weights stay while tokens stream past them."""


@dataclass(frozen=True)
class Limits:
    """The most that a section may have: stages, and bytes of the nearest tier for its least buffers. None: any."""

    stages: int | None = None
    bytes: int | None = None


@dataclass
class _Run:
    """A section that ops are added to, from one op on, until one of the first three rules ends it.

    ``kept`` and ``made`` are each op's: the weight that stays, and its results with their views; ``bytes`` what the
    least buffers take up to each op. ``ends`` is the rule that ends it; ``whole`` says that nothing more can be added.
    """

    growth: Growth
    ops: list[int] = field(default_factory=list)
    kept: list[frozenset[ir.Value]] = field(default_factory=list)
    made: list[list[ir.Value]] = field(default_factory=list)
    bytes: list[int] = field(default_factory=list)
    streams: dict[ir.Value, frozenset[int]] = field(default_factory=dict)
    contracts: bool = False
    ends: str | None = None
    whole: bool = False

    def part(self, count: int) -> Part:
        """The first of its ops."""
        made = (v for values in self.made[:count] for v in values)
        return Part(tuple(self.ops[:count]), frozenset().union(*self.kept[:count]), {v: self.streams[v] for v in made})


class Cutter:
    """The ways to cut a function.

    Args:
        function: as ``read_program`` gives it.
        tiler: says what the least buffers of a section take.
    """

    def __init__(self, function: Function, tiler: Tiler) -> None:
        self._function = function
        self._tiler = tiler
        self._loops = [loops_of(op) for op in function.ops]
        self._weights = [self._find_weight(position) for position in range(len(function.ops))]
        self._flow = self._find_flow()
        self._narrow = self._find_narrow()
        self._written = self._find_written()
        self._works = [
            position
            for position, op in enumerate(function.ops)
            if not is_view(op) and function.graph.nodes[f"{function.name}:{position}"]["works"]
        ]
        self._views = self._find_views()
        made = {r for p in self._works for r in function.ops[p].results}
        self._made = made | {view.results[0] for r in made for view in self._views.get(r, ())}
        self._reuse = self._find_reuse()
        self._wanted: dict[Stays, dict[ir.Value, frozenset[int]]] = {}
        self._runs: dict[tuple[Stays, int], _Run] = {}
        self._parts: dict[tuple[Stays, int, int], Part] = {}

    @property
    def reuses(self) -> list[float]:
        """For how many operations the bytes of weights are used: the different numbers, in order."""
        return sorted({reuse for reuse, _ in self._reuse.values()})

    def stays(self, reuse: float | None, limits: Limits) -> Stays:
        """Where a weight stays if its bytes are used for at least so many operations (None: nowhere) and it fits."""
        return frozenset(
            position
            for position, (mine, alone) in self._reuse.items()
            if reuse is not None and mine >= reuse and (limits.bytes is None or alone <= limits.bytes)
        )

    def cut(self, stays: Stays, limits: Limits, most: float = inf) -> list[Cut] | None:
        """The sections of a function, in order, each as long as the rules and the limits let it be.

        A section of one op has as much as it needs, whatever the limits.

        Args:
            stays: where weights stay.
            limits: the most that a section may have.
            most: no more sections than that are wanted; where it takes as many or more, there is no cut.
        """
        found: list[Cut] = []
        starts, at = START, 0
        while at < len(self._works):
            if len(found) + 1 >= most:
                return None
            run = self._run(stays, at)
            count = self._longest(run, stays, at, limits)
            found.append(Cut(starts, self._part(stays, at, count)))
            starts = run.ends if count == len(run.ops) and run.ends else "units: the section before is full"
            at += count
        return found

    def _longest(self, run: _Run, stays: Stays, at: int, limits: Limits) -> int:
        """How many ops of a run are one section."""
        count = 0
        while limits.stages is None or count < limits.stages:
            if count == len(run.ops):
                self._grow(run, stays, at + count)
            if count == len(run.ops) or (count and limits.bytes is not None and run.bytes[count] > limits.bytes):
                break
            count += 1
        return count

    def _part(self, stays: Stays, at: int, count: int) -> Part:
        key = stays, at, count
        if key not in self._parts:
            self._parts[key] = self._run(stays, at).part(count)
        return self._parts[key]

    def _run(self, stays: Stays, at: int) -> _Run:
        """The run that starts at an op that works, by its number among them."""
        key = stays, at
        if stays not in self._wanted:
            self._wanted[stays] = self._find_wanted(stays)
        if key not in self._runs:
            self._runs[key] = _Run(self._tiler.growth())
        return self._runs[key]

    def _grow(self, run: _Run, stays: Stays, at: int) -> None:
        """Adds the next op to a run, by its number among those that work, if no rule ends it there."""
        if not run.whole and at < len(self._works):
            run.ends = self._ends(run, self._works[at]) if run.ops else None
            run.whole = run.ends is not None
            if not run.whole:
                self._add(run, stays, self._works[at], first=not run.ops and at > 0)

    # -- names ---------------------------------------------------------------------------------------------------------

    def names(self, cuts: Sequence[Cut]) -> list[str]:
        """Each section by its contents: the weights that it contracts, the states that it writes, or what it does.

        The n-th section without weights or states that does a thing has number n, as have layers that repeat it.
        """
        seen: Counter[str] = Counter()
        found = []
        for part in (cut.part for cut in cuts):
            weights = list(dict.fromkeys(string(w[1].owner, "parameter") for p in part.ops if (w := self._weights[p])))
            states = [s for p in part.ops for s in self._written.get(p, ())]
            if weights:
                name = _joined(weights)
            elif states:
                name = f"write.{_listed(states)}"
            else:
                kind = self._does(part)
                name = f"{kind}.{seen[kind]}"
                seen[kind] += 1
            seen[name] += 1
            found.append(f"{self._function.name}:{name}" + (f"#{seen[name]}" if seen[name] > 1 else ""))
        return found

    def _does(self, part: Part) -> str:
        """``select``: integers are made of the flow; ``attend``: tensors of it are contracted; ``move``: neither."""
        made = [r for r in part.streams if r in self._flow]
        if any(isinstance(ir.RankedTensorType(r.type).element_type, ir.IntegerType) for r in made):
            return "select"
        attends = any(self._function.ops[p].name == "scf.for" or self._contracts(p) for p in part.ops)
        return "attend" if attends else "move"

    # -- what depends on the tokens ------------------------------------------------------------------------------------

    def _parameter(self, value: ir.Value) -> ir.Value | None:
        """The weight that a tensor is, or a view of."""
        start = root(value)
        op = definition(start)
        return start if op is not None and op.name == "kv.parameter" else None

    def _find_weight(self, position: int) -> tuple[int, ir.Value] | None:
        """Of a contraction with a weight, the weight's operand number and the weight."""
        loops = self._loops[position]
        if loops is None or not loops.contracts:
            return None
        found = [(i, w) for i, v in enumerate(loops.inputs) if (w := self._parameter(v)) is not None]
        return found[0] if found else None

    def _contracts(self, position: int) -> bool:
        loops = self._loops[position]
        return loops is not None and loops.contracts

    def _find_reuse(self) -> dict[int, tuple[float, int]]:
        """Of each contraction past whose weight tokens may stream, its operations for each byte of the weight, and what
        it takes of the nearest tier alone where the weight stays."""
        found: dict[int, tuple[float, int]] = {}
        for position, weight in enumerate(self._weights):
            loops = self._loops[position]
            if weight is not None and loops is not None and self._tokens(position):
                alone = self._tiler.bytes(Part((position,), frozenset({weight[1]}), {}))
                found[position] = 2 * loops.steps / size(weight[1]), alone
        return found

    def _tokens(self, position: int) -> set[int]:
        """The loops of a contraction with a weight that the weight does not have, if longer than one step."""
        loops, weight = self._loops[position], self._weights[position]
        if loops is None or weight is None:
            return set()
        mine = {loop for loop in loops.at(1 - weight[0]) if loop is not None} - set(loops.at(weight[0]))
        return {loop for loop in mine if loops.extents[loop] > 1}

    def _find_flow(self) -> set[ir.Value]:
        """The tensors on the tokens' way through the weights: not tables, masks and slots made of positions."""
        flow: set[ir.Value] = set()
        for position, op in enumerate(self._function.ops):
            looked_up = any(self._parameter(v) is not None for v in self._function.captured.get(position, ()))
            reads = self._function.reads[position]
            if looked_up or self._weights[position] is not None or any(v in flow for v in reads):
                flow.update(r for r in op.results if is_tensor(r))
        return flow

    def _find_narrow(self) -> dict[int, ir.Value]:
        """The positions in front of which a single tensor of the flow is alive, and a row of it is reduced next."""
        last: dict[ir.Value, int] = {}
        for position, op in enumerate(self._function.ops):
            if op.name != "kv.state_store":
                last.update((root(v), position) for v in self._function.reads[position] if v in self._flow)
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
        if first is None or not any(v in self._flow for v in self._function.reads[position]):
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

    def _find_views(self) -> dict[ir.Value, list[ir.Operation]]:
        """By tensor that an op makes, the views of it, and views of them, in order."""
        found: dict[ir.Value, list[ir.Operation]] = {}
        for op in self._function.ops:
            if is_view(op):
                found.setdefault(root(op.results[0]), []).append(op)
        return found

    def _find_wanted(self, stays: Stays) -> dict[ir.Value, frozenset[int]]:
        """By tensor, the dimensions along which the next contraction with a weight that stays takes it in blocks."""
        wanted: dict[ir.Value, frozenset[int]] = {}
        for position in reversed(range(len(self._function.ops))):
            op, loops, weight = self._function.ops[position], self._loops[position], self._weights[position]
            result = next((r for r in op.results if is_tensor(r)), None)
            asked = frozenset[int]() if result is None else wanted.get(result, frozenset())
            if is_view(op):
                source = op.operands[0]
                back = [
                    d for d in range(len(shape(source))) if (to := _through_view(op, frozenset({d}))) and to <= asked
                ]
                wanted[source] = wanted.get(source, frozenset()) | frozenset(back)
            elif loops is not None and (position in stays or (asked and not loops.contracts)):
                out = loops.at(len(loops.inputs))
                walk = self._tokens(position) if position in stays else {out[d] for d in asked} - loops.reductions
                for number, value in enumerate(loops.inputs):
                    if weight is None or number != weight[0]:
                        dims = frozenset(d for d, loop in enumerate(loops.at(number)) if loop in walk - {None})
                        wanted[value] = wanted.get(value, frozenset()) | dims
        return wanted

    # -- one op --------------------------------------------------------------------------------------------------------

    def _add(self, run: _Run, stays: Stays, position: int, first: bool) -> None:
        """Adds an op to a run; ``first`` for one that starts a section behind another."""
        op, weight = self._function.ops[position], self._weights[position]
        streamed = self._result_streams(run, position, stays, first)
        run.ops.append(position)
        run.kept.append(frozenset({weight[1]}) if weight is not None and position in stays else frozenset())
        run.contracts |= self._contracts(position)
        made: list[ir.Value] = []
        for result in op.results:
            if is_tensor(result):
                run.streams[result] = streamed
                made.append(result)
                for view in self._views.get(result, ()):
                    run.streams[view.results[0]] = _through_view(view, run.streams[view.operands[0]])
                    made.append(view.results[0])
        run.made.append(made)
        run.bytes.append(run.growth.add(position, run.kept[-1], {v: run.streams[v] for v in made}))

    def _ends(self, run: _Run, position: int) -> str | None:
        """Why a run ends in front of an op; None where it goes on."""
        if position in self._narrow and run.contracts:
            return f"row reduction: of {self._id(self._narrow[position])}, and nothing else passes"
        blocked = self._blocked(run, position)
        if blocked is not None:
            return f"barrier: the whole of {self._id(blocked)} is needed"
        if self._contracts(position):
            inputs = [v for v in self._function.reads[position] if v in self._made]
            if inputs and not any(v in run.streams for v in inputs):
                return "nothing arrives: all inputs come from earlier sections"
        return None

    def _id(self, value: ir.Value) -> str:
        return self._function.ids[value]

    def _blocked(self, run: _Run, position: int) -> ir.Value | None:
        """A tensor that streams in this section and that an op needs the whole of."""
        op, loops = self._function.ops[position], self._loops[position]
        arriving = [v for v in self._function.reads[position] if run.streams.get(v)]
        if not arriving:
            return None
        captured = self._function.captured.get(position, ())
        for value in arriving:
            if value in captured:
                return value
        if loops is not None:
            return _out_of_step(run, loops)
        if op.name in ("linalg.softmax", "tensor.concat"):
            attribute = "dimension" if op.name == "linalg.softmax" else "dim"
            axis = int(ir.IntegerAttr(op.attributes[attribute]).value)
            return next((v for v in arriving if axis in run.streams[v]), None)
        return None if op.name in _PASSING else arriving[0]

    def _result_streams(self, run: _Run, position: int, stays: Stays, first: bool) -> frozenset[int]:
        """The dimensions along which an op's result is made."""
        op, loops = self._function.ops[position], self._loops[position]
        result = next((r for r in op.results if is_tensor(r)), None)
        if result is None or op.name in ("kv.scatter", "tensor.insert_slice"):
            return frozenset()
        if op.name == "scf.for" and first:
            # what a loop builds is there when the loop ends
            return _long(result, range(len(shape(result))))
        if loops is None:
            return frozenset(d for v in self._function.reads[position] for d in run.streams.get(v, ()))
        out = loops.at(len(loops.inputs))
        streaming = {loops.at(i)[d] for i, v in enumerate(loops.operands) for d in run.streams.get(v, ())}
        if position in stays:
            streaming |= self._tokens(position)
        elif not loops.contracts and not streaming:
            streaming = {out[d] for d in self._wanted[stays].get(result, ())}
        elif first and self._weights[position] is None and loops.contracts:
            streaming |= set(loops.at(0)) & set(loops.at(1))
        return _long(result, [d for d, loop in enumerate(out) if loop in streaming - {None}])


def _out_of_step(run: _Run, loops: Loops) -> ir.Value | None:
    """An operand of a nest of loops that does not arrive in the order in which the nest makes its result."""
    walked: dict[ir.Value, frozenset[int]] = {}
    for number, value in enumerate(loops.operands):
        streamed = run.streams.get(value)
        if streamed:
            at = loops.at(number)
            by = {at[d] for d in streamed}
            if None in by or by & loops.reductions:
                return value
            walked[value] = frozenset(loop for loop in by if loop is not None)
    orders = set(walked.values())
    return None if len(orders) < 2 else list(walked)[-1]


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
