"""How the shapes of an exported program depend on the three lengths of a decoder: batch, query and past.

An exported program has symbols of its own, one per dimension that torch.export could not tie to another.
Here each is bound to an affine expression of the three lengths, so that three integers give every shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch

from .errors import FrontendError

BATCH, QUERY, PAST = sympy.symbols("batch query past", integer=True, nonnegative=True)


@dataclass(frozen=True)
class Extent:
    """``constant + batch * B + query * Q + past * P``: one extent of a shape."""

    constant: int = 0
    batch: int = 0
    query: int = 0
    past: int = 0

    def at(self, batch: int, query: int, past: int) -> int:
        """The extent at given lengths."""
        return self.constant + self.batch * batch + self.query * query + self.past * past

    @property
    def is_fixed(self) -> bool:
        """Whether the extent is the same at all lengths."""
        return not (self.batch or self.query or self.past)


@dataclass(frozen=True)
class Range:
    """The values that a program was exported for, both ends included; ``upper`` is None where there is no end."""

    lower: int
    upper: int | None

    @property
    def is_fixed(self) -> bool:
        """Whether there is one value only."""
        return self.lower == self.upper

    def __contains__(self, value: int) -> bool:
        return self.lower <= value and (self.upper is None or value <= self.upper)

    def __str__(self) -> str:
        if self.is_fixed:
            return str(self.lower)
        return f"{self.lower} or more" if self.upper is None else f"{self.lower} to {self.upper}"

    def meet(self, other: Range) -> Range:
        """The values that lie in both."""
        uppers = [u for u in (self.upper, other.upper) if u is not None]
        return Range(max(self.lower, other.lower), min(uppers) if uppers else None)


def expression(extent: int | torch.SymInt) -> sympy.Expr:
    """The symbolic expression of an extent in a FakeTensor's shape."""
    if isinstance(extent, torch.SymInt):
        node: Any = extent.node
        return sympy.sympify(node.expr)
    return sympy.Integer(extent)


class Lengths:
    """A program's symbols, bound to the lengths as its inputs are told apart."""

    def __init__(self, range_constraints: Mapping[Any, Any]) -> None:
        """``range_constraints``: those of the exported program, from expressions to ranges of values."""
        self._constraints = {sympy.sympify(e): _range(r) for e, r in range_constraints.items()}
        self._bound: dict[sympy.Symbol, sympy.Expr] = {}

    def unbound(self, expr: sympy.Expr) -> set[sympy.Symbol]:
        """The symbols of an expression that nothing has bound so far."""
        return {s for s in expr.free_symbols if s not in self._bound} - {BATCH, QUERY, PAST}

    def of(self, expr: sympy.Expr) -> sympy.Expr:
        """An expression with its bound symbols replaced."""
        return sympy.expand(expr.xreplace(self._bound))

    def bind(self, expr: sympy.Expr, target: sympy.Expr) -> bool:
        """Solves ``expr == target`` for the one symbol of ``expr`` that is free. False where it has none or several."""
        free = self.unbound(expr)
        if len(free) != 1:
            return False
        (symbol,) = free
        here = self.of(expr)
        slope = sympy.diff(here, symbol)
        if not slope.is_Integer or slope == 0:
            return False
        self._bound[symbol] = sympy.expand((target - here.subs(symbol, 0)) / slope)
        return True

    def extent(self, expr: sympy.Expr) -> Extent | None:
        """An expression as an affine form of the lengths; None where it has a free symbol or is not affine."""
        here = self.of(expr)
        if self.unbound(expr):
            return None
        slopes = [sympy.diff(here, length) for length in (BATCH, QUERY, PAST)]
        rest = here.subs({BATCH: 0, QUERY: 0, PAST: 0})
        if not all(value.is_Integer for value in (*slopes, rest)):
            return None
        return Extent(int(rest), *(int(s) for s in slopes))

    def range(self, length: sympy.Symbol, least: int) -> Range:
        """The values of a length that the program's constraints allow whatever the others are, from ``least`` on."""
        result = Range(least, None)
        for expr, allowed in self._constraints.items():
            if self.unbound(expr):
                continue
            extent = self.of(expr)
            slope, rest = sympy.diff(extent, length), extent.subs(length, 0)
            if extent.free_symbols != {length} or not slope.is_positive:
                continue
            lower = sympy.ceiling((allowed.lower - rest) / slope)
            upper = None if allowed.upper is None else int(sympy.floor((allowed.upper - rest) / slope))
            result = result.meet(Range(int(lower), upper))
        return result

    def check(self, batch: int, query: int, past: int) -> None:
        """Checks that the program was exported for given lengths.

        Raises:
            FrontendError: a symbol would not be a whole number, or lies outside its range.
        """
        at = {BATCH: batch, QUERY: query, PAST: past}
        where = f"batch {batch}, query {query}, past {past}"
        values: dict[sympy.Symbol, int] = {}
        for symbol, expr in self._bound.items():
            value = expr.subs(at)
            if not value.is_Integer or value < 0:
                raise FrontendError(
                    f"the program cannot take {where}: its dimension {symbol} would be {value}; "
                    "choose lengths that give a whole number, or export it with dimensions of their own"
                )
            values[symbol] = int(value)
        for expr, allowed in self._constraints.items():
            if expr.free_symbols <= values.keys():
                value = int(expr.xreplace({s: sympy.Integer(v) for s, v in values.items()}))
                if value not in allowed:
                    raise FrontendError(
                        f"the program cannot take {where}: its dimension {self.of(expr)} is {value}, "
                        f"and it was exported for {allowed}; export it with wider bounds"
                    )


def _range(constraint: Any) -> Range:
    # torch.export gives a dimension without a stated minimum the lower end 2 and still runs it at 0 and 1
    # (torch/_export/utils.py: "we allow dimensions to be 0/1 at runtime"), so 2 is no bound.
    lower, upper = constraint.lower, constraint.upper
    least = int(lower) if getattr(lower, "is_Integer", False) and lower != 2 else 0
    return Range(max(least, 0), int(upper) if getattr(upper, "is_Integer", False) else None)
