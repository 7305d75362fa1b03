"""Models with recurrent layers return the same tokens as transformers, whatever the scheduler does with a request."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from roseplay import Engine, SamplingParams
from tests.engine.cases import check_answer, engines_of, prompts
from tests.engine.greedy import assert_greedy, generate
from tests.engine.test_equality import CASES
from tests.engine.test_overlap import open_engine
from tests.model.families import STATEFUL, tiny_model
from tests.model.harness import PLAIN, recording_options

NEW_TOKENS = 10
STATE_CASES: dict[str, dict[str, Any]] = {
    **CASES,
    "few slots": {"state_slots": 2},
    "one slot, in chunks": {"state_slots": 1, "prefill_max_tokens": 3},
    "long blocks": {"block_size": 16, "prefill_max_tokens": 5},
    "one prompt a step": {"prefill_max_batch_size": 1, "step_max_tokens": 9},
    "no recorded steps": {"record_steps": False},
    "a state after each block": {"state_interval": 1},
    "a state after each second block, few tokens a step": {"state_interval": 2, "step_max_tokens": 5},
    "one kept state": {"state_interval": 1, "state_snapshots": 1},
    "few kept states, few blocks": {"state_interval": 1, "state_snapshots": 3, "num_blocks": 12},
    "no kept states": {"state_snapshots": 0},
    "kept states without sharing": {"state_interval": 1, "same_step_sharing": False},
    "sharing without the prefix cache": {"state_interval": 1, "prefix_cache": False},
}
QUICK = ["few slots", "after preemption, resumed from the cache"]


def test_steps_that_run_ahead_of_their_tokens():
    """As on a GPU: the next step is launched before the last one's tokens are known."""
    check_prefixes("lfm2", [0, 12, 14, 20, 12], open_engine, state_interval=1)
    check("lfm2", {"ahead": {"state_slots": 3, "prefill_max_tokens": 7}}, open_engine)


def check(family: str, cases: dict[str, dict[str, Any]], kind: Callable[..., Engine] = Engine) -> None:
    model = tiny_model(STATEFUL[family]())
    reference = copy.deepcopy(model)
    asked = prompts()
    expected = [generate(reference, prompt, NEW_TOKENS) for prompt in asked]
    params = SamplingParams(max_new_tokens=NEW_TOKENS, ignore_eos=True)
    for case, engine in engines_of(cases, model, kind, dtype="float32"):
        outputs = [engine.submit(prompt, params) for prompt in asked]
        for stream, theirs in zip(outputs, expected, strict=True):
            check_answer(reference, stream.result(60), theirs, case)
        if case.startswith("after preemption"):
            assert sum(stream.metrics.num_preemptions for stream in outputs) > 0
        if case in ("not shared", "no kept states"):
            assert all(stream.metrics.cached_tokens == 0 for stream in outputs), case


def check_prefixes(family: str, cached: list[int], kind: Callable[..., Engine] = Engine, **settings: Any) -> None:
    """Requests one after another: two with three blocks in common, a repeat, a chat that goes on, and again all at once."""
    model = tiny_model(STATEFUL[family]())
    reference = copy.deepcopy(model)
    head = prompts()[-2][:12]
    params = SamplingParams(max_new_tokens=NEW_TOKENS, ignore_eos=True)
    with kind(model, block_size=4, dtype="float32", **settings) as engine:
        asked = [[*head, 5, 6], [*head, 7, 8, 9], [*head, 5, 6]]
        served = [engine.submit(prompt, params).result(60) for prompt in asked]
        asked += [[*asked[0], *served[0].token_ids, 9, 8, 7], asked[1][:13]]
        served += [engine.submit(prompt, params).result(60) for prompt in asked[3:]]
        together = [*asked, [*head, 11], *[[*asked[3], 4]] * 3, *[[50, *head]] * 3]
        streams = [engine.submit(prompt, params) for prompt in together]
        served += [stream.result(60) for stream in streams]
    expected: dict[tuple[int, ...], list[int]] = {}
    for prompt, stream in zip([*asked, *together], served, strict=True):
        if tuple(prompt) not in expected:
            expected[tuple(prompt)] = generate(reference, prompt, NEW_TOKENS)
        check_answer(reference, stream, expected[tuple(prompt)])
    assert [stream.metrics.cached_tokens for stream in served[: len(cached)]] == cached


