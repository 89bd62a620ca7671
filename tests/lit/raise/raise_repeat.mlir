// RUN: snapcc-opt %s --split-input-file --pass-pipeline='builtin.module(kv-raise-repeat)' | filecheck %s

// Each head twice, by index_select; both heads twice, by an index.

// CHECK-LABEL: func.func @repeated(
// CHECK: %[[K:.+]] = "kv.append"
// CHECK: %[[A:.+]] = torch.aten.view %[[K]], %{{.+}} -> !torch.vtensor<[1,2,1,8,4],f32>
// CHECK: %[[B:.+]] = torch.aten.expand %[[A]], %{{.+}} -> !torch.vtensor<[1,2,2,8,4],f32>
// CHECK: torch.aten.view %[[B]], %{{.+}} -> !torch.vtensor<[1,4,8,4],f32>
// CHECK: %[[C:.+]] = torch.aten.view %[[K]], %{{.+}} -> !torch.vtensor<[1,1,2,8,4],f32>
// CHECK: %[[D:.+]] = torch.aten.expand %[[C]], %{{.+}} -> !torch.vtensor<[1,2,2,8,4],f32>
// CHECK: torch.aten.view %[[D]], %{{.+}} -> !torch.vtensor<[1,4,8,4],f32>
// CHECK-NOT: torch.aten.index
func.func @repeated(%tokens: !torch.vtensor<[1,1],si64> {kv.name = "t", kv.role = "tokens"}, %x: !torch.vtensor<[1,2,1,4],f32> {kv.name = "x", kv.role = "other"}, %pk: !torch.vtensor<[1,2,7,4],f32> {kv.name = "k", kv.role = "cache"}) -> (!torch.vtensor<[1,4,8,4],f32> {kv.name = "a"}, !torch.vtensor<[1,4,8,4],f32> {kv.name = "b"}, !torch.vtensor<[1,2,8,4],f32> {kv.name = "k"}) {
  %int1 = torch.constant.int 1
  %none = torch.constant.none
  %each = torch.vtensor.literal(dense<[0, 0, 1, 1]> : tensor<4xsi64>) : !torch.vtensor<[4],si64>
  %all = torch.vtensor.literal(dense<[0, -1, 0, 1]> : tensor<4xsi64>) : !torch.vtensor<[4],si64>
  %k = "kv.append"(%pk, %x) {axis = 2 : i64} : (!torch.vtensor<[1,2,7,4],f32>, !torch.vtensor<[1,2,1,4],f32>) -> !torch.vtensor<[1,2,8,4],f32>
  %a = torch.aten.index_select %k, %int1, %each : !torch.vtensor<[1,2,8,4],f32>, !torch.int, !torch.vtensor<[4],si64> -> !torch.vtensor<[1,4,8,4],f32>
  %list = torch.prim.ListConstruct %none, %all : (!torch.none, !torch.vtensor<[4],si64>) -> !torch.list<optional<vtensor>>
  %b = torch.aten.index.Tensor %k, %list : !torch.vtensor<[1,2,8,4],f32>, !torch.list<optional<vtensor>> -> !torch.vtensor<[1,4,8,4],f32>
  return %a, %b, %k : !torch.vtensor<[1,4,8,4],f32>, !torch.vtensor<[1,4,8,4],f32>, !torch.vtensor<[1,2,8,4],f32>
}

// -----

// Uneven repetition, an index that is not known, and what is no cache stay as they are.

