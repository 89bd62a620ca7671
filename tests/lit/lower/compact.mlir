// RUN: snapcc-opt %s --split-input-file --pass-pipeline='builtin.module(kv-lower-compact,inline,symbol-dce,cse)' | filecheck %s

// Two caches under one selection: one computation of the sources, two gathers.
// CHECK-LABEL: func.func @heads_first(
// CHECK: %[[SOURCES:.+]] = linalg.generic
// CHECK: } -> tensor<2x14xi64>
// CHECK: linalg.generic
// CHECK-SAME: ins(%[[SOURCES]] : tensor<2x14xi64>) outs(%{{.+}} : tensor<1x2x14x16xf32>)
// CHECK: tensor.extract %arg0[
// CHECK: arith.select
// CHECK-NOT: -> tensor<2x14xi64>
// CHECK: linalg.generic
// CHECK-SAME: ins(%[[SOURCES]] : tensor<2x14xi64>) outs(%{{.+}} : tensor<1x2x14x16xf32>)
// CHECK: tensor.extract %arg1[
// CHECK-NOT: kv.
func.func @heads_first(%k: tensor<1x2x40x16xf32>, %v: tensor<1x2x40x16xf32>, %length: tensor<i64>, %positions: tensor<2x4xi64>) -> (tensor<1x2x14x16xf32>, tensor<1x2x14x16xf32>) {
  %0 = "kv.compact"(%k, %length, %positions) {axis = 2 : i64, head_axis = 1 : i64, order = "ring", ring = 8 : i64, sink = 2 : i64} : (tensor<1x2x40x16xf32>, tensor<i64>, tensor<2x4xi64>) -> tensor<1x2x14x16xf32>
  %1 = "kv.compact"(%v, %length, %positions) {axis = 2 : i64, head_axis = 1 : i64, order = "ring", ring = 8 : i64, sink = 2 : i64} : (tensor<1x2x40x16xf32>, tensor<i64>, tensor<2x4xi64>) -> tensor<1x2x14x16xf32>
  return %0, %1 : tensor<1x2x14x16xf32>, tensor<1x2x14x16xf32>
}

// -----

// CHECK: #[[SOURCE:.+]] = affine_map<(d0, d1, d2, d3) -> (d2, d1)>
// CHECK-LABEL: func.func @tokens_first(
// CHECK: indexing_maps = [#[[SOURCE]],
// CHECK-SAME: outs(%{{.+}} : tensor<1x14x2x16xbf16>)
func.func @tokens_first(%k: tensor<1x40x2x16xbf16>, %length: tensor<i64>, %positions: tensor<2x4xi64>) -> tensor<1x14x2x16xbf16> {
  %0 = "kv.compact"(%k, %length, %positions) {axis = 1 : i64, head_axis = 2 : i64, order = "ring", ring = 8 : i64, sink = 2 : i64} : (tensor<1x40x2x16xbf16>, tensor<i64>, tensor<2x4xi64>) -> tensor<1x14x2x16xbf16>
  return %0 : tensor<1x14x2x16xbf16>
}

// -----

// CHECK: #[[SOURCE:.+]] = affine_map<(d0, d1, d2) -> (0, d1)>
// CHECK-LABEL: func.func @no_heads(
// CHECK: indexing_maps = [#[[SOURCE]],
// CHECK-SAME: outs(%{{.+}} : tensor<1x14x16xf32>)
func.func @no_heads(%k: tensor<1x40x16xf32>, %length: tensor<i64>, %positions: tensor<1x4xi64>) -> tensor<1x14x16xf32> {
  %0 = "kv.compact"(%k, %length, %positions) {axis = 1 : i64, head_axis = -1 : i64, order = "ring", ring = 8 : i64, sink = 2 : i64} : (tensor<1x40x16xf32>, tensor<i64>, tensor<1x4xi64>) -> tensor<1x14x16xf32>
  return %0 : tensor<1x14x16xf32>
}

// -----

// CHECK-LABEL: func.func @nothing_selected(
// CHECK: } -> tensor<10xi64>
// CHECK: outs(%{{.+}} : tensor<1x2x10x16xf32>)
func.func @nothing_selected(%k: tensor<1x2x40x16xf32>, %length: tensor<i64>) -> tensor<1x2x10x16xf32> {
  %0 = "kv.compact"(%k, %length) {axis = 2 : i64, head_axis = 1 : i64, order = "ring", ring = 8 : i64, sink = 2 : i64} : (tensor<1x2x40x16xf32>, tensor<i64>) -> tensor<1x2x10x16xf32>
  return %0 : tensor<1x2x10x16xf32>
}

// -----

// In the order of time a slot's position moves by what was evicted, without a remainder.
// CHECK-LABEL: func.func @in_time(
// CHECK-NOT: arith.remui
// CHECK: arith.addi %{{.+}}, %{{.+}} : index
// CHECK: tensor.extract %arg0
func.func @in_time(%k: tensor<1x2x40x16xf32>, %length: tensor<i64>) -> tensor<1x2x10x16xf32> {
  %0 = "kv.compact"(%k, %length) {axis = 2 : i64, head_axis = 1 : i64, order = "time", ring = 8 : i64, sink = 2 : i64} : (tensor<1x2x40x16xf32>, tensor<i64>) -> tensor<1x2x10x16xf32>
  return %0 : tensor<1x2x10x16xf32>
}
