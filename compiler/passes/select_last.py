"""kv-select-last: prefill and extend compute the logits of the last real token alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch_mlir import ir

from ..analysis.aten import (
    Kind,
    axis_operand,
    integer_operand,
    integers_operand,
    kind_of,
    made_of,
    rank_of,
    tensor_operands,
)
from ..analysis.axes import Axes, Dims, dimension_of
from ..analysis.caches import past_length
from ..analysis.functions import (
    argument_attributes,
    body,
    functions,
    result_attributes,
    set_signature,
    terminator,
)
from ..diagnostics import Refusal
from ..dialect.types import element_of, shape_of, vtensor
from .dead_code import erase_dead
from .torch_builder import TorchBuilder

LENGTH = "length"


@dataclass(frozen=True)
class SelectLast:
    """Gives prefill and extend an argument ``length`` and makes their logits those of token ``length - 1``.

    Applies to functions with caches and more than one new token (which are padded on the right). The
    selection moves up through every op that treats tokens one by one and whose result nothing else uses, so that
    the last layer's feed-forward and the vocabulary product see one token: [1, N, V] is never made. A program
    that itself takes the last of its tokens has that selection replaced.

    Before::

        %h = torch.aten.mm %x, %w      // [N, E] x [E, V]
        %logits = torch.aten.view %h   // [1, N, V]

    After::

        %i = %length - 1
        %x1 = torch.aten.index_select %x, %int0, %i
        %h = torch.aten.mm %x1, %w     // [1, E] x [E, V]
        %logits = torch.aten.view %h   // [1, 1, V]
    """

    name: ClassVar[str] = "kv-select-last"

    def run(self, module: ir.Operation) -> None:
        """Rewrites the module."""
        for function in functions(module).values():
            axes = Axes(function)
            if past_length(function) is not None and axes.query.size > 1:
                _Narrowing(function, axes).run()
                erase_dead(function)


class _Narrowing:
    def __init__(self, function: ir.Operation, axes: Axes) -> None:
        self._function = function
        self._axes = axes
        self._query = axes.query
        self._narrow: dict[ir.Value, ir.Value] = {}
        self._index: ir.Value | None = None

    def run(self) -> None:
        names = [entry.get("kv.name") for entry in result_attributes(self._function)]
        returned = terminator(self._function)
        at = names.index("logits")
        logits = returned.operands[at]
        entries = argument_attributes(self._function)
        length = body(self._function).add_argument(vtensor([], "si64"), self._function.location)
        first = body(self._function).operations[0].operation
        builder = TorchBuilder(first, self._function.location)
        self._index = builder.view(builder.add_integer(length, -1), [1])
        if self._query in {axis for group in self._axes.of[logits] for axis in group}:
            returned.operands[at] = self._rewrite(logits, returned)
        else:
            self._replace_own_selection(logits)
        set_signature(
            self._function, [*entries, {"kv.name": LENGTH, "kv.role": LENGTH}], result_attributes(self._function)
        )

    def _replace_own_selection(self, logits: ir.Value) -> None:
        """The program's own ``x[:, -1]`` becomes the real last token's."""
        ops = made_of(logits, lambda op: op.name.startswith("kv.") or self._drops(op))
        found = [op for op in ops if self._drops(op)]
        if not found:
            raise Refusal(
                self._function, "the logits do not depend on the input tokens", "return the logits of the tokens"
            )
        for op in found:
            self._replace(op)

    def _replace(self, op: ir.Operation) -> None:
        name = op.name.removeprefix("torch.aten.")
        source = op.operands[0]
        last = self._query.size - 1
        if name in ("select.int", "slice.Tensor"):
            at = axis_operand(op, 1, rank_of(source))
            start = integer_operand(op, 2)
            if self._axes.of[source][at] == (self._query,) and start % self._query.size == last:
                builder = TorchBuilder(op)
                chosen = self._take(builder, source, at)
                result = op.results[0]
                result.replace_all_uses_with(builder.view(chosen, shape_of(result.type)))
                return
        raise Refusal(
            op,
            f"'{op.name}' takes some of the prompt's tokens on the way to the logits",
            "return the logits of all tokens, or of the last one as x[:, -1]",
        )

    # --- moving the selection up

    def _drops(self, op: ir.Operation) -> bool:
        """Whether an op of the program's own leaves the tokens' axis behind."""
        operands = tensor_operands(op)
        if op.name.startswith("kv.") or not operands:
            return False
        return self._carries(operands[0]) and not self._carries(op.results[0])

    def _carries(self, value: ir.Value) -> bool:
        return any(self._query in group for group in self._axes.of.get(value, ()))

    def _rewrite(self, logits: ir.Value, returned: ir.Operation) -> ir.Value:
        chosen: set[ir.Operation] = set()
        operations = [view.operation for view in body(self._function).operations]
        for op in reversed(operations):
            if op == returned or not self._rowwise(op):
                continue
            uses = [use.owner.operation for result in op.results for use in result.uses]
            only_logits = op.results[0] == logits and uses == [returned]
            if only_logits or (uses and all(user in chosen for user in uses)):
                chosen.add(op)
        for op in operations:
            if op in chosen:
                self._narrow[op.results[0]] = self._narrowed_op(op)
        return self._operand(logits, TorchBuilder(returned))

    def _rowwise(self, op: ir.Operation) -> bool:
        if len(op.results) != 1 or not self._carries(op.results[0]):
            return False
        kind = kind_of(op)
        if kind is Kind.CONTRACTION:
            a = tensor_operands(op)[-2]
            return "bmm" not in op.name and self._query in self._axes.of[a][0]
        if kind in (Kind.REDUCTION, Kind.NORMALISATION):
            source = op.operands[0]
            worked = self._axes.reduced_dimensions(op) if "layer_norm" not in op.name else []
            return not any(self._query in self._axes.of[source][i] for i in worked)
        return kind in (Kind.POINTWISE, Kind.VIEW)

    def _narrowed_op(self, op: ir.Operation) -> ir.Value:
        builder = TorchBuilder(op)
        result = op.results[0]
        shape = self._shape(self._axes.of[result], shape_of(result.type))
        name = op.name.removeprefix("torch.aten.")
        operands = list(op.operands)
        at = dimension_of(self._axes.of[result], self._query)
        for i, operand in enumerate(operands):
            if operand not in self._axes.of:
                continue
            if self._carries(operand):
                operands[i] = self._operand(operand, builder)
            elif kind_of(op) is Kind.POINTWISE:
                own = at - (rank_of(result) - rank_of(operand))
                if own >= 0 and shape_of(operand.type)[own] > 1:
                    operands[i] = self._take(builder, operand, own)
        if name in ("view", "_unsafe_view", "reshape", "expand"):
            sizes = integers_operand(op, 1)
            keeps = name == "expand"
            operands[1] = builder.integers(
                [-1 if keeps and given == -1 else extent for given, extent in zip(sizes, shape, strict=True)]
            )
        return builder.op(op.name, operands, vtensor(shape, element_of(result.type)))

    def _shape(self, dims: Dims, shape: list[int]) -> list[int]:
        return [
            extent // self._query.size if self._query in group else extent
            for group, extent in zip(dims, shape, strict=True)
        ]

    def _operand(self, value: ir.Value, builder: TorchBuilder) -> ir.Value:
        """The narrowed form of a value: that of its op, or a selection from it."""
        if value not in self._narrow:
            at = dimension_of(self._axes.of[value], self._query)
            group = self._axes.of[value][at]
            if group != (self._query,):
                raise Refusal(
                    value.owner.operation,
                    "the tokens of the prompt are merged with another axis on the way to the logits",
                    "keep the tokens on an axis of their own",
                )
            self._narrow[value] = self._take(builder, value, at)
        return self._narrow[value]

    def _take(self, builder: TorchBuilder, value: ir.Value, at: int) -> ir.Value:
        assert self._index is not None
        shape = [1 if i == at else extent for i, extent in enumerate(shape_of(value.type))]
        return builder.op(
            "torch.aten.index_select",
            [value, builder.integer(at), self._index],
            vtensor(shape, element_of(value.type)),
        )
