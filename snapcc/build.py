"""A model made into an artifact: the phases, then IREE, the weights and the manifest, in a folder of its own."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snapcc.runtime.iree_compile import command as iree_command
from snapcc.runtime.iree_compile import compile_module, target_flags

from . import artifact, contents, manifest, phase_file, versions
from .arguments import UsageError
from .compilation import Choice, Lowering, choose
from .inspection import cache_table
from .options import FILES, PHASES, Options, Phase
from .phase_file import PhaseFile
from .progress import Progress
from .reproducer import INPUT, Reproducer, on_failure

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.export import ExportedProgram

    from snapcc.frontend import Decoder
    from snapcc.sn40l_target.machine import Machine
    from snapcc.sn40l_target.schema import Plan

DECODE_FLAGS = ("--iree-opt-level=O3", "--iree-dispatch-creation-enable-aggressive-fusion=false")
"""O3 without its aggressive fusion: with it SmolLM2's step took 7 % longer, and IREE 3.13 cannot compile what it makes
of a softmax behind a maximum and its index (the routers of some experts)."""

DATA_TILING = ("--iree-opt-data-tiling=true",)
"""For decode steps whose products are all of two matrices: a third faster. IREE 3.13 was seen to give wrong numbers
with it for two chained batched products, so a program with a batched product goes without. Attention's own products are
shaped so that it leaves them, and the caches, alone."""

PREFILL_FLAGS: tuple[str, ...] = ()
"""IREE's defaults: attention in blocks was not seen to gain from O3."""

PHASES_FOLDER = "phases"
PLAN = "plan.json"
REPORT = "report.html"
TRACE = "trace.json"
GRAPH = "graph.json"
"""The plan as data, to look at in a browser, for chrome://tracing or Perfetto, and for Model Explorer."""

_ELEMENTS = {"torch.float32": "f32", "torch.bfloat16": "bf16", "torch.float16": "f16"}


@dataclass(frozen=True)
class Origin:
    """Where a decoder came from.

    Attributes:
        described: its path, or words for one that was handed over in Python.
        folder: a Hugging Face folder, with a checkpoint and perhaps a tokenizer.
    """

    described: str
    folder: Path | None = None


def build(model: str | Path | ExportedProgram | nn.Module, options: Options, progress: Progress) -> Path | None:
    """Compiles a model.

    Args:
        model: a file or folder, recognised by what is in it, an exported program, or a model of transformers.
        options: what was asked for.
        progress: told of every step.

    Returns:
        the artifact's folder, or the file of the phase ``compile_to``; None where that went to standard output.

    Raises:
        UsageError: options that do not fit one another or the model.
        FrontendError, Refusal: a model that is not understood, or not provably safe to rewrite.
        ir.MLIRError, IreeCompileError: a compiler that is used failed.
        MachineError: a machine that is not known or not well described.
        ProgramError, PlacementError: a program that cannot be planned.
        ArtifactError, OSError: the result cannot be written.
    """
    machine = _machine(options)
    lowering = Lowering(machine, options, progress)
    if isinstance(model, str | Path) and phase_file.is_mlir(Path(model)):
        file = _phase_file(Path(model), options)
        _reach(lowering, lowering.phases_after(file), options)
        return _write_phase(options.output, lowering.text)
    decoder, origin = load(model, options, progress)
    choice = choose(decoder, options, progress)
    _reach(lowering, lowering.phases(decoder, choice), options)
    if options.compile_to is not None:
        return _write_phase(options.output, lowering.text)
    target = options.output or Path(f"{decoder.name}.snapcc")
    with artifact.writing(target) as folder:
        _fill(folder, decoder, origin, choice, lowering, options, progress)
    progress.note(f"wrote {target}")
    return target


def _reach(lowering: Lowering, phases: Iterator[Phase], options: Options) -> None:
    """Goes through the phases, to the one that was asked for or the last; dumps them where that was asked for."""
    for phase in phases:
        if options.dump_to is not None:
            options.dump_to.mkdir(parents=True, exist_ok=True)
            (options.dump_to / FILES[phase]).write_text(lowering.text)
        if phase == options.compile_to:
            return


def _phase_file(path: Path, options: Options) -> PhaseFile:
    file = phase_file.read(path)
    later = PHASES[PHASES.index(file.phase) + 1 :]
    if options.compile_to not in later:
        raise UsageError(
            f"{path} is of the phase {file.phase}, and an .mlir file holds no weights, so that no artifact is made of "
            f"it: give --compile-to with a later phase ({', '.join(later)})"
        )
    return file


def _machine(options: Options) -> Machine | None:
    """The machine to plan for, before anything that takes long."""
    from snapcc.sn40l_target.machine import load_machine

    if options.compile_to == "sn40l" and options.target != "sn40l":
        raise UsageError(f"--target {options.target} has no phase sn40l: give another one to --compile-to")
    if options.tile and options.target != "sn40l":
        raise UsageError(
            f"--target {options.target} plans nothing, and --tile takes the tiles of a plan: leave one out"
        )
    return load_machine(options.machine) if options.target == "sn40l" else None


def load(
    model: str | Path | ExportedProgram | nn.Module, options: Options, progress: Progress
) -> tuple[Decoder, Origin]:
    """The decoder in a model, and where it came from.

    Raises:
        FrontendError: a model that is not understood.
    """
    if not isinstance(model, str | Path):
        from snapcc.frontend import from_object

        described = type(model).__name__
        with progress.step(f"reading the {described}"):
            decoder = from_object(model, described, options.dtype, options.inputs, options.causal_masks)
        return decoder, Origin(f"a Python object, {described}")
    with progress.step(f"loading and exporting {model}"):
        from snapcc.frontend import load_model

        decoder = load_model(model, options.dtype, options.inputs, options.causal_masks, options.trust_pickle)
    path = Path(model)
    return decoder, Origin(str(path), path if path.is_dir() else None)


