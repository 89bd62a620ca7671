"""Decode over slots: one token per row, written at its slot."""

from __future__ import annotations

from functools import partial

from torch_mlir import ir

from ..analysis.caches import Cache, caches
from ..analysis.functions import (
    body,
)
from ..diagnostics import Refusal
from ..dialect.kv import (
    AttentionOp,
    ConcatUpdateOp,
    Reach,
    RingUpdateOp,
    SlotPositionsOp,
    SlotsOp,
    VisibleOp,
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
from .row_states import States, carry
from .torch_builder import TorchBuilder

_UNSEEN = -1e30
"""Added to the logit of a key: its weight is zero, and no sum of two overflows to a NaN."""


class DecodeOverSlots(Rewriter):
    """A decode function that becomes one of slots: a token for each of ``batch`` rows."""

    def __init__(self, function: ir.Operation, policy: Policy, order: str, batch: int) -> None:
        super().__init__(function, policy, order)
        self.batch = batch
        self.states: States = {}

    def run(self) -> States:
        """Rewrites the function; the states that it works on, by name."""
        found = caches(self.function)
        rows, index = vtensor([self.batch], "si64"), vtensor([self.batch], "si64")
        positions = self.argument("positions")[-1]
        tokens = self.add_argument("tokens", rows)
        active = self.add_argument("active", vtensor([self.batch], "i1"))
        self.replace_tokens(tokens, TorchBuilder(self.first, self.location))
        self.states = {SELECTED_COUNT: rows}
        count = self.load(SELECTED_COUNT, rows)
        places: dict[Policy, ir.Value] = {}
        for cache in found:
            own = own_policy(self.policy, cache.reach)
            if own not in places:
                places[own] = positions
                if self.order == "ring":
                    places[own] = SlotsOp(
                        positions, **policy_attributes(own), slots=index, loc=self.location, ip=self.head
                    ).slots
            self._update(cache, own, places[own], active)
        readers = sharing(found)
        visible: dict[Reach, ir.Value] = {}
        for view in list(body(self.function).operations):
            op = view.operation
            if op.name != "kv.attention":
                continue
            first, reach = readers[op], Reach.of(op)
            if reach not in visible:
                visible[reach] = self._visible(reach, positions, count)
            bias = self._bias(op, first, reach, positions)
            self.mask(op, visible[reach], partial(self._key_positions, first, positions), bias)
        states = self.states = self.states | carry(self.function, active)
        self.finish([self.batch, shape_of(self.logits().type)[-1]], ("tokens", "positions", "active"))
        return states

    def _visible(self, reach: Reach, positions: ir.Value, count: ir.Value) -> ir.Value:
        """The slots that a query of this reach may see, as far as their number tells."""
        own = own_policy(self.policy, reach)
        builder = TorchBuilder(self.first, self.location)
        if own != self.policy:
            count = builder.zeros([self.batch], "si64")
            if reach.chunk:
                # a chunk fills the ring from its first slot on
                chunk = builder.integer(reach.chunk)
                positions = builder.op("torch.aten.remainder.Scalar", [positions, chunk], positions.type)
        return VisibleOp(
            positions,
            count,
            **policy_attributes(own),
            selected=index_attribute(self.policy.slots - own.sink - own.recent),
            visible=vtensor([self.batch, self.policy.slots], "i1"),
            loc=self.location,
            ip=self.head,
        ).visible

    def _bias(self, op: ir.Operation, cache: Cache, reach: Reach, positions: ir.Value) -> ir.Value | None:
        """What an attention adds to its logits by the positions of its slots; ``cache`` is the first that it reads."""
        view = op.opview
        assert isinstance(view, AttentionOp)
        own = own_policy(self.policy, reach)
        hides = reach != Reach() and own == self.policy
        if self.order != "ring" and looks_at_positions(op, self.policy):
            raise Refusal(
                op,
                "the attention looks at the position of each key, and its slots are in the order of time, for "
                "comparing cost",
                "use another --kv than naive",
            )
        if view.bias is None and not hides:
            return None
        builder = TorchBuilder(op)
        tokens = self._slot_positions(op, cache, own, positions)
        here = builder.view(positions, [self.batch, 1, 1])
        if reach.chunk:
            size = builder.integer(reach.chunk)
            into = builder.op("torch.aten.remainder.Scalar", [here, size], here.type)
        distance = builder.op("torch.aten.sub.Tensor", [tokens, here, builder.integer(1)], tokens.type)
        rows, heads, slots = shape_of(tokens.type)
        found: list[ir.Value] = []
        if hides:
            flags = vtensor([rows, heads, slots], "i1")
            if reach.window:
                unseen = builder.op("torch.aten.le.Scalar", [distance, builder.integer(-reach.window)], flags)
            else:
                begin = builder.op("torch.aten.add.Tensor", [distance, into, builder.integer(1)], distance.type)
                unseen = builder.op("torch.aten.lt.Scalar", [begin, builder.integer(0)], flags)
            number_of = builder.cast(unseen, "f32")
            low = builder.op("torch.aten.mul.Scalar", [number_of, builder.float(_UNSEEN)], number_of.type)
            found.append(builder.view(low, [rows, heads, 1, slots]))
        if view.bias is not None:
            slopes = _slopes(view.bias)
            by_head, group = shape_of(slopes.type)
            steps = builder.view(builder.cast(distance, "f32"), [rows, heads, 1, slots])
            slopes = builder.view(slopes, [1, by_head, group, 1])
            type_ = vtensor([rows, by_head, group, slots], "f32")
            found.append(builder.op("torch.aten.mul.Tensor", [steps, slopes], type_))
        total = found[-1]
        if len(found) > 1:
            total = builder.op("torch.aten.add.Tensor", [*found, builder.integer(1)], total.type)
        kv_heads, group = shape_of(view.q.type)[1:3]
        wanted = [rows, kv_heads, shape_of(total.type)[2], slots]
        if shape_of(total.type) != wanted:
            operands = [total, builder.integers(wanted), builder.boolean(False)]
            total = builder.op("torch.aten.expand", operands, vtensor(wanted, "f32"))
        return total

    def _key_positions(self, cache: Cache, positions: ir.Value) -> ir.Value | None:
        """The positions of the keys that an index chooses among, [B, C]; None where no op tells them."""
        if self.order != "ring":
            return None
        tokens = self._slot_positions(self.first, cache, self.policy, positions)
        return TorchBuilder(self.first, self.location).view(tokens, [self.batch, self.policy.slots])

    def _slot_positions(self, op: ir.Operation, cache: Cache, own: Policy, positions: ir.Value) -> ir.Value:
        """[B, H, C], H = 1 where all heads have the same."""
        builder = TorchBuilder(op)
        heads, others = 1, self.policy.slots - own.sink - own.recent
        selected = None
        if own.topk > 0:
            heads = cache.heads
            state, type_ = selected_state(cache.name), vtensor([self.batch, heads, own.topk], "si64")
            self.states[state] = type_
            selected = self.load(state, type_)
        elif others > 0:
            # behind a ring that has all that is seen: slots that nothing fills
            selected = builder.zeros([self.batch, 1, others], "si64")
        return SlotPositionsOp(
            positions,
            selected=selected,
            **policy_attributes(own),
            tokens=vtensor([self.batch, heads, self.policy.slots], "si64"),
            loc=self.location,
            ip=ir.InsertionPoint(op),
        ).tokens

    def _update(self, cache: Cache, own: Policy, places: ir.Value, active: ir.Value) -> None:
        grown, location, before = cache.append.results[0], cache.append.location, ir.InsertionPoint(cache.append)
        self.states[cache.name] = grown.type
        given = (self.load(cache.name, grown.type), cache.append.operands[1], places, active)
        axis = index_attribute(cache.axis)
        if self.order == "ring":
            updated = RingUpdateOp(*given, axis, grown.type, loc=location, ip=before).updated
        else:
            attributes = policy_attributes(own)
            updated = ConcatUpdateOp(
                *given, **attributes, axis=axis, updated=grown.type, loc=location, ip=before
            ).updated
        self.store(cache.name, updated, location, self.last)
        grown.replace_all_uses_with(updated)


def _slopes(bias: ir.Value) -> ir.Value:
    """Those of a ``kv.linear_bias``, [H, G]."""
    producer = bias.owner.operation
    assert producer.name == "kv.linear_bias", producer.name
    return producer.operands[0]
