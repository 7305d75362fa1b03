"""Every row of the table, in one process: affected requests end with the reason, others are right, the engine runs."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Iterator

import pytest

from roseplay import Engine
from roseplay.engine.errors import EngineError
from roseplay.engine.stream import Stream
from tests.suites.faults import scene
from tests.suites.faults.inject import injected
from tests.suites.faults.scene import (
    SOON_S,
    WAIT_S,
    Page,
    Shared,
    check_goes_on,
    check_page_knows,
    expect_right,
    open_engine,
    open_page,
)
from tests.suites.faults.table import STEP_ROWS, Row
from tests.waiting import wait_until

CLOSE_S = 15.0  # for an engine that has already ended


@pytest.fixture
def engine_and_page(request: pytest.FixtureRequest, row: Row, shared: Shared) -> Iterator[tuple[Engine, Page]]:
    """The shared engine, or a separate one for a fault that it does not outlive or that it remembers."""
    if row.after == "cannot go on" or row.seam == "memory":
        shared.close()
        others = [thread.name for thread in threading.enumerate() if thread.name.startswith("roseplay-receiver")]
        assert not others, "another engine is open, which the fault may hit first"
        with open_engine(overlap=row.overlap) as engine, open_page(engine) as page:
            yield engine, page
    else:
        yield shared.get(overlap=row.overlap)
        if not getattr(request.node, "passed", False):
            shared.discard(overlap=row.overlap)


ROWS = sorted(STEP_ROWS, key=lambda row: row.after == "goes on" and row.seam != "memory")  # own engines first


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_fault_ends_only_what_it_must(row: Row, engine_and_page, expected) -> None:
    engine, page = engine_and_page
    with scene.watched_steps() as watched:
        lost: list[list[int]] = []

        def on_fire() -> None:
            lost.extend(watched.steps[-row.steps :])

        with injected(*row.faults, on_fire=on_fire) as fault:
            if row.early:
                fault.arm()
            streams = scene.begin(engine, armed=fault.arm)
            wait_until(lambda: fault.fired, "the fault acts")
            for name, stream in streams.items():
                with contextlib.suppress(TimeoutError):
                    stream.result(WAIT_S if stream.finished else SOON_S)
                assert stream.finished, f"{name} never ended: {stream}"
    in_step = {request_id for step in lost for request_id in step}
    failed = {name for name, stream in streams.items() if stream.finish_reason == "error"}
    _check_affected(row, streams, failed, in_step)
    for name in failed:
        assert re.search(row.error, streams[name].error), streams[name].error
    for name in streams.keys() - failed:
        expect_right(name, streams[name], expected)
    if row.after == "goes on":
        wait_until(lambda: scene.all_blocks_are_back(engine), "all blocks are free or cached")
        check_goes_on(engine, page, expected)
    else:
        _check_cannot_go_on(engine, page)
    check_page_knows(page, streams.values())


def _check_affected(row: Row, streams: dict[str, Stream], failed: set[str], in_step: set[int]) -> None:
    if row.affected == "none":
        assert not failed
    elif row.affected == "one":
        assert len(failed) == 1, f"{failed} ended with an error, but only one should have"
    elif row.affected == "all":
        assert failed == {name for name, stream in streams.items()}
    else:
        assert {streams[name].request_id for name in failed} == in_step
        assert failed < streams.keys(), "no request was left to continue"


def _check_cannot_go_on(engine: Engine, page: Page) -> None:
    """Callers learn what happened and what to do."""
    wait_until(lambda: not engine.alive, "the engine says that it cannot go on")
    with pytest.raises(EngineError, match="restart"):
        engine.submit("Hello?")
    status, said = page.health()
    assert status == 503, said
    assert page.snapshot()["alive"] is False
    begun = time.monotonic()
    engine.close()
    assert time.monotonic() - begun < CLOSE_S
