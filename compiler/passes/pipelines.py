"""The pipelines by name: which passes run, in which order, from one phase to the next."""

from __future__ import annotations

from torch_mlir.passmanager import PassManager

from .lower_asserts import LowerAsserts
from .lower_attention import LowerAttention
from .lower_compact import LowerCompact
from .lower_parameters import LowerParameters
from .lower_ring_update import LowerRingUpdate
from .lower_scatter import LowerScatter
from .lower_slots import LowerSlots
from .lower_state import LowerState
from .lower_to_builtin import KvToBuiltin
from .lower_topk_select import LowerTopkSelect
from .lower_verify_linalg import VerifyLinalg
from .lower_view_dtype import LowerViewDtype
from .lower_write_row import LowerWriteRow
from .manager import Step, split_pipeline


def lower_to_linalg() -> list[Step]:
    """From the static phase to the linalg phase."""
    return [
        "inline",
        "symbol-dce",
        "torchdynamo-export-to-torch-backend-pipeline",
        KvToBuiltin(),
        LowerViewDtype(),
        *_torch_to_linalg(),
        LowerAsserts(),
        LowerAttention(),
        LowerTopkSelect(),
        LowerCompact(),
        LowerRingUpdate(),
        LowerWriteRow(),
        LowerSlots(),
        "inline",
        "symbol-dce",
        "canonicalize",
        "cse",
        VerifyLinalg(),
    ]


def lower_to_iree() -> list[Step]:
    """From the linalg phase to what iree-compile takes."""
    return [LowerState(), LowerParameters(), LowerScatter()]


def _torch_to_linalg() -> list[Step]:
    """torch-mlir's own pipeline without its last pass, which refuses every op that it does not know, the kv ops too.

    Needs a current context.
    """
    text = str(PassManager.parse("builtin.module(torch-backend-to-linalg-on-tensors-backend-pipeline)"))
    inside = text.removeprefix("builtin.module(").removesuffix(")")
    return [step for step in split_pipeline(inside) if step != "torch-verify-linalg-on-tensors-backend-contract"]
