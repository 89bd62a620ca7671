"""Erases what nothing uses any more, without folding anything else."""

from __future__ import annotations

from torch_mlir import ir

from ..analysis.functions import body

_PURE = ("torch.aten.", "torch.constant.", "torch.prim.ListConstruct", "torch.vtensor.literal", "kv.")
_EFFECTS = ("kv.state_store", "torch.aten._assert")


def erase_dead(function: ir.Operation) -> None:
    """Erases the ops of a function whose results nothing uses, and what only they used.

    MLIR's own dead-code elimination comes with folding, which would fold a concat onto an empty past.
    """
    for op in [view.operation for view in reversed(list(body(function).operations))]:
        pure = op.name.startswith(_PURE) and not op.name.startswith(_EFFECTS)
        if pure and not any(True for result in op.results for _ in result.uses):
            op.erase()
