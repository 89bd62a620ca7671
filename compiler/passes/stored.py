"""How an operand of a ``kv`` op lies in memory: what it is joined or a transposition of, and which axes are where."""

from __future__ import annotations

import itertools

from torch_mlir import ir

from ..dialect.kv import integer
from ..dialect.types import element_of, shape_of
from .linalg_text import Tensor, Text

Label = tuple[str, tuple[int, ...]] | None
"""What an axis of a stored tensor is: a letter and its place in it, or None where the extent is 1."""


def joined(value: ir.Value) -> list[ir.Value]:
    """The values that one was joined of along its last dimension, in order; the value alone where it was not."""
    op = None if isinstance(value.owner, ir.Block) else value.owner
    if op is None or op.name != "tensor.concat" or integer(op, "dim") != len(shape_of(value.type)) - 1:
        return [value]
    return [part for operand in op.operands for part in joined(operand)]


def stored(value: ir.Value, axes: str) -> tuple[ir.Value, list[Label]]:
    """The value that another is a transposition of, and what its axes are; the value itself where it is none.

    Looks through ``linalg.transpose`` and the reshapes behind one, as long as a letter's axes lie together in order.
    """
    labels: list[Label] = [(axis, ()) for axis in axes]
    found = value, labels
    while not isinstance(value.owner, ir.Block):
        op = value.owner
        if op.name == "linalg.transpose":
            order = list(ir.DenseI64ArrayAttr(op.attributes["permutation"]))
            labels = [labels[order.index(i)] for i in range(len(labels))]
        elif op.name == "tensor.collapse_shape":
            labels = _before_collapse(labels, _reassociation(op), shape_of(op.operands[0].type))
        elif op.name == "tensor.expand_shape":
            groups, shape = _reassociation(op), shape_of(value.type)
            wide = [[i for i in group if shape[i] != 1] for group in groups]
            if max(map(len, wide)) > 1:
                break
            labels = [labels[(w or group)[0]] for w, group in zip(wide, groups, strict=True)]
        else:
            break
        value = op.operands[0]
        if op.name == "linalg.transpose" and _together(labels, axes):
            found = value, labels
    return found


def _reassociation(op: ir.Operation) -> list[list[int]]:
    groups = ir.ArrayAttr(op.attributes["reassociation"])
    return [[ir.IntegerAttr(i).value for i in ir.ArrayAttr(group)] for group in groups]


def _before_collapse(labels: list[Label], groups: list[list[int]], shape: list[int]) -> list[Label]:
    before: list[Label] = [None] * len(shape)
    for label, group in zip(labels, groups, strict=True):
        parts = [i for i in group if shape[i] != 1] or group[:1]
        for place, i in enumerate(parts):
            before[i] = label and (label[0], (*label[1], place))
    return before


def _together(labels: list[Label], axes: str) -> bool:
    """Whether the axes of each letter follow one another in order, and none but b and h is left out."""
    letters = [label[0] for label in labels if label]
    runs = "".join(letter for letter, _ in itertools.groupby(letters))
    in_order = all(
        [label for label in labels if label and label[0] == letter]
        == sorted(label for label in labels if label and label[0] == letter)
        for letter in runs
    )
    return in_order and len(set(runs)) == len(runs) and set(axes[2:]) <= set(runs)


def argument(text: Text, name: str, type_: ir.Type, labels: list[Label]) -> Tensor:
    """An argument with one axis for each letter."""
    axes = "".join(letter for letter, _ in itertools.groupby(label[0] for label in labels if label))
    if len(axes) == len(labels):
        return Tensor(name, axes, element_of(type_))
    tensor = Tensor(f"{name}_axes", axes, element_of(type_))
    groups: dict[str, list[int]] = {letter: [] for letter in axes}
    letter = axes[0]
    for i, label in enumerate(labels):
        # an extent of 1 goes with the letter before it, or with the first
        letter = label[0] if label else letter
        groups[letter].append(i)
    text.add(f"{tensor.name} = tensor.collapse_shape {name} {[*groups.values()]} : {type_} into {text.type_of(tensor)}")
    return tensor
