// RUN: not snapcc-opt %s --split-input-file --pass-pipeline='builtin.module(kv-apply-policy{sink=2 recent=8 topk=4 window=4 batch=2})' 2>%t | filecheck %s
// RUN: filecheck %s --check-prefix=REFUSED --input-file %t
// RUN: not snapcc-opt %s --split-input-file --pass-pipeline='builtin.module(kv-apply-policy{sink=2 recent=8 topk=4 window=4 batch=2 order=time})' | filecheck %s --check-prefix=TIME

// TIME-LABEL: func.func @decode(
// TIME-NOT: kv.slots
// TIME: "kv.concat_update"(%{{.+}}, %{{.+}}, %arg1, %arg2) {axis = 1 : i64, ring = 8 : i64, sink = 2 : i64}
// TIME-LABEL: func.func @prefill_20(
// TIME: "kv.compact"({{.+}}order = "time"

// CHECK-LABEL: func.func @decode(
// CHECK-SAME: %[[T:arg0]]: !torch.vtensor<[2],si64> {kv.name = "tokens", kv.role = "tokens"}, %[[P:arg1]]: !torch.vtensor<[2],si64> {kv.name = "positions", kv.role = "positions"}, %[[A:arg2]]: !torch.vtensor<[2],i1> {kv.name = "active", kv.role = "active"}) -> (!torch.vtensor<[2,4],f32> {kv.name = "logits"})
// CHECK: %[[N:.+]] = "kv.state_load"() {state = "selected_count"}
// CHECK: %[[SLOTS:.+]] = "kv.slots"(%[[P]]) {ring = 8 : i64, sink = 2 : i64}
// CHECK: %[[OLD:.+]] = "kv.state_load"() {state = "k"} : () -> !torch.vtensor<[2,14,4],f32>
// CHECK: %[[SEEN:.+]] = "kv.visible"(%[[P]], %[[N]]) {ring = 8 : i64, selected = 4 : i64, sink = 2 : i64}
// CHECK: %[[NEW:.+]] = "kv.ring_update"(%[[OLD]], %{{.+}}, %[[SLOTS]], %[[A]]) {axis = 1 : i64}
// CHECK: "kv.attention"(%{{.+}}, %{{.+}}, %{{.+}}, %[[SEEN]])
// CHECK: "kv.state_store"(%[[NEW]]) {state = "k"}

// CHECK-LABEL: func.func @prefill_20(
// CHECK-SAME: %arg0: !torch.vtensor<[1,20],si64> {kv.name = "tokens", kv.role = "tokens"}, %[[L:arg1]]: !torch.vtensor<[],si64> {kv.name = "length", kv.role = "length"}, %[[R:arg2]]: !torch.vtensor<[],si64> {kv.name = "row", kv.role = "row"}) -> (!torch.vtensor<[4],f32> {kv.name = "logits"})
// CHECK: %[[SEL:.+]] = "kv.topk_select"(%{{.+}}, %{{.+}}, %[[L]]) {{{.*}}pool = "avg", pool_size = 5 : i64, ring = 8 : i64, scale = 1.000000e+00 : f64, score = "candidates", selected = 4 : i64, sink = 2 : i64, softcap = 0.000000e+00 : f64, window = 4 : i64}
// CHECK: %[[C:.+]] = "kv.compact"(%{{.+}}, %[[L]], %[[SEL]]) {axis = 1 : i64, head_axis = -1 : i64, {{.*}}order = "ring"
// CHECK: %[[W:.+]] = "kv.write_row"(%{{.+}}, %[[C]], %[[R]])
// CHECK: "kv.state_store"(%[[W]]) {state = "k"}
// CHECK: %[[COUNT:.+]] = "kv.selected_count"(%[[L]])
// CHECK: "kv.state_store"(%{{.+}}) {state = "selected_count"}

// CHECK-LABEL: func.func @reset(
// CHECK: "kv.write_row"
// CHECK: "kv.state_store"(%{{.+}}) {state = "selected_count"}
// CHECK: "kv.write_row"
// CHECK: "kv.state_store"(%{{.+}}) {state = "k"}

