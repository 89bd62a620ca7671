// RUN: not snapcc-opt %s --split-input-file --pass-pipeline='builtin.module(kv-raise-longest,kv-check-axis,kv-rebuild-positions)' 2>%t | filecheck %s
// RUN: filecheck %s --check-prefix=REFUSED --input-file %t

// The largest position of the batch is each row's own in decode, and the last real token's in prefill.

// CHECK-LABEL: func.func @decode(
// CHECK-SAME: %[[P:arg[0-9]+]]: !torch.vtensor<[2],si64> {kv.name = "positions", kv.role = "positions"}
// CHECK-NOT: torch.aten.max
// CHECK: %[[IS:.+]] = torch.aten.gt.Scalar %{{.+}}, %int8 : !torch.vtensor<[2],si64>, !torch.int -> !torch.vtensor<[2],i1>
// CHECK: %[[ROWS:.+]] = torch.aten.view %[[IS]], %{{.+}} -> !torch.vtensor<[2,1],i1>
// CHECK: torch.aten.where.self %[[ROWS]], {{.+}} -> !torch.vtensor<[2,4],f32>
// CHECK-LABEL: func.func @prefill_16(
// CHECK-NOT: torch.aten.max
// CHECK: torch.aten.add.Scalar %arg4, %int-1
func.func @decode(%tokens: !torch.vtensor<[2,1],si64> {kv.name = "t", kv.role = "tokens"}, %at: !torch.vtensor<[2,1],si64> {kv.name = "at", kv.role = "positions"}, %w: !torch.vtensor<[64,4],f32> {kv.name = "w", kv.role = "other"}, %pk: !torch.vtensor<[2,13,4],f32> {kv.name = "k", kv.role = "cache"}) -> (!torch.vtensor<[2,1,4],f32> {kv.name = "logits"}, !torch.vtensor<[2,14,4],f32> {kv.name = "k"}) {
  %int8 = torch.constant.int 8
  %pad = torch.constant.int -1
  %no = torch.constant.bool false
  %x = torch.aten.embedding %w, %tokens, %pad, %no, %no : !torch.vtensor<[64,4],f32>, !torch.vtensor<[2,1],si64>, !torch.int, !torch.bool, !torch.bool -> !torch.vtensor<[2,1,4],f32>
  %short = "kv.parameter"() {parameter = "short"} : () -> !torch.vtensor<[4],f32>
  %long = "kv.parameter"() {parameter = "long"} : () -> !torch.vtensor<[4],f32>
  %longest = torch.aten.max %at : !torch.vtensor<[2,1],si64> -> !torch.vtensor<[],si64>
  %is = torch.aten.gt.Scalar %longest, %int8 : !torch.vtensor<[],si64>, !torch.int -> !torch.vtensor<[],i1>
  %factors = torch.aten.where.self %is, %long, %short : !torch.vtensor<[],i1>, !torch.vtensor<[4],f32>, !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  %y = torch.aten.mul.Tensor %x, %factors : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[4],f32> -> !torch.vtensor<[2,1,4],f32>
  %k = "kv.append"(%pk, %y) {axis = 1 : i64} : (!torch.vtensor<[2,13,4],f32>, !torch.vtensor<[2,1,4],f32>) -> !torch.vtensor<[2,14,4],f32>
  return %y, %k : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,14,4],f32>
}
func.func @decode_probe(%tokens: !torch.vtensor<[2,1],si64> {kv.name = "t", kv.role = "tokens"}, %at: !torch.vtensor<[2,1],si64> {kv.name = "at", kv.role = "positions"}, %w: !torch.vtensor<[64,4],f32> {kv.name = "w", kv.role = "other"}, %pk: !torch.vtensor<[2,40,4],f32> {kv.name = "k", kv.role = "cache"}) -> (!torch.vtensor<[2,1,4],f32> {kv.name = "logits"}, !torch.vtensor<[2,41,4],f32> {kv.name = "k"}) {
  %int8 = torch.constant.int 8
  %pad = torch.constant.int -1
  %no = torch.constant.bool false
  %x = torch.aten.embedding %w, %tokens, %pad, %no, %no : !torch.vtensor<[64,4],f32>, !torch.vtensor<[2,1],si64>, !torch.int, !torch.bool, !torch.bool -> !torch.vtensor<[2,1,4],f32>
  %short = "kv.parameter"() {parameter = "short"} : () -> !torch.vtensor<[4],f32>
  %long = "kv.parameter"() {parameter = "long"} : () -> !torch.vtensor<[4],f32>
  %longest = torch.aten.max %at : !torch.vtensor<[2,1],si64> -> !torch.vtensor<[],si64>
  %is = torch.aten.gt.Scalar %longest, %int8 : !torch.vtensor<[],si64>, !torch.int -> !torch.vtensor<[],i1>
  %factors = torch.aten.where.self %is, %long, %short : !torch.vtensor<[],i1>, !torch.vtensor<[4],f32>, !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  %y = torch.aten.mul.Tensor %x, %factors : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[4],f32> -> !torch.vtensor<[2,1,4],f32>
  %k = "kv.append"(%pk, %y) {axis = 1 : i64} : (!torch.vtensor<[2,40,4],f32>, !torch.vtensor<[2,1,4],f32>) -> !torch.vtensor<[2,41,4],f32>
  return %y, %k : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,41,4],f32>
}
func.func @prefill_16(%tokens: !torch.vtensor<[1,16],si64> {kv.name = "t", kv.role = "tokens"}, %at: !torch.vtensor<[1,16],si64> {kv.name = "at", kv.role = "positions"}, %w: !torch.vtensor<[64,4],f32> {kv.name = "w", kv.role = "other"}, %pk: !torch.vtensor<[1,0,4],f32> {kv.name = "k", kv.role = "cache"}, %length: !torch.vtensor<[],si64> {kv.name = "length", kv.role = "length"}) -> (!torch.vtensor<[1,16,4],f32> {kv.name = "logits"}, !torch.vtensor<[1,16,4],f32> {kv.name = "k"}) {
  %int8 = torch.constant.int 8
  %pad = torch.constant.int -1
  %no = torch.constant.bool false
  %x = torch.aten.embedding %w, %tokens, %pad, %no, %no : !torch.vtensor<[64,4],f32>, !torch.vtensor<[1,16],si64>, !torch.int, !torch.bool, !torch.bool -> !torch.vtensor<[1,16,4],f32>
  %short = "kv.parameter"() {parameter = "short"} : () -> !torch.vtensor<[4],f32>
  %long = "kv.parameter"() {parameter = "long"} : () -> !torch.vtensor<[4],f32>
  %longest = torch.aten.max %at : !torch.vtensor<[1,16],si64> -> !torch.vtensor<[],si64>
  %is = torch.aten.gt.Scalar %longest, %int8 : !torch.vtensor<[],si64>, !torch.int -> !torch.vtensor<[],i1>
  %factors = torch.aten.where.self %is, %long, %short : !torch.vtensor<[],i1>, !torch.vtensor<[4],f32>, !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  %y = torch.aten.mul.Tensor %x, %factors : !torch.vtensor<[1,16,4],f32>, !torch.vtensor<[4],f32> -> !torch.vtensor<[1,16,4],f32>
  %k = "kv.append"(%pk, %y) {axis = 1 : i64} : (!torch.vtensor<[1,0,4],f32>, !torch.vtensor<[1,16,4],f32>) -> !torch.vtensor<[1,16,4],f32>
  return %y, %k : !torch.vtensor<[1,16,4],f32>, !torch.vtensor<[1,16,4],f32>
}

