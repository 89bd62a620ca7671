"""Is a plan right? Found out from the program and the plan alone, sharing no code with the planner.

Two ways that do not know of one another. First the rules, one by one: every tensor placed once, with its size, kind
and lifetime as the program has them, in a tier that takes its kind, within its capacity, aligned, apart from every
other tensor that is alive at the same time. Then the program is run on the planned memory with names for contents:
each op's result is written to its place and erases what it overlaps, and each op must still find its operands.
That second run is what shows an update in place to be safe or not.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import prod

from torch_mlir import ir

from snapcc.compiler.dialect.kv import string

from .machine import SHARED, Tier
from .schema import STATE_PREFIX, Plan, Tensor, Transfer

_ALIASES = (
    "tensor.cast",
    "tensor.collapse_shape",
    "tensor.expand_shape",
    "tensor.extract_slice",
    "tensor.bitcast",
)
_OUTS_LAST = ("linalg.", "tm_tensor.", "iree_linalg_ext.", "kv.scatter")
_OUT_SECOND = ("tensor.insert_slice", "tensor.insert", "tensor.scatter", "linalg.pack", "linalg.unpack")


@dataclass(frozen=True)
class Violation:
    """One rule that a plan breaks: which rule, in which function, for which tensor (or value), and how."""

    rule: str
    function: str
    tensor: str
    message: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.function}: {self.tensor}: {self.message}"


def check(module: ir.Module | ir.Operation, plan: Plan) -> list[Violation]:
    """Everything that is wrong with a plan of a linalg-phase module; nothing if it is right.

    Rules: ``function`` (planned functions are the program's), ``placed`` (every tensor that is read once, with one
    place or with several that differ in tier or time, and nothing else), ``size``, ``kind``, ``tier`` (it exists and
    takes the kind), ``capacity``, ``aligned`` (granularity and unit), ``lifetime`` (first and last use as in the
    program, and a place at each use), ``shared`` (one place in all functions), ``section`` (it exists and holds the op;
    sections follow one another), ``units`` (a section of several ops has no more than the machine, and each of its
    buffers holds its copies), ``tile`` (within its loops), ``copies`` (what is moved for want of an update in place),
    ``overlap`` (in space, of tensors alive at the same time), ``transfer`` (a fill or a spill goes from one place of
    its tensor to another, and moves all of its bytes), ``contents`` (an op or a transfer finds what it reads, a call
    ends with the weights untouched and every state holding what was stored).
    """
    functions = {
        str(ir.StringAttr(op.attributes["sym_name"]).value): op.operation
        for op in module.operation.regions[0].blocks[0].operations
        if op.operation.name == "func.func" and op.operation.regions[0].blocks
    }
    found = [
        Violation("function", name, name, "is in the plan or in the program, but not in both")
        for name in sorted(set(functions) ^ set(plan.functions))
    ]
    by_function: dict[str, list[Tensor]] = defaultdict(list)
    for tensor in plan.tensors:
        by_function[tensor.function].append(tensor)
    found += _places(plan) + _shared(plan)
    for name, function in functions.items():
        if name in plan.functions:
            found += _Function(name, function, by_function[name], plan).violations()
    return found


# -- rules that need no program ------------------------------------------------------------------------------------


def _places(plan: Plan) -> list[Violation]:
    tiers: dict[str, Tier] = {tier.name: tier for tier in plan.machine.tiers}
    found = []
    for t in plan.tensors:
        tier = tiers.get(t.tier)
        if tier is None:
            found.append(_of(t, "tier", f"stands in {t.tier}, which the machine does not have"))
            continue
        if t.kind not in tier.kinds:
            found.append(_of(t, "tier", f"is of kind {t.kind}, which may not live in {t.tier}"))
        if t.offset < 0 or t.offset + t.bytes > tier.capacity.value:
            found.append(_of(t, "capacity", f"is {_where(t)}, and the tier has {tier.capacity.value} bytes"))
        if t.offset % tier.granularity.value:
            found.append(_of(t, "aligned", f"starts at {t.offset}, not at a multiple of {tier.granularity.value}"))
        if tier.unit is not None and t.bytes:
            unit = tier.unit.value
            spans = (t.offset + t.bytes - 1) // unit - t.offset // unit
            if spans and (t.bytes <= unit or t.offset % unit):
                found.append(_of(t, "aligned", f"crosses a unit of {unit} bytes at offset {t.offset}"))
    return found


def _shared(plan: Plan) -> list[Violation]:
    found = []
    first: dict[str, Tensor] = {}
    for t in plan.tensors:
        if t.kind in SHARED:
            o = first.setdefault(t.name, t)
            if (o.kind, o.bytes, o.tier, o.offset) != (t.kind, t.bytes, t.tier, t.offset):
                found.append(_of(t, "shared", f"is {_where(t)} here and {_where(o)} in {o.function}"))
    everywhere = sorted((t for t in first.values() if t.bytes), key=lambda t: (t.tier, t.offset))
    for a, b in pairwise(everywhere):
        if a.tier == b.tier and a.offset + a.bytes > b.offset:
            found.append(_of(b, "overlap", f"{_where(b)} overlaps {a.name} {_where(a)}; both live always"))
    return found


def _of(t: Tensor, rule: str, message: str) -> Violation:
    return Violation(rule, t.function, t.name, message)


def _where(t: Tensor) -> str:
    return f"{t.kind} at {t.tier} [{t.offset}, {t.offset + t.bytes})"


# -- the program, read again ---------------------------------------------------------------------------------------


def _ranked(value: ir.Value) -> bool:
    return isinstance(value.type, ir.RankedTensorType)


def _maker(value: ir.Value) -> ir.Operation | None:
    return None if isinstance(value.owner, ir.Block) else value.owner.operation


def _aliases(op: ir.Operation) -> bool:
    """Whether an op's result is its first operand under another shape, or read in another order and never kept."""
    if op.name in _ALIASES:
        return True
    if op.name == "arith.bitcast":
        return _ranked(op.results[0])
    return _reorders(op) and not _kept(op.results[0])


