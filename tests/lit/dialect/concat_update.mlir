// RUN: not snapcc-opt %s --split-input-file 2>%t | filecheck %s
// RUN: filecheck %s --check-prefix=REFUSED --input-file %t

// CHECK-LABEL: func.func @heads_first(
// CHECK: %{{.+}} = "kv.concat_update"(%arg0, %arg1, %arg2, %arg3) {axis = 2 : i64, ring = 8 : i64, sink = 2 : i64} : (tensor<3x2x14x16xf32>, tensor<3x2x1x16xf32>, tensor<3xi64>, tensor<3xi1>) -> tensor<3x2x14x16xf32>
func.func @heads_first(%cache: tensor<3x2x14x16xf32>, %rows: tensor<3x2x1x16xf32>, %positions: tensor<3xi64>, %active: tensor<3xi1>) -> tensor<3x2x14x16xf32> {
  %0 = "kv.concat_update"(%cache, %rows, %positions, %active) {axis = 2 : i64, ring = 8 : i64, sink = 2 : i64} : (tensor<3x2x14x16xf32>, tensor<3x2x1x16xf32>, tensor<3xi64>, tensor<3xi1>) -> tensor<3x2x14x16xf32>
  return %0 : tensor<3x2x14x16xf32>
}

// -----

// REFUSED: concat_update.mlir:[[# @LINE + 2]]:8: error: 'kv.concat_update' op ring must be at least 1, got 0
func.func @no_ring(%cache: tensor<3x2x14x16xf32>, %rows: tensor<3x2x1x16xf32>, %positions: tensor<3xi64>, %active: tensor<3xi1>) -> tensor<3x2x14x16xf32> {
  %0 = "kv.concat_update"(%cache, %rows, %positions, %active) {axis = 2 : i64, ring = 0 : i64, sink = 2 : i64} : (tensor<3x2x14x16xf32>, tensor<3x2x1x16xf32>, tensor<3xi64>, tensor<3xi1>) -> tensor<3x2x14x16xf32>
  return %0 : tensor<3x2x14x16xf32>
}

// -----

// REFUSED: concat_update.mlir:[[# @LINE + 2]]:8: error: 'kv.concat_update' op axis must lie in [1, 3] for a cache of rank 4, got 4
func.func @no_axis(%cache: tensor<3x2x14x16xf32>, %rows: tensor<3x2x1x16xf32>, %positions: tensor<3xi64>, %active: tensor<3xi1>) -> tensor<3x2x14x16xf32> {
  %0 = "kv.concat_update"(%cache, %rows, %positions, %active) {axis = 4 : i64, ring = 8 : i64, sink = 2 : i64} : (tensor<3x2x14x16xf32>, tensor<3x2x1x16xf32>, tensor<3xi64>, tensor<3xi1>) -> tensor<3x2x14x16xf32>
  return %0 : tensor<3x2x14x16xf32>
}

// -----

// REFUSED: concat_update.mlir:[[# @LINE + 2]]:8: error: 'kv.concat_update' op the cache must have at least S + R = 15 slots, got 14
func.func @few_slots(%cache: tensor<3x2x14x16xf32>, %rows: tensor<3x2x1x16xf32>, %positions: tensor<3xi64>, %active: tensor<3xi1>) -> tensor<3x2x14x16xf32> {
  %0 = "kv.concat_update"(%cache, %rows, %positions, %active) {axis = 2 : i64, ring = 13 : i64, sink = 2 : i64} : (tensor<3x2x14x16xf32>, tensor<3x2x1x16xf32>, tensor<3xi64>, tensor<3xi1>) -> tensor<3x2x14x16xf32>
  return %0 : tensor<3x2x14x16xf32>
}

// -----

// REFUSED: concat_update.mlir:[[# @LINE + 2]]:8: error: 'kv.concat_update' op rows' shape must be one token of the cache: expected [3, 2, 1, 16], got [3, 2, 2, 16]
func.func @two_tokens(%cache: tensor<3x2x14x16xf32>, %rows: tensor<3x2x2x16xf32>, %positions: tensor<3xi64>, %active: tensor<3xi1>) -> tensor<3x2x14x16xf32> {
  %0 = "kv.concat_update"(%cache, %rows, %positions, %active) {axis = 2 : i64, ring = 8 : i64, sink = 2 : i64} : (tensor<3x2x14x16xf32>, tensor<3x2x2x16xf32>, tensor<3xi64>, tensor<3xi1>) -> tensor<3x2x14x16xf32>
  return %0 : tensor<3x2x14x16xf32>
}

// -----

// REFUSED: concat_update.mlir:[[# @LINE + 2]]:8: error: 'kv.concat_update' op positions's shape must be [B] of the cache: expected [3], got [1]
func.func @one_position(%cache: tensor<3x2x14x16xf32>, %rows: tensor<3x2x1x16xf32>, %positions: tensor<1xi64>, %active: tensor<3xi1>) -> tensor<3x2x14x16xf32> {
  %0 = "kv.concat_update"(%cache, %rows, %positions, %active) {axis = 2 : i64, ring = 8 : i64, sink = 2 : i64} : (tensor<3x2x14x16xf32>, tensor<3x2x1x16xf32>, tensor<1xi64>, tensor<3xi1>) -> tensor<3x2x14x16xf32>
  return %0 : tensor<3x2x14x16xf32>
}

// -----

// REFUSED: concat_update.mlir:[[# @LINE + 2]]:8: error: 'kv.concat_update' op active's shape must be [B] of the cache: expected [3], got [1]
func.func @one_active(%cache: tensor<3x2x14x16xf32>, %rows: tensor<3x2x1x16xf32>, %positions: tensor<3xi64>, %active: tensor<1xi1>) -> tensor<3x2x14x16xf32> {
  %0 = "kv.concat_update"(%cache, %rows, %positions, %active) {axis = 2 : i64, ring = 8 : i64, sink = 2 : i64} : (tensor<3x2x14x16xf32>, tensor<3x2x1x16xf32>, tensor<3xi64>, tensor<1xi1>) -> tensor<3x2x14x16xf32>
  return %0 : tensor<3x2x14x16xf32>
}

// -----

// REFUSED: concat_update.mlir:[[# @LINE + 2]]:8: error: 'kv.concat_update' op the result's type must be the cache's: expected tensor<3x2x14x16xf32>, got tensor<3x2x15x16xf32>
func.func @grown(%cache: tensor<3x2x14x16xf32>, %rows: tensor<3x2x1x16xf32>, %positions: tensor<3xi64>, %active: tensor<3xi1>) -> tensor<3x2x15x16xf32> {
  %0 = "kv.concat_update"(%cache, %rows, %positions, %active) {axis = 2 : i64, ring = 8 : i64, sink = 2 : i64} : (tensor<3x2x14x16xf32>, tensor<3x2x1x16xf32>, tensor<3xi64>, tensor<3xi1>) -> tensor<3x2x15x16xf32>
  return %0 : tensor<3x2x15x16xf32>
}
