// RUN: not snapcc-opt %s --split-input-file 2>%t | filecheck %s
// RUN: filecheck %s --check-prefix=REFUSED --input-file %t

// CHECK-LABEL: func.func @named(
// CHECK: %{{.+}} = "kv.parameter"() {parameter = "model.norm.weight"} : () -> !torch.vtensor<[64],f32>
func.func @named() -> !torch.vtensor<[64],f32> {
  %0 = "kv.parameter"() {parameter = "model.norm.weight"} : () -> !torch.vtensor<[64],f32>
  return %0 : !torch.vtensor<[64],f32>
}

// -----

// CHECK-LABEL: func.func @named_builtin(
// CHECK: %{{.+}} = "kv.parameter"() {parameter = "model.norm.weight"} : () -> tensor<64xbf16>
func.func @named_builtin() -> tensor<64xbf16> {
  %0 = "kv.parameter"() {parameter = "model.norm.weight"} : () -> tensor<64xbf16>
  return %0 : tensor<64xbf16>
}

// -----

// REFUSED: parameter.mlir:[[# @LINE + 2]]:8: error: 'kv.parameter' op parameter must name a weight, got ""
func.func @unnamed() -> !torch.vtensor<[64],f32> {
  %0 = "kv.parameter"() {parameter = ""} : () -> !torch.vtensor<[64],f32>
  return %0 : !torch.vtensor<[64],f32>
}

// -----

// REFUSED: parameter.mlir:[[# @LINE + 2]]:8: error: 'kv.parameter' op takes and gives ranked tensors, got f32
func.func @not_a_tensor() -> f32 {
  %0 = "kv.parameter"() {parameter = "a"} : () -> f32
  return %0 : f32
}

// -----

// REFUSED: parameter.mlir:[[# @LINE + 2]]:8: error: 'kv.parameter' op takes and gives ranked tensors, got tensor<*xf32>
func.func @unranked() -> tensor<*xf32> {
  %0 = "kv.parameter"() {parameter = "a"} : () -> tensor<*xf32>
  return %0 : tensor<*xf32>
}
