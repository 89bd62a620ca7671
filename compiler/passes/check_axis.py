"""kv-check-axis: nothing but attention may look along a cache, and nothing but attention along the prompt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch_mlir import ir

from ..analysis.aten import owner
from ..analysis.axes import Axes, Event, Follows
from ..analysis.functions import argument_attributes, body, functions
from .select_last import LENGTH


@dataclass(frozen=True)
class CheckAxis:
    """Refuses a program in which an op does to a cache's sequence axis what slots in any order cannot bear.

    Applies after ``kv-raise-attention``, which leaves nothing of attention itself. An op may carry the axis
    (elementwise, views, contractions over other axes); what reduces, cuts, orders or mixes it is refused by
    name and source line, and so is an op of no known kind. In prefill the query axis is held to the same,
    since a padded prompt's padding must not reach its real tokens. Changes nothing.

    Accepted::

        %k2 = torch.aten.permute %grown, %order
        %o = "kv.attention"(%q, %k2, %v) ...

    Refused::

        %mean = torch.aten.mean.dim %grown, %dims    // error: 'torch.aten.mean.dim' reduces the cache axis
    """

    name: ClassVar[str] = "kv-check-axis"

    def run(self, module: ir.Operation) -> None:
        """Checks the module."""
        for function in functions(module).values():
            roles = {entry.get("kv.role") for entry in argument_attributes(function)}
            if "cache" not in roles:
                continue
            length = [
                argument
                for argument, entry in zip(body(function).arguments, argument_attributes(function), strict=True)
                if entry.get("kv.role") == LENGTH
            ]
            found = [
                event
                for event in Axes(function).events
                if _matters(event) and not (length and _selects_by(event.operation, length[0]))
            ]
            if found:
                # where the axis goes says more than what met it on the way
                raise min(found, key=lambda event: event.what not in _MIXING).refusal()


_MIXING = ("reduces", "contracts over", "normalises over", "orders or shifts")


def _selects_by(op: ir.Operation, length: ir.Value) -> bool:
    """Whether an op takes the token that the prompt's length tells, as ``kv-select-last`` makes it."""
    if op.name != "torch.aten.index_select":
        return False
    value = op.operands[2]
    while (producer := owner(value)) is not None:
        value = producer.operands[0]
    return bool(value == length)


def _matters(event: Event) -> bool:
    return event.axis.follows is not Follows.ROW or event.what in _MIXING
