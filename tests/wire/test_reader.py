"""Turning other engines' telemetry into a recording: from sockets of our own publishers, from files, with garbage."""

from __future__ import annotations

import gzip
import itertools
import json
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from roseplay.engine.client import Engine
from roseplay.recording.reader import Recording
from roseplay.recording.run import Run
from roseplay.recording.run_report import run_report
from roseplay.wire.extra import WireError, zmq
from roseplay.wire.forward_pass import ForwardPassMetrics, QueuedRequests, encode_forward_pass
from roseplay.wire.imported_run import ImportedRun, Limits
from roseplay.wire.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KvEventBatch, encode_kv_events
from roseplay.wire.kv_publisher import KvEventPublisher
from roseplay.wire.problems import Problems
from roseplay.wire.publishers import Publishers
from roseplay.wire.reader import SocketReader, read_files
from tests.core.invariants import CacheTree
from tests.waiting import wait_until
from tests.wire.common import batches, envelope, recorded, records, step, traffic, written

LOOPBACK = "tcp://127.0.0.1:*"


def blocks_of(recording: Recording) -> dict[int, int]:
    """The blocks that can be found at the end."""
    state: dict[int, int] = {}
    for frame in recording.frames:
        for block, references, owner, findable in frame["blocks"]:
            assert (references, owner) == (0, -1)
            state[block] = findable
    return state


def stored(*hashes: int | bytes, medium: str | None = "GPU", group: int | None = None) -> BlockStored:
    return BlockStored(list(hashes), None, [1] * 2 * len(hashes), 2, None, medium, None, group_idx=group)


class Reading:
    """A reader that runs in a thread until ``done`` holds."""

    def __init__(self, reader: SocketReader) -> None:
        self.reader = reader
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        while not self._done.is_set():
            self.reader.read(0.05)

    def until(
        self, condition: Callable[[ImportedRun], bool], meanwhile: Callable[[], object] = lambda: None
    ) -> ImportedRun:
        def holds() -> bool:
            meanwhile()
            return condition(self.reader.run)

        try:
            wait_until(holds, "the reader has it all")
        finally:
            self._done.set()
            self._thread.join()
            self.reader.close()
        return self.reader.run


def test_what_an_engine_publishes_is_what_it_did(engine: Engine) -> None:
    with Publishers(engine, kv_events_port=0, forward_pass_port=0, worker_id="ours") as publishers:
        kv, replay = publishers.kv.publication.endpoint, publishers.kv.replay_endpoint
        reading = Reading(SocketReader(kv, publishers.forward_pass.publication.endpoint, replay))
        wait_until(lambda: len(list(reading.reader.run.lines())) > 1, "a sign of life arrives")
        traffic(engine)
        steps = [record for record in records(engine) if record.entries]
        tree = CacheTree()
        for event in (event for record in records(engine) for event in record.cache_events):
            tree.apply(event)
        run = reading.until(lambda run: run.steps == len(steps) and run.blocks.cached == len(tree.stored))
    assert run.problems.lines() == []
    recording = recorded(run)
    rows = Run(recording).steps
    assert [row.prompt_tokens for row in rows] == [record.prompt_tokens for record in steps]
    assert [row.decode_tokens for row in rows] == [record.decode_tokens for record in steps]
    assert [row.waiting for row in rows] == [record.waiting for record in steps]
    assert [row.running for row in rows] == [len(record.entries) for record in steps]
    assert [row.device_ms for row in rows] == [round(record.device_ns / 1e6, 2) for record in steps]
    assert all(row.t0 >= before.t1 for before, row in itertools.pairwise(rows))
    assert sum(blocks_of(recording).values()) == len(tree.stored) > 0
    assert (recording.info.model, recording.info.block_size) == ("ours", 4)
    assert recording.info.num_blocks == run.blocks.highest + 1
    assert max(blocks_of(recording)) == run.blocks.highest
    assert "requests" in recording.header["environment"]["not_shown"]
    assert recording.header["environment"]["wall_time"] == "execute_model_cpu"
    assert b"ours" in run_report(recording)


