"""A whole decoder from the static phase to IREE: three modules over the same buffers, against NumPy."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from lowered import parse
from safetensors.numpy import save_file
from static_program import Shapes, program, weights
from torch_mlir import ir

from snapcc.compiler.dialect.policy import Policy
from snapcc.compiler.passes import manager
from snapcc.compiler.passes.lower_split import split
from snapcc.compiler.passes.lower_state import signature
from snapcc.compiler.passes.pipelines import lower_to_iree, lower_to_linalg
from snapcc.runtime.engine import FunctionSpec, Program, ProgramSpec, StateSpec, TensorSpec
from snapcc.runtime.iree_compile import compile_module, stream_ir, target_flags
from snapcc.runtime.selection import select

SHAPES = Shapes()
POLICY = Policy(sink=2, recent=6, topk=4, window=3)
GROUPS = {"decode": ["decode"], "prompt": ["prefill_24", "reset"]}


def to_linalg(shapes: Shapes, policy: Policy) -> ir.Module:
    module = parse(program(shapes, policy))
    manager.run(module, lower_to_linalg())
    return module


def to_iree(module: ir.Module) -> dict[str, bytes]:
    manager.run(module, lower_to_iree())
    return {name: part.operation.get_asm().encode() for name, part in split(module, GROUPS).items()}


@pytest.fixture(scope="module")
def values() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {name: (rng.standard_normal(shape) * 0.3).astype(np.float32) for name, shape in weights(SHAPES).items()}


@pytest.fixture(scope="module")
def compiled(values: dict[str, np.ndarray], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ProgramSpec]:
    folder = tmp_path_factory.mktemp("program")
    module = to_linalg(SHAPES, POLICY)
    functions = {}
    for name, entry in signature(module.operation).items():
        file = next(group for group, names in GROUPS.items() if name in names)
        functions[name] = FunctionSpec(
            f"{file}.vmfb",
            tuple(TensorSpec(**tensor) for tensor in entry["arguments"]),
            tuple(TensorSpec(**tensor) for tensor in entry["results"]),
            tuple(StateSpec(**state) for state in entry["states"]),
        )
    for name, source in to_iree(module).items():
        compile_module(source, folder / f"{name}.vmfb", target_flags("cpu"))
    save_file(values, folder / "weights.safetensors")
    return folder, ProgramSpec(functions, SHAPES.b, SHAPES.v, 4096, "cpu")


def softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


class Reference:
    """The decoder for one row with all its tokens kept, where eviction is masking."""

    def __init__(self, values: dict[str, np.ndarray]) -> None:
        self.w = values
        self.keys: list[list[np.ndarray]] = [[] for _ in range(SHAPES.layers)]
        self.values: list[list[np.ndarray]] = [[] for _ in range(SHAPES.layers)]
        self.selected = np.zeros((SHAPES.layers, SHAPES.h, 0), np.int64)

    def project(self, x: np.ndarray, layer: int) -> np.ndarray:
        """x [T, E] -> queries [H, G, T, D]; its keys and values are kept."""
        s, w = SHAPES, self.w
        self.keys[layer] += list((x @ w[f"{layer}.k"]).reshape(-1, s.h, s.d))
        self.values[layer] += list((x @ w[f"{layer}.v"]).reshape(-1, s.h, s.d))
        return (x @ w[f"{layer}.q"]).reshape(-1, s.h, s.g, s.d).transpose(1, 2, 0, 3)

    def attend(self, x: np.ndarray, q: np.ndarray, visible: np.ndarray, layer: int) -> tuple[np.ndarray, np.ndarray]:
        """Adds to x [T, E] what its queries see; visible [H, T, keys]. Also gives the logits [H, G, T, keys]."""
        k, v = np.array(self.keys[layer]), np.array(self.values[layer])
        logits = np.einsum("hgtd,chd->hgtc", q, k) * SHAPES.d**-0.5
        p = softmax(np.where(visible[:, None], logits, -np.inf))
        out = np.einsum("hgtc,chd->thgd", p, v).reshape(x.shape[0], -1)
        return x + out @ self.w[f"{layer}.o"], logits

    def prefill(self, tokens: np.ndarray) -> np.ndarray:
        x, length = self.w["embed"][tokens], len(tokens)
        causal = np.broadcast_to(np.tri(length, dtype=bool), (SHAPES.h, length, length))
        selected = []
        for layer in range(SHAPES.layers):
            x, logits = self.attend(x, self.project(x, layer), causal, layer)
            observed = logits[:, :, max(length - POLICY.window, 0) :].astype(np.float32)
            selected.append([select(of_head, length, POLICY) for of_head in observed])
        self.selected = np.array(selected, np.int64)
        return x[-1] @ self.w["embed"].T

    def decode(self, token: int) -> np.ndarray:
        x, t = self.w["embed"][[token]], len(self.keys[0])
        for layer in range(SHAPES.layers):
            visible = np.zeros((SHAPES.h, 1, t + 1), bool)
            visible[:, :, : POLICY.sink] = True
            visible[:, :, max(t - POLICY.recent + 1, 0) :] = True
            for h in range(SHAPES.h):
                visible[h, :, self.selected[layer, h]] = True
            x, _ = self.attend(x, self.project(x, layer), visible, layer)
        return x[0] @ self.w["embed"].T


def test_decoding_is_that_of_a_masked_full_cache(
    compiled: tuple[Path, ProgramSpec], values: dict[str, np.ndarray]
) -> None:
    """Rows at different positions, one of them idle at times, another replaced on the way.

    The logits alone are compared: states that share storage would be seen from the second step on.
    """
    folder, spec = compiled
    running = Program(folder, [folder / "weights.safetensors"], spec)
    rng = np.random.default_rng(1)
    rows = [Reference(values) for _ in range(SHAPES.b)]

    def prefill(row: int, length: int) -> None:
        tokens = rng.integers(0, SHAPES.v, length)
        rows[row] = Reference(values)
        np.testing.assert_allclose(running.prefill(tokens, row), rows[row].prefill(tokens), rtol=1e-4, atol=1e-4)

    for row, length in enumerate((3, SHAPES.n, POLICY.sink + POLICY.recent + 2)):
        prefill(row, length)
    for step in range(14):
        if step == 6:
            prefill(1, 9)
        if step == 10:
            running.reset(0)
            rows[0] = Reference(values)
        active = np.array([True, True, step % 3 != 1])
        tokens, positions = rng.integers(0, SHAPES.v, SHAPES.b), np.array([len(r.keys[0]) for r in rows])
        logits = running.decode(tokens, positions, active)
        for row in np.flatnonzero(active):
            want = rows[row].decode(tokens[row])
            np.testing.assert_allclose(logits[row], want, rtol=1e-4, atol=1e-4, err_msg=f"step {step}, row {row}")
        assert np.isfinite(logits).all()


def test_signature() -> None:
    found = signature(to_linalg(SHAPES, POLICY).operation)
    assert list(found) == ["decode", "prefill_24", "reset"]
    decode = found["decode"]
    assert decode["arguments"][0] == {"name": "tokens", "role": "tokens", "shape": [3], "dtype": "i64"}
    assert [a["dtype"] for a in decode["arguments"]] == ["i64", "i64", "i1"]
    assert decode["results"] == [{"shape": [3, 32], "dtype": "f32"}]
    order = ["selected_count", "0.k", "0.v", "1.k", "1.v"]
    assert all([s["name"] for s in entry["states"]] == order for entry in found.values())
    assert [s["stored"] for s in decode["states"]] == [False, True, True, True, True]
    assert found["reset"]["states"][1] == {"name": "0.k", "shape": [3, 2, 12, 8], "dtype": "f32", "stored": True}


def test_the_linalg_phase_parses_without_iree_ops() -> None:
    text = str(to_linalg(SHAPES, POLICY))
    parse(text)
    dialects = {name.split(".")[0] for name in re.findall(r"\b([a-z_]+\.[a-z_]+)\b", re.sub(r'"[^"]*\.py"', "", text))}
    assert not dialects & {"torch", "torch_c", "tm_tensor", "util", "iree_linalg_ext", "cf"}


def test_split_needs_known_functions() -> None:
    module = to_linalg(SHAPES, POLICY)
    with pytest.raises(ValueError, match="no function 'extend'; it has decode, prefill_24, reset"):
        split(module, {"more": ["extend"]})


# bytes -----------------------------------------------------------------------------------------------------------

WIDE = Shapes(b=3, layers=2, h=2, g=2, d=16, e=16, v=32, n=24)
WIDE_POLICY = Policy(sink=4, recent=508, topk=512, window=4)
CACHE_BYTES = WIDE.b * WIDE.h * WIDE_POLICY.slots * WIDE.d * 4

_CONSTANT = re.compile(r"(%\w+) = arith\.constant (\d+) : index")
_COPY = re.compile(r"stream\.cmd\.copy .*, (%\w+) : ")
_SLICE = re.compile(r"^\s+\[\d+, \d+\] = (%\w+)")
_ALLOCATION = re.compile(r"stream\.resource\.alloca\b.*\{(%\w+)\}")
_DISPATCH = re.compile(r"stream\.cmd\.dispatch @\w+::@(\w+)")
_READ = re.compile(r"^\s+ro %\w+\[.* for (%\w+)\]")


def moved(stream: str) -> list[tuple[str, int]]:
    """What a scheduled program copies, keeps temporarily or lays out anew, with the bytes of each."""
    text = stream.rpartition("// -----// IR Dump")[2]
    sizes = {name: int(value) for name, value in _CONSTANT.findall(text)}
    found, dispatch = [], ""
    for line in text.splitlines():
        for kind, pattern in (("copy", _COPY), ("temporary", _SLICE), ("temporary", _ALLOCATION)):
            match = pattern.search(line)
            if match and match[1] in sizes:
                found.append((kind, sizes[match[1]]))
        named = _DISPATCH.search(line)
        dispatch = named[1] if named else dispatch
        read = _READ.match(line)
        if read and ("encode" in dispatch or "memcpy" in dispatch):
            found.append((dispatch, sizes[read[1]]))
    assert any(size for _, size in found), "no allocation was found: has the form of IREE's stream IR changed?"
    return found


@pytest.mark.parametrize("flags", [(), ("--iree-opt-level=O3",)])
def test_no_cache_is_copied_or_doubled(flags: tuple[str, ...]) -> None:
    sources = to_iree(to_linalg(WIDE, WIDE_POLICY))
    for name, source in sources.items():
        found = moved(stream_ir(source, [*target_flags("cpu"), *flags]))
        assert max(size for _, size in found) < CACHE_BYTES, name


def test_a_slice_and_concat_is_found() -> None:
    cache = f"tensor<{WIDE.b}x{WIDE.h}x{WIDE_POLICY.slots}x{WIDE.d}xf32>"
    rest, row = cache.replace("1024", "1023"), cache.replace("1024", "1")
    source = f"""
func.func @decode(%row: {row}, %cache: {cache} {{iree.abi.output = 0 : index}}) -> {cache} {{
  %kept = tensor.extract_slice %cache[0, 0, 1, 0] [3, 2, 1023, 16] [1, 1, 1, 1] : {cache} to {rest}
  %new = tensor.concat dim(2) %kept, %row : ({rest}, {row}) -> {cache}
  return %new : {cache}
}}"""
    found = moved(stream_ir(source.encode(), target_flags("cpu")))
    assert max(size for _, size in found) > CACHE_BYTES // 2
