"""From a model to an artifact: import, passes by phase, plan, IREE, weights, manifest."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snapcc.compiler.dialect.policy import Policy
from snapcc.runtime.engine import FunctionSpec, StateSpec, TensorSpec

from .arguments import UsageError
from .defaults import choose_extends, choose_policy, choose_prompts
from .options import Options, Phase
from .phase_file import PhaseFile
from .progress import Progress
from .reproducer import INPUT_PROGRAM, Reproducer, importing, on_failure, optimizer

if TYPE_CHECKING:
    from torch_mlir import ir

    from snapcc.compiler.analysis.evaluate import Weights
    from snapcc.compiler.passes.manager import Step
    from snapcc.frontend import Decoder
    from snapcc.frontend.lengths import Range
    from snapcc.sn40l_target.machine import Machine
    from snapcc.sn40l_target.schema import Plan

_DECODE = "decode"
_EXTEND = "extend_"
_RESET = "reset"


@dataclass(frozen=True)
class Choice:
    """What a decoder is compiled for.

    Attributes:
        policy: the slots and what fills them.
        batch: the rows.
        prompts: the prompt lengths, none where there is no prefill.
        extends: the lengths of extend, none where it goes through decode.
        max_positions: no position may reach it: the model's context, or how far its masks are looked at.
    """

    policy: Policy
    batch: int
    prompts: tuple[int, ...]
    extends: tuple[int, ...]
    max_positions: int

    @property
    def probe_past(self) -> int:
        """The second past length to look at decode at: the last position's, or next to it where that is the first."""
        last = self.max_positions - 1
        if last != self.policy.slots - 1:
            return last
        return last - 1 if last > 1 else last + 1


def choose(decoder: Decoder, options: Options, progress: Progress) -> Choice:
    """The policy and the prompt lengths for a decoder; says what was chosen.

    Raises:
        UsageError: wishes that do not fit one another or the model.
    """
    from snapcc.compiler.passes.pipelines import probe_past

    batch = _choose_batch(options.batch, decoder.batch)
    past, context = decoder.past, decoder.max_positions
    fixed = past.lower if past.lower == past.upper else None
    policy, said = choose_policy(options.wishes, context, fixed, decoder.prefill_refusal is not None)
    progress.note(said)
    # a full cache drops nothing, so that no position may come after its last slot's
    bound = policy.slots if options.wishes.preset.span == "context" else probe_past(policy.slots, context) + 1
    if decoder.prefill_refusal is not None:
        if options.prompts:
            raise UsageError(f"--prompt was given, but the program has no prefill: {decoder.prefill_refusal}")
        if options.extends:
            raise UsageError(f"--extend was given, but the program decodes only: {decoder.prefill_refusal}")
        progress.note(f"decode only, a prompt goes through it token by token: {decoder.prefill_refusal}")
        progress.note(f"batch {batch}")
        return Choice(policy, batch, (), (), bound)
    refusal = decoder.extend_refusal
    if refusal is not None and options.extends:
        raise UsageError(f"--extend was given, but tokens go through decode: {refusal}")
    longest = bound if decoder.query.upper is None else min(bound, decoder.query.upper)
    prompts = choose_prompts(options.prompts, policy.slots, longest)
    room = bound - policy.slots if options.wishes.preset.order == "ring" and policy.slots in past else 0
    room = room if refusal is None else 0
    extends = choose_extends(options.extends, prompts, min(longest, room))
    said = f"up to {', '.join(map(str, extends))} tokens at once" if extends else "through decode"
    progress.note(f"prompts of up to {', '.join(map(str, prompts))} tokens; extend {said}; batch {batch}")
    return Choice(policy, batch, prompts, extends, bound)


def _choose_batch(asked: int | None, allowed: Range) -> int:
    """The rows: what was asked for, else the program's own number where it has one, else the least it takes."""
    if asked is None:
        return max(allowed.lower, 1)
    if allowed.is_fixed and asked != allowed.lower:
        raise UsageError(
            f"the program was exported for {allowed} rows, and --batch {asked} was asked for: leave --batch out, or "
            "export the program with a dynamic batch"
        )
    return asked


