"""What ``snapcc MODEL`` can be asked to do. Light to import: the command line's help needs it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from snapcc.runtime.iree_compile import Device

from .defaults import Wishes

if TYPE_CHECKING:
    from snapcc.compiler.passes.manager import Instrumentation

Phase = Literal["fx", "torch", "kv", "static", "linalg", "sn40l", "iree"]
PHASES: tuple[Phase, ...] = get_args(Phase)
FILES: dict[Phase, str] = {
    phase: f"{number:02d}-{phase}.{'txt' if phase == 'fx' else 'mlir'}" for number, phase in enumerate(PHASES)
}
"""The name of each phase's file."""

Target = Literal["sn40l", "host"]
Dtype = Literal["checkpoint", "f32", "bf16", "f16"]


@dataclass(frozen=True)
class Options:
    """What ``snapcc MODEL`` was asked to do; None where the compiler chooses.

    Attributes:
        output: the artifact; by default MODEL's name with ``.snapcc``, in the current folder. With ``compile_to``,
            the phase's file, and standard output by default.
        target: ``sn40l`` plans for a dataflow machine, ``host`` plans nothing.
        machine: the machine that is planned for: the name of one that comes with snapcc, or a TOML file.
        tile: IREE runs the program cut into the plan's tiles, not as the linalg phase has it.
        wishes: about the cache.
        absorb: attention runs on latent caches, not on what they are expanded to, where that takes fewer operations.
        batch: B; by default the program's own where it has one, else 1.
        prompts: the prompt lengths to compile.
        extends: the lengths to compile extend for; none in an empty tuple.
        dtype: the weights' type.
        device: what IREE compiles for, and ``cpu`` the processor where that is ``cpu``.
        inputs: the names of the program's tokens and positions, where their use does not tell them.
        causal_masks: mask inputs that are plainly causal.
        trust_pickle: read a pickled model, which runs whatever code its file says.
        compile_to: the phase to stop at.
        dump_to: a folder for each phase's file.
        reproducers: the folder for what repeats a failure of the compiler, see ``snapcc.reproducer``.
        instrumentation: MLIR's printing and timing.
    """

    output: Path | None = None
    target: Target = "sn40l"
    machine: str = "sn40l"
    tile: bool = False
    wishes: Wishes = field(default_factory=Wishes)
    absorb: bool = True
    batch: int | None = None
    prompts: tuple[int, ...] | None = None
    extends: tuple[int, ...] | None = None
    dtype: Dtype = "checkpoint"
    device: Device = "cpu"
    cpu: str = "host"
    inputs: dict[str, str] = field(default_factory=dict)
    causal_masks: tuple[str, ...] = ()
    trust_pickle: bool = False
    compile_to: Phase | None = None
    dump_to: Path | None = None
    reproducers: Path = Path()
    instrumentation: Instrumentation | None = None
