"""What users of such compilers ran into: the trigger of each report, reduced, and the right value."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from compiled import TOLERANCE, assert_equals_oracle, prompts_of
from decoders import GOOD, seeded
from fixed_decoders import Assign, Fixed, Grid, IndexCopy, Late, Narrow, Scatter, ShiftWhenFull, SliceScatter
from lowered import Program as Kernels
from lowered import function, tensor
from torch import Tensor, nn
from torch._dynamo.exc import UserError
from torch.export import Dim, ExportedProgram
from torch.nn import functional
from transformers import MistralConfig, MistralForCausalLM

import snapcc
from snapcc.artifact import load as load_artifact
from snapcc.compiler.diagnostics import Refusal
from snapcc.oracle import oracle
from snapcc.runtime.engine import Program
from snapcc.runtime.generation import generate
from snapcc.runtime.iree_compile import stream_ir, target_flags
from snapcc.runtime.schedule import not_in_place
from snapcc.runtime.verification import compare, compare_at_ties

WORDS = 31
Write = Callable[[Tensor, Tensor, Tensor], Tensor]


class Layer(nn.Module):
    """One layer with caches of [B, H, T, D]; ``write`` takes a token of each row into one of a fixed length."""

    def __init__(self, heads: int, width: int, write: Write) -> None:
        super().__init__()
        self.heads, self.width, self.write = heads, width, write
        self.words = nn.Embedding(WORDS, 32)
        self.qkv, self.out = nn.Linear(32, 3 * heads * width), nn.Linear(heads * width, 32)

    def heads_of(self, x: Tensor) -> tuple[Tensor, ...]:
        """x [B, Q, 32] -> q, k, v [B, H, Q, D]."""
        return self.qkv(x).unflatten(2, (3, self.heads, self.width)).permute(2, 0, 3, 1, 4).unbind(0)

    def forward(self, ids: Tensor, places: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, ...]:
        """ids [B, 1] -> logits [B, 1, V], the caches with the new token."""
        x = self.words(ids)
        q, k, v = self.heads_of(x)
        keys, values = self.write(keys, k, places), self.write(values, v, places)
        seen = torch.arange(keys.shape[2]) <= places.view(-1, 1, 1, 1)
        mixed = functional.scaled_dot_product_attention(q, keys, values, attn_mask=seen)
        return (x + self.out(mixed.transpose(1, 2).flatten(2))) @ self.words.weight.t(), keys, values

    @classmethod
    def program(
        cls, heads: int, width: int, length: int, write: Write, places: Tensor, dtype: torch.dtype = torch.float32
    ) -> ExportedProgram:
        """Its program of a symbolic batch, with positions of the shape of ``places``; a dimension of 2 is the rows."""
        module = seeded(lambda: cls(heads, width, write)).to(dtype)
        rows = {0: Dim("rows", min=1, max=64)}
        example = (torch.zeros(2, 1, dtype=torch.long), places, *torch.zeros(2, 2, heads, length, width, dtype=dtype))
        shapes = (rows, rows if places.shape[:1] == (2,) else None, rows, rows)
        return torch.export.export(module, example, dynamic_shapes=shapes, strict=False)


def cache_ops(program: ExportedProgram, folder: Path) -> list[tuple[str, str]]:
    """A static program's ops on caches in order, with their attributes: equal where programs keep caches alike."""
    out = snapcc.compile(program, folder / "static.mlir", batch=2, target="host", compile_to="static")
    found = re.findall(r'"(kv\.[a-z_]+)"\([^)]*\) (\{.*?\} :|:)', out.read_text())
    return [(name, attributes) for name, attributes in found if name != "kv.parameter"]


def assert_near(artifact: Path, prompts: list[list[int]], new_tokens: int) -> None:
    """Every row's logits are the oracle's in a narrow type, as ``snapcc verify`` judges it."""
    program = load_artifact(artifact)
    right, wide = oracle(program), oracle(program, wide=True)
    for row in generate(snapcc.load(artifact), prompts, new_tokens):
        found = compare_at_ties(row, right, program.manifest.dtype, wide)
        assert found.holds, found


