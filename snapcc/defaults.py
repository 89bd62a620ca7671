"""What the compiler chooses where the user says nothing: slots, their parts, prompt lengths."""

from __future__ import annotations

from dataclasses import dataclass, replace

from snapcc.compiler.dialect.policy import Policy, PoolKind, Score

from .arguments import UsageError
from .presets import PRESETS, Preset

SINK = 4
MOST_SLOTS = 8192
FEWEST_SLOTS = 8
MOST_WITHOUT_CONTEXT = 1 << 20
"""More slots than any published model has positions are a slip."""
UNKNOWN_CONTEXT_SLOTS = 1024
OBSERVATION_WINDOW = 32
ROOM = 256
PROMPTS = (128, 1024)
EXTEND = 128
SHORTEST = 2
"""One token is decode's."""


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
        kv: the preset, a key of ``PRESETS``.
        room: how many generated tokens the ring of ``snapkv`` takes before it slides.
    """

    slots: int | None = None
    sink: int | None = None
    recent: int | None = None
    topk: int | None = None
    window: int | None = None
    pool: PoolKind | None = None
    pool_size: int | None = None
    score: Score | None = None
    kv: str = "snapstream"
    room: int | None = None

    @property
    def preset(self) -> Preset:
        """The preset of ``kv``.

        Raises:
            UsageError: there is none of that name.
        """
        if self.kv not in PRESETS:
            raise UsageError(f"there is no preset {self.kv!r}; take one of {', '.join(PRESETS)}")
        return PRESETS[self.kv]


def choose_policy(
    wishes: Wishes, context: int | None, past: int | None = None, decode_only: bool = False
) -> tuple[Policy, str]:
    """The policy, and a sentence that says what was chosen and why.

    C is what was asked for; else P + 1 for a program exported at a fixed past P; else the sum of S, R and K where R
    was asked for; else a quarter of the context, at most 8,192, and 1,024 where no context is known. S is 4, K is
    C / 4, R is the rest, W is min(32, R). A preset fixes some parts: ``full`` has R = C = the context; ``snapkv`` has
    W = min(32, C / 4), a room of min(256, C / 4) tokens, R = W + room, and K is the rest. Where nothing selects, since
    prompts go through decode, K is 0.

    Args:
        wishes: what the user asked for.
        context: the model's longest sequence, if it says so.
        past: P, the past length at which a program was exported, if it was exported at one only.
        decode_only: whether prompts go through decode token by token.

    Raises:
        UsageError: parts that contradict the preset, do not add up to the given C, or that no policy can have.
    """
    wishes = _with_preset(wishes)
    slots, reason = _slots(wishes, context, past)
    given = wishes.slots is not None or past is not None
    nothing_selects = decode_only and wishes.topk is None and not (given and wishes.recent is not None)
    if nothing_selects:
        wishes = replace(wishes, topk=0)
    if wishes.preset.span == "room":
        wishes = _with_room(wishes, slots, given)
    sink = SINK if wishes.sink is None else wishes.sink
    topk = slots // 4 if wishes.topk is None else wishes.topk
    recent = slots - sink - topk if wishes.recent is None else wishes.recent
    if given and wishes.recent is not None and wishes.topk is None:
        topk = slots - sink - recent
    if given and sink + recent + topk != slots:
        raise UsageError(
            f"sink {sink} + recent {recent} + topk {topk} = {sink + recent + topk} slots, and {reason}; "
            f"leave out one of {_ADJUSTABLE[wishes.preset.span]}, or let them add up"
        )
    window = min(OBSERVATION_WINDOW, recent) if wishes.window is None else wishes.window
    pool_size = 5 if wishes.pool_size is None else wishes.pool_size
    try:
        policy = Policy(sink, recent, topk, window, wishes.pool or "avg", pool_size, wishes.score or "candidates")
    except ValueError as error:
        what = "; ask for more --slots, or for less of --sink and --topk" if recent < 1 else ""
        raise UsageError(f"{error} (of {slots} slots: {reason}){what}") from None
    asked = (wishes.slots, wishes.sink, wishes.recent, wishes.topk)
    if context is not None and policy.slots > context and any(part is not None for part in asked):
        raise UsageError(
            f"{policy.slots} slots are more than the {context} positions of the model: ask for at most {context} "
            f"(--slots, or --sink, --recent and --topk together)"
        )
    if context is None and policy.slots > MOST_WITHOUT_CONTEXT:
        raise UsageError(
            f"{policy.slots} slots are more than the {MOST_WITHOUT_CONTEXT} that are taken where the model's context "
            "is not known: ask for fewer, or export the program with a bound on its past, which tells the context"
        )
    if policy.slots != slots:
        reason = "the sum of the parts that were asked for"
    parts = f"sink {sink}, recent {recent}, topk {topk}"
    # the observation window is for a selection
    parts += ", since a prompt through decode selects nothing" if nothing_selects else f", window {window}"
    return policy, f"{policy.slots} slots ({reason}): {parts}"


def choose_prompts(asked: tuple[int, ...] | None, slots: int, longest: int) -> tuple[int, ...]:
    """The prompt lengths to compile, ascending: what was asked for, or 128, 1,024 and min(context, 4 C) tokens.

    Args:
        asked: what the user asked for.
        slots: C.
        longest: the longest prompt that the program can take.

    Raises:
        UsageError: a length below 2 (a prompt of one token is padded to a longer one), or beyond ``longest``.
    """
    if asked is None:
        return tuple(sorted({min(length, longest) for length in (*PROMPTS, 4 * slots)}))
    for length in asked:
        if not SHORTEST <= length <= longest:
            raise UsageError(
                f"a prompt length must lie in {SHORTEST} to {longest}, which the program can take, got {length}"
            )
    return tuple(sorted(set(asked)))


_FLAGS = {"window": "--obs-window"}
_ADJUSTABLE = {
    "part": "--sink, --recent and --topk",
    "room": "--obs-window, --room and --topk",
    "context": "--slots",
}


def _with_preset(wishes: Wishes) -> Wishes:
    """The wishes with the parts that their preset fixes.

    Raises:
        UsageError: a part was asked for that the preset fixes at another value, or that it does not have.
    """
    preset = wishes.preset
    for part, value in preset.fixed.items():
        asked = getattr(wishes, part)
        if asked not in (None, value):
            flag = _FLAGS.get(part, f"--{part}")
            raise UsageError(
                f"--kv {wishes.kv} has {part} {value}, and {flag} {asked} was asked for; leave {flag} out, or use "
                f"--kv snapstream, which takes it"
            )
    if wishes.recent is not None and preset.span != "part":
        instead = "use --obs-window and --room" if preset.span == "room" else "use --kv window"
        raise UsageError(f"--kv {wishes.kv} finds its recent tokens itself, and --recent was given; {instead}")
    if wishes.room is not None and preset.span != "room":
        raise UsageError(f"--room is for --kv snapkv, and not for --kv {wishes.kv}; use --recent")
    return replace(wishes, **preset.fixed)


def _with_room(wishes: Wishes, slots: int, given: bool) -> Wishes:
    """W, R = W + room and K of ``snapkv``."""
    window = min(OBSERVATION_WINDOW, max(slots // 4, 1)) if wishes.window is None else wishes.window
    room = wishes.room
    if room is None:
        rest = slots - window - wishes.topk if given and wishes.topk is not None else min(ROOM, slots // 4)
        room = max(rest, 0)
    topk = wishes.topk
    if topk is None:
        # with R asked for, C is the sum of the parts, as where --recent is
        topk = slots // 4 if wishes.room is not None and not given else max(slots - window - room, 0)
    return replace(wishes, window=window, recent=window + room, topk=topk)


def choose_extends(asked: tuple[int, ...] | None, prompts: tuple[int, ...], longest: int) -> tuple[int, ...]:
    """The lengths to compile extend for, ascending: what was asked for, or min(128, the shortest prompt's) tokens.

    Args:
        asked: what the user asked for; an empty tuple for none.
        prompts: the prompt lengths, ascending.
        longest: the most tokens that the program can take behind C others; less than 2 where it cannot.

    Raises:
        UsageError: a length below 2, or beyond ``longest``.
    """
    if asked is None:
        default = min(EXTEND, *prompts[:1], longest)
        return (default,) if default >= SHORTEST else ()
    for length in asked:
        if longest < SHORTEST:
            raise UsageError(
                "--extend was given, and the program has no room for more tokens behind as many as there are slots, or "
                "keeps them in the order of time (--kv naive); choose fewer slots, or --extend 0: extend then goes "
                "through decode"
            )
        if not SHORTEST <= length <= longest:
            raise UsageError(
                f"a length of --extend must lie in {SHORTEST} to {longest}, which the program can take behind "
                f"its slots, got {length}"
            )
    return tuple(sorted(set(asked)))


def _slots(wishes: Wishes, context: int | None, past: int | None) -> tuple[int, str]:
    if past is not None:
        reason = f"the program was made for {past} past tokens and a new one, which makes {past + 1}"
        if wishes.slots not in (None, past + 1):
            raise UsageError(
                f"--slots {wishes.slots} was asked for, and {reason}; export the program with a symbolic past, "
                f"or leave --slots out"
            )
        return past + 1, reason
    if wishes.preset.span == "context" and context is not None:
        if wishes.slots not in (None, context):
            raise UsageError(
                f"--kv {wishes.kv} keeps the model's {context} tokens, and --slots {wishes.slots} was asked for; "
                f"leave --slots out, or use --kv window"
            )
        return context, f"the model's {context} tokens"
    if wishes.slots is not None:
        return wishes.slots, f"--slots {wishes.slots} was asked for"
    if wishes.preset.span == "context":
        raise UsageError(
            f"--kv {wishes.kv} keeps the model's longest sequence, and the program does not say how long that is; "
            f"say it with --slots"
        )
    if context is None:
        return UNKNOWN_CONTEXT_SLOTS, "the model's context is not known"
    return max(min(context // 4, MOST_SLOTS), FEWEST_SLOTS), f"a quarter of the model's {context} tokens"
