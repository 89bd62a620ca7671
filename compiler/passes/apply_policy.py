"""kv-apply-policy: the growing caches of a program become fixed slots."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
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
    CompactOp,
    ConcatUpdateOp,
    ReadRowOp,
    RingExtendOp,
    RingUpdateOp,
    SelectedCountOp,
    SlotsOp,
    StateLoadOp,
    StateStoreOp,
    TopkSelectOp,
    VisibleExtendOp,
    VisibleOp,
    WriteRowOp,
    attention,
    index_attribute,
    number,
)
from ..dialect.policy import Order, Policy, PoolKind, Score
from ..dialect.types import element_of, shape_of, vtensor
from .dead_code import erase_dead
from .rebuild_positions import START
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
    comparing cost; there is no extend then. Design section 3.

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
        _add_reset(module, states)


States = dict[str, ir.Type]


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

    def mask(self, visible: ir.Value) -> None:
        """Gives every attention its mask."""
        for op in [view.operation for view in body(self.function).operations]:
            if op.name == "kv.attention":
                masked = attention(
                    [*list(op.operands)[:3], visible],
                    scale=number(op, "scale"),
                    softcap=number(op, "softcap"),
                    causal=False,
                    result=op.results[0].type,
                    location=op.location,
                    before=op,
                )
                op.results[0].replace_all_uses_with(masked)
                op.erase()

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

    def run(self) -> States:
        found = caches(self.function)
        rows, index = vtensor([self.batch], "si64"), vtensor([self.batch], "si64")
        positions = self.argument("positions")[-1]
        tokens = self.add_argument("tokens", rows)
        active = self.add_argument("active", vtensor([self.batch], "i1"))
        self.replace_tokens(tokens, TorchBuilder(self.first, self.location))
        attributes = _policy_attributes(self.policy)
        places = positions
        if self.order == "ring":
            places = SlotsOp(positions, **attributes, slots=index, loc=self.location, ip=self.head).slots
        count = self.load(SELECTED_COUNT, vtensor([self.batch], "si64"))
        visible = VisibleOp(
            positions,
            count,
            **attributes,
            selected=index_attribute(self.policy.topk),
            visible=vtensor([self.batch, self.policy.slots], "i1"),
            loc=self.location,
            ip=self.head,
        ).visible
        states: States = {SELECTED_COUNT: vtensor([self.batch], "si64")}
        for cache in found:
            self._update(cache, places, active, states)
        self.mask(visible)
        self.finish([self.batch, shape_of(self.logits().type)[-1]], ("tokens", "positions", "active"))
        return states

    def _update(self, cache: Cache, places: ir.Value, active: ir.Value, states: States) -> None:
        grown, location, before = cache.append.results[0], cache.append.location, ir.InsertionPoint(cache.append)
        states[cache.name] = grown.type
        given = (self.load(cache.name, grown.type), cache.append.operands[1], places, active)
        axis = index_attribute(cache.axis)
        if self.order == "ring":
            updated = RingUpdateOp(*given, axis, grown.type, loc=location, ip=before).updated
        else:
            attributes = _policy_attributes(self.policy)
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
        (length,) = self.argument(LENGTH)
        (own_tokens,) = self.argument("tokens")
        prompt = shape_of(own_tokens.type)[-1]
        tokens = self.add_argument("tokens", vtensor([1, prompt], "si64"))
        builder = TorchBuilder(self.first, self.location)
        self.replace_tokens(tokens, builder)
        self._count_up(prompt, builder)
        row = self.add_argument("row", vtensor([], "si64"))
        for cache in found:
            cache.append.results[0].replace_all_uses_with(cache.append.operands[1])
        operations = [view.operation for view in block.operations]
        # right behind the attention, so that a layer's queries, keys and values need not live on
        behind = dict(itertools.pairwise(operations))
        selections: dict[ir.Operation, ir.Value] = {}
        for cache in found:
            anchor = behind[cache.reader]
            if self.policy.topk > 0 and cache.reader not in selections:
                selections[cache.reader] = self._select(cache.reader, length, anchor)
            self._compact(cache, selections.get(cache.reader), length, row, anchor)
        count = SelectedCountOp(
            length,
            **_policy_attributes(self.policy),
            selected=index_attribute(self.policy.topk),
            count=vtensor([1], "si64"),
            loc=self.location,
            ip=self.tail,
        ).count
        self._write(SELECTED_COUNT, count, row, self.location, self.last)
        self.finish([shape_of(self.logits().type)[-1]], ("tokens", LENGTH, "row"))

    def _count_up(self, prompt: int, builder: TorchBuilder) -> None:
        """A prompt's positions are 0 .. N - 1."""
        for old in self.argument("positions"):
            iota = builder.arange(prompt)
            shape = shape_of(old.type)
            ones = [1] * (len(shape) - 1)
            old.replace_all_uses_with(builder.view(iota, [*ones, prompt]))

    def _select(self, reader: ir.Operation, length: ir.Value, before: ir.Operation) -> ir.Value:
        q, k = list(reader.operands)[:2]
        return TopkSelectOp(
            q,
            k,
            length,
            **_policy_attributes(self.policy),
            selected=index_attribute(self.policy.topk),
            window=index_attribute(self.policy.window),
            pool=ir.StringAttr.get(self.policy.pool),
            pool_size=index_attribute(self.policy.pool_size),
            score=ir.StringAttr.get(self.policy.score),
            scale=ir.FloatAttr.get_f64(number(reader, "scale")),
            softcap=ir.FloatAttr.get_f64(number(reader, "softcap")),
            positions=vtensor([shape_of(k.type)[1], self.policy.topk], "si64"),
            loc=reader.location,
            ip=ir.InsertionPoint(before),
        ).positions

    def _compact(
        self, cache: Cache, selection: ir.Value | None, length: ir.Value, row: ir.Value, before: ir.Operation
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
            **_policy_attributes(self.policy),
            axis=index_attribute(axis),
            head_axis=index_attribute(cache.head_axis),
            order=ir.StringAttr.get(self.order),
            slots=vtensor([self.policy.slots if i == axis else d for i, d in enumerate(split)], element_of(rows.type)),
            loc=cache.append.location,
            ip=ir.InsertionPoint(before),
        ).slots
        kept = [self.policy.slots if i == cache.axis else d for i, d in enumerate(given)]
        self._write(cache.name, builder.view(slots, kept), row, cache.append.location, before)

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
        visible = VisibleExtendOp(
            start,
            length,
            self._read(SELECTED_COUNT, row, vtensor([1], "si64"), self.location, self.head),
            **_policy_attributes(self.policy),
            selected=index_attribute(self.policy.topk),
            visible=vtensor([1, count, self.policy.slots + count], "i1"),
            loc=self.location,
            ip=self.head,
        ).visible
        for cache in found:
            self._update(cache, row, start, length)
        self.mask(visible)
        self.finish([shape_of(self.logits().type)[-1]], ("tokens", LENGTH, "row", START))

    def _read(
        self, state: str, row: ir.Value, type_: ir.Type, location: ir.Location, at: ir.InsertionPoint
    ) -> ir.Value:
        return ReadRowOp(self.load(state, self.states[state]), row, type_, loc=location, ip=at).value

    def _update(self, cache: Cache, row: ir.Value, start: ir.Value, length: ir.Value) -> None:
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
            **_policy_attributes(self.policy),
            axis=index_attribute(cache.axis),
            updated=self.states[cache.name],
            loc=location,
            ip=before,
        ).updated
        self.store(cache.name, updated, location, self.last)
        grown.replace_all_uses_with(joined)


