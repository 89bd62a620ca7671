// RUN: not snapcc-opt %s --split-input-file 2>%t | filecheck %s
// RUN: filecheck %s --check-prefix=REFUSED --input-file %t

// CHECK-LABEL: func.func @heads_first(
// CHECK: %{{.+}} = "kv.ring_update"(%arg0, %arg1, %arg2, %arg3) {axis = 2 : i64} : (!torch.vtensor<[3,2,14,16],f32>, !torch.vtensor<[3,2,1,16],f32>, !torch.vtensor<[3],si64>, !torch.vtensor<[3],i1>) -> !torch.vtensor<[3,2,14,16],f32>
func.func @heads_first(%cache: !torch.vtensor<[3,2,14,16],f32>, %rows: !torch.vtensor<[3,2,1,16],f32>, %slots: !torch.vtensor<[3],si64>, %active: !torch.vtensor<[3],i1>) -> !torch.vtensor<[3,2,14,16],f32> {
  %0 = "kv.ring_update"(%cache, %rows, %slots, %active) {axis = 2 : i64} : (!torch.vtensor<[3,2,14,16],f32>, !torch.vtensor<[3,2,1,16],f32>, !torch.vtensor<[3],si64>, !torch.vtensor<[3],i1>) -> !torch.vtensor<[3,2,14,16],f32>
  return %0 : !torch.vtensor<[3,2,14,16],f32>
}

// -----

// CHECK-LABEL: func.func @tokens_first(
// CHECK: %{{.+}} = "kv.ring_update"(%arg0, %arg1, %arg2, %arg3) {axis = 1 : i64} : (tensor<3x14x2x16xf32>, tensor<3x1x2x16xf32>, tensor<3xi64>, tensor<3xi1>) -> tensor<3x14x2x16xf32>
func.func @tokens_first(%cache: tensor<3x14x2x16xf32>, %rows: tensor<3x1x2x16xf32>, %slots: tensor<3xi64>, %active: tensor<3xi1>) -> tensor<3x14x2x16xf32> {
  %0 = "kv.ring_update"(%cache, %rows, %slots, %active) {axis = 1 : i64} : (tensor<3x14x2x16xf32>, tensor<3x1x2x16xf32>, tensor<3xi64>, tensor<3xi1>) -> tensor<3x14x2x16xf32>
  return %0 : tensor<3x14x2x16xf32>
}

// -----

// REFUSED: ring_update.mlir:[[# @LINE + 2]]:8: error: 'kv.ring_update' op axis must lie in [1, 3] for a cache of rank 4, got 0
func.func @row_axis(%cache: !torch.vtensor<[3,2,14,16],f32>, %rows: !torch.vtensor<[3,2,1,16],f32>, %slots: !torch.vtensor<[3],si64>, %active: !torch.vtensor<[3],i1>) -> !torch.vtensor<[3,2,14,16],f32> {
  %0 = "kv.ring_update"(%cache, %rows, %slots, %active) {axis = 0 : i64} : (!torch.vtensor<[3,2,14,16],f32>, !torch.vtensor<[3,2,1,16],f32>, !torch.vtensor<[3],si64>, !torch.vtensor<[3],i1>) -> !torch.vtensor<[3,2,14,16],f32>
  return %0 : !torch.vtensor<[3,2,14,16],f32>
}

// -----

// REFUSED: ring_update.mlir:[[# @LINE + 2]]:8: error: 'kv.ring_update' op the result's type must be the cache's: expected !torch.vtensor<[3,2,14,16],f32>, got !torch.vtensor<[3,2,15,16],f32>
func.func @grown(%cache: !torch.vtensor<[3,2,14,16],f32>, %rows: !torch.vtensor<[3,2,1,16],f32>, %slots: !torch.vtensor<[3],si64>, %active: !torch.vtensor<[3],i1>) -> !torch.vtensor<[3,2,15,16],f32> {
  %0 = "kv.ring_update"(%cache, %rows, %slots, %active) {axis = 2 : i64} : (!torch.vtensor<[3,2,14,16],f32>, !torch.vtensor<[3,2,1,16],f32>, !torch.vtensor<[3],si64>, !torch.vtensor<[3],i1>) -> !torch.vtensor<[3,2,15,16],f32>
  return %0 : !torch.vtensor<[3,2,15,16],f32>
}