@pytest.fixture(scope="module")
def dialogue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The artifact of a decoder with 32 rows, prompts and 14 slots."""
    decoder = next(d for d in GOOD if d.name == "monocle")
    folder = tmp_path_factory.mktemp("dialogue")
    options = {"sink": 2, "recent": 8, "topk": 4, "window": 4, "batch": 32, "prompts": (24,), "extends": ()}
    return snapcc.compile(decoder.program(), folder / "out.snapcc", target="host", **options)


@pytest.fixture(scope="module")
def by_index(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, str]]:
    """The ops on caches of a decoder that writes by ``index_copy`` at a position of rank 0."""
    return cache_ops(Fixed("index-copy", IndexCopy, places=()).program(), tmp_path_factory.mktemp("by_index"))


@pytest.mark.parametrize("places", [torch.tensor(3), torch.tensor([3]), torch.tensor([[3]])], ids=lambda p: p.ndim)
def test_positions_of_any_rank(places: Tensor, tmp_path: Path) -> None:
    """tenstorrent/tt-mlir#8000: a cache write is no longer recognised when its position becomes a tensor of one.

    Kind: the same write with its position in another rank.
    """

    def write(cache: Tensor, new: Tensor, at: Tensor) -> Tensor:
        return cache.index_copy(2, at.view(1), new)

    found = cache_ops(Layer.program(8, 128, 64, write, places, torch.bfloat16), tmp_path)
    assert found.count(("kv.slots", "{ring = 60 : i64, sink = 4 : i64} :")) == 1
    assert [name for name, _ in found].count("kv.ring_update") == 2


def test_a_write_that_does_not_match_says_why(tmp_path: Path) -> None:
    """tenstorrent/tt-mlir#8646: with a position of rank 0 the pattern does not match, and nobody says so.

    Kind: silent non-match.
    """
    late = Fixed("late-rank-0", Late, places=()).program()
    because = r"index_put' puts the new tokens of .* nor at the index of each row's position; join each new token"
    with pytest.raises(Refusal, match=because):
        snapcc.compile(late, tmp_path / "out.snapcc", batch=2)


@pytest.mark.parametrize("count", [1, 2, 4, 32])
def test_any_number_of_rows_up_to_the_batch(count: int, dialogue: Path) -> None:
    """tenstorrent/tt-xla#1852: batch 32 fails, and the fill of a cache wants batch 1.

    Kind: batch sizes, and fewer rows than the batch.
    """
    program = snapcc.load(dialogue)
    prompts = prompts_of([1 + 7 * row % 24 for row in range(32)], program.spec.vocabulary)[:count]
    rows = generate(program, prompts, 4)
    right = oracle(load_artifact(dialogue))
    for row in (rows[0], rows[count // 2], rows[-1]):
        assert compare(row, right, "f32").holds


@pytest.mark.parametrize("take", [Assign, Grid, Scatter])
def test_indices_of_any_rank(take: type[nn.Module], by_index: list[tuple[str, str]], tmp_path: Path) -> None:
    """tenstorrent/tt-mlir#4452: under tensor parallelism the indices of a write arrive as a grid of higher rank.

    Kind: equivalent spellings of one write. Their values are compared in test_fixed_length.py.
    """
    places = (1,) if take is Assign else (-1, 1)
    assert cache_ops(Fixed(take.__name__, take, places=places).program(), tmp_path) == by_index


class AtThree(nn.Module):
    """Written at a position that was a Python number at export."""

    def forward(self, cache: Tensor, new: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        """As ``fixed_decoders.Behind``."""
        cache = torch.slice_scatter(cache, new, 2, 3, 4)
        return cache, cache


@pytest.mark.parametrize("take", [Narrow, SliceScatter, ShiftWhenFull])
def test_a_position_read_as_a_number(take: type[nn.Module], by_index: list[tuple[str, str]], tmp_path: Path) -> None:
    """tenstorrent/tt-xla#3688, pytorch/executorch#18753: a position that is a Python number is baked in or not taken.

    Kind: lengths and starts as numbers. One that ``item`` reads is none of the program's constants, also as the start
    of what an eviction keeps.
    """
    assert cache_ops(Fixed(take.__name__, take, places=(1,)).program(), tmp_path) == by_index


def test_a_baked_position_is_refused(tmp_path: Path) -> None:
    """huggingface/transformers#44609: the position is a Python number, and each step would be another program.

    Kind: lengths baked as constants.
    """
    baked = Fixed("at-three", AtThree, places=(1,)).program()
    with pytest.raises(Refusal, match="nor at the index of each row's position") as refusal:
        snapcc.compile(baked, tmp_path / "out.snapcc", batch=2)
    assert str(refusal.value).startswith(__file__)


def test_a_written_input_that_is_returned(tmp_path: Path) -> None:
    """iree-org/iree#17316: ``index_copy_`` on an input that is returned: source and target ranges overlap.

    Kind: an input and an output in one place.
    """

    def write(cache: Tensor, new: Tensor, at: Tensor) -> Tensor:
        return cache.index_copy_(2, at, new)

    heads, width, length = 2, 16, 128
    program = Layer.program(heads, width, length, write, torch.tensor([3]))
    source = snapcc.compile(program, tmp_path / "iree.mlir", batch=2, target="host", compile_to="iree").read_bytes()
    assert not_in_place(stream_ir(source, target_flags("cpu")), "decode", heads * width * length * 4) == []
    artifact = snapcc.compile(program, tmp_path / "out.snapcc", batch=2, target="host")
    assert_equals_oracle(artifact, [(3, 120)], 12)


class Written(Layer):
    """A growing cache: the new tokens are written by ``index_put`` behind the past in a longer tensor."""

    def forward(self, ids: Tensor, places: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, ...]:
        """ids, places [B, Q]; caches [B, H, T, D]."""
        x = self.words(ids)
        q, k, v = self.heads_of(x)
        past = keys.shape[2]
        index = torch.arange(past, past + ids.shape[1])
        keys, values = (functional.pad(cache, (0, 0, 0, ids.shape[1])) for cache in (keys, values))
        keys[:, :, index], values[:, :, index] = k, v
        seen = (torch.arange(keys.shape[2]) <= places[..., None])[:, None]
        mixed = functional.scaled_dot_product_attention(q, keys, values, attn_mask=seen)
        return (x + self.out(mixed.transpose(1, 2).flatten(2))) @ self.words.weight.t(), keys, values


def _growing(module: nn.Module, heads: int, width: int, dtype: torch.dtype) -> ExportedProgram:
    rows, query, past = Dim("rows", min=1, max=64), Dim("query", min=1, max=64), Dim("past", min=0, max=512)
    example = (
        torch.zeros(2, 3, dtype=torch.long),
        torch.arange(5, 8).repeat(2, 1),
        *torch.zeros(2, 2, heads, 5, width, dtype=dtype),
    )
    cache = {0: rows, 2: past}
    shapes = ({0: rows, 1: query}, {0: rows, 1: query}, cache, cache)
    return torch.export.export(module.to(dtype), example, dynamic_shapes=shapes, strict=False)


def test_odd_sizes_and_several_tokens_at_once(tmp_path: Path) -> None:
    """iree-org/iree#24071: a crash in the scatter of 6 tokens into a cache of [8, 1, 127, 128].

    Kind: sizes that are no powers of two, and writes of several tokens, around the ring's end too.
    """
    program = _growing(seeded(lambda: Written(1, 128, IndexCopy())), 1, 128, torch.float32)
    options = {"slots": 127, "topk": 0, "batch": 8, "prompts": (6,), "extends": (6,), "target": "host"}
    artifact = snapcc.compile(program, tmp_path / "out.snapcc", **options)
    right, run = oracle(load_artifact(artifact)), snapcc.load(artifact)
    (tokens,) = prompts_of((6 * 23,), WORDS)
    run.prefill(tokens[:6], 7)
    right.prefill(tokens[:6])
    for start in range(6, len(tokens), 6):
        found, wanted = run.extend(tokens[start : start + 6], 7, start), right.extend(tokens[start : start + 6])
        assert np.abs(found - wanted).max() <= TOLERANCE * max(1.0, float(np.abs(wanted).max())), start


def test_idle_and_padded_rows_are_finite(dialogue: Path) -> None:
    """iree-org/iree#24175: a row whose keys are all masked gives NaN.

    Kind: rows that hold nothing, and prompts that are mostly padding.
    """
    program = snapcc.load(dialogue)
    active = np.arange(32) == 5
    assert np.isfinite(program.prefill([7], 5)).all()
    logits = program.decode(np.full(32, 3), np.where(active, 1, 0), active)
    assert np.isfinite(logits).all()
    right = oracle(load_artifact(dialogue))
    right.prefill([7])
    assert np.abs(logits[5] - right.decode(3)).max() <= TOLERANCE


class Masks(Layer):
    """The same mask in four forms, one after the other: bool and additive, of rank 2 and 4, for one row and for all."""

    def forward(self, ids: Tensor, places: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, ...]:
        """As ``Written``."""
        x = self.words(ids)
        q, k, v = self.heads_of(x)
        keys, values = torch.cat([keys, k], 2), torch.cat([values, v], 2)
        total = keys.shape[2]
        seen = torch.ones(total, total, dtype=torch.bool).tril()[total - ids.shape[1] :]
        added = torch.zeros(seen.shape, dtype=q.dtype).masked_fill(~seen, float("-inf"))
        for mask in (seen[None, None], added, added.expand(ids.shape[0], 1, -1, -1)):
            q = q + functional.scaled_dot_product_attention(q, keys, values, attn_mask=mask)
        logits = (q @ keys.mT * self.width**-0.5).masked_fill(~seen.expand(ids.shape[0], 1, -1, -1), -65504.0)
        mixed = logits.softmax(-1) @ values
        return (x + self.out(mixed.transpose(1, 2).flatten(2))) @ self.words.weight.t(), keys, values


def test_masks_of_any_rank_and_type_in_f16(tmp_path: Path) -> None:
    """llvm/torch-mlir#3831, #4279, #4379: masks of another rank, batch or type than the logits, bool beside f16.

    Kind: ranks, types and broadcasts of masks.
    """
    program = _growing(seeded(lambda: Masks(4, 8, IndexCopy())), 4, 8, torch.float16)
    options = {"sink": 2, "recent": 8, "topk": 4, "window": 4, "prompts": (20,), "extends": (), "batch": 2}
    artifact = snapcc.compile(program, tmp_path / "out.snapcc", target="host", **options)
    assert_near(artifact, prompts_of((5, 19), WORDS), 10)


def test_a_write_into_a_cache_of_symbolic_rows_in_bf16(tmp_path: Path) -> None:
    """iree-org/iree#20077: ``index_put`` in bf16 on [?, 32, 8, 128] does not compile.

    Kind: dynamic dimensions in cache writes.
    """

    def write(cache: Tensor, new: Tensor, at: Tensor) -> Tensor:
        cache = cache.transpose(1, 2).clone()
        cache.index_put_((torch.arange(cache.shape[0]), at), new.squeeze(2))
        return cache.transpose(1, 2)

    program = Layer.program(8, 128, 32, write, torch.tensor([3, 5]), torch.bfloat16)
    artifact = snapcc.compile(program, tmp_path / "out.snapcc", batch=2, target="host")
    assert_near(artifact, prompts_of((3, 30), WORDS), 10)


@pytest.mark.parametrize("off", [-1, 0, 1])
def test_decode_goes_on_at_the_prompts_length(off: int, dialogue: Path) -> None:
    """nod-ai/shark-ai#351, #934: whether decode starts at the prompt's length or one before it is nowhere said.

    Kind: one definition of position. A token's position is the number of tokens before it.
    """
    program: Program = snapcc.load(dialogue)
    (prompt,) = prompts_of((9,), program.spec.vocabulary)
    program.prefill(prompt, 0)
    positions: Any = np.full(32, len(prompt) + off)
    found = program.decode(np.full(32, 3), positions, np.arange(32) == 0)[0]
    right = oracle(load_artifact(dialogue))
    right.prefill(prompt)
    assert (np.abs(found - right.decode(3)).max() <= TOLERANCE) == (off == 0)


class InBuffers(nn.Module):
    """A layer whose caches are buffers of its own, written by ``index_put_`` at a position."""

    def __init__(self) -> None:
        super().__init__()

        def write(cache: Tensor, new: Tensor, at: Tensor) -> Tensor:
            return torch.ops.aten.index_put_(cache, [None, None, at], new)

        self.layer = Layer(16, 16, write)
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(2, 16, 512, 16), persistent=False)

    def forward(self, ids: Tensor, at: Tensor) -> Tensor:
        """ids [2, 1], at [1] -> logits [2, 1, V]."""
        return self.layer(ids, at, self.keys, self.values)[0]


def test_caches_in_buffers_that_are_written_in_place(tmp_path: Path) -> None:
    """nod-ai/iree-turbine#85, llvm/torch-mlir#3080: a cache in a module's buffers, ``index_put_`` by [None, None, pos].

    Kind: caches as mutated buffers. Their values are compared in test_fixed_length.py.
    """
    example = (torch.zeros(2, 1, dtype=torch.long), torch.tensor([3]))
    found = cache_ops(torch.export.export(seeded(InBuffers), example, strict=False), tmp_path)
    assert found.count(("kv.slots", "{ring = 508 : i64, sink = 4 : i64} :")) == 1
    assert [name for name, _ in found].count("kv.ring_update") == 2


class Groups(nn.Module):
    """Four query heads over two KV heads of 16 features, which an expand and a reshape repeat."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.qkv, self.out = nn.Embedding(WORDS, 32), nn.Linear(32, 128), nn.Linear(64, 32)

    def forward(self, ids: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, ...]:
        """ids [1, Q], caches [1, 2, L, 16]."""
        x = self.words(ids)
        q, k, v = self.qkv(x).unflatten(2, (8, 16)).transpose(1, 2).split((4, 2, 2), 1)
        keys, values = torch.cat([keys, k], 2), torch.cat([values, v], 2)
        wide = [cache[:, :, None].expand(-1, 2, 2, cache.shape[2], 16) for cache in (keys, values)]
        spread = [cache.reshape(cache.shape[0], 4, cache.shape[3], 16) for cache in wide]
        seen = torch.ones(keys.shape[2], keys.shape[2], dtype=torch.bool).tril()[keys.shape[2] - ids.shape[1] :]
        mixed = functional.scaled_dot_product_attention(q, *spread, attn_mask=seen)
        return (x + self.out(mixed.transpose(1, 2).flatten(2))) @ self.words.weight.t(), keys, values


