"""kv-apply-policy: the growing caches of a program become fixed slots."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, get_args

from torch_mlir import ir

from ..analysis.caches import past_length, query_length
from ..analysis.functions import (
    functions,
)
from ..diagnostics import Refusal
from ..dialect.policy import Order, Policy, PoolKind, Score
from .decode_over_slots import DecodeOverSlots
from .extend_over_slots import ExtendOverSlots
from .prefill_to_slots import PrefillToSlots
from .row_states import add_reset, initial_values


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
        states = DecodeOverSlots(decode[0], policy, self.order, self.batch).run()
        for function in prefills:
            PrefillToSlots(function, policy, self.order, states).run()
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
            ExtendOverSlots(function, policy, self.order, states).run()
        add_reset(module, states, initial)
