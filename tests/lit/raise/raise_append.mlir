// RUN: not snapcc-opt %s --split-input-file --pass-pipeline='builtin.module(kv-raise-append)' 2>%t | filecheck %s
// RUN: filecheck %s --check-prefix=REFUSED --input-file %t

// The concat of a returned cache becomes the growth of that cache, also onto an empty past.

// CHECK-LABEL: func.func @decode(
// CHECK: "kv.append"(%arg0, %arg1) {axis = 2 : i64} : (!torch.vtensor<[2,3,13,4],f32>, !torch.vtensor<[2,3,1,4],f32>) -> !torch.vtensor<[2,3,14,4],f32>
// CHECK-NOT: torch.aten.cat
func.func @decode(%past: !torch.vtensor<[2,3,13,4],f32> {kv.name = "k", kv.role = "cache"}, %new: !torch.vtensor<[2,3,1,4],f32> {kv.name = "x", kv.role = "other"}) -> (!torch.vtensor<[2,3,14,4],f32> {kv.name = "k"}) {
  %axis = torch.constant.int -2
  %list = torch.prim.ListConstruct %past, %new : (!torch.vtensor<[2,3,13,4],f32>, !torch.vtensor<[2,3,1,4],f32>) -> !torch.list<vtensor>
  %grown = torch.aten.cat %list, %axis : !torch.list<vtensor>, !torch.int -> !torch.vtensor<[2,3,14,4],f32>
  return %grown : !torch.vtensor<[2,3,14,4],f32>
}

// CHECK-LABEL: func.func @prefill_8(
// CHECK: "kv.append"(%arg0, %arg1) {axis = 1 : i64} : (!torch.vtensor<[1,0,3,4],f32>, !torch.vtensor<[1,8,3,4],f32>) -> !torch.vtensor<[1,8,3,4],f32>
func.func @prefill_8(%past: !torch.vtensor<[1,0,3,4],f32> {kv.name = "k", kv.role = "cache"}, %new: !torch.vtensor<[1,8,3,4],f32> {kv.name = "x", kv.role = "other"}) -> (!torch.vtensor<[1,8,3,4],f32> {kv.name = "k"}) {
  %axis = torch.constant.int 1
  %list = torch.prim.ListConstruct %past, %new : (!torch.vtensor<[1,0,3,4],f32>, !torch.vtensor<[1,8,3,4],f32>) -> !torch.list<vtensor>
  %grown = torch.aten.cat %list, %axis : !torch.list<vtensor>, !torch.int -> !torch.vtensor<[1,8,3,4],f32>
  return %grown : !torch.vtensor<[1,8,3,4],f32>
}

// Pieces of the past, an empty tensor and the new tokens, nested: still the growth of one cache.

