// RUN: snapcc-opt %s --pass-pipeline='builtin.module(kv-raise-attention)' | filecheck %s

// Two rows, one head, caches [B, T, D]: the plainest spelling.

// CHECK-LABEL: func.func @decode(
// CHECK: %[[K:.+]] = "kv.append"
// CHECK: %[[V:.+]] = "kv.append"
// CHECK: %[[Q5:.+]] = torch.aten.view %{{.+}}, %{{.+}} : !torch.vtensor<[2,1,4],f32>, !torch.list<int> -> !torch.vtensor<[2,1,1,1,4],f32>
// CHECK: "kv.attention"(%[[Q5]], {{.+}}) {causal = {{false|0 : i64}}, {{.*}}scale = 5.000000e-01 : f64, softcap = 0.000000e+00 : f64} : (!torch.vtensor<[2,1,1,1,4],f32>, !torch.vtensor<[2,1,14,4],f32>, !torch.vtensor<[2,1,14,4],f32>) -> !torch.vtensor<[2,1,1,1,4],f32>
// CHECK-NOT: torch.aten._softmax
// CHECK-NOT: torch.aten.bmm
func.func @decode(%tokens: !torch.vtensor<[2,1],si64> {kv.name = "t", kv.role = "tokens"}, %x: !torch.vtensor<[2,1,4],f32> {kv.name = "x", kv.role = "other"}, %pk: !torch.vtensor<[2,13,4],f32> {kv.name = "k", kv.role = "cache"}, %pv: !torch.vtensor<[2,13,4],f32> {kv.name = "v", kv.role = "cache"}) -> (!torch.vtensor<[2,1,4],f32> {kv.name = "logits"}, !torch.vtensor<[2,14,4],f32> {kv.name = "k"}, !torch.vtensor<[2,14,4],f32> {kv.name = "v"}) {
  %int0 = torch.constant.int 0
  %int1 = torch.constant.int 1
  %int2 = torch.constant.int 2
  %false = torch.constant.bool false
  %half = torch.constant.float 5.000000e-01
  %order = torch.prim.ListConstruct %int0, %int2, %int1 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %k = "kv.append"(%pk, %x) {axis = 1 : i64} : (!torch.vtensor<[2,13,4],f32>, !torch.vtensor<[2,1,4],f32>) -> !torch.vtensor<[2,14,4],f32>
  %v = "kv.append"(%pv, %x) {axis = 1 : i64} : (!torch.vtensor<[2,13,4],f32>, !torch.vtensor<[2,1,4],f32>) -> !torch.vtensor<[2,14,4],f32>
  %kt = torch.aten.permute %k, %order : !torch.vtensor<[2,14,4],f32>, !torch.list<int> -> !torch.vtensor<[2,4,14],f32>
  %s = torch.aten.bmm %x, %kt : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,4,14],f32> -> !torch.vtensor<[2,1,14],f32>
  %scaled = torch.aten.mul.Scalar %s, %half : !torch.vtensor<[2,1,14],f32>, !torch.float -> !torch.vtensor<[2,1,14],f32>
  %p = torch.aten._softmax %scaled, %int2, %false : !torch.vtensor<[2,1,14],f32>, !torch.int, !torch.bool -> !torch.vtensor<[2,1,14],f32>
  %o = torch.aten.bmm %p, %v : !torch.vtensor<[2,1,14],f32>, !torch.vtensor<[2,14,4],f32> -> !torch.vtensor<[2,1,4],f32>
  return %o, %k, %v : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,14,4],f32>, !torch.vtensor<[2,14,4],f32>
}

// A prompt under a causal mask, the scale on the keys, a soft cap, and logits with keys before queries.

