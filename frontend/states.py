"""What a program carries from step to step beside its caches: which output is which input, updated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from .errors import FrontendError
from .flat import source_of
from .lengths import expression

ELEMENTS = (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32)
"""The element types that a state may have."""


@dataclass(frozen=True)
class StateInput:
    """A value of a fixed size that an output returns for the next step: an input, or a buffer written in place.

    ``input_index`` and ``output_index`` count as those of a cache. ``row_axis`` is the dimension of the rows, None
    where it has none. ``initial`` is the buffer whose value it starts with, None where it starts with zeros.
    """

    name: str
    input_index: int
    output_index: int
    row_axis: int | None
    initial: str | None


def pairs(
    inputs: Sequence[Node],
    outputs: Mapping[int, Node],
    written: Mapping[int, str],
    sources: Mapping[Node, frozenset[str]],
    used: frozenset[str],
) -> dict[str, int]:
    """For each input that is a state the output that it becomes.

    What is written in place is known by name. Outputs that are returned are those inputs of the same shape and type
    that come in the same order: a new state need not be made of the old one, as a layer's last token is not, so that
    dependence alone does not tell. Where the order contradicts it, nothing is guessed. A value that is overwritten
    before anything reads it is no state, and one that only its own next value reads is one.

    Args:
        inputs: those that may be states.
        outputs: the outputs that may be states, by index.
        written: the input of each output that is what an input or buffer becomes in place.
        sources: the inputs whose elements each value is computed from.
        used: the inputs that the logits and the caches are computed from.

    Raises:
        FrontendError: an output is made of an input of its shape, and which input it is the next value of is not known.
    """
    found = {written[i]: i for i in outputs if i in written and written[i] in {n.name for n in inputs}}
    given = [n for n in inputs if n.name not in set(written.values()) and n.users]
    free = {i: output for i, output in outputs.items() if i not in written}
    for each in dict.fromkeys(map(kind, given)):
        before = [n for n in given if kind(n) == each]
        after = {i: output for i, output in free.items() if kind(output) == each}
        _check_order(before, after, sources)
        if len(before) == len(after):
            found |= {n.name: i for n, i in zip(before, after, strict=True)}
    return _live(found, outputs, sources, used)


def check_value(node: Node, output: Node, past: bool) -> None:
    """Refuses a state that a compiled program could not hold; ``past``: whether its shape depends on the past's length.

    Raises:
        FrontendError: it grows, or has a type that no state may have.
    """
    value = node.meta["val"]
    if past:
        raise FrontendError(
            f"the input {node.name} of shape {tuple(value.shape)} comes back updated ({source_of(output)}) and is as "
            "long as the past, but it is no cache that grows by the new tokens: return torch.cat([cache, new], dim)"
        )
    if value.dtype not in ELEMENTS:
        raise FrontendError(
            f"the state {node.name} ({source_of(output)}) holds {value.dtype}: keep it in one of "
            f"{', '.join(str(e).removeprefix('torch.') for e in ELEMENTS)}"
        )


def first_value(name: str, value: Tensor | None, target: str | None, row_axis: int | None) -> str | None:
    """The buffer whose value a state starts with; None where it starts with zeros.

    Raises:
        FrontendError: the rows of the buffer differ, so that it depends on the row what a sequence starts with.
    """
    if value is None or not bool(value.any()):
        return None
    if row_axis is not None:
        first = value.narrow(row_axis, 0, 1).expand_as(value)
        if not torch.equal(value, first):
            raise FrontendError(
                f"the buffer {target} starts with other values in each row: each row is a sequence of its own, and may "
                f"come to stand anywhere; let all rows of {name} start alike"
            )
    return target


def kind(node: Node) -> Any:
    """A value's shape, in symbols, and its type."""
    value = node.meta["val"]
    return tuple(expression(extent) for extent in value.shape), value.dtype


def _check_order(before: Sequence[Node], after: Mapping[int, Node], sources: Mapping[Node, frozenset[str]]) -> None:
    """Refuses outputs that are made of inputs of their shape in another number or order than theirs."""
    names = [n.name for n in before]
    made = [output for output in after.values() if sources[output] & set(names)]
    if not made:
        return
    if len(before) != len(after):
        own = min(sources[made[0]] & set(names))
        raise FrontendError(
            f"the output {made[0].name} ({source_of(made[0])}) is made of the input {own} of its shape, as a state is, "
            f"but {len(after)} outputs and {len(before)} inputs have that shape: return one updated value for each "
            "state, in the order of the inputs, and nothing else of that shape"
        )
    kept = [name in sources[output] for name, output in zip(names, after.values(), strict=True)]
    if not all(kept) and _is_perfect([[n for n in names if n in sources[o]] for o in after.values()]):
        wrong = list(after.values())[kept.index(False)]
        raise FrontendError(
            f"the output {wrong.name} ({source_of(wrong)}) stands where the next value of the input "
            f"{names[kept.index(False)]} is expected, and is not made of it, while in another order each state is made "
            "of its own: return the states in the order of the inputs"
        )


def _is_perfect(choices: Sequence[Sequence[str]]) -> bool:
    """Whether each entry can be given one of its choices and none is given twice (augmenting paths)."""
    taken: dict[str, int] = {}

    def give(entry: int, tried: set[str]) -> bool:
        for choice in choices[entry]:
            if choice not in tried:
                tried.add(choice)
                if choice not in taken or give(taken[choice], tried):
                    taken[choice] = entry
                    return True
        return False

    return all(give(entry, set()) for entry in range(len(choices)))


def _live(
    found: Mapping[str, int],
    outputs: Mapping[int, Node],
    sources: Mapping[Node, frozenset[str]],
    used: frozenset[str],
) -> dict[str, int]:
    """Those that something reads: the logits, the caches, a state that is read, or their own next value."""
    read = set(used) | {name for name, index in found.items() if name in sources[outputs[index]]}
    while more := {s for name in read & found.keys() for s in sources[outputs[found[name]]]} - read:
        read |= more
    return {name: index for name, index in found.items() if name in read}
