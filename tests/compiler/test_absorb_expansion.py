"""Absorption: the same numbers before and after, whatever the sizes and however the expansion is spelled."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_mlir import ir

from snapcc.compiler.analysis.evaluate import Evaluator
from snapcc.compiler.analysis.expansion import expands
from snapcc.compiler.analysis.functions import body, functions
from snapcc.compiler.dialect.kv import AttentionOp, LinearBiasOp, ParameterOp, Reach, attention, integer, number
from snapcc.compiler.dialect.types import shape_of, vtensor
from snapcc.compiler.passes import manager
from snapcc.compiler.passes.absorb_expansion import AbsorbExpansion
from snapcc.compiler.passes.torch_builder import TorchBuilder


@dataclass(frozen=True)
class Sizes:
    """B, H, G, Q, the past, and the features of latents, of what is not expanded (0: nothing), of keys and values."""

    rows: int
    heads: int
    group: int
    queries: int
    past: int
    latent: int
    beside: int
    key: int
    value: int

    @property
    def tokens(self) -> int:
        return self.past + self.queries

    @property
    def width(self) -> int:
        return self.key + self.beside


class Maker:
    """Builds ops in front of the function's return."""

    def __init__(self, anchor: ir.Operation, sizes: Sizes) -> None:
        self.build, self.sizes, self._anchor = TorchBuilder(anchor), sizes, anchor

    def parameter(self, name: str, *shape: int) -> ir.Value:
        point = ir.InsertionPoint(self._anchor)
        return ParameterOp(ir.StringAttr.get(name), vtensor(shape, "f32"), loc=self._anchor.location, ip=point).value

    def mm(self, a: ir.Value, b: ir.Value) -> ir.Value:
        shape = [*shape_of(a.type)[:-1], shape_of(b.type)[-1]]
        return self.build.op(f"torch.aten.{'mm' if len(shape) == 2 else 'bmm'}", [a, b], vtensor(shape, "f32"))

    def expand(self, value: ir.Value, *shape: int) -> ir.Value:
        operands = [value, self.build.integers(shape), self.build.boolean(False)]
        return self.build.op("torch.aten.expand", operands, vtensor(shape, "f32"))

    def select(self, value: ir.Value, at: int, index: int) -> ir.Value:
        shape = shape_of(value.type)
        del shape[at]
        operands = [value, self.build.integer(at), self.build.integer(index)]
        return self.build.op("torch.aten.select.int", operands, vtensor(shape, "f32"))

    def flat(self, latent: ir.Value) -> ir.Value:
        return self.build.view(latent, [self.sizes.rows * self.sizes.tokens, self.sizes.latent])

    def per_head(self, value: ir.Value, name: str, width: int) -> ir.Value:
        """[B * H, T, r] by a weight of each head's own -> [B, H, T, width]."""
        s = self.sizes
        weight = self.build.view(self.parameter(name, s.heads, s.latent, width), [1, s.heads, s.latent, width])
        weight = self.expand(weight, s.rows, s.heads, s.latent, width)
        weight = self.build.view(weight, [s.rows * s.heads, s.latent, width])
        return self.build.view(self.mm(value, weight), [s.rows, s.heads, s.tokens, width])

    def heads(self, value: ir.Value, width: int) -> ir.Value:
        """[B * T, H * D] -> [B, H, T, D]."""
        s = self.sizes
        return self.build.permute(self.build.view(value, [s.rows, s.tokens, s.heads, width]), [0, 2, 1, 3])


Pair = tuple[ir.Value, ir.Value]


def of_one_weight(m: Maker, latent: ir.Value) -> Pair:
    """One product, each head's keys and values side by side."""
    s = m.sizes
    both = m.heads(m.mm(m.flat(latent), m.parameter("w", s.latent, s.heads * (s.key + s.value))), s.key + s.value)
    return m.build.slice(both, 3, 0, s.key), m.build.slice(both, 3, s.key, s.key + s.value)


def of_all_heads_side_by_side(m: Maker, latent: ir.Value) -> Pair:
    """One product, all heads' keys before all heads' values."""
    s = m.sizes
    end = s.heads * (s.key + s.value)
    weight = m.build.permute(m.parameter("w", end, s.latent), [1, 0])
    both = m.mm(m.flat(latent), weight)
    split = s.heads * s.key
    return m.heads(m.build.slice(both, 1, 0, split), s.key), m.heads(m.build.slice(both, 1, split, end), s.value)


