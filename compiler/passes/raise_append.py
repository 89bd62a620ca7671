"""kv-raise-append: the concat that grows a cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch_mlir import ir

from ..analysis.aten import IDENTITIES, axis_operand, owner, rank_of, tensor_operands
from ..analysis.functions import argument_attributes, body, functions, result_attributes, terminator
from ..diagnostics import Refusal
from ..dialect.kv import AppendOp, index_attribute


@dataclass(frozen=True)
class RaiseAppend:
    """Turns the concat that grows a returned cache into ``kv.append``.

    Applies to each function with arguments of role "cache". Relies on the frontend's names: the result of a
    cache's name is that cache, grown. Runs before any canonicalisation, which folds a concat onto an empty
    past. Refuses a cache that grows in another way.

    Before::

        %list = torch.prim.ListConstruct %past, %k
        %grown = torch.aten.cat %list, %int2
        return ..., %grown

    After::

        %grown = "kv.append"(%past, %k) {axis = 2 : i64}
        return ..., %grown
    """

    name: ClassVar[str] = "kv-raise-append"

    def run(self, module: ir.Operation) -> None:
        """Rewrites the module."""
        for function in functions(module).values():
            caches = {
                entry["kv.name"]: argument
                for argument, entry in zip(body(function).arguments, argument_attributes(function), strict=True)
                if entry.get("kv.role") == "cache"
            }
            returned = {
                entry["kv.name"]: value
                for value, entry in zip(terminator(function).operands, result_attributes(function), strict=True)
                if "kv.name" in entry
            }
            for name, cache in caches.items():
                if name not in returned:
                    raise Refusal(
                        function,
                        f"the cache '{name}' is not returned",
                        "return each cache, grown by the new tokens' keys or values",
                    )
                _raise(name, cache, returned[name])


def _raise(name: str, cache: ir.Value, returned: ir.Value) -> None:
    concat = owner(returned)
    while concat is not None and concat.name in IDENTITIES:
        concat = owner(concat.operands[0])
    parts = tensor_operands(concat) if concat is not None else []
    if concat is None or concat.name != "torch.aten.cat" or len(parts) != 2 or parts[0] != cache:
        what = f"'{concat.name}'" if concat is not None else "an argument"
        raise Refusal(
            concat if concat is not None else returned.owner.owner,
            f"the cache '{name}' is returned from {what}, which is not the concat of the past and the new tokens",
            "grow it as torch.cat([past, new], dim)",
        )
    result = concat.results[0]
    axis = axis_operand(concat, 1, rank_of(result))
    if axis == 0:
        raise Refusal(concat, f"the cache '{name}' grows along its first axis", "keep the rows of the batch first")
    append = AppendOp(
        cache, parts[1], index_attribute(axis), result.type, loc=concat.location, ip=ir.InsertionPoint(concat)
    )
    result.replace_all_uses_with(append.grown)
    concat.erase()
