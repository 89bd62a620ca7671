"""The ops on queries and keys: attention, what it leaves out, and what a prompt selects."""

from collections.abc import Sequence
from typing import Any

from torch_mlir import ir
from torch_mlir.dialects import ext

from ..rules import fail, require
from ..types import element_of, shape_of, vtensor
from .base import (
    Kv,
    Reach,
    check_policy,
    check_rank0,
    check_reach,
    check_tensors,
    index_attribute,
    integer,
    number,
    string,
)

_UNBOUNDED = Reach()


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
    reach: Reach = _UNBOUNDED,
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
        if not check_tensors(op):
            return False
        q, k, v = (shape_of(o.type) for o in list(op.operands)[:3])
        if (len(q), len(k), len(v)) != (5, 4, 4):
            return fail(op, f"q, k, v must have ranks 5, 4, 4, got {len(q)}, {len(k)}, {len(v)}")
        elements = [element_of(o.type) for o in list(op.operands)[:3]]
        if len(set(elements)) != 1:
            return fail(op, f"q, k, v must have one element type, got {', '.join(elements)}")
        b, h, g, n, dk = q
        t = k[2]
        if number(op, "softcap") < 0:
            return fail(op, f"softcap must be at least 0, got {number(op, 'softcap')}")
        if integer(op, "causal") and n != t:
            return fail(op, f"causal attention needs as many queries as keys, got {n} and {t}")
        per_query = op.visible is not None and len(shape_of(op.visible.type)) == 3
        groups = shape_of(op.bias.type)[2:3] if op.bias is not None else []
        wanted = {
            "visible": ("[B, Q, T]", [b, n, t], "i1") if per_query else ("[B, T]", [b, t], "i1"),
            "bias": ("[B, H, G or 1, T]", [b, h, 1 if groups == [1] else g, t], "f32"),
            "sinks": ("[H, G]", [h, g], "f32"),
        }
        return (
            check_reach(op)
            and require(op, "k's shape", k, "[B, H, T, Dk] of q", [b, h, t, dk])
            and require(op, "v's shape", v[:3], "[B, H, T, ..] of k", [b, h, t])
            and all(
                require(op, f"{name}'s shape", shape_of(value.type), rule, shape)
                and require(op, f"{name}'s element type", element_of(value.type), element, element)
                for name, (rule, shape, element) in wanted.items()
                if (value := getattr(op, name)) is not None
            )
            and require(op, "the result's shape", shape_of(op.results[0].type), "[B, H, G, Q, Dv]", [b, h, g, n, v[3]])
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
        if not check_tensors(op):
            return False
        scores, chosen = op.operands[0].type, op.results[0].type
        shape = shape_of(scores)
        if len(shape) != 3:
            return fail(op, f"scores' rank must be 3, [B, Q, T], got {len(shape)}")
        if integer(op, "causal") and shape[1] != shape[2]:
            return fail(op, f"a causal choice needs as many queries as keys, got {shape[1]} and {shape[2]}")
        if not 1 <= integer(op, "count") <= shape[2]:
            return fail(op, f"count must lie in [1, T = {shape[2]}], got {integer(op, 'count')}")
        by_key = ("[B, T]", [shape[0], shape[2]])
        per_query = op.visible is not None and len(shape_of(op.visible.type)) == 3
        wanted = {"visible": ("[B, Q, T]", shape) if per_query else by_key, "positions": by_key}
        return (
            all(
                require(op, f"{name}'s shape", shape_of(value.type), rule, extents)
                for name, (rule, extents) in wanted.items()
                if (value := getattr(op, name)) is not None
            )
            and (op.visible is None or require(op, "visible's element type", element_of(op.visible.type), "i1", "i1"))
            and require(op, "scores' element type", element_of(scores), "f32", "f32")
            and require(op, "the result's shape", shape_of(chosen), "that of scores", shape)
            and require(op, "the result's element type", element_of(chosen), "i1", "i1")
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
        if not check_tensors(op):
            return False
        slopes, bias = shape_of(op.operands[0].type), shape_of(op.results[0].type)
        return (
            require(op, "slopes' rank", len(slopes), "2, [H, G]", 2)
            and require(op, "the result's rank", len(bias), "4, [B, H, G, T]", 4)
            and require(op, "the result's shape", bias[1:3], "[.., H, G, ..] of slopes", slopes)
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
        if not (check_tensors(op) and check_policy(op)):
            return False
        q, k = (shape_of(o.type) for o in list(op.operands)[:2])
        window, ring, selected = integer(op, "window"), integer(op, "ring"), integer(op, "selected")
        if (len(q), len(k)) != (5, 4):
            return fail(op, f"q and k must have ranks 5 and 4, got {len(q)} and {len(k)}")
        if q[0] != 1:
            return fail(op, f"selects for one row at a time: expected B = 1, got {q[0]}")
        if not 1 <= window <= ring:
            return fail(op, f"window must lie in [1, ring]: got window {window}, ring {ring}")
        if selected < 1:
            return fail(op, f"selected must be at least 1, got {selected}")
        if string(op, "pool") not in ("avg", "max", "none"):
            return fail(op, f"pool must be avg, max or none, got {string(op, 'pool')}")
        if string(op, "score") not in ("candidates", "all"):
            return fail(op, f"score must be candidates or all, got {string(op, 'score')}")
        groups = shape_of(op.bias.type)[2:3] if op.bias is not None else []
        wanted = {"bias": ("[1, H, G or 1, N]", [1, q[1], 1 if groups == [1] else q[2], q[3]])}
        wanted["sinks"] = ("[H, G]", q[1:3])
        wanted["visible"] = ("[1, N, N]", [1, q[3], q[3]])
        result = shape_of(op.results[0].type)
        return (
            check_reach(op)
            and require(op, "k's shape", k, "[1, H, N, Dk] of q", [q[0], q[1], q[3], q[4]])
            and check_rank0(op, "length", op.operands[2])
            and all(
                require(op, f"{name}'s shape", shape_of(value.type), rule, shape)
                for name, (rule, shape) in wanted.items()
                if (value := getattr(op, name)) is not None
            )
            and require(
                op, "the result's shape", result, "[H, K] or [1, K]", [1 if result[:1] == [1] else q[1], selected]
            )
        )