// -----

// REFUSED: ring_update.mlir:[[# @LINE + 2]]:8: error: 'kv.ring_update' op rows' shape must be one token of the cache: expected [3, 2, 1, 16], got [3, 2, 2, 16]
func.func @two_tokens(%cache: !torch.vtensor<[3,2,14,16],f32>, %rows: !torch.vtensor<[3,2,2,16],f32>, %slots: !torch.vtensor<[3],si64>, %active: !torch.vtensor<[3],i1>) -> !torch.vtensor<[3,2,14,16],f32> {
  %0 = "kv.ring_update"(%cache, %rows, %slots, %active) {axis = 2 : i64} : (!torch.vtensor<[3,2,14,16],f32>, !torch.vtensor<[3,2,2,16],f32>, !torch.vtensor<[3],si64>, !torch.vtensor<[3],i1>) -> !torch.vtensor<[3,2,14,16],f32>
  return %0 : !torch.vtensor<[3,2,14,16],f32>
}

// -----

// REFUSED: ring_update.mlir:[[# @LINE + 2]]:8: error: 'kv.ring_update' op slots's shape must be [B] of the cache: expected [3], got [1]
func.func @one_slot(%cache: !torch.vtensor<[3,2,14,16],f32>, %rows: !torch.vtensor<[3,2,1,16],f32>, %slots: !torch.vtensor<[1],si64>, %active: !torch.vtensor<[3],i1>) -> !torch.vtensor<[3,2,14,16],f32> {
  %0 = "kv.ring_update"(%cache, %rows, %slots, %active) {axis = 2 : i64} : (!torch.vtensor<[3,2,14,16],f32>, !torch.vtensor<[3,2,1,16],f32>, !torch.vtensor<[1],si64>, !torch.vtensor<[3],i1>) -> !torch.vtensor<[3,2,14,16],f32>
  return %0 : !torch.vtensor<[3,2,14,16],f32>
}

// -----

// REFUSED: ring_update.mlir:[[# @LINE + 2]]:8: error: 'kv.ring_update' op active's shape must be [B] of the cache: expected [3], got [1]
func.func @one_active(%cache: !torch.vtensor<[3,2,14,16],f32>, %rows: !torch.vtensor<[3,2,1,16],f32>, %slots: !torch.vtensor<[3],si64>, %active: !torch.vtensor<[1],i1>) -> !torch.vtensor<[3,2,14,16],f32> {
  %0 = "kv.ring_update"(%cache, %rows, %slots, %active) {axis = 2 : i64} : (!torch.vtensor<[3,2,14,16],f32>, !torch.vtensor<[3,2,1,16],f32>, !torch.vtensor<[3],si64>, !torch.vtensor<[1],i1>) -> !torch.vtensor<[3,2,14,16],f32>
  return %0 : !torch.vtensor<[3,2,14,16],f32>
}

// -----

// REFUSED: ring_update.mlir:[[# @LINE + 2]]:8: error: 'kv.ring_update' op takes and gives ranked tensors, got i64
func.func @scalar_slot(%cache: !torch.vtensor<[3,2,14,16],f32>, %rows: !torch.vtensor<[3,2,1,16],f32>, %slots: i64, %active: !torch.vtensor<[3],i1>) -> !torch.vtensor<[3,2,14,16],f32> {
  %0 = "kv.ring_update"(%cache, %rows, %slots, %active) {axis = 2 : i64} : (!torch.vtensor<[3,2,14,16],f32>, !torch.vtensor<[3,2,1,16],f32>, i64, !torch.vtensor<[3],i1>) -> !torch.vtensor<[3,2,14,16],f32>
  return %0 : !torch.vtensor<[3,2,14,16],f32>
}
