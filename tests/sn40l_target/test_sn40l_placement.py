"""Tensors to tiers: what is spilled, what is shared, what fits nowhere."""

from __future__ import annotations

import re

import pytest
from linalg_programs import SQUARE, Body, Shape, decoder, parse

from snapcc.sn40l_target.errors import PlacementError
from snapcc.sn40l_target.machine import SN40L, Figure, Machine, Tier
from snapcc.sn40l_target.plan import plan
from snapcc.sn40l_target.schema import Plan, Tensor

BYTES = 8 * 16 * 4


def flat(capacity: int) -> Machine:
    """One memory for everything."""
    figure = Figure(value=capacity, unit="bytes", source="test")
    tier = SN40L.tier("HBM")
    memory = Tier(name="MEM", capacity=figure, bandwidth=tier.bandwidth, granularity=tier.granularity, kinds=tier.kinds)
    return SN40L.model_copy(update={"tiers": (memory,)})


def one_at_a_time(sram: int) -> Machine:
    """A socket of so many bytes of SRAM on which each op is a section."""
    one = Figure(value=1, unit="units", source="test")
    return SN40L.model_copy(update={"compute_units": one}).with_capacities({"SRAM": sram})


def chain() -> str:
    """Three values at once, %early the one that is read again last."""
    b = Body()
    b.argument("%x", SQUARE)
    early = b.pointwise("arith.addf %a0, %a1", "%x", "%x")
    y = b.pointwise("arith.mulf %a0, %a1", "%x", "%x")
    z = b.pointwise("arith.mulf %a0, %a1", y, y)
    w = b.pointwise("arith.mulf %a0, %a1", z, y)
    return b.function("main", ["%x"], [b.pointwise("arith.addf %a0, %a1", early, w)])


def by_name(found: Plan, function: str) -> dict[str, Tensor]:
    return {t.name: t for t in found.tensors if t.function == function and t.of is None}


def test_everything_of_one_call_stands_in_sram_and_what_stays_in_hbm() -> None:
    found = plan(parse(decoder(Shape())))
    assert {t.tier for t in found.tensors if t.shared} == {"HBM"}
    assert {t.tier for t in found.tensors if not t.shared} == {"SRAM"}


def test_weights_and_caches_are_at_one_place_in_all_functions_and_calls_overlap() -> None:
    found = plan(parse(decoder(Shape())))
    places: dict[str, set[tuple[str, int]]] = {}
    for t in found.tensors:
        if t.shared:
            places.setdefault(t.name, set()).add((t.tier, t.offset))
    assert all(len(p) == 1 for p in places.values())
    for function in found.functions:
        assert min(t.offset for t in found.tensors if t.function == function and not t.shared) == 0


def test_spilling_takes_the_next_tier_that_has_room() -> None:
    found = plan(parse(chain()), one_at_a_time(2 * BYTES).with_capacities({"HBM": BYTES}))
    assert {t.tier for t in found.tensors} == {"SRAM", "HBM", "DDR"}


def test_weights_that_do_not_fit_in_hbm_stand_in_ddr() -> None:
    text = decoder(Shape())
    weights = plan(parse(text)).summary()[1].shared
    found = plan(parse(text), SN40L.with_capacities({"HBM": weights // 2}))
    tiers = {t.tier for t in found.tensors if t.kind == "weight"}
    assert tiers == {"HBM", "DDR"}
    assert {t.tier for t in found.tensors if t.kind == "cache"} <= tiers


def test_sram_is_used_again_after_spilling() -> None:
    """What was given up early comes back where a hole is left."""
    whole = plan(parse(decoder(Shape())))
    peak = max(t.end for t in whole.tensors if t.tier == "SRAM" and t.role != "prefetch")
    found = plan(parse(decoder(Shape())), SN40L.with_capacities({"SRAM": peak - 1}))
    assert sum(t.bytes for t in found.tensors if t.tier == "HBM" and not t.shared) <= max(
        t.bytes for t in whole.tensors if t.of is None
    )


def test_one_byte_less_than_needed_is_an_error_with_the_memory_map() -> None:
    text = decoder(Shape())
    with pytest.raises(PlacementError) as caught:
        plan(parse(text), flat(2**16))
    lacking = re.search(r"MEM lacks ([\d,]+) bytes", str(caught.value))
    assert lacking is not None
    needed = 2**16 + int(lacking[1].replace(",", ""))
    assert plan(parse(text), flat(needed)).summary()[0].share == 1.0
    with pytest.raises(PlacementError) as caught:
        plan(parse(text), flat(needed - 1))
    message = str(caught.value).splitlines()
    assert re.fullmatch(r"error: no room on SN40L for \w+: MEM lacks 1 bytes; memory map:", message[0])
    assert re.fullmatch(rf"MEM: [\d,]+ of {needed - 1:,} bytes \([\d.]+%\), \d+ tensors", message[1])
    row = re.fullmatch(r"  \[0x(\w{10}), 0x(\w{10})\) +([\d,]+) bytes  weight +embed\.weight  \(always\)", message[2])
    assert row is not None
    start, end, size = int(row[1], 16), int(row[2], 16), int(row[3].replace(",", ""))
    assert end - start == size == Shape().vocab * Shape().width * 4
    sizes = [int(m[1].replace(",", "")) for line in message[2:14] if (m := re.search(r"([\d,]+) bytes", line))]
    assert sizes == sorted(sizes, reverse=True)
    assert re.fullmatch(r"without a place: \d+ tensors?, [\d,]+ bytes", next(m for m in message if "without" in m))


def test_weights_that_fit_nowhere_are_an_error_too() -> None:
    text = decoder(Shape())
    shared = sum({t.name: t.bytes for t in plan(parse(text)).tensors if t.shared}.values())
    with pytest.raises(PlacementError, match=r"for the program's weights, caches and states: DDR lacks [\d,]+ bytes"):
        plan(parse(text), SN40L.with_capacities({"HBM": shared // 2, "DDR": shared // 4}))


def test_a_plan_is_the_same_each_time() -> None:
    text = decoder(Shape())
    assert plan(parse(text)).to_json() == plan(parse(text)).to_json()


def test_an_op_whose_least_tiles_are_too_large_is_an_error_at_its_line_with_the_memory_map() -> None:
    """Two operands and a result, each in two copies of one step of the memory."""
    text = chain()
    assert plan(parse(text), one_at_a_time(6 * 64))
    with pytest.raises(PlacementError) as caught:
        plan(parse(text), one_at_a_time(6 * 64 - 1))
    message = str(caught.value).splitlines()
    assert re.match(
        r"-:\d+:\d+: error: no room on SN40L for 'linalg.generic' in its least tiles: SRAM lacks 1 bytes of 384; ",
        message[0],
    )
    assert message[1] == "SRAM: 384 of 383 bytes (100.3%), 3 tensors"
    assert sum("128 bytes  scratch" in line for line in message) == 3
