"""The plan's tiles as loops of the program: MLIR's own tiling, by a transform script that is made from the plan."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from torch_mlir import ir
from torch_mlir.dialects import linalg
from torch_mlir.dialects.transform import interpreter

from .loops import loops_of
from .machine import load_machine
from .plan import plan
from .schema import Section, Stage
from .storage import definition

OUTER, INNER = "sn40l.tile_parallel", "sn40l.tile_reduced"
"""The attributes by which a script finds an op: the tile sizes of its parallel loops and of those that it reduces, 0
for a loop that is not cut."""


def tile(module: ir.Module | ir.Operation, sections: Iterable[Section]) -> None:
    """Cuts the loops of a module's ops into the tiles of its sections; the values are the same, up to rounding.

    Each op becomes loops (``scf.for``) around the op on slices of its operands: its parallel loops outside, those that
    it reduces inside. A sum that starts from one number everywhere starts so in each tile, not from a slice of the
    whole: a tile then reads nothing of what it writes.

    Raises:
        ir.MLIRError: MLIR refuses to tile an op.
    """
    root = module.operation
    functions = {
        str(ir.StringAttr(op.attributes["sym_name"]).value): op.operation
        for op in root.regions[0].blocks[0].operations
        if op.operation.name == "func.func"
    }
    with root.context, ir.Location.unknown():
        for section in sections:
            ops = list(functions[section.function].regions[0].blocks[0].operations)
            for stage in section.stages:
                _mark(ops[stage.op].operation, stage)
        _run(root, OUTER)
        for op in _marked(root, OUTER):
            _start_anew(op)
        _run(root, INNER)
        for name in (OUTER, INNER):
            for op in _marked(root, name):
                del op.attributes[name]


def _mark(op: ir.Operation, stage: Stage) -> None:
    loops = loops_of(op)
    if loops is None:
        return
    for name, reduced in ((OUTER, False), (INNER, True)):
        sizes = [
            t if t != n and (i in loops.reductions) == reduced else 0
            for i, (t, n) in enumerate(zip(stage.tile, stage.loops, strict=True))
        ]
        if any(sizes):
            op.attributes[name] = ir.DenseI64ArrayAttr.get(sizes)


def _marked(root: ir.Operation, name: str) -> list[ir.Operation]:
    found: list[ir.Operation] = []

    def look(op: ir.Operation) -> ir.WalkResult:
        if name in op.attributes:
            found.append(op)
        return ir.WalkResult.ADVANCE

    root.walk(look)
    return found


def _run(root: ir.Operation, name: str) -> None:
    """Tiles the ops that have an attribute by its sizes."""
    wanted = dict.fromkeys(tuple(ir.DenseI64ArrayAttr(op.attributes[name])) for op in _marked(root, name))
    lines = [
        "module attributes {transform.with_named_sequence} {",
        "  transform.named_sequence @tile(%root: !transform.any_op {transform.readonly}) {",
    ]
    for number, sizes in enumerate(wanted):
        loops = sum(size > 0 for size in sizes)
        text = ", ".join(map(str, sizes))
        results = ", ".join(["!transform.any_op"] * (loops + 1))
        lines += [
            f"    %o{number} = transform.structured.match attributes {{{name} = array<i64: {text}>}} in %root "
            ": (!transform.any_op) -> !transform.any_op",
            f"    %t{number}, %l{number}:{loops} = transform.structured.tile_using_for %o{number} tile_sizes [{text}] "
            f": (!transform.any_op) -> ({results})",
        ]
    script = ir.Module.parse("\n".join([*lines, "    transform.yield", "  }", "}"]))
    interpreter.apply_named_sequence(root, script.body.operations[0], script)


def _start_anew(op: ir.Operation) -> None:
    """Fills an op's part of the result in its tile where the whole was filled with one number in front of the loops."""
    first = len(op.operands) - len(op.results)
    for number in range(first, len(op.operands)):
        part = definition(op.operands[number])
        if part is None or part.name != "tensor.extract_slice":
            continue
        whole = definition(_before_loops(part.operands[0]))
        if whole is None or whole.name != "linalg.fill":
            continue
        with ir.InsertionPoint(op), op.location:
            type_ = ir.RankedTensorType(part.results[0].type)
            segments = list(ir.DenseI32ArrayAttr(part.attributes["operandSegmentSizes"]))
            sizes = list(part.operands)[1 + segments[1] : 1 + segments[1] + segments[2]]
            empty = ir.Operation.create("tensor.empty", results=[type_], operands=sizes).results[0]
            op.operands[number] = linalg.fill(whole.operands[0], outs=[empty])


def _before_loops(value: ir.Value) -> ir.Value:
    """What a loop's carried value is in front of the outermost loop."""
    while definition(value) is None:
        argument = ir.BlockArgument(value)
        loop = argument.owner.owner.operation
        if loop.name != "scf.for" or argument.arg_number == 0:
            return value
        value = loop.operands[2 + argument.arg_number]
    return value


@dataclass(frozen=True)
class Sn40lTile:
    """Plans a linalg-phase module for a socket and cuts its ops' loops into the plan's tiles.

    ``machine`` is the name of a machine that comes with snapcc or a TOML file. Ops whose tile is the whole op stay as
    they are, and so do ops that are no nest of loops over affine indices. The result runs: its values are the
    program's own.

    Before::

        %y = linalg.matmul ins(%x, %w : tensor<64x128xf32>, tensor<128x64xf32>) outs(%z : tensor<64x64xf32>)

    After::

        %y = scf.for %i = %c0 to %c64 step %c16 iter_args(%acc = %z) -> (tensor<64x64xf32>) {
          %a = tensor.extract_slice %x[%i, 0] [16, 128] [1, 1]
          %c = tensor.extract_slice %acc[%i, 0] [16, 64] [1, 1]
          %t = linalg.matmul ins(%a, %w : tensor<16x128xf32>, tensor<128x64xf32>) outs(%c : tensor<16x64xf32>)
          %n = tensor.insert_slice %t into %acc[%i, 0] [16, 64] [1, 1]
          scf.yield %n
        }

    See tests/lit/sn40l/tile.mlir.
    """

    name: ClassVar[str] = "sn40l-tile"

    machine: str = "sn40l"

    def run(self, module: ir.Operation) -> None:
        """Tiles a ``builtin.module``.

        Raises:
            MachineError: an unknown machine, or a machine file that is wrong.
            ProgramError, PlacementError: the module cannot be planned.
        """
        tile(module, plan(module, load_machine(self.machine)).sections)
