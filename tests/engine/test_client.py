"""The engine's client on a worker that the test plays itself, and workers in threads and processes without a model."""

from __future__ import annotations

import atexit
import gc
import logging
import multiprocessing
import queue
import threading
import time
import weakref
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from roseplay.config import EngineConfig, Knobs, SamplingParams
from roseplay.core.budget import RequestTooLargeError
from roseplay.core.request import FinishReason
from roseplay.core.step import DeviceLostError
from roseplay.engine.client import Engine
from roseplay.engine.errors import EngineBusyError, EngineError, EngineStartError
from roseplay.engine.health import Health
from roseplay.engine.lifetime import CLOSE_TIMEOUT_S
from roseplay.engine.messages import (
    BlockInfo,
    ClearCache,
    End,
    Failed,
    Finished,
    Inspect,
    Inspected,
    InspectMemory,
    KnobsApplied,
    NewToken,
    Pause,
    Ping,
    Pong,
    Ready,
    SetKnobs,
    Shutdown,
    StepOutput,
    StepStarted,
)
from roseplay.engine.run_worker import run_worker
from roseplay.engine.start import open_tokenizer, wait_until_ready
from roseplay.engine.transport import ThreadTransport, WorkerGoneError, start_transport
from tests.engine.fake_runner import MEMORY, FakeRunner, Loop, submit
from tests.hardware import needs_simulation
from tests.waiting import wait_until

PATIENCE_S = 120.0
STOPPED_CLOCK = SimpleNamespace(now_ns=lambda: 77)


class PlayedTransport:
    """A worker played by the test, which sees the commands and sends the events; it begins with ``first``."""

    pid = 4321

    def __init__(self, *, replaceable: bool = False, first: object = None) -> None:
        self.replaceable = replaceable
        self.commands: queue.SimpleQueue = queue.SimpleQueue()
        self.events: queue.SimpleQueue = queue.SimpleQueue()
        self.stopped_s = 0.0
        self.ended: list[object] = []
        self.refuses: Exception | None = None
        self.events.put(first or Ready(FakeRunner().info(), Knobs()))

    def send(self, command):
        if self.refuses is not None:
            raise self.refuses
        self.commands.put(command)

    def receive(self, timeout):
        try:
            event = self.events.get(timeout=min(timeout, 0.01))
        except queue.Empty:
            return None
        if isinstance(event, Exception):
            raise event
        return event

    def stopped_for_s(self):
        return self.stopped_s

    def stop(self, timeout):
        self.ended.append(timeout)

    def kill(self):
        self.ended.append("killed")

    def next(self, kind=object):
        """The next command, which must be of this kind."""
        command = self.commands.get(timeout=PATIENCE_S)
        assert isinstance(command, kind)
        return command

    def publish(self, *tokens, finished=(), step_id=0):
        loop = Loop()
        loop.run([submit(1)])
        record = loop.outputs[0].record
        record.step_id, record.entries, record.admitted = step_id, [], [token.request_id for token in tokens]
        self.events.put(StepOutput(list(tokens), list(finished), record, time.perf_counter_ns()))


class Workers:
    """Opens engines on played workers: first the given ones, then new ones. ``started`` are those so far."""

    def __init__(self) -> None:
        self.started: list[PlayedTransport] = []
        self._other_threads = threading.enumerate()

    def receivers(self):
        """The threads that receive for the engines opened here; another test's engine may still have one."""
        threads = [thread for thread in threading.enumerate() if thread not in self._other_threads]
        return [thread for thread in threads if thread.name == "roseplay-receiver"]

    def open(self, *workers, model="a model", tokenizer=None, **settings):
        coming = list(workers)

        def start(*about):
            self.started.append(coming.pop(0) if coming else PlayedTransport())
            self.started[-1].about = about
            return self.started[-1]

        return Engine(model, start_transport=start, open_tokenizer=lambda model, config: tokenizer, **settings)


@pytest.fixture
def workers():
    return Workers()


@pytest.fixture
def engine(workers):
    with workers.open() as engine:
        yield engine


