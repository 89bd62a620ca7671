"""``kv.attention`` lowered: its numbers through IREE against PyTorch in f64, and what it writes, from the stream IR."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from lowered import parse, tensor
from torch_mlir import ir

from snapcc.build import DATA_TILING, DECODE_FLAGS
from snapcc.compiler.dialect.locations import source_line
from snapcc.compiler.passes import manager
from snapcc.compiler.passes.lower_attention import LowerAttention
from snapcc.runtime.iree_compile import compile_module, stream_ir, target_flags
from snapcc.runtime.schedule import not_in_place

FLAGS = {
    "default": (),
    "decode": DECODE_FLAGS,
    "decode-data-tiling": (*DECODE_FLAGS, *DATA_TILING),
}
NUMPY = {"f32": np.dtype(np.float32), "bf16": np.dtype(ml_dtypes.bfloat16), "f16": np.dtype(np.float16)}
TOLERANCE = {"f32": 1e-5, "bf16": 8e-3, "f16": 1e-3}
"""The results are below 1 and rounded to the element type at the end."""


@dataclass(frozen=True)
class Layout:
    """How a cache is stored: its shape, the lines that make %name of %name_stored, and the same in NumPy."""

    shape: Callable[[int, int, int, int], list[int]]
    lines: Callable[[str, list[int], str], str]
    store: Callable[[np.ndarray], np.ndarray]


def _heads_first(name: str, shape: list[int], element: str) -> str:
    type_ = tensor(shape, element)
    return f"%{name} = tensor.cast %{name}_stored : {type_} to {type_}"


def _transposed(*order: int) -> Callable[[str, list[int], str], str]:
    """Of the axes of [B, H, T, D], ``order`` is stored."""

    def lines(name: str, shape: list[int], element: str) -> str:
        stored, type_ = tensor([shape[i] for i in order], element), tensor(shape, element)
        permutation = [order.index(i) for i in range(4)]
        return f"""%{name}_empty = tensor.empty() : {type_}
  %{name} = linalg.transpose ins(%{name}_stored : {stored}) outs(%{name}_empty : {type_}) permutation = {permutation}"""

    return lines


def _heads_in_features(name: str, shape: list[int], element: str) -> str:
    b, h, t, d = shape
    wide, order = tensor([b, t, h, 1, d], element), tensor([1, b, h, t, d], element)
    return f"""%{name}_wide = tensor.expand_shape %{name}_stored [[0], [1], [2, 3, 4]]
    output_shape [{b}, {t}, {h}, 1, {d}] : {tensor([b, t, h * d], element)} into {wide}
  %{name}_empty = tensor.empty() : {order}
  %{name}_order = linalg.transpose ins(%{name}_wide : {wide}) outs(%{name}_empty : {order})
    permutation = [3, 0, 2, 1, 4]
  %{name} = tensor.collapse_shape %{name}_order [[0, 1], [2], [3], [4]] : {order} into {tensor(shape, element)}"""


def _no_heads(name: str, shape: list[int], element: str) -> str:
    b, _, t, d = shape
    return f"""%{name} = tensor.expand_shape %{name}_stored [[0], [1, 2], [3]] output_shape [{b}, 1, {t}, {d}]
    : {tensor([b, t, d], element)} into {tensor(shape, element)}"""


def _joined(name: str, shape: list[int], element: str) -> str:
    """The keys' features in two parts."""
    if name == "v":
        return _heads_first(name, shape, element)
    whole, parts, first = tensor(shape, element), [], 0
    for i, width in enumerate((shape[3] - 4, 4)):
        part = [*shape[:3], width]
        extents = ", ".join(map(str, part))
        parts.append(
            f"%{name}_{i} = tensor.extract_slice %{name}_stored[0, 0, 0, {first}] [{extents}] [1, 1, 1, 1]"
            f" : {whole} to {tensor(part, element)}"
        )
        first += width
    types = ", ".join(tensor([*shape[:3], width], element) for width in (shape[3] - 4, 4))
    return "\n  ".join([*parts, f"%{name} = tensor.concat dim(3) %{name}_0, %{name}_1 : ({types}) -> {whole}"])


