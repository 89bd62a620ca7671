// RUN: not snapcc-opt %s --split-input-file --pass-pipeline='builtin.module(kv-raise-attention)' 2>&1 | filecheck %s

// CHECK: error: a mask made of a choice among the keys does not hide the keys that are not chosen, and these alone; fill the logits of keys that are not chosen with float('-inf')
func.func @decode(%tokens: !torch.vtensor<[2,1],si64> {kv.name = "t", kv.role = "tokens"}, %x: !torch.vtensor<[2,1,4],f32> {kv.name = "x", kv.role = "other"}, %pk: !torch.vtensor<[2,13,4],f32> {kv.name = "k", kv.role = "cache"}) -> (!torch.vtensor<[2,1,4],f32> {kv.name = "logits"}, !torch.vtensor<[2,14,4],f32> {kv.name = "k"}) {
  %int0 = torch.constant.int 0
  %int1 = torch.constant.int 1
  %int2 = torch.constant.int 2
  %int4 = torch.constant.int 4
  %int6 = torch.constant.int 6
  %int13 = torch.constant.int 13
  %end = torch.constant.int 14
  %last = torch.constant.int -1
  %none = torch.constant.none
  %false = torch.constant.bool false
  %low = torch.constant.float -1.000000e+09
  %swap = torch.prim.ListConstruct %int0, %int2, %int1 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %empty = torch.prim.ListConstruct : () -> !torch.list<int>
  %k = "kv.append"(%pk, %x) {axis = 1 : i64} : (!torch.vtensor<[2,13,4],f32>, !torch.vtensor<[2,1,4],f32>) -> !torch.vtensor<[2,14,4],f32>
  %kt = torch.aten.permute %k, %swap : !torch.vtensor<[2,14,4],f32>, !torch.list<int> -> !torch.vtensor<[2,4,14],f32>
  %s = torch.aten.bmm %x, %kt : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,4,14],f32> -> !torch.vtensor<[2,1,14],f32>
  %fill = torch.aten.full %empty, %low, %int6, %none, %none, %none : !torch.list<int>, !torch.float, !torch.int, !torch.none, !torch.none, !torch.none -> !torch.vtensor<[],f32>
  %chosen = "kv.topk_mask"(%s) {causal = false, count = 6 : i64, operandSegmentSizes = array<i32: 1, 0, 0>} : (!torch.vtensor<[2,1,14],f32>) -> !torch.vtensor<[2,1,14],i1>
  %int7 = torch.constant.int 7
  %iota = torch.aten.arange.start_step %int0, %end, %int1, %int4, %none, %none, %none : !torch.int, !torch.int, !torch.int, !torch.int, !torch.none, !torch.none, !torch.none -> !torch.vtensor<[14],si64>
  %late = torch.aten.ge.Scalar %iota, %int7 : !torch.vtensor<[14],si64>, !torch.int -> !torch.vtensor<[14],i1>
  %not = torch.aten.bitwise_not %chosen : !torch.vtensor<[2,1,14],i1> -> !torch.vtensor<[2,1,14],i1>
  %others = torch.aten.bitwise_and.Tensor %not, %late : !torch.vtensor<[2,1,14],i1>, !torch.vtensor<[14],i1> -> !torch.vtensor<[2,1,14],i1>
  %m = torch.aten.where.self %others, %fill, %s : !torch.vtensor<[2,1,14],i1>, !torch.vtensor<[],f32>, !torch.vtensor<[2,1,14],f32> -> !torch.vtensor<[2,1,14],f32>
  %p = torch.aten._softmax %m, %last, %false : !torch.vtensor<[2,1,14],f32>, !torch.int, !torch.bool -> !torch.vtensor<[2,1,14],f32>
  %o = torch.aten.bmm %p, %k : !torch.vtensor<[2,1,14],f32>, !torch.vtensor<[2,14,4],f32> -> !torch.vtensor<[2,1,4],f32>
  return %o, %k : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,14,4],f32>
}

// -----

