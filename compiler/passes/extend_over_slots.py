"""Extend over slots: more tokens of one row, behind what its slots hold."""

from __future__ import annotations

from functools import partial

from torch_mlir import ir

from ..analysis.caches import Cache, caches
from ..analysis.functions import (
    body,
)
from ..diagnostics import Refusal
from ..dialect.kv import (
    Reach,
    ReadRowOp,
    RingExtendOp,
    SlotPositionsOp,
    VisibleExtendOp,
    index_attribute,
)
from ..dialect.policy import Policy
from ..dialect.types import shape_of, vtensor
from .over_slots import (
    SELECTED_COUNT,
    Rewriter,
    looks_at_positions,
    own_policy,
    policy_attributes,
    selected_state,
    sharing,
)
from .rebuild_positions import START
from .row_states import States
from .select_last import LENGTH
from .torch_builder import TorchBuilder


class ExtendOverSlots(Rewriter):
    """An extend function that becomes one of slots, on the states that decode has."""

    def __init__(self, function: ir.Operation, policy: Policy, order: str, states: States) -> None:
        super().__init__(function, policy, order)
        self.states = states

    def run(self) -> None:
        """Rewrites the function.

        Raises:
            Refusal: an attention must know the positions of its keys.
        """
        found = caches(self.function)
        (own_tokens,), (length,), (start,) = (self.argument(role) for role in ("tokens", LENGTH, START))
        count = shape_of(own_tokens.type)[-1]
        tokens = self.add_argument("tokens", vtensor([1, count], "si64"))
        self.replace_tokens(tokens, TorchBuilder(self.first, self.location))
        row = self.add_argument("row", vtensor([], "si64"))
        for cache in found:
            self._update(cache, own_policy(self.policy, cache.reach), row, start, length)
        selected = self._read(SELECTED_COUNT, row, vtensor([1], "si64"), self.location, self.head)
        readers = sharing(found)
        visible: dict[Reach, ir.Value] = {}
        for op in [view.operation for view in body(self.function).operations]:
            if op.name != "kv.attention":
                continue
            if looks_at_positions(op, self.policy):
                raise Refusal(
                    op,
                    "extend cannot tell an attention the positions of the keys in its slots",
                    "extend through decode",
                )
            reach = Reach.of(op)
            if reach not in visible:
                own = own_policy(self.policy, reach)
                builder = TorchBuilder(self.first, self.location)
                visible[reach] = VisibleExtendOp(
                    start,
                    length,
                    selected if own == self.policy else builder.zeros([1], "si64"),
                    **policy_attributes(own),
                    selected=index_attribute(self.policy.slots - own.sink - own.recent),
                    visible=vtensor([1, count, self.policy.slots + count], "i1"),
                    loc=self.location,
                    ip=self.head,
                ).visible
            self.mask(op, visible[reach], partial(self._key_positions, readers[op], row, start, count))
        self.finish([shape_of(self.logits().type)[-1]], ("tokens", LENGTH, "row", START))

    def _key_positions(self, cache: Cache, row: ir.Value, start: ir.Value, count: int) -> ir.Value:
        """The positions of the keys that an index chooses among, [1, C + N]: those in the slots, and the new ones."""
        builder = TorchBuilder(self.first, self.location)
        selected = None
        if self.policy.topk > 0:
            type_ = vtensor([1, cache.heads, self.policy.topk], "si64")
            selected = self._read(selected_state(cache.name), row, type_, self.location, self.head)
        before = SlotPositionsOp(
            builder.view(builder.add_integer(start, -1), [1]),
            selected=selected,
            **policy_attributes(self.policy),
            tokens=vtensor([1, 1, self.policy.slots], "si64"),
            loc=self.location,
            ip=self.head,
        ).tokens
        begin = builder.view(start, [1])
        new = builder.op(
            "torch.aten.add.Tensor", [begin, builder.arange(count), builder.integer(1)], vtensor([count], "si64")
        )
        parts = builder.tensors([builder.view(before, [1, self.policy.slots]), builder.view(new, [1, count])])
        whole = vtensor([1, self.policy.slots + count], "si64")
        return builder.op("torch.aten.cat", [parts, builder.integer(1)], whole)

    def _read(
        self, state: str, row: ir.Value, type_: ir.Type, location: ir.Location, at: ir.InsertionPoint
    ) -> ir.Value:
        return ReadRowOp(self.load(state, self.states[state]), row, type_, loc=location, ip=at).value

    def _update(self, cache: Cache, own: Policy, row: ir.Value, start: ir.Value, length: ir.Value) -> None:
        grown, (past, rows) = cache.append.results[0], list(cache.append.operands)
        location, before = cache.append.location, ir.InsertionPoint(cache.append)
        builder = TorchBuilder(cache.append)
        slots = self._read(cache.name, row, past.type, location, before)
        # read before anything is overwritten: what attention sees is a copy of one row
        joined = builder.op("torch.aten.cat", [builder.tensors([slots, rows]), builder.integer(cache.axis)], grown.type)
        updated = RingExtendOp(
            self.load(cache.name, self.states[cache.name]),
            rows,
            row,
            start,
            length,
            **policy_attributes(own),
            axis=index_attribute(cache.axis),
            updated=self.states[cache.name],
            loc=location,
            ip=before,
        ).updated
        self.store(cache.name, updated, location, self.last)
        grown.replace_all_uses_with(joined)
