"""Every kv op says at its line what it lacks of its declaration, and never fails in its own verifier."""

from typing import Any

import pytest
from torch_mlir import ir
from torch_mlir.dialects import ext

from snapcc.compiler.dialect import kv
from snapcc.compiler.passes.manager import new_context
from snapcc.errors import describe

OPS: list[Any] = [kind for kind in vars(kv).values() if hasattr(kind, "OPERATION_NAME")]
VALUES = {ir.IntegerAttr: "1 : i64", ir.FloatAttr: "1.0 : f64", ir.StringAttr: '"one"'}
WORDS = {ir.IntegerAttr: "an integer", ir.FloatAttr: "a float", ir.StringAttr: "a string"}
OTHERS = {ir.IntegerAttr: '"one"', ir.FloatAttr: "1 : i64", ir.StringAttr: "1 : i64"}


def written(kind: Any, attributes: dict[str, str], operands: int, results: int) -> str:
    given = ", ".join(f"{name} = {value}" for name, value in attributes.items())
    return (
        f'%a = "kv.parameter"() {{parameter = "a"}} : () -> tensor<1xf32>\n'
        f'"{kind.OPERATION_NAME}"({", ".join(["%a"] * operands)}) {{{given}}} : '
        f"({', '.join(['tensor<1xf32>'] * operands)}) -> ({', '.join(['tensor<1xf32>'] * results)})"
    )


def refused(text: str) -> str:
    with pytest.raises(ir.MLIRError) as caught:
        ir.Module.parse(text, context=new_context())
    return describe(caught.value)[0]


def test_the_ops_are_found() -> None:
    assert {"kv.append", "kv.attention", "kv.state_store"} < {kind.OPERATION_NAME for kind in OPS}


@pytest.mark.parametrize("kind", OPS, ids=lambda kind: kind.OPERATION_NAME)
def test_what_is_not_as_declared_is_said(kind: Any) -> None:
    operands, attributes, results, _ = ext.partition_fields(kind._fields)
    singles = sum(field.variadicity == ext.Variadicity.single for field in operands)
    whole = {field.name: VALUES[field.constraint] for field in attributes}
    for field in attributes:
        others = {name: value for name, value in whole.items() if name != field.name}
        assert refused(written(kind, others, len(operands), len(results))).endswith(
            f"error: '{kind.OPERATION_NAME}' op needs the attribute {field.name}, {WORDS[field.constraint]}"
        )
        other = OTHERS[field.constraint]
        assert refused(written(kind, whole | {field.name: other}, len(operands), len(results))).endswith(
            f"error: '{kind.OPERATION_NAME}' op {field.name} must be {WORDS[field.constraint]}, got {other}"
        )
    expected = f"{singles}" if singles == len(operands) else f"{singles} to {len(operands)}"
    assert refused(written(kind, whole, len(operands) + 1, len(results))).endswith(
        f"-:2:1: error: '{kind.OPERATION_NAME}' op has {len(operands) + 1} operands, expected {expected}"
    )
    assert refused(written(kind, whole, len(operands), len(results) + 1)).endswith(
        f"op has {len(results) + 1} results, expected {len(results)}"
    )
