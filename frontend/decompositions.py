"""The decompositions to core ATen: torch.export's own, and attention spelled out."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .errors import FrontendError

_aten: Any = torch.ops.aten
LONGEST_RANKED = 1024
"""The most entries of which a topk is found by comparing all pairs."""

MOST_SCATTERED = 64
"""The most places that a scatter writes to, one after the other."""

_HALF = (torch.bfloat16, torch.float16)


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Attention as products and a softmax, whatever the user's device would have fused it to.

    query [.., Hq, L, Dk], key [.., Hkv, S, Dk], value [.., Hkv, S, Dv] -> [.., Hq, L, Dv], in query's dtype;
    16-bit floats are computed in f32, as PyTorch's own reference does. ``is_causal`` aligns the first query with
    the first key. Source: torch.nn.functional.scaled_dot_product_attention's documentation and
    aten/src/ATen/native/transformers/attention.cpp (_scaled_dot_product_attention_math).

    Raises:
        FrontendError: dropout is on.
    """
    if dropout_p:
        raise FrontendError(f"attention with dropout {dropout_p}: export the model in eval mode")
    dtype = query.dtype
    if enable_gqa:
        key, value = (_repeat_heads(t, query.shape[-3]) for t in (key, value))
    if dtype in _HALF:
        query, key, value = (t.to(torch.float32) for t in (query, key, value))
    if scale is None:
        scale = 1.0 / math.sqrt(query.shape[-1])
    logits = torch.matmul(query, key.transpose(-2, -1)) * scale
    if is_causal:
        queries, keys = torch.arange(query.shape[-2]), torch.arange(key.shape[-2])
        attn_mask = keys[None, :] <= queries[:, None]
    if attn_mask is not None:
        allowed = attn_mask.dtype == torch.bool
        logits = torch.where(attn_mask, logits, -math.inf) if allowed else logits + attn_mask
    return torch.matmul(torch.softmax(logits, -1), value).to(dtype)


