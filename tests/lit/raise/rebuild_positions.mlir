// RUN: not snapcc-opt %s --split-input-file --pass-pipeline='builtin.module(kv-rebuild-positions)' 2>%t | filecheck %s
// RUN: filecheck %s --check-prefix=REFUSED --input-file %t

// The query's position, baked in as 13 of 13 cached tokens, indexes a position table: it becomes each row's own.

// CHECK-LABEL: func.func @decode(
// CHECK-SAME: %[[P:arg3]]: !torch.vtensor<[2],si64> {kv.name = "positions", kv.role = "positions"}
// CHECK-NOT: torch.aten.arange
// CHECK: %[[PER:.+]] = torch.aten.view %[[P]], %{{.+}} : !torch.vtensor<[2],si64>, !torch.list<int> -> !torch.vtensor<[2,1],si64>
// CHECK: %[[E:.+]] = torch.aten.embedding %arg1, %[[PER]], {{.+}} -> !torch.vtensor<[2,1,4],f32>
// CHECK: torch.aten.add.Tensor %{{.+}}, %[[E]], {{.+}} -> !torch.vtensor<[2,1,4],f32>
// CHECK-NOT: @decode_probe
func.func @decode(%tokens: !torch.vtensor<[2,1],si64> {kv.name = "t", kv.role = "tokens"}, %w: !torch.vtensor<[64,4],f32> {kv.name = "w", kv.role = "other"}, %pk: !torch.vtensor<[2,13,4],f32> {kv.name = "k", kv.role = "cache"}) -> (!torch.vtensor<[2,1,4],f32> {kv.name = "logits"}, !torch.vtensor<[2,14,4],f32> {kv.name = "k"}) {
  %pad = torch.constant.int -1
  %no = torch.constant.bool false
  %x = torch.aten.embedding %w, %tokens, %pad, %no, %no : !torch.vtensor<[64,4],f32>, !torch.vtensor<[2,1],si64>, !torch.int, !torch.bool, !torch.bool -> !torch.vtensor<[2,1,4],f32>
  %int-1 = torch.constant.int -1
  %int1 = torch.constant.int 1
  %int13 = torch.constant.int 13
  %int14 = torch.constant.int 14
  %none = torch.constant.none
  %false = torch.constant.bool false
  %p = torch.aten.arange.start_step %int13, %int14, %int1, %none, %none, %none, %none : !torch.int, !torch.int, !torch.int, !torch.none, !torch.none, !torch.none, !torch.none -> !torch.vtensor<[1],si64>
  %e = torch.aten.embedding %w, %p, %int-1, %false, %false : !torch.vtensor<[64,4],f32>, !torch.vtensor<[1],si64>, !torch.int, !torch.bool, !torch.bool -> !torch.vtensor<[1,4],f32>
  %y0 = torch.aten.add.Tensor %x, %e, %int1 : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[1,4],f32>, !torch.int -> !torch.vtensor<[2,1,4],f32>
  %y = torch.aten.tanh %y0 : !torch.vtensor<[2,1,4],f32> -> !torch.vtensor<[2,1,4],f32>
  %k = "kv.append"(%pk, %y) {axis = 1 : i64} : (!torch.vtensor<[2,13,4],f32>, !torch.vtensor<[2,1,4],f32>) -> !torch.vtensor<[2,14,4],f32>
  return %y, %k : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,14,4],f32>
}
func.func @decode_probe(%tokens: !torch.vtensor<[2,1],si64> {kv.name = "t", kv.role = "tokens"}, %w: !torch.vtensor<[64,4],f32> {kv.name = "w", kv.role = "other"}, %pk: !torch.vtensor<[2,40,4],f32> {kv.name = "k", kv.role = "cache"}) -> (!torch.vtensor<[2,1,4],f32> {kv.name = "logits"}, !torch.vtensor<[2,41,4],f32> {kv.name = "k"}) {
  %pad = torch.constant.int -1
  %no = torch.constant.bool false
  %x = torch.aten.embedding %w, %tokens, %pad, %no, %no : !torch.vtensor<[64,4],f32>, !torch.vtensor<[2,1],si64>, !torch.int, !torch.bool, !torch.bool -> !torch.vtensor<[2,1,4],f32>
  %int-1 = torch.constant.int -1
  %int1 = torch.constant.int 1
  %int13 = torch.constant.int 40
  %int14 = torch.constant.int 41
  %none = torch.constant.none
  %false = torch.constant.bool false
  %p = torch.aten.arange.start_step %int13, %int14, %int1, %none, %none, %none, %none : !torch.int, !torch.int, !torch.int, !torch.none, !torch.none, !torch.none, !torch.none -> !torch.vtensor<[1],si64>
  %e = torch.aten.embedding %w, %p, %int-1, %false, %false : !torch.vtensor<[64,4],f32>, !torch.vtensor<[1],si64>, !torch.int, !torch.bool, !torch.bool -> !torch.vtensor<[1,4],f32>
  %y0 = torch.aten.add.Tensor %x, %e, %int1 : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[1,4],f32>, !torch.int -> !torch.vtensor<[2,1,4],f32>
  %y = torch.aten.tanh %y0 : !torch.vtensor<[2,1,4],f32> -> !torch.vtensor<[2,1,4],f32>
  %k = "kv.append"(%pk, %y) {axis = 1 : i64} : (!torch.vtensor<[2,40,4],f32>, !torch.vtensor<[2,1,4],f32>) -> !torch.vtensor<[2,41,4],f32>
  return %y, %k : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,41,4],f32>
}

