"""Keys and values that are linear images of something cached: what is expanded, by which weight, into which features.

A value [.., T, D] along a cache is read as pieces of its features. A piece is an expansion, the product of something
along the cache with a weight that is free of its axis, or it is a value as it stands. Only what moves or repeats
elements may come behind the product, so that each feature of the piece is a column of the weight.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch_mlir import ir

from ..dialect.types import shape_of
from .aten import Kind, kind_of, made_of, owner
from .attention import is_passage
from .axes import Axes, Axis, Dims, Follows, Group, axes_in
from .regions import Box, Filler, Regions, whole


class NotLinear(Exception):
    """A value is no linear image of anything; ``where`` is what stands in the way and ``why`` is for a message."""

    def __init__(self, where: ir.Operation | ir.Value, why: str) -> None:
        super().__init__(why)
        self.where = where
        self.why = why


@dataclass(frozen=True)
class Origins:
    """Of which axis another is a half, as ``axes`` knows, or a part: its ``slices``, with where they begin."""

    axes: Axes
    slices: Mapping[Axis, tuple[Axis, int]] = field(default_factory=dict)

    def line(self, axis: Axis) -> Iterator[Axis]:
        """The axis and all that it comes from, itself first."""
        found: Axis | None = axis
        while found is not None:
            yield found
            found = self.parent(found)

    def parent(self, axis: Axis) -> Axis | None:
        """What an axis is a half or a part of."""
        if axis in self.slices:
            return self.slices[axis][0]
        return self.axes.outer_parts.get(axis, self.axes.inner_parts.get(axis))


@dataclass(frozen=True)
class Expansion:
    """``operation`` multiplies a source with ``weight``, of ``dims``, over the weight's axes ``contracted``.

    The weight's other axes are the image's own: heads that it tells apart, and features.
    """

    operation: ir.Operation
    weight: ir.Value
    dims: Dims
    contracted: Group


@dataclass(frozen=True)
class Piece:
    """Features of a value [B, H, T, D], next to one another: those of ``source``, or an ``expansion`` of them.

    Attributes:
        source: a value along the cache, of ``dims``.
        inner: the source's axes that an expansion sums over, or, with none, that are the features.
        heads: H, outermost first; ``own`` are those that the source has.
        features: the piece's axes of D, outermost first.
        chosen: axes of extent 1 that say which part of one of the weight's axes is taken.
        origins: where these axes come from.
    """

    source: ir.Value
    dims: Dims
    inner: Group
    heads: Group
    own: frozenset[Axis]
    features: Group
    chosen: Group
    expansion: Expansion | None
    origins: Origins

    @property
    def weight_heads(self) -> Group:
        """Those of ``heads`` that the expansion's weight tells apart."""
        held = axes_in(self.expansion.dims) if self.expansion is not None else set()
        return tuple(axis for axis in self.heads if held & {*self.origins.line(axis)})


def pieces_of(value: ir.Value, axes: Axes, regions: Regions) -> list[Piece]:
    """The pieces of keys or values [B, H, T, D], in the order of their features.

    Raises:
        NotLinear: it is put together in a way that is not followed.
    """
    dims = axes.of[value]
    if [axis.follows for axis in dims[2]] != [Follows.KEY]:
        raise NotLinear(value, "there is no axis of the cache to follow")
    return _Walk(axes, regions).pieces(value, _Place(dims[1], dims[3], (), Origins(axes)))


def expands(value: ir.Value) -> bool:
    """Whether there is a product between a value and the growth of the caches that it is made of."""
    return any(kind_of(op) is Kind.CONTRACTION for op in made_of(value, lambda op: op.name == "kv.append"))


def serves_only(expansion: ir.Operation, attention: ir.Operation) -> bool:
    """Whether nothing but one attention uses what comes of an op."""
    pending, seen = [*expansion.results], set()
    while pending:
        for use in pending.pop().uses:
            user = use.owner.operation
            if user == attention or user in seen:
                continue
            if not user.results or user.name == "kv.attention":
                return False
            seen.add(user)
            pending += user.results
    return True


@dataclass(frozen=True)
class _Place:
    """The axes of a value that are heads, features and chosen parts."""

    heads: Group
    features: Group
    chosen: Group
    origins: Origins

    def all(self) -> Group:
        return (*self.heads, *self.features, *self.chosen)


