"""Which caches an attention reads, and where in a cache its heads and tokens lie."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from torch_mlir import ir

from ..diagnostics import Refusal
from ..dialect.kv import AttentionOp, Reach, integer
from ..dialect.types import shape_of
from .aten import made_of, owner, tensor_operands
from .axes import Axes, Axis, axes_in, dimension_of
from .functions import argument_attributes, body

if TYPE_CHECKING:
    import torch


class Order(StrEnum):
    """Which token each index of a cache of C entries holds when the newest, already in it, is at position t.

    ``appended``: index j has position t - C + 1 + j, and all are there. ``shifted``: the same, and below position 0
    there is none yet. ``indexed``: index j has position j, beyond t there is none yet, and the program says nothing of
    t >= C. ``wrapped``: the same, and from t = C on index j has the latest position that leaves the rest j by C.
    ``sliding``: as ``indexed``, and from t = C on as ``appended``.
    """

    APPENDED = "appended"
    SHIFTED = "shifted"
    INDEXED = "indexed"
    WRAPPED = "wrapped"
    SLIDING = "sliding"

    @property
    def by_index(self) -> bool:
        """Whether a token is written at the index of its position while that lies below C."""
        return self in (Order.INDEXED, Order.WRAPPED, Order.SLIDING)

    def held(self, moment: int, slots: int) -> torch.Tensor:
        """[C] int64: the position of the token at each index where the newest is at ``moment``; -1 for none."""
        import torch

        index = torch.arange(slots)
        if self is Order.WRAPPED:
            position = moment - (moment - index) % slots
        elif self is Order.INDEXED or (self is Order.SLIDING and moment < slots):
            position = index
        else:
            position = moment - slots + 1 + index
        return torch.where((position >= 0) & (position <= moment), position, -1)


ORDER = "kv.order"
"""The attribute of a cache's argument that tells its order, where that is not ``appended``."""


@dataclass(frozen=True)
class Cache:
    """One grown cache of a function: ``name`` is its input's.

    ``heads`` lie at ``head_axis``, with their features behind them in one dimension if its extent is larger;
    ``head_axis`` is -1 for a cache whose heads share one selection, or that has none. ``readers`` are the attentions
    that read it, in order, and ``reach`` is how far back they see. ``scorer`` is the one whose queries score it: the
    first reader, or an earlier attention that uses the same index.
    """

    name: str
    append: ir.Operation
    axis: int
    head_axis: int
    heads: int
    readers: tuple[ir.Operation, ...]
    scorer: ir.Operation
    reach: Reach


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


def order_of(function: ir.Operation) -> Order:
    """The one order of a function's caches.

    Raises:
        Refusal: they have several, so that one index is another token in each.
    """
    orders = {
        entry["kv.name"]: Order(entry.get(ORDER, Order.APPENDED))
        for entry in argument_attributes(function)
        if entry.get("kv.role") == "cache"
    }
    names = list(orders)
    for name in names:
        if orders[name] is not orders[names[0]]:
            raise Refusal(
                function,
                f"the cache '{names[0]}' is {orders[names[0]]} and '{name}' {orders[name]}: an index is not the same "
                "token in both",
                "let all caches take a new token in in the same way",
            )
    return orders[names[0]] if names else Order.APPENDED


