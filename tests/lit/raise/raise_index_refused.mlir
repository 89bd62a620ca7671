// RUN: not snapcc-opt %s --split-input-file --pass-pipeline='builtin.module(kv-raise-index)' 2>&1 | filecheck %s

// CHECK: error: the keys with the smallest scores are chosen; negate the scores and take the largest
func.func @smallest(%tokens: !torch.vtensor<[2,1],si64> {kv.name = "t", kv.role = "tokens"}, %x: !torch.vtensor<[2,1,4],f32> {kv.name = "x", kv.role = "other"}, %pk: !torch.vtensor<[2,13,4],f32> {kv.name = "k", kv.role = "cache"}) -> (!torch.vtensor<[2,1,14],i1> {kv.name = "logits"}, !torch.vtensor<[2,14,4],f32> {kv.name = "k"}) {
  %int0 = torch.constant.int 0
  %int1 = torch.constant.int 1
  %int2 = torch.constant.int 2
  %int4 = torch.constant.int 4
  %int6 = torch.constant.int 6
  %int11 = torch.constant.int 11
  %int13 = torch.constant.int 13
  %end = torch.constant.int 14
  %last = torch.constant.int -1
  %none = torch.constant.none
  %true = torch.constant.bool true
  %false = torch.constant.bool false
  %one = torch.aten.Int.bool %true : !torch.bool -> !torch.int
  %zero = torch.aten.Int.bool %false : !torch.bool -> !torch.int
  %low = torch.constant.float 0xFFF0000000000000
  %swap = torch.prim.ListConstruct %int0, %int2, %int1 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %wide = torch.prim.ListConstruct %int2, %int1, %end : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %empty = torch.prim.ListConstruct : () -> !torch.list<int>
  %k = "kv.append"(%pk, %x) {axis = 1 : i64} : (!torch.vtensor<[2,13,4],f32>, !torch.vtensor<[2,1,4],f32>) -> !torch.vtensor<[2,14,4],f32>
  %kt = torch.aten.permute %k, %swap : !torch.vtensor<[2,14,4],f32>, !torch.list<int> -> !torch.vtensor<[2,4,14],f32>
  %scores = torch.aten.bmm %x, %kt : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,4,14],f32> -> !torch.vtensor<[2,1,14],f32>
  %iota = torch.aten.arange.start_step %int0, %end, %int1, %int4, %none, %none, %none : !torch.int, !torch.int, !torch.int, !torch.int, !torch.none, !torch.none, !torch.none -> !torch.vtensor<[14],si64>
  %seen = torch.aten.le.Scalar %iota, %int13 : !torch.vtensor<[14],si64>, !torch.int -> !torch.vtensor<[14],i1>
  %fill = torch.aten.full %empty, %low, %int6, %none, %none, %none : !torch.list<int>, !torch.float, !torch.int, !torch.none, !torch.none, !torch.none -> !torch.vtensor<[],f32>
  %masked = torch.aten.where.self %seen, %scores, %fill : !torch.vtensor<[14],i1>, !torch.vtensor<[2,1,14],f32>, !torch.vtensor<[],f32> -> !torch.vtensor<[2,1,14],f32>
  %values, %indices = torch.aten.topk %masked, %int6, %last, %false, %true : !torch.vtensor<[2,1,14],f32>, !torch.int, !torch.int, !torch.bool, !torch.bool -> !torch.vtensor<[2,1,6],f32>, !torch.vtensor<[2,1,6],si64>
  %ones = torch.aten.full %wide, %one, %int11, %none, %none, %none : !torch.list<int>, !torch.int, !torch.int, !torch.none, !torch.none, !torch.none -> !torch.vtensor<[2,1,14],i1>
  %hide = torch.aten.scatter.value %ones, %last, %indices, %zero : !torch.vtensor<[2,1,14],i1>, !torch.int, !torch.vtensor<[2,1,6],si64>, !torch.int -> !torch.vtensor<[2,1,14],i1>
  return %hide, %k : !torch.vtensor<[2,1,14],i1>, !torch.vtensor<[2,14,4],f32>
}

