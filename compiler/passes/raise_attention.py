"""kv-raise-attention: attention over a cache, however it is spelled."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from torch_mlir import ir

from ..analysis.attention import (
    CacheOperand,
    Logits,
    cache_operand,
    key_side,
    logits_of,
    softmaxes,
    value_products,
)
from ..analysis.axes import Axes, Axis, Dims, Follows, Group
from ..analysis.caches import past_length
from ..analysis.evaluate import Evaluator, Weights
from ..analysis.functions import argument_attributes, body, functions
from ..analysis.masks import hidden_keys
from ..diagnostics import Refusal
from ..dialect.kv import attention
from ..dialect.types import element_of, shape_of, vtensor
from .dead_code import erase_dead
from .torch_builder import TorchBuilder

if TYPE_CHECKING:
    import torch


def no_weights(name: str) -> torch.Tensor | None:
    """The lookup of a program whose weights are not at hand."""
    return None


@dataclass(frozen=True)
class RaiseAttention:
    """Turns each softmax over a cache axis, and the two products around it, into ``kv.attention``.

    Applies to decode functions (one query token) and prefill functions (an empty past). Relies on
    ``kv-raise-append``. The masks on the logits are evaluated (``weights`` gives the value of a registered
    buffer): in prefill they must be exactly causal, in decode they must hide nothing, and then they are dropped,
    since the slots get a mask of their own. What cannot be shown is refused.

    Before (one of many spellings)::

        %s = torch.aten.bmm %q, %kt            // [B*H*G, 1, D] x [B*H*G, D, T], keys repeated G times
        %m = torch.aten.add.Tensor %s4, %mask
        %p = torch.aten._softmax %m, %int-1
        %o = torch.aten.bmm %p3, %v3

    After::

        %o = "kv.attention"(%q5, %k, %v) {scale = .., softcap = 0.0, causal = false}   // [B, H, G, Q, D]
    """

    weights: Weights = no_weights
    name: ClassVar[str] = "kv-raise-attention"

    def run(self, module: ir.Operation) -> None:
        """Rewrites the module."""
        for function in functions(module).values():
            if any(entry.get("kv.role") == "cache" for entry in argument_attributes(function)):
                self._raise(function)
                erase_dead(function)

    def _raise(self, function: ir.Operation) -> None:
        axes = Axes(function)
        past = past_length(function)
        if past is None:
            raise Refusal(
                function,
                "no cache of the program grows",
                "return each cache as torch.cat([past, new], dim), and pass it back in at the next step",
            )
        evaluator = Evaluator(_assumed(function, axes, past), self.weights)
        for softmax, key in softmaxes(body(function), axes):
            logits = logits_of(softmax, axes, evaluator)
            hidden = hidden_keys(logits, key, axes.query, axes, evaluator)
            causal = past == 0 and key.size > 1
            _check_mask(softmax, hidden, causal)
            _rewrite(logits, key, causal, axes, evaluator)


def _assumed(function: ir.Operation, axes: Axes, past: int) -> dict[ir.Value, torch.Tensor]:
    """The values of positions and of masks declared causal, for tokens that follow ``past`` others."""
    import torch

    known: dict[ir.Value, torch.Tensor] = {}
    for argument, entry in zip(body(function).arguments, argument_attributes(function), strict=True):
        shape = shape_of(argument.type)
        if entry.get("kv.role") == "positions":
            positions = torch.arange(past, past + axes.query.size)
            known[argument] = (positions if shape and shape[-1] == axes.query.size else positions[0]).expand(shape)
        elif entry.get("kv.role") == "causal_mask":
            queries, keys = shape[-2:]
            visible = torch.arange(keys)[None, :] <= torch.arange(queries)[:, None] + (keys - queries)
            if element_of(argument.type) == "i1":
                known[argument] = visible.expand(shape)
            else:
                known[argument] = torch.where(visible, 0.0, float("-inf")).expand(shape)
    return known


def _check_mask(softmax: ir.Operation, hidden: torch.Tensor, causal: bool) -> None:
    import torch

    queries, keys = hidden.shape
    wanted = torch.arange(keys)[None, :] > torch.arange(queries)[:, None] + (keys - queries)
    wrong = (hidden != wanted).nonzero()
    if not len(wrong):
        return
    query, key = (int(x) for x in wrong[0])
    at = f"of {queries} queries over {keys} keys, query {query} " + (
        f"does not see key {key}" if hidden[query, key] else f"sees key {key}, which comes after it"
    )
    raise Refusal(
        softmax,
        f"attention over the cache is not plainly causal: {at}",
        "windows, prefixes and documents in the mask are not supported yet"
        if hidden[query, key]
        else "mask the future: a padded prompt would see its padding otherwise",
    )


def _rewrite(logits: Logits, key: Axis, causal: bool, axes: Axes, evaluator: Evaluator) -> None:
    product = logits.product
    side = key_side(product, axes)
    k = cache_operand(product, side, axes, evaluator)
    builder = TorchBuilder(logits.softmax)
    batch = axes.row.size
    if batch > 1 and axes.row not in k.batch:
        raise Refusal(product, "the rows of the batch share one cache", "give each row of the batch its own cache")
    if axes.row in k.batch and not any(axes.row in group for group in k.dims):
        raise Refusal(product, "one cache is repeated for all rows of the batch", "give each row its own cache")
    heads, copies = k.heads, k.copies

    # queries: the product's other operand, its batch dimension seen as the keys' axes
    q_value = product.operands[1 - side]
    q_dims = axes.of[q_value]
    tokens_at = 2 if side == 0 else 1
    grouped = [axis for axis in q_dims[tokens_at] if axis is not axes.query]
    if axes.query.size > 1 and axes.query not in q_dims[tokens_at]:
        raise Refusal(product, "the query tokens of attention are not those of the model's input", _ONE_AXIS)
    feature = Axis(Follows.PLAIN, math.prod(a.size for a in k.features))
    query_dims: Dims = (k.batch, q_dims[tokens_at], (feature,))
    if side == 0:
        query_dims = (query_dims[0], query_dims[2], query_dims[1])
    head_count, group_count = (math.prod(a.size for a in axis_list) for axis_list in (heads, [*copies, *grouped]))
    row_axes = [axes.row] if axes.row in k.batch else []
    query_axes = [axes.query] if axes.query in q_dims[tokens_at] else []
    q5 = rearrange(
        builder,
        q_value,
        query_dims,
        [*row_axes, *heads, *copies, *grouped, *query_axes, feature],
        [batch, head_count, group_count, axes.query.size, feature.size],
    )
    k4 = _cache(builder, k, heads, row_axes, batch)
    # a model that widens to f32 for its attention gets the cache's own type here: the op computes in f32 anyway
    q5 = builder.cast(q5, element_of(k4.type))

    for value_product, weights_side in value_products(logits.softmax, key, axes):
        v = cache_operand(value_product, 1 - weights_side, axes, evaluator)
        weights = value_product.operands[weights_side]
        weight_dims = axes.of[weights]
        v_heads = _matching_heads(value_product, weight_dims[0], v, heads, copies)
        # the values may be made after the softmax
        builder = TorchBuilder(value_product, logits.softmax.location)
        v4 = _cache(builder, v, v_heads, row_axes, batch)
        width = shape_of(v4.type)[3]
        element = element_of(q5.type)
        out = attention(
            [q5, k4, v4],
            scale=logits.scale * k.scale,
            softcap=logits.softcap,
            causal=causal,
            result=vtensor([batch, head_count, group_count, axes.query.size, width], element),
            location=logits.softmax.location,
            before=value_product,
        )
        if v.scale != 1.0:
            raise Refusal(value_product, f"the cached values are scaled by {v.scale}", "scale the output instead")
        feature_v = Axis(Follows.PLAIN, width)
        out_dims: Dims = (
            tuple(row_axes),
            tuple(heads),
            (*copies, *grouped),
            tuple(query_axes),
            (feature_v,),
        )
        token_group = weight_dims[1 if weights_side == 0 else 2]
        order = [*weight_dims[0], *((*token_group, feature_v) if weights_side == 0 else (feature_v, *token_group))]
        result = value_product.results[0]
        rearranged = rearrange(builder, out, out_dims, order, shape_of(result.type))
        result.replace_all_uses_with(builder.cast(rearranged, element_of(result.type)))


_ONE_AXIS = "let the model's input tokens be the queries, along one axis"


def _cache(
    builder: TorchBuilder, cache: CacheOperand, heads: Sequence[Axis], rows: Sequence[Axis], batch: int
) -> ir.Value:
    """A cache as [B, H, T, D]."""
    count, width = (math.prod(a.size for a in axis_list) for axis_list in (heads, cache.features))
    return rearrange(
        builder,
        cache.base,
        cache.dims,
        [*rows, *heads, cache.key, *cache.features],
        [batch, count, cache.key.size, width],
    )


def _matching_heads(
    product: ir.Operation, batch: Group, v: CacheOperand, heads: Sequence[Axis], copies: Sequence[Axis]
) -> list[Axis]:
    """The heads of the values in the order of the keys' heads, paired by their places in the batch."""
    if [a.size for a in batch] != [a.size for a in v.batch]:
        raise Refusal(
            product,
            f"keys and values are grouped differently: batch axes {[a.size for a in batch]} of the weights "
            f"meet {[a.size for a in v.batch]} of the values",
            "give keys and values the same heads, repeated in the same order",
        )
    pairs = dict(zip(batch, v.batch, strict=True))
    own = set(v.heads)
    if {pairs[a] for a in batch if a in set(heads)} != own or any(pairs[a] in own for a in batch if a in set(copies)):
        raise Refusal(
            product, "keys and values are repeated for the query heads in different orders", "repeat them alike"
        )
    return [pairs[axis] for axis in heads]


def rearrange(
    builder: TorchBuilder, value: ir.Value, dims: Dims, order: Sequence[Axis], shape: Sequence[int]
) -> ir.Value:
    """``value`` with its axes in ``order``, as ``shape``: at most a view, a permute and a view."""
    have = [axis for group in dims for axis in group]
    if set(have) != set(order) or len(have) != len(order):
        raise AssertionError(f"axes {[a.size for a in have]} cannot be put in order {[a.size for a in order]}")
    if have != list(order):
        if any(len(group) > 1 for group in dims):
            value, dims = builder.view(value, [a.size for a in have]), tuple((a,) for a in have)
        ones = [i for i, group in enumerate(dims) if not group]
        value = builder.permute(value, [*ones, *(dims.index((axis,)) for axis in order)])
    return builder.view(value, shape)
