"""What the verifiers of the dialects share: how an op is refused, and that it has what its class declares."""

from __future__ import annotations

from typing import Any

from torch_mlir import ir
from torch_mlir.dialects import ext

_KINDS = {
    ir.IntegerAttr: ("an integer", (ir.IntegerAttr, ir.BoolAttr)),
    ir.FloatAttr: ("a float", (ir.FloatAttr,)),
    ir.StringAttr: ("a string", (ir.StringAttr,)),
    ir.ArrayAttr: ("an array", (ir.ArrayAttr,)),
}
"""The kinds of attributes that the ops declare: in words, and the bindings' classes of their values."""


def fail(op: Any, rule: str) -> bool:
    """Refuses an op at its location, in MLIR's form; False, for the verifier to give."""
    op.location.emit_error(f"'{op.operation.name}' op {rule}")
    return False


def require(op: Any, what: str, got: object, rule: str, wanted: object) -> bool:
    """Whether a value is the one that a rule wants; refuses the op with both where it is not."""
    return got == wanted or fail(op, f"{what} must be {rule}: expected {wanted}, got {got}")


def declared(op: Any) -> bool:
    """Whether an op has what its class declares; the rules below read it without asking.

    MLIR checks the same from the declarations, but only after these rules.
    """
    operands, attributes, results, _ = ext.partition_fields(type(op)._fields)
    for attribute in attributes:
        kind, classes = _KINDS[attribute.constraint]
        if attribute.name not in op.attributes:
            return fail(op, f"needs the attribute {attribute.name}, {kind}")
        value = op.attributes[attribute.name]
        if not isinstance(value, classes):
            return fail(op, f"{attribute.name} must be {kind}, got {value}")
    for what, values, fields in (("operands", op.operands, operands), ("results", op.results, results)):
        least = sum(field.variadicity == ext.Variadicity.single for field in fields)
        if not least <= len(values) <= len(fields):
            allowed = f"{least}" if least == len(fields) else f"{least} to {len(fields)}"
            return fail(op, f"has {len(values)} {what}, expected {allowed}")
    if sum(field.variadicity == ext.Variadicity.optional for field in operands) > 1:
        segments = op.attributes.get("operandSegmentSizes", None)
        counts = list(segments) if isinstance(segments, ir.DenseI32ArrayAttr) else []
        if len(counts) != len(operands) or sum(counts) != len(op.operands):
            rule = f"an array of {len(operands)} counts that make {len(op.operands)} operands"
            return fail(op, f"needs operandSegmentSizes, {rule}")
    return True
