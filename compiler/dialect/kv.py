"""The kv dialect: a decoder's cache before, while and after it becomes a fixed set of slots.

Letters in shapes: B rows, H key-value heads, G query heads per key-value head, Q query tokens,
T cached tokens, N the compiled prompt length, D features, C = S + R + K slots (sinks, ring, selected).
Every op takes ``!torch.vtensor`` or builtin tensors; a cache is rank 3 or 4, row axis first, with its
sequence axis at ``axis``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch_mlir import ir
from torch_mlir.dialects import ext
from torch_mlir.dialects._ods_common import _cext

from .rules import declared as _declared
from .rules import fail as _fail
from .rules import require as _require
from .types import element_of, is_tensor, shape_of, vtensor

# without it the bindings look for a module torch_mlir.dialects.kv, in vain, at every kv op that they wrap
_cext.globals.append_dialect_search_prefix("snapcc.compiler.dialect")


class Kv(ext.Dialect, name="kv"):
    """The dialect; ``Kv.load()`` in a context before any of its ops is parsed or built."""


def integer(op: ir.OpView | ir.Operation, name: str) -> int:
    """The value of an integer attribute."""
    return int(ir.IntegerAttr(op.attributes[name]).value)


def number(op: ir.OpView | ir.Operation, name: str) -> float:
    """The value of a float attribute."""
    return float(ir.FloatAttr(op.attributes[name]).value)


def string(op: ir.OpView | ir.Operation, name: str) -> str:
    """The value of a string attribute."""
    return str(ir.StringAttr(op.attributes[name]).value)


def index_attribute(value: int) -> ir.IntegerAttr:
    """The i64 attribute that kv ops keep integers in."""
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)


@dataclass(frozen=True)
class Reach:
    """How far back a query of an attention sees; 0 is no bound.

    Attributes:
        window: V: position t sees those after t - V.
        chunk: c: position t sees those from ``t - t mod c`` on.
    """

    window: int = 0
    chunk: int = 0

    @staticmethod
    def of(op: ir.OpView | ir.Operation) -> "Reach":
        """That of a ``kv.attention`` or ``kv.topk_select``."""
        return Reach(*(integer(op, name) if name in op.attributes else 0 for name in ("sliding_window", "chunk")))

    @property
    def most(self) -> int:
        """The most positions that a query sees; 0 is no bound."""
        return self.window or self.chunk

    @property
    def attributes(self) -> dict[str, ir.Attribute]:
        """The attributes that say so: none where there is no bound."""
        bounds = {"sliding_window": self.window, "chunk": self.chunk}
        return {name: index_attribute(bound) for name, bound in bounds.items() if bound}


def attention(
    operands: Sequence[ir.Value],
    *,
    scale: float,
    softcap: float,
    causal: bool,
    result: ir.Type,
    location: ir.Location,
    before: ir.Operation,
    bias: ir.Value | None = None,
    sinks: ir.Value | None = None,
    reach: Reach = Reach(),
) -> ir.Value:
    """A ``kv.attention`` of (q, k, v) or (q, k, v, visible).

    The generated builder of AttentionOp cannot be used: it takes a false attribute for a missing one.
    """
    more = [value for value in (bias, sinks) if value is not None]
    segments = [1, 1, 1, len(operands) - 3, int(bias is not None), int(sinks is not None)]
    return ir.Operation.create(
        AttentionOp.OPERATION_NAME,
        results=[result],
        operands=[*operands, *more],
        attributes={
            "scale": ir.FloatAttr.get_f64(scale),
            "softcap": ir.FloatAttr.get_f64(softcap),
            "causal": ir.BoolAttr.get(causal),
            **reach.attributes,
            "operandSegmentSizes": ir.DenseI32ArrayAttr.get(segments),
        },
        loc=location,
        ip=ir.InsertionPoint(before),
    ).results[0]


def topk_mask(
    scores: ir.Value,
    *,
    count: int,
    causal: bool,
    location: ir.Location,
    before: ir.Operation,
    visible: ir.Value | None = None,
    positions: ir.Value | None = None,
) -> ir.Value:
    """A ``kv.topk_mask`` on torch's tensors; the generated builder takes a false attribute for a missing one."""
    more = [value for value in (visible, positions) if value is not None]
    segments = [1, int(visible is not None), int(positions is not None)]
    return ir.Operation.create(
        TopkMaskOp.OPERATION_NAME,
        results=[vtensor(shape_of(scores.type), "i1")],
        operands=[scores, *more],
        attributes={
            "count": index_attribute(count),
            "causal": ir.BoolAttr.get(causal),
            "operandSegmentSizes": ir.DenseI32ArrayAttr.get(segments),
        },
        loc=location,
        ip=ir.InsertionPoint(before),
    ).results[0]


