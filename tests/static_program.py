"""A small decoder in the static phase, as text: what the raising passes give the lowering."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from snapcc.compiler.dialect.policy import Policy


@dataclass(frozen=True)
class Shapes:
    """B rows, L layers, H key-value heads, G query heads each, D features a head, E features, V tokens, N prompt."""

    b: int = 3
    layers: int = 2
    h: int = 2
    g: int = 2
    d: int = 8
    e: int = 16
    v: int = 32
    n: int = 24

    @property
    def heads(self) -> int:
        """Features of all query heads."""
        return self.h * self.g * self.d


def vt(shape: Sequence[int], element: str = "f32") -> str:
    """The text of a ``!torch.vtensor`` type."""
    return f"!torch.vtensor<[{','.join(map(str, shape))}],{element}>"


@dataclass
class _Body:
    """The lines of a function, each an op whose value is named by its line."""

    lines: list[str] = field(default_factory=list)
    types: dict[str, str] = field(default_factory=dict)

    def name(self) -> str:
        return f"%v{len(self.lines)}"

    def int(self, value: int) -> str:
        self.lines.append(f"{self.name()} = torch.constant.int {value}")
        return f"%v{len(self.lines) - 1}"

    def ints(self, values: Sequence[int]) -> str:
        items = [self.int(v) for v in values]
        kinds = ", ".join(["!torch.int"] * len(items))
        self.lines.append(
            f"{self.name()} = torch.prim.ListConstruct {', '.join(items)} : ({kinds}) -> !torch.list<int>"
        )
        return f"%v{len(self.lines) - 1}"

    def bool(self, value: bool) -> str:
        self.lines.append(f"{self.name()} = torch.constant.bool {str(value).lower()}")
        return f"%v{len(self.lines) - 1}"

    def op(
        self, name: str, operands: Sequence[str], result: str | None, attributes: str = "", others: Sequence[str] = ()
    ) -> str:
        """An op in generic form; ``others`` are the types of trailing operands that are no tensors."""
        tensors = len(operands) - len(others)
        kinds = [*(self.types[o] for o in operands[:tensors]), *others]
        value = self.name()
        bound = f"{value} = " if result else ""
        at = f'loc("decoder.py":{10 + len(self.lines)}:5)'
        self.lines.append(
            f'{bound}"{name}"({", ".join(operands)}) {{{attributes}}} : ({", ".join(kinds)}) -> {result or "()"} {at}'
        )
        if result:
            self.types[value] = result
        return value

    def view(self, value: str, shape: Sequence[int], element: str = "f32") -> str:
        return self.op("torch.aten.view", [value, self.ints(shape)], vt(shape, element), others=["!torch.list<int>"])

    def permute(self, value: str, order: Sequence[int], shape: Sequence[int]) -> str:
        return self.op("torch.aten.permute", [value, self.ints(order)], vt(shape), others=["!torch.list<int>"])

    def mm(self, a: str, b: str, shape: Sequence[int]) -> str:
        return self.op("torch.aten.mm", [a, b], vt(shape))

    def add(self, a: str, b: str, shape: Sequence[int]) -> str:
        return self.op("torch.aten.add.Tensor", [a, b, self.int(1)], vt(shape), others=["!torch.int"])

    def parameter(self, name: str, shape: Sequence[int]) -> str:
        return self.op("kv.parameter", [], vt(shape), f'parameter = "{name}"')

    def load(self, state: str, shape: Sequence[int], element: str = "f32") -> str:
        return self.op("kv.state_load", [], vt(shape, element), f'state = "{state}"')

    def store(self, state: str, value: str) -> None:
        self.op("kv.state_store", [value], None, f'state = "{state}"')

    def embedding(self, table: str, tokens: str, shape: Sequence[int]) -> str:
        return self.op(
            "torch.aten.embedding",
            [table, tokens, self.int(-1), self.bool(False), self.bool(False)],
            vt(shape),
            others=["!torch.int", "!torch.bool", "!torch.bool"],
        )


def weights(s: Shapes) -> dict[str, tuple[int, ...]]:
    """The names and shapes of the decoder's weights."""
    found: dict[str, tuple[int, ...]] = {"embed": (s.v, s.e)}
    for i in range(s.layers):
        found |= {f"{i}.q": (s.e, s.heads), f"{i}.k": (s.e, s.h * s.d), f"{i}.v": (s.e, s.h * s.d)}
        found[f"{i}.o"] = (s.heads, s.e)
    return found


