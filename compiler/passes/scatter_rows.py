"""New rows scattered into a cache in place: what the lowerings of ``kv.ring_update`` and ``kv.ring_extend`` share."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torch_mlir import ir

from ..dialect.kv import ScatterOp
from ..dialect.types import shape_of
from .template import call_template, replace


def scatter_rows(op: ir.Operation, axis: int, text: Callable[[ir.Operation, list[ir.Type]], str]) -> None:
    """Replaces an op whose operands are a cache and the rows to write by a ``kv.scatter`` into the cache.

    The axes of the rows [.., N, ..] up to ``axis`` become U rows to write. ``text`` gives the function, from the op's
    other operands, of updates [U, ..], places [U, axis + 1] i32 and mask [U] i1, whose types it is told.
    """
    cache, rows = list(op.operands)[:2]
    shape = shape_of(rows.type)
    count = math.prod(shape[: axis + 1])
    i32, i1 = ir.IntegerType.get_signless(32), ir.IntegerType.get_signless(1)
    types = [
        ir.RankedTensorType.get([count, *shape[axis + 1 :]], cache.type.element_type),
        ir.RankedTensorType.get([count, axis + 1], i32),
        ir.RankedTensorType.get([count], i1),
    ]
    name = op.name.replace(".", "_")
    updates, places, mask = call_template(op, name, text(op, types), list(op.operands)[1:], types)
    with op.location, ir.InsertionPoint(op):
        scatter = ScatterOp(updates, places, mask, cache, cache.type)
    replace(op, [scatter.result])


def groups(shape: Sequence[int], axis: int) -> list[list[int]]:
    """The dimensions of rows that ``tensor.collapse_shape`` joins for the updates."""
    return [list(range(axis + 1)), *([i] for i in range(axis + 1, len(shape)))]


def place(shape: Sequence[int], axis: int, first: str = "%digit0") -> tuple[str, str]:
    """The lines that make column ``%column`` of the place of row ``%u``, and the name of their result.

    Column c is the index along the cache's axis c: a digit of u, or at ``axis`` the value ``%slot``. ``first`` is what
    stands in column 0.
    """
    column, lines = "%slot", []
    for c in reversed(range(axis)):
        lines.append(f"""
    %stride{c} = arith.constant {math.prod(shape[c + 1 : axis + 1])} : index
    %extent{c} = arith.constant {shape[c]} : index
    %above{c} = arith.divui %u, %stride{c} : index
    %digit{c} = arith.remui %above{c}, %extent{c} : index
    %column{c} = arith.constant {c} : index
    %here{c} = arith.cmpi eq, %column, %column{c} : index
    %place{c} = arith.select %here{c}, {first if c == 0 else f"%digit{c}"}, {column} : index""")
        column = f"%place{c}"
    return "".join(lines), column
