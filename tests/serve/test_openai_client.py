"""OpenAI's own client uses the API, and checks every response against its types."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import openai
import pytest
from pydantic import BaseModel, Field, ValidationError

from roseplay.config import SamplingParams
from roseplay.engine.client import Engine
from roseplay.own_models import gguf_packages_missing, smollm2_file
from roseplay.serve.bodies import ChatBody, CompletionBody
from tests.serve.conftest import serving
from tests.waiting import wait_until

MODEL = "tiny-chat"
QUESTION: list[Any] = [{"role": "user", "content": "What is a KV cache?"}]


@pytest.fixture
def client(address: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{address}/v1", api_key="none", max_retries=0, timeout=60, _strict_response_validation=True
    ) as client:
        yield client


def expected(engine: Engine, prompt: Any, most: int, **params: Any) -> Any:
    """The engine's own answer."""
    return engine.submit(prompt, SamplingParams(max_new_tokens=most, **params)).result(60)


def chat(client: openai.OpenAI, **more: Any) -> Any:
    """Ask the question, greedily unless said otherwise."""
    return client.chat.completions.create(**{"model": MODEL, "messages": QUESTION, "temperature": 0, **more})


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError, match="there is no model 'gpt-9' here: use 'tiny-chat'"):
        client.models.retrieve("gpt-9")


def test_a_chat_is_answered_as_the_engine_answers_it(client: openai.OpenAI, engine: Engine) -> None:
    found = chat(client, max_completion_tokens=24)
    ours = expected(engine, QUESTION, 24)
    (choice,) = found.choices
    assert choice.message.content == ours.text and choice.message.role == "assistant"
    assert choice.finish_reason == str(ours.finish_reason)
    assert found.usage.prompt_tokens == len(ours.prompt_token_ids)
    assert found.usage.completion_tokens == len(ours.token_ids)
    assert found.usage.total_tokens == found.usage.prompt_tokens + found.usage.completion_tokens
    again = chat(client, max_tokens=1)
    assert again.usage.prompt_tokens_details.cached_tokens == ours.metrics.prompt_tokens
    times = found.model_extra["metrics"]
    assert times["time_to_first_token_ms"] > 0 and times["tokens_per_second"] > 0


def test_a_chat_without_a_limit_may_fill_the_context(client: openai.OpenAI) -> None:
    found = chat(client)
    assert found.choices[0].finish_reason == "stop"
    parts = [{"type": "text", "text": "What is "}, {"type": "text", "text": "a KV cache?"}]
    assert chat(client, messages=[{"role": "user", "content": parts}]).choices == found.choices


@pytest.mark.parametrize("n", [1, 3])
def test_a_stream_is_the_whole_answer_in_parts(client: openai.OpenAI, n: int) -> None:
    asked: dict[str, Any] = {"max_tokens": 20, "n": n, "seed": 5, "temperature": 3.0}
    whole = chat(client, **asked)
    *parts, last = chat(client, **asked, stream=True, stream_options={"include_usage": True})
    assert {chunk.id for chunk in parts} == {last.id}
    assert last.choices == []
    assert last.usage.completion_tokens == whole.usage.completion_tokens
    assert all(chunk.usage is None for chunk in parts)
    for number in range(n):
        mine = [chunk.choices[0] for chunk in parts if chunk.choices[0].index == number]
        assert mine[0].delta.role == "assistant" and not any(choice.delta.role for choice in mine[1:])
        assert "".join(choice.delta.content or "" for choice in mine) == whole.choices[number].message.content
        assert [choice.finish_reason for choice in mine][:-1] == [None] * (len(mine) - 1)
        assert mine[-1].finish_reason == whole.choices[number].finish_reason
    assert len({choice.message.content for choice in whole.choices}) == n