class Lowering:
    """A program on its way through the phases.

    Attributes:
        text: the phase last reached, as its file has it.
        functions: the compiled functions, from the linalg phase on.
        plan: the SN40L plan, from the sn40l phase on where that is the target.
        graph: the planned program for Model Explorer, where there is a plan.
        modules: MLIR for IREE by the name of its module, from the iree phase on.
    """

    def __init__(self, machine: Machine | None, options: Options, progress: Progress) -> None:
        self.text = ""
        self.functions: dict[str, FunctionSpec] = {}
        self.plan: Plan | None = None
        self.graph = ""
        self.modules: dict[str, bytes] = {}
        self._machine = machine
        self._options = options
        self._progress = progress
        # the module's own text, where ``text`` may be that of the annotated one
        self._source = ""

    def phases(self, decoder: Decoder, choice: Choice) -> Iterator[Phase]:
        """Works phase by phase; ``text`` is that of the phase given, until the next is asked for.

        Raises:
            FrontendError, Refusal, ir.MLIRError: the program cannot be rewritten.
            ProgramError, PlacementError: it cannot be planned.
        """
        self.text = f"{decoder.program}\n"
        yield "fx"
        module = self._imported(decoder, choice)
        yield "torch"
        module = self._raised(module, decoder, choice)
        if self._drops(choice.extends):
            self._drop_extends(module, choice.policy)
        yield "kv"
        yield from self._from_kv(module, choice.policy, choice.batch)

    def phases_after(self, file: PhaseFile) -> Iterator[Phase]:
        """``phases``, from a file's next one on. No weights are at hand: a mask made of a buffer is refused.

        Raises:
            UsageError: wishes that do not fit one another or the program.
            Refusal, ir.MLIRError, ProgramError, PlacementError: as for ``phases``.
        """
        from snapcc.compiler.analysis.evaluate import no_weights
        from snapcc.compiler.passes.raise_attention import RaiseAttention
        from snapcc.sn40l_target.plan import erase

        module = file.module
        if file.phase == "sn40l":
            # IREE runs the program without the plan's attributes
            erase(module)
        self._show(module)
        if file.phase == "torch":
            self._raise(module, no_weights, RaiseAttention.max_positions)
            yield "kv"
        if file.phase in ("torch", "kv"):
            rows, slots = file.rows_and_slots()
            if self._options.batch not in (None, rows):
                raise UsageError(f"--batch {self._options.batch} was asked for, and {file.path} is of {rows} rows")
            policy, said = choose_policy(self._options.wishes, None, slots - 1, not file.has_prefill())
            self._progress.note(said)
            yield from self._from_kv(module, policy, rows)
            return
        if file.phase == "static":
            yield from self._from_static(module)
            return
        self.functions = _functions(module)
        if file.phase == "linalg":
            yield from self._planned(module)
        yield from self._to_iree(module)

    def _from_kv(self, module: ir.Module, policy: Policy, rows: int) -> Iterator[Phase]:
        from snapcc.compiler.passes import pipelines

        order = self._options.wishes.preset.order
        self._run(module, "static", "giving them slots", pipelines.apply_policy(policy, rows, order))
        yield "static"
        yield from self._from_static(module)

    def _from_static(self, module: ir.Module) -> Iterator[Phase]:
        from snapcc.compiler.passes import pipelines

        self._run(module, "linalg", "lowering to linalg", pipelines.lower_to_linalg())
        self.functions = _functions(module)
        yield "linalg"
        yield from self._planned(module)
        yield from self._to_iree(module)

    def _planned(self, module: ir.Module) -> Iterator[Phase]:
        if self._machine is not None:
            from snapcc.sn40l_target.explorer import explorer_json

            plan = self._plan(module, self._machine)
            yield "sn40l"
            # for who goes on to an artifact, and while the module is still the one that was planned
            self.graph = explorer_json(module, plan)

    def _to_iree(self, module: ir.Module) -> Iterator[Phase]:
        from snapcc.compiler.passes import pipelines
        from snapcc.compiler.passes.lower_split import split

        if self._options.tile:
            self._tile(module)
        self._run(module, "iree", "lowering to IREE's dialects", pipelines.lower_to_iree())
        groups: dict[str, list[str]] = {}
        for name, function in self.functions.items():
            groups.setdefault(Path(function.module).stem, []).append(name)
        parts = split(module, groups).items()
        self.modules = {f"{name}.vmfb": part.operation.get_asm(enable_debug_info=True).encode() for name, part in parts}
        yield "iree"

    def _tile(self, module: ir.Module) -> None:
        from snapcc.sn40l_target.tile import tile

        if self.plan is None:
            raise UsageError(
                "--tile takes the tiles of a plan, and a file of the phase sn40l is not planned again: give "
                "it a file of the phase linalg"
            )
        with self._progress.step("cutting loops into tiles"):
            tile(module, self.plan.sections)
            self._show(module)

    def _imported(self, decoder: Decoder, choice: Choice) -> ir.Module:
        """The torch phase; without extend where nobody asked for it and the program cannot take such lengths."""
        from snapcc.compiler.passes.manager import new_context
        from snapcc.frontend import FrontendError, import_functions

        wanted, extends = _lengths(decoder, choice)
        refused = None
        with (
            self._progress.step(f"importing {', '.join(wanted | extends)}"),
            on_failure(self._import_reproducer(decoder, choice), (FrontendError,)),
        ):
            programs = [(name, decoder.specialise(*lengths)) for name, lengths in wanted.items()]
            try:
                programs += [(name, decoder.specialise(*lengths)) for name, lengths in extends.items()]
            except FrontendError as error:
                if not self._drops(choice.extends):
                    raise
                refused = error
                programs = programs[: len(wanted)]
            module = import_functions(new_context(), programs, decoder)
            self._show(module)
        if refused is not None:
            self._progress.note(f"extend goes through decode, token by token: {refused}")
        return module

    def _import_reproducer(self, decoder: Decoder, choice: Choice) -> Reproducer:
        from .contents import blank_program

        by_role = [(str(i.role), i.name) for i in decoder.inputs]
        policy = choice.policy
        sizes = {
            "target": "host",
            "batch": choice.batch,
            "sink": policy.sink,
            "recent": policy.recent,
            "topk": policy.topk,
            "obs-window": policy.window,
            "extend": _listed(choice.extends) or 0,
        } | ({"prompt": _listed(choice.prompts)} if choice.prompts else {})
        command = importing(
            {role: name for role, name in by_role if role in ("tokens", "positions")},
            [name for role, name in by_role if role == "causal_mask"],
            sizes,
        )
        return Reproducer(self._options.reproducers, "torch", lambda: blank_program(decoder), command, INPUT_PROGRAM)

    def _drops(self, extends: Sequence[int]) -> bool:
        """Whether there is an extend that nobody asked for."""
        return bool(extends) and self._options.extends is None

    def _drop_extends(self, module: ir.Module, policy: Policy) -> None:
        """Leaves extend out where an attention must know the positions in its slots, which extend cannot tell it."""
        from snapcc.compiler.analysis.functions import body
        from snapcc.compiler.passes.over_slots import looks_at_positions

        found = _extends(module)
        operations = [view.operation for function in found for view in body(function).operations]
        if any(op.name == "kv.attention" and looks_at_positions(op, policy) for op in operations):
            for function in found:
                function.erase()
            self._show(module)
            self._progress.note(
                "extend goes through decode, token by token: the model looks at the position of each key"
            )

    def _raised(self, module: ir.Module, decoder: Decoder, choice: Choice) -> ir.Module:
        """The kv phase; without extend where nobody asked for it and the program does not allow it."""
        from torch_mlir import ir

        from snapcc.compiler.diagnostics import Refusal

        weights, imported = decoder.weights(), self._source
        try:
            self._raise(module, weights.get, choice.max_positions)
        except Refusal as refusal:
            if not self._drops(choice.extends):
                raise
            with module.context:
                module = ir.Module.parse(imported)
            for function in _extends(module):
                function.erase()
            self._show(module)
            # refuses again where it is not extend that the program does not allow
            self._raise(module, weights.get, choice.max_positions)
            self._progress.note(f"extend goes through decode, token by token: {refusal}")
        return module

    def _raise(self, module: ir.Module, weights: Weights, max_positions: int) -> None:
        from snapcc.compiler.diagnostics import Remark
        from snapcc.compiler.passes import pipelines

        remarks: list[Remark] = []
        steps = pipelines.raise_to_kv(weights, max_positions, self._options.absorb, remarks.append)
        self._run(module, "kv", "finding the caches", steps)
        # layers are alike
        for text in dict.fromkeys(remark.text for remark in remarks):
            self._progress.note(text)

    def _run(self, module: ir.Module, phase: Phase, doing: str, steps: list[Step]) -> None:
        from snapcc.compiler.diagnostics import Refusal
        from snapcc.compiler.passes import manager

        command = optimizer(manager.pipeline_text(steps))
        with self._progress.step(doing), self._reproducible(phase, command, Refusal):
            manager.run(module, steps, self._options.instrumentation)
            self._show(module)

    def _show(self, module: ir.Module) -> None:
        self.text = self._source = module.operation.get_asm(enable_debug_info=True)

    def _reproducible(
        self, phase: Phase, command: list[str], *expected: type[Exception]
    ) -> contextlib.AbstractContextManager[None]:
        return on_failure(Reproducer(self._options.reproducers, phase, self._source.encode(), command), expected)

    def _plan(self, module: ir.Module, machine: Machine) -> Plan:
        from torch_mlir import ir

        from snapcc.compiler.passes import manager
        from snapcc.sn40l_target.errors import PlacementError
        from snapcc.sn40l_target.plan import Sn40lPlan, annotate, checked_plan

        named = Path(self._options.machine)
        command = optimizer(manager.pipeline_text([Sn40lPlan(str(named.resolve() if named.is_file() else named))]))
        with (
            self._progress.step(f"planning for {machine.name}"),
            self._reproducible("sn40l", command, PlacementError),
        ):
            self.plan = made = checked_plan(module, machine)
            with module.context:
                # IREE runs the program without the plan's attributes
                annotated = ir.Module.parse(self._source)
            annotate(annotated, made)
            self.text = annotated.operation.get_asm(enable_debug_info=True)
        return made