@pytest.fixture
def worker(engine, workers):
    return workers.started[0]


def asked(question):
    """Ask in a thread while the test plays the worker; returns a queue for the answer."""
    answers: queue.SimpleQueue = queue.SimpleQueue()
    threading.Thread(target=lambda: answers.put(question()), daemon=True).start()
    return answers


def let_pass(engine, seconds):
    """Let the engine's watchdog think that so much time has passed."""
    engine._watchdog._heard_at -= seconds


# -- the start


def test_an_engine_starts_with_its_settings(workers):
    config, knobs = EngineConfig(block_size=16, num_blocks=30), Knobs(max_batch_size=3)
    with workers.open(config=config, knobs=knobs, block_size=8, prefix_cache=False) as engine:
        model, config, knobs, _, reports = workers.started[0].about
        assert (model, config.block_size, config.num_blocks, reports) == ("a model", 8, 30, False)
        assert knobs == engine.knobs == Knobs(max_batch_size=3, prefix_cache=False)
        assert engine.config == config
        assert (engine.model, engine.info.model, engine.worker_pid) == ("a model", "fake", 4321)
        assert engine.alive and not engine.paused
    assert not engine.alive
    assert workers.started[0].ended == [CLOSE_TIMEOUT_S]


def test_every_time_is_of_the_clock_that_an_engine_was_given(workers):
    with workers.open(clock=STOPPED_CLOCK) as engine:
        stream = engine.submit([1])
        assert (stream.metrics.submitted_ns, stream.metrics.accepted_ns) == (77, 77)
        assert engine.clock is workers.started[0].about[3] is STOPPED_CLOCK
        workers.started[0].events.put(Failed("over"))
        assert stream.result(PATIENCE_S).finish_reason is FinishReason.ERROR
        assert stream.metrics.finished_ns == 77


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"blocks": 3, "ahead": 1}, "unknown setting ahead, blocks: use a field"),
        ({"block_size": 0}, "block_size is 0"),
        ({"max_batch_size": 0}, "max_batch_size is 0"),
        ({"clock": STOPPED_CLOCK, "worker": "process"}, "worker='thread'"),
        ({"model": object(), "worker": "process"}, "worker='thread'"),
    ],
)
def test_settings_that_do_not_fit_are_refused(workers, settings, message):
    with pytest.raises(EngineStartError, match=message) as refused:
        workers.open(**settings)
    assert "\n" not in str(refused.value)
    assert workers.started == []


def test_a_model_in_memory_can_go_to_a_thread(workers):
    model = object()
    with workers.open(model=model, worker="thread") as engine:
        assert workers.started[0].about[0] is engine.model is model


@pytest.mark.parametrize(
    ("event", "message", "reason"),
    [
        (Failed("no such model"), "no such model", "no such model"),
        (Failed("x cannot be served: no weights", reason="no weights"), "x cannot be served: no weights", "no weights"),
        (WorkerGoneError("it ended"), "it ended while it started", "it ended while it started"),
    ],
)
def test_a_worker_that_does_not_start_is_ended(workers, event, message, reason):
    with pytest.raises(EngineStartError) as error:
        workers.open(PlayedTransport(first=event))
    assert (str(error.value), error.value.reason) == (message, reason)
    assert workers.started[0].ended == ["killed"]


def test_a_start_may_be_cancelled_and_takes_no_longer_than_it_may(workers):
    cancelled = threading.Event()
    cancelled.set()
    with pytest.raises(EngineStartError, match="cancelled"):
        workers.open(cancelled=cancelled)
    with pytest.raises(EngineStartError, match=r"not loaded within 0\.25 s"):
        wait_until_ready(PlayedTransport(first=Pong(1)), timeout_s=0.25)


# -- requests


