"""A small pool with speculation, an engine that is killed, a probe that fails under load, and two ranks."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
from zmq.utils.monitor import recv_monitor_message

from tests.extras.servers.vllm.suite.probe_reader import Mirror
from tests.extras.servers.vllm.suite.server import INSIDE, NGRAM, Server, of, serving, text, tokens_of
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

SMALL = ("--max-model-len", "1024", "--num-gpu-blocks-override", "40", *NGRAM)


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A pool for 1248 tokens, and a speculator."""
    with serving(model, tmp_path_factory.mktemp("vllm"), *SMALL) as server:
        yield server


def test_preemption_and_speculation(server: Server) -> None:
    with server.reader() as reader:
        mirror = Mirror.of(reader.attached())
        clients = {f"small{n}": server.start(f"small{n}", text(150, f"{n} "), 250) for n in range(6)}
        answers = {name: client.result() for name, client in clients.items()}
        wait_until(lambda: not reader.snapshot()["requests"])
        messages = reader.quiet()
        for message in messages:
            mirror.add(message)
            mirror.check()
        assert mirror == Mirror.of(reader.snapshot())
    for name, answer in answers.items():
        assert len(answer.token_ids) == 250 and tokens_of(messages, name) == answer.token_ids
    preempted = of(messages, "preempted")
    assert len(preempted) == server.metric("num_preemptions_total") > 0
    assert sorted(of(messages, "resumed")) == sorted(preempted)
    drafted, accepted_here = (sum(entry[i] for m in messages for entry in m.get("entries", ())) for i in (4, 5))
    assert drafted == server.metric("spec_decode_num_draft_tokens_total") > 0
    accepted = server.metric("spec_decode_num_accepted_tokens_total")  # also those past a request's last token
    assert 0 < accepted - 6 * 4 < accepted_here <= accepted


def test_limits_leave_room_for_drafts(server: Server) -> None:
    with server.reader() as reader:
        reader.attached()
        clients = [server.start(f"draft{n}", text(20, f"{n} "), 200) for n in range(4)]
        reader.until(lambda message: len(message.get("entries", ())) == 4)
        reader.order(set={"max_num_batched_tokens": 1})
        assert [len(client.result().token_ids) for client in clients] == [200] * 4
        server.ask("first", text(33, "all but one token is cached "), 3)
        assert len(server.ask("again", text(33, "all but one token is cached "), 3).token_ids) == 3


def test_a_reader_sees_that_the_engine_was_killed(server: Server) -> None:
    """The last test of this server."""
    with server.reader() as reader:
        monitor = reader.steps.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        monitor.rcvtimeo = 60_000
        reader.attached()
        client = server.start("killed", text(20), 900)
        reader.until(lambda message: bool(message.get("entries")))
        os.kill(server.engine_pid(), signal.SIGKILL)
        assert recv_monitor_message(monitor)["event"] == zmq.EVENT_DISCONNECTED
        reader.orders.rcvtimeo = 500
        with pytest.raises(zmq.Again):
            reader.order(ask="clock")
        assert client.exception(60) is not None or len(client.result().token_ids) < 900


def test_a_probe_that_fails_under_load_leaves_vllm_as_it_was(model: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    env = {"PYTHONPATH": f"{INSIDE}:{Path(__file__).parent}", "BREAK_FILE": str(broken)}
    with (
        serving(model, tmp_path, scheduler="breaking_probe.ProbedScheduler", **env) as server,
        server.reader() as reader,
    ):
        reader.attached()
        reader.order(set={"max_num_batched_tokens": 64, "max_num_seqs": 2})
        clients = [server.start(f"load{n}", text(300, f"{n} "), 100) for n in range(8)]
        reader.until(lambda message: len(message.get("entries", ())) == 2)
        broken.touch()
        (*_, off) = reader.until(lambda message: message["kind"] == "off")
        assert "broken on purpose" in off["error"]
        assert [len(client.result().token_ids) for client in clients] == [100] * 8
        assert "broken on purpose" in reader.order(ask="snapshot")["error"]
        (line,) = (line for line in server.log().splitlines() if "roseplay's probe is off" in line)
        assert "broken on purpose" in line
        assert [len(server.ask(f"after{n}", text(300, f"after {n} "), 5).token_ids) for n in range(3)] == [5] * 3


def test_two_ranks_have_a_probe_each(model: Path, tmp_path: Path) -> None:
    with (
        serving(model, tmp_path, "--data-parallel-size", "2", "--api-server-count", "1") as server,
        server.reader(0) as first,
        server.reader(1) as second,
    ):
        readers = [first, second]
        mirrors = [Mirror.of(reader.attached()) for reader in readers]
        assert [reader.snapshot()["rank"] for reader in readers] == [0, 1]
        clients = {f"rank{n}": server.start(f"rank{n}", text(60, f"{n} "), 30) for n in range(8)}
        answers = {name: client.result() for name, client in clients.items()}
        messages = [reader.quiet(1000) for reader in readers]
        for mirror, rows, reader in zip(mirrors, messages, readers, strict=True):
            assert of(rows, "new")
            for message in rows:
                mirror.add(message)
                mirror.check()
            assert mirror == Mirror.of(reader.snapshot())
        for name, answer in answers.items():
            assert sorted(tokens_of(rows, name) for rows in messages) == [[], answer.token_ids]
