// RUN: not snapcc-opt %s --split-input-file --pass-pipeline='builtin.module(kv-raise-attention)' 2>%t | filecheck %s
// RUN: filecheck %s --check-prefix=REFUSED --input-file %t

// Each token stands at its position's index, and the mask hides what comes after the query, at every position.

// CHECK-LABEL: func.func @decode(
// CHECK-NOT: torch.aten.where
// CHECK: "kv.attention"
func.func @decode(%tokens: !torch.vtensor<[2,1],si64> {kv.name = "t", kv.role = "tokens"}, %w: !torch.vtensor<[64,4],f32> {kv.name = "w", kv.role = "other"}, %pk: !torch.vtensor<[2,13,4],f32> {kv.name = "k", kv.order = "indexed", kv.role = "cache"}, %pos: !torch.vtensor<[2,1],si64> {kv.name = "p", kv.role = "positions"}) -> (!torch.vtensor<[2,1,4],f32> {kv.name = "logits"}, !torch.vtensor<[2,14,4],f32> {kv.name = "k"}) {
  %pad = torch.constant.int -1
  %no = torch.constant.bool false
  %int1 = torch.constant.int 1
  %x = torch.aten.embedding %w, %tokens, %pad, %no, %no : !torch.vtensor<[64,4],f32>, !torch.vtensor<[2,1],si64>, !torch.int, !torch.bool, !torch.bool -> !torch.vtensor<[2,1,4],f32>
  %y = torch.aten.tanh %x : !torch.vtensor<[2,1,4],f32> -> !torch.vtensor<[2,1,4],f32>
  %k = "kv.append"(%pk, %y) {axis = 1 : i64} : (!torch.vtensor<[2,13,4],f32>, !torch.vtensor<[2,1,4],f32>) -> !torch.vtensor<[2,14,4],f32>
  %int0 = torch.constant.int 0
  %int2 = torch.constant.int 2
  %int4 = torch.constant.int 4
  %int6 = torch.constant.int 6
  %int14 = torch.constant.int 14
  %none = torch.constant.none
  %low = torch.constant.float -1.000000e+09
  %order = torch.prim.ListConstruct %int0, %int2, %int1 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %empty = torch.prim.ListConstruct : () -> !torch.list<int>
  %kt = torch.aten.permute %k, %order : !torch.vtensor<[2,14,4],f32>, !torch.list<int> -> !torch.vtensor<[2,4,14],f32>
  %s = torch.aten.bmm %y, %kt : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,4,14],f32> -> !torch.vtensor<[2,1,14],f32>
  %iota = torch.aten.arange.start_step %int0, %int14, %int1, %int4, %none, %none, %none : !torch.int, !torch.int, !torch.int, !torch.int, !torch.none, !torch.none, !torch.none -> !torch.vtensor<[14],si64>
  %p3 = torch.aten.unsqueeze %pos, %int2 : !torch.vtensor<[2,1],si64>, !torch.int -> !torch.vtensor<[2,1,1],si64>
  %seen = torch.aten.le.Tensor %iota, %p3 : !torch.vtensor<[14],si64>, !torch.vtensor<[2,1,1],si64> -> !torch.vtensor<[2,1,14],i1>
  %fill = torch.aten.full %empty, %low, %int6, %none, %none, %none : !torch.list<int>, !torch.float, !torch.int, !torch.none, !torch.none, !torch.none -> !torch.vtensor<[],f32>
  %masked = torch.aten.where.self %seen, %s, %fill : !torch.vtensor<[2,1,14],i1>, !torch.vtensor<[2,1,14],f32>, !torch.vtensor<[],f32> -> !torch.vtensor<[2,1,14],f32>
  %p = torch.aten._softmax %masked, %int2, %no : !torch.vtensor<[2,1,14],f32>, !torch.int, !torch.bool -> !torch.vtensor<[2,1,14],f32>
  %o = torch.aten.bmm %p, %k : !torch.vtensor<[2,1,14],f32>, !torch.vtensor<[2,14,4],f32> -> !torch.vtensor<[2,1,4],f32>
  return %o, %k : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,14,4],f32>
}

// -----

// A ring: from position 14 on, an index holds the latest position that leaves it as the rest. The mask goes by that
// position, and lets a query see the last five tokens.

