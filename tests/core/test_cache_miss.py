"""Why a prompt was not cached. ``explanations.py`` checks the same during random operations."""

from __future__ import annotations

from typing import Any

import pytest

from roseplay.core.cache_miss import MOST_LOST, Lost, Miss, MissReason, Siblings
from roseplay.core.request import Request
from tests.core.checker import BROKEN_LATER, NAN_LOGITS
from tests.core.harness import BLOCK_SIZE, Rig

FOX, DOG = [1, 2, 3, 4, 5, 6, 7, 8, 9], [1, 2, 3, 4, 5, 6, 70, 8, 9]


def asked(rig: Rig, prompt: list[int], max_new_tokens: int = 1) -> Request:
    """Serve a request alone and return it."""
    return rig.served(prompt, max_new_tokens=max_new_tokens)[0]


NO_LOGITS = {"max_saved_logits": 0}


@pytest.mark.parametrize(
    ("settings", "before", "prompt", "miss"),
    [
        ({}, [], FOX, Miss(MissReason.NEW, 0, 0)),
        ({}, [FOX], [50, *FOX], Miss(MissReason.NEW, 0, 0)),
        ({}, [FOX], FOX, None),
        ({}, [FOX], DOG, Miss(MissReason.DIFFERS, BLOCK_SIZE, 6, 0, tokens=(7, 8))),
        ({}, [FOX], FOX[:7], Miss(MissReason.SHORT, BLOCK_SIZE, 7, 0, tokens=(8,))),
        ({}, [FOX], [1, 2], Miss(MissReason.SHORT, 0, 2, 0, tokens=(3, 4))),
        ({}, [FOX[:6]], FOX, Miss(MissReason.UNFILLED, BLOCK_SIZE, 6, 0)),
        (NO_LOGITS, [FOX[:4]], FOX, Miss(MissReason.ENDS, BLOCK_SIZE, BLOCK_SIZE)),
        (NO_LOGITS, [FOX], FOX, Miss(MissReason.LOGITS, 8, 8)),
        (NO_LOGITS, [FOX], FOX[:8], Miss(MissReason.LOGITS, 7, 7)),
        ({"prefix_cache": False}, [FOX], FOX, Miss(MissReason.OFF, 0, 0)),
        ({"prefix_cache": False, "same_step_sharing": False}, [FOX], FOX, Miss(MissReason.OFF, 0, 0)),
        ({"num_blocks": 6}, [FOX, [*range(20, 38)]], FOX, Miss(MissReason.EVICTED, 0, 0, step_id=1)),  # all five blocks
    ],
)
def test_why_a_prompt_was_not_cached(
    settings: dict[str, Any], before: list[list[int]], prompt: list[int], miss: Miss | None
) -> None:
    rig = Rig(**settings)
    for earlier in before:
        asked(rig, earlier)
    assert asked(rig, prompt).miss == miss


def test_the_nearest_of_many_is_named() -> None:
    rig = Rig()
    requests = [asked(rig, [1, 2, 3, 4, *(5, 6, 7, 8)[:equal], *[90 + equal] * 5]) for equal in range(4)]
    for equal in range(3):
        miss = asked(rig, [1, 2, 3, 4, *(5, 6, 7, 8)[:equal], *[80] * 5]).miss
        assert miss is not None
        assert (miss.reason, miss.position) == (MissReason.DIFFERS, 4 + equal)
    miss = asked(rig, [1, 2, 3, 4, 5, 6, 7, 80, 80]).miss
    assert miss == Miss(MissReason.DIFFERS, 4, 7, requests[3].request_id, tokens=(93,))


def test_a_prompt_that_ends_in_what_a_failed_request_began_with_is_forgotten_with_it() -> None:
    """Computed separately, its block is the end of a prompt, not a full block that other prompts continue from."""
    rig = Rig(same_step_sharing=False)
    rig.add(FOX, 5)
    rig.add(FOX[:4], 1)
    rig.step()
    rig.step(NAN_LOGITS)
    assert asked(rig, FOX).miss == Miss(MissReason.NEW, 0, 0)


def test_another_one_of_its_step_computes_it() -> None:
    rig = Rig(same_step_sharing=False)
    first, second = rig.add(FOX), rig.add(FOX)
    step = rig.step()
    assert step.misses == [
        (first.request_id, Miss(MissReason.NEW, 0, 0)),
        (second.request_id, Miss(MissReason.COMPUTING, 0, 0, first.request_id)),
    ]
    assert rig.step().misses == []


