// RUN: not snapcc-opt %s --split-input-file --pass-pipeline='builtin.module(kv-raise-attention)' 2>&1 | filecheck %s

// What stands around a softmax over the cache and is not known to be harmless is refused at its own line.

// CHECK: weights.py:7:{{[0-9]+}}: error: the attention weights along the cache axis are used by 'torch.aten.mul.Scalar'; use them only in a product with the cached values
func.func @weights(%tokens: !torch.vtensor<[2,1],si64> {kv.name = "t", kv.role = "tokens"}, %x: !torch.vtensor<[2,1,4],f32> {kv.name = "x", kv.role = "other"}, %pk: !torch.vtensor<[2,13,4],f32> {kv.name = "k", kv.role = "cache"}) -> (!torch.vtensor<[2,1,4],f32> {kv.name = "logits"}, !torch.vtensor<[2,14,4],f32> {kv.name = "k"}) {
  %int0 = torch.constant.int 0
  %int1 = torch.constant.int 1
  %int2 = torch.constant.int 2
  %false = torch.constant.bool false
  %half = torch.constant.float 5.000000e-01
  %order = torch.prim.ListConstruct %int0, %int2, %int1 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %k = "kv.append"(%pk, %x) {axis = 1 : i64} : (!torch.vtensor<[2,13,4],f32>, !torch.vtensor<[2,1,4],f32>) -> !torch.vtensor<[2,14,4],f32>
  %kt = torch.aten.permute %k, %order : !torch.vtensor<[2,14,4],f32>, !torch.list<int> -> !torch.vtensor<[2,4,14],f32>
  %s = torch.aten.bmm %x, %kt : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,4,14],f32> -> !torch.vtensor<[2,1,14],f32>
  %p = torch.aten._softmax %s, %int2, %false : !torch.vtensor<[2,1,14],f32>, !torch.int, !torch.bool -> !torch.vtensor<[2,1,14],f32>
  %d = torch.aten.mul.Scalar %p, %half : !torch.vtensor<[2,1,14],f32>, !torch.float -> !torch.vtensor<[2,1,14],f32> loc("weights.py":7:3)
  %o = torch.aten.bmm %d, %k : !torch.vtensor<[2,1,14],f32>, !torch.vtensor<[2,14,4],f32> -> !torch.vtensor<[2,1,4],f32>
  return %o, %k : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,14,4],f32>
}

// -----

// CHECK: error: a mask on the logits depends on the input 'm', whose meaning is not known; declare it with --causal-mask m if it is plainly causal
func.func @undeclared(%tokens: !torch.vtensor<[2,1],si64> {kv.name = "t", kv.role = "tokens"}, %x: !torch.vtensor<[2,1,4],f32> {kv.name = "x", kv.role = "other"}, %m: !torch.vtensor<[2,1,14],f32> {kv.name = "m", kv.role = "other"}, %pk: !torch.vtensor<[2,13,4],f32> {kv.name = "k", kv.role = "cache"}) -> (!torch.vtensor<[2,1,4],f32> {kv.name = "logits"}, !torch.vtensor<[2,14,4],f32> {kv.name = "k"}) {
  %int0 = torch.constant.int 0
  %int1 = torch.constant.int 1
  %int2 = torch.constant.int 2
  %false = torch.constant.bool false
  %order = torch.prim.ListConstruct %int0, %int2, %int1 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %k = "kv.append"(%pk, %x) {axis = 1 : i64} : (!torch.vtensor<[2,13,4],f32>, !torch.vtensor<[2,1,4],f32>) -> !torch.vtensor<[2,14,4],f32>
  %kt = torch.aten.permute %k, %order : !torch.vtensor<[2,14,4],f32>, !torch.list<int> -> !torch.vtensor<[2,4,14],f32>
  %s = torch.aten.bmm %x, %kt : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,4,14],f32> -> !torch.vtensor<[2,1,14],f32>
  %masked = torch.aten.add.Tensor %s, %m, %int1 : !torch.vtensor<[2,1,14],f32>, !torch.vtensor<[2,1,14],f32>, !torch.int -> !torch.vtensor<[2,1,14],f32>
  %p = torch.aten._softmax %masked, %int2, %false : !torch.vtensor<[2,1,14],f32>, !torch.int, !torch.bool -> !torch.vtensor<[2,1,14],f32>
  %o = torch.aten.bmm %p, %k : !torch.vtensor<[2,1,14],f32>, !torch.vtensor<[2,14,4],f32> -> !torch.vtensor<[2,1,4],f32>
  return %o, %k : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,14,4],f32>
}

