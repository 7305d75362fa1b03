"""The engine returns the same tokens as transformers, whatever the scheduler does with a request."""

from __future__ import annotations

import copy

import pytest

from roseplay import SamplingParams
from tests.engine.cases import KNOBS, check_answer, engines_of, prompts
from tests.engine.greedy import generate
from tests.model.families import FAMILIES, tiny_model

NEW_TOKENS = 12
FEW = ["gpt2", "llama", "gemma2"]  # no RoPE, plain, windows and soft-cap
OTHERS = ["gpt_oss", "qwen3", "mistral", "gemma3_text"]  # the first one has sinks
REQUIRED = [*FEW, *(pytest.param(family, marks=pytest.mark.slow) for family in OTHERS)]
CASES = {
    **KNOBS,
    "after preemption": {"num_blocks": 12, "prefix_cache": False},
    "after preemption, resumed from the cache": {"num_blocks": 12},
    "swapped at preemption": {"num_blocks": 12, "prefix_cache": False, "preemption_mode": "swap"},
    "least frequently used, pinned": {"num_blocks": 40, "eviction_policy": "lfu", "pinned_blocks": 4},
}


@pytest.mark.parametrize("family", REQUIRED)
def test_greedy_output_equals_generate(family):
    model = tiny_model(FAMILIES[family]())
    reference = copy.deepcopy(model)
    asked = [prompts()[-1], *prompts()]
    expected = [generate(reference, prompt, NEW_TOKENS) for prompt in asked]
    params = SamplingParams(max_new_tokens=NEW_TOKENS, ignore_eos=True)
    for case, engine in engines_of(CASES, model, dtype="float32"):
        alone = engine.submit(asked[0], params).result(60)
        outputs = [alone, *(engine.submit(prompt, params) for prompt in asked[1:])]
        for stream, theirs in zip(outputs, expected, strict=True):
            check_answer(reference, stream.result(60), theirs, case)
        if "preemption" in case:
            assert sum(stream.metrics.num_preemptions for stream in outputs) > 0, case
        if case in ("batched", "chunked"):
            assert outputs[-1].metrics.cached_tokens == len(asked[-1])  # an exact repeat computes nothing
