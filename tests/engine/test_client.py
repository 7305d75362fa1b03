"""The engine's client on a worker that the test plays itself, and workers in threads and processes without a model."""

from __future__ import annotations

import atexit
import gc
import logging
import queue
import threading
import time
import weakref
from types import SimpleNamespace

import pytest

from roseplay.config import EngineConfig, Knobs, SamplingParams
from roseplay.core.budget import RequestTooLargeError
from roseplay.core.request import FinishReason
from roseplay.engine import client as client_module
from roseplay.engine import start as start_module
from roseplay.engine.client import Engine
from roseplay.engine.errors import EngineBusyError, EngineError, EngineStartError
from roseplay.engine.messages import (
    Abort,
    BlockInfo,
    ClearCache,
    Failed,
    Finish,
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
from roseplay.engine.transport import ThreadTransport, WorkerGoneError, start_transport
from tests.engine.fake_runner import MEMORY, FakeRunner, Loop, submit
from tests.waiting import wait_until

PATIENCE_S = 120.0


class PlayedTransport:
    """A worker played by the test, which sees the commands and sends the events."""

    pid = 4321

    def __init__(self, replaceable: bool = False) -> None:
        self.replaceable = replaceable
        self.commands: queue.SimpleQueue = queue.SimpleQueue()
        self.events: queue.SimpleQueue = queue.SimpleQueue()
        self.stopped_s = 0.0
        self.ended: list[object] = []
        self.refuses: Exception | None = None
        self.events.put(Ready(FakeRunner().info(), Knobs()))

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

    def next(self, kind):
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


@pytest.fixture
def transports(monkeypatch):
    """The transports that engines get, in this order."""
    made = [PlayedTransport()]
    taken: list[PlayedTransport] = []

    def start(model, config, knobs, clock, reports=False):
        taken.append(made.pop(0) if made else PlayedTransport())
        taken[-1].started, taken[-1].clock = (model, config, knobs), clock
        return taken[-1]

    monkeypatch.setattr(client_module, "start_transport", start)
    monkeypatch.setattr(client_module, "open_tokenizer", lambda model, config: None)
    return SimpleNamespace(coming=made, taken=taken)


@pytest.fixture
def engine(transports):
    with Engine("a model") as engine:
        yield engine


@pytest.fixture
def worker(engine, transports):
    return transports.taken[0]


def answered(worker, question):
    """Ask ``question`` in a thread while the test plays the worker; returns the thread and a queue for the answer."""
    answers: queue.SimpleQueue = queue.SimpleQueue()
    thread = threading.Thread(target=lambda: answers.put(question()), daemon=True)
    thread.start()
    return thread, answers


def test_an_engine_starts_with_its_settings(transports):
    with Engine("a model", knobs=Knobs(max_batch_size=3), block_size=8, prefix_cache=False) as engine:
        model, config, knobs = transports.taken[0].started
        assert (model, config.block_size) == ("a model", 8)
        assert knobs == engine.knobs == Knobs(max_batch_size=3, prefix_cache=False)
        assert engine.config == config
        assert (engine.model, engine.info.model, engine.worker_pid) == ("a model", "fake", 4321)
        assert engine.alive and not engine.paused
    assert not engine.alive
    assert transports.taken[0].ended == [client_module.CLOSE_TIMEOUT_S]


def test_every_time_is_of_the_clock_that_an_engine_was_given(transports):
    class Stopped:
        def now_ns(self):
            return 77

    with Engine("a model", clock=Stopped()) as engine:
        stream = engine.submit([1])
        assert (stream.metrics.submitted_ns, stream.metrics.accepted_ns) == (77, 77)
        assert transports.taken[0].clock is engine.clock
        transports.taken[0].events.put(Failed("over"))
        assert stream.result(PATIENCE_S).finish_reason is FinishReason.ERROR
        assert stream.metrics.finished_ns == 77
    with pytest.raises(EngineStartError, match="worker='thread'"):
        Engine("a model", clock=Stopped(), worker="process")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"blocks": 3, "ahead": 1}, "unknown setting ahead, blocks: use a field"),
        ({"block_size": 0}, "block_size is 0"),
        ({"max_batch_size": 0}, "max_batch_size is 0"),
    ],
)
def test_settings_that_do_not_fit_are_refused(transports, settings, message):
    with pytest.raises(EngineStartError, match=message):
        Engine("a model", **settings)
    assert transports.taken == []


