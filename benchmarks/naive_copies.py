"""What the paper's slice-and-concat baseline costs beside the ring: bytes copied per decode step, and temporaries.

Compiles a decode step of a random Llama with ``--kv snapstream`` and ``--kv naive`` and reads IREE's schedule; nothing
runs, so that the numbers do not depend on the machine's load.

    .venv/bin/python benchmarks/naive_copies.py --slots 1024 --layers 2
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import snapcc
from snapcc.build import DECODE_FLAGS
from snapcc.progress import Progress
from snapcc.runtime.iree_compile import stream_ir, target_flags
from snapcc.runtime.schedule import copied, not_in_place, temporaries

HEADS, FEATURES = 2, 16


@dataclass(frozen=True)
class Cost:
    """A decode step's writes as large as a row of a cache, beside the scatters into the caches themselves.

    Attributes:
        kv: the preset.
        cache: bytes of all caches.
        copied: bytes written by copies, joins and selects.
        temporaries: number of temporary buffers of that size.
        temporary: their bytes.
    """

    kv: str
    cache: int
    copied: int
    temporaries: int
    temporary: int


def cost(model: Path, kv: str, slots: int, layers: int, batch: int) -> Cost:
    """The cost of a decode step of ``model`` with a preset, from IREE's schedule."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "out.mlir"
        options = {"kv": kv, "slots": slots, "batch": batch, "prompts": (16,), "target": "host"}
        snapcc.compile(model, source, compile_to="iree", **options)
        schedule = stream_ir(source.read_bytes(), [*target_flags("cpu"), *DECODE_FLAGS])
    row = HEADS * slots * FEATURES * 4
    extra = not_in_place(schedule, "decode", row)
    buffers = temporaries(extra)
    return Cost(kv, 2 * layers * batch * row, copied(extra), len(buffers), sum(buffers.values()))


def save_llama(folder: Path, layers: int, positions: int) -> None:
    """A seeded random Llama of two KV heads of 16 features, f32, as a Hugging Face folder."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=2 * HEADS * FEATURES,
        intermediate_size=4 * HEADS * FEATURES,
        num_hidden_layers=layers,
        num_attention_heads=2 * HEADS,
        num_key_value_heads=HEADS,
        max_position_embeddings=positions,
    )
    LlamaForCausalLM(config).save_pretrained(folder)


def table(costs: list[Cost]) -> str:
    """The costs in Markdown."""
    lines = ["| `--kv` | caches | copied per step | times the caches | temporaries |", "|---|---|---|---|---|"]
    lines += [
        f"| {c.kv} | {c.cache:,} bytes | {c.copied:,} bytes | {c.copied / c.cache:.2f} | "
        f"{c.temporaries} of {c.temporary:,} bytes |"
        for c in costs
    ]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Prints the table for both presets."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--slots", type=int, default=1024, help="C (1024)")
    parser.add_argument("--layers", type=int, default=2, help="layers of the model (2)")
    parser.add_argument("--batch", type=int, default=1, help="rows (1)")
    options = parser.parse_args(arguments)
    progress = Progress(quiet=False)
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "llama"
        save_llama(model, options.layers, 4 * options.slots)
        costs = []
        for kv in ("snapstream", "naive"):
            with progress.step(f"decode with --kv {kv}"):
                costs.append(cost(model, kv, options.slots, options.layers, options.batch))
    print(table(costs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
