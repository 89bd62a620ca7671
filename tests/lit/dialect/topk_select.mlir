// RUN: not snapcc-opt %s --split-input-file 2>%t | filecheck %s
// RUN: filecheck %s --check-prefix=REFUSED --input-file %t

// CHECK-LABEL: func.func @paper(
// CHECK: %{{.+}} = "kv.topk_select"(%arg0, %arg1, %arg2) {{{.*}}pool = "avg", pool_size = 5 : i64, ring = 8 : i64, scale = 2.500000e-01 : f64, score = "candidates", selected = 4 : i64, sink = 2 : i64, softcap = 0.000000e+00 : f64, window = 4 : i64} : (!torch.vtensor<[1,2,2,40,16],f32>, !torch.vtensor<[1,2,40,16],f32>, !torch.vtensor<[],si64>) -> !torch.vtensor<[2,4],si64>
func.func @paper(%q: !torch.vtensor<[1,2,2,40,16],f32>, %k: !torch.vtensor<[1,2,40,16],f32>, %length: !torch.vtensor<[],si64>) -> !torch.vtensor<[2,4],si64> {
  %0 = "kv.topk_select"(%q, %k, %length) {operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, pool = "avg", pool_size = 5 : i64, ring = 8 : i64, scale = 2.500000e-01 : f64, score = "candidates", selected = 4 : i64, sink = 2 : i64, softcap = 0.000000e+00 : f64, window = 4 : i64} : (!torch.vtensor<[1,2,2,40,16],f32>, !torch.vtensor<[1,2,40,16],f32>, !torch.vtensor<[],si64>) -> !torch.vtensor<[2,4],si64>
  return %0 : !torch.vtensor<[2,4],si64>
}

// -----

// CHECK-LABEL: func.func @snapkv(
// CHECK: %{{.+}} = "kv.topk_select"(%arg0, %arg1, %arg2) {{{.*}}pool = "max", pool_size = 7 : i64, ring = 8 : i64, scale = 2.500000e-01 : f64, score = "all", selected = 4 : i64, sink = 0 : i64, softcap = 0.000000e+00 : f64, window = 4 : i64} : (!torch.vtensor<[1,2,2,40,16],f32>, !torch.vtensor<[1,2,40,16],f32>, !torch.vtensor<[],si64>) -> !torch.vtensor<[2,4],si64>
func.func @snapkv(%q: !torch.vtensor<[1,2,2,40,16],f32>, %k: !torch.vtensor<[1,2,40,16],f32>, %length: !torch.vtensor<[],si64>) -> !torch.vtensor<[2,4],si64> {
  %0 = "kv.topk_select"(%q, %k, %length) {operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, pool = "max", pool_size = 7 : i64, ring = 8 : i64, scale = 2.500000e-01 : f64, score = "all", selected = 4 : i64, sink = 0 : i64, softcap = 0.000000e+00 : f64, window = 4 : i64} : (!torch.vtensor<[1,2,2,40,16],f32>, !torch.vtensor<[1,2,40,16],f32>, !torch.vtensor<[],si64>) -> !torch.vtensor<[2,4],si64>
  return %0 : !torch.vtensor<[2,4],si64>
}

// -----

// CHECK-LABEL: func.func @builtin(
// CHECK: %{{.+}} = "kv.topk_select"(%arg0, %arg1, %arg2) {{{.*}}pool = "none", pool_size = 5 : i64, ring = 8 : i64, scale = 2.500000e-01 : f64, score = "candidates", selected = 4 : i64, sink = 2 : i64, softcap = 0.000000e+00 : f64, window = 4 : i64} : (tensor<1x2x2x40x16xbf16>, tensor<1x2x40x16xbf16>, tensor<i64>) -> tensor<2x4xi64>
func.func @builtin(%q: tensor<1x2x2x40x16xbf16>, %k: tensor<1x2x40x16xbf16>, %length: tensor<i64>) -> tensor<2x4xi64> {
  %0 = "kv.topk_select"(%q, %k, %length) {operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, pool = "none", pool_size = 5 : i64, ring = 8 : i64, scale = 2.500000e-01 : f64, score = "candidates", selected = 4 : i64, sink = 2 : i64, softcap = 0.000000e+00 : f64, window = 4 : i64} : (tensor<1x2x2x40x16xbf16>, tensor<1x2x40x16xbf16>, tensor<i64>) -> tensor<2x4xi64>
  return %0 : tensor<2x4xi64>
}

