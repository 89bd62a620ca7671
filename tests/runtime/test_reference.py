from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from decoders import GOOD, Decoder, seeded
from numpy.typing import NDArray
from plain_decoders import PLAIN, REFUSED, Plain
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.nn import functional

from snapcc.compiler.dialect.policy import Policy
from snapcc.runtime.reference import AttributionError, ProgramInputs, Reference, unmodified
from snapcc.runtime.selection import select

SMALL = Policy(sink=2, recent=8, topk=4, window=4)
BY_NAME = {decoder.name: decoder for decoder in GOOD}
CACHES = PLAIN.inputs.caches


def tokens_for(vocabulary: int, count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, vocabulary, count).tolist()


def kept(policy: Policy, prompt: int, position: int, selected: NDArray[np.int64]) -> list[int]:
    """The positions that stand in slots when the query is ``position``, by filling the slots one token at a time."""
    ring: dict[int, int] = {}
    for t in range(position + 1):
        ring[policy.slot(t)] = t
    assert len(selected) == policy.selected(prompt)
    return sorted([*ring.values(), *selected.tolist()])


@pytest.mark.parametrize("decoder", [*GOOD, PLAIN], ids=lambda d: d.name)
def test_eager_prefill_and_decode_equal_one_forward(decoder: Decoder) -> None:
    module = decoder.module()
    tokens = torch.tensor([tokens_for(decoder.vocabulary, 12, seed) for seed in range(2)])
    _, caches = decoder.step(module, tokens[:, :7], 0, decoder.caches(2))
    for t in range(7, 12):
        stepped, caches = decoder.step(module, tokens[:, t : t + 1], t, caches)
        whole, _ = decoder.step(module, tokens[:, : t + 1], 0, decoder.caches(2))
        last = whole if whole.ndim == 2 else whole[:, -1]
        torch.testing.assert_close(stepped.reshape(last.shape), last, atol=1e-5, rtol=0)


@pytest.mark.parametrize("decoder", [*GOOD, PLAIN], ids=lambda d: d.name)
def test_unmodified_equals_the_module(decoder: Decoder) -> None:
    module, model = decoder.module(), unmodified(decoder.program(), decoder.inputs)
    tokens = tokens_for(decoder.vocabulary, 12)
    found = [model.prefill(tokens[:9])] + [model.decode(token) for token in tokens[9:]]
    for end, logits in zip(range(9, 13), found, strict=True):
        whole, _ = decoder.step(module, torch.tensor([tokens[:end]]), 0, decoder.caches(1))
        np.testing.assert_allclose(logits, whole.reshape(-1, decoder.vocabulary)[-1].numpy(), atol=1e-5)


@pytest.mark.parametrize("decoder", [*GOOD, PLAIN], ids=lambda d: d.name)
def test_each_row_of_logits_has_its_head_and_what_fits_is_exact(decoder: Decoder) -> None:
    reference = Reference(decoder.program(), decoder.inputs, SMALL)
    plain = unmodified(decoder.program(), decoder.inputs)
    assert len(reference.attentions) * 2 == len(decoder.inputs.caches)
    assert {tuple(a.heads.tolist()) for a in reference.attentions} == {decoder.heads}
    assert [a.selects for a in reference.attentions] == list(range(len(reference.attentions)))
    tokens = tokens_for(decoder.vocabulary, 24)
    for prompt in (1, 5, 10):
        np.testing.assert_array_equal(reference.prefill(tokens[:prompt]), plain.prefill(tokens[:prompt]))
        for token in tokens[prompt:10]:
            np.testing.assert_array_equal(reference.decode(token), plain.decode(token))
        assert all(s.shape == (max(decoder.heads) + 1, 0) for s in reference.selected)
        assert np.abs(reference.decode(tokens[10]) - plain.decode(tokens[10])).max() > 1e-3


