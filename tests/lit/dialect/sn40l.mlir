// RUN: snapcc-opt %s | filecheck %s

// CHECK: "sn40l.plan"() ({
"sn40l.plan"() ({
  // CHECK: "sn40l.tier"() {capacity = 4096 : i64, granularity = 64 : i64, tier = "SRAM", unit = 1024 : i64}
  "sn40l.tier"() {tier = "SRAM", capacity = 4096 : i64, granularity = 64 : i64, unit = 1024 : i64} : () -> ()
  "sn40l.tier"() {tier = "HBM", capacity = 65536 : i64, granularity = 64 : i64, unit = 64 : i64} : () -> ()
  // CHECK: "sn40l.transfer"
  "sn40l.transfer"() {function = "decode", move = "fill", tensor = "decode:1", bytes = 256 : i64, position = 3 : i64, source_tier = "HBM", source = 0 : i64, target_tier = "SRAM", target = 1024 : i64} : () -> ()
  // CHECK: "sn40l.section"() ({
  "sn40l.section"() ({
    // CHECK: "sn40l.stage"() {compute_units = 7 : i64, loops = [8, 16], position = 3 : i64, tile = [4, 16], work = 128 : i64}
    "sn40l.stage"() {position = 3 : i64, loops = [8, 16], tile = [4, 16], work = 128 : i64, compute_units = 7 : i64} : () -> ()
    "sn40l.stage"() {position = 5 : i64, loops = [], tile = [], work = 0 : i64, compute_units = 1 : i64} : () -> ()
    // CHECK: "sn40l.buffer"() {bytes = 1024 : i64, copies = 2 : i64, offset = 0 : i64, part = 512 : i64, role = "tile", tensor = "decode:1"}
    "sn40l.buffer"() {tensor = "decode:1", role = "tile", part = 512 : i64, copies = 2 : i64, offset = 0 : i64, bytes = 1024 : i64} : () -> ()
  }) {function = "decode", section = "decode:w", starts = "the function starts"} : () -> ()
}) {machine = "test", compute_units = 8 : i64} : () -> ()
