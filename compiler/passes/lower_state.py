"""Pass ``kv-lower-state``: states as arguments that IREE updates in place, and the signature that results."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

from torch_mlir import ir

from ..analysis.functions import argument_attributes, body, functions, set_signature, terminator
from ..diagnostics import Refusal
from ..dialect.kv import string
from ..dialect.types import element_of, shape_of

FIRST_STATE = "selected_count"
"""The state that leads the order, whatever function names it first."""


@dataclasses.dataclass(frozen=True)
class LowerState:
    """``kv.state_load`` and ``kv.state_store`` to arguments, and to results tied to them by ``iree.abi.output``.

    Applies to a module in the linalg phase. Every function takes the states that it loads or stores after its own
    arguments, and gives those that it stores after its own results, both in the order of ``states``; a tied result
    stands in its argument's buffer, so that several modules can share the buffers that the host owns. The names and
    roles of the arguments (``kv.name``, ``kv.role``) go, since IREE takes no attribute of a dialect that it does not
    know: read ``signature`` before.

    Before: ``func.func @f(%x) { %0 = "kv.state_load"() {state = "k"}; ...; "kv.state_store"(%1) {state = "k"};
    return %2 }``

    After: ``func.func @f(%x, %0 {iree.abi.output = 1 : index}) { ...; return %2, %1 }``

    See tests/lit/lower/state.mlir.
    """

    name: ClassVar[str] = "kv-lower-state"

    def run(self, module: ir.Operation) -> None:
        """Rewrites the module.

        Raises:
            Refusal: a state has two types.
        """
        module.context.allow_unregistered_dialects = True
        order = states(module)
        for function in functions(module).values():
            _to_arguments(function, order)


def states(module: ir.Operation) -> dict[str, ir.Type]:
    """The program's states and their types: ``selected_count`` first, then by first appearance.

    Raises:
        Refusal: a state has two types.
    """
    found: dict[str, ir.Type] = {}
    for function in functions(module).values():
        for op in _state_ops(function):
            type_ = _state_value(op).type
            known = found.setdefault(string(op, "state"), type_)
            if known != type_:
                raise Refusal(
                    op,
                    f"the state {string(op, 'state')} is used as {type_} and as {known}",
                    "give each state one shape and element type in all functions",
                )
    return dict(sorted(found.items(), key=lambda item: item[0] != FIRST_STATE))


def signature(module: ir.Operation) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """What each public function takes and gives, for the manifest; of a module in the static or linalg phase.

    ``{function: {"arguments": [...], "results": [...], "states": [...]}}``; an entry of ``arguments`` and ``results``
    has ``name`` ("" if none), ``role``, ``shape`` and ``dtype`` (``i64``, ``f32``, ...), of ``states`` ``name``,
    ``shape``, ``dtype`` and ``stored``. The compiled function takes the arguments, then the states; it gives the
    results, then the states with ``stored``, in the buffers of their arguments.

    Raises:
        Refusal: a state has two types.
    """
    order = states(module)
    found = {}
    for name, function in functions(module).items():
        used = _uses(function)
        found[name] = {
            "arguments": [
                {"name": attributes.get("kv.name", ""), "role": attributes.get("kv.role", ""), **_tensor(argument.type)}
                for argument, attributes in zip(body(function).arguments, argument_attributes(function), strict=True)
            ],
            "results": [_tensor(value.type) for value in terminator(function).operands],
            "states": [
                {"name": state, **_tensor(type_), "stored": used[state]}
                for state, type_ in order.items()
                if state in used
            ],
        }
    return found


def _tensor(type_: ir.Type) -> dict[str, Any]:
    return {"shape": shape_of(type_), "dtype": element_of(type_).replace("si", "i")}


def _state_ops(function: ir.Operation) -> list[ir.Operation]:
    return [
        view.operation
        for view in body(function).operations
        if view.operation.name in ("kv.state_load", "kv.state_store")
    ]


def _state_value(op: ir.Operation) -> ir.Value:
    return op.results[0] if op.name == "kv.state_load" else op.operands[0]


def _uses(function: ir.Operation) -> dict[str, bool]:
    """The states of a function, and whether it stores them."""
    used: dict[str, bool] = {}
    for op in _state_ops(function):
        state = string(op, "state")
        used[state] = used.get(state, False) or op.name == "kv.state_store"
    return used


def _to_arguments(function: ir.Operation, order: dict[str, ir.Type]) -> None:
    block, used = body(function), _uses(function)
    own_arguments = len(block.arguments)
    present = {state: block.add_argument(type_, function.location) for state, type_ in order.items() if state in used}
    for op in _state_ops(function):
        state = string(op, "state")
        if op.name == "kv.state_load":
            op.results[0].replace_all_uses_with(present[state])
        else:
            present[state] = op.operands[0]
        op.erase()
    returned = terminator(function)
    results = [*returned.operands, *(present[state] for state in present if used[state])]
    tied: dict[int, int] = {}
    for position, state in enumerate(present):
        if used[state]:
            tied[own_arguments + position] = len(returned.operands) + len(tied)
    ir.Operation.create("func.return", operands=results, loc=returned.location, ip=ir.InsertionPoint(returned))
    returned.erase()
    set_signature(function)
    index = ir.IndexType.get()
    function.attributes["arg_attrs"] = ir.ArrayAttr.get(
        [
            ir.DictAttr.get({"iree.abi.output": ir.IntegerAttr.get(index, tied[i])} if i in tied else {})
            for i in range(len(block.arguments))
        ]
    )
    if "res_attrs" in function.attributes:
        del function.attributes["res_attrs"]
