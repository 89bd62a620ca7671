"""What each op of a function reads and writes: which buffers, how many bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch_mlir import ir

from .bounds import size
from .graph import Function
from .storage import destinations, is_blank, is_tensor, keeps_contents

_PARTIAL = frozenset({"tensor.insert_slice", "tensor.insert", "kv.scatter", "iree_linalg_ext.scatter"})
"""Ops that write only as much of their destination as they are given."""


@dataclass(frozen=True)
class Access:
    """``bytes`` of a buffer that an op reads, or writes."""

    buffer: str
    bytes: int
    writes: bool


def accesses(function: Function) -> Mapping[int, Sequence[Access]]:
    """What the ops that do work read and write, by position.

    An op reads what its operands' types hold, but no more than the buffer under them (a broadcast is multicast, not
    read again); where an op looks up elements at computed places it reads as many as it makes.
    """
    held = {value: name for name, buffer in function.buffers.items() for value in buffer.values}
    found: dict[int, list[Access]] = {}
    for node, data in function.graph.nodes(data=True):
        if data["works"] and data["position"] >= 0:
            found[data["position"]] = _of(function, function.ops[data["position"]], data["position"], held)
            scratch = function.buffers.get(f"{node}.scratch")
            if scratch is not None:
                found[data["position"]] += [Access(scratch.name, scratch.bytes, writes) for writes in (False, True)]
    for move in function.moves:
        if move.source != move.target and move.position in found:
            found[move.position] += [Access(move.source, move.bytes, False)] * (move.source in function.buffers)
            found[move.position].append(Access(move.target, move.bytes, True))
    return found


def _of(function: Function, op: ir.Operation, position: int, held: Mapping[str, str]) -> list[Access]:
    if op.name == "kv.state_load" or op.name == "kv.state_store":
        return []  # a copy that it makes is among the function's moves
    into = dict(destinations(op))
    made = sum(size(r) for r in op.results if is_tensor(r))
    found: list[Access] = []

    def add(value: ir.Value, bytes_: int, writes: bool) -> None:
        name = held.get(function.ids.get(value, ""))
        if name is not None:
            found.append(Access(name, min(bytes_, function.buffers[name].bytes), writes))

    for number, value in enumerate(op.operands):
        if is_tensor(value) and number not in into:
            add(value, size(value), False)
    for value in function.captured.get(position, ()):
        add(value, made if op.name == "linalg.generic" else size(value), False)
    results = {result: operand for operand, result in into.items()}
    for number, value in enumerate(op.results):
        if not is_tensor(value):
            continue
        partial = op.name in _PARTIAL
        add(value, size(op.operands[0]) if partial else size(value), True)
        if number in results and not partial and not is_blank(op.operands[results[number]]):
            add(op.operands[results[number]], size(value) * keeps_contents(op, results[number]), False)
    return found
