"""Storage classes: which tensor values of a block share one buffer, as views of it or by being updated in place.

A value is a view of another (the same bytes under another type, or read in another order), the contents of a new
buffer, or the next contents of an old one. An op that writes into a destination (``outs``, ``insert_slice``, a
scatter, a loop's carried value) works in place where nothing reads the old contents afterwards; otherwise its result
has a buffer of its own, and the destination is copied there first. A destination that holds nothing yet
(``tensor.empty``), or one number everywhere (``linalg.fill`` of an empty tensor, a splat constant), is blank and has
no buffer: the op that writes into it makes those contents itself. A blank tensor gets a buffer only where it is read.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from torch_mlir import ir

from snapcc.compiler.dialect.kv import string

from .bounds import size
from .errors import ProgramError, place
from .lifetime import lifetimes
from .machine import SHARED, Kind
from .packing import Legal, Packing, Span
from .schema import STATE_PREFIX

_VIEWS = frozenset(
    {"tensor.cast", "tensor.collapse_shape", "tensor.expand_shape", "tensor.extract_slice", "tensor.bitcast"}
)
_STRUCTURED = ("linalg.", "tm_tensor.", "iree_linalg_ext.", "kv.scatter")
_INTO_SECOND = frozenset({"tensor.insert_slice", "tensor.insert", "tensor.scatter", "linalg.pack", "linalg.unpack"})
_OVERWRITING = frozenset({"linalg.softmax", "tm_tensor.attention", "iree_linalg_ext.attention"})
_LEAVING = frozenset({"func.return", "scf.yield", "scf.condition", "kv.state_store"})
_OF_THE_FUNCTION = frozenset({"kv.parameter", "kv.state_load", "kv.state_store"})


def is_tensor(value: ir.Value) -> bool:
    """Whether a value is a ranked tensor (the others are scalars and take no memory of a tier)."""
    return isinstance(value.type, ir.RankedTensorType)


def definition(value: ir.Value) -> ir.Operation | None:
    """The op that made a value; None for a block's argument."""
    owner = value.owner
    return None if isinstance(owner, ir.Block) else owner.operation


def root(value: ir.Value) -> ir.Value:
    """The value that a chain of views starts from."""
    op = definition(value)
    while op is not None and is_view(op):
        value = op.operands[0]
        op = definition(value)
    return value


def is_view(op: ir.Operation) -> bool:
    """Whether an op's result is its first operand's bytes, under another type or read in another order.

    Reading in another order is what a transpose, a broadcast or any other op that only moves elements comes to where
    the result is only read: PMUs and AGCUs generate addresses for any permutation, and the network multicasts
    (SN40L, arXiv 2405.07518, section IV). A result that is written into, stored or returned is made.
    """
    if op.name in _VIEWS:
        return True
    if op.name == "arith.bitcast":
        return is_tensor(op.operands[0])
    return _rearranges(op) and _only_read(op.results[0])


def _rearranges(op: ir.Operation) -> bool:
    """Whether an op only moves the elements of its one input, each to where its indices say, into a blank tensor."""
    if not op.name.startswith("linalg.") or len(op.operands) != 2 or len(op.results) != 1:
        return False
    if not is_tensor(op.operands[0]) or not is_blank(op.operands[1]):
        return False
    if op.name in ("linalg.transpose", "linalg.broadcast", "linalg.copy"):
        return True
    if op.name != "linalg.generic":
        return False
    block = op.regions[0].blocks[0]
    yielded = block.operations[0].operation
    if yielded.name != "linalg.yield" or yielded.operands[0] != block.arguments[0]:
        return False
    source, target = (ir.AffineMapAttr(m).value for m in ir.ArrayAttr(op.attributes["indexing_maps"]))
    return bool(source.is_projected_permutation and target.is_permutation)


def _only_read(value: ir.Value) -> bool:
    for use in value.uses:
        user = use.owner.operation
        if user.name in _LEAVING or use.operand_number in (o for o, _ in destinations(user)):
            return False
        views = user.name in _VIEWS or user.name == "arith.bitcast" or _rearranges(user)
        if views and not all(_only_read(r) for r in user.results):
            return False
    return True


