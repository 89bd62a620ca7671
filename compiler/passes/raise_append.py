"""kv-raise-append: the growth of a cache, however it is spelled."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from torch_mlir import ir

from ..analysis.aten import owner, tensor_operands
from ..analysis.axes import Axes
from ..analysis.functions import (
    Attributes,
    argument_attributes,
    body,
    functions,
    result_attributes,
    set_signature,
    terminator,
)
from ..analysis.regions import Box, Content, Filler, Interval, Regions, arranged, restricted, same
from ..diagnostics import Refusal
from ..dialect.kv import AppendOp, index_attribute
from ..dialect.types import element_of, shape_of, vtensor
from .dead_code import erase_dead
from .torch_builder import TorchBuilder

ROW_AXIS = "kv.row_axis"
"""The attribute of a cache whose rows are not its first dimension."""


@dataclass(frozen=True)
class RaiseAppend:
    """Turns the growth of a returned cache into ``kv.append``, one for each part that is read by itself.

    Applies to each function with arguments of role "cache". Relies on the frontend's names: the result of a
    cache's name is that cache, grown; ``kv.row_axis`` says which of its dimensions is the rows' (the first, where it
    is not given); where several have the extent of a batch, it is the one along which the new tokens have their rows.
    The grown cache must hold the past where it was and the new tokens' values behind it; whether it
    was made by a concat, a pad and a sum or by writing into a longer tensor does not matter, nor how the values that
    are read were cut out of it (``compiler/analysis/regions.py``). Where reads divide a dimension, as those of a tensor
    that stacks layers, or keys and values, each part becomes a cache of its own, named as one would index the input
    (``past[0,1]``), with its rows first. Runs before any canonicalisation, which folds a concat onto an empty past.
    Refuses a cache that grows in another way, and a read that misses the new tokens.

    Before::

        %list = torch.prim.ListConstruct %past, %k
        %grown = torch.aten.cat %list, %int2
        return ..., %grown

    After::

        %grown = "kv.append"(%past, %k) {axis = 2 : i64}
        return ..., %grown

    See tests/lit/raise/raise_append.mlir and tests/lit/raise/raise_append_stacked.mlir.
    """

    name: ClassVar[str] = "kv-raise-append"

    def run(self, module: ir.Operation) -> None:
        """Rewrites the module."""
        for function in functions(module).values():
            if any(entry.get("kv.role") == "cache" for entry in argument_attributes(function)):
                _Raising(function).run()


@dataclass(frozen=True)
class _Cache:
    """A cache as the program has it: its argument, what is returned, and the dimensions of its rows and tokens."""

    name: str
    argument: ir.Value
    grown: ir.Value
    rows: int
    axis: int

    @property
    def past(self) -> int:
        return shape_of(self.argument.type)[self.axis]

    @property
    def total(self) -> int:
        return shape_of(self.grown.type)[self.axis]


@dataclass(frozen=True)
class _Read:
    """A value that holds a cache, or a region of it, grown: ``order`` has the cache's dimension of each of its own."""

    value: ir.Value
    cache: _Cache
    region: tuple[Interval, ...]
    order: tuple[int, ...]


@dataclass(frozen=True)
class _Part:
    """A region of a cache that becomes a cache of its own: ``order`` has the dimensions that it keeps."""

    name: str
    region: tuple[Interval, ...]
    order: tuple[int, ...]


