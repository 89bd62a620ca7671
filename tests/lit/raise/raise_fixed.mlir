// RUN: not snapcc-opt %s --split-input-file --pass-pipeline='builtin.module(kv-raise-fixed)' 2>%t | filecheck %s
// RUN: filecheck %s --check-prefix=REFUSED --input-file %t

// The oldest entry is cut off, the new one joined behind: one entry less comes in.

// CHECK-LABEL: func.func @slice_and_join(
// CHECK-SAME: %arg0: !torch.vtensor<[2,3,4],f32> {kv.name = "k", kv.order = "shifted", kv.role = "cache"}
// CHECK: %[[LIST:.+]] = torch.prim.ListConstruct %arg0, %arg1
// CHECK: torch.aten.cat %[[LIST]], %int1
// CHECK-NOT: torch.aten.slice
func.func @slice_and_join(%past: !torch.vtensor<[2,4,4],f32> {kv.name = "k", kv.role = "cache"}, %new: !torch.vtensor<[2,1,4],f32> {kv.name = "x", kv.role = "other"}) -> (!torch.vtensor<[2,4,4],f32> {kv.name = "k"}) {
  %int1 = torch.constant.int 1
  %end = torch.constant.int 9223372036854775807
  %kept = torch.aten.slice.Tensor %past, %int1, %int1, %end, %int1 : !torch.vtensor<[2,4,4],f32>, !torch.int, !torch.int, !torch.int, !torch.int -> !torch.vtensor<[2,3,4],f32>
  %list = torch.prim.ListConstruct %kept, %new : (!torch.vtensor<[2,3,4],f32>, !torch.vtensor<[2,1,4],f32>) -> !torch.list<vtensor>
  %grown = torch.aten.cat %list, %int1 : !torch.list<vtensor>, !torch.int -> !torch.vtensor<[2,4,4],f32>
  return %grown : !torch.vtensor<[2,4,4],f32>
}

// -----

// Something reads past and new before the oldest is cut off: nothing less comes in.

// CHECK-LABEL: func.func @join_and_slice(
// CHECK-SAME: %arg0: !torch.vtensor<[2,4,4],f32> {kv.name = "k", kv.order = "shifted", kv.role = "cache"}
// CHECK: %[[GROWN:.+]] = torch.aten.cat
// CHECK: torch.aten.tanh %[[GROWN]]
// CHECK: return %[[GROWN]], %{{.+}} : !torch.vtensor<[2,5,4],f32>, !torch.vtensor<[2,5,4],f32>
func.func @join_and_slice(%past: !torch.vtensor<[2,4,4],f32> {kv.name = "k", kv.role = "cache"}, %new: !torch.vtensor<[2,1,4],f32> {kv.name = "x", kv.role = "other"}) -> (!torch.vtensor<[2,4,4],f32> {kv.name = "k"}, !torch.vtensor<[2,5,4],f32> {kv.name = "y"}) {
  %int1 = torch.constant.int 1
  %end = torch.constant.int 9223372036854775807
  %list = torch.prim.ListConstruct %past, %new : (!torch.vtensor<[2,4,4],f32>, !torch.vtensor<[2,1,4],f32>) -> !torch.list<vtensor>
  %grown = torch.aten.cat %list, %int1 : !torch.list<vtensor>, !torch.int -> !torch.vtensor<[2,5,4],f32>
  %read = torch.aten.tanh %grown : !torch.vtensor<[2,5,4],f32> -> !torch.vtensor<[2,5,4],f32>
  %kept = torch.aten.slice.Tensor %grown, %int1, %int1, %end, %int1 : !torch.vtensor<[2,5,4],f32>, !torch.int, !torch.int, !torch.int, !torch.int -> !torch.vtensor<[2,4,4],f32>
  return %kept, %read : !torch.vtensor<[2,4,4],f32>, !torch.vtensor<[2,5,4],f32>
}

// -----

// A write at the position's index, through an expanded index; the new rows come in another layout.

