// RUN: snapcc-opt %s --pass-pipeline='builtin.module(sn40l-plan)' | filecheck %s

// A weight and a cache stand in HBM, what one call needs in SRAM. The updated cache is the state's own storage; a view
// is its source's; a blank destination has none.

// CHECK: func.func @decode(%{{.*}}: tensor<2x8xf32> {sn40l.bytes = 64 : i64, sn40l.offset = [[X:[0-9]+]] : i64, sn40l.tensor = "decode:arg0", sn40l.tier = "SRAM"}
func.func @decode(%x: tensor<2x8xf32>, %places: tensor<2x2xi32>, %active: tensor<2xi1>) -> tensor<2x8xf32> {
  // CHECK: "kv.parameter"() {parameter = "w", sn40l.bytes = array<i64: 256>, sn40l.offset = array<i64: 0>, sn40l.tensor = ["w"], sn40l.tier = ["HBM"]}
  %w = "kv.parameter"() {parameter = "w"} : () -> tensor<8x8xf32>
  // CHECK: "kv.state_load"() {sn40l.bytes = array<i64: 1024>, sn40l.offset = array<i64: 256>, sn40l.tensor = ["state:k"], sn40l.tier = ["HBM"], state = "k"}
  %k = "kv.state_load"() {state = "k"} : () -> tensor<2x16x8xf32>
  // CHECK: "kv.scatter"({{.*}}) {sn40l.bytes = array<i64: 1024>, sn40l.offset = array<i64: 256>, sn40l.section = "decode:w", sn40l.tensor = ["state:k"], sn40l.tier = ["HBM"]}
  %new = "kv.scatter"(%x, %places, %active, %k) : (tensor<2x8xf32>, tensor<2x2xi32>, tensor<2xi1>, tensor<2x16x8xf32>) -> tensor<2x16x8xf32>
  // CHECK: "kv.state_store"(%{{.*}}) {state = "k"}
  "kv.state_store"(%new) {state = "k"} : (tensor<2x16x8xf32>) -> ()
  // CHECK: tensor.empty() : tensor<2x8xf32>
  %empty = tensor.empty() : tensor<2x8xf32>
  %zero = arith.constant 0.0 : f32
  // CHECK: linalg.fill ins
  %zeros = linalg.fill ins(%zero : f32) outs(%empty : tensor<2x8xf32>) -> tensor<2x8xf32>
  // CHECK: linalg.matmul {sn40l.bytes = array<i64: 64>, sn40l.offset = array<i64: [[Y:[0-9]+]]>, sn40l.section = "decode:w", sn40l.tensor = ["decode:7"], sn40l.tier = ["SRAM"]}
  %y = linalg.matmul ins(%x, %w : tensor<2x8xf32>, tensor<8x8xf32>) outs(%zeros : tensor<2x8xf32>) -> tensor<2x8xf32>
  // CHECK: tensor.collapse_shape {{.*}} {sn40l.bytes = array<i64: 64>, sn40l.offset = array<i64: [[Y]]>, sn40l.tensor = ["decode:7"], sn40l.tier = ["SRAM"]}
  %flat = tensor.collapse_shape %y [[0, 1]] : tensor<2x8xf32> into tensor<16xf32>
  %back = tensor.expand_shape %flat [[0, 1]] output_shape [2, 8] : tensor<16xf32> into tensor<2x8xf32>
  return %back : tensor<2x8xf32>
}

// The loop's own values are its scratch.
// CHECK: func.func @prefill_8
func.func @prefill_8(%x: tensor<8x4xf32>) -> tensor<8x4xf32> {
  %c0 = arith.constant 0 : index
  %c2 = arith.constant 2 : index
  %c8 = arith.constant 8 : index
  %out = tensor.empty() : tensor<8x4xf32>
  %y = scf.for %i = %c0 to %c8 step %c2 iter_args(%acc = %out) -> (tensor<8x4xf32>) {
    %row = tensor.extract_slice %x[%i, 0] [2, 4] [1, 1] : tensor<8x4xf32> to tensor<2x4xf32>
    %empty = tensor.empty() : tensor<2x4xf32>
    %e = linalg.exp ins(%row : tensor<2x4xf32>) outs(%empty : tensor<2x4xf32>) -> tensor<2x4xf32>
    %n = tensor.insert_slice %e into %acc[%i, 0] [2, 4] [1, 1] : tensor<2x4xf32> into tensor<8x4xf32>
    scf.yield %n : tensor<8x4xf32>
  // CHECK: } {sn40l.bytes = array<i64: 128>, {{.*}}, sn40l.scratch = {sn40l.bytes = 32 : i64, sn40l.offset = {{[0-9]+}} : i64, sn40l.tensor = "prefill_8:4.scratch", sn40l.tier = "SRAM"}, sn40l.section = "prefill_8:attend.0", sn40l.tensor = ["prefill_8:4"], sn40l.tier = ["SRAM"]}
  }
  return %y : tensor<8x4xf32>
}

// Behind the functions stands what is run when, and on how much of the machine.
// CHECK: "sn40l.plan"() ({
// CHECK-NEXT: "sn40l.tier"() {capacity = 545259520 : i64, granularity = 64 : i64, tier = "SRAM", unit = 524288 : i64}
// CHECK-NEXT: "sn40l.tier"() {capacity = 68719476736 : i64, {{.*}}tier = "HBM"
// CHECK-NEXT: "sn40l.tier"() {capacity = 1500000000000 : i64, {{.*}}tier = "DDR"
// CHECK-NEXT: "sn40l.transfer"() {bytes = 256 : i64, function = "decode", move = "prefetch", position = 2 : i64, {{.*}}, tensor = "w"}
// CHECK-NEXT: "sn40l.section"() ({
// CHECK: "sn40l.buffer"() {bytes = {{[0-9]+}} : i64, copies = 2 : i64, offset = 0 : i64, part = 1024 : i64, role = "tile", tensor = "state:k"}
// CHECK: "sn40l.buffer"() {bytes = {{[0-9]+}} : i64, copies = 2 : i64, {{.*}}, part = 256 : i64, role = "tile", tensor = "w"}
// CHECK: "sn40l.stage"() {{{.*}}loops = [], position = 2 : i64, tile = [], work = 0 : i64}
// CHECK-NEXT: "sn40l.stage"() {compute_units = {{[0-9]+}} : i64, loops = [2, 8, 8], position = 7 : i64, tile = [2, 8, 8], work = 256 : i64}
// CHECK-NEXT: }) {function = "decode", section = "decode:w", starts = "the function starts"}
// CHECK: }) {function = "prefill_8", section = "prefill_8:attend.0", starts = "the function starts"}
// CHECK-NEXT: }) {compute_units = 1040 : i64, machine = "SN40L"}
