"""Reading ops of the torch dialect: constants, lists, and what kind of thing an op does to its axes.

Programs reach the compiler decomposed to core ATen, so the kinds below are per kind of op, not per model.
An op that is in none of them is of no known kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum

from torch_mlir import ir

from ..dialect.types import is_tensor, shape_of


class Kind(Enum):
    """What an op does to the axes of its tensor operands."""

    POINTWISE = "elementwise"
    VIEW = "view"
    REDUCTION = "reduction"
    CONTRACTION = "contraction"
    NORMALISATION = "normalisation"
    INDEX = "index"
    CREATION = "creation"
    UNKNOWN = "unknown"


_POINTWISE = """
    abs acos acosh add.Scalar add.Tensor alias asin asinh atan atan2 atanh bitwise_and.Scalar bitwise_and.Tensor
    bitwise_not bitwise_or.Scalar bitwise_or.Tensor bitwise_xor.Tensor ceil clamp clamp.Tensor clone contiguous cos
    cosh detach div.Scalar div.Scalar_mode div.Tensor div.Tensor_mode elu eq.Scalar eq.Tensor erf exp exp2 expm1 floor
    fmod.Scalar fmod.Tensor ge.Scalar ge.Tensor gelu gt.Scalar gt.Tensor hardtanh isinf isnan le.Scalar le.Tensor
    leaky_relu lift_fresh_copy log log10 log1p log2 logical_and logical_not logical_or logical_xor lt.Scalar lt.Tensor
    masked_fill.Scalar masked_fill.Tensor maximum minimum mul.Scalar mul.Tensor ne.Scalar ne.Tensor neg
    pow.Scalar pow.Tensor_Scalar pow.Tensor_Tensor reciprocal relu remainder.Scalar remainder.Tensor round rsqrt
    rsub.Scalar sigmoid sign silu sin sinh softplus sqrt square sub.Scalar sub.Tensor tan tanh to.dtype trunc _to_copy
    where.self where.Scalar where.ScalarOther where.ScalarSelf
"""
_VIEW = """
    view _unsafe_view reshape permute transpose.int t unsqueeze squeeze squeeze.dim squeeze.dims expand repeat
"""
_REDUCTION = """
    sum sum.dim_IntList mean mean.dim amax amin max max.dim min min.dim any any.dim all all.dim prod prod.dim_int
    var var.dim var.correction std std.dim std.correction var_mean var_mean.correction argmax argmin logsumexp
    norm.ScalarOpt_dim linalg_vector_norm
"""
_CONTRACTION = "mm bmm addmm"
_NORMALISATION = "_softmax _log_softmax native_layer_norm _safe_softmax softmax.int"
_INDEX = """
    embedding index.Tensor index_select gather slice.Tensor select.int cat split.Tensor split_with_sizes
    constant_pad_nd flip roll cumsum cumprod topk sort narrow slice_scatter
    select_scatter
"""
_CREATION = """
    arange arange.start arange.start_step full full_like zeros zeros_like ones ones_like empty.memory_format
    scalar_tensor empty_like new_zeros new_ones new_full new_empty tril triu eye
"""

_KINDS = {"torch.prims.convert_element_type": Kind.POINTWISE} | {
    f"torch.aten.{name}": kind
    for kind, names in (
        (Kind.POINTWISE, _POINTWISE),
        (Kind.VIEW, _VIEW),
        (Kind.REDUCTION, _REDUCTION),
        (Kind.CONTRACTION, _CONTRACTION),
        (Kind.NORMALISATION, _NORMALISATION),
        (Kind.INDEX, _INDEX),
        (Kind.CREATION, _CREATION),
    )
    for name in names.split()
}

FILLED = frozenset(
    f"torch.aten.{name}"
    for name in [
        "empty.memory_format",
        "empty_like",
        "full",
        "full_like",
        "new_empty",
        "new_full",
        "new_ones",
        "new_zeros",
        "ones",
        "ones_like",
        "zeros",
        "zeros_like",
    ]
)
"""Ops whose result has one number everywhere, or any number at all."""

CONVERSIONS = frozenset(("torch.aten._to_copy", "torch.aten.to.dtype", "torch.prims.convert_element_type"))
"""Ops whose result has their first operand's numbers in another element type."""

