"""snapcc: PyTorch decoders compiled to a fixed number of KV cache slots."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn
    from torch.export import ExportedProgram

    from snapcc.runtime.engine import Program

__all__ = ["compile", "load"]


def compile(model: str | Path | ExportedProgram | nn.Module, output: str | Path, **options: Any) -> Path:
    """Compiles a decoder to an artifact, as ``snapcc MODEL -o OUTPUT`` does.

    Args:
        model: a file of ``torch.export.save``, a Hugging Face folder, an exported program, or a model of
            transformers' own classes. An object is left as it is.
        output: the artifact's folder.
        options: the other fields of ``snapcc.options.Options``, and those of ``snapcc.defaults.Wishes``: ``slots``,
            ``kv``, ``sink``, ``recent``, ``topk``, ``window``, ``pool``, ``pool_size``, ``score``, ``room``.

    Returns:
        the artifact's folder.

    Raises:
        UsageError: options that do not fit one another or the model.
        FrontendError, Refusal: a model that is not understood, or not provably safe to rewrite.
    """
    import dataclasses

    from .build import build
    from .defaults import Wishes
    from .options import Options
    from .progress import Progress

    names = {field.name for field in dataclasses.fields(Wishes)}
    wishes = Wishes(**{name: value for name, value in options.items() if name in names})
    others = {name: value for name, value in options.items() if name not in names}
    build(model, Options(output=Path(output), wishes=wishes, **others), Progress(quiet=True))
    return Path(output)


def load(path: str | Path) -> Program:
    """An artifact's program, ready to run: ``reset``, ``prefill``, ``extend`` and ``decode`` on NumPy arrays.

    Raises:
        ArtifactError: it is no whole artifact.
        RuntimeError: IREE has no device of the artifact's kind here.
    """
    from snapcc.runtime.engine import Program

    from .artifact import load as load_artifact

    artifact = load_artifact(Path(path))
    return Program(artifact.folder, artifact.weights, artifact.manifest.program())
