"""MLIR of tensors and linalg, written line by line, with a letter for each axis."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class Tensor:
    """A value of the text: its name, a letter for each of its axes, its element type."""

    name: str
    axes: str
    element: str


class Text:
    """Lines of MLIR. ``extents`` has each axis's extent: a number, or the name of an index value."""

    def __init__(self, extents: dict[str, int | str]) -> None:
        self.extents = extents
        self.lines: list[str] = []

    def add(self, line: str) -> None:
        """One more line."""
        self.lines.append(line)

    def type(self, axes: str, element: str) -> str:
        """The type of a tensor with these axes."""
        extents = [self.extents[axis] for axis in axes]
        return f"tensor<{''.join(f'{e}x' if isinstance(e, int) else '?x' for e in extents)}{element}>"

    def type_of(self, tensor: Tensor) -> str:
        """A tensor's type."""
        return self.type(tensor.axes, tensor.element)

    def sizes(self, axes: str) -> str:
        """The extents of axes, separated by commas."""
        return ", ".join(str(self.extents[axis]) for axis in axes)

    def empty(self, name: str, axes: str, element: str = "f32") -> Tensor:
        """A tensor that holds nothing yet."""
        dynamic = ", ".join(str(self.extents[axis]) for axis in axes if isinstance(self.extents[axis], str))
        self.add(f"%{name} = tensor.empty({dynamic}) : {self.type(axes, element)}")
        return Tensor(f"%{name}", axes, element)

    def filled(self, name: str, axes: str, value: str) -> Tensor:
        """An f32 tensor that holds ``value`` throughout."""
        empty, type_ = self.empty(f"{name}_empty", axes), self.type(axes, "f32")
        self.add(f"%{name} = linalg.fill ins({value} : f32) outs({empty.name} : {type_}) -> {type_}")
        return Tensor(f"%{name}", axes, "f32")

    def split(self, name: str, tensor: Tensor, axis: str, parts: str) -> Tensor:
        """One axis as several."""
        result = Tensor(f"%{name}", tensor.axes.replace(axis, parts), tensor.element)
        groups = _groups(tensor.axes, axis, parts)
        shape, types = self.sizes(result.axes), f"{self.type_of(tensor)} into {self.type_of(result)}"
        self.add(f"%{name} = tensor.expand_shape {tensor.name} {groups} output_shape [{shape}] : {types}")
        return result

    def join(self, name: str, tensor: Tensor, parts: str, axis: str) -> Tensor:
        """Several axes, one after the other, as one."""
        result = Tensor(f"%{name}", tensor.axes.replace(parts, axis), tensor.element)
        groups, types = _groups(result.axes, axis, parts), f"{self.type_of(tensor)} into {self.type_of(result)}"
        self.add(f"%{name} = tensor.collapse_shape {tensor.name} {groups} : {types}")
        return result

    def slice(self, name: str, tensor: Tensor, axis: str, part: str, offset: str) -> Tensor:
        """The extent of ``part`` along ``axis``, from ``offset`` on."""
        result = Tensor(f"%{name}", tensor.axes.replace(axis, part), tensor.element)
        place = self.place(result, part, offset)
        types = f"{self.type_of(tensor)} to {self.type_of(result)}"
        self.add(f"%{name} = tensor.extract_slice {tensor.name}{place} : {types}")
        return result

    def place(self, part: Tensor, axis: str, offset: str) -> str:
        """Offsets, sizes and strides of a part that starts at ``offset`` along ``axis``."""
        offsets = ", ".join(offset if a == axis else "0" for a in part.axes)
        return f"[{offsets}] [{self.sizes(part.axes)}] [{', '.join('1' for _ in part.axes)}]"

    def generic(
        self,
        name: str,
        loops: str,
        inputs: Sequence[tuple[str, Tensor]],
        init: Tensor,
        body: Sequence[str],
        result: str,
    ) -> Tensor:
        """A ``linalg.generic``: the loops that are no axis of ``init`` are reduced.

        ``inputs`` go by the names of their elements in ``body``; ``init``'s element is ``%old``.
        """
        operands = [*(tensor for _, tensor in inputs), init]
        maps = ", ".join(f"affine_map<({', '.join(loops)}) -> ({', '.join(t.axes)})>" for t in operands)
        kinds = ", ".join('"parallel"' if axis in init.axes else '"reduction"' for axis in loops)
        names, types = ", ".join(t.name for _, t in inputs), ", ".join(self.type_of(t) for _, t in inputs)
        arguments = ", ".join(f"{element}: {tensor.element}" for element, tensor in [*inputs, ("%old", init)])
        self.lines += [
            f"%{name} = linalg.generic {{indexing_maps = [{maps}], iterator_types = [{kinds}]}}",
            f"    ins({names} : {types}) outs({init.name} : {self.type_of(init)}) {{",
            f"^bb0({arguments}):",
            *body,
            f"linalg.yield {result} : {init.element}",
            f"}} -> {self.type_of(init)}",
        ]
        return Tensor(f"%{name}", init.axes, init.element)


def _groups(axes: str, axis: str, parts: str) -> str:
    """The reassociation under which ``axis`` of ``axes`` is ``parts``, and every other axis itself."""
    groups, at = [], 0
    for a in axes:
        count = len(parts) if a == axis else 1
        groups.append(list(range(at, at + count)))
        at += count
    return str(groups)
