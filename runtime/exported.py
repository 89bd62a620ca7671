"""An exported decoder as a function of tokens, past and caches, with its full, growing cache."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_aggregate


@dataclass(frozen=True)
class ProgramInputs:
    """What the flat inputs and outputs of an exported program are.

    Input indices count the program's inputs without its weights: those of its flattened arguments, and the buffers
    that it writes to, in the order of its functional form. Output indices count all outputs of that form.

    Attributes:
        tokens: the input of token ids, [B, Q] or [Q], integers.
        caches: ``(input, output, axis)`` of each cache: the input holds the past along ``axis``, the output the
            past with the new tokens behind it, or, at the same fixed length, with the new token in it.
        logits: the output of logits, [B, Q, V], or [B, V] of the last token.
        positions: the input of positions, the tokens' shape (or one that broadcasts to it), or a scalar, the position
            of the first token; None if there is none.
        causal_mask: the input of a plainly causal mask, [.., Q, T]: bool (True may be seen) or additive; or None.
        counters: the inputs that hold the number of past tokens.
        states: ``(input, output)`` of each value that is carried from step to step beside the caches.
    """

    tokens: int
    caches: tuple[tuple[int, int, int], ...]
    logits: int = 0
    positions: int | None = None
    causal_mask: int | None = None
    counters: tuple[int, ...] = ()
    states: tuple[tuple[int, int], ...] = ()


NARROW = frozenset({torch.bfloat16, torch.float16})
"""The types that ``wide`` replaces by f32."""


class ExportedDecoder:
    """The program's graph as a function of tokens, past and caches.

    Args:
        program: the program.
        inputs: what its user inputs and outputs are.
        wide: compute in f32 what the program computes in bf16 or f16, on the same weights.

    Attributes:
        module: the graph, without in-place ops and assertions; its placeholders are weights and user inputs.
        inputs: what the user inputs and outputs are.
        users: the placeholders of the user inputs.
        one_query: whether it takes exactly one query token.
        by_token: whether a prompt goes through token by token: one query token, a batch that is not one row, or state.
        batch: rows that each call has: 1, or a fixed batch, all of whose rows run the same sequence.
        length: the fixed number of entries that a cache comes in with; None where it is symbolic.

    Raises:
        ValueError: the program and ``inputs`` do not fit one another.
    """

    def __init__(self, program: ExportedProgram, inputs: ProgramInputs, wide: bool = False) -> None:
        program = functional(program)
        module = _without_assertions(program.graph_module)
        self.module = _widened(module) if wide else module
        self.inputs = inputs
        placeholders = [node for node in self.module.graph.nodes if node.op == "placeholder"]
        self._arguments: list[Any] = []
        self._slots: list[int] = []
        self.users: list[Node] = []
        written = set(program.graph_signature.buffers_to_mutate.values())
        for spec, node in zip(program.graph_signature.input_specs, placeholders, strict=True):
            value: Any = None
            if spec.kind is InputKind.USER_INPUT or spec.target in written:
                self._slots.append(len(self._arguments))
                self.users.append(node)
                value = spec.arg.value if isinstance(spec.arg, ConstantArgument) else None
                if spec.target in written:
                    value = self._first_value(program, str(spec.target), wide)
            elif spec.kind in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
                value = self._first_value(program, str(spec.target), wide)
            else:
                raise ValueError(f"the program has an input of kind {spec.kind.name}, '{node.name}', unknown here")
            self._arguments.append(value)
        kinds = [spec.kind for spec in program.graph_signature.output_specs]
        self._check(len(kinds))

        tokens = _shape(self.users[inputs.tokens])
        self._query = tokens[-1]
        self.one_query = isinstance(self._query, int)
        if self.one_query and self._query != 1:
            raise ValueError(f"the program takes exactly {self._query} query tokens; it must be symbolic or 1")
        self.batch = tokens[0] if len(tokens) > 1 and isinstance(tokens[0], int) else 1
        self.by_token = self.one_query or self.batch > 1 or bool(inputs.states)
        lengths = [_shape(self.users[index])[axis] for index, _, axis in inputs.caches]
        fixed = {length for length in lengths if isinstance(length, int)}
        if fixed and (not all(isinstance(length, int) for length in lengths) or len(fixed) > 1 or not self.one_query):
            raise ValueError(f"caches of a fixed length must have one length and take one token, got {lengths}")
        self.length = next(iter(fixed), None)

    @staticmethod
    def _first_value(program: ExportedProgram, name: str, wide: bool) -> Any:
        """The value of a weight, or that with which a buffer that is written to starts."""
        held = program.state_dict if name in program.state_dict else program.constants
        value = held[name]
        return value.float() if wide and isinstance(value, Tensor) and value.dtype in NARROW else value

    def _check(self, outputs: int) -> None:
        used = {
            "tokens": self.inputs.tokens,
            "positions": self.inputs.positions,
            "causal mask": self.inputs.causal_mask,
        }
        used |= {f"cache {i}": cache[0] for i, cache in enumerate(self.inputs.caches)}
        used |= {f"counter {i}": index for i, index in enumerate(self.inputs.counters)}
        used |= {f"state {i}": index for i, (index, _) in enumerate(self.inputs.states)}
        given = {name: index for name, index in used.items() if index is not None}
        for name, index in given.items():
            if not (0 <= index < len(self.users) and isinstance(self.users[index].meta.get("val"), Tensor)):
                raise ValueError(
                    f"the {name} must be a tensor among the program's {len(self.users)} inputs, got {index}"
                )
        for index, node in enumerate(self.users):
            if isinstance(node.meta.get("val"), Tensor) and index not in given.values() and _is_read(node):
                raise ValueError(f"no value is known for the program's input {index}, '{node.name}'")
        for i, (index, output, axis) in enumerate(self.inputs.caches):
            shape = _shape(self.users[index])
            if not 0 <= axis < len(shape):
                raise ValueError(f"cache {i} must have an axis {axis}, got shape {shape}")
            if not self.users[index].meta["val"].is_floating_point():
                raise ValueError(f"cache {i} must hold floats, got {self.users[index].meta['val'].dtype}")
            if not 0 <= output < outputs:
                raise ValueError(f"cache {i} must be among the program's {outputs} outputs, got {output}")

    def cache(self, index: int, length: int, seed: int | None = None) -> Tensor:
        """A cache of ``length`` past tokens, normal random numbers or, without a seed, whatever memory holds."""
        flat, _, axis = self.inputs.caches[index]
        shape = [length if i == axis else _static(extent) for i, extent in enumerate(_shape(self.users[flat]))]
        dtype = self.users[flat].meta["val"].dtype
        if seed is None:
            return torch.empty(shape, dtype=dtype)
        return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)

    def empty_caches(self) -> list[Tensor]:
        """The caches before the first token."""
        return [self.cache(i, 0) for i in range(len(self.inputs.caches))]

    def empty_states(self) -> list[Tensor]:
        """The states before the first token: a buffer's own value, zeros for an input."""
        found = []
        for index, _ in self.inputs.states:
            node, held = self.users[index], self._arguments[self._slots[index]]
            zeros = torch.zeros([_static(extent) for extent in _shape(node)], dtype=node.meta["val"].dtype)
            found.append(zeros if held is None else held.clone())
        return found

    def random_states(self, seed: int) -> list[Tensor]:
        """States as they may be between two steps: random numbers in (0, 1), integers as before the first token."""
        generator = torch.Generator().manual_seed(seed)
        return [
            (1 - torch.rand(state.shape, generator=generator)).to(state.dtype) if state.is_floating_point() else state
            for state in self.empty_states()
        ]

    def arguments(
        self, tokens: Sequence[int], past: int, caches: Sequence[Tensor], states: Sequence[Tensor] | None = None
    ) -> list[Any]:
        """The graph's arguments for ``tokens`` behind ``past`` tokens that stand in ``caches`` and made ``states``.

        Without ``states``, those before the first token.
        """
        arguments = list(self._arguments)
        queries = torch.arange(past, past + len(tokens))

        def put(index: int, value: Tensor) -> None:
            arguments[self._slots[index]] = value

        put(self.inputs.tokens, self._spread(self.inputs.tokens, torch.tensor(list(tokens))))
        if self.inputs.positions is not None:
            put(self.inputs.positions, self._spread(self.inputs.positions, queries))
        for index in self.inputs.counters:
            held = self.users[index].meta["val"]
            put(index, torch.full(held.shape, past, dtype=held.dtype))
        if self.inputs.causal_mask is not None:
            keys = torch.arange(past + len(tokens))
            put(self.inputs.causal_mask, self._mask(self.inputs.causal_mask, keys <= queries[:, None]))
        for (index, _, _), cache in zip(self.inputs.caches, caches, strict=True):
            put(index, cache)
        for (index, _), state in zip(
            self.inputs.states, self.empty_states() if states is None else states, strict=True
        ):
            put(index, state)
        return arguments

    def _spread(self, index: int, values: Tensor) -> Tensor:
        """``values`` [Q] in the shape of an input that has the query tokens along one axis; the first for a scalar."""
        node = self.users[index]
        shape = _shape(node)
        if not shape:
            return values[0].to(node.meta["val"].dtype)
        extents = [_static(extent) for extent in shape]
        if self.one_query:
            return values.view([1] * len(shape)).expand(extents).to(node.meta["val"].dtype).contiguous()
        axes = [axis for axis, extent in enumerate(shape) if str(extent) == str(self._query)]
        if len(axes) != 1:
            raise ValueError(f"input '{node.name}' must have one axis of query tokens, got shape {shape}")
        extents[axes[0]] = len(values)
        along = [1] * len(shape)
        along[axes[0]] = len(values)
        return values.view(along).expand(extents).to(node.meta["val"].dtype).contiguous()

    def _mask(self, index: int, visible: Tensor) -> Tensor:
        """``visible`` [Q, T] bool in the shape and type of a mask input."""
        node = self.users[index]
        shape, dtype = _shape(node), node.meta["val"].dtype
        if len(shape) < 2 or not (dtype is torch.bool or dtype.is_floating_point):
            raise ValueError(f"a causal mask is [.., Q, T], bool or additive; '{node.name}' is {shape} of {dtype}")
        mask = visible
        if dtype is not torch.bool:
            mask = torch.zeros(visible.shape, dtype=dtype).masked_fill_(~visible, torch.finfo(dtype).min)
        return mask.expand([_static(extent) for extent in shape[:-2]] + list(visible.shape)).contiguous()

    def caches(self, results: Sequence[Tensor]) -> list[Tensor]:
        """The grown caches among the graph's results."""
        return [results[output] for _, output, _ in self.inputs.caches]

    def states(self, results: Sequence[Tensor]) -> list[Tensor]:
        """The states of the next step among the graph's results."""
        return [results[output] for _, output in self.inputs.states]

    def logits(self, results: Sequence[Tensor]) -> NDArray[np.float32]:
        """[V] f32 of the last token of the first row."""
        logits = results[self.inputs.logits]
        first = logits[0] if self.batch > 1 else logits
        return first.reshape(-1, logits.shape[-1])[-1].float().numpy()


