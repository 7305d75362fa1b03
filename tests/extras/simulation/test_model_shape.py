from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from roseplay.extras.simulation.gpus import SimulationError
from roseplay.extras.simulation.model_shape import ModelShape
from roseplay.extras.simulation.models import find_shape

# DeepSeek-V3: https://huggingface.co/deepseek-ai/DeepSeek-V3/blob/main/config.json, 671B parameters, 37B active.
DEEPSEEK_V3 = {
    "architectures": ["DeepseekV3ForCausalLM"], "vocab_size": 129280, "hidden_size": 7168, "intermediate_size": 18432,
    "moe_intermediate_size": 2048, "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128,
    "n_shared_experts": 1, "n_routed_experts": 256, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64,
    "v_head_dim": 128, "qk_nope_head_dim": 128, "num_experts_per_tok": 8, "first_k_dense_replace": 3,
    "moe_layer_freq": 1, "max_position_embeddings": 163840, "quantization_config": {"quant_method": "fp8"},
}  # fmt: skip
# Mixtral-8x7B: 46.7B parameters, 12.9B active.
MIXTRAL = {
    "architectures": ["MixtralForCausalLM"], "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "num_local_experts": 8,
    "num_experts_per_tok": 2, "max_position_embeddings": 32768,
}  # fmt: skip


def shape(config: dict[str, Any], **more: Any) -> ModelShape:
    return ModelShape.of_config(config, name="m", **more)


@pytest.mark.parametrize(
    ("model", "billions"),
    [("qwen3-8b", 8.19), ("qwen3-32b", 32.76), ("llama-3.1-8b", 8.03), ("llama-3.1-70b", 70.55), ("gpt2-124m", 0.124)],
)
def test_parameters_of_known_models(model: str, billions: float) -> None:
    assert find_shape(model).num_parameters / 1e9 == pytest.approx(billions, rel=0.005)


def test_grouped_queries_decide_the_size_of_the_cache() -> None:
    qwen = find_shape("qwen3-8b")
    assert qwen.kv_bytes_per_token() == 36 * 2 * 8 * 128 * 2
    assert qwen.kv_bytes_per_token(4) == 36 * 2 * 2 * 128 * 2
    assert qwen.kv_bytes_per_token(16) == qwen.kv_bytes_per_token(8)  # heads are not cut
    assert find_shape("qwen3-8b", kv="fp8").kv_bytes_per_token() == qwen.kv_bytes_per_token() // 2


def test_a_latent_cache_is_not_divided() -> None:
    deepseek = shape(DEEPSEEK_V3)
    assert deepseek.kv_bytes_per_token() == deepseek.kv_bytes_per_token(8) == 61 * (512 + 64) * 2
    assert (deepseek.k_dim, deepseek.v_dim) == (192, 128)


def test_experts_are_read_as_tokens_draw_them() -> None:
    deepseek, mixtral = shape(DEEPSEEK_V3), shape(MIXTRAL)
    assert deepseek.num_parameters / 1e9 == pytest.approx(671, rel=0.01)
    assert (deepseek.active + deepseek.output) / 1e9 == pytest.approx(36.6, rel=0.02)
    assert mixtral.num_parameters / 1e9 == pytest.approx(46.7, rel=0.01)
    head = 2 * mixtral.output
    assert mixtral.bytes_read(1) - head == pytest.approx(2 * mixtral.active)
    assert mixtral.bytes_read(1000) - head == pytest.approx(2 * mixtral.in_layers)
    assert mixtral.bytes_read(1) < mixtral.bytes_read(4) < mixtral.bytes_read(16)


def test_layers_with_experts_may_begin_late_and_be_every_other() -> None:
    assert shape(DEEPSEEK_V3).expert_layers == 58
    assert shape({**MIXTRAL, "decoder_sparse_step": 2}).expert_layers == 16
    assert shape({**MIXTRAL, "moe_layer_freq": 3, "first_k_dense_replace": 1}).expert_layers == 11


