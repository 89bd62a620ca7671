"""kv-raise-longest: the largest position of a call, of each row alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch_mlir import ir

from ..analysis.aten import owner
from ..analysis.attention import is_passage
from ..analysis.caches import past_length, query_length
from ..analysis.functions import argument_attributes, body, functions, result_attributes, set_signature
from ..diagnostics import Refusal
from ..dialect.types import element_of
from .dead_code import erase_dead
from .select_last import LENGTH
from .torch_builder import TorchBuilder


@dataclass(frozen=True)
class RaiseLongest:
    """Replaces the maximum over all positions that the program is given by that of each row.

    A model that looks at how long its sequences have become (to take other rotations beyond a length) takes the longest
    of the batch. Each row is a sequence of its own, and is treated as it would be in a batch of one row: in decode the
    maximum is the row's position, one more input of positions, a scalar, which ``kv-rebuild-positions`` gives each row;
    in prefill the position of the last real token. In extend it is refused: decoding the tokens one at a time would
    give another maximum at each. Relies on ``kv-select-last``, which gives prefill its length.

    Before::

        %longest = torch.aten.max %positions      // [B, 1] -> []

    After, in decode and in prefill::

        %longest                                  // an argument with kv.role = "positions"
        %longest = torch.aten.add.Scalar %length, %int-1
    """

    name: ClassVar[str] = "kv-raise-longest"

    def run(self, module: ir.Operation) -> None:
        """Rewrites the module."""
        for function in functions(module).values():
            found = [op for op in (view.operation for view in body(function).operations) if _is_longest(op, function)]
            for op in found:
                if query_length(function) == 1:
                    longest = _argument(function, op)
                elif past_length(function):
                    raise Refusal(
                        op,
                        f"'{op.name}' takes the largest position of several tokens behind others, which have one each",
                        "compile with --extend 0: tokens are then taken through decode",
                    )
                else:
                    builder = TorchBuilder(op)
                    last = builder.add_integer(_role(function, LENGTH)[0], -1)
                    longest = builder.cast(last, element_of(op.results[0].type))
                op.results[0].replace_all_uses_with(longest)
            if found:
                erase_dead(function)


def _role(function: ir.Operation, role: str) -> list[ir.Value]:
    pairs = zip(body(function).arguments, argument_attributes(function), strict=True)
    return [argument for argument, entry in pairs if entry.get("kv.role") == role]


def _is_longest(op: ir.Operation, function: ir.Operation) -> bool:
    if op.name != "torch.aten.max":
        return False
    value = op.operands[0]
    while (producer := owner(value)) is not None and is_passage(producer):
        value = producer.operands[0]
    return value in _role(function, "positions")


def _argument(function: ir.Operation, op: ir.Operation) -> ir.Value:
    """A new input for the position of a row's one token."""
    entries = argument_attributes(function)
    made = body(function).add_argument(op.results[0].type, op.location)
    name = f"longest_{len(entries)}"
    set_signature(function, [*entries, {"kv.name": name, "kv.role": "positions"}], result_attributes(function))
    return made
