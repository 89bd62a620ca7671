// RUN: not snapcc-opt %s --split-input-file 2>%t | filecheck %s
// RUN: filecheck %s --check-prefix=REFUSED --input-file %t

// Five new tokens behind 14 slots.
// CHECK-LABEL: func.func @torch(
// CHECK: %{{.+}} = "kv.visible_extend"(%arg0, %arg1, %arg2) {ring = 8 : i64, selected = 4 : i64, sink = 2 : i64} : (!torch.vtensor<[],si64>, !torch.vtensor<[],si64>, !torch.vtensor<[1],si64>) -> !torch.vtensor<[1,5,19],i1>
func.func @torch(%start: !torch.vtensor<[],si64>, %length: !torch.vtensor<[],si64>, %count: !torch.vtensor<[1],si64>) -> !torch.vtensor<[1,5,19],i1> {
  %0 = "kv.visible_extend"(%start, %length, %count) {ring = 8 : i64, selected = 4 : i64, sink = 2 : i64} : (!torch.vtensor<[],si64>, !torch.vtensor<[],si64>, !torch.vtensor<[1],si64>) -> !torch.vtensor<[1,5,19],i1>
  return %0 : !torch.vtensor<[1,5,19],i1>
}

// -----

// CHECK-LABEL: func.func @builtin(
// CHECK: "kv.visible_extend"(%arg0, %arg1, %arg2) {ring = 8 : i64, selected = 0 : i64, sink = 0 : i64} : (tensor<i64>, tensor<i64>, tensor<1xi64>) -> tensor<1x5x13xi1>
func.func @builtin(%start: tensor<i64>, %length: tensor<i64>, %count: tensor<1xi64>) -> tensor<1x5x13xi1> {
  %0 = "kv.visible_extend"(%start, %length, %count) {ring = 8 : i64, selected = 0 : i64, sink = 0 : i64} : (tensor<i64>, tensor<i64>, tensor<1xi64>) -> tensor<1x5x13xi1>
  return %0 : tensor<1x5x13xi1>
}

// -----

// REFUSED: visible_extend.mlir:[[# @LINE + 2]]:8: error: 'kv.visible_extend' op ring must be at least 1, got 0
func.func @no_ring(%start: tensor<i64>, %length: tensor<i64>, %count: tensor<1xi64>) -> tensor<1x5x7xi1> {
  %0 = "kv.visible_extend"(%start, %length, %count) {ring = 0 : i64, selected = 0 : i64, sink = 2 : i64} : (tensor<i64>, tensor<i64>, tensor<1xi64>) -> tensor<1x5x7xi1>
  return %0 : tensor<1x5x7xi1>
}

// -----

// REFUSED: visible_extend.mlir:[[# @LINE + 2]]:8: error: 'kv.visible_extend' op the result's rank must be 3, [1, N, C + N]: got 2
func.func @one_mask(%start: tensor<i64>, %length: tensor<i64>, %count: tensor<1xi64>) -> tensor<1x13xi1> {
  %0 = "kv.visible_extend"(%start, %length, %count) {ring = 8 : i64, selected = 0 : i64, sink = 0 : i64} : (tensor<i64>, tensor<i64>, tensor<1xi64>) -> tensor<1x13xi1>
  return %0 : tensor<1x13xi1>
}

// -----

// REFUSED: visible_extend.mlir:[[# @LINE + 2]]:8: error: 'kv.visible_extend' op start's shape must be a scalar tensor: expected [], got [3]
func.func @rows(%start: tensor<3xi64>, %length: tensor<i64>, %count: tensor<1xi64>) -> tensor<1x5x13xi1> {
  %0 = "kv.visible_extend"(%start, %length, %count) {ring = 8 : i64, selected = 0 : i64, sink = 0 : i64} : (tensor<3xi64>, tensor<i64>, tensor<1xi64>) -> tensor<1x5x13xi1>
  return %0 : tensor<1x5x13xi1>
}

// -----

// REFUSED: visible_extend.mlir:[[# @LINE + 2]]:8: error: 'kv.visible_extend' op selected_count's shape must be [1], of one row: expected [1], got [3]
func.func @counts(%start: tensor<i64>, %length: tensor<i64>, %count: tensor<3xi64>) -> tensor<1x5x13xi1> {
  %0 = "kv.visible_extend"(%start, %length, %count) {ring = 8 : i64, selected = 0 : i64, sink = 0 : i64} : (tensor<i64>, tensor<i64>, tensor<3xi64>) -> tensor<1x5x13xi1>
  return %0 : tensor<1x5x13xi1>
}

// -----

// REFUSED: visible_extend.mlir:[[# @LINE + 2]]:8: error: 'kv.visible_extend' op the result's shape must be [1, N, S + R + K + N]: expected [1, 5, 13], got [1, 5, 8]
func.func @slots_alone(%start: tensor<i64>, %length: tensor<i64>, %count: tensor<1xi64>) -> tensor<1x5x8xi1> {
  %0 = "kv.visible_extend"(%start, %length, %count) {ring = 8 : i64, selected = 0 : i64, sink = 0 : i64} : (tensor<i64>, tensor<i64>, tensor<1xi64>) -> tensor<1x5x8xi1>
  return %0 : tensor<1x5x8xi1>
}

// -----

// REFUSED: visible_extend.mlir:[[# @LINE + 2]]:8: error: 'kv.visible_extend' op the result's element type must be i1: expected i1, got f32
func.func @additive(%start: tensor<i64>, %length: tensor<i64>, %count: tensor<1xi64>) -> tensor<1x5x13xf32> {
  %0 = "kv.visible_extend"(%start, %length, %count) {ring = 8 : i64, selected = 0 : i64, sink = 0 : i64} : (tensor<i64>, tensor<i64>, tensor<1xi64>) -> tensor<1x5x13xf32>
  return %0 : tensor<1x5x13xf32>
}
