"""Static programs of a decoder as one MLIR module in the torch dialect, weights by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind
from torch_mlir import ir
from torch_mlir.dialects import torch as torch_dialect
from torch_mlir.extras.fx_importer import FxImporter, FxImporterHooks, InputInfo

from snapcc.compiler.dialect import kv

from .decoder import Decoder
from .roles import CacheInput, Role
from .states import StateInput


class _NamedWeights(FxImporterHooks):  # type: ignore[misc]  # torch-mlir is not typed
    """Gives a ``kv.parameter`` for every weight of more than one element."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder

    def resolve_input(self, gni: Any, value: Any, info: InputInfo) -> ir.Value | None:
        if not isinstance(value, torch.Tensor) or value.numel() == 1:
            return None
        name = self._decoder.weight_name(str(info.input_spec.target))
        context = gni._c
        operation = kv.ParameterOp(
            ir.StringAttr.get(name, context),
            info.ir_type,
            loc=ir.Location.name(name, context=context),
            ip=ir.InsertionPoint(gni._b),
        )
        return operation.value


def import_functions(
    context: ir.Context, functions: Sequence[tuple[str, ExportedProgram]], decoder: Decoder
) -> ir.Module:
    """One module with a function for each (name, program), as ``decoder.specialise`` made them.

    A function's arguments are the program's user inputs, each with ``kv.name`` and ``kv.role``, a cache or state whose
    rows are not its first dimension also with ``kv.row_axis`` ("none" for a state without rows), a state that does not
    start with zeros with the weight that it starts with as ``kv.initial``; its results are the program's outputs, each
    with ``kv.name``: "logits", the name of the cache or state that it is the next value of, or its own. Locations are
    the lines of the model's source. The kv dialect is loaded in ``context``.

    Raises:
        FrontendError: a program has weights that the importer cannot name.
        ir.MLIRError: the module does not verify.
    """
    torch_dialect.register_dialect(context)
    importer = FxImporter(context=context, hooks=_NamedWeights(decoder))
    for name, program in functions:
        function = importer.import_program(program, func_name=name)
        _name_arguments(context, function, program, decoder)
    importer.module.operation.verify()
    return importer.module


def _name_arguments(context: ir.Context, function: Any, program: ExportedProgram, decoder: Decoder) -> None:
    kept: list[CacheInput | StateInput] = [*decoder.caches, *decoder.states]
    carried = {each.output_index: each.name for each in kept}
    more: dict[str, dict[str, str]] = {each.name: {} for each in kept}
    for each in kept:
        if each.row_axis != 0:
            more[each.name]["kv.row_axis"] = "none" if each.row_axis is None else str(each.row_axis)
    for state in decoder.states:
        if state.initial is not None:
            more[state.name]["kv.initial"] = decoder.weight_name(state.initial)
    outputs = [s.arg for s in program.graph_signature.output_specs if s.kind is OutputKind.USER_OUTPUT]
    results = [
        "logits" if index == decoder.logits else carried.get(index, arg.name or f"output_{index}")
        for index, arg in enumerate(outputs)
    ]
    arguments = [{"kv.name": i.name, "kv.role": _role(i.role)} | more.get(i.name, {}) for i in decoder.inputs]
    with context:
        for key, entries in (("arg_attrs", arguments), ("res_attrs", [{"kv.name": name} for name in results])):
            function.attributes[key] = ir.ArrayAttr.get(
                [ir.DictAttr.get({k: ir.StringAttr.get(v) for k, v in entry.items()}) for entry in entries]
            )


def _role(role: Role) -> str:
    # a counter of the past tokens is the new token's position
    return str(Role.POSITIONS if role is Role.COUNTER else role)
