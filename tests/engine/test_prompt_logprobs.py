"""Log-probabilities of prompts are those of one forward of transformers over the whole prompt, however they are computed."""

from __future__ import annotations

import copy
import math
import random
from typing import Any

import pytest
import torch

from roseplay import Engine, SamplingParams
from roseplay.core.request import FinishReason, Request
from roseplay.core.step import Step, StepEntry
from roseplay.engine.stream import Stream
from roseplay.model.prompt_logprobs import PromptLogprobs
from tests.engine.cases import KNOBS, engines_of, prompts
from tests.engine.fake_runner import FakeRunner, Loop, submit
from tests.model.families import FAMILIES, LENGTH, VOCABULARY, tiny_model

CASES: dict[str, dict[str, Any]] = {
    **KNOBS,
    "recorded": {"record_steps": True},
    "one token a step": {"prefill_max_tokens": 1},
    "after preemption": {"num_blocks": 12},
    "after preemption, in chunks": {"num_blocks": 12, "prefill_max_tokens": 5, "prefix_cache": False},
}
TOP = 3


def asking(most: int = 4, prompt_logprobs: int | None = TOP, **params: Any) -> SamplingParams:
    return SamplingParams(max_new_tokens=most, prompt_logprobs=prompt_logprobs, ignore_eos=True, **params)


def reference_of(model: torch.nn.Module, prompt: list[int]) -> torch.Tensor:
    """Log-probabilities ``[tokens - 1, vocabulary]`` of what follows each token but the last."""
    with torch.inference_mode():
        return model(torch.tensor([prompt]), use_cache=False).logits[0, :-1].float().log_softmax(-1)


def check(model: torch.nn.Module, stream: Stream, tolerance: float = 1e-4) -> None:
    assert stream.error is None, stream.error
    prompt, top = stream.prompt_token_ids, stream.params.prompt_logprobs or 0
    first, *found = stream.prompt_logprobs
    assert first is None
    assert len(found) == len(prompt) - 1
    for token, row, own in zip(prompt[1:], reference_of(model, prompt), found, strict=True):
        assert own is not None
        assert own.logprob == pytest.approx(float(row[token]), abs=tolerance)
        likeliest = row.topk(top).values.tolist()
        assert [value for _, value in own.top] == pytest.approx(likeliest, abs=tolerance)
        assert [float(row[token_id]) for token_id, _ in own.top] == pytest.approx(likeliest, abs=tolerance)


@pytest.mark.parametrize(
    "family", ["gemma2", *(pytest.param(name, marks=pytest.mark.slow) for name in ("gpt2", "llama"))]
)
def test_they_are_those_of_a_plain_forward(family: str) -> None:
    model = tiny_model(FAMILIES[family]())
    reference = copy.deepcopy(model)
    for case, engine in engines_of(CASES, model, dtype="float32", record_steps=False):
        streams = [engine.submit(prompt, asking(12)) for prompt in prompts()]
        for stream in streams:
            check(reference, stream.result(60))
        if case.startswith("after preemption"):
            assert sum(stream.metrics.num_preemptions for stream in streams) > 0


def test_a_warm_cache_changes_nothing(engine: Engine, tiny_llama: torch.nn.Module) -> None:
    asked = prompts()
    cold = [engine.submit(prompt, asking()).result(60) for prompt in asked]
    warm = [engine.submit(prompt, asking()).result(60) for prompt in asked]
    for one, other in zip(cold, warm, strict=True):
        check(tiny_llama, other)
        assert one.token_ids == other.token_ids
    assert [stream.metrics.cached_tokens for stream in warm if len(stream.prompt_token_ids) > 1] == [0] * 9
    repeat = engine.submit(asked[-1], asking(prompt_logprobs=None)).result(60)
    assert repeat.metrics.cached_tokens == len(asked[-1]), "computed for log-probabilities, and cached for others"
    assert repeat.prompt_logprobs == []
    assert repeat.token_ids == warm[-1].token_ids


def test_beside_decodes_and_requests_that_do_not_ask(engine: Engine, tiny_llama: torch.nn.Module) -> None:
    asked = prompts()
    alone = [engine.submit(prompt, asking(20, None)).result(60).token_ids for prompt in asked]
    engine.clear_cache()
    engine.set_knobs(prefill_max_tokens=9)
    kinds = [None, TOP, 0, 20]
    streams = [engine.submit(prompt, asking(20, kinds[i % 4], logprobs=i % 3)) for i, prompt in enumerate(asked * 2)]
    for stream, tokens in zip(streams, alone * 2, strict=True):
        assert stream.result(60).token_ids == tokens
        assert len(stream.logprobs) == 20
        if stream.params.prompt_logprobs is None:
            assert stream.prompt_logprobs == []
        else:
            check(tiny_llama, stream)


