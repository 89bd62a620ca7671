"""The functions of a module and the names and roles that the frontend gave their arguments."""

from __future__ import annotations

from torch_mlir import ir

Attributes = dict[str, str]

PROBE = "_probe"
"""The end of the name of a function that is another one at another past length; one of a fixed length has none."""


def functions(module: ir.Operation) -> dict[str, ir.Operation]:
    """The ``func.func`` ops of a ``builtin.module``, by symbol name, in order."""
    found = {}
    for view in module.regions[0].blocks[0].operations:
        if view.operation.name == "func.func":
            found[str(ir.StringAttr(view.attributes["sym_name"]).value)] = view.operation
    return found


def body(function: ir.Operation) -> ir.Block:
    """The single block of a function."""
    return function.regions[0].blocks[0]


def terminator(function: ir.Operation) -> ir.Operation:
    """The ``func.return`` of a function."""
    operations = body(function).operations
    return operations[len(operations) - 1].operation


def _attributes(function: ir.Operation, key: str, count: int) -> list[Attributes]:
    if key not in function.attributes:
        return [{} for _ in range(count)]
    result: list[Attributes] = []
    for dictionary in ir.ArrayAttr(function.attributes[key]):
        entries = ir.DictAttr(dictionary)
        result.append(
            {
                entry.name: str(ir.StringAttr(entry.attr).value)
                for entry in entries
                if isinstance(entry.attr, ir.StringAttr)
            }
        )
    return result


def argument_attributes(function: ir.Operation) -> list[Attributes]:
    """The string attributes of each argument (``kv.name``, ``kv.role``)."""
    return _attributes(function, "arg_attrs", len(body(function).arguments))


def result_attributes(function: ir.Operation) -> list[Attributes]:
    """The string attributes of each result (``kv.name``)."""
    return _attributes(function, "res_attrs", len(terminator(function).operands))


def set_signature(
    function: ir.Operation, arguments: list[Attributes] | None = None, results: list[Attributes] | None = None
) -> None:
    """Makes the function's type and attributes those of its block arguments and returned values."""
    block, returned = body(function), terminator(function)
    kind = ir.FunctionType.get([a.type for a in block.arguments], [v.type for v in returned.operands])
    function.attributes["function_type"] = ir.TypeAttr.get(kind)
    for key, attributes in (("arg_attrs", arguments), ("res_attrs", results)):
        if attributes is not None:
            function.attributes[key] = ir.ArrayAttr.get(
                [ir.DictAttr.get({k: ir.StringAttr.get(v) for k, v in entry.items()}) for entry in attributes]
            )