SHARING: dict[str, tuple[list[int], dict[str, Any]]] = {
    "every block": ([0, 12, 14, 20, 12], {"state_interval": 1}),
    "last blocks": ([0, 12, 14, 20, 12], {}),
    "chunks": ([0, 12, 14, 20, 12], {"state_interval": 2, "prefill_max_tokens": 5}),
    "ends alone": ([0, 0, 14, 20, 0], {"state_interval": 0}),
    "one kept state": ([0, 0, 0, 20, 0], {"state_interval": 0, "state_snapshots": 1}),
    "few slots": ([0, 12, 14, 20, 12], {"state_slots": 2, "state_interval": 3}),
    "not cached": ([0, 0, 0, 0, 0], {"prefix_cache": False}),
    "not shared": ([0, 12, 14, 20, 12], {"same_step_sharing": False}),
}


@pytest.mark.parametrize("case", ["every block", "ends alone"])
def test_what_is_cached_changes_no_answer_in_a_sample(case: str):
    cached, settings = SHARING[case]
    check_prefixes("qwen3_5_text", cached, **settings)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["qwen3_5_text", "lfm2", "bamba", "jamba"])
@pytest.mark.parametrize("case", SHARING)
def test_what_is_cached_changes_no_answer(family: str, case: str):
    cached, settings = SHARING[case]
    check_prefixes(family, cached, **settings)


@pytest.mark.slow
@pytest.mark.parametrize("family", STATEFUL)
def test_greedy_output_equals_generate(family: str):
    check(family, STATE_CASES)


def test_greedy_output_equals_generate_in_a_sample():
    check("qwen3_5_text", {case: STATE_CASES[case] for case in QUICK})


def test_greedy_output_equals_generate_with_recorded_decodes():
    """A size is recorded at its second occurrence; requests join and leave between replays."""
    with recording_options(record_after=1, warm_up_s=0):
        check("qwen3_5_text", {"few slots": {"state_slots": 3}, "in chunks": {"prefill_max_tokens": 3}})


def test_a_chat_goes_on_from_what_recorded_decodes_left():
    with recording_options(record_after=1, warm_up_s=0):
        check_prefixes("qwen3_5_text", [0, 12, 14, 20, 12])


@pytest.mark.parametrize("settings", [{}, {"prefill_max_tokens": 5, "max_batch_size": 2}, {"num_blocks": 18}], ids=str)
def test_chats_beside_each_other_go_on_from_their_answers(settings: dict[str, Any]):
    """Three turns each; with few blocks, some are preempted during their answers."""
    model = tiny_model(STATEFUL["lfm2"]())
    reference = copy.deepcopy(model)
    params = SamplingParams(max_new_tokens=NEW_TOKENS, ignore_eos=True)
    preempted = 0
    chats = [[60 + number, 5, 6, *range(7, 7 + number)] for number in range(4)]
    with Engine(model, block_size=4, dtype="float32", **settings) as engine:
        for turn in range(3):
            engine.pause()
            streams = [engine.submit(chat, params) for chat in chats]
            engine.resume()
            outputs = [stream.result(60) for stream in streams]
            for chat, output in zip(chats, outputs, strict=True):
                assert output.error is None, output.error
                assert_greedy(reference, chat, output.token_ids)
                if turn and not settings.get("num_blocks"):
                    before = len(chat) - 4
                    assert output.metrics.cached_tokens == before - before % 4
                chat += [*output.token_ids, 9, 8, 7]
            preempted += sum(output.metrics.num_preemptions for output in outputs)
    assert bool(preempted) == ("num_blocks" in settings)


def test_the_engine_says_how_many_slots_it_has():
    settings = {"block_size": 4, "state_slots": 3, "state_snapshots": 5, **PLAIN}
    with Engine(tiny_model(STATEFUL["lfm2"]()), **settings) as engine:
        info = engine.info
        assert (info.state_slots, info.state_snapshots) == (3, 5)
        assert info.state_bytes == 2 * 32 * 3 * 4  # two convolutions of 32 channels over 3 tokens, in float32
