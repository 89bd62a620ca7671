"""What masks on attention logits hide and add, found by evaluating them.

A mask is harmless where it is known: the fixed slots get their own mask and their own bias, from positions. So it must
be plainly causal, or bound how far back a query sees (a window, a chunk), or add to the logits something linear in the
key's position (ALiBi). Any other meaning would be lost, and is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch_mlir import ir

from ..diagnostics import Refusal
from ..dialect.kv import Reach
from ..dialect.types import element_of, shape_of
from .aten import Kind, NotConstant, constant, kind_of, made_of, tensor_operands
from .attention import HIDDEN, Logits, Mask
from .axes import Axes, Axis, Follows, dimension_of
from .caches import Order
from .evaluate import Evaluator, NotEvaluable, Weights
from .functions import argument_attributes, body

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Slopes:
    """A bias that grows by ``values[h]`` from each key to the next, whatever the query; ``axes`` are those of h."""

    operation: ir.Operation
    values: torch.Tensor
    axes: tuple[Axis, ...]


@dataclass(frozen=True)
class Masks:
    """All that masks do to logits: ``hidden`` [Q, T] bool, the keys that each query does not see, and biases.

    The keys are those of positions ``first``, ``first`` + 1, .., and the queries are the last Q of them. ``vacant`` are
    the indices that are seen and hold no token.
    """

    hidden: torch.Tensor
    slopes: tuple[Slopes, ...]
    first: int = 0
    vacant: tuple[int, ...] = ()


def assumed(function: ir.Operation, axes: Axes, moment: int, past: int, order: Order) -> dict[ir.Value, torch.Tensor]:
    """The values of positions, the first query's at ``moment``, of masks declared causal, and of choices among keys.

    A choice leaves out nothing: ``chosen_by`` tells what a mask does with one.
    """
    import torch

    known: dict[ir.Value, torch.Tensor] = {}
    for argument, entry in zip(body(function).arguments, argument_attributes(function), strict=True):
        shape = shape_of(argument.type)
        if entry.get("kv.role") == "positions":
            positions = torch.arange(moment, moment + axes.query.size)
            known[argument] = (positions if shape and shape[-1] == axes.query.size else positions[0]).expand(shape)
        elif entry.get("kv.role") == "causal_mask":
            queries, keys = shape[-2:]
            visible = ~not_there(queries, keys, moment, past, order)
            if element_of(argument.type) == "i1":
                known[argument] = visible.expand(shape)
            else:
                known[argument] = torch.where(visible, 0.0, float("-inf")).expand(shape)
    for view in body(function).operations:
        if view.operation.name == "kv.topk_mask":
            chosen = view.operation.results[0]
            known[chosen] = torch.ones(shape_of(chosen.type), dtype=torch.bool)
    return known


def not_there(queries: int, keys: int, moment: int, past: int, order: Order) -> torch.Tensor:
    """Which keys hold no token, or one behind the query, where the first query is at ``moment``. -> [Q, T] bool."""
    import torch

    if order is not Order.APPENDED:
        return (order.held(moment, keys) < 0).expand(queries, keys)
    return torch.arange(keys)[None, :] > torch.arange(queries)[:, None] + (keys - queries)


def read_masks(
    logits: Logits, key: Axis, query: Axis, axes: Axes, evaluator: Evaluator, held: torch.Tensor | None = None
) -> Masks:
    """What the masks on logits do.

    ``held`` [T] is the position of the token at each index of the keys, -1 where there is none; None where they stand
    in the order of their positions, from 0 on.

    Raises:
        Refusal: a mask depends on data, hides other keys for other rows or heads, or adds what is not linear.
    """
    import torch

    hidden = torch.zeros(query.size, key.size, dtype=torch.bool)
    biases: list[tuple[Mask, torch.Tensor, tuple[Axis, ...]]] = []
    for mask in logits.masks:
        hides, bias = _evaluated(mask, evaluator)
        table, others = _by_query_and_key(hides, mask, key, query, axes)
        if not bool((table == table[:1]).all()):
            raise Refusal(mask.operation, "a mask differs between rows or heads", "use one mask for all rows and heads")
        hidden |= table[0]
        if bool((bias != 0).any()):
            biases.append((mask, _by_query_and_key(bias, mask, key, query, axes)[0], others))
    first = 0
    vacant: tuple[int, ...] = ()
    if held is not None:
        vacant = tuple(int(index) for index in (~hidden.all(0) & (held < 0)).nonzero())
        column = held.argsort()[int((held < 0).sum()) :]
        first = int(held[column[0]])
        hidden = hidden[:, column]
        biases = [(mask, bias[..., column], others) for mask, bias, others in biases]
    slopes = () if bool(hidden.all()) else tuple(_slopes(*found, hidden) for found in biases)
    return Masks(hidden, slopes, first, vacant)


def chosen_by(
    logits: Logits,
    read: Masks,
    key: Axis,
    query: Axis,
    axes: Axes,
    known: Mapping[ir.Value, torch.Tensor],
    weights: Weights,
) -> ir.Value | None:
    """The choice among the keys that the masks hide the rest of, [B, Q, T] i1 of a ``kv.topk_mask``; None without one.

    ``read`` is what the masks do where the choice leaves out nothing, as it is in ``known``.

    Raises:
        Refusal: there are several choices, or masks do anything else with one than hide what it leaves out.
    """
    import torch

    found: dict[ir.Value, Mask] = {}
    for mask in logits.masks:
        found |= {op.results[0]: mask for op in _made_of(mask) if op.name == "kv.topk_mask"}
    if not found:
        return None
    (chosen, mask), *others = found.items()
    if others:
        _, second = others[0]
        raise Refusal(
            second.operation, "two choices among the keys mask the same logits", "choose once, by the sum of the scores"
        )
    for op in _made_with(chosen, _made_of(mask)):
        if kind_of(op) not in (Kind.POINTWISE, Kind.VIEW):
            raise Refusal(
                op,
                f"'{op.name}' mixes what a choice among the keys says of several keys",
                "mask the logits of the keys that are not chosen, each by itself",
            )
    pattern = torch.rand(shape_of(chosen.type), generator=torch.Generator().manual_seed(0)) < 0.5
    pattern = pattern[:1].expand(pattern.shape)
    for kept in (pattern, ~pattern):
        masked = read_masks(logits, key, query, axes, Evaluator({**known, chosen: kept}, weights))
        if masked.slopes or not bool((masked.hidden == (read.hidden | ~kept[0])).all()):
            raise Refusal(
                mask.operation,
                "a mask made of a choice among the keys does not hide the keys that are not chosen, and these alone",
                "fill the logits of keys that are not chosen with float('-inf')",
            )
    return chosen


def _made_of(mask: Mask) -> list[ir.Operation]:
    """The ops that a mask is made of, up to choices among the keys."""
    return list(made_of(mask.value, lambda op: op.name == "kv.topk_mask"))


def _made_with(value: ir.Value, ops: Sequence[ir.Operation]) -> list[ir.Operation]:
    """Those of some ops that are made of a value."""
    found: list[ir.Operation] = []
    reached, before = {value}, 0
    while before < len(reached):
        before = len(reached)
        for op in ops:
            if op not in found and any(v in reached for v in tensor_operands(op)):
                found.append(op)
                reached.update(op.results)
    return found


def reach_of(softmaxes: Sequence[ir.Operation], read: Sequence[Masks]) -> Reach:
    """How far back the queries of one attention see, from what its masks hide at several lengths and positions.

    What came before the first key tells nothing: a cache of fixed length has lost it.

    Raises:
        Refusal: a query sees what comes after it, or its keys are no plain past, window or chunk.
    """
    import torch

    seen: list[torch.Tensor] = []
    for softmax, masks in zip(softmaxes, read, strict=True):
        table = masks.hidden
        queries, keys = table.shape
        position = torch.arange(keys - queries, keys)
        first = (~table).int().argmax(1)
        columns = torch.arange(keys)
        wanted = (columns < first[:, None]) | (columns > position[:, None])
        if bool((table != wanted).any()):
            _refuse(softmax, masks)
        seen.append(torch.stack((position, first, torch.zeros(queries).long())) + masks.first)
    position, first, oldest = torch.cat(seen, 1)
    at = int(torch.where(first > oldest, first, 0).argmax())
    furthest, begin = int(position[at]), int(first[at])
    if begin == int(oldest[at]):
        return Reach()
    window = furthest - begin + 1
    found = [Reach(window=window)] if bool((first == (position - window + 1).maximum(oldest)).all()) else []
    # a chunk begins at a multiple of its size, and the query lies in it
    sizes = (c for c in range(window, begin + 1) if begin % c == 0)
    found += [Reach(chunk=c) for c in sizes if bool((first == (position - position % c).maximum(oldest)).all())]
    if not found:
        _refuse(softmaxes[0], next((m for m in read if m.hidden.any()), max(read, key=lambda m: m.hidden.shape[0])))
    if len(found) > 1:
        raise Refusal(
            softmaxes[0],
            f"a query at position {furthest} sees keys from {begin} on: a sliding window of {window} tokens, or "
            f"chunks of {found[-1].chunk}",
            f"compile a prompt of more than {window} tokens too, which shows which it is",
        )
    return found[0]


def _refuse(softmax: ir.Operation, masks: Masks) -> None:
    import torch

    hidden = masks.hidden
    queries, keys = hidden.shape
    future = torch.arange(keys)[None, :] > torch.arange(queries)[:, None] + (keys - queries)
    query, key = (int(x) for x in (hidden != future).nonzero()[0])
    at = f"of {queries} queries over {keys} keys, query {query} "
    if queries == 1:
        at += f"at position {masks.first + keys - 1} "
    if hidden[query, key]:
        raise Refusal(
            softmax,
            f"attention over the cache is neither causal nor a window or chunks: {at}does not see key {key}",
            "prefixes and documents in the mask are not supported yet",
        )
    raise Refusal(
        softmax,
        f"attention over the cache is not plainly causal: {at}sees key {key}, which comes after it",
        "mask the future: a padded prompt would see its padding otherwise",
    )


def _evaluated(mask: Mask, evaluator: Evaluator) -> tuple[torch.Tensor, torch.Tensor]:
    """Where a mask hides, and what it adds elsewhere, in the mask's own shape."""
    import torch

    try:
        value = evaluator(mask.value)
        filler = None if mask.filler is None else _number(mask.filler, evaluator)
    except NotEvaluable as stop:
        raise Refusal(mask.operation, *_undecided(stop)) from None
    if mask.how == "add":
        hidden = value * mask.factor <= HIDDEN
        return hidden, torch.where(hidden, 0.0, value.double() * mask.factor)
    hidden = value if mask.how == "hide" else ~value
    if filler is None or filler * mask.factor > HIDDEN:
        raise Refusal(
            mask.operation,
            f"a mask fills logits with {filler}, which does not hide their keys",
            f"fill with float('-inf') or a number of at most {HIDDEN:g}",
        )
    return hidden, torch.zeros(())


