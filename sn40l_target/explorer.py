"""The planned program as a graph for Model Explorer, with tier, bytes and time at each node.

Source: google-ai-edge/model-explorer, ``graph_builder.py`` (GraphCollection, Graph, GraphNode, IncomingEdge).
"""

from __future__ import annotations

import json
from typing import Any

from torch_mlir import ir

from .graph import Function, read_program
from .schema import Plan, SectionTime, Tensor

_COLOURS = ("#f3d1dc", "#d5e8d4", "#dae8fc", "#fff2cc")
"""Of what bounds a section: compute, then the machine's tiers, nearest first."""


def explorer_json(module: ir.Module | ir.Operation, plan: Plan) -> str:
    """A graph per function: a namespace per section, the colour of what bounds its time.

    Args:
        module: the linalg-phase module that the plan is of.
        plan: its plan.

    Raises:
        ProgramError: the module is not of the linalg phase.
    """
    program = read_program(module, plan.machine.tiers[0].legal)
    graphs = [_graph(program.functions[name], plan) for name in plan.functions]
    return json.dumps({"label": plan.machine.name, "graphs": graphs})


def _graph(function: Function, plan: Plan) -> dict[str, Any]:
    sections = {position: s.name for s in plan.sections if s.function == function.name for position in s.ops}
    times = {t.section: t for t in plan.schedule if t.function == function.name}
    places: dict[str, list[Tensor]] = {}
    for tensor in plan.tensors:
        if tensor.function == function.name:
            for value in tensor.values or (tensor.name,):
                places.setdefault(value, []).append(tensor)
    made: dict[str, list[str]] = {}
    for value in function.ids.values():
        made.setdefault(value.partition("#")[0], []).append(value)
    bounds = ["compute", *(tier.name for tier in plan.machine.tiers)]
    nodes = []
    for node, data in function.graph.nodes(data=True):
        section = sections.get(data["position"], "")
        time = times.get(section)
        shown: dict[str, Any] = {
            "id": node,
            "label": data["op"],
            "namespace": section,
            "attrs": _pairs({"location": data["location"]} | ({} if time is None else _time(time))),
            "incomingEdges": [
                {
                    "sourceNodeId": source,
                    "sourceNodeOutputId": value.partition("#")[2] or "0",
                    "targetNodeInputId": str(at),
                }
                for at, (source, _, value) in enumerate(function.graph.in_edges(node, keys=True))
            ],
            "outputsMetadata": [
                {"id": str(at), "attrs": _pairs(_place(place))}
                for at, value in enumerate(made.get(node, []))
                for place in places.get(value, [])
            ],
        }
        if time is not None:
            shown["style"] = {"backgroundColor": _COLOURS[bounds.index(time.bound) % len(_COLOURS)]}
        nodes.append(shown)
    return {"id": function.name, "nodes": nodes}


def _time(time: SectionTime) -> dict[str, str]:
    return {"section": time.section, "section_us": f"{(time.end - time.start) * 1e6:.3f}", "bound": time.bound}


def _place(tensor: Tensor) -> dict[str, str]:
    return {
        "tensor": tensor.name,
        "kind": tensor.kind,
        "tier": tensor.tier,
        "bytes": str(tensor.bytes),
        "offset": str(tensor.offset),
    }


def _pairs(entries: dict[str, str]) -> list[dict[str, str]]:
    return [{"key": key, "value": value} for key, value in entries.items()]