def test_a_request_is_sent_and_its_answer_streamed(engine, worker):
    updates = []
    before_ns = time.perf_counter_ns()
    stream = engine.submit([1, 2, 3], SamplingParams(max_new_tokens=2), on_update=lambda stream: updates.append(1))
    command = worker.next()
    assert (command.request_id, command.prompt_token_ids, command.sampling.max_new_tokens) == (0, [1, 2, 3], 2)
    assert before_ns <= command.submitted_ns == stream.metrics.submitted_ns <= stream.metrics.accepted_ns
    worker.publish(NewToken(0, 5))
    worker.publish(NewToken(0, 6, FinishReason.LENGTH), step_id=1)
    assert stream.result(PATIENCE_S).token_ids == [5, 6]
    assert stream.finish_reason is FinishReason.LENGTH
    assert updates
    assert engine.submit([4]).request_id == 1
    assert engine.submit([4]).params == SamplingParams()
    assert engine.telemetry.next_cursor == len(engine.telemetry.since(0)[1])


def test_what_can_never_fit_is_refused_before_it_is_sent(engine, worker):
    with pytest.raises(RequestTooLargeError, match="limit is 200"):
        engine.submit([1] * 150, SamplingParams(max_new_tokens=51))
    with pytest.raises(
        RequestTooLargeError, match="150 prompt tokens . 7 new tokens need 40 KV blocks .* the pool has 39"
    ):
        engine.submit([1] * 150, SamplingParams(max_new_tokens=7))
    engine.submit([1] * 150, SamplingParams(max_new_tokens=6))
    with pytest.raises(ValueError, match="from 0 to 49"):
        engine.submit([50])
    with pytest.raises(
        ValueError, match="stop_token_ids has 50, but the vocabulary has 50 tokens: use ids from 0 to 49"
    ):
        engine.submit([49], SamplingParams(stop_token_ids=(49, 50, 3)))
    with pytest.raises(ValueError, match="no tokenizer"):
        engine.submit("text")
    worker.next()
    assert worker.commands.empty()


def test_too_many_that_wait_are_refused(workers):
    with workers.open(max_waiting=2) as engine:
        for _ in range(2):
            engine.submit([1])
        with pytest.raises(EngineBusyError, match="2 requests are already waiting"):
            engine.submit([1])
        workers.started[0].publish(NewToken(0, 1))
        wait_until(lambda: engine.room == 1)
        assert engine.submit([1]).request_id == 3


def test_an_abort_is_sent_while_the_request_lives(engine, worker):
    first, second = engine.submit([1]), engine.submit([2])
    for _ in range(2):
        worker.next()
    assert engine.abort(first.request_id) is True
    assert worker.next(End) == End(0)
    worker.publish(finished=[Finished(0, FinishReason.ABORT)])
    assert first.result(PATIENCE_S).finish_reason is FinishReason.ABORT
    assert engine.abort(first.request_id) is engine.abort(77) is False
    assert second.cancel() is True
    assert worker.next(End) == End(1)
    assert engine.abort_all() == 1
    assert worker.next(End) == End(1)


def test_a_request_that_cannot_be_sent_leaves_nothing_behind(engine, worker):
    worker.refuses, ends = OSError("closed"), []
    with pytest.raises(EngineError, match=r"could not be sent to the engine \(OSError: closed\)"):
        engine.submit([1], on_update=lambda stream: ends.append((stream.finish_reason, stream.error)))
    assert engine.num_unfinished == 0
    assert ends == [(FinishReason.ERROR, "the request could not be sent to the engine (OSError: closed)")]


class Letters:
    """A tokenizer that decodes token 0 as a, 1 as b and so on, and panics at token 49."""

    backend_tokenizer = None

    def decode(self, ids, skip_special_tokens):
        if 49 in ids:
            raise BaseException("panic")
        return "".join(chr(97 + token) for token in ids)


def test_an_answer_that_ends_here_is_told_to_the_worker(workers):
    with workers.open(tokenizer=Letters()) as engine:
        stream = engine.submit([1], SamplingParams(stop=("c",)))
        worker = workers.started[0]
        worker.next()
        worker.publish(NewToken(0, 0))
        worker.publish(NewToken(0, 2), step_id=1)
        assert worker.next(End) == End(0, FinishReason.STOP)
        assert (stream.result(PATIENCE_S).text, stream.finish_reason) == ("a", FinishReason.STOP)
        with pytest.raises(EngineError, match=r"could not be decoded \(BaseException: panic\)"):
            engine.submit([49])


