"""Where the elements of a value stand in the values that it was put together from.

Concats, slices, pads, scatters at known places, transposes and the like only move elements. Followed through them, a
value is a set of boxes, each a box of another value, so that two spellings of the same thing are seen to be the same.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from torch_mlir import ir

from ..dialect.types import is_tensor, shape_of
from .aten import (
    IDENTITIES,
    NotConstant,
    axis_operand,
    constant,
    filled_with,
    integer_operand,
    integers_operand,
    owner,
    rank_of,
    tensor_operands,
)
from .evaluate import Evaluator, NotEvaluable


class Filler(Enum):
    """Elements that come from no other value."""

    ZERO = "zeros"
    UNDEFINED = "memory that nothing was written to"


Interval = tuple[int, int]
"""First and past-the-last index along a dimension."""


@dataclass(frozen=True)
class Box:
    """A part of a value whose elements are a part of ``source``.

    ``at`` and ``size`` say where it stands in the value; ``start`` where it begins in ``source``. ``dims`` has for each
    dimension of the value the dimension of ``source`` along which it runs, -1 where it has one index only. A box of
    no elements is kept: an empty cache is still a cache.
    """

    at: tuple[int, ...]
    size: tuple[int, ...]
    source: ir.Value | Filler
    start: tuple[int, ...]
    dims: tuple[int, ...]

    @property
    def empty(self) -> bool:
        """Whether it has no elements."""
        return 0 in self.size

    def extents(self) -> list[Interval]:
        """What the box covers of each dimension of ``source``."""
        found = [(start, start + 1) for start in self.start]
        for size, dim in zip(self.size, self.dims, strict=True):
            if dim >= 0:
                found[dim] = (self.start[dim], self.start[dim] + size)
        return found

    def shifted(self, axis: int, by: int) -> Box:
        """The box further along an axis of the value."""
        return replace(self, at=(*self.at[:axis], self.at[axis] + by, *self.at[axis + 1 :]))

    def cut(self, region: Sequence[Interval]) -> Box | None:
        """The box within a region of the value, counted from the region's beginning; None where it is outside."""
        at, size, start = list(self.at), list(self.size), list(self.start)
        for i, (low, high) in enumerate(region):
            first, last = max(low, at[i]), min(high, at[i] + size[i])
            if last < first or (last == first and size[i]):
                return None
            if self.dims[i] >= 0:
                start[self.dims[i]] += first - at[i]
            at[i], size[i] = first - low, last - first
        return replace(self, at=tuple(at), size=tuple(size), start=tuple(start))

    def arranged(self, order: Sequence[int]) -> Box:
        """The box with the value's dimensions in ``order``; -1 stands for a new dimension of extent 1."""

        def pick(values: tuple[int, ...], new: int) -> tuple[int, ...]:
            return tuple(values[i] if i >= 0 else new for i in order)

        return replace(self, at=pick(self.at, 0), size=pick(self.size, 1), dims=pick(self.dims, -1))


Content = tuple[Box, ...]
"""The boxes of a value; they cover it and do not overlap."""


def whole(value: ir.Value) -> Content:
    """The content of a value that is what it is."""
    shape = tuple(shape_of(value.type))
    dims = tuple(i for i in range(len(shape)))
    return (Box((0,) * len(shape), shape, value, (0,) * len(shape), dims),)


def restricted(content: Content, region: Sequence[Interval]) -> Content:
    """A region of a value."""
    return tuple(part for box in content if (part := box.cut(region)) is not None)


def arranged(content: Content, order: Sequence[int]) -> Content:
    """A value with its dimensions in another order, -1 for a new one; a dimension left out has extent 1."""
    return tuple(box.arranged(order) for box in content)


def same(left: Content, right: Content) -> bool:
    """Whether two contents of one shape have the same elements everywhere."""
    return all(_agree(a, b) for a in left for b in right if not (a.empty or b.empty))


