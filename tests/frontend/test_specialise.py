"""Static programs: the same numbers as the exported program, in core ATen with the user's lines."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from frontend_decoders import BATCH, PAST, QUERY, VOCABULARY, Fixed, InPlace, Rotary, Stacked, export
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

from snapcc.frontend import FrontendError, from_program
from snapcc.frontend.decompositions import (
    linear,
    matmul,
    scaled_dot_product_attention,
    scatter_src,
    scatter_value,
    topk,
)

COMPOSITE = re.compile(r"aten\.(linear|einsum|matmul|silu|scaled_dot|softmax|dropout|reshape|chunk|split|_assert|sym_)")


def operations(program: Any) -> list[str]:
    return [str(n.target) for n in program.graph.nodes if n.op == "call_function"]


@pytest.mark.parametrize("model", [Rotary, Stacked, InPlace])
def test_static_programs_equal_the_exported_one(model: Any) -> None:
    program = model.program()
    decoder = from_program(program)
    for lengths in ((3, 1, 13), (1, 8, 0), (2, 3, 5)):
        torch.manual_seed(3)
        arguments = model.arguments(*lengths)
        static = decoder.specialise(*lengths)
        torch.testing.assert_close(static.module()(*arguments), program.module()(*arguments), rtol=1e-5, atol=1e-5)
        found = operations(static)
        assert not [op for op in found if COMPOSITE.match(op)]
        assert found.count("aten._softmax.default") == 1
        assert found.count("aten.bmm.default") >= 2
        assert all(isinstance(d, int) for n in static.graph.nodes if "val" in n.meta for d in n.meta["val"].shape)


def test_a_program_of_fixed_length_equals_itself() -> None:
    program = Fixed.program()
    static = from_program(program).specialise(2, 1, 7)
    arguments = Fixed.arguments()
    torch.testing.assert_close(static.module()(*arguments), program.module()(*arguments), rtol=1e-5, atol=1e-5)


def test_inputs_and_weights_are_the_programs_own() -> None:
    program = Rotary.program()
    decoder = from_program(program)
    static = decoder.specialise(3, 1, 13)
    names = [s.arg.name for s in static.graph_signature.input_specs]
    assert names == [s.arg.name for s in program.graph_signature.input_specs]
    assert all(static.state_dict[name] is weight for name, weight in program.state_dict.items())
    weights = decoder.weights()
    # Tied under one name, the non-persistent buffer and the constants there, the unused buffer not.
    assert sorted(weights) == sorted(
        ["table.weight", "qkv.weight", "qkv.bias", "frequencies", "even", "gain", "offset", "lifted_tensor_0"]
    )
    assert weights["table.weight"].data_ptr() == program.state_dict["head.weight"].data_ptr()
    assert decoder.weight_name("head.weight") == "table.weight"


def test_nodes_know_their_lines() -> None:
    static = from_program(Rotary.program()).specialise(3, 1, 13)
    traces = {str(n.target): n.meta.get("stack_trace", "") for n in static.graph.nodes if n.op == "call_function"}
    for op in ("aten.bmm.default", "aten._softmax.default", "aten.cos.default", "aten.cat.default"):
        assert "frontend_decoders.py" in traces[op], op  # also those under torch.no_grad


def test_equal_operands_in_one_place_and_not_in_another() -> None:
    class Doubled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(VOCABULARY, 8)

        def forward(self, tokens: Tensor, cache: Tensor) -> Any:
            x = self.table(tokens)
            x = torch.cat([x * x, x * x.cos()], 1)[:, : tokens.shape[1]]
            x = x * x.sin()
            return x @ self.table.weight.T, torch.cat([cache, x], 1)

    arguments = (torch.tensor([[1, 2, 3], [4, 5, 6]]), torch.randn(2, 5, 8))
    program = export(Doubled(), arguments, ({0: BATCH, 1: QUERY}, {0: BATCH, 1: PAST}))
    static = from_program(program).specialise(2, 3, 5)
    torch.testing.assert_close(static.module()(*arguments), program.module()(*arguments), rtol=1e-6, atol=1e-6)


class Complex(nn.Module):
    """Rotations by complex numbers: a complex buffer, ``polar``, conjugates, quotients and views."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, 16)
        angles = torch.arange(200)[:, None] * torch.tensor([1.0, 0.3, 0.1, 0.03])
        self.register_buffer("rotations", torch.polar(torch.ones_like(angles), angles), persistent=False)

    def forward(self, tokens: Tensor, where: Tensor, cache: Tensor) -> Any:
        x = torch.view_as_complex(self.table(tokens).view(*tokens.shape, 2, 4, 2))
        turned = x * self.rotations[where][:, :, None]
        length = torch.complex(self.table(tokens)[..., :4], self.table(tokens)[..., 4:8]).unsqueeze(-2)
        y = -(turned.transpose(1, 2) + length.transpose(-2, 1).conj()).permute(0, 2, 1, 3) / 2.0
        y = torch.cat([y[:, :, :1], y[:, :, 1:] * y.real[:, :, 1:] - turned[:, :, 1:]], -2).reshape(*tokens.shape, 8)
        x = torch.view_as_real(y).flatten(-2)
        return x @ self.table.weight.T + y.select(-1, -1).imag.unsqueeze(-1), torch.cat([cache, x], 1)


