"""The decoder: the one type that every source of a model ends in."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from .complex_pairs import pair
from .errors import FrontendError
from .flat import FlatProgram, flatten, source_of
from .guards import check_guards
from .lengths import Lengths, Range
from .roles import CacheInput, Input, Role, tell_roles
from .specialise import Specialiser
from .states import StateInput

LONGEST_TRIED = 1 << 20
"""The longest past at which an exported program's conditions are tried where nothing else says how far it goes."""


@dataclass(frozen=True)
class Decoder:
    """A decoder with caches, as torch.export gave it, with its inputs told apart.

    A buffer that the program writes to is one of its inputs and outputs. ``states`` are what it carries from step to
    step beside its caches. ``logits`` is an index among the flat outputs. ``max_positions`` is the longest sequence
    that the model is made for, where that is known. ``batch``, ``query`` (new tokens) and ``past`` (cached tokens) are
    the lengths that one call takes.
    """

    name: str
    program: ExportedProgram
    inputs: tuple[Input, ...]
    logits: int
    caches: tuple[CacheInput, ...]
    states: tuple[StateInput, ...]
    vocabulary: int
    max_positions: int | None
    batch: Range
    query: Range
    past: Range
    _flat: FlatProgram = field(repr=False, compare=False)
    _lengths: Lengths = field(repr=False, compare=False)

    @property
    def input_names(self) -> list[str]:
        """The inputs of the program in order: those of its arguments, and the buffers that it writes to."""
        specs = self._flat.signature.input_specs
        return [getattr(spec.arg, "name", "") for spec in specs if spec.kind is InputKind.USER_INPUT]

    @property
    def supports_prefill(self) -> bool:
        """Whether the program can take a whole prompt of one row at once."""
        return self.prefill_refusal is None

    @property
    def prefill_refusal(self) -> str | None:
        """Why a prompt cannot be taken at once; None where it can."""
        if self.states:
            names = ", ".join(state.name for state in self.states[:3]) + (", .." if len(self.states) > 3 else "")
            return f"it carries state beside its caches ({names}), which the padding behind a prompt would spoil"
        if 0 not in self.past:
            return f"the program was exported for a past of {self.past}, and a prompt has none"
        if self.query.upper is not None and self.query.upper < 2:
            return "the program was exported for one query token"
        if 1 not in self.batch:
            return f"the program was exported for a batch of {self.batch}, and a prompt is one row"
        return None

    @property
    def extend_refusal(self) -> str | None:
        """Why several tokens cannot be taken at once behind others; None where they can."""
        positions = {given.name for given in self.inputs if given.role is Role.POSITIONS}
        for node in self._flat.graph.find_nodes(op="call_function", target=torch.ops.aten.max.default):
            if node.args[0].name in positions:
                return (
                    f"the model looks at the largest position of a call ({source_of(node)}), which is another for each "
                    "token that is decoded"
                )
        return self.prefill_refusal

    def specialise(self, batch: int, query: int, past: int) -> ExportedProgram:
        """The program at fixed lengths: static shapes, core ATen only, attention as bmm, _softmax and bmm.

        Its inputs and outputs are those of ``program``, in the same order and with the same names; its weights are
        the same tensors.

        Raises:
            FrontendError: the program was not exported for these lengths.
        """
        return self._specialiser.at(self._admitted(batch, query, past))

    def _admitted(self, batch: int, query: int, past: int) -> dict[str, tuple[int, ...]]:
        """The inputs' shapes at lengths, by name.

        Raises:
            FrontendError: the program was not exported for these lengths.
        """
        for what, value, allowed in (
            ("batch", batch, self.batch),
            ("query", query, self.query),
            ("past", past, self.past),
        ):
            if value not in allowed:
                raise FrontendError(
                    f"the program cannot take {what} = {value}: it was exported for {allowed}; "
                    f"export it with a dynamic {what} that includes {value}"
                )
        self._lengths.check(batch, query, past)
        shapes = {i.name: tuple(e.at(batch, query, past) for e in i.shape) for i in self.inputs}
        check_guards(self.program, shapes)
        return shapes

    def longest_admitted(self, most: int | None) -> int | None:
        """The most tokens, up to ``most``, for which what torch.export took for granted holds.

        A table of biases may have an end that nothing else tells. ``most`` where it holds for them, or for no length.
        """
        fits, fails = self.past.lower, LONGEST_TRIED if most is None else most - 1
        if self._admits(fails) or not self._admits(fits):
            return most
        while fails - fits > 1:
            middle = (fits + fails) // 2
            fits, fails = (middle, fails) if self._admits(middle) else (fits, middle)
        return fits + 1

    def _admits(self, past: int) -> bool:
        try:
            self._admitted(self.batch.lower, self.query.lower, past)
        except FrontendError:
            return False
        return True

    def weights(self) -> dict[str, torch.Tensor]:
        """The weights that the program reads, by the name that ``kv.parameter`` gives them.

        Parameters, buffers (also non-persistent ones) and tensor constants, not copied; a tied one once. Among them
        what states start with, where that is not zero.
        """
        initial = [state.initial for state in self.states if state.initial is not None]
        used = {self.weight_name(name) for name in [*self._weight_inputs(), *initial]}
        return {name: tensor.detach() for name, tensor in self._weights.items() if name in used}

    def weight_name(self, name: str) -> str:
        """The one name of a weight that may be tied to others: the first of theirs in the model's state."""
        return self._aliases[name]

    @cached_property
    def _weights(self) -> dict[str, torch.Tensor]:
        state = {**self.program.state_dict, **self.program.constants}
        return {name: pair(value) for name, value in state.items() if isinstance(value, torch.Tensor)}

    @cached_property
    def _aliases(self) -> dict[str, str]:
        first: dict[Any, str] = {}
        return {name: first.setdefault(_memory(tensor), name) for name, tensor in self._weights.items()}

    @cached_property
    def _specialiser(self) -> Specialiser:
        return Specialiser(self.program, self._flat)

    def _weight_inputs(self) -> list[str]:
        placeholders = {n.name: n for n in self._flat.graph.find_nodes(op="placeholder")}
        return [
            str(spec.target)
            for spec in self._flat.signature.input_specs
            if spec.kind is not InputKind.USER_INPUT and placeholders[spec.arg.name].users
        ]


