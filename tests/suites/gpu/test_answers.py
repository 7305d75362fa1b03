"""A GPU's steps, replayed and launched ahead, give the same tokens as plain steps with the reference attention."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import torch

import roseplay.kernels  # noqa: F401
from roseplay.config import SamplingParams
from roseplay.core.info import EngineInfo
from roseplay.core.request import Request
from roseplay.core.step import Step, StepEntry
from roseplay.engine.client import Engine
from roseplay.kernels.cuda.graphs import StepGraphs, waiting_is_an_error
from roseplay.model.loader import load_model
from roseplay.model.runner import ModelRunner
from tests.suites.gpu.answers import (
    FAMILIES,
    GREEDY,
    SAMPLED,
    TIE,
    LogitsOf,
    agree_but_for_rounding,
    answers,
    engine_config,
    prompts,
    same_until_a_tie,
    small_model,
)
from tests.suites.gpu.conftest import ON_GPU

GRAPHS_FOR_SURE = ("llama", "qwen3_5_text", "lfm2", "bamba")
slow_without_a_gpu = [] if ON_GPU else [pytest.mark.slow]


def wrong_answers(folder: str, device: str) -> tuple[list[int], EngineInfo]:
    """Which greedy answers with all optimizations differ from those of plain steps, and the optimized engine's info."""
    with Engine(
        folder, config=engine_config(device, "reference", fuse_ops=False), cuda_graphs=False, overlap=False
    ) as plain:
        right = answers(plain, [GREEDY])
    with Engine(folder, config=engine_config(device)) as engine:
        found, info = answers(engine, [GREEDY]), engine.info
    pairs = zip(right, found, strict=True)
    return [number for number, pair in enumerate(pairs) if not same_until_a_tie(*pair)], info


@pytest.mark.parametrize(
    "family", ["llama", *(pytest.param(name, marks=slow_without_a_gpu) for name in FAMILIES if name != "llama")]
)
def test_greedy_answers_are_those_of_plain_steps(family: str, device: str, tmp_path: Path):
    wrong, info = wrong_answers(small_model(family, tmp_path), device)
    assert not wrong, info
    if family in GRAPHS_FOR_SURE:
        assert info.cuda_graphs, info.no_cuda_graphs


def test_a_wrong_replay_shows(device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    replay = StepGraphs.replay
    monkeypatch.setattr(StepGraphs, "replay", lambda self, *args: -replay(self, *args))
    wrong, _ = wrong_answers(small_model("gpt2", tmp_path), device)
    assert wrong


def test_overlap_and_graphs_change_no_answer(device: str, tmp_path: Path):
    """Greedy and sampled answers; equal up to rounding, since a padded step multiplies matrices of other sizes."""
    folder, params = small_model("llama", tmp_path), [GREEDY, *SAMPLED]
    given: dict[tuple[bool, bool], list[list[int]]] = {}
    with Engine(folder, config=engine_config(device)) as engine:
        for overlap in (True, False):
            for graphs in (True, False):
                engine.clear_cache()
                engine.set_knobs(overlap=overlap, cuda_graphs=graphs)
                given[overlap, graphs] = [stream.token_ids for stream in answers(engine, params)]
    logits = LogitsOf(folder, engine_config(device, "reference"))
    asked = [(prompt, params[i % len(params)]) for i, prompt in enumerate(prompts())]
    base = given[True, True]
    for tokens in given.values():
        for request, pair in zip(asked, zip(base, tokens, strict=True), strict=True):
            assert agree_but_for_rounding(logits, *request, *pair), request


def test_no_launch_waits_for_the_device(device: str, tmp_path: Path):
    """Steps with all kinds of sampling, launched while torch raises for any operation that would wait for a GPU."""
    config = engine_config(device)
    runner = ModelRunner(load_model(small_model("llama", tmp_path), config), config)
    asked = enumerate(zip(prompts(), [GREEDY, *SAMPLED] * 2, strict=True))
    more: dict[str, Any] = {"eos_token_ids": frozenset({1}), "bad_words": [[5], [6, 7]]}
    requests = [Request(i, prompt, params, **(more if i % 2 else {})) for i, (prompt, params) in asked]
    for i, request in enumerate(requests):
        request.block_table = list(range(1 + 20 * i, 21 + 20 * i))
    for graphs in (True, False):
        for number in range(3):
            starts = [0 if number == 0 else request.num_tokens - 1 for request in requests]
            entries = [
                StepEntry(request, start, request.num_tokens - start, samples=True, logits_entry=i)
                for i, (request, start) in enumerate(zip(requests, starts, strict=True))
            ]
            with waiting_is_an_error() if device == "cuda" else contextlib.nullcontext():
                step = runner.launch(Step(number, entries, cuda_graphs=graphs))
            for request, token in zip(requests, step.result().token_ids, strict=True):
                assert token is not None
                request.token_ids.append(token)


# -- how answers are compared: up to a position where rounding decides, and no further


def two_good_tokens(tokens: list[int]) -> torch.Tensor:
    """After two tokens, 5 and 9 are nearly equally likely; otherwise the likeliest token is the number of tokens."""
    row = torch.zeros(1, 20)
    row[0, len(tokens)] = 6.0
    if len(tokens) == 2:
        row[0, 5], row[0, 9] = 8.0, 8.0 + TIE / 2
    return row


@pytest.mark.parametrize(
    ("right", "found", "agree"),
    [
        ([9, 3, 4], [9, 3, 4], True),
        ([9, 3, 4], [5, 1, 1], True),  # after the tie, any tokens agree
        ([5, 3, 4], [9, 3, 4], True),
        ([9, 3, 4], [7, 3, 4], False),
        ([9, 3, 4], [9, 2, 4], False),
        ([9, 3, 4], [9, 3, 5], False),
    ],
)
def test_greedy_answers_agree_up_to_a_tie(right: list[int], found: list[int], agree: bool):
    assert agree_but_for_rounding(two_good_tokens, [1, 1], SamplingParams(), right, found) is agree


def test_drawn_answers_agree_up_to_a_tie():
    warm = SamplingParams(temperature=0.01, top_p=0.9, seed=3)
    assert agree_but_for_rounding(two_good_tokens, [1, 1, 1], warm, [3, 7], [3, 7])
    assert not agree_but_for_rounding(two_good_tokens, [1, 1, 1], warm, [3, 7], [12, 7])
