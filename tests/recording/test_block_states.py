"""The states of blocks: what frames change, what a snapshot contains, and how compactly both are written."""

from __future__ import annotations

import json
import random
from typing import Any

from roseplay.recording.block_states import FREE, BlockStates, State
from roseplay.recording.initial_state import InitialState

ACTIVE, SHARED, CACHED = (1, 7, 0), (3, 2, 1), (0, -1, 1)


def single(rows: list[list[int]]) -> dict[int, State]:
    """The state of each block in these rows."""
    states: dict[int, State] = {}
    for block, references, owner, findable, *more in rows:
        states |= dict.fromkeys(range(block, block + (more[0] if more else 1)), (references, owner, findable))
    return states


def test_rows_are_of_what_changed_and_neighbours_share_one() -> None:
    states = BlockStates()
    assert states.change({3: ACTIVE, 1: ACTIVE, 2: ACTIVE, 4: SHARED, 6: SHARED}) == [
        [1, 1, 7, 0, 3], [4, 3, 2, 1], [6, 3, 2, 1],
    ]  # fmt: skip
    assert states.change({1: ACTIVE, 2: CACHED}) == [[2, 0, -1, 1]]
    assert states.change({2: CACHED, 5: FREE}) == []


def test_a_block_that_was_used_between_two_frames_is_told_once() -> None:
    states = BlockStates()
    assert states.change({1: FREE, 2: FREE}) == [[1, *FREE, 2]]
    assert states.change({2: FREE, 3: ACTIVE}) == [[3, *ACTIVE]]
    assert states.change({3: FREE}) == [[3, *FREE]]
    assert (states.rows(), states.used) == ([], 3)
    assert states.change({2: FREE, 3: CACHED}) == [[3, *CACHED]]


def test_another_pool_begins_with_free_blocks() -> None:
    states = BlockStates()
    states.change({1: ACTIVE, 2: FREE, 3: CACHED})
    assert states.change(states.freed()) == [[1, *FREE], [3, *FREE]]
    assert (states.rows(), states.used) == ([], 3)


def test_snapshots_and_frames_lead_to_the_same_states() -> None:
    draw = random.Random(5)
    known: dict[int, State] = {}
    writer, reader = BlockStates(), BlockStates()
    for _ in range(60):
        newest = {draw.randint(1, 90): draw.choice([FREE, ACTIVE, SHARED, CACHED]) for _ in range(draw.randint(0, 30))}
        known |= newest
        rows = writer.change(newest)
        assert single(rows).items() <= newest.items()
        reader.take(rows)
    held = {block: state for block, state in known.items() if state != FREE}
    later = BlockStates()
    later.take(writer.rows())
    assert single(later.rows()) == held
    for states in (writer, reader):
        assert single(states.rows()) == held
        assert states.used == max(known)


def test_a_snapshot_of_a_large_pool_is_as_long_as_what_differs_in_it() -> None:
    states = BlockStates()
    states.take([[1, *CACHED, 200_000], [70_000, *ACTIVE, 40], [70_040, *SHARED]])
    assert states.rows() == [
        [1, *CACHED, 69_999], [70_000, *ACTIVE, 40], [70_040, *SHARED], [70_041, *CACHED, 129_960],
    ]  # fmt: skip
    assert states.used == 200_000


def test_a_recording_whose_beginning_was_dropped_begins_with_them() -> None:
    nothing: dict[str, Any] = {"steps": [], "tokens": [], "requests": [], "knobs": []}
    initial = InitialState({}, 0.0)
    for t, rows in ((1.0, [[1, *CACHED, 150_000]]), (2.0, [[9, *ACTIVE], [10, *FREE]])):
        initial.fold({**nothing, "t": t, "blocks": rows})
    snapshot = json.loads(json.dumps(initial.snapshot(lambda _: True)))
    assert snapshot["blocks"] == [[1, *CACHED, 8], [9, *ACTIVE], [11, *CACHED, 149_990]]
    assert snapshot["blocks_used"] == 150_000
