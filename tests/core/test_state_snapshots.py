"""Prefix caching for models with recurrent layers: blocks are of use where a state is kept at their end."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from roseplay.core.cache_miss import MissReason
from roseplay.core.request import FinishReason, Request
from roseplay.core.step import Step
from tests.core.checker import BROKEN_AT_LAUNCH, NAN_LOGITS, NO_MEMORY, Checker

BLOCK = 4
HEAD = list(range(1, 13))  # three blocks


def checker(**settings: object) -> Checker:
    return Checker(
        **{"num_state_slots": 8, "num_state_snapshots": 20, "state_interval": 1, "num_blocks": 100, **settings}  # type: ignore[arg-type]
    )


def serve(checker: Checker, *prompts: Sequence[int], max_new_tokens: int = 2) -> list[Request]:
    """Requests that came together have been served."""
    first = checker._next_id
    for prompt in prompts:
        checker.submit(prompt, max_new_tokens)
    served = [checker.device.truths[number].request for number in range(first, checker._next_id)]
    while checker.scheduler.has_work:
        checker.step()
    return served


def step(checker: Checker) -> Step:
    """The step that is done next."""
    checker.launch()
    assert checker.flying is not None
    done = checker.flying.step
    checker.land()
    return done


@pytest.mark.parametrize("interval", [1, 2, 3, 100])
def test_a_second_request_computes_only_what_follows_the_common_blocks(interval: int):
    """With any interval, since a state is kept at the last full block of the first prompt."""
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
    """Its request has a copy of the blocks that it belongs to, so that a second one may take these."""
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
