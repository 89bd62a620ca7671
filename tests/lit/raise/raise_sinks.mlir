// RUN: snapcc-opt %s --pass-pipeline='builtin.module(kv-raise-attention)' | filecheck %s

// A learned logit behind those of the keys, and the maximum taken off before the softmax.

// CHECK-LABEL: func.func @decode(
// CHECK: %[[W:.+]] = "kv.parameter"() {parameter = "sinks"}
// CHECK: %[[ROW:.+]] = torch.aten.slice.Tensor
// CHECK: %[[SINKS:.+]] = torch.aten.view %[[ROW]], %{{.+}} -> !torch.vtensor<[1,1],f32>
// CHECK: "kv.attention"(%{{.+}}, %{{.+}}, %{{.+}}, %[[SINKS]]) {{.*}}operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 1>
// CHECK-NOT: torch.aten.cat
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
  %w = "kv.parameter"() {parameter = "sinks"} : () -> !torch.vtensor<[1,1,1],f32>
  %shape = torch.prim.ListConstruct %int2, %int1, %int1 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %sink = torch.aten.expand %w, %shape, %false : !torch.vtensor<[1,1,1],f32>, !torch.list<int>, !torch.bool -> !torch.vtensor<[2,1,1],f32>
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
