// RUN: snapcc-opt %s --pass-pipeline='builtin.module(kv-raise-attention)' | filecheck %s

// Chunks of eight: position 13 sees keys from 8 on, position 18 those from 16 on.

// CHECK-LABEL: func.func @decode(
// CHECK: "kv.attention"({{.+}}) {causal = {{.+}}, chunk = 8 : i64,
// CHECK-LABEL: func.func @decode_probe(
// CHECK: "kv.attention"({{.+}}) {causal = {{.+}}, chunk = 8 : i64,
func.func @decode(%tokens: !torch.vtensor<[2,1],si64> {kv.name = "t", kv.role = "tokens"}, %x: !torch.vtensor<[2,1,4],f32> {kv.name = "x", kv.role = "other"}, %pk: !torch.vtensor<[2,13,4],f32> {kv.name = "k", kv.role = "cache"}) -> (!torch.vtensor<[2,1,4],f32> {kv.name = "logits"}, !torch.vtensor<[2,14,4],f32> {kv.name = "k"}) {
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
  %last = torch.constant.int 7
  %near = torch.aten.gt.Scalar %iota, %last : !torch.vtensor<[14],si64>, !torch.int -> !torch.vtensor<[14],i1>
  %masked = torch.aten.where.self %near, %s, %fill : !torch.vtensor<[14],i1>, !torch.vtensor<[2,1,14],f32>, !torch.vtensor<[],f32> -> !torch.vtensor<[2,1,14],f32>
  %p = torch.aten._softmax %masked, %int2, %false : !torch.vtensor<[2,1,14],f32>, !torch.int, !torch.bool -> !torch.vtensor<[2,1,14],f32>
  %o = torch.aten.bmm %p, %k : !torch.vtensor<[2,1,14],f32>, !torch.vtensor<[2,14,4],f32> -> !torch.vtensor<[2,1,4],f32>
  return %o, %k : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,14,4],f32>
}

func.func @decode_probe(%tokens: !torch.vtensor<[2,1],si64> {kv.name = "t", kv.role = "tokens"}, %x: !torch.vtensor<[2,1,4],f32> {kv.name = "x", kv.role = "other"}, %pk: !torch.vtensor<[2,18,4],f32> {kv.name = "k", kv.role = "cache"}) -> (!torch.vtensor<[2,1,4],f32> {kv.name = "logits"}, !torch.vtensor<[2,19,4],f32> {kv.name = "k"}) {
  %int0 = torch.constant.int 0
  %int1 = torch.constant.int 1
  %int2 = torch.constant.int 2
  %int4 = torch.constant.int 4
  %int6 = torch.constant.int 6
  %int8 = torch.constant.int 8
  %end = torch.constant.int 19
  %next = torch.constant.int 20
  %none = torch.constant.none
  %false = torch.constant.bool false
  %low = torch.constant.float -1.000000e+09
  %order = torch.prim.ListConstruct %int0, %int2, %int1 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %empty = torch.prim.ListConstruct : () -> !torch.list<int>
  %k = "kv.append"(%pk, %x) {axis = 1 : i64} : (!torch.vtensor<[2,18,4],f32>, !torch.vtensor<[2,1,4],f32>) -> !torch.vtensor<[2,19,4],f32>
  %kt = torch.aten.permute %k, %order : !torch.vtensor<[2,19,4],f32>, !torch.list<int> -> !torch.vtensor<[2,4,19],f32>
  %s = torch.aten.bmm %x, %kt : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,4,19],f32> -> !torch.vtensor<[2,1,19],f32>
  %iota = torch.aten.arange.start_step %int0, %end, %int1, %int4, %none, %none, %none : !torch.int, !torch.int, !torch.int, !torch.int, !torch.none, !torch.none, !torch.none -> !torch.vtensor<[19],si64>
  %fill = torch.aten.full %empty, %low, %int6, %none, %none, %none : !torch.list<int>, !torch.float, !torch.int, !torch.none, !torch.none, !torch.none -> !torch.vtensor<[],f32>
  %last = torch.constant.int 15
  %near = torch.aten.gt.Scalar %iota, %last : !torch.vtensor<[19],si64>, !torch.int -> !torch.vtensor<[19],i1>
  %masked = torch.aten.where.self %near, %s, %fill : !torch.vtensor<[19],i1>, !torch.vtensor<[2,1,19],f32>, !torch.vtensor<[],f32> -> !torch.vtensor<[2,1,19],f32>
  %p = torch.aten._softmax %masked, %int2, %false : !torch.vtensor<[2,1,19],f32>, !torch.int, !torch.bool -> !torch.vtensor<[2,1,19],f32>
  %o = torch.aten.bmm %p, %k : !torch.vtensor<[2,1,19],f32>, !torch.vtensor<[2,19,4],f32> -> !torch.vtensor<[2,1,4],f32>
  return %o, %k : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,19,4],f32>
}
