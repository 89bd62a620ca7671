"""kv-absorb-expansion: attention on a latent cache, not on the keys and values that it is expanded to."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from torch_mlir import ir

from ..analysis.axes import Axes, Axis, Dims, Follows, Group
from ..analysis.expansion import NotLinear, Origins, Piece, divided, expands, pieces_of, serves_only
from ..analysis.functions import body, functions
from ..analysis.regions import Regions
from ..diagnostics import Remark, print_remark
from ..dialect.kv import AttentionOp, LinearBiasOp, Reach, attention, integer, number
from ..dialect.types import element_of, shape_of, vtensor
from .dead_code import erase_dead
from .raise_attention import rearrange
from .torch_builder import TorchBuilder

When = Literal["fewer", "always"]


@dataclass(frozen=True)
class AbsorbExpansion:
    """Moves what expands a cache to keys and values off the cache and into the query and the output.

    Applies to each ``kv.attention`` whose keys or values are, feature by feature, a product of something along the
    cache with a weight that is free of its axis: ``k = l Wk`` per head, ``v = l Wv``. Then ``q k^T = (q Wk^T) l^T`` and
    ``p v = (p l) Wv``, for every mask and any softmax, so that attention runs on ``l``, which all heads share. Features
    of the keys that are no product (a part that carries the rotation) stay as they are, beside ``l``. Softmax scale,
    soft cap, masks, biases, sinks and reach are the attention's own. Source: arXiv:2405.04434, section 2.1.2.

    ``when`` "fewer": where that takes fewer operations, counted from the shapes: products of queries and keys, of
    weights and values, with the expansion itself (nothing is saved of one that others use too), and a causal
    attention's at the mean of its keys. So in decode, where Q = 1 query meets T slots, and not in prefill, where
    Q = T, unless ``l`` has fewer features than what it is expanded to; there is no other rule. "always": wherever it
    can be.

    Relies on ``kv-raise-attention``, and runs behind the passes that compare the program with its probe. A remark
    says of each attention over something expanded what was done with it. What computes with the expanded features (a
    norm of the keys, a bias) keeps them from being absorbed, and so do heads of its own that only some of the pieces
    have.

    Before (128 heads)::

        %e = torch.aten.mm %latent, %w                     // [B*T, r] x [r, 128 * (dk + dv)]
        %k = torch.aten.cat [%e[.., :dk], %rotated]        // [B, 128, T, dk + dr]
        %o = "kv.attention"(%q, %k, %e[.., dk:]) {..}      // q [B, 128, 1, Q, dk + dr] -> [B, 128, 1, Q, dv]

    After::

        %a = torch.aten.bmm %q[.., :dk], %wk               // [128, B*Q, dk] x [128, dk, r]
        %k = torch.aten.cat [%latent, %rotated]            // [B, 1, T, r + dr]
        %m = "kv.attention"([%a, %q[.., dk:]], %k, %latent) {..}   // q [B, 1, 128, Q, r + dr] -> [B, 1, 128, Q, r]
        %o = torch.aten.bmm %m, %wv                        // [128, B*Q, r] x [128, r, dv]

    See tests/lit/raise/absorb_expansion.mlir.
    """

    when: str = "fewer"
    report: Callable[[Remark], None] = print_remark
    name: ClassVar[str] = "kv-absorb-expansion"

    def __post_init__(self) -> None:
        if self.when not in get_args(When):
            raise ValueError(f"when must be one of {', '.join(get_args(When))}, got {self.when!r}")

    def run(self, module: ir.Operation) -> None:
        """Rewrites the module."""
        for name, function in functions(module).items():
            found = [v.operation for v in body(function).operations if v.operation.name == "kv.attention"]
            if not any(expands(operand) for op in found for operand in list(op.operands)[1:3]):
                continue
            # heads that a view tells apart stay together
            axes, regions = Axes(function), Regions(stacks=False)
            for op in found:
                if any(expands(operand) for operand in list(op.operands)[1:3]):
                    self._visit(name, op, axes, regions)
            erase_dead(function)

    def _visit(self, name: str, op: ir.Operation, axes: Axes, regions: Regions) -> None:
        try:
            task = _Absorption(op, axes, regions)
        except NotLinear as stop:
            self.report(Remark(stop.where, f"@{name}: attention runs on what the cache is expanded to: {stop.why}"))
            return
        where = op.location
        before, after = task.operations()
        if self.when == "fewer" and after >= before:
            text = f"attention runs on what the cache is expanded to: on the cache itself it takes {after / before:.2f}"
        else:
            task.run()
            text = f"attention runs on the cache, not on what it is expanded to: {after / before:.2f}"
        self.report(Remark(where, f"@{name}: {text} times the operations"))


class _Absorption:
    """One attention, on what its keys and values are expanded from.

    Raises:
        NotLinear: they are no expansions, or of things with different heads.
    """

    def __init__(self, op: ir.Operation, axes: Axes, regions: Regions) -> None:
        view = op.opview
        assert isinstance(view, AttentionOp)
        self._op, self._view, self._axes = op, view, axes
        self._keys = pieces_of(view.k, axes, regions)
        values = pieces_of(view.v, axes, regions)
        if len(values) != 1:
            raise NotLinear(op, f"the values are joined of {len(values)} parts")
        (self._values,) = values
        pieces = [*self._keys, self._values]
        blocked = [p for p in pieces if p.expansion is None and expands(p.source)]
        if blocked:
            where = blocked[0].source
            producer = where.owner
            named = "it" if isinstance(producer, ir.Block) else f"'{producer.operation.name}'"
            raise NotLinear(
                where, f"{named} comes behind the expansion, where only views, slices and joins are followed"
            )
        if len({_runs(piece) for piece in pieces}) > 1:
            raise NotLinear(op, "only some of what the keys and values are made of has heads of its own")
        self._rows, self._heads, self._group, self._queries, _ = shape_of(view.q.type)
        self._row = (axes.row,) if self._rows > 1 else ()
        self._g = (Axis(Follows.PLAIN, self._group),) if self._group > 1 else ()
        self._n = (Axis(Follows.QUERY, self._queries),) if self._queries > 1 else ()

    def operations(self) -> tuple[int, int]:
        """Multiplications and additions before and after."""
        keys, query_heads = shape_of(self._view.k.type)[2], self._rows * self._heads * self._group * self._queries
        seen = (keys + 1) / 2 if integer(self._op, "causal") else keys
        before = after = 0.0
        for piece in (*self._keys, self._values):
            made, inner = _size(piece.features), _size(piece.inner)
            before += query_heads * seen * made
            after += query_heads * seen * inner
            if piece.expansion is not None:
                after += query_heads * made * inner
        expansions = {p.expansion.operation: _size(p.inner) for p in (*self._keys, self._values) if p.expansion}
        for expansion, inner in expansions.items():
            if serves_only(expansion, self._op):
                before += math.prod(shape_of(expansion.results[0].type)) * inner
        return int(2 * before), int(2 * after)

    def run(self) -> None:
        """Puts the attention on the sources in the place of the one on their images."""
        builder, view, own = TorchBuilder(self._op), self._view, self._own(self._values)
        element = element_of(view.q.type)
        shared = [self._rows, own, self._heads // own * self._group, self._queries]
        sources = [self._source(builder, piece, element) for piece in self._keys]
        operands = [
            _joined(builder, self._parts(builder, shared), 4),
            _joined(builder, sources, 3),
            self._source(builder, self._values, element),
            *([view.visible] if view.visible is not None else []),
        ]
        out = attention(
            operands,
            scale=number(self._op, "scale"),
            softcap=number(self._op, "softcap"),
            causal=bool(integer(self._op, "causal")),
            result=vtensor([*shared, _size(self._values.inner)], element),
            location=self._op.location,
            before=self._op,
            bias=self._bias(builder),
            sinks=None if view.sinks is None else self._by_head(builder, view.sinks),
            reach=Reach.of(self._op),
        )
        result = self._op.results[0]
        result.replace_all_uses_with(self._output(builder, out, shape_of(result.type)))
        self._op.erase()

    def _own(self, piece: Piece) -> int:
        return _size([axis for axis in piece.heads if axis in piece.own])

    def _order(self, piece: Piece) -> tuple[Group, Group]:
        """The heads that the source has, and all the others, the query heads of each included."""
        own = tuple(axis for axis in piece.heads if axis in piece.own)
        return own, (*(axis for axis in piece.heads if axis not in piece.own), *self._g)

    def _source(self, builder: TorchBuilder, piece: Piece, element: str) -> ir.Value:
        """What is along the cache: [B, own heads, T, inner]."""
        own, _ = self._order(piece)
        key = tuple(a for group in piece.dims for a in group if a.follows is Follows.KEY)
        chosen = piece.chosen if piece.expansion is None else ()
        order = [*self._row, *own, *key, *chosen, *piece.inner]
        value, dims = _divide(builder, piece.source, piece.dims, order, piece.origins)
        shape = [self._rows, _size(own), _size(key), _size(piece.inner)]
        return builder.cast(rearrange(builder, value, dims, order, shape), element)

    def _parts(self, builder: TorchBuilder, shape: Sequence[int]) -> list[ir.Value]:
        """The queries of each piece of the keys, multiplied with its weight: [B, own heads, others, Q, inner]."""
        found, first = [], 0
        for piece in self._keys:
            width = _size(piece.features)
            value = builder.slice(self._view.q, 4, first, first + width)
            first += width
            dims: Dims = (self._row, piece.heads, self._g, self._n, piece.features)
            inner = piece.features
            if piece.expansion is not None:
                inner = piece.expansion.contracted
                value, dims = self._product(value, dims, piece, piece.features, inner)
            own, others = self._order(piece)
            order = [*self._row, *own, *others, *self._n, *inner]
            found.append(rearrange(builder, value, dims, order, [*shape, _size(inner)]))
        return found

    def _output(self, builder: TorchBuilder, value: ir.Value, shape: Sequence[int]) -> ir.Value:
        """The attention's result from the one on the sources: [B, H, G, Q, Dv]."""
        piece = self._values
        own, others = self._order(piece)
        inner = piece.features if piece.expansion is None else piece.expansion.contracted
        dims: Dims = (self._row, own, others, self._n, inner)
        if piece.expansion is not None:
            value, dims = self._product(value, dims, piece, inner, piece.features)
        order = [*self._row, *piece.heads, *self._g, *self._n, *piece.features]
        return rearrange(builder, value, dims, order, shape)

    def _product(self, value: ir.Value, dims: Dims, piece: Piece, over: Group, into: Group) -> tuple[ir.Value, Dims]:
        """A value times the weight of a piece, summed ``over`` axes that both have; ``into`` are the weight's own."""
        expansion, shared = piece.expansion, piece.weight_heads
        assert expansion is not None
        builder = TorchBuilder(self._op, expansion.operation.location)
        order = [*shared, *piece.chosen, *over, *into]
        weight, weight_dims = _divide(builder, expansion.weight, expansion.dims, order, piece.origins)
        batch = [_size(shared)] if shared else []
        weight = rearrange(builder, weight, weight_dims, order, [*batch, _size(over), _size(into)])
        rest = tuple(axis for group in dims for axis in group if axis not in (*shared, *over))
        rows = rearrange(builder, value, dims, [*shared, *rest, *over], [*batch, _size(rest), _size(over)])
        element = element_of(value.type)
        product = builder.op(
            "torch.aten.bmm" if shared else "torch.aten.mm",
            [rows, builder.cast(weight, element)],
            vtensor([*batch, _size(rest), _size(into)], element),
        )
        return product, ((shared, rest, into) if shared else (rest, into))

    def _bias(self, builder: TorchBuilder) -> ir.Value | None:
        """The bias along the keys, by the heads that the attention has now."""
        if self._view.bias is None:
            return None
        made = self._view.bias.owner.operation
        assert made.name == "kv.linear_bias", made.name
        slopes = self._by_head(builder, made.operands[0])
        shape = [self._rows, *shape_of(slopes.type), shape_of(self._view.k.type)[2]]
        return LinearBiasOp(slopes, vtensor(shape, "f32"), loc=made.location, ip=ir.InsertionPoint(self._op)).bias

    def _by_head(self, builder: TorchBuilder, value: ir.Value) -> ir.Value:
        """A value of each head and query head of its group, [H, G], as [own heads, others]."""
        own, others = self._order(self._values)
        shape = [_size(own), _size(others)]
        return rearrange(builder, value, (self._values.heads, self._g), [*own, *others], shape)