// -----

// A row of a rotation table, cut out by the length, becomes a lookup.

// CHECK-LABEL: func.func @decode(
// CHECK: torch.aten.index_select %arg1, %{{.+}}, %arg3 : !torch.vtensor<[64,4],f32>, !torch.int, !torch.vtensor<[2],si64> -> !torch.vtensor<[2,4],f32>
// CHECK: torch.aten.mul.Tensor {{.+}} : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,1,4],f32> -> !torch.vtensor<[2,1,4],f32>
// CHECK-NOT: torch.aten.slice
func.func @decode(%tokens: !torch.vtensor<[2,1],si64> {kv.name = "t", kv.role = "tokens"}, %w: !torch.vtensor<[64,4],f32> {kv.name = "w", kv.role = "other"}, %pk: !torch.vtensor<[2,13,4],f32> {kv.name = "k", kv.role = "cache"}) -> (!torch.vtensor<[2,1,4],f32> {kv.name = "logits"}, !torch.vtensor<[2,14,4],f32> {kv.name = "k"}) {
  %pad = torch.constant.int -1
  %no = torch.constant.bool false
  %x = torch.aten.embedding %w, %tokens, %pad, %no, %no : !torch.vtensor<[64,4],f32>, !torch.vtensor<[2,1],si64>, !torch.int, !torch.bool, !torch.bool -> !torch.vtensor<[2,1,4],f32>
  %int0 = torch.constant.int 0
  %int1 = torch.constant.int 1
  %int13 = torch.constant.int 13
  %int14 = torch.constant.int 14
  %all = torch.aten.slice.Tensor %w, %int0, %int0, %int14, %int1 : !torch.vtensor<[64,4],f32>, !torch.int, !torch.int, !torch.int, !torch.int -> !torch.vtensor<[14,4],f32>
  %c = torch.aten.slice.Tensor %all, %int0, %int13, %int14, %int1 : !torch.vtensor<[14,4],f32>, !torch.int, !torch.int, !torch.int, !torch.int -> !torch.vtensor<[1,4],f32>
  %y = torch.aten.mul.Tensor %x, %c : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[1,4],f32> -> !torch.vtensor<[2,1,4],f32>
  %k = "kv.append"(%pk, %y) {axis = 1 : i64} : (!torch.vtensor<[2,13,4],f32>, !torch.vtensor<[2,1,4],f32>) -> !torch.vtensor<[2,14,4],f32>
  return %y, %k : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,14,4],f32>
}
func.func @decode_probe(%tokens: !torch.vtensor<[2,1],si64> {kv.name = "t", kv.role = "tokens"}, %w: !torch.vtensor<[64,4],f32> {kv.name = "w", kv.role = "other"}, %pk: !torch.vtensor<[2,40,4],f32> {kv.name = "k", kv.role = "cache"}) -> (!torch.vtensor<[2,1,4],f32> {kv.name = "logits"}, !torch.vtensor<[2,41,4],f32> {kv.name = "k"}) {
  %pad = torch.constant.int -1
  %no = torch.constant.bool false
  %x = torch.aten.embedding %w, %tokens, %pad, %no, %no : !torch.vtensor<[64,4],f32>, !torch.vtensor<[2,1],si64>, !torch.int, !torch.bool, !torch.bool -> !torch.vtensor<[2,1,4],f32>
  %int0 = torch.constant.int 0
  %int1 = torch.constant.int 1
  %int13 = torch.constant.int 40
  %int14 = torch.constant.int 41
  %all = torch.aten.slice.Tensor %w, %int0, %int0, %int14, %int1 : !torch.vtensor<[64,4],f32>, !torch.int, !torch.int, !torch.int, !torch.int -> !torch.vtensor<[41,4],f32>
  %c = torch.aten.slice.Tensor %all, %int0, %int13, %int14, %int1 : !torch.vtensor<[41,4],f32>, !torch.int, !torch.int, !torch.int, !torch.int -> !torch.vtensor<[1,4],f32>
  %y = torch.aten.mul.Tensor %x, %c : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[1,4],f32> -> !torch.vtensor<[2,1,4],f32>
  %k = "kv.append"(%pk, %y) {axis = 1 : i64} : (!torch.vtensor<[2,40,4],f32>, !torch.vtensor<[2,1,4],f32>) -> !torch.vtensor<[2,41,4],f32>
  return %y, %k : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,41,4],f32>
}

