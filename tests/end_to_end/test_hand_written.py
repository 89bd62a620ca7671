"""Decoders written by hand: those whose axis is provable equal the oracle, the others are refused at their line."""

from pathlib import Path

import numpy as np
import pytest
from attention_decoders import BLENDED, CROSSED, FORMS
from compiled import TOLERANCE, assert_equals_oracle, place_of, prompts_of
from decoders import GOOD, Decoder, Refused
from indexed_decoders import INDEXED, NO_INDEX
from latent_decoders import LATENT
from plain_decoders import REFUSED

import snapcc
from snapcc.compiler.diagnostics import Refusal
from snapcc.compiler.dialect.policy import Policy
from snapcc.runtime.reference import Reference

OPTIONS = {"sink": 2, "recent": 8, "topk": 4, "window": 4, "batch": 3, "prompts": (48,), "extends": (8,)}


@pytest.mark.parametrize("decoder", [*GOOD, *LATENT, *INDEXED], ids=lambda d: d.name)
def test_equals_the_oracle(decoder: Decoder, tmp_path: Path) -> None:
    # one is planned too
    target = "sn40l" if decoder is GOOD[0] else "host"
    artifact = snapcc.compile(decoder.program(), tmp_path / "out.snapcc", target=target, **OPTIONS)
    reference = Reference(decoder.program(), decoder.inputs, Policy(2, 8, 4, 4))
    assert_equals_oracle(artifact, [(1, 11, 48)], 24, reference)
    assert_extend_equals_the_oracle(artifact, reference)


@pytest.mark.parametrize("decoder", FORMS, ids=lambda d: d.name)
def test_forms_of_attention_equal_the_oracle(decoder: Decoder, tmp_path: Path) -> None:
    artifact = snapcc.compile(decoder.program(), tmp_path / "out.snapcc", target="host", **OPTIONS | {"extends": ()})
    assert_equals_oracle(artifact, [(1, 11, 48)], 24, Reference(decoder.program(), decoder.inputs, Policy(2, 8, 4, 4)))


def assert_extend_equals_the_oracle(artifact: Path, reference: Reference) -> None:
    """Behind a short prompt and behind one with selected tokens; less than a compiled length, and several."""
    program = snapcc.load(artifact)
    for prompt in prompts_of((3, 40), program.spec.vocabulary):
        program.prefill(prompt, 1)
        reference.prefill(prompt)
        length = len(prompt)
        for more in prompts_of((7, 21), program.spec.vocabulary):
            found, wanted = program.extend(more, 1, length), reference.extend(more)
            length += len(more)
            assert np.abs(found - wanted).max() <= TOLERANCE * max(1.0, float(np.abs(wanted).max())), length


@pytest.mark.parametrize("refused", [*REFUSED, CROSSED, *BLENDED], ids=lambda d: d.name)
def test_an_axis_that_is_not_provably_safe_is_refused(refused: Refused, tmp_path: Path) -> None:
    target = tmp_path / "out.snapcc"
    with pytest.raises(Refusal) as caught:
        snapcc.compile(refused.decoder.program(), target, **OPTIONS)
    name, line = place_of(caught.value)
    file, first, last = refused.lines
    assert name == file, caught.value
    called_from_here = first <= line <= last
    assert called_from_here or not refused.op, caught.value
    assert refused.op in str(caught.value)
    assert not target.exists()


@pytest.mark.parametrize("refused", NO_INDEX, ids=lambda d: d.name)
def test_an_index_that_slots_cannot_have_is_refused(refused: Refused, tmp_path: Path) -> None:
    with pytest.raises(Refusal, match=refused.because) as caught:
        snapcc.compile(refused.decoder.program(), tmp_path / "out.snapcc", **OPTIONS)
    file, first, last = refused.lines
    name, line = place_of(caught.value)
    assert name == file
    assert first <= line <= last, caught.value
