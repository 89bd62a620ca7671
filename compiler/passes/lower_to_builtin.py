"""Pass ``kv-to-builtin``: kv ops from torch's tensors to builtin ones."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from torch_mlir import ir

from ..dialect.types import builtin_tensor, is_vtensor


@dataclasses.dataclass(frozen=True)
class KvToBuiltin:
    """Puts every kv op on builtin tensors, behind ``torch_c`` casts that torch-mlir's linalg pipeline folds away.

    Applies to a module in the static phase; whatever the op, its operands (the optional ones too) and results of type
    ``!torch.vtensor`` change, its attributes do not. Without it torch-mlir fails with "failed to legalize operation
    'kv.parameter'". Relies on the kv ops' verifiers taking both kinds of tensors.

    Before: ``%w = "kv.parameter"() {parameter = "w"} : () -> !torch.vtensor<[4],f32>``

    After: ``%0 = "kv.parameter"() {parameter = "w"} : () -> tensor<4xf32>``
    ``%w = torch_c.from_builtin_tensor %0 : tensor<4xf32> -> !torch.vtensor<[4],f32>``

    See tests/lit/lower/to_builtin.mlir.
    """

    name: ClassVar[str] = "kv-to-builtin"

    def run(self, module: ir.Operation) -> None:
        """Rewrites the module."""
        found: list[ir.Operation] = []

        def visit(op: ir.Operation) -> ir.WalkResult:
            if op.name.startswith("kv."):
                found.append(op)
            return ir.WalkResult.ADVANCE

        module.walk(visit)
        for op in found:
            _to_builtin(op)


def _to_builtin(op: ir.Operation) -> None:
    for index, operand in enumerate(list(op.operands)):
        if is_vtensor(operand.type):
            op.operands[index] = _cast(
                "torch_c.to_builtin_tensor", operand, builtin_tensor(operand.type), op, ir.InsertionPoint(op)
            )
    for result in op.results:
        if is_vtensor(result.type):
            torch_type = result.type
            result.set_type(builtin_tensor(torch_type))
            cast = _cast("torch_c.from_builtin_tensor", result, torch_type, op, ir.InsertionPoint.after(op))
            result.replace_all_uses_except(cast, cast.owner.operation)


def _cast(name: str, value: ir.Value, type_: ir.Type, op: ir.Operation, where: ir.InsertionPoint) -> ir.Value:
    return ir.Operation.create(name, operands=[value], results=[type_], loc=op.location, ip=where).results[0]
