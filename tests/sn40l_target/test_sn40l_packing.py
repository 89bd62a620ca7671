"""First fit over lifetimes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from snapcc.sn40l_target.machine import SN40L
from snapcc.sn40l_target.packing import Packing, Span

SPANS = st.lists(st.tuples(st.integers(0, 2**20), st.integers(0, 30), st.integers(0, 10)), max_size=40).map(
    lambda rows: [Span(f"t{i}", size, first, first + length) for i, (size, first, length) in enumerate(rows)]
)


def anywhere(offset: int, size: int) -> int:
    return offset


def test_spans_that_never_meet_share_bytes() -> None:
    packing = Packing(anywhere)
    assert not packing.add_all([Span("a", 100, 0, 1), Span("b", 80, 2, 3), Span("c", 60, 4, 4)])
    assert packing.offsets == {"a": 0, "b": 0, "c": 0}
    assert packing.end == 100


def test_a_step_in_common_is_enough_to_meet() -> None:
    packing = Packing(anywhere)
    packing.add_all([Span("a", 100, 0, 2), Span("b", 80, 2, 3)])
    assert packing.offsets == {"a": 0, "b": 100}


def test_a_hole_is_taken() -> None:
    packing = Packing(anywhere)
    packing.add_all([Span("a", 100, 0, 0), Span("b", 90, 0, 5), Span("c", 80, 1, 5)])
    assert packing.offsets["c"] == 0


def test_what_does_not_fit_is_given_back() -> None:
    packing = Packing(anywhere, base=10, end=100)
    left = packing.add_all([Span("a", 91, 0, 0), Span("b", 90, 0, 0), Span("none", 0, 0, 0)])
    assert [s.name for s in left] == ["a"]
    assert packing.offsets == {"b": 10, "none": 0}


@given(spans=SPANS)
def test_no_two_spans_share_a_byte_at_one_step(spans: list[Span]) -> None:
    legal = SN40L.tier("SRAM").legal
    packing = Packing(legal)
    assert not packing.add_all(spans)
    ranges = [(s, packing.offsets[s.name], packing.offsets[s.name] + s.bytes) for s in spans]
    for s, start, end in ranges:
        assert legal(start, s.bytes) == start or not s.bytes
        assert end <= packing.end or not s.bytes
        for o, other_start, other_end in ranges:
            if s.name != o.name and s.first <= o.last and o.first <= s.last and s.bytes and o.bytes:
                assert end <= other_start or other_end <= start


@given(spans=SPANS)
def test_the_end_is_enough_and_one_byte_less_is_not(spans: list[Span]) -> None:
    free = Packing(anywhere)
    free.add_all(spans)
    assert not Packing(anywhere, 0, free.end).add_all(spans)
    if free.end:
        assert Packing(anywhere, 0, free.end - 1).add_all(spans)
