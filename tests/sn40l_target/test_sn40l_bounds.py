"""The largest size of a tensor whose extents depend on loops."""

from __future__ import annotations

import pytest
from linalg_programs import parse
from torch_mlir import ir

from snapcc.sn40l_target.bounds import Interval, element_bytes, interval, shape, size
from snapcc.sn40l_target.errors import ProgramError

LOOP = """
func.func @main(%x: tensor<8x100xf32>, %n: index) -> tensor<8x100xf32> {{
  %c0 = arith.constant 0 : index
  %c3 = arith.constant 3 : index
  %c7 = arith.constant 7 : index
  %c100 = arith.constant 100 : index
  %zero = arith.constant 0.0 : f32
  %r = scf.for %i = %c0 to %c100 step %c7 iter_args(%acc = %x) -> (tensor<8x100xf32>) {{
    %j = {extent} : index
    %e = tensor.empty(%j) : tensor<8x?xf32>
    %f = linalg.fill ins(%zero : f32) outs(%e : tensor<8x?xf32>) -> tensor<8x?xf32>
    %m = linalg.exp ins(%f : tensor<8x?xf32>) outs(%f : tensor<8x?xf32>) -> tensor<8x?xf32>
    scf.yield %acc : tensor<8x100xf32>
  }}
  return %r : tensor<8x100xf32>
}}"""


def result(module: ir.Module, name: str) -> ir.Value:
    """The result of the first op of a name."""
    found: list[ir.Value] = []

    def look(op: ir.Operation) -> ir.WalkResult:
        if op.name == name:
            found.append(op.results[0])
        return ir.WalkResult.ADVANCE

    module.operation.walk(look)
    return found[0]


@pytest.mark.parametrize(
    ("extent", "most"),
    [
        ("arith.addi %i, %c7", 98 + 7),
        ("arith.subi %c100, %i", 100),
        ("arith.muli %i, %c3", 294),
        ("arith.minsi %i, %c7", 7),
        ("arith.maxsi %i, %c100", 100),
    ],
)
def test_an_extent_is_bounded_by_the_loops_around_it(extent: str, most: int) -> None:
    module = parse(LOOP.format(extent=extent))
    value = result(module, "linalg.exp")
    assert shape(value) == (8, most)
    assert size(value) == 8 * most * 4


def test_an_extent_from_an_argument_has_no_bound() -> None:
    module = parse(LOOP.format(extent="arith.addi %n, %c7"))
    value = result(module, "linalg.exp")
    with pytest.raises(
        ProgramError, match=r"-:2:\d+: error: a block argument is the size of a tensor and has no static bound"
    ):
        size(value)


def test_a_slice_is_never_longer_than_its_source() -> None:
    module = parse("""
func.func @main(%x: tensor<8x100xf32>, %n: index) {
  %s = tensor.extract_slice %x[0, 0] [8, %n] [1, 1] : tensor<8x100xf32> to tensor<8x?xf32>
  %c = tensor.cast %s : tensor<8x?xf32> to tensor<?x?xf32>
  return
}""")
    assert shape(result(module, "tensor.cast")) == (8, 100)


def test_a_loop_inside_a_loop() -> None:
    module = parse("""
func.func @main() {
  %c0 = arith.constant 0 : index
  %c2 = arith.constant 2 : index
  %c9 = arith.constant 9 : index
  scf.for %i = %c0 to %c9 step %c2 {
    scf.for %j = %i to %c9 step %c2 {
      %e = tensor.empty(%j) : tensor<?xbf16>
    }
  }
  return
}""")
    value = result(module, "tensor.empty")
    assert interval(value.owner.operands[0]) == Interval(0, 8)
    assert size(value) == 16


@pytest.mark.parametrize(
    ("element", "bytes_"),
    [
        ("f32", 4),
        ("bf16", 2),
        ("f16", 2),
        ("f8E4M3FN", 1),
        ("i1", 1),
        ("i4", 1),
        ("i64", 8),
        ("index", 8),
        ("complex<f32>", 8),
    ],
)
def test_elements(element: str, bytes_: int) -> None:
    with parse("").context:
        assert element_bytes(ir.Type.parse(element)) == bytes_