def test_what_is_shared_in_a_step_is_no_miss() -> None:
    rig = Rig()
    first, second, other = rig.add(FOX), rig.add(FOX), rig.add(DOG)
    rig.step()
    assert second.miss is None
    assert other.miss == Miss(MissReason.DIFFERS, BLOCK_SIZE, 6, first.request_id, tokens=(7, 8))


@pytest.mark.parametrize("how", ["cleared", "switched"])
def test_the_cache_was_cleared(how: str) -> None:
    rig = Rig()
    asked(rig, FOX)
    if how == "cleared":
        rig.clear_cache()
    else:
        for on in (False, True):
            rig.set_knobs(prefix_cache=on)
    last = rig.scheduler.next_step_id - 1
    assert asked(rig, FOX).miss == Miss(MissReason.CLEARED, 0, 0, step_id=last)
    assert asked(rig, FOX).miss is None, "it is cached again"


def test_the_end_of_a_prompt_is_given_to_others_first() -> None:
    rig = Rig(num_blocks=6)
    asked(rig, FOX)
    asked(rig, list(range(20, 35)))  # leaves one of the three
    miss = asked(rig, FOX).miss
    assert miss is not None
    assert (miss.reason, miss.found) == (MissReason.EVICTED, BLOCK_SIZE)


def test_a_preempted_request_keeps_its_first_reason() -> None:
    rig = Rig(num_blocks=9)
    first, second = rig.add(FOX, 8), rig.add([30, *FOX], 8)
    rig.run()
    assert first.num_preemptions + second.num_preemptions > 0
    assert (first.miss, second.miss) == (Miss(MissReason.NEW, 0, 0), Miss(MissReason.NEW, 0, 0))
    assert sum(len(step.misses) for step in rig.steps) == 2, "reported once"


def test_who_lost_what_it_shared_explains_again() -> None:
    rig = Rig()
    first, second = rig.add(FOX), rig.add(FOX)
    rig.step(BROKEN_LATER)
    rig.step()
    assert first.finish_reason == "error"
    assert second.miss == Miss(MissReason.NEW, 0, 0), "a failed computation is never cached"


def test_a_copied_block_still_counts_as_what_it_was() -> None:
    """Two requests that share a tail copy it before they write; the tail can be found as before."""
    rig = Rig()
    first = rig.add(FOX[:6], 6)
    rig.add(FOX[:6], 6, seed=1)
    rig.run()
    assert any(step.copies for step in rig.steps)
    assert asked(rig, FOX[:6]).miss is None
    assert asked(rig, FOX).miss in (
        Miss(MissReason.UNFILLED, BLOCK_SIZE, 6, first.request_id),
        Miss(MissReason.DIFFERS, BLOCK_SIZE, 6, first.request_id, tokens=tuple(first.token_ids[6:8])),
    )


def test_siblings_are_as_many_as_were_added() -> None:
    siblings = Siblings()
    for tokens in [(1, 2), (1,), (3, 4), (1, 2, 3)]:
        siblings.add(None, tokens)
    assert siblings.nearest(None, (1, 2, 9)) in [(1, 2), (1, 2, 3)]
    siblings.remove(None, (1, 2, 3))
    siblings.remove(None, (1, 2))
    assert siblings.nearest(None, (1, 2, 9)) == (1,)
    siblings.remove(None, (1,))
    siblings.remove(None, (3, 4))
    assert siblings.nearest(None, (1, 2, 9)) is None
    assert not siblings._following, "an empty entry stays"


def test_what_was_lost_is_remembered_for_a_while() -> None:
    lost = Lost(most=2)
    for history in range(3):
        lost.add(history, (history,), step_id=history, reason=MissReason.EVICTED)
    assert [lost.find(history, (history,)) for history in range(3)] == [
        None,
        (1, MissReason.EVICTED),
        (2, MissReason.EVICTED),
    ]
    assert lost.find(1, (7,)) is None, "a matching hash alone is not enough"
    for step_id, history in enumerate((1, 4), 5):  # the first was cached again meanwhile
        lost.add(history, (history,), step_id, MissReason.EVICTED)
    assert lost.find(1, (1,)) == (5, MissReason.EVICTED)
    assert lost.find(2, (2,)) is None
    assert MOST_LOST < 10_000