def _reorders(op: ir.Operation) -> bool:
    """Whether each element of the result is one element of the only input, found by its indices alone."""
    if op.name not in ("linalg.transpose", "linalg.broadcast", "linalg.copy", "linalg.generic"):
        return False
    operands = list(op.operands)
    if [_ranked(v) for v in operands] != [True, True] or not _empty(operands[1]):
        return False
    if op.name == "linalg.generic":
        maps = [ir.AffineMapAttr(a).value for a in op.attributes["indexing_maps"]]
        block = op.regions[0].blocks[0]
        body = [o.operation for o in block.operations]
        copies = len(body) == 1 and body[0].operands[0] == block.arguments[0]
        return bool(copies and maps[0].is_projected_permutation and maps[1].is_permutation)
    return True


def _kept(value: ir.Value) -> bool:
    """Whether a value, or a view of it, is written into, stored, carried by a loop or returned."""
    waiting = [value]
    while waiting:
        for use in waiting.pop().uses:
            op = use.owner.operation
            if op.name in ("func.return", "scf.yield", "scf.condition", "kv.state_store"):
                return True
            if use.operand_number in _overwrites(op).values():
                return True
            if op.name in _ALIASES or op.name == "arith.bitcast" or _reorders(op):
                waiting.extend(op.results)
    return False


def _source(value: ir.Value) -> ir.Value:
    """The value that a chain of views starts from."""
    while (op := _maker(value)) is not None and _aliases(op):
        value = op.operands[0]
    return value


def _empty(value: ir.Value) -> bool:
    """Whether a value has no contents that stand in a memory: uninitialised, or one number everywhere."""
    op = _maker(value)
    if op is None:
        return False
    if op.name == "arith.constant":
        dense = op.attributes["value"]
        return isinstance(dense, ir.DenseElementsAttr) and bool(dense.is_splat)
    if op.name in _ALIASES or op.name == "arith.bitcast" or _reorders(op):
        return _empty(op.operands[0])
    return bool(op.name == "tensor.empty" or (op.name == "linalg.fill" and _empty(op.operands[1])))


def _overwrites(op: ir.Operation) -> dict[int, int]:
    """Result number to the number of the operand that it is an updated version of."""
    count = len(op.results)
    if op.name in _OUT_SECOND:
        return {0: 1}
    if op.name == "scf.for":
        return {i: i + 3 for i in range(count)}
    if op.name == "scf.forall" or op.name.startswith(_OUTS_LAST):
        return {i: len(op.operands) - count + i for i in range(count)}
    return {}


def _ignores(op: ir.Operation, operand: int) -> bool:
    """Whether an op writes a destination without looking at what stands there."""
    if op.name in ("linalg.softmax", "tm_tensor.attention", "iree_linalg_ext.attention"):
        return True
    if not op.name.startswith("linalg.") or not op.regions:
        return False
    arguments = list(op.regions[0].blocks[0].arguments)
    return operand < len(arguments) and not list(arguments[operand].uses)