// -----

// CHECK: error: the scores of the keys that an index chooses are used by 'torch.aten.neg'; make a mask of them by torch.full(..).scatter(dim, indices, number), and mask the attention's logits with it
func.func @scores_used(%tokens: !torch.vtensor<[2,1],si64> {kv.name = "t", kv.role = "tokens"}, %x: !torch.vtensor<[2,1,4],f32> {kv.name = "x", kv.role = "other"}, %pk: !torch.vtensor<[2,13,4],f32> {kv.name = "k", kv.role = "cache"}) -> (!torch.vtensor<[2,1,6],f32> {kv.name = "logits"}, !torch.vtensor<[2,14,4],f32> {kv.name = "k"}) {
  %int0 = torch.constant.int 0
  %int1 = torch.constant.int 1
  %int2 = torch.constant.int 2
  %int4 = torch.constant.int 4
  %int6 = torch.constant.int 6
  %int11 = torch.constant.int 11
  %int13 = torch.constant.int 13
  %end = torch.constant.int 14
  %last = torch.constant.int -1
  %none = torch.constant.none
  %true = torch.constant.bool true
  %false = torch.constant.bool false
  %one = torch.aten.Int.bool %true : !torch.bool -> !torch.int
  %zero = torch.aten.Int.bool %false : !torch.bool -> !torch.int
  %low = torch.constant.float 0xFFF0000000000000
  %swap = torch.prim.ListConstruct %int0, %int2, %int1 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %wide = torch.prim.ListConstruct %int2, %int1, %end : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %empty = torch.prim.ListConstruct : () -> !torch.list<int>
  %k = "kv.append"(%pk, %x) {axis = 1 : i64} : (!torch.vtensor<[2,13,4],f32>, !torch.vtensor<[2,1,4],f32>) -> !torch.vtensor<[2,14,4],f32>
  %kt = torch.aten.permute %k, %swap : !torch.vtensor<[2,14,4],f32>, !torch.list<int> -> !torch.vtensor<[2,4,14],f32>
  %scores = torch.aten.bmm %x, %kt : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,4,14],f32> -> !torch.vtensor<[2,1,14],f32>
  %iota = torch.aten.arange.start_step %int0, %end, %int1, %int4, %none, %none, %none : !torch.int, !torch.int, !torch.int, !torch.int, !torch.none, !torch.none, !torch.none -> !torch.vtensor<[14],si64>
  %seen = torch.aten.le.Scalar %iota, %int13 : !torch.vtensor<[14],si64>, !torch.int -> !torch.vtensor<[14],i1>
  %fill = torch.aten.full %empty, %low, %int6, %none, %none, %none : !torch.list<int>, !torch.float, !torch.int, !torch.none, !torch.none, !torch.none -> !torch.vtensor<[],f32>
  %masked = torch.aten.where.self %seen, %scores, %fill : !torch.vtensor<[14],i1>, !torch.vtensor<[2,1,14],f32>, !torch.vtensor<[],f32> -> !torch.vtensor<[2,1,14],f32>
  %values, %indices = torch.aten.topk %masked, %int6, %last, %true, %true : !torch.vtensor<[2,1,14],f32>, !torch.int, !torch.int, !torch.bool, !torch.bool -> !torch.vtensor<[2,1,6],f32>, !torch.vtensor<[2,1,6],si64>
  %ones = torch.aten.full %wide, %one, %int11, %none, %none, %none : !torch.list<int>, !torch.int, !torch.int, !torch.none, !torch.none, !torch.none -> !torch.vtensor<[2,1,14],i1>
  %hide = torch.aten.scatter.value %ones, %last, %indices, %zero : !torch.vtensor<[2,1,14],i1>, !torch.int, !torch.vtensor<[2,1,6],si64>, !torch.int -> !torch.vtensor<[2,1,14],i1>
  %n = torch.aten.neg %values : !torch.vtensor<[2,1,6],f32> -> !torch.vtensor<[2,1,6],f32>
  return %n, %k : !torch.vtensor<[2,1,6],f32>, !torch.vtensor<[2,14,4],f32>
}

