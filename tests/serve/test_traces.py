"""Spans of requests, as an OpenTelemetry collector receives them over HTTP."""

from __future__ import annotations

import asyncio
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from roseplay.config import SamplingParams
from roseplay.core.request import FinishReason
from roseplay.engine.client import Engine
from roseplay.engine.telemetry import RequestEvent
from roseplay.serve.answers import Answer
from roseplay.serve.traces import Traces
from tests.at_a_port import at_a_port
from tests.play.fake_engine import FakeEngine
from tests.serve.conftest import serving
from tests.serve.program import MODEL, ROOT, served

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CHAT = {"model": "tiny-chat", "messages": [{"role": "user", "content": "What is TTFT?"}]}


class Collector:
    """Accepts OTLP over HTTP at ``address``; does not respond while ``hold`` is clear."""

    address = ""

    def __init__(self) -> None:
        self.spans: queue.Queue[tuple[str, Span, dict[str, Any]]] = queue.Queue()
        self.asked, self.hold = threading.Event(), threading.Event()
        self.hold.set()
        self.app = FastAPI()

        @self.app.post("/{path:path}")
        async def take(request: Request) -> None:
            body = await request.body()
            self.asked.set()
            await asyncio.to_thread(self.hold.wait, 60)
            for of_resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                about = values(of_resource.resource.attributes)
                for of_scope in of_resource.scope_spans:
                    for span in of_scope.spans:
                        self.spans.put((request.url.path, span, about))

    def span(self) -> Span:
        """The next span to arrive."""
        return self.spans.get(timeout=60)[1]


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    with at_a_port(collector.app) as collector.address:
        yield collector
        collector.hold.set()


@pytest.fixture(autouse=True)
def little_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")


@pytest.fixture
def traced(engine: Engine, collector: Collector) -> Iterator[str]:
    """A server that sends its spans."""
    with serving(engine, traces=Traces(collector.address)) as address:
        yield address


def values(attributes: Any) -> dict[str, Any]:
    found = {}
    for one in attributes:
        kind = one.value.WhichOneof("value")
        value = getattr(one.value, kind)
        found[one.key] = [part.string_value for part in value.values] if kind == "array_value" else value
    return found


def close_soon(traces: Traces) -> None:
    closing = threading.Thread(target=traces.close, daemon=True)
    closing.start()
    closing.join(20)
    assert not closing.is_alive()


def ask(address: str, body: dict[str, Any], **headers: str) -> dict[str, Any]:
    route = "chat/completions" if "messages" in body else "completions"
    answer = httpx.post(f"{address}/v1/{route}", json=body, headers=headers, timeout=60)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_a_request_is_a_span_in_its_clients_trace(traced: str, collector: Collector) -> None:
    begin = time.time_ns()
    sampling = {"max_tokens": 6, "temperature": 0.5, "top_p": 0.9, "top_k": 7, "seed": 3, "ignore_eos": True}
    answer = ask(traced, {**CHAT, **sampling}, traceparent=f"00-{TRACE}-{PARENT}-01", tracestate="vendor=1")
    end = time.time_ns()
    path, span, about = collector.spans.get(timeout=60)
    assert path == "/v1/traces" and about["service.name"] == "roseplay"
    assert span.name == "llm_request" and span.kind == Span.SPAN_KIND_SERVER
    assert (span.trace_id.hex(), span.parent_span_id.hex(), span.trace_state) == (TRACE, PARENT, "vendor=1")
    assert begin < span.start_time_unix_nano < span.end_time_unix_nano < end
    assert span.status.code == Status.STATUS_CODE_UNSET
    found = values(span.attributes)
    assert found["gen_ai.request.id"] == answer["id"] and found["gen_ai.response.model"] == "tiny-chat"
    asked = {name: found[f"gen_ai.request.{name}"] for name in ("max_tokens", "temperature", "top_p", "top_k", "seed")}
    assert asked == {name: sampling[name] for name in asked} and found["gen_ai.request.n"] == 1
    assert found["gen_ai.usage.prompt_tokens"] == answer["usage"]["prompt_tokens"]
    assert found["gen_ai.usage.completion_tokens"] == 6 and found["gen_ai.usage.num_sequences"] == 1
    assert found["gen_ai.response.finish_reasons"] == ["length"]
    seconds = {name.removeprefix("gen_ai.latency."): found[name] for name in found if ".latency." in name}
    assert seconds["e2e"] == pytest.approx((span.end_time_unix_nano - span.start_time_unix_nano) / 1e9)
    assert seconds["time_to_first_token"] == pytest.approx(answer["metrics"]["time_to_first_token_ms"] / 1e3, abs=1e-6)
    assert 0 < seconds["time_in_queue"] < seconds["time_to_first_token"] < seconds["e2e"]
    assert seconds["time_in_queue"] + seconds["time_in_model_prefill"] == pytest.approx(seconds["time_to_first_token"])
    decoding = seconds["time_in_model_inference"] - seconds["time_in_model_prefill"]
    assert seconds["time_in_model_decode"] == pytest.approx(decoding)


