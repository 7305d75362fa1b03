"""Events and log-probabilities of an answer, from streams that advance when a test says so."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest
from transformers.convert_slow_tokenizer import bytes_to_unicode

from roseplay.config import SamplingParams
from roseplay.core.request import FinishReason
from roseplay.core.step import TokenLogprobs
from roseplay.engine.client import Engine
from roseplay.engine.detokenizer import make_decoder
from roseplay.engine.stream import Stream
from roseplay.serve.answers import Answer
from tests.play.fake_engine import FakeEngine


def answer(engine: FakeEngine, *, n: int = 1, chat: bool = True, **params: Any) -> Answer:
    streams = [engine.submit([1, 2], SamplingParams(max_new_tokens=3, **params)) for _ in range(n)]
    return Answer(streams, "fake-chat", chat, n, None)


def parsed(event: bytes) -> Any:
    return json.loads(event.removeprefix(b"data: "))


async def events_of(asked: Answer) -> list[bytes]:
    return [event async for event in asked.events("none")]


def choice_of(asked: Answer, *tokens: tuple[int, TokenLogprobs]) -> Any:
    """The only choice of an answer that gets these tokens and ends."""
    (stream,) = asked.streams
    for token_id, logprobs in tokens:
        stream.push(token_id, 0, logprobs)
    stream.finish(FinishReason.LENGTH, 0)
    (choice,) = parsed(asyncio.run(asked.whole()))["choices"]
    return choice


def test_the_role_comes_with_the_first_token() -> None:
    """Otherwise a client that takes the time of its first chunk for TTFT would measure nothing."""

    async def read() -> list[bytes]:
        engine = FakeEngine()
        events = answer(engine, n=2).events("none")
        first = asyncio.ensure_future(anext(events))
        for _ in range(10):  # iterations of the event loop
            await asyncio.sleep(0)
        assert not first.done()
        engine.step(3)
        return [await first, *[event async for event in events]]

    *chunks, done = asyncio.run(read())
    assert done == b"data: [DONE]\n\n"
    for number in range(2):
        choices = [choice for chunk in chunks for choice in parsed(chunk)["choices"] if choice["index"] == number]
        assert choices[0]["delta"]["role"] == "assistant" and choices[0]["delta"]["content"]
        assert not any("role" in choice["delta"] for choice in choices[1:])
        assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["length"]


def test_an_answer_without_tokens_has_its_role() -> None:
    asked = answer(FakeEngine())
    asked.streams[0].finish(FinishReason.STOP, 0)
    only, _ = asyncio.run(events_of(asked))
    assert parsed(only)["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert parsed(only)["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("chat", [True, False])
def test_each_token_has_one_event_and_the_last_one_the_finish_reason(chat: bool, count: int) -> None:
    """Clients count a gap between any two events; an empty last one would lower their mean ITL."""

    async def read() -> list[Any]:
        asked = answer(FakeEngine(), chat=chat, n=count)
        reading = asyncio.ensure_future(events_of(asked))
        for token in range(3):
            for stream in asked.streams:
                stream.push(7, token, is_last=token == 2)
                if token == 2:
                    await asyncio.sleep(0.001)  # the reader must not see the last token before the end
                    stream.finish(FinishReason.LENGTH, token)
                stream.notify()
            await asyncio.sleep(0.001)
        return [parsed(event)["choices"][0] for event in (await reading)[:-1]]

    choices = asyncio.run(read())
    for number in range(count):
        ends = [choice["finish_reason"] for choice in choices if choice["index"] == number]
        assert ends == [None, None, "length"]


@pytest.mark.parametrize("chat", [True, False])
def test_a_probability_of_zero_is_a_number_of_json(chat: bool) -> None:
    impossible = TokenLogprobs(float("-inf"), [(5, -0.5), (6, float("-inf"))])
    logprobs = choice_of(answer(FakeEngine(), chat=chat, logprobs=2), (1, impossible))["logprobs"]
    if chat:
        (entry,) = logprobs["content"]
        found = [entry["logprob"], *(top["logprob"] for top in entry["top_logprobs"])]
        assert found == [-9999.0, -0.5, -9999.0]
    else:
        found = [*logprobs["token_logprobs"], *logprobs["top_logprobs"][0].values()]
        assert found == [-9999.0, -9999.0, -0.5, -9999.0]


def test_a_completions_likeliest_tokens_include_its_own() -> None:
    unlikely = TokenLogprobs(-5.0, [(5, -0.1), (6, -3.0)])
    logprobs = choice_of(answer(FakeEngine(), chat=False, logprobs=2), (7, unlikely))["logprobs"]
    (own,), (likeliest,) = logprobs["tokens"], logprobs["top_logprobs"]
    assert likeliest == {"token_id:5": -0.1, "token_id:6": -3.0, own: -5.0}


def test_of_likeliest_tokens_with_the_same_text_the_likelier_one_is_kept() -> None:
    """In SentencePiece, a letter may be a token, and its byte another."""
    tokenizer = SimpleNamespace(
        convert_ids_to_tokens=str, encode=lambda text, **_: [], decode=lambda ids, **_: "a" * bool(ids)
    )
    stream = Stream(0, [1], SamplingParams(logprobs=2), lambda _: True, 0)
    unlikely = TokenLogprobs(-5.0, [(5, -0.1), (6, -3.0)])
    choice = choice_of(Answer([stream], "fake-chat", False, 1, tokenizer), (7, unlikely))
    assert choice["logprobs"]["top_logprobs"] == [{"a": -0.1, "": -5.0}]


def test_usage_counts_prompt_tokens_that_another_request_computed() -> None:
    asked = answer(FakeEngine())
    asked.streams[0].metrics.cached_tokens, asked.streams[0].metrics.shared_tokens = 1, 2
    assert asked.usage()["prompt_tokens_details"] == {"cached_tokens": 3}


def test_usage_counts_each_prompt_once_and_every_answer() -> None:
    engine = FakeEngine()
    streams = [engine.submit([1] * length, SamplingParams(max_new_tokens=3)) for length in (4, 4, 4, 7, 7, 7)]
    for saved, stream in enumerate(streams):
        stream.metrics.cached_tokens = saved
        stream.push(1, 0, None)
    assert Answer(streams, "fake-chat", True, 3, None).usage() == {
        "prompt_tokens": 11, "completion_tokens": 6, "total_tokens": 17, "prompt_tokens_details": {"cached_tokens": 0 + 3},
    }  # fmt: skip


def test_a_stream_that_fails_ends_the_others() -> None:
    asked = answer(FakeEngine(), n=2)
    asked.streams[0].finish(FinishReason.ERROR, 0, "it failed")
    *_, error, done = asyncio.run(events_of(asked))
    assert parsed(error)["error"]["message"] == "it failed" and done == b"data: [DONE]\n\n"
    assert asked.streams[1].finish_reason is FinishReason.ABORT


def test_a_chats_own_token_has_one_text() -> None:
    likely = TokenLogprobs(-0.1, [(5, -0.1), (6, -3.0)])
    (entry,) = choice_of(answer(FakeEngine(), logprobs=2), (5, likely))["logprobs"]["content"]
    first, second = entry.pop("top_logprobs")
    assert first == entry and second["token"] == "token_id:6"
    assert entry["bytes"] is None and second["bytes"] is None  # without a tokenizer they are not known


@pytest.fixture(scope="module")
def tokenizer(engine: Engine) -> Any:
    return engine.tokenizer


def in_parts(tokenizer: Any, chat: bool) -> tuple[list[int], list[int], Any]:
    """An answer of one character in three tokens, each with itself and parts of other characters as the likeliest:
    its token ids, those of the likeliest, and its choice."""
    parts, others = tokenizer("日")["input_ids"], tokenizer("é🙂")["input_ids"]
    top_ids = sorted({*parts, *others})
    logprobs = TokenLogprobs(-0.5, [(other, -1.0 - other / 10_000) for other in top_ids])
    stream = Stream(0, [1], SamplingParams(logprobs=20), lambda _: True, 0, decoder=make_decoder(tokenizer, [1]))
    asked = Answer([stream], "fake-chat", chat, 1, tokenizer)
    return parts, top_ids, choice_of(asked, *((token_id, logprobs) for token_id in parts))


def test_parts_of_characters_have_their_bytes_in_a_chat(tokenizer: Any) -> None:
    token_ids, top_ids, choice = in_parts(tokenizer, chat=True)
    entries = choice["logprobs"]["content"]
    assert bytes(byte for entry in entries for byte in entry["bytes"]).decode() == choice["message"]["content"] == "日"
    assert [entry["token"] for entry in entries] == ["", "", "日"]
    letters = bytes_to_unicode()
    for entry, token_id in zip(entries, token_ids, strict=True):
        found = [[letters[byte] for byte in top["bytes"]] for top in entry["top_logprobs"]]
        assert ["".join(name) for name in found] == tokenizer.convert_ids_to_tokens(top_ids)
        chosen = entry["top_logprobs"][top_ids.index(token_id)]
        assert (chosen["token"], chosen["bytes"]) == (entry["token"], entry["bytes"])
        assert len({top["token"] for top in entry["top_logprobs"]}) == len(top_ids)
    assert "\\xc3" in {top["token"] for top in entries[0]["top_logprobs"]}


def test_parts_of_characters_are_told_apart_in_a_completion(tokenizer: Any) -> None:
    _, top_ids, choice = in_parts(tokenizer, chat=False)
    logprobs = choice["logprobs"]
    assert all(len(top) == len(top_ids) for top in logprobs["top_logprobs"])
    assert "".join(logprobs["tokens"]) == "日" and all("\\xc3" in top for top in logprobs["top_logprobs"])
