"""Prefix caching for models with recurrent layers: blocks are useful where a state is kept at their end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest

from roseplay.core.cache_miss import MissReason
from roseplay.core.request import FinishReason, Request
from roseplay.core.step import Step
from tests.core.checker import BROKEN_AT_LAUNCH, BROKEN_LATER, NAN_LOGITS, NO_MEMORY, Checker

BLOCK = 4
HEAD = list(range(1, 13))  # three blocks


def checker(**settings: object) -> Checker:
    return Checker(
        **{"num_state_slots": 8, "num_state_snapshots": 20, "state_interval": 1, "num_blocks": 100, **settings}  # type: ignore[arg-type]
    )


def serve(
    checker: Checker,
    *prompts: Sequence[int],
    max_new_tokens: int = 2,
    ahead: bool = False,
    eos: Iterable[int] = (),
) -> list[Request]:
    """Serve requests that arrive together; with ``ahead``, each step is made while the previous one runs."""
    first = checker._next_id
    for prompt in prompts:
        checker.submit(prompt, max_new_tokens, eos=eos)
    served = [checker.device.truths[number].request for number in range(first, checker._next_id)]
    while checker.scheduler.has_work or checker.flying is not None:
        checker.launch() if ahead else checker.step()
    return served


def step(checker: Checker) -> Step:
    """Make the next step and return it."""
    checker.launch()
    assert checker.flying is not None
    done = checker.flying.step
    checker.land()
    return done


@pytest.mark.parametrize("interval", [1, 2, 3, 100])
def test_a_second_request_computes_only_what_follows_the_common_blocks(interval: int):
    """At any interval, since a state is kept at the last full block of the first prompt."""
    tried = checker(state_interval=interval)
    serve(tried, [*HEAD, 20, 21])
    (second,) = serve(tried, [*HEAD, 30, 31, 32])
    assert second.num_cached_tokens == len(HEAD)
    tried.drain()


def test_a_state_is_kept_after_every_nth_block():
    tried = checker(state_interval=2)
    serve(tried, [*range(1, 31)])
    for length, cached in ((7, 0), (8, 8), (13, 8), (20, 16), (27, 24)):
        (other,) = serve(tried, [*range(1, length + 1), 40, 41])
        assert other.num_cached_tokens == cached
        assert other.miss is not None
        tried.clear_cache()
        serve(tried, [*range(1, 31)])
    tried.drain()


@pytest.mark.parametrize("length", [1, 3, 4, 5, 8, 11])
@pytest.mark.parametrize("interval", [0, 1])
def test_an_exact_repeat_computes_nothing(length: int, interval: int):
    tried = checker(state_interval=interval)
    serve(tried, range(1, length + 1))
    (repeat,) = serve(tried, range(1, length + 1), max_new_tokens=9)
    assert (repeat.num_cached_tokens, repeat.miss) == (length, None)
    tried.drain()


def test_a_repeat_whose_logits_are_gone_goes_on_from_a_state_before_its_end():
    tried = checker(max_saved_logits=0)
    serve(tried, [*HEAD, 20])
    (repeat,) = serve(tried, [*HEAD, 20])
    assert repeat.num_cached_tokens == len(HEAD)
    assert repeat.miss is not None
    assert repeat.miss.reason is MissReason.LOGITS
    serve(tried, HEAD)
    (repeat,) = serve(tried, HEAD)
    assert repeat.num_cached_tokens == len(HEAD) - BLOCK
    tried.drain()


def test_a_state_is_kept_where_prompts_part_as_soon_as_that_is_known():
    tried = checker(state_interval=100)
    cached = [serve(tried, [*HEAD, *[20 + number] * 9])[0].num_cached_tokens for number in range(3)]
    assert cached == [0, 0, len(HEAD)]
    tried.drain()


def test_without_an_interval_no_prompt_is_cut():
    tried = checker(state_interval=0)
    tried.submit([*HEAD, 20], 2)
    assert step(tried).prompt_tokens == len(HEAD) + 1
    tried.drain()


@pytest.mark.parametrize(
    "knobs", [{"chunked_prefill": False}, {"prefix_cache": False, "same_step_sharing": False}], ids=str
)
def test_where_it_would_be_of_no_use_no_prompt_is_cut(knobs: dict[str, bool]):
    tried = checker(**knobs)
    tried.submit([*HEAD, 20], 2)
    assert step(tried).prompt_tokens == len(HEAD) + 1
    tried.drain()


def test_prompts_that_are_cut_are_computed_side_by_side():
    tried = checker(state_interval=100)
    for number in range(4):
        tried.submit([20 + number] * 10, 2)
    assert step(tried).prompt_tokens == 4 * 8
    assert step(tried).prompt_tokens == 4 * 2
    tried.drain()


def test_equal_prompts_of_one_step_are_computed_once():
    tried = checker()
    requests = serve(tried, *[[*HEAD, 20]] * 4, max_new_tokens=5)
    assert [request.num_shared_tokens for request in requests] == [0, 13, 13, 13]
    tried.drain()


def test_a_common_beginning_of_one_step_is_shared_where_a_state_is_kept():
    tried = checker(state_interval=3)
    requests = serve(tried, *[[*HEAD, 20 + number] for number in range(4)])
    assert [request.num_shared_tokens for request in requests] == [0, 12, 12, 12]
    tried.drain()


def test_it_is_not_shared_where_no_state_is_kept():
    tried = checker(state_interval=0)
    requests = serve(tried, *[[*HEAD, 20 + number] for number in range(4)])
    assert [request.num_shared_tokens for request in requests] == [0] * 4
    tried.drain()


def test_with_sharing_off_equal_prompts_are_computed_separately():
    tried = checker(same_step_sharing=False)
    requests = serve(tried, *[[*HEAD, 20]] * 3)
    assert [request.num_shared_tokens for request in requests] == [0] * 3
    tried.drain()


def test_the_least_recently_used_state_goes_first():
    tried = checker(num_state_snapshots=2, state_interval=0)
    one, two, three = ([number] * 6 for number in (1, 2, 3))
    serve(tried, one)
    serve(tried, two)
    serve(tried, one)
    serve(tried, three)
    (first,) = serve(tried, one)
    assert first.num_cached_tokens == 6
    (second,) = serve(tried, two)
    assert second.miss is not None
    assert (second.num_cached_tokens, second.miss.reason) == (0, MissReason.STATE)
    tried.drain()


def test_a_state_whose_blocks_go_in_its_own_step_leaves_its_place_for_later_steps():
    """The request has its own copy of the blocks that the state belongs to, so a second request can take those."""
    tried = checker(num_state_snapshots=1, state_interval=100, num_blocks=10)
    serve(tried, [*HEAD, 20])
    tried.submit([*HEAD, 30], 2)
    tried.submit([40] * 16, 2)
    assert step(tried).prompt_tokens == len(HEAD) + 16
    tried.drain()


def test_a_state_goes_with_the_blocks_before_it():
    tried = checker(num_blocks=8)
    serve(tried, HEAD)
    assert tried.scheduler.cache.states.num_kept == 3
    serve(tried, range(20, 46), max_new_tokens=1)
    (again,) = serve(tried, [*HEAD, 40])
    assert again.num_cached_tokens < len(HEAD)
    tried.clear_cache()
    assert tried.scheduler.cache.states.num_kept == 0
    tried.drain()


def test_preempted_requests_go_on_from_the_last_kept_state():
    tried = checker(num_blocks=12)
    for number in range(3):
        tried.submit([number, *HEAD[:8]], 12)
    resumed = []
    while tried.scheduler.has_work:
        tried.launch()
        assert tried.flying is not None
        done = tried.flying.step
        preempted = {entry.request.request_id for entry in done.entries if entry.request.num_preemptions}
        resumed += [
            entry.start
            for entry in done.entries
            if entry.request.request_id in preempted and entry.request.request_id in done.admitted
        ]
        tried.land()
    assert resumed
    assert min(resumed) > 0
    tried.drain()


def test_a_preempted_request_goes_on_from_its_answer_where_that_is_still_there():
    tried = checker(num_blocks=10)
    tried.submit(range(8), 12)
    tried.submit(range(20, 30), 20)
    second = tried.device.truths[1].request
    while second.num_preemptions == 0 or second.request_id not in (done := step(tried)).admitted:
        done = step(tried)
    assert [entry.start for entry in done.entries if entry.request is second] == [16]
    tried.drain()


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("settings", [{"state_interval": 0}, {"state_interval": 3}, {"chunked_prefill": False}])
def test_a_chat_goes_on_from_the_last_full_block_of_the_answer(settings: dict[str, object], ahead: bool):
    tried = checker(**settings)
    for length in range(1, 14):
        prompt = [*HEAD, 20 + length]
        (turn,) = serve(tried, prompt, max_new_tokens=length, ahead=ahead)
        (following,) = serve(tried, [*turn.token_ids, 5, 6, 7, 8, 9])
        computed = len(turn.token_ids) - 1
        if computed >= 16:  # otherwise the answer fills no block
            assert following.num_cached_tokens == computed - computed % BLOCK
    tried.drain()


@pytest.mark.parametrize("ahead", [False, True])
def test_a_long_answer_takes_the_place_of_one_state(ahead: bool):
    tried = checker(num_state_snapshots=3)
    serve(tried, HEAD[:4], max_new_tokens=40, ahead=ahead)
    assert [state.in_answer for state in tried.scheduler.cache.states.kept] == [False, True]
    tried.drain()


def test_an_end_token_that_fills_a_block_does_not_lose_the_state():
    """A step that runs ahead keeps the state after it before anything is known about the end of the answer."""
    prompt = [*HEAD, 20]
    (unended,) = serve(checker(), prompt, max_new_tokens=40)
    end = next(at for at in range(19, 53, BLOCK) if unended.token_ids[at] not in unended.token_ids[:at])
    tried = checker(num_state_snapshots=3)
    (turn,) = serve(tried, prompt, max_new_tokens=40, eos=[unended.token_ids[end]], ahead=True)
    assert (turn.finish_reason, turn.num_tokens) == (FinishReason.STOP, end + 1)
    (following,) = serve(tried, [*turn.token_ids, 5, 6])
    assert following.num_cached_tokens == end + 1
    tried.drain()


@pytest.mark.parametrize("ahead", [False, True])
def test_an_answer_that_is_aborted_can_be_gone_on_from(ahead: bool):
    tried = checker()
    tried.submit([*HEAD, 20], 40)
    for _ in range(12):
        tried.launch() if ahead else tried.step()
    turn = tried.device.truths[0].request
    tried.end(0)
    tried.land()
    (following,) = serve(tried, [*turn.token_ids, 5, 6])
    assert following.num_cached_tokens > len(HEAD)
    tried.drain()


@pytest.mark.parametrize("num_states", [3, 4])
def test_answers_leave_half_of_few_states_to_prompts(num_states: int):
    tried = checker(num_state_snapshots=num_states, state_interval=100)
    serve(tried, HEAD, max_new_tokens=1)
    for seed in range(8):
        tried.submit([20], 30, seed)
    while tried.scheduler.has_work:
        tried.step()
    (after,) = serve(tried, [*HEAD, 40])
    assert after.num_cached_tokens == len(HEAD)
    tried.drain()


def test_answers_that_run_beside_each_other_share_what_they_have_in_common():
    """A second request finds the first one's state while the answer is still being generated."""
    tried = checker()
    tried.submit([*HEAD, 20], 40)
    for _ in range(12):
        tried.step()
    running = tried.device.truths[0].request
    (beside,) = serve(tried, [*running.token_ids[:22], 5, 6])
    assert beside.num_cached_tokens in (16, 20)
    tried.drain()


