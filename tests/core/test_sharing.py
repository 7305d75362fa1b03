"""What is computed only once: exact repeats, common prefixes, and requests of one step."""

import pytest

from roseplay.config import Knobs, SamplingParams
from roseplay.core.cache_miss import Miss, MissReason
from roseplay.core.request import FinishReason
from tests.core.harness import BLOCK_SIZE, Rig, expected_output

LENGTHS = [1, BLOCK_SIZE - 1, BLOCK_SIZE, BLOCK_SIZE + 1, 3 * BLOCK_SIZE - 1, 3 * BLOCK_SIZE, 3 * BLOCK_SIZE + 1, 37]


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("budget", [None, 1, 3, BLOCK_SIZE, 7, 9])
def test_equal_prompts_of_one_burst_are_computed_once(length, budget):
    rig = Rig(prefill_max_tokens=budget)
    requests = [rig.add(range(100, 100 + length)) for _ in range(32)]
    assert rig.run() == length
    assert len({tuple(rig.output(request)) for request in requests}) == 1
    rig.check_outputs()


@pytest.mark.parametrize("length", LENGTHS)
def test_an_exact_repeat_computes_no_prompt_token(length):
    rig = Rig()
    rig.add(range(100, 100 + length))
    assert rig.run() == length
    repeat = rig.add(range(100, 100 + length))
    assert rig.run() == 0
    assert repeat.num_cached_tokens == length
    rig.check_outputs()


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("budget", [None, 3])
def test_who_asks_for_log_probabilities_of_the_prompt_computes_it_for_all(length, budget):
    prompt, asking = range(100, 100 + length), SamplingParams(prompt_logprobs=0, max_new_tokens=4)
    rig = Rig(prefill_max_tokens=budget)
    rig.add(prompt)
    rig.run()
    again = [rig.add(prompt, sampling=asking) for _ in range(2)]
    per_request = length if length > 1 else 0  # a prompt of one token has none, and it is cached
    # The last token predicts none of the others: if a chunk begins with it, it is taken from the cache.
    assert 2 * per_request - 2 <= rig.run() <= 2 * per_request
    assert all(request.num_prompt_logprobs == length - 1 for request in again)
    if length > 1:
        assert again[0].miss == again[1].miss == Miss(MissReason.LOGPROBS, 0, 0)
    rig.add(prompt)
    assert rig.run() == 0
    rig.check_outputs()


def test_a_request_beside_one_that_asks_for_log_probabilities_shares_its_blocks():
    prompt = range(100, 100 + 3 * BLOCK_SIZE)
    rig = Rig()
    rig.add(prompt, sampling=SamplingParams(prompt_logprobs=0, max_new_tokens=4))
    rig.add(prompt)
    assert rig.run() == len(prompt)
    rig.check_outputs()


def test_a_common_head_is_computed_once():
    head = list(range(1000, 1000 + 128 * BLOCK_SIZE))
    rig = Rig(num_blocks=1000)
    for number in range(32):
        rig.add([*head, number, number + 1])
    assert rig.run() == len(head) + 32 * 2
    rig.check_outputs()


def test_a_common_head_is_computed_once_in_chunks():
    head = list(range(1000, 1000 + 16 * BLOCK_SIZE))
    rig = Rig(num_blocks=1000, prefill_max_tokens=5 * BLOCK_SIZE)
    for number in range(20):
        rig.add([*head, number, number + 1])
    assert rig.run() == len(head) + 20 * 2
    rig.check_outputs()


@pytest.mark.parametrize("blocks", [1, 2, 3])
@pytest.mark.parametrize("first", ["longer", "shorter"])
def test_a_prompt_that_another_one_of_its_step_begins_with(blocks, first):
    """Its last token is computed again for the logits, which no other request has, but not into a future block."""
    lengths = [blocks * BLOCK_SIZE + 3, blocks * BLOCK_SIZE]
    rig = Rig()
    for length in lengths if first == "longer" else reversed(lengths):
        rig.add(range(100, 100 + length))
    assert rig.run() <= blocks * BLOCK_SIZE + 3 + BLOCK_SIZE
    rig.check_outputs()


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
    rig.run()
    rig.check_outputs()


@pytest.mark.parametrize("budget", [None, 6])
def test_without_prefix_cache_nothing_is_found_across_steps(budget):
    rig = Rig(prefix_cache=False, prefill_max_tokens=budget)
    for _ in range(3):
        rig.add(range(10))
    assert rig.run() == 10  # sharing within a step has its own switch
    assert rig.scheduler.pool.num_cached == 0
    rig.add(range(10))
    assert rig.run() == 10
    rig.check_outputs()


