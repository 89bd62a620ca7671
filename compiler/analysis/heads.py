"""Heads that a program makes of a cache by sums over what it holds: whether it is seen which of it each reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from torch_mlir import ir

from ..diagnostics import Refusal
from .aten import Kind, kind_of
from .axes import Axes, Axis, Follows, axes_in
from .functions import body

if TYPE_CHECKING:
    import torch

_HINT = "repeat heads by repeat_interleave, repeat, expand or an index that does the same"


class Heads:
    """The axes that attention in a function tells apart, and what the caches have of them."""

    def __init__(self, function: ir.Operation, axes: Axes) -> None:
        self._axes = axes
        self._own: set[Axis] = set()
        apart: set[Axis] = set()
        for view in body(function).operations:
            op = view.operation
            if op.name == "kv.append":
                self._own |= {axis for axis in axes_in(axes.of[op.results[0]]) if not axis.tracked}
            elif op.name == "torch.aten.bmm":
                for operand in op.operands:
                    if any(axis.follows is Follows.KEY for axis in axes_in(axes.of[operand])):
                        apart |= {axis for axis in axes.of[operand][0] if axis.follows is Follows.PLAIN}
        self._made = {line for axis in apart if not self._is_own(axis) for line in self._line(axis)}

    def check_reduction(self, op: ir.Operation) -> None:
        """Of a sum over what a cache holds, by which heads are made of it, nothing is seen.

        Raises:
            Refusal: the op is one.
        """
        dims = self._axes.of[op.operands[0]]
        summed = {axis for i in self._axes.reduced_dimensions(op) for axis in dims[i]}
        if any(self._is_own(axis) for axis in summed) and axes_in(dims) & self._made:
            raise Refusal(
                op, f"'{op.name}' makes heads of what a cache holds, and which of it each reads is not seen", _HINT
            )

    def check_product(self, op: ir.Operation, entries: torch.Tensor) -> None:
        """A matrix ``entries`` [made, summed] whose zeros keep heads apart hides which of them share a KV head.

        Raises:
            Refusal: the op, a product with it, makes heads.
        """
        if axes_in(self._axes.of[op.results[0]]) & self._made and not _connected(entries != 0):
            raise Refusal(
                op,
                f"'{op.name}' makes heads by a matrix with zeros, so that each reads only a part of what a cache holds",
                _HINT,
            )

    def _is_own(self, axis: Axis) -> bool:
        return not self._own.isdisjoint(self._line(axis))

    def _line(self, axis: Axis) -> Iterator[Axis]:
        """The axis and all that it is a part of."""
        found: Axis | None = axis
        while found is not None:
            yield found
            found = self._axes.outer_parts.get(found, self._axes.inner_parts.get(found))


def reduces(op: ir.Operation, axes: Axes) -> bool:
    """Whether an op reduces a value with a cache axis."""
    return kind_of(op) is Kind.REDUCTION and any(a.follows is Follows.KEY for a in axes_in(axes.of[op.operands[0]]))


def _connected(reads: torch.Tensor) -> bool:
    """Whether all that is read belongs together, by what is read at once; ``reads`` [made, summed] bool."""
    # a weight as it was trained has no zero
    if bool(reads[0].all()):
        return True
    reached, before = reads[0], -1
    while int(reached.sum()) != before:
        before = int(reached.sum())
        reached = reads[(reads & reached).any(1)].any(0)
    return before == int(reads.any(0).sum())
