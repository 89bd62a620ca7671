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
