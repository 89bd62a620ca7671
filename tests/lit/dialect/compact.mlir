// RUN: not snapcc-opt %s --split-input-file 2>%t | filecheck %s
// RUN: filecheck %s --check-prefix=REFUSED --input-file %t

// CHECK-LABEL: func.func @heads_first(
// CHECK: %{{.+}} = "kv.compact"(%arg0, %arg1, %arg2) {axis = 2 : i64, head_axis = 1 : i64, order = "ring", ring = 8 : i64, sink = 2 : i64} : (!torch.vtensor<[1,2,40,16],f32>, !torch.vtensor<[],si64>, !torch.vtensor<[2,4],si64>) -> !torch.vtensor<[1,2,14,16],f32>
func.func @heads_first(%cache: !torch.vtensor<[1,2,40,16],f32>, %length: !torch.vtensor<[],si64>, %positions: !torch.vtensor<[2,4],si64>) -> !torch.vtensor<[1,2,14,16],f32> {
  %0 = "kv.compact"(%cache, %length, %positions) {axis = 2 : i64, head_axis = 1 : i64, order = "ring", ring = 8 : i64, sink = 2 : i64} : (!torch.vtensor<[1,2,40,16],f32>, !torch.vtensor<[],si64>, !torch.vtensor<[2,4],si64>) -> !torch.vtensor<[1,2,14,16],f32>
  return %0 : !torch.vtensor<[1,2,14,16],f32>
}

// -----

// CHECK-LABEL: func.func @tokens_first(
// CHECK: %{{.+}} = "kv.compact"(%arg0, %arg1, %arg2) {axis = 1 : i64, head_axis = 2 : i64, order = "ring", ring = 8 : i64, sink = 2 : i64} : (!torch.vtensor<[1,40,2,16],f32>, !torch.vtensor<[],si64>, !torch.vtensor<[2,4],si64>) -> !torch.vtensor<[1,14,2,16],f32>
func.func @tokens_first(%cache: !torch.vtensor<[1,40,2,16],f32>, %length: !torch.vtensor<[],si64>, %positions: !torch.vtensor<[2,4],si64>) -> !torch.vtensor<[1,14,2,16],f32> {
  %0 = "kv.compact"(%cache, %length, %positions) {axis = 1 : i64, head_axis = 2 : i64, order = "ring", ring = 8 : i64, sink = 2 : i64} : (!torch.vtensor<[1,40,2,16],f32>, !torch.vtensor<[],si64>, !torch.vtensor<[2,4],si64>) -> !torch.vtensor<[1,14,2,16],f32>
  return %0 : !torch.vtensor<[1,14,2,16],f32>
}

// -----

// CHECK-LABEL: func.func @nothing_selected(
// CHECK: %{{.+}} = "kv.compact"(%arg0, %arg1) {axis = 2 : i64, head_axis = 1 : i64, order = "ring", ring = 8 : i64, sink = 2 : i64} : (!torch.vtensor<[1,2,40,16],f32>, !torch.vtensor<[],si64>) -> !torch.vtensor<[1,2,10,16],f32>
func.func @nothing_selected(%cache: !torch.vtensor<[1,2,40,16],f32>, %length: !torch.vtensor<[],si64>) -> !torch.vtensor<[1,2,10,16],f32> {
  %0 = "kv.compact"(%cache, %length) {axis = 2 : i64, head_axis = 1 : i64, order = "ring", ring = 8 : i64, sink = 2 : i64} : (!torch.vtensor<[1,2,40,16],f32>, !torch.vtensor<[],si64>) -> !torch.vtensor<[1,2,10,16],f32>
  return %0 : !torch.vtensor<[1,2,10,16],f32>
}

// -----

// CHECK-LABEL: func.func @latent(
// CHECK: %{{.+}} = "kv.compact"(%arg0, %arg1, %arg2) {axis = 1 : i64, head_axis = -1 : i64, order = "ring", ring = 8 : i64, sink = 2 : i64} : (tensor<1x40x8xbf16>, tensor<i64>, tensor<1x4xi64>) -> tensor<1x14x8xbf16>
func.func @latent(%cache: tensor<1x40x8xbf16>, %length: tensor<i64>, %positions: tensor<1x4xi64>) -> tensor<1x14x8xbf16> {
  %0 = "kv.compact"(%cache, %length, %positions) {axis = 1 : i64, head_axis = -1 : i64, order = "ring", ring = 8 : i64, sink = 2 : i64} : (tensor<1x40x8xbf16>, tensor<i64>, tensor<1x4xi64>) -> tensor<1x14x8xbf16>
  return %0 : tensor<1x14x8xbf16>
}

// -----

