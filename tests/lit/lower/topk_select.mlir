// RUN: snapcc-opt %s --split-input-file --pass-pipeline='builtin.module(kv-lower-topk-select,inline,symbol-dce,cse)' | filecheck %s

// The last W queries are sliced, no N x N is made, nothing is sorted.
// CHECK-LABEL: func.func @candidates(
// CHECK: tensor.extract_slice %arg0[0, 0, 0, %{{.+}}, 0] [1, 2, 2, 4, 16]
// CHECK: linalg.batch_matmul
// CHECK-SAME: tensor<2x8x16xf32>, tensor<2x40x16xf32>
// CHECK-NOT: 40x40
// CHECK: linalg.softmax dimension(3) ins(%{{.+}} : tensor<2x2x4x40xf32>)
// CHECK: tensor.extract_slice %{{.+}}[0, 0, 0, 2] [2, 2, 4, 30]
// CHECK: tensor.pad %{{.+}} low[0, 0, 2] high[0, 0, 2]
// CHECK: arith.bitcast %{{.+}} : f32 to i32
// CHECK-COUNT-7: arith.shli
// CHECK-NOT: arith.shli
// CHECK-NOT: kv.
// CHECK: return %{{.+}} : tensor<2x4xi64>
func.func @candidates(%q: tensor<1x2x2x40x16xf32>, %k: tensor<1x2x40x16xf32>, %length: tensor<i64>) -> tensor<2x4xi64> {
  %0 = "kv.topk_select"(%q, %k, %length) {operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, pool = "avg", pool_size = 5 : i64, ring = 8 : i64, scale = 2.500000e-01 : f64, score = "candidates", selected = 4 : i64, sink = 2 : i64, softcap = 0.000000e+00 : f64, window = 4 : i64} : (tensor<1x2x2x40x16xf32>, tensor<1x2x40x16xf32>, tensor<i64>) -> tensor<2x4xi64>
  return %0 : tensor<2x4xi64>
}

// -----

// The softmax is over every key that its query sees. The model's softcap comes before it.
// CHECK-LABEL: func.func @all(
// CHECK: linalg.batch_matmul
// CHECK-SAME: tensor<2x8x16xbf16>, tensor<2x40x16xbf16>
// CHECK-SAME: tensor<2x8x40xf32>
// CHECK: math.tanh
// CHECK: linalg.softmax dimension(3) ins(%{{.+}} : tensor<2x2x4x40xf32>)
// CHECK: tensor.extract_slice %{{.+}}[0, 0, 0, 2] [2, 2, 4, 30]
// CHECK: arith.maximumf
func.func @all(%q: tensor<1x2x2x40x16xbf16>, %k: tensor<1x2x40x16xbf16>, %length: tensor<i64>) -> tensor<2x4xi64> {
  %0 = "kv.topk_select"(%q, %k, %length) {operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, pool = "max", pool_size = 7 : i64, ring = 8 : i64, scale = 2.500000e-01 : f64, score = "all", selected = 4 : i64, sink = 2 : i64, softcap = 3.000000e+00 : f64, window = 4 : i64} : (tensor<1x2x2x40x16xbf16>, tensor<1x2x40x16xbf16>, tensor<i64>) -> tensor<2x4xi64>
  return %0 : tensor<2x4xi64>
}

// -----

// A compiled length of S + R can hold no candidate.
// CHECK-LABEL: func.func @no_candidates(
// CHECK-NEXT: %[[ZEROS:.+]] = arith.constant dense<0> : tensor<2x4xi64>
// CHECK-NEXT: return %[[ZEROS]]
func.func @no_candidates(%q: tensor<1x2x2x10x16xf32>, %k: tensor<1x2x10x16xf32>, %length: tensor<i64>) -> tensor<2x4xi64> {
  %0 = "kv.topk_select"(%q, %k, %length) {operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, pool = "none", pool_size = 1 : i64, ring = 8 : i64, scale = 2.500000e-01 : f64, score = "all", selected = 4 : i64, sink = 2 : i64, softcap = 0.000000e+00 : f64, window = 4 : i64} : (tensor<1x2x2x10x16xf32>, tensor<1x2x10x16xf32>, tensor<i64>) -> tensor<2x4xi64>
  return %0 : tensor<2x4xi64>
}