def destinations(op: ir.Operation) -> list[tuple[int, int]]:
    """(operand, result) pairs: the tensor result is the operand's contents after the op's writes."""
    results = len(op.results)
    if op.name in _INTO_SECOND:
        pairs = [(1, 0)]
    elif op.name.startswith(_STRUCTURED) or op.name == "scf.forall":
        first = len(op.operands) - results
        pairs = [(first + i, i) for i in range(results)]
    elif op.name == "scf.for":
        pairs = [(3 + i, i) for i in range(results)]
    else:
        return []
    return [(o, r) for o, r in pairs if is_tensor(op.results[r])]


def keeps_contents(op: ir.Operation, operand: int) -> bool:
    """Whether what stood in a destination matters to the result (it does not to an elementwise op's ``outs``)."""
    if op.name in _OVERWRITING:
        return False
    if op.name.startswith("linalg.") and len(op.regions) == 1:
        arguments = op.regions[0].blocks[0].arguments
        return operand >= len(arguments) or any(True for _ in arguments[operand].uses)
    return True


def is_blank(value: ir.Value) -> bool:
    """Whether a tensor holds nothing, or one number everywhere, until something is written into it."""
    op = definition(value)
    if op is None:
        return False
    if op.name in _VIEWS or op.name == "arith.bitcast" or _rearranges(op):
        return is_blank(op.operands[0])
    if op.name == "linalg.fill":
        return is_blank(op.operands[1])
    if op.name == "arith.constant":
        literal = op.attributes["value"]
        return isinstance(literal, ir.DenseElementsAttr) and bool(literal.is_splat)
    return bool(op.name == "tensor.empty")


def tensor_kind(value: ir.Value) -> Kind:
    """``constant`` for a literal; else ``index`` for integers and booleans, ``activation`` for the rest."""
    op = definition(value)
    if op is not None and op.name == "arith.constant":
        return "constant"
    element = ir.RankedTensorType(value.type).element_type
    return "index" if isinstance(element, (ir.IntegerType, ir.IndexType)) else "activation"


def state_kind(value: ir.Value) -> Kind:
    """``cache`` for a state of rank 3 or more in floating point or 8 bits, ``state`` for the small ones per row."""
    type_ = ir.RankedTensorType(value.type)
    element = type_.element_type
    wide = isinstance(element, ir.IndexType) or (isinstance(element, ir.IntegerType) and element.width > 8)
    return "cache" if type_.rank >= 3 and not wide else "state"


def _state(op: ir.Operation) -> str:
    """The buffer's name for the state that an op loads or stores; a weight may have the state's own name."""
    return STATE_PREFIX + string(op, "state")


def captured(op: ir.Operation) -> list[ir.Value]:
    """The tensors that an op's regions use from outside the op, each once, in order.

    Raises:
        ProgramError: a parameter or a state is taken inside a region.
    """
    found: dict[ir.Value, None] = {}
    _capture(op, op, set(), found)
    return list(found)


def _capture(outer: ir.Operation, op: ir.Operation, inside: set[ir.Value], found: dict[ir.Value, None]) -> None:
    for region in op.regions:
        for block in region.blocks:
            inside.update(a for a in block.arguments if is_tensor(a))
            for opview in block.operations:
                inner = opview.operation
                if inner.name in _OF_THE_FUNCTION:
                    raise ProgramError(
                        inner.location,
                        f"'{inner.name}' stands inside '{outer.name}'; parameters and states "
                        "belong to the function: move it in front of the op",
                    )
                found.update(dict.fromkeys(v for v in inner.operands if is_tensor(v) and v not in inside))
                _capture(outer, inner, inside, found)
                inside.update(r for r in inner.results if is_tensor(r))


