"""Budgets, order and admission: which requests are in a step, and with how many tokens."""

import pytest

from roseplay.config import SamplingParams
from roseplay.core.budget import RequestTooLargeError
from roseplay.core.request import FinishReason
from roseplay.core.step import StepResult
from tests.core.harness import BLOCK_SIZE, Rig


def computed(step):
    return {entry.request.request_id: entry.num_tokens for entry in step.entries if entry.num_tokens}


def unique(rig, *lengths, **kwargs):
    return [rig.add([1000 * (index + 1)] * length, **kwargs) for index, length in enumerate(lengths)]


def test_prompts_are_computed_first_come_first_served_within_the_budget():
    rig = Rig(prefill_max_tokens=12)
    unique(rig, 6, 4, 9, 3)
    assert computed(rig.step()) == {0: 6, 1: 4, 2: 2}
    assert computed(rig.step()) == {0: 1, 1: 1, 2: 7, 3: 3}
    rig.run()
    rig.check_outputs()


@pytest.mark.parametrize("budget", [1, 3, 4, 5, 8, 11])
def test_the_budget_is_never_exceeded_by_one(budget):
    rig = Rig(prefill_max_tokens=budget)
    unique(rig, 5, 17, 1, 8, 30)
    rig.run()
    assert max(step.prompt_tokens for step in rig.steps) <= budget
    rig.check_outputs()


def test_a_part_of_a_prompt_ends_on_a_block_boundary_when_a_whole_block_fits():
    rig = Rig(prefill_max_tokens=2 * BLOCK_SIZE + 3)
    unique(rig, 40)
    assert computed(rig.step()) == {0: 2 * BLOCK_SIZE}
    rig = Rig(prefill_max_tokens=BLOCK_SIZE - 1)
    unique(rig, 40)
    assert computed(rig.step()) == {0: BLOCK_SIZE - 1}


def test_a_part_that_starts_inside_a_block_ends_on_a_block_boundary_too():
    rig = Rig(prefill_max_tokens=2)
    unique(rig, 40)
    rig.step()
    rig.scheduler.set_knobs(rig.scheduler.knobs.changed({"prefill_max_tokens": BLOCK_SIZE}))
    assert computed(rig.step()) == {0: BLOCK_SIZE - 2}


@pytest.mark.parametrize("chunked", [True, False])
def test_a_prompt_as_long_as_the_budget_goes_whole(chunked):
    rig = Rig(prefill_max_tokens=BLOCK_SIZE + 2, chunked_prefill=chunked)
    unique(rig, BLOCK_SIZE + 2)
    assert computed(rig.step()) == {0: BLOCK_SIZE + 2}


def test_unchunked_prompts_over_the_budget_go_alone_and_decodes_still_run():
    rig = Rig(chunked_prefill=False, prefill_max_tokens=8)
    unique(rig, 5, 20, 3, 2, max_new_tokens=10)
    assert computed(rig.step()) == {0: 5}
    assert computed(rig.step()) == {0: 1, 1: 20}
    assert computed(rig.step()) == {0: 1, 1: 1, 2: 3, 3: 2}
    rig.run()
    rig.check_outputs()


def test_prefill_max_batch_size_bounds_the_prompts_of_a_step():
    rig = Rig(prefill_max_batch_size=2)
    unique(rig, 3, 3, 3, 3, 3)
    assert computed(rig.step()) == {0: 3, 1: 3}
    assert computed(rig.step()) == {0: 1, 1: 1, 2: 3, 3: 3}


def test_step_max_tokens_counts_decodes_first():
    rig = Rig(step_max_tokens=6)
    unique(rig, 4, 2, 9, max_new_tokens=10)
    assert computed(rig.step()) == {0: 4, 1: 2}
    assert computed(rig.step()) == {0: 1, 1: 1, 2: 4}
    rig.run()
    rig.check_outputs()


def test_more_decodes_than_step_max_tokens_take_turns():
    rig = Rig()
    requests = unique(rig, 1, 1, 1, 1, max_new_tokens=6)
    rig.step()
    rig.scheduler.set_knobs(rig.scheduler.knobs.changed({"step_max_tokens": 2}))
    while rig.scheduler.has_work:
        assert rig.step().decode_tokens == 2
        outputs = [request.num_output_tokens for request in requests]
        assert max(outputs) - min(outputs) <= 1
    rig.check_outputs()


def test_running_requests_never_exceed_max_batch_size_and_lowering_it_drains():
    rig = Rig(max_batch_size=4)
    unique(rig, *[2] * 10, max_new_tokens=8)
    rig.step()
    assert len(rig.scheduler.running) == 4
    rig.scheduler.set_knobs(rig.scheduler.knobs.changed({"max_batch_size": 2}))
    while rig.scheduler.has_work:
        before = len(rig.scheduler.running)
        step = rig.step()
        assert not step.preempted
        assert not step.admitted or before < 2
    rig.check_outputs()


def test_decodes_go_on_while_a_long_prompt_is_computed():
    rig = Rig(prefill_max_tokens=4)
    first = rig.add([5] * 3, 30)
    rig.step()
    rig.add([6] * 40)
    before = first.num_output_tokens
    for _ in range(10):
        rig.step()
    assert first.num_output_tokens == before + 10


