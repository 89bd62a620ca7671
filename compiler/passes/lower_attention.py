"""Pass ``kv-lower-attention``: attention over slots or over a prompt, as linalg and loops."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from torch_mlir import ir

from ..diagnostics import Refusal
from ..dialect.kv import integer, number
from ..dialect.types import shape_of
from .template import call_template, operations, replace


@dataclasses.dataclass(frozen=True)
class LowerAttention:
    """``kv.attention`` to linalg, without repeating keys and values for the query group.

    Applies to the op on builtin tensors. With visible slots (decode) or no mask: products, a softmax in f32 and a
    product with the values, all keys at once; an invisible slot is selected away in both. Causal (prefill): the same
    in a loop over blocks of at most ``block`` queries, each over the keys up to its own end, so that memory grows
    with the prompt and not with its square. Products add up in f32 whatever the element type.

    Before::

        %o = "kv.attention"(%q, %k, %v) {causal = true, scale = 0.125 : f64, softcap = 0.0 : f64}

    After::

        %o = scf.for %i = %c0 to %n step %block iter_args(%done = %empty) {
          %keys = tensor.extract_slice %k[0, 0, 0] [H, %end, D] [1, 1, 1]
          ... linalg.generic, linalg.softmax, linalg.generic ...
          tensor.insert_slice %rows into %done
    """

    block: int = 128
    name: ClassVar[str] = "kv-lower-attention"

    def run(self, module: ir.Operation) -> None:
        """Rewrites the module."""
        for op in operations(module, "kv.attention"):
            causal = integer(op, "causal") != 0
            if causal and len(op.operands) > 3:
                raise Refusal(op, "causal attention with a mask is not lowered", "drop the mask")
            text = _prefill(op, self.block) if causal else _decode(op)
            replace(op, call_template(op, "kv_attention", text, list(op.operands), [op.results[0].type]))


def _f32(element: str, name: str) -> tuple[str, str]:
    """The line that widens ``%name`` to f32, and the name of the result."""
    if element == "f32":
        return "", f"%{name}"
    return f"%{name}_wide = arith.extf %{name} : {element} to f32", f"%{name}_wide"


def _logit(scale: float, softcap: float) -> str:
    """Lines that make ``%logit`` of ``%dot``."""
    if softcap == 0.0:
        return f"%scale = arith.constant {scale!r} : f32\n    %logit = arith.mulf %dot, %scale : f32"
    return f"""%scale = arith.constant {scale / softcap!r} : f32
    %cap = arith.constant {softcap!r} : f32
    %low_dot = arith.mulf %dot, %scale : f32
    %tanh = math.tanh %low_dot : f32
    %logit = arith.mulf %tanh, %cap : f32"""


def _narrow(element: str, name: str) -> tuple[str, str]:
    if element == "f32":
        return "", f"%{name}"
    return f"%{name}_narrow = arith.truncf %{name} : f32 to {element}", f"%{name}_narrow"


_LOWEST = "0xFF7FFFFF"  # the least finite f32: a row that sees no key stays finite


def _decode(op: ir.Operation) -> str:
    q, k, v = (operand.type for operand in list(op.operands)[:3])
    b, h, g, n, d = shape_of(q)
    t, dv = shape_of(k)[2], shape_of(v)[3]
    m = g * n
    element = str(q.element_type)
    masked = len(op.operands) > 3
    visible = str(op.operands[3].type) if masked else ""
    argument = f", %visible: {visible}" if masked else ""
    seen_map = ", affine_map<(b, h, m, t) -> (b, t)>" if masked else ""
    value_seen_map = ", affine_map<(b, h, m, d, t) -> (b, t)>" if masked else ""
    seen_in, seen_type, seen_arg = (", %visible", f", {visible}", ", %seen: i1") if masked else ("", "", "")
    wide_q, x = _f32(element, "x")
    wide_k, y = _f32(element, "y")
    wide_v, z = _f32(element, "z")
    narrow, out = _narrow(element, "sum")
    flat_q, scores = f"tensor<{b}x{h}x{m}x{d}x{element}>", f"tensor<{b}x{h}x{m}x{t}xf32>"
    mixed, flat_out = f"tensor<{b}x{h}x{m}x{dv}xf32>", f"tensor<{b}x{h}x{m}x{dv}x{element}>"
    select = "%hidden = arith.select %seen, %logit, %lowest : f32" if masked else ""
    select_value = f"%kept = arith.select %seen, {z}, %zero : f32" if masked else ""
    return f"""
func.func @attention(%q: {q}, %k: {k}, %v: {v}{argument}) -> {op.results[0].type} {{
  %zero = arith.constant 0.0 : f32
  %lowest = arith.constant {_LOWEST} : f32
  %rows = tensor.collapse_shape %q [[0], [1], [2, 3], [4]] : {q} into {flat_q}
  %no_scores = tensor.empty() : {scores}
  %zeros = linalg.fill ins(%zero : f32) outs(%no_scores : {scores}) -> {scores}
  %dots = linalg.generic {{
      indexing_maps = [affine_map<(b, h, m, t, d) -> (b, h, m, d)>, affine_map<(b, h, m, t, d) -> (b, h, t, d)>,
                       affine_map<(b, h, m, t, d) -> (b, h, m, t)>],
      iterator_types = ["parallel", "parallel", "parallel", "parallel", "reduction"]}}
      ins(%rows, %k : {flat_q}, {k}) outs(%zeros : {scores}) {{
  ^bb0(%x: {element}, %y: {element}, %sum: f32):
    {wide_q}
    {wide_k}
    %product = arith.mulf {x}, {y} : f32
    %next = arith.addf %sum, %product : f32
    linalg.yield %next : f32
  }} -> {scores}
  %logits = linalg.generic {{
      indexing_maps = [affine_map<(b, h, m, t) -> (b, h, m, t)>{seen_map}, affine_map<(b, h, m, t) -> (b, h, m, t)>],
      iterator_types = ["parallel", "parallel", "parallel", "parallel"]}}
      ins(%dots{seen_in} : {scores}{seen_type}) outs(%no_scores : {scores}) {{
  ^bb0(%dot: f32{seen_arg}, %unused: f32):
    {_logit(number(op, "scale"), number(op, "softcap"))}
    {select}
    linalg.yield {"%hidden" if masked else "%logit"} : f32
  }} -> {scores}
  %weights = linalg.softmax dimension(3) ins(%logits : {scores}) outs(%no_scores : {scores}) -> {scores}
  %no_mix = tensor.empty() : {mixed}
  %zero_mix = linalg.fill ins(%zero : f32) outs(%no_mix : {mixed}) -> {mixed}
  %mix = linalg.generic {{
      indexing_maps = [affine_map<(b, h, m, d, t) -> (b, h, m, t)>, affine_map<(b, h, m, d, t) -> (b, h, t, d)>{value_seen_map},
                       affine_map<(b, h, m, d, t) -> (b, h, m, d)>],
      iterator_types = ["parallel", "parallel", "parallel", "parallel", "reduction"]}}
      ins(%weights, %v{seen_in} : {scores}, {v}{seen_type}) outs(%zero_mix : {mixed}) {{
  ^bb0(%x: f32, %z: {element}{seen_arg}, %sum: f32):
    {wide_v}
    {select_value}
    %product = arith.mulf %x, {"%kept" if masked else z} : f32
    %next = arith.addf %sum, %product : f32
    linalg.yield %next : f32
  }} -> {mixed}
  %no_out = tensor.empty() : {flat_out}
  %narrowed = linalg.generic {{
      indexing_maps = [affine_map<(b, h, m, d) -> (b, h, m, d)>, affine_map<(b, h, m, d) -> (b, h, m, d)>],
      iterator_types = ["parallel", "parallel", "parallel", "parallel"]}}
      ins(%mix : {mixed}) outs(%no_out : {flat_out}) {{
  ^bb0(%sum: f32, %unused: {element}):
    {narrow}
    linalg.yield {out} : {element}
  }} -> {flat_out}
  %out = tensor.expand_shape %narrowed [[0], [1], [2, 3], [4]] output_shape [{b}, {h}, {g}, {n}, {dv}]
      : {flat_out} into {op.results[0].type}
  return %out : {op.results[0].type}
}}"""


def _block(queries: int, most: int) -> int:
    """The largest divisor of the prompt's length that is at most ``most``."""
    return max(size for size in range(1, min(most, queries) + 1) if queries % size == 0)


def _prefill(op: ir.Operation, most: int) -> str:
    q, k, v = (operand.type for operand in list(op.operands)[:3])
    b, h, g, n, d = shape_of(q)
    dv = shape_of(v)[3]
    rows = b * h
    size = _block(n, most)
    element = str(q.element_type)
    wide_q, x = _f32(element, "x")
    wide_k, y = _f32(element, "y")
    wide_v, z = _f32(element, "z")
    narrow, out = _narrow(element, "sum")
    q4, k3, v3 = (
        f"tensor<{rows}x{g}x{n}x{d}x{element}>",
        f"tensor<{rows}x{n}x{d}x{element}>",
        f"tensor<{rows}x{n}x{dv}x{element}>",
    )
    q_block, keys, values = (
        f"tensor<{rows}x{g}x{size}x{d}x{element}>",
        f"tensor<{rows}x?x{d}x{element}>",
        f"tensor<{rows}x?x{dv}x{element}>",
    )
    scores, mixed = f"tensor<{rows}x{g}x{size}x?xf32>", f"tensor<{rows}x{g}x{size}x{dv}xf32>"
    o_block, o4 = f"tensor<{rows}x{g}x{size}x{dv}x{element}>", f"tensor<{rows}x{g}x{n}x{dv}x{element}>"
    return f"""
func.func @attention(%q: {q}, %k: {k}, %v: {v}) -> {op.results[0].type} {{
  %c0 = arith.constant 0 : index
  %queries = arith.constant {n} : index
  %size = arith.constant {size} : index
  %zero = arith.constant 0.0 : f32
  %lowest = arith.constant {_LOWEST} : f32
  %q4 = tensor.collapse_shape %q [[0, 1], [2], [3], [4]] : {q} into {q4}
  %k3 = tensor.collapse_shape %k [[0, 1], [2], [3]] : {k} into {k3}
  %v3 = tensor.collapse_shape %v [[0, 1], [2], [3]] : {v} into {v3}
  %nothing = tensor.empty() : {o4}
  %all = scf.for %first = %c0 to %queries step %size iter_args(%done = %nothing) -> ({o4}) {{
    %end = arith.addi %first, %size : index
    %block = tensor.extract_slice %q4[0, 0, %first, 0] [{rows}, {g}, {size}, {d}] [1, 1, 1, 1] : {q4} to {q_block}
    %keys = tensor.extract_slice %k3[0, 0, 0] [{rows}, %end, {d}] [1, 1, 1] : {k3} to {keys}
    %values = tensor.extract_slice %v3[0, 0, 0] [{rows}, %end, {dv}] [1, 1, 1] : {v3} to {values}
    %no_scores = tensor.empty(%end) : {scores}
    %zeros = linalg.fill ins(%zero : f32) outs(%no_scores : {scores}) -> {scores}
    %dots = linalg.generic {{
        indexing_maps = [affine_map<(h, g, m, t, d) -> (h, g, m, d)>, affine_map<(h, g, m, t, d) -> (h, t, d)>,
                         affine_map<(h, g, m, t, d) -> (h, g, m, t)>],
        iterator_types = ["parallel", "parallel", "parallel", "parallel", "reduction"]}}
        ins(%block, %keys : {q_block}, {keys}) outs(%zeros : {scores}) {{
    ^bb0(%x: {element}, %y: {element}, %sum: f32):
      {wide_q}
      {wide_k}
      %product = arith.mulf {x}, {y} : f32
      %next = arith.addf %sum, %product : f32
      linalg.yield %next : f32
    }} -> {scores}
    %logits = linalg.generic {{
        indexing_maps = [affine_map<(h, g, m, t) -> (h, g, m, t)>, affine_map<(h, g, m, t) -> (h, g, m, t)>],
        iterator_types = ["parallel", "parallel", "parallel", "parallel"]}}
        ins(%dots : {scores}) outs(%no_scores : {scores}) {{
    ^bb0(%dot: f32, %unused: f32):
      {_logit(number(op, "scale"), number(op, "softcap"))}
      %place = linalg.index 2 : index
      %query = arith.addi %place, %first : index
      %key = linalg.index 3 : index
      %seen = arith.cmpi ule, %key, %query : index
      %hidden = arith.select %seen, %logit, %lowest : f32
      linalg.yield %hidden : f32
    }} -> {scores}
    %weights = linalg.softmax dimension(3) ins(%logits : {scores}) outs(%no_scores : {scores}) -> {scores}
    %no_mix = tensor.empty() : {mixed}
    %zero_mix = linalg.fill ins(%zero : f32) outs(%no_mix : {mixed}) -> {mixed}
    %mix = linalg.generic {{
        indexing_maps = [affine_map<(h, g, m, d, t) -> (h, g, m, t)>, affine_map<(h, g, m, d, t) -> (h, t, d)>,
                         affine_map<(h, g, m, d, t) -> (h, g, m, d)>],
        iterator_types = ["parallel", "parallel", "parallel", "parallel", "reduction"]}}
        ins(%weights, %values : {scores}, {values}) outs(%zero_mix : {mixed}) {{
    ^bb0(%x: f32, %z: {element}, %sum: f32):
      {wide_v}
      %product = arith.mulf %x, {z} : f32
      %next = arith.addf %sum, %product : f32
      linalg.yield %next : f32
    }} -> {mixed}
    %no_rows = tensor.empty() : {o_block}
    %rows = linalg.generic {{
        indexing_maps = [affine_map<(h, g, m, d) -> (h, g, m, d)>, affine_map<(h, g, m, d) -> (h, g, m, d)>],
        iterator_types = ["parallel", "parallel", "parallel", "parallel"]}}
        ins(%mix : {mixed}) outs(%no_rows : {o_block}) {{
    ^bb0(%sum: f32, %unused: {element}):
      {narrow}
      linalg.yield {out} : {element}
    }} -> {o_block}
    %more = tensor.insert_slice %rows into %done[0, 0, %first, 0] [{rows}, {g}, {size}, {dv}] [1, 1, 1, 1] : {o_block} into {o4}
    scf.yield %more : {o4}
  }}
  %out = tensor.expand_shape %all [[0, 1], [2], [3], [4]] output_shape [{b}, {h}, {g}, {n}, {dv}] : {o4} into {op.results[0].type}
  return %out : {op.results[0].type}
}}"""
