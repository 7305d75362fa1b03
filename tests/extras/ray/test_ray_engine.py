"""The engine that the ingress uses, over a handle that needs no Ray: every stream ends."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from roseplay.config import EngineConfig, Knobs, SamplingParams
from roseplay.core.info import EngineInfo
from roseplay.core.request import FinishReason
from roseplay.engine import grammar_checks
from roseplay.engine.errors import EngineBusyError, EngineError
from roseplay.extras.ray.engine import RayEngine
from roseplay.extras.ray.failures import may_be_sent_again
from roseplay.extras.ray.messages import About, Part
from roseplay.extras.ray.monitor import RayMonitor
from roseplay.serve.app import ServedEngine
from tests.serve.conftest import serving
from tests.waiting import wait_until

INFO = EngineInfo("m", "M", "cpu", "float32", "cpu", 1, 1, 100, 16, 50, 512, 1, 1)
INFO_OF_A_SERVER = dataclasses.replace(INFO, vocab_size=0, server="vLLM at a.example")
CONFIG = EngineConfig(max_waiting=2)


Item = list[tuple[int, Part]]


def part(*token_ids: int, reason: str | None = None, begin: int = 0, of: int = 0) -> Item:
    count = len(token_ids)
    ends = list(range(begin + 1, begin + count + 1))
    return [(of, Part(begin, list(token_ids), [0] * count, "x" * count, ends, [], [], 0, 3, 0, 0, 0, reason, None))]


class Call:
    """What a handle's method returns: parts of an answer."""

    def __init__(self, parts: AsyncIterator[Item], cancelled: threading.Event) -> None:
        self._parts, self.cancel = parts, cancelled.set

    def __aiter__(self) -> AsyncIterator[Item]:
        return self._parts


class Handle:
    """A deployment whose replicas respond with ``answer``."""

    def __init__(self) -> None:
        self.answer: Callable[[], AsyncIterator[Item]] = never
        self.cancelled = threading.Event()
        self.asked: list[tuple[Any, ...]] = []
        self.sent: list[tuple[Any, ...]] = []
        self.generate = SimpleNamespace(remote=self._generate)

    def _generate(self, *args: Any) -> Call:
        self.sent.append(args)
        return Call(self.answer(), self.cancelled)

    def options(self, *, stream: bool) -> Handle:
        return self

    def broadcast(self, method: str, *args: Any) -> Any:
        self.asked.append((method, *args))
        return SimpleNamespace(results=lambda **_: [] if method in ("health", "report") else [None])


async def never() -> AsyncIterator[Item]:
    yield part(5)
    await asyncio.sleep(60)


def iter_of(*answers: Callable[[], AsyncIterator[Item]]) -> Callable[[], AsyncIterator[Item]]:
    """Each call gets the next of these answers."""
    rest = iter(answers)
    return lambda: next(rest)()


@pytest.fixture
def handle() -> Handle:
    return Handle()


@pytest.fixture
def engine(handle: Handle) -> Iterator[RayEngine]:
    with RayEngine(handle, About(INFO, Knobs()), CONFIG, None, 1) as engine:
        yield engine


def test_an_answer(engine: RayEngine, handle: Handle) -> None:
    async def answer() -> AsyncIterator[Item]:
        yield part(5)
        yield part(5, 6, 7, reason="length")

    handle.answer = answer
    stream = engine.submit([1, 2, 3]).result(5)
    assert (stream.token_ids, stream.finish_reason, stream.error) == ([5, 6, 7], FinishReason.LENGTH, None)
    assert engine.num_unfinished == 0 and not stream.cancel()
    wait_until(lambda: len(engine.telemetry.since(0)[1]) == 4)
    kinds = [event.kind for event in engine.telemetry.since(0)[1]]  # type: ignore[union-attr]
    assert kinds == ["submitted", "scheduled", "first_token", "finished"]
    assert stream.metrics.queue_s <= stream.metrics.ttft_s <= stream.metrics.e2e_s