def _slots(policy: Policy) -> str:
    return f"sink = {policy.sink} : i64, ring = {policy.recent} : i64"


def _attention(s: Shapes) -> str:
    return f"scale = {s.d**-0.5} : f64, softcap = 0.0 : f64"


def _out(body: _Body, x: str, s: Shapes, rows: int) -> str:
    table = body.parameter("embed", (s.v, s.e))
    return body.mm(x, body.permute(table, (1, 0), (s.e, s.v)), (rows, s.v))


def decode(s: Shapes, policy: Policy) -> str:
    """``@decode``: one token a row; keys [B, H, C, D], values [B, C, H, D]."""
    body = _Body(types={"%tokens": vt([s.b], "si64"), "%positions": vt([s.b], "si64"), "%active": vt([s.b], "i1")})
    c = policy.slots
    x = body.embedding(body.parameter("embed", (s.v, s.e)), "%tokens", (s.b, s.e))
    count = body.load("selected_count", [s.b], "si64")
    slots = body.op("kv.slots", ["%positions"], vt([s.b], "si64"), _slots(policy))
    visible = body.op(
        "kv.visible",
        ["%positions", count],
        vt([s.b, c], "i1"),
        f"{_slots(policy)}, selected = {policy.topk} : i64",
    )
    for i in range(s.layers):
        q = body.view(body.mm(x, body.parameter(f"{i}.q", (s.e, s.heads)), (s.b, s.heads)), (s.b, s.h, s.g, 1, s.d))
        caches = []
        for kind, axis, rows, shape in (
            ("k", 2, (s.b, s.h, 1, s.d), (s.b, s.h, c, s.d)),
            ("v", 1, (s.b, 1, s.h, s.d), (s.b, c, s.h, s.d)),
        ):
            new = body.view(body.mm(x, body.parameter(f"{i}.{kind}", (s.e, s.h * s.d)), (s.b, s.h * s.d)), rows)
            old = body.load(f"{i}.{kind}", shape)
            cache = body.op("kv.ring_update", [old, new, slots, "%active"], vt(shape), f"axis = {axis} : i64")
            body.store(f"{i}.{kind}", cache)
            caches.append(cache)
        v = body.permute(caches[1], (0, 2, 1, 3), (s.b, s.h, c, s.d))
        o = body.op(
            "kv.attention",
            [q, caches[0], v, visible],
            vt((s.b, s.h, s.g, 1, s.d)),
            f"operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0>, causal = 0 : i64, {_attention(s)}",
        )
        flat = body.view(o, (s.b, s.heads))
        x = body.add(x, body.mm(flat, body.parameter(f"{i}.o", (s.heads, s.e)), (s.b, s.e)), (s.b, s.e))
    logits = _out(body, x, s, s.b)
    arguments = ", ".join(
        f'{n}: {t} {{kv.name = "{n[1:]}", kv.role = "{"tokens" if n == "%tokens" else "other"}"}}'
        for n, t in list(body.types.items())[:3]
    )
    lines = "\n  ".join(body.lines)
    return f"func.func @decode({arguments}) -> {vt([s.b, s.v])} {{\n  {lines}\n  return {logits} : {vt([s.b, s.v])}\n}}"


