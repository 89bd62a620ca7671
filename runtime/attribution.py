"""Which attentions of an exported decoder read which caches, and which KV head each row of their logits belongs to.

Found by numbers, for no model family: the graph runs once on random caches, one index of one cache at a time is
changed, and the logits that change are those that read it. What cannot be attributed is an error.
"""

from __future__ import annotations

import math
import re
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from types import MappingProxyType
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.fx import Interpreter, Node
from torch.fx.node import map_arg
from torch.utils._pytree import tree_leaves, tree_map

from .exported import ExportedDecoder
from .selection import MASKED

_T = TypeVar("_T")

SOFTMAX = (
    torch.ops.aten.softmax.int,
    torch.ops.aten._softmax.default,
    torch.ops.aten._safe_softmax.default,
)
LOGSUMEXP = torch.ops.aten.logsumexp.default
OVER_LOGITS = (*SOFTMAX, LOGSUMEXP)
"""What takes logits over their keys: a softmax, or the sum of exponentials that a sink is compared with."""
FUSED = torch.ops.aten.scaled_dot_product_attention.default
TOPK = torch.ops.aten.topk.default

# Ops that take only the shape of their tensor: nothing of a cache's content goes through them.
_SHAPE_ONLY = {
    f"aten::{name}"
    for name in ("new_zeros", "new_ones", "new_full", "new_empty", "zeros_like", "ones_like", "full_like", "empty_like")
}


class AttributionError(ValueError):
    """It cannot be told what an attention of the program reads, so it cannot be masked."""


@dataclass(frozen=True)
class Layout:
    """How an attention's logits are laid out.

    Attributes:
        key_axis: the axis of the softmax, extent T.
        query_axis: the axis of the queries, extent ``group * Q``; None in a program for one query token.
        group: query heads folded into the query axis (1 for most models).
        query_major: where heads are folded into it, whether the queries are its slow part, [Q, group].
        sinks: logits behind those of the keys, which stand for no position.
    """

    key_axis: int
    query_axis: int | None
    group: int = 1
    query_major: bool = True
    sinks: int = 0

    def rows(self, logits: Tensor, last: int | None = None) -> Tensor:
        """The logits as [rows, Q, T], or the ``last`` queries of them as [rows, last, T], f32."""
        keys_last = logits.movedim(self.key_axis, -1)
        if self.query_axis is None:
            return keys_last.reshape(-1, 1, keys_last.shape[-1]).float()
        axis = self.query_axis - (self.key_axis < self.query_axis)
        queries = keys_last.shape[axis] // self.group
        if self.group > 1:
            shape = keys_last.shape
            split = (queries, self.group) if self.query_major else (self.group, queries)
            keys_last = keys_last.reshape(shape[:axis] + split + shape[axis + 1 :])
            axis += not self.query_major
        by_query = keys_last.movedim(axis, -2)
        if last is not None:
            by_query = by_query[..., -last:, :]
        return by_query.flatten(0, -3).float() if by_query.ndim > 2 else by_query[None].float()

    def like(self, rows: Tensor, shape: Sequence[int]) -> Tensor:
        """``rows`` [rows, Q, T] in the layout of logits of ``shape``: what undoes ``rows``; nothing of its sinks."""
        if self.sinks:
            rows = torch.cat((rows, rows.new_zeros(*rows.shape[:-1], self.sinks)), -1)
        keys_last = [extent for axis, extent in enumerate(shape) if axis != self.key_axis] + [shape[self.key_axis]]
        if self.query_axis is None:
            return rows.reshape(keys_last).movedim(-1, self.key_axis)
        axis = self.query_axis - (self.key_axis < self.query_axis)
        queries = keys_last[axis] // self.group
        split = (queries, self.group) if self.query_major else (self.group, queries)
        parts = [*keys_last[:axis], *(split if self.group > 1 else [queries]), *keys_last[axis + 1 :]]
        at = axis + (self.group > 1 and not self.query_major)
        by_query = rows.reshape([*parts[:at], *parts[at + 1 : -1], queries, parts[-1]])
        return by_query.movedim(-2, at).reshape(keys_last).movedim(-1, self.key_axis)