@pytest.mark.usefixtures("in_slow_motion")
@pytest.mark.parametrize("of_chat", [True, False], ids=["chat", "completion"])
def test_a_stream_counts_its_tokens_as_they_come(client: openai.OpenAI, of_chat: bool) -> None:
    options: Any = {"include_usage": True, "continuous_usage_stats": True}
    asked: Any = {"model": MODEL, "max_tokens": 9, "n": 2, "stream": True, "stream_options": options, "temperature": 1}
    asked["extra_body"] = {"ignore_eos": True}
    if of_chat:
        chunks: list[Any] = list(chat(client, **asked))
    else:
        # The client's chunk type does not allow null for finish_reason.
        lenient = openai.OpenAI(base_url=client.base_url, api_key="none", max_retries=0)
        chunks = list(lenient.completions.create(**asked, prompt="Once"))
    *parts, last = chunks
    assert all(part.usage.prompt_tokens == last.usage.prompt_tokens for part in parts)
    for number in range(2):
        counts = [part.usage.completion_tokens for part in parts if part.choices[0].index == number]
        assert counts == sorted(counts) and counts[0] <= 1 and counts[-1] == 9 and len(set(counts)) > 2
    assert last.choices == [] and last.usage.completion_tokens == 2 * 9


def test_log_probabilities_of_a_chat(client: openai.OpenAI, engine: Engine) -> None:
    asked: dict[str, Any] = {"max_tokens": 12, "logprobs": True, "top_logprobs": 3}
    found = chat(client, **asked).choices[0]
    ours = expected(engine, QUESTION, 12, logprobs=3)
    tokens = found.logprobs.content
    assert "".join(token.token for token in tokens) == found.message.content
    assert [token.logprob for token in tokens] == pytest.approx([own.logprob for own in ours.logprobs])
    assert all(bytes(token.bytes or []).decode() == token.token for token in tokens)
    assert all(len(token.top_logprobs) == 3 for token in tokens)
    assert all(token.top_logprobs[0].logprob == pytest.approx(token.logprob) for token in tokens)  # greedy
    parts = [chunk.choices[0].logprobs for chunk in chat(client, **asked, stream=True)]
    assert [token.token for part in parts if part for token in part.content or []] == [token.token for token in tokens]


def test_completions_of_texts_and_of_token_ids(client: openai.OpenAI, engine: Engine) -> None:
    texts = ["The scheduler", "A block of the cache"]
    found = client.completions.create(model=MODEL, prompt=texts, max_tokens=10, temperature=0, n=2, logprobs=2)
    ours = [expected(engine, text, 10, logprobs=2) for text in texts]
    assert [choice.text for choice in found.choices] == [ours[0].text] * 2 + [ours[1].text] * 2
    assert found.usage is not None
    assert found.usage.prompt_tokens == sum(len(own.prompt_token_ids) for own in ours)
    logprobs = found.choices[2].logprobs
    assert logprobs is not None and logprobs.tokens is not None and logprobs.text_offset is not None
    assert "".join(logprobs.tokens) == found.choices[2].text
    assert logprobs.text_offset[:2] == [0, len(logprobs.tokens[0])]
    assert logprobs.token_logprobs == pytest.approx([own.logprob for own in ours[1].logprobs])
    assert all(len(top) == 2 and max(top.values()) <= 0 for top in logprobs.top_logprobs or [])
    ids = [own.prompt_token_ids for own in ours]
    again = client.completions.create(model=MODEL, prompt=ids, max_tokens=10, temperature=0)
    assert [choice.text for choice in again.choices] == [own.text for own in ours]
    # The client's chunk type does not allow null for finish_reason, although OpenAI's own server sends it.
    lenient = openai.OpenAI(base_url=client.base_url, api_key="none", max_retries=0)
    streamed = list(lenient.completions.create(model=MODEL, prompt=ids[0], max_tokens=10, temperature=0, stream=True))
    assert "".join(chunk.choices[0].text for chunk in streamed) == ours[0].text
    *before, last = [chunk.choices[0].finish_reason for chunk in streamed]  # a busy server sends several tokens in one
    assert last == "length" and set(before) <= {None}
    assert len(client.completions.create(model=MODEL, prompt=ids[0]).choices[0].text) > 0


