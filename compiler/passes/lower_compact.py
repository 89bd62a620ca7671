"""Pass ``kv-lower-compact``: a prompt's cache moved into its slots."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from torch_mlir import ir

from ..dialect.kv import integer, string
from ..dialect.types import shape_of
from .template import call_template, operations, replace


@dataclasses.dataclass(frozen=True)
class LowerCompact:
    """``kv.compact`` to two ``linalg.generic``: the position that each slot holds, and the gather.

    Applies to the op on builtin tensors. The sources [H, C] (or [C] without a selection) are a function of their own,
    so that ``cse`` leaves one for all the caches that share a selection. A slot without a token has source -1 and
    becomes zero by a select, whatever the padding holds.

    Before: ``%1 = "kv.compact"(%cache, %length, %positions) {axis = 2 : i64, order = "ring", ...}``

    After: two calls of private functions that MLIR's ``inline`` opens.

    See tests/lit/lower/compact.mlir.
    """

    name: ClassVar[str] = "kv-lower-compact"

    def run(self, module: ir.Operation) -> None:
        """Rewrites the module."""
        i64 = ir.IntegerType.get_signless(64)
        for op in operations(module, "kv.compact"):
            cache, length, *positions = op.operands
            slots = shape_of(op.results[0].type)[integer(op, "axis")]
            heads = shape_of(positions[0].type)[:1] if positions else []
            type_ = ir.RankedTensorType.get([*heads, slots], i64)
            sources = call_template(op, "kv_sources", _sources_text(op, type_), [length, *positions], [type_])
            replace(
                op, call_template(op, "kv_compact", _gather_text(op, type_), [cache, *sources], [op.results[0].type])
            )


def _sources_text(op: ir.Operation, result: ir.Type) -> str:
    """length [], positions [H, K] -> the position in each slot [H, C], -1 for none.

    Slot j < S + R of a prompt of L tokens holds the last position p <= L - 1 that the slot formula sends there: j
    itself below S, else the p in the last R with p = j (mod R), which is ``L - 1 - (L - 1 - j) mod R``; in the order
    of time it is ``j + max(L - S - R, 0)``. All are j where L <= S + R. Slot S + R + s holds the s-th selected
    position where s < n = L - S - R.
    """
    length, *positions = (operand.type for operand in op.operands[1:])
    sink, ring = integer(op, "sink"), integer(op, "ring")
    with_heads = len(positions) == 1
    slot_map = "affine_map<(h, j) -> (h, j)>" if with_heads else "affine_map<(j) -> (j)>"
    iterators = ", ".join(['"parallel"'] * (2 if with_heads else 1))
    recent = """
    %signed_age = arith.subi %last, %j : index
    %age = arith.maxsi %signed_age, %zero : index
    %turn = arith.remui %age, %ring : index
    %recent = arith.subi %last, %turn : index"""
    if string(op, "order") == "time":
        recent = """
    %moved = arith.maxsi %evicted, %zero : index
    %recent = arith.addi %j, %moved : index"""
    select = ""
    if with_heads:
        select = f"""
    %signed_s = arith.subi %j, %fixed : index
    %s = arith.maxsi %signed_s, %zero : index
    %h = linalg.index 0 : index
    %chosen = tensor.extract %positions[%h, %s] : {positions[0]}
    %has_chosen = arith.cmpi slt, %s, %evicted : index
    %selected = arith.select %has_chosen, %chosen, %none : i64
    %is_fixed = arith.cmpi slt, %j, %fixed : index
    %result = arith.select %is_fixed, %stored, %selected : i64"""
    return f"""
#slot = {slot_map}
func.func @sources(%length: {length}{f", %positions: {positions[0]}" if with_heads else ""}) -> {result} {{
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %sink = arith.constant {sink} : index
  %ring = arith.constant {ring} : index
  %none = arith.constant -1 : i64
  %scalar = tensor.extract %length[] : {length}
  %l = arith.index_cast %scalar : {length.element_type} to index
  %last = arith.subi %l, %one : index
  %fixed = arith.constant {sink + ring} : index
  %evicted = arith.subi %l, %fixed : index
  %empty = tensor.empty() : {result}
  %sources = linalg.generic {{indexing_maps = [#slot], iterator_types = [{iterators}]}}
      outs(%empty : {result}) {{
  ^bb0(%out: i64):
    %j = linalg.index {int(with_heads)} : index{recent}
    %is_sink = arith.cmpi slt, %j, %sink : index
    %position = arith.select %is_sink, %j, %recent : index
    %has_token = arith.cmpi slt, %j, %l : index
    %wide = arith.index_cast %position : index to i64
    %stored = arith.select %has_token, %wide, %none : i64{select}
    linalg.yield {"%result" if with_heads else "%stored"} : i64
  }} -> {result}
  return %sources : {result}
}}"""


def _gather_text(op: ir.Operation, sources: ir.Type) -> str:
    """cache [1, .., N, ..], sources [H, C] or [C] -> [1, .., C, ..]."""
    cache, result = op.operands[0].type, op.results[0].type
    element = cache.element_type
    rank, axis, head_axis = len(shape_of(cache)), integer(op, "axis"), integer(op, "head_axis")
    names = [f"d{i}" for i in range(rank)]
    source_index = [f"d{axis}"]
    if len(shape_of(sources)) == 2:
        source_index = [f"d{head_axis}" if head_axis > 0 else "0", *source_index]
    indices = "".join(f"    %i{i} = linalg.index {i} : index\n" for i in range(rank) if i != axis)
    place = ", ".join("%position" if i == axis else f"%i{i}" for i in range(rank))
    zero = "0.0" if isinstance(element, ir.FloatType) else "0"
    return f"""
#source = affine_map<({", ".join(names)}) -> ({", ".join(source_index)})>
#slot = affine_map<({", ".join(names)}) -> ({", ".join(names)})>
func.func @compact(%cache: {cache}, %sources: {sources}) -> {result} {{
  %zero = arith.constant 0 : index
  %last = arith.constant {shape_of(cache)[axis] - 1} : index
  %nothing = arith.constant {zero} : {element}
  %empty = tensor.empty() : {result}
  %slots = linalg.generic {{
      indexing_maps = [#source, #slot], iterator_types = [{", ".join(['"parallel"'] * rank)}]}}
      ins(%sources : {sources}) outs(%empty : {result}) {{
  ^bb0(%source: i64, %out: {element}):
{indices}    %signed = arith.index_cast %source : i64 to index
    %at_least = arith.maxsi %signed, %zero : index
    %position = arith.minsi %at_least, %last : index
    %token = tensor.extract %cache[{place}] : {cache}
    %has_token = arith.cmpi sge, %signed, %zero : index
    %value = arith.select %has_token, %token, %nothing : {element}
    linalg.yield %value : {element}
  }} -> {result}
  return %slots : {result}
}}"""