// CHECK-LABEL: func.func @others(
// CHECK-COUNT-3: torch.aten.index_select
func.func @others(%tokens: !torch.vtensor<[1,1],si64> {kv.name = "t", kv.role = "tokens"}, %x: !torch.vtensor<[1,2,1,4],f32> {kv.name = "x", kv.role = "other"}, %i: !torch.vtensor<[4],si64> {kv.name = "i", kv.role = "other"}, %pk: !torch.vtensor<[1,2,7,4],f32> {kv.name = "k", kv.role = "cache"}) -> (!torch.vtensor<[1,4,8,4],f32> {kv.name = "a"}, !torch.vtensor<[1,4,8,4],f32> {kv.name = "b"}, !torch.vtensor<[1,4,1,4],f32> {kv.name = "c"}, !torch.vtensor<[1,2,8,4],f32> {kv.name = "k"}) {
  %int1 = torch.constant.int 1
  %uneven = torch.vtensor.literal(dense<[0, 0, 0, 1]> : tensor<4xsi64>) : !torch.vtensor<[4],si64>
  %each = torch.vtensor.literal(dense<[0, 0, 1, 1]> : tensor<4xsi64>) : !torch.vtensor<[4],si64>
  %k = "kv.append"(%pk, %x) {axis = 2 : i64} : (!torch.vtensor<[1,2,7,4],f32>, !torch.vtensor<[1,2,1,4],f32>) -> !torch.vtensor<[1,2,8,4],f32>
  %a = torch.aten.index_select %k, %int1, %uneven : !torch.vtensor<[1,2,8,4],f32>, !torch.int, !torch.vtensor<[4],si64> -> !torch.vtensor<[1,4,8,4],f32>
  %b = torch.aten.index_select %k, %int1, %i : !torch.vtensor<[1,2,8,4],f32>, !torch.int, !torch.vtensor<[4],si64> -> !torch.vtensor<[1,4,8,4],f32>
  %c = torch.aten.index_select %x, %int1, %each : !torch.vtensor<[1,2,1,4],f32>, !torch.int, !torch.vtensor<[4],si64> -> !torch.vtensor<[1,4,1,4],f32>
  return %a, %b, %c, %k : !torch.vtensor<[1,4,8,4],f32>, !torch.vtensor<[1,4,8,4],f32>, !torch.vtensor<[1,4,1,4],f32>, !torch.vtensor<[1,2,8,4],f32>
}

// -----

// A product with one 1 for each head is a lookup: one that repeats each head, one that changes their order.

// CHECK-LABEL: func.func @by_products(
// CHECK: %[[K:.+]] = "kv.append"
// CHECK: %[[A:.+]] = torch.aten.view %[[K]], %{{.+}} -> !torch.vtensor<[1,2,32],f32>
// CHECK: %[[B:.+]] = torch.aten.view %[[A]], %{{.+}} -> !torch.vtensor<[1,2,1,32],f32>
// CHECK: %[[C:.+]] = torch.aten.expand %[[B]], %{{.+}} -> !torch.vtensor<[1,2,2,32],f32>
// CHECK: torch.aten.view %[[C]], %{{.+}} -> !torch.vtensor<[1,4,32],f32>
// CHECK: %[[TAKEN:.+]] = torch.vtensor.literal(dense<[1, 0]>
// CHECK: torch.aten.index_select %[[A]], %{{.+}}, %[[TAKEN]]
// CHECK-NOT: torch.aten.bmm
func.func @by_products(%tokens: !torch.vtensor<[1,1],si64> {kv.name = "t", kv.role = "tokens"}, %x: !torch.vtensor<[1,2,1,4],f32> {kv.name = "x", kv.role = "other"}, %pk: !torch.vtensor<[1,2,7,4],f32> {kv.name = "k", kv.role = "cache"}) -> (!torch.vtensor<[1,4,32],f32> {kv.name = "a"}, !torch.vtensor<[1,2,32],f32> {kv.name = "b"}, !torch.vtensor<[1,2,8,4],f32> {kv.name = "k"}) {
  %int1 = torch.constant.int 1
  %int2 = torch.constant.int 2
  %int32 = torch.constant.int 32
  %each = torch.vtensor.literal(dense<[[[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]]> : tensor<1x4x2xf32>) : !torch.vtensor<[1,4,2],f32>
  %crossed = torch.vtensor.literal(dense<[[[0.0, 1.0], [1.0, 0.0]]]> : tensor<1x2x2xf32>) : !torch.vtensor<[1,2,2],f32>
  %k = "kv.append"(%pk, %x) {axis = 2 : i64} : (!torch.vtensor<[1,2,7,4],f32>, !torch.vtensor<[1,2,1,4],f32>) -> !torch.vtensor<[1,2,8,4],f32>
  %shape = torch.prim.ListConstruct %int1, %int2, %int32 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %flat = torch.aten.view %k, %shape : !torch.vtensor<[1,2,8,4],f32>, !torch.list<int> -> !torch.vtensor<[1,2,32],f32>
  %a = torch.aten.bmm %each, %flat : !torch.vtensor<[1,4,2],f32>, !torch.vtensor<[1,2,32],f32> -> !torch.vtensor<[1,4,32],f32>
  %b = torch.aten.bmm %crossed, %flat : !torch.vtensor<[1,2,2],f32>, !torch.vtensor<[1,2,32],f32> -> !torch.vtensor<[1,2,32],f32>
  return %a, %b, %k : !torch.vtensor<[1,4,32],f32>, !torch.vtensor<[1,2,32],f32>, !torch.vtensor<[1,2,8,4],f32>
}
