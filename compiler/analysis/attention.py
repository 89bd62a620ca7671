"""Recognises attention over the cache: from a softmax back to the product of queries and keys, and on to values.

No spelling is matched. The walk follows the key axis through views, scalar factors, a soft cap and masks to the
contraction that makes it, whatever the layout and however heads are grouped, and reads the layout off the axes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from torch_mlir import ir

from ..diagnostics import Refusal
from ..dialect.types import element_of, shape_of
from .aten import CONVERSIONS, IDENTITIES, Kind, NotConstant, constant, kind_of, owner, rank_of, tensor_operands
from .axes import Axes, Axis, Dims, Follows, Group, axes_in, dimension_of
from .evaluate import Evaluator, NotEvaluable

HIDDEN = -1e4
"""A number at most this, added to a logit, hides its key: in f32 its weight is exactly zero."""


@dataclass(frozen=True)
class Mask:
    """A value that meets the logits along the cache axis.

    ``logits`` are what it meets. ``how`` is "add" (a number is added), "keep" (logits stay where it is true, else
    ``filler``) or "hide" (``filler`` where it is true). ``factor`` scales the logits between it and the softmax.
    """

    operation: ir.Operation
    logits: ir.Value
    value: ir.Value
    how: str
    filler: ir.Value | None
    factor: float


@dataclass
class Logits:
    """``masks(softcap * tanh(scale * q k^T / softcap))``; a soft cap of 0.0 is none.

    ``sinks`` is the concat that puts one more logit behind them, if there is one.
    """

    softmax: ir.Operation
    product: ir.Operation
    scale: float = 1.0
    softcap: float = 0.0
    masks: list[Mask] = field(default_factory=list)
    sinks: ir.Operation | None = None


@dataclass(frozen=True)
class CacheOperand:
    """A value with the cache axis, seen through views: ``base`` in its own dims, times ``scale``."""

    base: ir.Value
    dims: Dims
    batch: Group
    key: Axis
    features: Group
    scale: float

    @property
    def heads(self) -> list[Axis]:
        """The axes of the batch that the cache itself has, rows aside: its heads."""
        own = axes_in(self.dims)
        return [a for a in self.batch if a.follows is not Follows.ROW and a in own]

    @property
    def copies(self) -> list[Axis]:
        """The axes of the batch along which the cache is repeated."""
        own = axes_in(self.dims)
        return [a for a in self.batch if a.follows is not Follows.ROW and a not in own]


def softmaxes(function_block: ir.Block, axes: Axes) -> list[tuple[ir.Operation, Axis]]:
    """The softmaxes over a cache axis, with that axis (sinks left out), in order."""
    found = []
    for view in function_block.operations:
        op = view.operation
        if kind_of(op) is Kind.NORMALISATION and "softmax" in op.name and "log" not in op.name:
            (dimension,) = axes.reduced_dimensions(op)
            group = axes.of[op.operands[0]][dimension]
            if any(axis.follows is Follows.KEY for axis in group):
                if len(group) != 1:
                    raise Refusal(
                        op,
                        "a softmax runs over the cache axis merged with another one",
                        "take the softmax over the cache axis alone",
                    )
                found.append((op, axes.extended.get(group[0], group[0])))
    return found


def logits_of(softmax: ir.Operation, axes: Axes, evaluator: Evaluator) -> Logits:
    """Walks from a softmax to the contraction of queries and keys.

    Raises:
        Refusal: an op on the way is not a view, a scalar factor, a soft cap or a mask.
    """
    value = softmax.operands[0]
    found = Logits(softmax, softmax)
    factor = 1.0
    while True:
        op = owner(value)
        if op is None or op.name.startswith("kv."):
            raise Refusal(
                softmax,
                "the logits of a softmax over the cache axis are no product of queries and keys",
                "compute them by a matmul, bmm or einsum of queries and cached keys",
            )
        name = op.name.removeprefix("torch.aten.")
        if is_passage(op):
            value = op.operands[0]
        elif not found.softcap and (shifted := _shifted(op, axes, evaluator)) is not None:
            value = shifted
        elif name == "cat" and not found.masks and factor == 1.0 and _key_of(value, axes) in axes.extended:
            found.sinks = op
            value = tensor_operands(op)[0]
        elif name in _FACTORS:
            value, by = _scaled(op, axes, evaluator)
            if by <= 0:
                raise Refusal(op, f"the logits are scaled by {by}", "scale attention logits by a positive number")
            factor *= by
        elif name == "tanh":
            if found.softcap:
                raise Refusal(op, "the logits are capped twice", "use one soft cap")
            found.softcap, factor = factor, 1.0
            value = op.operands[0]
        elif name == "bmm":
            joined = _key_of(value, axes)
            if joined is not None and joined in axes.extended:
                raise next(e for e in axes.events if e.axis is axes.extended[joined]).refusal()
            found.product = op
            found.scale = factor * (found.softcap or 1.0)
            return found
        else:
            value, mask = _masked(op, axes, factor)
            if found.softcap:
                raise Refusal(op, "a mask is applied before the soft cap", "mask the capped logits")
            found.masks.append(mask)


def masks_on(value: ir.Value, user: ir.Operation, axes: Axes) -> tuple[ir.Value, Logits]:
    """What masks are put on, and the masks, of a value with a cache axis that ``user`` takes."""
    found = Logits(user, user)
    while (op := owner(value)) is not None:
        if is_passage(op):
            value = op.operands[0]
            continue
        try:
            value, mask = _masked(op, axes, 1.0)
        except Refusal:
            break
        found.masks.append(mask)
    return value, found


_FACTORS = ("mul.Tensor", "mul.Scalar", "div.Tensor", "div.Scalar")


def is_passage(op: ir.Operation) -> bool:
    """Whether an op gives its first operand's numbers in another shape or floating-point type."""
    if op.name in IDENTITIES or kind_of(op) is Kind.VIEW:
        return True
    if op.name == "torch.aten.slice.Tensor":
        return shape_of(op.operands[0].type) == shape_of(op.results[0].type)
    if op.name in CONVERSIONS:
        return all(element_of(v.type).lstrip("b").startswith("f") for v in (op.operands[0], op.results[0]))
    return False