def test_a_model_in_memory_cannot_go_to_another_process(transports):
    with pytest.raises(EngineStartError, match="worker='thread'"):
        Engine(object(), worker="process")


def test_a_model_in_memory_can_go_to_a_thread(transports):
    model = object()
    with Engine(model, worker="thread") as engine:
        assert transports.taken[0].started[0] is engine.model is model


def test_the_receiver_does_not_keep_a_program_from_ending(engine):
    assert engine._thread.daemon


@pytest.mark.parametrize(
    ("event", "message", "reason"),
    [
        (Failed("no such model"), "no such model", "no such model"),
        (Failed("x cannot be served: no weights", reason="no weights"), "x cannot be served: no weights", "no weights"),
        (WorkerGoneError("it ended"), "it ended while it started", "it ended while it started"),
    ],
)
def test_a_worker_that_does_not_start_is_ended(transports, event, message, reason):
    transport = transports.coming[0]
    transport.events.get()
    transport.events.put(event)
    with pytest.raises(EngineStartError) as error:
        Engine("a model")
    assert (str(error.value), error.value.reason) == (message, reason)
    assert transport.ended == ["killed"]


def test_a_start_may_be_cancelled_and_takes_no_longer_than_it_may(transports, monkeypatch):
    cancelled = threading.Event()
    cancelled.set()
    with pytest.raises(EngineStartError, match="cancelled"):
        Engine("a model", cancelled=cancelled)
    silent = PlayedTransport()
    silent.events.get()
    transports.coming.append(silent)
    monkeypatch.setattr(start_module, "START_TIMEOUT_S", 0.25)
    with pytest.raises(EngineStartError, match="not loaded within 0 s"):
        Engine("a model")
    assert silent.ended == ["killed"]


# -- requests


def test_a_request_is_sent_and_its_answer_streamed(engine, worker):
    updates = []
    before_ns = time.perf_counter_ns()
    stream = engine.submit([1, 2, 3], SamplingParams(max_new_tokens=2), on_update=lambda stream: updates.append(1))
    command = worker.next(object)
    assert (command.request_id, command.prompt_token_ids, command.sampling.max_new_tokens) == (0, [1, 2, 3], 2)
    assert before_ns <= command.submitted_ns == stream.metrics.submitted_ns <= stream.metrics.accepted_ns
    worker.publish(NewToken(0, 5))
    worker.publish(NewToken(0, 6, FinishReason.LENGTH), step_id=1)
    assert stream.result(PATIENCE_S).token_ids == [5, 6]
    assert stream.finish_reason is FinishReason.LENGTH
    assert updates
    assert engine.submit([4]).request_id == 1
    assert engine.submit([4]).params == SamplingParams()
    assert [event.seq for event in engine.telemetry.since(0)[1]] == list(range(engine.telemetry.next_cursor))


def test_what_can_never_fit_is_refused_before_it_is_sent(engine, worker):
    with pytest.raises(RequestTooLargeError, match="limit is 200"):
        engine.submit([1] * 150, SamplingParams(max_new_tokens=51))
    with pytest.raises(RequestTooLargeError, match="the pool has 39"):
        engine.submit([1] * 150, SamplingParams(max_new_tokens=7))
    engine.submit([1] * 150, SamplingParams(max_new_tokens=6))
    with pytest.raises(ValueError, match="from 0 to 49"):
        engine.submit([50])
    with pytest.raises(ValueError, match="stop_token_ids has 50: use ids from 0 to 49"):
        engine.submit([49], SamplingParams(stop_token_ids=(49, 50, 3)))
    with pytest.raises(ValueError, match="no tokenizer"):
        engine.submit("text")
    worker.next(object)
    assert worker.commands.empty()