// CHECK-LABEL: func.func @pieces(
// CHECK: %[[GROWN:.*]] = "kv.append"(%arg0, %arg1) {axis = 1 : i64}
// CHECK-NEXT: torch.aten.exp %[[GROWN]]
func.func @pieces(%past: !torch.vtensor<[2,13,4],f32> {kv.name = "k", kv.role = "cache"}, %new: !torch.vtensor<[2,1,4],f32> {kv.name = "x", kv.role = "other"}, %none: !torch.vtensor<[0],f32> {kv.name = "e", kv.role = "other"}) -> (!torch.vtensor<[2,14,4],f32> {kv.name = "k"}, !torch.vtensor<[2,14,4],f32> {kv.name = "y"}) {
  %zero = torch.constant.int 0
  %one = torch.constant.int 1
  %five = torch.constant.int 5
  %end = torch.constant.int 9223372036854775807
  %front = torch.aten.slice.Tensor %past, %one, %zero, %five, %one : !torch.vtensor<[2,13,4],f32>, !torch.int, !torch.int, !torch.int, !torch.int -> !torch.vtensor<[2,5,4],f32>
  %back = torch.aten.slice.Tensor %past, %one, %five, %end, %one : !torch.vtensor<[2,13,4],f32>, !torch.int, !torch.int, !torch.int, !torch.int -> !torch.vtensor<[2,8,4],f32>
  %inner = torch.prim.ListConstruct %none, %front, %back : (!torch.vtensor<[0],f32>, !torch.vtensor<[2,5,4],f32>, !torch.vtensor<[2,8,4],f32>) -> !torch.list<vtensor>
  %old = torch.aten.cat %inner, %one : !torch.list<vtensor>, !torch.int -> !torch.vtensor<[2,13,4],f32>
  %list = torch.prim.ListConstruct %old, %new : (!torch.vtensor<[2,13,4],f32>, !torch.vtensor<[2,1,4],f32>) -> !torch.list<vtensor>
  %grown = torch.aten.cat %list, %one : !torch.list<vtensor>, !torch.int -> !torch.vtensor<[2,14,4],f32>
  %all = torch.aten.slice.Tensor %grown, %one, %zero, %end, %one : !torch.vtensor<[2,14,4],f32>, !torch.int, !torch.int, !torch.int, !torch.int -> !torch.vtensor<[2,14,4],f32>
  %y = torch.aten.exp %all : !torch.vtensor<[2,14,4],f32> -> !torch.vtensor<[2,14,4],f32>
  return %grown, %y : !torch.vtensor<[2,14,4],f32>, !torch.vtensor<[2,14,4],f32>
}

// A pad that the new tokens are added to.

// CHECK-LABEL: func.func @padded(
// CHECK: "kv.append"(%arg0, %arg1) {axis = 1 : i64}
// CHECK-NOT: torch.aten.add
func.func @padded(%past: !torch.vtensor<[2,13,4],f32> {kv.name = "k", kv.role = "cache"}, %new: !torch.vtensor<[2,1,4],f32> {kv.name = "x", kv.role = "other"}) -> (!torch.vtensor<[2,14,4],f32> {kv.name = "k"}) {
  %zero = torch.constant.int 0
  %one = torch.constant.int 1
  %thirteen = torch.constant.int 13
  %fill = torch.constant.float 0.000000e+00
  %behind = torch.prim.ListConstruct %zero, %zero, %zero, %one : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %front = torch.prim.ListConstruct %zero, %zero, %thirteen, %zero : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %a = torch.aten.constant_pad_nd %past, %behind, %fill : !torch.vtensor<[2,13,4],f32>, !torch.list<int>, !torch.float -> !torch.vtensor<[2,14,4],f32>
  %b = torch.aten.constant_pad_nd %new, %front, %fill : !torch.vtensor<[2,1,4],f32>, !torch.list<int>, !torch.float -> !torch.vtensor<[2,14,4],f32>
  %grown = torch.aten.add.Tensor %a, %b, %one : !torch.vtensor<[2,14,4],f32>, !torch.vtensor<[2,14,4],f32>, !torch.int -> !torch.vtensor<[2,14,4],f32>
  return %grown : !torch.vtensor<[2,14,4],f32>
}

// A concat that is no cache's stays.

// CHECK-LABEL: func.func @features(
// CHECK: torch.aten.cat
func.func @features(%a: !torch.vtensor<[2,4],f32> {kv.name = "x", kv.role = "other"}) -> (!torch.vtensor<[2,8],f32> {kv.name = "y"}) {
  %axis = torch.constant.int 1
  %list = torch.prim.ListConstruct %a, %a : (!torch.vtensor<[2,4],f32>, !torch.vtensor<[2,4],f32>) -> !torch.list<vtensor>
  %both = torch.aten.cat %list, %axis : !torch.list<vtensor>, !torch.int -> !torch.vtensor<[2,8],f32>
  return %both : !torch.vtensor<[2,8],f32>
}

// -----

