"""A row's life: extended, idle, emptied, used again. Everything through ``snapcc.load``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from compiled import TOLERANCE, prompts_of, tiny_llama
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import snapcc
from snapcc.artifact import load as load_artifact
from snapcc.oracle import oracle
from snapcc.runtime.engine import Program
from snapcc.runtime.generation import generate
from snapcc.runtime.reference import Reference

S, R, K, B, V = 2, 8, 4, 3, 256
FIXED = S + R
EXTENDS = (6, 20)
PROMPTS = (1, 2, 3, FIXED - 1, FIXED, FIXED + 1, FIXED + K, FIXED + K + 1, S + 3 * R, 48)
MORE = (1, S, R - 1, R, R + 1, FIXED, 2 * R - 1, 2 * R, 2 * R + 1, EXTENDS[-1], 5 * R + 1)
OPTIONS = {"sink": S, "recent": R, "topk": K, "window": 4, "batch": B, "prompts": (48,), "extends": EXTENDS}

Logits = NDArray[np.float32]


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("row_life")
    tiny_llama(folder / "llama")
    return snapcc.compile(folder / "llama", folder / "out.snapcc", target="host", **OPTIONS)


@pytest.fixture(scope="module")
def references(artifact: Path) -> list[Reference]:
    return [oracle(load_artifact(artifact)) for _ in range(B)]


def tokens_of(count: int, seed: int = 0) -> list[int]:
    return [int(token) for token in np.random.default_rng((count, seed)).integers(0, V, count)]


def decode_row(program: Program, row: int, token: int, position: int) -> Logits:
    """One token of one row, the others idle."""
    tokens, positions, active = (np.zeros(B, kind) for kind in (np.int64, np.int64, np.bool_))
    tokens[row], positions[row], active[row] = token, position, True
    return program.decode(tokens, positions, active)[row]


def one_by_one(program: Program, row: int, tokens: Sequence[int], start: int) -> list[Logits]:
    return [decode_row(program, row, token, position) for position, token in enumerate(tokens, start)]


def close(found: Logits, wanted: Logits) -> bool:
    """Within the tolerance; no NaN is."""
    return bool(np.abs(found - wanted).max() <= TOLERANCE * max(1.0, float(np.abs(wanted).max())))


def bits(program: Program, row: int) -> dict[str, bytes]:
    """Every state of a row."""
    return {name: state.to_host()[row].tobytes() for name, state in program._states.items()}


def overwrite(program: Program, row: int, change: Callable[[NDArray[np.float32]], None]) -> None:
    """Changes a row's slots, [H, C, D] of each cache, on the device."""
    for name, spec in program.spec.states.items():
        if len(spec.shape) == 4:
            state = np.array(program._states[name].to_host())
            change(state[row])
            program._states[name] = program._iree.asdevicearray(program._device, state)


# --- extend


@pytest.mark.parametrize("prompt", PROMPTS)
def test_extend_equals_decoding_one_at_a_time(artifact: Path, prompt: int) -> None:
    extended, stepped = snapcc.load(artifact), snapcc.load(artifact)
    for program in (extended, stepped):
        program.prefill(tokens_of(20, seed=1), 0)
        program.prefill(tokens_of(5, seed=2), 2)
    beside = [bits(extended, row) for row in (0, 2)]
    for more in MORE:
        tokens, after = tokens_of(more, seed=prompt), tokens_of(3, seed=more)
        for program in (extended, stepped):
            program.prefill(tokens_of(prompt), 1)
        found = extended.extend(tokens, 1, prompt)
        assert close(found, one_by_one(stepped, 1, tokens, prompt)[-1]), more
        later = [one_by_one(program, 1, after, prompt + more) for program in (extended, stepped)]
        assert all(close(a, b) for a, b in zip(*later, strict=True)), more
    assert [bits(extended, row) for row in (0, 2)] == beside


def test_extend_from_an_empty_row_is_a_prompt(artifact: Path) -> None:
    program = snapcc.load(artifact)
    prompt = tokens_of(FIXED)
    wanted = program.prefill(prompt, 0)
    assert close(program.extend(prompt, 1, 0), wanted)
    assert close(decode_row(program, 1, 7, FIXED), decode_row(program, 0, 7, FIXED))