def _inside(op: ir.Operation) -> tuple[set[ir.Value], list[ir.Value]]:
    """The values that an op's regions make, and the tensors that they use."""
    made: set[ir.Value] = set()
    used: list[ir.Value] = []

    def look(inner: ir.Operation) -> ir.WalkResult:
        for region in inner.regions:
            for block in region.blocks:
                made.update(block.arguments)
        if inner != op:
            used.extend(v for v in inner.operands if _ranked(v))
            made.update(inner.results)
        return ir.WalkResult.ADVANCE

    if op.regions:
        op.walk(look, ir.WalkOrder.PRE_ORDER)
    return made, used


def _from_outside(op: ir.Operation) -> list[ir.Value]:
    """Tensors that are used inside an op's regions and made outside of them."""
    made, used = _inside(op)
    return list(dict.fromkeys(v for v in used if v not in made))


def _element(type_: ir.Type) -> int:
    text = str(type_)
    if text == "index":
        return 8
    if text.startswith("complex<"):
        return 2 * _element(ir.ComplexType(type_).element_type)
    digits = {"bf16": 16, "tf32": 32}.get(text) or int("".join(c for c in text.partition("E")[0] if c.isdigit()))
    return (digits + 7) // 8


def _bytes(value: ir.Value) -> int:
    """The most bytes that a tensor takes; a size that depends on loops is worked out in each of their iterations.

    Raises:
        ValueError: a size that depends on anything else.
    """
    type_ = ir.RankedTensorType(value.type)
    extents = [_extent(value, d) for d in range(type_.rank)]
    around = _around(value) if any(isinstance(e, ir.Value) for e in extents) else []
    return _element(type_.element_type) * max(
        prod(e if isinstance(e, int) else _number(e, values) for e in extents) for values in _iterations(around, {})
    )


def _extent(value: ir.Value, dimension: int) -> int | ir.Value:
    """An extent, as a number or as the index value that gives it."""
    known = ir.RankedTensorType(value.type).shape
    if known[dimension] != ir.ShapedType.get_dynamic_size():
        return int(known[dimension])
    op, number = _maker(value), sum(n == ir.ShapedType.get_dynamic_size() for n in known[:dimension])
    if op is None:
        argument = ir.BlockArgument(value)
        return _extent(argument.owner.owner.operation.operands[argument.arg_number + 2], dimension)
    if op.name == "tensor.empty":
        return op.operands[number]
    if op.name == "tensor.extract_slice":
        segments = list(ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"]))
        return op.operands[segments[0] + segments[1] + number]
    if op.name == "tensor.cast":
        return _extent(op.operands[0], dimension)
    updated = _overwrites(op)
    if not updated:
        raise ValueError(f"'{op.name}' has a result of unknown size {value.type}")
    return _extent(op.operands[updated[ir.OpResult(value).result_number]], dimension)


def _around(value: ir.Value) -> list[ir.Operation]:
    """The loops around a value, outermost first."""
    found: list[ir.Operation] = []
    block = value.owner if isinstance(value.owner, ir.Block) else value.owner.operation.block
    while (op := block.owner.operation).name != "func.func":
        if op.name == "scf.for":
            found.insert(0, op)
        block = op.block
    return found


def _iterations(loops: list[ir.Operation], values: dict[ir.Value, int]) -> Iterator[dict[ir.Value, int]]:
    """The induction variables' values in each iteration of nested loops."""
    if not loops:
        yield values
        return
    low, high, step = (_number(v, values) for v in list(loops[0].operands)[:3])
    for i in range(low, high, step):
        yield from _iterations(loops[1:], {**values, loops[0].regions[0].blocks[0].arguments[0]: i})


def _number(value: ir.Value, values: dict[ir.Value, int]) -> int:
    """An index value where the induction variables have the given values."""
    if value in values:
        return values[value]
    op = _maker(value)
    if op is not None and op.name == "arith.constant":
        return int(ir.IntegerAttr(op.attributes["value"]).value)
    if op is not None and op.name in ("arith.index_cast", "arith.extsi"):
        return _number(op.operands[0], values)
    if op is not None and op.name in _ARITHMETIC:
        return _ARITHMETIC[op.name](*(_number(v, values) for v in op.operands))
    raise ValueError(f"the size of a tensor comes from {op.name if op is not None else 'an argument'!r}")


_ARITHMETIC: dict[str, Callable[[int, int], int]] = {
    "arith.addi": lambda a, b: a + b,
    "arith.subi": lambda a, b: a - b,
    "arith.muli": lambda a, b: a * b,
    "arith.minsi": min,
    "arith.maxsi": max,
}


def _scratch_needed(op: ir.Operation) -> int:
    """The least that an op with regions needs for itself: the most that one op inside touches of its own values."""
    if not op.regions or op.name.startswith(_OUTS_LAST):
        return 0
    made, _ = _inside(op)
    sizes: dict[ir.Value, int] = {}
    most = 0

    def look(inner: ir.Operation) -> ir.WalkResult:
        nonlocal most
        if inner != op and not _aliases(inner):
            touched = {_first_version(v, made) for v in (*inner.operands, *inner.results) if _ranked(v)}
            own = [v for v in touched if v is not None]
            sizes.update((v, _bytes(v)) for v in own if v not in sizes)
            most = max(most, sum(sizes[v] for v in own))
        return ir.WalkResult.ADVANCE

    op.walk(look, ir.WalkOrder.PRE_ORDER)
    return most


def _first_version(value: ir.Value, made: set[ir.Value]) -> ir.Value | None:
    """The value that first filled a buffer inside an op; None for a buffer from outside or for no buffer."""
    while True:
        value = _source(value)
        if value not in made or _empty(value):
            return None
        op = _maker(value)
        if op is None:
            argument = ir.BlockArgument(value)
            op, number = argument.owner.owner.operation, argument.arg_number - 1
            if op.name != "scf.for":
                return None
            value = op.results[number]
            continue
        number = ir.OpResult(value).result_number
        init = _overwrites(op).get(number)
        if init is None or _empty(op.operands[init]):
            return value
        value = op.operands[init]


# -- one function --------------------------------------------------------------------------------------------------


class _Memory:
    """What stands where in a tier: ranges that do not overlap, each with the name of its contents."""

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int, str]] = []

    def write(self, start: int, end: int, contents: str) -> None:
        """Puts contents there; whatever they overlap is lost."""
        if start >= end:
            return
        first = bisect_left(self._ranges, (start,))
        if first and self._ranges[first - 1][1] > start:
            first -= 1
        last = first
        while last < len(self._ranges) and self._ranges[last][0] < end:
            last += 1
        del self._ranges[first:last]
        insort(self._ranges, (start, end, contents))

    def at(self, start: int, end: int) -> str | None:
        """What stands there, whole, and nothing else."""
        found = bisect_left(self._ranges, (start,))
        if found < len(self._ranges) and self._ranges[found][:2] == (start, end):
            return self._ranges[found][2]
        return None

    def holds(self, start: int, end: int, contents: str) -> bool:
        """Whether the contents stand there, whole."""
        if start >= end:
            return True
        at = bisect_left(self._ranges, (start, end, contents))
        return at < len(self._ranges) and self._ranges[at] == (start, end, contents)


