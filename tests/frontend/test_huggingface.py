"""Hugging Face folders, end to end through the frontend."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors import safe_open
from transformers import DynamicCache

from snapcc.frontend import Decoder, FrontendError, Role, from_object, huggingface, load_model
from snapcc.frontend.flat import source_of
from snapcc.frontend.huggingface import from_model
from snapcc.runtime.reference import ProgramInputs, unmodified

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
    "windowed": ("Mistral", {"sliding_window": 6}),
    "mixed": ("Gemma2", {"sliding_window": 6, "head_dim": 16, "attn_logit_softcapping": 2.0}),
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
        else:
            tensors.append(torch.randn(shape).to(given.dtype))
    layers = len(decoder.caches) // 2
    return (*tensors[:2], tensors[2 : 2 + layers], tensors[2 + layers :])


def eager(model: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    ids, positions, keys, values = arguments
    cache = DynamicCache()
    for index, (key, value) in enumerate(zip(keys, values, strict=True)):
        if key.shape[2]:
            cache.update(key, value, index)
    with torch.no_grad():
        out = model(input_ids=ids, position_ids=positions, cache=cache, use_cache=True)
    return out.logits, [layer.keys for layer in cache.layers], [layer.values for layer in cache.layers]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_specialised_equals_the_model(family: str, tmp_path: Path) -> None:
    model = build(family)
    decoder = load_model(saved(model, tmp_path / family))
    assert decoder.name == family
    assert (decoder.vocabulary, decoder.max_positions) == (96, 128)
    assert decoder.supports_prefill
    roles = [i.role for i in decoder.inputs]
    assert roles == [Role.TOKENS, Role.POSITIONS, *[Role.CACHE] * 4]
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


def check_steps(decoder: Decoder, model: Any) -> None:
    """The program's logits, token by token, are those of the model for all tokens."""
    names = decoder.input_names
    described = ProgramInputs(
        tokens=names.index("input_ids"),
        positions=names.index("position_ids"),
        caches=tuple((names.index(c.name), c.output_index, c.axis) for c in decoder.caches),
        logits=decoder.logits,
        states=tuple((names.index(s.name), s.output_index) for s in decoder.states),
    )
    one, tokens = unmodified(decoder.program, described), [5, 0, 9, 9, 2, 7]
    stepped = [one.prefill(tokens[:1]), *(one.decode(token) for token in tokens[1:])]
    with torch.no_grad():
        wanted = model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0]
    assert np.allclose(np.stack(stepped), wanted.numpy(), atol=1e-4)


def test_layers_with_a_state_are_exported_for_one_token() -> None:
    options = {**SMALL, "layer_types": ["conv", "full_attention"], "conv_L_cache": 3}
    torch.manual_seed(0)
    model: Any = transformers.Lfm2ForCausalLM(transformers.Lfm2Config(**options)).eval()
    decoder = from_model(model, "lfm2")
    assert [(state.name, state.row_axis, state.initial) for state in decoder.states] == [("conv_0", 0, None)]
    assert not decoder.supports_prefill
    check_steps(decoder, model)


def recurrent_gemma() -> Any:
    sizes = {name: size for name, size in SMALL.items() if name in transformers.RecurrentGemmaConfig().to_dict()}
    options = {**sizes, "lru_width": SMALL["hidden_size"], "block_types": ["recurrent", "attention"]}
    torch.manual_seed(0)
    return transformers.RecurrentGemmaForCausalLM(transformers.RecurrentGemmaConfig(**options)).eval()


def test_states_that_modules_keep_are_inputs_and_the_modules_stay_as_they_were() -> None:
    model = recurrent_gemma()
    kept = model.model.layers[0].temporal_block
    kept.conv1d_state = before = torch.zeros(1, SMALL["hidden_size"], 3)
    decoder = from_model(model, "recurrent_gemma")
    assert [(state.name, state.row_axis) for state in decoder.states] == [("kept_0", 0), ("kept_1", 0)]
    assert kept.conv1d_state is before
    assert kept.rg_lru.recurrent_states is None
    check_steps(decoder, model)


def test_a_state_that_is_nowhere_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = recurrent_gemma()
    block = type(model.model.layers[0].temporal_block)
    monkeypatch.setattr(block, "forward", lambda self, states, *_, **__: (states, None))
    with pytest.raises(FrontendError, match="layer 0 of RecurrentGemmaForCausalLM leaves its state out of the cache"):
        from_model(model, "recurrent_gemma")


