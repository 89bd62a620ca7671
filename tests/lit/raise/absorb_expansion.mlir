// RUN: snapcc-opt %s --split-input-file --pass-pipeline='builtin.module(kv-absorb-expansion)' 2>/dev/null | filecheck %s
// RUN: snapcc-opt %s --split-input-file --pass-pipeline='builtin.module(kv-absorb-expansion)' 2>&1 >/dev/null | filecheck %s --check-prefix=REMARK
// RUN: snapcc-opt %s --split-input-file --pass-pipeline='builtin.module(kv-absorb-expansion{when=always})' 2>/dev/null | filecheck %s --check-prefix=ALWAYS

// Two heads of two features, each for keys and values, from a latent of four: the weight goes to the query and to the
// output, and what was its rows is what all heads share.

// REMARK: decoder.py:9:5: remark: @decode: attention runs on the cache, not on what it is expanded to: 0.83 times the operations
// CHECK-LABEL: func.func @decode(
// CHECK: %[[L:.+]] = "kv.append"
// CHECK-NOT: torch.aten.mm
// CHECK: %[[Q:.+]] = torch.aten.bmm %{{.+}}, %{{.+}} : !torch.vtensor<[2,1,2],f32>, !torch.vtensor<[2,2,4],f32> -> !torch.vtensor<[2,1,4],f32>
// CHECK: %[[O:.+]] = "kv.attention"(%{{.+}}, %{{.+}}, %{{.+}}) {{.+}} : (!torch.vtensor<[1,1,2,1,4],f32>, !torch.vtensor<[1,1,8,4],f32>, !torch.vtensor<[1,1,8,4],f32>) -> !torch.vtensor<[1,1,2,1,4],f32>
// CHECK: torch.aten.bmm %{{.+}}, %{{.+}} : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,4,2],f32> -> !torch.vtensor<[2,1,2],f32>
func.func @decode(%t: !torch.vtensor<[1,1],si64> {kv.name = "t", kv.role = "tokens"}, %past: !torch.vtensor<[1,7,4],f32> {kv.name = "c", kv.role = "cache"}, %new: !torch.vtensor<[1,1,4],f32>, %q: !torch.vtensor<[1,2,1,1,2],f32>) -> !torch.vtensor<[1,2,1,1,2],f32> {
  %int0 = torch.constant.int 0
  %int1 = torch.constant.int 1
  %int2 = torch.constant.int 2
  %int3 = torch.constant.int 3
  %int4 = torch.constant.int 4
  %int8 = torch.constant.int 8
  %l = "kv.append"(%past, %new) {axis = 1 : i64} : (!torch.vtensor<[1,7,4],f32>, !torch.vtensor<[1,1,4],f32>) -> !torch.vtensor<[1,8,4],f32>
  %rows = torch.prim.ListConstruct %int8, %int4 : (!torch.int, !torch.int) -> !torch.list<int>
  %heads = torch.prim.ListConstruct %int1, %int8, %int2, %int2 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %order = torch.prim.ListConstruct %int0, %int2, %int1, %int3 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %w = "kv.parameter"() {parameter = "up.weight"} : () -> !torch.vtensor<[4,4],f32>
  %flat = torch.aten.view %l, %rows : !torch.vtensor<[1,8,4],f32>, !torch.list<int> -> !torch.vtensor<[8,4],f32>
  %e = torch.aten.mm %flat, %w : !torch.vtensor<[8,4],f32>, !torch.vtensor<[4,4],f32> -> !torch.vtensor<[8,4],f32> loc("decoder.py":7:5)
  %wide = torch.aten.view %e, %heads : !torch.vtensor<[8,4],f32>, !torch.list<int> -> !torch.vtensor<[1,8,2,2],f32>
  %k = torch.aten.permute %wide, %order : !torch.vtensor<[1,8,2,2],f32>, !torch.list<int> -> !torch.vtensor<[1,2,8,2],f32>
  %o = "kv.attention"(%q, %k, %k) {causal = 0 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, scale = 0.5 : f64, softcap = 0.0 : f64} : (!torch.vtensor<[1,2,1,1,2],f32>, !torch.vtensor<[1,2,8,2],f32>, !torch.vtensor<[1,2,8,2],f32>) -> !torch.vtensor<[1,2,1,1,2],f32> loc("decoder.py":9:5)
  return %o : !torch.vtensor<[1,2,1,1,2],f32>
}

