"""Attention patterns that a model expresses only in its mask, and layers that read the keys of other layers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers as tf

from roseplay.config import EngineConfig
from roseplay.model import loader, probe
from roseplay.model.attention.pattern import EVERYTHING, Reach, pattern_of, share_keys
from roseplay.model.errors import UnsupportedModelError
from roseplay.model.loader import load_model
from roseplay.model.shrink import shrink
from tests.model.families import base, tiny_model
from tests.model.test_families import worst_difference
from tests.suites.families.family_check import check_model

_SIZES = {"vocab_size": 256, "max_position_embeddings": 128}
_SHARED = base(
    **_SIZES,
    head_dim=16,
    num_hidden_layers=6,
    layer_types=["sliding_attention", "full_attention"] * 3,
    num_kv_shared_layers=3,
    sliding_window=6,
    vocab_size_per_layer_input=256,
    hidden_size_per_layer_input=8,
)
# Windows and chunks of 6 or 8 tokens, far shorter than the prompts; temperatures that change every 8 tokens.
FAMILIES = {
    "llama4_text": lambda: tf.Llama4TextConfig(
        **base(**_SIZES, num_hidden_layers=4, head_dim=8),
        intermediate_size_mlp=48,
        num_local_experts=2,
        attention_chunk_size=6,
        no_rope_layers=[1, 1, 1, 0],
        floor_scale=8,
    ),
    "phimoe": lambda: tf.PhimoeConfig(**base(**_SIZES, num_hidden_layers=2), num_local_experts=4, sliding_window=6),
    "gemma3n_text": lambda: tf.Gemma3nTextConfig(**_SHARED, laurel_rank=8, activation_sparsity_pattern=[0.0] * 6),
    "gemma4_text": lambda: tf.Gemma4TextConfig(**_SHARED, global_head_dim=24),
}


@pytest.mark.parametrize("family", ["llama4_text", "gemma3n_text"])
def test_tokens_equal_generate(family: str):
    found = check_model(family, tiny_model(FAMILIES[family]()))
    assert (found.kind, found.why) == ("equal", "")


@pytest.mark.parametrize("attention", ["cpu", "gather", "reference"])
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_eager(family: str, attention: str):
    assert worst_difference(tiny_model(FAMILIES[family]()), attention) < 1e-4


@pytest.mark.parametrize("family", ["llama4_text", "phimoe"])
def test_a_pattern_that_is_ignored_is_noticed(family: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(loader, "adopt_config_patterns", lambda model: None)
    assert check_model(family, tiny_model(FAMILIES[family]())).kind == "wrong"
    monkeypatch.setattr(probe, "adopt_config_patterns", lambda model: None)
    with pytest.raises(UnsupportedModelError, match=f"{family} computes something else"):
        load_model(tiny_model(FAMILIES[family]()), EngineConfig())


def test_temperatures_are_of_positions(monkeypatch: pytest.MonkeyPatch):
    """Llama 4 derives them from a token's index in the call, which contains tokens of several requests."""
    monkeypatch.setattr("roseplay.model.layout.adopt_temperatures", lambda model: None)
    with pytest.raises(UnsupportedModelError, match="computes something else"):
        load_model(tiny_model(FAMILIES["llama4_text"]()), EngineConfig())


@pytest.mark.parametrize("kind", ["llama4", "gemma4"])
def test_of_whole_models_the_part_that_reads_text_is_served(kind: str, tmp_path: Path):
    text = FAMILIES[f"{kind}_text"]().to_dict()
    config = tf.CONFIG_MAPPING[kind](text_config=text, vision_config={"num_hidden_layers": 1})
    config.save_pretrained(tmp_path)
    loaded = load_model(str(tmp_path), EngineConfig(random_weights=True))
    assert [choice.chosen.split(" of ")[0] for choice in loaded.choices] == ["only the text part"]
    assert loaded.vocab_size == text["vocab_size"]


@pytest.mark.parametrize("family", ["gemma3n_text", "gemma4_text"])
def test_layers_that_share_keys_cache_none(family: str):
    """Layers 3 to 5 read the keys of the last earlier layer of their kind that has its own: layer 2 or 1."""
    loaded = load_model(tiny_model(FAMILIES[family]()), EngineConfig())
    assert list(loaded.kv_shapes) == [0, 1, 2]
    assert loaded.kv_shapes[1].k_dim == (24 if family == "gemma4_text" else 16)
    attention = {m.layer_idx: m for m in loaded.model.modules() if hasattr(m, "is_kv_shared_layer")}
    assert [pattern_of(attention[layer]).kv_layer for layer in range(6)] == [None, None, None, 1, 2, 1]


def test_reading_the_keys_of_another_layer_is_noticed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        "roseplay.model.layout.share_keys", lambda model, layers: share_keys(model, dict.fromkeys(layers, 0))
    )
    with pytest.raises(UnsupportedModelError, match="computes something else|does not run"):
        load_model(tiny_model(FAMILIES["gemma3n_text"]()), EngineConfig())


@pytest.mark.parametrize(
    ("reach", "firsts"),
    [
        (EVERYTHING, [0, 0, 0, 0, 0, 0]),
        (Reach(window=3), [-2, -1, 0, 1, 2, 3]),
        (Reach(chunk=3), [0, 0, 0, 3, 3, 3]),
    ],
)
def test_first_of_a_reach(reach: Reach, firsts: list[int]):
    assert reach.first(torch.arange(6)).tolist() == firsts
    assert [reach.first(position) for position in range(6)] == firsts


@pytest.mark.parametrize("kind", ["gemma3n_text", "gemma4_text"])
def test_a_small_copy_keeps_the_kinds_of_layers_that_share(kind: str):
    """Gemma 3n's default config, and Gemma 4's with the last 12 of 30 layers sharing."""
    config = tf.CONFIG_MAPPING[kind](num_kv_shared_layers={"gemma3n_text": 15, "gemma4_text": 12}[kind])
    small = shrink(config, widths=True)
    own = small.num_hidden_layers - small.num_kv_shared_layers
    assert small.num_hidden_layers <= 8
    assert len(small.layer_types) == small.num_hidden_layers
    assert set(small.layer_types[:own]) == set(small.layer_types[own:]) == {"sliding_attention", "full_attention"}
    if kind == "gemma4_text":
        dims = [small.per_layer_config[layer].head_dim for layer in range(small.num_hidden_layers)]
        assert dims == [256 if kind == "sliding_attention" else 512 for kind in small.layer_types]
