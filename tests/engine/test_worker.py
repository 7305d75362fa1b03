"""The engine's loop with a runner that has no model: commands in, events out, and the handling of faults."""

from __future__ import annotations

import logging
import random
from itertools import pairwise

import pytest

from roseplay.config import EngineConfig, Knobs
from roseplay.core.cache_events import Cleared, Removed, Stored
from roseplay.core.request import FinishReason
from roseplay.core.step import StepTooLargeError
from roseplay.engine.messages import (
    ClearCache,
    End,
    Inspect,
    Inspected,
    InspectMemory,
    KnobsApplied,
    Pause,
    Ping,
    Pong,
    Ready,
    SetKnobs,
    Shutdown,
    StepStarted,
)
from roseplay.engine.records import BlockChange
from tests.engine.fake_runner import MEMORY, FakeRunner, Loop, submit

AHEAD = pytest.mark.parametrize("ahead", [False, True])


@AHEAD
def test_everybody_is_answered(ahead):
    loop = Loop(FakeRunner(runs_ahead=ahead))
    loop.run([submit(1), submit(2, range(10), 7)], [], [submit(3, [5] * 6, 1)])
    assert isinstance(loop.events[0], Ready)
    assert loop.events[0].info == loop.runner.info()
    assert loop.ends() == {1: "length", 2: "length", 3: "length"}
    loop.check_answers()
    assert (loop.runner.launched != []) == ahead


@AHEAD
def test_the_record_of_each_step_adds_up(ahead):
    loop = Loop(FakeRunner(num_blocks=12, runs_ahead=ahead), prefill_max_tokens=8)
    loop.run([submit(number, [number] * 9, 12) for number in range(4)] + [submit(4, [1] * 9, 3)])
    records = [output.record for output in loop.outputs]
    assert [record.step_id for record in records] == sorted({record.step_id for record in records})
    for output in loop.outputs:
        record = output.record
        blocks = (record.blocks_free, record.blocks_cached, record.blocks_active, record.blocks_shared)
        assert sum(blocks) == 11
        assert record.prompt_tokens == sum(entry.prompt_tokens for entry in record.entries)
        assert record.decode_tokens == sum(entry.decode_tokens for entry in record.entries)
        assert 0 < record.start_ns <= record.end_ns <= output.published_ns
        assert (record.schedule_ns > 0) == bool(record.entries)
        if record.entries:
            times = (record.prepare_ns, record.forward_ns, record.sample_ns, record.device_ns)
            assert times == (1, 2, 3, 2)
            assert record.replayed is True
    assert all(later.start_ns >= earlier.end_ns for earlier, later in pairwise(records))
    assert (records[0].running, records[0].waiting) == ((2, 3) if ahead else (1, 4))
    assert (records[-1].running, records[-1].waiting) == (0, 0)
    assert sum(len(record.preempted) for record in records) > 0
    steps = {step.step_id: step for step in loop.runner.steps}
    for record in records:
        step = steps[record.step_id]
        assert (record.admitted, record.preempted, record.copied) == (step.admitted, step.preempted, step.copied)
        assert (record.cached_tokens, record.shared_tokens) == (step.cached_tokens, step.shared_tokens)


@AHEAD
def test_only_steps_count_for_the_prefill_interval(ahead):
    """Not the records without a step of what changed meanwhile."""
    loop = Loop(FakeRunner(runs_ahead=ahead), prefill_interval=5)
    loop.run([submit(1, range(5), 20)], [Pause(True), submit(2)], *[[ClearCache()]] * 8, [Pause(False)])
    records = [output.record for output in loop.outputs]
    assert sum(not record.entries for record in records) >= 8
    prompts = [bool(record.prompt_tokens) for record in records if record.entries]
    assert prompts[:7] == [True, *[False] * 5, True]