def functional(program: ExportedProgram) -> ExportedProgram:
    """The program without in-place ops, whose effects no edge of the graph shows; otherwise unchanged."""
    ops = [node.target for node in program.graph.nodes if node.op == "call_function"]
    # detach_ is in place by its name alone: it changes no element
    written = [op for op in ops if isinstance(op, torch._ops.OpOverload) and op is not torch.ops.aten.detach_.default]
    if any(op._schema.is_mutable for op in written):
        with warnings.catch_warnings():
            # torch copies a pytree specification of its own in a way that it deprecates
            warnings.filterwarnings("ignore", message=".*LeafSpec.*", category=FutureWarning)
            made: ExportedProgram = program.run_decompositions({})
            return made
    return program


_aten: Any = torch.ops.aten
_ASSERTIONS = frozenset(
    {
        _aten._assert_async.default,
        _aten._assert_async.msg,
        _aten._assert_scalar.default,
        _aten.sym_constrain_range.default,
        _aten.sym_constrain_range_for_size.default,
    }
)


def _without_assertions(module: GraphModule) -> GraphModule:
    """The graph without what it demands of its inputs' values: a policy takes positions beyond a cache's last entry."""
    if not any(node.target in _ASSERTIONS for node in module.graph.nodes):
        return module
    graph = Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    for node in list(graph.nodes):
        if node.target in _ASSERTIONS:
            graph.erase_node(node)
    graph.eliminate_dead_code(is_impure_node=lambda node: node.op in ("placeholder", "output"))
    return GraphModule(module, graph)


