// RUN: snapcc-opt %s --split-input-file --pass-pipeline='builtin.module(kv-lower-topk-mask,inline,symbol-dce,cse)' | filecheck %s

// A score and the index of its key are one number of 32 + 4 bits, found 4 at a time; nothing is sorted.
// CHECK-LABEL: func.func @causal(
// CHECK: arith.xori
// CHECK: arith.ori
// CHECK: arith.cmpi sle
// CHECK-COUNT-9: linalg.generic {{.*}}"reduction"{{.*}} ins(%{{.+}}, %{{.+}} : tensor<1x16x16xi64>, tensor<1x16xi64>)
// CHECK: arith.cmpi ne
// CHECK-NOT: kv.
// CHECK: return %{{.+}} : tensor<1x16x16xi1>
func.func @causal(%s: tensor<1x16x16xf32>) -> tensor<1x16x16xi1> {
  %0 = "kv.topk_mask"(%s) {causal = true, count = 8 : i64, operandSegmentSizes = array<i32: 1, 0, 0>} : (tensor<1x16x16xf32>) -> tensor<1x16x16xi1>
  return %0 : tensor<1x16x16xi1>
}

// -----

// Behind a score stands the position of what is in the slot.
// CHECK-LABEL: func.func @slots(
// CHECK: linalg.generic {{.*}} ins(%arg0, %arg1, %arg2 : tensor<2x1x16xf32>, tensor<2x16xi1>, tensor<2x16xi64>)
// CHECK: arith.minsi
// CHECK: return %{{.+}} : tensor<2x1x16xi1>
func.func @slots(%s: tensor<2x1x16xf32>, %v: tensor<2x16xi1>, %p: tensor<2x16xi64>) -> tensor<2x1x16xi1> {
  %0 = "kv.topk_mask"(%s, %v, %p) {causal = false, count = 8 : i64, operandSegmentSizes = array<i32: 1, 1, 1>} : (tensor<2x1x16xf32>, tensor<2x16xi1>, tensor<2x16xi64>) -> tensor<2x1x16xi1>
  return %0 : tensor<2x1x16xi1>
}

// -----

// All that is seen is chosen: there is no threshold to find.
// CHECK-LABEL: func.func @all(
// CHECK-NOT: "reduction"
// CHECK: return %{{.+}} : tensor<2x1x16xi1>
func.func @all(%s: tensor<2x1x16xf32>, %v: tensor<2x16xi1>) -> tensor<2x1x16xi1> {
  %0 = "kv.topk_mask"(%s, %v) {causal = false, count = 16 : i64, operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<2x1x16xf32>, tensor<2x16xi1>) -> tensor<2x1x16xi1>
  return %0 : tensor<2x1x16xi1>
}