@AHEAD
def test_what_enters_and_leaves_the_prefix_cache_is_recorded_where_it_is_asked_for(ahead):
    loop = Loop(FakeRunner(num_blocks=6, runs_ahead=ahead), config=EngineConfig(kv_events=True))
    loop.run([submit(1, range(9), 4)], *[[]] * 9, [submit(2, range(20, 34), 2)], *[[]] * 9, [ClearCache()])
    events = [event for output in loop.outputs for event in output.record.cache_events]
    first, second = hash((0, (0, 1, 2, 3))), hash((hash((0, (0, 1, 2, 3))), (4, 5, 6, 7)))
    assert events[:3] == [Cleared(), Stored(first, None), Stored(second, first)]
    assert Removed(second) in events
    assert events[-1] == Cleared()
    assert Stored(hash((0, (20, 21, 22, 23))), None) in events
    plain = Loop(FakeRunner(runs_ahead=ahead))
    plain.run([submit(1, range(9), 4)])
    assert not any(output.record.cache_events for output in plain.outputs)


def test_progress_of_a_prompt_is_recorded():
    loop = Loop(prefill_max_tokens=4)
    loop.run([submit(1, range(10), 2)], *[[]] * 9, [submit(2, range(10), 1)])
    progress = [output.record.entries[0][:5] for output in loop.outputs if output.record.entries]
    assert progress == [(1, 4, 0, 4, 10), (1, 4, 0, 8, 10), (1, 2, 0, 10, 10), (1, 0, 1, 10, 10), (2, 0, 0, 10, 10)]
    assert loop.outputs[-1].record.entries[0].cached == 10
    assert loop.outputs[-1].record.entries[0].shared == 0


def test_a_copied_block_is_recorded_with_its_request():
    loop = Loop()
    loop.run([submit(1, range(6), 4), submit(2, range(6), 4)])
    assert [output.record.copied for output in loop.outputs[:3]] == [[], [1], []]


def test_block_changes_add_up_to_what_can_be_inspected():
    loop = Loop()
    states = {block: BlockChange(block, 0, -1, False) for block in range(1, 40)}

    def look():
        for output in loop.outputs:
            states.update({change.block: change for change in output.record.block_changes})
        return [Inspect(100 + block, block) for block in range(1, 40)]

    loop.run([submit(1, range(10), 6), submit(2, range(10), 6)], [], [], look)
    found = [event.info for event in loop.sent(Inspected)]
    assert [event.token for event in loop.sent(Inspected)] == [100 + block for block in range(1, 40)]
    assert {info.state for info in found} == {"free", "active", "shared"}
    for info in found:
        change = states[info.block]
        assert (change.references, change.findable) == (len(info.holders), info.findable)
        assert change.owner == next(iter(info.holders), -1)
        expected = "shared" if len(info.holders) > 1 else "active" if info.holders else "free"
        assert info.state == expected
        if info.holders:
            assert (
                info.token_ids == list(range(10))[info.depth * 4 : info.depth * 4 + len(info.token_ids)]
                or info.depth == 2
            )
            assert info.last_use >= 0
        else:
            assert (info.depth, info.token_ids, info.last_use) == (None, [], -1)


def test_only_a_first_record_is_of_a_new_pool_and_it_has_what_differs():
    loop = Loop()
    loop.run([submit(1, range(10), 6)])
    first, *others = [output.record for output in loop.outputs]
    assert [change.block for change in first.block_changes] == [1, 2, 3]
    assert first.new_pool
    assert not any(record.new_pool for record in others)


def test_a_cached_block_can_be_inspected():
    loop = Loop()
    loop.run([submit(1, range(10), 1)], [], [], lambda: [Inspect(0, block) for block in range(1, 40)])
    cached = [event.info for event in loop.sent(Inspected) if event.info.state == "cached"]
    assert sorted((info.depth, info.token_ids) for info in cached) == [
        (0, [0, 1, 2, 3]),
        (1, [4, 5, 6, 7]),
        (2, [8, 9]),
    ]
    assert all(info.findable and not info.holders and info.last_use == 0 for info in cached)


