"""The pipelines by name: which passes run, in which order, from one phase to the next."""

from __future__ import annotations

from collections.abc import Callable

from torch_mlir import ir
from torch_mlir.passmanager import PassManager

from ..analysis.evaluate import Weights
from ..diagnostics import Remark, print_remark
from ..dialect.policy import Order, Policy
from .absorb_expansion import AbsorbExpansion
from .apply_policy import ApplyPolicy
from .check_axis import CheckAxis
from .fold_numbers import FoldNumbers
from .lower_asserts import LowerAsserts
from .lower_attention import LowerAttention
from .lower_compact import LowerCompact
from .lower_concat_update import LowerConcatUpdate
from .lower_parameters import LowerParameters
from .lower_read_row import LowerReadRow
from .lower_ring_extend import LowerRingExtend
from .lower_ring_update import LowerRingUpdate
from .lower_scatter import LowerScatter
from .lower_slots import LowerSlots
from .lower_state import LowerState
from .lower_to_builtin import KvToBuiltin
from .lower_topk_mask import LowerTopkMask
from .lower_topk_select import LowerTopkSelect
from .lower_verify_linalg import VerifyLinalg
from .lower_view_dtype import LowerViewDtype
from .lower_write_row import LowerWriteRow
from .lower_write_rows import LowerWriteRows
from .manager import Step, split_pipeline
from .raise_append import RaiseAppend
from .raise_attention import RaiseAttention
from .raise_fixed import RaiseFixed
from .raise_index import RaiseIndex
from .raise_longest import RaiseLongest
from .raise_repeat import RaiseRepeat
from .raise_state import RaiseState
from .rebuild_positions import RebuildPositions
from .select_last import SelectLast


def raise_to_kv(
    weights: Weights,
    max_positions: int = 4096,
    absorb: bool = True,
    report: Callable[[Remark], None] = print_remark,
) -> list[Step]:
    """From the torch phase to the kv phase: a module of @decode, any @prefill_<N> and any @extend_<N>.

    Each function with a past comes with another of its name and ``_probe``, at another past length; a program of a
    fixed past has none.

    ``weights`` gives the value of a registered buffer that masks are made of; no position reaches ``max_positions``.
    ``absorb``: attention runs on latent caches where that takes fewer operations; ``report`` is told of each.
    """
    return [
        RaiseState(),
        RaiseFixed(weights),
        RaiseAppend(),
        RaiseRepeat(weights),
        RaiseIndex(weights),
        RaiseAttention(weights, max_positions),
        SelectLast(),
        RaiseLongest(),
        CheckAxis(),
        RebuildPositions(),
        *([AbsorbExpansion(report=report)] if absorb else []),
    ]


def apply_policy(policy: Policy, batch: int, order: Order = "ring") -> list[Step]:
    """From the kv phase to the static phase: ``batch`` rows of ``policy.slots`` slots."""
    return [
        ApplyPolicy(
            policy.sink,
            policy.recent,
            policy.topk,
            policy.window,
            batch,
            policy.pool,
            policy.pool_size,
            policy.score,
            order,
        )
    ]


def probe_past(slots: int, max_positions: int | None) -> int:
    """The past length of @decode_probe: the longest that the model is made for, or some multiple of the slots.

    Masks are proven plainly causal up to that length, so no position beyond it may be decoded.
    """
    return max(max_positions - 1, slots) if max_positions is not None else max(4 * slots, 4096)


def lower_to_linalg() -> list[Step]:
    """From the static phase to the linalg phase."""
    return [
        FoldNumbers(),
        "inline",
        "symbol-dce",
        "torchdynamo-export-to-torch-backend-pipeline",
        KvToBuiltin(),
        LowerViewDtype(),
        *_torch_to_linalg(),
        LowerAsserts(),
        LowerAttention(),
        LowerTopkSelect(),
        LowerTopkMask(),
        LowerCompact(),
        LowerConcatUpdate(),
        LowerRingUpdate(),
        LowerRingExtend(),
        LowerReadRow(),
        LowerWriteRow(),
        LowerWriteRows(),
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
    """torch-mlir's own pipeline without its last pass, which refuses every op that it does not know, the kv ops too."""
    with ir.Context():
        text = str(PassManager.parse("builtin.module(torch-backend-to-linalg-on-tensors-backend-pipeline)"))
    inside = text.removeprefix("builtin.module(").removesuffix(")")
    return [step for step in split_pipeline(inside) if step != "torch-verify-linalg-on-tensors-backend-contract"]
