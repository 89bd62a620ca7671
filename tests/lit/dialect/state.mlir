// RUN: not snapcc-opt %s --split-input-file 2>%t | filecheck %s
// RUN: filecheck %s --check-prefix=REFUSED --input-file %t

// CHECK-LABEL: func.func @load(
// CHECK: %{{.+}} = "kv.state_load"() {state = "layers.0.keys"} : () -> !torch.vtensor<[3,2,14,16],f32>
func.func @load() -> !torch.vtensor<[3,2,14,16],f32> {
  %0 = "kv.state_load"() {state = "layers.0.keys"} : () -> !torch.vtensor<[3,2,14,16],f32>
  return %0 : !torch.vtensor<[3,2,14,16],f32>
}

// -----

// CHECK-LABEL: func.func @load_builtin(
// CHECK: %{{.+}} = "kv.state_load"() {state = "layers.0.keys"} : () -> tensor<3xi64>
func.func @load_builtin() -> tensor<3xi64> {
  %0 = "kv.state_load"() {state = "layers.0.keys"} : () -> tensor<3xi64>
  return %0 : tensor<3xi64>
}

// -----

// CHECK-LABEL: func.func @store(
// CHECK: "kv.state_store"(%arg0) {state = "layers.0.keys"} : (!torch.vtensor<[3,2,14,16],f32>) -> ()
func.func @store(%value: !torch.vtensor<[3,2,14,16],f32>) {
  "kv.state_store"(%value) {state = "layers.0.keys"} : (!torch.vtensor<[3,2,14,16],f32>) -> ()
  return
}

// -----

// CHECK-LABEL: func.func @store_builtin(
// CHECK: "kv.state_store"(%arg0) {state = "layers.0.keys"} : (tensor<3xi64>) -> ()
func.func @store_builtin(%value: tensor<3xi64>) {
  "kv.state_store"(%value) {state = "layers.0.keys"} : (tensor<3xi64>) -> ()
  return
}

// -----

// REFUSED: state.mlir:[[# @LINE + 2]]:8: error: 'kv.state_load' op takes and gives ranked tensors, got i64
func.func @load_scalar() -> i64 {
  %0 = "kv.state_load"() {state = "layers.0.keys"} : () -> i64
  return %0 : i64
}

// -----

// REFUSED: state.mlir:[[# @LINE + 2]]:3: error: 'kv.state_store' op takes and gives ranked tensors, got i64
func.func @store_scalar(%value: i64) {
  "kv.state_store"(%value) {state = "layers.0.keys"} : (i64) -> ()
  return
}