class _Function:
    """A function's body against its part of the plan."""

    def __init__(self, name: str, function: ir.Operation, tensors: list[Tensor], plan: Plan) -> None:
        self._name = name
        self._plan = plan
        self._tensors = tensors
        self._arguments = list(function.regions[0].blocks[0].arguments)
        self._ops = [o.operation for o in function.regions[0].blocks[0].operations]
        self._outside = [_from_outside(op) for op in self._ops]
        self._found: list[Violation] = []
        self._ids: dict[ir.Value, str] = {}
        self._where: dict[ir.Value, Tensor] = {}
        self._made: dict[ir.Value, int] = {}
        self._scratch: dict[str, int] = {}
        self._copies: Counter[tuple[int, str]] = Counter()
        self._named = {t.name: t for t in tensors}
        self._places: dict[str, list[Tensor]] = defaultdict(list)
        nearest = {tier.name: number for number, tier in enumerate(plan.machine.tiers)}
        for t in sorted(tensors, key=lambda t: (nearest.get(t.tier, len(nearest)), t.first_use)):
            self._places[t.name].append(t)

    def violations(self) -> list[Violation]:
        self._name_values()
        self._match()
        if self._found:
            # the other rules ask about the tensors of values, and some have none
            return self._found
        self._check_kinds_and_sizes()
        self._check_lifetimes()
        self._check_sections()
        self._check_overlaps()
        self._check_prefetches()
        self._run()
        self._check_copies()
        return self._found

    def _report(self, rule: str, tensor: str, message: str) -> None:
        self._found.append(Violation(rule, self._name, tensor, message))

    def _name_values(self) -> None:
        for i, argument in enumerate(self._arguments):
            self._ids[argument] = f"{self._name}:arg{i}"
            self._made[argument] = -1
        for position, op in enumerate(self._ops):
            for i, result in enumerate(op.results):
                self._ids[result] = f"{self._name}:{position}" + (f"#{i}" if len(op.results) > 1 else "")
                self._made[result] = position

    def _reads(self, position: int) -> list[ir.Value]:
        """The tensors whose contents an op looks at, other than those that it updates."""
        op = self._ops[position]
        if _aliases(op):
            return []
        updated = set(_overwrites(op).values())
        return [v for i, v in enumerate(op.operands) if i not in updated and _ranked(v)] + self._outside[position]

    # every tensor once

    def _match(self) -> None:
        by_id: dict[str, Tensor] = {}
        names = set(self._places)
        for name, places in self._places.items():
            self._match_places(name, places)
            for value in places[0].values:
                if value in by_id:
                    self._report("placed", value, f"stands in {by_id[value].name} and in {name}")
                by_id[value] = self._named[name]
        read = {_source(v) for p in range(len(self._ops)) for v in self._reads(p)}
        needed = [v for v in self._ids if _ranked(v) and not (_empty(v) and _source(v) not in read)]
        for value in needed:
            found = by_id.pop(self._ids[value], None)
            if found is None:
                self._report("placed", self._ids[value], "is a tensor of the program without a place")
            else:
                self._where[value] = found
        for value, t in self._where.items():
            op = _maker(value)
            if op is not None and _aliases(op) and self._where.get(op.operands[0]) is not t:
                self._report("placed", self._ids[value], "is a view, and stands elsewhere than what it is a view of")
        for value, t in by_id.items():
            self._report("placed", value, f"stands in {t.name} but is no tensor of the program that needs a place")
        states = {_state(op) for op in self._ops if op.name in ("kv.state_load", "kv.state_store")}
        blocks = {f"{self._name}:{p}.scratch": op for p, op in enumerate(self._ops) if op.regions}
        self._scratch = {name: least for name, op in blocks.items() if (least := _scratch_needed(op))}
        for t in self._tensors:
            if not t.values and t.name not in (blocks if t.kind == "scratch" else states):
                self._report("placed", t.name, "holds no value of the program")
        for name in sorted((states | self._scratch.keys()) - names):
            self._report("placed", name, "is a state, or what an op needs inside itself, and has no place")

    def _match_places(self, name: str, places: list[Tensor]) -> None:
        """Several places of one tensor must be the same but for where and when, and not two in one tier at a time."""
        for a, b in pairwise(places):
            if (a.kind, a.bytes, a.values, a.section) != (b.kind, b.bytes, b.values, b.section):
                self._report("placed", name, f"is {_where(a)} and {_where(b)}, which are not of one tensor")
            if a.kind in SHARED or (a.tier == b.tier and a.last_use >= b.first_use):
                self._report("placed", name, f"is in the plan more than once: {_where(a)} and {_where(b)}")

    def _at(self, name: str, position: int) -> Tensor:
        """The place of a tensor that the op at a position uses: in the nearest tier where it stands by then."""
        places = self._places[name]
        here = [t for t in places if t.kind in SHARED or t.first_use <= position <= t.last_use]
        return here[0] if here else places[0]

    # sizes, kinds, lifetimes, sections

    def _check_kinds_and_sizes(self) -> None:
        first: dict[str, ir.Value] = {}
        sizes: dict[str, int] = defaultdict(int)
        for value, t in self._where.items():
            op = _maker(value)
            if op is not None and _aliases(op):
                continue
            first.setdefault(t.name, value)
            sizes[t.name] = max(sizes[t.name], _bytes(value))
            if op is not None and op.name == "kv.parameter" and string(op, "parameter") != t.name:
                self._report("placed", t.name, f"holds the weight {string(op, 'parameter')!r}")
        for op in self._ops:
            if op.name == "kv.state_store":
                sizes[_state(op)] = max(sizes[_state(op)], _bytes(op.operands[0]))
        for t in self._tensors:
            if t.kind == "scratch":
                self._check_scratch(t)
                continue
            if t.bytes != sizes[t.name]:
                self._report("size", t.name, f"has {t.bytes} bytes in the plan and {sizes[t.name]} in the program")
            expected = self._kind(t, first.get(t.name))
            if t.kind != expected:
                self._report("kind", t.name, f"is a {t.kind} in the plan and a {expected} in the program")

    def _check_scratch(self, t: Tensor) -> None:
        needed = self._scratch.get(t.name, 0)
        if t.bytes < needed:
            self._report("size", t.name, f"has {t.bytes} bytes, and its op needs at least {needed}")

    def _kind(self, t: Tensor, first: ir.Value | None) -> str:
        if first is None:
            first = next(o.operands[0] for o in self._ops if o.name == "kv.state_store" and _state(o) == t.name)
            return _state_kind(ir.RankedTensorType(first.type))
        op, type_ = _maker(first), ir.RankedTensorType(first.type)
        if op is not None and op.name == "kv.parameter":
            return "weight"
        if op is not None and op.name == "kv.state_load" and _state(op) == t.name:
            return _state_kind(type_)
        if op is not None and op.name == "arith.constant":
            return "constant"
        return "index" if isinstance(type_.element_type, (ir.IntegerType, ir.IndexType)) else "activation"

    def _copies_state(self, load: ir.Operation) -> bool:
        """Whether a load takes the state to a place of its own; otherwise it only names what stands somewhere."""
        value = load.results[0]
        return self._where[value].kind not in SHARED and self._where[value].values[0] == self._ids[value]

    def _touched(self, position: int) -> list[Tensor]:
        """The tensors that the op at a position reads or writes."""
        op = self._ops[position]
        if _aliases(op) or op.name in ("arith.constant", "kv.parameter"):
            return []
        if op.name == "kv.state_load":
            t = self._where[op.results[0]]
            return [t, self._named[_state(op)]] if self._copies_state(op) else []
        values = [*self._reads(position), *(op.operands[i] for i in _overwrites(op).values()), *op.results]
        found = [self._where[v] for v in values if v in self._where]
        if op.name == "kv.state_store":
            found.append(self._named[_state(op)])
        scratch = self._named.get(f"{self._name}:{position}.scratch")
        return [*found, scratch] if scratch is not None else found

    def _check_lifetimes(self) -> None:
        uses: dict[str, list[int]] = defaultdict(list)
        for value, t in self._where.items():
            if self._made[value] < 0:
                uses[t.name].append(0)
        for position in range(len(self._ops)):
            for t in self._touched(position):
                uses[t.name].append(position)
        for value, t in self._where.items():
            if not uses[t.name]:
                uses[t.name].append(self._made[value])
        sections = {s.name: set(s.ops) for s in self._plan.sections if s.function == self._name}
        for name, places in self._places.items():
            first, last, steps = min(t.first_use for t in places), max(t.last_use for t in places), uses[name]
            lost = [s for s in steps if not any(t.first_use <= s <= t.last_use for t in places)]
            if steps and ((first, last) != (steps[0], steps[-1]) or lost):
                self._report(
                    "lifetime",
                    name,
                    f"lives in steps {first} to {last}, and in the program {steps[0]} to {steps[-1]}; "
                    f"it has no place at the steps {lost}",
                )
        for t in self._tensors:
            steps = uses[t.name]
            if t.section is not None and not sections.get(t.section, set()) & set(steps):
                self._report("section", t.name, f"belongs to section {t.section}, none of whose ops uses it")

    def _check_sections(self) -> None:
        seen: set[int] = set()
        tier = self._plan.machine.tiers[0]
        limits = (("compute", int(self._plan.machine.compute_units.value)), ("memory", tier.units))
        for s in self._plan.sections:
            if s.function != self._name:
                continue
            if seen and s.ops and s.ops[0] < max(seen):
                self._report("section", s.name, f"starts at op {s.ops[0]}, in front of the section before")
            for kind, limit in limits:
                taken = sum(getattr(part, f"{kind}_units") for part in (s.stages if kind == "compute" else s.buffers))
                if taken > limit and len(s.ops) > 1:
                    self._report("units", s.name, f"takes {taken} {kind} units, and the machine has {limit}")
            if tuple(stage.op for stage in s.stages) != s.ops:
                self._report("section", s.name, f"has the ops {s.ops} and stages for {[g.op for g in s.stages]}")
            for stage in s.stages:
                inside = [0 < t <= n for t, n in zip(stage.tile, stage.loops, strict=False)]
                if len(stage.tile) != len(stage.loops) or not all(inside):
                    self._report("tile", s.name, f"op {stage.op} has tiles {stage.tile} of loops {stage.loops}")
            for b in s.buffers:
                if b.memory_units * tier.unit_bytes < b.copies * b.bytes:
                    have = b.memory_units * tier.unit_bytes
                    self._report("units", s.name, f"{b.tensor} takes {b.copies} x {b.bytes} bytes, and has {have}")
            for position, name in zip(s.ops, s.operations, strict=True):
                if position in seen or position >= len(self._ops) or self._ops[position].name != name:
                    self._report("section", s.name, f"holds op {position} ({name}), in another section or not so named")
                seen.add(position)

    # apart from one another

    def _check_overlaps(self) -> None:
        alive: list[Tensor] = list({t.name: t for t in self._plan.tensors if t.kind in SHARED}.values())
        always = len(alive)
        for t in sorted((t for t in self._tensors if t.kind not in SHARED), key=lambda t: t.first_use):
            alive[always:] = [o for o in alive[always:] if o.last_use >= t.first_use]
            for o in alive:
                apart = t.tier != o.tier or t.offset >= o.offset + o.bytes or o.offset >= t.offset + t.bytes
                if not apart and t.bytes and o.bytes:
                    self._report("overlap", t.name, f"{_where(t)}, overlaps {o.name}, {_where(o)}")
            alive.append(t)

    # the program on the planned memory

    def _run(self) -> None:
        self._memory: dict[str, _Memory] = defaultdict(_Memory)
        self._contents: dict[ir.Value, str] = {}
        shared = {t.name: t for t in self._plan.tensors if t.kind in SHARED or t.name.startswith(STATE_PREFIX)}
        states = {name: name for name in shared}
        for t in shared.values():
            self._write(t, t.name)
        constants: dict[int, list[ir.Value]] = defaultdict(list)
        for value, t in self._where.items():
            op = _maker(value)
            if op is None:
                self._fill(value, 0)
            elif op.name == "arith.constant":
                # it comes with the program when its first reader starts, though its name is known before
                self._contents[value] = self._ids[value]
                constants[min(p.first_use for p in self._places[t.name])].append(value)
        fills, spills = self._transfers()
        for position, op in enumerate(self._ops):
            for transfer in fills[position]:
                self._transfer(transfer)
            for value in constants[position]:
                self._fill(value, position)
            self._step(position, op, states)
            for transfer in spills[position]:
                self._transfer(transfer)
        for name, contents in states.items():
            if not self._stands(shared[name], contents):
                self._report("contents", name, "does not hold at the call's end what it has to")

    def _transfers(self) -> tuple[dict[int, list[Transfer]], dict[int, list[Transfer]]]:
        """The fills and the spills of the function by step, as far as they are between places of their tensors."""
        fills: dict[int, list[Transfer]] = defaultdict(list)
        spills: dict[int, list[Transfer]] = defaultdict(list)
        near = self._plan.machine.tiers[0].name
        for t in self._plan.transfers:
            if t.function != self._name or t.kind == "prefetch":
                continue
            places = [(p.tier, p.offset) for p in self._places[t.tensor] if p.first_use <= t.step <= p.last_use]
            ends = ((t.source_tier, t.source), (t.target_tier, t.target))
            there = t.target_tier == near != t.source_tier if t.kind == "fill" else t.source_tier == near
            if not set(ends) <= set(places) or ends[0] == ends[1] or not there:
                self._report("transfer", t.tensor, f"{t.kind} at step {t.step}: is not between two places of it")
                continue
            if t.bytes != self._named[t.tensor].bytes:
                self._report("transfer", t.tensor, f"moves {t.bytes} of {self._named[t.tensor].bytes} bytes")
            (fills if t.kind == "fill" else spills)[t.step].append(t)
        return fills, spills

    def _check_prefetches(self) -> None:
        """Into bytes of the nearest tier that no tensor has while two sections run, nor any other prefetch for them."""
        near = self._plan.machine.tiers[0]
        taken = max((t.offset + t.bytes for t in self._tensors if t.tier == near.name), default=0)
        order = {s.ops[0]: i for i, s in enumerate(s for s in self._plan.sections if s.function == self._name)}
        found = [t for t in self._plan.transfers if t.kind == "prefetch" and t.function == self._name]
        for i, t in enumerate(found):
            source = self._named.get(t.tensor)
            if source is None or source.kind != "weight" or (source.tier, source.offset) != (t.source_tier, t.source):
                self._report("transfer", t.tensor, "a prefetch that is not of a weight from where it stands")
            elif t.bytes > source.bytes or t.step not in order or t.target_tier != near.name:
                self._report("transfer", t.tensor, f"a prefetch of {t.bytes} bytes for step {t.step}: no such section")
            elif t.target < taken or t.target + t.bytes > near.bytes or t.target % near.granularity.value:
                self._report("transfer", t.tensor, f"a prefetch to {t.target}: not aligned behind {taken}, or too long")
            for o in found[:i]:
                meets = t.target < o.target + o.bytes and o.target < t.target + t.bytes
                if meets and abs(order.get(t.step, 0) - order.get(o.step, 0)) <= 1:
                    self._report("overlap", t.tensor, f"a prefetch to {t.target} overlaps that of {o.tensor}")

    def _transfer(self, t: Transfer) -> None:
        places = {(p.tier, p.offset): p for p in self._places[t.tensor]}
        source, target = places[t.source_tier, t.source], places[t.target_tier, t.target]
        held = self._memory[source.tier].at(source.offset, source.offset + source.bytes)
        if held is None and source.bytes:
            self._report("contents", t.tensor, f"{t.kind} at step {t.step}: {_where(source)} holds nothing whole")
        self._write(target, held or "")

    def _write(self, t: Tensor, contents: str) -> None:
        self._memory[t.tier].write(t.offset, t.offset + t.bytes, contents)

    def _stands(self, t: Tensor, contents: str) -> bool:
        return self._memory[t.tier].holds(t.offset, t.offset + t.bytes, contents)

    def _fill(self, value: ir.Value, position: int) -> None:
        self._contents[value] = self._ids[value]
        self._write(self._at(self._where[value].name, position), self._ids[value])

    def _need(self, position: int, value: ir.Value) -> None:
        if value not in self._where:
            return
        t = self._at(self._where[value].name, position)
        if not self._stands(t, self._contents.get(value, "")):
            self._report("contents", self._ids[value], f"is not at {_where(t)} any more when op {position} reads it")

    def _step(self, position: int, op: ir.Operation, states: dict[str, str]) -> None:
        if op.name == "arith.constant":
            return
        if _aliases(op):
            self._alias(op)
            return
        scratch = self._named.get(f"{self._name}:{position}.scratch")
        if scratch is not None:
            self._write(scratch, scratch.name)
        reads = self._reads(position)
        for value in reads:
            self._need(position, value)
        if op.name == "kv.parameter":
            self._contents[op.results[0]] = string(op, "parameter")
        elif op.name == "kv.state_load":
            self._load(op, states)
        elif op.name == "kv.state_store":
            t, value = self._named[_state(op)], op.operands[0]
            states[t.name] = self._contents.get(value, f"stored at {position}")
            if self._where.get(value) is not t:
                self._write(t, states[t.name])
                self._copied(position, value, t)
        else:
            self._results(position, op, reads, scratch)

    def _copied(self, position: int, value: ir.Value, target: Tensor) -> None:
        if value in self._where or not _empty(value):
            self._copies[position, target.name] += _bytes(value)

    def _check_copies(self) -> None:
        planned: Counter[tuple[int, str]] = Counter()
        ops = {s.name: s.ops for s in self._plan.sections if s.function == self._name}
        for c in self._plan.copies:
            if c.function == self._name and c.source != c.target:
                position = next((p for p in ops.get(c.section, ()) if (p, c.target) in self._copies), -1)
                planned[position, c.target] += c.bytes
        for position, target in planned.keys() | self._copies.keys():
            a, b = planned[position, target], self._copies[position, target]
            if a != b:
                self._report("copies", target, f"op {position} copies {a} bytes in the plan and {b} in the program")

    def _alias(self, op: ir.Operation) -> None:
        view, source = op.results[0], op.operands[0]
        if source in self._contents:
            self._contents[view] = self._contents[source]

    def _load(self, op: ir.Operation, states: dict[str, str]) -> None:
        value, name = op.results[0], _state(op)
        self._contents[value] = states[name]
        if self._copies_state(op):
            if not self._stands(self._named[name], states[name]):
                self._report("contents", name, f"does not hold its contents when {self._ids[value]} copies them")
            self._write(self._at(self._where[value].name, self._made[value]), states[name])
            self._copied(self._made[value], value, self._where[value])

    def _results(self, position: int, op: ir.Operation, reads: list[ir.Value], scratch: Tensor | None) -> None:
        busy = [self._at(self._where[v].name, position) for v in reads if v in self._where]
        busy += [scratch] if scratch is not None else []
        updated = _overwrites(op)
        targets: list[ir.Value] = []
        for number, result in enumerate(op.results):
            init = op.operands[updated[number]] if number in updated else None
            if init is not None and not _empty(init):
                in_place = self._where.get(result) is self._where.get(init)
                if in_place or not _ignores(op, updated[number]):
                    self._need(position, init)
                if not in_place and init in self._where:
                    busy.append(self._at(self._where[init].name, position))
                if not in_place and not _ignores(op, updated[number]):
                    self._copied(position, init, self._where[result])
            if result in self._where:
                targets.append(result)
        for i, result in enumerate(targets):
            t = self._at(self._where[result].name, position)
            for o in [*busy, *(self._at(self._where[v].name, position) for v in targets[:i])]:
                if t.tier == o.tier and t.offset < o.offset + o.bytes and o.offset < t.offset + t.bytes:
                    self._report("contents", t.name, f"op {position} writes {_where(t)} over {o.name}, {_where(o)}")
        for result in targets:
            self._fill(result, position)


def _state(op: ir.Operation) -> str:
    return STATE_PREFIX + string(op, "state")


def _state_kind(type_: ir.RankedTensorType) -> str:
    text = str(type_.element_type)
    small = text.startswith("i") and text != "index" and int(text[1:]) <= 8
    return "cache" if type_.rank >= 3 and (small or text[0] in "bf") else "state"
