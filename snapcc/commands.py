"""What each command does, from parsed arguments to what is printed."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .arguments import UsageError
from .defaults import Wishes
from .options import Options
from .progress import Progress

if TYPE_CHECKING:
    from snapcc.runtime.engine import Program
    from snapcc.runtime.generation import Row

    from .artifact import Artifact

_NEW_TOKENS = 64


def compile_command(options: argparse.Namespace) -> int:
    """``snapcc MODEL``."""
    from snapcc.compiler.passes.manager import Instrumentation

    from .build import build

    pool, pool_size = options.pool or (None, None)
    wanted = Options(
        output=options.output,
        target=options.target,
        machine=options.machine,
        tile=options.tile,
        wishes=Wishes(
            slots=options.slots,
            sink=options.sink,
            recent=options.recent,
            topk=options.topk,
            window=options.obs_window,
            pool=pool,
            pool_size=pool_size,
            score=options.score,
            kv=options.kv,
            room=options.room,
        ),
        absorb=options.absorb,
        batch=options.batch,
        prompts=options.prompts,
        extends=options.extends,
        dtype=options.dtype,
        device=options.device,
        cpu=options.cpu,
        inputs=options.input,
        causal_masks=tuple(options.causal_mask),
        trust_pickle=options.trust_pickle,
        compile_to=options.compile_to,
        dump_to=options.dump_to,
        reproducers=options.reproducer_dir,
        instrumentation=Instrumentation(
            print_ir_before_all=options.mlir_print_ir_before_all,
            print_ir_after_all=options.mlir_print_ir_after_all,
            print_ir_tree_dir=options.mlir_print_ir_tree_dir,
            timing=options.mlir_timing,
        ),
    )
    build(options.model, wanted, Progress(options.quiet))
    return 0


def plan_command(options: argparse.Namespace) -> int:
    """``snapcc plan``."""
    from . import sweep

    values = sweep.parse_sweep(options.sweep) if options.sweep else {}
    wanted = Options(
        prompts=options.prompts,
        dtype=options.dtype,
        inputs=options.input,
        causal_masks=tuple(options.causal_mask),
        trust_pickle=options.trust_pickle,
    )
    rows = sweep.sweep(options.model, values, wanted, Progress(options.quiet))
    print(json.dumps(rows) if options.json else sweep.table(rows))
    if options.plot is not None:
        options.plot.write_text(sweep.plot(rows))
    return 0 if any("error" not in row for row in rows) else 1


def run_command(options: argparse.Namespace) -> int:
    """``snapcc run``."""
    artifact = _open(options)
    prompts, tokenizer = _prompts(options, artifact)
    forced = None if options.force_tokens is None else _read_rows(options.force_tokens)
    count = _count(options, forced, len(prompts))
    stops = options.stop_at_eos or (options.prompt is not None and forced is None)
    progress = Progress(options.quiet)
    rows = _generate(_load(artifact, progress), artifact, prompts, count, forced, stops, progress)
    if options.save_logits is not None:
        _save_logits(rows, options.save_logits, artifact.manifest.vocabulary)
    texts = None if tokenizer is None else [tokenizer.decode(row.tokens, skip_special_tokens=True) for row in rows]
    if options.json:
        result: dict[str, Any] = {"tokens": [row.tokens for row in rows]}
        print(json.dumps(result if texts is None else result | {"text": texts}))
    else:
        for line in texts or [" ".join(map(str, row.tokens)) for row in rows]:
            print(line)
    return 0


def verify_command(options: argparse.Namespace) -> int:
    """``snapcc verify``."""
    from snapcc.runtime.generation import take_turns
    from snapcc.runtime.verification import ROUNDING, TOLERANCE, compare_at_ties

    from .oracle import example_prompts, example_turns, oracle

    artifact, progress = _open(options), Progress(options.quiet)
    manifest = artifact.manifest
    if options.prompt is None and options.tokens is None:
        prompts = example_prompts(manifest, options.max_new_tokens)
    else:
        prompts, _ = _prompts(options, artifact)
    program = _load(artifact, progress)
    rows = _generate(program, artifact, prompts, options.max_new_tokens, None, False, progress)
    if more := example_turns(manifest, rows):
        with progress.step(f"a next turn of each row, {sum(map(len, more))} tokens"):
            take_turns(program, rows, more)
    with progress.step("preparing PyTorch's reference"):
        reference = oracle(artifact)
        wide = None if manifest.dtype == "f32" else oracle(artifact, wide=True)
    results = []
    for index, row in enumerate(rows):
        with progress.step(f"row {index}: {len(row.prompt)} tokens and {len(row.tokens)} new ones in PyTorch"):
            results.append(compare_at_ties(row, reference, manifest.dtype, wide))
    holds = all(result.holds for result in results)
    shown = [
        {
            "row": index,
            "prompt": len(row.prompt),
            "selected": manifest.policy.selected(len(row.prompt)) if manifest.program().prompts else 0,
            "extended": 0 if row.turn is None else len(row.turn),
            "new_tokens": result.steps,
            "max_abs_difference": result.difference,
            "max_abs_logit": result.largest,
            "first_difference": result.first_difference,
            "tokens_equal": result.agreeing,
            "first_other_token": result.first_disagreement,
            "rounding": result.rounding,
            "ties": [dataclasses.asdict(tie) for tie in result.ties],
            "holds": result.holds,
        }
        for index, (row, result) in enumerate(zip(rows, results, strict=True))
    ]
    rounding = None if wide is None else ROUNDING
    if options.json:
        print(json.dumps({"holds": holds, "tolerance": TOLERANCE, "rounding": rounding, "rows": shown}))
        return 0 if holds else 1
    for entry, result in zip(shown, results, strict=True):
        extended = f"{entry['extended']} more through extend, " if entry["extended"] else ""
        own = "" if wide is None else f", PyTorch's own by {entry['rounding']:.2g} from those in f32"
        print(
            f"row {entry['row']}: {entry['prompt']} tokens ({entry['selected']} selected), {extended}"
            f"{entry['tokens_equal']} of {entry['new_tokens']} tokens are PyTorch's own choice, logits differ by "
            f"{entry['max_abs_difference']:.2g} at most (largest {entry['max_abs_logit']:.3g}{own}): "
            f"{'equal' if entry['holds'] else 'DIFFERENT'}"
        )
        for tie in result.ties:
            print(
                f"  selection tie at layer {tie.attention}, head {tie.head}: positions {tie.kept} and {tie.left} score "
                f"{tie.gap:.2g} apart, relative; equal with PyTorch's other choice"
            )
    bound = f"{TOLERANCE:g}" if wide is None else f"{ROUNDING:g} times its own distance from f32"
    print(f"{'equal to' if holds else 'DIFFERENT from'} PyTorch within {bound}")
    return 0 if holds else 1


def bench_command(options: argparse.Namespace) -> int:
    """``snapcc bench``."""
    from snapcc.runtime.benchmark import compare
    from snapcc.runtime.exported import ExportedDecoder

    from .contents import restore_program, weight_bytes
    from .oracle import described

    artifact, progress = _open(options), Progress(options.quiet)
    manifest = artifact.manifest
    program = _load(artifact, progress)
    with progress.step("preparing PyTorch's program"):
        decoder = ExportedDecoder(restore_program(artifact), described(manifest))
    with progress.step(f"{options.rounds} rounds, and one that does not count"):
        result = compare(
            program,
            decoder,
            weights=weight_bytes(artifact),
            slots=manifest.policy.slots,
            rounds=options.rounds,
        )
    if options.json:
        print(json.dumps(result))
        return 0
    decode = result["decode"]
    print(
        f"decode       {decode['rows']} rows at {manifest.policy.slots} slots: {decode['over_reading']:.2f} times "
        f"the reading of its {decode['weight_bytes'] + decode['cache_bytes']:,} bytes "
        f"({result['read_gb_per_s']:.1f} GB/s with {result['threads']} threads), "
        f"{decode['over_pytorch']:.2f} times PyTorch on one row ({decode['median_ms']:.1f} ms)"
    )
    for prefill in result["prefill"]:
        ratio, took = prefill["over_pytorch"], prefill["median_ms"]
        print(f"prefill {prefill['length']:>5}: {ratio:.2f} times PyTorch ({took:.0f} ms)")
    print(f"medians of {result['rounds']} rounds, all in turns")
    return 0


def inspect_command(options: argparse.Namespace) -> int:
    """``snapcc inspect``."""
    from .artifact import load
    from .inspection import summary, words

    content = summary(load(options.artifact))
    if options.json:
        print(json.dumps(content))
    else:
        print(words(content))
    return 0


def _open(options: argparse.Namespace) -> Artifact:
    from .artifact import load

    with Progress(options.quiet).step(f"checking {options.artifact}"):
        return load(options.artifact)


def _load(artifact: Artifact, progress: Progress) -> Program:
    from snapcc.runtime.engine import Program

    with progress.step("loading the program"):
        return Program(artifact.folder, artifact.weights, artifact.manifest.program())


def _generate(
    program: Program,
    artifact: Artifact,
    prompts: Sequence[Sequence[int]],
    count: int,
    forced: Sequence[Sequence[int]] | None,
    stops: bool,
    progress: Progress,
) -> list[Row]:
    from snapcc.runtime.generation import generate

    ends = artifact.manifest.end_of_sequence
    with progress.step(f"{sum(map(len, prompts))} tokens of {len(prompts)} prompts, {count} new tokens each"):
        return generate(program, prompts, count, forced, ends if stops else ())


def _prompts(options: argparse.Namespace, artifact: Artifact) -> tuple[list[list[int]], Any]:
    """The rows' prompts, and the tokenizer where they were given as text."""
    if options.tokens is not None:
        if options.chat:
            raise UsageError("--chat is for prompts of text, not for --tokens")
        return _read_rows(options.tokens), None
    folder = artifact.manifest.tokenizer
    if folder is None:
        raise UsageError("the model came without a tokenizer, so that --prompt has no meaning: use --tokens FILE.json")
    if not Path(folder).is_dir():
        raise FileNotFoundError(f"the tokenizer's folder {folder} is missing; use --tokens FILE.json")
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    if options.chat:
        messages = [[{"role": "user", "content": text}] for text in options.prompt]
        texts = [tokenizer.apply_chat_template(m, tokenize=False, add_generation_prompt=True) for m in messages]
        return [list(tokenizer(text, add_special_tokens=False).input_ids) for text in texts], tokenizer
    return [list(tokenizer(text).input_ids) for text in options.prompt], tokenizer


