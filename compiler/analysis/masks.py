"""What masks on attention logits hide, found by evaluating them.

A mask is harmless where it is plainly causal: the fixed slots get their own mask, from positions. Any other
meaning (a window, a document, a bias along the cache axis) would be lost, so it must be known first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_mlir import ir

from ..diagnostics import Refusal
from ..dialect.types import shape_of
from .aten import NotConstant, constant
from .attention import Logits, Mask
from .axes import Axes, Axis, Follows, dimension_of
from .evaluate import Evaluator, NotEvaluable
from .functions import argument_attributes, body

if TYPE_CHECKING:
    import torch

HIDDEN = -1e4
"""A number at most this, added to a logit, hides its key: in f32 its weight is exactly zero."""


def hidden_keys(logits: Logits, key: Axis, query: Axis, axes: Axes, evaluator: Evaluator) -> torch.Tensor:
    """Which keys the masks hide from which queries. -> [Q, T] bool.

    Raises:
        Refusal: a mask depends on data, differs between rows or heads, or adds a bias.
    """
    import torch

    queries = query.size
    hidden = torch.zeros(queries, key.size, dtype=torch.bool)
    for mask in logits.masks:
        hidden |= _hidden_by(mask, key, query, axes, evaluator)
    return hidden


def _hidden_by(mask: Mask, key: Axis, query: Axis, axes: Axes, evaluator: Evaluator) -> torch.Tensor:
    try:
        value = evaluator(mask.value)
        filler = None if mask.filler is None else _number(mask.filler, evaluator)
    except NotEvaluable as stop:
        raise Refusal(mask.operation, *_undecided(stop)) from None
    if mask.how == "add":
        hidden = value <= HIDDEN
        if bool(((value != 0) & ~hidden).any()):
            raise Refusal(
                mask.operation,
                "a bias that differs between cached keys is added to the logits",
                "only masks that hide keys are supported; a bias such as ALiBi is not yet",
            )
    else:
        hidden = value if mask.how == "hide" else ~value
        if filler is None or filler > HIDDEN:
            raise Refusal(
                mask.operation,
                f"a mask fills logits with {filler}, which does not hide their keys",
                f"fill with float('-inf') or a number of at most {HIDDEN:g}",
            )
    return _queries_by_keys(hidden, mask, key, query, axes)


def _queries_by_keys(hidden: torch.Tensor, mask: Mask, key: Axis, query: Axis, axes: Axes) -> torch.Tensor:
    """One [Q, T] table from a mask of the logits' shape, which must be the same for all rows and heads."""
    result = mask.operation.results[0]
    shape, dims = shape_of(result.type), axes.of[result]
    if query.size > 1 and not any(query in group for group in dims):
        lost = axes.lost(result, Follows.QUERY)
        raise (
            lost.refusal()
            if lost is not None
            else Refusal(
                mask.operation, "masked logits have no axis of the query tokens", "mask logits of queries and keys"
            )
        )
    order = [i for i, group in enumerate(dims) if key not in group and query not in group]
    table = hidden.expand(shape)
    merged = query.size > 1 and dims[dimension_of(dims, query)] != (query,)
    if merged or dims[dimension_of(dims, key)] != (key,):
        raise Refusal(
            mask.operation,
            "a mask meets logits whose query or cache axis is merged with another one",
            "mask the logits while queries and keys have dimensions of their own",
        )
    last = [dimension_of(dims, key)] if query.size == 1 else [dimension_of(dims, query), dimension_of(dims, key)]
    table = table.permute([*order, *last]).reshape(-1, query.size, key.size)
    if not bool((table == table[:1]).all()):
        raise Refusal(mask.operation, "a mask differs between rows or heads", "use one mask for all rows and heads")
    return table[0]


def _number(value: ir.Value, evaluator: Evaluator) -> float:
    try:
        number = constant(value)
    except NotConstant:
        return float(evaluator(value).max().item())
    assert isinstance(number, int | float)
    return float(number)


def _undecided(stop: NotEvaluable) -> tuple[str, str]:
    block = stop.value.owner
    if isinstance(block, ir.Block):
        entry = argument_attributes(block.owner.operation)[
            list(body(block.owner.operation).arguments).index(stop.value)
        ]
        name = entry.get("kv.name", "?")
        return (
            f"a mask on the logits depends on the input '{name}', whose meaning is not known",
            f"declare it with --causal-mask {name} if it is plainly causal",
        )
    return f"a mask on the logits is not known: {stop.why}", "make the mask depend on lengths and positions alone"
