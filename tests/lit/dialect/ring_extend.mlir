// RUN: not snapcc-opt %s --split-input-file 2>%t | filecheck %s
// RUN: filecheck %s --check-prefix=REFUSED --input-file %t

// Five tokens of one row of three.
// CHECK-LABEL: func.func @torch(
// CHECK: %{{.+}} = "kv.ring_extend"(%arg0, %arg1, %arg2, %arg3, %arg4) {axis = 2 : i64, ring = 8 : i64, sink = 2 : i64} : (!torch.vtensor<[3,2,14,16],f32>, !torch.vtensor<[1,2,5,16],f32>, !torch.vtensor<[],si64>, !torch.vtensor<[],si64>, !torch.vtensor<[],si64>) -> !torch.vtensor<[3,2,14,16],f32>
func.func @torch(%cache: !torch.vtensor<[3,2,14,16],f32>, %rows: !torch.vtensor<[1,2,5,16],f32>, %row: !torch.vtensor<[],si64>, %start: !torch.vtensor<[],si64>, %length: !torch.vtensor<[],si64>) -> !torch.vtensor<[3,2,14,16],f32> {
  %0 = "kv.ring_extend"(%cache, %rows, %row, %start, %length) {axis = 2 : i64, ring = 8 : i64, sink = 2 : i64} : (!torch.vtensor<[3,2,14,16],f32>, !torch.vtensor<[1,2,5,16],f32>, !torch.vtensor<[],si64>, !torch.vtensor<[],si64>, !torch.vtensor<[],si64>) -> !torch.vtensor<[3,2,14,16],f32>
  return %0 : !torch.vtensor<[3,2,14,16],f32>
}

// -----

// CHECK-LABEL: func.func @tokens_first(
// CHECK: "kv.ring_extend"({{.+}}) {axis = 1 : i64, ring = 8 : i64, sink = 0 : i64} : (tensor<3x8x16xbf16>, tensor<1x20x16xbf16>, tensor<i64>, tensor<i64>, tensor<i64>) -> tensor<3x8x16xbf16>
func.func @tokens_first(%cache: tensor<3x8x16xbf16>, %rows: tensor<1x20x16xbf16>, %row: tensor<i64>) -> tensor<3x8x16xbf16> {
  %0 = "kv.ring_extend"(%cache, %rows, %row, %row, %row) {axis = 1 : i64, ring = 8 : i64, sink = 0 : i64} : (tensor<3x8x16xbf16>, tensor<1x20x16xbf16>, tensor<i64>, tensor<i64>, tensor<i64>) -> tensor<3x8x16xbf16>
  return %0 : tensor<3x8x16xbf16>
}

// -----

// REFUSED: ring_extend.mlir:[[# @LINE + 2]]:8: error: 'kv.ring_extend' op axis must lie in [1, 3] for a cache of rank 4, got 0
func.func @rows_axis(%cache: tensor<3x2x14x16xf32>, %rows: tensor<1x2x5x16xf32>, %row: tensor<i64>) -> tensor<3x2x14x16xf32> {
  %0 = "kv.ring_extend"(%cache, %rows, %row, %row, %row) {axis = 0 : i64, ring = 8 : i64, sink = 2 : i64} : (tensor<3x2x14x16xf32>, tensor<1x2x5x16xf32>, tensor<i64>, tensor<i64>, tensor<i64>) -> tensor<3x2x14x16xf32>
  return %0 : tensor<3x2x14x16xf32>
}

// -----

// REFUSED: ring_extend.mlir:[[# @LINE + 2]]:8: error: 'kv.ring_extend' op sink 8 + ring 8 must lie in the cache's 14 slots
func.func @few_slots(%cache: tensor<3x2x14x16xf32>, %rows: tensor<1x2x5x16xf32>, %row: tensor<i64>) -> tensor<3x2x14x16xf32> {
  %0 = "kv.ring_extend"(%cache, %rows, %row, %row, %row) {axis = 2 : i64, ring = 8 : i64, sink = 8 : i64} : (tensor<3x2x14x16xf32>, tensor<1x2x5x16xf32>, tensor<i64>, tensor<i64>, tensor<i64>) -> tensor<3x2x14x16xf32>
  return %0 : tensor<3x2x14x16xf32>
}

// -----

// REFUSED: ring_extend.mlir:[[# @LINE + 2]]:8: error: 'kv.ring_extend' op rows must have the cache's rank: expected 4, got 3
func.func @flat(%cache: tensor<3x2x14x16xf32>, %rows: tensor<1x5x16xf32>, %row: tensor<i64>) -> tensor<3x2x14x16xf32> {
  %0 = "kv.ring_extend"(%cache, %rows, %row, %row, %row) {axis = 2 : i64, ring = 8 : i64, sink = 2 : i64} : (tensor<3x2x14x16xf32>, tensor<1x5x16xf32>, tensor<i64>, tensor<i64>, tensor<i64>) -> tensor<3x2x14x16xf32>
  return %0 : tensor<3x2x14x16xf32>
}

// -----

// REFUSED: ring_extend.mlir:[[# @LINE + 2]]:8: error: 'kv.ring_extend' op rows' shape must be N tokens of one row of the cache: expected [1, 2, 5, 16], got [3, 2, 5, 16]
func.func @all_rows(%cache: tensor<3x2x14x16xf32>, %rows: tensor<3x2x5x16xf32>, %row: tensor<i64>) -> tensor<3x2x14x16xf32> {
  %0 = "kv.ring_extend"(%cache, %rows, %row, %row, %row) {axis = 2 : i64, ring = 8 : i64, sink = 2 : i64} : (tensor<3x2x14x16xf32>, tensor<3x2x5x16xf32>, tensor<i64>, tensor<i64>, tensor<i64>) -> tensor<3x2x14x16xf32>
  return %0 : tensor<3x2x14x16xf32>
}

// -----

// REFUSED: ring_extend.mlir:[[# @LINE + 2]]:8: error: 'kv.ring_extend' op start's shape must be a scalar tensor: expected [], got [3]
func.func @starts(%cache: tensor<3x2x14x16xf32>, %rows: tensor<1x2x5x16xf32>, %row: tensor<i64>, %start: tensor<3xi64>) -> tensor<3x2x14x16xf32> {
  %0 = "kv.ring_extend"(%cache, %rows, %row, %start, %row) {axis = 2 : i64, ring = 8 : i64, sink = 2 : i64} : (tensor<3x2x14x16xf32>, tensor<1x2x5x16xf32>, tensor<i64>, tensor<3xi64>, tensor<i64>) -> tensor<3x2x14x16xf32>
  return %0 : tensor<3x2x14x16xf32>
}

// -----

// REFUSED: ring_extend.mlir:[[# @LINE + 2]]:8: error: 'kv.ring_extend' op the result's type must be the cache's: expected tensor<3x2x14x16xf32>, got tensor<3x2x14x16xbf16>
func.func @other_type(%cache: tensor<3x2x14x16xf32>, %rows: tensor<1x2x5x16xf32>, %row: tensor<i64>) -> tensor<3x2x14x16xbf16> {
  %0 = "kv.ring_extend"(%cache, %rows, %row, %row, %row) {axis = 2 : i64, ring = 8 : i64, sink = 2 : i64} : (tensor<3x2x14x16xf32>, tensor<1x2x5x16xf32>, tensor<i64>, tensor<i64>, tensor<i64>) -> tensor<3x2x14x16xbf16>
  return %0 : tensor<3x2x14x16xbf16>
}
