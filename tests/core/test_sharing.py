"""What is computed only once: exact repeats, common prefixes, and requests of one step."""

from __future__ import annotations

import pytest

from roseplay.core.cache_miss import Miss, MissReason
from tests.core.checker import BROKEN_LATER
from tests.core.harness import BLOCK_SIZE, Rig

LENGTHS = [1, BLOCK_SIZE - 1, BLOCK_SIZE, BLOCK_SIZE + 1, 3 * BLOCK_SIZE - 1, 3 * BLOCK_SIZE, 3 * BLOCK_SIZE + 1, 37]


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("budget", [None, 3, 7])
def test_equal_prompts_are_computed_once_in_a_burst_and_never_again(length: int, budget: int | None):
    rig = Rig(prefill_max_tokens=budget)
    for _ in range(6):
        rig.add(range(100, 100 + length))
    assert rig.run() == length
    (repeat,) = rig.served(range(100, 100 + length))
    assert repeat.num_cached_tokens == length


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("budget", [None, 3])
def test_who_asks_for_log_probabilities_of_the_prompt_computes_it_for_all(length: int, budget: int | None):
    prompt = range(100, 100 + length)
    rig = Rig(prefill_max_tokens=budget)
    rig.served(prompt)
    again = [rig.add(prompt, prompt_logprobs=0) for _ in range(2)]
    per_request = length if length > 1 else 0  # a prompt of one token has none, and it is cached
    # The last token predicts none of the others: if a chunk begins with it, it is taken from the cache.
    assert 2 * per_request - 2 <= rig.run() <= 2 * per_request
    if length > 1:
        assert again[0].miss == again[1].miss == Miss(MissReason.LOGPROBS, 0, 0)
    rig.add(prompt)
    assert rig.run() == 0


def test_a_request_beside_one_that_asks_for_log_probabilities_shares_its_blocks():
    prompt = range(100, 100 + 3 * BLOCK_SIZE)
    rig = Rig()
    rig.add(prompt, prompt_logprobs=0)
    rig.add(prompt)
    assert rig.run() == len(prompt)


@pytest.mark.parametrize("budget", [None, 5 * BLOCK_SIZE])
def test_a_common_head_is_computed_once(budget: int | None):
    head = list(range(1000, 1000 + 16 * BLOCK_SIZE))
    rig = Rig(prefill_max_tokens=budget)
    for number in range(20):
        rig.add([*head, number, number + 1])
    assert rig.run() == len(head) + 20 * 2


@pytest.mark.parametrize("lengths", [(4, 7), (7, 4), (8, 11), (15, 12)])
def test_a_prompt_that_another_one_of_its_step_begins_with(lengths: tuple[int, int]):
    """Its last token is computed again for the logits, which no other request has, but not into a future block."""
    rig = Rig()
    for length in lengths:
        rig.add(range(100, 100 + length))
    assert rig.run() <= max(lengths) + BLOCK_SIZE


def test_first_tokens_are_drawn_in_request_order():
    rig = Rig()
    for number in (0, 0, 1, 0, 2):
        rig.add([number] * 9)
    step = rig.step()
    assert [entry.request.request_id for entry in step.entries if entry.samples] == [0, 1, 2, 3, 4]


def test_without_same_step_sharing_equal_prompts_are_computed_separately():
    rig = Rig(same_step_sharing=False)
    for _ in range(3):
        rig.add(range(10))
    assert rig.step().prompt_tokens == 30
    rig.add(range(10))
    assert rig.step().prompt_tokens == 0  # the prefix cache of earlier steps has its own switch


@pytest.mark.parametrize("budget", [None, 6])
def test_without_prefix_cache_nothing_is_found_across_steps(budget: int | None):
    rig = Rig(prefix_cache=False, prefill_max_tokens=budget)
    for _ in range(3):
        rig.add(range(10))
    assert rig.run() == 10  # sharing within a step has its own switch
    assert rig.scheduler.pool.num_cached == 0
    rig.add(range(10))
    assert rig.run() == 10


def test_switching_the_prefix_cache_off_forgets_and_existing_shares_live_on():
    rig = Rig()
    first, second = rig.add(range(10), 20), rig.add(range(10), 20)
    rig.step()
    rig.set_knobs(prefix_cache=False)
    rig.step()
    assert rig.scheduler.pool.num_shared > 0
    assert first.block_table[:2] == second.block_table[:2]
    rig.run()
    rig.set_knobs(prefix_cache=True)
    for computed in (10, 0):
        rig.add(range(10))
        assert rig.run() == computed


def test_two_who_share_a_tail_each_write_their_own_copy():
    rig = Rig()
    first, second = rig.add(range(6)), rig.add(range(6))
    rig.step()
    assert first.block_table == second.block_table
    assert len(rig.step().copies) == 1  # the last holder writes in place
    assert first.block_table[-1] != second.block_table[-1]


def test_a_repeat_does_not_spoil_what_its_forerunner_made_of_the_tail_block():
    rig = Rig()
    (first,) = rig.served(range(6), max_new_tokens=12)  # fills the prompt's tail block with its answer
    rig.served(range(6), max_new_tokens=12, seed=1)  # draws another answer
    long = rig.add(first.token_ids[:17])
    assert rig.run() < long.num_prompt_tokens  # the blocks of the first one can still be found, with its content


