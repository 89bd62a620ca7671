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
