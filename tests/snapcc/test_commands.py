"""The commands on one small artifact: what they print, save and refuse."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import decoders
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch import Tensor, nn
from torch.export import Dim

import snapcc
from snapcc import cli, frontend
from snapcc.frontend import import_functions
from snapcc.options import FILES
from snapcc.runtime import verification
from snapcc.runtime.engine import Program
from snapcc.runtime.reference import Boundary
from snapcc.runtime.verification import TOLERANCE, compare
from snapcc.sn40l_target.schema import Plan

DECODER = next(decoder for decoder in decoders.GOOD if decoder.name == "monocle")
ROWS = [[1, 2, 3], [5] * 13, [7, 8, 9, 10, 11, 12, 13, 14, 15, 16]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with model.pt, and model.snapcc with the phases kept."""
    folder = tmp_path_factory.mktemp("commands")
    torch.export.save(DECODER.program(), folder / "model.pt")
    arguments = (
        f"{folder}/model.pt --target sn40l --kv snapstream --sink 2 --recent 8 --topk 4 --obs-window 4 --batch 3 "
        f"--prompt 20 -o {folder}/model.snapcc --dump-compilation-phases-to {folder}/phases --quiet"
    )
    assert cli.main(arguments.split()) == 0
    return folder


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    path = tmp_path / "tokens.json"
    path.write_text(json.dumps(ROWS))
    return path


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    status = cli.main([str(argument) for argument in arguments])
    output, errors = capsys.readouterr()
    return status, output, errors


def test_the_artifact_has_what_it_says(folder: Path) -> None:
    names = {path.name for path in (folder / "model.snapcc").iterdir()}
    assert names == {
        "manifest.json",
        "decode.vmfb",
        "prefill_20.vmfb",
        "extend_20.vmfb",
        "program.pt2",
        "weights.safetensors",
        "plan.json",
        "report.html",
        "trace.json",
        "graph.json",
        "phases",
    }
    assert {path.name for path in (folder / "phases").iterdir()} == set(FILES.values())
    for name in FILES.values():
        assert (folder / "phases" / name).read_bytes() == (folder / "model.snapcc" / "phases" / name).read_bytes()


def test_the_phases_keep_the_users_lines_and_no_weights(folder: Path) -> None:
    source = Path(decoders.__file__).name
    for name in FILES.values():
        text = (folder / "phases" / name).read_text()
        assert source in text, name
        assert len(text) < 2_000_000, name
        assert "dense_resource" not in text, name
    assert '"kv.append"' in (folder / "phases" / FILES["kv"]).read_text()
    assert '"kv.ring_update"' in (folder / "phases" / FILES["static"]).read_text()
    assert '"kv.append"' not in (folder / "phases" / FILES["static"]).read_text()


