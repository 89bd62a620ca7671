"""kv-raise-state: what is carried beside the caches, one value for each row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch_mlir import ir

from ..analysis.aten import owner
from ..analysis.axes import Axes, Follows
from ..analysis.functions import (
    Attributes,
    argument_attributes,
    body,
    functions,
    result_attributes,
    set_signature,
    terminator,
)
from ..diagnostics import Refusal
from ..dialect.types import element_of, shape_of, vtensor
from .batch_rows import BatchRows
from .dead_code import erase_dead
from .raise_append import ROW_AXIS
from .torch_builder import TorchBuilder

STATE = "state"
"""The role of an argument that is carried from step to step and is no cache."""

INITIAL = "kv.initial"
"""The attribute of a state's argument that names the weight that it starts with; zeros without it."""

INITIAL_AXIS = "kv.initial_axis"
"""The dimension of the rows in that weight, which stays as it is."""

NO_ROWS = "none"
"""``kv.row_axis`` of a state that is one value, whatever the rows."""


@dataclass(frozen=True)
class RaiseState:
    """Gives each state the form [B, ..], and proves that a row's next value is made of no other row.

    Applies to functions with arguments of role "state", whose next value is the result of the same name; it must have
    the argument's type. ``kv.initial`` may name the weight that it starts with. ``kv.row_axis`` says which of its
    dimensions is the rows' (the first, where it is not given). A state without one ("none") is what a program of one
    row carries: each row gets its own, and what is made of it is made per row. Refused are a next value of which it is
    not certain that it keeps the rows apart, and one of another type. Runs first, on the program as it was imported.

    Before (``kv.row_axis = "1"``)::

        func.func @decode(.., %memory: [3, B, D]) {
          %next = torch.aten.mul.Tensor %memory, %decay    // [3, B, D]
          return .., %next

    After::

        func.func @decode(.., %rows: [B, 3, D]) {
          %memory = torch.aten.permute %rows, [1, 0, 2]
          %next = torch.aten.mul.Tensor %memory, %decay
          %first = torch.aten.permute %next, [1, 0, 2]
          return .., %first

    See tests/lit/raise/raise_state.mlir.
    """

    name: ClassVar[str] = "kv-raise-state"

    def run(self, module: ir.Operation) -> None:
        """Rewrites the module.

        Raises:
            Refusal: the rows of a state cannot be told apart, or its next value is of another type.
        """
        for function in functions(module).values():
            if any(entry.get("kv.role") == STATE for entry in argument_attributes(function)):
                _Raising(function).run()