// -----

// CHECK: error: the indices of the keys that an index chooses are used by 'torch.aten.neg'; make a mask of them by torch.full(..).scatter(dim, indices, number), and mask the attention's logits with it
func.func @counted(%tokens: !torch.vtensor<[2,1],si64> {kv.name = "t", kv.role = "tokens"}, %x: !torch.vtensor<[2,1,4],f32> {kv.name = "x", kv.role = "other"}, %pk: !torch.vtensor<[2,13,4],f32> {kv.name = "k", kv.role = "cache"}) -> (!torch.vtensor<[2,1,6],si64> {kv.name = "logits"}, !torch.vtensor<[2,14,4],f32> {kv.name = "k"}) {
  %int0 = torch.constant.int 0
  %int1 = torch.constant.int 1
  %int2 = torch.constant.int 2
  %int4 = torch.constant.int 4
  %int6 = torch.constant.int 6
  %int11 = torch.constant.int 11
  %int13 = torch.constant.int 13
  %end = torch.constant.int 14
  %last = torch.constant.int -1
  %none = torch.constant.none
  %true = torch.constant.bool true
  %false = torch.constant.bool false
  %one = torch.aten.Int.bool %true : !torch.bool -> !torch.int
  %zero = torch.aten.Int.bool %false : !torch.bool -> !torch.int
  %low = torch.constant.float 0xFFF0000000000000
  %swap = torch.prim.ListConstruct %int0, %int2, %int1 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %wide = torch.prim.ListConstruct %int2, %int1, %end : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %empty = torch.prim.ListConstruct : () -> !torch.list<int>
  %k = "kv.append"(%pk, %x) {axis = 1 : i64} : (!torch.vtensor<[2,13,4],f32>, !torch.vtensor<[2,1,4],f32>) -> !torch.vtensor<[2,14,4],f32>
  %kt = torch.aten.permute %k, %swap : !torch.vtensor<[2,14,4],f32>, !torch.list<int> -> !torch.vtensor<[2,4,14],f32>
  %scores = torch.aten.bmm %x, %kt : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,4,14],f32> -> !torch.vtensor<[2,1,14],f32>
  %iota = torch.aten.arange.start_step %int0, %end, %int1, %int4, %none, %none, %none : !torch.int, !torch.int, !torch.int, !torch.int, !torch.none, !torch.none, !torch.none -> !torch.vtensor<[14],si64>
  %seen = torch.aten.le.Scalar %iota, %int13 : !torch.vtensor<[14],si64>, !torch.int -> !torch.vtensor<[14],i1>
  %fill = torch.aten.full %empty, %low, %int6, %none, %none, %none : !torch.list<int>, !torch.float, !torch.int, !torch.none, !torch.none, !torch.none -> !torch.vtensor<[],f32>
  %masked = torch.aten.where.self %seen, %scores, %fill : !torch.vtensor<[14],i1>, !torch.vtensor<[2,1,14],f32>, !torch.vtensor<[],f32> -> !torch.vtensor<[2,1,14],f32>
  %values, %indices = torch.aten.topk %masked, %int6, %last, %true, %true : !torch.vtensor<[2,1,14],f32>, !torch.int, !torch.int, !torch.bool, !torch.bool -> !torch.vtensor<[2,1,6],f32>, !torch.vtensor<[2,1,6],si64>
  %n = torch.aten.neg %indices : !torch.vtensor<[2,1,6],si64> -> !torch.vtensor<[2,1,6],si64>
  return %n, %k : !torch.vtensor<[2,1,6],si64>, !torch.vtensor<[2,14,4],f32>
}

// -----

