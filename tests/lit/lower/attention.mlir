// RUN: snapcc-opt %s --split-input-file --pass-pipeline='builtin.module(kv-lower-attention,inline,symbol-dce,canonicalize,cse)' | filecheck %s
// RUN: snapcc-opt %s --split-input-file --pass-pipeline='builtin.module(kv-lower-attention{block=8},inline,symbol-dce,canonicalize,cse)' | filecheck %s --check-prefix=BLOCK
// RUN: snapcc-opt %s --split-input-file --pass-pipeline='builtin.module(kv-lower-attention)' | filecheck %s --check-prefix=CALL

// One query token: all slots at once. The logits are [row, part, head, query head, slot of the part].
// CHECK-LABEL: func.func @decode(
// CHECK: %[[QUERIES:.+]] = tensor.collapse_shape %arg0
// CHECK: %[[KEYS:.+]] = tensor.expand_shape %arg1 {{.+}} into tensor<3x2x2x256x16xf32>
// CHECK: %[[DOTS:.+]] = linalg.generic
// CHECK-SAME: ins(%[[QUERIES]], %[[KEYS]]
// CHECK-NOT: arith.constant
// CHECK: } -> tensor<3x2x2x2x256xf32>
// CHECK: %[[MOST:.+]] = linalg.generic
// CHECK: arith.maximumf
// CHECK: arith.select
// CHECK: } -> tensor<3x2x2xf32>
// CHECK: %[[WEIGHTS:.+]] = linalg.generic
// CHECK-SAME: ins(%[[DOTS]], %{{.+}}, %[[MOST]]
// CHECK: math.exp
// CHECK: arith.select
// CHECK: linalg.generic
// CHECK: arith.addf
// CHECK: arith.cmpf une
// CHECK: arith.select
// CHECK: arith.mulf
// CHECK: } -> tensor<3x2x2x2x4x24xf32>
// CHECK: arith.divf
// CHECK-NOT: kv.
// CALL: func.func private @kv_attention_
// CALL-LABEL: func.func @decode(
// CALL: call @kv_attention_
func.func @decode(%q: tensor<3x2x2x1x16xf32>, %k: tensor<3x2x512x16xf32>, %v: tensor<3x2x512x24xf32>, %visible: tensor<3x512xi1>) -> tensor<3x2x2x1x24xf32> {
  %0 = "kv.attention"(%q, %k, %v, %visible) {causal = 0 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0>, scale = 0.25 : f64, softcap = 0.0 : f64} : (tensor<3x2x2x1x16xf32>, tensor<3x2x512x16xf32>, tensor<3x2x512x24xf32>, tensor<3x512xi1>) -> tensor<3x2x2x1x24xf32>
  return %0 : tensor<3x2x2x1x24xf32>
}

// -----

// Caches as [B, C, H, D], and as [B, C, H D]: read where they lie.
// CHECK-LABEL: func.func @tokens_first(
// CHECK-NOT: linalg.transpose
// CHECK: tensor.expand_shape %arg1 {{.+}} : tensor<2x12x3x16xbf16> into tensor<2x3x4x3x16xbf16>
// CHECK: arith.extf
// CHECK-NOT: linalg.transpose
// CHECK: tensor.expand_shape %arg2 {{.+}} : tensor<2x12x48xbf16> into tensor<2x3x4x1x3x16xbf16>
// CHECK: arith.extf
// CHECK: arith.truncf
func.func @tokens_first(%q: tensor<2x3x2x1x16xbf16>, %k_stored: tensor<2x12x3x16xbf16>, %v_stored: tensor<2x12x48xbf16>, %visible: tensor<2x12xi1>) -> tensor<2x3x2x1x16xbf16> {
  %k_empty = tensor.empty() : tensor<2x3x12x16xbf16>
  %k = linalg.transpose ins(%k_stored : tensor<2x12x3x16xbf16>) outs(%k_empty : tensor<2x3x12x16xbf16>) permutation = [0, 2, 1, 3]
  %v_wide = tensor.expand_shape %v_stored [[0], [1], [2, 3, 4]] output_shape [2, 12, 3, 1, 16] : tensor<2x12x48xbf16> into tensor<2x12x3x1x16xbf16>
  %v_empty = tensor.empty() : tensor<1x2x3x12x16xbf16>
  %v_order = linalg.transpose ins(%v_wide : tensor<2x12x3x1x16xbf16>) outs(%v_empty : tensor<1x2x3x12x16xbf16>) permutation = [3, 0, 2, 1, 4]
  %v = tensor.collapse_shape %v_order [[0, 1], [2], [3], [4]] : tensor<1x2x3x12x16xbf16> into tensor<2x3x12x16xbf16>
  %0 = "kv.attention"(%q, %k, %v, %visible) {causal = 0 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0>, scale = 0.25 : f64, softcap = 0.0 : f64} : (tensor<2x3x2x1x16xbf16>, tensor<2x3x12x16xbf16>, tensor<2x3x12x16xbf16>, tensor<2x12xi1>) -> tensor<2x3x2x1x16xbf16>
  return %0 : tensor<2x3x2x1x16xbf16>
}

