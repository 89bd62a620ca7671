// RUN: not snapcc-opt %s --split-input-file --pass-pipeline='builtin.module(kv-apply-policy{sink=2 recent=8 topk=4 window=4 batch=2})' 2>%t | filecheck %s
// RUN: filecheck %s --check-prefix=REFUSED --input-file %t
// RUN: not snapcc-opt %s --split-input-file --pass-pipeline='builtin.module(kv-apply-policy{sink=2 recent=8 topk=4 window=4 batch=2 order=time})' 2>&1 | filecheck %s --check-prefix=TIME

// One row's slots are read before the new tokens are written, and each query has a mask.
// CHECK-LABEL: func.func @extend_5(
// CHECK-SAME: %arg0: !torch.vtensor<[1,5],si64> {kv.name = "tokens", kv.role = "tokens"}, %[[L:arg1]]: !torch.vtensor<[],si64> {kv.name = "length", kv.role = "length"}, %[[R:arg2]]: !torch.vtensor<[],si64> {kv.name = "row", kv.role = "row"}, %[[S:arg3]]: !torch.vtensor<[],si64> {kv.name = "start", kv.role = "start"}) -> (!torch.vtensor<[4],f32> {kv.name = "logits"})
// CHECK: %[[N:.+]] = "kv.read_row"(%{{.+}}, %[[R]]) : (!torch.vtensor<[2],si64>, !torch.vtensor<[],si64>) -> !torch.vtensor<[1],si64>
// CHECK: %[[SEEN:.+]] = "kv.visible_extend"(%[[S]], %[[L]], %[[N]]) {ring = 8 : i64, selected = 4 : i64, sink = 2 : i64} : {{.+}} -> !torch.vtensor<[1,5,19],i1>
// CHECK: %[[OLD:.+]] = "kv.read_row"(%{{.+}}, %[[R]]) : (!torch.vtensor<[2,14,4],f32>, !torch.vtensor<[],si64>) -> !torch.vtensor<[1,14,4],f32>
// CHECK: %[[BOTH:.+]] = torch.prim.ListConstruct %[[OLD]], %[[NEW:[^ ]+]] :
// CHECK: torch.aten.cat %[[BOTH]], %{{.+}} -> !torch.vtensor<[1,19,4],f32>
// CHECK: %[[KEPT:.+]] = "kv.ring_extend"(%{{.+}}, %[[NEW]], %[[R]], %[[S]], %[[L]]) {axis = 1 : i64, ring = 8 : i64, sink = 2 : i64}
// CHECK: "kv.attention"(%{{.+}}, %{{.+}}, %{{.+}}, %[[SEEN]])
// CHECK: "kv.state_store"(%[[KEPT]]) {state = "k"}