// CHECK-LABEL: func.func @scatter(
// CHECK-SAME: %arg0: !torch.vtensor<[2,3,4],f32> {kv.name = "k", kv.order = "indexed", kv.role = "cache"}
// CHECK: %[[ROWS:.+]] = torch.aten.view %arg2, %{{.+}} : !torch.vtensor<[2,4],f32>, !torch.list<int> -> !torch.vtensor<[2,1,4],f32>
// CHECK: torch.prim.ListConstruct %arg0, %[[ROWS]]
// CHECK-NOT: torch.aten.scatter
func.func @scatter(%past: !torch.vtensor<[2,4,4],f32> {kv.name = "k", kv.role = "cache"}, %p: !torch.vtensor<[2],si64> {kv.name = "p", kv.role = "positions"}, %new: !torch.vtensor<[2,4],f32> {kv.name = "x", kv.role = "other"}) -> (!torch.vtensor<[2,4,4],f32> {kv.name = "k"}) {
  %int1 = torch.constant.int 1
  %int2 = torch.constant.int 2
  %int4 = torch.constant.int 4
  %false = torch.constant.bool false
  %column = torch.prim.ListConstruct %int2, %int1, %int1 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %wide = torch.prim.ListConstruct %int2, %int1, %int4 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %p3 = torch.aten.view %p, %column : !torch.vtensor<[2],si64>, !torch.list<int> -> !torch.vtensor<[2,1,1],si64>
  %index = torch.aten.expand %p3, %wide, %false : !torch.vtensor<[2,1,1],si64>, !torch.list<int>, !torch.bool -> !torch.vtensor<[2,1,4],si64>
  %rows = torch.aten.view %new, %wide : !torch.vtensor<[2,4],f32>, !torch.list<int> -> !torch.vtensor<[2,1,4],f32>
  %grown = torch.aten.scatter.src %past, %int1, %index, %rows : !torch.vtensor<[2,4,4],f32>, !torch.int, !torch.vtensor<[2,1,4],si64>, !torch.vtensor<[2,1,4],f32> -> !torch.vtensor<[2,4,4],f32>
  return %grown : !torch.vtensor<[2,4,4],f32>
}

// -----

// A ring: written at the position modulo the length.

// CHECK-LABEL: func.func @ring(
// CHECK-SAME: {kv.name = "k", kv.order = "wrapped", kv.role = "cache"}
// CHECK: torch.prim.ListConstruct %arg0, %arg2
func.func @ring(%past: !torch.vtensor<[2,4,4],f32> {kv.name = "k", kv.role = "cache"}, %p: !torch.vtensor<[1],si64> {kv.name = "p", kv.role = "positions"}, %new: !torch.vtensor<[2,1,4],f32> {kv.name = "x", kv.role = "other"}) -> (!torch.vtensor<[2,4,4],f32> {kv.name = "k"}) {
  %int4 = torch.constant.int 4
  %none = torch.constant.none
  %false = torch.constant.bool false
  %place = torch.aten.remainder.Scalar %p, %int4 : !torch.vtensor<[1],si64>, !torch.int -> !torch.vtensor<[1],si64>
  %index = torch.prim.ListConstruct %none, %place : (!torch.none, !torch.vtensor<[1],si64>) -> !torch.list<optional<vtensor>>
  %grown = torch.aten.index_put %past, %index, %new, %false : !torch.vtensor<[2,4,4],f32>, !torch.list<optional<vtensor>>, !torch.vtensor<[2,1,4],f32>, !torch.bool -> !torch.vtensor<[2,4,4],f32>
  return %grown : !torch.vtensor<[2,4,4],f32>
}

// -----

// A cache that grows is left to kv-raise-append.

// CHECK-LABEL: func.func @grows(
// CHECK-SAME: {kv.name = "k", kv.role = "cache"}
func.func @grows(%past: !torch.vtensor<[2,4,4],f32> {kv.name = "k", kv.role = "cache"}, %new: !torch.vtensor<[2,1,4],f32> {kv.name = "x", kv.role = "other"}) -> (!torch.vtensor<[2,5,4],f32> {kv.name = "k"}) {
  %int1 = torch.constant.int 1
  %list = torch.prim.ListConstruct %past, %new : (!torch.vtensor<[2,4,4],f32>, !torch.vtensor<[2,1,4],f32>) -> !torch.list<vtensor>
  %grown = torch.aten.cat %list, %int1 : !torch.list<vtensor>, !torch.int -> !torch.vtensor<[2,5,4],f32>
  return %grown : !torch.vtensor<[2,5,4],f32>
}

// -----

// REFUSED: raise_fixed.mlir:[[# @LINE + 8]]:{{[0-9]+}}: error: the cache 'k' keeps its length, and 'torch.aten.index_put' puts the new tokens of an argument, [2, 1, 4], neither behind the past ones nor at the index of each row's position; join each new token
func.func @one_further(%past: !torch.vtensor<[2,4,4],f32> {kv.name = "k", kv.role = "cache"}, %p: !torch.vtensor<[1],si64> {kv.name = "p", kv.role = "positions"}, %new: !torch.vtensor<[2,1,4],f32> {kv.name = "x", kv.role = "other"}) -> (!torch.vtensor<[2,4,4],f32> {kv.name = "k"}) {
  %int1 = torch.constant.int 1
  %int4 = torch.constant.int 4
  %none = torch.constant.none
  %false = torch.constant.bool false
  %next = torch.aten.add.Scalar %p, %int1, %int1 : !torch.vtensor<[1],si64>, !torch.int, !torch.int -> !torch.vtensor<[1],si64>
  %index = torch.prim.ListConstruct %none, %next : (!torch.none, !torch.vtensor<[1],si64>) -> !torch.list<optional<vtensor>>
  %grown = torch.aten.index_put %past, %index, %new, %false : !torch.vtensor<[2,4,4],f32>, !torch.list<optional<vtensor>>, !torch.vtensor<[2,1,4],f32>, !torch.bool -> !torch.vtensor<[2,4,4],f32>
  return %grown : !torch.vtensor<[2,4,4],f32>
}

