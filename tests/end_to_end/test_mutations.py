"""A wrong program is noticed: mutations of the compiled program make the comparison with the oracle fail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from compiled import TOLERANCE, prompts_of, tiny_llama
from indexed_decoders import INDEXED
from numpy.typing import NDArray
from random_decoders import PLAINEST, VOCABULARY, drawn
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
from snapcc.runtime.engine import Program
from snapcc.runtime.generation import generate
from snapcc.runtime.reference import Reference
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


def _set(module: ir.Operation, function: str, name: str, **changes: int) -> None:
    """Adds to attributes of every op of a name in a function, of which there must be one."""
    found = [v.operation for v in body(functions(module)[function]).operations if v.operation.name == name]
    assert found, name
    for op in found:
        for attribute, by in changes.items():
            op.attributes[attribute] = index_attribute(integer(op, attribute) + by)


def see_the_padding(module: ir.Operation) -> None:
    """Prefill's attention is not causal: a short prompt sees what stands behind it."""
    for view in body(functions(module)["prefill_16"]).operations:
        if view.operation.name == "kv.attention":
            view.operation.attributes["causal"] = ir.BoolAttr.get(False)


def forget_a_query(module: ir.Operation) -> None:
    """The observation window is one query short."""
    _set(module, "prefill_48", "kv.topk_select", window=-1)


def see_less(module: ir.Operation) -> None:
    """Extend's queries see one recent token less, and a selected slot that is empty."""
    _set(module, "extend_6", "kv.visible_extend", ring=-1, selected=1)


def write_elsewhere(module: ir.Operation) -> None:
    """Extend puts its tokens where there is a sink less and the ring is one longer: seen by what comes after it."""
    _set(module, "extend_20", "kv.ring_extend", sink=-1, ring=1)


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


@pytest.mark.parametrize("change", [shift_slots, hide_a_slot, misplace_a_row], ids=lambda c: c.__name__)
def test_the_comparison_notices(
    change: Callable[[ir.Operation], None], llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = pipelines.apply_policy
    monkeypatch.setattr(pipelines, "apply_policy", lambda *given: [*right(*given), Mutate(change)])
    artifact = snapcc.compile(llama, tmp_path / "out.snapcc", **OPTIONS)
    assert not holds(artifact, prompts_of((5, 20, 40), 256), 16)


def _fed(program: Program, reference: Reference, tokens: list[int]) -> int:
    """Takes tokens through decode alone, in row 1; their number."""
    program.reset(1)
    for position, token in enumerate(tokens):
        _step(program, token, position)
    reference.prefill(tokens[:1])
    for token in tokens[1:]:
        reference.decode(token)
    return len(tokens)


def _step(program: Program, token: int, position: int) -> NDArray[np.float32]:
    logits: NDArray[np.float32] = program.decode([0, token, 0], [0, position, 0], [False, True, False])[1]
    return logits


def _of_a_prompt(program: Program, reference: Reference) -> tuple[Logits, Logits]:
    (prompt,) = prompts_of((5,), 256)
    return program.prefill(prompt, 1), reference.prefill(prompt)


def _behind_a_selection(program: Program, reference: Reference) -> tuple[Logits, Logits]:
    (prompt,) = prompts_of((40,), 256)
    program.prefill(prompt, 1)
    reference.prefill(prompt)
    return _step(program, 7, 40), reference.decode(7)


def _of_an_extend(program: Program, reference: Reference) -> tuple[Logits, Logits]:
    fed, more = prompts_of((11, 5), 256)
    return program.extend(more, 1, _fed(program, reference, fed)), reference.extend(more)


def _behind_an_extend(program: Program, reference: Reference) -> tuple[Logits, Logits]:
    fed, more = prompts_of((3, 18), 256)
    program.extend(more, 1, _fed(program, reference, fed))
    reference.extend(more)
    return _step(program, 7, 21), reference.decode(7)


Logits = NDArray[np.float32]
OWN_FUNCTIONS = {
    see_the_padding: _of_a_prompt,
    forget_a_query: _behind_a_selection,
    see_less: _of_an_extend,
    write_elsewhere: _behind_an_extend,
}
"""Mutations that each change a function of their own, so that one program has them all, and what shows them."""


@pytest.fixture(scope="module", params=[False, True], ids=["right", "wrong"])
def many_lengths(
    request: pytest.FixtureRequest, llama: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, bool]:
    """An artifact with every function, as it is and with the mutations in each of them but decode."""
    wrong, folder = bool(request.param), tmp_path_factory.mktemp("many")
    options = OPTIONS | {"prompts": (16, 48), "extends": (6, 20)}
    right = pipelines.apply_policy
    with pytest.MonkeyPatch.context() as patch:
        if wrong:
            passes = [Mutate(change) for change in OWN_FUNCTIONS]
            patch.setattr(pipelines, "apply_policy", lambda *given: [*right(*given), *passes])
        return snapcc.compile(llama, folder / "out.snapcc", **options), wrong


def test_generation_is_compared(many_lengths: tuple[Path, bool]) -> None:
    artifact, wrong = many_lengths
    assert holds(artifact, prompts_of((5, 20, 40), 256), 16) != wrong


@pytest.mark.parametrize("change", OWN_FUNCTIONS, ids=lambda c: c.__name__)
def test_prompts_and_extends_are_compared(
    change: Callable[[ir.Operation], None], many_lengths: tuple[Path, bool]
) -> None:
    artifact, wrong = many_lengths
    found, wanted = OWN_FUNCTIONS[change](snapcc.load(artifact), oracle(load_artifact(artifact)))
    assert (np.abs(found - wanted).max() > TOLERANCE * max(1.0, float(np.abs(wanted).max()))) == wrong


REACHES = (5, 17, -16)
"""A window that is a ring of its own, one that is applied by the slots' positions, and chunks: a layer of each."""


@pytest.mark.parametrize("layer", range(len(REACHES)))
def test_a_window_or_chunk_that_is_one_off_is_noticed(
    layer: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def change(module: ir.Operation) -> None:
        operations = [view.operation for view in body(functions(module)["decode"]).operations]
        attentions = [op for op in operations if op.name == "kv.attention"]
        attribute, by = [("sliding_window", -1), ("sliding_window", 1), ("chunk", 1)][layer]
        attentions[layer].attributes[attribute] = index_attribute(integer(attentions[layer], attribute) + by)

    right = pipelines.apply_policy
    monkeypatch.setattr(pipelines, "apply_policy", lambda *given: [Mutate(change), *right(*given)])
    program = drawn(replace(PLAINEST, reaches=REACHES)).program()
    artifact = snapcc.compile(program, tmp_path / "out.snapcc", **OPTIONS)
    assert not holds(artifact, prompts_of((5, 20, 40), VOCABULARY), 16)


@pytest.mark.parametrize("wrong", [None, {"count": -1}, {"count": 1}], ids=["right", "one less", "one more"])
def test_an_index_that_chooses_one_key_less_or_more_is_noticed(
    wrong: dict[str, int] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if wrong is not None:
        right = pipelines.apply_policy
        change = Mutate(lambda module: _set(module, "decode", "kv.topk_mask", **wrong))
        monkeypatch.setattr(pipelines, "apply_policy", lambda *given: [*right(*given), change])
    _, sieve = INDEXED
    artifact = snapcc.compile(sieve.program(), tmp_path / "out.snapcc", **OPTIONS)
    assert holds(artifact, prompts_of((5, 20, 40), sieve.vocabulary), 16) == (wrong is None)


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
