"""Gives a value that was the same for all rows of a batch a value per row, and all that follows from it."""

from __future__ import annotations

from collections.abc import Sequence

from torch_mlir import ir

from ..analysis.aten import (
    Kind,
    axis_operand,
    integers_operand,
    kind_of,
    rank_of,
    tensor_operands,
)
from ..analysis.axes import Axes, Group
from ..analysis.functions import body
from ..diagnostics import Refusal
from ..dialect.types import element_of, is_tensor, shape_of, vtensor
from .torch_builder import TorchBuilder

_LIST = "torch.prim.ListConstruct"


class BatchRows:
    """Propagates values of shape [B, *s] that stand for values of shape s through a function.

    Where such a value meets one whose first dimension is the rows, the two row dimensions become one and the
    result is an ordinary value again. ``axes`` are those of the function before anything was replaced.
    """

    def __init__(
        self,
        function: ir.Operation,
        axes: Axes,
        what: str = "a value that depends on the query's position, which differs between rows",
        hint: str = "let the model take the positions as an input of shape [rows, tokens], or compile for one row",
    ) -> None:
        """``what`` and ``hint`` are for refusals: what a seed is, and what to do about an op without a rule."""
        self._function = function
        self._axes = axes
        self._what = what
        self._hint = hint
        self._rows = axes.row.size
        self._batched: dict[ir.Value, ir.Value] = {}

    def seed(self, value: ir.Value, per_row: ir.Value) -> None:
        """Puts ``per_row`` [B, *s] for ``value`` [*s]; for one row it replaces it at once."""
        self._batched[value] = per_row

    def run(self) -> None:
        """Rewrites the ops that a seed reaches.

        Raises:
            Refusal: an op has no rule for a value per row.
        """
        for op in [view.operation for view in body(self._function).operations]:
            operands = tensor_operands(op)
            is_returned = op.name == "func.return" and self._rows > 1
            if op.name != _LIST and not is_returned and any(v in self._batched for v in operands):
                self._visit(op, operands)

    def per_row(self, value: ir.Value) -> ir.Value | None:
        """The [B, *s] that stands for a value of shape s; None where no seed reached it."""
        return self._batched.get(value)

    def _visit(self, op: ir.Operation, operands: Sequence[ir.Value]) -> None:
        builder = TorchBuilder(op)
        kind = kind_of(op)
        name = op.name.removeprefix("torch.aten.")
        if self._rows == 1:
            self._substitute(op, builder)
        elif kind is Kind.POINTWISE:
            self._pointwise(op, builder)
        elif kind is Kind.VIEW and name in ("expand", "repeat"):
            self._broadcast(op, name, builder)
        elif kind is Kind.VIEW:
            self._view(op, name, builder)
        elif name == "cat":
            self._cat(op, operands, builder)
        elif name == "embedding" and operands[1] in self._batched and operands[0] not in self._batched:
            index = self._batched[operands[1]]
            self._result(op, builder, [operands[0], index, *list(op.operands)[2:]])
        elif name in ("slice.Tensor", "select.int"):
            rank = rank_of(operands[0])
            at = builder.integer(axis_operand(op, 1, rank) + 1)
            self._result(op, builder, [self._batched[operands[0]], at, *list(op.operands)[2:]])
        elif name == "mm" and operands[1] not in self._batched:
            self._product(op, operands, builder)
        elif name == "index.Tensor":
            self._index(op, operands, builder)
        elif name == "index_select" and operands[0] not in self._batched:
            self._index_select(op, builder)
        else:
            raise Refusal(
                op,
                f"'{op.name}' takes {self._what}",
                self._hint,
            )

    def _result(self, op: ir.Operation, builder: TorchBuilder, operands: Sequence[ir.Value]) -> None:
        """The op on values per row, with a result per row."""
        result = op.results[0]
        type_ = vtensor([self._rows, *shape_of(result.type)], element_of(result.type))
        self._batched[result] = builder.op(op.name, operands, type_)

    def _replace(self, op: ir.Operation, builder: TorchBuilder, operands: Sequence[ir.Value]) -> None:
        """The op on ordinary values: the rows have met the row dimension."""
        result = op.results[0]
        result.replace_all_uses_with(builder.op(op.name, operands, result.type))

    def _substitute(self, op: ir.Operation, builder: TorchBuilder) -> None:
        for i, operand in enumerate(list(op.operands)):
            if operand in self._batched:
                op.operands[i] = builder.view(self._batched[operand], shape_of(operand.type))
            elif not is_tensor(operand.type) and any(v in self._batched for v in _listed(operand)):
                values = [
                    builder.view(self._batched[v], shape_of(v.type)) if v in self._batched else v
                    for v in _listed(operand)
                ]
                op.operands[i] = builder.op(_LIST, values, operand.type)

    def _aligned(self, value: ir.Value, rank: int) -> list[int]:
        shape = shape_of(value.type)
        return [1] * (rank - len(shape)) + shape

    def _pointwise(self, op: ir.Operation, builder: TorchBuilder) -> None:
        rank = rank_of(op.results[0])
        operands = list(op.operands)
        meets_rows = any(
            operand not in self._batched
            and is_tensor(operand.type)
            and rank_of(operand) == rank > 0
            and self._axes.of[operand][0] == (self._axes.row,)
            for operand in operands
        )
        for i, operand in enumerate(operands):
            if operand not in self._batched:
                continue
            aligned = self._aligned(operand, rank)
            if meets_rows and aligned[0] != 1:
                raise Refusal(
                    op,
                    f"'{op.name}' aligns a dimension of extent {aligned[0]} with the rows",
                    "let the model take the positions as an input of shape [rows, tokens]",
                )
            shape = [self._rows, *(aligned[1:] if meets_rows else aligned)]
            operands[i] = builder.view(self._batched[operand], shape)
        if meets_rows:
            self._replace(op, builder, operands)
        else:
            self._result(op, builder, operands)

    def _broadcast(self, op: ir.Operation, name: str, builder: TorchBuilder) -> None:
        """An expand, or a repeat; where it makes the rows' dimension, that of the value is it."""
        source, result = op.operands[0], op.results[0]
        shape = shape_of(result.type)
        aligned = self._aligned(source, len(shape))
        to_rows = bool(shape) and shape[0] == self._rows and aligned[0] == 1
        have = [self._rows, *(aligned[1:] if to_rows else aligned)]
        wanted = shape if to_rows else [self._rows, *shape]
        if name == "repeat":
            wanted = [extent // own for extent, own in zip(wanted, have, strict=True)]
        operands = [builder.view(self._batched[source], have), builder.integers(wanted), *list(op.operands)[2:]]
        if not to_rows:
            self._result(op, builder, operands)
            return
        self._require_rows(result, self._axes.of[result][0])
        self._replace(op, builder, operands)

    def _require_rows(self, value: ir.Value, broadcast: Group) -> None:
        """A dimension that was broadcast to as many entries as there are rows must be used as the rows."""
        for use in value.uses:
            user = use.owner.operation
            leading = [self._axes.of[r][:1] for r in user.results if is_tensor(r.type)]
            if leading and all(dims == ((self._axes.row,),) for dims in leading):
                continue
            if user.name != _LIST and (not leading or any(dims != (broadcast,) for dims in leading)):
                raise Refusal(
                    user,
                    f"'{user.name}' uses a position that is broadcast to {self._rows} entries, which may not be the "
                    "rows",
                    "let the model take the positions as an input of shape [rows, tokens]",
                )
            for result in user.results:
                self._require_rows(result, broadcast)

    def _view(self, op: ir.Operation, name: str, builder: TorchBuilder) -> None:
        source, result = op.operands[0], op.results[0]
        rank = rank_of(source)
        if name in ("permute", "transpose.int", "t"):
            order = list(range(rank))
            if name == "permute":
                order = [i % rank for i in integers_operand(op, 1)]
            else:
                a, b = (axis_operand(op, 1, rank), axis_operand(op, 2, rank)) if name != "t" else (0, rank - 1)
                order[a], order[b] = b, a
            self._batched[result] = builder.permute(self._batched[source], [0, *(i + 1 for i in order)])
        else:
            self._batched[result] = builder.view(self._batched[source], [self._rows, *shape_of(result.type)])

    def _repeated(self, value: ir.Value, builder: TorchBuilder) -> ir.Value:
        """A value per row, repeated where it is the same for all."""
        if value in self._batched:
            return self._batched[value]
        shape = [self._rows, *shape_of(value.type)]
        return builder.op(
            "torch.aten.expand",
            [value, builder.integers(shape), builder.boolean(False)],
            vtensor(shape, element_of(value.type)),
        )

    def _cat(self, op: ir.Operation, operands: Sequence[ir.Value], builder: TorchBuilder) -> None:
        at = builder.integer(axis_operand(op, 1, rank_of(op.results[0])) + 1)
        self._result(op, builder, [builder.tensors([self._repeated(v, builder) for v in operands]), at])

    def _product(self, op: ir.Operation, operands: Sequence[ir.Value], builder: TorchBuilder) -> None:
        rows, inner = shape_of(operands[0].type)
        columns = shape_of(operands[1].type)[1]
        flat = builder.view(self._batched[operands[0]], [self._rows * rows, inner])
        type_ = vtensor([self._rows * rows, columns], element_of(op.results[0].type))
        product = builder.op(op.name, [flat, operands[1]], type_)
        self._batched[op.results[0]] = builder.view(product, [self._rows, rows, columns])

    def _index_select(self, op: ir.Operation, builder: TorchBuilder) -> None:
        """All rows' entries at once: [B * N] of them, and the rows in front."""
        source, result = op.operands[0], op.results[0]
        at, shape = axis_operand(op, 1, rank_of(source)), shape_of(result.type)
        index = builder.view(self._batched[op.operands[2]], [self._rows * shape[at]])
        together = vtensor([self._rows * e if i == at else e for i, e in enumerate(shape)], element_of(result.type))
        taken = builder.op(op.name, [source, op.operands[1], index], together)
        apart = builder.view(taken, [*shape[:at], self._rows, *shape[at:]])
        self._batched[result] = builder.permute(apart, [at, *(i for i in range(len(shape) + 1) if i != at)])

    def _index(self, op: ir.Operation, operands: Sequence[ir.Value], builder: TorchBuilder) -> None:
        if len(operands) != 2 or len(_listed(op.operands[1])) != 1 or operands[0] in self._batched:
            raise Refusal(
                op,
                f"'{op.name}' indexes by the query's position in several dimensions",
                "index a position table in its first dimension only",
            )
        index = builder.op(_LIST, [self._batched[operands[1]]], ir.Type.parse("!torch.list<optional<vtensor>>"))
        self._result(op, builder, [operands[0], index])


def _listed(value: ir.Value) -> list[ir.Value]:
    """The members of a list value."""
    producer = value.owner
    if isinstance(producer, ir.Block) or producer.operation.name != _LIST:
        return []
    return list(producer.operation.operands)