// CHECK-LABEL: func.func @decode(
// CHECK-NOT: torch.aten.where
// CHECK: "kv.attention"{{.*}}window = 5
func.func @decode(%tokens: !torch.vtensor<[2,1],si64> {kv.name = "t", kv.role = "tokens"}, %w: !torch.vtensor<[64,4],f32> {kv.name = "w", kv.role = "other"}, %pk: !torch.vtensor<[2,13,4],f32> {kv.name = "k", kv.order = "wrapped", kv.role = "cache"}, %pos: !torch.vtensor<[2,1],si64> {kv.name = "p", kv.role = "positions"}) -> (!torch.vtensor<[2,1,4],f32> {kv.name = "logits"}, !torch.vtensor<[2,14,4],f32> {kv.name = "k"}) {
  %pad = torch.constant.int -1
  %no = torch.constant.bool false
  %int1 = torch.constant.int 1
  %x = torch.aten.embedding %w, %tokens, %pad, %no, %no : !torch.vtensor<[64,4],f32>, !torch.vtensor<[2,1],si64>, !torch.int, !torch.bool, !torch.bool -> !torch.vtensor<[2,1,4],f32>
  %y = torch.aten.tanh %x : !torch.vtensor<[2,1,4],f32> -> !torch.vtensor<[2,1,4],f32>
  %k = "kv.append"(%pk, %y) {axis = 1 : i64} : (!torch.vtensor<[2,13,4],f32>, !torch.vtensor<[2,1,4],f32>) -> !torch.vtensor<[2,14,4],f32>
  %int0 = torch.constant.int 0
  %int2 = torch.constant.int 2
  %int4 = torch.constant.int 4
  %int6 = torch.constant.int 6
  %int14 = torch.constant.int 14
  %none = torch.constant.none
  %low = torch.constant.float -1.000000e+09
  %order = torch.prim.ListConstruct %int0, %int2, %int1 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %empty = torch.prim.ListConstruct : () -> !torch.list<int>
  %kt = torch.aten.permute %k, %order : !torch.vtensor<[2,14,4],f32>, !torch.list<int> -> !torch.vtensor<[2,4,14],f32>
  %s = torch.aten.bmm %y, %kt : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,4,14],f32> -> !torch.vtensor<[2,1,14],f32>
  %iota = torch.aten.arange.start_step %int0, %int14, %int1, %int4, %none, %none, %none : !torch.int, !torch.int, !torch.int, !torch.int, !torch.none, !torch.none, !torch.none -> !torch.vtensor<[14],si64>
  %p3 = torch.aten.unsqueeze %pos, %int2 : !torch.vtensor<[2,1],si64>, !torch.int -> !torch.vtensor<[2,1,1],si64>
  %int5 = torch.constant.int 5
  %back = torch.aten.sub.Tensor %p3, %iota, %int1 : !torch.vtensor<[2,1,1],si64>, !torch.vtensor<[14],si64>, !torch.int -> !torch.vtensor<[2,1,14],si64>
  %age = torch.aten.remainder.Scalar %back, %int14 : !torch.vtensor<[2,1,14],si64>, !torch.int -> !torch.vtensor<[2,1,14],si64>
  %held = torch.aten.sub.Tensor %p3, %age, %int1 : !torch.vtensor<[2,1,1],si64>, !torch.vtensor<[2,1,14],si64>, !torch.int -> !torch.vtensor<[2,1,14],si64>
  %there = torch.aten.ge.Scalar %held, %int0 : !torch.vtensor<[2,1,14],si64>, !torch.int -> !torch.vtensor<[2,1,14],i1>
  %young = torch.aten.lt.Scalar %age, %int5 : !torch.vtensor<[2,1,14],si64>, !torch.int -> !torch.vtensor<[2,1,14],i1>
  %seen = torch.aten.logical_and %there, %young : !torch.vtensor<[2,1,14],i1>, !torch.vtensor<[2,1,14],i1> -> !torch.vtensor<[2,1,14],i1>
  %fill = torch.aten.full %empty, %low, %int6, %none, %none, %none : !torch.list<int>, !torch.float, !torch.int, !torch.none, !torch.none, !torch.none -> !torch.vtensor<[],f32>
  %masked = torch.aten.where.self %seen, %s, %fill : !torch.vtensor<[2,1,14],i1>, !torch.vtensor<[2,1,14],f32>, !torch.vtensor<[],f32> -> !torch.vtensor<[2,1,14],f32>
  %p = torch.aten._softmax %masked, %int2, %no : !torch.vtensor<[2,1,14],f32>, !torch.int, !torch.bool -> !torch.vtensor<[2,1,14],f32>
  %o = torch.aten.bmm %p, %k : !torch.vtensor<[2,1,14],f32>, !torch.vtensor<[2,14,4],f32> -> !torch.vtensor<[2,1,4],f32>
  return %o, %k : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,14,4],f32>
}

