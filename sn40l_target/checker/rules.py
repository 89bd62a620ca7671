"""The rules of a plan, one by one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from math import prod

from torch_mlir import ir

from snapcc.compiler.dialect.kv import string

from ..machine import SHARED
from ..schema import Section, Tensor
from .function import Function, where
from .program import aliases, bytes_of, maker, overwrites, state_kind, state_name


def check_rules(f: Function) -> None:
    """Reports every rule that a function's part of the plan breaks."""
    _check_kinds_and_sizes(f)
    _check_lifetimes(f)
    _check_sections(f)
    if not any(v.rule == "section" for v in f.found):
        # the rest counts in sections
        _check_buffers(f)
        _check_streams(f)
        _check_overlaps(f)
        _check_prefetches(f)


def _check_kinds_and_sizes(f: Function) -> None:
    first: dict[str, ir.Value] = {}
    sizes: dict[str, int] = defaultdict(int)
    for value, t in f.where.items():
        op = maker(value)
        if op is not None and aliases(op):
            continue
        first.setdefault(t.name, value)
        sizes[t.name] = max(sizes[t.name], bytes_of(value))
        if op is not None and op.name == "kv.parameter" and string(op, "parameter") != t.name:
            f.report("placed", t.name, f"holds the weight {string(op, 'parameter')!r}")
    for op in f.ops:
        if op.name == "kv.state_store":
            sizes[state_name(op)] = max(sizes[state_name(op)], bytes_of(op.operands[0]))
    for t in f.tensors:
        if t.kind == "scratch":
            _check_scratch(f, t)
            continue
        if t.role == "whole" and (t.bytes, t.part) != (sizes[t.name], sizes[t.name]):
            f.report("size", t.name, f"has {t.bytes} bytes in the plan and {sizes[t.name]} in the program")
        expected = _kind(f, t, first.get(t.name))
        if t.kind != expected:
            f.report("kind", t.name, f"is a {t.kind} in the plan and a {expected} in the program")


def _check_scratch(f: Function, t: Tensor) -> None:
    needed = f.scratch.get(t.name, 0)
    if t.bytes < needed:
        f.report("size", t.name, f"has {t.bytes} bytes, and its op needs at least {needed}")


def _kind(f: Function, t: Tensor, first: ir.Value | None) -> str:
    if first is None:
        first = next(o.operands[0] for o in f.ops if o.name == "kv.state_store" and state_name(o) == t.name)
        return state_kind(ir.RankedTensorType(first.type))
    op, type_ = maker(first), ir.RankedTensorType(first.type)
    if op is not None and op.name == "kv.parameter":
        return "weight"
    if op is not None and op.name == "kv.state_load" and state_name(op) == t.name:
        return state_kind(type_)
    if op is not None and op.name == "arith.constant":
        return "constant"
    return "index" if isinstance(type_.element_type, (ir.IntegerType, ir.IndexType)) else "activation"


def _check_lifetimes(f: Function) -> None:
    uses: dict[str, list[int]] = defaultdict(list)
    for value, t in f.where.items():
        if f.made[value] < 0:
            uses[t.name].append(0)
    for position in range(len(f.ops)):
        for t in f.touched(position):
            uses[t.name].append(position)
    for value, t in f.where.items():
        if not uses[t.name]:
            uses[t.name].append(f.made[value])
    sections = {s.name: set(s.ops) for s in f.sections}
    for name, places in f.places.items():
        first, last, steps = min(t.first_use for t in places), max(t.last_use for t in places), uses[name]
        lost = [s for s in steps if not any(t.first_use <= s <= t.last_use for t in places)]
        if steps and ((first, last) != (steps[0], steps[-1]) or lost):
            f.report(
                "lifetime",
                name,
                f"lives in steps {first} to {last}, and in the program {steps[0]} to {steps[-1]}; "
                f"it has no place at the steps {lost}",
            )
    for t in f.tensors:
        steps = uses[t.name]
        if t.section is not None and not sections.get(t.section, set()) & set(steps):
            f.report("section", t.name, f"belongs to section {t.section}, none of whose ops uses it")