def linear(value: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x W^T + b`` as one product of matrices, [.., K] x [N, K] -> [.., N].

    PyTorch's own makes it a batched product with the weights repeated where ``x`` is not contiguous, as behind
    attention.
    """
    if bias is None:
        return matmul(value, weight.t())
    product = torch.addmm(bias, value.reshape(-1, value.shape[-1]), weight.t())
    return product.reshape(*value.shape[:-1], weight.shape[0])


def matmul(left: Tensor, right: Tensor) -> Tensor:
    """``aten.matmul``; [.., M, K] x [K, N] is one product of matrices whatever the strides of ``left`` are."""
    if left.ndim < 3 or right.ndim != 2:
        return torch.matmul(left, right)
    flat = left.reshape(-1, left.shape[-1])
    return torch.mm(flat, right).reshape(*left.shape[:-1], right.shape[-1])


def _repeat_heads(heads: Tensor, count: int) -> Tensor:
    *rows, own, length, width = heads.shape
    if own == count:
        return heads
    group = count // own
    return heads.unsqueeze(-3).expand(*rows, own, group, length, width).reshape(*rows, count, length, width)


def squeeze_dims(value: Tensor, dims: list[int]) -> Tensor:
    """``aten.squeeze.dims``, which torch-mlir has no op for, as a view."""
    gone = {dim % value.ndim for dim in dims}
    return value.view([extent for i, extent in enumerate(value.shape) if i not in gone or extent != 1])


def split_with_sizes(value: Tensor, sizes: list[int], dim: int = 0) -> list[Tensor]:
    """``aten.split_with_sizes`` as slices, so that no op has a list of tensors for a result."""
    parts, start = [], 0
    for size in sizes:
        parts.append(_aten.slice.Tensor(value, dim, start, start + size))
        start += size
    return parts


def topk(value: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Tensor, Tensor]:
    """``aten.topk`` by rank: an entry's is the number of those that come before it, ties in the order of their index.

    value [.., E, ..] -> values and indices [.., k, ..], sorted. Compares all pairs, E x E for each row: for the experts
    of a router, not for long axes. torch-mlir would sort by an op that has no lowering to linalg.

    Raises:
        FrontendError: the axis is longer than ``LONGEST_RANKED``.
    """
    row = value.movedim(dim, -1)
    count = row.shape[-1]
    if count > LONGEST_RANKED:
        raise FrontendError(
            f"topk over {count} entries: only up to {LONGEST_RANKED} are supported, as the experts of a router are"
        )
    index = torch.arange(count)
    one, other = row.unsqueeze(-1), row.unsqueeze(-2)
    before = (other > one) if largest else (other < one)
    before = before | ((other == one) & (index < index.unsqueeze(-1)))
    rank = before.to(torch.int64).sum(-1)
    chosen = rank.unsqueeze(-2) == torch.arange(k).unsqueeze(-1)
    values = torch.where(chosen, row.unsqueeze(-2), torch.zeros((), dtype=row.dtype)).sum(-1, dtype=row.dtype)
    indices = torch.where(chosen, index, 0).sum(-1)
    return values.movedim(-1, dim), indices.movedim(-1, dim)


def conv1d(
    value: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """``aten.conv1d`` without padding, stride and dilation as a sum over its taps, [B, C, L] x [O, C / groups, T].

    With a group for each channel a tap is a product element by element, else one of matrices, as torch-mlir and what
    comes behind it take them best: a decoder's short convolution runs over the few entries that it keeps. Others are
    left to PyTorch's own decomposition.
    """
    steps = [[n] if isinstance(n, int) else list(n) for n in (stride, padding, dilation)]
    if steps != [[1], [0], [1]]:
        made: Tensor = _aten.convolution(value, weight, bias, *steps, False, [0], groups)
        return made
    rows, channels, extent = value.shape
    features, own, taps = weight.shape
    length = extent - taps + 1
    total = torch.zeros((), dtype=value.dtype) if bias is None else bias[:, None]
    for tap in range(taps):
        part = value.narrow(2, tap, length)
        if groups == channels == features:
            part = part * weight[:, 0, tap, None]
        elif groups == 1:
            part = matmul(part.transpose(1, 2), weight[:, :, tap].t()).transpose(1, 2)
        else:
            part = part.reshape(rows, groups, own, length).permute(1, 0, 3, 2).reshape(groups, rows * length, own)
            part = torch.bmm(part, weight[:, :, tap].reshape(groups, -1, own).transpose(1, 2))
            part = part.view(groups, rows, length, -1).permute(1, 0, 3, 2).reshape(rows, features, length)
        total = total + part
    return total


# Ops of the exported graph that we decompose ourselves. A view is a reshape, since it was found to be possible with
# the strides that the fused attention gives, and ours gives others.
OWN: dict[Any, Callable[..., Any]] = {
    _aten.scaled_dot_product_attention.default: scaled_dot_product_attention,
    _aten.linear.default: linear,
    _aten.matmul.default: matmul,
    _aten.view.default: _aten.reshape.default,
    _aten._unsafe_view.default: _aten.reshape.default,
    _aten.topk.default: topk,
    _aten.conv1d.default: conv1d,
}


KEPT_ALONG_THE_PAST = {_aten.topk.default: 2, _aten.scatter.value: 1, _aten.scatter_.value: 1}
"""Ops that stay what they are along an axis that grows, with the argument that is the axis."""


def copy(value: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    """``aten.copy``: ``source`` in the shape and dtype of ``value``, whatever that holds."""
    return source.to(value.dtype).expand(value.shape)


def cat(tensors: list[Tensor], dim: int = 0) -> Any:
    """``aten.cat`` of one tensor is that; others stay as they are."""
    return tensors[0] if len(tensors) == 1 else NotImplemented


def scatter_value(value: Tensor, dim: int, index: Tensor, number: float) -> Tensor:
    """``aten.scatter.value`` as a comparison with all places: a router's mask of its chosen groups.

    value [.., E, ..], index [.., k, ..] -> value's shape.

    Raises:
        FrontendError: ``index`` leaves out rows, or the axis is longer than ``LONGEST_RANKED``.
    """
    row, chosen = value.movedim(dim, -1), index.movedim(dim, -1)
    if chosen.shape[:-1] != row.shape[:-1] or row.shape[-1] > LONGEST_RANKED:
        raise FrontendError(f"scatter of {list(index.shape)} places into {list(value.shape)} is not supported")
    hit = (chosen.unsqueeze(-1) == torch.arange(row.shape[-1])).any(-2)
    return torch.where(hit, torch.full((), number, dtype=value.dtype), row).movedim(-1, dim)


def scatter_src(value: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """``aten.scatter.src``, one place after the other: a router's scores of its chosen experts among all.

    value [.., E, ..], index and source [.., k, ..] -> value's shape; of two in one place the later stays.

    Raises:
        FrontendError: ``index`` leaves out rows, or there are more than ``MOST_SCATTERED`` places.
    """
    row, places, written = (tensor.movedim(dim, -1) for tensor in (value, index, source))
    count = places.shape[-1]
    if places.shape[:-1] != row.shape[:-1] or written.shape != places.shape or count > MOST_SCATTERED:
        raise FrontendError(
            f"scatter of {list(source.shape)} by an index of {list(index.shape)} into {list(value.shape)} is not "
            f"supported: at most {MOST_SCATTERED} places in every row are, as the experts of a router"
        )
    every = torch.arange(row.shape[-1])
    for place in range(count):
        row = torch.where(places[..., place, None] == every, written[..., place, None], row)
    return row.movedim(-1, dim)


def core_aten() -> dict[Any, Callable[..., Any]]:
    """torch.export's table of decompositions to core ATen, by op, and some of our own on top."""
    table: Any = torch.export.default_decompositions()  # a dict that fills itself when it is read
    every = dict(table.items())
    # raising attention knows it whole: a sink may be told from it
    every.pop(_aten.logsumexp.default, None)
    return {
        **every,
        _aten.squeeze.dims: squeeze_dims,
        _aten.copy.default: copy,
        _aten.cat.default: cat,
        _aten.scatter.value: scatter_value,
        _aten.scatter.src: scatter_src,
        _aten.split_with_sizes.default: split_with_sizes,
    }
