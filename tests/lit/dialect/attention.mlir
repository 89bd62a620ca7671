// RUN: not snapcc-opt %s --split-input-file 2>%t | filecheck %s
// RUN: filecheck %s --check-prefix=REFUSED --input-file %t

// CHECK-LABEL: func.func @decode(
// CHECK: %{{.+}} = "kv.attention"(%arg0, %arg1, %arg2, %arg3) {causal = 0 : i64, {{.*}}scale = 2.500000e-01 : f64, softcap = 0.000000e+00 : f64} : (!torch.vtensor<[3,2,2,1,16],f32>, !torch.vtensor<[3,2,14,16],f32>, !torch.vtensor<[3,2,14,16],f32>, !torch.vtensor<[3,14],i1>) -> !torch.vtensor<[3,2,2,1,16],f32>
func.func @decode(%q: !torch.vtensor<[3,2,2,1,16],f32>, %k: !torch.vtensor<[3,2,14,16],f32>, %v: !torch.vtensor<[3,2,14,16],f32>, %visible: !torch.vtensor<[3,14],i1>) -> !torch.vtensor<[3,2,2,1,16],f32> {
  %0 = "kv.attention"(%q, %k, %v, %visible) {causal = 0 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0>, scale = 2.500000e-01 : f64, softcap = 0.000000e+00 : f64} : (!torch.vtensor<[3,2,2,1,16],f32>, !torch.vtensor<[3,2,14,16],f32>, !torch.vtensor<[3,2,14,16],f32>, !torch.vtensor<[3,14],i1>) -> !torch.vtensor<[3,2,2,1,16],f32>
  return %0 : !torch.vtensor<[3,2,2,1,16],f32>
}

// -----

// CHECK-LABEL: func.func @causal(
// CHECK: %{{.+}} = "kv.attention"(%arg0, %arg1, %arg2) {causal = 1 : i64, {{.*}}scale = 2.500000e-01 : f64, softcap = 0.000000e+00 : f64} : (!torch.vtensor<[1,2,2,20,16],f32>, !torch.vtensor<[1,2,20,16],f32>, !torch.vtensor<[1,2,20,16],f32>) -> !torch.vtensor<[1,2,2,20,16],f32>
func.func @causal(%q: !torch.vtensor<[1,2,2,20,16],f32>, %k: !torch.vtensor<[1,2,20,16],f32>, %v: !torch.vtensor<[1,2,20,16],f32>) -> !torch.vtensor<[1,2,2,20,16],f32> {
  %0 = "kv.attention"(%q, %k, %v) {causal = 1 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, scale = 2.500000e-01 : f64, softcap = 0.000000e+00 : f64} : (!torch.vtensor<[1,2,2,20,16],f32>, !torch.vtensor<[1,2,20,16],f32>, !torch.vtensor<[1,2,20,16],f32>) -> !torch.vtensor<[1,2,2,20,16],f32>
  return %0 : !torch.vtensor<[1,2,2,20,16],f32>
}

// -----

// CHECK-LABEL: func.func @wider_values(
// CHECK: %{{.+}} = "kv.attention"(%arg0, %arg1, %arg2) {causal = 0 : i64, {{.*}}scale = 2.500000e-01 : f64, softcap = 5.000000e+01 : f64} : (!torch.vtensor<[3,2,2,1,16],f32>, !torch.vtensor<[3,2,14,16],f32>, !torch.vtensor<[3,2,14,24],f32>) -> !torch.vtensor<[3,2,2,1,24],f32>
func.func @wider_values(%q: !torch.vtensor<[3,2,2,1,16],f32>, %k: !torch.vtensor<[3,2,14,16],f32>, %v: !torch.vtensor<[3,2,14,24],f32>) -> !torch.vtensor<[3,2,2,1,24],f32> {
  %0 = "kv.attention"(%q, %k, %v) {causal = 0 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, scale = 2.500000e-01 : f64, softcap = 5.000000e+01 : f64} : (!torch.vtensor<[3,2,2,1,16],f32>, !torch.vtensor<[3,2,14,16],f32>, !torch.vtensor<[3,2,14,24],f32>) -> !torch.vtensor<[3,2,2,1,24],f32>
  return %0 : !torch.vtensor<[3,2,2,1,24],f32>
}