def test_experts_are_exported_as_products_and_stay_as_they_were() -> None:
    options = {**SMALL, "num_local_experts": 4, "num_experts_per_tok": 2}
    torch.manual_seed(0)
    model = transformers.MixtralForCausalLM(transformers.MixtralConfig(**options)).eval()
    chosen = model.config._experts_implementation
    decoder = from_model(model, "mixtral")
    assert model.config._experts_implementation == chosen
    arguments = inputs(decoder, 2, 3, 5)
    got = decoder.specialise(2, 3, 5).module()(*arguments)
    torch.testing.assert_close(got, eager(model, arguments), rtol=1e-4, atol=1e-4)


def test_a_window_that_no_layer_uses_is_none(tmp_path: Path) -> None:
    folder = saved(build("qwen2", sliding_window=16, use_sliding_window=False), tmp_path)
    assert load_model(folder).supports_prefill


def test_missing_weights_are_refused(tmp_path: Path) -> None:
    model = build("llama")
    state = {name: value for name, value in model.state_dict().items() if "layers.1.mlp" not in name}
    model.save_pretrained(tmp_path, state_dict=state)
    with pytest.raises(FrontendError, match=r"lacks 3 of the model's weights, such as model\.layers\.1\.mlp"):
        load_model(tmp_path)


def test_a_pickled_or_given_model_is_exported_and_stays_as_it_was(tmp_path: Path) -> None:
    model = build("llama").train().requires_grad_(True)
    torch.save(model, tmp_path / "pickled.pt")
    decoder = load_model(tmp_path / "pickled.pt", trust_pickle=True)
    given = from_object(model, "given", dtype="bf16")
    assert (decoder.name, decoder.vocabulary, decoder.max_positions) == ("pickled", 96, 128)
    assert [i.role for i in given.inputs] == [i.role for i in decoder.inputs]
    assert given.weights()["model.norm.weight"].dtype == torch.bfloat16
    assert model.dtype == torch.float32
    assert all(module.training for module in model.modules())
    assert all(parameter.requires_grad for parameter in model.parameters())
    arguments = inputs(decoder, 1, 3, 5)
    torch.testing.assert_close(
        decoder.specialise(1, 3, 5).module()(*arguments), eager(model.eval(), arguments), rtol=1e-5, atol=1e-5
    )
    with pytest.raises(FrontendError, match="--input and --causal-mask are for exported programs"):
        from_object(model, "given", causal_masks=["mask"])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(build("llama"), tmp_path_factory.mktemp("whole"))


def config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def weights(folder: Path, change: Callable[[bytes], bytes]) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(change(path.read_bytes()))