// -----

// REFUSED: error: 'torch.aten.max' takes the largest position of several tokens behind others, which have one each; compile with --extend 0: tokens are then taken through decode
func.func @extend_3(%tokens: !torch.vtensor<[1,3],si64> {kv.name = "t", kv.role = "tokens"}, %at: !torch.vtensor<[1,3],si64> {kv.name = "at", kv.role = "positions"}, %w: !torch.vtensor<[64,4],f32> {kv.name = "w", kv.role = "other"}, %pk: !torch.vtensor<[1,13,4],f32> {kv.name = "k", kv.role = "cache"}, %length: !torch.vtensor<[],si64> {kv.name = "length", kv.role = "length"}) -> (!torch.vtensor<[1,3,4],f32> {kv.name = "logits"}, !torch.vtensor<[1,16,4],f32> {kv.name = "k"}) {
  %int8 = torch.constant.int 8
  %pad = torch.constant.int -1
  %no = torch.constant.bool false
  %x = torch.aten.embedding %w, %tokens, %pad, %no, %no : !torch.vtensor<[64,4],f32>, !torch.vtensor<[1,3],si64>, !torch.int, !torch.bool, !torch.bool -> !torch.vtensor<[1,3,4],f32>
  %short = "kv.parameter"() {parameter = "short"} : () -> !torch.vtensor<[4],f32>
  %long = "kv.parameter"() {parameter = "long"} : () -> !torch.vtensor<[4],f32>
  %longest = torch.aten.max %at : !torch.vtensor<[1,3],si64> -> !torch.vtensor<[],si64>
  %is = torch.aten.gt.Scalar %longest, %int8 : !torch.vtensor<[],si64>, !torch.int -> !torch.vtensor<[],i1>
  %factors = torch.aten.where.self %is, %long, %short : !torch.vtensor<[],i1>, !torch.vtensor<[4],f32>, !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  %y = torch.aten.mul.Tensor %x, %factors : !torch.vtensor<[1,3,4],f32>, !torch.vtensor<[4],f32> -> !torch.vtensor<[1,3,4],f32>
  %k = "kv.append"(%pk, %y) {axis = 1 : i64} : (!torch.vtensor<[1,13,4],f32>, !torch.vtensor<[1,3,4],f32>) -> !torch.vtensor<[1,16,4],f32>
  return %y, %k : !torch.vtensor<[1,3,4],f32>, !torch.vtensor<[1,16,4],f32>
}
func.func @extend_3_probe(%tokens: !torch.vtensor<[1,3],si64> {kv.name = "t", kv.role = "tokens"}, %at: !torch.vtensor<[1,3],si64> {kv.name = "at", kv.role = "positions"}, %w: !torch.vtensor<[64,4],f32> {kv.name = "w", kv.role = "other"}, %pk: !torch.vtensor<[1,40,4],f32> {kv.name = "k", kv.role = "cache"}, %length: !torch.vtensor<[],si64> {kv.name = "length", kv.role = "length"}) -> (!torch.vtensor<[1,3,4],f32> {kv.name = "logits"}, !torch.vtensor<[1,43,4],f32> {kv.name = "k"}) {
  %int8 = torch.constant.int 8
  %pad = torch.constant.int -1
  %no = torch.constant.bool false
  %x = torch.aten.embedding %w, %tokens, %pad, %no, %no : !torch.vtensor<[64,4],f32>, !torch.vtensor<[1,3],si64>, !torch.int, !torch.bool, !torch.bool -> !torch.vtensor<[1,3,4],f32>
  %short = "kv.parameter"() {parameter = "short"} : () -> !torch.vtensor<[4],f32>
  %long = "kv.parameter"() {parameter = "long"} : () -> !torch.vtensor<[4],f32>
  %longest = torch.aten.max %at : !torch.vtensor<[1,3],si64> -> !torch.vtensor<[],si64>
  %is = torch.aten.gt.Scalar %longest, %int8 : !torch.vtensor<[],si64>, !torch.int -> !torch.vtensor<[],i1>
  %factors = torch.aten.where.self %is, %long, %short : !torch.vtensor<[],i1>, !torch.vtensor<[4],f32>, !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  %y = torch.aten.mul.Tensor %x, %factors : !torch.vtensor<[1,3,4],f32>, !torch.vtensor<[4],f32> -> !torch.vtensor<[1,3,4],f32>
  %k = "kv.append"(%pk, %y) {axis = 1 : i64} : (!torch.vtensor<[1,40,4],f32>, !torch.vtensor<[1,3,4],f32>) -> !torch.vtensor<[1,43,4],f32>
  return %y, %k : !torch.vtensor<[1,3,4],f32>, !torch.vtensor<[1,43,4],f32>
}

