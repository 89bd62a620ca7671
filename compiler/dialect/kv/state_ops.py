"""The ops on caches and other states: how they grow, and how they are written and read."""

from typing import Any

from torch_mlir import ir
from torch_mlir.dialects import ext

from ..rules import fail, require
from ..types import element_of, shape_of
from .base import Kv, check_axis, check_batch_vector, check_policy, check_rank0, check_tensors, integer, string


class ParameterOp(Kv.Operation, name="parameter", traits=[ext.Pure]):
    """A weight, named as in the model's state; its bytes are never in the IR.

    ``%w = "kv.parameter"() {parameter = "model.norm.weight"} : () -> !torch.vtensor<[64],f32>``

    See tests/lit/dialect/parameter.mlir.
    """

    parameter: ir.StringAttr
    value: ext.Result[Any]

    @staticmethod
    def verify_invariants(op: Any) -> bool:
        return check_tensors(op) and (string(op, "parameter") != "" or fail(op, 'parameter must name a weight, got ""'))


class AppendOp(Kv.Operation, name="append", traits=[ext.Pure]):
    """The growth of a cache: ``rows`` joined behind ``cache`` along ``axis``, as the model's concat did.

    cache [B, .., P, ..], rows [B, .., Q, ..] -> grown [B, .., P + Q, ..].
    See tests/lit/dialect/append.mlir.
    """

    cache: ext.Operand[Any]
    rows: ext.Operand[Any]
    axis: ir.IntegerAttr
    grown: ext.Result[Any]

    @staticmethod
    def verify_invariants(op: Any) -> bool:
        if not (check_tensors(op) and check_axis(op, op.operands[0])):
            return False
        axis = integer(op, "axis")
        cache, rows = (shape_of(v.type) for v in op.operands)
        if len(rows) != len(cache):
            return fail(op, f"rows must have the cache's rank: expected {len(cache)}, got {len(rows)}")
        wanted = [c + r if i == axis else c for i, (c, r) in enumerate(zip(cache, rows, strict=True))]
        return require(op, "the result's shape", shape_of(op.results[0].type), "cache and rows joined", wanted)


class RingUpdateOp(Kv.Operation, name="ring_update", traits=[ext.Pure]):
    """One new token per row written at its slot; a row that is not active keeps what stands there.

    cache [B, .., C, ..], rows [B, .., 1, ..], slots [B] i64, active [B] i1 -> cache's type.
    See tests/lit/dialect/ring_update.mlir.
    """

    cache: ext.Operand[Any]
    rows: ext.Operand[Any]
    slots: ext.Operand[Any]
    active: ext.Operand[Any]
    axis: ir.IntegerAttr
    updated: ext.Result[Any]

    @staticmethod
    def verify_invariants(op: Any) -> bool:
        if not (check_tensors(op) and check_axis(op, op.operands[0])):
            return False
        cache = shape_of(op.operands[0].type)
        wanted = [1 if i == integer(op, "axis") else d for i, d in enumerate(cache)]
        return (
            require(op, "the result's type", str(op.results[0].type), "the cache's", str(op.operands[0].type))
            and require(op, "rows' shape", shape_of(op.operands[1].type), "one token of the cache", wanted)
            and check_batch_vector(op, "slots", op.operands[2], cache[0])
            and check_batch_vector(op, "active", op.operands[3], cache[0])
        )


class ConcatUpdateOp(Kv.Operation, name="concat_update", traits=[ext.Pure]):
    """One new token per row, the recent tokens in the order of time: the paper's baseline, for comparing cost.

    cache [B, .., C, ..], rows [B, .., 1, ..], positions [B] i64, active [B] i1 -> cache's type.

    A row with a free slot (t < S + R) has the token appended at slot t; a full one is joined anew of its sinks, the
    recent tokens but the oldest, the new token, and the selected ones. Both are computed for every row, and one is
    taken. A row that is not active keeps what stands there. The same tokens are in the cache as after
    ``kv.ring_update`` at the slots of ``kv.slots``, in another order.
    Source: SnapStream 3.2, Listing 2 (which slices the sinks' values from the keys, a slip).
    See tests/lit/dialect/concat_update.mlir.
    """

    cache: ext.Operand[Any]
    rows: ext.Operand[Any]
    positions: ext.Operand[Any]
    active: ext.Operand[Any]
    sink: ir.IntegerAttr
    ring: ir.IntegerAttr
    axis: ir.IntegerAttr
    updated: ext.Result[Any]

    @staticmethod
    def verify_invariants(op: Any) -> bool:
        if not (check_tensors(op) and check_policy(op) and check_axis(op, op.operands[0])):
            return False
        cache, axis = shape_of(op.operands[0].type), integer(op, "axis")
        fixed = integer(op, "sink") + integer(op, "ring")
        if cache[axis] < fixed:
            return fail(op, f"the cache must have at least S + R = {fixed} slots, got {cache[axis]}")
        wanted = [1 if i == axis else d for i, d in enumerate(cache)]
        return (
            require(op, "the result's type", str(op.results[0].type), "the cache's", str(op.operands[0].type))
            and require(op, "rows' shape", shape_of(op.operands[1].type), "one token of the cache", wanted)
            and check_batch_vector(op, "positions", op.operands[2], cache[0])
            and check_batch_vector(op, "active", op.operands[3], cache[0])
        )


