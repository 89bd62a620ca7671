"""Pass ``kv-lower-slots``: the arithmetic of slots, visibility and the number of selected slots."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from torch_mlir import ir

from ..dialect.kv import integer
from .template import call_template, operations, replace

SLOT_OF_POSITION = """\
    %past_sink = arith.subi %t, %sink : index
    %clamped = arith.maxsi %past_sink, %zero : index
    %turn = arith.remui %clamped, %ring : index
    %in_ring = arith.addi %turn, %sink : index
    %is_sink = arith.cmpi ult, %t, %sink : index
    %slot = arith.select %is_sink, %t, %in_ring : index"""
"""``%slot`` of position ``%t``, from ``%sink``, ``%ring`` and ``%zero``: ``t`` if t < S, else ``S + (t - S) mod R``."""


@dataclasses.dataclass(frozen=True)
class LowerSlots:
    """``kv.slots``, ``kv.slot_positions``, ``kv.visible``, ``kv.visible_extend`` and ``kv.selected_count`` to linalg.

    Applies to these ops on builtin tensors. The arithmetic is on ``index``, which every target can divide (a 64-bit
    remainder does not legalise for Vulkan).

    Before: ``%1 = "kv.slots"(%0) {sink = 2 : i64, ring = 8 : i64} : (tensor<3xi64>) -> tensor<3xi64>``

    After: a ``func.call`` of a private function that MLIR's ``inline`` opens.

    See tests/lit/lower/slots.mlir.
    """

    name: ClassVar[str] = "kv-lower-slots"

    def run(self, module: ir.Operation) -> None:
        """Rewrites the module."""
        texts = {
            "kv.slots": slots_text,
            "kv.slot_positions": slot_positions_text,
            "kv.visible": visible_text,
            "kv.visible_extend": visible_extend_text,
            "kv.selected_count": selected_count_text,
        }
        for op in operations(module, *texts):
            result = op.results[0]
            name = op.name.replace(".", "_")
            replace(op, call_template(op, name, texts[op.name](op), op.operands, [result.type]))


def slots_text(op: ir.Operation) -> str:
    """positions [B] -> slots [B]: ``t`` if t < S, else ``S + (t - S) mod R`` (design section 3)."""
    type_ = op.operands[0].type
    element = type_.element_type
    return f"""