def of_a_stack(m: Maker, latent: ir.Value) -> Pair:
    """One product viewed as [B, T, 2, H, D]: keys and values have as many features."""
    s = m.sizes
    made = m.mm(m.flat(latent), m.parameter("w", s.latent, 2 * s.heads * s.key))
    stack = m.build.view(made, [s.rows, s.tokens, 2, s.heads, s.key])
    keys, values = (m.build.permute(m.select(stack, 2, i), [0, 2, 1, 3]) for i in (0, 1))
    return keys, values


def of_a_weight_per_head(m: Maker, latent: ir.Value) -> Pair:
    """Batched products with latents repeated for the heads and weights for the rows."""
    s = m.sizes
    wide = m.build.view(latent, [s.rows, 1, s.tokens, s.latent])
    wide = m.build.view(m.expand(wide, s.rows, s.heads, s.tokens, s.latent), [s.rows * s.heads, s.tokens, s.latent])
    return m.per_head(wide, "wk", s.key), m.per_head(wide, "wv", s.value)


def of_columns(m: Maker, latent: ir.Value) -> Pair:
    """Products with the weight on the left, tokens as columns."""
    s = m.sizes
    columns = m.build.permute(m.flat(latent), [1, 0])

    def one(name: str, width: int) -> ir.Value:
        made = m.mm(m.parameter(name, s.heads * width, s.latent), columns)
        return m.build.permute(m.build.view(made, [s.heads, width, s.rows, s.tokens]), [2, 0, 3, 1])

    return one("wk", s.key), one("wv", s.value)


SPELLINGS = (of_one_weight, of_all_heads_side_by_side, of_a_stack, of_a_weight_per_head, of_columns)


def of_heads_of_their_own(m: Maker, latent: ir.Value) -> Pair:
    """Each head has a latent [B, H, T, r] and a weight of its own."""
    s = m.sizes
    flat = m.build.view(latent, [s.rows * s.heads, s.tokens, s.latent])
    return m.per_head(flat, "wk", s.key), m.per_head(flat, "wv", s.value)


def of_a_weight_of_the_tokens(m: Maker, latent: ir.Value) -> Pair:
    """Each row has a weight of its own."""
    s = m.sizes
    made = m.mm(latent, m.parameter("w", s.rows, s.latent, s.heads * s.key))
    keys = m.build.permute(m.build.view(made, [s.rows, s.tokens, s.heads, s.key]), [0, 2, 1, 3])
    return keys, keys


def of_values_in_two_parts(m: Maker, latent: ir.Value) -> Pair:
    """The values are joined of two expansions."""
    keys, values = of_one_weight(m, latent)
    return keys, joined(m, [keys, values], by_writing=False)


def of_zeros(m: Maker, latent: ir.Value) -> Pair:
    """Values behind features that are zero."""
    keys, values = of_one_weight(m, latent)
    zeros = m.build.zeros(shape_of(keys.type), "f32")
    return keys, joined(m, [zeros, values], by_writing=False)


def of_keys_with_heads_of_their_own(m: Maker, latent: ir.Value) -> Pair:
    """Each head's keys are a part of the latent, and its values an expansion of all of it."""
    s = m.sizes
    keys = m.build.permute(m.build.view(latent, [s.rows, s.tokens, s.heads, s.key]), [0, 2, 1, 3])
    return keys, of_one_weight(m, latent)[1]


def of_every_second_feature(m: Maker, latent: ir.Value) -> Pair:
    """Keys are the even columns of the weight, values the odd ones."""
    s = m.sizes
    both = m.heads(m.mm(m.flat(latent), m.parameter("w", s.latent, s.heads * 2 * s.key)), 2 * s.key)
    type_ = vtensor([s.rows, s.heads, s.tokens, s.key], "f32")

    def part(begin: int) -> ir.Value:
        numbers = [m.build.integer(n) for n in (3, begin, 2 * s.key, 2)]
        return m.build.op("torch.aten.slice.Tensor", [both, *numbers], type_)

    return part(0), part(1)


LEFT_ALONE = {
    of_a_weight_of_the_tokens: "'torch.aten.bmm' has a weight for each row",
    of_values_in_two_parts: "the values are joined of 2 parts",
    of_zeros: "'torch.aten.cat' puts zeros among the features",
    of_keys_with_heads_of_their_own: "only some of what the keys and values are made of has heads of its own",
    of_every_second_feature: "'torch.aten.slice.Tensor' comes behind the expansion, where only views, slices and joins "
    "are followed",
}


def joined(m: Maker, parts: list[ir.Value], by_writing: bool) -> ir.Value:
    """Features next to one another, by a concat or written into a tensor."""
    if len(parts) == 1:
        return parts[0]
    shape = shape_of(parts[0].type)
    shape[3] = sum(shape_of(part.type)[3] for part in parts)
    build, type_ = m.build, vtensor(shape, "f32")
    if not by_writing:
        return build.op("torch.aten.cat", [build.tensors(parts), build.integer(-1)], type_)
    value, begin = build.zeros(shape, "f32"), 0
    for part in parts:
        end = begin + shape_of(part.type)[3]
        numbers = [build.integer(n) for n in (3, begin, end, 1)]
        value = build.op("torch.aten.slice_scatter", [value, part, *numbers], type_)
        begin = end
    return value