// -----

// Whatever comes before the expansion: attention runs on its result.

// REMARK: decoder.py:9:5: remark: @before: attention runs on the cache, not on what it is expanded to
// CHECK-LABEL: func.func @before(
// CHECK: torch.aten.sigmoid {{.+}} : !torch.vtensor<[8,4],f32>
// CHECK-NOT: torch.aten.mm
// CHECK: "kv.attention"({{.+}}) {{.+}} : (!torch.vtensor<[1,1,2,1,4],f32>
func.func @before(%t: !torch.vtensor<[1,1],si64> {kv.name = "t", kv.role = "tokens"}, %past: !torch.vtensor<[1,7,4],f32> {kv.name = "c", kv.role = "cache"}, %new: !torch.vtensor<[1,1,4],f32>, %q: !torch.vtensor<[1,2,1,1,2],f32>) -> !torch.vtensor<[1,2,1,1,2],f32> {
  %int0 = torch.constant.int 0
  %int1 = torch.constant.int 1
  %int2 = torch.constant.int 2
  %int3 = torch.constant.int 3
  %int4 = torch.constant.int 4
  %int8 = torch.constant.int 8
  %l = "kv.append"(%past, %new) {axis = 1 : i64} : (!torch.vtensor<[1,7,4],f32>, !torch.vtensor<[1,1,4],f32>) -> !torch.vtensor<[1,8,4],f32>
  %rows = torch.prim.ListConstruct %int8, %int4 : (!torch.int, !torch.int) -> !torch.list<int>
  %heads = torch.prim.ListConstruct %int1, %int8, %int2, %int2 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %order = torch.prim.ListConstruct %int0, %int2, %int1, %int3 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %w = "kv.parameter"() {parameter = "up.weight"} : () -> !torch.vtensor<[4,4],f32>
  %plain = torch.aten.view %l, %rows : !torch.vtensor<[1,8,4],f32>, !torch.list<int> -> !torch.vtensor<[8,4],f32>
  %flat = torch.aten.sigmoid %plain : !torch.vtensor<[8,4],f32> -> !torch.vtensor<[8,4],f32>
  %e = torch.aten.mm %flat, %w : !torch.vtensor<[8,4],f32>, !torch.vtensor<[4,4],f32> -> !torch.vtensor<[8,4],f32> loc("decoder.py":7:5)
  %wide = torch.aten.view %e, %heads : !torch.vtensor<[8,4],f32>, !torch.list<int> -> !torch.vtensor<[1,8,2,2],f32>
  %k = torch.aten.permute %wide, %order : !torch.vtensor<[1,8,2,2],f32>, !torch.list<int> -> !torch.vtensor<[1,2,8,2],f32>
  %o = "kv.attention"(%q, %k, %k) {causal = 0 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, scale = 0.5 : f64, softcap = 0.0 : f64} : (!torch.vtensor<[1,2,1,1,2],f32>, !torch.vtensor<[1,2,8,2],f32>, !torch.vtensor<[1,2,8,2],f32>) -> !torch.vtensor<[1,2,1,1,2],f32> loc("decoder.py":9:5)
  return %o : !torch.vtensor<[1,2,1,1,2],f32>
}

// -----

// What comes behind it must leave the features as they are.