// CHECK: error: the indices of the keys that an index chooses are written over other values by 'torch.aten.scatter.value'; make a mask of them by torch.full(..).scatter(dim, indices, number), and mask the attention's logits with it
func.func @written_over(%tokens: !torch.vtensor<[2,1],si64> {kv.name = "t", kv.role = "tokens"}, %x: !torch.vtensor<[2,1,4],f32> {kv.name = "x", kv.role = "other"}, %pk: !torch.vtensor<[2,13,4],f32> {kv.name = "k", kv.role = "cache"}) -> (!torch.vtensor<[2,1,14],f32> {kv.name = "logits"}, !torch.vtensor<[2,14,4],f32> {kv.name = "k"}) {
  %int0 = torch.constant.int 0
  %int1 = torch.constant.int 1
  %int2 = torch.constant.int 2
  %int4 = torch.constant.int 4
  %int6 = torch.constant.int 6
  %int11 = torch.constant.int 11
  %int13 = torch.constant.int 13
  %end = torch.constant.int 14
  %last = torch.constant.int -1
  %none = torch.constant.none
  %true = torch.constant.bool true
  %false = torch.constant.bool false
  %one = torch.aten.Int.bool %true : !torch.bool -> !torch.int
  %zero = torch.aten.Int.bool %false : !torch.bool -> !torch.int
  %low = torch.constant.float 0xFFF0000000000000
  %swap = torch.prim.ListConstruct %int0, %int2, %int1 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %wide = torch.prim.ListConstruct %int2, %int1, %end : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %empty = torch.prim.ListConstruct : () -> !torch.list<int>
  %k = "kv.append"(%pk, %x) {axis = 1 : i64} : (!torch.vtensor<[2,13,4],f32>, !torch.vtensor<[2,1,4],f32>) -> !torch.vtensor<[2,14,4],f32>
  %kt = torch.aten.permute %k, %swap : !torch.vtensor<[2,14,4],f32>, !torch.list<int> -> !torch.vtensor<[2,4,14],f32>
  %scores = torch.aten.bmm %x, %kt : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,4,14],f32> -> !torch.vtensor<[2,1,14],f32>
  %iota = torch.aten.arange.start_step %int0, %end, %int1, %int4, %none, %none, %none : !torch.int, !torch.int, !torch.int, !torch.int, !torch.none, !torch.none, !torch.none -> !torch.vtensor<[14],si64>
  %seen = torch.aten.le.Scalar %iota, %int13 : !torch.vtensor<[14],si64>, !torch.int -> !torch.vtensor<[14],i1>
  %fill = torch.aten.full %empty, %low, %int6, %none, %none, %none : !torch.list<int>, !torch.float, !torch.int, !torch.none, !torch.none, !torch.none -> !torch.vtensor<[],f32>
  %masked = torch.aten.where.self %seen, %scores, %fill : !torch.vtensor<[14],i1>, !torch.vtensor<[2,1,14],f32>, !torch.vtensor<[],f32> -> !torch.vtensor<[2,1,14],f32>
  %values, %indices = torch.aten.topk %masked, %int6, %last, %true, %true : !torch.vtensor<[2,1,14],f32>, !torch.int, !torch.int, !torch.bool, !torch.bool -> !torch.vtensor<[2,1,6],f32>, !torch.vtensor<[2,1,6],si64>
  %hide = torch.aten.scatter.value %scores, %last, %indices, %int0 : !torch.vtensor<[2,1,14],f32>, !torch.int, !torch.vtensor<[2,1,6],si64>, !torch.int -> !torch.vtensor<[2,1,14],f32>
  return %hide, %k : !torch.vtensor<[2,1,14],f32>, !torch.vtensor<[2,14,4],f32>
}

// -----

