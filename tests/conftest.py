"""What every test has: one thread for PyTorch, the package found, and the modules beside this file importable."""

import hashlib
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

# found before this folder, which has one of the same name, is searched
import snapcc  # noqa: F401
from snapcc.runtime import iree_compile

sys.path.append(str(Path(__file__).parent))
torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def compiled_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """iree-compile runs once for one text under one set of flags: the workers of a test run share what it made.

    A module of another text, other flags or another tool is compiled, and so is all of it in the next run. A failure
    is not kept, and neither is what commands compile in processes of their own.
    """
    own = tmp_path_factory.getbasetemp()
    shared = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "compiled"
    shared.mkdir(exist_ok=True)
    run = iree_compile._run

    def run_once(source: bytes, name: str, arguments: Sequence[str]) -> str:
        *flags, at, output = arguments
        if at != "-o" or not output.endswith(".vmfb"):
            return run(source, name, arguments)
        key = hashlib.sha256(repr((source, iree_compile.command(name, flags))).encode()).hexdigest()
        kept = shared / f"{key}.vmfb"
        if kept.exists():
            shutil.copyfile(kept, output)
            return ""
        written = run(source, name, arguments)
        part = kept.with_suffix(f".{os.getpid()}")
        shutil.copyfile(output, part)
        part.rename(kept)
        return written

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(iree_compile, "_run", run_once)
        yield
