"""Which values share a buffer: views, updates in place, and where a copy is needed."""

from __future__ import annotations

import re

import pytest
from linalg_programs import SQUARE, Body, parse

from snapcc.sn40l_target.errors import ProgramError
from snapcc.sn40l_target.graph import Function, read_program
from snapcc.sn40l_target.machine import SN40L

BYTES = 8 * 16 * 4


def function(text: str) -> Function:
    return read_program(parse(text), SN40L.tiers[0].legal).functions["main"]


def body() -> Body:
    b = Body()
    b.argument("%x", SQUARE)
    return b


def add(b: Body, *inputs: str) -> str:
    return b.pointwise("arith.addf %a0, %a1", *inputs)


def insert(b: Body, part: str, into: str) -> str:
    return b.op(f"tensor.insert_slice {part} into {into}[0, 0] [8, 16] [1, 1] : {SQUARE} into {SQUARE}", SQUARE)


def total(f: Function) -> int:
    return sum(buffer.bytes for buffer in f.buffers.values())


def test_views_are_the_bytes_of_what_they_view() -> None:
    b = body()
    y = add(b, "%x", "%x")
    flat = b.collapse(y, "[[0, 1]]", "tensor<128xf32>")
    part = b.op(f"tensor.extract_slice {flat}[0] [64] [1] : tensor<128xf32> to tensor<64xf32>", "tensor<64xf32>")
    part = b.expand(part, "[[0, 1]]", [4, 16], "tensor<4x16xf32>")
    part = b.op(f"tensor.cast {part} : tensor<4x16xf32> to tensor<?x16xf32>", "tensor<?x16xf32>")
    f = function(b.function("main", ["%x"], [part]))
    assert set(f.buffers) == {"main:arg0", "main:1"}
    assert f.buffers["main:1"].values == ["main:1", "main:2", "main:3", "main:4", "main:5"]
    assert total(f) == 2 * BYTES
    assert f.lifetimes["main:1"].last == 6


def test_a_bitcast_is_a_view() -> None:
    b = body()
    bits = b.op(f"arith.bitcast %x : {SQUARE} to tensor<8x16xi32>", "tensor<8x16xi32>")
    f = function(b.function("main", ["%x"], [bits]))
    assert set(f.buffers) == {"main:arg0"}


def test_a_transpose_or_broadcast_that_is_only_read_is_a_view() -> None:
    """The weight of a linear layer, transposed and given to each row of a batch, as torch-mlir writes it."""
    b = body()
    w = b.parameter("w", "tensor<4x16xf32>")
    turned, batched = "tensor<16x4xf32>", "tensor<8x16x4xf32>"
    t = b.op(
        f"linalg.transpose ins({w} : tensor<4x16xf32>) outs({b.empty(turned)} : {turned}) permutation = [1, 0]", turned
    )
    e = b.op(
        f"linalg.generic {{indexing_maps = [affine_map<(b, i, j) -> (i, j)>, affine_map<(b, i, j) -> (b, i, j)>], "
        f'iterator_types = ["parallel", "parallel", "parallel"]}} ins({t} : {turned}) '
        f"outs({b.empty(batched)} : {batched}) {{\n^bb0(%a: f32, %o: f32):\n  linalg.yield %a : f32\n}} -> {batched}",
        batched,
    )
    x = b.expand("%x", "[[0, 1], [2]]", [8, 1, 16], "tensor<8x1x16xf32>")
    zeros = b.zeros("tensor<8x1x4xf32>")
    y = b.op(
        f"linalg.batch_matmul ins({x}, {e} : tensor<8x1x16xf32>, {batched}) outs({zeros} : tensor<8x1x4xf32>) "
        "-> tensor<8x1x4xf32>",
        "tensor<8x1x4xf32>",
    )
    f = function(b.function("main", ["%x"], [y]))
    assert {n: buffer.bytes for n, buffer in f.buffers.items()} == {"main:arg0": BYTES, "w": 256, "main:9": 128}
    assert f.lifetimes["w"].uses == (9,)


@pytest.mark.parametrize("kept", ["returned", "stored", "written"])
def test_a_transpose_that_is_kept_is_made(kept: str) -> None:
    b = body()
    turned = "tensor<16x8xf32>"
    t = b.op(f"linalg.transpose ins(%x : {SQUARE}) outs({b.empty(turned)} : {turned}) permutation = [1, 0]", turned)
    if kept == "stored":
        b.store("k", t)
    if kept == "written":
        part = f"tensor.insert_slice %x into {t}[0, 0] [8, 8] [1, 1] : {SQUARE} into {turned}"
        b.op(part.replace("%x", b.op(f"tensor.extract_slice %x[0, 0] [8, 8] [1, 1] : {SQUARE} to tensor<8x8xf32>", ""))
             .replace(SQUARE, "tensor<8x8xf32>"), turned)  # fmt: skip
    f = function(b.function("main", ["%x"], [t] if kept == "returned" else []))
    assert "main:1" in f.buffers


