// RUN: not snapcc-opt %s --split-input-file 2>%t | filecheck %s
// RUN: filecheck %s --check-prefix=REFUSED --input-file %t

// CHECK-LABEL: func.func @torch(
// CHECK: %{{.+}} = "kv.visible"(%arg0, %arg1) {ring = 8 : i64, selected = 4 : i64, sink = 2 : i64} : (!torch.vtensor<[3],si64>, !torch.vtensor<[3],si64>) -> !torch.vtensor<[3,14],i1>
func.func @torch(%positions: !torch.vtensor<[3],si64>, %selected_count: !torch.vtensor<[3],si64>) -> !torch.vtensor<[3,14],i1> {
  %0 = "kv.visible"(%positions, %selected_count) {ring = 8 : i64, selected = 4 : i64, sink = 2 : i64} : (!torch.vtensor<[3],si64>, !torch.vtensor<[3],si64>) -> !torch.vtensor<[3,14],i1>
  return %0 : !torch.vtensor<[3,14],i1>
}

// -----

// CHECK-LABEL: func.func @nothing_selected(
// CHECK: %{{.+}} = "kv.visible"(%arg0, %arg1) {ring = 8 : i64, selected = 0 : i64, sink = 0 : i64} : (tensor<3xi64>, tensor<3xi64>) -> tensor<3x8xi1>
func.func @nothing_selected(%positions: tensor<3xi64>, %selected_count: tensor<3xi64>) -> tensor<3x8xi1> {
  %0 = "kv.visible"(%positions, %selected_count) {ring = 8 : i64, selected = 0 : i64, sink = 0 : i64} : (tensor<3xi64>, tensor<3xi64>) -> tensor<3x8xi1>
  return %0 : tensor<3x8xi1>
}

// -----

// REFUSED: visible.mlir:[[# @LINE + 2]]:8: error: 'kv.visible' op sink must be at least 0, got -2
func.func @negative_sink(%positions: !torch.vtensor<[3],si64>, %selected_count: !torch.vtensor<[3],si64>) -> !torch.vtensor<[3,10],i1> {
  %0 = "kv.visible"(%positions, %selected_count) {ring = 8 : i64, selected = 4 : i64, sink = -2 : i64} : (!torch.vtensor<[3],si64>, !torch.vtensor<[3],si64>) -> !torch.vtensor<[3,10],i1>
  return %0 : !torch.vtensor<[3,10],i1>
}

// -----

// REFUSED: visible.mlir:[[# @LINE + 2]]:8: error: 'kv.visible' op ring must be at least 1, got 0
func.func @no_ring(%positions: !torch.vtensor<[3],si64>, %selected_count: !torch.vtensor<[3],si64>) -> !torch.vtensor<[3,6],i1> {
  %0 = "kv.visible"(%positions, %selected_count) {ring = 0 : i64, selected = 4 : i64, sink = 2 : i64} : (!torch.vtensor<[3],si64>, !torch.vtensor<[3],si64>) -> !torch.vtensor<[3,6],i1>
  return %0 : !torch.vtensor<[3,6],i1>
}

// -----

// REFUSED: visible.mlir:[[# @LINE + 2]]:8: error: 'kv.visible' op selected_count's shape must be that of positions: expected [3], got [1]
func.func @one_count(%positions: !torch.vtensor<[3],si64>, %selected_count: !torch.vtensor<[1],si64>) -> !torch.vtensor<[3,14],i1> {
  %0 = "kv.visible"(%positions, %selected_count) {ring = 8 : i64, selected = 4 : i64, sink = 2 : i64} : (!torch.vtensor<[3],si64>, !torch.vtensor<[1],si64>) -> !torch.vtensor<[3,14],i1>
  return %0 : !torch.vtensor<[3,14],i1>
}

// -----

// REFUSED: visible.mlir:[[# @LINE + 2]]:8: error: 'kv.visible' op the result's shape must be [B, S + R + K]: expected [3, 14], got [3, 13]
func.func @other_slots(%positions: !torch.vtensor<[3],si64>, %selected_count: !torch.vtensor<[3],si64>) -> !torch.vtensor<[3,13],i1> {
  %0 = "kv.visible"(%positions, %selected_count) {ring = 8 : i64, selected = 4 : i64, sink = 2 : i64} : (!torch.vtensor<[3],si64>, !torch.vtensor<[3],si64>) -> !torch.vtensor<[3,13],i1>
  return %0 : !torch.vtensor<[3,13],i1>
}

// -----

// REFUSED: visible.mlir:[[# @LINE + 2]]:8: error: 'kv.visible' op the result's element type must be i1: expected i1, got f32
func.func @additive(%positions: !torch.vtensor<[3],si64>, %selected_count: !torch.vtensor<[3],si64>) -> !torch.vtensor<[3,14],f32> {
  %0 = "kv.visible"(%positions, %selected_count) {ring = 8 : i64, selected = 4 : i64, sink = 2 : i64} : (!torch.vtensor<[3],si64>, !torch.vtensor<[3],si64>) -> !torch.vtensor<[3,14],f32>
  return %0 : !torch.vtensor<[3,14],f32>
}

// -----

// REFUSED: visible.mlir:[[# @LINE + 2]]:8: error: 'kv.visible' op takes and gives ranked tensors, got i64
func.func @scalar_position(%positions: i64, %selected_count: !torch.vtensor<[3],si64>) -> !torch.vtensor<[3,14],i1> {
  %0 = "kv.visible"(%positions, %selected_count) {ring = 8 : i64, selected = 4 : i64, sink = 2 : i64} : (i64, !torch.vtensor<[3],si64>) -> !torch.vtensor<[3,14],i1>
  return %0 : !torch.vtensor<[3,14],i1>
}