@dataclass
class Buffer:
    """One storage: ``bytes`` of ``kind``, under the name of the value that it first holds.

    ``values`` are the ids of all values that it ever holds, views included, in order. ``owned``: whether the block
    may overwrite it. ``location``: ``file:line`` of what it first holds.
    """

    name: str
    kind: Kind
    bytes: int
    location: str
    owned: bool = True
    values: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Moved:
    """Bytes that an op copies from one buffer to another because it cannot work in place.

    ``position`` is the op's place in its block. Inside a loop the bytes are those of one iteration.
    """

    position: int
    source: str
    target: str
    bytes: int


class Storages:
    """The buffers of a block's tensor values.

    ``buffers`` by name; ``of`` each tensor value (a blank one that is never read has none); ``uses``, the positions
    of the ops that read or write each buffer, in order; ``writes``, those that change its contents, and ``updates``,
    those of them that read the old ones too (an argument's are written at step 0);
    ``moves``; ``captured``, the tensors that an op's regions take, by position; ``ids`` of the block's values:
    ``<prefix>:<position>``, with ``#<number>`` where an op has several results, and ``<prefix>:arg<number>``.

    Args:
        block: a function's body, or one inside an op.
        prefix: of the ids.
        legal: where the memory for scratch lets a buffer start.
        carried: buffers of the block's arguments that the block may overwrite; other arguments it only reads.

    Raises:
        ProgramError: an op that is no part of the linalg phase, or a size without a static bound.
    """

    def __init__(self, block: ir.Block, prefix: str, legal: Legal, carried: dict[ir.Value, Buffer]) -> None:
        self.ops = [o.operation for o in block.operations]
        self.buffers: dict[str, Buffer] = {}
        self.of: dict[ir.Value, Buffer] = {}
        self.uses: dict[str, list[int]] = {}
        self.writes: dict[str, set[int]] = defaultdict(set)
        self.updates: dict[str, set[int]] = defaultdict(set)
        self.moves: list[Moved] = []
        self.ids: dict[ir.Value, str] = {}
        self.captured: dict[int, list[ir.Value]] = {}
        self._made: dict[str, int] = {}
        self._prefix = prefix
        self._legal = legal
        self._roots: dict[ir.Value, ir.Value] = {}
        self._reads: list[list[ir.Value]] = []
        self._writes: list[list[ir.Value]] = []
        self._last: dict[ir.Value, int] = {}
        self._read: set[ir.Value] = set()
        self._stores: dict[str, tuple[int, ir.Value]] = {}
        self._find_ids(block)
        self._find_uses()
        self._wanted = self._find_wanted()
        for argument in filter(is_tensor, block.arguments):
            if argument in carried:
                self._hold(argument, carried[argument])
            else:
                self._fresh(argument, 0, owned=False)
        for position, op in enumerate(self.ops):
            self._visit(position, op)
        for name, steps in self.uses.items():
            if not steps:
                steps.append(self._made[name])
            if self.buffers[name].kind == "constant":
                # its first reader's start brings it
                self._change(name, steps[0], reads=True)

    def op_id(self, position: int) -> str:
        """The id of the op at a position."""
        return f"{self._prefix}:{position}"

    # -- what reads what ---------------------------------------------------------------------------------------------

    def _find_ids(self, block: ir.Block) -> None:
        for number, argument in enumerate(block.arguments):
            self.ids[argument] = f"{self._prefix}:arg{number}"
        for position, op in enumerate(self.ops):
            several = len(op.results) > 1
            for number, result in enumerate(op.results):
                self.ids[result] = f"{self.op_id(position)}#{number}" if several else self.op_id(position)

    def _root(self, value: ir.Value) -> ir.Value:
        return self._roots.get(value, value)

    def _find_uses(self) -> None:
        """Roots of views; what each op reads and writes over, by root; the last op that does so to each root."""
        contents: dict[str, ir.Value] = {}
        for position, op in enumerate(self.ops):
            reads: list[ir.Value] = []
            writes: list[ir.Value] = []
            if op.name in ("func.call", "func.call_indirect"):
                raise ProgramError(op.location, f"'{op.name}' cannot be planned; inline the function first")
            if is_view(op):
                self._roots[op.results[0]] = self._root(op.operands[0])
            else:
                into = {o for o, _ in destinations(op)}
                reads += [self._root(v) for i, v in enumerate(op.operands) if i not in into and is_tensor(v)]
                self.captured[position] = captured(op)
                reads += [self._root(v) for v in self.captured[position]]
                writes += [self._root(op.operands[i]) for i in sorted(into)]
                if op.name == "kv.state_load":
                    self._roots[op.results[0]] = contents.setdefault(_state(op), op.results[0])
                if op.name == "kv.state_store":
                    self._find_store(position, op)
                    contents[_state(op)] = reads[0]
            self._reads.append(reads)
            self._writes.append(writes)
            self._read.update(reads)
            self._last.update(dict.fromkeys((*reads, *writes), position))

    def _find_store(self, position: int, op: ir.Operation) -> None:
        state = _state(op)
        if state in self._stores:
            raise ProgramError(op.location, f"{state} is stored twice in a function; store it once")
        self._stores[state] = (position, self._root(op.operands[0]))

    def _find_wanted(self) -> dict[ir.Value, str]:
        """For each root whose bytes end up in a state, that state: only such a chain may write over it in place."""
        wanted = {value: state for state, (_, value) in self._stores.items()}
        for op in reversed(self.ops):
            for operand, result in destinations(op):
                if op.results[result] in wanted:
                    wanted.setdefault(self._root(op.operands[operand]), wanted[op.results[result]])
        return wanted

    # -- what lies where ---------------------------------------------------------------------------------------------

    def _visit(self, position: int, op: ir.Operation) -> None:
        if is_view(op):
            if op.operands[0] in self.of:
                self._hold(op.results[0], self.of[op.operands[0]])
            return
        for root in (*self._reads[position], *self._writes[position]):
            self._use(self.of.get(root), position)
        if op.name == "kv.parameter":
            self._hold(op.results[0], self._shared(position, op.results[0], "weight", string(op, "parameter")))
        elif op.name == "kv.state_load":
            self._load(position, op.results[0], _state(op))
        elif op.name == "kv.state_store":
            self._store(position, op.operands[0], _state(op))
        else:
            self._scratch(position, op)
            into = {r: o for o, r in destinations(op)}
            for number, result in enumerate(op.results):
                if not is_tensor(result) or (is_blank(result) and result not in self._read):
                    continue
                if number in into:
                    self._write(position, op, into[number], result)
                else:
                    self._fresh(result, position, owned=op.name != "arith.constant")

    def _write(self, position: int, op: ir.Operation, operand: int, result: ir.Value) -> None:
        init = op.operands[operand]
        if is_blank(init):
            self._fresh(result, position)
        elif self._may_overwrite(position, init, result):
            self._hold(result, self.of[init])
            self._change(self.of[init].name, position, reads=keeps_contents(op, operand))
        else:
            target = self._fresh(result, position)
            if keeps_contents(op, operand):
                self._move(position, init, target.name)

    def _may_overwrite(self, position: int, init: ir.Value, result: ir.Value) -> bool:
        held, root = self.of.get(init), self._root(init)
        if held is None or not held.owned:
            return False
        if self._last[root] > position or root in self._reads[position] or self._writes[position].count(root) > 1:
            return False
        return held.kind not in SHARED or self._wanted.get(result) == held.name

    def _load(self, position: int, value: ir.Value, state: str) -> None:
        root = self._root(value)
        if root != value:
            if root in self.of:
                self._hold(value, self.of[root])
            return
        held = self._shared(position, value, state_kind(value), state)
        store = self._stores[state][0] if state in self._stores else len(self.ops)
        if self._last.get(value, position) <= store:
            self._hold(value, held)
            return
        # its old contents are read after the state has been written: they need a place of their own
        self._use(held, position)
        self.moves.append(Moved(position, state, self._fresh(value, position).name, held.bytes))

    def _store(self, position: int, value: ir.Value, state: str) -> None:
        held = self.of.get(value)
        if held is None or held.name != state:
            self._use(self._shared(position, value, state_kind(value), state), position)
            self._move(position, value, state)

    def _scratch(self, position: int, op: ir.Operation) -> None:
        """What an op's regions need beside its operands and results, as one buffer."""
        if op.name.startswith(_STRUCTURED):
            return
        name = f"{self.op_id(position)}.scratch"
        most = 0
        for region in op.regions:
            if len(region.blocks) > 1:
                raise ProgramError(
                    op.location,
                    f"'{op.name}' has a region of {len(region.blocks)} blocks; a plan needs "
                    "one in each, and scf for control flow",
                )
            for block in region.blocks:
                bytes_, moves = _inside(op, block, name, self._legal)
                most = max(most, bytes_)
                self.moves += [Moved(position, name, name, m) for m in moves]
        if most:
            self.buffers[name] = Buffer(name, "scratch", most, place(op.location))
            self.uses[name] = [position]
            self._change(name, position, reads=True)

    # -- bookkeeping -------------------------------------------------------------------------------------------------

    def _hold(self, value: ir.Value, buffer: Buffer) -> None:
        self.of[value] = buffer
        buffer.values.append(self.ids[value])

    def _fresh(self, value: ir.Value, position: int, owned: bool = True) -> Buffer:
        name, kind = self.ids[value], tensor_kind(value)
        buffer = Buffer(name, kind, size(value), place(value.location), owned)
        self.buffers[name] = buffer
        self._made[name] = position
        # a constant comes with the program, when its first reader starts; everything else is written where it is made
        self.uses[name] = [] if kind == "constant" else [position]
        if kind != "constant":
            self._change(name, position)
        self._hold(value, buffer)
        return buffer

    def _shared(self, position: int, value: ir.Value, kind: Kind, name: str) -> Buffer:
        found = self.buffers.get(name)
        if found is None:
            found = self.buffers[name] = Buffer(name, kind, size(value), place(value.location))
            found.owned = kind != "weight"
            self._made[name] = position
            self.uses[name] = []
        if (found.kind, found.bytes) != (kind, size(value)):
            raise ProgramError(
                value.location,
                f"{name} is a {kind} of {size(value)} bytes here and a {found.kind} of "
                f"{found.bytes} bytes elsewhere in the function",
            )
        return found

    def _use(self, buffer: Buffer | None, position: int) -> None:
        if buffer is not None and buffer.name in self.uses and self.uses[buffer.name][-1:] != [position]:
            self.uses[buffer.name].append(position)

    def _change(self, name: str, position: int, reads: bool = False) -> None:
        self.writes[name].add(position)
        if reads:
            self.updates[name].add(position)

    def _move(self, position: int, value: ir.Value, target: str) -> None:
        held = self.of.get(value)
        if held is not None or not is_blank(value):
            self.moves.append(Moved(position, held.name if held else self.ids[value], target, size(value)))


