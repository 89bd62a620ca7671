"""Random Llamas against the oracle: every policy option, rows at different positions in one decode program."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from compiled import TOLERANCE, assert_equals_oracle, prompts_of, tiny_llama

import snapcc
from snapcc.artifact import load as load_artifact
from snapcc.runtime.generation import generate

# below S, below S + R, S + R itself, one selected, all selected, several wraps of the ring
GROUPS = ((1, 5, 10), (11, 14, 16), (20, 40, 48))
SMALL = {"sink": 2, "recent": 8, "topk": 4, "window": 4}
# no pooling, a window of 1, no sinks and nothing selected are presets' own, below; SMALL itself, in f32, is what the
# mutations are compared with
CASES: dict[str, dict[str, Any]] = {
    "wide": {"sink": 3, "recent": 7, "topk": 11, "window": 5, "batch": 4},
    "score-all": SMALL | {"score": "all", "batch": 3},
    "pool-max-7": SMALL | {"pool": "max", "pool_size": 7, "batch": 3},
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for layers in (2, 4):
        tiny_llama(folder / f"llama{layers}", layers)
    return folder


@pytest.mark.parametrize("case", CASES)
def test_logits_and_tokens_are_the_oracles(case: str, models: Path, tmp_path: Path) -> None:
    wide = case == "wide"
    # one case is planned too, and takes a prompt of either compiled length
    options = {"prompts": (16, 48) if wide else (48,), "extends": (), "target": "sn40l" if wide else "host"}
    artifact = snapcc.compile(models / f"llama{4 if wide else 2}", tmp_path / "out.snapcc", **options, **CASES[case])
    assert_equals_oracle(artifact, GROUPS, 24)


# Each with a prompt that fits, one that is selected from or dropped, and 20 new tokens, which wrap the ring.
PRESET_CASES: dict[str, dict[str, Any]] = {
    "streamingllm": {"sink": 2, "recent": 8},
    "sage-kv": {"sink": 2, "recent": 8, "topk": 4},
    "snapkv": {"window": 4, "room": 6, "topk": 5},
    "window": {"recent": 9},
    "naive": SMALL,
}


@pytest.mark.parametrize("kv", PRESET_CASES)
def test_a_preset_equals_the_oracle(kv: str, tmp_path: Path) -> None:
    tiny_llama(tmp_path / "llama", max_position_embeddings=72)
    options = {"batch": 3, "prompts": (48,), "extends": (), "target": "host", "kv": kv}
    artifact = snapcc.compile(tmp_path / "llama", tmp_path / "out.snapcc", **options, **PRESET_CASES[kv])
    assert load_artifact(artifact).manifest.kv == kv
    assert_equals_oracle(artifact, [(5, 20, 48)], 20)


def test_full_is_the_unmodified_model_and_ends_where_it_does(tmp_path: Path) -> None:
    model = tiny_llama(tmp_path / "llama", max_position_embeddings=40)
    options = {"kv": "full", "prompts": (16,), "target": "host"}
    artifact = snapcc.compile(tmp_path / "llama", tmp_path / "out.snapcc", **options)
    assert load_artifact(artifact).manifest.kv == "full"
    program = snapcc.load(artifact)
    (row,) = generate(program, prompts_of((16,), 256), 25)
    right = model(input_ids=torch.tensor([[*row.prompt, *row.tokens[:-1]]])).logits[0, 15:].numpy()
    assert np.abs(np.stack(row.logits) - right).max() <= TOLERANCE * max(1.0, float(np.abs(right).max()))
    with pytest.raises(ValueError, match="40"):
        generate(program, prompts_of((16,), 256), 26)


def test_equals_the_unmodified_model_where_everything_fits(tmp_path: Path) -> None:
    model = tiny_llama(tmp_path / "llama")
    options = SMALL | {"recent": 40, "batch": 2, "prompts": (16,), "extends": (), "target": "host"}
    artifact = snapcc.compile(tmp_path / "llama", tmp_path / "out.snapcc", **options)
    rows = generate(snapcc.load(artifact), prompts_of((3, 16), 256), 24)
    for row in rows:
        whole = torch.tensor([[*row.prompt, *row.tokens[:-1]]])
        right = model(input_ids=whole).logits[0, len(row.prompt) - 1 :].numpy()
        assert np.abs(np.stack(row.logits) - right).max() <= TOLERANCE * max(1.0, float(np.abs(right).max()))


@pytest.mark.parametrize(("dtype", "saved"), [("bf16", torch.bfloat16), ("f16", None)])
def test_narrow_types_agree_within_their_rounding(dtype: str, saved: torch.dtype | None, tmp_path: Path) -> None:
    """A checkpoint of the type, and one in f32 compiled with --dtype."""
    from snapcc.oracle import oracle
    from snapcc.runtime.verification import compare

    tiny_llama(tmp_path / "llama", dtype=saved or torch.float32)
    options = SMALL | {"batch": 3, "prompts": (48,), "extends": (), "target": "host"}
    asked = "checkpoint" if saved else dtype
    artifact = load_artifact(snapcc.compile(tmp_path / "llama", tmp_path / "out.snapcc", dtype=asked, **options))
    assert artifact.manifest.dtype == dtype
    reference, wide = oracle(artifact), oracle(artifact, wide=True)
    for row in generate(snapcc.load(artifact.folder), prompts_of((5, 20, 48), 256), 16):
        found = compare(row, reference, dtype, wide)
        assert found.holds, found
        assert 0 < found.rounding < 0.3
        # another token would not pass for rounding
        wrong = replace(row, logits=[np.roll(logits, 1) for logits in row.logits])
        assert not compare(wrong, reference, dtype, wide).holds
