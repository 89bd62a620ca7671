"""Completion scripts: what bash offers, and that every shell's script names every option."""

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from snapcc import cli
from snapcc.completion import SHELLS


def script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert cli.main(["completion", shell]) == 0
    return capsys.readouterr().out


def offered(text: str, line: str, folder: Path) -> list[str]:
    """What bash offers for the last word of a line; = stands by itself there, as in bash's own words."""
    words = ["snapcc", *line.replace("=", " = ").split(" ")]
    program = (
        f"{text}\nCOMP_WORDS=({shlex.join(words)})\nCOMP_CWORD={len(words) - 1}\n_snapcc\n"
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", program], cwd=folder, capture_output=True, text=True, check=True, timeout=30
    )
    assert done.stderr == ""
    return sorted(filter(None, done.stdout.splitlines()))


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model.pt2").write_text("")
    (tmp_path / "my rows.json").write_text("")
    (tmp_path / "old.snapcc").mkdir()
    text = script("bash", capsys)
    everything = ["model.pt2", "my rows.json", "old.snapcc"]
    for line, expected in (
        ("r", ["run"]),
        ("mod", ["model.pt2"]),
        ("", sorted([*cli._COMMANDS, *everything])),
        ("model.pt2 --targ", ["--target"]),
        ("model.pt2 --target ", ["host", "sn40l"]),
        ("model.pt2 --target=", ["host", "sn40l"]),
        ("model.pt2 --target=h", ["host"]),
        ("compile model.pt2 --compile-to s", ["sn40l", "static"]),
        ("model.pt2 --slots ", []),
        ("model.pt2 --dump-compilation-phases-to ", ["old.snapcc"]),
        ("run ", everything),
        ("run old.snapcc --tok", ["--tokens"]),
        ("run old.snapcc --tokens my", ["my rows.json"]),
        ("run old.snapcc --target ", everything),
        ("completion ", sorted([*SHELLS, *everything])),
    ):
        assert offered(text, line, tmp_path) == expected, line


@pytest.mark.parametrize("shell", SHELLS)
def test_every_option_is_in_the_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = script(shell, capsys)
    for parser in cli._parser()._subparsers._group_actions[0].choices.values():  # type: ignore[union-attr]
        for action in parser._actions:
            for flag in action.option_strings:
                assert (f"-l {flag[2:]} " if shell == "fish" and flag.startswith("--") else flag[1:]) in text, flag
            for choice in action.choices or ():
                assert str(choice) in text


@pytest.mark.parametrize("shell", SHELLS)
def test_the_shell_takes_the_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    done = subprocess.run([shell, "-n"], input=script(shell, capsys), capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_another_shell_is_a_wrong_use(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["completion", "csh"]) == 2
    assert "invalid choice: 'csh'" in capsys.readouterr().err