class RingExtendOp(Kv.Operation, name="ring_extend", traits=[ext.Pure]):
    """N new tokens of one row written at their slots, where they stay: below S, and the last R of the others.

    cache [B, .., C, ..], rows [1, .., N, ..], row [] i64, start [] i64, length [] i64 -> cache's type. Token j stands
    at position ``start + j`` and goes to its slot (``kv.slots``) if ``j < length`` and ``start + j < S`` or
    ``j >= length - R``; so no two go to one slot, and padding goes nowhere. Every other slot keeps what it holds.
    See tests/lit/dialect/ring_extend.mlir.
    """

    cache: ext.Operand[Any]
    rows: ext.Operand[Any]
    row: ext.Operand[Any]
    start: ext.Operand[Any]
    length: ext.Operand[Any]
    sink: ir.IntegerAttr
    ring: ir.IntegerAttr
    axis: ir.IntegerAttr
    updated: ext.Result[Any]

    @staticmethod
    def verify_invariants(op: Any) -> bool:
        if not (check_tensors(op) and check_policy(op) and check_axis(op, op.operands[0])):
            return False
        axis = integer(op, "axis")
        cache, rows = (shape_of(o.type) for o in list(op.operands)[:2])
        if len(rows) != len(cache):
            return fail(op, f"rows must have the cache's rank: expected {len(cache)}, got {len(rows)}")
        wanted = [rows[i] if i == axis else d for i, d in enumerate([1, *cache[1:]])]
        if cache[axis] < integer(op, "sink") + integer(op, "ring"):
            return fail(
                op,
                f"sink {integer(op, 'sink')} + ring {integer(op, 'ring')} must lie in the cache's {cache[axis]} slots",
            )
        return (
            require(op, "the result's type", str(op.results[0].type), "the cache's", str(op.operands[0].type))
            and require(op, "rows' shape", rows, "N tokens of one row of the cache", wanted)
            and all(
                check_rank0(op, what, o)
                for what, o in zip(("row", "start", "length"), list(op.operands)[2:], strict=True)
            )
        )


class ScatterOp(Kv.Operation, name="scatter", traits=[ext.Pure]):
    """Rows of a tensor replaced at computed places: ``target``, then the result in the same storage.

    updates [U, ..], places [U, P] i32, mask [U] i1, target [d1, .., dP, ..] -> target's type. Row u is written at
    ``target[places[u, 0], .., places[u, P - 1]]`` where ``mask[u]``; elsewhere the target keeps its bytes, unread.
    The places written must lie in the target and differ from one another.
    See tests/lit/dialect/scatter.mlir.
    """

    updates: ext.Operand[Any]
    places: ext.Operand[Any]
    mask: ext.Operand[Any]
    target: ext.Operand[Any]
    updated: ext.Result[Any]

    @staticmethod
    def verify_invariants(op: Any) -> bool:
        if not check_tensors(op):
            return False
        updates, places, mask, target = (shape_of(operand.type) for operand in op.operands)
        if len(places) != 2 or not 1 <= places[1] <= len(target):
            return fail(op, f"places' shape must be [U, P] with P in [1, {len(target)}], got {places}")
        return (
            require(op, "the result's type", str(op.results[0].type), "the target's", str(op.operands[3].type))
            and require(op, "places' element type", element_of(op.operands[1].type), "i32", "i32")
            and require(op, "mask's shape", mask, "[U] of places", places[:1])
            and require(op, "mask's element type", element_of(op.operands[2].type), "i1", "i1")
            and require(op, "updates' shape", updates, "U rows of the target", [places[0], *target[places[1] :]])
        )


