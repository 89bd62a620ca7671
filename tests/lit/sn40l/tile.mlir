// RUN: snapcc-opt %s --pass-pipeline='builtin.module(sn40l-tile{machine=small-dataflow})' | filecheck %s

// A product whose weight does not fit twice in a unit of 128 KiB is cut, and each tile's sum starts anew.
// CHECK-LABEL: func.func @decode
func.func @decode(%x: tensor<2x512xf32>) -> tensor<2x512xf32> {
  %w = "kv.parameter"() {parameter = "w"} : () -> tensor<512x512xf32>
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<2x512xf32>
  %zeros = linalg.fill ins(%zero : f32) outs(%empty : tensor<2x512xf32>) -> tensor<2x512xf32>
  // CHECK: scf.for %{{.*}} = %c0 to %c512 step %c32 iter_args({{.*}}) -> (tensor<2x512xf32>)
  // CHECK: [[A:%.*]] = tensor.extract_slice %arg0[0, 0] [2, 512]
  // CHECK: [[W:%.*]] = tensor.extract_slice %{{.*}}[0, %{{.*}}] [512, 32]
  // CHECK: [[E:%.*]] = tensor.empty() : tensor<2x32xf32>
  // CHECK: [[Z:%.*]] = linalg.fill ins(%{{.*}} : f32) outs([[E]] : tensor<2x32xf32>)
  // CHECK: linalg.matmul ins([[A]], [[W]] : tensor<2x512xf32>, tensor<512x32xf32>) outs([[Z]] : tensor<2x32xf32>)
  // CHECK-NOT: sn40l.tile
  %y = linalg.matmul ins(%x, %w : tensor<2x512xf32>, tensor<512x512xf32>) outs(%zeros : tensor<2x512xf32>) -> tensor<2x512xf32>
  // CHECK: return
  return %y : tensor<2x512xf32>
}

// A reduced loop is cut where a single row is too long: the tiles add to one sum.
// CHECK-LABEL: func.func @long
func.func @long(%x: tensor<1x65536xf32>) -> tensor<1xf32> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<1xf32>
  %zeros = linalg.fill ins(%zero : f32) outs(%empty : tensor<1xf32>) -> tensor<1xf32>
  // CHECK: scf.for %{{.*}} = %c0{{.*}} to %c65536 step %c16384 iter_args({{.*}}) -> (tensor<1xf32>)
  %y = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0)>], iterator_types = ["parallel", "reduction"]} ins(%x : tensor<1x65536xf32>) outs(%zeros : tensor<1xf32>) {
  ^bb0(%a: f32, %o: f32):
    %s = arith.addf %a, %o : f32
    linalg.yield %s : f32
  } -> tensor<1xf32>
  return %y : tensor<1xf32>
}

// What fits is left whole.
// CHECK-LABEL: func.func @small
// CHECK-NOT: scf.for
func.func @small(%x: tensor<2x512xf32>) -> tensor<2x512xf32> {
  %empty = tensor.empty() : tensor<2x512xf32>
  %y = linalg.exp ins(%x : tensor<2x512xf32>) outs(%empty : tensor<2x512xf32>) -> tensor<2x512xf32>
  return %y : tensor<2x512xf32>
}
