"""The plan's schedule as a Chrome trace, for chrome://tracing and Perfetto.

Source: Trace Event Format, Google, "JSON Object Format", phases X (complete), C (counter) and M (metadata).
"""

from __future__ import annotations

import json
from typing import Any

from .occupancy import occupancy
from .schema import Plan

_MICRO = 1e6


def trace_json(plan: Plan) -> str:
    """A process per function: its sections and what is moved for them, and a counter of each tier's bytes by kind."""
    events: list[dict[str, Any]] = []
    sections = {(s.function, s.name): s for s in plan.sections}
    for pid, function in enumerate(plan.functions):
        events.append({"ph": "M", "pid": pid, "name": "process_name", "args": {"name": function}})
        for tid, name in enumerate(("sections", "transfers")):
            events.append({"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": name}})
        for time in (t for t in plan.schedule if t.function == function):
            section = sections[function, time.section]
            events.append(
                {
                    "ph": "X",
                    "pid": pid,
                    "tid": 0,
                    "name": time.section,
                    "cat": time.bound,
                    "ts": time.start * _MICRO,
                    "dur": (time.end - time.start) * _MICRO,
                    "args": {
                        "bound": time.bound,
                        "parts_us": {part: seconds * _MICRO for part, seconds in time.parts.items()},
                        "launch_us": time.launch * _MICRO,
                        "ops": len(section.ops),
                        "work": section.work,
                        "compute_units": section.compute_units,
                        "memory_units": plan.memory_units(section),
                        "location": section.location,
                    },
                }
            )
            if time.transfers:
                events.append(
                    {
                        "ph": "X",
                        "pid": pid,
                        "tid": 1,
                        "name": f"fills and spills before {time.section}",
                        "ts": (time.start - time.transfers) * _MICRO,
                        "dur": time.transfers * _MICRO,
                    }
                )
        for step in occupancy(plan, function):
            for tier, kinds in step.bytes.items():
                counter = {"ph": "C", "pid": pid, "name": f"{tier} bytes", "ts": step.start * _MICRO}
                events.append({**counter, "args": dict(kinds)})
    return json.dumps({"displayTimeUnit": "ns", "otherData": {"machine": plan.machine.name}, "traceEvents": events})
