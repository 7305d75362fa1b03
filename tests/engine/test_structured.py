"""Answers that follow a grammar: each is valid, others in the batch do not change, and no step waits for a grammar."""

from __future__ import annotations

import copy
import json
import re
import sys
from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from roseplay import Engine, SamplingParams
from roseplay.core.memory_limit import MemoryLimit
from roseplay.core.request import FinishReason, Request
from roseplay.core.step import Step, StepEntry
from roseplay.engine.grammar_checks import start_check
from roseplay.engine.messages import End
from roseplay.engine.stream import Stream
from roseplay.model.accelerator import Accelerator
from roseplay.model.grammar import Grammars, backend_of
from roseplay.model.step_sampler import StepSampler
from tests.engine.cases import engines_of
from tests.engine.fake_runner import FakeRunner, Loop, submit
from tests.engine.test_overlap import open_engine, records
from tests.hardware import needs_simulation

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "animal": {"enum": ["fox", "owl"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "awake": {"type": "boolean"},
        "names": {"type": "array", "items": {"type": "string", "maxLength": 4}, "minItems": 2, "maxItems": 2},
    },
    "required": ["animal", "age", "awake", "names"],
    "additionalProperties": False,
}
JSON = SamplingParams(max_new_tokens=150, structured_outputs={"json": SCHEMA})
REGEX = SamplingParams(max_new_tokens=40, structured_outputs={"regex": r"\d{3}-(fox|owl){2}"}, ignore_eos=True)
CHOICE = SamplingParams(max_new_tokens=40, structured_outputs={"choice": ["yes", "no", "perhaps é\n"]})
FREE = SamplingParams(max_new_tokens=30, ignore_eos=True)
PARAMS = [
    JSON,
    FREE,
    replace(JSON, temperature=1.2, seed=5, logprobs=2),
    replace(REGEX, temperature=1.0, seed=6, top_k=20, top_p=0.9),
    CHOICE,
    replace(FREE, temperature=0.8, seed=7),
    replace(JSON, temperature=0.9, seed=8, repetition_penalty=1.2, frequency_penalty=0.1),
    replace(CHOICE, temperature=1.0, seed=9),
    REGEX,
    replace(JSON, temperature=1.2, seed=10),
]
PROMPTS = ["Tell me about a fox.", "Tell me about a fox.", "Tell me about a fox and an owl in one sentence."]
ASKED = [(PROMPTS[i % len(PROMPTS)], params) for i, params in enumerate(PARAMS)]
CASES: dict[str, dict[str, Any]] = {
    "batched": {},
    "chunked": {"prefill_max_tokens": 5},
    "not shared": {"prefix_cache": False, "same_step_sharing": False},
    "speculation": {"speculative_tokens": 5, "lookup_ngram": 1},
    "after preemption": {"num_blocks": 48},
    "swapped at preemption": {"num_blocks": 48, "preemption_mode": "swap", "prefix_cache": False},
}
SETTINGS: dict[str, Any] = {"dtype": "float32", "num_blocks": 400, "block_size": 4}


def check(stream: Stream) -> None:
    """The answer is what its grammar allows, and all of it."""
    assert stream.error is None
    if stream.params.structured_outputs is None:
        assert stream.finish_reason == FinishReason.LENGTH
        return
    ((kind, rule),) = json.loads(stream.params.structured_outputs).items()
    assert stream.finish_reason == FinishReason.STOP, stream.text
    if kind == "json":
        answer = json.loads(stream.text)
        assert [*answer] == rule["required"]
        assert answer["animal"] in ("fox", "owl")
        assert (type(answer["age"]), type(answer["awake"])) == (int, bool)
        assert 0 <= answer["age"] <= 99
        assert [len(name) <= 4 for name in answer["names"]] == [True, True]
    elif kind == "regex":
        assert re.fullmatch(rule, stream.text)
    else:
        assert stream.text in rule
    assert len(stream.logprobs) == (len(stream.token_ids) if stream.params.logprobs is not None else 0)