def sharded(folder: Path) -> None:
    """As two shards, of which one is missing."""
    with safe_open(folder / "model.safetensors", framework="pt") as held:
        names = list(held.keys())
    (folder / "model.safetensors").rename(folder / "first.safetensors")
    shards = {name: "second.safetensors" if index else "first.safetensors" for index, name in enumerate(names)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": shards}))


DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "none": (lambda f: (f / "config.json").unlink(), r"a folder without config\.json; expected"),
    "empty": (lambda f: (f / "config.json").write_text(""), r"config\.json is no JSON: Expecting value: line 1"),
    "cut": (lambda f: (f / "config.json").write_text('{"a": '), r"config\.json is no JSON: Expecting value: line 1"),
    "binary": (lambda f: (f / "config.json").write_bytes(b"\xff\0"), r"config\.json is no JSON: 'utf-8' codec"),
    "list": (lambda f: (f / "config.json").write_text("[1]"), r"config\.json must hold a JSON object"),
    "encoder": (
        lambda f: config(f, architectures=["BertModel"]),
        r"names BertModel, which is no causal language model",
    ),
    "encoder-decoder": (
        lambda f: config(f, model_type="t5", architectures=None),
        "does not load .*T5Config.* must hold",
    ),
    "unknown": (lambda f: config(f, model_type="new"), "model type `new` but Transformers does not recognize"),
    "code": (lambda f: config(f, auto_map={"AutoConfig": "c.C"}), r"brings code of its own .*, which is not run"),
    "zero": (lambda f: config(f, num_attention_heads=0), "does not load as a causal language model: .*zero"),
    "text": (lambda f: config(f, hidden_size="large"), "'hidden_size' expected int, got str"),
    "other": (lambda f: config(f, hidden_size=16), r"has shape \[.*32.*\] in the checkpoint and \[.*16.*\] by config"),
    "no shard": (lambda f: (f / "model.safetensors").unlink(), r"no file named model\.safetensors.*save_pretrained"),
    "half a shard": (lambda f: weights(f, lambda b: b[:3000]), r"model\.safetensors is no whole .*not fully covered"),
    "empty shard": (lambda f: weights(f, lambda b: b""), r"model\.safetensors is no whole .*header too small"),
    "huge header": (
        lambda f: weights(f, lambda b: (1 << 40).to_bytes(8, "little") + b[8:]),
        r"model\.safetensors is no whole .*header too large\): copy or download it again",
    ),
    "a missing shard": (sharded, r"No such file or directory: .*second\.safetensors"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_folder_is_refused(
    damage: str, whole: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    change, message = DAMAGE[damage]
    shutil.copytree(whole, tmp_path / "model")
    change(tmp_path / "model")
    with pytest.raises(FrontendError, match=message) as caught:
        load_model(tmp_path / "model")
    assert len(str(caught.value).splitlines()) == 1
    assert capfd.readouterr() == ("", ""), "transformers talks"


def test_an_unknown_dtype_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(FrontendError, match="--dtype must be one of checkpoint, f32, bf16, f16, got 'int8'"):
        load_model(tmp_path, dtype="int8")


def test_a_table_of_positions_that_ends_early_ends_the_lengths() -> None:
    # its positions begin at 2, and it makes another table where the model's 128 do not fit
    options = {"d_model": 32, "ffn_dim": 48, "num_layers": 1, "attention_heads": 4, "max_position_embeddings": 128}
    torch.manual_seed(0)
    model = transformers.XGLMForCausalLM(transformers.XGLMConfig(vocab_size=96, **options)).eval()
    decoder = from_model(model, "positions")
    assert decoder.max_positions == 127
    decoder.specialise(1, 1, 126)
    with pytest.raises(FrontendError, match="exported for 0 to 126"):
        decoder.specialise(1, 1, 127)


def test_positions_that_count_from_behind_the_padding() -> None:
    torch.manual_seed(0)
    config = transformers.RobertaConfig(**SMALL, is_decoder=True, pad_token_id=3, initializer_range=0.2)
    model = transformers.RobertaForCausalLM(config).eval().requires_grad_(False)
    decoder = from_model(model, "roberta")
    assert decoder.max_positions == SMALL["max_position_embeddings"] - 4
    arguments = inputs(decoder, 1, 6, 0)
    tokens = arguments[0].clamp(min=4)
    logits = decoder.program.module()(tokens, *arguments[1:])[0]
    torch.testing.assert_close(logits, model(input_ids=tokens, use_cache=False).logits)


def test_a_model_without_a_cache_is_refused() -> None:
    model = transformers.OpenAIGPTLMHeadModel(transformers.OpenAIGPTConfig(vocab_size=8, n_embd=8, n_layer=1, n_head=1))
    with pytest.raises(FrontendError, match="OpenAIGPTLMHeadModel takes no cache: it is no decoder with a cache"):
        from_model(model, "gpt")


def test_a_place_is_the_models_not_that_of_what_calls_it() -> None:
    node = torch.fx.Graph().placeholder("x")
    calls = f'File "{huggingface.__file__}", line 5, in forward'
    node.meta["stack_trace"] = f'{calls}\nFile "/lib/site-packages/transformers/models/a.py", line 7, in forward'
    assert source_of(node) == "/lib/site-packages/transformers/models/a.py:7"


def test_a_condition_that_torch_export_cannot_solve_is_checked_at_each_length() -> None:
    torch.manual_seed(0)
    config = transformers.AriaTextConfig(**SMALL, moe_num_experts=4, moe_topk=2, moe_num_shared_experts=1)
    model = transformers.AriaTextForCausalLM(config).eval().requires_grad_(False)
    decoder = from_model(model, "aria_text")
    arguments = inputs(decoder, 2, 4, 0)
    logits = decoder.specialise(2, 4, 0).module()(*arguments)[0]
    torch.testing.assert_close(logits, model(input_ids=arguments[0], use_cache=False).logits)
