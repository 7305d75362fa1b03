"""Faults in the page's server: a frame that cannot be made, a recording that cannot be written."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from roseplay import Engine
from roseplay.engine.stream import Stream
from roseplay.recording import recorder
from roseplay.recording.reader import read
from tests.suites.faults import scene
from tests.suites.faults.inject import Fault, injected
from tests.suites.faults.scene import WAIT_S, Page, expect_right, open_engine, open_page
from tests.suites.faults.table import PANICS, RAISES
from tests.waiting import wait_until

RUN = "roseplay.recording.run:Run.take"


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with open_engine() as engine:
        yield engine


@pytest.fixture(scope="module")
def page(engine: Engine) -> Iterator[Page]:
    with open_page(engine) as page:
        yield page


class Browser:
    """Polls as the page does, and keeps what it receives about each request."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._since, self._boot = 0, ""
        self.reasons: dict[int, Any] = {}
        self.resets = 0

    def poll(self) -> None:
        answer = self._page.client.get(f"/ui/delta?since={self._since}&boot={self._boot}")
        assert answer.status_code == 200
        told = answer.json()
        self._since, self._boot = told["next"], told["boot_id"]
        if told["reset"]:
            self.resets += 1
            self.reasons = {request_id: about["reason"] for request_id, about in told["snapshot"]["requests"]}
        for frame in told["frames"]:
            for request_id, kind, _, about in frame["requests"]:
                self.reasons[request_id] = about.get("reason") if kind == "finished" else None

    def sees(self, streams: dict[str, Stream]) -> dict[str, Stream]:
        """Wait until all have ended and the page knows how; returns them."""
        for stream in streams.values():
            assert stream.result(WAIT_S).finish_reason == "length"

        def knows() -> bool:
            self.poll()
            return all(self.reasons.get(s.request_id) == str(s.finish_reason) for s in streams.values())

        wait_until(knows, "a browser that was open knows how all requests ended")
        return streams


@pytest.mark.parametrize(
    ("target", "act", "times"),
    [
        (RUN, PANICS, 1),
        ("roseplay.play.frames:header_figures", RAISES, 3),
        ("roseplay.play.frames:encode", RAISES, 1),
        ("roseplay.recording.frame_texts:TextCollector.take", PANICS, 1),
    ],
)
def test_the_page_goes_on_after_a_frame_that_failed(target, act, times, engine, page) -> None:
    browser = Browser(page)
    browser.poll()
    with injected(Fault(target, act, times=times)) as fault:
        fault.arm()
        streams = scene.begin(engine)
        wait_until(lambda: fault.faults[0].fired == times, "the fault acts")
        browser.sees(streams)
    browser.sees(scene.begin(engine))
    assert page.health()[0] == 200


class FullDisk:
    """A real file until ``room`` bytes have been written, then the system's error for a full disk."""

    def __init__(self, path: Path, room: int, *, close_fails: bool = False) -> None:
        self._file = open(path, "xb", buffering=0)  # noqa: SIM115 - closed by close()
        self.room = room
        self._close_fails = close_fails

    def write(self, data: bytes) -> int:
        taken = min(len(data), self.room)
        if data and not taken:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.room -= taken
        return self._file.write(data[:taken])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def close(self) -> None:
        self._file.close()
        if self._close_fails:
            raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[FullDisk]]:
    """Lets recordings be written to disks with so much room; returns them."""

    def with_room(room: int, **how: Any) -> list[FullDisk]:
        disks: list[FullDisk] = []

        def make(path: Any, *mode: Any, **more: Any) -> FullDisk:
            disks.append(FullDisk(path, room, **how))
            return disks[-1]

        monkeypatch.setattr(recorder, "open", make, raising=False)
        return disks

    return with_room


@pytest.mark.parametrize(("room", "close_fails"), [(6_500, True), (8_000, False)])
def test_a_full_disk_ends_the_recording_and_nothing_else(room, close_fails, engine, tmp_path, disk, caplog) -> None:
    """The file stays readable up to its last whole line, however much of a line still fitted; what follows is not
    written to it even if there is room again."""
    file = tmp_path / "run.jsonl"
    disks = disk(room, close_fails=close_fails)
    with open_page(engine, record=str(file)) as page, caplog.at_level(logging.ERROR):
        browser = Browser(page)
        runs = [browser.sees(scene.begin(engine)) for _ in range(3)]
        wait_until(lambda: page.playground.recorded()["file"] is None, "the recording ends")
        disks[0].room = 10**9
        runs.append(browser.sees(scene.begin(engine)))
        assert page.playground.recorded()["frames"] > 0
        assert page.health()[0] == 200
    assert all(scene.tokens(run) == scene.tokens(runs[0]) for run in runs)
    messages = [entry.message for entry in caplog.records if "run.jsonl" in entry.message]
    assert len(messages) == 1, messages
    assert "No space left" in messages[0]
    recording = read(file)
    assert not recording.cut
    assert file.read_bytes().endswith(b"\n")
    assert file.stat().st_size <= room


def test_a_recording_that_cannot_begin_is_refused(engine, tmp_path, disk) -> None:
    disk(100)
    with pytest.raises(OSError, match="No space left"), open_page(engine, record=str(tmp_path / "run.jsonl")):
        pass
    assert not (tmp_path / "run.jsonl").exists()


def test_expected_is_what_the_shared_engine_says(engine, expected) -> None:
    """The engine behind these pages is as healthy as it was before the first fault."""
    for name, stream in scene.begin(engine).items():
        expect_right(name, stream.result(WAIT_S), expected)
