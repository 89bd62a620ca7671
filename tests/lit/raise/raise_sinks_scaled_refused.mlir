// RUN: not snapcc-opt %s --split-input-file --pass-pipeline='builtin.module(kv-raise-attention,kv-check-axis)' 2>&1 | filecheck %s

// A factor on the output is a sink only where it is told from the very logits of the softmax, is made of weights, and
// is on all that is taken of the output.

// CHECK: error: the logit of a sink differs between rows or queries; let it be a parameter of the heads, broadcast along rows and queries
func.func @by_row(%tokens: !torch.vtensor<[2,1],si64> {kv.name = "t", kv.role = "tokens"}, %x: !torch.vtensor<[2,1,4],f32> {kv.name = "x", kv.role = "other"}, %pk: !torch.vtensor<[2,13,4],f32> {kv.name = "k", kv.role = "cache"}) -> (!torch.vtensor<[2,1,4],f32> {kv.name = "logits"}, !torch.vtensor<[2,14,4],f32> {kv.name = "k"}) {
  %int1 = torch.constant.int 1
  %int2 = torch.constant.int 2
  %int0 = torch.constant.int 0
  %false = torch.constant.bool false
  %true = torch.constant.bool true
  %order = torch.prim.ListConstruct %int0, %int2, %int1 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %last = torch.prim.ListConstruct %int2 : (!torch.int) -> !torch.list<int>
  %k = "kv.append"(%pk, %x) {axis = 1 : i64} : (!torch.vtensor<[2,13,4],f32>, !torch.vtensor<[2,1,4],f32>) -> !torch.vtensor<[2,14,4],f32>
  %kt = torch.aten.permute %k, %order : !torch.vtensor<[2,14,4],f32>, !torch.list<int> -> !torch.vtensor<[2,4,14],f32>
  %s = torch.aten.bmm %x, %kt : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,4,14],f32> -> !torch.vtensor<[2,1,14],f32>
  %p = torch.aten._softmax %s, %int2, %false : !torch.vtensor<[2,1,14],f32>, !torch.int, !torch.bool -> !torch.vtensor<[2,1,14],f32>
  %o = torch.aten.bmm %p, %k : !torch.vtensor<[2,1,14],f32>, !torch.vtensor<[2,14,4],f32> -> !torch.vtensor<[2,1,4],f32>
  %total = torch.aten.logsumexp %s, %last, %true : !torch.vtensor<[2,1,14],f32>, !torch.list<int>, !torch.bool -> !torch.vtensor<[2,1,1],f32>
  %sink = "kv.parameter"() {parameter = "sinks"} : () -> !torch.vtensor<[2,1,1],f32>
  %less = torch.aten.sub.Tensor %total, %sink, %int1 : !torch.vtensor<[2,1,1],f32>, !torch.vtensor<[2,1,1],f32>, !torch.int -> !torch.vtensor<[2,1,1],f32>
  %factor = torch.aten.sigmoid %less : !torch.vtensor<[2,1,1],f32> -> !torch.vtensor<[2,1,1],f32>
  %scaled = torch.aten.mul.Tensor %o, %factor : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,1,1],f32> -> !torch.vtensor<[2,1,4],f32>
  return %scaled, %k : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,14,4],f32>
}

// -----

