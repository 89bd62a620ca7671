// RUN: not snapcc-opt %s --pass-pipeline='builtin.module(sn40l-plan{capacity=L2:64})' 2>&1 | filecheck %s --check-prefix=TIER
// RUN: not snapcc-opt %s --pass-pipeline='builtin.module(sn40l-plan{capacity=HBM:0})' 2>&1 | filecheck %s --check-prefix=ZERO
// RUN: not snapcc-opt %s --pass-pipeline='builtin.module(sn40l-plan{machine=no-such})' 2>&1 | filecheck %s --check-prefix=NAME

// TIER: error: SN40L has no tier 'L2'; its tiers are SRAM, HBM, DDR
// ZERO: error: SN40L: the capacity of HBM must be at least 1 byte, got 0
// NAME: error: no-such: is no machine of snapcc's and cannot be read as a file: {{.*}}; give a TOML file or one of small-dataflow, sn40l
func.func @decode() {
  return
}