// REFUSED: compact.mlir:[[# @LINE + 2]]:8: error: 'kv.compact' op sink must be at least 0, got -1
func.func @negative_sink(%cache: !torch.vtensor<[1,2,40,16],f32>, %length: !torch.vtensor<[],si64>, %positions: !torch.vtensor<[2,4],si64>) -> !torch.vtensor<[1,2,14,16],f32> {
  %0 = "kv.compact"(%cache, %length, %positions) {axis = 2 : i64, head_axis = 1 : i64, order = "ring", ring = 8 : i64, sink = -1 : i64} : (!torch.vtensor<[1,2,40,16],f32>, !torch.vtensor<[],si64>, !torch.vtensor<[2,4],si64>) -> !torch.vtensor<[1,2,14,16],f32>
  return %0 : !torch.vtensor<[1,2,14,16],f32>
}

// -----

// REFUSED: compact.mlir:[[# @LINE + 2]]:8: error: 'kv.compact' op ring must be at least 1, got 0
func.func @no_ring(%cache: !torch.vtensor<[1,2,40,16],f32>, %length: !torch.vtensor<[],si64>, %positions: !torch.vtensor<[2,4],si64>) -> !torch.vtensor<[1,2,14,16],f32> {
  %0 = "kv.compact"(%cache, %length, %positions) {axis = 2 : i64, head_axis = 1 : i64, order = "ring", ring = 0 : i64, sink = 2 : i64} : (!torch.vtensor<[1,2,40,16],f32>, !torch.vtensor<[],si64>, !torch.vtensor<[2,4],si64>) -> !torch.vtensor<[1,2,14,16],f32>
  return %0 : !torch.vtensor<[1,2,14,16],f32>
}

// -----

// REFUSED: compact.mlir:[[# @LINE + 2]]:8: error: 'kv.compact' op axis must lie in [1, 3] for a cache of rank 4, got 0
func.func @row_axis(%cache: !torch.vtensor<[1,2,40,16],f32>, %length: !torch.vtensor<[],si64>, %positions: !torch.vtensor<[2,4],si64>) -> !torch.vtensor<[1,2,14,16],f32> {
  %0 = "kv.compact"(%cache, %length, %positions) {axis = 0 : i64, head_axis = 1 : i64, order = "ring", ring = 8 : i64, sink = 2 : i64} : (!torch.vtensor<[1,2,40,16],f32>, !torch.vtensor<[],si64>, !torch.vtensor<[2,4],si64>) -> !torch.vtensor<[1,2,14,16],f32>
  return %0 : !torch.vtensor<[1,2,14,16],f32>
}

// -----

// REFUSED: compact.mlir:[[# @LINE + 2]]:8: error: 'kv.compact' op compacts one row at a time: expected B = 1, got 3
func.func @batch(%cache: !torch.vtensor<[3,2,40,16],f32>, %length: !torch.vtensor<[],si64>, %positions: !torch.vtensor<[2,4],si64>) -> !torch.vtensor<[3,2,14,16],f32> {
  %0 = "kv.compact"(%cache, %length, %positions) {axis = 2 : i64, head_axis = 1 : i64, order = "ring", ring = 8 : i64, sink = 2 : i64} : (!torch.vtensor<[3,2,40,16],f32>, !torch.vtensor<[],si64>, !torch.vtensor<[2,4],si64>) -> !torch.vtensor<[3,2,14,16],f32>
  return %0 : !torch.vtensor<[3,2,14,16],f32>
}

// -----

// REFUSED: compact.mlir:[[# @LINE + 2]]:8: error: 'kv.compact' op head_axis must be a free axis of the cache or -1, got 2 with axis 2
func.func @heads_on_the_axis(%cache: !torch.vtensor<[1,2,40,16],f32>, %length: !torch.vtensor<[],si64>, %positions: !torch.vtensor<[2,4],si64>) -> !torch.vtensor<[1,2,14,16],f32> {
  %0 = "kv.compact"(%cache, %length, %positions) {axis = 2 : i64, head_axis = 2 : i64, order = "ring", ring = 8 : i64, sink = 2 : i64} : (!torch.vtensor<[1,2,40,16],f32>, !torch.vtensor<[],si64>, !torch.vtensor<[2,4],si64>) -> !torch.vtensor<[1,2,14,16],f32>
  return %0 : !torch.vtensor<[1,2,14,16],f32>
}

// -----

