"""kv-raise-repeat: an index that repeats the heads of a cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch_mlir import ir

from ..analysis.aten import axis_operand, owner, rank_of
from ..analysis.axes import Axes, Follows, axes_in
from ..analysis.evaluate import Evaluator, NotEvaluable, Weights, no_weights
from ..analysis.functions import body, functions
from ..dialect.types import element_of, is_tensor, shape_of, vtensor
from .dead_code import erase_dead
from .torch_builder import TorchBuilder


@dataclass(frozen=True)
class RaiseRepeat:
    """Turns a lookup along a dimension of a cache that repeats each index, or all of them, into an expand and views.

    Applies to ``index`` and ``index_select`` on values with a cache axis, along another dimension, by an index of rank
    1 whose numbers are known (``weights`` gives the value of a registered buffer). Relies on ``kv-raise-append``. The
    heads of the cache stay in sight then, as with ``repeat_interleave`` and ``repeat``, so that query heads of one KV
    head share its selection. Any other lookup is left as it is.

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
            lookups = [view.operation for view in body(function).operations if _place(view.operation) is not None]
            if not lookups:
                continue
            axes, evaluator = Axes(function), Evaluator({}, self.weights)
            for op in lookups:
                if _along_another(op, axes):
                    _rewrite(op, evaluator)
            erase_dead(function)


def _place(op: ir.Operation) -> tuple[int, ir.Value] | None:
    """The dimension that a lookup runs along, and its index of rank 1; None for any other op."""
    if op.name == "torch.aten.index_select":
        return axis_operand(op, 1, rank_of(op.operands[0])), op.operands[2]
    if op.name != "torch.aten.index.Tensor":
        return None
    listed = owner(op.operands[1])
    given = [] if listed is None else [(i, v) for i, v in enumerate(listed.operands) if is_tensor(v.type)]
    return given[0] if len(given) == 1 and rank_of(given[0][1]) == 1 else None


def _along_another(op: ir.Operation, axes: Axes) -> bool:
    place = _place(op)
    assert place is not None
    dims = axes.of[op.operands[0]]
    keyed = any(axis.follows is Follows.KEY for axis in axes_in(dims))
    return keyed and not any(axis.tracked for axis in dims[place[0]])


def _rewrite(op: ir.Operation, evaluator: Evaluator) -> None:
    place = _place(op)
    assert place is not None
    at, index = place
    source, element = op.operands[0], element_of(op.operands[0].type)
    shape = shape_of(source.type)
    try:
        numbers = [int(number) % shape[at] for number in evaluator(index)]
    except NotEvaluable:
        return
    times, rest = divmod(len(numbers), shape[at])
    each = [i for i in range(shape[at]) for _ in range(times)]
    if rest or times == 0 or numbers not in (each, [*range(shape[at])] * times):
        return
    builder = TorchBuilder(op)
    inner = at + 1 if numbers == each else at

    def widened(extent: int) -> Sequence[int]:
        return [*shape[:inner], extent, *shape[inner:]]

    value = builder.view(source, widened(1))
    operands = [value, builder.integers(widened(times)), builder.boolean(False)]
    value = builder.op("torch.aten.expand", operands, vtensor(widened(times), element))
    op.results[0].replace_all_uses_with(builder.view(value, shape_of(op.results[0].type)))
    op.erase()
