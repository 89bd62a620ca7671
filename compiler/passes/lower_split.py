"""One module per set of functions, so that each can be compiled with flags of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch_mlir import ir


def split(module: ir.Module, groups: Mapping[str, Sequence[str]]) -> dict[str, ir.Module]:
    """The modules of some functions each, with the symbols that they need and no others.

    Not a pass, since a pass gives one module. Applies in any phase; in the iree phase the modules share their states
    through their arguments, whose order ``kv-lower-state`` has settled for the whole program.

    Args:
        module: the program; it stays as it is.
        groups: for each new module its name (IREE needs different ones to load two together) and its functions.

    Raises:
        ValueError: a function that the program does not have.
    """
    symbols = {
        str(ir.StringAttr(view.attributes["sym_name"]).value): view.operation
        for view in module.body.operations
        if "sym_name" in view.attributes
    }
    modules = {}
    for name, functions in groups.items():
        unknown = [f for f in functions if f not in symbols]
        if unknown:
            raise ValueError(f"the program has no function {unknown[0]!r}; it has {', '.join(sorted(symbols))}")
        needed = _closure(functions, symbols)
        with module.context:
            part = ir.Module.create(loc=module.operation.location)
            part.operation.attributes["sym_name"] = ir.StringAttr.get(name)
            for symbol, op in symbols.items():
                if symbol in needed:
                    op.clone(ip=ir.InsertionPoint(part.body))
        modules[name] = part
    return modules


def _closure(roots: Sequence[str], symbols: Mapping[str, ir.Operation]) -> set[str]:
    needed, waiting = set(roots), list(roots)
    while waiting:
        for symbol in _references(symbols[waiting.pop()]):
            if symbol in symbols and symbol not in needed:
                needed.add(symbol)
                waiting.append(symbol)
    return needed


def _references(op: ir.Operation) -> list[str]:
    found: list[str] = []

    def visit(inner: ir.Operation) -> ir.WalkResult:
        for name in inner.attributes:
            attribute = inner.attributes[name]
            if isinstance(attribute, ir.FlatSymbolRefAttr):
                found.append(str(attribute.value))
        return ir.WalkResult.ADVANCE

    op.walk(visit)
    return found