def test_a_blank_destination_is_no_storage_and_its_writers_share_none() -> None:
    """After common subexpression elimination many ops write into one tensor.empty."""
    b = body()
    empty = b.empty(SQUARE)
    one, two = (
        b.op(f"linalg.add ins(%x, %x : {SQUARE}, {SQUARE}) outs({empty} : {SQUARE}) -> {SQUARE}", SQUARE)
        for _ in range(2)
    )
    f = function(b.function("main", ["%x"], [one, two]))
    assert set(f.buffers) == {"main:arg0", "main:1", "main:2"}
    assert f.moves == ()


def test_a_fill_that_several_products_start_from_is_written_by_each_of_them() -> None:
    b = body()
    zeros = b.zeros("tensor<8x8xf32>")
    maps = ["(m, n, k) -> (m, k)", "(m, n, k) -> (n, k)", "(m, n, k) -> (m, n)"]
    one, two = (b.contract("%x", "%x", maps, "ppr", zeros, "tensor<8x8xf32>") for _ in range(2))
    f = function(b.function("main", ["%x"], [one, two]))
    assert set(f.buffers) == {"main:arg0", "main:3", "main:4"}
    assert f.moves == ()


def test_a_fill_that_is_read_is_a_tensor() -> None:
    b = body()
    zeros = b.zeros(SQUARE)
    y = add(b, "%x", zeros)
    f = function(b.function("main", ["%x"], [y]))
    assert f.buffers["main:2"].kind == "activation"
    assert set(f.buffers) == {"main:arg0", "main:2", "main:4"}


def test_constants_stand_in_memory_where_they_are_read() -> None:
    b = body()
    used = b.op(f"arith.constant dense<2.0> : {SQUARE}", SQUARE)
    b.op(f"arith.constant dense<3.0> : {SQUARE}", SQUARE)
    y = add(b, "%x", "%x")
    z = add(b, y, used)
    f = function(b.function("main", ["%x"], [z]))
    assert [n for n, buffer in f.buffers.items() if buffer.kind == "constant"] == ["main:0"]
    # it comes with the program when its reader starts
    assert f.lifetimes["main:0"].first == 5


@pytest.mark.parametrize("op", ["iree_linalg_ext.scatter", "kv.scatter", "insert", "generic"])
def test_a_state_that_is_updated_and_stored_is_one_storage(op: str) -> None:
    b = body()
    cache_type = "tensor<3x8x16xf32>"
    cache = b.load("k", cache_type)
    if op == "kv.scatter":
        b.argument("%where", "tensor<8x2xi32>")
        b.argument("%mask", "tensor<8xi1>")
        rows = b.op(
            f'"kv.scatter"(%x, %where, %mask, {cache}) : '
            f"({SQUARE}, tensor<8x2xi32>, tensor<8xi1>, {cache_type}) -> {cache_type}",
            cache_type,
        )
    elif op == "iree_linalg_ext.scatter":
        b.argument("%where", "tensor<8x2xi64>")
        rows = b.op(
            f'"iree_linalg_ext.scatter"(%x, %where, {cache}) ({{\n^bb0(%n: f32, %o: f32):\n'
            '  "iree_linalg_ext.yield"(%n) : (f32) -> ()\n}) {dimension_map = array<i64: 0, 1>} : '
            f"({SQUARE}, tensor<8x2xi64>, {cache_type}) -> {cache_type}",
            cache_type,
        )
    elif op == "insert":
        rows = b.op(
            f"tensor.insert_slice %x into {cache}[1, 0, 0] [1, 8, 16] [1, 1, 1] : {SQUARE} into {cache_type}",
            cache_type,
        )
    else:
        rows = b.op(
            "linalg.generic {indexing_maps = [affine_map<(i, j, k) -> (j, k)>, affine_map<(i, j, k) -> (i, j, k)>], "
            f'iterator_types = ["parallel", "parallel", "parallel"]}} ins(%x : {SQUARE}) '
            f"outs({cache} : {cache_type}) {{\n^bb0(%a: f32, %o: f32):\n"
            f"  %s = arith.addf %a, %o : f32\n  linalg.yield %s : f32\n}} -> {cache_type}",
            cache_type,
        )
    view = b.collapse(rows, "[[0, 1], [2]]", "tensor<24x16xf32>")
    read = b.op(f"tensor.extract_slice {view}[8, 0] [8, 16] [1, 1] : tensor<24x16xf32> to {SQUARE}", SQUARE)
    b.store("k", rows)
    y = add(b, read, read)
    arguments = [n for n in b.types if not n.startswith("%v")]
    f = function(b.function("main", arguments, [y]))
    assert f.moves == ()
    assert [n for n, buffer in f.buffers.items() if buffer.kind == "cache"] == ["state:k"]
    assert f.buffers["state:k"].values == ["main:0", "main:1", "main:2", "main:3"]
    assert f.buffers["state:k"].bytes == 3 * BYTES


