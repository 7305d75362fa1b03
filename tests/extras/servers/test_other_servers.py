"""Connections to other servers: what is sent, how their load is followed, and what happens when they break or hang."""

from __future__ import annotations

import asyncio
import gc
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from fastapi.responses import JSONResponse

from roseplay.clock import SYSTEM_CLOCK
from roseplay.config import SamplingParams
from roseplay.core.request import FinishReason
from roseplay.engine.capabilities import Capabilities
from roseplay.engine.stream import Stream
from roseplay.engine.telemetry import Telemetry
from roseplay.extras.servers.connection import Connection
from roseplay.extras.servers.control import Control
from roseplay.extras.servers.engine import HttpEngine
from roseplay.extras.servers.live import RemoteStreams
from roseplay.extras.servers.stream import HttpStream
from roseplay.extras.servers.timings import Timings
from tests.at_a_port import at_a_port
from tests.extras.servers.servers import Script, attached, loads_of, words
from tests.waiting import wait_until

CHAT = [{"role": "user", "content": "Hi"}]


def ask(script: Script, prompt: Any = CHAT, params: SamplingParams | None = None) -> Stream:
    with attached(script) as remote:
        return remote.submit(prompt, params).result(timeout=30)


def failed(stream: Stream) -> str:
    assert stream.finish_reason is FinishReason.ERROR
    return stream.error or ""


def loaded(running: int, waiting: int = 0) -> str:
    return f"tgi_queue_size {waiting}\ntgi_batch_current_size {running}\n"


# -- what is sent


@pytest.mark.parametrize("owner", ["roseplay", "vllm", "sglang"])
def test_servers_that_can_count_the_tokens_of_chunks_are_asked_to(owner: str) -> None:
    script = Script(words("Yes"), card={"owned_by": owner})
    ask(script)
    assert ("continuous_usage_stats" in script.bodies[0]["stream_options"]) is (owner != "sglang")


def test_usage_is_left_out_once_it_was_refused() -> None:
    reply = JSONResponse({"error": {"message": "Unrecognized request argument supplied: stream_options"}}, 400)
    script = Script(words("Yes"), refuse=lambda body: reply if "stream_options" in body else None)
    with attached(script) as remote:
        assert [remote.submit(CHAT).result(timeout=30).text for _ in range(2)] == ["Yes", "Yes"]
    assert ["stream_options" in body for body in script.bodies] == [True, False, False]


def test_structures_are_sent_as_each_server_takes_them() -> None:
    schema = {"type": "object"}
    for owner in ("vllm", "llamacpp"):
        script = Script(words("Yes"), card={"owned_by": owner})
        ask(script, CHAT, SamplingParams(structured_outputs={"json": schema}))
        assert script.bodies[0].get("structured_outputs") == ({"json": schema} if owner == "vllm" else None)
        if owner == "llamacpp":
            assert script.bodies[0]["response_format"]["json_schema"]["schema"] == schema
            with pytest.raises(ValueError, match=r"llama\.cpp is sent JSON schemas only"):
                ask(script, CHAT, SamplingParams(structured_outputs={"regex": "a"}))


def test_parameters_are_only_sent_where_they_ask_for_something() -> None:
    script = Script(words("Yes"))
    with attached(script) as remote:
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


@pytest.mark.parametrize(
    ("owner", "switched_off"),
    [
        ("llamacpp", {"top_k": 0, "min_p": 0.0, "repeat_penalty": 1.3}),
        ("vllm", {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.3}),
    ],
)
def test_a_servers_own_defaults_are_switched_off_where_its_names_are_known(
    owner: str, switched_off: dict[str, Any]
) -> None:
    script = Script(words("Yes"), card={"owned_by": owner})
    ask(script, CHAT, SamplingParams(repetition_penalty=1.3))
    sent = {name: value for name, value in script.bodies[0].items() if name.startswith(("top_k", "min_p", "repe"))}
    assert sent == switched_off


def test_a_proxy_of_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # nothing listens there
    assert ask(Script(words("Yes"))).text == "Yes"