def test_stop_seed_and_vllms_parameters(client: openai.OpenAI, engine: Engine) -> None:
    whole = expected(engine, QUESTION, 24)
    word = whole.text.split()[3]
    stopped = chat(client, max_tokens=24, stop=word)
    assert stopped.choices[0].message.content == whole.text[: whole.text.index(word)]
    assert stopped.choices[0].finish_reason == "stop"
    extra = {"stop_token_ids": [whole.token_ids[2]], "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
    by_id = chat(client, max_tokens=24, extra_body=extra)
    assert by_id.usage.completion_tokens == 3
    assert by_id.choices[0].message.content == whole.text[: whole.text_ends[1]] != whole.text[: whole.text_ends[2]]
    completion = client.completions.create(
        model=MODEL, prompt=whole.prompt_token_ids, max_tokens=24, temperature=0, logprobs=0, extra_body=extra
    )
    logprobs = completion.choices[0].logprobs
    assert logprobs is not None and logprobs.tokens is not None and len(logprobs.tokens) == 3
    assert "".join(logprobs.tokens) == by_id.choices[0].message.content and logprobs.tokens[2] == ""
    chunks = chat(client, max_tokens=24, extra_body=extra, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == by_id.choices[0].message.content
    shown = chat(client, max_tokens=24, stop=word, extra_body={"include_stop_str_in_output": True})
    assert shown.choices[0].message.content == whole.text[: whole.text.index(word) + len(word)]
    late = chat(client, max_tokens=24, stop=word, extra_body={"min_tokens": 24, "ignore_eos": True})
    assert late.choices[0].message.content == whole.text and late.choices[0].finish_reason == "length"
    endless = chat(client, max_tokens=90, extra_body={"ignore_eos": True})
    assert endless.choices[0].finish_reason == "length"
    drawn = {"max_tokens": 16, "temperature": 3, "top_p": 0.95, "presence_penalty": 0.5}
    texts = [chat(client, **drawn, seed=seed).choices[0].message.content for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]
    (one,) = chat(client, max_tokens=12, temperature=1.5, logprobs=True, extra_body={"top_k": 1}).choices
    assert one.message.content == expected(engine, QUESTION, 12).text
    assert all(math.isfinite(token.logprob) for token in one.logprobs.content)


PART = "messages.0.content.1"
CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": ""}}


def message(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "x", **fields}]}


def with_part(part: Any) -> dict[str, Any]:
    return message(content=[{"type": "text", "text": "x"}, part])


def stream_with(**options: Any) -> dict[str, Any]:
    return {"stream": True, "stream_options": options}


