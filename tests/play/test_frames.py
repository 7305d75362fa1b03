"""What the browser polls: frames, cursors, snapshots."""

from __future__ import annotations

import json

import pytest

from roseplay.clock import SYSTEM_CLOCK
from roseplay.config import SamplingParams
from roseplay.engine.records import COLUMNS, BlockChange, StepRecord
from roseplay.formats.json_text import strict_json
from roseplay.play.frames import KEEP_S, STATS_S, FrameRing
from roseplay.play.playground import Playground
from roseplay.play.stats import RATE_MS
from roseplay.recording.rows import PageTime, step_row
from roseplay.traffic.pace import Speed
from tests.play.conftest import poll
from tests.play.fake_engine import FakeEngine
from tests.play.paced_engine import PacedEngine


def ask(playground: Playground, prompt: str = "hello", tokens: int = 3) -> int:
    return playground.chats.ask(prompt, SamplingParams(max_new_tokens=tokens)).request_id


@pytest.fixture
def engine() -> PacedEngine:
    """Each of its steps takes so long that the next frame has figures."""
    return PacedEngine(Speed(STATS_S, 0.0))


def test_a_request_is_told_from_submission_to_end(engine: FakeEngine, playground: Playground) -> None:
    request_id = ask(playground)
    engine.step(3)
    assert playground.tick()
    frame = poll(playground)["frames"][0]
    events = {kind: (t, more) for rid, kind, t, more in frame["requests"] if rid == request_id}
    assert list(events) == ["submitted", "scheduled", "first", "finished"]
    assert [t for t, _ in events.values()] == sorted(t for t, _ in events.values())
    assert events["submitted"][1] == {"prompt_tokens": 5}
    assert events["finished"][1]["reason"] == "length"
    assert events["finished"][1]["tokens"] == 3
    assert events["first"][1]["ttft_ms"] == events["finished"][1]["ttft_ms"] > 0


def test_steps_and_tokens_have_the_columns_that_the_snapshot_names(engine: FakeEngine, playground: Playground) -> None:
    request_id = ask(playground)
    engine.next_step = {"replayed": True}
    engine.step(2)
    playground.tick()
    delta = poll(playground)
    frame, columns = delta["frames"][0], delta["snapshot"]["columns"]
    first, second = [dict(zip(columns["steps"], row, strict=True)) for row in frame["steps"]]
    assert (first["step_id"], first["prompt_tokens"], first["decode_tokens"], first["replayed"]) == (0, 5, 0, True)
    assert (second["step_id"], second["prompt_tokens"], second["decode_tokens"], second["replayed"]) == (1, 0, 1, None)
    assert sum(first[f"blocks_{state}"] for state in ("free", "cached", "active", "shared")) == 448
    assert [dict(zip(columns["entries"], row, strict=True)) for row in first["entries"]] == [
        {"request_id": request_id, "prompt_tokens": 5, "decode_tokens": 0, "computed": 5, "target": 5,
         "cached": 0, "shared": 0}
    ]  # fmt: skip
    one, other = [dict(zip(columns["tokens"], row, strict=True)) for row in frame["tokens"]]
    assert (one["request_id"], one["itl_ms"], one["step_id"], other["step_id"]) == (request_id, None, 0, 1)
    assert other["itl_ms"] == pytest.approx(other["t"] - one["t"], abs=0.02)


def test_a_step_has_times_of_the_page_and_what_follows_from_its_record() -> None:
    page_time = PageTime(SYSTEM_CLOCK)
    start = page_time.zero_ns + 5_000_000
    spent = {"start_ns": start, "end_ns": start + 8_000_000, "forward_ns": 6_000_000, "device_ns": 6_000_000}
    row = step_row(StepRecord(3, **spent, waiting=2, held_by="blocks", copied=[7, 9]), page_time, max_waiting=4)
    assert (row.t0, row.t1, row.device_ms, row.host_ms) == (5.0, 13.0, 6.0, 2.0)
    assert (row.step_id, row.waiting, row.limit, row.copied, row.block_copies) == (3, 2, "blocks", [7, 9], 2)
    assert dict(zip(COLUMNS["steps"], row.values(), strict=True))["block_copies"] == 2


def test_an_idle_engine_makes_no_frames(engine: PacedEngine, playground: Playground) -> None:
    ask(playground)
    engine.step(3)
    playground.tick()
    engine.virtual.ns += round(1e6 * RATE_MS)  # until the rate over the last two seconds has dropped to zero
    playground.tick()
    assert not any(playground.tick() for _ in range(20))


def test_a_cursor_gets_what_is_new_and_nothing_twice(engine: FakeEngine, playground: Playground) -> None:
    ask(playground, tokens=50)
    seen: list[int] = []
    cursor = poll(playground)["next"]
    for _ in range(5):
        engine.step()
        playground.tick()
        delta = poll(playground, cursor, boot=playground.boot_id)
        assert not delta["reset"]
        seen += [frame["seq"] for frame in delta["frames"]]
        cursor = delta["next"]
    assert seen == list(range(seen[0], seen[0] + 5))
    assert poll(playground, cursor)["frames"] == []


