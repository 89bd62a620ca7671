// RUN: not snapcc-opt %s --split-input-file --pass-pipeline='builtin.module(kv-rebuild-positions)' 2>%t | filecheck %s
// RUN: filecheck %s --check-prefix=REFUSED --input-file %t

// The query's position, repeated for the rows before it is looked up: each row's own, wherever it meets them. A
// constant of a narrow type is no position.

// CHECK-LABEL: func.func @decode(
// CHECK-SAME: %[[P:arg3]]: !torch.vtensor<[2],si64>
// CHECK: %[[PER:.+]] = torch.aten.view %[[P]], %{{.+}} : !torch.vtensor<[2],si64>, !torch.list<int> -> !torch.vtensor<[2,1],si64>
// CHECK: %[[ALL:.+]] = torch.aten.repeat %[[PER]]
// CHECK: %[[BEHIND:.+]] = torch.aten.add.Scalar %[[ALL]], %int2
// CHECK: torch.aten.embedding %arg1, %[[BEHIND]]
func.func @decode(%tokens: !torch.vtensor<[2,1],si64> {kv.name = "t", kv.role = "tokens"}, %w: !torch.vtensor<[64,4],f32> {kv.name = "w", kv.role = "other"}, %pk: !torch.vtensor<[2,13,4],f32> {kv.name = "k", kv.role = "cache"}) -> (!torch.vtensor<[2,1,4],f32> {kv.name = "logits"}, !torch.vtensor<[2,14,4],f32> {kv.name = "k"}) {
  %pad = torch.constant.int -1
  %no = torch.constant.bool false
  %int0 = torch.constant.int 0
  %int1 = torch.constant.int 1
  %int2 = torch.constant.int 2
  %begin = torch.constant.int 13
  %end = torch.constant.int 14
  %none = torch.constant.none
  %x = torch.aten.embedding %w, %tokens, %pad, %no, %no : !torch.vtensor<[64,4],f32>, !torch.vtensor<[2,1],si64>, !torch.int, !torch.bool, !torch.bool -> !torch.vtensor<[2,1,4],f32>
  %p = torch.aten.arange.start_step %begin, %end, %int1, %none, %none, %none, %none : !torch.int, !torch.int, !torch.int, !torch.none, !torch.none, !torch.none, !torch.none -> !torch.vtensor<[1],si64>
  %times = torch.prim.ListConstruct %int2, %int1 : (!torch.int, !torch.int) -> !torch.list<int>
  %all = torch.aten.repeat %p, %times : !torch.vtensor<[1],si64>, !torch.list<int> -> !torch.vtensor<[2,1],si64>
  %behind = torch.aten.add.Scalar %all, %int2, %int1 : !torch.vtensor<[2,1],si64>, !torch.int, !torch.int -> !torch.vtensor<[2,1],si64>
  %e = torch.aten.embedding %w, %behind, %pad, %no, %no : !torch.vtensor<[64,4],f32>, !torch.vtensor<[2,1],si64>, !torch.int, !torch.bool, !torch.bool -> !torch.vtensor<[2,1,4],f32>
  %half = torch.vtensor.literal(dense<5.000000e-01> : tensor<bf16>) : !torch.vtensor<[],bf16>
  %scaled = torch.aten.mul.Tensor %x, %half : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[],bf16> -> !torch.vtensor<[2,1,4],f32>
  %y = torch.aten.add.Tensor %scaled, %e, %int1 : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,1,4],f32>, !torch.int -> !torch.vtensor<[2,1,4],f32>
  %k = "kv.append"(%pk, %y) {axis = 1 : i64} : (!torch.vtensor<[2,13,4],f32>, !torch.vtensor<[2,1,4],f32>) -> !torch.vtensor<[2,14,4],f32>
  return %y, %k : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,14,4],f32>
}
func.func @decode_probe(%tokens: !torch.vtensor<[2,1],si64> {kv.name = "t", kv.role = "tokens"}, %w: !torch.vtensor<[64,4],f32> {kv.name = "w", kv.role = "other"}, %pk: !torch.vtensor<[2,40,4],f32> {kv.name = "k", kv.role = "cache"}) -> (!torch.vtensor<[2,1,4],f32> {kv.name = "logits"}, !torch.vtensor<[2,41,4],f32> {kv.name = "k"}) {
  %pad = torch.constant.int -1
  %no = torch.constant.bool false
  %int0 = torch.constant.int 0
  %int1 = torch.constant.int 1
  %int2 = torch.constant.int 2
  %begin = torch.constant.int 40
  %end = torch.constant.int 41
  %none = torch.constant.none
  %x = torch.aten.embedding %w, %tokens, %pad, %no, %no : !torch.vtensor<[64,4],f32>, !torch.vtensor<[2,1],si64>, !torch.int, !torch.bool, !torch.bool -> !torch.vtensor<[2,1,4],f32>
  %p = torch.aten.arange.start_step %begin, %end, %int1, %none, %none, %none, %none : !torch.int, !torch.int, !torch.int, !torch.none, !torch.none, !torch.none, !torch.none -> !torch.vtensor<[1],si64>
  %times = torch.prim.ListConstruct %int2, %int1 : (!torch.int, !torch.int) -> !torch.list<int>
  %all = torch.aten.repeat %p, %times : !torch.vtensor<[1],si64>, !torch.list<int> -> !torch.vtensor<[2,1],si64>
  %behind = torch.aten.add.Scalar %all, %int2, %int1 : !torch.vtensor<[2,1],si64>, !torch.int, !torch.int -> !torch.vtensor<[2,1],si64>
  %e = torch.aten.embedding %w, %behind, %pad, %no, %no : !torch.vtensor<[64,4],f32>, !torch.vtensor<[2,1],si64>, !torch.int, !torch.bool, !torch.bool -> !torch.vtensor<[2,1,4],f32>
  %half = torch.vtensor.literal(dense<5.000000e-01> : tensor<bf16>) : !torch.vtensor<[],bf16>
  %scaled = torch.aten.mul.Tensor %x, %half : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[],bf16> -> !torch.vtensor<[2,1,4],f32>
  %y = torch.aten.add.Tensor %scaled, %e, %int1 : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,1,4],f32>, !torch.int -> !torch.vtensor<[2,1,4],f32>
  %k = "kv.append"(%pk, %y) {axis = 1 : i64} : (!torch.vtensor<[2,40,4],f32>, !torch.vtensor<[2,1,4],f32>) -> !torch.vtensor<[2,41,4],f32>
  return %y, %k : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,41,4],f32>
}