def test_an_update_of_what_is_read_later_copies() -> None:
    b = body()
    cache = b.load("k", SQUARE)
    new = insert(b, "%x", cache)
    b.store("k", new)
    y = add(b, cache, new)
    f = function(b.function("main", ["%x"], [y]))
    # the load is taken out of the state first, since its old contents are read after the store
    assert [(m.source, m.target, m.bytes) for m in f.moves] == [
        ("state:k", "main:0", BYTES),
        ("main:0", "main:1", BYTES),
        ("main:1", "state:k", BYTES),
    ]


def test_a_state_that_is_changed_but_not_stored_keeps_its_contents() -> None:
    b = body()
    new = insert(b, "%x", b.load("k", SQUARE))
    f = function(b.function("main", ["%x"], [new]))
    assert [(m.source, m.target) for m in f.moves] == [("state:k", "main:1")]


def test_naive_eviction_copies_its_cache() -> None:
    """Slice and concat: the cache is read while the new one is made, so it is stored by a copy."""
    b = body()
    cache = b.load("k", SQUARE)
    kept = b.op(f"tensor.extract_slice {cache}[1, 0] [7, 16] [1, 1] : {SQUARE} to tensor<7x16xf32>", "tensor<7x16xf32>")
    row = b.op(f"tensor.extract_slice %x[0, 0] [1, 16] [1, 1] : {SQUARE} to tensor<1x16xf32>", "tensor<1x16xf32>")
    new = b.op(f"tensor.concat dim(0) {kept}, {row} : (tensor<7x16xf32>, tensor<1x16xf32>) -> {SQUARE}", SQUARE)
    b.store("k", new)
    f = function(b.function("main", ["%x"], []))
    assert [(m.source, m.target, m.bytes) for m in f.moves] == [("main:3", "state:k", BYTES)]


def test_arguments_weights_and_constants_are_never_overwritten() -> None:
    b = body()
    weight = b.parameter("w", SQUARE)
    literal = b.op(f"arith.constant dense<{[[float(j) for j in range(16)]] * 8}> : {SQUARE}", SQUARE)
    results = [insert(b, weight, "%x"), insert(b, "%x", weight), insert(b, "%x", literal)]
    f = function(b.function("main", ["%x"], results))
    assert [m.source for m in f.moves] == ["main:arg0", "w", "main:1"]


def test_outs_that_an_elementwise_op_does_not_read_are_not_copied() -> None:
    b = body()
    same = "affine_map<(i, j) -> (i, j)>"
    y = b.op(
        f'linalg.generic {{indexing_maps = [{same}, {same}], iterator_types = ["parallel", "parallel"]}} '
        f"ins(%x : {SQUARE}) outs(%x : {SQUARE}) {{\n^bb0(%a: f32, %o: f32):\n  linalg.yield %a : f32\n}} -> {SQUARE}",
        SQUARE,
    )
    f = function(b.function("main", ["%x"], [y]))
    assert f.moves == ()
    assert set(f.buffers) == {"main:arg0", "main:0"}


def test_a_loop_carries_one_buffer_and_its_inner_values_are_scratch() -> None:
    b = body()
    zero, two, eight = (b.op(f"arith.constant {n} : index", "index") for n in (0, 2, 8))
    out, row = b.empty(SQUARE), "tensor<2x16xf32>"
    y = b.op(
        f"""scf.for %i = {zero} to {eight} step {two} iter_args(%acc = {out}) -> ({SQUARE}) {{
    %r = tensor.extract_slice %x[%i, 0] [2, 16] [1, 1] : {SQUARE} to {row}
    %e = tensor.empty() : {row}
    %d = linalg.add ins(%r, %r : {row}, {row}) outs(%e : {row}) -> {row}
    %m = linalg.mul ins(%d, %r : {row}, {row}) outs(%e : {row}) -> {row}
    %n = tensor.insert_slice %m into %acc[%i, 0] [2, 16] [1, 1] : {row} into {SQUARE}
    scf.yield %n : {SQUARE}
  }}""",
        SQUARE,
    )
    f = function(b.function("main", ["%x"], [y]))
    assert {n: buffer.bytes for n, buffer in f.buffers.items()} == {
        "main:arg0": BYTES,
        "main:4": BYTES,
        "main:4.scratch": 2 * 2 * 16 * 4,
    }
    assert f.buffers["main:4.scratch"].kind == "scratch"
    assert f.lifetimes["main:4.scratch"].uses == (4,)
    assert f.moves == ()


