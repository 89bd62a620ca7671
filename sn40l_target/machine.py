"""What a static dataflow machine offers a plan: its memory tiers and units, each figure with its source."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

Kind = Literal["weight", "cache", "state", "activation", "index", "scratch", "constant"]
"""What a tensor is to the program.

``weight``: a named parameter. ``cache`` and ``state``: kept between calls, for whole sequences or as small values per
row. ``activation``: a floating-point value of one call. ``index``: an integer or boolean one (positions, slots, masks,
index grids). ``scratch``: what an op needs inside itself while it runs. ``constant``: a literal of the program.
"""

SHARED: tuple[Kind, ...] = ("weight", "cache", "state")
"""The kinds that outlive a call: one place for all functions of the program, never lent to anything else."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Figure(_Frozen):
    """One number about the machine, and where it comes from.

    ``low`` and ``high`` bound a figure that is not published: such a figure is a parameter, not a fact.
    """

    value: int | float = Field(gt=0)
    unit: Literal["bytes", "bytes/s", "flop/s", "units"]
    source: str = Field(min_length=1)
    low: float | None = None
    high: float | None = None

    @model_validator(mode="after")
    def _range(self) -> Self:
        low = self.value if self.low is None else self.low
        high = self.value if self.high is None else self.high
        if not low <= self.value <= high:
            raise ValueError(f"a figure must lie in its own range: {self.value} is not in [{low}, {high}]")
        return self


