"""iree-compile in a process of its own: its crash is our error message, not our crash."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

Device = Literal["cpu", "vulkan", "cuda"]

_TARGETS: dict[Device, tuple[str, ...]] = {
    "cpu": ("--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=llvm-cpu"),
    "vulkan": ("--iree-hal-target-device=vulkan",),
    # sm_90 is unknown to this release of IREE; newer GPUs run sm_80's PTX
    "cuda": ("--iree-hal-target-device=cuda", "--iree-cuda-target=sm_80"),
}
_LAST_LINES = 12
_LINE_LENGTH = 400


class IreeCompileError(RuntimeError):
    """iree-compile refused a module or crashed; the message says on which and why."""


def target_flags(device: Device, cpu: str = "host") -> tuple[str, ...]:
    """iree-compile's flags for a device.

    Args:
        device: where the program will run.
        cpu: the processor that ``device="cpu"`` compiles for: ``host`` is this machine's own, ``generic`` runs on
            any of its architecture, other names are LLVM's.
    """
    return (*_TARGETS[device], f"--iree-llvmcpu-target-cpu={cpu}") if device == "cpu" else _TARGETS[device]


def compile_module(source: bytes, output: Path, flags: Sequence[str]) -> None:
    """Compiles a module.

    Args:
        source: MLIR, as text or bytecode.
        output: the .vmfb to write.
        flags: the target's flags and any others.

    Raises:
        IreeCompileError: iree-compile failed.
    """
    _run(source, output.stem, [*flags, "-o", str(output.resolve())])


def command(module: str, arguments: Sequence[str]) -> list[str]:
    """The command line of iree-compile on a file."""
    return [_tool(), module, *arguments]


def stream_ir(source: bytes, flags: Sequence[str]) -> str:
    """The module's stream-dialect IR once its storage is allocated: every copy, temporary and dispatch with its bytes.

    Raises:
        IreeCompileError: iree-compile failed.
    """
    return _run(
        source,
        "stream",
        [*flags, "--compile-to=stream", "--mlir-print-ir-after=iree-stream-schedule-allocation", "-o", "/dev/null"],
    )


def _run(source: bytes, name: str, arguments: Sequence[str]) -> str:
    """What iree-compile wrote to standard error."""
    folder = Path(tempfile.mkdtemp(prefix="snapcc-iree-"))
    module = folder / f"{name}.mlir"
    module.write_bytes(source)
    try:
        with subprocess.Popen(
            command(str(module), arguments),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            process_group=0,
        ) as process:
            try:
                _, output = process.communicate()
            except BaseException:
                # with what it started in its turn, such as its linker
                os.killpg(process.pid, signal.SIGKILL)
                raise
    finally:
        shutil.rmtree(folder)
    if process.returncode != 0:
        raise IreeCompileError(_message(name, process.returncode, output))
    return output


def _tool() -> str:
    from iree.compiler.tools.binaries import find_tool

    return str(find_tool("iree-compile"))


def _message(name: str, status: int, output: str) -> str:
    how = f"crashed ({signal.Signals(-status).name})" if status < 0 else f"failed with exit status {status}"
    lines = [line[:_LINE_LENGTH] for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if "error:" in line][:_LAST_LINES]
    shown = errors or lines[-_LAST_LINES:] or ["(it wrote nothing to standard error)"]
    return "\n".join([f"iree-compile {how} on the module {name}", *(f"  {line}" for line in shown)])
