"""What a recording of another engine's messages contains, and how unusual times are handled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from roseplay.recording.run import Run
from roseplay.wire.forward_pass import ForwardPassMetrics, QueuedRequests, ScheduledRequests
from roseplay.wire.imported_run import ImportedRun, Limits
from roseplay.wire.kv_events import BlockRemoved, BlockStored, KvEventBatch
from roseplay.wire.problems import Problems
from roseplay.wire.reader import read_files
from tests.wire.common import envelope, recorded, step, written


def stored(*hashes: int) -> KvEventBatch:
    return KvEventBatch(0.0, [BlockStored(list(hashes), None, [1] * 8 * len(hashes), 8, None, None, None)])


def test_the_header_says_what_is_known() -> None:
    run = ImportedRun(Problems(), "a file")
    assert (run.seconds, run.steps, run.blocks.highest) == (0.0, 0, 0)
    assert recorded(run).info.model == "another engine"
    run.take_metrics(250, step(0.01, 5, timing_scope="whole steps"))
    run.take_metrics(1750, step(0.01, 5))
    recording = recorded(run)
    assert run.seconds == 1.5
    assert (recording.info.model, recording.info.block_size, recording.info.num_blocks) == ("w", 16, 1)
    environment = recording.header["environment"]
    assert (environment["imported"], environment["wall_time"]) == ("a file", "not said, whole steps")
    assert environment["problems"] is None
    run.problems.lost["KV events"] = 2
    assert recorded(run).header["environment"]["problems"] == "2 messages of KV events were lost"
    run.take_kv_events(1800, stored(1, 2))
    assert (recorded(run).info.block_size, recorded(run).info.num_blocks) == (8, 3)


def test_all_that_waits_and_runs_is_counted() -> None:
    run = ImportedRun(Problems(), "test")
    metrics = ForwardPassMetrics(
        worker_id="w",
        wall_time=0.004,
        scheduled_requests=ScheduledRequests(2, 30, 0.0, 0, 5, 70),
        queued_requests=QueuedRequests(3, 90, 0.0, 4, 80),
    )
    run.take_metrics(10, metrics)
    (row,) = Run(recorded(run)).steps
    assert (row.running, row.waiting, row.prompt_tokens, row.decode_tokens) == (7, 7, 30, 5)
    assert (row.device_ms, row.blocks_cached, row.blocks_free) == (4, 0, 0)
    (frame,) = recorded(run).frames
    assert frame["stats"] == {"running": 7, "waiting": 7, "step": 0}


def test_steps_say_how_many_blocks_were_cached_and_free() -> None:
    run = ImportedRun(Problems(), "test")
    run.take_kv_events(0, stored(1, 2, 3))
    run.take_kv_events(5, KvEventBatch(0.0, [BlockRemoved([2], None)]))
    run.take_metrics(10, step(0.001, 1))
    (row,) = Run(recorded(run)).steps
    assert (row.blocks_cached, row.blocks_free) == (2, 1)
    run.clear_blocks(20)
    assert recorded(run).frames[0]["blocks"] == [[1, 0, -1, 0], [2, 0, -1, 0], [3, 0, -1, 0]]


def test_frames_are_of_a_tenth_of_a_second_and_repeat_no_figures() -> None:
    run = ImportedRun(Problems(), "test")
    for t in (0, 99.9, 100, 199, 350):
        run.take_metrics(t, step(0.0001, decodes=1))
    frames = recorded(run).frames
    assert [(frame["t"], len(frame["steps"])) for frame in frames] == [(99.9, 2), (199, 2), (350, 1)]
    assert [frame["stats"]["step"] for frame in frames] == [1, 3, 4]
    idle = ImportedRun(Problems(), "test")
    for t in (0, 1000):
        idle.take_metrics(t, ForwardPassMetrics())
    assert [frame["stats"] for frame in recorded(idle).frames] == [{"running": 0, "waiting": 0, "step": 0}]


@pytest.mark.parametrize(
    ("late_ms", "drawn"),
    [(150.0, (0, 150)), (250.0, (0, 250)), (251.0, (0, 251))],
)
def test_a_step_may_be_drawn_late_but_not_too_late(late_ms: float, drawn: tuple[float, float]) -> None:
    run = ImportedRun(Problems(), "test")
    run.take_metrics(0, step(0.0, 1))
    run.take_metrics(0, step(late_ms / 1000, 1))
    row = Run(recorded(run)).steps[1]
    assert (row.t0, row.t1) == (drawn if late_ms <= 250 else (0, 0))


def test_clocks_of_files_that_go_back_do_not_turn_time_back(tmp_path: Path) -> None:
    began = 1_782_777_601_000
    bare: Any = msgspec.to_builtins(step(0.02, 1))
    values = [bare, envelope(step(0.02, 1), began), envelope(step(0.02, 1), began - 500), bare]
    run = read_files([written(tmp_path / "a.jsonl", [*values, envelope(step(0.02, 1), began + 300)])], "named")
    assert [row.t1 for row in Run(recorded(run)).steps] == [20, 40, 60, 80, 320]
    assert recorded(run).header["created"].startswith("2026-06-30T00:00:00.980")
    assert recorded(run).info.model == "named"
    assert recorded(run).header["environment"]["imported"] == "a.jsonl"


@pytest.mark.parametrize(
    ("timestamp", "t"),
    [({"timestamp": 0}, 0.0), ({"timestamp": 1e15}, None), ({"timestamp": -1}, None), ({"timestamp": "now"}, None)],
)
def test_invalid_times_are_left_out(timestamp: dict[str, Any], t: float | None, tmp_path: Path) -> None:
    record = {**timestamp, "event": {"fpm": msgspec.to_builtins(step(0.02, 1))}}
    run = read_files([written(tmp_path / "a.jsonl", [record, record])])
    assert [row.t1 for row in Run(recorded(run)).steps] == ([0, 20] if t is not None else [20, 40])


def test_times_have_two_decimals_and_what_a_worker_says_of_itself_is_cut() -> None:
    run = ImportedRun(Problems(), "s" * 1001)
    run.take_metrics(10.12345, step(0.00123456, 1, timing_scope="t" * 101, worker_id="w" * 201))
    recording = recorded(run)
    (frame,) = recording.frames
    (row,) = Run(recording).steps
    assert (frame["t"], row.t0, row.t1, row.device_ms) == (10.12, 8.89, 10.12, 1.23)
    environment = recording.header["environment"]
    assert (environment["imported"], environment["wall_time"]) == ("s" * 1000, "t" * 100)
    assert recording.info.model == "w" * 200


def test_blocks_elsewhere_and_beyond_the_most_are_counted() -> None:
    run = ImportedRun(Problems(), "test", limits=Limits(blocks=4))
    elsewhere = BlockStored([1, 2, 3], None, [1] * 24, 8, None, "CPU", None)
    run.take_kv_events(0, KvEventBatch(0.0, [elsewhere, BlockRemoved([1, 2], "DISK"), BlockRemoved([9], "gpu")]))
    assert run.blocks.highest == 0
    run.take_kv_events(1, stored(1, 2, 3, 4, 5))
    assert run.blocks.highest == 3  # block numbers begin at 1
    run.take_kv_events(2, KvEventBatch(0.0, [BlockRemoved([2], None)]))
    run.take_kv_events(3, stored(6))
    assert run.problems.skipped == {
        "KV events: blocks in 'CPU'": 3,
        "KV events: blocks in 'DISK'": 2,
        "KV events: removed blocks that were stored before the import began": 1,
        "KV events: more blocks than a recording holds": 2,
    }
    assert recorded(run).info.num_blocks == 4