class _Raising:
    def __init__(self, function: ir.Operation) -> None:
        erase_dead(function)
        self._function = function
        self._regions = Regions()
        self._entries = argument_attributes(function)
        self._returned = result_attributes(function)
        self._caches = [self._with_rows(cache) for cache in self._find()]
        self._touched = self._follow()

    def run(self) -> None:
        for cache in self._caches:
            self._check_growth(cache)
        reads, fresh = self._reads()
        for value in fresh:
            content = self._regions.of(value)
            value.replace_all_uses_with(self._materialise(content, value.type, self._place_of(value)))
        results: dict[str, list[tuple[str, ir.Value]]] = {}
        for cache in self._caches:
            own = [read for read in reads if read.cache is cache]
            results[cache.name] = [(part.name, self._append(cache, part, own)) for part in _parts(cache, own)]
        self._sign(results)
        erase_dead(self._function)
        self._drop_arguments()

    # --- what there is

    def _find(self) -> list[_Cache]:
        returned = {
            entry["kv.name"]: value
            for value, entry in zip(terminator(self._function).operands, self._returned, strict=True)
            if "kv.name" in entry
        }
        found = []
        for argument, entry in zip(body(self._function).arguments, self._entries, strict=True):
            if entry.get("kv.role") != "cache":
                continue
            name = entry["kv.name"]
            if name not in returned:
                raise Refusal(
                    self._function,
                    f"the cache '{name}' is not returned",
                    "return each cache, grown by the new tokens' keys or values",
                )
            rows = int(entry.get(ROW_AXIS, "0"))
            found.append(_Cache(name, argument, returned[name], rows, _grown_axis(name, argument, returned[name])))
        for cache in found:
            if cache.axis == cache.rows:
                raise Refusal(
                    owner(cache.grown) or self._function,
                    f"the cache '{cache.name}' grows along its first axis",
                    "keep the rows of the batch first",
                )
        return found

    def _with_rows(self, cache: _Cache) -> _Cache:
        """The cache with the dimension of its rows as the new tokens show it, where several have the rows' extent."""
        shape = shape_of(cache.argument.type)
        alike = [i for i, extent in enumerate(shape) if i != cache.axis and extent == shape[cache.rows]]
        if shape[cache.rows] == 1 or len(alike) == 1:
            return cache
        axes = Axes(self._function)
        new = [(cache.past if i == cache.axis else 0, extent) for i, extent in enumerate(shape_of(cache.grown.type))]
        sources = [box for box in restricted(self._regions.of(cache.grown), new) if not box.empty]
        shown = [i for i in alike if all(_has_rows(box, i, axes) for box in sources)]
        if len(shown) != 1:
            raise Refusal(
                owner(cache.grown) or self._function,
                f"the cache '{cache.name}' has {shape[cache.rows]} entries along its axes "
                f"{', '.join(map(str, alike))}, as many as there are rows, and which are the rows is not seen",
                "export the program for another number of rows",
            )
        return replace(cache, rows=shown[0])

    def _follow(self) -> dict[ir.Value, None]:
        """The caches and all that only moves their elements, in the order in which they are made."""
        touched: dict[ir.Value, None] = {cache.argument: None for cache in self._caches}
        for op in self._operations():
            if any(v in touched for v in tensor_operands(op)) and self._regions.moves(op):
                touched[op.results[0]] = None
        return touched

    def _operations(self) -> list[ir.Operation]:
        return [view.operation for view in body(self._function).operations]

    # --- growth

    def _check_growth(self, cache: _Cache) -> None:
        shape = shape_of(cache.grown.type)
        content = self._regions.of(cache.grown)
        old = [(0, cache.past if i == cache.axis else extent) for i, extent in enumerate(shape)]
        new = [(cache.past if i == cache.axis else 0, extent) for i, extent in enumerate(shape)]
        if not same(restricted(content, old), self._regions.of(cache.argument)):
            self._refuse_growth(cache, restricted(content, old))
        for box in restricted(content, new):
            if not box.empty and (isinstance(box.source, Filler) or box.source in self._touched):
                what = box.source.value if isinstance(box.source, Filler) else "the past"
                raise Refusal(
                    owner(cache.grown) or self._function,
                    f"the cache '{cache.name}' is returned with {what} where the new tokens belong",
                    "put the new tokens' keys or values behind the past",
                )

    def _refuse_growth(self, cache: _Cache, content: Content) -> None:
        """Names the op that changes the past, or the one that puts it elsewhere."""
        changing = [
            producer
            for box in content
            if isinstance(box.source, ir.Value)
            and (producer := owner(box.source)) is not None
            and any(v in self._touched for v in tensor_operands(producer))
        ]
        culprit = changing[0] if changing else self._put_together(cache.grown)
        what = f"'{culprit.name}'" if culprit is not None else "an argument"
        raise Refusal(
            culprit or self._function,
            f"the cache '{cache.name}' is returned from {what}, which is not the concat of the past and the new tokens",
            "grow it as torch.cat([past, new], dim)",
        )

    def _put_together(self, value: ir.Value) -> ir.Operation | None:
        """The op that put a value together, in front of those that only change its form."""
        producer = owner(value)
        while producer is not None and self._regions.moves(producer):
            parts = tensor_operands(producer)
            if len(parts) != 1 or owner(parts[0]) is None or _count(parts[0]) != _count(producer.results[0]):
                break
            producer = owner(parts[0])
        return producer

    # --- reads

    def _reads(self) -> tuple[list[_Read], list[ir.Value]]:
        """The values of caches that something computes with, and those that turn out to hold new tokens alone.

        Both in the order in which they are made.
        """
        ours = {cache.name for cache in self._caches}
        reads: dict[ir.Value, _Read] = {}
        fresh: set[ir.Value] = set()
        by_argument = {cache.argument: cache for cache in self._caches}
        returned = terminator(self._function)
        for op in self._operations():
            if op.results and op.results[0] in self._touched:
                continue
            is_return = op == returned
            for index, value in enumerate(op.operands if is_return else tensor_operands(op)):
                if value not in self._touched or (is_return and self._returned[index].get("kv.name") in ours):
                    continue
                if op.name == "torch.prim.ListConstruct":  # judged where the list is used
                    continue
                sources = dict.fromkeys(box.source for box in self._regions.of(value))
                found = [by_argument[source] for source in sources if source in by_argument]
                if not found:
                    fresh.add(value)
                elif value not in reads:
                    reads[value] = self._read(value, found, op)
        return [reads[value] for value in self._touched if value in reads], [v for v in self._touched if v in fresh]

    def _read(self, value: ir.Value, found: Sequence[_Cache], user: ir.Operation) -> _Read:
        maker = self._put_together(value)
        where = maker or user
        if len(found) > 1:
            raise Refusal(
                where,
                f"'{user.name}' reads the caches '{found[0].name}' and '{found[1].name}' as one value",
                "read each cache by itself",
            )
        (cache,) = found
        content = self._regions.of(value)
        boxes = [box for box in content if box.source == cache.argument]
        region = _hull(boxes)
        region[cache.axis] = (0, cache.total)
        order = boxes[0].dims
        shape = [1 if d < 0 else region[d][1] - region[d][0] for d in order]
        # a dimension of the cache that the value lacks has one index in it
        fits = shape == shape_of(value.type) and all(
            d in order or high - low == 1 for d, (low, high) in enumerate(region)
        )
        expected = arranged(restricted(self._regions.of(cache.grown), region), order)
        if not fits or not same(expected, content):
            what = f"the cache '{cache.name}'"
            what = what if maker is None else f"what '{maker.name}' makes of {what}"
            raise Refusal(
                where,
                f"'{user.name}' reads {what}, which is not the past with the new tokens behind it",
                "compute with the grown cache that is returned, or with a part of it that leaves out no token",
            )
        return _Read(value, cache, tuple(region), order)

    # --- rewriting

    def _append(self, cache: _Cache, part: _Part, reads: Sequence[_Read]) -> ir.Value:
        """Makes a part's append, puts it in the place of what is read of it, and gives the grown part."""
        own = [read for read in reads if _meets(read.region, part.region)]
        first = own[0].value if own else None
        before = terminator(self._function) if first is None else self._place_of(first)
        location = (owner(first or cache.grown) or self._function).location
        grown = arranged(restricted(self._regions.of(cache.grown), part.region), part.order)
        axis = part.order.index(cache.axis)
        extents = [part.region[d][1] - part.region[d][0] for d in part.order]
        element = element_of(cache.argument.type)
        past = [cache.past if i == axis else extent for i, extent in enumerate(extents)]
        argument = cache.argument
        if past != shape_of(argument.type) or list(part.order) != list(range(len(past))):
            argument = body(self._function).add_argument(vtensor(past, element), self._function.location)
        fresh = [(cache.past if i == axis else 0, extent) for i, extent in enumerate(extents)]
        shape = [high - low for low, high in fresh]
        new = self._materialise(restricted(grown, fresh), vtensor(shape, element), before)
        append = AppendOp(
            argument, new, index_attribute(axis), vtensor(extents, element), loc=location, ip=ir.InsertionPoint(before)
        )
        for each in own:
            cut = self._cut_out(append.grown, part, each, TorchBuilder(before, location))
            each.value.replace_all_uses_with(cut)
        return append.grown

    def _cut_out(self, grown: ir.Value, part: _Part, read: _Read, builder: TorchBuilder) -> ir.Value:
        """What a read takes of a grown part, in the read's own form."""
        for i, d in enumerate(part.order):
            low = part.region[d][0]
            grown = _sliced(builder, grown, i, (read.region[d][0] - low, read.region[d][1] - low))
        mapped = [part.order.index(d) for d in read.order if d in part.order]
        rest = [i for i in range(len(part.order)) if i not in mapped]
        return builder.view(builder.permute(grown, [*rest, *mapped]), shape_of(read.value.type))

    def _materialise(self, content: Content, type_: ir.Type, before: ir.Operation) -> ir.Value:
        """A value of a content: one that the program has already, or one put together before an op."""
        content = tuple(box for box in content if not box.empty)
        shape = shape_of(type_)
        for value in self._regions.seen():
            known = value.type == type_ and value not in self._touched and self._precedes(value, before)
            if known and same(self._regions.of(value), content):
                return value
        builder = TorchBuilder(before)
        if len(content) == 1:
            return self._from_box(content[0], shape, builder, before)
        for axis, extent in enumerate(shape):
            cuts = [
                at
                for at in sorted({box.at[axis] for box in content})
                if not any(box.at[axis] < at < box.at[axis] + box.size[axis] for box in content)
            ]
            if len(cuts) > 1:
                parts = []
                for low, high in itertools.pairwise([*cuts, extent]):
                    region = [(low, high) if i == axis else (0, d) for i, d in enumerate(shape)]
                    own = vtensor([high - low for low, high in region], element_of(type_))
                    parts.append(self._materialise(restricted(content, region), own, before))
                return builder.op("torch.aten.cat", [builder.tensors(parts), builder.integer(axis)], type_)
        raise Refusal(before, "the new tokens of a cache are put together in no simple way", "make them by one concat")

    def _from_box(self, box: Box, shape: list[int], builder: TorchBuilder, before: ir.Operation) -> ir.Value:
        value = box.source
        if isinstance(value, Filler) or not self._precedes(value, before):
            what = value.value if isinstance(value, Filler) else "values that are made after the cache is read"
            raise Refusal(before, f"a cache grows by {what}", "let the new tokens' keys or values grow the cache")
        for d, interval in enumerate(box.extents()):
            value = _sliced(builder, value, d, interval)
        mapped = [d for d in box.dims if d >= 0]
        rest = [d for d in range(len(box.start)) if d not in mapped]
        return builder.view(builder.permute(value, [*rest, *mapped]), shape)

    def _place_of(self, value: ir.Value) -> ir.Operation:
        """The op before which a value's replacement is made."""
        return owner(value) or body(self._function).operations[0].operation

    def _precedes(self, value: ir.Value, op: ir.Operation) -> bool:
        producer = owner(value)
        return producer is None or producer.is_before_in_block(op)

    def _sign(self, results: dict[str, list[tuple[str, ir.Value]]]) -> None:
        """Returns the parts in the place of each cache, and names arguments and results."""
        returned = terminator(self._function)
        values: list[ir.Value] = []
        names: list[Attributes] = []
        for value, entry in zip(returned.operands, self._returned, strict=True):
            parts = results.get(entry.get("kv.name", ""))
            values += [value] if parts is None else [grown for _, grown in parts]
            names += [entry] if parts is None else [{"kv.name": name} for name, _ in parts]
        ir.Operation.create(returned.name, operands=values, loc=returned.location, ip=ir.InsertionPoint(returned))
        returned.erase()
        self._entries = [{key: text for key, text in entry.items() if key != ROW_AXIS} for entry in self._entries]
        own = {
            grown.owner.operands[0]: {"kv.name": name, "kv.role": "cache"}
            for parts in results.values()
            for name, grown in parts
        }
        extra = list(body(self._function).arguments)[len(self._entries) :]
        self._entries += [own[argument] for argument in extra]
        set_signature(self._function, self._entries, names)

    def _drop_arguments(self) -> None:
        """Erases the caches that parts have taken the place of."""
        kept = {
            op.operands[0] for view in body(self._function).operations if (op := view.operation).name == "kv.append"
        }
        block = body(self._function)
        for index in reversed(range(len(block.arguments))):
            if self._entries[index].get("kv.role") == "cache" and block.arguments[index] not in kept:
                block.erase_argument(index)
                del self._entries[index]
        set_signature(self._function, self._entries)