class Tier(_Frozen):
    """One memory: how much it holds, how fast, in which steps, and which kinds of tensor may live there.

    ``granularity``: every offset is a multiple of it. ``unit``: the size of the separate memories that the tier is
    made of (the PMUs of the SRAM); a tensor that fits in one unit lies in one, a larger one starts where a unit
    starts and spans as many as it needs. Without a unit the tier is one flat memory.
    """

    name: str = Field(min_length=1)
    capacity: Figure
    bandwidth: Figure
    granularity: Figure
    unit: Figure | None = None
    kinds: tuple[Kind, ...]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for name, wanted in (
            ("capacity", "bytes"),
            ("granularity", "bytes"),
            ("unit", "bytes"),
            ("bandwidth", "bytes/s"),
        ):
            figure = getattr(self, name)
            if figure is None:
                continue
            if figure.unit != wanted:
                raise ValueError(f"tier {self.name}: {name} must be in {wanted}, got {figure.unit}")
            if wanted == "bytes" and not isinstance(figure.value, int):
                raise ValueError(f"tier {self.name}: {name} must be a whole number of bytes, got {figure.value}")
        if self.unit is not None and self.unit.value % self.granularity.value:
            raise ValueError(
                f"tier {self.name}: the unit must be a multiple of the granularity, "
                f"got {self.unit.value} and {self.granularity.value}"
            )
        return self

    @property
    def bytes(self) -> int:
        """The capacity in bytes."""
        return int(self.capacity.value)

    def legal(self, offset: int, size: int) -> int:
        """The lowest offset from ``offset`` on where a tensor of ``size`` bytes may start."""
        step = int(self.granularity.value)
        start = -(-offset // step) * step
        if self.unit is None:
            return start
        unit = int(self.unit.value)
        into = start % unit
        return start if into == 0 or into + size <= unit else start - into + unit


class Machine(_Frozen):
    """A socket: its tiers, nearest first, and its units."""

    name: str = Field(min_length=1)
    tiers: tuple[Tier, ...] = Field(min_length=1)
    compute_units: Figure
    peak: Figure
    link: Figure

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        names = [t.name for t in self.tiers]
        if len(set(names)) != len(names):
            raise ValueError(f"tiers must have different names, got {', '.join(names)}")
        for kind in get_args(Kind):
            if not any(kind in t.kinds for t in self.tiers):
                raise ValueError(f"a tensor of each kind must have a tier to live in, but no tier takes kind {kind!r}")
        for field, wanted in (("compute_units", "units"), ("peak", "flop/s"), ("link", "bytes/s")):
            if getattr(self, field).unit != wanted:
                raise ValueError(f"{field} must be in {wanted}, got {getattr(self, field).unit}")
        return self

    def tier(self, name: str) -> Tier:
        """A tier by name.

        Raises:
            ValueError: no tier has that name.
        """
        for tier in self.tiers:
            if tier.name == name:
                return tier
        raise ValueError(f"{self.name} has no tier {name!r}; its tiers are {', '.join(t.name for t in self.tiers)}")

    def with_capacities(self, capacities: Mapping[str, int]) -> Machine:
        """The same machine with other capacities, in bytes, for the tiers named.

        Raises:
            ValueError: an unknown tier, or a capacity that is not positive.
        """
        for name in capacities:
            self.tier(name)
        tiers = []
        for tier in self.tiers:
            if tier.name in capacities and capacities[tier.name] != tier.bytes:
                figure = Figure(value=capacities[tier.name], unit="bytes", source="given by the user")
                tier = tier.model_copy(update={"capacity": figure})
            tiers.append(tier)
        return self.model_copy(update={"tiers": tuple(tiers)})


_PAPER = "SN40L, arXiv 2405.07518"
_DECK = "SambaNova, Hot Chips 2024"
_SNAPSTREAM = "SnapStream, arXiv 2511.03092v1"

_PMUS = 1040
_PMU_BYTES = 512 * 1024
_PASSING: tuple[Kind, ...] = ("activation", "index", "scratch", "constant")

SN40L = Machine(
    name="SN40L",
    tiers=(
        Tier(
            name="SRAM",
            capacity=Figure(
                value=_PMUS * _PMU_BYTES,
                unit="bytes",
                source=f"520 MiB per socket: {_PAPER}; equal to 1,040 PMUs of 512 KiB",
            ),
            bandwidth=Figure(
                value=244e12,
                unit="bytes/s",
                source=f"not published: above 100 TB/s ({_SNAPSTREAM}, Fig. 2); SN10's 150 TB/s scaled from 640 PMUs",
                low=100e12,
                high=244e12,
            ),
            granularity=Figure(
                value=64, unit="bytes", source="not published; at least a vector of 16 f32", low=32, high=_PMU_BYTES
            ),
            unit=Figure(
                value=_PMU_BYTES,
                unit="bytes",
                source=f"computed: 520 MiB / 1,040 PMUs, {_PAPER}; 0.5 MB in CS149's notes",
            ),
            kinds=_PASSING,
        ),
        Tier(
            name="HBM",
            capacity=Figure(value=64 * 2**30, unit="bytes", source=f"64 GiB per socket: {_PAPER}"),
            bandwidth=Figure(value=1.6e12, unit="bytes/s", source=f"{_SNAPSTREAM}; {_DECK} (25.6 TB/s / 16 sockets)"),
            granularity=Figure(
                value=64,
                unit="bytes",
                source="not published; two 32-byte bursts of a pseudo channel",
                low=32,
                high=4096,
            ),
            kinds=(*SHARED, *_PASSING),
        ),
        Tier(
            name="DDR",
            capacity=Figure(value=1_500_000_000_000, unit="bytes", source=f"1.5 TB per socket: {_PAPER}"),
            bandwidth=Figure(
                value=100e9, unit="bytes/s", source=f"above 100 GB/s: {_SNAPSTREAM}; {_DECK} (1,600 GB/s / 16 sockets)"
            ),
            granularity=Figure(
                value=64, unit="bytes", source="not published; one 64-byte burst of DDR4 or DDR5", low=64, high=4096
            ),
            kinds=(*SHARED, *_PASSING),
        ),
    ),
    compute_units=Figure(value=1040, unit="units", source=f"PCUs per socket: {_PAPER}"),
    peak=Figure(value=638e12, unit="flop/s", source=f"bf16, per socket: {_PAPER}; {_DECK}"),
    link=Figure(
        value=275e9,
        unit="bytes/s",
        source="per direction between sockets; not published, inferred from SN50's figure",
        low=250e9,
        high=320e9,
    ),
)
"""One SN40L socket."""
