"""The oracle: eviction equals masking.

The user's exported graph runs in PyTorch with its full, growing cache, one sequence at a time. Nothing is ever
evicted: at each attention, every position that the policy would have dropped by then is masked with -inf, per
layer and KV head, on the model's own logits. A compiled program with a fixed number of slots must give the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import GraphModule, Interpreter, Node

from snapcc.compiler.dialect.policy import Policy

from .attribution import (
    FUSED,
    Attention,
    AttributionError,
    Layout,
    bind,
    find_attentions,
    fused_logits,
    masked,
    see_at_most,
)
from .exported import ExportedDecoder, ProgramInputs, functional
from .fixed_reference import FixedReference
from .selection import ranked

__all__ = ["AttributionError", "Boundary", "FixedReference", "ProgramInputs", "Reference", "reference", "unmodified"]


@dataclass(frozen=True, order=True)
class Boundary:
    """Where a head's selection ends: the two candidates that would change places first.

    Attributes:
        gap: how far their scores lie apart, relative to the kept one's.
        attention: the attention, counted in the order of the graph.
        head: the KV head.
        kept: the selected position of the lowest score.
        left: the position of the highest score that was left out.
    """

    gap: float
    attention: int
    head: int
    kept: int
    left: int


class Reference:
    """One sequence through the user's program, with what the policy would have dropped masked.

    Args:
        program: exported with a symbolic past, and a symbolic number of query tokens or exactly one. Where it takes one
            or carries state beside its caches, prompts go through token by token, and select nothing.
        inputs: what its flat inputs and outputs are.
        policy: what the compressed cache keeps; None keeps everything.
        wide: compute in f32 what the program computes in bf16 or f16, on the same weights.

    Scores are f32 from the logits that the graph has: of a fused attention they are made anew in f32 from its queries
    and keys, as a compiled program makes them; before a softmax of its own they have the program's type, so that in
    bf16 and f16 they are rounded where the compiled program's are not.

    Raises:
        AttributionError: an attention cannot be understood, or a cache is read outside one.
        ValueError: the program and ``inputs`` do not fit one another.
    """

    def __init__(
        self, program: ExportedProgram, inputs: ProgramInputs, policy: Policy | None, wide: bool = False
    ) -> None:
        self._decoder = ExportedDecoder(program, inputs, wide)
        if self._decoder.length is not None:
            raise ValueError("the program's caches have a fixed length: its reference is FixedReference")
        self._policy = policy
        found = find_attentions(self._decoder) if policy is not None else {}
        self.attentions: tuple[Attention, ...] = tuple(found.values())
        near = see_at_most(self._decoder, found, policy.slots) if policy is not None else frozenset()
        self._whole = frozenset(index for index, node in enumerate(found) if node in near)
        attend = {node: partial(self._attend, index) for index, node in enumerate(found)}
        choose = {
            choice: partial(self._choose, index, layout)
            for index, attention in enumerate(self.attentions)
            for choice, layout in attention.choices.items()
        }
        self._runner = _Runner(self._decoder.module, attend | choose)
        self._caches: list[Tensor] | None = None
        self._states: list[Tensor] = []
        self._length = 0
        self._prompt = 0
        self._selected: list[NDArray[np.int64]] = []
        self._boundaries: list[Boundary] = []
        self._after_prompt: tuple[list[Tensor], list[NDArray[np.int64]]] | None = None
        self._dropped: Tensor | None = None

    @property
    def selected(self) -> tuple[NDArray[np.int64], ...]:
        """Per attention, in the order of the graph, the selected positions, [H, n] int64, ascending."""
        return tuple(self._selected)

    @property
    def boundaries(self) -> tuple[Boundary, ...]:
        """Where the last prompt's selections end, per attention that selects and KV head, the nearest pair first."""
        return tuple(sorted(self._boundaries))

    def prefill(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """The last token's logits [V] f32; starts a new sequence.

        Raises:
            ValueError: there is no token.
        """
        if not tokens:
            raise ValueError("a prompt has at least one token")
        self._caches, self._states = self._decoder.empty_caches(), self._decoder.empty_states()
        self._length = 0
        self._prompt = 0 if self._decoder.by_token else len(tokens)
        self._selected = [np.zeros((a.kv_heads, 0), np.int64) for a in self.attentions]
        self._boundaries = []
        logits = self._forward(tokens)
        if not self._decoder.by_token:
            self._after_prompt = (self._caches, list(self._selected))
        return logits

    def rewind(self, others: Sequence[Boundary]) -> None:
        """Goes back to the end of the prompt, with the other choice made at some of its ``boundaries``.

        A selection has no part in the prompt's own logits, so that only what is decoded changes.

        Raises:
            RuntimeError: no prompt was taken at once before.
        """
        if self._after_prompt is None:
            raise RuntimeError("rewind follows a prefill")
        self._caches, selected = self._after_prompt
        self._length, self._selected = self._prompt, [positions.copy() for positions in selected]
        for other in others:
            for attention, positions in zip(self.attentions, self._selected, strict=True):
                if attention.selects == other.attention:
                    row = positions[other.head]
                    row[row == other.kept] = other.left
                    row.sort()

    def decode(self, token: int) -> NDArray[np.float32]:
        """The logits [V] f32 after one more token.

        Raises:
            RuntimeError: no prompt came before it.
        """
        if self._caches is None:
            raise RuntimeError("decode follows a prefill")
        return self._run([token])

    def extend(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """The last token's logits [V] f32 after more tokens, in one forward, each query with its own mask.

        Raises:
            RuntimeError: no prompt came before it.
            ValueError: there is no token.
        """
        if self._caches is None:
            raise RuntimeError("extend follows a prefill")
        if not tokens:
            raise ValueError("extend takes at least one token")
        return self._forward(tokens)

    def _forward(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """In one run, or token by token where the program takes one or carries state."""
        if not self._decoder.by_token:
            return self._run(tokens)
        for token in tokens[:-1]:
            self._run([token])
        return self._run(tokens[-1:])

    def _run(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        assert self._caches is not None
        self._dropped = self._drops(len(tokens)) if self._length else None
        with torch.no_grad():
            results = self._runner.run(
                *self._decoder.arguments(tokens, self._length, self._caches, self._states), enable_io_processing=False
            )
        self._caches, self._states = self._decoder.caches(results), self._decoder.states(results)
        self._length += len(tokens)
        return self._decoder.logits(results)

    def _drops(self, queries: int) -> Tensor | None:
        """[Q, T] bool: positions neither sink nor recent for each of the next queries; None where there are none."""
        policy, total = self._policy, self._length + queries
        if policy is None or total - 1 - policy.recent < policy.sink:
            return None
        keys, positions = torch.arange(total), torch.arange(self._length, total)
        return (keys >= policy.sink) & (keys <= positions[:, None] - policy.recent)

    def _attend(self, index: int, target: Any, bound: dict[str, Any]) -> Any:
        """An attention node of the running graph: select in the prompt, mask what is dropped after it.

        One whose own mask lets it see no more than there are slots has all that it sees.
        """
        attention = self.attentions[index]
        if index in self._whole:
            return target(**bound)
        if self._length == 0:
            if self._policy is not None and self._policy.selected(self._prompt) and attention.selects == index:
                self._selected[index] = self._select(attention, target, bound, self._policy)
            elif attention.selects != index:
                self._selected[index] = self._selected[attention.selects]
            return target(**bound)
        hidden = self._hidden(index)
        if hidden is None:
            return target(**bound)
        return masked(target, bound, lambda shape: attention.layout.like(hidden[attention.heads], shape))

    def _choose(self, index: int, layout: Layout, topk: Any, bound: dict[str, Any]) -> Any:
        """The top-k that leaves an attention some of its keys: it chooses among those that are not dropped.

        Of equal scores the lower index is chosen first, where PyTorch chooses any.
        """
        del topk
        scores: Tensor = bound["self"]
        hidden = self._hidden(index) if self._length else None
        if hidden is not None:
            one = hidden[0]
            rows = one.expand(scores.numel() // one.numel(), *one.shape)
            scores = scores.masked_fill(layout.like(rows, scores.shape), -math.inf)
        best = torch.sort(scores, dim=layout.key_axis, descending=bound.get("largest", True), stable=True)
        return tuple(part.narrow(layout.key_axis, 0, bound["k"]) for part in best)

    def _hidden(self, index: int) -> Tensor | None:
        """[H + 1, Q, T] bool: what is dropped and not selected for an attention, per KV head; None where all stays.

        The row behind the heads', index -1, hides nothing: other sequences of a fixed batch.
        """
        if self._dropped is None:
            return None
        hidden = self._dropped.repeat(self.attentions[index].kv_heads + 1, 1, 1)
        selected = torch.from_numpy(self._selected[index])[:, None].expand(-1, len(self._dropped), -1)
        hidden[:-1].scatter_(2, selected, False)
        hidden[-1] = False
        return hidden

    def _select(self, attention: Attention, target: Any, bound: dict[str, Any], policy: Policy) -> NDArray[np.int64]:
        # Where heads are folded into the query axis, its last W entries are not the last W queries.
        cut = policy.window if attention.layout.group == 1 else None
        logits = fused_logits(bound, cut) if target is FUSED else bound["self"]
        rows = attention.layout.rows(logits, policy.window)
        index, kept = attention.selects, []
        for head in range(attention.kv_heads):
            found = ranked(rows[attention.heads == head].numpy(), self._prompt, policy)
            kept.append(found.kept)
            if found.last is not None and found.next is not None:
                self._boundaries.append(Boundary(found.gap, index, head, found.last, found.next))
        return np.stack(kept)


def reference(
    program: ExportedProgram, inputs: ProgramInputs, policy: Policy | None, wide: bool = False
) -> Reference | FixedReference:
    """The reference for a program, whether its caches grow or have a fixed length."""
    # once for both: what is functional already is taken as it is
    program = functional(program)
    fixed = ExportedDecoder(program, inputs).length is not None
    return (FixedReference if fixed else Reference)(program, inputs, policy, wide)


def unmodified(program: ExportedProgram, inputs: ProgramInputs) -> Reference:
    """The program as it is, without any policy: for comparison where everything fits."""
    return Reference(program, inputs, None)


class _Runner(Interpreter):
    """Runs the graph, with some of its ops handed to functions ``(op, arguments by name)`` of ours."""

    def __init__(self, module: GraphModule, ours: Mapping[Node, Callable[[Any, dict[str, Any]], Any]]) -> None:
        super().__init__(module)
        self._ours = ours

    def run_node(self, n: Node) -> Any:
        run = self._ours.get(n)
        if run is None:
            return super().run_node(n)
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        return run(n.target, bind(n.target, args, kwargs))
