"""One entry of the zoo, compiled, run and compared."""

from __future__ import annotations

import logging
import re
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import LinearAttentionCacheLayerMixin

import snapcc
from snapcc.arguments import UsageError
from snapcc.artifact import load as load_artifact
from snapcc.compiler.diagnostics import Refusal
from snapcc.errors import describe
from snapcc.frontend import FrontendError
from snapcc.oracle import oracle
from snapcc.runtime.generation import Row, generate
from snapcc.runtime.verification import compare_at_ties

from .coverage import Result
from .models import build, group_of

POLICY: dict[str, Any] = {"kv": "snapstream", "sink": 2, "recent": 10, "topk": 4, "window": 4}
"""16 slots, as many as a window or chunk has tokens: those layers have a ring of their own."""

PROMPTS, NEW_TOKENS = (48, 5), 32
"""One prompt that is selected from and one that fits; the tokens behind them go around the rings."""

TOLERANCE = 1e-3
"""How far a logit may lie from the oracle's, in units of the step's largest where that is above 1."""


def measure(name: str) -> Result:
    """Exports, compiles and runs an entry, and compares it with the oracle and the model."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    model = build(name)
    about: dict[str, Any] = {"name": name, "group": group_of(name), "kind": kind_of(model)}
    try:
        return Result(**about, **compared(model))
    except (Refusal, FrontendError, UsageError) as error:
        exported = "torch.export cannot export" not in str(error)
        return Result(**about, outcome="refused", exported=exported, message=_told(error))
    except Exception as error:
        return Result(**about, outcome="fault", message=_told(error))


def compared(model: PreTrainedModel, tolerance: float = TOLERANCE) -> dict[str, Any]:
    """The outcome of a model that compiles, with the largest difference and what is wrong.

    Raises:
        Refusal, FrontendError, UsageError: it is refused.
    """
    with tempfile.TemporaryDirectory() as folder:
        # one that carries state decodes only
        prompts = None if _carries_state(model) else PROMPTS[:1]
        options = {"target": "host", "batch": len(PROMPTS), "prompts": prompts}
        made = snapcc.compile(model, Path(folder) / "model.snapcc", extends=(), **options, **POLICY)
        reference, program = oracle(load_artifact(made)), snapcc.load(made)
        generator = np.random.default_rng(0)
        vocabulary = program.spec.vocabulary
        prompts = [[int(token) for token in generator.integers(0, vocabulary, length)] for length in PROMPTS]
        rows = generate(program, prompts, NEW_TOKENS)
        found = [compare_at_ties(row, reference, "f32") for row in rows]
        # where a prompt is taken at once nothing is dropped before its end: its logits are the model's own
        own = [off_model(model, row) for row in rows] if program.spec.prompts else [off_model(model, rows[-1])]
    difference = max(row.difference for row in found)
    wrong = [
        f"a prompt of {length} tokens: {row.difference:.2g} from the oracle in logits of up to {row.largest:.2g}, "
        f"{row.agreeing} of {row.steps} tokens the same"
        for length, row in zip(PROMPTS, found, strict=True)
        # written so that a NaN is wrong
        if not row.difference <= tolerance * max(1.0, row.largest) or row.agreeing != row.steps
    ]
    if not max(own) <= tolerance:
        wrong.append(f"a prompt's logits lie {max(own):.2g} from the model's own, relative to the largest")
    return {"outcome": "fault" if wrong else "agrees", "difference": difference, "message": "; ".join(wrong)}


def _carries_state(model: PreTrainedModel) -> bool:
    layers: list[Any] = DynamicCache(config=model.config).layers
    return any(isinstance(layer, LinearAttentionCacheLayerMixin) for layer in layers)


def off_model(model: PreTrainedModel, row: Row) -> float:
    """The largest distance of a prompt's logits from the model's own, in units of the largest where that is above 1."""
    with torch.no_grad():
        right = model(input_ids=torch.tensor([row.prompt]), use_cache=False).logits[0, -1].numpy()
    return float(np.abs(row.logits[0] - right).max() / max(1.0, float(np.abs(right).max())))


def kind_of(model: PreTrainedModel) -> str:
    """How heads share keys and values, read off the cache, and the kinds of layers where there are several."""
    config = model.config
    layers = list(dict.fromkeys(getattr(config, "layer_types", None) or ()))
    names = [name.removesuffix("_attention") for name in layers] if len(layers) > 1 else []
    return " ".join([_sharing(model), *(["(" + ", ".join(names) + ")"] if names else [])])


def _sharing(model: PreTrainedModel) -> str:
    config = model.config
    if getattr(config, "kv_lora_rank", None):
        return "MLA"
    fields = ("num_attention_heads", "n_head", "n_heads", "num_heads")
    heads = next((value for field in fields if isinstance(value := getattr(config, field, None), int)), 0)
    cache: Any = DynamicCache(config=config)
    try:
        with torch.no_grad():
            model(input_ids=torch.zeros(1, 1, dtype=torch.long), use_cache=True, cache=cache)
    except (AttributeError, RuntimeError, TypeError, ValueError):  # a cache of its own, or code that fails
        return "?"
    kept = {keys.shape[1] for layer in cache.layers if (keys := getattr(layer, "keys", None)) is not None}
    if not kept:
        return "?"
    return "MQA" if max(kept) == 1 < heads else "MHA" if max(kept) == heads else "GQA"


def _told(error: Exception) -> str:
    """An error's first line, with places in transformers' own code by their paths there."""
    return re.sub(r"[^\s(]*(?=transformers/models/)", "", describe(error)[0])
