"""Where the elements of an output come from, found by running the ops between it and an input on labels."""

from __future__ import annotations

from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch import Tensor
from torch.fx import Graph, Node

from .lengths import expression

_SYMBOL = 2
"""What a symbolic extent is taken for."""

_POSITION = 1
"""What every integer input holds."""

_NEW = -1.0
"""The label of whatever is no element of the input that is followed."""


class Labels:
    """The values of a graph when one input holds a label per element, 0, 1, 2, .., where it is of floating point.

    Other floating-point values are not computed: they are new wherever they come out. Integers are, since they tell
    the places that elements are moved to.
    """

    def __init__(self, graph: Graph, followed: Node, integers: int = _POSITION) -> None:
        self._followed = followed
        self._integers = integers
        self._values: dict[Node, Any] = {}
        self.made_of_it = {followed}
        for node in graph.nodes:
            if node.op == "call_function" and not self.made_of_it.isdisjoint(node.all_input_nodes):
                self.made_of_it.add(node)

    def __getitem__(self, node: Node) -> Any:
        """The value of a node.

        Raises:
            RuntimeError, IndexError, TypeError: one of the ops that it comes from does not take labels.
        """
        pending = [node]
        while pending:
            top = pending[-1]
            missing = [n for n in self._needs(top) if n not in self._values]
            if missing:
                pending += missing
                continue
            if top not in self._values:
                self._values[top] = self._compute(top)
            pending.pop()
        return self._values[node]

    def _is_source(self, node: Node) -> bool:
        value = node.meta.get("val")
        if node.op == "placeholder":
            return True
        return isinstance(value, Tensor) and value.is_floating_point() and node not in self.made_of_it

    def _needs(self, node: Node) -> list[Node]:
        return [] if self._is_source(node) and not _is_filled(node) else node.all_input_nodes

    def _compute(self, node: Node) -> Any:
        if self._is_source(node):
            value = node.meta["val"]
            if not isinstance(value, Tensor):
                return value
            shape = self._shape(node)
            if node is self._followed and value.is_floating_point():
                return torch.arange(_numel(shape), dtype=torch.float64).view(shape)
            if value.is_floating_point():
                return torch.full(shape, _NEW, dtype=torch.float64)
            return torch.full(shape, self._integers, dtype=value.dtype)
        return self._called(node)

    def _called(self, node: Node) -> Any:
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), self._values.__getitem__)
        return node.target(*args, **kwargs)  # type: ignore[operator]

    def _shape(self, node: Node) -> list[int]:
        """The shape of a source: as long as the numbers say that it is made of, where it is made of numbers alone."""
        if _is_filled(node):
            return list(self._called(node).shape)
        extents = [expression(extent) for extent in node.meta["val"].shape]
        return [int(extent.subs(_twos(extent))) for extent in extents]


def kept_axis(labels: Labels, before: Node, after: Node) -> tuple[int, bool] | None:
    """The axis along which a value of an input's shape is that input with one new token, and whether it is shifted.

    A shifted one has lost its oldest entry and has the new one last; the other has the new one in the place of
    another. None where the value is neither.
    """
    try:
        old, new = labels[before], labels[after]
    except (RuntimeError, IndexError, TypeError):
        return None
    for axis in range(1, old.ndim):
        length = old.shape[axis]
        if length < 2:
            continue
        fresh = (new < 0).movedim(axis, 0).flatten(1)
        moved = torch.equal(new.narrow(axis, 0, length - 1), old.narrow(axis, 1, length - 1))
        if moved and fresh[-1].all():
            return axis, True
        written = fresh.all(1)
        kept = ((new == old).movedim(axis, 0).flatten(1).all(1)) | written
        if written.sum() == 1 and kept.all():
            return axis, False
    return None


def _is_filled(node: Node) -> bool:
    """Whether a value is made of numbers alone, as that of ``zeros`` and ``full``."""
    return node.op == "call_function" and not any(isinstance(n.meta.get("val"), Tensor) for n in node.all_input_nodes)


def _twos(expr: sympy.Expr) -> dict[Any, int]:
    return dict.fromkeys(expr.free_symbols, _SYMBOL)


def _numel(shape: list[int]) -> int:
    return torch.Size(shape).numel()
