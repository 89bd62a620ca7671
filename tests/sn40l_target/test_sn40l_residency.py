"""Stays in the nearest tier: against the exact solver, and as the plan and the checker have them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from linalg_programs import SQUARE, Body, Shape, Soup, decode, parse

from snapcc.sn40l_target.checker import check
from snapcc.sn40l_target.exact import solve
from snapcc.sn40l_target.graph import read_program
from snapcc.sn40l_target.lifetime import Lifetime
from snapcc.sn40l_target.machine import SHARED, SN40L, Figure, Tier
from snapcc.sn40l_target.plan import plan
from snapcc.sn40l_target.residency import Item, moves, traffic
from snapcc.sn40l_target.schema import Plan
from snapcc.sn40l_target.stays import keep

BYTES = 8 * 16 * 4


def flat(capacity: int) -> Tier:
    """A tier without units, of so many bytes."""
    figure = Figure(value=capacity, unit="bytes", source="test")
    return SN40L.tier("SRAM").model_copy(update={"capacity": figure, "unit": None, "banks": None})


def graphs() -> Iterator[tuple[str, list[Item], Random]]:
    """Twenty small functions: ten of any ops on values of one type, ten decode steps of one layer."""
    for seed in range(20):
        random = Random(seed)
        if seed < 10:
            soup, name = Soup(), "main"
            for _ in range(random.randint(8, 16)):
                soup.step(random.randrange(99), random.randrange(99), random.randrange(99))
            text = soup.text([random.randrange(99)])
        else:
            name = "decode"
            text = decode(
                Shape(
                    layers=1,
                    batch=random.choice([1, 2, 3]),
                    heads=random.choice([1, 2]),
                    group=random.choice([1, 2]),
                    slots=random.choice([8, 12, 16]),
                    ffn=random.choice([32, 64, 128]),
                    vocab=64,
                )
            )
        function = read_program(parse(text), flat(64).legal).functions[name]
        local = [b for b in function.buffers.values() if b.kind not in SHARED]
        yield f"{name} {seed}", [Item(b.name, b.bytes, function.lifetimes[b.name]) for b in local], random


def peak(items: list[Item]) -> int:
    """The most bytes alive at one step, each buffer rounded up to the memory's step."""
    steps = range(max(i.life.last for i in items) + 1)
    return max(sum(-(-i.bytes // 64) * 64 for i in items if i.life.first <= s <= i.life.last) for s in steps)


def test_stays_move_at_most_5_percent_more_bytes_than_the_exact_ones_on_20_small_graphs() -> None:
    rows = []
    for name, items, random in graphs():
        tier = flat(max(int(peak(items) * random.choice([0.4, 0.5, 0.6, 0.7, 0.8])) // 64 * 64, 64))
        best, found = solve(items, tier), keep(items, tier, 0, tier.bytes)[-1]
        assert best.traffic <= found.traffic
        rows.append((name, len(items), tier.bytes, best.traffic, found.traffic))
    print()
    print(f"{'graph':<10} {'buffers':>7} {'room':>7} {'exact':>7} {'planned':>7}   gap")
    for name, count, room, exact, planned in rows:
        print(f"{name:<10} {count:>7} {room:>7} {exact:>7} {planned:>7} {(planned - exact) / max(exact, 1):>6.1%}")
    exact, planned = sum(r[3] for r in rows), sum(r[4] for r in rows)
    print(f"{'all':<10} {'':>15} {exact:>7} {planned:>7} {(planned - exact) / exact:>6.1%}")
    assert all(r[4] <= 1.05 * r[3] for r in rows)


def life(uses: tuple[int, ...], writes: set[int], updates: Collection[int] = ()) -> Lifetime:
    return Lifetime(uses[0], uses[-1], uses, frozenset(writes), frozenset(updates))


@pytest.mark.parametrize(
    ("item_life", "stays", "expected"),
    [
        # kept for its whole life, and never
        (life((1, 4, 9), {1}), [(0, 2)], []),
        (life((1, 4, 9), {1}), [], ["write 1", "read 4", "read 9"]),
        # what is at home already is not written there again
        (life((1, 4, 9, 12), {1}), [(0, 1), (2, 3)], ["spill 4", "fill 9"]),
        (life((1, 4, 9, 12), {1}), [(1, 2)], ["write 1", "fill 4", "read 12"]),
        # an update makes it stale
        (life((1, 4, 9, 12), {1, 9}, {9}), [(0, 1), (2, 3)], ["spill 4", "fill 9"]),
        (life((1, 4, 9, 12), {1, 9}, {9}), [(1, 2)], ["write 1", "fill 4", "spill 9", "read 12"]),
        # what is written over next need not be saved
        (life((1, 4, 9, 12), {1, 9}), [(0, 1), (2, 3)], []),
    ],
)
def test_moves(item_life: Lifetime, stays: list[tuple[int, int]], expected: list[str]) -> None:
    assert [f"{m.kind} {m.step}" for m in moves(Item("x", 8, item_life), stays)] == expected


@st.composite
def problems(draw: st.DrawFn) -> list[Item]:
    items = []
    for number in range(draw(st.integers(1, 7))):
        uses = sorted(draw(st.sets(st.integers(0, 12), min_size=1, max_size=4)))
        more = draw(st.sets(st.sampled_from(uses)))
        updates = draw(st.sets(st.sampled_from(sorted(more)))) if more else set()
        items.append(
            Item(f"t{number}", 64 * draw(st.integers(1, 4)), life(tuple(uses), {uses[0], *more}, updates - {uses[0]}))
        )
    return items


@given(items=problems(), room=st.integers(1, 10))
@settings(max_examples=40, deadline=None)
def test_no_stays_are_better_than_the_exact_ones_and_more_room_is_never_worse(items: list[Item], room: int) -> None:
    tier, larger = flat(64 * room), flat(64 * (room + 1))
    found = keep(items, tier, 0, tier.bytes, patience=5)
    assert solve(items, tier).traffic <= found[-1].traffic == sum(traffic(i, found[-1].of(i.name)) for i in items)
    # what a smaller tier has, a larger one has too
    assert keep(items, larger, 0, larger.bytes, patience=5)[: len(found)] == found


def test_the_buffer_whose_next_use_is_furthest_is_given_up() -> None:
    """Three are alive at step 3, with room for two; the first is used again last."""
    items = [
        Item("first", 64, life((1, 9), {1})),
        Item("second", 64, life((2, 4), {2})),
        Item("third", 64, life((3, 5), {3})),
    ]
    assert keep(items, flat(128), 0, 128, patience=0)[-1].stays.keys() == {"second", "third"}


def spilling() -> str:
    """A program whose first product waits at home while others need the room."""
    b = Body()
    b.argument("%x", SQUARE)
    early = b.pointwise("arith.addf %a0, %a1", "%x", "%x")
    twice = b.pointwise("arith.mulf %a0, %a1", early, early)
    value = twice
    for _ in range(3):
        value = b.pointwise("arith.mulf %a0, %a1", value, twice)
    for _ in range(4):
        value = b.pointwise("arith.addf %a0, %a1", value, early)
    return b.function("main", ["%x"], [value])


def spilled() -> Plan:
    """Its plan where there is room for three values, and for one op in a section."""
    one = Figure(value=1, unit="units", source="test")
    tiers = (flat(3 * BYTES), *SN40L.tiers[1:])
    return plan(parse(spilling()), SN40L.model_copy(update={"tiers": tiers, "compute_units": one}))


def test_a_spill_and_a_fill_are_in_the_plan_and_the_checker_follows_them() -> None:
    module, found = parse(spilling()), spilled()
    assert check(module, found) == []
    assert [t.kind for t in found.transfers] == ["spill", "fill"]
    spill, fill = found.transfers
    assert spill.tensor == fill.tensor == "main:1"
    assert (spill.source_tier, spill.target_tier) == (fill.target_tier, fill.source_tier) == ("SRAM", "HBM")
    assert spill.bytes == fill.bytes == BYTES
    assert [(t.tier, t.first_use, t.last_use) for t in found.tensors if t.name == "main:1"] == [
        ("SRAM", 1, 3),
        ("SRAM", 11, 17),
        ("HBM", 3, 11),
    ]


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"bytes": BYTES - 1}, "transfer"),
        ({"target": 64 * 1024}, "transfer"),
        ({"step": 5}, "transfer"),
        ({"kind": "fill"}, "transfer"),
        (None, "contents"),
    ],
)
def test_a_wrong_or_missing_spill_is_found(change: dict[str, object] | None, rule: str) -> None:
    module, found = parse(spilling()), spilled()
    spill, fill = found.transfers
    changed = (fill,) if change is None else (spill.model_copy(update=change), fill)
    assert rule in {v.rule for v in check(module, found.model_copy(update={"transfers": changed}))}
