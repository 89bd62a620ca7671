"""Lowerings written as MLIR text: a private function, called in place of an op and inlined later by MLIR."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from torch_mlir import ir
from torch_mlir.passmanager import PassManager


def call_template(
    op: ir.Operation, name: str, text: str, operands: Sequence[ir.Value], result_types: Sequence[ir.Type]
) -> list[ir.Value]:
    """Calls the function of ``text`` before ``op``, with ``op``'s location; the values that replace its results.

    ``text`` is MLIR's: one ``func.func`` on builtin tensors (whatever its symbol), with attribute aliases if it needs
    them. The module gets it once, private, as ``<name>_<digest of the text>``: equal texts share one function, and
    different ones never meet. MLIR's ``inline`` then turns each call into the function's body with ``op``'s location
    as its only known frame, so that diagnostics keep pointing at the user's source.

    Raises:
        ir.MLIRError: the text does not parse, or the call does not fit the function's type.
    """
    symbol = f"{name}_{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    with op.context:
        if not _has_symbol(module_of(op), symbol):
            _add_function(module_of(op), symbol, text)
        call = ir.Operation.create(
            "func.call",
            operands=list(operands),
            results=list(result_types),
            attributes={"callee": ir.FlatSymbolRefAttr.get(symbol)},
            loc=op.location,
            ip=ir.InsertionPoint(op),
        )
    return list(call.results)


def module_of(op: ir.Operation) -> ir.Operation:
    """The ``builtin.module`` around an op."""
    while op.name != "builtin.module":
        op = op.parent.operation
    return op


def _has_symbol(module: ir.Operation, symbol: str) -> bool:
    return any(
        "sym_name" in view.attributes and ir.StringAttr(view.attributes["sym_name"]).value == symbol
        for view in module.regions[0].blocks[0].operations
    )


def _add_function(module: ir.Operation, symbol: str, text: str) -> None:
    parsed = ir.Module.parse(text)
    # the lines of the text mean nothing to a user: the call's location alone shall be seen after inlining
    PassManager.parse("builtin.module(strip-debuginfo)").run(parsed.operation)
    function = parsed.body.operations[0].operation
    function.attributes["sym_name"] = ir.StringAttr.get(symbol)
    function.attributes["sym_visibility"] = ir.StringAttr.get("private")
    block = module.regions[0].blocks[0]
    function.clone(ip=ir.InsertionPoint.at_block_begin(block))


def operations(module: ir.Operation, *names: str) -> list[ir.Operation]:
    """The ops of these names anywhere in a module, in order."""
    found: list[ir.Operation] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        if op.name in names:
            found.append(op)
        return ir.WalkResult.ADVANCE

    module.walk(visit)
    return found


def replace(op: ir.Operation, values: Sequence[ir.Value]) -> None:
    """Puts ``values`` in the place of an op's results and erases the op."""
    for result, value in zip(op.results, values, strict=True):
        result.replace_all_uses_with(value)
    op.erase()