class Explicit(nn.Module):
    """Hands each layer the mask that a test sets: [H, Q, T] per layer."""

    def __init__(self) -> None:
        super().__init__()
        self.masks: Iterator[Tensor]

    def forward(self, keys: int, places: Tensor) -> Tensor:
        return next(self.masks)[None]


class Tapped(nn.Module):
    """Scales the logits and keeps them."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Tensor] = []

    def forward(self, scores: Tensor) -> Tensor:
        self.seen.append(scores[0] * 8**-0.5)
        return scores * 8**-0.5


def causal(length: int) -> Tensor:
    return torch.ones(length, length, dtype=torch.bool).tril()


def masks(
    policy: Policy, prompt: int, length: int, selected: list[list[NDArray[np.int64]]], group: int = 1
) -> list[Tensor]:
    """Per layer, what each query of a whole forward may see, [query heads, length, length]."""
    layers = []
    for heads in selected:
        visible = causal(length).repeat(len(heads), 1, 1)
        for mask, positions in zip(visible, heads, strict=True):
            for t in range(prompt, length):
                mask[t] = False
                mask[t, kept(policy, prompt, t, positions)] = True
        layers.append(visible.repeat_interleave(group, 0))
    return layers


@pytest.mark.parametrize(
    "policy",
    [
        SMALL,
        Policy(3, 7, 11, 5, "max", 7, "all"),
        Policy(0, 6, 5, 1, "none"),
        Policy(4, 5, 0, 2),
    ],
    ids=["small", "max-all", "no-sink", "no-topk"],
)
@pytest.mark.parametrize("prompt", [1, 5, 10, 11, 14, 16, 40])
def test_masking_equals_a_whole_forward_under_explicit_masks(policy: Policy, prompt: int) -> None:
    module = seeded(lambda: Plain(visible=Explicit(), scale=Tapped()))
    assert isinstance(module, Plain)
    reference = Reference(PLAIN.program(), PLAIN.inputs, policy)
    tokens = tokens_for(61, prompt + 24, seed=prompt)

    def whole(length: int, visible: list[Tensor]) -> NDArray[np.float32]:
        module.visible.masks = iter(visible)
        logits, _ = PLAIN.step(module, torch.tensor([tokens[:length]]), 0, PLAIN.caches(1))
        return logits[0].numpy()

    np.testing.assert_allclose(
        reference.prefill(tokens[:prompt]), whole(prompt, [causal(prompt)[None]] * 2)[-1], atol=1e-5
    )
    selected = [
        [select(head[None, -policy.window :].numpy(), prompt, policy) for head in scores]
        for scores in module.scale.seen
    ]
    for found, expected in zip(reference.selected, selected, strict=True):
        assert found.tolist() == [positions.tolist() for positions in expected]
    expected = whole(len(tokens), masks(policy, prompt, len(tokens), selected))
    for t in range(prompt, len(tokens)):
        np.testing.assert_allclose(reference.decode(tokens[t]), expected[t], atol=1e-5)


@pytest.mark.parametrize("decoder", [*GOOD, PLAIN], ids=lambda d: d.name)
def test_extend_equals_decoding_one_at_a_time(decoder: Decoder) -> None:
    together, one_by_one = (Reference(decoder.program(), decoder.inputs, SMALL) for _ in range(2))
    tokens = tokens_for(decoder.vocabulary, 46)
    for prompt, more in ((1, 12), (9, 3), (20, 25)):
        for model in (together, one_by_one):
            model.prefill(tokens[:prompt])
        found = together.extend(tokens[prompt : prompt + more])
        for token in tokens[prompt : prompt + more]:
            expected = one_by_one.decode(token)
        np.testing.assert_allclose(found, expected, atol=1e-5)
        np.testing.assert_allclose(together.decode(tokens[-1]), one_by_one.decode(tokens[-1]), atol=1e-5)


def test_prefill_starts_anew() -> None:
    reference = Reference(PLAIN.program(), PLAIN.inputs, SMALL)
    tokens = tokens_for(61, 40)
    first = [reference.prefill(tokens[:30]), *(reference.decode(t) for t in tokens[30:])]
    reference.prefill(tokens[3:8])
    second = [reference.prefill(tokens[:30]), *(reference.decode(t) for t in tokens[30:])]
    np.testing.assert_array_equal(first, second)


@dataclass
class Llama:
    """A tiny Llama of Hugging Face's, exported with its caches as plain tensors, and the model itself."""

    model: Any
    program: ExportedProgram
    inputs: ProgramInputs = field(
        default_factory=lambda: ProgramInputs(
            tokens=0, positions=1, causal_mask=2, caches=tuple((3 + i, 1 + i, 2) for i in range(4))
        )
    )


