"""What the page and /metrics learn about pinned blocks, and about what preemptions cost."""

from __future__ import annotations

from typing import Any

import pytest

from roseplay import Engine, SamplingParams
from roseplay.engine.telemetry import StepEvent
from roseplay.play.playground import Playground
from roseplay.recording.reader import parse
from roseplay.serve.metrics import Metrics
from tests.model.families import FAMILIES, tiny_model
from tests.waiting import wait_until

PARAMS = SamplingParams(max_new_tokens=24, ignore_eos=True)


def told(engine: Engine) -> list[dict[str, Any]]:
    """The frames that the page would get, once all has been told."""
    playground = Playground(engine)
    try:
        wait_until(lambda: not playground.tick())
        return list(parse(b"".join(playground.recording()).splitlines(), "this one").frames)
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
        frames = told(engine)
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
        rows = [row for frame in told(engine) for row in frame.get("blocks", ())]
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
