"""kv-rebuild-positions: what a program derived from its cache's length, derived from each row's position instead."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NoReturn

from torch_mlir import ir

from ..analysis.aten import FILLED, Kind, axis_operand, kind_of, owner, rank_of, tensor_operands
from ..analysis.axes import Axes
from ..analysis.baked import refuse_baked
from ..analysis.caches import Order, order_of, past_length, query_length
from ..analysis.evaluate import Evaluator, NotEvaluable
from ..analysis.functions import (
    PROBE,
    argument_attributes,
    body,
    functions,
    result_attributes,
    set_signature,
    terminator,
)
from ..diagnostics import Refusal
from ..dialect.kv import AttentionOp
from ..dialect.types import element_of, is_tensor, shape_of, vtensor
from .batch_rows import BatchRows
from .dead_code import erase_dead
from .raise_state import STATE
from .select_last import LENGTH
from .torch_builder import TorchBuilder

if TYPE_CHECKING:
    import torch

POSITIONS = "positions"
START = "start"

_ROUNDED = 1e-5
"""How far apart, of its size, a bias's slope may be at two lengths: it is read off f32 sums."""


@dataclass(frozen=True)
class RebuildPositions:
    """Gives decode an argument ``positions`` [B] and derives from it what was baked in from the past's length.

    Specialising a program at one past length P makes a constant of every value that it derives from the length.
    The module therefore has decode twice: ``@decode`` at P and ``@decode_probe`` at another length. Every
    constant and extent that differs between them is derived from the length and must be one of: an extent of
    the cache axis; the query's position (P + c), rebuilt from ``positions``; a row of a table at that position,
    rebuilt as a lookup. Anything else is refused: a number that quietly stayed at P would be a wrong rotation.
    Position inputs of the program become ``positions`` too. Erases the probe, and others that were there for their
    masks (``@decode_before_probe``). Relies on
    ``kv-raise-attention``, which has dropped the masks, and on ``kv-select-last``.

    A function with a past and N query tokens (extend) is one row's. It gets an argument ``start`` [], the first
    token's position: P + c, .., P + c + N - 1 are rebuilt as the tokens' positions plus c, and N rows of a table there
    as a lookup. One number for all the tokens is refused, since decode would have another at each. Padding stands at
    the last real token's position, so that no lookup leaves its table.

    A program of a fixed length has no probe. Where its caches keep their length, that length is a constant of the
    program, the same at each step, and nothing is derived from it. Where they grow it is a snapshot, and every number
    near its length is refused (``compiler/analysis/baked.py``).

    Before (P = 13)::

        %p = torch.aten.arange.start_step %int13, %int14, %int1   // [1]
        %e = torch.aten.embedding %table, %p                      // [1, E]
        %x = torch.aten.add.Tensor %tokens_e, %e                  // [B, 1, E]

    After::

        %p = torch.aten.view %positions                           // [B, 1]
        %e = torch.aten.embedding %table, %p                      // [B, 1, E]
        %x = torch.aten.add.Tensor %tokens_e, %e                  // [B, 1, E]
    """

    name: ClassVar[str] = "kv-rebuild-positions"

    def run(self, module: ir.Operation) -> None:
        """Rewrites the module."""
        found = functions(module)
        grown = {n: f for n, f in found.items() if not n.endswith(PROBE) and past_length(f) not in (None, 0)}
        if not grown:
            raise Refusal(module, "no function of the program has a past", "specialise decode at two past lengths")
        for name, function in grown.items():
            probe = found.get(f"{name}{PROBE}")
            if probe is not None:
                _Rebuild(function, probe).run()
                probe.erase()
            elif query_length(function) == 1:
                if order_of(function) is Order.APPENDED:
                    _refuse_biases(function)
                    erase_dead(function)
                    refuse_baked(function, past_length(function) or 0)
                _Positions(function).run()
            else:
                raise Refusal(
                    function,
                    f"@{name} is there at one past length only",
                    f"specialise it at another one too, as @{name}{PROBE}",
                )
            erase_dead(function)
        for name, function in found.items():
            if name.endswith(PROBE) and name.removesuffix(PROBE) not in grown:
                function.erase()


def _refuse_biases(function: ir.Operation) -> None:
    """At one length nothing tells whether what is added to the logits was made of it."""
    for view in body(function).operations:
        attention = view.operation.opview
        if isinstance(attention, AttentionOp) and attention.bias is not None:
            raise Refusal(
                view.operation,
                "attention has a bias along its keys in a program of one past length",
                "export the program with a symbolic past",
            )


