"""That the in-place check sees what it has to see: a scatter passes, slice and concat does not."""

import pytest

from snapcc.runtime.iree_compile import stream_ir, target_flags
from snapcc.runtime.schedule import Write, not_in_place, writes

B, C, D = 3, 512, 64
CACHE = B * C * D * 4
TYPES = f"%rows: tensor<{B}x{D}xf32>, %slots: tensor<{B}xi32>, %active: tensor<{B}xi1>, %q: tensor<{B}x{D}xf32>"
CACHE_TYPE = f"tensor<{B}x{C}x{D}xf32>"

SCATTER = f"""
  %e = tensor.empty() : tensor<{B}x2xi32>
  %places = linalg.generic {{indexing_maps = [affine_map<(i, j) -> (i)>, affine_map<(i, j) -> (i, j)>],
      iterator_types = ["parallel", "parallel"]}} ins(%slots : tensor<{B}xi32>) outs(%e : tensor<{B}x2xi32>) {{
  ^bb0(%s: i32, %o: i32):
    %i = linalg.index 0 : index
    %j = linalg.index 1 : index
    %zero = arith.constant 0 : index
    %row = arith.index_cast %i : index to i32
    %first = arith.cmpi eq, %j, %zero : index
    %place = arith.select %first, %row, %s : i32
    linalg.yield %place : i32
  }} -> tensor<{B}x2xi32>
  %new = iree_linalg_ext.scatter dimension_map = [0, 1] unique_indices(true)
      ins(%rows, %places, %active : tensor<{B}x{D}xf32>, tensor<{B}x2xi32>, tensor<{B}xi1>)
      outs(%cache : {CACHE_TYPE}) {{
  ^bb0(%x: f32, %y: f32):
    iree_linalg_ext.yield %x : f32
  }} -> {CACHE_TYPE}
"""
SLICE_AND_CONCAT = f"""
  %kept = tensor.extract_slice %cache[0, 1, 0] [{B}, {C - 1}, {D}] [1, 1, 1]
      : {CACHE_TYPE} to tensor<{B}x{C - 1}x{D}xf32>
  %one = tensor.expand_shape %rows [[0, 1], [2]] output_shape [{B}, 1, {D}]
      : tensor<{B}x{D}xf32> into tensor<{B}x1x{D}xf32>
  %new = tensor.concat dim(1) %kept, %one
      : (tensor<{B}x{C - 1}x{D}xf32>, tensor<{B}x1x{D}xf32>) -> {CACHE_TYPE}
"""
WHERE = f"""
  %e = tensor.empty() : {CACHE_TYPE}
  %new = linalg.generic {{indexing_maps = [affine_map<(b, c, d) -> (b)>, affine_map<(b, c, d) -> (b, d)>,
      affine_map<(b, c, d) -> (b, c, d)>, affine_map<(b, c, d) -> (b, c, d)>],
      iterator_types = ["parallel", "parallel", "parallel"]}}
      ins(%slots, %rows, %cache : tensor<{B}xi32>, tensor<{B}x{D}xf32>, {CACHE_TYPE}) outs(%e : {CACHE_TYPE}) {{
  ^bb0(%s: i32, %r: f32, %old: f32, %o: f32):
    %c = linalg.index 1 : index
    %ci = arith.index_cast %c : index to i32
    %same = arith.cmpi eq, %ci, %s : i32
    %v = arith.select %same, %r, %old : f32
    linalg.yield %v : f32
  }} -> {CACHE_TYPE}
"""


def decode(update: str) -> str:
    source = f"""
func.func @decode({TYPES}, %cache: {CACHE_TYPE} {{iree.abi.output = 1 : index}})
    -> (tensor<{B}x{C}xf32>, {CACHE_TYPE}) {{
{update}
  %zero = arith.constant 0.0 : f32
  %se = tensor.empty() : tensor<{B}x{C}xf32>
  %sz = linalg.fill ins(%zero : f32) outs(%se : tensor<{B}x{C}xf32>) -> tensor<{B}x{C}xf32>
  %scores = linalg.generic {{indexing_maps = [affine_map<(b, c, d) -> (b, d)>, affine_map<(b, c, d) -> (b, c, d)>,
      affine_map<(b, c, d) -> (b, c)>], iterator_types = ["parallel", "parallel", "reduction"]}}
      ins(%q, %new : tensor<{B}x{D}xf32>, {CACHE_TYPE}) outs(%sz : tensor<{B}x{C}xf32>) {{
  ^bb0(%a: f32, %k: f32, %o: f32):
    %m = arith.mulf %a, %k : f32
    %s = arith.addf %m, %o : f32
    linalg.yield %s : f32
  }} -> tensor<{B}x{C}xf32>
  return %scores, %new : tensor<{B}x{C}xf32>, {CACHE_TYPE}
}}
"""
    return stream_ir(source.encode(), target_flags("cpu"))


def test_a_scatter_is_in_place() -> None:
    ir = decode(SCATTER)
    assert not_in_place(ir, "decode", CACHE // B) == []
    update = [write for write in writes(ir, "decode") if write.bytes >= CACHE]
    assert [(write.kind, write.bytes) for write in update] == [("update", CACHE)]


@pytest.mark.parametrize("update", [SLICE_AND_CONCAT, WHERE], ids=["slice and concat", "where"])
def test_other_updates_are_not(update: str) -> None:
    assert not_in_place(decode(update), "decode", CACHE // B) != []


def test_commands_are_read() -> None:
    ir = """// -----// IR Dump After ScheduleAllocationPass: iree-stream-schedule-allocation //----- //
  util.func public @decode(%arg0: !hal.buffer_view) {
    %c0 = arith.constant 0 : index
    %c96 = arith.constant 96 : index
    %c64 = arith.constant 64 : index
      stream.cmd.copy %arg1[%c0], %arg2[%c0], %c96 : !stream.resource<external>{%c96} -> !stream.resource<x>{%c96}
      stream.cmd.fill %c0_i32, %arg2[%c0 for %c64] : i32 -> !stream.resource<transient>{%c96}
      stream.cmd.dispatch @d::@_encoding_0_encode_3x64xf32 {
        ro %arg1[%c0 for %c96] : !stream.resource<external>{%c96},
        wo %arg2[%c0 for %c64] : !stream.resource<transient>{%c96}
  }
"""
    assert writes(ir, "decode") == [
        Write("copy", 96),
        Write("fill", 64),
        Write("new", 64, "_encoding_0_encode_3x64xf32"),
    ]
