// RUN: snapcc-opt %s --split-input-file --pass-pipeline='builtin.module(kv-lower-ring-extend,inline,symbol-dce,cse)' | filecheck %s

// Five tokens of two heads; keys and values of one shape share the places and the mask.
// CHECK-LABEL: func.func @heads_first(
// CHECK: %[[K:.+]] = tensor.collapse_shape %arg2 {{\[\[}}0, 1, 2], [3]] : tensor<1x2x5x16xf32> into tensor<10x16xf32>
// CHECK: %[[PLACES:.+]] = linalg.generic
// CHECK: -> tensor<10x3xi32>
// CHECK: %[[MASK:.+]] = linalg.generic
// CHECK: -> tensor<10xi1>
// CHECK: "kv.scatter"(%[[K]], %[[PLACES]], %[[MASK]], %arg0) : (tensor<10x16xf32>, tensor<10x3xi32>, tensor<10xi1>, tensor<3x2x14x16xf32>) -> tensor<3x2x14x16xf32>
// CHECK: %[[V:.+]] = tensor.collapse_shape %arg3
// CHECK-NOT: linalg.generic
// CHECK: "kv.scatter"(%[[V]], %[[PLACES]], %[[MASK]], %arg1)
// CHECK-NOT: kv.ring_extend
func.func @heads_first(%k: tensor<3x2x14x16xf32>, %v: tensor<3x2x14x16xf32>, %new_k: tensor<1x2x5x16xf32>, %new_v: tensor<1x2x5x16xf32>, %row: tensor<i64>, %start: tensor<i64>, %length: tensor<i64>) -> (tensor<3x2x14x16xf32>, tensor<3x2x14x16xf32>) {
  %0 = "kv.ring_extend"(%k, %new_k, %row, %start, %length) {axis = 2 : i64, ring = 8 : i64, sink = 2 : i64} : (tensor<3x2x14x16xf32>, tensor<1x2x5x16xf32>, tensor<i64>, tensor<i64>, tensor<i64>) -> tensor<3x2x14x16xf32>
  %1 = "kv.ring_extend"(%v, %new_v, %row, %start, %length) {axis = 2 : i64, ring = 8 : i64, sink = 2 : i64} : (tensor<3x2x14x16xf32>, tensor<1x2x5x16xf32>, tensor<i64>, tensor<i64>, tensor<i64>) -> tensor<3x2x14x16xf32>
  return %0, %1 : tensor<3x2x14x16xf32>, tensor<3x2x14x16xf32>
}

// -----

// The last axis: each number is a row of its own.
// CHECK-LABEL: func.func @features_first(
// CHECK: "kv.scatter"({{.+}}) : (tensor<80xf32>, tensor<80x3xi32>, tensor<80xi1>, tensor<3x16x14xf32>) -> tensor<3x16x14xf32>
func.func @features_first(%cache: tensor<3x16x14xf32>, %new: tensor<1x16x5xf32>, %row: tensor<i64>) -> tensor<3x16x14xf32> {
  %0 = "kv.ring_extend"(%cache, %new, %row, %row, %row) {axis = 2 : i64, ring = 8 : i64, sink = 2 : i64} : (tensor<3x16x14xf32>, tensor<1x16x5xf32>, tensor<i64>, tensor<i64>, tensor<i64>) -> tensor<3x16x14xf32>
  return %0 : tensor<3x16x14xf32>
}
