"""Sampling tokens: each request's draw is independent of the others, and each parameter does what its name says."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch

from roseplay.config import SamplingParams
from roseplay.core.request import Request
from roseplay.core.step import Step, StepEntry
from roseplay.model import sampler
from roseplay.model.accelerator import Accelerator
from roseplay.model.gumbel import gumbel, row_keys
from roseplay.model.sampler import Logprobs, draw
from roseplay.model.step_sampler import StepSampler
from roseplay.model.top_k_top_p import cut_threshold

VOCABULARY = 1000


def request(prompt: tuple[int, ...] = (1, 2, 3), answer: tuple[int, ...] = (), **params: Any) -> Request:
    made = Request(0, list(prompt), SamplingParams(**params))
    made.token_ids += answer
    return made


def random_logits(rows: int, vocabulary: int = VOCABULARY, seed: int = 0, scale: float = 3.0) -> torch.Tensor:
    return torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(seed)) * scale


def sample(logits: torch.Tensor, requests: list[Request]) -> list[int]:
    """Draw one token per row, see ``draw``, and return them as a list."""
    tokens: list[int] = draw(logits, requests).tolist()
    return tokens


def drawn_set(row: torch.Tensor, draws: int = 400, **params: Any) -> set[int]:
    """The tokens that are drawn over many seeds."""
    requests = [request(seed=seed, temperature=1.0, **params) for seed in range(draws)]
    return set(sample(row.expand(draws, -1), requests))


def naive_kept(row: torch.Tensor, top_k: int | None, top_p: float, min_p: float, temperature: float) -> set[int]:
    """The tokens that top-k, top-p and min-p keep, computed token by token."""
    scores = (row / temperature).tolist()
    order = sorted(range(len(scores)), key=lambda i: -scores[i])
    kept = order[: top_k or len(order)]
    total = sum(math.exp(scores[i] - scores[order[0]]) for i in kept)
    result, mass = [], 0.0
    for i in kept:
        if top_p < 1 and mass >= top_p:
            break
        result.append(i)
        mass += math.exp(scores[i] - scores[order[0]]) / total
    return {i for i in result if math.exp(scores[i] - scores[order[0]]) >= min_p}


MIXED = [
    {"temperature": 0.0},
    {"temperature": 0.8, "seed": 1},
    {"temperature": 1.0, "seed": 2, "top_k": 5},
    {"temperature": 1.0, "seed": 3, "top_p": 0.5},
    {"temperature": 1.2, "seed": 4, "min_p": 0.1},
    {"temperature": 0.7, "seed": 5, "top_k": 700, "top_p": 0.99, "repetition_penalty": 1.3},
    {"temperature": 30.0, "seed": 6, "top_p": 0.9},
    {"temperature": 0.0, "presence_penalty": 1.0, "frequency_penalty": 0.5},
    {"temperature": 0.9, "seed": 7, "top_k": 10**9},
]


def test_a_request_draws_the_same_whatever_it_is_batched_with():
    requests = [request(answer=(4, 4, 9), **params) for params in MIXED]
    logits = random_logits(len(requests))
    alone = [sample(logits[i : i + 1], [r])[0] for i, r in enumerate(requests)]
    assert sample(logits, requests) == alone
    order = [5, 0, 8, 3, 3, 1, 7, 6, 2, 4]
    assert sample(logits[order], [requests[i] for i in order]) == [alone[i] for i in order]


def test_draws_depend_on_seed_and_position():
    row = random_logits(1, scale=0.1)
    base = {"temperature": 1.0, "seed": 1}
    first = sample(row, [request(**base)])
    assert sample(row, [request(prompt=(7, 8, 9), **base)]) == first  # the tokens themselves do not matter
    others = {sample(row, [request(answer=(1,) * n, **base)])[0] for n in range(1, 9)}
    others |= {sample(row, [request(temperature=1.0, seed=seed)])[0] for seed in range(2, 10)}
    assert len(others) > 12


def test_big_seeds_are_all_different():
    keys = {row_keys(seed, position) for seed in (0, 1, 2**31, 2**32, 2**63 - 1, 2**64 - 1) for position in range(50)}
    assert len(keys) == 300
    assert all(-(2**31) <= k < 2**31 for pair in keys for k in pair)


def test_noise_is_pinned():
    """These numbers are a contract: changing them would change every seeded answer."""
    keys = torch.tensor([row_keys(42, 7), row_keys(2**63 - 1, 0)], dtype=torch.int32)
    expected = torch.tensor([[0.9749, 0.0695, 0.6693], [0.7908, 2.4993, -1.1739]])
    assert torch.allclose(gumbel(keys, 3), expected, atol=1e-4)


def test_noise_is_what_plain_integers_give():
    """The same hash on Python's integers, which have neither a sign bit nor wrap-around."""

    def lowbias32(x: int, key: int) -> int:
        x ^= x >> 16
        x = (x * 0x7FEB352D) & 0xFFFFFFFF
        x ^= key
        x ^= x >> 15
        x = (x * 0x846CA68B) & 0xFFFFFFFF
        return x ^ (x >> 16)

    first, second = (key & 0xFFFFFFFF for key in row_keys(123456789, 31))
    expected = [
        -math.log(-math.log(((lowbias32(lowbias32(token + 1, 0) ^ first, second) >> 9) + 0.5) / 2**23))
        for token in range(2000)
    ]
    keys = torch.tensor([row_keys(123456789, 31)], dtype=torch.int32)
    assert gumbel(keys, 2000)[0].tolist() == pytest.approx(expected, abs=1e-4)