def _by_query_and_key(
    value: torch.Tensor, mask: Mask, key: Axis, query: Axis, axes: Axes
) -> tuple[torch.Tensor, tuple[Axis, ...]]:
    """[others, Q, T] of a value that is broadcast to the logits, and the axes that make ``others``."""
    shape, dims = shape_of(mask.logits.type), axes.of[mask.logits]
    if query.size > 1 and not any(query in group for group in dims):
        lost = axes.lost(mask.logits, Follows.QUERY)
        raise (
            lost.refusal()
            if lost is not None
            else Refusal(
                mask.operation, "masked logits have no axis of the query tokens", "mask logits of queries and keys"
            )
        )
    order = [i for i, group in enumerate(dims) if key not in group and query not in group]
    merged = query.size > 1 and dims[dimension_of(dims, query)] != (query,)
    if merged or dims[dimension_of(dims, key)] != (key,):
        raise Refusal(
            mask.operation,
            "a mask meets logits whose query or cache axis is merged with another one",
            "mask the logits while queries and keys have dimensions of their own",
        )
    last = [dimension_of(dims, key)] if query.size == 1 else [dimension_of(dims, query), dimension_of(dims, key)]
    if shape_of(mask.operation.results[0].type) != shape:
        raise Refusal(mask.operation, "a mask repeats the logits", "give the mask no dimension that the logits lack")
    own = [1] * (len(shape) - value.dim()) + list(value.shape)
    # rows and heads that share a mask are not made for it
    table = value.reshape(own).expand([shape[i] if i in last else extent for i, extent in enumerate(own)])
    table = table.permute([*order, *last]).reshape(-1, query.size, key.size)
    return table, tuple(axis for i in order if own[i] > 1 for axis in dims[i])