def test_blocking_admission_returns_with_the_first_token_or_a_pause(workers):
    with workers.open(admission="blocking") as engine:
        worker, updates = workers.started[0], []
        first = asked(lambda: engine.submit([1], on_update=updates.append))
        worker.next()
        second = asked(lambda: engine.submit([2]))
        assert first.empty() and worker.commands.empty()
        worker.publish(NewToken(0, 3))
        answer = first.get(timeout=PATIENCE_S)
        assert (answer.token_ids, set(updates)) == ([3], {answer})
        worker.next()
        engine.pause()
        assert second.get(timeout=PATIENCE_S).token_ids == []
        with pytest.raises(EngineBusyError, match="paused"):
            engine.submit([3])


# -- steering


def test_knobs_are_sent_when_they_change(engine, worker):
    assert engine.set_knobs(max_batch_size=5).max_batch_size == 5 == engine.knobs.max_batch_size
    assert worker.next(SetKnobs).knobs == Knobs(max_batch_size=5)
    engine.set_knobs(max_batch_size=5)
    for bad, message in (
        ({"nonsense": 1}, "unknown knob"),
        ({"max_batch_size": 0}, "max_batch_size is 0"),
        ({"cuda_graphs": False}, "cuda_graphs needs a CUDA device; this engine runs on cpu"),
        ({"overlap": False}, "overlap needs a CUDA device; this engine runs on cpu"),
    ):
        with pytest.raises(ValueError, match=message):
            engine.set_knobs(**bad)
    assert engine.knobs == Knobs(max_batch_size=5)
    engine.info.device = "cuda:0"
    engine.set_knobs(overlap=False)
    assert worker.next(SetKnobs).knobs == Knobs(max_batch_size=5, overlap=False)
    assert worker.commands.empty()
    worker.events.put(KnobsApplied(engine.knobs, 3, 4))
    wait_until(lambda: engine.telemetry.next_cursor == 1)
    assert engine.telemetry.since(0)[1][0].step_id == 3


def test_pause_cache_and_questions_reach_the_worker(engine, worker):
    engine.pause()
    assert engine.paused
    assert worker.next(Pause) == Pause(True)
    engine.resume()
    assert not engine.paused
    assert worker.next(Pause) == Pause(False)
    engine.clear_cache()
    worker.next(ClearCache)
    info = BlockInfo(7, "free", [], None, [], -1, False)
    answer = asked(lambda: engine.inspect_block(7, PATIENCE_S))
    question = worker.next(Inspect)
    assert question.block == 7
    worker.events.put(Inspected(question.token + 1, None))  # nothing asked for this
    worker.events.put(Inspected(question.token, info))
    assert answer.get(timeout=PATIENCE_S) == info
    answer = asked(lambda: engine.free_memory(PATIENCE_S))
    worker.events.put(Inspected(worker.next(InspectMemory).token, MEMORY))
    assert answer.get(timeout=PATIENCE_S) == MEMORY
    for block in (1, 39):
        with pytest.raises(TimeoutError, match=r"within 0\.01 s"):
            engine.inspect_block(block, timeout=0.01)
    with pytest.raises(TimeoutError):
        engine.free_memory(timeout=0.01)
    assert engine._inspections == {}
    for block in (0, 40, -1):
        with pytest.raises(ValueError, match="numbered 1 to 39"):
            engine.inspect_block(block)


# -- health


def test_health_is_a_round_trip_that_everybody_shares(engine, worker):
    first, second = (asked(lambda: engine.health(PATIENCE_S)) for _ in range(2))
    ping = worker.next(Ping)
    worker.events.put(Pong(ping.token + 1))  # the reply to another question
    worker.events.put(Pong(ping.token))
    assert first.get(timeout=PATIENCE_S) == Health(True, "ok")
    if second.empty() and not worker.commands.empty():
        worker.events.put(Pong(worker.next(Ping).token))  # it arrived later
    assert second.get(timeout=PATIENCE_S).ok
    assert engine.overdue is None
    third = asked(lambda: engine.health(PATIENCE_S))
    worker.events.put(Pong(worker.next(Ping).token))
    assert third.get(timeout=PATIENCE_S).detail == "ok"


