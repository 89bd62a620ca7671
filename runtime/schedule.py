"""What a compiled function writes, with the bytes, read from IREE's stream IR."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Write:
    """One write of a function.

    Attributes:
        kind: ``copy`` and ``fill`` are commands; ``new`` is a dispatch that writes a buffer whole, ``update`` one that
            writes into a buffer that it also reads.
        bytes: the extent of the buffer that is written, or may be.
        by: the dispatch's name; "" for commands.
        into: the buffer, as the function calls it.
        temporary: whether that buffer lives in the call alone: no state, no result.
    """

    kind: Literal["copy", "fill", "new", "update"]
    bytes: int
    by: str = ""
    into: str = field(default="", compare=False)
    temporary: bool = field(default=False, compare=False)


_FUNCTION = r"util\.func public @{}\b.*?(?=\n  (?:util\.func|util\.initializer|stream\.executable)|\Z)"
_CONSTANT = re.compile(r"(%[\w#]+) = arith\.constant (\d+) : index")
_COPY = re.compile(
    r"stream\.cmd\.copy .*?, (?P<into>.*?), (?P<length>%[\w#]+) : .* -> !stream\.resource<(?P<kind>\w+)>"
)
_FILL = re.compile(
    r"stream\.cmd\.fill .*?, (?P<into>%[\w#]+\[.*?) for (?P<length>%[\w#]+)\].*!stream\.resource<(?P<kind>\w+)>"
)
_DISPATCH = re.compile(r"stream\.cmd\.dispatch .*?@[\w$]+::@(?P<by>[\w$]+)")
_OPERAND = re.compile(
    r"^\s*(?P<access>wo|rw) (?P<into>%[\w#]+\[.*?) for (?P<length>%[\w#]+)\] : !stream\.resource<(?P<kind>\w+)>"
)


def writes(ir: str, function: str) -> list[Write]:
    """Every write of a function, in order, from what ``snapcc.runtime.iree_compile.stream_ir`` gives."""
    last = ir.rpartition("// -----// IR Dump After ScheduleAllocationPass")[2]
    match = re.search(_FUNCTION.format(re.escape(function)), last, re.DOTALL)
    assert match is not None, f"the stream IR has no function {function}"
    body = match[0]
    constants = {name: int(value) for name, value in _CONSTANT.findall(last)}
    found: list[Write] = []
    by = ""

    def add(kind: Literal["copy", "fill", "new", "update"], match: re.Match[str], by: str = "") -> None:
        into = match["into"].removesuffix("]") + "]"
        found.append(Write(kind, constants[match["length"]], by, into, match["kind"] == "transient"))

    for line in body.splitlines():
        if (copy := _COPY.search(line)) is not None:
            add("copy", copy)
        elif (fill := _FILL.search(line)) is not None:
            add("fill", fill)
        elif (dispatch := _DISPATCH.search(line)) is not None:
            by = dispatch["by"]
        elif (operand := _OPERAND.match(line)) is not None:
            add("new" if operand["access"] == "wo" else "update", operand, by)
    return found


def not_in_place(ir: str, function: str, least: int) -> list[Write]:
    """The writes of ``least`` bytes or more that are no scatter into a buffer: copies, re-layouts, temporaries."""
    return [
        write
        for write in writes(ir, function)
        if write.bytes >= least and not (write.kind == "update" and "scatter" in write.by)
    ]


def copied(writes: Sequence[Write]) -> int:
    """Bytes moved by writes: those of each command and each whole write, and each buffer that is updated once.

    Dispatches that each update a part of a buffer, as a join's do, are taken to fill it together.
    """
    whole = sum(write.bytes for write in writes if write.kind != "update")
    return whole + sum({write.into: write.bytes for write in writes if write.kind == "update"}.values())


def temporaries(writes: Iterable[Write]) -> dict[str, int]:
    """The buffers of the call alone that are written, and the bytes of each."""
    return {write.into: write.bytes for write in writes if write.temporary}