// REMARK: decoder.py:8:5: remark: @behind: attention runs on what the cache is expanded to: 'torch.aten.sigmoid' comes behind the expansion, where only views, slices and joins are followed
// CHECK-LABEL: func.func @behind(
// CHECK: torch.aten.mm
// CHECK: "kv.attention"({{.+}}) {{.+}} : (!torch.vtensor<[1,2,1,1,2],f32>
// ALWAYS-LABEL: func.func @behind(
// ALWAYS: "kv.attention"({{.+}}) {{.+}} : (!torch.vtensor<[1,2,1,1,2],f32>
func.func @behind(%t: !torch.vtensor<[1,1],si64> {kv.name = "t", kv.role = "tokens"}, %past: !torch.vtensor<[1,7,4],f32> {kv.name = "c", kv.role = "cache"}, %new: !torch.vtensor<[1,1,4],f32>, %q: !torch.vtensor<[1,2,1,1,2],f32>) -> !torch.vtensor<[1,2,1,1,2],f32> {
  %int0 = torch.constant.int 0
  %int1 = torch.constant.int 1
  %int2 = torch.constant.int 2
  %int3 = torch.constant.int 3
  %int4 = torch.constant.int 4
  %int8 = torch.constant.int 8
  %l = "kv.append"(%past, %new) {axis = 1 : i64} : (!torch.vtensor<[1,7,4],f32>, !torch.vtensor<[1,1,4],f32>) -> !torch.vtensor<[1,8,4],f32>
  %rows = torch.prim.ListConstruct %int8, %int4 : (!torch.int, !torch.int) -> !torch.list<int>
  %heads = torch.prim.ListConstruct %int1, %int8, %int2, %int2 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %order = torch.prim.ListConstruct %int0, %int2, %int1, %int3 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %w = "kv.parameter"() {parameter = "up.weight"} : () -> !torch.vtensor<[4,4],f32>
  %flat = torch.aten.view %l, %rows : !torch.vtensor<[1,8,4],f32>, !torch.list<int> -> !torch.vtensor<[8,4],f32>
  %e = torch.aten.mm %flat, %w : !torch.vtensor<[8,4],f32>, !torch.vtensor<[4,4],f32> -> !torch.vtensor<[8,4],f32> loc("decoder.py":7:5)
  %wide = torch.aten.view %e, %heads : !torch.vtensor<[8,4],f32>, !torch.list<int> -> !torch.vtensor<[1,8,2,2],f32>
  %k = torch.aten.permute %wide, %order : !torch.vtensor<[1,8,2,2],f32>, !torch.list<int> -> !torch.vtensor<[1,2,8,2],f32>
  %k2 = torch.aten.sigmoid %k : !torch.vtensor<[1,2,8,2],f32> -> !torch.vtensor<[1,2,8,2],f32> loc("decoder.py":8:5)
  %o = "kv.attention"(%q, %k2, %k) {causal = 0 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, scale = 0.5 : f64, softcap = 0.0 : f64} : (!torch.vtensor<[1,2,1,1,2],f32>, !torch.vtensor<[1,2,8,2],f32>, !torch.vtensor<[1,2,8,2],f32>) -> !torch.vtensor<[1,2,1,1,2],f32> loc("decoder.py":9:5)
  return %o : !torch.vtensor<[1,2,1,1,2],f32>
}

// -----

// A bias makes it affine.

