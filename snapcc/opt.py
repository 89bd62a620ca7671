"""``snapcc-opt``: runs passes, ours and MLIR's, on a file of IR."""

from __future__ import annotations

import argparse
import dataclasses
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from .arguments import Parser, UsageError
from .errors import report

_WRAPPED = re.compile(r"^\s*builtin\.module\((?P<inside>.*)\)\s*$", re.DOTALL)
_SEPARATOR = re.compile(r"^// -----.*$", re.MULTILINE)
_BYTECODE = b"ML\xefR"


def main(arguments: list[str] | None = None) -> int:
    """The command; gives the exit status: 0, 1 where a piece of the file fails, 2 for a wrong use."""
    try:
        options = _parser().parse_args(arguments)
        if options.list_passes:
            return _list_passes()
        if options.file is None:
            raise UsageError("a file is needed, or - for standard input")
        return _run(options)
    except UsageError as error:
        report(error)
        return 2
    except Exception as error:
        report(error)
        return 1


def _parser() -> Parser:
    parser = Parser(
        prog="snapcc-opt",
        description="Runs a pipeline of passes on a file of MLIR and prints the result.",
        epilog="Example: snapcc-opt model.mlir --pass-pipeline='builtin.module(canonicalize,cse)'",
    )
    parser.add_argument("file", nargs="?", help="the file, textual or bytecode, or - for standard input")
    parser.add_argument(
        "-o", dest="output", default="-", metavar="FILE", help="where the result goes (standard output)"
    )
    parser.add_argument(
        "--pass-pipeline",
        default="",
        metavar="TEXT",
        help="the passes, as builtin.module(a,b{option=1},func.func(canonicalize)); none: parse, verify and print",
    )
    parser.add_argument(
        "--weights",
        metavar="FILE",
        help="a safetensors file with the values that kv.parameter names, for the passes that look at them",
    )
    parser.add_argument("--list-passes", action="store_true", help="name snapcc's passes and their options, and stop")
    parser.add_argument(
        "--split-input-file", action="store_true", help="take the parts between lines of // ----- each by itself"
    )
    parser.add_argument("--mlir-print-ir-before-all", action="store_true", help="print the IR before each pass")
    parser.add_argument("--mlir-print-ir-after-all", action="store_true", help="print the IR after each pass")
    parser.add_argument("--mlir-print-ir-tree-dir", metavar="DIR", help="write the IR after each pass below a folder")
    parser.add_argument("--mlir-timing", action="store_true", help="print the time of each pass")
    parser.add_argument("--mlir-print-debuginfo", action="store_true", help="print source locations with the result")
    return parser


def _list_passes() -> int:
    from .registry import every, options, summary

    for kind in every():
        taken = " ".join(f"{name}=" for name in options(kind))
        print(f"{kind.name}{{{taken}}}" if taken else kind.name)
        print(f"    {summary(kind)}")
    return 0


def _run(options: argparse.Namespace) -> int:
    from snapcc.compiler.passes import manager

    from .registry import named_in

    inside = _WRAPPED.match(options.pass_pipeline)
    pipeline = inside["inside"] if inside else options.pass_pipeline
    steps = manager.parse_pipeline(pipeline, named_in(pipeline))
    if options.weights is not None:
        steps = [_with_weights(step, _lookup(Path(options.weights))) for step in steps]
    instrumentation = manager.Instrumentation(
        print_ir_before_all=options.mlir_print_ir_before_all,
        print_ir_after_all=options.mlir_print_ir_after_all,
        print_ir_tree_dir=options.mlir_print_ir_tree_dir,
        timing=options.mlir_timing,
    )
    content = sys.stdin.buffer.read() if options.file == "-" else Path(options.file).read_bytes()
    results, failed = [], False
    for piece in _pieces(content, options.split_input_file):
        try:
            module = _parse(piece, manager.new_context())
            manager.run(module, steps, instrumentation)
            results.append(module.operation.get_asm(enable_debug_info=options.mlir_print_debuginfo))
        except Exception as error:
            # the other pieces are still run: one file holds many cases
            report(error, source=options.file)
            failed = True
    text = "\n// -----\n\n".join(results)
    if options.output == "-":
        sys.stdout.write(text)
    elif not failed:
        Path(options.output).write_text(text)
    return int(failed)


def _lookup(path: Path) -> Callable[[str], Any]:
    """The tensor of a name in a safetensors file; None for a name that it has not."""
    from safetensors import safe_open

    file: Any = safe_open(path, framework="pt")
    names = set(file.keys())
    return lambda name: file.get_tensor(name) if name in names else None


def _with_weights(step: Any, weights: Callable[[str], Any]) -> Any:
    return dataclasses.replace(step, weights=weights) if hasattr(step, "weights") else step


def _parse(content: bytes, context: Any) -> Any:
    from torch_mlir import ir

    if content.startswith(_BYTECODE):
        return ir.Module.parse(content, context=context)
    return ir.Module.parse(content.decode(), context=context)


def _pieces(content: bytes, split: bool) -> Iterator[bytes]:
    """The parts of a file, each behind as many empty lines as it needs to keep its line numbers."""
    if not split:
        yield content
        return
    text, start = content.decode(), 0
    for end in [*(m.start() for m in _SEPARATOR.finditer(text)), len(text)]:
        yield ("\n" * text.count("\n", 0, start) + text[start:end]).encode()
        start = end


if __name__ == "__main__":
    sys.exit(main())
