"""Tiny random models of each supported family."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers as tf

from roseplay.model.probe import randomise

VOCABULARY = 97
LENGTH = 64
_BASE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": LENGTH,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_WINDOWED = {"sliding_window": 8}
_ALTERNATING = ["sliding_attention", "full_attention", "sliding_attention"]
_GEMMA = {"head_dim": 16, "query_pre_attn_scalar": 20, "layer_types": _ALTERNATING, **_WINDOWED}
_LATENT = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 12,
}


def base(**changes: Any) -> dict[str, Any]:
    """The sizes of a tiny model, with these changes."""
    return {**_BASE, **changes}


def _without(*names: str, **changes: Any) -> dict[str, Any]:
    return {name: value for name, value in base(**changes).items() if name not in names}


FAMILIES: dict[str, Callable[[], Any]] = {
    "gpt2": lambda: tf.GPT2Config(
        vocab_size=VOCABULARY, n_embd=32, n_layer=3, n_head=4, n_positions=LENGTH, bos_token_id=1, eos_token_id=2
    ),
    "llama": lambda: tf.LlamaConfig(**base()),
    "qwen2": lambda: tf.Qwen2Config(**base(use_sliding_window=True, max_window_layers=1, **_WINDOWED)),
    "qwen3": lambda: tf.Qwen3Config(**base(head_dim=16)),
    "qwen3_moe": lambda: tf.Qwen3MoeConfig(
        **base(head_dim=16, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24)
    ),
    "mixtral": lambda: tf.MixtralConfig(**base(num_local_experts=4, num_experts_per_tok=2)),
    "mistral": lambda: tf.MistralConfig(**base(head_dim=8, **_WINDOWED)),
    "gemma": lambda: tf.GemmaConfig(**base(head_dim=16, num_key_value_heads=1)),
    "gemma2": lambda: tf.Gemma2Config(**base(attn_logit_softcapping=5.0, final_logit_softcapping=10.0, **_GEMMA)),
    "gemma3_text": lambda: tf.Gemma3TextConfig(**base(**_GEMMA)),
    "phi": lambda: tf.PhiConfig(**base(partial_rotary_factor=0.5)),
    "phi3": lambda: tf.Phi3Config(**base(**_WINDOWED)),
    "gpt_neox": lambda: tf.GPTNeoXConfig(**_without("num_key_value_heads")),
    "smollm3": lambda: tf.SmolLM3Config(**base(num_hidden_layers=4, no_rope_layers=[1, 1, 1, 0])),
    "olmo2": lambda: tf.Olmo2Config(**base()),
    "granite": lambda: tf.GraniteConfig(
        **base(attention_multiplier=0.3, embedding_multiplier=2.0, residual_multiplier=0.5, logits_scaling=2.0)
    ),
    "starcoder2": lambda: tf.Starcoder2Config(**base(**_WINDOWED)),
    "cohere2": lambda: tf.Cohere2Config(**base(layer_types=_ALTERNATING, logit_scale=0.5, **_WINDOWED)),
    "gpt_oss": lambda: tf.GptOssConfig(
        **base(
            head_dim=16,
            num_local_experts=4,
            num_experts_per_tok=2,
            layer_types=_ALTERNATING,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
            **_WINDOWED,
        )
    ),
    "opt": lambda: tf.OPTConfig(
        **_without("intermediate_size", "num_key_value_heads", ffn_dim=48, word_embed_proj_dim=32)
    ),
    "glm4": lambda: tf.Glm4Config(**base(head_dim=16, partial_rotary_factor=0.5)),
    "exaone4": lambda: tf.Exaone4Config(**base(layer_types=_ALTERNATING, **_WINDOWED)),
    "deepseek_v3": lambda: tf.DeepseekV3Config(
        **base(
            moe_intermediate_size=24,
            n_routed_experts=8,
            num_experts_per_tok=2,
            n_group=2,
            topk_group=1,
            first_k_dense_replace=1,
            q_lora_rank=16,
            **_LATENT,
        )
    ),
    "nemotron": lambda: tf.NemotronConfig(**base(head_dim=8)),
}

_LINEAR_ATTENTION = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
}
_MAMBA = {"mamba_d_state": 8, "mamba_d_conv": 4, "mamba_expand": 2}
_MAMBA_2 = {**_MAMBA, "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": 2, "mamba_chunk_size": 8}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
_SHARED_EXPERT = {**_EXPERTS, "shared_expert_intermediate_size": 24}
_LINEAR = {"layer_types": ["linear_attention", "full_attention", "linear_attention"]}
_CONVOLUTIONS = {"layer_types": ["conv", "full_attention", "conv"]}
_JAMBA = {
    "attn_layer_period": 2,
    "attn_layer_offset": 1,
    "expert_layer_period": 2,
    "expert_layer_offset": 1,
    "mamba_dt_rank": 4,
}
_ZAMBA = {"num_hidden_layers": 4, "layers_block_type": ["mamba", "hybrid"] * 2, "attention_head_dim": 16}

# Families with recurrent layers, which need state slots.
STATEFUL: dict[str, Callable[[], Any]] = {
    "qwen3_5_text": lambda: tf.Qwen3_5TextConfig(**base(head_dim=16, **_LINEAR, **_LINEAR_ATTENTION)),
    "qwen3_5_moe_text": lambda: tf.Qwen3_5MoeTextConfig(
        **base(head_dim=16, **_LINEAR, **_LINEAR_ATTENTION, **_SHARED_EXPERT)
    ),
    "qwen3_next": lambda: tf.Qwen3NextConfig(**base(head_dim=16, **_LINEAR, **_LINEAR_ATTENTION, **_SHARED_EXPERT)),
    "kimi_linear": lambda: tf.KimiLinearConfig(
        **base(linear_num_heads=4, linear_head_dim=8, **_LATENT, **_LINEAR, **_EXPERTS)
    ),
    "lfm2": lambda: tf.Lfm2Config(**base(**_CONVOLUTIONS)),
    "lfm2_moe": lambda: tf.Lfm2MoeConfig(**base(num_dense_layers=1, **_CONVOLUTIONS, **_EXPERTS)),
    "lfm3": lambda: tf.Lfm3Config(**base(**_CONVOLUTIONS)),
    "granitemoehybrid": lambda: tf.GraniteMoeHybridConfig(
        **base(num_local_experts=4, num_experts_per_tok=2, shared_intermediate_size=24, **_LINEAR, **_MAMBA_2)
    ),
    "nemotron_h": lambda: tf.NemotronHConfig(
        **base(
            num_hidden_layers=4,
            layers_block_type=["mamba", "attention", "mlp", "mamba"],
            mamba_num_heads=8,
            mamba_head_dim=8,
            ssm_state_size=8,
            n_groups=2,
            conv_kernel=4,
            chunk_size=8,
            head_dim=8,
        )
    ),
    "bamba": lambda: tf.BambaConfig(**base(attn_layer_indices=[1], **_MAMBA_2)),
    "falcon_h1": lambda: tf.FalconH1Config(**base(mamba_d_ssm=64, **_MAMBA_2)),
    "jamba": lambda: tf.JambaConfig(**base(**_JAMBA, **_MAMBA, **_EXPERTS)),
    "zamba": lambda: tf.ZambaConfig(**base(n_mamba_heads=2, mamba_dt_rank=4, **_ZAMBA, **_MAMBA)),
    "zamba2": lambda: tf.Zamba2Config(
        **base(
            n_mamba_heads=8,
            mamba_ngroups=2,
            chunk_size=8,
            num_mem_blocks=1,
            adapter_rank=4,
            use_mem_rope=True,
            **_ZAMBA,
            **_MAMBA,
        )
    ),
    "olmo_hybrid": lambda: tf.OlmoHybridConfig(**base(**_LINEAR, **_LINEAR_ATTENTION)),
}
if not hasattr(tf, "Lfm3Config"):  # newer than the oldest supported transformers
    del STATEFUL["lfm3"]


def tiny_model(config: Any, seed: int = 0) -> tf.PreTrainedModel:
    """Random weights for which attention is far from uniform; eager attention, float32."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = tf.AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
    randomise(model, seed)
    return model