def test_formats() -> None:
    qwen = find_shape("qwen3-8b")
    fp8 = find_shape("qwen3-8b", "fp8")
    assert qwen.stored_bytes == 2 * qwen.num_parameters
    assert fp8.stored_bytes == qwen.in_layers + 2 * (qwen.embedding + qwen.output)
    assert shape(DEEPSEEK_V3).weights == "fp8"
    quantized = {"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}
    found = shape({**MIXTRAL, "quantization_config": quantized})
    assert (found.weights, found.kv) == ("fp4", "fp8")
    assert shape({**MIXTRAL, "quantization_config": {"quant_method": "awq", "bits": 4}}).weights == "int4"


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"hidden_size": 8}, "does not state 'num_hidden_layers'"),
        ({**MIXTRAL, "layer_types": ["linear_attention", "full_attention"]}, "layers of the kind linear_attention"),
        ({**MIXTRAL, "block_types": ["recurrent"], "lru_width": 4096}, "layers of the kind recurrent"),
        ({**MIXTRAL, "attn_layer_period": 8, "mamba_d_state": 16}, "layers of the kind mamba"),
        ({**MIXTRAL, "hybrid_override_pattern": "M-M*"}, "layers of the kind mamba"),
        ({**MIXTRAL, "linear_num_key_heads": 16}, "layers of the kind linear_attention"),
        ({**MIXTRAL, "ssm_cfg": {"layer": "Mamba1"}}, "layers of the kind mamba"),
        ({**MIXTRAL, "is_encoder_decoder": True}, "layers without attention, or an encoder"),
        ({**MIXTRAL, "quantization_config": {"quant_method": "aqlm"}}, "quantized by aqlm"),
        ({**DEEPSEEK_V3, "q_lora_rank": "12345678"}, "'12345678' as 'q_lora_rank'"),
        ({**MIXTRAL, "hidden_size": 10**400}, "as 'hidden_size'"),
        ({**MIXTRAL, "num_hidden_layers": -2}, "as 'num_hidden_layers'"),
        ({**MIXTRAL, "max_position_embeddings": 1e999}, "'inf' as 'max_position_embeddings'"),
        ({**MIXTRAL, "num_experts_per_tok": 9}, "9 experts for a token, but only 8"),
        ({**MIXTRAL, "num_attention_heads": 5000}, "does not state 'head_dim'"),
        ({"text_config": "none"}, "its config is a str"),
    ],
)
def test_what_cannot_be_simulated_is_one_line(config: dict[str, Any], said: str) -> None:
    with pytest.raises(SimulationError, match=said) as error:
        shape(config)
    assert "\n" not in str(error.value)


def test_models_are_found_by_name_directory_and_file(tmp_path: Path) -> None:
    assert find_shape("Qwen/Qwen3-8B").name == "qwen3-8b"
    assert find_shape("meta-llama/Llama-3.1-70B-Instruct").name == "llama-3.1-70b"
    file = tmp_path / "mine" / "config.json"
    file.parent.mkdir()
    file.write_text(json.dumps({"text_config": MIXTRAL}))
    assert find_shape(str(file)) == find_shape(str(file.parent))
    assert find_shape(str(file)).name == "mine"
    with pytest.raises(SimulationError, match="weights in 'fp3'"):
        find_shape("qwen3-8b", "fp3")
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(SimulationError, match="is no JSON object"):
        find_shape(str(tmp_path / "list.json"))
    (tmp_path / "deep.json").write_text("[" * 100_000)
    with pytest.raises(SimulationError, match="recursion limit"):
        find_shape(str(tmp_path / "deep.json"))
    with pytest.raises(SimulationError, match=r"has no config\.json"):
        find_shape(str(tmp_path))


def test_an_unknown_model_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for name in ("no such model", "~nosuchuser/x", "x" * 300):
        with pytest.raises(SimulationError, match="not found: give a config") as error:
            find_shape(name)
        assert "qwen3-8b" in str(error.value)
