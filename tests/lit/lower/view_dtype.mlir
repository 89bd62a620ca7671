// RUN: not snapcc-opt %s --split-input-file --pass-pipeline='builtin.module(kv-lower-view-dtype)' 2>%t | filecheck %s
// RUN: filecheck %s --check-prefix=REFUSED --input-file %t

// CHECK-LABEL: func.func @same_width(
// CHECK: %[[FLOAT:.+]] = torch_c.to_builtin_tensor %arg0 : !torch.vtensor<[4],f32> -> tensor<4xf32>
// CHECK: %[[BITS:.+]] = arith.bitcast %[[FLOAT]] : tensor<4xf32> to tensor<4xi32>
// CHECK: torch_c.from_builtin_tensor %[[BITS]] : tensor<4xi32> -> !torch.vtensor<[4],si32>
// CHECK-NOT: aten.view.dtype
func.func @same_width(%x: !torch.vtensor<[4],f32>) -> !torch.vtensor<[4],si32> {
  %int3 = torch.constant.int 3
  %0 = torch.aten.view.dtype %x, %int3 : !torch.vtensor<[4],f32>, !torch.int -> !torch.vtensor<[4],si32>
  return %0 : !torch.vtensor<[4],si32>
}

// -----

// REFUSED: view_dtype.mlir:[[# @LINE + 3]]:8: error: reads the bits of f32 as si16, of another width; view a tensor only as a type of the same width
func.func @other_width(%x: !torch.vtensor<[4],f32>) -> !torch.vtensor<[8],si16> {
  %int2 = torch.constant.int 2
  %0 = torch.aten.view.dtype %x, %int2 : !torch.vtensor<[4],f32>, !torch.int -> !torch.vtensor<[8],si16>
  return %0 : !torch.vtensor<[8],si16>
}
