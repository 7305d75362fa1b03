"""What is read in a chunk of an answer, and in a refusal; and how failures are worded."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from roseplay.core.request import FinishReason
from roseplay.engine.request_metrics import ServerTimes
from roseplay.extras.servers.chunk import Chunk, Usage, parse_chunk
from roseplay.extras.servers.sentences import failure, refusal

USAGE = {"prompt_tokens": 9, "completion_tokens": 1}


def parsed(**document: Any) -> Chunk:
    return parse_chunk(json.dumps(document).encode())


@pytest.mark.parametrize(
    ("choice", "text", "reason"),
    [
        ({"delta": {"role": "assistant", "content": None}}, None, None),
        ({"delta": {"reasoning_content": "Hm. "}}, "Hm. ", None),
        ({"delta": {"reasoning": "Hm. ", "reasoning_content": "Hm. "}}, "Hm. ", None),
        ({"delta": {"content": "Yes"}, "finish_reason": None}, "Yes", None),
        ({"delta": {"content": ""}}, "", None),
        ({"delta": {}, "finish_reason": "length"}, None, FinishReason.LENGTH),
        ({"message": {"role": "assistant", "content": "Yes"}, "finish_reason": "eos"}, "Yes", FinishReason.STOP),
        ({"text": "Yes", "delta": 7, "finish_reason": "stop"}, "Yes", FinishReason.STOP),
        ({"text": 7, "finish_reason": "error"}, None, FinishReason.ERROR),
        (7, None, None),
    ],
)
def test_text_and_reason(choice: Any, text: str | None, reason: FinishReason | None) -> None:
    chunk = parsed(choices=[choice], message="from the cache")
    assert (chunk.text, chunk.finish_reason) == (text, reason)


@pytest.mark.parametrize("choices", [[], None, 7])
def test_a_chunk_may_have_no_choice(choices: Any) -> None:
    chunk = parsed(choices=choices)
    assert (chunk.text, chunk.finish_reason, chunk.counts, chunk.times) == (None, None, None, None)


@pytest.mark.parametrize(
    ("document", "usage"),
    [
        ({"usage": USAGE}, Usage(9, 1, None)),
        ({"usage": USAGE, "timings": {"cache_n": 30}}, Usage(9, 1, 30)),
        (
            {"usage": USAGE | {"prompt_tokens_details": {"cached_tokens": 0}}, "timings": {"cache_n": 30}},
            Usage(9, 1, 0),
        ),
        *(({"usage": USAGE | {"prompt_tokens": count}}, None) for count in (True, -1, 1.0, "1", 2**31)),
        ({"usage": {"completion_tokens": 1, "prompt_tokens_details": None}}, None),
        ({"usage": [9, 1]}, None),
    ],
)
def test_a_count_that_cannot_be_true_is_left_out(document: dict[str, Any], usage: Usage | None) -> None:
    assert parsed(choices=[], **document).counts == usage


@pytest.mark.parametrize(
    ("document", "times"),
    [
        (
            {"metrics": {"time_to_first_token_ms": 50, "queue_time_ms": 20.0, "generation_time_ms": 400.0}},
            ServerTimes(0.02, pytest.approx(0.03), 0.4),
        ),
        ({"metrics": {"time_to_first_token_ms": 50.0, "queue_time_ms": 60.0}}, ServerTimes(0.06, 0.0, None)),
        ({"timings": {"prompt_ms": 12.5, "predicted_n": 1, "predicted_ms": 70}}, ServerTimes(None, 0.0125, 0.07)),
        ({"metrics": {"queue_time_ms": True, "generation_time_ms": 1e300}}, None),
        ({"metrics": "fast"}, None),
    ],
)
def test_times_of_vllm_and_llama_cpp(document: dict[str, Any], times: ServerTimes | None) -> None:
    assert parsed(choices=[], **document).times == times


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (400, b'{"object": "error", "message": "top_k: not\\nhere"}', "top_k: not here"),
        (401, b'{"error": {"message": "Pay first."}}', "Pay first."),
        (401, b"", "the server does not accept the key"),
        (403, b"<html>", "the server does not accept the key"),
        (402, b"", "the server replied with status 402"),
        (422, b'{"detail": [{"msg": "Field required"}]}', "Field required"),
        (422, b'{"detail": [{"loc": ["body", "temperature"], "msg": "too hot"}]}', "temperature: too hot"),
        (422, b'{"detail": [{"loc": ["body"], "msg": "too hot"}]}', "too hot"),
        (422, b'{"detail": [{"loc": null, "msg": "too hot"}]}', "too hot"),
        (500, b'{"error": "context full"}', "context full"),
        (502, b"<html>", "the server replied with status 502"),
        (502, b"<p>It is\n<b>full</b>", "the server replied with status 502: It is full"),
        (503, b"It is full", "the server replied with status 503: It is full"),
    ],
)
def test_a_refusal_is_the_servers_sentence_or_gets_one(status: int, body: bytes, said: str) -> None:
    refused = refusal(status, body)
    assert (refused.status, str(refused)) == (status, said)


def test_a_failure_of_no_known_kind_is_named() -> None:
    said = failure(httpx.DecodingError("not\ngzip"), "http://host")
    assert said == "the request to http://host failed (DecodingError: not gzip)"
    assert "Bearer" not in failure(httpx.LocalProtocolError("Illegal header value b'Bearer key'"), "http://host")
