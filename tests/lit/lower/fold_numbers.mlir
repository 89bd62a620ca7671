// RUN: snapcc-opt %s --pass-pipeline='builtin.module(kv-fold-numbers)' | filecheck %s

// CHECK-LABEL: func.func @computed(
// CHECK: %[[NUMBER:.+]] = torch.vtensor.literal(dense<1.16308713> : tensor<f32>) : !torch.vtensor<[],f32>
// CHECK-NOT: erfinv
// CHECK: torch.aten.mul.Tensor %arg0, %[[NUMBER]]
func.func @computed(%x: !torch.vtensor<[4],f32>) -> !torch.vtensor<[4],f32> {
  %half = torch.vtensor.literal(dense<4.5e-01> : tensor<f32>) : !torch.vtensor<[],f32>
  %int2 = torch.constant.int 2
  %0 = torch.aten.mul.Scalar %half, %int2 : !torch.vtensor<[],f32>, !torch.int -> !torch.vtensor<[],f32>
  %1 = torch.aten.erfinv %0 : !torch.vtensor<[],f32> -> !torch.vtensor<[],f32>
  %2 = torch.aten.mul.Tensor %x, %1 : !torch.vtensor<[4],f32>, !torch.vtensor<[],f32> -> !torch.vtensor<[4],f32>
  return %2 : !torch.vtensor<[4],f32>
}

// What depends on an input, has more elements or is no number of f32 stays.

// CHECK-LABEL: func.func @kept(
// CHECK: torch.aten.erfinv %arg0
// CHECK: torch.aten.zeros
// CHECK: torch.aten.add.Scalar
func.func @kept(%x: !torch.vtensor<[],f32>) -> (!torch.vtensor<[],f32>, !torch.vtensor<[2],f32>, !torch.vtensor<[],si64>) {
  %none = torch.constant.none
  %int1 = torch.constant.int 1
  %int2 = torch.constant.int 2
  %int6 = torch.constant.int 6
  %one = torch.vtensor.literal(dense<1> : tensor<si64>) : !torch.vtensor<[],si64>
  %shape = torch.prim.ListConstruct %int2 : (!torch.int) -> !torch.list<int>
  %0 = torch.aten.erfinv %x : !torch.vtensor<[],f32> -> !torch.vtensor<[],f32>
  %1 = torch.aten.zeros %shape, %int6, %none, %none, %none : !torch.list<int>, !torch.int, !torch.none, !torch.none, !torch.none -> !torch.vtensor<[2],f32>
  %2 = torch.aten.add.Scalar %one, %int1, %int1 : !torch.vtensor<[],si64>, !torch.int, !torch.int -> !torch.vtensor<[],si64>
  return %0, %1, %2 : !torch.vtensor<[],f32>, !torch.vtensor<[2],f32>, !torch.vtensor<[],si64>
}