def test_no_request_waits_here_for_another() -> None:
    async def silent() -> AsyncIterator[bytes]:
        await asyncio.sleep(60)
        yield b""

    script = Script(silent)
    with attached(script) as remote:
        streams = [remote.submit(CHAT) for _ in range(110)]  # more than httpx opens by default
        wait_until(lambda: len(script.bodies) == len(streams))
        remote.abort_all()
        assert {stream.result(timeout=30).finish_reason for stream in streams} == {FinishReason.ABORT}


@pytest.mark.parametrize(("idle_s", "connections"), [(60.0, 1), (0.0, 2)])
def test_a_connection_is_used_again_for_a_while(idle_s: float, connections: int) -> None:
    script = Script(words("Yes"))
    with attached(script, timings=Timings(keep_idle_s=idle_s)) as remote:
        assert [remote.submit(CHAT).result(timeout=30).text for _ in range(2)] == ["Yes", "Yes"]
    assert len(set(script.ports)) == connections


def test_a_request_that_has_ended_before_it_is_sent_is_not_sent() -> None:
    def new_stream(number: int) -> HttpStream:
        stream = HttpStream(number, [], SamplingParams(), lambda _: False, SYSTEM_CLOCK.now_ns())
        live.add(stream)
        return stream

    script = Script(words("Yes"))
    live = RemoteStreams(Telemetry(100), SYSTEM_CLOCK, Capabilities())
    with at_a_port(script.app) as address:
        connection = Connection(Control(address), live, SYSTEM_CLOCK, Timings())
        ended, other = new_stream(1), new_stream(2)
        live.end(ended, FinishReason.ERROR, "it took too long")
        connection.start(ended, "/completions", {"prompt": "First"})
        connection.start(other, "/completions", {"prompt": "Second"})
        assert other.result(timeout=30).text == "Yes"
        live.push(ended, "late", time_ns=1)
        connection.close(5)
    assert [body["prompt"] for body in script.bodies] == ["Second"]
    assert (ended.text, ended.error) == ("", "it took too long")


# -- what comes back


def test_an_answer_that_comes_at_once_has_a_time() -> None:
    choice = {"message": {"role": "assistant", "content": "All at once"}, "finish_reason": "stop"}
    metrics = ask(Script([], refuse=lambda body: JSONResponse({"choices": [choice]}))).metrics
    assert metrics.first_token_ns is not None and metrics.first_byte_ns is not None and metrics.finished_ns is not None
    assert metrics.submitted_ns < metrics.first_byte_ns <= metrics.first_token_ns <= metrics.finished_ns


def test_a_mistake_of_the_client_ends_its_own_stream_alone() -> None:
    with attached(Script(words("Yes"))) as remote:
        mistaken = remote.submit(CHAT, due_ns="soon")  # type: ignore[arg-type]
        assert failed(mistaken.result(timeout=30)) == "the request failed (TypeError)"
        assert remote.submit(CHAT).result(timeout=30).text == "Yes"


def test_nothing_is_kept_of_requests_that_ended() -> None:
    def ended_tasks() -> int:
        return sum(type(thing) is asyncio.Task and thing.done() for thing in gc.get_objects())

    with attached(Script(words("Yes"))) as remote:
        before = ended_tasks()
        for _ in range(3):
            remote.submit(CHAT).result(timeout=30)
        wait_until(lambda: ended_tasks() <= before)


# -- servers that break or hang


def test_a_connection_that_breaks_off() -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"".join(words("Some ")[:2])
        await asyncio.sleep(0.05)
        raise OSError("the server is gone")

    stream = ask(Script(broken))
    assert "closed the connection before the end" in failed(stream)
    assert stream.text == "Some "


SERVER = """
import asyncio, socket, sys, uvicorn
from tests.extras.servers.servers import Script, words
async def endless():
    yield b"".join(words("Some ")[:2])
    await asyncio.sleep(600)
server = uvicorn.Server(uvicorn.Config(Script(endless).app, log_level="critical"))
server.run([socket.socket(fileno=int(sys.argv[1]))])
"""


