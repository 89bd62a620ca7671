"""The conditions under which a program was exported."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from frontend_decoders import VOCABULARY, export
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from snapcc.frontend import Decoder, FrontendError, from_program


class Branching(nn.Module):
    """A branch taken by two lengths together, and caches as a variable number of arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, 8)

    def forward(self, tokens: Tensor, *caches: Tensor) -> Any:
        x = self.table(tokens)
        x = x if tokens.shape[1] < caches[0].shape[1] else -x
        return x @ self.table.weight.T, *(torch.cat([cache, x], 1) for cache in caches)


@pytest.fixture(scope="module")
def program() -> ExportedProgram:
    free = {0: Dim.AUTO, 1: Dim.AUTO}
    arguments = (torch.zeros(2, 3, dtype=torch.long), torch.zeros(2, 5, 8), torch.zeros(2, 5, 8))
    return export(Branching(), arguments, (free, (free, free)))


@pytest.fixture
def decoder(program: ExportedProgram) -> Decoder:
    return from_program(program)


def test_lengths_within_the_condition(decoder: Decoder) -> None:
    for lengths in ((3, 1, 4), (1, 7, 8)):
        assert decoder.specialise(*lengths) is not None


def test_lengths_outside_the_condition(decoder: Decoder) -> None:
    with pytest.raises(
        FrontendError, match=r"on the condition tokens\.size\(\)\[1\] < caches\[0\]\.size\(\)\[1\], which"
    ):
        decoder.specialise(1, 8, 8)


@pytest.mark.parametrize(
    "text", ["__import__('os').getcwd() == ''", "L['tokens'].data", "x == 1", "L['z'].size()[0] == 1"]
)
def test_text_that_is_no_condition_is_not_run(
    text: str, program: ExportedProgram, decoder: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "_guards_code", [text])
    with pytest.raises(FrontendError, match="cannot be checked"):
        decoder.specialise(1, 1, 8)
