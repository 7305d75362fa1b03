"""Models with recurrent layers say what transformers says, whatever the scheduler does with a request."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from roseplay import Engine, SamplingParams
from roseplay.kernels.cuda.emulation import emulate_gpu
from tests.engine.greedy import assert_greedy, assert_same_until_a_tie, generate
from tests.engine.test_equality import CASES, prompts
from tests.model.families import STATEFUL, tiny_model
from tests.model.harness import recording_options

NEW_TOKENS = 10
STATE_CASES: dict[str, dict[str, Any]] = {
    **CASES,
    "few slots": {"state_slots": 2},
    "one slot, in chunks": {"state_slots": 1, "prefill_max_tokens": 3},
    "long blocks": {"block_size": 16, "prefill_max_tokens": 5},
    "one prompt a step": {"prefill_max_batch_size": 1, "step_max_tokens": 9},
    "no recorded steps": {"record_steps": False},
}
QUICK = ["few slots", "after preemption, resumed from the cache"]


def test_steps_that_run_ahead_of_their_tokens():
    """As on a GPU: the next step is launched before the last one's tokens are known."""
    with emulate_gpu():
        check("lfm2", {"ahead": {"attention": "reference", "state_slots": 3, "prefill_max_tokens": 7}})


def check(family: str, cases: dict[str, dict[str, Any]]) -> None:
    model = tiny_model(STATEFUL[family]())
    reference = copy.deepcopy(model)
    asked = prompts()
    expected = [generate(reference, prompt, NEW_TOKENS) for prompt in asked]
    params = SamplingParams(max_new_tokens=NEW_TOKENS, ignore_eos=True)
    for case, settings in cases.items():
        with Engine(model, **{"block_size": 4, "dtype": "float32", **settings}) as engine:
            streams = [engine.submit(prompt, params) for prompt in asked]
            outputs = [stream.result(60) for stream in streams]
        for prompt, theirs, stream in zip(asked, expected, outputs, strict=True):
            assert stream.error is None, (case, stream.error)
            assert_greedy(reference, prompt, stream.token_ids)
            assert_same_until_a_tie(reference, prompt, stream.token_ids, theirs)
        if case.startswith("after preemption"):
            assert sum(stream.metrics.num_preemptions for stream in outputs) > 0
        assert all(stream.metrics.cached_tokens == 0 for stream in outputs), case


@pytest.mark.slow
@pytest.mark.parametrize("family", STATEFUL)
def test_greedy_output_equals_generate(family: str):
    check(family, STATE_CASES)


def test_greedy_output_equals_generate_in_a_sample():
    check("qwen3_5_text", {case: STATE_CASES[case] for case in QUICK})


def test_greedy_output_equals_generate_with_recorded_decodes():
    """A size is recorded when it comes a second time; requests join and leave between replays."""
    with recording_options(record_after=1, warm_up_s=0):
        check("qwen3_5_text", {"few slots": {"state_slots": 3}, "in chunks": {"prefill_max_tokens": 3}})


def test_the_engine_says_how_many_slots_it_has():
    with Engine(tiny_model(STATEFUL["lfm2"]()), block_size=4, state_slots=3) as engine:
        info = engine.info
        assert info.state_slots == 3
        assert info.state_bytes == 2 * 32 * 3 * 4  # two convolutions of 32 channels over 3 tokens, in float32