def test_switching_the_prefix_cache_off_forgets_and_existing_shares_live_on():
    rig = Rig()
    first, second = rig.add(range(10), 20), rig.add(range(10), 20)
    rig.step()
    assert rig.scheduler.pool.num_shared > 0
    rig.scheduler.set_knobs(rig.scheduler.knobs.changed({"prefix_cache": False}))
    rig.step()
    assert rig.scheduler.pool.num_shared > 0
    assert first.block_table[:2] == second.block_table[:2]
    rig.run()
    rig.scheduler.set_knobs(rig.scheduler.knobs.changed({"prefix_cache": True}))
    rig.add(range(10))
    assert rig.run() == 10
    rig.add(range(10))
    assert rig.run() == 0
    rig.check_outputs()


def test_prompts_with_colliding_hashes_share_nothing():
    # Python gives -1 and -2 the same hash, and so also tuples of them.
    assert hash((-1,) * 9) == hash((-2,) * 9)
    rig = Rig()
    rig.add([-1] * 9)
    rig.run()
    rig.add([-2] * 9)
    assert rig.run() == 9
    rig.check_outputs()


def test_two_who_share_a_tail_each_write_their_own_copy():
    rig = Rig()
    first, second = rig.add(range(6)), rig.add(range(6))
    rig.step()
    assert first.block_table == second.block_table
    step = rig.step()
    assert len(step.copies) == 1  # the last holder writes in place
    assert first.block_table[-1] != second.block_table[-1]
    rig.run()
    rig.check_outputs()


def test_a_repeat_does_not_spoil_what_its_forerunner_made_of_the_tail_block():
    rig = Rig()
    rig.add(range(6), 12)  # fills the prompt's tail block with its answer
    rig.run()
    rig.add(range(6), 12, seed=1)  # draws another answer
    rig.run()
    long = rig.add([*range(6), *expected_output(range(6), 11)])
    assert rig.run() < long.num_prompt_tokens  # the blocks of the first one can still be found, with its content
    rig.check_outputs()


def test_without_a_block_for_a_copy_the_sole_holder_writes_in_place_and_the_old_content_is_forgotten():
    rig = Rig(num_blocks=5)
    first = rig.add(range(6), 3)  # fills its tail block
    rig.run()
    rig.add([9] * 3, 8)
    rig.step()
    repeat = rig.add(range(6), 3, seed=1)
    rig.step()
    tail_block = repeat.block_table[1]
    step = rig.step()
    assert rig.scheduler.pool.num_available == 0
    assert not step.copies
    assert repeat.token_ids[6:8] == expected_output(range(6), 2, seed=1) != first.token_ids[6:8]
    assert rig.model.slots[tail_block][2][-1] == repeat.token_ids[6]
    rig.run()
    rig.add(first.token_ids, 2)
    rig.run()
    rig.check_outputs()


def test_a_lone_repeat_in_a_full_pool_takes_the_cached_tail_rather_than_wait():
    rig = Rig(num_blocks=6)
    for seed in (1, 2, 3):
        rig.add(range(6), 14, seed=seed)  # uses all five blocks
        rig.run()
    rig.check_outputs()


def test_a_tail_that_ends_behind_the_write_is_not_spoiled():
    rig = Rig()
    rig.add(range(5), 1)
    rig.run()
    rig.add(range(7), 1)  # finds the full block and has its own tail
    rig.run()
    rig.add(range(5), 8, seed=1)
    rig.add(range(7), 8, seed=2)
    assert rig.run() == 0
    rig.check_outputs()


def test_after_the_cache_was_cleared_a_running_request_lists_its_blocks_anew():
    rig = Rig()
    request = rig.add(range(10), 20)
    rig.step()
    rig.scheduler.clear_cache()
    rig.run()
    again = rig.add(request.token_ids[:16])
    assert rig.run() <= BLOCK_SIZE
    assert again.num_cached_tokens >= 12


def test_with_the_logits_gone_only_the_last_prompt_token_is_computed_again():
    rig = Rig(max_saved_logits=1)
    for length in (6, 8):  # a partial and a full last block
        rig.add(range(length))
        rig.run()
        rig.add([77] * 5)  # takes the only place for saved logits
        rig.run()
        repeats = [rig.add(range(length)) for _ in range(2)]
        assert rig.run() == 1
        assert [request.num_cached_tokens for request in repeats] == [length - 1, length]
    rig.check_outputs()


