// RUN: not snapcc-opt %s --split-input-file --pass-pipeline='builtin.module(kv-select-last)' 2>%t | filecheck %s
// RUN: filecheck %s --check-prefix=REFUSED --input-file %t

// The selection moves up through the vocabulary product and the op before it; what the cache needs stays whole.

// CHECK-LABEL: func.func @prefill_8(
// CHECK-SAME: %[[L:arg4]]: !torch.vtensor<[],si64> {kv.name = "length", kv.role = "length"}
// CHECK: %[[I:.+]] = torch.aten.add.Scalar %[[L]]
// CHECK: "kv.append"
// CHECK: torch.aten.index_select %{{.+}} -> !torch.vtensor<[1,1,4],f32>
// CHECK: torch.aten.tanh %{{.+}} : !torch.vtensor<[1,1,4],f32> -> !torch.vtensor<[1,1,4],f32>
// CHECK: torch.aten.mm %{{.+}} : !torch.vtensor<[1,4],f32>, !torch.vtensor<[4,9],f32> -> !torch.vtensor<[1,9],f32>
// CHECK: return %{{.+}}, %{{.+}} : !torch.vtensor<[1,1,9],f32>, !torch.vtensor<[1,8,4],f32>
func.func @prefill_8(%tokens: !torch.vtensor<[1,8],si64> {kv.name = "t", kv.role = "tokens"}, %w: !torch.vtensor<[9,4],f32> {kv.name = "w", kv.role = "other"}, %head: !torch.vtensor<[4,9],f32> {kv.name = "h", kv.role = "other"}, %pk: !torch.vtensor<[1,0,4],f32> {kv.name = "k", kv.role = "cache"}) -> (!torch.vtensor<[1,8,9],f32> {kv.name = "logits"}, !torch.vtensor<[1,8,4],f32> {kv.name = "k"}) {
  %int-1 = torch.constant.int -1
  %int1 = torch.constant.int 1
  %int4 = torch.constant.int 4
  %int8 = torch.constant.int 8
  %int9 = torch.constant.int 9
  %false = torch.constant.bool false
  %flat = torch.prim.ListConstruct %int8, %int4 : (!torch.int, !torch.int) -> !torch.list<int>
  %full = torch.prim.ListConstruct %int1, %int8, %int9 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %x = torch.aten.embedding %w, %tokens, %int-1, %false, %false : !torch.vtensor<[9,4],f32>, !torch.vtensor<[1,8],si64>, !torch.int, !torch.bool, !torch.bool -> !torch.vtensor<[1,8,4],f32>
  %k = "kv.append"(%pk, %x) {axis = 1 : i64} : (!torch.vtensor<[1,0,4],f32>, !torch.vtensor<[1,8,4],f32>) -> !torch.vtensor<[1,8,4],f32>
  %y = torch.aten.tanh %x : !torch.vtensor<[1,8,4],f32> -> !torch.vtensor<[1,8,4],f32>
  %z = torch.aten.view %y, %flat : !torch.vtensor<[1,8,4],f32>, !torch.list<int> -> !torch.vtensor<[8,4],f32>
  %m = torch.aten.mm %z, %head : !torch.vtensor<[8,4],f32>, !torch.vtensor<[4,9],f32> -> !torch.vtensor<[8,9],f32>
  %logits = torch.aten.view %m, %full : !torch.vtensor<[8,9],f32>, !torch.list<int> -> !torch.vtensor<[1,8,9],f32>
  return %logits, %k : !torch.vtensor<[1,8,9],f32>, !torch.vtensor<[1,8,4],f32>
}

// The program's own x[:, -1] would be the padding's: it becomes the last real token's.

// CHECK-LABEL: func.func @own_last(
// CHECK-NOT: torch.aten.select.int
// CHECK: torch.aten.index_select %{{.+}} -> !torch.vtensor<[1,1,4],f32>
func.func @own_last(%tokens: !torch.vtensor<[1,8],si64> {kv.name = "t", kv.role = "tokens"}, %w: !torch.vtensor<[9,4],f32> {kv.name = "w", kv.role = "other"}, %pk: !torch.vtensor<[1,0,4],f32> {kv.name = "k", kv.role = "cache"}) -> (!torch.vtensor<[1,4],f32> {kv.name = "logits"}, !torch.vtensor<[1,8,4],f32> {kv.name = "k"}) {
  %int-1 = torch.constant.int -1
  %int1 = torch.constant.int 1
  %false = torch.constant.bool false
  %x = torch.aten.embedding %w, %tokens, %int-1, %false, %false : !torch.vtensor<[9,4],f32>, !torch.vtensor<[1,8],si64>, !torch.int, !torch.bool, !torch.bool -> !torch.vtensor<[1,8,4],f32>
  %k = "kv.append"(%pk, %x) {axis = 1 : i64} : (!torch.vtensor<[1,0,4],f32>, !torch.vtensor<[1,8,4],f32>) -> !torch.vtensor<[1,8,4],f32>
  %last = torch.aten.select.int %x, %int1, %int-1 : !torch.vtensor<[1,8,4],f32>, !torch.int, !torch.int -> !torch.vtensor<[1,4],f32>
  return %last, %k : !torch.vtensor<[1,4],f32>, !torch.vtensor<[1,8,4],f32>
}

