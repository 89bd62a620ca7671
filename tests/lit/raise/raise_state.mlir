// RUN: not snapcc-opt %s --split-input-file --pass-pipeline='builtin.module(kv-raise-state)' 2>%t | filecheck %s
// RUN: filecheck %s --check-prefix=REFUSED --input-file %t

// A state with its rows first stays as it is; what it starts with is kept.
// CHECK-LABEL: func.func @first(
// CHECK-SAME: %[[S:arg1]]: !torch.vtensor<[2,4],f32> {kv.initial = "memory", kv.initial_axis = "0", kv.name = "memory", kv.role = "state"}
// CHECK: %[[N:.+]] = torch.aten.mul.Tensor %[[S]], %{{.+}}
// CHECK: return %[[N]]
func.func @first(%ids: !torch.vtensor<[2,1],si64> {kv.name = "ids", kv.role = "tokens"}, %memory: !torch.vtensor<[2,4],f32> {kv.initial = "memory", kv.name = "memory", kv.role = "state"}) -> (!torch.vtensor<[2,4],f32> {kv.name = "memory"}) {
  %w = "kv.parameter"() {parameter = "decay"} : () -> !torch.vtensor<[4],f32>
  %next = torch.aten.mul.Tensor %memory, %w : !torch.vtensor<[2,4],f32>, !torch.vtensor<[4],f32> -> !torch.vtensor<[2,4],f32>
  return %next : !torch.vtensor<[2,4],f32>
}

// -----

// Rows that are second come first.
// CHECK-LABEL: func.func @second(
// CHECK-SAME: %[[S:arg1]]: !torch.vtensor<[2,3,4],f32> {kv.name = "hidden", kv.role = "state"}
// CHECK: %[[OLD:.+]] = torch.aten.permute %[[S]], %{{.+}} : !torch.vtensor<[2,3,4],f32>, !torch.list<int> -> !torch.vtensor<[3,2,4],f32>
// CHECK: %[[N:.+]] = torch.aten.tanh %[[OLD]]
// CHECK: %[[FIRST:.+]] = torch.aten.permute %[[N]], %{{.+}} -> !torch.vtensor<[2,3,4],f32>
// CHECK: return %[[FIRST]]
func.func @second(%ids: !torch.vtensor<[2,1],si64> {kv.name = "ids", kv.role = "tokens"}, %hidden: !torch.vtensor<[3,2,4],f32> {kv.name = "hidden", kv.role = "state", kv.row_axis = "1"}) -> (!torch.vtensor<[3,2,4],f32> {kv.name = "hidden"}) {
  %next = torch.aten.tanh %hidden : !torch.vtensor<[3,2,4],f32> -> !torch.vtensor<[3,2,4],f32>
  return %next : !torch.vtensor<[3,2,4],f32>
}

// -----

// A number without rows is one of each row, and what it is multiplied with is multiplied row by row.
// CHECK-LABEL: func.func @alone(
// CHECK-SAME: %[[S:arg1]]: !torch.vtensor<[2],f32> {kv.initial = "half", kv.initial_axis = "none", kv.name = "sum", kv.role = "state"})
// CHECK: %[[N:.+]] = torch.aten.mul.Scalar %[[S]], %{{.+}} : !torch.vtensor<[2],f32>, !torch.float -> !torch.vtensor<[2],f32>
// CHECK: %[[V:.+]] = torch.aten.view %[[N]], %{{.+}} -> !torch.vtensor<[2,1,1],f32>
// CHECK: %[[Y:.+]] = torch.aten.mul.Tensor %{{.+}}, %[[V]] : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,1,1],f32> -> !torch.vtensor<[2,1,4],f32>
// CHECK: return %[[Y]], %[[N]]
func.func @alone(%ids: !torch.vtensor<[2,1],si64> {kv.name = "ids", kv.role = "tokens"}, %sum: !torch.vtensor<[],f32> {kv.initial = "half", kv.name = "sum", kv.role = "state", kv.row_axis = "none"}) -> (!torch.vtensor<[2,1,4],f32> {kv.name = "logits"}, !torch.vtensor<[],f32> {kv.name = "sum"}) {
  %int-1 = torch.constant.int -1
  %false = torch.constant.bool false
  %half = torch.constant.float 5.000000e-01
  %w = "kv.parameter"() {parameter = "w"} : () -> !torch.vtensor<[9,4],f32>
  %x = torch.aten.embedding %w, %ids, %int-1, %false, %false : !torch.vtensor<[9,4],f32>, !torch.vtensor<[2,1],si64>, !torch.int, !torch.bool, !torch.bool -> !torch.vtensor<[2,1,4],f32>
  %next = torch.aten.mul.Scalar %sum, %half : !torch.vtensor<[],f32>, !torch.float -> !torch.vtensor<[],f32>
  %y = torch.aten.mul.Tensor %x, %next : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[],f32> -> !torch.vtensor<[2,1,4],f32>
  return %y, %next : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[],f32>
}

