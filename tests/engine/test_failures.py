"""When a worker process is killed or stopped, its requests end with a reason, and it is replaced."""

from __future__ import annotations

import os
import signal
import threading

from roseplay import Engine
from roseplay.engine.transport import start_transport
from tests.engine.test_engine import LONG
from tests.hardware import needs_simulation
from tests.waiting import wait_until

SIMULATED = {"run_as": "h100", "worker": "process", "block_size": 4, "num_blocks": 50, "max_model_len": 64}


class Impatient:
    """A worker process that seems to have been stopped for four times as long as it has."""

    def __init__(self, *about):
        self.worker = start_transport(*about)

    def stopped_for_s(self):
        return 4 * self.worker.stopped_for_s()

    def __getattr__(self, name):
        return getattr(self.worker, name)


def feeders():
    return [thread for thread in threading.enumerate() if thread.name == "QueueFeederThread"]


def answer_slowly(engine):
    """Returns streams of which the first has a token."""
    engine.set_knobs(slow_motion=100)
    streams = [engine.submit([3 + i], LONG) for i in range(3)]
    wait_until(lambda: streams[0].token_ids)
    return streams


def check_replaced(engine):
    engine.set_knobs(slow_motion=1)
    assert engine.submit([3, 4], LONG).result(60).finish_reason == "length"
    assert engine.health().ok


@needs_simulation
def test_a_worker_that_is_killed_or_stopped_is_replaced():
    """Its GPU is simulated, since workers that import torch would take most of the test's time."""
    others = len(feeders())
    with Engine("qwen3-0.6b", start_transport=Impatient, **SIMULATED) as engine:
        streams = answer_slowly(engine)
        os.kill(engine.worker_pid, signal.SIGKILL)
        for stream in streams:
            assert stream.result(3).finish_reason == "error"
        assert "process ended" in streams[0].error
        check_replaced(engine)

        streams = answer_slowly(engine)
        os.kill(engine.worker_pid, signal.SIGSTOP)
        for _ in range(400):  # more than its pipe takes
            engine.submit([3] * 10, LONG)
        wait_until(lambda: engine.overdue is not None)
        assert "process has not run" in engine.health(timeout=0.1).detail
        for stream in streams:
            assert "process has not run" in stream.result(20).error
        check_replaced(engine)
        wait_until(lambda: len(feeders()) == others + 1)  # only the one of the worker that runs
