"""What the page is told of a model with recurrent layers: state slots in use, and states that the prefix cache keeps."""

from __future__ import annotations

import json

from roseplay import Engine, SamplingParams
from roseplay.engine.telemetry import StepEvent
from roseplay.play.playground import Playground
from tests.model.families import STATEFUL, tiny_model
from tests.play.conftest import wait_until


def test_slots_and_kept_states_are_counted() -> None:
    model, params = tiny_model(STATEFUL["lfm2"]()), SamplingParams(max_new_tokens=8, ignore_eos=True)
    with Engine(model, block_size=4, num_blocks=64, state_slots=3, state_snapshots=2, state_interval=1) as engine:
        playground = Playground(engine)
        for stream in [engine.submit([5, 6, 7, number], params) for number in range(4)]:
            assert len(stream.result(60).token_ids) == 8
        records = [event.record for event in engine.telemetry.since(0)[1] if isinstance(event, StepEvent)]
        assert max(record.state_slots for record in records) == 3, "the fourth request waits for a slot"

        def told() -> tuple[int | None, int | None]:
            while playground.tick():
                pass
            stats = json.loads(playground.delta(0))["snapshot"]["stats"] or {}
            return stats.get("state_slots"), stats.get("states_kept")

        wait_until(lambda: told() == (0, 2))
        playground.close()