// -----

// CHECK: error: a mask or bias on the logits is made of the state 'm'; make masks depend on lengths and positions alone
func.func @carried(%tokens: !torch.vtensor<[2,1],si64> {kv.name = "t", kv.role = "tokens"}, %x: !torch.vtensor<[2,1,4],f32> {kv.name = "x", kv.role = "other"}, %m: !torch.vtensor<[2,1,14],f32> {kv.name = "m", kv.role = "state"}, %pk: !torch.vtensor<[2,13,4],f32> {kv.name = "k", kv.role = "cache"}) -> (!torch.vtensor<[2,1,4],f32> {kv.name = "logits"}, !torch.vtensor<[2,14,4],f32> {kv.name = "k"}) {
  %int0 = torch.constant.int 0
  %int1 = torch.constant.int 1
  %int2 = torch.constant.int 2
  %false = torch.constant.bool false
  %order = torch.prim.ListConstruct %int0, %int2, %int1 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %k = "kv.append"(%pk, %x) {axis = 1 : i64} : (!torch.vtensor<[2,13,4],f32>, !torch.vtensor<[2,1,4],f32>) -> !torch.vtensor<[2,14,4],f32>
  %kt = torch.aten.permute %k, %order : !torch.vtensor<[2,14,4],f32>, !torch.list<int> -> !torch.vtensor<[2,4,14],f32>
  %s = torch.aten.bmm %x, %kt : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,4,14],f32> -> !torch.vtensor<[2,1,14],f32>
  %masked = torch.aten.add.Tensor %s, %m, %int1 : !torch.vtensor<[2,1,14],f32>, !torch.vtensor<[2,1,14],f32>, !torch.int -> !torch.vtensor<[2,1,14],f32>
  %p = torch.aten._softmax %masked, %int2, %false : !torch.vtensor<[2,1,14],f32>, !torch.int, !torch.bool -> !torch.vtensor<[2,1,14],f32>
  %o = torch.aten.bmm %p, %k : !torch.vtensor<[2,1,14],f32>, !torch.vtensor<[2,14,4],f32> -> !torch.vtensor<[2,1,4],f32>
  return %o, %k : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,14,4],f32>
}

// -----