IDENTITIES = frozenset(f"torch.aten.{name}" for name in ("alias", "clone", "contiguous", "detach", "lift_fresh_copy"))
"""Ops whose result has the value of their first operand."""


def filled_with(operation: ir.Operation) -> float | None:
    """The number that a ``FILLED`` op's result has everywhere; None for any number at all, and for other ops.

    Raises:
        NotConstant: the number is computed.
    """
    name = operation.name.removeprefix("torch.aten.")
    if name in ("full", "full_like", "new_full"):
        value = constant(operation.operands[2 if name == "new_full" else 1])
        return float(value) if isinstance(value, int | float) else None
    kinds = {"zeros": 0.0, "ones": 1.0}
    return kinds.get(name.removeprefix("new_").removesuffix("_like")) if operation.name in FILLED else None


def kind_of(operation: ir.Operation) -> Kind:
    """The kind of a torch op."""
    return _KINDS.get(operation.name, Kind.UNKNOWN)


def owner(value: ir.Value) -> ir.Operation | None:
    """The op that defines a value; None for a block argument."""
    producer = value.owner
    return None if isinstance(producer, ir.Block) else producer.operation


def constant(value: ir.Value) -> object:
    """The Python value of a ``torch.constant.*`` or a list of them; ``NotConstant`` is raised otherwise.

    Raises:
        NotConstant: the value is computed.
    """
    producer = owner(value)
    name = producer.name if producer is not None else ""
    if producer is None:
        raise NotConstant
    if name == "torch.constant.none":
        return None
    if name == "torch.prim.ListConstruct":
        return [constant(v) for v in producer.operands]
    if name == "torch.constant.bool":
        return bool(ir.IntegerAttr(producer.attributes["value"]).value)
    if name == "torch.aten.Int.bool":  # how a number that Python gave as True or False is imported
        return int(bool(constant(producer.operands[0])))
    if name == "torch.constant.int":
        return int(ir.IntegerAttr(producer.attributes["value"]).value)
    if name == "torch.constant.float":
        return float(ir.FloatAttr(producer.attributes["value"]).value)
    if name in ("torch.constant.str", "torch.constant.device"):
        return str(ir.StringAttr(producer.attributes["value"]).value)
    raise NotConstant


class NotConstant(Exception):
    """The value is not a compile-time constant."""


def integer_operand(operation: ir.Operation, index: int) -> int:
    """A constant integer operand.

    Raises:
        NotConstant: it is computed.
    """
    value = constant(operation.operands[index])
    if not isinstance(value, int):
        raise NotConstant
    return value


def integers_operand(operation: ir.Operation, index: int) -> list[int]:
    """A constant list of integers operand, or a lone integer as a list of one.

    Raises:
        NotConstant: one of them is computed.
    """
    value = constant(operation.operands[index])
    values = [v for v in (value if isinstance(value, list) else [value]) if isinstance(v, int)]
    if (isinstance(value, list) and len(values) != len(value)) or not isinstance(value, list | int):
        raise NotConstant
    return values


def axis_operand(operation: ir.Operation, index: int, rank: int) -> int:
    """A constant axis operand, counted from the front."""
    axis = integer_operand(operation, index)
    return axis + rank if axis < 0 else axis


def tensor_operands(operation: ir.Operation) -> list[ir.Value]:
    """The tensor operands of an op, those in lists included, in order."""
    found: list[ir.Value] = []
    for value in operation.operands:
        producer = owner(value)
        if is_tensor(value.type):
            found.append(value)
        elif producer is not None and producer.name == "torch.prim.ListConstruct":
            found += [v for v in producer.operands if is_tensor(v.type)]
    return found


def made_of(
    value: ir.Value, stops_at: Callable[[ir.Operation], bool] = lambda operation: False
) -> Iterator[ir.Operation]:
    """The ops that a tensor is made of, each once and behind what uses it; not what ops that it ``stops_at`` take."""
    pending, seen = [value], set()
    while pending:
        operation = owner(pending.pop())
        if operation is None or operation in seen:
            continue
        seen.add(operation)
        yield operation
        if not stops_at(operation):
            pending += tensor_operands(operation)


def rank_of(value: ir.Value) -> int:
    """The rank of a tensor value."""
    return len(shape_of(value.type))
