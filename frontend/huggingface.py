"""Causal language models from a Hugging Face folder, exported as they are."""

from __future__ import annotations

import contextlib
import copy
import inspect
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import safe_open
from torch import Tensor, nn
from torch._dynamo.exc import UserError
from torch.export import Dim, ExportedProgram
from torch.export.dynamic_shapes import refine_dynamic_shapes_from_suggested_fixes
from torch.export.graph_signature import ExportGraphSignature, InputKind, InputSpec
from torch.utils._pytree import tree_leaves, tree_map
from transformers import AutoModelForCausalLM, DynamicCache
from transformers.cache_utils import (
    DummyLayer,
    DynamicIndexedLayer,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
    LinearAttentionLayer,
)
from transformers.utils import logging as transformers_logging

from .decoder import Decoder, from_program
from .errors import FrontendError

DTYPES = {"checkpoint": "auto", "f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
_CAUSAL = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
"""How transformers names the classes of models that generate."""
_PREFIX = "model."
_STATES = ("conv_states", "recurrent_states")
"""What a layer of transformers keeps beside keys and values: tensors by number, None for one that it does not use."""
_check: Any = torch._check


def load(folder: str | Path, dtype: str = "checkpoint") -> Decoder:
    """A decoder from a folder with config.json and safetensors, in the checkpoint's own or another dtype.

    Exported once, with dynamic batch, query and past; the caches are its inputs ``keys_<i>`` and ``values_<i>``
    [B, H, T, D] of each layer that has its own, and ``indexer_keys_<i>`` [B, T, D] of each that has an index, beside
    ``input_ids`` [B, Q] i64 and, where the model takes them, ``position_ids`` [B, Q] i64. The masks are those that the
    model makes itself from the lengths. A model with layers that carry state (convolutions, state spaces, linear
    attention) is exported for one token of each row, with its states as inputs ``conv_<i>`` and ``recurrent_<i>``, rows
    first; those that modules keep, as ``kept_<i>``.

    Raises:
        FrontendError: the folder does not load, or its model keeps what is neither keys and values nor such a state.
    """
    _check_dtype(dtype)
    loader: Any = AutoModelForCausalLM
    try:
        with _quiet():
            _check_files(Path(folder))
            model, report = loader.from_pretrained(
                folder,
                dtype=DTYPES[dtype],
                local_files_only=True,
                use_safetensors=True,
                # else it asks on the terminal whether to run what lies in the folder
                trust_remote_code=False,
                # else it raises without saying which
                ignore_mismatched_sizes=True,
                output_loading_info=True,
            )
    except FrontendError:
        raise
    except Exception as error:  # transformers checks a config by using it: all kinds come
        raise FrontendError(
            f"{folder} does not load as a causal language model: {_reason(error)}; it must hold what save_pretrained "
            f"writes, of an architecture that transformers {transformers.__version__} knows"
        ) from error
    # transformers would go on with random values for these.
    if mismatched := sorted(report["mismatched_keys"]):
        name, found, wanted = mismatched[0]
        raise FrontendError(
            f"{folder}: {name} has shape {list(found)} in the checkpoint and {list(wanted)} by config.json: they "
            "are not of one model"
        )
    if missing := sorted(report["missing_keys"]):
        raise FrontendError(
            f"{folder} lacks {len(missing)} of the model's weights, such as {missing[0]}: complete its safetensors"
        )
    return from_model(model, Path(folder).resolve().name)


def from_model(model: Any, name: str) -> Decoder:
    """A decoder from a model of transformers' own classes, as ``load`` gives it.

    Raises:
        FrontendError: its layers keep what is not known here, or torch.export cannot take it.
    """
    with _for_inference(model):
        layers, kept = _layers(model)
        try:
            first = _first_position(model)
            program = _export(model, layers, kept, first)
        except Exception as error:
            raise FrontendError(f"torch.export cannot export {type(model).__name__}: {_reason(error)}") from error
    return from_program(
        program,
        name=name,
        inputs={"tokens": "input_ids"} | ({} if first is None else {"positions": "position_ids"}),
        max_positions=_longest(model, first),
    )


def converted(model: Any, dtype: str) -> Any:
    """A model in another of ``DTYPES``: a copy, or itself where it has that dtype already.

    Raises:
        FrontendError: there is no such dtype.
    """
    _check_dtype(dtype)
    return model if DTYPES[dtype] in ("auto", model.dtype) else copy.deepcopy(model).to(DTYPES[dtype])


def _check_dtype(dtype: str) -> None:
    if dtype not in DTYPES:
        raise FrontendError(f"--dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")


def _check_files(folder: Path) -> None:
    """What transformers would say badly or not at all: models that cannot decode, and damaged safetensors."""
    try:
        config = json.loads((folder / "config.json").read_text())
    except ValueError as error:
        raise FrontendError(f"{folder / 'config.json'} is no JSON: {error}") from error
    if not isinstance(config, dict):
        raise FrontendError(f"{folder / 'config.json'} must hold a JSON object, as save_pretrained writes it")
    if "auto_map" in config:
        raise FrontendError(
            f"{folder} brings code of its own (auto_map in config.json), which is not run: load the model in Python "
            "and export it with torch.export.save"
        )
    named = config.get("architectures")
    if isinstance(named, list) and named and not any(str(name).endswith(_CAUSAL) for name in named):
        raise FrontendError(
            f"{folder / 'config.json'} names {', '.join(map(str, named))}, which is no causal language model with a "
            "cache (LlamaForCausalLM is one)"
        )
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, framework="pt"):
                pass
        except Exception as error:
            raise FrontendError(f"{path} is no whole safetensors file ({error}): copy or download it again") from error