def test_too_many_that_wait_are_refused(transports):
    with Engine("a model", max_waiting=2) as engine:
        worker = transports.taken[0]
        for _ in range(2):
            engine.submit([1])
        with pytest.raises(EngineBusyError, match="2 requests are already waiting"):
            engine.submit([1])
        worker.publish(NewToken(0, 1))
        wait_until(lambda: engine._receiver.num_waiting == 1)
        assert engine.submit([1]).request_id == 3


def test_an_abort_is_sent_while_the_request_lives(engine, worker):
    first, second = engine.submit([1]), engine.submit([2])
    for _ in range(2):
        worker.next(object)
    assert engine.abort(first.request_id) is True
    assert worker.next(Abort) == Abort(0)
    worker.publish(finished=[Finished(0, FinishReason.ABORT)])
    assert first.result(PATIENCE_S).finish_reason is FinishReason.ABORT
    assert engine.abort(first.request_id) is False
    assert engine.abort(77) is False
    assert second.cancel() is True
    assert worker.next(Abort) == Abort(1)
    assert engine.abort_all() == 1
    assert worker.next(Abort) == Abort(1)


def test_a_request_that_cannot_be_sent_or_decoded_leaves_nothing_behind(engine, worker, monkeypatch):
    worker.refuses, ends = OSError("closed"), []
    with pytest.raises(EngineError, match=r"could not be sent to the engine \(OSError: closed\)"):
        engine.submit([1], on_update=lambda stream: ends.append((stream.finish_reason, stream.error)))
    assert engine._receiver.num_live == 0
    assert ends == [(FinishReason.ERROR, "the request could not be sent to the engine (OSError: closed)")]
    worker.refuses = None

    def panics(tokenizer, token_ids):
        raise BaseException("panic")

    monkeypatch.setattr(client_module, "make_decoder", panics)
    with pytest.raises(EngineError, match=r"could not be decoded \(BaseException: panic\)"):
        engine.submit([1])


def test_blocking_admission_returns_with_the_first_token(transports):
    with Engine("a model", admission="blocking") as engine:
        worker = transports.taken[0]
        updates = []
        first, got = answered(worker, lambda: engine.submit([1], on_update=updates.append))
        worker.next(object)
        second, other = answered(worker, lambda: engine.submit([2]))
        assert got.empty() and worker.commands.empty()
        worker.publish(NewToken(0, 3))
        answer = got.get(timeout=PATIENCE_S)
        assert (answer.token_ids, set(updates)) == ([3], {answer})
        worker.next(object)
        worker.publish(NewToken(1, 4), step_id=1)
        assert other.get(timeout=PATIENCE_S).token_ids == [4]
        engine.pause()
        with pytest.raises(EngineBusyError, match="paused"):
            engine.submit([3])
        first.join(PATIENCE_S), second.join(PATIENCE_S)


def test_a_pause_ends_the_wait_of_blocking_admission(transports):
    with Engine("a model", admission="blocking") as engine:
        thread, got = answered(transports.taken[0], lambda: engine.submit([1]))
        transports.taken[0].next(object)
        engine.pause()
        thread.join(PATIENCE_S)
        assert got.get_nowait().token_ids == []


# -- steering


