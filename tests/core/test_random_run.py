"""Thousands of random operations; after every step blocks are conserved and everybody reads their own history."""

import random

import pytest

from roseplay.core.request import FinishReason
from tests.core.harness import Rig


def random_prompt(rng: random.Random) -> list[int]:
    """Few different heads and tails, so that prompts share, repeat and part in the middle of blocks."""
    head = [rng.randrange(3)] * rng.choice([0, 3, 4, 5, 8, 11])
    tail = [10 + rng.randrange(3) for _ in range(rng.choice([1, 1, 2, 4, 7]))]
    return head + tail


def random_knobs(rng: random.Random) -> dict[str, object]:
    return rng.choice(
        [
            {"max_batch_size": rng.choice([1, 2, 5, 32])},
            {"prefill_max_tokens": rng.choice([None, 1, 3, 4, 9])},
            {"prefill_max_batch_size": rng.choice([None, 1, 2])},
            {"step_max_tokens": rng.choice([None, 1, 4, 10])},
            {"chunked_prefill": rng.random() < 0.6},
            {"prefix_cache": rng.random() < 0.7},
            {"same_step_sharing": rng.random() < 0.7},
        ]
    )


@pytest.mark.parametrize("seed", range(12))
def test_random_operations_conserve_blocks_and_histories(seed):
    rng = random.Random(seed)
    rig = Rig(num_blocks=rng.choice([9, 14, 40]), max_saved_logits=rng.choice([1, 3, 100]))
    for _ in range(1500):
        action = rng.random()
        if action < 0.25 and len(rig.scheduler.requests) < 40:
            rig.add(random_prompt(rng), rng.choice([1, 2, 5, 9]), seed=rng.randrange(2))
        elif action < 0.29 and rig.scheduler.requests:
            rig.scheduler.end(
                rng.choice(list(rig.scheduler.requests)), rng.choice([FinishReason.ABORT, FinishReason.STOP])
            )
        elif action < 0.33:
            rig.scheduler.set_knobs(rig.scheduler.knobs.changed(random_knobs(rng)))
        elif action < 0.34:
            rig.scheduler.clear_cache()
        elif action < 0.36:
            rig.model.fail_on_step = rig.scheduler.next_step_id
        else:
            rig.step()
    rig.run(20_000)
    assert rig.scheduler.pool.num_available == rig.scheduler.pool.num_usable
    assert len(rig.model.saved) <= rig.scheduler.cache._max_saved_logits + 64
    rig.check_outputs()
