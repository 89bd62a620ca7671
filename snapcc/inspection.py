"""What is in an artifact, as data and in words."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from snapcc.runtime.engine import FunctionSpec

from .artifact import Artifact, ArtifactError
from .manifest import Cache, Manifest

if TYPE_CHECKING:
    from snapcc.sn40l_target.schema import Plan


def cache_table(
    caches: Iterable[Cache], functions: Iterable[FunctionSpec], slots: int, max_positions: int
) -> list[dict[str, Any]]:
    """Each cache's slots, and what a cache of ``max_positions`` tokens would take."""
    states = {state.name: state for function in functions for state in function.states}
    return [
        {
            "name": state.name,
            "shape": list(state.shape),
            # a part has lost dimensions of the stack, and its rows come first
            "axis": cache.axis if state.name == cache.name else state.shape.index(slots, 1),
            "dtype": state.dtype,
            "bytes": state.bytes,
            "full_bytes": state.bytes // slots * max_positions,
        }
        for cache in caches
        for state in states.values()
        # a cache that stacks several is a state for each of them, named as one indexes it
        if state.name == cache.name or state.name.startswith(f"{cache.name}[")
    ]


def state_table(manifest: Manifest) -> list[dict[str, Any]]:
    """What the program carries for each row beside its caches."""
    states = manifest.program().states
    return [
        {"name": state.name, "shape": list(state.shape), "dtype": state.dtype, "bytes": state.bytes}
        for state in (states[given.name] for given in manifest.inputs.states)
    ]


def summary(artifact: Artifact) -> dict[str, Any]:
    """The content of ``snapcc inspect --json``."""
    manifest = artifact.manifest
    caches = cache_table(
        manifest.inputs.caches, manifest.functions.values(), manifest.policy.slots, manifest.max_positions
    )
    policy = manifest.policy
    return {
        "artifact": str(artifact.folder),
        "model": manifest.model,
        "snapcc": manifest.snapcc,
        "tools": manifest.tools,
        "target": manifest.target,
        "device": manifest.device,
        "dtype": manifest.dtype,
        "vocabulary": manifest.vocabulary,
        "max_positions": manifest.max_positions,
        "batch": manifest.batch,
        "kv": manifest.kv,
        "policy": {"slots": policy.slots, **dataclasses.asdict(policy)},
        "prompts": [{"length": length, "selected": policy.selected(length)} for length in manifest.program().prompts],
        "extends": list(manifest.program().extends),
        "functions": {
            name: {
                "module": function.module,
                "arguments": [f"{a.name or '_'}: {_type(a.shape, a.dtype)}" for a in function.arguments],
                "results": [_type(r.shape, r.dtype) for r in function.results],
            }
            for name, function in manifest.functions.items()
        },
        "caches": caches,
        "cache_bytes": sum(cache["bytes"] for cache in caches),
        "full_cache_bytes": sum(cache["full_bytes"] for cache in caches),
        "states": state_table(manifest),
        "weights": [{"file": file.path, "bytes": file.bytes} for file in manifest.weights],
        "phases": {phase: str(artifact.folder / path) for phase, path in manifest.phases.items()},
        "plan": None if manifest.plan is None else _plan(artifact),
    }


