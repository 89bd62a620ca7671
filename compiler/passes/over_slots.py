"""What decode, prefill and extend have in common where their caches become slots."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from torch_mlir import ir

from ..analysis.caches import Cache
from ..analysis.functions import (
    argument_attributes,
    body,
    result_attributes,
    set_signature,
    terminator,
)
from ..diagnostics import Refusal
from ..dialect.kv import (
    AttentionOp,
    Reach,
    StateLoadOp,
    StateStoreOp,
    attention,
    index_attribute,
    integer,
    number,
    topk_mask,
)
from ..dialect.policy import Policy
from ..dialect.types import shape_of
from .dead_code import erase_dead
from .torch_builder import TorchBuilder

SELECTED_COUNT = "selected_count"
"""The state that holds, per row, how many selected slots its prompt filled."""


Positions = Callable[[], ir.Value | None]


def looks_at_positions(op: ir.Operation, policy: Policy) -> bool:
    """Whether an attention, over slots, must know the position of the token in each, not only which it may see."""
    view, reach = op.opview, Reach.of(op)
    assert isinstance(view, AttentionOp)
    return view.bias is not None or bool(reach.chunk) or (reach != Reach() and own_policy(policy, reach) == policy)


def own_policy(policy: Policy, reach: Reach) -> Policy:
    """The policy of caches whose attention sees so far: a ring of all that it sees, if that fits."""
    if 0 < reach.most <= policy.slots:
        return dataclasses.replace(policy, sink=0, recent=reach.most, topk=0, window=1)
    return policy


def selected_state(reader: str) -> str:
    """The state of the positions of a row's selected slots; ``reader``: the first cache of those that share them."""
    return f"{reader}_selected"


def policy_attributes(policy: Policy) -> dict[str, ir.Attribute]:
    """``sink`` and ``ring``, as kv ops have them."""
    return {"sink": index_attribute(policy.sink), "ring": index_attribute(policy.recent)}


class Rewriter:
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
        """The arguments of a role."""
        return [
            a for a, e in zip(body(self.function).arguments, self.entries, strict=False) if e.get("kv.role") == role
        ]

    def add_argument(self, name: str, type_: ir.Type) -> ir.Value:
        """One more argument, whose role is its name."""
        self.entries.append({"kv.name": name, "kv.role": name})
        return body(self.function).add_argument(type_, self.location)

    def load(self, state: str, type_: ir.Type) -> ir.Value:
        """What a state holds when the function begins."""
        return StateLoadOp(ir.StringAttr.get(state), type_, loc=self.location, ip=self.head).value

    def store(self, state: str, value: ir.Value, location: ir.Location, before: ir.Operation) -> None:
        """Gives a state a value."""
        StateStoreOp(value, ir.StringAttr.get(state), loc=location, ip=ir.InsertionPoint(before))

    def mask(
        self,
        op: ir.Operation,
        visible: ir.Value,
        positions: Positions,
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

    def _chosen(self, index: ir.Operation, visible: ir.Value, positions: Positions) -> ir.Value:
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
        """Puts the tokens in the place of the program's own."""
        for old in self.argument("tokens"):
            if old != tokens:
                old.replace_all_uses_with(builder.view(tokens, shape_of(old.type)))


def sharing(found: Sequence[Cache]) -> dict[ir.Operation, Cache]:
    """For each attention of the function, the first of the caches that share its selection."""
    first: dict[ir.Operation, Cache] = {}
    for cache in found:
        first.setdefault(cache.scorer, cache)
    readers = dict(first)
    for cache in found:
        readers |= dict.fromkeys(cache.readers, first[cache.scorer])
    return readers
