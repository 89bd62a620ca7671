"""kv-raise-index: an attention's choice among cached keys, by scores of their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch_mlir import ir

from ..analysis.aten import (
    CONVERSIONS,
    NotConstant,
    axis_operand,
    constant,
    filled_with,
    integer_operand,
    owner,
    rank_of,
)
from ..analysis.attention import is_passage, masks_on
from ..analysis.axes import Axes, Axis, Dims, Follows, axes_in
from ..analysis.caches import Order, order_of, past_length
from ..analysis.evaluate import Evaluator, Weights, no_weights
from ..analysis.functions import argument_attributes, body, functions
from ..analysis.masks import Masks, assumed, reach_of, read_masks
from ..diagnostics import Refusal
from ..dialect.kv import Reach, topk_mask
from ..dialect.types import element_of, shape_of, vtensor
from .dead_code import erase_dead
from .raise_attention import rearrange
from .torch_builder import TorchBuilder


@dataclass(frozen=True)
class RaiseIndex:
    """Turns the top-k of scores along a cache axis, and what its indices mark, into ``kv.topk_mask``.

    Applies to ``topk`` over a cache axis whose indices are only written with one number into a tensor of another, as a
    mask of the keys that are chosen. Relies on ``kv-raise-append``, and on the frontend, which leaves ``topk`` and
    ``scatter`` along a growing axis as they are. Slots in any order hold the same scores, so the same keys are chosen,
    as long as an empty slot never is: the masks on the scores are evaluated (``weights`` gives the value of a
    registered buffer), must be plainly causal, and are dropped, since the choice is made among the keys that its query
    sees. ``kv-raise-attention`` takes the mask up. Refused is a choice that differs between heads, one with a window,
    one in a program of fixed length, and any other use of the indices.

    Before::

        %masked = torch.aten.where.self %hidden, %low, %scores           // [B, Q, T]
        %values, %indices = torch.aten.topk %masked, %int8, %int-1, ..   // [B, Q, 8]
        %mask = torch.aten.scatter.value %ones, %int-1, %indices, %int0  // false where a key is chosen

    After::

        %chosen = "kv.topk_mask"(%scores) {count = 8 : i64, causal = false}
        %mask = torch.aten.bitwise_not %chosen

    See tests/lit/raise/raise_index.mlir.
    """

    weights: Weights = no_weights
    name: ClassVar[str] = "kv-raise-index"

    def run(self, module: ir.Operation) -> None:
        """Rewrites the module."""
        read: list[list[_Choice]] = []
        for function in functions(module).values():
            if any(entry.get("kv.role") == "cache" for entry in argument_attributes(function)):
                read.append(self._read(function))
        for same in zip(*read, strict=False):
            reach = reach_of([choice.operation for choice in same], [choice.masks for choice in same])
            if reach != Reach():
                raise Refusal(
                    same[0].operation,
                    f"an index chooses among the last {reach.most} keys alone",
                    "let it choose among all keys up to the query's own",
                )
        for function in functions(module).values():
            erase_dead(function)

    def _read(self, function: ir.Operation) -> list[_Choice]:
        found = [view.operation for view in body(function).operations if view.operation.name == "torch.aten.topk"]
        if not found:
            return []
        axes = Axes(function)
        past, order = past_length(function) or 0, order_of(function)
        evaluator = Evaluator(assumed(function, axes, past, past, order), self.weights)
        choices = []
        for op in found:
            at = axis_operand(op, 2, rank_of(op.operands[0]))
            group = axes.of[op.operands[0]][at]
            if not any(axis.follows is Follows.KEY for axis in group):
                continue
            if order is not Order.APPENDED:
                raise Refusal(
                    op,
                    "an index chooses among keys that a cache of fixed length holds",
                    "export the program with a symbolic past, its caches joined as torch.cat([past, new], dim)",
                )
            choices.append(_Choice.of(op, group, axes, evaluator))
        for choice in choices:
            choice.rewrite(axes, causal=past == 0 and axes.query.size > 1)
        return choices


@dataclass(frozen=True)
class _Choice:
    """A top-k over a cache axis: the scores without their masks, and what the masks hide."""

    operation: ir.Operation
    key: Axis
    scores: ir.Value
    masks: Masks

    @staticmethod
    def of(op: ir.Operation, group: tuple[Axis, ...], axes: Axes, evaluator: Evaluator) -> _Choice:
        if len(group) != 1:
            raise Refusal(op, "a top-k runs over the cache axis merged with another one", "choose along the keys alone")
        if constant(op.operands[3]) is not True:
            raise Refusal(op, "the keys with the smallest scores are chosen", "negate the scores and take the largest")
        (key,) = group
        scores, masks = masks_on(op.operands[0], op, axes)
        read = read_masks(masks, key, axes.query, axes, evaluator)
        if read.slopes:
            raise Refusal(
                read.slopes[0].operation,
                "a bias along the keys is added to the scores of an index",
                "add to the scores only masks that hide keys",
            )
        others = axes_in(axes.of[scores]) - {axes.row, axes.query, key}
        if others or key not in axes_in(axes.of[scores]):
            raise Refusal(
                op,
                "an index chooses other keys for other heads",
                "choose once for all heads: their caches share one set of slots",
            )
        return _Choice(op, key, scores, read)

    def rewrite(self, axes: Axes, causal: bool) -> None:
        """Puts the op in the place of what the indices mark."""
        writes = self._writes(axes)
        values = self.operation.results[0]
        for use in values.uses:
            raise _misused(use.owner.operation, "the scores of the keys that an index chooses are used")
        builder = TorchBuilder(self.operation)
        dims = axes.of[self.scores]
        have = axes_in(dims)
        order = [axis for axis in (axes.row, axes.query) if axis in have]
        shape = [axes.row.size, axes.query.size, self.key.size]
        scores = rearrange(builder, builder.cast(self.scores, "f32"), dims, [*order, self.key], shape)
        chosen = topk_mask(
            scores,
            count=integer_operand(self.operation, 1),
            causal=causal,
            location=self.operation.location,
            before=self.operation,
        )
        marked: Dims = (*((axis,) if axis in order else () for axis in (axes.row, axes.query)), (self.key,))
        for write in writes:
            self._mark(write, chosen, marked, axes)

    def _writes(self, axes: Axes) -> list[ir.Operation]:
        """The ops that write one number at the indices, along the keys."""
        found: list[ir.Operation] = []
        pending = [self.operation.results[1]]
        while pending:
            for use in pending.pop().uses:
                op = use.owner.operation
                if op.name == "torch.aten.scatter.value" and use.operand_number == 2:
                    found.append(op)
                elif is_passage(op) or op.name in CONVERSIONS:  # the same integers in another shape or type
                    pending.append(op.results[0])
                else:
                    raise _misused(op, "the indices of the keys that an index chooses are used")
        return found

    def _mark(self, write: ir.Operation, chosen: ir.Value, marked: Dims, axes: Axes) -> None:
        base, index, result = write.operands[0], write.operands[2], write.results[0]
        shape, at = shape_of(result.type), axis_operand(write, 1, rank_of(result))
        producer = owner(base)
        over = "the indices of the keys that an index chooses are written over other values"
        try:
            before = None if producer is None else filled_with(producer)
            written = constant(write.operands[3])
        except NotConstant:
            raise _misused(write, over) from None
        own = [*shape_of(index.type)]
        own[at] = shape[at]
        if before is None or not isinstance(written, int | float) or own != shape or shape[at] != self.key.size:
            raise _misused(write, over)
        order = [axis for i, group in enumerate(axes.of[index]) for axis in ((self.key,) if i == at else group)]
        builder = TorchBuilder(write)
        placed = rearrange(builder, chosen, marked, order, shape)
        element = element_of(result.type)
        if element == "i1":
            if bool(before) == bool(written):
                raise _misused(write, "the keys that an index chooses are marked as the others are")
            new = placed if written else builder.op("torch.aten.bitwise_not", [placed], result.type)
        else:
            low = builder.op(
                "torch.aten.where.Scalar",
                [placed, builder.float(written), builder.float(before)],
                vtensor(shape, "f32"),
            )
            new = builder.cast(low, element)
        result.replace_all_uses_with(new)


def _misused(op: ir.Operation, what: str) -> Refusal:
    return Refusal(
        op,
        f"{what} by '{op.name}'",
        "make a mask of them by torch.full(..).scatter(dim, indices, number), and mask the attention's logits with it",
    )
