"""The plan of a decoder that the compiler itself has lowered."""

from __future__ import annotations

from pathlib import Path

import pytest
from lowered import parse
from plain_decoders import PLAIN
from static_program import Shapes, program
from torch_mlir import ir

import snapcc
from snapcc.compiler.dialect.policy import Policy
from snapcc.compiler.passes import manager
from snapcc.compiler.passes.pipelines import lower_to_linalg
from snapcc.sn40l_target.checker import check
from snapcc.sn40l_target.machine import SN40L
from snapcc.sn40l_target.plan import plan

POLICY = Policy(sink=2, recent=6, topk=4, window=3)


def lowered(shapes: Shapes) -> ir.Module:
    module = parse(program(shapes, POLICY))
    manager.run(module, lower_to_linalg())
    return module


@pytest.mark.parametrize("tokens", [24, 300])
def test_a_lowered_decoder_is_planned_with_its_caches_in_place(tokens: int) -> None:
    shapes = Shapes(n=tokens)
    module = lowered(shapes)
    found = plan(module)
    assert check(module, found) == []
    assert set(found.functions) == {"decode", f"prefill_{tokens}", "reset"}
    assert [c for c in found.copies if c.source.startswith("state:") or c.target.startswith("state:")] == []
    caches = {t.name: t.bytes for t in found.tensors if t.kind == "cache"}
    assert caches == {
        f"state:{layer}.{part}": 4 * shapes.b * shapes.h * POLICY.slots * shapes.d
        for layer in range(shapes.layers)
        for part in "kv"
    }
    assert {t.name for t in found.tensors if t.kind == "state"} == {"state:selected_count"}


def test_the_loop_of_prefills_attention_has_scratch_for_one_block_of_queries() -> None:
    shapes = Shapes(n=300)
    found = plan(lowered(shapes))
    scratch = [t.bytes for t in found.tensors if t.kind == "scratch" and t.of is None]
    # blocks of 128 queries: the scores and the weights of one block over all keys, and no more than one of each more
    scores = 4 * shapes.h * shapes.g * 128 * 300
    assert len(scratch) == shapes.layers
    assert all(2 * scores <= bytes_ <= 3 * scores for bytes_ in scratch)


def test_extend_copies_no_cache(tmp_path: Path) -> None:
    """It reads one row of each, joined with the new tokens, and writes in place."""
    parts = {"sink": 2, "recent": 6, "topk": 4, "window": 3, "batch": 3, "prompts": (24,), "extends": (5, 200)}
    text = snapcc.compile(PLAIN.program(), tmp_path / "out.mlir", compile_to="linalg", **parts).read_text()
    module = parse(text)
    found = plan(module)
    assert check(module, found) == []
    assert {"extend_5", "extend_200"} < set(found.functions)
    assert [c for c in found.copies if c.source.startswith("state:") or c.target.startswith("state:")] == []


def test_a_lowered_decoder_is_planned_where_sram_is_short() -> None:
    module = lowered(Shapes())
    small = SN40L.with_capacities({"SRAM": 4096})
    found = plan(module, small, patience=20)
    assert check(module, found) == []
    assert {t.tier for t in found.tensors if not t.shared} == {"SRAM", "HBM"}
