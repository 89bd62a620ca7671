"""The linalg-phase program as one dataflow graph per function: ops, the tensors between them, and their buffers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import networkx as nx
from torch_mlir import ir

from .bounds import shape, size
from .errors import ProgramError, place
from .lifetime import Lifetime, lifetimes
from .machine import SHARED
from .packing import Legal
from .storage import Buffer, Moved, Storages, destinations, is_blank, is_tensor, is_view, keeps_contents

_NO_WORK = frozenset(
    {"tensor.empty", "tensor.dim", "arith.constant", "kv.parameter", "kv.state_load", "kv.state_store", "func.return"}
)


@dataclass(frozen=True)
class Function:
    """One function of the program.

    ``graph`` is a networkx directed multigraph. Its nodes are ids of ops (``decode:12``) and arguments
    (``decode:arg0``), with ``op`` (the op's name, or "argument"), ``location`` (``file:line``), ``position`` (in
    program order; -1 for an argument), ``bytes`` (of its tensor results) and ``works`` (False where nothing runs: a
    view, a constant, a state updated in place). Its edges are tensor values, the id of the value as key, with
    ``shape``, ``dtype``, ``bytes`` and ``buffer`` (the buffer's name, or None for a blank tensor without one).

    ``ops`` are the block's, by position; ``ids`` name its values; ``captured`` are the tensors that an op's regions
    take, by position; ``reads`` all tensors whose contents an op looks at, those and destinations that it keeps the
    contents of included. ``buffers`` are the storage classes by name, ``lifetimes`` theirs in steps of the program's
    order, ``moves`` the copies that no update in place could save.
    """

    name: str
    ops: tuple[ir.Operation, ...]
    ids: Mapping[ir.Value, str]
    captured: Mapping[int, Sequence[ir.Value]]
    reads: tuple[tuple[ir.Value, ...], ...]
    graph: nx.MultiDiGraph[str]
    buffers: Mapping[str, Buffer]
    lifetimes: Mapping[str, Lifetime]
    moves: tuple[Moved, ...]


@dataclass(frozen=True)
class Program:
    """The program's functions, and the buffers that they share: weights, caches and states by name."""

    functions: Mapping[str, Function]
    shared: Mapping[str, Buffer]


def read_program(module: ir.Module | ir.Operation, legal: Legal) -> Program:
    """The graphs of a linalg-phase module.

    Args:
        module: functions on builtin tensors, as DESIGN's linalg phase has them.
        legal: where the memory that ops take their scratch from lets a buffer start.

    Raises:
        ProgramError: the module is not of that form, a size has no static bound, or two functions disagree about a
            weight or a state.
    """
    functions: dict[str, Function] = {}
    shared: dict[str, Buffer] = {}
    for op in module.operation.regions[0].blocks[0].operations:
        if op.operation.name != "func.func" or not op.operation.regions[0].blocks:
            continue
        function = _function(op.operation, legal)
        functions[function.name] = function
        for buffer in function.buffers.values():
            if buffer.kind not in SHARED:
                continue
            other = shared.setdefault(buffer.name, buffer)
            if (other.kind, other.bytes) != (buffer.kind, buffer.bytes):
                raise ProgramError(
                    op.operation.location,
                    f"{buffer.name!r}, made at {buffer.location}, is a {buffer.kind} of {buffer.bytes} bytes in "
                    f"{function.name} and a {other.kind} of {other.bytes} bytes in another function",
                )
    if not functions:
        raise ProgramError(None, "the module has no function to plan")
    return Program(functions, shared)


def _function(op: ir.Operation, legal: Legal) -> Function:
    name = str(ir.StringAttr(op.attributes["sym_name"]).value)
    blocks = list(op.regions[0].blocks)
    if len(blocks) > 1:
        raise ProgramError(op.location, f"{name} has {len(blocks)} blocks; a plan needs one, and scf for control flow")
    storages = Storages(blocks[0], name, legal, {})
    return Function(
        name,
        tuple(storages.ops),
        storages.ids,
        storages.captured,
        tuple((*_operands(op), *storages.captured.get(position, ())) for position, op in enumerate(storages.ops)),
        _graph(blocks[0], storages),
        storages.buffers,
        lifetimes(storages.uses, storages.writes, storages.updates),
        tuple(storages.moves),
    )


def _operands(op: ir.Operation) -> Iterator[ir.Value]:
    """The operands whose contents an op looks at."""
    skipped = {o for o, _ in destinations(op) if is_blank(op.operands[o]) or not keeps_contents(op, o)}
    yield from (v for i, v in enumerate(op.operands) if is_tensor(v) and i not in skipped)


def _graph(block: ir.Block, storages: Storages) -> nx.MultiDiGraph[str]:
    graph: nx.MultiDiGraph[str] = nx.MultiDiGraph()
    makers: dict[ir.Value, str] = {}
    tensors: dict[ir.Value, dict[str, object]] = {}
    for argument in block.arguments:
        node = storages.ids[argument]
        makers[argument] = node
        bytes_ = _describe(argument, storages, tensors)
        graph.add_node(node, op="argument", location=place(argument.location), position=-1, bytes=bytes_, works=False)
    copying = {m.position for m in storages.moves}
    for position, op in enumerate(storages.ops):
        node = storages.op_id(position)
        makers.update(dict.fromkeys(op.results, node))
        graph.add_node(
            node,
            op=op.name,
            location=place(op.location),
            position=position,
            bytes=sum(_describe(r, storages, tensors) for r in op.results),
            works=position in copying or _works(op, storages),
        )
        for value in (*op.operands, *storages.captured.get(position, ())):
            if value in tensors:
                graph.add_edge(makers[value], node, key=storages.ids[value], **tensors[value])
    return graph


def _describe(value: ir.Value, storages: Storages, tensors: dict[ir.Value, dict[str, object]]) -> int:
    """Notes a value's shape, dtype, bytes and buffer, and gives its bytes; 0 for a value that is no tensor."""
    if not is_tensor(value):
        return 0
    buffer = storages.of.get(value)
    bytes_ = size(value)
    tensors[value] = {
        "shape": shape(value),
        "dtype": str(ir.RankedTensorType(value.type).element_type),
        "bytes": bytes_,
        "buffer": None if buffer is None else buffer.name,
    }
    return bytes_


def _works(op: ir.Operation, storages: Storages) -> bool:
    """Whether an op runs on the machine's tensors: not a view, not a constant, not scalar arithmetic."""
    if op.name in _NO_WORK or is_view(op):
        return False
    held = [storages.of.get(r) for r in op.results if is_tensor(r)]
    reads = any(is_tensor(v) for v in op.operands)
    return any(b is not None for b in held) or (reads and not held)
