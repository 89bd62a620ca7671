"""The plan as ops of the sn40l dialect, at the end of the module that it is of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch_mlir import ir

from snapcc.compiler.dialect.kv import index_attribute
from snapcc.compiler.dialect.sn40l import BufferOp, PlanOp, SectionOp, StageOp, TierOp, TransferOp

from .schema import Plan, Transfer

_Value = str | int | Sequence[int]


def write_plan(module: ir.Operation, plan: Plan) -> None:
    """Puts an ``sn40l.plan`` behind the functions of a module: tiers, then each function's schedule in order."""
    with module.context, ir.Location.unknown():
        whole = _create(
            PlanOp.OPERATION_NAME,
            {"machine": plan.machine.name, "compute_units": int(plan.machine.compute_units.value)},
            ir.InsertionPoint(module.regions[0].blocks[0]),
            regions=1,
        )
        inside = ir.InsertionPoint(whole.regions[0].blocks.append())
        for tier in plan.machine.tiers:
            sizes = {"capacity": tier.bytes, "granularity": int(tier.granularity.value), "unit": tier.unit_bytes}
            _create(TierOp.OPERATION_NAME, {"tier": tier.name, **sizes}, inside)
        for function in plan.functions:
            _schedule(plan, function, inside)


def is_planned(module: ir.Operation) -> bool:
    """Whether a module holds a plan of itself."""
    return any(op.operation.name == PlanOp.OPERATION_NAME for op in module.regions[0].blocks[0].operations)


def remove_plan(module: ir.Operation) -> None:
    """Takes the ``sn40l.plan`` out of a module again."""
    for op in list(module.regions[0].blocks[0].operations):
        if op.operation.name == PlanOp.OPERATION_NAME:
            op.operation.erase()


def _schedule(plan: Plan, function: str, inside: ir.InsertionPoint) -> None:
    """A function's sections and transfers in the order in which the machine runs them."""
    own = [t for t in plan.transfers if t.function == function]
    moves = sorted((t for t in own if t.kind != "prefetch"), key=_order)
    ahead: dict[int, list[Transfer]] = {}
    for transfer in own:
        if transfer.kind == "prefetch":
            ahead.setdefault(transfer.step, []).append(transfer)
    sections = [s for s in plan.sections if s.function == function]
    for number, section in enumerate(sections):
        if number == 0:
            # before the call, or while the one before it ends
            _transfers(ahead.get(section.ops[0], []), inside)
        while moves and moves[0].step < section.ops[0]:
            _transfers([moves.pop(0)], inside)
        fields = {"function": section.function, "section": section.name, "starts": section.starts}
        op = _create(SectionOp.OPERATION_NAME, fields, inside, regions=1)
        body = ir.InsertionPoint(op.regions[0].blocks.append())
        for buffer in (t for t in plan.tensors if t.section == section.name and t.role in ("tile", "resident")):
            held: dict[str, _Value] = {"tensor": buffer.of or buffer.name, "role": buffer.role, "part": buffer.part}
            place = {"copies": buffer.copies, "offset": buffer.offset, "bytes": buffer.bytes}
            _create(BufferOp.OPERATION_NAME, {**held, **place}, body)
        for following in sections[number + 1 : number + 2]:
            _transfers(ahead.get(following.ops[0], []), body)
        for stage in section.stages:
            while moves and _order(moves[0]) < (stage.op, 1):
                _transfers([moves.pop(0)], body)
            counts = {"position": stage.op, "work": stage.work, "compute_units": stage.compute_units}
            _create(StageOp.OPERATION_NAME, {**counts, "loops": stage.loops, "tile": stage.tile}, body)
        while moves and moves[0].step <= section.ops[-1]:
            _transfers([moves.pop(0)], body)
    _transfers(moves, inside)


def _order(transfer: Transfer) -> tuple[int, int]:
    """A fill goes in front of the op that it is for, a spill behind it."""
    return transfer.step, 0 if transfer.kind == "fill" else 2


def _transfers(transfers: Sequence[Transfer], place: ir.InsertionPoint) -> None:
    for transfer in transfers:
        fields = transfer.model_dump()
        renamed = {"move": fields.pop("kind"), "position": fields.pop("step")}
        _create(TransferOp.OPERATION_NAME, {**renamed, **fields}, place)


def _create(name: str, fields: Mapping[str, _Value], place: ir.InsertionPoint, regions: int = 0) -> ir.Operation:
    attributes = {key: _attribute(value) for key, value in fields.items()}
    return ir.Operation.create(name, attributes=attributes, regions=regions, ip=place)


def _attribute(value: _Value) -> ir.Attribute:
    if isinstance(value, str):
        return ir.StringAttr.get(value)
    return index_attribute(value) if isinstance(value, int) else ir.ArrayAttr.get([index_attribute(n) for n in value])