// -----

// One that is broadcast to as many entries as there are rows and never meets them is no row's.

// REFUSED: error: 'torch.aten.sum.dim_IntList' uses a position that is broadcast to 2 entries, which may not be the rows; let the model take the positions as an input of shape [rows, tokens]
func.func @decode(%tokens: !torch.vtensor<[2,1],si64> {kv.name = "t", kv.role = "tokens"}, %w: !torch.vtensor<[64,4],f32> {kv.name = "w", kv.role = "other"}, %pk: !torch.vtensor<[2,13,4],f32> {kv.name = "k", kv.role = "cache"}) -> (!torch.vtensor<[2,1,4],f32> {kv.name = "logits"}, !torch.vtensor<[2,14,4],f32> {kv.name = "k"}) {
  %pad = torch.constant.int -1
  %no = torch.constant.bool false
  %int0 = torch.constant.int 0
  %int1 = torch.constant.int 1
  %int2 = torch.constant.int 2
  %begin = torch.constant.int 13
  %end = torch.constant.int 14
  %none = torch.constant.none
  %x = torch.aten.embedding %w, %tokens, %pad, %no, %no : !torch.vtensor<[64,4],f32>, !torch.vtensor<[2,1],si64>, !torch.int, !torch.bool, !torch.bool -> !torch.vtensor<[2,1,4],f32>
  %p = torch.aten.arange.start_step %begin, %end, %int1, %none, %none, %none, %none : !torch.int, !torch.int, !torch.int, !torch.none, !torch.none, !torch.none, !torch.none -> !torch.vtensor<[1],si64>
  %times = torch.prim.ListConstruct %int2, %int1 : (!torch.int, !torch.int) -> !torch.list<int>
  %all = torch.aten.repeat %p, %times : !torch.vtensor<[1],si64>, !torch.list<int> -> !torch.vtensor<[2,1],si64>
  %behind = torch.aten.add.Scalar %all, %int2, %int1 : !torch.vtensor<[2,1],si64>, !torch.int, !torch.int -> !torch.vtensor<[2,1],si64>
  %e = torch.aten.embedding %w, %behind, %pad, %no, %no : !torch.vtensor<[64,4],f32>, !torch.vtensor<[2,1],si64>, !torch.int, !torch.bool, !torch.bool -> !torch.vtensor<[2,1,4],f32>
  %first = torch.prim.ListConstruct %int0 : (!torch.int) -> !torch.list<int>
  %s = torch.aten.sum.dim_IntList %e, %first, %no, %none : !torch.vtensor<[2,1,4],f32>, !torch.list<int>, !torch.bool, !torch.none -> !torch.vtensor<[1,4],f32>
  %y = torch.aten.add.Tensor %x, %s, %int1 : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[1,4],f32>, !torch.int -> !torch.vtensor<[2,1,4],f32>
  %k = "kv.append"(%pk, %y) {axis = 1 : i64} : (!torch.vtensor<[2,13,4],f32>, !torch.vtensor<[2,1,4],f32>) -> !torch.vtensor<[2,14,4],f32>
  return %y, %k : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,14,4],f32>
}
func.func @decode_probe(%tokens: !torch.vtensor<[2,1],si64> {kv.name = "t", kv.role = "tokens"}, %w: !torch.vtensor<[64,4],f32> {kv.name = "w", kv.role = "other"}, %pk: !torch.vtensor<[2,40,4],f32> {kv.name = "k", kv.role = "cache"}) -> (!torch.vtensor<[2,1,4],f32> {kv.name = "logits"}, !torch.vtensor<[2,41,4],f32> {kv.name = "k"}) {
  %pad = torch.constant.int -1
  %no = torch.constant.bool false
  %int0 = torch.constant.int 0
  %int1 = torch.constant.int 1
  %int2 = torch.constant.int 2
  %begin = torch.constant.int 40
  %end = torch.constant.int 41
  %none = torch.constant.none
  %x = torch.aten.embedding %w, %tokens, %pad, %no, %no : !torch.vtensor<[64,4],f32>, !torch.vtensor<[2,1],si64>, !torch.int, !torch.bool, !torch.bool -> !torch.vtensor<[2,1,4],f32>
  %p = torch.aten.arange.start_step %begin, %end, %int1, %none, %none, %none, %none : !torch.int, !torch.int, !torch.int, !torch.none, !torch.none, !torch.none, !torch.none -> !torch.vtensor<[1],si64>
  %times = torch.prim.ListConstruct %int2, %int1 : (!torch.int, !torch.int) -> !torch.list<int>
  %all = torch.aten.repeat %p, %times : !torch.vtensor<[1],si64>, !torch.list<int> -> !torch.vtensor<[2,1],si64>
  %behind = torch.aten.add.Scalar %all, %int2, %int1 : !torch.vtensor<[2,1],si64>, !torch.int, !torch.int -> !torch.vtensor<[2,1],si64>
  %e = torch.aten.embedding %w, %behind, %pad, %no, %no : !torch.vtensor<[64,4],f32>, !torch.vtensor<[2,1],si64>, !torch.int, !torch.bool, !torch.bool -> !torch.vtensor<[2,1,4],f32>
  %first = torch.prim.ListConstruct %int0 : (!torch.int) -> !torch.list<int>
  %s = torch.aten.sum.dim_IntList %e, %first, %no, %none : !torch.vtensor<[2,1,4],f32>, !torch.list<int>, !torch.bool, !torch.none -> !torch.vtensor<[1,4],f32>
  %y = torch.aten.add.Tensor %x, %s, %int1 : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[1,4],f32>, !torch.int -> !torch.vtensor<[2,1,4],f32>
  %k = "kv.append"(%pk, %y) {axis = 1 : i64} : (!torch.vtensor<[2,40,4],f32>, !torch.vtensor<[2,1,4],f32>) -> !torch.vtensor<[2,41,4],f32>
  return %y, %k : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,41,4],f32>
}
