"""Shapes and element types of the two tensor types that kv ops live on.

A kv op is on ``!torch.vtensor`` until the linalg phase and on builtin ``tensor`` from there on.
torch-mlir's bindings have no class for ``!torch.vtensor``, so its text is parsed here and nowhere else.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

from torch_mlir import ir

_VTENSOR = re.compile(r"^!torch\.vtensor<\[(?P<dims>[^\]]*)\],(?P<element>.+)>$")


# types are unique in their context, and asking the bindings for a type's text is most of an analysis's time
@functools.lru_cache(maxsize=4096)
def _parsed(type_: ir.Type) -> tuple[tuple[int, ...], str] | None:
    """The shape and element type of a ranked tensor type; None for another type."""
    if isinstance(type_, ir.RankedTensorType):
        dims = (type_.get_dim_size(i) if not type_.is_dynamic_dim(i) else -1 for i in range(type_.rank))
        return tuple(dims), str(type_.element_type)
    match = _VTENSOR.match(str(type_))
    if match is None:
        return None
    return tuple(-1 if d == "?" else int(d) for d in match["dims"].split(",") if d), match["element"]


def _of(type_: ir.Type) -> tuple[tuple[int, ...], str]:
    parsed = _parsed(type_)
    if parsed is None:
        raise TypeError(f"not a ranked tensor type: {type_}")
    return parsed


def is_vtensor(type_: ir.Type) -> bool:
    """Whether a type is a ``!torch.vtensor`` of known rank and element type."""
    return is_tensor(type_) and not isinstance(type_, ir.RankedTensorType)


def is_tensor(type_: ir.Type) -> bool:
    """Whether a type is a tensor of known rank, torch or builtin."""
    return _parsed(type_) is not None


def shape_of(type_: ir.Type) -> list[int]:
    """The static shape of a torch or builtin tensor type; -1 for an unknown extent.

    Raises:
        TypeError: the type is not a ranked tensor.
    """
    return list(_of(type_)[0])


def element_of(type_: ir.Type) -> str:
    """The element type as text: ``f32``, ``bf16``, ``si64``, ``i1`` (torch) or ``i64`` (builtin).

    Raises:
        TypeError: the type is not a ranked tensor.
    """
    return _of(type_)[1]


def vtensor(shape: Sequence[int], element: str) -> ir.Type:
    """``!torch.vtensor<[shape],element>`` in the current context."""
    return ir.Type.parse(f"!torch.vtensor<[{','.join(map(str, shape))}],{element}>")


def builtin_tensor(type_: ir.Type) -> ir.Type:
    """The builtin tensor type of a torch tensor type; signedness is dropped, as torch-mlir drops it."""
    element = re.sub(r"^[su]i(?=\d)", "i", element_of(type_))
    dims = "".join(f"{'?' if d < 0 else d}x" for d in shape_of(type_))
    return ir.Type.parse(f"tensor<{dims}{element}>")
