"""Causal language models from a Hugging Face folder, exported as they are."""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import safe_open
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import ExportGraphSignature, InputKind, InputSpec
from transformers import AutoModelForCausalLM, DynamicCache
from transformers.cache_utils import DynamicLayer
from transformers.utils import logging as transformers_logging

from .decoder import Decoder, from_program
from .errors import FrontendError

DTYPES = {"checkpoint": "auto", "f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
_CAUSAL = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
"""How transformers names the classes of models that generate."""
_PREFIX = "model."
_check: Any = torch._check


def load(folder: str | Path, dtype: str = "checkpoint") -> Decoder:
    """A decoder from a folder with config.json and safetensors, in the checkpoint's own or another dtype.

    Exported once, with dynamic batch, query and past; the caches are its inputs ``keys_<layer>`` and
    ``values_<layer>`` [B, H, T, D], beside ``input_ids`` and ``position_ids`` [B, Q] i64 and the additive
    ``attention_mask`` [B, 1, Q, P + Q].

    Raises:
        FrontendError: the folder does not load, or its model keeps more than a plain cache per layer.
    """
    _check_dtype(dtype)
    loader: Any = AutoModelForCausalLM
    try:
        with _quiet():
            _check_files(Path(folder))
            model, report = loader.from_pretrained(
                folder,
                dtype=DTYPES[dtype],
                attn_implementation="sdpa",
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
        FrontendError: its layers keep more than a plain cache, or attend through a sliding window.
    """
    with _for_inference(model):
        shapes = _cache_shapes(model)
        try:
            program = _export(model, shapes)
        except Exception as error:
            raise FrontendError(f"torch.export cannot export {type(model).__name__}: {_reason(error)}") from error
    return from_program(
        program,
        name=name,
        inputs={"tokens": "input_ids", "positions": "position_ids"},
        causal_masks={"attention_mask"},
        max_positions=getattr(model.config, "max_position_embeddings", None),
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
def _for_inference(model: nn.Module) -> Iterator[None]:
    """A model without dropout and gradients; afterwards it is as it was."""
    training = [module for module in model.modules() if module.training]
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    model.eval().requires_grad_(False)
    try:
        yield
    finally:
        for module in training:
            module.training = True
        for parameter in learning:
            parameter.requires_grad_(True)


class _Step(nn.Module):
    """One call of a model with its caches as plain inputs and outputs."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        attention_mask: Tensor,
        keys: list[Tensor],
        values: list[Tensor],
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        # Said here once; torch.export would find it out layer by layer, at twice the time.
        batch, query = input_ids.shape
        past = keys[0].shape[2]
        for tensor in (*keys, *values):
            _check(tensor.shape[0] == batch)
            _check(tensor.shape[2] == past)
        _check(position_ids.shape[0] == batch)
        _check(position_ids.shape[1] == query)
        _check(attention_mask.shape[0] == batch)
        _check(attention_mask.shape[2] == query)
        _check(attention_mask.shape[3] == past + query)
        cache: Any = DynamicCache(config=self.model.config)
        for layer, key, value in zip(cache.layers, keys, values, strict=True):
            # Set, not updated: an update would join an empty tensor first.
            layer.keys, layer.values, layer.is_initialized = key, value, True
        out = self.model(
            input_ids=input_ids,
            position_ids=position_ids,
            attention_mask=attention_mask,
            cache=cache,
            use_cache=True,
        )
        return out.logits, [layer.keys for layer in cache.layers], [layer.values for layer in cache.layers]


def _cache_shapes(model: Any) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """(heads, width) of keys and values, by layer."""
    layers: list[Any] = DynamicCache(config=model.config).layers
    for index, layer in enumerate(layers):
        if layer.is_sliding:
            raise FrontendError(
                f"layer {index} of the model attends through a sliding window of "
                f"{getattr(layer, 'sliding_window', '?')} tokens, which is not supported yet: "
                "a model whose config sets no window is"
            )
        if type(layer) is not DynamicLayer:
            raise FrontendError(f"layer {index} of the model keeps a {type(layer).__name__}, not a plain cache")
    # Read off a call: the heads and widths of a cache are not always those of the config.
    cache: Any = DynamicCache(config=model.config)
    with torch.no_grad():
        model(input_ids=torch.zeros(1, 1, dtype=torch.long), cache=cache, use_cache=True)
    filled = [(layer.keys, layer.values) for layer in cache.layers]
    return [((key.shape[1], key.shape[3]), (value.shape[1], value.shape[3])) for key, value in filled]


def _export(model: Any, shapes: list[tuple[tuple[int, int], tuple[int, int]]]) -> ExportedProgram:
    # Sizes of at least 2, all different: 0 and 1 would be taken for constants, equal ones for one another.
    batch, query, past = 2, 3, 5
    b, q, p = Dim("batch", min=1), Dim("query", min=1), Dim("past", min=0)
    # The mask's length is a dimension of its own: tied to the others it would come with a bound from below.
    total = Dim("total", min=1)
    dtype = model.dtype
    arguments = (
        torch.zeros(batch, query, dtype=torch.long),
        torch.zeros(batch, query, dtype=torch.long),
        torch.zeros(batch, 1, query, past + query, dtype=dtype),
        [torch.zeros(batch, heads, past, width, dtype=dtype) for (heads, width), _ in shapes],
        [torch.zeros(batch, heads, past, width, dtype=dtype) for _, (heads, width) in shapes],
    )
    dynamic = (
        {0: b, 1: q},
        {0: b, 1: q},
        {0: b, 2: q, 3: total},
        [{0: b, 2: p} for _ in shapes],
        [{0: b, 2: p} for _ in shapes],
    )
    with torch.no_grad():
        program = torch.export.export(_Step(model), arguments, dynamic_shapes=dynamic, strict=False)
    return _with_checkpoint_names(program)


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
    )