class _Walk:
    def __init__(self, axes: Axes, regions: Regions) -> None:
        self._axes = axes
        self._regions = regions

    def pieces(self, value: ir.Value, place: _Place) -> list[Piece]:
        current = value
        while (op := owner(current)) is not None:
            if kind_of(op) is Kind.CONTRACTION:
                return [self._image(op, place)]
            if is_passage(op):
                current = op.operands[0]
                continue
            content = [box for box in self._regions.of(current) if not box.empty]
            if content == [*whole(current)]:
                break
            content.sort(key=lambda box: box.at)
            return [piece for box in content for piece in self._part(op, current, box, place, len(content) == 1)]
        return [self._as_it_stands(value, place)]

    def _part(self, op: ir.Operation, value: ir.Value, box: Box, place: _Place, alone: bool) -> list[Piece]:
        """The pieces in a box of a value."""
        if isinstance(box.source, Filler):
            raise NotLinear(op, f"'{op.name}' puts {box.source.value} among the features")
        mine, theirs = self._axes.of[value], self._axes.of[box.source]
        extents, given = shape_of(value.type), shape_of(box.source.type)
        slices = dict(place.origins.slices)
        heads, features, chosen = list(place.heads), list(place.features), list(place.chosen)
        for i, dim in enumerate(box.dims):
            old, new = mine[i], theirs[dim] if dim >= 0 else ()
            if box.size[i] != extents[i] and (alone or old != place.features):
                raise NotLinear(op, f"'{op.name}' joins something else than features")
            if dim >= 0 and box.size[i] != given[dim]:
                if len(new) != 1 or new[0].tracked:
                    raise NotLinear(op, f"'{op.name}' takes a part of several axes at once, or of the cache")
                part = (Axis(Follows.PLAIN, box.size[i]),)
                slices[part[0]] = (new[0], box.start[dim])
                new = part if box.size[i] > 1 else ()
                chosen += part if box.size[i] == 1 else ()
            if old == new or not old:
                continue
            if box.size[i] != extents[i]:
                features = list(new)
            elif len(old) == len(new) == 1:
                # the same axis under another name
                slices[old[0]] = (new[0], 0)
            elif len(old) == 1:
                for group in (heads, features):
                    if old[0] in group:
                        at = group.index(old[0])
                        group[at : at + 1] = new
            else:
                raise NotLinear(op, f"'{op.name}' joins axes that are divided differently")
        for dim, extent in enumerate(given):
            if dim not in box.dims and extent > 1:
                if len(theirs[dim]) != 1 or theirs[dim][0].tracked:
                    raise NotLinear(op, f"'{op.name}' takes a part of several axes at once, or of the cache")
                one = Axis(Follows.PLAIN, 1)
                slices[one] = (theirs[dim][0], box.start[dim])
                chosen.append(one)
        origins = replace(place.origins, slices=slices)
        return self.pieces(box.source, _Place(tuple(heads), tuple(features), tuple(chosen), origins))

    def _as_it_stands(self, value: ir.Value, place: _Place) -> Piece:
        base = self._without_copies(value)
        own = self._own(base, place)
        dims = self._axes.of[base]
        piece = Piece(base, dims, place.features, place.heads, own, place.features, place.chosen, None, place.origins)
        return self._checked(piece, owner(base))

    def _image(self, op: ir.Operation, place: _Place) -> Piece:
        """The expansion that a product is.

        Raises:
            NotLinear: the weight is not free of the cache, or the image has features that are not the weight's.
        """
        if op.name.endswith("addmm"):
            raise NotLinear(op, f"'{op.name}' adds a bias to what it expands")
        sides = list(op.operands)
        along = [any(a.follows is Follows.KEY for a in axes_in(self._axes.of[v])) for v in sides]
        if sum(along) != 1:
            raise NotLinear(op, f"'{op.name}' multiplies {sum(along)} values along the cache, not one")
        at = along.index(True)
        source, weight = sides[at], sides[1 - at]
        theirs, ours = self._axes.of[source], self._axes.of[weight]
        if any(axis.tracked for axis in axes_in(ours)):
            raise NotLinear(op, f"'{op.name}' multiplies with a value of the tokens")
        summed, contracted = (theirs[-1], ours[-2]) if at == 0 else (theirs[-2], ours[-1])
        made = ours[-1] if at == 0 else ours[-2]
        batch, paired = (theirs[0], ours[0]) if len(theirs) == 3 else ((), ())
        if [a.size for a in batch] != [a.size for a in paired]:
            raise NotLinear(op, f"'{op.name}' has its batch divided differently on both sides")
        base, plain = self._without_copies(source), self._without_copies(weight)
        dims, weight_dims = self._axes.of[base], self._axes.of[plain]
        held = axes_in(weight_dims)
        names = {b: a for a, b in zip(batch, paired, strict=True) if b in held}
        if held != {*names, *contracted, *made} or not {*summed} <= axes_in(dims):
            raise NotLinear(op, f"'{op.name}' multiplies with a weight that is repeated in a way that is not followed")
        if any(a.tracked for a in names.values()):
            raise NotLinear(op, f"'{op.name}' has a weight for each row")
        lines = {axis: {*place.origins.line(axis)} for axis in place.all()}
        mine = {*made, *names.values()}
        if any(not lines[axis] & {*made} for axis in place.features) or any(not lines[a] & mine for a in place.chosen):
            raise NotLinear(op, f"'{op.name}' leaves features to the attention that are not its weight's columns")
        renamed = tuple(tuple(names.get(axis, axis) for axis in group) for group in weight_dims)
        expansion = Expansion(op, plain, renamed, contracted)
        own = self._own(base, place)
        piece = Piece(base, dims, summed, place.heads, own, place.features, place.chosen, expansion, place.origins)
        return self._checked(piece, op)

    def _own(self, base: ir.Value, place: _Place) -> frozenset[Axis]:
        """The heads that a source has."""
        held = axes_in(self._axes.of[base])
        return frozenset(axis for axis in place.heads if held & {*place.origins.line(axis)})

    def _checked(self, piece: Piece, op: ir.Operation | None) -> Piece:
        """A piece whose every axis is accounted for.

        Raises:
            NotLinear: one is not: what the walk went through did more to it than is followed.
        """
        at = piece.source if op is None else op
        copies = [axis for axis in piece.heads if axis not in piece.own and axis not in piece.weight_heads]
        roots = [[*piece.origins.line(axis)][-1] for axis in copies]
        if any(root.follows is not Follows.COPY for root in roots):
            raise NotLinear(at, "its heads are taken from others in a way that is not followed")
        rows = [axis for axis in axes_in(piece.dims) if axis.follows in (Follows.ROW, Follows.KEY)]
        kept = [*rows, *(axis for axis in piece.heads if axis in piece.own), *piece.inner]
        kept += piece.chosen if piece.expansion is None else ()
        whole = refined(piece.dims, kept, piece.origins)
        if piece.expansion is not None:
            wanted = [*piece.weight_heads, *piece.features, *piece.chosen, *piece.expansion.contracted]
            whole = whole and refined(piece.expansion.dims, wanted, piece.origins)
        if not whole or sum(axis.follows is Follows.KEY for axis in rows) != 1:
            raise NotLinear(at, "its axes are divided in a way that is not followed")
        return piece

    def _without_copies(self, value: ir.Value) -> ir.Value:
        """What a value is a view of, without the axes along which it is repeated."""
        needed = {axis for axis in axes_in(self._axes.of[value]) if axis.follows is not Follows.COPY}
        found = current = value
        while (op := owner(current)) is not None and is_passage(op):
            current = op.operands[0]
            if needed <= axes_in(self._axes.of[current]):
                found = current
        return found


