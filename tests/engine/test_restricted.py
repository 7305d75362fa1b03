"""Answers of which some tokens may not be drawn: the same alone, together, guessed ahead, after preemption, as on a GPU."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from roseplay import Engine, SamplingParams
from roseplay.config import EngineConfig
from roseplay.core.request import FinishReason
from roseplay.engine.prompts import encode_bad_words
from roseplay.model.tokenizer import load_tokenizer
from tests.engine.test_overlap import open_engine, records

PROMPT = "Tell me about a fox."
WORDS = ("fox", "the", "and it", ".")
FREE = SamplingParams(max_new_tokens=40, ignore_eos=True)
PARAMS = [
    FREE,
    SamplingParams(max_new_tokens=40, bad_words=WORDS, ignore_eos=True),
    SamplingParams(max_new_tokens=40, bad_words=WORDS, temperature=0.9, seed=3, ignore_eos=True),
    SamplingParams(max_new_tokens=40, min_new_tokens=33, temperature=0.7, seed=4),
    SamplingParams(max_new_tokens=40, bad_words=("owl",), structured_outputs={"regex": "(owl|fox){9}"}),
    SamplingParams(max_new_tokens=40, min_new_tokens=20, structured_outputs={"choice": ["yes", "no"]}),
    SamplingParams(
        max_new_tokens=40, logit_bias={5: -100, 6: 1.5}, allowed_token_ids=range(4, 900), temperature=1.0, seed=5
    ),
]
CASES: dict[str, dict[str, Any]] = {
    "together": {},
    "guessed": {"speculative_tokens": 5, "lookup_ngram": 1},
    "chunked": {"prefill_max_tokens": 3},
    "after preemption": {"num_blocks": 40},
}
SETTINGS: dict[str, Any] = {"dtype": "float32", "num_blocks": 400, "block_size": 4, "worker": "thread", "threads": 1}


def answers(engine: Engine, *asked: SamplingParams) -> list[Any]:
    results = [stream.result(60) for stream in [engine.submit(PROMPT, params) for params in asked]]
    assert not any(result.error for result in results), [result.error for result in results]
    return [(result.token_ids, result.text, result.finish_reason) for result in results]


def has_bad_words(token_ids: list[int], *words: str) -> bool:
    """Whether an answer has one of the words, written as the tokenizer writes it."""
    written = encode_bad_words(words or WORDS, load_tokenizer("tiny-chat", EngineConfig()))
    return any(token_ids[at : at + len(word)] == word for word in written for at in range(len(token_ids)))


@pytest.fixture(scope="module")
def alone() -> list[Any]:
    with Engine("tiny-chat", **SETTINGS) as engine:
        return [answers(engine, params)[0] for params in PARAMS]


def test_what_each_parameter_does(alone: list[Any]) -> None:
    free, without, drawn, long, fox, choice, few = alone
    assert has_bad_words(free[0]) and not has_bad_words(without[0]) and not has_bad_words(drawn[0])
    assert len(long[0]) >= 33
    assert re.fullmatch("(owl|fox){9}", fox[1]) and fox[2] is FinishReason.STOP
    assert not has_bad_words(fox[0], "owl")
    assert choice[1] in ("yes", "no") and choice[2] is FinishReason.STOP, "it can only end"
    assert set(few[0]) <= set(range(4, 900)) - {5}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("overlap", [False, True])
def test_the_same_answers_together(alone: list[Any], case: str, overlap: bool) -> None:
    changes = dict(CASES[case])
    blocks = {"num_blocks": changes.pop("num_blocks")} if "num_blocks" in changes else {}
    settings = {**SETTINGS, **blocks, **changes}
    with open_engine("tiny-chat", **settings) if overlap else Engine("tiny-chat", **settings) as engine:
        assert answers(engine, *PARAMS) == alone
        assert answers(engine, *PARAMS[::-1]) == alone[::-1]
        if blocks:
            assert any(record.preempted for record in records(engine))
        if "speculative_tokens" in changes:
            assert any(record.draft_tokens for record in records(engine))


def test_a_model_without_a_tokenizer_has_no_bad_words(tiny_llama: Any) -> None:
    with Engine(tiny_llama, num_blocks=20) as engine, pytest.raises(ValueError, match="no tokenizer"):
        engine.submit([3, 4], SamplingParams(bad_words=["a"], max_new_tokens=2))


def test_biases_are_kept_as_pairs() -> None:
    params = SamplingParams(logit_bias={"5": 1, 6: -2.5})
    assert params.logit_bias == ((5, 1), (6, -2.5)) == SamplingParams(logit_bias=[[5, 1], [6, -2.5]]).logit_bias
    assert json.loads(json.dumps(params.logit_bias)) == [[5, 1], [6, -2.5]] and hash(params)
    for wrong in ({5: 200}, {-1: 1}, {5: True}, [(5, 1), (5, 2)]):
        with pytest.raises(ValueError, match="use numbers from -100 to 100 by token id"):
            SamplingParams(logit_bias=wrong)