def test_end_of_sequence_and_stop_ids_end_a_request_unless_ignored():
    rig = Rig()
    every = frozenset(range(1, 50))
    assert rig.add([1], eos_token_ids=every).eos_token_ids == every
    stops = rig.add([2], sampling=SamplingParams(stop_token_ids=tuple(every), ignore_eos=True))
    ignores = rig.add([3], sampling=SamplingParams(max_new_tokens=3, ignore_eos=True), eos_token_ids=every)
    rig.run()
    reasons = [request.finish_reason for request in rig.submitted.values()]
    assert reasons == [FinishReason.STOP, FinishReason.STOP, FinishReason.LENGTH]
    assert stops.num_output_tokens == 1
    assert ignores.num_output_tokens == 3


def test_requests_that_can_never_fit_are_refused_with_the_numbers():
    rig = Rig(num_blocks=6, max_model_len=100)
    with pytest.raises(
        RequestTooLargeError, match="20 prompt tokens . 4 new tokens need 6 KV blocks .* the pool has 5"
    ):
        rig.add(range(20), 4)
    rig.submitted.clear()
    with pytest.raises(RequestTooLargeError, match="limit is 100"):
        rig.add(range(98), 4)
    rig.add(range(16), 4)
    rig.run()
    rig.check_outputs()


def test_an_empty_prompt_and_a_repeated_id_are_refused():
    rig = Rig()
    with pytest.raises(ValueError, match="no tokens"):
        rig.add([])
    request = rig.add([1])
    with pytest.raises(ValueError, match="in use"):
        rig.scheduler.add(request)


def test_there_is_a_step_without_a_row_when_everything_is_cached():
    rig = Rig()
    rig.add(range(9), 1)
    rig.run()
    rig.add(range(9), 1)
    step = rig.step()
    assert computed(step) == {}
    assert [entry.samples for entry in step.entries] == [True]
    rig.check_outputs()


@pytest.mark.parametrize("when", ["waiting", "prefilling", "decoding"])
def test_an_abort_frees_everything_whenever_it_comes(when):
    rig = Rig(prefill_max_tokens=8)
    request = rig.add(range(30), 10)
    for _ in range({"waiting": 0, "prefilling": 2, "decoding": 6}[when]):
        rig.step()
    rig.scheduler.end(request.request_id, FinishReason.ABORT)
    assert request.finish_reason == FinishReason.ABORT
    assert not rig.scheduler.has_work
    assert rig.scheduler.pool.num_available == rig.scheduler.pool.num_usable
    assert rig.scheduler.end(request.request_id, FinishReason.ABORT) is None


def test_a_failed_step_ends_who_computed_in_it_and_requeues_who_leaned_on_it():
    rig = Rig()
    decoding = rig.add([9] * 5, 10)
    rig.step()
    leader, follower = rig.add(range(10)), rig.add(range(10))
    rig.model.fail_on_step = rig.scheduler.next_step_id
    rig.step()
    assert [decoding.finish_reason, leader.finish_reason] == [FinishReason.ERROR] * 2
    assert follower.finish_reason is None
    assert rig.run() == 10  # no block of the failed step could be found
    assert follower.finish_reason == FinishReason.LENGTH
    rig.check_outputs()


@pytest.mark.parametrize("chunked", [True, False])
def test_newcomers_do_not_take_the_budget_that_an_older_prompt_waits_for(chunked):
    """Cached prompts cost no prompt tokens, but their decodes could fill the steps forever."""
    rig = Rig(step_max_tokens=4, max_batch_size=6, chunked_prefill=chunked)
    rig.add([7] * BLOCK_SIZE, 1)
    rig.run()
    rig.add([1] * BLOCK_SIZE, 1)
    rig.run()
    decoding = [rig.add([7] * BLOCK_SIZE, 20 + number) for number in range(4)]
    rig.step()
    waiting = rig.add([1] * BLOCK_SIZE + [2] * 3, 1)  # begins with a cached block, so it is admitted at once
    for _ in range(60):
        while len(rig.scheduler.waiting) < 3:
            rig.add([7] * BLOCK_SIZE, 9)
        rig.step()
    assert all(request.finish_reason for request in decoding)
    assert waiting.finish_reason is FinishReason.LENGTH


def test_a_result_that_is_not_the_steps_is_refused_with_the_numbers():
    rig = Rig()
    rig.add([1])
    with pytest.raises(ValueError, match="the step has 1 entries, its result 0"):
        rig.scheduler.update(rig.scheduler.schedule(), StepResult([], []))


def test_a_step_says_what_kept_requests_waiting():
    rig = Rig(prefill_max_tokens=12)
    unique(rig, 6, 4, 9)
    assert rig.step().held_by == "prefill"  # the last prompt was cut
    assert rig.step().held_by is None

    rig = Rig(max_batch_size=2)
    unique(rig, 6, 4, 9)
    assert rig.step().held_by == "batch"
    rig.run()
    assert rig.steps[-1].held_by is None

    rig = Rig(num_blocks=9)
    unique(rig, 5 * BLOCK_SIZE, 5 * BLOCK_SIZE)
    assert rig.step().held_by == "blocks"


def test_a_prompt_that_the_budget_leaves_for_later_is_held_by_it_even_if_others_are_admitted():
    rig = Rig(prefill_max_tokens=2 * BLOCK_SIZE)
    rig.add([7] * (3 * BLOCK_SIZE))
    assert rig.step().held_by == "prefill"
    assert rig.step().held_by is None