def _scaled(op: ir.Operation, axes: Axes, evaluator: Evaluator) -> tuple[ir.Value, float]:
    """The tensor that a product or quotient scales, and the number that it scales it by."""
    divides = "div." in op.name
    value, other = op.operands[0], op.operands[1]
    if not divides and op.name.endswith("Tensor") and _numel(value) == 1:
        value, other = other, value
    try:
        by = constant(other) if op.name.endswith("Scalar") else float(evaluator(other).item())
    except (NotConstant, NotEvaluable, RuntimeError):
        by = None
    if not isinstance(by, int | float):
        raise Refusal(
            op,
            f"'{op.name}' scales values along the cache axis by something that is no known number",
            "scale by a constant; a factor that depends on the cache's length cannot stay right in fixed slots",
        )
    return value, 1.0 / by if divides else float(by)


def _numel(value: ir.Value) -> int:
    return math.prod(shape_of(value.type))


def _shifted(op: ir.Operation, axes: Axes, evaluator: Evaluator) -> ir.Value | None:
    """The logits that an op changes in a way that no softmax shows; None if it does more than that.

    That is the same number taken from all keys of a query, or a lower bound that is that of a hidden key.
    """
    name = op.name.removeprefix("torch.aten.")
    operands = list(op.operands)
    if name == "sub.Tensor" and _has_key(operands[0], axes) and constant(operands[2]) == 1:
        key = next(i for i, g in enumerate(axes.of[operands[0]]) if any(a.follows is Follows.KEY for a in g))
        back = rank_of(op.results[0]) - key
        shape = shape_of(operands[1].type)
        return operands[0] if len(shape) < back or shape[-back] == 1 else None
    if name in ("maximum", "clamp"):
        try:
            bound = constant(operands[1]) if name == "clamp" else float(evaluator(operands[1]).max().item())
        except (NotConstant, NotEvaluable):
            return None
        bounded = name == "clamp" and constant(operands[2]) is not None
        return operands[0] if isinstance(bound, int | float) and bound <= HIDDEN and not bounded else None
    return None


def _key_of(value: ir.Value, axes: Axes) -> Axis | None:
    """The cache axis of a value, if it has one."""
    return next((axis for axis in axes_in(axes.of[value]) if axis.follows is Follows.KEY), None)


