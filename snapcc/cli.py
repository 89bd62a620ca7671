"""The command ``snapcc``: compile (the default), run, verify, inspect, bench."""

from __future__ import annotations

import argparse
import sys
import textwrap
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from snapcc.compiler.dialect.policy import PoolKind, Score
from snapcc.runtime.iree_compile import Device

from . import interrupts
from .arguments import Parser, UsageError
from .completion import SHELLS, script
from .errors import TRACEBACK, report
from .options import PHASES, Dtype, Target
from .presets import PRESETS, Preset

_COMMANDS = ("compile", "plan", "run", "verify", "inspect", "bench", "completion")

_DESCRIPTION = """\
Compiles a PyTorch decoder to a static program with a fixed number of KV cache slots.

  snapcc MODEL --target sn40l --kv snapstream   compile MODEL to MODEL's name with .snapcc (the default command)
  snapcc plan MODEL --sweep slots=512,1024      predicted time and bytes at each, without compiling
  snapcc run OUT.snapcc --prompt TEXT           generate
  snapcc verify OUT.snapcc                      compare with PyTorch
  snapcc inspect OUT.snapcc                     what is in it
  snapcc bench OUT.snapcc                       how fast it is, as ratios
  snapcc completion bash                        completion for a shell: source <(snapcc completion bash)

MODEL is a program that torch.export.save wrote, a Hugging Face folder, or with --compile-to the .mlir file of an
earlier phase. `snapcc COMMAND --help` tells more."""

_EPILOG = f"""\
Exit status: 0, or 2 for a wrong use of the command line, or 1 for everything else that fails.
{TRACEBACK}=1 in the environment shows the Python traceback of a failure."""


def entry() -> int:
    """The command as a shell runs it; what compiles has a process of its own, since native code may crash there."""
    given = sys.argv[1:]
    if not given or given[0] in ("-h", "--help", "--version") or _with_command(given)[0] not in ("compile", "plan"):
        return _interruptible(given)
    from .supervision import supervised

    return supervised(lambda: _interruptible(given))


def _interruptible(given: Sequence[str]) -> int:
    interrupts.take()
    return main(given)


def main(given: Sequence[str]) -> int:
    """The command; gives the exit status: 0, 2 for a wrong use, 1 for everything else that fails."""
    try:
        options = _parser().parse_args(_with_command(list(given)))
        with warnings.catch_warnings():
            # what libraries warn of is for their callers, and ours is the user's terminal
            warnings.simplefilter("ignore")
            return _run(options)
    except UsageError as error:
        report(error)
        return 2
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        return 1
    except Exception as error:
        if interrupts.came():
            print("error: interrupted", file=sys.stderr)
        else:
            report(error)
        return 1


def _with_command(arguments: list[str]) -> list[str]:
    """The arguments with ``compile`` in front where they name no command."""
    if not arguments:
        raise UsageError("a MODEL or a command is needed (snapcc --help tells how it is used)")
    return arguments if arguments[0] in (*_COMMANDS, "-h", "--help", "--version") else ["compile", *arguments]


def _run(options: argparse.Namespace) -> int:
    from . import commands

    return {
        "compile": commands.compile_command,
        "plan": commands.plan_command,
        "run": commands.run_command,
        "verify": commands.verify_command,
        "inspect": commands.inspect_command,
        "bench": commands.bench_command,
        "completion": _complete,
    }[options.command](options)


