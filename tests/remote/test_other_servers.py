"""Answers in the formats of other servers, and streams that break."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import httpx
import pytest
from fastapi import Response
from fastapi.responses import JSONResponse, StreamingResponse

from roseplay.config import SamplingParams
from roseplay.core.request import FinishReason
from roseplay.engine.errors import EngineStartError
from roseplay.engine.stream import Stream
from roseplay.engine.telemetry import LoadEvent, TokensEvent
from roseplay.remote import exchange
from roseplay.remote.engine import HttpEngine
from roseplay.remote.sentences import MOST_REFUSAL
from roseplay.remote.stream import HttpStream
from roseplay.remote.timings import Timings
from tests.remote.servers import Script, at_a_port, error, event, words
from tests.waiting import wait_until

CHAT = [{"role": "user", "content": "Hi"}]
DONE = event(b"[DONE]")


def ask(script: Script, prompt: Any = CHAT, params: SamplingParams | None = None) -> HttpStream:
    with at_a_port(script.app) as address, HttpEngine(address) as remote:
        stream = remote.submit(prompt, params)
        stream.result(timeout=30)
        return stream


def failed(stream: Stream) -> str:
    assert stream.finish_reason is FinishReason.ERROR
    return stream.error or ""


def test_a_server_that_counts_nothing() -> None:
    stream = ask(Script(words("All ", "is ", "well\u2028.")))
    assert (stream.text, stream.finish_reason) == ("All is well\u2028.", FinishReason.STOP)
    assert (stream.metrics.completion_tokens, stream.metrics.prompt_tokens) == (3, 0)
    assert len(stream.token_times_ns) == 3 and stream.metrics.ttft_s is not None


def test_pieces_of_several_tokens_are_counted_by_the_server() -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 11, "prompt_tokens_details": {"cached_tokens": 4}}
    stream = ask(Script(words("All is ", "well.", usage=usage)))
    assert (stream.metrics.prompt_tokens, stream.metrics.completion_tokens, stream.metrics.cached_tokens) == (9, 11, 4)
    assert len(stream.token_times_ns) == 2 and len(stream.metrics.itl_ns) == 1


@pytest.mark.parametrize("owner", ["roseplay", "vllm", "sglang"])
def test_servers_that_can_count_the_tokens_of_chunks_are_asked_to(owner: str) -> None:
    script = Script(words("Yes"), card={"owned_by": owner})
    ask(script)
    assert ("continuous_usage_stats" in script.bodies[0]["stream_options"]) is (owner != "sglang")


def test_no_request_waits_here_for_another() -> None:
    going = asyncio.Event()

    async def until_told() -> AsyncIterator[bytes]:
        await asyncio.wait_for(going.wait(), 60)
        yield b""

    script = Script(until_told)
    with at_a_port(script.app) as address, HttpEngine(address) as remote:
        streams = [remote.submit(CHAT) for _ in range(130)]  # more than httpx opens by default
        wait_until(lambda: len(script.bodies) == len(streams))
        remote.abort_all()
        assert {stream.result(timeout=30).finish_reason for stream in streams} == {FinishReason.ABORT}


def counting(*pieces: tuple[str, int]) -> list[bytes]:
    """Chunks with texts and the number of tokens so far."""
    return [
        *(
            event(
                {
                    "choices": [{"delta": {"content": text}, "finish_reason": None}],
                    "usage": {"prompt_tokens": 3, "completion_tokens": count},
                }
            )
            for text, count in pieces
        ),
        event({"choices": [{"delta": {}, "finish_reason": "stop"}]}),
    ]


@pytest.mark.parametrize(
    ("pieces", "tokens"),
    [
        ([("Some ", 1), ("more words ", 4), ("", 4), ("here", 5)], 5),
        (
            [("Some ", 0), ("words", 0)],
            2,
        ),  # a server that counts at the end only: a piece is a token, and no text is lost
    ],
    ids=["counted", "not counted"],
)
def test_chunks_that_say_how_many_tokens_there_were(pieces: list[tuple[str, int]], tokens: int) -> None:
    stream = ask(Script(counting(*pieces), card={"owned_by": "vllm"}))
    assert stream.text == "".join(text for text, _ in pieces)
    assert len(stream.token_times_ns) == len(stream.text_ends) == len(stream.metrics.itl_ns) + 1 == tokens


def test_no_more_tokens_are_counted_than_were_asked_for() -> None:
    last = event({"choices": [], "usage": {"prompt_tokens": 10**300, "completion_tokens": 10**6}})
    script = Script([*counting(("Some ", 1), ("words", 10**5)), last], card={"owned_by": "vllm"})
    with at_a_port(script.app) as address, HttpEngine(address) as remote:
        stream = remote.submit(CHAT, SamplingParams(max_new_tokens=5)).result(timeout=30)
        events = [event for event in remote.telemetry.since(0)[1] if isinstance(event, TokensEvent)]
    assert (stream.text, stream.num_tokens, stream.metrics.completion_tokens) == ("Some words", 5, 5)
    assert sum(len(event.tokens) for event in events) == 5
    assert stream.metrics.prompt_tokens == 3  # the last count cannot be true


@pytest.mark.parametrize(
    ("refuses", "asked"),
    [
        ("continuous_usage_stats", [["continuous_usage_stats", "include_usage"], ["include_usage"]]),
        ("stream_options", [["continuous_usage_stats", "include_usage"], ["include_usage"], []]),
    ],
)
def test_a_server_that_refuses_to_count_is_asked_for_less(refuses: str, asked: list[list[str]]) -> None:
    def refuse(body: dict[str, Any]) -> Response | None:
        options = body.get("stream_options")
        if options is None or (refuses != "stream_options" and refuses not in options):
            return None
        fault = {"loc": ["body", "stream_options", refuses], "msg": "Extra inputs are not permitted"}
        return JSONResponse({"detail": [fault]}, 422)

    script = Script(words("Yes"), card={"owned_by": "vllm"}, refuse=refuse)
    assert ask(script).text == "Yes"
    assert [sorted(body.get("stream_options") or {}) for body in script.bodies] == asked


def test_a_failure_that_mentions_usage_is_not_asked_again() -> None:
    script = Script([], refuse=lambda body: error(500, "stream_options broke the server"))
    assert failed(ask(script)) == "stream_options broke the server"
    assert len(script.bodies) == 1


def test_what_follows_the_end_of_an_answer_is_left_out() -> None:
    stream = ask(Script([*words("Yes"), b"<!-- sent by a proxy -->\n"]))
    assert (stream.text, stream.finish_reason, stream.error) == ("Yes", FinishReason.STOP, None)


def test_no_more_of_a_prompt_is_cached_than_it_has() -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 40}}
    assert ask(Script(words("Yes", usage=usage))).metrics.cached_tokens == 9


def test_metrics_that_begin_with_the_first_request() -> None:
    script = Script(words("Yes"), metrics="", card={"owned_by": "sglang"})
    with at_a_port(script.app) as address, HttpEngine(address) as remote:
        assert remote.capabilities.reasons["queue"] == "SGLang's metrics have not included it yet"
        script.metrics = "sglang:num_running_reqs 2.0\nsglang:num_queue_reqs 1.0\n"
        wait_until(lambda: remote.capabilities.queue)
        assert "kv_usage" in remote.capabilities.reasons


def test_every_portion_of_bytes_gives_the_same_answer() -> None:
    body = b": comment\n\nevent: x\r\n" + b"".join(words("Grüße ", "🌹")).replace(b"\n", b"\r\n")
    for size in (1, 7, len(body)):
        stream = ask(Script([body[start : start + size] for start in range(0, len(body), size)]))
        assert (stream.text, stream.finish_reason) == ("Grüße 🌹", FinishReason.STOP)


def test_an_event_of_several_lines_is_one() -> None:
    text = json.dumps({"choices": [{"text": "Yes", "finish_reason": "stop"}]}, indent=1)
    assert ask(Script([b"data: " + text.replace("\n", "\rdata: ").encode() + b"\r\r"])).text == "Yes"


def test_separators_of_unicode_are_text() -> None:
    text = "one\u2028two\u2029three\x85four\r\n"
    choices = [{"delta": {"content": text}, "finish_reason": "stop"}]
    assert ask(Script([event(json.dumps({"choices": choices}, ensure_ascii=False).encode())])).text == text


async def endless(portion: bytes) -> AsyncIterator[bytes]:
    while True:
        yield portion
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("portion", "says"),
    [
        (b"data: " + b"x" * (1 << 16), "an event of more than 4 MiB"),
        (event({"choices": [{"text": "x" * (1 << 16)}]}), "more than 4 MiB for an answer of at most 3 tokens"),
    ],
    ids=["a line", "an answer"],
)
def test_an_answer_without_end_is_given_up(portion: bytes, says: str) -> None:
    assert says in failed(ask(Script(lambda: endless(portion)), params=SamplingParams(max_new_tokens=3)))


@pytest.mark.parametrize("said", [{"text": ""}, {"text": "x"}, {"delta": {}}])
def test_events_far_beyond_the_tokens_asked_for_are_given_up(said: dict[str, Any]) -> None:
    script = Script(lambda: endless(event({"choices": [said], "usage": None}) * 100))
    with at_a_port(script.app) as address, HttpEngine(address) as remote:
        stream = remote.submit(CHAT, SamplingParams(max_new_tokens=4)).result(timeout=60)
        told = [event for event in remote.telemetry.since(0)[1] if isinstance(event, TokensEvent)]
    assert failed(stream) == "the server sent more than 10,400 events for an answer of at most 4 tokens"
    counts = {
        stream.num_tokens,
        stream.metrics.completion_tokens,
        len(stream.metrics.itl_ns) + 1,
        len(stream.text_ends),
    }
    assert counts == {4} and sum(len(event.tokens) for event in told) == 4
    assert len(stream.text) == (10_400 if said.get("text") else 0)


def test_single_characters_and_empty_events_are_no_fault() -> None:
    text = "A word, a space, a word. " * 40
    usage = {"prompt_tokens": 3, "completion_tokens": 10**5}
    waiting = [event({"choices": []})] * 5_000
    stream = ask(Script([*waiting, *words(*text, usage=usage)]), params=SamplingParams(max_new_tokens=400))
    assert (stream.text, stream.error, stream.metrics.completion_tokens) == (text, None, 400)


async def stuck() -> AsyncIterator[bytes]:
    yield b"{"
    await asyncio.sleep(600)


@pytest.mark.parametrize("body", [lambda: endless(b"x" * (1 << 16)), stuck], ids=["endless", "stuck"])
def test_a_refusal_without_end_is_given_up(body: Callable[[], Any]) -> None:
    script = Script([], refuse=lambda _: StreamingResponse(body(), 503))
    with at_a_port(script.app) as address, HttpEngine(address, timings=Timings(refusal_s=0.2)) as remote:
        stream = remote.submit(CHAT)
        stream.result(timeout=30)
    assert failed(stream).startswith("the server replied with status 503")


def test_only_the_beginning_of_a_long_refusal_is_read() -> None:
    sent = 0

    class Long(httpx.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            nonlocal sent
            for _ in range(1000):
                sent += 1 << 14
                yield b"x" * (1 << 14)

    body = asyncio.run(exchange._refusal_of(httpx.Response(500, stream=Long()), 60.0))
    assert len(body) == sent == MOST_REFUSAL + (1 << 14)


def test_a_server_that_does_not_stream() -> None:
    choice = {"message": {"role": "assistant", "content": "All at once"}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 3, "completion_tokens": 5}
    whole = JSONResponse({"choices": [choice], "usage": usage})
    stream = ask(Script([], refuse=lambda body: whole))
    assert (stream.text, stream.metrics.completion_tokens) == ("All at once", 5)


def test_a_proxy_of_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # nothing listens there
    assert ask(Script(words("Yes"))).text == "Yes"


@pytest.mark.parametrize(("idle_s", "connections"), [(60.0, 1), (0.0, 2)])
def test_a_connection_is_used_again_for_a_while(idle_s: float, connections: int) -> None:
    script = Script(words("Yes"))
    with at_a_port(script.app) as address, HttpEngine(address, timings=Timings(keep_idle_s=idle_s)) as remote:
        assert [remote.submit(CHAT).result(timeout=30).text for _ in range(2)] == ["Yes", "Yes"]
    assert len(set(script.ports)) == connections


def test_usage_is_left_out_where_it_is_refused() -> None:
    def refuse(body: dict[str, Any]) -> Response | None:
        return (
            error(400, "Unrecognized request argument supplied: stream_options") if "stream_options" in body else None
        )

    script = Script(words("Yes"), refuse=refuse)
    with at_a_port(script.app) as address, HttpEngine(address) as remote:
        assert [remote.submit(CHAT).result(timeout=30).text for _ in range(2)] == ["Yes", "Yes"]
    assert ["stream_options" in body for body in script.bodies] == [True, False, False]


def test_a_refusal_is_the_servers_sentence() -> None:
    assert failed(ask(Script([], refuse=lambda body: error(429, "too many requests wait")))) == "too many requests wait"


PAGE = "<!doctype html><html><head><title lang=en>502 Bad &amp; Gateway</title><style>p {}</style></head><p>nginx</p>"


@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
@pytest.mark.parametrize(
    ("body", "says"),
    [
        ('{"error": {"message": "The model\\nloads."}}', "The model loads."),
        ('{\n  "error": "The model loads."\n}\n', "The model loads."),
        ('{"detail": "The model loads."}', "The model loads."),
        ('"The model loads."', 'the server sent an answer that is not a JSON object: "The model loads."'),
        ("", "the server ended the stream without saying why: the answer may not be whole"),
        ("[1]", "the server sent an answer that is not a JSON object: [1]"),
        ('{"state": "loading"}', 'the server sent an answer without choices: {"state": "loading"}'),
        (PAGE, "the server sent an answer that is not a JSON object: 502 Bad & Gateway"),
        ("The model loads.", "the server sent an answer that is not a JSON object: The model loads."),
        ("event: error\ndata: It is\ndata: full\n\n", "the server sent an event that is not a JSON object: It is full"),
        ('data: {"choices": [{"text": "Yes"}]}\n\n{"error": "The GPU is lost."}\n', "The GPU is lost."),
    ],
)
def test_an_error_with_status_200_keeps_its_reason(kind: str, body: str, says: str) -> None:
    assert failed(ask(Script([], refuse=lambda _: Response(body, 200, media_type=kind)))) == says


@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
def test_a_whole_answer_is_read_whatever_its_type_says(kind: str) -> None:
    body = json.dumps({"choices": [{"text": "Yes", "finish_reason": "stop"}]}, indent=2)
    assert ask(Script([], refuse=lambda _: Response(body, 200, media_type=kind))).text == "Yes"


def test_a_mistake_of_the_client_ends_its_own_stream_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def mistaken(self: exchange.Exchanges, stream: HttpStream, path: str, body: Any) -> None:
        if stream.params.max_new_tokens == 1:
            raise ZeroDivisionError
        await run(self, stream, path, body)

    run = exchange.Exchanges.run
    monkeypatch.setattr(exchange.Exchanges, "run", mistaken)
    with at_a_port(Script(words("Yes")).app) as address, HttpEngine(address) as remote:
        stream = remote.submit(CHAT, SamplingParams(max_new_tokens=1))
        stream.result(timeout=5)
        assert failed(stream) == "the request failed (ZeroDivisionError)"
        assert remote.submit(CHAT).result(timeout=30).text == "Yes"


@pytest.mark.parametrize(
    ("events", "says"),
    [
        ([*words("Some ")[:-2], event({"error": {"message": "the worker died", "code": 500}})], "the worker died"),
        ([*words("Some ")[:-2], event({"error": {"message": "it is full"}, "choices": []}), DONE], "it is full"),
        ([*words("Some ")[:-2], event({"error": {"code": 9}, "choices": []}), DONE], "says that the request failed"),
        (words("Some ")[:-2], "without saying why"),
        ([*words("Some ")[:-2], event(b"{half")], "not a JSON object"),
        ([event({"choices": [{"text": "Some ", "finish_reason": "error"}]})], "says that the request failed"),
    ],
    ids=[
        "an error event",
        "an error with choices",
        "an error without words",
        "no end",
        "no JSON",
        "finished with error",
    ],
)
def test_a_stream_that_goes_wrong_keeps_its_text(events: list[bytes], says: str) -> None:
    stream = ask(Script(events))
    assert says in failed(stream)
    assert stream.text == "Some "


def test_a_connection_that_breaks_off() -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"".join(words("Some ")[:2])
        await asyncio.sleep(0.05)
        raise OSError("the server is gone")

    stream = ask(Script(broken))
    assert "closed the connection before the end" in failed(stream)
    assert stream.text == "Some "


SERVER = """
import asyncio, sys, uvicorn
from tests.remote.servers import Script, words
async def endless():
    yield b"".join(words("Some ")[:2])
    await asyncio.sleep(600)