// -----

// CHECK-LABEL: func.func @builtin(
// CHECK: %{{.+}} = "kv.attention"(%arg0, %arg1, %arg2, %arg3) {causal = 0 : i64, {{.*}}scale = 2.500000e-01 : f64, softcap = 0.000000e+00 : f64} : (tensor<3x2x2x1x16xbf16>, tensor<3x2x14x16xbf16>, tensor<3x2x14x16xbf16>, tensor<3x14xi1>) -> tensor<3x2x2x1x16xbf16>
func.func @builtin(%q: tensor<3x2x2x1x16xbf16>, %k: tensor<3x2x14x16xbf16>, %v: tensor<3x2x14x16xbf16>, %visible: tensor<3x14xi1>) -> tensor<3x2x2x1x16xbf16> {
  %0 = "kv.attention"(%q, %k, %v, %visible) {causal = 0 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0>, scale = 2.500000e-01 : f64, softcap = 0.000000e+00 : f64} : (tensor<3x2x2x1x16xbf16>, tensor<3x2x14x16xbf16>, tensor<3x2x14x16xbf16>, tensor<3x14xi1>) -> tensor<3x2x2x1x16xbf16>
  return %0 : tensor<3x2x2x1x16xbf16>
}

// -----

// A mask for each of five queries.
// CHECK-LABEL: func.func @extend(
// CHECK: "kv.attention"(%arg0, %arg1, %arg1, %arg2) {{.+}} : (tensor<1x2x2x5x16xf32>, tensor<1x2x19x16xf32>, tensor<1x2x19x16xf32>, tensor<1x5x19xi1>) -> tensor<1x2x2x5x16xf32>
func.func @extend(%q: tensor<1x2x2x5x16xf32>, %k: tensor<1x2x19x16xf32>, %visible: tensor<1x5x19xi1>) -> tensor<1x2x2x5x16xf32> {
  %0 = "kv.attention"(%q, %k, %k, %visible) {causal = 0 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0>, scale = 2.500000e-01 : f64, softcap = 0.000000e+00 : f64} : (tensor<1x2x2x5x16xf32>, tensor<1x2x19x16xf32>, tensor<1x2x19x16xf32>, tensor<1x5x19xi1>) -> tensor<1x2x2x5x16xf32>
  return %0 : tensor<1x2x2x5x16xf32>
}

// -----

// REFUSED: attention.mlir:[[# @LINE + 2]]:8: error: 'kv.attention' op visible's shape must be [B, Q, T]: expected [1, 5, 19], got [1, 4, 19]
func.func @visible_of_other_queries(%q: tensor<1x2x2x5x16xf32>, %k: tensor<1x2x19x16xf32>, %visible: tensor<1x4x19xi1>) -> tensor<1x2x2x5x16xf32> {
  %0 = "kv.attention"(%q, %k, %k, %visible) {causal = 0 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0>, scale = 2.500000e-01 : f64, softcap = 0.000000e+00 : f64} : (tensor<1x2x2x5x16xf32>, tensor<1x2x19x16xf32>, tensor<1x2x19x16xf32>, tensor<1x4x19xi1>) -> tensor<1x2x2x5x16xf32>
  return %0 : tensor<1x2x2x5x16xf32>
}

// -----

