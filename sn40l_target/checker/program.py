"""The program as the checker reads it: which values are views, what ops update, how many bytes a value has.

Written apart from ``storage`` and ``bounds``, which say the same to the planner: the checker must not share its faults.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod

from torch_mlir import ir

from snapcc.compiler.dialect.kv import string

from ..schema import STATE_PREFIX

_ALIASES = (
    "tensor.cast",
    "tensor.collapse_shape",
    "tensor.expand_shape",
    "tensor.extract_slice",
    "tensor.bitcast",
)
_OUTS_LAST = ("linalg.", "tm_tensor.", "iree_linalg_ext.", "kv.scatter")
_OUT_SECOND = ("tensor.insert_slice", "tensor.insert", "tensor.scatter", "linalg.pack", "linalg.unpack")


def ranked(value: ir.Value) -> bool:
    """Whether a value is a tensor."""
    return isinstance(value.type, ir.RankedTensorType)


def maker(value: ir.Value) -> ir.Operation | None:
    """The op that made a value; None for a block's argument."""
    return None if isinstance(value.owner, ir.Block) else value.owner.operation


def aliases(op: ir.Operation) -> bool:
    """Whether an op's result is its first operand under another shape, or read in another order and never kept."""
    if op.name in _ALIASES:
        return True
    if op.name == "arith.bitcast":
        return ranked(op.results[0])
    return _reorders(op) and not _kept(op.results[0])


def _reorders(op: ir.Operation) -> bool:
    """Whether each element of the result is one element of the only input, found by its indices alone."""
    if op.name not in ("linalg.transpose", "linalg.broadcast", "linalg.copy", "linalg.generic"):
        return False
    operands = list(op.operands)
    if [ranked(v) for v in operands] != [True, True] or not empty(operands[1]):
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
            if use.operand_number in overwrites(op).values():
                return True
            if op.name in _ALIASES or op.name == "arith.bitcast" or _reorders(op):
                waiting.extend(op.results)
    return False


def source(value: ir.Value) -> ir.Value:
    """The value that a chain of views starts from."""
    while (op := maker(value)) is not None and aliases(op):
        value = op.operands[0]
    return value


def empty(value: ir.Value) -> bool:
    """Whether a value has no contents that stand in a memory: uninitialised, or one number everywhere."""
    op = maker(value)
    if op is None:
        return False
    if op.name == "arith.constant":
        dense = op.attributes["value"]
        return isinstance(dense, ir.DenseElementsAttr) and bool(dense.is_splat)
    if op.name in _ALIASES or op.name == "arith.bitcast" or _reorders(op):
        return empty(op.operands[0])
    return bool(op.name == "tensor.empty" or (op.name == "linalg.fill" and empty(op.operands[1])))


def overwrites(op: ir.Operation) -> dict[int, int]:
    """Result number to the number of the operand that it is an updated version of."""
    count = len(op.results)
    if op.name in _OUT_SECOND:
        return {0: 1}
    if op.name == "scf.for":
        return {i: i + 3 for i in range(count)}
    if op.name == "scf.forall" or op.name.startswith(_OUTS_LAST):
        return {i: len(op.operands) - count + i for i in range(count)}
    return {}


def ignores(op: ir.Operation, operand: int) -> bool:
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
            used.extend(v for v in inner.operands if ranked(v))
            made.update(inner.results)
        return ir.WalkResult.ADVANCE

    if op.regions:
        op.walk(look, ir.WalkOrder.PRE_ORDER)
    return made, used


def from_outside(op: ir.Operation) -> list[ir.Value]:
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


def bytes_of(value: ir.Value) -> int:
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
    op, number = maker(value), sum(n == ir.ShapedType.get_dynamic_size() for n in known[:dimension])
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
    updated = overwrites(op)
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
    op = maker(value)
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


def scratch_needed(op: ir.Operation) -> int:
    """The least that an op with regions needs for itself: the most that one op inside touches of its own values."""
    if not op.regions or op.name.startswith(_OUTS_LAST):
        return 0
    made, _ = _inside(op)
    sizes: dict[ir.Value, int] = {}
    most = 0

    def look(inner: ir.Operation) -> ir.WalkResult:
        nonlocal most
        if inner != op and not aliases(inner):
            touched = {_first_version(v, made) for v in (*inner.operands, *inner.results) if ranked(v)}
            own = [v for v in touched if v is not None]
            sizes.update((v, bytes_of(v)) for v in own if v not in sizes)
            most = max(most, sum(sizes[v] for v in own))
        return ir.WalkResult.ADVANCE

    op.walk(look, ir.WalkOrder.PRE_ORDER)
    return most


def _first_version(value: ir.Value, made: set[ir.Value]) -> ir.Value | None:
    """The value that first filled a buffer inside an op; None for a buffer from outside or for no buffer."""
    while True:
        value = source(value)
        if value not in made or empty(value):
            return None
        op = maker(value)
        if op is None:
            argument = ir.BlockArgument(value)
            op, number = argument.owner.owner.operation, argument.arg_number - 1
            if op.name != "scf.for":
                return None
            value = op.results[number]
            continue
        number = ir.OpResult(value).result_number
        init = overwrites(op).get(number)
        if init is None or empty(op.operands[init]):
            return value
        value = op.operands[init]


def state_name(op: ir.Operation) -> str:
    """The plan's name for the state that an op loads or stores."""
    return STATE_PREFIX + string(op, "state")


def state_kind(type_: ir.RankedTensorType) -> str:
    """Whether a state is a cache or small values per row."""
    text = str(type_.element_type)
    small = text.startswith("i") and text != "index" and int(text[1:]) <= 8
    return "cache" if type_.rank >= 3 and (small or text[0] in "bf") else "state"
