"""Architectures that differ in their attention, with transformers' own code and random weights, against the oracle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from compiled import TOLERANCE, assert_equals_oracle, prompts_of

import snapcc
from snapcc.runtime.generation import generate

SIZES = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "initializer_range": 0.15,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
BLOOM = {"vocab_size": 256, "hidden_size": 64, "n_layer": 2, "n_head": 4, "initializer_range": 0.15}
GPT2 = {"vocab_size": 256, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 256, "initializer_range": 0.15}

EXPERTS = SIZES | {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None}
LATENT = {name: size for name, size in SIZES.items() if name != "head_dim"} | {
    "num_key_value_heads": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 32,
    "kv_lora_rank": 32,
    "q_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
}

ENTRIES: dict[str, tuple[str, dict[str, Any], int]] = {
    # a window that fits into the slots is a ring of its own, one that does not is applied by position
    "window-of-6": ("Mistral", SIZES | {"sliding_window": 6}, 8),
    "window-of-16": ("Mistral", SIZES | {"sliding_window": 16}, 8),
    "window-and-full-with-softcap": (
        "Gemma2",
        SIZES | {"sliding_window": 12, "attn_logit_softcapping": 3.0, "query_pre_attn_scalar": 16},
        8,
    ),
    "alibi": ("Bloom", BLOOM, 8),
    "learned-positions": ("GPT2", GPT2, 8),
    "experts": ("Mixtral", EXPERTS, 8),
    "latent-cache-and-groups-of-experts": ("DeepseekV3", LATENT, 8),
}
"""By what is special: the class, its configuration, and R."""


def saved(name: str, folder: Path) -> Any:
    """The seeded model, whose norms and biases would show if they were dropped, as a Hugging Face folder."""
    family, options, _ = ENTRIES[name]
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**options)
    head = f"{family}LMHeadModel" if family == "GPT2" else f"{family}ForCausalLM"
    model = getattr(transformers, head)(config).eval().requires_grad_(False)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn(parameter.shape) * 0.1)
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("name", ENTRIES)
def test_equals_the_oracle_and_the_model(name: str, tmp_path: Path) -> None:
    model = saved(name, tmp_path / "model")
    options = {"sink": 2, "recent": ENTRIES[name][2], "topk": 4, "window": 4, "batch": 2, "prompts": (48,)}
    artifact = snapcc.compile(tmp_path / "model", tmp_path / "out.snapcc", target="host", extends=(), **options)
    assert_equals_oracle(artifact, [(48, 5)], 24)
    # a prompt's logits are the model's own: nothing is dropped before its end
    (prompt,) = prompts_of((40,), 256)
    (row,) = generate(snapcc.load(artifact), [prompt], 1)
    right = model(input_ids=torch.tensor([prompt])).logits[0, -1].numpy()
    assert np.abs(row.logits[0] - right).max() <= TOLERANCE * max(1.0, float(np.abs(right).max()))
