// RUN: not snapcc-opt %s --split-input-file 2>%t | filecheck %s
// RUN: filecheck %s --check-prefix=REFUSED --input-file %t

// CHECK-LABEL: func.func @keys(
// CHECK: %{{.+}} = "kv.scatter"(%arg0, %arg1, %arg2, %arg3) : (tensor<6x16xf32>, tensor<6x3xi32>, tensor<6xi1>, tensor<3x2x14x16xf32>) -> tensor<3x2x14x16xf32>
func.func @keys(%updates: tensor<6x16xf32>, %places: tensor<6x3xi32>, %mask: tensor<6xi1>, %cache: tensor<3x2x14x16xf32>) -> tensor<3x2x14x16xf32> {
  %0 = "kv.scatter"(%updates, %places, %mask, %cache) : (tensor<6x16xf32>, tensor<6x3xi32>, tensor<6xi1>, tensor<3x2x14x16xf32>) -> tensor<3x2x14x16xf32>
  return %0 : tensor<3x2x14x16xf32>
}

// -----

// CHECK-LABEL: func.func @single_numbers(
// CHECK: "kv.scatter"
func.func @single_numbers(%updates: tensor<48xf32>, %places: tensor<48x3xi32>, %mask: tensor<48xi1>, %cache: tensor<3x16x14xf32>) -> tensor<3x16x14xf32> {
  %0 = "kv.scatter"(%updates, %places, %mask, %cache) : (tensor<48xf32>, tensor<48x3xi32>, tensor<48xi1>, tensor<3x16x14xf32>) -> tensor<3x16x14xf32>
  return %0 : tensor<3x16x14xf32>
}

// -----

// REFUSED: scatter.mlir:[[# @LINE + 2]]:8: error: 'kv.scatter' op updates' shape must be U rows of the target: expected [6, 16], got [6, 8]
func.func @other_rows(%updates: tensor<6x8xf32>, %places: tensor<6x3xi32>, %mask: tensor<6xi1>, %cache: tensor<3x2x14x16xf32>) -> tensor<3x2x14x16xf32> {
  %0 = "kv.scatter"(%updates, %places, %mask, %cache) : (tensor<6x8xf32>, tensor<6x3xi32>, tensor<6xi1>, tensor<3x2x14x16xf32>) -> tensor<3x2x14x16xf32>
  return %0 : tensor<3x2x14x16xf32>
}

// -----

// REFUSED: scatter.mlir:[[# @LINE + 2]]:8: error: 'kv.scatter' op places' shape must be [U, P] with P in [1, 4], got [6, 5]
func.func @too_many_axes(%updates: tensor<6xf32>, %places: tensor<6x5xi32>, %mask: tensor<6xi1>, %cache: tensor<3x2x14x16xf32>) -> tensor<3x2x14x16xf32> {
  %0 = "kv.scatter"(%updates, %places, %mask, %cache) : (tensor<6xf32>, tensor<6x5xi32>, tensor<6xi1>, tensor<3x2x14x16xf32>) -> tensor<3x2x14x16xf32>
  return %0 : tensor<3x2x14x16xf32>
}

// -----

// REFUSED: scatter.mlir:[[# @LINE + 2]]:8: error: 'kv.scatter' op places' element type must be i32: expected i32, got i64
func.func @wide_places(%updates: tensor<6x16xf32>, %places: tensor<6x3xi64>, %mask: tensor<6xi1>, %cache: tensor<3x2x14x16xf32>) -> tensor<3x2x14x16xf32> {
  %0 = "kv.scatter"(%updates, %places, %mask, %cache) : (tensor<6x16xf32>, tensor<6x3xi64>, tensor<6xi1>, tensor<3x2x14x16xf32>) -> tensor<3x2x14x16xf32>
  return %0 : tensor<3x2x14x16xf32>
}

// -----

// REFUSED: scatter.mlir:[[# @LINE + 2]]:8: error: 'kv.scatter' op mask's shape must be [U] of places: expected [6], got [3]
func.func @mask_of_rows(%updates: tensor<6x16xf32>, %places: tensor<6x3xi32>, %mask: tensor<3xi1>, %cache: tensor<3x2x14x16xf32>) -> tensor<3x2x14x16xf32> {
  %0 = "kv.scatter"(%updates, %places, %mask, %cache) : (tensor<6x16xf32>, tensor<6x3xi32>, tensor<3xi1>, tensor<3x2x14x16xf32>) -> tensor<3x2x14x16xf32>
  return %0 : tensor<3x2x14x16xf32>
}

// -----

// REFUSED: scatter.mlir:[[# @LINE + 2]]:8: error: 'kv.scatter' op mask's element type must be i1: expected i1, got i8
func.func @byte_mask(%updates: tensor<6x16xf32>, %places: tensor<6x3xi32>, %mask: tensor<6xi8>, %cache: tensor<3x2x14x16xf32>) -> tensor<3x2x14x16xf32> {
  %0 = "kv.scatter"(%updates, %places, %mask, %cache) : (tensor<6x16xf32>, tensor<6x3xi32>, tensor<6xi8>, tensor<3x2x14x16xf32>) -> tensor<3x2x14x16xf32>
  return %0 : tensor<3x2x14x16xf32>
}

// -----

// REFUSED: scatter.mlir:[[# @LINE + 2]]:8: error: 'kv.scatter' op the result's type must be the target's: expected tensor<3x2x14x16xf32>, got tensor<3x2x14x16xbf16>
func.func @other_type(%updates: tensor<6x16xf32>, %places: tensor<6x3xi32>, %mask: tensor<6xi1>, %cache: tensor<3x2x14x16xf32>) -> tensor<3x2x14x16xbf16> {
  %0 = "kv.scatter"(%updates, %places, %mask, %cache) : (tensor<6x16xf32>, tensor<6x3xi32>, tensor<6xi1>, tensor<3x2x14x16xf32>) -> tensor<3x2x14x16xbf16>
  return %0 : tensor<3x2x14x16xbf16>
}