def test_a_server_that_is_killed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url, number = f"http://127.0.0.1:{listener.getsockname()[1]}", listener.fileno()
        process = subprocess.Popen([sys.executable, "-c", SERVER, str(number)], pass_fds=[number])
    with process:
        try:
            remote = HttpEngine(url, timings=Timings(reply_s=60))  # its first request waits for the server's start
            streams = [remote.submit(CHAT) for _ in range(5)]
            assert all(stream.wait_for_first_token(timeout=30) for stream in streams)
            process.kill()
            process.wait()  # before that, its port may still accept a connection
            for stream in streams:
                assert "closed the connection before the end" in failed(stream.result(timeout=5))
            assert "nothing answers" in failed(remote.submit(CHAT).result(timeout=20))
            assert not remote.health().ok and remote.alive
            remote.close()
        finally:
            process.kill()


def delay_replies(script: Script, *, once: list[bool]) -> None:
    """Delay each reply by half a second once the list has an item."""

    @script.app.middleware("http")
    async def delay(request: Any, call_next: Any) -> Any:
        if once:
            await asyncio.sleep(0.5)
        return await call_next(request)


def test_a_server_that_hangs_is_given_up() -> None:
    timings = Timings(stopped_s=0.2, overdue_s=0.1, look_s=0.02, look_reply_s=0.1)
    hanging: list[bool] = []

    async def hang() -> AsyncIterator[bytes]:
        yield b"".join(words("Some ")[:2])
        hanging.append(True)
        await asyncio.sleep(60)

    script = Script(hang)
    delay_replies(script, once=hanging)
    with attached(script, timings=timings) as remote:
        assert "gave no sign of life" in failed(remote.submit(CHAT).result(timeout=30))
        assert remote.overdue is not None and "has not answered" in remote.overdue


def test_an_engine_that_hangs_behind_its_api_is_told() -> None:
    def metrics(tokens: int, running: int = 4) -> str:
        return (
            f"vllm:num_requests_running {running}\nvllm:num_requests_waiting 0\nvllm:generation_tokens_total {tokens}\n"
        )

    script = Script(words("Yes"), metrics=metrics(7))
    with attached(script, timings=Timings(look_s=0.02, stalled_s=0.2)) as remote:
        wait_until(lambda: remote.overdue is not None)
        assert remote.overdue.startswith(f"{remote.url} replies, but no token has come for")
        assert remote.overdue.endswith("4 requests run")
        script.metrics = metrics(8)
        wait_until(lambda: remote.overdue is None)
        wait_until(lambda: remote.overdue is not None)
        script.metrics = metrics(8, running=0)
        wait_until(lambda: remote.overdue is None)


def test_an_answer_that_stops_is_told_where_the_server_counts_no_tokens() -> None:
    async def silent() -> AsyncIterator[bytes]:
        yield b"".join(words("Some ")[:2])
        await asyncio.sleep(60)

    with attached(Script(silent, metrics=loaded(8, 3)), timings=Timings(look_s=0.02, stalled_s=0.2)) as remote:
        stream = remote.submit(CHAT)
        wait_until(lambda: remote.overdue is not None)
        assert remote.overdue.endswith("1 request run")
        stream.cancel()
        wait_until(lambda: remote.overdue is None)


def test_what_a_server_that_is_gone_runs_is_not_known() -> None:
    timings = Timings(look_s=0.02, overdue_s=0.1, look_reply_s=0.1, idle_looks=3)
    with at_a_port(Script(words("Yes"), metrics=loaded(8, 3)).app) as address:
        remote = HttpEngine(address, timings=timings)
        wait_until(lambda: [load.total.running for load in loads_of(remote)] == [8])
    with remote:
        wait_until(lambda: [load.total.running for load in loads_of(remote)] == [8, None])
        assert remote.overdue is not None


