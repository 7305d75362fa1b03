"""Prefix caching for models with recurrent layers: blocks are useful where a state is kept at their end."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from roseplay.core.cache_miss import MissReason
from roseplay.core.request import FinishReason, Request
from tests.core.checker import NAN_LOGITS
from tests.core.harness import Rig

BLOCK = 4
HEAD = list(range(1, 13))  # three blocks


def make(**settings: Any) -> Rig:
    return Rig(**{"num_state_slots": 8, "num_state_snapshots": 20, "state_interval": 1, "num_blocks": 100, **settings})


def serve(rig: Rig, *prompts: Iterable[int], max_new_tokens: int = 2, eos: Iterable[int] = ()) -> list[Request]:
    return rig.served(*prompts, max_new_tokens=max_new_tokens, eos=eos)


@pytest.mark.parametrize("interval", [1, 2, 3, 100])
def test_a_second_request_computes_only_what_follows_the_common_blocks(interval: int):
    """At any interval, since a state is kept at the last full block of the first prompt."""
    rig = make(state_interval=interval)
    serve(rig, [*HEAD, 20, 21])
    (second,) = serve(rig, [*HEAD, 30, 31, 32])
    assert second.num_cached_tokens == len(HEAD)


def test_a_state_is_kept_after_every_nth_block():
    rig = make(state_interval=2)
    serve(rig, [*range(1, 31)])
    for length, cached in ((7, 0), (8, 8), (13, 8), (20, 16), (27, 24)):
        (other,) = serve(rig, [*range(1, length + 1), 40, 41])
        assert other.num_cached_tokens == cached
        assert other.miss is not None
        rig.clear_cache()
        serve(rig, [*range(1, 31)])


@pytest.mark.parametrize("length", [1, 3, 4, 5, 8, 11])
@pytest.mark.parametrize("interval", [0, 1])
def test_an_exact_repeat_computes_nothing(length: int, interval: int):
    rig = make(state_interval=interval)
    serve(rig, range(1, length + 1))
    (repeat,) = serve(rig, range(1, length + 1), max_new_tokens=9)
    assert (repeat.num_cached_tokens, repeat.miss) == (length, None)


def test_a_repeat_whose_logits_are_gone_goes_on_from_a_state_before_its_end():
    rig = make(max_saved_logits=0)
    serve(rig, [*HEAD, 20])
    (repeat,) = serve(rig, [*HEAD, 20])
    assert repeat.num_cached_tokens == len(HEAD)
    assert repeat.miss is not None
    assert repeat.miss.reason is MissReason.LOGITS
    serve(rig, HEAD)
    (repeat,) = serve(rig, HEAD)
    assert repeat.num_cached_tokens == len(HEAD) - BLOCK


def test_a_state_is_kept_where_prompts_part_as_soon_as_that_is_known():
    rig = make(state_interval=100)
    cached = [serve(rig, [*HEAD, *[20 + number] * 9])[0].num_cached_tokens for number in range(3)]
    assert cached == [0, 0, len(HEAD)]


@pytest.mark.parametrize(
    "knobs",
    [{"state_interval": 0}, {"chunked_prefill": False}, {"prefix_cache": False, "same_step_sharing": False}],
    ids=str,
)
def test_where_it_would_be_of_no_use_no_prompt_is_cut(knobs: dict[str, Any]):
    rig = make(**knobs)
    rig.add([*HEAD, 20], 2)
    assert rig.step().prompt_tokens == len(HEAD) + 1


def test_prompts_that_are_cut_are_computed_side_by_side():
    rig = make(state_interval=100)
    for number in range(4):
        rig.add([20 + number] * 10, 2)
    assert rig.step().prompt_tokens == 4 * 8
    assert rig.step().prompt_tokens == 4 * 2


@pytest.mark.parametrize(
    ("settings", "prompts", "shared"),
    [
        ({}, [[*HEAD, 20]] * 4, 13),
        ({"same_step_sharing": False}, [[*HEAD, 20]] * 4, 0),
        ({"state_interval": 3}, [[*HEAD, 20 + number] for number in range(4)], 12),
        ({"state_interval": 0}, [[*HEAD, 20 + number] for number in range(4)], 0),  # no state is kept at its end
    ],
)
def test_what_prompts_of_one_step_have_in_common_is_computed_once(
    settings: dict[str, Any], prompts: list[list[int]], shared: int
):
    requests = serve(make(**settings), *prompts, max_new_tokens=5)
    assert [request.num_shared_tokens for request in requests] == [0, *[shared] * 3]


def test_the_least_recently_used_state_goes_first():
    rig = make(num_state_snapshots=2, state_interval=0)
    one, two, three = ([number] * 6 for number in (1, 2, 3))
    serve(rig, one)
    serve(rig, two)
    serve(rig, one)
    serve(rig, three)
    (first,) = serve(rig, one)
    assert first.num_cached_tokens == 6
    (second,) = serve(rig, two)
    assert second.miss is not None
    assert (second.num_cached_tokens, second.miss.reason) == (0, MissReason.STATE)


def test_a_state_whose_blocks_go_in_its_own_step_leaves_its_place_for_later_steps():
    """The request has its own copy of the blocks that the state belongs to, so a second request can take those."""
    rig = make(num_state_snapshots=1, state_interval=100, num_blocks=10)
    serve(rig, [*HEAD, 20])
    rig.add([*HEAD, 30], 2)
    rig.add([40] * 16, 2)
    assert rig.step().prompt_tokens == len(HEAD) + 16


def test_a_state_goes_with_the_blocks_before_it():
    rig = make(num_blocks=8)
    serve(rig, HEAD)
    assert rig.scheduler.cache.states.num_kept == 3
    serve(rig, range(20, 46), max_new_tokens=1)
    (again,) = serve(rig, [*HEAD, 40])
    assert again.num_cached_tokens < len(HEAD)
    rig.clear_cache()
    assert rig.scheduler.cache.states.num_kept == 0


def test_preempted_requests_go_on_from_the_last_kept_state():
    rig = make(num_blocks=12)
    serve(rig, *[[number, *HEAD[:8]] for number in range(3)], max_new_tokens=12)
    resumed = [
        entry.start
        for number, step in enumerate(rig.steps)
        for entry in step.entries
        if any(entry.request.request_id in before.preempted for before in rig.steps[:number])
        and entry.request.request_id in step.admitted
    ]
    assert resumed
    assert min(resumed) > 0


def test_a_preempted_request_goes_on_from_its_answer_where_that_is_still_there():
    rig = make(num_blocks=10)
    rig.add(range(8), 12)
    rig.add(range(20, 30), 20)
    second = rig.requests[1]
    while second.num_preemptions == 0 or second.request_id not in (done := rig.step()).admitted:
        done = rig.step()
    assert [entry.start for entry in done.entries if entry.request is second] == [16]


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("settings", [{"state_interval": 0}, {"state_interval": 3}, {"chunked_prefill": False}])
def test_a_chat_goes_on_from_the_last_full_block_of_the_answer(settings: dict[str, object], ahead: bool):
    rig = make(ahead=ahead, **settings)
    for length in range(1, 14):
        (turn,) = serve(rig, [*HEAD, 20 + length], max_new_tokens=length)
        (following,) = serve(rig, [*turn.token_ids, 5, 6, 7, 8, 9])
        computed = len(turn.token_ids) - 1
        if computed >= 16:  # otherwise the answer fills no block
            assert following.num_cached_tokens == computed - computed % BLOCK


@pytest.mark.parametrize("ahead", [False, True])
def test_a_long_answer_takes_the_place_of_one_state(ahead: bool):
    rig = make(ahead=ahead, num_state_snapshots=3)
    serve(rig, HEAD[:4], max_new_tokens=40)
    assert [state.in_answer for state in rig.scheduler.cache.states.kept] == [False, True]


def test_an_end_token_that_fills_a_block_does_not_lose_the_state():
    """A step that runs ahead keeps the state after it before anything is known about the end of the answer."""
    prompt = [*HEAD, 20]
    (unended,) = serve(make(), prompt, max_new_tokens=40)
    end = next(at for at in range(19, 53, BLOCK) if unended.token_ids[at] not in unended.token_ids[:at])
    rig = make(ahead=True, num_state_snapshots=3)
    (turn,) = serve(rig, prompt, max_new_tokens=40, eos=[unended.token_ids[end]])
    assert (turn.finish_reason, turn.num_tokens) == (FinishReason.STOP, end + 1)
    (following,) = serve(rig, [*turn.token_ids, 5, 6])
    assert following.num_cached_tokens == end + 1


@pytest.mark.parametrize("ahead", [False, True])
def test_an_answer_that_is_aborted_can_be_gone_on_from(ahead: bool):
    rig = make(ahead=ahead)
    rig.add([*HEAD, 20], 40)
    for _ in range(12):
        rig.step()
    (turn,) = rig.requests
    rig.end_request(turn)
    rig.land()
    (following,) = serve(rig, [*turn.token_ids, 5, 6])
    assert following.num_cached_tokens > len(HEAD)


@pytest.mark.parametrize("num_states", [3, 4])
def test_answers_leave_half_of_few_states_to_prompts(num_states: int):
    rig = make(num_state_snapshots=num_states, state_interval=100)
    serve(rig, HEAD, max_new_tokens=1)
    for seed in range(8):
        rig.add([20], 30, seed=seed)
    rig.run()
    (after,) = serve(rig, [*HEAD, 40])
    assert after.num_cached_tokens == len(HEAD)


def test_answers_that_run_beside_each_other_share_what_they_have_in_common():
    """A second request finds the first one's state while the answer is still being generated."""
    rig = make()
    rig.add([*HEAD, 20], 40)
    for _ in range(12):
        rig.step()
    (beside,) = serve(rig, [*rig.requests[0].token_ids[:22], 5, 6])
    assert beside.num_cached_tokens in (16, 20)


