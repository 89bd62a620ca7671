// RUN: not snapcc-opt %s --split-input-file --pass-pipeline='builtin.module(kv-raise-append)' 2>%t | filecheck %s
// RUN: filecheck %s --check-prefix=REFUSED --input-file %t

// Layers in front of the rows, each read by itself: a cache for each, named as one indexes the stack.

// CHECK-LABEL: func.func @layers(
// CHECK-SAME: {kv.name = "s[0]", kv.role = "cache"}
// CHECK-SAME: {kv.name = "s[1]", kv.role = "cache"}
// CHECK-SAME: {kv.name = "s[0]"}
// CHECK-SAME: {kv.name = "s[1]"}
// CHECK: "kv.append"(%arg1, %arg0) {axis = 1 : i64} : (!torch.vtensor<[3,7,4],f32>, !torch.vtensor<[3,1,4],f32>) -> !torch.vtensor<[3,8,4],f32>
// CHECK: "kv.append"(%arg2, %arg0) {axis = 1 : i64}
func.func @layers(%past: !torch.vtensor<[2,3,7,4],f32> {kv.name = "s", kv.role = "cache", kv.row_axis = "1"}, %new: !torch.vtensor<[3,1,4],f32> {kv.name = "x", kv.role = "other"}) -> (!torch.vtensor<[2,3,8,4],f32> {kv.name = "s"}, !torch.vtensor<[3,8,4],f32> {kv.name = "y"}, !torch.vtensor<[3,8,4],f32> {kv.name = "z"}) {
  %zero = torch.constant.int 0
  %one = torch.constant.int 1
  %old0 = torch.aten.select.int %past, %zero, %zero : !torch.vtensor<[2,3,7,4],f32>, !torch.int, !torch.int -> !torch.vtensor<[3,7,4],f32>
  %old1 = torch.aten.select.int %past, %zero, %one : !torch.vtensor<[2,3,7,4],f32>, !torch.int, !torch.int -> !torch.vtensor<[3,7,4],f32>
  %list0 = torch.prim.ListConstruct %old0, %new : (!torch.vtensor<[3,7,4],f32>, !torch.vtensor<[3,1,4],f32>) -> !torch.list<vtensor>
  %list1 = torch.prim.ListConstruct %old1, %new : (!torch.vtensor<[3,7,4],f32>, !torch.vtensor<[3,1,4],f32>) -> !torch.list<vtensor>
  %grown0 = torch.aten.cat %list0, %one : !torch.list<vtensor>, !torch.int -> !torch.vtensor<[3,8,4],f32>
  %grown1 = torch.aten.cat %list1, %one : !torch.list<vtensor>, !torch.int -> !torch.vtensor<[3,8,4],f32>
  %y = torch.aten.exp %grown0 : !torch.vtensor<[3,8,4],f32> -> !torch.vtensor<[3,8,4],f32>
  %z = torch.aten.exp %grown1 : !torch.vtensor<[3,8,4],f32> -> !torch.vtensor<[3,8,4],f32>
  %up0 = torch.aten.unsqueeze %grown0, %zero : !torch.vtensor<[3,8,4],f32>, !torch.int -> !torch.vtensor<[1,3,8,4],f32>
  %up1 = torch.aten.unsqueeze %grown1, %zero : !torch.vtensor<[3,8,4],f32>, !torch.int -> !torch.vtensor<[1,3,8,4],f32>
  %both = torch.prim.ListConstruct %up0, %up1 : (!torch.vtensor<[1,3,8,4],f32>, !torch.vtensor<[1,3,8,4],f32>) -> !torch.list<vtensor>
  %stack = torch.aten.cat %both, %zero : !torch.list<vtensor>, !torch.int -> !torch.vtensor<[2,3,8,4],f32>
  return %stack, %y, %z : !torch.vtensor<[2,3,8,4],f32>, !torch.vtensor<[3,8,4],f32>, !torch.vtensor<[3,8,4],f32>
}

// A stack of keys and values of layers in one dimension, divided by a view and joined by another: a cache for each.

