"""The defaults of the command line: how C is found and divided."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapcc.arguments import UsageError
from snapcc.compiler.dialect.policy import Policy
from snapcc.defaults import Wishes, choose_extends, choose_policy, choose_prompts


@pytest.mark.parametrize(
    ("wishes", "context", "past", "parts"),
    [
        (Wishes(), 8192, None, (4, 1532, 512, 32)),
        (Wishes(), 131072, None, (4, 6140, 2048, 32)),
        (Wishes(), None, None, (4, 764, 256, 32)),
        (Wishes(), 8192, 511, (4, 380, 128, 32)),
        (Wishes(), 64, None, (4, 8, 4, 8)),
        (Wishes(), 8, None, (4, 2, 2, 2)),
        (Wishes(slots=512), 8192, None, (4, 380, 128, 32)),
        (Wishes(slots=512, topk=0), 8192, None, (4, 508, 0, 32)),
        (Wishes(slots=512, sink=0), 8192, None, (0, 384, 128, 32)),
        (Wishes(slots=512, recent=100), 8192, None, (4, 100, 408, 32)),
        (Wishes(slots=512, sink=4, recent=252, topk=256, window=16), 8192, None, (4, 252, 256, 16)),
        (Wishes(sink=4, recent=252, topk=256), 8192, None, (4, 252, 256, 32)),
        (Wishes(sink=2, recent=8, topk=4, window=4), None, None, (2, 8, 4, 4)),
        (Wishes(topk=0), 8192, None, (4, 2044, 0, 32)),
        (Wishes(recent=10), 8192, None, (4, 10, 512, 10)),
        (Wishes(slots=14, sink=2, recent=8), None, 13, (2, 8, 4, 8)),
    ],
)
def test_parts(wishes: Wishes, context: int | None, past: int | None, parts: tuple[int, int, int, int]) -> None:
    policy, said = choose_policy(wishes, context, past)
    assert (policy.sink, policy.recent, policy.topk, policy.window) == parts
    assert said.startswith(f"{policy.slots} slots (")


@pytest.mark.parametrize(
    ("wishes", "past", "message"),
    [
        (Wishes(slots=512, sink=4, recent=252, topk=255), None, "sink 4 [+] recent 252 [+] topk 255 = 511 slots, and"),
        (Wishes(slots=512, recent=252, topk=256, sink=0), None, "= 508 slots, and --slots 512 was asked for"),
        (Wishes(slots=500), 511, "--slots 500 was asked for, and the program was made for 511 past tokens"),
        (Wishes(sink=2, recent=8, topk=5), 13, "= 15 slots, and the program was made for 13 past tokens"),
        (Wishes(slots=4), None, "recent must be at least 1"),
        (Wishes(slots=512, recent=600), None, "topk must be at least 0, got -92"),
        (Wishes(slots=512, window=500), None, "got window 500, recent 380"),
        (Wishes(pool_size=4), None, "the pooling kernel must be odd and positive, got 4"),
    ],
)
def test_refused(wishes: Wishes, past: int | None, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        choose_policy(wishes, 8192, past)


@pytest.mark.parametrize(
    ("wishes", "context", "past", "policy"),
    [
        (Wishes(kv="streamingllm"), 8192, None, Policy(4, 2044, 0, 1, "none")),
        (Wishes(kv="streamingllm", sink=2, slots=10, topk=0), 8192, None, Policy(2, 8, 0, 1, "none")),
        (Wishes(kv="sage-kv"), 8192, None, Policy(4, 1532, 512, 1, "none")),
        (Wishes(kv="sage-kv", sink=2, recent=8, topk=4, score="all"), None, None, Policy(2, 8, 4, 1, "none", 5, "all")),
        (Wishes(kv="snapkv"), 8192, None, Policy(0, 288, 1760, 32, score="all")),
        (Wishes(kv="snapkv", slots=8), 8192, None, Policy(0, 4, 4, 2, score="all")),
        (Wishes(kv="snapkv", slots=12, window=4, room=4), None, None, Policy(0, 8, 4, 4, score="all")),
        (Wishes(kv="snapkv", slots=12, window=4, topk=6), None, None, Policy(0, 6, 6, 4, score="all")),
        (Wishes(kv="snapkv", window=4, topk=6, room=2), None, None, Policy(0, 6, 6, 4, score="all")),
        (Wishes(kv="snapkv", room=5000), 8192, None, Policy(0, 5032, 512, 32, score="all")),
        (Wishes(kv="snapkv"), None, 511, Policy(0, 160, 352, 32, score="all")),
        (Wishes(kv="window", slots=10), 8192, None, Policy(0, 10, 0, 1, "none")),
        (Wishes(kv="window", recent=10), 8192, None, Policy(0, 10, 0, 1, "none")),
        (Wishes(kv="full"), 8192, None, Policy(0, 8192, 0, 1, "none")),
        (Wishes(kv="full", slots=300), None, None, Policy(0, 300, 0, 1, "none")),
        (Wishes(kv="full"), 8192, 511, Policy(0, 512, 0, 1, "none")),
    ],
)
def test_presets(wishes: Wishes, context: int | None, past: int | None, policy: Policy) -> None:
    assert choose_policy(wishes, context, past)[0] == policy


@pytest.mark.parametrize(
    ("wishes", "context", "message"),
    [
        (Wishes(kv="streamingllm", topk=4), 64, "--kv streamingllm has topk 0, and --topk 4 was asked for; leave --to"),
        (Wishes(kv="sage-kv", window=4), 64, "--kv sage-kv has window 1, and --obs-window 4 .* use --kv snapstream"),
        (Wishes(kv="sage-kv", pool="avg"), 64, "--kv sage-kv has pool none, and --pool avg was asked for"),
        (Wishes(kv="snapkv", score="candidates"), 64, "--kv snapkv has score all, and --score candidates"),
        (Wishes(kv="snapkv", sink=4), 64, "--kv snapkv has sink 0, and --sink 4 was asked for"),
        (Wishes(kv="snapkv", recent=4), 64, "--recent was given; use --obs-window and --room"),
        (Wishes(kv="snapkv", slots=8, room=10), 64, "leave out one of --obs-window, --room and --topk"),
        (Wishes(kv="window", room=4), 64, "--room is for --kv snapkv, and not for --kv window; use --recent"),
        (Wishes(kv="full", recent=4), 64, "--recent was given; use --kv window"),
        (Wishes(kv="full", slots=32), 64, "--kv full keeps the model's 64 tokens, and --slots 32 was asked for; leave"),
        (Wishes(kv="full"), None, "--kv full keeps the model's longest sequence, .* say it with --slots"),
        (Wishes(kv="h2o"), 64, "there is no preset 'h2o'; take one of snapstream, "),
    ],
)
def test_what_a_preset_refuses(wishes: Wishes, context: int | None, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        choose_policy(wishes, context)


def test_more_slots_than_positions_are_refused() -> None:
    for wishes in (Wishes(slots=65), Wishes(sink=4, recent=60, topk=1), Wishes(topk=0, recent=61)):
        with pytest.raises(UsageError, match="65 slots are more than the 64 positions of the model: ask for at most"):
            choose_policy(wishes, 64)
    assert choose_policy(Wishes(slots=64), 64)[0].slots == 64


def test_slots_are_bounded_without_a_context_too() -> None:
    assert choose_policy(Wishes(slots=1 << 20), None)[0].slots == 1 << 20
    with pytest.raises(UsageError, match="1048577 slots are more than the 1048576 that are taken where the model's co"):
        choose_policy(Wishes(slots=(1 << 20) + 1), None)


@given(slots=st.integers(8, 100_000), context=st.none() | st.integers(100_000, 10**6))
def test_a_given_c_is_kept(slots: int, context: int | None) -> None:
    policy, _ = choose_policy(Wishes(slots=slots), context)
    assert policy.slots == slots
    assert (policy.sink, policy.topk) == (4, slots // 4)


@given(context=st.integers(1, 10**7))
def test_every_context_has_a_policy(context: int) -> None:
    policy, _ = choose_policy(Wishes(), context)
    assert policy.slots <= max(8, min(context // 4, 8192))


def test_prompts() -> None:
    assert choose_prompts(None, 512, 8192) == (128, 1024, 2048)
    assert choose_prompts(None, 2048, 8192) == (128, 1024, 8192)
    assert choose_prompts(None, 16, 64) == (64,)
    assert choose_prompts(None, 1024, 4097) == (128, 1024, 4096)
    assert choose_prompts((300, 20, 20), 16, 512) == (20, 300)
    for asked in (0, 1, 600):
        with pytest.raises(UsageError, match=f"must lie in 2 to 512, which the program can take, got {asked}"):
            choose_prompts((asked,), 16, 512)


def test_extends() -> None:
    assert choose_extends(None, (128, 1024), 512) == (128,)
    assert choose_extends(None, (40,), 512) == (40,)
    assert choose_extends(None, (40,), 24) == (24,)
    assert choose_extends(None, (40,), 1) == choose_extends(None, (1,), 64) == choose_extends((), (40,), 0) == ()
    assert choose_extends((64, 8, 8), (40,), 64) == (8, 64)
    for asked in (1, 65):
        with pytest.raises(UsageError, match=f"must lie in 2 to 64, which the program can take .+, got {asked}"):
            choose_extends((asked,), (40,), 64)
    with pytest.raises(UsageError, match="choose fewer slots, or --extend 0"):
        choose_extends((8,), (40,), 1)


def test_the_policy_of_the_paper_is_one_of_them() -> None:
    policy, _ = choose_policy(Wishes(sink=4, recent=252, topk=256), 8192)
    assert policy == Policy(sink=4, recent=252, topk=256, window=32)
