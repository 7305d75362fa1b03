"""Rotary embeddings that depend on the longest position are frozen, so a neighbour changes no request's keys."""

from __future__ import annotations

import pytest
import torch
import transformers as tf

from roseplay.config import EngineConfig
from roseplay.model.loader import load_model
from tests.model.families import VOCABULARY, base, tiny_model
from tests.model.harness import Driver, check_logits, make_runner, random_tokens, refusal


def dynamic_llama():
    rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
    return tiny_model(tf.LlamaConfig(**base(max_position_embeddings=16, rope_parameters=rope)))


def longrope_phi3():
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0] * 4,
        "long_factor": [3.0, 5.0, 7.0, 11.0],
        "original_max_position_embeddings": 16,
        "partial_rotary_factor": 1.0,
    }
    return tiny_model(tf.Phi3Config(**base(original_max_position_embeddings=16, rope_parameters=rope)))


MODELS = {"dynamic": dynamic_llama, "longrope": longrope_phi3}


@pytest.mark.parametrize("kind", MODELS)
def test_a_longer_neighbour_changes_nothing(kind: str):
    model = MODELS[kind]()
    short, long = random_tokens(10, VOCABULARY, 0), random_tokens(60, VOCABULARY, 1)
    alone = Driver(make_runner(model), [short])
    together = Driver(make_runner(model), [short, long])
    before = [alone.step({0: 6})[0], alone.step({0: 4})[0]]
    with_neighbour = [together.step({0: 6})[0], together.step({0: 4, 1: 60})[0]]
    for ours, theirs in zip(before, with_neighbour, strict=True):
        assert (ours - theirs).abs().max() < 1e-4


@pytest.mark.parametrize("length", [64, 16])
@pytest.mark.parametrize("kind", MODELS)
def test_the_longest_request_gets_what_eager_gives_it(kind: str, length: int):
    """A short limit keeps the short frequencies."""
    model = MODELS[kind]()
    tokens = random_tokens(length, VOCABULARY, 2)
    check_logits(make_runner(model, max_model_len=length), model, tokens, 10)


def test_the_model_that_was_given_keeps_its_own_frequencies():
    model = dynamic_llama()
    before = model.model.rotary_emb.inv_freq.clone()
    loaded = load_model(model, EngineConfig())
    assert loaded.max_model_len == 64  # dynamic: its 16 positions times the factor
    assert not torch.equal(loaded.model.model.rotary_emb.inv_freq, before)
    assert torch.equal(model.model.rotary_emb.inv_freq, before)
    assert model.model.rotary_emb.rope_type == "dynamic"


def test_an_embedding_that_cannot_be_frozen_is_refused():
    model = dynamic_llama()
    model.model.rotary_emb.rope_type = "default"  # as if the module had another rope type
    assert "dynamic rotary embedding cannot be frozen" in refusal(model)