def _inside(op: ir.Operation, block: ir.Block, prefix: str, legal: Legal) -> tuple[int, list[int]]:
    """The bytes that a block inside an op needs for its own values, and the bytes of each copy that it makes."""
    arguments = [a for a in block.arguments if is_tensor(a)] if op.name in ("scf.for", "scf.forall") else []
    carried = {a: Buffer(f"{prefix} carried {a.arg_number}", "activation", 0, "") for a in arguments}
    inner = Storages(block, prefix, legal, carried)
    packing = Packing(legal)
    steps = len(inner.ops)
    times = lifetimes(inner.uses, inner.writes, inner.updates)
    packing.add_all(Span(b.name, b.bytes, times[b.name].first, times[b.name].last) for b in inner.buffers.values())
    moves = [m.bytes for m in inner.moves]
    if op.name == "scf.for":
        for argument, value in zip(list(block.arguments)[1:], inner.ops[-1].operands, strict=True):
            if not is_tensor(value) or inner.of.get(value) is carried[argument] or is_blank(value):
                continue
            moves.append(size(value))
            held = inner.of.get(value)
            if held is not None and held.name not in inner.buffers:
                # two carried values change places: one of them waits in a buffer of its own
                packing.add(Span(f"{prefix} swapped {argument.arg_number}", size(value), 0, steps))
    return packing.end, moves
