// RUN: snapcc-opt %s --pass-pipeline='builtin.module(kv-lower-write-rows,inline,symbol-dce)' | filecheck %s

// CHECK-LABEL: func.func @state(
// CHECK: %[[PLACES:.+]] = linalg.generic
// CHECK: linalg.index 0
// CHECK: -> tensor<3x1xi32>
// CHECK: %[[NEW:.+]] = "kv.scatter"(%arg1, %[[PLACES]], %arg2, %arg0) : (tensor<3x16x4xf32>, tensor<3x1xi32>, tensor<3xi1>, tensor<3x16x4xf32>) -> tensor<3x16x4xf32>
// CHECK: return %[[NEW]]
func.func @state(%target: tensor<3x16x4xf32>, %values: tensor<3x16x4xf32>, %active: tensor<3xi1>) -> tensor<3x16x4xf32> {
  %0 = "kv.write_rows"(%target, %values, %active) : (tensor<3x16x4xf32>, tensor<3x16x4xf32>, tensor<3xi1>) -> tensor<3x16x4xf32>
  return %0 : tensor<3x16x4xf32>
}