// Five keys of fourteen, at one length only.
// CHECK: error: a query at position 40 sees keys from 36 on: a sliding window of 5 tokens, or chunks of 9; compile a prompt of more than 5 tokens too, which shows which it is
func.func @window(%tokens: !torch.vtensor<[2,1],si64> {kv.name = "t", kv.role = "tokens"}, %x: !torch.vtensor<[2,1,4],f32> {kv.name = "x", kv.role = "other"}, %pk: !torch.vtensor<[2,13,4],f32> {kv.name = "k", kv.role = "cache"}) -> (!torch.vtensor<[2,1,4],f32> {kv.name = "logits"}, !torch.vtensor<[2,14,4],f32> {kv.name = "k"}) {
  %int0 = torch.constant.int 0
  %int1 = torch.constant.int 1
  %int2 = torch.constant.int 2
  %int4 = torch.constant.int 4
  %int8 = torch.constant.int 8
  %int14 = torch.constant.int 14
  %none = torch.constant.none
  %false = torch.constant.bool false
  %low = torch.constant.float -1.000000e+09
  %order = torch.prim.ListConstruct %int0, %int2, %int1 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %empty = torch.prim.ListConstruct : () -> !torch.list<int>
  %int6 = torch.constant.int 6
  %k = "kv.append"(%pk, %x) {axis = 1 : i64} : (!torch.vtensor<[2,13,4],f32>, !torch.vtensor<[2,1,4],f32>) -> !torch.vtensor<[2,14,4],f32>
  %kt = torch.aten.permute %k, %order : !torch.vtensor<[2,14,4],f32>, !torch.list<int> -> !torch.vtensor<[2,4,14],f32>
  %s = torch.aten.bmm %x, %kt : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,4,14],f32> -> !torch.vtensor<[2,1,14],f32>
  %iota = torch.aten.arange.start_step %int0, %int14, %int1, %int4, %none, %none, %none : !torch.int, !torch.int, !torch.int, !torch.int, !torch.none, !torch.none, !torch.none -> !torch.vtensor<[14],si64>
  %near = torch.aten.gt.Scalar %iota, %int8 : !torch.vtensor<[14],si64>, !torch.int -> !torch.vtensor<[14],i1>
  %fill = torch.aten.full %empty, %low, %int6, %none, %none, %none : !torch.list<int>, !torch.float, !torch.int, !torch.none, !torch.none, !torch.none -> !torch.vtensor<[],f32>
  %masked = torch.aten.where.self %near, %s, %fill : !torch.vtensor<[14],i1>, !torch.vtensor<[2,1,14],f32>, !torch.vtensor<[],f32> -> !torch.vtensor<[2,1,14],f32>
  %p = torch.aten._softmax %masked, %int2, %false : !torch.vtensor<[2,1,14],f32>, !torch.int, !torch.bool -> !torch.vtensor<[2,1,14],f32>
  %o = torch.aten.bmm %p, %k : !torch.vtensor<[2,1,14],f32>, !torch.vtensor<[2,14,4],f32> -> !torch.vtensor<[2,1,4],f32>
  return %o, %k : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,14,4],f32>
}
func.func @window_probe(%tokens: !torch.vtensor<[2,1],si64> {kv.name = "t", kv.role = "tokens"}, %x: !torch.vtensor<[2,1,4],f32> {kv.name = "x", kv.role = "other"}, %pk: !torch.vtensor<[2,40,4],f32> {kv.name = "k", kv.role = "cache"}) -> (!torch.vtensor<[2,1,4],f32> {kv.name = "logits"}, !torch.vtensor<[2,41,4],f32> {kv.name = "k"}) {
  %int0 = torch.constant.int 0
  %int1 = torch.constant.int 1
  %int2 = torch.constant.int 2
  %int4 = torch.constant.int 4
  %int8 = torch.constant.int 35
  %int14 = torch.constant.int 41
  %none = torch.constant.none
  %false = torch.constant.bool false
  %low = torch.constant.float -1.000000e+09
  %order = torch.prim.ListConstruct %int0, %int2, %int1 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %empty = torch.prim.ListConstruct : () -> !torch.list<int>
  %int6 = torch.constant.int 6
  %k = "kv.append"(%pk, %x) {axis = 1 : i64} : (!torch.vtensor<[2,40,4],f32>, !torch.vtensor<[2,1,4],f32>) -> !torch.vtensor<[2,41,4],f32>
  %kt = torch.aten.permute %k, %order : !torch.vtensor<[2,41,4],f32>, !torch.list<int> -> !torch.vtensor<[2,4,41],f32>
  %s = torch.aten.bmm %x, %kt : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,4,41],f32> -> !torch.vtensor<[2,1,41],f32>
  %iota = torch.aten.arange.start_step %int0, %int14, %int1, %int4, %none, %none, %none : !torch.int, !torch.int, !torch.int, !torch.int, !torch.none, !torch.none, !torch.none -> !torch.vtensor<[41],si64>
  %near = torch.aten.gt.Scalar %iota, %int8 : !torch.vtensor<[41],si64>, !torch.int -> !torch.vtensor<[41],i1>
  %fill = torch.aten.full %empty, %low, %int6, %none, %none, %none : !torch.list<int>, !torch.float, !torch.int, !torch.none, !torch.none, !torch.none -> !torch.vtensor<[],f32>
  %masked = torch.aten.where.self %near, %s, %fill : !torch.vtensor<[41],i1>, !torch.vtensor<[2,1,41],f32>, !torch.vtensor<[],f32> -> !torch.vtensor<[2,1,41],f32>
  %p = torch.aten._softmax %masked, %int2, %false : !torch.vtensor<[2,1,41],f32>, !torch.int, !torch.bool -> !torch.vtensor<[2,1,41],f32>
  %o = torch.aten.bmm %p, %k : !torch.vtensor<[2,1,41],f32>, !torch.vtensor<[2,41,4],f32> -> !torch.vtensor<[2,1,4],f32>
  return %o, %k : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,41,4],f32>
}

// -----