def schema(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools is not supported: tools are", "tools"),
    ({"response_format": {"type": "json_schema"}}, "give both, or neither", "response_format.json_schema"),
    (
        {"response_format": {**schema({}), "type": "json_object"}},
        "give both, or neither",
        "response_format.json_schema",
    ),
    (
        {"response_format": schema({}), "extra_body": {"continue_final_message": True}},
        "leave it or continue_final_message out",
        "response_format",
    ),
    (
        {"extra_body": {"continue_final_message": True, "structured_outputs": {"choice": ["a"]}}},
        "leave it or continue_final_message out",
        "structured_outputs",
    ),
    ({"response_format": {"type": "xml"}}, "response_format.type: ", "response_format.type"),
    ({"response_format": schema({"type": "objec"})}, "cannot be followed: Invalid type: objec", "response_format"),
    ({"extra_body": {"structured_outputs": {"regex": "("}}}, "error: unclosed group", "structured_outputs"),
    ({"extra_body": {"structured_outputs": {"grammar": "x"}}}, 'use {"json": ', "structured_outputs"),
    (
        {"response_format": schema({}), "extra_body": {"structured_outputs": {"choice": ["a"]}}},
        "are both given",
        "structured_outputs",
    ),
    ({"extra_body": {"guided_regex": "a"}}, "guided_regex is not a parameter", "guided_regex"),
    ({"logit_bias": {"a": 1, "b": 2}}, "logit_bias has a, b: use token ids", "logit_bias"),
    ({"logit_bias": {"5": 101}}, "logit_bias is ((5, 101.0),): use numbers from -100 to 100", "logit_bias"),
    ({"logit_bias": {"5": "x"}}, "logit_bias.5: Input should be a valid number", "logit_bias.5"),
    ({"logit_bias": {"2048": 1}}, "has 2048, but the vocabulary has 2048 tokens", "logit_bias"),
    ({"extra_body": {"allowed_token_ids": [2048]}}, "allowed_token_ids has 2048", "allowed_token_ids"),
    ({"extra_body": {"bad_words": [""]}}, "bad_words is ('',)", "bad_words"),
    ({"extra_body": {"logprob_token_ids": [5]}}, "logprob_token_ids needs logprobs", "logprob_token_ids"),
    ({"extra_body": {"prompt_logprobs": 1}, "stream": True}, "are not for streams", "prompt_logprobs"),
    ({"extra_body": {"prompt_logprobs": -1}}, "prompt_logprobs: ", "prompt_logprobs"),
    ({"extra_body": {"truncate_prompt_tokens": 0}}, "leaves no prompt", "truncate_prompt_tokens"),
    ({"seed": -2}, "seed is -2", "seed"),
    ({"extra_body": {"best_of": 3}}, "best_of is not supported: use n", "best_of"),
    ({"extra_body": {"echo": True}}, "echo repeats the assistant's message", "echo"),
    ({"extra_body": {"min_tokens": 9}}, "min_tokens is 9: use at most the answer's limit, 5", "min_tokens"),
    ({"tool_choice": "required"}, "tool_choice is not supported: tools", "tool_choice"),
    ({"store": True}, "store is not supported: nothing is stored", "store"),
    ({"reasoning_effort": "low"}, "chat template does not take it", "reasoning_effort"),
    ({"metadata": {"a": 1}}, "metadata.a: Input should be a valid string, not 1", "metadata.a"),
    ({"extra_body": {"mirostat": 2}}, "mirostat is not a parameter of this API", "mirostat"),
    (
        {"extra_body": {"continue_final_message": True, "add_generation_prompt": True}},
        "set add_generation_prompt to false",
        "continue_final_message",
    ),
    (stream_with(include_obfuscation=True), "events are not padded", "stream_options.include_obfuscation"),
    (message(role="assistant", tool_calls=[{"id": "a"}]), "Field required", "messages.0.tool_calls.0.function"),
    (message(tool_calls=[CALL]), "belongs to messages with the role assistant", "messages.0.tool_calls"),
    (message(role="assistant", tool_calls=[CALL]), "chat template has no place for tool_calls", "messages"),
    (message(role="assistant", content=None), "content is missing", "messages.0.content"),
    (
        message(role="assistant", tool_calls=[{**CALL, "function": {"name": "f", "arguments": "[1]"}}]),
        "Input should be a valid dictionary",
        "messages.0.tool_calls.0.function.arguments",
    ),
    ({"extra_body": {"stop_token_ids": [-1]}}, "stop_token_ids is (-1,): use token ids", "stop_token_ids"),
    ({"extra_body": {"stop_token_ids": [2047, 2048]}}, "tokens: use ids from 0 to 2047", "stop_token_ids"),
    ({"extra_body": {"stop_token_ids": ["a"]}}, "stop_token_ids.0: ", "stop_token_ids.0"),
    ({"extra_body": {"top_k": -7, "min_p": 2}}, "min_p is 2", "min_p"),
    ({"stop": ["a"] * 20}, "stop is (", "stop"),
    ({"user": "x" * 300}, "user is 'xxx", "user"),
    ({"user": 7}, "user: ", "user"),
    ({"extra_body": {"priority": 1.5}}, "priority: ", "priority"),
    ({"stop": ["a", 1]}, "stop.1: Input should be a valid string, not 1", "stop.1"),
    ({"extra_body": {"stop": {"a": 1}}}, "stop: Input should be text or a list", "stop"),
    ({"extra_body": {"str": 1}}, "str is not a parameter of this API", "str"),
    ({"temperature": -1}, "temperature is -1", "temperature"),
    ({"temperature": "warm"}, "temperature: ", "temperature"),
    ({"top_p": 0}, "top_p is 0", "top_p"),
    ({"n": 0}, "n: ", "n"),
    ({"max_tokens": 0}, "max_tokens is 0", "max_tokens"),
    ({"max_completion_tokens": 0}, "max_completion_tokens is 0", "max_completion_tokens"),
    ({"max_tokens": 100_000}, "shorten the prompt or lower max_tokens", "max_tokens"),
    ({"max_completion_tokens": 100_000}, "or lower max_completion_tokens", "max_completion_tokens"),
    ({**message(content="x " * 9000), "max_tokens": None}, "shorten the prompt", "messages"),
    ({"messages": []}, "messages: ", "messages"),
    (message(role=""), "messages.0.role: ", "messages.0.role"),
    (message(name=5), "messages.0.name: ", "messages.0.name"),
    (with_part({"type": "image_url", "image_url": {"url": "x"}}), "should be 'text', not 'image_url'", f"{PART}.type"),
    (with_part({"type": "text", "text": "x", "foo": 1}), "is not a parameter of this API", f"{PART}.foo"),
    (with_part({"type": "text"}), "text: Field required", f"{PART}.text"),
    (with_part({"type": "text", "text": 5}), "text: Input should be a valid string, not 5", f"{PART}.text"),
    (with_part("x"), "1: Input should be a valid dictionary", PART),
    (message(content={"text": "x"}), "should be text or a list", "messages.0.content"),
    ({"top_logprobs": 3}, "top_logprobs needs logprobs", "top_logprobs"),
    ({"top_logprobs": 0}, "top_logprobs needs logprobs", "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs: ", "top_logprobs"),
    ({"stream_options": {"include_usage": False}}, "stream_options are for streams", "stream_options"),
    (
        {"extra_body": {"kv_transfer_params": {"do_remote_decode": True}}},
        "Field required",
        "kv_transfer_params.prompt_token_ids",
    ),
]