// REFUSED: attention.mlir:[[# @LINE + 2]]:8: error: 'kv.attention' op q, k, v must have ranks 5, 4, 4, got 4, 4, 4
func.func @ungrouped(%q: !torch.vtensor<[3,4,1,16],f32>, %k: !torch.vtensor<[3,2,14,16],f32>, %v: !torch.vtensor<[3,2,14,16],f32>) -> !torch.vtensor<[3,4,1,16],f32> {
  %0 = "kv.attention"(%q, %k, %v) {causal = 0 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, scale = 2.500000e-01 : f64, softcap = 0.000000e+00 : f64} : (!torch.vtensor<[3,4,1,16],f32>, !torch.vtensor<[3,2,14,16],f32>, !torch.vtensor<[3,2,14,16],f32>) -> !torch.vtensor<[3,4,1,16],f32>
  return %0 : !torch.vtensor<[3,4,1,16],f32>
}

// -----

// REFUSED: attention.mlir:[[# @LINE + 2]]:8: error: 'kv.attention' op softcap must be at least 0, got -1.0
func.func @negative_softcap(%q: !torch.vtensor<[3,2,2,1,16],f32>, %k: !torch.vtensor<[3,2,14,16],f32>, %v: !torch.vtensor<[3,2,14,16],f32>) -> !torch.vtensor<[3,2,2,1,16],f32> {
  %0 = "kv.attention"(%q, %k, %v) {causal = 0 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, scale = 2.500000e-01 : f64, softcap = -1.000000e+00 : f64} : (!torch.vtensor<[3,2,2,1,16],f32>, !torch.vtensor<[3,2,14,16],f32>, !torch.vtensor<[3,2,14,16],f32>) -> !torch.vtensor<[3,2,2,1,16],f32>
  return %0 : !torch.vtensor<[3,2,2,1,16],f32>
}

// -----

// REFUSED: attention.mlir:[[# @LINE + 2]]:8: error: 'kv.attention' op causal attention needs as many queries as keys, got 1 and 14
func.func @causal_over_past(%q: !torch.vtensor<[3,2,2,1,16],f32>, %k: !torch.vtensor<[3,2,14,16],f32>, %v: !torch.vtensor<[3,2,14,16],f32>) -> !torch.vtensor<[3,2,2,1,16],f32> {
  %0 = "kv.attention"(%q, %k, %v) {causal = 1 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, scale = 2.500000e-01 : f64, softcap = 0.000000e+00 : f64} : (!torch.vtensor<[3,2,2,1,16],f32>, !torch.vtensor<[3,2,14,16],f32>, !torch.vtensor<[3,2,14,16],f32>) -> !torch.vtensor<[3,2,2,1,16],f32>
  return %0 : !torch.vtensor<[3,2,2,1,16],f32>
}

// -----

// REFUSED: attention.mlir:[[# @LINE + 2]]:8: error: 'kv.attention' op k's shape must be [B, H, T, Dk] of q: expected [3, 2, 14, 16], got [3, 4, 14, 16]
func.func @other_heads(%q: !torch.vtensor<[3,2,2,1,16],f32>, %k: !torch.vtensor<[3,4,14,16],f32>, %v: !torch.vtensor<[3,4,14,16],f32>) -> !torch.vtensor<[3,2,2,1,16],f32> {
  %0 = "kv.attention"(%q, %k, %v) {causal = 0 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, scale = 2.500000e-01 : f64, softcap = 0.000000e+00 : f64} : (!torch.vtensor<[3,2,2,1,16],f32>, !torch.vtensor<[3,4,14,16],f32>, !torch.vtensor<[3,4,14,16],f32>) -> !torch.vtensor<[3,2,2,1,16],f32>
  return %0 : !torch.vtensor<[3,2,2,1,16],f32>
}

// -----

