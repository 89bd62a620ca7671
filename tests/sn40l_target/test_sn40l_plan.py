"""The plan as a whole: properties over programs of any structure, JSON, the annotated IR, time."""

from __future__ import annotations

import contextlib
import json
import re
import time
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from linalg_programs import Shape, Soup, decoder, parse
from torch_mlir import ir

from snapcc.compiler.passes import manager
from snapcc.sn40l_target.checker import check
from snapcc.sn40l_target.errors import PlacementError
from snapcc.sn40l_target.machine import SN40L, Figure
from snapcc.sn40l_target.plan import Sn40lPlan, annotate, erase, plan
from snapcc.sn40l_target.plan_ops import is_planned
from snapcc.sn40l_target.schema import Plan

NUMBER = st.integers(0, 99)
CONTEXT = manager.new_context()


@st.composite
def programs(draw: st.DrawFn) -> str:
    soup = Soup()
    for kind, first, second in draw(st.lists(st.tuples(NUMBER, NUMBER, NUMBER), min_size=1, max_size=14)):
        soup.step(kind, first, second)
    return soup.text(draw(st.lists(NUMBER, max_size=2)))


@given(text=programs(), sram=st.sampled_from([600, 1100, 2000, 10**6]), units=st.sampled_from([1, 2, 1040]))
@settings(max_examples=24, deadline=None)
def test_every_plan_is_right(text: str, sram: int, units: int) -> None:
    module = ir.Module.parse(text, context=CONTEXT)
    figure = Figure(value=units, unit="units", source="test")
    small = SN40L.model_copy(update={"compute_units": figure}).with_capacities({"SRAM": sram})
    if sram < 128 * 5:
        # an op with five tensors has no room for two copies of a step of each
        with contextlib.suppress(PlacementError):
            assert check(module, plan(module, small, patience=20)) == []
    else:
        assert check(module, plan(module, small, patience=20)) == []


@given(text=programs(), ddr=st.integers(1, 4000))
@settings(max_examples=16, deadline=None)
def test_a_plan_never_exceeds_a_capacity(text: str, ddr: int) -> None:
    module = ir.Module.parse(text, context=CONTEXT)
    small = SN40L.with_capacities({"SRAM": 1536, "HBM": 1024, "DDR": ddr})
    try:
        found = plan(module, small, patience=20)
    except PlacementError as error:
        lacking = re.search(r"DDR lacks ([\d,]+) bytes", str(error))
        assert lacking is not None
        enough = ddr + int(lacking[1].replace(",", ""))
        assert check(module, plan(module, small.with_capacities({"DDR": enough}), patience=20)) == []
        with pytest.raises(PlacementError):
            plan(module, small.with_capacities({"DDR": enough - 1}), patience=20)
    else:
        assert check(module, found) == []
        assert all(use.peak <= use.capacity for use in found.summary())


@given(text=programs())
@settings(max_examples=16, deadline=None)
def test_bytes_are_those_of_the_program(text: str) -> None:
    """No value is in two tensors, and a tensor has the bytes of the value that it first holds."""
    module = ir.Module.parse(text, context=CONTEXT)
    found = plan(module)
    sizes = {"main:arg0": 512}
    for position, op in enumerate(module.body.operations[0].regions[0].blocks[0].operations):
        for i, result in enumerate(op.operation.results):
            if isinstance(result.type, ir.RankedTensorType):
                name = f"main:{position}#{i}" if len(op.operation.results) > 1 else f"main:{position}"
                sizes[name] = 4 * prod(ir.RankedTensorType(result.type).shape)
    held = [v for t in found.tensors for v in t.values]
    assert len(held) == len(set(held))
    assert all(t.bytes == sizes[t.values[0]] for t in found.tensors if t.role == "whole" and t.values)
    weights = set(re.findall(r'parameter = "(\w+)"', text))
    assert sum(t.bytes for t in found.tensors if t.kind == "weight") == 512 * len(weights)


def test_weights_and_caches_of_a_decoder_are_counted_once() -> None:
    s = Shape()
    found = plan(parse(decoder(s)))
    hbm = found.summary()[1]
    width, kv = s.width, s.heads * s.dim
    layer = 2 * width * width + 2 * kv * width + 3 * s.ffn * width + width * kv
    weights = 4 * (s.vocab * width + s.layers * layer)
    caches = 4 * s.layers * 2 * s.batch * s.slots * kv
    assert hbm.tier == "HBM"
    assert hbm.shared == hbm.bytes == weights + caches + 8 * s.batch
    assert found.copies == ()


