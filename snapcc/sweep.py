"""``snapcc plan``: plans of one model at many slots, rows, prompt lengths, policies and machines, without IREE.

The model is loaded and exported once; each point specialises it, goes to the linalg phase and is planned. Points that
differ in the machine alone share the linalg phase.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .arguments import UsageError
from .build import load
from .compilation import Choice, Lowering, choose
from .options import Options
from .progress import Progress

if TYPE_CHECKING:
    from snapcc.frontend import Decoder
    from snapcc.sn40l_target.machine import Machine
    from snapcc.sn40l_target.schema import Plan, Tensor

KEYS = ("slots", "batch", "prompt", "kv", "machine")

Sweep = Mapping[str, Sequence[str]]
"""The values of each key, in the order in which they were given."""


def parse_sweep(texts: Sequence[str]) -> dict[str, list[str]]:
    """What ``--sweep slots=512,1024,batch=1,4`` says: a key keeps its values until the next key.

    Raises:
        UsageError: no such key, a value without a key, a key twice or without a value, a number that is none.
    """
    found: dict[str, list[str]] = {}
    key = ""
    for part in ",".join(texts).split(","):
        name, equals, value = part.strip().rpartition("=")
        if equals:
            key = name
            if key not in KEYS:
                raise UsageError(f"--sweep takes {', '.join(KEYS)}, got {name!r}")
            if key in found:
                raise UsageError(f"--sweep has {key} twice; give its values once, separated by commas")
            found[key] = []
        if not key or not value:
            raise UsageError(f"--sweep is KEY=VALUE,VALUE,KEY=VALUE, as slots=512,1024,batch=1,4; got {part!r}")
        if key in ("slots", "batch", "prompt") and not (value.isdecimal() and int(value)):
            raise UsageError(f"--sweep {key} takes whole numbers of at least 1, got {value!r}")
        found[key].append(value)
    return found


def sweep(model: Path, values: Sweep, options: Options, progress: Progress) -> list[dict[str, Any]]:
    """The plan of each point, in words of a table: what it takes and how long a step and a prompt last.

    Args:
        model: a program of torch.export.save, or a Hugging Face folder.
        values: the points, all combinations.
        options: everything else.
        progress: told of each point.

    Returns:
        a row for each point; one that fits nowhere, or that the model cannot take, has ``error`` and no figures.

    Raises:
        FrontendError, MachineError: a model or a machine that is not understood.
    """
    from snapcc.compiler.diagnostics import Refusal
    from snapcc.sn40l_target.errors import PlacementError
    from snapcc.sn40l_target.machine import load_machine

    machines = {name: load_machine(name) for name in values.get("machine", [options.machine])}
    decoder, _ = load(model, options, progress)
    keys = [key for key in values if key != "machine"]
    points = list(product(*(values[key] for key in keys)))
    rows = []
    for number, chosen in enumerate(points):
        point = dict(zip(keys, chosen, strict=True))
        text = ", ".join(f"{key} {value}" for key, value in point.items()) or "the model"
        with progress.step(f"{number + 1} of {len(points)}: {text}"):
            wanted = _options(options, point)
            try:
                choice = choose(decoder, wanted, Progress(quiet=True))
                plans = _plans(decoder, wanted, choice, machines)
            except (UsageError, Refusal) as error:
                rows += [{**point, "machine": name, "error": str(error)} for name in machines]
                continue
            for name, found in plans.items():
                row = {**point, "machine": name}
                if isinstance(found, PlacementError):
                    said = str(found).partition("\n")[0].removesuffix("; memory map:").removeprefix("error: ")
                    rows.append({**row, "error": said})
                else:
                    rows.append({**row, **figures(found, choice.batch, choice.policy.slots)})
    return rows


def _options(options: Options, point: Mapping[str, str]) -> Options:
    changes: dict[str, Any] = {}
    wishes: dict[str, Any] = {}
    for key, value in point.items():
        if key in ("slots", "kv"):
            wishes[key] = int(value) if key == "slots" else value
        else:
            changes["prompts" if key == "prompt" else key] = (int(value),) if key == "prompt" else int(value)
    return dataclasses.replace(options, wishes=dataclasses.replace(options.wishes, **wishes), **changes)


def _plans(decoder: Decoder, options: Options, choice: Choice, machines: Mapping[str, Machine]) -> dict[str, Any]:
    """The plan for each machine, or the error that there is none."""
    from torch_mlir import ir

    from snapcc.compiler.passes.manager import new_context
    from snapcc.sn40l_target.errors import PlacementError
    from snapcc.sn40l_target.plan import checked_plan

    lowering = Lowering(None, options, Progress(quiet=True))
    for phase in lowering.phases(decoder, choice):
        if phase == "linalg":
            break
    module = ir.Module.parse(lowering.text, context=new_context())
    found: dict[str, Any] = {}
    for name, machine in machines.items():
        try:
            found[name] = checked_plan(module, machine)
        except PlacementError as error:
            found[name] = error
    return found


def figures(plan: Plan, rows: int, slots: int) -> dict[str, Any]:
    """What a plan of so many rows and slots comes to, for a row of the table.

    ``largest_batch``: the rows whose caches fit beside the weights in the first tier that takes caches, at these slots;
    ``largest_context``: the slots, at these rows, where every layer has as many (layers with a window of their own have
    fewer, and leave room for more).
    ``temporaries``: the bytes of decode's tensors of one call, by kind. ``sram``: the most that a section of decode
    holds in the nearest tier at a time, its stage buffers included, prefetched weights not.
    """
    times = {time.function: time for time in plan.time}
    step = times["decode"]
    prefills = [time for time in plan.time if time.function.startswith("prefill_")]
    local = [t for t in plan.tensors if t.function == "decode" and not t.shared and t.of is None]
    temporaries: dict[str, int] = defaultdict(int)
    for tensor in {t.name: t for t in local}.values():
        temporaries[tensor.kind] += tensor.bytes
    shared = {t.name: t for t in plan.tensors if t.shared}.values()
    kept = sum(t.bytes for t in shared if t.kind != "weight")
    caches = sum(t.bytes for t in shared if t.kind == "cache")
    home = plan.machine.home("cache")
    room = home.bytes - sum(t.bytes for t in shared if t.kind == "weight" and t.tier == home.name)
    return {
        "step": step.seconds,
        "step_best": step.best,
        "step_worst": step.worst,
        "tokens_per_second": step.tokens_per_second,
        "prefill": {t.function: t.seconds for t in prefills},
        "prefill_caching": {t.function: t.caching / t.seconds for t in prefills if t.seconds},
        "sram": max(
            sum(t.copies * t.part for t in plan.beside(s) if not t.shared and t.role != "prefetch")
            for s in plan.sections
            if s.function == "decode"
        ),
        "temporaries": dict(sorted(temporaries.items())),
        "moved": sum(t.bytes for t in plan.transfers if t.kind != "prefetch" and t.function == "decode"),
        "shared": {tier.name: _bytes(shared, tier.name) for tier in plan.machine.tiers},
        "caches": kept,
        "largest_batch": max(room, 0) * rows // kept if kept else None,
        "largest_context": max(room - kept + caches, 0) * slots // caches if caches else None,
    }


def _bytes(tensors: Iterable[Tensor], tier: str) -> int:
    return sum(t.bytes for t in tensors if t.tier == tier)


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows for a person, then naive against ring where both are there."""
    keys = [key for key in KEYS if any(key in row for row in rows)]
    heads = [*keys, "step us", "from", "to", "tokens/s", "SRAM bytes", "index bytes", "cache bytes"]
    heads += ["largest batch", "largest context"]
    lines = [heads]
    for row in rows:
        cells = [str(row.get(key, "")) for key in keys]
        if "error" in row:
            lines.append([*cells, row["error"]])
            continue
        times = [f"{row[key] * 1e6:,.1f}" for key in ("step", "step_best", "step_worst")]
        index = row["temporaries"].get("index", 0)
        numbers = [row["tokens_per_second"], row["sram"], index, row["caches"]]
        numbers += [row["largest_batch"] or 0, row["largest_context"] or 0]
        lines.append([*cells, *times, *(f"{number:,.0f}" for number in numbers)])
    whole = [line for line in lines if len(line) == len(heads)]
    widths = [max(len(line[i]) for line in whole) for i in range(len(heads))]
    text = ["  ".join(f"{cell:>{width}}" for cell, width in zip(line, widths, strict=False)) for line in lines]
    return "\n".join([*text, *_against_naive(rows)])


