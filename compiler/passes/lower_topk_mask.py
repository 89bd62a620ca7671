"""Pass ``kv-lower-topk-mask``: the keys of the largest scores as a mask, exact and without a sort."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from torch_mlir import ir

from ..dialect.kv import TopkMaskOp, integer
from ..dialect.types import shape_of
from .template import call_template, operations, replace

_DIGIT = 4
"""Bits of the threshold found in one pass over the keys, with 2**digit - 1 comparisons each."""


@dataclasses.dataclass(frozen=True)
class LowerTopkMask:
    """``kv.topk_mask`` to linalg, as a function called and inlined.

    Applies to the op on builtin tensors. A score and its key's position (its index, where no positions are given) make
    one i64, which is larger the larger the score is and, of equal scores, the lower the position: the bits of the score
    in an order-preserving form, and behind them the largest position less its own, in as many bits as that takes (31 of
    a given position); 0 for a key that the query does not see. No two that are seen are equal, so the ``count``-th
    largest is found digit by digit, by counting those at or above each possible value, and a key is chosen that is seen
    and not below it. Where fewer than ``count`` are seen, the threshold is 0 and all of them are. Memory and work go
    with B * Q * T.

    Before: ``%1 = "kv.topk_mask"(%0) {causal = false, count = 8 : i64} : (tensor<1x4x16xf32>) -> tensor<1x4x16xi1>``

    After: a ``func.call`` of a private function that MLIR's ``inline`` opens.

    See tests/lit/lower/topk_mask.mlir.
    """

    name: ClassVar[str] = "kv-lower-topk-mask"

    def run(self, module: ir.Operation) -> None:
        """Rewrites the module."""
        for op in operations(module, "kv.topk_mask"):
            replace(op, call_template(op, "kv_topk_mask", _text(op), op.operands, [op.results[0].type]))


def _text(op: ir.Operation) -> str:
    """scores [B, Q, T], visible [B, T] or [B, Q, T], positions [B, T] -> chosen [B, Q, T]."""
    scores, chosen = op.operands[0].type, op.results[0].type
    b, q, t = shape_of(scores)
    ranks = f"tensor<{b}x{q}x{t}xi64>"
    view = op.opview
    assert isinstance(view, TopkMaskOp)
    reads = [("#bqt_bqt", "%scores", scores, "%score: f32")]
    if view.visible is not None:
        per_query = len(shape_of(view.visible.type)) == 3
        reads.append(("#bqt_bqt" if per_query else "#bqt_bt", "%visible", view.visible.type, "%is_visible: i1"))
    last, position = t - 1, "arith.index_cast %t : index to i64"
    if view.positions is not None:
        reads.append(("#bqt_bt", "%positions", view.positions.type, "%given: i64"))
        last, position = 2**31 - 1, "arith.minsi %given, %last : i64"
    position_bits = last.bit_length()
    arguments = ", ".join(f"{name}: {type_}" for _, name, type_, _ in reads)
    return f"""
