// RUN: not snapcc-opt %s --split-input-file --pass-pipeline='builtin.module(kv-lower-state)' 2>%t | filecheck %s
// RUN: filecheck %s --check-prefix=REFUSED --input-file %t

// The states come after a function's own arguments and results: selected_count, then by first appearance in the
// program. A state that is only read is an argument without a result.
// CHECK-LABEL: func.func @decode(%arg0: tensor<3xi64>, %arg1: tensor<3xi64>, %arg2: tensor<3x4xf32> {iree.abi.output = 1 : index}, %arg3: tensor<3x5xf32> {iree.abi.output = 2 : index}) -> (tensor<3xi64>, tensor<3x4xf32>, tensor<3x5xf32>) {
// CHECK-NEXT: %[[K:.+]] = math.exp %arg2
// CHECK-NEXT: %[[V:.+]] = math.exp %arg3
// CHECK-NEXT: %[[SUM:.+]] = arith.addi %arg0, %arg1
// CHECK-NEXT: return %[[SUM]], %[[K]], %[[V]]
func.func @decode(%tokens: tensor<3xi64> {kv.name = "tokens", kv.role = "tokens"}) -> (tensor<3xi64> {kv.name = "logits"}) {
  %k = "kv.state_load"() {state = "k"} : () -> tensor<3x4xf32>
  %new_k = math.exp %k : tensor<3x4xf32>
  "kv.state_store"(%new_k) {state = "k"} : (tensor<3x4xf32>) -> ()
  %v = "kv.state_load"() {state = "v"} : () -> tensor<3x5xf32>
  %new_v = math.exp %v : tensor<3x5xf32>
  "kv.state_store"(%new_v) {state = "v"} : (tensor<3x5xf32>) -> ()
  %n = "kv.state_load"() {state = "selected_count"} : () -> tensor<3xi64>
  %0 = arith.addi %tokens, %n : tensor<3xi64>
  return %0 : tensor<3xi64>
}

// The same order, though this function touches v first; a load behind a store sees what was stored.
// CHECK-LABEL: func.func @reset(%arg0: tensor<3x4xf32> {iree.abi.output = 0 : index}, %arg1: tensor<3x5xf32> {iree.abi.output = 1 : index}) -> (tensor<3x4xf32>, tensor<3x5xf32>) {
// CHECK-NEXT: %[[V:.+]] = math.exp %arg1
// CHECK-NEXT: %[[TWICE:.+]] = math.exp %[[V]]
// CHECK-NEXT: %[[K:.+]] = math.exp %arg0
// CHECK-NEXT: return %[[K]], %[[TWICE]]
func.func @reset() {
  %v = "kv.state_load"() {state = "v"} : () -> tensor<3x5xf32>
  %once = math.exp %v : tensor<3x5xf32>
  "kv.state_store"(%once) {state = "v"} : (tensor<3x5xf32>) -> ()
  %stored = "kv.state_load"() {state = "v"} : () -> tensor<3x5xf32>
  %twice = math.exp %stored : tensor<3x5xf32>
  "kv.state_store"(%twice) {state = "v"} : (tensor<3x5xf32>) -> ()
  %k = "kv.state_load"() {state = "k"} : () -> tensor<3x4xf32>
  %new_k = math.exp %k : tensor<3x4xf32>
  "kv.state_store"(%new_k) {state = "k"} : (tensor<3x4xf32>) -> ()
  return
}

// -----

// REFUSED: state.mlir:[[# @LINE + 3]]:8: error: the state k is used as tensor<3x4xbf16> and as tensor<3x4xf32>; give each state one shape and element type in all functions
func.func @two_types() {
  %0 = "kv.state_load"() {state = "k"} : () -> tensor<3x4xf32>
  %1 = "kv.state_load"() {state = "k"} : () -> tensor<3x4xbf16>
  return
}
