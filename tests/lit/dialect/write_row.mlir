// RUN: not snapcc-opt %s --split-input-file 2>%t | filecheck %s
// RUN: filecheck %s --check-prefix=REFUSED --input-file %t

// CHECK-LABEL: func.func @cache(
// CHECK: %{{.+}} = "kv.write_row"(%arg0, %arg1, %arg2) : (!torch.vtensor<[3,2,14,16],f32>, !torch.vtensor<[1,2,14,16],f32>, !torch.vtensor<[],si64>) -> !torch.vtensor<[3,2,14,16],f32>
func.func @cache(%target: !torch.vtensor<[3,2,14,16],f32>, %value: !torch.vtensor<[1,2,14,16],f32>, %row: !torch.vtensor<[],si64>) -> !torch.vtensor<[3,2,14,16],f32> {
  %0 = "kv.write_row"(%target, %value, %row) : (!torch.vtensor<[3,2,14,16],f32>, !torch.vtensor<[1,2,14,16],f32>, !torch.vtensor<[],si64>) -> !torch.vtensor<[3,2,14,16],f32>
  return %0 : !torch.vtensor<[3,2,14,16],f32>
}

// -----

// CHECK-LABEL: func.func @count(
// CHECK: %{{.+}} = "kv.write_row"(%arg0, %arg1, %arg2) : (tensor<3xi64>, tensor<1xi64>, tensor<i64>) -> tensor<3xi64>
func.func @count(%target: tensor<3xi64>, %value: tensor<1xi64>, %row: tensor<i64>) -> tensor<3xi64> {
  %0 = "kv.write_row"(%target, %value, %row) : (tensor<3xi64>, tensor<1xi64>, tensor<i64>) -> tensor<3xi64>
  return %0 : tensor<3xi64>
}

// -----

// REFUSED: write_row.mlir:[[# @LINE + 2]]:8: error: 'kv.write_row' op the result's type must be the target's: expected !torch.vtensor<[3,2,14,16],f32>, got !torch.vtensor<[3,2,14,16],bf16>
func.func @other_type(%target: !torch.vtensor<[3,2,14,16],f32>, %value: !torch.vtensor<[1,2,14,16],f32>, %row: !torch.vtensor<[],si64>) -> !torch.vtensor<[3,2,14,16],bf16> {
  %0 = "kv.write_row"(%target, %value, %row) : (!torch.vtensor<[3,2,14,16],f32>, !torch.vtensor<[1,2,14,16],f32>, !torch.vtensor<[],si64>) -> !torch.vtensor<[3,2,14,16],bf16>
  return %0 : !torch.vtensor<[3,2,14,16],bf16>
}

// -----

// REFUSED: write_row.mlir:[[# @LINE + 2]]:8: error: 'kv.write_row' op value's shape must be one row of the target: expected [1, 2, 14, 16], got [3, 2, 14, 16]
func.func @all_rows(%target: !torch.vtensor<[3,2,14,16],f32>, %value: !torch.vtensor<[3,2,14,16],f32>, %row: !torch.vtensor<[],si64>) -> !torch.vtensor<[3,2,14,16],f32> {
  %0 = "kv.write_row"(%target, %value, %row) : (!torch.vtensor<[3,2,14,16],f32>, !torch.vtensor<[3,2,14,16],f32>, !torch.vtensor<[],si64>) -> !torch.vtensor<[3,2,14,16],f32>
  return %0 : !torch.vtensor<[3,2,14,16],f32>
}

// -----

// REFUSED: write_row.mlir:[[# @LINE + 2]]:8: error: 'kv.write_row' op row's shape must be a scalar tensor: expected [], got [3]
func.func @rows(%target: !torch.vtensor<[3,2,14,16],f32>, %value: !torch.vtensor<[1,2,14,16],f32>, %row: !torch.vtensor<[3],si64>) -> !torch.vtensor<[3,2,14,16],f32> {
  %0 = "kv.write_row"(%target, %value, %row) : (!torch.vtensor<[3,2,14,16],f32>, !torch.vtensor<[1,2,14,16],f32>, !torch.vtensor<[3],si64>) -> !torch.vtensor<[3,2,14,16],f32>
  return %0 : !torch.vtensor<[3,2,14,16],f32>
}

// -----

// REFUSED: write_row.mlir:[[# @LINE + 2]]:8: error: 'kv.write_row' op takes and gives ranked tensors, got i64
func.func @plain_row(%target: !torch.vtensor<[3,2,14,16],f32>, %value: !torch.vtensor<[1,2,14,16],f32>, %row: i64) -> !torch.vtensor<[3,2,14,16],f32> {
  %0 = "kv.write_row"(%target, %value, %row) : (!torch.vtensor<[3,2,14,16],f32>, !torch.vtensor<[1,2,14,16],f32>, i64) -> !torch.vtensor<[3,2,14,16],f32>
  return %0 : !torch.vtensor<[3,2,14,16],f32>
}
