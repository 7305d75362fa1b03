"""The API samples as the model's author recommends, unless the request says otherwise."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest

from roseplay.config import SamplingParams
from roseplay.engine.client import Engine
from roseplay.serve.bodies import ChatBody, CompletionBody
from roseplay.serve.errors import ApiError
from roseplay.serve.submitting import prepare_chat, prepare_completion


@pytest.fixture
def recommending(engine: Engine) -> Any:
    """An engine whose model's author recommends short greedy answers."""
    recommended = {"temperature": 0.0, "repetition_penalty": 1.5, "max_new_tokens": 6}
    return SimpleNamespace(
        info=dataclasses.replace(engine.info, sampling_defaults=recommended), tokenizer=engine.tokenizer
    )


def drawn(engine: Any, **body: Any) -> SamplingParams:
    """The sampling parameters of a chat, or of a completion if the body has a prompt."""
    if "prompt" in body:
        return prepare_completion(engine, CompletionBody(model="m", **body))[0].params
    messages: Any = [{"role": "user", "content": "What is TTFT?"}]
    return prepare_chat(engine, ChatBody(model="m", messages=messages, **body))[0].params


def test_what_a_request_does_not_say_is_the_authors(recommending: Any) -> None:
    params = drawn(recommending)
    assert (params.temperature, params.repetition_penalty, params.max_new_tokens) == (0, 1.5, 6)
    assert (params.top_p, params.top_k) == (1, None)


def test_an_authors_limit_beyond_the_context_is_lowered_to_it(recommending: Any) -> None:
    info = recommending.info = dataclasses.replace(recommending.info, sampling_defaults={"max_new_tokens": 10**6})
    messages: Any = [{"role": "user", "content": "What is TTFT?"}]
    (request,) = prepare_chat(recommending, ChatBody(model="m", messages=messages))
    most = min(info.max_model_len, (info.num_blocks - 1) * info.block_size)
    assert request.params.max_new_tokens == most - len(request.token_ids)


@pytest.mark.parametrize(
    ("room", "limit", "param"),
    [(1, {"max_tokens": 2}, "max_tokens"), (1, {}, "prompt"), (0, {"max_tokens": 1}, "prompt"), (-1, {}, "prompt")],
)
def test_a_request_that_is_too_long_names_what_to_shorten(
    engine: Engine, room: int, limit: dict[str, Any], param: str
) -> None:
    """The limit that was given, unless the prompt leaves room for no limit."""
    info = engine.info
    most = min(info.max_model_len, (info.num_blocks - 1) * info.block_size)
    body = CompletionBody(model="m", prompt=[5] * (most - room), **limit)
    with pytest.raises(ApiError) as refused:
        prepare_completion(engine, body)
    assert (refused.value.param, refused.value.code) == (param, "context_length_exceeded")


def test_what_it_says_counts(recommending: Any) -> None:
    said = {"temperature": 1.0, "repetition_penalty": 1.0, "max_tokens": 9}  # OpenAI's defaults, given explicitly
    params = drawn(recommending, **said)
    assert (params.temperature, params.repetition_penalty, params.max_new_tokens) == (1, 1, 9)
    params = drawn(recommending, prompt="A step", temperature=None)
    assert (params.temperature, params.max_new_tokens) == (0, 16)  # null counts as not given


def test_user_and_priority_are_for_the_scheduling_policy(recommending: Any) -> None:
    params = drawn(recommending, prompt="A step", user="a team", priority=-2)
    assert (params.tenant, params.priority) == ("a team", -2)
    params = drawn(recommending, user="")  # it may be empty
    assert (params.tenant, params.priority) == (None, 0)
