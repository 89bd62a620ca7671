"""The artifact's folder: whole or not there, and every change noticed."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from snapcc import artifact
from snapcc.artifact import ArtifactError, describe, load, write_manifest, write_whole, writing
from snapcc.compiler.dialect.policy import Policy
from snapcc.manifest import Cache, Inputs, Manifest
from snapcc.runtime.engine import FunctionSpec, StateSpec, TensorSpec


def content(folder: Path, weights: str = "weights.safetensors") -> Manifest:
    tokens, row = TensorSpec((2,), "i64", "tokens", "tokens"), TensorSpec((), "i64")
    states = (StateSpec("selected_count", (2,), "i64", stored=False), StateSpec("k", (2, 1, 14, 8), "bf16"))
    return Manifest(
        snapcc="0.1.0",
        tools={"torch": "2.13.0"},
        model="model.pt",
        phases={},
        target="sn40l",
        device="cpu",
        cpu="host",
        dtype="bf16",
        kv="snapstream",
        policy=Policy(2, 8, 4, 4),
        batch=2,
        vocabulary=16,
        max_positions=100,
        end_of_sequence=(0,),
        functions={
            "decode": FunctionSpec("decode.vmfb", (tokens,), (TensorSpec((2, 16), "f32"),), states),
            "prefill_20": FunctionSpec("prefill.vmfb", (row,), (), ()),
            "reset": FunctionSpec("decode.vmfb", (row,), (), states[:1]),
        },
        inputs=Inputs(
            tokens=0, positions=None, causal_mask=None, logits=0, caches=(Cache(name="k", axis=2, input=1, output=1),)
        ),
        weights=(describe(folder, weights),),
        parameters={"a": "a"},
        tokenizer=None,
        plan=None,
        files=(describe(folder, "decode.vmfb"), describe(folder, "prefill.vmfb")),
    )


def fill(folder: Path, marker: str = "first") -> None:
    (folder / "decode.vmfb").write_text(marker)
    (folder / "prefill.vmfb").write_text(marker)
    (folder / "weights.safetensors").write_bytes(b"\0" * 64)
    write_manifest(folder, content(folder))


@pytest.fixture
def made(tmp_path: Path) -> Path:
    target = tmp_path / "model.snapcc"
    with writing(target) as folder:
        fill(folder)
    return target


def test_what_is_written_is_read(made: Path) -> None:
    read = load(made)
    assert read.manifest == content(made)
    assert read.weights == [made / "weights.safetensors"]
    program = read.manifest.program()
    assert program.prompts == (20,)
    assert list(program.states) == ["selected_count", "k"]
    assert program.states["k"].shape == (2, 1, 14, 8)


def test_nothing_else_is_left_beside_it(made: Path) -> None:
    assert [path.name for path in made.parent.iterdir()] == ["model.snapcc"]


@pytest.mark.parametrize("failure", [RuntimeError, KeyboardInterrupt])
def test_a_failure_leaves_nothing(tmp_path: Path, failure: type[BaseException]) -> None:
    def fail() -> None:
        with writing(tmp_path / "model.snapcc") as folder:
            fill(folder)
            raise failure

    with pytest.raises(failure):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_a_failure_leaves_the_old_one(made: Path) -> None:
    def fail() -> None:
        with writing(made) as folder:
            fill(folder, "second")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert (load(made).folder / "decode.vmfb").read_text() == "first"
    assert [path.name for path in made.parent.iterdir()] == ["model.snapcc"]


def test_a_new_one_takes_the_old_ones_place(made: Path) -> None:
    with writing(made) as folder:
        fill(folder, "second")
    assert (load(made).folder / "decode.vmfb").read_text() == "second"
    assert [path.name for path in made.parent.iterdir()] == ["model.snapcc"]


def test_other_folders_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "holiday").mkdir()
    (tmp_path / "holiday" / "photo.jpg").write_text("sea")
    with pytest.raises(ArtifactError, match="holiday exists and is no artifact"), writing(tmp_path / "holiday"):
        pass
    assert (tmp_path / "holiday" / "photo.jpg").read_text() == "sea"


def test_a_changed_file_is_named(made: Path) -> None:
    (made / "decode.vmfb").write_text("other")
    with pytest.raises(ArtifactError, match=r"the artifact's file .*decode\.vmfb has changed"):
        load(made)


def test_a_missing_file_is_named(made: Path) -> None:
    (made / "decode.vmfb").unlink()
    with pytest.raises(ArtifactError, match=r"the artifact's file .*decode\.vmfb is missing"):
        load(made)


def test_weights_elsewhere_are_checked_too(tmp_path: Path) -> None:
    model = tmp_path / "model.safetensors"
    model.write_bytes(b"\1" * 64)
    with writing(tmp_path / "model.snapcc") as folder:
        fill(folder)
        write_manifest(folder, content(folder, str(model)))
    assert load(tmp_path / "model.snapcc").weights == [model]
    model.write_bytes(b"\2" * 64)
    with pytest.raises(ArtifactError, match=r"the model's file .*model\.safetensors has changed"):
        load(tmp_path / "model.snapcc")


def change(made: Path, **entries: Any) -> None:
    path = made / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))


def test_another_schema_version_is_refused(made: Path) -> None:
    change(made, schema_version=99, something_new=1)
    with pytest.raises(ArtifactError, match="has schema version 99 and this snapcc reads version 3"):
        load(made)


def test_damage_is_said(made: Path, tmp_path: Path) -> None:
    change(made, batch="many")
    with pytest.raises(ArtifactError, match=r"manifest\.json is damaged: batch: Input should be a valid integer"):
        load(made)
    change(made, batch=2, policy={"sink": -1, "recent": 8, "topk": 4, "window": 4})
    with pytest.raises(ArtifactError, match=r"damaged: policy: .*sink must be at least 0, got -1"):
        load(made)
    (made / "manifest.json").write_text("{")
    with pytest.raises(ArtifactError, match="is damaged"):
        load(made)
    with pytest.raises(ArtifactError, match=r"is no artifact of snapcc: it has no manifest\.json"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"functions": {}}, "there is no function decode"),
        ({"files": []}, "function decode is in decode.vmfb, which is not among the files"),
        ({"batch": 0}, "batch: Input should be greater than or equal to 1"),
        ({"schema_version": None}, "has schema version None and this snapcc reads version"),
    ],
)
def test_entries_that_do_not_fit_together(entries: dict[str, Any], message: str, made: Path) -> None:
    change(made, **entries)
    with pytest.raises(ArtifactError, match=message):
        load(made)


def test_a_full_disk_is_said(made: Path) -> None:
    def fail() -> None:
        with writing(made):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(ArtifactError, match=r"model\.snapcc cannot be written: No space left on device; make room"):
        fail()
    assert [path.name for path in made.parent.iterdir()] == ["model.snapcc"]


def test_a_file_is_whole_or_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "kv.mlir"
    write_whole(path, b"first")
    assert path.stat().st_mode & 0o777 == 0o666 & ~artifact._umask()

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(ArtifactError, match=r"kv\.mlir cannot be written: full; make room"):
        write_whole(path, b"second")
    assert path.read_bytes() == b"first"
    assert list(tmp_path.iterdir()) == [path]
    write_whole(Path(os.devnull), b"nothing")


def test_the_artifact_is_readable_by_others(made: Path) -> None:
    assert made.stat().st_mode & 0o777 == 0o777 & ~artifact._umask()