def _type(*shape: int) -> str:
    return f"!torch.vtensor<[{','.join(map(str, shape))}],f32>"


def program(
    s: Sizes,
    spell: Callable[[Maker, ir.Value], Pair],
    by_writing: bool = False,
    first: bool = False,
    bias: bool = False,
    sinks: bool = False,
) -> ir.Module:
    """A function of one attention over a cache of latents and one of what stands beside the expanded keys."""
    own = spell is of_heads_of_their_own
    lead = [s.rows, s.heads] if own else [s.rows]
    q = [s.rows, s.heads, s.group, s.queries, s.width]

    def append(name: str, width: int) -> str:
        past, rows, grown = (_type(*lead, tokens, width) for tokens in (s.past, s.queries, s.tokens))
        return f'"kv.append"(%p{name}, %{name}) {{axis = {len(lead)} : i64}} : ({past}, {rows}) -> {grown}'

    text = f"""
func.func @decode(
    %tokens: !torch.vtensor<[{s.rows},{s.queries}],si64> {{kv.name = "t", kv.role = "tokens"}},
    %pl: {_type(*lead, s.past, s.latent)} {{kv.name = "l", kv.role = "cache"}},
    %pb: {_type(*lead, s.past, s.beside)} {{kv.name = "b", kv.role = "cache"}},
    %l: {_type(*lead, s.queries, s.latent)}, %b: {_type(*lead, s.queries, s.beside)}, %q: {_type(*q)}) -> () {{
  %gl = {append("l", s.latent)}
  %gb = {append("b", s.beside)}
  return
}}"""
    module = ir.Module.parse(text, context=manager.new_context())
    block = body(functions(module.operation)["decode"])
    latent, beside, returned = (view.operation for view in block.operations)
    with module.context, returned.location:
        m = Maker(returned, s)
        keys, values = spell(m, latent.results[0])
        parts = [keys]
        if s.beside:
            apart = m.build.view(beside.results[0], [s.rows, s.heads if own else 1, s.tokens, s.beside])
            parts.append(m.expand(apart, s.rows, s.heads, s.tokens, s.beside))
        k = joined(m, parts[::-1] if first else parts, by_writing)
        point = ir.InsertionPoint(returned)
        slopes = None
        if bias:
            of_heads = vtensor([s.rows, s.heads, s.group, s.tokens], "f32")
            slopes = LinearBiasOp(m.parameter("slopes", s.heads, s.group), of_heads, ip=point).bias
        out = attention(
            [block.arguments[5], k, values],
            scale=s.width**-0.5,
            softcap=0.0,
            causal=False,
            result=vtensor([*q[:4], shape_of(values.type)[3]], "f32"),
            location=returned.location,
            before=returned,
            bias=slopes,
            sinks=m.parameter("sinks", s.heads, s.group) if sinks else None,
            reach=Reach(),
        )
        ir.Operation.create("func.return", operands=[out], ip=point)
        returned.erase()
        function = functions(module.operation)["decode"]
        kind = ir.FunctionType.get([a.type for a in block.arguments], [out.type])
        function.attributes["function_type"] = ir.TypeAttr.get(kind)
    assert module.operation.verify()
    return module


def numbers(name: str, *shape: int) -> torch.Tensor:
    """Seeded by the name: about as large as one over the root of what is summed, so that logits are of order one."""
    generator = torch.Generator().manual_seed(sum(map(ord, name)))
    return torch.randn(shape, generator=generator)


def result(module: ir.Module) -> torch.Tensor:
    """The attention's result in PyTorch: [B, H, G, Q, Dv]."""
    # PyTorch's view needs elements that lie together
    text = str(module).replace("torch.aten.view", "torch.aten.reshape")
    module = ir.Module.parse(text, context=module.context)
    with module.context:
        return _result(module)


