"""What a compiled function writes, with the bytes, read from IREE's stream IR."""

import re
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Write:
    """One write of a function.

    Attributes:
        kind: ``copy`` and ``fill`` are commands; ``new`` is a dispatch that writes a buffer whole, ``update`` one that
            writes into a buffer that it also reads.
        bytes: the extent of the buffer that is written, or may be.
        by: the dispatch's name; "" for commands.
    """

    kind: Literal["copy", "fill", "new", "update"]
    bytes: int
    by: str = ""


_FUNCTION = r"util\.func public @{}\b.*?(?=\n  (?:util\.func|util\.initializer|stream\.executable)|\Z)"
_CONSTANT = re.compile(r"(%[\w#]+) = arith\.constant (\d+) : index")
_COPY = re.compile(r"stream\.cmd\.copy .*?, .*?, (?P<length>%[\w#]+) :")
_FILL = re.compile(r"stream\.cmd\.fill .*?\[.*? for (?P<length>%[\w#]+)\]")
_DISPATCH = re.compile(r"stream\.cmd\.dispatch .*?@[\w$]+::@(?P<by>[\w$]+)")
_OPERAND = re.compile(r"^\s*(?P<access>wo|rw) %[\w#]+\[.*? for (?P<length>%[\w#]+)\]", re.MULTILINE)


def writes(ir: str, function: str) -> list[Write]:
    """Every write of a function, in order, from what ``snapcc.runtime.iree_compile.stream_ir`` gives."""
    last = ir.rpartition("// -----// IR Dump After ScheduleAllocationPass")[2]
    match = re.search(_FUNCTION.format(re.escape(function)), last, re.DOTALL)
    assert match is not None, f"the stream IR has no function {function}"
    body = match[0]
    constants = {name: int(value) for name, value in _CONSTANT.findall(last)}
    found, by = [], ""
    for line in body.splitlines():
        if (copy := _COPY.search(line)) is not None:
            found.append(Write("copy", constants[copy["length"]]))
        elif (fill := _FILL.search(line)) is not None:
            found.append(Write("fill", constants[fill["length"]]))
        elif (dispatch := _DISPATCH.search(line)) is not None:
            by = dispatch["by"]
        elif (operand := _OPERAND.match(line)) is not None:
            kind: Literal["new", "update"] = "new" if operand["access"] == "wo" else "update"
            found.append(Write(kind, constants[operand["length"]], by))
    return found


def not_in_place(ir: str, function: str, least: int) -> list[Write]:
    """The writes of ``least`` bytes or more that are no scatter into a buffer: copies, re-layouts, temporaries."""
    return [
        write
        for write in writes(ir, function)
        if write.bytes >= least and not (write.kind == "update" and "scatter" in write.by)
    ]