def divided(wanted: Sequence[Axis], axes: Sequence[Axis], origins: Origins) -> dict[Axis, Group]:
    """How to get from some axes to ``wanted`` ones that come from them: each axis on the way, and what it becomes.

    An axis becomes its two halves, outer first, or a part of it.
    """
    children: dict[Axis, list[Axis]] = {}
    for axis in wanted:
        line = list(itertools.takewhile(lambda a: a not in axes, origins.line(axis)))
        for child in line:
            parent = origins.parent(child)
            if parent is not None and child not in children.setdefault(parent, []):
                children[parent].append(child)
    outer = origins.axes.outer_parts
    return {axis: tuple(sorted(found, key=lambda a: a not in outer)) for axis, found in children.items()}


def refined(dims: Dims, wanted: Sequence[Axis], origins: Origins) -> bool:
    """Whether axes can be divided into just the ``wanted`` ones."""
    steps = divided(wanted, [*axes_in(dims)], origins)
    for axis, parts in steps.items():
        sizes = [part.size for part in parts]
        if len(parts) == 1:
            if parts[0] not in origins.slices:
                return False
        elif any(part in origins.slices for part in parts) or math.prod(sizes) != axis.size:
            return False
    pending, found = [*axes_in(dims)], set()
    while pending:
        axis = pending.pop()
        if axis in wanted:
            found.add(axis)
        elif axis in steps:
            pending += steps[axis]
        else:
            return False
    return found == {*wanted}
