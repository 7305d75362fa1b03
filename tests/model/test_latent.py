"""Multi-head latent attention on cached latents: the same answers as on expanded keys and values, in fewer bytes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers as tf

from roseplay.config import EngineConfig
from roseplay.model.attention.interface import make_backend
from roseplay.model.kv_cache import LayerShape, bytes_per_token
from roseplay.model.loader import load_model
from tests.model.attention_cases import TOLERANCE, Case, latent_cases, make_problem, relative_error, right_answer
from tests.model.families import FAMILIES, STATEFUL, tiny_model
from tests.model.test_families import worst_difference

_DEEPSEEK = FAMILIES["deepseek_v3"]


@pytest.mark.parametrize("attention", ["cpu", "gather", "reference"])
@pytest.mark.parametrize("q_lora_rank", [16, None])
def test_logits_equal_eager(attention: str, q_lora_rank: int | None):
    """With the projection of queries that DeepSeek-V3 has, and without, as in V2-Lite and Kimi."""
    config = _DEEPSEEK()
    config.q_lora_rank = q_lora_rank
    for batched_append in (True, False):
        assert worst_difference(tiny_model(config), attention, batched_append, latent_cache="on") < 1e-4


_WINDOWED, _REAL = latent_cases()[-2:]


@pytest.mark.parametrize("case", [_WINDOWED, pytest.param(_REAL, marks=pytest.mark.slow)], ids=str)
def test_the_kernels_for_cpus_agree_with_the_reference(case: Case):
    problem, same = (make_problem(case, torch.device("cpu")) for _ in range(2))
    found = problem.attend(make_backend("cpu", problem.cache))
    assert relative_error(found, right_answer(same)) <= TOLERANCE[case.dtype]


@pytest.mark.parametrize(
    ("family", "layer"), [("deepseek_v3", 0), ("kimi_linear", 1)], ids=["deepseek_v3", "kimi_linear"]
)
def test_a_layer_caches_one_latent_and_one_rotary_key(family: str, layer: int):
    model = tiny_model({**FAMILIES, **STATEFUL}[family]())
    loaded, expanded = (load_model(model, EngineConfig(latent_cache=latent)) for latent in ("on", "off"))
    assert loaded.kv_shapes[layer] == LayerShape(1, 16 + 8, 16, values_in_keys=True)
    assert expanded.kv_shapes[layer] == LayerShape(4, 16 + 8, 12)
    assert [choice.chosen for choice in loaded.choices] == ["latents"]
    assert not expanded.choices
    assert load_model(model, EngineConfig()).kv_shapes == expanded.kv_shapes  # auto, on a CPU


def test_deepseek_v2_lite_caches_a_ninth_of_the_bytes():
    """The sizes of its attention, in a model of one layer."""
    config = tf.DeepseekV3Config(
        vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=1, first_k_dense_replace=1,
        num_attention_heads=16, num_key_value_heads=16, q_lora_rank=None, kv_lora_rank=512, qk_rope_head_dim=64,
        qk_nope_head_dim=128, v_head_dim=128, max_position_embeddings=64,
    )  # fmt: skip
    model = tiny_model(config)
    shapes = [load_model(model, EngineConfig(latent_cache=latent)).kv_shapes for latent in ("on", "off")]
    sizes = [bytes_per_token(shape, torch.float32) for shape in shapes]
    assert sizes == [4 * 576, 4 * 16 * (192 + 128)]


def test_in_bfloat16_latents_are_as_exact_as_expanded_keys():
    model = tiny_model(_DEEPSEEK()).to(torch.bfloat16)
    exact = worst_difference(model, "reference", latent_cache="off")
    assert worst_difference(model, "gather", latent_cache="on") < 2 * exact


class ScalesInExpansion:
    """Mixed into an attention module: what it expands is not the product of the latent and the projection alone."""

    def expand_kv(self, *latents: torch.Tensor) -> Any:
        return [2 * expanded for expanded in super().expand_kv(*latents)]  # type: ignore[misc]


class ScalesAfterExpansion:
    """The same, but after the expansion."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        expand = self.expand_kv
        self.expand_kv = lambda *latents: [2 * expanded for expanded in expand(*latents)]
        try:
            return super().forward(*args, **kwargs)  # type: ignore[misc]
        finally:
            self.expand_kv = expand


@pytest.mark.parametrize("other", [ScalesInExpansion, ScalesAfterExpansion])
def test_a_layer_that_does_more_than_expand_latents_keeps_its_keys(other: type):
    model = tiny_model(_DEEPSEEK())
    module = model.model.layers[0].self_attn
    module.__class__ = type("Other", (other, type(module)), {})
    shapes = load_model(model, EngineConfig(latent_cache="on")).kv_shapes
    assert shapes[0] == LayerShape(4, 24, 12)
    assert shapes[1].values_in_keys
    assert worst_difference(model, "cpu", latent_cache="on") < 1e-4