// TIME: error: extend writes to a ring, and the recent tokens stand in the order of time; extend through decode
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
func.func @extend_5(%tokens: !torch.vtensor<[1,5],si64> {kv.name = "tokens", kv.role = "tokens"}, %pk: !torch.vtensor<[1,14,4],f32> {kv.name = "k", kv.role = "cache"}, %length: !torch.vtensor<[],si64> {kv.name = "length", kv.role = "length"}, %start: !torch.vtensor<[],si64> {kv.name = "start", kv.role = "start"}) -> (!torch.vtensor<[1,1,4],f32> {kv.name = "logits"}, !torch.vtensor<[1,19,4],f32> {kv.name = "k"}) {
  %int-1 = torch.constant.int -1
  %int1 = torch.constant.int 1
  %int4 = torch.constant.int 4
  %int5 = torch.constant.int 5
  %int19 = torch.constant.int 19
  %false = torch.constant.bool false
  %w = "kv.parameter"() {parameter = "w"} : () -> !torch.vtensor<[9,4],f32>
  %q5 = torch.prim.ListConstruct %int1, %int1, %int1, %int5, %int4 : (!torch.int, !torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %k4 = torch.prim.ListConstruct %int1, %int1, %int19, %int4 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %out = torch.prim.ListConstruct %int1, %int5, %int4 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %x = torch.aten.embedding %w, %tokens, %int-1, %false, %false : !torch.vtensor<[9,4],f32>, !torch.vtensor<[1,5],si64>, !torch.int, !torch.bool, !torch.bool -> !torch.vtensor<[1,5,4],f32>
  %k = "kv.append"(%pk, %x) {axis = 1 : i64} : (!torch.vtensor<[1,14,4],f32>, !torch.vtensor<[1,5,4],f32>) -> !torch.vtensor<[1,19,4],f32>
  %q = torch.aten.view %x, %q5 : !torch.vtensor<[1,5,4],f32>, !torch.list<int> -> !torch.vtensor<[1,1,1,5,4],f32>
  %c = torch.aten.view %k, %k4 : !torch.vtensor<[1,19,4],f32>, !torch.list<int> -> !torch.vtensor<[1,1,19,4],f32>
  %o = "kv.attention"(%q, %c, %c) {causal = false, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, scale = 1.0 : f64, softcap = 0.0 : f64} : (!torch.vtensor<[1,1,1,5,4],f32>, !torch.vtensor<[1,1,19,4],f32>, !torch.vtensor<[1,1,19,4],f32>) -> !torch.vtensor<[1,1,1,5,4],f32>
  %y = torch.aten.view %o, %out : !torch.vtensor<[1,1,1,5,4],f32>, !torch.list<int> -> !torch.vtensor<[1,5,4],f32>
  %i = torch.aten.select.int %y, %int1, %int-1 : !torch.vtensor<[1,5,4],f32>, !torch.int, !torch.int -> !torch.vtensor<[1,4],f32>
  %last = torch.aten.unsqueeze %i, %int1 : !torch.vtensor<[1,4],f32>, !torch.int -> !torch.vtensor<[1,1,4],f32>
  return %last, %k : !torch.vtensor<[1,1,4],f32>, !torch.vtensor<[1,19,4],f32>
}

// -----

// REFUSED: error: extend is specialised at a past of 13 tokens, and there are 14 slots; specialise it at a past of as many tokens as there are slots
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
func.func @extend_5(%tokens: !torch.vtensor<[1,5],si64> {kv.name = "tokens", kv.role = "tokens"}, %pk: !torch.vtensor<[1,13,4],f32> {kv.name = "k", kv.role = "cache"}, %length: !torch.vtensor<[],si64> {kv.name = "length", kv.role = "length"}, %start: !torch.vtensor<[],si64> {kv.name = "start", kv.role = "start"}) -> (!torch.vtensor<[1,1,4],f32> {kv.name = "logits"}, !torch.vtensor<[1,18,4],f32> {kv.name = "k"}) {
  %int-1 = torch.constant.int -1
  %int1 = torch.constant.int 1
  %int4 = torch.constant.int 4
  %int5 = torch.constant.int 5
  %int18 = torch.constant.int 18
  %false = torch.constant.bool false
  %w = "kv.parameter"() {parameter = "w"} : () -> !torch.vtensor<[9,4],f32>
  %q5 = torch.prim.ListConstruct %int1, %int1, %int1, %int5, %int4 : (!torch.int, !torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %k4 = torch.prim.ListConstruct %int1, %int1, %int18, %int4 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %out = torch.prim.ListConstruct %int1, %int5, %int4 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %x = torch.aten.embedding %w, %tokens, %int-1, %false, %false : !torch.vtensor<[9,4],f32>, !torch.vtensor<[1,5],si64>, !torch.int, !torch.bool, !torch.bool -> !torch.vtensor<[1,5,4],f32>
  %k = "kv.append"(%pk, %x) {axis = 1 : i64} : (!torch.vtensor<[1,13,4],f32>, !torch.vtensor<[1,5,4],f32>) -> !torch.vtensor<[1,18,4],f32>
  %q = torch.aten.view %x, %q5 : !torch.vtensor<[1,5,4],f32>, !torch.list<int> -> !torch.vtensor<[1,1,1,5,4],f32>
  %c = torch.aten.view %k, %k4 : !torch.vtensor<[1,18,4],f32>, !torch.list<int> -> !torch.vtensor<[1,1,18,4],f32>
  %o = "kv.attention"(%q, %c, %c) {causal = false, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, scale = 1.0 : f64, softcap = 0.0 : f64} : (!torch.vtensor<[1,1,1,5,4],f32>, !torch.vtensor<[1,1,18,4],f32>, !torch.vtensor<[1,1,18,4],f32>) -> !torch.vtensor<[1,1,1,5,4],f32>
  %y = torch.aten.view %o, %out : !torch.vtensor<[1,1,1,5,4],f32>, !torch.list<int> -> !torch.vtensor<[1,5,4],f32>
  %i = torch.aten.select.int %y, %int1, %int-1 : !torch.vtensor<[1,5,4],f32>, !torch.int, !torch.int -> !torch.vtensor<[1,4],f32>
  %last = torch.aten.unsqueeze %i, %int1 : !torch.vtensor<[1,4],f32>, !torch.int -> !torch.vtensor<[1,1,4],f32>
  return %last, %k : !torch.vtensor<[1,1,4],f32>, !torch.vtensor<[1,18,4],f32>
}
