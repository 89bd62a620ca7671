"""The fewest bytes that a function's buffers can move: an exact solver for small graphs, the planner's oracle.

The same problem as ``stays.keep``'s, offsets included, as an integer program for OR-tools' CP-SAT. A boolean for
each possible stay of each buffer; no two stays of one buffer share a use; a stay is a rectangle in time and space, and
no two rectangles overlap. It needs ``ortools``, which only the tests have to have.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .machine import Tier
from .residency import Item, Residency, Stay, traffic

if TYPE_CHECKING:
    from ortools.sat.python import cp_model


class NotSolved(RuntimeError):
    """The solver found no proof of an optimum in the time that it had."""


def solve(items: Sequence[Item], tier: Tier, base: int = 0, seconds: float = 60.0) -> Residency:
    """The stays that move the fewest bytes.

    Args:
        items: the buffers; their number of uses should be small.
        tier: the nearest tier.
        base: its first byte that may be used, a multiple of its granularity.
        seconds: how long the solver may take.

    Raises:
        NotSolved: it takes longer.
    """
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    step = int(tier.granularity.value)
    unit = None if tier.unit is None else int(tier.unit.value) // step
    chosen: dict[tuple[str, Stay], tuple[cp_model.IntVar, cp_model.IntVar]] = {}
    times, spaces, cost = [], [], []
    for item in items:
        uses, size = item.life.uses, -(-item.bytes // step)
        highest = (tier.bytes - item.bytes) // step
        if not item.bytes:
            continue
        by_use: list[list[cp_model.IntVar]] = [[] for _ in uses]
        by_gap: list[list[cp_model.IntVar]] = [[] for _ in item.gaps]
        for a, b in _possible(item) if highest >= base // step else ():
            name = f"{item.name} {a} {b}"
            present, offset = model.new_bool_var(name), model.new_int_var(base // step, highest, name)
            chosen[item.name, (a, b)] = present, offset
            length = uses[b] + 1 - uses[a]
            times.append(model.new_optional_fixed_size_interval_var(uses[a], length, present, name))
            spaces.append(model.new_optional_fixed_size_interval_var(offset, size, present, name))
            if unit is not None:
                within = model.new_int_var(0, unit - 1, name)
                model.add_modulo_equality(within, offset, unit)
                model.add(within + size <= unit if size <= unit else within == 0)
            for use in range(a, b + 1):
                by_use[use].append(present)
            for gap in range(a, max(b, a + 1)):
                by_gap[gap].append(present)
        for stays in by_use:
            model.add_at_most_one(stays)
        cost += [item.bytes * term for term in _moves(model, item, by_use, by_gap)]
    model.add_no_overlap_2d(times, spaces)
    model.minimize(sum(cost))
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 0
    status = solver.solve(model)
    if status != cp_model.OPTIMAL:
        raise NotSolved(f"no proven optimum after {seconds:g} s for {len(items)} buffers: {solver.status_name(status)}")
    found = Residency()
    for (name, stay), (present, offset) in chosen.items():
        if solver.value(present):
            found.stays.setdefault(name, {})[stay] = solver.value(offset) * step
    found.traffic = sum(traffic(item, list(found.of(item.name))) for item in items)
    return found


def _possible(item: Item) -> list[Stay]:
    count = len(item.life.uses)
    return [(0, 0)] if count == 1 else [(a, b) for a in range(count) for b in range(a + 1, count)]


def _moves(
    model: cp_model.CpModel,
    item: Item,
    by_use: Sequence[Sequence[cp_model.IntVar]],
    by_gap: Sequence[Sequence[cp_model.IntVar]],
) -> list[cp_model.LinearExprT]:
    """The moves of a buffer, as terms that are 0 or 1."""
    uses = item.life.uses
    found: list[cp_model.LinearExprT] = []
    for use, step in enumerate(uses):
        if item.life.reads(step):
            found.append(1 - sum(by_gap[use - 1] if use else by_use[0]))
        if step in item.life.rereads:
            found.append(1 - sum(by_use[use]))
        if step in item.life.writes:
            stored = model.new_bool_var("")
            model.add(stored >= 1 - sum(by_use[use]))
            end = next((u for u in range(use + 1, len(uses)) if uses[u] in item.life.writes), len(uses) - 1)
            for gap in range(use, end):
                if item.needed(gap):
                    model.add(stored >= 1 - sum(by_gap[gap]))
            found.append(stored)
    return found