def _tensors(op: Any) -> bool:
    if not _declared(op):
        return False
    for value in [*op.operands, *op.results]:
        if not is_tensor(value.type):
            return _fail(op, f"takes and gives ranked tensors, got {value.type}")
    return True


def _policy(op: Any) -> bool:
    sink, ring = integer(op, "sink"), integer(op, "ring")
    if sink < 0:
        return _fail(op, f"sink must be at least 0, got {sink}")
    return ring >= 1 or _fail(op, f"ring must be at least 1, got {ring}")


def _axis(op: Any, cache: ir.Value) -> bool:
    rank, axis = len(shape_of(cache.type)), integer(op, "axis")
    return 0 < axis < rank or _fail(op, f"axis must lie in [1, {rank - 1}] for a cache of rank {rank}, got {axis}")


def _batch_vector(op: Any, what: str, value: ir.Value, batch: int) -> bool:
    return _require(op, f"{what}'s shape", shape_of(value.type), "[B] of the cache", [batch])


def _reach(op: Any) -> bool:
    """``sliding_window`` and ``chunk``, which the bindings cannot declare, since an op may be without them."""
    given = [name for name in ("sliding_window", "chunk") if name in op.attributes]
    for name in given:
        if not isinstance(op.attributes[name], ir.IntegerAttr) or integer(op, name) < 1:
            return _fail(op, f"{name} must be an integer of at least 1, got {op.attributes[name]}")
    return len(given) < 2 or _fail(op, "takes a sliding_window or a chunk, not both")


def _vector(op: Any, what: str, value: ir.Value) -> bool:
    return _require(op, f"{what}' rank", len(shape_of(value.type)), "1, one per row", 1)


def _rank0(op: Any, what: str, value: ir.Value) -> bool:
    return _require(op, f"{what}'s shape", shape_of(value.type), "a scalar tensor", [])


class ParameterOp(Kv.Operation, name="parameter", traits=[ext.Pure]):
    """A weight, named as in the model's state; its bytes are never in the IR.

    ``%w = "kv.parameter"() {parameter = "model.norm.weight"} : () -> !torch.vtensor<[64],f32>``

    See tests/lit/dialect/parameter.mlir.
    """

    parameter: ir.StringAttr
    value: ext.Result[Any]

    @staticmethod
    def verify_invariants(op: Any) -> bool:
        return _tensors(op) and (string(op, "parameter") != "" or _fail(op, 'parameter must name a weight, got ""'))


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
        if not (_tensors(op) and _axis(op, op.operands[0])):
            return False
        axis = integer(op, "axis")
        cache, rows = (shape_of(v.type) for v in op.operands)
        if len(rows) != len(cache):
            return _fail(op, f"rows must have the cache's rank: expected {len(cache)}, got {len(rows)}")
        wanted = [c + r if i == axis else c for i, (c, r) in enumerate(zip(cache, rows, strict=True))]
        return _require(op, "the result's shape", shape_of(op.results[0].type), "cache and rows joined", wanted)


