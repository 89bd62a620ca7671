"""The flat, functional graph of an exported program: no submodules, nothing written in place.

Everything that reads a program's graph (the roles of its inputs, its specialisation) reads this one form.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature, InputKind, InputSpec, OutputKind, OutputSpec
from torch.fx import Graph, GraphModule, Node

from .errors import FrontendError

_ops: Any = torch.ops
_HERE = Path(__file__).parent
# Regions of a graph that are run as they stand, with the position of their body among the arguments.
_AUTOCAST = _ops.higher_order.wrap_with_autocast
_STATES = (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION)
_REGIONS = {_ops.higher_order.wrap_with_set_grad_enabled: 1, _AUTOCAST: 4}
# In place by name, the identity by effect: it only cuts autograd's history.
_IDENTITIES = (_ops.aten.detach_.default,)


@dataclass(frozen=True)
class FlatProgram:
    """A graph whose placeholders and outputs are those that ``signature`` lists, in its order.

    What the program writes to in place comes in as an input and goes out as an output: buffers are inputs of their
    placeholder's name, and ``buffers`` gives the values that they start with, ``targets`` their names in the model.
    ``written`` has the input of each output that is what an input or buffer becomes in place.
    """

    graph: Graph
    signature: ExportGraphSignature
    buffers: Mapping[str, Tensor]
    targets: Mapping[str, str]
    written: Mapping[int, str]


def flatten(program: ExportedProgram) -> FlatProgram:
    """The flat, functional form of a program; the program itself is left as it is.

    Regions under ``torch.no_grad`` are inlined. In-place updates of values are made functional by torch.export.

    Raises:
        FrontendError: the program branches or loops in its graph.
    """
    signature, module = program.graph_signature, program.graph_module
    _refuse_control_flow(module)
    if _needs_functionalisation(module):
        with warnings.catch_warnings():  # torch.export warns about its own tree specs
            warnings.simplefilter("ignore", FutureWarning)
            functional = program.run_decompositions({})
        signature, module = functional.graph_signature, functional.graph_module
    graph = Graph()
    values: dict[Node, Any] = {}
    for node in module.graph.nodes:
        if node.op == "output":
            graph.output(torch.fx.map_arg(node.args[0], values.__getitem__))
        else:
            _copy(graph, module, node, values)
    signature, targets, written = _with_states(signature)
    held = {**program.state_dict, **program.constants}
    buffers = {name: held[target] for name, target in targets.items()}
    return FlatProgram(graph, signature, buffers, targets, written)


def source_of(node: Node) -> str:
    """``file.py:line`` of the user's code that a node comes from, or its name where that is not known.

    Code that lies in no package goes before a library's, and that which calls a model for its export is nobody's.
    """
    found = re.findall(r'File "([^"<]+)", line (\d+)', node.meta.get("stack_trace") or "")
    frames = [f"{file}:{line}" for file, line in found if Path(file).parent != _HERE]
    own = [frame for frame in frames if "/site-packages/" not in frame]
    library = [frame for frame in frames if "/site-packages/torch/" not in frame]
    return (own or library or frames or [f"the node {node.name}"])[-1]


def _copy(graph: Graph, module: GraphModule, node: Node, values: dict[Node, Any]) -> None:
    if node.op == "get_attr":  # a region's body, read where the region is called
        return
    if node.op == "call_function" and isinstance(node.target, torch._ops.HigherOrderOperator):
        body, operands = _region(node)
        inner = getattr(module, str(body.target))
        arguments = torch.fx.map_arg(operands, values.__getitem__)
        within: dict[Node, Any] = dict(zip(inner.graph.find_nodes(op="placeholder"), arguments, strict=True))
        for child in inner.graph.nodes:
            if child.op == "output":
                values[node] = torch.fx.map_arg(child.args[0], within.__getitem__)
            elif child.op != "placeholder":
                _copy(graph, inner, child, within)
        return
    if node.op == "call_function" and getattr(node.target, "__name__", "") == "getitem":
        container, index = node.args
        if isinstance(container, Node) and isinstance(values[container], (tuple, list)):
            values[node] = values[container][index]
            return
    values[node] = graph.node_copy(node, values.__getitem__)


def _region(node: Node) -> tuple[Node, tuple[Any, ...]]:
    body = _REGIONS[node.target]
    return node.args[body], tuple(node.args[body + 1 :])  # type: ignore[return-value]


def _needs_functionalisation(module: GraphModule) -> bool:
    for node in _nodes(module):
        if node.target is _AUTOCAST and node.args[2]:
            return True
        op = node.target
        if isinstance(op, torch._ops.OpOverload) and op._schema.is_mutable and op not in _IDENTITIES:
            return True
    return False


def _refuse_control_flow(module: GraphModule) -> None:
    for node in _nodes(module):
        if isinstance(node.target, torch._ops.HigherOrderOperator) and node.target not in _REGIONS:
            raise FrontendError(
                f"the model uses {node.target} ({source_of(node)}), which is not supported: "
                "write it without branches and loops that depend on tensors"
            )


def _nodes(module: GraphModule) -> Iterator[Node]:
    for graph_module in module.modules():
        if isinstance(graph_module, GraphModule):
            yield from graph_module.graph.nodes


def _with_states(signature: ExportGraphSignature) -> tuple[ExportGraphSignature, dict[str, str], dict[int, str]]:
    """A signature in which what is written to in place is an input and an output.

    Also the buffers among those, by input, and the input of each such output.
    """
    mutated = set(signature.buffers_to_mutate.values())
    buffers: dict[str, str] = {}
    inputs = []
    for spec in signature.input_specs:
        if spec.kind is InputKind.BUFFER and spec.target in mutated:
            buffers[spec.arg.name] = spec.target
            spec = InputSpec(InputKind.USER_INPUT, spec.arg, None)
        inputs.append(spec)
    placeholders = {target: name for name, target in buffers.items()}
    written = {
        index: placeholders.get(str(spec.target), str(spec.target))
        for index, spec in enumerate(signature.output_specs)
        if spec.kind in _STATES
    }
    outputs = [
        OutputSpec(OutputKind.USER_OUTPUT, spec.arg, None) if spec.kind in _STATES else spec
        for spec in signature.output_specs
    ]
    return ExportGraphSignature(inputs, outputs), buffers, written
