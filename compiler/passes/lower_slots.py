"""Pass ``kv-lower-slots``: the arithmetic of slots, visibility and the number of selected slots."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from torch_mlir import ir

from ..dialect.kv import integer
from .template import call_template, operations, replace


@dataclasses.dataclass(frozen=True)
class LowerSlots:
    """``kv.slots``, ``kv.visible`` and ``kv.selected_count`` to one ``linalg.generic`` each.

    Applies to these ops on builtin tensors. The arithmetic is on ``index``, which every target can divide (a 64-bit
    remainder does not legalise for Vulkan).

    Before: ``%1 = "kv.slots"(%0) {sink = 2 : i64, ring = 8 : i64} : (tensor<3xi64>) -> tensor<3xi64>``

    After: a ``func.call`` of a private function that MLIR's ``inline`` opens.

    See tests/lit/lower/slots.mlir.
    """

    name: ClassVar[str] = "kv-lower-slots"

    def run(self, module: ir.Operation) -> None:
        """Rewrites the module."""
        texts = {"kv.slots": slots_text, "kv.visible": visible_text, "kv.selected_count": selected_count_text}
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
    %past_sink = arith.subi %t, %sink : index
    %clamped = arith.maxsi %past_sink, %zero : index
    %turn = arith.remui %clamped, %ring : index
    %in_ring = arith.addi %turn, %sink : index
    %is_sink = arith.cmpi ult, %t, %sink : index
    %slot = arith.select %is_sink, %t, %in_ring : index
    %result = arith.index_cast %slot : index to {element}
    linalg.yield %result : {element}
  }} -> {type_}
  return %slots : {type_}
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