#row = affine_map<(b) -> (b)>
func.func @slots(%positions: {type_}) -> {type_} {{
  %zero = arith.constant 0 : index
  %sink = arith.constant {integer(op, "sink")} : index
  %ring = arith.constant {integer(op, "ring")} : index
  %empty = tensor.empty() : {type_}
  %slots = linalg.generic {{indexing_maps = [#row, #row], iterator_types = ["parallel"]}}
      ins(%positions : {type_}) outs(%empty : {type_}) {{
  ^bb0(%position: {element}, %out: {element}):
    %signed = arith.index_cast %position : {element} to index
    %t = arith.maxsi %signed, %zero : index
{SLOT_OF_POSITION}
    %result = arith.index_cast %slot : index to {element}
    linalg.yield %result : {element}
  }} -> {type_}
  return %slots : {type_}
}}"""


def slot_positions_text(op: ir.Operation) -> str:
    """positions [B], selected [B, H, K] -> [B, H, C]: slot s holds s if s < S, ring slot S + r the last of its turn.

    That is ``t - ((t - S - r) mod R)``, or something negative where no token has been there yet.
    """
    positions, result = op.operands[0].type, op.results[0].type
    element = positions.element_type
    sink, ring = integer(op, "sink"), integer(op, "ring")
    rows, heads, slots = result.shape
    kept = slots - sink - ring
    more = [value.type for value in list(op.operands)[1:]]
    arguments = "".join(f", %selected: {type_}" for type_ in more)
    fixed = f"tensor<{rows}x{heads}x{sink + ring}x{element}>"
    joined = "return %fixed"
    if kept:
        joined = f"""%whole = tensor.empty() : {result}
  %with_fixed = tensor.insert_slice %fixed into %whole[0, 0, 0] [{rows}, {heads}, {sink + ring}] [1, 1, 1]
      : {fixed} into {result}
  %tokens = tensor.insert_slice %selected into %with_fixed[0, 0, {sink + ring}] [{rows}, {heads}, {kept}] [1, 1, 1]
      : {more[0]} into {result}
  return %tokens"""
    return f"""
#row = affine_map<(b, h, c) -> (b)>
#slot = affine_map<(b, h, c) -> (b, h, c)>
func.func @slot_positions(%positions: {positions}{arguments}) -> {result} {{
  %sink = arith.constant {sink} : index
  %ring = arith.constant {ring} : index
  %empty = tensor.empty() : {fixed}
  %fixed = linalg.generic {{indexing_maps = [#row, #slot], iterator_types = ["parallel", "parallel", "parallel"]}}
      ins(%positions : {positions}) outs(%empty : {fixed}) {{
  ^bb0(%position: {element}, %out: {element}):
    %slot = linalg.index 2 : index
    %t = arith.index_cast %position : {element} to index
    %since = arith.subi %t, %slot : index
    %raised = arith.addi %since, %ring : index
    %bound = arith.constant 0 : index
    %from = arith.maxsi %raised, %bound : index
    %turn = arith.remui %from, %ring : index
    %last = arith.subi %t, %turn : index
    %is_sink = arith.cmpi ult, %slot, %sink : index
    %token = arith.select %is_sink, %slot, %last : index
    %result = arith.index_cast %token : index to {element}
    linalg.yield %result : {element}
  }} -> {fixed}
  {joined} : {result}
}}"""


def visible_text(op: ir.Operation) -> str:
    """positions [B], selected_count [B] -> visible [B, C] i1 (design section 3, visible slots)."""
    positions, counts, result = op.operands[0].type, op.operands[1].type, op.results[0].type
    fixed = integer(op, "sink") + integer(op, "ring")
    return f"""
#row = affine_map<(b, c) -> (b)>
#slot = affine_map<(b, c) -> (b, c)>
func.func @visible(%positions: {positions}, %counts: {counts}) -> {result} {{
  %one = arith.constant 1 : index
  %fixed = arith.constant {fixed} : index
  %empty = tensor.empty() : {result}
  %visible = linalg.generic {{indexing_maps = [#row, #row, #slot], iterator_types = ["parallel", "parallel"]}}
      ins(%positions, %counts : {positions}, {counts}) outs(%empty : {result}) {{
  ^bb0(%position: {positions.element_type}, %count: {counts.element_type}, %out: i1):
    %slot = linalg.index 1 : index
    %t = arith.index_cast %position : {positions.element_type} to index
    %n = arith.index_cast %count : {counts.element_type} to index
    %tokens = arith.addi %t, %one : index
    %filled = arith.minsi %tokens, %fixed : index
    %in_fixed = arith.cmpi slt, %slot, %filled : index
    %is_selected = arith.cmpi sge, %slot, %fixed : index
    %end = arith.addi %fixed, %n : index
    %before_end = arith.cmpi slt, %slot, %end : index
    %in_selected = arith.andi %is_selected, %before_end : i1
    %seen = arith.ori %in_fixed, %in_selected : i1
    linalg.yield %seen : i1
  }} -> {result}
  return %visible : {result}
}}"""


def visible_extend_text(op: ir.Operation) -> str:
    """start [], length [], selected_count [1] -> visible [1, N, C + N] i1 (design section 3, extend)."""
    (start, length, counts), result = (operand.type for operand in op.operands), op.results[0].type
    sink, ring = integer(op, "sink"), integer(op, "ring")
    return f"""
#scalar = affine_map<(b, i, c) -> ()>
#row = affine_map<(b, i, c) -> (b)>
#cell = affine_map<(b, i, c) -> (b, i, c)>
func.func @visible_extend(%start: {start}, %length: {length}, %counts: {counts}) -> {result} {{
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %sink = arith.constant {sink} : index
  %ring = arith.constant {ring} : index
  %fixed = arith.constant {sink + ring} : index
  %slots = arith.constant {sink + ring + integer(op, "selected")} : index
  %empty = tensor.empty() : {result}
  %visible = linalg.generic {{indexing_maps = [#scalar, #scalar, #row, #cell],
      iterator_types = ["parallel", "parallel", "parallel"]}}
      ins(%start, %length, %counts : {start}, {length}, {counts}) outs(%empty : {result}) {{
  ^bb0(%start_value: {start.element_type}, %length_value: {length.element_type}, %count: {counts.element_type},
      %out: i1):
    %query = linalg.index 1 : index
    %c = linalg.index 2 : index
    %start_signed = arith.index_cast %start_value : {start.element_type} to index
    %first = arith.maxsi %start_signed, %zero : index
    %real = arith.index_cast %length_value : {length.element_type} to index
    %n = arith.index_cast %count : {counts.element_type} to index
    %t = arith.addi %first, %query : index
    %evicted = arith.subi %t, %ring : index
    // a slot of sinks and ring holds the last position before start that belongs there; none where that is negative
    %last = arith.subi %first, %one : index
    %behind = arith.subi %last, %c : index
    %turn = arith.remsi %behind, %ring : index
    %turn_up = arith.addi %turn, %ring : index
    %age = arith.remsi %turn_up, %ring : index
    %held = arith.subi %last, %age : index
    %is_sink = arith.cmpi slt, %c, %sink : index
    %sink_filled = arith.cmpi slt, %c, %first : index
    %in_ring = arith.cmpi sge, %held, %sink : index
    %held_stays = arith.cmpi sgt, %held, %evicted : index
    %ring_seen = arith.andi %in_ring, %held_stays : i1
    %fixed_seen = arith.select %is_sink, %sink_filled, %ring_seen : i1
    // a selected slot
    %selected_end = arith.addi %fixed, %n : index
    %selected_seen = arith.cmpi slt, %c, %selected_end : index
    // a new token
    %token = arith.subi %c, %slots : index
    %position = arith.addi %first, %token : index
    %not_after = arith.cmpi sle, %token, %query : index
    %is_real = arith.cmpi slt, %token, %real : index
    %new_is_sink = arith.cmpi slt, %position, %sink : index
    %new_is_recent = arith.cmpi sgt, %position, %evicted : index
    %new_stays = arith.ori %new_is_sink, %new_is_recent : i1
    %new_there = arith.andi %not_after, %is_real : i1
    %new_seen = arith.andi %new_there, %new_stays : i1
    %is_fixed = arith.cmpi slt, %c, %fixed : index
    %is_slot = arith.cmpi slt, %c, %slots : index
    %selected_or_new = arith.select %is_slot, %selected_seen, %new_seen : i1
    %seen = arith.select %is_fixed, %fixed_seen, %selected_or_new : i1
    linalg.yield %seen : i1
  }} -> {result}
  return %visible : {result}
}}"""


def selected_count_text(op: ir.Operation) -> str:
    """length [] -> n [1] = clip(length - S - R, 0, K)."""
    length, result = op.operands[0].type, op.results[0].type
    fixed = integer(op, "sink") + integer(op, "ring")
    return f"""
#scalar = affine_map<(i) -> ()>
#one = affine_map<(i) -> (i)>
func.func @selected_count(%length: {length}) -> {result} {{
  %zero = arith.constant 0 : index
  %fixed = arith.constant {fixed} : index
  %selected = arith.constant {integer(op, "selected")} : index
  %empty = tensor.empty() : {result}
  %count = linalg.generic {{indexing_maps = [#scalar, #one], iterator_types = ["parallel"]}}
      ins(%length : {length}) outs(%empty : {result}) {{
  ^bb0(%l: {length.element_type}, %out: {result.element_type}):
    %tokens = arith.index_cast %l : {length.element_type} to index
    %evicted = arith.subi %tokens, %fixed : index
    %at_least = arith.maxsi %evicted, %zero : index
    %n = arith.minsi %at_least, %selected : index
    %result = arith.index_cast %n : index to {result.element_type}
    linalg.yield %result : {result.element_type}
  }} -> {result}
  return %count : {result}
}}"""
