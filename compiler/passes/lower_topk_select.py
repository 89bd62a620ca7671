"""Pass ``kv-lower-topk-select``: the selection of a prompt's positions, exact and without a sort."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from torch_mlir import ir

from ..dialect.kv import Reach, TopkSelectOp, integer, number, string
from ..dialect.types import shape_of
from .template import call_template, operations, replace

_BLOCK = 64
"""Candidates per block of the prefix count: its cost is N * (block + N / block**2)."""

_DIGIT = 4
"""Bits of the threshold found in one pass over the keys, with 2**digit - 1 comparisons each."""

_LOWEST = "-3.40282347E+38"
"""The lowest finite f32: a hidden logit, whose weight the softmax makes 0 and never NaN."""


@dataclasses.dataclass(frozen=True)
class LowerTopkSelect:
    """``kv.topk_select`` to linalg, as a function called and inlined.

    Applies to the op on builtin tensors. Scores are those of design section 3, in f32: [H, G, W, T] logits of the last
    W queries, never N x N; with sinks, [H, G, W, T + 1], where the softmax is over all keys. Where the result is that
    of one head, all heads are one group. The selection is by threshold: a non-negative f32 read as an int32 keeps its
    order, so the K-th largest key is found digit by digit, by counting keys at or above each possible value; all above
    it are taken, and the lowest positions among those equal to it. The rank of a position is a prefix count in
    blocks, and slot j of the result is the number of positions of rank at most j. Candidates are a prefix of the
    positions from S on, since padding and the last R end them; a compiled length that can hold none gives zeros.

    Before: ``%1 = "kv.topk_select"(%q, %k, %length) {...} : (...) -> tensor<2x4xi64>``

    After: a ``func.call`` of a private function that MLIR's ``inline`` opens.

    See tests/lit/lower/topk_select.mlir.
    """

    name: ClassVar[str] = "kv-lower-topk-select"

    def run(self, module: ir.Operation) -> None:
        """Rewrites the module."""
        for op in operations(module, "kv.topk_select"):
            result = op.results[0].type
            most = shape_of(op.operands[1].type)[2] - integer(op, "sink") - integer(op, "ring")
            text = _text(op, most) if most > 0 else _no_candidates_text(op)
            replace(op, call_template(op, "kv_topk_select", text, op.operands, [result]))


def _arguments(op: ir.Operation) -> str:
    view = op.opview
    assert isinstance(view, TopkSelectOp)
    values = {name: getattr(view, name) for name in ("q", "k", "length", "visible", "bias", "sinks")}
    return ", ".join(f"%{name}: {value.type}" for name, value in values.items() if value is not None)


def _no_candidates_text(op: ir.Operation) -> str:
    arguments = _arguments(op)
    result = op.results[0].type
    return f"""
func.func @topk_select({arguments}) -> {result} {{
  %zeros = arith.constant dense<0> : {result}
  return %zeros : {result}
}}"""


def _text(op: ir.Operation, most: int) -> str:
    """q [1, H, G, N, D], k [1, H, N, D], length [] -> positions [H, K].

    M = N - S - R is the most candidates that the compiled length can hold; ``%count`` of them are there.
    """
    length, result = op.operands[2].type, op.results[0].type
    fixed = integer(op, "sink") + integer(op, "ring")
    return f"""
