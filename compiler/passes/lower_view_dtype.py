"""Pass ``kv-lower-view-dtype``: a tensor's bits read as another type."""

from __future__ import annotations

import dataclasses
import re
from typing import ClassVar

from torch_mlir import ir

from ..diagnostics import Refusal
from ..dialect.types import builtin_tensor, element_of
from .template import operations, replace


@dataclasses.dataclass(frozen=True)
class LowerViewDtype:
    """``aten.view.dtype`` to ``arith.bitcast``, for which torch-mlir's linalg pipeline has no lowering.

    Applies where both element types have the same width; other widths would change the shape and are refused.

    Before: ``%1 = torch.aten.view.dtype %0, %int3 : !torch.vtensor<[4],f32>, !torch.int -> !torch.vtensor<[4],si32>``

    After: ``%1 = arith.bitcast %0 : tensor<4xf32> to tensor<4xi32>``, between ``torch_c`` casts.

    See tests/lit/lower/view_dtype.mlir.
    """

    name: ClassVar[str] = "kv-lower-view-dtype"

    def run(self, module: ir.Operation) -> None:
        """Rewrites the module.

        Raises:
            Refusal: the two element types differ in width.
        """
        for op in operations(module, "torch.aten.view.dtype"):
            source, target = op.operands[0].type, op.results[0].type
            if _bits(source) != _bits(target):
                raise Refusal(
                    op,
                    f"reads the bits of {element_of(source)} as {element_of(target)}, of another width",
                    "view a tensor only as a type of the same width",
                )
            value = op.operands[0]
            for name, type_ in (
                ("torch_c.to_builtin_tensor", builtin_tensor(source)),
                ("arith.bitcast", builtin_tensor(target)),
                ("torch_c.from_builtin_tensor", target),
            ):
                value = ir.Operation.create(
                    name, operands=[value], results=[type_], loc=op.location, ip=ir.InsertionPoint(op)
                ).results[0]
            replace(op, [value])


def _bits(type_: ir.Type) -> int:
    match = re.search(r"\d+", element_of(type_))
    return int(match[0]) if match else 0
