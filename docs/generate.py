"""Writes docs/dialect.md and docs/passes.md from the docstrings; with --check, fails where they are stale."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from snapcc.compiler.dialect import kv, sn40l
from snapcc.registry import every, options

FOLDER = Path(__file__).parent
NOTE = "<!-- made by docs/generate.py from the docstrings: change these, then run `make docs` -->"


def main() -> int:
    """Writes or checks both files; gives the exit status."""
    pages = {"dialect.md": dialect(), "passes.md": passes()}
    if "--check" not in sys.argv[1:]:
        for name, text in pages.items():
            (FOLDER / name).write_text(text)
        return 0
    stale = [name for name, text in pages.items() if _read(FOLDER / name) != text]
    for name in stale:
        print(f"error: docs/{name} is not what the docstrings say: run `make docs`", file=sys.stderr)
    return int(bool(stale))


def dialect() -> str:
    """The reference of the dialects' ops."""
    parts = [NOTE]
    for module in (kv, sn40l):
        name = module.__name__.rpartition(".")[2]
        parts += [f"# The {name} dialect", markdown(inspect.getdoc(module) or "")]
        for op in _ops(module):
            parts += [f"## `{op.OPERATION_NAME}`", markdown(inspect.getdoc(op) or ""), _fields(op)]
    return "\n\n".join(parts) + "\n"


def passes() -> str:
    """The reference of the passes."""
    parts = [NOTE, "# The passes", "`snapcc-opt --pass-pipeline='builtin.module(NAME{OPTION=VALUE})' FILE` runs one."]
    for kind in every():
        taken = options(kind)
        parts += [f"## `{kind.name}`", markdown(inspect.getdoc(kind) or "")]
        if taken:
            parts.append("Options: " + ", ".join(f"`{name}`" for name in taken) + ".")
    return "\n\n".join(parts) + "\n"


def markdown(docstring: str) -> str:
    """A docstring as Markdown: literal blocks are fenced, double backquotes are single ones."""
    lines: list[str] = []
    literal = False
    for line in docstring.splitlines():
        if literal and line and not line.startswith(" "):
            _close(lines)
            literal = False
        if not literal and line.endswith("::"):
            lines += [line[:-1], "", "```mlir"]
            literal = True
        elif literal:
            if line or lines[-1] != "```mlir":
                lines.append(line[4:])
        else:
            lines.append(re.sub(r"``(.+?)``", r"`\1`", line))
    if literal:
        _close(lines)
    # a span over the end of a line
    return re.sub(r"(?<!`)``([^`]+?)``(?!`)", r"`\1`", "\n".join(lines)).rstrip()


def _close(lines: list[str]) -> None:
    while lines[-1] == "":
        lines.pop()
    lines += ["```", ""]


def _ops(module: ModuleType) -> list[Any]:
    return [value for value in vars(module).values() if inspect.isclass(value) and hasattr(value, "OPERATION_NAME")]


def _fields(op: Any) -> str:
    kinds: dict[str, list[str]] = {"Operands": [], "Attributes": [], "Regions": [], "Results": []}
    for name, annotation in op.__annotations__.items():
        text = str(annotation)
        marks = {"OpResult[": "Results", "ir.Value[": "Operands", "ir.Region": "Regions"}
        kind = next((kind for mark, kind in marks.items() if mark in text), "Attributes")
        kinds[kind].append(f"`{name}`" + (" (optional)" if "None" in text else ""))
    return "  \n".join(f"{kind}: {', '.join(names)}." for kind, names in kinds.items() if names)


def _read(path: Path) -> str | None:
    return path.read_text() if path.is_file() else None


if __name__ == "__main__":
    sys.exit(main())