// CHECK: error: 'torch.aten.exp' stands between the keys and their softmax along the cache axis and is not known to be harmless; between the product with the keys and the softmax use views, scalar factors, a soft cap and masks
func.func @unknown(%tokens: !torch.vtensor<[2,1],si64> {kv.name = "t", kv.role = "tokens"}, %x: !torch.vtensor<[2,1,4],f32> {kv.name = "x", kv.role = "other"}, %pk: !torch.vtensor<[2,13,4],f32> {kv.name = "k", kv.role = "cache"}) -> (!torch.vtensor<[2,1,4],f32> {kv.name = "logits"}, !torch.vtensor<[2,14,4],f32> {kv.name = "k"}) {
  %int0 = torch.constant.int 0
  %int1 = torch.constant.int 1
  %int2 = torch.constant.int 2
  %false = torch.constant.bool false
  %order = torch.prim.ListConstruct %int0, %int2, %int1 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %k = "kv.append"(%pk, %x) {axis = 1 : i64} : (!torch.vtensor<[2,13,4],f32>, !torch.vtensor<[2,1,4],f32>) -> !torch.vtensor<[2,14,4],f32>
  %kt = torch.aten.permute %k, %order : !torch.vtensor<[2,14,4],f32>, !torch.list<int> -> !torch.vtensor<[2,4,14],f32>
  %s = torch.aten.bmm %x, %kt : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,4,14],f32> -> !torch.vtensor<[2,1,14],f32>
  %e = torch.aten.exp %s : !torch.vtensor<[2,1,14],f32> -> !torch.vtensor<[2,1,14],f32>
  %p = torch.aten._softmax %e, %int2, %false : !torch.vtensor<[2,1,14],f32>, !torch.int, !torch.bool -> !torch.vtensor<[2,1,14],f32>
  %o = torch.aten.bmm %p, %k : !torch.vtensor<[2,1,14],f32>, !torch.vtensor<[2,14,4],f32> -> !torch.vtensor<[2,1,4],f32>
  return %o, %k : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,14,4],f32>
}

// -----

// CHECK: error: the logit of a sink differs between rows or queries; let it be a parameter of the heads, broadcast along rows and queries
func.func @own_sinks(%tokens: !torch.vtensor<[2,1],si64> {kv.name = "t", kv.role = "tokens"}, %x: !torch.vtensor<[2,1,4],f32> {kv.name = "x", kv.role = "other"}, %sink: !torch.vtensor<[2,1,1],f32> {kv.name = "sink", kv.role = "other"}, %pk: !torch.vtensor<[2,13,4],f32> {kv.name = "k", kv.role = "cache"}) -> (!torch.vtensor<[2,1,4],f32> {kv.name = "logits"}, !torch.vtensor<[2,14,4],f32> {kv.name = "k"}) {
  %int0 = torch.constant.int 0
  %int1 = torch.constant.int 1
  %int2 = torch.constant.int 2
  %int4 = torch.constant.int 4
  %int6 = torch.constant.int 6
  %int8 = torch.constant.int 8
  %end = torch.constant.int 14
  %next = torch.constant.int 15
  %none = torch.constant.none
  %false = torch.constant.bool false
  %low = torch.constant.float -1.000000e+09
  %order = torch.prim.ListConstruct %int0, %int2, %int1 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %empty = torch.prim.ListConstruct : () -> !torch.list<int>
  %k = "kv.append"(%pk, %x) {axis = 1 : i64} : (!torch.vtensor<[2,13,4],f32>, !torch.vtensor<[2,1,4],f32>) -> !torch.vtensor<[2,14,4],f32>
  %kt = torch.aten.permute %k, %order : !torch.vtensor<[2,14,4],f32>, !torch.list<int> -> !torch.vtensor<[2,4,14],f32>
  %s = torch.aten.bmm %x, %kt : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,4,14],f32> -> !torch.vtensor<[2,1,14],f32>
  %iota = torch.aten.arange.start_step %int0, %end, %int1, %int4, %none, %none, %none : !torch.int, !torch.int, !torch.int, !torch.int, !torch.none, !torch.none, !torch.none -> !torch.vtensor<[14],si64>
  %fill = torch.aten.full %empty, %low, %int6, %none, %none, %none : !torch.list<int>, !torch.float, !torch.int, !torch.none, !torch.none, !torch.none -> !torch.vtensor<[],f32>
  %list = torch.prim.ListConstruct %s, %sink : (!torch.vtensor<[2,1,14],f32>, !torch.vtensor<[2,1,1],f32>) -> !torch.list<vtensor>
  %joined = torch.aten.cat %list, %int2 : !torch.list<vtensor>, !torch.int -> !torch.vtensor<[2,1,15],f32>
  %true = torch.constant.bool true
  %most, %at = torch.aten.max.dim %joined, %int2, %true : !torch.vtensor<[2,1,15],f32>, !torch.int, !torch.bool -> !torch.vtensor<[2,1,1],f32>, !torch.vtensor<[2,1,1],si64>
  %shifted = torch.aten.sub.Tensor %joined, %most, %int1 : !torch.vtensor<[2,1,15],f32>, !torch.vtensor<[2,1,1],f32>, !torch.int -> !torch.vtensor<[2,1,15],f32>
  %p = torch.aten._softmax %shifted, %int2, %false : !torch.vtensor<[2,1,15],f32>, !torch.int, !torch.bool -> !torch.vtensor<[2,1,15],f32>
  %kept = torch.aten.slice.Tensor %p, %int2, %int0, %end, %int1 : !torch.vtensor<[2,1,15],f32>, !torch.int, !torch.int, !torch.int, !torch.int -> !torch.vtensor<[2,1,14],f32>
  %o = torch.aten.bmm %kept, %k : !torch.vtensor<[2,1,14],f32>, !torch.vtensor<[2,14,4],f32> -> !torch.vtensor<[2,1,4],f32>
  return %o, %k : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,14,4],f32>
}