def test_a_grammar_is_checked_here_and_not_again_by_the_replica(
    engine: RayEngine, handle: Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked = Future[int]()
    checked.set_result(77)
    engine.tokenizer = handle  # any object
    monkeypatch.setitem(grammar_checks._of_tokenizers, engine.tokenizer, SimpleNamespace(start=lambda _: checked))
    params = SamplingParams(structured_outputs={"choice": ["a"]})
    engine.submit([1], params)
    wait_until(lambda: bool(handle.sent))
    assert handle.sent[0][:3] == ([1], params, 77)


def test_parts_come_with_any_call(engine: RayEngine, handle: Handle) -> None:
    both_there, ended = Future[None](), Future[None]()

    async def carries() -> AsyncIterator[Item]:
        await asyncio.wrap_future(both_there)
        yield part(5, of=0) + part(7, of=1)
        yield part(8, begin=1, of=1) + part(9, of=99)  # the last one was aborted
        await asyncio.sleep(60)

    async def last() -> AsyncIterator[Item]:
        await asyncio.wrap_future(ended)
        yield part(7, 8, 9, of=1, reason="length")

    handle.answer = iter_of(carries, last)
    first, second = (engine.submit([1, 2, 3]) for _ in range(2))
    both_there.set_result(None)
    wait_until(lambda: second.token_ids == [7, 8])
    assert first.token_ids == [5] and not second.finished
    first.cancel()
    ended.set_result(None)
    assert second.result(5).token_ids == [7, 8, 9] and second.error is None


def test_an_abort_ends_the_stream_and_tells_the_replica(engine: RayEngine, handle: Handle) -> None:
    stream = engine.submit([1, 2, 3])
    assert stream.wait_for_first_token(5)
    assert stream.cancel() and not stream.cancel()
    assert stream.result(1).finish_reason is FinishReason.ABORT
    assert handle.cancelled.wait(5)


def hold_up(handle: Handle) -> tuple[threading.Event, threading.Event]:
    """Let the next call wait; returns what tells that it has begun, and what lets it go on."""
    begun, go_on = threading.Event(), threading.Event()

    def holds_up() -> AsyncIterator[Item]:
        begun.set()
        assert go_on.wait(30)
        return never()

    handle.answer = holds_up
    return begun, go_on


def test_an_abort_before_the_call_has_begun(engine: RayEngine, handle: Handle) -> None:
    begun, go_on = hold_up(handle)
    engine.submit([1])  # its call holds up those of others
    assert begun.wait(30)
    handle.answer = never
    stream = engine.submit([1, 2, 3])
    assert stream.cancel()
    go_on.set()
    assert stream.result(5).finish_reason is FinishReason.ABORT


class ActorDiedError(Exception):
    pass


async def dies() -> AsyncIterator[Item]:
    yield part(5)
    raise ActorDiedError


def test_failures_end_the_stream(engine: RayEngine, handle: Handle) -> None:
    async def stops() -> AsyncIterator[Item]:
        yield part(5)

    def refuses() -> AsyncIterator[Item]:
        raise OSError("no way there")

    for answer, why in (dies, "has died"), (stops, "without saying why"), (refuses, "OSError: no way there"):
        handle.answer = answer
        stream = engine.submit([1, 2, 3]).result(5)
        assert stream.finish_reason is FinishReason.ERROR and why in str(stream.error)
    assert engine.num_unfinished == 0


async def dies_early() -> AsyncIterator[Item]:
    raise ActorDiedError
    yield part(5)


async def finishes() -> AsyncIterator[Item]:
    yield part(5, 6, reason="length", of=0)


def test_a_request_without_tokens_is_sent_again(engine: RayEngine, handle: Handle) -> None:
    handle.answer = iter_of(dies_early, finishes)
    stream = engine.submit([1, 2, 3]).result(5)
    assert (stream.token_ids, stream.error, stream.sendings) == ([5, 6], None, 2)
    handle.answer = dies_early
    stream = engine.submit([1, 2, 3]).result(5)
    assert "has died" in str(stream.error) and stream.sendings == 3 and engine.num_unfinished == 0


@pytest.mark.parametrize(
    ("error", "sendings", "tokens", "again"),
    [
        (ActorDiedError(), 1, 0, True),
        (ActorDiedError(), 2, 0, True),
        (ActorDiedError(), 3, 0, False),
        (ActorDiedError(), 1, 1, False),
        (EngineBusyError("full"), 1, 0, True),
        (ValueError("too long"), 1, 0, False),
    ],
)
def test_which_requests_are_sent_again(error: Exception, sendings: int, tokens: int, again: bool) -> None:
    assert may_be_sent_again(error, sendings, tokens) == again
    wrapped = RuntimeError("as Ray raises it")
    wrapped.cause = error  # type: ignore[attr-defined]
    assert may_be_sent_again(wrapped, sendings, tokens) == again


def test_metrics_count_what_clients_saw(engine: RayEngine, handle: Handle) -> None:
    async def breaks_off() -> AsyncIterator[Item]:
        yield part(5, of=1)
        raise ActorDiedError

    handle.answer = iter_of(dies_early, finishes, breaks_off)
    ask = {"model": engine.info.model, "prompt": [1, 2, 3], "stream": True}
    with serving(engine, monitor=RayMonitor(ServedEngine(engine))) as address:
        replies = [httpx.post(f"{address}/v1/completions", json=ask) for _ in range(2)]
        assert [reply.status_code for reply in replies] == [200, 200]  # of the second one, when it began
        assert ["error" in reply.text for reply in replies] == [False, True]
        text = httpx.get(f"{address}/metrics").text
    for count in (
        'roseplay:client_requests_total{finished_reason="length",model_name="m"} 1.0',
        'roseplay:client_requests_total{finished_reason="error",model_name="m"} 1.0',
        'roseplay:resent_requests_total{model_name="m"} 1.0',
        'roseplay:client_tokens_total{model_name="m"} 3.0',  # 2, and 1 of a replica that died
        'http_requests_total{handler="/v1/completions",method="POST",status="2xx"} 1.0',
        'http_requests_total{handler="/v1/completions",method="POST",status="5xx"} 1.0',
    ):
        assert f"{count}\n" in text


def test_what_the_replicas_cannot_do_is_refused(engine: RayEngine) -> None:
    with pytest.raises(ValueError, match="has 100, but the vocabulary has 100 tokens: use ids from 0 to 99"):
        engine.submit([1], SamplingParams(stop_token_ids=(100,)))
    with pytest.raises(ValueError, match="structured_outputs needs a tokenizer"):
        engine.submit([1], SamplingParams(structured_outputs={"regex": "a"}))
    INFO_OF_A_SERVER.check_params(SamplingParams(stop_token_ids=(10**9,)))  # its vocabulary is not known


def test_the_queue_is_bounded(engine: RayEngine, handle: Handle) -> None:
    async def waits() -> AsyncIterator[Item]:
        await asyncio.sleep(60)
        yield part(5)

    handle.answer = waits
    assert engine.room == 2
    streams = [engine.submit([1, 2, 3], SamplingParams(max_new_tokens=4)) for _ in range(2)]
    with pytest.raises(EngineBusyError, match="2 requests are already waiting"):
        engine.submit([1])
    streams[0].cancel()
    assert engine.room == 1


def test_knobs_go_to_all_and_later_calls(engine: RayEngine, handle: Handle) -> None:
    engine.set_knobs(max_batch_size=4)
    engine.set_knobs(prefill_max_tokens=64)
    assert handle.asked[-1][1].values == {"max_batch_size": 4, "prefill_max_tokens": 64}
    with pytest.raises(ValueError, match="CUDA"):
        engine.set_knobs(cuda_graphs=False)
    assert engine.knobs == Knobs(max_batch_size=4, prefill_max_tokens=64)


def test_without_replicas_it_is_not_healthy_and_closed_it_takes_nothing(engine: RayEngine) -> None:
    found = engine.health()
    assert (found.ok, found.detail) == (False, "no replica is running")
    stream = engine.submit([1, 2, 3])
    engine.close()
    assert (stream.result(5).finish_reason, stream.error) == (FinishReason.ABORT, "the engine was closed")
    calls = (lambda: engine.submit([1]), lambda: engine.set_knobs(max_batch_size=4), engine.clear_cache, engine.reports)
    for refused in (*calls, engine.replicas):
        with pytest.raises(EngineError, match="the engine is closed"):
            refused()
    assert (engine.health().ok, engine.health().detail, engine.knobs) == (False, "the engine is closed", Knobs())


def test_replicas_that_do_not_answer_in_time(engine: RayEngine, handle: Handle) -> None:
    def late(**_: Any) -> Any:
        raise TimeoutError

    handle.broadcast = lambda *_: SimpleNamespace(results=late)  # type: ignore[method-assign]
    for call in (engine.clear_cache, engine.reports, engine.replicas, lambda: engine.set_knobs(max_batch_size=4)):
        with pytest.raises(EngineError, match="not all replicas answered within"):
            call()
    assert (engine.health().ok, engine.health().detail) == (False, "not all replicas answered within 1 s")
    engine.submit([1]).wait_for_first_token(5)
    assert engine.health().ok  # a replica has sent a token just now
    engine.close()
    assert not engine.health().ok


def test_a_call_that_does_not_end_keeps_no_stream(engine: RayEngine, handle: Handle) -> None:
    begun, go_on = hold_up(handle)
    stream = engine.submit([1])
    assert begun.wait(30)
    engine.close(timeout=0.0)
    assert (stream.result(5).finish_reason, stream.error) == (FinishReason.ABORT, "the engine was closed")
    go_on.set()