def _reason(error: Exception) -> str:
    """An error's first paragraph on one line, without the list of every model that there is."""
    paragraph = (str(error).strip() or type(error).__name__).split("\n\n")[0]
    return " ".join(paragraph.partition("Model type should be one of")[0].split())


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """transformers without its bars and reports: what is wrong is raised, and said by us."""
    logging: Any = transformers_logging  # partly typed
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


@contextlib.contextmanager
def _for_inference(model: Any) -> Iterator[None]:
    """A model without dropout and gradients, its experts products of gathered weights; afterwards it is as it was."""
    training = [module for module in model.modules() if module.training]
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    experts = model.config._experts_implementation if model._can_set_experts_implementation() else None
    attributes = [(vars(module), dict(vars(module))) for module in model.modules()]
    model.eval().requires_grad_(False)
    if experts is not None:
        # the others branch on the routing, or hide in an op of their own
        model.set_experts_implementation("batched_mm")
    try:
        yield
    finally:
        for now, then in attributes:
            now.update((name, then[name]) for name in _assigned(now, then))
        if experts is not None:
            model.set_experts_implementation(experts)
        for module in training:
            module.training = True
        for parameter in learning:
            parameter.requires_grad_(True)


def _assigned(now: dict[str, Any], then: dict[str, Any]) -> list[str]:
    """The attributes of a module that were given another tensor."""
    return [
        name
        for name, value in now.items()
        if name in then and value is not then[name] and any(isinstance(v, Tensor) for v in (value, then[name]))
    ]


@dataclass(frozen=True)
class _Kept:
    """A state that a module keeps in an attribute of its own: its value after one token of one row."""

    attributes: dict[str, Any]
    name: str
    value: Tensor


