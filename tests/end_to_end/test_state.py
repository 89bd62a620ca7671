"""What decoders carry beside their caches: kept per row, put back by reset, equal to the oracle, or refused."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from compiled import assert_equals_oracle, place_of, prompts_of
from state_decoders import REFUSED_STATES, STATEFUL, RefusedState, Stateful
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch_mlir import ir
from transformers import Lfm2Config, Lfm2ForCausalLM

import snapcc
from snapcc import cli
from snapcc.artifact import load as load_artifact
from snapcc.compiler.analysis.functions import body, functions
from snapcc.compiler.diagnostics import Refusal
from snapcc.compiler.passes import pipelines
from snapcc.frontend import from_program
from snapcc.oracle import oracle
from snapcc.runtime.engine import Program
from snapcc.runtime.generation import generate
from snapcc.runtime.reference import ProgramInputs, reference, unmodified
from snapcc.runtime.verification import compare

OPTIONS: dict[str, Any] = {"slots": 10, "sink": 2, "target": "host"}


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The artifact of a decoder, compiled once."""
    made: dict[str, Path] = {}

    def build(name: str) -> Path:
        if name not in made:
            decoder = next(d for d in STATEFUL if d.name == name)
            folder = tmp_path_factory.mktemp(name)
            # a program of a fixed length says itself how many slots it has
            options = OPTIONS if name != "abridged" else {"target": "host"}
            made[name] = snapcc.compile(decoder.program(), folder / "out.snapcc", batch=decoder.rows or 3, **options)
        return made[name]

    return build


def bits(program: Program, row: int) -> dict[str, bytes]:
    """All that a row holds."""
    return {name: state.to_host()[row].tobytes() for name, state in program._states.items()}


def _inputs(decoder: Stateful) -> ProgramInputs:
    found = from_program(decoder.program())
    names = found.input_names
    return ProgramInputs(
        names.index("ids"),
        tuple((names.index(c.name), c.output_index, c.axis) for c in found.caches),
        found.logits,
        names.index("places"),
        states=tuple((names.index(s.name), s.output_index) for s in found.states),
    )


@pytest.mark.parametrize("decoder", STATEFUL, ids=lambda d: d.name)
def test_the_oracle_is_the_module_step_by_step(decoder: Stateful) -> None:
    module, right = decoder.module(), reference(decoder.program(), _inputs(decoder), None)
    given = decoder.start()
    for position, token in enumerate(prompts_of((12,), 61)[0]):
        flat, spec = tree_flatten(given)
        flat[0], flat[1] = torch.full_like(flat[0], token), torch.full_like(flat[1], position)
        with torch.no_grad():
            logits, *carried = module(*tree_unflatten(flat, spec))
        wanted = right.prefill([token]) if position == 0 else right.decode(token)
        assert np.abs(logits[0, 0].numpy() - wanted).max() < 1e-5, position
        given = (*given[:2], *carried)


@pytest.mark.parametrize("name", [d.name for d in STATEFUL])
def test_equals_the_oracle(name: str, artifact: Callable[[str], Path]) -> None:
    made = artifact(name)
    policy = load_artifact(made).manifest.policy
    assert (policy.slots, policy.topk) == (14 if name == "abridged" else 10, 0)
    # past several wraps, in rows that stand at positions of their own
    lengths = (1, 6, 19)[-load_artifact(made).manifest.batch :]
    rows = assert_equals_oracle(made, [lengths], 24)
    # the same rows again: nothing of the first time is left
    program = snapcc.load(made)
    for _ in range(2):
        again = generate(program, prompts_of(lengths, 61), 24)
        assert all(np.array_equal(a.logits, b.logits) for a, b in zip(rows, again, strict=True))