class CompactOp(Kv.Operation, name="compact", traits=[ext.Pure]):
    """A prompt's cache moved into its slots: sinks, the last R, the selected; zero elsewhere.

    cache [1, .., N, ..], positions [H, K] (optional: none for K = 0), length [] -> [1, .., C, ..] with
    C = S + R + K. H is the extent at ``head_axis``, or 1 with ``head_axis`` = -1 (a cache without heads).
    The last R stand at the slots of ``kv.slots`` where ``order`` is "ring", and from the oldest to the newest where
    it is "time", as ``kv.concat_update`` keeps them.
    A slot that no token fills is zero, so nothing of the row's past stays. Padding is never stored.
    See tests/lit/dialect/compact.mlir.
    """

    cache: ext.Operand[Any]
    length: ext.Operand[Any]
    positions: ext.Operand[Any] | None
    sink: ir.IntegerAttr
    ring: ir.IntegerAttr
    axis: ir.IntegerAttr
    head_axis: ir.IntegerAttr
    order: ir.StringAttr
    slots: ext.Result[Any]

    @staticmethod
    def verify_invariants(op: Any) -> bool:
        if not (check_tensors(op) and check_policy(op) and check_axis(op, op.operands[0])):
            return False
        cache = shape_of(op.operands[0].type)
        axis, head_axis = integer(op, "axis"), integer(op, "head_axis")
        if cache[0] != 1:
            return fail(op, f"compacts one row at a time: expected B = 1, got {cache[0]}")
        if string(op, "order") not in ("ring", "time"):
            return fail(op, f"order must be ring or time, got {string(op, 'order')}")
        if head_axis in (0, axis) or head_axis >= len(cache):
            return fail(op, f"head_axis must be a free axis of the cache or -1, got {head_axis} with axis {axis}")
        heads = cache[head_axis] if head_axis > 0 else 1
        selected = 0
        if len(op.operands) == 3:
            positions = shape_of(op.operands[2].type)
            selected = positions[-1]
            if not require(op, "positions' shape", positions, "[H, K]", [heads, selected]):
                return False
        slots = integer(op, "sink") + integer(op, "ring") + selected
        wanted = [slots if i == axis else d for i, d in enumerate(cache)]
        return check_rank0(op, "length", op.operands[1]) and require(
            op, "the result's shape", shape_of(op.results[0].type), "the cache with C slots", wanted
        )


class StateLoadOp(Kv.Operation, name="state_load"):
    """The present value of a state of the program (a cache, or a value per row). See tests/lit/dialect/state.mlir."""

    state: ir.StringAttr
    value: ext.Result[Any]

    @staticmethod
    def verify_invariants(op: Any) -> bool:
        return check_tensors(op)


class StateStoreOp(Kv.Operation, name="state_store"):
    """The value that a state has after the call. See tests/lit/dialect/state.mlir."""

    value: ext.Operand[Any]
    state: ir.StringAttr

    @staticmethod
    def verify_invariants(op: Any) -> bool:
        return check_tensors(op)


class WriteRowOp(Kv.Operation, name="write_row", traits=[ext.Pure]):
    """One row of a state replaced. state [B, ..], value [1, ..], row [] i64 -> state's type.

    See tests/lit/dialect/write_row.mlir.
    """

    target: ext.Operand[Any]
    value: ext.Operand[Any]
    row: ext.Operand[Any]
    written: ext.Result[Any]

    @staticmethod
    def verify_invariants(op: Any) -> bool:
        if not check_tensors(op):
            return False
        target = shape_of(op.operands[0].type)
        return (
            require(op, "the result's type", str(op.results[0].type), "the target's", str(op.operands[0].type))
            and require(op, "value's shape", shape_of(op.operands[1].type), "one row of the target", [1, *target[1:]])
            and check_rank0(op, "row", op.operands[2])
        )


class WriteRowsOp(Kv.Operation, name="write_rows", traits=[ext.Pure]):
    """The rows of a state replaced where they are active; a row that is not keeps its bytes, whatever they are.

    target [B, ..], values [B, ..], active [B] i1 -> target's type. See tests/lit/dialect/write_rows.mlir.
    """

    target: ext.Operand[Any]
    values: ext.Operand[Any]
    active: ext.Operand[Any]
    written: ext.Result[Any]

    @staticmethod
    def verify_invariants(op: Any) -> bool:
        if not check_tensors(op):
            return False
        target = op.operands[0].type
        rows = shape_of(target)[:1]
        if not rows:
            return fail(op, "the target's shape must be [B, ..], got []")
        return (
            require(op, "the result's type", str(op.results[0].type), "the target's", str(target))
            and require(op, "values' type", str(op.operands[1].type), "the target's", str(target))
            and check_batch_vector(op, "active", op.operands[2], rows[0])
            and require(op, "active's element type", element_of(op.operands[2].type), "i1", "i1")
        )


class ReadRowOp(Kv.Operation, name="read_row", traits=[ext.Pure]):
    """One row of a state. state [B, ..], row [] i64 -> [1, ..]. See tests/lit/dialect/read_row.mlir."""

    source: ext.Operand[Any]
    row: ext.Operand[Any]
    value: ext.Result[Any]

    @staticmethod
    def verify_invariants(op: Any) -> bool:
        if not check_tensors(op):
            return False
        source, value = op.operands[0].type, op.results[0].type
        return (
            require(op, "the result's shape", shape_of(value), "one row of the state", [1, *shape_of(source)[1:]])
            and require(op, "the result's element type", element_of(value), "the state's", element_of(source))
            and check_rank0(op, "row", op.operands[1])
        )