class AttentionOp(Kv.Operation, name="attention", traits=[ext.Pure]):
    """Attention of grouped queries over a cache, softmax included; computed in f32, given in q's type.

    q [B, H, G, Q, Dk], k [B, H, T, Dk], v [B, H, T, Dv], visible [B, T] or [B, Q, T] i1 (optional), bias [B, H, G, T]
    or [B, H, 1, T] f32 (optional), sinks [H, G] f32 (optional) -> [B, H, G, Q, Dv].

    ``logits = scale * q k^T``; with softcap c > 0, ``c * tanh(logits / c)`` (0.0 is none); then ``bias`` is added, the
    same for all queries. ``causal`` hides key j from query i where j > i: such a key has weight zero. A key that
    ``visible`` hides, from all queries of a row or from one, is selected away, in the weights and in the product with
    v, whatever bytes it holds. ``sinks`` is the logit of one more key per head, whose value is zero.

    Two more attributes, where the model bounds how far back its queries see, the last of which stands at key T - 1:
    ``sliding_window`` hides what lies that many tokens or more before a query, ``chunk`` what lies before the multiple
    of ``chunk`` at or before it.
    See tests/lit/dialect/attention.mlir.
    """

    q: ext.Operand[Any]
    k: ext.Operand[Any]
    v: ext.Operand[Any]
    visible: ext.Operand[Any] | None
    bias: ext.Operand[Any] | None
    sinks: ext.Operand[Any] | None
    scale: ir.FloatAttr
    softcap: ir.FloatAttr
    causal: ir.IntegerAttr
    out: ext.Result[Any]

    @staticmethod
    def verify_invariants(op: Any) -> bool:
        if not _tensors(op):
            return False
        q, k, v = (shape_of(o.type) for o in list(op.operands)[:3])
        if (len(q), len(k), len(v)) != (5, 4, 4):
            return _fail(op, f"q, k, v must have ranks 5, 4, 4, got {len(q)}, {len(k)}, {len(v)}")
        elements = [element_of(o.type) for o in list(op.operands)[:3]]
        if len(set(elements)) != 1:
            return _fail(op, f"q, k, v must have one element type, got {', '.join(elements)}")
        b, h, g, n, dk = q
        t = k[2]
        if number(op, "softcap") < 0:
            return _fail(op, f"softcap must be at least 0, got {number(op, 'softcap')}")
        if integer(op, "causal") and n != t:
            return _fail(op, f"causal attention needs as many queries as keys, got {n} and {t}")
        per_query = op.visible is not None and len(shape_of(op.visible.type)) == 3
        groups = shape_of(op.bias.type)[2:3] if op.bias is not None else []
        wanted = {
            "visible": ("[B, Q, T]", [b, n, t], "i1") if per_query else ("[B, T]", [b, t], "i1"),
            "bias": ("[B, H, G or 1, T]", [b, h, 1 if groups == [1] else g, t], "f32"),
            "sinks": ("[H, G]", [h, g], "f32"),
        }
        return (
            _reach(op)
            and _require(op, "k's shape", k, "[B, H, T, Dk] of q", [b, h, t, dk])
            and _require(op, "v's shape", v[:3], "[B, H, T, ..] of k", [b, h, t])
            and all(
                _require(op, f"{name}'s shape", shape_of(value.type), rule, shape)
                and _require(op, f"{name}'s element type", element_of(value.type), element, element)
                for name, (rule, shape, element) in wanted.items()
                if (value := getattr(op, name)) is not None
            )
            and _require(op, "the result's shape", shape_of(op.results[0].type), "[B, H, G, Q, Dv]", [b, h, g, n, v[3]])
        )