// -----

// CHECK: error: a bias that is not linear in the key's position is added to the logits; only masks that hide keys and linear biases such as ALiBi are supported
func.func @square_bias(%tokens: !torch.vtensor<[2,1],si64> {kv.name = "t", kv.role = "tokens"}, %x: !torch.vtensor<[2,1,4],f32> {kv.name = "x", kv.role = "other"}, %pk: !torch.vtensor<[2,13,4],f32> {kv.name = "k", kv.role = "cache"}) -> (!torch.vtensor<[2,1,4],f32> {kv.name = "logits"}, !torch.vtensor<[2,14,4],f32> {kv.name = "k"}) {
  %int0 = torch.constant.int 0
  %int1 = torch.constant.int 1
  %int2 = torch.constant.int 2
  %int4 = torch.constant.int 4
  %int6 = torch.constant.int 6
  %int8 = torch.constant.int 8
  %end = torch.constant.int 14
  %next = torch.constant.int 15
  %none = torch.constant.none
  %false = torch.constant.bool false
  %low = torch.constant.float -1.000000e+09
  %order = torch.prim.ListConstruct %int0, %int2, %int1 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %empty = torch.prim.ListConstruct : () -> !torch.list<int>
  %k = "kv.append"(%pk, %x) {axis = 1 : i64} : (!torch.vtensor<[2,13,4],f32>, !torch.vtensor<[2,1,4],f32>) -> !torch.vtensor<[2,14,4],f32>
  %kt = torch.aten.permute %k, %order : !torch.vtensor<[2,14,4],f32>, !torch.list<int> -> !torch.vtensor<[2,4,14],f32>
  %s = torch.aten.bmm %x, %kt : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,4,14],f32> -> !torch.vtensor<[2,1,14],f32>
  %iota = torch.aten.arange.start_step %int0, %end, %int1, %int4, %none, %none, %none : !torch.int, !torch.int, !torch.int, !torch.int, !torch.none, !torch.none, !torch.none -> !torch.vtensor<[14],si64>
  %fill = torch.aten.full %empty, %low, %int6, %none, %none, %none : !torch.list<int>, !torch.float, !torch.int, !torch.none, !torch.none, !torch.none -> !torch.vtensor<[],f32>
  %slope = torch.constant.float 2.500000e-01
  %fiota = torch.aten._to_copy %iota, %int6, %none, %none, %none, %false, %none : !torch.vtensor<[14],si64>, !torch.int, !torch.none, !torch.none, !torch.none, !torch.bool, !torch.none -> !torch.vtensor<[14],f32>
  %alibi = torch.aten.mul.Tensor %fiota, %fiota : !torch.vtensor<[14],f32>, !torch.vtensor<[14],f32> -> !torch.vtensor<[14],f32>
  %biased = torch.aten.add.Tensor %s, %alibi, %int1 : !torch.vtensor<[2,1,14],f32>, !torch.vtensor<[14],f32>, !torch.int -> !torch.vtensor<[2,1,14],f32>
  %p = torch.aten._softmax %biased, %int2, %false : !torch.vtensor<[2,1,14],f32>, !torch.int, !torch.bool -> !torch.vtensor<[2,1,14],f32>
  %o = torch.aten.bmm %p, %k : !torch.vtensor<[2,1,14],f32>, !torch.vtensor<[2,14,4],f32> -> !torch.vtensor<[2,1,4],f32>
  return %o, %k : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,14,4],f32>
}

