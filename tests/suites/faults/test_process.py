"""Faults of a worker process: those that it causes itself, and those that others cause."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from roseplay import Engine, SamplingParams
from roseplay.engine.errors import EngineError
from roseplay.engine.stream import Stream
from tests.suites.faults import scene
from tests.suites.faults.inject import FaultyModel
from tests.suites.faults.scene import (
    SOON_S,
    WAIT_S,
    Page,
    check_goes_on,
    check_page_knows,
    expect_right,
    open_engine,
    open_page,
)
from tests.suites.faults.table import WORKER_ROWS, Row
from tests.waiting import wait_until

START_S = 60.0  # for a worker, which imports torch
QUICK = {"transport: garbage in the pipe"}  # the others are slow


@pytest.fixture(scope="module")
def flags(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("flags")


@pytest.fixture(scope="module")
def served(flags: Path) -> Iterator[tuple[Engine, Page]]:
    with (
        open_engine(model=FaultyModel("tiny-chat", flags), worker="process", step_timeout_s=3) as engine,
        open_page(engine) as page,
    ):
        yield engine, page


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, marks=[] if row.name in QUICK else [pytest.mark.slow], id=row.name)
        for row in WORKER_ROWS.values()
    ],
)
def test_a_fault_in_a_worker_process(row: Row, served, flags, expected) -> None:
    engine, page = served
    flag = flags / next(name for name, other in WORKER_ROWS.items() if other is row)
    worker = engine.worker_pid
    streams = scene.begin(engine, armed=flag.touch)
    wait_until(lambda: not flag.exists(), "the fault acts")
    for name, stream in streams.items():
        wait_until(lambda stream=stream: stream.finished, f"{name} ends", WAIT_S if row.affected == "step" else SOON_S)
    failed = {name: stream for name, stream in streams.items() if stream.finish_reason == "error"}
    assert failed
    for stream in failed.values():
        assert re.search(row.error, stream.error), stream.error
    for name in streams.keys() - failed.keys():
        expect_right(name, streams[name], expected)
    if row.affected == "all":
        assert failed.keys() == streams.keys()
    else:
        assert failed.keys() < streams.keys()
    check_page_knows(
        page, failed.values()
    )  # before there is a new worker: the page drops ended requests after half a minute
    check_goes_on(engine, page, expected, timeout=START_S)
    assert (engine.worker_pid != worker) == (row.after == "is replaced")


def begin_slowly(engine: Engine) -> dict[str, Stream]:
    """Send all clients' requests, slowed down so that they can be interrupted, and wait for the first token."""
    engine.set_knobs(slow_motion=20.0)
    streams = scene.begin(engine)
    wait_until(lambda: streams["first"].token_ids, "the first token")
    assert not any(stream.finished for stream in streams.values())
    return streams


def test_a_worker_that_is_stopped_for_a_while_goes_on(served, expected) -> None:
    """Health reports its silence before the worker is replaced."""
    engine, page = served
    streams = begin_slowly(engine)
    worker = engine.worker_pid
    os.kill(worker, signal.SIGSTOP)
    try:
        wait_until(lambda: page.health()[0] == 503, "the health says that it is silent")
    finally:
        os.kill(worker, signal.SIGCONT)
        engine.set_knobs(slow_motion=1.0)
    for name, stream in streams.items():
        expect_right(name, stream.result(WAIT_S), expected)
    check_goes_on(engine, page, expected)
    assert engine.worker_pid == worker


class Unpicklable(int):
    """A token id that cannot be sent."""

    def __reduce__(self) -> tuple[Any, ...]:
        raise RuntimeError("an injected fault: not picklable")


class Poison(int):
    """A token id that cannot be received."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _explode, ()


def _explode() -> None:
    raise RuntimeError("an injected fault: not unpicklable")


@pytest.mark.parametrize(
    ("token", "where"),
    [(Unpicklable(5), "prompt"), (Poison(5), "prompt"), (Unpicklable(5), "parameters")],
    ids=["unpicklable prompt", "poisonous prompt", "unpicklable parameters"],
)
def test_requests_that_cannot_cross_to_a_process_harm_nobody_else(token, where, served, expected) -> None:
    """The sender gets an error or an answer, the request is never lost, and other requests are not affected."""
    engine, _ = served
    worker = engine.worker_pid
    others = scene.begin(engine)
    prompt = [token] if where == "prompt" else [5]
    params = SamplingParams(max_new_tokens=2, stop_token_ids=(token,) if where == "parameters" else ())
    try:
        for _ in range(20):
            assert engine.submit(prompt, params).result(WAIT_S).finished
    except (ValueError, EngineError) as refused:
        assert "\n" not in str(refused)
    for name, stream in others.items():
        expect_right(name, stream.result(WAIT_S), expected)
    assert engine.abort_all() == 0
    assert engine.worker_pid == worker