@pytest.mark.parametrize(("carried", "moved"), [("%acc", 0), ("%new", 1)])
def test_a_loop_whose_carried_value_is_made_anew_copies_it_each_time(carried: str, moved: int) -> None:
    b = body()
    zero, two, eight = (b.op(f"arith.constant {n} : index", "index") for n in (0, 2, 8))
    y = add(b, "%x", "%x")
    z = b.op(
        f"""scf.for %i = {zero} to {eight} step {two} iter_args(%acc = {y}) -> ({SQUARE}) {{
    %e = tensor.empty() : {SQUARE}
    %new = linalg.add ins(%acc, %x : {SQUARE}, {SQUARE}) outs(%e : {SQUARE}) -> {SQUARE}
    scf.yield {carried} : {SQUARE}
  }}""",
        SQUARE,
    )
    f = function(b.function("main", ["%x"], [z]))
    assert [m.bytes for m in f.moves] == [BYTES] * moved
    assert f.buffers["main:4"].values == ["main:4", "main:5"]


def test_kinds() -> None:
    b = body()
    b.argument("%positions", "tensor<3xi64>")
    b.argument("%mask", "tensor<3xi1>")
    b.parameter("w", "tensor<4xbf16>")
    b.load("k", "tensor<3x8x16xbf16>")
    b.load("quantised", "tensor<3x8x16xi8>")
    b.load("selected_positions", "tensor<3x2x4xi64>")
    b.load("selected_count", "tensor<3xi64>")
    f = function(b.function("main", ["%x", "%positions", "%mask"], []))
    assert {n: (buffer.kind, buffer.bytes) for n, buffer in f.buffers.items()} == {
        "main:arg0": ("activation", BYTES),
        "main:arg1": ("index", 24),
        "main:arg2": ("index", 3),
        "w": ("weight", 8),
        "state:k": ("cache", 768),
        "state:quantised": ("cache", 384),
        "state:selected_positions": ("state", 192),
        "state:selected_count": ("state", 24),
    }


LOOP = """
func.func @main(%x: tensor<8x16xf32>) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  scf.for %i = %c0 to %c1 step %c1 {
    %w = "kv.parameter"() {parameter = "w"} : () -> tensor<4xf32>
  }
  return
}"""
TWICE = """
func.func @main(%x: tensor<8xf32>) {
  "kv.state_store"(%x) {state = "k"} : (tensor<8xf32>) -> ()
  "kv.state_store"(%x) {state = "k"} : (tensor<8xf32>) -> ()
  return
}"""
CALL = "func.func private @f()\nfunc.func @main() {\n  call @f() : () -> ()\n  return\n}"
BLOCKS = "func.func @main() {\n  cf.br ^next\n^next:\n  return\n}"
UNKNOWN_SIZE = """
func.func @main(%n: tensor<i64>) {
  %v = tensor.extract %n[] : tensor<i64>
  %i = arith.index_cast %v : i64 to index
  %e = tensor.empty(%i) : tensor<?x16xf32>
  %y = linalg.exp ins(%e : tensor<?x16xf32>) outs(%e : tensor<?x16xf32>) -> tensor<?x16xf32>
  return
}"""
TWO_SIZES = """
func.func @main() {
  %w = "kv.parameter"() {parameter = "w"} : () -> tensor<4xf32>
  return
}
func.func @other() {
  %w = "kv.parameter"() {parameter = "w"} : () -> tensor<8xf32>
  return
}"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (LOOP, "'kv.parameter' stands inside 'scf.for'"),
        (TWICE, "state:k is stored twice in a function"),
        (CALL, "'func.call' cannot be planned; inline the function first"),
        (BLOCKS, "main has 2 blocks"),
        (UNKNOWN_SIZE, "error: 'tensor.extract' is the size of a tensor and has no static bound"),
        (TWO_SIZES, "is a weight of 32 bytes in other and a weight of 16 bytes in another function"),
        ("", "the module has no function to plan"),
    ],
)
def test_what_is_not_of_the_linalg_phase_is_refused(text: str, message: str) -> None:
    with pytest.raises(ProgramError) as caught:
        read_program(parse(text), SN40L.tiers[0].legal)
    assert message in str(caught.value)
    assert re.match(r"-:\d+:\d+: error: |error: the module", str(caught.value))