def test_several_answers_are_one_span(traced: str, collector: Collector) -> None:
    body = {"model": "tiny-chat", "prompt": ["One", "Two"], "n": 2, "max_tokens": 3, "ignore_eos": True}
    answer = ask(traced, body)
    span = collector.span()
    found = values(span.attributes)
    assert not span.parent_span_id and found["gen_ai.request.id"] == answer["id"]
    assert (found["gen_ai.request.n"], found["gen_ai.usage.num_sequences"]) == (2, 4)
    assert found["gen_ai.usage.prompt_tokens"] == answer["usage"]["prompt_tokens"]
    assert found["gen_ai.usage.completion_tokens"] == 4 * 3
    ask(traced, {**CHAT, "max_tokens": 1})
    assert values(collector.span().attributes)["gen_ai.operation.name"] == "chat"  # and no second span came before it


def test_a_client_that_asks_for_no_trace_gets_none(traced: str, collector: Collector) -> None:
    ask(traced, {**CHAT, "max_tokens": 1}, traceparent=f"00-{TRACE}-{PARENT}-00")
    second = ask(traced, {**CHAT, "max_tokens": 1}, traceparent="nonsense")
    span = collector.span()
    assert values(span.attributes)["gen_ai.request.id"] == second["id"] and not span.parent_span_id


def test_a_client_that_leaves_is_an_error_of_its_span(engine: Engine, traced: str, collector: Collector) -> None:
    body = {**CHAT, "max_tokens": 1500, "stream": True, "ignore_eos": True}
    with httpx.stream("POST", f"{traced}/v1/chat/completions", json=body, timeout=60) as response:
        next(response.iter_lines())
    span = collector.span()
    found = values(span.attributes)
    assert (span.status.code, span.status.message) == (Status.STATUS_CODE_ERROR, "aborted")
    assert found["error.type"] == "abort" and found["gen_ai.usage.completion_tokens"] < 1500


def submitted(count: int) -> Answer:
    engine = FakeEngine()
    streams = [engine.submit([1, 2, 3], SamplingParams(max_new_tokens=4)) for _ in range(count)]
    return Answer(streams, "tiny-chat", False, count, None)


def test_a_request_that_fails_says_why(collector: Collector) -> None:
    asked, traces = submitted(2), Traces(f"{collector.address}/with/a/path")
    other, stream = asked.streams
    traces.follow(asked, {})
    for one, reason, error in ((other, FinishReason.LENGTH, None), (stream, FinishReason.ERROR, "the engine died")):
        one.finish(reason, time.perf_counter_ns(), error)
        traces.take(RequestEvent("finished", one.request_id, time.perf_counter_ns(), one))
    traces.close()
    path, span, _ = collector.spans.get(timeout=10)
    assert path == "/with/a/path"
    assert (span.status.code, span.status.message) == (Status.STATUS_CODE_ERROR, "the engine died")
    found = values(span.attributes)
    assert found["gen_ai.response.finish_reasons"] == ["length", "error"]
    assert "gen_ai.latency.time_to_first_token" not in found
    assert collector.spans.empty()