// CHECK: error: the keys that an index chooses are marked as the others are by 'torch.aten.scatter.value'; make a mask of them by torch.full(..).scatter(dim, indices, number), and mask the attention's logits with it
func.func @no_difference(%tokens: !torch.vtensor<[2,1],si64> {kv.name = "t", kv.role = "tokens"}, %x: !torch.vtensor<[2,1,4],f32> {kv.name = "x", kv.role = "other"}, %pk: !torch.vtensor<[2,13,4],f32> {kv.name = "k", kv.role = "cache"}) -> (!torch.vtensor<[2,1,14],i1> {kv.name = "logits"}, !torch.vtensor<[2,14,4],f32> {kv.name = "k"}) {
  %int0 = torch.constant.int 0
  %int1 = torch.constant.int 1
  %int2 = torch.constant.int 2
  %int4 = torch.constant.int 4
  %int6 = torch.constant.int 6
  %int11 = torch.constant.int 11
  %int13 = torch.constant.int 13
  %end = torch.constant.int 14
  %last = torch.constant.int -1
  %none = torch.constant.none
  %true = torch.constant.bool true
  %false = torch.constant.bool false
  %one = torch.aten.Int.bool %true : !torch.bool -> !torch.int
  %zero = torch.aten.Int.bool %false : !torch.bool -> !torch.int
  %low = torch.constant.float 0xFFF0000000000000
  %swap = torch.prim.ListConstruct %int0, %int2, %int1 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %wide = torch.prim.ListConstruct %int2, %int1, %end : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %empty = torch.prim.ListConstruct : () -> !torch.list<int>
  %k = "kv.append"(%pk, %x) {axis = 1 : i64} : (!torch.vtensor<[2,13,4],f32>, !torch.vtensor<[2,1,4],f32>) -> !torch.vtensor<[2,14,4],f32>
  %kt = torch.aten.permute %k, %swap : !torch.vtensor<[2,14,4],f32>, !torch.list<int> -> !torch.vtensor<[2,4,14],f32>
  %scores = torch.aten.bmm %x, %kt : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,4,14],f32> -> !torch.vtensor<[2,1,14],f32>
  %iota = torch.aten.arange.start_step %int0, %end, %int1, %int4, %none, %none, %none : !torch.int, !torch.int, !torch.int, !torch.int, !torch.none, !torch.none, !torch.none -> !torch.vtensor<[14],si64>
  %seen = torch.aten.le.Scalar %iota, %int13 : !torch.vtensor<[14],si64>, !torch.int -> !torch.vtensor<[14],i1>
  %fill = torch.aten.full %empty, %low, %int6, %none, %none, %none : !torch.list<int>, !torch.float, !torch.int, !torch.none, !torch.none, !torch.none -> !torch.vtensor<[],f32>
  %masked = torch.aten.where.self %seen, %scores, %fill : !torch.vtensor<[14],i1>, !torch.vtensor<[2,1,14],f32>, !torch.vtensor<[],f32> -> !torch.vtensor<[2,1,14],f32>
  %values, %indices = torch.aten.topk %masked, %int6, %last, %true, %true : !torch.vtensor<[2,1,14],f32>, !torch.int, !torch.int, !torch.bool, !torch.bool -> !torch.vtensor<[2,1,6],f32>, !torch.vtensor<[2,1,6],si64>
  %ones = torch.aten.full %wide, %one, %int11, %none, %none, %none : !torch.list<int>, !torch.int, !torch.int, !torch.none, !torch.none, !torch.none -> !torch.vtensor<[2,1,14],i1>
  %hide = torch.aten.scatter.value %ones, %last, %indices, %one : !torch.vtensor<[2,1,14],i1>, !torch.int, !torch.vtensor<[2,1,6],si64>, !torch.int -> !torch.vtensor<[2,1,14],i1>
  return %hide, %k : !torch.vtensor<[2,1,14],i1>, !torch.vtensor<[2,14,4],f32>
}

// -----

