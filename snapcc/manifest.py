"""``manifest.json``: what an artifact is, enough to run it, to verify it and to say how it was made."""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from snapcc.compiler.dialect.policy import Policy
from snapcc.runtime.engine import FunctionSpec, ProgramSpec, StateSpec, TensorSpec
from snapcc.runtime.iree_compile import Device

SCHEMA_VERSION = 3
"""Raised by one whenever an older snapcc could not read a new manifest, or a newer one an old manifest."""

FILE = "manifest.json"

ELEMENTS = frozenset({"f32", "i32", "bf16", "f16", "i64", "i8", "i1"})
"""The element types of a program's tensors by MLIR's names."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class File(_Part):
    """A file and how to know that it is still the same.

    ``path`` is relative to the artifact's folder, or absolute for a file that belongs to the model.
    """

    path: str
    bytes: int
    sha256: str


class Cache(_Part):
    """A cache of the user's program: the state that stands for it, and the axis that is now its slots."""

    name: str
    axis: int
    input: int = Field(description="its place among the exported program's inputs, weights left out")
    output: int = Field(description="its place among the exported program's outputs")


class State(_Part):
    """What the user's program carries beside its caches: a state of the same name, with its rows first."""

    name: str
    input: int = Field(description="its place among the exported program's inputs, weights left out")
    output: int = Field(description="its place among the exported program's outputs")


class Inputs(_Part):
    """Which inputs and outputs of the exported program are what; None where it has no such input.

    They count as ``snapcc.runtime.reference.ProgramInputs`` says; ``counters`` hold the number of past tokens.
    """

    tokens: int
    positions: int | None
    causal_mask: int | None
    logits: int
    caches: tuple[Cache, ...]
    counters: tuple[int, ...] = ()
    states: tuple[State, ...] = ()


class Manifest(_Part):
    """The whole of ``manifest.json``.

    Attributes:
        schema_version: of this file's form.
        snapcc: the version that made the artifact.
        tools: the versions of what it used, by package.
        model: where the model came from.
        phases: the files of the phases, by phase, as far as they were kept.
        target: what was planned for: ``sn40l``, or ``host`` where nothing was.
        device: what the program is compiled for, and ``cpu`` the processor where that is ``cpu``.
        dtype: the weights' element type by MLIR's name, ``f32``, ``bf16`` or ``f16``.
        kv: the preset that the policy was made from.
        policy: the slots and the selection.
        batch: B.
        vocabulary: V.
        max_positions: no position may reach it.
        end_of_sequence: the tokens that end a sequence.
        functions: the compiled functions, by name.
        inputs: the inputs of the exported program in ``program.pt2``.
        weights: the safetensors files that hold the weights between them.
        parameters: the name of each parameter, buffer and constant of the exported program, and its tensor's name in
            those files; several of the former may share one of the latter.
        tokenizer: a folder with a tokenizer, if there is one.
        plan: the file of the SN40L plan, if there is one.
        files: every other file of the artifact.
    """

    schema_version: int = SCHEMA_VERSION
    snapcc: str
    tools: dict[str, str]
    model: str
    phases: dict[str, str]
    target: str
    device: Device
    cpu: str | None
    dtype: str
    kv: str
    policy: Policy
    batch: int = Field(ge=1)
    vocabulary: int = Field(ge=1)
    max_positions: int = Field(ge=1)
    end_of_sequence: tuple[int, ...]
    functions: dict[str, FunctionSpec]
    inputs: Inputs
    weights: tuple[File, ...]
    parameters: dict[str, str]
    tokenizer: str | None
    plan: str | None
    files: tuple[File, ...]

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        """What each entry says by itself is checked by its type; here, what they say of one another."""
        for name in ("decode", "reset"):
            if name not in self.functions:
                raise ValueError(f"there is no function {name}")
        named = {file.path for file in self.files}
        for name, function in self.functions.items():
            if function.module not in named:
                raise ValueError(f"function {name} is in {function.module}, which is not among the files")
            tensors: list[TensorSpec | StateSpec] = [*function.arguments, *function.results, *function.states]
            for tensor in tensors:
                if tensor.dtype not in ELEMENTS or min(tensor.shape, default=1) < 1:
                    raise ValueError(f"function {name} has a tensor {tensor.name} of {tensor.shape} {tensor.dtype}")
        states = {state.name: state for function in self.functions.values() for state in function.states}
        for cache in self.inputs.caches:
            # a stack of caches is a state for each, named as one indexes it, and of fewer dimensions
            own = [n for n in states if n == cache.name or n.startswith(f"{cache.name}[")]
            if not own or (cache.name in states and not 0 <= cache.axis < len(states[cache.name].shape)):
                raise ValueError(f"no function has a state {cache.name} with an axis {cache.axis}")
        for state in self.inputs.states:
            if state.name not in states:
                raise ValueError(f"no function has a state {state.name}")
        return self

    def program(self) -> ProgramSpec:
        """What the engine needs to know."""
        return ProgramSpec(self.functions, self.batch, self.vocabulary, self.max_positions, self.device)
