"""Weights referred to or copied, and the exported program that gets them back."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import decoders
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.utils._pytree import tree_leaves
from transformers import LlamaConfig, LlamaForCausalLM

from snapcc.artifact import Artifact
from snapcc.contents import PROGRAM, WEIGHTS, restore_program, store_program, store_weights
from snapcc.frontend import Decoder, from_program, load_model


def opened(folder: Path, files: list[str], parameters: dict[str, str]) -> Artifact:
    """What these functions need of an artifact."""
    manifest = SimpleNamespace(parameters=parameters)
    return cast(Artifact, SimpleNamespace(folder=folder, weights=[folder / f for f in files], manifest=manifest))


def outputs(program: torch.export.ExportedProgram, arguments: Any) -> list[torch.Tensor]:
    with torch.no_grad():
        return tree_leaves(program.module()(*arguments))


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face folder with tied embeddings."""
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        tie_word_embeddings=True,
    )
    folder = tmp_path_factory.mktemp("llama")
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def decoder(llama: Path) -> Decoder:
    return load_model(llama)


def test_a_checkpoint_is_referred_to(decoder: Decoder, llama: Path, tmp_path: Path) -> None:
    files = store_weights(decoder.weights(), tmp_path, llama)
    assert files == [str(llama.resolve() / "model.safetensors"), WEIGHTS]
    copied = load_file(tmp_path / WEIGHTS)
    assert all("rotary" in name for name in copied)
    named = set(load_file(llama / "model.safetensors")) | set(copied)
    assert set(decoder.weights()) <= named


def test_a_checkpoint_with_a_weight_that_differs_is_copied(decoder: Decoder, llama: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    held = load_file(llama / "model.safetensors")
    changed = "model.norm.weight"
    held[changed] = held[changed] + 1
    save_file(held, other / "model.safetensors")
    # a name must stand in one file only
    assert store_weights(decoder.weights(), tmp_path, other) == [WEIGHTS]
    copied = load_file(tmp_path / WEIGHTS)
    assert copied.keys() == decoder.weights().keys()
    assert torch.equal(copied[changed], decoder.weights()[changed])


def test_converted_weights_are_copied(llama: Path, tmp_path: Path) -> None:
    weights = load_model(llama, "bf16").weights()
    # as of a model that keeps one in f32
    weights["model.norm.weight"] = weights["model.norm.weight"].float()
    assert store_weights(weights, tmp_path, llama) == [WEIGHTS]


def test_a_program_gets_its_weights_back(decoder: Decoder, llama: Path, tmp_path: Path) -> None:
    files = store_weights(decoder.weights(), tmp_path, llama)
    parameters = store_program(decoder, tmp_path)
    restored = restore_program(opened(tmp_path, files, parameters))
    assert decoder.program.example_inputs is not None
    arguments = decoder.program.example_inputs[0]
    for one, other in zip(outputs(restored, arguments), outputs(decoder.program, arguments), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("made", decoders.GOOD[:2], ids=lambda made: made.name)
def test_hand_written_programs_too(made: decoders.Decoder, tmp_path: Path) -> None:
    decoder = from_program(made.program())
    files = store_weights(decoder.weights(), tmp_path, None)
    parameters = store_program(decoder, tmp_path)
    assert files == [WEIGHTS]
    restored = restore_program(opened(tmp_path, files, parameters))
    arguments = made.arguments(2, 3, 5)
    for one, other in zip(outputs(restored, arguments), outputs(decoder.program, arguments), strict=True):
        assert torch.equal(one, other)


def test_a_weight_that_nothing_reads_is_none_that_is_stored(tmp_path: Path) -> None:
    made = decoders.GOOD[0]
    module = made.module()
    module.register_parameter("spare", torch.nn.Parameter(torch.ones(3)))
    program = torch.export.export(module, made.arguments(2, 3, 5), dynamic_shapes=made.shapes, strict=False)
    decoder = from_program(program)
    files = store_weights(decoder.weights(), tmp_path, None)
    assert "spare" not in load_file(tmp_path / WEIGHTS)
    restored = restore_program(opened(tmp_path, files, store_program(decoder, tmp_path)))
    arguments = made.arguments(2, 3, 5)
    for one, other in zip(outputs(restored, arguments), outputs(program, arguments), strict=True):
        assert torch.equal(one, other)


def test_no_weight_is_in_the_program(decoder: Decoder, tmp_path: Path) -> None:
    store_program(decoder, tmp_path)
    content = (tmp_path / PROGRAM).read_bytes()
    weight = decoder.weights()["model.layers.0.mlp.gate_proj.weight"]
    assert weight.numpy().tobytes()[:256] not in content
    weights = sum(tensor.nbytes for tensor in decoder.weights().values())
    assert weights > 20_000
    loaded = torch.export.load(tmp_path / PROGRAM)
    assert all(tensor.device.type == "meta" for tensor in loaded.state_dict.values())
