// RUN: snapcc-opt %s --split-input-file --pass-pipeline='builtin.module(kv-raise-index)' | filecheck %s

// The mask on the scores is plainly causal and goes; what the indices mark is a mask of the other keys.

// CHECK-LABEL: func.func @hidden(
// CHECK: %[[SCORES:.+]] = torch.aten.bmm
// CHECK: %[[CHOSEN:.+]] = "kv.topk_mask"(%[[SCORES]]) {causal = false, count = 6 : i64, operandSegmentSizes = array<i32: 1, 0, 0>}
// CHECK: %[[HIDE:.+]] = torch.aten.bitwise_not %[[CHOSEN]]
// CHECK-NOT: torch.aten.topk
// CHECK: return %[[HIDE]]
func.func @hidden(%tokens: !torch.vtensor<[2,1],si64> {kv.name = "t", kv.role = "tokens"}, %x: !torch.vtensor<[2,1,4],f32> {kv.name = "x", kv.role = "other"}, %pk: !torch.vtensor<[2,13,4],f32> {kv.name = "k", kv.role = "cache"}) -> (!torch.vtensor<[2,1,14],i1> {kv.name = "logits"}, !torch.vtensor<[2,14,4],f32> {kv.name = "k"}) {
  %int0 = torch.constant.int 0
  %int1 = torch.constant.int 1
  %int2 = torch.constant.int 2
  %int4 = torch.constant.int 4
  %int6 = torch.constant.int 6
  %int11 = torch.constant.int 11
  %int13 = torch.constant.int 13
  %end = torch.constant.int 14
  %last = torch.constant.int -1
  %none = torch.constant.none
  %true = torch.constant.bool true
  %false = torch.constant.bool false
  %one = torch.aten.Int.bool %true : !torch.bool -> !torch.int
  %zero = torch.aten.Int.bool %false : !torch.bool -> !torch.int
  %low = torch.constant.float 0xFFF0000000000000
  %swap = torch.prim.ListConstruct %int0, %int2, %int1 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %wide = torch.prim.ListConstruct %int2, %int1, %end : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %empty = torch.prim.ListConstruct : () -> !torch.list<int>
  %k = "kv.append"(%pk, %x) {axis = 1 : i64} : (!torch.vtensor<[2,13,4],f32>, !torch.vtensor<[2,1,4],f32>) -> !torch.vtensor<[2,14,4],f32>
  %kt = torch.aten.permute %k, %swap : !torch.vtensor<[2,14,4],f32>, !torch.list<int> -> !torch.vtensor<[2,4,14],f32>
  %scores = torch.aten.bmm %x, %kt : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,4,14],f32> -> !torch.vtensor<[2,1,14],f32>
  %iota = torch.aten.arange.start_step %int0, %end, %int1, %int4, %none, %none, %none : !torch.int, !torch.int, !torch.int, !torch.int, !torch.none, !torch.none, !torch.none -> !torch.vtensor<[14],si64>
  %seen = torch.aten.le.Scalar %iota, %int13 : !torch.vtensor<[14],si64>, !torch.int -> !torch.vtensor<[14],i1>
  %fill = torch.aten.full %empty, %low, %int6, %none, %none, %none : !torch.list<int>, !torch.float, !torch.int, !torch.none, !torch.none, !torch.none -> !torch.vtensor<[],f32>
  %masked = torch.aten.where.self %seen, %scores, %fill : !torch.vtensor<[14],i1>, !torch.vtensor<[2,1,14],f32>, !torch.vtensor<[],f32> -> !torch.vtensor<[2,1,14],f32>
  %values, %indices = torch.aten.topk %masked, %int6, %last, %true, %true : !torch.vtensor<[2,1,14],f32>, !torch.int, !torch.int, !torch.bool, !torch.bool -> !torch.vtensor<[2,1,6],f32>, !torch.vtensor<[2,1,6],si64>
  %ones = torch.aten.full %wide, %one, %int11, %none, %none, %none : !torch.list<int>, !torch.int, !torch.int, !torch.none, !torch.none, !torch.none -> !torch.vtensor<[2,1,14],i1>
  %hide = torch.aten.scatter.value %ones, %last, %indices, %zero : !torch.vtensor<[2,1,14],i1>, !torch.int, !torch.vtensor<[2,1,6],si64>, !torch.int -> !torch.vtensor<[2,1,14],i1>
  return %hide, %k : !torch.vtensor<[2,1,14],i1>, !torch.vtensor<[2,14,4],f32>
}

