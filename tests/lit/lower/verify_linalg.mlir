// RUN: not snapcc-opt %s --split-input-file --pass-pipeline='builtin.module(kv-verify-linalg)' 2>%t | filecheck %s
// RUN: filecheck %s --check-prefix=REFUSED --input-file %t

// CHECK-LABEL: func.func @linalg_phase(
func.func @linalg_phase() -> tensor<4xf32> {
  %0 = "kv.parameter"() {parameter = "w"} : () -> tensor<4xf32>
  %1 = math.exp %0 : tensor<4xf32>
  "kv.state_store"(%1) {state = "k"} : (tensor<4xf32>) -> ()
  return %1 : tensor<4xf32>
}

// -----

// The location is the model's, not the file's.
// REFUSED: decoder.py:12:7: error: 'torch.aten.sin' is left after the lowering to linalg; write this part of the model with other operations, or have the lowering extended
func.func @torch(%x: !torch.vtensor<[4],f32>) -> !torch.vtensor<[4],f32> {
  %0 = torch.aten.sin %x : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32> loc("decoder.py":12:7)
  return %0 : !torch.vtensor<[4],f32>
}

// -----

// REFUSED: verify_linalg.mlir:[[# @LINE + 2]]:8: error: 'kv.slots' is left after the lowering to linalg
func.func @kv(%positions: tensor<3xi64>) -> tensor<3xi64> {
  %0 = "kv.slots"(%positions) {sink = 2 : i64, ring = 8 : i64} : (tensor<3xi64>) -> tensor<3xi64>
  return %0 : tensor<3xi64>
}
