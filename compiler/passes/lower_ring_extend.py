"""Pass ``kv-lower-ring-extend``: several new tokens of one row, as a scatter in place."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from torch_mlir import ir

from ..dialect.kv import integer
from ..dialect.types import shape_of
from .lower_slots import SLOT_OF_POSITION
from .scatter_rows import groups, place, scatter_rows
from .template import operations


@dataclasses.dataclass(frozen=True)
class LowerRingExtend:
    """``kv.ring_extend`` to ``kv.scatter`` with the places and the mask worked out in linalg.

    Applies to the op on builtin tensors. The axes up to the sequence axis become U rows to write, one per head (and
    whatever else stands before the axis) and new token. Padding, and a token that a later one of the same call
    evicts, is masked, so that no slot is written twice. A row outside the batch is moved to its nearest end: a
    scatter outside its target would overwrite foreign memory.

    Before: ``%1 = "kv.ring_extend"(%cache, %rows, %row, %start, %length) {axis = 2 : i64, ring = 8, sink = 2}``

    After: ``%1 = "kv.scatter"(%updates, %places, %mask, %cache)`` with updates [H * N, D], places [H * N, 3].

    See tests/lit/lower/ring_extend.mlir.
    """

    name: ClassVar[str] = "kv-lower-ring-extend"

    def run(self, module: ir.Operation) -> None:
        """Rewrites the module."""
        for op in operations(module, "kv.ring_extend"):
            scatter_rows(op, integer(op, "axis"), _text)


def _text(op: ir.Operation, types: list[ir.Type]) -> str:
    """rows [1, .., N, ..], row, start, length [] -> updates [U, ..], places [U, axis + 1], mask [U]."""
    updates, places, mask = types
    cache, rows, row, start, length = (operand.type for operand in op.operands)
    shape, axis = shape_of(rows), integer(op, "axis")
    lines, column = place(shape, axis, first="%r")
    return f"""
#u = affine_map<(u) -> (u)>
#place = affine_map<(u, c) -> (u, c)>
func.func @ring_extend(%rows: {rows}, %row: {row}, %start: {start}, %length: {length})
    -> ({updates}, {places}, {mask}) {{
  %zero = arith.constant 0 : index
  %last_row = arith.constant {shape_of(cache)[0] - 1} : index
  %tokens = arith.constant {shape[axis]} : index
  %sink = arith.constant {integer(op, "sink")} : index
  %ring = arith.constant {integer(op, "ring")} : index
  %row_value = tensor.extract %row[] : {row}
  %row_signed = arith.index_cast %row_value : {row.element_type} to index
  %row_at_least = arith.maxsi %row_signed, %zero : index
  %r = arith.minsi %row_at_least, %last_row : index
  %start_value = tensor.extract %start[] : {start}
  %start_signed = arith.index_cast %start_value : {start.element_type} to index
  %first = arith.maxsi %start_signed, %zero : index
  %length_value = tensor.extract %length[] : {length}
  %real = arith.index_cast %length_value : {length.element_type} to index
  %stays_from = arith.subi %real, %ring : index
  %updates = tensor.collapse_shape %rows {groups(shape, axis)} : {rows} into {updates}
  %no_places = tensor.empty() : {places}
  %places = linalg.generic {{indexing_maps = [#place], iterator_types = ["parallel", "parallel"]}}
      outs(%no_places : {places}) {{
  ^bb0(%out: i32):
    %u = linalg.index 0 : index
    %column = linalg.index 1 : index
    %j = arith.remui %u, %tokens : index
    %t = arith.addi %first, %j : index
{SLOT_OF_POSITION}{lines}
    %result = arith.index_cast {column} : index to i32
    linalg.yield %result : i32
  }} -> {places}
  %no_mask = tensor.empty() : {mask}
  %mask = linalg.generic {{indexing_maps = [#u], iterator_types = ["parallel"]}} outs(%no_mask : {mask}) {{
  ^bb0(%out: i1):
    %u = linalg.index 0 : index
    %j = arith.remui %u, %tokens : index
    %t = arith.addi %first, %j : index
    %is_real = arith.cmpi slt, %j, %real : index
    %is_sink = arith.cmpi ult, %t, %sink : index
    %is_recent = arith.cmpi sge, %j, %stays_from : index
    %stays = arith.ori %is_sink, %is_recent : i1
    %written = arith.andi %is_real, %stays : i1
    linalg.yield %written : i1
  }} -> {mask}
  return %updates, %places, %mask : {updates}, {places}, {mask}
}}"""
