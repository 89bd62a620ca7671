"""Decoders whose caches have a fixed length, however they write them: equal to the oracle, or refused at their line."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from compiled import Stepwise, assert_equals_oracle, place_of, tiny_llama
from fixed_decoders import FIXED, OTHERWISE, REFUSED_FIXED, Fixed, IndexCopy, buffered
from transformers.integrations.executorch import TorchExportableModuleForDecoderOnlyLM

import snapcc
from snapcc import cli
from snapcc.arguments import UsageError
from snapcc.artifact import load as load_artifact
from snapcc.compiler.diagnostics import Refusal
from snapcc.compiler.dialect.policy import Policy
from snapcc.frontend import load_model
from snapcc.oracle import oracle
from snapcc.runtime.generation import Row
from snapcc.runtime.reference import FixedReference, ProgramInputs, Reference
from snapcc.runtime.verification import compare

OPTIONS = {"sink": 2, "recent": 8, "target": "host"}


def _run(decoder: Fixed, folder: Path) -> list[Row]:
    """Rows of a compiled decoder, equal to its oracle, past several wraps of its ring."""
    artifact = snapcc.compile(decoder.program(), folder / "out.snapcc", batch=3, **OPTIONS)
    program = load_artifact(artifact)
    assert program.manifest.policy.slots == decoder.slots
    assert not program.manifest.program().prompts
    right = oracle(program)
    assert isinstance(right, FixedReference)
    return assert_equals_oracle(artifact, [(1, 6, 19)], 12, right)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> list[Row]:
    """Rows of the first of the spellings."""
    return _run(FIXED[0], tmp_path_factory.mktemp("first"))


@pytest.mark.parametrize("decoder", FIXED[1:], ids=lambda d: d.name)
def test_every_spelling_equals_its_oracle_and_the_first(decoder: Fixed, first: list[Row], tmp_path: Path) -> None:
    for row, one in zip(_run(decoder, tmp_path), first, strict=True):
        assert row.tokens == one.tokens
        assert np.abs(np.subtract(row.logits, one.logits)).max() < 1e-5


@pytest.mark.parametrize("group", OTHERWISE, ids=lambda group: group[0].name)
def test_windows_biases_and_sinks_equal_the_oracle(group: tuple[Fixed, ...], tmp_path: Path) -> None:
    rows = _run(group[0], tmp_path)
    plain = FixedReference(FIXED[0].program(), FIXED[0].inputs, Policy(2, 8, 5, 4))
    assert not compare(rows[-1], plain, "f32").holds, "it would not be noticed"
    for other in group[1:]:
        one = FixedReference(other.program(), other.inputs, Policy(2, 8, 4, 4))
        assert all(compare(row, one, "f32").holds for row in rows), other.name


def test_caches_and_a_counter_in_buffers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "model.pt"
    torch.export.save(buffered(), model)
    with pytest.raises(UsageError, match=r"exported for 3 rows, and --batch 1 was asked for: leave --batch out"):
        snapcc.compile(model, tmp_path / "out.snapcc", batch=1, target="host")
    artifact = snapcc.compile(model, tmp_path / "out.snapcc", target="host")
    assert load_artifact(artifact).manifest.batch == 3
    rows = assert_equals_oracle(artifact, [(1, 6, 19)], 12)
    # the same decoder with its caches as inputs
    plain = Fixed("index-copy", IndexCopy, places=())
    right = FixedReference(plain.program(), plain.inputs, load_artifact(artifact).manifest.policy)
    assert all(compare(row, right, "f32").holds for row in rows)
    assert cli.main(["verify", str(artifact), "--max-new-tokens", "8", "--quiet"]) == 0
    assert "equal to PyTorch" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch._dynamo's, about transformers' own code
def test_a_static_cache_of_transformers(tmp_path: Path) -> None:
    model = tiny_llama(tmp_path / "llama")
    model.generation_config.cache_implementation = "static"
    wrapper = TorchExportableModuleForDecoderOnlyLM(model, batch_size=1, max_cache_len=14)
    program = wrapper.export(input_ids=torch.zeros(1, 1, dtype=torch.long), cache_position=torch.tensor([0]))
    artifact = snapcc.compile(program, tmp_path / "out.snapcc", target="host")
    (row,) = assert_equals_oracle(artifact, [(19,)], 12)
    assert load_artifact(artifact).manifest.policy.slots == 14
    # the same model with a cache that grows, token by token too
    grown = load_model(tmp_path / "llama")
    names = grown.input_names
    inputs = ProgramInputs(
        tokens=names.index("input_ids"),
        positions=names.index("position_ids"),
        caches=tuple((names.index(c.name), c.output_index, c.axis) for c in grown.caches),
        logits=grown.logits,
    )
    right = Stepwise(Reference(grown.program, inputs, load_artifact(artifact).manifest.policy))
    assert compare(row, right, "f32").holds


@pytest.mark.parametrize("decoder", [d for d in FIXED if d.name in ("by-rows", "ring")], ids=lambda d: d.name)
def test_where_everything_fits_the_oracle_is_the_program(decoder: Fixed) -> None:
    tokens = np.random.default_rng(1).integers(0, 61, decoder.slots).tolist()
    one = FixedReference(decoder.program(), decoder.inputs, None)
    module, caches = decoder.module(), [(torch.zeros(1, 4, decoder.length, 8),) * 2] * 2
    for position, token in enumerate(tokens):
        places = torch.full([max(extent, 1) for extent in decoder.places], position)
        logits, caches = module(torch.tensor([[token]]), places, caches)
        right = one.prefill([token]) if position == 0 else one.decode(token)
        assert np.allclose(logits[0, 0].numpy(), right, atol=1e-5)


@pytest.mark.parametrize("refused", REFUSED_FIXED, ids=lambda d: d.decoder.name)
def test_what_is_not_provable_is_refused(refused: Any, tmp_path: Path) -> None:
    target = tmp_path / "out.snapcc"
    with pytest.raises(Refusal, match=refused.because) as caught:
        snapcc.compile(refused.decoder.program(), target, batch=2)
    name, line = place_of(caught.value)
    file, lines = refused.lines
    assert name == file, caught.value
    assert line in lines, caught.value
    assert not target.exists()