// -----

// A number that is neither extent nor position.
// REFUSED: scale.py:4:7: error: the model uses a number that depends on the cache's length ('torch.aten.mul.Scalar'); in fixed slots a row's length is not the cache's: derive it from a position input, or let only positions, masks and extents depend on the length
func.func @decode(%tokens: !torch.vtensor<[2,1],si64> {kv.name = "t", kv.role = "tokens"}, %x: !torch.vtensor<[2,1,4],f32> {kv.name = "x", kv.role = "other"}, %pk: !torch.vtensor<[2,13,4],f32> {kv.name = "k", kv.role = "cache"}) -> (!torch.vtensor<[2,1,4],f32> {kv.name = "logits"}, !torch.vtensor<[2,14,4],f32> {kv.name = "k"}) {
  %int14 = torch.constant.int 14
  %y = torch.aten.mul.Scalar %x, %int14 : !torch.vtensor<[2,1,4],f32>, !torch.int -> !torch.vtensor<[2,1,4],f32> loc("scale.py":4:7)
  %k = "kv.append"(%pk, %y) {axis = 1 : i64} : (!torch.vtensor<[2,13,4],f32>, !torch.vtensor<[2,1,4],f32>) -> !torch.vtensor<[2,14,4],f32>
  return %y, %k : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,14,4],f32>
}
func.func @decode_probe(%tokens: !torch.vtensor<[2,1],si64> {kv.name = "t", kv.role = "tokens"}, %x: !torch.vtensor<[2,1,4],f32> {kv.name = "x", kv.role = "other"}, %pk: !torch.vtensor<[2,40,4],f32> {kv.name = "k", kv.role = "cache"}) -> (!torch.vtensor<[2,1,4],f32> {kv.name = "logits"}, !torch.vtensor<[2,41,4],f32> {kv.name = "k"}) {
  %int14 = torch.constant.int 41
  %y = torch.aten.mul.Scalar %x, %int14 : !torch.vtensor<[2,1,4],f32>, !torch.int -> !torch.vtensor<[2,1,4],f32> loc("scale.py":4:7)
  %k = "kv.append"(%pk, %y) {axis = 1 : i64} : (!torch.vtensor<[2,40,4],f32>, !torch.vtensor<[2,1,4],f32>) -> !torch.vtensor<[2,41,4],f32>
  return %y, %k : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,41,4],f32>
}

