// RUN: not snapcc-opt %s --split-input-file --pass-pipeline='builtin.module(sn40l-plan{capacity=HBM:448,DDR:64})' 2>&1 | filecheck %s
// RUN: not snapcc-opt %S/plan.mlir --pass-pipeline='builtin.module(sn40l-plan{capacity=SRAM:287})' 2>&1 | filecheck %s --check-prefix=TILE
// RUN: snapcc-opt %S/plan.mlir --pass-pipeline='builtin.module(sn40l-plan{capacity=SRAM:288})' | filecheck %s --check-prefix=ENOUGH

// An op whose tensors do not fit in two copies of one step each is refused at its line.

// TILE: plan.mlir:{{.*}}: error: no room on SN40L for '{{.*}}' in its least tiles: SRAM lacks 1 bytes of 288;
// TILE-NEXT: SRAM: {{.*}} of 287 bytes
// ENOUGH: sn40l.plan

// A program that does not fit is refused with the memory map.

// CHECK: error: no room on SN40L for the program's weights, caches and states: DDR lacks 64 bytes; memory map:
// CHECK-NEXT: SRAM: 0 of 545,259,520 bytes (0.0%), 0 tensors
// CHECK-NEXT: HBM: 384 of 448 bytes (85.7%), 2 tensors
// CHECK-NEXT:   [0x0000000000, 0x0000000100) 256 bytes weight a (always)
// CHECK-NEXT:   [0x0000000100, 0x0000000180) 128 bytes weight b (always)
// CHECK-NEXT: DDR: 0 of 64 bytes (0.0%), 0 tensors
// CHECK-NEXT: without a place: 1 tensor, 128 bytes
// CHECK-NEXT:   128 bytes cache state:k (
func.func @decode() {
  %a = "kv.parameter"() {parameter = "a"} : () -> tensor<8x8xf32>
  %b = "kv.parameter"() {parameter = "b"} : () -> tensor<8x4xf32>
  %k = "kv.state_load"() {state = "k"} : () -> tensor<1x8x4xf32>
  return
}

// -----

// CHECK: a block argument is the size of a tensor and has no static bound; a plan needs one
func.func @decode(%n: index) -> tensor<?xf32> {
  %e = tensor.empty(%n) : tensor<?xf32>
  %zero = arith.constant 0.0 : f32
  %y = linalg.fill ins(%zero : f32) outs(%e : tensor<?xf32>) -> tensor<?xf32>
  return %y : tensor<?xf32>
}

// -----

// CHECK: state:k is stored twice in a function; store it once
func.func @decode(%x: tensor<1x8x4xf32>) {
  "kv.state_store"(%x) {state = "k"} : (tensor<1x8x4xf32>) -> ()
  "kv.state_store"(%x) {state = "k"} : (tensor<1x8x4xf32>) -> ()
  return
}

// -----

// CHECK: 'kv.parameter' stands inside 'scf.for'; parameters and states belong to the function
func.func @decode() {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  scf.for %i = %c0 to %c1 step %c1 {
    %w = "kv.parameter"() {parameter = "w"} : () -> tensor<4xf32>
  }
  return
}
