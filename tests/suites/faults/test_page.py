"""Faults in the page's server: a frame that cannot be made, a recording that cannot be written."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from roseplay import Engine
from roseplay.recording import recorder
from roseplay.recording.reader import read
from tests.suites.faults import scene
from tests.suites.faults.inject import Fault, injected, raises
from tests.suites.faults.scene import WAIT_S, Page, expect_right, open_engine, open_page
from tests.suites.faults.table import broken, panics
from tests.waiting import wait_until

STATS = "roseplay.play.stats:Stats.step"
WORDS = "roseplay.recording.frame_texts:TextCollector.take"


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with open_engine() as engine:
        yield engine


@pytest.fixture
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

    def knows_all_ended(self, streams: Any) -> bool:
        self.poll()
        return all(self.reasons.get(stream.request_id) == str(stream.finish_reason) for stream in streams)


@pytest.mark.parametrize(
    ("what", "target", "act", "times"),
    [
        ("frame builder: raises once", STATS, broken(), 1),
        ("frame builder: panics once", STATS, panics(), 1),
        ("frame builder: raises three times", "roseplay.play.stats:Stats.live", broken(), 3),
        ("frame builder: runs out of memory", STATS, raises(lambda: MemoryError("injected")), 1),
        ("frame builder: encoding raises", "roseplay.play.frames:encode", broken(), 1),
        ("recorder: raises once", WORDS, broken(), 1),
        ("recorder: panics once", WORDS, panics(), 1),
    ],
)
def test_the_page_goes_on_after_a_frame_that_failed(what, target, act, times, engine, page, outcome) -> None:
    browser = Browser(page)
    browser.poll()
    with injected(Fault(target, act, times=times)) as fault:
        fault.arm()
        streams = list(scene.begin(engine).values())
        for stream in streams:
            assert stream.result(WAIT_S).finish_reason == "length"
        wait_until(lambda: fault.faults[0].fired == times, "the fault acts")
        wait_until(lambda: browser.knows_all_ended(streams), "a browser that was open knows how all requests ended")
    again = list(scene.begin(engine).values())
    for stream in again:
        stream.result(WAIT_S)
    wait_until(lambda: browser.knows_all_ended(again), "frames go on")
    assert page.health()[0] == 200
    outcome(what, "an open page learned how every request ended")


class FullDisk:
    """A real file until ``room`` bytes have been written, then the system's error for a full disk."""

    def __init__(self, path: Path, room: int, *, close_fails: bool = False) -> None:
        self._file = open(path, "xb", buffering=0)  # noqa: SIM115 - closed by close()
        self._room = room
        self._close_fails = close_fails

    def write(self, data: bytes) -> int:
        taken = min(len(data), self._room)
        if data and not taken:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._room -= taken
        return self._file.write(data[:taken])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def close(self) -> None:
        self._file.close()
        if self._close_fails:
            raise OSError(errno.EIO, os.strerror(errno.EIO))


@contextlib.contextmanager
def disk_with(room: int, monkeypatch: pytest.MonkeyPatch, **how: Any) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr(recorder, "open", lambda path, *mode, **more: FullDisk(path, room, **how), raising=False)
        yield


@pytest.mark.parametrize(
    ("room", "close_fails"),
    [(5_000, False), (6_500, True), (8_000, False)],
    ids=["5000", "6500, closing fails", "8000"],
)
def test_a_full_disk_ends_the_recording_and_nothing_else(
    room, close_fails, engine, tmp_path, monkeypatch, caplog, outcome
) -> None:
    """The file stays readable up to its last whole line, however much of a line still fitted."""
    file = tmp_path / "run.jsonl"
    expected = [scene.tokens(run) for run in _runs(engine, 1)]
    with disk_with(room, monkeypatch, close_fails=close_fails), open_page(engine, record=str(file)) as page:
        with caplog.at_level(logging.ERROR):
            browser = Browser(page)
            for run in _runs(engine, 4):
                assert scene.tokens(run) == expected[0]
                wait_until(
                    lambda run=run: browser.knows_all_ended(run.values()), "the page knows how all requests ended"
                )
        assert page.playground.recorded()["file"] is None
        assert page.playground.recorded()["frames"] > 0
        assert page.health()[0] == 200
    said = [entry.message for entry in caplog.records if "run.jsonl" in entry.message]
    assert len(said) == 1, said
    assert "No space left" in said[0]
    recording = read(file)
    assert not recording.cut
    assert file.read_bytes().endswith(b"\n")
    outcome(f"recorder: disk full after {room} bytes", f"{len(recording.frames)} whole frames stayed; the page went on")


def _runs(engine: Engine, count: int) -> Iterator[dict[str, Any]]:
    for _ in range(count):
        streams = scene.begin(engine)
        for stream in streams.values():
            stream.result(WAIT_S)
        yield streams


def test_a_recording_that_cannot_begin_is_refused(engine, tmp_path, monkeypatch, outcome) -> None:
    with (
        disk_with(100, monkeypatch),
        pytest.raises(OSError, match="No space left"),
        open_page(engine, record=str(tmp_path / "run.jsonl")),
    ):
        pass
    assert not (tmp_path / "run.jsonl").exists()
    outcome("recorder: no room for its header", "the start says so, and leaves no file")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_what_the_system_says_of_a_full_device_is_taken_the_same(engine, tmp_path, monkeypatch, outcome) -> None:
    def full(path: Any, *mode: Any, **more: Any) -> Any:
        return open("/dev/full", "wb", buffering=0)

    monkeypatch.setattr(recorder, "open", full, raising=False)
    with pytest.raises(OSError, match="No space left"), open_page(engine, record=str(tmp_path / "run.jsonl")):
        pass
    outcome("recorder: /dev/full", "the start says so")


def test_a_full_disk_that_gets_room_again_does_not_resume_in_the_middle(engine, tmp_path, monkeypatch, outcome) -> None:
    file = tmp_path / "run.jsonl"
    disks: list[FullDisk] = []

    def make(path: Any, *mode: Any, **more: Any) -> FullDisk:
        disks.append(FullDisk(path, 5_000))
        return disks[-1]

    monkeypatch.setattr(recorder, "open", make, raising=False)
    with open_page(engine, record=str(file)) as page:
        for _ in _runs(engine, 3):
            pass
        wait_until(lambda: page.playground.recorded()["file"] is None, "the recording ends")
        disks[0]._room = 10**9
        for _ in _runs(engine, 1):
            pass
        wait_until(lambda: all(about["finished"] for about in page.outcomes().values()), "the page goes on")
    lines = file.read_bytes().splitlines()
    assert all(json.loads(line) for line in lines)
    assert len(file.read_bytes()) <= 5_000
    outcome("recorder: disk full, then not", "no line was written after the gap")


def test_expected_is_what_the_shared_engine_says(engine, expected, outcome) -> None:
    """The engine behind these pages is as healthy as it was before the first fault."""
    for name, stream in scene.begin(engine).items():
        expect_right(name, stream.result(WAIT_S), expected)
    outcome("afterwards", "all answers are right")
