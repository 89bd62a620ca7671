// RUN: snapcc-opt %s --split-input-file --pass-pipeline='builtin.module(kv-lower-concat-update,inline,symbol-dce,cse)' | filecheck %s

// CHECK-LABEL: func.func @heads_first(
// CHECK: %[[APPENDED:.+]] = "kv.ring_update"(%arg0, %arg1, %arg2, %arg3) {axis = 2 : i64}
// CHECK: %[[SINKS:.+]] = tensor.extract_slice %arg0[0, 0, 0, 0] [3, 2, 2, 16]
// CHECK: tensor.insert_slice %[[SINKS]] into %{{.+}}[0, 0, 0, 0] [3, 2, 2, 16]
// CHECK: %[[RECENT:.+]] = tensor.extract_slice %arg0[0, 0, 3, 0] [3, 2, 7, 16]
// CHECK: tensor.insert_slice %[[RECENT]] into %{{.+}}[0, 0, 2, 0] [3, 2, 7, 16]
// CHECK: %[[SELECTED:.+]] = tensor.extract_slice %arg0[0, 0, 10, 0] [3, 2, 4, 16]
// CHECK: tensor.insert_slice %[[SELECTED]] into %{{.+}}[0, 0, 10, 0] [3, 2, 4, 16]
// CHECK: %[[JOINED:.+]] = tensor.insert_slice %arg1 into %{{.+}}[0, 0, 9, 0] [3, 2, 1, 16]
// CHECK: linalg.generic {{.+}} ins(%arg2, %arg3, %[[APPENDED]], %[[JOINED]] :
// CHECK-NOT: kv.concat_update
func.func @heads_first(%cache: tensor<3x2x14x16xf32>, %rows: tensor<3x2x1x16xf32>, %positions: tensor<3xi64>, %active: tensor<3xi1>) -> tensor<3x2x14x16xf32> {
  %0 = "kv.concat_update"(%cache, %rows, %positions, %active) {axis = 2 : i64, ring = 8 : i64, sink = 2 : i64} : (tensor<3x2x14x16xf32>, tensor<3x2x1x16xf32>, tensor<3xi64>, tensor<3xi1>) -> tensor<3x2x14x16xf32>
  return %0 : tensor<3x2x14x16xf32>
}

// -----

// Nothing is sliced where there is nothing: no sinks, no selected tokens.
// CHECK-LABEL: func.func @window(
// CHECK-COUNT-1: tensor.extract_slice %arg0[0, 1, 0] [3, 7, 4]
// CHECK-NOT: tensor.extract_slice
func.func @window(%cache: tensor<3x8x4xbf16>, %rows: tensor<3x1x4xbf16>, %positions: tensor<3xi64>, %active: tensor<3xi1>) -> tensor<3x8x4xbf16> {
  %0 = "kv.concat_update"(%cache, %rows, %positions, %active) {axis = 1 : i64, ring = 8 : i64, sink = 0 : i64} : (tensor<3x8x4xbf16>, tensor<3x1x4xbf16>, tensor<3xi64>, tensor<3xi1>) -> tensor<3x8x4xbf16>
  return %0 : tensor<3x8x4xbf16>
}