def test_knobs_are_sent_when_they_change(engine, worker):
    assert engine.set_knobs(max_batch_size=5).max_batch_size == 5 == engine.knobs.max_batch_size
    assert worker.next(SetKnobs).knobs == Knobs(max_batch_size=5)
    engine.set_knobs(max_batch_size=5)
    for bad, message in (({"nonsense": 1}, "unknown knob"), ({"max_batch_size": 0}, "max_batch_size is 0")):
        with pytest.raises(ValueError, match=message):
            engine.set_knobs(**bad)
    for name in ("cuda_graphs", "overlap"):
        with pytest.raises(ValueError, match=f"{name} needs a CUDA device; this engine runs on cpu"):
            engine.set_knobs(**{name: False})
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
    _, answer = answered(worker, lambda: engine.inspect_block(7, PATIENCE_S))
    question = worker.next(Inspect)
    assert question.block == 7
    worker.events.put(Inspected(question.token + 1, None))  # nothing asked for this
    worker.events.put(Inspected(question.token, info))
    assert answer.get(timeout=PATIENCE_S) == info
    _, answer = answered(worker, lambda: engine.free_memory(PATIENCE_S))
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
    (_, first), (_, second) = (answered(worker, lambda: engine.health(PATIENCE_S)) for _ in range(2))
    ping = worker.next(Ping)
    worker.events.put(Pong(ping.token + 1))  # the reply to another question
    worker.events.put(Pong(ping.token))
    assert first.get(timeout=PATIENCE_S) == client_module.Health(True, "ok")
    if second.empty() and not worker.commands.empty():
        worker.events.put(Pong(worker.next(Ping).token))  # it arrived later
    assert second.get(timeout=PATIENCE_S).ok
    assert engine.overdue is None
    _, third = answered(worker, lambda: engine.health(PATIENCE_S))
    worker.events.put(Pong(worker.next(Ping).token))
    assert third.get(timeout=PATIENCE_S).detail == "ok"


def test_a_worker_without_an_answer_is_busy_until_it_is_overdue(engine, worker, monkeypatch):
    health = engine.health(0.01)
    assert (health.ok, health.detail) == (True, "the engine is busy with a step")
    worker.events.put(StepStarted(3, 9.0))
    wait_until(lambda: "long step" in engine.health(0.01).detail)
    engine._watchdog._heard_at -= 26
    assert engine.health(0.01).ok
    engine._watchdog._heard_at -= 2
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
    engine._watchdog._heard_at -= 100
    assert engine.overdue
    engine.set_knobs(slow_motion=1)
    assert engine.overdue is None


def test_an_idle_or_paused_worker_owes_nothing(engine, worker):
    engine._watchdog._heard_at -= 100
    assert engine.overdue is None
    engine.submit([1])
    engine._watchdog._heard_at -= 100
    assert engine.overdue == "the engine has not answered for 100 s"
    engine.pause()
    assert engine.overdue is None


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
    assert not engine._thread.is_alive()


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


def test_a_process_that_ended_is_replaced(transports):
    transports.coming[:] = [PlayedTransport(replaceable=True), PlayedTransport(replaceable=True)]
    with Engine("a model", max_batch_size=4) as engine:
        first = transports.taken[0]
        stream = engine.submit([1])
        engine.pause()
        engine.set_knobs(max_batch_size=6)
        first.events.put(WorkerGoneError("the process ended"))
        assert stream.result(PATIENCE_S).error == "the process ended; a new one is starting"
        wait_until(lambda: engine._restarting is None and len(transports.taken) == 2)
        second = transports.taken[1]
        assert first.ended == ["killed"]
        assert second.started == ("a model", engine.config, engine.knobs)
        assert engine.knobs.max_batch_size == 6
        assert engine.alive and not engine.paused
        assert engine.overdue is None
        again = engine.submit([1])
        second.next(object)
        second.publish(NewToken(again.request_id, 3, FinishReason.STOP))
        assert again.result(PATIENCE_S).token_ids == [3]


def test_a_replacement_that_does_not_start_breaks_the_engine(transports):
    broken = PlayedTransport(replaceable=True)
    broken.events.get()
    broken.events.put(Failed("no memory"))
    transports.coming[:] = [PlayedTransport(replaceable=True), broken]
    with Engine("a model") as engine:
        transports.taken[0].events.put(WorkerGoneError("the process ended"))
        wait_until(lambda: not engine.alive)
        assert engine.overdue == (
            "the process ended, and a new one did not start: no memory; the engine cannot go on: restart it"
        )


def test_the_start_of_a_replacement_may_be_cancelled(transports):
    slow, cancelled = PlayedTransport(replaceable=True), threading.Event()
    slow.events.get()
    transports.coming[:] = [PlayedTransport(replaceable=True), slow]
    with Engine("a model", cancelled=cancelled) as engine:
        transports.taken[0].events.put(WorkerGoneError("the process ended"))
        wait_until(lambda: len(transports.taken) == 2)
        cancelled.set()
        wait_until(lambda: not engine.alive)
        assert "cancelled" in engine.overdue


