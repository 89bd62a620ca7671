// RUN: not snapcc-opt %s --split-input-file 2>%t | filecheck %s
// RUN: filecheck %s --check-prefix=REFUSED --input-file %t

// CHECK-LABEL: func.func @slopes(
// CHECK: "kv.linear_bias"(%arg0) : (!torch.vtensor<[2,2],f32>) -> !torch.vtensor<[3,2,2,14],f32>
func.func @slopes(%slopes: !torch.vtensor<[2,2],f32>) -> !torch.vtensor<[3,2,2,14],f32> {
  %0 = "kv.linear_bias"(%slopes) : (!torch.vtensor<[2,2],f32>) -> !torch.vtensor<[3,2,2,14],f32>
  return %0 : !torch.vtensor<[3,2,2,14],f32>
}

// -----

// REFUSED: linear_bias.mlir:[[# @LINE + 2]]:8: error: 'kv.linear_bias' op the result's shape must be [.., H, G, ..] of slopes: expected [2, 2], got [4, 1]
func.func @heads(%slopes: !torch.vtensor<[2,2],f32>) -> !torch.vtensor<[3,4,1,14],f32> {
  %0 = "kv.linear_bias"(%slopes) : (!torch.vtensor<[2,2],f32>) -> !torch.vtensor<[3,4,1,14],f32>
  return %0 : !torch.vtensor<[3,4,1,14],f32>
}
