"""Latent caches: in which functions attention runs on the latents, and that a step makes nothing of their size."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from latent_decoders import LATENT, Decoder

from snapcc import cli
from snapcc.build import DECODE_FLAGS
from snapcc.runtime.iree_compile import stream_ir, target_flags
from snapcc.runtime.schedule import not_in_place

SLOTS = 192


def lowered(decoder: Decoder, folder: Path, phase: str, *flags: str) -> bytes:
    """The decoder's MLIR at a phase."""
    torch.export.save(decoder.program(), folder / "model.pt2")
    options = f"--target host --slots {SLOTS} --batch 2 --prompt 48 --extend 8 --compile-to {phase}".split()
    assert cli.main([str(folder / "model.pt2"), *options, *flags, "-o", str(folder / "out.mlir")]) == 0
    return (folder / "out.mlir").read_bytes()


def absorbed(notes: str) -> list[str]:
    """The functions of which it is said that their attention runs on the latents."""
    return re.findall(r"@(\w+): attention runs on the cache, not on what it is expanded to: 0\.\d\d times", notes)


def test_a_prompt_of_narrow_latents_takes_less_on_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, attic = LATENT
    lowered(attic, tmp_path, "kv")
    assert absorbed(capsys.readouterr().err) == ["decode", "prefill_48", "extend_8"]


def test_a_step_makes_nothing_of_the_size_of_a_cache(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loft, _ = LATENT
    # a row of latents in f32; the logits of four heads are less
    row = SLOTS * 24 * 4
    made = {}
    for name, flags in (("absorbed", ()), ("expanded", ("--no-absorb",))):
        schedule = stream_ir(lowered(loft, tmp_path, "iree", *flags), [*target_flags("cpu"), *DECODE_FLAGS])
        made[name] = not_in_place(schedule, "decode", row)
        assert absorbed(capsys.readouterr().err) == (["decode", "extend_8"] if name == "absorbed" else [])
    assert made["absorbed"] == []
    assert made["expanded"]
