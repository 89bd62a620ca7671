"""Pass ``kv-lower-write-row``: one row of a state replaced."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from torch_mlir import ir

from ..dialect.types import shape_of
from .template import call_template, operations, replace


@dataclasses.dataclass(frozen=True)
class LowerWriteRow:
    """``kv.write_row`` to ``tensor.insert_slice`` at a dynamic row, which IREE does in place.

    Applies to the op on builtin tensors. A row outside the batch is moved to its nearest end, so that no call can
    write outside the state; who calls the program refuses such a row.

    Before: ``%1 = "kv.write_row"(%state, %value, %row)``

    After: ``%1 = tensor.insert_slice %value into %state[%r, 0, 0, 0] [1, 2, 16, 4] [1, 1, 1, 1]``, in a function to
    be inlined.

    See tests/lit/lower/write_row.mlir.
    """

    name: ClassVar[str] = "kv-lower-write-row"

    def run(self, module: ir.Operation) -> None:
        """Rewrites the module."""
        for op in operations(module, "kv.write_row"):
            replace(op, call_template(op, "kv_write_row", _text(op), op.operands, [op.results[0].type]))


def _text(op: ir.Operation) -> str:
    target, value, row = (operand.type for operand in op.operands)
    shape = shape_of(target)
    offsets = ", ".join(["%r", *["0"] * (len(shape) - 1)])
    sizes = ", ".join(map(str, [1, *shape[1:]]))
    strides = ", ".join(["1"] * len(shape))
    return f"""
func.func @write_row(%target: {target}, %value: {value}, %row: {row}) -> {target} {{
  %zero = arith.constant 0 : index
  %last = arith.constant {shape[0] - 1} : index
  %scalar = tensor.extract %row[] : {row}
  %signed = arith.index_cast %scalar : {row.element_type} to index
  %at_least = arith.maxsi %signed, %zero : index
  %r = arith.minsi %at_least, %last : index
  %written = tensor.insert_slice %value into %target[{offsets}] [{sizes}] [{strides}] : {value} into {target}
  return %written : {target}
}}"""