class _Step(nn.Module):
    """One call of a model with its caches as plain inputs and outputs; the model makes its own masks."""

    def __init__(self, model: Any, layers: Sequence[Any], kept: Sequence[_Kept], first: int | None) -> None:
        super().__init__()
        self.model = model
        self._layers = layers
        self._kept = kept
        self._first = first
        self._cache_argument = _cache_argument(model)

    def forward(
        self,
        input_ids: Tensor,
        position_ids: Tensor | None,
        keys: list[Tensor],
        values: list[Tensor],
        indexer_keys: Sequence[Tensor] = (),
        conv: Sequence[Tensor] = (),
        recurrent: Sequence[Tensor] = (),
        kept: Sequence[Tensor] = (),
    ) -> tuple[Any, ...]:
        # Said here once; torch.export would find it out layer by layer, at twice the time.
        batch, query = input_ids.shape
        past = keys[0].shape[2]
        for tensor in (*keys, *values):
            _check(tensor.shape[0] == batch)
            _check(tensor.shape[2] == past)
        for tensor in indexer_keys:
            _check(tensor.shape[0] == batch)
            _check(tensor.shape[1] == past)
        for tensor in (*conv, *recurrent, *kept):
            _check(tensor.shape[0] == batch)
        arguments = {}
        if position_ids is not None:
            _check(position_ids.shape[0] == batch)
            _check(position_ids.shape[1] == query)
            arguments["position_ids"] = position_ids + self._first if self._first else position_ids
        cache: Any = DynamicCache()
        cache.layers = [_copied(layer) for layer in self._layers]
        cache.layer_class_to_replicate = None
        own = _with_keys(cache.layers)
        for layer, key, value in zip(own, keys, values, strict=True):
            # Set, not updated: an update would join an empty tensor first.
            layer.keys, layer.values, layer.is_initialized = key, value, True
        indexed = _with_index(cache.layers)
        for layer, key in zip(indexed, indexer_keys, strict=True):
            layer.indexer_keys, layer.is_indexer_initialized = key, True
        # the layer writes into its states: into copies, so that what comes in stays as it is
        convolved, recurring = (_held(cache.layers, kind) for kind in _STATES)
        for held, given in ((convolved, conv), (recurring, recurrent)):
            for (states, index), state in zip(held, given, strict=True):
                states[index] = state.clone()
        before = [one.attributes[one.name] for one in self._kept]
        for one, state in zip(self._kept, kept, strict=True):
            one.attributes[one.name] = state
        arguments[self._cache_argument] = cache
        out = self.model(input_ids=input_ids, use_cache=True, **arguments)
        after = [[states[index] for states, index in held] for held in (convolved, recurring)]
        after.append([one.attributes[one.name] for one in self._kept])
        # torch.export wants a module's attributes as they were
        for one, value in zip(self._kept, before, strict=True):
            one.attributes[one.name] = value
        grown = [layer.keys for layer in own], [layer.values for layer in own], [x.indexer_keys for x in indexed]
        more = (grown[2], *after) if any(after) else grown[2:] if indexed else ()
        return (out.logits, *grown[:2], *more)


def _parameters(model: Any) -> Any:
    return inspect.signature(model.forward).parameters


def _cache_argument(model: Any) -> str:
    return "cache" if "cache" in _parameters(model) else "past_key_values"


def _first_position(model: Any) -> int | None:
    """The number that a model has for a sequence's first token; None if it takes no positions or others than these.

    Most count from 0. Tables with a row for padding, as RoBERTa's, count from behind it; there the tokens of padding
    that may stand in a prompt are counted too, as any other token.
    """
    if "position_ids" not in _parameters(model):
        return None
    padding = getattr(model.config, "pad_token_id", None)
    token = torch.full((1, 1), 1 if padding == 0 else 0)

    def logits(**positions: Tensor) -> Tensor:
        with torch.no_grad():
            out: Tensor = model(input_ids=token, use_cache=False, **positions).logits
        return out

    own = logits()
    for first in [0] if padding is None else [0, int(padding) + 1]:
        if torch.allclose(logits(position_ids=torch.full((1, 1), first)), own):
            return first
    return None


def _longest(model: Any, first: int | None) -> int | None:
    """The most tokens that a model says that a sequence may have."""
    rows = getattr(model.config, "max_position_embeddings", None)
    return int(rows) - (first or 0) if isinstance(rows, int) else None


