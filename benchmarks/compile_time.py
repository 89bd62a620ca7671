"""What compilation costs by the number of layers: a tiny random Llama, step by step.

Counted is processor time, of iree-compile too, which other work on the machine changes less than the time that passes.
What matters is the cost of one more layer, and whether it stays the same.

    .venv/bin/python benchmarks/compile_time.py --layers 2 4 8 16 32
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from snapcc.build import build
from snapcc.defaults import Wishes
from snapcc.options import Options
from snapcc.progress import Progress


class Meter(Progress):
    """Keeps the processor seconds of each step, of this process and of those that it waited for."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def step(self, text: str) -> Iterator[None]:
        """A step."""
        start = _spent()
        yield
        self.seconds[text] = _spent() - start


def _spent() -> float:
    return sum(os.times()[:4])


def seconds(model: Path, folder: Path) -> dict[str, float]:
    """The processor seconds of each step of a compilation with decode and one prompt length, in their order."""
    meter = Meter()
    wishes = Wishes(slots=64)
    build(model, Options(output=folder / "out.snapcc", wishes=wishes, prompts=(128,), extends=()), meter)
    return {step.replace(str(model), "the model"): taken for step, taken in meter.seconds.items()}


def save_llama(folder: Path, layers: int) -> None:
    """A seeded random Llama, f32, as a Hugging Face folder."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(layers)
    sizes = {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 128, "max_position_embeddings": 1024}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": layers}
    LlamaForCausalLM(LlamaConfig(**sizes, **heads)).eval().save_pretrained(folder)


def table(found: dict[int, dict[str, float]]) -> str:
    """Markdown: a row for each step; the last column is the cost of a layer among the last over that among the first.

    Early is from the first number to the middle one, late from there to the last; 1 is linear, more grows faster.
    """
    layers = list(found)
    rows = {step: [found[count][step] for count in layers] for step in found[layers[0]]}
    rows["in all"] = [sum(found[count].values()) for count in layers]
    lines = [f"| step | {' | '.join(f'{count} layers' for count in layers)} | a layer, late over early |"]
    lines.append("|" + "---|" * (len(layers) + 2))
    for step, taken in rows.items():
        lines.append(f"| {step} | {' | '.join(f'{t:.1f}' for t in taken)} | {_late_over_early(layers, taken)} |")
    return "\n".join(lines)


def _late_over_early(layers: list[int], taken: list[float]) -> str:
    middle = len(layers) // 2
    early = (taken[middle] - taken[0]) / (layers[middle] - layers[0])
    late = (taken[-1] - taken[middle]) / (layers[-1] - layers[middle])
    # what takes next to no time grows by what the clock can tell
    return f"{late / early:.2f}" if early * layers[-1] > 0.5 else "-"


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--layers", type=int, nargs="+", default=[2, 4, 8, 16, 32])
    options = parser.parse_args()
    found: dict[int, dict[str, float]] = {}
    # the first compilation also imports torch, MLIR and IREE
    for layers in [min(options.layers), *sorted(options.layers)]:
        with tempfile.TemporaryDirectory() as folder:
            save_llama(Path(folder, "model"), layers)
            found[layers] = seconds(Path(folder, "model"), Path(folder))
        print(f"{layers} layers: {sum(found[layers].values()):.1f} s", file=sys.stderr, flush=True)
    print(table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