// -----

// The newest token is hidden.

// REFUSED: error: attention over the cache is neither causal nor a window or chunks: of 1 queries over 1 keys, query 0 at position 0 does not see key 0; prefixes and documents in the mask are not supported yet
func.func @decode(%tokens: !torch.vtensor<[2,1],si64> {kv.name = "t", kv.role = "tokens"}, %w: !torch.vtensor<[64,4],f32> {kv.name = "w", kv.role = "other"}, %pk: !torch.vtensor<[2,13,4],f32> {kv.name = "k", kv.order = "indexed", kv.role = "cache"}, %pos: !torch.vtensor<[2,1],si64> {kv.name = "p", kv.role = "positions"}) -> (!torch.vtensor<[2,1,4],f32> {kv.name = "logits"}, !torch.vtensor<[2,14,4],f32> {kv.name = "k"}) {
  %pad = torch.constant.int -1
  %no = torch.constant.bool false
  %int1 = torch.constant.int 1
  %x = torch.aten.embedding %w, %tokens, %pad, %no, %no : !torch.vtensor<[64,4],f32>, !torch.vtensor<[2,1],si64>, !torch.int, !torch.bool, !torch.bool -> !torch.vtensor<[2,1,4],f32>
  %y = torch.aten.tanh %x : !torch.vtensor<[2,1,4],f32> -> !torch.vtensor<[2,1,4],f32>
  %k = "kv.append"(%pk, %y) {axis = 1 : i64} : (!torch.vtensor<[2,13,4],f32>, !torch.vtensor<[2,1,4],f32>) -> !torch.vtensor<[2,14,4],f32>
  %int0 = torch.constant.int 0
  %int2 = torch.constant.int 2
  %int4 = torch.constant.int 4
  %int6 = torch.constant.int 6
  %int14 = torch.constant.int 14
  %none = torch.constant.none
  %low = torch.constant.float -1.000000e+09
  %order = torch.prim.ListConstruct %int0, %int2, %int1 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %empty = torch.prim.ListConstruct : () -> !torch.list<int>
  %kt = torch.aten.permute %k, %order : !torch.vtensor<[2,14,4],f32>, !torch.list<int> -> !torch.vtensor<[2,4,14],f32>
  %s = torch.aten.bmm %y, %kt : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,4,14],f32> -> !torch.vtensor<[2,1,14],f32>
  %iota = torch.aten.arange.start_step %int0, %int14, %int1, %int4, %none, %none, %none : !torch.int, !torch.int, !torch.int, !torch.int, !torch.none, !torch.none, !torch.none -> !torch.vtensor<[14],si64>
  %p3 = torch.aten.unsqueeze %pos, %int2 : !torch.vtensor<[2,1],si64>, !torch.int -> !torch.vtensor<[2,1,1],si64>
  %seen = torch.aten.lt.Tensor %iota, %p3 : !torch.vtensor<[14],si64>, !torch.vtensor<[2,1,1],si64> -> !torch.vtensor<[2,1,14],i1>
  %fill = torch.aten.full %empty, %low, %int6, %none, %none, %none : !torch.list<int>, !torch.float, !torch.int, !torch.none, !torch.none, !torch.none -> !torch.vtensor<[],f32>
  %masked = torch.aten.where.self %seen, %s, %fill : !torch.vtensor<[2,1,14],i1>, !torch.vtensor<[2,1,14],f32>, !torch.vtensor<[],f32> -> !torch.vtensor<[2,1,14],f32>
  %p = torch.aten._softmax %masked, %int2, %no : !torch.vtensor<[2,1,14],f32>, !torch.int, !torch.bool -> !torch.vtensor<[2,1,14],f32>
  %o = torch.aten.bmm %p, %k : !torch.vtensor<[2,1,14],f32>, !torch.vtensor<[2,14,4],f32> -> !torch.vtensor<[2,1,4],f32>
  return %o, %k : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,14,4],f32>
}