// -----

// Heads of two axes, of which one lies before the tokens and one behind: a transposition that has to be made.
// CHECK-LABEL: func.func @apart(
// CHECK: linalg.transpose
func.func @apart(%q: tensor<1x6x1x1x16xf32>, %k_stored: tensor<1x2x12x3x16xf32>) -> tensor<1x6x1x1x16xf32> {
  %k_empty = tensor.empty() : tensor<1x2x3x12x16xf32>
  %k_order = linalg.transpose ins(%k_stored : tensor<1x2x12x3x16xf32>) outs(%k_empty : tensor<1x2x3x12x16xf32>) permutation = [0, 1, 3, 2, 4]
  %k = tensor.collapse_shape %k_order [[0], [1, 2], [3], [4]] : tensor<1x2x3x12x16xf32> into tensor<1x6x12x16xf32>
  %0 = "kv.attention"(%q, %k, %k) {causal = 0 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, scale = 0.25 : f64, softcap = 0.0 : f64} : (tensor<1x6x1x1x16xf32>, tensor<1x6x12x16xf32>, tensor<1x6x12x16xf32>) -> tensor<1x6x1x1x16xf32>
  return %0 : tensor<1x6x1x1x16xf32>
}

// -----

// A prompt of less than a block needs no loop; a longer one has one, over keys up to the block's end, and its last
// block starts early.
// CHECK-LABEL: func.func @prefill(
// CHECK-NOT: scf.for
// CHECK: } -> tensor<1x2x20x3x20xf32>
// CHECK: math.tanh
// CHECK-NOT: scf.for
// CHECK: return
// BLOCK-LABEL: func.func @prefill(
// BLOCK-DAG: %[[START:.+]] = arith.constant 0 : index
// BLOCK-DAG: %[[SIZE:.+]] = arith.constant 8 : index
// BLOCK-DAG: %[[LAST:.+]] = arith.constant 12 : index
// BLOCK-DAG: %[[TOKENS:.+]] = arith.constant 20 : index
// BLOCK: scf.for %[[STEP:.+]] = %[[START]] to %[[TOKENS]] step %[[SIZE]] iter_args(%[[DONE:.+]] = %{{.+}}) -> (tensor<1x2x3x20x16xf32>) {
// BLOCK: %[[FIRST:.+]] = arith.minsi %[[STEP]], %[[LAST]] : index
// BLOCK: %[[END:.+]] = arith.addi %[[FIRST]], %[[SIZE]] : index
// BLOCK: tensor.extract_slice %arg0[0, 0, 0, %[[FIRST]], 0] [1, 2, 3, 8, 16]
// BLOCK: tensor.extract_slice %arg1[0, 0, 0, 0] [1, 2, %[[END]], 16]
// BLOCK: linalg.generic
// BLOCK: } -> tensor<1x2x8x3x?xf32>
// BLOCK: %[[QUERY:.+]] = arith.addi %{{.+}}, %[[FIRST]]
// BLOCK: arith.cmpi ule, %{{.+}}, %[[QUERY]]
// BLOCK: %[[MORE:.+]] = tensor.insert_slice %{{.+}} into %[[DONE]][0, 0, 0, %[[FIRST]], 0] [1, 2, 3, 8, 16]
// BLOCK: scf.yield %[[MORE]]
func.func @prefill(%q: tensor<1x2x3x20x16xf32>, %k: tensor<1x2x20x16xf32>, %v: tensor<1x2x20x16xf32>) -> tensor<1x2x3x20x16xf32> {
  %0 = "kv.attention"(%q, %k, %v) {causal = 1 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, scale = 0.25 : f64, softcap = 50.0 : f64} : (tensor<1x2x3x20x16xf32>, tensor<1x2x20x16xf32>, tensor<1x2x20x16xf32>) -> tensor<1x2x3x20x16xf32>
  return %0 : tensor<1x2x3x20x16xf32>
}

// -----

// Without a group, a block's tokens are two groups of rows.
// BLOCK-LABEL: func.func @no_group(
// BLOCK: tensor.expand_shape %{{.+}} into tensor<1x2x2x4x16xf32>
// BLOCK: } -> tensor<1x2x4x2x?xf32>
// CALL-LABEL: func.func @no_group(
func.func @no_group(%q: tensor<1x2x1x20x16xf32>, %k: tensor<1x2x20x16xf32>, %v: tensor<1x2x20x16xf32>) -> tensor<1x2x1x20x16xf32> {
  %0 = "kv.attention"(%q, %k, %v) {causal = 1 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, scale = 0.25 : f64, softcap = 0.0 : f64} : (tensor<1x2x1x20x16xf32>, tensor<1x2x20x16xf32>, tensor<1x2x20x16xf32>) -> tensor<1x2x1x20x16xf32>
  return %0 : tensor<1x2x1x20x16xf32>
}