// -----

// The largest token is no position.

// REFUSED: error: 'torch.aten.max' reduces the rows of the batch: each row is a sequence of its own; treat each row on its own
func.func @decode(%tokens: !torch.vtensor<[2,1],si64> {kv.name = "t", kv.role = "tokens"}, %at: !torch.vtensor<[2,1],si64> {kv.name = "at", kv.role = "positions"}, %w: !torch.vtensor<[64,4],f32> {kv.name = "w", kv.role = "other"}, %pk: !torch.vtensor<[2,13,4],f32> {kv.name = "k", kv.role = "cache"}) -> (!torch.vtensor<[2,1,4],f32> {kv.name = "logits"}, !torch.vtensor<[2,14,4],f32> {kv.name = "k"}) {
  %int8 = torch.constant.int 8
  %pad = torch.constant.int -1
  %no = torch.constant.bool false
  %x = torch.aten.embedding %w, %tokens, %pad, %no, %no : !torch.vtensor<[64,4],f32>, !torch.vtensor<[2,1],si64>, !torch.int, !torch.bool, !torch.bool -> !torch.vtensor<[2,1,4],f32>
  %short = "kv.parameter"() {parameter = "short"} : () -> !torch.vtensor<[4],f32>
  %long = "kv.parameter"() {parameter = "long"} : () -> !torch.vtensor<[4],f32>
  %longest = torch.aten.max %tokens : !torch.vtensor<[2,1],si64> -> !torch.vtensor<[],si64>
  %is = torch.aten.gt.Scalar %longest, %int8 : !torch.vtensor<[],si64>, !torch.int -> !torch.vtensor<[],i1>
  %factors = torch.aten.where.self %is, %long, %short : !torch.vtensor<[],i1>, !torch.vtensor<[4],f32>, !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  %y = torch.aten.mul.Tensor %x, %factors : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[4],f32> -> !torch.vtensor<[2,1,4],f32>
  %k = "kv.append"(%pk, %y) {axis = 1 : i64} : (!torch.vtensor<[2,13,4],f32>, !torch.vtensor<[2,1,4],f32>) -> !torch.vtensor<[2,14,4],f32>
  return %y, %k : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,14,4],f32>
}
func.func @decode_probe(%tokens: !torch.vtensor<[2,1],si64> {kv.name = "t", kv.role = "tokens"}, %at: !torch.vtensor<[2,1],si64> {kv.name = "at", kv.role = "positions"}, %w: !torch.vtensor<[64,4],f32> {kv.name = "w", kv.role = "other"}, %pk: !torch.vtensor<[2,40,4],f32> {kv.name = "k", kv.role = "cache"}) -> (!torch.vtensor<[2,1,4],f32> {kv.name = "logits"}, !torch.vtensor<[2,41,4],f32> {kv.name = "k"}) {
  %int8 = torch.constant.int 8
  %pad = torch.constant.int -1
  %no = torch.constant.bool false
  %x = torch.aten.embedding %w, %tokens, %pad, %no, %no : !torch.vtensor<[64,4],f32>, !torch.vtensor<[2,1],si64>, !torch.int, !torch.bool, !torch.bool -> !torch.vtensor<[2,1,4],f32>
  %short = "kv.parameter"() {parameter = "short"} : () -> !torch.vtensor<[4],f32>
  %long = "kv.parameter"() {parameter = "long"} : () -> !torch.vtensor<[4],f32>
  %longest = torch.aten.max %tokens : !torch.vtensor<[2,1],si64> -> !torch.vtensor<[],si64>
  %is = torch.aten.gt.Scalar %longest, %int8 : !torch.vtensor<[],si64>, !torch.int -> !torch.vtensor<[],i1>
  %factors = torch.aten.where.self %is, %long, %short : !torch.vtensor<[],i1>, !torch.vtensor<[4],f32>, !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  %y = torch.aten.mul.Tensor %x, %factors : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[4],f32> -> !torch.vtensor<[2,1,4],f32>
  %k = "kv.append"(%pk, %y) {axis = 1 : i64} : (!torch.vtensor<[2,40,4],f32>, !torch.vtensor<[2,1,4],f32>) -> !torch.vtensor<[2,41,4],f32>
  return %y, %k : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,41,4],f32>
}