// CHECK: error: an index chooses among the last 9 keys alone; let it choose among all keys up to the query's own
func.func @windowed(%tokens: !torch.vtensor<[2,1],si64> {kv.name = "t", kv.role = "tokens"}, %x: !torch.vtensor<[2,1,4],f32> {kv.name = "x", kv.role = "other"}, %pk: !torch.vtensor<[2,13,4],f32> {kv.name = "k", kv.role = "cache"}) -> (!torch.vtensor<[2,1,14],i1> {kv.name = "logits"}, !torch.vtensor<[2,14,4],f32> {kv.name = "k"}) {
  %int0 = torch.constant.int 0
  %int1 = torch.constant.int 1
  %int2 = torch.constant.int 2
  %int4 = torch.constant.int 4
  %int6 = torch.constant.int 6
  %int11 = torch.constant.int 11
  %int13 = torch.constant.int 13
  %end = torch.constant.int 14
  %last = torch.constant.int -1
  %none = torch.constant.none
  %true = torch.constant.bool true
  %false = torch.constant.bool false
  %one = torch.aten.Int.bool %true : !torch.bool -> !torch.int
  %zero = torch.aten.Int.bool %false : !torch.bool -> !torch.int
  %low = torch.constant.float 0xFFF0000000000000
  %swap = torch.prim.ListConstruct %int0, %int2, %int1 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %wide = torch.prim.ListConstruct %int2, %int1, %end : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %empty = torch.prim.ListConstruct : () -> !torch.list<int>
  %k = "kv.append"(%pk, %x) {axis = 1 : i64} : (!torch.vtensor<[2,13,4],f32>, !torch.vtensor<[2,1,4],f32>) -> !torch.vtensor<[2,14,4],f32>
  %kt = torch.aten.permute %k, %swap : !torch.vtensor<[2,14,4],f32>, !torch.list<int> -> !torch.vtensor<[2,4,14],f32>
  %scores = torch.aten.bmm %x, %kt : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,4,14],f32> -> !torch.vtensor<[2,1,14],f32>
  %iota = torch.aten.arange.start_step %int0, %end, %int1, %int4, %none, %none, %none : !torch.int, !torch.int, !torch.int, !torch.int, !torch.none, !torch.none, !torch.none -> !torch.vtensor<[14],si64>
  %seen = torch.aten.le.Scalar %iota, %int13 : !torch.vtensor<[14],si64>, !torch.int -> !torch.vtensor<[14],i1>
  %fill = torch.aten.full %empty, %low, %int6, %none, %none, %none : !torch.list<int>, !torch.float, !torch.int, !torch.none, !torch.none, !torch.none -> !torch.vtensor<[],f32>
  %masked = torch.aten.where.self %seen, %scores, %fill : !torch.vtensor<[14],i1>, !torch.vtensor<[2,1,14],f32>, !torch.vtensor<[],f32> -> !torch.vtensor<[2,1,14],f32>
  %int5 = torch.constant.int 5
  %near = torch.aten.ge.Scalar %iota, %int5 : !torch.vtensor<[14],si64>, !torch.int -> !torch.vtensor<[14],i1>
  %windowed = torch.aten.where.self %near, %masked, %fill : !torch.vtensor<[14],i1>, !torch.vtensor<[2,1,14],f32>, !torch.vtensor<[],f32> -> !torch.vtensor<[2,1,14],f32>
  %values, %indices = torch.aten.topk %windowed, %int6, %last, %true, %true : !torch.vtensor<[2,1,14],f32>, !torch.int, !torch.int, !torch.bool, !torch.bool -> !torch.vtensor<[2,1,6],f32>, !torch.vtensor<[2,1,6],si64>
  %ones = torch.aten.full %wide, %one, %int11, %none, %none, %none : !torch.list<int>, !torch.int, !torch.int, !torch.none, !torch.none, !torch.none -> !torch.vtensor<[2,1,14],i1>
  %hide = torch.aten.scatter.value %ones, %last, %indices, %zero : !torch.vtensor<[2,1,14],i1>, !torch.int, !torch.vtensor<[2,1,6],si64>, !torch.int -> !torch.vtensor<[2,1,14],i1>
  return %hide, %k : !torch.vtensor<[2,1,14],i1>, !torch.vtensor<[2,14,4],f32>
}

// -----

