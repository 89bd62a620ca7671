"""Completion scripts: what each shell offers where they are loaded, and that every option is named."""

import os
import pty
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


def offered_by_bash(text: str, line: str, folder: Path) -> list[str]:
    """What bash offers for the last word of a line; = stands by itself there, as in bash's own words."""
    words = ["snapcc", *line.replace("=", " = ").split(" ")]
    program = (
        f"{text}\nCOMP_WORDS=({shlex.join(words)})\nCOMP_CWORD={len(words) - 1}\n_snapcc\n"
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    return _lines(["bash", "--norc", "-c", program], folder)


def offered_by_fish(text: str, line: str, folder: Path) -> list[str]:
    """What fish offers, without the descriptions and without the part of a word that stands before =."""
    lines = _lines(["fish", "--no-config", "-c", f"{text}\ncomplete -C {shlex.quote('snapcc ' + line)}"], folder)
    return [entry.split("\t")[0].removeprefix("--target=").rstrip("/") for entry in lines]


def _lines(command: list[str], folder: Path) -> list[str]:
    environment = {**os.environ, "HOME": str(folder.parent), "XDG_DATA_HOME": str(folder.parent)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr == ""
    return list(filter(None, done.stdout.splitlines()))


def offered_by_zsh(text: str, line: str, folder: Path) -> list[str]:
    """What zsh offers: its line editor runs only on a terminal, so it gets one, and what it adds is written down."""
    hits, start = folder.parent / "hits", folder.parent / "start.zsh"
    hits.write_text("")
    start.write_text(f"""
        autoload -Uz compinit; compinit -u -d {folder.parent}/zcompdump
        {text}
        compadd() {{
            if [[ ${{@[1,(i)(-|--)]}} == *-(O|A|D)\\ * ]]; then builtin compadd "$@"; return; fi
            local -a hits; builtin compadd -A hits "$@"
            (( $#hits )) && print -rl -- $hits >> {hits}
            builtin compadd "$@"
        }}
        leave() {{ exit; }}; zle -N leave; bindkey '^X' leave; bindkey '^I' complete-word
        PS1=""; print ready
    """)
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(folder)
        os.execvpe("zsh", ["zsh", "-f", "-i"], {**os.environ, "TERM": "dumb", "HOME": str(folder.parent)})
    try:
        os.write(terminal, f"source {start}\n".encode())
        seen = b""
        while b"ready\r" not in seen:
            seen += os.read(terminal, 4096)
        os.write(terminal, f"snapcc {line}\t\x18".encode())
        while True:
            seen += os.read(terminal, 4096)
    except OSError:  # the terminal's other end is closed: zsh has left
        pass
    finally:
        os.waitpid(child, 0)
        os.close(terminal)
    return [hit.replace("\\ ", " ") for hit in hits.read_text().splitlines()]


OFFERED = {"bash": offered_by_bash, "fish": offered_by_fish, "zsh": offered_by_zsh}


@pytest.mark.parametrize("shell", SHELLS)
def test_what_is_offered(shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    folder = tmp_path / "here"
    (folder / "old.snapcc").mkdir(parents=True)
    (folder / "model.pt2").write_text("")
    (folder / "my rows.json").write_text("")
    text = script(shell, capsys)
    everything = ["model.pt2", "my rows.json", "old.snapcc"]
    for line, expected in (
        ("r", ["run"]),
        ("mod", ["model.pt2"]),
        ("", [*cli._COMMANDS, *everything]),
        ("model.pt2 --targ", ["--target"]),
        ("model.pt2 --target ", ["host", "sn40l"]),
        ("model.pt2 --target=h", ["host"]),
        ("compile model.pt2 --compile-to s", ["sn40l", "static"]),
        ("model.pt2 --slots ", []),
        ("model.pt2 --dump-compilation-phases-to ", ["old.snapcc"]),
        ("run ", everything),
        ("run old.snapcc --tok", ["--tokens"]),
        ("run old.snapcc --tokens my", ["my rows.json"]),
        # zsh knows which arguments are files, the others offer files for all
        ("completion ", SHELLS if shell == "zsh" else [*SHELLS, *everything]),
    ):
        # zsh may add a folder twice: to two groups
        assert sorted(set(OFFERED[shell](text, line, folder))) == sorted(expected), line


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
