"""The program cut into the plan's tiles, run by IREE: the numbers of the program that is not."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from compiled import prompts_of, tiny_llama
from lowered import Program, parse

import snapcc
from snapcc.compiler.passes import manager
from snapcc.runtime.generation import generate
from snapcc.sn40l_target.tile import Sn40lTile

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


SUMS = """
func.func @sums(%a: tensor<4x4096xf32>, %b: tensor<4096x8xf32>, %start: tensor<4x8xf32>, %most: tensor<4xf32>)
    -> tensor<4x8xf32> {
  %product = linalg.matmul ins(%a, %b : tensor<4x4096xf32>, tensor<4096x8xf32>)
    outs(%start : tensor<4x8xf32>) -> tensor<4x8xf32>
  %largest = linalg.generic {
    indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i)>],
    iterator_types = ["parallel", "reduction"]
  } ins(%a : tensor<4x4096xf32>) outs(%most : tensor<4xf32>) {
  ^bb0(%x: f32, %m: f32):
    %n = arith.maximumf %x, %m : f32
    linalg.yield %n : f32
  } -> tensor<4xf32>
  %empty = tensor.empty() : tensor<4x8xf32>
  %both = linalg.generic {
    indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i)>, affine_map<(i, j) -> (i, j)>],
    iterator_types = ["parallel", "parallel"]
  } ins(%product, %largest : tensor<4x8xf32>, tensor<4xf32>) outs(%empty : tensor<4x8xf32>) {
  ^bb0(%p: f32, %m: f32, %o: f32):
    %s = arith.addf %p, %m : f32
    linalg.yield %s : f32
  } -> tensor<4x8xf32>
  return %both : tensor<4x8xf32>
}"""


def test_reductions_that_start_from_a_tensor_are_the_same_in_tiles(machine: Path, tmp_path: Path) -> None:
    """A product added to what was there, and the largest of that and more: both cut along what they reduce."""
    module = parse(SUMS.replace("@sums", "@tiled"))
    manager.run(module, [Sn40lTile(machine=str(machine))])
    tiled = str(module.body.operations[0])
    assert tiled.count("scf.for") >= 2
    # the tiles go on from the tensor: none of them starts anew
    assert "linalg.fill" not in tiled
    run = Program(f"{SUMS}\n{tiled}", tmp_path)
    random = np.random.default_rng(0)
    shapes = ((4, 4096), (4096, 8), (4, 8), (4,))
    given = [random.standard_normal(shape).astype(np.float32) for shape in shapes]
    given[3][:2] = 100
    whole, parts = run("sums", *given), run("tiled", *given)
    expected = given[0] @ given[1] + given[2] + np.maximum(given[0].max(1), given[3])[:, None]
    np.testing.assert_allclose(whole, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
    np.testing.assert_allclose(parts, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
