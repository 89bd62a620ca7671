// RUN: snapcc-opt %s --pass-pipeline='builtin.module(kv-lower-scatter)' | filecheck %s

// CHECK-LABEL: func.func @keys(
// CHECK-NEXT: %[[NEW:.+]] = "iree_linalg_ext.scatter"(%arg0, %arg1, %arg2, %arg3)
// CHECK-NEXT: ^bb0(%[[UPDATE:.+]]: bf16, %{{.+}}: bf16):
// CHECK-NEXT: "iree_linalg_ext.yield"(%[[UPDATE]]) : (bf16) -> ()
// CHECK-NEXT: }) {dimension_map = array<i64: 0, 1, 2>, operandSegmentSizes = array<i32: 1, 1, 1, 1>, unique_indices = true}
// CHECK-NEXT: return %[[NEW]]
func.func @keys(%updates: tensor<6x16xbf16>, %places: tensor<6x3xi32>, %mask: tensor<6xi1>, %cache: tensor<3x2x14x16xbf16>) -> tensor<3x2x14x16xbf16> {
  %0 = "kv.scatter"(%updates, %places, %mask, %cache) : (tensor<6x16xbf16>, tensor<6x3xi32>, tensor<6xi1>, tensor<3x2x14x16xbf16>) -> tensor<3x2x14x16xbf16>
  return %0 : tensor<3x2x14x16xbf16>
}

// A next value that is made of the old one is computed before anything of that is written over.
// CHECK-LABEL: func.func @state(
// CHECK: %[[NEXT:.+]] = arith.negf %arg0
// CHECK-NEXT: %[[APART:.+]] = "util.optimization_barrier"(%[[NEXT]]) : (tensor<3x4xf32>) -> tensor<3x4xf32>
// CHECK-NEXT: "iree_linalg_ext.scatter"(%[[APART]], %arg1, %arg2, %arg0)
func.func @state(%state: tensor<3x4xf32>, %places: tensor<3x1xi32>, %mask: tensor<3xi1>) -> tensor<3x4xf32> {
  %next = arith.negf %state : tensor<3x4xf32>
  %0 = "kv.scatter"(%next, %places, %mask, %state) : (tensor<3x4xf32>, tensor<3x1xi32>, tensor<3xi1>, tensor<3x4xf32>) -> tensor<3x4xf32>
  return %0 : tensor<3x4xf32>
}
