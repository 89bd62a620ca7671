"""Builds ops of the torch dialect before a given op, at a given location."""

from __future__ import annotations

from collections.abc import Sequence

from torch_mlir import ir

from ..dialect.types import element_of, shape_of, vtensor

_SCALAR_TYPES = {"si32": 3, "si64": 4, "f16": 5, "f32": 6, "f64": 7, "bf16": 15}
"""PyTorch's number of an element type, as the torch dialect spells a dtype."""


class TorchBuilder:
    """Ops before ``anchor``, with ``location`` (the anchor's own by default)."""

    def __init__(self, anchor: ir.Operation, location: ir.Location | None = None) -> None:
        self._point = ir.InsertionPoint(anchor)
        self._location = location or anchor.location

    def op(self, name: str, operands: Sequence[ir.Value], type_: ir.Type) -> ir.Value:
        """An op of one result."""
        return ir.Operation.create(
            name, results=[type_], operands=list(operands), loc=self._location, ip=self._point
        ).results[0]

    def _constant(self, name: str, attribute: ir.Attribute | None) -> ir.Value:
        attributes = {} if attribute is None else {"value": attribute}
        return ir.Operation.create(
            f"torch.constant.{name}",
            results=[ir.Type.parse(f"!torch.{name}")],
            attributes=attributes,
            loc=self._location,
            ip=self._point,
        ).results[0]

    def integer(self, value: int) -> ir.Value:
        """A ``!torch.int``."""
        return self._constant("int", ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value))

    def floats(self, values: Sequence[Sequence[float]]) -> ir.Value:
        """A matrix of f32 constants."""
        numbers = ", ".join(f"[{', '.join(f'{v:.9e}' for v in row)}]" for row in values)
        type_ = f"tensor<{len(values)}x{len(values[0])}xf32>"
        return ir.Operation.create(
            "torch.vtensor.literal",
            results=[vtensor([len(values), len(values[0])], "f32")],
            attributes={"value": ir.Attribute.parse(f"dense<[{numbers}]> : {type_}")},
            loc=self._location,
            ip=self._point,
        ).results[0]

    def indices(self, values: Sequence[int]) -> ir.Value:
        """A vector of i64 constants."""
        type_ = f"tensor<{len(values)}xsi64>"
        return ir.Operation.create(
            "torch.vtensor.literal",
            results=[vtensor([len(values)], "si64")],
            attributes={"value": ir.Attribute.parse(f"dense<{list(values)}> : {type_}")},
            loc=self._location,
            ip=self._point,
        ).results[0]

    def float(self, value: float) -> ir.Value:
        """A ``!torch.float``."""
        return self._constant("float", ir.FloatAttr.get(ir.F64Type.get(), value))

    def zeros(self, shape: Sequence[int], element: str) -> ir.Value:
        """A tensor of zeros."""
        none = self.none()
        kind = self.integer(_SCALAR_TYPES[element])
        return self.op("torch.aten.zeros", [self.integers(shape), kind, none, none, none], vtensor(shape, element))

    def slice(self, value: ir.Value, at: int, start: int, end: int) -> ir.Value:
        """The entries ``start .. end - 1`` along a dimension; ``value`` itself where these are all."""
        shape = shape_of(value.type)
        if (start, end) == (0, shape[at]):
            return value
        operands = [value, *(self.integer(v) for v in (at, start, end, 1))]
        shape[at] = end - start
        return self.op("torch.aten.slice.Tensor", operands, vtensor(shape, element_of(value.type)))

    def boolean(self, value: bool) -> ir.Value:
        """A ``!torch.bool``."""
        return self._constant("bool", ir.BoolAttr.get(value))

    def none(self) -> ir.Value:
        """A ``!torch.none``."""
        return self._constant("none", None)

    def integers(self, values: Sequence[int]) -> ir.Value:
        """A ``!torch.list<int>``."""
        return self.op("torch.prim.ListConstruct", [self.integer(v) for v in values], ir.Type.parse("!torch.list<int>"))

    def arange(self, end: int, start: int = 0) -> ir.Value:
        """The numbers ``start .. end - 1``, [N] i64."""
        none = self.none()
        numbers = [self.integer(v) for v in (start, end, 1, _SCALAR_TYPES["si64"])]
        return self.op("torch.aten.arange.start_step", [*numbers, none, none, none], vtensor([end - start], "si64"))

    def tensors(self, values: Sequence[ir.Value]) -> ir.Value:
        """A ``!torch.list<vtensor>``."""
        return self.op("torch.prim.ListConstruct", values, ir.Type.parse("!torch.list<vtensor>"))

    def view(self, value: ir.Value, shape: Sequence[int]) -> ir.Value:
        """``value`` with another shape; itself where that is the shape it has."""
        if shape_of(value.type) == list(shape):
            return value
        return self.op("torch.aten.view", [value, self.integers(shape)], vtensor(shape, element_of(value.type)))

    def expand(self, value: ir.Value, shape: Sequence[int]) -> ir.Value:
        """``value`` broadcast to a shape; itself where that is the shape it has."""
        if shape_of(value.type) == list(shape):
            return value
        operands = [value, self.integers(shape), self.boolean(False)]
        return self.op("torch.aten.expand", operands, vtensor(shape, element_of(value.type)))

    def permute(self, value: ir.Value, order: Sequence[int]) -> ir.Value:
        """``value`` with its dimensions in another order; itself where that is the order they have."""
        if list(order) == list(range(len(order))):
            return value
        shape = shape_of(value.type)
        return self.op(
            "torch.aten.permute",
            [value, self.integers(order)],
            vtensor([shape[i] for i in order], element_of(value.type)),
        )

    def add_integer(self, value: ir.Value, amount: int) -> ir.Value:
        """``value + amount``; itself for 0."""
        if amount == 0:
            return value
        return self.op("torch.aten.add.Scalar", [value, self.integer(amount), self.integer(1)], value.type)

    def cast(self, value: ir.Value, element: str) -> ir.Value:
        """``value`` with another element type; itself where that is the one it has."""
        if element_of(value.type) == element:
            return value
        none, false = self.none(), self.boolean(False)
        return self.op(
            "torch.aten._to_copy",
            [value, self.integer(_SCALAR_TYPES[element]), none, none, none, false, none],
            vtensor(shape_of(value.type), element),
        )