def test_no_state_of_an_answer_is_kept_with_the_prefix_cache_off():
    tried = checker(prefix_cache=False)
    serve(tried, [*HEAD, 20], max_new_tokens=20)
    assert tried.scheduler.cache.states.num_kept == 0
    tried.drain()


@pytest.mark.parametrize("outcome", [BROKEN_AT_LAUNCH, BROKEN_LATER, NO_MEMORY, NAN_LOGITS])
@pytest.mark.parametrize("ahead", [False, True])
def test_no_state_is_kept_of_a_decode_that_failed(outcome: str, ahead: bool):
    tried = checker()
    tried.submit([*HEAD, 20], 40)
    turn = tried.device.truths[0].request
    while turn.num_computed_tokens < 19:
        tried.launch() if ahead else tried.step()
    tried.launch(outcome)
    tried.land()
    assert not any(state.in_answer for state in tried.scheduler.cache.states.kept)
    tried.drain()


@pytest.mark.parametrize("outcome", [BROKEN_AT_LAUNCH, NO_MEMORY])
def test_nothing_of_a_step_that_failed_is_kept(outcome: str):
    tried = checker()
    tried.submit([*HEAD, 20], 2)
    tried.launch(outcome)
    assert tried.scheduler.cache.states.num_kept == 0
    tried.drain()