def prefill(s: Shapes, policy: Policy) -> str:
    """``@prefill_<N>``: one row's prompt; the logits of its last real token."""
    body = _Body(types={"%tokens": vt([1, s.n], "si64"), "%length": vt([], "si64"), "%row": vt([], "si64")})
    arguments = ", ".join(f"{n}: {t}" for n, t in body.types.items())
    x = body.embedding(body.parameter("embed", (s.v, s.e)), body.view("%tokens", [s.n], "si64"), (s.n, s.e))
    for i in range(s.layers):
        projected = {
            kind: body.mm(x, body.parameter(f"{i}.{kind}", (s.e, width)), (s.n, width))
            for kind, width in (("q", s.heads), ("k", s.h * s.d), ("v", s.h * s.d))
        }
        q = body.permute(body.view(projected["q"], (1, s.n, s.h, s.g, s.d)), (0, 2, 3, 1, 4), (1, s.h, s.g, s.n, s.d))
        tokens_first = {kind: body.view(projected[kind], (1, s.n, s.h, s.d)) for kind in "kv"}
        k, v = (body.permute(tokens_first[kind], (0, 2, 1, 3), (1, s.h, s.n, s.d)) for kind in "kv")
        selection = []
        if policy.topk:
            selection = [
                body.op(
                    "kv.topk_select",
                    [q, k, "%length"],
                    vt([s.h, policy.topk], "si64"),
                    f"{_slots(policy)}, selected = {policy.topk} : i64, window = {policy.window} : i64, "
                    f"operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, "
                    f'pool = "{policy.pool}", pool_size = {policy.pool_size} : i64, score = "{policy.score}", '
                    f"{_attention(s)}",
                )
            ]
        for kind, cache, axis, head_axis in (("k", k, 2, 1), ("v", tokens_first["v"], 1, 2)):
            shape = [1, s.h, policy.slots, s.d] if kind == "k" else [1, policy.slots, s.h, s.d]
            compact = body.op(
                "kv.compact",
                [cache, "%length", *selection],
                vt(shape),
                f'{_slots(policy)}, axis = {axis} : i64, head_axis = {head_axis} : i64, order = "ring"',
            )
            full = [s.b, *shape[1:]]
            old = body.load(f"{i}.{kind}", full)
            body.store(f"{i}.{kind}", body.op("kv.write_row", [old, compact, "%row"], vt(full)))
        o = body.op(
            "kv.attention",
            [q, k, v],
            vt((1, s.h, s.g, s.n, s.d)),
            f"operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>, causal = 1 : i64, {_attention(s)}",
        )
        flat = body.view(body.permute(o, (0, 3, 1, 2, 4), (1, s.n, s.h, s.g, s.d)), (s.n, s.heads))
        x = body.add(x, body.mm(flat, body.parameter(f"{i}.o", (s.heads, s.e)), (s.n, s.e)), (s.n, s.e))
    one = body.int(1)
    last = body.op("torch.aten.sub.Scalar", ["%length", one, one], vt([], "si64"), others=["!torch.int", "!torch.int"])
    index = body.view(last, [1], "si64")
    body.types["%axis"] = "!torch.int"
    zero = body.int(0)
    body.types[zero] = "!torch.int"
    x = body.op("torch.aten.index_select", [x, zero, index], vt([1, s.e]))
    logits = body.view(_out(body, x, s, 1), [s.v])
    n = body.op("kv.selected_count", ["%length"], vt([1], "si64"), f"{_slots(policy)}, selected = {policy.topk} : i64")
    count = body.load("selected_count", [s.b], "si64")
    body.store("selected_count", body.op("kv.write_row", [count, n, "%row"], vt([s.b], "si64")))
    lines = "\n  ".join(body.lines)
    return f"func.func @prefill_{s.n}({arguments}) -> {vt([s.v])} {{\n  {lines}\n  return {logits} : {vt([s.v])}\n}}"


def reset(s: Shapes, policy: Policy) -> str:
    """``@reset``: one row's caches and count become zero."""
    body = _Body(types={"%row": vt([], "si64")})
    states = {"selected_count": ([s.b], "si64")}
    for i in range(s.layers):
        states[f"{i}.k"] = ([s.b, s.h, policy.slots, s.d], "f32")
        states[f"{i}.v"] = ([s.b, policy.slots, s.h, s.d], "f32")
    for state, (shape, element) in states.items():
        of_row = [1, *shape[1:]]
        dense = f"dense<{'0' if element == 'si64' else '0.0'}> : tensor<{'x'.join(map(str, of_row))}x{element}>"
        zeros = body.name()
        body.lines.append(f"{zeros} = torch.vtensor.literal({dense}) : {vt(of_row, element)}")
        body.types[zeros] = vt(of_row, element)
        old = body.load(state, shape, element)
        body.store(state, body.op("kv.write_row", [old, zeros, "%row"], vt(shape, element)))
    lines = "\n  ".join(body.lines)
    return f"func.func @reset(%row: {vt([], 'si64')}) {{\n  {lines}\n  return\n}}"


def program(s: Shapes, policy: Policy) -> str:
    """The three functions of the program."""
    return "\n".join([decode(s, policy), prefill(s, policy), reset(s, policy)])
