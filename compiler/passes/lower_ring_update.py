"""Pass ``kv-lower-ring-update``: a new token per row, as a scatter in place."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

from torch_mlir import ir

from ..dialect.kv import integer
from ..dialect.types import shape_of
from .scatter_rows import groups, place, scatter_rows
from .template import operations


@dataclasses.dataclass(frozen=True)
class LowerRingUpdate:
    """``kv.ring_update`` to ``kv.scatter`` with the places worked out in linalg.

    Applies to the op on builtin tensors. The axes up to the sequence axis become U rows to write, one per row, head
    (and whatever else stands before the axis); a row that is not active is masked, so that its slot keeps its bytes
    without being read. Slots outside the cache are moved to its nearest end: a scatter outside its target would
    overwrite foreign memory.

    Before: ``%1 = "kv.ring_update"(%cache, %rows, %slots, %active) {axis = 2 : i64}``

    After: ``%1 = "kv.scatter"(%updates, %places, %mask, %cache)`` with updates [B * H, D], places [B * H, 3].

    See tests/lit/lower/ring_update.mlir.
    """

    name: ClassVar[str] = "kv-lower-ring-update"

    def run(self, module: ir.Operation) -> None:
        """Rewrites the module."""
        for op in operations(module, "kv.ring_update"):
            scatter_rows(op, integer(op, "axis"), _text)


def _text(op: ir.Operation, types: list[ir.Type]) -> str:
    """rows [B, .., 1, ..], slots [B], active [B] -> updates [U, ..], places [U, axis + 1], mask [U]."""
    updates, places, mask = types
    cache, rows, slots, active = (operand.type for operand in op.operands)
    shape, axis = shape_of(cache), integer(op, "axis")
    per_row = math.prod(shape[1:axis])
    lines, column = place(shape_of(rows), axis)
    return f"""
#u = affine_map<(u) -> (u)>
#place = affine_map<(u, c) -> (u, c)>
func.func @ring_update(%rows: {rows}, %slots: {slots}, %active: {active}) -> ({updates}, {places}, {mask}) {{
  %zero = arith.constant 0 : index
  %last = arith.constant {shape[axis] - 1} : index
  %per_row = arith.constant {per_row} : index
  %updates = tensor.collapse_shape %rows {groups(shape_of(rows), axis)} : {rows} into {updates}
  %no_places = tensor.empty() : {places}
  %places = linalg.generic {{indexing_maps = [#place], iterator_types = ["parallel", "parallel"]}}
      outs(%no_places : {places}) {{
  ^bb0(%out: i32):
    %u = linalg.index 0 : index
    %column = linalg.index 1 : index
    %row = arith.divui %u, %per_row : index
    %value = tensor.extract %slots[%row] : {slots}
    %signed = arith.index_cast %value : {slots.element_type} to index
    %at_least = arith.maxsi %signed, %zero : index
    %slot = arith.minsi %at_least, %last : index{lines}
    %result = arith.index_cast {column} : index to i32
    linalg.yield %result : i32
  }} -> {places}
  %no_mask = tensor.empty() : {mask}
  %mask = linalg.generic {{indexing_maps = [#u], iterator_types = ["parallel"]}} outs(%no_mask : {mask}) {{
  ^bb0(%out: i1):
    %u = linalg.index 0 : index
    %row = arith.divui %u, %per_row : index
    %value = tensor.extract %active[%row] : {active}
    linalg.yield %value : i1
  }} -> {mask}
  return %updates, %places, %mask : {updates}, {places}, {mask}
}}"""