def test_a_worker_without_an_answer_is_busy_until_it_is_overdue(engine, worker):
    assert engine.health(0.01) == Health(True, "the engine is busy with a step")
    worker.events.put(StepStarted(3, 9.0))
    wait_until(lambda: "long step" in engine.health(0.01).detail)
    let_pass(engine, 26)
    assert engine.health(0.01).ok
    let_pass(engine, 2)
    wrong = engine.health(0.01)
    assert not wrong.ok
    assert wrong.detail == engine.overdue
    assert "predicted to take 9.0 s" in wrong.detail
    worker.publish(step_id=3)
    wait_until(lambda: engine.overdue is None)
    worker.stopped_s = 3.5
    assert engine.overdue == "the engine's process has not run for 4 s"


def test_the_silence_of_slow_motion_does_not_count_after_it(engine, worker):
    engine.set_knobs(slow_motion=100)
    engine.submit([1])
    let_pass(engine, 100)
    assert engine.overdue
    engine.set_knobs(slow_motion=1)
    assert engine.overdue is None


def test_an_idle_or_paused_worker_owes_nothing(workers):
    with workers.open(step_timeout_s=50.0) as engine:
        let_pass(engine, 1000)
        assert engine.overdue is None
        stream = engine.submit([1])  # silence counts from here
        assert engine.overdue is None
        let_pass(engine, 10)
        assert engine.overdue == "the engine has not answered for 10 s"
        engine.pause()
        let_pass(engine, 1000)
        assert engine.overdue is None
        workers.started[0].publish()
        wait_until(lambda: engine.telemetry.next_cursor == 2)  # so it has looked at the watchdog
        assert engine.alive and not stream.finished


# -- the end


def test_closing_ends_every_stream_and_refuses_the_rest(engine, worker):
    stream = engine.submit([1])
    engine.close(timeout=3.0)
    engine.close()
    assert worker.ended == [3.0]
    assert (stream.finish_reason, stream.error) == (FinishReason.ABORT, "the engine was closed")
    for refused in (
        lambda: engine.submit([1]),
        lambda: engine.submit([]),
        engine.pause,
        engine.clear_cache,
        engine.set_knobs,
        lambda: engine.inspect_block(1),
        engine.free_memory,
    ):
        with pytest.raises(EngineError, match="the engine is closed"):
            refused()
    assert engine.overdue == engine.health().detail == "the engine is closed"
    assert not engine.health().ok


@pytest.mark.parametrize("event", [WorkerGoneError("the thread ended"), Failed("the thread ended")])
def test_a_thread_that_ended_cannot_be_replaced(engine, worker, event):
    stream = engine.submit([1])
    worker.events.put(event)
    reason = "the thread ended; the engine cannot go on: restart it"
    assert stream.result(PATIENCE_S).error == reason
    assert stream.finish_reason is FinishReason.ERROR
    wait_until(lambda: not engine.alive)
    assert engine.overdue == reason
    assert worker.ended == ["killed"]
    with pytest.raises(EngineError, match="cannot go on"):
        engine.submit([1])


def test_a_process_that_ended_is_replaced(workers):
    first, second = PlayedTransport(replaceable=True), PlayedTransport(replaceable=True)
    with workers.open(first, second, max_batch_size=4) as engine:
        stream = engine.submit([1])
        engine.pause()
        engine.set_knobs(max_batch_size=6)
        first.events.put(WorkerGoneError("the process ended"))
        assert stream.result(PATIENCE_S).error == "the process ended; a new one is starting"
        wait_until(lambda: len(workers.started) == 2 and engine.overdue is None)
        assert first.ended == ["killed"]
        assert second.about == ("a model", engine.config, engine.knobs, engine.clock, False)
        assert engine.knobs.max_batch_size == 6
        assert engine.alive and not engine.paused
        again = engine.submit([1])
        second.next()
        second.publish(NewToken(again.request_id, 3, FinishReason.STOP))
        assert again.result(PATIENCE_S).token_ids == [3]