class TopkMaskOp(Kv.Operation, name="topk_mask", traits=[ext.Pure]):
    """The keys that an index leaves to an attention: of those that a query sees, the ``count`` with the largest scores.

    scores [B, Q, T] f32, visible [B, T] or [B, Q, T] i1 (optional), positions [B, T] i64 (optional) -> chosen
    [B, Q, T] i1. ``causal`` hides key j from query i where j > i; a key that it or ``visible`` hides is never chosen,
    whatever its score. All that a query sees are chosen where they are no more than ``count``. Of equal scores that of
    the lower position is chosen first, of the lower index without ``positions``; seen keys have different ones.
    Source: DeepSeek sparse attention's token selection, as ``DeepseekV32Indexer`` of transformers has it.
    See tests/lit/dialect/topk_mask.mlir.
    """

    scores: ext.Operand[Any]
    visible: ext.Operand[Any] | None
    positions: ext.Operand[Any] | None
    count: ir.IntegerAttr
    causal: ir.IntegerAttr
    chosen: ext.Result[Any]

    @staticmethod
    def verify_invariants(op: Any) -> bool:
        if not _tensors(op):
            return False
        scores, chosen = op.operands[0].type, op.results[0].type
        shape = shape_of(scores)
        if len(shape) != 3:
            return _fail(op, f"scores' rank must be 3, [B, Q, T], got {len(shape)}")
        if integer(op, "causal") and shape[1] != shape[2]:
            return _fail(op, f"a causal choice needs as many queries as keys, got {shape[1]} and {shape[2]}")
        if not 1 <= integer(op, "count") <= shape[2]:
            return _fail(op, f"count must lie in [1, T = {shape[2]}], got {integer(op, 'count')}")
        by_key = ("[B, T]", [shape[0], shape[2]])
        per_query = op.visible is not None and len(shape_of(op.visible.type)) == 3
        wanted = {"visible": ("[B, Q, T]", shape) if per_query else by_key, "positions": by_key}
        return (
            all(
                _require(op, f"{name}'s shape", shape_of(value.type), rule, extents)
                for name, (rule, extents) in wanted.items()
                if (value := getattr(op, name)) is not None
            )
            and (op.visible is None or _require(op, "visible's element type", element_of(op.visible.type), "i1", "i1"))
            and _require(op, "scores' element type", element_of(scores), "f32", "f32")
            and _require(op, "the result's shape", shape_of(chosen), "that of scores", shape)
            and _require(op, "the result's element type", element_of(chosen), "i1", "i1")
        )


