// RUN: not snapcc-opt %s --split-input-file --pass-pipeline='builtin.module(kv-check-axis)' 2>%t | filecheck %s
// RUN: filecheck %s --check-prefix=REFUSED --input-file %t

// Elementwise ops, views and contractions over other axes carry the cache axis.

// CHECK-LABEL: func.func @carried(
func.func @carried(%tokens: !torch.vtensor<[2,1],si64> {kv.name = "t", kv.role = "tokens"}, %x: !torch.vtensor<[2,1,4],f32> {kv.name = "x", kv.role = "other"}, %w: !torch.vtensor<[2,4,6],f32> {kv.name = "w", kv.role = "other"}, %q: !torch.vtensor<[2,1,1,1,6],f32> {kv.name = "q", kv.role = "other"}, %pk: !torch.vtensor<[2,13,4],f32> {kv.name = "k", kv.role = "cache"}) -> (!torch.vtensor<[2,1,1,1,6],f32> {kv.name = "logits"}, !torch.vtensor<[2,14,4],f32> {kv.name = "k"}) {
  %int1 = torch.constant.int 1
  %k = "kv.append"(%pk, %x) {axis = 1 : i64} : (!torch.vtensor<[2,13,4],f32>, !torch.vtensor<[2,1,4],f32>) -> !torch.vtensor<[2,14,4],f32>
  %n = torch.aten.neg %k : !torch.vtensor<[2,14,4],f32> -> !torch.vtensor<[2,14,4],f32>
  %y = torch.aten.bmm %n, %w : !torch.vtensor<[2,14,4],f32>, !torch.vtensor<[2,4,6],f32> -> !torch.vtensor<[2,14,6],f32>
  %u = torch.aten.unsqueeze %y, %int1 : !torch.vtensor<[2,14,6],f32>, !torch.int -> !torch.vtensor<[2,1,14,6],f32>
  %o = "kv.attention"(%q, %u, %u) {causal = false, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, scale = 1.0 : f64, softcap = 0.0 : f64} : (!torch.vtensor<[2,1,1,1,6],f32>, !torch.vtensor<[2,1,14,6],f32>, !torch.vtensor<[2,1,14,6],f32>) -> !torch.vtensor<[2,1,1,1,6],f32>
  return %o, %k : !torch.vtensor<[2,1,1,1,6],f32>, !torch.vtensor<[2,14,4],f32>
}

// -----

// Tokens repeated along a dimension of their own, for experts, are still those tokens.

// CHECK-LABEL: func.func @tokens_repeated(
func.func @tokens_repeated(%tokens: !torch.vtensor<[1,5],si64> {kv.name = "t", kv.role = "tokens"}, %table: !torch.vtensor<[7,4],f32> {kv.name = "w", kv.role = "other"}, %pk: !torch.vtensor<[1,0,4],f32> {kv.name = "k", kv.role = "cache"}) -> (!torch.vtensor<[5,4],f32> {kv.name = "logits"}, !torch.vtensor<[1,5,4],f32> {kv.name = "k"}) {
  %false = torch.constant.bool false
  %none = torch.constant.none
  %int0 = torch.constant.int 0
  %int1 = torch.constant.int 1
  %int3 = torch.constant.int 3
  %int4 = torch.constant.int 4
  %int5 = torch.constant.int 5
  %flat = torch.prim.ListConstruct %int5, %int4 : (!torch.int, !torch.int) -> !torch.list<int>
  %times = torch.prim.ListConstruct %int3, %int1 : (!torch.int, !torch.int) -> !torch.list<int>
  %experts = torch.prim.ListConstruct %int3, %int5, %int4 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %over = torch.prim.ListConstruct %int0 : (!torch.int) -> !torch.list<int>
  %x = torch.aten.embedding %table, %tokens, %int0, %false, %false : !torch.vtensor<[7,4],f32>, !torch.vtensor<[1,5],si64>, !torch.int, !torch.bool, !torch.bool -> !torch.vtensor<[1,5,4],f32>
  %k = "kv.append"(%pk, %x) {axis = 1 : i64} : (!torch.vtensor<[1,0,4],f32>, !torch.vtensor<[1,5,4],f32>) -> !torch.vtensor<[1,5,4],f32>
  %rows = torch.aten.view %x, %flat : !torch.vtensor<[1,5,4],f32>, !torch.list<int> -> !torch.vtensor<[5,4],f32>
  %each = torch.aten.repeat %rows, %times : !torch.vtensor<[5,4],f32>, !torch.list<int> -> !torch.vtensor<[15,4],f32>
  %apart = torch.aten.view %each, %experts : !torch.vtensor<[15,4],f32>, !torch.list<int> -> !torch.vtensor<[3,5,4],f32>
  %sum = torch.aten.sum.dim_IntList %apart, %over, %false, %none : !torch.vtensor<[3,5,4],f32>, !torch.list<int>, !torch.bool, !torch.none -> !torch.vtensor<[5,4],f32>
  return %sum, %k : !torch.vtensor<[5,4],f32>, !torch.vtensor<[1,5,4],f32>
}