def test_noise_is_gumbel_and_independent():
    rows = [row_keys(seed, position) for seed in range(8) for position in range(8)]
    noise = gumbel(torch.tensor(rows, dtype=torch.int32), 4096).double().numpy()
    uniform = np.exp(-np.exp(-noise))
    counts = np.histogram(uniform, bins=256, range=(0, 1))[0]
    expected = uniform.size / 256
    assert ((counts - expected) ** 2 / expected).sum() < 256 + 5 * math.sqrt(2 * 256)
    correlations = np.corrcoef(uniform)
    assert np.abs(correlations - np.eye(64)).max() < 5 / math.sqrt(4096)  # rows are seeds and positions
    columns = np.corrcoef(uniform[:, :512].T)
    assert abs((columns.sum() - 512) / (512 * 511)) < 0.005  # adjacent tokens
    bits = (uniform * 2**23).astype(np.int64)
    assert all(abs(((bits >> bit) & 1).mean() - 0.5) < 0.005 for bit in range(23))


def test_draws_follow_the_softmax():
    row = torch.tensor([[2.0, 1.0, 0.0, -1.0, 0.5]])
    draws = 20000
    tokens = sample(row.expand(draws, -1), [request(temperature=1.5, seed=seed) for seed in range(draws)])
    expected = (row[0] / 1.5).softmax(-1)
    share = torch.bincount(torch.tensor(tokens), minlength=5) / draws
    assert (share - expected).abs().max() < 4 * math.sqrt(0.25 / draws)


def test_greedy_takes_the_largest_and_leaves_logits_alone():
    logits = random_logits(4)
    before = logits.clone()
    requests = [request(temperature=0.0, top_k=3, top_p=0.1, seed=i) for i in range(4)]
    assert sample(logits, requests) == logits.argmax(-1).tolist()
    sample(logits, [request(temperature=1.0, seed=i, repetition_penalty=2.0, top_p=0.3) for i in range(4)])
    assert torch.equal(logits, before)


def test_a_known_argmax_is_drawn_by_greedy_rows_without_penalties():
    logits, known = random_logits(3), [7, 8, 9]
    mixed = [request(), request(temperature=0.7, seed=1), request()]
    assert draw(logits, mixed, argmax=torch.tensor(known)).tolist() == [7, sample(logits, mixed)[1], 9]
    penalised = [request(), request(repetition_penalty=1.5), request()]
    assert draw(logits, penalised, argmax=torch.tensor(known)).tolist() == sample(logits, penalised)


def test_a_known_argmax_is_not_that_of_other_rows():
    request_of_row = [request(), request()]
    entries = [StepEntry(r, 2, 1, samples=True, logits_entry=0) for r in request_of_row]  # equal prompts share a row
    logits = random_logits(1)
    draws = StepSampler(lambda: None, Accelerator).sample(Step(0, entries), [0], logits, argmax=torch.tensor([7]))
    assert draws is not None
    assert [token for _, token, _ in draws.read()] == sample(logits, [request()]) * 2


def test_tiny_temperatures_are_greedy():
    logits = random_logits(3)
    for temperature in (1e-40, 1e-6, 1e-4):
        assert sample(logits, [request(temperature=temperature, seed=1)] * 3) == logits.argmax(-1).tolist()


@pytest.mark.parametrize("top_k", [None, VOCABULARY, VOCABULARY + 1, 10**12])
def test_top_k_of_the_whole_vocabulary_and_top_p_of_one_cut_nothing(top_k: int | None):
    logits = random_logits(6)
    plain = sample(logits, [request(temperature=1.0, seed=i) for i in range(6)])
    assert sample(logits, [request(temperature=1.0, seed=i, top_k=top_k, top_p=1.0) for i in range(6)]) == plain


@pytest.mark.parametrize(
    "cuts",
    [
        {"top_k": 4},
        {"top_p": 0.6},
        {"min_p": 0.2},
        {"top_k": 6, "top_p": 0.7},
        {"top_k": 6, "top_p": 0.9, "min_p": 0.15},
        {"top_p": 1e-9},
    ],
)
def test_cuts_keep_what_a_naive_reading_keeps(cuts: dict[str, Any]):
    row = random_logits(1, vocabulary=24, seed=3, scale=1.5)
    kept = naive_kept(row[0], cuts.get("top_k"), cuts.get("top_p", 1.0), cuts.get("min_p", 0.0), 1.0)
    assert drawn_set(row, draws=4000, **cuts) == kept