@pytest.mark.parametrize("outcome", [BROKEN_AT_LAUNCH, NO_MEMORY])
def test_a_state_that_a_failed_step_was_to_add_to_earlier_blocks_is_not_kept(outcome: str):
    tried = checker(state_interval=100)
    serve(tried, [*HEAD, *[20] * 9])
    before = tried.scheduler.cache.states.num_kept
    tried.submit([*HEAD, *[21] * 9], 2)
    tried.launch(outcome)
    assert tried.scheduler.cache.states.num_kept == before
    tried.drain()


def test_a_nan_state_does_not_stay_with_good_blocks():
    tried = checker(state_interval=100)
    serve(tried, [*HEAD, *[20] * 9])
    tried.submit([*HEAD, *[21] * 9], 2)
    tried.step(NAN_LOGITS)
    while tried.scheduler.has_work:
        tried.step()
    assert tried.device.truths[1].request.finish_reason is FinishReason.ERROR
    (after,) = serve(tried, [*HEAD, *[22] * 9])
    assert after.finish_reason is FinishReason.LENGTH
    tried.drain()


def test_who_shares_a_prompt_goes_on_when_its_leader_is_aborted():
    tried = checker()
    for _ in range(3):
        tried.submit([*HEAD, 20], 6)
    tried.launch()
    tried.end(0, FinishReason.ABORT)
    tried.drain()


