"""One function of the program against its part of the plan: which tensor of the plan each value is in."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from torch_mlir import ir

from ..machine import SHARED
from ..schema import Plan, Tensor
from .program import aliases, empty, from_outside, maker, overwrites, ranked, scratch_needed, source, state_name


@dataclass(frozen=True)
class Violation:
    """One rule that a plan breaks: which rule, in which function, for which tensor (or value), and how."""

    rule: str
    function: str
    tensor: str
    message: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.function}: {self.tensor}: {self.message}"


def where(t: Tensor) -> str:
    """Where a tensor stands, in words."""
    return f"{t.kind} at {t.tier} [{t.offset}, {t.offset + t.bytes})"


class Function:
    """A function's body and its part of the plan.

    ``ops`` by position and ``ids`` of values; ``where`` has the tensor of the plan that each value is in, ``made`` the
    position of the op that makes it. ``tensors`` are those of the program, ``buffers`` those that sections have beside
    them; ``places`` the tensors by name, nearest tier first, ``named`` one of each. ``scratch`` has the least bytes
    that ops need inside themselves, ``found`` what is wrong.
    """

    def __init__(self, name: str, function: ir.Operation, tensors: Sequence[Tensor], plan: Plan) -> None:
        self.name = name
        self.plan = plan
        self.tensors = [t for t in tensors if t.of is None]
        self.buffers = [t for t in tensors if t.of is not None]
        self.sections = [s for s in plan.sections if s.function == name]
        self._ends = [s.ops[-1] for s in self.sections if s.ops]
        self._arguments = list(function.regions[0].blocks[0].arguments)
        self.ops = [o.operation for o in function.regions[0].blocks[0].operations]
        self._outside = [from_outside(op) for op in self.ops]
        self.found: list[Violation] = []
        self.ids: dict[ir.Value, str] = {}
        self.where: dict[ir.Value, Tensor] = {}
        self.made: dict[ir.Value, int] = {}
        self.scratch: dict[str, int] = {}
        self.named = {t.name: t for t in self.tensors}
        self.places: dict[str, list[Tensor]] = defaultdict(list)
        nearest = {tier.name: number for number, tier in enumerate(plan.machine.tiers)}
        for t in sorted(self.tensors, key=lambda t: (nearest.get(t.tier, len(nearest)), t.first_use)):
            self.places[t.name].append(t)
        self._name_values()
        self._match()

    def report(self, rule: str, tensor: str, message: str) -> None:
        """Notes what is wrong."""
        self.found.append(Violation(rule, self.name, tensor, message))

    def _name_values(self) -> None:
        for i, argument in enumerate(self._arguments):
            self.ids[argument] = f"{self.name}:arg{i}"
            self.made[argument] = -1
        for position, op in enumerate(self.ops):
            for i, result in enumerate(op.results):
                self.ids[result] = f"{self.name}:{position}" + (f"#{i}" if len(op.results) > 1 else "")
                self.made[result] = position

    def step(self, position: int) -> int:
        """The number of the section that runs at a position, or of the next that does."""
        return bisect_left(self._ends, position)

    def reads(self, position: int) -> list[ir.Value]:
        """The tensors whose contents an op looks at, other than those that it updates."""
        op = self.ops[position]
        if aliases(op):
            return []
        updated = set(overwrites(op).values())
        return [v for i, v in enumerate(op.operands) if i not in updated and ranked(v)] + self._outside[position]

    # every tensor once

    def _match(self) -> None:
        by_id: dict[str, Tensor] = {}
        names = set(self.places)
        for name, places in self.places.items():
            self._match_places(name, places)
            for value in places[0].values:
                if value in by_id:
                    self.report("placed", value, f"stands in {by_id[value].name} and in {name}")
                by_id[value] = self.named[name]
        read = {source(v) for p in range(len(self.ops)) for v in self.reads(p)}
        needed = [v for v in self.ids if ranked(v) and not (empty(v) and source(v) not in read)]
        for value in needed:
            found = by_id.pop(self.ids[value], None)
            if found is None:
                self.report("placed", self.ids[value], "is a tensor of the program without a place")
            else:
                self.where[value] = found
        for value, t in self.where.items():
            op = maker(value)
            if op is not None and aliases(op) and self.where.get(op.operands[0]) is not t:
                self.report("placed", self.ids[value], "is a view, and stands elsewhere than what it is a view of")
        for value, t in by_id.items():
            self.report("placed", value, f"stands in {t.name} but is no tensor of the program that needs a place")
        states = {state_name(op) for op in self.ops if op.name in ("kv.state_load", "kv.state_store")}
        blocks = {f"{self.name}:{p}.scratch": op for p, op in enumerate(self.ops) if op.regions}
        self.scratch = {name: least for name, op in blocks.items() if (least := scratch_needed(op))}
        for t in self.tensors:
            if not t.values and t.name not in (blocks if t.kind == "scratch" else states):
                self.report("placed", t.name, "holds no value of the program")
        for name in sorted((states | self.scratch.keys()) - names):
            self.report("placed", name, "is a state, or what an op needs inside itself, and has no place")

    def _match_places(self, name: str, places: list[Tensor]) -> None:
        """Several places of one tensor must be the same but for where and when, and not two in one tier at a time."""
        for a, b in pairwise(places):
            if (a.kind, a.bytes, a.values, a.section) != (b.kind, b.bytes, b.values, b.section):
                self.report("placed", name, f"is {where(a)} and {where(b)}, which are not of one tensor")
            if a.kind in SHARED or (a.tier == b.tier and a.last_use >= b.first_use):
                self.report("placed", name, f"is in the plan more than once: {where(a)} and {where(b)}")

    def at(self, name: str, position: int) -> Tensor:
        """The place of a tensor that the op at a position uses: in the nearest tier where it stands by then."""
        places = self.places[name]
        here = [t for t in places if t.kind in SHARED or t.first_use <= position <= t.last_use]
        return here[0] if here else places[0]

    def copies_state(self, load: ir.Operation) -> bool:
        """Whether a load takes the state to a place of its own; otherwise it only names what stands somewhere."""
        value = load.results[0]
        return self.where[value].kind not in SHARED and self.where[value].values[0] == self.ids[value]

    def touched(self, position: int, blank: bool = True) -> list[Tensor]:
        """The tensors that the op at a position reads or writes; with blank destinations, which it does not look at."""
        op = self.ops[position]
        if aliases(op) or op.name in ("arith.constant", "kv.parameter"):
            return []
        if op.name == "kv.state_load":
            t = self.where[op.results[0]]
            return [t, self.named[state_name(op)]] if self.copies_state(op) else []
        into = [op.operands[i] for i in overwrites(op).values() if blank or not empty(op.operands[i])]
        values = [*self.reads(position), *into, *op.results]
        found = [self.where[v] for v in values if v in self.where]
        if op.name == "kv.state_store":
            found.append(self.named[state_name(op)])
        scratch = self.named.get(f"{self.name}:{position}.scratch")
        return [*found, scratch] if scratch is not None else found
