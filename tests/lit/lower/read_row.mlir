// RUN: snapcc-opt %s --pass-pipeline='builtin.module(kv-lower-read-row,inline,symbol-dce)' | filecheck %s

// CHECK-LABEL: func.func @cache(
// CHECK: %[[LAST:.+]] = arith.constant 2 : index
// CHECK: %[[ROW:.+]] = arith.minsi %{{.+}}, %[[LAST]] : index
// CHECK: %[[ONE:.+]] = tensor.extract_slice %arg0[%[[ROW]], 0, 0, 0] [1, 2, 14, 16] [1, 1, 1, 1] : tensor<3x2x14x16xf32> to tensor<1x2x14x16xf32>
// CHECK: return %[[ONE]]
func.func @cache(%source: tensor<3x2x14x16xf32>, %row: tensor<i64>) -> tensor<1x2x14x16xf32> {
  %0 = "kv.read_row"(%source, %row) : (tensor<3x2x14x16xf32>, tensor<i64>) -> tensor<1x2x14x16xf32>
  return %0 : tensor<1x2x14x16xf32>
}

// CHECK-LABEL: func.func @count(
// CHECK: tensor.extract_slice %arg0[%{{.+}}] [1] [1] : tensor<3xi64> to tensor<1xi64>
func.func @count(%source: tensor<3xi64>, %row: tensor<i64>) -> tensor<1xi64> {
  %0 = "kv.read_row"(%source, %row) : (tensor<3xi64>, tensor<i64>) -> tensor<1xi64>
  return %0 : tensor<1xi64>
}
