"""The torch dialect that a decoder becomes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from frontend_decoders import Rotary, Stacked
from torch_mlir import ir

from snapcc.compiler.dialect.kv import Kv
from snapcc.frontend import Decoder, from_program, import_functions


@pytest.fixture
def context() -> Iterator[ir.Context]:
    with ir.Context() as made, ir.Location.unknown():
        Kv.load()
        yield made


@pytest.fixture(scope="module")
def rotary() -> Decoder:
    return from_program(Rotary.program())


def imported(context: ir.Context, decoder: Decoder, **lengths: tuple[int, int, int]) -> ir.Module:
    return import_functions(context, [(n, decoder.specialise(*at)) for n, at in lengths.items()], decoder)


def operations(module: ir.Module) -> list[Any]:
    found: list[Any] = []
    module.operation.walk(lambda op: found.append(op) or ir.WalkResult.ADVANCE)
    return found


def test_functions_say_what_their_arguments_are(context: ir.Context, rotary: Decoder) -> None:
    module = imported(context, rotary, decode=(3, 1, 13), prefill_8=(1, 8, 0))
    functions = {ir.StringAttr(f.attributes["sym_name"]).value: f for f in module.body.operations}
    assert list(functions) == ["decode", "prefill_8"]
    for function, cache in ((functions["decode"], "[3,13,2,8]"), (functions["prefill_8"], "[1,0,2,8]")):
        arguments = [
            (ir.StringAttr(a["kv.name"]).value, ir.StringAttr(a["kv.role"]).value)
            for a in ir.ArrayAttr(function.attributes["arg_attrs"])
        ]
        assert arguments == [
            ("words", "tokens"),
            ("where", "positions"),
            ("memory_k", "cache"),
            ("memory_v", "cache"),
        ]
        results = [ir.StringAttr(r["kv.name"]).value for r in ir.ArrayAttr(function.attributes["res_attrs"])]
        assert results == ["logits", "memory_k", "memory_v"]
        assert str(function.type.inputs[2]) == f"!torch.vtensor<{cache},f32>"


def test_weights_are_named_and_their_bytes_are_not_there(context: ir.Context, rotary: Decoder) -> None:
    module = imported(context, rotary, decode=(3, 1, 13))
    parameters = {
        ir.StringAttr(op.attributes["parameter"]).value: str(op.results[0].type)
        for op in operations(module)
        if op.name == "kv.parameter"
    }
    weights = rotary.weights()
    assert set(parameters) == set(weights) - {"offset"}  # one element: a literal
    assert parameters["even"] == "!torch.vtensor<[16],i1>"
    assert parameters["table.weight"] == "!torch.vtensor<[61,16],f32>"
    text = module.operation.get_asm()
    assert re.findall(r"torch\.vtensor\.literal\((.*?)\)", text) == ["dense<2.500000e-01> : tensor<1xf32>"]
    assert "dense_resource" not in text
    assert len(text) < 40_000
    assert module.operation.verify()


def test_operations_know_the_users_lines(context: ir.Context, rotary: Decoder) -> None:
    module = imported(context, rotary, decode=(3, 1, 13))
    for wanted in ("torch.aten.bmm", "torch.aten._softmax", "torch.aten.cat", "torch.aten.cos"):
        (location, *_) = [str(op.location) for op in operations(module) if op.name == wanted]
        assert re.search(r"frontend_decoders\.py\":\d+", location), location


def test_other_outputs_and_masks(context: ir.Context) -> None:
    decoder = from_program(Stacked.program(), causal_masks={"allowed"})
    text = str(imported(context, decoder, decode=(3, 1, 13)))
    assert 'vtensor<[1,1,1,14],i1> {kv.name = "allowed", kv.role = "causal_mask"}' in text
    assert 'vtensor<[2,3,2,14,8],f32> {kv.name = "store"}' in text


def test_bf16(context: ir.Context) -> None:
    decoder = from_program(Rotary.program(Rotary().to(torch.bfloat16), torch.bfloat16))
    text = str(imported(context, decoder, decode=(3, 1, 13)))
    assert 'vtensor<[3,13,2,8],bf16> {kv.name = "memory_k"' in text
    assert '{parameter = "table.weight"} : () -> !torch.vtensor<[61,16],bf16>' in text