// REMARK: decoder.py:7:5: remark: @bias: attention runs on what the cache is expanded to: 'torch.aten.addmm' adds a bias to what it expands
// CHECK-LABEL: func.func @bias(
// CHECK: torch.aten.addmm
// CHECK: "kv.attention"({{.+}}) {{.+}} : (!torch.vtensor<[1,2,1,1,2],f32>
func.func @bias(%t: !torch.vtensor<[1,1],si64> {kv.name = "t", kv.role = "tokens"}, %past: !torch.vtensor<[1,7,4],f32> {kv.name = "c", kv.role = "cache"}, %new: !torch.vtensor<[1,1,4],f32>, %q: !torch.vtensor<[1,2,1,1,2],f32>) -> !torch.vtensor<[1,2,1,1,2],f32> {
  %int0 = torch.constant.int 0
  %int1 = torch.constant.int 1
  %int2 = torch.constant.int 2
  %int3 = torch.constant.int 3
  %int4 = torch.constant.int 4
  %int8 = torch.constant.int 8
  %l = "kv.append"(%past, %new) {axis = 1 : i64} : (!torch.vtensor<[1,7,4],f32>, !torch.vtensor<[1,1,4],f32>) -> !torch.vtensor<[1,8,4],f32>
  %rows = torch.prim.ListConstruct %int8, %int4 : (!torch.int, !torch.int) -> !torch.list<int>
  %heads = torch.prim.ListConstruct %int1, %int8, %int2, %int2 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %order = torch.prim.ListConstruct %int0, %int2, %int1, %int3 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %w = "kv.parameter"() {parameter = "up.weight"} : () -> !torch.vtensor<[4,4],f32>
  %flat = torch.aten.view %l, %rows : !torch.vtensor<[1,8,4],f32>, !torch.list<int> -> !torch.vtensor<[8,4],f32>
  %b = "kv.parameter"() {parameter = "up.bias"} : () -> !torch.vtensor<[4],f32>
  %e = torch.aten.addmm %b, %flat, %w, %int1, %int1 : !torch.vtensor<[4],f32>, !torch.vtensor<[8,4],f32>, !torch.vtensor<[4,4],f32>, !torch.int, !torch.int -> !torch.vtensor<[8,4],f32> loc("decoder.py":7:5)
  %wide = torch.aten.view %e, %heads : !torch.vtensor<[8,4],f32>, !torch.list<int> -> !torch.vtensor<[1,8,2,2],f32>
  %k = torch.aten.permute %wide, %order : !torch.vtensor<[1,8,2,2],f32>, !torch.list<int> -> !torch.vtensor<[1,2,8,2],f32>
  %o = "kv.attention"(%q, %k, %k) {causal = 0 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, scale = 0.5 : f64, softcap = 0.0 : f64} : (!torch.vtensor<[1,2,1,1,2],f32>, !torch.vtensor<[1,2,8,2],f32>, !torch.vtensor<[1,2,8,2],f32>) -> !torch.vtensor<[1,2,1,1,2],f32> loc("decoder.py":9:5)
  return %o : !torch.vtensor<[1,2,1,1,2],f32>
}

// -----

// A prompt expands as many tokens as it asks: attention on wider features would cost more.

// REMARK: decoder.py:9:5: remark: @prefill_8: attention runs on what the cache is expanded to: on the cache itself it takes 2.00 times the operations
// CHECK-LABEL: func.func @prefill_8(
// CHECK: torch.aten.mm
// CHECK: "kv.attention"({{.+}}) {{.+}} : (!torch.vtensor<[1,2,1,8,2],f32>
// ALWAYS-LABEL: func.func @prefill_8(
// ALWAYS: "kv.attention"({{.+}}) {causal = true, {{.+}} : (!torch.vtensor<[1,1,2,8,4],f32>
func.func @prefill_8(%t: !torch.vtensor<[1,8],si64> {kv.name = "t", kv.role = "tokens"}, %past: !torch.vtensor<[1,0,4],f32> {kv.name = "c", kv.role = "cache"}, %new: !torch.vtensor<[1,8,4],f32>, %q: !torch.vtensor<[1,2,1,8,2],f32>) -> !torch.vtensor<[1,2,1,8,2],f32> {
  %int0 = torch.constant.int 0
  %int1 = torch.constant.int 1
  %int2 = torch.constant.int 2
  %int3 = torch.constant.int 3
  %int4 = torch.constant.int 4
  %int8 = torch.constant.int 8
  %l = "kv.append"(%past, %new) {axis = 1 : i64} : (!torch.vtensor<[1,0,4],f32>, !torch.vtensor<[1,8,4],f32>) -> !torch.vtensor<[1,8,4],f32>
  %rows = torch.prim.ListConstruct %int8, %int4 : (!torch.int, !torch.int) -> !torch.list<int>
  %heads = torch.prim.ListConstruct %int1, %int8, %int2, %int2 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %order = torch.prim.ListConstruct %int0, %int2, %int1, %int3 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %w = "kv.parameter"() {parameter = "up.weight"} : () -> !torch.vtensor<[4,4],f32>
  %flat = torch.aten.view %l, %rows : !torch.vtensor<[1,8,4],f32>, !torch.list<int> -> !torch.vtensor<[8,4],f32>
  %e = torch.aten.mm %flat, %w : !torch.vtensor<[8,4],f32>, !torch.vtensor<[4,4],f32> -> !torch.vtensor<[8,4],f32> loc("decoder.py":7:5)
  %wide = torch.aten.view %e, %heads : !torch.vtensor<[8,4],f32>, !torch.list<int> -> !torch.vtensor<[1,8,2,2],f32>
  %k = torch.aten.permute %wide, %order : !torch.vtensor<[1,8,2,2],f32>, !torch.list<int> -> !torch.vtensor<[1,2,8,2],f32>
  %o = "kv.attention"(%q, %k, %k) {causal = 1 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, scale = 0.5 : f64, softcap = 0.0 : f64} : (!torch.vtensor<[1,2,1,8,2],f32>, !torch.vtensor<[1,2,8,2],f32>, !torch.vtensor<[1,2,8,2],f32>) -> !torch.vtensor<[1,2,1,8,2],f32> loc("decoder.py":9:5)
  return %o : !torch.vtensor<[1,2,1,8,2],f32>
}

