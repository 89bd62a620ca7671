"""Numbers that a model reads from its tensors into Python, put back into tensors.

Of ``position.item()`` an exported program knows bounds and nothing else. A static program keeps it in the tensor that
it was read from, so that what takes the number (a slice that begins there, a comparison, a roll) becomes an op that
takes a tensor, and no extent depends on it. A slice as long as such a number has no static shape: it may only be joined
with others to a value that has one.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
import torch.utils._pytree as pytree
from torch import Tensor
from torch.fx import Node

from .errors import FrontendError
from .flat import source_of
from .lengths import expression

_aten: Any = torch.ops.aten


@dataclass(frozen=True)
class Read:
    """A number that was read from a tensor: ``tensor`` holds it, 0-d; ``value`` is it, in the program's symbols."""

    tensor: Any
    value: sympy.Expr


@dataclass(frozen=True)
class Part:
    """The entries of ``source`` along ``dim`` from ``start`` to ``end``, one of them a number that was read.

    A ``source`` of one entry along ``dim`` stands for as many of it as the part has.
    """

    source: Any
    dim: int
    start: Read | int
    end: Read | int


READS = frozenset({_aten.item.default, _aten._local_scalar_dense.default})
"""Ops that read a tensor's only element into Python."""

Call = Callable[..., Any]
"""Adds a function of tensors, with its arguments, to the static program; gives its result."""


def reads_numbers(args: Any, kwargs: Any) -> bool:
    """Whether a number that was read, or a part as long as one, is among an op's arguments."""
    return any(isinstance(leaf, Read | Part) for leaf in pytree.tree_leaves((args, kwargs)))


def read(node: Node, tensor: Any, call: Call) -> Read:
    """What an op of ``READS`` gives."""
    return Read(call(torch.reshape, tensor, []), _symbolic(node))


def with_numbers(node: Node, args: tuple[Any, ...], kwargs: dict[str, Any], call: Call) -> Any:
    """What an op with such numbers gives.

    ``args`` and ``kwargs`` are its arguments in the static program; ``call`` adds ops to that.

    Raises:
        FrontendError: the op has no form that takes a tensor in the place of the number.
    """
    target: Any = node.target
    if target in _ARITHMETIC:
        return Read(call(_ARITHMETIC[target], *map(_tensor, args)), _symbolic(node))
    if not isinstance(target, torch._ops.OpOverload):
        raise _refusal(node)
    rule = _RULES.get(target._schema.name.removeprefix("aten::"))
    if rule is not None:
        return rule(node, args, kwargs, call)
    if torch.Tag.pointwise in target.tags and not _is_beyond_elements(node, args):
        arguments, named = pytree.tree_map(_tensor, (args, kwargs), is_leaf=lambda x: isinstance(x, Read))
        return call(elementwise, target, node.meta["val"].dtype, *arguments, **named)
    raise _refusal(node)


def _is_beyond_elements(node: Node, args: tuple[Any, ...]) -> bool:
    """Whether an elementwise op has to do with parts or with complex numbers, which are pairs by now."""
    values = [value for n in (node, *node.all_input_nodes) if isinstance(value := n.meta.get("val"), Tensor)]
    return any(value.is_complex() for value in values) or any(
        isinstance(leaf, Part) for leaf in pytree.tree_leaves(args)
    )


def _symbolic(node: Node) -> sympy.Expr:
    value = node.meta["val"]
    return sympy.sympify(value.node.expr) if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool) else value


def _refusal(node: Node) -> FrontendError:
    return FrontendError(
        f"the model reads a tensor's value into Python, and '{node.target}' ({source_of(node)}) takes it, or what is "
        "as long as it: keep it in tensors; read a cache as a whole and mask the entries that hold no token yet"
    )


# --- functions of tensors that stand for ops on numbers


def _quotient(a: Tensor, b: Tensor) -> Tensor:
    return torch.div(a, b, rounding_mode="floor")


def elementwise(op: torch._ops.OpOverload, dtype: torch.dtype, *args: Any, **kwargs: Any) -> Tensor:
    """An elementwise op whose numbers have become tensors: another overload of the same name, of the same result."""
    result: Tensor = op.overloadpacket(*args, **kwargs)
    return result.to(dtype)


def entries(value: Tensor, dim: int, start: Tensor, count: int) -> Tensor:
    """[.., T, ..] -> [.., count, ..]: ``count`` entries along ``dim`` from ``start`` [] on."""
    return value.index_select(dim, start + torch.arange(count))


def entry(value: Tensor, dim: int, at: Tensor) -> Tensor:
    """[.., T, ..] -> without ``dim``: the entry ``at`` [], which may count from behind."""
    at = torch.where(at < 0, at + value.shape[dim], at)
    return value.index_select(dim, at.reshape([1])).squeeze(dim)


def rolled(value: Tensor, dim: int, by: Tensor) -> Tensor:
    """``torch.roll`` along one dimension, by ``by`` []."""
    length = value.shape[dim]
    return value.index_select(dim, torch.remainder(torch.arange(length) - by, length))