// -----

// REFUSED: topk_select.mlir:[[# @LINE + 2]]:8: error: 'kv.topk_select' op sink must be at least 0, got -1
func.func @negative_sink(%q: !torch.vtensor<[1,2,2,40,16],f32>, %k: !torch.vtensor<[1,2,40,16],f32>, %length: !torch.vtensor<[],si64>) -> !torch.vtensor<[2,4],si64> {
  %0 = "kv.topk_select"(%q, %k, %length) {operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, pool = "avg", pool_size = 5 : i64, ring = 8 : i64, scale = 2.500000e-01 : f64, score = "candidates", selected = 4 : i64, sink = -1 : i64, softcap = 0.000000e+00 : f64, window = 4 : i64} : (!torch.vtensor<[1,2,2,40,16],f32>, !torch.vtensor<[1,2,40,16],f32>, !torch.vtensor<[],si64>) -> !torch.vtensor<[2,4],si64>
  return %0 : !torch.vtensor<[2,4],si64>
}

// -----

// REFUSED: topk_select.mlir:[[# @LINE + 2]]:8: error: 'kv.topk_select' op ring must be at least 1, got 0
func.func @no_ring(%q: !torch.vtensor<[1,2,2,40,16],f32>, %k: !torch.vtensor<[1,2,40,16],f32>, %length: !torch.vtensor<[],si64>) -> !torch.vtensor<[2,4],si64> {
  %0 = "kv.topk_select"(%q, %k, %length) {operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, pool = "avg", pool_size = 5 : i64, ring = 0 : i64, scale = 2.500000e-01 : f64, score = "candidates", selected = 4 : i64, sink = 2 : i64, softcap = 0.000000e+00 : f64, window = 4 : i64} : (!torch.vtensor<[1,2,2,40,16],f32>, !torch.vtensor<[1,2,40,16],f32>, !torch.vtensor<[],si64>) -> !torch.vtensor<[2,4],si64>
  return %0 : !torch.vtensor<[2,4],si64>
}

// -----

// REFUSED: topk_select.mlir:[[# @LINE + 2]]:8: error: 'kv.topk_select' op q and k must have ranks 5 and 4, got 4 and 4
func.func @ungrouped(%q: !torch.vtensor<[1,4,40,16],f32>, %k: !torch.vtensor<[1,2,40,16],f32>, %length: !torch.vtensor<[],si64>) -> !torch.vtensor<[2,4],si64> {
  %0 = "kv.topk_select"(%q, %k, %length) {operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, pool = "avg", pool_size = 5 : i64, ring = 8 : i64, scale = 2.500000e-01 : f64, score = "candidates", selected = 4 : i64, sink = 2 : i64, softcap = 0.000000e+00 : f64, window = 4 : i64} : (!torch.vtensor<[1,4,40,16],f32>, !torch.vtensor<[1,2,40,16],f32>, !torch.vtensor<[],si64>) -> !torch.vtensor<[2,4],si64>
  return %0 : !torch.vtensor<[2,4],si64>
}

// -----

// REFUSED: topk_select.mlir:[[# @LINE + 2]]:8: error: 'kv.topk_select' op selects for one row at a time: expected B = 1, got 3
func.func @batch(%q: !torch.vtensor<[3,2,2,40,16],f32>, %k: !torch.vtensor<[3,2,40,16],f32>, %length: !torch.vtensor<[],si64>) -> !torch.vtensor<[2,4],si64> {
  %0 = "kv.topk_select"(%q, %k, %length) {operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, pool = "avg", pool_size = 5 : i64, ring = 8 : i64, scale = 2.500000e-01 : f64, score = "candidates", selected = 4 : i64, sink = 2 : i64, softcap = 0.000000e+00 : f64, window = 4 : i64} : (!torch.vtensor<[3,2,2,40,16],f32>, !torch.vtensor<[3,2,40,16],f32>, !torch.vtensor<[],si64>) -> !torch.vtensor<[2,4],si64>
  return %0 : !torch.vtensor<[2,4],si64>
}

// -----

