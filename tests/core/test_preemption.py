"""Out of blocks: which request is preempted, and that this costs time but changes no token."""

import pytest

from roseplay.config import Knobs
from roseplay.core.request import RequestStatus
from tests.core.harness import BLOCK_SIZE, Rig


@pytest.mark.parametrize("knobs", [{}, {"prefix_cache": False}, {"prefill_max_tokens": 3}, {"chunked_prefill": False}])
@pytest.mark.parametrize("num_blocks", [7, 9, 12])
def test_preempted_requests_resume_with_the_same_tokens(knobs, num_blocks):
    rig = Rig(num_blocks=num_blocks, **knobs)
    for number in range(5):
        rig.add([number] * (BLOCK_SIZE - 1 + number % 3), 12)
    rig.run()
    assert sum(request.num_preemptions for request in rig.submitted.values()) > 0
    rig.check_outputs()


def test_the_newest_gives_way_and_the_oldest_never():
    rig = Rig(num_blocks=9)
    requests = [rig.add([number] * BLOCK_SIZE, 16) for number in range(3)]
    while rig.scheduler.has_work:
        step = rig.step()
        assert requests[0].request_id not in step.preempted
    assert requests[0].num_preemptions == 0
    assert requests[2].num_preemptions > 0
    rig.check_outputs()


def test_a_victim_is_never_one_that_is_already_in_the_step():
    rig = Rig(num_blocks=9)
    for number in range(3):
        rig.add([number] * BLOCK_SIZE, 16)
    while rig.scheduler.has_work:
        step = rig.step()
        assert not {entry.request.request_id for entry in step.entries} & set(step.preempted)


def test_resuming_is_cheap_because_full_blocks_stay_cached():
    rig = Rig(num_blocks=10)
    first = rig.add([1] * 8, 16)
    second = rig.add([2] * 8, 16)
    rig.run()
    assert second.num_preemptions == 1
    assert first.num_preemptions == 0
    assert rig.model.computed_prompt_tokens < 16 + second.num_tokens
    rig.check_outputs()


def test_preempted_requests_go_before_those_who_arrived_later():
    rig = Rig(num_blocks=9, max_batch_size=3)
    requests = [rig.add([number] * BLOCK_SIZE, 16) for number in range(3)]
    late = rig.add([7] * BLOCK_SIZE, 4)
    while requests[2].num_preemptions == 0:
        rig.step()
    assert requests[2].status is RequestStatus.WAITING
    assert [request.request_id for request in rig.scheduler.waiting] == [2, late.request_id]


def test_a_lone_request_may_use_the_whole_pool():
    rig = Rig(num_blocks=6)
    request = rig.add(range(7), 13)  # 20 tokens, 5 blocks
    rig.run()
    assert request.num_preemptions == 0
    again = rig.add(range(7), 13)
    rig.run()
    assert again.num_preemptions == 0
    rig.check_outputs()


def test_unfinished_prompts_do_not_wait_for_each_other_for_ever():
    rig = Rig(num_blocks=12, prefill_max_tokens=4)
    for number in range(4):
        rig.add([number] * 24, 12)
    rig.run()
    rig.check_outputs()


def test_admission_never_preempts():
    rig = Rig(num_blocks=9)
    rig.add([1] * 20, 4)
    rig.step()
    rig.add([2] * 12, 4)
    step = rig.step()
    assert not step.admitted
    assert not step.preempted
    rig.run()
    rig.check_outputs()


@pytest.mark.parametrize("spare", [0, 1])
def test_a_prompt_is_admitted_when_exactly_its_own_blocks_are_there(spare):
    """Blocks shared with a running request count once, and one block is reserved for each running request."""
    head = [1] * (2 * BLOCK_SIZE)
    rig = Rig(num_blocks=1 + 3 + 2 + spare)  # three for the first, and two of the three that the second one needs
    rig.add([*head, 5], 3)
    rig.step()
    second = rig.add([*head, 6, 7, 8, 9, 9], 1)
    assert rig.step().admitted == [second.request_id] * spare
    rig.run()
    rig.check_outputs()


@pytest.mark.parametrize(
    ("length", "chunked", "computed"), [(16, True, 16), (19, True, 16), (16, False, 16), (19, False, 12)]
)
def test_a_prompt_whose_blocks_were_taken_goes_as_far_as_the_rest_reaches(length, chunked, computed):
    rig = Rig(num_blocks=9, prefill_max_tokens=1)
    rig.add([1], 20)
    rig.step()
    prompt = rig.add(range(20, 20 + length), 2)
    for _ in range(12):
        rig.step()
    assert (prompt.num_computed_tokens, rig.scheduler.pool.num_available) == (12, 1)
    rig.scheduler.set_knobs(Knobs(chunked_prefill=chunked))
    rig.step()
    assert prompt.num_computed_tokens == computed
    rig.run()
    rig.check_outputs()


def test_all_that_is_computed_again_is_counted_also_after_a_second_preemption():
    """The last request is preempted again while it computes its prompt, when it has computed less than the first time."""
    rig = Rig(num_blocks=14, prefix_cache=False, same_step_sharing=False)
    for number in range(3):
        rig.add([number] * (3 * BLOCK_SIZE), 30)
    computed = []  # tokens of the last request at each preemption
    last = rig.submitted[2]
    while rig.scheduler.has_work:
        before = last.num_computed_tokens
        if last.request_id in rig.step().preempted:
            computed.append(before)
            rig.scheduler.set_knobs(rig.scheduler.knobs.changed({"prefill_max_tokens": 1}))
    assert len(computed) > 1 and computed[1] < computed[0]
    once = sum(request.num_tokens - 1 for request in rig.submitted.values())
    assert sum(step.recomputed_tokens for step in rig.steps) == rig.model.computed_tokens - once > 0
    rig.check_outputs()