#hm_h = affine_map<(h, m) -> (h)>
#hm_hm = affine_map<(h, m) -> (h, m)>
#hjm_h = affine_map<(h, j, m) -> (h)>
#hjm_hj = affine_map<(h, j, m) -> (h, j)>
#hjm_hm = affine_map<(h, j, m) -> (h, m)>
#hbij_h = affine_map<(h, b, i, j) -> (h)>
#hbij_hbi = affine_map<(h, b, i, j) -> (h, b, i)>
#hbij_hbj = affine_map<(h, b, i, j) -> (h, b, j)>
#hbc_hb = affine_map<(h, b, c) -> (h, b)>
#hbc_hc = affine_map<(h, b, c) -> (h, c)>
#hbi_h = affine_map<(h, b, i) -> (h)>
#hbi_hb = affine_map<(h, b, i) -> (h, b)>
#hbi_hbi = affine_map<(h, b, i) -> (h, b, i)>
#hgwm_hgm = affine_map<(h, g, w, m) -> (h, g, m)>
#hgwm_hm = affine_map<(h, g, w, m) -> (h, m)>
#hgwm_hg = affine_map<(h, g, w, m) -> (h, g)>
#hgwm_wm = affine_map<(h, g, w, m) -> (w, m)>
#hgwm_hgwm = affine_map<(h, g, w, m) -> (h, g, w, m)>
#hgmw_hgwm = affine_map<(h, g, m, w) -> (h, g, w, m)>
#hgmw_hgm = affine_map<(h, g, m, w) -> (h, g, m)>
#hgmt_window = affine_map<(h, g, m, t) -> (h, g, m + t)>
#hgmt_t = affine_map<(h, g, m, t) -> (t)>
#hgmt_hgm = affine_map<(h, g, m, t) -> (h, g, m)>
#hmg_hgm = affine_map<(h, m, g) -> (h, g, m)>
#hmg_hm = affine_map<(h, m, g) -> (h, m)>
#bmnk_bmk = affine_map<(b, m, n, k) -> (b, m, k)>
#bmnk_bnk = affine_map<(b, m, n, k) -> (b, n, k)>
#bmnk_bmn = affine_map<(b, m, n, k) -> (b, m, n)>
func.func @topk_select({_arguments(op)}) -> {result} {{
  %zero = arith.constant 0 : index
  %zero_f32 = arith.constant 0.0 : f32
  %zero_i32 = arith.constant 0 : i32
  %one_i32 = arith.constant 1 : i32
  %scalar = tensor.extract %length[] : {length}
  %l = arith.index_cast %scalar : {length.element_type} to index
  %fixed = arith.constant {fixed} : index
  %signed_count = arith.subi %l, %fixed : index
  %count_at_least = arith.maxsi %signed_count, %zero : index
  %most = arith.constant {most} : index
  %count = arith.minsi %count_at_least, %most : index
{_scores(op, most)}
{_pooled(op, most)}
{_threshold(op, most)}
{_positions(op, most)}
  return %positions : {result}
}}"""


def _scores(op: ir.Operation, most: int) -> str:
    """``%scores`` [H, G, M] f32: the softmax weights of the candidates, summed over the last W queries."""
    q, k = (operand.type for operand in list(op.operands)[:2])
    _, heads, group, n, features = shape_of(q)
    element, window, sink = q.element_type, integer(op, "window"), integer(op, "sink")
    rows, flat = f"{heads}x{group}x{window}", f"{heads}x{group * window}"
    queries, keys = f"tensor<{flat}x{features}x{element}>", f"tensor<{heads}x{n}x{features}x{element}>"
    view = op.opview
    assert isinstance(view, TopkSelectOp)
    # one more logit, behind the keys', where the softmax is over all that the model's own is over
    columns = n + (view.sinks is not None and string(op, "score") == "all")
    products, logits = f"tensor<{flat}x{n}xf32>", f"tensor<{rows}x{columns}xf32>"
    own = f"tensor<{rows}x{n}xf32>"
    candidates, scores = f"tensor<{rows}x{most}xf32>", f"tensor<{heads}x{group}x{most}xf32>"
    reads = [("#hgwm_hgwm", "%logits", logits, "%product")]
    if view.bias is not None:
        shared = shape_of(view.bias.type)[2] == 1
        bias = f"tensor<{heads}x{columns}xf32>" if shared else f"tensor<{heads}x{group}x{columns}xf32>"
        reads.append(("#hgwm_hm" if shared else "#hgwm_hgm", "%bias_columns", bias, "%key_bias"))
    if view.visible is not None:
        reads.append(("#hgwm_wm", "%visible_columns", f"tensor<{window}x{columns}xi1>", "%is_visible"))
    if columns > n:
        reads.append(("#hgwm_hg", "%sinks", f"tensor<{heads}x{group}xf32>", "%sink"))
    sliced, extents = f"tensor<{rows}x{features}x{element}>", rows.replace("x", ", ")
    return f"""
  %first = arith.constant {sink} : index
  %end = arith.addi %first, %count : index
  %window = arith.constant {window} : index
  %signed_start = arith.subi %l, %window : index
  %start_at_least = arith.maxsi %signed_start, %zero : index
  %last_start = arith.constant {n - window} : index
  %start = arith.minsi %start_at_least, %last_start : index
  %observing = tensor.extract_slice %q[0, 0, 0, %start, 0] [1, {extents}, {features}]
      [1, 1, 1, 1, 1] : {q} to {sliced}
  %queries = tensor.collapse_shape %observing [[0], [1, 2], [3]] : {sliced} into {queries}
  %keys = tensor.collapse_shape %k [[0, 1], [2], [3]] : {k} into {keys}
  %no_products = tensor.empty() : {products}
  %zero_products = linalg.fill ins(%zero_f32 : f32) outs(%no_products : {products}) -> {products}
  %products = linalg.batch_matmul indexing_maps = [#bmnk_bmk, #bmnk_bnk, #bmnk_bmn]
      ins(%queries, %keys : {queries}, {keys}) outs(%zero_products : {products}) -> {products}
  %dots = tensor.expand_shape %products [[0], [1, 2], [3]] output_shape [{extents}, {n}] : {products} into {own}
{_padded_columns("logits", "dots", own, logits)}{_bias(view.bias, columns)}{_visible(view.visible, window, columns)}
  %no_logits = tensor.empty() : {logits}
  %masked = linalg.generic {{indexing_maps = [{", ".join(read[0] for read in reads)}, #hgwm_hgwm],
      iterator_types = ["parallel", "parallel", "parallel", "parallel"]}}
      ins({", ".join(read[1] for read in reads)} : {", ".join(read[2] for read in reads)})
      outs(%no_logits : {logits}) {{
  ^bb0({", ".join(f"{read[3]}: {_element(read[2])}" for read in reads)}, %out: f32):
    %scale = arith.constant {number(op, "scale")!r} : f32{_logit(op)}
    %lowest = arith.constant {_LOWEST} : f32
    %key = linalg.index 3 : index{_sees(op)}
    %seen = arith.select %sees, %logit, %lowest : f32{_or_sink(n) if columns > n else ""}
    linalg.yield {"%chosen" if columns > n else "%seen"} : f32
  }} -> {logits}
  %weights = linalg.softmax dimension(3) ins(%masked : {logits}) outs(%no_logits : {logits}) -> {logits}
  %candidate_weights = tensor.extract_slice %weights[0, 0, 0, {sink}] [{extents}, {most}] [1, 1, 1, 1]
      : {logits} to {candidates}
  %candidate_logits = tensor.extract_slice %masked[0, 0, 0, {sink}] [{extents}, {most}] [1, 1, 1, 1]
      : {logits} to {candidates}
  %no_scores = tensor.empty() : {scores}
  %zero_scores = linalg.fill ins(%zero_f32 : f32) outs(%no_scores : {scores}) -> {scores}
  %scores = linalg.generic {{indexing_maps = [#hgmw_hgwm, #hgmw_hgwm, #hgmw_hgm],
      iterator_types = ["parallel", "parallel", "parallel", "reduction"]}}
      ins(%candidate_weights, %candidate_logits : {candidates}, {candidates}) outs(%zero_scores : {scores}) {{
  ^bb0(%weight: f32, %logit: f32, %sum: f32):
    %m = linalg.index 2 : index
    %is_candidate = arith.cmpi slt, %m, %count : index
    %lowest = arith.constant {_LOWEST} : f32
    %is_seen = arith.cmpf ogt, %logit, %lowest : f32
    %has_weight = arith.andi %is_candidate, %is_seen : i1
    %counted = arith.select %has_weight, %weight, %zero_f32 : f32
    %next = arith.addf %sum, %counted : f32
    linalg.yield %next : f32
  }} -> {scores}{_one_group(op, most)}"""


def _one_group(op: ir.Operation, most: int) -> str:
    """``%grouped_scores`` [H, G, M], [1, H * G, M] where all heads share one selection."""
    _, heads, group, *_ = shape_of(op.operands[0].type)
    scores, flat = f"tensor<{heads}x{group}x{most}xf32>", f"tensor<{heads * group}x{most}xf32>"
    if _heads(op) == (heads, group):
        return f"""
  %grouped_scores = tensor.cast %scores : {scores} to {scores}"""
    shared = f"tensor<1x{heads * group}x{most}xf32>"
    return f"""
  %flat_scores = tensor.collapse_shape %scores [[0, 1], [2]] : {scores} into {flat}
  %grouped_scores = tensor.expand_shape %flat_scores [[0, 1], [2]] output_shape [1, {heads * group}, {most}]
      : {flat} into {shared}"""


def _heads(op: ir.Operation) -> tuple[int, int]:
    """How many selections there are, and how many query heads have a say in each."""
    _, heads, group, *_ = shape_of(op.operands[0].type)
    selections = shape_of(op.results[0].type)[0]
    return selections, heads * group // selections


def _padded_columns(name: str, source: str, given: str, wanted: str) -> str:
    """``%<name>``: ``%<source>`` with columns behind the keys', if it is to have any."""
    if given == wanted:
        return f"""
  %{name} = tensor.cast %{source} : {given} to {wanted}"""
    rank = given.count("x")
    low, high = ", ".join("0" for _ in range(rank)), ", ".join([*("0" for _ in range(rank - 1)), "1"])
    indices = ", ".join(f"%i{axis}: index" for axis in range(rank))
    return f"""
  %{name} = tensor.pad %{source} low[{low}] high[{high}] {{
  ^bb0({indices}):
    tensor.yield %zero_f32 : f32
  }} : {given} to {wanted}"""


def _bias(bias: ir.Value | None, columns: int) -> str:
    """``%bias_columns`` [H, G, columns], or [H, columns] of a bias that a group shares."""
    if bias is None:
        return ""
    _, heads, group, keys = shape_of(bias.type)
    groups, own = ("[[0, 1, 2], [3]]", f"{heads}x") if group == 1 else ("[[0, 1], [2], [3]]", f"{heads}x{group}x")
    given, wanted = f"tensor<{own}{keys}xf32>", f"tensor<{own}{columns}xf32>"
    return f"""
  %bias_keys = tensor.collapse_shape %bias {groups} : {bias.type} into {given}{
        _padded_columns("bias_columns", "bias_keys", given, wanted)
    }"""


def _element(tensor: str) -> str:
    """The element type of a tensor type's text."""
    return tensor.removesuffix(">").rpartition("x")[2]


def _visible(visible: ir.Value | None, window: int, columns: int) -> str:
    """``%visible_columns`` [W, columns]: what the last W queries may see, a sink's column included."""
    if visible is None:
        return ""
    _, _, keys = shape_of(visible.type)
    rows, given = f"tensor<1x{window}x{keys}xi1>", f"tensor<{window}x{keys}xi1>"
    wanted = f"tensor<{window}x{columns}xi1>"
    return f"""
  %seen_by_window = tensor.extract_slice %visible[0, %start, 0] [1, {window}, {keys}] [1, 1, 1]
      : {visible.type} to {rows}
  %visible_keys = tensor.collapse_shape %seen_by_window [[0, 1], [2]] : {rows} into {given}
  %true = arith.constant true
  %visible_columns = tensor.pad %visible_keys low[0, 0] high[0, {columns - keys}] {{
  ^bb0(%i: index, %j: index):
    tensor.yield %true : i1
  }} : {given} to {wanted}"""


def _logit(op: ir.Operation) -> str:
    """``%logit`` from ``%product``: the model's own, scaled and, where the model does so, capped and biased."""
    view = op.opview
    assert isinstance(view, TopkSelectOp)
    softcap = number(op, "softcap")
    name = "%logit" if view.bias is None else "%unbiased"
    if softcap == 0:
        lines = f"""
    {name} = arith.mulf %product, %scale : f32"""
    else:
        lines = f"""
    %scaled = arith.mulf %product, %scale : f32
    %cap = arith.constant {softcap!r} : f32
    %ratio = arith.divf %scaled, %cap : f32
    %bent = math.tanh %ratio : f32
    {name} = arith.mulf %bent, %cap : f32"""
    if view.bias is not None:
        lines += """
    %logit = arith.addf %unbiased, %key_bias : f32"""
    return lines


def _sees(op: ir.Operation) -> str:
    """``%sees`` at [h, g, w, key]: whether the key is in the softmax, of candidates or of all that the query sees."""
    if string(op, "score") == "candidates":
        lines = """
    %is_past_sink = arith.cmpi sge, %key, %first : index
    %is_before_end = arith.cmpi slt, %key, %end : index
    %in_softmax = arith.andi %is_past_sink, %is_before_end : i1"""
    else:
        lines = """
    %in_softmax = arith.cmpi sle, %key, %query : index"""
    reach = Reach.of(op)
    if reach.window:
        lines += f"""
    %bound = arith.constant {reach.window} : index
    %reached = arith.addi %key, %bound : index
    %near = arith.cmpi sgt, %reached, %query : index"""
    elif reach.chunk:
        lines += f"""
    %bound = arith.constant {reach.chunk} : index
    %into = arith.remui %query, %bound : index
    %begin = arith.subi %query, %into : index
    %near = arith.cmpi sge, %key, %begin : index"""
    else:
        lines += """
    %near = arith.constant true"""
    view = op.opview
    assert isinstance(view, TopkSelectOp)
    if view.visible is None:
        lines += """
    %sees = arith.andi %in_softmax, %near : i1"""
    else:
        lines += """
    %in_reach = arith.andi %in_softmax, %near : i1
    %sees = arith.andi %in_reach, %is_visible : i1"""
    return f"""
    %w = linalg.index 2 : index
    %query = arith.addi %start, %w : index{lines}"""


def _or_sink(keys: int) -> str:
    """``%chosen``: ``%seen`` of a key, the sink's logit behind the keys."""
    return f"""
    %first_sink = arith.constant {keys} : index
    %is_key = arith.cmpi ult, %key, %first_sink : index
    %chosen = arith.select %is_key, %seen, %sink : f32"""


def _padded(most: int) -> tuple[int, int]:
    """The blocks of the prefix count and their size: blocks * size >= M."""
    size = min(_BLOCK, most)
    return -(-most // size), size


def _pooled(op: ir.Operation, most: int) -> str:
    """``%keys_by_score`` [H, P] i32: pooled, mean over the group, as order-preserving integers; -1 if no candidate."""
    heads, group = _heads(op)
    pool = string(op, "pool")
    kernel = 1 if pool == "none" else integer(op, "pool_size")
    blocks, size = _padded(most)
    total, half = blocks * size, kernel // 2
    scores, padded = f"tensor<{heads}x{group}x{most}xf32>", f"tensor<{heads}x{group}x{total + 2 * half}xf32>"
    pooled, means, keys = f"tensor<{heads}x{group}x{total}xf32>", f"tensor<{heads}x{total}xf32>", f"{heads}x{total}xi32"
    keys = f"tensor<{keys}>"
    combine = "arith.maximumf" if pool == "max" else "arith.addf"
    # zero for what is no candidate serves the maximum too: a candidate's own score is not negative
    divided = (
        f"""
    %kernel = arith.constant {float(kernel)!r} : f32
    %one_mean = arith.divf %score, %kernel : f32"""
        if pool == "avg"
        else ""
    )
    mean_input = "%one_mean" if pool == "avg" else "%score"
    return f"""
  %padded = tensor.pad %grouped_scores low[0, 0, {half}] high[0, 0, {total - most + half}] {{
  ^bb0(%h: index, %g: index, %m: index):
    tensor.yield %zero_f32 : f32
  }} : {scores} to {padded}
  %no_pooled = tensor.empty() : {pooled}
  %zero_pooled = linalg.fill ins(%zero_f32 : f32) outs(%no_pooled : {pooled}) -> {pooled}
  %kernel_shape = tensor.empty() : tensor<{kernel}xf32>
  %pooled = linalg.generic {{indexing_maps = [#hgmt_window, #hgmt_t, #hgmt_hgm],
      iterator_types = ["parallel", "parallel", "parallel", "reduction"]}}
      ins(%padded, %kernel_shape : {padded}, tensor<{kernel}xf32>) outs(%zero_pooled : {pooled}) {{
  ^bb0(%score: f32, %unused: f32, %so_far: f32):
    %next = {combine} %so_far, %score : f32
    linalg.yield %next : f32
  }} -> {pooled}
  %no_means = tensor.empty() : {means}
  %zero_means = linalg.fill ins(%zero_f32 : f32) outs(%no_means : {means}) -> {means}
  %sums = linalg.generic {{indexing_maps = [#hmg_hgm, #hmg_hm],
      iterator_types = ["parallel", "parallel", "reduction"]}}
      ins(%pooled : {pooled}) outs(%zero_means : {means}) {{
  ^bb0(%score: f32, %sum: f32):{divided}
    %next = arith.addf %sum, {mean_input} : f32
    linalg.yield %next : f32
  }} -> {means}
  %no_keys = tensor.empty() : {keys}
  %keys_by_score = linalg.generic {{indexing_maps = [#hm_hm, #hm_hm], iterator_types = ["parallel", "parallel"]}}
      ins(%sums : {means}) outs(%no_keys : {keys}) {{
  ^bb0(%sum: f32, %out: i32):
    %m = linalg.index 1 : index
    %group = arith.constant {float(group)!r} : f32
    %mean = arith.divf %sum, %group : f32
    %bits = arith.bitcast %mean : f32 to i32
    %none = arith.constant -1 : i32
    %is_candidate = arith.cmpi slt, %m, %count : index
    %key = arith.select %is_candidate, %bits, %none : i32
    linalg.yield %key : i32
  }} -> {keys}"""


def _threshold(op: ir.Operation, most: int) -> str:
    """``%threshold`` [H] i32: the K-th largest key, or 0 where fewer than K positions are candidates.

    Digit by digit from the top: counts[h, j] keys stand at or above threshold + (j + 1) * 2**shift; they fall with j,
    so the digit is how many of the counts reach K.
    """
    heads, selected = shape_of(op.results[0].type)
    blocks, size = _padded(most)
    keys, thresholds = f"tensor<{heads}x{blocks * size}xi32>", f"tensor<{heads}xi32>"
    parts = [
        f"""
  %no_threshold = tensor.empty() : {thresholds}
  %threshold_31 = linalg.fill ins(%zero_i32 : i32) outs(%no_threshold : {thresholds}) -> {thresholds}"""
    ]
    top = 31
    while top > 0:
        shift = (top - 1) // _DIGIT * _DIGIT
        values = 2 ** (top - shift) - 1
        counts = f"tensor<{heads}x{values}xi32>"
        parts.append(f"""
  %no_counts_{shift} = tensor.empty() : {counts}
  %zero_counts_{shift} = linalg.fill ins(%zero_i32 : i32) outs(%no_counts_{shift} : {counts}) -> {counts}
  %counts_{shift} = linalg.generic {{indexing_maps = [#hjm_hm, #hjm_h, #hjm_hj],
      iterator_types = ["parallel", "parallel", "reduction"]}}
      ins(%keys_by_score, %threshold_{top} : {keys}, {thresholds}) outs(%zero_counts_{shift} : {counts}) {{
  ^bb0(%key: i32, %threshold: i32, %sum: i32):
    %index = linalg.index 1 : index
    %j = arith.index_cast %index : index to i32
    %digit = arith.addi %j, %one_i32 : i32
    %shift = arith.constant {shift} : i32
    %step = arith.shli %digit, %shift : i32
    %bound = arith.addi %threshold, %step : i32
    %reaches = arith.cmpi sge, %key, %bound : i32
    %one = arith.extui %reaches : i1 to i32
    %next = arith.addi %sum, %one : i32
    linalg.yield %next : i32
  }} -> {counts}
  %threshold_{shift} = linalg.generic {{indexing_maps = [#hm_hm, #hm_h], iterator_types = ["parallel", "reduction"]}}
      ins(%counts_{shift} : {counts}) outs(%threshold_{top} : {thresholds}) {{
  ^bb0(%count_of_keys: i32, %threshold: i32):
    %selected = arith.constant {selected} : i32
    %step = arith.constant {2**shift} : i32
    %enough = arith.cmpi sge, %count_of_keys, %selected : i32
    %digit = arith.select %enough, %step, %zero_i32 : i32
    %next = arith.addi %threshold, %digit : i32
    linalg.yield %next : i32
  }} -> {thresholds}""")
        top = shift
    return "".join(parts)


def _positions(op: ir.Operation, most: int) -> str:
    """``%positions`` [H, K] i64: all keys above the threshold and the first of those equal to it, ascending.

    ``taken`` [H, B, I] is the number of positions taken up to and with position b * I + i; it rises by 0 or 1.
    """
    result = op.results[0].type
    heads, selected = shape_of(result)
    blocks, size = _padded(most)
    total = blocks * size
    keys, blocked = f"tensor<{heads}x{total}xi32>", f"tensor<{heads}x{blocks}x{size}xi32>"
    per_head, per_block = f"tensor<{heads}xi32>", f"tensor<{heads}x{blocks}xi32>"
    counts = f"tensor<{heads}x{selected}xi32>"
    return f"""
  %no_sum = tensor.empty() : {per_head}
  %zero_sum = linalg.fill ins(%zero_i32 : i32) outs(%no_sum : {per_head}) -> {per_head}
  %above = linalg.generic {{indexing_maps = [#hm_hm, #hm_h, #hm_h], iterator_types = ["parallel", "reduction"]}}
      ins(%keys_by_score, %threshold_0 : {keys}, {per_head}) outs(%zero_sum : {per_head}) {{
  ^bb0(%key: i32, %threshold: i32, %sum: i32):
    %is_above = arith.cmpi sgt, %key, %threshold : i32
    %one = arith.extui %is_above : i1 to i32
    %next = arith.addi %sum, %one : i32
    linalg.yield %next : i32
  }} -> {per_head}
  %blocked_keys = tensor.expand_shape %keys_by_score [[0], [1, 2]] output_shape [{heads}, {blocks}, {size}]
      : {keys} into {blocked}
  %no_prefix = tensor.empty() : {blocked}
  %zero_prefix = linalg.fill ins(%zero_i32 : i32) outs(%no_prefix : {blocked}) -> {blocked}
  %no_block = tensor.empty() : {per_block}
  %zero_block = linalg.fill ins(%zero_i32 : i32) outs(%no_block : {per_block}) -> {per_block}
{_prefix("above", "sgt", keys=blocked, per_head=per_head, per_block=per_block)}
{_prefix("equal", "eq", keys=blocked, per_head=per_head, per_block=per_block)}
  %taken_in_blocks = linalg.generic {{
      indexing_maps = [#hbi_hbi, #hbi_hb, #hbi_hbi, #hbi_hb, #hbi_h, #hbi_hbi],
      iterator_types = ["parallel", "parallel", "parallel"]}}
      ins(%above_inside, %above_before, %equal_inside, %equal_before, %above
          : {blocked}, {per_block}, {blocked}, {per_block}, {per_head}) outs(%no_prefix : {blocked}) {{
  ^bb0(%ai: i32, %ab: i32, %ei: i32, %eb: i32, %all_above: i32, %out: i32):
    %selected = arith.constant {selected} : i32
    %left = arith.subi %selected, %all_above : i32
    %above_so_far = arith.addi %ai, %ab : i32
    %equal_so_far = arith.addi %ei, %eb : i32
    %equal_taken = arith.minsi %equal_so_far, %left : i32
    %taken_so_far = arith.addi %above_so_far, %equal_taken : i32
    linalg.yield %taken_so_far : i32
  }} -> {blocked}
  %taken = tensor.collapse_shape %taken_in_blocks [[0], [1, 2]] : {blocked} into {keys}
  %no_counts = tensor.empty() : {counts}
  %zero_counts = linalg.fill ins(%zero_i32 : i32) outs(%no_counts : {counts}) -> {counts}
  %ranked_before = linalg.generic {{indexing_maps = [#hjm_hm, #hjm_hj],
      iterator_types = ["parallel", "parallel", "reduction"]}}
      ins(%taken : {keys}) outs(%zero_counts : {counts}) {{
  ^bb0(%taken_so_far: i32, %sum: i32):
    %index = linalg.index 1 : index
    %j = arith.index_cast %index : index to i32
    %is_before = arith.cmpi sle, %taken_so_far, %j : i32
    %one = arith.extui %is_before : i1 to i32
    %next = arith.addi %sum, %one : i32
    linalg.yield %next : i32
  }} -> {counts}
  %no_positions = tensor.empty() : {result}
  %positions = linalg.generic {{indexing_maps = [#hm_hm, #hm_hm], iterator_types = ["parallel", "parallel"]}}
      ins(%ranked_before : {counts}) outs(%no_positions : {result}) {{
  ^bb0(%before: i32, %out: {result.element_type}):
    %sink = arith.constant {integer(op, "sink")} : i32
    %total = arith.constant {total} : i32
    %position = arith.addi %before, %sink : i32
    %is_taken = arith.cmpi slt, %before, %total : i32
    %chosen = arith.select %is_taken, %position, %zero_i32 : i32
    %wide = arith.extsi %chosen : i32 to {result.element_type}
    linalg.yield %wide : {result.element_type}
  }} -> {result}"""


def _prefix(name: str, predicate: str, *, keys: str, per_head: str, per_block: str) -> str:
    """``%<name>_inside`` [H, B, I] and ``%<name>_before`` [H, B]: keys that stand so to the threshold.

    Inside: in the same block up to and with i. Before: in the blocks before b.
    """
    heads, blocks, size = keys[len("tensor<") : -len("xi32>")].split("x")
    return f"""
  %{name}_inside = linalg.generic {{indexing_maps = [#hbij_hbj, #hbij_h, #hbij_hbi],
      iterator_types = ["parallel", "parallel", "parallel", "reduction"]}}
      ins(%blocked_keys, %threshold_0 : {keys}, {per_head}) outs(%zero_prefix : {keys}) {{
  ^bb0(%key: i32, %threshold: i32, %sum: i32):
    %i = linalg.index 2 : index
    %j = linalg.index 3 : index
    %is_earlier = arith.cmpi sle, %j, %i : index
    %stands_so = arith.cmpi {predicate}, %key, %threshold : i32
    %counts = arith.andi %is_earlier, %stands_so : i1
    %one = arith.extui %counts : i1 to i32
    %next = arith.addi %sum, %one : i32
    linalg.yield %next : i32
  }} -> {keys}
  %{name}_in_block = tensor.extract_slice %{name}_inside[0, 0, {int(size) - 1}] [{heads}, {blocks}, 1] [1, 1, 1]
      : {keys} to {per_block}
  %{name}_before = linalg.generic {{indexing_maps = [#hbc_hc, #hbc_hb],
      iterator_types = ["parallel", "parallel", "reduction"]}}
      ins(%{name}_in_block : {per_block}) outs(%zero_block : {per_block}) {{
  ^bb0(%in_block: i32, %sum: i32):
    %b = linalg.index 1 : index
    %c = linalg.index 2 : index
    %is_earlier = arith.cmpi slt, %c, %b : index
    %counted = arith.select %is_earlier, %in_block, %zero_i32 : i32
    %next = arith.addi %sum, %counted : i32
    linalg.yield %next : i32
  }} -> {per_block}"""
