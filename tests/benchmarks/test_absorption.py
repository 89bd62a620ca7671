"""What absorption saves, as the command counts it: a slot costs its latent, not what that is expanded to."""

import runpy
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "absorption.py"
HEADS, LATENT, ROTATED, KEY, VALUE = 4, 32, 8, 16, 24


def test_a_slot_costs_no_expansion() -> None:
    command = runpy.run_path(str(SCRIPT))
    layer = command["decoder"](
        "float32",
        hidden_size=64,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        kv_lora_rank=LATENT,
        q_lora_rank=24,
        qk_rope_head_dim=ROTATED,
        qk_nope_head_dim=KEY,
        v_head_dim=VALUE,
    )
    few, many = 256, 512
    grown = {}
    for absorbed in (False, True):
        less, more = (command["cost"](layer, slots, absorbed) for slots in (few, many))
        grown[absorbed] = (more.operations - less.operations) / (many - few), (more.bytes - less.bytes) / (many - few)
    expanded, latent = grown[False], grown[True]
    # multiplications and additions of a slot: the expansion, queries with keys, weights with values
    both = HEADS * (KEY + VALUE)
    assert expanded[0] >= 2 * LATENT * both + 2 * HEADS * (KEY + ROTATED + VALUE)
    # the rest is the softmax and what selects hidden values away, a few for each head and feature
    products = 2 * HEADS * (LATENT + ROTATED + LATENT)
    assert products <= latent[0] <= 2 * products < 2 * LATENT * both
    # a slot's latent is read for the keys and for the values; the logits of all heads pass a few times
    read = 4 * (2 * LATENT + ROTATED)
    assert read <= latent[1] <= read + 4 * HEADS * 16 < 4 * both < expanded[1]
