"""How a program takes a new token into a cache of fixed length, found by evaluating where each element comes from.

Between such a cache as it comes in and goes out stand only ops that move elements: concats, slices, rolls,
scatters, writes at an index, selections by a mask of one place. How they are spelled does not matter: the cache and
the new rows get a label per element, the ops are run by PyTorch at several positions, and the labels that come out
say what the ops do.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch_mlir import ir

from ..diagnostics import Refusal
from ..dialect.types import element_of, shape_of
from .aten import IDENTITIES, owner, tensor_operands
from .caches import Order
from .evaluate import Evaluator, NotEvaluable, Weights
from .functions import argument_attributes, body

if TYPE_CHECKING:
    import torch

_MOVING = """
    _unsafe_view cat constant_pad_nd copy expand flip gather index.Tensor index_copy index_put index_select narrow
    permute reshape roll scatter.src select.int select_scatter slice.Tensor slice_scatter squeeze squeeze.dim stack t
    transpose.int unsqueeze view where.self
"""
_MOVES = IDENTITIES | {f"torch.aten.{name}" for name in _MOVING.split()}
"""Ops whose result holds elements of their operands as they are."""

_COPIES = IDENTITIES | {"torch.aten.expand"}
"""Ops on the new rows alone that are looked through: each row is one, however often it was copied."""


@dataclass(frozen=True)
class Taken:
    """How one cache of a fixed length takes a new token of each row in.

    Attributes:
        grown: the value that holds past and new tokens, [B, .., C, ..]; what attention reads.
        rows: the value that holds the new tokens, each element once.
        shape: their shape in the cache's layout, [B, .., 1, ..].
        strides: of that shape in ``rows``, as PyTorch counts strides.
        axis: the cache's sequence axis.
        order: of the tokens in ``grown``.
    """

    grown: ir.Value
    rows: ir.Value
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    axis: int
    order: Order


def taken_in(name: str, cache: ir.Value, returned: ir.Value, function: ir.Operation, weights: Weights) -> Taken:
    """How ``returned`` is made of the argument ``cache``, of the same shape, and the new tokens.

    Raises:
        Refusal: another op than those that move elements stands between them, or they do something else than to take
            the new tokens in.
    """
    return _Reader(name, cache, returned, function, weights).read()


class _Reader:
    def __init__(
        self, name: str, cache: ir.Value, returned: ir.Value, function: ir.Operation, weights: Weights
    ) -> None:
        self._name = name
        self._cache = cache
        self._returned = returned
        self._weights = weights
        self._extents = shape_of(cache.type)
        self._places = [
            argument
            for argument, entry in zip(body(function).arguments, argument_attributes(function), strict=True)
            if entry.get("kv.role") == "positions"
        ]
        self._made_of_it = self._dependents(function)

    def read(self) -> Taken:
        if self._returned not in self._made_of_it:
            raise self._refusal(
                self._returned, f"is returned from {_named(self._returned)}, without its past tokens", _TAKE
            )
        chain = self._chain()
        rows = self._rows(chain)
        order, axis = self._order(rows)
        grown = self._before_the_cut(chain, rows, axis) if order is Order.SHIFTED else self._returned
        shape = tuple(1 if i == axis else extent for i, extent in enumerate(self._extents))
        return Taken(grown, rows, shape, self._strides(order, axis, grown, rows), axis, order)

    def _refusal(self, value: ir.Value, what: str, hint: str) -> Refusal:
        producer = owner(value)
        where = producer if producer is not None else value.owner.owner
        return Refusal(where, f"the cache '{self._name}' {what}", hint)

    # --- the ops between

    def _dependents(self, function: ir.Operation) -> set[ir.Value]:
        """The cache and every value that is made of it."""
        found = {self._cache}
        for view in body(function).operations:
            if any(v in found for v in view.operation.operands):
                found.update(view.operation.results)
        return found

    def _chain(self) -> list[ir.Operation]:
        """The ops that make the returned value of the cache, last first."""
        chain: dict[ir.Operation, None] = {}
        pending = [self._returned]
        while pending:
            value = pending.pop()
            op = owner(value)
            if op is None or op in chain:
                continue
            if op.name != "torch.prim.ListConstruct":
                if op.name not in _MOVES:
                    raise self._refusal(
                        value, f"is returned from '{op.name}', which does more than to move its tokens", _TAKE
                    )
                chain[op] = None
            pending += [v for v in op.operands if v in self._made_of_it]
        return list(chain)

    def _rows(self, chain: Sequence[ir.Operation]) -> ir.Value:
        """The one value among the operands of the chain that holds the new tokens."""
        evaluator = Evaluator(self._at([0] * self._extents[0]), self._weights)
        found: dict[ir.Value, ir.Operation] = {}
        for op in chain:
            for value in tensor_operands(op):
                if value in self._made_of_it:
                    continue
                try:
                    evaluator(value)
                except NotEvaluable:
                    while (producer := owner(value)) is not None and producer.name in _COPIES:
                        value = producer.operands[0]
                    found[value] = op
        for value, op in found.items():
            if element_of(value.type) != element_of(self._cache.type):
                raise Refusal(
                    op,
                    f"where the cache '{self._name}' takes the new tokens in depends on {_named(value)}, whose values "
                    "are not known",
                    "write them at the token's own position, which the program takes as an input",
                )
        if len(found) != 1:
            what = f"takes in {len(found)} values beside its past tokens" if found else "takes no new tokens in"
            raise self._refusal(self._returned, what, _TAKE)
        (rows,) = found
        return rows

    # --- labels

    def _at(self, positions: Sequence[int]) -> dict[ir.Value, torch.Tensor]:
        """The inputs that hold positions when each row stands at its own; they must agree on rows that share one."""
        import torch

        known: dict[ir.Value, torch.Tensor] = {}
        for place in self._places:
            shape = shape_of(place.type)
            at = torch.tensor(positions if shape[:1] == [len(positions)] else positions[:1])
            known[place] = at.view(-1, *[1] * (len(shape) - 1)).expand(shape) if shape else at[0]
        return known

    def _samples(self, length: int) -> Iterator[list[int]]:
        """Positions of the rows that stand for all: every one where there are few, else both ends and the middle."""
        if not self._places:
            yield [0] * self._extents[0]
            return
        few = range(length) if length <= 16 else sorted({0, 1, length // 2, length - 2, length - 1})
        for first in few:
            yield [first if self._shared else (first + row) % length for row in range(self._extents[0])]

    @property
    def _shared(self) -> bool:
        """Whether all rows are at one position."""
        return any(shape_of(place.type)[:1] != [self._extents[0]] for place in self._places)

    def _labels(self, shape: Sequence[int]) -> torch.Tensor:
        """A number per element, 0, 1, .., in a type that holds them all exactly."""
        import torch

        count = max(math.prod(shape), math.prod(self._extents))
        return torch.arange(math.prod(shape), dtype=torch.float32 if count < 1 << 24 else torch.float64).view(*shape)

    def _evaluated(self, value: ir.Value, rows: ir.Value, positions: Sequence[int]) -> torch.Tensor | None:
        """A value of the cache's labels 0, 1, .. and the rows' -1, -2, ..; None where it cannot be computed."""
        new = -1 - self._labels(shape_of(rows.type))
        known = {self._cache: self._labels(self._extents), rows: new, **self._at(positions)}
        try:
            return Evaluator(known, self._weights)(value)
        except NotEvaluable:
            return None

    # --- what the ops do

    def _order(self, rows: ir.Value) -> tuple[Order, int]:
        axes = [i for i, extent in enumerate(self._extents) if i > 0 and extent > 1]
        for order, axis in itertools.product((Order.SHIFTED, Order.INDEXED), axes):
            if self._holds(order, axis, self._returned, rows):
                return self._beyond(order, axis, rows), axis
        raise self._refusal(
            self._returned,
            f"keeps its length, and {_named(self._returned)} puts the new tokens of {_named(rows)}, "
            f"{shape_of(rows.type)}, neither behind the past ones nor at the index of each row's position",
            _TAKE,
        )

    def _beyond(self, order: Order, axis: int, rows: ir.Value) -> Order:
        """The order where positions go beyond the last index, if the program says what it does with them."""
        length = self._extents[axis]
        if order is not Order.INDEXED:
            return order
        late = [
            [t + row for row in range(self._extents[0])] if not self._shared else [t] * self._extents[0]
            for t in (length, length + 1, 2 * length - 1, 3 * length)
        ]
        for one in (Order.WRAPPED, Order.SLIDING):
            if all(self._takes(one, axis, self._returned, rows, positions) for positions in late):
                return one
        return order

    def _holds(self, order: Order, axis: int, value: ir.Value, rows: ir.Value) -> bool:
        """Whether the past tokens stand where they belong in a value, and the new one of each row everywhere else."""
        length = self._extents[axis]
        if math.prod(shape_of(rows.type)) * length != math.prod(self._extents):
            return False
        if order is Order.INDEXED and not self._places:
            return False
        return all(self._takes(order, axis, value, rows, positions) for positions in self._samples(length))

    def _takes(self, order: Order, axis: int, value: ir.Value, rows: ir.Value, positions: Sequence[int]) -> bool:
        """``_holds`` where each row stands at its own position."""
        import torch

        old, labels = self._labels(self._extents), self._evaluated(value, rows, positions)
        if labels is None:
            return False
        if order in (Order.INDEXED, Order.WRAPPED):
            fresh = torch.zeros(old.shape, dtype=torch.bool)
            for row, position in enumerate(positions):
                fresh[row].select(axis - 1, position % self._extents[axis]).fill_(True)
            return bool(torch.where(fresh, labels < 0, labels == old).all())
        kept = labels.shape[axis] - 1
        moved = old.narrow(axis, self._extents[axis] - kept, kept)
        return bool((labels.narrow(axis, 0, kept) == moved).all() & (labels.select(axis, kept) < 0).all())

    def _before_the_cut(self, chain: Sequence[ir.Operation], rows: ir.Value, axis: int) -> ir.Value:
        """What attention reads: past and new tokens before the oldest are cut off, else what is returned."""
        inside = {*chain, *(use.owner.operation for use in self._returned.uses if _returns(use.owner.operation))}
        longer = [extent + (i == axis) for i, extent in enumerate(self._extents)]
        for op in chain:
            value = op.results[0]
            read = not all(_within(use.owner.operation, inside) for use in value.uses)
            if read and shape_of(value.type) == longer and self._holds(Order.SHIFTED, axis, value, rows):
                return value
        return self._returned

    def _strides(self, order: Order, axis: int, grown: ir.Value, rows: ir.Value) -> tuple[int, ...]:
        import torch

        positions = next(self._samples(self._extents[axis]))
        labels = self._evaluated(grown, rows, positions)
        assert labels is not None
        last = labels.shape[axis] - 1
        at = positions if order.by_index else [last] * len(positions)
        taken = torch.stack([labels[row].narrow(axis - 1, place, 1) for row, place in enumerate(at)])
        strides = _strides_of(-1 - taken)
        if strides is None:
            raise self._refusal(
                grown,
                f"takes in {_named(rows)} with its elements in another order",
                "give the new rows the cache's own layout",
            )
        return strides


_TAKE = (
    "join each new token behind the past ones, as torch.cat([past[:, :, 1:], new], 2), or write it at its own "
    "position, which the program takes as an input"
)


def _returns(op: ir.Operation) -> bool:
    return str(op.name) == "func.return"


def _within(op: ir.Operation, chain: set[ir.Operation]) -> bool:
    if op.name == "torch.prim.ListConstruct":
        return all(use.owner.operation in chain for use in op.results[0].uses)
    return op in chain


def _strides_of(places: torch.Tensor) -> tuple[int, ...] | None:
    """The strides s with ``places[i, j, ..] == i * s0 + j * s1 + ..``; None where there are none."""
    import torch

    strides = []
    wanted = torch.zeros_like(places)
    for axis, extent in enumerate(places.shape):
        step = int(places.select(axis, 1).flatten()[0] - places.flatten()[0]) if extent > 1 else 0
        strides.append(step)
        wanted += step * torch.arange(extent, dtype=places.dtype).view([-1] + [1] * (places.ndim - axis - 1))
    return tuple(strides) if bool((wanted == places).all()) else None


def _named(value: ir.Value) -> str:
    producer = owner(value)
    return f"'{producer.name}'" if producer is not None else "an argument"