@AHEAD
def test_an_abort_and_a_cut_end_a_request_at_once_and_only_once(ahead):
    loop = Loop(FakeRunner(runs_ahead=ahead))
    loop.run(
        [submit(1, max_new_tokens=50), submit(2, [4], 50)],
        [],
        [],
        [End(1), End(1), End(2, FinishReason.STOP), End(2, FinishReason.STOP)],
    )
    assert loop.ends() == {1: "abort", 2: "stop"}
    for number in (1, 2):
        tokens = loop.tokens(number)
        assert 0 < len(tokens) < 10
        assert tokens == loop.answer(number)[: len(tokens)]
    assert loop.worker.scheduler.pool.num_available == loop.worker.scheduler.pool.num_usable
    loop = Loop()
    loop.run([End(7), End(8, FinishReason.STOP)])
    assert loop.ends() == {}


def test_new_knobs_are_applied_and_confirmed():
    loop = Loop(max_batch_size=1)
    knobs = Knobs(max_batch_size=3)
    loop.run([submit(number, [number]) for number in range(3)], [], [SetKnobs(knobs)])
    (applied,) = loop.sent(KnobsApplied)
    assert applied.knobs == knobs
    assert applied.time_ns > 0
    running = {output.record.step_id: output.record for output in loop.outputs}
    assert running[applied.step_id - 1].running == 1
    assert len(running[applied.step_id].admitted) == 2
    loop.check_answers()


def test_a_cleared_cache_is_told_without_a_request():
    loop = Loop()
    loop.run([submit(1, range(10), 1)], [], [], [ClearCache()])
    assert loop.outputs[-1].record.blocks_cached == 0
    assert loop.outputs[-2].record.blocks_cached == 3
    assert loop.outputs[-1].record.entries == []
    assert loop.outputs[-1].record.schedule_ns == 0
    assert [change[1:] for change in loop.outputs[-1].record.block_changes] == [(0, -1, False)] * 3


@AHEAD
def test_a_pause_holds_steps_back_and_nothing_else(ahead):
    loop = Loop(FakeRunner(runs_ahead=ahead))
    count = []

    def while_paused():
        count.append(len(loop.runner.steps))
        return [Ping(5)]

    paused = [Pause(True), submit(1), submit(2, range(8))]
    loop.run(paused, while_paused, [End(2)], while_paused, [Pause(False)])
    assert count == [0, 0]
    assert [event.token for event in loop.sent(Pong)] == [5, 5]
    assert loop.ends() == {1: "length", 2: "abort"}
    loop.check_answers()


def test_the_loop_waits_when_there_is_nothing_to_do_and_questions_are_nothing_to_do():
    loop = Loop()
    loop.run([Ping(3)], [InspectMemory(4)], [Inspect(5, 1)], [Pause(True)], [Pause(False)])
    assert loop.sent(Pong) == [Pong(3)]
    assert loop.sent(Inspected)[0] == Inspected(4, MEMORY)
    assert loop.outputs == []
    assert loop.waits == [None] * 6
    loop = Loop()
    loop.run([], [submit(1, max_new_tokens=2)], [], [])
    assert loop.waits == [None, None, 0.0, None, None]


@pytest.mark.parametrize("before", [[], [Pause(True)]])
def test_shutdown_ends_the_loop_at_once(before):
    loop = Loop()
    loop.run([*before, submit(1), Shutdown()])
    assert loop.runner.steps == []


@AHEAD
def test_what_cannot_be_taken_ends_with_the_reason(ahead):
    loop = Loop(FakeRunner(runs_ahead=ahead))
    broken = submit(3)
    broken.prompt_token_ids = 17
    loop.run([submit(1, range(300)), submit(2, []), broken, submit(4), submit(4)])
    reasons = {finished.request_id: finished.error for finished in loop.finished}
    assert "limit is 200" in reasons[1]
    assert "no tokens" in reasons[2]
    assert reasons[3].startswith("TypeError: ")
    assert "in use" in reasons[4]
    assert {finished.reason.value for finished in loop.finished} == {"error"}


def test_end_of_sequence_ends_an_answer_unless_it_is_ignored():
    alone = Loop()
    alone.run([submit(1, max_new_tokens=20)])
    eos = alone.answer(1)[3]
    loop = Loop(eos=[eos])
    loop.run([submit(1, max_new_tokens=20), submit(2, max_new_tokens=20, ignore_eos=True, seed=9)])
    assert loop.tokens(1) == alone.answer(1)[: alone.answer(1).index(eos) + 1]
    assert loop.ends() == {1: "stop", 2: "length"}


