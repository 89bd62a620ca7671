"""``report.html``: the plan for people who look rather than read; one file that opens from disk."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from typing import Any

from .occupancy import occupancy
from .schema import Plan, Tensor

_BIGGEST, _CUTS = 30, 12


@dataclass(frozen=True)
class Before:
    """A cache before and after: its name, its bytes at the model's full length, and those of its slots."""

    name: str
    full: int
    slots: int


def report_html(plan: Plan, title: str, caches: Sequence[Before] = ()) -> str:
    """The page.

    Args:
        plan: what is shown.
        title: what was planned.
        caches: for the comparison with growing caches; left out where there are none.
    """
    page = (files("snapcc.sn40l_target") / "report.html").read_text()
    # "</" would end the script that the data stand in
    data = json.dumps(_content(plan, title, caches), separators=(",", ":")).replace("</", "<\\/")
    return page.replace("/*DATA*/null", data)


def _content(plan: Plan, title: str, caches: Sequence[Before]) -> dict[str, Any]:
    machine = plan.machine
    return {
        "title": title,
        "machine": {
            "name": machine.name,
            "compute_units": machine.compute_units.value,
            "tiers": [
                {"name": t.name, "capacity": t.bytes, "bandwidth": t.bandwidth.value, "units": t.units}
                for t in machine.tiers
            ],
            "peak": {element: figure.value for element, figure in machine.peak.items()},
        },
        "caches": [asdict(cache) for cache in caches],
        "functions": [_function(plan, name) for name in plan.functions],
    }


def _function(plan: Plan, name: str) -> dict[str, Any]:
    time = next(t for t in plan.time if t.function == name)
    sections = {s.name: s for s in plan.sections if s.function == name}
    bandwidths = {t.name: t.bandwidth.value for t in plan.machine.tiers}
    shown = []
    for at in (t for t in plan.schedule if t.function == name):
        section = sections[at.section]
        beside = plan.beside(section)
        shown.append(
            {
                "name": at.section,
                "start": at.start,
                "end": at.end,
                "launch": at.launch,
                "transfers": at.transfers,
                "bound": at.bound,
                "parts": at.parts,
                "work": section.work,
                # what comes from and goes to the tiers behind the nearest: all of it passes through the first of them
                "far": sum(at.parts[tier] * bandwidth for tier, bandwidth in list(bandwidths.items())[1:2]),
                "compute_units": section.compute_units,
                "memory_units": plan.memory_units(section),
                "near": sum(t.bytes for t in beside if not t.shared),
                "location": section.location,
                "starts": section.starts,
                "stages": [
                    {
                        "op": section.operations[section.ops.index(stage.op)],
                        "loops": stage.loops,
                        "tile": stage.tile,
                        "work": stage.work,
                        "units": stage.compute_units,
                    }
                    for stage in section.stages
                ],
                "buffers": [
                    {"tensor": t.of or t.name, "role": t.role, "bytes": t.part, "copies": t.copies, "offset": t.offset}
                    for t in sorted(beside, key=lambda t: t.offset)
                ],
            }
        )
    alike: dict[tuple[str, str, int, str], list[Tensor]] = defaultdict(list)
    for tensor in (t for t in plan.tensors if t.function == name and t.of is None):
        # layers repeat them: one row for names that differ in numbers alone
        alike[re.sub(r"\d+", "", tensor.name), tensor.kind, tensor.bytes, tensor.tier].append(tensor)
    biggest = sorted(alike.values(), key=lambda each: (-each[0].bytes, each[0].name))[:_BIGGEST]
    return {
        "name": name,
        "time": time.model_dump() | {"tokens_per_second": time.tokens_per_second},
        "sections": shown,
        "cuts": [
            cut.model_dump(exclude={"function"})
            for cut in sorted(
                (c for c in plan.cuts if c.function == name), key=lambda c: (not c.chosen, c.seconds or c.bound)
            )[:_CUTS]
        ],
        "occupancy": [
            {"section": step.section, "start": step.start, "end": step.end, "bytes": step.bytes}
            for step in occupancy(plan, name)
        ],
        "tensors": [
            each[0].model_dump(include={"name", "kind", "bytes", "tier", "offset", "first_use", "last_use", "section"})
            | {"alike": len(each)}
            for each in biggest
        ],
    }