def _agree(a: Box, b: Box) -> bool:
    common = b.cut([(at, at + size) for at, size in zip(a.at, a.size, strict=True)])
    if common is None or common.empty:
        return True
    if a.source != b.source or a.source is Filler.UNDEFINED:
        return False
    mine = a.cut([(a.at[i] + at, a.at[i] + at + size) for i, (at, size) in enumerate(_spans(common))])
    assert mine is not None
    return mine.start == common.start and all(
        p == q or extent == 1 for p, q, extent in zip(mine.dims, common.dims, common.size, strict=True)
    )


def _spans(box: Box) -> Iterable[tuple[int, int]]:
    return zip(box.at, box.size, strict=True)


class Regions:
    """The contents of a function's values; an op that does more than move elements gives a value of its own.

    So does, without ``stacks``, a view that joins dimensions or divides them.
    """

    def __init__(self, stacks: bool = True) -> None:
        self._stacks = stacks
        self._known: dict[ir.Value, Content] = {}
        self._evaluate = Evaluator({}, lambda name: None)

    def of(self, value: ir.Value) -> Content:
        """The boxes that a value consists of."""
        if value not in self._known:
            producer = owner(value)
            rule = _RULES.get(producer.name) if producer is not None and is_tensor(value.type) else None
            content = None
            if producer is not None and rule is not None:
                try:
                    content = rule(self, producer)
                except (NotConstant, NotEvaluable):
                    content = None
            self._known[value] = whole(value) if content is None else content
        return self._known[value]

    def moves(self, op: ir.Operation) -> bool:
        """Whether an op only moves elements."""
        return len(op.results) == 1 and is_tensor(op.results[0].type) and self.of(op.results[0]) != whole(op.results[0])

    def seen(self) -> list[ir.Value]:
        """The values that were asked for so far, those that they are made of included."""
        return list(self._known)

    # --- rules: the content of an op's result, None where it is no mere move

    def _identity(self, op: ir.Operation) -> Content | None:
        return self.of(op.operands[0])

    def _cat(self, op: ir.Operation) -> Content | None:
        result = op.results[0]
        axis, at = axis_operand(op, 1, rank_of(result)), 0
        boxes: list[Box] = []
        for part in tensor_operands(op):
            if rank_of(part) != rank_of(result):  # PyTorch lets an empty tensor of one dimension stand anywhere
                continue
            boxes += [box.shifted(axis, at) for box in self.of(part)]
            at += shape_of(part.type)[axis]
        return tuple(boxes)

    def _slice(self, op: ir.Operation) -> Content | None:
        source = op.operands[0]
        axis = axis_operand(op, 1, rank_of(source))
        return self._part(source, axis, _interval(op, 2, shape_of(source.type)[axis]))

    def _select(self, op: ir.Operation) -> Content | None:
        source = op.operands[0]
        rank = rank_of(source)
        axis = axis_operand(op, 1, rank)
        index = integer_operand(op, 2) % max(shape_of(source.type)[axis], 1)
        part = self._part(source, axis, (index, index + 1))
        return arranged(part, [i for i in range(rank) if i != axis])

    def _index_select(self, op: ir.Operation) -> Content | None:
        source = op.operands[0]
        interval = self._interval(op.operands[2])
        return None if interval is None else self._part(source, axis_operand(op, 1, rank_of(source)), interval)

    def _index(self, op: ir.Operation) -> Content | None:
        place = self._place(op)
        return None if place is None else self._part(op.operands[0], *place)

    def _part(self, source: ir.Value, axis: int, interval: Interval) -> Content:
        return restricted(self.of(source), _region(shape_of(source.type), axis, interval))

    def _permute(self, op: ir.Operation) -> Content | None:
        rank = rank_of(op.operands[0])
        return arranged(self.of(op.operands[0]), [i % rank for i in integers_operand(op, 1)])

    def _transpose(self, op: ir.Operation) -> Content | None:
        rank = rank_of(op.operands[0])
        order = list(range(rank))
        a, b = (axis_operand(op, 1, rank), axis_operand(op, 2, rank)) if len(op.operands) > 1 else (0, rank - 1)
        order[a], order[b] = b, a
        return arranged(self.of(op.operands[0]), order)

    def _view(self, op: ir.Operation) -> Content | None:
        """A view that adds or removes dimensions of extent 1, or joins the dimensions of a stack or divides them."""
        before, after = shape_of(op.operands[0].type), shape_of(op.results[0].type)
        if not self._stacks and [n for n in before if n != 1] != [n for n in after if n != 1]:
            return None
        merged = _merged(self.of(op.operands[0]), before, after)
        if merged is None:
            return None
        content, before = merged
        old = iter(i for i, extent in enumerate(before) if extent != 1)
        order, strides = [], []
        current, rest = 0, 1  # the present old dimension, and how much of it new ones have to cover
        for extent in after:
            if extent == 1:
                order.append(-1)
                strides.append(1)
                continue
            if rest == 1:
                current = next(old, -1)
                if current < 0:
                    return None
                rest = before[current]
            if rest % extent if extent else rest:
                return None
            rest = rest // extent if extent else 1
            order.append(current)
            strides.append(rest)
        if rest != 1 or next(old, -1) >= 0:
            return None
        # the smallest step is the last one of a dimension
        outer = {dim: stride for dim, stride in zip(order, strides, strict=True) if stride > 1}
        pieces = tuple(piece for box in content for piece in _pieces(box, outer))
        # in pieces only where each is taken by itself: as a whole, such a value is no region of its source
        if len(pieces) > len(content) and not _is_taken_apart(op.results[0]):
            return None
        return tuple(_divided(box, order, strides, after) for box in pieces)

    def _expand(self, op: ir.Operation) -> Content | None:
        # a copy of a value onto one of its shape, as a write in place becomes
        source = op.operands[0]
        return self.of(source) if shape_of(source.type) == shape_of(op.results[0].type) else None

    def _slice_scatter(self, op: ir.Operation) -> Content | None:
        target, written = op.operands[:2]
        axis = axis_operand(op, 2, rank_of(target))
        return self._over(target, self.of(written), axis, _interval(op, 3, shape_of(target.type)[axis]))

    def _select_scatter(self, op: ir.Operation) -> Content | None:
        target, written = op.operands[:2]
        rank = rank_of(target)
        axis = axis_operand(op, 2, rank)
        index = integer_operand(op, 3) % max(shape_of(target.type)[axis], 1)
        order = [*range(axis), -1, *range(axis, rank - 1)]
        return self._over(target, arranged(self.of(written), order), axis, (index, index + 1))

    def _index_copy(self, op: ir.Operation) -> Content | None:
        target, interval = op.operands[0], self._interval(op.operands[2])
        if interval is None:
            return None
        return self._over(target, self.of(op.operands[3]), axis_operand(op, 1, rank_of(target)), interval)

    def _index_put(self, op: ir.Operation) -> Content | None:
        target, written, place = op.operands[0], op.operands[2], self._place(op)
        if place is None or constant(op.operands[3]) is not False:
            return None
        axis, (low, high) = place
        shape = shape_of(target.type)
        if shape_of(written.type) != [*shape[:axis], high - low, *shape[axis + 1 :]]:
            return None
        return self._over(target, self.of(written), axis, (low, high))

    def _pad(self, op: ir.Operation) -> Content | None:
        if constant(op.operands[2]) != 0:
            return None
        source, result = op.operands[0], op.results[0]
        widths = integers_operand(op, 1)
        region = [(0, extent) for extent in shape_of(result.type)]
        for i, front in enumerate(widths[::2]):
            axis = len(region) - 1 - i
            if front < 0 or widths[2 * i + 1] < 0:
                return None
            region[axis] = (front, front + shape_of(source.type)[axis])
        return _overlaid(_filled(result, Filler.ZERO), self.of(source), region)

    def _zeros(self, op: ir.Operation) -> Content | None:
        return _filled(op.results[0], Filler.ZERO)

    def _full(self, op: ir.Operation) -> Content | None:
        return _filled(op.results[0], Filler.ZERO) if filled_with(op) == 0 else None

    def _empty(self, op: ir.Operation) -> Content | None:
        return _filled(op.results[0], Filler.UNDEFINED)

    def _add(self, op: ir.Operation) -> Content | None:
        """A sum where at each place one of the two is zero."""
        a, b = op.operands[:2]
        if constant(op.operands[2]) != 1 or shape_of(a.type) != shape_of(b.type):
            return None
        boxes: list[Box] = []
        left, right = self.of(a), self.of(b)
        for one, other in itertools.product(left, right):
            common = other.cut([(at, at + size) for at, size in _spans(one)])
            if common is None or common.empty:
                continue
            zero = other.source is Filler.ZERO
            if not zero and one.source is not Filler.ZERO:
                return None
            span = [(one.at[i] + at, one.at[i] + at + size) for i, (at, size) in enumerate(_spans(common))]
            kept = (one if zero else other).cut(span)
            assert kept is not None
            boxes.append(replace(kept, at=tuple(low for low, _ in span)))
        return (*boxes, *(box for box in (*left, *right) if box.empty))

    def _over(self, target: ir.Value, written: Content, axis: int, interval: Interval) -> Content:
        return _overlaid(self.of(target), written, _region(shape_of(target.type), axis, interval))

    def _interval(self, index: ir.Value) -> Interval | None:
        """A known index of consecutive numbers, as an interval."""
        values = [int(v) for v in self._evaluate(index).reshape(-1)]
        if not values or values[0] < 0 or values != list(range(values[0], values[0] + len(values))):
            return None
        return values[0], values[-1] + 1

    def _place(self, op: ir.Operation) -> tuple[int, Interval] | None:
        """Axis and interval of an op that indexes one dimension by a known index of rank 1."""
        listed = owner(op.operands[1])
        indices = [] if listed is None else list(listed.operands)
        given = [i for i, value in enumerate(indices) if is_tensor(value.type)]
        if len(given) != 1 or rank_of(indices[given[0]]) != 1:
            return None
        interval = self._interval(indices[given[0]])
        return None if interval is None else (given[0], interval)


