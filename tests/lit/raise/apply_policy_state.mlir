// RUN: snapcc-opt %s --pass-pipeline='builtin.module(kv-apply-policy{sink=2 recent=12 topk=0 window=4 batch=2})' | filecheck %s

// What is carried beside the caches is stored for the active rows alone.
// CHECK-LABEL: func.func @decode(
// CHECK-SAME: %[[A:arg2]]: !torch.vtensor<[2],i1> {kv.name = "active", kv.role = "active"}) -> (!torch.vtensor<[2,4],f32> {kv.name = "logits"})
// CHECK: %[[OLD:.+]] = "kv.state_load"() {state = "memory"} : () -> !torch.vtensor<[2,1,4],f32>
// CHECK: %[[SUM:.+]] = "kv.state_load"() {state = "sum"}
// CHECK: torch.aten.mul.Tensor %{{.+}}, %[[OLD]]
// CHECK: %[[NEXT:.+]] = torch.aten.tanh
// CHECK: %[[NEW:.+]] = "kv.write_rows"(%[[OLD]], %[[NEXT]], %[[A]])
// CHECK: "kv.state_store"(%[[NEW]]) {state = "memory"}
// CHECK: %[[SAME:.+]] = "kv.write_rows"(%[[SUM]], %[[SUM]], %[[A]])
// CHECK: "kv.state_store"(%[[SAME]]) {state = "sum"}

// And put back to what it starts with: the first row of a weight whose rows are second, or zeros.
// CHECK-LABEL: func.func @reset(
// CHECK: %[[W:.+]] = "kv.parameter"() {parameter = "start"} : () -> !torch.vtensor<[1,2,4],f32>
// CHECK: %[[ROW:.+]] = torch.aten.slice.Tensor %[[W]], %{{.+}} -> !torch.vtensor<[1,1,4],f32>
// CHECK: %[[FIRST:.+]] = torch.aten.permute %[[ROW]]
// CHECK: "kv.write_row"(%{{.+}}, %[[FIRST]], %arg0)
// CHECK: "kv.state_store"(%{{.+}}) {state = "memory"}
// CHECK: torch.aten.zeros
// CHECK: "kv.state_store"(%{{.+}}) {state = "sum"}

func.func @decode(%tokens: !torch.vtensor<[2,1],si64> {kv.name = "tokens", kv.role = "tokens"}, %pk: !torch.vtensor<[2,13,4],f32> {kv.name = "k", kv.role = "cache"}, %memory: !torch.vtensor<[2,1,4],f32> {kv.initial = "start", kv.initial_axis = "1", kv.name = "memory", kv.role = "state"}, %sum: !torch.vtensor<[2,3],f32> {kv.name = "sum", kv.role = "state"}, %positions: !torch.vtensor<[2],si64> {kv.name = "positions", kv.role = "positions"}) -> (!torch.vtensor<[2,1,4],f32> {kv.name = "logits"}, !torch.vtensor<[2,14,4],f32> {kv.name = "k"}, !torch.vtensor<[2,1,4],f32> {kv.name = "memory"}, !torch.vtensor<[2,3],f32> {kv.name = "sum"}) {
  %int-1 = torch.constant.int -1
  %int1 = torch.constant.int 1
  %int2 = torch.constant.int 2
  %int4 = torch.constant.int 4
  %int14 = torch.constant.int 14
  %false = torch.constant.bool false
  %w = "kv.parameter"() {parameter = "w"} : () -> !torch.vtensor<[9,4],f32>
  %q5 = torch.prim.ListConstruct %int2, %int1, %int1, %int1, %int4 : (!torch.int, !torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %k4 = torch.prim.ListConstruct %int2, %int1, %int14, %int4 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %out = torch.prim.ListConstruct %int2, %int1, %int4 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %x = torch.aten.embedding %w, %tokens, %int-1, %false, %false : !torch.vtensor<[9,4],f32>, !torch.vtensor<[2,1],si64>, !torch.int, !torch.bool, !torch.bool -> !torch.vtensor<[2,1,4],f32>
  %k = "kv.append"(%pk, %x) {axis = 1 : i64} : (!torch.vtensor<[2,13,4],f32>, !torch.vtensor<[2,1,4],f32>) -> !torch.vtensor<[2,14,4],f32>
  %q = torch.aten.view %x, %q5 : !torch.vtensor<[2,1,4],f32>, !torch.list<int> -> !torch.vtensor<[2,1,1,1,4],f32>
  %c = torch.aten.view %k, %k4 : !torch.vtensor<[2,14,4],f32>, !torch.list<int> -> !torch.vtensor<[2,1,14,4],f32>
  %o = "kv.attention"(%q, %c, %c) {causal = false, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, scale = 1.0 : f64, softcap = 0.0 : f64} : (!torch.vtensor<[2,1,1,1,4],f32>, !torch.vtensor<[2,1,14,4],f32>, !torch.vtensor<[2,1,14,4],f32>) -> !torch.vtensor<[2,1,1,1,4],f32>
  %y = torch.aten.view %o, %out : !torch.vtensor<[2,1,1,1,4],f32>, !torch.list<int> -> !torch.vtensor<[2,1,4],f32>
  %z = torch.aten.mul.Tensor %y, %memory : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,1,4],f32> -> !torch.vtensor<[2,1,4],f32>
  %next = torch.aten.tanh %z : !torch.vtensor<[2,1,4],f32> -> !torch.vtensor<[2,1,4],f32>
  return %z, %k, %next, %sum : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,14,4],f32>, !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,3],f32>
}