def _size(axes: Sequence[Axis]) -> int:
    return math.prod(axis.size for axis in axes)


def _runs(piece: Piece) -> tuple[tuple[bool, int], ...]:
    """How many heads, from the outermost on, are the source's own, and how many are not, and so on."""
    grouped = itertools.groupby(piece.heads, key=lambda axis: axis in piece.own)
    return tuple((own, _size([*run])) for own, run in grouped)


def _joined(builder: TorchBuilder, values: Sequence[ir.Value], at: int) -> ir.Value:
    """Values next to one another along a dimension."""
    if len(values) == 1:
        return values[0]
    shape = shape_of(values[0].type)
    shape[at] = sum(shape_of(value.type)[at] for value in values)
    type_ = vtensor(shape, element_of(values[0].type))
    return builder.op("torch.aten.cat", [builder.tensors(values), builder.integer(at)], type_)


def _divide(
    builder: TorchBuilder, value: ir.Value, dims: Dims, wanted: Sequence[Axis], origins: Origins
) -> tuple[ir.Value, Dims]:
    """A value with its axes divided into the ``wanted`` ones that come from them, by views and slices."""
    steps = divided(wanted, [axis for group in dims for axis in group], origins)
    while todo := [axis for group in dims for axis in group if axis in steps and axis not in wanted]:
        axis = todo[0]
        flat = [axis for group in dims for axis in group]
        value = builder.view(value, [a.size for a in flat])
        at, parts = flat.index(axis), steps[axis]
        if parts[0] in origins.slices:
            _, begin = origins.slices[parts[0]]
            value = builder.slice(value, at, begin, begin + parts[0].size)
        else:
            value = builder.view(value, [a.size for a in (*flat[:at], *parts, *flat[at + 1 :])])
        dims = tuple((a,) for a in (*flat[:at], *parts, *flat[at + 1 :]))
    return value, dims
