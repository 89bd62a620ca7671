"""What the inputs and outputs of a decoder are for, told by how its graph uses them (design section 9)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch.export.graph_signature import InputKind, SymIntArgument, TensorArgument
from torch.fx import Graph, Node

from .errors import FrontendError
from .flat import FlatProgram, source_of
from .labels import Labels, kept_axis
from .lengths import BATCH, PAST, QUERY, Extent, Lengths, Range, expression
from .states import StateInput, check_value, first_value, kind, pairs

_TOKEN_NAMES = ("input_ids", "tokens", "ids")
_POSITION_NAMES = ("position_ids", "positions", "pos")

# Ops that move, join, convert or change elements one by one: what comes out of them is told to be what went in. Whether
# a cache comes back as it was is for the compiler to prove.
_MOVES = frozenset(
    {
        *("alias", "clone", "contiguous", "copy", "detach", "detach_", "lift_fresh_copy", "to", "_to_copy", "type_as"),
        *("add", "cat", "concat", "concatenate", "constant_pad_nd", "pad", "stack"),
        *("clamp", "div", "flip", "masked_fill", "mul", "neg", "roll", "sub", "where"),
        *("index_copy", "index_put", "scatter", "select_scatter", "slice_scatter"),
        *("chunk", "gather", "getitem", "index", "index_select", "narrow", "select", "slice", "split"),
        *("expand", "flatten", "reshape", "squeeze", "unflatten", "unsqueeze", "_unsafe_view", "view"),
        *("split_with_sizes", "unbind"),
        *("movedim", "permute", "swapaxes", "swapdims", "t", "transpose"),
    }
)
_EXTENTS = frozenset({"sym_numel", "sym_size", "sym_storage_offset", "sym_stride"})
_COMPARISONS = frozenset({"eq", "ge", "gt", "le", "lt", "ne"})
_ROTATIONS = frozenset({"cos", "sin"})


class Role(StrEnum):
    """What an input of a decoder is for."""

    TOKENS = "tokens"
    POSITIONS = "positions"
    CAUSAL_MASK = "causal_mask"
    CACHE = "cache"
    COUNTER = "counter"
    STATE = "state"
    OTHER = "other"


@dataclass(frozen=True)
class Input:
    """A tensor input of the program, in the order of its flat user inputs."""

    name: str
    role: Role
    shape: tuple[Extent, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class CacheInput:
    """A cache: an input that an output returns with the query's tokens along ``axis``.

    It is longer by them, or of the same length where the program keeps a fixed one.

    ``input_index`` counts the tensor inputs of the program, ``output_index`` its outputs, both flat.
    """

    name: str
    input_index: int
    output_index: int
    row_axis: int
    axis: int


@dataclass(frozen=True)
class Roles:
    """A program's inputs told apart, and the lengths that it takes.

    The ``past`` of a program whose caches keep a length of C entries is C - 1: with the new token they hold C.
    """

    inputs: tuple[Input, ...]
    caches: tuple[CacheInput, ...]
    states: tuple[StateInput, ...]
    logits: int
    vocabulary: int
    position_rows: int | None
    batch: Range
    query: Range
    past: Range


def tell_roles(flat: FlatProgram, lengths: Lengths, named: Mapping[str, str], causal_masks: Collection[str]) -> Roles:
    """Tells the inputs of a program apart, by use, else by name; ``named`` (from role to input's name) decides first.

    Raises:
        FrontendError: no tokens input, no cache, no logits, or more than one that could be it.
    """
    return _Reader(flat, lengths, named, causal_masks).read()


class _Reader:
    def __init__(
        self, flat: FlatProgram, lengths: Lengths, named: Mapping[str, str], causal_masks: Collection[str]
    ) -> None:
        self.lengths = lengths
        self.named = dict(named)
        self.causal_masks = frozenset(causal_masks)
        self.graph = flat.graph
        self.buffers = flat.buffers
        self.targets = flat.targets
        self.written = flat.written
        self.nodes: dict[str, Node] = {n.name: n for n in flat.graph.nodes}
        self.inputs = self._user_inputs(flat)
        (output,) = flat.graph.find_nodes(op="output")
        self.outputs: list[Any] = list(output.args[0])
        self.sources = self._sources(flat)
        self._check_names()

    def read(self) -> Roles:
        grown, past = self._caches()
        logits, tokens, vocabulary = self._logits_and_tokens(grown)
        self._bind_tokens(tokens, grown)
        caches = tuple(self._cache(tokens, *triple) for triple in grown)
        self.counters = self._counters()
        told = {c.name for c in caches} | self.counters
        others = [n for n in self.inputs if n is not tokens and n.name not in told]
        self._bind_totals(others)
        known = {logits, *(index for _, index, _ in grown)}
        positions, rows = self._positions(others, self._returned(others, known), tokens, vocabulary)
        updated = self._updated([n for n in others if n.name != positions], known)
        states = tuple(self._state(tokens, name, index) for name, index in updated.items())
        self.states = {state.name for state in states}
        inputs = tuple(
            Input(n.name, self._role(n, tokens, positions, caches), self._shape(n), n.meta["val"].dtype)
            for n in self.inputs
        )
        ends = self._extents(tokens)
        return Roles(
            inputs,
            caches,
            states,
            logits,
            vocabulary,
            rows,
            batch=self._range(ends[0], BATCH, 1),
            query=self._range(self._query(tokens), QUERY, 1),
            past=past or self._range(inputs[caches[0].input_index].shape[caches[0].axis], PAST, 0),
        )

    # The graph as dependences.

    def _user_inputs(self, flat: FlatProgram) -> list[Node]:
        inputs = []
        for spec in flat.signature.input_specs:
            if spec.kind is not InputKind.USER_INPUT:
                continue
            if isinstance(spec.arg, SymIntArgument):
                raise FrontendError(
                    f"the input {spec.arg.name} is a Python number that the program was exported as dynamic: "
                    "pass it as an integer tensor instead"
                )
            if isinstance(spec.arg, TensorArgument):
                inputs.append(self.nodes[spec.arg.name])
        return inputs

    def _sources(self, flat: FlatProgram) -> dict[Node, frozenset[str]]:
        """The user inputs whose elements each value is computed from; shapes do not count."""
        inputs = {n.name for n in self.inputs}
        sources: dict[Node, frozenset[str]] = {}
        for node in flat.graph.nodes:
            if node.op == "placeholder":
                sources[node] = frozenset({node.name} & inputs)
            elif _op(node) in _EXTENTS:
                sources[node] = frozenset()
            else:
                # of a copy's destination nothing is left
                given = node.all_input_nodes[-1:] if _op(node) == "copy" else node.all_input_nodes
                sources[node] = frozenset().union(*(sources[n] for n in given))
        return sources

    def _check_names(self) -> None:
        known = [n.name for n in self.inputs]
        for role, name in self.named.items():
            if role not in (Role.TOKENS, Role.POSITIONS):
                raise FrontendError(f"--input takes tokens=NAME and positions=NAME, not {role}={name}")
            if name not in known:
                raise FrontendError(f"--input {role}={name}: the program has no such input; it has {_list(known)}")
        for name in self.causal_masks:
            if name not in known:
                raise FrontendError(f"--causal-mask {name}: the program has no such input; it has {_list(known)}")

    # Caches.

    def _caches(self) -> tuple[list[tuple[Node, int, int]], Range | None]:
        """(input, output's index, sequence axis) of each cache, and the past that caches of a fixed length dictate."""
        grown: dict[Node, tuple[Node, int, int]] = {}
        for index, output in enumerate(self.outputs):
            if not isinstance(output, Node) or not output.meta["val"].dtype.is_floating_point:
                continue
            found = [(node, axis) for node in self._moved_from(output) if (axis := _grown_axis(node, output)) >= 0]
            if len(found) > 1:
                raise FrontendError(
                    f"the output {output.name} ({source_of(output)}) joins several inputs, "
                    f"{_list([n.name for n, _ in found])}: return each cache, grown, as an output of its own"
                )
            if found and found[0][0] not in grown:
                node, axis = found[0]
                grown[node] = (node, index, axis)
        past = None
        if not grown:
            grown, past = self._kept()
        if not grown:
            raise FrontendError(
                f"the program has no cache: none of its inputs {_list([n.name for n in self.inputs])} comes back as "
                "an output that is longer by the query's tokens, or that has the new token in it; return "
                "torch.cat([cache, new], dim) for each cache"
            )
        return sorted(grown.values(), key=lambda triple: self.inputs.index(triple[0])), past

    def _kept(self) -> tuple[dict[Node, tuple[Node, int, int]], Range | None]:
        """The caches of a fixed length, as those that grow, and the past that they dictate."""
        kept: dict[Node, tuple[Node, int, int]] = {}
        lengths: dict[Node, int] = {}
        for index, output in enumerate(self.outputs):
            if not isinstance(output, Node) or not output.meta["val"].dtype.is_floating_point:
                continue
            for node in self._moved_from(output):
                if node in kept or node.meta["val"].shape != output.meta["val"].shape:
                    continue
                labels = Labels(self.graph, node)
                if (found := kept_axis(labels, node, output)) is None:
                    continue
                axis, shifted = found
                length = node.meta["val"].shape[axis]
                if not isinstance(length, int):
                    raise FrontendError(
                        f"the cache {node.name} comes back at the length that it came in with, and that is dynamic: "
                        "export it at a fixed length, or let it grow by the query's tokens"
                    )
                kept[node] = (node, index, axis)
                longer = shifted and _is_read_longer(labels, node, output, axis)
                lengths[node] = length if longer else length - 1
        if not lengths:
            return {}, None
        # shorter ones, as the last few tokens before a convolution, are states, kept as the program keeps them
        longest = max(lengths.values())
        return {node: found for node, found in kept.items() if lengths[node] == longest}, Range(longest, longest)

    def _moved_from(self, output: Node) -> list[Node]:
        """The user inputs whose elements stand in a value unchanged."""
        seen: set[Node] = set()
        stack = [output]
        while stack:
            node = stack.pop()
            if node in seen:
                continue
            seen.add(node)
            if node.op == "call_function" and _op(node) in _MOVES:
                stack.extend(n for n in node.all_input_nodes if self.sources[n])
        return [n for n in self.inputs if n in seen]

    def _cache(self, tokens: Node, node: Node, output: int, axis: int) -> CacheInput:
        before = [expression(d) for d in node.meta["val"].shape]
        after = [expression(d) for d in self.outputs[output].meta["val"].shape]
        self.lengths.bind(before[axis], PAST)
        grown = self.lengths.extent(after[axis] - before[axis])
        query = self._query(tokens)
        if before == after and query != Extent(1):
            raise FrontendError(
                f"the cache {node.name} keeps its length, and the tokens {tokens.name} have "
                f"{tuple(tokens.meta['val'].shape)}: export the program for one token of each row"
            )
        if grown != query and before != after:
            raise FrontendError(
                f"the cache {node.name} grows by {after[axis] - before[axis]} along its axis {axis}, "
                f"but the tokens {tokens.name} have {tuple(tokens.meta['val'].shape)}: a cache must grow by one row "
                "for each token of the query"
            )
        batch = self._extents(tokens)[0]
        rows = [i for i, e in enumerate(self._extents(node)) if e == batch and i != axis]
        if not rows:
            raise FrontendError(
                f"the cache {node.name} of shape {tuple(node.meta['val'].shape)} has no batch axis: "
                f"none of its extents is that of the tokens {tokens.name}, {tuple(tokens.meta['val'].shape)}"
            )
        index = self.inputs.index(node)
        return CacheInput(node.name, index, output, row_axis=rows[0], axis=axis)

    def _counters(self) -> set[str]:
        """The buffers of one integer that start at 0 and grow by one for each token: they hold the past's length."""
        found = set()
        for node in self.inputs:
            value = node.meta["val"]
            start = self.buffers.get(node.name)
            if start is None or value.is_floating_point() or value.numel() != 1 or int(start) != 0:
                continue
            for output in self.outputs:
                if (
                    isinstance(output, Node)
                    and self.sources.get(output) == frozenset((node.name,))
                    and _counts(self.graph, node, output)
                ):
                    found.add(node.name)
        return found

    # Tokens and logits.

    def _logits_and_tokens(self, grown: Sequence[tuple[Node, int, int]]) -> tuple[int, Node, int]:
        caches = {index for _, index, _ in grown}
        floats = [
            index
            for index, output in enumerate(self.outputs)
            if isinstance(output, Node)
            and index not in caches
            and output.meta["val"].dtype.is_floating_point
            and output.meta["val"].dim() >= 2
            and isinstance(output.meta["val"].shape[-1], int)
        ]
        # a state may have as many features as there are tokens
        kinds = [kind(n) for n in self.inputs]
        floats = [i for i in floats if kind(self.outputs[i]) not in kinds] or floats
        users: dict[int, set[str]] = {}
        for index in floats:
            rows = self.outputs[index].meta["val"].shape[-1]
            if used := set().union(*(s for _, count, s in self._lookups() if count == rows and len(s) == 1)):
                users[index] = used
        logits = next(iter(users), floats[0] if len(floats) == 1 else -1)
        if logits < 0:
            raise FrontendError(
                f"the program has {len(floats)} outputs that could be the logits: "
                "return the logits [batch, query, vocabulary] beside the caches, and nothing else"
            )
        vocabulary = int(self.outputs[logits].meta["val"].shape[-1])
        name = self._one(Role.TOKENS, sorted(users.get(logits, ())), _TOKEN_NAMES, self.inputs)
        if name is None:
            raise FrontendError(
                f"no tokens input: none of {_list([n.name for n in self.inputs])} is the index into a table of "
                f"{vocabulary} rows (the logits' last extent), and none is named {', '.join(_TOKEN_NAMES)}; "
                "name it with --input tokens=NAME"
            )
        return logits, self.nodes[name], vocabulary

    def _lookups(self) -> list[tuple[Node, int, frozenset[str]]]:
        """(op, rows, the inputs that the index comes from) of each index into a table that no input feeds."""
        found = []
        for node in self.nodes.values():
            if node.op != "call_function" or (lookup := _lookup(node)) is None:
                continue
            table, axis, index = lookup
            rows = table.meta["val"].shape[axis]
            if not self.sources[table] and self.sources[index] and isinstance(rows, int):
                found.append((node, rows, self.sources[index]))
        return found

    def _one(self, role: Role, candidates: Sequence[str], names: Sequence[str], inputs: Sequence[Node]) -> str | None:
        """The one input of a role: as told, else by use, else by name."""
        if role in self.named:
            return self.named[role]
        if len(candidates) == 1:
            return candidates[0]
        pool = candidates or [n.name for n in inputs if not n.meta["val"].dtype.is_floating_point]
        by_name = [name for name in pool if name in names]
        if len(by_name) == 1:
            return by_name[0]
        if candidates:
            raise FrontendError(
                f"several inputs could be the {role}: {_list(candidates)}; say which with --input {role}=NAME"
            )
        return None

    # State beside the caches.

    def _returned(self, others: Sequence[Node], known: set[int]) -> set[str]:
        """The inputs of which an output has the shape and type, as of a state."""
        kinds = [kind(o) for i, o in enumerate(self.outputs) if i not in known and isinstance(o, Node)]
        return {n.name for n in others if kind(n) in kinds}

    def _updated(self, others: Sequence[Node], known: set[int]) -> dict[str, int]:
        """The inputs that come back updated and are no caches, with the index of that output, in their order."""
        outputs = {i: o for i, o in enumerate(self.outputs) if i not in known and isinstance(o, Node)}
        candidates = [n for n in others if n.name not in self.causal_masks and n.name not in self.named.values()]
        used = frozenset().union(*(self.sources[self.outputs[index]] for index in known))
        found = pairs(candidates, outputs, self.written, self.sources, used)
        return {n.name: found[n.name] for n in self.inputs if n.name in found}

    def _state(self, tokens: Node, name: str, output: int) -> StateInput:
        node = self.nodes[name]
        extents = self._shape(node)
        check_value(node, self.outputs[output], any(extent.past or extent.query for extent in extents))
        batch = self._extents(tokens)[0]
        row_axis = next((i for i, extent in enumerate(extents) if extent == batch), None)
        initial = first_value(name, self.buffers.get(name), self.targets.get(name), row_axis)
        return StateInput(name, self.inputs.index(node), output, row_axis, initial)

    # Lengths.

    def _bind_tokens(self, tokens: Node, grown: Sequence[tuple[Node, int, int]]) -> None:
        shape = [expression(d) for d in tokens.meta["val"].shape]
        if not 1 <= len(shape) <= 2:
            raise FrontendError(
                f"the tokens {tokens.name} have shape {tuple(tokens.meta['val'].shape)}: expected [batch, query]"
            )
        if len(shape) == 1:
            node, index, axis = grown[0]
            growth = expression(self.outputs[index].meta["val"].shape[axis]) - expression(node.meta["val"].shape[axis])
            if growth not in (0, 1):
                raise FrontendError(
                    f"the tokens {tokens.name} have no batch axis: expected [batch, query], "
                    f"got {tuple(tokens.meta['val'].shape)}"
                )
        self.lengths.bind(shape[0], BATCH)
        if len(shape) == 2:
            self.lengths.bind(shape[1], QUERY)

    def _query(self, tokens: Node) -> Extent:
        extents = self._extents(tokens)
        return extents[1] if len(extents) == 2 else Extent(1)  # type: ignore[return-value]

    def _bind_totals(self, others: Sequence[Node]) -> None:
        # An extent that nothing else fixes, as that of a mask exported with a dimension of its own, is the number
        # of keys.
        for node in others:
            for extent in node.meta["val"].shape:
                self.lengths.bind(expression(extent), PAST + QUERY)

    def _extents(self, node: Node) -> list[Extent | None]:
        return [self.lengths.extent(expression(d)) for d in node.meta["val"].shape]

    def _shape(self, node: Node) -> tuple[Extent, ...]:
        extents = self._extents(node)
        if None in extents:
            raise FrontendError(
                f"the input {node.name} has shape {tuple(node.meta['val'].shape)}, which does not follow from the "
                "lengths of batch, query and past: export it with the dimensions of the tokens and the caches"
            )
        return tuple(e for e in extents if e is not None)

    def _range(self, extent: Extent | None, length: sympy.Symbol, least: int) -> Range:
        if extent is not None and extent.is_fixed:
            return Range(extent.constant, extent.constant)
        return self.lengths.range(length, least)

    # Positions and the rest.

    def _positions(
        self, others: Sequence[Node], returned: set[str], tokens: Node, vocabulary: int
    ) -> tuple[str | None, int | None]:
        """The positions input, and the rows of the shortest table that it indexes.

        A state may be used as a position is: numbers of which an output has the shape (``returned``) are none, and
        integers only where nothing else could be.
        """
        per_query = [
            n
            for n in others
            if n.meta["val"].dtype != torch.bool
            and not _spans_keys(self._shape(n))
            and not (n.meta["val"].is_floating_point() and n.name in returned)
        ]
        names = {n.name for n in per_query}
        lookups = [
            (rows, source)
            for _, rows, sources in self._lookups()
            for source in sources & names
            if tokens.name not in sources
        ]
        strong = {source for _, source in lookups} | self._used_in(_ROTATIONS, names)
        weak = self._used_in(_COMPARISONS, names)
        candidates = sorted(strong or weak)
        candidates = [name for name in candidates if name not in returned] or candidates
        position = self._one(Role.POSITIONS, candidates, _POSITION_NAMES, per_query)
        rows = [count for count, source in lookups if source == position]
        return position, min(rows) if rows else None

    def _used_in(self, ops: frozenset[str], names: set[str]) -> set[str]:
        """Those of the inputs that alone feed an op of these kinds."""
        used: set[str] = set()
        for node in self.nodes.values():
            if node.op == "call_function" and _op(node) in ops and self.sources[node] <= names:
                used |= self.sources[node]
        return used

    def _role(self, node: Node, tokens: Node, positions: str | None, caches: Sequence[CacheInput]) -> Role:
        if node is tokens:
            return Role.TOKENS
        if node.name == positions:
            return Role.POSITIONS
        if node.name in {c.name for c in caches}:
            return Role.CACHE
        if node.name in self.counters:
            return Role.COUNTER
        if node.name in self.states:
            return Role.STATE
        return Role.CAUSAL_MASK if node.name in self.causal_masks else Role.OTHER


def _grown_axis(before: Node, after: Node) -> int:
    """The one axis along which ``after`` is longer than ``before``; -1 where the shapes differ otherwise."""
    old = [expression(d) for d in before.meta["val"].shape]
    new = [expression(d) for d in after.meta["val"].shape]
    if len(old) != len(new):
        return -1
    differing = [i for i, (a, b) in enumerate(zip(old, new, strict=True)) if a != b]
    if len(differing) != 1:
        return -1
    growth = new[differing[0]] - old[differing[0]]
    return differing[0] if growth.is_positive or growth.is_nonnegative else -1


def _is_read_longer(labels: Labels, before: Node, after: Node, axis: int) -> bool:
    """Whether a cache that keeps its length is read with one entry more, before its oldest is cut off."""
    length = before.meta["val"].shape[axis] + 1
    wanted = [length if i == axis else extent for i, extent in enumerate(before.meta["val"].shape)]
    pending, seen = [after], set()
    while pending:
        node = pending.pop()
        if node in seen or node not in labels.made_of_it or node is before:
            continue
        seen.add(node)
        pending += node.all_input_nodes
    return any(
        list(node.meta["val"].shape) == wanted and any(user not in seen and user.op != "output" for user in node.users)
        for node in seen
        if node is not after
    )


def _counts(graph: Graph, before: Node, after: Node) -> bool:
    """Whether an integer comes back larger by one, for the one token of each row."""
    try:
        return all(int(Labels(graph, before, count)[after]) - count == 1 for count in (0, 5))
    except (RuntimeError, IndexError, TypeError, ValueError):
        return False


def _lookup(node: Node) -> tuple[Node, int, Node] | None:
    """(table, axis, index) of an op that looks rows of a table up."""
    op, args = _op(node), node.args
    if op == "embedding":
        return args[0], 0, args[1]  # type: ignore[return-value]
    if op in ("index_select", "gather"):
        return args[0], args[1], args[2]  # type: ignore[return-value]
    if op in ("select", "slice", "narrow") and len(args) > 2 and isinstance(args[2], Node):
        return args[0], args[1], args[2]  # type: ignore[return-value]
    if op == "index":
        given = [(i, n) for i, n in enumerate(args[1]) if n is not None]  # type: ignore[arg-type]
        if len(given) == 1:
            return args[0], given[0][0], given[0][1]  # type: ignore[return-value]
    return None


def _op(node: Node) -> str:
    target: Any = node.target
    if isinstance(target, torch._ops.OpOverload):
        return str(target._schema.name).split("::")[-1]
    return str(getattr(target, "__name__", target))


def _spans_keys(shape: Sequence[Extent]) -> bool:
    return any(extent.past for extent in shape)


def _list(names: Sequence[str]) -> str:
    shown = ", ".join(names[:8])
    return shown if len(names) <= 8 else f"{shown} and {len(names) - 8} more"