// -----

// A program that does something else at another length.
// REFUSED: error: the program does other things at 40 cached tokens than at 13: 'torch.aten.tanh' instead of 'torch.aten.neg'; let the program do the same whatever the cache's length
func.func @decode(%tokens: !torch.vtensor<[2,1],si64> {kv.name = "t", kv.role = "tokens"}, %x: !torch.vtensor<[2,1,4],f32> {kv.name = "x", kv.role = "other"}, %pk: !torch.vtensor<[2,13,4],f32> {kv.name = "k", kv.role = "cache"}) -> (!torch.vtensor<[2,1,4],f32> {kv.name = "logits"}, !torch.vtensor<[2,14,4],f32> {kv.name = "k"}) {
  %y = torch.aten.neg %x : !torch.vtensor<[2,1,4],f32> -> !torch.vtensor<[2,1,4],f32>
  %k = "kv.append"(%pk, %y) {axis = 1 : i64} : (!torch.vtensor<[2,13,4],f32>, !torch.vtensor<[2,1,4],f32>) -> !torch.vtensor<[2,14,4],f32>
  return %y, %k : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,14,4],f32>
}
func.func @decode_probe(%tokens: !torch.vtensor<[2,1],si64> {kv.name = "t", kv.role = "tokens"}, %x: !torch.vtensor<[2,1,4],f32> {kv.name = "x", kv.role = "other"}, %pk: !torch.vtensor<[2,40,4],f32> {kv.name = "k", kv.role = "cache"}) -> (!torch.vtensor<[2,1,4],f32> {kv.name = "logits"}, !torch.vtensor<[2,41,4],f32> {kv.name = "k"}) {
  %y = torch.aten.tanh %x : !torch.vtensor<[2,1,4],f32> -> !torch.vtensor<[2,1,4],f32>
  %k = "kv.append"(%pk, %y) {axis = 1 : i64} : (!torch.vtensor<[2,40,4],f32>, !torch.vtensor<[2,1,4],f32>) -> !torch.vtensor<[2,41,4],f32>
  return %y, %k : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,41,4],f32>
}

// -----

// Several tokens of one row: their positions count up from a start, and a padded one stands where the last real one does.

