"""Out of blocks: which request is preempted, and that this costs time but changes no token."""

from __future__ import annotations

import pytest

from roseplay.core.request import Request
from tests.core.harness import BLOCK_SIZE, Rig


def pressed(num_blocks: int = 9, **knobs: object) -> tuple[Rig, list[Request]]:
    """A pool that three answers outgrow."""
    rig = Rig(num_blocks=num_blocks, **knobs)
    return rig, [rig.add([number] * BLOCK_SIZE, 16) for number in range(3)]


def test_the_newest_gives_way_and_the_oldest_never():
    rig, requests = pressed()
    rig.run()
    assert requests[0].num_preemptions == 0 < requests[2].num_preemptions
    for step in rig.steps:
        assert not {entry.request.request_id for entry in step.entries} & set(step.preempted)


def test_resuming_is_cheap_because_full_blocks_stay_cached():
    rig = Rig(num_blocks=10)
    first, second = rig.add([1] * 8, 16), rig.add([2] * 8, 16)
    assert rig.run() < 16 + second.num_tokens
    assert (first.num_preemptions, second.num_preemptions) == (0, 1)


def test_a_lone_request_may_use_the_whole_pool():
    rig = Rig(num_blocks=6)
    for _ in range(2):
        (request,) = rig.served(range(7), max_new_tokens=13)  # 20 tokens, 5 blocks
        assert request.num_preemptions == 0


def test_admission_never_preempts():
    rig = Rig(num_blocks=9)
    rig.add([1] * 20, 4)
    rig.step()
    rig.add([2] * 12, 4)
    step = rig.step()
    assert (step.admitted, step.preempted) == ([], [])


@pytest.mark.parametrize("spare", [0, 1])
def test_a_prompt_is_admitted_when_exactly_its_own_blocks_are_there(spare: int):
    """Blocks shared with a running request count once, and one block is reserved for each running request."""
    head = [1] * (2 * BLOCK_SIZE)
    rig = Rig(num_blocks=1 + 3 + 2 + spare)  # three for the first, and two of the three that the second one needs
    rig.add([*head, 5], 3)
    rig.step()
    second = rig.add([*head, 6, 7, 8, 9, 9], 1)
    assert rig.step().admitted == [second.request_id] * spare


@pytest.mark.parametrize(
    ("length", "chunked", "computed"), [(16, True, 16), (19, True, 16), (16, False, 16), (19, False, 12)]
)
def test_a_prompt_whose_blocks_were_taken_goes_as_far_as_the_rest_reaches(length: int, chunked: bool, computed: int):
    rig = Rig(num_blocks=9, prefill_max_tokens=1)
    rig.add([1], 20)
    rig.step()
    prompt = rig.add(range(20, 20 + length), 2)
    for _ in range(12):
        rig.step()
    assert (prompt.num_computed_tokens, rig.scheduler.pool.num_available) == (12, 1)
    rig.set_knobs(chunked_prefill=chunked, prefill_max_tokens=None)
    rig.step()
    assert prompt.num_computed_tokens == computed


def test_all_that_is_computed_again_is_counted_also_after_a_second_preemption():
    """The last request is preempted again while it computes its prompt, when it has computed less than the first time."""
    rig = Rig(num_blocks=14, prefix_cache=False, same_step_sharing=False)
    requests = [rig.add([number] * (3 * BLOCK_SIZE), 30) for number in range(3)]
    computed = []  # tokens of the last request at each preemption
    while rig.scheduler.has_work:
        before = requests[2].num_computed_tokens
        if requests[2].request_id in rig.step().preempted:
            computed.append(before)
            rig.set_knobs(prefill_max_tokens=1)
    assert computed[1] < computed[0]
    all_computed = sum(step.prompt_tokens + step.decode_tokens for step in rig.steps)
    once = sum(request.num_tokens - 1 for request in requests)
    assert sum(step.recomputed_tokens for step in rig.steps) == all_computed - once > 0