def test_second_turn_finds_the_first_turns_blocks_with_its_answer():
    rig = Rig()
    first = rig.add(range(10), 14)
    rig.run()
    history = list(first.token_ids)
    second = rig.add([*history, 7, 8, 9])
    rig.run()
    assert second.num_cached_tokens == (len(history) - 1) // BLOCK_SIZE * BLOCK_SIZE
    rig.check_outputs()


def test_a_prompt_shares_a_block_that_a_decode_of_its_step_fills():
    rig = Rig()
    first = rig.add(range(BLOCK_SIZE - 1), 9)
    rig.step()
    assert first.num_tokens == BLOCK_SIZE
    other = rig.add([*first.token_ids, 7])
    step = rig.step()
    assert (step.decode_tokens, step.prompt_tokens, step.shared_tokens) == (1, 1, BLOCK_SIZE)
    rig.run()
    rig.check_outputs()
    assert other.num_shared_tokens == BLOCK_SIZE


def test_an_aborted_leader_changes_nothing_for_those_who_share():
    rig = Rig(prefill_max_tokens=8)
    leader = rig.add(range(30))
    followers = [rig.add(range(30)) for _ in range(3)]
    rig.step()
    rig.scheduler.end(leader.request_id, FinishReason.ABORT)
    rig.run()
    assert rig.model.computed_prompt_tokens == 30
    assert all(rig.output(follower) == expected_output(range(30), 4) for follower in followers)


def test_an_evicted_block_is_not_found():
    rig = Rig(num_blocks=8)
    rig.add(range(20), 2)
    rig.run()
    rig.add([99] * 24, 2)  # needs all seven blocks
    rig.run()
    rig.add(range(20), 2)
    assert rig.run() == 20
    rig.check_outputs()


def test_hits_are_counted_once_per_request():
    rig = Rig(num_blocks=12)
    rig.add(range(12), 20)
    rig.add(range(12), 20)
    rig.run()
    assert any(request.num_preemptions for request in rig.submitted.values())
    assert sum(request.num_cached_tokens + request.num_shared_tokens for request in rig.submitted.values()) == 12
    assert sum(step.cached_tokens + step.shared_tokens for step in rig.steps) == 12
    rig.check_outputs()


def test_saved_logits_that_were_used_last_are_kept():
    rig = Rig(max_saved_logits=2)
    first, second, third = [1] * 5, [2] * 5, [3] * 5
    for prompt in (first, second, first, third):  # the first prompt is repeated before the third takes a place
        rig.add(prompt)
        rig.run()
    assert [rig.add(first) and rig.run(), rig.add(second) and rig.run()] == [0, 1]


@pytest.mark.parametrize("length", [BLOCK_SIZE - 1, BLOCK_SIZE, BLOCK_SIZE + 1])
def test_the_end_of_a_prompt_whose_step_failed_is_not_found(length):
    rig = Rig(prefix_cache=False)
    rig.model.fail_on_step = 0
    rig.add(range(length))
    rig.step()
    rig.scheduler.set_knobs(Knobs(prefix_cache=True))
    repeat = rig.add(range(length))
    assert rig.run() == length
    assert repeat.num_cached_tokens == 0
    rig.check_outputs()


def test_without_the_prefix_cache_nothing_that_is_decoded_can_be_found_later():
    rig = Rig(prefix_cache=False)
    first = rig.add([1], 3 * BLOCK_SIZE)
    for _ in range(2 * BLOCK_SIZE):
        rig.step()
    rig.scheduler.set_knobs(Knobs(prefix_cache=True))
    second = rig.add(first.token_ids[: 2 * BLOCK_SIZE])
    rig.step()
    assert second.num_cached_tokens + second.num_shared_tokens == 0


def test_a_last_token_that_is_computed_again_needs_no_copy_of_its_block():
    rig = Rig(max_saved_logits=1)
    for prompt in (range(6), [77] * 5):  # the second takes the only place for saved logits
        rig.add(prompt)
        rig.run()
    rig.add(range(6))
    step = rig.step()
    assert (step.prompt_tokens, step.cached_tokens, step.copies) == (1, 5, [])


def test_a_block_that_nobody_has_used_says_so():
    rig = Rig()
    rig.add([1, 2])
    rig.step()
    used = [block for block in range(1, 200) if rig.scheduler.tables.last_use(block) != -1]
    assert used == rig.submitted[0].block_table
    assert [rig.scheduler.tables.last_use(block) for block in used] == [0]
