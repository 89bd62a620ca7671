"""However a decoder keeps and grows its caches, the compiled program equals the oracle, or the decoder is refused."""

import re
from pathlib import Path

import pytest
import torch
from compiled import assert_equals_oracle
from decoders import Decoder, Refused
from spellings import SPELLINGS, UNSAFE

import snapcc
from snapcc.compiler.diagnostics import Refusal
from snapcc.compiler.dialect.policy import Policy
from snapcc.runtime.reference import Reference

OPTIONS = {"sink": 2, "recent": 8, "topk": 4, "window": 4, "batch": 3, "prompts": (24,), "target": "host"}


@pytest.mark.parametrize("decoder", SPELLINGS, ids=lambda d: d.name)
def test_equals_the_oracle(decoder: Decoder, tmp_path: Path) -> None:
    model = tmp_path / "model.pt2"
    torch.export.save(decoder.program(), model)
    artifact = snapcc.compile(model, tmp_path / "out.snapcc", **OPTIONS)
    reference = Reference(decoder.program(), decoder.inputs, Policy(2, 8, 4, 4))
    assert_equals_oracle(artifact, [(1, 9, 24)], 20, reference)


@pytest.mark.parametrize("refused", UNSAFE, ids=lambda d: d.name)
def test_what_is_no_growth_is_refused(refused: Refused, tmp_path: Path) -> None:
    with pytest.raises(Refusal) as caught:
        snapcc.compile(refused.decoder.program(), tmp_path / "out.snapcc", **OPTIONS)
    message = str(caught.value)
    assert re.match(r"^.+\.py:\d+:\d+: error: .+; .+$", message), message
    assert refused.op in message, message
