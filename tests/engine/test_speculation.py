"""Prompt-lookup speculation: the same tokens as without it, from fewer steps."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from roseplay import Engine, SamplingParams
from roseplay.core.request import Request
from roseplay.core.step import Step, StepEntry
from roseplay.engine.errors import EngineStartError
from roseplay.engine.records import StepRecord
from roseplay.engine.stream import Stream
from roseplay.model.accelerator import Accelerator
from roseplay.model.launch import DeviceTimer, LaunchedStep
from roseplay.model.step_sampler import StepSampler
from tests.engine.cases import KNOBS, engines_of, prompts
from tests.engine.test_overlap import has_no_blocks, open_engine, records
from tests.hardware import needs_simulation
from tests.model.families import FAMILIES, STATEFUL, tiny_model
from tests.model.harness import PLAIN, recording_options

LONG = 24
# Makes the tokens of the answer likelier, so that the answers of models without training repeat themselves.
REPEATING = SamplingParams(max_new_tokens=LONG, frequency_penalty=-1.0, logprobs=3, ignore_eos=True)
PARAMS = [
    SamplingParams(max_new_tokens=LONG, ignore_eos=True),
    SamplingParams(max_new_tokens=LONG, temperature=0.3, seed=3, ignore_eos=True),
    SamplingParams(max_new_tokens=14, temperature=0.8, seed=4, top_k=20, top_p=0.9, repetition_penalty=1.3),
    REPEATING,
    SamplingParams(max_new_tokens=LONG, temperature=0.2, seed=5, min_p=0.1, stop_token_ids=tuple(range(10, 20))),
    SamplingParams(max_new_tokens=LONG, logprobs=0, prompt_logprobs=1, ignore_eos=True),
    SamplingParams(max_new_tokens=LONG, temperature=0.6, seed=6, min_new_tokens=9, stop_token_ids=tuple(range(1, 20))),
    SamplingParams(
        max_new_tokens=LONG, allowed_token_ids=tuple(range(3, 9)), logit_bias={5: 2.0, 6: -3}, ignore_eos=True
    ),
    SamplingParams(max_new_tokens=1),
    SamplingParams(max_new_tokens=2),
]
CASES: dict[str, dict[str, Any]] = {
    **KNOBS,
    "after preemption": {"num_blocks": 26},
    "gathered": {"attention": "gather"},
    "not recorded": {"record_steps": False},
}
Asked = list[tuple[list[int], SamplingParams]]


@pytest.fixture(autouse=True, scope="module")
def soon_recorded() -> Iterator[None]:
    with recording_options(warm_up_tokens=4):
        yield


def asked() -> Asked:
    """Each prompt and one that repeats, with each kind of sampling; some are equal, as for several choices."""
    repeating = [[3, 4, 5, 6, 7] * 4, [8] * 9, [*prompts()[4], *prompts()[4]]]
    pairs = list(zip([*prompts(), *repeating], itertools.cycle(PARAMS), strict=False))
    return [*pairs, *((prompt, PARAMS[1]) for prompt in repeating), (repeating[0], PARAMS[1]), ([5, 6, 7], REPEATING)]


def answers(engine: Engine, requests: Asked) -> list[Stream]:
    streams = [engine.submit(prompt, params) for prompt, params in requests]
    results = [stream.result(60) for stream in streams]
    assert not any(result.error for result in results), [result.error for result in results]
    return results


def compare(engine: Engine, requests: Asked, **knobs: int) -> list[StepRecord]:
    """Check the same requests without and with speculation; returns the records of the steps with it."""
    expected = answers(engine, requests)
    engine.clear_cache()
    begin = engine.telemetry.since(0)[0]
    engine.set_knobs(**{"speculative_tokens": 5, "lookup_ngram": 1, **knobs})
    found = answers(engine, requests)
    engine.set_knobs(speculative_tokens=0)
    for theirs, ours in zip(expected, found, strict=True):
        assert (ours.token_ids, ours.finish_reason) == (theirs.token_ids, theirs.finish_reason)
        for mine, other in zip(ours.logprobs, theirs.logprobs, strict=True):
            assert mine.logprob == pytest.approx(other.logprob, abs=1e-3)
            assert [token for token, _ in mine.top] == [token for token, _ in other.top]
    steps = records(engine, begin)
    assert all(0 <= step.accepted_tokens <= step.draft_tokens < max(1, step.decode_tokens) for step in steps)
    tokens = sum(len(stream.token_ids) for stream in found)
    drawn_at_once = sum(1 for step in steps for entry in step.entries if entry.decode_tokens)
    assert tokens - sum(step.accepted_tokens for step in steps) >= drawn_at_once
    return steps


def test_the_same_tokens_with_and_without(tiny_llama: Any):
    for case, engine in engines_of(CASES, tiny_llama, num_blocks=200, dtype="float32"):
        steps = compare(engine, asked())
        assert sum(step.accepted_tokens for step in steps) > 0, case
        assert bool(sum(len(step.preempted) for step in steps)) == (case == "after preemption"), case
        if case == "few tokens a step":
            assert max(step.prompt_tokens + step.decode_tokens for step in steps) <= 5


@pytest.mark.parametrize(
    "family",
    [pytest.param(family, marks=() if family in ("gpt2", "gemma2") else pytest.mark.slow) for family in FAMILIES],
)
def test_the_same_tokens_in_every_family(family: str):
    settings = {"block_size": 4, "num_blocks": 60, "dtype": "float32", "record_steps": False}
    repeating = [3, 4, 5, 6, 7] * 4
    requests = [(repeating, PARAMS[0]), (repeating, PARAMS[1]), ([5, 6, 7], REPEATING), (prompts()[5], PARAMS[4])]
    with Engine(tiny_model(FAMILIES[family]()), **settings) as engine:
        steps = compare(engine, requests)
        assert sum(step.accepted_tokens for step in steps) > 0


def test_text_that_repeats_takes_fewer_steps(tiny_llama: Any):
    with Engine(tiny_llama, block_size=4, num_blocks=50, dtype="float32") as engine:
        params = SamplingParams(max_new_tokens=60, frequency_penalty=-1.0, ignore_eos=True)
        steps = compare(engine, [([5, 6, 7], params)], lookup_ngram=2)
    drafted, accepted = (sum(getattr(step, f"{kind}_tokens") for step in steps) for kind in ("draft", "accepted"))
    assert accepted > 0.5 * drafted > 10
    assert sum(1 for step in steps if step.decode_tokens) == 59 - accepted
    assert any(step.replayed for step in steps if step.draft_tokens), "steps with drafts are not replayed"


def test_steps_on_a_gpu(tiny_llama: Any):
    """Steps do not overlap while it is on, and graphs of mixed steps replay those with drafts."""
    with open_engine(tiny_llama, dtype="float32", num_blocks=200) as engine:
        for graphs in (True, False):
            engine.set_knobs(cuda_graphs=graphs)
            steps = [step for step in compare(engine, asked()) if step.draft_tokens and not step.prompt_tokens]
            replayed = {bool(step.replayed) for step in steps if step.decode_tokens <= 16}
            assert replayed == {graphs}


def test_the_next_turn_finds_the_blocks_that_drafts_filled(tiny_llama: Any):
    params = SamplingParams(max_new_tokens=30, frequency_penalty=-1.0, ignore_eos=True)
    prompt = [3, 4, 5, 6, 7] * 2
    cached = []
    with Engine(tiny_llama, block_size=4, num_blocks=60, dtype="float32") as engine:
        for count in (0, 7):
            engine.set_knobs(speculative_tokens=count, lookup_ngram=2)
            engine.clear_cache()
            (first,) = answers(engine, [(prompt, params)])
            (second,) = answers(engine, [([*prompt, *first.token_ids, 9], PARAMS[-1])])
            cached.append(second.metrics.cached_tokens)
        assert sum(record.accepted_tokens for record in records(engine)) > 0
    assert cached == [36, 36]  # the last token of the answer is not computed


def test_text_and_stop_strings(chat_engine: Engine):
    """An answer ends at the same place, although tokens behind it may have been accepted in the same step."""
    text = "The train to Bern leaves at nine. The train to Chur leaves at ten. The train to Bern leaves at nine."
    requests = [
        ([{"role": "user", "content": f"Repeat: {text}"}], SamplingParams(max_new_tokens=60, stop=stop, seed=1))
        for stop in ((), ("train",), ("at", "ten"), ("\n",))
    ]
    plain = [chat_engine.submit(*request).result(60) for request in requests]
    chat_engine.set_knobs(speculative_tokens=6, lookup_ngram=1)
    begin = chat_engine.telemetry.since(0)[0]
    found = [chat_engine.submit(*request).result(60) for request in requests]
    chat_engine.set_knobs(speculative_tokens=0, lookup_ngram=3)
    assert sum(record.draft_tokens for record in records(chat_engine, begin)) > 0
    for ours, theirs in zip(found, plain, strict=True):
        assert (ours.text, ours.finish_reason) == (theirs.text, theirs.finish_reason)
        assert ours.token_ids == theirs.token_ids
        assert ours.text_ends == theirs.text_ends


def test_an_aborted_request_leaves_no_blocks(tiny_llama: Any):
    with Engine(tiny_llama, block_size=4, num_blocks=60, speculative_tokens=7, lookup_ngram=1) as engine:
        streams = [engine.submit([3] * 9, SamplingParams(max_new_tokens=50, ignore_eos=True)) for _ in range(4)]
        assert streams[0].wait_for_first_token(20)
        for stream in streams:
            stream.cancel()
            stream.result(20)
        engine.submit([4], SamplingParams(max_new_tokens=1)).result(20)
        assert has_no_blocks(engine)


def test_a_draft_ends_before_a_row_from_which_nothing_can_be_drawn():
    """Its request goes on without an error: the next step computes that token again, as its own."""
    request = Request(0, [1, 2, 3], SamplingParams(logprobs=0))
    step = Step(0, [StepEntry(request, 2, 4, samples=True, logits_entry=0, draft=[5, 6, 7])])
    logits = torch.nn.functional.one_hot(torch.tensor([5, 6, 7, 8]), 10).float()
    logits[2, 0] = torch.nan
    draws = StepSampler(lambda: None, Accelerator).sample(step, [0], logits)
    timer, times = DeviceTimer(logits.device), {"prepare_ns": 0, "forward_ns": 0, "sample_ns": 0}
    result = LaunchedStep(step, draws, timer, **times, replayed=None, observe=lambda *_: None).result()
    assert (result.token_ids, result.errors) == ([5], {})
    assert [token for token, _ in result.after_draft[0]] == [6]
    assert all(logprobs is not None for _, logprobs in result.after_draft[0])


def test_models_with_recurrent_layers_refuse_it_by_name():
    model = tiny_model(STATEFUL["lfm2"]())
    with pytest.raises(EngineStartError, match="speculative_tokens needs a model without recurrent layers"):
        Engine(model, block_size=4, num_blocks=50, speculative_tokens=3, **PLAIN)
    with Engine(model, block_size=4, num_blocks=50, **PLAIN) as engine:
        with pytest.raises(ValueError, match="speculative_tokens needs a model without recurrent layers"):
            engine.set_knobs(speculative_tokens=3)
        assert engine.knobs.speculative_tokens == 0


@needs_simulation
def test_simulated_engines_refuse_it_by_name():
    with pytest.raises(EngineStartError, match="speculative_tokens cannot be simulated"):
        Engine("smollm2", run_as="h100", speculative_tokens=3)