def test_a_hybrid_of_transformers(tmp_path: Path) -> None:
    torch.manual_seed(0)
    sizes = {"vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128}
    layers = {"layer_types": ["conv", "full_attention"], "conv_L_cache": 3, "pad_token_id": None}
    model: Any = Lfm2ForCausalLM(Lfm2Config(**sizes, **heads, **layers, initializer_range=0.15)).eval()
    made = snapcc.compile(model, tmp_path / "out.snapcc", batch=2, **OPTIONS)
    rows = assert_equals_oracle(made, [(5, 19)], 16)
    with torch.no_grad():
        own = model(input_ids=torch.tensor([rows[0].prompt])).logits[0, -1].numpy()
    assert np.abs(rows[0].logits[0] - own).max() < 1e-4


def test_the_plan_has_a_place_for_it(tmp_path: Path) -> None:
    model, planned = tmp_path / "model.pt", tmp_path / "sn40l.mlir"
    torch.export.save(STATEFUL[0].program(), model)
    assert cli.main(["compile", str(model), "--compile-to", "sn40l", "-o", str(planned), "--quiet"]) == 0
    loads = [line for line in planned.read_text().splitlines() if '"kv.state_load"' in line]
    places = {match[1]: match[2] for line in loads if (match := re.search(r'"state:(\w+)"\].*tier = \["(\w+)"', line))}
    assert places == dict.fromkeys(("selected_count", "k", "v", "last", "hidden", "fading", "steps"), "HBM")


def test_a_row_keeps_its_own(artifact: Callable[[str], Path]) -> None:
    program, beside = snapcc.load(artifact("loom")), snapcc.load(artifact("loom"))
    first = bits(program, 0)
    for position in range(5):
        program.decode([7, 8, 9], [position] * 3)
        beside.decode([7, 8, 9], [position] * 3)
    held = bits(program, 1)
    for position in range(5, 9):
        idle = program.decode([1, 60, 2], [position] * 3, [True, False, True])
        moving = beside.decode([1, 30, 2], [position] * 3)
        assert np.array_equal(idle[[0, 2]], moving[[0, 2]])
    assert bits(program, 1) == held
    program.reset(0)
    assert bits(program, 0) == first
    # a step before the first token was none: the count of steps is the row's own
    assert program._states["steps"].to_host().tolist() == [0, 5, 9]


def test_nothing_of_a_former_request_is_seen(artifact: Callable[[str], Path]) -> None:
    program = snapcc.load(artifact("loom"))
    wanted = program.prefill(prompts_of((6,), 61)[0], 1)
    for name, state in list(program._states.items()):
        filled = np.array(state.to_host())
        if filled.dtype == np.float32:
            filled[1] = np.nan
            program._states[name] = program._iree.asdevicearray(program._device, filled)
    assert np.array_equal(program.prefill(prompts_of((6,), 61)[0], 1), wanted)


def test_a_buffer_starts_as_the_model_has_it(artifact: Callable[[str], Path]) -> None:
    program = snapcc.load(artifact("kiln"))
    start = torch.linspace(-1, 1, 64).view(16, 4).numpy()
    assert np.array_equal(program._states["b_memory"].to_host(), np.stack([start, start]))
    program.decode([3, 4], [0, 0])
    assert not np.array_equal(program._states["b_memory"].to_host()[1], start)
    program.reset(1)
    assert np.array_equal(program._states["b_memory"].to_host()[1], start)
    assert not np.array_equal(program._states["b_memory"].to_host()[0], start)


def test_the_commands_know_of_it(artifact: Callable[[str], Path], capsys: pytest.CaptureFixture[str]) -> None:
    made = str(artifact("loom"))
    assert cli.main(["verify", made, "--max-new-tokens", "4", "--quiet"]) == 0
    assert cli.main(["inspect", made]) == 0
    said = capsys.readouterr().out
    assert "equal to PyTorch" in said
    assert "state      4 beside the caches, 804 bytes" in said
    assert "through decode, token by token; nothing is selected" in said


def test_why_it_only_decodes_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "model.pt"
    torch.export.save(STATEFUL[0].program(), model)
    arguments = ["compile", str(model), "--target", "host", "--compile-to", "fx", "-o", str(tmp_path / "fx.txt")]
    assert cli.main(arguments) == 0
    said = capsys.readouterr().err
    assert "topk 0, since a prompt through decode selects nothing" in said
    why = "it carries state beside its caches (last, hidden, fading, ..), which the padding behind a prompt would spoil"
    assert re.search(f"decode only, .*{re.escape(why)}", said), said


def drop_the_memory(module: ir.Operation) -> None:
    """The first state is never stored."""
    for view in list(body(functions(module)["decode"]).operations):
        op = view.operation
        if op.name == "kv.state_store" and op.operands[0].owner.operation.name == "kv.write_rows":
            op.erase()
            return


@dataclass(frozen=True)
class Drop:
    """A pass that makes a program wrong."""

    name: ClassVar[str] = "test-drop"

    def run(self, module: ir.Operation) -> None:
        drop_the_memory(module)


def test_a_dropped_update_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = pipelines.apply_policy
    monkeypatch.setattr(pipelines, "apply_policy", lambda *given: [*right(*given), Drop()])
    shuttle = next(d for d in STATEFUL if d.name == "shuttle")
    made = snapcc.compile(shuttle.program(), tmp_path / "out.snapcc", batch=1, **OPTIONS)
    (row,) = generate(snapcc.load(made), prompts_of((6,), 61), 4)
    assert not compare(row, oracle(load_artifact(made)), "f32").holds


@pytest.mark.parametrize("refused", REFUSED_STATES, ids=lambda r: r.name)
def test_what_is_not_provable_is_refused(refused: RefusedState, tmp_path: Path) -> None:
    target = tmp_path / "out.snapcc"
    with pytest.raises(Refusal, match=refused.because) as caught:
        snapcc.compile(refused.program(), target, batch=3, **OPTIONS)
    name, line = place_of(caught.value)
    file, lines = refused.lines
    assert name == file, caught.value
    assert line in lines, caught.value
    assert not target.exists()


def test_a_state_without_rows_is_right_for_one_row(tmp_path: Path) -> None:
    mean = next(r for r in REFUSED_STATES if not r.rows)
    found = from_program(mean.program())
    assert [(s.name, s.row_axis) for s in found.states] == [("state", None)]
    inputs = ProgramInputs(0, ((2, 1, 2), (3, 2, 2)), 0, 1, states=((4, 3),))
    assert unmodified(mean.program(), inputs).prefill([5, 6, 7]).shape == (61,)