def _masked(op: ir.Operation, axes: Axes, factor: float) -> tuple[ir.Value, Mask]:
    """The logits that an op masks, and the mask."""
    name = op.name.removeprefix("torch.aten.")
    operands = list(op.operands)
    if name in ("add.Tensor", "sub.Tensor") and constant(operands[2]) == 1:
        a, b = operands[:2]
        if _has_key(a, axes) and not _has_key(b, axes) and name == "add.Tensor":
            return a, Mask(op, a, b, "add", None, factor)
        if _has_key(b, axes) and not _has_key(a, axes) and name == "add.Tensor":
            return b, Mask(op, b, a, "add", None, factor)
    if name == "where.self":
        condition, a, b = operands
        if _has_key(a, axes) and not _has_key(condition, axes) and not _has_key(b, axes):
            return a, Mask(op, a, condition, "keep", b, factor)
        if _has_key(b, axes) and not _has_key(condition, axes) and not _has_key(a, axes):
            return b, Mask(op, b, condition, "hide", a, factor)
    if name.startswith("masked_fill") and not _has_key(operands[1], axes):
        return operands[0], Mask(op, operands[0], operands[1], "hide", operands[2], factor)
    raise Refusal(
        op,
        f"'{op.name}' stands between the keys and their softmax along the cache axis and is not known to be harmless",
        "between the product with the keys and the softmax use views, scalar factors, a soft cap and masks",
    )


def _has_key(value: ir.Value, axes: Axes) -> bool:
    return _key_of(value, axes) is not None


def _without_sinks(op: ir.Operation, axes: Axes) -> bool:
    """Whether an op leaves the weights of the sinks out and those of all keys in."""
    if op.name != "torch.aten.slice.Tensor":
        return False
    key = _key_of(op.operands[0], axes)
    return key is not None and key in axes.extended and _key_of(op.results[0], axes) == axes.extended[key]


def cache_operand(product: ir.Operation, side: int, axes: Axes, evaluator: Evaluator) -> CacheOperand:
    """The operand of a batched product that has the cache axis, traced back through views and scalar factors."""
    value = product.operands[side]
    dims = axes.of[value]
    keys = [axis for group in dims for axis in group if axis.follows is Follows.KEY]
    if len(keys) != 1:
        lost = axes.lost(value, Follows.KEY)
        raise (
            lost.refusal()
            if lost is not None
            else Refusal(
                product,
                f"attention weights over one cache meet values with {len(keys)} cache axes",
                "multiply the weights with the cached values",
            )
        )
    (key,) = keys
    key_at = dimension_of(dims, key)
    if dims[key_at] != (key,) or key_at == 0:
        raise Refusal(product, "a product has the cache axis merged with another one", "keep the cache axis on its own")
    needed = {axis for axis in axes_in(dims) if axis.follows is not Follows.COPY}
    current, factor = value, 1.0
    base, scale = value, 1.0
    while (op := owner(current)) is not None:
        if is_passage(op):
            current = op.operands[0]
        elif op.name.removeprefix("torch.aten.") in _FACTORS:
            try:
                current, by = _scaled(op, axes, evaluator)
            except Refusal:
                break
            factor *= by
        else:
            break
        if needed <= axes_in(axes.of[current]):
            base, scale = current, factor
    return CacheOperand(base, axes.of[base], dims[0], key, dims[3 - key_at], scale)


def key_side(product: ir.Operation, axes: Axes) -> int:
    """Which operand of the product of queries and keys has the keys: 0 or 1.

    Raises:
        Refusal: both operands have the cache axis.
    """
    sides = [i for i in (0, 1) if _has_key(product.operands[i], axes)]
    if len(sides) != 1:
        raise Refusal(
            product,
            "a product makes logits from two values along the cache axis",
            "multiply queries of the new tokens with the cached keys",
        )
    return sides[0]


def value_products(softmax: ir.Operation, key: Axis, axes: Axes) -> list[tuple[ir.Operation, int]]:
    """The products of the attention weights with values, each with the side of the weights.

    Raises:
        Refusal: the weights are used in another way.
    """
    found: list[tuple[ir.Operation, int]] = []
    pending = [softmax.results[0]]
    while pending:
        value = pending.pop()
        for use in value.uses:
            op = use.owner.operation
            if op.name == "torch.aten.bmm":
                side = use.operand_number
                contracted = axes.of[value][2 if side == 0 else 1]
                if contracted == (key,):
                    found.append((op, side))
                    continue
            if is_passage(op) or _without_sinks(op, axes):
                pending.append(op.results[0])
                continue
            raise Refusal(
                op,
                f"the attention weights along the cache axis are used by '{op.name}'",
                "use them only in a product with the cached values",
            )
    return found
