"""kv-apply-policy: the growing caches of a program become fixed slots."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, get_args

from torch_mlir import ir

from ..analysis.caches import Cache, caches, past_length, query_length
from ..analysis.functions import (
    argument_attributes,
    body,
    functions,
    result_attributes,
    set_signature,
    terminator,
)
from ..diagnostics import Refusal
from ..dialect.kv import (
    AttentionOp,
    CompactOp,
    ConcatUpdateOp,
    Reach,
    ReadRowOp,
    RingExtendOp,
    RingUpdateOp,
    SelectedCountOp,
    SlotPositionsOp,
    SlotsOp,
    StateLoadOp,
    StateStoreOp,
    TopkSelectOp,
    VisibleExtendOp,
    VisibleOp,
    WriteRowOp,
    attention,
    index_attribute,
    integer,
    number,
    topk_mask,
)
from ..dialect.policy import Order, Policy, PoolKind, Score
from ..dialect.types import element_of, shape_of, vtensor
from .dead_code import erase_dead
from .rebuild_positions import START
from .row_states import States, add_reset, carry, initial_values
from .select_last import LENGTH
from .torch_builder import TorchBuilder

SELECTED_COUNT = "selected_count"
"""The state that holds, per row, how many selected slots its prompt filled."""


@dataclass(frozen=True)
class ApplyPolicy:
    """Replaces the growing caches of a raised program by S + R + K slots and gives it its final signatures.

    Applies to a module of decode, prefill and extend functions after ``kv-raise-attention``,
    ``kv-rebuild-positions`` and ``kv-select-last``; decode must be specialised at a past of C - 1 and extend at one
    of C, so that no type behind a cache changes. ``batch`` rows share each state. Decode writes one token per row by
    ``kv.ring_update`` and sees the slots of ``kv.visible``; prefill selects per attention, compacts each cache and
    writes one row; extend attends over one row's slots and the new tokens behind them under ``kv.visible_extend``,
    and writes by ``kv.ring_extend``; ``reset`` is made. ``order`` "ring" is the above; "time" keeps the recent tokens
    from the oldest to the newest by ``kv.concat_update``, slicing and joining each cache anew: the same tokens, for
    comparing cost; there is no extend then. Design section 3. What decode carries beside its caches (role "state") is
    loaded, and stored by ``kv.write_rows`` for the active rows; ``reset`` puts it back to what it starts with.

    Where an attention sees at most V <= C positions back (a sliding window, chunks), its caches keep a ring of V and
    nothing else. Where it sees more, or has a bias along the keys (``kv.linear_bias``), the mask and the bias are made
    of the slots' own positions (``kv.slot_positions``); those of the selected slots are a state of the row then.

    Before::

        func.func @decode(%ids, .., %past: [B, H, C - 1, D]) {
          %grown = "kv.append"(%past, %k) {axis = 2}
          %o = "kv.attention"(%q, %grown, ..)
          return %logits, %grown

    After::

        func.func @decode(%tokens: [B], %positions: [B], %active: [B]) {
          %slots = "kv.slots"(%positions) {sink = S, ring = R}
          %cache = "kv.state_load"() {state = "k0"}
          %updated = "kv.ring_update"(%cache, %k, %slots, %active) {axis = 2}
          "kv.state_store"(%updated) {state = "k0"}
          %o = "kv.attention"(%q, %updated, .., %visible)
          return %logits
    """

    sink: int
    recent: int
    topk: int
    window: int
    batch: int
    pool: str = "avg"
    pool_size: int = 5
    score: str = "candidates"
    order: str = "ring"
    name: ClassVar[str] = "kv-apply-policy"

    def __post_init__(self) -> None:
        if self.order not in get_args(Order):
            raise ValueError(f"order must be one of {', '.join(get_args(Order))}, got {self.order!r}")

    @property
    def policy(self) -> Policy:
        """The options as a checked policy.

        Raises:
            ValueError: they break one of its rules.
        """
        pool: PoolKind = self.pool  # type: ignore[assignment]  # Policy checks the text
        score: Score = self.score  # type: ignore[assignment]
        return Policy(self.sink, self.recent, self.topk, self.window, pool, self.pool_size, score)

    def run(self, module: ir.Operation) -> None:
        """Rewrites the module."""
        policy = self.policy
        raised = [f for f in functions(module).values() if past_length(f) is not None]
        prefills = [f for f in raised if past_length(f) == 0]
        extends = [f for f in raised if past_length(f) != 0 and query_length(f) > 1]
        decode = [f for f in raised if past_length(f) != 0 and query_length(f) == 1]
        if len(decode) != 1:
            raise Refusal(
                module,
                f"expected one decode function, found {len(decode)}",
                "keep one function with a past of C - 1 tokens",
            )
        past = past_length(decode[0])
        if past != policy.slots - 1:
            raise Refusal(
                decode[0],
                f"the program is specialised at a past of {past} tokens, which makes {past + 1 if past else 0} slots, "
                f"but sink {policy.sink} + recent {policy.recent} + topk {policy.topk} make {policy.slots}",
                "choose parts that add up to the program's own length plus one",
            )
        initial = initial_values(decode[0])
        states = _Decode(decode[0], policy, self.order, self.batch).run()
        for function in prefills:
            _Prefill(function, policy, self.order, states).run()
        for function in extends:
            if self.order != "ring":
                raise Refusal(
                    function,
                    f"extend writes to a ring, and the recent tokens stand in the order of {self.order}",
                    "extend through decode",
                )
            if past_length(function) != policy.slots:
                raise Refusal(
                    function,
                    f"extend is specialised at a past of {past_length(function)} tokens, and there are "
                    f"{policy.slots} slots",
                    "specialise it at a past of as many tokens as there are slots",
                )
            _Extend(function, policy, self.order, states).run()
        add_reset(module, states, initial)


_Positions = Callable[[], ir.Value | None]

_UNSEEN = -1e30
"""Added to the logit of a key: its weight is zero, and no sum of two overflows to a NaN."""


def looks_at_positions(op: ir.Operation, policy: Policy) -> bool:
    """Whether an attention, over slots, must know the position of the token in each, not only which it may see."""
    view, reach = op.opview, Reach.of(op)
    assert isinstance(view, AttentionOp)
    return view.bias is not None or bool(reach.chunk) or (reach != Reach() and _own(policy, reach) == policy)


def _own(policy: Policy, reach: Reach) -> Policy:
    """The policy of caches whose attention sees so far: a ring of all that it sees, if that fits."""
    if 0 < reach.most <= policy.slots:
        return dataclasses.replace(policy, sink=0, recent=reach.most, topk=0, window=1)
    return policy


def _selected_state(reader: str) -> str:
    """The state of the positions of a row's selected slots; ``reader``: the first cache of those that share them."""
    return f"{reader}_selected"


def _policy_attributes(policy: Policy) -> dict[str, ir.Attribute]:
    return {"sink": index_attribute(policy.sink), "ring": index_attribute(policy.recent)}


class _Rewriter:
    """What decode, prefill and extend have in common: arguments by role, states, masks, the last op."""

    def __init__(self, function: ir.Operation, policy: Policy, order: str) -> None:
        self.function = function
        self.policy = policy
        self.order = order
        self.location = function.location
        self.first = body(function).operations[0].operation
        self.last = terminator(function)
        self.head = ir.InsertionPoint(self.first)
        self.tail = ir.InsertionPoint(self.last)
        self.entries = argument_attributes(function)
        self._choices: dict[ir.Operation, ir.Value] = {}

    def argument(self, role: str) -> list[ir.Value]:
        return [
            a for a, e in zip(body(self.function).arguments, self.entries, strict=False) if e.get("kv.role") == role
        ]

    def add_argument(self, name: str, type_: ir.Type) -> ir.Value:
        self.entries.append({"kv.name": name, "kv.role": name})
        return body(self.function).add_argument(type_, self.location)

    def load(self, state: str, type_: ir.Type) -> ir.Value:
        return StateLoadOp(ir.StringAttr.get(state), type_, loc=self.location, ip=self.head).value

    def store(self, state: str, value: ir.Value, location: ir.Location, before: ir.Operation) -> None:
        StateStoreOp(value, ir.StringAttr.get(state), loc=location, ip=ir.InsertionPoint(before))

    def mask(
        self,
        op: ir.Operation,
        visible: ir.Value,
        positions: _Positions,
        bias: ir.Value | None = None,
    ) -> None:
        """Gives an attention its mask, and what is added to its logits; its index chooses among what it may see.

        ``positions`` makes those of its keys, [B, T], None where they stand in their order.
        """
        view = op.opview
        assert isinstance(view, AttentionOp)
        if view.visible is not None:
            visible = self._chosen(view.visible.owner.operation, visible, positions)
        masked = attention(
            [view.q, view.k, view.v, visible],
            scale=number(op, "scale"),
            softcap=number(op, "softcap"),
            causal=False,
            result=op.results[0].type,
            location=op.location,
            before=op,
            bias=bias,
            sinks=view.sinks,
        )
        op.results[0].replace_all_uses_with(masked)
        op.erase()

    def _chosen(self, index: ir.Operation, visible: ir.Value, positions: _Positions) -> ir.Value:
        """What a ``kv.topk_mask`` leaves of what may be seen; once for all attentions that it chooses for."""
        if index not in self._choices:
            self._choices[index] = topk_mask(
                index.operands[0],
                count=integer(index, "count"),
                causal=False,
                location=index.location,
                before=index,
                visible=visible,
                positions=positions(),
            )
        return self._choices[index]

    def logits(self) -> ir.Value:
        """The program's own logits."""
        names = [entry.get("kv.name") for entry in result_attributes(self.function)]
        return self.last.operands[names.index("logits")]

    def finish(self, logits_shape: Sequence[int], kept: Sequence[str]) -> None:
        """Returns the logits alone and leaves the arguments ``kept``, in that order."""
        builder = TorchBuilder(self.last)
        logits = builder.cast(self.logits(), "f32")
        logits = builder.view(logits, logits_shape)
        ir.Operation.create("func.return", operands=[logits], loc=self.last.location, ip=self.tail)
        self.last.erase()
        erase_dead(self.function)
        block = body(self.function)
        for name in kept:
            # the program's own input may bear the same name; ours was added behind it
            at = max(i for i, e in enumerate(self.entries) if e["kv.name"] == e["kv.role"] == name)
            old = block.arguments[at]
            old.replace_all_uses_with(self.add_argument(name, old.type))
            self._drop(at)
        for at in reversed(range(len(block.arguments) - len(kept))):
            if any(True for _ in block.arguments[at].uses):
                raise Refusal(
                    self.function,
                    f"the input '{self.entries[at].get('kv.name')}' is used and is no tokens, positions, mask or cache",
                    "make it a constant of the model, or say with --input what it is",
                )
            self._drop(at)
        set_signature(self.function, self.entries, [{"kv.name": "logits"}])

    def _drop(self, at: int) -> None:
        body(self.function).erase_argument(at)
        del self.entries[at]

    def replace_tokens(self, tokens: ir.Value, builder: TorchBuilder) -> None:
        for old in self.argument("tokens"):
            if old != tokens:
                old.replace_all_uses_with(builder.view(tokens, shape_of(old.type)))


class _Decode(_Rewriter):
    def __init__(self, function: ir.Operation, policy: Policy, order: str, batch: int) -> None:
        super().__init__(function, policy, order)
        self.batch = batch
        self.states: States = {}

    def run(self) -> States:
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
            own = _own(self.policy, cache.reach)
            if own not in places:
                places[own] = positions
                if self.order == "ring":
                    places[own] = SlotsOp(
                        positions, **_policy_attributes(own), slots=index, loc=self.location, ip=self.head
                    ).slots
            self._update(cache, own, places[own], active)
        readers = _readers(found)
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
        own = _own(self.policy, reach)
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
            **_policy_attributes(own),
            selected=index_attribute(self.policy.slots - own.sink - own.recent),
            visible=vtensor([self.batch, self.policy.slots], "i1"),
            loc=self.location,
            ip=self.head,
        ).visible

    def _bias(self, op: ir.Operation, cache: Cache, reach: Reach, positions: ir.Value) -> ir.Value | None:
        """What an attention adds to its logits by the positions of its slots; ``cache`` is the first that it reads."""
        view = op.opview
        assert isinstance(view, AttentionOp)
        own = _own(self.policy, reach)
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
            state, type_ = _selected_state(cache.name), vtensor([self.batch, heads, own.topk], "si64")
            self.states[state] = type_
            selected = self.load(state, type_)
        elif others > 0:
            # behind a ring that has all that is seen: slots that nothing fills
            selected = builder.zeros([self.batch, 1, others], "si64")
        return SlotPositionsOp(
            positions,
            selected=selected,
            **_policy_attributes(own),
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
            attributes = _policy_attributes(own)
            updated = ConcatUpdateOp(
                *given, **attributes, axis=axis, updated=grown.type, loc=location, ip=before
            ).updated
        self.store(cache.name, updated, location, self.last)
        grown.replace_all_uses_with(updated)


class _Prefill(_Rewriter):
    def __init__(self, function: ir.Operation, policy: Policy, order: str, states: States) -> None:
        super().__init__(function, policy, order)
        self.states = states

    def run(self) -> None:
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
            own = _own(self.policy, cache.reach)
            if own.topk > 0 and cache.scorer not in selections:
                anchor = behind[cache.scorer]
                selected = self._select(cache, length, anchor)
                selections[cache.scorer] = selected
                if (state := _selected_state(cache.name)) in self.states:
                    builder = TorchBuilder(anchor, cache.scorer.location)
                    of_row = builder.view(selected, [1, cache.heads, own.topk])
                    self._write(state, of_row, row, cache.scorer.location, anchor)
            self._compact(cache, own, selections.get(cache.scorer), length, row, behind[cache.readers[0]])
        count = SelectedCountOp(
            length,
            **_policy_attributes(self.policy),
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
            **_policy_attributes(self.policy),
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
            **_policy_attributes(own),
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


class _Extend(_Rewriter):
    def __init__(self, function: ir.Operation, policy: Policy, order: str, states: States) -> None:
        super().__init__(function, policy, order)
        self.states = states

    def run(self) -> None:
        found = caches(self.function)
        (own_tokens,), (length,), (start,) = (self.argument(role) for role in ("tokens", LENGTH, START))
        count = shape_of(own_tokens.type)[-1]
        tokens = self.add_argument("tokens", vtensor([1, count], "si64"))
        self.replace_tokens(tokens, TorchBuilder(self.first, self.location))
        row = self.add_argument("row", vtensor([], "si64"))
        for cache in found:
            self._update(cache, _own(self.policy, cache.reach), row, start, length)
        selected = self._read(SELECTED_COUNT, row, vtensor([1], "si64"), self.location, self.head)
        readers = _readers(found)
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
                own = _own(self.policy, reach)
                builder = TorchBuilder(self.first, self.location)
                visible[reach] = VisibleExtendOp(
                    start,
                    length,
                    selected if own == self.policy else builder.zeros([1], "si64"),
                    **_policy_attributes(own),
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
            selected = self._read(_selected_state(cache.name), row, type_, self.location, self.head)
        before = SlotPositionsOp(
            builder.view(builder.add_integer(start, -1), [1]),
            selected=selected,
            **_policy_attributes(self.policy),
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
            **_policy_attributes(own),
            axis=index_attribute(cache.axis),
            updated=self.states[cache.name],
            loc=location,
            ip=before,
        ).updated
        self.store(cache.name, updated, location, self.last)
        grown.replace_all_uses_with(joined)


def _slopes(bias: ir.Value) -> ir.Value:
    """Those of a ``kv.linear_bias``, [H, G]."""
    producer = bias.owner.operation
    assert producer.name == "kv.linear_bias", producer.name
    return producer.operands[0]


def _readers(found: Sequence[Cache]) -> dict[ir.Operation, Cache]:
    """For each attention of the function, the first of the caches that share its selection."""
    first: dict[ir.Operation, Cache] = {}
    for cache in found:
        first.setdefault(cache.scorer, cache)
    readers = dict(first)
    for cache in found:
        readers |= dict.fromkeys(cache.readers, first[cache.scorer])
    return readers
