// RUN: snapcc-opt %s --pass-pipeline='builtin.module(kv-lower-write-row,inline,symbol-dce)' | filecheck %s

// CHECK-LABEL: func.func @cache(
// CHECK: %[[LAST:.+]] = arith.constant 2 : index
// CHECK: %[[ROW:.+]] = arith.minsi %{{.+}}, %[[LAST]] : index
// CHECK: %[[NEW:.+]] = tensor.insert_slice %arg1 into %arg0[%[[ROW]], 0, 0, 0] [1, 2, 14, 16] [1, 1, 1, 1] : tensor<1x2x14x16xf32> into tensor<3x2x14x16xf32>
// CHECK: return %[[NEW]]
func.func @cache(%target: tensor<3x2x14x16xf32>, %value: tensor<1x2x14x16xf32>, %row: tensor<i64>) -> tensor<3x2x14x16xf32> {
  %0 = "kv.write_row"(%target, %value, %row) : (tensor<3x2x14x16xf32>, tensor<1x2x14x16xf32>, tensor<i64>) -> tensor<3x2x14x16xf32>
  return %0 : tensor<3x2x14x16xf32>
}

// CHECK-LABEL: func.func @count(
// CHECK: tensor.insert_slice %arg1 into %arg0[%{{.+}}] [1] [1] : tensor<1xi64> into tensor<3xi64>
func.func @count(%target: tensor<3xi64>, %value: tensor<1xi64>, %row: tensor<i64>) -> tensor<3xi64> {
  %0 = "kv.write_row"(%target, %value, %row) : (tensor<3xi64>, tensor<1xi64>, tensor<i64>) -> tensor<3xi64>
  return %0 : tensor<3xi64>
}
