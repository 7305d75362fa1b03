"""Stopping a server: running requests may finish, new ones are refused."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.waiting import wait_until

STARTS_WITHIN_S = 240.0
MODEL = "qwen3-0.6b"
LONG = {"model": MODEL, "prompt": "Once", "max_tokens": 400, "ignore_eos": True, "stream": True}


@contextlib.contextmanager
def served(*flags: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """``roseplay serve`` in its own process, in slow motion; yields the process and its address.

    Its GPU is simulated, so the process starts without PyTorch, which takes longer to import than everything else.
    """
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-m", "roseplay", "serve", "--model", MODEL, "--run-as", "h100", "--port", "0"]
    with subprocess.Popen(
        [*command, "--slow-motion", "3", *flags], cwd=root, env={**os.environ, "PYTHONPATH": str(root)}, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            found = re.search(r"http://[^/]+", process.stdout.readline())
            assert found, process.stderr and process.stderr.read()
            yield process, found.group()
        finally:
            process.kill()


class Stream:
    """A streamed completion in a thread, and what has arrived so far."""

    def __init__(self, address: str) -> None:
        self.lines: list[str] = []
        self._thread = threading.Thread(target=self._read, args=(address,), daemon=True)
        self._thread.start()
        wait_until(lambda: len(self.lines) >= 10)

    def _read(self, address: str) -> None:
        with (
            contextlib.suppress(httpx.HTTPError),
            httpx.stream("POST", f"{address}/v1/completions", json=LONG, timeout=60) as response,
        ):
            self.lines.extend(line for line in response.iter_lines() if line)

    def whole(self) -> list[str]:
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self.lines


def test_a_stream_that_runs_is_finished_and_a_new_request_refused() -> None:
    with served() as (process, address), httpx.Client(base_url=address, timeout=30) as kept:
        assert kept.get("/ready").status_code == 200
        stream = Stream(address)
        process.send_signal(signal.SIGTERM)
        wait_until(lambda: kept.get("/ready").status_code != 200)
        assert kept.get("/ready").json()["detail"] == "the server is shutting down and accepts no new requests"
        assert kept.get("/health").status_code == 200
        refused = kept.post("/v1/completions", json={**LONG, "stream": False})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        assert int(refused.headers["retry-after"]) > 0
        lines = stream.whole()
        assert lines[-1] == "data: [DONE]"
        assert json.loads(lines[-2].removeprefix("data: "))["choices"][0]["finish_reason"] == "length"
        assert process.wait(30) == 0
        assert process.stderr is not None
        assert "waiting up to 30 s for 1 request of the API to finish" in process.stderr.read()


@pytest.mark.parametrize("flags", [["--grace", "0.5"], []], ids=["grace time over", "second signal"])
def test_the_end_comes_when_the_time_is_over_or_at_a_second_signal(flags: list[str]) -> None:
    with served("--slow-motion", "50", *flags) as (process, address):
        stream = Stream(address)
        process.send_signal(signal.SIGINT)
        if not flags:
            assert process.stderr is not None
            assert "interrupt again to end now" in process.stderr.readline()
            process.send_signal(signal.SIGINT)
        error, end = stream.whole()[-2:]
        assert json.loads(error.removeprefix("data: "))["error"]["code"] == "request_stopped"
        assert end == "data: [DONE]"
        assert process.wait(20) == 0


def test_nothing_to_wait_for_ends_at_once() -> None:
    with served() as (process, _):
        process.send_signal(signal.SIGTERM)
        assert process.wait(15) == 0
        assert process.stderr is not None and process.stderr.read() == ""


@pytest.mark.parametrize("flags", ["--port many", "--grace -1", "--grace soon", "--api-key=", "--log-level loud"])
def test_a_flag_that_makes_no_sense_is_one_line(flags: str, capsys: pytest.CaptureFixture[str]) -> None:
    from roseplay.serve.main import main

    with pytest.raises(SystemExit) as ended:
        main(flags.split())
    assert ended.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def free_ports(count: int) -> list[int]:
    """Consecutive ports that were just free, below the range from which the system assigns ports."""
    while True:
        first = random.randrange(20_000, 30_000)
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(first, first + count):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return list(range(first, first + count))


def test_telemetry_is_published_where_flags_say() -> None:
    """The API in one process, a subscriber in another: a request's KV events carry its blocks."""
    zmq = pytest.importorskip("zmq")
    kv, passes = free_ports(3)[::2]  # replays of KV events use the next port as well
    flags = ("--kv-events-port", str(kv), "--forward-pass-port", str(passes), "--slow-motion", "1")
    with served(*flags) as (_, address), zmq.Context() as context:
        subscribers = []
        for port in (kv, passes):
            subscriber = context.socket(zmq.SUB)
            subscriber.setsockopt(zmq.SUBSCRIBE, b"")
            subscriber.setsockopt(zmq.LINGER, 0)
            subscriber.connect(f"tcp://127.0.0.1:{port}")
            subscribers.append(subscriber)
        got: dict[int, list[bytes]] = {}
        deadline = time.monotonic() + 60
        prompt = list(range(100, 140))
        while len(got) < 2 or b"BlockStored" not in b"".join(got[0]):
            assert time.monotonic() < deadline, got
            prompt = [token + 1 for token in prompt]  # a prompt that is not cached
            body = {"model": MODEL, "prompt": prompt, "max_tokens": 2, "ignore_eos": True}
            httpx.post(f"{address}/v1/completions", json=body, timeout=60).raise_for_status()
            for number, subscriber in enumerate(subscribers):
                while subscriber.poll(50):
                    got.setdefault(number, []).extend(subscriber.recv_multipart())
        assert b"scheduled_requests" in b"".join(got[1])
        for subscriber in subscribers:
            subscriber.close()
