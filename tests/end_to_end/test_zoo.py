"""Architectures that differ in their attention, with transformers' own code and random weights, against the oracle.

A few of those that ``make zoo`` measures, each cut to what is special about it; rotations of a part of each head and
windows that do not fit are in decoders written by hand.
"""

from __future__ import annotations

from typing import Any

import pytest
from compiled import TOLERANCE
from zoo.measure import compared
from zoo.models import FULL, build

ENTRIES: dict[str, dict[str, Any]] = {
    # learned positions
    "gpt2": {"n_layer": 1},
    # biases linear in the key's position: from the mask's running sum, and a table of the longest sequence
    "bloom": {"n_layer": 1},
    "mpt": {"n_layers": 1},
    # one head of keys and values, attention beside the feed-forward
    "falcon": {"num_hidden_layers": 1},
    # one that fits is a ring of its own, beside full attention; soft caps
    "gemma2": {"sliding_window": 12},
    # chunks beside full attention, rotations by complex numbers, scores of experts scattered
    "llama4_text": {"moe_layers": [0]},
    # a logit of its own for each head, the maximum taken off before the softmax
    "gpt_oss": {"num_hidden_layers": 1, "layer_types": [FULL]},
    # gathered experts
    "mixtral": {"num_hidden_layers": 1},
    # keys and values expanded from a latent, groups of experts
    "deepseek_v3": {"num_hidden_layers": 1, "first_k_dense_replace": 0, "n_group": 2},
}
"""By name, what makes the entry cheaper."""


@pytest.mark.parametrize("name", ENTRIES)
def test_equals_the_oracle_and_the_model(name: str) -> None:
    found = compared(build(name, **ENTRIES[name]), TOLERANCE)
    assert found["outcome"] == "agrees", found["message"]
