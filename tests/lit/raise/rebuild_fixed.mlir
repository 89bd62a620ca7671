// RUN: not snapcc-opt %s --split-input-file --pass-pipeline='builtin.module(kv-rebuild-positions)' 2>%t | filecheck %s
// RUN: filecheck %s --check-prefix=REFUSED --input-file %t

// Without a probe, caches that keep their length: it is a constant of the program, and stays.

// CHECK-LABEL: func.func @decode(
// CHECK-SAME: %[[P:arg4]]: !torch.vtensor<[2],si64> {kv.name = "positions", kv.role = "positions"}
// CHECK: %[[PER:.+]] = torch.aten.view %[[P]], %{{.+}} : !torch.vtensor<[2],si64>, !torch.list<int> -> !torch.vtensor<[2,1],si64>
// CHECK: torch.aten.embedding %arg1, %[[PER]]
// CHECK: torch.aten.div.Scalar %{{.+}}, %int13
func.func @decode(%tokens: !torch.vtensor<[2,1],si64> {kv.name = "t", kv.role = "tokens"}, %w: !torch.vtensor<[64,4],f32> {kv.name = "w", kv.role = "other"}, %pk: !torch.vtensor<[2,13,4],f32> {kv.name = "k", kv.order = "indexed", kv.role = "cache"}, %pos: !torch.vtensor<[2,1],si64> {kv.name = "p", kv.role = "positions"}) -> (!torch.vtensor<[2,1,4],f32> {kv.name = "logits"}, !torch.vtensor<[2,14,4],f32> {kv.name = "k"}) {
  %pad = torch.constant.int -1
  %no = torch.constant.bool false
  %int1 = torch.constant.int 1
  %x = torch.aten.embedding %w, %tokens, %pad, %no, %no : !torch.vtensor<[64,4],f32>, !torch.vtensor<[2,1],si64>, !torch.int, !torch.bool, !torch.bool -> !torch.vtensor<[2,1,4],f32>
  %e = torch.aten.embedding %w, %pos, %pad, %no, %no : !torch.vtensor<[64,4],f32>, !torch.vtensor<[2,1],si64>, !torch.int, !torch.bool, !torch.bool -> !torch.vtensor<[2,1,4],f32>
  %y0 = torch.aten.add.Tensor %x, %e, %int1 : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,1,4],f32>, !torch.int -> !torch.vtensor<[2,1,4],f32>
  %int13 = torch.constant.int 13
  %y = torch.aten.div.Scalar %y0, %int13 : !torch.vtensor<[2,1,4],f32>, !torch.int -> !torch.vtensor<[2,1,4],f32> loc("length.py":7:5)
  %k = "kv.append"(%pk, %y) {axis = 1 : i64} : (!torch.vtensor<[2,13,4],f32>, !torch.vtensor<[2,1,4],f32>) -> !torch.vtensor<[2,14,4],f32>
  return %y, %k : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,14,4],f32>
}

// -----

// A snapshot in which nothing can stem from its length.

// CHECK-LABEL: func.func @decode(
// CHECK: torch.aten.tanh
func.func @decode(%tokens: !torch.vtensor<[2,1],si64> {kv.name = "t", kv.role = "tokens"}, %w: !torch.vtensor<[64,4],f32> {kv.name = "w", kv.role = "other"}, %pk: !torch.vtensor<[2,13,4],f32> {kv.name = "k", kv.role = "cache"}, %pos: !torch.vtensor<[2,1],si64> {kv.name = "p", kv.role = "positions"}) -> (!torch.vtensor<[2,1,4],f32> {kv.name = "logits"}, !torch.vtensor<[2,14,4],f32> {kv.name = "k"}) {
  %pad = torch.constant.int -1
  %no = torch.constant.bool false
  %int1 = torch.constant.int 1
  %x = torch.aten.embedding %w, %tokens, %pad, %no, %no : !torch.vtensor<[64,4],f32>, !torch.vtensor<[2,1],si64>, !torch.int, !torch.bool, !torch.bool -> !torch.vtensor<[2,1,4],f32>
  %e = torch.aten.embedding %w, %pos, %pad, %no, %no : !torch.vtensor<[64,4],f32>, !torch.vtensor<[2,1],si64>, !torch.int, !torch.bool, !torch.bool -> !torch.vtensor<[2,1,4],f32>
  %y0 = torch.aten.add.Tensor %x, %e, %int1 : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,1,4],f32>, !torch.int -> !torch.vtensor<[2,1,4],f32>
  %y = torch.aten.tanh %y0 : !torch.vtensor<[2,1,4],f32> -> !torch.vtensor<[2,1,4],f32>
  %k = "kv.append"(%pk, %y) {axis = 1 : i64} : (!torch.vtensor<[2,13,4],f32>, !torch.vtensor<[2,1,4],f32>) -> !torch.vtensor<[2,14,4],f32>
  return %y, %k : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,14,4],f32>
}

// -----

// The same number in a snapshot may have been made of its length.

