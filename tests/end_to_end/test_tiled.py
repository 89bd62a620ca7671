"""The program cut into the plan's tiles, run by IREE: the numbers of the program that is not."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from compiled import prompts_of, tiny_llama

import snapcc
from snapcc.runtime.generation import generate

OPTIONS = {"sink": 2, "recent": 10, "topk": 4, "batch": 2, "prompts": (32,), "extends": ()}


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The made-up machine with units so small that a tiny model's products do not fit into one."""
    text = (files("snapcc.sn40l_target") / "machines" / "small-dataflow.toml").read_text()
    path = tmp_path_factory.mktemp("machine") / "tiny-units.toml"
    path.write_text(text.replace("value = 131_072", "value = 8_192").replace("value = 8_388_608", "value = 524_288"))
    return path


def test_tiled_equals_untiled(machine: Path, tmp_path: Path) -> None:
    tiny_llama(tmp_path / "model", layers=1)
    logits = []
    for tile in (False, True):
        target = tmp_path / f"tile-{tile}.snapcc"
        options = {**OPTIONS, "machine": str(machine), "tile": tile, "dump_to": tmp_path / f"phases-{tile}"}
        program = snapcc.load(snapcc.compile(tmp_path / "model", target, **options))
        rows = generate(program, prompts_of((5, 30), program.spec.vocabulary), 6)
        # the first of each row comes from prefill
        logits.append(np.stack([row.logits for row in rows]))
    for tile in (False, True):
        _, decode, prefill = (tmp_path / f"phases-{tile}" / "06-iree.mlir").read_text().split("func.func @")[:3]
        assert [text.count("scf.for") > 4 for text in (decode, prefill)] == [tile, tile]
    assert np.abs(logits[0]).max() > 0.5
    np.testing.assert_allclose(logits[1], logits[0], rtol=0, atol=1e-5 * np.abs(logits[0]).max())
