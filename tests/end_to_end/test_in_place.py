"""A decode step copies no cache, keeps none twice and lets none share its storage with another."""

import re
from pathlib import Path

import pytest
from compiled import assert_equals_oracle, tiny_llama

import snapcc
from snapcc.build import DATA_TILING, tuning
from snapcc.runtime.iree_compile import stream_ir, target_flags
from snapcc.runtime.schedule import not_in_place, writes

SLOTS = 512
SHAPES = {"sink": 4, "recent": SLOTS - 132, "topk": 128, "window": 8, "batch": 2, "prompts": (16,), "target": "host"}
OPTIONS = SHAPES | {"extends": ()}
ROW_OF_A_CACHE = 2 * SLOTS * 16 * 4
"""Bytes of one row of the smallest cache: 2 heads, 16 features, f32."""


@pytest.mark.parametrize("shipped", [False, True])
def test_decode_is_in_place(shipped: bool, tmp_path: Path) -> None:
    tiny_llama(tmp_path / "llama", max_position_embeddings=2048)
    source = snapcc.compile(tmp_path / "llama", tmp_path / "out.mlir", compile_to="iree", **OPTIONS).read_bytes()
    flags = tuning("decode.vmfb", source) if shipped else ()
    assert not shipped or DATA_TILING[0] in flags
    ir = stream_ir(source, [*target_flags("cpu"), *flags])
    assert len(re.findall(r"stream\.tensor\.import consume|consume", ir)) > 0
    assert not_in_place(ir, "decode", ROW_OF_A_CACHE) == []


def test_extend_copies_one_row_and_no_cache(tmp_path: Path) -> None:
    """What it reads is one row behind its new tokens, joined; what it writes goes to its place in the cache."""
    tiny_llama(tmp_path / "llama", max_position_embeddings=2048)
    options, tokens = SHAPES | {"extends": (8,)}, 8
    source = snapcc.compile(tmp_path / "llama", tmp_path / "out.mlir", compile_to="iree", **options).read_bytes()
    ir = stream_ir(source, [*target_flags("cpu"), *tuning("extend_8.vmfb", source)])
    row = ROW_OF_A_CACHE * (SLOTS + tokens) // SLOTS
    assert not_in_place(ir, "extend_8", row + 1) == []
    stored = [w for w in writes(ir, "extend_8") if w.kind == "update" and w.bytes == 2 * ROW_OF_A_CACHE]
    assert len(stored) == 4, "keys and values of two layers"


def test_caches_do_not_alias(tmp_path: Path) -> None:
    """Two layers, three steps, logits alone: with shared storage the second step is already wrong."""
    tiny_llama(tmp_path / "llama", layers=2)
    options = {"sink": 2, "recent": 8, "topk": 4, "window": 4, "batch": 1, "prompts": (16,), "target": "host"}
    artifact = snapcc.compile(tmp_path / "llama", tmp_path / "out.snapcc", extends=(), **options)
    assert_equals_oracle(artifact, [(4,)], 3)