def test_a_replacement_that_does_not_start_breaks_the_engine(workers):
    first, path = PlayedTransport(replaceable=True), Path("a model").resolve()  # clients learn only its name
    with workers.open(first, PlayedTransport(replaceable=True, first=Failed(f"no memory for {path}"))) as engine:
        first.events.put(WorkerGoneError("the process ended"))
        wait_until(lambda: not engine.alive)
        assert engine.overdue == (
            "the process ended, and a new one did not start: no memory for a model; the engine cannot go on: restart it"
        )


def test_the_start_of_a_replacement_may_be_cancelled(workers):
    first, slow = PlayedTransport(replaceable=True), PlayedTransport(replaceable=True, first=Pong(1))
    cancelled = threading.Event()
    with workers.open(first, slow, cancelled=cancelled) as engine:
        first.events.put(WorkerGoneError("the process ended"))
        wait_until(lambda: len(workers.started) == 2)
        cancelled.set()
        wait_until(lambda: not engine.alive)
        assert "cancelled" in engine.overdue


@pytest.mark.parametrize("stopped", [True, False])
def test_a_frozen_worker_is_taken_for_dead(workers, stopped):
    with workers.open(step_timeout_s=50.0) as engine:
        stream = engine.submit([1])
        if stopped:
            workers.started[0].stopped_s = 10.5
        else:
            let_pass(engine, 51)
        reason = "process has not run for 10 s" if stopped else "no sign of life for 50 s"
        assert reason in stream.result(PATIENCE_S).error
        assert not engine.alive


def test_what_escapes_in_the_receiver_ends_all_streams(workers, engine, worker):
    stream = engine.submit([1])
    assert len(workers.receivers()) == 1
    worker.events.put(StepOutput([], [], None, 0))
    assert "the engine's receiver failed (AttributeError: " in stream.result(PATIENCE_S).error
    assert not engine.alive
    wait_until(lambda: not workers.receivers())


def test_an_engine_ends_with_the_program_or_when_nobody_refers_to_it(workers, monkeypatch):
    hooks = []  # what would be called when the program ends
    monkeypatch.setattr(atexit, "register", hooks.append)
    monkeypatch.setattr(atexit, "unregister", hooks.remove)
    engine, other = workers.open(), workers.open()
    hooks[0]()
    assert not engine.alive and other.alive
    assert len(hooks) == 1
    worker, reference = workers.started[1], weakref.ref(other)
    del other

    def is_gone():
        gc.collect()
        return reference() is None and worker.ended != []

    wait_until(is_gone)
    assert worker.ended == [CLOSE_TIMEOUT_S]
    assert hooks == []
    wait_until(lambda: not workers.receivers())


# -- workers


class NoModel:
    """Makes runners without a model, or raises ``error``."""

    def __init__(self, error=None):
        self.runner, self.made, self.error = FakeRunner(), [], error

    def __call__(self, *about):
        if self.error is not None:
            raise self.error
        self.made.append(about)
        return self.runner


def receive(transport, kind):
    return wait_until(lambda: isinstance(event := transport.receive(0.05), kind) and event, kind.__name__, PATIENCE_S)


def test_a_thread_serves_until_it_is_stopped():
    config, knobs, no_model = EngineConfig(), Knobs(max_batch_size=9), NoModel()
    no_model.runner.eos_token_ids = frozenset({3})
    transport = ThreadTransport("a name", config, knobs, STOPPED_CLOCK, make_runner=no_model)
    assert (transport.pid, transport.replaceable, transport.stopped_for_s()) == (None, False, 0.0)
    assert receive(transport, Ready).knobs == knobs
    (about,) = no_model.made
    assert (about[0], about[1], about[3]) == ("a name", config, STOPPED_CLOCK)
    assert transport.receive(0.01) is None
    threading.Timer(0.05, transport.send, [Ping(9)]).start()
    assert transport.receive(PATIENCE_S) == Pong(9)
    transport.send(submit(1, [5] * 3, 30))
    output = receive(transport, StepOutput)
    assert (output.tokens[0].request_id, output.published_ns) == (1, 77)
    assert no_model.runner.device.truths[1].request.eos_token_ids == {3}
    transport.stop(PATIENCE_S)
    assert no_model.runner.closed
    with pytest.raises(WorkerGoneError, match="thread ended"):
        receive(transport, Ready)


