// RUN: not snapcc-opt %s --split-input-file 2>%t | filecheck %s
// RUN: filecheck %s --check-prefix=REFUSED --input-file %t

// CHECK-LABEL: func.func @alone(
// CHECK: %{{.+}} = "kv.topk_mask"(%arg0) {causal = false, count = 8 : i64{{.*}}} : (!torch.vtensor<[2,1,16],f32>) -> !torch.vtensor<[2,1,16],i1>
func.func @alone(%s: !torch.vtensor<[2,1,16],f32>) -> !torch.vtensor<[2,1,16],i1> {
  %0 = "kv.topk_mask"(%s) {causal = false, count = 8 : i64, operandSegmentSizes = array<i32: 1, 0, 0>} : (!torch.vtensor<[2,1,16],f32>) -> !torch.vtensor<[2,1,16],i1>
  return %0 : !torch.vtensor<[2,1,16],i1>
}

// -----

// CHECK-LABEL: func.func @causal(
// CHECK: %{{.+}} = "kv.topk_mask"(%arg0) {causal = true, count = 8 : i64{{.*}}} : (!torch.vtensor<[1,16,16],f32>) -> !torch.vtensor<[1,16,16],i1>
func.func @causal(%s: !torch.vtensor<[1,16,16],f32>) -> !torch.vtensor<[1,16,16],i1> {
  %0 = "kv.topk_mask"(%s) {causal = true, count = 8 : i64, operandSegmentSizes = array<i32: 1, 0, 0>} : (!torch.vtensor<[1,16,16],f32>) -> !torch.vtensor<[1,16,16],i1>
  return %0 : !torch.vtensor<[1,16,16],i1>
}

// -----

// CHECK-LABEL: func.func @slots(
// CHECK: %{{.+}} = "kv.topk_mask"(%arg0, %arg1, %arg2) {causal = false, count = 8 : i64{{.*}}} : (!torch.vtensor<[2,1,16],f32>, !torch.vtensor<[2,16],i1>, !torch.vtensor<[2,16],si64>) -> !torch.vtensor<[2,1,16],i1>
func.func @slots(%s: !torch.vtensor<[2,1,16],f32>, %v: !torch.vtensor<[2,16],i1>, %p: !torch.vtensor<[2,16],si64>) -> !torch.vtensor<[2,1,16],i1> {
  %0 = "kv.topk_mask"(%s, %v, %p) {causal = false, count = 8 : i64, operandSegmentSizes = array<i32: 1, 1, 1>} : (!torch.vtensor<[2,1,16],f32>, !torch.vtensor<[2,16],i1>, !torch.vtensor<[2,16],si64>) -> !torch.vtensor<[2,1,16],i1>
  return %0 : !torch.vtensor<[2,1,16],i1>
}

// -----

// CHECK-LABEL: func.func @new_tokens(
// CHECK: %{{.+}} = "kv.topk_mask"(%arg0, %arg1) {causal = false, count = 8 : i64{{.*}}} : (!torch.vtensor<[1,4,20],f32>, !torch.vtensor<[1,4,20],i1>) -> !torch.vtensor<[1,4,20],i1>
func.func @new_tokens(%s: !torch.vtensor<[1,4,20],f32>, %v: !torch.vtensor<[1,4,20],i1>) -> !torch.vtensor<[1,4,20],i1> {
  %0 = "kv.topk_mask"(%s, %v) {causal = false, count = 8 : i64, operandSegmentSizes = array<i32: 1, 1, 0>} : (!torch.vtensor<[1,4,20],f32>, !torch.vtensor<[1,4,20],i1>) -> !torch.vtensor<[1,4,20],i1>
  return %0 : !torch.vtensor<[1,4,20],i1>
}

// -----

// REFUSED: topk_mask.mlir:[[# @LINE + 2]]:8: error: 'kv.topk_mask' op scores' rank must be 3, [B, Q, T], got 4
func.func @rank(%s: !torch.vtensor<[2,1,1,16],f32>) -> !torch.vtensor<[2,1,1,16],i1> {
  %0 = "kv.topk_mask"(%s) {causal = false, count = 8 : i64, operandSegmentSizes = array<i32: 1, 0, 0>} : (!torch.vtensor<[2,1,1,16],f32>) -> !torch.vtensor<[2,1,1,16],i1>
  return %0 : !torch.vtensor<[2,1,1,16],i1>
}

// -----

// REFUSED: topk_mask.mlir:[[# @LINE + 2]]:8: error: 'kv.topk_mask' op scores' element type must be f32: expected f32, got bf16
func.func @narrow(%s: !torch.vtensor<[2,1,16],bf16>) -> !torch.vtensor<[2,1,16],i1> {
  %0 = "kv.topk_mask"(%s) {causal = false, count = 8 : i64, operandSegmentSizes = array<i32: 1, 0, 0>} : (!torch.vtensor<[2,1,16],bf16>) -> !torch.vtensor<[2,1,16],i1>
  return %0 : !torch.vtensor<[2,1,16],i1>
}

// -----

// REFUSED: topk_mask.mlir:[[# @LINE + 2]]:8: error: 'kv.topk_mask' op a causal choice needs as many queries as keys, got 1 and 16
func.func @not_square(%s: !torch.vtensor<[2,1,16],f32>) -> !torch.vtensor<[2,1,16],i1> {
  %0 = "kv.topk_mask"(%s) {causal = true, count = 8 : i64, operandSegmentSizes = array<i32: 1, 0, 0>} : (!torch.vtensor<[2,1,16],f32>) -> !torch.vtensor<[2,1,16],i1>
  return %0 : !torch.vtensor<[2,1,16],i1>
}

