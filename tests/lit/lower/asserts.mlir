// RUN: snapcc-opt %s --pass-pipeline='builtin.module(kv-lower-asserts,canonicalize)' | filecheck %s

// CHECK-LABEL: func.func @gather(
// CHECK: linalg.generic
// CHECK-NOT: cf.assert
// CHECK-NOT: arith.cmpi
// CHECK: tensor.extract %arg0
func.func @gather(%table: tensor<8xf32>, %tokens: tensor<3xi64>) -> tensor<3xf32> {
  %c8 = arith.constant 8 : index
  %empty = tensor.empty() : tensor<3xf32>
  %0 = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} ins(%tokens : tensor<3xi64>) outs(%empty : tensor<3xf32>) {
  ^bb0(%token: i64, %out: f32):
    %i = arith.index_cast %token : i64 to index
    %ok = arith.cmpi slt, %i, %c8 : index
    cf.assert %ok, "index must be smaller than dim size"
    %x = tensor.extract %table[%i] : tensor<8xf32>
    linalg.yield %x : f32
  } -> tensor<3xf32>
  return %0 : tensor<3xf32>
}
