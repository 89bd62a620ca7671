"""The command line: what it takes, its exit statuses, and that a failure is a line."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from snapcc import build, cli, commands
from snapcc.defaults import Wishes
from snapcc.options import FILES, Options
from snapcc.presets import PRESETS


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Options]]:
    """What the compile command asks for, instead of compiling."""
    calls: list[tuple[str, Options]] = []
    monkeypatch.setattr(build, "build", lambda model, options, progress: calls.append((model, options)))
    return calls


def test_compile_is_the_default_command(asked: list[tuple[str, Options]]) -> None:
    assert cli.main(["model.pt", "--target", "sn40l", "--kv", "snapstream"]) == 0
    assert cli.main(["compile", "model.pt"]) == 0
    assert asked[0] == asked[1]
    model, options = asked[0]
    assert (model, options.output, options.wishes, options.target) == ("model.pt", None, Wishes(), "sn40l")


def test_every_option_arrives(asked: list[tuple[str, Options]]) -> None:
    arguments = (
        "folder -o out.snapcc --target host --slots 14 --sink 2 --recent 8 --topk 4 --obs-window 4 --pool max:7 "
        "--score all --kv snapkv --room 4 --batch 3 --prompt 40,20 --extend 8,4 --dtype bf16 --device vulkan "
        "--input tokens=ids,positions=where --causal-mask m1 --causal-mask m2 --compile-to kv --machine m.toml --tile "
        "--dump-compilation-phases-to dumps --mlir-timing"
    )
    assert cli.main(arguments.split()) == 0
    model, options = asked[0]
    assert model == "folder"
    assert options.wishes == Wishes(14, 2, 8, 4, 4, "max", 7, "all", "snapkv", 4)
    assert (options.output, options.target, options.batch) == (Path("out.snapcc"), "host", 3)
    assert (options.prompts, options.extends) == ((40, 20), (8, 4))
    assert (options.dtype, options.device) == ("bf16", "vulkan")
    assert options.inputs == {"tokens": "ids", "positions": "where"}
    assert options.causal_masks == ("m1", "m2")
    assert (options.machine, options.tile) == ("m.toml", True)
    assert (options.compile_to, options.dump_to) == ("kv", Path("dumps"))
    assert options.instrumentation is not None
    assert options.instrumentation.timing


def test_no_extend_can_be_asked_for(asked: list[tuple[str, Options]]) -> None:
    assert cli.main(["model.pt", "--extend", "0"]) == 0
    assert cli.main(["model.pt"]) == 0
    assert [options.extends for _, options in asked] == [(), None]


def test_the_help_tells_every_preset(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["compile", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    for name, preset in PRESETS.items():
        assert f"{name} {preset.meaning}" in shown
        assert preset.deviation in shown


def test_the_phases_files() -> None:
    assert list(FILES.values()) == [
        "00-fx.txt",
        "01-torch.mlir",
        "02-kv.mlir",
        "03-static.mlir",
        "04-linalg.mlir",
        "05-sn40l.mlir",
        "06-iree.mlir",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "a MODEL or a command is needed"),
        ("model.pt --no-such", "unrecognized arguments: --no-such"),
        ("model.pt --slot 3", "unrecognized arguments: --slot"),
        ("model.pt --kv other", "argument --kv: invalid choice: 'other'"),
        ("model.pt --topk -1", "argument --topk: a whole number of at least 0 is needed, got '-1'"),
        ("model.pt --recent 0", "argument --recent: a whole number of at least 1 is needed, got '0'"),
        ("model.pt --batch many", "argument --batch: a whole number of at least 1 is needed, got 'many'"),
        ("model.pt --prompt 128,x", "argument --prompt: a whole number of at least 1 is needed, got 'x'"),
        ("model.pt --extend 0,8", "argument --extend: a whole number of at least 1 is needed, got '0'"),
        ("model.pt --pool median:3", "argument --pool: the pooling is avg:SIZE, max:SIZE or none, got 'median:3'"),
        ("model.pt --pool none:3", "the pooling is avg:SIZE, max:SIZE or none"),
        ("model.pt --input words=ids", "argument --input: tokens=NAME,positions=NAME is needed, got 'words=ids'"),
        ("run out.snapcc", "one of the arguments --prompt --tokens is required"),
        ("run out.snapcc --prompt a --tokens b", "argument --tokens: not allowed with argument --prompt"),
        ("verify", "the following arguments are required: OUT.snapcc"),
        ("model.pt --tile --target host", "--target host plans nothing, and --tile takes the tiles of a plan"),
    ],
)
def test_wrong_uses(arguments: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments.split()) == 2
    output, errors = capsys.readouterr()
    assert errors.startswith("error: ")
    assert message in errors
    assert len(errors.splitlines()) == 1
    assert output == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("/no/such/model.pt", "error: /no/such/model.pt does not exist"),
        ("run /no/such.snapcc --prompt hello", "error: /no/such.snapcc is no artifact of snapcc"),
        ("inspect /no/such.snapcc", "error: /no/such.snapcc is no artifact of snapcc"),
        ("m.pt --machine /no/such.toml", "error: /no/such.toml: is no machine of snapcc's and cannot be read"),
    ],
)
def test_other_failures(arguments: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments.split()) == 1
    output, errors = capsys.readouterr()
    assert message in errors
    assert "Traceback" not in errors
    assert output == ""


def test_an_interrupt_is_a_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(options: Any) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(commands, "inspect_command", interrupted)
    assert cli.main(["inspect", "x"]) == 1
    assert capsys.readouterr().err == "error: interrupted\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[[1, 2]", "is no JSON"),
        ("[1, 2]", "must hold a list of token lists"),
        ("[]", "must hold a list of token lists"),
        ("[[1.5]]", "must hold a list of token lists"),
        ("[[true]]", "must hold a list of token lists"),
        ('{"tokens": [[1]]}', "must hold a list of token lists"),
    ],
)
def test_files_of_tokens_are_checked(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    path.write_text(content)
    with pytest.raises(commands.UsageError, match=message):
        commands._read_rows(path)


def test_files_of_tokens_are_read(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    path.write_text(json.dumps([[1, 2], [], [3]]))
    assert commands._read_rows(path) == [[1, 2], [], [3]]


HEAVY = ("torch", "torch_mlir", "iree", "transformers", "numpy", "pydantic", "rich")


@pytest.mark.parametrize("statement", ["import snapcc", "from snapcc import cli; cli._parser().format_help()"])
def test_starts_light(statement: str) -> None:
    """The help is there within half a second: nothing heavy is imported for it."""
    code = f"import sys\n{statement}\nprint([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, text in ((["--help"], "snapcc MODEL --target sn40l --kv snapstream"), (["--version"], "snapcc 0.")):
        with pytest.raises(SystemExit) as stopped:
            cli.main(arguments)
        assert stopped.value.code == 0
        assert text in capsys.readouterr().out