@pytest.mark.parametrize(
    ("changes", "message", "param"), REFUSED, ids=[f"{param} {number}" for number, (_, _, param) in enumerate(REFUSED)]
)
def test_what_cannot_be_done_is_refused_by_name(
    client: openai.OpenAI, changes: dict[str, Any], message: str, param: str
) -> None:
    asked = {"max_tokens": 5} if "max_completion_tokens" not in changes else {}
    with pytest.raises(openai.BadRequestError) as refused:
        chat(client, **{**asked, **changes})
    assert message in refused.value.message
    assert refused.value.body is not None and refused.value.type == "invalid_request_error"
    assert refused.value.param == param


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([[1, 2], [3, 4.5]], "prompt.1.1: Input should be a valid integer, not 4.5"),
        ([[1, 2], 3], "prompt.1: Input should be a valid list, not 3"),
        ([1, "a"], "prompt.1: Input should be a valid integer, not 'a'"),
        (["a", 1], "prompt.1: Input should be a valid string, not 1"),
        ([True], "prompt.0: Input should be a valid integer, not True"),
        (7, "prompt: Input should be text or a list, not 7"),
    ],
    ids=str,
)
def test_what_is_wrong_in_a_prompt_is_named(client: openai.OpenAI, prompt: Any, message: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model=MODEL, prompt=prompt)
    assert refused.value.body == {
        "message": message, "type": "invalid_request_error", "param": message.partition(":")[0], "code": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "name", "items"),
    [
        (CompletionBody, "prompt", [1.5]),
        (CompletionBody, "prompt", [[1.5]]),
        (CompletionBody, "prompt", ["a", 1]),
        (CompletionBody, "stop", [1]),
        (CompletionBody, "stop_token_ids", ["a"]),
        (ChatBody, "messages", [1]),
        (ChatBody, "messages", [{"role": "user", "content": [1] * 100}]),
    ],
)
def test_a_list_has_one_error_however_long_it_is(kind: type[BaseModel], name: str, items: list[Any]) -> None:
    others = {"prompt": "x"} if kind is CompletionBody else {"messages": []}
    with pytest.raises(ValidationError) as refused:
        kind.model_validate({"model": MODEL, **others, name: items * 100})
    assert refused.value.error_count() == 1


