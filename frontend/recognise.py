"""A model from wherever it is, recognised by content and not by name."""

from __future__ import annotations

import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path

from . import program
from .decoder import Decoder
from .errors import FrontendError

_ACCEPTED = (
    "a program that torch.export.save wrote, or a Hugging Face folder of a causal language model (config.json and "
    "safetensors)"
)


def load_model(
    path: str | Path,
    dtype: str = "checkpoint",
    inputs: Mapping[str, str] | None = None,
    causal_masks: Collection[str] = (),
) -> Decoder:
    """The decoder in a file or folder.

    ``dtype`` is "checkpoint", "f32", "bf16" or "f16" and applies to Hugging Face folders; an exported program has
    its own. ``inputs`` and ``causal_masks`` as for ``from_program``, for exported programs.

    Raises:
        FrontendError: what is there is no model that snapcc takes, or the model is refused.
    """
    path = Path(path)
    if not path.exists():
        raise FrontendError(f"{path} does not exist; expected {_ACCEPTED}")
    if path.is_dir():
        return _folder(path, dtype, inputs, causal_masks)
    if not zipfile.is_zipfile(path):
        raise FrontendError(f"{path} is {_what(path)}; expected {_ACCEPTED}")
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
    if any(name.endswith("archive_format") or name == "serialized_exported_program.json" for name in names):
        if dtype != "checkpoint":
            raise FrontendError(
                f"--dtype {dtype}: an exported program keeps the dtype that it was exported with; "
                "export the model in that dtype, or leave --dtype at checkpoint"
            )
        return program.load(path, inputs=inputs, causal_masks=causal_masks)
    raise FrontendError(f"{path} is {_archive(names)}; expected {_ACCEPTED}")


def _folder(path: Path, dtype: str, inputs: Mapping[str, str] | None, causal_masks: Collection[str]) -> Decoder:
    if not (path / "config.json").is_file():
        raise FrontendError(f"{path} is a folder without config.json; expected {_ACCEPTED}")
    if inputs or causal_masks:
        raise FrontendError(
            "--input and --causal-mask are for exported programs; the inputs of a Hugging Face model are known"
        )
    from . import huggingface  # imports transformers, which takes seconds

    return huggingface.load(path, dtype)


def _archive(names: Collection[str]) -> str:
    if any("/code/" in name for name in names):
        return "a TorchScript archive: export the model with torch.export instead"
    if any(name.endswith("data.pkl") for name in names):
        return (
            "a pickled object, which can run any code when it is read: export the model with torch.export.save "
            "(--trust-pickle, for files that you trust, is not supported yet)"
        )
    return "a zip archive of something else"


def _what(path: Path) -> str:
    with path.open("rb") as file:
        start = file.read(4096)
    if not start:
        return "an empty file"
    if start[:1] == b"\x80":
        return (
            "a pickled object, which can run any code when it is read: export the model with torch.export.save "
            "(--trust-pickle, for files that you trust, is not supported yet)"
        )
    if start[:4] == b"GGUF":
        return "a GGUF file"
    try:
        start.decode()
    except UnicodeDecodeError:
        return "a binary file of an unknown kind"
    return "a text file"