// REFUSED: compact.mlir:[[# @LINE + 2]]:8: error: 'kv.compact' op head_axis must be a free axis of the cache or -1, got 4 with axis 2
func.func @heads_beyond(%cache: !torch.vtensor<[1,2,40,16],f32>, %length: !torch.vtensor<[],si64>, %positions: !torch.vtensor<[2,4],si64>) -> !torch.vtensor<[1,2,14,16],f32> {
  %0 = "kv.compact"(%cache, %length, %positions) {axis = 2 : i64, head_axis = 4 : i64, order = "ring", ring = 8 : i64, sink = 2 : i64} : (!torch.vtensor<[1,2,40,16],f32>, !torch.vtensor<[],si64>, !torch.vtensor<[2,4],si64>) -> !torch.vtensor<[1,2,14,16],f32>
  return %0 : !torch.vtensor<[1,2,14,16],f32>
}

// -----

// REFUSED: compact.mlir:[[# @LINE + 2]]:8: error: 'kv.compact' op positions' shape must be [H, K]: expected [2, 4], got [4, 4]
func.func @other_heads(%cache: !torch.vtensor<[1,2,40,16],f32>, %length: !torch.vtensor<[],si64>, %positions: !torch.vtensor<[4,4],si64>) -> !torch.vtensor<[1,2,14,16],f32> {
  %0 = "kv.compact"(%cache, %length, %positions) {axis = 2 : i64, head_axis = 1 : i64, order = "ring", ring = 8 : i64, sink = 2 : i64} : (!torch.vtensor<[1,2,40,16],f32>, !torch.vtensor<[],si64>, !torch.vtensor<[4,4],si64>) -> !torch.vtensor<[1,2,14,16],f32>
  return %0 : !torch.vtensor<[1,2,14,16],f32>
}

// -----

// REFUSED: compact.mlir:[[# @LINE + 2]]:8: error: 'kv.compact' op length's shape must be a scalar tensor: expected [], got [1]
func.func @length_of_rows(%cache: !torch.vtensor<[1,2,40,16],f32>, %length: !torch.vtensor<[1],si64>, %positions: !torch.vtensor<[2,4],si64>) -> !torch.vtensor<[1,2,14,16],f32> {
  %0 = "kv.compact"(%cache, %length, %positions) {axis = 2 : i64, head_axis = 1 : i64, order = "ring", ring = 8 : i64, sink = 2 : i64} : (!torch.vtensor<[1,2,40,16],f32>, !torch.vtensor<[1],si64>, !torch.vtensor<[2,4],si64>) -> !torch.vtensor<[1,2,14,16],f32>
  return %0 : !torch.vtensor<[1,2,14,16],f32>
}

// -----

// REFUSED: compact.mlir:[[# @LINE + 2]]:8: error: 'kv.compact' op the result's shape must be the cache with C slots: expected [1, 2, 14, 16], got [1, 2, 10, 16]
func.func @other_slots(%cache: !torch.vtensor<[1,2,40,16],f32>, %length: !torch.vtensor<[],si64>, %positions: !torch.vtensor<[2,4],si64>) -> !torch.vtensor<[1,2,10,16],f32> {
  %0 = "kv.compact"(%cache, %length, %positions) {axis = 2 : i64, head_axis = 1 : i64, order = "ring", ring = 8 : i64, sink = 2 : i64} : (!torch.vtensor<[1,2,40,16],f32>, !torch.vtensor<[],si64>, !torch.vtensor<[2,4],si64>) -> !torch.vtensor<[1,2,10,16],f32>
  return %0 : !torch.vtensor<[1,2,10,16],f32>
}

// -----

// REFUSED: compact.mlir:[[# @LINE + 2]]:8: error: 'kv.compact' op takes and gives ranked tensors, got i64
func.func @plain_length(%cache: !torch.vtensor<[1,2,40,16],f32>, %length: i64, %positions: !torch.vtensor<[2,4],si64>) -> !torch.vtensor<[1,2,14,16],f32> {
  %0 = "kv.compact"(%cache, %length, %positions) {axis = 2 : i64, head_axis = 1 : i64, order = "ring", ring = 8 : i64, sink = 2 : i64} : (!torch.vtensor<[1,2,40,16],f32>, i64, !torch.vtensor<[2,4],si64>) -> !torch.vtensor<[1,2,14,16],f32>
  return %0 : !torch.vtensor<[1,2,14,16],f32>
}

// -----

// REFUSED: compact.mlir:[[# @LINE + 2]]:8: error: 'kv.compact' op order must be ring or time, got any
func.func @any_order(%cache: tensor<1x2x40x16xf32>, %length: tensor<i64>) -> tensor<1x2x10x16xf32> {
  %0 = "kv.compact"(%cache, %length) {axis = 2 : i64, head_axis = 1 : i64, order = "any", ring = 8 : i64, sink = 2 : i64} : (tensor<1x2x40x16xf32>, tensor<i64>) -> tensor<1x2x10x16xf32>
  return %0 : tensor<1x2x10x16xf32>
}