def test_a_server_that_only_streams_is_not_given_up() -> None:
    streaming: list[bool] = []

    async def slowly() -> AsyncIterator[bytes]:
        streaming.append(True)
        for part in words(*["word "] * 30):
            yield part
            await asyncio.sleep(0.03)

    script = Script(slowly)
    delay_replies(script, once=streaming)
    timings = Timings(stopped_s=0.3, overdue_s=0.2, look_s=0.02, look_reply_s=0.1)
    with attached(script, timings=timings) as remote:
        stream = remote.submit(CHAT).result(timeout=30)
    assert (stream.finish_reason, stream.error, stream.num_tokens) == (FinishReason.STOP, None, 30)


# -- load


def test_metrics_that_begin_with_the_first_request() -> None:
    script = Script(words("Yes"), metrics="", card={"owned_by": "sglang"})
    with attached(script, timings=Timings(look_s=0.02, idle_looks=2)) as remote:
        assert remote.capabilities.reasons["queue"] == "SGLang's metrics have not included it yet"
        script.metrics = "sglang:num_running_reqs 2.0\nsglang:num_queue_reqs 1.0\n"
        wait_until(lambda: remote.capabilities.queue)
        assert "kv_usage" in remote.capabilities.reasons


def test_load_is_followed_while_requests_run() -> None:
    async def silent() -> AsyncIterator[bytes]:
        for part in words("Some ", "more"):
            yield part
        await asyncio.sleep(60)

    script = Script(silent, metrics=loaded(8, waiting=3))
    with attached(script, timings=Timings(look_s=0.02, idle_looks=10**9)) as remote:
        assert remote.capabilities.queue and not remote.capabilities.kv_usage
        assert remote.capabilities.reasons["kv_usage"] == "TGI's metrics do not include it"
        stream = remote.submit(CHAT)
        wait_until(lambda: [(load.total.running, load.total.waiting) for load in loads_of(remote)][-1:] == [(8, 3)])
        script.metrics = loaded(1)
        wait_until(lambda: loads_of(remote)[-1].total.running == 1)
        stream.cancel()
        assert stream.result(timeout=5).finish_reason is FinishReason.ABORT


class Counted(Script):
    """Counts how often its metrics are fetched, in ``scrapes``; ``before_reply`` is called before each reply."""

    def __init__(self, events: Any, before_reply: Any = lambda path: None, **options: Any) -> None:
        super().__init__(events, **options)
        self.scrapes = 0

        @self.app.middleware("http")
        async def count(request: Any, call_next: Any) -> Any:
            self.scrapes += request.url.path == "/metrics"
            before_reply(request.url.path)
            return await call_next(request)


def test_the_first_look_after_the_last_request_tells_that_nothing_runs() -> None:
    remotes: list[HttpEngine] = []
    told = asyncio.Event()  # set once a running request has been reported

    async def until_told() -> AsyncIterator[bytes]:
        *parts, end = words("Yes")
        for part in parts:
            yield part
        await asyncio.wait_for(told.wait(), 30)
        yield end

    def before_reply(path: str) -> None:
        if path == "/metrics":
            script.metrics = loaded(remotes[0].num_unfinished if remotes else 0)
        elif script.metrics == loaded(1):
            told.set()  # a poll fetches metrics first, so the next one has to report the end of the request

    script = Counted(until_told, before_reply, metrics=loaded(0))
    timings = Timings(look_s=0.1, idle_looks=10**9)  # no other poll while it is idle
    with attached(script, timings=timings) as remote:
        remotes.append(remote)
        remote.submit(CHAT).result(timeout=30)
        wait_until(lambda: [load.total.running for load in loads_of(remote)][-2:] == [1, 0])


def test_a_load_that_has_not_changed_is_told_once() -> None:
    script = Counted(words("Yes"), metrics=loaded(8, waiting=3))
    with attached(script, timings=Timings(look_s=0.01, idle_looks=2)) as remote:
        wait_until(lambda: script.scrapes > 6)
        assert len(loads_of(remote)) == 1
        script.metrics = (
            'tgi_queue_size 3\ntgi_batch_current_size{engine="0"} 2\ntgi_batch_current_size{engine="1"} 6\n'
        )
        wait_until(lambda: len(loads_of(remote)) == 2)  # the total is the same
        assert [each.running for each in loads_of(remote)[-1].replicas.values()] == [2, 6]