def test_json_has_the_fields_of_the_design_and_comes_back() -> None:
    found = plan(parse(decoder(Shape())))
    content = json.loads(found.to_json())
    assert content["version"] == 4
    fields = {"function", "name", "kind", "bytes", "tier", "offset", "first_use", "last_use", "section"}
    assert all(fields <= t.keys() for t in content["tensors"])
    assert [use["tier"] for use in content["summary"]] == ["SRAM", "HBM", "DDR"]
    assert content["machine"]["tiers"][0]["capacity"]["source"].startswith("520 MiB per socket")
    assert Plan.from_json(found.to_json()) == found
    with pytest.raises(ValueError, match="the plan has version 3, and this snapcc reads version 4"):
        Plan.from_json(json.dumps({**content, "version": 3}))


def test_every_tensor_that_an_op_makes_names_the_section_of_that_op() -> None:
    found = plan(parse(decoder(Shape())))
    names = {s.name for s in found.sections}
    made = [t for t in found.tensors if t.kind in ("activation", "index") and ":arg" not in t.name]
    assert made
    owners = {f"{s.function}:{op}": s.name for s in found.sections for op in s.ops}
    assert all(t.section == owners[t.name.partition("#")[0]] for t in made)
    assert all(t.section in names for t in found.tensors if t.kind in ("weight", "cache", "scratch"))


def test_the_annotated_ir_is_valid_and_says_where_tensors_are() -> None:
    module = parse(decoder(Shape()))
    found = plan(module)
    before = module.operation.get_asm()
    annotate(module, found)
    assert module.operation.verify()
    again = parse(module.operation.get_asm())
    assert again.operation.get_asm() == module.operation.get_asm()
    assert is_planned(module.operation)
    assert module.operation.get_asm().count('"sn40l.transfer"') == len(found.transfers)
    assert module.operation.get_asm().count('"sn40l.section"') == len(found.sections)
    clean = parse(before)
    annotate(clean, found)
    erase(clean)
    assert clean.operation.get_asm() == before
    places = {v: t for t in found.tensors for v in t.values}
    for function in list(module.body.operations)[:-1]:
        name = function.name.value
        for position, op in enumerate(function.regions[0].blocks[0].operations):
            place = places.get(f"{name}:{position}")
            assert ("sn40l.offset" in op.attributes) == (place is not None)
            if place is not None:
                assert list(op.attributes["sn40l.offset"]) == [place.offset]
                assert list(op.attributes["sn40l.bytes"]) == [place.bytes]
                assert [t.value for t in op.attributes["sn40l.tier"]] == [place.tier]
    # a plan of the annotated program is the plan of the program
    assert plan(module) == found
    assert before != module.operation.get_asm()


def test_arguments_keep_their_attributes() -> None:
    module = parse('func.func @main(%x: tensor<4xf32> {kv.name = "x"}) -> tensor<4xf32> { return %x : tensor<4xf32> }')
    annotate(module, plan(module))
    text = module.operation.get_asm()
    assert 'kv.name = "x"' in text
    assert 'sn40l.tier = "SRAM"' in text


def test_a_plan_of_another_module_is_refused() -> None:
    found = plan(parse("func.func @main() { return }"))
    with pytest.raises(ValueError, match="has no function 'other'"):
        annotate(parse("func.func @other() { return }"), found)


def test_the_pass_plans_for_the_capacities_given() -> None:
    module = parse(decoder(Shape()))
    manager.run(module, [Sn40lPlan()])
    assert "sn40l.tier" in module.operation.get_asm()
    with pytest.raises(PlacementError, match=r"HBM lacks|DDR lacks"):
        manager.run(parse(decoder(Shape())), [Sn40lPlan(capacity="HBM:64,DDR:64")])


def test_a_model_of_smollm2s_size_is_planned_and_checked_within_a_minute() -> None:
    """30 layers, heads of 64, 49,152 tokens, 1,024 slots, 1,024 prompt tokens."""
    s = Shape(layers=30, batch=1, heads=3, group=3, dim=64, slots=1024, ffn=1536, vocab=49152)
    module = parse(decoder(s, prompts=(1024,)))
    start = time.monotonic()
    found = plan(module)
    assert check(module, found) == []
    assert time.monotonic() - start < 60
    assert found.copies == ()
    assert {t.tier for t in found.tensors if not t.shared} == {"SRAM"}
