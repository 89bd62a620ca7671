"""Pass ``kv-verify-linalg``: nothing of torch is left."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from torch_mlir import ir

from ..diagnostics import Refusal

_DIALECTS = ("builtin", "func", "linalg", "tensor", "arith", "math", "scf")
_KV = ("kv.parameter", "kv.state_load", "kv.state_store", "kv.scatter")


@dataclasses.dataclass(frozen=True)
class VerifyLinalg:
    """Refuses a module that is not in the linalg phase; changes nothing.

    Allowed are the ops of builtin, func, linalg, tensor, arith, math and scf, and ``kv.parameter``,
    ``kv.state_load``, ``kv.state_store`` and ``kv.scatter``. An op that torch-mlir leaves behind is one that it
    cannot lower, or not to these dialects.

    See tests/lit/lower/verify_linalg.mlir.
    """

    name: ClassVar[str] = "kv-verify-linalg"

    def run(self, module: ir.Operation) -> None:
        """Checks the module.

        Raises:
            Refusal: at the first op of another dialect.
        """
        foreign: list[ir.Operation] = []

        def visit(op: ir.Operation) -> ir.WalkResult:
            if op.name.split(".")[0] not in _DIALECTS and op.name not in _KV:
                foreign.append(op)
            return ir.WalkResult.ADVANCE

        module.walk(visit)
        if foreign:
            raise Refusal(
                foreign[0],
                f"'{foreign[0].name}' is left after the lowering to linalg",
                "write this part of the model with other operations, or have the lowering extended",
            )
