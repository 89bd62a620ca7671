"""However a decoder keeps and grows its caches, the compiled program equals the oracle, or the decoder is refused."""

from pathlib import Path

import pytest
import torch
from compiled import Stepwise, assert_equals_oracle, place_of
from decoders import PAST, QUERY, Decoder, Refused
from spellings import SPELLINGS, UNSAFE

import snapcc
from snapcc.compiler.diagnostics import Refusal
from snapcc.compiler.dialect.policy import Policy
from snapcc.runtime.reference import Reference
from snapcc.runtime.verification import compare

OPTIONS = {
    "sink": 2,
    "recent": 8,
    "topk": 4,
    "window": 4,
    "batch": 3,
    "prompts": (24,),
    "extends": (),
    "target": "host",
}


@pytest.mark.parametrize("decoder", SPELLINGS, ids=lambda d: d.name)
def test_equals_the_oracle(decoder: Decoder, tmp_path: Path) -> None:
    artifact = snapcc.compile(decoder.program(), tmp_path / "out.snapcc", **OPTIONS)
    reference = Reference(decoder.program(), decoder.inputs, Policy(2, 8, 4, 4))
    assert_equals_oracle(artifact, [(1, 9, 24)], 20, reference)


def test_a_stack_of_a_fixed_batch_equals_the_oracle(tmp_path: Path) -> None:
    """Such a program decodes only, since a prompt is one row's. It has as many rows as layers, and as KV heads."""
    shelf = next(decoder for decoder in SPELLINGS if decoder.name == "shelf")
    shapes = ({1: QUERY}, {1: QUERY}, {4: PAST})
    program = torch.export.export(shelf.module(), shelf.arguments(2, 3, 5), dynamic_shapes=shapes, strict=False)
    artifact = snapcc.compile(program, tmp_path / "out.snapcc", sink=2, recent=8, topk=4, target="host")
    rows = assert_equals_oracle(artifact, [(1, 24)], 10)
    # rows are told apart from layers, and from keys and values
    one = Stepwise(Reference(shelf.program(), shelf.inputs, Policy(2, 8, 4, 4)))
    assert all(compare(row, one, "f32").holds for row in rows)


@pytest.mark.parametrize("refused", UNSAFE, ids=lambda d: d.name)
def test_what_is_no_growth_is_refused(refused: Refused, tmp_path: Path) -> None:
    with pytest.raises(Refusal) as caught:
        snapcc.compile(refused.decoder.program(), tmp_path / "out.snapcc", **OPTIONS)
    place_of(caught.value)
    assert refused.op in str(caught.value)