// REFUSED: topk_select.mlir:[[# @LINE + 2]]:8: error: 'kv.topk_select' op window must lie in [1, ring]: got window 9, ring 8
func.func @window_beyond_ring(%q: !torch.vtensor<[1,2,2,40,16],f32>, %k: !torch.vtensor<[1,2,40,16],f32>, %length: !torch.vtensor<[],si64>) -> !torch.vtensor<[2,4],si64> {
  %0 = "kv.topk_select"(%q, %k, %length) {operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, pool = "avg", pool_size = 5 : i64, ring = 8 : i64, scale = 2.500000e-01 : f64, score = "candidates", selected = 4 : i64, sink = 2 : i64, softcap = 0.000000e+00 : f64, window = 9 : i64} : (!torch.vtensor<[1,2,2,40,16],f32>, !torch.vtensor<[1,2,40,16],f32>, !torch.vtensor<[],si64>) -> !torch.vtensor<[2,4],si64>
  return %0 : !torch.vtensor<[2,4],si64>
}

// -----

// REFUSED: topk_select.mlir:[[# @LINE + 2]]:8: error: 'kv.topk_select' op window must lie in [1, ring]: got window 0, ring 8
func.func @no_window(%q: !torch.vtensor<[1,2,2,40,16],f32>, %k: !torch.vtensor<[1,2,40,16],f32>, %length: !torch.vtensor<[],si64>) -> !torch.vtensor<[2,4],si64> {
  %0 = "kv.topk_select"(%q, %k, %length) {operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, pool = "avg", pool_size = 5 : i64, ring = 8 : i64, scale = 2.500000e-01 : f64, score = "candidates", selected = 4 : i64, sink = 2 : i64, softcap = 0.000000e+00 : f64, window = 0 : i64} : (!torch.vtensor<[1,2,2,40,16],f32>, !torch.vtensor<[1,2,40,16],f32>, !torch.vtensor<[],si64>) -> !torch.vtensor<[2,4],si64>
  return %0 : !torch.vtensor<[2,4],si64>
}

// -----

// REFUSED: topk_select.mlir:[[# @LINE + 2]]:8: error: 'kv.topk_select' op selected must be at least 1, got 0
func.func @nothing_selected(%q: !torch.vtensor<[1,2,2,40,16],f32>, %k: !torch.vtensor<[1,2,40,16],f32>, %length: !torch.vtensor<[],si64>) -> !torch.vtensor<[2,0],si64> {
  %0 = "kv.topk_select"(%q, %k, %length) {operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, pool = "avg", pool_size = 5 : i64, ring = 8 : i64, scale = 2.500000e-01 : f64, score = "candidates", selected = 0 : i64, sink = 2 : i64, softcap = 0.000000e+00 : f64, window = 4 : i64} : (!torch.vtensor<[1,2,2,40,16],f32>, !torch.vtensor<[1,2,40,16],f32>, !torch.vtensor<[],si64>) -> !torch.vtensor<[2,0],si64>
  return %0 : !torch.vtensor<[2,0],si64>
}

// -----

// REFUSED: topk_select.mlir:[[# @LINE + 2]]:8: error: 'kv.topk_select' op pool must be avg, max or none, got median
func.func @other_pool(%q: !torch.vtensor<[1,2,2,40,16],f32>, %k: !torch.vtensor<[1,2,40,16],f32>, %length: !torch.vtensor<[],si64>) -> !torch.vtensor<[2,4],si64> {
  %0 = "kv.topk_select"(%q, %k, %length) {operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, pool = "median", pool_size = 5 : i64, ring = 8 : i64, scale = 2.500000e-01 : f64, score = "candidates", selected = 4 : i64, sink = 2 : i64, softcap = 0.000000e+00 : f64, window = 4 : i64} : (!torch.vtensor<[1,2,2,40,16],f32>, !torch.vtensor<[1,2,40,16],f32>, !torch.vtensor<[],si64>) -> !torch.vtensor<[2,4],si64>
  return %0 : !torch.vtensor<[2,4],si64>
}

// -----

// REFUSED: topk_select.mlir:[[# @LINE + 2]]:8: error: 'kv.topk_select' op score must be candidates or all, got recent
func.func @other_score(%q: !torch.vtensor<[1,2,2,40,16],f32>, %k: !torch.vtensor<[1,2,40,16],f32>, %length: !torch.vtensor<[],si64>) -> !torch.vtensor<[2,4],si64> {
  %0 = "kv.topk_select"(%q, %k, %length) {operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, pool = "avg", pool_size = 5 : i64, ring = 8 : i64, scale = 2.500000e-01 : f64, score = "recent", selected = 4 : i64, sink = 2 : i64, softcap = 0.000000e+00 : f64, window = 4 : i64} : (!torch.vtensor<[1,2,2,40,16],f32>, !torch.vtensor<[1,2,40,16],f32>, !torch.vtensor<[],si64>) -> !torch.vtensor<[2,4],si64>
  return %0 : !torch.vtensor<[2,4],si64>
}