uvicorn.run(Script(endless).app, port=int(sys.argv[1]), log_level="critical")
"""


def test_a_server_that_is_killed() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with subprocess.Popen([sys.executable, "-c", SERVER, str(port)]) as process:
        try:
            remote = attached(f"http://127.0.0.1:{port}")
            streams = [remote.submit(CHAT) for _ in range(5)]
            assert all(stream.wait_for_first_token(timeout=30) for stream in streams)
            process.kill()
            process.wait()  # before that, its port may still accept a connection
            for stream in streams:
                assert "closed the connection before the end" in failed(stream.result(timeout=5))
            late = remote.submit(CHAT)
            late.result(timeout=20)
            assert "nothing answers" in failed(late)
            assert not remote.health().ok and remote.alive
            remote.close()
        finally:
            process.kill()


def attached(url: str) -> HttpEngine:
    deadline = time.monotonic() + 60
    while True:
        try:
            return HttpEngine(url)
        except EngineStartError:
            assert time.monotonic() < deadline
            time.sleep(0.1)


def delay_replies(script: Script, *, once: list[bool]) -> None:
    """Delay each reply by five seconds once the list has an item."""

    @script.app.middleware("http")
    async def delay(request: Any, call_next: Any) -> Any:
        if once:
            await asyncio.sleep(5)
        return await call_next(request)


def test_a_server_that_hangs_is_given_up() -> None:
    timings = Timings(stopped_s=0.2, overdue_s=0.1, look_reply_s=0.2)
    stuck = asyncio.Event()
    hanging: list[bool] = []

    async def hang() -> AsyncIterator[bytes]:
        yield b"".join(words("Some ")[:2])
        hanging.append(True)
        await stuck.wait()

    script = Script(hang)
    delay_replies(script, once=hanging)
    with at_a_port(script.app) as address, HttpEngine(address, timings=timings) as remote:
        stream = remote.submit(CHAT)
        stream.result(timeout=30)
        assert "gave no sign of life" in failed(stream)
        assert remote.overdue is not None and "has not answered" in remote.overdue


def test_a_server_that_only_streams_is_not_given_up() -> None:
    streaming: list[bool] = []

    async def slowly() -> AsyncIterator[bytes]:
        streaming.append(True)
        for part in words(*["word "] * 40):
            yield part
            await asyncio.sleep(0.03)

    script = Script(slowly)
    delay_replies(script, once=streaming)
    timings = Timings(stopped_s=0.3, overdue_s=0.2, look_s=0.02, look_reply_s=0.1)
    with at_a_port(script.app) as address, HttpEngine(address, timings=timings) as remote:
        stream = remote.submit(CHAT).result(timeout=30)
    assert (stream.finish_reason, stream.error, stream.num_tokens) == (FinishReason.STOP, None, 40)


def test_parameters_are_only_sent_where_they_ask_for_something() -> None:
    script = Script(words("Yes"))
    with at_a_port(script.app) as address, HttpEngine(address) as remote:
        remote.submit("Once").result(timeout=30)
        params = SamplingParams(top_k=5, min_p=0.1, repetition_penalty=1.2, seed=1, stop=("x",), ignore_eos=True)
        params = replace(params, tenant="a", priority=2)
        remote.submit([1, 2], params).result(timeout=30)
    plain, asked = script.bodies
    assert plain == {
        "model": "scripted", "prompt": "Once", "max_tokens": 128, "temperature": 0.0, "top_p": 1.0, "stream": True,
        "stream_options": {"include_usage": True},
    }  # fmt: skip
    added = {
        "prompt": [1, 2], "top_k": 5, "min_p": 0.1, "repetition_penalty": 1.2, "seed": 1, "stop": ["x"], "ignore_eos": True,
        "user": "a", "priority": 2,
    }  # fmt: skip
    assert asked == {**plain, **added}
    assert script.paths == ["completions", "completions"]


def test_a_servers_own_defaults_are_switched_off_where_its_names_are_known() -> None:
    script = Script(words("Yes"), card={"owned_by": "llamacpp"})
    ask(script, CHAT, SamplingParams(repetition_penalty=1.3))
    assert script.bodies[0].items() >= {"top_k": 0, "min_p": 0.0, "repeat_penalty": 1.3}.items()
    assert "repetition_penalty" not in script.bodies[0]
    vllm = Script(words("Yes"), card={"owned_by": "vllm"})
    ask(vllm)
    assert vllm.bodies[0].items() >= {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}.items()


def test_load_is_followed_while_requests_run() -> None:
    going = asyncio.Event()

    async def until_told() -> AsyncIterator[bytes]:
        for part in words("Some ", "more"):
            yield part
        await asyncio.wait_for(going.wait(), 30)

    script = Script(until_told, metrics="tgi_queue_size 3\ntgi_batch_current_size 8\n")
    with at_a_port(script.app) as address, HttpEngine(address) as remote:
        assert remote.capabilities.queue and not remote.capabilities.kv_usage
        assert remote.capabilities.reasons["kv_usage"] == "TGI's metrics do not include it"
        stream = remote.submit(CHAT)

        def loads() -> list[LoadEvent]:
            return [event for event in remote.telemetry.since(0)[1] if isinstance(event, LoadEvent)]

        wait_until(lambda: loads() and (loads()[-1].total.running, loads()[-1].total.waiting) == (8, 3))
        script.metrics = "tgi_queue_size 0\ntgi_batch_current_size 1\n"
        wait_until(lambda: loads()[-1].total.running == 1)
        stream.cancel()
        assert stream.result(timeout=5).finish_reason is FinishReason.ABORT


def test_the_first_look_after_the_last_request_tells_that_nothing_runs() -> None:
    timings = Timings(look_s=0.1, idle_looks=10**9)  # no other poll while it is idle
    remotes: list[HttpEngine] = []
    told = asyncio.Event()  # set once a running request has been reported

    async def until_told() -> AsyncIterator[bytes]:
        *parts, end = words("Yes")
        for part in parts:
            yield part
        await asyncio.wait_for(told.wait(), 30)
        yield end

    script = Script(until_told, metrics="tgi_queue_size 0\ntgi_batch_current_size 0\n")

    @script.app.middleware("http")
    async def count(request: Any, call_next: Any) -> Any:
        if request.url.path == "/metrics":
            running = remotes[0].num_unfinished if remotes else 0
            script.metrics = f"tgi_queue_size 0\ntgi_batch_current_size {running}\n"
        elif script.metrics.endswith("1\n"):
            told.set()  # a poll fetches metrics first, so the next one has to report the end of the request
        return await call_next(request)

    with at_a_port(script.app) as address, HttpEngine(address, timings=timings) as remote:

        def running() -> list[int | None]:
            events = remote.telemetry.since(0)[1]
            return [event.total.running for event in events if isinstance(event, LoadEvent)]

        remotes.append(remote)
        remote.submit(CHAT).result(timeout=30)
        wait_until(lambda: running()[-2:] == [1, 0])


def test_an_answer_that_comes_at_once_has_a_time() -> None:
    choice = {"message": {"role": "assistant", "content": "All at once"}, "finish_reason": "stop"}
    metrics = ask(Script([], refuse=lambda body: JSONResponse({"choices": [choice]}))).metrics
    assert metrics.first_token_ns is not None and metrics.first_byte_ns is not None and metrics.finished_ns is not None
    assert metrics.submitted_ns < metrics.first_byte_ns <= metrics.first_token_ns <= metrics.finished_ns


def test_a_request_that_has_ended_before_it_is_sent_is_not_sent() -> None:
    script, begin = Script(words("Yes")), threading.Event()
    with at_a_port(script.app) as address, HttpEngine(address) as remote:
        remote._connection._loop.call(begin.wait)
        ended = remote.submit("First")
        remote._live.end(ended, FinishReason.ERROR, "it took too long")
        begin.set()
        assert remote.submit("Second").result(timeout=30).text == "Yes"
        remote._live.push(ended, "late", time_ns=1)
    assert [body["prompt"] for body in script.bodies] == ["Second"]
    assert (ended.text, ended.error) == ("", "it took too long")


def test_a_load_that_has_not_changed_is_told_once() -> None:
    script = Script(words("Yes"), metrics="tgi_queue_size 3\ntgi_batch_current_size 8\n")
    scraped: list[bool] = []

    @script.app.middleware("http")
    async def count(request: Any, call_next: Any) -> Any:
        if request.url.path == "/metrics":
            scraped.append(True)
        return await call_next(request)

    timings = Timings(look_s=0.01, idle_looks=2)
    with at_a_port(script.app) as address, HttpEngine(address, timings=timings) as remote:

        def loads() -> list[LoadEvent]:
            return [event for event in remote.telemetry.since(0)[1] if isinstance(event, LoadEvent)]

        wait_until(lambda: len(scraped) > 6)
        assert len(loads()) == 1
        script.metrics = (
            'tgi_queue_size 3\ntgi_batch_current_size{engine="0"} 2\ntgi_batch_current_size{engine="1"} 6\n'
        )
        wait_until(lambda: len(loads()) == 2)  # the total is the same
        assert [each.running for each in loads()[-1].replicas.values()] == [2, 6]


def test_nothing_is_kept_of_requests_that_ended() -> None:
    with at_a_port(Script(words("Yes")).app) as address, HttpEngine(address) as remote:
        for _ in range(3):
            remote.submit(CHAT).result(timeout=30)
        wait_until(lambda: not remote._connection._tasks)