def _write_phase(output: Path | None, text: str) -> Path | None:
    if output is None:
        print(text, end="")
    else:
        artifact.write_whole(output, text.encode())
    return output


def _fill(
    folder: Path,
    decoder: Decoder,
    origin: Origin,
    choice: Choice,
    lowering: Lowering,
    options: Options,
    progress: Progress,
) -> None:
    """Writes every file of an artifact."""
    flags = target_flags(options.device, options.cpu)
    for file, source in lowering.modules.items():
        with progress.step(f"compiling {file} with IREE"):
            own = [*flags, *tuning(file, source)]
            repeats = iree_command(INPUT, [*own, "-o", "/dev/null"])
            with on_failure(Reproducer(options.reproducers, f"iree-{Path(file).stem}", source, repeats)):
                compile_module(source, folder / file, own)
    files = list(lowering.modules)
    with progress.step("storing the weights"):
        weights = contents.store_weights(decoder.weights(), folder, origin.folder)
        parameters = contents.store_program(decoder, folder)
    files.append(contents.PROGRAM)
    inputs = _inputs(decoder)
    if lowering.plan is not None:
        with progress.step("drawing the plan"):
            table = cache_table(inputs.caches, lowering.functions.values(), choice.policy.slots, choice.max_positions)
            files += _show_plan(folder, lowering.plan, lowering.graph, origin.described, table)
    phases = _keep_phases(folder, options.dump_to)
    files += phases.values()
    tokenizer, ends = _text(origin.folder)
    content = manifest.Manifest(
        snapcc=versions.own(),
        tools=versions.tools(),
        model=origin.described,
        phases=phases,
        target=options.target,
        device=options.device,
        cpu=options.cpu if options.device == "cpu" else None,
        dtype=_dtype(decoder.weights().values()),
        kv=options.wishes.kv,
        policy=choice.policy,
        batch=choice.batch,
        vocabulary=decoder.vocabulary,
        max_positions=choice.max_positions,
        end_of_sequence=ends,
        functions=lowering.functions,
        inputs=inputs,
        weights=tuple(artifact.describe(folder, path) for path in weights),
        parameters=parameters,
        tokenizer=tokenizer,
        plan=PLAN if lowering.plan is not None else None,
        files=tuple(artifact.describe(folder, path) for path in files),
    )
    artifact.write_manifest(folder, content)


def _show_plan(folder: Path, plan: Plan, graph: str, title: str, caches: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    """Writes the plan as data and as pictures; gives the files."""
    from snapcc.sn40l_target.report import Before, report_html
    from snapcc.sn40l_target.trace import trace_json

    before = [Before(cache["name"], cache["full_bytes"], cache["bytes"]) for cache in caches]
    shown = {PLAN: plan.to_json(), REPORT: report_html(plan, title, before), TRACE: trace_json(plan), GRAPH: graph}
    for name, text in shown.items():
        (folder / name).write_text(text)
    return tuple(shown)


def tuning(file: str, source: bytes) -> tuple[str, ...]:
    """iree-compile's flags for a module, by what is in it."""
    if "decode" not in file:
        return PREFILL_FLAGS
    return DECODE_FLAGS if b"linalg.batch_" in source else (*DECODE_FLAGS, *DATA_TILING)


def _keep_phases(folder: Path, dumped: Path | None) -> dict[str, str]:
    """Copies the phases' files into the artifact, where they were asked for."""
    if dumped is None:
        return {}
    (folder / PHASES_FOLDER).mkdir()
    kept: dict[str, str] = {}
    for phase, name in FILES.items():
        if (dumped / name).is_file():
            shutil.copyfile(dumped / name, folder / PHASES_FOLDER / name)
            kept[phase] = f"{PHASES_FOLDER}/{name}"
    return kept


def _inputs(decoder: Decoder) -> manifest.Inputs:
    """The decoder's inputs, counted as ``Decoder.input_names`` lists them."""
    names = decoder.input_names
    found = {
        role: names.index(i.name) for i in decoder.inputs if (role := str(i.role)) not in ("cache", "state", "other")
    }
    return manifest.Inputs(
        tokens=found["tokens"],
        positions=found.get("positions"),
        causal_mask=found.get("causal_mask"),
        logits=decoder.logits,
        caches=tuple(
            manifest.Cache(name=c.name, axis=c.axis, input=names.index(c.name), output=c.output_index)
            for c in decoder.caches
        ),
        counters=tuple(names.index(i.name) for i in decoder.inputs if str(i.role) == "counter"),
        states=tuple(
            manifest.State(name=s.name, input=names.index(s.name), output=s.output_index) for s in decoder.states
        ),
    )


def _dtype(weights: Iterable[torch.Tensor]) -> str:
    """The element type of most of the weights."""
    sizes: dict[str, int] = {}
    for weight in weights:
        name = _ELEMENTS.get(str(weight.dtype))
        if name is not None:
            sizes[name] = sizes.get(name, 0) + weight.numel()
    return max(sizes, key=lambda name: sizes[name])


def _text(folder: Path | None) -> tuple[str | None, tuple[int, ...]]:
    """A Hugging Face folder's tokenizer, and the tokens that end a sequence."""
    if folder is None:
        return None, ()
    tokenizer = str(folder.resolve()) if (folder / "tokenizer_config.json").is_file() else None
    for name in ("generation_config.json", "config.json"):
        if (folder / name).is_file():
            ends: Any = json.loads((folder / name).read_text()).get("eos_token_id")
            if ends is not None:
                return tokenizer, tuple(ends) if isinstance(ends, list) else (ends,)
    return tokenizer, ()
