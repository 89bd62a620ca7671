"""The checker against plans that are wrong in one way each."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from linalg_programs import Shape, decoder, parse
from torch_mlir import ir

from snapcc.sn40l_target import checker
from snapcc.sn40l_target.checker import check
from snapcc.sn40l_target.machine import SN40L
from snapcc.sn40l_target.plan import plan
from snapcc.sn40l_target.schema import Copy, Plan, Tensor

PMU = 512 * 1024
MODULE = parse(decoder(Shape(layers=1, dim=32, ffn=512)))
PLAN = plan(MODULE)

Change = Callable[[Tensor], dict[str, object]]


def changed(name: str, change: Change, function: str | None = None) -> Plan:
    """The plan with some fields of one tensor replaced, in all functions or in one."""
    return PLAN.model_copy(
        update={
            "tensors": tuple(
                t.model_copy(update=change(t)) if t.name == name and function in (None, t.function) else t
                for t in PLAN.tensors
            )
        }
    )


def find(kind: str, function: str = "decode", number: int = 0) -> Tensor:
    return [t for t in PLAN.tensors if t.kind == kind and t.function == function][number]


def rules(found: Plan, module: ir.Module = MODULE) -> set[str]:
    return {v.rule for v in check(module, found)}


def test_a_right_plan_has_no_violations() -> None:
    assert check(MODULE, PLAN) == []


@pytest.mark.parametrize("kind", ["activation", "index", "weight", "cache", "state", "scratch"])
@pytest.mark.parametrize(
    ("rule", "change"),
    [
        ("aligned", lambda t: {"offset": t.offset + 1}),
        ("capacity", lambda t: {"offset": SN40L.tier(t.tier).bytes}),
        ("tier", lambda t: {"tier": "L2"}),
        ("size", lambda t: {"bytes": t.bytes - 1}),
        ("lifetime", lambda t: {"first_use": t.first_use + 1}),
        ("lifetime", lambda t: {"last_use": t.last_use - 1}),
        ("section", lambda t: {"section": f"{t.function}:0"}),
    ],
)
def test_a_wrong_field_is_found(kind: str, rule: str, change: Change) -> None:
    t = find(kind, "prefill_16" if kind == "scratch" else "decode")
    found = check(MODULE, changed(t.name, change))
    assert rule in {v.rule for v in found}
    assert any(t.name in str(v) for v in found)


@pytest.mark.parametrize("kind", ["weight", "cache", "state"])
def test_what_stays_may_not_live_in_sram(kind: str) -> None:
    found = check(MODULE, changed(find(kind).name, lambda t: {"tier": "SRAM"}))
    assert "tier" in {v.rule for v in found}


def test_a_tensor_may_not_cross_a_unit() -> None:
    assert "aligned" in rules(changed(find("activation").name, lambda t: {"offset": 7 * PMU - 64}))


def test_two_tensors_alive_at_one_time_may_not_overlap() -> None:
    t = find("activation", number=2)
    other = next(
        o
        for o in PLAN.tensors
        if o.function == t.function
        and o.tier == t.tier
        and o.name != t.name
        and o.first_use <= t.first_use <= o.last_use
    )
    assert {"overlap", "contents"} <= rules(changed(t.name, lambda t: {"offset": other.offset}))


@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_any_two_that_meet_are_found_when_put_on_one_another(data: st.DataObject) -> None:
    local = [t for t in PLAN.tensors if not t.shared and t.bytes]
    t = data.draw(st.sampled_from(local))
    meets = [
        o
        for o in local
        if o.function == t.function and o.name != t.name and o.first_use <= t.last_use and t.first_use <= o.last_use
    ]
    if meets:
        other = data.draw(st.sampled_from(meets))
        assert "overlap" in rules(changed(t.name, lambda t: {"tier": other.tier, "offset": other.offset}))


def test_a_weight_may_not_be_overwritten_even_where_a_function_does_not_use_it() -> None:
    weight = find("weight")
    assert all(t.name != weight.name for t in PLAN.tensors if t.function == "reset")
    t = find("activation", "reset")
    found = check(MODULE, changed(t.name, lambda t: {"tier": weight.tier, "offset": weight.offset}))
    assert {("overlap", "reset"), ("contents", "reset")} <= {(v.rule, v.function) for v in found}


def test_shared_tensors_may_not_overlap_one_another() -> None:
    a, b = find("weight"), find("weight", number=1)
    assert "overlap" in rules(changed(b.name, lambda t: {"offset": a.offset}))


def test_a_shared_tensor_may_not_stand_elsewhere_in_one_function() -> None:
    cache = find("cache")
    assert "shared" in rules(changed(cache.name, lambda t: {"offset": t.offset + 2**30}, "reset"))


@pytest.mark.parametrize("kind", ["activation", "weight", "cache", "index"])
def test_a_wrong_kind_is_found(kind: str) -> None:
    t = find(kind)
    wrong = "activation" if kind != "activation" else "index"
    assert "kind" in rules(changed(t.name, lambda t: {"kind": wrong}))


@pytest.mark.parametrize("kind", ["activation", "index", "weight", "cache"])
def test_a_tensor_that_is_left_out_is_found(kind: str) -> None:
    t = find(kind)
    left = tuple(o for o in PLAN.tensors if o.name != t.name)
    assert rules(PLAN.model_copy(update={"tensors": left})) == {"placed"}


def test_scratch_that_is_left_out_is_found() -> None:
    t = find("scratch", "prefill_16")
    left = tuple(o for o in PLAN.tensors if o.name != t.name)
    assert rules(PLAN.model_copy(update={"tensors": left})) == {"placed"}


def test_a_tensor_that_is_there_twice_is_found() -> None:
    t = find("activation")
    assert rules(PLAN.model_copy(update={"tensors": (*PLAN.tensors, t)})) == {"placed"}
    elsewhere = t.model_copy(update={"name": "decode:x", "offset": 2**20})
    assert rules(PLAN.model_copy(update={"tensors": (*PLAN.tensors, elsewhere)})) == {"placed"}


def test_a_tensor_of_no_value_is_found() -> None:
    more = find("activation").model_copy(update={"name": "decode:x", "values": ()})
    assert rules(PLAN.model_copy(update={"tensors": (*PLAN.tensors, more)})) == {"placed"}
    more = more.model_copy(update={"values": ("decode:9999",)})
    assert rules(PLAN.model_copy(update={"tensors": (*PLAN.tensors, more)})) == {"placed"}


def test_an_update_that_leaves_the_state_is_found() -> None:
    """The cache's updated value in a place of its own: the state never gets it."""
    cache = find("cache")
    updated = cache.values[-1]
    kept = changed(cache.name, lambda t: {"values": cache.values[:-1]}, "decode")
    own = cache.model_copy(
        update={
            "name": updated,
            "kind": "activation",
            "tier": "DDR",
            "offset": 0,
            "values": (updated,),
            "section": updated,
        }
    )
    found = kept.model_copy(update={"tensors": (*kept.tensors, own)})
    assert {"copies", "lifetime"} <= rules(found)