def from_program(
    program: ExportedProgram,
    *,
    name: str = "program",
    inputs: Mapping[str, str] | None = None,
    causal_masks: Collection[str] = (),
    max_positions: int | None = None,
) -> Decoder:
    """A decoder from an exported program.

    ``inputs`` names the tokens and the positions where their use does not tell them ({"tokens": NAME}).
    ``causal_masks`` names the mask inputs that are plainly causal, so that the compiler may replace them.
    ``max_positions``, where it is not given, is what the program's bounds and position tables say.

    Raises:
        FrontendError: the program is not a decoder with a growing cache, or its inputs cannot be told apart.
    """
    flat = flatten(program)
    lengths = Lengths(program.range_constraints)
    roles = tell_roles(flat, lengths, inputs or {}, causal_masks)
    if max_positions is None:
        # A fixed past says how many slots the program has, not how long a sequence may become.
        longest = None if roles.past.is_fixed or roles.past.upper is None else roles.past.upper + 1
        max_positions = min((n for n in (roles.position_rows, longest) if n is not None), default=None)
    decoder = Decoder(
        name=name,
        program=program,
        inputs=roles.inputs,
        logits=roles.logits,
        caches=roles.caches,
        states=roles.states,
        vocabulary=roles.vocabulary,
        max_positions=max_positions,
        batch=roles.batch,
        query=roles.query,
        past=roles.past,
        _flat=flat,
        _lengths=lengths,
    )
    return decoder if decoder.past.is_fixed else replace(decoder, max_positions=decoder.longest_admitted(max_positions))


def _memory(tensor: torch.Tensor) -> Any:
    """What two tensors have in common if and only if they are the same values in the same place."""
    storage = tensor.untyped_storage()._cdata
    return storage, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype
