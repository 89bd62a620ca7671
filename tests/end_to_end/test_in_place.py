"""A decode step copies no cache, keeps none twice and lets none share its storage with another."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from compiled import assert_equals_oracle, tiny_llama

import snapcc
from snapcc.build import DATA_TILING, tuning
from snapcc.runtime.engine import Program
from snapcc.runtime.iree_compile import stream_ir, target_flags
from snapcc.runtime.schedule import not_in_place

SLOTS = 512
OPTIONS = {"sink": 4, "recent": SLOTS - 132, "topk": 128, "window": 8, "batch": 2, "prompts": (16,), "target": "host"}
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


def test_caches_do_not_alias(tmp_path: Path) -> None:
    """Two layers, three steps, logits alone: with shared storage the second step is already wrong."""
    tiny_llama(tmp_path / "llama", layers=2)
    options = {"sink": 2, "recent": 8, "topk": 4, "window": 4, "batch": 1, "prompts": (16,), "target": "host"}
    artifact = snapcc.compile(tmp_path / "llama", tmp_path / "out.snapcc", **options)
    assert_equals_oracle(artifact, [(4,)], 3)


def test_an_idle_row_keeps_its_cache(tmp_path: Path) -> None:
    tiny_llama(tmp_path / "llama")
    options = {"sink": 2, "recent": 8, "topk": 4, "window": 4, "batch": 2, "prompts": (16,), "target": "host"}
    artifact = snapcc.compile(tmp_path / "llama", tmp_path / "out.snapcc", **options)
    torch.manual_seed(0)
    prompts = torch.randint(0, 256, (2, 14)).tolist()

    def step(program: Program, active: list[bool]) -> np.ndarray:
        return program.decode(np.array([7, 9]), np.array([14, 14]), np.array(active))

    steady, paused = snapcc.load(artifact), snapcc.load(artifact)
    for program in (steady, paused):
        for row, prompt in enumerate(prompts):
            program.prefill(prompt, row)
    idle = step(paused, [False, True])
    assert np.isfinite(idle).all()
    both = step(steady, [True, True])
    np.testing.assert_allclose(idle[1], both[1], atol=1e-5)
    np.testing.assert_allclose(step(paused, [True, False])[0], both[0], atol=1e-5)
