"""Pass ``kv-lower-read-row``: one row of a state."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from torch_mlir import ir

from ..dialect.types import shape_of
from .template import call_template, operations, replace


@dataclasses.dataclass(frozen=True)
class LowerReadRow:
    """``kv.read_row`` to ``tensor.extract_slice`` at a dynamic row.

    Applies to the op on builtin tensors. A row outside the batch is moved to its nearest end, so that no call can
    read outside the state; who calls the program refuses such a row.

    Before: ``%1 = "kv.read_row"(%state, %row)``

    After: ``%1 = tensor.extract_slice %state[%r, 0, 0, 0] [1, 2, 16, 4] [1, 1, 1, 1]``, in a function to be inlined.

    See tests/lit/lower/read_row.mlir.
    """

    name: ClassVar[str] = "kv-lower-read-row"

    def run(self, module: ir.Operation) -> None:
        """Rewrites the module."""
        for op in operations(module, "kv.read_row"):
            replace(op, call_template(op, "kv_read_row", _text(op), op.operands, [op.results[0].type]))


def _text(op: ir.Operation) -> str:
    (source, row), value = (operand.type for operand in op.operands), op.results[0].type
    shape = shape_of(source)
    offsets = ", ".join(["%r", *["0"] * (len(shape) - 1)])
    sizes = ", ".join(map(str, [1, *shape[1:]]))
    strides = ", ".join(["1"] * len(shape))
    return f"""
func.func @read_row(%source: {source}, %row: {row}) -> {value} {{
  %zero = arith.constant 0 : index
  %last = arith.constant {shape[0] - 1} : index
  %scalar = tensor.extract %row[] : {row}
  %signed = arith.index_cast %scalar : {row.element_type} to index
  %at_least = arith.maxsi %signed, %zero : index
  %r = arith.minsi %at_least, %last : index
  %value = tensor.extract_slice %source[{offsets}] [{sizes}] [{strides}] : {source} to {value}
  return %value : {value}
}}"""
