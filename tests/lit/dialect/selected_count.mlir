// RUN: not snapcc-opt %s --split-input-file 2>%t | filecheck %s
// RUN: filecheck %s --check-prefix=REFUSED --input-file %t

// CHECK-LABEL: func.func @torch(
// CHECK: %{{.+}} = "kv.selected_count"(%arg0) {ring = 8 : i64, selected = 4 : i64, sink = 2 : i64} : (!torch.vtensor<[],si64>) -> !torch.vtensor<[1],si64>
func.func @torch(%length: !torch.vtensor<[],si64>) -> !torch.vtensor<[1],si64> {
  %0 = "kv.selected_count"(%length) {ring = 8 : i64, selected = 4 : i64, sink = 2 : i64} : (!torch.vtensor<[],si64>) -> !torch.vtensor<[1],si64>
  return %0 : !torch.vtensor<[1],si64>
}

// -----

// CHECK-LABEL: func.func @builtin(
// CHECK: %{{.+}} = "kv.selected_count"(%arg0) {ring = 8 : i64, selected = 4 : i64, sink = 2 : i64} : (tensor<i64>) -> tensor<1xi64>
func.func @builtin(%length: tensor<i64>) -> tensor<1xi64> {
  %0 = "kv.selected_count"(%length) {ring = 8 : i64, selected = 4 : i64, sink = 2 : i64} : (tensor<i64>) -> tensor<1xi64>
  return %0 : tensor<1xi64>
}

// -----

// REFUSED: selected_count.mlir:[[# @LINE + 2]]:8: error: 'kv.selected_count' op sink must be at least 0, got -1
func.func @negative_sink(%length: !torch.vtensor<[],si64>) -> !torch.vtensor<[1],si64> {
  %0 = "kv.selected_count"(%length) {ring = 8 : i64, selected = 4 : i64, sink = -1 : i64} : (!torch.vtensor<[],si64>) -> !torch.vtensor<[1],si64>
  return %0 : !torch.vtensor<[1],si64>
}

// -----

// REFUSED: selected_count.mlir:[[# @LINE + 2]]:8: error: 'kv.selected_count' op ring must be at least 1, got 0
func.func @no_ring(%length: !torch.vtensor<[],si64>) -> !torch.vtensor<[1],si64> {
  %0 = "kv.selected_count"(%length) {ring = 0 : i64, selected = 4 : i64, sink = 2 : i64} : (!torch.vtensor<[],si64>) -> !torch.vtensor<[1],si64>
  return %0 : !torch.vtensor<[1],si64>
}

// -----

// REFUSED: selected_count.mlir:[[# @LINE + 2]]:8: error: 'kv.selected_count' op length's shape must be a scalar tensor: expected [], got [3]
func.func @length_of_rows(%length: !torch.vtensor<[3],si64>) -> !torch.vtensor<[1],si64> {
  %0 = "kv.selected_count"(%length) {ring = 8 : i64, selected = 4 : i64, sink = 2 : i64} : (!torch.vtensor<[3],si64>) -> !torch.vtensor<[1],si64>
  return %0 : !torch.vtensor<[1],si64>
}

// -----

// REFUSED: selected_count.mlir:[[# @LINE + 2]]:8: error: 'kv.selected_count' op the result's shape must be [1]: expected [1], got [3]
func.func @count_of_rows(%length: !torch.vtensor<[],si64>) -> !torch.vtensor<[3],si64> {
  %0 = "kv.selected_count"(%length) {ring = 8 : i64, selected = 4 : i64, sink = 2 : i64} : (!torch.vtensor<[],si64>) -> !torch.vtensor<[3],si64>
  return %0 : !torch.vtensor<[3],si64>
}

// -----

// REFUSED: selected_count.mlir:[[# @LINE + 2]]:8: error: 'kv.selected_count' op takes and gives ranked tensors, got i64
func.func @plain_length(%length: i64) -> !torch.vtensor<[1],si64> {
  %0 = "kv.selected_count"(%length) {ring = 8 : i64, selected = 4 : i64, sink = 2 : i64} : (i64) -> !torch.vtensor<[1],si64>
  return %0 : !torch.vtensor<[1],si64>
}
