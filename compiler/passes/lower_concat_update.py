"""Pass ``kv-lower-concat-update``: a new token per row by slice and concat, the paper's baseline."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

from torch_mlir import ir

from ..dialect.kv import RingUpdateOp, index_attribute, integer
from ..dialect.types import shape_of
from .template import call_template, operations, replace


@dataclasses.dataclass(frozen=True)
class LowerConcatUpdate:
    """``kv.concat_update`` to both of its branches and a select between them per row.

    Applies to the op on builtin tensors; the branch of a row with a free slot is a ``kv.ring_update`` at the position
    itself, so ``kv-lower-ring-update`` comes after. The cache is read by both branches, so neither can be computed in
    its storage: that is what the op is for.

    Before: ``%1 = "kv.concat_update"(%cache, %rows, %positions, %active) {axis = 2 : i64, ring = 8 : i64, ...}``

    After::

        %appended = "kv.ring_update"(%cache, %rows, %positions, %active) {axis = 2 : i64}
        %sinks = tensor.extract_slice %cache ..
        %recent = tensor.extract_slice %cache ..          // but the oldest
        %selected = tensor.extract_slice %cache ..
        %joined = tensor.insert_slice .. into ..          // of each, and of %rows
        %1 = linalg.generic ins(%positions, %active, %appended, %joined)

    See tests/lit/lower/concat_update.mlir.
    """

    name: ClassVar[str] = "kv-lower-concat-update"

    def run(self, module: ir.Operation) -> None:
        """Rewrites the module."""
        for op in operations(module, "kv.concat_update"):
            cache, rows, positions, active = op.operands
            axis = index_attribute(integer(op, "axis"))
            with op.location, ir.InsertionPoint(op):
                # a row without a free slot writes at the cache's end, in a branch that is not taken
                appended = RingUpdateOp(cache, rows, positions, active, axis, cache.type).updated
            (joined,) = call_template(op, "kv_concat", _concat_text(op), [cache, rows], [cache.type])
            taken = [positions, active, appended, joined]
            replace(op, call_template(op, "kv_take_branch", _select_text(op), taken, [cache.type]))


def _concat_text(op: ir.Operation) -> str:
    """cache [.., C, ..], rows [.., 1, ..] -> [.., C, ..]: sinks, recent but the oldest, the new token, selected."""
    cache, rows = (operand.type for operand in list(op.operands)[:2])
    axis, sink, ring = (integer(op, name) for name in ("axis", "sink", "ring"))
    fixed, slots = sink + ring, shape_of(cache)[axis]
    lines, joined = [f"%none = tensor.empty() : {cache}"], "%none"

    def numbers(values: Sequence[int]) -> str:
        return f"[{', '.join(map(str, values))}]"

    def window(at: int, extent: int) -> str:
        shape = shape_of(cache)
        offsets = [at if i == axis else 0 for i in range(len(shape))]
        sizes = [extent if i == axis else d for i, d in enumerate(shape)]
        return f"{numbers(offsets)} {numbers(sizes)} {numbers([1] * len(shape))}"

    def join(part: str, type_: ir.Type, at: int) -> None:
        nonlocal joined
        extent = shape_of(type_)[axis]
        lines.append(f"%to_{at} = tensor.insert_slice {part} into {joined}{window(at, extent)} : {type_} into {cache}")
        joined = f"%to_{at}"

    for start, extent, at in ((0, sink, 0), (sink + 1, ring - 1, sink), (fixed, slots - fixed, fixed)):
        if extent > 0:
            shape = [extent if i == axis else d for i, d in enumerate(shape_of(cache))]
            part = ir.RankedTensorType.get(shape, cache.element_type)
            lines.append(f"%from_{start} = tensor.extract_slice %cache{window(start, extent)} : {cache} to {part}")
            join(f"%from_{start}", part, at)
    join("%rows", rows, fixed - 1)
    body = "\n  ".join(lines)
    return f"""
func.func @concat(%cache: {cache}, %rows: {rows}) -> {cache} {{
  {body}
  return {joined} : {cache}
}}"""


def _select_text(op: ir.Operation) -> str:
    """positions [B], active [B], appended and joined [B, ..] -> joined where an active row is full, else appended."""
    cache, _, positions, active = (operand.type for operand in op.operands)
    names = ", ".join(f"d{i}" for i in range(len(shape_of(cache))))
    iterators = ", ".join(['"parallel"'] * len(shape_of(cache)))
    element = cache.element_type
    return f"""
#row = affine_map<({names}) -> (d0)>
#whole = affine_map<({names}) -> ({names})>
func.func @take(%positions: {positions}, %active: {active}, %appended: {cache}, %joined: {cache}) -> {cache} {{
  %fixed = arith.constant {integer(op, "sink") + integer(op, "ring")} : index
  %empty = tensor.empty() : {cache}
  %updated = linalg.generic {{indexing_maps = [#row, #row, #whole, #whole, #whole], iterator_types = [{iterators}]}}
      ins(%positions, %active, %appended, %joined : {positions}, {active}, {cache}, {cache}) outs(%empty : {cache}) {{
  ^bb0(%position: {positions.element_type}, %is_active: i1, %append: {element}, %join: {element}, %out: {element}):
    %t = arith.index_cast %position : {positions.element_type} to index
    %is_full = arith.cmpi sge, %t, %fixed : index
    %joins = arith.andi %is_full, %is_active : i1
    %value = arith.select %joins, %join, %append : {element}
    linalg.yield %value : {element}
  }} -> {cache}
  return %updated : {cache}
}}"""
