// RUN: snapcc-opt %s --pass-pipeline='builtin.module(kv-to-builtin)' | filecheck %s
// RUN: snapcc-opt %s --pass-pipeline='builtin.module(kv-to-builtin,torch-func-backend-type-conversion,func.func(torch-finalizing-backend-type-conversion))' | filecheck %s --check-prefix=FINAL

// CHECK-LABEL: func.func @parameter(
// CHECK-NEXT: %[[BUILTIN:.+]] = "kv.parameter"() {parameter = "w"} : () -> tensor<4xbf16>
// CHECK-NEXT: %[[TORCH:.+]] = torch_c.from_builtin_tensor %[[BUILTIN]] : tensor<4xbf16> -> !torch.vtensor<[4],bf16>
// CHECK-NEXT: return %[[TORCH]] : !torch.vtensor<[4],bf16>
// FINAL-LABEL: func.func @parameter() -> tensor<4xbf16> {
// FINAL-NEXT: %[[VALUE:.+]] = "kv.parameter"() {parameter = "w"} : () -> tensor<4xbf16>
// FINAL-NEXT: return %[[VALUE]] : tensor<4xbf16>
func.func @parameter() -> !torch.vtensor<[4],bf16> {
  %0 = "kv.parameter"() {parameter = "w"} : () -> !torch.vtensor<[4],bf16>
  return %0 : !torch.vtensor<[4],bf16>
}

// CHECK-LABEL: func.func @state(
// CHECK: %[[ROW:.+]] = torch_c.to_builtin_tensor %arg1 : !torch.vtensor<[],si64> -> tensor<i64>
// CHECK: "kv.write_row"(%{{.+}}, %{{.+}}, %[[ROW]]) : (tensor<3xi64>, tensor<1xi64>, tensor<i64>) -> tensor<3xi64>
// CHECK: "kv.state_store"(%{{.+}}) {state = "selected_count"} : (tensor<3xi64>) -> ()
// FINAL-LABEL: func.func @state(%arg0: tensor<1xi64>, %arg1: tensor<i64>) {
// FINAL-NEXT: %[[OLD:.+]] = "kv.state_load"() {state = "selected_count"} : () -> tensor<3xi64>
// FINAL-NEXT: %[[NEW:.+]] = "kv.write_row"(%[[OLD]], %arg0, %arg1)
// FINAL-NEXT: "kv.state_store"(%[[NEW]]) {state = "selected_count"}
func.func @state(%value: !torch.vtensor<[1],si64>, %row: !torch.vtensor<[],si64>) {
  %0 = "kv.state_load"() {state = "selected_count"} : () -> !torch.vtensor<[3],si64>
  %1 = "kv.write_row"(%0, %value, %row) : (!torch.vtensor<[3],si64>, !torch.vtensor<[1],si64>, !torch.vtensor<[],si64>) -> !torch.vtensor<[3],si64>
  "kv.state_store"(%1) {state = "selected_count"} : (!torch.vtensor<[3],si64>) -> ()
  return
}

// The optional operand is there in one attention and not in the other.
// FINAL-LABEL: func.func @attention(
// FINAL-NEXT: %[[SEEN:.+]] = "kv.attention"(%arg0, %arg1, %arg1, %arg2) {causal = 0 : i64, {{.*}}scale = 2.500000e-01 : f64, softcap = 0.000000e+00 : f64} : (tensor<1x2x2x5x4xf32>, tensor<1x2x5x4xf32>, tensor<1x2x5x4xf32>, tensor<1x5xi1>) -> tensor<1x2x2x5x4xf32>
// FINAL-NEXT: "kv.attention"(%[[SEEN]], %arg1, %arg1) {causal = 1 : i64
func.func @attention(%q: !torch.vtensor<[1,2,2,5,4],f32>, %k: !torch.vtensor<[1,2,5,4],f32>, %visible: !torch.vtensor<[1,5],i1>) -> !torch.vtensor<[1,2,2,5,4],f32> {
  %0 = "kv.attention"(%q, %k, %k, %visible) {causal = 0 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0>, scale = 0.25 : f64, softcap = 0.0 : f64} : (!torch.vtensor<[1,2,2,5,4],f32>, !torch.vtensor<[1,2,5,4],f32>, !torch.vtensor<[1,2,5,4],f32>, !torch.vtensor<[1,5],i1>) -> !torch.vtensor<[1,2,2,5,4],f32>
  %1 = "kv.attention"(%0, %k, %k) {causal = 1 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, scale = 0.25 : f64, softcap = 0.0 : f64} : (!torch.vtensor<[1,2,2,5,4],f32>, !torch.vtensor<[1,2,5,4],f32>, !torch.vtensor<[1,2,5,4],f32>) -> !torch.vtensor<[1,2,2,5,4],f32>
  return %1 : !torch.vtensor<[1,2,2,5,4],f32>
}

// What stands on builtin tensors already stays as it is.
// CHECK-LABEL: func.func @builtin(
// CHECK-NEXT: %[[SLOTS:.+]] = "kv.slots"(%arg0) {ring = 8 : i64, sink = 2 : i64} : (tensor<3xi64>) -> tensor<3xi64>
// CHECK-NEXT: return %[[SLOTS]]
func.func @builtin(%positions: tensor<3xi64>) -> tensor<3xi64> {
  %0 = "kv.slots"(%positions) {sink = 2 : i64, ring = 8 : i64} : (tensor<3xi64>) -> tensor<3xi64>
  return %0 : tensor<3xi64>
}