def _layers(model: Any) -> tuple[list[Any], list[_Kept]]:
    """The cache's layers, filled by one token, and the states of layers that are kept in modules instead.

    Every layer with keys and values of its own keeps every token. A sliding layer would cut its cache by a count that
    it keeps in Python; the window is in the masks too, and a layer that keeps every token gives the same logits.
    """
    cache: Any = DynamicCache(config=model.config)
    plain: Any = DynamicLayer  # not typed
    with_states: Any = LinearAttentionAndFullAttentionLayer
    for index, layer in enumerate(cache.layers):
        if type(layer) is DynamicSlidingWindowLayer:
            cache.layers[index] = plain()
        elif type(layer) is LinearAttentionAndSlidingWindowAttentionLayer:
            cache.layers[index] = with_states(layer.number_of_states)
        elif type(layer) not in (DynamicLayer, DynamicIndexedLayer, DummyLayer, LinearAttentionLayer, with_states):
            raise FrontendError(
                f"layer {index} of {type(model).__name__} keeps a {type(layer).__name__}: only layers that keep keys "
                "and values, the keys of an index, and states of a fixed size, are supported"
            )
    # Read off a call: the heads and widths of a cache are not always those of the config, nor are its layers.
    argument = _cache_argument(model)
    if argument not in _parameters(model):
        raise FrontendError(f"{type(model).__name__} takes no cache: it is no decoder with a cache")
    before = [(vars(module), dict(vars(module))) for module in model.modules()]
    if all(type(layer) is plain for layer in cache.layers):
        # as many as the model fills: a config for encoder and decoder may count the encoder's
        cache.layers, cache.layer_class_to_replicate = [], plain
    try:
        with torch.no_grad():
            model(input_ids=torch.zeros(1, 1, dtype=torch.long), use_cache=True, **{argument: cache})
    except ValueError as error:  # a cache of the model's own
        raise FrontendError(
            f"{type(model).__name__} does not take transformers' DynamicCache: {_reason(error)}"
        ) from error
    except Exception as error:
        raise FrontendError(f"{type(model).__name__} fails on one token of one row: {_reason(error)}") from error
    without = [
        index
        for index, layer in enumerate(cache.layers)
        if type(layer) is LinearAttentionLayer and not any(_held([layer], kind) for kind in _STATES)
    ]
    kept = [_Kept(now, name, now[name]) for now, then in before for name in _assigned(now, then) if without]
    if without and not kept:
        raise FrontendError(
            f"layer {without[0]} of {type(model).__name__} leaves its state out of the cache, and no module has it in "
            "an attribute: no program sees it"
        )
    for index, layer in enumerate(cache.layers):
        if getattr(layer, "indexer_position_ids", None) is not None:
            raise FrontendError(
                f"layer {index} of {type(model).__name__} keeps the positions of its index's keys: only keys, values, "
                "the keys of an index, and states of a fixed size, are supported"
            )
    if not _with_keys(cache.layers) or any(type(x) is plain and not x.is_initialized for x in cache.layers):
        raise FrontendError(f"{type(model).__name__} leaves its cache empty: it is no decoder with a cache")
    return list(cache.layers), kept


def _with_keys(layers: Sequence[Any]) -> list[Any]:
    """The layers that keep keys and values."""
    return [layer for layer in layers if isinstance(layer, DynamicLayer) and layer.is_initialized]


def _with_index(layers: Sequence[Any]) -> list[Any]:
    """The layers that keep the keys of an index beside their keys and values."""
    return [layer for layer in layers if isinstance(layer, DynamicIndexedLayer) and layer.is_indexer_initialized]


def _held(layers: Sequence[Any], kind: str) -> list[tuple[dict[int, Any], int]]:
    """Where layers keep the states of one kind of ``_STATES`` that they use: the dict and its key."""
    return [
        (states, index)
        for layer in layers
        for states in (getattr(layer, kind, {}),)
        for index, state in states.items()
        if state is not None
    ]


def _copied(layer: Any) -> Any:
    """A layer that shares its tensors with another, and nothing else."""
    copied = copy.copy(layer)
    for kind in _STATES:
        if hasattr(layer, kind):
            setattr(copied, kind, dict(getattr(layer, kind)))
    return copied


