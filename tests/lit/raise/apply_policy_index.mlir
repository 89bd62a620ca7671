// RUN: snapcc-opt %s --pass-pipeline='builtin.module(kv-apply-policy{sink=2 recent=8 topk=4 window=4 batch=2})' | filecheck %s
// RUN: snapcc-opt %s --pass-pipeline='builtin.module(kv-apply-policy{sink=2 recent=8 topk=4 window=4 batch=2})' | filecheck %s --check-prefix=STATES

// An index chooses among the slots that may be seen, of equal scores the earlier token, and its keys are kept with the
// others: one selection for all. A prompt selects by what the index left.

// CHECK-LABEL: func.func @decode(
// CHECK: %[[SEEN:.+]] = "kv.visible"
// CHECK: %[[HELD:.+]] = "kv.slot_positions"(%{{.+}}, %{{.+}}) {{.+}} -> !torch.vtensor<[2,1,14],si64>
// CHECK: %[[AT:.+]] = torch.aten.view %[[HELD]], %{{.+}} -> !torch.vtensor<[2,14],si64>
// CHECK: %[[CHOSEN:.+]] = "kv.topk_mask"(%{{.+}}, %[[SEEN]], %[[AT]]) {causal = false, count = 6 : i64
// CHECK: "kv.attention"(%{{.+}}, %{{.+}}, %{{.+}}, %[[CHOSEN]])

// CHECK-LABEL: func.func @prefill_20(
// CHECK: %[[CHOSEN:.+]] = "kv.topk_mask"(%{{[^,]+}}) {causal = true, count = 6 : i64
// CHECK: "kv.attention"(%{{.+}}, %{{.+}}, %{{.+}}, %[[CHOSEN]])
// CHECK: %[[KEPT:.+]] = "kv.topk_select"(%{{.+}}, %{{.+}}, %{{.+}}, %[[CHOSEN]]) {{.+}} -> !torch.vtensor<[1,4],si64>
// CHECK: "kv.compact"(%{{.+}}, %{{.+}}, %[[KEPT]])
// CHECK: "kv.compact"(%{{.+}}, %{{.+}}, %[[KEPT]])

// CHECK-LABEL: func.func @extend_5(
// CHECK: %[[SEEN:.+]] = "kv.visible_extend"
// CHECK: %[[HELD:.+]] = "kv.slot_positions"(%{{.+}}, %{{.+}}) {{.+}} -> !torch.vtensor<[1,1,14],si64>
// CHECK: %[[AT:.+]] = torch.aten.cat %{{.+}}, %{{.+}} -> !torch.vtensor<[1,19],si64>
// CHECK: %[[CHOSEN:.+]] = "kv.topk_mask"(%{{.+}}, %[[SEEN]], %[[AT]])
// CHECK: "kv.attention"(%{{.+}}, %{{.+}}, %{{.+}}, %[[CHOSEN]])

