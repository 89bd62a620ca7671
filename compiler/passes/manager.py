"""Runs pipelines of MLIR's own passes and of snapcc's, in one order, with MLIR's own instrumentation."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Protocol

from torch_mlir import ir
from torch_mlir.dialects import torch as torch_dialect
from torch_mlir.passmanager import PassManager

from ..dialect.kv import Kv
from ..dialect.sn40l import Sn40l


class Pass(Protocol):
    """One of snapcc's passes: a frozen dataclass whose fields are its options."""

    name: ClassVar[str]

    def run(self, module: ir.Operation) -> None:
        """Rewrites a ``builtin.module``.

        Raises:
            snapcc.compiler.diagnostics.Refusal: the program is not one that the pass may rewrite.
        """


Step = Pass | str
"""A pass of ours, or the text of an MLIR pipeline on ``builtin.module`` (without that wrapper)."""


@dataclasses.dataclass(frozen=True)
class Instrumentation:
    """MLIR's own printing and timing, by MLIR's own names."""

    print_ir_before_all: bool = False
    print_ir_after_all: bool = False
    print_ir_tree_dir: str | None = None
    print_ir_after: tuple[str, ...] = ()
    timing: bool = False


def new_context() -> ir.Context:
    """A context with the torch, kv and sn40l dialects, and torch-mlir's conversion dialects, loaded.

    ``torch_c`` and ``tm_tensor`` have no registration call in Python; a pass that depends on one loads it.
    """
    context = ir.Context()
    torch_dialect.register_dialect(context)
    context.enable_multithreading(False)
    with context, ir.Location.unknown():
        Kv.load()
        Sn40l.load()
        empty = ir.Module.parse("module {}")
        PassManager.parse("builtin.module(torch-func-backend-type-conversion)").run(empty.operation)
        PassManager.parse("builtin.module(func.func(convert-torch-to-tmtensor))").run(empty.operation)
    return context


def run(module: ir.Module, steps: Iterable[Step], instrumentation: Instrumentation | None = None) -> None:
    """Runs ``steps`` in order; the IR is verified after each.

    Raises:
        Refusal: from one of our passes.
        ir.MLIRError: from MLIR's own passes or the verifier, with the diagnostics' text and locations.
    """
    raised: list[BaseException] = []
    with module.context:
        manager = PassManager("builtin.module")
        for step in steps:
            if isinstance(step, str):
                manager.add(step)
            else:
                manager.add(_callback(step, raised), name=type(step).__name__, argument=step.name)
        if instrumentation is not None:
            _instrument(manager, instrumentation)
        try:
            manager.run(module.operation)
        except ir.MLIRError:
            if raised:
                raise raised[0] from None
            raise


def _callback(step: Pass, raised: list[BaseException]) -> Callable[[Any, Any], None]:
    def callback(operation: Any, pass_: Any) -> None:
        with ir.Location.unknown():
            try:
                step.run(operation)
            except BaseException as error:
                # an exception cannot cross MLIR's C++ frames: fail the pass and raise it on the other side
                raised.append(error)
                pass_.signal_pass_failure()

    return callback


def _instrument(manager: PassManager, wanted: Instrumentation) -> None:
    if wanted.timing:
        manager.enable_timing()
    if wanted.print_ir_before_all or wanted.print_ir_after_all or wanted.print_ir_tree_dir is not None:
        manager.enable_ir_printing(
            print_before_all=wanted.print_ir_before_all,
            # a folder alone would be given nothing
            print_after_all=wanted.print_ir_after_all or not wanted.print_ir_before_all,
            tree_printing_dir_path=wanted.print_ir_tree_dir,
        )


def split_pipeline(text: str) -> list[str]:
    """The passes of ``a,b{x=1},func.func(c,d)``, split at the commas outside brackets.

    Raises:
        ValueError: brackets that do not match.
    """
    parts, depth, start = [], 0, 0
    for i, character in enumerate(text):
        if character in "({[":
            depth += 1
        elif character in ")}]":
            depth -= 1
        elif character == "," and depth == 0:
            parts.append(text[start:i])
            start = i + 1
        if depth < 0:
            raise ValueError(f"unmatched {character!r} at offset {i} of the pipeline {text!r}")
    if depth:
        raise ValueError(f"a bracket is not closed in the pipeline {text!r}")
    return [part.strip() for part in [*parts, text[start:]] if part.strip()]


def pipeline_text(steps: Iterable[Step]) -> str:
    """Steps as ``parse_pipeline`` reads them: options that are not their default, and none that text cannot give."""
    return ",".join(step if isinstance(step, str) else _invocation(step) for step in steps)


def _invocation(step: Any) -> str:
    values = {f: getattr(step, f.name) for f in dataclasses.fields(step) if str(f.type) in _CONVERTERS}
    words = [f"{f.name.replace('_', '-')}={value}" for f, value in values.items() if value != f.default]
    return f"{step.name}{{{' '.join(words)}}}" if words else str(step.name)


_INVOCATION = re.compile(r"^(?P<name>[\w.-]+)(?:\{(?P<options>.*)\})?$", re.DOTALL)


def parse_pipeline(text: str, passes: Sequence[type[Pass]]) -> list[Step]:
    """Steps from ``builtin.module(...)``, or from its inside; options as ``name{key=value key=value}``.

    Raises:
        ValueError: an unknown option, or a value that is not of its type.
    """
    match = re.match(r"^\s*builtin\.module\((?P<inside>.*)\)\s*$", text, re.DOTALL)
    known = {p.name: p for p in passes}
    steps: list[Step] = []
    for part in split_pipeline(match["inside"] if match else text):
        invocation = _INVOCATION.match(part)
        if invocation is None or invocation["name"] not in known:
            steps.append(part)
            continue
        steps.append(_with_options(known[invocation["name"]], invocation["options"] or ""))
    return steps


# passes are written with postponed annotations: a field's type is its text
_CONVERTERS: dict[str, Callable[[str], int | float | str]] = {"int": int, "float": float, "str": str}


def _with_options(kind: Any, text: str) -> Step:
    fields = {f.name.replace("_", "-"): f for f in dataclasses.fields(kind)}
    values: dict[str, Any] = {}
    for word in text.split():
        key, separator, value = word.partition("=")
        if key not in fields or not separator:
            raise ValueError(
                f"pass {kind.name} has no option {word!r}; its options are {', '.join(sorted(fields)) or 'none'}"
            )
        convert = _CONVERTERS.get(str(fields[key].type))
        if convert is None:
            raise ValueError(f"option {key} of pass {kind.name} cannot be given as text")
        values[fields[key].name] = convert(value)
    step: Step = kind(**values)
    return step
