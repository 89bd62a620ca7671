"""Pass ``kv-lower-scatter``: the scatter into a cache as IREE's own op."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from torch_mlir import ir

from ..analysis.aten import owner
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

    Updates that are made of the target, as a state's next value is, come through a ``util.optimization_barrier``: in
    one dispatch with the scatter, IREE 3.13 would write what it still reads, and refuses.

    See tests/lit/lower/scatter.mlir.
    """

    name: ClassVar[str] = "kv-lower-scatter"

    def run(self, module: ir.Operation) -> None:
        """Rewrites the module."""
        module.context.allow_unregistered_dialects = True
        for op in operations(module, "kv.scatter"):
            target = op.operands[3].type
            updates = _apart(op) if _made_of(op.operands[0], op.operands[3]) else op.operands[0]
            axes = ", ".join(map(str, range(shape_of(op.operands[1].type)[1])))
            scatter = ir.Operation.create(
                "iree_linalg_ext.scatter",
                operands=[updates, *list(op.operands)[1:]],
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


def _made_of(value: ir.Value, source: ir.Value) -> bool:
    pending, seen = [value], {value}
    while pending:
        here = pending.pop()
        if here == source:
            return True
        producer = owner(here)
        more = [] if producer is None else [v for v in producer.operands if v not in seen]
        seen.update(more)
        pending += more
    return False


def _apart(op: ir.Operation) -> ir.Value:
    """The updates, in a dispatch of their own."""
    updates = op.operands[0]
    barrier = ir.Operation.create(
        "util.optimization_barrier",
        operands=[updates],
        results=[updates.type],
        loc=op.location,
        ip=ir.InsertionPoint(op),
    )
    return barrier.results[0]
