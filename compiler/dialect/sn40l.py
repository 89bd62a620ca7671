"""The sn40l dialect: a program's plan for a static dataflow machine, as IR beside the functions that it is of.

One ``sn40l.plan`` stands at the end of the module. Inside are the machine's tiers, nearest first, and then, function by
function, sections and transfers in the order in which the machine runs them: the schedule. A section holds its buffers
in the first tier, its stages, one for each of its ops, with their tiles, and transfers between them. Ops are named
by their position in their function, tensors by the names that ``plan.json`` has. Where tensors stand is written on the
ops that make them (``sn40l.tier``, ``sn40l.offset``, ``sn40l.bytes``).
"""

from itertools import pairwise
from typing import Any

from torch_mlir import ir
from torch_mlir.dialects import ext

from .kv import integer, string
from .rules import declared, fail, require


class Sn40l(ext.Dialect, name="sn40l"):
    """The dialect; ``Sn40l.load()`` in a context before any of its ops is parsed or built."""


_ROLES = ("tile", "resident")
_MOVES = ("fill", "spill", "prefetch")


def _array(op: Any, name: str) -> list[int]:
    return [int(ir.IntegerAttr(n).value) for n in ir.ArrayAttr(op.attributes[name])]


def _inside(op: Any) -> list[Any]:
    """The ops of the one block of an op's region."""
    blocks = op.operation.regions[0].blocks if len(op.operation.regions) == 1 else []
    return [inner.operation for block in blocks for inner in block.operations]


def _stands_in(op: Any, name: str) -> Any:
    """The op around an op; None, and a refusal, where it is none of that name."""
    around = op.operation.parent
    if around is not None and around.name == name:
        return around
    fail(op, f"must stand in '{name}', got {around.name if around is not None else 'nothing'!r}")
    return None


def _holds(op: Any, *kinds: Any) -> bool:
    """Whether an op holds ops of some kinds alone, each as it is declared: MLIR looks at them only after it."""
    names = [kind.OPERATION_NAME for kind in kinds]
    others = [inner.name for inner in _inside(op) if inner.name not in names]
    if others:
        return fail(op, f"holds {' and '.join(names)}, got {others[0]}")
    return all(declared(inner.opview) for inner in _inside(op))


def _tiers(plan: Any) -> dict[str, Any]:
    return {string(inner, "tier"): inner for inner in _inside(plan) if inner.name == TierOp.OPERATION_NAME}


def _at_least(op: Any, least: int, *names: str) -> bool:
    wrong = next((name for name in names if integer(op, name) < least), None)
    return wrong is None or fail(op, f"{wrong} must be at least {least}, got {integer(op, wrong)}")


class PlanOp(Sn40l.Operation, name="plan", traits=[ir.NoTerminatorTrait]):
    """The plan of a module for a machine of so many compute units.

    See tests/lit/sn40l/plan.mlir and tests/lit/dialect/sn40l.mlir.
    """

    machine: ir.StringAttr
    compute_units: ir.IntegerAttr
    body: ext.Region

    @staticmethod
    def verify_invariants(op: Any) -> bool:
        if not (declared(op) and _at_least(op, 1, "compute_units")):
            return False
        if not _holds(op, TierOp, SectionOp, TransferOp):
            return False
        names = [string(inner, "tier") for inner in _inside(op) if inner.name == TierOp.OPERATION_NAME]
        if not names:
            return fail(op, "needs at least one tier, got none")
        return require(op, "the tiers' names", names, "different", list(dict.fromkeys(names)))


class TierOp(Sn40l.Operation, name="tier"):
    """A memory of the machine, in bytes: capacity, steps of its offsets, and the units that it is made of.

    ``unit`` is ``granularity`` where the tier is one flat memory.
    See tests/lit/dialect/sn40l.mlir.
    """

    tier: ir.StringAttr
    capacity: ir.IntegerAttr
    granularity: ir.IntegerAttr
    unit: ir.IntegerAttr

    @staticmethod
    def verify_invariants(op: Any) -> bool:
        if not (declared(op) and _stands_in(op, PlanOp.OPERATION_NAME)):
            return False
        if not _at_least(op, 1, "capacity", "granularity", "unit"):
            return False
        unit, step = integer(op, "unit"), integer(op, "granularity")
        return unit % step == 0 or fail(op, f"unit must be a multiple of the granularity, got {unit} and {step}")


class SectionOp(Sn40l.Operation, name="section", traits=[ir.NoTerminatorTrait]):
    """A kernel: stages that run beside one another and pass tiles on; ``starts`` says why it starts where it does.

    Its stages' compute units are at most the plan's. No two of its buffers share a byte of the first tier.
    See tests/lit/dialect/sn40l.mlir.
    """

    function: ir.StringAttr
    section: ir.StringAttr
    starts: ir.StringAttr
    body: ext.Region

    @staticmethod
    def verify_invariants(op: Any) -> bool:
        plan = _stands_in(op, PlanOp.OPERATION_NAME) if declared(op) else None
        if plan is None or not _holds(op, BufferOp, StageOp, TransferOp):
            return False
        stages = [i for i in _inside(op) if i.name == StageOp.OPERATION_NAME]
        if not stages:
            return fail(op, "needs at least one stage, got none")
        positions = [integer(stage, "position") for stage in stages]
        if not require(op, "the stages' positions", positions, "in the program's order", sorted(set(positions))):
            return False
        taken, limit = sum(integer(stage, "compute_units") for stage in stages), integer(plan, "compute_units")
        if taken > limit:
            return fail(op, f"takes {taken} compute units, and the plan has {limit}")
        buffers = [i for i in _inside(op) if i.name == BufferOp.OPERATION_NAME and integer(i, "bytes")]
        buffers.sort(key=lambda buffer: integer(buffer, "offset"))
        for a, b in pairwise(buffers):
            end, start = integer(a, "offset") + integer(a, "bytes"), integer(b, "offset")
            if end > start:
                names = string(a, "tensor"), string(b, "tensor")
                return fail(
                    op, f"its buffer of {names[0]} ends at byte {end}, and that of {names[1]} starts at {start}"
                )
        return True


