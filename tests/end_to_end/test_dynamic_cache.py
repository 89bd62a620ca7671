"""Programs that a user exported with transformers' DynamicCache as an argument, from their files."""

from pathlib import Path

import pytest
import torch
import torch.utils._pytree as pytree
from compiled import assert_equals_oracle, tiny_llama
from spellings import SPELLINGS
from torch.export import Dim
from transformers import DynamicCache
from transformers.integrations.executorch import register_dynamic_cache_export_support

import snapcc
from snapcc.frontend import FrontendError, load_model

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


def save(folder: Path, explicit: bool) -> Path:
    """A tiny Llama with its cache as the model takes it; ``explicit``: with positions and a 4-D mask as inputs."""
    register_dynamic_cache_export_support()
    model = tiny_llama(folder / "checkpoint")
    rows, query, past = Dim("rows", min=1, max=64), Dim("query", min=1, max=128), Dim("past", min=0, max=255)
    cache = DynamicCache(config=model.config)
    for layer in range(2):
        cache.update(torch.zeros(2, 2, 5, 16), torch.zeros(2, 2, 5, 16), layer)
    given = {"input_ids": torch.zeros(2, 3, dtype=torch.long), "cache": cache, "use_cache": True}
    shapes = {"input_ids": {0: rows, 1: query}, "cache": [[{0: rows, 2: past}] * 2] * 2, "use_cache": None}
    if explicit:
        given |= {"attention_mask": torch.zeros(2, 1, 3, 8), "position_ids": torch.zeros(2, 3, dtype=torch.long)}
        shapes |= {"attention_mask": {0: rows, 2: query, 3: Dim("total", min=1)}, "position_ids": {0: rows, 1: query}}
    with torch.no_grad():
        program = torch.export.export(model, (), given, dynamic_shapes=shapes, strict=False)
    torch.export.save(program, folder / "model.pt2")
    return folder / "model.pt2"


@pytest.mark.parametrize("explicit", [False, True], ids=["mask-within", "mask-as-input"])
def test_equals_the_oracle(explicit: bool, tmp_path: Path) -> None:
    model = save(tmp_path, explicit)
    masks = ("attention_mask",) if explicit else ()
    artifact = snapcc.compile(model, tmp_path / "out.snapcc", causal_masks=masks, **OPTIONS)
    assert_equals_oracle(artifact, [(1, 9, 24)], 20)


def test_a_container_that_nothing_has_registered_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = next(d for d in SPELLINGS if d.name == "scroll")
    torch.export.save(decoder.program(), tmp_path / "model.pt2")
    monkeypatch.delitem(pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE, "spellings.Page")
    with pytest.raises(FrontendError, match=r"takes or returns a spellings\.Page, a container that is not registered"):
        load_model(tmp_path / "model.pt2")
