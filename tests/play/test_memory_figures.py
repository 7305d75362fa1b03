"""What the page, recordings and /metrics learn about memory: pinned blocks, what preemptions cost, and, of a model with
recurrent layers, the owner of each state slot and the kept states.
"""

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
from roseplay.serve.metrics import Metrics
from tests.model.families import FAMILIES, STATEFUL, tiny_model
from tests.play.conftest import poll
from tests.waiting import wait_until

PARAMS = SamplingParams(max_new_tokens=24, ignore_eos=True)


def frames_of(engine: Engine) -> list[dict[str, Any]]:
    """The frames that the page would get, once all has been told."""
    playground = Playground(engine)
    try:
        wait_until(lambda: not playground.tick())
        return list(parse(playground.recording(), "this one").frames)
    finally:
        playground.close()


def counted(engine: Engine, records: list[StepEvent]) -> dict[str, float]:
    """What /metrics counts, by family and direction."""
    metrics = Metrics(engine.info)
    for event in records:
        metrics.take(event)
    samples = [sample for family in metrics.registry.collect() for sample in family.samples]
    return {sample.name + sample.labels.get("direction", ""): sample.value for sample in samples}


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_what_preemptions_cost(mode: str) -> None:
    settings: dict[str, Any] = {"preemption_mode": mode, "prefix_cache": False}
    with Engine(tiny_model(FAMILIES["llama"]()), block_size=4, num_blocks=18, **settings) as engine:
        for stream in [engine.submit([5, 6, 7, number], PARAMS) for number in range(4)]:
            assert stream.result(60).error is None
        frames = frames_of(engine)
        events = [event for event in engine.telemetry.since(0)[1] if isinstance(event, StepEvent)]
        metrics = counted(engine, events)
    names = ("recomputed_tokens", "swapped_out", "swapped_in")
    again, out, back = (sum(getattr(event.record, name) for event in events) for name in names)
    assert any(event.record.preempted for event in events)
    assert (again > 0, out > 0, back > 0) == ((True, False, False) if mode == "recompute" else (False, True, True))
    steps = [step for frame in frames for step in frame["steps"]]
    assert [sum(getattr(step, name) for step in steps) for name in names] == [again, out, back]
    block_bytes = engine.info.kv_bytes_per_token * 4
    assert metrics["roseplay:recomputed_tokens_total"] == again
    assert metrics["roseplay:swapped_bytes_totalout"] == out * block_bytes
    assert metrics["roseplay:swapped_bytes_totalin"] == back * block_bytes


def test_pinned_blocks_are_told_apart() -> None:
    with Engine(tiny_model(FAMILIES["llama"]()), block_size=4, num_blocks=40, pinned_blocks=3) as engine:
        for number in range(2):
            engine.submit([*range(5, 21), number], SamplingParams(max_new_tokens=2, ignore_eos=True)).result(60)
        engine.inspect_block(1)  # returns after the record of the last step has arrived
        rows = [row for frame in frames_of(engine) for row in frame.get("blocks", ())]
    pinned = {
        block + i for block, _, _, findable, *count in rows if findable == 2 for i in range(count[0] if count else 1)
    }
    assert len(pinned) == 3


def test_more_than_half_of_the_pool_is_refused_with_what_to_use() -> None:
    model = tiny_model(FAMILIES["llama"]())
    with pytest.raises(ValueError, match="at most half of the KV pool can be pinned: use 0 to 19"):
        Engine(model, block_size=4, num_blocks=40, pinned_blocks=20)
    with Engine(model, block_size=4, num_blocks=40) as engine:
        with pytest.raises(ValueError, match="pinned_blocks is 20, but at most half"):
            engine.set_knobs(pinned_blocks=20)
        assert engine.knobs.pinned_blocks == 0


# -- states

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