def test_a_strange_cursor_gets_a_snapshot(engine: FakeEngine, playground: Playground) -> None:
    request_id = ask(playground, tokens=50)
    engine.step()
    playground.tick()
    cursor = poll(playground)["next"]
    for since, boot in ((0, ""), (cursor + 1, ""), (-5, ""), (cursor, "anotherboot")):
        delta = poll(playground, since, boot=boot)
        assert delta["reset"], (since, boot)
        snapshot = delta["snapshot"]
        assert snapshot["info"]["model"] == "fake-chat"
        assert snapshot["knobs"]["max_batch_size"] == 32
        (rid, about), *_ = snapshot["requests"]
        assert rid == request_id
        assert about["first"] > 0
        assert "finished" not in about


def test_a_cursor_behind_the_ring_gets_a_snapshot() -> None:
    ring = FrameRing(keep_s=1.0)
    for t in range(0, 3000, 100):
        ring.append({"t": float(t), "steps": []})
    oldest = 31 - 11  # the last second, including both ends
    assert ring.since(oldest)[1] is not None
    assert ring.since(oldest - 1)[1] is None
    assert [json.loads(frame)["t"] for frame in ring.recent(400.0)[1]] == [2500, 2600, 2700, 2800, 2900]


def test_a_number_that_json_does_not_have_is_null() -> None:
    frame = {
        "t": 5.0,
        "steps": [],
        "loads": [{"kv_usage": float("inf")}],
        "stats": {"tok_s": float("nan"), "running": 2},
    }
    assert strict_json(FrameRing().append(frame)) == {
        "seq": 1, "t": 5.0, "steps": [], "loads": [{"kv_usage": None}], "stats": {"tok_s": None, "running": 2},
    }  # fmt: skip


def test_a_frame_is_encoded_once_for_all_tabs() -> None:
    ring = FrameRing()
    ring.append({"t": 1.0, "steps": []})
    (one,), (two,) = ring.since(1)[1] or [], ring.since(1)[1] or []
    assert one is two


def test_a_knob_marks_the_frame(engine: FakeEngine, playground: Playground) -> None:
    playground.set_knobs({"prefill_max_tokens": 64})
    playground.tick()
    ((_, _, changed),) = poll(playground)["frames"][0]["knobs"]
    assert changed == {"prefill_max_tokens": [None, 64]}


def test_blocks_are_told_where_they_changed(engine: FakeEngine, playground: Playground) -> None:
    def step(*changes: tuple[int, int, int, bool], new_pool: bool = False) -> list[list[int]]:
        ask(playground, tokens=1)
        engine.next_step = {"block_changes": [BlockChange(*change) for change in changes], "new_pool": new_pool}
        engine.step()
        playground.tick()
        return poll(playground)["frames"][-1]["blocks"]

    assert step((1, 0, -1, False), (2, 1, 7, False), (3, 2, 7, True)) == [[1, 0, -1, 0], [2, 1, 7, 0], [3, 2, 7, 1]]
    assert step((1, 0, -1, False), (2, 0, -1, False), (3, 0, -1, True)) == [[2, 0, -1, 0], [3, 0, -1, 1]]
    snapshot = poll(playground)["snapshot"]
    assert (snapshot["blocks"], snapshot["blocks_used"]) == ([[3, 0, -1, 1]], 3)
    step((1, 1, 7, False), (2, 1, 7, False))
    freed = [[1, 0, -1, 0], [2, 1, 8, 0], [3, 0, -1, 0]]
    assert step((2, 1, 8, False), new_pool=True) == freed, "a new pool has none of the blocks of the one before"
    assert poll(playground)["snapshot"]["blocks"] == [[2, 1, 8, 0]]


def test_figures_are_of_the_traffic(engine: FakeEngine, playground: Playground) -> None:
    ask(playground, tokens=4)
    engine.step(2)
    playground.tick()
    stats = poll(playground)["frames"][-1]["stats"]
    assert stats["tok_s"] == 1  # two tokens in two seconds
    assert (stats["running"], stats["waiting"]) == (1, 0)
    assert stats["kv_total"] == 448
    engine.step(2)
    playground.tick()
    assert poll(playground)["frames"][-1]["stats"]["running"] == 0


def test_ended_requests_are_forgotten(engine: PacedEngine, playground: Playground) -> None:
    for _ in range(3):
        ask(playground, tokens=1)
    engine.step()
    playground.tick()
    assert len(poll(playground)["snapshot"]["requests"]) == 3
    engine.virtual.ns += int((KEEP_S + 1) * 1e9)
    playground.tick()
    assert poll(playground)["snapshot"]["requests"] == []
