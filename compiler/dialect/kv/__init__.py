"""The kv dialect: a decoder's cache before, while and after it becomes a fixed set of slots.

Letters in shapes: B rows, H key-value heads, G query heads per key-value head, Q query tokens,
T cached tokens, N the compiled prompt length, D features, C = S + R + K slots (sinks, ring, selected).
Every op takes ``!torch.vtensor`` or builtin tensors; a cache is rank 3 or 4, row axis first, with its
sequence axis at ``axis``.
"""

from .attention_ops import AttentionOp, LinearBiasOp, TopkMaskOp, TopkSelectOp, attention, topk_mask
from .base import Kv, Reach, index_attribute, integer, number, string
from .slot_ops import SelectedCountOp, SlotPositionsOp, SlotsOp, VisibleExtendOp, VisibleOp
from .state_ops import (
    AppendOp,
    CompactOp,
    ConcatUpdateOp,
    ParameterOp,
    ReadRowOp,
    RingExtendOp,
    RingUpdateOp,
    ScatterOp,
    StateLoadOp,
    StateStoreOp,
    WriteRowOp,
    WriteRowsOp,
)

__all__ = [
    "AppendOp",
    "AttentionOp",
    "CompactOp",
    "ConcatUpdateOp",
    "Kv",
    "LinearBiasOp",
    "ParameterOp",
    "Reach",
    "ReadRowOp",
    "RingExtendOp",
    "RingUpdateOp",
    "ScatterOp",
    "SelectedCountOp",
    "SlotPositionsOp",
    "SlotsOp",
    "StateLoadOp",
    "StateStoreOp",
    "TopkMaskOp",
    "TopkSelectOp",
    "VisibleExtendOp",
    "VisibleOp",
    "WriteRowOp",
    "WriteRowsOp",
    "attention",
    "index_attribute",
    "integer",
    "number",
    "string",
    "topk_mask",
]
