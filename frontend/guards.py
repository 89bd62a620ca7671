"""What torch.export took for granted about the inputs' shapes while it traced a program, checked at given shapes.

The conditions stand in the program as Python text. They are checked here before they are evaluated: text from a
file is not run.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, TensorArgument
from torch.fx.experimental.symbolic_shapes import SYMPY_INTERP

from .errors import FrontendError

_FUNCTIONS: dict[str, Any] = {
    **SYMPY_INTERP,
    "abs": abs,
    "float": float,
    "inf": math.inf,
    "int": int,
    "max": max,
    "min": min,
}
_METHODS = frozenset({"size", "stride", "storage_offset", "dim"})
_SYNTAX = (
    ast.BinOp,
    ast.BoolOp,
    ast.Call,
    ast.Compare,
    ast.Constant,
    ast.Expression,
    ast.IfExp,
    ast.Load,
    ast.Subscript,
    ast.UnaryOp,
    ast.boolop,
    ast.cmpop,
    ast.operator,
    ast.unaryop,
)


def check_guards(program: ExportedProgram, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Refuses shapes at which the model would have taken another branch than the one that was exported.

    ``shapes``: those of the user inputs, by the name of their placeholder.

    Raises:
        FrontendError: a condition does not hold, or cannot be checked.
    """
    names = _arguments(program, shapes)
    for guard in program._guards_code:
        shown = re.sub(r"L\['(\w+)'\]", r"\1", guard)
        try:
            holds = eval(_checked(guard), {"__builtins__": {}, "L": names, **_FUNCTIONS})
            if isinstance(holds, torch.Tensor):
                raise TypeError("it is a tensor")
        except (KeyError, IndexError, NameError, SyntaxError, AttributeError, TypeError) as error:
            raise FrontendError(f"the exported program's condition {shown} cannot be checked: {error}") from error
        if not holds:
            raise FrontendError(
                f"the program was exported on the condition {shown}, which does not hold at these lengths: "
                "export it with other example inputs or bounds"
            )


def _arguments(program: ExportedProgram, shapes: Mapping[str, tuple[int, ...]]) -> Mapping[str, Any]:
    """Tensors without data, as the arguments of the model's forward by their names."""
    inputs = [
        torch.empty(shapes[spec.arg.name], device="meta") if isinstance(spec.arg, TensorArgument) else spec.arg.value
        for spec in program.graph_signature.input_specs
        if spec.kind is InputKind.USER_INPUT
    ]
    signature = program.module_call_graph[0].signature
    if signature is None or signature.forward_arg_names is None:
        raise FrontendError("the exported program does not name its arguments: export it with this version of PyTorch")
    args, kwargs = pytree.tree_unflatten(inputs, program.call_spec.in_spec)
    values = [_plain(*pytree.tree_flatten_with_path(value)) for value in (*args, *kwargs.values())]
    names: dict[str, Any] = dict(zip(signature.forward_arg_names, values, strict=True))
    for name, value in list(names.items()):
        # A variable number of arguments: args_0, args_1, ... stand for args[0], args[1], ... in conditions.
        if (match := re.fullmatch(r"(.+)_(\d+)", name)) and match[1] not in signature.forward_arg_names:
            names.setdefault(match[1], {})[int(match[2])] = value
    return names


def _plain(leaves: Any, spec: pytree.TreeSpec) -> Any:
    """A container as the conditions name its parts: dicts for what is indexed, namespaces for fields."""
    if spec.is_leaf():
        return leaves[0][1]
    parts: dict[Any, list[Any]] = {}
    for (key, *rest), leaf in leaves:
        parts.setdefault(key, []).append((tuple(rest), leaf))
    children = spec.children()
    plain = {
        _key(key): _plain(inside, child)
        for (key, inside), child in zip(parts.items(), (c for c in children if c.num_leaves), strict=True)
    }
    fields = any(isinstance(key, pytree.GetAttrKey) for key in parts)
    return SimpleNamespace(**plain) if fields else plain


def _key(key: Any) -> Any:
    if isinstance(key, pytree.SequenceKey):
        return key.idx
    return key.name if isinstance(key, pytree.GetAttrKey) else key.key


def _checked(guard: str) -> Any:
    tree = ast.parse(guard.strip(), mode="eval")
    called = {node.func for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        known = isinstance(node, _SYNTAX)
        if isinstance(node, ast.Attribute):  # a field of a container, or a method of a tensor
            known = node.attr in _METHODS if node in called else not node.attr.startswith("_")
        known = known or (isinstance(node, ast.Name) and (node.id == "L" or node.id in _FUNCTIONS))
        if not known:
            raise SyntaxError(f"unexpected {ast.unparse(node) if isinstance(node, ast.expr) else node}")
    return compile(tree, "<condition>", "eval")
