"""Exported programs from a file."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

import torch

from .decoder import Decoder, from_program
from .errors import FrontendError


def load(path: str | Path, *, inputs: Mapping[str, str] | None = None, causal_masks: Collection[str] = ()) -> Decoder:
    """A decoder from a file that ``torch.export.save`` wrote.

    Raises:
        FrontendError: the file does not load, or its program is not a decoder with a growing cache.
    """
    try:
        with Path(path).open("rb") as file:  # by its content: torch.export.load looks at a path's ending
            program = torch.export.load(file)
    except Exception as error:
        raise FrontendError(
            f"{path} does not load as an exported program ({type(error).__name__}: {error}); "
            f"write it with torch.export.save of PyTorch {torch.__version__}"
        ) from error
    return from_program(program, name=Path(path).stem, inputs=inputs, causal_masks=causal_masks)
