"""A model from wherever it is, recognised by content and not by name."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path

import torch
from torch import nn
from torch.export import ExportedProgram

from . import program
from .decoder import Decoder, from_program
from .errors import FrontendError

_ACCEPTED = (
    "a program that torch.export.save wrote, or a Hugging Face folder of a causal language model (config.json and "
    "safetensors)"
)
_RECIPE = "torch.export.save(torch.export.export(model, (tokens, caches), dynamic_shapes=...), 'model.pt2')"


def load_model(
    path: str | Path,
    dtype: str = "checkpoint",
    inputs: Mapping[str, str] | None = None,
    causal_masks: Collection[str] = (),
    trust_pickle: bool = False,
) -> Decoder:
    """The decoder in a file or folder.

    ``dtype`` is "checkpoint", "f32", "bf16" or "f16" and applies to models of transformers; an exported program has
    its own. ``inputs`` and ``causal_masks`` as for ``from_program``, for exported programs. ``trust_pickle`` lets a
    pickled object be read, which runs whatever code its file says; without it no code of a file is ever run.

    Raises:
        FrontendError: what is there is no model that snapcc takes, or the model is refused.
    """
    path = Path(path)
    if not path.exists():
        raise FrontendError(f"{path} does not exist; expected {_ACCEPTED}")
    if path.is_dir():
        return _folder(path, dtype, inputs, causal_masks)
    if not zipfile.is_zipfile(path):
        with path.open("rb") as file:
            if file.read(1) == b"\x80":
                return _pickled(path, dtype, inputs, causal_masks, trust_pickle)
        raise FrontendError(f"{path} is {_what(path)}; expected {_ACCEPTED}")
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
    if any(name.endswith("archive_format") or name == "serialized_exported_program.json" for name in names):
        _keeps_dtype(dtype)
        return program.load(path, inputs=inputs, causal_masks=causal_masks)
    if any("/code/" in name for name in names):
        raise FrontendError(f"{path} is a TorchScript archive: export the model instead: {_RECIPE}")
    if any(name.endswith("data.pkl") for name in names):
        return _pickled(path, dtype, inputs, causal_masks, trust_pickle)
    raise FrontendError(f"{path} is a zip archive of something else; expected {_ACCEPTED}")


def from_object(
    model: object,
    name: str,
    dtype: str = "checkpoint",
    inputs: Mapping[str, str] | None = None,
    causal_masks: Collection[str] = (),
) -> Decoder:
    """The decoder in a Python object: an exported program, or a model of transformers' own classes.

    Arguments as for ``load_model``. The object is left as it is.

    Raises:
        FrontendError: it is something else, or the model is refused.
    """
    if isinstance(model, ExportedProgram):
        _keeps_dtype(dtype)
        return from_program(model, name=name, inputs=inputs, causal_masks=causal_masks)
    if not isinstance(model, nn.Module):
        raise FrontendError(f"{name} is a {_kind(model)}; expected an exported program or a model of transformers")
    # without an import: where transformers was not imported, the model is none of its own
    transformers = sys.modules.get("transformers")
    if transformers is None or not isinstance(model, transformers.PreTrainedModel):
        raise FrontendError(
            f"{name} is a {_kind(model)}, a module that does not say what its inputs look like: export it: {_RECIPE}"
        )
    _are_known(inputs, causal_masks)
    from . import huggingface

    return huggingface.from_model(huggingface.converted(model, dtype), name)


def _keeps_dtype(dtype: str) -> None:
    if dtype != "checkpoint":
        raise FrontendError(
            f"--dtype {dtype}: an exported program keeps the dtype that it was exported with; "
            "export the model in that dtype, or leave --dtype at checkpoint"
        )


def _are_known(inputs: Mapping[str, str] | None, causal_masks: Collection[str]) -> None:
    if inputs or causal_masks:
        raise FrontendError(
            "--input and --causal-mask are for exported programs; the inputs of a Hugging Face model are known"
        )


def _folder(path: Path, dtype: str, inputs: Mapping[str, str] | None, causal_masks: Collection[str]) -> Decoder:
    if not (path / "config.json").is_file():
        raise FrontendError(f"{path} is a folder without config.json; expected {_ACCEPTED}")
    _are_known(inputs, causal_masks)
    from . import huggingface  # imports transformers, which takes seconds

    return huggingface.load(path, dtype)


def _pickled(
    path: Path, dtype: str, inputs: Mapping[str, str] | None, causal_masks: Collection[str], trusted: bool
) -> Decoder:
    if _is_state_dict(path):
        raise FrontendError(
            f"{path} is a state dict, weights without a program: load it into its model and export that: {_RECIPE}"
        )
    if not trusted:
        raise FrontendError(
            f"{path} is a pickled object, which can run any code when it is read: export the model ({_RECIPE}), or "
            "give --trust-pickle if you trust the file"
        )
    try:
        model = torch.load(path, map_location="cpu", weights_only=False)
    except Exception as error:
        raise FrontendError(
            f"{path} does not load as a pickled object ({type(error).__name__}: {error}); the code of its classes "
            f"must be importable: PYTHONPATH takes more folders; or export the model: {_RECIPE}"
        ) from error
    return from_object(model, path.stem, dtype, inputs, causal_masks)


def _is_state_dict(path: Path) -> bool:
    """Whether a pickle holds tensors by name, found out without running any code of it."""
    try:
        held = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except Exception:  # whatever else is in it
        return False
    return isinstance(held, dict) and bool(held) and all(isinstance(value, torch.Tensor) for value in held.values())


def _kind(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")


def _what(path: Path) -> str:
    with path.open("rb") as file:
        start = file.read(4096)
    if not start:
        return "an empty file"
    if start[:4] == b"PK\x03\x04":
        return "a zip archive without its end: it was cut short, copy or write it again"
    if start[:4] == b"GGUF":
        return "a GGUF file"
    try:
        start.decode()
    except UnicodeDecodeError as error:
        # a character may be cut where the reading stopped
        if len(start) - error.start > 3:
            return "a binary file of an unknown kind"
    return "a text file"
