// RUN: snapcc-opt %s --pass-pipeline='builtin.module(kv-raise-attention)' | filecheck %s

// A sink told behind the softmax: the output times sigmoid(logsumexp(logits) - sink). It may be made after the attention.

// CHECK-LABEL: func.func @decode(
// CHECK: %[[W:.+]] = "kv.parameter"() {parameter = "sinks"}
// CHECK: %[[ALL:.+]] = torch.aten.expand %[[W]]
// CHECK: %[[ROW:.+]] = torch.aten.slice.Tensor %[[ALL]]
// CHECK: %[[SINKS:.+]] = torch.aten.view %[[ROW]], %{{.+}} -> !torch.vtensor<[1,1],f32>
// CHECK: %[[O:.+]] = "kv.attention"(%{{.+}}, %{{.+}}, %{{.+}}, %[[SINKS]]) {{.*}}operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 1>
// CHECK-NOT: torch.aten.logsumexp
// CHECK-NOT: torch.aten.mul.Tensor
// CHECK: %[[OUT:.+]] = torch.aten.view
// CHECK: return %[[OUT]], %{{.+}}
func.func @decode(%tokens: !torch.vtensor<[2,1],si64> {kv.name = "t", kv.role = "tokens"}, %x: !torch.vtensor<[2,1,4],f32> {kv.name = "x", kv.role = "other"}, %pk: !torch.vtensor<[2,13,4],f32> {kv.name = "k", kv.role = "cache"}) -> (!torch.vtensor<[2,1,4],f32> {kv.name = "logits"}, !torch.vtensor<[2,14,4],f32> {kv.name = "k"}) {
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
  return %scaled, %k : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,14,4],f32>
}
