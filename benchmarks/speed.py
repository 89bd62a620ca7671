"""How fast the main job is, on SmolLM2: ``make bench``, or ``python benchmarks/speed.py FOLDER``.

Prints a table of ratios, each of medians that were taken in turns in one run, with the project's goals beside them. Run
it on a quiet machine: a second busy process makes everything two to five times slower, though not evenly.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

import snapcc
from snapcc.runtime.benchmark import medians, prefilling

PROMPT = 2048
SLOTS = 1024
PARTS = {"whole": ("--sink", "4", "--recent", "764", "--topk", "256"), "unselective": ("--sink", "4", "--topk", "0")}
BIN = Path(sys.executable).parent


@dataclass(frozen=True)
class Line:
    """A figure, with the goal that it may not exceed."""

    what: str
    seen: float
    goal: float
    unit: str = ""

    def __str__(self) -> str:
        return f"| {self.what} | {self.seen:.3g}{self.unit} | {self.goal:g}{self.unit} |"


def main() -> int:
    """Compiles, measures, prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a Hugging Face folder of the Llama family, in f32")
    parser.add_argument("--work", type=Path, default=Path("build/bench"), help="where the artifacts go (build/bench)")
    parser.add_argument("--rounds", type=int, default=5, help="how often each is measured (5)")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    lines = [_help()]
    artifacts = {name: options.work / f"{name}.snapcc" for name in PARTS}
    for name, parts in PARTS.items():
        seconds, memory = _compile(options.model, artifacts[name], parts)
        if name == "whole":
            lines += [
                Line(f"compiling, prompts of {PROMPT}", seconds, 120, " s"),
                Line("its processes' memory at most", memory / 1e9, 4, " GB"),
            ]
    lines += _decode(artifacts["whole"], options.rounds)
    lines += _prefill(options.model, artifacts, options.rounds)
    print("| what | seen | goal |\n|---|---|---|")
    print("\n".join(map(str, lines)))
    return 0


def _help() -> Line:
    times = []
    for _ in range(7):
        start = time.perf_counter()
        subprocess.run([BIN / "snapcc", "--help"], stdout=subprocess.DEVNULL, check=True)
        times.append(time.perf_counter() - start)
    return Line("snapcc --help", statistics.median(times), 0.5, " s")


def _compile(model: Path, artifact: Path, parts: Sequence[str]) -> tuple[float, int]:
    """Seconds, and the most bytes that the command and its children held at once."""
    command = [BIN / "snapcc", model, "--slots", str(SLOTS), *parts, "--prompt", str(PROMPT), "-o", artifact]
    start, most = time.perf_counter(), 0
    process = subprocess.Popen(command)
    while process.poll() is None:
        most = max(most, _resident(process.pid))
        time.sleep(0.1)
    if process.returncode:
        raise SystemExit(process.returncode)
    return time.perf_counter() - start, most


def _resident(pid: int) -> int:
    """The resident bytes of a process and its descendants, shared pages counted once (Linux)."""
    try:
        smaps = Path(f"/proc/{pid}/smaps_rollup").read_text()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    own = next((int(line.split()[1]) << 10 for line in smaps.splitlines() if line.startswith("Pss:")), 0)
    return own + sum(_resident(int(child)) for child in children)


def _decode(artifact: Path, rounds: int) -> list[Line]:
    command = [BIN / "snapcc", "bench", artifact, "--json", "--rounds", str(rounds)]
    found = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    what = f"decode at {SLOTS} slots over reading its bytes ({found['read_gb_per_s']:.1f} GB/s)"
    return [Line(what, found["decode"]["over_reading"], 1.4)]


def _prefill(model: Path, artifacts: dict[str, Path], rounds: int) -> list[Line]:
    from transformers import AutoModelForCausalLM

    eager = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="sdpa").eval()
    prompt = np.random.default_rng(0).integers(0, eager.config.vocab_size, PROMPT)
    tokens = torch.from_numpy(prompt)[None]

    def transformers() -> None:
        with torch.no_grad():
            eager(tokens, use_cache=True, logits_to_keep=1)

    programs = {name: snapcc.load(artifact) for name, artifact in artifacts.items()}
    tasks = {name: prefilling(program, prompt.tolist()) for name, program in programs.items()}
    took = medians({**tasks, "transformers": transformers}, rounds, lambda number: None)
    share = 100 * (took["whole"] - took["unselective"]) / took["whole"]
    return [
        Line(f"prefill of {PROMPT} over transformers with SDPA", took["whole"] / took["transformers"], 3),
        Line(f"selection's share of that prefill ({took['whole']:.2f} s)", share, 5, " %"),
    ]


if __name__ == "__main__":
    sys.exit(main())