// CHECK-LABEL: func.func @extend_3(
// CHECK-SAME: %[[L:arg3]]: !torch.vtensor<[],si64> {kv.name = "length", kv.role = "length"}, %[[S:arg4]]: !torch.vtensor<[],si64> {kv.name = "start", kv.role = "start"}
// CHECK: %[[I:.+]] = torch.aten.arange.start_step {{.+}} -> !torch.vtensor<[3],si64>
// CHECK: %[[LAST:.+]] = torch.aten.add.Scalar %[[L]]
// CHECK: %[[REAL:.+]] = torch.aten.minimum %[[I]], %{{.+}} -> !torch.vtensor<[3],si64>
// CHECK: %[[P:.+]] = torch.aten.add.Tensor %[[REAL]], %{{.+}} -> !torch.vtensor<[3],si64>
// CHECK: torch.aten.embedding %arg1, %{{.+}} -> !torch.vtensor<[3,4],f32>
// CHECK: torch.aten.index_select %arg1, %{{.+}}, %[[P]] : {{.+}} -> !torch.vtensor<[3,4],f32>
// CHECK-NOT: torch.aten.slice
// CHECK-NOT: @extend_3_probe
func.func @extend_3(%tokens: !torch.vtensor<[1,3],si64> {kv.name = "t", kv.role = "tokens"}, %w: !torch.vtensor<[64,4],f32> {kv.name = "w", kv.role = "other"}, %pk: !torch.vtensor<[1,13,4],f32> {kv.name = "k", kv.role = "cache"}, %length: !torch.vtensor<[],si64> {kv.name = "length", kv.role = "length"}) -> (!torch.vtensor<[1,3,4],f32> {kv.name = "logits"}, !torch.vtensor<[1,16,4],f32> {kv.name = "k"}) {
  %pad = torch.constant.int -1
  %no = torch.constant.bool false
  %x = torch.aten.embedding %w, %tokens, %pad, %no, %no : !torch.vtensor<[64,4],f32>, !torch.vtensor<[1,3],si64>, !torch.int, !torch.bool, !torch.bool -> !torch.vtensor<[1,3,4],f32>
  %int0 = torch.constant.int 0
  %int1 = torch.constant.int 1
  %first = torch.constant.int 13
  %end = torch.constant.int 16
  %none = torch.constant.none
  %p = torch.aten.arange.start_step %first, %end, %int1, %none, %none, %none, %none : !torch.int, !torch.int, !torch.int, !torch.none, !torch.none, !torch.none, !torch.none -> !torch.vtensor<[3],si64>
  %e = torch.aten.embedding %w, %p, %pad, %no, %no : !torch.vtensor<[64,4],f32>, !torch.vtensor<[3],si64>, !torch.int, !torch.bool, !torch.bool -> !torch.vtensor<[3,4],f32>
  %r = torch.aten.slice.Tensor %w, %int0, %first, %end, %int1 : !torch.vtensor<[64,4],f32>, !torch.int, !torch.int, !torch.int, !torch.int -> !torch.vtensor<[3,4],f32>
  %y0 = torch.aten.add.Tensor %x, %e, %int1 : !torch.vtensor<[1,3,4],f32>, !torch.vtensor<[3,4],f32>, !torch.int -> !torch.vtensor<[1,3,4],f32>
  %y = torch.aten.mul.Tensor %y0, %r : !torch.vtensor<[1,3,4],f32>, !torch.vtensor<[3,4],f32> -> !torch.vtensor<[1,3,4],f32>
  %k = "kv.append"(%pk, %y) {axis = 1 : i64} : (!torch.vtensor<[1,13,4],f32>, !torch.vtensor<[1,3,4],f32>) -> !torch.vtensor<[1,16,4],f32>
  return %y, %k : !torch.vtensor<[1,3,4],f32>, !torch.vtensor<[1,16,4],f32>
}
func.func @extend_3_probe(%tokens: !torch.vtensor<[1,3],si64> {kv.name = "t", kv.role = "tokens"}, %w: !torch.vtensor<[64,4],f32> {kv.name = "w", kv.role = "other"}, %pk: !torch.vtensor<[1,40,4],f32> {kv.name = "k", kv.role = "cache"}, %length: !torch.vtensor<[],si64> {kv.name = "length", kv.role = "length"}) -> (!torch.vtensor<[1,3,4],f32> {kv.name = "logits"}, !torch.vtensor<[1,43,4],f32> {kv.name = "k"}) {
  %pad = torch.constant.int -1
  %no = torch.constant.bool false
  %x = torch.aten.embedding %w, %tokens, %pad, %no, %no : !torch.vtensor<[64,4],f32>, !torch.vtensor<[1,3],si64>, !torch.int, !torch.bool, !torch.bool -> !torch.vtensor<[1,3,4],f32>
  %int0 = torch.constant.int 0
  %int1 = torch.constant.int 1
  %first = torch.constant.int 40
  %end = torch.constant.int 43
  %none = torch.constant.none
  %p = torch.aten.arange.start_step %first, %end, %int1, %none, %none, %none, %none : !torch.int, !torch.int, !torch.int, !torch.none, !torch.none, !torch.none, !torch.none -> !torch.vtensor<[3],si64>
  %e = torch.aten.embedding %w, %p, %pad, %no, %no : !torch.vtensor<[64,4],f32>, !torch.vtensor<[3],si64>, !torch.int, !torch.bool, !torch.bool -> !torch.vtensor<[3,4],f32>
  %r = torch.aten.slice.Tensor %w, %int0, %first, %end, %int1 : !torch.vtensor<[64,4],f32>, !torch.int, !torch.int, !torch.int, !torch.int -> !torch.vtensor<[3,4],f32>
  %y0 = torch.aten.add.Tensor %x, %e, %int1 : !torch.vtensor<[1,3,4],f32>, !torch.vtensor<[3,4],f32>, !torch.int -> !torch.vtensor<[1,3,4],f32>
  %y = torch.aten.mul.Tensor %y0, %r : !torch.vtensor<[1,3,4],f32>, !torch.vtensor<[3,4],f32> -> !torch.vtensor<[1,3,4],f32>
  %k = "kv.append"(%pk, %y) {axis = 1 : i64} : (!torch.vtensor<[1,40,4],f32>, !torch.vtensor<[1,3,4],f32>) -> !torch.vtensor<[1,43,4],f32>
  return %y, %k : !torch.vtensor<[1,3,4],f32>, !torch.vtensor<[1,43,4],f32>
}

