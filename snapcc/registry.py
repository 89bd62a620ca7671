"""snapcc's own passes by name, each imported only when it is asked for.

A pass ``kv-some-thing`` is looked for in ``some_thing.py`` of its room first, then in the room's other files.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
from typing import Any, TypeGuard

from snapcc.compiler.passes.manager import Pass, split_pipeline

ROOMS = {"kv": "snapcc.compiler.passes", "sn40l": "snapcc.sn40l_target"}
"""The prefix of a pass's name and the package that holds its file."""


def named_in(pipeline: str) -> list[type[Pass]]:
    """The classes of our passes that a pipeline's text names; other names are left to MLIR.

    Args:
        pipeline: passes separated by commas, without the ``builtin.module(...)`` around them.

    Raises:
        ValueError: brackets that do not match, or a name of ours that no pass has.
    """
    found = []
    for part in split_pipeline(pipeline):
        name = part.partition("{")[0]
        prefix, _, rest = name.partition("-")
        if prefix in ROOMS and rest:
            found.append(_find(name, ROOMS[prefix], rest.replace("-", "_")))
    return found


def every() -> list[type[Pass]]:
    """All passes, in the order of their names."""
    found = {kind.name: kind for room in ROOMS.values() for file in _files(room) for kind in _passes(room, file)}
    return [found[name] for name in sorted(found)]


def options(kind: type[Pass]) -> list[str]:
    """The options of a pass that a pipeline's text can give."""
    fields: tuple[dataclasses.Field[Any], ...] = dataclasses.fields(kind)  # type: ignore[arg-type]
    return [field.name.replace("_", "-") for field in fields if field.type in ("int", "float", "str")]


def summary(kind: type[Pass]) -> str:
    """The first line of a pass's docstring."""
    return (inspect.getdoc(kind) or "").partition("\n")[0]


def _find(name: str, room: str, file: str) -> type[Pass]:
    for candidate in sorted(_files(room), key=lambda other: other != file):
        for kind in _passes(room, candidate):
            if kind.name == name:
                return kind
    raise ValueError(f"there is no pass {name!r}; snapcc-opt --list-passes names those there are")


def _files(room: str) -> list[str]:
    return [info.name for info in pkgutil.iter_modules(importlib.import_module(room).__path__)]


def _passes(room: str, file: str) -> list[type[Pass]]:
    module = importlib.import_module(f"{room}.{file}")
    return [kind for kind in vars(module).values() if _is_pass(kind) and kind.__module__ == module.__name__]


def _is_pass(value: object) -> TypeGuard[type[Pass]]:
    named = isinstance(getattr(value, "name", None), str) and callable(getattr(value, "run", None))
    return named and inspect.isclass(value)
