"""Static bounds of a tensor's extents: intervals of the index arithmetic that an unknown extent comes from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from torch_mlir import ir

from .errors import ProgramError

DYNAMIC = ir.ShapedType.get_dynamic_size()


@dataclass(frozen=True)
class Interval:
    """The whole numbers from ``low`` to ``high``, both included."""

    low: int
    high: int


def element_bytes(type_: ir.Type) -> int:
    """Bytes of one element: 8 for index; bits rounded up to whole bytes otherwise, so one for i1."""
    if isinstance(type_, ir.IndexType):
        return 8
    if isinstance(type_, (ir.IntegerType, ir.FloatType)):
        return -(-int(type_.width) // 8)
    if isinstance(type_, ir.ComplexType):
        return 2 * element_bytes(type_.element_type)
    raise ProgramError(None, f"elements of type {type_} have no size in memory")


def shape(value: ir.Value) -> tuple[int, ...]:
    """The extents of a ranked tensor; an extent that is not static is given as its largest possible value.

    Raises:
        ProgramError: an extent has no bound that follows from constants and loop bounds.
    """
    type_ = ir.RankedTensorType(value.type)
    return tuple(_extent(value, d) if n == DYNAMIC else int(n) for d, n in enumerate(type_.shape))


def size(value: ir.Value) -> int:
    """The bytes of a tensor, or the most that it can take where an extent is not static.

    Raises:
        ProgramError: see ``shape``.
    """
    return prod(shape(value)) * element_bytes(ir.RankedTensorType(value.type).element_type)


def _extent(value: ir.Value, dimension: int) -> int:
    """An upper bound of a dynamic extent, from the op that made the value."""
    op = _definition(value)
    if op is None:
        argument = ir.BlockArgument(value)
        loop = argument.owner.owner.operation
        if loop.name == "scf.for" and argument.arg_number > 0:
            return _extent_or_static(loop.operands[2 + argument.arg_number], dimension)
        raise _unbounded(value, dimension)
    if op.name == "tensor.empty":
        return interval(op.operands[_dynamic_before(value, dimension)]).high
    if op.name == "tensor.extract_slice":
        return _slice_extent(op, value, dimension)
    if op.name == "tensor.cast":
        return _extent_or_static(op.operands[0], dimension)
    if op.name == "scf.for":
        return _extent_or_static(op.operands[3 + ir.OpResult(value).result_number], dimension)
    if op.name.startswith(("linalg.", "tm_tensor.", "iree_linalg_ext.", "kv.scatter")):
        first = len(op.operands) - len(op.results)
        return _extent_or_static(op.operands[first + ir.OpResult(value).result_number], dimension)
    if op.name in ("tensor.insert_slice", "tensor.insert", "tensor.scatter"):
        return _extent_or_static(op.operands[1], dimension)
    raise _unbounded(value, dimension)


def _slice_extent(op: ir.Operation, value: ir.Value, dimension: int) -> int:
    """A slice is as long as its size operand says, and never longer than its source."""
    sizes = list(ir.DenseI64ArrayAttr(op.attributes["static_sizes"]))
    if len(sizes) != ir.RankedTensorType(value.type).rank:
        raise _unbounded(value, dimension)
    before = 1 + sum(n == DYNAMIC for n in ir.DenseI64ArrayAttr(op.attributes["static_offsets"]))
    wanted = op.operands[before + sum(n == DYNAMIC for n in sizes[:dimension])]
    try:
        return min(interval(wanted).high, _extent_or_static(op.operands[0], dimension))
    except ProgramError:
        return _extent_or_static(op.operands[0], dimension)


def _extent_or_static(value: ir.Value, dimension: int) -> int:
    extent = ir.RankedTensorType(value.type).shape[dimension]
    return _extent(value, dimension) if extent == DYNAMIC else int(extent)


def _dynamic_before(value: ir.Value, dimension: int) -> int:
    return sum(n == DYNAMIC for n in ir.RankedTensorType(value.type).shape[:dimension])


def _unbounded(value: ir.Value, dimension: int) -> ProgramError:
    op = _definition(value)
    what = f"the result of '{op.name}'" if op is not None else "a block argument"
    return ProgramError(
        value.location,
        f"extent {dimension} of {what}, {value.type}, has no static bound; "
        "a plan needs one: give it a size from constants, loop bounds and their sums, products and minima",
    )


def _definition(value: ir.Value) -> ir.Operation | None:
    owner = value.owner
    return None if isinstance(owner, ir.Block) else owner.operation


def _corners(a: Interval, b: Interval, f: Callable[[int, int], int]) -> Interval:
    values = [f(x, y) for x in (a.low, a.high) for y in (b.low, b.high)]
    return Interval(min(values), max(values))


_BINARY: dict[str, Callable[[Interval, Interval], Interval]] = {
    "arith.addi": lambda a, b: Interval(a.low + b.low, a.high + b.high),
    "arith.subi": lambda a, b: Interval(a.low - b.high, a.high - b.low),
    "arith.muli": lambda a, b: _corners(a, b, lambda x, y: x * y),
    "arith.minsi": lambda a, b: Interval(min(a.low, b.low), min(a.high, b.high)),
    "arith.maxsi": lambda a, b: Interval(max(a.low, b.low), max(a.high, b.high)),
}
_SAME = ("arith.index_cast", "arith.extsi")


def interval(value: ir.Value) -> Interval:
    """The values that an index or integer can take.

    Raises:
        ProgramError: it does not follow from constants, loop bounds, sums, differences, products, minima and maxima.
    """
    op = _definition(value)
    if op is None:
        argument = ir.BlockArgument(value)
        loop = argument.owner.owner.operation
        if loop.name == "scf.for" and argument.arg_number == 0:
            return _induction(loop)
    elif op.name == "arith.constant":
        number = int(ir.IntegerAttr(op.attributes["value"]).value)
        return Interval(number, number)
    elif op.name in _BINARY:
        return _BINARY[op.name](interval(op.operands[0]), interval(op.operands[1]))
    elif op.name in _SAME:
        return interval(op.operands[0])
    elif op.name == "tensor.dim":
        extent = _extent_or_static(op.operands[0], interval(op.operands[1]).low)
        return Interval(0, extent)
    what = f"'{op.name}'" if op is not None else "a block argument"
    raise ProgramError(
        value.location,
        f"{what} is the size of a tensor and has no static bound; a plan needs one: "
        f"constants, loop bounds, and {', '.join([*_BINARY, *_SAME])} of them have",
    )


def _induction(loop: ir.Operation) -> Interval:
    low, high, step = (interval(v) for v in list(loop.operands)[:3])
    last = max(high.high - 1, low.low)
    if low.low == low.high and step.low == step.high and step.low > 0 and last >= low.low:
        last = low.low + (last - low.low) // step.low * step.low
    return Interval(low.low, last)