def test_the_newer_of_two_limits_counts(client: openai.OpenAI) -> None:
    answer = chat(client, max_tokens=9, max_completion_tokens=3, extra_body={"ignore_eos": True})
    assert answer.usage.completion_tokens == 3


class Fox(BaseModel):
    animal: Literal["fox", "owl"]
    age: Annotated[int, Field(ge=0, le=99)]
    awake: bool | None


def test_structured_output(client: openai.OpenAI) -> None:
    """As OpenAI's client asks for it, and as vLLM's do."""
    asked: dict[str, Any] = {"model": MODEL, "messages": QUESTION, "max_tokens": 150, "seed": 1}
    for choice in client.chat.completions.parse(**asked, n=2, response_format=Fox).choices:
        assert (choice.finish_reason, type(choice.message.parsed)) == ("stop", Fox)
    with client.chat.completions.stream(**asked, response_format=Fox) as stream:
        assert isinstance(stream.get_final_completion().choices[0].message.parsed, Fox)
    found = chat(client, max_tokens=150, response_format={"type": "json_object"})
    assert found.choices[0].message.content[0] == "{"
    structures: list[dict[str, Any]] = [{"regex": "(a|b){3}"}, {"choice": ["aba", "bab"]}, {"json": {"const": "aab"}}]
    for structure in structures:
        (answer,) = client.completions.create(
            model=MODEL, prompt="x", extra_body={"structured_outputs": {**structure, "grammar": None}}
        ).choices
        assert re.fullmatch('"?[ab]{3}"?', answer.text)
        assert answer.finish_reason == "stop"


class Zoo(BaseModel):
    class Animal(BaseModel):
        name: Annotated[str, Field(min_length=1, max_length=20)]
        kind: Literal["fox", "owl", "hare"]
        age: Annotated[int, Field(ge=0, le=99)]

    city: Annotated[str, Field(pattern="^[A-Z][a-z]{2,9}$")]
    animals: Annotated[list[Animal], Field(min_length=2, max_length=3)]
    open: bool | None


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(smollm2_file() is None or bool(gguf_packages_missing()), reason="SmolLM2 is not installed")
def test_a_real_model_fills_a_nested_schema() -> None:
    """Beside requests without one, whose answers stay the same."""
    question: Any = [{"role": "user", "content": "Invent a zoo with a fox and an owl, as JSON."}]
    plain = SamplingParams(max_new_tokens=60)
    with Engine("smollm2", dtype="float32", num_blocks=600) as engine, serving(engine) as address:
        alone = engine.submit(question, plain).result(120).text
        with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0, timeout=300) as client:
            beside = [engine.submit(question, plain) for _ in range(3)]
            answer = client.chat.completions.parse(
                model=engine.info.model, messages=question, n=8, seed=1, max_tokens=400, response_format=Zoo
            )
    assert {stream.result(120).text for stream in beside} == {alone}
    for choice in answer.choices:
        assert isinstance(choice.message.parsed, Zoo)
        assert {animal.kind for animal in choice.message.parsed.animals} <= {"fox", "owl", "hare"}


