"""A wrong program is noticed: mutations of the compiled program make the comparison with the oracle fail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from compiled import TOLERANCE, prompts_of, tiny_llama
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch_mlir import ir

import snapcc
from snapcc.artifact import load as load_artifact
from snapcc.compiler.analysis.functions import body, functions
from snapcc.compiler.dialect.kv import index_attribute, integer
from snapcc.compiler.dialect.types import vtensor
from snapcc.compiler.passes import lower_topk_select, pipelines
from snapcc.compiler.passes.torch_builder import TorchBuilder
from snapcc.oracle import oracle
from snapcc.runtime.generation import generate
from snapcc.runtime.verification import compare

OPTIONS = {
    "sink": 2,
    "recent": 8,
    "topk": 4,
    "window": 4,
    "batch": 3,
    "prompts": (48,),
    "extends": (),
    "target": "host",
}


def shift_slots(module: ir.Operation) -> None:
    """The ring is one slot short: the last of it is never written."""
    for view in body(functions(module)["decode"]).operations:
        if view.operation.name == "kv.slots":
            view.operation.attributes["ring"] = index_attribute(integer(view.operation, "ring") - 1)


def hide_a_slot(module: ir.Operation) -> None:
    """The boundary of the visible set is one off: the last slot of the ring counts as a selected one."""
    for view in body(functions(module)["decode"]).operations:
        op = view.operation
        if op.name == "kv.visible":
            op.attributes["ring"] = index_attribute(integer(op, "ring") - 1)
            op.attributes["selected"] = index_attribute(integer(op, "selected") + 1)


def misplace_a_row(module: ir.Operation) -> None:
    """The second row's query is rotated as if it stood one position later; its slot stays right."""
    function = functions(module)["decode"]
    positions = body(function).arguments[1]
    first = body(function).operations[0].operation
    builder = TorchBuilder(first)
    one = ir.Operation.create(
        "torch.vtensor.literal",
        results=[vtensor([3], "si64")],
        attributes={"value": ir.Attribute.parse("dense<[0, 1, 0]> : tensor<3xsi64>")},
        loc=first.location,
        ip=ir.InsertionPoint(first),
    ).results[0]
    moved = builder.op("torch.aten.add.Tensor", [positions, one, builder.integer(1)], vtensor([3], "si64"))
    for use in list(positions.uses):
        user = use.owner.operation
        if user.name not in ("kv.slots", "kv.visible") and user != moved.owner.operation:
            user.operands[use.operand_number] = moved


@dataclass(frozen=True)
class Mutate:
    """A pass that makes a program wrong."""

    change: Callable[[ir.Operation], None]
    name: ClassVar[str] = "test-mutate"

    def run(self, module: ir.Operation) -> None:
        self.change(module)


def holds(artifact: Path, prompts: list[list[int]], new_tokens: int) -> bool:
    """Whether every row equals the oracle."""
    reference = oracle(load_artifact(artifact))
    found = [compare(row, reference, "f32") for row in generate(snapcc.load(artifact), prompts, new_tokens)]
    return all(c.difference <= TOLERANCE * max(1.0, c.largest) and c.agreeing == c.steps for c in found)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    tiny_llama(folder)
    return folder


@pytest.mark.parametrize(
    "change", [None, shift_slots, hide_a_slot, misplace_a_row], ids=lambda c: getattr(c, "__name__", "none")
)
def test_the_comparison_notices(
    change: Callable[[ir.Operation], None] | None, llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = pipelines.apply_policy
    if change is not None:
        monkeypatch.setattr(pipelines, "apply_policy", lambda *given: [*right(*given), Mutate(change)])
    artifact = snapcc.compile(llama, tmp_path / "out.snapcc", **OPTIONS)
    assert holds(artifact, prompts_of((5, 20, 40), 256), 16) == (change is None)


class Twins(nn.Module):
    """Tokens 2i and 2i + 1 have the same key and different values; every product of keys is exact in f32."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.keys = nn.Embedding(32, 8), nn.Embedding(32, 8)
        self.values, self.head = nn.Embedding(32, 8), nn.Linear(8, 32, bias=False)
        with torch.no_grad():
            whole = torch.randint(-1, 2, (16, 8)).float()
            self.keys.weight.copy_(whole.repeat_interleave(2, 0))

    def forward(self, ids: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q = self.keys(ids)
        k, v = torch.cat((k, self.keys(ids)), 1), torch.cat((v, self.values(ids)), 1)
        hidden = torch.ones(k.shape[1], k.shape[1], dtype=torch.bool).triu(1)[k.shape[1] - ids.shape[1] :]
        weights = (q @ k.mT).masked_fill(hidden, float("-inf")).softmax(-1)
        return self.head(torch.tanh(self.tokens(ids) + weights @ v)), k, v


def twins() -> ExportedProgram:
    torch.manual_seed(3)
    rows, query, past = Dim("rows", min=1, max=8), Dim("query", min=1, max=64), Dim("past", min=0, max=127)
    example = (torch.zeros(2, 3, dtype=torch.long), torch.zeros(2, 5, 8), torch.zeros(2, 5, 8))
    shapes = ({0: rows, 1: query}, {0: rows, 1: past}, {0: rows, 1: past})
    return torch.export.export(Twins().eval().requires_grad_(False), example, dynamic_shapes=shapes, strict=False)


def prefer_later_ties(text: str) -> str:
    """The first of the equal scores is passed over."""
    right = "    %equal_taken = arith.minsi %equal_so_far, %left : i32"
    assert right in text
    return text.replace(
        right,
        "    %later = arith.subi %equal_so_far, %one_i32 : i32\n"
        "    %at_most = arith.minsi %later, %left : i32\n"
        "    %equal_taken = arith.maxsi %at_most, %zero_i32 : i32",
    )


@pytest.mark.parametrize("wrong", [False, True])
def test_the_comparison_notices_the_tie_rule(wrong: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if wrong:
        right = lower_topk_select._positions
        monkeypatch.setattr(lower_topk_select, "_positions", lambda *given: prefer_later_ties(right(*given)))
    artifact = snapcc.compile(twins(), tmp_path / "out.snapcc", **OPTIONS | {"pool": "none"})
    # many candidates, few distinct keys: the K-th largest score has several positions
    generator = np.random.default_rng(5)
    prompts = [[int(t) for t in generator.integers(0, 8, 40)] for _ in range(3)]
    assert holds(artifact, prompts, 6) == (not wrong)