// CHECK: error: 'torch.aten.logsumexp' reduces the cache axis: fixed slots stand in any order and some are empty; leave the cache's sequence axis to a softmax and its product with the values
func.func @other_logits(%tokens: !torch.vtensor<[2,1],si64> {kv.name = "t", kv.role = "tokens"}, %x: !torch.vtensor<[2,1,4],f32> {kv.name = "x", kv.role = "other"}, %pk: !torch.vtensor<[2,13,4],f32> {kv.name = "k", kv.role = "cache"}) -> (!torch.vtensor<[2,1,4],f32> {kv.name = "logits"}, !torch.vtensor<[2,14,4],f32> {kv.name = "k"}) {
  %int1 = torch.constant.int 1
  %int2 = torch.constant.int 2
  %int0 = torch.constant.int 0
  %false = torch.constant.bool false
  %true = torch.constant.bool true
  %order = torch.prim.ListConstruct %int0, %int2, %int1 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %last = torch.prim.ListConstruct %int2 : (!torch.int) -> !torch.list<int>
  %k = "kv.append"(%pk, %x) {axis = 1 : i64} : (!torch.vtensor<[2,13,4],f32>, !torch.vtensor<[2,1,4],f32>) -> !torch.vtensor<[2,14,4],f32>
  %kt = torch.aten.permute %k, %order : !torch.vtensor<[2,14,4],f32>, !torch.list<int> -> !torch.vtensor<[2,4,14],f32>
  %s = torch.aten.bmm %x, %kt : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,4,14],f32> -> !torch.vtensor<[2,1,14],f32>
  %p = torch.aten._softmax %s, %int2, %false : !torch.vtensor<[2,1,14],f32>, !torch.int, !torch.bool -> !torch.vtensor<[2,1,14],f32>
  %o = torch.aten.bmm %p, %k : !torch.vtensor<[2,1,14],f32>, !torch.vtensor<[2,14,4],f32> -> !torch.vtensor<[2,1,4],f32>
  %two = torch.constant.float 2.000000e+00
  %other = torch.aten.mul.Scalar %s, %two : !torch.vtensor<[2,1,14],f32>, !torch.float -> !torch.vtensor<[2,1,14],f32>
  %total = torch.aten.logsumexp %other, %last, %true : !torch.vtensor<[2,1,14],f32>, !torch.list<int>, !torch.bool -> !torch.vtensor<[2,1,1],f32>
  %sink = "kv.parameter"() {parameter = "sinks"} : () -> !torch.vtensor<[1,1],f32>
  %less = torch.aten.sub.Tensor %total, %sink, %int1 : !torch.vtensor<[2,1,1],f32>, !torch.vtensor<[1,1],f32>, !torch.int -> !torch.vtensor<[2,1,1],f32>
  %factor = torch.aten.sigmoid %less : !torch.vtensor<[2,1,1],f32> -> !torch.vtensor<[2,1,1],f32>
  %scaled = torch.aten.mul.Tensor %o, %factor : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,1,1],f32> -> !torch.vtensor<[2,1,4],f32>
  return %scaled, %k : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,14,4],f32>
}

// -----

// CHECK: error: 'torch.aten.logsumexp' reduces the cache axis: fixed slots stand in any order and some are empty; leave the cache's sequence axis to a softmax and its product with the values
func.func @made_of_data(%tokens: !torch.vtensor<[2,1],si64> {kv.name = "t", kv.role = "tokens"}, %x: !torch.vtensor<[2,1,4],f32> {kv.name = "x", kv.role = "other"}, %sink: !torch.vtensor<[2,1,1],f32> {kv.name = "s", kv.role = "other"}, %pk: !torch.vtensor<[2,13,4],f32> {kv.name = "k", kv.role = "cache"}) -> (!torch.vtensor<[2,1,4],f32> {kv.name = "logits"}, !torch.vtensor<[2,14,4],f32> {kv.name = "k"}) {
  %int1 = torch.constant.int 1
  %int2 = torch.constant.int 2
  %int0 = torch.constant.int 0
  %false = torch.constant.bool false
  %true = torch.constant.bool true
  %order = torch.prim.ListConstruct %int0, %int2, %int1 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %last = torch.prim.ListConstruct %int2 : (!torch.int) -> !torch.list<int>
  %k = "kv.append"(%pk, %x) {axis = 1 : i64} : (!torch.vtensor<[2,13,4],f32>, !torch.vtensor<[2,1,4],f32>) -> !torch.vtensor<[2,14,4],f32>
  %kt = torch.aten.permute %k, %order : !torch.vtensor<[2,14,4],f32>, !torch.list<int> -> !torch.vtensor<[2,4,14],f32>
  %s = torch.aten.bmm %x, %kt : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,4,14],f32> -> !torch.vtensor<[2,1,14],f32>
  %p = torch.aten._softmax %s, %int2, %false : !torch.vtensor<[2,1,14],f32>, !torch.int, !torch.bool -> !torch.vtensor<[2,1,14],f32>
  %o = torch.aten.bmm %p, %k : !torch.vtensor<[2,1,14],f32>, !torch.vtensor<[2,14,4],f32> -> !torch.vtensor<[2,1,4],f32>
  %total = torch.aten.logsumexp %s, %last, %true : !torch.vtensor<[2,1,14],f32>, !torch.list<int>, !torch.bool -> !torch.vtensor<[2,1,1],f32>
  %less = torch.aten.sub.Tensor %total, %sink, %int1 : !torch.vtensor<[2,1,1],f32>, !torch.vtensor<[2,1,1],f32>, !torch.int -> !torch.vtensor<[2,1,1],f32>
  %factor = torch.aten.sigmoid %less : !torch.vtensor<[2,1,1],f32> -> !torch.vtensor<[2,1,1],f32>
  %scaled = torch.aten.mul.Tensor %o, %factor : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,1,1],f32> -> !torch.vtensor<[2,1,4],f32>
  return %scaled, %k : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,14,4],f32>
}

