"""Pass ``kv-lower-asserts``: the run-time checks of indices that torch-mlir puts into gathers."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from torch_mlir import ir

from .template import operations


@dataclasses.dataclass(frozen=True)
class LowerAsserts:
    """Erases ``cf.assert``, and with a ``canonicalize`` after it what only the conditions needed.

    torch-mlir puts one into the body of each gather (an embedding, an index_select), where IREE drops it silently and
    no planner can account for it. So the ranges of a program's inputs are for the caller to check: tokens inside the
    table, lengths and positions as the program's contract has them.

    Before: ``cf.assert %in_range, "index must be smaller than dim size"``

    See tests/lit/lower/asserts.mlir.
    """

    name: ClassVar[str] = "kv-lower-asserts"

    def run(self, module: ir.Operation) -> None:
        """Rewrites the module."""
        for op in operations(module, "cf.assert"):
            op.erase()
