"""The engine on a tiny hand-written program: which function it calls with what, and what it refuses."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from snapcc.runtime.engine import (
    FunctionSpec,
    PositionError,
    Program,
    ProgramSpec,
    PromptError,
    RowError,
    ShapeError,
    StateSpec,
    TensorSpec,
    TokenError,
)
from snapcc.runtime.iree_compile import compile_module, target_flags

B, C, V = 2, 4, 5
WEIGHT = np.arange(V, dtype=np.float32) / 8

# Logits are the row's cached tokens summed, its count, and a weight: what a call wrote shows in what it gives.
SOURCE = """
#row = affine_map<(b, c) -> (b)>
#cell = affine_map<(b, c) -> (b, c)>
#column = affine_map<(b, c) -> (c)>
util.global private @w = #flow.parameter.named<"model"::"w"> : tensor<5xf32>

func.func private @logits(%cache: tensor<2x4xf32>, %count: tensor<2xi64>) -> tensor<2x5xELEMENT> {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<2xf32>
  %z = linalg.fill ins(%zero : f32) outs(%e : tensor<2xf32>) -> tensor<2xf32>
  %sum = linalg.generic {indexing_maps = [#cell, #row], iterator_types = ["parallel", "reduction"]}
      ins(%cache : tensor<2x4xf32>) outs(%z : tensor<2xf32>) {
  ^bb0(%a: f32, %b: f32):
    %s = arith.addf %a, %b : f32
    linalg.yield %s : f32
  } -> tensor<2xf32>
  %w = util.global.load @w : tensor<5xf32>
  %f = tensor.empty() : tensor<2x5xELEMENT>
  %out = linalg.generic {indexing_maps = [#row, #row, #column, #cell], iterator_types = ["parallel", "parallel"]}
      ins(%sum, %count, %w : tensor<2xf32>, tensor<2xi64>, tensor<5xf32>) outs(%f : tensor<2x5xELEMENT>) {
  ^bb0(%a: f32, %n: i64, %b: f32, %o: ELEMENT):
    %m = arith.sitofp %n : i64 to f32
    %s = arith.addf %a, %b : f32
    %t = arith.addf %s, %m : f32
    CONVERT
    linalg.yield %r : ELEMENT
  } -> tensor<2x5xELEMENT>
  return %out : tensor<2x5xELEMENT>
}

func.func @decode(%tokens: tensor<2xi64>, %positions: tensor<2xi64>, %active: tensor<2xi1>, %count: tensor<2xi64>,
    %cache: tensor<2x4xf32> {iree.abi.output = 1 : index}) -> (tensor<2x5xELEMENT>, tensor<2x4xf32>) {
  %new = linalg.generic {indexing_maps = [#row, #row, #row, #cell], iterator_types = ["parallel", "parallel"]}
      ins(%tokens, %positions, %active : tensor<2xi64>, tensor<2xi64>, tensor<2xi1>) outs(%cache : tensor<2x4xf32>) {
  ^bb0(%t: i64, %p: i64, %a: i1, %old: f32):
    %four = arith.constant 4 : i64
    %slot = arith.remsi %p, %four : i64
    %c = linalg.index 1 : index
    %ci = arith.index_cast %c : index to i64
    %same = arith.cmpi eq, %slot, %ci : i64
    %write = arith.andi %same, %a : i1
    %tf = arith.sitofp %t : i64 to f32
    %v = arith.select %write, %tf, %old : f32
    linalg.yield %v : f32
  } -> tensor<2x4xf32>
  %l = func.call @logits(%new, %count) : (tensor<2x4xf32>, tensor<2xi64>) -> tensor<2x5xELEMENT>
  return %l, %new : tensor<2x5xELEMENT>, tensor<2x4xf32>
}

func.func @reset(%row: tensor<i64>, %count: tensor<2xi64> {iree.abi.output = 0 : index},
    %cache: tensor<2x4xf32> {iree.abi.output = 1 : index}) -> (tensor<2xi64>, tensor<2x4xf32>) {
  %r64 = tensor.extract %row[] : tensor<i64>
  %r = arith.index_cast %r64 : i64 to index
  %n = arith.constant dense<0> : tensor<1xi64>
  %z = arith.constant dense<0.0> : tensor<1x4xf32>
  %a = tensor.insert_slice %n into %count[%r] [1] [1] : tensor<1xi64> into tensor<2xi64>
  %b = tensor.insert_slice %z into %cache[%r, 0] [1, 4] [1, 1] : tensor<1x4xf32> into tensor<2x4xf32>
  return %a, %b : tensor<2xi64>, tensor<2x4xf32>
}
"""
PREFILL = """
func.func @prefill_N(%tokens: tensor<1xNxi64>, %length: tensor<i64>, %row: tensor<i64>,
    %count: tensor<2xi64> {iree.abi.output = 1 : index}, %cache: tensor<2x4xf32> {iree.abi.output = 2 : index})
    -> (tensor<5xELEMENT>, tensor<2xi64>, tensor<2x4xf32>) {
  %r64 = tensor.extract %row[] : tensor<i64>
  %r = arith.index_cast %r64 : i64 to index
  %l = tensor.extract %length[] : tensor<i64>
  %e = tensor.empty() : tensor<1x4xf32>
  %stored = linalg.generic {indexing_maps = [#cell], iterator_types = ["parallel", "parallel"]}
      outs(%e : tensor<1x4xf32>) {
  ^bb0(%o: f32):
    %c = linalg.index 1 : index
    %ci = arith.index_cast %c : index to i64
    %real = arith.cmpi slt, %ci, %l : i64
    %n = arith.constant N : index
    %cc = arith.remui %c, %n : index
    %zero = arith.constant 0 : index
    %t = tensor.extract %tokens[%zero, %cc] : tensor<1xNxi64>
    %f = arith.sitofp %t : i64 to f32
    %z = arith.constant 0.0 : f32
    %v = arith.select %real, %f, %z : f32
    linalg.yield %v : f32
  } -> tensor<1x4xf32>
  %one = tensor.from_elements %l : tensor<1xi64>
  %a = tensor.insert_slice %one into %count[%r] [1] [1] : tensor<1xi64> into tensor<2xi64>
  %b = tensor.insert_slice %stored into %cache[%r, 0] [1, 4] [1, 1] : tensor<1x4xf32> into tensor<2x4xf32>
  %logits = func.call @logits(%b, %a) : (tensor<2x4xf32>, tensor<2xi64>) -> tensor<2x5xELEMENT>
  %own = tensor.extract_slice %logits[%r, 0] [1, 5] [1, 1] : tensor<2x5xELEMENT> to tensor<5xELEMENT>
  return %own, %a, %b : tensor<5xELEMENT>, tensor<2xi64>, tensor<2x4xf32>
}
"""


def spec(element: str, prompts: tuple[int, ...], max_positions: int = 100) -> ProgramSpec:
    count, cache = StateSpec("selected_count", (B,), "i64"), StateSpec("cache", (B, C), "f32")
    tokens, scalar = TensorSpec((B,), "i64"), TensorSpec((), "i64")
    functions = {
        "decode": FunctionSpec(
            "decode.vmfb",
            (tokens, tokens, TensorSpec((B,), "i1")),
            (TensorSpec((B, V), element),),
            (StateSpec("selected_count", (B,), "i64", stored=False), cache),
        ),
        "reset": FunctionSpec("decode.vmfb", (scalar,), (), (count, cache)),
    } | {
        f"prefill_{n}": FunctionSpec(
            "prefill.vmfb",
            (TensorSpec((1, n), "i64"), scalar, scalar),
            (TensorSpec((V,), element),),
            (count, cache),
        )
        for n in prompts
    }
    return ProgramSpec(functions, B, V, max_positions, "cpu")


def build(folder: Path, element: str, prompts: tuple[int, ...]) -> Path:
    def text(source: str) -> str:
        convert = "%r = arith.truncf %t : f32 to bf16" if element == "bf16" else "%r = arith.addf %t, %zero : f32"
        return source.replace("CONVERT", convert).replace("ELEMENT", element)

    shared = SOURCE[: SOURCE.index("func.func @decode")]
    prefills = "".join(
        PREFILL.replace("_N", f"_{n}").replace("xN", f"x{n}").replace("constant N", f"constant {n}") for n in prompts
    )
    flags = target_flags("cpu")
    compile_module(text(SOURCE).encode(), folder / "decode.vmfb", flags)
    compile_module(text(shared + prefills).encode(), folder / "prefill.vmfb", flags)
    save_file({"w": WEIGHT}, folder / "w.safetensors")
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("program"), "f32", (2, 4))


@pytest.fixture
def program(folder: Path) -> Iterator[Program]:
    return Program(folder, [folder / "w.safetensors"], spec("f32", (2, 4)))


def expected(total: float, count: int) -> Any:
    return total + count + WEIGHT


def test_two_modules_share_the_caches(program: Program) -> None:
    np.testing.assert_array_equal(program.prefill([1, 2, 3], 0), expected(6, 3))
    logits = program.decode([4, 2], [3, 0])
    np.testing.assert_array_equal(logits, [expected(10, 3), expected(2, 0)])
    np.testing.assert_array_equal(program.prefill([4], 0), expected(4, 1))


def test_prefill_takes_the_smallest_length_that_fits(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    called, call = [], program._call
    monkeypatch.setattr(program, "_call", lambda name, *rest: called.append(name) or call(name, *rest))  # type: ignore[func-returns-value]
    for prompt in ([1], [1, 1], [1, 1, 1], [1, 1, 1, 1]):
        program.prefill(prompt, 1)
    assert called == ["prefill_2", "prefill_2", "prefill_4", "prefill_4"]


def test_a_row_that_is_not_active_keeps_its_cache(program: Program) -> None:
    program.prefill([1, 2], 0)
    program.prefill([3, 4], 1)
    program.decode([4, -7], [2, 10**9], [True, False])
    np.testing.assert_array_equal(program.decode([0, 0], [3, 2])[1], expected(7, 2))


def test_reset_empties_one_row(program: Program) -> None:
    program.prefill([1, 2], 0)
    program.prefill([3, 4], 1)
    program.reset(0)
    np.testing.assert_array_equal(program.decode([0, 0], [0, 2]), [expected(0, 0), expected(7, 2)])


def test_logits_are_copies(program: Program) -> None:
    first = program.decode([1, 1], [0, 0])
    kept = first.copy()
    program.decode([3, 3], [1, 1])
    np.testing.assert_array_equal(first, kept)


def test_without_prefill_a_prompt_goes_through_decode(folder: Path) -> None:
    program = Program(folder, [folder / "w.safetensors"], spec("f32", (), max_positions=3))
    program.decode([4, 4], [0, 0])
    np.testing.assert_array_equal(program.prefill([1, 2, 3], 1), expected(6, 0))
    np.testing.assert_array_equal(program.decode([0, 0], [1, 0], [True, False])[0], expected(4, 0))
    with pytest.raises(PositionError, match="position 3 is beyond the model's last, 2"):
        program.prefill([1, 2, 3, 4], 0)


def test_extend_without_a_compiled_length_goes_through_decode(program: Program) -> None:
    program.prefill([1, 2], 0)
    np.testing.assert_array_equal(program.extend([3, 4], 0, 2), expected(10, 2))
    np.testing.assert_array_equal(program.decode([0, 0], [4, 0], [True, False])[0], expected(9, 2))


@pytest.mark.parametrize(
    ("tokens", "row", "start", "error", "message"),
    [
        ([], 0, 0, PromptError, "there are no more tokens"),
        ([1, 5], 0, 0, TokenError, "token 5 is not in the vocabulary"),
        ([1], 2, 0, RowError, "there is no row 2"),
        ([[1]], 0, 0, ShapeError, r"more tokens must have rank 1, got shape \[1, 1\]"),
        ([1], 0, -1, PositionError, "position -1 is negative"),
        ([1, 1], 0, 99, PositionError, "position 100 is beyond the model's last, 99"),
    ],
)
def test_extend_refuses(
    program: Program, tokens: Any, row: int, start: int, error: type[ValueError], message: str
) -> None:
    with pytest.raises(error, match=message):
        program.extend(tokens, row, start)


def test_half_precision_logits_come_as_f32(tmp_path: Path) -> None:
    build(tmp_path, "bf16", (4,))
    program = Program(tmp_path, [tmp_path / "w.safetensors"], spec("bf16", (4,)))
    logits = program.prefill([1, 2, 3], 0)
    assert logits.dtype == np.float32
    np.testing.assert_allclose(logits, expected(6, 3), rtol=2**-8)


@pytest.mark.parametrize(
    ("tokens", "row", "error", "message"),
    [
        ([], 0, PromptError, "the prompt is empty"),
        ([1] * 5, 0, PromptError, "the prompt has 5 tokens and the longest compiled length is 4"),
        ([1, 5], 0, TokenError, "token 5 is not in the vocabulary of 5 tokens"),
        ([-1], 0, TokenError, "token -1 is not in the vocabulary of 5 tokens"),
        ([1], 2, RowError, "there is no row 2: the program has rows 0 to 1"),
        ([1], -1, RowError, "there is no row -1"),
        ([[1]], 0, ShapeError, r"a prompt must have rank 1, got shape \[1, 1\]"),
        ([1.5], 0, ShapeError, "a prompt must hold integers, got float64"),
    ],
)
def test_prefill_refuses(program: Program, tokens: Any, row: int, error: type[ValueError], message: str) -> None:
    with pytest.raises(error, match=message):
        program.prefill(tokens, row)


@pytest.mark.parametrize(
    ("tokens", "positions", "active", "error", "message"),
    [
        ([1], [0, 0], None, ShapeError, r"tokens must have shape \[2\], one entry per row, got \[1\]"),
        ([1, 1], 0, None, ShapeError, r"positions must have shape \[2\]"),
        ([1, 1], [0, 0], [True], ShapeError, r"active must have shape \[2\]"),
        ([1, 1], [0, 0], [1, 0], ShapeError, "active must hold bools"),
        ([1, 9], [0, 0], None, TokenError, "token 9 is not in the vocabulary of 5 tokens"),
        ([1, 1], [0, 100], None, PositionError, "position 100 is beyond the model's last, 99"),
        ([1, 1], [-1, 0], None, PositionError, "position -1 is negative"),
    ],
)
def test_decode_refuses(
    program: Program, tokens: Any, positions: Any, active: Any, error: type[ValueError], message: str
) -> None:
    with pytest.raises(error, match=message):
        program.decode(tokens, positions, active)


def test_reset_refuses_a_row_that_is_not_there(program: Program) -> None:
    with pytest.raises(RowError):
        program.reset(7)


def test_a_missing_file_is_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"none\.safetensors is missing"):
        Program(folder, [tmp_path / "none.safetensors"], spec("f32", (2, 4)))