// -----

// Equal ops share one function.
// CALL: func.func private @kv_attention_{{[0-9a-f]+}}(
// CALL-NOT: func.func private
// CALL: func.func @twice(
// CALL: call @[[NAME:kv_attention_[0-9a-f]+]](
// CALL: call @[[NAME]](
func.func @twice(%q: tensor<1x2x1x20x16xf32>, %k: tensor<1x2x20x16xf32>, %v: tensor<1x2x20x16xf32>) -> tensor<1x2x1x20x16xf32> {
  %0 = "kv.attention"(%q, %k, %v) {causal = 1 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, scale = 0.25 : f64, softcap = 0.0 : f64} : (tensor<1x2x1x20x16xf32>, tensor<1x2x20x16xf32>, tensor<1x2x20x16xf32>) -> tensor<1x2x1x20x16xf32>
  %1 = "kv.attention"(%0, %k, %v) {causal = 1 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, scale = 0.25 : f64, softcap = 0.0 : f64} : (tensor<1x2x1x20x16xf32>, tensor<1x2x20x16xf32>, tensor<1x2x20x16xf32>) -> tensor<1x2x1x20x16xf32>
  return %1 : tensor<1x2x1x20x16xf32>
}

// -----

// A mask for each query: the two query heads are one row axis, the tokens the other.
// CHECK-LABEL: func.func @extend(
// CHECK: linalg.generic {{.+}}ins(%{{.+}}, %arg2 : tensor<1x2x5x2x19xf32>, tensor<1x5x19xi1>)
// CHECK: arith.maximumf
// CHECK: arith.select
// CHECK-NOT: kv.
func.func @extend(%q: tensor<1x2x2x5x16xf32>, %k: tensor<1x2x19x16xf32>, %visible: tensor<1x5x19xi1>) -> tensor<1x2x2x5x16xf32> {
  %0 = "kv.attention"(%q, %k, %k, %visible) {causal = 0 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0>, scale = 0.25 : f64, softcap = 0.0 : f64} : (tensor<1x2x2x5x16xf32>, tensor<1x2x19x16xf32>, tensor<1x2x19x16xf32>, tensor<1x5x19xi1>) -> tensor<1x2x2x5x16xf32>
  return %0 : tensor<1x2x2x5x16xf32>
}

// -----

// Keys joined of latents and of what stands beside them: each part is multiplied where it lies, onto the same products.
// CHECK-LABEL: func.func @joined(
// CHECK-NOT: tensor.concat
// CHECK: %[[LATENTS:.+]] = tensor.expand_shape %arg1 {{.+}} into tensor<2x1x3x4x16xf32>
// CHECK: %[[BESIDE:.+]] = tensor.expand_shape %{{.+}} into tensor<2x1x3x4x4xf32>
// CHECK: %[[Q0:.+]] = tensor.extract_slice %{{.+}}[0, 0, 0, 0] [2, 1, 6, 16]
// CHECK: %[[DOTS:.+]] = linalg.generic
// CHECK-SAME: ins(%[[Q0]], %[[LATENTS]]
// CHECK: %[[Q1:.+]] = tensor.extract_slice %{{.+}}[0, 0, 0, 16] [2, 1, 6, 4]
// CHECK: linalg.generic
// CHECK-SAME: ins(%[[Q1]], %[[BESIDE]] : {{.+}}) outs(%[[DOTS]]
// CHECK-NOT: tensor.concat
// BLOCK-LABEL: func.func @joined(
// BLOCK-NOT: tensor.concat
// BLOCK: return
func.func @joined(%q: tensor<2x1x6x1x20xf32>, %latents: tensor<2x1x12x16xf32>, %stored: tensor<2x12x4xf32>, %visible: tensor<2x12xi1>) -> tensor<2x1x6x1x16xf32> {
  %beside = tensor.expand_shape %stored [[0], [1, 2], [3]] output_shape [2, 1, 12, 4] : tensor<2x12x4xf32> into tensor<2x1x12x4xf32>
  %k = tensor.concat dim(3) %latents, %beside : (tensor<2x1x12x16xf32>, tensor<2x1x12x4xf32>) -> tensor<2x1x12x20xf32>
  %0 = "kv.attention"(%q, %k, %latents, %visible) {causal = 0 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0>, scale = 0.25 : f64, softcap = 0.0 : f64} : (tensor<2x1x6x1x20xf32>, tensor<2x1x12x20xf32>, tensor<2x1x12x16xf32>, tensor<2x12xi1>) -> tensor<2x1x6x1x16xf32>
  return %0 : tensor<2x1x6x1x16xf32>
}
