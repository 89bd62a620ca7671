// RUN: snapcc-opt %s --pass-pipeline='builtin.module(kv-lower-slots)' | filecheck %s --check-prefix=CALL
// RUN: snapcc-opt %s --pass-pipeline='builtin.module(kv-lower-slots,inline,symbol-dce)' --mlir-print-debuginfo | filecheck %s

// Equal ops share a function.
// CALL-COUNT-4: func.func private @kv_
// CALL-NOT: func.func private
// CALL-LABEL: func.func @slots(
// CALL: call @[[SLOTS:kv_slots_[0-9a-f]+]](%arg0) : (tensor<3xi64>) -> tensor<3xi64>
// CALL-NEXT: call @[[SLOTS]](

// CHECK: #[[LINE:loc[0-9]+]] = loc("decoder.py":7:3)
// CHECK-LABEL: func.func @slots(
// CHECK: arith.constant 2 : index
// CHECK: arith.constant 8 : index
// CHECK: linalg.generic
// CHECK: arith.remui
// CHECK: arith.select
// CHECK: linalg.generic
// CHECK-NOT: kv.
func.func @slots(%positions: tensor<3xi64>) -> tensor<3xi64> {
  %0 = "kv.slots"(%positions) {sink = 2 : i64, ring = 8 : i64} : (tensor<3xi64>) -> tensor<3xi64>
  %1 = "kv.slots"(%0) {sink = 2 : i64, ring = 8 : i64} : (tensor<3xi64>) -> tensor<3xi64>
  return %1 : tensor<3xi64>
}

// CHECK-LABEL: func.func @visible(
// CHECK: linalg.generic
// CHECK: arith.ori
// CHECK-NOT: kv.
// CHECK: return %{{.+}} : tensor<3x14xi1>
func.func @visible(%positions: tensor<3xi64>, %count: tensor<3xi64>) -> tensor<3x14xi1> {
  %0 = "kv.visible"(%positions, %count) {sink = 2 : i64, ring = 8 : i64, selected = 4 : i64} : (tensor<3xi64>, tensor<3xi64>) -> tensor<3x14xi1>
  return %0 : tensor<3x14xi1>
}

// CHECK-LABEL: func.func @visible_extend(
// CHECK: linalg.generic
// CHECK: arith.remsi
// CHECK-NOT: kv.
// CHECK: return %{{.+}} : tensor<1x5x19xi1>
func.func @visible_extend(%start: tensor<i64>, %length: tensor<i64>, %count: tensor<1xi64>) -> tensor<1x5x19xi1> {
  %0 = "kv.visible_extend"(%start, %length, %count) {sink = 2 : i64, ring = 8 : i64, selected = 4 : i64} : (tensor<i64>, tensor<i64>, tensor<1xi64>) -> tensor<1x5x19xi1>
  return %0 : tensor<1x5x19xi1>
}

// The inlined ops stand at the user's line.
// CHECK-LABEL: func.func @count(
// CHECK: linalg.generic
// CHECK-NOT: kv.
// CHECK: loc(callsite(#{{loc[0-9]*}} at #[[LINE]]))
func.func @count(%length: tensor<i64>) -> tensor<1xi64> {
  %0 = "kv.selected_count"(%length) {sink = 2 : i64, ring = 8 : i64, selected = 4 : i64} : (tensor<i64>) -> tensor<1xi64> loc("decoder.py":7:3)
  return %0 : tensor<1xi64>
}
