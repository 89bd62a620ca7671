"""The loops of a structured op: extents, which are reduced, and what part of each operand a tile of them touches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from torch_mlir import ir
from torch_mlir.dialects import linalg

from .bounds import element_bytes, shape


@dataclass(frozen=True)
class Loops:
    """A linalg op as a nest of loops over its tensor operands, inputs first, then outputs.

    ``maps`` give each operand's indices by the loops; ``extents`` are upper bounds where a size is not static.
    """

    operands: tuple[ir.Value, ...]
    maps: tuple[ir.AffineMap, ...]
    extents: tuple[int, ...]
    outputs: int

    @property
    def inputs(self) -> tuple[ir.Value, ...]:
        """The operands that are read."""
        return self.operands[: len(self.operands) - self.outputs]

    @cached_property
    def reductions(self) -> frozenset[int]:
        """The loops that no output is indexed by."""
        kept = {loop for m in self.maps[len(self.inputs) :] for r in m.results for loop in _dims(r)}
        return frozenset(range(len(self.extents))) - kept

    def at(self, operand: int) -> tuple[int | None, ...]:
        """By dimension of an operand, the loop that alone walks it; None where it is walked otherwise or not at all."""
        return tuple(int(r.position) if isinstance(r, ir.AffineDimExpr) else None for r in self.maps[operand].results)

    @property
    def contracts(self) -> bool:
        """Whether it is a product of two tensors, each with loops of its own, over the loops that it reduces."""
        if len(self.inputs) != 2 or not self.reductions or any(None in self.at(i) for i in range(len(self.operands))):
            return False
        a, b = set(self.at(0)), set(self.at(1))
        return self.reductions <= a & b and bool(a - b) and bool(b - a)

    @property
    def steps(self) -> int:
        """How often the body runs."""
        return prod(self.extents)

    def tile_bytes(self, operand: int, tiles: Sequence[int]) -> int:
        """The bytes of an operand that one tile of the loops touches."""
        reach = [_reach(r, tiles) + 1 for r in self.maps[operand].results]
        extents = shape(self.operands[operand])
        element = ir.RankedTensorType(self.operands[operand].type).element_type
        return prod(min(r, e) for r, e in zip(reach, extents, strict=True)) * element_bytes(element)


def loops_of(op: ir.Operation) -> Loops | None:
    """The loops of a linalg op on tensors; None for an op that is no nest of loops over affine indices."""
    if not op.name.startswith("linalg.") or op.name in ("linalg.softmax", "linalg.index", "linalg.yield"):
        return None
    found = linalg.get_indexing_maps(op)
    if found is None or not len(op.results):
        return None
    tensors = [isinstance(v.type, ir.RankedTensorType) for v in op.operands]
    operands = tuple(v for v, is_tensor in zip(op.operands, tensors, strict=True) if is_tensor)
    maps = tuple(ir.AffineMapAttr(m).value for m, is_tensor in zip(found, tensors, strict=True) if is_tensor)
    extents: list[int | None] = [None] * maps[0].n_dims
    for operand, map_ in zip(operands, maps, strict=True):
        for result, extent in zip(map_.results, shape(operand), strict=True):
            if isinstance(result, ir.AffineDimExpr):
                loop = int(result.position)
                known = extents[loop]
                extents[loop] = extent if known is None else min(known, extent)
    if None in extents:
        return None
    return Loops(operands, maps, tuple(e for e in extents if e is not None), len(op.results))


def _dims(expr: ir.AffineExpr) -> set[int]:
    if isinstance(expr, ir.AffineDimExpr):
        return {int(expr.position)}
    if isinstance(expr, ir.AffineBinaryExpr):
        return _dims(expr.lhs) | _dims(expr.rhs)
    return set()


def _reach(expr: ir.AffineExpr, tiles: Sequence[int]) -> int:
    """How far an index goes within a tile, from its first value on."""
    if isinstance(expr, ir.AffineDimExpr):
        return tiles[int(expr.position)] - 1
    if isinstance(expr, ir.AffineAddExpr):
        return _reach(expr.lhs, tiles) + _reach(expr.rhs, tiles)
    if isinstance(expr, ir.AffineMulExpr):
        factors = [e.value for e in (expr.lhs, expr.rhs) if isinstance(e, ir.AffineConstantExpr)]
        return abs(int(prod(factors))) * max(_reach(expr.lhs, tiles), _reach(expr.rhs, tiles))
    return 0