// REFUSED: raise_append.mlir:[[# @LINE + 4]]:{{[0-9]+}}: error: the cache 'k' is returned from 'torch.aten.cat', which is not the concat of the past and the new tokens; grow it as torch.cat([past, new], dim)
func.func @new_first(%past: !torch.vtensor<[2,13,4],f32> {kv.name = "k", kv.role = "cache"}, %new: !torch.vtensor<[2,1,4],f32> {kv.name = "x", kv.role = "other"}) -> (!torch.vtensor<[2,14,4],f32> {kv.name = "k"}) {
  %axis = torch.constant.int 1
  %list = torch.prim.ListConstruct %new, %past : (!torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,13,4],f32>) -> !torch.list<vtensor>
  %grown = torch.aten.cat %list, %axis : !torch.list<vtensor>, !torch.int -> !torch.vtensor<[2,14,4],f32>
  return %grown : !torch.vtensor<[2,14,4],f32>
}

// -----

// REFUSED: error: the cache 'k' is not returned; return each cache, grown by the new tokens' keys or values
func.func @kept(%past: !torch.vtensor<[2,13,4],f32> {kv.name = "k", kv.role = "cache"}) -> (!torch.vtensor<[2,13,4],f32> {kv.name = "y"}) {
  return %past : !torch.vtensor<[2,13,4],f32>
}

// -----

// REFUSED: error: the cache 'k' grows along its first axis; keep the rows of the batch first
func.func @first_axis(%past: !torch.vtensor<[13,2,4],f32> {kv.name = "k", kv.role = "cache"}, %new: !torch.vtensor<[1,2,4],f32> {kv.name = "x", kv.role = "other"}) -> (!torch.vtensor<[14,2,4],f32> {kv.name = "k"}) {
  %axis = torch.constant.int 0
  %list = torch.prim.ListConstruct %past, %new : (!torch.vtensor<[13,2,4],f32>, !torch.vtensor<[1,2,4],f32>) -> !torch.list<vtensor>
  %grown = torch.aten.cat %list, %axis : !torch.list<vtensor>, !torch.int -> !torch.vtensor<[14,2,4],f32>
  return %grown : !torch.vtensor<[14,2,4],f32>
}

// -----

// REFUSED: error: the cache 'k' is returned with zeros where the new tokens belong; put the new tokens' keys or values behind the past
func.func @nothing_written(%past: !torch.vtensor<[2,13,4],f32> {kv.name = "k", kv.role = "cache"}) -> (!torch.vtensor<[2,14,4],f32> {kv.name = "k"}) {
  %zero = torch.constant.int 0
  %one = torch.constant.int 1
  %fill = torch.constant.float 0.000000e+00
  %behind = torch.prim.ListConstruct %zero, %zero, %zero, %one : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %grown = torch.aten.constant_pad_nd %past, %behind, %fill : !torch.vtensor<[2,13,4],f32>, !torch.list<int>, !torch.float -> !torch.vtensor<[2,14,4],f32>
  return %grown : !torch.vtensor<[2,14,4],f32>
}

// -----

// REFUSED: raise_append.mlir:[[# @LINE + 6]]:{{[0-9]+}}: error: the cache 'k' is returned from 'torch.aten.mul.Scalar', which is not the concat of the past and the new tokens; grow it as torch.cat([past, new], dim)
func.func @scaled(%past: !torch.vtensor<[2,13,4],f32> {kv.name = "k", kv.role = "cache"}, %new: !torch.vtensor<[2,1,4],f32> {kv.name = "x", kv.role = "other"}) -> (!torch.vtensor<[2,14,4],f32> {kv.name = "k"}) {
  %one = torch.constant.int 1
  %half = torch.constant.float 5.000000e-01
  %list = torch.prim.ListConstruct %past, %new : (!torch.vtensor<[2,13,4],f32>, !torch.vtensor<[2,1,4],f32>) -> !torch.list<vtensor>
  %grown = torch.aten.cat %list, %one : !torch.list<vtensor>, !torch.int -> !torch.vtensor<[2,14,4],f32>
  %out = torch.aten.mul.Scalar %grown, %half : !torch.vtensor<[2,14,4],f32>, !torch.float -> !torch.vtensor<[2,14,4],f32>
  return %out : !torch.vtensor<[2,14,4],f32>
}
