"""Not enough memory for a step: it is undone, and the next steps are smaller."""

import itertools
from typing import Any

import pytest

from roseplay.core.memory_limit import MemoryLimit
from roseplay.core.step import Step
from tests.core.harness import BLOCK_SIZE, Rig, check_blocks


class TightRig(Rig):
    """A device that has memory for ``most`` tokens per step."""

    def __init__(self, most: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.most = most
        self.undone: list[Step] = []

    def step(self) -> Step:
        step = self.scheduler.schedule()
        tokens = sum(entry.num_tokens for entry in step.entries)
        if tokens > self.most:
            self.undone.append(step)
            if not self.scheduler.shrink(step):
                self.scheduler.fail(step)
        else:
            self.steps.append(step)
            self.scheduler.update(step, self.model.execute(step))
        check_blocks(self.scheduler)
        return step


@pytest.mark.parametrize("most", [1, 3, 8, 20])
def test_everybody_is_served_by_smaller_steps(most: int):
    rig = TightRig(most)
    for number in range(6):
        rig.add([number % 3] * (5 + 3 * number), 6)
    rig.run()
    assert rig.undone
    assert max(sum(entry.num_tokens for entry in step.entries) for step in rig.steps) <= most
    assert {request.finish_reason for request in rig.submitted.values()} == {"length"}
    rig.check_outputs()


def test_the_limit_is_halved_until_a_step_fits():
    rig = TightRig(10)
    rig.add(range(40), 2)
    rig.run()
    assert [sum(entry.num_tokens for entry in step.entries) for step in rig.undone] == [40, 20]
    assert rig.scheduler.token_limit == 10


@pytest.mark.parametrize("start", [None, 32])
def test_the_limit_comes_back_once_there_is_memory_again(start: int | None):
    rig = TightRig(5)
    rig.scheduler.token_limit = start
    rig.add(range(40), 1)
    rig.run()
    for number in range(1, 120):
        rig.add(range(100 * number, 100 * number + 40), 1)
    rig.most = 10**6
    limits = []
    while rig.scheduler.has_work:
        limits.append(rig.scheduler.token_limit)
        rig.step()
    assert rig.scheduler.token_limit == start
    raised = [4, 8, 16, 32, 64, None] if start is None else [4, 8, 16, 32]
    assert [limit for limit, _ in itertools.groupby(limits)] == raised
    rig.check_outputs()


def test_a_limit_that_is_right_is_tried_more_and_more_rarely():
    limit, undone = MemoryLimit(None), []
    limit.failed(100)
    for step in range(2000):
        size = limit.most
        assert size is not None
        if size > 50:
            undone.append(step)
            limit.failed(size)
        else:
            limit.passed(size)
    assert len(undone) < 8
    gaps = [b - a for a, b in itertools.pairwise(undone)]
    assert gaps == sorted(gaps)


def test_small_steps_say_nothing_about_the_limit():
    limit = MemoryLimit(64)
    limit.failed(64)
    for _ in range(1000):
        limit.passed(16)
    assert limit.most == 32


def test_decodes_keep_their_blocks():
    rig = TightRig(100)
    requests = [rig.add([number] * BLOCK_SIZE, 9) for number in range(4)]
    rig.step()
    rig.most = 2
    computed = rig.model.computed_prompt_tokens
    rig.run()
    assert rig.model.computed_prompt_tokens == computed
    assert not any(request.num_preemptions for request in requests)
    rig.check_outputs()


def test_a_prompt_that_should_go_whole_goes_in_parts_when_it_must():
    rig = TightRig(10, chunked_prefill=False)
    rig.add(range(30), 3)
    rig.add([1] * 7, 3)
    rig.run()
    assert {request.finish_reason for request in rig.submitted.values()} == {"length"}
    rig.check_outputs()


def test_what_cannot_be_smaller_fails():
    rig = TightRig(0)
    request = rig.add([1] * 7, 3)
    rig.run()
    assert request.finish_reason == "error"


def test_steps_of_decodes_raise_the_limit_again_too():
    rig = TightRig(100)
    for number in range(8):
        rig.add([number], 60)
    rig.step()
    rig.most = 4
    rig.step()
    assert rig.scheduler.token_limit == 4
    rig.most = 100
    for _ in range(40):
        rig.step()
    assert rig.scheduler.token_limit is None or rig.scheduler.token_limit >= 8
    rig.run()
    rig.check_outputs()


def test_how_long_a_lower_limit_holds():
    """16 steps at first, twice as many after each raised limit that failed, and at most 1,024."""
    limit, waits = MemoryLimit(None), []
    limit.failed(100)
    for _ in range(9):
        steps = 0
        while limit.most == 50:
            limit.passed(50)
            steps += 1
        waits.append(steps)
        limit.failed(100)
    assert waits == [16, 32, 64, 128, 256, 512, 1024, 1024, 1024]


def test_a_limit_that_was_raised_is_forgotten_at_the_largest_size_that_failed():
    limit, seen = MemoryLimit(None), []
    limit.failed(64)
    limit.failed(32)
    for _ in range(3):
        seen.append(limit.most)
        for _ in range(16):
            limit.passed(limit.most or 1)
    assert seen == [16, 32, 64]
    assert limit.most is None


def test_a_decode_whose_block_was_to_be_copied_starts_again():
    rig = TightRig(100)
    rig.add([1] * 6, 9)
    rig.add([1] * 6, 9)
    rig.step()
    rig.most = 0  # the first decode writes into a copy of the block that both hold
    step = rig.step()
    assert len(step.copied) == 1
    (copied,) = step.copied
    assert rig.submitted[copied] in rig.scheduler.waiting
    assert rig.submitted[1 - copied] in rig.scheduler.running
    rig.most = 100
    rig.run()
    rig.check_outputs()