// -----

// One number for all new tokens, which decode would have anew for each.

// REFUSED: table.py:9:7: error: the model takes a part of a table by the cache's length ('torch.aten.slice.Tensor'); in fixed slots a row's length is not the cache's: derive it from a position input, or let only positions, masks and extents depend on the length
func.func @extend_3(%tokens: !torch.vtensor<[1,3],si64> {kv.name = "t", kv.role = "tokens"}, %w: !torch.vtensor<[64,4],f32> {kv.name = "w", kv.role = "other"}, %pk: !torch.vtensor<[1,13,4],f32> {kv.name = "k", kv.role = "cache"}, %length: !torch.vtensor<[],si64> {kv.name = "length", kv.role = "length"}) -> (!torch.vtensor<[1,3,4],f32> {kv.name = "logits"}, !torch.vtensor<[1,16,4],f32> {kv.name = "k"}) {
  %pad = torch.constant.int -1
  %no = torch.constant.bool false
  %x = torch.aten.embedding %w, %tokens, %pad, %no, %no : !torch.vtensor<[64,4],f32>, !torch.vtensor<[1,3],si64>, !torch.int, !torch.bool, !torch.bool -> !torch.vtensor<[1,3,4],f32>
  %int0 = torch.constant.int 0
  %int1 = torch.constant.int 1
  %first = torch.constant.int 13
  %end = torch.constant.int 16
  %none = torch.constant.none
  %next = torch.constant.int 14
  %r = torch.aten.slice.Tensor %w, %int0, %first, %next, %int1 : !torch.vtensor<[64,4],f32>, !torch.int, !torch.int, !torch.int, !torch.int -> !torch.vtensor<[1,4],f32> loc("table.py":9:7)
  %y = torch.aten.mul.Tensor %x, %r : !torch.vtensor<[1,3,4],f32>, !torch.vtensor<[1,4],f32> -> !torch.vtensor<[1,3,4],f32>
  %k = "kv.append"(%pk, %y) {axis = 1 : i64} : (!torch.vtensor<[1,13,4],f32>, !torch.vtensor<[1,3,4],f32>) -> !torch.vtensor<[1,16,4],f32>
  return %y, %k : !torch.vtensor<[1,3,4],f32>, !torch.vtensor<[1,16,4],f32>
}
func.func @extend_3_probe(%tokens: !torch.vtensor<[1,3],si64> {kv.name = "t", kv.role = "tokens"}, %w: !torch.vtensor<[64,4],f32> {kv.name = "w", kv.role = "other"}, %pk: !torch.vtensor<[1,40,4],f32> {kv.name = "k", kv.role = "cache"}, %length: !torch.vtensor<[],si64> {kv.name = "length", kv.role = "length"}) -> (!torch.vtensor<[1,3,4],f32> {kv.name = "logits"}, !torch.vtensor<[1,43,4],f32> {kv.name = "k"}) {
  %pad = torch.constant.int -1
  %no = torch.constant.bool false
  %x = torch.aten.embedding %w, %tokens, %pad, %no, %no : !torch.vtensor<[64,4],f32>, !torch.vtensor<[1,3],si64>, !torch.int, !torch.bool, !torch.bool -> !torch.vtensor<[1,3,4],f32>
  %int0 = torch.constant.int 0
  %int1 = torch.constant.int 1
  %first = torch.constant.int 40
  %end = torch.constant.int 43
  %none = torch.constant.none
  %next = torch.constant.int 41
  %r = torch.aten.slice.Tensor %w, %int0, %first, %next, %int1 : !torch.vtensor<[64,4],f32>, !torch.int, !torch.int, !torch.int, !torch.int -> !torch.vtensor<[1,4],f32> loc("table.py":9:7)
  %y = torch.aten.mul.Tensor %x, %r : !torch.vtensor<[1,3,4],f32>, !torch.vtensor<[1,4],f32> -> !torch.vtensor<[1,3,4],f32>
  %k = "kv.append"(%pk, %y) {axis = 1 : i64} : (!torch.vtensor<[1,40,4],f32>, !torch.vtensor<[1,3,4],f32>) -> !torch.vtensor<[1,43,4],f32>
  return %y, %k : !torch.vtensor<[1,3,4],f32>, !torch.vtensor<[1,43,4],f32>
}