// -----

// REFUSED: mean.py:9:2: error: 'torch.aten.mean.dim' reduces the cache axis: fixed slots stand in any order and some are empty; leave the cache's sequence axis to a softmax and its product with the values
func.func @mean(%tokens: !torch.vtensor<[2,1],si64> {kv.name = "t", kv.role = "tokens"}, %x: !torch.vtensor<[2,1,4],f32> {kv.name = "x", kv.role = "other"}, %pk: !torch.vtensor<[2,13,4],f32> {kv.name = "k", kv.role = "cache"}) -> (!torch.vtensor<[2,4],f32> {kv.name = "logits"}, !torch.vtensor<[2,14,4],f32> {kv.name = "k"}) {
  %int1 = torch.constant.int 1
  %false = torch.constant.bool false
  %none = torch.constant.none
  %dims = torch.prim.ListConstruct %int1 : (!torch.int) -> !torch.list<int>
  %k = "kv.append"(%pk, %x) {axis = 1 : i64} : (!torch.vtensor<[2,13,4],f32>, !torch.vtensor<[2,1,4],f32>) -> !torch.vtensor<[2,14,4],f32>
  %m = torch.aten.mean.dim %k, %dims, %false, %none : !torch.vtensor<[2,14,4],f32>, !torch.list<int>, !torch.bool, !torch.none -> !torch.vtensor<[2,4],f32> loc("mean.py":9:2)
  return %m, %k : !torch.vtensor<[2,4],f32>, !torch.vtensor<[2,14,4],f32>
}

// -----

// REFUSED: error: 'torch.aten.mul.Tensor' combines with values that differ along the cache axis
func.func @rotated(%tokens: !torch.vtensor<[2,1],si64> {kv.name = "t", kv.role = "tokens"}, %x: !torch.vtensor<[2,1,4],f32> {kv.name = "x", kv.role = "other"}, %c: !torch.vtensor<[14,4],f32> {kv.name = "c", kv.role = "other"}, %pk: !torch.vtensor<[2,13,4],f32> {kv.name = "k", kv.role = "cache"}) -> (!torch.vtensor<[2,14,4],f32> {kv.name = "logits"}, !torch.vtensor<[2,14,4],f32> {kv.name = "k"}) {
  %k = "kv.append"(%pk, %x) {axis = 1 : i64} : (!torch.vtensor<[2,13,4],f32>, !torch.vtensor<[2,1,4],f32>) -> !torch.vtensor<[2,14,4],f32>
  %m = torch.aten.mul.Tensor %k, %c : !torch.vtensor<[2,14,4],f32>, !torch.vtensor<[14,4],f32> -> !torch.vtensor<[2,14,4],f32>
  return %m, %k : !torch.vtensor<[2,14,4],f32>, !torch.vtensor<[2,14,4],f32>
}

// -----

