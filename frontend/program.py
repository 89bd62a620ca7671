"""Exported programs from a file."""

from __future__ import annotations

import re
import zipfile
import zlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.export import ExportedProgram

from .decoder import Decoder, from_program
from .errors import FrontendError

_TRANSFORMERS_CACHE = "transformers.cache_utils.DynamicCache"
# Types of containers as torch.export writes them, in a text within a text: quotes come with backslashes.
_CONTAINER = re.compile(r'\\+"type\\+": \\+"([\w.]+)\\+"')


def load(path: str | Path, *, inputs: Mapping[str, str] | None = None, causal_masks: Collection[str] = ()) -> Decoder:
    """A decoder from a file that ``torch.export.save`` wrote.

    Raises:
        FrontendError: the file does not load, or its program is not a decoder with a growing cache.
    """
    return from_program(load_program(path), name=Path(path).stem, inputs=inputs, causal_masks=causal_masks)


def load_program(path: str | Path) -> ExportedProgram:
    """The program in a file that ``torch.export.save`` wrote, with what its containers need registered.

    Raises:
        FrontendError: the file does not load, or its arguments hold a container that nothing here has registered.
    """
    safe = _register_containers(Path(path))
    try:
        # by its content: torch.export.load looks at a path's ending
        with torch.serialization.safe_globals(safe), Path(path).open("rb") as file:
            program: ExportedProgram = torch.export.load(file)
    except Exception as error:
        raise FrontendError(
            f"{path} does not load as an exported program ({type(error).__name__}: {error}); "
            f"write it with torch.export.save of PyTorch {torch.__version__}"
        ) from error
    return program


def _register_containers(path: Path) -> list[Any]:
    """Registers transformers' cache, where a program takes it, and refuses containers that are not known here.

    Gives the classes that the example inputs in the file may hold.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            models = [n for n in archive.namelist() if "/models/" in n or n == "serialized_exported_program.json"]
            used = {name for model in models for name in _CONTAINER.findall(archive.read(model).decode())}
    except (zipfile.BadZipFile, zlib.error, UnicodeDecodeError, OSError):
        return []  # torch.export says what is wrong with the file
    layers: list[Any] = []
    if _TRANSFORMERS_CACHE in used:
        try:
            from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer
            from transformers.integrations import executorch
        except ImportError as error:
            raise FrontendError(
                f"{path} takes a DynamicCache of transformers, which cannot be imported ({error}): install transformers"
            ) from error
        register: Any = executorch.register_dynamic_cache_export_support
        register()
        layers = [DynamicLayer, DynamicSlidingWindowLayer]
    known = pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE
    if unknown := sorted(used - known.keys()):
        raise FrontendError(
            f"{path} takes or returns a {unknown[0]}, a container that is not registered here: export the program with "
            "tuples, lists and dicts, or register the class and call snapcc.compile from Python"
        )
    return [*layers, *(known[name] for name in used)]