// -----

// What is used elsewhere too must be expanded all the same.

// REMARK: decoder.py:9:5: remark: @shared: attention runs on what the cache is expanded to: on the cache itself it takes 2.50 times the operations
// CHECK-LABEL: func.func @shared(
// CHECK: "kv.attention"({{.+}}) {{.+}} : (!torch.vtensor<[1,2,1,1,2],f32>
func.func @shared(%t: !torch.vtensor<[1,1],si64> {kv.name = "t", kv.role = "tokens"}, %past: !torch.vtensor<[1,7,4],f32> {kv.name = "c", kv.role = "cache"}, %new: !torch.vtensor<[1,1,4],f32>, %q: !torch.vtensor<[1,2,1,1,2],f32>) -> (!torch.vtensor<[1,2,1,1,2],f32>, !torch.vtensor<[8,4],f32>) {
  %int0 = torch.constant.int 0
  %int1 = torch.constant.int 1
  %int2 = torch.constant.int 2
  %int3 = torch.constant.int 3
  %int4 = torch.constant.int 4
  %int8 = torch.constant.int 8
  %l = "kv.append"(%past, %new) {axis = 1 : i64} : (!torch.vtensor<[1,7,4],f32>, !torch.vtensor<[1,1,4],f32>) -> !torch.vtensor<[1,8,4],f32>
  %rows = torch.prim.ListConstruct %int8, %int4 : (!torch.int, !torch.int) -> !torch.list<int>
  %heads = torch.prim.ListConstruct %int1, %int8, %int2, %int2 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %order = torch.prim.ListConstruct %int0, %int2, %int1, %int3 : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %w = "kv.parameter"() {parameter = "up.weight"} : () -> !torch.vtensor<[4,4],f32>
  %flat = torch.aten.view %l, %rows : !torch.vtensor<[1,8,4],f32>, !torch.list<int> -> !torch.vtensor<[8,4],f32>
  %e = torch.aten.mm %flat, %w : !torch.vtensor<[8,4],f32>, !torch.vtensor<[4,4],f32> -> !torch.vtensor<[8,4],f32> loc("decoder.py":7:5)
  %wide = torch.aten.view %e, %heads : !torch.vtensor<[8,4],f32>, !torch.list<int> -> !torch.vtensor<[1,8,2,2],f32>
  %k = torch.aten.permute %wide, %order : !torch.vtensor<[1,8,2,2],f32>, !torch.list<int> -> !torch.vtensor<[1,2,8,2],f32>
  %o = "kv.attention"(%q, %k, %k) {causal = 0 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, scale = 0.5 : f64, softcap = 0.0 : f64} : (!torch.vtensor<[1,2,1,1,2],f32>, !torch.vtensor<[1,2,8,2],f32>, !torch.vtensor<[1,2,8,2],f32>) -> !torch.vtensor<[1,2,1,1,2],f32> loc("decoder.py":9:5)
  return %o, %e : !torch.vtensor<[1,2,1,1,2],f32>, !torch.vtensor<[8,4],f32>
}
