"""Tiny seeded models of transformers' own architectures, from their own configurations and code.

One rule shrinks every configuration: sizes by the name of the field, and one layer of each kind. ``ENTRIES`` lists
what is built, by group; ``base+variant`` is the same code with another configuration, which ``OWN`` holds.
"""

from __future__ import annotations

from typing import Any

import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

HEADS, KV_HEADS, WIDTH, WINDOW = 4, 2, 16, 16
"""Query and KV heads, features of a head, and tokens of a window or chunk."""

SEQUENCE = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers", "num_decoder_layers")
"""How configurations name the number of layers."""

FULL, SLIDING = "full_attention", "sliding_attention"

ENTRIES: dict[str, tuple[str, ...]] = {
    "attention": (
        *("llama", "qwen2", "qwen3", "mistral", "gemma", "gemma2", "gemma3_text", "phi3", "gpt2", "gpt_neox", "opt"),
        *("falcon", "bloom", "mpt", "olmo2", "starcoder2", "stablelm", "cohere", "granite", "smollm3", "deepseek_v2"),
        *("deepseek_v3", "mixtral", "qwen2_moe", "gpt_oss", "glm", "ernie4_5", "nemotron", "gpt_bigcode", "olmo3"),
        *("gemma3n_text", "llama4_text", "olmoe", "dbrx", "ministral3", "seed_oss", "bitnet", "biogpt"),
        *("falcon+alibi", "falcon+gqa", "gpt_bigcode+mha", "gpt_neox+serial", "phi+qknorm", "llama+rope_llama3"),
        *("llama+rope_yarn", "llama+mha", "phi3+sliding", "mistral+full", "qwen2+sliding", "qwen2_moe+sliding"),
        *("qwen3_moe+sliding", "smollm3+sliding", "starcoder2+sliding", "phimoe+sliding", "mpt+noalibi", "olmo+clip"),
        *("deepseek_v3+noqlora", "glm4_moe+qknorm", "mellum+sliding", "gemma4_text+share", "gemma4_text+moe"),
        *("apertus1p5_text", "arcee", "cohere_compass_text", "cpmant", "cwm", "emu3", "exaone_moe", "flex_olmo"),
        *("gemma4_unified_text", "granitemoe_swa", "granitemoeshared", "hy_v3", "hyperclovax", "jais2", "laguna"),
        *("longcat_flash", "nanochat", "solar_open"),
    ),
    "alias": ("exaone", "gpt-sw3", "internlm3", "iquestcoder", "sarvam_mla", "sarvam_moe"),
    "indexed": (
        *("minimax_m3_vl_text+sparse", "axk2", "deepseek_v32", "deepseek_v4", "dots3_note_text", "minimax_m3_vl_text"),
    ),
    "hybrid": (
        *("bailing_hybrid", "bamba", "granitemoehybrid", "inkling2_loop_text", "inkling2_text", "inkling_text"),
        *("jamba", "kimi_linear", "lara_mini", "lfm2_moe", "lfm3", "minimax", "nemotron_h", "olmo_hybrid"),
        *("qwen3_5_moe_text", "qwen3_5_text", "qwen4_exp_text", "recurrent_gemma", "zamba", "zaya"),
    ),
    "further": (
        *("gpt_neo", "gptj", "codegen", "gpt_neox_japanese", "persimmon", "ctrl", "xglm", "bert", "bert-generation"),
        *("roberta", "roberta-prelayernorm", "camembert", "xlm-roberta", "xlm-roberta-xl", "xmod", "data2vec-text"),
        *("electra", "ernie", "megatron-bert", "rembert", "roc_bert", "roformer", "big_bird", "bart", "mbart", "mvp"),
        *("plbart", "pegasus", "marian", "blenderbot", "blenderbot-small", "bigbird_pegasus", "trocr", "whisper"),
        *("prophetnet", "musicgen", "musicgen_melody", "moshi", "afmoe", "apertus", "aria_text", "axk1", "beam"),
        *("cohere2", "cohere2_moe", "diffllama", "doge", "dory", "dots1", "ernie4_5_moe", "exaone4", "falcon_h1"),
        *("flint", "glm4", "glm4_moe", "glm4_moe_lite", "glm_moe_dsa", "granite_swa", "granitemoe", "helium"),
        *("hrm_text", "hunyuan_v1_dense", "hunyuan_v1_moe", "hy_v4", "jetmoe", "kolibri1", "lfm2", "mimo_v2_flash"),
        *("minicpm3", "minimax_m2", "ministral", "mllama", "modernbert-decoder", "olmo", "phi", "phimoe", "qwen3_moe"),
        *("qwen3_next", "vaultgemma", "youtu", "zamba2", "llama+mqa", "llama+width", "llama+tied", "llama+bias"),
        *("llama+rope_linear", "llama+rope_dynamic", "phi3+longrope", "stablelm+parallel", "stablelm+qknorm"),
        *("opt+postnorm", "bloom+postnorm", "mpt+clip", "gpt2+inverse", "gpt2+upcast", "gemma2+nocap"),
        *("cohere+qknorm", "mixtral+sliding", "roformer+values", "gpt_neox+whole"),
    ),
    "cacheless": ("openai-gpt", "xlm", "xlnet", "mamba", "mamba2", "falcon_mamba", "rwkv", "xlstm"),
}
"""Names by group: attention with keys and values, the same under a configuration class of another name, attention over
a selection that an index makes, attention beside other state, the rest of the library, and models that keep no keys."""

