"""The model inside an artifact: its weights, copied or referred to, and its exported program without them."""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch.export import ExportedProgram

from .artifact import Artifact, ArtifactError

if TYPE_CHECKING:
    from snapcc.frontend import Decoder

PROGRAM = "program.pt2"
WEIGHTS = "weights.safetensors"


def store_weights(weights: Mapping[str, torch.Tensor], folder: Path, checkpoint: Path | None) -> list[str]:
    """Makes sure that safetensors files hold all weights, and names these files.

    Args:
        weights: by the name that the compiled program asks for.
        folder: the artifact's, for the weights that stand nowhere else.
        checkpoint: the model's folder; a safetensors file of it is referred to, not copied, if each of the weights that
            it holds a tensor of the same name for is bit for bit equal to that. One that is not would stand under its
            name in two files, and which IREE reads is open.

    Returns:
        the files, relative to ``folder`` or absolute.
    """
    files, missing = [], dict(weights)
    for path in sorted(checkpoint.resolve().glob("*.safetensors")) if checkpoint is not None else ():
        with safe_open(path, framework="pt") as held:
            found = weights.keys() & set(held.keys())
            equal = all(_same(weights[name], held.get_tensor(name)) for name in found)
        if found and equal:
            files.append(str(path))
            missing = {name: tensor for name, tensor in missing.items() if name not in found}
    if missing:
        # each tensor in memory of its own: safetensors refuses views that share it
        own = {name: tensor.detach().clone().contiguous() for name, tensor in missing.items()}
        try:
            save_file(own, folder / WEIGHTS)
        except SafetensorError as error:
            raise ArtifactError(f"{WEIGHTS} cannot be written: {error}") from error
        files.append(WEIGHTS)
    return files


def store_program(decoder: Decoder, folder: Path) -> dict[str, str]:
    """Writes the decoder's exported program, its weights left out.

    Returns:
        for each parameter, buffer and constant tensor of the program that it reads, the weight that it is.
    """
    (folder / PROGRAM).write_bytes(blank_program(decoder))
    weights = decoder.weights()
    names = [*decoder.program.state_dict, *decoder.program.constants]
    return {name: decoder.weight_name(name) for name in names if decoder.weight_name(name) in weights}


def blank_program(decoder: Decoder) -> bytes:
    """The decoder's exported program as ``torch.export.save`` writes it, its weights left out."""
    program = copy.copy(decoder.program)
    program._state_dict = {name: _blank(value) for name, value in decoder.program.state_dict.items()}
    program._constants = {name: _blank(value) for name, value in decoder.program.constants.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # its own writing of a file says nothing of a full disk
        buffer = io.BytesIO()
        torch.export.save(program, buffer)
    return buffer.getvalue()


def restore_program(artifact: Artifact) -> ExportedProgram:
    """The exported program of an artifact, with its weights.

    Raises:
        FrontendError: the program does not load here.
    """
    from snapcc.frontend.program import load_program

    program = load_program(artifact.folder / PROGRAM)
    places: dict[str, Path] = {}
    for path in artifact.weights:
        with safe_open(path, framework="pt") as held:
            places |= dict.fromkeys(held.keys(), path)
    tensors: dict[str, torch.Tensor] = {}
    for path in artifact.weights:
        with safe_open(path, framework="pt") as held:
            for name in artifact.manifest.parameters.values():
                if places[name] == path and name not in tensors:
                    tensors[name] = held.get_tensor(name)
    for name, stored in artifact.manifest.parameters.items():
        if name in program.state_dict:
            program.state_dict[name] = _like(program.state_dict[name], tensors[stored])
        else:
            program.constants[name] = tensors[stored]
    for held in (program.state_dict, program.constants):
        for name, value in held.items():
            # what the program writes to is no weight: whoever runs it gives it its value; nor is what it never reads
            if isinstance(value, torch.Tensor) and value.is_meta:
                held[name] = _like(value, torch.zeros_like(value, device="cpu"))
    return program


def weight_bytes(artifact: Artifact) -> int:
    """The bytes of the weights that an artifact's program reads."""
    names, size = set(artifact.manifest.parameters.values()), 0
    for path in artifact.weights:
        with safe_open(path, framework="pt") as held:
            for name in names & set(held.keys()):
                tensor = held.get_tensor(name)
                size += tensor.numel() * tensor.element_size()
    return size


def _same(tensor: torch.Tensor, held: torch.Tensor) -> bool:
    if (tensor.shape, tensor.dtype) != (held.shape, held.dtype):
        return False
    # compared as bytes: a NaN is equal to itself
    left, right = tensor.detach().contiguous(), held.contiguous()
    return torch.equal(left.view(-1).view(torch.uint8), right.view(-1).view(torch.uint8))


def _blank(value: Any) -> Any:
    return _like(value, value.detach().to("meta")) if isinstance(value, torch.Tensor) else value


def _like(model: Any, tensor: torch.Tensor) -> torch.Tensor:
    return torch.nn.Parameter(tensor, requires_grad=False) if isinstance(model, torch.nn.Parameter) else tensor