// The same behind a past.

// CHECK-LABEL: func.func @extend_8(
// CHECK-SAME: %[[L:arg3]]: !torch.vtensor<[],si64> {kv.name = "length", kv.role = "length"}
// CHECK-NOT: torch.aten.select.int
// CHECK: torch.aten.index_select %{{.+}} -> !torch.vtensor<[1,1,4],f32>
func.func @extend_8(%tokens: !torch.vtensor<[1,8],si64> {kv.name = "t", kv.role = "tokens"}, %w: !torch.vtensor<[9,4],f32> {kv.name = "w", kv.role = "other"}, %pk: !torch.vtensor<[1,13,4],f32> {kv.name = "k", kv.role = "cache"}) -> (!torch.vtensor<[1,4],f32> {kv.name = "logits"}, !torch.vtensor<[1,21,4],f32> {kv.name = "k"}) {
  %int-1 = torch.constant.int -1
  %int1 = torch.constant.int 1
  %false = torch.constant.bool false
  %x = torch.aten.embedding %w, %tokens, %int-1, %false, %false : !torch.vtensor<[9,4],f32>, !torch.vtensor<[1,8],si64>, !torch.int, !torch.bool, !torch.bool -> !torch.vtensor<[1,8,4],f32>
  %k = "kv.append"(%pk, %x) {axis = 1 : i64} : (!torch.vtensor<[1,13,4],f32>, !torch.vtensor<[1,8,4],f32>) -> !torch.vtensor<[1,21,4],f32>
  %last = torch.aten.select.int %x, %int1, %int-1 : !torch.vtensor<[1,8,4],f32>, !torch.int, !torch.int -> !torch.vtensor<[1,4],f32>
  return %last, %k : !torch.vtensor<[1,4],f32>, !torch.vtensor<[1,21,4],f32>
}

// Decode has one token and is left alone.

// CHECK-LABEL: func.func @decode(
// CHECK-NOT: length
// CHECK: return
func.func @decode(%tokens: !torch.vtensor<[2,1],si64> {kv.name = "t", kv.role = "tokens"}, %x: !torch.vtensor<[2,1,4],f32> {kv.name = "x", kv.role = "other"}, %pk: !torch.vtensor<[2,13,4],f32> {kv.name = "k", kv.role = "cache"}) -> (!torch.vtensor<[2,1,4],f32> {kv.name = "logits"}, !torch.vtensor<[2,14,4],f32> {kv.name = "k"}) {
  %k = "kv.append"(%pk, %x) {axis = 1 : i64} : (!torch.vtensor<[2,13,4],f32>, !torch.vtensor<[2,1,4],f32>) -> !torch.vtensor<[2,14,4],f32>
  return %x, %k : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,14,4],f32>
}

// -----

// REFUSED: error: 'torch.aten.select.int' takes some of the prompt's tokens on the way to the logits; return the logits of all tokens, or of the last one as x[:, -1]
func.func @first_token(%tokens: !torch.vtensor<[1,8],si64> {kv.name = "t", kv.role = "tokens"}, %w: !torch.vtensor<[9,4],f32> {kv.name = "w", kv.role = "other"}, %pk: !torch.vtensor<[1,0,4],f32> {kv.name = "k", kv.role = "cache"}) -> (!torch.vtensor<[1,4],f32> {kv.name = "logits"}, !torch.vtensor<[1,8,4],f32> {kv.name = "k"}) {
  %int-1 = torch.constant.int -1
  %int0 = torch.constant.int 0
  %int1 = torch.constant.int 1
  %false = torch.constant.bool false
  %x = torch.aten.embedding %w, %tokens, %int-1, %false, %false : !torch.vtensor<[9,4],f32>, !torch.vtensor<[1,8],si64>, !torch.int, !torch.bool, !torch.bool -> !torch.vtensor<[1,8,4],f32>
  %k = "kv.append"(%pk, %x) {axis = 1 : i64} : (!torch.vtensor<[1,0,4],f32>, !torch.vtensor<[1,8,4],f32>) -> !torch.vtensor<[1,8,4],f32>
  %last = torch.aten.select.int %x, %int1, %int0 : !torch.vtensor<[1,8,4],f32>, !torch.int, !torch.int -> !torch.vtensor<[1,4],f32>
  return %last, %k : !torch.vtensor<[1,4],f32>, !torch.vtensor<[1,8,4],f32>
}
