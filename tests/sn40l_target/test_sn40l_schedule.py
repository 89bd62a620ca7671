"""The time model: what bounds a section, prefetching, and that more of a machine never takes longer."""

from __future__ import annotations

import os
from collections.abc import Mapping
from itertools import pairwise

import pytest
from compiled import tiny_llama
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from linalg_programs import Shape, decoder, parse
from lowered import parse as parse_static
from static_program import Shapes, program
from torch_mlir import ir

import snapcc
from snapcc.compiler.dialect.policy import Policy
from snapcc.compiler.passes import manager
from snapcc.compiler.passes.pipelines import lower_to_linalg
from snapcc.sn40l_target.checker import check
from snapcc.sn40l_target.errors import PlacementError
from snapcc.sn40l_target.machine import SN40L, Figure, Machine
from snapcc.sn40l_target.plan import plan
from snapcc.sn40l_target.schema import FunctionTime, Plan

EXAMPLES = int(os.environ.get("SNAPCC_MACHINES", "6"))
"""How many pairs of machines are compared: always the same few, or as many others as are asked for."""


def times(found: Plan) -> dict[str, FunctionTime]:
    return {t.function: t for t in found.time}


def test_a_section_takes_its_longest_part_and_its_launch() -> None:
    found = plan(parse(decoder(Shape(layers=1, dim=64, ffn=4096))))
    assert check(parse(decoder(Shape(layers=1, dim=64, ffn=4096))), found) == []
    for section in found.schedule:
        longest = max(section.parts.values())
        assert section.parts[section.bound] == longest
        assert section.end - section.start <= section.launch + longest + 1e-12
        if section is found.schedule[0]:
            # nothing runs in front of it: its weights are read from its start on
            assert section.end >= longest
    one = times(plan(parse(decoder(Shape()))))["decode"]
    # bound by its launch, which is not published
    assert one.best < one.seconds < one.worst
    assert one.tokens == 3
    assert one.tokens_per_second == pytest.approx(3 / one.seconds)


def test_sections_follow_one_another_and_a_function_ends_with_its_last() -> None:
    small = SN40L.model_copy(update={"compute_units": Figure(value=4, unit="units", source="test")})
    found = plan(parse(decoder(Shape())), small)
    for name in found.functions:
        mine = [s for s in found.schedule if s.function == name]
        assert [s.section for s in mine] == [s.name for s in found.sections if s.function == name]
        assert all(a.end <= b.start for a, b in pairwise(mine))
        assert times(found)[name].seconds == mine[-1].end
    assert len(found.schedule) > 3


def test_weights_are_prefetched_behind_everything_else_and_the_checker_sees_where() -> None:
    module = parse(decoder(Shape()))
    found = plan(module)
    fetched = [t for t in found.transfers if t.kind == "prefetch"]
    assert {t.tensor for t in fetched} <= {t.name for t in found.tensors if t.kind == "weight"}
    assert fetched
    for change in ({"target": 0}, {"bytes": 2**30}, {"source": 3}, {"step": 10**6}):
        wrong = (fetched[0].model_copy(update=change), *fetched[1:])
        assert {v.rule for v in check(module, found.model_copy(update={"transfers": wrong}))} & {
            "transfer",
            "overlap",
        }


def grown(machine: Machine, factors: Mapping[str, float]) -> Machine:
    """The machine with figures multiplied: "units", of the same speed each, "peak", "launch", and by tier its capacity
    ("SRAM bytes") and its bandwidth ("SRAM rate")."""

    def times_(figure: Figure, factor: float) -> Figure:
        whole = isinstance(figure.value, int) and figure.unit in ("bytes", "units")
        value = max(int(figure.value * factor), 1) if whole else figure.value * factor
        return Figure(value=value, unit=figure.unit, source="test")

    units = times_(machine.compute_units, factors.get("units", 1.0))
    faster = factors.get("peak", 1.0) * units.value / machine.compute_units.value
    tiers = []
    for tier in machine.tiers:
        capacity = times_(tier.capacity, factors.get(f"{tier.name} bytes", 1.0))
        bandwidth = times_(tier.bandwidth, factors.get(f"{tier.name} rate", 1.0))
        tiers.append(tier.model_copy(update={"capacity": capacity, "bandwidth": bandwidth}))
    return machine.model_copy(
        update={
            "tiers": tuple(tiers),
            "compute_units": units,
            "peak": {element: times_(figure, faster) for element, figure in machine.peak.items()},
            "launch": times_(machine.launch, factors.get("launch", 1.0)),
        }
    )


