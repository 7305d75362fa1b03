"""What the page learns about a model with recurrent layers: the owner of each state slot, and the kept states."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from roseplay import Engine, SamplingParams
from roseplay.engine.records import StepRecord
from roseplay.engine.telemetry import StepEvent
from roseplay.play.playground import Playground
from roseplay.recording.initial_state import InitialState
from roseplay.recording.reader import parse
from roseplay.recording.trace import trace
from tests.model.families import STATEFUL, tiny_model
from tests.play.conftest import poll
from tests.waiting import wait_until

SLOTS = 3


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Playground, list[StepRecord]]]:
    """Four requests for three slots; two states can be kept."""
    model, params = tiny_model(STATEFUL["lfm2"]()), SamplingParams(max_new_tokens=8, ignore_eos=True)
    with Engine(model, block_size=4, num_blocks=64, state_slots=SLOTS, state_snapshots=2, state_interval=1) as engine:
        playground = Playground(engine)
        for stream in [engine.submit([5, 6, 7, number], params) for number in range(4)]:
            assert len(stream.result(60).token_ids) == 8

        def settled() -> bool:
            while playground.tick():
                pass
            return len(snapshot(playground)["states"]) == 2

        wait_until(settled)
        yield playground, [event.record for event in engine.telemetry.since(0)[1] if isinstance(event, StepEvent)]
        playground.close()


def snapshot(playground: Playground) -> dict[str, Any]:
    return poll(playground)["snapshot"]


def test_changes_of_slots_add_up_to_what_is_counted(served: tuple[Playground, list[StepRecord]]) -> None:
    held: dict[int, tuple[int, int]] = {}
    owners = set()
    for record in served[1]:
        held |= {slot: (request, tokens) for slot, request, tokens in record.state_changes}
        running = [held[slot] for slot in range(1, SLOTS + 1) if held[slot][0] >= 0]
        kept = [about for slot, about in held.items() if slot > SLOTS and about[0] >= 0]
        assert (len(running), len(kept)) == (record.state_slots, record.states_kept)
        assert all(tokens == 0 for _, tokens in running)
        assert all(tokens in (4, 8, 12) for _, tokens in kept), "each follows whole blocks of prompt and answer"
        owners |= {request for request, _ in running}
    assert len(owners) == 4
    assert max(record.state_slots for record in served[1]) == SLOTS, "the fourth request waits for a slot"


def test_page_and_recording_say_what_slots_hold(served: tuple[Playground, list[StepRecord]]) -> None:
    playground, records = served
    states = snapshot(playground)["states"]
    assert [slot for slot, *_ in states] == [SLOTS + 1, SLOTS + 2], "no request is running any more"
    lines = list(playground.recording())
    steps = [step for frame in parse(lines, "run.jsonl").frames for step in frame["steps"]]
    told = [(step.step_id, step.state_slots, step.states_kept) for step in steps]
    assert told == [(record.step_id, record.state_slots, record.states_kept) for record in records]
    dropped = InitialState({}, 0.0)
    for line in lines[1:]:
        dropped.fold(json.loads(line))
    assert dropped.snapshot(lambda tab: True)["states"] == states, "a recording may begin here"
    nothing: dict[str, Any] = {name: [] for name in ("steps", "tokens", "requests", "knobs", "blocks")}
    dropped.fold({"t": 1e6, **nothing, "states": [[SLOTS + 1, -1, 0]]})
    assert dropped.snapshot(lambda tab: True)["states"] == states[1:]


def test_a_trace_counts_them(served: tuple[Playground, list[StepRecord]]) -> None:
    playground, records = served
    events = json.loads(trace(parse(list(playground.recording()), "run.jsonl")))["traceEvents"]
    counted = [event["args"] for event in events if event["name"] == "recurrent states"]
    assert counted == [{"slots in use": one.state_slots, "kept": one.states_kept} for one in records]
