"""The plan of a linalg-phase program for one socket, and the same program annotated with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch_mlir import ir

from .checker import check
from .choice import Chooser, Chosen
from .errors import PlanError
from .graph import Function, Program, read_program
from .machine import SN40L, Machine, MachineError, load_machine
from .placement import Placed, no_room, place_shared, stage_tensors, tensors
from .plan_ops import remove_plan, write_plan
from .schema import Copy, FunctionTime, Plan, Section, SectionTime, Tensor, Transfer
from .stays import PATIENCE


def plan(module: ir.Module | ir.Operation, machine: Machine = SN40L, patience: int = PATIENCE) -> Plan:
    """Plans every function of a linalg-phase module.

    Args:
        module: functions on builtin tensors, as DESIGN's linalg phase has them.
        machine: what they are planned for.
        patience: how long better stays in the nearest tier are looked for where it is short (``stays.keep``).

    Raises:
        ProgramError: the module is not of the linalg phase, or the size of a tensor has no static bound.
        PlacementError: tensors that fit in no tier; the message holds the memory map and the bytes that are lacking.
    """
    program = read_program(module, machine.tiers[0].legal)
    choosers = {name: Chooser(function, machine, patience) for name, function in program.functions.items()}
    chosen = _fastest(program, choosers, machine)
    if chosen is None:
        raise no_room(program, {name: chooser.all() for name, chooser in choosers.items()}, machine, patience)
    near = machine.tiers[0].name
    places: list[Tensor] = []
    transfers: list[Transfer] = []
    schedule: list[SectionTime] = []
    time: list[FunctionTime] = []
    copies: list[Copy] = []
    sections: list[Section] = []
    for name, function in program.functions.items():
        here = chosen[name]
        own = [kernel.section for kernel in here.kernels]
        names = {position: s.name for s in own for position in s.ops}
        for buffer in function.buffers:
            of = _section_of(function, buffer, names)
            places += tensors(function, buffer, here.placed.places.get(buffer, ()), of)
        places += stage_tensors(function, here.kernels, here.placed.stages, near)
        ahead = here.timeline.prefetches()
        places += _ahead(function, own, ahead)
        transfers += [*_transfers(function, here.placed, machine), *ahead]
        schedule += here.timeline.sections()
        time.append(here.timeline.time())
        copies += [
            Copy(function=name, section=names[m.position], source=m.source, target=m.target, bytes=m.bytes)
            for m in function.moves
        ]
        sections += own
    return Plan(
        machine=machine,
        functions=tuple(program.functions),
        tensors=tuple(places),
        sections=tuple(sections),
        copies=tuple(copies),
        transfers=tuple(transfers),
        schedule=tuple(schedule),
        time=tuple(time),
        cuts=tuple(cut for each in chosen.values() for cut in each.cuts),
    )


def _fastest(program: Program, choosers: Mapping[str, Chooser], machine: Machine) -> Mapping[str, Chosen] | None:
    """The choices of all functions; of several ways to place what they share, those with the least time in all."""
    *ordered, anywhere = place_shared(program, machine, {tier.name: tier.bytes for tier in machine.tiers})
    for tried in (ordered, [anywhere]):
        ways = []
        for shared in tried:
            own = {n: None if shared.left else chooser.choose(shared) for n, chooser in choosers.items()}
            way = {n: chosen for n, chosen in own.items() if chosen is not None}
            if len(way) == len(choosers):
                ways.append(way)
        if ways:
            break
    # of equals the last, which has the most in near tiers
    return min(reversed(ways), key=lambda way: sum(c.timeline.seconds() for c in way.values()), default=None)


def checked_plan(module: ir.Module | ir.Operation, machine: Machine = SN40L) -> Plan:
    """``plan``, checked.

    Raises:
        PlanError: the plan breaks a rule of ``checker``'s.
        ProgramError, PlacementError: see ``plan``.
    """
    made = plan(module, machine)
    if found := check(module, made):
        raise PlanError(
            f"the plan breaks {len(found)} of its own rules, first {found[0].rule} of {found[0].tensor} in "
            f"{found[0].function}: {found[0].message}; this is a fault of snapcc's, please report it"
        )
    return made


def _transfers(function: Function, placed: Placed, machine: Machine) -> list[Transfer]:
    """The moves that are no part of an op, in the order of their steps."""
    found = []
    near = machine.tiers[0].name
    for name, moves in placed.moves.items():
        home = next(p for p in placed.places[name] if p.tier != near)
        for move in moves:
            if move.kind == "read" or move.kind == "write":
                continue
            edge = "first" if move.kind == "fill" else "last"
            stay = next(p for p in placed.places[name] if p.tier == near and getattr(p, edge) == move.step)
            source, target = (home, stay) if move.kind == "fill" else (stay, home)
            found.append(
                Transfer(
                    function=function.name,
                    kind=move.kind,
                    tensor=name,
                    bytes=function.buffers[name].bytes,
                    step=move.step,
                    source_tier=source.tier,
                    source=source.offset,
                    target_tier=target.tier,
                    target=target.offset,
                )
            )
    return sorted(found, key=lambda t: (t.step, t.kind == "spill", t.tensor))


def _ahead(function: Function, sections: Sequence[Section], prefetches: Sequence[Transfer]) -> list[Tensor]:
    """The buffers of prefetched weights: from when the section in front starts until their own ends."""
    numbers = {section.ops[0]: number for number, section in enumerate(sections)}
    found = []
    for transfer in prefetches:
        number = numbers[transfer.step]
        found.append(
            Tensor(
                function=function.name,
                name=f"{sections[number].name}/{transfer.tensor}.ahead",
                kind="scratch",
                bytes=transfer.bytes,
                tier=transfer.target_tier,
                offset=transfer.target,
                first_use=sections[max(number - 1, 0)].ops[0],
                last_use=sections[number].ops[-1],
                section=sections[number].name,
                location=function.buffers[transfer.tensor].location,
                values=(),
                role="prefetch",
                of=transfer.tensor,
                part=transfer.bytes,
            )
        )
    return found


def _section_of(function: Function, buffer: str, sections: dict[int, str]) -> str | None:
    """The first section that writes or reads a buffer."""
    return next((sections[u] for u in function.lifetimes[buffer].uses if u in sections), None)


TENSOR, TIER, OFFSET, BYTES = "sn40l.tensor", "sn40l.tier", "sn40l.offset", "sn40l.bytes"
"""Discardable attributes of an op, one entry per result; of an argument, a single value.

