// RUN: snapcc-opt %s --pass-pipeline='builtin.module(kv-raise-attention)' | filecheck %s

// A mask of the keys that are not chosen becomes what is visible.

// CHECK-LABEL: func.func @decode(
// CHECK: %[[CHOSEN:.+]] = "kv.topk_mask"
// CHECK: "kv.attention"(%{{.+}}, %{{.+}}, %{{.+}}, %[[CHOSEN]]) {causal = false, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0>
// CHECK-NOT: torch.aten.where.self
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
  %others = torch.aten.bitwise_not %chosen : !torch.vtensor<[2,1,14],i1> -> !torch.vtensor<[2,1,14],i1>
  %m = torch.aten.where.self %others, %fill, %s : !torch.vtensor<[2,1,14],i1>, !torch.vtensor<[],f32>, !torch.vtensor<[2,1,14],f32> -> !torch.vtensor<[2,1,14],f32>
  %p = torch.aten._softmax %m, %last, %false : !torch.vtensor<[2,1,14],f32>, !torch.int, !torch.bool -> !torch.vtensor<[2,1,14],f32>
  %o = torch.aten.bmm %p, %k : !torch.vtensor<[2,1,14],f32>, !torch.vtensor<[2,14,4],f32> -> !torch.vtensor<[2,1,4],f32>
  return %o, %k : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,14,4],f32>
}