// CHECK: error: 'torch.aten.roll' mixes what a choice among the keys says of several keys; mask the logits of the keys that are not chosen, each by itself
func.func @decode(%tokens: !torch.vtensor<[2,1],si64> {kv.name = "t", kv.role = "tokens"}, %x: !torch.vtensor<[2,1,4],f32> {kv.name = "x", kv.role = "other"}, %pk: !torch.vtensor<[2,13,4],f32> {kv.name = "k", kv.role = "cache"}) -> (!torch.vtensor<[2,1,4],f32> {kv.name = "logits"}, !torch.vtensor<[2,14,4],f32> {kv.name = "k"}) {
  %int0 = torch.constant.int 0
  %int1 = torch.constant.int 1
  %int2 = torch.constant.int 2
  %int4 = torch.constant.int 4
  %int6 = torch.constant.int 6
  %int13 = torch.constant.int 13
  %end = torch.constant.int 14
  %last = torch.constant.int -1
  %none = torch.constant.none
  %false = torch.constant.bool false
  %low = torch.constant.float -1.000000e+09
  %swap = torch.prim.ListConstruct %int0, %int2, %int1 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %empty = torch.prim.ListConstruct : () -> !torch.list<int>
  %k = "kv.append"(%pk, %x) {axis = 1 : i64} : (!torch.vtensor<[2,13,4],f32>, !torch.vtensor<[2,1,4],f32>) -> !torch.vtensor<[2,14,4],f32>
  %kt = torch.aten.permute %k, %swap : !torch.vtensor<[2,14,4],f32>, !torch.list<int> -> !torch.vtensor<[2,4,14],f32>
  %s = torch.aten.bmm %x, %kt : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,4,14],f32> -> !torch.vtensor<[2,1,14],f32>
  %fill = torch.aten.full %empty, %low, %int6, %none, %none, %none : !torch.list<int>, !torch.float, !torch.int, !torch.none, !torch.none, !torch.none -> !torch.vtensor<[],f32>
  %chosen = "kv.topk_mask"(%s) {causal = false, count = 6 : i64, operandSegmentSizes = array<i32: 1, 0, 0>} : (!torch.vtensor<[2,1,14],f32>) -> !torch.vtensor<[2,1,14],i1>
  %one = torch.prim.ListConstruct %int1 : (!torch.int) -> !torch.list<int>
  %at = torch.prim.ListConstruct %int2 : (!torch.int) -> !torch.list<int>
  %moved = torch.aten.roll %chosen, %one, %at : !torch.vtensor<[2,1,14],i1>, !torch.list<int>, !torch.list<int> -> !torch.vtensor<[2,1,14],i1>
  %others = torch.aten.bitwise_not %moved : !torch.vtensor<[2,1,14],i1> -> !torch.vtensor<[2,1,14],i1>
  %m = torch.aten.where.self %others, %fill, %s : !torch.vtensor<[2,1,14],i1>, !torch.vtensor<[],f32>, !torch.vtensor<[2,1,14],f32> -> !torch.vtensor<[2,1,14],f32>
  %p = torch.aten._softmax %m, %last, %false : !torch.vtensor<[2,1,14],f32>, !torch.int, !torch.bool -> !torch.vtensor<[2,1,14],f32>
  %o = torch.aten.bmm %p, %k : !torch.vtensor<[2,1,14],f32>, !torch.vtensor<[2,14,4],f32> -> !torch.vtensor<[2,1,4],f32>
  return %o, %k : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,14,4],f32>
}

// -----

// CHECK: error: two choices among the keys mask the same logits; choose once, by the sum of the scores
func.func @decode(%tokens: !torch.vtensor<[2,1],si64> {kv.name = "t", kv.role = "tokens"}, %x: !torch.vtensor<[2,1,4],f32> {kv.name = "x", kv.role = "other"}, %pk: !torch.vtensor<[2,13,4],f32> {kv.name = "k", kv.role = "cache"}) -> (!torch.vtensor<[2,1,4],f32> {kv.name = "logits"}, !torch.vtensor<[2,14,4],f32> {kv.name = "k"}) {
  %int0 = torch.constant.int 0
  %int1 = torch.constant.int 1
  %int2 = torch.constant.int 2
  %int4 = torch.constant.int 4
  %int6 = torch.constant.int 6
  %int13 = torch.constant.int 13
  %end = torch.constant.int 14
  %last = torch.constant.int -1
  %none = torch.constant.none
  %false = torch.constant.bool false
  %low = torch.constant.float -1.000000e+09
  %swap = torch.prim.ListConstruct %int0, %int2, %int1 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %empty = torch.prim.ListConstruct : () -> !torch.list<int>
  %k = "kv.append"(%pk, %x) {axis = 1 : i64} : (!torch.vtensor<[2,13,4],f32>, !torch.vtensor<[2,1,4],f32>) -> !torch.vtensor<[2,14,4],f32>
  %kt = torch.aten.permute %k, %swap : !torch.vtensor<[2,14,4],f32>, !torch.list<int> -> !torch.vtensor<[2,4,14],f32>
  %s = torch.aten.bmm %x, %kt : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,4,14],f32> -> !torch.vtensor<[2,1,14],f32>
  %fill = torch.aten.full %empty, %low, %int6, %none, %none, %none : !torch.list<int>, !torch.float, !torch.int, !torch.none, !torch.none, !torch.none -> !torch.vtensor<[],f32>
  %chosen = "kv.topk_mask"(%s) {causal = false, count = 6 : i64, operandSegmentSizes = array<i32: 1, 0, 0>} : (!torch.vtensor<[2,1,14],f32>) -> !torch.vtensor<[2,1,14],i1>
  %again = "kv.topk_mask"(%s) {causal = false, count = 3 : i64, operandSegmentSizes = array<i32: 1, 0, 0>} : (!torch.vtensor<[2,1,14],f32>) -> !torch.vtensor<[2,1,14],i1>
  %both = torch.aten.bitwise_and.Tensor %chosen, %again : !torch.vtensor<[2,1,14],i1>, !torch.vtensor<[2,1,14],i1> -> !torch.vtensor<[2,1,14],i1>
  %others = torch.aten.bitwise_not %both : !torch.vtensor<[2,1,14],i1> -> !torch.vtensor<[2,1,14],i1>
  %m = torch.aten.where.self %others, %fill, %s : !torch.vtensor<[2,1,14],i1>, !torch.vtensor<[],f32>, !torch.vtensor<[2,1,14],f32> -> !torch.vtensor<[2,1,14],f32>
  %p = torch.aten._softmax %m, %last, %false : !torch.vtensor<[2,1,14],f32>, !torch.int, !torch.bool -> !torch.vtensor<[2,1,14],f32>
  %o = torch.aten.bmm %p, %k : !torch.vtensor<[2,1,14],f32>, !torch.vtensor<[2,14,4],f32> -> !torch.vtensor<[2,1,4],f32>
  return %o, %k : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,14,4],f32>
}
