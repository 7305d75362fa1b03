"""The server before its engine is live: its responses, what it refuses, and how a start ends."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator
from contextlib import closing

import httpx
import pytest
from starlette.testclient import TestClient

from roseplay.config import Knobs
from roseplay.core.progress import Progress
from roseplay.engine.errors import EngineError
from roseplay.play import engine_host
from roseplay.play.start_console import AGAIN_S, LOOK_S, StartConsole
from roseplay.play.start_status import StartStatus
from roseplay.play.web.start_gate import start_reply
from tests.play.conftest import Seconds, client_of
from tests.play.model_host import COMMAND, PATIENCE_S, SlowStart

MB = 1_000_000
SET = {"data": [{"max_batch_size": 5}]}


@pytest.fixture
def clock() -> Seconds:
    return Seconds()


@pytest.fixture
def status(clock: Seconds) -> StartStatus:
    return StartStatus("gpt2", clock)


class TestStatus:
    def test_the_sentence_says_the_stage_and_how_far_it_is(self, status: StartStatus, clock: Seconds) -> None:
        assert status.sentence == "gpt2 is loading."
        status.take(Progress("libraries"))
        assert status.sentence == "gpt2 is loading. Libraries, PyTorch and transformers."
        status.take(Progress("weights", 0, 1548 * MB, "bytes"))
        assert status.sentence == "gpt2 is loading. Weights, 0.0 of 1\u202f548 MB."
        clock.now = 4.0
        status.take(Progress("weights", 387 * MB, 1548 * MB, "bytes"))
        assert status.sentence == "gpt2 is loading. Weights, 387 of 1\u202f548 MB. About 12 s left for this."
        status.take(Progress("weights", 774 * MB, 1548 * MB, "bytes", "random"))
        assert status.sentence == "gpt2 is loading. Weights, 774 of 1\u202f548 MB, random."  # progress is uneven
        status.take(Progress("weights", 4 * MB, None, "bytes", "random"))
        assert status.sentence == "gpt2 is loading. Weights, 4.0 MB, random."
        status.take(Progress("kernels", 3, 52))
        assert status.sentence == "gpt2 is loading. Kernels, compiled once, then kept."

    def test_each_stage_has_its_time_and_its_state(self, status: StartStatus, clock: Seconds) -> None:
        for clock.now, stage in ((0.0, "libraries"), (5.0, "weights"), (7.0, "kernels")):
            status.take(Progress(stage, 1, 4))
        clock.now = 10.0
        rows = [(row["title"], row["state"], row["share"], row["seconds"]) for row in status.figures()["stages"]]
        assert rows == [
            ("Libraries", "done", 1.0, 5.0),
            ("Download", "skipped", None, None),
            ("Weights", "done", 1.0, 2.0),
            ("Kernels", "running", 0.25, 3.0),
            ("Warm-up", "waiting", None, None),
        ]
        assert status.figures()["share"] == 0.25
        status.end()
        clock.now = 99.0
        assert status.figures()["stages"][3]["seconds"] == 3.0

    def test_a_failed_start_stands_still(self, status: StartStatus, clock: Seconds) -> None:
        status.take(Progress("weights", 1, 2, "bytes"))
        clock.now = 2.0
        status.fail("its file ends too early", COMMAND)
        clock.now = 50.0
        figures = status.figures()
        assert figures["failed"] == {"message": "its file ends too early", "command": COMMAND}
        assert (figures["head"], figures["stage"], figures["share"]) == ("gpt2 could not be started.", "Weights", 0.5)
        row = figures["stages"][2]
        assert (row["state"], row["seconds"]) == ("failed", 2.0)
        assert status.sentence == "gpt2 could not be started. its file ends too early"


class TestConsole:
    def test_without_a_terminal_each_stage_is_a_line_and_a_long_one_several(self, status: StartStatus) -> None:
        stream = io.StringIO()
        console = StartConsole(status, stream)
        status.take(Progress("weights", 0, 10 * MB, "bytes"))
        for done in range(5):
            status.take(Progress("weights", done * MB, 10 * MB, "bytes"))
            console.look()
        assert stream.getvalue() == "roseplay: gpt2 is loading. Weights, 0.0 of 10 MB. 0 s\n"
        for _ in range(int(AGAIN_S / LOOK_S) + 1):
            console.look()
        assert "4.0 of 10 MB" in stream.getvalue().splitlines()[1]
        status.take(Progress("kernels"))
        console.look()
        console.stop()
        assert stream.getvalue().splitlines()[2] == "roseplay: gpt2 is loading. Kernels, compiled once, then kept. 0 s"
        assert stream.getvalue().count("\n") == 3

    def test_in_a_terminal_one_line_changes(self, status: StartStatus, monkeypatch: pytest.MonkeyPatch) -> None:
        class Terminal(io.StringIO):
            def isatty(self) -> bool:
                return True

        stream = Terminal()
        monkeypatch.setenv("COLUMNS", "60")
        console = StartConsole(status, stream)
        status.take(Progress("weights", 5 * MB, 10 * MB, "bytes"))
        console.look()
        console.stop()
        shown = "[############............] gpt2 is loading. Weights, 5.0 of"[:59]
        assert stream.getvalue() == f"\r\x1b[K{shown}\r\x1b[K"

    def test_it_follows_a_start_by_itself(self, status: StartStatus) -> None:
        said = threading.Event()

        class Stream(io.StringIO):
            def write(self, text: str) -> int:
                said.set()
                return super().write(text)

        status.take(Progress("libraries"))
        console = StartConsole(status, Stream())
        console.start()
        assert said.wait(PATIENCE_S)
        console.stop()

    def test_a_terminal_that_is_gone_ends_nothing_else(self, status: StartStatus) -> None:
        stream = io.StringIO()
        console = StartConsole(status, stream)
        status.take(Progress("libraries"))
        stream.close()
        console.look()
        console.stop()


@pytest.fixture
def slow() -> Iterator[SlowStart]:
    with closing(SlowStart()) as slow:
        yield slow


class TestServer:
    @pytest.fixture
    def client(self, slow: SlowStart) -> Iterator[TestClient]:
        with client_of(slow.host) as client:
            yield client

    def test_until_it_is_live_what_needs_the_engine_is_refused(self, slow: SlowStart, client: TestClient) -> None:
        slow.at("weights", 5 * MB, 10 * MB, "bytes")
        page = client.get("/")
        assert page.status_code == 200 and "roseplay" in page.text
        assert client.get("/config").status_code == 200
        reply = client.get("/ui/delta?since=0&tab=abcdefgh")
        assert reply.status_code == 200 and reply.headers["cache-control"] == "no-store"
        start = reply.json()["start"]
        assert (start["model"], start["stage"], start["share"]) == ("gpt2", "Weights", 0.5)
        assert len(start["stages"]) == 5
        slow.at("kernels")  # of which nothing is estimated
        for path in ("/ui/block/1", "/ui/prompt/1", "/ui/export", "/ui/export/trace.json"):
            check_starting(slow, client.get(path))
        calls = ("/gradio_api/run/set_knobs", "/gradio_api/call/chat", "/gradio_api/queue/join")
        for path in ("/ui/sampling", *calls):
            check_starting(slow, client.post(path, json=SET))
        for reply in (client.get("/v1/models"), client.post("/v1/completions", json={})):
            assert reply.status_code == 503 and int(reply.headers["retry-after"]) > 0
            error = reply.json()["error"]
            assert (error["message"], error["code"]) == (slow.host.status.sentence, "starting")
        assert client.get("/ui/delta", headers={"host": "evil.example"}).status_code == 403
        reply = client.get("/health")
        assert reply.status_code == 503
        assert reply.json() == {"status": "starting", "detail": slow.host.status.sentence, "model": "gpt2"}

        slow.go_live()
        assert client.get("/health").json()["status"] == "ok"
        delta = client.get("/ui/delta?since=0").json()
        assert "start" not in delta and delta["reset"] and delta["snapshot"]["info"]["model"] == slow.engine.info.model
        assert client.get("/ui/export").status_code == 200
        assert client.post("/ui/sampling", json={"tab": "abcdefgh"}).status_code == 200
        assert client.post("/gradio_api/run/set_knobs", json=SET).status_code == 200
        assert slow.engine.knobs.max_batch_size == 5


def check_starting(slow: SlowStart, reply: httpx.Response) -> None:
    assert (reply.status_code, reply.json()) == (503, {"detail": slow.host.status.sentence}), reply.url
    assert int(reply.headers["retry-after"]) > 0


class TestStart:
    def test_knobs_are_those_it_starts_with_and_then_the_engines(self, slow: SlowStart) -> None:
        host = slow.host
        assert host.knobs() == Knobs(max_batch_size=8).to_dict()
        with pytest.raises(EngineError, match="gpt2 is loading"):
            host.chats.send("hello", lanes=[1], tab_id="abcdefgh")
        with pytest.raises(EngineError, match="gpt2 is loading"):
            host.engine.info
        slow.go_live()
        assert host.knobs() == slow.engine.knobs.to_dict()
        assert host.engine.info == slow.engine.info
        host.close()
        assert not slow.engine.alive

    @pytest.mark.parametrize("error", [ValueError, OSError, KeyError])
    def test_whatever_is_raised_is_said_in_one_line(self, slow: SlowStart, error: type[Exception]) -> None:
        slow.fail(error("no such\nmodel"))
        assert not slow.host.live
        health, delta = (
            start_reply({"type": "http", "method": "GET", "path": path, "headers": []}, slow.host)
            for path in ("/health", "/ui/delta")
        )
        assert health is not None and delta is not None
        told = {"status": "failed", "detail": slow.host.status.sentence, "model": "gpt2"}
        assert (health.status_code, json.loads(health.body)) == (503, told)
        failed = json.loads(delta.body)["start"]["failed"]
        assert failed["command"] == COMMAND and "no such" in failed["message"] and "\n" not in failed["message"]

    def test_closing_it_cancels_the_start(self, slow: SlowStart) -> None:
        slow.host.close()
        assert slow.host.over and not slow.host.live

    def test_pages_are_given_time_only_if_there_are_some(self, slow: SlowStart) -> None:
        waited: list[float] = []

        class Ended(threading.Event):
            def wait(self, timeout: float | None = None) -> bool:
                waited.append(timeout or 0)
                return True

        slow.host.tell_pages(Ended())
        assert waited == []
        slow.host.asked()
        slow.host.tell_pages(Ended())
        assert waited == [engine_host.TELL_PAGES_S]