_Lengths = dict[str, tuple[int, int, int]]
"""Rows, query tokens and past tokens of each function, by its name."""


def _lengths(decoder: Decoder, choice: Choice) -> tuple[_Lengths, _Lengths]:
    """What decode and prefill are specialised at, and what extend is, each with its probe."""
    from snapcc.compiler.analysis.functions import PROBE

    slots, bound = choice.policy.slots, choice.max_positions
    wanted = {_DECODE: (choice.batch, 1, slots - 1)}
    if not decoder.past.is_fixed:
        wanted[f"{_DECODE}{PROBE}"] = (choice.batch, 1, choice.probe_past)
        if not choice.prompts:
            # one position alone may see the same as a window and as a chunk, which the queries of a prompt tell apart
            wanted[f"{_DECODE}_before{PROBE}"] = (choice.batch, 1, choice.probe_past - 1)
    wanted |= {f"prefill_{length}": (1, length, 0) for length in choice.prompts}
    extends: _Lengths = {}
    for length in choice.extends:
        # the longest past that leaves room, so that masks are proven over all positions
        other = bound - length if bound - length != slots else slots - 1
        extends |= {f"{_EXTEND}{length}": (1, length, slots), f"{_EXTEND}{length}{PROBE}": (1, length, other)}
    return wanted, extends


def _extends(module: ir.Module) -> list[ir.Operation]:
    from snapcc.compiler.analysis.functions import functions

    return [f for name, f in functions(module.operation).items() if name.startswith(_EXTEND)]


def _functions(module: ir.Module) -> dict[str, FunctionSpec]:
    from snapcc.compiler.passes.lower_state import signature

    def shaped(entry: dict[str, Any]) -> dict[str, Any]:
        return {**entry, "shape": tuple(entry["shape"])}

    return {
        name: FunctionSpec(
            module=f"{_DECODE if name == _RESET else name}.vmfb",
            arguments=tuple(TensorSpec(**shaped(entry)) for entry in parts["arguments"]),
            results=tuple(TensorSpec(**shaped(entry)) for entry in parts["results"]),
            states=tuple(StateSpec(**shaped(entry)) for entry in parts["states"]),
        )
        for name, parts in signature(module.operation).items()
    }


def _listed(lengths: Sequence[int]) -> str:
    return ",".join(map(str, lengths))