// REFUSED: length.py:7:5: error: the program was exported at a past of 13 tokens only, and 'torch.aten.div.Scalar' takes the number 13, which may have been made of that length;
func.func @decode(%tokens: !torch.vtensor<[2,1],si64> {kv.name = "t", kv.role = "tokens"}, %w: !torch.vtensor<[64,4],f32> {kv.name = "w", kv.role = "other"}, %pk: !torch.vtensor<[2,13,4],f32> {kv.name = "k", kv.role = "cache"}, %pos: !torch.vtensor<[2,1],si64> {kv.name = "p", kv.role = "positions"}) -> (!torch.vtensor<[2,1,4],f32> {kv.name = "logits"}, !torch.vtensor<[2,14,4],f32> {kv.name = "k"}) {
  %pad = torch.constant.int -1
  %no = torch.constant.bool false
  %int1 = torch.constant.int 1
  %x = torch.aten.embedding %w, %tokens, %pad, %no, %no : !torch.vtensor<[64,4],f32>, !torch.vtensor<[2,1],si64>, !torch.int, !torch.bool, !torch.bool -> !torch.vtensor<[2,1,4],f32>
  %e = torch.aten.embedding %w, %pos, %pad, %no, %no : !torch.vtensor<[64,4],f32>, !torch.vtensor<[2,1],si64>, !torch.int, !torch.bool, !torch.bool -> !torch.vtensor<[2,1,4],f32>
  %y0 = torch.aten.add.Tensor %x, %e, %int1 : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,1,4],f32>, !torch.int -> !torch.vtensor<[2,1,4],f32>
  %int13 = torch.constant.int 13
  %y = torch.aten.div.Scalar %y0, %int13 : !torch.vtensor<[2,1,4],f32>, !torch.int -> !torch.vtensor<[2,1,4],f32> loc("length.py":7:5)
  %k = "kv.append"(%pk, %y) {axis = 1 : i64} : (!torch.vtensor<[2,13,4],f32>, !torch.vtensor<[2,1,4],f32>) -> !torch.vtensor<[2,14,4],f32>
  return %y, %k : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,14,4],f32>
}

// -----

// REFUSED: bias.py:5:3: error: attention has a bias along its keys in a program of one past length; export the program with a symbolic past
func.func @decode(%tokens: !torch.vtensor<[2,1],si64> {kv.name = "t", kv.role = "tokens"}, %w: !torch.vtensor<[64,4],f32> {kv.name = "w", kv.role = "other"}, %pk: !torch.vtensor<[2,13,4],f32> {kv.name = "k", kv.role = "cache"}, %pos: !torch.vtensor<[2,1],si64> {kv.name = "p", kv.role = "positions"}) -> (!torch.vtensor<[2,1,4],f32> {kv.name = "logits"}, !torch.vtensor<[2,14,4],f32> {kv.name = "k"}) {
  %pad = torch.constant.int -1
  %no = torch.constant.bool false
  %int1 = torch.constant.int 1
  %x = torch.aten.embedding %w, %tokens, %pad, %no, %no : !torch.vtensor<[64,4],f32>, !torch.vtensor<[2,1],si64>, !torch.int, !torch.bool, !torch.bool -> !torch.vtensor<[2,1,4],f32>
  %e = torch.aten.embedding %w, %pos, %pad, %no, %no : !torch.vtensor<[64,4],f32>, !torch.vtensor<[2,1],si64>, !torch.int, !torch.bool, !torch.bool -> !torch.vtensor<[2,1,4],f32>
  %y0 = torch.aten.add.Tensor %x, %e, %int1 : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,1,4],f32>, !torch.int -> !torch.vtensor<[2,1,4],f32>
  %y = torch.aten.tanh %y0 : !torch.vtensor<[2,1,4],f32> -> !torch.vtensor<[2,1,4],f32>
  %k = "kv.append"(%pk, %y) {axis = 1 : i64} : (!torch.vtensor<[2,13,4],f32>, !torch.vtensor<[2,1,4],f32>) -> !torch.vtensor<[2,14,4],f32>
  %one = torch.constant.int 1
  %two = torch.constant.int 2
  %four = torch.constant.int 4
  %fourteen = torch.constant.int 14
  %q_shape = torch.prim.ListConstruct %two, %one, %one, %one, %four : (!torch.int, !torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %k_shape = torch.prim.ListConstruct %two, %one, %fourteen, %four : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %q = torch.aten.view %y, %q_shape : !torch.vtensor<[2,1,4],f32>, !torch.list<int> -> !torch.vtensor<[2,1,1,1,4],f32>
  %kv = torch.aten.view %k, %k_shape : !torch.vtensor<[2,14,4],f32>, !torch.list<int> -> !torch.vtensor<[2,1,14,4],f32>
  %slopes = torch.vtensor.literal(dense<5.000000e-01> : tensor<1x1xf32>) : !torch.vtensor<[1,1],f32>
  %bias = "kv.linear_bias"(%slopes) : (!torch.vtensor<[1,1],f32>) -> !torch.vtensor<[2,1,1,14],f32>
  %o = "kv.attention"(%q, %kv, %kv, %bias) {causal = 0 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 0, 1, 0>, scale = 5.000000e-01 : f64, softcap = 0.000000e+00 : f64} : (!torch.vtensor<[2,1,1,1,4],f32>, !torch.vtensor<[2,1,14,4],f32>, !torch.vtensor<[2,1,14,4],f32>, !torch.vtensor<[2,1,1,14],f32>) -> !torch.vtensor<[2,1,1,1,4],f32> loc("bias.py":5:3)
  %l_shape = torch.prim.ListConstruct %two, %one, %four : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %l = torch.aten.view %o, %l_shape : !torch.vtensor<[2,1,1,1,4],f32>, !torch.list<int> -> !torch.vtensor<[2,1,4],f32>
  return %l, %k : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,14,4],f32>
}
