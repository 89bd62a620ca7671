// RUN: not snapcc-opt %s --split-input-file 2>%t | filecheck %s
// RUN: filecheck %s --check-prefix=REFUSED --input-file %t

// CHECK-LABEL: func.func @state(
// CHECK: %{{.+}} = "kv.write_rows"(%arg0, %arg1, %arg2) : (!torch.vtensor<[3,16,4],f32>, !torch.vtensor<[3,16,4],f32>, !torch.vtensor<[3],i1>) -> !torch.vtensor<[3,16,4],f32>
func.func @state(%target: !torch.vtensor<[3,16,4],f32>, %values: !torch.vtensor<[3,16,4],f32>, %active: !torch.vtensor<[3],i1>) -> !torch.vtensor<[3,16,4],f32> {
  %0 = "kv.write_rows"(%target, %values, %active) : (!torch.vtensor<[3,16,4],f32>, !torch.vtensor<[3,16,4],f32>, !torch.vtensor<[3],i1>) -> !torch.vtensor<[3,16,4],f32>
  return %0 : !torch.vtensor<[3,16,4],f32>
}

// -----

// CHECK-LABEL: func.func @count(
// CHECK: %{{.+}} = "kv.write_rows"(%arg0, %arg1, %arg2) : (tensor<3xi64>, tensor<3xi64>, tensor<3xi1>) -> tensor<3xi64>
func.func @count(%target: tensor<3xi64>, %values: tensor<3xi64>, %active: tensor<3xi1>) -> tensor<3xi64> {
  %0 = "kv.write_rows"(%target, %values, %active) : (tensor<3xi64>, tensor<3xi64>, tensor<3xi1>) -> tensor<3xi64>
  return %0 : tensor<3xi64>
}

// -----

// REFUSED: write_rows.mlir:[[# @LINE + 2]]:8: error: 'kv.write_rows' op values' type must be the target's: expected tensor<3x4xf32>, got tensor<1x4xf32>
func.func @one_row(%target: tensor<3x4xf32>, %values: tensor<1x4xf32>, %active: tensor<3xi1>) -> tensor<3x4xf32> {
  %0 = "kv.write_rows"(%target, %values, %active) : (tensor<3x4xf32>, tensor<1x4xf32>, tensor<3xi1>) -> tensor<3x4xf32>
  return %0 : tensor<3x4xf32>
}

// -----

// REFUSED: write_rows.mlir:[[# @LINE + 2]]:8: error: 'kv.write_rows' op active's shape must be [B] of the cache: expected [3], got [2]
func.func @other_rows(%target: tensor<3x4xf32>, %values: tensor<3x4xf32>, %active: tensor<2xi1>) -> tensor<3x4xf32> {
  %0 = "kv.write_rows"(%target, %values, %active) : (tensor<3x4xf32>, tensor<3x4xf32>, tensor<2xi1>) -> tensor<3x4xf32>
  return %0 : tensor<3x4xf32>
}

// -----

// REFUSED: write_rows.mlir:[[# @LINE + 2]]:8: error: 'kv.write_rows' op active's element type must be i1: expected i1, got i64
func.func @numbers(%target: tensor<3x4xf32>, %values: tensor<3x4xf32>, %active: tensor<3xi64>) -> tensor<3x4xf32> {
  %0 = "kv.write_rows"(%target, %values, %active) : (tensor<3x4xf32>, tensor<3x4xf32>, tensor<3xi64>) -> tensor<3x4xf32>
  return %0 : tensor<3x4xf32>
}

// -----

// REFUSED: write_rows.mlir:[[# @LINE + 2]]:8: error: 'kv.write_rows' op the target's shape must be [B, ..], got []
func.func @no_rows(%target: tensor<f32>, %values: tensor<f32>, %active: tensor<1xi1>) -> tensor<f32> {
  %0 = "kv.write_rows"(%target, %values, %active) : (tensor<f32>, tensor<f32>, tensor<1xi1>) -> tensor<f32>
  return %0 : tensor<f32>
}
