"""The states of a program, a value of each row: what is carried beside the caches, and ``reset``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch_mlir import ir

from ..analysis.aten import owner
from ..analysis.functions import argument_attributes, body, result_attributes, set_signature, terminator
from ..dialect.kv import ParameterOp, StateLoadOp, StateStoreOp, WriteRowOp, WriteRowsOp
from ..dialect.types import element_of, shape_of, vtensor
from .raise_state import INITIAL, INITIAL_AXIS, NO_ROWS, STATE
from .torch_builder import TorchBuilder

States = dict[str, ir.Type]
"""The type of each state, by its name."""


@dataclass(frozen=True)
class Initial:
    """The weight that a state starts with, and the dimension of the rows in it, all alike; None where it has none."""

    weight: str
    row_axis: int | None


def initial_values(function: ir.Operation) -> dict[str, Initial]:
    """What each state starts with that does not start with zeros."""
    return {
        entry["kv.name"]: Initial(entry[INITIAL], None if axis == NO_ROWS else int(axis))
        for entry in argument_attributes(function)
        if entry.get("kv.role") == STATE and INITIAL in entry
        for axis in (entry[INITIAL_AXIS],)
    }


def carry(function: ir.Operation, active: ir.Value) -> States:
    """Loads what a decode function carries beside its caches, and stores it for the rows that are active.

    Their arguments are left without a use, and so is the function's own result of each.
    """
    names = [entry.get("kv.name") for entry in result_attributes(function)]
    returned, block = terminator(function), body(function)
    head = ir.InsertionPoint(block.operations[0].operation)
    states: States = {}
    for argument, entry in zip(block.arguments, argument_attributes(function), strict=False):
        if entry.get("kv.role") != STATE:
            continue
        name = entry["kv.name"]
        value = returned.operands[names.index(name)]
        producer = owner(value)
        location = function.location if producer is None else producer.location
        states[name] = argument.type
        held = StateLoadOp(ir.StringAttr.get(name), argument.type, loc=function.location, ip=head).value
        argument.replace_all_uses_with(held)
        last = ir.InsertionPoint(returned)
        after = returned.operands[names.index(name)]
        written = WriteRowsOp(held, after, active, argument.type, loc=location, ip=last).written
        StateStoreOp(written, ir.StringAttr.get(name), loc=location, ip=last)
    return states


def add_reset(module: ir.Operation, states: States, initial: Mapping[str, Initial]) -> None:
    """``reset(row)``: every state of a row is what it starts with again."""
    location = module.location
    with location, ir.InsertionPoint(module.regions[0].blocks[0]):
        scalar = vtensor([], "si64")
        kind = ir.FunctionType.get([scalar], [])
        function = ir.Operation.create(
            "func.func",
            attributes={"sym_name": ir.StringAttr.get("reset"), "function_type": ir.TypeAttr.get(kind)},
            regions=1,
        )
        block = function.regions[0].blocks.append(scalar, arg_locs=[location])
    with location, ir.InsertionPoint(block):
        returned = ir.Operation.create("func.return")
    builder = TorchBuilder(returned, location)
    for state, type_ in states.items():
        ip = ir.InsertionPoint(returned)
        value = StateLoadOp(ir.StringAttr.get(state), type_, loc=location, ip=ip).value
        shape = [1, *shape_of(type_)[1:]]
        if state in initial:
            row = _first_value(initial[state], type_, builder, returned)
        else:
            row = builder.zeros(shape, element_of(type_))
        written = WriteRowOp(value, row, block.arguments[0], type_, loc=location, ip=ir.InsertionPoint(returned))
        StateStoreOp(written.written, ir.StringAttr.get(state), loc=location, ip=ir.InsertionPoint(returned))
    set_signature(function, [{"kv.name": "row", "kv.role": "row"}], [])


def _first_value(initial: Initial, type_: ir.Type, builder: TorchBuilder, before: ir.Operation) -> ir.Value:
    """What a row of a state [B, ..] starts with, [1, ..]."""
    rows, *own = shape_of(type_)
    axis = initial.row_axis
    shape = own if axis is None else [*own[:axis], rows, *own[axis:]]
    weight = ParameterOp(
        ir.StringAttr.get(initial.weight),
        vtensor(shape, element_of(type_)),
        loc=before.location,
        ip=ir.InsertionPoint(before),
    ).value
    if axis is None:
        return builder.view(weight, [1, *own])
    first = builder.slice(weight, axis, 0, 1)
    return builder.permute(first, [axis, *(i for i in range(len(shape)) if i != axis)])