// REFUSED: error: 'torch.aten.slice.Tensor' takes a part of the cache axis
func.func @newest(%tokens: !torch.vtensor<[2,1],si64> {kv.name = "t", kv.role = "tokens"}, %x: !torch.vtensor<[2,1,4],f32> {kv.name = "x", kv.role = "other"}, %pk: !torch.vtensor<[2,13,4],f32> {kv.name = "k", kv.role = "cache"}) -> (!torch.vtensor<[2,1,4],f32> {kv.name = "logits"}, !torch.vtensor<[2,14,4],f32> {kv.name = "k"}) {
  %int1 = torch.constant.int 1
  %int13 = torch.constant.int 13
  %int14 = torch.constant.int 14
  %k = "kv.append"(%pk, %x) {axis = 1 : i64} : (!torch.vtensor<[2,13,4],f32>, !torch.vtensor<[2,1,4],f32>) -> !torch.vtensor<[2,14,4],f32>
  %m = torch.aten.slice.Tensor %k, %int1, %int13, %int14, %int1 : !torch.vtensor<[2,14,4],f32>, !torch.int, !torch.int, !torch.int, !torch.int -> !torch.vtensor<[2,1,4],f32>
  return %m, %k : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,14,4],f32>
}

// -----

// REFUSED: error: 'torch.aten.fft_fft' is of no known kind and takes the cache axis
func.func @unknown(%tokens: !torch.vtensor<[2,1],si64> {kv.name = "t", kv.role = "tokens"}, %x: !torch.vtensor<[2,1,4],f32> {kv.name = "x", kv.role = "other"}, %pk: !torch.vtensor<[2,13,4],f32> {kv.name = "k", kv.role = "cache"}) -> (!torch.vtensor<[2,14,4],complex<f32>> {kv.name = "logits"}, !torch.vtensor<[2,14,4],f32> {kv.name = "k"}) {
  %int1 = torch.constant.int 1
  %none = torch.constant.none
  %k = "kv.append"(%pk, %x) {axis = 1 : i64} : (!torch.vtensor<[2,13,4],f32>, !torch.vtensor<[2,1,4],f32>) -> !torch.vtensor<[2,14,4],f32>
  %m = torch.aten.fft_fft %k, %none, %int1, %none : !torch.vtensor<[2,14,4],f32>, !torch.none, !torch.int, !torch.none -> !torch.vtensor<[2,14,4],complex<f32>>
  return %m, %k : !torch.vtensor<[2,14,4],complex<f32>>, !torch.vtensor<[2,14,4],f32>
}

// -----

// In a padded prompt no op but attention may mix tokens.
// REFUSED: error: 'torch.aten.cumsum' orders or shifts the tokens of the prompt: the padding behind a prompt would reach its tokens; treat each token on its own outside attention
func.func @prefill(%tokens: !torch.vtensor<[1,8],si64> {kv.name = "t", kv.role = "tokens"}, %w: !torch.vtensor<[9,4],f32> {kv.name = "w", kv.role = "other"}, %pk: !torch.vtensor<[1,0,4],f32> {kv.name = "k", kv.role = "cache"}) -> (!torch.vtensor<[1,8,4],f32> {kv.name = "logits"}, !torch.vtensor<[1,8,4],f32> {kv.name = "k"}) {
  %int-1 = torch.constant.int -1
  %int1 = torch.constant.int 1
  %false = torch.constant.bool false
  %none = torch.constant.none
  %x = torch.aten.embedding %w, %tokens, %int-1, %false, %false : !torch.vtensor<[9,4],f32>, !torch.vtensor<[1,8],si64>, !torch.int, !torch.bool, !torch.bool -> !torch.vtensor<[1,8,4],f32>
  %k = "kv.append"(%pk, %x) {axis = 1 : i64} : (!torch.vtensor<[1,0,4],f32>, !torch.vtensor<[1,8,4],f32>) -> !torch.vtensor<[1,8,4],f32>
  %c = torch.aten.cumsum %x, %int1, %none : !torch.vtensor<[1,8,4],f32>, !torch.int, !torch.none -> !torch.vtensor<[1,8,4],f32>
  return %c, %k : !torch.vtensor<[1,8,4],f32>, !torch.vtensor<[1,8,4],f32>
}

