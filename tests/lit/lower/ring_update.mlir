// RUN: snapcc-opt %s --split-input-file --pass-pipeline='builtin.module(kv-lower-ring-update,inline,symbol-dce,cse)' | filecheck %s

// Keys and values of one shape share the places and the mask.
// CHECK-LABEL: func.func @heads_first(
// CHECK: %[[K:.+]] = tensor.collapse_shape %arg2 {{\[\[}}0, 1, 2], [3]] : tensor<3x2x1x16xf32> into tensor<6x16xf32>
// CHECK: %[[PLACES:.+]] = linalg.generic
// CHECK: -> tensor<6x3xi32>
// CHECK: %[[MASK:.+]] = linalg.generic
// CHECK: -> tensor<6xi1>
// CHECK: "kv.scatter"(%[[K]], %[[PLACES]], %[[MASK]], %arg0) : (tensor<6x16xf32>, tensor<6x3xi32>, tensor<6xi1>, tensor<3x2x14x16xf32>) -> tensor<3x2x14x16xf32>
// CHECK: %[[V:.+]] = tensor.collapse_shape %arg3
// CHECK-NOT: linalg.generic
// CHECK: "kv.scatter"(%[[V]], %[[PLACES]], %[[MASK]], %arg1)
// CHECK-NOT: kv.ring_update
func.func @heads_first(%k: tensor<3x2x14x16xf32>, %v: tensor<3x2x14x16xf32>, %new_k: tensor<3x2x1x16xf32>, %new_v: tensor<3x2x1x16xf32>, %slots: tensor<3xi64>, %active: tensor<3xi1>) -> (tensor<3x2x14x16xf32>, tensor<3x2x14x16xf32>) {
  %0 = "kv.ring_update"(%k, %new_k, %slots, %active) {axis = 2 : i64} : (tensor<3x2x14x16xf32>, tensor<3x2x1x16xf32>, tensor<3xi64>, tensor<3xi1>) -> tensor<3x2x14x16xf32>
  %1 = "kv.ring_update"(%v, %new_v, %slots, %active) {axis = 2 : i64} : (tensor<3x2x14x16xf32>, tensor<3x2x1x16xf32>, tensor<3xi64>, tensor<3xi1>) -> tensor<3x2x14x16xf32>
  return %0, %1 : tensor<3x2x14x16xf32>, tensor<3x2x14x16xf32>
}

// -----

// CHECK-LABEL: func.func @tokens_first(
// CHECK: "kv.scatter"({{.+}}) : (tensor<3x2x16xbf16>, tensor<3x2xi32>, tensor<3xi1>, tensor<3x14x2x16xbf16>) -> tensor<3x14x2x16xbf16>
func.func @tokens_first(%cache: tensor<3x14x2x16xbf16>, %new: tensor<3x1x2x16xbf16>, %slots: tensor<3xi64>, %active: tensor<3xi1>) -> tensor<3x14x2x16xbf16> {
  %0 = "kv.ring_update"(%cache, %new, %slots, %active) {axis = 1 : i64} : (tensor<3x14x2x16xbf16>, tensor<3x1x2x16xbf16>, tensor<3xi64>, tensor<3xi1>) -> tensor<3x14x2x16xbf16>
  return %0 : tensor<3x14x2x16xbf16>
}

// -----

// The last axis: each number is a row of its own.
// CHECK-LABEL: func.func @features_first(
// CHECK: "kv.scatter"({{.+}}) : (tensor<48xf32>, tensor<48x3xi32>, tensor<48xi1>, tensor<3x16x14xf32>) -> tensor<3x16x14xf32>
func.func @features_first(%cache: tensor<3x16x14xf32>, %new: tensor<3x16x1xf32>, %slots: tensor<3xi64>, %active: tensor<3xi1>) -> tensor<3x16x14xf32> {
  %0 = "kv.ring_update"(%cache, %new, %slots, %active) {axis = 2 : i64} : (tensor<3x16x14xf32>, tensor<3x16x1xf32>, tensor<3xi64>, tensor<3xi1>) -> tensor<3x16x14xf32>
  return %0 : tensor<3x16x14xf32>
}