def _slopes(mask: Mask, table: torch.Tensor, others: tuple[Axis, ...], hidden: torch.Tensor) -> Slopes:
    """The slopes of a bias [others, Q, T], which must be linear along the keys that each query sees."""
    import torch

    seen = ~hidden
    count = hidden.shape[1]
    keys = torch.arange(count, dtype=torch.float64)
    start, end = seen.int().argmax(1), count - 1 - seen.int().flip(1).argmax(1)
    longest = int((end - start).argmax())
    found: list[float] = []
    for bias in table:
        line = bias[longest]
        first, last = int(start[longest]), int(end[longest])
        slope = float(line[last] - line[first]) / max(last - first, 1)
        level = bias.gather(1, start[:, None])
        off = (bias - level - slope * (keys - start[:, None])).abs()[seen].max()
        if float(off) > 1e-5 * max(1.0, float(bias.abs()[seen].max())):
            raise Refusal(
                mask.operation,
                "a bias that is not linear in the key's position is added to the logits",
                "only masks that hide keys and linear biases such as ALiBi are supported",
            )
        found.append(slope)
    return Slopes(mask.operation, torch.tensor(found, dtype=torch.float64), others)


def _number(value: ir.Value, evaluator: Evaluator) -> float:
    try:
        number = constant(value)
    except NotConstant:
        return float(evaluator(value).max().item())
    assert isinstance(number, int | float)
    return float(number)


def _undecided(stop: NotEvaluable) -> tuple[str, str]:
    block = stop.value.owner
    if isinstance(block, ir.Block):
        entry = argument_attributes(block.owner.operation)[
            list(body(block.owner.operation).arguments).index(stop.value)
        ]
        name = entry.get("kv.name", "?")
        if entry.get("kv.role") in ("tokens", "state"):
            return (
                f"a mask or bias on the logits is made of the {entry['kv.role']} '{name}'",
                "make masks depend on lengths and positions alone, and biases linear in the key's position",
            )
        return (
            f"a mask on the logits depends on the input '{name}', whose meaning is not known",
            f"declare it with --causal-mask {name} if it is plainly causal",
        )
    return f"a mask on the logits is not known: {stop.why}", "make the mask depend on lengths and positions alone"