def test_without_a_block_for_a_copy_the_sole_holder_writes_in_place():
    rig = Rig(num_blocks=5)
    (first,) = rig.served(range(6), max_new_tokens=3)  # fills its tail block
    rig.add([9] * 3, 8)
    rig.step()
    repeat = rig.add(range(6), 3, seed=1)
    rig.step()
    step = rig.step()
    assert rig.scheduler.pool.num_available == 0
    assert not step.copies
    assert repeat.token_ids[6:8] != first.token_ids[6:8]
    rig.run()
    assert rig.served(first.token_ids)[0].num_cached_tokens == BLOCK_SIZE, "the old content is forgotten"


def test_a_lone_repeat_in_a_full_pool_takes_the_cached_tail_rather_than_wait():
    rig = Rig(num_blocks=6)
    for seed in (1, 2, 3):
        rig.served(range(6), max_new_tokens=14, seed=seed)  # uses all five blocks


def test_a_tail_that_ends_behind_the_write_is_not_spoiled():
    rig = Rig()
    rig.served(range(5), max_new_tokens=1)
    rig.served(range(7), max_new_tokens=1)  # finds the full block and has its own tail
    rig.add(range(5), 8, seed=1)
    rig.add(range(7), 8, seed=2)
    assert rig.run() == 0


def test_after_the_cache_was_cleared_a_running_request_lists_its_blocks_anew():
    rig = Rig()
    request = rig.add(range(10), 20)
    rig.step()
    rig.clear_cache()
    rig.run()
    (again,) = rig.served(request.token_ids[:16])
    assert again.num_cached_tokens >= 12


@pytest.mark.parametrize("length", [6, 8])  # a partial and a full last block
def test_with_the_logits_gone_only_the_last_prompt_token_is_computed_again(length: int):
    rig = Rig(max_saved_logits=1)
    rig.served(range(length))
    rig.served([77] * 5)  # takes the only place for saved logits
    repeats = [rig.add(range(length)) for _ in range(2)]
    step = rig.step()
    assert (step.prompt_tokens, step.copies) == (1, [])  # which needs no copy of its block
    assert [request.num_cached_tokens for request in repeats] == [length - 1, length]


def test_second_turn_finds_the_first_turns_blocks_with_its_answer():
    rig = Rig()
    (first,) = rig.served(range(10), max_new_tokens=14)
    (second,) = rig.served([*first.token_ids, 7, 8, 9])
    assert second.num_cached_tokens == (first.num_tokens - 1) // BLOCK_SIZE * BLOCK_SIZE


def test_a_prompt_shares_a_block_that_a_decode_of_its_step_fills():
    rig = Rig()
    first = rig.add(range(BLOCK_SIZE - 1), 9)
    rig.step()
    rig.add([*first.token_ids, 7])
    step = rig.step()
    assert (step.decode_tokens, step.prompt_tokens, step.shared_tokens) == (1, 1, BLOCK_SIZE)


def test_an_aborted_leader_changes_nothing_for_those_who_share():
    rig = Rig(prefill_max_tokens=8)
    leader, *_ = [rig.add(range(30)) for _ in range(4)]
    rig.step()
    rig.end_request(leader)
    rig.run()
    assert sum(step.prompt_tokens for step in rig.steps) == 30


def test_hits_are_counted_once_per_request():
    rig = Rig(num_blocks=12)
    rig.served(range(12), range(12), max_new_tokens=20)
    assert any(request.num_preemptions for request in rig.requests)
    assert sum(request.num_cached_tokens + request.num_shared_tokens for request in rig.requests) == 12
    assert sum(step.cached_tokens + step.shared_tokens for step in rig.steps) == 12


def test_saved_logits_that_were_used_last_are_kept():
    rig = Rig(max_saved_logits=2)
    first, second, third = [1] * 5, [2] * 5, [3] * 5
    for prompt in (first, second, first, third):  # the first prompt is repeated before the third takes a place
        rig.served(prompt)
    for prompt, computed in ((first, 0), (second, 1)):
        rig.add(prompt)
        assert rig.run() == computed


@pytest.mark.parametrize("length", [BLOCK_SIZE - 1, BLOCK_SIZE, BLOCK_SIZE + 1])
def test_the_end_of_a_prompt_whose_step_failed_is_not_found(length: int):
    rig = Rig(prefix_cache=False)
    rig.add(range(length))
    rig.step(BROKEN_LATER)
    rig.set_knobs(prefix_cache=True)
    (repeat,) = rig.served(range(length))
    assert repeat.num_cached_tokens == 0


def test_without_the_prefix_cache_nothing_that_is_decoded_can_be_found_later():
    rig = Rig(prefix_cache=False)
    first = rig.add([1], 3 * BLOCK_SIZE)
    for _ in range(2 * BLOCK_SIZE):
        rig.step()
    rig.set_knobs(prefix_cache=True)
    second = rig.add(first.token_ids[: 2 * BLOCK_SIZE])
    rig.step()
    assert second.num_cached_tokens + second.num_shared_tokens == 0


def test_a_block_that_nobody_has_used_says_so():
    rig = Rig()
    rig.add([1, 2])
    rig.step()
    used = {block: rig.scheduler.tables.last_use(block) for block in range(1, 200)}
    assert {block: step for block, step in used.items() if step != -1} == dict.fromkeys(rig.requests[0].block_table, 0)
