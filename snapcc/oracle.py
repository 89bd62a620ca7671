"""The reference for an artifact: its exported program in PyTorch, and prompts to compare on."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .artifact import Artifact
from .manifest import Manifest

if TYPE_CHECKING:
    from snapcc.runtime.generation import Row
    from snapcc.runtime.reference import FixedReference, ProgramInputs, Reference

_SEED = 0
_SHORT = 5


def oracle(artifact: Artifact, wide: bool = False) -> Reference | FixedReference:
    """PyTorch's reference for an artifact, under its policy; ``wide`` computes in f32 on the same weights.

    Raises:
        AttributionError: an attention of the program cannot be understood.
    """
    from snapcc.runtime.reference import reference

    from .contents import restore_program

    return reference(restore_program(artifact), described(artifact.manifest), artifact.manifest.policy, wide)


def described(manifest: Manifest) -> ProgramInputs:
    """What the inputs and outputs of an artifact's exported program are."""
    from snapcc.runtime.reference import ProgramInputs

    inputs = manifest.inputs
    return ProgramInputs(
        tokens=inputs.tokens,
        caches=tuple((cache.input, cache.output, cache.axis) for cache in inputs.caches),
        logits=inputs.logits,
        positions=inputs.positions,
        causal_mask=inputs.causal_mask,
        counters=inputs.counters,
        states=tuple((state.input, state.output) for state in inputs.states),
    )


def example_prompts(manifest: Manifest, new_tokens: int) -> list[list[int]]:
    """A prompt of random tokens per row: by turns beyond S + R, so that tokens are dropped, just S + R, and short."""
    kept, policy = manifest.policy.sink + manifest.policy.recent, manifest.policy
    limits = [manifest.max_positions - new_tokens + 1]
    compiled = manifest.program().prompts
    if compiled:
        # no longer than needed: the time of a prefill is that of the compiled length
        limits.append(next((n for n in compiled if n > kept), compiled[-1]))
    lengths = [min(length, *limits) for length in (policy.slots + _SHORT, kept, _SHORT)]
    generator = random.Random(_SEED)
    return [
        [generator.randrange(manifest.vocabulary) for _ in range(max(lengths[row % len(lengths)], 1))]
        for row in range(manifest.batch)
    ]


def example_turns(manifest: Manifest, rows: Sequence[Row]) -> list[list[int]]:
    """More random tokens for a next turn of each row: as many as the shortest compiled extend takes, if there is room.

    With the row's last token in front, there is a call of that length and one that is padded. None for any row where
    the program has no extend, or where a row's last token stands behind the model's last position.
    """
    room = [manifest.max_positions - len(row.prompt) - len(row.tokens) for row in rows]
    extends = manifest.program().extends
    if not extends or min(room) < 0:
        return []
    generator = random.Random(_SEED + 1)
    return [[generator.randrange(manifest.vocabulary) for _ in range(min(extends[0], left))] for left in room]