// CHECK: error: a bias along the keys is added to the scores of an index; add to the scores only masks that hide keys
func.func @biased(%tokens: !torch.vtensor<[2,1],si64> {kv.name = "t", kv.role = "tokens"}, %x: !torch.vtensor<[2,1,4],f32> {kv.name = "x", kv.role = "other"}, %pk: !torch.vtensor<[2,13,4],f32> {kv.name = "k", kv.role = "cache"}) -> (!torch.vtensor<[2,1,14],i1> {kv.name = "logits"}, !torch.vtensor<[2,14,4],f32> {kv.name = "k"}) {
  %int0 = torch.constant.int 0
  %int1 = torch.constant.int 1
  %int2 = torch.constant.int 2
  %int4 = torch.constant.int 4
  %int6 = torch.constant.int 6
  %int11 = torch.constant.int 11
  %int13 = torch.constant.int 13
  %end = torch.constant.int 14
  %last = torch.constant.int -1
  %none = torch.constant.none
  %true = torch.constant.bool true
  %false = torch.constant.bool false
  %one = torch.aten.Int.bool %true : !torch.bool -> !torch.int
  %zero = torch.aten.Int.bool %false : !torch.bool -> !torch.int
  %low = torch.constant.float 0xFFF0000000000000
  %swap = torch.prim.ListConstruct %int0, %int2, %int1 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %wide = torch.prim.ListConstruct %int2, %int1, %end : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %empty = torch.prim.ListConstruct : () -> !torch.list<int>
  %k = "kv.append"(%pk, %x) {axis = 1 : i64} : (!torch.vtensor<[2,13,4],f32>, !torch.vtensor<[2,1,4],f32>) -> !torch.vtensor<[2,14,4],f32>
  %kt = torch.aten.permute %k, %swap : !torch.vtensor<[2,14,4],f32>, !torch.list<int> -> !torch.vtensor<[2,4,14],f32>
  %scores = torch.aten.bmm %x, %kt : !torch.vtensor<[2,1,4],f32>, !torch.vtensor<[2,4,14],f32> -> !torch.vtensor<[2,1,14],f32>
  %iota = torch.aten.arange.start_step %int0, %end, %int1, %int4, %none, %none, %none : !torch.int, !torch.int, !torch.int, !torch.int, !torch.none, !torch.none, !torch.none -> !torch.vtensor<[14],si64>
  %seen = torch.aten.le.Scalar %iota, %int13 : !torch.vtensor<[14],si64>, !torch.int -> !torch.vtensor<[14],i1>
  %fill = torch.aten.full %empty, %low, %int6, %none, %none, %none : !torch.list<int>, !torch.float, !torch.int, !torch.none, !torch.none, !torch.none -> !torch.vtensor<[],f32>
  %masked = torch.aten.where.self %seen, %scores, %fill : !torch.vtensor<[14],i1>, !torch.vtensor<[2,1,14],f32>, !torch.vtensor<[],f32> -> !torch.vtensor<[2,1,14],f32>
  %far = torch.aten._to_copy %iota, %int6, %none, %none, %none, %false, %none : !torch.vtensor<[14],si64>, !torch.int, !torch.none, !torch.none, !torch.none, !torch.bool, !torch.none -> !torch.vtensor<[14],f32>
  %biased = torch.aten.add.Tensor %masked, %far, %int1 : !torch.vtensor<[2,1,14],f32>, !torch.vtensor<[14],f32>, !torch.int -> !torch.vtensor<[2,1,14],f32>
  %values, %indices = torch.aten.topk %biased, %int6, %last, %true, %true : !torch.vtensor<[2,1,14],f32>, !torch.int, !torch.int, !torch.bool, !torch.bool -> !torch.vtensor<[2,1,6],f32>, !torch.vtensor<[2,1,6],si64>
  %ones = torch.aten.full %wide, %one, %int11, %none, %none, %none : !torch.list<int>, !torch.int, !torch.int, !torch.none, !torch.none, !torch.none -> !torch.vtensor<[2,1,14],i1>
  %hide = torch.aten.scatter.value %ones, %last, %indices, %zero : !torch.vtensor<[2,1,14],i1>, !torch.int, !torch.vtensor<[2,1,6],si64>, !torch.int -> !torch.vtensor<[2,1,14],i1>
  return %hide, %k : !torch.vtensor<[2,1,14],i1>, !torch.vtensor<[2,14,4],f32>
}