def test_complex_numbers_become_pairs() -> None:
    def arguments(batch: int, query: int, past: int) -> tuple[Tensor, ...]:
        places = torch.arange(past, past + query).expand(batch, query).contiguous()
        return torch.arange(batch * query).view(batch, query), places, torch.randn(batch, past, 16)

    rows = {0: BATCH, 1: QUERY}
    program = export(Complex(), arguments(2, 3, 5), (rows, rows, {0: BATCH, 1: PAST}))
    decoder = from_program(program)
    for lengths in ((3, 1, 13), (1, 8, 0)):
        static, given = decoder.specialise(*lengths), arguments(*lengths)
        torch.testing.assert_close(static.module()(*given), program.module()(*given), rtol=1e-5, atol=1e-5)
        assert not any(node.meta["val"].is_complex() for node in static.graph.nodes if "val" in node.meta)
    assert decoder.weights()["rotations"].shape == (200, 4, 2)


class Written(nn.Module):
    """A decoder around one given function of its hidden values."""

    def __init__(self, step: Any) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, 8)
        self.step = step

    def forward(self, tokens: Tensor, cache: Tensor) -> Any:
        x = self.step(self.table(tokens))
        return x @ self.table.weight.T, torch.cat([cache, x], 1)


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (lambda x: functional.dropout(x, 0.5, training=True), r"draws random numbers by aten\.dropout.* eval mode"),
        (lambda x: x + torch.rand(8), r"draws random numbers by aten\.rand"),
        (lambda x: x * torch.as_strided(x, (1, 1, 8), (8, 8, 1)), r"reads a tensor by its strides in memory"),
        (
            lambda x: functional.scaled_dot_product_attention(x, x, x, dropout_p=0.5),
            r"attention with dropout 0\.5: export the model in eval mode",
        ),
        (
            lambda x: torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (4, 2))).exp()).flatten(-2),
            r"uses aten\.exp\.default on complex numbers \(.*test_specialise\.py:\d+\).* real and imaginary parts",
        ),
        (
            lambda x: x + torch.arange(x.sum().long().abs().item()).sum(),
            r"reads a tensor's value into Python, and 'aten",
        ),
    ],
)
def test_what_no_static_program_can_have_is_refused(step: Any, message: str) -> None:
    arguments = (torch.zeros(2, 3, dtype=torch.long), torch.zeros(2, 5, 8))
    decoder = from_program(export(Written(step), arguments, ({0: BATCH, 1: QUERY}, {0: BATCH, 1: PAST})))
    with pytest.raises(FrontendError, match=message):
        decoder.specialise(2, 3, 5)


