// RUN: not snapcc-opt %s --split-input-file 2>%t | filecheck %s
// RUN: filecheck %s --check-prefix=REFUSED --input-file %t

// CHECK-LABEL: func.func @heads_first(
// CHECK: %{{.+}} = "kv.append"(%arg0, %arg1) {axis = 2 : i64} : (!torch.vtensor<[3,2,13,16],f32>, !torch.vtensor<[3,2,1,16],f32>) -> !torch.vtensor<[3,2,14,16],f32>
func.func @heads_first(%cache: !torch.vtensor<[3,2,13,16],f32>, %rows: !torch.vtensor<[3,2,1,16],f32>) -> !torch.vtensor<[3,2,14,16],f32> {
  %0 = "kv.append"(%cache, %rows) {axis = 2 : i64} : (!torch.vtensor<[3,2,13,16],f32>, !torch.vtensor<[3,2,1,16],f32>) -> !torch.vtensor<[3,2,14,16],f32>
  return %0 : !torch.vtensor<[3,2,14,16],f32>
}

// -----

// CHECK-LABEL: func.func @tokens_first(
// CHECK: %{{.+}} = "kv.append"(%arg0, %arg1) {axis = 1 : i64} : (!torch.vtensor<[3,13,2,16],f32>, !torch.vtensor<[3,1,2,16],f32>) -> !torch.vtensor<[3,14,2,16],f32>
func.func @tokens_first(%cache: !torch.vtensor<[3,13,2,16],f32>, %rows: !torch.vtensor<[3,1,2,16],f32>) -> !torch.vtensor<[3,14,2,16],f32> {
  %0 = "kv.append"(%cache, %rows) {axis = 1 : i64} : (!torch.vtensor<[3,13,2,16],f32>, !torch.vtensor<[3,1,2,16],f32>) -> !torch.vtensor<[3,14,2,16],f32>
  return %0 : !torch.vtensor<[3,14,2,16],f32>
}

// -----

// CHECK-LABEL: func.func @latent(
// CHECK: %{{.+}} = "kv.append"(%arg0, %arg1) {axis = 1 : i64} : (tensor<3x13x8xbf16>, tensor<3x4x8xbf16>) -> tensor<3x17x8xbf16>
func.func @latent(%cache: tensor<3x13x8xbf16>, %rows: tensor<3x4x8xbf16>) -> tensor<3x17x8xbf16> {
  %0 = "kv.append"(%cache, %rows) {axis = 1 : i64} : (tensor<3x13x8xbf16>, tensor<3x4x8xbf16>) -> tensor<3x17x8xbf16>
  return %0 : tensor<3x17x8xbf16>
}

// -----

// CHECK-LABEL: func.func @empty_past(
// CHECK: %{{.+}} = "kv.append"(%arg0, %arg1) {axis = 2 : i64} : (!torch.vtensor<[1,2,0,16],f32>, !torch.vtensor<[1,2,20,16],f32>) -> !torch.vtensor<[1,2,20,16],f32>
func.func @empty_past(%cache: !torch.vtensor<[1,2,0,16],f32>, %rows: !torch.vtensor<[1,2,20,16],f32>) -> !torch.vtensor<[1,2,20,16],f32> {
  %0 = "kv.append"(%cache, %rows) {axis = 2 : i64} : (!torch.vtensor<[1,2,0,16],f32>, !torch.vtensor<[1,2,20,16],f32>) -> !torch.vtensor<[1,2,20,16],f32>
  return %0 : !torch.vtensor<[1,2,20,16],f32>
}

// -----

// REFUSED: append.mlir:[[# @LINE + 2]]:8: error: 'kv.append' op axis must lie in [1, 3] for a cache of rank 4, got 0
func.func @row_axis(%cache: !torch.vtensor<[3,2,13,16],f32>, %rows: !torch.vtensor<[3,2,1,16],f32>) -> !torch.vtensor<[3,2,14,16],f32> {
  %0 = "kv.append"(%cache, %rows) {axis = 0 : i64} : (!torch.vtensor<[3,2,13,16],f32>, !torch.vtensor<[3,2,1,16],f32>) -> !torch.vtensor<[3,2,14,16],f32>
  return %0 : !torch.vtensor<[3,2,14,16],f32>
}

// -----

// REFUSED: append.mlir:[[# @LINE + 2]]:8: error: 'kv.append' op axis must lie in [1, 2] for a cache of rank 3, got 3
func.func @axis_beyond(%cache: !torch.vtensor<[3,13,8],f32>, %rows: !torch.vtensor<[3,1,8],f32>) -> !torch.vtensor<[3,14,8],f32> {
  %0 = "kv.append"(%cache, %rows) {axis = 3 : i64} : (!torch.vtensor<[3,13,8],f32>, !torch.vtensor<[3,1,8],f32>) -> !torch.vtensor<[3,14,8],f32>
  return %0 : !torch.vtensor<[3,14,8],f32>
}

// -----

// REFUSED: append.mlir:[[# @LINE + 2]]:8: error: 'kv.append' op rows must have the cache's rank: expected 4, got 3
func.func @other_rank(%cache: !torch.vtensor<[3,2,13,16],f32>, %rows: !torch.vtensor<[3,1,16],f32>) -> !torch.vtensor<[3,2,14,16],f32> {
  %0 = "kv.append"(%cache, %rows) {axis = 2 : i64} : (!torch.vtensor<[3,2,13,16],f32>, !torch.vtensor<[3,1,16],f32>) -> !torch.vtensor<[3,2,14,16],f32>
  return %0 : !torch.vtensor<[3,2,14,16],f32>
}

// -----

// REFUSED: append.mlir:[[# @LINE + 2]]:8: error: 'kv.append' op the result's shape must be cache and rows joined: expected [3, 2, 14, 16], got [3, 2, 13, 16]
func.func @not_grown(%cache: !torch.vtensor<[3,2,13,16],f32>, %rows: !torch.vtensor<[3,2,1,16],f32>) -> !torch.vtensor<[3,2,13,16],f32> {
  %0 = "kv.append"(%cache, %rows) {axis = 2 : i64} : (!torch.vtensor<[3,2,13,16],f32>, !torch.vtensor<[3,2,1,16],f32>) -> !torch.vtensor<[3,2,13,16],f32>
  return %0 : !torch.vtensor<[3,2,13,16],f32>
}

// -----

// REFUSED: append.mlir:[[# @LINE + 2]]:8: error: 'kv.append' op takes and gives ranked tensors, got tensor<*xf32>
func.func @unranked(%cache: tensor<*xf32>, %rows: tensor<3x2x1x16xf32>) -> tensor<3x2x14x16xf32> {
  %0 = "kv.append"(%cache, %rows) {axis = 2 : i64} : (tensor<*xf32>, tensor<3x2x1x16xf32>) -> tensor<3x2x14x16xf32>
  return %0 : tensor<3x2x14x16xf32>
}