def test_an_update_in_place_of_what_is_still_needed_is_found() -> None:
    """Two products in one buffer, the first still to be read."""
    text = """
func.func @main(%x: tensor<8x16xf32>) -> tensor<8x16xf32> {
  %e = tensor.empty() : tensor<8x16xf32>
  %a = linalg.exp ins(%x : tensor<8x16xf32>) outs(%e : tensor<8x16xf32>) -> tensor<8x16xf32>
  %b = linalg.add ins(%x, %x : tensor<8x16xf32>, tensor<8x16xf32>) outs(%a : tensor<8x16xf32>) -> tensor<8x16xf32>
  %c = linalg.mul ins(%a, %b : tensor<8x16xf32>, tensor<8x16xf32>) outs(%e : tensor<8x16xf32>) -> tensor<8x16xf32>
  return %c : tensor<8x16xf32>
}"""
    module = parse(text)
    right = plan(module)
    a, b = (next(t for t in right.tensors if t.name == name) for name in ("main:1", "main:2"))
    joined = a.model_copy(update={"values": (*a.values, *b.values), "last_use": b.last_use})
    tensors = tuple(joined if t.name == a.name else t for t in right.tensors if t.name != b.name)
    assert check(module, right) == []
    assert rules(right.model_copy(update={"tensors": tensors}), module) == {"contents"}


def test_a_view_that_stands_elsewhere_is_found() -> None:
    t = next(t for t in PLAN.tensors if t.kind == "activation" and len(t.values) > 1)
    kept = changed(t.name, lambda t: {"values": t.values[:-1]})
    own = t.model_copy(update={"name": t.values[-1], "values": t.values[-1:], "tier": "DDR", "offset": 0})
    assert "placed" in rules(kept.model_copy(update={"tensors": (*kept.tensors, own)}))


def test_copies_are_counted_again() -> None:
    t = find("activation")
    assert t.section is not None
    more = Copy(function="decode", section=t.section, source="state:cache_k_0", target=t.name, bytes=64)
    assert rules(PLAN.model_copy(update={"copies": (more,)})) == {"copies"}


def test_sections_hold_ops_of_the_program_once() -> None:
    again = PLAN.sections[0].model_copy(update={"name": "again"})
    assert rules(PLAN.model_copy(update={"sections": (*PLAN.sections, again)})) == {"section"}
    operations = ("linalg.other", *PLAN.sections[0].operations[1:])
    other = PLAN.sections[0].model_copy(update={"operations": operations})
    assert rules(PLAN.model_copy(update={"sections": (other, *PLAN.sections[1:])})) == {"section"}


def test_functions_of_the_plan_are_those_of_the_program() -> None:
    fewer = PLAN.functions[1:]
    assert "function" in rules(PLAN.model_copy(update={"functions": fewer}))


def test_the_checker_shares_no_code_with_the_planner() -> None:
    outside, files = set(), sorted(Path(str(checker.__file__)).parent.glob("*.py"))
    for file in files:
        tree = ast.parse(file.read_text())
        outside |= {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.level > 1}
    assert len(files) > 1
    assert outside == {"machine", "schema"}
