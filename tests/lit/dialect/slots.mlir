// RUN: not snapcc-opt %s --split-input-file 2>%t | filecheck %s
// RUN: filecheck %s --check-prefix=REFUSED --input-file %t

// CHECK-LABEL: func.func @torch(
// CHECK: %{{.+}} = "kv.slots"(%arg0) {ring = 8 : i64, sink = 2 : i64} : (!torch.vtensor<[3],si64>) -> !torch.vtensor<[3],si64>
func.func @torch(%positions: !torch.vtensor<[3],si64>) -> !torch.vtensor<[3],si64> {
  %0 = "kv.slots"(%positions) {ring = 8 : i64, sink = 2 : i64} : (!torch.vtensor<[3],si64>) -> !torch.vtensor<[3],si64>
  return %0 : !torch.vtensor<[3],si64>
}

// -----

// CHECK-LABEL: func.func @no_sinks(
// CHECK: %{{.+}} = "kv.slots"(%arg0) {ring = 8 : i64, sink = 0 : i64} : (tensor<3xi64>) -> tensor<3xi64>
func.func @no_sinks(%positions: tensor<3xi64>) -> tensor<3xi64> {
  %0 = "kv.slots"(%positions) {ring = 8 : i64, sink = 0 : i64} : (tensor<3xi64>) -> tensor<3xi64>
  return %0 : tensor<3xi64>
}

// -----

// REFUSED: slots.mlir:[[# @LINE + 2]]:8: error: 'kv.slots' op sink must be at least 0, got -1
func.func @negative_sink(%positions: !torch.vtensor<[3],si64>) -> !torch.vtensor<[3],si64> {
  %0 = "kv.slots"(%positions) {ring = 8 : i64, sink = -1 : i64} : (!torch.vtensor<[3],si64>) -> !torch.vtensor<[3],si64>
  return %0 : !torch.vtensor<[3],si64>
}

// -----

// REFUSED: slots.mlir:[[# @LINE + 2]]:8: error: 'kv.slots' op ring must be at least 1, got 0
func.func @no_ring(%positions: !torch.vtensor<[3],si64>) -> !torch.vtensor<[3],si64> {
  %0 = "kv.slots"(%positions) {ring = 0 : i64, sink = 2 : i64} : (!torch.vtensor<[3],si64>) -> !torch.vtensor<[3],si64>
  return %0 : !torch.vtensor<[3],si64>
}

// -----

// REFUSED: slots.mlir:[[# @LINE + 2]]:8: error: 'kv.slots' op the result's type must be that of the positions: expected !torch.vtensor<[3],si64>, got !torch.vtensor<[3],si32>
func.func @other_type(%positions: !torch.vtensor<[3],si64>) -> !torch.vtensor<[3],si32> {
  %0 = "kv.slots"(%positions) {ring = 8 : i64, sink = 2 : i64} : (!torch.vtensor<[3],si64>) -> !torch.vtensor<[3],si32>
  return %0 : !torch.vtensor<[3],si32>
}

// -----

// REFUSED: slots.mlir:[[# @LINE + 2]]:8: error: 'kv.slots' op takes and gives ranked tensors, got i64
func.func @scalar(%positions: i64) -> i64 {
  %0 = "kv.slots"(%positions) {ring = 8 : i64, sink = 2 : i64} : (i64) -> i64
  return %0 : i64
}