def _check_sections(f: Function) -> None:
    seen: set[int] = set()
    limit = int(f.plan.machine.compute_units.value)
    for s in f.sections:
        if not s.ops or (seen and s.ops[0] < max(seen)):
            f.report("section", s.name, "has no ops, or starts in front of the section before")
        if s.compute_units > limit:
            f.report("units", s.name, f"takes {s.compute_units} compute units, and the machine has {limit}")
        if tuple(stage.op for stage in s.stages) != s.ops:
            f.report("section", s.name, f"has the ops {s.ops} and stages for {[g.op for g in s.stages]}")
        for stage in s.stages:
            inside = [0 < t <= n for t, n in zip(stage.tile, stage.loops, strict=False)]
            if len(stage.tile) != len(stage.loops) or not all(inside):
                f.report("tile", s.name, f"op {stage.op} has tiles {stage.tile} of loops {stage.loops}")
        for position, name in zip(s.ops, s.operations, strict=True):
            if position in seen or position >= len(f.ops) or f.ops[position].name != name:
                f.report("section", s.name, f"holds op {position} ({name}), in another section or not so named")
            seen.add(position)


# what a section has in the nearest tier


def _check_buffers(f: Function) -> None:
    """Each tensor that a section's ops touch stands whole in the nearest tier meanwhile, or has a buffer there."""
    near = f.plan.machine.tiers[0]
    sections = {s.name: s for s in f.sections}
    found: dict[tuple[str | None, str | None], Tensor] = {}
    for b in f.buffers:
        s = sections.get(b.section or "")
        if s is None or b.of not in f.named or b.tier != near.name:
            f.report("buffer", b.name, f"is no buffer in {near.name}, of a tensor, of a section")
        elif b.role != "prefetch":
            found[s.name, b.of] = b
            _check_buffer(f, b, s)
    for s in f.sections:
        for name in dict.fromkeys(t.name for position in s.ops for t in f.touched(position, blank=False)):
            here = [t for t in f.places[name] if t.tier == near.name and _stands(f, t, s)]
            if not here and found.pop((s.name, name), None) is None:
                f.report("buffer", name, f"neither stands in {near.name} nor has a buffer while {s.name} runs")
    for (section, _), b in found.items():
        f.report("buffer", b.name, f"is of a tensor that {section} does not touch, or that stands whole beside it")
    for t in f.tensors:
        if t.role != "whole":
            _check_units(f, t)


def _stands(f: Function, t: Tensor, s: Section) -> bool:
    """Whether a tensor stands at a place during all of a section."""
    return t.kind in SHARED or f.step(t.first_use) <= f.step(s.ops[0]) <= f.step(t.last_use)


def _check_buffer(f: Function, b: Tensor, s: Section) -> None:
    whole = f.named[b.of or ""].bytes
    if (b.first_use, b.last_use) != (s.ops[0], s.ops[-1]):
        f.report("buffer", b.name, f"is there in steps {b.first_use} to {b.last_use}, and {s.name} runs in {s.ops}")
    if b.kind != "scratch" or b.values:
        f.report("buffer", b.name, f"is a {b.kind} of the values {b.values}, and must be scratch without values")
    if b.role == "resident" and (b.part, b.copies) != (whole, 1):
        f.report("buffer", b.name, f"has {b.copies} copies of {b.part} bytes, and the whole tensor has {whole}")
    _check_units(f, b)