// CHECK-LABEL: func.func @prefill_8(
// CHECK: "kv.attention"({{.+}}) {causal = {{true|1 : i64}}, {{.*}}scale = 5.000000e-01 : f64, softcap = 2.000000e+00 : f64} : (!torch.vtensor<[1,1,1,8,4],f32>, !torch.vtensor<[1,1,8,4],f32>, !torch.vtensor<[1,1,8,4],f32>) -> !torch.vtensor<[1,1,1,8,4],f32>
// CHECK-NOT: torch.aten._softmax
func.func @prefill_8(%tokens: !torch.vtensor<[1,8],si64> {kv.name = "t", kv.role = "tokens"}, %mask: !torch.vtensor<[8,8],f32> {kv.name = "m", kv.role = "causal_mask"}, %w: !torch.vtensor<[9,4],f32> {kv.name = "w", kv.role = "other"}, %pk: !torch.vtensor<[1,0,4],f32> {kv.name = "k", kv.role = "cache"}, %pv: !torch.vtensor<[1,0,4],f32> {kv.name = "v", kv.role = "cache"}) -> (!torch.vtensor<[1,4,8],f32> {kv.name = "logits"}, !torch.vtensor<[1,8,4],f32> {kv.name = "k"}, !torch.vtensor<[1,8,4],f32> {kv.name = "v"}) {
  %int-1 = torch.constant.int -1
  %int0 = torch.constant.int 0
  %int1 = torch.constant.int 1
  %int2 = torch.constant.int 2
  %false = torch.constant.bool false
  %half = torch.constant.float 5.000000e-01
  %cap = torch.constant.float 2.000000e+00
  %order = torch.prim.ListConstruct %int0, %int2, %int1 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %x = torch.aten.embedding %w, %tokens, %int-1, %false, %false : !torch.vtensor<[9,4],f32>, !torch.vtensor<[1,8],si64>, !torch.int, !torch.bool, !torch.bool -> !torch.vtensor<[1,8,4],f32>
  %k = "kv.append"(%pk, %x) {axis = 1 : i64} : (!torch.vtensor<[1,0,4],f32>, !torch.vtensor<[1,8,4],f32>) -> !torch.vtensor<[1,8,4],f32>
  %v = "kv.append"(%pv, %x) {axis = 1 : i64} : (!torch.vtensor<[1,0,4],f32>, !torch.vtensor<[1,8,4],f32>) -> !torch.vtensor<[1,8,4],f32>
  %scaled = torch.aten.mul.Scalar %k, %half : !torch.vtensor<[1,8,4],f32>, !torch.float -> !torch.vtensor<[1,8,4],f32>
  %xt = torch.aten.permute %x, %order : !torch.vtensor<[1,8,4],f32>, !torch.list<int> -> !torch.vtensor<[1,4,8],f32>
  %s = torch.aten.bmm %scaled, %xt : !torch.vtensor<[1,8,4],f32>, !torch.vtensor<[1,4,8],f32> -> !torch.vtensor<[1,8,8],f32>
  %low = torch.aten.div.Scalar %s, %cap : !torch.vtensor<[1,8,8],f32>, !torch.float -> !torch.vtensor<[1,8,8],f32>
  %tanh = torch.aten.tanh %low : !torch.vtensor<[1,8,8],f32> -> !torch.vtensor<[1,8,8],f32>
  %capped = torch.aten.mul.Scalar %tanh, %cap : !torch.vtensor<[1,8,8],f32>, !torch.float -> !torch.vtensor<[1,8,8],f32>
  %swap = torch.prim.ListConstruct %int1, %int0 : (!torch.int, !torch.int) -> !torch.list<int>
  %mt = torch.aten.permute %mask, %swap : !torch.vtensor<[8,8],f32>, !torch.list<int> -> !torch.vtensor<[8,8],f32>
  %masked = torch.aten.add.Tensor %capped, %mt, %int1 : !torch.vtensor<[1,8,8],f32>, !torch.vtensor<[8,8],f32>, !torch.int -> !torch.vtensor<[1,8,8],f32>
  %p = torch.aten._softmax %masked, %int1, %false : !torch.vtensor<[1,8,8],f32>, !torch.int, !torch.bool -> !torch.vtensor<[1,8,8],f32>
  %vt = torch.aten.permute %v, %order : !torch.vtensor<[1,8,4],f32>, !torch.list<int> -> !torch.vtensor<[1,4,8],f32>
  %o = torch.aten.bmm %vt, %p : !torch.vtensor<[1,4,8],f32>, !torch.vtensor<[1,8,8],f32> -> !torch.vtensor<[1,4,8],f32>
  return %o, %k, %v : !torch.vtensor<[1,4,8],f32>, !torch.vtensor<[1,8,4],f32>, !torch.vtensor<[1,8,4],f32>
}

// Keys and values repeated for two query heads each by expand: the group, not a repeated cache.