// -----

// CHECK: error: 'torch.aten.logsumexp' reduces the cache axis: fixed slots stand in any order and some are empty; leave the cache's sequence axis to a softmax and its product with the values
func.func @beside_it(%tokens: !torch.vtensor<[2,1],si64> {kv.name = "t", kv.role = "tokens"}, %x: !torch.vtensor<[2,1,4],f32> {kv.name = "x", kv.role = "other"}, %pk: !torch.vtensor<[2,13,4],f32> {kv.name = "k", kv.role = "cache"}) -> (!torch.vtensor<[2,1,4],f32> {kv.name = "logits"}, !torch.vtensor<[2,14,4],f32> {kv.name = "k"}) {
  %int1 = torch.constant.int 1
  %int2 = torch.constant.int 2
  %int0 = torch.constant.int 0
  %false = torch.constant.bool false
  %true = torch.constant.bool true
  %order = torch.prim.ListConstruct %int0, %int2, %int1 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %last = torch.prim.ListConstruct %int2 : (!torch.int) -> !torch.list<int>
  %k = "kv.append"(%pk, %x) {axis = 1 : i64} : (!torch.vtensor<[2,13,4],f32>, !torch.vtensor<[2,1,4],f32>) -> !torch.vtensor<[2,14,4],f32>
  %kt = torch.aten.permute %k, %order : !torch.vtensor<[2,14,4],f32>, !torch.list<int> -> !torch.vtensor<[2,4,14],f32>
  %s = torch.aten.bmm %x, %kt : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,4,14],f32> -> !torch.vtensor<[2,1,14],f32>
  %p = torch.aten._softmax %s, %int2, %false : !torch.vtensor<[2,1,14],f32>, !torch.int, !torch.bool -> !torch.vtensor<[2,1,14],f32>
  %o = torch.aten.bmm %p, %k : !torch.vtensor<[2,1,14],f32>, !torch.vtensor<[2,14,4],f32> -> !torch.vtensor<[2,1,4],f32>
  %total = torch.aten.logsumexp %s, %last, %true : !torch.vtensor<[2,1,14],f32>, !torch.list<int>, !torch.bool -> !torch.vtensor<[2,1,1],f32>
  %sink = "kv.parameter"() {parameter = "sinks"} : () -> !torch.vtensor<[1,1],f32>
  %less = torch.aten.sub.Tensor %total, %sink, %int1 : !torch.vtensor<[2,1,1],f32>, !torch.vtensor<[1,1],f32>, !torch.int -> !torch.vtensor<[2,1,1],f32>
  %factor = torch.aten.sigmoid %less : !torch.vtensor<[2,1,1],f32> -> !torch.vtensor<[2,1,1],f32>
  %scaled = torch.aten.mul.Tensor %o, %factor : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,1,1],f32> -> !torch.vtensor<[2,1,4],f32>
  %both = torch.aten.add.Tensor %scaled, %o, %int1 : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,1,4],f32>, !torch.int -> !torch.vtensor<[2,1,4],f32>
  return %both, %k : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,14,4],f32>
}