def _check_units(f: Function, t: Tensor) -> None:
    """A buffer has banks to itself; a part that is filled while another is read is in other ones."""
    bank = f.plan.machine.tiers[0].bank
    needed = t.copies * -(-t.part // bank) * bank
    if t.bytes % bank or t.offset % bank or t.bytes < needed:
        f.report("units", t.name, f"{where(t)} is not in whole banks of {bank} bytes, or less than {needed}")
    if t.role == "tile" and t.copies < 2:
        f.report("units", t.name, f"has {t.copies} copies, and is filled while it is read")


def _check_streams(f: Function) -> None:
    """A tensor that exists only in parts is made and read by one section, in the order in which it passes."""
    sections = {s.name: s for s in f.sections}
    touching: dict[str, set[int]] = defaultdict(set)
    for position in range(len(f.ops)):
        for t in f.touched(position):
            touching[t.name].add(position)
    values: dict[str, list[ir.Value]] = defaultdict(list)
    for value, t in f.where.items():
        values[t.name].append(value)
    inside = set(f.ops)
    for t in f.tensors:
        section = sections.get(t.section or "")
        if t.role != "whole" and (t.role != "tile" or section is None or not touching[t.name] <= set(section.ops)):
            f.report("stream", t.name, f"is there in parts alone, and used by the ops {sorted(touching[t.name])}")
        elif t.role != "whole" and section is not None:
            for value in values[t.name]:
                _check_stream(f, t, value, section, inside)


def _check_stream(f: Function, t: Tensor, value: ir.Value, section: Section, inside: Collection[ir.Operation]) -> None:
    dimensions = section.streams.get(f.ids[value], ())
    type_ = ir.RankedTensorType(value.type)
    steps = prod(type_.shape[d] for d in dimensions if d < type_.rank)
    # a view may be of so little that it passes within one part
    if t.part * steps < bytes_of(value):
        f.report("stream", t.name, f"has parts of {t.part} bytes, and {f.ids[value]} passes along {dimensions}")
    for use in value.uses:
        op = use.owner.operation
        if op not in inside:
            f.report("stream", t.name, f"is used inside an op, where {f.ids[value]} must be whole")
        elif not aliases(op) and use.operand_number not in overwrites(op).values():
            wrong = _out_of_order(op, use.operand_number, dimensions)
            if wrong:
                f.report("stream", t.name, f"{f.ids[value]} passes along {dimensions}, and '{op.name}' {wrong}")


def _out_of_order(op: ir.Operation, operand: int, dimensions: tuple[int, ...]) -> str:
    """Why an op cannot take an operand part by part; "" where it can."""
    if "indexing_maps" in op.attributes:
        maps = [ir.AffineMapAttr(a).value for a in ir.ArrayAttr(op.attributes["indexing_maps"])]
        walked = list(maps[operand].results)
        made = {str(e) for m in maps[len(op.operands) - len(op.results) :] for e in m.results}
        lost = [d for d in dimensions if str(walked[d]) not in made]
        return f"does not make its result along {lost}" if lost else ""
    if op.name in ("linalg.softmax", "tensor.concat"):
        axis = int(ir.IntegerAttr(op.attributes["dimension" if op.name == "linalg.softmax" else "dim"]).value)
        return f"needs all of dimension {axis}" if axis in dimensions else ""
    passes = op.name in ("tensor.insert_slice", "tensor.pad", "kv.scatter") or op.name.startswith("linalg.")
    return "" if passes else "needs all of it"


# apart from one another


def _check_overlaps(f: Function) -> None:
    """No two tensors share a byte in one section, whichever of its ops use them: they run together."""
    alive: list[Tensor] = list({t.name: t for t in f.plan.tensors if t.kind in SHARED}.values())
    always = len(alive)
    for t in sorted((t for t in (*f.tensors, *f.buffers) if t.kind not in SHARED), key=lambda t: t.first_use):
        alive[always:] = [o for o in alive[always:] if f.step(o.last_use) >= f.step(t.first_use)]
        for o in alive:
            apart = t.tier != o.tier or t.offset >= o.offset + o.bytes or o.offset >= t.offset + t.bytes
            if not apart and t.bytes and o.bytes:
                f.report("overlap", t.name, f"{where(t)}, overlaps {o.name}, {where(o)}")
        alive.append(t)


def _check_prefetches(f: Function) -> None:
    """From where a weight stands, into a buffer that is there from the section in front of its own on."""
    numbers = {s.ops[0]: number for number, s in enumerate(f.sections)}
    buffers = {(b.section, b.of): b for b in f.buffers if b.role == "prefetch"}
    for t in f.plan.transfers:
        if t.kind != "prefetch" or t.function != f.name:
            continue
        source, number = f.named.get(t.tensor), numbers.get(t.step)
        buffer = buffers.pop((None if number is None else f.sections[number].name, t.tensor), None)
        if source is None or source.kind != "weight" or (source.tier, source.offset) != (t.source_tier, t.source):
            f.report("transfer", t.tensor, "a prefetch that is not of a weight from where it stands")
        elif number is None or buffer is None or t.bytes > source.bytes:
            f.report(
                "transfer", t.tensor, f"a prefetch of {t.bytes} bytes for step {t.step}: no such section or buffer"
            )
        elif (buffer.tier, buffer.offset, buffer.bytes) != (t.target_tier, t.target, t.bytes):
            f.report(
                "transfer", t.tensor, f"a prefetch to {t.target_tier} {t.target}, and its buffer is {where(buffer)}"
            )
        elif buffer.first_use > f.sections[max(number - 1, 0)].ops[0] or buffer.last_use < f.sections[number].ops[-1]:
            f.report("transfer", t.tensor, "a prefetch whose buffer is not there during two sections")
    for b in buffers.values():
        f.report("transfer", b.name, "is a buffer that nothing is prefetched to")
