"""The time model: what bounds a section, prefetching, and that more of a machine never takes longer."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from linalg_programs import Shape, Soup, decoder, parse
from lowered import parse as parse_static
from static_program import Shapes, program
from torch_mlir import ir

from snapcc.compiler.dialect.policy import Policy
from snapcc.compiler.passes import manager
from snapcc.compiler.passes.pipelines import lower_to_linalg
from snapcc.sn40l_target.checker import check
from snapcc.sn40l_target.machine import SN40L, Figure, Machine
from snapcc.sn40l_target.plan import plan
from snapcc.sn40l_target.schema import FunctionTime, Plan

CONTEXT = manager.new_context()
NUMBER = st.integers(0, 99)


def times(found: Plan) -> dict[str, FunctionTime]:
    return {t.function: t for t in found.time}


def scaled(machine: Machine, figures: dict[str, float], capacities: dict[str, int]) -> Machine:
    """The machine with tiers' bandwidths, its peaks ("peak") and its launch ("launch") multiplied."""

    def more(figure: Figure, factor: float) -> Figure:
        return Figure(value=figure.value * factor, unit=figure.unit, source="test")

    tiers = tuple(
        t.model_copy(update={"bandwidth": more(t.bandwidth, figures.get(t.name, 1.0))}) for t in machine.tiers
    )
    peaks = {e: more(f, figures.get("peak", 1.0)) for e, f in machine.peak.items()}
    launch = more(machine.launch, figures.get("launch", 1.0))
    return machine.model_copy(update={"tiers": tiers, "peak": peaks, "launch": launch}).with_capacities(capacities)


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
    small = scaled(SN40L, {}, {}).model_copy(update={"compute_units": Figure(value=4, unit="units", source="test")})
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


@given(
    steps=st.lists(st.tuples(NUMBER, NUMBER, NUMBER), min_size=1, max_size=10),
    sram=st.integers(2, 8),
    figures=st.dictionaries(
        st.sampled_from(["SRAM", "HBM", "DDR", "peak"]), st.sampled_from([1.0, 1.5, 4.0]), max_size=4
    ),
    launch=st.sampled_from([0.5, 1.0]),
    more=st.integers(0, 4),
)
@settings(max_examples=30, deadline=None)
def test_a_larger_machine_is_never_slower(
    steps: list[tuple[int, int, int]], sram: int, figures: dict[str, float], launch: float, more: int
) -> None:
    soup = Soup()
    for step in steps:
        soup.step(*step)
    module = ir.Module.parse(soup.text([0]), context=CONTEXT)
    # flat memories of a few values: all rooms that make a difference are tried
    tiers = tuple(t.model_copy(update={"unit": None, "banks": None}) for t in SN40L.tiers)
    flat = SN40L.model_copy(update={"tiers": tiers})
    small = flat.with_capacities({"SRAM": 512 * sram})
    large = scaled(flat, {**figures, "launch": launch}, {"SRAM": 512 * (sram + more)})
    before, after = plan(module, small, patience=3), plan(module, large, patience=3)
    assert check(module, after) == []
    for name, time in times(before).items():
        assert times(after)[name].seconds <= time.seconds * (1 + 1e-9)


def test_equal_batch_and_cache_length_give_equal_step_time_with_and_without_the_ring() -> None:
    shapes = Shapes(n=24)
    found = []
    for policy in (Policy(sink=2, recent=6, topk=4, window=3), Policy(sink=0, recent=12, topk=0, window=3)):
        module = parse_static(program(shapes, policy))
        manager.run(module, lower_to_linalg())
        found.append(times(plan(module))["decode"].seconds)
    ring, plain = found
    assert ring == pytest.approx(plain, rel=0.01)
