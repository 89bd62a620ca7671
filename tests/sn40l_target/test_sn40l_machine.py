"""The description of the machine: figures with sources, and what may not be said."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from snapcc.sn40l_target.machine import SN40L, Figure, Machine, MachineError, Tier, load_machine, shipped

PMU = 512 * 1024


def bytes_(value: int) -> Figure:
    return Figure(value=value, unit="bytes", source="test")


def tier(**fields: object) -> Tier:
    """A flat memory of 1,024 bytes for every kind, with some fields replaced."""
    rate = Figure(value=1.0, unit="bytes/s", source="test")
    flat = {"name": "MEM", "capacity": bytes_(1024), "bandwidth": rate, "granularity": bytes_(8)}
    return Tier.model_validate({**flat, "kinds": SN40L.tier("HBM").kinds, **fields})


def test_the_socket_has_the_published_figures() -> None:
    assert [t.name for t in SN40L.tiers] == ["SRAM", "HBM", "DDR"]
    assert SN40L.tier("SRAM").bytes == 520 * 2**20 == 1040 * PMU
    assert SN40L.tier("HBM").bytes == 64 * 2**30
    assert SN40L.tier("HBM").bandwidth.value == 1.6e12
    assert SN40L.tier("DDR").bandwidth.value == 100e9


def test_every_figure_has_a_source_and_an_unpublished_one_a_range() -> None:
    figures = [SN40L.compute_units, SN40L.launch, *SN40L.peak.values(), *SN40L.links.values()]
    for t in SN40L.tiers:
        figures += [f for f in (t.capacity, t.bandwidth, t.granularity, t.unit, t.banks) if f]
    for figure in figures:
        assert figure.source
        assert ("not published" in figure.source) == (figure.low is not None)


def test_what_may_live_in_which_tier() -> None:
    assert not {"weight", "cache", "state"} & set(SN40L.tier("SRAM").kinds)
    assert set(SN40L.tier("HBM").kinds) == set(SN40L.tier("DDR").kinds) > set(SN40L.tier("SRAM").kinds)


def test_a_description_survives_json() -> None:
    assert Machine.model_validate_json(SN40L.model_dump_json()) == SN40L


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"capacity": {"value": -1, "unit": "bytes", "source": "x"}}, "greater than 0"),
        ({"capacity": {"value": 8, "unit": "bytes"}}, "source"),
        ({"capacity": {"value": 8, "unit": "bytes/s", "source": "x"}}, "capacity must be in bytes, got bytes/s"),
        ({"capacity": {"value": 8.5, "unit": "bytes", "source": "x"}}, "whole number of bytes, got 8.5"),
        ({"capacity": bytes_(8), "unit": bytes_(16)}, "must hold one unit, got 8 and 16"),
        ({"unit": {"value": 12, "unit": "bytes", "source": "x"}}, "multiple of the granularity, got 12 and 8"),
        ({"kinds": ["weight", "memory"]}, "Input should be 'weight'"),
        ({"speed": 1}, "Extra inputs"),
    ],
)
def test_a_wrong_tier_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        tier(**change)


def test_a_wrong_machine_is_refused() -> None:
    with pytest.raises(ValidationError, match="tiers must have different names, got MEM, MEM"):
        SN40L.model_validate({**SN40L.model_dump(), "tiers": [tier(), tier()]})
    with pytest.raises(ValidationError, match="no tier takes kind 'weight'"):
        SN40L.model_validate({**SN40L.model_dump(), "tiers": [SN40L.tier("SRAM").model_dump()]})
    with pytest.raises(ValidationError, match=r"3 is not in \[1.0, 2.0\]"):
        Figure(value=3, unit="bytes", source="x", low=1, high=2)


def test_capacities_can_be_given() -> None:
    changed = SN40L.with_capacities({"SRAM": 1024})
    assert changed.tier("SRAM").bytes == 1024
    assert changed.tier("HBM") == SN40L.tier("HBM")
    with pytest.raises(MachineError, match="SN40L has no tier 'L2'; its tiers are SRAM, HBM, DDR"):
        SN40L.with_capacities({"L2": 1})
    with pytest.raises(MachineError, match="capacity of SRAM must be at least 1 byte, got 0"):
        SN40L.with_capacities({"SRAM": 0})


def test_every_shipped_machine_loads_and_only_one_exists() -> None:
    for name in shipped():
        machine = load_machine(name)
        assert machine.tiers[0].units * machine.tiers[0].unit_bytes == machine.tiers[0].bytes
    assert "sn40l" in shipped()
    assert len(shipped()) > 1


def test_a_type_without_a_peak_runs_at_the_slowest() -> None:
    assert SN40L.peak_of("bf16") == 638e12
    assert SN40L.peak_of("f64") == min(f.value for f in SN40L.peak.values())


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("value = 1.6e12", "value = -1.6e12", "tiers.HBM.bandwidth.value: Input should be greater than 0, got -16"),
        ("[launch]\nvalue = 3.5e-6", "[launch]", "launch.value: Field required"),
        ("value = 524_288", "value = 524_289", "tier SRAM: the unit must be a multiple of the granularity, got 524289"),
        (
            "value = 16\n",
            "value = 7\n",
            "tier SRAM: the banks must divide a unit into multiples .* got 7 banks, 524288",
        ),
        ("high = 320e9", "high = 200e9", r"links.socket: a figure must lie in its own range: 275000000000.0 is not in"),
        ('unit = "seconds"', 'unit = "bytes"', "the machine: launch must be in seconds, got bytes"),
        ('name = "HBM"', 'name = "SRAM"', "tiers must have different names, got SRAM, SRAM, DDR"),
        ("[launch]", "[start]", "launch: Field required"),
        ("[launch]", "[launch", "is not TOML"),
    ],
)
def test_a_wrong_file_is_refused_by_field_rule_and_value(old: str, new: str, message: str, tmp_path: Path) -> None:
    text = (files("snapcc.sn40l_target") / "machines" / "sn40l.toml").read_text()
    assert old in text
    path = tmp_path / "machine.toml"
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(MachineError, match=message) as caught:
        load_machine(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_a_machine_that_is_nowhere_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match=r"cannot be read as a file: .*; give a TOML file or one of .*sn40l"):
        load_machine(tmp_path / "none.toml")


@given(offset=st.integers(0, 4 * PMU), size=st.integers(1, 3 * PMU))
def test_a_legal_offset_is_the_lowest_aligned_one_that_keeps_to_the_units(offset: int, size: int) -> None:
    sram = SN40L.tier("SRAM")

    def is_legal(start: int) -> bool:
        if start % 64:
            return False
        crosses = start // PMU != (start + size - 1) // PMU
        return not crosses or (size > PMU and start % PMU == 0)

    found = sram.legal(offset, size)
    assert found >= offset
    assert is_legal(found)
    assert not any(is_legal(s) for s in range(-(-offset // 64) * 64, found, 64))