def test_a_killed_thread_ends_when_it_wakes():
    no_model = NoModel()
    transport = ThreadTransport("a name", EngineConfig(), Knobs(), make_runner=no_model)
    receive(transport, Ready)
    transport.kill()
    wait_until(lambda: no_model.runner.closed)


@needs_simulation
def test_a_process_tells_why_it_cannot_start_and_ends(tmp_path):
    config = EngineConfig(worker="process", run_as="h100")  # which needs no torch
    transport = start_transport(str(tmp_path / "nothing"), config, Knobs())
    (process,) = (child for child in multiprocessing.active_children() if child.pid == transport.pid)
    assert transport.replaceable
    assert type(process).__name__ == "SpawnProcess"  # a fork would copy this process's threads and locks
    assert transport.receive(0.01) is None
    failed = receive(transport, Failed)
    assert not failed.message.startswith("the engine could not start")  # as an unexpected error would
    assert transport.stopped_for_s() < 5.0
    with pytest.raises(WorkerGoneError, match=r"process ended \(exit code 0\)"):
        receive(transport, Ready)
    transport.stop(PATIENCE_S)
    transport.send(Ping(1))  # the process has ended, so this must neither fail nor wait
    assert not process.is_alive()


@pytest.mark.parametrize("end", [lambda transport: transport.kill(), lambda transport: transport.stop(0.01)])
def test_a_process_that_is_still_starting_can_be_ended(tmp_path, end):
    transport = start_transport(str(tmp_path / "nothing"), EngineConfig(worker="process"), Knobs())
    (process,) = (child for child in multiprocessing.active_children() if child.pid == transport.pid)
    end(transport)
    assert process.exitcode == -9


def test_a_tokenizer_that_cannot_be_had_is_said_in_one_line(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    assert open_tokenizer(str(tmp_path), EngineConfig(random_weights=True)) is None
    with pytest.raises(EngineStartError, match="nowhere"):
        open_tokenizer(str(tmp_path / "nowhere"), EngineConfig())


def worked(*script, model="a name", **how):
    """The events of a worker that runs in this thread."""
    loop = Loop()
    loop.script = list(script)
    run_worker(model, EngineConfig(), Knobs(), loop, loop.events.append, **how)
    return loop.events


def test_a_model_that_cannot_be_loaded_is_told(tmp_path, caplog):
    (failed,) = worked(model=str(tmp_path / "nothing"))
    assert failed.reason in failed.message
    with caplog.at_level(logging.CRITICAL):
        assert worked(make_runner=NoModel(RuntimeError("broken\nfile"))) == [
            Failed("the engine could not start: RuntimeError: broken")
        ]


def test_a_loop_that_cannot_go_on_is_told_and_lets_go_of_the_model(caplog):
    no_model, order = NoModel(), []
    no_model.runner.at_launch[0] = DeviceLostError("gone")
    loaded = partial(order.append, "loaded")
    with caplog.at_level(logging.CRITICAL):
        events = worked([submit(1)], make_runner=no_model, loaded=loaded)
    assert events[-1] == Failed("the engine's loop ended: DeviceLostError: gone")
    assert order == ["loaded"]
    assert no_model.runner.closed


def test_a_loop_that_is_shut_down_lets_go_of_the_model():
    no_model = NoModel()
    events = worked([Shutdown()], make_runner=no_model)
    assert isinstance(events[0], Ready)
    assert not any(isinstance(event, Failed) for event in events)
    assert no_model.runner.closed