ALWAYS: dict[int | float, str] = {
    256: "vocab_size vocab_size_per_layer_input",
    64: "hidden_size d_model n_embd word_embed_proj_dim lru_width embedding_size",
    128: "intermediate_size ffn_dim n_inner dff dim_ff intermediate_size_mlp dense_intermediate_size decoder_ffn_dim "
    "encoder_ffn_dim",
    2: "num_hidden_layers n_layer n_layers num_layers num_key_value_heads swa_num_key_value_heads linear_num_key_heads "
    "decoder_layers encoder_layers num_decoder_layers num_encoder_layers",
    HEADS: "num_attention_heads n_head n_heads num_heads attention_heads swa_num_attention_heads "
    "linear_num_value_heads linear_num_heads decoder_attention_heads encoder_attention_heads "
    "num_decoder_attention_heads num_encoder_attention_heads",
    WIDTH: "head_dim dim_head kv_channels swa_head_dim v_head_dim qk_nope_head_dim index_head_dim index_n_heads "
    "mamba_d_state mamba_chunk_size chunk_size ssm_state_size state_size mamba_d_head mamba_head_dim "
    "linear_key_head_dim linear_value_head_dim linear_head_dim block_size",
    8: "qk_rope_head_dim rotary_dim index_topk mamba_n_heads mamba_num_heads n_mamba_heads mamba_dt_rank "
    "time_step_rank",
    512: "max_position_embeddings n_positions n_ctx max_seq_len max_target_positions max_source_positions",
    1: "mamba_n_groups n_groups mamba_ngroups",
    0.125: "initializer_range init_std",
}
"""Sizes by the names of fields, set where a configuration has the field. Index heads are many: few would tie at 0."""

WHERE_SET: dict[int, str] = {
    128: "ffn_hidden_size",
    WINDOW: "sliding_window window_size attention_window_size attention_chunk_size sliding_window_size",
    4: "num_experts num_local_experts n_routed_experts moe_num_experts",
    2: "num_experts_per_tok moe_topk moe_k num_experts_per_token top_k_experts moe_top_k",
    1: "n_shared_experts num_shared_experts moe_num_shared_experts n_group topk_group num_expert_group "
    "first_k_dense_replace num_dense_layers",
    32: "moe_intermediate_size shared_expert_intermediate_size moe_shared_expert_intermediate_size kv_lora_rank "
    "shared_intermediate_size expert_ffn_hidden_size shared_experts_intermediate_size",
    24: "q_lora_rank",
}
"""The same for fields that are set only where the configuration's default is neither None, 0 nor False."""

DERIVED = frozenset({"moe_layers", "full_attn_idxs", "hybrid_layer_ids", "attention_layers"})
"""Lists by layer that a configuration makes from other fields."""

# keys and values come from a latent: as many KV heads as query heads, and a head's width is made from its parts
LATENT: dict[str, Any] = {"num_key_value_heads": HEADS, "head_dim": None}

# positions are counted by the tokens that are no padding: one that no prompt of the measurement holds
COUNTED: dict[str, Any] = {"pad_token_id": 3}

