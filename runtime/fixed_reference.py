"""The oracle for programs whose caches have a fixed length.

Such a program cannot hold the whole history. It is held here; at each step the program gets the rows that the policy
keeps, which always fit, and what stands beside them is masked. The policy drops the same positions of all heads, since
such a program takes one token at a time and selects nothing. An attention whose own mask is a window sees all of that.
Where rows do not stand at their own places, a bias along the keys is put right by how far they are off.
"""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import Interpreter, Node
from torch.fx.node import map_arg

from snapcc.compiler.dialect.policy import Policy

from .attribution import FUSED, OVER_LOGITS, AttributionError, bind, dimension_of_keys, fused_logits, masked
from .exported import ExportedDecoder, ProgramInputs
from .selection import MASKED


class FixedReference:
    """One sequence through a user's program of fixed length, with the tokens that the policy keeps.

    Args:
        program: exported for one query token and caches of one fixed length.
        inputs: what its flat inputs and outputs are.
        policy: what the compressed cache keeps, no more than the program holds; None keeps everything.
        wide: compute in f32 what the program computes in bf16 or f16, on the same weights.

    Raises:
        AttributionError: an attention cannot be understood, or a cache is read outside one.
        ValueError: the program and ``inputs`` do not fit one another, or the policy keeps more than fits.
    """

    def __init__(
        self, program: ExportedProgram, inputs: ProgramInputs, policy: Policy | None, wide: bool = False
    ) -> None:
        self._decoder = ExportedDecoder(program, inputs, wide)
        self._policy = policy
        self._program = _Program(self._decoder)
        self._history: list[list[Tensor]] | None = None
        self._states: list[list[Tensor]] = []
        """Those before each token so far, and those after the last."""
        self._prompt = 0
        slots = self._program.slots
        if policy is not None and policy.sink + policy.recent > slots:
            raise ValueError(f"the policy keeps {policy.sink + policy.recent} tokens, the program holds {slots}")

    def prefill(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """The last token's logits [V] f32; starts a new sequence.

        Raises:
            ValueError: there is no token.
        """
        if not tokens:
            raise ValueError("a prompt has at least one token")
        self._history = [[] for _ in self._decoder.inputs.caches]
        self._states = [self._decoder.empty_states()]
        self._prompt = len(tokens)
        return [self.decode(token) for token in tokens][-1]

    @property
    def boundaries(self) -> tuple[()]:
        """Where selections end: a program that takes one token at a time selects nothing."""
        return ()

    def rewind(self, others: Sequence[object]) -> None:
        """Goes back to the end of the prompt.

        Raises:
            RuntimeError: no prompt came before it.
            ValueError: another choice is asked for, and there is none.
        """
        if self._history is None:
            raise RuntimeError("rewind follows a prefill")
        if others:
            raise ValueError("a program that takes one token at a time selects nothing")
        for past in self._history:
            del past[self._prompt :]
        del self._states[self._prompt + 1 :]

    def decode(self, token: int) -> NDArray[np.float32]:
        """The logits [V] f32 after one more token.

        Raises:
            RuntimeError: no prompt came before it.
            ValueError: without a policy, the program holds no more tokens.
        """
        if self._history is None:
            raise RuntimeError("decode follows a prefill")
        position = len(self._history[0])
        kept = self._kept(position)
        given = self._program.needed(position, kept)
        if len(given) >= self._program.slots:
            why = "nothing is dropped" if self._policy is None else "its windows and what the policy keeps are more"
            raise ValueError(f"the program holds {self._program.slots} tokens, and {why}")
        rows = [[past[p] for p in given] for past in self._history]
        logits, new, states = self._program.step(token, position, kept, given, rows, self._states[-1])
        self._states.append(states)
        for past, row in zip(self._history, new, strict=True):
            past.append(row)
        return logits

    def extend(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """The last token's logits [V] f32 after more tokens, one after the other.

        Raises:
            RuntimeError: no prompt came before them.
            ValueError: there is no token, or without a policy the program holds no more.
        """
        if not tokens:
            raise ValueError("extend takes at least one token")
        return [self.decode(token) for token in tokens][-1]

    def _kept(self, position: int) -> list[int]:
        policy = self._policy
        if policy is None:
            return list(range(position))
        return [p for p in range(position) if p < policy.sink or p > position - policy.recent]


@dataclass(frozen=True)
class _Own:
    """What an attention does to its logits of its own: how many of the last tokens it sees, and its bias.

    ``window`` is None where it sees all; ``slope`` is what the bias grows by from a key to the next, in the logits'
    shape with one key.
    """

    window: int | None
    slope: Tensor


class _Program:
    """One step of the program on rows of its caches.

    Attributes:
        module: its graph.
        slots: how many tokens its attention sees at once, the new one among them.
    """

    def __init__(self, decoder: ExportedDecoder) -> None:
        assert decoder.length is not None
        self._decoder = decoder
        self.module = decoder.module
        self._length = decoder.length
        self._graph_nodes: list[Node] = list(decoder.module.graph.nodes)
        self._places = self._of_positions_alone()
        self._writes = self._write_chains()
        self._at_caches = set(self._writes)
        self._attentions: dict[Node, int] = {}
        with torch.no_grad():
            base = self._random(0)
            self._indexed = self._is_indexed(base, decoder.caches(self._record(base, self._length - 1)[0]))
            # the first position at which every entry holds a token
            self._full = self._length - self._indexed
            self._attentions = self._find(base, self._record(base, self._full)[1])
            extents = set(self._attentions.values())
            if len(extents) != 1:
                raise AttributionError(f"attention over the caches sees {sorted(extents)} entries: not one number")
            (self.slots,) = extents
            self._own = self._read_own()
            self._check()

    def needed(self, position: int, kept: Sequence[int]) -> list[int]:
        """The past positions that a step reads: those that are kept, where an attention sees them, and windows."""
        windows = [own.window for own in self._own.values()]
        found = set(kept) if None in windows else set()
        for window in windows:
            if window is not None:
                found |= set(range(max(position - window + 1, 0), position))
        return sorted(found)

    def step(
        self,
        token: int,
        position: int,
        kept: Sequence[int],
        given: Sequence[int],
        rows: Sequence[Sequence[Tensor]],
        states: Sequence[Tensor],
    ) -> tuple[NDArray[np.float32], list[Tensor], list[Tensor]]:
        """The logits [V] of a token, its own row of each cache, and the states after it.

        ``rows`` of positions ``given`` are cached, and ``states`` are those before it. An attention without a window of
        its own sees those that are ``kept``.
        """
        count = len(given)
        # away from their own places, the rows are the latest of a full cache to the program's own masks and writes
        place: int | None = self._full
        newest, seen = -1, list(range(self.slots - 1 - count, self.slots))
        into = list(range(self._length - count, self._length))
        if self._indexed and position < self._length:
            into, newest, place = list(given), position, None
            seen = [*given, position]
        elif self._indexed:
            into = seen[:-1]
        caches = []
        for i, (_, _, axis) in enumerate(self._decoder.inputs.caches):
            cache = torch.zeros_like(self._decoder.cache(i, self._length))
            for index, row in zip(into, rows[i], strict=True):
                cache.select(axis, index).copy_(row)
            caches.append(cache)
        held = dict(zip(seen, (*given, position), strict=True))
        off = torch.zeros(self.slots)
        for index, past in held.items():
            off[index] = (past - position) - (index - seen[-1])
        hidden: dict[Node, Tensor] = {}
        for node, own in self._own.items():
            shown = kept if own.window is None else range(position - own.window + 1, position)
            hidden[node] = torch.tensor([held.get(i) not in (*shown, position) for i in range(self.slots)])
        results = self._run(token, position, caches, hidden, place, off, states)
        grown = zip(self._decoder.inputs.caches, self._decoder.caches(results), strict=True)
        new = [cache.select(axis, newest).clone() for (_, _, axis), cache in grown]
        return self._decoder.logits(results), new, self._decoder.states(results)

    def _run(
        self,
        token: int,
        position: int,
        caches: Sequence[Tensor],
        hidden: Mapping[Node, Tensor],
        place: int | None,
        off: Tensor | None = None,
        states: Sequence[Tensor] | None = None,
    ) -> Sequence[Tensor]:
        with torch.no_grad():
            arguments = self._decoder.arguments([token], position, caches, states)
            runner = _Runner(self, hidden, place, off)
            results: Sequence[Tensor] = runner.run(*arguments, enable_io_processing=False)
        return results

    def _record(self, caches: Sequence[Tensor], position: int) -> tuple[Sequence[Tensor], dict[Node, Any]]:
        """The results of a step, and every value on the way."""
        recorder = Interpreter(self._decoder.module, garbage_collect_values=False)
        results = recorder.run(*self._decoder.arguments([0], position, caches), enable_io_processing=False)
        return results, recorder.env

    def _random(self, seed: int) -> list[Tensor]:
        return [self._decoder.cache(i, self._length, seed + i + 1) for i in range(len(self._decoder.inputs.caches))]

    # --- what the program does

    def _is_indexed(self, before: Sequence[Tensor], after: Sequence[Tensor]) -> bool:
        """Whether the new token, at the last position that fits, was written over the last entry and nothing moved."""
        found = set()
        for (_, _, axis), old, new in zip(self._decoder.inputs.caches, before, after, strict=True):
            first = old.shape[axis] - 1
            if torch.equal(new.narrow(axis, 0, first), old.narrow(axis, 0, first)):
                found.add(new.shape[axis] == old.shape[axis])
            elif torch.equal(new.narrow(axis, 0, first), old.narrow(axis, 1, first)):
                found.add(False)
            else:
                raise AttributionError("a cache of fixed length comes back with its past tokens changed")
        if len(found) != 1:
            raise AttributionError("the caches take a new token in in different ways")
        return found.pop()

    def _of_positions_alone(self) -> set[Node]:
        """The nodes whose values follow from the positions, and from nothing else that is given."""
        given = set(self._inputs_of_positions())
        others = set(self._decoder.users) - given
        depends: dict[Node, tuple[bool, bool]] = {}
        for node in self._graph_nodes:
            sources = [depends[source] for source in _sources(node)]
            depends[node] = (
                node in given or any(on for on, _ in sources),
                node in others or any(on for _, on in sources),
            )
        return {node for node, (on, off) in depends.items() if on and not off and node.op == "call_function"}

    def _inputs_of_positions(self) -> list[Node]:
        inputs = self._decoder.inputs
        indices = [*inputs.counters, *([] if inputs.positions is None else [inputs.positions])]
        return [self._decoder.users[index] for index in indices]

    def _write_chains(self) -> set[Node]:
        """The nodes that make a returned cache of the one that came in."""
        (output,) = (node for node in self._graph_nodes if node.op == "output")
        found: set[Node] = set()
        for index, result, _ in self._decoder.inputs.caches:
            forward = {self._decoder.users[index]}
            for node in self._graph_nodes:
                if not forward.isdisjoint(node.all_input_nodes):
                    forward.add(node)
            outputs: Any = output.args[0]
            pending: list[Node] = [outputs[result]]
            while pending:
                node = pending.pop()
                if node in forward and node not in found and node.op == "call_function":
                    found.add(node)
                    pending += node.all_input_nodes
        return found

    def _find(self, base: Sequence[Tensor], values: dict[Node, Any]) -> dict[Node, int]:
        """The softmaxes over the caches, with the number of entries each sees, a sink left out.

        Two late entries of the caches are changed in turn, and everything else is held: a value that has the caches'
        axis changes in two places that do not meet.
        """
        last = self._length - 1 - self._indexed
        entries = (last - 1, last)
        changed: list[dict[Node, Any]] = []
        for entry in entries:
            start: dict[Node, Any] = {}
            for (index, _, axis), cache in zip(self._decoder.inputs.caches, base, strict=True):
                other = cache.clone()
                other.select(axis, entry).add_(1)
                start[self._decoder.users[index]] = other
            changed.append(start)
        found: dict[Node, int] = {}
        for node in self._graph_nodes:
            if node.op != "call_function" or not any(source in changed[0] for source in node.all_input_nodes):
                continue
            op: Any = node.target
            seen = []
            for start in changed:
                args, kwargs = map_arg((node.args, node.kwargs), ChainMap(start, values).__getitem__)
                if op is FUSED or op in OVER_LOGITS:
                    bound = bind(op, args, kwargs)
                    seen.append(fused_logits(bound) if op is FUSED else bound["self"])
                else:
                    seen.append(op(*args, **kwargs))
            if op is FUSED or op in OVER_LOGITS:
                bound = bind(op, node.args, node.kwargs)
                before, dim = _logits(node, values)
                hits = [(after != before).movedim(dim, 0).flatten(1).any(1).nonzero().flatten() for after in seen]
                if all(len(hit) == 1 for hit in hits) and int(hits[1] - hits[0]) == entries[1] - entries[0]:
                    # joined behind a past that is cut after it, the entries stand where they stood
                    longer = not self._indexed and int(hits[0]) == entries[0]
                    found[node] = self._length + longer
                    if before.shape[dim] - found[node] not in (0, 1):
                        raise AttributionError(f"'{node.name}' goes over more than the caches' entries and a sink")
                    self._at_caches.add(node)
                continue
            self._at_caches.add(node)
            if not isinstance(values[node], Tensor):
                continue
            first, second = (after != values[node] for after in seen)
            if first.any() and second.any() and not (first & second).any():
                for start, after in zip(changed, seen, strict=True):
                    start[node] = after
        if not found:
            raise AttributionError("no attention of the program reads its caches")
        return found

    def _read_own(self) -> dict[Node, _Own]:
        """What each attention hides and adds of its own, seen where the keys of all entries are zero."""
        empty = [torch.zeros_like(cache) for cache in self._random(0)]
        runs = [self._record(empty, self._full - back)[1] for back in (0, 1)]
        found = {}
        for node in self._attentions:
            # the newest entry alone has a key; a step before it stands one index before where it is written there
            lines, earlier = (
                logits.movedim(dim, -1)[..., : self.slots - 1 - back * self._indexed].float()
                for back, values in enumerate(runs)
                for logits, dim in [_logits(node, values)]
            )
            seen = lines > MASKED
            count, other = (1 + int((x > MASKED).flatten(0, -2)[0].sum()) for x in (lines, earlier))
            window = None if count == self.slots else count
            if not torch.equal(seen, (torch.arange(self.slots - 1) >= self.slots - count).expand_as(seen)):
                raise AttributionError(f"the mask at '{node.name}' hides other entries than those before a window")
            if window is not None and other != count:
                raise AttributionError(f"the mask at '{node.name}' is no window: a step before, another number is seen")
            tail = lines[..., self.slots - count :]
            slope = (tail[..., -1:] - tail[..., :1]) / max(count - 2, 1) if count > 1 else torch.zeros(1)
            if count > 1 and not torch.allclose(tail, tail[..., :1] + slope * torch.arange(count - 1), atol=1e-4):
                raise AttributionError(f"the bias at '{node.name}' is not linear along the keys")
            _, dim = _logits(node, runs[0])
            found[node] = _Own(window, slope.movedim(-1, dim) if count > 1 else slope)
        return found

    def _check(self) -> None:
        """Masking an entry at the softmaxes must hide all that the caches hold there, and show all others."""
        position = self._full
        hidden = dict.fromkeys(self._own, torch.arange(self.slots) == self.slots - 2)
        # the same token before and behind the shift
        entry = self.slots - 2 + (0 if self._indexed else self._length - self.slots + 1)
        base = self._random(0)
        runs = []
        for at in (entry, entry - 1):
            caches = [cache.clone() for cache in base]
            for (_, _, axis), cache in zip(self._decoder.inputs.caches, caches, strict=True):
                cache.select(axis, at).add_(1)
            runs.append(self._decoder.logits(self._run(0, position, caches, hidden, None)))
        before = self._decoder.logits(self._run(0, position, base, hidden, None))
        if not np.array_equal(runs[0], before):
            raise AttributionError(
                "an entry of the caches reaches the logits though it is masked at every softmax: it is read outside one"
            )
        if np.array_equal(runs[1], before):
            raise AttributionError("an entry of the caches that is not masked does not reach the logits")

    # --- running it

    def moved(self, node: Node, values: Mapping[Node, Any], known: dict[Node, Any], place: int) -> Any:
        """The value of a node, which is another one where it follows from positions alone and those are ``place``."""
        if node not in known:
            if node in self._inputs_of_positions():
                known[node] = torch.full_like(values[node], place)
            elif node in self._places:
                args, kwargs = map_arg((node.args, node.kwargs), lambda n: self.moved(n, values, known, place))
                known[node] = node.target(*args, **kwargs)  # type: ignore[operator]
            else:
                return values[node]
        return known[node]

    def is_at_caches(self, node: Node) -> bool:
        """Whether a node takes a new token into a cache, or has its axis."""
        return node in self._at_caches

    def attends(self, node: Node) -> bool:
        """Whether a node is a softmax over the caches."""
        return node in self._attentions

    def slope(self, node: Node) -> Tensor:
        """What the bias of an attention grows by from a key to the next."""
        return self._own[node].slope


class _Runner(Interpreter):
    """Runs the graph with entries masked, and with what happens at the caches as at the position ``place``."""

    def __init__(self, program: _Program, hidden: Mapping[Node, Tensor], place: int | None, off: Tensor | None) -> None:
        super().__init__(program.module, garbage_collect_values=False)
        self._program = program
        self._hidden = hidden
        self._place = place
        self._off = off
        self._moved: dict[Node, Any] = {}

    def run_node(self, n: Node) -> Any:
        if n.op != "call_function":
            return super().run_node(n)
        args, kwargs = map_arg((n.args, n.kwargs), lambda source: self._value(n, source))
        op: Any = n.target
        if not self._program.attends(n):
            return op(*args, **kwargs)
        bound = bind(op, args, kwargs)
        dim = dimension_of_keys(op, bound)
        slope, off = self._program.slope(n), self._off
        if off is not None and bool(off.any()) and bool(slope.any()):
            bound = _added(op, bound, lambda shape: slope * _along(off, dim, shape))
        return masked(op, bound, lambda shape: _along(self._hidden[n], dim, shape).expand(list(shape)))

    def _value(self, user: Node, node: Node) -> Any:
        if self._place is None or not self._program.is_at_caches(user):
            return self.env[node]
        return self._program.moved(node, self.env, self._moved, self._place)


def _along(values: Tensor, dim: int, shape: Sequence[int]) -> Tensor:
    """``values`` of each entry along a dimension of logits of a shape, zero for a sink behind them."""
    dim %= len(shape)
    padded = torch.nn.functional.pad(values, (0, shape[dim] - len(values)))
    return padded.view([-1 if axis == dim else 1 for axis in range(len(shape))])


def _added(op: Any, bound: dict[str, Any], more: Callable[[Sequence[int]], Tensor]) -> dict[str, Any]:
    """An attention's arguments with something added to its logits; ``more`` gives it for logits of a shape."""
    if op is not FUSED:
        given = bound["self"]
        return bound | {"self": given + more(given.shape).to(given.dtype)}
    query, mask = bound["query"], bound.get("attn_mask")
    added = more((*query.shape[:-1], bound["key"].shape[-2])).to(query.dtype)
    if mask is None:
        mask = torch.zeros(())
    elif mask.dtype is torch.bool:
        mask = torch.where(mask, 0.0, -math.inf)
    return bound | {"attn_mask": mask.to(query.dtype) + added}


def _logits(node: Node, values: Mapping[Node, Any]) -> tuple[Tensor, int]:
    """The logits of an attention, as they go into its softmax, and their dimension of keys."""
    bound = bind(node.target, node.args, node.kwargs)
    if node.target is FUSED:
        logits = fused_logits({name: map_arg(value, values.__getitem__) for name, value in bound.items()})
        return logits, logits.ndim - 1
    given: Tensor = values[bound["self"]]
    return given, dimension_of_keys(node.target, bound) % given.ndim


def _sources(node: Node) -> list[Node]:
    """The nodes whose elements a node is made of: not those that only give a shape, or that are written over."""
    name = getattr(getattr(node.target, "_schema", None), "name", "").removeprefix("aten::")
    if name.startswith("sym_"):  # an extent
        return []
    if name == "copy":
        return node.all_input_nodes[-1:]
    return node.all_input_nodes[:1] if name in ("expand_as", "view_as", "reshape_as") else node.all_input_nodes
