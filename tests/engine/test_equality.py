"""The engine returns the same tokens as transformers, whatever the scheduler does with a request."""

from __future__ import annotations

import copy

import pytest
import torch

from roseplay import Engine, SamplingParams
from tests.engine.greedy import assert_greedy, assert_same_until_a_tie, generate
from tests.model.families import FAMILIES, VOCABULARY, tiny_model

NEW_TOKENS = 12
FEW = ["gpt2", "llama", "gemma2"]  # no RoPE, plain, windows and soft-cap
OTHERS = ["gpt_oss", "qwen3", "mistral", "gemma3_text"]  # the first one has sinks
REQUIRED = [*FEW, *(pytest.param(family, marks=pytest.mark.slow) for family in OTHERS)]
CASES = {
    "batched": {},
    "chunked": {"prefill_max_tokens": 7},
    "unchunked": {"prefill_max_tokens": 7, "chunked_prefill": False},
    "one at a time": {"max_batch_size": 1},
    "not shared": {"prefix_cache": False, "same_step_sharing": False},
    "one append a request": {"batched_append": False},
    "after preemption": {"num_blocks": 12, "prefix_cache": False},
    "after preemption, resumed from the cache": {"num_blocks": 12},
    "swapped at preemption": {"num_blocks": 12, "prefix_cache": False, "preemption_mode": "swap"},
    "few tokens a step": {"step_max_tokens": 5},
    "least frequently used, pinned": {"num_blocks": 40, "eviction_policy": "lfu", "pinned_blocks": 4},
}


def prompts() -> list[list[int]]:
    """Lengths around blocks of 4 and windows of 8, with common prefixes and an exact repeat."""
    generator = torch.Generator().manual_seed(3)
    head = torch.randint(3, VOCABULARY, (17,), generator=generator).tolist()
    made = [
        torch.randint(3, VOCABULARY, (length,), generator=generator).tolist() for length in (1, 3, 4, 5, 11, 19, 24)
    ]
    return [*made, [*head, 5], [*head, 6, 7], made[5]]


@pytest.mark.parametrize("family", REQUIRED)
def test_greedy_output_equals_generate(family):
    model = tiny_model(FAMILIES[family]())
    reference = copy.deepcopy(model)
    asked = prompts()
    expected = [generate(reference, prompt, NEW_TOKENS) for prompt in asked]
    params = SamplingParams(max_new_tokens=NEW_TOKENS, ignore_eos=True)
    for case, settings in CASES.items():
        with Engine(model, block_size=4, dtype="float32", **settings) as engine:
            alone = engine.submit(asked[-1], params).result(60)
            streams = [engine.submit(prompt, params) for prompt in asked]
            outputs = [stream.result(60) for stream in [alone, *streams]]
        for prompt, theirs, stream in zip([asked[-1], *asked], [expected[-1], *expected], outputs, strict=True):
            assert stream.error is None, (case, stream.error)
            assert len(stream.token_ids) == NEW_TOKENS, case
            assert_greedy(reference, prompt, stream.token_ids)
            assert_same_until_a_tie(reference, prompt, stream.token_ids, theirs)
        if "preemption" in case:
            assert sum(stream.metrics.num_preemptions for stream in outputs) > 0
        if case in ("batched", "chunked"):
            assert outputs[-1].metrics.cached_tokens == len(asked[-1])  # an exact repeat computes nothing