@pytest.fixture(scope="module")
def llama() -> Llama:
    from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=89,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.15,
    )
    torch.manual_seed(3)
    model = LlamaForCausalLM(config).eval().requires_grad_(False)

    class Step(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: Tensor, positions: Tensor, mask: Tensor, pairs: list[tuple[Tensor, Tensor]]) -> Any:
            cache = DynamicCache(config=config)
            for layer, (k, v) in zip(cache.layers, pairs, strict=True):
                layer.lazy_initialization(k, v)
                layer.keys, layer.values = k, v
            out = self.model(input_ids=ids, position_ids=positions, attention_mask=mask, past_key_values=cache)
            return out.logits, [(layer.keys, layer.values) for layer in cache.layers]

    query, past, total = Dim("query", min=1, max=256), Dim("past", min=0, max=256), Dim("total", min=1, max=512)
    pairs = [(torch.randn(1, 2, 5, 16), torch.randn(1, 2, 5, 16)) for _ in range(2)]
    program = torch.export.export(
        Step(),
        (torch.zeros(1, 3, dtype=torch.long), torch.arange(5, 8)[None], torch.zeros(1, 1, 3, 8), pairs),
        dynamic_shapes=({1: query}, {1: query}, {2: query, 3: total}, [({2: past}, {2: past})] * 2),
        strict=False,
    )
    return Llama(model, program)


def test_llama_is_exact_where_everything_fits(llama: Llama) -> None:
    reference, plain = Reference(llama.program, llama.inputs, SMALL), unmodified(llama.program, llama.inputs)
    tokens = tokens_for(89, 10)
    np.testing.assert_array_equal(reference.prefill(tokens[:4]), plain.prefill(tokens[:4]))
    for t in range(4, 10):
        logits = reference.decode(tokens[t])
        np.testing.assert_array_equal(logits, plain.decode(tokens[t]))
        with torch.no_grad():
            whole = llama.model(input_ids=torch.tensor([tokens[: t + 1]])).logits[0, -1]
        np.testing.assert_allclose(logits, whole.numpy(), atol=1e-5)


@pytest.mark.parametrize("policy", [SMALL, Policy(3, 7, 11, 5, score="all")], ids=["small", "all"])
def test_llama_equals_its_own_attention_under_explicit_masks(llama: Llama, policy: Policy) -> None:
    from transformers import AttentionInterface

    seen: list[Tensor] = []
    visible: list[Tensor] = []

    def explicit(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *_: Any, scaling: float, **__: Any
    ) -> Any:
        key, value = key.repeat_interleave(2, 1), value.repeat_interleave(2, 1)
        logits = query @ key.mT * scaling
        seen.append(logits[0])
        weights = logits.masked_fill(~visible[module.layer_idx], float("-inf")).softmax(-1)
        return (weights @ value).transpose(1, 2), weights

    AttentionInterface.register("explicit", explicit)
    model = copy.deepcopy(llama.model)
    model.set_attn_implementation("explicit")
    reference = Reference(llama.program, llama.inputs, policy)
    for prompt in (4, 16, 40):
        tokens = tokens_for(89, prompt + 24, seed=prompt)
        seen.clear()
        visible[:] = [causal(prompt)] * 2
        with torch.no_grad():
            whole = model(input_ids=torch.tensor([tokens[:prompt]]), use_cache=False).logits[0, -1]
        np.testing.assert_allclose(reference.prefill(tokens[:prompt]), whole.numpy(), atol=2e-5)
        selected = [
            [select(pair[:, -policy.window :].numpy(), prompt, policy) for pair in logits.split(2)] for logits in seen
        ]
        visible[:] = masks(policy, prompt, len(tokens), selected, group=2)
        with torch.no_grad():
            expected = model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0].numpy()
        for t in range(prompt, len(tokens)):
            np.testing.assert_allclose(reference.decode(tokens[t]), expected[t], atol=2e-5)