def filled(shape: Sequence[int], number: Tensor, dtype: torch.dtype) -> Tensor:
    """A tensor of one number."""
    return number.to(dtype).expand(shape)


def counted(start: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    """[count]: ``start``, ``start + 1``, .."""
    return (start + torch.arange(count)).to(dtype)


def joined(dim: int, extent: int, pieces: Sequence[Tensor], starts: Sequence[Any], sizes: Sequence[Any]) -> Tensor:
    """The concat along ``dim`` of ``sizes[i]`` entries of each piece from ``starts[i]`` on, ``extent`` in all.

    Starts and sizes are numbers or 0-d tensors. A piece of one entry is repeated.
    """
    rank = pieces[0].ndim
    index, result, offset = torch.arange(extent), None, 0
    for piece, start, size in zip(pieces, starts, sizes, strict=True):
        length = piece.shape[dim]
        if length > 1:
            piece = piece.index_select(dim, torch.clamp(index - offset + start, 0, length - 1))
        if result is None:
            shape = [extent if i == dim else other for i, other in enumerate(piece.shape)]
            result = piece.expand(shape)
        else:
            behind = (index >= offset).view([-1 if i == dim else 1 for i in range(rank)])
            result = torch.where(behind, piece, result)
        offset = offset + size
    assert result is not None
    return result


_ARITHMETIC: dict[Any, Callable[..., Tensor]] = {
    operator.add: torch.add,
    operator.sub: torch.sub,
    operator.mul: torch.mul,
    operator.neg: torch.neg,
    operator.floordiv: _quotient,
    operator.mod: torch.remainder,
    torch.sym_max: torch.maximum,
    torch.sym_min: torch.minimum,
    operator.eq: torch.eq,
    operator.ne: torch.ne,
    operator.lt: torch.lt,
    operator.le: torch.le,
    operator.gt: torch.gt,
    operator.ge: torch.ge,
    operator.and_: torch.logical_and,
    operator.or_: torch.logical_or,
    torch.sym_not: torch.logical_not,
}
"""Python's operators on numbers; those that compare feed the assertions of the export, which a static program drops."""


# --- rules: what each op with such a number gives


def _tensor(value: Any) -> Any:
    return value.tensor if isinstance(value, Read) else value


def _value(number: Read | int) -> sympy.Expr:
    return number.value if isinstance(number, Read) else sympy.Integer(number)


def _extent(start: Read | int, end: Read | int) -> int | None:
    """How far a number lies behind another one; None where that is no known number."""
    distance = sympy.expand(_value(end) - _value(start))
    return int(distance) if distance.is_Integer else None


def _axis(value: Any, dim: int) -> int:
    rank: int = value.meta["val"].ndim
    return dim % rank


def _with_defaults(args: tuple[Any, ...], *defaults: Any) -> tuple[Any, ...]:
    return (*args, *defaults[len(args) :])


def _part(node: Node, source: Any, dim: int, start: Read | int, end: Read | int, call: Call) -> Any:
    """The entries from ``start`` to ``end``, as torch.export took them to be."""
    if isinstance(source, Part):
        raise _refusal(node)
    count = _extent(start, end)
    if expression(node.meta["val"].shape[dim]) != sympy.expand(_value(end) - _value(start)):
        raise _refusal(node)  # the bounds are clamped, or count from behind
    if count is None:
        return Part(source, dim, start, end)
    return call(entries, source, dim, _tensor(start), count)


def _slice(node: Node, args: tuple[Any, ...], kwargs: dict[str, Any], call: Call) -> Any:
    source, dim, start, end, step = _with_defaults(args, None, 0, None, None, 1)
    if isinstance(source, Part) or kwargs or step != 1:
        raise _refusal(node)
    dim = _axis(node, dim)
    return _part(node, source, dim, *_bounds(source, dim, start, end), call)


def _bounds(source: Any, dim: int, start: Any, end: Any) -> tuple[Read | int, Read | int]:
    """The bounds of a slice; those that are plain numbers counted from the front."""
    length = source.meta["val"].shape[dim]
    low, high, _ = slice(*(None if isinstance(bound, Read) else bound for bound in (start, end))).indices(length)
    return (start if isinstance(start, Read) else low), (end if isinstance(end, Read) else high)


def _narrow(node: Node, args: tuple[Any, ...], kwargs: dict[str, Any], call: Call) -> Any:
    source, dim, start, length = args
    if isinstance(source, Part):
        raise _refusal(node)
    return _part(node, source, _axis(node, dim), start, _sum(start, length, call), call)


def _sum(a: Read | int, b: Read | int, call: Call) -> Read | int:
    if isinstance(a, Read) or isinstance(b, Read):
        return Read(call(torch.add, _tensor(a), _tensor(b)), _value(a) + _value(b))
    return a + b


def _select(node: Node, args: tuple[Any, ...], kwargs: dict[str, Any], call: Call) -> Any:
    source, dim, at = args
    if isinstance(source, Part):
        raise _refusal(node)
    return call(entry, source, _axis(node, dim), at.tensor)


def _cat(node: Node, args: tuple[Any, ...], kwargs: dict[str, Any], call: Call) -> Any:
    parts, dim = _with_defaults(args, None, 0)
    return _join(node, parts, dim % node.meta["val"].ndim, call)


def _join(node: Node, parts: Sequence[Any], dim: int, call: Call) -> Any:
    pieces, starts, sizes, total = [], [], [], sympy.Integer(0)
    for part in parts:
        if not isinstance(part, Part):
            part = Part(part, dim, 0, part.meta["val"].shape[dim])
        if part.dim != dim:
            raise _refusal(node)
        size = _value(part.end) - _value(part.start)
        total += size
        pieces.append(part.source)
        starts.append(_tensor(part.start))
        sizes.append(int(size) if size.is_Integer else call(torch.sub, _tensor(part.end), _tensor(part.start)))
    total = sympy.expand(total)
    if not total.is_Integer:
        raise _refusal(node)
    return call(joined, dim, int(total), pieces, starts, sizes)


def _slice_scatter(node: Node, args: tuple[Any, ...], kwargs: dict[str, Any], call: Call) -> Any:
    target, written, dim, start, end, step = _with_defaults(args, None, None, 0, None, None, 1)
    if isinstance(target, Part) or kwargs or step != 1:
        raise _refusal(node)
    dim = _axis(node, dim)
    return _over(node, target, written, dim, *_bounds(target, dim, start, end), call)


def _over(node: Node, target: Any, written: Any, dim: int, start: Read | int, end: Read | int, call: Call) -> Any:
    """A tensor with another one in the place of its entries from ``start`` to ``end``."""
    length = target.meta["val"].shape[dim]
    return _join(node, [Part(target, dim, 0, start), written, Part(target, dim, end, length)], dim, call)


def _select_scatter(node: Node, args: tuple[Any, ...], kwargs: dict[str, Any], call: Call) -> Any:
    target, written, dim, at = args
    if isinstance(target, Part) or isinstance(written, Part):
        raise _refusal(node)
    dim = _axis(node, dim)
    return _over(node, target, call(torch.unsqueeze, written, dim), dim, at, _sum(at, 1, call), call)


def _roll(node: Node, args: tuple[Any, ...], kwargs: dict[str, Any], call: Call) -> Any:
    source, shifts, dims = _with_defaults(args, None, None, [])
    if isinstance(source, Part) or len(shifts) != 1 or len(dims) != 1:
        raise _refusal(node)
    return call(rolled, source, _axis(node, dims[0]), shifts[0].tensor)


def _arange(node: Node, args: tuple[Any, ...], kwargs: dict[str, Any], call: Call) -> Any:
    start, end, step = _with_defaults((0, *args) if len(args) == 1 else args, 0, None, 1)
    count = _extent(start, end)
    if count is None or step != 1:
        raise _refusal(node)
    return call(counted, _tensor(start), count, node.meta["val"].dtype)


def _fill(node: Node, args: tuple[Any, ...], kwargs: dict[str, Any], call: Call) -> Any:
    """zeros, ones, full, empty and the like: of a number that was read, or as long as one."""
    like = not isinstance(args[0], list | tuple)
    shape = list(args[1 if like else 0])
    long = [i for i, extent in enumerate(shape) if isinstance(extent, Read)]
    if not long:
        return call(filled, shape, _tensor(args[-1]), node.meta["val"].dtype)
    if len(long) > 1 or isinstance(args[-1], Read):
        raise _refusal(node)
    (dim,) = long
    end, shape[dim] = shape[dim], 1
    source = call(node.target, *args[: int(like)], shape, *args[int(like) + 1 :], **kwargs)
    return Part(source, dim, 0, end)


def _copy(node: Node, args: tuple[Any, ...], kwargs: dict[str, Any], call: Call) -> Any:
    """A part written over with one that is as long: that one."""
    old, new = args[:2]
    if not (isinstance(old, Part) and isinstance(new, Part)) or old.dim != new.dim:
        raise _refusal(node)
    sizes = [_value(part.end) - _value(part.start) for part in (old, new)]
    kinds = [part.source.meta["val"].dtype for part in (old, new)]
    if sympy.expand(sizes[0] - sizes[1]) != 0 or kinds[0] != kinds[1]:
        raise _refusal(node)
    return new


def _same(node: Node, args: tuple[Any, ...], kwargs: dict[str, Any], call: Call) -> Any:
    return args[0]


def _scalar_tensor(node: Node, args: tuple[Any, ...], kwargs: dict[str, Any], call: Call) -> Any:
    return call(filled, [], args[0].tensor, node.meta["val"].dtype)


_RULES: dict[str, Callable[[Node, tuple[Any, ...], dict[str, Any], Call], Any]] = {
    "slice": _slice,
    "narrow": _narrow,
    "select": _select,
    "cat": _cat,
    "slice_scatter": _slice_scatter,
    "select_scatter": _select_scatter,
    "roll": _roll,
    "arange": _arange,
    "copy": _copy,
    "scalar_tensor": _scalar_tensor,
    **dict.fromkeys(("zeros", "ones", "full", "empty", "new_zeros", "new_ones", "new_full", "new_empty"), _fill),
    **dict.fromkeys(("clone", "contiguous", "alias"), _same),
}
