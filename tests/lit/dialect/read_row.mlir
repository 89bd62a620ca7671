// RUN: not snapcc-opt %s --split-input-file 2>%t | filecheck %s
// RUN: filecheck %s --check-prefix=REFUSED --input-file %t

// CHECK-LABEL: func.func @cache(
// CHECK: %{{.+}} = "kv.read_row"(%arg0, %arg1) : (!torch.vtensor<[3,2,14,16],f32>, !torch.vtensor<[],si64>) -> !torch.vtensor<[1,2,14,16],f32>
func.func @cache(%source: !torch.vtensor<[3,2,14,16],f32>, %row: !torch.vtensor<[],si64>) -> !torch.vtensor<[1,2,14,16],f32> {
  %0 = "kv.read_row"(%source, %row) : (!torch.vtensor<[3,2,14,16],f32>, !torch.vtensor<[],si64>) -> !torch.vtensor<[1,2,14,16],f32>
  return %0 : !torch.vtensor<[1,2,14,16],f32>
}

// -----

// CHECK-LABEL: func.func @count(
// CHECK: %{{.+}} = "kv.read_row"(%arg0, %arg1) : (tensor<3xi64>, tensor<i64>) -> tensor<1xi64>
func.func @count(%source: tensor<3xi64>, %row: tensor<i64>) -> tensor<1xi64> {
  %0 = "kv.read_row"(%source, %row) : (tensor<3xi64>, tensor<i64>) -> tensor<1xi64>
  return %0 : tensor<1xi64>
}

// -----

// REFUSED: read_row.mlir:[[# @LINE + 2]]:8: error: 'kv.read_row' op the result's shape must be one row of the state: expected [1, 14, 16], got [3, 14, 16]
func.func @all_rows(%source: tensor<3x14x16xf32>, %row: tensor<i64>) -> tensor<3x14x16xf32> {
  %0 = "kv.read_row"(%source, %row) : (tensor<3x14x16xf32>, tensor<i64>) -> tensor<3x14x16xf32>
  return %0 : tensor<3x14x16xf32>
}

// -----

// REFUSED: read_row.mlir:[[# @LINE + 2]]:8: error: 'kv.read_row' op the result's element type must be the state's: expected f32, got bf16
func.func @other_type(%source: tensor<3x14x16xf32>, %row: tensor<i64>) -> tensor<1x14x16xbf16> {
  %0 = "kv.read_row"(%source, %row) : (tensor<3x14x16xf32>, tensor<i64>) -> tensor<1x14x16xbf16>
  return %0 : tensor<1x14x16xbf16>
}

// -----

// REFUSED: read_row.mlir:[[# @LINE + 2]]:8: error: 'kv.read_row' op row's shape must be a scalar tensor: expected [], got [3]
func.func @rows(%source: tensor<3x14x16xf32>, %row: tensor<3xi64>) -> tensor<1x14x16xf32> {
  %0 = "kv.read_row"(%source, %row) : (tensor<3x14x16xf32>, tensor<3xi64>) -> tensor<1x14x16xf32>
  return %0 : tensor<1x14x16xf32>
}