class Toy(nn.Module):
    """One layer without rotation, its attention spelled by ``attend(q [B, Q, 4, 8], k, v [B, T, H, 8], past)``."""

    def __init__(self, heads: int, attend: Any) -> None:
        super().__init__()
        self.words, self.qkv = nn.Embedding(61, 32), nn.Linear(32, 32 + 16 * heads)
        self.out = nn.Linear(32, 61)
        self.heads, self.attend = heads, attend

    def forward(self, ids: Tensor, k: Tensor, v: Tensor) -> Any:
        q, new_k, new_v = self.qkv(self.words(ids)).split([32, 8 * self.heads, 8 * self.heads], -1)
        past = k.shape[1]
        k = torch.cat((k, new_k.unflatten(-1, (self.heads, 8))), 1)
        v = torch.cat((v, new_v.unflatten(-1, (self.heads, 8))), 1)
        return self.out(self.attend(q.unflatten(-1, (4, 8)), k, v, past).reshape(*ids.shape, 32)), k, v


def late(queries: int, past: int) -> Tensor:
    """[Q, T] bool: keys after the query."""
    return torch.arange(past + queries) > torch.arange(past, past + queries)[:, None]


def folded_queries_inside(q: Tensor, k: Tensor, v: Tensor, past: int) -> Tensor:
    b, n, _, d = q.shape
    logits = q.transpose(1, 2).reshape(b, 4 * n, d) @ k[:, :, 0].mT
    weights = logits.masked_fill(late(n, past).repeat(4, 1), float("-inf")).softmax(-1)
    return (weights @ v[:, :, 0]).view(b, 4, n, d).transpose(1, 2)


def folded_queries_outside(q: Tensor, k: Tensor, v: Tensor, past: int) -> Tensor:
    b, n, _, d = q.shape
    logits = q.reshape(b, n * 4, d) @ k[:, :, 0].mT
    weights = logits.masked_fill(late(n, past).repeat_interleave(4, 0), float("-inf")).softmax(-1)
    return (weights @ v[:, :, 0]).view(b, n, 4, d)


def grouped_fused(q: Tensor, k: Tensor, v: Tensor, past: int) -> Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    mask = torch.zeros(q.shape[2], k.shape[2]).masked_fill(late(q.shape[2], past), float("-inf"))
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True).transpose(1, 2)


def in_place(q: Tensor, k: Tensor, v: Tensor, past: int) -> Tensor:
    logits = torch.einsum("bqhd,bthd->bthq", q, torch.cat((k, k), 2))
    logits.mul_(0.35).masked_fill_(late(q.shape[1], past).t()[:, None], float("-inf"))
    return torch.einsum("bthq,bthd->bqhd", logits.softmax(1), torch.cat((v, v), 2))


def without_maximum(q: Tensor, k: Tensor, v: Tensor, past: int) -> Tensor:
    k, v = (x.repeat_interleave(2, 2) for x in (k, v))
    logits = torch.einsum("bqhd,bthd->bhqt", q, k).masked_fill(late(q.shape[1], past), float("-inf"))
    weights = (logits - logits.max(-1, keepdim=True).values).softmax(-1)
    return torch.einsum("bhqt,bthd->bqhd", weights, v)