def test_without_kept_states_nothing_is_found():
    tried = checker(num_state_snapshots=0)
    serve(tried, HEAD)
    (repeat,) = serve(tried, HEAD)
    assert repeat.miss is not None
    assert (repeat.num_cached_tokens, repeat.miss.reason) == (0, MissReason.STATE)
    tried.drain()


def test_equal_answers_keep_one_state():
    """They are generated side by side, and each step runs ahead."""
    tried = checker(same_step_sharing=False)
    requests = serve(tried, *[[*HEAD, 20]] * 3, max_new_tokens=20, ahead=True)
    assert sum(state.in_answer for state in tried.scheduler.cache.states.kept) == 1
    (following,) = serve(tried, [*requests[0].token_ids, 5])
    assert following.num_cached_tokens == 32
    (longer,) = serve(tried, [*HEAD, 20], max_new_tokens=30, ahead=True)
    assert longer.token_ids[:33] == requests[0].token_ids
    tried.drain()


@pytest.mark.parametrize("ahead", [False, True])
def test_no_state_is_kept_behind_blocks_that_are_not_to_be_found_again(ahead: bool):
    """The second request has its own first block and, as its second, one of the first request, which then fails."""
    tried = checker(same_step_sharing=False)
    tried.submit([*HEAD[:8], 20], 20)
    tried.submit([*HEAD, 20], 20)
    tried.step()
    tried.set_knobs(prefill_max_batch_size=1)
    tried.step()
    second = tried.device.truths[1].request
    tried.step(NAN_LOGITS)
    assert (second.num_computed_tokens, second.num_cached_tokens) == (8, 4)
    assert list(tried.scheduler.requests) == [1]
    while tried.scheduler.has_work:
        tried.launch() if ahead else tried.step()
    tried.drain()