def _against_naive(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """How much more slice and concat take than the ring, where a point was planned with both."""
    found = []
    where = {tuple(r.get(k) for k in KEYS): r for r in rows if "error" not in r}
    for key, naive in where.items():
        ring = where.get(tuple("snapstream" if k == "kv" else v for k, v in zip(KEYS, key, strict=True)))
        if naive.get("kv") != "naive" or ring is None or not ring["sram"]:
            continue
        point = ", ".join(f"{k} {v}" for k, v in zip(KEYS, key, strict=True) if v is not None and k != "kv")
        more = {
            kind: naive["temporaries"].get(kind, 0) - ring["temporaries"].get(kind, 0)
            for kind in sorted({*naive["temporaries"], *ring["temporaries"]})
        }
        found.append(
            f"naive against snapstream ({point}): SRAM {naive['sram']:,} and {ring['sram']:,} bytes, "
            f"{naive['sram'] / ring['sram']:.2f} times; more temporaries: "
            + ", ".join(f"{kind} {bytes_:+,}" for kind, bytes_ in more.items())
        )
    return found


def plot(rows: Sequence[Mapping[str, Any]]) -> str:
    """Tokens per second over slots as SVG, a line for each of the other keys' values, with the figures' ranges."""
    lines: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        if "error" not in row:
            name = ", ".join(f"{key} {row[key]}" for key in KEYS if key in row and key != "slots")
            lines[name].append(row)
    if not lines:
        raise UsageError("no point fits, so that there is nothing to plot")
    slots = sorted({int(row.get("slots", 0)) for line in lines.values() for row in line})
    top = max(_tokens(row, "step_best") for line in lines.values() for row in line)
    width, height, left, bottom = 720, 400, 80, 40
    colours = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf", "#8c564b", "#7f7f7f")

    def x(row: Mapping[str, Any]) -> float:
        return left + (slots.index(int(row.get("slots", 0))) + 0.5) * (width - left - 10) / len(slots)

    def y(tokens: float) -> float:
        return height - bottom - tokens / top * (height - bottom - 20)

    svg = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height + 18 * len(lines)}" '
        'font-family="sans-serif" font-size="12">',
        f'<path d="M{left} 20V{height - bottom}H{width - 10}" fill="none" stroke="#444"/>',
        f'<text x="{left}" y="14">tokens/s (bars: the ranges of the figures)</text>',
        f'<text x="{width - 10}" y="{height - 6}" text-anchor="end">slots</text>',
    ]
    for part in range(5):
        value = top * part / 4
        svg.append(f'<text x="{left - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value:,.0f}</text>')
    for slot in slots:
        svg.append(f'<text x="{x({"slots": slot}):.1f}" y="{height - 22}" text-anchor="middle">{slot}</text>')
    for number, (name, line) in enumerate(lines.items()):
        colour = colours[number % len(colours)]
        line = sorted(line, key=x)
        points = " ".join(f"{x(row):.1f},{y(_tokens(row, 'step')):.1f}" for row in line)
        svg.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for row in line:
            low, high = y(_tokens(row, "step_worst")), y(_tokens(row, "step_best"))
            svg.append(f'<path d="M{x(row):.1f} {low:.1f}V{high:.1f}" stroke="{colour}" opacity="0.5"/>')
            svg.append(f'<circle cx="{x(row):.1f}" cy="{y(_tokens(row, "step")):.1f}" r="3" fill="{colour}"/>')
        svg.append(f'<text x="{left}" y="{height + 14 + 18 * number}" fill="{colour}">{_escaped(name)}</text>')
    return "\n".join([*svg, "</svg>", ""])


def _tokens(row: Mapping[str, Any], key: str) -> float:
    return float(row["tokens_per_second"] * row["step"] / row[key])


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")
