"""kv-raise-repeat: an index, or a product with zeros and ones, that repeats the heads of a cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch_mlir import ir

from ..analysis.aten import axis_operand, owner, rank_of
from ..analysis.axes import Axes, Follows, axes_in
from ..analysis.evaluate import Evaluator, NotEvaluable, Weights, no_weights
from ..analysis.functions import body, functions
from ..analysis.heads import Heads, reduces
from ..dialect.types import element_of, is_tensor, shape_of, vtensor
from .dead_code import erase_dead
from .torch_builder import TorchBuilder


@dataclass(frozen=True)
class RaiseRepeat:
    """Turns what repeats each index of a dimension of a cache, or all of them, into an expand and views.

    Applies to lookups, ``index`` and ``index_select`` by an index of rank 1, and to products with a matrix that has a
    single one for each entry it makes and zeros beside it, which are lookups too; on values with a cache axis, along
    another dimension, where the numbers are known (``weights`` gives the value of a registered buffer). Relies on
    ``kv-raise-append``. The heads of the cache stay in sight then, as with ``repeat_interleave`` and ``repeat``, so
    that query heads of one KV head share its selection. A product that looks up anything else becomes an
    ``index_select``; any other lookup is left as it is. Refused are heads that are made of a cache by another sum in
    which each may read a part of it.

    Before::

        %owner = torch.vtensor.literal(dense<[0, 0, 1, 1]>)
        %k4 = torch.aten.index_select %k, %int1, %owner       // [B, 2, T, D] -> [B, 4, T, D]

    After::

        %a = torch.aten.view %k                               // [B, 2, 1, T, D]
        %b = torch.aten.expand %a                             // [B, 2, 2, T, D]
        %k4 = torch.aten.view %b                              // [B, 4, T, D]

    See tests/lit/raise/raise_repeat.mlir.
    """

    weights: Weights = no_weights
    name: ClassVar[str] = "kv-raise-repeat"

    def run(self, module: ir.Operation) -> None:
        """Rewrites the module."""
        for function in functions(module).values():
            operations = [view.operation for view in body(function).operations]
            if not any(op.name == "kv.append" for op in operations):
                continue
            axes, evaluator = Axes(function), Evaluator({}, self.weights)
            heads = Heads(function, axes)
            # users first, so that what an op takes is still what the axes were found for
            for op in reversed(operations):
                found = None
                if op.name in _LOOKUPS:
                    found = _lookup(op, axes, evaluator)
                elif op.name in _PRODUCTS:
                    found = _product(op, axes, evaluator, heads)
                elif reduces(op, axes):
                    heads.check_reduction(op)
                if found is not None:
                    _rewrite(op, found)
            erase_dead(function)


_PRODUCTS = ("torch.aten.bmm", "torch.aten.mm")
_LOOKUPS = ("torch.aten.index.Tensor", "torch.aten.index_select")


@dataclass(frozen=True)
class _Lookup:
    """``numbers`` of the indices of ``source`` along a dimension, ``at``."""

    source: ir.Value
    at: int
    numbers: Sequence[int]


def _lookup(op: ir.Operation, axes: Axes, evaluator: Evaluator) -> _Lookup | None:
    """What an index takes out of a value with a cache axis, along another dimension."""
    source = op.operands[0]
    if op.name == "torch.aten.index_select":
        at, index = axis_operand(op, 1, rank_of(source)), op.operands[2]
    else:
        listed = owner(op.operands[1])
        given = [] if listed is None else [(i, v) for i, v in enumerate(listed.operands) if is_tensor(v.type)]
        if len(given) != 1 or rank_of(given[0][1]) != 1:
            return None
        ((at, index),) = given
    if not _along_another(source, at, axes):
        return None
    try:
        numbers = evaluator(index)
    except NotEvaluable:
        return None
    return _Lookup(source, at, [int(number) % shape_of(source.type)[at] for number in numbers])


def _product(op: ir.Operation, axes: Axes, evaluator: Evaluator, heads: Heads) -> _Lookup | None:
    """What a product with zeros and ones takes out of a value with a cache axis, along what it sums over.

    Raises:
        Refusal: it makes heads in another way, and each reads a part of the cache.
    """
    left, right = op.operands
    for source, matrix, at in ((right, left, rank_of(right) - 2), (left, right, rank_of(left) - 1)):
        if not _along_another(source, at, axes):
            continue
        try:
            given = evaluator(matrix)
        except NotEvaluable:
            continue
        if given.is_meta:
            continue
        # [.., made, summed], the same for all of a batch
        entries = given if matrix == left else given.mT
        first = entries.reshape(-1, *entries.shape[-2:])[0]
        single = (first[0] != 0).sum() == 1 and ((first != 0).sum(1) == 1).all() and ((first == 1).sum(1) == 1).all()
        if single and bool((entries == first).all()):
            return _Lookup(source, at, first.int().argmax(1).tolist())
        heads.check_product(op, first)
    return None


def _along_another(source: ir.Value, at: int, axes: Axes) -> bool:
    dims = axes.of[source]
    keyed = any(axis.follows is Follows.KEY for axis in axes_in(dims))
    return keyed and not any(axis.tracked for axis in dims[at])


def _rewrite(op: ir.Operation, lookup: _Lookup) -> None:
    source, at, numbers = lookup.source, lookup.at, list(lookup.numbers)
    shape, element = shape_of(source.type), element_of(source.type)
    times, rest = divmod(len(numbers), shape[at])
    each = [i for i in range(shape[at]) for _ in range(times)]
    builder = TorchBuilder(op)
    if rest or times == 0 or numbers not in (each, [*range(shape[at])] * times):
        if op.name in _PRODUCTS:
            operands = [source, builder.integer(at), builder.indices(numbers)]
            taken = builder.op("torch.aten.index_select", operands, op.results[0].type)
            op.results[0].replace_all_uses_with(taken)
            op.erase()
        return
    inner = at + 1 if numbers == each else at

    def widened(extent: int) -> Sequence[int]:
        return [*shape[:inner], extent, *shape[inner:]]

    value = builder.view(source, widened(1))
    operands = [value, builder.integers(widened(times)), builder.boolean(False)]
    value = builder.op("torch.aten.expand", operands, vtensor(widened(times), element))
    op.results[0].replace_all_uses_with(builder.view(value, shape_of(op.results[0].type)))
    op.erase()
