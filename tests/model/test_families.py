"""Every supported family: packed, paged and chunked logits equal those of eager attention."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from roseplay.model.attention.gather import GatherBackend
from roseplay.model.attention.interface import register_backend
from roseplay.model.support import PROVEN
from tests.model.families import FAMILIES, VOCABULARY, tiny_model
from tests.model.harness import Driver, eager_logits, make_runner, random_tokens

# Prompts of different lengths, the first two longer than the windows of 8 tokens; 24 is a multiple of the block size 4.
LENGTHS = (37, 24, 5, 1)
# The number of tokens of each prompt that a step computes: whole prompts, chunks, decodes, and mixtures of them.
SCHEDULE = (
    {0: 17, 2: 3},
    {2: 1, 0: 11, 1: 20},
    {0: 1, 2: 1, 1: 3, 3: 1},
    {0: 7, 1: 1},
    {0: 1},
)


def worst_difference(model, attention: str, batched_append: bool = True, **settings: Any) -> float:
    prompts = [random_tokens(length, VOCABULARY, seed) for seed, length in enumerate(LENGTHS)]
    expected = [eager_logits(model, prompt) for prompt in prompts]
    driver = Driver(make_runner(model, attention=attention, **settings), prompts, batched_append=batched_append)
    worst = 0.0
    for counts in SCHEDULE:
        for i, logits in driver.step(counts).items():
            worst = max(worst, float((logits - expected[i][driver.computed[i] - 1]).abs().max()))
    assert driver.computed == list(LENGTHS)
    return worst


def test_all_proven_families_are_here():
    assert {make().model_type for make in FAMILIES.values()} == PROVEN


# Families whose layers attend in ways of their own: without RoPE, plainly, within windows, with a softcap, with sinks,
# and to values of another size than keys.
KINDS = ("gpt2", "llama", "mistral", "gemma2", "gpt_oss", "deepseek_v3")


@pytest.mark.parametrize(
    ("family", "attention"),
    [
        *((family, "cpu") for family in FAMILIES),
        *((family, "gather") for family in KINDS),
        *(pytest.param(family, "gather", marks=pytest.mark.slow) for family in FAMILIES if family not in KINDS),
        *(pytest.param(family, "reference", marks=pytest.mark.slow) for family in FAMILIES),
    ],
)
def test_logits_equal_eager(family: str, attention: str):
    model = tiny_model(FAMILIES[family]())
    assert worst_difference(model, attention) < 1e-4


@pytest.mark.parametrize("attention", ["cpu", "gather"])
@pytest.mark.parametrize("family", ["gpt2", "gemma2", "gpt_oss", "deepseek_v3"])
def test_append_per_request_equals_batched(family: str, attention: str):
    model = tiny_model(FAMILIES[family]())
    assert worst_difference(model, attention, batched_append=False) < 1e-4


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt_oss", "deepseek_v3"])
@pytest.mark.parametrize("attention", ["cpu", "gather"])
def test_keys_and_values_in_int8_are_close(family: str, attention: str):
    """Their error is a part in 254 of a head's largest number; whole prompts read from the cache as well."""
    model = tiny_model(FAMILIES[family]())
    batched, one_by_one = (
        worst_difference(model, attention, batched_append=batched, kv_dtype="int8") for batched in (True, False)
    )
    assert 1e-3 < batched < 0.1
    assert one_by_one == pytest.approx(batched, rel=0.1)


@pytest.mark.parametrize("kv_dtype", ["auto", "int8"])
def test_bfloat16_backends_agree(kv_dtype: str):
    """Rounding errors are far larger in bfloat16, so the fast backends are compared with the reference, not eager."""
    model = tiny_model(FAMILIES["gemma2"]()).to(torch.bfloat16)
    prompts = [random_tokens(length, VOCABULARY, seed) for seed, length in enumerate(LENGTHS)]
    names = ("cpu", "gather", "reference")
    drivers = [Driver(make_runner(model, attention=name, kv_dtype=kv_dtype), prompts) for name in names]
    for counts in SCHEDULE:
        *found, truth = (driver.step(counts) for driver in drivers)
        for ours in found:
            for i in counts:
                assert (ours[i] - truth[i]).abs().max() < 0.05 * truth[i].std().clamp(min=1.0) * 4
    assert drivers[0].runner.cache.keys[0].dtype == (torch.int8 if kv_dtype == "int8" else torch.bfloat16)


@pytest.mark.parametrize("attention", ["cpu", "gather"])
def test_many_decodes_are_grouped(attention: str):
    """More rows, with more different lengths, than fit one group of the fast backend."""
    model = tiny_model(FAMILIES["llama"]())
    lengths = [2 + (7 * i) % 50 for i in range(24)]
    prompts = [random_tokens(length, VOCABULARY, seed) for seed, length in enumerate(lengths)]
    expected = [eager_logits(model, prompt) for prompt in prompts]
    driver = Driver(make_runner(model, num_blocks=400, attention=attention), prompts)
    driver.step({i: length - 1 for i, length in enumerate(lengths)})
    for i, logits in driver.step(dict.fromkeys(range(24), 1)).items():
        assert (logits - expected[i][-1]).abs().max() < 1e-4


def test_equal_prompts_in_one_step_attend_together():
    model = tiny_model(FAMILIES["mistral"]())
    prompts = [random_tokens(19, VOCABULARY, seed) for seed in range(3)]
    driver = Driver(make_runner(model), prompts)
    for i, logits in driver.step({0: 19, 1: 19, 2: 19}).items():
        assert (logits - eager_logits(model, prompts[i])[-1]).abs().max() < 1e-4


@pytest.fixture
def short_spans() -> Iterator[None]:
    """Limits a span to six masked queries."""
    register_backend("gather", functools.partial(GatherBackend, masked_queries=6))
    yield
    register_backend("gather", GatherBackend)


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2", "gpt_oss"])
def test_long_prompts_attend_in_spans(family: str, short_spans: None):
    """Whole prompts and chunks that need several spans, with a shorter last one."""
    assert worst_difference(tiny_model(FAMILIES[family]()), "gather") < 1e-4
    model = tiny_model(FAMILIES[family]())
    prompts = [random_tokens(31, VOCABULARY, seed) for seed in range(2)]
    driver = Driver(make_runner(model, attention="gather"), prompts)
    for i, logits in driver.step({0: 31, 1: 31}).items():
        assert (logits - eager_logits(model, prompts[i])[-1]).abs().max() < 1e-4