def _merged(content: Content, before: Sequence[int], after: Sequence[int]) -> tuple[Content, list[int]] | None:
    """The content and shape with those dimensions joined to one that a view joins; None where it does more than that.

    A box must lie at one index of each joined dimension but the innermost.
    """
    old, new = ([i for i, extent in enumerate(shape) if extent != 1] for shape in (before, after))
    groups: list[list[int]] = []
    while old and new:
        group, left, right = [old[0]], before[old.pop(0)], after[new.pop(0)]
        joined = 1
        while left != right:
            if left < right:
                if not old:
                    return None
                group.append(old[0])
                left *= before[old.pop(0)]
            else:
                if not new:
                    return None
                joined += 1
                right *= after[new.pop(0)]
        if len(group) > 1 and joined > 1:
            return None
        groups.append(group)
    if old or new:
        return None
    if all(len(group) == 1 for group in groups):
        return content, list(before)
    boxes = []
    for box in content:
        if any(box.size[dim] > 1 for group in groups for dim in group[:-1]):
            return None
        at, size, dims = [], [], []
        for group in groups:
            place = 0
            for dim in group:
                place = place * before[dim] + box.at[dim]
            at.append(place)
            size.append(box.size[group[-1]] if all(box.size[dim] for dim in group) else 0)
            dims.append(box.dims[group[-1]])
        boxes.append(replace(box, at=tuple(at), size=tuple(size), dims=tuple(dims)))
    return tuple(boxes), [math.prod(before[dim] for dim in group) for group in groups]