def test_a_symbolic_past(tmp_path: Path) -> None:
    """Seen while this was built: past [1, 2, L, 16], L symbolic: min(16 + 16 L, 32 + 32 L) == 16 + 16 L is no guard.

    Kind: conditions on lengths that an export makes. PyTorch itself does not export this for one query token, which is
    nothing that we could mend; with a symbolic number of them the same module is taken.
    """
    query, past = Dim("query", min=1, max=64), Dim("past", min=0, max=256)
    caches = torch.zeros(2, 1, 2, 5, 16)
    one, more = (torch.zeros(1, count, dtype=torch.long) for count in (1, 3))
    shapes = (None, {2: past}, {2: past})
    with pytest.raises(UserError, match="Not all values of past"):
        torch.export.export(seeded(Groups), (one, *caches), dynamic_shapes=shapes, strict=False)
    shapes = ({1: query}, {2: past}, {2: past})
    program = torch.export.export(seeded(Groups), (more, *caches), dynamic_shapes=shapes, strict=False)
    options = {"slots": 14, "topk": 0, "prompts": (16,), "extends": (), "target": "host"}
    artifact = snapcc.compile(program, tmp_path / "out.snapcc", **options)
    assert_equals_oracle(artifact, [(5,)], 20)


def test_layers_with_a_window_stay_bounded(tmp_path: Path) -> None:
    """huggingface/transformers#47900: an export forgets which layers slide; their caches grow while logits match.

    Kind: growth with right logits. Every cache has its slots, and a window that fits is a ring of its own.
    """
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "sliding_window": 6, "max_position_embeddings": 128}
    MistralForCausalLM(MistralConfig(**sizes, **heads)).eval().save_pretrained(tmp_path / "mistral")
    options = {"sink": 2, "recent": 8, "topk": 4, "window": 4, "batch": 2, "prompts": (48,), "extends": ()}
    static = snapcc.compile(
        tmp_path / "mistral", tmp_path / "static.mlir", target="host", compile_to="static", **options
    ).read_text()
    stored = re.findall(r'"kv\.state_store"\([^)]*\) \{state = "[^"]*"\} : \(!torch\.vtensor<\[([\d,]+)\]', static)
    caches = {shape for shape in stored if shape.count(",") == 3}
    assert caches == {"2,1,14,16"}
    assert set(re.findall(r'"kv\.slots"[^{]*(\{[^}]*\})', static)) == {"{ring = 6 : i64, sink = 0 : i64}"}


