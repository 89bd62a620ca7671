"""The dialect itself, its attributes, and the rules that its ops share."""

from dataclasses import dataclass
from typing import Any

from torch_mlir import ir
from torch_mlir.dialects import ext
from torch_mlir.dialects._ods_common import _cext

from ..rules import declared, fail, require
from ..types import is_tensor, shape_of

# without it the bindings look for a module torch_mlir.dialects.kv, in vain, at every kv op that they wrap
_cext.globals.append_dialect_search_prefix("snapcc.compiler.dialect")


class Kv(ext.Dialect, name="kv"):
    """The dialect; ``Kv.load()`` in a context before any of its ops is parsed or built."""


def integer(op: ir.OpView | ir.Operation, name: str) -> int:
    """The value of an integer attribute."""
    return int(ir.IntegerAttr(op.attributes[name]).value)


def number(op: ir.OpView | ir.Operation, name: str) -> float:
    """The value of a float attribute."""
    return float(ir.FloatAttr(op.attributes[name]).value)


def string(op: ir.OpView | ir.Operation, name: str) -> str:
    """The value of a string attribute."""
    return str(ir.StringAttr(op.attributes[name]).value)


def index_attribute(value: int) -> ir.IntegerAttr:
    """The i64 attribute that kv ops keep integers in."""
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)


@dataclass(frozen=True)
class Reach:
    """How far back a query of an attention sees; 0 is no bound.

    Attributes:
        window: V: position t sees those after t - V.
        chunk: c: position t sees those from ``t - t mod c`` on.
    """

    window: int = 0
    chunk: int = 0

    @staticmethod
    def of(op: ir.OpView | ir.Operation) -> "Reach":
        """That of a ``kv.attention`` or ``kv.topk_select``."""
        return Reach(*(integer(op, name) if name in op.attributes else 0 for name in ("sliding_window", "chunk")))

    @property
    def most(self) -> int:
        """The most positions that a query sees; 0 is no bound."""
        return self.window or self.chunk

    @property
    def attributes(self) -> dict[str, ir.Attribute]:
        """The attributes that say so: none where there is no bound."""
        bounds = {"sliding_window": self.window, "chunk": self.chunk}
        return {name: index_attribute(bound) for name, bound in bounds.items() if bound}


def check_tensors(op: Any) -> bool:
    """Whether an op is as declared, on ranked tensors."""
    if not declared(op):
        return False
    for value in [*op.operands, *op.results]:
        if not is_tensor(value.type):
            return fail(op, f"takes and gives ranked tensors, got {value.type}")
    return True


def check_policy(op: Any) -> bool:
    """``sink`` and ``ring``."""
    sink, ring = integer(op, "sink"), integer(op, "ring")
    if sink < 0:
        return fail(op, f"sink must be at least 0, got {sink}")
    return ring >= 1 or fail(op, f"ring must be at least 1, got {ring}")


def check_axis(op: Any, cache: ir.Value) -> bool:
    """``axis`` of a cache, behind its rows."""
    rank, axis = len(shape_of(cache.type)), integer(op, "axis")
    return 0 < axis < rank or fail(op, f"axis must lie in [1, {rank - 1}] for a cache of rank {rank}, got {axis}")


def check_batch_vector(op: Any, what: str, value: ir.Value, batch: int) -> bool:
    """A value with an entry for each row of a cache."""
    return require(op, f"{what}'s shape", shape_of(value.type), "[B] of the cache", [batch])


def check_reach(op: Any) -> bool:
    """``sliding_window`` and ``chunk``, which the bindings cannot declare, since an op may be without them."""
    given = [name for name in ("sliding_window", "chunk") if name in op.attributes]
    for name in given:
        if not isinstance(op.attributes[name], ir.IntegerAttr) or integer(op, name) < 1:
            return fail(op, f"{name} must be an integer of at least 1, got {op.attributes[name]}")
    return len(given) < 2 or fail(op, "takes a sliding_window or a chunk, not both")


def check_vector(op: Any, what: str, value: ir.Value) -> bool:
    """A value with an entry for each row."""
    return require(op, f"{what}' rank", len(shape_of(value.type)), "1, one per row", 1)


def check_rank0(op: Any, what: str, value: ir.Value) -> bool:
    """A scalar tensor."""
    return require(op, f"{what}'s shape", shape_of(value.type), "a scalar tensor", [])
