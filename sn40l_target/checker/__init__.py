"""Is a plan right? Found out from the program and the plan alone, sharing no code with the planner.

Two ways that do not know of one another. First the rules, one by one: every tensor placed once, with its size, kind
and lifetime as the program has them, in a tier that takes its kind, within its capacity, aligned, apart from every
other tensor that is alive at the same time. Then the program is run on the planned memory with names for contents:
each op's result is written to its place and erases what it overlaps, and each op must still find its operands.
That second run is what shows an update in place to be safe or not.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

from torch_mlir import ir

from ..machine import SHARED, Tier
from ..schema import Plan, Tensor
from .function import Function, Violation, where
from .memory import Run
from .rules import check_rules

__all__ = ["Violation", "check"]


def check(module: ir.Module | ir.Operation, plan: Plan) -> list[Violation]:
    """Everything that is wrong with a plan of a linalg-phase module; nothing if it is right.

    Rules: ``function`` (planned functions are the program's), ``placed`` (every tensor that is read once, with one
    place or with several that differ in tier or time, and nothing else), ``size``, ``kind``, ``tier`` (it exists and
    takes the kind), ``capacity``, ``aligned`` (granularity and unit), ``lifetime`` (first and last use as in the
    program, and a place at each use), ``shared`` (one place in all functions), ``section`` (it exists and holds the op;
    sections follow one another), ``units`` (a section has no more compute units than the machine, a buffer banks
    to itself that hold its copies), ``buffer`` (while a section runs, what its ops touch stands whole in the nearest
    tier or has a buffer there), ``stream`` (a tensor that exists only in parts is made and read by one section, in the
    order in which it passes), ``tile`` (within its loops), ``copies`` (what is moved for want of an update in place),
    ``overlap`` (in space, of tensors alive in the same section), ``transfer`` (a fill or a spill goes from one place of
    its tensor to another, and moves all of its bytes; a prefetch goes to its buffer), ``contents`` (an op or a transfer
    finds what it reads, a call ends with the weights untouched and every state holding what was stored).
    """
    functions = {
        str(ir.StringAttr(op.attributes["sym_name"]).value): op.operation
        for op in module.operation.regions[0].blocks[0].operations
        if op.operation.name == "func.func" and op.operation.regions[0].blocks
    }
    found = [
        Violation("function", name, name, "is in the plan or in the program, but not in both")
        for name in sorted(set(functions) ^ set(plan.functions))
    ]
    by_function: dict[str, list[Tensor]] = defaultdict(list)
    for tensor in plan.tensors:
        by_function[tensor.function].append(tensor)
    found += _places(plan) + _shared(plan)
    for name, function in functions.items():
        if name in plan.functions:
            matched = Function(name, function, by_function[name], plan)
            if not matched.found:
                # the other rules ask about the tensors of values, and some have none
                check_rules(matched)
                Run(matched).check()
            found += matched.found
    return found


# -- rules that need no program ------------------------------------------------------------------------------------


def _places(plan: Plan) -> list[Violation]:
    tiers: dict[str, Tier] = {tier.name: tier for tier in plan.machine.tiers}
    found = []
    for t in plan.tensors:
        tier = tiers.get(t.tier)
        if tier is None:
            found.append(_of(t, "tier", f"stands in {t.tier}, which the machine does not have"))
            continue
        if t.kind not in tier.kinds:
            found.append(_of(t, "tier", f"is of kind {t.kind}, which may not live in {t.tier}"))
        if t.offset < 0 or t.offset + t.bytes > tier.capacity.value:
            found.append(_of(t, "capacity", f"is {where(t)}, and the tier has {tier.capacity.value} bytes"))
        if t.offset % tier.granularity.value:
            found.append(_of(t, "aligned", f"starts at {t.offset}, not at a multiple of {tier.granularity.value}"))
        if tier.unit is not None and t.bytes:
            unit = tier.unit.value
            spans = (t.offset + t.bytes - 1) // unit - t.offset // unit
            if spans and (t.bytes <= unit or t.offset % unit):
                found.append(_of(t, "aligned", f"crosses a unit of {unit} bytes at offset {t.offset}"))
    return found


def _shared(plan: Plan) -> list[Violation]:
    found = []
    first: dict[str, Tensor] = {}
    for t in plan.tensors:
        if t.kind in SHARED:
            o = first.setdefault(t.name, t)
            if (o.kind, o.bytes, o.tier, o.offset) != (t.kind, t.bytes, t.tier, t.offset):
                found.append(_of(t, "shared", f"is {where(t)} here and {where(o)} in {o.function}"))
    everywhere = sorted((t for t in first.values() if t.bytes), key=lambda t: (t.tier, t.offset))
    for a, b in pairwise(everywhere):
        if a.tier == b.tier and a.offset + a.bytes > b.offset:
            found.append(_of(b, "overlap", f"{where(b)} overlaps {a.name} {where(a)}; both live always"))
    return found


def _of(t: Tensor, rule: str, message: str) -> Violation:
    return Violation(rule, t.function, t.name, message)
