// RUN: not snapcc-opt %s --split-input-file 2>&1 | filecheck %s

// Each rule of the dialect, with both values.

// CHECK: error: 'sn40l.plan' op needs at least one tier, got none
"sn40l.plan"() ({
}) {machine = "test", compute_units = 8 : i64} : () -> ()

// -----

// CHECK: error: 'sn40l.plan' op compute_units must be at least 1, got 0
"sn40l.plan"() ({
  "sn40l.tier"() {tier = "SRAM", capacity = 4096 : i64, granularity = 64 : i64, unit = 1024 : i64} : () -> ()
}) {machine = "test", compute_units = 0 : i64} : () -> ()

// -----

// CHECK: error: 'sn40l.plan' op the tiers' names must be different: expected ['SRAM'], got ['SRAM', 'SRAM']
"sn40l.plan"() ({
  "sn40l.tier"() {tier = "SRAM", capacity = 4096 : i64, granularity = 64 : i64, unit = 1024 : i64} : () -> ()
  "sn40l.tier"() {tier = "SRAM", capacity = 4096 : i64, granularity = 64 : i64, unit = 1024 : i64} : () -> ()
}) {machine = "test", compute_units = 8 : i64} : () -> ()

// -----

// CHECK: error: 'sn40l.plan' op holds sn40l.tier and sn40l.section and sn40l.transfer, got sn40l.stage
"sn40l.plan"() ({
  "sn40l.tier"() {tier = "SRAM", capacity = 4096 : i64, granularity = 64 : i64, unit = 1024 : i64} : () -> ()
    "sn40l.stage"() {position = 3 : i64, loops = [8, 16], tile = [4, 16], work = 128 : i64, compute_units = 1 : i64} : () -> ()
}) {machine = "test", compute_units = 8 : i64} : () -> ()

// -----

// CHECK: error: 'sn40l.tier' op needs the attribute unit, an integer
"sn40l.plan"() ({
  "sn40l.tier"() {tier = "SRAM", capacity = 4096 : i64, granularity = 64 : i64} : () -> ()
}) {machine = "test", compute_units = 8 : i64} : () -> ()

// -----

// CHECK: error: 'sn40l.tier' op unit must be a multiple of the granularity, got 1000 and 64
"sn40l.plan"() ({
  "sn40l.tier"() {tier = "SRAM", capacity = 4096 : i64, granularity = 64 : i64, unit = 1000 : i64} : () -> ()
}) {machine = "test", compute_units = 8 : i64} : () -> ()

// -----

// CHECK: error: 'sn40l.tier' op capacity must be at least 1, got 0
"sn40l.plan"() ({
  "sn40l.tier"() {tier = "SRAM", capacity = 0 : i64, granularity = 64 : i64, unit = 1024 : i64} : () -> ()
}) {machine = "test", compute_units = 8 : i64} : () -> ()

// -----

// CHECK: error: 'sn40l.tier' op must stand in 'sn40l.plan', got 'builtin.module'
  "sn40l.tier"() {tier = "SRAM", capacity = 4096 : i64, granularity = 64 : i64, unit = 1024 : i64} : () -> ()

// -----

// CHECK: error: 'sn40l.section' op needs at least one stage, got none
"sn40l.plan"() ({
  "sn40l.tier"() {tier = "SRAM", capacity = 4096 : i64, granularity = 64 : i64, unit = 1024 : i64} : () -> ()
  "sn40l.section"() ({
    "sn40l.buffer"() {tensor = "decode:1", role = "tile", part = 512 : i64, copies = 2 : i64, offset = 0 : i64, bytes = 1024 : i64} : () -> ()
  }) {function = "decode", section = "decode:w", starts = "the function starts"} : () -> ()
}) {machine = "test", compute_units = 8 : i64} : () -> ()

// -----