def _read_rows(path: Path) -> list[list[int]]:
    """A file with a list of token lists, one per row.

    Raises:
        UsageError: the file is something else.
    """
    try:
        rows = json.loads(path.read_text())
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is no JSON: {error}") from None
    whole = isinstance(rows, list) and rows and all(isinstance(row, list) for row in rows)
    if not whole or not all(type(token) is int for row in rows for token in row):
        raise UsageError(f"{path} must hold a list of token lists, one per row, as [[1, 2, 3], [4, 5]]")
    return [list(row) for row in rows]


def _count(options: argparse.Namespace, forced: list[list[int]] | None, rows: int) -> int:
    """How many new tokens each row gets."""
    asked: int | None = options.max_new_tokens
    if forced is None:
        return _NEW_TOKENS if asked is None else asked
    if len(forced) != rows:
        raise UsageError(f"{options.force_tokens} has {len(forced)} rows and there are {rows} prompts")
    shortest = min(len(row) for row in forced)
    if asked is None:
        return shortest
    if shortest < asked:
        raise UsageError(f"{options.force_tokens} has a row of {shortest} tokens, and {asked} new ones were asked for")
    return asked


def _save_logits(rows: Sequence[Row], path: Path, vocabulary: int) -> None:
    import numpy as np
    from safetensors.numpy import save

    from .artifact import write_whole

    none = np.zeros((0, vocabulary), np.float32)
    tensors = {f"row{i}": np.stack(row.logits) if row.logits else none for i, row in enumerate(rows)}
    write_whole(path, save(tensors))
