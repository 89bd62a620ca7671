"""Sections and tiles of a Llama that the compiler has lowered: the paper's mapping, from rules."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from compiled import tiny_llama
from linalg_programs import Shape, decoder, parse
from torch_mlir import ir

import snapcc
from snapcc.sn40l_target.checker import check
from snapcc.sn40l_target.machine import SN40L, Figure, Machine, load_machine
from snapcc.sn40l_target.plan import plan
from snapcc.sn40l_target.schema import Plan, Section, Tensor

LAYERS = 2
WIDTH, FFN, PROMPT = 576, 1536, 1024


@pytest.fixture(scope="module")
def linalg(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The linalg phase of a Llama with SmolLM2's layers: a prompt that computes longer than it reads weights, and one
    that does not."""
    folder = tmp_path_factory.mktemp("llama")
    wide = {"hidden_size": WIDTH, "intermediate_size": FFN, "num_attention_heads": 9, "num_key_value_heads": 3}
    tiny_llama(folder / "model", layers=LAYERS, max_position_embeddings=2048, **wide)
    target = folder / "linalg.mlir"
    options = {"sink": 4, "recent": 60, "topk": 64, "prompts": (32, PROMPT), "extends": ()}
    snapcc.compile(folder / "model", target, compile_to="linalg", **options)
    return target.read_text()


@pytest.fixture(scope="module")
def module(linalg: str) -> ir.Module:
    return parse(linalg)


@pytest.fixture(scope="module")
def planned(module: ir.Module) -> Plan:
    return plan(module)


def of(found: Plan, function: str) -> list[Section]:
    return [s for s in found.sections if s.function == function]


def buffers(found: Plan, section: Section) -> list[Tensor]:
    """A section's buffers, but for those of prefetches."""
    return [t for t in found.tensors if t.section == section.name and t.role in ("tile", "resident")]


def test_prefill_is_mapped_as_in_the_paper(planned: Plan) -> None:
    layer = [
        "model.layers.{}.self_attn.q_proj+k_proj+v_proj",
        "attend.{}",
        "select.{}",
        "write.keys_{0}+values_{0}",
        "model.layers.{}.self_attn.o_proj",
        "model.layers.{}.mlp.gate_proj+up_proj+down_proj",
    ]
    wanted = [f"prefill_{PROMPT}:{name.format(i)}" for i in range(LAYERS) for name in layer]
    assert [s.name for s in of(planned, f"prefill_{PROMPT}")] == [*wanted, f"prefill_{PROMPT}:lm_head"]


@pytest.mark.parametrize("function", ["decode", "prefill_32"])
def test_where_the_weights_are_what_takes_time_a_layer_is_two_sections(planned: Plan, function: str) -> None:
    layer = [
        "model.layers.{}.self_attn.q_proj+k_proj+v_proj+o_proj",
        "model.layers.{}.mlp.gate_proj+up_proj+down_proj",
    ]
    wanted = [f"{function}:{name.format(i)}" for i in range(LAYERS) for name in layer]
    found = of(planned, function)
    assert [s.name for s in found] == [*wanted, f"{function}:lm_head"]
    assert not any(s.streams for s in found)


def test_each_section_says_by_which_rule_it_starts(planned: Plan) -> None:
    rules = [s.starts.partition(":")[0] for s in of(planned, f"prefill_{PROMPT}")]
    layer = ["row reduction", "barrier", "nothing arrives", "barrier", "nothing arrives", "row reduction"]
    assert rules[0] == "the function starts"
    assert rules[6:] == [*layer, "row reduction"]


def test_no_rule_looks_at_names(linalg: str, planned: Plan) -> None:
    other = re.sub(r'parameter = "([^"]*)"', lambda m: f'parameter = "{m[1][::-1]}"', linalg)
    assert [s.ops for s in plan(parse(other)).sections] == [s.ops for s in planned.sections]


def test_the_fastest_of_the_cuts_that_were_tried_is_chosen(planned: Plan) -> None:
    for time in planned.time:
        tried = [cut for cut in planned.cuts if cut.function == time.function]
        chosen = next(cut for cut in tried if cut.chosen)
        assert chosen.seconds == time.seconds
        assert chosen.sections == len(of(planned, time.function))
        assert min(cut.seconds or cut.bound for cut in tried) >= time.seconds * (1 - 1e-9)
    streaming = [(cut.reuse, cut.sections) for cut in planned.cuts if cut.function == f"prefill_{PROMPT}"]
    # 2 * PROMPT operations for each element of a weight, of 4 bytes
    assert (PROMPT / 2, 6 * LAYERS + 1) in streaming
    assert (None, 2 * LAYERS + 1) in streaming


def test_where_arithmetic_is_what_takes_time_few_tokens_stream_too(module: ir.Module, planned: Plan) -> None:
    slow = {e: f.model_copy(update={"value": f.value / 100, "low": None}) for e, f in SN40L.peak.items()}
    found = plan(module, SN40L.model_copy(update={"peak": slow}))
    assert len(of(found, "prefill_32")) > len(of(planned, "prefill_32"))
    assert any(s.streams for s in of(found, "prefill_32"))


