"""Linalg-phase programs as text: a decoder of any size, and small ones of any structure."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch_mlir import ir

from snapcc.compiler.passes.manager import new_context


def parse(text: str) -> ir.Module:
    """A module in a context that also takes ops that no dialect of it knows (IREE's)."""
    context = new_context()
    context.allow_unregistered_dialects = True
    return ir.Module.parse(text, context=context)


@dataclass
class Body:
    """Lines of a function's body; each method adds an op and gives the name of its result."""

    lines: list[str] = field(default_factory=list)
    types: dict[str, str] = field(default_factory=dict)

    def op(self, text: str, type_: str) -> str:
        name = f"%v{len(self.types)}"
        self.lines.append(f"  {name} = {text}")
        self.types[name] = type_
        return name

    def argument(self, name: str, type_: str) -> str:
        self.types[name] = type_
        return name

    def parameter(self, name: str, type_: str) -> str:
        return self.op(f'"kv.parameter"() {{parameter = "{name}"}} : () -> {type_}', type_)

    def load(self, name: str, type_: str) -> str:
        return self.op(f'"kv.state_load"() {{state = "{name}"}} : () -> {type_}', type_)

    def store(self, name: str, value: str) -> None:
        self.lines.append(f'  "kv.state_store"({value}) {{state = "{name}"}} : ({self.types[value]}) -> ()')

    def empty(self, type_: str) -> str:
        return self.op(f"tensor.empty() : {type_}", type_)

    def zeros(self, type_: str) -> str:
        element = type_.rstrip(">").rpartition("x")[2].rpartition("<")[2]
        zero = self.op(f"arith.constant {'0' if element[0] == 'i' else '0.0'} : {element}", element)
        empty = self.empty(type_)
        return self.op(f"linalg.fill ins({zero} : {element}) outs({empty} : {type_}) -> {type_}", type_)

    def pointwise(self, payload: str, *inputs: str) -> str:
        """An elementwise op on tensors of one type; ``payload`` is an op on ``%a0, %a1, ..`` without its type."""
        type_ = self.types[inputs[0]]
        element = type_.rstrip(">").rpartition("x")[2]
        rank, out = type_.count("x"), self.empty(type_)
        dims = ", ".join(f"d{i}" for i in range(rank))
        maps = ", ".join([f"affine_map<({dims}) -> ({dims})>"] * (len(inputs) + 1))
        kinds = ", ".join(['"parallel"'] * rank)
        head = ", ".join([*(f"%a{i}: {element}" for i in range(len(inputs))), f"%o: {element}"])
        return self.op(
            f"linalg.generic {{indexing_maps = [{maps}], iterator_types = [{kinds}]}} "
            f"ins({', '.join(inputs)} : {', '.join([type_] * len(inputs))}) outs({out} : {type_}) {{\n  ^bb0({head}):\n"
            f"    %y = {payload} : {element}\n    linalg.yield %y : {element}\n  }} -> {type_}",
            type_,
        )

    def project(self, x: str, weight: str, rows: int, width: int) -> str:
        """[rows, D] by a weight [width, D] -> [rows, width]."""
        type_ = f"tensor<{rows}x{width}xf32>"
        maps = ["(m, n, k) -> (m, k)", "(m, n, k) -> (n, k)", "(m, n, k) -> (m, n)"]
        return self.contract(x, weight, maps, "ppr", self.zeros(type_), type_)

    def contract(self, a: str, b: str, maps: list[str], loops: str, out: str, type_: str) -> str:
        """A contraction of two tensors."""
        element = type_.rstrip(">").rpartition("x")[2]
        kinds = ", ".join('"parallel"' if k == "p" else '"reduction"' for k in loops)
        return self.op(
            f"linalg.generic {{indexing_maps = [{', '.join(f'affine_map<{m}>' for m in maps)}], "
            f"iterator_types = [{kinds}]}} ins({a}, {b} : {self.types[a]}, {self.types[b]}) outs({out} : {type_}) {{\n"
            f"  ^bb0(%a: {element}, %b: {element}, %o: {element}):\n    %m = arith.mulf %a, %b : {element}\n"
            f"    %s = arith.addf %m, %o : {element}\n    linalg.yield %s : {element}\n  }} -> {type_}",
            type_,
        )

    def collapse(self, x: str, groups: str, type_: str) -> str:
        return self.op(f"tensor.collapse_shape {x} {groups} : {self.types[x]} into {type_}", type_)

    def expand(self, x: str, groups: str, shape: list[int], type_: str) -> str:
        return self.op(f"tensor.expand_shape {x} {groups} output_shape {shape} : {self.types[x]} into {type_}", type_)

    def function(self, name: str, arguments: list[str], results: list[str]) -> str:
        head = ", ".join(f"{a}: {self.types[a]}" for a in arguments)
        types = ", ".join(self.types[r] for r in results)
        tail = f"  return {', '.join(results)} : {types}" if results else "  return"
        return "\n".join([f"func.func @{name}({head}) -> ({types}) {{", *self.lines, tail, "}"])


@dataclass(frozen=True)
class Shape:
    """A decoder's sizes: layers, rows, KV heads, query heads per KV head, head size, slots, FFN, vocabulary."""

    layers: int = 2
    batch: int = 3
    heads: int = 2
    group: int = 2
    dim: int = 16
    slots: int = 14
    ffn: int = 128
    vocab: int = 256

    @property
    def width(self) -> int:
        return self.heads * self.group * self.dim


def decode(s: Shape, name: str = "decode") -> str:
    """A decode step: per layer a norm, projections, a scatter into each cache, attention over the slots, an FFN."""
    b = Body()
    rows, kv = s.batch, s.heads * s.dim
    b.argument("%tokens", f"tensor<{rows}xi64>")
    b.argument("%positions", f"tensor<{rows}xi64>")
    b.argument("%active", f"tensor<{rows}xi1>")
    table = b.parameter("embed.weight", f"tensor<{s.vocab}x{s.width}xf32>")
    count = b.load("selected_count", f"tensor<{rows}xi64>")
    x = _embed(b, table, "%tokens", rows, s.width)
    slots = b.pointwise("arith.addi %a0, %a1", "%positions", count)
    index = b.expand(slots, "[[0, 1]]", [rows, 1], f"tensor<{rows}x1xi64>")
    for layer in range(s.layers):
        p = f"layers.{layer}."
        h = b.pointwise("arith.mulf %a0, %a1", x, x)
        q = b.project(h, b.parameter(p + "q.weight", f"tensor<{s.width}x{s.width}xf32>"), rows, s.width)
        caches = []
        for part in "kv":
            new = b.project(h, b.parameter(f"{p}{part}.weight", f"tensor<{kv}x{s.width}xf32>"), rows, kv)
            caches.append(_update(b, s, f"cache_{part}_{layer}", new, index))
        out = _attend(b, s, q, *caches)
        x = b.pointwise(
            "arith.addf %a0, %a1",
            x,
            b.project(out, b.parameter(p + "o.weight", f"tensor<{s.width}x{s.width}xf32>"), rows, s.width),
        )
        up = b.project(x, b.parameter(p + "up.weight", f"tensor<{s.ffn}x{s.width}xf32>"), rows, s.ffn)
        gate = b.project(x, b.parameter(p + "gate.weight", f"tensor<{s.ffn}x{s.width}xf32>"), rows, s.ffn)
        mixed = b.pointwise("arith.mulf %a0, %a1", up, gate)
        down = b.project(mixed, b.parameter(p + "down.weight", f"tensor<{s.width}x{s.ffn}xf32>"), rows, s.width)
        x = b.pointwise("arith.addf %a0, %a1", x, down)
    logits = b.project(x, table, rows, s.vocab)
    return b.function(name, ["%tokens", "%positions", "%active"], [logits])


def _embed(b: Body, table: str, tokens: str, rows: int, width: int) -> str:
    type_ = f"tensor<{rows}x{width}xf32>"
    out = b.empty(type_)
    return b.op(
        "linalg.generic {indexing_maps = [affine_map<(r, c) -> (r)>, affine_map<(r, c) -> (r, c)>], "
        f'iterator_types = ["parallel", "parallel"]}} ins({tokens} : {b.types[tokens]}) outs({out} : {type_}) {{\n'
        "  ^bb0(%t: i64, %o: f32):\n    %i = arith.index_cast %t : i64 to index\n    %j = linalg.index 1 : index\n"
        f"    %e = tensor.extract {table}[%i, %j] : {b.types[table]}\n    linalg.yield %e : f32\n  }} -> {type_}",
        type_,
    )


def _update(b: Body, s: Shape, state: str, new: str, index: str) -> str:
    """[B, H * D] scattered into the cache [B, C, H, D], one slot per row."""
    cache_type = f"tensor<{s.batch}x{s.slots}x{s.heads}x{s.dim}xf32>"
    rows = b.expand(new, "[[0], [1, 2]]", [s.batch, s.heads, s.dim], f"tensor<{s.batch}x{s.heads}x{s.dim}xf32>")
    cache = b.load(state, cache_type)
    updated = b.op(
        f'"iree_linalg_ext.scatter"({rows}, {index}, {cache}) ({{\n  ^bb0(%n: f32, %old: f32):\n'
        '    "iree_linalg_ext.yield"(%n) : (f32) -> ()\n  }) {dimension_map = array<i64: 1>, unique_indices = true, '
        "operandSegmentSizes = array<i32: 1, 1, 1>} : "
        f"({b.types[rows]}, {b.types[index]}, {cache_type}) -> {cache_type}",
        cache_type,
    )
    b.store(state, updated)
    return updated


def _attend(b: Body, s: Shape, q: str, k: str, v: str) -> str:
    """Queries [B, H * G * D] over caches [B, C, H, D] -> [B, H * G * D]; weights are left as logits."""
    grouped = f"tensor<{s.batch}x{s.heads}x{s.group}x{s.dim}xf32>"
    scores = f"tensor<{s.batch}x{s.heads}x{s.group}x{s.slots}xf32>"
    query = b.expand(q, "[[0], [1, 2, 3]]", [s.batch, s.heads, s.group, s.dim], grouped)
    maps = ["(b, h, g, c, d) -> (b, h, g, d)", "(b, h, g, c, d) -> (b, c, h, d)", "(b, h, g, c, d) -> (b, h, g, c)"]
    logits = b.contract(query, k, maps, "ppppr", b.zeros(scores), scores)
    weights = b.pointwise("math.exp %a0", logits)
    maps = ["(b, h, g, d, c) -> (b, h, g, c)", "(b, h, g, d, c) -> (b, c, h, d)", "(b, h, g, d, c) -> (b, h, g, d)"]
    out = b.contract(weights, v, maps, "ppppr", b.zeros(grouped), grouped)
    return b.collapse(out, "[[0], [1, 2, 3]]", f"tensor<{s.batch}x{s.width}xf32>")


def prefill(s: Shape, tokens: int) -> str:
    """Prefill of one row: keys and values of the prompt, attention in a loop over blocks of queries, rows stored."""
    b = Body()
    name, kv = f"prefill_{tokens}", s.heads * s.dim
    b.argument("%tokens", f"tensor<1x{tokens}xi64>")
    b.argument("%length", "tensor<i64>")
    b.argument("%row", "tensor<i64>")
    table = b.parameter("embed.weight", f"tensor<{s.vocab}x{s.width}xf32>")
    flat = b.collapse("%tokens", "[[0, 1]]", f"tensor<{tokens}xi64>")
    x = _embed(b, table, flat, tokens, s.width)
    row64 = b.op("tensor.extract %row[] : tensor<i64>", "i64")
    row = b.op(f"arith.index_cast {row64} : i64 to index", "index")
    for layer in range(s.layers):
        p = f"layers.{layer}."
        parts = {}
        for part in "kv":
            new = b.project(x, b.parameter(f"{p}{part}.weight", f"tensor<{kv}x{s.width}xf32>"), tokens, kv)
            parts[part] = new
            kept = f"tensor<{s.slots}x{kv}xf32>"
            first = b.op(f"tensor.extract_slice {new}[0, 0] [{s.slots}, {kv}] [1, 1] : {b.types[new]} to {kept}", kept)
            shaped = f"tensor<1x{s.slots}x{s.heads}x{s.dim}xf32>"
            first = b.expand(first, "[[0, 1], [2, 3]]", [1, s.slots, s.heads, s.dim], shaped)
            cache_type = f"tensor<{s.batch}x{s.slots}x{s.heads}x{s.dim}xf32>"
            cache = b.load(f"cache_{part}_{layer}", cache_type)
            written = b.op(
                f"tensor.insert_slice {first} into {cache}[{row}, 0, 0, 0] [1, {s.slots}, {s.heads}, {s.dim}] "
                f"[1, 1, 1, 1] : {shaped} into {cache_type}",
                cache_type,
            )
            b.store(f"cache_{part}_{layer}", written)
        x = _loop(b, parts["k"], parts["k"], parts["v"], tokens, kv, block=4)
        x = b.project(x, b.parameter(p + "out.weight", f"tensor<{s.width}x{kv}xf32>"), tokens, s.width)
    last = b.op(
        f"tensor.extract_slice {x}[{tokens - 1}, 0] [1, {s.width}] [1, 1] : {b.types[x]} to tensor<1x{s.width}xf32>",
        f"tensor<1x{s.width}xf32>",
    )
    logits = b.project(last, table, 1, s.vocab)
    logits = b.collapse(logits, "[[0, 1]]", f"tensor<{s.vocab}xf32>")
    return b.function(name, ["%tokens", "%length", "%row"], [logits])


def _loop(b: Body, q: str, k: str, v: str, tokens: int, width: int, block: int) -> str:
    """softmax-less causal attention [N, W] in blocks of queries, keys cut at the causal edge."""
    type_ = f"tensor<{tokens}x{width}xf32>"
    constants = {n: b.op(f"arith.constant {n} : index", "index") for n in (0, tokens, block)}
    zero = b.op("arith.constant 0.0 : f32", "f32")
    out = b.empty(type_)
    part, scores = f"tensor<{block}x{width}xf32>", f"tensor<{block}x?xf32>"
    return b.op(
        f"""scf.for %i = {constants[0]} to {constants[tokens]} step {constants[block]}
      iter_args(%acc = {out}) -> ({type_}) {{
    %end = arith.addi %i, {constants[block]} : index
    %qb = tensor.extract_slice {q}[%i, 0] [{block}, {width}] [1, 1] : {type_} to {part}
    %kb = tensor.extract_slice {k}[0, 0] [%end, {width}] [1, 1] : {type_} to tensor<?x{width}xf32>
    %vb = tensor.extract_slice {v}[0, 0] [%end, {width}] [1, 1] : {type_} to tensor<?x{width}xf32>
    %se = tensor.empty(%end) : {scores}
    %sz = linalg.fill ins({zero} : f32) outs(%se : {scores}) -> {scores}
    %s = linalg.matmul
      indexing_maps = [affine_map<(m, n, k)->(m, k)>, affine_map<(m, n, k)->(n, k)>, affine_map<(m, n, k)->(m, n)>]
      ins(%qb, %kb : {part}, tensor<?x{width}xf32>) outs(%sz : {scores}) -> {scores}
    %w = linalg.softmax dimension(1) ins(%s : {scores}) outs(%se : {scores}) -> {scores}
    %oe = tensor.empty() : {part}
    %oz = linalg.fill ins({zero} : f32) outs(%oe : {part}) -> {part}
    %o = linalg.matmul ins(%w, %vb : {scores}, tensor<?x{width}xf32>) outs(%oz : {part}) -> {part}
    %n = tensor.insert_slice %o into %acc[%i, 0] [{block}, {width}] [1, 1] : {part} into {type_}
    scf.yield %n : {type_}
  }}""",
        type_,
    )


def reset(s: Shape) -> str:
    """One row's caches set to zero."""
    b = Body()
    b.argument("%row", "tensor<i64>")
    row64 = b.op("tensor.extract %row[] : tensor<i64>", "i64")
    row = b.op(f"arith.index_cast {row64} : i64 to index", "index")
    zeros = b.zeros(f"tensor<1x{s.slots}x{s.heads}x{s.dim}xf32>")
    cache_type = f"tensor<{s.batch}x{s.slots}x{s.heads}x{s.dim}xf32>"
    for layer in range(s.layers):
        for part in "kv":
            cache = b.load(f"cache_{part}_{layer}", cache_type)
            cleared = b.op(
                f"tensor.insert_slice {zeros} into {cache}[{row}, 0, 0, 0] [1, {s.slots}, {s.heads}, {s.dim}] "
                f"[1, 1, 1, 1] : {b.types[zeros]} into {cache_type}",
                cache_type,
            )
            b.store(f"cache_{part}_{layer}", cleared)
    return b.function("reset", ["%row"], [])


def decoder(s: Shape, prompts: tuple[int, ...] = (16,)) -> str:
    """The whole program: decode, a prefill for each length, reset."""
    return "\n".join([decode(s), *(prefill(s, n) for n in prompts), reset(s)])


SQUARE = "tensor<8x16xf32>"
STATES = ("a", "b")


class Soup:
    """A program of one function whose ops are chosen by numbers: all on values of one type, views between them."""

    def __init__(self) -> None:
        self.b = Body()
        self.values = [self.b.argument("%x", SQUARE)]
        self.fill = self.b.zeros(SQUARE)
        self.stored: set[str] = set()
        self.zero, self.two, self.eight = (self.b.op(f"arith.constant {n} : index", "index") for n in (0, 2, 8))

    def step(self, kind: int, first: int, second: int) -> None:
        """One more op, of one of ``KINDS``, on values chosen by number."""
        a, b = self.values[first % len(self.values)], self.values[second % len(self.values)]
        new = getattr(self, f"_{self.KINDS[kind % len(self.KINDS)]}")(a, b)
        if new is not None:
            self.values.append(new)

    KINDS = ("add", "accumulate", "insert", "view", "multiply", "join", "load", "store", "weight", "literal", "splat",
             "loop", "swap", "zeros", "turn", "spread")  # fmt: skip

    def text(self, results: list[int]) -> str:
        chosen = [self.values[r % len(self.values)] for r in results]
        return self.b.function("main", ["%x"], chosen)

    def _add(self, a: str, b: str) -> str:
        return self.b.pointwise("arith.addf %a0, %a1", a, b)

    def _accumulate(self, a: str, b: str) -> str:
        same = "affine_map<(i, j) -> (i, j)>"
        return self.b.op(
            f"linalg.generic {{indexing_maps = [{same}, {same}], "
            f'iterator_types = ["parallel", "parallel"]}} ins({a} : {SQUARE}) outs({b} : {SQUARE}) {{\n'
            f"  ^bb0(%p: f32, %q: f32):\n    %s = arith.addf %p, %q : f32\n    linalg.yield %s : f32\n  }} -> {SQUARE}",
            SQUARE,
        )

    def _insert(self, a: str, b: str) -> str:
        part = self.b.op(f"tensor.extract_slice {a}[0, 0] [2, 16] [1, 1] : {SQUARE} to tensor<2x16xf32>", "")
        return self.b.op(
            f"tensor.insert_slice {part} into {b}[{self.two}, 0] [2, 16] [1, 1] : tensor<2x16xf32> into {SQUARE}",
            SQUARE,
        )

    def _view(self, a: str, b: str) -> str:
        flat = self.b.op(f"tensor.collapse_shape {a} [[0, 1]] : {SQUARE} into tensor<128xf32>", "")
        return self.b.op(
            f"tensor.expand_shape {flat} [[0, 1]] output_shape [8, 16] : tensor<128xf32> into {SQUARE}", SQUARE
        )

    def _turn(self, a: str, b: str) -> str:
        """Transposed, by an op of that name, and back, by a generic one."""
        turned = "tensor<16x8xf32>"
        empty = self.b.empty(turned)
        x = self.b.op(f"linalg.transpose ins({a} : {SQUARE}) outs({empty} : {turned}) permutation = [1, 0]", turned)
        empty = self.b.empty(SQUARE)
        return self.b.op(
            "linalg.generic {indexing_maps = [affine_map<(i, j) -> (j, i)>, affine_map<(i, j) -> (i, j)>], "
            f'iterator_types = ["parallel", "parallel"]}} ins({x} : {turned}) outs({empty} : {SQUARE}) {{\n'
            f"  ^bb0(%p: f32, %q: f32):\n    linalg.yield %p : f32\n  }} -> {SQUARE}",
            SQUARE,
        )

    def _spread(self, a: str, b: str) -> str:
        """The first row in each row."""
        row = self.b.op(f"tensor.extract_slice {a}[0, 0] [1, 16] [1, 1] : {SQUARE} to tensor<16xf32>", "")
        empty = self.b.empty(SQUARE)
        return self.b.op(
            f"linalg.broadcast ins({row} : tensor<16xf32>) outs({empty} : {SQUARE}) dimensions = [0]", SQUARE
        )

    def _multiply(self, a: str, b: str) -> str:
        """Into one and the same filled tensor each time, as after common subexpression elimination."""
        square = "tensor<16x16xf32>"
        turned = self.b.op(f"tensor.empty() : {square}", square)
        maps = ["(m, n, k) -> (k, m)", "(m, n, k) -> (k, n)", "(m, n, k) -> (m, n)"]
        product = self.b.contract(a, b, maps, "ppr", turned, square)
        maps = ["(m, n, k) -> (m, k)", "(m, n, k) -> (k, n)", "(m, n, k) -> (m, n)"]
        return self.b.contract(a, product, maps, "ppr", self.fill, SQUARE)

    def _join(self, a: str, b: str) -> str:
        long = "tensor<16x16xf32>"
        joined = self.b.op(f"tensor.concat dim(0) {a}, {b} : ({SQUARE}, {SQUARE}) -> {long}", long)
        return self.b.op(f"tensor.extract_slice {joined}[4, 0] [8, 16] [1, 1] : {long} to {SQUARE}", SQUARE)

    def _load(self, a: str, b: str) -> str:
        return self.b.load(STATES[len(self.values) % len(STATES)], SQUARE)

    def _store(self, a: str, b: str) -> None:
        state = STATES[len(self.b.lines) % len(STATES)]
        if state not in self.stored:
            self.stored.add(state)
            self.b.store(state, a)

    def _weight(self, a: str, b: str) -> str:
        return self.b.parameter(f"w{len(self.values) % 3}", SQUARE)

    def _literal(self, a: str, b: str) -> str:
        rows = [[float(i * 16 + j + len(self.values)) for j in range(16)] for i in range(8)]
        return self.b.op(f"arith.constant dense<{rows}> : {SQUARE}", SQUARE)

    def _splat(self, a: str, b: str) -> str:
        return self.b.op(f"arith.constant dense<{float(len(self.values))}> : {SQUARE}", SQUARE)

    def _zeros(self, a: str, b: str) -> str:
        return self.fill

    def _loop(self, a: str, b: str) -> str:
        """Rows of ``a``, doubled, into ``b``."""
        row = "tensor<2x16xf32>"
        return self.b.op(
            f"""scf.for %i = {self.zero} to {self.eight} step {self.two} iter_args(%acc = {b}) -> ({SQUARE}) {{
    %r = tensor.extract_slice {a}[%i, 0] [2, 16] [1, 1] : {SQUARE} to {row}
    %e = tensor.empty() : {row}
    %d = linalg.add ins(%r, %r : {row}, {row}) outs(%e : {row}) -> {row}
    %n = tensor.insert_slice %d into %acc[%i, 0] [2, 16] [1, 1] : {row} into {SQUARE}
    scf.yield %n : {SQUARE}
  }}""",
            SQUARE,
        )

    def _swap(self, a: str, b: str) -> str:
        """Two carried values that change places."""
        name = f"%v{len(self.b.types)}"
        self.b.op(
            f"""scf.for %i = {self.zero} to {self.eight} step {self.two} iter_args(%p = {a}, %q = {b})
      -> ({SQUARE}, {SQUARE}) {{
    scf.yield %q, %p : {SQUARE}, {SQUARE}
  }}""",
            SQUARE,
        )
        self.b.lines[-1] = self.b.lines[-1].replace(f"{name} =", f"{name}:2 =", 1)
        self.b.types[f"{name}#1"] = SQUARE
        return f"{name}#1"