@dataclass(frozen=True, eq=False)
class Attention:
    """One attention over caches.

    Attributes:
        name: the graph's node, with the line of the model where there is one.
        layout: how its logits are laid out.
        heads: [rows] int64, the KV head of each of the layout's rows; -1 for rows of other sequences of a fixed batch.
        keys: the caches that its logits read, as indices into ``ProgramInputs.caches``.
        selects: the attention whose selection it uses: its own index, or an earlier one that reads the same caches.
        choices: the top-k over scores of the keys, by its node, with the layout of the scores, that leaves it some of
            the keys; most have none.
    """

    name: str
    layout: Layout
    heads: Tensor
    keys: tuple[int, ...]
    selects: int
    choices: Mapping[Node, Layout] = field(default_factory=dict)

    @property
    def kv_heads(self) -> int:
        """H, the number of KV heads."""
        return int(self.heads.max()) + 1


def find_attentions(decoder: ExportedDecoder) -> dict[Node, Attention]:
    """The attentions of the graph that read caches, by their node, in the order of the graph.

    Raises:
        AttributionError: an attention cannot be understood, a cache is read outside one, or masking a position at an
            attention's logits would not hide all that the caches hold there.
    """
    with torch.no_grad():
        return _Attribution(decoder).attentions()


def bind(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call of an ATen op by their names."""
    names = (argument.name for argument in op._schema.arguments)
    return dict(zip(names, args, strict=False)) | dict(kwargs)


def dimension_of_keys(op: Any, bound: Mapping[str, Any]) -> int:
    """The dimension that an attention's op goes over, of logits, or a top-k, of scores."""
    if op is FUSED:
        return -1
    over: int | list[int] = bound.get("dim", -1)
    if isinstance(over, int):
        return over
    if len(over) != 1:
        raise AttributionError(f"{op} goes over {len(over)} dimensions of logits, not over their keys alone")
    return over[0]


def fused_logits(bound: Mapping[str, Any], last: int | None = None) -> Tensor:
    """The logits [.., Q, T] f32 that a fused attention keeps to itself, or those of its ``last`` queries.

    Defined by torch.nn.functional.scaled_dot_product_attention's documentation.
    """
    query, key, mask = bound["query"], bound["key"], bound.get("attn_mask")
    queries, keys = query.shape[-2], key.shape[-2]
    first = 0 if last is None else queries - last
    if bound.get("enable_gqa"):
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
    scale = bound.get("scale")
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    logits: Tensor = query[..., first:, :].float() @ key.float().transpose(-1, -2) * scale
    if bound.get("is_causal"):
        logits = logits.masked_fill(~torch.ones(queries, keys, dtype=torch.bool).tril()[first:], -math.inf)
    if mask is None:
        return logits
    if mask.ndim > 1 and mask.shape[-2] > 1:
        mask = mask[..., first:, :]
    if mask.dtype is torch.bool:
        return logits.masked_fill(~mask, -math.inf)
    with_mask: Tensor = logits + mask.float()
    return with_mask


def masked(op: Any, bound: dict[str, Any], hidden: Callable[[Sequence[int]], Tensor]) -> Any:
    """The attention op, or top-k, with some of its logits at -inf; ``hidden`` gives which, for logits of a shape."""
    if op is not FUSED:
        logits = bound["self"]
        return op(**bound | {"self": logits.masked_fill(hidden(logits.shape), -math.inf)})
    query, keys, mask = bound["query"], bound["key"].shape[-2], bound.get("attn_mask")
    hide = hidden((*query.shape[:-1], keys))
    if bound.get("is_causal"):
        hide = hide | ~torch.ones(query.shape[-2], keys, dtype=torch.bool).tril()
    if mask is None or mask.dtype is torch.bool:
        mask = ~hide if mask is None else mask & ~hide
    else:
        mask = mask.masked_fill(hide, -math.inf)
    return op(**bound | {"attn_mask": mask, "is_causal": False})


def see_at_most(decoder: ExportedDecoder, found: Mapping[Node, Attention], count: int) -> frozenset[Node]:
    """The attentions whose own mask hides the first of ``count + 1`` keys from the last of as many tokens.

    None of those to which a choice leaves some of the keys, the first or not. Where the program cannot run at that
    length, nobody can ask for it, and one token less says it.
    """
    for past in (count, count - 1):
        try:
            values = _values(decoder, [0], past, 1)
        except (IndexError, RuntimeError):
            continue
        plain = [(node, attention.layout) for node, attention in found.items() if not attention.choices]
        first = {node: layout.rows(_logits(node, values))[:, -1, 0] for node, layout in plain}
        return frozenset(node for node, logits in first.items() if bool((logits <= MASKED).all()))
    return frozenset()


def _values(decoder: ExportedDecoder, tokens: Sequence[int], past: int, seed: int) -> dict[Node, Any]:
    """Every value of one run on random caches of ``past`` tokens, and random states."""
    caches = [decoder.cache(i, past, seed + i) for i in range(len(decoder.inputs.caches))]
    states = decoder.random_states(seed)
    recorder = Interpreter(decoder.module, garbage_collect_values=False)
    with torch.no_grad():
        results = recorder.run(*decoder.arguments(tokens, past, caches, states), enable_io_processing=False)
    for i, ((_, _, axis), grown) in enumerate(zip(decoder.inputs.caches, decoder.caches(results), strict=True)):
        if grown.shape[axis] != past + len(tokens):
            raise AttributionError(
                f"cache {i} must grow from {past} to {past + len(tokens)} along axis {axis}, "
                f"its output has shape {list(grown.shape)}"
            )
    return recorder.env


def _logits(node: Node, values: Mapping[Node, Any]) -> Tensor:
    """The logits of an attention, as they go into its softmax."""
    bound = bind(node.target, node.args, node.kwargs)
    if node.target is not FUSED:
        logits: Tensor = values[bound["self"]]
        return logits
    return fused_logits({name: map_arg(value, lambda n: values[n]) for name, value in bound.items()})


class _Attribution:
    """Finds the graph's attentions over caches by one run on random caches.

    The run has Q query tokens and P past ones such that no other extent is a multiple of P or of a large prime
    factor of T = P + Q: a value whose number of elements is a multiple of either still has the cache's sequence
    axis, however it was reshaped; the first value without it has reduced it. Nor is T + 1 one: an extent of that is the
    axis with a sink behind it.
    """

    def __init__(self, decoder: ExportedDecoder) -> None:
        self._decoder = decoder
        self._nodes: list[Node] = list(decoder.module.graph.nodes)
        self._queries, self._past, self._factor = self._lengths()
        self._total = self._past + self._queries
        self._seeds = count(1 + len(decoder.inputs.caches))
        self._values: dict[Node, Any] = _values(decoder, range(1, 1 + self._queries), self._past, 1)
        # Which caches (as indices) and which attentions' weights (as nodes) each value carries the axis of.
        self._carried: dict[Node, frozenset[int]] = {}
        self._weights: dict[Node, frozenset[Node]] = {}
        # Which choices among the keys each value tells of, and the caches that each choice reads.
        self._chosen: dict[Node, frozenset[Node]] = {}
        self._choices: dict[Node, frozenset[int]] = {}
        # Of each attention: the caches its logits read, those and the ones its weights meet, and where they meet.
        self._keys: dict[Node, frozenset[int]] = {}
        self._met: dict[Node, frozenset[int]] = {}
        # Of each attention: the choices that leave it some of the keys.
        self._leaving: dict[Node, frozenset[Node]] = {}
        self._results: dict[Node, list[Node]] = {}
        self._read: dict[tuple[Node, int], tuple[frozenset[int], ...]] = {}

    def attentions(self) -> dict[Node, Attention]:
        """Everything that ``find_attentions`` gives."""
        self._follow()
        found: dict[Node, Attention] = {}
        for index, node in enumerate(self._keys):
            logits = _logits(node, self._values)
            layout = self._layout(node, logits)
            heads = self._heads(node, layout, layout.rows(logits))
            choices = {choice: self._choice_layout(choice) for choice in self._leaving[node]}
            if choices:  # a choice is one for all heads, and so is what a cache keeps for it
                heads = heads.clamp(max=0)
            self._check_masking(node, layout)
            selects = index
            for other in found:
                if not self._overlap(other, node):
                    continue
                # what sums up logits meets no values
                same = self._keys[other] == self._keys[node] and (
                    LOGSUMEXP in (other.target, node.target) or self._met[other] == self._met[node]
                )
                same = same or self._share_an_index(other, node)
                if not same or found[other].kv_heads != int(heads.max()) + 1:
                    raise AttributionError(f"{_where(other)} and {_where(node)} share only some caches or heads")
                selects = min(selects, found[other].selects)
            found[node] = Attention(_where(node), layout, heads, tuple(sorted(self._keys[node])), selects, choices)
        return found

    def _share_an_index(self, one: Node, other: Node) -> bool:
        """Whether two attentions share no cache but those that the same choices read."""
        choices = self._leaving[one] & self._leaving[other]
        return self._met[one] & self._met[other] <= _union(self._choices[choice] for choice in choices)

    def _overlap(self, one: Node, other: Node) -> bool:
        """Whether two attentions read a common part of a cache, as those of different layers in one stack do not."""
        for cache in self._met[one] & self._met[other]:
            pairs = zip(self._read_of(one, cache), self._read_of(other, cache), strict=True)
            if all(mine & theirs for mine, theirs in pairs):
                return True
        return False

    def _read_of(self, node: Node, cache: int) -> tuple[frozenset[int], ...]:
        """For each axis of a cache but its sequence's, the indices that the results of an attention depend on."""
        if (node, cache) not in self._read:
            index, _, sequence_axis = self._decoder.inputs.caches[cache]
            source = self._decoder.users[index]
            start: Tensor = self._values[source]
            results = self._results[node]
            steps = self._between([node, *results], frozenset([cache]), node)

            def matters(axis: int, i: int) -> bool:
                changed = start.clone()
                changed.select(axis, i).add_(1)
                now = self._again(steps, {source: changed})
                return any(
                    not torch.equal(one, was)
                    for result in results
                    for one, was in zip(tree_leaves(now[result]), tree_leaves(self._values[result]), strict=True)
                )

            self._read[node, cache] = tuple(
                frozenset(i for i in range(extent) if extent == 1 or matters(axis, i))
                for axis, extent in enumerate(start.shape)
                if axis != sequence_axis
            )
        return self._read[node, cache]

    def _lengths(self) -> tuple[int, int, int]:
        """Q, P and a prime factor of P + Q, none dividing any fixed extent of the graph."""
        fixed = {
            extent
            for node in self._nodes
            for leaf in tree_leaves(node.meta.get("val"))
            if isinstance(leaf, Tensor)
            for extent in leaf.shape
            if isinstance(extent, int)
        }

        def free(prime: int) -> bool:
            return all(extent % prime for extent in fixed if extent > 0)

        for total in count(8):
            factor = max(_prime_factors(total))
            if total + 1 in fixed:
                continue
            for queries in (1,) if self._decoder.one_query else _primes(5, total // 2):
                past = total - queries
                if queries > 1 and (total + 1) % queries == 0:
                    continue
                chosen = [factor, past] + ([] if self._decoder.one_query else [queries])
                if _prime_factors(past) == [past] and len(set(chosen)) == len(chosen) and all(map(free, chosen)):
                    return queries, past, factor
        raise AssertionError("primes do not end")

    def _carries(self, value: Any) -> bool:
        """Whether a value still has the sequence axis of a cache."""
        tensors = [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]
        return any(
            size and (size % self._past == 0 or size % self._factor == 0 or self._total + 1 in leaf.shape)
            for leaf in tensors
            for size in [leaf.numel()]
        )

    def _follow(self) -> None:
        """Follow the caches' sequence axis through the graph, from the inputs to the ops that reduce it."""
        for i, (index, _, _) in enumerate(self._decoder.inputs.caches):
            self._carried[self._decoder.users[index]] = frozenset([i])
        for node in self._nodes:
            if node.op in ("placeholder", "output"):
                continue
            caches = _union(self._carried.get(source) for source in node.all_input_nodes)
            weights = _union(self._weights.get(source) for source in node.all_input_nodes)
            chosen = _union(self._chosen.get(source) for source in node.all_input_nodes)
            value = self._values[node]
            if chosen and node.target is not FUSED and not (node.target in OVER_LOGITS and self._is_over_keys(node)):
                self._chosen[node] = chosen
            held = [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]
            if not (caches or weights) or not any(leaf.numel() for leaf in held):
                continue
            if getattr(getattr(node.target, "_schema", None), "name", None) in _SHAPE_ONLY:
                continue
            if isinstance(node.target, torch._ops.HigherOrderOperator):
                raise AttributionError(
                    f"{self._names(caches)} in a graph of its own, {_where(node)}, as torch.no_grad() in a model "
                    f"makes one: export the model with torch.no_grad() around torch.export.export"
                )
            if node.target is FUSED:
                self._fused(node)
            elif node.target in OVER_LOGITS and self._is_over_keys(node):
                self._over_logits(node)
            elif node.target is TOPK and not weights and self._is_over_keys(node):
                self._choices[node], self._chosen[node] = caches, chosen | {node}
            elif self._carries(value):
                self._carried[node] = caches
                self._weights[node] = weights
            elif len(weights) == 1:
                (attention,) = weights
                self._met[attention] = self._met[attention] | caches
                self._results[attention].append(node)
            elif (weights or self._depends(node, caches)) and not self._only_shifts(node):
                why = "outside an attention" if not weights else "by several attentions at once"
                raise AttributionError(f"{self._names(caches)} {why} at {_where(node)}, which cannot be masked")
        read = _union(self._met.values())
        for i in range(len(self._decoder.inputs.caches)):
            if i not in read:
                raise AttributionError(f"no attention of the program reads {self._names([i])}")

    def _depends(self, node: Node, caches: frozenset[int]) -> bool:
        """Whether a value changes with caches that it is computed from; a place that is yet to be written does not."""
        changed: dict[Node, Any] = {}
        for cache in caches:
            source = self._decoder.users[self._decoder.inputs.caches[cache][0]]
            start: Tensor = self._values[source]
            changed[source] = torch.randn(start.shape, generator=torch.Generator().manual_seed(next(self._seeds)))
        now = self._again(self._between([node], caches, None), changed)[node]
        pairs = zip(tree_leaves(now), tree_leaves(self._values[node]), strict=True)
        return not all(torch.allclose(one, was, rtol=0, atol=0, equal_nan=True) for one, was in pairs)

    def _only_shifts(self, node: Node) -> bool:
        """Whether a value is taken from all logits of a query alike, as their maximum may be: no softmax shows it."""
        reached, softmaxes = {node}, []
        for later in self._nodes:
            if reached.isdisjoint(later.all_input_nodes):
                continue
            if later.op == "output":
                return False
            if later.target in SOFTMAX and self._is_over_keys(later):
                softmaxes.append(later)
            else:
                reached.add(later)
        generator = torch.Generator().manual_seed(next(self._seeds))

        def shifted(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor) or not leaf.is_floating_point():
                return leaf
            return leaf + torch.rand(leaf.shape, generator=generator).to(leaf.dtype)

        steps = [n for n in self._nodes if n is not node and (n in reached or n in softmaxes)]
        now = self._again(steps, {node: tree_map(shifted, self._values[node])})
        return all(
            torch.allclose(now[n], self._values[n], rtol=0, atol=16 * torch.finfo(now[n].dtype).eps) for n in softmaxes
        )

    def _reduced_extent(self, node: Node) -> int:
        bound = bind(node.target, node.args, node.kwargs)
        return int(self._values[bound["self"]].shape[dimension_of_keys(node.target, bound)])

    def _is_over_keys(self, node: Node) -> bool:
        extent = self._reduced_extent(node)
        return extent % self._factor == 0 or extent == self._total + 1

    def _over_logits(self, node: Node) -> None:
        source = bind(node.target, node.args, node.kwargs)["self"]
        self._open(node, source, self._reduced_extent(node), [source])
        if node.target is LOGSUMEXP:
            self._results[node].append(node)
        else:
            self._weights[node] = frozenset([node])

    def _fused(self, node: Node) -> None:
        bound = bind(node.target, node.args, node.kwargs)
        mask = [bound["attn_mask"]] if isinstance(bound.get("attn_mask"), Node) else []
        self._open(node, bound["key"], self._values[bound["key"]].shape[-2], mask)
        self._met[node] = self._met[node] | self._carried.get(bound["value"], frozenset())
        self._results[node].append(node)
        if bound.get("dropout_p"):
            raise AttributionError(f"{_where(node)} drops weights at random: export the model in eval mode")

    def _open(self, node: Node, source: Node, extent: int, masks: Sequence[Node]) -> None:
        caches = self._carried.get(source, frozenset())
        if not caches or self._weights.get(source):
            raise AttributionError(f"the logits of {_where(node)} are not those of queries on one set of caches")
        if extent not in (self._total, self._total + 1):
            raise AttributionError(
                f"{_where(node)} attends over {extent} entries where past and new tokens are {self._total}"
            )
        self._leaving[node] = _union(self._chosen.get(mask) for mask in masks)
        self._keys[node] = caches
        self._met[node] = caches | _union(self._choices[choice] for choice in self._leaving[node])
        self._results[node] = []

    def _names(self, caches: Iterable[int]) -> str:
        names = [self._decoder.users[self._decoder.inputs.caches[i][0]].name for i in sorted(caches)]
        return f"the cache in {' and '.join(names)} is read" if names else "the weights of attentions are read"

    def _layout(self, node: Node, logits: Tensor) -> Layout:
        dim = dimension_of_keys(node.target, bind(node.target, node.args, node.kwargs))
        key_axis = dim % logits.ndim
        sinks = logits.shape[key_axis] - self._total
        if torch.isnan(logits).any():
            raise AttributionError(f"the logits of {_where(node)} are not numbers for random caches")
        if self._decoder.one_query:
            candidates = [Layout(key_axis, None, sinks=sinks)]
        else:
            axes = [a for a in range(logits.ndim) if a != key_axis and logits.shape[a] % self._queries == 0]
            if len(axes) != 1:
                raise AttributionError(
                    f"the logits of {_where(node)} must have one axis of queries: {self._queries} query tokens "
                    f"give the shape {list(logits.shape)}"
                )
            group = logits.shape[axes[0]] // self._queries
            candidates = [
                Layout(key_axis, axes[0], group, major, sinks) for major in ((True, False) if group > 1 else (True,))
            ]
        expected = torch.arange(self._past, self._total)
        for layout in candidates:
            visible = layout.rows(logits)[..., : self._total] > MASKED
            last_visible = self._total - 1 - visible.flip(-1).int().argmax(-1)
            # a choice may leave out the query's own key
            last = (last_visible <= expected) if self._leaving[node] else (last_visible == expected)
            if visible.any(-1).all() and last.all():
                return layout
        raise AttributionError(
            f"{_where(node)} is not causal: a query at position t must see key t and none after it, before the softmax"
        )

    def _choice_layout(self, choice: Node) -> Layout:
        """How the scores of a choice are laid out."""
        bound = bind(choice.target, choice.args, choice.kwargs)
        scores = self._values[bound["self"]]
        key_axis = dimension_of_keys(TOPK, bound) % scores.ndim
        if self._decoder.one_query:
            return Layout(key_axis, None)
        axes = [a for a in range(scores.ndim) if a != key_axis and scores.shape[a] % self._queries == 0]
        if len(axes) != 1 or scores.shape[axes[0]] != self._queries:
            raise AttributionError(
                f"the scores of {_where(choice)} must have one axis of queries: {self._queries} query tokens give the "
                f"shape {list(scores.shape)}"
            )
        return Layout(key_axis, axes[0])

    def _heads(self, node: Node, layout: Layout, base: Tensor) -> Tensor:
        """[rows] int64: the KV head of each of the attention's rows, ``base`` as they are on the random caches."""
        heads: Tensor | None = None
        for cache in sorted(self._keys[node]):
            found = self._cache_heads(node, layout, base, cache)
            # A cache without heads, beside one that has some, makes all query heads share one selection.
            if heads is None or int(found.max()) == 0:
                heads = found
            elif int(heads.max()) != 0 and not torch.equal(heads, found):
                raise AttributionError(f"the caches of {_where(node)} divide its query heads in different ways")
        assert heads is not None
        return heads

    def _cache_heads(self, node: Node, layout: Layout, base: Tensor, cache: int) -> Tensor:
        """[rows] int64: the head of one cache that each row reads; -1 for other sequences of a fixed batch."""
        index, _, sequence_axis = self._decoder.inputs.caches[cache]
        source, batch = self._decoder.users[index], self._decoder.batch
        start: Tensor = self._values[source]
        # those of the extent of a fixed batch
        of_rows = [axis for axis, extent in enumerate(start.shape) if extent == batch > 1 and axis != sequence_axis]
        if batch > 1 and not of_rows:
            raise AttributionError(f"{self._names([cache])}, and has no axis of its {batch} rows")
        bound = bind(node.target, node.args, node.kwargs)
        steps = self._between([bound["key"] if node.target is FUSED else bound["self"]], frozenset([cache]), None)

        def reached(part: Callable[[Tensor], Tensor]) -> Tensor:
            """[rows] bool: the rows that change with a part of the first sequence's cache."""
            changed = start.clone()
            view = part(changed.narrow(of_rows[0], 0, 1) if of_rows else changed)
            view.copy_(torch.randn(view.shape, generator=torch.Generator().manual_seed(next(self._seeds))))
            now = layout.rows(_logits(node, self._again(steps, {source: changed})))
            return (now != base).flatten(1).any(1)

        everything = reached(lambda x: x)
        # one sequence is read by its share of the logits, a layer or the keys alone by all of them or none
        while len(of_rows) > 1 and int(everything.sum()) * batch != len(everything):
            del of_rows[0]
            everything = reached(lambda x: x)
        name = f"{self._names([cache])} by {_where(node)}"
        if int(everything.sum()) * batch != len(everything):
            raise AttributionError(
                f"{name}, but reaches {int(everything.sum())} of its {len(everything)} rows of logits"
            )
        divisions: list[Tensor] = []
        for axis in range(start.ndim):
            if axis == sequence_axis or start.shape[axis] == 1 or axis in of_rows[:1]:
                continue
            parts: list[Tensor] = []
            for i in range(start.shape[axis]):
                rows = reached(lambda x, axis=axis, i=i: x.select(axis, i))  # type: ignore[misc]
                if rows.any() and not any(torch.equal(rows, part) for part in parts):
                    parts.append(rows)
            if len(parts) == 1 and torch.equal(parts[0], everything):
                continue
            sizes = {int(part.sum()) for part in parts}
            if len(sizes) != 1 or not torch.equal(torch.stack(parts).int().sum(0), everything.int()):
                raise AttributionError(f"{name}, but its axis {axis} does not divide the query heads evenly")
            divisions.append(torch.stack(parts))
        if len(divisions) > 1:
            raise AttributionError(f"{name}, but {len(divisions)} of its axes divide the query heads, not one")
        heads = divisions[0] if divisions else everything[None]
        return torch.where(everything, heads.int().argmax(0), -1)

    def _check_masking(self, node: Node, layout: Layout) -> None:
        """Masking a position at the logits must hide all that the caches hold there, keys and values."""
        caches = [self._decoder.inputs.caches[i] for i in sorted(self._met[node])]
        steps = self._between([node, *self._results[node]], self._met[node], node)
        for position in (0, self._past // 2, self._past - 1):

            def hidden(own: Layout, shape: Sequence[int], position: int = position) -> Tensor:
                along = [-1 if axis == own.key_axis else 1 for axis in range(len(shape))]
                return (torch.arange(shape[own.key_axis]) == position).view(along)

            layouts = {node: layout} | {choice: self._choice_layout(choice) for choice in self._leaving[node]}
            masking = {masked_node: partial(hidden, own) for masked_node, own in layouts.items()}
            changed: dict[Node, Any] = {}
            for index, _, axis in caches:
                source = self._decoder.users[index]
                changed[source] = self._values[source].clone()
                changed[source].select(axis, position).add_(1)
            before, after = (self._again(steps, start, masking) for start in ({}, changed))
            for result in self._results[node]:
                for one, other in zip(tree_leaves(before[result]), tree_leaves(after[result]), strict=True):
                    if not torch.equal(one, other):
                        raise AttributionError(
                            f"{self._names(self._met[node])} by {_where(node)} in a way that masking a position does "
                            f"not undo: something before or beside it mixes the positions of the cache"
                        )

    def _between(self, ends: Iterable[Node], caches: frozenset[int], weights: Node | None) -> list[Node]:
        """The nodes that lead to ``ends`` and carry the axis of ``caches`` or of an attention's weights, in order."""
        wanted = set(ends)
        for node in reversed(self._nodes):
            if node in wanted:
                for source in node.all_input_nodes:
                    chosen = _union(self._choices[choice] for choice in self._chosen.get(source, ()))
                    carried = self._carried.get(source, frozenset()) | chosen
                    if carried & caches or weights in self._weights.get(source, ()):
                        wanted.add(source)
        return [node for node in self._nodes if node in wanted and node.op != "placeholder"]

    def _again(
        self,
        steps: Sequence[Node],
        start: dict[Node, Any],
        masking: Mapping[Node, Callable[[Sequence[int]], Tensor]] = MappingProxyType({}),
    ) -> Mapping[Node, Any]:
        """All values when ``start`` has others and ``steps`` are recomputed, some of them masking what they take."""
        values: ChainMap[Node, Any] = ChainMap(dict(start), self._values)
        for step in steps:
            op: Any = step.target
            args, kwargs = map_arg((step.args, step.kwargs), values.__getitem__)
            if step in masking:
                values[step] = masked(op, bind(op, args, kwargs), masking[step])
            else:
                values[step] = op(*args, **kwargs)
        return values


def _where(node: Node) -> str:
    """A node by its name, with the model's source line where the graph has it."""
    lines = re.findall(r'File "([^"]+)", line (\d+)', node.meta.get("stack_trace") or "")
    return f"'{node.name}' ({lines[-1][0]}:{lines[-1][1]})" if lines else f"'{node.name}'"


def _union(sets: Iterable[frozenset[_T] | None]) -> frozenset[_T]:
    return frozenset().union(*(s for s in sets if s))


def _prime_factors(number: int) -> list[int]:
    factors, divisor = [], 2
    while number > 1:
        while number % divisor == 0:
            factors.append(divisor)
            number //= divisor
        divisor += 1
    return factors


def _primes(first: int, last: int) -> Iterator[int]:
    return (n for n in range(first, last + 1) if _prime_factors(n) == [n])