func.func @decode(%tokens: !torch.vtensor<[2,1],si64> {kv.name = "tokens", kv.role = "tokens"}, %pk: !torch.vtensor<[2,13,4],f32> {kv.name = "k", kv.role = "cache"}, %positions: !torch.vtensor<[2],si64> {kv.name = "positions", kv.role = "positions"}) -> (!torch.vtensor<[2,1,4],f32> {kv.name = "logits"}, !torch.vtensor<[2,14,4],f32> {kv.name = "k"}) {
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
  return %y, %k : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,14,4],f32>
}
func.func @prefill_20(%tokens: !torch.vtensor<[1,20],si64> {kv.name = "tokens", kv.role = "tokens"}, %pk: !torch.vtensor<[1,0,4],f32> {kv.name = "k", kv.role = "cache"}, %length: !torch.vtensor<[],si64> {kv.name = "length", kv.role = "length"}) -> (!torch.vtensor<[1,1,4],f32> {kv.name = "logits"}, !torch.vtensor<[1,20,4],f32> {kv.name = "k"}) {
  %int-1 = torch.constant.int -1
  %int1 = torch.constant.int 1
  %int4 = torch.constant.int 4
  %int20 = torch.constant.int 20
  %false = torch.constant.bool false
  %w = "kv.parameter"() {parameter = "w"} : () -> !torch.vtensor<[9,4],f32>
  %q5 = torch.prim.ListConstruct %int1, %int1, %int1, %int20, %int4 : (!torch.int, !torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %k4 = torch.prim.ListConstruct %int1, %int1, %int20, %int4 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %out = torch.prim.ListConstruct %int1, %int20, %int4 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %x = torch.aten.embedding %w, %tokens, %int-1, %false, %false : !torch.vtensor<[9,4],f32>, !torch.vtensor<[1,20],si64>, !torch.int, !torch.bool, !torch.bool -> !torch.vtensor<[1,20,4],f32>
  %k = "kv.append"(%pk, %x) {axis = 1 : i64} : (!torch.vtensor<[1,0,4],f32>, !torch.vtensor<[1,20,4],f32>) -> !torch.vtensor<[1,20,4],f32>
  %q = torch.aten.view %x, %q5 : !torch.vtensor<[1,20,4],f32>, !torch.list<int> -> !torch.vtensor<[1,1,1,20,4],f32>
  %c = torch.aten.view %k, %k4 : !torch.vtensor<[1,20,4],f32>, !torch.list<int> -> !torch.vtensor<[1,1,20,4],f32>
  %o = "kv.attention"(%q, %c, %c) {causal = true, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, scale = 1.0 : f64, softcap = 0.0 : f64} : (!torch.vtensor<[1,1,1,20,4],f32>, !torch.vtensor<[1,1,20,4],f32>, !torch.vtensor<[1,1,20,4],f32>) -> !torch.vtensor<[1,1,1,20,4],f32>
  %y = torch.aten.view %o, %out : !torch.vtensor<[1,1,1,20,4],f32>, !torch.list<int> -> !torch.vtensor<[1,20,4],f32>
  %i = torch.aten.select.int %y, %int1, %int-1 : !torch.vtensor<[1,20,4],f32>, !torch.int, !torch.int -> !torch.vtensor<[1,4],f32>
  %last = torch.aten.unsqueeze %i, %int1 : !torch.vtensor<[1,4],f32>, !torch.int -> !torch.vtensor<[1,1,4],f32>
  return %last, %k : !torch.vtensor<[1,1,4],f32>, !torch.vtensor<[1,20,4],f32>
}

// -----

// REFUSED: error: the program is specialised at a past of 11 tokens, which makes 12 slots, but sink 2 + recent 8 + topk 4 make 14; choose parts that add up to the program's own length plus one
func.func @decode(%tokens: !torch.vtensor<[2,1],si64> {kv.name = "t", kv.role = "tokens"}, %x: !torch.vtensor<[2,1,4],f32> {kv.name = "x", kv.role = "other"}, %pk: !torch.vtensor<[2,11,4],f32> {kv.name = "k", kv.role = "cache"}) -> (!torch.vtensor<[2,1,4],f32> {kv.name = "logits"}, !torch.vtensor<[2,12,4],f32> {kv.name = "k"}) {
  %k = "kv.append"(%pk, %x) {axis = 1 : i64} : (!torch.vtensor<[2,11,4],f32>, !torch.vtensor<[2,1,4],f32>) -> !torch.vtensor<[2,12,4],f32>
  return %x, %k : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,12,4],f32>
}

// -----

// REFUSED: error: no attention reads the cache 'k'; return only caches that are read
func.func @decode(%tokens: !torch.vtensor<[2,1],si64> {kv.name = "t", kv.role = "tokens"}, %x: !torch.vtensor<[2,1,4],f32> {kv.name = "x", kv.role = "other"}, %pk: !torch.vtensor<[2,13,4],f32> {kv.name = "k", kv.role = "cache"}, %positions: !torch.vtensor<[2],si64> {kv.name = "positions", kv.role = "positions"}) -> (!torch.vtensor<[2,1,4],f32> {kv.name = "logits"}, !torch.vtensor<[2,14,4],f32> {kv.name = "k"}) {
  %k = "kv.append"(%pk, %x) {axis = 1 : i64} : (!torch.vtensor<[2,13,4],f32>, !torch.vtensor<[2,1,4],f32>) -> !torch.vtensor<[2,14,4],f32>
  return %x, %k : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,14,4],f32>
}