// -----

// REFUSED: error: 'torch.aten.sum.dim_IntList' reduces the tokens of the prompt
func.func @repeated_and_reduced(%tokens: !torch.vtensor<[1,5],si64> {kv.name = "t", kv.role = "tokens"}, %table: !torch.vtensor<[7,4],f32> {kv.name = "w", kv.role = "other"}, %pk: !torch.vtensor<[1,0,4],f32> {kv.name = "k", kv.role = "cache"}) -> (!torch.vtensor<[1,1,4],f32> {kv.name = "logits"}, !torch.vtensor<[1,5,4],f32> {kv.name = "k"}) {
  %false = torch.constant.bool false
  %true = torch.constant.bool true
  %none = torch.constant.none
  %int0 = torch.constant.int 0
  %int1 = torch.constant.int 1
  %int3 = torch.constant.int 3
  %times = torch.prim.ListConstruct %int1, %int3, %int1 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %over = torch.prim.ListConstruct %int1 : (!torch.int) -> !torch.list<int>
  %x = torch.aten.embedding %table, %tokens, %int0, %false, %false : !torch.vtensor<[7,4],f32>, !torch.vtensor<[1,5],si64>, !torch.int, !torch.bool, !torch.bool -> !torch.vtensor<[1,5,4],f32>
  %k = "kv.append"(%pk, %x) {axis = 1 : i64} : (!torch.vtensor<[1,0,4],f32>, !torch.vtensor<[1,5,4],f32>) -> !torch.vtensor<[1,5,4],f32>
  %each = torch.aten.repeat %x, %times : !torch.vtensor<[1,5,4],f32>, !torch.list<int> -> !torch.vtensor<[1,15,4],f32>
  %sum = torch.aten.sum.dim_IntList %each, %over, %true, %none : !torch.vtensor<[1,15,4],f32>, !torch.list<int>, !torch.bool, !torch.none -> !torch.vtensor<[1,1,4],f32>
  return %sum, %k : !torch.vtensor<[1,1,4],f32>, !torch.vtensor<[1,5,4],f32>
}

// -----

// Of several ops, the one that loses the axis is named.

// REFUSED: error: 'torch.aten.logsumexp' reduces the cache axis
func.func @masked_and_reduced(%tokens: !torch.vtensor<[2,1],si64> {kv.name = "t", kv.role = "tokens"}, %x: !torch.vtensor<[2,1,4],f32> {kv.name = "x", kv.role = "other"}, %c: !torch.vtensor<[14,1],f32> {kv.name = "c", kv.role = "other"}, %pk: !torch.vtensor<[2,13,4],f32> {kv.name = "k", kv.role = "cache"}) -> (!torch.vtensor<[2,4],f32> {kv.name = "logits"}, !torch.vtensor<[2,14,4],f32> {kv.name = "k"}) {
  %int1 = torch.constant.int 1
  %false = torch.constant.bool false
  %dims = torch.prim.ListConstruct %int1 : (!torch.int) -> !torch.list<int>
  %k = "kv.append"(%pk, %x) {axis = 1 : i64} : (!torch.vtensor<[2,13,4],f32>, !torch.vtensor<[2,1,4],f32>) -> !torch.vtensor<[2,14,4],f32>
  %a = torch.aten.add.Tensor %k, %c, %int1 : !torch.vtensor<[2,14,4],f32>, !torch.vtensor<[14,1],f32>, !torch.int -> !torch.vtensor<[2,14,4],f32>
  %m = torch.aten.logsumexp %a, %dims, %false : !torch.vtensor<[2,14,4],f32>, !torch.list<int>, !torch.bool -> !torch.vtensor<[2,4],f32>
  return %m, %k : !torch.vtensor<[2,4],f32>, !torch.vtensor<[2,14,4],f32>
}
