"""A client of our own server, compared with the engine behind it."""

from __future__ import annotations

from typing import Any

import pytest

from roseplay.config import SamplingParams
from roseplay.core.request import FinishReason
from roseplay.engine.client import Engine
from roseplay.engine.errors import EngineError
from roseplay.engine.telemetry import KnobEvent, LoadEvent, RequestEvent, TokensEvent
from roseplay.extras.servers.engine import HttpEngine
from tests.waiting import wait_until

CHAT = [{"role": "user", "content": "What is a cache?"}]
ENDLESS = SamplingParams(max_new_tokens=1500, ignore_eos=True)


@pytest.mark.parametrize(
    ("prompt", "params"),
    [
        ("Once upon a time", SamplingParams(max_new_tokens=24)),
        (
            CHAT,
            SamplingParams(max_new_tokens=24, temperature=0.9, seed=3, top_k=20, min_p=0.01, repetition_penalty=1.1),
        ),
        ([5, 6, 7, 8, 9], SamplingParams(max_new_tokens=40, stop=("a",), ignore_eos=True, presence_penalty=0.5)),
        (CHAT, SamplingParams(structured_outputs={"regex": "(yes|no){3}"})),
        (
            [5, 6, 7, 8, 9],
            SamplingParams(
                max_new_tokens=20,
                min_new_tokens=20,
                temperature=1.0,
                seed=3,
                logit_bias={40: 4.0, 41: -100},
                bad_words=("the",),
                allowed_token_ids=range(4, 1500),
            ),
        ),
    ],
    ids=["text, greedy", "chat, sampled", "token ids, stop", "structured", "restricted"],
)
def test_it_answers_as_the_engine_does(engine: Engine, remote: HttpEngine, prompt: Any, params: SamplingParams) -> None:
    ours = engine.submit(prompt, params).result(timeout=60)
    theirs = remote.submit(prompt, params).result(timeout=60)
    assert (theirs.text, theirs.finish_reason, theirs.error) == (ours.text, ours.finish_reason, None)
    assert theirs.metrics.prompt_tokens == ours.metrics.prompt_tokens == theirs.computed_prompt_tokens
    assert theirs.metrics.completion_tokens == ours.metrics.completion_tokens
    assert theirs.text_ends[-1] <= len(theirs.text) and len(theirs.text_ends) == len(theirs.token_times_ns)
    assert theirs.token_ids == []


def test_times_are_in_order(remote: HttpEngine) -> None:
    metrics = remote.submit(CHAT, SamplingParams(max_new_tokens=8)).result(timeout=60).metrics
    times = [
        metrics.submitted_ns, metrics.sent_ns, metrics.first_byte_ns, metrics.first_token_ns, metrics.last_token_ns,
        metrics.finished_ns,
    ]  # fmt: skip
    assert None not in times and times == sorted(times, key=lambda time: time or 0)
    assert metrics.scheduled_ns is None
    assert metrics.server is not None and metrics.server.queue_s is not None and metrics.server.prefill_s is not None


def test_cached_tokens_are_the_engines(engine: Engine, remote: HttpEngine) -> None:
    assert not remote.capabilities.cached_tokens
    assert "no answer" in remote.capabilities.reasons["cached_tokens"]
    engine.clear_cache()
    prompt = list(range(10, 80))
    cold, warm = (remote.submit(prompt, SamplingParams(max_new_tokens=2)).result(timeout=60) for _ in range(2))
    assert (cold.metrics.cached_tokens, warm.metrics.cached_tokens > 0) == (0, True)
    assert remote.capabilities.cached_tokens and remote.capabilities.server_times
    assert "cached_tokens" not in remote.capabilities.reasons


@pytest.mark.parametrize("of", ["stream", "all", "close"])
def test_an_abort_reaches_the_server(engine: Engine, address: str, of: str) -> None:
    with HttpEngine(address) as remote:
        cursor = engine.telemetry.next_cursor
        stream = remote.submit(CHAT, ENDLESS)
        assert stream.wait_for_first_token(timeout=60)
        assert engine.num_unfinished == 1
        {"stream": stream.cancel, "all": remote.abort_all, "close": remote.close}[of]()
        assert stream.result(timeout=5).finish_reason is FinishReason.ABORT
        wait_until(lambda: engine.num_unfinished == 0, timeout=5)
        theirs = [event for event in engine.telemetry.since(cursor)[1] if isinstance(event, RequestEvent)][-1].stream
        assert theirs is not None and theirs.finish_reason is FinishReason.ABORT  # it had not finished by itself
        assert (remote.num_unfinished, remote.abort(stream.request_id), stream.cancel()) == (0, False, False)


def test_many_streams_at_once(engine: Engine, remote: HttpEngine) -> None:
    params = SamplingParams(max_new_tokens=12, ignore_eos=True)
    prompts = [[10 + number, 3, 4, 5] for number in range(32)]
    streams = [remote.submit(prompt, params) for prompt in prompts]
    texts = [stream.result(timeout=120).text for stream in streams]
    assert texts == [engine.submit(prompt, params).result(timeout=60).text for prompt in prompts]
    assert {stream.finish_reason for stream in streams} == {FinishReason.LENGTH}
    assert remote.num_unfinished == 0


