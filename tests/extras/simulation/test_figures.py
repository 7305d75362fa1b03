"""Figures of a simulated engine say so: their origins on request, and whether they are saturated."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from roseplay import Engine
from roseplay.clock import VirtualClock
from roseplay.extras.simulation.calibrated import Calibration
from roseplay.extras.simulation.cost import CostModel
from roseplay.extras.simulation.gpus import find_gpu
from roseplay.extras.simulation.models import find_shape
from roseplay.extras.simulation.points import Measurement
from roseplay.formats.numbers import whole
from roseplay.play.playground import Playground
from roseplay.play.stats import header_figures
from roseplay.play.web.engine_routes import engine_router
from roseplay.recording import exports
from roseplay.recording.reader import parse
from roseplay.recording.request_registry import PrefillTotals
from roseplay.recording.run import Run
from roseplay.recording.schema import EventRow
from tests.play.conftest import client_of_routes
from tests.play.fake_engine import FakeEngine


@pytest.fixture(scope="module")
def simulated() -> Iterator[Playground]:
    with Engine("qwen3-8b", run_as="h100", clock=VirtualClock()) as engine:
        playground = Playground(engine)
        engine.submit("What is a KV block?").result(30)
        while playground.tick():
            pass
        yield playground
        playground.close()


def asked(playground: Playground) -> httpx.Response:
    return client_of_routes(engine_router(playground)).get("/ui/simulation")


def test_the_origins_are_those_of_the_running_deployment(simulated: Playground) -> None:
    found = asked(simulated).raise_for_status().json()
    assert found["label"] == simulated.engine.info.evidence
    assert found["label"].startswith("calibrated on ")
    assert dict(found["gpu"]["rows"])["GPUs"] == "H100 SXM" and found["gpu"]["source"]
    assert f"{whole(simulated.engine.info.num_blocks - 1)} blocks" in dict(found["memory"])["KV cache"]


def test_a_calibration_file_that_is_gone_or_damaged_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    points = [Measurement(measured="itl", streams=n, prompt=64, answer=32, seconds=0.01) for n in (1, 8, 32)]
    Calibration.of(CostModel(find_shape("qwen3-8b"), find_gpu("h100")), points).write(file)
    with Engine("qwen3-8b", run_as=str(file), clock=VirtualClock()) as engine:
        playground = Playground(engine)
        assert asked(playground).status_code == 200
        file.write_text("{}")
        damaged = asked(playground)
        file.unlink()
        gone = asked(playground)
        playground.close()
    assert (damaged.status_code, gone.status_code) == (409, 409)
    assert damaged.json() == {"detail": f"{file.name} is not a calibration file: make one with roseplay calibrate"}
    assert gone.json() == {"detail": f"{file.name}: No such file or directory"}


def test_an_engine_that_computes_has_no_simulated_numbers() -> None:
    reply = asked(Playground(FakeEngine()))
    assert (reply.status_code, reply.json()) == (404, {"detail": "no simulated engine is running here"})


def test_every_export_of_times_says_that_they_are_simulated(simulated: Playground) -> None:
    lines = list(simulated.recording())
    recording = parse(iter(lines), "a run")
    assert recording.info.evidence == simulated.engine.info.evidence
    for kind in ("steps", "tokens", "requests"):
        rows = exports.export(kind, lines).decode().splitlines()
        assert rows[0].endswith(",device")
        assert len(rows) > 1 and all(row.endswith(",simulated H100 SXM") for row in rows[1:])
    assert b"engine (qwen3-8b, simulated H100 SXM)" in exports.export("trace", lines)
    assert b"times are simulated: H100 SXM, calibrated on" in exports.export("report", lines)


def stats_of(waits_s: list[float], *, apart_s: float = 0.5, waiting: int = 3) -> Any:
    """The figures after requests that waited this long for their first tokens and arrived one after the other."""
    run, events, now = Run({}, {"t": 0.0, "requests": []}), [], 0.0
    for number, wait_s in enumerate(waits_s):
        arrived = 1000 * number * apart_s
        now = max(now, arrived + 1000 * wait_s)
        first = EventRow(number, "first", arrived + 1000 * wait_s, {})
        events += [EventRow(number, "submitted", arrived, {}), first]
    run.take({"t": now, "steps": [], "tokens": [], "knobs": [], "requests": events})
    return header_figures(run, waiting, PrefillTotals())


GROWING = [0.1 + 0.2 * n for n in range(20)]


def test_saturated_are_times_that_grow_with_the_run() -> None:
    assert stats_of(GROWING)["saturated"] is True
    assert stats_of([0.5] * 20)["saturated"] is False
    assert stats_of(GROWING, waiting=0)["saturated"] is False, "nothing waits"
    assert stats_of(GROWING, apart_s=0.0)["saturated"] is False, "a burst: its requests wait for each other"
