"""What prompt lookup guesses, how many of its guesses are worth computing, and what a step takes for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from roseplay.config import Knobs
from roseplay.core.prompt_lookup import PromptLookup, least_likely
from tests.core.harness import BLOCK_SIZE, Rig


def lookup(tokens: list[int], ngram: int = 2) -> PromptLookup:
    made = PromptLookup(ngram)
    made.read(tokens)
    return made


def drafted(tokens: list[int], most: int = 4, ngram: int = 2) -> list[int]:
    return list(lookup(tokens, ngram).draft(tokens, most, 0.0))


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([1, 2, 3, 4, 5, 6, 1, 2], [3, 4, 5, 6]),
        ([1, 2, 3, 1, 2, 4, 7, 1, 2], [4, 7, 1, 2]),  # the last occurrence
        ([1, 2, 3, 4], []),
        ([1], []),
        ([5, 5, 5], [5, 5, 5, 5]),  # the text goes on with what was guessed
        ([9, 1, 2, 1, 2], [1, 2, 1, 2]),
        ([1, 2, 3, 1, 2], [3, 1, 2, 3]),
    ],
)
def test_what_follows_an_earlier_occurrence_is_the_draft(tokens: list[int], expected: list[int]):
    assert drafted(tokens) == expected


@pytest.mark.parametrize("ngram", [1, 2, 3, 5])
def test_reading_in_parts_is_reading_at_once(ngram: int):
    tokens = [1, 2, 3, 1, 2, 4, 1, 2, 3, 1, 2, 4, 7, 1, 2, 3]
    one_by_one = PromptLookup(ngram)
    for end in range(1, len(tokens) + 1):
        one_by_one.read(tokens[:end])
    assert one_by_one._places == lookup(tokens, ngram)._places


def test_a_guess_that_was_right_is_continued():
    """The longest match wins: after 1 2 3 4, not after the later 3 4."""
    text = [1, 2, 3, 4, 8, 9, 3, 4, 6, 7, 1, 2]
    made = lookup(text)
    assert list(made.draft(text, 3, 0.0)) == [3, 4, 8]
    text += [3, 4]
    made.read(text)
    assert list(made.draft(text, 2, 0.0)) == [8, 9]


def test_the_number_of_tokens_follows_from_how_many_guesses_were_right():
    text = [1, 2, 3, 4] * 3
    made = lookup(text)
    first = len(made.draft(text, 64, 0.2))
    for token in [1, 2, 3, 4] * 5:
        text.append(token)
        made.read(text)
    assert made.hit_rate > 0.95
    assert len(made.draft(text, 64, 0.2)) == 64 > first > 0
    assert len(made.draft(text, 64, 0.9)) < 64
    for token in range(10, 40):  # nothing of this is guessed: what was guessed once was wrong
        text.append(token)
        made.read(text)
    assert made.draft(text, 64, 0.0) == ()
    before = made.hit_rate
    for _ in range(10):
        text += [1, 2]
        made.read(text)
        text.append(len(text) + 100)
    assert made.hit_rate < before / 2


def test_a_draft_ends_where_its_next_token_would_be_too_unlikely():
    text = [1, 2, 3, 4] * 3
    made = lookup(text)
    assert made.hit_rate == 0.5
    lengths = [len(made.draft(text, 64, least)) for least in (0.6, 0.5, 0.49, 0.26, 0.24, 0.13, 0.12)]
    assert lengths == [0, 0, 1, 1, 2, 2, 3]  # a half, a quarter, an eighth


def test_a_token_is_worth_less_the_more_requests_run():
    assert least_likely(0.0, 32) == 0.0
    least = [least_likely(0.1, running) for running in (1, 4, 16, 32)]
    assert least == sorted(least)
    assert least[0] < 0.15
    text = [1, 2] * 20
    made = lookup(text[:4])
    made.read(text)
    assert [len(made.draft(text, 8, share)) for share in least] == [8, 8, 8, 0]  # 32 requests guess nothing


class Doubtful(PromptLookup):
    """Always has a guess, which is right with a probability of one half; here it is wrong."""

    def __init__(self) -> None:
        super().__init__(ngram=Knobs().lookup_ngram)

    def draft(self, token_ids: Sequence[int], most: int, least_likely: float) -> Sequence[int]:
        return [0] * most if least_likely < 0.5 and most > 0 else ()


def guessing_rig(count: int, max_new_tokens: int = 8, **settings: Any) -> Rig:
    rig = Rig(**{"speculative_tokens": 6, **settings})
    for number in range(count):
        rig.add([number, 8, 9] * 3, max_new_tokens).lookup = Doubtful()
    return rig


def test_drafts_count_as_tokens_of_the_step_and_have_blocks():
    rig = guessing_rig(2, 20, step_max_tokens=9)
    while len(rig.steps) < 3 or rig.steps[-1].prompt_tokens:
        rig.step()
    step = rig.steps[-1]
    assert [len(entry.draft) for entry in step.entries] == [6, 1]  # together nine tokens
    assert (step.decode_tokens, step.draft_tokens, step.accepted_tokens) == (9, 7, 0)
    for entry in step.entries:
        assert len(entry.request.block_table) * BLOCK_SIZE >= entry.start + entry.num_tokens
        assert entry.request.num_computed_tokens == entry.start + 1  # what was wrong is computed again
    rig.run()


def test_prompts_come_before_drafts():
    rig = guessing_rig(1, step_max_tokens=9)
    rig.step()
    rig.add(range(10, 18), 4)
    step = rig.step()
    assert (step.prompt_tokens, step.draft_tokens) == (8, 0)


def test_no_more_is_guessed_than_the_answer_may_have():
    rig = guessing_rig(1, max_new_tokens=4)
    rig.run()
    assert [step.draft_tokens for step in rig.steps] == [0, 2, 1, 0]


def test_many_requests_compute_no_doubtful_drafts():
    """With 16 requests, a token is only worth computing if it is almost certain; alone, already if it is likely."""
    for count, guesses in ((1, True), (16, False)):
        rig = guessing_rig(count)
        rig.scheduler.token_cost = 0.2
        assert any(rig.step().draft_tokens for _ in range(3)) == guesses


def test_drafts_preempt_nothing():
    plain, guessing = guessing_rig(4, num_blocks=17, speculative_tokens=0), guessing_rig(4, num_blocks=17)
    for rig in (plain, guessing):
        rig.run()
    assert any(step.draft_tokens for step in guessing.steps)
    assert not any(step.preempted for rig in (plain, guessing) for step in rig.steps)


def test_a_block_stays_free_for_each_request():
    rig = Rig(num_blocks=9, speculative_tokens=6)
    for number in range(2):
        rig.add([number] * 11, 6).lookup = Doubtful()
    rig.step()
    assert rig.scheduler.pool.num_available == 2
    assert rig.step().draft_tokens == 0  # the next tokens fill the blocks that the requests hold


def test_steps_do_not_overlap():
    rig = guessing_rig(1)
    assert not rig.scheduler.can_run_ahead(rig.step())
    rig.launch()
    rig.set_knobs(speculative_tokens=0)
    assert rig.steps[-1].draft_tokens
    assert not rig.scheduler.can_run_ahead(rig.steps[-1])  # it is not known how many tokens it adds
    rig.land()
    assert rig.scheduler.can_run_ahead(rig.step())
