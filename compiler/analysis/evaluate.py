"""Evaluates the part of a program that depends on no data, with PyTorch itself.

How a mask is spelled does not matter then: ``tril``, ``arange`` comparisons, a sliced buffer or a cumulative
sum all become the numbers that they are. An op ``torch.aten.x.y`` is called as ``torch.ops.aten.x.y``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from torch_mlir import ir

from ..dialect.kv import string
from ..dialect.types import element_of, is_tensor, shape_of
from .aten import NotConstant, constant, owner

if TYPE_CHECKING:
    import torch

Weights = Callable[[str], "torch.Tensor | None"]
"""Gives the value of a parameter or buffer by name, or None where it is not at hand."""


def no_weights(name: str) -> torch.Tensor | None:
    """The lookup of a program whose weights are not at hand."""
    return None


LARGEST = 1 << 28
"""Elements of the largest tensor that is evaluated."""


class NotEvaluable(Exception):
    """The value depends on data; ``value`` is where the walk stopped and ``why`` is for a message."""

    def __init__(self, value: ir.Value, why: str) -> None:
        super().__init__(why)
        self.value = value
        self.why = why


class Evaluator:
    """Values of one function, given those of some of its arguments."""

    def __init__(self, arguments: Mapping[ir.Value, torch.Tensor], weights: Weights) -> None:
        self._known: dict[ir.Value, Any] = dict(arguments)
        self._weights = weights

    def __call__(self, value: ir.Value) -> torch.Tensor:
        """The value as a tensor.

        Raises:
            NotEvaluable: it depends on an argument that was not given, or on an op that PyTorch cannot call.
        """
        pending = [value]
        while pending:
            top = pending[-1]
            if top in self._known:
                pending.pop()
                continue
            missing = [v for v in self._needs(top) if v not in self._known]
            if missing:
                pending += missing
                continue
            self._compute(top)
        result: torch.Tensor = self._known[value]
        return result

    def _needs(self, value: ir.Value) -> list[ir.Value]:
        producer = owner(value)
        if producer is None:
            raise NotEvaluable(value, "it depends on an input of the program")
        if producer.name.startswith("kv.") and producer.name != "kv.parameter":
            raise NotEvaluable(value, "it depends on the cache")
        return list(producer.operands)

    def _compute(self, value: ir.Value) -> None:
        producer = owner(value)
        assert producer is not None
        if producer.name.startswith("torch.constant."):
            self._known[value] = constant(value)
        elif producer.name == "torch.prim.ListConstruct":
            self._known[value] = [self._known[v] for v in producer.operands]
        elif producer.name == "torch.vtensor.literal":
            try:
                self._known[value] = literal(producer)
            except NotConstant:
                raise NotEvaluable(value, f"a constant of {element_of(value.type)} cannot be read") from None
        elif producer.name == "torch.prim.NumToTensor.Scalar":
            self._known[value] = _scalar_tensor(self._known[producer.operands[0]])
        elif producer.name == "kv.parameter":
            weight = self._weights(string(producer, "parameter"))
            if weight is None:
                name = string(producer, "parameter")
                raise NotEvaluable(value, f"the value of the buffer '{name}' is not at hand")
            self._known[value] = weight
        else:
            self._call(producer)

    def _call(self, producer: ir.Operation) -> None:
        for result in producer.results:
            count = math.prod(shape_of(result.type)) if is_tensor(result.type) else 1
            if count > LARGEST:
                raise NotEvaluable(result, f"it has {count:,} elements, more than the {LARGEST:,} that are evaluated")
        try:
            results = call_torch(producer, [self._known[v] for v in producer.operands])
        except (IndexError, RuntimeError) as error:
            reason = str(error).strip().partition("\n")[0]
            raise NotEvaluable(producer.results[0], f"'{producer.name}' fails: {reason}") from None
        if results is None:
            raise NotEvaluable(producer.results[0], f"'{producer.name}' is no PyTorch op")
        for result, computed in zip(producer.results, results, strict=True):
            self._known[result] = computed


def _scalar_tensor(number: float) -> torch.Tensor:
    import torch

    return torch.tensor(number)


def call_torch(producer: ir.Operation, operands: list[Any]) -> list[Any] | None:
    """Calls the PyTorch op that a torch-dialect op stands for; None where there is none."""
    import torch

    _, library, packet_name, overload = (*producer.name.split("."), "default", "", "")[:4]
    library_ops = getattr(torch.ops, library, None) if library in ("aten", "prims") else None
    function = getattr(getattr(library_ops, packet_name, None), overload or "default", None)
    if function is None:
        return None
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for declared, given in zip(function._schema.arguments, operands, strict=True):
        converted = _scalar_type(given) if "ScalarType" in str(declared.real_type) and given is not None else given
        if declared.kwarg_only:
            named[declared.name] = converted
        else:
            positional.append(converted)
    results = function(*positional, **named)
    return list(results) if isinstance(results, tuple) else [results]


def _scalar_type(number: int) -> torch.dtype:
    """PyTorch's dtype by its c10 number, which is how the torch dialect spells it."""
    import torch

    return {
        0: torch.uint8,
        1: torch.int8,
        2: torch.int16,
        3: torch.int32,
        4: torch.int64,
        5: torch.float16,
        6: torch.float32,
        7: torch.float64,
        11: torch.bool,
        15: torch.bfloat16,
    }[number]


def literal(producer: ir.Operation) -> torch.Tensor:
    """The value of a ``torch.vtensor.literal``.

    Raises:
        NotConstant: its element type has no reader.
    """
    import numpy as np
    import torch

    attribute = producer.attributes["value"]
    kind = element_of(producer.results[0].type)
    half = {"bf16": torch.bfloat16, "f16": torch.float16}.get(kind)
    if half is not None and isinstance(attribute, ir.DenseElementsAttr) and attribute.is_splat:
        number = ir.FloatAttr(attribute.get_splat_value()).value
        return torch.full(shape_of(producer.results[0].type), number, dtype=half)
    dtype = {"f32": "float32", "f64": "float64", "si64": "int64", "si32": "int32", "i1": "bool", "ui8": "uint8"}.get(
        kind
    )
    if dtype is None or not isinstance(attribute, ir.DenseElementsAttr):
        raise NotConstant
    shape = shape_of(producer.results[0].type)
    if kind.startswith("f"):
        values = [float(x) for x in ir.DenseFPElementsAttr(attribute)]
    else:
        values = [int(x) for x in ir.DenseIntElementsAttr(attribute)]
    return torch.from_numpy(np.array(values, dtype=dtype).reshape(shape))