def _grown_axis(name: str, before: ir.Value, after: ir.Value) -> int:
    """The one dimension along which a returned cache is longer."""
    old, new = shape_of(before.type), shape_of(after.type)
    differing = [i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b]
    if len(old) != len(new) or len(differing) != 1 or new[differing[0]] < old[differing[0]]:
        raise Refusal(
            owner(after) or before.owner.owner,
            f"the cache '{name}' of shape {old} is returned with shape {new}, which is not longer along one axis",
            "return it grown by the new tokens' keys or values",
        )
    return differing[0]


def _count(value: ir.Value) -> int:
    return math.prod(shape_of(value.type))


def _hull(boxes: Sequence[Box]) -> list[Interval]:
    """The smallest region of their source that holds some boxes."""
    extents = [box.extents() for box in boxes]
    return [(min(low for low, _ in along), max(high for _, high in along)) for along in zip(*extents, strict=True)]


def _meets(left: Sequence[Interval], right: Sequence[Interval]) -> bool:
    return all(a < d and c < b for (a, b), (c, d) in zip(left, right, strict=True))


def _parts(cache: _Cache, reads: Sequence[_Read]) -> list[_Part]:
    """The regions of a cache that are read by themselves, all of them together the whole cache."""
    shape = shape_of(cache.grown.type)
    divisions: list[list[Interval]] = []
    for d, extent in enumerate(shape):
        found = sorted({read.region[d] for read in reads})
        ends = [0, *(high for _, high in found)]
        divides = d != cache.rows and len(found) > 1 and [low for low, _ in found] == ends[:-1] and ends[-1] == extent
        divisions.append(found if divides else [(0, extent)])
    single = [all(high - low == 1 for low, high in division) for division in divisions]
    dropped = {d for d, division in enumerate(divisions) if single[d] and (len(division) > 1 or d < cache.rows)}
    order = [cache.rows, *(d for d in range(len(shape)) if d != cache.rows and d not in dropped)]
    divided = [d for d, division in enumerate(divisions) if len(division) > 1]
    parts = []
    for region in itertools.product(*divisions):
        index = [_index(region[d], single[d]) if d in divided else ":" for d in range(len(shape))]
        name = f"{cache.name}[{','.join(index[: divided[-1] + 1])}]" if divided else cache.name
        parts.append(_Part(name, region, tuple(order)))
    return parts


def _index(interval: Interval, single: bool) -> str:
    return str(interval[0]) if single else f"{interval[0]}:{interval[1]}"


def _sliced(builder: TorchBuilder, value: ir.Value, dim: int, interval: Interval) -> ir.Value:
    """An interval of a dimension; the value itself where that is all of it."""
    shape = shape_of(value.type)
    low, high = interval
    if (low, high) == (0, shape[dim]):
        return value
    cut = vtensor([high - low if i == dim else extent for i, extent in enumerate(shape)], element_of(value.type))
    operands = [value, *(builder.integer(n) for n in (dim, low, high, 1))]
    return builder.op("torch.aten.slice.Tensor", operands, cut)


def _has_rows(box: Box, at: int, axes: Axes) -> bool:
    """Whether a dimension of a value runs, in a part of it, along the rows of the tokens."""
    dim = box.dims[at]
    return dim >= 0 and isinstance(box.source, ir.Value) and axes.row in axes.of[box.source][dim]
