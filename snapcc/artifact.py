"""The artifact's folder: written beside its place and renamed, checked when it is read."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from . import announcements, manifest
from .manifest import SCHEMA_VERSION, File, Manifest

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""A full disk, a full quota, a file beyond what may be written."""

_HALF_WRITTEN = "half-written"


class ArtifactError(RuntimeError):
    """A folder that is not a whole artifact of this version."""


@dataclass(frozen=True)
class Artifact:
    """A checked artifact."""

    folder: Path
    manifest: Manifest

    @property
    def weights(self) -> list[Path]:
        """The safetensors files that hold the weights between them."""
        return [self.folder / file.path for file in self.manifest.weights]


@contextlib.contextmanager
def writing(target: Path) -> Iterator[Path]:
    """A new folder beside ``target`` that takes its place at the end, or goes where the body raises.

    An artifact that is there already is replaced; it stays whole until the new one is.

    Raises:
        ArtifactError: ``target`` is something other than an artifact, and left as it is; or there is no room for it.
    """
    if target.exists() and not (target / manifest.FILE).is_file():
        raise ArtifactError(f"{target} exists and is no artifact of snapcc: choose another place with -o")
    target.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".partial", dir=target.parent))
    told = announcements.folder()
    if told is not None:
        (told / _HALF_WRITTEN).symlink_to(folder.resolve())
    try:
        # mkdtemp's folders are their owner's alone; an artifact is as other new folders are
        folder.chmod(0o777 & ~_umask())
        yield folder
        _replace(target, folder)
    except OSError as error:
        raise _said(error, target) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if told is not None:
            (told / _HALF_WRITTEN).unlink()


def clear_announced(folder: Path) -> None:
    """Removes the artifact that is half written, by what ``folder`` says."""
    link = folder / _HALF_WRITTEN
    if link.is_symlink():
        shutil.rmtree(link.readlink(), ignore_errors=True)


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file so that it is there whole or, where that fails, as it was before.

    Raises:
        ArtifactError: there is no room for it.
        OSError: it cannot be written for another reason.
    """
    if path.exists() and not path.is_file():
        # a pipe or a device is no place of its own
        path.write_bytes(content)
        return
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, path)
    except BaseException as error:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise (_said(error, path) if isinstance(error, OSError) else error) from None


def _said(error: OSError, target: Path) -> Exception:
    """An error of writing that names what could not be written, where the system does not."""
    if error.errno not in _FULL:
        return error
    return ArtifactError(f"{target} cannot be written: {error.strerror}; make room, or choose another place with -o")


def describe(folder: Path, path: str) -> File:
    """A file's entry in the manifest; ``path`` relative to the folder, or absolute."""
    place = folder / path
    with place.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return File(path=path, bytes=place.stat().st_size, sha256=digest)


def write_manifest(folder: Path, content: Manifest) -> None:
    """Writes ``manifest.json``, the last file of an artifact."""
    (folder / manifest.FILE).write_text(content.model_dump_json(indent=2) + "\n")


def load(folder: Path) -> Artifact:
    """Reads an artifact and checks each of its files.

    Raises:
        ArtifactError: it is no artifact, of another schema version, or a file is missing or has changed.
    """
    path = folder / manifest.FILE
    if not path.is_file():
        raise ArtifactError(f"{folder} is no artifact of snapcc: it has no {manifest.FILE}")
    try:
        raw = json.loads(path.read_text())
        version = raw.get("schema_version") if isinstance(raw, dict) else None
        if version != SCHEMA_VERSION:
            raise ArtifactError(
                f"{folder} has schema version {version} and this snapcc reads version {SCHEMA_VERSION}: "
                f"compile the model again"
            )
        content = Manifest.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        where = "".join(f"{part}." for part in first["loc"]).removesuffix(".")
        what = first["msg"].removeprefix("Value error, ")
        raise ArtifactError(
            f"{path} is damaged: {f'{where}: ' if where else ''}{what}; compile the model again"
        ) from None
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"{path} is damaged: {error}; compile the model again") from None
    for file in [*content.files, *content.weights]:
        _check(folder, file)
    return Artifact(folder, content)


def _check(folder: Path, file: File) -> None:
    place = folder / file.path
    owner = "the model's file" if os.path.isabs(file.path) else "the artifact's file"
    if not place.is_file():
        raise ArtifactError(f"{owner} {place} is missing: compile the model again")
    if place.stat().st_size != file.bytes or describe(folder, file.path).sha256 != file.sha256:
        raise ArtifactError(f"{owner} {place} has changed since the artifact was made: compile the model again")


def _replace(target: Path, folder: Path) -> None:
    if not target.exists():
        folder.rename(target)
        return
    # a folder that is not empty cannot be renamed over: the old one steps aside, and comes back where that fails
    aside = folder.with_suffix(".replaced")
    target.rename(aside)
    try:
        folder.rename(target)
    except BaseException:
        aside.rename(target)
        raise
    shutil.rmtree(aside)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
