// What an op lacks of its declaration: tests/compiler/test_declared.py goes through every op.
// RUN: not snapcc-opt %s --split-input-file 2>&1 | filecheck %s

// CHECK: declared.mlir:[[# @LINE + 2]]:8: error: 'kv.append' op needs the attribute axis, an integer
func.func @missing(%cache: tensor<3x13x8xf32>, %rows: tensor<3x1x8xf32>) -> tensor<3x14x8xf32> {
  %0 = "kv.append"(%cache, %rows) : (tensor<3x13x8xf32>, tensor<3x1x8xf32>) -> tensor<3x14x8xf32>
  return %0 : tensor<3x14x8xf32>
}

// -----

// CHECK: declared.mlir:[[# @LINE + 2]]:8: error: 'kv.append' op axis must be an integer, got "one"
func.func @of_another_kind(%cache: tensor<3x13x8xf32>, %rows: tensor<3x1x8xf32>) -> tensor<3x14x8xf32> {
  %0 = "kv.append"(%cache, %rows) {axis = "one"} : (tensor<3x13x8xf32>, tensor<3x1x8xf32>) -> tensor<3x14x8xf32>
  return %0 : tensor<3x14x8xf32>
}

// -----

// CHECK: declared.mlir:[[# @LINE + 2]]:8: error: 'kv.append' op has 1 operands, expected 2
func.func @few_operands(%cache: tensor<3x13x8xf32>) -> tensor<3x14x8xf32> {
  %0 = "kv.append"(%cache) {axis = 1 : i64} : (tensor<3x13x8xf32>) -> tensor<3x14x8xf32>
  return %0 : tensor<3x14x8xf32>
}

// -----

// CHECK: declared.mlir:[[# @LINE + 2]]:3: error: 'kv.append' op has 0 results, expected 1
func.func @no_result(%cache: tensor<3x13x8xf32>, %rows: tensor<3x1x8xf32>) {
  "kv.append"(%cache, %rows) {axis = 1 : i64} : (tensor<3x13x8xf32>, tensor<3x1x8xf32>) -> ()
  return
}