// -----

// REFUSED: error: @extend_3 is there at one past length only; specialise it at another one too, as @extend_3_probe
func.func @extend_3(%tokens: !torch.vtensor<[1,3],si64> {kv.name = "t", kv.role = "tokens"}, %w: !torch.vtensor<[64,4],f32> {kv.name = "w", kv.role = "other"}, %pk: !torch.vtensor<[1,13,4],f32> {kv.name = "k", kv.role = "cache"}, %length: !torch.vtensor<[],si64> {kv.name = "length", kv.role = "length"}) -> (!torch.vtensor<[1,3,4],f32> {kv.name = "logits"}, !torch.vtensor<[1,16,4],f32> {kv.name = "k"}) {
  %pad = torch.constant.int -1
  %no = torch.constant.bool false
  %x = torch.aten.embedding %w, %tokens, %pad, %no, %no : !torch.vtensor<[64,4],f32>, !torch.vtensor<[1,3],si64>, !torch.int, !torch.bool, !torch.bool -> !torch.vtensor<[1,3,4],f32>
  %int0 = torch.constant.int 0
  %int1 = torch.constant.int 1
  %first = torch.constant.int 13
  %end = torch.constant.int 16
  %none = torch.constant.none
  %p = torch.aten.arange.start_step %first, %end, %int1, %none, %none, %none, %none : !torch.int, !torch.int, !torch.int, !torch.none, !torch.none, !torch.none, !torch.none -> !torch.vtensor<[3],si64>
  %e = torch.aten.embedding %w, %p, %pad, %no, %no : !torch.vtensor<[64,4],f32>, !torch.vtensor<[3],si64>, !torch.int, !torch.bool, !torch.bool -> !torch.vtensor<[3,4],f32>
  %r = torch.aten.slice.Tensor %w, %int0, %first, %end, %int1 : !torch.vtensor<[64,4],f32>, !torch.int, !torch.int, !torch.int, !torch.int -> !torch.vtensor<[3,4],f32>
  %y0 = torch.aten.add.Tensor %x, %e, %int1 : !torch.vtensor<[1,3,4],f32>, !torch.vtensor<[3,4],f32>, !torch.int -> !torch.vtensor<[1,3,4],f32>
  %y = torch.aten.mul.Tensor %y0, %r : !torch.vtensor<[1,3,4],f32>, !torch.vtensor<[3,4],f32> -> !torch.vtensor<[1,3,4],f32>
  %k = "kv.append"(%pk, %y) {axis = 1 : i64} : (!torch.vtensor<[1,13,4],f32>, !torch.vtensor<[1,3,4],f32>) -> !torch.vtensor<[1,16,4],f32>
  return %y, %k : !torch.vtensor<[1,3,4],f32>, !torch.vtensor<[1,16,4],f32>
}