// CHECK-LABEL: func.func @divided(
// CHECK-SAME: {kv.name = "s[0]", kv.role = "cache"}
// CHECK-SAME: {kv.name = "s[1]", kv.role = "cache"}
// CHECK-SAME: {kv.name = "s[2]", kv.role = "cache"}
// CHECK-SAME: {kv.name = "s[3]", kv.role = "cache"}
// CHECK-COUNT-4: "kv.append"(%{{.*}}, %arg0) {axis = 1 : i64} : (!torch.vtensor<[3,7,4],f32>, !torch.vtensor<[3,1,4],f32>) -> !torch.vtensor<[3,8,4],f32>
// CHECK-NOT: torch.aten.view
func.func @divided(%past: !torch.vtensor<[4,3,7,4],f32> {kv.name = "s", kv.role = "cache", kv.row_axis = "1"}, %new: !torch.vtensor<[3,1,4],f32> {kv.name = "x", kv.role = "other"}) -> (!torch.vtensor<[4,3,8,4],f32> {kv.name = "s"}, !torch.vtensor<[3,8,4],f32> {kv.name = "y"}, !torch.vtensor<[3,8,4],f32> {kv.name = "z"}) {
  %zero = torch.constant.int 0
  %one = torch.constant.int 1
  %two = torch.constant.int 2
  %three = torch.constant.int 3
  %four = torch.constant.int 4
  %seven = torch.constant.int 7
  %eight = torch.constant.int 8
  %apart = torch.prim.ListConstruct %two, %two, %three, %seven, %four : (!torch.int, !torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %together = torch.prim.ListConstruct %four, %three, %eight, %four : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %divided = torch.aten.view %past, %apart : !torch.vtensor<[4,3,7,4],f32>, !torch.list<int> -> !torch.vtensor<[2,2,3,7,4],f32>
  %n0 = torch.aten.unsqueeze %new, %zero : !torch.vtensor<[3,1,4],f32>, !torch.int -> !torch.vtensor<[1,3,1,4],f32>
  %pair = torch.prim.ListConstruct %n0, %n0 : (!torch.vtensor<[1,3,1,4],f32>, !torch.vtensor<[1,3,1,4],f32>) -> !torch.list<vtensor>
  %n1 = torch.aten.cat %pair, %zero : !torch.list<vtensor>, !torch.int -> !torch.vtensor<[2,3,1,4],f32>
  %n2 = torch.aten.unsqueeze %n1, %zero : !torch.vtensor<[2,3,1,4],f32>, !torch.int -> !torch.vtensor<[1,2,3,1,4],f32>
  %pairs = torch.prim.ListConstruct %n2, %n2 : (!torch.vtensor<[1,2,3,1,4],f32>, !torch.vtensor<[1,2,3,1,4],f32>) -> !torch.list<vtensor>
  %n3 = torch.aten.cat %pairs, %zero : !torch.list<vtensor>, !torch.int -> !torch.vtensor<[2,2,3,1,4],f32>
  %list = torch.prim.ListConstruct %divided, %n3 : (!torch.vtensor<[2,2,3,7,4],f32>, !torch.vtensor<[2,2,3,1,4],f32>) -> !torch.list<vtensor>
  %grown = torch.aten.cat %list, %three : !torch.list<vtensor>, !torch.int -> !torch.vtensor<[2,2,3,8,4],f32>
  %layer0 = torch.aten.select.int %grown, %zero, %zero : !torch.vtensor<[2,2,3,8,4],f32>, !torch.int, !torch.int -> !torch.vtensor<[2,3,8,4],f32>
  %layer1 = torch.aten.select.int %grown, %zero, %one : !torch.vtensor<[2,2,3,8,4],f32>, !torch.int, !torch.int -> !torch.vtensor<[2,3,8,4],f32>
  %k0 = torch.aten.select.int %layer0, %zero, %zero : !torch.vtensor<[2,3,8,4],f32>, !torch.int, !torch.int -> !torch.vtensor<[3,8,4],f32>
  %v0 = torch.aten.select.int %layer0, %zero, %one : !torch.vtensor<[2,3,8,4],f32>, !torch.int, !torch.int -> !torch.vtensor<[3,8,4],f32>
  %k1 = torch.aten.select.int %layer1, %zero, %zero : !torch.vtensor<[2,3,8,4],f32>, !torch.int, !torch.int -> !torch.vtensor<[3,8,4],f32>
  %v1 = torch.aten.select.int %layer1, %zero, %one : !torch.vtensor<[2,3,8,4],f32>, !torch.int, !torch.int -> !torch.vtensor<[3,8,4],f32>
  %y = torch.aten.mul.Tensor %k0, %v0 : !torch.vtensor<[3,8,4],f32>, !torch.vtensor<[3,8,4],f32> -> !torch.vtensor<[3,8,4],f32>
  %z = torch.aten.mul.Tensor %k1, %v1 : !torch.vtensor<[3,8,4],f32>, !torch.vtensor<[3,8,4],f32> -> !torch.vtensor<[3,8,4],f32>
  %back = torch.aten.view %grown, %together : !torch.vtensor<[2,2,3,8,4],f32>, !torch.list<int> -> !torch.vtensor<[4,3,8,4],f32>
  return %back, %y, %z : !torch.vtensor<[4,3,8,4],f32>, !torch.vtensor<[3,8,4],f32>, !torch.vtensor<[3,8,4],f32>
}

// Heads and features in one dimension, divided by a view that is computed with as a whole: one cache, read behind it.

// CHECK-LABEL: func.func @heads(
// CHECK: %[[GROWN:.*]] = "kv.append"(%arg0, %arg1) {axis = 1 : i64}
// CHECK: torch.aten.view %[[GROWN]]
func.func @heads(%past: !torch.vtensor<[3,7,4],f32> {kv.name = "s", kv.role = "cache"}, %new: !torch.vtensor<[3,1,4],f32> {kv.name = "x", kv.role = "other"}) -> (!torch.vtensor<[3,8,4],f32> {kv.name = "s"}, !torch.vtensor<[3,8,2,2],f32> {kv.name = "y"}) {
  %one = torch.constant.int 1
  %two = torch.constant.int 2
  %three = torch.constant.int 3
  %eight = torch.constant.int 8
  %list = torch.prim.ListConstruct %past, %new : (!torch.vtensor<[3,7,4],f32>, !torch.vtensor<[3,1,4],f32>) -> !torch.list<vtensor>
  %grown = torch.aten.cat %list, %one : !torch.list<vtensor>, !torch.int -> !torch.vtensor<[3,8,4],f32>
  %shape = torch.prim.ListConstruct %three, %eight, %two, %two : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %apart = torch.aten.view %grown, %shape : !torch.vtensor<[3,8,4],f32>, !torch.list<int> -> !torch.vtensor<[3,8,2,2],f32>
  %y = torch.aten.exp %apart : !torch.vtensor<[3,8,2,2],f32> -> !torch.vtensor<[3,8,2,2],f32>
  return %grown, %y : !torch.vtensor<[3,8,4],f32>, !torch.vtensor<[3,8,2,2],f32>
}

// Keys and values side by side in one tensor: two caches.

// CHECK-LABEL: func.func @halves(
// CHECK-SAME: kv.name = "s[:,:,0:2]"
// CHECK-SAME: kv.name = "s[:,:,2:4]"
// CHECK: "kv.append"(%{{.*}}, %{{.*}}) {axis = 1 : i64} : (!torch.vtensor<[3,7,2],f32>, !torch.vtensor<[3,1,2],f32>) -> !torch.vtensor<[3,8,2],f32>
// CHECK: "kv.append"
func.func @halves(%past: !torch.vtensor<[3,7,4],f32> {kv.name = "s", kv.role = "cache"}, %new: !torch.vtensor<[3,1,4],f32> {kv.name = "x", kv.role = "other"}) -> (!torch.vtensor<[3,8,4],f32> {kv.name = "s"}, !torch.vtensor<[3,8,2],f32> {kv.name = "y"}) {
  %zero = torch.constant.int 0
  %one = torch.constant.int 1
  %two = torch.constant.int 2
  %four = torch.constant.int 4
  %list = torch.prim.ListConstruct %past, %new : (!torch.vtensor<[3,7,4],f32>, !torch.vtensor<[3,1,4],f32>) -> !torch.list<vtensor>
  %grown = torch.aten.cat %list, %one : !torch.list<vtensor>, !torch.int -> !torch.vtensor<[3,8,4],f32>
  %k = torch.aten.slice.Tensor %grown, %two, %zero, %two, %one : !torch.vtensor<[3,8,4],f32>, !torch.int, !torch.int, !torch.int, !torch.int -> !torch.vtensor<[3,8,2],f32>
  %v = torch.aten.slice.Tensor %grown, %two, %two, %four, %one : !torch.vtensor<[3,8,4],f32>, !torch.int, !torch.int, !torch.int, !torch.int -> !torch.vtensor<[3,8,2],f32>
  %y = torch.aten.mul.Tensor %k, %v : !torch.vtensor<[3,8,2],f32>, !torch.vtensor<[3,8,2],f32> -> !torch.vtensor<[3,8,2],f32>
  return %grown, %y : !torch.vtensor<[3,8,4],f32>, !torch.vtensor<[3,8,2],f32>
}

// Tokens in front of the rows: the cache that is kept has its rows first.

// CHECK-LABEL: func.func @tokens_first(
// CHECK: %[[NEW:.*]] = torch.aten.permute %arg0
// CHECK: %[[GROWN:.*]] = "kv.append"(%arg1, %[[NEW]]) {axis = 1 : i64} : (!torch.vtensor<[3,7,4],f32>, !torch.vtensor<[3,1,4],f32>) -> !torch.vtensor<[3,8,4],f32>
// CHECK: torch.aten.permute %[[GROWN]]
func.func @tokens_first(%past: !torch.vtensor<[7,3,4],f32> {kv.name = "s", kv.role = "cache", kv.row_axis = "1"}, %new: !torch.vtensor<[1,3,4],f32> {kv.name = "x", kv.role = "other"}) -> (!torch.vtensor<[8,3,4],f32> {kv.name = "s"}, !torch.vtensor<[8,3,4],f32> {kv.name = "y"}) {
  %zero = torch.constant.int 0
  %list = torch.prim.ListConstruct %past, %new : (!torch.vtensor<[7,3,4],f32>, !torch.vtensor<[1,3,4],f32>) -> !torch.list<vtensor>
  %grown = torch.aten.cat %list, %zero : !torch.list<vtensor>, !torch.int -> !torch.vtensor<[8,3,4],f32>
  %y = torch.aten.exp %grown : !torch.vtensor<[8,3,4],f32> -> !torch.vtensor<[8,3,4],f32>
  return %grown, %y : !torch.vtensor<[8,3,4],f32>, !torch.vtensor<[8,3,4],f32>
}

// -----

// REFUSED: raise_append_stacked.mlir:[[# @LINE + 3]]:{{[0-9]+}}: error: 'torch.aten.exp' reads the cache 's', which is not the past with the new tokens behind it; compute with the grown cache that is returned, or with a part of it that leaves out no token
func.func @old_alone(%past: !torch.vtensor<[3,7,4],f32> {kv.name = "s", kv.role = "cache"}, %new: !torch.vtensor<[3,1,4],f32> {kv.name = "x", kv.role = "other"}) -> (!torch.vtensor<[3,8,4],f32> {kv.name = "s"}, !torch.vtensor<[3,7,4],f32> {kv.name = "y"}) {
  %one = torch.constant.int 1
  %y = torch.aten.exp %past : !torch.vtensor<[3,7,4],f32> -> !torch.vtensor<[3,7,4],f32>
  %list = torch.prim.ListConstruct %past, %new : (!torch.vtensor<[3,7,4],f32>, !torch.vtensor<[3,1,4],f32>) -> !torch.list<vtensor>
  %grown = torch.aten.cat %list, %one : !torch.list<vtensor>, !torch.int -> !torch.vtensor<[3,8,4],f32>
  return %grown, %y : !torch.vtensor<[3,8,4],f32>, !torch.vtensor<[3,7,4],f32>
}

// -----

// A layer for each of two rows: the rows are those of the new tokens, whatever the attribute says.

// CHECK-LABEL: func.func @as_many_layers_as_rows(
// CHECK: "kv.append"(%{{.+}}, %{{.+}}) {axis = 1 : i64} : (!torch.vtensor<[2,7,4],f32>, !torch.vtensor<[2,1,4],f32>) -> !torch.vtensor<[2,8,4],f32>
func.func @as_many_layers_as_rows(%past: !torch.vtensor<[2,2,7,4],f32> {kv.name = "s", kv.role = "cache"}, %tokens: !torch.vtensor<[2,1],si64> {kv.name = "t", kv.role = "tokens"}, %table: !torch.vtensor<[9,4],f32> {kv.name = "w", kv.role = "other"}) -> (!torch.vtensor<[2,2,8,4],f32> {kv.name = "s"}, !torch.vtensor<[2,8,4],f32> {kv.name = "y"}) {
  %zero = torch.constant.int 0
  %one = torch.constant.int 1
  %two = torch.constant.int 2
  %minus = torch.constant.int -1
  %false = torch.constant.bool false
  %new = torch.aten.embedding %table, %tokens, %minus, %false, %false : !torch.vtensor<[9,4],f32>, !torch.vtensor<[2,1],si64>, !torch.int, !torch.bool, !torch.bool -> !torch.vtensor<[2,1,4],f32>
  %layer = torch.aten.unsqueeze %new, %zero : !torch.vtensor<[2,1,4],f32>, !torch.int -> !torch.vtensor<[1,2,1,4],f32>
  %layers = torch.prim.ListConstruct %layer, %layer : (!torch.vtensor<[1,2,1,4],f32>, !torch.vtensor<[1,2,1,4],f32>) -> !torch.list<vtensor>
  %both = torch.aten.cat %layers, %zero : !torch.list<vtensor>, !torch.int -> !torch.vtensor<[2,2,1,4],f32>
  %list = torch.prim.ListConstruct %past, %both : (!torch.vtensor<[2,2,7,4],f32>, !torch.vtensor<[2,2,1,4],f32>) -> !torch.list<vtensor>
  %grown = torch.aten.cat %list, %two : !torch.list<vtensor>, !torch.int -> !torch.vtensor<[2,2,8,4],f32>
  %first = torch.aten.select.int %grown, %zero, %one : !torch.vtensor<[2,2,8,4],f32>, !torch.int, !torch.int -> !torch.vtensor<[2,8,4],f32>
  %second = torch.aten.select.int %grown, %zero, %zero : !torch.vtensor<[2,2,8,4],f32>, !torch.int, !torch.int -> !torch.vtensor<[2,8,4],f32>
  %y = torch.aten.add.Tensor %first, %second, %one : !torch.vtensor<[2,8,4],f32>, !torch.vtensor<[2,8,4],f32>, !torch.int -> !torch.vtensor<[2,8,4],f32>
  return %grown, %y : !torch.vtensor<[2,2,8,4],f32>, !torch.vtensor<[2,8,4],f32>
}

// -----

// REFUSED: raise_append_stacked.mlir:[[# @LINE + 4]]:{{[0-9]+}}: error: the cache 's' has 2 entries along its axes 0, 1, as many as there are rows, and which are the rows is not seen; export the program for another number of rows
func.func @rows_that_are_not_seen(%past: !torch.vtensor<[2,2,7,4],f32> {kv.name = "s", kv.role = "cache"}, %tokens: !torch.vtensor<[2,1],si64> {kv.name = "t", kv.role = "tokens"}, %new: !torch.vtensor<[2,2,1,4],f32> {kv.name = "x", kv.role = "other"}) -> (!torch.vtensor<[2,2,8,4],f32> {kv.name = "s"}) {
  %two = torch.constant.int 2
  %list = torch.prim.ListConstruct %past, %new : (!torch.vtensor<[2,2,7,4],f32>, !torch.vtensor<[2,2,1,4],f32>) -> !torch.list<vtensor>
  %grown = torch.aten.cat %list, %two : !torch.list<vtensor>, !torch.int -> !torch.vtensor<[2,2,8,4],f32>
  return %grown : !torch.vtensor<[2,2,8,4],f32>
}