def _export(model: Any, layers: Sequence[Any], kept: Sequence[_Kept], first: int | None) -> ExportedProgram:
    # Sizes of at least 2, all different: 0 and 1 would be taken for constants, equal ones for one another.
    batch, query, past = 2, 3, 5
    longest = _longest(model, first)
    b, q, p = Dim("batch", min=1), Dim("query", min=1, max=longest), Dim("past", min=0, max=longest)
    own, indexed = _with_keys(layers), _with_index(layers)
    states = [[held[index] for held, index in _held(layers, kind)] for kind in _STATES]
    states.append([one.value for one in kept])
    states = states if any(states) else []
    tokens: Any = {0: b, 1: q}
    if states:
        # A step of one token: several would go through the layers' kernels for prompts. A named past would be refused,
        # for a guard that one query token makes and that always holds.
        query, tokens, p = 1, {0: b}, Dim.DYNAMIC
    positions = None if first is None else torch.zeros(batch, query, dtype=torch.long)

    def example(tensor: Tensor) -> Tensor:
        return torch.zeros(batch, tensor.shape[1], past, tensor.shape[3], dtype=tensor.dtype)

    def state(tensor: Tensor) -> Tensor:
        return torch.zeros(batch, *tensor.shape[1:], dtype=tensor.dtype)

    indexes = [torch.zeros(batch, past, x.indexer_keys.shape[2], dtype=x.indexer_keys.dtype) for x in indexed]
    arguments = (
        torch.zeros(batch, query, dtype=torch.long),
        positions,
        [example(layer.keys) for layer in own],
        [example(layer.values) for layer in own],
        *([indexes] if indexed or states else []),
        *([state(tensor) for tensor in held] for held in states),
    )
    dynamic = (
        tokens,
        None if positions is None else tokens,
        [{0: b, 2: p} for _ in own],
        [{0: b, 2: p} for _ in own],
        *([[{0: b, 1: p} for _ in indexed]] if indexed or states else []),
        *([{0: b} for _ in held] for held in states),
    )
    step = _Step(model, layers, kept, first)
    with torch.no_grad():
        try:
            program = torch.export.export(step, arguments, dynamic_shapes=dynamic, strict=False)
        except UserError as error:
            narrowed = _narrowed(dynamic, error)
            program = torch.export.export(step, arguments, dynamic_shapes=narrowed, strict=False)
    return _with_checkpoint_names(program)


def _narrowed(dynamic: Any, error: UserError) -> Any:
    """The dimensions with the ends that torch.export found for them, such as that of a table of positions.

    Where it names none, a condition that it could not solve goes into the program, and is checked at each length.

    Raises:
        UserError: a length would be a constant.
    """
    if "Suggested fixes:" not in error.msg:
        return tree_map(lambda extent: None if extent is None else Dim.DYNAMIC, dynamic)
    narrowed: Any = refine_dynamic_shapes_from_suggested_fixes(error.msg, dynamic)
    # a dict has axes for keys: its values are the leaves
    if any(isinstance(leaf, int) for leaf in tree_leaves(narrowed)):
        raise error
    return narrowed


def _with_checkpoint_names(program: ExportedProgram) -> ExportedProgram:
    """The program with its weights named as in the checkpoint, not as in the module that wraps the model."""

    def own(name: str) -> str:
        return name.removeprefix(_PREFIX)

    signature = program.graph_signature
    inputs = [
        InputSpec(spec.kind, spec.arg, own(spec.target), spec.persistent)
        if spec.kind is not InputKind.USER_INPUT and spec.target is not None
        else spec
        for spec in signature.input_specs
    ]
    return ExportedProgram(
        root=program.graph_module,
        graph=program.graph,
        graph_signature=ExportGraphSignature(inputs, signature.output_specs),
        state_dict={own(name): value for name, value in program.state_dict.items()},
        range_constraints=program.range_constraints,
        module_call_graph=program.module_call_graph,
        example_inputs=program.example_inputs,
        constants={own(name): value for name, value in program.constants.items()},
        # that of the export, which lets a model update a value of its own in place
        verifiers=program.verifiers,
    )