// REFUSED: attention.mlir:[[# @LINE + 2]]:8: error: 'kv.attention' op v's shape must be [B, H, T, ..] of k: expected [3, 2, 14], got [3, 2, 13]
func.func @other_values(%q: !torch.vtensor<[3,2,2,1,16],f32>, %k: !torch.vtensor<[3,2,14,16],f32>, %v: !torch.vtensor<[3,2,13,16],f32>) -> !torch.vtensor<[3,2,2,1,16],f32> {
  %0 = "kv.attention"(%q, %k, %v) {causal = 0 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, scale = 2.500000e-01 : f64, softcap = 0.000000e+00 : f64} : (!torch.vtensor<[3,2,2,1,16],f32>, !torch.vtensor<[3,2,14,16],f32>, !torch.vtensor<[3,2,13,16],f32>) -> !torch.vtensor<[3,2,2,1,16],f32>
  return %0 : !torch.vtensor<[3,2,2,1,16],f32>
}

// -----

// REFUSED: attention.mlir:[[# @LINE + 2]]:8: error: 'kv.attention' op visible's shape must be [B, T]: expected [3, 14], got [1, 14]
func.func @visible_of_one_row(%q: !torch.vtensor<[3,2,2,1,16],f32>, %k: !torch.vtensor<[3,2,14,16],f32>, %v: !torch.vtensor<[3,2,14,16],f32>, %visible: !torch.vtensor<[1,14],i1>) -> !torch.vtensor<[3,2,2,1,16],f32> {
  %0 = "kv.attention"(%q, %k, %v, %visible) {causal = 0 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0>, scale = 2.500000e-01 : f64, softcap = 0.000000e+00 : f64} : (!torch.vtensor<[3,2,2,1,16],f32>, !torch.vtensor<[3,2,14,16],f32>, !torch.vtensor<[3,2,14,16],f32>, !torch.vtensor<[1,14],i1>) -> !torch.vtensor<[3,2,2,1,16],f32>
  return %0 : !torch.vtensor<[3,2,2,1,16],f32>
}

// -----

// REFUSED: attention.mlir:[[# @LINE + 2]]:8: error: 'kv.attention' op the result's shape must be [B, H, G, Q, Dv]: expected [3, 2, 2, 1, 16], got [3, 2, 2, 1, 8]
func.func @other_result(%q: !torch.vtensor<[3,2,2,1,16],f32>, %k: !torch.vtensor<[3,2,14,16],f32>, %v: !torch.vtensor<[3,2,14,16],f32>) -> !torch.vtensor<[3,2,2,1,8],f32> {
  %0 = "kv.attention"(%q, %k, %v) {causal = 0 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, scale = 2.500000e-01 : f64, softcap = 0.000000e+00 : f64} : (!torch.vtensor<[3,2,2,1,16],f32>, !torch.vtensor<[3,2,14,16],f32>, !torch.vtensor<[3,2,14,16],f32>) -> !torch.vtensor<[3,2,2,1,8],f32>
  return %0 : !torch.vtensor<[3,2,2,1,8],f32>
}

// -----

// REFUSED: attention.mlir:[[# @LINE + 2]]:8: error: 'kv.attention' op takes and gives ranked tensors, got !torch.vtensor<*,f32>
func.func @unranked(%q: !torch.vtensor<[3,2,2,1,16],f32>, %k: !torch.vtensor<[3,2,14,16],f32>, %v: !torch.vtensor<[3,2,14,16],f32>) -> !torch.vtensor<*,f32> {
  %0 = "kv.attention"(%q, %k, %v) {causal = 0 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, scale = 2.500000e-01 : f64, softcap = 0.000000e+00 : f64} : (!torch.vtensor<[3,2,2,1,16],f32>, !torch.vtensor<[3,2,14,16],f32>, !torch.vtensor<[3,2,14,16],f32>) -> !torch.vtensor<*,f32>
  return %0 : !torch.vtensor<*,f32>
}

// -----