def test_no_state_of_an_answer_is_kept_with_the_prefix_cache_off():
    rig = make(prefix_cache=False)
    serve(rig, [*HEAD, 20], max_new_tokens=20)
    assert rig.scheduler.cache.states.num_kept == 0


def test_without_kept_states_nothing_is_found():
    rig = make(num_state_snapshots=0)
    serve(rig, HEAD)
    (repeat,) = serve(rig, HEAD)
    assert repeat.miss is not None
    assert (repeat.num_cached_tokens, repeat.miss.reason) == (0, MissReason.STATE)


def test_equal_answers_keep_one_state():
    """They are generated side by side, and each step runs ahead."""
    rig = make(ahead=True, same_step_sharing=False)
    requests = serve(rig, *[[*HEAD, 20]] * 3, max_new_tokens=20)
    assert sum(state.in_answer for state in rig.scheduler.cache.states.kept) == 1
    (following,) = serve(rig, [*requests[0].token_ids, 5])
    assert following.num_cached_tokens == 32
    (longer,) = serve(rig, [*HEAD, 20], max_new_tokens=30)
    assert longer.token_ids[:33] == requests[0].token_ids


@pytest.mark.parametrize("ahead", [False, True])
def test_no_state_is_kept_behind_blocks_that_are_not_to_be_found_again(ahead: bool):
    """The second request has its own first block and, as its second, one of the first request, which then fails."""
    rig = make(same_step_sharing=False)
    rig.add([*HEAD[:8], 20], 20)
    rig.add([*HEAD, 20], 20)
    rig.step()
    rig.set_knobs(prefill_max_batch_size=1)
    rig.step()
    second = rig.requests[1]
    rig.step(NAN_LOGITS)
    assert (second.num_computed_tokens, second.num_cached_tokens) == (8, 4)
    assert list(rig.scheduler.requests) == [1]
    rig.ahead = ahead