def test_what_asks_for_nothing_is_accepted(client: openai.OpenAI) -> None:
    extra: Any = {"echo": False, "best_of": 1, "tools": [], "store": False, "response_format": {"type": "text"}}
    extra |= {"min_tokens": 0, "parallel_tool_calls": False, "include_stop_str_in_output": False, "logit_bias": {}}
    extra |= {"tool_choice": "auto", "metadata": {"a": "b"}, "prompt_cache_key": "k", "safety_identifier": "me"}
    extra |= {
        "service_tier": "default",
        "verbosity": "medium",
        "chat_template_kwargs": {},
        "mirostat": 0,
        "id_slot": -1,
    }
    extra |= {"add_generation_prompt": True, "continue_final_message": False, "add_special_tokens": False}
    extra |= {"seed": -1, "bad_words": [], "allowed_token_ids": [], "return_token_ids": False}
    before: Any = {"role": "assistant", "content": "A cache.", "tool_calls": [], "annotations": [], "refusal": None}
    found = chat(client, messages=[*QUESTION, before, *QUESTION], max_tokens=2, user="me", extra_body=extra)
    assert found.usage.completion_tokens == 2
    options = {"include_obfuscation": False, "include_usage": True}
    *_, last = chat(client, max_tokens=2, stream=True, stream_options=options)
    assert last.usage.completion_tokens == 2


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/embeddings", {"model": MODEL, "input": "x"}, 404),
        ("/completions", "not an object", 400),
        ("/completions", b'{"model": "tiny-chat", "prompt": "a", "max_tokens": 1, "max_tokens": 2}', 400),
        ("/completions", {"model": MODEL, "prompt": []}, 400),
        ("/completions", {"model": MODEL, "prompt": ""}, 400),
        ("/completions", {"model": MODEL, "prompt": [1, 10**9]}, 400),
        ("/completions", {"model": MODEL, "prompt": ["a"] * 65}, 400),
        ("/completions", {"model": MODEL, "prompt": "a", "echo": "yes"}, 400),
        ("/completions", {"model": MODEL, "prompt": "a", "max_tokens": 0}, 400),
        ("/completions", {"model": MODEL, "prompt": "a", "prompt_logprobs": -1}, 400),
        ("/responses", {"model": MODEL, "input": "a"}, 404),
        ("/completions", {"model": MODEL, "prompt": "\ud800"}, 400),
        ("/completions", {"model": MODEL, "prompt": "a", "\ud800": 1}, 400),
        ("/chat/completions", {"model": MODEL, "messages": [{"role": "user", "content": "a", "\ud800": 1}]}, 400),
    ],
)
def test_errors_have_openais_shape(client: openai.OpenAI, path: str, body: Any, status: int) -> None:
    with pytest.raises(openai.APIStatusError) as refused:
        client.post(path, content=body if isinstance(body, bytes) else json.dumps(body).encode(), cast_to=object)
    assert refused.value.status_code == status
    assert isinstance(refused.value.body, dict) and set(refused.value.body) == {"message", "type", "param", "code"}
    assert refused.value.body["message"]


def test_a_client_that_leaves_aborts_the_whole_answer_that_it_waits_for(address: str, engine: Engine) -> None:
    async def leave_early() -> None:
        async with openai.AsyncOpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client:
            asked = client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=4)
            asking = asyncio.ensure_future(asked)
            await asyncio.to_thread(wait_until, lambda: engine.num_unfinished)
            asking.cancel()

    engine.pause()  # so that it cannot finish by itself
    try:
        asyncio.run(leave_early())
        wait_until(lambda: not engine.num_unfinished)
    finally:
        engine.resume()