class StageOp(Sn40l.Operation, name="stage"):
    """The op at a position on its share of the machine, and how many steps of each of its loops are one tile.

    ``loops`` and ``tile`` are empty for an op that is no nest of loops over affine indices; ``work`` counts the whole
    op's arithmetic operations.
    See tests/lit/dialect/sn40l.mlir.
    """

    position: ir.IntegerAttr
    loops: ir.ArrayAttr
    tile: ir.ArrayAttr
    work: ir.IntegerAttr
    compute_units: ir.IntegerAttr

    @staticmethod
    def verify_invariants(op: Any) -> bool:
        if not (declared(op) and _stands_in(op, SectionOp.OPERATION_NAME)):
            return False
        if not (_at_least(op, 0, "position", "work") and _at_least(op, 1, "compute_units")):
            return False
        for name in ("loops", "tile"):
            if not all(isinstance(n, ir.IntegerAttr) for n in ir.ArrayAttr(op.attributes[name])):
                return fail(op, f"{name} must be an array of integers, got {op.attributes[name]}")
        loops, tile = _array(op, "loops"), _array(op, "tile")
        if not require(op, "tile's length", len(tile), "that of loops", len(loops)):
            return False
        within = all(0 < t <= n for t, n in zip(tile, loops, strict=True))
        return within or fail(op, f"tile must lie within loops, got {tile} of {loops}")


class BufferOp(Sn40l.Operation, name="buffer"):
    """What a section keeps of a tensor in the first tier: ``copies`` of ``part`` bytes, in ``bytes`` at an ``offset``.

    ``role``: ``tile``, passed on part by part from stage to stage, or from and to another tier; ``resident``, whole.
    See tests/lit/dialect/sn40l.mlir.
    """

    tensor: ir.StringAttr
    role: ir.StringAttr
    part: ir.IntegerAttr
    copies: ir.IntegerAttr
    offset: ir.IntegerAttr
    bytes: ir.IntegerAttr

    @staticmethod
    def verify_invariants(op: Any) -> bool:
        section = _stands_in(op, SectionOp.OPERATION_NAME) if declared(op) else None
        if section is None or not (_at_least(op, 0, "part", "offset", "bytes") and _at_least(op, 1, "copies")):
            return False
        if string(op, "role") not in _ROLES:
            return fail(op, f"role must be one of {', '.join(_ROLES)}, got {string(op, 'role')}")
        needed, taken = integer(op, "copies") * integer(op, "part"), integer(op, "bytes")
        if taken < needed:
            return fail(op, f"needs {needed} bytes for {integer(op, 'copies')} copies, and takes {taken}")
        plan = section.parent
        if plan.name != PlanOp.OPERATION_NAME:
            return True
        tier = next(iter(_tiers(plan).values()))
        end, capacity = integer(op, "offset") + taken, integer(tier, "capacity")
        return end <= capacity or fail(op, f"ends at byte {end}, and {string(tier, 'tier')} has {capacity}")


class TransferOp(Sn40l.Operation, name="transfer"):
    """A tensor's contents moved between two tiers, at the position of the op that they are moved for.

    ``move``: ``fill``, to the first tier, in front of that op; ``spill``, out of it, behind it; ``prefetch``, of a
    weight for the section that starts at the op, while the section in front of that one runs. It stands among the
    stages of the section during which it is, or between sections.
    See tests/lit/dialect/sn40l.mlir.
    """

    function: ir.StringAttr
    move: ir.StringAttr
    tensor: ir.StringAttr
    bytes: ir.IntegerAttr
    position: ir.IntegerAttr
    source_tier: ir.StringAttr
    source: ir.IntegerAttr
    target_tier: ir.StringAttr
    target: ir.IntegerAttr

    @staticmethod
    def verify_invariants(op: Any) -> bool:
        if not (declared(op) and _at_least(op, 0, "bytes", "position", "source", "target")):
            return False
        around = op.operation.parent
        inner = around is not None and around.name == SectionOp.OPERATION_NAME
        plan = around.parent if inner else _stands_in(op, PlanOp.OPERATION_NAME)
        if plan is None:
            return False
        if string(op, "move") not in _MOVES:
            return fail(op, f"move must be one of {', '.join(_MOVES)}, got {string(op, 'move')}")
        tiers = _tiers(plan)
        for end in ("source", "target"):
            tier = tiers.get(string(op, f"{end}_tier"))
            if tier is None:
                return fail(op, f"{end}_tier must be one of {', '.join(tiers)}, got {string(op, f'{end}_tier')}")
            last, capacity = integer(op, end) + integer(op, "bytes"), integer(tier, "capacity")
            if last > capacity:
                return fail(op, f"{end} ends at byte {last}, and {string(tier, 'tier')} has {capacity}")
        return string(op, "source_tier") != string(op, "target_tier") or fail(
            op, f"must move between two tiers, got {string(op, 'source_tier')} twice"
        )
