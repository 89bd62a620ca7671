"""Hugging Face folders, end to end through the frontend."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import DynamicCache

from snapcc.frontend import Decoder, FrontendError, Role, load_model
from snapcc.frontend.huggingface import from_model

SMALL = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
TIED = {"tie_word_embeddings": True}
FAMILIES = {
    "llama": ("Llama", {}),
    "smollm2": (
        "Llama",
        {"num_attention_heads": 3, "num_key_value_heads": 1, "hidden_size": 24, "tie_word_embeddings": True},
    ),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {"head_dim": 16}),
    "mistral": ("Mistral", {"sliding_window": None}),
}


def build(family: str, **more: Any) -> Any:
    name, options = FAMILIES[family]
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**{**SMALL, "initializer_range": 0.2, **options, **more})
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval().requires_grad_(False)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:  # biases and norms that would not show if they were dropped
                parameter.normal_(1.0 if "norm" in name else 0.0, 0.1)
    return model


def saved(model: Any, folder: Path) -> Path:
    model.save_pretrained(folder)
    return folder


def inputs(decoder: Decoder, batch: int, query: int, past: int) -> tuple[Any, ...]:
    """Random inputs in the order of a Hugging Face decoder's, lists nested."""
    torch.manual_seed(1)
    tensors = []
    for given in decoder.inputs:
        shape = tuple(e.at(batch, query, past) for e in given.shape)
        if given.role is Role.TOKENS:
            tensors.append(torch.randint(0, decoder.vocabulary, shape))
        elif given.role is Role.POSITIONS:
            tensors.append((torch.arange(query) + past).expand(shape).contiguous())
        elif given.role is Role.CAUSAL_MASK:
            hidden = torch.arange(past + query)[None, :] > torch.arange(query)[:, None] + past
            mask = torch.zeros(shape, dtype=given.dtype)
            tensors.append(mask.masked_fill(hidden, torch.finfo(given.dtype).min))
        else:
            tensors.append(torch.randn(shape).to(given.dtype))
    layers = len(decoder.caches) // 2
    return (*tensors[:3], tensors[3 : 3 + layers], tensors[3 + layers :])


def eager(model: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    ids, positions, mask, keys, values = arguments
    cache = DynamicCache(config=model.config)
    for layer, key, value in zip(cache.layers, keys, values, strict=True):
        if key.shape[2]:
            layer.update(key, value)
    with torch.no_grad():
        out = model(input_ids=ids, position_ids=positions, attention_mask=mask, cache=cache, use_cache=True)
    return out.logits, [layer.keys for layer in cache.layers], [layer.values for layer in cache.layers]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_specialised_equals_the_model(family: str, tmp_path: Path) -> None:
    model = build(family)
    decoder = load_model(saved(model, tmp_path / family))
    assert decoder.name == family
    assert (decoder.vocabulary, decoder.max_positions) == (96, 128)
    assert decoder.supports_prefill
    roles = [i.role for i in decoder.inputs]
    assert roles == [Role.TOKENS, Role.POSITIONS, Role.CAUSAL_MASK, *[Role.CACHE] * 4]
    for batch, query, past in ((3, 1, 13), (1, 8, 0)):
        program = decoder.specialise(batch, query, past)
        arguments = inputs(decoder, batch, query, past)
        torch.testing.assert_close(program.module()(*arguments), eager(model, arguments), rtol=1e-5, atol=1e-5)


def test_weights_have_the_checkpoints_names_and_are_not_copied() -> None:
    model = build("smollm2")
    decoder = from_model(model, "smollm2")
    weights = decoder.weights()
    state = model.state_dict()
    assert "lm_head.weight" not in weights  # tied to the embedding
    assert set(weights) - set(state) == {"model.rotary_emb.inv_freq"}  # a buffer that no checkpoint holds
    assert all(weights[name].data_ptr() == state[name].data_ptr() for name in weights if name in state)


@pytest.mark.parametrize(("dtype", "expected"), [("checkpoint", torch.bfloat16), ("f32", torch.float32)])
def test_dtype(dtype: str, expected: torch.dtype, tmp_path: Path) -> None:
    decoder = load_model(saved(build("llama").to(torch.bfloat16), tmp_path), dtype=dtype)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=expected)
    assert {i.dtype for i in decoder.inputs if i.role is Role.CACHE} == {expected}
    assert decoder.weights()["model.norm.weight"].dtype == expected
    arguments = inputs(decoder, 3, 1, 13)
    got = decoder.specialise(3, 1, 13).module()(*arguments)
    wanted = eager(model, arguments)
    tolerance = 1e-5 if expected is torch.float32 else 0.05
    torch.testing.assert_close(got, wanted, rtol=tolerance, atol=tolerance)


def test_a_sliding_window_is_refused(tmp_path: Path) -> None:
    folder = saved(build("mistral", sliding_window=16), tmp_path)
    with pytest.raises(FrontendError, match=r"layer 0 .* sliding window of 16 tokens"):
        load_model(folder)


def test_a_window_that_no_layer_uses_is_none(tmp_path: Path) -> None:
    folder = saved(build("qwen2", sliding_window=16, use_sliding_window=False), tmp_path)
    assert load_model(folder).supports_prefill


def test_missing_weights_are_refused(tmp_path: Path) -> None:
    model = build("llama")
    state = {name: value for name, value in model.state_dict().items() if "layers.1.mlp" not in name}
    model.save_pretrained(tmp_path, state_dict=state)
    with pytest.raises(FrontendError, match=r"lacks 3 of the model's weights, such as model\.layers\.1\.mlp"):
        load_model(tmp_path)


def test_a_folder_that_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FrontendError, match=r"a folder without config\.json"):
        load_model(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "t5"}')
    with pytest.raises(FrontendError, match="does not load as a causal language model"):
        load_model(tmp_path)
    with pytest.raises(FrontendError, match="--dtype must be one of checkpoint, f32, bf16, f16, got 'int8'"):
        load_model(tmp_path, dtype="int8")