def _widened(module: GraphModule) -> GraphModule:
    """The graph with f32 for every narrower type that it names or takes.

    Raises:
        ValueError: it looks at the bits of a narrower type, which f32 does not have.
    """
    graph = Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    for node in graph.nodes:
        if node.target is torch.ops.aten.view.dtype:
            raise ValueError(f"'{node.name}' takes the bits of a number for another: the program has no form in f32")
        node.args, node.kwargs = map_aggregate((node.args, node.kwargs), _wide_type)
        value = node.meta.get("val")
        if isinstance(value, Tensor) and value.dtype in NARROW:
            node.meta["val"] = value.to(torch.float32)
    return GraphModule(module, graph)


def _wide_type(value: Any) -> Any:
    return torch.float32 if isinstance(value, torch.dtype) and value in NARROW else value


def _shape(node: Node) -> tuple[Any, ...]:
    """An input's extents; those that are not an int are symbolic."""
    return tuple(node.meta["val"].shape)


def _static(extent: Any) -> int:
    """A fixed extent, or 1 row of a symbolic batch."""
    return extent if isinstance(extent, int) else 1


def _is_read(node: Node) -> bool:
    """Whether an input's elements are used, not only written over."""
    return any(user.target is not torch.ops.aten.copy.default or user.args[1] is node for user in node.users)
