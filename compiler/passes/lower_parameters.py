"""Pass ``kv-lower-parameters``: weights as IREE globals with parameter storage."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from torch_mlir import ir

from ..diagnostics import Refusal
from ..dialect.kv import string
from .template import operations, replace

SCOPE = "model"
"""The parameter scope under which the runtime provides the weights."""


@dataclasses.dataclass(frozen=True)
class LowerParameters:
    """``kv.parameter`` to a private ``util.global`` in IREE's parameter scope ``model``, and a load.

    Applies to a module in the linalg phase, last: ``util`` and ``#flow`` are IREE's, unknown to torch-mlir, so the
    context is told to take unregistered dialects from here on.

    Before: ``%w = "kv.parameter"() {parameter = "w"} : () -> tensor<4xf32>``

    After: ``"util.global"() {sym_name = "parameter.w", initial_value = #flow.parameter.named<"model"::"w">, ...}``
    ``%w = "util.global.load"() {global = @parameter.w} : () -> tensor<4xf32>``

    See tests/lit/lower/parameters.mlir.
    """

    name: ClassVar[str] = "kv-lower-parameters"

    def run(self, module: ir.Operation) -> None:
        """Rewrites the module.

        Raises:
            Refusal: one weight is wanted in two types.
        """
        module.context.allow_unregistered_dialects = True
        start = ir.InsertionPoint.at_block_begin(module.regions[0].blocks[0])
        types: dict[str, ir.Type] = {}
        for op in operations(module, "kv.parameter"):
            parameter, type_ = string(op, "parameter"), op.results[0].type
            symbol = f"parameter.{parameter}"
            if parameter not in types:
                types[parameter] = type_
                _global(symbol, parameter, type_, op.location, start)
            if types[parameter] != type_:
                raise Refusal(
                    op,
                    f"the weight {parameter} is wanted as {type_} and as {types[parameter]}",
                    "give each weight one type, and convert it after it is loaded",
                )
            load = ir.Operation.create(
                "util.global.load",
                attributes={"global": ir.FlatSymbolRefAttr.get(symbol)},
                results=[type_],
                loc=op.location,
                ip=ir.InsertionPoint(op),
            )
            replace(op, list(load.results))


def _global(symbol: str, parameter: str, type_: ir.Type, location: ir.Location, where: ir.InsertionPoint) -> None:
    quoted = str(ir.StringAttr.get(parameter))
    ir.Operation.create(
        "util.global",
        attributes={
            "sym_name": ir.StringAttr.get(symbol),
            "sym_visibility": ir.StringAttr.get("private"),
            "type": ir.TypeAttr.get(type_),
            "initial_value": ir.Attribute.parse(f'#flow.parameter.named<"{SCOPE}"::{quoted}> : {type_}'),
        },
        loc=location,
        ip=where,
    )