def words(content: dict[str, Any]) -> str:
    """``summary``'s content for a person."""
    policy, bound = content["policy"], f"{content['max_positions']:,}"
    lines = [
        f"{content['artifact']}: {content['model']}, {content['dtype']}, {content['vocabulary']:,} tokens, "
        f"{bound} positions",
        f"  made by snapcc {content['snapcc']} for {content['device']}, planned for {content['target']}",
        f"  policy     {content['kv']}",
        f"  slots      {policy['slots']:,} = sink {policy['sink']} + recent {policy['recent']:,} + "
        f"selected {policy['topk']:,} (window {policy['window']}, pooling {_pooling(policy)}, "
        f"scores over {policy['score']})",
        f"  rows       {content['batch']}",
        "  prompts    "
        + (
            ", ".join(f"{p['length']:,} ({p['selected']:,} selected when full)" for p in content["prompts"])
            or "through decode, token by token; nothing is selected"
        ),
        "  extend     "
        + (", ".join(f"{length:,}" for length in content["extends"]) or "through decode, token by token"),
        f"  caches     {len(content['caches'])}, {content['cache_bytes']:,} bytes; "
        f"a full cache of {bound} tokens: {content['full_cache_bytes']:,} bytes "
        f"({content['full_cache_bytes'] / content['cache_bytes']:.1f} times as many)",
        *(f"             {line}" for line in _alike(content["caches"])),
        *_carried(content["states"]),
        "  weights    " + ", ".join(f"{w['file']} ({w['bytes']:,} bytes)" for w in content["weights"]),
    ]
    for name, function in content["functions"].items():
        lines.append(f"  @{name}({', '.join(function['arguments'])}) -> {', '.join(function['results']) or 'nothing'}")
    lines += [f"  phase      {phase:<7} {path}" for phase, path in content["phases"].items()]
    if content["plan"] is not None:
        lines += [
            f"  plan       {tier['tier']:<5} {tier['peak']:>15,} of {tier['capacity']:,} bytes at most "
            f"({tier['share']:.1%}), {tier['tensors']:,} tensors"
            for tier in content["plan"]["tiers"]
        ]
        lines += [
            f"  predicted  {time['function']:<13} {_duration(time['seconds'])} ({_duration(time['best'])} to "
            f"{_duration(time['worst'])} over the figures' ranges), {time['tokens_per_second']:,.0f} tokens/s"
            for time in content["plan"]["time"]
            if time["tokens_per_second"] and time["function"] != "reset"
        ]
        lines += [
            f"  cut        {function:<13} {_cut(cuts[0])}" + "".join(f"; {_cut(other)}" for other in cuts[1:])
            for function, cuts in content["plan"]["cuts"].items()
            if function != "reset"
        ]
    return "\n".join(lines)


def _alike(caches: list[dict[str, Any]]) -> list[str]:
    """A line for the caches of each shape, in the order of their first."""
    groups: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for cache in caches:
        groups.setdefault((_type(cache["shape"], cache["dtype"]), cache["axis"]), []).append(cache)
    return [
        f"{len(group)} of {shape}, slots along axis {axis}, {group[0]['bytes']:,} bytes each "
        f"({' to '.join(dict.fromkeys((group[0]['name'], group[-1]['name'])))})"
        for (shape, axis), group in groups.items()
    ]


def _carried(states: list[dict[str, Any]]) -> list[str]:
    """A line for what is carried beside the caches, and one for the states of each shape."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for state in states:
        groups.setdefault(_type(state["shape"], state["dtype"]), []).append(state)
    lines = [f"  state      {len(states)} beside the caches, {sum(state['bytes'] for state in states):,} bytes"]
    for shape, group in groups.items():
        names = " to ".join(dict.fromkeys((group[0]["name"], group[-1]["name"])))
        lines.append(f"             {len(group)} of {shape}, rows first ({names})")
    return lines if states else []


def _pooling(policy: dict[str, Any]) -> str:
    return "none" if policy["pool"] == "none" else f"{policy['pool']}:{policy['pool_size']}"


def _plan(artifact: Artifact) -> dict[str, Any]:
    from snapcc.sn40l_target.schema import Plan

    path = artifact.folder / str(artifact.manifest.plan)
    try:
        plan = Plan.from_json(path.read_text())
    except ValueError as error:
        raise ArtifactError(f"{path}: {error}: compile the model again") from None
    return {
        "file": str(path),
        "machine": plan.machine.name,
        "sections": len(plan.sections),
        "cuts": _cuts(plan),
        "tiers": [use.model_dump() for use in plan.summary()],
        "time": [time.model_dump() | {"tokens_per_second": time.tokens_per_second} for time in plan.time],
    }


def _cuts(plan: Plan) -> dict[str, list[dict[str, Any]]]:
    """By function, the cut that was chosen and the others that have no limits but the machine's."""
    found: dict[str, list[dict[str, Any]]] = {function: [] for function in plan.functions}
    for cut in sorted(plan.cuts, key=lambda cut: not cut.chosen):
        if cut.chosen or (cut.stages is None and cut.bytes is None):
            found[cut.function].append(cut.model_dump(exclude={"function"}))
    return found


def _cut(cut: dict[str, Any]) -> str:
    stays = "no weight stays" if cut["reuse"] is None else f"weights used for {cut['reuse']:,g} operations a byte stay"
    least = "" if cut["seconds"] is not None else "at least "
    time = _duration(cut["bound"] if cut["seconds"] is None else cut["seconds"])
    return f"{cut['sections']} sections, {stays}, {least}{time}"


def _duration(seconds: float) -> str:
    return f"{seconds * 1e3:,.3f} ms" if seconds >= 1e-4 else f"{seconds * 1e6:,.2f} us"


def _type(shape: Sequence[int], dtype: str) -> str:
    return f"{'x'.join(map(str, shape))}{'x' if shape else ''}{dtype}"