``sn40l.tensor`` names the plan's tensor, "" for a result that is no tensor or has no place (a blank one that is never
read); ``sn40l.tier`` its tier, ``sn40l.offset`` and ``sn40l.bytes`` its range in bytes (-1 and 0 without a place).
"""

_PREFIX = "sn40l."

SECTION, SCRATCH = "sn40l.section", "sn40l.scratch"
"""``sn40l.section`` names an op's section; ``sn40l.scratch`` is a dictionary of the same four entries for what the op
needs inside itself."""


def annotate(module: ir.Module | ir.Operation, plan: Plan) -> None:
    """Writes a plan of a module into the module: where tensors stand as attributes, all else as an ``sn40l.plan``.

    Raises:
        ValueError: the plan is not one of this module.
    """
    root = module.operation
    with root.context, ir.Location.unknown():
        found: dict[str, dict[str, list[Tensor]]] = {name: {} for name in plan.functions}
        for planned in plan.tensors:
            for value in () if planned.of else planned.values or (planned.name,):
                found[planned.function].setdefault(value, []).append(planned)
        sections = {(s.function, position): s.name for s in plan.sections for position in s.ops}
        for op in root.regions[0].blocks[0].operations:
            if op.operation.name == "func.func" and op.operation.regions[0].blocks:
                name = str(ir.StringAttr(op.attributes["sym_name"]).value)
                if name not in found:
                    raise ValueError(f"the plan is not of this module: it has no function {name!r}")
                _annotate_function(op.operation, name, found[name], sections)
        write_plan(root, plan)


def erase(module: ir.Module | ir.Operation) -> None:
    """Takes a plan out of a module that ``annotate`` wrote it into."""

    def visit(op: ir.Operation) -> ir.WalkResult:
        for name in [name for name in op.attributes if name.startswith(_PREFIX)]:
            del op.attributes[name]
        if "arg_attrs" in op.attributes:
            kept = [
                ir.DictAttr.get(
                    {entry.name: entry.attr for entry in ir.DictAttr(a) if not entry.name.startswith(_PREFIX)}
                )
                for a in ir.ArrayAttr(op.attributes["arg_attrs"])
            ]
            op.attributes["arg_attrs"] = ir.ArrayAttr.get(kept)
        return ir.WalkResult.ADVANCE

    with module.operation.context:
        remove_plan(module.operation)
        module.operation.walk(visit)


def _annotate_function(
    function: ir.Operation, name: str, values: dict[str, list[Tensor]], sections: dict[tuple[str, int], str]
) -> None:
    block = function.regions[0].blocks[0]
    _annotate_arguments(function, [_at(values, f"{name}:arg{i}", 0) for i in range(len(block.arguments))])
    for position, opview in enumerate(block.operations):
        op = opview.operation
        node = f"{name}:{position}"
        ids = [node] if len(op.results) == 1 else [f"{node}#{i}" for i in range(len(op.results))]
        places = [_at(values, i, position) for i in ids]
        if (name, position) in sections:
            op.attributes[SECTION] = ir.StringAttr.get(sections[name, position])
        if any(places):
            op.attributes[TENSOR] = ir.ArrayAttr.get([ir.StringAttr.get(p.name if p else "") for p in places])
            op.attributes[TIER] = ir.ArrayAttr.get([ir.StringAttr.get(p.tier if p else "") for p in places])
            op.attributes[OFFSET] = ir.DenseI64ArrayAttr.get([p.offset if p else -1 for p in places])
            op.attributes[BYTES] = ir.DenseI64ArrayAttr.get([p.bytes if p else 0 for p in places])
        scratch = _at(values, f"{node}.scratch", position)
        if scratch is not None:
            op.attributes[SCRATCH] = ir.DictAttr.get(_entries(scratch))


def _at(values: dict[str, list[Tensor]], value: str, position: int) -> Tensor | None:
    """Where a value stands when the op at a position has run; its first place where it stands nowhere by then."""
    places = values.get(value, [])
    here = [p for p in places if p.shared or p.first_use <= position <= p.last_use]
    return next(iter(here or places), None)


def _annotate_arguments(function: ir.Operation, places: list[Tensor | None]) -> None:
    given: list[dict[str, ir.Attribute]] = [{} for _ in places]
    if "arg_attrs" in function.attributes:
        given = [{named.name: named.attr for named in ir.DictAttr(a)} for a in function.attributes["arg_attrs"]]
    for attributes, planned in zip(given, places, strict=True):
        attributes.update(_entries(planned) if planned else {})
    function.attributes["arg_attrs"] = ir.ArrayAttr.get([ir.DictAttr.get(attributes) for attributes in given])


def _entries(planned: Tensor) -> dict[str, ir.Attribute]:
    return {
        TENSOR: ir.StringAttr.get(planned.name),
        TIER: ir.StringAttr.get(planned.tier),
        OFFSET: _number(planned.offset),
        BYTES: _number(planned.bytes),
    }


def _number(value: int) -> ir.Attribute:
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)


def capacities(text: str) -> dict[str, int]:
    """Capacities in bytes by tier, from ``TIER:BYTES,TIER:BYTES``.

    Raises:
        MachineError: a capacity that is not a whole number.
    """
    found = {}
    for part in filter(None, text.split(",")):
        tier, _, number = part.partition(":")
        if not number.isdecimal():
            raise MachineError(f"a capacity is given as TIER:BYTES, got {part!r}")
        found[tier] = int(number)
    return found


@dataclass(frozen=True)
class Sn40lPlan:
    """Plans a linalg-phase module for a socket of a machine and writes the plan into it as attributes.

    ``machine`` is the name of a machine that comes with snapcc or a TOML file, ``capacity`` replaces the capacities of
    tiers: ``SRAM:1048576,HBM:4194304``, in bytes. The functions get attributes alone; an ``sn40l.plan`` comes behind
    them.

    Before::

        %3 = linalg.matmul ins(...) outs(...)

    After::

        %3 = linalg.matmul {sn40l.bytes = array<i64: 64>, sn40l.offset = array<i64: 128>, sn40l.section = "decode:w",
                            sn40l.tensor = ["decode:7"], sn40l.tier = ["SRAM"]} ins(...) outs(...)
        "sn40l.plan"() ({
          "sn40l.tier"() {tier = "SRAM", ...}
          "sn40l.section"() ({
            "sn40l.buffer"() {tensor = "w", role = "tile", part = 256, copies = 2, offset = 0, bytes = 524288}
            "sn40l.stage"() {position = 7, loops = [2, 8, 8], tile = [2, 8, 8], compute_units = 1039, ...}
          }) {function = "decode", section = "decode:w", starts = "the function starts"}
        }) {machine = "SN40L", compute_units = 1040}

    See tests/lit/sn40l/plan.mlir.
    """

    name: ClassVar[str] = "sn40l-plan"

    machine: str = "sn40l"
    capacity: str = ""

    def run(self, module: ir.Operation) -> None:
        """Annotates a ``builtin.module``.

        Raises:
            MachineError: an unknown machine or tier, or a machine file that is wrong.
            ProgramError, PlacementError, PlanError: see ``checked_plan``.
        """
        machine = load_machine(self.machine).with_capacities(capacities(self.capacity))
        annotate(module, checked_plan(module, machine))