class LinearBiasOp(Kv.Operation, name="linear_bias", traits=[ext.Pure]):
    """A bias that grows with the key's position (ALiBi): ``slope * (j - (T - 1))`` for key j.

    slopes [H, G] f32 -> [B, H, G, T] f32, the same for all rows. Source: arXiv:2108.12409, section 3; what is the same
    for all keys of a query is left out, as a softmax does not show it. See tests/lit/dialect/linear_bias.mlir.
    """

    slopes: ext.Operand[Any]
    bias: ext.Result[Any]

    @staticmethod
    def verify_invariants(op: Any) -> bool:
        if not _tensors(op):
            return False
        slopes, bias = shape_of(op.operands[0].type), shape_of(op.results[0].type)
        return (
            _require(op, "slopes' rank", len(slopes), "2, [H, G]", 2)
            and _require(op, "the result's rank", len(bias), "4, [B, H, G, T]", 4)
            and _require(op, "the result's shape", bias[1:3], "[.., H, G, ..] of slopes", slopes)
        )


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
        if not (_tensors(op) and _policy(op) and _vector(op, "positions", op.operands[0])):
            return False
        (rows,) = shape_of(op.operands[0].type)
        heads, topk = 1, 0
        if len(op.operands) > 1:
            selected = shape_of(op.operands[1].type)
            if len(selected) != 3 or selected[0] != rows:
                return _fail(op, f"selected's shape must be [B, H, K] of {rows} rows, got {selected}")
            heads, topk = selected[1:]
        slots = integer(op, "sink") + integer(op, "ring") + topk
        return _require(op, "the result's shape", shape_of(op.results[0].type), "[B, H, C]", [rows, heads, slots])


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
            _tensors(op)
            and _policy(op)
            and _vector(op, "positions", op.operands[0])
            and _require(
                op,
                "the result's type",
                str(op.results[0].type),
                "that of the positions",
                str(op.operands[0].type),
            )
        )


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
        if not (_tensors(op) and _axis(op, op.operands[0])):
            return False
        cache = shape_of(op.operands[0].type)
        wanted = [1 if i == integer(op, "axis") else d for i, d in enumerate(cache)]
        return (
            _require(op, "the result's type", str(op.results[0].type), "the cache's", str(op.operands[0].type))
            and _require(op, "rows' shape", shape_of(op.operands[1].type), "one token of the cache", wanted)
            and _batch_vector(op, "slots", op.operands[2], cache[0])
            and _batch_vector(op, "active", op.operands[3], cache[0])
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
        if not (_tensors(op) and _policy(op) and _axis(op, op.operands[0])):
            return False
        cache, axis = shape_of(op.operands[0].type), integer(op, "axis")
        fixed = integer(op, "sink") + integer(op, "ring")
        if cache[axis] < fixed:
            return _fail(op, f"the cache must have at least S + R = {fixed} slots, got {cache[axis]}")
        wanted = [1 if i == axis else d for i, d in enumerate(cache)]
        return (
            _require(op, "the result's type", str(op.results[0].type), "the cache's", str(op.operands[0].type))
            and _require(op, "rows' shape", shape_of(op.operands[1].type), "one token of the cache", wanted)
            and _batch_vector(op, "positions", op.operands[2], cache[0])
            and _batch_vector(op, "active", op.operands[3], cache[0])
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
        if not (_tensors(op) and _policy(op) and _axis(op, op.operands[0])):
            return False
        axis = integer(op, "axis")
        cache, rows = (shape_of(o.type) for o in list(op.operands)[:2])
        if len(rows) != len(cache):
            return _fail(op, f"rows must have the cache's rank: expected {len(cache)}, got {len(rows)}")
        wanted = [rows[i] if i == axis else d for i, d in enumerate([1, *cache[1:]])]
        if cache[axis] < integer(op, "sink") + integer(op, "ring"):
            return _fail(
                op,
                f"sink {integer(op, 'sink')} + ring {integer(op, 'ring')} must lie in the cache's {cache[axis]} slots",
            )
        return (
            _require(op, "the result's type", str(op.results[0].type), "the cache's", str(op.operands[0].type))
            and _require(op, "rows' shape", rows, "N tokens of one row of the cache", wanted)
            and all(
                _rank0(op, what, o) for what, o in zip(("row", "start", "length"), list(op.operands)[2:], strict=True)
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
        if not _tensors(op):
            return False
        updates, places, mask, target = (shape_of(operand.type) for operand in op.operands)
        if len(places) != 2 or not 1 <= places[1] <= len(target):
            return _fail(op, f"places' shape must be [U, P] with P in [1, {len(target)}], got {places}")
        return (
            _require(op, "the result's type", str(op.results[0].type), "the target's", str(op.operands[3].type))
            and _require(op, "places' element type", element_of(op.operands[1].type), "i32", "i32")
            and _require(op, "mask's shape", mask, "[U] of places", places[:1])
            and _require(op, "mask's element type", element_of(op.operands[2].type), "i1", "i1")
            and _require(op, "updates' shape", updates, "U rows of the target", [places[0], *target[places[1] :]])
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
        if not (_tensors(op) and _policy(op) and _vector(op, "positions", op.operands[0])):
            return False
        batch = shape_of(op.operands[0].type)
        slots = integer(op, "sink") + integer(op, "ring") + integer(op, "selected")
        return (
            _require(op, "selected_count's shape", shape_of(op.operands[1].type), "that of positions", batch)
            and _require(op, "the result's shape", shape_of(op.results[0].type), "[B, S + R + K]", [*batch, slots])
            and _require(op, "the result's element type", element_of(op.results[0].type), "i1", "i1")
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
        if not (_tensors(op) and _policy(op)):
            return False
        result = shape_of(op.results[0].type)
        slots = integer(op, "sink") + integer(op, "ring") + integer(op, "selected")
        if len(result) != 3:
            return _fail(op, f"the result's rank must be 3, [1, N, C + N]: got {len(result)}")
        return (
            _rank0(op, "start", op.operands[0])
            and _rank0(op, "length", op.operands[1])
            and _require(op, "selected_count's shape", shape_of(op.operands[2].type), "[1], of one row", [1])
            and _require(op, "the result's shape", result, "[1, N, S + R + K + N]", [1, result[1], slots + result[1]])
            and _require(op, "the result's element type", element_of(op.results[0].type), "i1", "i1")
        )


class TopkSelectOp(Kv.Operation, name="topk_select", traits=[ext.Pure]):
    """The K positions of the prompt that the last W queries attend to most, per key-value head, ascending.

    q [1, H, G, N, Dk], k [1, H, N, Dk], length [] i64, visible [1, N, N] i1 (optional), bias [1, H, G or 1, N] f32
    (optional), sinks [H, G] f32 (optional) -> positions [H, K] i64, or [1, K] where all heads share a cache. Candidates
    are positions ``S .. length - R - 1``; fewer than K leave the tail of a row at 0, which ``kv.visible`` hides.
    score "candidates" is the paper's Eq. 3, "all" is SnapKV's. The logits are those of ``kv.attention``, with its
    ``visible``, its ``bias``, its ``sinks`` (in the softmax over all keys), its ``sliding_window`` or its ``chunk``; a
    query that sees no candidate has no say. Ties go to the lowest position. In f32. See design section 3.
    See tests/lit/dialect/topk_select.mlir.
    """

    q: ext.Operand[Any]
    k: ext.Operand[Any]
    length: ext.Operand[Any]
    visible: ext.Operand[Any] | None
    bias: ext.Operand[Any] | None
    sinks: ext.Operand[Any] | None
    sink: ir.IntegerAttr
    ring: ir.IntegerAttr
    selected: ir.IntegerAttr
    window: ir.IntegerAttr
    pool: ir.StringAttr
    pool_size: ir.IntegerAttr
    score: ir.StringAttr
    scale: ir.FloatAttr
    softcap: ir.FloatAttr
    positions: ext.Result[Any]

    @staticmethod
    def verify_invariants(op: Any) -> bool:
        if not (_tensors(op) and _policy(op)):
            return False
        q, k = (shape_of(o.type) for o in list(op.operands)[:2])
        window, ring, selected = integer(op, "window"), integer(op, "ring"), integer(op, "selected")
        if (len(q), len(k)) != (5, 4):
            return _fail(op, f"q and k must have ranks 5 and 4, got {len(q)} and {len(k)}")
        if q[0] != 1:
            return _fail(op, f"selects for one row at a time: expected B = 1, got {q[0]}")
        if not 1 <= window <= ring:
            return _fail(op, f"window must lie in [1, ring]: got window {window}, ring {ring}")
        if selected < 1:
            return _fail(op, f"selected must be at least 1, got {selected}")
        if string(op, "pool") not in ("avg", "max", "none"):
            return _fail(op, f"pool must be avg, max or none, got {string(op, 'pool')}")
        if string(op, "score") not in ("candidates", "all"):
            return _fail(op, f"score must be candidates or all, got {string(op, 'score')}")
        groups = shape_of(op.bias.type)[2:3] if op.bias is not None else []
        wanted = {"bias": ("[1, H, G or 1, N]", [1, q[1], 1 if groups == [1] else q[2], q[3]])}
        wanted["sinks"] = ("[H, G]", q[1:3])
        wanted["visible"] = ("[1, N, N]", [1, q[3], q[3]])
        result = shape_of(op.results[0].type)
        return (
            _reach(op)
            and _require(op, "k's shape", k, "[1, H, N, Dk] of q", [q[0], q[1], q[3], q[4]])
            and _rank0(op, "length", op.operands[2])
            and all(
                _require(op, f"{name}'s shape", shape_of(value.type), rule, shape)
                for name, (rule, shape) in wanted.items()
                if (value := getattr(op, name)) is not None
            )
            and _require(
                op, "the result's shape", result, "[H, K] or [1, K]", [1 if result[:1] == [1] else q[1], selected]
            )
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
            _tensors(op)
            and _policy(op)
            and _rank0(op, "length", op.operands[0])
            and _require(op, "the result's shape", shape_of(op.results[0].type), "[1]", [1])
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
        if not (_tensors(op) and _policy(op) and _axis(op, op.operands[0])):
            return False
        cache = shape_of(op.operands[0].type)
        axis, head_axis = integer(op, "axis"), integer(op, "head_axis")
        if cache[0] != 1:
            return _fail(op, f"compacts one row at a time: expected B = 1, got {cache[0]}")
        if string(op, "order") not in ("ring", "time"):
            return _fail(op, f"order must be ring or time, got {string(op, 'order')}")
        if head_axis in (0, axis) or head_axis >= len(cache):
            return _fail(op, f"head_axis must be a free axis of the cache or -1, got {head_axis} with axis {axis}")
        heads = cache[head_axis] if head_axis > 0 else 1
        selected = 0
        if len(op.operands) == 3:
            positions = shape_of(op.operands[2].type)
            selected = positions[-1]
            if not _require(op, "positions' shape", positions, "[H, K]", [heads, selected]):
                return False
        slots = integer(op, "sink") + integer(op, "ring") + selected
        wanted = [slots if i == axis else d for i, d in enumerate(cache)]
        return _rank0(op, "length", op.operands[1]) and _require(
            op, "the result's shape", shape_of(op.results[0].type), "the cache with C slots", wanted
        )


class StateLoadOp(Kv.Operation, name="state_load"):
    """The present value of a state of the program (a cache, or a value per row). See tests/lit/dialect/state.mlir."""

    state: ir.StringAttr
    value: ext.Result[Any]

    @staticmethod
    def verify_invariants(op: Any) -> bool:
        return _tensors(op)


class StateStoreOp(Kv.Operation, name="state_store"):
    """The value that a state has after the call. See tests/lit/dialect/state.mlir."""

    value: ext.Operand[Any]
    state: ir.StringAttr

    @staticmethod
    def verify_invariants(op: Any) -> bool:
        return _tensors(op)


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
        if not _tensors(op):
            return False
        target = shape_of(op.operands[0].type)
        return (
            _require(op, "the result's type", str(op.results[0].type), "the target's", str(op.operands[0].type))
            and _require(op, "value's shape", shape_of(op.operands[1].type), "one row of the target", [1, *target[1:]])
            and _rank0(op, "row", op.operands[2])
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
        if not _tensors(op):
            return False
        target = op.operands[0].type
        rows = shape_of(target)[:1]
        if not rows:
            return _fail(op, "the target's shape must be [B, ..], got []")
        return (
            _require(op, "the result's type", str(op.results[0].type), "the target's", str(target))
            and _require(op, "values' type", str(op.operands[1].type), "the target's", str(target))
            and _batch_vector(op, "active", op.operands[2], rows[0])
            and _require(op, "active's element type", element_of(op.operands[2].type), "i1", "i1")
        )


class ReadRowOp(Kv.Operation, name="read_row", traits=[ext.Pure]):
    """One row of a state. state [B, ..], row [] i64 -> [1, ..]. See tests/lit/dialect/read_row.mlir."""

    source: ext.Operand[Any]
    row: ext.Operand[Any]
    value: ext.Result[Any]

    @staticmethod
    def verify_invariants(op: Any) -> bool:
        if not _tensors(op):
            return False
        source, value = op.operands[0].type, op.results[0].type
        return (
            _require(op, "the result's shape", shape_of(value), "one row of the state", [1, *shape_of(source)[1:]])
            and _require(op, "the result's element type", element_of(value), "the state's", element_of(source))
            and _rank0(op, "row", op.operands[1])
        )
