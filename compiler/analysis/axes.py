"""Follows the axes of a program: which extents are rows, query tokens and cached keys, op by op.

Every dimension of every value is a product of axes. An op carries an axis, or something happens to it
(it is reduced, contracted, cut, ordered, ...): that is an ``Event``. The rules are per kind of op
(design section 4), so a model's spelling does not matter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from torch_mlir import ir

from ..diagnostics import Refusal
from ..dialect.kv import integer
from ..dialect.types import is_tensor, shape_of
from .aten import (
    FILLED,
    Kind,
    NotConstant,
    axis_operand,
    constant,
    integers_operand,
    kind_of,
    made_of,
    owner,
    rank_of,
    tensor_operands,
)
from .functions import argument_attributes, body


class Follows(Enum):
    """What an axis stands for. PLAIN axes are features and heads; COPY is an extent made by broadcasting."""

    ROW = "row"
    QUERY = "query"
    KEY = "cache"
    PLAIN = "plain"
    COPY = "copy"


@dataclass(frozen=True, eq=False)
class Axis:
    """One axis; two axes are the same only if they are the same object."""

    follows: Follows
    size: int

    @property
    def tracked(self) -> bool:
        """Whether losing sight of it would be unsound."""
        return self.follows in (Follows.ROW, Follows.QUERY, Follows.KEY)


Group = tuple[Axis, ...]
"""The axes whose product is one dimension, outermost first; a dimension of extent 1 has none."""

Dims = tuple[Group, ...]


@dataclass(frozen=True)
class Event:
    """Something other than carrying that ``operation`` does to ``axis``; ``what`` is a verb phrase."""

    operation: ir.Operation
    axis: Axis
    what: str

    def refusal(self) -> Refusal:
        """The refusal of a program in which this happens outside attention."""
        what, why, hint = _REASONS[self.axis.follows]
        return Refusal(self.operation, f"'{self.operation.name}' {self.what} {what}: {why}", hint)


_REASONS = {
    Follows.KEY: (
        "the cache axis",
        "fixed slots stand in any order and some are empty",
        "leave the cache's sequence axis to a softmax and its product with the values",
    ),
    Follows.QUERY: (
        "the tokens of the prompt",
        "the padding behind a prompt would reach its tokens",
        "treat each token on its own outside attention",
    ),
    Follows.ROW: (
        "the rows of the batch",
        "each row is a sequence of its own",
        "treat each row on its own",
    ),
}


class _Scrambled(Exception):
    """A reshape whose new dimensions are no products of the old ones."""


def axes_in(dims: Dims) -> set[Axis]:
    """All axes of a value."""
    return {axis for group in dims for axis in group}


def _has_key(dims: Dims) -> bool:
    return any(axis.follows is Follows.KEY for axis in axes_in(dims))


def _told_apart(repeated: Group, other: Group) -> Group:
    """A group that repeats a value, with the tracked axes of what it meets in the place of the repetition."""
    if [axis.size for axis in repeated] != [axis.size for axis in other]:
        return repeated
    return tuple(
        met if axis.follows is Follows.COPY and met.tracked else axis for axis, met in zip(repeated, other, strict=True)
    )


def dimension_of(dims: Dims, axis: Axis) -> int:
    """The dimension that holds an axis.

    Raises:
        KeyError: none does.
    """
    for i, group in enumerate(dims):
        if axis in group:
            return i
    raise KeyError(axis)


class Axes:
    """The axes of every tensor value of one function.

    ``row`` and ``query`` are those of the tokens, ``keys`` the axis of each ``kv.append``'s result;
    ``outer_parts`` and ``inner_parts`` tell of the outer and inner part of an axis that a view split which axis that
    was, ``extended`` of a cache axis that more entries were joined behind which axis that was.
    """

    def __init__(self, function: ir.Operation) -> None:
        self.of: dict[ir.Value, Dims] = {}
        self.events: list[Event] = []
        self.keys: dict[ir.Value, Axis] = {}
        self.outer_parts: dict[Axis, Axis] = {}
        self.inner_parts: dict[Axis, Axis] = {}
        self.extended: dict[Axis, Axis] = {}
        self._splits: dict[tuple[Axis, int], tuple[Axis, Axis]] = {}
        tokens = [
            argument
            for argument, entry in zip(body(function).arguments, argument_attributes(function), strict=True)
            if entry.get("kv.role") == "tokens"
        ]
        extents = shape_of(tokens[0].type) if tokens else []
        self.row = Axis(Follows.ROW, extents[0] if len(extents) == 2 else 1)
        self.query = Axis(Follows.QUERY, extents[-1] if extents else 1)
        for argument, entry in zip(body(function).arguments, argument_attributes(function), strict=True):
            if is_tensor(argument.type):
                self.of[argument] = self._argument(argument, entry.get("kv.role", "other"))
        for view in body(function).operations:
            self._visit(view.operation)

    def lost(self, value: ir.Value, follows: Follows) -> Event | None:
        """Where a value lost an axis that what it is made of had; None if nothing ever had one."""
        losing = {event.operation: event for event in self.events if event.axis.follows is follows}
        return next((losing[op] for op in made_of(value) if op in losing), None)

    # --- roots

    def _argument(self, argument: ir.Value, role: str) -> Dims:
        shape = shape_of(argument.type)
        if role in ("tokens", "positions"):
            named = [self.row, self.query][-len(shape) :] if shape else []
            return tuple(
                (axis,) if extent > 1 and axis.size == extent else self._fresh(extent)
                for axis, extent in zip(named, shape, strict=True)
            )
        dims = [self._fresh(extent) for extent in shape]
        if role in ("cache", "state") and shape and shape[0] == self.row.size > 1:
            dims[0] = (self.row,)
        return tuple(dims)

    def _fresh(self, extent: int, follows: Follows = Follows.PLAIN) -> Group:
        return () if extent == 1 else (Axis(follows, extent),)

    def _plain(self, value: ir.Value) -> Dims:
        return tuple(self._fresh(extent) for extent in shape_of(value.type))

    # --- ops

    def _visit(self, op: ir.Operation) -> None:
        results = [r for r in op.results if is_tensor(r.type)]
        if op.name == "kv.append":
            self._append(op)
        elif op.name == "kv.attention":
            q, _, v = (self.of[o] for o in list(op.operands)[:3])
            self.of[op.results[0]] = (*q[:4], v[3])
        elif op.name == "kv.topk_mask":
            # the last dimension stands beside the cache axis, and goes where masks go
            self.of[op.results[0]] = (*self.of[op.operands[0]][:2], self._fresh(shape_of(op.results[0].type)[2]))
        elif not results:
            return
        elif op.name in FILLED:
            self._filled(op)
        elif kind_of(op) is not Kind.VIEW and not [o for o in tensor_operands(op) if axes_in(self.of[o])]:
            for result in results:
                self.of[result] = self._plain(result)
        else:
            rule = {
                Kind.POINTWISE: self._pointwise,
                Kind.VIEW: self._view,
                Kind.REDUCTION: self._reduction,
                Kind.CONTRACTION: self._contraction,
                Kind.NORMALISATION: self._normalisation,
                Kind.INDEX: self._index,
                Kind.CREATION: self._unknown,
                Kind.UNKNOWN: self._unknown,
            }[kind_of(op)]
            try:
                rule(op)
            except NotConstant:
                self._lose(op, "gives a computed shape or axis to")
            except _Scrambled:
                self._lose(op, "reshapes across")

    def _lose(self, op: ir.Operation, what: str) -> None:
        for operand in tensor_operands(op):
            for axis in axes_in(self.of[operand]):
                if axis.tracked:
                    self._event(op, axis, what)
        for result in op.results:
            if is_tensor(result.type):
                self.of[result] = self._plain(result)

    def _unknown(self, op: ir.Operation) -> None:
        self._lose(op, "is of no known kind and takes")

    def _event(self, op: ir.Operation, axis: Axis, what: str) -> None:
        self.events.append(Event(op, axis, what))

    def _append(self, op: ir.Operation) -> None:
        cache = op.operands[0]
        at = integer(op, "axis")
        key = Axis(Follows.KEY, shape_of(op.results[0].type)[at])
        rows = self.of[op.operands[1]]
        dims = list(self.of[cache])
        dims[at] = (key,)
        if not dims[0] and rows[0] == (self.row,):
            dims[0] = rows[0]
        self.of[op.results[0]] = tuple(dims)
        self.keys[op.results[0]] = key

    def _filled(self, op: ir.Operation) -> None:
        """What is filled with one number is the same along all of it."""
        result = op.results[0]
        self.of[result] = tuple(self._fresh(extent, Follows.COPY) for extent in shape_of(result.type))

    def _pointwise(self, op: ir.Operation) -> None:
        # of axes that say the same, those of a value with the cache axis: a bias has the heads of its logits
        operands = sorted(tensor_operands(op), key=lambda operand: not _has_key(self.of[operand]))
        result = op.results[0]
        self.of[result] = self._broadcast(op, operands, shape_of(result.type))

    def _broadcast(self, op: ir.Operation, operands: Sequence[ir.Value], shape: list[int]) -> Dims:
        dims: list[Group] = []
        for i, extent in enumerate(shape):
            back = len(shape) - i
            groups = [
                group
                for group in (self.of[o][rank_of(o) - back] for o in operands if rank_of(o) >= back)
                if math.prod(axis.size for axis in group) == extent and extent > 1
            ]
            dims.append(self._meet(op, groups) if groups else self._fresh(extent))
        return tuple(dims)

    def _meet(self, op: ir.Operation, groups: list[Group]) -> Group:
        """One group for a dimension where several meet: what is tracked wins, then the finest."""
        best = max(groups, key=lambda g: (sum(axis.tracked for axis in g), len(g)))
        kept = {axis.follows for axis in best if axis.tracked}
        for group in groups:
            for axis in best:
                told = any(a.follows is Follows.KEY for a in group) or all(a.follows is Follows.COPY for a in group)
                if axis.follows is Follows.KEY and not told:
                    self._event(op, axis, "combines with values that differ along")
            for axis in group:
                # two tracked axes of one extent that meet are different things, however equal in size
                if axis.tracked and axis.follows not in kept:
                    self._event(op, axis, f"aligns the {best[0].follows.value} axis with")
        return best

    def _view(self, op: ir.Operation) -> None:
        source, result = op.operands[0], op.results[0]
        dims, shape, rank = self.of[source], shape_of(result.type), rank_of(source)
        kind = op.name.removeprefix("torch.aten.")
        if kind == "permute":
            order = [i % rank for i in integers_operand(op, 1)]
            self.of[result] = tuple(dims[i] for i in order)
        elif kind in ("transpose.int", "t"):
            a, b = (axis_operand(op, 1, rank), axis_operand(op, 2, rank)) if kind != "t" else (0, rank - 1)
            order = list(range(rank))
            order[a], order[b] = b, a
            self.of[result] = tuple(dims[i] for i in order)
        elif kind == "repeat":
            times = integers_operand(op, 1)
            padded = [()] * (len(times) - rank) + list(dims)
            # the axis in sight within the dimension: who reduces or cuts that does it to the axis too
            self.of[result] = tuple(
                (*self._fresh(n, Follows.COPY), *group) for group, n in zip(padded, times, strict=True)
            )
        elif kind == "expand":
            padded = [()] * (len(shape) - rank) + list(dims)
            self.of[result] = tuple(
                group if math.prod(a.size for a in group) == extent else self._fresh(extent, Follows.COPY)
                for group, extent in zip(padded, shape, strict=True)
            )
        else:
            self.of[result] = self._regroup(op, [axis for group in dims for axis in group], shape)

    def _regroup(self, op: ir.Operation, axes: list[Axis], shape: list[int]) -> Dims:
        """The dims of a reshape: axes stay in order, and a plain one is split where a boundary cuts it."""
        queue, dims = list(axes), []
        for extent in shape:
            group: list[Axis] = []
            covered = 1
            while covered < extent:
                axis = queue.pop(0)
                wanted = extent // covered
                if wanted % axis.size:
                    axis, rest = self._split(op, axis, wanted)
                    queue.insert(0, rest)
                group.append(axis)
                covered *= axis.size
            dims.append(tuple(group))
        return tuple(dims)

    def _split(self, op: ir.Operation, axis: Axis, size: int) -> tuple[Axis, Axis]:
        if axis.tracked:
            self._event(op, axis, "splits")
        if (axis, size) not in self._splits:
            outer = math.gcd(axis.size, size)
            if outer == 1:
                raise _Scrambled
            follows = Follows.PLAIN if axis.tracked else axis.follows
            self._splits[axis, size] = (Axis(follows, outer), Axis(follows, axis.size // outer))
            self.outer_parts[self._splits[axis, size][0]] = axis
            self.inner_parts[self._splits[axis, size][1]] = axis
        return self._splits[axis, size]

    def _reduction(self, op: ir.Operation) -> None:
        source = op.operands[0]
        dims, rank = self.of[source], rank_of(source)
        reduced = self.reduced_dimensions(op)
        for i in reduced:
            for axis in dims[i]:
                if axis.tracked:
                    self._event(op, axis, "reduces")
        for result in op.results:
            if is_tensor(result.type):
                keeps = rank_of(result) == rank
                self.of[result] = tuple(
                    () if i in reduced else group for i, group in enumerate(dims) if keeps or i not in reduced
                )

    def reduced_dimensions(self, op: ir.Operation) -> list[int]:
        """The dimensions that a reduction or a softmax works over."""
        rank = rank_of(op.operands[0])
        at = 2 if "norm" in op.name and "layer_norm" not in op.name else 1
        value = constant(op.operands[at]) if len(op.operands) > at else None
        if value is None or value == [] or isinstance(value, bool) or not isinstance(value, int | list):
            return list(range(rank))
        return [d % rank for d in integers_operand(op, at)]

    def _contraction(self, op: ir.Operation) -> None:
        a, b = list(op.operands)[-4 if op.name.endswith("addmm") else -2 :][:2]
        left, right = self.of[a], self.of[b]
        for axis in (*left[-1], *right[-2]):
            if axis.tracked:
                self._event(op, axis, "contracts over")
        if len(left) == 2:
            self.of[op.results[0]] = (left[-2], right[-1])
            return
        # heads are those of the cache: the other side's batch may be split otherwise
        first, second = (right, left) if _has_key(right) and not _has_key(left) else (left, right)
        if _has_key(first):
            batch = _told_apart(first[0], second[0])
        else:
            batch = self._meet(op, [g for g in (first[0], second[0]) if g] or [()])
        self.of[op.results[0]] = (batch, left[-2], right[-1])

    def _normalisation(self, op: ir.Operation) -> None:
        dims = self.of[op.operands[0]]
        if "layer_norm" in op.name:
            worked = set(range(len(dims) - len(integers_operand(op, 1)), len(dims)))
        else:
            worked = set(self.reduced_dimensions(op))
        for i in worked:
            for axis in dims[i]:
                if axis.tracked:
                    self._event(op, axis, "normalises over")
        self.of[op.results[0]] = dims
        for result in list(op.results)[1:]:
            self.of[result] = tuple(() if i in worked else group for i, group in enumerate(dims))

    def _index(self, op: ir.Operation) -> None:
        kind, result = op.name.removeprefix("torch.aten."), op.results[0]
        source = tensor_operands(op)[0]
        dims, rank = list(self.of[source]), rank_of(source)
        if kind == "embedding":
            self._cut(op, dims[0], "looks up")
            self.of[result] = (*self.of[op.operands[1]], dims[1])
        elif kind == "index.Tensor" and len(tensor_operands(op)) == 2:
            listed = owner(op.operands[1])
            assert listed is not None
            at = next(i for i, v in enumerate(listed.operands) if is_tensor(v.type))
            self._cut(op, dims[at], "looks up")
            self.of[result] = (*dims[:at], *self.of[tensor_operands(op)[1]], *dims[at + 1 :])
        elif kind in ("slice.Tensor", "select.int", "index_select", "narrow"):
            at = axis_operand(op, 1, rank)
            extent = 1 if kind == "select.int" else shape_of(result.type)[at]
            if kind == "slice.Tensor" and self._takes_all_keys(op, dims[at], extent):
                dims[at] = (self.extended[dims[at][0]],)
            elif extent != shape_of(source.type)[at] or kind == "index_select":
                self._cut(op, dims[at], "takes a part of")
                dims[at] = self._fresh(extent)
            if kind == "select.int":
                del dims[at]
            self.of[result] = tuple(dims)
        elif kind == "cat":
            at = axis_operand(op, 1, rank)
            parts = tensor_operands(op)
            for part in parts:
                self._cut(op, self.of[part][at], "joins something to")
            met = [self._meet(op, [g for g in (self.of[p][i] for p in parts) if g] or [()]) for i in range(rank)]
            met[at] = self._joined(self.of[parts[0]][at], shape_of(result.type)[at])
            self.of[result] = tuple(met)
        elif kind == "gather" and self._is_aligned(op):
            index, at = op.operands[2], axis_operand(op, 1, rank)
            self._cut(op, dims[at], "looks up")
            met = [self._meet(op, [g for g in (dims[i], self.of[index][i]) if g] or [()]) for i in range(rank)]
            met[at] = self.of[index][at]
            self.of[result] = tuple(met)
        elif kind == "constant_pad_nd":
            for i, width in enumerate(integers_operand(op, 1)):
                at = rank - 1 - i // 2
                if width:
                    self._cut(op, dims[at], "pads")
                    dims[at] = self._fresh(shape_of(result.type)[at])
            self.of[result] = tuple(dims)
        elif kind in ("slice_scatter", "select_scatter"):
            self._write(op, kind == "select_scatter")
        elif kind in ("flip", "cumsum", "cumprod", "sort", "topk", "roll"):
            at = {"topk": 2, "roll": 2}.get(kind, 1)
            for i in integers_operand(op, at) or list(range(rank)):
                self._cut(op, dims[i], "orders or shifts")
                if kind == "topk":
                    dims[i] = self._fresh(shape_of(result.type)[i])
            for each in op.results:
                self.of[each] = tuple(dims)
        else:
            self._lose(op, "indexes")

    def _write(self, op: ir.Operation, selects: bool) -> None:
        """A part written over along one dimension; one that is all of it is the result."""
        source, part = op.operands[:2]
        dims, written, extents = self.of[source], self.of[part], shape_of(source.type)
        at = axis_operand(op, 2, len(dims))
        if selects:
            written = (*written[:at], (), *written[at:])
        if extents[at] == (1 if selects else shape_of(part.type)[at]):
            self.of[op.results[0]] = written
            return
        for group in (dims[at], written[at]):
            self._cut(op, group, "writes a part of")
        met = [self._meet(op, [g for g in (dims[i], written[i]) if g] or [()]) for i in range(len(dims))]
        met[at] = self._fresh(extents[at])
        self.of[op.results[0]] = tuple(met)

    def _is_aligned(self, op: ir.Operation) -> bool:
        """Whether a gather's index has the extents of what it looks into, but along the axis that it looks along."""
        source, index = (shape_of(op.operands[i].type) for i in (0, 2))
        at = axis_operand(op, 1, len(source))
        return source[:at] + source[at + 1 :] == index[:at] + index[at + 1 :]

    def _joined(self, first: Group, extent: int) -> Group:
        """The axis of a concat; behind a cache axis it stays in sight, as logits of sinks are put there."""
        if len(first) != 1 or first[0].follows is not Follows.KEY or extent == first[0].size:
            return self._fresh(extent)
        joined = Axis(Follows.KEY, extent)
        self.extended[joined] = first[0]
        return (joined,)

    def _takes_all_keys(self, op: ir.Operation, group: Group, extent: int) -> bool:
        """Whether a slice takes the cache axis alone of one that more was joined behind."""
        if len(group) != 1 or group[0] not in self.extended or extent != self.extended[group[0]].size:
            return False
        return constant(op.operands[2]) in (0, None) and constant(op.operands[4]) == 1

    def _cut(self, op: ir.Operation, group: Group, what: str) -> None:
        for axis in group:
            if axis.tracked:
                self._event(op, axis, what)