def caches(function: ir.Operation) -> list[Cache]:
    """The caches of a raised function in the order of its arguments, each with the attention that reads it first.

    Caches that one attention reads share one selection: per head of the attention, if each of them has these heads. An
    index (``kv.topk_mask``) is read by each attention that it chooses keys for, and has no heads.

    Raises:
        Refusal: a cache that no attention reads, or whose heads are not one axis of its own, or that attentions of
            different reach or with different other caches share.
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
        view = attention.opview
        assert isinstance(view, AttentionOp)
        read: dict[ir.Operation, int] = {}
        for operand in (view.k, view.v):
            for append in _sources(operand):
                head_axis = _head_axis(append, operand, axes)
                read[append] = min(read.get(append, head_axis), head_axis)
        index = _sources(view.visible) if view.visible is not None else []
        read |= dict.fromkeys(index, -1)
        scorer = _scorer(attention, [names[a.operands[0]] for a in read], {names[a.operands[0]] for a in index}, found)
        heads = shape_of(view.k.type)[1] if min(read.values()) > 0 else 1
        for append, head_axis in read.items():
            name, at = names[append.operands[0]], head_axis if heads > 1 else -1
            if name in found:
                found[name] = dataclasses.replace(found[name], readers=(*found[name].readers, attention))
            else:
                reach = Reach.of(attention)
                found[name] = Cache(name, append, integer(append, "axis"), at, heads, (attention,), scorer, reach)
    for argument, name in names.items():
        if name not in found:
            raise Refusal(
                argument.owner.owner, f"no attention reads the cache '{name}'", "return only caches that are read"
            )
    return [found[name] for name in names.values()]


def _scorer(
    attention: ir.Operation, names: Sequence[str], index: Collection[str], found: dict[str, Cache]
) -> ir.Operation:
    """The attention whose selection the caches of one follow: its own, or that of an earlier one that shares some.

    Attentions that share a cache must share all of them, but for an index, and see equally far.
    """
    shared = [found[name] for name in names if name in found]
    if not shared:
        return attention
    scorers = list(dict.fromkeys(cache.scorer for cache in shared))
    alone = [name for name in names if name not in found]
    for cache in shared:
        if len(scorers) > 1 or (alone and cache.name not in index):
            raise Refusal(
                attention,
                f"an attention reads the cache '{cache.name}', which an earlier one reads, with others, which it does "
                "not: they cannot share one selection",
                "let attentions share all of their caches or none",
            )
        if Reach.of(attention) != cache.reach:
            raise Refusal(
                attention,
                f"two attentions read the cache '{cache.name}', and one sees further back",
                "give attentions that share a cache the same window",
            )
    return scorers[0]


def _sources(value: ir.Value) -> list[ir.Operation]:
    """The growths that keys or values are made of, in order; how, ``kv-check-axis`` judges."""
    found: list[ir.Operation] = []
    pending, seen = [value], {value}
    while pending:
        producer = owner(pending.pop())
        if producer is None or producer.name == "kv.attention":
            continue
        if producer.name == "kv.append":
            found.append(producer)
            continue
        more = [v for v in reversed(tensor_operands(producer)) if v not in seen]
        seen.update(more)
        pending += more
    return found


def _check_not_looked_up(append: ir.Operation, operand: ir.Value, heads: set[Axis], axes: Axes) -> None:
    """Heads that an index takes out of a cache are some of its own: they are not those of one latent."""
    for producer in made_of(operand, lambda op: op == append):
        looks_up = producer.name in ("torch.aten.index.Tensor", "torch.aten.index_select")
        if looks_up and heads & axes_in(axes.of[producer.results[0]]):
            raise Refusal(
                producer,
                f"'{producer.name}' takes heads out of a cache, and neither each nor all of them equally often",
                "repeat heads by repeat_interleave, repeat, expand or an index that does the same",
            )


def _head_axis(append: ir.Operation, operand: ir.Value, axes: Axes) -> int:
    """Where a cache has the heads of keys or values; -1 where it does not tell them apart, as a latent."""
    group = axes.of[operand][1]
    dims = axes.of[append.results[0]]
    own = [axes.outer_parts.get(axis, axis) for axis in group]
    if not set(own) & axes_in(dims):
        _check_not_looked_up(append, operand, set(own), axes)
        return -1
    (heads, *others) = own
    if others or dims[dimension_of(dims, heads)] != (heads,):
        raise Refusal(
            append,
            "the heads of a cache are no axis of it",
            "keep heads on an axis of their own, or in front of their features",
        )
    return dimension_of(dims, heads)
