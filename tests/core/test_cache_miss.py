"""Why a prompt was not cached. ``explanations.py`` checks the same during random operations."""

from __future__ import annotations

from typing import Any

import pytest

from roseplay.core.cache_miss import MOST_LOST, Lost, Miss, MissReason
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


def test_a_prompt_that_ends_in_what_a_failed_request_began_with_is_forgotten_with_it() -> None:
    """Computed separately, its block is the end of a prompt, not a full block that other prompts continue from."""
    rig = Rig(same_step_sharing=False)
    rig.add(FOX, 5)
    rig.add(FOX[:4], 1)
    rig.step()
    rig.step(NAN_LOGITS)
    assert asked(rig, FOX).miss == Miss(MissReason.NEW, 0, 0)


def test_what_is_shared_in_a_step_is_no_miss() -> None:
    rig = Rig()
    first, second, other = rig.add(FOX), rig.add(FOX), rig.add(DOG)
    rig.step()
    assert second.miss is None
    assert other.miss == Miss(MissReason.DIFFERS, BLOCK_SIZE, 6, first.request_id, tokens=(7, 8))


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
