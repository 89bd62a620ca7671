"""Attention sinks that are written behind the softmax: the output times ``sigmoid(logsumexp(logits) - sink)``.

With z = logsumexp(logits), ``softmax(logits) * sigmoid(z - sink)`` is ``exp(logits) / (exp(z) + exp(sink))``: the
weights of a softmax over the logits and the sink, whose value is zero.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch_mlir import ir

from ..dialect.types import shape_of
from .aten import constant, integers_operand, made_of, owner, rank_of, tensor_operands
from .attention import is_passage
from .axes import Axes, Axis, axes_in

LOGSUMEXP = "torch.aten.logsumexp"


@dataclass(frozen=True)
class SinkFactor:
    """A product of an attention's output with the factor that a sink makes.

    Attributes:
        difference: the op that takes the sink from the logits' logsumexp.
        sink: the sink's logit, made of weights alone.
        scaling: the op that multiplies the output by the factor.
        side: which operand of it is the attention's output.
    """

    difference: ir.Operation
    sink: ir.Value
    scaling: ir.Operation
    side: int


def sink_factor(softmax: ir.Operation, key: Axis, product: ir.Operation, axes: Axes) -> SinkFactor | None:
    """The factor that makes a sink out of what an attention's ``product`` with the values is multiplied by, if any.

    Its logsumexp is that of the very logits of the softmax over all keys, and nothing else takes the output.
    """
    scaling, output = product, product.results[0]
    while scaling is product or is_passage(scaling):
        output = scaling.results[0]
        uses = list(output.uses)
        if len(uses) != 1:
            return None
        scaling = uses[0].owner.operation
    if scaling.name != "torch.aten.mul.Tensor" or shape_of(scaling.results[0].type) != shape_of(output.type):
        return None
    side = uses[0].operand_number
    factor = scaling.operands[1 - side]
    squashed = _behind(factor)
    if squashed is None or squashed.name != "torch.aten.sigmoid":
        return None
    difference = _behind(squashed.operands[0])
    if difference is None or difference.name != "torch.aten.sub.Tensor" or constant(difference.operands[2]) != 1:
        return None
    total = _behind(difference.operands[0])
    sink = difference.operands[1]
    if total is None or total.name != LOGSUMEXP or not _made_of_weights(sink):
        return None
    logits = total.operands[0]
    over = [i % rank_of(logits) for i in integers_operand(total, 1)]
    if [axes.of[logits][i] for i in over] != [(key,)] or _source(logits) != _source(softmax.operands[0]):
        return None
    of_output, of_factor = axes.of[output], axes.of[factor]
    aligned = (None,) * (len(of_output) - len(of_factor)) + of_factor
    if any(group and group != own for group, own in zip(aligned, of_output, strict=True)):
        return None
    if not axes_in(axes.of[total.results[0]]) <= axes_in(of_factor):
        return None
    return SinkFactor(difference, sink, scaling, side)


def _source(value: ir.Value) -> ir.Value:
    """What a value is another shape or floating-point type of."""
    while (op := owner(value)) is not None and is_passage(op):
        value = op.operands[0]
    return value


def _behind(value: ir.Value) -> ir.Operation | None:
    return owner(_source(value))


def _made_of_weights(value: ir.Value) -> bool:
    return owner(value) is not None and all(
        owner(operand) is not None for op in made_of(value) for operand in tensor_operands(op)
    )
