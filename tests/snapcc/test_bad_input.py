"""Bad input through the command itself: a line that says what and what to do, the exit status, nothing left behind."""

import contextlib
import errno
import json
import os
import pickle
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import decoders
import plain_decoders
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from snapcc import artifact, build, cli
from snapcc.compiler.dialect.policy import Policy
from snapcc.frontend import FrontendError, load_model
from snapcc.manifest import Cache, Inputs, Manifest
from snapcc.runtime.engine import FunctionSpec, StateSpec, TensorSpec

DECODER = next(decoder for decoder in decoders.GOOD if decoder.name == "monocle")
SIZES = ["--sink=2", "--recent=8", "--topk=4", "--obs-window=4", "--prompt=20"]
FUZZ = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


class Spiteful:
    """Runs code when it is unpickled: makes a folder in the current one."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("ran",)


class Stateless(torch.nn.Module):
    """A program without a cache."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """One-hot logits."""
        return torch.nn.functional.one_hot(tokens, 8).float()


class Masked(torch.nn.Module):
    """A decoder whose mask is an input of which nothing is known."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(32, 8)

    def forward(
        self, tokens: torch.Tensor, attention_mask: torch.Tensor, past: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys that are values too: logits [B, Q, V] and [B, P + Q, D]."""
        x = self.table(tokens)
        keys = torch.cat((past, x), 1)
        return (torch.softmax(x @ keys.mT + attention_mask, -1) @ keys) @ self.table.weight.T, keys


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files that are no models, or not what snapcc takes, and one good program."""
    folder = tmp_path_factory.mktemp("models")
    torch.export.save(DECODER.program(), folder / "good.pt2")
    good = (folder / "good.pt2").read_bytes()
    (folder / "empty.pt").write_bytes(b"")
    (folder / "text.pt").write_text("a model\n")
    (folder / "noise.pt").write_bytes(random.Random(0).randbytes(1000))
    (folder / "cut.pt2").write_bytes(good[: len(good) // 2])
    (folder / "pickle.pt").write_bytes(pickle.dumps(Spiteful()))
    torch.save(Spiteful(), folder / "zipped.pt")
    torch.save(DECODER.module().state_dict(), folder / "state.pt")
    (folder / "folder").mkdir()
    (folder / "cut.mlir").write_text("module {\n")
    tokens = torch.zeros(1, 4, dtype=torch.long)
    torch.export.save(torch.export.export(Stateless(), (tokens,)), folder / "stateless.pt2")
    dims = {"query": (2, 97), "past": (2, 97), "total": (4, 99)}
    query, past, total = (torch.export.Dim(name, min=low, max=high) for name, (low, high) in dims.items())
    example = (torch.zeros(1, 3, dtype=torch.long), torch.zeros(3, 8), torch.zeros(1, 5, 8))
    shapes = ({1: query}, {0: query, 1: total}, {1: past})
    masked = torch.export.export(Masked().eval(), example, dynamic_shapes=shapes, strict=False)
    torch.export.save(masked, folder / "mask.pt2")
    torch.export.save(plain_decoders.REFUSED[0].decoder.program(), folder / "mean.pt2")
    return folder


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder of the command, empty."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def error_of(capsys: pytest.CaptureFixture[str], status: int, *arguments: object) -> str:
    """Runs the command; gives what it wrote to standard error, which must be an error and no internal one."""
    assert cli.main([*map(str, arguments), "--quiet"]) == status
    output, errors = capsys.readouterr()
    assert output == ""
    assert "error: " in errors.splitlines()[0]
    assert "Traceback" not in errors
    assert "internal error" not in errors
    return errors


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none.pt", r"does not exist; expected a program that torch.export.save wrote"),
        ("empty.pt", "is an empty file; expected"),
        ("text.pt", "is a text file; expected"),
        ("noise.pt", "is a binary file of an unknown kind; expected"),
        ("cut.pt2", "is a zip archive without its end: it was cut short, copy or write it again"),
        ("pickle.pt", "is a pickled object, which can run any code when it is read: export the model"),
        ("zipped.pt", "or give --trust-pickle if you trust the file"),
        ("state.pt", "is a state dict, weights without a program: load it into its model and export that"),
        ("folder", "is a folder without config.json; expected"),
        ("cut.mlir", "cut.mlir:1:9: error: "),
        ("stateless.pt2", "the program has no cache: none of its inputs tokens comes back as an output that is longer"),
        ("mean.pt2", "plain_decoders.py:102:1: error: 'torch.aten.mean.dim' reduces the cache axis"),
        ("mask.pt2", "declare it with --causal-mask attention_mask if it is plainly causal"),
    ],
)
def test_models(name: str, message: str, models: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in error_of(capsys, 1, models / name, *SIZES)
    assert list(here.iterdir()) == []


@pytest.mark.parametrize(
    ("status", "options", "message"),
    [
        (2, "--slots=300", "300 slots are more than the 257 positions of the model: ask for at most 257"),
        (2, "--slots=4", "recent must be at least 1 (the new token needs a slot), got -1 (of 4 slots: --slots 4 was"),
        (2, "--slots=14 --sink=2 --recent=8 --topk=5", "= 15 slots, and --slots 14 was asked for; leave out one of"),
        (2, "--recent=8 --obs-window=9", "1 <= window <= recent, got window 9, recent 8"),
        (2, "--recent=0", "argument --recent: a whole number of at least 1 is needed, got '0'"),
        (2, "--sink=-1", "argument --sink: a whole number of at least 0 is needed, got '-1'"),
        (2, "--pool=avg:4", "the pooling kernel must be odd and positive, got 4"),
        (2, "--prompt=257", "a prompt length must lie in 2 to 256, which the program can take, got 257"),
        (1, "--batch=65", "the program cannot take batch = 65: it was exported for 1 to 64; export it with a dynamic"),
        (1, "--input=tokens=words", "--input tokens=words: the program has no such input; it has "),
        (1, "--dtype=bf16", "an exported program keeps the dtype that it was exported with; export the model in that"),
        (1, "-o /no/such/folder/out.mlir --compile-to=fx", "/no/such/folder"),
    ],
)
def test_options(
    status: int, options: str, message: str, models: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in error_of(capsys, status, models / "good.pt2", *options.split())
    assert list(here.iterdir()) == []


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artifact whose entries fit together, without a program in it."""
    target = tmp_path_factory.mktemp("made") / "model.snapcc"
    tokens, row = TensorSpec((1,), "i64", "tokens", "tokens"), TensorSpec((), "i64")
    states = (StateSpec("selected_count", (1,), "i64"), StateSpec("k", (1, 1, 14, 8), "f32"))
    with artifact.writing(target) as folder:
        (folder / "decode.vmfb").write_bytes(b"")
        content = Manifest(
            snapcc="0",
            tools={},
            model="model.pt",
            phases={},
            target="host",
            device="cpu",
            cpu="host",
            dtype="f32",
            kv="snapstream",
            policy=Policy(2, 8, 4, 4),
            batch=1,
            vocabulary=16,
            max_positions=100,
            end_of_sequence=(0,),
            functions={
                "decode": FunctionSpec("decode.vmfb", (tokens,), (TensorSpec((1, 16), "f32"),), states),
                "reset": FunctionSpec("decode.vmfb", (row,), (), states[:1]),
            },
            inputs=Inputs(
                tokens=0,
                positions=None,
                causal_mask=None,
                logits=0,
                caches=(Cache(name="k", axis=2, input=1, output=1),),
            ),
            weights=(),
            parameters={},
            tokenizer=None,
            plan=None,
            files=(artifact.describe(folder, "decode.vmfb"),),
        )
        artifact.write_manifest(folder, content)
    return target


NO_ROWS = [b"null", b"1", b"[]", b"[1]", b"[[1.0]]", b"[[null]]", b'[["a"]]', b"[[[1]]]", b'{"a": [[1]]}', b"[[true]]"]


@pytest.mark.parametrize("option", ["--tokens", "--force-tokens"])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is no JSON: Expecting value"),
        (b"[[1, 2]", "is no JSON: Expecting ',' delimiter: line 1 column 8"),
        (b"[[1]]\n[[2]]", "is no JSON: Extra data: line 2"),
        (b"\xff\xfe[[1]]", "is no JSON: 'utf-8' codec can't decode"),
        (b"[" * 100_000, "is no JSON: maximum recursion depth"),
        *((text, "must hold a list of token lists, one per row, as [[1, 2, 3], [4, 5]]") for text in NO_ROWS),
    ],
)
def test_files_of_tokens(
    option: str, content: bytes, message: str, made: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "rows.json").write_text("[[1]]")
    (here / "bad.json").write_bytes(content)
    given_ = ["--tokens", "bad.json"] if option == "--tokens" else ["--tokens", "rows.json", option, "bad.json"]
    assert f"error: bad.json {message}" in error_of(capsys, 2, "run", made, *given_)
    assert sorted(path.name for path in here.iterdir()) == ["bad.json", "rows.json"]


@pytest.mark.parametrize("option", ["--tokens", "--force-tokens"])
def test_missing_files_of_tokens(option: str, made: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "rows.json").write_text("[[1]]")
    rows = [] if option == "--tokens" else ["--tokens", "rows.json"]
    assert "error: no.json: No such file or directory" in error_of(capsys, 1, "run", made, *rows, option, "no.json")
    assert "error: .: Is a directory" in error_of(capsys, 1, "run", made, *rows, option, ".")


@settings(FUZZ, max_examples=100)
@given(content=st.binary(max_size=300), magic=st.sampled_from([b"", b"\x80\x04", b"PK\x03\x04", b"GGUF", b"ML\xefR"]))
def test_random_bytes(content: bytes, magic: bytes, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "model").write_bytes(magic + content)
    error_of(capsys, 1, "model", "--compile-to=torch")


@settings(FUZZ, max_examples=10)
@given(data=st.data())
def test_damaged_programs(data: st.DataObject, models: Path, here: Path) -> None:
    good = (models / "good.pt2").read_bytes()
    if data.draw(st.booleans(), label="cut"):
        bad = good[: data.draw(st.integers(0, len(good) - 1), label="length")]
    else:
        place = data.draw(st.integers(0, len(good) - 1), label="place")
        bad = good[:place] + bytes([good[place] ^ data.draw(st.integers(1, 255), label="change")]) + good[place + 1 :]
    (here / "model").write_bytes(bad)
    # a change may do no harm, or hit a weight
    with contextlib.suppress(FrontendError):
        load_model("model")


JSON = st.sampled_from([None, -1, 0, 10**30, "x", "", [], {}, [1], 1.5, True, "../../etc/passwd", "/etc/passwd", "\0"])


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to each entry of a JSON value."""
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield (*path, key)
        yield from places(value[key], (*path, key))


@settings(FUZZ, max_examples=300)
@given(data=st.data())
def test_damaged_manifests(data: st.DataObject, made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = (made / "manifest.json").read_text()
    content = json.loads(whole)
    *parents, last = data.draw(st.sampled_from(list(places(content))))
    entry = content
    for key in parents:
        entry = entry[key]
    if data.draw(st.booleans(), label="delete"):
        del entry[last]
    else:
        entry[last] = data.draw(JSON)
    try:
        (made / "manifest.json").write_text(json.dumps(content))
        # what means something else may be whole all the same
        status = cli.main(["inspect", str(made), *data.draw(st.sampled_from([[], ["--json"]]))])
    finally:
        (made / "manifest.json").write_text(whole)
    errors = capsys.readouterr().err
    assert status in (0, 1)
    assert (status == 0) == (errors == "")
    assert "internal error" not in errors
    assert "Traceback" not in errors


FAILING: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "a module": ("write_bytes", lambda path: path.suffix == ".vmfb"),
    "the program": ("write_bytes", lambda path: path.name == "program.pt2"),
    "the plan": ("write_text", lambda path: path.name == "plan.json"),
    "the manifest": ("write_text", lambda path: path.name == "manifest.json"),
}


@pytest.fixture(scope="module")
def lowered(models: Path) -> tuple[Any, ...]:
    """What ``build`` has when it begins to write an artifact."""
    from snapcc.compilation import Lowering, choose
    from snapcc.defaults import Wishes
    from snapcc.options import Options
    from snapcc.progress import Progress
    from snapcc.sn40l_target.machine import SN40L

    progress = Progress(quiet=True)
    options = Options(wishes=Wishes(sink=2, recent=8, topk=4, window=4), prompts=(20,))
    decoder = load_model(models / "good.pt2")
    choice = choose(decoder, options, progress)
    lowering = Lowering(SN40L, options, progress)
    assert list(lowering.phases(decoder, choice))[-1] == "iree"
    return decoder, build.Origin("good.pt2"), choice, lowering, options, progress


@pytest.mark.parametrize("point", FAILING)
def test_a_full_disk(point: str, lowered: tuple[Any, ...], here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, fails = FAILING[point]
    written: Callable[..., Any] = getattr(Path, name)

    def full(path: Path, *arguments: Any, **options: Any) -> Any:
        if fails(path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return written(path, *arguments, **options)

    monkeypatch.setattr(build, "compile_module", lambda source, path, flags: path.write_bytes(b"module"))
    with artifact.writing(here / "model.snapcc") as folder:
        build._fill(folder, *lowered)
    before = {path: path.read_bytes() for path in here.rglob("*") if path.is_file()}
    monkeypatch.setattr(Path, name, full)
    with (
        pytest.raises(artifact.ArtifactError, match=r"model\.snapcc cannot be written: No space left on device; make"),
        artifact.writing(here / "model.snapcc") as folder,
    ):
        build._fill(folder, *lowered)
    monkeypatch.undo()
    os.chdir(here)
    # the artifact that was there is still whole, and nothing is beside it; no fault of the compiler's is kept
    for path, content in before.items():
        assert path.read_bytes() == content
    assert {path.name for path in here.iterdir()} - {"snapcc-reproducer-iree-decode"} == {"model.snapcc"}


def test_a_limit_on_the_size_of_files(models: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    try:
        errors = error_of(capsys, 1, models / "good.pt2", *SIZES, "--compile-to=torch", "-o", "torch.mlir")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "error: torch.mlir cannot be written: File too large" in errors
    assert list(here.iterdir()) == []


def alive(session: int) -> list[int]:
    """The processes of a session that are no zombies."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, _, own, *_ = path.read_text().rpartition(")")[2].split()
            if int(own) == session and state != "Z":
                found.append(int(path.parent.name))
    return found


@pytest.mark.parametrize(
    ("number", "moment"), [(signal.SIGINT, "lowering to linalg"), (signal.SIGTERM, "compiling decode")]
)
def test_an_interrupt_leaves_nothing(number: signal.Signals, moment: str, models: Path, here: Path) -> None:
    (here / "temporary").mkdir()
    with subprocess.Popen(
        [sys.executable, "-m", "snapcc.cli", models / "good.pt2", *SIZES],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(here / "temporary")},
        start_new_session=True,
    ) as process:
        assert process.stderr is not None
        said = ""
        while moment not in said:
            character = process.stderr.read(1)
            assert character, said
            said += character
        time.sleep(0.2)
        process.send_signal(number)
        rest = process.stderr.read()
    assert process.returncode == 1
    assert rest.splitlines()[-1] == "error: interrupted"
    assert "Traceback" not in rest
    assert [path.name for path in here.rglob("*")] == ["temporary"]
    # its children went with it, iree-compile's linker too
    deadline = time.monotonic() + 10
    while alive(process.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert alive(process.pid) == []
