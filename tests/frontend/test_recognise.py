"""Models recognised by content."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path

import pytest
import torch
from frontend_decoders import Rotary, Stacked

from snapcc.frontend import FrontendError, from_program, load_model


@pytest.mark.parametrize("name", ["model.pt2", "model.pt", "weights"])
def test_an_exported_program_under_any_name(name: str, tmp_path: Path) -> None:
    program = Rotary.program()
    torch.export.save(program, tmp_path / "saved.pt2")
    (tmp_path / "saved.pt2").rename(tmp_path / name)
    decoder = load_model(tmp_path / name)
    assert decoder.name == Path(name).stem
    assert decoder.inputs == from_program(program).inputs
    assert "table.weight" in decoder.weights()
    assert "head.weight" not in decoder.weights()
    arguments = Rotary.arguments(3, 1, 13)
    static = decoder.specialise(3, 1, 13)
    torch.testing.assert_close(static.module()(*arguments), program.module()(*arguments), rtol=1e-5, atol=1e-5)
    (trace,) = [n.meta["stack_trace"] for n in static.graph.nodes if str(n.target) == "aten._softmax.default"]
    assert "frontend_decoders.py" in trace


def test_declarations_reach_an_exported_program(tmp_path: Path) -> None:
    torch.export.save(Stacked.program(), tmp_path / "model.pt2")
    decoder = load_model(tmp_path / "model.pt2", inputs={"tokens": "a"}, causal_masks=["allowed"])
    assert [str(i.role) for i in decoder.inputs] == ["tokens", "positions", "cache", "causal_mask"]
    with pytest.raises(FrontendError, match="--dtype bf16: an exported program keeps the dtype"):
        load_model(tmp_path / "model.pt2", dtype="bf16")


def test_declarations_are_not_for_folders(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(FrontendError, match="--input and --causal-mask are for exported programs"):
        load_model(tmp_path, inputs={"tokens": "a"})


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    def written(name: str, content: bytes) -> Path:
        (tmp_path / name).write_bytes(content)
        return tmp_path / name

    torch.save(torch.nn.Linear(2, 2), tmp_path / "module.pt")
    with zipfile.ZipFile(tmp_path / "some.zip", "w") as archive:
        archive.writestr("readme.txt", "hello")
    for path, message in (
        (tmp_path / "none.pt", "does not exist"),
        (written("empty.pt", b""), "is an empty file"),
        (written("notes.txt", b"hello"), "is a text file"),
        (written("model.gguf", b"GGUF\x03\x00"), "is a GGUF file"),
        (written("noise.bin", b"\xff\xfe\x00\x01\xff"), "is a binary file of an unknown kind"),
        (written("old.pt", pickle.dumps([1, 2])), "is a pickled object, .*--trust-pickle"),
        (tmp_path / "module.pt", "is a pickled object, .*--trust-pickle"),
        (tmp_path / "some.zip", "is a zip archive of something else"),
    ):
        with pytest.raises(FrontendError, match=message):
            load_model(path)


def test_a_damaged_program_is_refused(tmp_path: Path) -> None:
    torch.export.save(Rotary.program(), tmp_path / "good.pt2")
    with zipfile.ZipFile(tmp_path / "good.pt2") as good, zipfile.ZipFile(tmp_path / "bad.pt2", "w") as bad:
        for name in good.namelist():
            if not name.endswith("models/model.json"):
                bad.writestr(name, good.read(name))
    with pytest.raises(FrontendError, match=r"bad\.pt2 does not load as an exported program"):
        load_model(tmp_path / "bad.pt2")