def _parser() -> Parser:
    parser = Parser(
        prog="snapcc",
        usage="snapcc [COMMAND] ...",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and stop")
    commands = parser.add_subparsers(prog="snapcc", dest="command", metavar="COMMAND", required=True)
    _add_compile(commands.add_parser("compile", help="compile a model (may be left out)"))
    _add_plan(commands.add_parser("plan", help="plan a model at many slots, rows, policies and machines"))
    _add_run(commands.add_parser("run", help="generate with an artifact"))
    _add_verify(commands.add_parser("verify", help="compare an artifact with PyTorch"))
    _add_inspect(commands.add_parser("inspect", help="say what is in an artifact"))
    _add_bench(commands.add_parser("bench", help="measure an artifact"))
    completion = commands.add_parser("completion", help="print the completion script of a shell")
    completion.description = (
        "Prints a script that completes snapcc's commands, options, choices and files: source <(snapcc completion "
        "bash) in ~/.bashrc, the same for zsh, and snapcc completion fish | source for fish."
    )
    completion.add_argument("shell", choices=SHELLS)
    return parser


def _complete(options: argparse.Namespace) -> int:
    print(script(options.shell, _parser(), default="compile"), end="")
    return 0


class _Version(argparse.Action):
    def __call__(self, *_: object) -> None:
        from importlib.metadata import version

        print(f"snapcc {version('snapcc')}")
        raise SystemExit(0)


def _presets() -> str:
    """What each preset means, for the help."""

    def described(preset: Preset) -> str:
        text = f"{preset.meaning}. {preset.deviation}".rstrip(". ") + "."
        return textwrap.fill(text, 100, initial_indent="    ", subsequent_indent="    ")

    shown = "\n".join(f"  {name}\n{described(preset)}" for name, preset in PRESETS.items())
    return f"presets of --kv, of one mechanism: S first tokens, a ring of R recent ones, K selected ones\n{shown}"


def _add_compile(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _presets()
    parser.description = (
        "Compiles a decoder: its growing caches become S + R + K slots, the program is planned for the SN40L and\n"
        "compiled by IREE. Says what it chose for whatever is left open."
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="a program of torch.export.save, a Hugging Face folder, or an .mlir file of a phase",
    )
    parser.add_argument(
        "--trust-pickle",
        action="store_true",
        help="read MODEL though it is a pickled model of transformers, which runs whatever code the file says",
    )
    parser.add_argument(
        "-o", dest="output", type=Path, metavar="OUT.snapcc", help="the artifact (MODEL's name, in the current folder)"
    )
    parser.add_argument("--target", choices=get_args(Target), default="sn40l", help="host plans nothing (sn40l)")
    parser.add_argument(
        "--machine", default="sn40l", metavar="FILE", help="the machine planned for: sn40l, small-dataflow, a TOML file"
    )
    parser.add_argument("--tile", action="store_true", help="run the program cut into the plan's tiles (slower)")
    cache = parser.add_argument_group("the cache")
    cache.add_argument("--kv", choices=PRESETS, default=next(iter(PRESETS)), help="the preset, see below (snapstream)")
    cache.add_argument("--slots", type=_positive, metavar="C", help="slots in all (a quarter of the context, <= 8192)")
    cache.add_argument("--sink", type=_natural, metavar="S", help="first tokens that stay (4)")
    cache.add_argument("--recent", type=_positive, metavar="R", help="last tokens that stay (the rest of C)")
    cache.add_argument("--topk", type=_natural, metavar="K", help="tokens of the prompt selected between them (C / 4)")
    cache.add_argument(
        "--obs-window", type=_positive, metavar="W", help="last queries that choose them (32, or R if that is less)"
    )
    cache.add_argument("--pool", type=_pool, metavar="KIND:SIZE", help="pooling of the scores: max:7, none (avg:5)")
    cache.add_argument("--score", choices=get_args(Score), help="keys that the scores' softmax goes over (candidates)")
    cache.add_argument(
        "--room", type=_natural, metavar="N", help="snapkv: generated tokens before the ring slides (256, <= C / 4)"
    )
    cache.add_argument(
        "--no-absorb",
        dest="absorb",
        action="store_false",
        help="expand a latent cache in every step, also where attention on it takes less",
    )
    shapes = parser.add_argument_group("shapes and types")
    shapes.add_argument("--batch", type=_positive, metavar="B", help="rows (the program's own, or 1)")
    shapes.add_argument(
        "--prompt", dest="prompts", type=_lengths, metavar="N,..", help="prompt lengths (128, 1024, min(context, 4 C))"
    )
    shapes.add_argument(
        "--extend",
        dest="extends",
        type=_extends,
        metavar="N,..",
        help="lengths of extend, more tokens in one call (one of min(128, the shortest prompt)); 0: none",
    )
    shapes.add_argument("--dtype", choices=get_args(Dtype), default="checkpoint", help="the weights' type (checkpoint)")
    shapes.add_argument("--device", choices=get_args(Device), default="cpu", help="what IREE compiles for (cpu)")
    shapes.add_argument(
        "--cpu", default="host", metavar="NAME", help="the processor: host, generic or LLVM's name (host)"
    )
    _add_inputs(parser)
    phases = parser.add_argument_group("looking inside")
    phases.add_argument("--compile-to", choices=PHASES, help="stop at this phase and write it to -o, else to stdout")
    phases.add_argument(
        "--dump-compilation-phases-to", dest="dump_to", type=Path, metavar="DIR", help="write every phase to a file"
    )
    phases.add_argument(
        "--reproducer-dir",
        type=Path,
        default=Path(),
        metavar="DIR",
        help="where a folder snapcc-reproducer-PHASE goes if the compiler fails (the current folder)",
    )
    phases.add_argument("--mlir-print-ir-before-all", action="store_true", help="print the IR before each pass")
    phases.add_argument("--mlir-print-ir-after-all", action="store_true", help="print the IR after each pass")
    phases.add_argument("--mlir-print-ir-tree-dir", metavar="DIR", help="write the IR after each pass below a folder")
    phases.add_argument("--mlir-timing", action="store_true", help="print the time of each pass")
    phases.add_argument("--quiet", action="store_true", help="say nothing but errors")


def _add_inputs(parser: argparse.ArgumentParser) -> None:
    inputs = parser.add_argument_group("the inputs of an exported program, where their use does not tell them apart")
    inputs.add_argument("--input", type=_named, default={}, metavar="tokens=NAME,positions=NAME")
    inputs.add_argument(
        "--causal-mask", action="append", default=[], metavar="NAME", help="this mask input is plainly causal"
    )


def _add_plan(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Plans a decoder without compiling it, at every combination of the values of --sweep: predicted time of a "
        "step over the ranges of the machine's figures, bytes, and the largest batch and context whose caches fit."
    )
    parser.add_argument("model", type=Path, metavar="MODEL", help="a program of torch.export.save, or a folder")
    parser.add_argument(
        "--sweep",
        action="append",
        default=[],
        metavar="KEY=VALUE,..",
        help="slots=512,1024,batch=1,4,prompt=2048,kv=naive,snapstream,machine=sn40l",
    )
    parser.add_argument(
        "--prompt", dest="prompts", type=_lengths, metavar="N,..", help="prompt lengths where --sweep has none"
    )
    parser.add_argument("--dtype", choices=get_args(Dtype), default="checkpoint", help="the weights' type (checkpoint)")
    parser.add_argument("--trust-pickle", action="store_true", help="read MODEL though it is a pickled model")
    _add_inputs(parser)
    parser.add_argument("--json", action="store_true", help="print the points as JSON")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw tokens per second over slots, as SVG")
    parser.add_argument("--quiet", action="store_true", help="say nothing but the result and errors")


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Generates greedily, ties to the lowest token. With --prompt it stops at the end of the sequence; with "
        "--tokens or --force-tokens exactly N tokens come, unless --stop-at-eos."
    )
    _add_artifact(parser)
    _add_prompts(parser, required=True)
    parser.add_argument("--max-new-tokens", type=_natural, metavar="N", help="new tokens a row (64)")
    parser.add_argument("--json", action="store_true", help='print {"tokens": [[...], ...]}: the new tokens alone')
    parser.add_argument(
        "--save-logits", type=Path, metavar="F.safetensors", help="save row0, row1, ...: [new tokens, vocabulary] f32"
    )
    parser.add_argument(
        "--force-tokens",
        type=Path,
        metavar="FILE.json",
        help="take these new tokens, one list a row, not the best ones",
    )
    parser.add_argument("--stop-at-eos", action="store_true", help="a row stops behind an end-of-sequence token")


def _add_verify(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Runs the artifact, then PyTorch on the exported program with its full cache, where what the policy drops is "
        "masked, fed the artifact's own tokens. Without a prompt, random tokens are taken, long enough for a selection "
        "where the artifact can take them. Where it has a compiled extend, a next turn of random tokens goes through "
        "that, and one more new token is compared. In f32 a logit may differ by 1e-4, for logits beyond 1 times the "
        "step's largest, and every token must be PyTorch's own choice. In bf16 and f16 it may differ by 2 times what "
        "PyTorch's own differ by from PyTorch's in f32 on the same weights. Where two candidates of a selection score "
        "so nearly the same that rounding decides, PyTorch's other choice is tried too, and said."
    )
    _add_artifact(parser)
    _add_prompts(parser, required=False)
    parser.add_argument("--max-new-tokens", type=_positive, default=16, metavar="N", help="new tokens a row (16)")
    parser.add_argument("--json", action="store_true", help="print the comparison as JSON")


def _add_inspect(parser: argparse.ArgumentParser) -> None:
    parser.description = "Says what an artifact is: its slots, caches and bytes, its phases and its plan."
    _add_artifact(parser)
    parser.add_argument("--json", action="store_true", help="as JSON")


def _add_bench(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Measures decode steps and prompts in turns with what they are compared to, and prints medians and ratios: a "
        "step over the reading of its bytes (weights once, caches once) from memory, and both over the exported "
        "program in PyTorch on one row with as many cached tokens as there are slots. Run it on a quiet machine."
    )
    _add_artifact(parser)
    parser.add_argument("--rounds", type=_positive, default=7, metavar="N", help="how often each is measured (7)")
    parser.add_argument("--json", action="store_true", help="as JSON")


def _add_artifact(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("artifact", type=Path, metavar="OUT.snapcc")
    parser.add_argument("--quiet", action="store_true", help="say nothing but the result and errors")


def _add_prompts(parser: argparse.ArgumentParser, *, required: bool) -> None:
    prompts = parser.add_mutually_exclusive_group(required=required)
    prompts.add_argument("--prompt", action="append", metavar="TEXT", help="a row's prompt; may be given once per row")
    prompts.add_argument("--tokens", type=Path, metavar="FILE.json", help="the rows' prompts: a list of token lists")
    parser.add_argument(
        "--chat", action="store_true", help="put each --prompt as a user's message into the tokenizer's chat template"
    )


def _natural(text: str) -> int:
    return _at_least(0, text)


def _positive(text: str) -> int:
    return _at_least(1, text)


def _at_least(least: int, text: str) -> int:
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"a whole number of at least {least} is needed, got {text!r}")
    return int(text)


def _lengths(text: str) -> tuple[int, ...]:
    return tuple(_positive(part.strip()) for part in text.split(","))


def _extends(text: str) -> tuple[int, ...]:
    return () if text == "0" else _lengths(text)


def _pool(text: str) -> tuple[str, int]:
    kind, separator, size = text.partition(":")
    if kind not in get_args(PoolKind) or (kind == "none" and separator):
        raise argparse.ArgumentTypeError(f"the pooling is avg:SIZE, max:SIZE or none, got {text!r}")
    return kind, _positive(size) if separator else 5


def _named(text: str) -> dict[str, str]:
    pairs = dict(part.partition("=")[::2] for part in text.split(","))
    if not all(pairs.values()) or not set(pairs) <= {"tokens", "positions"}:
        raise argparse.ArgumentTypeError(f"tokens=NAME,positions=NAME is needed, got {text!r}")
    return pairs


if __name__ == "__main__":
    sys.exit(entry())