LAYOUTS = {
    "heads_first": Layout(lambda b, h, t, d: [b, h, t, d], _heads_first, lambda x: x),
    "tokens_first": Layout(lambda b, h, t, d: [b, t, h, d], _transposed(0, 2, 1, 3), lambda x: x.transpose(0, 2, 1, 3)),
    "features_first": Layout(
        lambda b, h, t, d: [b, h, d, t], _transposed(0, 1, 3, 2), lambda x: x.transpose(0, 1, 3, 2)
    ),
    "heads_in_features": Layout(
        lambda b, h, t, d: [b, t, h * d],
        _heads_in_features,
        lambda x: x.transpose(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], -1),
    ),
    "no_heads": Layout(lambda b, h, t, d: [b, t, d], _no_heads, lambda x: x[:, 0]),
    "joined": Layout(lambda b, h, t, d: [b, h, t, d], _joined, lambda x: x),
}


@dataclass(frozen=True)
class Case:
    """A configuration of the op; B, H, G query heads per KV head, Q queries, T keys, D and E features.

    ``per_query``: each query has a mask of its own.
    """

    b: int
    h: int
    g: int
    q: int
    t: int
    d: int = 16
    e: int = 16
    element: str = "f32"
    visible: bool = False
    per_query: bool = False
    causal: bool = False
    softcap: float = 0.0
    layout: str = "heads_first"
    scale: float = 0.3
    bias: str = ""
    sinks: bool = False
    window: int = 0
    chunk: int = 0

    def function(self, name: str) -> str:
        layout = LAYOUTS[self.layout]
        q = tensor([self.b, self.h, self.g, self.q, self.d], self.element)
        shapes = {"k": [self.b, self.h, self.t, self.d], "v": [self.b, self.h, self.t, self.e]}
        stored = ", ".join(f"%{n}_stored: {tensor(layout.shape(*x), self.element)}" for n, x in shapes.items())
        lines = "\n  ".join(layout.lines(n, shape, self.element) for n, shape in shapes.items())
        more = {"seen": tensor(self.mask_shape, "i1")} if self.visible else {}
        more |= {n: tensor(list(x.shape), "f32") for n, x in self.more().items()}
        types = [q, *(tensor(shape, self.element) for shape in shapes.values()), *more.values()]
        out = tensor([self.b, self.h, self.g, self.q, self.e], self.element)
        reach = "".join(f"{n} = {x} : i64, " for n, x in (("sliding_window", self.window), ("chunk", self.chunk)) if x)
        segments = f"1, 1, 1, {int(self.visible)}, {int(bool(self.bias))}, {int(self.sinks)}"
        return f"""
func.func @{name}(%q: {q}, {stored}{"".join(f", %{n}: {t}" for n, t in more.items())}) -> {out} {{
  {lines}
  %out = "kv.attention"(%q, %k, %v{"".join(f", %{n}" for n in more)}) {{
      operandSegmentSizes = array<i32: {segments}>, {reach}
      scale = {self.scale:e} : f64, softcap = {self.softcap:e} : f64, causal = {int(self.causal)} : i64
    }} : ({", ".join(types)}) -> {out}
  return %out : {out}
}}"""

    @property
    def decodes(self) -> bool:
        """Whether a step's attention is like it: one query, which is not a prompt's."""
        return self.q == 1 and not self.causal

    @property
    def mask_shape(self) -> list[int]:
        return [self.b, self.q, self.t] if self.per_query else [self.b, self.t]

    def inputs(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Random q, k, v and visible, with one key that is visible to all of a row, and one that is to none."""
        random = np.random.default_rng(self.t)
        dtype = NUMPY[self.element]
        q = random.standard_normal((self.b, self.h, self.g, self.q, self.d)).astype(dtype)
        k = random.standard_normal((self.b, self.h, self.t, self.d)).astype(dtype)
        v = random.uniform(-1, 1, (self.b, self.h, self.t, self.e)).astype(dtype)
        visible = random.random(self.mask_shape) < 0.6
        visible[..., self.t // 2] = True
        if self.t > 1:
            visible[..., 0] = False
        return q, k, v, visible

    def more(self) -> dict[str, np.ndarray]:
        """Bias and sinks, f32, where the case has them: the sinks' weights are neither none nor all."""
        random = np.random.default_rng(self.t + 1)
        found: dict[str, np.ndarray] = {}
        if self.bias:
            shape = (self.b, self.h, self.g if self.bias == "head" else 1, self.t)
            found["bias"] = random.standard_normal(shape).astype(np.float32)
        if self.sinks:
            found["sinks"] = 2 * random.standard_normal((self.h, self.g)).astype(np.float32)
        return found

    def expected(self, q: np.ndarray, k: np.ndarray, v: np.ndarray, visible: np.ndarray) -> np.ndarray:
        """PyTorch's result in f64; NaN for a query that sees no key."""
        q64, k64, v64 = (torch.from_numpy(x.astype(np.float64)) for x in (q, k, v))
        logits = torch.einsum("bhgqd,bhtd->bhgqt", q64, k64) * self.scale
        if self.softcap:
            logits = self.softcap * torch.tanh(logits / self.softcap)
        more = {n: torch.from_numpy(x.astype(np.float64)) for n, x in self.more().items()}
        if self.bias:
            logits = logits + more["bias"][:, :, :, None, :]
        seen = torch.ones(self.b, 1, 1, self.q, self.t, dtype=torch.bool)
        if self.visible:
            marked = torch.from_numpy(visible)
            seen = seen & (marked[:, None, None] if self.per_query else marked[:, None, None, None])
        if self.causal:
            seen = seen & torch.ones(self.q, self.t, dtype=torch.bool).tril()
        query, key = torch.arange(self.q)[:, None], torch.arange(self.t)
        if self.window:
            seen = seen & (query - key < self.window)
        if self.chunk:
            seen = seen & (query // self.chunk == key // self.chunk)
        logits = logits.masked_fill(~seen, -torch.inf)
        if self.sinks:
            sinks = more["sinks"][None, :, :, None, None].expand(*logits.shape[:-1], 1)
            weights = torch.softmax(torch.cat((logits, sinks), -1), -1)[..., :-1]
        else:
            weights = torch.softmax(logits, -1)
        return torch.einsum("bhgqt,bhte->bhgqe", weights, v64).numpy()


BLOCK = 8
"""The loop's block in these tests, so that small prompts take several."""

CASES = {
    "decode": Case(3, 2, 2, 1, 14, e=24, visible=True),
    "decode_tokens_first": Case(2, 2, 3, 1, 64, element="bf16", visible=True, layout="tokens_first", softcap=5.0),
    "decode_prime": Case(2, 2, 1, 1, 37, element="f16", visible=True, layout="features_first"),
    "decode_flat": Case(2, 2, 3, 1, 24, visible=True, layout="heads_in_features"),
    "decode_one_head": Case(2, 1, 1, 1, 40, visible=True, layout="no_heads"),
    "decode_all_keys": Case(2, 2, 2, 1, 24),
    "prefill_1": Case(1, 2, 2, 1, 1, causal=True),
    "prefill_5": Case(1, 2, 1, 5, 5, causal=True),
    "prefill_16": Case(1, 2, 1, 16, 16, causal=True, element="bf16", layout="tokens_first"),
    "prefill_29": Case(1, 2, 3, 29, 29, e=24, causal=True, softcap=3.0),
    "prefill_flat": Case(1, 2, 2, 20, 20, causal=True, element="f16", layout="heads_in_features"),
    "batch": Case(2, 2, 2, 11, 11, causal=True, visible=True),
    "decode_biased": Case(2, 2, 2, 1, 24, visible=True, bias="head", sinks=True, softcap=4.0),
    "decode_bias_of_group": Case(2, 2, 3, 1, 37, visible=True, bias="group"),
    "prefill_windowed": Case(1, 2, 2, 20, 20, causal=True, window=5, sinks=True),
    "prefill_one_head_windowed": Case(1, 2, 1, 21, 21, causal=True, window=9, bias="head", sinks=True),
    "prefill_halves": Case(1, 2, 1, 16, 16, causal=True, window=3, bias="head", sinks=True),
    "prefill_chunked": Case(1, 2, 3, 29, 29, causal=True, chunk=6, bias="group"),
    "extend": Case(2, 2, 1, 11, 21, visible=True, scale=1e-05),
    "queries": Case(2, 2, 3, 11, 21, e=24, visible=True, per_query=True),
    "queries_one_head": Case(1, 2, 1, 6, 20, element="bf16", visible=True, per_query=True, layout="tokens_first"),
    "queries_odd": Case(1, 2, 1, 5, 9, visible=True, per_query=True, softcap=3.0),
    "query": Case(2, 2, 2, 1, 16, visible=True, per_query=True),
    "decode_many_heads": Case(2, 1, 12, 1, 40, visible=True, sinks=True),
    "decode_joined": Case(2, 1, 4, 1, 40, visible=True, layout="joined"),
    "queries_joined": Case(1, 2, 3, 11, 21, element="bf16", visible=True, per_query=True, layout="joined"),
    "prefill_joined": Case(1, 1, 1, 20, 20, causal=True, layout="joined"),
}


def run_pass(text: str, block: int = BLOCK) -> ir.Module:
    module = parse(text)
    manager.run(module, ["canonicalize", LowerAttention(block), "inline", "symbol-dce", "canonicalize", "cse"])
    return module


def lowered(text: str, block: int = BLOCK) -> bytes:
    return run_pass(text, block).operation.get_asm().encode()


class Program:
    """The compiled cases: those of one query as decode is compiled, the others as prefill is."""

    def __init__(self, folder: Path) -> None:
        import iree.runtime

        config = iree.runtime.Config("local-sync")
        self._modules: dict[bool, Any] = {}
        for decodes, flags in ((True, FLAGS["decode-data-tiling"]), (False, FLAGS["default"])):
            text = "".join(case.function(name) for name, case in CASES.items() if case.decodes == decodes)
            path = folder / f"{decodes}.vmfb"
            compile_module(lowered(text), path, [*target_flags("cpu"), *flags])
            loaded = iree.runtime.VmModule.mmap(config.vm_instance, str(path))
            self._modules[decodes] = iree.runtime.load_vm_modules(loaded, config=config)[-1]

    def __call__(self, name: str, q: np.ndarray, k: np.ndarray, v: np.ndarray, visible: np.ndarray) -> np.ndarray:
        case, store = CASES[name], LAYOUTS[CASES[name].layout].store
        arguments: list[Any] = [q, *(np.ascontiguousarray(store(x)) for x in (k, v))]
        function = self._modules[case.decodes][name]
        out = function(*arguments, *([visible] if case.visible else []), *case.more().values()).to_host()
        return np.array(out).view(NUMPY[case.element]).astype(np.float64)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    return Program(tmp_path_factory.mktemp("attention"))


@pytest.mark.parametrize("name", CASES)
def test_equals_pytorch_whatever_stands_in_hidden_slots(program: Program, name: str) -> None:
    case = CASES[name]
    q, k, v, visible = case.inputs()
    want = case.expected(q, k, v, visible)
    if case.visible:
        # what no query of a row sees
        for row, seen in enumerate(visible.any(1) if case.per_query else visible):
            k[row, :, ~seen], v[row, :, ~seen] = np.nan, np.inf
            v[row, :, np.flatnonzero(~seen)[:1]] = np.nan
    got = program(name, q, k, v, visible)
    nothing_seen = np.isnan(want)
    assert np.isfinite(got).all()
    assert not nothing_seen.any() or name == "batch"
    np.testing.assert_allclose(got[~nothing_seen], want[~nothing_seen], atol=TOLERANCE[case.element], rtol=0)


@pytest.mark.parametrize("name", ["decode", "extend"])
def test_a_row_that_sees_nothing_gives_zeros(program: Program, name: str) -> None:
    q, k, v, visible = CASES[name].inputs()
    visible[1] = False
    k[1], v[1] = np.nan, np.nan
    got = program(name, q, k, v, visible)
    assert (got[1] == 0).all()
    assert np.isfinite(got).all()


SLOTS, WIDTH = 512, 64
OF_A_HEAD = SLOTS * WIDTH * 2
"""Bytes of one head of one row of a cache, in bf16; the logits of a row are far below."""

STORED = {
    "heads_first": Case(2, 2, 3, 1, SLOTS, WIDTH, WIDTH, visible=True),
    "tokens_first": Case(2, 2, 3, 1, SLOTS, WIDTH, WIDTH, visible=True, layout="tokens_first"),
    "features_first": Case(2, 2, 3, 1, SLOTS, WIDTH, WIDTH, visible=True, layout="features_first"),
    "heads_in_features": Case(1, 2, 3, 1, SLOTS, WIDTH, WIDTH, visible=True, layout="heads_in_features"),
    "no_heads": Case(2, 1, 4, 1, SLOTS, WIDTH, WIDTH, visible=True, layout="no_heads"),
    "one_query_head": Case(1, 3, 1, 1, SLOTS, WIDTH, WIDTH, visible=True),
    "one_head": Case(1, 1, 1, 1, SLOTS, WIDTH, WIDTH, visible=True),
    "bf16": Case(2, 2, 3, 1, SLOTS, WIDTH, WIDTH, "bf16", visible=True, layout="tokens_first"),
    "prime": Case(2, 2, 3, 1, 521, WIDTH, WIDTH, visible=True),
    "all_keys": Case(2, 2, 3, 1, SLOTS, WIDTH, WIDTH),
}


@pytest.mark.parametrize("flags", FLAGS)
def test_decode_copies_no_cache(flags: str) -> None:
    text = "".join(case.function(name) for name, case in STORED.items())
    ir_text = stream_ir(lowered(text), [*target_flags("cpu"), *FLAGS[flags]])
    assert {name: not_in_place(ir_text, name, OF_A_HEAD) for name in STORED} == {name: [] for name in STORED}


def test_many_query_heads_of_one_cache_make_few_sums() -> None:
    """As over latents: partial sums of 32 heads stay far below the cache, however many keys there are."""
    keys, width = 4096, 256
    text = Case(1, 1, 32, 1, keys, width, width, visible=True).function("latents")
    ir_text = stream_ir(lowered(text), [*target_flags("cpu"), *FLAGS["decode"]])
    assert not_in_place(ir_text, "latents", keys * width * 4 // 4) == []


def test_a_plain_product_would_be_seen() -> None:
    """The same count, of what data tiling does to the keys of an ordinary product."""
    q, k, out = (tensor(shape, "f32") for shape in ([2, 3, WIDTH], [2, SLOTS, WIDTH], [2, 3, SLOTS]))
    maps = ", ".join(f"affine_map<(b, m, t, d) -> ({axes})>" for axes in ("b, m, d", "b, t, d", "b, m, t"))
    text = f"""
func.func @plain(%q: {q}, %k: {k}, %zero: {out}) -> {out} {{
  %out = linalg.batch_matmul indexing_maps = [{maps}] ins(%q, %k : {q}, {k}) outs(%zero : {out}) -> {out}
  return %out : {out}
}}"""
    found = not_in_place(
        stream_ir(text.encode(), [*target_flags("cpu"), *FLAGS["decode-data-tiling"]]), "plain", OF_A_HEAD
    )
    assert [write.bytes for write in found] == [2 * SLOTS * WIDTH * 4]
    assert "encode" in found[0].by


PROMPTS = (512, 1024, 2048)


def prompt(tokens: int, group: int = 3) -> Case:
    return Case(1, 3, group, tokens, tokens, WIDTH, WIDTH, causal=True)


class Sizes:
    """The index values of a function of the stream IR, each loop's counter at its last step."""

    def __init__(self, body: str) -> None:
        self._made = dict(re.findall(r"(%[\w#]+) = arith\.(.+?) : index", body))
        loops = re.findall(r"scf\.for (%\w+) = %\w+ to (%\w+) step (%\w+)", body)
        self._loops = {counter: (end, step) for counter, end, step in loops}

    def __getitem__(self, name: str) -> int:
        if name in self._loops:
            end, step = self._loops[name]
            return self[end] - self[step]
        operation, *operands = self._made[name].replace(",", "").split()
        if operation == "constant":
            return int(operands[0])
        x, y = (self[operand] for operand in operands)
        return {"addi": x + y, "subi": x - y, "muli": x * y, "minui": min(x, y), "minsi": min(x, y)}[operation]


def temporaries(ir_text: str, function: str) -> int:
    """Bytes of all temporaries of a function's last step of its loops."""
    last = ir_text.rpartition("// -----// IR Dump After ScheduleAllocationPass")[2]
    body = last[last.index(f"util.func public @{function}(") :].split("util.func", 2)[1]
    sizes = Sizes(body)
    slices = re.findall(r"\[\d+, \d+\] = (%[\w#]+)", body)
    assert slices, body
    return sum(sizes[size] for size in slices)


@pytest.mark.parametrize("flags", FLAGS)
def test_prefill_takes_memory_in_proportion_to_the_prompt(flags: str) -> None:
    text = "".join(prompt(tokens).function(f"prefill_{tokens}") for tokens in PROMPTS)
    ir_text = stream_ir(lowered(text, 128), [*target_flags("cpu"), *FLAGS[flags]])
    taken = [temporaries(ir_text, f"prefill_{tokens}") for tokens in PROMPTS]
    # logits and weights of 9 heads and 128 queries, in f32, and a few blocks of results
    for tokens, found in zip(PROMPTS, taken, strict=True):
        logits = 9 * 128 * tokens * 4
        assert 2 * logits <= found <= 2 * logits + 4 * 9 * 128 * WIDTH * 4
    assert taken[2] - taken[1] == 2 * (taken[1] - taken[0])


def test_the_program_grows_with_neither_the_prompt_nor_the_layers() -> None:
    def layers(name: str, count: int, tokens: int) -> str:
        one = prompt(tokens, 1).function(name)
        op = re.search(r"%out = .*?-> (tensor<\S+>)", one, re.DOTALL)
        assert op is not None
        more = "".join(
            f"\n  {op[0]}".replace("%out", f"%out{i + 1}").replace("(%q,", f"(%out{i}," if i else "(%out,")
            for i in range(count - 1)
        )
        return one.replace(op[0], op[0] + more).replace("return %out ", f"return %out{count - 1} ")

    def executables(text: str) -> int:
        ir_text = stream_ir(lowered(text, 128), target_flags("cpu"))
        last = ir_text.rpartition("// -----// IR Dump After ScheduleAllocationPass")[2]
        return len(re.findall(r"stream\.executable private", last))

    lines = [len(lowered(prompt(tokens).function("f"), 128).splitlines()) for tokens in PROMPTS]
    assert len(set(lines)) == 1
    assert executables(layers("f", 2, 512)) == executables(layers("f", 4, 512))


def test_the_lowered_op_keeps_the_location() -> None:
    text = re.sub(
        r'("kv\.attention".*?-> tensor<\S+>)',
        r'\1 loc("model.py":7:3)',
        CASES["prefill_29"].function("f"),
        flags=re.DOTALL,
    )
    places = set()

    def visit(op: ir.Operation) -> ir.WalkResult:
        if op.name in ("scf.for", "linalg.generic", "tensor.insert_slice"):
            places.add(source_line(op.location))
        return ir.WalkResult.ADVANCE

    run_pass(text).operation.walk(visit)
    assert places == {"model.py:7:3"}


def test_a_block_has_a_token() -> None:
    with pytest.raises(ValueError, match="block must be at least 1, got 0"):
        run_pass(CASES["prefill_29"].function("f"), 0)