class _Positions:
    """Puts an argument ``positions`` [B], or ``start`` [], for the program's own inputs of positions."""

    def __init__(self, function: ir.Operation) -> None:
        self._function = function
        self._axes = Axes(function)
        self._rows = BatchRows(function, self._axes)
        self._positions: ir.Value
        """The position of each query token: [B] for one a row, [Q] for several of one row."""

    def run(self) -> None:
        self._return_no_counters()
        self._add_positions()
        self._rows.run()

    def _return_no_counters(self) -> None:
        """The next position of a program that counts its tokens is nobody's: each row's is given."""
        returned, entries = terminator(self._function), result_attributes(self._function)
        carried = ("cache", STATE)
        names = {e["kv.name"] for e in argument_attributes(self._function) if e.get("kv.role") in carried} | {"logits"}
        kept = [i for i, entry in enumerate(entries) if entry.get("kv.name") in names]
        operands = [returned.operands[i] for i in kept]
        ir.Operation.create("func.return", operands=operands, loc=returned.location, ip=ir.InsertionPoint(returned))
        returned.erase()
        set_signature(self._function, results=[entries[i] for i in kept])
        erase_dead(self._function)

    def _add_positions(self) -> None:
        block = body(self._function)
        entries = argument_attributes(self._function)
        first = block.operations[0].operation
        builder = TorchBuilder(first, self._function.location)
        rows, queries = self._axes.row.size, self._axes.query.size
        own = list(block.arguments)
        if queries == 1:
            name = POSITIONS
            self._positions = block.add_argument(vtensor([rows], "si64"), self._function.location)
        else:
            name = START
            start = block.add_argument(vtensor([], "si64"), self._function.location)
            length = own[[entry.get("kv.role") for entry in entries].index(LENGTH)]
            self._positions = self._counted(builder, start, length)
        for argument, entry in zip(own, entries, strict=True):
            if entry.get("kv.role") != "positions":
                continue
            shape = shape_of(argument.type)
            if queries > 1 and math.prod(shape) != queries:
                raise Refusal(
                    self._function,
                    f"the positions' shape {shape} does not have one for each of {queries} tokens",
                    "let the model take the positions as an input of shape [rows, tokens]",
                )
            if rows == 1 or (shape and shape[0] == rows):
                argument.replace_all_uses_with(
                    builder.cast(builder.view(self._positions, shape), element_of(argument.type))
                )
            else:
                per_row = builder.view(self._positions, [rows, *shape])
                self._rows.seed(argument, builder.cast(per_row, element_of(argument.type)))
        set_signature(self._function, [*entries, {"kv.name": name, "kv.role": name}], result_attributes(self._function))

    def _counted(self, builder: TorchBuilder, start: ir.Value, length: ir.Value) -> ir.Value:
        """[Q]: ``start + i``, and for padding the last real token's."""
        count = builder.arange(self._axes.query.size)
        last = builder.view(builder.add_integer(length, -1), [1])
        real = builder.op("torch.aten.minimum", [count, last], count.type)
        return builder.op("torch.aten.add.Tensor", [real, builder.view(start, [1]), builder.integer(1)], count.type)