def test_a_reader_that_comes_late_asks_for_what_was_before(engine: Engine) -> None:
    traffic(engine, 3)
    with Publishers(engine, kv_events_port=0) as publishers:
        wait_until(lambda: publishers.kv.publication.next == batches(engine), "all is published")
        reading = Reading(SocketReader(publishers.kv.publication.endpoint, None, publishers.kv.replay_endpoint))
        run = reading.until(lambda run: run.blocks.highest > 3)
        assert not run.problems.lines()


class Lossy:
    """A publisher that loses some of its messages."""

    def __init__(self, context: Any) -> None:
        self.publisher = KvEventPublisher(context, LOOPBACK, LOOPBACK, block_size=2)
        self.endpoint = self.publisher.publication.endpoint
        self.socket = self.publisher.publication.socket

    def send(self, *events: Any, arrives: bool = True, payload: bytes | None = None) -> None:
        payload = encode_kv_events(KvEventBatch(0.0, list(events))) if payload is None else payload
        number = self.publisher.publication.next
        self.publisher.publication.next += 1
        if arrives:
            self.socket.send_multipart([b"", number.to_bytes(8, "big"), payload])
        self.publisher.kept.append((number, payload))

    def until_subscribed(self, reading: Reading) -> None:
        """Send until the first message arrives, as a subscription takes a moment."""

        def heard() -> bool:
            self.send(stored(1))
            return reading.reader.run.blocks.highest > 0

        wait_until(heard, "the subscription")


def test_lost_messages_are_asked_for_once(context: Any) -> None:
    lossy = Lossy(context)
    reading = Reading(SocketReader(lossy.endpoint, None, lossy.publisher.replay_endpoint))
    wait_until(lossy.publisher.serve_replays, "it has asked for the past")
    lossy.send(stored(1))
    lossy.send(stored(2), arrives=False)
    lossy.send(stored(3), BlockRemoved([1], "GPU"), arrives=False)
    lossy.send(stored(4))
    run = reading.until(lambda run: run.blocks.highest >= 3 and run.blocks.cached == 3, lossy.publisher.serve_replays)
    assert run.problems.lost == {}
    assert run.problems.fetched["KV events"] in (2, 3)  # three if the subscription missed the first
    assert blocks_of(recorded(run)) == {1: 1, 2: 1, 3: 1}


def test_a_publisher_that_starts_anew_has_nothing_cached(context: Any) -> None:
    lossy = Lossy(context)
    reading = Reading(SocketReader(lossy.endpoint))
    lossy.until_subscribed(reading)
    lossy.send(stored(2))
    lossy.publisher.publication.next = 0
    lossy.send(stored(3))
    run = reading.until(lambda run: run.blocks.highest == 2 and run.blocks.cached == 1)
    assert blocks_of(recorded(run)) == {1: 1, 2: 0}
    assert run.problems.lost == {}


def test_a_replay_that_never_ends_is_given_up(context: Any) -> None:
    silent = context.socket(zmq.ROUTER)
    silent.bind(LOOPBACK)
    lossy = Lossy(context)
    reader = SocketReader(lossy.endpoint, None, silent.last_endpoint.decode(), replay_timeout_s=0.1)
    reader.read(0.05)
    assert reader.run.problems.skipped == {"KV events: a replay that did not end within 0.1 s": 1}
    reader.close()


def test_garbage_is_counted_by_kind_and_the_rest_is_read(context: Any) -> None:
    rng = random.Random(0)
    lossy = Lossy(context)
    reading = Reading(SocketReader(lossy.endpoint))
    lossy.until_subscribed(reading)
    for _ in range(300):
        lossy.send(payload=rng.randbytes(rng.randrange(40)))
    for frames in ([b"one"], [b"", b"short", b""], [b"", b"\xff" * 8, b""], [b""] * 5):
        lossy.socket.send_multipart(frames)
    lossy.send(payload=encode_forward_pass(ForwardPassMetrics()))
    lossy.send(payload=msgspec.msgpack.encode([0.0, [["BlockStored", [5]], ["Gone"], ["BlockRemoved", [77]]]]))
    lossy.send(payload=encode_kv_events(KvEventBatch(0.0, [stored(7, medium="CPU")])))
    lossy.send(payload=encode_kv_events(KvEventBatch(0.0, [stored(8)], 3)))
    lossy.send(payload=encode_kv_events(KvEventBatch(0.0, [stored(9, b"x")]), array_like=True))
    run = reading.until(lambda run: run.blocks.highest == 3)
    skipped = run.problems.skipped
    assert skipped["KV events: a message that is not topic, number and payload"] == 4
    assert skipped["KV events: unknown KV event 'Gone'"] == 1
    assert skipped["KV events: BlockStored: Object missing required field `token_ids`"] == 1
    assert skipped["KV events: removed blocks that were stored before the import began"] == 1
    assert skipped["KV events: blocks in 'CPU'"] == 1
    assert skipped["KV events of rank 3"] == 1
    assert sum(skipped.values()) == 300 + 4 + 6
    assert blocks_of(recorded(run)) == {1: 1, 2: 1, 3: 1}


