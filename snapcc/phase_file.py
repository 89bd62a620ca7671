"""A file of a phase that an earlier compilation wrote, to go on from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .arguments import UsageError
from .options import Phase

if TYPE_CHECKING:
    from torch_mlir import ir

_BYTECODE = b"ML\xefR"
_STARTS = (b"#loc", b"#map", b"#", b"module", b"builtin.module", b"func.func", b'"builtin.module"')


@dataclass(frozen=True)
class PhaseFile:
    """A module of a known phase.

    Attributes:
        path: its file.
        phase: the phase that it is of, told by its ops.
        module: the module.
    """

    path: Path
    phase: Phase
    module: ir.Module

    def rows_and_slots(self) -> tuple[int, int]:
        """B and C of a module of the kv phase: the rows of @decode, and its past and the token of the call.

        Raises:
            UsageError: it has no such function.
        """
        from snapcc.compiler.analysis.functions import body, functions
        from snapcc.compiler.dialect.kv import integer
        from snapcc.compiler.dialect.types import shape_of

        decode = functions(self.module.operation).get("decode")
        for view in body(decode).operations if decode is not None else ():
            if view.operation.name == "kv.append":
                grown = shape_of(view.operation.results[0].type)
                return grown[0], grown[integer(view.operation, "axis")]
        raise UsageError(f"{self.path} has no function @decode that grows a cache: it is no program of snapcc's")

    def has_prefill(self) -> bool:
        """Whether a module of the torch or kv phase takes prompts at once."""
        from snapcc.compiler.analysis.functions import functions

        return any(name.startswith("prefill_") for name in functions(self.module.operation))


def is_mlir(path: Path) -> bool:
    """Whether a file looks like MLIR, as text or bytecode; comments may come first."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        if file.read(len(_BYTECODE)) == _BYTECODE:
            return True
        file.seek(0)
        lines = (line.strip() for line in file.read(4096).splitlines())
    return next((line for line in lines if line and not line.startswith(b"//")), b"").startswith(_STARTS)


def read(path: Path) -> PhaseFile:
    """Reads a file that ``--compile-to`` or ``--dump-compilation-phases-to`` wrote.

    Raises:
        ir.MLIRError: it does not parse or verify.
        UsageError: it is of no phase from which something follows.
    """
    from torch_mlir import ir

    from snapcc.compiler.passes.manager import new_context

    context = new_context()
    # the plan's attributes, and what IREE alone knows
    context.allow_unregistered_dialects = True
    module = ir.Module.parseFile(str(path), context)
    context.allow_unregistered_dialects = False
    names = _operations(module.operation)
    if any(name.startswith(("iree_", "util.")) for name in names):
        raise UsageError(f"{path} is of the phase iree, the last one: iree-compile takes it")
    if "func.func" not in names:
        raise UsageError(f"{path} has no function: it is no program of snapcc's")
    return PhaseFile(path, _phase(module.operation, names), module)


def _operations(module: ir.Operation) -> set[str]:
    from torch_mlir import ir

    names: set[str] = set()

    def visit(op: ir.Operation) -> ir.WalkResult:
        names.add(op.name)
        return ir.WalkResult.ADVANCE

    module.walk(visit)
    return names


def _phase(module: ir.Operation, names: set[str]) -> Phase:
    from snapcc.sn40l_target.plan_ops import is_planned

    if not any(name.startswith("torch.") for name in names):
        return "sn40l" if is_planned(module) else "linalg"
    if names & {"kv.state_load", "kv.state_store"}:
        return "static"
    return "kv" if "kv.append" in names else "torch"
