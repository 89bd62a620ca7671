// RUN: not snapcc-opt %s --split-input-file --pass-pipeline='builtin.module(kv-check-axis)' 2>%t | filecheck %s
// RUN: filecheck %s --check-prefix=REFUSED --input-file %t

// Features of a cache written beside others into an empty tensor, as an expanded latent is: the cache axis is carried.

// CHECK-LABEL: func.func @features(
func.func @features(%tokens: !torch.vtensor<[2,1],si64> {kv.name = "t", kv.role = "tokens"}, %x: !torch.vtensor<[2,1,4],f32> {kv.name = "x", kv.role = "other"}, %pk: !torch.vtensor<[2,13,4],f32> {kv.name = "k", kv.role = "cache"}) -> (!torch.vtensor<[2,14,6],f32> {kv.name = "logits"}, !torch.vtensor<[2,14,4],f32> {kv.name = "k"}) {
  %int0 = torch.constant.int 0
  %int1 = torch.constant.int 1
  %int2 = torch.constant.int 2
  %int4 = torch.constant.int 4
  %int6 = torch.constant.int 6
  %int14 = torch.constant.int 14
  %none = torch.constant.none
  %shape = torch.prim.ListConstruct %int2, %int14, %int6 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %k = "kv.append"(%pk, %x) {axis = 1 : i64} : (!torch.vtensor<[2,13,4],f32>, !torch.vtensor<[2,1,4],f32>) -> !torch.vtensor<[2,14,4],f32>
  %e = torch.aten.zeros %shape, %int6, %none, %none, %none : !torch.list<int>, !torch.int, !torch.none, !torch.none, !torch.none -> !torch.vtensor<[2,14,6],f32>
  %w = torch.aten.slice_scatter %e, %k, %int2, %int0, %int4, %int1 : !torch.vtensor<[2,14,6],f32>, !torch.vtensor<[2,14,4],f32>, !torch.int, !torch.int, !torch.int, !torch.int -> !torch.vtensor<[2,14,6],f32>
  return %w, %k : !torch.vtensor<[2,14,6],f32>, !torch.vtensor<[2,14,4],f32>
}

// -----

// A part of the cache axis written over.
// REFUSED: error: 'torch.aten.slice_scatter' writes a part of the cache axis
func.func @tokens(%tokens: !torch.vtensor<[2,1],si64> {kv.name = "t", kv.role = "tokens"}, %x: !torch.vtensor<[2,1,4],f32> {kv.name = "x", kv.role = "other"}, %pk: !torch.vtensor<[2,13,4],f32> {kv.name = "k", kv.role = "cache"}) -> (!torch.vtensor<[2,14,4],f32> {kv.name = "logits"}, !torch.vtensor<[2,14,4],f32> {kv.name = "k"}) {
  %int0 = torch.constant.int 0
  %int1 = torch.constant.int 1
  %k = "kv.append"(%pk, %x) {axis = 1 : i64} : (!torch.vtensor<[2,13,4],f32>, !torch.vtensor<[2,1,4],f32>) -> !torch.vtensor<[2,14,4],f32>
  %w = torch.aten.slice_scatter %k, %x, %int1, %int0, %int1, %int1 : !torch.vtensor<[2,14,4],f32>, !torch.vtensor<[2,1,4],f32>, !torch.int, !torch.int, !torch.int, !torch.int -> !torch.vtensor<[2,14,4],f32>
  return %w, %k : !torch.vtensor<[2,14,4],f32>, !torch.vtensor<[2,14,4],f32>
}

// -----

// Chosen by an index along the features, token by token: a router's weights.
// CHECK-LABEL: func.func @chosen(
func.func @chosen(%tokens: !torch.vtensor<[2,1],si64> {kv.name = "t", kv.role = "tokens"}, %x: !torch.vtensor<[2,1,4],f32> {kv.name = "x", kv.role = "other"}, %i: !torch.vtensor<[2,14,2],si64> {kv.name = "i", kv.role = "other"}, %pk: !torch.vtensor<[2,13,4],f32> {kv.name = "k", kv.role = "cache"}) -> (!torch.vtensor<[2,14,2],f32> {kv.name = "logits"}, !torch.vtensor<[2,14,4],f32> {kv.name = "k"}) {
  %int2 = torch.constant.int 2
  %int14 = torch.constant.int 14
  %int0 = torch.constant.int 0
  %int4 = torch.constant.int 4
  %none = torch.constant.none
  %false = torch.constant.bool false
  %shape = torch.prim.ListConstruct %int2, %int14, %int2 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %at = torch.aten.zeros %shape, %int4, %none, %none, %none : !torch.list<int>, !torch.int, !torch.none, !torch.none, !torch.none -> !torch.vtensor<[2,14,2],si64>
  %k = "kv.append"(%pk, %x) {axis = 1 : i64} : (!torch.vtensor<[2,13,4],f32>, !torch.vtensor<[2,1,4],f32>) -> !torch.vtensor<[2,14,4],f32>
  %g = torch.aten.gather %k, %int2, %at, %false : !torch.vtensor<[2,14,4],f32>, !torch.int, !torch.vtensor<[2,14,2],si64>, !torch.bool -> !torch.vtensor<[2,14,2],f32>
  return %g, %k : !torch.vtensor<[2,14,2],f32>, !torch.vtensor<[2,14,4],f32>
}

// -----

// Chosen by an index along the cache.
// REFUSED: error: 'torch.aten.gather' looks up the cache axis
func.func @keys(%tokens: !torch.vtensor<[2,1],si64> {kv.name = "t", kv.role = "tokens"}, %x: !torch.vtensor<[2,1,4],f32> {kv.name = "x", kv.role = "other"}, %i: !torch.vtensor<[2,3,4],si64> {kv.name = "i", kv.role = "other"}, %pk: !torch.vtensor<[2,13,4],f32> {kv.name = "k", kv.role = "cache"}) -> (!torch.vtensor<[2,3,4],f32> {kv.name = "logits"}, !torch.vtensor<[2,14,4],f32> {kv.name = "k"}) {
  %int1 = torch.constant.int 1
  %false = torch.constant.bool false
  %k = "kv.append"(%pk, %x) {axis = 1 : i64} : (!torch.vtensor<[2,13,4],f32>, !torch.vtensor<[2,1,4],f32>) -> !torch.vtensor<[2,14,4],f32>
  %g = torch.aten.gather %k, %int1, %i, %false : !torch.vtensor<[2,14,4],f32>, !torch.int, !torch.vtensor<[2,3,4],si64>, !torch.bool -> !torch.vtensor<[2,3,4],f32>
  return %g, %k : !torch.vtensor<[2,3,4],f32>, !torch.vtensor<[2,14,4],f32>
}
