"""The program, run on the planned memory with names for contents.

Each op's result is written to its place and erases what it overlaps, and each op must still find its operands. That is
what shows an update in place to be safe or not.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, defaultdict

from torch_mlir import ir

from snapcc.compiler.dialect.kv import string

from ..machine import SHARED
from ..schema import STATE_PREFIX, Tensor, Transfer
from .function import Function, where
from .program import aliases, bytes_of, empty, ignores, maker, overwrites, state_name


class _Memory:
    """What stands where in a tier: ranges that do not overlap, each with the name of its contents."""

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int, str]] = []

    def write(self, start: int, end: int, contents: str) -> None:
        """Puts contents there; whatever they overlap is lost."""
        if start >= end:
            return
        first = bisect_left(self._ranges, (start,))
        if first and self._ranges[first - 1][1] > start:
            first -= 1
        last = first
        while last < len(self._ranges) and self._ranges[last][0] < end:
            last += 1
        del self._ranges[first:last]
        insort(self._ranges, (start, end, contents))

    def at(self, start: int, end: int) -> str | None:
        """What stands there, whole, and nothing else."""
        found = bisect_left(self._ranges, (start,))
        if found < len(self._ranges) and self._ranges[found][:2] == (start, end):
            return self._ranges[found][2]
        return None

    def holds(self, start: int, end: int, contents: str) -> bool:
        """Whether the contents stand there, whole."""
        if start >= end:
            return True
        at = bisect_left(self._ranges, (start, end, contents))
        return at < len(self._ranges) and self._ranges[at] == (start, end, contents)


class Run:
    """A function run on the memory that its plan has."""

    def __init__(self, function: Function) -> None:
        self._f = function
        self._memory: dict[str, _Memory] = defaultdict(_Memory)
        self._contents: dict[ir.Value, str] = {}
        self._copies: Counter[tuple[int, str]] = Counter()

    def check(self) -> None:
        """Reports every op that does not find what it reads, and every copy that is not in the plan."""
        shared = {t.name: t for t in self._f.plan.tensors if t.kind in SHARED or t.name.startswith(STATE_PREFIX)}
        states = {name: name for name in shared}
        for t in shared.values():
            self._write(t, t.name)
        constants: dict[int, list[ir.Value]] = defaultdict(list)
        for value, t in self._f.where.items():
            op = maker(value)
            if op is None:
                self._fill(value, 0)
            elif op.name == "arith.constant":
                # it comes with the program when its first reader starts, though its name is known before
                self._contents[value] = self._f.ids[value]
                constants[min(p.first_use for p in self._f.places[t.name])].append(value)
        fills, spills = self._transfers()
        buffers: dict[int, list[Tensor]] = defaultdict(list)
        ends: dict[int, list[Tensor]] = defaultdict(list)
        for t in self._f.buffers:
            buffers[t.first_use].append(t)
            ends[t.last_use].append(t)
        for position, op in enumerate(self._f.ops):
            for t in buffers[position]:
                self._write(t, t.name)
            for transfer in fills[position]:
                self._transfer(transfer)
            for value in constants[position]:
                self._fill(value, position)
            self._step(position, op, states)
            for transfer in spills[position]:
                self._transfer(transfer)
            for t in ends[position]:
                if not self._stands(t, t.name):
                    self._f.report("contents", t.name, f"is written over while its section runs, by op {position}")
        for name, contents in states.items():
            if not self._stands(shared[name], contents):
                self._f.report("contents", name, "does not hold at the call's end what it has to")
        self._check_copies()

    def _transfers(self) -> tuple[dict[int, list[Transfer]], dict[int, list[Transfer]]]:
        """The fills and the spills of the function by step, as far as they are between places of their tensors."""
        fills: dict[int, list[Transfer]] = defaultdict(list)
        spills: dict[int, list[Transfer]] = defaultdict(list)
        near = self._f.plan.machine.tiers[0].name
        for t in self._f.plan.transfers:
            if t.function != self._f.name or t.kind == "prefetch":
                continue
            places = [(p.tier, p.offset) for p in self._f.places[t.tensor] if p.first_use <= t.step <= p.last_use]
            ends = ((t.source_tier, t.source), (t.target_tier, t.target))
            there = t.target_tier == near != t.source_tier if t.kind == "fill" else t.source_tier == near
            if not set(ends) <= set(places) or ends[0] == ends[1] or not there:
                self._f.report("transfer", t.tensor, f"{t.kind} at step {t.step}: is not between two places of it")
                continue
            if t.bytes != self._f.named[t.tensor].bytes:
                self._f.report("transfer", t.tensor, f"moves {t.bytes} of {self._f.named[t.tensor].bytes} bytes")
            (fills if t.kind == "fill" else spills)[t.step].append(t)
        return fills, spills

    def _transfer(self, t: Transfer) -> None:
        places = {(p.tier, p.offset): p for p in self._f.places[t.tensor]}
        source, target = places[t.source_tier, t.source], places[t.target_tier, t.target]
        held = self._memory[source.tier].at(source.offset, source.offset + source.bytes)
        if held is None and source.bytes:
            self._f.report("contents", t.tensor, f"{t.kind} at step {t.step}: {where(source)} holds nothing whole")
        self._write(target, held or "")

    def _write(self, t: Tensor, contents: str) -> None:
        self._memory[t.tier].write(t.offset, t.offset + t.bytes, contents)

    def _stands(self, t: Tensor, contents: str) -> bool:
        return self._memory[t.tier].holds(t.offset, t.offset + t.bytes, contents)

    def _fill(self, value: ir.Value, position: int) -> None:
        self._contents[value] = self._f.ids[value]
        self._write(self._f.at(self._f.where[value].name, position), self._f.ids[value])

    def _need(self, position: int, value: ir.Value) -> None:
        if value not in self._f.where:
            return
        t = self._f.at(self._f.where[value].name, position)
        if not self._stands(t, self._contents.get(value, "")):
            self._f.report("contents", self._f.ids[value], f"is not at {where(t)} any more when op {position} reads it")

    def _step(self, position: int, op: ir.Operation, states: dict[str, str]) -> None:
        if op.name == "arith.constant":
            return
        if aliases(op):
            self._alias(op)
            return
        scratch = self._f.named.get(f"{self._f.name}:{position}.scratch")
        if scratch is not None:
            self._write(scratch, scratch.name)
        reads = self._f.reads(position)
        for value in reads:
            self._need(position, value)
        if op.name == "kv.parameter":
            self._contents[op.results[0]] = string(op, "parameter")
        elif op.name == "kv.state_load":
            self._load(op, states)
        elif op.name == "kv.state_store":
            t, value = self._f.named[state_name(op)], op.operands[0]
            states[t.name] = self._contents.get(value, f"stored at {position}")
            if self._f.where.get(value) is not t:
                self._write(t, states[t.name])
                self._copied(position, value, t)
        else:
            self._results(position, op, reads, scratch)

    def _copied(self, position: int, value: ir.Value, target: Tensor) -> None:
        if value in self._f.where or not empty(value):
            self._copies[position, target.name] += bytes_of(value)

    def _check_copies(self) -> None:
        planned: Counter[tuple[int, str]] = Counter()
        ops = {s.name: s.ops for s in self._f.plan.sections if s.function == self._f.name}
        for c in self._f.plan.copies:
            if c.function == self._f.name and c.source != c.target:
                position = next((p for p in ops.get(c.section, ()) if (p, c.target) in self._copies), -1)
                planned[position, c.target] += c.bytes
        for position, target in planned.keys() | self._copies.keys():
            a, b = planned[position, target], self._copies[position, target]
            if a != b:
                self._f.report("copies", target, f"op {position} copies {a} bytes in the plan and {b} in the program")

    def _alias(self, op: ir.Operation) -> None:
        view, source = op.results[0], op.operands[0]
        if source in self._contents:
            self._contents[view] = self._contents[source]

    def _load(self, op: ir.Operation, states: dict[str, str]) -> None:
        value, name = op.results[0], state_name(op)
        self._contents[value] = states[name]
        if self._f.copies_state(op):
            if not self._stands(self._f.named[name], states[name]):
                self._f.report("contents", name, f"does not hold its contents when {self._f.ids[value]} copies them")
            self._write(self._f.at(self._f.where[value].name, self._f.made[value]), states[name])
            self._copied(self._f.made[value], value, self._f.where[value])

    def _results(self, position: int, op: ir.Operation, reads: list[ir.Value], scratch: Tensor | None) -> None:
        busy = [self._f.at(self._f.where[v].name, position) for v in reads if v in self._f.where]
        busy += [scratch] if scratch is not None else []
        updated = overwrites(op)
        targets: list[ir.Value] = []
        for number, result in enumerate(op.results):
            init = op.operands[updated[number]] if number in updated else None
            if init is not None and not empty(init):
                in_place = self._f.where.get(result) is self._f.where.get(init)
                if in_place or not ignores(op, updated[number]):
                    self._need(position, init)
                if not in_place and init in self._f.where:
                    busy.append(self._f.at(self._f.where[init].name, position))
                if not in_place and not ignores(op, updated[number]):
                    self._copied(position, init, self._f.where[result])
            if result in self._f.where:
                targets.append(result)
        for i, result in enumerate(targets):
            t = self._f.at(self._f.where[result].name, position)
            for o in [*busy, *(self._f.at(self._f.where[v].name, position) for v in targets[:i])]:
                if t.tier == o.tier and t.offset < o.offset + o.bytes and o.offset < t.offset + t.bytes:
                    self._f.report("contents", t.name, f"op {position} writes {where(t)} over {o.name}, {where(o)}")
        for result in targets:
            self._fill(result, position)