// -----

// Numbers to be added to the logits.

// CHECK-LABEL: func.func @added(
// CHECK: %[[CHOSEN:.+]] = "kv.topk_mask"
// CHECK: torch.aten.where.Scalar %[[CHOSEN]], %{{.+}}, %{{.+}} : !torch.vtensor<[2,1,14],i1>, !torch.float, !torch.float -> !torch.vtensor<[2,1,14],f32>
func.func @added(%tokens: !torch.vtensor<[2,1],si64> {kv.name = "t", kv.role = "tokens"}, %x: !torch.vtensor<[2,1,4],f32> {kv.name = "x", kv.role = "other"}, %pk: !torch.vtensor<[2,13,4],f32> {kv.name = "k", kv.role = "cache"}) -> (!torch.vtensor<[2,1,14],f32> {kv.name = "logits"}, !torch.vtensor<[2,14,4],f32> {kv.name = "k"}) {
  %int0 = torch.constant.int 0
  %int1 = torch.constant.int 1
  %int2 = torch.constant.int 2
  %int4 = torch.constant.int 4
  %int6 = torch.constant.int 6
  %int11 = torch.constant.int 11
  %int13 = torch.constant.int 13
  %end = torch.constant.int 14
  %last = torch.constant.int -1
  %none = torch.constant.none
  %true = torch.constant.bool true
  %false = torch.constant.bool false
  %one = torch.aten.Int.bool %true : !torch.bool -> !torch.int
  %zero = torch.aten.Int.bool %false : !torch.bool -> !torch.int
  %low = torch.constant.float 0xFFF0000000000000
  %swap = torch.prim.ListConstruct %int0, %int2, %int1 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %wide = torch.prim.ListConstruct %int2, %int1, %end : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %empty = torch.prim.ListConstruct : () -> !torch.list<int>
  %k = "kv.append"(%pk, %x) {axis = 1 : i64} : (!torch.vtensor<[2,13,4],f32>, !torch.vtensor<[2,1,4],f32>) -> !torch.vtensor<[2,14,4],f32>
  %kt = torch.aten.permute %k, %swap : !torch.vtensor<[2,14,4],f32>, !torch.list<int> -> !torch.vtensor<[2,4,14],f32>
  %scores = torch.aten.bmm %x, %kt : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,4,14],f32> -> !torch.vtensor<[2,1,14],f32>
  %iota = torch.aten.arange.start_step %int0, %end, %int1, %int4, %none, %none, %none : !torch.int, !torch.int, !torch.int, !torch.int, !torch.none, !torch.none, !torch.none -> !torch.vtensor<[14],si64>
  %seen = torch.aten.le.Scalar %iota, %int13 : !torch.vtensor<[14],si64>, !torch.int -> !torch.vtensor<[14],i1>
  %fill = torch.aten.full %empty, %low, %int6, %none, %none, %none : !torch.list<int>, !torch.float, !torch.int, !torch.none, !torch.none, !torch.none -> !torch.vtensor<[],f32>
  %masked = torch.aten.where.self %seen, %scores, %fill : !torch.vtensor<[14],i1>, !torch.vtensor<[2,1,14],f32>, !torch.vtensor<[],f32> -> !torch.vtensor<[2,1,14],f32>
  %values, %indices = torch.aten.topk %masked, %int6, %last, %true, %true : !torch.vtensor<[2,1,14],f32>, !torch.int, !torch.int, !torch.bool, !torch.bool -> !torch.vtensor<[2,1,6],f32>, !torch.vtensor<[2,1,6],si64>
  %lows = torch.aten.full_like %scores, %low, %none, %none, %none, %none, %none : !torch.vtensor<[2,1,14],f32>, !torch.float, !torch.none, !torch.none, !torch.none, !torch.none, !torch.none -> !torch.vtensor<[2,1,14],f32>
  %hide = torch.aten.scatter.value %lows, %last, %indices, %int0 : !torch.vtensor<[2,1,14],f32>, !torch.int, !torch.vtensor<[2,1,6],si64>, !torch.int -> !torch.vtensor<[2,1,14],f32>
  return %hide, %k : !torch.vtensor<[2,1,14],f32>, !torch.vtensor<[2,14,4],f32>
}
