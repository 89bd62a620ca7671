"""What a static dataflow machine offers a plan: its memory tiers and units, each figure with its source.

A machine is a TOML file with the fields of ``Machine``; ``machines/`` holds those that are shipped. Every figure is a
table of ``value``, ``unit``, ``source`` and, where it is not published, the range ``low`` to ``high``.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

Kind = Literal["weight", "cache", "state", "activation", "index", "scratch", "constant"]
"""What a tensor is to the program.

``weight``: a named parameter. ``cache`` and ``state``: kept between calls, for whole sequences or as small values per
row. ``activation``: a floating-point value of one call. ``index``: an integer or boolean one (positions, slots, masks,
index grids). ``scratch``: what a section needs while it runs, for its stages or inside an op. ``constant``: a literal
of the program.
"""

SHARED: tuple[Kind, ...] = ("weight", "cache", "state")
"""The kinds that outlive a call: one place for all functions of the program, never lent to anything else."""


class MachineError(ValueError):
    """A machine that cannot be read: which file, which field, which rule, which value."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Figure(_Frozen):
    """One number about the machine, and where it comes from.

    ``low`` and ``high`` bound a figure that is not published: such a figure is a parameter, not a fact.
    """

    value: int | float = Field(gt=0)
    unit: Literal["bytes", "bytes/s", "flop/s", "seconds", "units"]
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
    starts and spans as many as it needs. Without a unit, or where it is smaller than one, the tier is one flat
    memory. ``banks``: into how many parts a unit is divided that can be read and written at the same time.
    """

    name: str = Field(min_length=1)
    capacity: Figure
    bandwidth: Figure
    granularity: Figure
    unit: Figure | None = None
    banks: Figure | None = None
    kinds: tuple[Kind, ...]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        _units(
            f"tier {self.name}: ",
            {
                "capacity": (self.capacity, "bytes"),
                "granularity": (self.granularity, "bytes"),
                "unit": (self.unit, "bytes"),
                "banks": (self.banks, "units"),
                "bandwidth": (self.bandwidth, "bytes/s"),
            },
        )
        if self.unit is not None and self.unit.value % self.granularity.value:
            raise ValueError(
                f"tier {self.name}: the unit must be a multiple of the granularity, "
                f"got {self.unit.value} and {self.granularity.value}"
            )
        if self.unit is not None and self.capacity.value < self.unit.value:
            raise ValueError(
                f"tier {self.name}: the capacity must hold one unit, got {self.capacity.value} and {self.unit.value}"
            )
        if self.banks is not None and (self.unit is None or self.bank % self.granularity.value):
            size = "no unit" if self.unit is None else self.unit.value
            raise ValueError(
                f"tier {self.name}: the banks must divide a unit into multiples of the granularity, got "
                f"{self.banks.value} banks, {size} and {self.granularity.value}"
            )
        return self

    @property
    def bytes(self) -> int:
        """The capacity in bytes."""
        return int(self.capacity.value)

    @property
    def flat(self) -> bool:
        """Whether the tier is one memory without units."""
        return self.unit is None or self.bytes < self.unit.value

    @property
    def unit_bytes(self) -> int:
        """The bytes of one unit; of one step where the tier is one flat memory."""
        return int((self.granularity if self.unit is None or self.flat else self.unit).value)

    @property
    def units(self) -> int:
        """How many units the tier has; steps where it is one flat memory."""
        return self.bytes // self.unit_bytes

    @property
    def bank(self) -> int:
        """The bytes of one bank; of one unit where it has no banks."""
        count = 1 if self.banks is None or self.flat else int(self.banks.value)
        # a unit that the banks do not divide is refused where the tier is made
        return self.unit_bytes // count if self.unit_bytes % count == 0 else 1

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
    """A socket: its tiers, nearest first, and its units.

    The first tier is the one that the compute units read and write: stages' buffers and ops' scratch lie there.
    ``peak`` is by element type as MLIR spells it; ``links`` by what they lead to, per direction; ``launch`` is what
    starting a section costs.
    """

    name: str = Field(min_length=1)
    tiers: tuple[Tier, ...] = Field(min_length=1)
    compute_units: Figure
    peak: Mapping[str, Figure] = Field(min_length=1)
    links: Mapping[str, Figure]
    launch: Figure

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        names = [t.name for t in self.tiers]
        if len(set(names)) != len(names):
            raise ValueError(f"tiers must have different names, got {', '.join(names)}")
        for kind in get_args(Kind):
            if not any(kind in t.kinds for t in self.tiers):
                raise ValueError(f"a tensor of each kind must have a tier to live in, but no tier takes kind {kind!r}")
        if "scratch" not in self.tiers[0].kinds:
            raise ValueError(f"the first tier must take what ops need while they run, but {names[0]} takes no scratch")
        _units(
            "",
            {"compute_units": (self.compute_units, "units"), "launch": (self.launch, "seconds")}
            | {f"peak.{element}": (figure, "flop/s") for element, figure in self.peak.items()}
            | {f"links.{name}": (figure, "bytes/s") for name, figure in self.links.items()},
        )
        return self

    def tier(self, name: str) -> Tier:
        """A tier by name.

        Raises:
            MachineError: no tier has that name.
        """
        for tier in self.tiers:
            if tier.name == name:
                return tier
        raise MachineError(f"{self.name} has no tier {name!r}; its tiers are {', '.join(t.name for t in self.tiers)}")

    def home(self, kind: Kind) -> Tier:
        """The first tier where tensors of a kind may live."""
        return next(tier for tier in self.tiers if kind in tier.kinds)

    def peak_of(self, element: str) -> float:
        """Operations a second of the socket on an element type; the slowest peak for a type that is not listed."""
        known = self.peak.get(element)
        return float(known.value if known is not None else min(figure.value for figure in self.peak.values()))

    def with_capacities(self, capacities: Mapping[str, int]) -> Machine:
        """The same machine with other capacities, in bytes, for the tiers named.

        Raises:
            MachineError: an unknown tier, or a capacity that is not positive.
        """
        for name, capacity in capacities.items():
            self.tier(name)
            if capacity < 1:
                raise MachineError(f"{self.name}: the capacity of {name} must be at least 1 byte, got {capacity}")
        tiers = []
        for tier in self.tiers:
            if tier.name in capacities and capacities[tier.name] != tier.bytes:
                figure = Figure(value=capacities[tier.name], unit="bytes", source="given by the user")
                tier = tier.model_copy(update={"capacity": figure})
            tiers.append(tier)
        return self.model_copy(update={"tiers": tuple(tiers)})


def _units(owner: str, figures: Mapping[str, tuple[Figure | None, str]]) -> None:
    for name, (figure, wanted) in figures.items():
        if figure is None:
            continue
        if figure.unit != wanted:
            raise ValueError(f"{owner}{name} must be in {wanted}, got {figure.unit}")
        if wanted in ("bytes", "units") and not isinstance(figure.value, int):
            raise ValueError(f"{owner}{name} must be a whole number of {wanted}, got {figure.value}")


_SHIPPED = files("snapcc.sn40l_target") / "machines"


def shipped() -> list[str]:
    """The names of the machines that come with snapcc."""
    return sorted(entry.name.removesuffix(".toml") for entry in _SHIPPED.iterdir() if entry.name.endswith(".toml"))


def load_machine(machine: str | Path) -> Machine:
    """A machine by the name of a shipped one, or from a TOML file.

    Raises:
        MachineError: no such machine or file, or a file whose figures are missing, wrong or contradict one another.
    """
    name = str(machine)
    if name in shipped():
        return _parse(name, (_SHIPPED / f"{name}.toml").read_text())
    try:
        text = Path(machine).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise MachineError(
            f"{name}: is no machine of snapcc's and cannot be read as a file: {error}; "
            f"give a TOML file or one of {', '.join(shipped())}"
        ) from None
    return _parse(name, text)


def _parse(file: str, text: str) -> Machine:
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise MachineError(f"{file}: is not TOML: {error}; write it as {_SHIPPED / 'sn40l.toml'} is written") from None
    try:
        return Machine.model_validate(content)
    except ValidationError as error:
        found = error.errors()
        lines = [f"{file}: {_field(e['loc'], content)}: {_rule(e)}" for e in found]
        raise MachineError(
            "\n".join([*lines, "each figure has a value, a unit, a source and perhaps a range"])
        ) from None


def _field(path: Sequence[str | int], content: Any) -> str:
    """A field's path in words, tiers by name; alternatives of a type, which pydantic adds at the end, are left out."""
    words: list[str] = []
    at: Any = content
    for key in path:
        if isinstance(key, int):
            at = at[key] if isinstance(at, list) else None
        else:
            at = at.get(key) if isinstance(at, dict) else None
        named = isinstance(key, int) and isinstance(at, dict) and "name" in at
        if key not in ("int", "float"):
            words.append(str(at["name"]) if named else str(key))
    return ".".join(words) or "the machine"


def _rule(error: Mapping[str, Any]) -> str:
    message = str(error["msg"]).removeprefix("Value error, ")
    given = error["input"]
    return message if isinstance(given, list | dict) else f"{message}, got {given!r}"


SN40L = load_machine("sn40l")
"""One SN40L socket."""
