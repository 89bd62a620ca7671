"""Pass ``kv-fold-numbers``: a number that the program computes from constants alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch_mlir import ir

from ..analysis.aten import owner
from ..analysis.evaluate import Evaluator, NotEvaluable, no_weights
from ..analysis.functions import body, functions
from ..dialect.types import element_of, is_tensor, shape_of
from .dead_code import erase_dead

_CONSTANTS = ("torch.constant.", "torch.vtensor.literal", "torch.prim.ListConstruct")


@dataclass(frozen=True)
class FoldNumbers:
    """An op whose operands are all constants and whose result is one f32 number becomes that number.

    Applies to the torch dialect before its lowering to linalg, which does not know every op that a model makes its
    constants with, such as the inverse error function. PyTorch computes the number, as it does in the model itself.

    Before::

        %0 = torch.vtensor.literal(dense<9.0e-01> : tensor<f32>) : !torch.vtensor<[],f32>
        %1 = torch.aten.erfinv %0 : !torch.vtensor<[],f32> -> !torch.vtensor<[],f32>

    After::

        %1 = torch.vtensor.literal(dense<1.16308713> : tensor<f32>) : !torch.vtensor<[],f32>

    See tests/lit/lower/fold_numbers.mlir.
    """

    name: ClassVar[str] = "kv-fold-numbers"

    def run(self, module: ir.Operation) -> None:
        """Rewrites the module."""
        for function in functions(module).values():
            evaluate = Evaluator({}, no_weights)
            for view in list(body(function).operations):
                _fold(view.operation, evaluate)
            erase_dead(function)


def _fold(op: ir.Operation, evaluate: Evaluator) -> None:
    if not op.name.startswith("torch.aten.") or not _is_number(op) or not all(map(_is_constant, op.operands)):
        return
    try:
        number = evaluate(op.results[0]).numpy()
    except NotEvaluable:
        return  # whether it lowers is seen later
    literal = ir.Operation.create(
        "torch.vtensor.literal",
        results=[op.results[0].type],
        attributes={"value": ir.DenseElementsAttr.get(number, shape=shape_of(op.results[0].type))},
        loc=op.location,
        ip=ir.InsertionPoint(op),
    )
    op.results[0].replace_all_uses_with(literal.results[0])


def _is_number(op: ir.Operation) -> bool:
    if len(op.results) != 1 or not is_tensor(op.results[0].type):
        return False
    type_ = op.results[0].type
    return element_of(type_) == "f32" and all(extent == 1 for extent in shape_of(type_))


def _is_constant(value: ir.Value) -> bool:
    """A constant, or what was folded to one before."""
    producer = owner(value)
    return producer is not None and producer.name.startswith(_CONSTANTS) and all(map(_is_constant, producer.operands))
