"""Numbers that a program of one past length may have made of that length.

A program exported at a fixed past P is a snapshot: at another step its model would have used another P. Where a second
length is at hand the two programs are compared; here there is none, so every number that is near the length, or a
common function of it, and that reaches a value is taken for one that was made of it (docs/decisions/fixed-lengths.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from torch_mlir import ir

from ..diagnostics import Refusal
from ..dialect.kv import number
from ..dialect.types import is_tensor, shape_of
from .aten import Kind, NotConstant, constant, kind_of, made_of, tensor_operands
from .evaluate import literal
from .functions import body

_FUNCTIONS = (
    float,
    math.sqrt,
    math.log,
    math.log2,
    math.log10,
    lambda x: 1 / x,
    lambda x: 1 / math.sqrt(x),
    lambda x: 1 / math.log(x),
)


def refuse_baked(function: ir.Operation, past: int) -> None:
    """Refuses a raised decode function in which a number that is no extent may stem from the past's length.

    What was followed is gone by now: masks are dropped, and the caches' growth and attention are ops of their own.
    Ops that give a shape or name an axis do not count, nor does a part of a value that is made of the tokens: which
    features a model takes does not depend on its cache.

    Raises:
        Refusal: there is such a number, with its line.
    """
    near = [n for n in (past - 1, past, past + 1) if n > 1]
    suspects = [f(n) for n in near for f in _FUNCTIONS if f(n) not in (0.0, 1.0)]
    constants: set[ir.Value] = set()
    tables: set[ir.Value] = set()
    for view in body(function).operations:
        op = view.operation
        if _is_constant(op, constants):
            constants.update(op.results)
        elif op.name == "kv.parameter" or (
            op.name.startswith("torch.aten.") and all(v in tables | constants for v in op.operands)
        ):
            tables.update(op.results)
    for view in body(function).operations:
        op = view.operation
        if op.results and all(r in constants for r in op.results):
            continue
        takes_part = any(v in tables for v in tensor_operands(op)[:1])
        numbers = [*_numbers(op, takes_part)]
        for value in tensor_operands(op):
            if value in constants:
                numbers += _inside(value)
        for found in numbers:
            if any(math.isclose(found, suspect, rel_tol=1e-6) for suspect in suspects):
                raise Refusal(
                    op,
                    f"the program was exported at a past of {past} tokens only, and '{op.name}' takes the number "
                    f"{found:g}, which may have been made of that length",
                    "export the program with a symbolic past, take positions as an input, or export at a length that "
                    "no other number of the model is near",
                )


def _is_constant(op: ir.Operation, constants: set[ir.Value]) -> bool:
    if op.name.startswith("torch.constant.") or op.name == "torch.vtensor.literal":
        return True
    known = op.name.startswith("torch.aten.") or op.name == "torch.prim.ListConstruct"
    return known and all(v in constants for v in op.operands)


def _numbers(op: ir.Operation, takes_part: bool) -> Iterator[float]:
    """The numbers among an op's attributes and operands that reach its values."""
    if op.name == "kv.attention":
        scale, width = number(op, "scale"), shape_of(op.operands[0].type)[-1]
        if not math.isclose(scale, width**-0.5, rel_tol=1e-6):
            yield from (scale, scale * math.sqrt(width))
        if number(op, "softcap"):
            yield number(op, "softcap")
        return
    kind = kind_of(op)
    part = op.name.removeprefix("torch.aten.") in ("slice.Tensor", "select.int", "narrow")
    whole = part and op.results[0].type == op.operands[0].type
    if kind in (Kind.POINTWISE, Kind.CREATION) or (part and takes_part and not whole):
        # of a creation the shape is a list, and lists do not count; of a part the axis comes first
        for value in list(op.operands)[2 if part else 0 :]:
            if not is_tensor(value.type):
                try:
                    given = constant(value)
                except NotConstant:
                    continue
                if isinstance(given, int | float) and not isinstance(given, bool) and math.isfinite(given):
                    yield abs(float(given))


def _inside(value: ir.Value) -> Iterator[float]:
    """The numbers that a constant tensor is made of."""
    for op in made_of(value):
        if op.name == "torch.vtensor.literal":
            try:
                held = literal(op)
            except NotConstant:
                continue
            if held.numel() == 1:
                yield abs(float(held.item()))
        yield from _numbers(op, takes_part=True)