def test_selection_among_131072_in_f16(tmp_path: Path) -> None:
    """iree-org/iree#20772, #21014, llvm/torch-mlir#4239, #4581: a top-k becomes a sort, unrolls or does not bufferise.

    Kind: selection at 128k.
    """
    count, kept = 131072, 4
    operands = [tensor([1, 1, 1, count, 1], "f16"), tensor([1, 1, count, 1], "f16"), "tensor<i64>"]
    attributes = (
        'sink = 0 : i64, ring = 1 : i64, selected = 4 : i64, window = 1 : i64, pool = "none", pool_size = 1 : i64, '
        'score = "candidates", scale = 1.0 : f64, softcap = 0.0 : f64, '
        "operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>"
    )
    text = function("select", "kv.topk_select", operands, tensor([1, kept], "i64"), attributes)
    keys = np.random.default_rng(0).integers(0, 9, count).astype(np.float16)
    keys[[7, 99_999, 131_070]] = 10  # the last is a candidate: only what comes behind it is recent
    queries = np.ones((1, 1, 1, count, 1), np.float16)
    found = Kernels(text, tmp_path)("select", queries, keys.reshape(1, 1, count, 1), np.array(count))
    (fourth,) = np.flatnonzero(keys == 8)[:1]
    assert found.tolist() == [sorted([7, int(fourth), 99_999, 131_070])]