OWN: dict[str, dict[str, Any]] = {
    "roberta": COUNTED,
    "roberta-prelayernorm": COUNTED,
    "camembert": COUNTED,
    "xlm-roberta": COUNTED,
    "xlm-roberta-xl": COUNTED,
    "data2vec-text": COUNTED,
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "roc_bert": {
        "pronunciation_vocab_size": 64,
        "pronunciation_embed_dim": WIDTH,
        "shape_vocab_size": 64,
        "shape_embed_dim": WIDTH,
    },
    "big_bird": {"attention_type": "original_full"},
    "bigbird_pegasus": {"attention_type": "original_full"},
    "xmod": COUNTED | {"languages": ["en_XX"], "default_language": "en_XX"},
    "musicgen": {"num_codebooks": 1},
    "musicgen_melody": {"num_codebooks": 1},
    "axk1": LATENT,
    "glm4_moe_lite": LATENT,
    "glm_moe_dsa": LATENT,
    "minicpm3": LATENT,
    "youtu": LATENT,
    "dory": {
        "layer_types": [SLIDING, FULL, SLIDING],
        "n_input_layers": 1,
        "n_recurrent_layers": 1,
        "n_output_layers": 1,
    },
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 1},
    "falcon_h1": {"mamba_d_ssm": 128, "mamba_d_head": WIDTH},
    "mamba2": {"num_heads": 8, "head_dim": WIDTH, "n_groups": 1},
    "lfm2": {"layer_types": ["conv", FULL]},
    "xlm": {"emb_dim": 64},
    "llama+mqa": {"num_key_value_heads": 1},
    "llama+width": {"head_dim": 2 * WIDTH},
    "llama+tied": {"tie_word_embeddings": True},
    "llama+bias": {"attention_bias": True, "mlp_bias": True},
    "llama+rope_linear": {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}},
    "llama+rope_dynamic": {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}},
    "phi3+longrope": {
        # within what is decoded
        "original_max_position_embeddings": 32,
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "short_factor": [1.0 + 0.1 * i for i in range(WIDTH // 2)],
            "long_factor": [2.0 + 0.5 * i for i in range(WIDTH // 2)],
            "original_max_position_embeddings": 32,
        },
    },
    "stablelm+parallel": {"use_parallel_residual": True},
    "stablelm+qknorm": {"qk_layernorm": True},
    "opt+postnorm": {"do_layer_norm_before": False, "word_embed_proj_dim": 32},
    "bloom+postnorm": {"apply_residual_connection_post_layernorm": True},
    "mpt+clip": {"attn_config": {"alibi": True, "clip_qkv": 0.5}},
    "gpt2+inverse": {"scale_attn_by_inverse_layer_idx": True},
    "gpt2+upcast": {"reorder_and_upcast_attn": True},
    "gemma2+nocap": {"attn_logit_softcapping": None, "final_logit_softcapping": None},
    "cohere+qknorm": {"use_qk_norm": True},
    "mixtral+sliding": {"sliding_window": WINDOW},
    "roformer+values": {"rotary_value": True},
    "gpt_neox+whole": {"rotary_pct": 1.0, "attention_bias": False},
    "llama+rope_llama3": {
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 10000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    },
    "llama+rope_yarn": {
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 128,
        }
    },
    "llama+mha": {"num_key_value_heads": HEADS},
    "phi3+sliding": {"sliding_window": WINDOW},
    "mistral+full": {"sliding_window": None},
    "starcoder2+sliding": {"sliding_window": WINDOW},
    "phimoe+sliding": {"sliding_window": WINDOW},
    "qwen2+sliding": {
        "use_sliding_window": True,
        "sliding_window": WINDOW,
        "max_window_layers": 1,
        "layer_types": [FULL, SLIDING],
    },
    "qwen2_moe+sliding": {
        "use_sliding_window": True,
        "sliding_window": WINDOW,
        "max_window_layers": 1,
        "layer_types": [FULL, SLIDING],
    },
    "qwen3_moe+sliding": {"use_sliding_window": True, "sliding_window": WINDOW},
    "smollm3": {"no_rope_layers": [1, 0], "layer_types": [FULL, FULL]},
    "smollm3+sliding": {
        "use_sliding_window": True,
        "sliding_window": WINDOW,
        "layer_types": [SLIDING, FULL],
        "no_rope_layers": [1, 0],
    },
    "falcon": {"num_kv_heads": 1},
    "falcon+alibi": {"alibi": True, "num_kv_heads": 1, "bias": True},
    "falcon+gqa": {"new_decoder_architecture": True, "num_kv_heads": KV_HEADS},
    "gpt_bigcode": {"num_key_value_heads": None},
    "gpt_bigcode+mha": {"multi_query": False, "num_key_value_heads": None},
    "gpt_neox+serial": {"use_parallel_residual": False},
    "phi+qknorm": {"qk_layernorm": True},
    "olmo+clip": {"clip_qkv": 0.5},
    "mpt": {"attn_config": {"alibi": True}},
    "mpt+noalibi": {"attn_config": {"alibi": False}},
    "deepseek_v2": LATENT | {"num_experts_per_tok": 2},
    "deepseek_v3": LATENT,
    "deepseek_v3+noqlora": LATENT | {"q_lora_rank": None},
    "longcat_flash": {"num_key_value_heads": HEADS, "zero_expert_num": 2, "ffn_hidden_size": 128, "head_dim": 8},
    "sarvam_mla": LATENT,
    "axk2": LATENT,
    "deepseek_v32": LATENT,
    "dots3_note_text": {
        "num_key_value_heads": HEADS,
        "head_dim": 32,
        "swa_num_attention_heads": HEADS,
        "swa_num_key_value_heads": HEADS,
        "swa_q_lora_rank": 24,
        "swa_kv_lora_rank": 32,
        "swa_head_dim": 24,
        "swa_qk_nope_head_dim": WIDTH,
        "swa_v_head_dim": WIDTH,
        # else the embedding of token 0 is zero, and its scores of all keys are equal
        "pad_token_id": None,
    },
    "hy_v4": {"pad_token_id": None},
    "bailing_hybrid": LATENT,
    "kimi_linear": LATENT,
    "glm4_moe+qknorm": {"use_qk_norm": True},
    "dbrx": {
        "attn_config": {"kv_n_heads": KV_HEADS, "clip_qkv": 8.0, "rope_theta": 10000.0},
        "ffn_config": {"ffn_hidden_size": 128, "moe_num_experts": 4, "moe_top_k": 2, "hidden_size": 64},
        "num_key_value_heads": None,
    },
    "llama4_text": {
        "layer_types": ["chunked_attention", FULL],
        "no_rope_layers": [1, 0],
        "moe_layers": [1],
        "interleave_moe_layer_step": 2,
    },
    "laguna": {"num_attention_heads_per_layer": [HEADS, HEADS]},
    "mellum+sliding": {"layer_types": [FULL, SLIDING]},
    "gemma3n_text": {
        "layer_types": [SLIDING, FULL, SLIDING, FULL],
        "activation_sparsity_pattern": [0.95, 0.0, 0.0, 0.0],
        "num_kv_shared_layers": 2,
        "hidden_size_per_layer_input": 16,
        "laurel_rank": 8,
        "intermediate_size": 128,
    },
    "gemma4_unified_text": {"global_head_dim": 32},
    "gemma4_text+share": {"layer_types": [SLIDING, FULL, SLIDING, FULL], "num_kv_shared_layers": 2},
    "gemma4_text+moe": {
        "enable_moe_block": True,
        "num_experts": 4,
        "top_k_experts": 2,
        "moe_intermediate_size": 32,
    },
    "minimax_m3_vl_text": {"index_n_heads": 2},
    "minimax_m3_vl_text+sparse": {
        "index_n_heads": 2,
        "layer_types": [FULL, "minimax_m3_sparse"],
        "index_block_size": 8,
        "index_topk_blocks": 2,
    },
    "cohere_compass_text": {
        "layer_types": [SLIDING, FULL],
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 2, 2]}
            for kind in (SLIDING, FULL)
        },
    },
    "cpmant": {"prompt_length": 4, "prompt_types": 4, "segment_types": 4},
    "granitemoehybrid": {"layer_types": ["linear_attention", FULL]},
    "bamba": {"attn_layer_indices": [1]},
    "jamba": {
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
    },
    "recurrent_gemma": {"block_types": ["recurrent", "attention"]},
    "zamba": {
        "layers_block_type": ["linear_attention", "hybrid", "linear_attention", "hybrid"],
        "num_hidden_layers": 4,
        "attention_hidden_size": 128,
        "attention_head_dim": 32,
        "n_mamba_heads": 2,
    },
    "lfm2_moe": {"layer_types": ["conv", FULL]},
    "zaya": {"num_experts_per_tok": 1},
    "qwen4_exp_text": {
        "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 16,
        "indexer_budget": 8,
        "indexer_compress_ratio": 4,
        "hc_lowrank": 8,
        "ple_embed_dim": 64,
        "ngram_vocab_size_base": 64,
    },
}
"""What an entry's configuration has of its own; a variant has its base's too. None leaves a field at its default, where
a head's width is made from others, and is the value itself elsewhere."""


