// RUN: not snapcc-opt %s --pass-pipeline='builtin.module(sn40l-tile{machine=nowhere.toml})' 2>&1 | filecheck %s --check-prefix=FILE
// RUN: not snapcc-opt %s --pass-pipeline='builtin.module(sn40l-tile)' 2>&1 | filecheck %s

// FILE: error: nowhere.toml: is no machine of snapcc's and cannot be read as a file
// CHECK: error: {{.*}} has no static bound; a plan needs one
func.func @decode(%n: index) -> tensor<?xf32> {
  %e = tensor.empty(%n) : tensor<?xf32>
  %zero = arith.constant 0.0 : f32
  %y = linalg.fill ins(%zero : f32) outs(%e : tensor<?xf32>) -> tensor<?xf32>
  return %y : tensor<?xf32>
}