def test_requests_without_a_seed_get_their_own():
    def seeds(seed):
        loop = Loop(seed=seed)
        loop.run([submit(number) for number in range(5)] + [submit(5, seed=77)])
        return [loop.runner.device.truths[number].request.seed for number in range(6)]

    first, again, other = seeds(3), seeds(3), seeds(4)
    assert first == again
    assert len({*first[:5], *other[:5]}) == 10
    assert first[5] == other[5] == 77
    assert all(0 <= seed < 2**63 for seed in first)
    assert max(first) > 2**60


def test_log_probabilities_go_to_who_asked():
    loop = Loop()
    loop.run([submit(1, [1], logprobs=1), submit(2, [2])])
    for token in loop.all_tokens:
        expected = -float(token.token_id) if token.request_id == 1 else None
        assert (token.logprobs.logprob if token.logprobs else None) == expected


# -- faults; those of tests/suites/faults are not repeated here


def test_a_step_that_fails_at_its_launch_does_not_take_the_one_before_it_along():
    runner = FakeRunner(runs_ahead=True)
    runner.at_launch[1] = RuntimeError("lost")
    loop = Loop(runner)
    loop.run([submit(1, max_new_tokens=9)], *[[]] * 9, [submit(3)])
    assert loop.tokens(1) == loop.answer(1)[:1]
    assert loop.ends() == {1: "error", 3: "length"}
    loop.check_answers()


@AHEAD
def test_preemptions_of_a_step_that_had_no_memory_are_counted(ahead):
    def preempted(failing=()):
        runner = FakeRunner(num_blocks=12, runs_ahead=ahead)
        runner.at_launch = {step_id: StepTooLargeError("no room") for step_id in failing}
        loop = Loop(runner)
        loop.run([submit(number, [number] * 9, 12) for number in range(4)])
        loop.check_answers()
        assert set(failing) <= {step.step_id for step in runner.steps}
        records = [output.record for output in loop.outputs]
        in_steps = [step for step in runner.steps if step.preempted]
        told = sum(len(record.preempted) for record in records)
        assert told == sum(len(step.preempted) for step in in_steps)
        return in_steps[0].step_id

    preempted(failing=[preempted()])


def test_a_step_of_one_token_that_finds_no_memory_fails():
    runner = FakeRunner()
    runner.at_launch[0] = StepTooLargeError("1 token")
    loop = Loop(runner)
    loop.run([submit(1, [3])], [], [], [submit(2, [4])])
    assert loop.finished[0].error == "StepTooLargeError: 1 token"
    assert loop.ends() == {1: "error", 2: "length"}


@AHEAD
@pytest.mark.parametrize("when", ["at_launch", "later"])
def test_no_step_is_larger_than_the_memory_that_was_found_at_the_start(ahead, when):
    runner = FakeRunner(runs_ahead=ahead)
    runner.memory_limit = 5
    loop = Loop(runner, chunked_prefill=when == "later")
    loop.run([submit(1, range(23), 2)])
    assert max(sum(entry.num_tokens for entry in step.entries) for step in runner.steps) in (4, 5)
    loop.check_answers()


def broken(*anything):
    raise KeyError("bug")


@AHEAD
def test_a_scheduler_in_doubt_is_replaced(ahead):
    loop = Loop(FakeRunner(runs_ahead=ahead), max_batch_size=7)
    old = loop.worker.scheduler

    def break_it():
        old.schedule = broken
        return []

    loop.run([submit(1, max_new_tokens=9), submit(2, [9], 9)], [], break_it, [], [submit(3)])
    assert loop.runner.cleared == 1
    assert {end.error for end in loop.finished} == {"KeyError: 'bug'"}
    assert loop.ends() == {1: "error", 2: "error", 3: "length"}
    assert loop.worker.scheduler is not old
    assert loop.worker.scheduler.knobs.max_batch_size == 7
    ids = [output.record.step_id for output in loop.outputs]
    assert ids == sorted(set(ids))
    loop.check_answers()


