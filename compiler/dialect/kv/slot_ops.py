"""The ops on positions: which slot a token has, which token a slot, and what may be seen."""

from typing import Any

from torch_mlir import ir
from torch_mlir.dialects import ext

from ..rules import fail, require
from ..types import element_of, shape_of
from .base import Kv, check_policy, check_rank0, check_tensors, check_vector, integer


class SlotPositionsOp(Kv.Operation, name="slot_positions", traits=[ext.Pure]):
    """The position of the token that stands in each slot once the row's own token, at ``positions``, stands in its.

    positions [B], selected [B, H, K] (optional) -> [B, H, S + R + K] i64, H = 1 without ``selected``. The token of a
    slot below S is that of the slot's number; of ring slot S + r the last one not after ``t`` that goes there, by
    ``kv.slots``; the rest are ``selected``. What it says of a slot that ``kv.visible`` hides has no meaning.
    See tests/lit/dialect/slot_positions.mlir.
    """

    positions: ext.Operand[Any]
    selected: ext.Operand[Any] | None
    sink: ir.IntegerAttr
    ring: ir.IntegerAttr
    tokens: ext.Result[Any]

    @staticmethod
    def verify_invariants(op: Any) -> bool:
        if not (check_tensors(op) and check_policy(op) and check_vector(op, "positions", op.operands[0])):
            return False
        (rows,) = shape_of(op.operands[0].type)
        heads, topk = 1, 0
        if len(op.operands) > 1:
            selected = shape_of(op.operands[1].type)
            if len(selected) != 3 or selected[0] != rows:
                return fail(op, f"selected's shape must be [B, H, K] of {rows} rows, got {selected}")
            heads, topk = selected[1:]
        slots = integer(op, "sink") + integer(op, "ring") + topk
        return require(op, "the result's shape", shape_of(op.results[0].type), "[B, H, C]", [rows, heads, slots])


class SlotsOp(Kv.Operation, name="slots", traits=[ext.Pure]):
    """The slot of each row's token: ``t`` if t < S, else ``S + (t - S) mod R``. positions [B] -> slots [B].

    Always in [0, S + R). Source: SnapStream 3.2, Listing 5 (Eq. 4's offset is a misprint).
    See tests/lit/dialect/slots.mlir.
    """

    positions: ext.Operand[Any]
    sink: ir.IntegerAttr
    ring: ir.IntegerAttr
    slots: ext.Result[Any]

    @staticmethod
    def verify_invariants(op: Any) -> bool:
        return (
            check_tensors(op)
            and check_policy(op)
            and check_vector(op, "positions", op.operands[0])
            and require(
                op,
                "the result's type",
                str(op.results[0].type),
                "that of the positions",
                str(op.operands[0].type),
            )
        )


class VisibleOp(Kv.Operation, name="visible", traits=[ext.Pure]):
    """Which slots a row's query may see once its own token stands in the cache.

    positions [B], selected_count [B] -> visible [B, C] i1: slots ``0 .. min(t + 1, S + R) - 1`` and
    ``S + R .. S + R + n - 1``. Source: SnapStream 3.2; design section 3.
    See tests/lit/dialect/visible.mlir.
    """

    positions: ext.Operand[Any]
    selected_count: ext.Operand[Any]
    sink: ir.IntegerAttr
    ring: ir.IntegerAttr
    selected: ir.IntegerAttr
    visible: ext.Result[Any]

    @staticmethod
    def verify_invariants(op: Any) -> bool:
        if not (check_tensors(op) and check_policy(op) and check_vector(op, "positions", op.operands[0])):
            return False
        batch = shape_of(op.operands[0].type)
        slots = integer(op, "sink") + integer(op, "ring") + integer(op, "selected")
        return (
            require(op, "selected_count's shape", shape_of(op.operands[1].type), "that of positions", batch)
            and require(op, "the result's shape", shape_of(op.results[0].type), "[B, S + R + K]", [*batch, slots])
            and require(op, "the result's element type", element_of(op.results[0].type), "i1", "i1")
        )


class VisibleExtendOp(Kv.Operation, name="visible_extend", traits=[ext.Pure]):
    """What each of N new tokens of a row may see of the row's C old slots and the new tokens behind them.

    start [], length [], selected_count [1] -> visible [1, N, C + N] i1, C = S + R + K. Query i stands at position
    ``t = start + i``. Of the slots it sees those below S that are filled, those of the ring that hold a position
    after ``t - R``, and ``S + R .. S + R + n - 1``; of the new tokens, those not after it whose position lies below S
    or after ``t - R``, and none from ``length`` on, which is padding. The same as one at a time through
    ``kv.visible``, before any of them is written. Source: design section 3, extend.
    See tests/lit/dialect/visible_extend.mlir.
    """

    start: ext.Operand[Any]
    length: ext.Operand[Any]
    selected_count: ext.Operand[Any]
    sink: ir.IntegerAttr
    ring: ir.IntegerAttr
    selected: ir.IntegerAttr
    visible: ext.Result[Any]

    @staticmethod
    def verify_invariants(op: Any) -> bool:
        if not (check_tensors(op) and check_policy(op)):
            return False
        result = shape_of(op.results[0].type)
        slots = integer(op, "sink") + integer(op, "ring") + integer(op, "selected")
        if len(result) != 3:
            return fail(op, f"the result's rank must be 3, [1, N, C + N]: got {len(result)}")
        return (
            check_rank0(op, "start", op.operands[0])
            and check_rank0(op, "length", op.operands[1])
            and require(op, "selected_count's shape", shape_of(op.operands[2].type), "[1], of one row", [1])
            and require(op, "the result's shape", result, "[1, N, S + R + K + N]", [1, result[1], slots + result[1]])
            and require(op, "the result's element type", element_of(op.results[0].type), "i1", "i1")
        )


class SelectedCountOp(Kv.Operation, name="selected_count", traits=[ext.Pure]):
    """n = clip(length - S - R, 0, K). length [] i64 -> [1] i64. See tests/lit/dialect/selected_count.mlir."""

    length: ext.Operand[Any]
    sink: ir.IntegerAttr
    ring: ir.IntegerAttr
    selected: ir.IntegerAttr
    count: ext.Result[Any]

    @staticmethod
    def verify_invariants(op: Any) -> bool:
        return (
            check_tensors(op)
            and check_policy(op)
            and check_rank0(op, "length", op.operands[0])
            and require(op, "the result's shape", shape_of(op.results[0].type), "[1]", [1])
        )
