"""Models recognised by content."""

from __future__ import annotations

import os
import pickle
import warnings
import zipfile
from pathlib import Path

import pytest
import torch
from frontend_decoders import Rotary, Stacked

from snapcc.frontend import FrontendError, from_object, from_program, load_model


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
    torch.save(torch.nn.Linear(2, 2).state_dict(), tmp_path / "state.pt")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), tmp_path / "script.pt")
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
        (tmp_path / "state.pt", "is a state dict, weights without a program: .*torch.export.save"),
        (tmp_path / "script.pt", "is a TorchScript archive: export the model instead: torch.export.save"),
        (written("cut.pt2", (tmp_path / "module.pt").read_bytes()[:300]), "is a zip archive without its end: it was"),
        (tmp_path / "some.zip", "is a zip archive of something else"),
    ):
        with pytest.raises(FrontendError, match=message):
            load_model(path)


class Spiteful:
    """Runs code when it is unpickled: makes a folder."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.target),)


@pytest.mark.parametrize("zipped", [True, False])
def test_no_code_of_a_pickle_is_run_without_leave(zipped: bool, tmp_path: Path) -> None:
    path, ran = tmp_path / "model.pt", tmp_path / "ran"
    torch.save(Spiteful(ran), path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(FrontendError, match=r"is a pickled object, .*--trust-pickle if you trust the file"):
        load_model(path)
    assert not ran.exists()
    with pytest.raises(FrontendError, match="model is a NoneType; expected an exported program or a model"):
        load_model(path, trust_pickle=True)
    assert ran.exists()


def test_trusted_pickles(tmp_path: Path) -> None:
    def saved(value: object) -> Path:
        torch.save(value, tmp_path / "model.pt")
        return tmp_path / "model.pt"

    with pytest.raises(
        FrontendError, match=r"model is a torch\.nn\.modules\.linear\.Linear, a module that does not say"
    ):
        load_model(saved(torch.nn.Linear(2, 2)), trust_pickle=True)
    with pytest.raises(FrontendError, match="model is a list; expected"):
        load_model(saved([1, 2]), trust_pickle=True)
    (tmp_path / "model.pt").write_bytes(b"\x80\x04cno_such_module\nClass\n.")
    with pytest.raises(FrontendError, match=r"ModuleNotFoundError: .*no_such_module.*PYTHONPATH takes more folders"):
        load_model(tmp_path / "model.pt", trust_pickle=True)


def test_programs_and_modules_as_objects() -> None:
    program = Rotary.program()
    assert from_object(program, "rotary").inputs == from_program(program).inputs
    with pytest.raises(FrontendError, match="--dtype bf16: an exported program keeps the dtype"):
        from_object(program, "rotary", dtype="bf16")
    with pytest.raises(FrontendError, match="a module that does not say what its inputs look like: export it"):
        from_object(torch.nn.Linear(2, 2), "linear")


def test_a_damaged_program_is_refused(tmp_path: Path) -> None:
    torch.export.save(Rotary.program(), tmp_path / "good.pt2")
    with zipfile.ZipFile(tmp_path / "good.pt2") as good, zipfile.ZipFile(tmp_path / "bad.pt2", "w") as bad:
        for name in good.namelist():
            if not name.endswith("models/model.json"):
                bad.writestr(name, good.read(name))
    with pytest.raises(FrontendError, match=r"bad\.pt2 does not load as an exported program"):
        load_model(tmp_path / "bad.pt2")