// REFUSED: attention.mlir:[[# @LINE + 2]]:8: error: 'kv.attention' op q, k, v must have one element type, got f32, bf16, bf16
func.func @mixed(%q: tensor<3x2x2x1x16xf32>, %k: tensor<3x2x14x16xbf16>) -> tensor<3x2x2x1x16xf32> {
  %0 = "kv.attention"(%q, %k, %k) {causal = false, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, scale = 1.0 : f64, softcap = 0.0 : f64} : (tensor<3x2x2x1x16xf32>, tensor<3x2x14x16xbf16>, tensor<3x2x14x16xbf16>) -> tensor<3x2x2x1x16xf32>
  return %0 : tensor<3x2x2x1x16xf32>
}

// -----

// REFUSED: attention.mlir:[[# @LINE + 2]]:8: error: 'kv.attention' op bias's shape must be [B, H, G or 1, T]: expected [3, 2, 2, 14], got [3, 4, 2, 14]
func.func @bias_of_other_heads(%q: tensor<3x2x2x1x16xf32>, %k: tensor<3x2x14x16xf32>, %bias: tensor<3x4x2x14xf32>) -> tensor<3x2x2x1x16xf32> {
  %0 = "kv.attention"(%q, %k, %k, %bias) {causal = false, operandSegmentSizes = array<i32: 1, 1, 1, 0, 1, 0>, scale = 1.0 : f64, softcap = 0.0 : f64} : (tensor<3x2x2x1x16xf32>, tensor<3x2x14x16xf32>, tensor<3x2x14x16xf32>, tensor<3x4x2x14xf32>) -> tensor<3x2x2x1x16xf32>
  return %0 : tensor<3x2x2x1x16xf32>
}

// -----

// REFUSED: attention.mlir:[[# @LINE + 2]]:8: error: 'kv.attention' op sinks's shape must be [H, G]: expected [2, 2], got [4, 1]
func.func @sinks_of_other_heads(%q: tensor<3x2x2x1x16xf32>, %k: tensor<3x2x14x16xf32>, %sinks: tensor<4x1xf32>) -> tensor<3x2x2x1x16xf32> {
  %0 = "kv.attention"(%q, %k, %k, %sinks) {causal = false, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 1>, scale = 1.0 : f64, softcap = 0.0 : f64} : (tensor<3x2x2x1x16xf32>, tensor<3x2x14x16xf32>, tensor<3x2x14x16xf32>, tensor<4x1xf32>) -> tensor<3x2x2x1x16xf32>
  return %0 : tensor<3x2x2x1x16xf32>
}

// -----

// REFUSED: attention.mlir:[[# @LINE + 2]]:8: error: 'kv.attention' op takes a sliding_window or a chunk, not both
func.func @two_bounds(%q: tensor<3x2x2x1x16xf32>, %k: tensor<3x2x14x16xf32>) -> tensor<3x2x2x1x16xf32> {
  %0 = "kv.attention"(%q, %k, %k) {causal = false, chunk = 8 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, scale = 1.0 : f64, sliding_window = 8 : i64, softcap = 0.0 : f64} : (tensor<3x2x2x1x16xf32>, tensor<3x2x14x16xf32>, tensor<3x2x14x16xf32>) -> tensor<3x2x2x1x16xf32>
  return %0 : tensor<3x2x2x1x16xf32>
}

// -----

// REFUSED: attention.mlir:[[# @LINE + 2]]:8: error: 'kv.attention' op sliding_window must be an integer of at least 1, got 0 : i64
func.func @no_window(%q: tensor<3x2x2x1x16xf32>, %k: tensor<3x2x14x16xf32>) -> tensor<3x2x2x1x16xf32> {
  %0 = "kv.attention"(%q, %k, %k) {causal = false, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, scale = 1.0 : f64, sliding_window = 0 : i64, softcap = 0.0 : f64} : (tensor<3x2x2x1x16xf32>, tensor<3x2x14x16xf32>, tensor<3x2x14x16xf32>) -> tensor<3x2x2x1x16xf32>
  return %0 : tensor<3x2x2x1x16xf32>
}
