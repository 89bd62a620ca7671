"""Pass ``kv-lower-attention``: attention over slots or over a prompt, as linalg and loops."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

from torch_mlir import ir

from ..dialect.kv import AttentionOp, Reach, integer, number
from ..dialect.types import element_of, shape_of
from .linalg_text import Tensor, Text
from .stored import Label, argument, joined, stored
from .template import call_template, operations, replace


@dataclasses.dataclass(frozen=True)
class LowerAttention:
    """``kv.attention`` to linalg, without repeating keys and values for the query group.

    Applies to the op on builtin tensors. Three steps, in f32 whatever the element type: the products of queries and
    keys, the weights ``exp(logit - maximum)``, and the products of weights and values, divided by the weights' sum. A
    key that a query does not see has weight zero, and where ``visible`` hides keys their values are selected away
    too, so that no byte of a hidden slot is ever used. A query that sees nothing gives zeros. Sinks are in the maximum
    and in the weights' sum and nowhere else.

    One query token (decode) takes all keys at once, without a copy of a cache or a temporary of its size. More
    (prefill, extend) go ``block`` tokens at a time through a loop, each block with the keys up to its own end where the
    attention is causal (a window or a chunk hides keys among these): memory grows with the prompt and not with its
    square, and the program does not grow. Where ``block`` does not divide the tokens, the last block starts early and
    gives some of them again.

    A ``linalg.transpose`` that brought k or v from a cache's own layout is read through: nothing is transposed. So is
    a ``tensor.concat`` of the keys' features: each part is multiplied with its part of the queries, one after the
    other onto the same products, and nothing is joined.

    The shapes serve IREE on a CPU, with its data tiling or without. It re-lays-out the operands of a product of one
    row axis and one key axis, which copies a cache in every decode step and does not compile where the number of keys
    is dynamic; of a product with two it does not. Masks stand inside the reductions over the logits, since masked
    logits would be one more pass over memory.

    Before::

        %o = "kv.attention"(%q, %k, %v) {causal = 1 : i64, scale = 0.125 : f64, softcap = 0.0 : f64}

    After (the call of a private function, which MLIR's ``inline`` opens)::

        %o = scf.for %first = %c0 to %c1024 step %c128 iter_args(%done = %empty) -> (tensor<1x3x3x1024x64xf32>) {
          %queries = tensor.extract_slice %q[0, 0, 0, %first, 0] [1, 3, 3, 128, 64] [1, 1, 1, 1, 1]
          %keys = tensor.extract_slice %k[0, 0, 0, 0] [1, 3, %end, 64] [1, 1, 1, 1]
          %values = tensor.extract_slice %v[0, 0, 0, 0] [1, 3, %end, 64] [1, 1, 1, 1]
          %dots = linalg.generic ins(%queries, %keys) ... -> tensor<1x3x128x3x?xf32>
          ... %maximum, %weights, %total, %mixed, %out = linalg.generic ...
          %more = tensor.insert_slice %out into %done[0, 0, 0, %first, 0] [1, 3, 3, 128, 64] [1, 1, 1, 1, 1]
          scf.yield %more
        }

    See tests/lit/lower/attention.mlir.
    """

    block: int = 128
    name: ClassVar[str] = "kv-lower-attention"

    def run(self, module: ir.Operation) -> None:
        """Rewrites the module.

        Raises:
            ValueError: ``block`` is less than 1, or an attention that is not causal has a window or a chunk.
        """
        if self.block < 1:
            raise ValueError(f"block must be at least 1, got {self.block}")
        for op in operations(module, "kv.attention"):
            task = _Task.of(op)
            if task.reach != Reach() and not task.causal:
                raise ValueError("a window over slots is lowered where kv-apply-policy has made it what is visible")
            text = _one_token(task) if task.extents["n"] == 1 else _blocks(task, self.block)
            replace(op, call_template(op, "kv_attention", text, [*task.operands.values()], [op.results[0].type]))


@dataclasses.dataclass(frozen=True)
class _Task:
    """What one op asks for.

    Axes are letters: b row, h KV head, g query head of the group, n query token, u key, d and e the features of keys
    and of values. ``q`` has them as b h g n d, ``visible`` as b u or b n u, ``bias`` as b h g u (or b h u where it is
    the same for a group), ``sinks`` as h g, values and each part of the keys as they are stored. ``parts`` are the
    keys' operands by the letter of their features: d alone, or one for each part of d.
    """

    operands: dict[str, ir.Value]
    q: Tensor
    parts: dict[str, str]
    labels: dict[str, list[Label]]
    visible: Tensor | None
    bias: Tensor | None
    sinks: Tensor | None
    extents: dict[str, int]
    causal: bool
    reach: Reach
    scale: float
    softcap: float
    result: ir.Type

    @staticmethod
    def of(op: ir.Operation) -> _Task:
        view = op.opview
        assert isinstance(view, AttentionOp)
        q, k, v = view.q, view.k, view.v
        more = {name: value for name in ("visible", "bias", "sinks") if (value := getattr(view, name)) is not None}
        b, h, g, n, d = shape_of(q.type)
        extents = {"b": b, "h": h, "g": g, "n": n, "u": shape_of(k.type)[2], "d": d, "e": shape_of(v.type)[3]}
        keys = joined(k)
        letters = _PARTS[: len(keys)] if 1 < len(keys) <= len(_PARTS) else "d"
        parts = {letter: f"k_{letter}" if len(letters) > 1 else "k" for letter in letters}
        if len(letters) > 1:
            extents |= {letter: shape_of(part.type)[3] for letter, part in zip(letters, keys, strict=True)}
        else:
            keys = [k]
        found = {"v": stored(v, "bhue")}
        found |= {parts[a]: stored(part, f"bhu{a}") for a, part in zip(letters, keys, strict=True)}
        per_query = "visible" in more and len(shape_of(more["visible"].type)) == 3
        shared = "bias" in more and shape_of(more["bias"].type)[2] == 1
        return _Task(
            operands={"q": q, **{name: value for name, (value, _) in found.items()}, **more},
            q=Tensor("%q", "bhgnd", element_of(q.type)),
            parts=parts,
            labels={name: labels for name, (_, labels) in found.items()},
            visible=Tensor("%visible", "bnu" if per_query else "bu", "i1") if "visible" in more else None,
            bias=Tensor("%bias", "bhzu" if shared else "bhgu", "f32") if "bias" in more else None,
            sinks=Tensor("%sinks", "hg", "f32") if "sinks" in more else None,
            extents=extents | {"z": 1},
            # one token has one key, and sees it
            causal=integer(op, "causal") != 0 and n > 1,
            reach=Reach.of(op),
            scale=number(op, "scale"),
            softcap=number(op, "softcap"),
            result=op.results[0].type,
        )

    def function(self, body: Text, result: Tensor) -> str:
        arguments = ", ".join(f"%{name}: {value.type}" for name, value in self.operands.items())
        lines = "\n".join([*body.lines, f"return {result.name} : {self.result}"])
        return f"func.func @attention({arguments}) -> {self.result} {{\n{lines}\n}}"


_LOWEST = "0xFF7FFFFF"
_SMALLEST_NORMAL = "0x00800000"
_FEW_HEADS = 8
"""Query heads of one KV head up to which parts and lanes of the keys spread the work."""
_PARTS = "fklopqvw"
"""Letters for the parts of d."""


def _keys(text: Text, task: _Task) -> dict[str, Tensor]:
    """The parts of the keys, by the letter of their features."""
    return {letter: _as_stored(text, task, name) for letter, name in task.parts.items()}


def _values(text: Text, task: _Task) -> Tensor:
    return _as_stored(text, task, "v")


def _as_stored(text: Text, task: _Task, name: str) -> Tensor:
    return argument(text, f"%{name}", task.operands[name].type, task.labels[name])


def _one_token(task: _Task) -> str:
    """All keys at once, for one query token per row.

    The speed of memory is the limit, so the work is spread over s parts of the keys, and in a part of the values over
    i lanes of j, whose sums do not wait for one another. Many query heads of one KV head spread it themselves, and
    each part and lane has sums for all of them: there is one lane then, and parts are as large as they make few sums.
    """
    keys, many = task.extents["u"], task.extents["g"] > _FEW_HEADS
    c = _keys_in_part(keys, near=32 * task.extents["g"] if many else 256)
    i = max(lanes for lanes in (1, 2, 4) if c % lanes == 0 and (lanes == 1 or (c >= 16 * lanes and not many)))
    text = Text({**task.extents, "s": keys // c, "c": c, "j": c // i, "i": i})
    _constants(text, task)
    queries = text.join("queries", task.q, "gn", "g")
    key_parts = {a: text.split(f"key_parts_{a}", part, "u", "sc") for a, part in _keys(text, task).items()}
    # g stands between s and c, so that these are not taken for one axis; without all three the product is not plain
    scaled = 1 in (task.extents["h"] * task.extents["g"], c, keys // c)
    dots = _products(text, "bhsgcd", queries, key_parts, "bshgc", scaled)
    seen = _Seen()
    if task.visible is not None:
        marked = task.visible
        if "n" in marked.axes:
            marked = text.join("visible_keys", marked, "nu", "u")
        seen = _Seen.visible(text.split("visible_parts", marked, "u", "sc"))
    bias = task.bias and text.split("bias_parts", _bias(text, task.bias), "u", "sc")
    weights, total = _softmax(text, task, dots, "bhg", seen, scaled, bias, task.sinks)
    weight_parts = text.split("weight_parts", weights, "c", "ji")
    value_parts = text.split("value_parts", _values(text, task), "u", "sji")
    lanes = _mixtures(text, "lanes", "bhsgiej", weight_parts, value_parts, "bhgsie", select=True)
    add = ["%sum = arith.addf %old, %lane : f32"]
    mixed = text.generic("mixed", "bhgesi", [("%lane", lanes)], text.filled("no_mix", "bhge", "%zero"), add, "%sum")
    out = _divided(text, mixed, total, task.q.element)
    return task.function(text, text.split("result", out, "g", "gn"))


def _blocks(task: _Task, most: int) -> str:
    """At most ``most`` query tokens at a time, with the keys up to the block's end if the attention is causal."""
    tokens, size = task.extents["n"], min(most, task.extents["n"])
    text = Text({**task.extents, "m": size, "t": task.extents["u"]})
    _constants(text, task)
    text.add("%start = arith.constant 0 : index")
    if size == tokens:
        return task.function(text, _block(text, task, size, "%start"))
    nothing = text.empty("nothing", "bhgne", task.q.element)
    type_ = text.type_of(nothing)
    text.lines += [
        f"%tokens = arith.constant {tokens} : index",
        f"%size = arith.constant {size} : index",
        f"%last = arith.constant {tokens - size} : index",
        f"%all = scf.for %step = %start to %tokens step %size iter_args(%done = {nothing.name}) -> ({type_}) {{",
        "%first = arith.minsi %step, %last : index",
    ]
    if task.causal:
        text.add("%end = arith.addi %first, %size : index")
        text.extents["t"] = "%end"
    out = _block(text, task, size, "%first")
    text.lines += [
        f"%more = tensor.insert_slice {out.name} into %done{text.place(out, 'm', '%first')}"
        f" : {text.type_of(out)} into {type_}",
        f"scf.yield %more : {type_}",
        "}",
    ]
    return task.function(text, Tensor("%all", "bhgne", task.q.element))


def _block(text: Text, task: _Task, size: int, first: str) -> Tensor:
    """The ``size`` query tokens from ``first`` on over the first t keys: [b, h, g, m, e]."""
    queries = text.slice("queries", task.q, "n", "m", first)
    keys = {a: text.slice(f"keys_{a}", part, "u", "t", "0") for a, part in _keys(text, task).items()}
    values = text.slice("values", _values(text, task), "u", "t", "0")
    # x y are two row axes even where the group is one head: its tokens in two halves. The logits have them as y x:
    # were the order the same everywhere, they would be taken for one. Where one has extent 1 the products are not plain
    halves = task.extents["g"] == 1 and size % 2 == 0
    text.extents |= {"r": size, "x": 2, "y": size // 2} if halves else {"x": task.extents["g"], "y": size}
    if halves:
        rows = text.split("rows", text.join("all_rows", queries, "gm", "r"), "r", "xy")
    else:
        rows = Tensor(queries.name, "bhxyd", queries.element)
    one_axis = 1 in (text.extents["x"], text.extents["y"])
    dots = _products(text, "bhxtyd", rows, keys, "bhyxt", scaled=one_axis)
    seen = _Seen()
    if task.visible is not None:
        marked = text.slice("visible_keys", task.visible, "u", "t", "0")
        if "n" in marked.axes:
            marked = text.slice("visible_rows", marked, "n", "m", first)
            if halves:
                marked = text.split("visible_halves", marked, "m", "xy")
            else:
                marked = Tensor(marked.name, "byt", marked.element)
        seen = _Seen.visible(marked)
    if task.causal:
        text.add(f"%half = arith.constant {size // 2 if halves else 0} : index")
        seen = seen.and_before(first, task.reach)
    bias, sinks = task.bias and text.slice("bias_keys", _bias(text, task.bias), "u", "t", "0"), task.sinks
    if halves:
        bias = text.join("bias_rows", bias, "hg", "h") if bias is not None and "g" in bias.axes else bias
        sinks = sinks and text.join("sink_rows", sinks, "hg", "h")
    else:
        # x is the query head of the group
        bias, sinks = (t and dataclasses.replace(t, axes=t.axes.replace("g", "x")) for t in (bias, sinks))
    weights, total = _softmax(text, task, dots, "bhyx", seen, one_axis, bias, sinks)
    mixed = _mixtures(text, "mixed", "bhxeyt", weights, values, "bhxye", select=task.visible is not None or one_axis)
    out = _divided(text, mixed, total, task.q.element)
    if halves:
        return text.split("out_rows", text.join("all_out", out, "xy", "r"), "r", "gm")
    return Tensor(out.name, "bhgme", out.element)


@dataclasses.dataclass(frozen=True)
class _Seen:
    """Which keys a query sees: what is read beside the logits, and the lines that make ``%seen``; nothing: all."""

    inputs: tuple[tuple[str, Tensor], ...] = ()
    lines: tuple[str, ...] = ()

    @staticmethod
    def visible(visible: Tensor) -> _Seen:
        """The keys that are marked so."""
        return _Seen((("%seen", visible),))

    def and_before(self, first: str, reach: Reach) -> _Seen:
        """Of those, the keys not after the query and in its reach.

        Loops are b, h, y, x, t; row x, y is token first + x half + y.
        """
        causal = "%seen" if not self.inputs and reach == Reach() else "%not_after"
        lines = [
            "%x = linalg.index 3 : index",
            "%y = linalg.index 2 : index",
            "%x_token = arith.muli %x, %half : index",
            "%token = arith.addi %x_token, %y : index",
            f"%position = arith.addi %token, {first} : index",
            "%key = linalg.index 4 : index",
            f"{causal} = arith.cmpi ule, %key, %position : index",
        ]
        if reach != Reach():
            causal = "%seen" if not self.inputs else "%in_reach"
            if reach.window:
                end = [
                    "%reached = arith.addi %key, %bound : index",
                    "%near = arith.cmpi ugt, %reached, %position : index",
                ]
            else:
                end = ["%into = arith.remui %position, %bound : index", "%begin = arith.subi %position, %into : index"]
                end.append("%near = arith.cmpi uge, %key, %begin : index")
            lines += [
                f"%bound = arith.constant {reach.most} : index",
                *end,
                f"{causal} = arith.andi %not_after, %near : i1",
            ]
        if not self.inputs:
            return _Seen((), tuple(lines))
        ((_, visible),) = self.inputs
        return _Seen((("%marked", visible),), (*lines, f"%seen = arith.andi %marked, {causal} : i1"))

    def choose(self, name: str, value: str, otherwise: str) -> tuple[list[str], str]:
        """Lines that give an f32 value where the key is seen and another where not, and the name of what they give."""
        if self == _Seen():
            return [], value
        return [*self.lines, f"{name} = arith.select %seen, {value}, {otherwise} : f32"], name


def _constants(text: Text, task: _Task) -> None:
    """What the bodies use: among them the lowest f32, and the smallest that is normal."""
    factor = task.scale / task.softcap if task.softcap > 0.0 else task.scale
    constants = {"zero": "0.0", "lowest": _LOWEST, "smallest": _SMALLEST_NORMAL}
    # MLIR's floats need a point, which Python leaves out of 1e-05
    constants |= {"factor": f"{factor:.17e}", "cap": f"{task.softcap:.17e}"}
    for name, value in constants.items():
        text.add(f"%{name} = arith.constant {value} : f32")


def _products(
    text: Text, loops: str, queries: Tensor, keys: dict[str, Tensor], axes: str, scaled: bool = False
) -> Tensor:
    """Queries times keys, summed over d, part by part of it."""
    dots, first = text.filled("no_dots", axes, "%zero"), 0
    for letter, part in keys.items():
        of_part = queries
        if letter != "d":
            of_part = text.slice(f"queries_{letter}", queries, "d", letter, str(first))
            first += int(text.extents[letter])
        widen_query, query = _widened("%query", queries.element)
        widen_key, key = _widened("%key", part.element)
        body = [*widen_query, *widen_key, f"%product = arith.mulf {query}, {key} : f32"]
        if scaled:
            body.append("%scaled = arith.mulf %product, %factor : f32")
        body.append(f"%sum = arith.addf %old, {'%scaled' if scaled else '%product'} : f32")
        inputs = [("%query", of_part), ("%key", part)]
        dots = text.generic(f"dots_{letter}", loops.replace("d", letter), inputs, dots, body, "%sum")
    return dots


def _bias(text: Text, bias: Tensor) -> Tensor:
    """A bias without the axis z, which a group shares."""
    return text.join("bias_heads", bias, "hz", "h") if "z" in bias.axes else bias


def _softmax(
    text: Text,
    task: _Task,
    dots: Tensor,
    rows: str,
    seen: _Seen,
    scaled: bool,
    bias: Tensor | None,
    sinks: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Weights of the keys, and their sum in each of ``rows``.

    The maximum is taken over the seen keys alone, and the weight of a key that is not seen is zero whatever its dot.
    """
    logit_lines, logit = _logit(task, scaled)
    inputs = [("%dot", dots), *seen.inputs]
    if bias is not None:
        inputs.append(("%key_bias", bias))
        logit_lines, logit = [*logit_lines, f"%biased = arith.addf {logit}, %key_bias : f32"], "%biased"
    loops = dots.axes
    larger, chosen = seen.choose("%chosen", "%larger", "%old")
    lowest = text.filled("no_maximum", rows, "%lowest")
    if sinks is not None:
        lowest = text.generic("sink_maximum", rows, [("%sink", sinks)], lowest, [], "%sink")
    maximum = text.generic(
        "maximum",
        loops,
        inputs,
        lowest,
        [*logit_lines, f"%larger = arith.maximumf %old, {logit} : f32", *larger],
        chosen,
    )
    weight, chosen = seen.choose("%weight", "%exponential", "%zero")
    weights = text.generic(
        "weights",
        loops,
        [*inputs, ("%most", maximum)],
        text.empty("no_weights", loops),
        [
            *logit_lines,
            f"%below = arith.subf {logit}, %most : f32",
            "%exponential = math.exp %below : f32",
            *weight,
        ],
        chosen,
    )
    add = ["%sum = arith.addf %old, %weight : f32"]
    total = text.filled("no_total", rows, "%zero")
    if sinks is not None:
        body = ["%below = arith.subf %sink, %most : f32", "%exponential = math.exp %below : f32"]
        total = text.generic("sink_total", rows, [("%sink", sinks), ("%most", maximum)], total, body, "%exponential")
    return weights, text.generic("total", loops, [("%weight", weights)], total, add, "%sum")


def _logit(task: _Task, scaled: bool) -> tuple[list[str], str]:
    """Lines that make a logit of ``%dot``, and its name; ``scaled``: the dot is multiplied by the factor already."""
    lines = [] if scaled else ["%scaled = arith.mulf %dot, %factor : f32"]
    name = "%dot" if scaled else "%scaled"
    if task.softcap > 0.0:
        lines += [f"%tanh = math.tanh {name} : f32", "%capped = arith.mulf %tanh, %cap : f32"]
        name = "%capped"
    return lines, name


def _mixtures(text: Text, name: str, loops: str, weights: Tensor, values: Tensor, axes: str, select: bool) -> Tensor:
    """Weights times values, summed; ``select``: a value of weight zero is selected away, as it may be a NaN."""
    widen, value = _widened("%value", values.element)
    body = widen
    if select:
        body = [
            *widen,
            "%counts = arith.cmpf une, %weight, %zero : f32",
            f"%kept = arith.select %counts, {value}, %zero : f32",
        ]
        value = "%kept"
    body = [*body, f"%product = arith.mulf %weight, {value} : f32", "%sum = arith.addf %old, %product : f32"]
    inputs = [("%weight", weights), ("%value", values)]
    return text.generic(name, loops, inputs, text.filled(f"no_{name}", axes, "%zero"), body, "%sum")


def _divided(text: Text, mixed: Tensor, total: Tensor, element: str) -> Tensor:
    """Mixed values divided by the weights' sum, in the element type of the result; zero where nothing is seen."""
    body = [
        "%positive = arith.maximumf %sum, %smallest : f32",
        "%quotient = arith.divf %mixture, %positive : f32",
    ]
    result = "%quotient"
    if element != "f32":
        body.append(f"%narrow = arith.truncf %quotient : f32 to {element}")
        result = "%narrow"
    inputs = [("%mixture", mixed), ("%sum", total)]
    return text.generic("out", mixed.axes, inputs, text.empty("no_out", mixed.axes, element), body, result)


def _widened(name: str, element: str) -> tuple[list[str], str]:
    """Lines that make an element f32, and the name it then has."""
    if element == "f32":
        return [], name
    return [f"{name}_f32 = arith.extf {name} : {element} to f32"], f"{name}_f32"


def _keys_in_part(keys: int, near: int) -> int:
    """A proper divisor near a number, rather one of 4 that lanes can share; all the keys where there is none."""
    divisors = [d for d in range(2, keys // 2 + 1) if keys % d == 0]
    return min(divisors or [keys], key=lambda d: max(d / near, near / d) * 4 / math.gcd(d, 4))
