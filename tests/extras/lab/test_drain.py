"""Stopping the page's server while the lab measures and keeps the engine paused."""

from __future__ import annotations

import json
import signal
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from roseplay.extras.lab.lab import Lab, LabBusyError
from roseplay.play.main import make_server
from roseplay.play.options import parse
from roseplay.play.playground import Playground
from roseplay.serve.interrupts import Interrupts
from tests.at_a_port import running
from tests.extras.lab.fake_arms import QUICK, FakeArms
from tests.play.fake_engine import INFO, FakeEngine
from tests.waiting import wait_until

BODY = {"model": INFO.model, "prompt": [1, 2, 3], "max_tokens": 9, "stream": True}
EXPERIMENT = {"scenario": "token-budget", "params": QUICK}
GRACE_S = 60.0  # longer than any wait here


def test_the_lab_stops_at_the_first_signal_and_answers_end_with_an_error_at_the_second(engine: FakeEngine) -> None:
    playground, events = Playground(engine), list[str]()
    playground.services["lab"] = Lab(
        engine, open_engine=FakeArms(lambda config, cancelled: cancelled.wait(GRACE_S) and None)
    )
    server = make_server(playground, parse(["--grace", str(GRACE_S)]), Interrupts())

    def read(address: str) -> None:
        with httpx.stream("POST", f"{address}/v1/completions", json=BODY, timeout=60) as response:
            events.extend(line.removeprefix("data: ") for line in response.iter_lines() if line)

    with running(server) as address, ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read, address)
        wait_until(lambda: engine.num_unfinished)
        engine.step()
        wait_until(lambda: len(events) == 1)
        httpx.post(f"{address}/ui/lab/run", json=EXPERIMENT).raise_for_status()
        wait_until(lambda: engine.paused)
        server.handle_exit(signal.SIGTERM, None)  # as the signal does, which only a main thread receives
        wait_until(lambda: not engine.paused)
        with pytest.raises(LabBusyError, match="the server is shutting down"):
            playground.services["lab"].start(EXPERIMENT)
        engine.step()
        wait_until(lambda: len(events) == 2)
        server.handle_exit(signal.SIGTERM, None)
        reading.result(60)
    assert json.loads(events[-2])["error"]["code"] == "request_stopped"
    assert events[-1] == "[DONE]"
