"""Pass ``kv-lower-scatter``: the scatter into a cache as IREE's own op."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from torch_mlir import ir

from ..dialect.types import shape_of
from .template import operations, replace


@dataclasses.dataclass(frozen=True)
class LowerScatter:
    """``kv.scatter`` to ``iree_linalg_ext.scatter`` with a mask, one dispatch in the target's own storage.

    Applies to a module in the linalg phase, after all of MLIR's passes: ``inline`` crashes where a caller holds an
    unregistered op with a region, which is what this op is to torch-mlir.

    Before: ``%1 = "kv.scatter"(%updates, %places, %mask, %target)``

    After: ``%1 = "iree_linalg_ext.scatter"(%updates, %places, %mask, %target) {dimension_map = array<i64: 0, 1, 2>,
    unique_indices = true, ...}`` with a region that yields the update.

    See tests/lit/lower/scatter.mlir.
    """

    name: ClassVar[str] = "kv-lower-scatter"

    def run(self, module: ir.Operation) -> None:
        """Rewrites the module."""
        module.context.allow_unregistered_dialects = True
        for op in operations(module, "kv.scatter"):
            target = op.operands[3].type
            axes = ", ".join(map(str, range(shape_of(op.operands[1].type)[1])))
            scatter = ir.Operation.create(
                "iree_linalg_ext.scatter",
                operands=list(op.operands),
                results=[target],
                attributes={
                    "dimension_map": ir.Attribute.parse(f"array<i64: {axes}>"),
                    "unique_indices": ir.BoolAttr.get(True),
                    "operandSegmentSizes": ir.Attribute.parse("array<i32: 1, 1, 1, 1>"),
                },
                regions=1,
                loc=op.location,
                ip=ir.InsertionPoint(op),
            )
            element = target.element_type
            block = scatter.regions[0].blocks.append(element, element, arg_locs=[op.location] * 2)
            ir.Operation.create(
                "iree_linalg_ext.yield", operands=[block.arguments[0]], loc=op.location, ip=ir.InsertionPoint(block)
            )
            replace(op, list(scatter.results))