// STATES-DAG: "kv.state_store"(%{{.+}}) {state = "k"}
// STATES-DAG: "kv.state_store"(%{{.+}}) {state = "index"}
// STATES-DAG: "kv.state_store"(%{{.+}}) {state = "k_selected"}
func.func @decode(%tokens: !torch.vtensor<[2,1],si64> {kv.name = "tokens", kv.role = "tokens"}, %pk: !torch.vtensor<[2,13,4],f32> {kv.name = "k", kv.role = "cache"}, %pi: !torch.vtensor<[2,13,4],f32> {kv.name = "index", kv.role = "cache"}, %positions: !torch.vtensor<[2],si64> {kv.name = "positions", kv.role = "positions"}) -> (!torch.vtensor<[2,1,4],f32> {kv.name = "logits"}, !torch.vtensor<[2,14,4],f32> {kv.name = "k"}, !torch.vtensor<[2,14,4],f32> {kv.name = "index"}) {
  %int-1 = torch.constant.int -1
  %int0 = torch.constant.int 0
  %int1 = torch.constant.int 1
  %int2 = torch.constant.int 2
  %b = torch.constant.int 2
  %n = torch.constant.int 1
  %t = torch.constant.int 14
  %int4 = torch.constant.int 4
  %false = torch.constant.bool false
  %w = "kv.parameter"() {parameter = "w"} : () -> !torch.vtensor<[9,4],f32>
  %swap = torch.prim.ListConstruct %int0, %int2, %int1 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %q5 = torch.prim.ListConstruct %b, %int1, %int1, %n, %int4 : (!torch.int, !torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %k4 = torch.prim.ListConstruct %b, %int1, %t, %int4 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %out = torch.prim.ListConstruct %b, %n, %int4 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %x = torch.aten.embedding %w, %tokens, %int-1, %false, %false : !torch.vtensor<[9,4],f32>, !torch.vtensor<[2,1],si64>, !torch.int, !torch.bool, !torch.bool -> !torch.vtensor<[2,1,4],f32>
  %k = "kv.append"(%pk, %x) {axis = 1 : i64} : (!torch.vtensor<[2,13,4],f32>, !torch.vtensor<[2,1,4],f32>) -> !torch.vtensor<[2,14,4],f32>
  %i = "kv.append"(%pi, %x) {axis = 1 : i64} : (!torch.vtensor<[2,13,4],f32>, !torch.vtensor<[2,1,4],f32>) -> !torch.vtensor<[2,14,4],f32>
  %it = torch.aten.permute %i, %swap : !torch.vtensor<[2,14,4],f32>, !torch.list<int> -> !torch.vtensor<[2,4,14],f32>
  %s = torch.aten.bmm %x, %it : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,4,14],f32> -> !torch.vtensor<[2,1,14],f32>
  %chosen = "kv.topk_mask"(%s) {causal = false, count = 6 : i64, operandSegmentSizes = array<i32: 1, 0, 0>} : (!torch.vtensor<[2,1,14],f32>) -> !torch.vtensor<[2,1,14],i1>
  %q = torch.aten.view %x, %q5 : !torch.vtensor<[2,1,4],f32>, !torch.list<int> -> !torch.vtensor<[2,1,1,1,4],f32>
  %c = torch.aten.view %k, %k4 : !torch.vtensor<[2,14,4],f32>, !torch.list<int> -> !torch.vtensor<[2,1,14,4],f32>
  %o = "kv.attention"(%q, %c, %c, %chosen) {causal = false, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0>, scale = 1.0 : f64, softcap = 0.0 : f64} : (!torch.vtensor<[2,1,1,1,4],f32>, !torch.vtensor<[2,1,14,4],f32>, !torch.vtensor<[2,1,14,4],f32>, !torch.vtensor<[2,1,14],i1>) -> !torch.vtensor<[2,1,1,1,4],f32>
  %y = torch.aten.view %o, %out : !torch.vtensor<[2,1,1,1,4],f32>, !torch.list<int> -> !torch.vtensor<[2,1,4],f32>
  return %y, %k, %i : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,14,4],f32>, !torch.vtensor<[2,14,4],f32>
}
func.func @prefill_20(%tokens: !torch.vtensor<[1,20],si64> {kv.name = "tokens", kv.role = "tokens"}, %pk: !torch.vtensor<[1,0,4],f32> {kv.name = "k", kv.role = "cache"}, %pi: !torch.vtensor<[1,0,4],f32> {kv.name = "index", kv.role = "cache"}, %length: !torch.vtensor<[],si64> {kv.name = "length", kv.role = "length"}) -> (!torch.vtensor<[1,1,4],f32> {kv.name = "logits"}, !torch.vtensor<[1,20,4],f32> {kv.name = "k"}, !torch.vtensor<[1,20,4],f32> {kv.name = "index"}) {
  %int-1 = torch.constant.int -1
  %int0 = torch.constant.int 0
  %int1 = torch.constant.int 1
  %int2 = torch.constant.int 2
  %b = torch.constant.int 1
  %n = torch.constant.int 20
  %t = torch.constant.int 20
  %int4 = torch.constant.int 4
  %false = torch.constant.bool false
  %w = "kv.parameter"() {parameter = "w"} : () -> !torch.vtensor<[9,4],f32>
  %swap = torch.prim.ListConstruct %int0, %int2, %int1 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %q5 = torch.prim.ListConstruct %b, %int1, %int1, %n, %int4 : (!torch.int, !torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %k4 = torch.prim.ListConstruct %b, %int1, %t, %int4 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %out = torch.prim.ListConstruct %b, %n, %int4 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %x = torch.aten.embedding %w, %tokens, %int-1, %false, %false : !torch.vtensor<[9,4],f32>, !torch.vtensor<[1,20],si64>, !torch.int, !torch.bool, !torch.bool -> !torch.vtensor<[1,20,4],f32>
  %k = "kv.append"(%pk, %x) {axis = 1 : i64} : (!torch.vtensor<[1,0,4],f32>, !torch.vtensor<[1,20,4],f32>) -> !torch.vtensor<[1,20,4],f32>
  %i = "kv.append"(%pi, %x) {axis = 1 : i64} : (!torch.vtensor<[1,0,4],f32>, !torch.vtensor<[1,20,4],f32>) -> !torch.vtensor<[1,20,4],f32>
  %it = torch.aten.permute %i, %swap : !torch.vtensor<[1,20,4],f32>, !torch.list<int> -> !torch.vtensor<[1,4,20],f32>
  %s = torch.aten.bmm %x, %it : !torch.vtensor<[1,20,4],f32>, !torch.vtensor<[1,4,20],f32> -> !torch.vtensor<[1,20,20],f32>
  %chosen = "kv.topk_mask"(%s) {causal = true, count = 6 : i64, operandSegmentSizes = array<i32: 1, 0, 0>} : (!torch.vtensor<[1,20,20],f32>) -> !torch.vtensor<[1,20,20],i1>
  %q = torch.aten.view %x, %q5 : !torch.vtensor<[1,20,4],f32>, !torch.list<int> -> !torch.vtensor<[1,1,1,20,4],f32>
  %c = torch.aten.view %k, %k4 : !torch.vtensor<[1,20,4],f32>, !torch.list<int> -> !torch.vtensor<[1,1,20,4],f32>
  %o = "kv.attention"(%q, %c, %c, %chosen) {causal = true, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0>, scale = 1.0 : f64, softcap = 0.0 : f64} : (!torch.vtensor<[1,1,1,20,4],f32>, !torch.vtensor<[1,1,20,4],f32>, !torch.vtensor<[1,1,20,4],f32>, !torch.vtensor<[1,20,20],i1>) -> !torch.vtensor<[1,1,1,20,4],f32>
  %y = torch.aten.view %o, %out : !torch.vtensor<[1,1,1,20,4],f32>, !torch.list<int> -> !torch.vtensor<[1,20,4],f32>
  %z = torch.aten.select.int %y, %int1, %int-1 : !torch.vtensor<[1,20,4],f32>, !torch.int, !torch.int -> !torch.vtensor<[1,4],f32>
  %last = torch.aten.unsqueeze %z, %int1 : !torch.vtensor<[1,4],f32>, !torch.int -> !torch.vtensor<[1,1,4],f32>
  return %last, %k, %i : !torch.vtensor<[1,1,4],f32>, !torch.vtensor<[1,20,4],f32>, !torch.vtensor<[1,20,4],f32>
}
func.func @extend_5(%tokens: !torch.vtensor<[1,5],si64> {kv.name = "tokens", kv.role = "tokens"}, %pk: !torch.vtensor<[1,14,4],f32> {kv.name = "k", kv.role = "cache"}, %pi: !torch.vtensor<[1,14,4],f32> {kv.name = "index", kv.role = "cache"}, %length: !torch.vtensor<[],si64> {kv.name = "length", kv.role = "length"}, %start: !torch.vtensor<[],si64> {kv.name = "start", kv.role = "start"}) -> (!torch.vtensor<[1,1,4],f32> {kv.name = "logits"}, !torch.vtensor<[1,19,4],f32> {kv.name = "k"}, !torch.vtensor<[1,19,4],f32> {kv.name = "index"}) {
  %int-1 = torch.constant.int -1
  %int0 = torch.constant.int 0
  %int1 = torch.constant.int 1
  %int2 = torch.constant.int 2
  %b = torch.constant.int 1
  %n = torch.constant.int 5
  %t = torch.constant.int 19
  %int4 = torch.constant.int 4
  %false = torch.constant.bool false
  %w = "kv.parameter"() {parameter = "w"} : () -> !torch.vtensor<[9,4],f32>
  %swap = torch.prim.ListConstruct %int0, %int2, %int1 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %q5 = torch.prim.ListConstruct %b, %int1, %int1, %n, %int4 : (!torch.int, !torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %k4 = torch.prim.ListConstruct %b, %int1, %t, %int4 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %out = torch.prim.ListConstruct %b, %n, %int4 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %x = torch.aten.embedding %w, %tokens, %int-1, %false, %false : !torch.vtensor<[9,4],f32>, !torch.vtensor<[1,5],si64>, !torch.int, !torch.bool, !torch.bool -> !torch.vtensor<[1,5,4],f32>
  %k = "kv.append"(%pk, %x) {axis = 1 : i64} : (!torch.vtensor<[1,14,4],f32>, !torch.vtensor<[1,5,4],f32>) -> !torch.vtensor<[1,19,4],f32>
  %i = "kv.append"(%pi, %x) {axis = 1 : i64} : (!torch.vtensor<[1,14,4],f32>, !torch.vtensor<[1,5,4],f32>) -> !torch.vtensor<[1,19,4],f32>
  %it = torch.aten.permute %i, %swap : !torch.vtensor<[1,19,4],f32>, !torch.list<int> -> !torch.vtensor<[1,4,19],f32>
  %s = torch.aten.bmm %x, %it : !torch.vtensor<[1,5,4],f32>, !torch.vtensor<[1,4,19],f32> -> !torch.vtensor<[1,5,19],f32>
  %chosen = "kv.topk_mask"(%s) {causal = false, count = 6 : i64, operandSegmentSizes = array<i32: 1, 0, 0>} : (!torch.vtensor<[1,5,19],f32>) -> !torch.vtensor<[1,5,19],i1>
  %q = torch.aten.view %x, %q5 : !torch.vtensor<[1,5,4],f32>, !torch.list<int> -> !torch.vtensor<[1,1,1,5,4],f32>
  %c = torch.aten.view %k, %k4 : !torch.vtensor<[1,19,4],f32>, !torch.list<int> -> !torch.vtensor<[1,1,19,4],f32>
  %o = "kv.attention"(%q, %c, %c, %chosen) {causal = false, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0>, scale = 1.0 : f64, softcap = 0.0 : f64} : (!torch.vtensor<[1,1,1,5,4],f32>, !torch.vtensor<[1,1,19,4],f32>, !torch.vtensor<[1,1,19,4],f32>, !torch.vtensor<[1,5,19],i1>) -> !torch.vtensor<[1,1,1,5,4],f32>
  %y = torch.aten.view %o, %out : !torch.vtensor<[1,1,1,5,4],f32>, !torch.list<int> -> !torch.vtensor<[1,5,4],f32>
  %z = torch.aten.select.int %y, %int1, %int-1 : !torch.vtensor<[1,5,4],f32>, !torch.int, !torch.int -> !torch.vtensor<[1,4],f32>
  %last = torch.aten.unsqueeze %z, %int1 : !torch.vtensor<[1,4],f32>, !torch.int -> !torch.vtensor<[1,1,4],f32>
  return %last, %k, %i : !torch.vtensor<[1,1,4],f32>, !torch.vtensor<[1,19,4],f32>, !torch.vtensor<[1,19,4],f32>
}