def test_numbers_of_removed_blocks_are_used_again() -> None:
    run = ImportedRun(Problems(), "test")
    run.take_kv_events(0, KvEventBatch(0.0, [stored(10, 20, 30)]))
    run.take_kv_events(200, KvEventBatch(0.0, [BlockRemoved([30, 10], "GPU")]))
    run.take_kv_events(400, KvEventBatch(0.0, [stored(40), stored(20), stored(20, group=1)]))
    frames = recorded(run).frames
    assert [frame["blocks"] for frame in frames] == [
        [[1, 0, -1, 1], [2, 0, -1, 1], [3, 0, -1, 1]],
        [[3, 0, -1, 0], [1, 0, -1, 0]],
        [[1, 0, -1, 1], [3, 0, -1, 1]],
    ]
    run.take_kv_events(600, KvEventBatch(0.0, [AllBlocksCleared()]))
    assert set(blocks_of(recorded(run)).values()) == {0}
    assert run.blocks.highest == 3


def test_steps_do_not_overlap_and_do_not_fall_behind() -> None:
    run = ImportedRun(Problems(), "test")
    for t in (10, 10, 10, 50, 1000):
        run.take_metrics(t, step(0.008, decodes=1))
    assert [(row.t0, row.t1) for row in Run(recorded(run)).steps] == [
        (2, 10),
        (10, 18),
        (18, 26),
        (42, 50),
        (992, 1000),
    ]
    run.take_metrics(1100, step(1e6, decodes=1))
    run.take_metrics(1200, step(0.05, decodes=1))
    assert [(row.t0, row.t1) for row in Run(recorded(run)).steps[5:]] == [(1000, 1100), (1150, 1200)]


def test_an_idle_worker_and_another_one() -> None:
    run = ImportedRun(Problems(), "test", name="mine")
    run.take_metrics(0, step(0.01, 5, 2, queued_requests=QueuedRequests(3, 30)))
    run.take_metrics(1000, ForwardPassMetrics(worker_id="w"))
    run.take_metrics(2000, ForwardPassMetrics(worker_id="w"))
    run.take_metrics(2000, step(0.01, 5, worker_id="v"))
    run.take_metrics(2000, step(0.01, 5, dp_rank=1))
    recording = recorded(run)
    assert [(frame["stats"]["running"], frame["stats"]["waiting"]) for frame in recording.frames] == [(3, 3), (0, 0)]
    assert run.problems.skipped == {
        "forward pass metrics of worker 'v', rank 0": 1,
        "forward pass metrics of worker 'w', rank 1": 1,
    }
    assert recording.info.model == "mine"


# -- files


@pytest.mark.parametrize("suffix", [".jsonl.gz", ".jsonl"])
@pytest.mark.parametrize("inner", [False, True])
def test_files_of_dynamo(tmp_path: Path, suffix: str, inner: bool) -> None:
    began = 1_782_777_601_250
    values = [envelope(step(0.02, 10 * i, i), began + 100 * i) for i in range(1, 7)]
    values = [value["event"] for value in values] if inner else values
    paths = [
        written(tmp_path / f"dynamo-fpm.4192.{number:06}{suffix}", values[3 * number : 3 * number + 3])
        for number in (0, 1)
    ]
    run = read_files(paths)
    steps = Run(recorded(run)).steps
    assert [(row.t1, row.prompt_tokens, row.decode_tokens) for row in steps] == [
        (100.0 * i, 10 * (i + 1), i + 1) for i in range(6)
    ]
    assert all(row.t1 - row.t0 == pytest.approx(20) for row in steps)
    assert recorded(run).header["created"].startswith("2026-06-30T00:00:01.350")
    assert run.problems.lines() == []