FIGURES = ("units", "peak", "launch", *(f"{t.name} {figure}" for t in SN40L.tiers for figure in ("bytes", "rate")))


@pytest.fixture(scope="module")
def small_models(tmp_path_factory: pytest.TempPathFactory) -> list[ir.Module]:
    """Decode and a prefill of a tiny Llama, and of another decoder."""
    folder = tmp_path_factory.mktemp("llama")
    tiny_llama(folder / "model", layers=1, vocab_size=64)
    parts = {"sink": 2, "recent": 10, "topk": 4, "batch": 2, "prompts": (32,), "extends": ()}
    snapcc.compile(folder / "model", folder / "linalg.mlir", compile_to="linalg", **parts)
    return [parse((folder / "linalg.mlir").read_text()), parse(decoder(Shape(layers=1, batch=2)))]


@given(
    model=st.integers(0, 1),
    flat=st.booleans(),
    units=st.integers(0, 6),
    sram=st.floats(0, 7),
    hbm=st.one_of(st.none(), st.floats(15, 20)),
    rates=st.fixed_dictionaries(
        {name: st.floats(-6, 6) for name in ("peak", "launch", "SRAM rate", "HBM rate", "DDR rate")}
    ),
    more=st.dictionaries(st.sampled_from(FIGURES), st.floats(0, 7), min_size=1, max_size=len(FIGURES)),
)
@settings(max_examples=EXAMPLES, deadline=None, derandomize=EXAMPLES == 6)
def test_a_larger_machine_is_never_slower(
    small_models: list[ir.Module],
    model: int,
    flat: bool,
    units: int,
    sram: float,
    hbm: float | None,
    rates: Mapping[str, float],
    more: Mapping[str, float],
) -> None:
    """Each figure of any machine multiplied by any number of at least one (its launch divided by it)."""
    near = SN40L.tiers[0]
    bytes_ = near.unit_bytes * 2**sram if not flat else 2 ** (11 + 1.5 * sram)
    capacities = {"SRAM bytes": bytes_ / near.bytes, "units": 2**units / SN40L.compute_units.value}
    if hbm is not None:
        capacities["HBM bytes"] = 2**hbm / SN40L.tier("HBM").bytes
    base = SN40L
    if flat:
        base = SN40L.model_copy(
            update={"tiers": tuple(t.model_copy(update={"unit": None, "banks": None}) for t in SN40L.tiers)}
        )
    smaller = grown(base, capacities | {name: 2.0**power for name, power in rates.items()})
    larger = grown(smaller, {name: 2.0 ** (-power if name == "launch" else power) for name, power in more.items()})
    module = small_models[model]
    try:
        before = plan(module, smaller, patience=5)
    except PlacementError:
        assume(False)
    after = plan(module, larger, patience=5)
    for name, time in times(before).items():
        assert times(after)[name].seconds <= time.seconds * (1 + 1e-8)


def test_faster_memory_does_not_make_a_prompt_slower_that_launches_bound(small_models: list[ir.Module]) -> None:
    before, after = (times(plan(small_models[0], grown(SN40L, {"HBM rate": n}))) for n in (1.0, 100.0))
    assert after["prefill_32"].seconds <= before["prefill_32"].seconds


def test_equal_batch_and_cache_length_give_equal_step_time_with_and_without_the_ring() -> None:
    shapes = Shapes(n=24)
    found = []
    for policy in (Policy(sink=2, recent=6, topk=4, window=3), Policy(sink=0, recent=12, topk=0, window=3)):
        module = parse_static(program(shapes, policy))
        manager.run(module, lower_to_linalg())
        found.append(times(plan(module))["decode"].seconds)
    ring, plain = found
    assert ring == pytest.approx(plain, rel=0.01)
