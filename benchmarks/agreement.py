"""How closely compiled programs agree with PyTorch in the same precision, for each preset of ``--kv`` and each type.

Compiles random Llamas, one per seed, generates from prompts that fit, that are selected from and that wrap the ring,
and gives the same tokens to PyTorch with everything masked that the policy drops. Prints a table in Markdown, and exits
with 1 where a row is not equal. A line comes when its preset and type are done.

    .venv/bin/python benchmarks/agreement.py --seeds 1
    .venv/bin/python benchmarks/agreement.py --smollm build/demo/smollm2 --kv snapstream --dtype bf16
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import snapcc
from snapcc.artifact import load as load_artifact
from snapcc.oracle import oracle
from snapcc.presets import PRESETS
from snapcc.progress import Progress
from snapcc.runtime.generation import generate
from snapcc.runtime.verification import Comparison, compare_at_ties

DTYPES = ("f32", "bf16", "f16")
TAKES: Mapping[str, tuple[str, ...]] = {
    "snapstream": ("sink", "recent", "topk", "window"),
    "streamingllm": ("sink", "recent"),
    "sage-kv": ("sink", "recent", "topk"),
    "snapkv": ("window", "room", "topk"),
    "window": ("recent",),
    "full": (),
    "naive": ("sink", "recent", "topk", "window"),
}
"""Which parts each preset leaves to choose."""

HEAD = """\
| `--kv` | type | PyTorch's own tokens | largest logit | differ by | PyTorch from f32 | times it | ties | equal |
|---|---|---|---|---|---|---|---|---|"""


@dataclass(frozen=True)
class Sizes:
    """The parts of the cache, and what is generated: a row per length, all at once.

    Attributes:
        parts: S, R, K, W and the room, by their names in ``snapcc.compile``.
        lengths: tokens of the prompts; the longest is the compiled length.
        new_tokens: tokens generated per row.
    """

    parts: Mapping[str, int]
    lengths: tuple[int, ...]
    new_tokens: int


TINY = Sizes({"sink": 2, "recent": 8, "topk": 4, "window": 4, "room": 6}, (5, 20, 48), 20)
SMOLLM = Sizes({"sink": 4, "recent": 60, "topk": 64, "window": 16, "room": 48}, (50, 256, 512), 80)


@dataclass(frozen=True)
class Line:
    """All rows of one preset and type."""

    kv: str
    dtype: str
    rows: list[Comparison]

    @property
    def holds(self) -> bool:
        """Whether every row is equal."""
        return all(row.holds for row in self.rows)

    def __str__(self) -> str:
        steps, same = sum(row.steps for row in self.rows), sum(row.agreeing for row in self.rows)
        ratios = [row.difference / row.rounding for row in self.rows if row.rounding]
        own = f"{max(row.rounding for row in self.rows):.1e} | {max(ratios):.2f}" if ratios else "|"
        return (
            f"| `{self.kv}` | {self.dtype} | {same} of {steps} | {max(row.largest for row in self.rows):.2f} | "
            f"{max(row.difference for row in self.rows):.1e} | {own} | {sum(len(row.ties) for row in self.rows)} | "
            f"{'yes' if self.holds else 'NO'} |"
        )


def agreement(model: Path, kv: str, dtype: str, sizes: Sizes, seed: int) -> list[Comparison]:
    """Each row's comparison with PyTorch, of ``model`` compiled with a preset and a type, for seeded random prompts."""
    parts = {part: sizes.parts[part] for part in TAKES[kv]}
    options = {"batch": len(sizes.lengths), "prompts": (max(sizes.lengths),), "extends": (), "target": "host"}
    with tempfile.TemporaryDirectory() as folder:
        made = snapcc.compile(model, Path(folder) / "out.snapcc", kv=kv, dtype=dtype, **options, **parts)
        artifact = load_artifact(made)
        program = snapcc.load(made)
        generator = np.random.default_rng(seed)
        prompts = [
            [int(token) for token in generator.integers(0, program.spec.vocabulary, length)] for length in sizes.lengths
        ]
        rows = generate(program, prompts, sizes.new_tokens)
        wide = None if dtype == "f32" else oracle(artifact, wide=True)
        reference = oracle(artifact)
        return [compare_at_ties(row, reference, dtype, wide) for row in rows]


def save_llama(folder: Path, layers: int, seed: int) -> None:
    """A seeded random Llama of 4 query and 2 KV heads, f32, as a Hugging Face folder; logits of order one."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=72,
        eos_token_id=None,
        initializer_range=0.15,
    )
    LlamaForCausalLM(config).save_pretrained(folder)


def main(arguments: list[str] | None = None) -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="random Llamas, each with prompts of its own (3)")
    parser.add_argument("--layers", type=int, default=2, help="their layers (2)")
    parser.add_argument("--kv", nargs="+", choices=list(PRESETS), default=list(PRESETS), help="presets (all)")
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, default=list(DTYPES), help="types (all)")
    parser.add_argument("--smollm", type=Path, help="a Hugging Face folder of SmolLM2, in place of random Llamas")
    options = parser.parse_args(arguments)
    sizes = TINY if options.smollm is None else SMOLLM
    progress, lines = Progress(quiet=False), []
    with tempfile.TemporaryDirectory() as folder:
        models = [options.smollm] * options.seeds
        if options.smollm is None:
            models = [Path(folder) / str(seed) for seed in range(options.seeds)]
            for seed, model in enumerate(models):
                save_llama(model, options.layers, seed)
        print(HEAD)
        for kv in options.kv:
            for dtype in options.dtype:
                rows = []
                for seed, model in enumerate(models):
                    with progress.step(f"--kv {kv} --dtype {dtype}, seed {seed}"):
                        rows += agreement(model, kv, dtype, sizes, seed)
                lines.append(Line(kv, dtype, rows))
                print(lines[-1], flush=True)
    return 0 if all(line.holds for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
