"""Answers in the formats of other servers, and refusals, read without a connection."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from roseplay.config import SamplingParams
from roseplay.core.request import FinishReason
from roseplay.engine.telemetry import TokensEvent
from roseplay.extras.servers.sentences import MOST_REFUSAL
from roseplay.extras.servers.stream import HttpStream
from tests.extras.servers.servers import Exchange, answer, event, streamed, words

DONE = event(b"[DONE]")


def failed(stream: HttpStream) -> str:
    assert stream.finish_reason is FinishReason.ERROR
    return stream.error or ""


def refused(status: int, **document: Any) -> HttpStream:
    return Exchange(lambda body: httpx.Response(status, json=document)).stream


def tokens_told(exchange: Exchange) -> int:
    events = exchange.telemetry.since(0)[1]
    return sum(len(event.tokens) for event in events if isinstance(event, TokensEvent))


# -- text and counts


def test_a_server_that_counts_nothing() -> None:
    stream = answer(words("All ", "is ", "well\u2028."))
    assert (stream.text, stream.finish_reason) == ("All is well\u2028.", FinishReason.STOP)
    assert (stream.metrics.completion_tokens, stream.metrics.prompt_tokens) == (3, 0)
    assert len(stream.token_times_ns) == 3 and stream.metrics.ttft_s is not None


@pytest.mark.parametrize(("cached", "expected"), [(4, 4), (40, 9)], ids=["some", "more than the prompt has"])
def test_pieces_of_several_tokens_are_counted_by_the_server(cached: int, expected: int) -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 11, "prompt_tokens_details": {"cached_tokens": cached}}
    stream = answer(words("All is ", "well.", usage=usage))
    metrics = stream.metrics
    assert (metrics.prompt_tokens, metrics.completion_tokens, metrics.cached_tokens) == (9, 11, expected)
    assert len(stream.token_times_ns) == 2 and len(metrics.itl_ns) == 1


def counting(*pieces: tuple[str, int]) -> list[bytes]:
    """Chunks with texts and the number of tokens so far."""
    chunks: list[dict[str, Any]] = [
        {
            "choices": [{"delta": {"content": text}, "finish_reason": None}],
            "usage": {"prompt_tokens": 3, "completion_tokens": count},
        }
        for text, count in pieces
    ]
    return [event(chunk) for chunk in [*chunks, {"choices": [{"delta": {}, "finish_reason": "stop"}]}]]


@pytest.mark.parametrize(
    ("pieces", "tokens"),
    [
        pytest.param([("Some ", 1), ("more words ", 4), ("", 4), ("here", 5)], 5, id="counted"),
        # A server that counts at the end only: a piece is a token, and no text is lost.
        pytest.param([("Some ", 0), ("words", 0)], 2, id="not counted"),
    ],
)
def test_chunks_that_say_how_many_tokens_there_were(pieces: list[tuple[str, int]], tokens: int) -> None:
    stream = answer(counting(*pieces))
    assert stream.text == "".join(text for text, _ in pieces)
    assert len(stream.token_times_ns) == len(stream.text_ends) == len(stream.metrics.itl_ns) + 1 == tokens


def test_no_more_tokens_are_counted_than_were_asked_for() -> None:
    last = event({"choices": [], "usage": {"prompt_tokens": 10**300, "completion_tokens": 10**6}})
    portions = [*counting(("Some ", 1), ("words", 10**5)), last]
    exchange = Exchange(lambda body: streamed(portions), SamplingParams(max_new_tokens=5))
    stream = exchange.stream
    assert (stream.text, stream.num_tokens, stream.metrics.completion_tokens) == ("Some words", 5, 5)
    assert tokens_told(exchange) == 5
    assert stream.metrics.prompt_tokens == 3  # the last count cannot be true


def test_what_follows_the_end_of_an_answer_is_left_out() -> None:
    stream = answer([*words("Yes"), b"<!-- sent by a proxy -->\n"])
    assert (stream.text, stream.finish_reason, stream.error) == ("Yes", FinishReason.STOP, None)


def test_a_server_that_does_not_stream() -> None:
    choice = {"message": {"role": "assistant", "content": "All at once"}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 3, "completion_tokens": 5}
    body = json.dumps({"choices": [choice], "usage": usage}, indent=2).encode()
    stream = answer([body])
    assert (stream.text, stream.metrics.completion_tokens) == ("All at once", 5)


def test_single_characters_and_empty_events_are_no_fault() -> None:
    text = "A word, a space, a word. " * 4
    usage = {"prompt_tokens": 3, "completion_tokens": 10**5}
    waiting = [event({"choices": []})] * 2_000
    stream = answer([*waiting, *words(*text, usage=usage)], SamplingParams(max_new_tokens=40))
    assert (stream.text, stream.error, stream.metrics.completion_tokens) == (text, None, 40)


# -- answers without an end


@pytest.mark.parametrize(
    ("portion", "says"),
    [
        (b"data: " + b"x" * (1 << 16), "an event of more than 4 MiB"),
        (event({"choices": [{"text": "x" * (1 << 16)}]}), "more than 4 MiB for an answer of at most 3 tokens"),
    ],
    ids=["a line", "an answer"],
)
def test_an_answer_without_end_is_given_up(portion: bytes, says: str) -> None:
    assert says in failed(answer(itertools.repeat(portion), SamplingParams(max_new_tokens=3)))


@pytest.mark.parametrize("said", [{"text": ""}, {"text": "x"}, {"delta": {}}])
def test_events_far_beyond_the_tokens_asked_for_are_given_up(said: dict[str, Any]) -> None:
    portion = event({"choices": [said], "usage": None}) * 100
    exchange = Exchange(lambda body: streamed(itertools.repeat(portion)), SamplingParams(max_new_tokens=4))
    stream = exchange.stream
    assert "more than 10,400 events for an answer of at most 4 tokens" in failed(stream)
    assert (stream.num_tokens, stream.metrics.completion_tokens) == (4, 4)
    assert (len(stream.metrics.itl_ns), len(stream.text_ends), tokens_told(exchange)) == (3, 4, 4)
    assert len(stream.text) == (10_400 if said.get("text") else 0)


# -- refusals and failures


def test_a_refusal_is_the_servers_sentence() -> None:
    assert failed(refused(429, error={"message": "too many requests wait"})) == "too many requests wait"


@pytest.mark.parametrize(
    ("refuses", "asked"),
    [
        ("continuous_usage_stats", [["continuous_usage_stats", "include_usage"], ["include_usage"]]),
        ("stream_options", [["continuous_usage_stats", "include_usage"], ["include_usage"], []]),
    ],
)
def test_a_server_that_refuses_to_count_is_asked_for_less(refuses: str, asked: list[list[str]]) -> None:
    def reply(body: dict[str, Any]) -> httpx.Response:
        options = body.get("stream_options")
        if options is None or (refuses != "stream_options" and refuses not in options):
            return streamed(words("Yes"))
        fault = {"loc": ["body", "stream_options", refuses], "msg": "Extra inputs are not permitted"}
        return httpx.Response(422, json={"detail": [fault]})

    exchange = Exchange(reply, counts_chunks=True)
    assert exchange.stream.text == "Yes"
    assert [sorted(body.get("stream_options") or {}) for body in exchange.bodies] == asked


def test_a_failure_that_mentions_usage_is_not_asked_again() -> None:
    reply = httpx.Response(500, json={"error": {"message": "stream_options broke the server"}})
    exchange = Exchange(lambda body: reply)
    assert failed(exchange.stream) == "stream_options broke the server"
    assert len(exchange.bodies) == 1


def test_only_the_beginning_of_a_long_refusal_is_read() -> None:
    sent: list[bytes] = []
    portions = (sent.append(b"x" * (1 << 14)) or sent[-1] for _ in range(1000))
    stream = Exchange(lambda body: streamed(portions, 503)).stream
    assert "503" in failed(stream)
    assert sum(map(len, sent)) == MOST_REFUSAL + (1 << 14)


def test_a_refusal_that_hangs_is_given_up() -> None:
    async def stuck() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.sleep(600)

    stream = Exchange(lambda body: httpx.Response(503, content=stuck()), refusal_s=0.05).stream
    assert "503" in failed(stream)


PAGE = "<!doctype html><html><head><title lang=en>502 Bad &amp; Gateway</title><style>p {}</style></head><p>nginx</p>"
NO_OBJECT = "the server sent an answer that is not a JSON object: "


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ('{"error": {"message": "The model\\nloads."}}', "The model loads."),
        ('{\n  "error": "The model loads."\n}\n', "The model loads."),
        ('{"detail": "The model loads."}', "The model loads."),
        ('"The model loads."', f'{NO_OBJECT}"The model loads."'),
        ("", "the server ended the stream without saying why: the answer may not be whole"),
        ("[1]", f"{NO_OBJECT}[1]"),
        ('{"state": "loading"}', 'the server sent an answer without choices: {"state": "loading"}'),
        (PAGE, f"{NO_OBJECT}502 Bad & Gateway"),
        ("The model loads.", f"{NO_OBJECT}The model loads."),
        ("event: error\ndata: It is\ndata: full\n\n", "the server sent an event that is not a JSON object: It is full"),
        ('data: {"choices": [{"text": "Yes"}]}\n\n{"error": "The GPU is lost."}\n', "The GPU is lost."),
    ],
)
def test_an_error_with_status_200_keeps_its_reason(body: str, says: str) -> None:
    assert failed(answer([body.encode()])) == says


BEGINNING = words("Some ")[:-2]


@pytest.mark.parametrize(
    ("events", "says"),
    [
        pytest.param(
            [*BEGINNING, event({"error": {"message": "the worker died", "code": 500}})],
            "the worker died",
            id="an error event",
        ),
        pytest.param(
            [*BEGINNING, event({"error": {"message": "it is full"}, "choices": []}), DONE],
            "it is full",
            id="an error with choices",
        ),
        pytest.param(
            [*BEGINNING, event({"error": {"code": 9}, "choices": []}), DONE],
            "says that the request failed",
            id="an error without words",
        ),
        pytest.param(BEGINNING, "without saying why", id="no end"),
        pytest.param([*BEGINNING, event(b"{half")], "not a JSON object", id="no JSON"),
        pytest.param(
            [event({"choices": [{"text": "Some ", "finish_reason": "error"}]})],
            "says that the request failed",
            id="finished with error",
        ),
    ],
)
def test_a_stream_that_goes_wrong_keeps_its_text(events: list[bytes], says: str) -> None:
    stream = answer(events)
    assert says in failed(stream)
    assert stream.text == "Some "