#bqt_bqt = affine_map<(b, q, t) -> (b, q, t)>
#bqt_bt = affine_map<(b, q, t) -> (b, t)>
#bqt_bq = affine_map<(b, q, t) -> (b, q)>
#bqjt_bqt = affine_map<(b, q, j, t) -> (b, q, t)>
#bqjt_bq = affine_map<(b, q, j, t) -> (b, q)>
#bqjt_bqj = affine_map<(b, q, j, t) -> (b, q, j)>
func.func @topk_mask({arguments}) -> {chosen} {{
  %zero_i32 = arith.constant 0 : i32
  %zero = arith.constant 0 : i64
  %no_ranks = tensor.empty() : {ranks}
  %ranks = linalg.generic {{indexing_maps = [{", ".join(read[0] for read in reads)}, #bqt_bqt],
      iterator_types = ["parallel", "parallel", "parallel"]}}
      ins({", ".join(read[1] for read in reads)} : {", ".join(str(read[2]) for read in reads)})
      outs(%no_ranks : {ranks}) {{
  ^bb0({", ".join(read[3] for read in reads)}, %out: i64):
    %t = linalg.index 2 : index
    %no_score = arith.constant 0.0 : f32
    %is_zero = arith.cmpf oeq, %score, %no_score : f32
    %either_zero = arith.bitcast %score : f32 to i32
    %bits = arith.select %is_zero, %zero_i32, %either_zero : i32
    %lowest = arith.constant -2147483648 : i32
    %all = arith.constant -1 : i32
    %is_negative = arith.cmpi slt, %bits, %zero_i32 : i32
    %flipped = arith.select %is_negative, %all, %lowest : i32
    %ordered = arith.xori %bits, %flipped : i32
    %wide = arith.extui %ordered : i32 to i64
    %position_bits = arith.constant {position_bits} : i64
    %above = arith.shli %wide, %position_bits : i64
    %last = arith.constant {last} : i64
    %position = {position}
    %from_last = arith.subi %last, %position : i64
    %rank = arith.ori %above, %from_last : i64{_sees(op)}
    %seen = arith.select %sees, %rank, %zero : i64
    linalg.yield %seen : i64
  }} -> {ranks}
{_threshold(op, 32 + position_bits)}
  %no_mask = tensor.empty() : {chosen}
  %chosen = linalg.generic {{indexing_maps = [#bqt_bqt, #bqt_bq, #bqt_bqt],
      iterator_types = ["parallel", "parallel", "parallel"]}}
      ins(%ranks, %threshold_0 : {ranks}, tensor<{b}x{q}xi64>) outs(%no_mask : {chosen}) {{
  ^bb0(%rank: i64, %threshold: i64, %out: i1):
    %is_seen = arith.cmpi ne, %rank, %zero : i64
    %reaches = arith.cmpi sge, %rank, %threshold : i64
    %is_chosen = arith.andi %is_seen, %reaches : i1
    linalg.yield %is_chosen : i1
  }} -> {chosen}
  return %chosen : {chosen}
}}"""


def _sees(op: ir.Operation) -> str:
    """``%sees`` of query q and key t."""
    view = op.opview
    assert isinstance(view, TopkMaskOp)
    has_mask = view.visible is not None
    before = """
    %q = linalg.index 1 : index
    %is_before = arith.cmpi sle, %t, %q : index"""
    if not integer(op, "causal"):
        return f"""
    %true = arith.constant true
    %sees = arith.andi %true, {"%is_visible" if has_mask else "%true"} : i1"""
    return f"""{before}
    %sees = arith.andi %is_before, {"%is_visible" if has_mask else "%is_before"} : i1"""


def _threshold(op: ir.Operation, bits: int) -> str:
    """``%threshold_0`` [B, Q] i64: the ``count``-th largest rank, or 0 where fewer keys are seen.

    Digit by digit from the top: counts[b, q, j] ranks stand at or above threshold + (j + 1) * 2**shift; they fall with
    j, so the digit is how many of the counts reach ``count``. Where ``count`` is all keys, there is nothing to find.
    """
    b, q, t = shape_of(op.operands[0].type)
    ranks, thresholds = f"tensor<{b}x{q}x{t}xi64>", f"tensor<{b}x{q}xi64>"
    first = bits if integer(op, "count") < t else 0
    parts = [
        f"""
  %no_threshold = tensor.empty() : {thresholds}
  %threshold_{first} = linalg.fill ins(%zero : i64) outs(%no_threshold : {thresholds}) -> {thresholds}"""
    ]
    top = first
    while top > 0:
        shift = (top - 1) // _DIGIT * _DIGIT
        counts = f"tensor<{b}x{q}x{2 ** (top - shift) - 1}xi32>"
        parts.append(f"""
  %no_counts_{shift} = tensor.empty() : {counts}
  %zero_counts_{shift} = linalg.fill ins(%zero_i32 : i32) outs(%no_counts_{shift} : {counts}) -> {counts}
  %counts_{shift} = linalg.generic {{indexing_maps = [#bqjt_bqt, #bqjt_bq, #bqjt_bqj],
      iterator_types = ["parallel", "parallel", "parallel", "reduction"]}}
      ins(%ranks, %threshold_{top} : {ranks}, {thresholds}) outs(%zero_counts_{shift} : {counts}) {{
  ^bb0(%rank: i64, %threshold: i64, %sum: i32):
    %index = linalg.index 2 : index
    %j = arith.index_cast %index : index to i64
    %one = arith.constant 1 : i64
    %digit = arith.addi %j, %one : i64
    %shift = arith.constant {shift} : i64
    %step = arith.shli %digit, %shift : i64
    %bound = arith.addi %threshold, %step : i64
    %reaches = arith.cmpi sge, %rank, %bound : i64
    %counted = arith.extui %reaches : i1 to i32
    %next = arith.addi %sum, %counted : i32
    linalg.yield %next : i32
  }} -> {counts}
  %threshold_{shift} = linalg.generic {{indexing_maps = [#bqt_bqt, #bqt_bq],
      iterator_types = ["parallel", "parallel", "reduction"]}}
      ins(%counts_{shift} : {counts}) outs(%threshold_{top} : {thresholds}) {{
  ^bb0(%count_of_ranks: i32, %threshold: i64):
    %wanted = arith.constant {integer(op, "count")} : i32
    %step = arith.constant {2**shift} : i64
    %enough = arith.cmpi sge, %count_of_ranks, %wanted : i32
    %digit = arith.select %enough, %step, %zero : i64
    %next = arith.addi %threshold, %digit : i64
    linalg.yield %next : i64
  }} -> {thresholds}""")
        top = shift
    return "".join(parts)
