"""A model that computes NaN for a request: this request ends with an error and leaves nothing behind."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from roseplay import Engine, SamplingParams
from tests.engine.test_overlap import has_no_blocks, open_engine
from tests.model.families import FAMILIES, VOCABULARY, tiny_model
from tests.waiting import wait_until

PARAMS = {
    "greedy": {},
    "sampled": {"temperature": 1.0, "seed": 3},
    "cut": {"temperature": 0.8, "seed": 4, "top_k": 20, "top_p": 0.9, "min_p": 0.01},
    "penalised": {"repetition_penalty": 1.3, "presence_penalty": 0.5, "logprobs": 2},
    "penalised and sampled": {"temperature": 1.0, "seed": 5, "frequency_penalty": 0.5, "logprobs": 0},
}
GOOD = [[7, 8, 9, 10, 11], [3] * 9, [20, 21]]


@pytest.fixture(scope="module")
def model() -> Any:
    """Input and output embeddings are separate, so that a broken input does not break other requests' outputs."""
    model = tiny_model(FAMILIES["llama"]())
    assert model.get_input_embeddings().weight is not model.get_output_embeddings().weight
    return model


@pytest.fixture(scope="module", params=[Engine, open_engine], ids=["cpu", "as on a gpu"])
def engine_of_all_tests(request: pytest.FixtureRequest, model: Any) -> Iterator[Engine]:
    with request.param(model, block_size=4, num_blocks=100) as engine:
        yield engine


@contextlib.contextmanager
def broken(model: Any, token: int) -> Iterator[None]:
    """The model computes NaN wherever it reads the token."""
    row = model.get_input_embeddings().weight.data[token]
    before = row.clone()
    row.fill_(torch.nan)
    try:
        yield
    finally:
        row.copy_(before)


def params_of(kind: str, **more: Any) -> SamplingParams:
    return SamplingParams(**{"max_new_tokens": 6, "ignore_eos": True, **PARAMS[kind], **more})


def unused_token(engine: Engine, kind: str) -> tuple[list[list[int]], int]:
    """The engine's answers to ``GOOD``, and a token that occurs in none of them."""
    streams = [engine.submit(prompt, params_of(kind)) for prompt in GOOD]
    answers = [stream.result(30).token_ids for stream in streams]
    used = {token for tokens in [*answers, *GOOD] for token in tokens}
    return answers, next(token for token in range(3, VOCABULARY) if token not in used)


@pytest.mark.parametrize("kind", PARAMS)
def test_the_request_ends_with_the_reason_and_the_others_go_on(model: Any, engine: Engine, kind: str):
    answers, bad = unused_token(engine, kind)
    with broken(model, bad):
        for prompt in ([5, bad], [40 + i for i in range(8)] + [bad] * 4, [bad, *range(40, 50)]):
            streams = [engine.submit(tokens, params_of(kind)) for tokens in (GOOD[0], prompt, *GOOD[1:])]
            good, failed, *others = [stream.result(30) for stream in streams]
            assert [result.token_ids for result in (good, *others)] == answers
            assert (failed.finish_reason, failed.token_ids) == ("error", [])
            assert failed.error is not None
            assert "the model gave NaN logits for this request" in failed.error
    wait_until(lambda: has_no_blocks(engine))


@pytest.mark.parametrize(("length", "copies"), [(3, 4), (7, 1), (8, 4), (9, 1)])
def test_a_request_that_failed_is_computed_anew_when_it_is_sent_again(
    model: Any, engine: Engine, length: int, copies: int
):
    """The same holds for prompts that begin with it, and for requests that shared its computation."""
    prompt = [30 + i for i in range(length)]
    longer = [*prompt, 50, 51, 52, 53, 54]
    expected = [engine.submit(tokens, params_of("greedy")).result(30).token_ids for tokens in (prompt, longer)]
    engine.clear_cache()
    with broken(model, prompt[-1]):
        streams = [engine.submit(list(prompt), params_of("greedy", seed=i)) for i in range(copies)]
        assert {stream.result(30).finish_reason for stream in streams} == {"error"}
    again = [engine.submit(tokens, params_of("greedy")).result(30) for tokens in (prompt, longer)]
    assert [result.token_ids for result in again] == expected
    assert again[0].metrics.cached_tokens == 0


def test_a_prompt_in_parts_leaves_nothing_of_its_earlier_steps(model: Any, engine: Engine):
    prompt = [30 + i for i in range(24)]
    expected = engine.submit(prompt, params_of("greedy")).result(30).token_ids
    engine.clear_cache()
    engine.set_knobs(prefill_max_tokens=8)
    with broken(model, prompt[2]), broken(model, prompt[-1]):
        assert engine.submit(prompt, params_of("greedy")).result(30).finish_reason == "error"
    again = engine.submit(prompt, params_of("greedy")).result(30)
    assert (again.token_ids, again.metrics.cached_tokens) == (expected, 0)


def test_a_request_that_fails_while_it_decodes_keeps_what_it_said(model: Any, engine: Engine):
    prompt, other = [30, 31, 32], [60, 61]
    expected = engine.submit(prompt, params_of("greedy")).result(30).token_ids
    first = expected[0]
    beside = engine.submit(other, params_of("greedy")).result(30).token_ids
    assert first not in [*prompt, *other, *beside]
    with broken(model, first):
        streams = [engine.submit(tokens, params_of("greedy")) for tokens in (prompt, other)]
        failed, going_on = (stream.result(30) for stream in streams)
        assert (failed.finish_reason, failed.token_ids) == ("error", [first])
        assert going_on.token_ids == beside
    assert engine.submit(prompt, params_of("greedy")).result(30).token_ids == expected