def test_silence_counts_from_when_an_answer_is_owed(transports):
    with Engine("a model", step_timeout_s=50.0) as engine:
        engine._watchdog._heard_at -= 1000  # idle for a long time, which is allowed
        wait_until(lambda: time.monotonic() - engine._watchdog._heard_at < 1)
        stream = engine.submit([1])
        time.sleep(0.1)
        assert engine.alive and not stream.finished


@pytest.mark.parametrize("stopped", [True, False])
def test_a_frozen_worker_is_taken_for_dead(transports, stopped):
    with Engine("a model", step_timeout_s=50.0) as engine:
        worker = transports.taken[0]
        stream = engine.submit([1])
        if stopped:
            worker.stopped_s = 10.5
        else:
            engine._watchdog._heard_at -= 51
        reason = "process has not run for 10 s" if stopped else "no sign of life for 50 s"
        assert reason in stream.result(PATIENCE_S).error
        assert not engine.alive


def test_what_escapes_in_the_receiver_ends_all_streams(engine, worker, monkeypatch):
    stream = engine.submit([1])

    def broken(output):
        raise KeyError("bug")

    monkeypatch.setattr(engine._receiver, "take", broken)
    worker.publish(NewToken(0, 1))
    assert "the engine's receiver failed (KeyError: 'bug')" in stream.result(PATIENCE_S).error
    assert not engine.alive
    engine._thread.join(PATIENCE_S)
    assert not engine._thread.is_alive()


def test_an_answer_that_ends_here_is_told_to_the_worker(transports, monkeypatch):
    class Letters:
        backend_tokenizer = None

        def decode(self, ids, skip_special_tokens):
            return "".join(chr(97 + token) for token in ids)

    monkeypatch.setattr(client_module, "open_tokenizer", lambda model, config: Letters())
    with Engine("a model") as engine:
        worker = transports.taken[0]
        stream = engine.submit([1], SamplingParams(stop=("c",)))
        worker.next(object)
        worker.publish(NewToken(0, 0))
        worker.publish(NewToken(0, 2), step_id=1)
        assert worker.next(Finish) == Finish(0)
        assert (stream.result(PATIENCE_S).text, stream.finish_reason) == ("a", FinishReason.STOP)


def test_an_engine_that_nobody_refers_to_ends(transports, monkeypatch):
    hooks = []
    monkeypatch.setattr(atexit, "register", hooks.append)
    monkeypatch.setattr(atexit, "unregister", hooks.remove)
    engine = Engine("a model")
    worker, reference, thread = transports.taken[0], weakref.ref(engine), engine._thread
    del engine

    def is_gone():
        gc.collect()
        return reference() is None and worker.ended != []

    wait_until(is_gone)
    assert worker.ended == [client_module.CLOSE_TIMEOUT_S]
    assert hooks == []
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_an_engine_is_closed_at_the_end_of_the_program(transports, monkeypatch):
    hooks = []
    monkeypatch.setattr(atexit, "register", hooks.append)
    monkeypatch.setattr(atexit, "unregister", hooks.remove)
    engine, other = Engine("a model"), Engine("another")
    assert len(hooks) == 2
    hooks[0]()
    assert not engine.alive and other.alive
    assert len(hooks) == 1
    other.close()
    assert hooks == []


# -- a worker in a thread


@pytest.fixture
def model(monkeypatch):
    """A model that loads and runs nothing; ``model.runner`` is the runner that the worker uses."""
    import roseplay.model.loader as loader
    import roseplay.model.runner as runner

    model = SimpleNamespace(runner=FakeRunner(), loaded=[], error=None)
    model.runner.eos_token_ids = frozenset({3})

    def load_model(name, config, reporter):
        if model.error is not None:
            raise model.error
        model.loaded.append((name, config))
        return model

    monkeypatch.setattr(loader, "load_model", load_model)
    monkeypatch.setattr(runner, "ModelRunner", lambda loaded, config, reporter: loaded.runner)
    return model


