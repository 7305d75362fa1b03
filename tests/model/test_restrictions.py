"""Which tokens may be drawn: biases, allowed tokens, bad words and a least length, in a batch as alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from roseplay.config import SamplingParams
from roseplay.core.request import PLACEHOLDER, Request
from roseplay.model.batch import Drawn
from roseplay.model.drawing import after_draft
from roseplay.model.restrictions import restricted
from roseplay.model.sampler import NO_TOKEN, draw
from tests.model.test_sampler import sample
from tests.model.test_sync_free import nothing_waits

VOCABULARY = 50
EOS = frozenset({3, 4})


def request(answer: tuple[int, ...] = (), *, number: int = 0, words: Any = (), **params: Any) -> Request:
    made = Request(number, [7, 8, 9], SamplingParams(**params), eos_token_ids=EOS, seed=5, bad_words=words)
    made.token_ids += answer
    return made


def logits(rows: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, VOCABULARY, generator=torch.Generator().manual_seed(seed)) * 3


def forbidden(*requests: Any, drawn: Drawn | None = None) -> list[set[int]]:
    changed = restricted(torch.zeros(len(requests), VOCABULARY), requests, drawn)
    return [set(row.isinf().nonzero().flatten().tolist()) for row in changed]


def test_biases_are_added() -> None:
    row = logits(1)
    changed = restricted(row, [request(logit_bias={"5": 2.5, 6: -100})])
    expected = row.clone()
    expected[0, 5] += 2.5
    expected[0, 6] -= 100
    assert torch.equal(changed, expected) and not torch.equal(changed, row)
    assert sample(row, [request(logit_bias={11: 100})]) == [11]


def test_a_known_argmax_is_not_that_of_restricted_rows() -> None:
    row = logits(1)
    assert draw(row, [request(logit_bias={11: 100})], argmax=row.argmax(-1)).tolist() == [11]


def test_only_allowed_tokens_are_drawn() -> None:
    allowed = (2, 30, 31)
    many = [Request(0, [1], SamplingParams(temperature=5, seed=n, allowed_token_ids=allowed)) for n in range(200)]
    assert set(sample(logits(1).expand(200, -1), many)) == set(allowed)


def test_a_bad_word_is_not_completed() -> None:
    words = [[10], [20, 21, 22], [30, 31]]
    assert forbidden(request(words=words)) == [{10}]
    assert forbidden(request((20, 21), words=words)) == [{10, 22}]
    assert forbidden(request((1, 20, 21), words=words), request((20, 30), words=words)) == [{10, 22}, {10, 31}]
    assert forbidden(request((21,), words=[[9, 21, 5]])) == [set()], "what the prompt ends with does not count"


def test_the_last_token_of_a_bad_word_may_follow_one_that_only_the_device_knows() -> None:
    words = [[10], [20, 21, 22], [30, 31], [21, 23], [40, 21, 24]]
    late = [request((20, PLACEHOLDER), number=n, words=words) for n in range(2)]
    assert forbidden(*late, drawn=Drawn(torch.tensor([30, 21]), {0: 1, 1: 0})) == [{10, 22, 23}, {10, 31}]


def test_a_draft_counts_as_drawn() -> None:
    asked = request((20,), words=[[20, 21, 22]], min_new_tokens=3, max_new_tokens=9)
    assert forbidden(*(after_draft(asked, draft) for draft in ([], [21], [21, 5]))) == [EOS, EOS | {22}, set()]


def test_the_end_is_not_drawn_too_early() -> None:
    short, long = (request(answer, min_new_tokens=2) for answer in ((5,), (5, 6)))
    assert forbidden(short, long, request(min_new_tokens=2, stop_token_ids=[30])) == [EOS, set(), EOS | {30}]
    only_end = request(min_new_tokens=2, allowed_token_ids=[3])
    assert sample(logits(1), [only_end]) == [3], "nothing else is left, as when a grammar is complete"


def test_a_row_without_allowed_tokens_has_none() -> None:
    assert sample(logits(2), [request(allowed_token_ids=[10], words=[[10]]), request(words=[[10]])])[0] == NO_TOKEN


MIXED: list[dict[str, Any]] = [
    {},
    {"logit_bias": {5: 8.0}, "temperature": 1.0},
    {"allowed_token_ids": [1, 2, 3], "temperature": 0.9, "min_new_tokens": 4},
    {"words": [[44], [1, 2]], "repetition_penalty": 1.3, "temperature": 1.2, "top_p": 0.9},
    {"temperature": 1.0, "top_k": 4},
    {"words": [[44]], "logit_bias": {7: -3.0}, "presence_penalty": 1.0},
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_request_draws_the_same_whatever_it_is_batched_with(dtype: torch.dtype) -> None:
    rows = logits(len(MIXED), seed=3).to(dtype)
    before = rows.clone()
    requests = [request((1,), number=n, **{"max_new_tokens": 9, **params}) for n, params in enumerate(MIXED)]
    together = sample(rows, requests)
    assert together == [sample(rows[n : n + 1], [asked])[0] for n, asked in enumerate(requests)]
    assert together[::-1] == sample(rows.flip(0), requests[::-1])
    assert torch.equal(rows, before)


def test_nothing_waits_for_the_device() -> None:
    changes: dict[str, Any] = {"min_new_tokens": 9, "logit_bias": {5: 2.0}, "allowed_token_ids": range(3, 40)}
    asked = request((20, PLACEHOLDER), words=[[10], [20, 21, 22], [21, 23]], **changes)
    with nothing_waits():
        draw(logits(1), [asked], Drawn(torch.tensor([21]), {0: 0}), wait=False)