def test_a_command_that_fails_makes_a_new_scheduler():
    loop = Loop()
    old = loop.worker.scheduler
    old.clear_cache = broken
    loop.run([submit(1, max_new_tokens=9)], [], [ClearCache(), submit(2)], [], [submit(3)])
    assert loop.worker.scheduler is not old
    assert {(end.request_id, end.error) for end in loop.finished} == {(1, "KeyError: 'bug'")}
    assert loop.ends() == {1: "error", 2: "length", 3: "length"}
    loop.check_answers()


def test_a_question_that_cannot_be_answered_disturbs_nobody(caplog):
    loop = Loop()
    loop.runner.free_memory = broken
    with caplog.at_level(logging.ERROR):
        loop.run([submit(1)], [InspectMemory(1), Inspect(2, 10**6), Ping(3)])
    assert caplog.records[0].getMessage().endswith("KeyError: 'bug'")
    assert loop.sent(Pong) == [Pong(3)]
    assert loop.ends() == {1: "length"}
    loop.check_answers()


@pytest.mark.parametrize("kind", [Pong, Ready])
def test_without_a_client_no_command_is_obeyed(kind):
    loop = Loop()
    loop.refuse = lambda event: BrokenPipeError() if isinstance(event, kind) else None
    with pytest.raises(BrokenPipeError):
        loop.run([Ping(1)])


def test_a_step_that_cannot_be_made_smaller_makes_a_new_scheduler():
    loop = Loop()
    loop.runner.at_launch[1] = StepTooLargeError("boom")
    loop.worker.scheduler.shrink = broken
    loop.run([submit(1, max_new_tokens=3), submit(2, [9], 9)], *[[]] * 9, [submit(3)])
    assert {end.error for end in loop.finished} == {"StepTooLargeError: boom"}
    assert loop.ends() == {1: "error", 2: "error", 3: "length"}
    loop.check_answers()


def test_without_a_client_the_loop_ends():
    loop = Loop()
    loop.refuse = lambda event: BrokenPipeError() if getattr(event, "tokens", None) else None
    with pytest.raises(BrokenPipeError):
        loop.run([submit(1)])


def test_the_same_failure_is_logged_with_its_traceback_once(caplog):
    runner = FakeRunner()
    runner.at_launch = {number: RuntimeError("boom") for number in range(0, 9, 2)}
    runner.at_launch[6] = RuntimeError("other")
    loop = Loop(runner)
    with caplog.at_level(logging.ERROR):
        loop.run(*[part for number in range(5) for part in ([submit(number)], [], [])])
    logged = [(record.getMessage(), record.exc_info is not None) for record in caplog.records]
    boom, again, other = ("a step failed: RuntimeError: boom", "a step failed: RuntimeError: boom (again)", "other")
    assert [message for message, _ in logged][:2] == [boom, again]
    assert all(traceback == (not message.endswith("(again)")) for message, traceback in logged)
    assert any(other in message for message, _ in logged)


# -- how steps are run


def test_steps_overlap_only_where_the_knobs_let_them():
    for knobs, ahead in (({}, True), ({"overlap": False}, False), ({"slow_motion": 1.001}, False)):
        loop = Loop(FakeRunner(runs_ahead=True), **knobs)
        loop.run([submit(1)])
        assert bool(loop.runner.launched) == ahead
        loop.check_answers()


def test_the_next_step_is_launched_before_the_last_one_is_published():
    loop = Loop(FakeRunner(runs_ahead=True))
    launched = []
    loop.refuse = lambda event: launched.append(len(loop.runner.steps)) if hasattr(event, "tokens") else None
    loop.run([submit(1, max_new_tokens=4)])
    assert launched[:4] == [2, 3, 4, 4]


@pytest.mark.parametrize(
    ("predicted_s", "slow_motion", "announced"), [(0.5, 1.0, []), (0.6, 1.0, [0.6]), (0.3, 2.0, [0.6])]
)
def test_a_long_step_is_announced(predicted_s, slow_motion, announced):
    runner = FakeRunner()
    runner.predicted_s = predicted_s
    loop = Loop(runner, slow_motion=slow_motion)
    loop.run([submit(1, max_new_tokens=1)])
    assert [event.predicted_s for event in loop.sent(StepStarted)] == announced
    assert {event.step_id for event in loop.sent(StepStarted)} <= {0}