def with_compute_units(machine: Machine, units: int) -> Machine:
    figure = Figure(value=units, unit="units", source="test")
    return machine.model_copy(update={"compute_units": figure})


@pytest.mark.parametrize(
    "smaller",
    [
        lambda: with_compute_units(SN40L, 8),
        lambda: SN40L.with_capacities({"SRAM": 8 * SN40L.tier("SRAM").unit_bytes}),
    ],
    ids=["compute units", "memory units"],
)
def test_a_smaller_machine_splits_more(smaller: Callable[[], Machine]) -> None:
    machine, module = smaller(), parse(decoder(Shape()))
    found = plan(module, machine)
    assert check(module, found) == []
    assert len(found.sections) > len(plan(module).sections)
    assert any(s.starts.startswith("units") for s in found.sections)
    for s in found.sections:
        assert s.compute_units <= machine.compute_units.value
        assert found.memory_units(s) <= machine.tiers[0].units


@pytest.mark.parametrize("machine", ["sn40l", "small-dataflow"])
def test_tiles_fit_twice_in_a_unit_or_span_several(machine: str) -> None:
    described, module = load_machine(machine), parse(decoder(Shape()))
    found = plan(module, described)
    assert check(module, found) == []
    unit, bank = described.tiers[0].unit_bytes, described.tiers[0].bank
    for s in found.sections:
        assert [stage.op for stage in s.stages] == list(s.ops)
        assert s.compute_units <= described.compute_units.value
        for buffer in buffers(found, s):
            assert buffer.copies == (2 if buffer.role == "tile" else 1)
            assert buffer.bytes >= buffer.copies * -(-buffer.part // bank) * bank
            assert buffer.offset % bank == buffer.bytes % bank == 0
            assert buffer.role != "tile" or buffer.part <= unit // 2
        assert sum(t.bytes for t in found.beside(s)) <= described.tiers[0].bytes


def test_what_streams_is_cut_into_tiles_and_weights_stay(planned: Plan) -> None:
    ffn = next(s for s in of(planned, f"prefill_{PROMPT}") if s.name.endswith("mlp.gate_proj+up_proj+down_proj"))
    assert sum(b.role == "resident" for b in buffers(planned, ffn)) == 3
    # what goes from stage to stage is in SRAM in blocks alone, each in two copies
    streamed = [t for t in planned.tensors if t.section == ffn.name and t.role == "tile" and t.of is None]
    assert streamed
    assert all(t.copies == 2 and t.part * len(ffn.stages) <= PROMPT * FFN * 4 for t in streamed)
    products = [s for s in ffn.stages if len(s.loops) == 3 and s.work == 2 * PROMPT * WIDTH * FFN]
    assert len(products) == 3
    for stage in products:
        assert stage.loops[0] // stage.tile[0] >= len(ffn.stages)


def test_compute_units_follow_the_work(planned: Plan) -> None:
    """What runs at the same time has units by its work; all of them are given away."""
    for s in of(planned, f"prefill_{PROMPT}"):
        assert s.compute_units == 1040
        if s.name.endswith("down_proj"):
            loads = [stage.work / stage.compute_units for stage in s.stages if stage.compute_units > 10]
            assert max(loads) <= 1.1 * min(loads)


def test_a_plan_with_wrong_sections_is_found(module: ir.Module, planned: Plan) -> None:
    found = planned
    first = found.sections[0]
    stage, buffer = first.stages[0], buffers(found, first)[0]

    def rules(**changes: object) -> set[str]:
        wrong = (first.model_copy(update=changes), *found.sections[1:])
        return {v.rule for v in check(module, found.model_copy(update={"sections": wrong}))}

    many = stage.model_copy(update={"compute_units": 2000})
    assert rules(stages=(many, *first.stages[1:])) == {"units"}
    assert rules(stages=first.stages[1:]) == {"section"}
    far = stage.model_copy(update={"tile": tuple(n + 1 for n in stage.loops)})
    assert rules(stages=(far, *first.stages[1:])) == {"tile"}

    def buffered(**changes: object) -> set[str]:
        tensors = tuple(t.model_copy(update=changes) if t is buffer else t for t in found.tensors)
        return {v.rule for v in check(module, found.model_copy(update={"tensors": tensors}))}

    assert buffered(copies=100) == {"units"}
    assert buffered(copies=1) == {"units"}
    assert buffered(of="decode:arg0") == {"buffer"}
    assert "buffer" in buffered(last_use=buffer.first_use)
    assert {"overlap", "contents"} <= buffered(offset=buffers(found, first)[1].offset)
    without = tuple(t for t in found.tensors if t is not buffer)
    assert {v.rule for v in check(module, found.model_copy(update={"tensors": without}))} == {"buffer"}
    swapped = found.model_copy(update={"sections": (found.sections[1], first, *found.sections[2:])})
    assert "section" in {v.rule for v in check(module, swapped)}


def test_sections_have_names_of_their_own_and_come_back_from_json(planned: Plan) -> None:
    assert Plan.from_json(planned.to_json()) == planned
    assert len({s.name for s in planned.sections}) == len(planned.sections)
