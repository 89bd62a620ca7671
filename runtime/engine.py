"""A compiled program on a device: weights and caches held, functions called on NumPy arrays."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .iree_compile import Device

SCOPE = "model"
"""The parameter scope in which compiled modules look for the weights."""

_DRIVERS: dict[Device, str] = {"cpu": "local-task", "vulkan": "vulkan", "cuda": "cuda"}


class InputError(ValueError):
    """An argument that the program cannot take."""


class PromptError(InputError):
    """A prompt that is empty, or longer than the program can hold."""


class TokenError(InputError):
    """A token outside the vocabulary."""


class RowError(InputError):
    """A row outside the batch."""


class PositionError(InputError):
    """A position that the model or the program does not have."""


class ShapeError(InputError):
    """An array of a wrong shape or type."""


@dataclass(frozen=True)
class TensorSpec:
    """A tensor that a function takes or gives: ``dtype`` is MLIR's name, ``i64`` or ``bf16``."""

    shape: tuple[int, ...]
    dtype: str
    name: str = ""
    role: str = ""


@dataclass(frozen=True)
class StateSpec:
    """A buffer that stays from call to call; ``stored`` where the function writes it."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    stored: bool = True

    @property
    def bytes(self) -> int:
        """The size of the buffer."""
        return math.prod(self.shape) * int(_numpy(self.dtype).itemsize)


@dataclass(frozen=True)
class FunctionSpec:
    """A compiled function: it takes ``arguments``, then ``states``, and writes these in place.

    Attributes:
        module: the .vmfb file that holds it, without its folder.
        arguments: what a call passes.
        results: what a call gives back, before the states that it writes.
        states: the states' buffers, in the order in which the function takes them.
    """

    module: str
    arguments: tuple[TensorSpec, ...]
    results: tuple[TensorSpec, ...]
    states: tuple[StateSpec, ...]


@dataclass(frozen=True)
class ProgramSpec:
    """All that calling a program needs to know.

    Attributes:
        functions: by name: ``decode``, ``reset``, ``prefill_<N>`` per compiled prompt length N and ``extend_<N>`` per
            compiled length of extend.
        batch: B, the number of rows.
        vocabulary: V.
        max_positions: every position lies below it.
        device: what the modules are compiled for.
    """

    functions: Mapping[str, FunctionSpec]
    batch: int
    vocabulary: int
    max_positions: int
    device: Device

    @cached_property
    def prompts(self) -> tuple[int, ...]:
        """The compiled prompt lengths, ascending; none for a program that only decodes."""
        return self._lengths("prefill_")

    @cached_property
    def extends(self) -> tuple[int, ...]:
        """The compiled lengths of extend, ascending; none for a program that extends through decode."""
        return self._lengths("extend_")

    def _lengths(self, prefix: str) -> tuple[int, ...]:
        return tuple(sorted(int(name.removeprefix(prefix)) for name in self.functions if name.startswith(prefix)))

    @cached_property
    def states(self) -> dict[str, StateSpec]:
        """Every state of the program, by name."""
        return {state.name: state for function in self.functions.values() for state in function.states}


class Program:
    """A program ready to run; all rows are empty at first.

    The caches, and what the program carries beside them, are buffers of the device that this object owns and hands to
    every call: the modules update them in place and share them. Each row is reset once, so that no slot ever holds a
    NaN and what is carried starts as the model has it.

    Args:
        folder: where the .vmfb files are.
        weights: safetensors files that hold the weights between them, mapped into memory.
        spec: the program's functions and bounds.

    Raises:
        FileNotFoundError: a file is missing.
        RuntimeError: IREE has no such device here, or a module does not load.
    """

    def __init__(self, folder: Path, weights: Sequence[Path], spec: ProgramSpec) -> None:
        import iree.runtime as iree

        self.spec = spec
        for path in [*weights, *(folder / function.module for function in spec.functions.values())]:
            if not path.is_file():
                raise FileNotFoundError(f"{path} is missing")
        self._iree = iree
        self._config = _configure(spec.device)
        self._device = self._config.device
        index = iree.ParameterIndex()
        for path in weights:
            index.load(str(path))
        provider = index.create_provider(scope=SCOPE)
        contexts = {name: self._load(folder / name, provider) for name in {f.module for f in spec.functions.values()}}
        self._functions = {name: contexts[function.module][name] for name, function in spec.functions.items()}
        self._states = {name: self._buffer(state) for name, state in spec.states.items()}
        for row in range(spec.batch):
            self.reset(row)

    def reset(self, row: int) -> None:
        """Empties a row: what it holds is what a new sequence starts with.

        Raises:
            RowError: there is no such row.
        """
        self._call("reset", self._row(row))

    def prefill(self, tokens: ArrayLike, row: int) -> NDArray[np.float32]:
        """Replaces what a row holds by a prompt.

        Args:
            tokens: [L] integers, from position 0 on; compiled lengths are padded to.
            row: which row.

        Returns:
            [V] f32, the logits of the prompt's last token.

        Raises:
            PromptError: no tokens, or more than the longest compiled length.
            TokenError: a token is not in the vocabulary.
            RowError: there is no such row.
        """
        prompt, target = self._tokens(tokens, "a prompt", rank=1), self._row(row)
        if prompt.size == 0:
            raise PromptError("the prompt is empty: it needs at least one token")
        if not self.spec.prompts:
            self._positions(np.array([prompt.size - 1]))
            self.reset(row)
            return self._one_by_one(prompt, row, 0)
        length = next((n for n in self.spec.prompts if n >= prompt.size), None)
        if length is None:
            raise PromptError(
                f"the prompt has {prompt.size} tokens and the longest compiled length is {self.spec.prompts[-1]}; "
                f"compile with a longer one (--prompt), or let extend take the rest behind a first part, from which "
                f"alone tokens are then selected"
            )
        (logits,) = self._call(f"prefill_{length}", *_padded(prompt, length), target)
        return logits.reshape(-1)

    def extend(self, tokens: ArrayLike, row: int, start: int) -> NDArray[np.float32]:
        """More tokens of a row, exactly as decoding them one at a time: a chat's next turn.

        As many as a compiled length takes go in one call, padded to it; a program without one takes them one by one
        through decode.

        Args:
            tokens: [L] integers.
            row: which row.
            start: the first token's index in the row's sequence: how many tokens the row has had.

        Returns:
            [V] f32, the logits of the last token.

        Raises:
            PromptError: no tokens.
            TokenError: a token is not in the vocabulary.
            RowError: there is no such row.
            PositionError: a position is negative or beyond the model's last.
        """
        more, target = self._tokens(tokens, "more tokens", rank=1), self._row(row)
        if more.size == 0:
            raise PromptError("there are no more tokens: extend needs at least one")
        self._positions(np.array([start, start + more.size - 1]))
        if not self.spec.extends:
            return self._one_by_one(more, row, start)
        done = 0
        while done < more.size:
            length = next((n for n in self.spec.extends if n >= more.size - done), self.spec.extends[-1])
            part = more[done : done + length]
            at = np.array(start + done, np.int64)
            (logits,) = self._call(f"extend_{length}", *_padded(part, length), target, at)
            done += part.size
        return logits.reshape(-1)

    def decode(self, tokens: ArrayLike, positions: ArrayLike, active: ArrayLike | None = None) -> NDArray[np.float32]:
        """One token more for each active row.

        Args:
            tokens: [B] integers.
            positions: [B] integers, each token's index in its row's sequence.
            active: [B] bools; a row that is not active keeps what it holds, and its logits mean nothing. None: all are.

        Returns:
            [B, V] f32 logits.

        Raises:
            ShapeError: an argument is not of shape [B].
            TokenError: an active row's token is not in the vocabulary.
            PositionError: an active row's position is negative or beyond the model's last.
        """
        batch = self.spec.batch
        chosen = np.ones(batch, np.bool_) if active is None else np.asarray(active)
        if chosen.dtype != np.bool_:
            raise ShapeError(f"active must hold bools, got {chosen.dtype}")
        arrays = {"tokens": _integers(tokens, "tokens"), "positions": _integers(positions, "positions")}
        for name, array in [*arrays.items(), ("active", chosen)]:
            if array.shape != (batch,):
                raise ShapeError(f"{name} must have shape [{batch}], one entry per row, got {list(array.shape)}")
        # a row that is not active may hold anything: it must not be what an embedding table is indexed with
        masked = {name: np.where(chosen, array, 0) for name, array in arrays.items()}
        self._tokens(masked["tokens"], "tokens", rank=1)
        self._positions(masked["positions"])
        (logits,) = self._call("decode", masked["tokens"], masked["positions"], chosen.astype(np.int8))
        return logits

    def _one_by_one(self, more: NDArray[np.int64], row: int, start: int) -> NDArray[np.float32]:
        """Tokens of one row through decode: nothing is selected. The last one's logits."""
        tokens, positions, active = (np.zeros(self.spec.batch, t) for t in (np.int64, np.int64, np.bool_))
        active[row] = True
        for position, token in enumerate(more, start):
            tokens[row], positions[row] = token, position
            logits: NDArray[np.float32] = self.decode(tokens, positions, active)[row]
        return logits

    def _row(self, row: int) -> NDArray[np.int64]:
        if not 0 <= row < self.spec.batch:
            raise RowError(f"there is no row {row}: the program has rows 0 to {self.spec.batch - 1}")
        return np.array(row, np.int64)

    def _tokens(self, tokens: ArrayLike, what: str, rank: int) -> NDArray[np.int64]:
        array = _integers(tokens, what)
        if array.ndim != rank:
            raise ShapeError(f"{what} must have rank {rank}, got shape {list(array.shape)}")
        wrong = array[(array < 0) | (array >= self.spec.vocabulary)]
        if wrong.size:
            raise TokenError(f"token {wrong[0]} is not in the vocabulary of {self.spec.vocabulary} tokens")
        return array

    def _positions(self, positions: NDArray[np.int64]) -> None:
        if positions.min() < 0:
            raise PositionError(f"position {positions.min()} is negative")
        limit = self.spec.max_positions
        if positions.max() >= limit:
            raise PositionError(f"position {positions.max()} is beyond the model's last, {limit - 1}")

    def _load(self, path: Path, provider: Any) -> Any:
        vm = self._config.vm_instance
        parameters = self._iree.create_io_parameters_module(vm, provider)
        module = self._iree.VmModule.mmap(vm, str(path))
        return self._iree.load_vm_modules(parameters, module, config=self._config)[-1]

    def _buffer(self, state: StateSpec) -> Any:
        return self._iree.asdevicearray(self._device, np.zeros(state.shape, _numpy(state.dtype)))

    def _call(self, name: str, *arguments: NDArray[Any]) -> list[NDArray[np.float32]]:
        """Calls a function on its arguments and its states; gives its own results, as f32 copies on the host."""
        iree, spec = self._iree, self.spec.functions[name]
        inputs = [iree.asdevicearray(self._device, a) for a in arguments]
        inputs += [self._states[state.name] for state in spec.states]
        passed = iree.VmVariantList(len(inputs))
        for array in inputs:
            passed.push_ref(array._buffer_view)
        count = len(spec.results) + sum(state.stored for state in spec.states)
        given = iree.VmVariantList(count)
        function = self._functions[name]
        function._vm_context.invoke(function.vm_function, passed, given)
        views = [given.get_as_object(i, iree.HalBufferView) for i in range(len(spec.results))]
        # the host's array may be a view of device memory that the next call writes: copy
        return [
            np.array(iree.DeviceArray(self._device, view, implicit_host_transfer=True).to_host(), np.float32)
            for view in views
        ]


def _configure(device: Device) -> Any:
    import iree.runtime as iree

    try:
        return iree.Config(_DRIVERS[device])
    except Exception as error:
        raise RuntimeError(f"IREE finds no {device} device on this machine: {error}") from error


def _padded(tokens: NDArray[np.int64], length: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Tokens [L] on the left of [1, length], and L."""
    padded = np.zeros((1, length), np.int64)
    padded[0, : tokens.size] = tokens
    return padded, np.array(tokens.size, np.int64)


def _integers(values: ArrayLike, what: str) -> NDArray[np.int64]:
    array = np.asarray(values)
    if array.size and not np.issubdtype(array.dtype, np.integer):
        raise ShapeError(f"{what} must hold integers, got {array.dtype}")
    return array.astype(np.int64)


def _numpy(dtype: str) -> Any:
    """NumPy's type for an MLIR element type."""
    import ml_dtypes

    kinds = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16, "i64": np.int64, "i32": np.int32}
    return np.dtype(kinds[dtype])
