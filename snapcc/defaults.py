"""What the compiler chooses where the user says nothing: slots, their parts, prompt lengths."""

from __future__ import annotations

from dataclasses import dataclass

from snapcc.compiler.dialect.policy import Policy, PoolKind, Score

from .arguments import UsageError

SINK = 4
MOST_SLOTS = 8192
FEWEST_SLOTS = 8
UNKNOWN_CONTEXT_SLOTS = 1024
OBSERVATION_WINDOW = 32
PROMPTS = (128, 1024)


@dataclass(frozen=True)
class Wishes:
    """What the user asked of the cache; None where nothing was said.

    Attributes:
        slots: C.
        sink: S.
        recent: R.
        topk: K.
        window: W, the observation window.
        pool: the pooling of the scores.
        pool_size: its kernel.
        score: over which keys the scores' softmax goes.
    """

    slots: int | None = None
    sink: int | None = None
    recent: int | None = None
    topk: int | None = None
    window: int | None = None
    pool: PoolKind = "avg"
    pool_size: int = 5
    score: Score = "candidates"


def choose_policy(wishes: Wishes, context: int | None, past: int | None = None) -> tuple[Policy, str]:
    """The policy, and a sentence that says what was chosen and why.

    C is what was asked for; else P + 1 for a program exported at a fixed past P; else the sum of S, R and K where R
    was asked for; else a quarter of the context, at most 8,192, and 1,024 where no context is known. S is 4, K is
    C / 4, R is the rest, W is min(32, R).

    Args:
        wishes: what the user asked for.
        context: the model's longest sequence, if it says so.
        past: P, the past length at which a program was exported, if it was exported at one only.

    Raises:
        UsageError: parts that do not add up to the given C, or that no policy can have.
    """
    slots, reason = _slots(wishes, context, past)
    sink = SINK if wishes.sink is None else wishes.sink
    topk = slots // 4 if wishes.topk is None else wishes.topk
    recent = slots - sink - topk if wishes.recent is None else wishes.recent
    given = wishes.slots is not None or past is not None
    if given and wishes.recent is not None and wishes.topk is None:
        topk = slots - sink - recent
    if given and sink + recent + topk != slots:
        raise UsageError(
            f"sink {sink} + recent {recent} + topk {topk} = {sink + recent + topk} slots, and {reason}; "
            f"leave out one of --sink, --recent and --topk, or let them add up"
        )
    window = min(OBSERVATION_WINDOW, recent) if wishes.window is None else wishes.window
    try:
        policy = Policy(sink, recent, topk, window, wishes.pool, wishes.pool_size, wishes.score)
    except ValueError as error:
        raise UsageError(f"{error} (of {slots} slots: {reason})") from None
    if policy.slots != slots:
        reason = "the sum of the parts that were asked for"
    return policy, f"{policy.slots} slots ({reason}): sink {sink}, recent {recent}, topk {topk}, window {window}"


def choose_prompts(asked: tuple[int, ...] | None, slots: int, longest: int) -> tuple[int, ...]:
    """The prompt lengths to compile, ascending: what was asked for, or 128, 1,024 and min(context, 4 C) tokens.

    Args:
        asked: what the user asked for.
        slots: C.
        longest: the longest prompt that the program can take.

    Raises:
        UsageError: a length below 1, or beyond ``longest``.
    """
    if asked is None:
        return tuple(sorted({min(length, longest) for length in (*PROMPTS, 4 * slots)}))
    for length in asked:
        if not 1 <= length <= longest:
            raise UsageError(f"a prompt length must lie in 1 to {longest}, which the program can take, got {length}")
    return tuple(sorted(set(asked)))


def _slots(wishes: Wishes, context: int | None, past: int | None) -> tuple[int, str]:
    if past is not None:
        reason = f"the program was exported at a past of {past}, which makes {past + 1}"
        if wishes.slots not in (None, past + 1):
            raise UsageError(
                f"--slots {wishes.slots} was asked for, and {reason}; export the program with a symbolic past, "
                f"or leave --slots out"
            )
        return past + 1, reason
    if wishes.slots is not None:
        return wishes.slots, f"--slots {wishes.slots} was asked for"
    if context is None:
        return UNKNOWN_CONTEXT_SLOTS, "the model's context is not known"
    return max(min(context // 4, MOST_SLOTS), FEWEST_SLOTS), f"a quarter of the model's {context} tokens"
