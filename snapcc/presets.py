"""The presets of ``--kv``: named settings of the one mechanism, as data. Light: the command line's help shows them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from snapcc.compiler.dialect.policy import Order

Span = Literal["part", "room", "context"]


@dataclass(frozen=True)
class Preset:
    """A name for some parts of a policy.

    Attributes:
        meaning: what it keeps, in a line for the help.
        deviation: how it differs from what is known under its name; "" where it does not.
        fixed: the parts that it sets, by their names in ``Wishes``.
        span: how R is found: a ``part`` like the others, W and ``--room`` for generated tokens, or the whole
            ``context``.
        order: how the recent tokens stand; ``time`` rebuilds each cache at every step.
    """

    meaning: str
    deviation: str = ""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    span: Span = "part"
    order: Order = "ring"


# Nothing is scored where K = 0, so that what would say how has no meaning.
_NO_SELECTION: Mapping[str, Any] = {"topk": 0, "window": 1, "pool": "none", "score": "candidates"}

PRESETS: Mapping[str, Preset] = {
    "snapstream": Preset(
        "sinks, a ring of recent tokens, and the K tokens of the prompt that its last W queries attend to most"
    ),
    "streamingllm": Preset(
        "sinks and recent tokens (K = 0)",
        "Tokens keep their true positions; StreamingLLM rotates every key anew by its place in the cache",
        fixed=_NO_SELECTION,
    ),
    "sage-kv": Preset(
        "as snapstream, chosen by the prompt's last query alone (W = 1), without pooling",
        "One choice per KV head, by the mean over its query heads",
        fixed={"window": 1, "pool": "none"},
    ),
    "snapkv": Preset(
        "no sinks (S = 0), R = W + --room, the rest selected, scores over all keys",
        "SnapKV's cache grows as tokens are generated; here the ring slides once --room of them have come, and until "
        "then also holds the last --room tokens of the prompt before the window. One choice per KV head",
        fixed={"sink": 0, "score": "all"},
        span="room",
    ),
    "window": Preset("recent tokens alone (S = 0, K = 0)", fixed={**_NO_SELECTION, "sink": 0}),
    "full": Preset(
        "every token, up to the model's context (R), which no position may exceed",
        fixed={**_NO_SELECTION, "sink": 0},
        span="context",
    ),
    "naive": Preset(
        "snapstream's tokens and numbers by slice and concat, the paper's baseline: for comparing cost",
        "The recent tokens stand in the order of time; every step computes both branches of an update, and takes one "
        "per row",
        order="time",
    ),
}
"""By name, ``snapstream`` first: the default."""
