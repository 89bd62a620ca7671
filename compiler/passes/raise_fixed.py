"""kv-raise-fixed: caches of a fixed length become caches that grow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch_mlir import ir

from ..analysis.caches import ORDER
from ..analysis.evaluate import Weights, no_weights
from ..analysis.fixed_cache import Taken, taken_in
from ..analysis.functions import argument_attributes, body, functions, result_attributes, set_signature, terminator
from ..diagnostics import Refusal
from ..dialect.types import element_of, shape_of, vtensor
from .dead_code import erase_dead
from .torch_builder import TorchBuilder


@dataclass(frozen=True)
class RaiseFixed:
    """Turns what takes a new token into a returned cache of the same length into the concat that grows a cache.

    Applies to each function with arguments of role "cache" that are returned at the length that they came in with; runs
    before ``kv-raise-append``, which needs not know of them. ``weights`` gives the value of a registered buffer that an
    index is made of. No spelling is matched: the ops between the cache and the result move elements, and where they
    move them to is evaluated (``compiler/analysis/fixed_cache.py``). A cache may lose its oldest token and take the new
    one in behind the others ("shifted"), or take it in at the index of each row's position ("indexed"): ``kv.order`` of
    the argument says which, for the masks. Either way the result holds C tokens, the new one among them, and so does
    the concat of C - 1 tokens and a new one. Refuses any other change, and a program that also reads the cache as it
    came in.

    Before::

        %i = torch.prim.ListConstruct %none, %none, %position
        %written = torch.aten.index_put %cache, %i, %k, %false   // [B, H, C, D]
        return ..., %written

    After::

        %list = torch.prim.ListConstruct %cache, %k              // [B, H, C - 1, D], kv.order = "indexed"
        %written = torch.aten.cat %list, %int2                   // [B, H, C, D]
        return ..., %written
    """

    weights: Weights = no_weights
    name: ClassVar[str] = "kv-raise-fixed"

    def run(self, module: ir.Operation) -> None:
        """Rewrites the module."""
        for function in functions(module).values():
            entries, returned = argument_attributes(function), terminator(function)
            results = [entry.get("kv.name") for entry in result_attributes(function)]
            kept: list[tuple[str, ir.Value, ir.Value]] = []
            for argument, entry in zip(body(function).arguments, entries, strict=True):
                name = entry.get("kv.name", "")
                if entry.get("kv.role") != "cache" or name not in results:
                    continue
                at = results.index(name)
                value = returned.operands[at]
                if shape_of(value.type) != shape_of(argument.type):
                    continue
                found = taken_in(name, argument, value, function, self.weights)
                grown = _concat(argument, found)
                returned.operands[at] = grown
                entry[ORDER] = str(found.order)
                kept.append((name, argument, grown))
            if kept:
                erase_dead(function)
                for name, argument, grown in kept:
                    _refuse_old(name, argument, grown)
                set_signature(function, entries)


def _concat(cache: ir.Value, found: Taken) -> ir.Value:
    """Puts the concat of the cache, of a length of C - 1, and the new rows for the value that holds both."""
    builder = TorchBuilder(found.grown.owner.operation)
    element = element_of(cache.type)
    past = [extent - (i == found.axis) for i, extent in enumerate(shape_of(found.grown.type))]
    cache.set_type(vtensor(past, element))
    parts = builder.tensors([cache, _in_layout(builder, found)])
    grown = builder.op("torch.aten.cat", [parts, builder.integer(found.axis)], found.grown.type)
    found.grown.replace_all_uses_with(grown)
    return grown


def _in_layout(builder: TorchBuilder, found: Taken) -> ir.Value:
    """The new rows in the cache's layout: at most a view, a permute and a view."""
    axes = [i for i, extent in enumerate(found.shape) if extent > 1]
    inside = sorted(axes, key=lambda i: -found.strides[i])
    if inside == axes:
        return builder.view(found.rows, found.shape)
    viewed = builder.view(found.rows, [found.shape[i] for i in inside])
    return builder.view(builder.permute(viewed, [inside.index(i) for i in axes]), found.shape)


def _refuse_old(name: str, cache: ir.Value, grown: ir.Value) -> None:
    parts = grown.owner.operation.operands[0].owner.operation
    for use in cache.uses:
        if use.owner.operation != parts:
            raise Refusal(
                use.owner.operation,
                f"'{use.owner.operation.name}' reads the cache '{name}' as it was before the new token came in",
                "read each cache only with its new token in it",
            )