TOYS = {
    "folded-queries-inside": (1, folded_queries_inside, (0, 0, 0, 0)),
    "folded-queries-outside": (1, folded_queries_outside, (0, 0, 0, 0)),
    "grouped-fused": (2, grouped_fused, (0, 0, 1, 1)),
    "in-place": (2, in_place, (0, 1, 0, 1)),
    "without-maximum": (2, without_maximum, (0, 0, 1, 1)),
}


def toy_program(module: nn.Module, heads: int, rows: int = 1, query: int | None = None) -> ExportedProgram:
    past = Dim("past", min=0, max=256)
    shapes = ({1: Dim("query", min=1, max=256)} if query is None else {}, {1: past}, {1: past})
    ids = torch.zeros(rows, query or 3, dtype=torch.long)
    caches = [torch.randn(rows, 5, heads, 8) for _ in range(2)]
    return torch.export.export(module, (ids, *caches), dynamic_shapes=shapes, strict=False)


@pytest.mark.parametrize("name", TOYS)
def test_spellings_of_attention(name: str) -> None:
    heads, attend, expected_heads = TOYS[name]
    module = seeded(lambda: Toy(heads, attend))
    inputs = ProgramInputs(tokens=0, caches=((1, 1, 1), (2, 2, 1)))
    policy = Policy(1, 4, 3, 2)
    reference = Reference(toy_program(module, heads), inputs, policy)
    (attention,) = reference.attentions
    assert tuple(attention.heads.tolist()) == expected_heads

    # the same layer by hand, for the last token after 17 tokens of which 12 are the prompt
    tokens = tokens_for(61, 18)
    reference.prefill(tokens[:12])
    for token in tokens[12:17]:
        reference.decode(token)
    q, k, v = module.qkv(module.words(torch.tensor(tokens))).split([32, 8 * heads, 8 * heads], -1)
    scale = {"in-place": 0.35, "grouped-fused": 8**-0.5}.get(name, 1.0)
    result = []
    for i, head in enumerate(expected_heads):
        logits = q.view(-1, 4, 8)[:, i] @ k.view(-1, heads, 8)[:, head].T * scale
        visible = kept(policy, 12, 17, reference.selected[0][head])
        result.append(logits[17, visible].softmax(-1) @ v.view(-1, heads, 8)[visible, head])
    expected = module.out(torch.cat(result))
    np.testing.assert_allclose(reference.decode(tokens[17]), expected.numpy(), atol=1e-5)
    # and its selection
    every = q.view(-1, 4, 8)[10:12].transpose(0, 1) @ k.view(-1, heads, 8)[:12, list(expected_heads)].permute(1, 2, 0)
    for head in range(heads):
        group = (every * scale)[[i for i, h in enumerate(expected_heads) if h == head]]
        assert reference.selected[0][head].tolist() == select(group.numpy(), 12, policy).tolist()


def test_a_fixed_batch_runs_one_sequence_in_every_row() -> None:
    module = seeded(lambda: Toy(2, grouped_fused))
    inputs = ProgramInputs(tokens=0, caches=((1, 1, 1), (2, 2, 1)))
    one = Reference(toy_program(module, 2), inputs, SMALL)
    three = Reference(toy_program(module, 2, rows=3), inputs, SMALL)
    assert three.attentions[0].heads.tolist() == [0, 0, 1, 1] + [-1] * 8
    tokens = tokens_for(61, 30)
    # a prompt is one row's: it goes through token by token, and selects nothing
    one.prefill(tokens[:1])
    for token in tokens[1:20]:
        last = one.decode(token)
    np.testing.assert_allclose(three.prefill(tokens[:20]), last, atol=1e-6)
    assert three.selected[0].shape == (2, 0)
    for token in tokens[20:]:
        np.testing.assert_allclose(three.decode(token), one.decode(token), atol=1e-6)


def test_a_program_for_one_token_prefills_by_decoding() -> None:
    module = seeded(lambda: Toy(2, grouped_fused))
    inputs = ProgramInputs(tokens=0, caches=((1, 1, 1), (2, 2, 1)))
    any_length = Reference(toy_program(module, 2), inputs, SMALL)
    one_token = Reference(toy_program(module, 2, query=1), inputs, SMALL)
    tokens = tokens_for(61, 30)
    any_length.prefill(tokens[:1])
    for token in tokens[1:20]:
        last = any_length.decode(token)
    np.testing.assert_allclose(one_token.prefill(tokens[:20]), last, atol=1e-6)
    assert one_token.selected[0].shape == (2, 0)
    np.testing.assert_allclose(one_token.decode(tokens[20]), any_length.decode(tokens[20]), atol=1e-6)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mean-of-rows", r"read outside an attention at 'mean\w*' \(.*decoders.py:\d+\)"),
        ("running-sum", "in a way that masking a position does not undo"),
        ("sorted", "in a way that masking a position does not undo"),
        ("blurred", "in a way that masking a position does not undo"),
    ],
)
def test_what_masking_cannot_undo_is_refused(name: str, message: str) -> None:
    (decoder,) = (case.decoder for case in REFUSED if case.name == name)
    with pytest.raises(AttributionError, match=message):
        Reference(decoder.program(), decoder.inputs, SMALL)


def whole_heads_mixed(q: Tensor, k: Tensor, v: Tensor, past: int) -> Tensor:
    return grouped_fused(q, k.cumsum(2), v, past)


def no_mask(q: Tensor, k: Tensor, v: Tensor, past: int) -> Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return functional.scaled_dot_product_attention(q, k, v, enable_gqa=True).transpose(1, 2)


def scaled_by_maximum(q: Tensor, k: Tensor, v: Tensor, past: int) -> Tensor:
    k, v = (x.repeat_interleave(2, 2) for x in (k, v))
    logits = torch.einsum("bqhd,bthd->bhqt", q, k)
    logits = (logits / logits.amax(-1, keepdim=True)).masked_fill(late(q.shape[1], past), float("-inf"))
    return torch.einsum("bhqt,bthd->bqhd", logits.softmax(-1), v)


def without_gradients(q: Tensor, k: Tensor, v: Tensor, past: int) -> Tensor:
    with torch.no_grad():
        return grouped_fused(q, k, v, past)


@pytest.mark.parametrize(
    ("attend", "message"),
    [
        (without_gradients, "in a graph of its own"),
        (whole_heads_mixed, "does not divide the query heads evenly"),
        (no_mask, "is not causal"),
        (scaled_by_maximum, r"read outside an attention at 'amax'"),
    ],
)
def test_what_cannot_be_attributed_is_refused(attend: Any, message: str) -> None:
    program = toy_program(seeded(lambda: Toy(2, attend)), 2)
    with pytest.raises(AttributionError, match=message):
        Reference(program, ProgramInputs(tokens=0, caches=((1, 1, 1), (2, 2, 1))), SMALL)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (ProgramInputs(tokens=0, caches=CACHES), "no value is known for the program's input 1, 'places'"),
        (ProgramInputs(tokens=9, positions=1, caches=CACHES), "tokens must be a tensor among the program's 6 inputs"),
        (
            ProgramInputs(tokens=0, positions=1, caches=tuple((i, o, 1) for i, o, _ in CACHES)),
            "caches of a fixed length must have one length and take one token",
        ),
        (
            ProgramInputs(tokens=0, positions=1, caches=tuple((i, 0, 2) for i, _, _ in CACHES), logits=0),
            "must grow from",
        ),
    ],
)
def test_inputs_that_do_not_fit_the_program_are_refused(inputs: ProgramInputs, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Reference(PLAIN.program(), inputs, SMALL)


def test_wrong_calls_are_refused() -> None:
    reference = Reference(PLAIN.program(), PLAIN.inputs, SMALL)
    with pytest.raises(RuntimeError, match="decode follows a prefill"):
        reference.decode(1)
    with pytest.raises(ValueError, match="at least one token"):
        reference.prefill([])
