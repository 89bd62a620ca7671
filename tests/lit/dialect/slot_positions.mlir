// RUN: not snapcc-opt %s --split-input-file 2>%t | filecheck %s
// RUN: filecheck %s --check-prefix=REFUSED --input-file %t

// CHECK-LABEL: func.func @with_selected(
// CHECK: "kv.slot_positions"(%arg0, %arg1) {ring = 8 : i64, sink = 2 : i64} : (!torch.vtensor<[3],si64>, !torch.vtensor<[3,2,4],si64>) -> !torch.vtensor<[3,2,14],si64>
func.func @with_selected(%positions: !torch.vtensor<[3],si64>, %selected: !torch.vtensor<[3,2,4],si64>) -> !torch.vtensor<[3,2,14],si64> {
  %0 = "kv.slot_positions"(%positions, %selected) {ring = 8 : i64, sink = 2 : i64} : (!torch.vtensor<[3],si64>, !torch.vtensor<[3,2,4],si64>) -> !torch.vtensor<[3,2,14],si64>
  return %0 : !torch.vtensor<[3,2,14],si64>
}

// -----

// REFUSED: slot_positions.mlir:[[# @LINE + 2]]:8: error: 'kv.slot_positions' op the result's shape must be [B, H, C]: expected [3, 1, 10], got [3, 2, 10]
func.func @heads(%positions: !torch.vtensor<[3],si64>) -> !torch.vtensor<[3,2,10],si64> {
  %0 = "kv.slot_positions"(%positions) {ring = 8 : i64, sink = 2 : i64} : (!torch.vtensor<[3],si64>) -> !torch.vtensor<[3,2,10],si64>
  return %0 : !torch.vtensor<[3,2,10],si64>
}

// -----

// REFUSED: slot_positions.mlir:[[# @LINE + 2]]:8: error: 'kv.slot_positions' op selected's shape must be [B, H, K] of 3 rows, got [2, 2, 4]
func.func @rows(%positions: !torch.vtensor<[3],si64>, %selected: !torch.vtensor<[2,2,4],si64>) -> !torch.vtensor<[3,2,14],si64> {
  %0 = "kv.slot_positions"(%positions, %selected) {ring = 8 : i64, sink = 2 : i64} : (!torch.vtensor<[3],si64>, !torch.vtensor<[2,2,4],si64>) -> !torch.vtensor<[3,2,14],si64>
  return %0 : !torch.vtensor<[3,2,14],si64>
}