def answers(engine: Engine) -> list[list[int]]:
    """All requests in one step."""
    engine.pause()
    streams = [engine.submit(*request) for request in ASKED]
    engine.resume()
    results = [stream.result(60) for stream in streams]
    for result in results:
        check(result)
    return [result.token_ids for result in results]


@pytest.fixture(scope="module")
def alone() -> list[list[int]]:
    """The tokens of each request when it runs alone."""
    with Engine("tiny-chat", **SETTINGS) as engine:
        return [engine.submit(*request).result(60).token_ids for request in ASKED]


def test_the_same_answers_alone_and_in_every_setting(alone: list[list[int]]):
    for case, engine in engines_of(CASES, "tiny-chat", **SETTINGS):
        begin = engine.telemetry.since(0)[0]
        assert answers(engine) == alone, case
        steps = records(engine, begin)
        assert bool(sum(len(step.preempted) for step in steps)) == ("preemption" in case), case
        if case == "batched":
            assert sum(step.shared_tokens for step in steps) > 0
            assert answers(engine) == alone, "first tokens drawn from kept logits"
        assert any(step.mask_ms > 0 for step in steps)


def test_masks_after_a_draft_are_those_of_an_answer_that_has_it(chat_engine: Engine):
    """Up to the first token that may not follow; nothing of the draft remains."""
    info, tokenizer = chat_engine.info, chat_engine.tokenizer
    grammars = Grammars(lambda: backend_of(tokenizer, info.vocab_size, info.eos_token_ids))
    matcher, text = (
        grammars.start(REGEX.structured_outputs).result(60),
        tokenizer.encode("123-fox", add_special_tokens=False),
    )
    draft = [*text, *tokenizer.encode("cat", add_special_tokens=False)]
    found = np.zeros((1 + len(draft), matcher.words), np.int32)
    for _ in range(2):
        found[:] = 0
        matcher.fill(found, draft)
    for taken in range(1 + len(text)):
        request = Request(0, [1, *text[:taken]], REGEX, eos_token_ids=frozenset(info.eos_token_ids))
        request.num_prompt_tokens = 1
        expected, fresh = np.zeros((1, matcher.words), np.int32), grammars.start(REGEX.structured_outputs).result(60)
        fresh.follow(request, -1)
        fresh.fill(expected, [])
        assert (found[taken] == expected[0]).all()
    assert found[: 1 + len(text)].any(axis=1).all()
    assert not found[1 + len(text) :].any()


def test_the_same_answers_where_steps_overlap(alone: list[list[int]]):
    """The token that a mask depends on is still on the device when the next step is launched."""
    with open_engine("tiny-chat", **SETTINGS) as engine:
        assert answers(engine) == alone


def test_each_row_has_its_own_mask(chat_engine: Engine):
    """Also where memory is short, so that rows are drawn in parts, and while the program ends, with its threads."""
    info = chat_engine.info
    grammars = Grammars(lambda: backend_of(chat_engine.tokenizer, info.vocab_size, info.eos_token_ids))
    params = [FREE, *(SamplingParams(structured_outputs={"choice": [word]}) for word in ("a", "b")), FREE]
    requests = [
        Request(n, [1], one, matcher=one.structured_outputs and grammars.start(one.structured_outputs).result(60))
        for n, one in enumerate(params)
    ]
    step = Step(0, [StepEntry(request, 0, 1, 1, samples=True, logits_entry=n) for n, request in enumerate(requests)])
    logits = torch.randn(4, info.vocab_size, generator=torch.Generator().manual_seed(1))
    for most, ending in ((None, False), (1, False), (2, False), (2, True)):
        sampler = StepSampler(lambda: None, Accelerator)
        sampler._limit = MemoryLimit(most)
        if ending:
            sampler._mask_thread.shutdown()
        draws = sampler.sample(step, [0, 1, 2, 3], logits, masks=sampler.masks(step, pin=False))
        tokens = [chat_engine.tokenizer.decode([token]) for token in draws.tokens()]
        assert tokens[1:3] == ["a", "b"]
        assert [draws.tokens()[n] for n in (0, 3)] == logits[[0, 3]].argmax(-1).tolist()


