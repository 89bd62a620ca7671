"""kv-raise-attention: attention over a cache, however it is spelled."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NoReturn

from torch_mlir import ir

from ..analysis.aten import owner, tensor_operands
from ..analysis.attention import (
    CacheOperand,
    Logits,
    cache_operand,
    key_side,
    logits_of,
    softmaxes,
    value_products,
)
from ..analysis.axes import Axes, Axis, Dims, Follows, Group, dimension_of
from ..analysis.caches import Order, order_of, past_length
from ..analysis.evaluate import Evaluator, Weights, no_weights
from ..analysis.functions import PROBE, argument_attributes, body, functions
from ..analysis.masks import Masks, Slopes, assumed, chosen_by, not_there, reach_of, read_masks
from ..analysis.sinks import SinkFactor, sink_factor
from ..diagnostics import Refusal
from ..dialect.kv import LinearBiasOp, Reach, attention
from ..dialect.types import element_of, shape_of, vtensor
from .dead_code import erase_dead
from .torch_builder import TorchBuilder

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class RaiseAttention:
    """Turns each softmax over a cache axis, and the two products around it, into ``kv.attention``.

    Applies to decode functions (one query token) and prefill functions (an empty past). Relies on
    ``kv-raise-append``. The masks on the logits are evaluated (``weights`` gives the value of a registered
    buffer): they must be causal, with a sliding window or chunks at most, which the attention then says of itself,
    alike in all functions; they are dropped, since the slots get a mask of their own. What they add to the logits of
    keys that they do not hide must be linear in the key's position, and becomes a ``kv.linear_bias``. A logit that is
    joined behind those of the keys becomes a sink, and so does one that is told from the logits' logsumexp to scale the
    output (``analysis.sinks``). A ``kv.topk_mask`` that masks are made of, and whose other keys they hide, becomes what
    is ``visible``; such an attention sees all that came before. What cannot be shown is refused.

    A function with a past and no twin ``_probe`` is of fixed length: its masks are evaluated at several positions of
    the query, up to ``max_positions`` - 1. Its caches' ``kv.order`` says which token each index holds then, so that the
    masks are judged by positions: they must hide what holds no token (where caches are shifted they need not), and may
    have a window, chunks and a bias. In a snapshot, of which no second length is known, they must be plainly causal.

    Before (one of many spellings)::

        %s = torch.aten.bmm %q, %kt            // [B*H*G, 1, D] x [B*H*G, D, T], keys repeated G times
        %m = torch.aten.add.Tensor %s4, %mask
        %p = torch.aten._softmax %m, %int-1
        %o = torch.aten.bmm %p3, %v3

    After::

        %o = "kv.attention"(%q5, %k, %v) {scale = .., softcap = 0.0, causal = false}   // [B, H, G, Q, D]
    """

    weights: Weights = no_weights
    max_positions: int = 4096
    name: ClassVar[str] = "kv-raise-attention"

    def run(self, module: ir.Operation) -> None:
        """Rewrites the module."""
        read: list[list[_Read]] = []
        found = functions(module)
        for name, function in found.items():
            if any(entry.get("kv.role") == "cache" for entry in argument_attributes(function)):
                read.append(self._read(function, alone=not name.endswith(PROBE) and f"{name}{PROBE}" not in found))
        if len({len(attentions) for attentions in read}) > 1:
            raise Refusal(
                module,
                f"the model has {' or '.join(str(len(attentions)) for attentions in read)} attentions over its caches, "
                "depending on the lengths",
                "let the program do the same whatever the lengths",
            )
        for same in zip(*read, strict=True):
            masks = [(a.logits.softmax, one) for a in same for one in (*a.elsewhere, a.masks)]
            reach = reach_of([softmax for softmax, _ in masks], [one for _, one in masks])
            if reach != Reach() and same[0].chosen is not None:
                raise Refusal(
                    same[0].logits.softmax,
                    f"an attention sees the last {reach.most} keys, and of these those that an index chooses",
                    "use a window or an index",
                )
            for one in same:
                _Rewrite(one, reach).run()
        for function in found.values():
            erase_dead(function)

    def _read(self, function: ir.Operation, alone: bool) -> list[_Read]:
        axes = Axes(function)
        past = past_length(function)
        if past is None:
            raise Refusal(
                function,
                "no cache of the program grows",
                "return each cache as torch.cat([past, new], dim), and pass it back in at the next step",
            )
        order = order_of(function)
        known = assumed(function, axes, past, past, order)
        evaluator = Evaluator(known, self.weights)
        moments = _moments(past, order, self.max_positions) if alone and past else []
        elsewhere = {t: Evaluator(assumed(function, axes, t, past, order), self.weights) for t in moments}
        # a factor must be the same number at every position
        constants = Evaluator({}, self.weights)
        found: list[_Read] = []
        for softmax, key in softmaxes(body(function), axes):
            logits = logits_of(softmax, axes, constants)
            masks = read_masks(logits, key, axes.query, axes, evaluator)
            for moment, there in elsewhere.items() if order is Order.APPENDED else ():
                _check_mask(softmax, read_masks(logits, key, axes.query, axes, there).hidden, moment, past)
            others: list[Masks] = []
            for moment, there in elsewhere.items() if order is not Order.APPENDED else ():
                others.append(read_masks(logits, key, axes.query, axes, there, order.held(moment, key.size)))
                # where all entries are the latest tokens, a program may leave it to its caller that all are there
                if others[-1].vacant and order is not Order.SHIFTED:
                    _refuse_seen(softmax, key.size, moment, others[-1].vacant[0])
                _check_slopes(masks, others[-1], moment)
            chosen = chosen_by(logits, masks, key, axes.query, axes, known, self.weights)
            causal = past == 0 and key.size > 1
            found.append(_Read(logits, key, masks, causal, axes, constants, tuple(others), chosen))
        return found


def _moments(past: int, order: Order, bound: int) -> list[int]:
    """The query's positions at which the masks of a program of fixed length are looked at."""
    slots = past + 1
    if order is Order.INDEXED:  # the program is made for no others
        bound = slots
    early = range(past) if past <= 64 else [0, 1, 2, *range(3, past, max(past // 16, 1)), past - 1]
    late = [past, slots, slots + 1, 2 * slots - 1, 2 * slots, 4 * slots, bound - 1]
    return sorted({t for t in late if past <= t < max(bound, slots)} | set(() if order is Order.APPENDED else early))


@dataclass(frozen=True)
class _Read:
    """An attention as it was found, before anything is rewritten."""

    logits: Logits
    key: Axis
    masks: Masks
    causal: bool
    axes: Axes
    evaluator: Evaluator
    elsewhere: tuple[Masks, ...] = ()
    """What the masks do at other positions of the query, in a program of fixed length."""
    chosen: ir.Value | None = None
    """The choice among the keys that they hide the rest of, [B, Q, T]."""


def _check_mask(softmax: ir.Operation, hidden: torch.Tensor, moment: int, past: int) -> None:
    """Masks of a snapshot cannot tell a window from what its length made, so they must be plainly causal."""
    queries, keys = hidden.shape
    wrong = (hidden != not_there(queries, keys, moment, past, Order.APPENDED)).nonzero()
    if not len(wrong):
        return
    query, key = (int(x) for x in wrong[0])
    if not hidden[query, key]:
        _refuse_seen(softmax, keys, moment, key)
    raise Refusal(
        softmax,
        f"attention over the cache is not plainly causal: of {queries} queries over {keys} keys, query {query} at "
        f"position {moment + query} does not see key {key}",
        "let a program of one past length see every token that its caches hold, or export it with a symbolic past",
    )


def _refuse_seen(softmax: ir.Operation, keys: int, moment: int, key: int) -> NoReturn:
    raise Refusal(
        softmax,
        f"attention over the cache is not plainly causal: over {keys} keys, the query at position {moment} sees key "
        f"{key}, which comes after it",
        "mask the future: a padded prompt would see its padding otherwise",
    )


def _check_slopes(masks: Masks, others: Masks, moment: int) -> None:
    """A bias must have one slope at all positions; where one key is seen there is none to tell."""
    import torch

    if int((~others.hidden).sum()) < 2:
        return
    mine, theirs = ({found.operation: found.values for found in read.slopes} for read in (masks, others))
    for operation in mine.keys() | theirs.keys():
        one, other = (slopes.get(operation, torch.zeros(1).double()) for slopes in (mine, theirs))
        if not torch.allclose(one, other, rtol=1e-3, atol=1e-6):
            raise Refusal(
                operation,
                f"a bias along the keys has another slope at position {moment}",
                "let a bias be linear in the key's position, the same at every step",
            )


class _Rewrite:
    """One attention as a ``kv.attention``."""

    def __init__(self, found: _Read, reach: Reach) -> None:
        self._found, self._reach = found, reach
        self._axes = found.axes
        product = found.logits.product
        self._side = key_side(product, found.axes)
        self._k = cache_operand(product, self._side, found.axes, found.evaluator)
        batch = found.axes.row.size
        if batch > 1 and found.axes.row not in self._k.batch:
            raise Refusal(product, "the rows of the batch share one cache", "give each row of the batch its own cache")
        if found.axes.row in self._k.batch and not any(found.axes.row in group for group in self._k.dims):
            raise Refusal(product, "one cache is repeated for all rows of the batch", "give each row its own cache")
        self._rows = [found.axes.row] if found.axes.row in self._k.batch else []
        q_dims = found.axes.of[product.operands[1 - self._side]]
        self._tokens_at = 2 if self._side == 0 else 1
        self._grouped = [axis for axis in q_dims[self._tokens_at] if axis is not found.axes.query]
        if found.axes.query.size > 1 and found.axes.query not in q_dims[self._tokens_at]:
            raise Refusal(product, "the query tokens of attention are not those of the model's input", _ONE_AXIS)
        self._queries = [found.axes.query] if found.axes.query in q_dims[self._tokens_at] else []

    @property
    def _group(self) -> list[Axis]:
        """The axes of the query heads that share a KV head."""
        return [*self._k.copies, *self._grouped]

    def _extents(self) -> list[int]:
        """B, H, G."""
        heads, group = (math.prod(a.size for a in axis_list) for axis_list in (self._k.heads, self._group))
        return [self._axes.row.size, heads, group]

    def run(self) -> None:
        """Puts the op in the place of the products around the softmax."""
        softmax, k = self._found.logits.softmax, self._k
        builder = TorchBuilder(softmax)
        q5 = self._q(builder)
        k4 = _cache(builder, k, k.heads, self._rows, self._axes.row.size)
        # a model that widens to f32 for its attention gets the cache's own type here: the op computes in f32 anyway
        q5 = builder.cast(q5, element_of(k4.type))
        joined = self._sinks(builder)
        bias = self._bias(builder)
        for product, weights_side in value_products(softmax, self._found.key, self._axes):
            v = cache_operand(product, 1 - weights_side, self._axes, self._found.evaluator)
            weight_dims = self._axes.of[product.operands[weights_side]]
            v_heads = _matching_heads(product, weight_dims[0], v, k.heads, k.copies)
            factor = sink_factor(softmax, self._found.key, product, self._axes) if joined is None else None
            # the values may be made after the softmax
            builder = TorchBuilder(product, softmax.location)
            v4 = _cache(builder, v, v_heads, self._rows, self._axes.row.size)
            sinks = joined if factor is None else self._sinks_of(factor, builder, product)
            width = shape_of(v4.type)[3]
            out = attention(
                [q5, k4, v4, *([self._found.chosen] if self._found.chosen is not None else [])],
                scale=self._found.logits.scale * k.scale,
                softcap=self._found.logits.softcap,
                causal=self._found.causal,
                result=vtensor([*self._extents(), self._axes.query.size, width], element_of(q5.type)),
                location=softmax.location,
                before=product,
                bias=bias,
                sinks=sinks,
                reach=self._reach,
            )
            if v.scale != 1.0:
                raise Refusal(product, f"the cached values are scaled by {v.scale}", "scale the output instead")
            feature = Axis(Follows.PLAIN, width)
            out_dims: Dims = (tuple(self._rows), tuple(k.heads), tuple(self._group), tuple(self._queries), (feature,))
            tokens = weight_dims[1 if weights_side == 0 else 2]
            order = [*weight_dims[0], *((*tokens, feature) if weights_side == 0 else (feature, *tokens))]
            result = product.results[0]
            rearranged = rearrange(builder, out, out_dims, order, shape_of(result.type))
            result.replace_all_uses_with(builder.cast(rearranged, element_of(result.type)))
            if factor is not None:
                scaled = factor.scaling.results[0]
                builder = TorchBuilder(factor.scaling)
                output = factor.scaling.operands[factor.side]
                scaled.replace_all_uses_with(builder.cast(output, element_of(scaled.type)))

    def _q(self, builder: TorchBuilder) -> ir.Value:
        """The product's other operand, its batch dimension seen as the keys' axes: [B, H, G, Q, Dk]."""
        value, k = self._found.logits.product.operands[1 - self._side], self._k
        tokens = self._axes.of[value][self._tokens_at]
        feature = Axis(Follows.PLAIN, math.prod(a.size for a in k.features))
        dims: Dims = (k.batch, (feature,), tokens) if self._side == 0 else (k.batch, tokens, (feature,))
        order = [*self._rows, *k.heads, *self._group, *self._queries, feature]
        return rearrange(builder, value, dims, order, [*self._extents(), self._axes.query.size, feature.size])

    def _bias(self, builder: TorchBuilder) -> ir.Value | None:
        """The biases as one ``kv.linear_bias``."""
        import torch

        if not self._found.masks.slopes:
            return None
        if self._found.logits.sinks is not None:
            _refuse_with_bias(self._found.logits.sinks)
        rows, heads, group = self._extents()
        order = [*self._k.heads, *self._group]
        slopes = sum(
            (self._by_head(found, order) for found in self._found.masks.slopes), torch.zeros(heads * group).double()
        )
        (operation, *_) = [found.operation for found in self._found.masks.slopes]
        builder = TorchBuilder(self._found.logits.softmax, operation.location)
        values = builder.floats(slopes.reshape(heads, group).tolist())
        bias = LinearBiasOp(
            values,
            vtensor([rows, heads, group, self._found.key.size], "f32"),
            loc=operation.location,
            ip=ir.InsertionPoint(self._found.logits.softmax),
        )
        return bias.bias

    def _by_head(self, found: Slopes, order: Sequence[Axis]) -> torch.Tensor:
        """A bias's slopes as [H * G]: the same for rows that share the mask."""
        axes = [axis for axis in found.axes if axis is not self._axes.row]
        table = found.values.reshape([axis.size for axis in found.axes])
        if self._axes.row in found.axes:
            at = found.axes.index(self._axes.row)
            if bool((table != table.narrow(at, 0, 1)).any()):
                raise Refusal(found.operation, "a bias differs between rows", "use one bias for all rows")
            table = table.select(at, 0)
        if not set(axes) <= set(order):
            raise Refusal(
                found.operation,
                "a bias differs along something that is no head of the attention",
                "add one bias per head, broadcast along rows and queries",
            )
        have = [axis for axis in order if axis in axes]
        table = table.permute([axes.index(axis) for axis in have])
        table = table.reshape([axis.size if axis in axes else 1 for axis in order])
        return table.expand([axis.size for axis in order]).reshape(-1)

    def _sinks(self, builder: TorchBuilder) -> ir.Value | None:
        """The logit that was joined behind the keys', [H, G] f32, the same for all rows and queries."""
        concat = self._found.logits.sinks
        if concat is None:
            return None
        logits, *others = tensor_operands(concat)
        dims = self._axes.of[logits]
        if len(others) != 1 or shape_of(others[0].type)[dimension_of(dims, self._found.key)] != 1:
            raise Refusal(concat, "more than one logit is joined behind the keys'", "join one sink per head")
        (sinks,) = others
        return self._of_heads(concat, sinks, self._axes.of[sinks], dims, builder)

    def _sinks_of(self, factor: SinkFactor, builder: TorchBuilder, before: ir.Operation) -> ir.Value:
        """The logit of a factor on the output, [H, G] f32, the same for all rows and queries."""
        if self._found.masks.slopes:
            _refuse_with_bias(factor.difference)
        _put_before(factor.sink, before)
        difference = factor.difference.results[0]
        sinks = builder.expand(factor.sink, shape_of(difference.type))
        dims, own = (self._axes.of[value] for value in (factor.difference.operands[0], factor.sink))
        return self._of_heads(factor.difference, sinks, ((),) * (len(dims) - len(own)) + own, dims, builder)

    def _of_heads(
        self, operation: ir.Operation, sinks: ir.Value, own: Dims, dims: Dims, builder: TorchBuilder
    ) -> ir.Value:
        """A sink's logit as [H, G] f32, its dimensions those of ``dims``, where its own axes are ``own``."""
        order = [*self._k.heads, *self._group]
        of_heads: list[Group] = []
        for i, (group, mine) in enumerate(zip(dims, own, strict=True)):
            if set(group) <= set(order):
                of_heads.append(group)
                continue
            if any(axis.follows is not Follows.COPY for axis in mine) or set(group) & set(order):
                raise Refusal(
                    operation,
                    "the logit of a sink differs between rows or queries",
                    "let it be a parameter of the heads, broadcast along rows and queries",
                )
            of_heads.append(())
            sinks = builder.slice(sinks, i, 0, 1)
        _, heads, group_size = self._extents()
        return rearrange(builder, builder.cast(sinks, "f32"), tuple(of_heads), order, [heads, group_size])


def _put_before(value: ir.Value, anchor: ir.Operation) -> None:
    """Moves what makes a value of weights to before an op, where it is not yet."""
    op = owner(value)
    if op is None or op.is_before_in_block(anchor):
        return
    for operand in op.operands:
        _put_before(operand, anchor)
    op.move_before(anchor)


def _refuse_with_bias(operation: ir.Operation) -> NoReturn:
    raise Refusal(
        operation,
        "logits have a bias along the keys and a sink, whose distance from them the bias changes",
        "use one of them",
    )


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