class _Raising:
    def __init__(self, function: ir.Operation) -> None:
        self._function = function
        self._entries = argument_attributes(function)
        self._results = [entry.get("kv.name") for entry in result_attributes(function)]
        self._returned = terminator(function)
        self._rows = Axes(function).row.size

    def run(self) -> None:
        alone: dict[str, ir.Value] = {}
        for index, entry in enumerate(self._entries):
            if entry.get("kv.role") != STATE:
                continue
            argument = body(self._function).arguments[index]
            self._check_type(argument, entry)
            axis = entry.pop(ROW_AXIS, "0")
            if INITIAL in entry:
                entry[INITIAL_AXIS] = axis
            if axis != NO_ROWS:
                self._move_rows(argument, entry, int(axis))
            elif self._rows == 1:
                self._add_rows(argument, entry)
            else:
                alone[entry["kv.name"]] = argument
        if alone:
            self._give_each_row_its_own(alone)
        set_signature(self._function, self._entries)
        if self._rows > 1:
            self._check_rows(alone)

    def _next(self, entry: Attributes) -> int:
        """Where a state's next value stands among the results."""
        if entry["kv.name"] not in self._results:
            raise Refusal(
                self._function, f"the state '{entry['kv.name']}' is not returned", "return what each state becomes"
            )
        return self._results.index(entry["kv.name"])

    def _check_type(self, argument: ir.Value, entry: Attributes) -> None:
        value = self._returned.operands[self._next(entry)]
        if value.type != argument.type:
            raise Refusal(
                owner(value) or self._function,
                f"the state '{entry['kv.name']}' of {shape_of(argument.type)} {element_of(argument.type)} becomes "
                f"{shape_of(value.type)} {element_of(value.type)}",
                "give a state one shape and type, whatever the number of past tokens",
            )

    # --- the form [B, ..]

    def _move_rows(self, argument: ir.Value, entry: Attributes, axis: int) -> None:
        if axis == 0:
            return
        shape = shape_of(argument.type)
        order = [axis, *(i for i in range(len(shape)) if i != axis)]
        back = [order.index(i) for i in range(len(shape))]
        self._reform(argument, entry, [shape[i] for i in order], back, order)

    def _add_rows(self, argument: ir.Value, entry: Attributes) -> None:
        """A program of one row: the value is that row's."""
        self._reform(argument, entry, [1, *shape_of(argument.type)], None, None)

    def _reform(
        self, argument: ir.Value, entry: Attributes, shape: list[int], back: list[int] | None, order: list[int] | None
    ) -> None:
        """Gives an argument and its result another shape: by a permutation, or by a view where there is none."""
        own, location = argument.type, self._function.location
        first = TorchBuilder(body(self._function).operations[0].operation, location)
        argument.set_type(vtensor(shape, element_of(own)))
        uses = [(use.owner.operation, use.operand_number) for use in argument.uses]
        inner = first.view(argument, shape_of(own)) if back is None else first.permute(argument, back)
        for user, operand in uses:
            user.operands[operand] = inner
        at = self._next(entry)
        value = self._returned.operands[at]
        producer = owner(value)
        last = TorchBuilder(self._returned, producer.location if producer is not None else location)
        self._returned.operands[at] = last.view(value, shape) if order is None else last.permute(value, order)

    def _give_each_row_its_own(self, states: dict[str, ir.Value]) -> None:
        """Puts values per row for states without rows, and for all that is made of them."""
        rows = BatchRows(
            self._function,
            Axes(self._function),
            "a state without rows, of which each row has its own",
            "give the state a dimension of the batch, or compile for one row",
        )
        block = body(self._function)
        for name, argument in states.items():
            shape = shape_of(argument.type)
            per_row = block.add_argument(vtensor([self._rows, *shape], element_of(argument.type)), argument.location)
            rows.seed(argument, per_row)
            entry = next(e for e in self._entries if e.get("kv.name") == name and e.get("kv.role") == STATE)
            self._entries.append(dict(entry))
        rows.run()
        for name in states:
            at = self._results.index(name)
            value = self._returned.operands[at]
            found = rows.per_row(value)
            if found is None:
                raise Refusal(
                    owner(value) or self._function,
                    f"the next value of the state '{name}', which has no dimension of the batch, is not made of the "
                    "state and of constants alone: it would be one value for all rows",
                    "give the state a dimension of the batch, or compile for one row",
                )
            self._returned.operands[at] = found
        erase_dead(self._function)
        for index in reversed(range(len(block.arguments))):
            if block.arguments[index] in states.values():
                block.erase_argument(index)
                del self._entries[index]

    # --- the rows apart

    def _check_rows(self, alone: dict[str, ir.Value]) -> None:
        """Nothing that a next value is made of does anything to the rows but carry them."""
        axes = Axes(self._function)
        for entry in self._entries:
            if entry.get("kv.role") != STATE or entry["kv.name"] in alone:
                continue
            value = self._returned.operands[self._next(entry)]
            lost = axes.lost(value, Follows.ROW)
            if lost is not None:
                raise lost.refusal()
            group = axes.of[value][0]
            if group == (axes.row,) or (group and all(axis.follows is Follows.COPY for axis in group)):
                continue
            raise Refusal(
                owner(value) or self._function,
                f"the first dimension of the state '{entry['kv.name']}' is that of the rows, and its next value has "
                "something else there",
                "keep the dimension of the batch where it is, and treat each row on its own",
            )