def group_of(name: str) -> str:
    """The group of an entry.

    Raises:
        KeyError: there is no such entry.
    """
    for group, names in ENTRIES.items():
        if name in names:
            return group
    raise KeyError(name)


def build(name: str, seed: int = 0, **changes: Any) -> Any:
    """The model of an entry, f32, in inference mode; fused attention where its code has it.

    Weights have a standard deviation of 0.125 where the configuration says so, and every vector (norms, biases, sinks)
    gets noise of 0.1, so that a dropped one shows. ``changes`` are more fields of the configuration.
    """
    model_class = getattr(transformers, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[_base(name)])
    config = configuration(name, **changes)
    torch.manual_seed(seed)
    try:
        model = model_class._from_config(config, attn_implementation="sdpa", dtype=torch.float32)
    except ValueError:  # its code has no fused attention
        torch.manual_seed(seed)
        model = model_class._from_config(config, attn_implementation="eager", dtype=torch.float32)
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1 and parameter.is_floating_point():
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return model.eval().requires_grad_(False)


def configuration(name: str, **changes: Any) -> Any:
    """An entry's configuration: its architecture's default, shrunk, with what is its own and ``changes``."""
    whole: Any = CONFIG_MAPPING[_base(name)]()
    text: Any = whole.get_text_config(decoder=True)
    # of a flat one for encoder and decoder it would be a copy with other fields
    default = whole if type(text) is type(whole) else text
    fields = default.to_dict()
    own = OWN.get(_base(name), {}) | OWN.get(name, {}) | changes
    chosen = {field: size for size, names in ALWAYS.items() for field in names.split() if field in fields}
    chosen |= {
        field: size
        for size, names in WHERE_SET.items()
        for field in names.split()
        if fields.get(field) and not isinstance(fields[field], bool)
    }
    chosen |= _one_of_each_kind(fields, own)
    for field in ("bos_token_id", "eos_token_id", "sep_token_id", "cls_token_id", "eod_token_id"):
        if fields.get(field) is not None:
            chosen[field] = 1 if field == "bos_token_id" else 2
    if fields.get("pad_token_id") is not None:
        chosen["pad_token_id"] = 0
    if "is_decoder" in fields:
        chosen |= {"is_decoder": True, "is_encoder_decoder": False}
    chosen |= own
    if chosen.get("head_dim", WIDTH) is None:
        del chosen["head_dim"]
    if "layer_types" in own and "num_hidden_layers" in chosen:
        chosen["num_hidden_layers"] = len(own["layer_types"])
    return type(default)(**chosen)


def _base(name: str) -> str:
    return name.partition("+")[0]


def _one_of_each_kind(fields: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """The lists by layer, cut to one layer of each combination: at least two layers, at most four."""
    layers = next((fields[field] for field in SEQUENCE if isinstance(fields.get(field), int)), 0)
    lists = {
        field: value
        for field, value in fields.items()
        if isinstance(value, list) and len(value) == layers > 2 and field not in DERIVED and field not in own
    }
    if not lists:
        return {}
    first: dict[str, int] = {}
    for index, kinds in enumerate(zip(*lists.values(), strict=True)):
        first.setdefault(str(kinds), index)
    kept = list(first.values())[:4]
    if len(kept) < 2:
        kept = [0, 1]
    counts = {field: len(kept) for field in SEQUENCE if field in fields}
    return counts | {field: [value[index] for index in kept] for field, value in lists.items()}