def _result(module: ir.Module) -> torch.Tensor:
    known: dict[ir.Value, torch.Tensor] = {}
    weights: dict[str, torch.Tensor] = {}
    block = body(functions(module.operation)["decode"])
    for i, argument in enumerate(block.arguments):
        known[argument] = numbers(f"argument {i}", *shape_of(argument.type))
    for view in block.operations:
        if view.operation.name == "kv.parameter":
            name = str(ir.StringAttr(view.operation.attributes["parameter"]).value)
            shape = shape_of(view.operation.results[0].type)
            weights[name] = numbers(name, *shape) / math.sqrt(shape[-1] if len(shape) > 1 else 1)
    for view in block.operations:
        op = view.operation
        evaluate = Evaluator(known, weights.get)
        if op.name == "kv.append":
            known[op.results[0]] = torch.cat([known[v] for v in op.operands], integer(op, "axis"))
        elif op.name == "kv.linear_bias":
            tokens = shape_of(op.results[0].type)[3]
            known[op.results[0]] = evaluate(op.operands[0])[None, :, :, None] * torch.arange(1.0 - tokens, 1.0)
        elif isinstance(op.opview, AttentionOp):
            q, k, v = (evaluate(operand) for operand in list(op.operands)[:3])
            logits = number(op, "scale") * torch.einsum("bhgqd,bhtd->bhgqt", q, k)
            if op.opview.bias is not None:
                logits = logits + known[op.opview.bias][:, :, :, None]
            if op.opview.sinks is not None:
                sinks = evaluate(op.opview.sinks)[None, :, :, None, None].expand(*logits.shape[:-1], 1)
                logits = torch.cat([logits, sinks], -1)
            weights_of = logits.softmax(-1)[..., : k.shape[2]]
            known[op.results[0]] = torch.einsum("bhgqt,bhtd->bhgqd", weights_of, v)
    (out,) = list(block.operations)[-1].operation.operands
    return Evaluator(known, weights.get)(out)


def absorbed(module: ir.Module, when: str = "always") -> list[str]:
    """Runs the pass; gives its remarks."""
    remarks: list[str] = []
    manager.run(module, [AbsorbExpansion(when, lambda remark: remarks.append(remark.text))])
    return remarks


def the_attention(module: ir.Module) -> ir.Operation:
    (op,) = (v for v in body(functions(module.operation)["decode"]).operations if v.operation.name == "kv.attention")
    return op.operation


def check(module: ir.Module, own: int) -> None:
    wanted = result(module)
    (remark,) = absorbed(module)
    assert "attention runs on the cache, not on what it is expanded to" in remark
    op = the_attention(module)
    assert shape_of(op.operands[0].type)[1] == own
    assert not any(expands(operand) for operand in list(op.operands)[1:3])
    found = result(module)
    assert found.shape == wanted.shape
    assert float((found - wanted).abs().max()) <= 1e-4 * max(1.0, float(wanted.abs().max()))


SIZES = st.builds(
    Sizes,
    rows=st.integers(1, 3),
    heads=st.integers(1, 4),
    group=st.integers(1, 3),
    queries=st.integers(1, 3),
    past=st.integers(1, 9),
    latent=st.integers(1, 12),
    beside=st.integers(0, 4),
    key=st.integers(1, 6),
    value=st.integers(1, 6),
)


@settings(max_examples=60, deadline=None)
@given(SIZES, st.sampled_from(SPELLINGS), st.booleans(), st.booleans(), st.booleans(), st.booleans())
def test_gives_the_same_numbers(
    s: Sizes, spell: Callable[[Maker, ir.Value], Pair], by_writing: bool, first: bool, bias: bool, sinks: bool
) -> None:
    if spell is of_a_stack:
        s = dataclasses.replace(s, value=s.key)
    check(program(s, spell, by_writing, first, bias, sinks), own=1)


@settings(max_examples=20, deadline=None)
@given(SIZES, st.booleans(), st.booleans())
def test_heads_of_their_own_stay(s: Sizes, by_writing: bool, first: bool) -> None:
    check(program(s, of_heads_of_their_own, by_writing, first, bias=True, sinks=True), own=s.heads)


@pytest.mark.parametrize("spell", LEFT_ALONE, ids=lambda spell: spell.__name__)
def test_what_is_no_expansion_of_the_cache_stays(spell: Callable[[Maker, ir.Value], Pair]) -> None:
    module = program(Sizes(2, 3, 1, 1, 5, 12, 2, 4, 4), spell)
    before = [operand.type for operand in the_attention(module).operands]
    assert absorbed(module) == [f"@decode: attention runs on what the cache is expanded to: {LEFT_ALONE[spell]}"]
    assert [operand.type for operand in the_attention(module).operands] == before


def test_one_key_is_no_axis_to_follow() -> None:
    module = program(Sizes(1, 2, 1, 1, 0, 8, 2, 4, 4), of_one_weight)
    (remark,) = absorbed(module)
    assert remark.endswith("there is no axis of the cache to follow")


def test_when_is_one_of_two_words() -> None:
    with pytest.raises(ValueError, match="when must be one of fewer, always, got 'never'"):
        AbsorbExpansion("never")