@settings(max_examples=40, deadline=None)
@given(
    heads=st.sampled_from([(1, 1), (2, 2), (4, 2), (6, 2)]),
    lengths=st.tuples(st.integers(1, 5), st.integers(1, 7)),
    widths=st.tuples(st.sampled_from([4, 8]), st.sampled_from([4, 6])),
    mask=st.sampled_from(["none", "bool", "float", "causal"]),
    scale=st.sampled_from([None, 0.3]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    seed=st.integers(0, 1000),
)
def test_attention_spelled_out_equals_pytorchs(
    heads: tuple[int, int],
    lengths: tuple[int, int],
    widths: tuple[int, int],
    mask: str,
    scale: float | None,
    dtype: torch.dtype,
    seed: int,
) -> None:
    torch.manual_seed(seed)
    (own, shared), (queries, keys), (width, out) = heads, lengths, widths
    q = torch.randn(2, own, queries, width).to(dtype)
    k, v = torch.randn(2, shared, keys, width).to(dtype), torch.randn(2, shared, keys, out).to(dtype)
    hidden = torch.rand(queries, keys) < 0.5
    hidden[:, 0] = False
    added = torch.zeros(queries, keys, dtype=dtype).masked_fill(hidden, -9.0)
    given_mask = {"none": None, "causal": None, "bool": ~hidden, "float": added}[mask]
    options: dict[str, Any] = {"is_causal": mask == "causal", "scale": scale, "enable_gqa": own != shared}
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        wanted = functional.scaled_dot_product_attention(q, k, v, given_mask, **options)
    got = scaled_dot_product_attention(q, k, v, given_mask, **options)
    assert got.dtype == dtype
    tolerance = 1e-5 if dtype is torch.float32 else 0.02
    torch.testing.assert_close(got, wanted, rtol=tolerance, atol=tolerance)


def test_autocast_flags_and_other_outputs() -> None:
    class Flagged(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(VOCABULARY, 8)
            self.k = nn.Linear(8, 8)

        def forward(self, tokens: Tensor, flag: bool, extra: None, *, cache: list[Tensor], scale: float = 2.0) -> Any:
            x = self.table(tokens)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                x = self.k(x * scale if flag else x)
            x = x.float()
            return {"logits": x @ self.table.weight.T, "cache": [torch.cat([cache[0], x], 1)], "none": extra}

    torch.manual_seed(0)
    arguments = (torch.zeros(2, 3, dtype=torch.long), True, None)
    dynamic = {"tokens": {0: BATCH, 1: QUERY}, "flag": None, "extra": None, "cache": [{0: BATCH, 1: PAST}]}
    program = torch.export.export(
        Flagged().eval(), arguments, {"cache": [torch.zeros(2, 5, 8)]}, dynamic_shapes=dynamic, strict=False
    )
    decoder = from_program(program)
    assert [(i.name, str(i.role)) for i in decoder.inputs] == [("tokens", "tokens"), ("cache_0", "cache")]
    given_inputs = ((torch.ones(3, 1, dtype=torch.long), True, None), {"cache": [torch.randn(3, 7, 8)]})
    static = decoder.specialise(3, 1, 7).module()
    wanted = program.module()(*given_inputs[0], **given_inputs[1])
    torch.testing.assert_close(static(*given_inputs[0], **given_inputs[1]), wanted)


def test_a_branch_in_the_graph_is_refused() -> None:
    def step(x: Tensor) -> Any:
        return torch.cond(x.sum() > 0, lambda a: a + 1, lambda a: a - 1, (x,))

    arguments = (torch.zeros(2, 3, dtype=torch.long), torch.zeros(2, 5, 8))
    program = export(Written(step), arguments, ({0: BATCH, 1: QUERY}, {0: BATCH, 1: PAST}))
    with pytest.raises(FrontendError, match=r"uses cond \(.*test_specialise\.py:\d+\), which is not supported"):
        from_program(program)


def test_weights_are_not_repeated_for_a_batch() -> None:
    x, weight, bias = torch.randn(3, 6, 7).transpose(1, 2), torch.randn(5, 6), torch.randn(5)
    assert not x.is_contiguous()
    for function, whole in (
        (lambda: linear(x, weight, bias), functional.linear(x, weight, bias)),
        (lambda: linear(x, weight), functional.linear(x, weight)),
        (lambda: linear(x[0, 0], weight, bias), functional.linear(x[0, 0], weight, bias)),
        (lambda: matmul(x, weight.t()), x @ weight.t()),
        (lambda: matmul(x, x.transpose(1, 2)), x @ x.transpose(1, 2)),
    ):
        torch.testing.assert_close(function(), whole)
    ops = [str(n.target) for n in make_fx(lambda x, w, b: linear(x, w, b))(x, weight, bias).graph.nodes]
    assert "aten.addmm.default" in ops
    assert "aten.bmm.default" not in ops
    ops = [str(n.target) for n in make_fx(lambda x, w: linear(x, w))(x, weight).graph.nodes]
    assert "aten.mm.default" in ops
    assert "aten.bmm.default" not in ops


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize(("shape", "dim", "k"), [((5, 8), -1, 3), ((2, 6, 3), 1, 6), ((4,), 0, 1)])
def test_topk_is_pytorchs_and_takes_the_first_of_equals(
    shape: tuple[int, ...], dim: int, k: int, largest: bool
) -> None:
    torch.manual_seed(0)
    value = torch.randn(shape)
    got, wanted = topk(value, k, dim, largest), torch.topk(value, k, dim, largest)
    assert torch.equal(got[0], wanted.values)
    assert torch.equal(got[1], wanted.indices)
    hidden = torch.full((1, 4), -torch.inf).index_fill(1, torch.tensor([2]), 1.0)
    values, indices = topk(hidden, 3)
    assert (values.tolist(), indices.tolist()) == ([[1.0, -torch.inf, -torch.inf]], [[2, 0, 1]])
    with pytest.raises(FrontendError, match="topk over 2000 entries: only up to 1024"):
        topk(torch.zeros(2000), 2)


@pytest.mark.parametrize(("shape", "dim", "k"), [((5, 8), 1, 3), ((2, 6, 3), 1, 2), ((4,), 0, 1)])
def test_scatter_of_a_number_is_pytorchs(shape: tuple[int, ...], dim: int, k: int) -> None:
    torch.manual_seed(0)
    value = torch.randn(shape)
    index = torch.randn(shape).argsort(dim).narrow(dim, 0, k)
    assert torch.equal(scatter_value(value, dim, index, 2.0), value.scatter(dim, index, 2.0))
    with pytest.raises(FrontendError, match=r"scatter of \[3\] places into \[2000\] is not supported"):
        scatter_value(torch.zeros(2000), 0, torch.zeros(3, dtype=torch.long), 1.0)


@pytest.mark.parametrize(("shape", "dim", "k"), [((5, 8), 1, 3), ((2, 6, 3), 1, 2), ((4,), 0, 1)])
def test_scatter_is_pytorchs(shape: tuple[int, ...], dim: int, k: int) -> None:
    torch.manual_seed(0)
    value = torch.full(shape, -torch.inf)
    index = torch.randn(shape).argsort(dim).narrow(dim, 0, k)
    source = torch.randn(index.shape)
    assert torch.equal(scatter_src(value, dim, index, source), value.scatter(dim, index, source))
    with pytest.raises(FrontendError, match=r"scatter of \[1, 3\] by an index of \[1, 3\] into \[2, 9\] is"):
        scatter_src(torch.zeros(2, 9), 1, torch.zeros(1, 3, dtype=torch.long), torch.zeros(1, 3))