def _add_reset(module: ir.Operation, states: States) -> None:
    """``reset(row)``: every state of a row is zero again."""
    location = module.location
    with location, ir.InsertionPoint(module.regions[0].blocks[0]):
        scalar = vtensor([], "si64")
        kind = ir.FunctionType.get([scalar], [])
        function = ir.Operation.create(
            "func.func",
            attributes={"sym_name": ir.StringAttr.get("reset"), "function_type": ir.TypeAttr.get(kind)},
            regions=1,
        )
        block = function.regions[0].blocks.append(scalar, arg_locs=[location])
    with location, ir.InsertionPoint(block):
        returned = ir.Operation.create("func.return")
    builder = TorchBuilder(returned, location)
    for state, type_ in states.items():
        ip = ir.InsertionPoint(returned)
        value = StateLoadOp(ir.StringAttr.get(state), type_, loc=location, ip=ip).value
        zero = _zeros(builder, [1, *shape_of(type_)[1:]], element_of(type_))
        written = WriteRowOp(value, zero, block.arguments[0], type_, loc=location, ip=ir.InsertionPoint(returned))
        StateStoreOp(written.written, ir.StringAttr.get(state), loc=location, ip=ir.InsertionPoint(returned))
    set_signature(function, [{"kv.name": "row", "kv.role": "row"}], [])


def _zeros(builder: TorchBuilder, shape: Sequence[int], element: str) -> ir.Value:
    number_of = {"f16": 5, "f32": 6, "f64": 7, "bf16": 15, "si64": 4, "si32": 3}
    none = builder.none()
    return builder.op(
        "torch.aten.zeros",
        [builder.integers(shape), builder.integer(number_of[element]), none, none, none],
        vtensor(shape, element),
    )
