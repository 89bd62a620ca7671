"""Prefill to slots: a prompt of one row, of which the policy keeps a part."""

from __future__ import annotations

import itertools

from torch_mlir import ir

from ..analysis.caches import Cache, caches
from ..analysis.functions import (
    body,
    result_attributes,
)
from ..dialect.kv import (
    AttentionOp,
    CompactOp,
    SelectedCountOp,
    TopkSelectOp,
    WriteRowOp,
    index_attribute,
    number,
)
from ..dialect.policy import Policy
from ..dialect.types import element_of, shape_of, vtensor
from .over_slots import SELECTED_COUNT, Rewriter, own_policy, policy_attributes, selected_state
from .row_states import States
from .select_last import LENGTH
from .torch_builder import TorchBuilder


class PrefillToSlots(Rewriter):
    """A prefill function that selects what is kept and fills a row of the states that decode has."""

    def __init__(self, function: ir.Operation, policy: Policy, order: str, states: States) -> None:
        super().__init__(function, policy, order)
        self.states = states

    def run(self) -> None:
        """Rewrites the function."""
        found = caches(self.function)
        block = body(self.function)
        length = next(a for a, e in zip(block.arguments, self.entries, strict=True) if e.get("kv.role") == LENGTH)
        (own_tokens,) = self.argument("tokens")
        prompt = shape_of(own_tokens.type)[-1]
        tokens = self.add_argument("tokens", vtensor([1, prompt], "si64"))
        builder = TorchBuilder(self.first, self.location)
        self.replace_tokens(tokens, builder)
        self._count_up(prompt, builder)
        row = self.add_argument("row", vtensor([], "si64"))
        for cache in found:
            cache.append.results[0].replace_all_uses_with(cache.append.operands[1])
        self._number_biases()
        operations = [view.operation for view in block.operations]
        # right behind the attention, so that a layer's queries, keys and values need not live on
        behind = dict(itertools.pairwise(operations))
        selections: dict[ir.Operation, ir.Value] = {}
        for cache in found:
            own = own_policy(self.policy, cache.reach)
            if own.topk > 0 and cache.scorer not in selections:
                anchor = behind[cache.scorer]
                selected = self._select(cache, length, anchor)
                selections[cache.scorer] = selected
                if (state := selected_state(cache.name)) in self.states:
                    builder = TorchBuilder(anchor, cache.scorer.location)
                    of_row = builder.view(selected, [1, cache.heads, own.topk])
                    self._write(state, of_row, row, cache.scorer.location, anchor)
            self._compact(cache, own, selections.get(cache.scorer), length, row, behind[cache.readers[0]])
        count = SelectedCountOp(
            length,
            **policy_attributes(self.policy),
            selected=index_attribute(self.policy.topk),
            count=vtensor([1], "si64"),
            loc=self.location,
            ip=self.tail,
        ).count
        self._write(SELECTED_COUNT, count, row, self.location, self.last)
        vocabulary = next(
            shape_of(v.type)[-1]
            for v, e in zip(self.last.operands, result_attributes(self.function), strict=True)
            if e.get("kv.name") == "logits"
        )
        self.finish([vocabulary], ("tokens", LENGTH, "row"))

    def _count_up(self, prompt: int, builder: TorchBuilder) -> None:
        """A prompt's positions are 0 .. N - 1; a lone position is that of the first token."""
        for old in self.argument("positions"):
            if not shape_of(old.type):
                old.replace_all_uses_with(builder.zeros([], element_of(old.type)))
                continue
            ones = [1] * (len(shape_of(old.type)) - 1)
            old.replace_all_uses_with(builder.view(builder.arange(prompt), [*ones, prompt]))

    def _number_biases(self) -> None:
        """A prompt's keys stand at their own positions."""
        for view in list(body(self.function).operations):
            op = view.operation
            if op.name != "kv.linear_bias":
                continue
            builder = TorchBuilder(op)
            keys = shape_of(op.results[0].type)[3]
            heads, group = shape_of(op.operands[0].type)
            steps = builder.cast(builder.arange(1, 1 - keys), "f32")
            operands = [builder.view(steps, [1, 1, 1, keys]), builder.view(op.operands[0], [1, heads, group, 1])]
            op.results[0].replace_all_uses_with(builder.op("torch.aten.mul.Tensor", operands, op.results[0].type))
            op.erase()

    def _select(self, cache: Cache, length: ir.Value, before: ir.Operation) -> ir.Value:
        scorer = cache.scorer
        view = scorer.opview
        assert isinstance(view, AttentionOp)
        selected = TopkSelectOp(
            view.q,
            view.k,
            length,
            visible=view.visible,
            bias=view.bias,
            sinks=view.sinks,
            **policy_attributes(self.policy),
            selected=index_attribute(self.policy.topk),
            window=index_attribute(self.policy.window),
            pool=ir.StringAttr.get(self.policy.pool),
            pool_size=index_attribute(self.policy.pool_size),
            score=ir.StringAttr.get(self.policy.score),
            scale=ir.FloatAttr.get_f64(number(scorer, "scale")),
            softcap=ir.FloatAttr.get_f64(number(scorer, "softcap")),
            positions=vtensor([cache.heads, self.policy.topk], "si64"),
            loc=scorer.location,
            ip=ir.InsertionPoint(before),
        )
        for name, bound in cache.reach.attributes.items():
            selected.operation.attributes[name] = bound
        return selected.positions

    def _compact(
        self,
        cache: Cache,
        own: Policy,
        selection: ir.Value | None,
        length: ir.Value,
        row: ir.Value,
        before: ir.Operation,
    ) -> None:
        rows = cache.append.operands[1]
        builder = TorchBuilder(before, cache.append.location)
        given, axis = shape_of(rows.type), cache.axis
        split = list(given)
        if cache.head_axis > 0 and given[cache.head_axis] != cache.heads:
            # heads and features share a dimension: they have one each while the slots are filled
            split[cache.head_axis : cache.head_axis + 1] = [cache.heads, given[cache.head_axis] // cache.heads]
            axis += cache.head_axis < cache.axis
        slots = CompactOp(
            builder.view(rows, split),
            length,
            positions=selection,
            **policy_attributes(own),
            axis=index_attribute(axis),
            head_axis=index_attribute(cache.head_axis),
            order=ir.StringAttr.get(self.order),
            slots=vtensor([own.slots if i == axis else d for i, d in enumerate(split)], element_of(rows.type)),
            loc=cache.append.location,
            ip=ir.InsertionPoint(before),
        ).slots
        kept = [own.slots if i == cache.axis else d for i, d in enumerate(given)]
        value = builder.view(slots, kept)
        if own.slots < self.policy.slots:
            rest = [self.policy.slots - own.slots if i == cache.axis else d for i, d in enumerate(given)]
            whole = [self.policy.slots if i == cache.axis else d for i, d in enumerate(given)]
            parts = builder.tensors([value, builder.zeros(rest, element_of(rows.type))])
            value = builder.op(
                "torch.aten.cat", [parts, builder.integer(cache.axis)], vtensor(whole, element_of(rows.type))
            )
        self._write(cache.name, value, row, cache.append.location, before)

    def _write(self, state: str, value: ir.Value, row: ir.Value, location: ir.Location, before: ir.Operation) -> None:
        type_ = self.states[state]
        written = WriteRowOp(self.load(state, type_), value, row, type_, loc=location, ip=ir.InsertionPoint(before))
        self.store(state, written.written, location, before)
