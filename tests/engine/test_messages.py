"""Messages between a worker and its client arrive as they were sent."""

from __future__ import annotations

import dataclasses
import pickle

from roseplay.core.cache_events import Cleared, Removed, Stored
from roseplay.core.step import TokenLogprobs
from roseplay.engine.messages import Finished, NewToken, StepOutput
from roseplay.engine.records import BlockChange, EntryRecord, StepRecord


def test_a_steps_outcome_survives_the_way_between_processes():
    numbers = {field.name: number for number, field in enumerate(dataclasses.fields(StepRecord)) if field.default == 0}
    record = StepRecord(
        3,
        start_ns=4,
        end_ns=5,
        **numbers,
        entries=[EntryRecord(1, 4, 0, 4, 9, 3, 1), EntryRecord(2, 0, 1, 9, 9, 0, 0)],
        admitted=[1],
        copied=[2],
        block_changes=[BlockChange(7, 2, 1, True)],
        replayed=True,
        cache_events=[Cleared(), Stored(5, None), Removed(5)],
    )
    logprobs = TokenLogprobs(-0.5, [(5, -0.5), (6, -1.0)])
    sent = StepOutput([NewToken(2, 5, "eos", logprobs)], [Finished(3, "error", "why")], record, 99)
    got = pickle.loads(pickle.dumps(sent))
    assert got == sent
    assert [type(event) for event in got.record.cache_events] == [Cleared, Stored, Removed]
    assert [type(part) for part in (got.tokens[0], got.record.entries[0])] == [NewToken, EntryRecord]
    assert len(sent.record.entries) == 2  # the sender's copy stays complete
