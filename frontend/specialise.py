"""An exported program at fixed lengths: static shapes, core ATen ops only.

torch.export could do this by exporting again and decomposing, at half a minute for 30 layers, since it traces
every layer anew. Here each distinct op (target, shapes, other arguments) is decomposed once and its nodes are
copied wherever it occurs, which gives the same graph in a second or two and keeps the user's source lines.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensorMode
from torch._subclasses.functional_tensor import dispatch_functionalize
from torch.export import ExportedProgram
from torch.export.exported_program import ModuleCallEntry, ModuleCallSignature
from torch.export.graph_signature import (
    ArgumentSpec,
    ConstantArgument,
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import DecompositionInterpreter

from .complex_pairs import in_pairs, pair
from .decompositions import KEPT_ALONG_THE_PAST, OWN, core_aten
from .errors import FrontendError
from .flat import FlatProgram, source_of
from .numbers import READS, read, reads_numbers, with_numbers

_aten: Any = torch.ops.aten
# What they hold is checked here, at fixed lengths, or is about the tensors that the export was traced with.
_ASSERTIONS = {
    _aten._assert_tensor_metadata.default,
    _aten._assert_async.msg,
    _aten._assert_async.default,
    _aten._assert_scalar.default,
    _aten.sym_constrain_range.default,
    _aten.sym_constrain_range_for_size.default,
}
# Ops without an effect on values, in a functional graph.
_IDENTITIES = {
    _aten.detach_.default,
    _aten.detach.default,
    _aten.alias.default,
    _aten.lift_fresh_copy.default,
    _aten.lift_fresh.default,
}


@dataclass(frozen=True)
class _Piece:
    """The decomposed nodes of one op, with placeholders for its tensor arguments."""

    graph: Graph
    output: Any


class Specialiser:
    """Makes static programs of one exported program; what it learns about an op serves all of them."""

    def __init__(self, program: ExportedProgram, flat: FlatProgram) -> None:
        self._program = program
        self._flat = flat
        self._mode = FakeTensorMode()
        self._table = core_aten()
        self._core = {op: rule for op, rule in self._table.items() if op not in KEPT_ALONG_THE_PAST}
        self._pieces: dict[Any, _Piece] = {}
        self._state = {name: pair(value) for name, value in program.state_dict.items()}
        self._constants = {
            name: pair(value) if isinstance(value, torch.Tensor) else value for name, value in program.constants.items()
        }
        self._weights: dict[str, Any] = {**self._state, **self._constants}

    def at(self, shapes: Mapping[str, tuple[int, ...]]) -> ExportedProgram:
        """The program with inputs of the given shapes, by the name of their placeholder.

        Raises:
            FrontendError: the program draws random numbers, or has a shape that depends on values.
        """
        graph = Graph()
        values: dict[Node, Any] = {}
        specs = {spec.arg.name: spec for spec in self._flat.signature.input_specs if hasattr(spec.arg, "name")}
        for node in self._flat.graph.nodes:
            if node.op == "placeholder":
                values[node] = self._placeholder(graph, node, specs[node.name], shapes)
            elif node.op == "call_function":
                values[node] = self._call(graph, node, values)
            elif node.op == "output":
                outputs = tuple(_mapped(node.args[0], values))
                graph.output(outputs)
        graph.eliminate_dead_code()
        graph.lint()
        return self._exported(graph, outputs)

    def _placeholder(
        self, graph: Graph, node: Node, spec: InputSpec, shapes: Mapping[str, tuple[int, ...]]
    ) -> Node | Any:
        placeholder = graph.placeholder(str(node.target))
        placeholder.name = node.name
        if isinstance(spec.arg, ConstantArgument):
            placeholder.meta["val"] = spec.arg.value
            return spec.arg.value
        with self._mode:
            if spec.kind is InputKind.USER_INPUT:
                fake = torch.empty(shapes[node.name], dtype=node.meta["val"].dtype)
            else:
                weight = self._weights[str(spec.target)]
                fake = torch.empty_strided(weight.shape, weight.stride(), dtype=weight.dtype)
        placeholder.meta["val"] = fake
        return placeholder

    def _call(self, graph: Graph, node: Node, values: dict[Node, Any]) -> Any:
        args, kwargs = _mapped((node.args, node.kwargs), values)
        if node.target is _aten._assert_scalar.default and args[0] is False:
            raise FrontendError(f"the program refuses these lengths ({source_of(node)}): {args[1]}")
        if node.target in _ASSERTIONS:
            return None
        if node.target in _IDENTITIES:
            return args[0]
        if node.target in READS or reads_numbers(args, kwargs):

            def call(op: Any, *operands: Any, **named: Any) -> Any:
                return self._inline(graph, node, op, operands, named)

            return read(node, args[0], call) if node.target in READS else with_numbers(node, args, kwargs, call)
        if _is_number(node):
            return node.target(*_values(args), **_values(kwargs))  # type: ignore[operator]
        if not isinstance(node.target, torch._ops.OpOverload):
            if getattr(node.target, "__name__", "") == "getitem":
                return args[0][args[1]]
            raise FrontendError(f"the model uses {node.target} ({source_of(node)}), which is not a PyTorch op")
        if torch.Tag.nondeterministic_seeded in node.target.tags and not _is_off(node, args):
            raise FrontendError(
                f"the model draws random numbers by {node.target} ({source_of(node)}): export it in eval mode"
            )
        return self._inline(graph, node, in_pairs(node) or node.target, args, kwargs)

    def _inline(self, graph: Graph, node: Node, op: Any, args: Any, kwargs: Any) -> Any:
        """Adds an op, or a function of tensors, for a node of the exported program."""
        leaves, structure = pytree.tree_flatten((args, kwargs), is_leaf=lambda x: isinstance(x, Node))
        operands = [leaf for leaf in leaves if isinstance(leaf, Node)]
        piece = self._piece(node, op, leaves, structure)
        inner: dict[Node, Any] = dict(zip(piece.graph.find_nodes(op="placeholder"), operands, strict=True))
        for child in piece.graph.nodes:
            if child.op != "call_function":
                continue
            if child.target in _IDENTITIES:
                inner[child] = inner[child.args[0]]
                continue
            copied = graph.node_copy(child, inner.__getitem__)
            copied.meta = {key: node.meta[key] for key in ("stack_trace", "nn_module_stack") if key in node.meta}
            copied.meta["val"] = child.meta["val"]
            inner[child] = copied
        return _mapped(piece.output, inner)

    def _piece(self, node: Node, op: Any, leaves: list[Any], structure: pytree.TreeSpec) -> _Piece:
        whole = _is_along_the_past(node)
        op = op if whole else OWN.get(op, op)
        key = (op, whole, str(structure), tuple(_description(leaf) for leaf in leaves))
        if key not in self._pieces:
            self._pieces[key] = self._decompose(op, node, leaves, structure, self._core if whole else self._table)
        return self._pieces[key]

    def _decompose(
        self, op: Any, node: Node, leaves: list[Any], structure: pytree.TreeSpec, table: dict[Any, Any]
    ) -> _Piece:
        call, piece = Graph(), Graph()
        filled: list[Any] = []
        operands: list[torch.Tensor] = []
        for leaf in leaves:
            if isinstance(leaf, Node):
                value = leaf.meta["val"]
                filled.append(call.placeholder(f"operand_{len(operands)}"))
                with self._mode:  # a tensor of its own: two operands may be one value here and two elsewhere
                    operands.append(torch.empty_strided(value.shape, value.stride(), dtype=value.dtype))
            else:
                filled.append(leaf)
        args, kwargs = pytree.tree_unflatten(filled, structure)
        call.output(call.create_node("call_function", dispatch_functionalize(op), args, kwargs))
        interpreter = DecompositionInterpreter(GraphModule({}, call), piece, table)
        interpreter.extra_traceback = False
        try:
            with self._mode, torch.no_grad():
                interpreter.run(*operands)
        except DynamicOutputShapeException as error:
            raise FrontendError(
                f"the shape of {node.target} ({source_of(node)}) depends on values: a static program cannot have it"
            ) from error
        except (RuntimeError, ValueError, IndexError) as error:
            reason = str(error).strip().splitlines()[0]
            raise FrontendError(f"{node.target} ({source_of(node)}) fails at these lengths: {reason}") from error
        piece.eliminate_dead_code()
        _check(piece, node)
        (output,) = piece.find_nodes(op="output")
        return _Piece(piece, output.args[0])

    def _exported(self, graph: Graph, outputs: tuple[Any, ...]) -> ExportedProgram:
        inputs = [_as_buffer(spec) for spec in self._flat.signature.input_specs]
        results = [OutputSpec(OutputKind.USER_OUTPUT, _argument(value), None) for value in outputs]
        signature = ExportGraphSignature(inputs, results)
        call = self._program.call_spec
        root = ModuleCallEntry(
            "",
            ModuleCallSignature(
                [spec.arg for spec in inputs if spec.kind is InputKind.USER_INPUT],
                [spec.arg for spec in results],
                call.in_spec,
                call.out_spec,
                self._program.module_call_graph[0].signature.forward_arg_names,
            ),
        )
        return ExportedProgram(
            root=torch.nn.Module(),
            graph=graph,
            graph_signature=signature,
            state_dict=self._state,
            range_constraints={},
            module_call_graph=[root],
            constants=self._constants,
        )


def _is_number(node: Node) -> bool:
    return isinstance(node.meta.get("val"), (torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool))


def _is_along_the_past(node: Node) -> bool:
    """Whether an op takes the best of an axis without a fixed extent, or writes to them.

    The compiler proves what such a choice among cached keys is; spelled out it would be lost.
    """
    if node.target not in KEPT_ALONG_THE_PAST:
        return False
    source: Any = node.args[0]
    at = KEPT_ALONG_THE_PAST[node.target]
    axis = node.args[at] if len(node.args) > at else node.kwargs.get("dim", -1)
    return not isinstance(source.meta["val"].shape[axis], int)


def _is_off(node: Node, args: tuple[Any, ...]) -> bool:
    # Attention refuses dropout where it is decomposed.
    return node.target in OWN or (node.target is _aten.dropout.default and not args[2])


def _mapped(args: Any, values: dict[Node, Any]) -> Any:
    return torch.fx.map_arg(args, values.__getitem__)


def _values(args: Any) -> Any:
    return torch.fx.map_arg(args, lambda node: node.meta["val"])


def _description(leaf: Any) -> Any:
    if not isinstance(leaf, Node):
        return (type(leaf), repr(leaf))
    value = leaf.meta["val"]
    return (tuple(value.shape), value.stride(), value.dtype, value.storage_offset())


def _as_buffer(spec: InputSpec) -> InputSpec:
    # The importer tells a weight's name to its hooks for parameters and buffers only.
    if spec.kind is InputKind.CONSTANT_TENSOR:
        return InputSpec(InputKind.BUFFER, spec.arg, spec.target, persistent=False)
    return spec


def _argument(value: Any) -> ArgumentSpec:
    if isinstance(value, Node):
        return TensorArgument(value.name)
    return ConstantArgument("", value)


def _check(piece: Graph, node: Node) -> None:
    for made in piece.nodes:
        if made.op == "get_attr":
            raise FrontendError(f"{node.target} ({source_of(node)}) decomposes into a tensor constant: not supported")
        if made.target is _aten.as_strided.default:
            raise FrontendError(
                f"{node.target} ({source_of(node)}) reads a tensor by its strides in memory: "
                "use view, transpose or unfold instead"
            )
