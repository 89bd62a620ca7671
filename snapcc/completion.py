"""Shell completion, written from the parsers: commands, options, choices, files.

Not by the library shtab: it does not know a default command, and ``snapcc MODEL --<TAB>`` is what is typed most.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

Shell = Literal["bash", "zsh", "fish"]
SHELLS: tuple[Shell, ...] = get_args(Shell)

_FOLDERS = ("DIR",)
_FILES = ("MODEL", "FILE", "FILE.json", "F.safetensors", "OUT.snapcc")
"""By their metavar, what arguments are files or folders; an artifact and a Hugging Face model are folders that stand
among files."""


@dataclass(frozen=True)
class Argument:
    """One option or positional argument, as a shell can complete it.

    Attributes:
        flags: ``("-o",)`` or ``("--kv",)``; none for a positional argument.
        takes: nothing, one of ``choices``, a file, a folder, or text that nothing is known of.
        help: in a line.
    """

    flags: tuple[str, ...]
    takes: Literal["nothing", "choice", "file", "folder", "text"]
    choices: tuple[str, ...]
    help: str


Commands = dict[str, list[Argument]]


def script(shell: Shell, parser: argparse.ArgumentParser, default: str) -> str:
    """The completion script of a shell.

    Args:
        shell: which.
        parser: ``snapcc``'s, with its commands as subparsers.
        default: the command that is meant where none is given.
    """
    commands = {name: [_argument(a) for a in sub._actions] for name, sub in _subparsers(parser).items()}
    return {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](commands, default)


def _subparsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def _argument(action: argparse.Action) -> Argument:
    text = "" if action.help in (None, argparse.SUPPRESS) else " ".join(str(action.help).split()).replace("%%", "%")
    flags, choices = tuple(action.option_strings), tuple(map(str, action.choices or ()))
    if action.nargs == 0:
        return Argument(flags, "nothing", (), text)
    if choices:
        return Argument(flags, "choice", choices, text)
    if action.metavar in _FOLDERS:
        return Argument(flags, "folder", (), text)
    return Argument(flags, "file" if action.metavar in _FILES else "text", (), text)


def _bash(commands: Commands, default: str) -> str:
    cases = [case for name, arguments in commands.items() for case in _bash_values(name, arguments)]
    options = [
        f"        {name}) words={shlex.quote(' '.join(flag for a in arguments for flag in a.flags))};;"
        for name, arguments in commands.items()
    ]
    lists = [
        f"        {name}) words={shlex.quote(' '.join(a.choices))};;"
        for name, arguments in commands.items()
        for a in arguments
        if not a.flags and a.takes == "choice"
    ]
    lines = [
        "_snapcc() {",
        '    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} words="" kind=""',
        f"    local command={default}",
        # bash takes = for a word of its own: --kv=s is --kv, =, s
        '    if [[ $current == "=" ]]; then current="";',
        '    elif [[ $previous == "=" ]]; then previous=${COMP_WORDS[COMP_CWORD-2]}; fi',
        f"    [[ $COMP_CWORD -gt 1 && {_alternatives(commands)} ]] && command=${{COMP_WORDS[1]}}",
        "    case $command:$previous in",
        *cases,
        "    esac",
        '    if [[ $kind == "" && $current == -* ]]; then case $command in',
        *options,
        '    esac; kind=words; elif [[ $kind == "" ]]; then kind=files; case $command in',
        *lists,
        "    esac",
        f"    [[ $COMP_CWORD -eq 1 ]] && words={shlex.quote(' '.join(commands))}; fi",
        "    COMPREPLY=()",
        '    [[ $words != "" ]] && mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")',
        "    local -a found=()",
        '    [[ $kind == files ]] && mapfile -t found < <(compgen -f -- "$current")',
        '    [[ $kind == folders ]] && mapfile -t found < <(compgen -d -- "$current")',
        "    [[ ${#found[@]} -gt 0 ]] && compopt -o filenames 2>/dev/null",
        '    COMPREPLY+=("${found[@]}")',
        "}",
        "complete -F _snapcc snapcc",
    ]
    return "\n".join(lines) + "\n"


def _alternatives(commands: Commands) -> str:
    return f"${{COMP_WORDS[1]}} =~ ^({'|'.join(commands)})$"


def _bash_values(command: str, arguments: list[Argument]) -> Iterator[str]:
    for argument in arguments:
        pattern = "|".join(f"{command}:{flag}" for flag in argument.flags)
        if not pattern or argument.takes == "nothing":
            continue
        kind = {"choice": "words", "file": "files", "folder": "folders", "text": "nothing"}[argument.takes]
        words = f" words={shlex.quote(' '.join(argument.choices))}" if argument.choices else ""
        yield f"        {pattern}) kind={kind}{words};;"


def _zsh(commands: Commands, default: str) -> str:
    lines = [
        "#compdef snapcc",
        "_snapcc() {",
        f"    local command={default}",
        f"    if (( CURRENT > 2 )) && [[ $words[2] == ({'|'.join(commands)}) ]]; then",
        "        command=$words[2]; shift words; (( CURRENT-- ))",
        "    elif (( CURRENT == 2 )); then",
        f"        compadd -- {' '.join(commands)}",
        "    fi",
        "    case $command in",
    ]
    for name, arguments in commands.items():
        specs = [spec for argument in arguments for spec in _zsh_specs(argument)]
        lines.append(f"        {name}) _arguments {' '.join(shlex.quote(spec) for spec in specs)};;")
    # as a file that is autoloaded, the function is called at once
    lines += ["    esac", "}", 'if [[ $funcstack[1] == _snapcc ]]; then _snapcc "$@"; else compdef _snapcc snapcc; fi']
    return "\n".join(lines) + "\n"


def _zsh_specs(argument: Argument) -> list[str]:
    escaped = argument.help
    for character in "\\[]:":
        escaped = escaped.replace(character, f"\\{character}")
    values = {
        "nothing": "",
        "choice": f":value:({' '.join(argument.choices)})",
        "file": ":file:_files",
        "folder": ":folder:_files -/",
        "text": ":value: ",
    }[argument.takes]
    if not argument.flags:
        return [f"*{values}"]
    joined = "" if argument.takes == "nothing" else "="
    return [f"*{flag}{joined if flag.startswith('--') else ''}[{escaped}]{values}" for flag in argument.flags]


def _fish(commands: Commands, default: str) -> str:
    others = " ".join(name for name in commands if name != default)
    lines = ["complete -c snapcc -e", f"complete -c snapcc -n __fish_is_first_arg -a {shlex.quote(' '.join(commands))}"]
    for name, arguments in commands.items():
        condition = f"__fish_seen_subcommand_from {name}"
        if name == default:
            condition = f"not __fish_seen_subcommand_from {others}"
        for argument in arguments:
            flags = [f"-l {f[2:]}" if f.startswith("--") else f"-s {f[1:]}" for f in argument.flags]
            takes = {
                "nothing": [],
                "choice": ["-x", "-a", shlex.quote(" ".join(argument.choices))],
                "file": ["-r", "-F"],
                "folder": ["-x", "-a", "'(__fish_complete_directories)'"],
                "text": ["-x"],
            }[argument.takes]
            if not flags and argument.takes != "choice":
                continue
            words = [*flags, *(takes if flags else takes[1:]), "-d", shlex.quote(argument.help)]
            lines.append(f"complete -c snapcc -n {shlex.quote(condition)} {' '.join(words)}")
    return "\n".join(lines) + "\n"