// -----

// REFUSED: topk_mask.mlir:[[# @LINE + 2]]:8: error: 'kv.topk_mask' op count must lie in [1, T = 16], got 0
func.func @none(%s: !torch.vtensor<[2,1,16],f32>) -> !torch.vtensor<[2,1,16],i1> {
  %0 = "kv.topk_mask"(%s) {causal = false, count = 0 : i64, operandSegmentSizes = array<i32: 1, 0, 0>} : (!torch.vtensor<[2,1,16],f32>) -> !torch.vtensor<[2,1,16],i1>
  return %0 : !torch.vtensor<[2,1,16],i1>
}

// -----

// REFUSED: topk_mask.mlir:[[# @LINE + 2]]:8: error: 'kv.topk_mask' op count must lie in [1, T = 16], got 17
func.func @too_many(%s: !torch.vtensor<[2,1,16],f32>) -> !torch.vtensor<[2,1,16],i1> {
  %0 = "kv.topk_mask"(%s) {causal = false, count = 17 : i64, operandSegmentSizes = array<i32: 1, 0, 0>} : (!torch.vtensor<[2,1,16],f32>) -> !torch.vtensor<[2,1,16],i1>
  return %0 : !torch.vtensor<[2,1,16],i1>
}

// -----

// REFUSED: topk_mask.mlir:[[# @LINE + 2]]:8: error: 'kv.topk_mask' op visible's shape must be [B, T]: expected [2, 16], got [2, 15]
func.func @other_keys(%s: !torch.vtensor<[2,1,16],f32>, %v: !torch.vtensor<[2,15],i1>) -> !torch.vtensor<[2,1,16],i1> {
  %0 = "kv.topk_mask"(%s, %v) {causal = false, count = 8 : i64, operandSegmentSizes = array<i32: 1, 1, 0>} : (!torch.vtensor<[2,1,16],f32>, !torch.vtensor<[2,15],i1>) -> !torch.vtensor<[2,1,16],i1>
  return %0 : !torch.vtensor<[2,1,16],i1>
}

// -----

// REFUSED: topk_mask.mlir:[[# @LINE + 2]]:8: error: 'kv.topk_mask' op visible's shape must be [B, Q, T]: expected [2, 1, 16], got [2, 2, 16]
func.func @other_queries(%s: !torch.vtensor<[2,1,16],f32>, %v: !torch.vtensor<[2,2,16],i1>) -> !torch.vtensor<[2,1,16],i1> {
  %0 = "kv.topk_mask"(%s, %v) {causal = false, count = 8 : i64, operandSegmentSizes = array<i32: 1, 1, 0>} : (!torch.vtensor<[2,1,16],f32>, !torch.vtensor<[2,2,16],i1>) -> !torch.vtensor<[2,1,16],i1>
  return %0 : !torch.vtensor<[2,1,16],i1>
}

// -----

// REFUSED: topk_mask.mlir:[[# @LINE + 2]]:8: error: 'kv.topk_mask' op visible's element type must be i1: expected i1, got f32
func.func @additive(%s: !torch.vtensor<[2,1,16],f32>, %v: !torch.vtensor<[2,16],f32>) -> !torch.vtensor<[2,1,16],i1> {
  %0 = "kv.topk_mask"(%s, %v) {causal = false, count = 8 : i64, operandSegmentSizes = array<i32: 1, 1, 0>} : (!torch.vtensor<[2,1,16],f32>, !torch.vtensor<[2,16],f32>) -> !torch.vtensor<[2,1,16],i1>
  return %0 : !torch.vtensor<[2,1,16],i1>
}

// -----

// REFUSED: topk_mask.mlir:[[# @LINE + 2]]:8: error: 'kv.topk_mask' op positions's shape must be [B, T]: expected [2, 16], got [1, 16]
func.func @other_rows(%s: !torch.vtensor<[2,1,16],f32>, %p: !torch.vtensor<[1,16],si64>) -> !torch.vtensor<[2,1,16],i1> {
  %0 = "kv.topk_mask"(%s, %p) {causal = false, count = 8 : i64, operandSegmentSizes = array<i32: 1, 0, 1>} : (!torch.vtensor<[2,1,16],f32>, !torch.vtensor<[1,16],si64>) -> !torch.vtensor<[2,1,16],i1>
  return %0 : !torch.vtensor<[2,1,16],i1>
}

// -----

// REFUSED: topk_mask.mlir:[[# @LINE + 2]]:8: error: 'kv.topk_mask' op the result's shape must be that of scores: expected [2, 1, 16], got [2, 16]
func.func @other_result(%s: !torch.vtensor<[2,1,16],f32>) -> !torch.vtensor<[2,16],i1> {
  %0 = "kv.topk_mask"(%s) {causal = false, count = 8 : i64, operandSegmentSizes = array<i32: 1, 0, 0>} : (!torch.vtensor<[2,1,16],f32>) -> !torch.vtensor<[2,16],i1>
  return %0 : !torch.vtensor<[2,16],i1>
}

// -----

// REFUSED: topk_mask.mlir:[[# @LINE + 2]]:8: error: 'kv.topk_mask' op the result's element type must be i1: expected i1, got f32
func.func @numbers(%s: !torch.vtensor<[2,1,16],f32>) -> !torch.vtensor<[2,1,16],f32> {
  %0 = "kv.topk_mask"(%s) {causal = false, count = 8 : i64, operandSegmentSizes = array<i32: 1, 0, 0>} : (!torch.vtensor<[2,1,16],f32>) -> !torch.vtensor<[2,1,16],f32>
  return %0 : !torch.vtensor<[2,1,16],f32>
}