def test_a_step_in_slow_motion_lasts_longer_and_is_announced_if_that_was_not_predicted():
    runner = FakeRunner()
    runner.predicted_s, runner.takes_s = 0.0, 6.0
    loop = Loop(runner, slow_motion=10.0)
    loop.run([submit(1, max_new_tokens=1)])
    (announced,) = loop.sent(StepStarted)
    assert announced.step_id == 0
    assert announced.predicted_s == pytest.approx(9 * 6.0, rel=0.01)
    record = loop.outputs[0].record
    assert record.end_ns - record.start_ns == pytest.approx(10 * 6e9, rel=0.01)


def test_slow_motion_stretches_what_is_simulated_and_not_the_work_of_this_machine():
    runner = FakeRunner()
    runner.simulated, runner.predicted_s, runner.takes_s = "a GPU", 0.01, 0.03
    loop = Loop(runner, slow_motion=10.0)
    loop.run([submit(1, max_new_tokens=1)])
    record = loop.outputs[0].record
    assert record.end_ns - record.start_ns == pytest.approx(10 * 0.01e9, rel=0.01)


def test_the_step_limit_follows_the_runner():
    runner = FakeRunner()
    runner.max_step_tokens = 5
    loop = Loop(runner)

    def faster():
        runner.max_step_tokens = 9
        return []

    loop.run([submit(1, range(30), 1)], [], faster)
    assert [sum(entry.num_tokens for entry in step.entries) for step in runner.steps][:3] == [4, 4, 8]


def test_commands_that_come_in_slow_motion_are_obeyed_after_the_step():
    loop = Loop(slow_motion=1000.0)
    loop.run([submit(1, max_new_tokens=50)], [Ping(1)], [End(1)])
    assert loop.ends() == {1: "abort"}
    assert loop.sent(Pong) == [Pong(1)]
    assert len(loop.tokens(1)) == 1, "a question does not end the wait"


def test_leaving_slow_motion_ends_the_wait():
    loop = Loop(slow_motion=1000.0)
    loop.run([submit(1, max_new_tokens=3)], [SetKnobs(Knobs())])
    assert loop.waits[1] > 0.0
    assert loop.ends() == {1: "length"}


@AHEAD
@pytest.mark.parametrize("seed", range(6))
def test_whatever_comes_everybody_is_told_one_end_and_the_right_tokens(ahead, seed):
    rng = random.Random(seed)
    runner = FakeRunner(num_blocks=rng.choice([12, 40]), runs_ahead=ahead)
    for step_id in range(400):
        kind = rng.random()
        if kind < 0.03:
            runner.at_launch[step_id] = rng.choice([RuntimeError("a"), StepTooLargeError("b"), StepTooLargeError("c")])
        elif kind < 0.05:
            runner.later[step_id] = RuntimeError("d")
        elif kind < 0.06:
            runner.nan[step_id] = 0
    script, count = [], 0
    for _ in range(300):
        part = []
        if rng.random() < 0.3:
            prompt = [rng.randrange(2)] * rng.choice([1, 4, 9]) + [rng.randrange(2)]
            part.append(submit(count, prompt, rng.choice([1, 2, 9])))
            count += 1
        if rng.random() < 0.05 and count:
            part.append(End(rng.randrange(count), rng.choice([FinishReason.ABORT, FinishReason.STOP])))
        if rng.random() < 0.03:
            part.append(rng.choice([ClearCache(), SetKnobs(Knobs(max_batch_size=rng.choice([1, 3, 9])))]))
        if rng.random() < 0.02:
            part += [Pause(True), Pause(False)]
        script.append(part)
    loop = Loop(runner)
    loop.run(*script)
    ends = loop.ends()
    assert set(ends) == set(range(count))
    for number in range(count):
        tokens = loop.tokens(number)
        if tokens:
            assert tokens == loop.answer(number)[: len(tokens)]
        if ends[number] == "length":
            assert tokens == loop.answer(number)
    assert loop.worker.scheduler.pool.num_available == loop.worker.scheduler.pool.num_usable