def test_they_are_complete_with_the_first_token(engine: Engine) -> None:
    engine.set_knobs(prefill_max_tokens=4)
    seen = []

    def watch(stream: Stream) -> None:
        seen.append((bool(stream.token_ids), len(stream.prompt_logprobs)))

    engine.submit(prompts()[6], asking(), on_update=watch).result(60)
    assert {count for started, count in seen if started} == {24}
    assert len({count for started, count in seen if not started}) > 2, "they arrive with each part of the prompt"


def test_of_one_token_there_are_none(engine: Engine) -> None:
    assert engine.submit([5], asking()).result(60).prompt_logprobs == [None]


def test_rows_are_taken_a_few_at_a_time_and_tokens_that_the_model_never_predicts_are_impossible() -> None:
    """The logits may cover fewer tokens than the model accepts, and so may the tokenizer."""
    tokens = [5, 6, 7, VOCABULARY - 1, VOCABULARY, VOCABULARY + 7, 3, 9]
    request = Request(1, tokens, SamplingParams(prompt_logprobs=2))
    step = Step(0, [StepEntry(request, 0, len(tokens))], prompt_logprobs={0: range(1, len(tokens))})
    logits = torch.randn(len(tokens) - 1, VOCABULARY, generator=torch.Generator().manual_seed(1))
    (found,) = PromptLogprobs(step, logits, rows=3).read().values()
    rows = logits.log_softmax(-1)
    known = [
        float(row[token]) if token < VOCABULARY else -math.inf for row, token in zip(rows, tokens[1:], strict=True)
    ]
    assert [logprobs.logprob for logprobs in found] == pytest.approx(known)
    for logprobs, row in zip(found, rows, strict=True):
        assert [value for _, value in logprobs.top] == pytest.approx(row.topk(2).values.tolist())


def test_a_prompt_whose_logits_are_nan_ends_with_an_error(tiny_llama: torch.nn.Module) -> None:
    """Also in the middle of the prompt, where no token is drawn."""
    model = copy.deepcopy(tiny_llama)
    with torch.no_grad():
        model.get_input_embeddings().weight[7] = math.nan
    with Engine(model, block_size=4, num_blocks=100, prefill_max_tokens=4, record_steps=False) as engine:
        good = engine.submit([5, 6, 8, 9, 10], asking(1))
        bad = engine.submit([5, 6, 7, 8, 9, 10, 11, 12, 13], asking()).result(60)
        assert bad.finish_reason is FinishReason.ERROR
        assert "NaN" in (bad.error or "")
        assert bad.token_ids == []
        check(tiny_llama, good.result(60))


@pytest.mark.parametrize("runs_ahead", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_none_is_lost_and_none_comes_twice(seed: int, runs_ahead: bool) -> None:
    """Whichever request loses its blocks, in whichever part of its prompt."""
    rng = random.Random(seed)
    runner = FakeRunner(num_blocks=22, runs_ahead=runs_ahead)
    loop = Loop(runner, prefill_max_tokens=rng.choice([None, 2, 3]), prefix_cache=rng.random() < 0.7)
    script: list[Any] = []
    for number in range(24):
        prompt = [rng.randrange(2)] * rng.randrange(9) + [2 + rng.randrange(3) for _ in range(rng.randrange(1, 30))]
        asked = rng.choice([None, 0])
        script += [[submit(number, prompt, rng.randrange(1, 30), prompt_logprobs=asked)], *([[]] * rng.randrange(4))]
    loop.run(*script)
    loop.check_answers()
    assert sum(len(output.record.preempted) for output in loop.outputs) > 0
    for truth in loop.runner.device.truths.values():
        request = truth.request
        found = [
            logprob
            for output in loop.outputs
            for part in output.prompt_logprobs
            if part.request_id == request.request_id
            for logprob in part.logprobs
        ]
        positions = range(1, request.num_prompt_tokens if request.sampling.prompt_logprobs is not None else 1)
        assert found == (truth.prompt_logprobs(positions) if positions else [])


def test_a_prompt_as_long_as_the_context(tiny_llama: torch.nn.Module) -> None:
    prompt = [3 + i % 90 for i in range(LENGTH - 1)]
    with Engine(tiny_llama, block_size=4, num_blocks=100, prefill_max_tokens=16) as engine:
        check(tiny_llama, engine.submit(prompt, asking(1)).result(60))