def test_a_phase_alone_goes_to_standard_output(
    folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = [
        folder / "model.pt",
        "--sink=2",
        "--recent=8",
        "--topk=4",
        "--prompt=20",
        "--compile-to=torch",
        "--quiet",
    ]
    status, output, errors = run(capsys, *arguments)
    assert (status, errors) == (0, "")
    assert "func.func @prefill_20(" in output
    assert run(capsys, *arguments, "-o", tmp_path / "torch.mlir")[0] == 0
    assert (tmp_path / "torch.mlir").read_text() == output


def test_run_prints_the_new_tokens_alone(folder: Path, tokens: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["run", folder / "model.snapcc", "--tokens", tokens, "--max-new-tokens", 5]
    status, output, _ = run(capsys, *arguments, "--json")
    assert status == 0
    result = json.loads(output)
    assert set(result) == {"tokens"}
    assert [len(row) for row in result["tokens"]] == [5, 5, 5]
    status, output, _ = run(capsys, *arguments)
    assert output.splitlines() == [" ".join(map(str, row)) for row in result["tokens"]]


def test_run_is_what_the_library_gives(folder: Path, tokens: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, output, _ = run(capsys, "run", folder / "model.snapcc", "--tokens", tokens, "--max-new-tokens", 2, "--json")
    program = snapcc.load(folder / "model.snapcc")
    first = [int(program.prefill(row, index).argmax()) for index, row in enumerate(ROWS)]
    second = program.decode(first, [len(row) for row in ROWS]).argmax(axis=1)
    assert json.loads(output)["tokens"] == [[int(a), int(b)] for a, b in zip(first, second, strict=True)]


def test_fewer_rows_than_the_batch(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "one.json").write_text(json.dumps(ROWS[1:2]))
    (tmp_path / "all.json").write_text(json.dumps(ROWS))
    both = [
        json.loads(run(capsys, "run", folder / "model.snapcc", "--tokens", tmp_path / name, "--json")[1])["tokens"]
        for name in ("one.json", "all.json")
    ]
    assert both[0] == both[1][1:2]
    assert len(both[0][0]) == 64


def test_logits_are_saved_by_row(
    folder: Path, tokens: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "logits.safetensors"
    arguments = ["run", folder / "model.snapcc", "--tokens", tokens, "--max-new-tokens", 4, "--json"]
    _, output, _ = run(capsys, *arguments, "--save-logits", path)
    logits = load_file(path)
    assert sorted(logits) == ["row0", "row1", "row2"]
    for index, row in enumerate(json.loads(output)["tokens"]):
        assert logits[f"row{index}"].shape == (4, DECODER.vocabulary)
        assert logits[f"row{index}"].dtype == np.float32
        assert logits[f"row{index}"].argmax(axis=1).tolist() == row


def test_forced_tokens_are_taken(
    folder: Path, tokens: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    forced = tmp_path / "forced.json"
    forced.write_text(json.dumps([[1, 2, 3], [4, 5, 6], [7, 8, 9]]))
    arguments = ["run", folder / "model.snapcc", "--tokens", tokens, "--force-tokens", forced, "--json"]
    assert json.loads(run(capsys, *arguments)[1])["tokens"] == [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    assert json.loads(run(capsys, *arguments, "--max-new-tokens", 2)[1])["tokens"] == [[1, 2], [4, 5], [7, 8]]
    status, _, errors = run(capsys, *arguments, "--max-new-tokens", 4)
    assert (status, "has a row of 3 tokens, and 4 new ones were asked for" in errors) == (2, True)
    forced.write_text(json.dumps([[1]]))
    status, _, errors = run(capsys, *arguments)
    assert (status, "has 1 rows and there are 3 prompts" in errors) == (2, True)


@pytest.mark.parametrize(
    ("rows", "status", "message"),
    [
        ([[1] * 21], 1, "the prompt has 21 tokens and the longest compiled length is 20"),
        ([[]], 1, "the prompt is empty"),
        ([[10**6]], 1, "token 1000000 is not in the vocabulary"),
        ([[-1]], 1, "token -1 is not in the vocabulary"),
        ([[10**30]], 1, "a prompt must hold integers"),
        ([[1]] * 4, 1, "4 prompts do not fit into the program's 3 rows"),
    ],
)
def test_prompts_that_do_not_fit(
    rows: Any, status: int, message: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    found, output, errors = run(capsys, "run", folder / "model.snapcc", "--tokens", tmp_path / "rows.json", "--quiet")
    assert (found, output) == (status, "")
    assert errors.startswith("error: ")
    assert message in errors


def test_more_positions_than_the_model_has(folder: Path, tokens: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["run", folder / "model.snapcc", "--tokens", tokens, "--max-new-tokens", 1000, "--quiet"]
    status, output, errors = run(capsys, *arguments)
    assert (status, output) == (1, "")
    assert "error: row 0: a prompt of 3 tokens and 1000 new ones need position 1001, and the model's last is" in errors


def test_text_needs_a_tokenizer(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, errors = run(capsys, "run", folder / "model.snapcc", "--prompt", "hello", "--quiet")
    assert status == 2
    assert errors.startswith("error: the model came without a tokenizer")


def test_verify_holds(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, output, _ = run(capsys, "verify", folder / "model.snapcc", "--json", "--max-new-tokens", 12)
    result = json.loads(output)
    assert (status, result["holds"], result["tolerance"]) == (0, True, TOLERANCE)
    assert [row["prompt"] for row in result["rows"]] == [19, 10, 5]
    assert [row["selected"] for row in result["rows"]] == [4, 0, 0]
    # one more than asked for, behind a next turn: the last token and the 20 of the compiled extend
    assert [row["extended"] for row in result["rows"]] == [21, 21, 21]
    assert [(row["new_tokens"], row["tokens_equal"]) for row in result["rows"]] == [(13, 13)] * 3
    assert all(row["max_abs_difference"] < 1e-4 for row in result["rows"])
    assert [(row["rounding"], row["ties"]) for row in result["rows"]] == [(0.0, [])] * 3


def test_verify_sees_a_wrong_extend(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = Program.extend
    monkeypatch.setattr(Program, "extend", lambda self, tokens, row, start: right(self, tokens, row, start - 1))
    status, output, _ = run(capsys, "verify", folder / "model.snapcc", "--json", "--max-new-tokens", 2)
    result = json.loads(output)
    assert (status, [row["first_difference"] for row in result["rows"]]) == (1, [2, 2, 2])


def test_verify_says_which_ties_it_needed(
    folder: Path, tokens: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tie = Boundary(gap=1.5e-6, attention=14, head=2, kept=256, left=257)
    monkeypatch.setattr(verification, "compare_at_ties", lambda *given: replace(compare(*given), ties=(tie,)))
    status, output, _ = run(capsys, "verify", folder / "model.snapcc", "--tokens", tokens, "--max-new-tokens", 1)
    line = "  selection tie at layer 14, head 2: positions 256 and 257 score 1.5e-06 apart, relative; equal with"
    assert (status, output.count(line)) == (0, len(ROWS))


def test_verify_sees_another_program(
    folder: Path, tokens: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.snapcc"
    shutil.copytree(folder / "model.snapcc", other)
    manifest = json.loads((other / "manifest.json").read_text())
    manifest["policy"] |= {"sink": 3, "recent": 7}
    (other / "manifest.json").write_text(json.dumps(manifest))
    status, output, _ = run(capsys, "verify", other, "--tokens", tokens)
    assert status == 1
    assert f"DIFFERENT from PyTorch within {TOLERANCE:g}" in output
    assert re.search(r"row 1: 13 tokens \(3 selected\), .*: DIFFERENT", output)


def test_inspect(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, output, _ = run(capsys, "inspect", folder / "model.snapcc", "--json")
    content = json.loads(output)
    assert (status, content["kv"]) == (0, "snapstream")
    sizes = {"slots": 14, "sink": 2, "recent": 8, "topk": 4, "window": 4}
    assert content["policy"] == sizes | {"pool": "avg", "pool_size": 5, "score": "candidates"}
    assert content["prompts"] == [{"length": 20, "selected": 4}]
    assert content["extends"] == [20]
    assert list(content["phases"]) == list(FILES)
    assert content["cache_bytes"] * content["max_positions"] == content["full_cache_bytes"] * 14
    plan = Plan.from_json((folder / "model.snapcc" / "plan.json").read_text())
    assert [tier["bytes"] for tier in content["plan"]["tiers"]] == [use.bytes for use in plan.summary()]
    step = next(time for time in content["plan"]["time"] if time["function"] == "decode")
    assert step["tokens"] == 3
    assert step["tokens_per_second"] == pytest.approx(3 / step["seconds"])
    _, shown, _ = run(capsys, "inspect", folder / "model.snapcc")
    assert re.search(
        r"predicted  decode +[\d.,]+ (us|ms) \(.* to .* over the figures' ranges\), [\d,]+ tokens/s", shown
    )
    assert re.search(r"cut +decode +\d+ sections, (no weight stays|weights used .* stay), [\d.,]+ (us|ms)", shown)
    status, output, _ = run(capsys, "inspect", folder / "model.snapcc")
    assert "slots      14 = sink 2 + recent 8 + selected 4 (window 4, pooling avg:5, scores over candidates)" in output
    assert re.search(r"4 of 3x14x8xf32, slots along axis 1, 1,344 bytes each \(\w+ to \w+\)", output)
    assert "extend     20\n" in output
    assert "@decode(tokens: 3xi64, positions: 3xi64, active: 3xi1) -> " in output


def test_a_program_for_one_query_token_only_decodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    without_query = torch.utils._pytree.tree_map(
        lambda dim: None if dim is decoders.QUERY else dim, DECODER.shapes, is_leaf=lambda dim: dim is decoders.QUERY
    )
    program = torch.export.export(DECODER.module(), DECODER.arguments(2, 1, 5), dynamic_shapes=without_query)
    torch.export.save(program, tmp_path / "one.pt")
    artifact = tmp_path / "one.snapcc"
    options = "--sink 2 --recent 8 --topk 4 --target host"
    status, _, errors = run(capsys, tmp_path / "one.pt", *options.split(), "-o", artifact)
    assert status == 0
    assert (
        "decode only, a prompt goes through it token by token: the program was exported for one query token" in errors
    )
    status, output, _ = run(capsys, "verify", artifact, "--json", "--max-new-tokens", 8)
    row = json.loads(output)["rows"][0]
    assert (status, row["prompt"], row["selected"], row["tokens_equal"]) == (0, 19, 0, 8)
    assert "through decode, token by token; nothing is selected" in run(capsys, "inspect", artifact)[1]
    status, _, errors = run(capsys, tmp_path / "one.pt", *options.split(), "--prompt", 20, "--quiet")
    assert (status, "--prompt was given, but the program has no prefill" in errors) == (2, True)
    status, _, errors = run(capsys, tmp_path / "one.pt", *options.split(), "--extend", 20, "--quiet")
    assert (status, "--extend was given, but the program decodes only" in errors) == (2, True)
    program = snapcc.load(artifact)
    program.prefill(tokens := [1, 2, 3, 4], 0)
    found = program.extend([5, 6, 7], 0, 4)
    assert abs(found - snapcc.load(artifact).prefill([*tokens, 5, 6, 7], 0)).max() < 1e-4


class OnePlace(nn.Module):
    """Adds the first new token's place to every new token: decode and a prompt are fine, extend would not be decode."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places, self.head = nn.Embedding(32, 8), nn.Embedding(128, 8), nn.Linear(8, 32)

    def forward(self, ids: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        past = k.shape[1]
        x = self.tokens(ids) + self.places.weight[past : past + 1]
        k = torch.cat((k, x), 1)
        hidden = torch.ones(k.shape[1], k.shape[1], dtype=torch.bool).triu(1)[past:]
        return self.head((x @ k.mT).masked_fill(hidden, float("-inf")).softmax(-1) @ k), k


def test_extend_is_left_to_decode_where_it_would_not_equal_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    imported: list[list[str]] = []

    def importing(context: Any, programs: Any, decoder: Any) -> Any:
        imported.append([name for name, _ in programs])
        return import_functions(context, programs, decoder)

    monkeypatch.setattr(frontend, "import_functions", importing)
    rows, query, past = Dim("rows", min=1, max=8), Dim("query", min=1, max=64), Dim("past", min=0, max=100)
    example = (torch.zeros(2, 3, dtype=torch.long), torch.zeros(2, 5, 8))
    program = torch.export.export(OnePlace(), example, dynamic_shapes=({0: rows, 1: query}, {0: rows, 1: past}))
    torch.export.save(program, tmp_path / "one.pt")
    options = f"--sink 2 --recent 8 --topk 4 --prompt 20 --compile-to static -o {tmp_path}/out.mlir".split()
    status, _, errors = run(capsys, tmp_path / "one.pt", *options)
    why = "the model takes a part of a table by the cache's length"
    assert status == 0
    assert re.search(rf"extend goes through decode, token by token: .*test_commands.py:\d+:\d+: error: {why}", errors)
    assert "@prefill_20" in (tmp_path / "out.mlir").read_text()
    assert "@extend" not in (tmp_path / "out.mlir").read_text()
    assert imported == [["decode", "decode_probe", "prefill_20", "extend_20", "extend_20_probe"]], "imported once"
    status, _, errors = run(capsys, tmp_path / "one.pt", *options, "--extend", "8", "--quiet")
    assert (status, why in errors) == (1, True)


def test_full_takes_a_program_to_its_last_position(tmp_path: Path) -> None:
    """Its export bounds the past at 256, so that decode cannot be looked at beyond its own length."""
    static = tmp_path / "out.mlir"
    snapcc.compile(DECODER.program(), static, kv="full", prompts=(16,), compile_to="static")
    assert '"kv.slots"(%arg1) {ring = 257 : i64, sink = 0 : i64}' in static.read_text()


def test_bench_gives_ratios(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    artifact = folder / "model.snapcc"
    status, output, _ = run(capsys, "bench", artifact, "--rounds", 1, "--json", "--quiet")
    result = json.loads(output)
    assert status == 0
    assert result["rounds"] == 1
    assert result["decode"]["rows"] == 3
    weights = load_file(artifact / "weights.safetensors")
    assert result["decode"]["weight_bytes"] == sum(weight.nbytes for weight in weights.values())
    assert result["decode"]["over_reading"] > 0
    assert result["decode"]["over_pytorch"] > 0
    assert [entry["length"] for entry in result["prefill"]] == [20]
    status, output, _ = run(capsys, "bench", artifact, "--rounds", 1, "--quiet")
    assert re.fullmatch(
        r"decode       3 rows at 14 slots: \S+ times the reading of its \S+ bytes \(.+ GB/s with \d+ threads\), "
        r"\S+ times PyTorch on one row \(\S+ ms\)\n"
        r"prefill    20: \S+ times PyTorch \(\d+ ms\)\nmedians of 1 rounds, all in turns\n",
        output,
    )
