"""Numbers that a model reads from its tensors: the static program takes the tensors, and gives the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from snapcc.frontend import FrontendError
from snapcc.frontend.flat import flatten
from snapcc.frontend.specialise import Specialiser

LENGTH = 6
Step = Callable[[Tensor, Tensor, Any], Any]


class Reads(nn.Module):
    """One function of x [2, 6, 3], new [2, 1, 3] and the number in a tensor []."""

    def __init__(self, step: Step) -> None:
        super().__init__()
        self.step = step

    def forward(self, x: Tensor, new: Tensor, at: Tensor) -> Any:
        number: Any = at.item()
        torch._check(number >= 0)
        torch._check(number < LENGTH)
        return self.step(x, new, number)


def arguments(at: int) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(at)
    return torch.randn(2, LENGTH, 3, generator=generator), torch.randn(2, 1, 3, generator=generator), torch.tensor(at)


def exported(step: Step) -> ExportedProgram:
    return torch.export.export(Reads(step), arguments(2), strict=False)


def static(program: ExportedProgram) -> Any:
    shapes = {"x": (2, LENGTH, 3), "new": (2, 1, 3), "at": ()}
    return Specialiser(program, flatten(program)).at(shapes).module()


def written(x: Tensor, new: Tensor, at: Any) -> Tensor:
    x = x.clone()
    x.narrow(1, at, 1).copy_(new)
    x.select(1, at).mul_(2)
    return x


def before_and_behind(x: Tensor, new: Tensor, at: Any) -> Tensor:
    return torch.cat([x[:, :at], new, x[:, at + 1 :]], 1)


def shifted(x: Tensor, new: Tensor, at: Any) -> Tensor:
    return torch.cat([x.narrow(1, at, LENGTH - at), torch.full((2, at, 3), 7.0)], dim=1)


def padded(x: Tensor, new: Tensor, at: Any) -> Tensor:
    kept = torch.zeros(2, LENGTH, 3)
    kept[:, :at] = x[:, :at]
    return kept


EQUAL: dict[str, Step] = {
    "narrow": lambda x, new, at: x.narrow(1, at, 1),
    "slice": lambda x, new, at: x[:, at : at + 1],
    "select": lambda x, new, at: x.select(1, at),
    "slice_scatter": lambda x, new, at: torch.slice_scatter(x, new, 1, at, at + 1),
    "select_scatter": lambda x, new, at: torch.select_scatter(x, new[:, 0], 1, at),
    "in place": written,
    "joined": before_and_behind,
    "shifted": shifted,
    "padded": padded,
    "roll": lambda x, new, at: torch.roll(x, -at, 1),
    "arange": lambda x, new, at: torch.arange(at, at + 3),
    "full": lambda x, new, at: torch.full((2, 3), at),
    "scalar_tensor": lambda x, new, at: torch.scalar_tensor(at, dtype=torch.float32) * new,
    "compared": lambda x, new, at: torch.arange(LENGTH) <= at,
    "masked": lambda x, new, at: x.masked_fill(torch.arange(LENGTH)[:, None] > at, 0.0),
    "scaled": lambda x, new, at: x * at + (2 * at - 1),
    "wrapped": lambda x, new, at: torch.slice_scatter(x, new, 1, at % 4, at % 4 + 1),
    "halved": lambda x, new, at: x.narrow(1, at // 2, 1),
    "a part of a complex table": lambda x, new, at: torch.view_as_real(
        torch.polar(torch.ones(LENGTH, 3), torch.arange(3.0 * LENGTH).view(LENGTH, 3))[at : at + 1]
    ),
}


@pytest.mark.parametrize("name", EQUAL)
def test_equals_the_program_at_every_number(name: str) -> None:
    program = exported(EQUAL[name])
    ours, theirs = static(program), program.module()
    for at in range(LENGTH):
        found, wanted = ours(*arguments(at)), theirs(*arguments(at))
        assert found.dtype == wanted.dtype
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize(
    ("step", "op"),
    [
        (lambda x, new, at: x[:, : at + 1].mean(1), "aten.mean.dim"),
        (lambda x, new, at: torch.arange(at).sum(), "aten.arange.default"),
        (lambda x, new, at: x[:, :at].transpose(1, 2) @ x[:, :at], "aten.transpose.int"),
        (lambda x, new, at: torch.cat([x[:, :at], new], 1).sum(1), "aten.cat.default"),
    ],
)
def test_an_extent_that_depends_on_one_is_refused(step: Step, op: str) -> None:
    message = rf"'{op}' \(.*test_numbers\.py:\d+\) takes it, or what is as long as it: .*mask the entries that hold no"
    with pytest.raises(FrontendError, match=message):
        static(exported(step))
