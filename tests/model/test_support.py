"""Models that are refused, each by name and in one line, and untested families that are checked when loaded."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf

from roseplay.config import EngineConfig
from roseplay.model.errors import UnsupportedModelError
from roseplay.model.loader import load_model
from roseplay.model.shrink import shrink
from tests.model.families import FAMILIES, STATEFUL, base, tiny_model
from tests.model.harness import eager_logits, make_runner, random_tokens, refusal

_TINY = base(num_hidden_layers=2)

REFUSED = {
    "bloom": (lambda: tf.BloomConfig(vocab_size=64, hidden_size=32, n_layer=2, n_head=4), "own attention"),
    "falcon": (lambda: tf.FalconConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2), "own attention"),
    "mamba": (lambda: tf.MambaConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2), "no attention layer"),
    "minimax": (lambda: tf.MiniMaxConfig(**_TINY, num_local_experts=4), "cache of its own"),
    "t5": (lambda: tf.T5Config(vocab_size=64, d_model=32), "encoder-decoder"),
}  # fmt: skip


@pytest.mark.parametrize("kind", REFUSED)
def test_refused_by_name_before_weights_are_read(kind: str, tmp_path: Path):
    make, why = REFUSED[kind]
    make().save_pretrained(tmp_path)
    assert re.search(f"{kind}.*({why})", refusal(tmp_path, random_weights=True))


def test_refused_in_memory():
    assert "bloom" in refusal(tf.BloomForCausalLM(REFUSED["bloom"][0]()))
    assert "no language model head" in refusal(tf.LlamaModel(tf.LlamaConfig(**_TINY)))
    both_ways = tf.Gemma3TextConfig(**_TINY, head_dim=8, use_bidirectional_attention=True)
    assert "both directions" in refusal(tf.Gemma3ForCausalLM(both_ways))


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"model_type": "no-such-model"}, "config cannot be read"),
        (
            {"model_type": "x", "auto_map": {"AutoConfig": "x.Config", "AutoModelForCausalLM": "x.Model"}},
            "trust_remote_code",
        ),
    ],
)
def test_an_unknown_config_is_refused_and_no_code_of_its_own_is_run(config: dict[str, Any], why: str, tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "x.py").write_text("raise SystemExit('this ran')\n")
    assert why in refusal(tmp_path)


UNPROVEN = {
    "olmo": lambda: tf.OlmoConfig(**_TINY),
    "qwen2_moe": lambda: tf.Qwen2MoeConfig(
        **_TINY, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, shared_expert_intermediate_size=16
    ),
    "olmo3": lambda: tf.Olmo3Config(**_TINY, sliding_window=8),
    "ernie4_5": lambda: tf.Ernie4_5Config(**_TINY),
}


@pytest.mark.parametrize("kind", UNPROVEN)
def test_unproven_family_is_tried_and_taken(kind: str):
    model = tiny_model(UNPROVEN[kind]())
    runner = make_runner(model)
    assert runner.info().architecture == type(model).__name__


def test_of_a_model_for_pictures_the_part_that_reads_text_is_served(tmp_path: Path):
    text = STATEFUL["qwen3_5_text"]()
    tf.Qwen3_5Config(text_config=text.to_dict()).save_pretrained(tmp_path)
    loaded = load_model(str(tmp_path), EngineConfig(random_weights=True))
    assert (type(loaded.model).__name__, loaded.vocab_size) == ("Qwen3_5ForCausalLM", text.vocab_size)
    assert set(loaded.state_shapes) == {0, 2}
    assert ["only the text part of" in choice.chosen for choice in loaded.choices] == [True]


BIG_HYBRIDS = {
    "bamba": lambda: tf.BambaConfig(attn_layer_indices=[9, 18, 27], mamba_n_heads=128, mamba_d_head=64),
    "jamba": tf.JambaConfig,
    "qwen3_next": tf.Qwen3NextConfig,
    "zamba2": tf.Zamba2Config,
}


@pytest.mark.parametrize("kind", BIG_HYBRIDS)
def test_shrink_keeps_attention_and_states(kind: str):
    config = BIG_HYBRIDS[kind]()
    small = shrink(config, widths=True)
    kinds = [{type(layer) for layer in tf.DynamicCache(config=each).layers} for each in (config, small)]
    assert kinds[0] == kinds[1]
    assert small.hidden_size <= config.hidden_size
    with torch.device("meta"):
        tf.AutoModelForCausalLM.from_config(small)


class ForgetfulLlama(tf.LlamaForCausalLM):
    """A custom class over a supported family: its mask alone drops the tokens before a window."""

    def forward(self, *args, **kwargs):
        if self.config._attn_implementation == "eager":
            length = kwargs["input_ids"].shape[1]
            near = torch.ones(length, length).tril().triu(-3) == 0
            kwargs["attention_mask"] = torch.zeros(1, 1, length, length).masked_fill(near, float("-inf"))
        return super().forward(*args, **kwargs)


def test_own_class_of_a_proven_family_is_tried():
    assert "something else" in refusal(ForgetfulLlama(tf.LlamaConfig(**_TINY)))


def test_shrink_keeps_each_kind_of_layer():
    kinds = ["sliding_attention"] * 5 + ["full_attention"]
    config = tf.Gemma3TextConfig(
        num_hidden_layers=12, layer_types=kinds * 2, sliding_window=512, vocab_size=262208, eos_token_id=[1, 106]
    )
    small = shrink(config, widths=True)
    assert small.layer_types == kinds
    assert small.num_hidden_layers == 6
    assert small.sliding_window == 8
    assert small.vocab_size == 256
    assert config.num_hidden_layers == 12


def test_a_model_in_memory_is_left_as_it_was():
    model = tiny_model(FAMILIES["llama"]())
    tokens = random_tokens(12, 97, 0)
    before = eager_logits(model, tokens)
    loaded = load_model(model, EngineConfig(num_blocks=8))
    assert model.config._attn_implementation == "eager"
    assert torch.equal(eager_logits(model, tokens), before)
    assert loaded.model.model.embed_tokens.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()


def test_tied_weights_stay_tied_and_count_once():
    model = tiny_model(FAMILIES["gpt2"]())
    loaded = load_model(model, EngineConfig(pack_weights=False))
    assert loaded.model.lm_head.weight is loaded.model.transformer.wte.weight
    assert loaded.num_parameters == sum(p.numel() for p in model.parameters())
    assert load_model(model, EngineConfig()).num_parameters == loaded.num_parameters


def test_a_family_that_cannot_be_tried_is_distinguished_from_one_that_fails():
    class Broken(tf.LlamaForCausalLM):
        def __init__(self, config: tf.LlamaConfig) -> None:
            super().__init__(config)
            if config.num_hidden_layers == 4:
                raise ValueError("an odd number of layers is needed")

    model = Broken(tf.LlamaConfig(**{**_TINY, "num_hidden_layers": 5}))
    with pytest.raises(
        UnsupportedModelError, match="no small copy of it can be made.*the family itself may work"
    ) as error:
        load_model(model, EngineConfig())
    assert error.value.untried
    with pytest.raises(UnsupportedModelError, match="own attention") as error:
        load_model(tf.BloomForCausalLM(REFUSED["bloom"][0]()), EngineConfig())
    assert not error.value.untried


class ForgetfulCache(tf.LlamaForCausalLM):
    """Sees less with a cache than without one."""

    def forward(self, *args, **kwargs):
        output = super().forward(*args, **kwargs)
        if kwargs.get("past_key_values", kwargs.get("cache")) is not None:
            output.logits = output.logits.flip(-1)
        return output


def test_a_model_that_contradicts_itself_is_refused():
    assert "with a cache than without" in refusal(ForgetfulCache(tf.LlamaConfig(**_TINY)))


def test_per_layer_settings_shrink_with_the_layers():
    changes = {layer: {"head_dim": 512, "num_key_value_heads": 2} for layer in range(5, 30, 6)}
    config = tf.Gemma4TextConfig(num_attention_heads=16, num_key_value_heads=8, per_layer_config=changes)
    small = shrink(config, widths=True)
    assert (small.num_hidden_layers, small.num_attention_heads) == (6, 4)
    kept = [small.per_layer_config[layer] for layer in range(6)]
    assert [layer.head_dim for layer in kept] == [256] * 5 + [512]
    assert [layer.num_key_value_heads for layer in kept] == [2] * 6