// -----

// The first four keys and the last five.
// CHECK: error: attention over the cache is not plainly causal: of 1 queries over 14 keys, query 0 at position 13 does not see key 4; let a program of one past length see every token that its caches hold, or export it with a symbolic past
func.func @prefix(%tokens: !torch.vtensor<[2,1],si64> {kv.name = "t", kv.role = "tokens"}, %x: !torch.vtensor<[2,1,4],f32> {kv.name = "x", kv.role = "other"}, %pk: !torch.vtensor<[2,13,4],f32> {kv.name = "k", kv.role = "cache"}) -> (!torch.vtensor<[2,1,4],f32> {kv.name = "logits"}, !torch.vtensor<[2,14,4],f32> {kv.name = "k"}) {
  %int0 = torch.constant.int 0
  %int1 = torch.constant.int 1
  %int2 = torch.constant.int 2
  %int4 = torch.constant.int 4
  %int6 = torch.constant.int 6
  %int8 = torch.constant.int 8
  %end = torch.constant.int 14
  %next = torch.constant.int 15
  %none = torch.constant.none
  %false = torch.constant.bool false
  %low = torch.constant.float -1.000000e+09
  %order = torch.prim.ListConstruct %int0, %int2, %int1 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %empty = torch.prim.ListConstruct : () -> !torch.list<int>
  %k = "kv.append"(%pk, %x) {axis = 1 : i64} : (!torch.vtensor<[2,13,4],f32>, !torch.vtensor<[2,1,4],f32>) -> !torch.vtensor<[2,14,4],f32>
  %kt = torch.aten.permute %k, %order : !torch.vtensor<[2,14,4],f32>, !torch.list<int> -> !torch.vtensor<[2,4,14],f32>
  %s = torch.aten.bmm %x, %kt : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,4,14],f32> -> !torch.vtensor<[2,1,14],f32>
  %iota = torch.aten.arange.start_step %int0, %end, %int1, %int4, %none, %none, %none : !torch.int, !torch.int, !torch.int, !torch.int, !torch.none, !torch.none, !torch.none -> !torch.vtensor<[14],si64>
  %fill = torch.aten.full %empty, %low, %int6, %none, %none, %none : !torch.list<int>, !torch.float, !torch.int, !torch.none, !torch.none, !torch.none -> !torch.vtensor<[],f32>
  %far = torch.aten.gt.Scalar %iota, %int8 : !torch.vtensor<[14],si64>, !torch.int -> !torch.vtensor<[14],i1>
  %early = torch.aten.lt.Scalar %iota, %int4 : !torch.vtensor<[14],si64>, !torch.int -> !torch.vtensor<[14],i1>
  %near = torch.aten.logical_or %far, %early : !torch.vtensor<[14],i1>, !torch.vtensor<[14],i1> -> !torch.vtensor<[14],i1>
  %masked = torch.aten.where.self %near, %s, %fill : !torch.vtensor<[14],i1>, !torch.vtensor<[2,1,14],f32>, !torch.vtensor<[],f32> -> !torch.vtensor<[2,1,14],f32>
  %p = torch.aten._softmax %masked, %int2, %false : !torch.vtensor<[2,1,14],f32>, !torch.int, !torch.bool -> !torch.vtensor<[2,1,14],f32>
  %o = torch.aten.bmm %p, %k : !torch.vtensor<[2,1,14],f32>, !torch.vtensor<[2,14,4],f32> -> !torch.vtensor<[2,1,4],f32>
  return %o, %k : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,14,4],f32>
}
