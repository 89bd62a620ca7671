"""Which caches an attention reads, and where in a cache its heads and tokens lie."""

from __future__ import annotations

from dataclasses import dataclass

from torch_mlir import ir

from ..diagnostics import Refusal
from ..dialect.kv import integer
from ..dialect.types import shape_of
from .attention import is_passage
from .axes import Axes, axes_in, dimension_of
from .functions import argument_attributes, body


@dataclass(frozen=True)
class Cache:
    """One grown cache of a function: ``name`` is its input's.

    ``heads`` lie at ``head_axis``, with their features behind them in one dimension if its extent is larger;
    ``head_axis`` is -1 for a cache without heads.
    """

    name: str
    append: ir.Operation
    axis: int
    head_axis: int
    heads: int
    reader: ir.Operation


def past_length(function: ir.Operation) -> int | None:
    """The past that a function was specialised at; None if it has no cache."""
    for view in body(function).operations:
        if view.operation.name == "kv.append":
            return shape_of(view.operation.operands[0].type)[integer(view.operation, "axis")]
    return None


def query_length(function: ir.Operation) -> int:
    """The new tokens that a function was specialised for."""
    for argument, entry in zip(body(function).arguments, argument_attributes(function), strict=True):
        if entry.get("kv.role") == "tokens":
            return (shape_of(argument.type) or [1])[-1]
    return 1


def caches(function: ir.Operation) -> list[Cache]:
    """The caches of a raised function in the order of its arguments, each with the attention that reads it first.

    Raises:
        Refusal: a cache that no attention reads, or whose heads are not one axis of its own.
    """
    names = {
        argument: entry["kv.name"]
        for argument, entry in zip(body(function).arguments, argument_attributes(function), strict=True)
        if entry.get("kv.role") == "cache"
    }
    axes = Axes(function)
    found: dict[str, Cache] = {}
    for view in body(function).operations:
        attention = view.operation
        if attention.name != "kv.attention":
            continue
        for operand in list(attention.operands)[1:3]:
            append = _source(operand, attention)
            name = names[append.operands[0]]
            if name not in found:
                found[name] = Cache(
                    name,
                    append,
                    integer(append, "axis"),
                    _head_axis(append, operand, axes),
                    shape_of(operand.type)[1],
                    attention,
                )
    for argument, name in names.items():
        if name not in found:
            raise Refusal(
                argument.owner.owner, f"no attention reads the cache '{name}'", "return only caches that are read"
            )
    return [found[name] for name in names.values()]


def _source(value: ir.Value, attention: ir.Operation) -> ir.Operation:
    operation = value.owner.operation
    while operation.name != "kv.append":
        if not is_passage(operation) or isinstance(operation.operands[0].owner, ir.Block):
            raise Refusal(
                operation,
                f"'{operation.name}' computes keys or values from the cache at every step",
                "caches that are expanded or transformed after they are read are not supported yet",
            )
        operation = operation.operands[0].owner.operation
    return operation


def _head_axis(append: ir.Operation, operand: ir.Value, axes: Axes) -> int:
    group = axes.of[operand][1]
    if not group:
        return -1
    dims = axes.of[append.results[0]]
    heads = axes.outer_parts.get(group[0], group[0]) if len(group) == 1 else group[0]
    if len(group) != 1 or heads not in axes_in(dims) or dims[dimension_of(dims, heads)] != (heads,):
        raise Refusal(
            append,
            "the heads of a cache are no axis of it",
            "keep heads on an axis of their own, or in front of their features",
        )
    return dimension_of(dims, heads)
