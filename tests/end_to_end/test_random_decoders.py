"""Decoders made at random equal the oracle. A few here; ``make fuzz`` tries more, under a seed that it shows."""

import dataclasses
import os
import tempfile
from pathlib import Path

from compiled import assert_equals_oracle
from hypothesis import HealthCheck, Phase, given, note, settings
from random_decoders import Plan, drawn, plans

import snapcc
from snapcc.runtime.reference import Reference

FULL = os.environ.get("SNAPCC_FUZZ")


# a compilation takes seconds: a failure is shown as it was drawn, not made smaller
@settings(
    max_examples=int(FULL or 2),
    derandomize=not FULL,
    database=None,
    deadline=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),
    report_multiple_bugs=False,
)
@given(plan=plans())
def test_a_drawn_decoder_equals_the_oracle(plan: Plan) -> None:
    if FULL:
        print(plan, flush=True)
    note(repr(plan))
    compiles_and_agrees(plan)


def compiles_and_agrees(plan: Plan) -> None:
    decoder, policy = drawn(plan), plan.policy
    options = dataclasses.asdict(policy)
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "out.snapcc")
        own = {"batch": 2, "prompts": (32,), "extends": (), "target": "host"}
        artifact = snapcc.compile(decoder.program(), output, **own, **options)
        reference = Reference(decoder.program(), decoder.inputs, policy)
        assert_equals_oracle(artifact, [(3, 29)], 20, reference)