class _Rebuild(_Positions):
    def __init__(self, function: ir.Operation, probe: ir.Operation) -> None:
        super().__init__(function)
        self._probe = probe
        self._past, self._probe_past = past_length(function) or 0, past_length(probe) or 0
        self._twin: dict[ir.Value, ir.Value] = {}
        self._evaluate = Evaluator({}, lambda name: None)
        self._evaluate_probe = Evaluator({}, lambda name: None)
        self._constants: set[ir.Value] = set()
        self._decided: set[ir.Value] = set()
        self._prefixes: list[ir.Operation] = []

    @property
    def _step(self) -> int:
        return self._probe_past - self._past

    def run(self) -> None:
        self._pair()
        self._add_positions()
        for view in list(body(self._function).operations):
            self._visit(view.operation)
        self._rows.run()
        erase_dead(self._function)
        alive = {view.operation for view in body(self._function).operations}
        for op in self._prefixes:
            if op in alive:
                self._refuse(op, f"takes as many entries of a table as there are cached tokens ('{op.name}')")

    # --- pairing

    def _pair(self) -> None:
        ours, theirs = body(self._function), body(self._probe)
        self._twin.update(zip(ours.arguments, theirs.arguments, strict=True))
        pairs = list(zip(ours.operations, theirs.operations, strict=False))
        if len(ours.operations) != len(theirs.operations):
            pairs = [p for p in pairs if p[0].operation.name != p[1].operation.name] or pairs[-1:]
        for a, b in pairs:
            op, other = a.operation, b.operation
            same = op.name == other.name and [self._twin.get(v) for v in op.operands] == list(other.operands)
            if not same or len(op.results) != len(other.results):
                raise Refusal(
                    op,
                    f"the program does other things at {self._probe_past} cached tokens than at {self._past}: "
                    f"'{other.name}' instead of '{op.name}'",
                    "let the program do the same whatever the cache's length",
                )
            self._twin.update(zip(op.results, other.results, strict=True))
            self._same_attributes(op, other)
            for result, twin in zip(op.results, other.results, strict=True):
                self._same_extents(op, result, twin)
            if self._is_constant(op):
                self._constants.update(op.results)

    def _same_attributes(self, op: ir.Operation, other: ir.Operation) -> None:
        if op.name in ("torch.constant.int", "torch.vtensor.literal"):
            return  # judged where they are used
        for name in op.attributes:
            if str(op.attributes[name]) != str(other.attributes[name]):
                users = [use.owner.operation for result in op.results for use in result.uses]
                self._refuse(
                    users[0] if users and op.name.startswith("torch.constant") else op,
                    f"uses a number that depends on the cache's length: {op.attributes[name]} at {self._past} "
                    f"cached tokens, {other.attributes[name]} at {self._probe_past}",
                )

    def _same_extents(self, op: ir.Operation, value: ir.Value, twin: ir.Value) -> None:
        if not is_tensor(value.type):
            return
        ours, theirs = shape_of(value.type), shape_of(twin.type)
        allowed = len(ours) == len(theirs) and all(map(self._is_extent, ours, theirs))
        if not allowed or element_of(value.type) != element_of(twin.type):
            self._refuse(op, f"has an extent that is no length: {ours} at {self._past} cached tokens, {theirs} else")

    def _is_extent(self, ours: int, theirs: int) -> bool:
        """Whether two extents are the same, or m (P + c) of both lengths: the cache axis, merged with one of m."""
        times, rest = divmod(theirs - ours, self._step)
        return rest == 0 and (times == 0 or (times > 0 and ours % times == 0))

    def _is_constant(self, op: ir.Operation) -> bool:
        if op.name.startswith("torch.constant.") or op.name == "torch.vtensor.literal":
            return True
        if not op.name.startswith(("torch.aten.", "torch.prim.ListConstruct")):
            return False
        return all(v in self._constants for v in op.operands)

    # --- classification

    def _visit(self, op: ir.Operation) -> None:
        if (op.results and all(r in self._constants for r in op.results)) or op.name == "torch.prim.ListConstruct":
            return
        for value in tensor_operands(op):
            if value in self._constants:
                self._decide(value, op)
        integers = [v for v in self._integers(op) if self._moves(v)]
        if not integers:
            return
        name = op.name.removeprefix("torch.aten.")
        if name in ("slice.Tensor", "select.int"):
            self._table(op)
        elif kind_of(op) not in (Kind.VIEW, Kind.CREATION) or not self._grows(op.results[0]):
            self._refuse(op, f"uses a number that depends on the cache's length ('{op.name}')")

    def _integers(self, op: ir.Operation) -> list[ir.Value]:
        found: list[ir.Value] = []
        for value in op.operands:
            producer = owner(value)
            if producer is not None and producer.name == "torch.prim.ListConstruct":
                found += [v for v in producer.operands if not is_tensor(v.type)]
            elif not is_tensor(value.type):
                found.append(value)
        return found

    def _number(self, value: ir.Value) -> int | None:
        producer = owner(value)
        if producer is None or producer.name != "torch.constant.int":
            return None
        return int(ir.IntegerAttr(producer.attributes["value"]).value)

    def _moves(self, value: ir.Value) -> bool:
        """Whether a constant integer differs between the two lengths."""
        return self._number(value) != self._number(self._twin.get(value, value))

    def _grows(self, value: ir.Value) -> bool:
        """Whether a value has an extent that differs between the two lengths."""
        return shape_of(value.type) != shape_of(self._twin[value].type)

    def _offset(self, value: ir.Value) -> int | None:
        """c of a constant integer P + c; None if it is not of that form."""
        ours, theirs = self._number(value), self._number(self._twin[value])
        if ours is None or theirs is None or theirs - ours != self._step:
            return None
        return ours - self._past

    def _values(self, value: ir.Value) -> tuple[torch.Tensor, torch.Tensor]:
        try:
            return self._evaluate(value), self._evaluate_probe(self._twin[value])
        except NotEvaluable as stop:
            raise Refusal(
                value.owner.operation, f"a constant cannot be evaluated: {stop.why}", "make it a buffer of the model"
            ) from None

    def _decide(self, value: ir.Value, user: ir.Operation) -> None:
        """Makes sure that a constant does not depend on the length, or rebuilds it from the positions."""
        if value in self._decided:
            return
        self._decided.add(value)
        producer = owner(value)
        assert producer is not None
        if producer.name in FILLED and "empty" in producer.name:
            return  # nothing is read of it
        ours, theirs = self._values(value)
        if producer.name in FILLED and self._grows(value) and bool(ours.flatten()[0] == theirs.flatten()[0]):
            return  # one number along all slots
        if ours.shape == theirs.shape and bool((ours == theirs).all() | (ours != ours).all()):
            return
        if user.name == "kv.linear_bias" and bool(((ours - theirs).abs() <= _ROUNDED * ours.abs()).all()):
            return  # read off biases of different lengths
        if (offset := self._ahead(ours, theirs)) is not None:
            self._seed(value, offset, producer)
            return
        differing = [v for v in tensor_operands(producer) if not self._same(v)]
        if producer.name in ("torch.aten.slice.Tensor", "torch.aten.select.int") and not differing:
            self._table(producer)
        elif not differing or self._grows(value):
            self._refuse(user, f"takes a value that depends on the cache's length from '{producer.name}'", producer)
        else:
            for operand in differing:
                self._decide(operand, producer)

    def _same(self, value: ir.Value) -> bool:
        ours, theirs = self._values(value)
        return ours.shape == theirs.shape and bool((ours == theirs).all())

    def _ahead(self, ours: torch.Tensor, theirs: torch.Tensor) -> int | None:
        """c of constants P + c, .., P + c + Q - 1, one for each query token; None if they are no such."""
        import torch

        if ours.shape != theirs.shape or ours.numel() != self._axes.query.size:
            return None
        offsets = ours.flatten().double() - self._past
        first = float(offsets[0])
        counts_up = bool((offsets == first + torch.arange(offsets.numel())).all())
        moves = bool((theirs.flatten().double() - ours.flatten().double() == self._step).all())
        return int(first) if counts_up and moves and first.is_integer() else None

    def _seed(self, value: ir.Value, offset: int, producer: ir.Operation) -> None:
        builder = TorchBuilder(producer)
        position = builder.add_integer(self._positions, offset)
        per_row = builder.view(position, [self._axes.row.size, *shape_of(value.type)])
        self._rows.seed(value, builder.cast(per_row, element_of(value.type)))

    def _table(self, op: ir.Operation) -> None:
        """The rows of a table at the queries' positions; a prefix of a table is judged by who takes a part of it."""
        source, result = op.operands[0], op.results[0]
        at = axis_operand(op, 1, rank_of(source))
        start = op.operands[2]
        count = 1 if op.name.endswith("select.int") else shape_of(result.type)[at]
        one_each = count == self._axes.query.size and (count == 1 or self._number(op.operands[4]) == 1)
        offset = self._offset(start) if self._moves(start) else None
        if not self._moves(start) and self._grows(result):
            self._prefixes.append(op)
            return
        if offset is None or not one_each:
            self._refuse(op, f"takes a part of a table by the cache's length ('{op.name}')")
        source, begin = self._whole(source, at)
        builder = TorchBuilder(op)
        index = builder.add_integer(self._positions, offset + begin)
        rows = self._axes.row.size
        shape = [rows * count if i == at else extent for i, extent in enumerate(shape_of(source.type))]
        taken = builder.op(
            "torch.aten.index_select",
            [source, builder.integer(at), index],
            vtensor(shape, element_of(source.type)),
        )
        # several tokens are one row's, and stay where they are
        order = [at, *(i for i in range(len(shape)) if i != at)] if count == 1 else list(range(len(shape)))
        self._rows.seed(result, builder.view(builder.permute(taken, order), [rows, *shape_of(result.type)]))
        self._decided.add(result)

    def _whole(self, table: ir.Value, at: int) -> tuple[ir.Value, int]:
        """The table that a prefix along ``at`` was taken of, and where the prefix begins."""
        producer = owner(table)
        if producer is None or producer not in self._prefixes or axis_operand(producer, 1, rank_of(table)) != at:
            if producer is not None and self._grows(table):
                self._refuse(producer, f"makes a table as long as the cache ('{producer.name}')")
            return table, 0
        return producer.operands[0], self._number(producer.operands[2]) or 0

    def _refuse(self, op: ir.Operation, what: str, origin: ir.Operation | None = None) -> NoReturn:
        raise Refusal(
            origin or op,
            f"the model {what}",
            "in fixed slots a row's length is not the cache's: derive it from a position input, or let only "
            "positions, masks and extents depend on the length",
        )