def test_an_answer_can_be_iterated(remote: HttpEngine) -> None:
    stream = remote.submit(CHAT, SamplingParams(max_new_tokens=16))
    chunks = list(stream)
    assert "".join(chunk.text for chunk in chunks) == stream.text
    assert sum(len(chunk.times_ns) for chunk in chunks) == len(stream.token_times_ns)


def test_the_telemetry_tells_of_requests_tokens_and_load(remote: HttpEngine) -> None:
    cursor = remote.telemetry.next_cursor
    stream = remote.submit(CHAT, SamplingParams(max_new_tokens=60, ignore_eos=True)).result(timeout=120)

    def of_kind(kind: type) -> list[Any]:
        return [event for event in remote.telemetry.since(cursor)[1] if isinstance(event, kind)]

    wait_until(lambda: any(event.total.running == 0 for event in of_kind(LoadEvent)), timeout=30)
    assert [event.kind for event in of_kind(RequestEvent)] == ["submitted", "first_token", "finished"]
    tokens = [token for event in of_kind(TokensEvent) for token in event.tokens]
    assert [token.time_ns for token in tokens] == stream.token_times_ns
    assert [token.itl_ns for token in tokens] == [None, *stream.metrics.itl_ns]
    events = remote.telemetry.since(cursor)[1]
    *_, last = (i for i, event in enumerate(events) if isinstance(event, TokensEvent))
    assert any(isinstance(event, RequestEvent) and event.kind == "finished" for event in events[last:])
    load = of_kind(LoadEvent)[-1].total
    assert load.kv_usage is not None and load.prefix_queries is not None and load.prefix_hits is not None


def test_what_it_is_and_can_report(engine: Engine, remote: HttpEngine) -> None:
    assert (remote.model, remote.info.model, remote.info.max_model_len) == ("tiny-chat", "tiny-chat", 2048)
    assert (remote.info.block_size, remote.info.num_blocks) == (engine.info.block_size, engine.info.num_blocks)
    found = remote.capabilities
    assert found.knobs and found.queue and found.kv_usage and found.prefix_hit_rate
    assert found.clear_cache
    assert not (found.blocks or found.steps or found.pause or found.inspect)
    assert found.reasons["blocks"] == "roseplay's metrics do not name blocks"
    assert engine.capabilities.blocks and not engine.capabilities.reasons
    assert remote.health().ok and remote.overdue is None and remote.alive
    for refused in (remote.pause, lambda: remote.inspect_block(1), remote.free_memory):
        with pytest.raises(ValueError, match="roseplay"):
            refused()


def test_knobs_are_the_servers(engine: Engine, remote: HttpEngine) -> None:
    before = engine.knobs
    try:
        assert remote.knobs == before
        cursor = remote.telemetry.next_cursor
        found = remote.set_knobs(prefill_max_tokens=64, max_batch_size=4)
        assert engine.knobs == found == remote.knobs
        assert (found.prefill_max_tokens, found.max_batch_size) == (64, 4)
        (event,) = remote.telemetry.since(cursor)[1]
        assert isinstance(event, KnobEvent) and event.changed["prefill_max_tokens"] == (before.prefill_max_tokens, 64)
        remote.set_knobs(max_batch_size=4)
        assert remote.telemetry.since(cursor)[1] == [event], "nothing has changed"
        with pytest.raises(ValueError, match="there is no knob 'speed'"):
            remote.set_knobs(speed=9)
        with pytest.raises(ValueError, match="max_batch_size"):
            remote.set_knobs(max_batch_size=0)
        assert remote.knobs == engine.knobs == found
    finally:
        engine.set_knobs(**before.to_dict())


@pytest.mark.parametrize(
    ("prompt", "params", "says"),
    [
        ("", SamplingParams(), "empty"),
        ([], SamplingParams(), "empty"),
        (7, SamplingParams(), "not int"),
        (["a", 1], SamplingParams(), "not list"),
        ("a", SamplingParams(logprobs=1), "logprobs"),
    ],
)
def test_what_cannot_be_sent_is_refused_at_once(
    remote: HttpEngine, prompt: Any, params: SamplingParams, says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        remote.submit(prompt, params)


def test_a_closed_engine_takes_nothing(address: str) -> None:
    remote = HttpEngine(address)
    remote.close()
    remote.close()
    assert not remote.alive and not remote.health().ok and remote.overdue == "the engine is closed"
    for refused in (lambda: remote.submit("a"), lambda: remote.set_knobs(max_batch_size=3), remote.clear_cache):
        with pytest.raises(EngineError, match="closed"):
            refused()


def test_requests_end_with_the_reason_for_which_the_engine_is_closed(address: str) -> None:
    remote = HttpEngine(address)
    stream = remote.submit("a", SamplingParams(max_new_tokens=400, ignore_eos=True))
    remote.close(reason="the model is changed")
    assert (stream.finish_reason, stream.error) == (FinishReason.ERROR, "the model is changed")
