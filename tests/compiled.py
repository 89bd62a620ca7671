"""Compiled programs for the end-to-end tests, and their comparison with the oracle."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import LlamaConfig, LlamaForCausalLM

import snapcc
from snapcc.artifact import load as load_artifact
from snapcc.compiler.diagnostics import Refusal
from snapcc.oracle import oracle
from snapcc.runtime.generation import Row, generate
from snapcc.runtime.reference import Reference
from snapcc.runtime.verification import compare

TOLERANCE = 1e-4


def tiny_llama(folder: Path, layers: int = 2, dtype: torch.dtype = torch.float32, **changes: Any) -> LlamaForCausalLM:
    """A seeded Llama of 4 query and 2 KV heads, saved as a Hugging Face folder; logits of order one."""
    torch.manual_seed(layers)
    sizes = {
        "vocab_size": 256,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "eos_token_id": None,
        "initializer_range": 0.15,
    }
    model = LlamaForCausalLM(LlamaConfig(**(sizes | changes))).to(dtype).eval().requires_grad_(False)
    model.save_pretrained(folder)
    return model


def prompts_of(lengths: Sequence[int], vocabulary: int) -> list[list[int]]:
    """Seeded random prompts of these lengths."""
    generator = np.random.default_rng(sum(lengths))
    return [[int(token) for token in generator.integers(0, vocabulary, length)] for length in lengths]


class Stepwise:
    """A reference whose prompts go through token by token, so that nothing is selected."""

    def __init__(self, one: Reference) -> None:
        self._one = one
        self.decode = one.decode

    def prefill(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """The last token's logits."""
        logits = self._one.prefill(tokens[:1])
        for token in tokens[1:]:
            logits = self._one.decode(token)
        return logits


def place_of(refusal: Refusal) -> tuple[str, int]:
    """The file and line that a refusal names; it must have the form of one."""
    message = str(refusal)
    assert re.match(r"^.+\.py:\d+:\d+: error: .+; .+$", message), message
    file, line = message.split(":")[:2]
    return file, int(line)


def assert_equals_oracle(
    artifact: Path, groups: Sequence[Sequence[int]], new_tokens: int, reference: Reference | None = None
) -> list[Row]:
    """Generates from prompts of each group's lengths at once and compares logits and tokens with the oracle's."""
    program = snapcc.load(artifact)
    reference = reference or oracle(load_artifact(artifact))
    rows: list[Row] = []
    for lengths in groups:
        made = generate(program, prompts_of(lengths, program.spec.vocabulary), new_tokens)
        for length, row in zip(lengths, made, strict=True):
            found = compare(row, reference, "f32")
            assert found.difference <= TOLERANCE * max(1.0, found.largest), (length, found)
            assert found.agreeing == found.steps == new_tokens, (length, found)
        rows += made
    return rows