def test_steps_without_grammars_compute_no_masks(chat_engine: Engine):
    begin = chat_engine.telemetry.since(0)[0]
    check(chat_engine.submit(PROMPTS[0], FREE).result(60))
    assert not any(step.mask_ms or step.mask_wait_ms for step in records(chat_engine, begin))


def test_the_grammar_goes_to_a_worker_process_as_text(alone: list[list[int]]):
    with Engine("tiny-chat", worker="process", **SETTINGS) as engine:
        assert answers(engine) == alone


def test_an_answer_that_reaches_its_limit_is_cut(chat_engine: Engine):
    result = chat_engine.submit(PROMPTS[0], replace(JSON, max_new_tokens=7)).result(60)
    assert (result.finish_reason, len(result.token_ids)) == (FinishReason.LENGTH, 7)


@pytest.mark.parametrize(
    ("structure", "reason"),
    [
        ({"json": {"type": "objec"}}, "cannot be followed: Invalid type: objec"),
        ({"json": {"type": "string", "minLength": 5, "maxLength": 2}}, "cannot be followed: Unsatisfiable schema"),
        ({"json": '{"type": '}, "cannot be followed: "),
        ({"regex": "(a"}, "error: unclosed group$"),
        ({"regex": "a(?=b)"}, "look-ahead and look-behind, is not supported$"),
        ({"regex": r"[^\s\S]"}, "cannot be followed: no text matches it"),
        ({"choice": []}, "is '.*': use "),
        ({"json": {}, "regex": "a"}, "is '.*': use "),
        ({"grammar": "start: /a/"}, "is '.*': use "),
    ],
)
def test_an_impossible_grammar_is_refused_in_one_line_before_it_is_sent(
    chat_engine: Engine, structure: dict[str, Any], reason: str
):
    before = chat_engine.telemetry.since(0)[0]
    with pytest.raises(ValueError, match=f"^structured_outputs .*{reason}") as refusal:
        chat_engine.submit(PROMPTS[0], SamplingParams(structured_outputs=structure))
    assert "\n" not in str(refusal.value)
    assert (chat_engine.num_unfinished, chat_engine.telemetry.since(0)[0]) == (0, before)


@needs_simulation
def test_engines_that_cannot_follow_a_grammar_say_why(engine: Engine):
    with pytest.raises(ValueError, match="structured_outputs needs a tokenizer, which this model does not have"):
        engine.submit([1, 2], CHOICE)
    with (
        Engine("tiny-chat", run_as="h100") as simulated,
        pytest.raises(ValueError, match="structured_outputs cannot be simulated"),
    ):
        simulated.submit("Hi", CHOICE)


def test_without_llguidance_the_refusal_says_what_to_install(chat_engine: Engine, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "llguidance", None)
    tokenizer = copy.copy(chat_engine.tokenizer)  # for which nothing is compiled yet
    with pytest.raises(ValueError, match=r"structured_outputs needs llguidance: pip install 'roseplay\[structured\]'"):
        start_check(CHOICE.structured_outputs, SimpleNamespace(tokenizer=tokenizer, info=chat_engine.info))


def test_no_step_waits_for_a_grammar():
    """Meanwhile others are served, and the request can be aborted."""
    futures: list[Future[Any]] = []
    loop = Loop(FakeRunner(), start=lambda structure, size: futures.append(Future()) or futures[-1])
    constrained = [replace(submit(n, [n] * 3, 2), sampling=replace(CHOICE, max_new_tokens=2)) for n in (1, 2, 3)]

    def compiled() -> list[Any]:
        assert loop.ends() == {4: "length"}
        futures[1].set_result(None)
        futures[2].set_exception(ValueError("too complex"))
        return [End(1)]

    loop.run([*constrained, submit(4, [4] * 3, 2)], *[[]] * 8, compiled, *[[]] * 8)
    assert loop.ends() == {4: "length", 1: "abort", 2: "length", 3: "error"}
    errors = [finished.error for finished in loop.finished if finished.request_id == 3]
    assert errors == ["too complex"]
    assert [future.cancelled() for future in futures] == [True, False, False], "what nobody waits for is not compiled"