@pytest.mark.parametrize("scale", [0.0, 1e-4, 0.3, 3.0, 60.0])
def test_thresholds_are_exact_on_flat_and_on_sharp_rows(scale: float):
    """All tokens that the naive computation keeps and no others, apart from ties; all kinds of rows at once."""
    params = [SamplingParams(top_p=0.1 + 0.2 * i) for i in range(5)]
    params += [SamplingParams(top_k=k) for k in (1, 2, 50, 999, 1000)]
    params += [SamplingParams(top_k=300, top_p=0.8, min_p=0.01), SamplingParams(min_p=0.2), SamplingParams()]
    logits = random_logits(len(params), seed=4, scale=scale)
    logits[:, 17] = float("-inf")
    threshold = cut_threshold(logits, params)
    assert threshold is not None
    assert torch.equal(cut_threshold(logits, params, sort=True), threshold), "by sorting whole rows"
    assert torch.equal(cut_threshold(logits[5:9], params[5:9], sort=True), threshold[5:9])
    for row, least, p in zip(logits, threshold, params, strict=True):
        kept = naive_kept(row, p.top_k, p.top_p, p.min_p, 1.0)
        ours = set(torch.nonzero(row >= least).flatten().tolist())
        assert kept <= ours
        assert {float(row[i]) for i in ours - kept} <= {min(float(row[i]) for i in kept)}  # ties at the threshold


def test_equals_at_the_cut_are_all_kept():
    row = torch.tensor([[3.0, 1.0, 1.0, 1.0, 0.0]])
    assert drawn_set(row, top_k=2) == {0, 1, 2, 3}


def naive_penalties(row: torch.Tensor, r: Request) -> torch.Tensor:
    row, params = row.clone(), r.sampling
    for token in range(row.shape[0]):
        if token in r.token_ids:
            row[token] = (
                row[token] / params.repetition_penalty if row[token] > 0 else row[token] * params.repetition_penalty
            )
        count = r.token_ids[r.num_prompt_tokens :].count(token)
        row[token] -= params.frequency_penalty * count + params.presence_penalty * (count > 0)
    return row


def test_penalties_are_those_of_a_naive_reading():
    logits = random_logits(5)
    requests = [
        request((1, 2, 2), (5, 5, 6), repetition_penalty=1.7),
        request((1, 2, 2), (5, 5, 6), presence_penalty=0.7),
        request((1, 2, 2), (5, 5, 6), frequency_penalty=-0.4),
        request((1, 2, 2), (5, 5, 2), repetition_penalty=0.5, presence_penalty=1.1, frequency_penalty=0.3),
        request((1, 2, 2), ()),
    ]
    ours = sampler._penalised(logits, requests)
    for row, (raw, r) in enumerate(zip(logits, requests, strict=True)):
        assert torch.allclose(ours[row], naive_penalties(raw, r), atol=1e-5)


def test_penalties_skip_tokens_that_have_no_logit():
    logits = random_logits(1, vocabulary=10)
    penalised = request((3, 99), (98, 4), repetition_penalty=2.0, frequency_penalty=1.0)
    assert 0 <= sample(logits, [penalised])[0] < 10


def test_penalised_greedy_avoids_repeats():
    logits = torch.zeros(1, 10)
    logits[0, 4] = 1.0
    assert sample(logits, [request((1,), (4,), presence_penalty=2.0)]) != [4]
    assert sample(logits, [request((4,), (), presence_penalty=2.0)]) == [4]  # the prompt does not count
    assert sample(logits, [request((4,), (), repetition_penalty=1e2, frequency_penalty=2.0)]) == [4]


def test_logprobs_are_of_the_raw_logits():
    logits = random_logits(4)
    requests = [
        request(logprobs=3, temperature=9.0, seed=1, repetition_penalty=3.0),
        request(),
        request(logprobs=0),
        request(logprobs=20),
    ]
    tokens = [7, 8, 9, 10]
    result = Logprobs(logits, requests, torch.tensor(tokens)).read()
    expected = logits.log_softmax(-1)
    assert result[1] is None
    for row, count in ((0, 3), (2, 0), (3, 20)):
        got = result[row]
        assert got is not None
        assert got.logprob == pytest.approx(float(expected[row, tokens[row]]), abs=1e-5)
        values, ids = expected[row].topk(count)
        assert [i for i, _ in got.top] == ids.tolist()
        assert [v for _, v in got.top] == pytest.approx(values.tolist(), abs=1e-5)
    few = Logprobs(logits[:, :5], [request(logprobs=20)], torch.tensor([0])).read()[0]
    assert few and few.top[4], "only five tokens exist"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_row_without_a_distribution_has_no_token(dtype: torch.dtype):
    for params, wait in itertools.product(MIXED, (True, False)):
        logits = random_logits(7).to(dtype)
        requests = [request(**params) for _ in range(7)]
        expected = sampler.draw(logits, requests, wait=wait)
        logits[1, 5] = torch.nan
        logits[2] = torch.nan
        logits[3, 7] = torch.inf
        logits[4] = -torch.inf
        logits[5, 9] = -torch.tensor(torch.nan)
        logits[6, 1:] = -torch.inf  # only one token is left
        found = sampler.draw(logits, requests, wait=wait).tolist()
        assert found == [int(expected[0]), -1, -1, -1, -1, -1, 0], (params, wait)