// -----

// REFUSED: raise_fixed.mlir:[[# @LINE + 5]]:{{[0-9]+}}: error: the cache 'k' keeps its length, and 'torch.aten.slice_scatter' puts the new tokens of an argument, [2, 1, 4], neither
func.func @constant_index(%past: !torch.vtensor<[2,4,4],f32> {kv.name = "k", kv.role = "cache"}, %p: !torch.vtensor<[1],si64> {kv.name = "p", kv.role = "positions"}, %new: !torch.vtensor<[2,1,4],f32> {kv.name = "x", kv.role = "other"}) -> (!torch.vtensor<[2,4,4],f32> {kv.name = "k"}) {
  %int0 = torch.constant.int 0
  %int1 = torch.constant.int 1
  %int2 = torch.constant.int 2
  %grown = torch.aten.slice_scatter %past, %new, %int1, %int1, %int2, %int1 : !torch.vtensor<[2,4,4],f32>, !torch.vtensor<[2,1,4],f32>, !torch.int, !torch.int, !torch.int, !torch.int -> !torch.vtensor<[2,4,4],f32>
  return %grown : !torch.vtensor<[2,4,4],f32>
}

// -----

// REFUSED: raise_fixed.mlir:[[# @LINE + 4]]:{{[0-9]+}}: error: the cache 'k' is returned from 'torch.aten.mul.Scalar', which does more than to move its tokens; join each new token
func.func @fades(%past: !torch.vtensor<[2,4,4],f32> {kv.name = "k", kv.role = "cache"}, %new: !torch.vtensor<[2,1,4],f32> {kv.name = "x", kv.role = "other"}) -> (!torch.vtensor<[2,4,4],f32> {kv.name = "k"}) {
  %int1 = torch.constant.int 1
  %half = torch.constant.float 5.000000e-01
  %faded = torch.aten.mul.Scalar %past, %half : !torch.vtensor<[2,4,4],f32>, !torch.float -> !torch.vtensor<[2,4,4],f32>
  %end = torch.constant.int 9223372036854775807
  %kept = torch.aten.slice.Tensor %faded, %int1, %int1, %end, %int1 : !torch.vtensor<[2,4,4],f32>, !torch.int, !torch.int, !torch.int, !torch.int -> !torch.vtensor<[2,3,4],f32>
  %list = torch.prim.ListConstruct %kept, %new : (!torch.vtensor<[2,3,4],f32>, !torch.vtensor<[2,1,4],f32>) -> !torch.list<vtensor>
  %grown = torch.aten.cat %list, %int1 : !torch.list<vtensor>, !torch.int -> !torch.vtensor<[2,4,4],f32>
  return %grown : !torch.vtensor<[2,4,4],f32>
}

// -----

// REFUSED: raise_fixed.mlir:[[# @LINE + 4]]:{{[0-9]+}}: error: 'torch.aten.tanh' reads the cache 'k' as it was before the new token came in; read each cache only with its new token in it
func.func @beside_old(%past: !torch.vtensor<[2,4,4],f32> {kv.name = "k", kv.role = "cache"}, %new: !torch.vtensor<[2,1,4],f32> {kv.name = "x", kv.role = "other"}) -> (!torch.vtensor<[2,4,4],f32> {kv.name = "k"}, !torch.vtensor<[2,4,4],f32> {kv.name = "y"}) {
  %int1 = torch.constant.int 1
  %end = torch.constant.int 9223372036854775807
  %old = torch.aten.tanh %past : !torch.vtensor<[2,4,4],f32> -> !torch.vtensor<[2,4,4],f32>
  %kept = torch.aten.slice.Tensor %past, %int1, %int1, %end, %int1 : !torch.vtensor<[2,4,4],f32>, !torch.int, !torch.int, !torch.int, !torch.int -> !torch.vtensor<[2,3,4],f32>
  %list = torch.prim.ListConstruct %kept, %new : (!torch.vtensor<[2,3,4],f32>, !torch.vtensor<[2,1,4],f32>) -> !torch.list<vtensor>
  %grown = torch.aten.cat %list, %int1 : !torch.list<vtensor>, !torch.int -> !torch.vtensor<[2,4,4],f32>
  return %grown, %old : !torch.vtensor<[2,4,4],f32>, !torch.vtensor<[2,4,4],f32>
}