def test_bare_metrics_follow_each_other(tmp_path: Path) -> None:
    path = written(tmp_path / "bare.jsonl", [msgspec.to_builtins(step(0.02, 1)) for _ in range(3)])
    assert [row.t1 for row in Run(recorded(read_files([path]))).steps] == [20, 40, 60]


def test_damaged_files_are_read_as_far_as_they_go(tmp_path: Path) -> None:
    good = envelope(step(0.02, 1), 1_782_777_601_250)
    odd = written(tmp_path / "odd.jsonl", [good, [1], {"event": 5}, {"event": {"fpm": {"version": 3}}}, 7, good])
    odd.write_bytes(odd.read_bytes() + b"{not JSON\n\n" + b"\xff\xfe\n" + b'{"event":{"schema"')
    run = read_files([odd])
    assert run.steps == 2
    assert sum(run.problems.skipped.values()) == 7
    assert run.problems.skipped["forward pass metrics of version 3, not 1"] == 1
    rng = random.Random(0)
    values = [envelope(step(rng.random(), rng.randrange(1000)), 1_782_777_601_250 + i) for i in range(2000)]
    cut = written(tmp_path / "cut.jsonl.gz", values)
    cut.write_bytes(cut.read_bytes()[:-2000])
    run = read_files([cut])
    assert run.steps > 100
    assert run.problems.skipped["the end of a compressed file, which is incomplete or damaged"] == 1


def test_a_file_that_is_small_until_it_is_decompressed(tmp_path: Path) -> None:
    good = json.dumps(envelope(step(0.02, 1), 1_782_777_601_250)).encode() + b"\n"
    bomb = tmp_path / "bomb.jsonl.gz"
    bomb.write_bytes(gzip.compress(good + b"[]\n" * (1 << 20) + good))
    run = read_files([bomb], limits=Limits(file_bytes=1 << 20))
    assert run.steps == 1
    assert run.problems.skipped["a line is not a record of forward pass metrics"] < 1 << 19
    assert run.problems.skipped["what follows the first 1,048,576 bytes of a file"] == 1


def test_a_run_is_kept_up_to_so_many_steps_and_blocks(tmp_path: Path) -> None:
    limits = Limits(rows=100)
    values = [envelope(step(0.001, 1), 1_782_777_601_250 + i) for i in range(500)]
    run = read_files([written(tmp_path / "long.jsonl", values)] * 2, limits=limits)
    assert 90 < run.steps <= 100
    assert run.problems.lines() == ["skipped 1 × the rest of the files: a recording holds no more"]
    assert len(Run(recorded(run)).steps) == run.steps

    run = ImportedRun(Problems(), "test", limits=limits)
    run.take_kv_events(0, KvEventBatch(0.0, [stored(*range(500))]))
    run.take_kv_events(0, KvEventBatch(0.0, [stored(500)]))
    assert run.blocks.highest == len(blocks_of(recorded(run))) <= 100
    assert sum(run.problems.skipped.values()) == 1


def test_times_that_no_recording_holds_are_left_out(tmp_path: Path) -> None:
    began = 1_782_777_601_250
    values = [envelope(step(0.02, i), time) for i, time in enumerate([10**15 - 1, began, began + 10**13, began + 100])]
    run = read_files([written(tmp_path / "odd.jsonl", values)])
    recording = recorded(run)
    assert recording.header["created"].startswith("2026-06-30T00:00:01")
    assert [row.prompt_tokens for row in Run(recording).steps] == [0, 1, 3]
    assert run.problems.lines() == ["skipped 1 × messages with a time years after that of the first"]
    slow = [msgspec.to_builtins(step(1e6, 1)) for _ in range(1000)]
    assert len(Run(recorded(read_files([written(tmp_path / "slow.jsonl", slow)]))).steps) == 500


def test_an_invalid_endpoint_is_refused() -> None:
    for arguments in [("nonsense",), ("tcp://127.0.0.1:1", None, "nonsense")]:
        with pytest.raises(WireError, match="'nonsense' is not an endpoint"):
            SocketReader(*arguments)