def receive(transport, kind):
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        event = transport.receive(0.05)
        if isinstance(event, kind):
            return event
    raise AssertionError(f"no {kind.__name__} came")


def test_a_thread_has_the_clock_that_it_was_given(model):
    transport = start_transport("a name", EngineConfig(), Knobs(), SimpleNamespace(now_ns=lambda: 77))
    transport.send(submit(1))
    assert receive(transport, StepOutput).published_ns == 77
    transport.stop(PATIENCE_S)


def test_a_thread_serves_until_it_is_stopped(model):
    config, knobs = EngineConfig(), Knobs(max_batch_size=9)
    transport = start_transport("a name", config, knobs)
    assert isinstance(transport, ThreadTransport)
    assert (transport.pid, transport.replaceable, transport.stopped_for_s()) == (None, False, 0.0)
    assert receive(transport, Ready).knobs == knobs
    assert model.loaded == [("a name", config)]
    assert transport.receive(0.01) is None
    threading.Timer(0.05, transport._events.put, (Pong(9),)).start()
    assert transport.receive(PATIENCE_S) == Pong(9)
    transport.send(submit(1, [5] * 3, 30))
    assert receive(transport, StepOutput).tokens[0].request_id == 1
    assert model.runner.device.truths[1].request.eos_token_ids == {3}
    transport.stop(PATIENCE_S)
    assert model.runner.closed
    with pytest.raises(WorkerGoneError, match="thread ended"):
        receive(transport, Ready)


def test_a_process_tells_why_it_cannot_start_and_ends(tmp_path):
    config = EngineConfig(worker="process", run_as="h100")  # which needs no torch
    transport = start_transport(str(tmp_path / "nothing"), config, Knobs())
    process = transport._process
    assert transport.replaceable
    assert transport.pid == process.pid
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
    end(transport)
    assert transport._process.exitcode == -9


def test_a_killed_thread_ends_when_it_wakes(model):
    transport = start_transport("a name", EngineConfig(), Knobs())
    receive(transport, Ready)
    transport.kill()
    transport._thread.join(PATIENCE_S)
    assert not transport._thread.is_alive()


def worked(model, *script, loaded=None):
    """The events of a worker that runs in this thread."""
    loop = Loop()
    loop._script = list(script)
    run_worker("a name", EngineConfig(), Knobs(), loop, loop.events.append, loaded)
    return loop.events


def test_a_tokenizer_that_cannot_be_had_is_said_in_one_line(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    assert start_module.open_tokenizer(str(tmp_path), EngineConfig(random_weights=True)) is None
    with pytest.raises(EngineStartError, match="nowhere"):
        start_module.open_tokenizer(str(tmp_path / "nowhere"), EngineConfig())


def test_a_model_that_cannot_be_loaded_is_told(model, caplog):
    from roseplay.model.errors import refuse

    model.error = refuse("x", "no such family")
    assert worked(model) == [Failed("x cannot be served: no such family", "no such family")]
    model.error = RuntimeError("broken\nfile")
    with caplog.at_level(logging.CRITICAL):
        assert worked(model) == [Failed("the engine could not start: RuntimeError: broken")]


def test_a_loop_that_cannot_go_on_is_told_and_lets_go_of_the_model(model, caplog):
    from roseplay.core.step import DeviceLostError

    model.runner.at_launch[0] = DeviceLostError("gone")
    order = []
    with caplog.at_level(logging.CRITICAL):
        events = worked(model, [submit(1)], loaded=lambda: order.append(len(model.loaded)))
    assert events[-1] == Failed("the engine's loop ended: DeviceLostError: gone")
    assert order == [1]
    assert model.runner.closed


def test_a_loop_that_is_shut_down_lets_go_of_the_model(model):
    events = worked(model, [Shutdown()])
    assert isinstance(events[0], Ready)
    assert not any(isinstance(event, Failed) for event in events)
    assert model.runner.closed
