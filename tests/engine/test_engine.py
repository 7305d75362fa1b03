"""The engine's public interface."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from roseplay import Engine, EngineConfig, Knobs, SamplingParams
from roseplay.engine.errors import EngineStartError
from roseplay.engine.telemetry import KnobEvent, RequestEvent, StepEvent
from roseplay.model.runner import ModelRunner
from tests.waiting import wait_until

LONG = SamplingParams(max_new_tokens=50, ignore_eos=True)


def test_a_stream_gives_tokens_times_a_reason_and_metrics(engine):
    stream = engine.submit([3, 4, 5], SamplingParams(max_new_tokens=8, ignore_eos=True))
    chunks = list(stream)
    assert [token for chunk in chunks for token in chunk.token_ids] == stream.token_ids
    assert [t for chunk in chunks for t in chunk.times_ns] == stream.token_times_ns == sorted(stream.token_times_ns)
    assert len(stream.token_ids) == 8
    assert stream.finish_reason == "length"
    metrics = stream.metrics
    assert metrics.prompt_tokens == 3
    assert metrics.completion_tokens == 8
    assert metrics.submit_s >= 0
    assert 0 < metrics.queue_s <= metrics.ttft_s < metrics.e2e_s
    assert len(metrics.itl_s) == 7
    assert metrics.tpot_s == pytest.approx(sum(metrics.itl_s) / 7)


def test_streams_can_be_read_asynchronously(engine):
    async def read():
        streams = [engine.submit([3 + i], LONG) for i in range(5)]

        async def tokens(stream):
            return [token async for chunk in stream for token in chunk.token_ids]

        return await asyncio.gather(*(tokens(stream) for stream in streams)), streams

    with ThreadPoolExecutor(1) as pool:  # in its own thread, as tests of the page leave a loop running in this one
        outputs, streams = pool.submit(asyncio.run, asyncio.wait_for(read(), 30)).result(60)
    assert outputs == [stream.token_ids for stream in streams]
    assert all(len(output) == 50 for output in outputs)


def test_many_threads_submit_at_once(engine):
    alone = {i: engine.submit([i, i + 1], LONG).result(20).token_ids for i in range(3, 15)}
    outputs = {}

    def ask(i):
        outputs[i] = engine.submit([i, i + 1], LONG).result(30).token_ids

    threads = [threading.Thread(target=ask, args=(i,)) for i in alone]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(40)
    assert outputs == alone


def test_an_abort_ends_a_stream_with_abort_and_is_no_success(engine):
    engine.set_knobs(slow_motion=20)
    stream = engine.submit([3, 4], LONG)
    wait_until(lambda: stream.token_ids)
    assert stream.cancel()
    stream.result(20)
    assert stream.finish_reason == "abort"
    assert len(stream.token_ids) < 50
    assert not stream.cancel()
    assert not engine.abort(12345)


def test_abort_all_ends_waiting_and_running_requests(engine):
    engine.set_knobs(max_batch_size=1, slow_motion=20)
    streams = [engine.submit([3 + i], LONG) for i in range(4)]
    wait_until(lambda: streams[0].token_ids)
    assert engine.abort_all() == 4
    assert [stream.result(20).finish_reason for stream in streams] == ["abort"] * 4


def test_knobs_change_while_it_runs_and_the_change_is_told(engine):
    cursor = engine.telemetry.next_cursor
    assert engine.set_knobs(prefill_max_tokens=8, max_batch_size=3).prefill_max_tokens == 8
    streams = [engine.submit([5 + i] * 14, LONG) for i in range(6)]
    for stream in streams:
        stream.result(30)
    _, events = engine.telemetry.since(cursor)
    knobs = [event for event in events if isinstance(event, KnobEvent)]
    assert knobs[0].changed == {"prefill_max_tokens": (None, 8), "max_batch_size": (32, 3)}
    steps = [event.record for event in events if isinstance(event, StepEvent)]
    assert max(step.prompt_tokens for step in steps) == 8
    assert max(step.running for step in steps) == 3


def test_the_telemetry_tells_each_request_and_token_once(engine):
    cursor = engine.telemetry.next_cursor
    streams = [engine.submit([3 + i] * 5, SamplingParams(max_new_tokens=6, ignore_eos=True)) for i in range(4)]
    for stream in streams:
        stream.result(20)
    wait_until(lambda: sum(getattr(e, "kind", "") == "finished" for e in engine.telemetry.since(cursor)[1]) == 4)
    _, events = engine.telemetry.since(cursor)
    for stream in streams:
        kinds = [e.kind for e in events if isinstance(e, RequestEvent) and e.request_id == stream.request_id]
        assert kinds == ["submitted", "scheduled", "first_token", "finished"]
        told = [t for e in events if isinstance(e, StepEvent) for t in e.tokens if t.request_id == stream.request_id]
        assert [t.token_id for t in told] == stream.token_ids
        assert [t.itl_ns for t in told] == [None, *stream.metrics.itl_ns]
    steps = [e.record for e in events if isinstance(e, StepEvent)]
    assert sum(step.prompt_tokens for step in steps) == 20
    assert sum(step.decode_tokens for step in steps) == 20
    for step in steps:
        used = step.blocks_free + step.blocks_cached + step.blocks_active + step.blocks_shared
        assert used == engine.info.num_blocks - 1
        assert step.schedule_ns + step.prepare_ns + step.forward_ns + step.sample_ns <= step.end_ns - step.start_ns


def test_block_changes_add_up_to_the_pool_and_a_block_can_be_inspected(engine):
    engine.set_knobs(slow_motion=20)
    first, second = (engine.submit([*range(3, 15), tail], LONG) for tail in (15, 16))
    wait_until(lambda: first.token_ids and second.token_ids)

    def states():
        found = {}
        for event in engine.telemetry.since(0)[1]:
            if isinstance(event, StepEvent):
                found.update({change.block: change for change in event.record.block_changes})
        return found

    wait_until(lambda: any(change.references == 2 for change in states().values()))
    shared = [change for change in states().values() if change.references == 2]
    assert len(shared) == 3
    assert {change.owner for change in shared} == {first.request_id}
    told = sorted((engine.inspect_block(change.block) for change in shared), key=lambda info: info.depth)
    assert [info.token_ids for info in told] == [[3, 4, 5, 6], [7, 8, 9, 10], [11, 12, 13, 14]]
    assert all(info.state == "shared" and info.holders == [first.request_id, second.request_id] for info in told)
    engine.abort_all()
    wait_until(lambda: all(change.references == 0 for change in states().values()))
    records = [event.record for event in engine.telemetry.since(0)[1] if isinstance(event, StepEvent)]
    assert [record.new_pool for record in records].count(True) == 1 and records[0].new_pool
    cached = sum(change.findable for change in states().values())  # all others were free, which is not reported
    assert cached == records[-1].blocks_cached >= 3
    assert records[-1].blocks_free == engine.info.num_blocks - 1 - cached
    assert engine.inspect_block(shared[0].block).state == "cached"
    with pytest.raises(ValueError, match="no block 0"):
        engine.inspect_block(0)


def test_blocking_admission_returns_when_the_prompt_is_done(engine):
    params = SamplingParams(max_new_tokens=20, ignore_eos=True)
    engine.set_knobs(slow_motion=5)
    assert not engine.submit([3] * 30, params).token_ids
    engine.set_knobs(admission="blocking")
    stream = engine.submit([4] * 30, params)
    assert stream.token_ids
    assert stream.metrics.submit_s >= stream.metrics.ttft_s


def test_stopping_something_does_not_wait_for_a_stretched_step(engine, monkeypatch):
    execute, executed = ModelRunner.execute, threading.Event()

    def slowly(self, step):
        time.sleep(0.06)
        executed.set()
        return execute(self, step)

    monkeypatch.setattr(ModelRunner, "execute", slowly)
    engine.set_knobs(slow_motion=1000)  # a minute per step
    stream = engine.submit([3, 4], LONG)
    assert executed.wait(10)
    stream.cancel()
    assert stream.result(20).finish_reason == "abort"


def test_slow_motion_stretches_steps(engine):
    engine.set_knobs(slow_motion=8)
    cursor = engine.telemetry.next_cursor
    engine.submit([3, 4], LONG).result(60)
    records = [e.record for e in engine.telemetry.since(cursor)[1] if isinstance(e, StepEvent) and e.record.entries]
    assert len(records) == 50
    for record in records:
        took = record.schedule_ns + record.prepare_ns + record.forward_ns + record.sample_ns
        assert record.end_ns - record.start_ns >= 8 * took


def test_cleared_cache_starts_cold(engine):
    engine.submit([3] * 20, SamplingParams(max_new_tokens=1)).result(20)
    assert engine.submit([3] * 20, SamplingParams(max_new_tokens=1)).result(20).metrics.cached_tokens == 20
    engine.clear_cache()
    assert engine.submit([3] * 20, SamplingParams(max_new_tokens=1)).result(20).metrics.cached_tokens == 0


def test_seeds_make_samples_repeatable_whatever_the_batch(engine):
    params = SamplingParams(max_new_tokens=20, temperature=1.0, seed=7, ignore_eos=True)
    alone = engine.submit([3, 4, 5], params).result(20).token_ids
    others = [engine.submit([9 + i] * (i + 1), SamplingParams(max_new_tokens=30, temperature=1.0)) for i in range(6)]
    batched = engine.submit([3, 4, 5], params).result(20).token_ids
    assert batched == alone
    for other in others:
        other.result(20)
    other_seed = SamplingParams(max_new_tokens=20, temperature=1.0, seed=8, ignore_eos=True)
    assert engine.submit([3, 4, 5], other_seed).result(20).token_ids != alone


def test_logprobs_are_told_when_asked_for(engine):
    stream = engine.submit([3, 4], SamplingParams(max_new_tokens=4, logprobs=2, ignore_eos=True)).result(20)
    assert len(stream.logprobs) == 4
    for token, told in zip(stream.token_ids, stream.logprobs, strict=True):
        assert told.top[0] == (token, pytest.approx(told.logprob))
        assert len(told.top) == 2
        assert told.logprob < 0


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"model": "/nowhere/at/all"}, "/nowhere/at/all"),
        ({"device": "tpu"}, "device"),
        ({"nonsense": 1}, "nonsense"),
        ({"max_batch_size": -1}, "max_batch_size"),
        ({"num_blocks": 10, "kv_cache_memory": 10**6}, "not both"),
    ],
)
def test_what_cannot_start_says_why_in_one_line(tiny_llama, settings, words):
    settings = dict(settings)
    with pytest.raises(EngineStartError, match=words) as caught:
        Engine(settings.pop("model", tiny_llama), **settings)
    assert "\n" not in str(caught.value)


def test_settings_win_over_config_and_knobs(tiny_llama):
    config, knobs = EngineConfig(block_size=8, num_blocks=30), Knobs(max_batch_size=3)
    with Engine(tiny_llama, config=config, knobs=knobs, block_size=4, prefill_max_tokens=9) as engine:
        assert (engine.info.block_size, engine.info.num_blocks) == (4, 30)
        assert (engine.knobs.max_batch_size, engine.knobs.prefill_max_tokens) == (3, 9)
