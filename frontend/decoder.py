"""The decoder: the one type that every source of a model ends in."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import sympy
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from .errors import FrontendError
from .flat import FlatProgram, flatten
from .lengths import BATCH, PAST, QUERY, Lengths, Range, expression
from .roles import CacheInput, Input, Role, tell_roles
from .specialise import Specialiser


@dataclass(frozen=True)
class Decoder:
    """A decoder with a growing cache, as torch.export gave it, with its inputs told apart.

    ``logits`` is an index among the program's flat outputs. ``max_positions`` is the longest sequence that the
    model is made for, where that is known.
    """

    name: str
    program: ExportedProgram
    inputs: tuple[Input, ...]
    logits: int
    caches: tuple[CacheInput, ...]
    vocabulary: int
    max_positions: int | None
    _flat: FlatProgram = field(repr=False, compare=False)
    _lengths: Lengths = field(repr=False, compare=False)

    @cached_property
    def batch(self) -> Range:
        """The numbers of rows that the program takes."""
        return self._range(BATCH)

    @cached_property
    def query(self) -> Range:
        """The numbers of new tokens that one call takes."""
        return self._range(QUERY)

    @cached_property
    def past(self) -> Range:
        """The numbers of cached tokens that one call takes."""
        return self._range(PAST)

    @property
    def supports_prefill(self) -> bool:
        """Whether the program can take a whole prompt of one row at once."""
        return self.prefill_refusal is None

    @cached_property
    def prefill_refusal(self) -> str | None:
        """Why a prompt cannot be taken at once; None where it can."""
        if 0 not in self.past:
            return f"the program was exported for a past of {self.past} tokens, and a prompt has none"
        if self.query.upper is not None and self.query.upper < 2:
            return "the program was exported for one query token"
        if 1 not in self.batch:
            return f"the program was exported for {self.batch} rows, and a prompt is one row"
        return None

    def specialise(self, batch: int, query: int, past: int) -> ExportedProgram:
        """The program at fixed lengths: static shapes, core ATen only, attention as bmm, _softmax and bmm.

        Its inputs and outputs are those of ``program``, in the same order and with the same names; its weights are
        the same tensors.

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
        values = self._lengths.values(batch, query, past)
        _check_guards(self.program, values)
        shapes = {i.name: tuple(e.at(batch, query, past) for e in i.shape) for i in self.inputs}
        return self._specialiser.at(shapes)

    def weights(self) -> dict[str, torch.Tensor]:
        """The weights that the program reads, by the name that ``kv.parameter`` gives them.

        Parameters, buffers (also non-persistent ones) and tensor constants, not copied; a tied one once.
        """
        used = {self.weight_name(name) for name in self._weight_inputs()}
        return {name: tensor.detach() for name, tensor in self._weights.items() if name in used}

    def weight_name(self, name: str) -> str:
        """The one name of a weight that is tied to others, of all their names."""
        return self._aliases.get(name, name)

    @cached_property
    def _weights(self) -> dict[str, torch.Tensor]:
        both = {**self.program.state_dict, **self.program.constants}
        return {name: value for name, value in both.items() if isinstance(value, torch.Tensor)}

    @cached_property
    def _aliases(self) -> dict[str, str]:
        first: dict[Any, str] = {}
        aliases: dict[str, str] = {}
        for name, tensor in self._weights.items():
            if tensor.numel():
                where = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
                aliases[name] = first.setdefault(where, name)
        return aliases

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

    def _range(self, length: sympy.Symbol) -> Range:
        tokens = next(i for i in self.inputs if i.role is Role.TOKENS)
        extent = {
            BATCH: tokens.shape[0],
            QUERY: tokens.shape[1] if len(tokens.shape) == 2 else None,
            PAST: self.inputs[self.caches[0].input_index].shape[self.caches[0].axis],
        }[length]
        if extent is None:
            return Range(1, 1)
        if extent.is_fixed:
            return Range(extent.constant, extent.constant)
        least = Range(0 if length == PAST else 1, None)
        return self._lengths.range(length).meet(least)


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

    Raises:
        FrontendError: the program is not a decoder with a growing cache, or its inputs cannot be told apart.
    """
    flat = flatten(program)
    lengths = Lengths(program.range_constraints)
    roles = tell_roles(flat, lengths, inputs or {}, causal_masks)
    decoder = Decoder(
        name=name,
        program=program,
        inputs=roles.inputs,
        logits=roles.logits,
        caches=roles.caches,
        vocabulary=roles.vocabulary,
        max_positions=max_positions,
        _flat=flat,
        _lengths=lengths,
    )
    if max_positions is not None:
        return decoder
    bounds = [roles.position_rows, None if decoder.past.upper is None else decoder.past.upper + 1]
    known = [bound for bound in bounds if bound is not None]
    return _with_positions(decoder, min(known) if known else None)


def _with_positions(decoder: Decoder, max_positions: int | None) -> Decoder:
    from dataclasses import replace

    return replace(decoder, max_positions=max_positions)


def _check_guards(program: ExportedProgram, values: Mapping[sympy.Symbol, int]) -> None:
    """Refuses lengths at which the export took another branch of the model than they would."""
    at = {symbol: sympy.Integer(value) for symbol, value in values.items()}
    for environment in _shape_environments(program):
        for guard in environment.guards:
            condition = environment.replace(guard.expr).xreplace(at)
            if condition == sympy.false:
                raise FrontendError(
                    f"the program was exported for lengths with {guard.expr}, which does not hold at "
                    f"{ {str(s): v for s, v in values.items()} }; export it with other example inputs or bounds"
                )


def _shape_environments(program: ExportedProgram) -> list[Any]:
    for node in program.graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            for extent in value.shape:
                if isinstance(extent, torch.SymInt):
                    symbolic: Any = extent.node
                    return [symbolic.shape_env]
    return []