// CHECK: error: 'sn40l.section' op the stages' positions must be in the program's order: expected [3, 5], got [5, 3]
"sn40l.plan"() ({
  "sn40l.tier"() {tier = "SRAM", capacity = 4096 : i64, granularity = 64 : i64, unit = 1024 : i64} : () -> ()
  "sn40l.section"() ({
    "sn40l.stage"() {position = 5 : i64, loops = [8, 16], tile = [4, 16], work = 128 : i64, compute_units = 1 : i64} : () -> ()
    "sn40l.stage"() {position = 3 : i64, loops = [8, 16], tile = [4, 16], work = 128 : i64, compute_units = 1 : i64} : () -> ()
  }) {function = "decode", section = "decode:w", starts = "the function starts"} : () -> ()
}) {machine = "test", compute_units = 8 : i64} : () -> ()

// -----

// CHECK: error: 'sn40l.section' op takes 9 compute units, and the plan has 8
"sn40l.plan"() ({
  "sn40l.tier"() {tier = "SRAM", capacity = 4096 : i64, granularity = 64 : i64, unit = 1024 : i64} : () -> ()
  "sn40l.section"() ({
    "sn40l.stage"() {position = 3 : i64, loops = [8, 16], tile = [4, 16], work = 128 : i64, compute_units = 4 : i64} : () -> ()
    "sn40l.stage"() {position = 5 : i64, loops = [8, 16], tile = [4, 16], work = 128 : i64, compute_units = 5 : i64} : () -> ()
  }) {function = "decode", section = "decode:w", starts = "the function starts"} : () -> ()
}) {machine = "test", compute_units = 8 : i64} : () -> ()

// -----

// CHECK: error: 'sn40l.section' op its buffer of decode:1 ends at byte 1024, and that of decode:2 starts at 960
"sn40l.plan"() ({
  "sn40l.tier"() {tier = "SRAM", capacity = 4096 : i64, granularity = 64 : i64, unit = 1024 : i64} : () -> ()
  "sn40l.section"() ({
    "sn40l.stage"() {position = 3 : i64, loops = [8, 16], tile = [4, 16], work = 128 : i64, compute_units = 1 : i64} : () -> ()
    "sn40l.stage"() {position = 5 : i64, loops = [8, 16], tile = [4, 16], work = 128 : i64, compute_units = 1 : i64} : () -> ()
    "sn40l.buffer"() {tensor = "decode:2", role = "tile", part = 64 : i64, copies = 2 : i64, offset = 960 : i64, bytes = 128 : i64} : () -> ()
    "sn40l.buffer"() {tensor = "decode:1", role = "tile", part = 512 : i64, copies = 2 : i64, offset = 0 : i64, bytes = 1024 : i64} : () -> ()
  }) {function = "decode", section = "decode:w", starts = "the function starts"} : () -> ()
}) {machine = "test", compute_units = 8 : i64} : () -> ()

// -----

// CHECK: error: 'sn40l.stage' op tile must lie within loops, got [4, 17] of [8, 16]
"sn40l.plan"() ({
  "sn40l.tier"() {tier = "SRAM", capacity = 4096 : i64, granularity = 64 : i64, unit = 1024 : i64} : () -> ()
  "sn40l.section"() ({
    "sn40l.stage"() {position = 3 : i64, loops = [8, 16], tile = [4, 17], work = 128 : i64, compute_units = 1 : i64} : () -> ()
  }) {function = "decode", section = "decode:w", starts = "the function starts"} : () -> ()
}) {machine = "test", compute_units = 8 : i64} : () -> ()

// -----

// CHECK: error: 'sn40l.stage' op tile must lie within loops, got [0, 16] of [8, 16]
"sn40l.plan"() ({
  "sn40l.tier"() {tier = "SRAM", capacity = 4096 : i64, granularity = 64 : i64, unit = 1024 : i64} : () -> ()
  "sn40l.section"() ({
    "sn40l.stage"() {position = 3 : i64, loops = [8, 16], tile = [0, 16], work = 128 : i64, compute_units = 1 : i64} : () -> ()
  }) {function = "decode", section = "decode:w", starts = "the function starts"} : () -> ()
}) {machine = "test", compute_units = 8 : i64} : () -> ()

// -----

// CHECK: error: 'sn40l.stage' op tile's length must be that of loops: expected 2, got 1
"sn40l.plan"() ({
  "sn40l.tier"() {tier = "SRAM", capacity = 4096 : i64, granularity = 64 : i64, unit = 1024 : i64} : () -> ()
  "sn40l.section"() ({
    "sn40l.stage"() {position = 3 : i64, loops = [8, 16], tile = [4], work = 128 : i64, compute_units = 1 : i64} : () -> ()
  }) {function = "decode", section = "decode:w", starts = "the function starts"} : () -> ()
}) {machine = "test", compute_units = 8 : i64} : () -> ()

// -----

// CHECK: error: 'sn40l.stage' op tile must be an array of integers, got ["four"]
"sn40l.plan"() ({
  "sn40l.tier"() {tier = "SRAM", capacity = 4096 : i64, granularity = 64 : i64, unit = 1024 : i64} : () -> ()
  "sn40l.section"() ({
    "sn40l.stage"() {position = 3 : i64, loops = [8, 16], tile = ["four"], work = 128 : i64, compute_units = 1 : i64} : () -> ()
  }) {function = "decode", section = "decode:w", starts = "the function starts"} : () -> ()
}) {machine = "test", compute_units = 8 : i64} : () -> ()

// -----

// CHECK: error: 'sn40l.stage' op compute_units must be at least 1, got 0
"sn40l.plan"() ({
  "sn40l.tier"() {tier = "SRAM", capacity = 4096 : i64, granularity = 64 : i64, unit = 1024 : i64} : () -> ()
  "sn40l.section"() ({
    "sn40l.stage"() {position = 3 : i64, loops = [8, 16], tile = [4, 16], work = 128 : i64, compute_units = 0 : i64} : () -> ()
  }) {function = "decode", section = "decode:w", starts = "the function starts"} : () -> ()
}) {machine = "test", compute_units = 8 : i64} : () -> ()

// -----

// CHECK: error: 'sn40l.stage' op must stand in 'sn40l.section', got 'builtin.module'
    "sn40l.stage"() {position = 3 : i64, loops = [8, 16], tile = [4, 16], work = 128 : i64, compute_units = 1 : i64} : () -> ()

// -----

// CHECK: error: 'sn40l.buffer' op role must be one of tile, resident, got spare
"sn40l.plan"() ({
  "sn40l.tier"() {tier = "SRAM", capacity = 4096 : i64, granularity = 64 : i64, unit = 1024 : i64} : () -> ()
  "sn40l.section"() ({
    "sn40l.stage"() {position = 3 : i64, loops = [8, 16], tile = [4, 16], work = 128 : i64, compute_units = 1 : i64} : () -> ()
    "sn40l.buffer"() {tensor = "decode:1", role = "spare", part = 512 : i64, copies = 2 : i64, offset = 0 : i64, bytes = 1024 : i64} : () -> ()
  }) {function = "decode", section = "decode:w", starts = "the function starts"} : () -> ()
}) {machine = "test", compute_units = 8 : i64} : () -> ()

// -----

// CHECK: error: 'sn40l.buffer' op needs 2048 bytes for 2 copies, and takes 1024
"sn40l.plan"() ({
  "sn40l.tier"() {tier = "SRAM", capacity = 4096 : i64, granularity = 64 : i64, unit = 1024 : i64} : () -> ()
  "sn40l.section"() ({
    "sn40l.stage"() {position = 3 : i64, loops = [8, 16], tile = [4, 16], work = 128 : i64, compute_units = 1 : i64} : () -> ()
    "sn40l.buffer"() {tensor = "decode:1", role = "tile", part = 1024 : i64, copies = 2 : i64, offset = 0 : i64, bytes = 1024 : i64} : () -> ()
  }) {function = "decode", section = "decode:w", starts = "the function starts"} : () -> ()
}) {machine = "test", compute_units = 8 : i64} : () -> ()

// -----

// CHECK: error: 'sn40l.buffer' op ends at byte 4160, and SRAM has 4096
"sn40l.plan"() ({
  "sn40l.tier"() {tier = "SRAM", capacity = 4096 : i64, granularity = 64 : i64, unit = 1024 : i64} : () -> ()
  "sn40l.section"() ({
    "sn40l.stage"() {position = 3 : i64, loops = [8, 16], tile = [4, 16], work = 128 : i64, compute_units = 1 : i64} : () -> ()
    "sn40l.buffer"() {tensor = "decode:1", role = "tile", part = 512 : i64, copies = 2 : i64, offset = 3136 : i64, bytes = 1024 : i64} : () -> ()
  }) {function = "decode", section = "decode:w", starts = "the function starts"} : () -> ()
}) {machine = "test", compute_units = 8 : i64} : () -> ()

// -----

// CHECK: error: 'sn40l.transfer' op source_tier must be one of SRAM, HBM, got L2
"sn40l.plan"() ({
  "sn40l.tier"() {tier = "SRAM", capacity = 4096 : i64, granularity = 64 : i64, unit = 1024 : i64} : () -> ()
  "sn40l.tier"() {tier = "HBM", capacity = 65536 : i64, granularity = 64 : i64, unit = 64 : i64} : () -> ()
  "sn40l.transfer"() {function = "decode", move = "fill", tensor = "decode:1", bytes = 256 : i64, position = 3 : i64, source_tier = "L2", source = 0 : i64, target_tier = "SRAM", target = 1024 : i64} : () -> ()
}) {machine = "test", compute_units = 8 : i64} : () -> ()

// -----

// CHECK: error: 'sn40l.transfer' op target ends at byte 4352, and SRAM has 4096
"sn40l.plan"() ({
  "sn40l.tier"() {tier = "SRAM", capacity = 4096 : i64, granularity = 64 : i64, unit = 1024 : i64} : () -> ()
  "sn40l.tier"() {tier = "HBM", capacity = 65536 : i64, granularity = 64 : i64, unit = 64 : i64} : () -> ()
  "sn40l.transfer"() {function = "decode", move = "fill", tensor = "decode:1", bytes = 256 : i64, position = 3 : i64, source_tier = "HBM", source = 0 : i64, target_tier = "SRAM", target = 4096 : i64} : () -> ()
}) {machine = "test", compute_units = 8 : i64} : () -> ()

// -----

// CHECK: error: 'sn40l.transfer' op must move between two tiers, got HBM twice
"sn40l.plan"() ({
  "sn40l.tier"() {tier = "SRAM", capacity = 4096 : i64, granularity = 64 : i64, unit = 1024 : i64} : () -> ()
  "sn40l.tier"() {tier = "HBM", capacity = 65536 : i64, granularity = 64 : i64, unit = 64 : i64} : () -> ()
  "sn40l.transfer"() {function = "decode", move = "fill", tensor = "decode:1", bytes = 256 : i64, position = 3 : i64, source_tier = "HBM", source = 0 : i64, target_tier = "HBM", target = 1024 : i64} : () -> ()
}) {machine = "test", compute_units = 8 : i64} : () -> ()

// -----

// CHECK: error: 'sn40l.transfer' op move must be one of fill, spill, prefetch, got copy
"sn40l.plan"() ({
  "sn40l.tier"() {tier = "SRAM", capacity = 4096 : i64, granularity = 64 : i64, unit = 1024 : i64} : () -> ()
  "sn40l.tier"() {tier = "HBM", capacity = 65536 : i64, granularity = 64 : i64, unit = 64 : i64} : () -> ()
  "sn40l.transfer"() {function = "decode", move = "copy", tensor = "decode:1", bytes = 256 : i64, position = 3 : i64, source_tier = "HBM", source = 0 : i64, target_tier = "SRAM", target = 1024 : i64} : () -> ()
}) {machine = "test", compute_units = 8 : i64} : () -> ()
