"""Messages of the probe inside vLLM as an engine's telemetry, without sockets."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from roseplay.clock import VirtualClock
from roseplay.config import SamplingParams
from roseplay.core.request import FinishReason
from roseplay.engine.capabilities import Capabilities
from roseplay.engine.records import BlockChange, StepRecord
from roseplay.engine.telemetry import RequestEvent, StepEvent, Telemetry, TokensEvent
from roseplay.extras.servers.live import RemoteStreams
from roseplay.extras.servers.stream import HttpStream
from roseplay.extras.servers.vllm.messages import Snapshot, Step, message_in
from roseplay.extras.servers.vllm.steps import MOST_REQUESTS, Steps
from tests.extras.servers.vllm.fake_probe import NUM_BLOCKS, snapshot_fields, step_fields

RECORDED = Path(__file__).parent / "data" / "vllm_steps.jsonl"
MS = 1_000_000
OURS = 7


class Reading:
    """A vLLM whose steps end every 10 ms, and what was made of them."""

    def __init__(self, **snapshot: Any) -> None:
        self.clock, self.telemetry = VirtualClock(1000 * MS), Telemetry(1000)
        self.live = RemoteStreams(self.telemetry, self.clock, Capabilities())
        self.steps = Steps(self.live, self.telemetry, self.clock, count(100).__next__)
        self.number = 0
        self.join(**snapshot)

    def join(self, *, same_boot: bool = False, cleared: bool = False, **fields: Any) -> None:
        about = {**snapshot_fields(**fields), "n": 0, "boot": "b", "now_ns": self.clock.now_ns()}
        self.steps.join(Snapshot.model_validate_json(json.dumps(about)), same_boot=same_boot, cleared=cleared)

    def step(self, *entries: Any, **fields: Any) -> StepRecord:
        self.clock.advance_to(self.clock.now_ns() + 10 * MS)
        self.number += 1
        self.steps.take(made(step_fields(self.number, self.clock.now_ns(), *entries, **fields)))
        return self.records[-1]

    def submit(self) -> HttpStream:
        stream = HttpStream(OURS, [], SamplingParams(), lambda _: False, self.clock.now_ns())
        self.live.add(stream)
        return stream

    @property
    def events(self) -> list[Any]:
        return self.telemetry.since(0)[1]

    @property
    def records(self) -> list[StepRecord]:
        return [event.record for event in self.events if isinstance(event, StepEvent)]

    def requests(self) -> list[tuple[int, str, float]]:
        """The events of requests, in ms since the clock began."""
        noted = (event for event in self.events if isinstance(event, RequestEvent))
        return [(event.request_id, event.kind, event.time_ns / MS - 1000) for event in noted]

    def rows(self) -> list[tuple[int | None, float | None]]:
        """All tokens: the step that told them, None for their arrival, and the gap before them in ms."""
        rows: list[tuple[int | None, float | None]] = []
        for event in self.events:
            if isinstance(event, StepEvent | TokensEvent):
                number = event.record.step_id if isinstance(event, StepEvent) else None
                rows += [(number, token.itl_ns and token.itl_ns / MS) for token in event.tokens]
        return rows


def made(fields: dict[str, Any]) -> Step:
    message = message_in(json.dumps({"kind": "step", "n": 1, "boot": "b", **fields}).encode())
    assert isinstance(message, Step)
    return message


def counts(record: StepRecord) -> tuple[int, int, int, int]:
    return record.prompt_tokens, record.decode_tokens, record.cached_tokens, record.recomputed_tokens


def test_a_prompt_in_chunks_and_its_answer() -> None:
    reading = Reading()
    first = reading.step(("x", 32, 16, 60), new=[["x", 60, 16, 4 * MS, 3]], tokens={"x": []}, running=1)
    second = reading.step(("x", 12, 48, 60), tokens={"x": [5]})
    third = reading.step(("x", 1, 60, 60), tokens={"x": [6]}, ended=[["x", "length"]])
    assert [counts(step) for step in (first, second, third)] == [(32, 0, 16, 0), (12, 0, 0, 0), (0, 1, 0, 0)]
    assert [entry[3:6] for step in (first, second, third) for entry in step.entries] == [
        (48, 60, 16), (60, 60, 16), (60, 60, 16),
    ]  # fmt: skip
    assert (first.admitted, first.running, first.held_by, second.held_by) == ([100], 1, "prefill", None)
    assert reading.requests() == [
        (100, "submitted", -4), (100, "scheduled", 0), (100, "first_token", 20), (100, "finished", 30),
    ]  # fmt: skip
    assert reading.rows() == [(2, None), (3, 10)]


def test_times_are_of_our_clock_and_steps_do_not_overlap() -> None:
    reading = Reading()
    reading.steps.offset_ns = -500 * MS
    end_ns = reading.clock.now_ns()
    reading.clock.advance_to(end_ns + 100 * MS)
    for end, scheduled in ((end_ns, end_ns - 20 * MS), (end_ns + 30 * MS, end_ns - 5 * MS)):
        times = {"schedule": [scheduled + 500 * MS, scheduled + 502 * MS], "output": [end + 500 * MS, end + 501 * MS]}
        reading.steps.take(made({**step_fields(1, 0), **times}))
    first, second = reading.records[1:]
    assert (first.start_ns, first.end_ns, first.device_ns) == (end_ns - 20 * MS, end_ns, 18 * MS)
    assert (second.start_ns, second.end_ns, second.device_ns) == (end_ns, end_ns + 30 * MS, 30 * MS)
    assert second.host_ns == second.schedule_ns == 2 * MS


def test_blocks_and_their_owners() -> None:
    reading = Reading(
        pool=[[1, 1, 1], [2, 0, 1]], requests=[["x", 40, 20, 1, "running", 0, [1]]], free=NUM_BLOCKS - 2, cached=1
    )
    [joined] = reading.records
    assert joined.new_pool and joined.block_changes == [BlockChange(1, 1, 100, 1), BlockChange(2, 0, -1, 1)]
    assert (joined.blocks_free, joined.blocks_cached, joined.blocks_active, joined.blocks_shared) == (6, 1, 1, 0)
    shared = reading.step(
        *(("x", 1, 20, 40), ("y", 16, 32, 48)), new=[["y", 48, 32, 0, 0]], blocks={"y": [1, 2, 3]},
        changed=[[1, 2, 1], [2, 1, 1], [3, 1, 0]], free=5,
    )  # fmt: skip
    assert shared.block_changes == [BlockChange(1, 2, 100, 1), BlockChange(2, 1, 101, 1), BlockChange(3, 1, 101, 0)]
    assert (shared.blocks_free, shared.blocks_active, shared.blocks_shared) == (5, 2, 1)
    ended = reading.step(ended=[["x", "stop"]], changed=[[1, 1, 1]], free=5)
    assert ended.block_changes == [BlockChange(1, 1, 101, 1)]
    moved = reading.step(("y", 1, 48, 48), ("z", 9, 0, 9), blocks={"z": [2]}, changed=[[2, 1, 0]], free=5)
    assert moved.block_changes == [BlockChange(2, 1, 102, 0)], "y has given it back: it left a window"


def test_the_first_holder_stays_the_owner_when_another_ends() -> None:
    reading = Reading()
    for name in ("x", "y"):
        reading.step(
            (name, 16, 0, 16), new=[[name, 16, 0, 0, 0]], blocks={name: [1]}, changed=[[1, 1 + (name == "y"), 1]]
        )
    assert reading.step(ended=[["y", "stop"]], changed=[[1, 1, 1]]).block_changes == [BlockChange(1, 1, 100, 1)]


def test_a_vllm_cannot_have_endlessly_many_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MOST_REQUESTS <= 1 << 14
    monkeypatch.setattr("roseplay.extras.servers.vllm.steps.MOST_REQUESTS", 64)
    names = [f"r{number}" for number in range(64 + 1)]
    with pytest.raises(ValueError, match="more than 64 requests"):
        Reading().step(*((name, 1, 0, 1) for name in names))


def test_a_preempted_request_computes_its_prompt_and_answer_again() -> None:
    reading = Reading()
    reading.step(("x", 20, 0, 20), new=[["x", 20, 0, 0, 0]], blocks={"x": [1, 2]}, tokens={"x": [5]})
    reading.step(("x", 1, 20, 20), tokens={"x": [6]}, changed=[[1, 1, 1], [2, 1, 0]])
    lost = reading.step(preempted=["x"], changed=[[1, 0, 1], [2, 0, 0]], waiting={"": 1})
    assert (lost.preempted, lost.held_by, lost.blocks_active) == ([100], "blocks", 0)
    again = reading.step(("x", 6, 16, 20), new=[["x", 20, 16, None, 0]], resumed=["x"], blocks={"x": [1, 3]})
    assert again.admitted == [100]
    assert counts(again) == (6, 0, 16, 5)
    assert again.entries[0][3:6] == (22, 22, 0)
    [stream] = {event.stream for event in reading.events if isinstance(event, RequestEvent)}
    assert stream.metrics.num_preemptions == 1


def test_drafts() -> None:
    reading = Reading()
    reading.step(("x", 20, 0, 20), new=[["x", 20, 0, 0, 0]], tokens={"x": [5]})
    step = reading.step(("x", 4, 20, 20, 3, 2), tokens={"x": [6, 7, 8]})
    assert (step.decode_tokens, step.draft_tokens, step.accepted_tokens) == (4, 3, 2)
    assert reading.rows() == [(1, None), (2, 10), (2, 0), (2, 0)]


@pytest.mark.parametrize(
    ("fields", "held_by"),
    [
        ({"waiting": {"": 2}, "running": 64}, "batch"),
        ({"waiting": {"": 2}}, "prefill"),  # all tokens of a step are used
        ({"waiting": {"": 2}, "entries": []}, None),  # they may have just come
        ({"waiting": {"grammar": 2, "remote_kv": 1}, "entries": []}, None),
    ],
)
def test_what_holds_requests(fields: dict[str, Any], held_by: str | None) -> None:
    record = Reading().step(("x", 2048, 0, 2048), **fields)
    assert (record.held_by, record.waiting) == (held_by, sum(fields["waiting"].values()))


def test_who_still_waits_though_there_is_room_waits_for_blocks() -> None:
    reading = Reading()
    assert [reading.step(("x", 1, 20, 20), waiting={"": 1}).held_by for _ in range(2)] == [None, "blocks"]


def test_a_request_of_ours_has_its_steps_and_the_times_of_its_arrivals() -> None:
    reading = Reading()
    stream = reading.submit()
    name = f"cmpl-{reading.live.name(stream)}-0-1f2e"
    reading.step(("other", 8, 0, 8), new=[["other", 8, 0, 0, 0]], waiting={"": 1}, tokens={"other": [1]})
    reading.step((name, 30, 10, 40), new=[[name, 40, 10, 10 * MS, 0]], tokens={name: [5]})
    assert stream.metrics.prompt_tokens == 40 and stream.metrics.cached_tokens == 10
    assert stream.metrics.scheduled_ns == reading.clock.now_ns() - 10 * MS
    assert stream.computed_prompt_tokens == 40
    assert reading.records[-1].entries[0].request_id == OURS
    assert stream.metrics.first_token_ns is None, "it has not arrived"
    assert [row for row in reading.rows() if row[0] == 2] == [(2, None)]
    reading.step((name, 1, 40, 40), tokens={name: [6]}, ended=[[name, "stop"]])
    assert not stream.finished and (OURS, "finished", 30) not in reading.requests()
    assert reading.live.causes.first_token(OURS, 0.05) == (0.01, 0.0, 0.0, 0.04)


def test_tokens_whose_steps_were_lost_are_told_as_they_arrived() -> None:
    reading = Reading()
    stream = reading.submit()
    name = reading.live.name(stream)
    reading.step((name, 20, 0, 20), new=[[name, 20, 0, 0, 0]], tokens={name: [5]})
    for ms in (1, 5, 9):
        stream.push_piece("a", reading.clock.now_ns() + ms * MS, 1)
    reading.join(same_boot=True, requests=[[name, 20, 22, 3, "running", 0, []]])
    assert reading.rows() == [(1, None), (None, 4), (None, 4)]
    reading.step((name, 1, 22, 20), tokens={name: [8]})
    assert reading.rows()[3:] == [(2, 0)]


def test_a_token_that_was_published_when_it_arrived_is_not_told_by_its_step() -> None:
    reading = Reading()
    stream = reading.submit()
    name = reading.live.name(stream)
    stream.push_piece("a", reading.clock.now_ns(), 1)
    assert len(stream.unpublished()) == 1
    reading.step((name, 20, 0, 20), new=[[name, 20, 0, 0, 0]], tokens={name: [5, 6]})
    assert reading.rows() == [(1, 0)]


def test_what_a_server_computes_after_the_end_is_no_token() -> None:
    reading = Reading()
    stream = reading.submit()
    name = reading.live.name(stream)
    reading.step((name, 20, 0, 20), new=[[name, 20, 0, 0, 0]], tokens={name: [5]})
    stream.push_piece("a", reading.clock.now_ns(), 1)
    reading.live.end(stream, FinishReason.STOP)
    reading.step((name, 1, 20, 20), tokens={name: [6]}, ended=[[name, "abort"]])
    assert reading.rows() == [(1, None)]


def test_who_runs_already_has_no_first_token_here() -> None:
    reading = Reading(requests=[["x", 20, 25, 6, "running", 4, [1, 2]], ["y", 30, 0, 0, "waiting", 0, []]])
    reading.step(("x", 1, 25, 20), ("y", 30, 0, 30), new=[["y", 30, 0, 5 * MS, 0]], tokens={"x": [1], "y": [2]})
    kinds = [(number, kind) for number, kind, _ in reading.requests()]
    assert kinds == [(100, "submitted"), (101, "submitted"), (101, "scheduled"), (101, "first_token")]
    x = next(event.stream for event in reading.events if isinstance(event, RequestEvent))
    assert (x.metrics.completion_tokens, x.metrics.ttft_s) == (7, None)
    assert reading.rows() == [(1, 0), (1, None)]


def test_requests_that_a_snapshot_no_longer_has_have_ended() -> None:
    reading = Reading()
    for name in ("x", "y"):
        reading.step((name, 20, 0, 20), new=[[name, 20, 0, 0, 0]])
    reading.join(same_boot=True, requests=[["y", 20, 22, 3, "running", 0, []]])
    assert [number for number, kind, _ in reading.requests() if kind == "finished"] == [100]
    reading.join(same_boot=False, requests=[["y", 20, 22, 3, "running", 0, []]])
    assert [number for number, kind, _ in reading.requests() if kind == "finished"] == [100, 101]
    assert reading.requests()[-1][:2] == (102, "submitted"), "another vLLM may use a name again"


@pytest.mark.parametrize(
    "wrong",
    [
        {"step": -1}, {"step": "1"}, {"entries": [["x", 1, 2]]}, {"entries": [["x", 1, 2, 3, 4, 2**40]]},
        {"changed": [[2**30, 1, 1]]}, {"changed": [[1, 1, 7]]}, {"output": [1]}, {"schedule": [0, 2**80]},
        {"kind": "other"}, {"tokens": {"x": ["a"]}}, {"ended": [["x" * 1000, "stop"]]},
    ],
)  # fmt: skip
def test_what_no_probe_can_mean_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        made({**step_fields(1, 1), **wrong})


def test_a_run_of_a_real_vllm() -> None:
    """Its messages are those of ``suite/record.py``: a burst in a small pool, with drafts, preemptions and new limits."""
    first, *lines = RECORDED.read_bytes().splitlines()
    telemetry, clock = Telemetry(10_000), VirtualClock(6 * 10**12)
    live = RemoteStreams(telemetry, clock, Capabilities())
    steps = Steps(live, telemetry, clock, count().__next__)
    snapshot, messages = Snapshot.model_validate_json(first), [message_in(line) for line in lines]
    steps.join(snapshot, same_boot=False)
    for message in messages:
        if isinstance(message, Step):
            steps.take(message)
    events = telemetry.since(0)[1]
    told = [event for event in events if isinstance(event, StepEvent)][1:]
    computed = [message for message in messages if isinstance(message, Step)]
    assert len(told) == len(computed) > 150
    owners: dict[int, int] = {}
    for event, message in zip(told, computed, strict=True):
        record = event.record
        assert record.blocks_free + record.blocks_cached + record.blocks_active + record.blocks_shared == 25
        assert record.prompt_tokens + record.decode_tokens == sum(entry.tokens for entry in message.entries)
        assert len(event.tokens) == sum(map(len, message.tokens.values()))
        assert len(record.preempted) == len(message.preempted)
        owners |= {change.block: change.owner for change in record.block_changes if change.references}
        assert all((change.owner >= 0) == (change.references > 0) for change in record.block_changes)
    assert any(event.record.blocks_shared for event in told) and len(set(owners.values())) > 5
    ends = [event for event in events if isinstance(event, RequestEvent) and event.kind == "finished"]
    assert len(ends) == sum(len(message.ended) for message in computed)
    assert sum(event.record.accepted_tokens for event in told) > 0 < sum(len(event.record.preempted) for event in told)


FULL = {"kv_specs": "['FullAttentionSpec']", "method": None, "enable_prefix_caching": True}


def miss(reading: Reading, name: str, prompt: int, cached: int, *hashes: int) -> tuple[str, int, int] | None:
    """Why a prompt was computed from there on: the reason, the tokens that were found, and the position."""
    reading.step(
        (name, prompt - cached, cached, prompt), new=[[name, prompt, cached, 0, 0, hashes]], tokens={name: [1]}
    )
    stream = [event.stream for event in reading.events if isinstance(event, RequestEvent)][-1]
    reading.step(ended=[[name, "stop"]])
    return stream.miss and (str(stream.miss.reason), stream.miss.found, stream.miss.position)


def test_why_a_prompt_is_computed_follows_from_the_hashes_of_its_blocks() -> None:
    """A block is 16 tokens. What is not cached was never computed, was evicted or cleared, or fills no block."""
    reading = Reading(settings=FULL)
    assert miss(reading, "a", 40, 0, 1, 2) == ("differs", 0, -1)
    assert miss(reading, "b", 40, 32, 1, 2) == ("short", 32, 32)
    assert miss(reading, "c", 60, 16, 1, 7, 8) == ("differs", 16, -1)
    assert miss(reading, "d", 60, 16, 1, 2, 3) == ("evicted", 16, 16)
    for hashes in ((1, 2, 3), (1, 2, 9)):  # vLLM computes a prompt's last token itself, and with it the block
        assert miss(reading, "e", 48, 32, *hashes) is None
    assert miss(reading, "f", 60, 16, 1) is None, "not all hashes are told"
    reading.join(same_boot=True, cleared=True, settings=FULL)
    assert miss(reading, "g", 60, 16, 1, 2, 3) == ("cleared", 16, 16)
    assert miss(reading, "h", 60, 16, 1, 2, 3) == ("evicted", 16, 16)


def test_no_reason_is_told_that_is_not_known() -> None:
    reading = Reading(settings=FULL)
    assert miss(reading, "a", 60, 0, 1, 2, 3) == ("differs", 0, -1)
    reading.join(settings=FULL)  # steps are missing, or vLLM was started again
    assert miss(reading, "b", 60, 16, 1, 2, 3) == ("differs", 16, -1)
    for settings in (
        {**FULL, "kv_specs": "['SlidingWindowSpec']"},
        {**FULL, "kv_specs": "['FullAttentionSpec', 'MambaSpec']"},
        {**FULL, "method": "eagle"},
        {},
    ):
        reading.join(settings=settings)
        assert miss(reading, "c", 60, 0, 1, 2, 3) is None
    reading.join(settings={"enable_prefix_caching": False})
    assert miss(reading, "d", 60, 0) == ("off", 0, 0)


def test_what_was_not_computed_was_not_evicted() -> None:
    """A prompt that is computed in parts is not in the cache before."""
    reading = Reading(settings=FULL)
    reading.step(("x", 32, 0, 64), new=[["x", 64, 0, 0, 0, [1, 2, 3, 4]]])
    reading.step(("y", 32, 32, 64), new=[["y", 64, 32, 0, 0, [1, 2, 3, 4]]])
    stream = [event.stream for event in reading.events if isinstance(event, RequestEvent)][-1]
    assert stream.miss is not None and str(stream.miss.reason) == "differs"