def test_a_request_that_ended_before_it_was_followed_has_its_span(collector: Collector) -> None:
    asked, traces = submitted(1), Traces(collector.address)
    asked.streams[0].finish(FinishReason.STOP, time.perf_counter_ns())
    traces.follow(asked, {})
    assert collector.span().name == "llm_request"
    traces.close()


def test_a_collector_that_does_not_answer_holds_nobody_up(
    engine: Engine, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "60")
    collector.hold.clear()
    traces = Traces(collector.address, flush_s=0.1)
    with serving(engine, traces=traces) as address:
        ask(address, {**CHAT, "max_tokens": 1})
        assert collector.asked.wait(60)
        for _ in range(3):
            ask(address, {**CHAT, "max_tokens": 1})
        close_soon(traces)  # the exporter alone would give up after 30 seconds
    assert not collector.hold.is_set() and collector.spans.empty()
    collector.hold.set()
    for _ in range(4):  # a collector that stops before would have them sent to the next one at its port
        collector.span()


def test_the_end_of_a_server_sends_what_is_left(collector: Collector) -> None:
    flags = ("--otlp-traces-endpoint", collector.address, "--grace", "0.5", "--slow-motion", "300")
    with served(*flags) as (process, address):
        ask(address, {**CHAT, "model": MODEL, "max_tokens": 2})
        body = {**CHAT, "model": MODEL, "max_tokens": 1500, "stream": True, "ignore_eos": True}
        with httpx.stream("POST", f"{address}/v1/chat/completions", json=body, timeout=60) as response:
            next(response.iter_lines())
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
    ends = [values(collector.span().attributes)["gen_ai.response.finish_reasons"] for _ in range(2)]
    assert ends[0][0] in ("stop", "length") and ends[1] == ["abort"]


def test_without_the_flag_nothing_of_it_is_loaded() -> None:
    script = """
import sys
from roseplay.serve.app import ServedEngine, create_app
from roseplay.serve.drain import Drain
from roseplay.serve.main import parse
from tests.play.fake_engine import FakeEngine
from tests.at_a_port import at_a_port

options = parse([]).server
assert options.traces() is None
create_app(ServedEngine(FakeEngine()), ["localhost"], drain=Drain(), traces=options.traces())
print([name for name in sys.modules if name.startswith(("opentelemetry.sdk", "opentelemetry.exporter"))])
"""
    command = [sys.executable, "-c", script]
    assert subprocess.check_output(command, cwd=ROOT, text=True, timeout=120).strip() == "[]"


FLAG = ("--otlp-traces-endpoint", "http://127.0.0.1:4318")


@pytest.mark.parametrize("options", ["roseplay.serve.main", "roseplay.play.options"])
def test_the_flag_needs_the_extra_and_says_so(
    options: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    monkeypatch.delitem(sys.modules, "roseplay.serve.traces")
    with pytest.raises(SystemExit) as ended:
        import_module(options).parse(["--model", "tiny-chat", *FLAG])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "is not installed: pip install 'roseplay[otel]'" in said and said.count("\n") == 1


def test_a_replay_has_no_requests_to_trace(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        import_module("roseplay.play.options").parse(["--replay", "x.jsonl", *FLAG])
    assert "leave out --otlp-traces-endpoint" in capsys.readouterr().err


def test_a_request_that_runs_on_does_not_hold_up_the_end(collector: Collector) -> None:
    asked, traces = submitted(1), Traces(collector.address, abort_s=0.05)
    traces.follow(asked, {})
    close_soon(traces)
    assert not asked.streams[0].finished
    assert collector.spans.empty()