// -----

// In a program of one row it is that row's.
// CHECK-LABEL: func.func @one_row(
// CHECK-SAME: %[[S:arg1]]: !torch.vtensor<[1,4],f32> {kv.name = "memory", kv.role = "state"}
// CHECK: %[[OLD:.+]] = torch.aten.view %[[S]], %{{.+}} -> !torch.vtensor<[4],f32>
// CHECK: %[[N:.+]] = torch.aten.tanh %[[OLD]]
// CHECK: torch.aten.view %[[N]], %{{.+}} -> !torch.vtensor<[1,4],f32>
func.func @one_row(%ids: !torch.vtensor<[1,1],si64> {kv.name = "ids", kv.role = "tokens"}, %memory: !torch.vtensor<[4],f32> {kv.name = "memory", kv.role = "state", kv.row_axis = "none"}) -> (!torch.vtensor<[4],f32> {kv.name = "memory"}) {
  %next = torch.aten.tanh %memory : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  return %next : !torch.vtensor<[4],f32>
}

// -----

// REFUSED: error: 'torch.aten.flip' orders or shifts the rows of the batch: each row is a sequence of its own; treat each row on its own
func.func @mixed(%ids: !torch.vtensor<[2,1],si64> {kv.name = "ids", kv.role = "tokens"}, %memory: !torch.vtensor<[2,4],f32> {kv.name = "memory", kv.role = "state"}) -> (!torch.vtensor<[2,4],f32> {kv.name = "memory"}) {
  %int0 = torch.constant.int 0
  %dims = torch.prim.ListConstruct %int0 : (!torch.int) -> !torch.list<int>
  %next = torch.aten.flip %memory, %dims : !torch.vtensor<[2,4],f32>, !torch.list<int> -> !torch.vtensor<[2,4],f32>
  return %next : !torch.vtensor<[2,4],f32>
}

// -----

// REFUSED: error: the first dimension of the state 'memory' is that of the rows, and its next value has something else there
func.func @turned(%ids: !torch.vtensor<[2,1],si64> {kv.name = "ids", kv.role = "tokens"}, %memory: !torch.vtensor<[2,2],f32> {kv.name = "memory", kv.role = "state"}) -> (!torch.vtensor<[2,2],f32> {kv.name = "memory"}) {
  %int0 = torch.constant.int 0
  %int1 = torch.constant.int 1
  %next = torch.aten.transpose.int %memory, %int0, %int1 : !torch.vtensor<[2,2],f32>, !torch.int, !torch.int -> !torch.vtensor<[2,2],f32>
  return %next : !torch.vtensor<[2,2],f32>
}

// -----

// REFUSED: error: the state 'memory' of [2, 4] f32 becomes [2, 4] bf16
func.func @narrowed(%ids: !torch.vtensor<[2,1],si64> {kv.name = "ids", kv.role = "tokens"}, %memory: !torch.vtensor<[2,4],f32> {kv.name = "memory", kv.role = "state"}) -> (!torch.vtensor<[2,4],bf16> {kv.name = "memory"}) {
  %w = "kv.parameter"() {parameter = "w"} : () -> !torch.vtensor<[2,4],bf16>
  return %w : !torch.vtensor<[2,4],bf16>
}

// -----

// REFUSED: error: the next value of the state 'memory', which has no dimension of the batch, is not made of the state and of constants alone
func.func @given(%ids: !torch.vtensor<[2,1],si64> {kv.name = "ids", kv.role = "tokens"}, %memory: !torch.vtensor<[4],f32> {kv.name = "memory", kv.role = "state", kv.row_axis = "none"}) -> (!torch.vtensor<[4],f32> {kv.name = "memory"}) {
  %w = "kv.parameter"() {parameter = "w"} : () -> !torch.vtensor<[4],f32>
  return %w : !torch.vtensor<[4],f32>
}

// -----

// REFUSED: error: the state 'memory' is not returned
func.func @lost(%ids: !torch.vtensor<[2,1],si64> {kv.name = "ids", kv.role = "tokens"}, %memory: !torch.vtensor<[2,4],f32> {kv.name = "memory", kv.role = "state"}) -> (!torch.vtensor<[2,4],f32> {kv.name = "logits"}) {
  return %memory : !torch.vtensor<[2,4],f32>
}