// -----

// REFUSED: topk_select.mlir:[[# @LINE + 2]]:8: error: 'kv.topk_select' op k's shape must be [1, H, N, Dk] of q: expected [1, 2, 40, 16], got [1, 2, 39, 16]
func.func @other_length(%q: !torch.vtensor<[1,2,2,40,16],f32>, %k: !torch.vtensor<[1,2,39,16],f32>, %length: !torch.vtensor<[],si64>) -> !torch.vtensor<[2,4],si64> {
  %0 = "kv.topk_select"(%q, %k, %length) {operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, pool = "avg", pool_size = 5 : i64, ring = 8 : i64, scale = 2.500000e-01 : f64, score = "candidates", selected = 4 : i64, sink = 2 : i64, softcap = 0.000000e+00 : f64, window = 4 : i64} : (!torch.vtensor<[1,2,2,40,16],f32>, !torch.vtensor<[1,2,39,16],f32>, !torch.vtensor<[],si64>) -> !torch.vtensor<[2,4],si64>
  return %0 : !torch.vtensor<[2,4],si64>
}

// -----

// REFUSED: topk_select.mlir:[[# @LINE + 2]]:8: error: 'kv.topk_select' op length's shape must be a scalar tensor: expected [], got [1]
func.func @length_of_rows(%q: !torch.vtensor<[1,2,2,40,16],f32>, %k: !torch.vtensor<[1,2,40,16],f32>, %length: !torch.vtensor<[1],si64>) -> !torch.vtensor<[2,4],si64> {
  %0 = "kv.topk_select"(%q, %k, %length) {operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, pool = "avg", pool_size = 5 : i64, ring = 8 : i64, scale = 2.500000e-01 : f64, score = "candidates", selected = 4 : i64, sink = 2 : i64, softcap = 0.000000e+00 : f64, window = 4 : i64} : (!torch.vtensor<[1,2,2,40,16],f32>, !torch.vtensor<[1,2,40,16],f32>, !torch.vtensor<[1],si64>) -> !torch.vtensor<[2,4],si64>
  return %0 : !torch.vtensor<[2,4],si64>
}

// -----

// REFUSED: topk_select.mlir:[[# @LINE + 2]]:8: error: 'kv.topk_select' op the result's shape must be [H, K] or [1, K]: expected [2, 4], got [4, 4]
func.func @selection_of_query_heads(%q: !torch.vtensor<[1,2,2,40,16],f32>, %k: !torch.vtensor<[1,2,40,16],f32>, %length: !torch.vtensor<[],si64>) -> !torch.vtensor<[4,4],si64> {
  %0 = "kv.topk_select"(%q, %k, %length) {operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, pool = "avg", pool_size = 5 : i64, ring = 8 : i64, scale = 2.500000e-01 : f64, score = "candidates", selected = 4 : i64, sink = 2 : i64, softcap = 0.000000e+00 : f64, window = 4 : i64} : (!torch.vtensor<[1,2,2,40,16],f32>, !torch.vtensor<[1,2,40,16],f32>, !torch.vtensor<[],si64>) -> !torch.vtensor<[4,4],si64>
  return %0 : !torch.vtensor<[4,4],si64>
}

// -----

// REFUSED: topk_select.mlir:[[# @LINE + 2]]:8: error: 'kv.topk_select' op takes and gives ranked tensors, got i64
func.func @plain_length(%q: !torch.vtensor<[1,2,2,40,16],f32>, %k: !torch.vtensor<[1,2,40,16],f32>, %length: i64) -> !torch.vtensor<[2,4],si64> {
  %0 = "kv.topk_select"(%q, %k, %length) {operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, pool = "avg", pool_size = 5 : i64, ring = 8 : i64, scale = 2.500000e-01 : f64, score = "candidates", selected = 4 : i64, sink = 2 : i64, softcap = 0.000000e+00 : f64, window = 4 : i64} : (!torch.vtensor<[1,2,2,40,16],f32>, !torch.vtensor<[1,2,40,16],f32>, i64) -> !torch.vtensor<[2,4],si64>
  return %0 : !torch.vtensor<[2,4],si64>
}
