"""Pass ``kv-lower-write-rows``: the active rows of a state, as a scatter in place."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from torch_mlir import ir

from ..dialect.kv import ScatterOp
from ..dialect.types import shape_of
from .template import call_template, operations, replace


@dataclasses.dataclass(frozen=True)
class LowerWriteRows:
    """``kv.write_rows`` to ``kv.scatter`` of whole rows, each to its own place.

    Applies to the op on builtin tensors. The new rows may be computed from the old ones: a scatter writes into the
    state's own storage after everything that reads it, and a row that is masked keeps its bytes without being read.

    Before: ``%1 = "kv.write_rows"(%state, %values, %active)``

    After: ``%1 = "kv.scatter"(%values, %places, %active, %state)`` with places [B, 1] = 0, 1, ..

    See tests/lit/lower/write_rows.mlir.
    """

    name: ClassVar[str] = "kv-lower-write-rows"

    def run(self, module: ir.Operation) -> None:
        """Rewrites the module."""
        for op in operations(module, "kv.write_rows"):
            target, values, active = op.operands
            rows = shape_of(target.type)[0]
            type_ = ir.RankedTensorType.get([rows, 1], ir.IntegerType.get_signless(32, op.context), loc=op.location)
            (places,) = call_template(op, "kv_write_rows", _text(type_), [], [type_])
            with op.location, ir.InsertionPoint(op):
                scatter = ScatterOp(values, places, active, target, target.type)
            replace(op, [scatter.result])


def _text(places: ir.Type) -> str:
    return f"""
#place = affine_map<(u, c) -> (u, c)>
func.func @rows() -> {places} {{
  %none = tensor.empty() : {places}
  %places = linalg.generic {{indexing_maps = [#place], iterator_types = ["parallel", "parallel"]}}
      outs(%none : {places}) {{
  ^bb0(%out: i32):
    %u = linalg.index 0 : index
    %row = arith.index_cast %u : index to i32
    linalg.yield %row : i32
  }} -> {places}
  return %places : {places}
}}"""