def _pieces(box: Box, outer: Mapping[int, int]) -> Iterator[Box]:
    """A box in parts, none of which goes beyond a multiple of ``outer[dim]`` along a dimension."""
    spans = []
    for dim, (at, size) in enumerate(_spans(box)):
        step = outer.get(dim, 0)
        inside = range((at // step + 1) * step, at + size, step) if step else ()
        spans.append(list(itertools.pairwise([at, *inside, at + size])))
    for region in itertools.product(*spans):
        piece = box.cut(region)
        assert piece is not None
        yield replace(piece, at=tuple(low for low, _ in region))


def _is_taken_apart(value: ir.Value) -> bool:
    """Whether all that is computed with is a part of a value, or a copy put elsewhere."""
    for use in value.uses:
        op = use.owner.operation
        if op.name in ("func.return", "torch.aten.select.int", "torch.aten.slice.Tensor"):
            continue
        moves = op.name == "torch.prim.ListConstruct" or op.name in _RULES
        if not moves or not all(_is_taken_apart(result) for result in op.results):
            return False
    return True


def _divided(box: Box, order: Sequence[int], strides: Sequence[int], shape: Sequence[int]) -> Box:
    """A box where dimensions are divided: ``order`` has the old dimension of each new one, whose step in it is given.

    It lies at one index of each new dimension that is not the innermost of an old one.
    """
    at, size, dims = [], [], []
    for dim, stride, extent in zip(order, strides, shape, strict=True):
        if dim < 0 or stride > 1:
            at.append(0 if dim < 0 else box.at[dim] // stride % extent)
            size.append(1)
            dims.append(-1)
        else:
            at.append(box.at[dim] % extent if extent else 0)
            size.append(box.size[dim])
            dims.append(box.dims[dim])
    return replace(box, at=tuple(at), size=tuple(size), dims=tuple(dims))


def _region(shape: Sequence[int], axis: int, interval: Interval) -> list[Interval]:
    return [interval if i == axis else (0, extent) for i, extent in enumerate(shape)]


def _interval(op: ir.Operation, first: int, extent: int) -> Interval:
    """Start and end of a slice, as PyTorch clamps them.

    Raises:
        NotConstant: they are computed, or the step is not 1.
    """
    start, end, step = (constant(op.operands[first + i]) for i in range(3))
    if step != 1:
        raise NotConstant
    low, high = (
        min(max(given + extent if given < 0 else given, 0), extent) if isinstance(given, int) else default
        for given, default in ((start, 0), (end, extent))
    )
    return low, max(low, high)


def _filled(value: ir.Value, filler: Filler) -> Content:
    shape = tuple(shape_of(value.type))
    return (Box((0,) * len(shape), shape, filler, (), (-1,) * len(shape)),)


def _overlaid(below: Content, above: Content, region: Sequence[Interval]) -> Content:
    """``below`` with ``above`` written over a region of it."""
    boxes: list[Box] = []
    for box in below:
        rest = [(at, at + size) for at, size in _spans(box)]
        if box.empty or box.cut(region) is None:
            boxes.append(box)
            continue
        # what is left of a box around a region: slabs in front of it and behind it, axis by axis
        for axis, (low, high) in enumerate(region):
            for slab in ((rest[axis][0], min(low, rest[axis][1])), (max(high, rest[axis][0]), rest[axis][1])):
                around = [*rest[:axis], slab, *rest[axis + 1 :]]
                if slab[0] < slab[1] and (part := box.cut(around)) is not None:
                    boxes.append(replace(part, at=tuple(first for first, _ in around)))
            rest[axis] = (max(low, rest[axis][0]), min(high, rest[axis][1]))
    for box in above:
        boxes.append(replace(box, at=tuple(at + low for at, (low, _) in zip(box.at, region, strict=True))))
    return tuple(boxes)


_RULES: dict[str, Callable[[Regions, ir.Operation], Content | None]] = {
    **dict.fromkeys(IDENTITIES, Regions._identity),
    **{
        f"torch.aten.{name}": rule
        for names, rule in (
            ("cat", Regions._cat),
            ("expand", Regions._expand),
            ("slice.Tensor", Regions._slice),
            ("select.int", Regions._select),
            ("index_select", Regions._index_select),
            ("index.Tensor", Regions._index),
            ("permute", Regions._permute),
            ("transpose.int t", Regions._transpose),
            ("view _unsafe_view reshape unsqueeze squeeze squeeze.dim squeeze.dims", Regions._view),
            ("slice_scatter", Regions._slice_scatter),
            ("select_scatter", Regions._select_scatter),
            ("index_copy", Regions._index_copy),
            ("index_put", Regions._index_put),
            ("constant_pad_nd", Regions._pad),
            ("zeros zeros_like new_zeros", Regions._zeros),
            ("full full_like new_full", Regions._full),
            ("empty.memory_format empty_like new_empty", Regions._empty),
            ("add.Tensor", Regions._add),
        )
        for name in names.split()
    },
}