@pytest.mark.parametrize("prompt", [1, FIXED, 48])
def test_extend_equals_the_oracle(artifact: Path, references: list[Reference], prompt: int) -> None:
    program, reference = snapcc.load(artifact), references[0]
    assert close(program.prefill(tokens_of(prompt), 1), reference.prefill(tokens_of(prompt)))
    length = prompt
    for more in (R - 1, 1, FIXED, 5 * R + 1):
        tokens = tokens_of(more, seed=1)
        assert close(program.extend(tokens, 1, length), reference.extend(tokens)), more
        length += more
        assert close(decode_row(program, 1, more, length), reference.decode(more)), more
        length += 1


def test_more_than_the_longest_length_goes_in_parts(artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program, called = snapcc.load(artifact), []
    call = program._call
    monkeypatch.setattr(program, "_call", lambda name, *rest: called.append(name) or call(name, *rest))  # type: ignore[func-returns-value]
    for more in (1, 6, 7, 20, 26, 41):
        program.extend(tokens_of(more), 0, 0)
    short, long = (f"extend_{length}" for length in EXTENDS)
    assert called == [short, short, long, long, *(long, short), *(long, long, short)]


def test_without_a_compiled_extend_it_goes_through_decode(artifact: Path) -> None:
    checked, compiled = load_artifact(artifact), snapcc.load(artifact)
    spec = checked.manifest.program()
    kept = {name: function for name, function in spec.functions.items() if not name.startswith("extend_")}
    program = Program(checked.folder, checked.weights, dataclasses.replace(spec, functions=kept))
    for each in (program, compiled):
        each.prefill(tokens_of(20), 1)
    assert close(program.extend(tokens_of(9), 1, 20), compiled.extend(tokens_of(9), 1, 20))
    assert close(decode_row(program, 1, 3, 29), decode_row(compiled, 1, 3, 29))


def test_extend_reaches_the_last_position(artifact: Path) -> None:
    """Padding would stand beyond it."""
    extended, stepped = snapcc.load(artifact), snapcc.load(artifact)
    last = extended.spec.max_positions - 1
    found = extended.extend([5, 6, 7], 1, last - 2)
    assert close(found, one_by_one(stepped, 1, [5, 6, 7], last - 2)[-1])


# --- idle rows


def test_an_idle_row_keeps_every_bit(artifact: Path) -> None:
    program = snapcc.load(artifact)
    for row, length in enumerate((30, 5, 14)):
        program.prefill(tokens_of(length, seed=row), row)
    before = [bits(program, row) for row in (0, 2)]
    for step in range(2 * R):
        logits = program.decode([9, step, 9], [0, 5 + step, 10**6], [False, True, False])
        assert np.isfinite(logits).all()
    assert [bits(program, row) for row in (0, 2)] == before


def test_active_rows_do_not_depend_on_idle_ones(artifact: Path) -> None:
    clean, dirty = snapcc.load(artifact), snapcc.load(artifact)
    for program in (clean, dirty):
        program.prefill(tokens_of(20), 1)
    dirty.prefill(tokens_of(48), 0)
    overwrite(dirty, 2, lambda slots: slots.fill(np.nan))
    for step in range(R + 1):
        wanted = clean.decode([0, step, 0], [0, 20 + step, 0], [False, True, False])[1]
        found = dirty.decode([77, step, 250], [90, 20 + step, 3], [False, True, False])[1]
        np.testing.assert_array_equal(found, wanted)


def test_fewer_rows_than_the_batch(artifact: Path) -> None:
    prompts = prompts_of((20, 5, 11), V)
    whole = generate(snapcc.load(artifact), prompts, 6)
    for count in (1, 2):
        for row, wanted in zip(generate(snapcc.load(artifact), prompts[:count], 6), whole, strict=False):
            assert row.tokens == wanted.tokens
            np.testing.assert_array_equal(row.logits, wanted.logits)


# --- reuse

POISONS = (3e38, -3e38, np.inf, -np.inf, np.nan)


def live_on(program: Program, row: int, length: int) -> list[Logits]:
    """Decode steps, an extend and decode steps more, well over a turn of the ring."""
    found = one_by_one(program, row, tokens_of(3, seed=1), length)
    found.append(program.extend(tokens_of(6, seed=2), row, length + 3))
    return found + one_by_one(program, row, tokens_of(2 * R, seed=3), length + 9)


@pytest.mark.parametrize("poison", POISONS)
@pytest.mark.parametrize("prompt", [3, FIXED, FIXED + 1])
def test_nothing_of_a_former_request_is_seen(artifact: Path, poison: float, prompt: int) -> None:
    used, fresh = snapcc.load(artifact), snapcc.load(artifact)
    used.prefill(tokens_of(48), 1)
    used.extend(tokens_of(41), 1, 48)
    # whatever the former request left, in every slot, and again wherever the new one has put nothing
    overwrite(used, 1, lambda slots: slots.fill(poison))
    wanted = fresh.prefill(tokens_of(prompt), 1)
    np.testing.assert_array_equal(used.prefill(tokens_of(prompt), 1), wanted)
    policy = load_artifact(artifact).manifest.policy
    hidden = [slot for slot in range(policy.slots) if slot >= min(prompt, FIXED)]
    hidden = [slot for slot in hidden if not FIXED <= slot < FIXED + policy.selected(prompt)]

    def spoil(slots: NDArray[np.float32]) -> None:
        slots[:, hidden] = poison

    overwrite(used, 1, spoil)
    np.testing.assert_array_equal(live_on(used, 1, prompt), live_on(fresh, 1, prompt))


@pytest.mark.parametrize("poison", POISONS)
def test_nothing_is_seen_after_a_reset(artifact: Path, poison: float) -> None:
    used, fresh = snapcc.load(artifact), snapcc.load(artifact)
    used.prefill(tokens_of(48), 1)
    used.reset(1)
    overwrite(used, 1, lambda slots: slots.fill(poison))
    np.testing.assert_array_equal(live_on(used, 1, 0), live_on(fresh, 1, 0))


def test_a_prompt_through_decode_after_a_reset(artifact: Path) -> None:
    program = snapcc.load(artifact)
    program.prefill(tokens_of(48), 1)
    program.reset(1)
    assert all(not any(state) for state in bits(program, 1).values())
    prompt = tokens_of(FIXED)
    wanted = program.prefill(prompt, 0)
    assert close(one_by_one(program, 1, prompt, 0)[-1], wanted)
    assert close(decode_row(program, 1, 7, FIXED), decode_row(program, 0, 7, FIXED))


# --- any schedule


@settings(max_examples=20, deadline=None, derandomize=True)
@given(data=st.data())
def test_a_schedule_equals_the_oracle(artifact: Path, references: list[Reference], data: st.DataObject) -> None:
    program, lengths = snapcc.load(artifact), [0] * B

    def reference_takes(row: int, tokens: Sequence[int]) -> Logits:
        # an empty row's first token is a prompt from which nothing can be selected
        first, rest = (tokens[:1], tokens[1:]) if lengths[row] == 0 else ([], tokens)
        lengths[row] += len(tokens)
        logits = references[row].prefill(first) if first else None
        return references[row].extend(rest) if logits is None or rest else logits

    for step in range(data.draw(st.integers(2, 8), "steps")):
        action = data.draw(st.sampled_from(["prefill", "extend", "decode", "reset"]), "action")
        row = data.draw(st.integers(0, B - 1), "row")
        if action == "prefill":
            prompt = tokens_of(data.draw(st.integers(1, 48), "tokens"), seed=step)
            assert close(program.prefill(prompt, row), references[row].prefill(prompt))
            lengths[row] = len(prompt)
        elif action == "extend":
            more = tokens_of(data.draw(st.integers(1, 24), "tokens"), seed=step)
            start = lengths[row]
            assert close(program.extend(more, row, start), reference_takes(row, more))
        elif action == "decode":
            active = data.draw(st.lists(st.booleans(), min_size=B, max_size=B).filter(any), "active")
            tokens = tokens_of(B, seed=step)
            logits = program.decode(tokens, list(lengths), active)
            for index in np.flatnonzero(active):
                assert close(logits[index], reference_takes(index, [tokens[index]]))
        else:
            program.reset(row)
            lengths[row] = 0
