// RUN: not snapcc-opt %s --split-input-file --pass-pipeline='builtin.module(kv-lower-parameters)' 2>%t | filecheck %s
// RUN: filecheck %s --check-prefix=REFUSED --input-file %t

// One global for a weight, whatever number of functions load it.
// CHECK: "util.global"() {initial_value = #flow.parameter.named<"model"::"embed.weight"> : tensor<8x4xf32>, sym_name = "parameter.embed.weight", sym_visibility = "private", type = tensor<8x4xf32>} : () -> ()
// CHECK-NOT: "util.global"()
// CHECK-LABEL: func.func @decode(
// CHECK-NEXT: "util.global.load"() {global = @parameter.embed.weight} : () -> tensor<8x4xf32>
// CHECK-LABEL: func.func @prefill_16(
// CHECK-NEXT: "util.global.load"() {global = @parameter.embed.weight} : () -> tensor<8x4xf32>
func.func @decode() -> tensor<8x4xf32> {
  %0 = "kv.parameter"() {parameter = "embed.weight"} : () -> tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}
func.func @prefill_16() -> tensor<8x4xf32> {
  %0 = "kv.parameter"() {parameter = "embed.weight"} : () -> tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}

// -----

// REFUSED: parameters.mlir:[[# @LINE + 3]]:8: error: the weight w is wanted as tensor<8xbf16> and as tensor<8xf32>; give each weight one type, and convert it after it is loaded
func.func @two_types() -> (tensor<8xf32>, tensor<8xbf16>) {
  %0 = "kv.parameter"() {parameter = "w"} : () -> tensor<8xf32>
  %1 = "kv.parameter"() {parameter = "w"} : () -> tensor<8xbf16>
  return %0, %1 : tensor<8xf32>, tensor<8xbf16>
}
