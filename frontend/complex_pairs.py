"""Complex numbers as pairs: a complex value [..] becomes its real and imaginary parts [.., 2], op by op.

Rotary embeddings are written so: ``torch.polar``, ``view_as_complex``, a product, ``view_as_real``. Neither lowering
nor axis walk need to know complex types then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor
from torch.fx import Node

from .errors import FrontendError
from .flat import source_of

_aten: Any = torch.ops.aten


def pair(value: Tensor) -> Tensor:
    """A weight as the program reads it: a complex one as its parts [.., 2], of the same memory, any other as it is."""
    return torch.view_as_real(value) if value.is_complex() else value


def in_pairs(node: Node) -> Callable[..., Any] | None:
    """What does to pairs what an op of a graph does to complex numbers; None where it has nothing to do with them.

    Raises:
        FrontendError: it is not known how to do it to pairs.
    """
    is_complex = tuple(map(_is_complex, node.args))
    if not any(map(_is_complex, pytree.tree_leaves((node.args, node.kwargs, node.meta.get("val"))))):
        return None
    if node.target in _PRODUCTS:
        return _PRODUCTS[node.target].get(is_complex[:2]) or _refuse(node)
    return _FORMS.get(node.target) or _refuse(node)


def _is_complex(value: Any) -> bool:
    if isinstance(value, Node):
        value = value.meta.get("val")
    return isinstance(value, complex) or (isinstance(value, Tensor) and value.is_complex())


def _refuse(node: Node) -> Any:
    raise FrontendError(
        f"the model uses {node.target} on complex numbers ({source_of(node)}), which is not supported: "
        "write it with real and imaginary parts"
    )


def _joined(real: Tensor, imaginary: Tensor) -> Tensor:
    return torch.stack((real, imaginary), -1)


def _polar(length: Tensor, angle: Tensor) -> Tensor:
    return _joined(length * angle.cos(), length * angle.sin())


def _conjugate(value: Tensor) -> Tensor:
    return _joined(value[..., 0], -value[..., 1])


def _product(one: Tensor, other: Tensor) -> Tensor:
    (a, b), (c, d) = one.unbind(-1), other.unbind(-1)
    return _joined(a * c - b * d, a * d + b * c)


def _scaled(value: Tensor, by: Tensor | float) -> Tensor:
    return value * (by.unsqueeze(-1) if isinstance(by, Tensor) else by)


def _divided(value: Tensor, by: Tensor | float) -> Tensor:
    return value / (by.unsqueeze(-1) if isinstance(by, Tensor) else by)


def _same(value: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return value


def _axis(dim: int) -> int:
    """An axis of the complex value among those of the pairs."""
    return dim if dim >= 0 else dim - 1


def _along(op: Any) -> Callable[..., Tensor]:
    """An op whose second argument is an axis."""
    return lambda value, dim=0, *rest: op(value, _axis(dim), *rest)


def _transpose(value: Tensor, one: int, other: int) -> Tensor:
    return value.transpose(_axis(one), _axis(other))


def _permute(value: Tensor, dims: Sequence[int]) -> Tensor:
    return value.permute([*map(_axis, dims), value.ndim - 1])


def _reshape(value: Tensor, shape: Sequence[int]) -> Tensor:
    return value.reshape([*shape, 2])


def _expand(value: Tensor, shape: Sequence[int], **kwargs: Any) -> Tensor:
    return value.expand([*shape, 2])


def _cat(values: Sequence[Tensor], dim: int = 0) -> Tensor:
    return torch.cat(list(values), _axis(dim))


_FORMS: dict[Any, Callable[..., Tensor]] = {
    _aten.polar.default: _polar,
    _aten.complex.default: _joined,
    _aten.view_as_complex.default: _same,
    _aten.view_as_real.default: _same,
    _aten.real.default: lambda value: value[..., 0],
    _aten.imag.default: lambda value: value[..., 1],
    _aten._conj.default: _conjugate,
    _aten.conj.default: _conjugate,
    _aten.conj_physical.default: _conjugate,
    _aten.resolve_conj.default: _same,
    _aten.clone.default: _same,
    _aten.contiguous.default: _same,
    _aten.neg.default: torch.neg,
    _aten.add.Tensor: torch.add,
    _aten.sub.Tensor: torch.sub,
    _aten.unsqueeze.default: _along(_aten.unsqueeze),
    _aten.squeeze.dim: _along(_aten.squeeze),
    _aten.select.int: _along(_aten.select),
    _aten.slice.Tensor: _along(_aten.slice),
    _aten.index_select.default: _along(_aten.index_select),
    _aten.index.Tensor: _aten.index.Tensor,
    _aten.cat.default: _cat,
    _aten.transpose.int: _transpose,
    _aten.permute.default: _permute,
    _aten.view.default: _reshape,
    _aten._unsafe_view.default: _reshape,
    _aten.reshape.default: _reshape,
    _aten.expand.default: _expand,
}
"""By op, where all tensors that are complex in the graph come as pairs."""

_PRODUCTS: dict[Any, dict[tuple[bool, ...], Callable[..., Tensor]]] = {
    _aten.mul.Tensor: {
        (True, True): _product,
        (True, False): _scaled,
        (False, True): lambda by, value: _scaled(value, by),
    },
    _aten.div.Tensor: {(True, False): _divided},
}
"""By op and which of the two operands are complex."""
