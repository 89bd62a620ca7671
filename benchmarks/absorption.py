"""What absorbing the expansion of a latent cache saves: operations and bytes of a decode step, from the linalg program.

Lowers the attention of one layer of DeepSeek-V3's geometry (128 heads, latents of 512 + 64 features), as transformers
writes it, at several numbers of slots, with the expansion in the step and absorbed. There are no weights, and nothing
runs: operations are counted from the loops of the linalg program, bytes as its ops read and write whole tensors, those
of what they hand on to each other included.

    .venv/bin/python benchmarks/absorption.py
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from typing import Any

from snapcc.compilation import Lowering, choose
from snapcc.defaults import Wishes
from snapcc.options import Options
from snapcc.progress import Progress

GEOMETRY = {
    "num_hidden_layers": 1,
    # one layer's attention: its MLP and the vocabulary are made small
    "first_k_dense_replace": 1,
    "intermediate_size": 64,
    "vocab_size": 256,
    "max_position_embeddings": 163_840,
}
"""What is not as in DeepSeek-V3, whose sizes are transformers' own defaults, but for the context."""


@dataclass(frozen=True)
class Cost:
    """A decode step of one row: C slots, and what it takes.

    Attributes:
        slots: C.
        absorbed: whether attention runs on the latents.
        operations: multiplications, additions and the like.
        bytes: read and written, by all ops.
    """

    slots: int
    absorbed: bool
    operations: int
    bytes: int


def decoder(dtype: str, **changes: Any) -> Any:
    """The layer as a decoder, its weights whatever the memory holds: nobody reads them."""
    import torch
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    from snapcc.frontend import from_object

    with torch.device("meta"):
        model = DeepseekV3ForCausalLM(DeepseekV3Config(**(GEOMETRY | changes))).eval().requires_grad_(False)
    return from_object(model.to(getattr(torch, dtype)).to_empty(device="cpu"), "latent")


def cost(layer: Any, slots: int, absorbed: bool) -> Cost:
    """What a decode step takes, from its linalg program."""
    from torch_mlir import ir

    from snapcc.compiler.passes.manager import new_context
    from snapcc.sn40l_target.graph import read_program
    from snapcc.sn40l_target.machine import load_machine
    from snapcc.sn40l_target.tiling import work_of
    from snapcc.sn40l_target.traffic import accesses

    quiet = Progress(quiet=True)
    options = Options(target="host", wishes=Wishes(slots=slots), absorb=absorbed, prompts=(128,), extends=())
    lowering = Lowering(None, options, quiet)
    for phase in lowering.phases(layer, choose(layer, options, quiet)):
        if phase == "linalg":
            break
    module = ir.Module.parse(lowering.text, context=new_context())
    step = read_program(module, load_machine("sn40l").tiers[0].legal).functions["decode"]
    moved = accesses(step)
    return Cost(
        slots,
        absorbed,
        sum(work_of(step.ops[position]) for position in moved),
        sum(access.bytes for found in moved.values() for access in found),
    )


def table(costs: list[Cost]) -> str:
    """The costs in Markdown, before and after next to each other."""
    lines = ["| slots | operations expanded | absorbed | ratio | bytes expanded | absorbed | ratio |"]
    lines.append("|---|---|---|---|---|---|---|")
    for slots in dict.fromkeys(c.slots for c in costs):
        before, after = (next(c for c in costs if (c.slots, c.absorbed) == (slots, side)) for side in (False, True))
        lines.append(
            f"| {slots:,} | {before.operations:,} | {after.operations:,} | {before.operations / after.operations:.1f} "
            f"| {before.bytes:,} | {after.bytes:,} | {before.bytes / after.bytes:.1f} |"
        )
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--slots", default="1024,8192,32768", metavar="C,..", help="numbers of slots (%(default)s)")
    parser.add_argument("--dtype", default="bfloat16", help="the weights' type, as PyTorch names it (bfloat16)")
    options = parser.parse_args(arguments)
    progress = Progress(quiet=False)
    with progress.step("exporting the layer"):
        layer = decoder(options.dtype)
    costs = []
    for slots in map(int, options.slots.split(",")):
        with progress.step(f"decode with {slots:,} slots"):
            costs += [cost(layer, slots, absorbed) for absorbed in (False, True)]
    print(table(costs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