// CHECK-LABEL: func.func @grouped(
// CHECK-NOT: torch.aten.expand
// CHECK: "kv.attention"({{.+}}) {{.+}} : (!torch.vtensor<[2,3,2,1,4],f32>, !torch.vtensor<[2,3,14,4],f32>, !torch.vtensor<[2,3,14,4],f32>) -> !torch.vtensor<[2,3,2,1,4],f32>
func.func @grouped(%tokens: !torch.vtensor<[2,1],si64> {kv.name = "t", kv.role = "tokens"}, %q: !torch.vtensor<[12,1,4],f32> {kv.name = "q", kv.role = "other"}, %x: !torch.vtensor<[2,3,1,4],f32> {kv.name = "x", kv.role = "other"}, %pk: !torch.vtensor<[2,3,13,4],f32> {kv.name = "k", kv.role = "cache"}, %pv: !torch.vtensor<[2,3,13,4],f32> {kv.name = "v", kv.role = "cache"}) -> (!torch.vtensor<[12,1,4],f32> {kv.name = "logits"}, !torch.vtensor<[2,3,14,4],f32> {kv.name = "k"}, !torch.vtensor<[2,3,14,4],f32> {kv.name = "v"}) {
  %int0 = torch.constant.int 0
  %int1 = torch.constant.int 1
  %int2 = torch.constant.int 2
  %int3 = torch.constant.int 3
  %int4 = torch.constant.int 4
  %int12 = torch.constant.int 12
  %int14 = torch.constant.int 14
  %false = torch.constant.bool false
  %wide = torch.prim.ListConstruct %int2, %int3, %int2, %int14, %int4 : (!torch.int, !torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %flat = torch.prim.ListConstruct %int12, %int14, %int4 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %order = torch.prim.ListConstruct %int0, %int2, %int1 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %k = "kv.append"(%pk, %x) {axis = 2 : i64} : (!torch.vtensor<[2,3,13,4],f32>, !torch.vtensor<[2,3,1,4],f32>) -> !torch.vtensor<[2,3,14,4],f32>
  %v = "kv.append"(%pv, %x) {axis = 2 : i64} : (!torch.vtensor<[2,3,13,4],f32>, !torch.vtensor<[2,3,1,4],f32>) -> !torch.vtensor<[2,3,14,4],f32>
  %k1 = torch.aten.unsqueeze %k, %int2 : !torch.vtensor<[2,3,14,4],f32>, !torch.int -> !torch.vtensor<[2,3,1,14,4],f32>
  %k2 = torch.aten.expand %k1, %wide, %false : !torch.vtensor<[2,3,1,14,4],f32>, !torch.list<int>, !torch.bool -> !torch.vtensor<[2,3,2,14,4],f32>
  %k3 = torch.aten.view %k2, %flat : !torch.vtensor<[2,3,2,14,4],f32>, !torch.list<int> -> !torch.vtensor<[12,14,4],f32>
  %v1 = torch.aten.unsqueeze %v, %int2 : !torch.vtensor<[2,3,14,4],f32>, !torch.int -> !torch.vtensor<[2,3,1,14,4],f32>
  %v2 = torch.aten.expand %v1, %wide, %false : !torch.vtensor<[2,3,1,14,4],f32>, !torch.list<int>, !torch.bool -> !torch.vtensor<[2,3,2,14,4],f32>
  %v3 = torch.aten.view %v2, %flat : !torch.vtensor<[2,3,2,14,4],f32>, !torch.list<int> -> !torch.vtensor<[12,14,4],f32>
  %kt = torch.aten.permute %k3, %order : !torch.vtensor<[12,14,4],f32>, !torch.list<int> -> !torch.vtensor<[12,4,14],f32>
  %s = torch.aten.bmm %q, %kt : !torch.vtensor<[12,1,4],f32>, !torch.vtensor<[12,4,14],f32> -> !torch.vtensor<[12,1,14],f32>
  %p = torch.aten._softmax %s, %int2, %false : !torch.vtensor<[12,1,14],f32>, !torch.int, !torch.bool -> !torch.vtensor<[12,1,14],f32>
  %o = torch.aten.bmm %p, %v3 : !torch.vtensor<[12,1,14],f32>, !torch.vtensor<[12,14,4],f32> -> !torch.vtensor<[12,1,4],f32>
  return %o, %k, %v : !torch.vtensor<[12,1,4],f32>, !torch.vtensor<[2,3,14,4],f32>, !torch.vtensor<[2,3,14,4],f32>
}
