"""Traffic at a model's pace: sizes derived from speeds."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roseplay.config import Knobs
from roseplay.engine.telemetry import KnobEvent, RequestEvent, StepEvent
from roseplay.traffic.measured_speed import MeasuredSpeed
from roseplay.traffic.pace import (
    LEAST_ANSWER,
    LEAST_REQUESTS,
    Conditions,
    Size,
    Speed,
    answered_s,
    fitted,
    slow_motion,
    sustained_rate,
)
from roseplay.traffic.paced import RUN_S, paced
from roseplay.traffic.prompts import KINDS, PromptMix
from roseplay.traffic.scenarios import SCENARIOS
from tests.play.fake_engine import INFO

FAST, USUAL, SLOW = Speed(0.001, 0.00003), Speed(0.0115, 0.0007), Speed(0.115, 0.007)
BURST = Size(requests=20, answer=64, mix=KINDS["mix"])
UNDER = Conditions(others=4)


def test_a_speed_is_what_the_start_measured() -> None:
    info = dataclasses.replace(INFO, decode_s=0.01, prompt_token_s=0.001)
    assert Speed.of(info) == Speed(0.01, 0.001)
    assert Speed.of(INFO) is None


def test_a_fast_model_gets_the_whole_burst_and_a_slow_one_a_smaller_in_the_same_time() -> None:
    sizes = [fitted(BURST, lambda one, s=speed: answered_s(one, s, UNDER), 7.0) for speed in (FAST, USUAL, SLOW)]
    assert sizes[0] == sizes[1] == BURST
    assert LEAST_REQUESTS <= sizes[2].requests < BURST.requests
    assert LEAST_ANSWER <= sizes[2].answer < BURST.answer
    assert 1 < sizes[2].mix.repeats[3] < 64
    assert answered_s(sizes[2], SLOW, UNDER) <= 7.0


def test_prompts_stay_as_they_are_where_that_is_asked_for() -> None:
    smaller = fitted(BURST, lambda one: answered_s(one, SLOW, UNDER), 9.0, prompts=False)
    assert smaller.mix == BURST.mix
    assert smaller.answer < BURST.answer


@given(
    st.integers(1, 64), st.integers(1, 256), st.sampled_from(list(KINDS)), st.floats(1e-4, 1), st.floats(1e-6, 0.02),
    st.floats(0.5, 20),
)  # fmt: skip
def test_a_size_fits_or_is_the_smallest(
    requests: int, answer: int, kind: str, step_s: float, token_s: float, seconds: float
) -> None:
    size, speed = Size(requests=requests, answer=answer, mix=KINDS[kind]), Speed(step_s, token_s)
    found = fitted(size, lambda one: answered_s(one, speed, UNDER), seconds)
    assert found.requests <= size.requests
    assert found.answer <= size.answer
    assert found.mix.head_tokens <= size.mix.head_tokens
    smallest = size.scaled(1e-9)
    assert answered_s(found, speed, UNDER) <= seconds or answered_s(found, speed, UNDER) <= 1.2 * answered_s(
        smallest, speed, UNDER
    )
    faster = Speed(step_s / 10, token_s / 10)
    assert fitted(size, lambda one: answered_s(one, faster, UNDER), seconds).answer >= found.answer


def test_a_burst_takes_longer_where_settings_make_it_wait() -> None:
    base = answered_s(BURST, USUAL, Conditions())
    assert answered_s(BURST, USUAL, Conditions(places=4)) > base
    assert answered_s(BURST, USUAL, Conditions(budget=16)) > base
    assert answered_s(BURST, USUAL, Conditions(sharing=False)) > base
    paced = [answered_s(BURST, USUAL, Conditions(budget=16, interval=steps)) for steps in (0, 4, 8)]
    assert paced[0] < paced[1] < paced[2]
    assert Size(requests=20, answer=8, mix=KINDS["shared_head"]).prompt_tokens(sharing=False) > 20 * 512
    assert Size(requests=20, answer=8, mix=KINDS["shared_head"]).prompt_tokens(sharing=True) < 2 * 512


def test_slow_motion_makes_a_burst_last() -> None:
    assert slow_motion(0.3, 1.5) == 5
    assert slow_motion(2.0, 1.5) == 1
    assert slow_motion(0.001, 1.5) == 100


def test_a_rate_is_what_the_engine_keeps_up_with() -> None:
    size = Size(requests=32, answer=32, mix=PromptMix())
    rates = [sustained_rate(size, USUAL, Conditions(places=places)) for places in (4, 32)]
    assert rates[0] < rates[1] < 1 / (32 * USUAL.token_s)
    assert sustained_rate(size, SLOW, Conditions()) == pytest.approx(rates[1] / 10)


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=lambda scenario: scenario.name)
def test_a_scenario_is_measured_in_a_time_that_people_wait(scenario: Any) -> None:
    assert paced(scenario, None) == scenario
    assert paced(scenario, FAST) == scenario
    slow = paced(scenario, SLOW)
    assert (slow.mix, slow.compared) == (scenario.mix, scenario.compared)
    assert slow.num_requests <= scenario.num_requests
    if slow.rate_per_s:
        assert slow.num_requests / slow.rate_per_s <= 1.5 * RUN_S
        assert slow.rate_per_s < max(scenario.rate_per_s / 4, 0.5)  # a low rate stays as it is
    if scenario.name == "kv-pressure":
        pool = (scenario.compared_config["num_blocks"][0] - 1) * 16
        assert slow.num_requests * slow.max_new_tokens > pool, "otherwise no request is preempted"


# -- followed while the engine runs


def step(seconds: float, prompt: int, decode: int) -> StepEvent:
    record: Any = SimpleNamespace(start_ns=0, end_ns=int(seconds * 1e9), prompt_tokens=prompt, decode_tokens=decode)
    return StepEvent(record, [])


def steps(speed: Speed, slow: float = 1.0) -> list[StepEvent]:
    return [step(slow * speed.step(prompt + decode), prompt, decode) for prompt, decode in [(500, 4), (0, 4)] * 200]


def test_the_speed_follows_the_steps_that_run() -> None:
    measured = MeasuredSpeed(dataclasses.replace(INFO, decode_s=0.001, prompt_token_s=0.00003))
    measured.take(steps(USUAL))
    assert measured.speed is not None
    assert measured.speed.step_s == pytest.approx(USUAL.step_s, rel=0.1)
    assert measured.speed.token_s == pytest.approx(USUAL.token_s, rel=0.1)
    before = measured.speed
    measured.take([step(60.0, 0, 4)] * 3)
    assert measured.speed == before, "the machine was suspended"


def test_a_stall_right_after_the_start_is_not_the_engines_speed() -> None:
    measured = MeasuredSpeed(dataclasses.replace(INFO, decode_s=USUAL.step_s, prompt_token_s=USUAL.token_s))
    measured.take([step(136.0, 400, 0), step(60.0, 0, 4)])
    assert measured.speed == USUAL


def test_a_start_that_was_disturbed_is_forgotten() -> None:
    measured = MeasuredSpeed(dataclasses.replace(INFO, decode_s=30 * USUAL.step_s, prompt_token_s=USUAL.token_s / 30))
    measured.take(steps(USUAL))
    assert measured.speed is not None
    assert measured.speed.step_s == pytest.approx(USUAL.step_s, rel=0.1)
    assert measured.speed.token_s == pytest.approx(USUAL.token_s, rel=0.1)


def test_the_speed_of_simulated_hardware_is_known() -> None:
    info = dataclasses.replace(INFO, decode_s=0.001, prompt_token_s=0.00003, simulated="a GPU")
    measured = MeasuredSpeed(info)
    measured.take(steps(USUAL))
    assert measured.speed == Speed.of(info)


def test_slow_motion_is_not_a_slow_engine() -> None:
    measured = MeasuredSpeed(dataclasses.replace(INFO, decode_s=USUAL.step_s, prompt_token_s=USUAL.token_s))
    measured.take([KnobEvent(Knobs(slow_motion=10.0), 0, 0, {"slow_motion": (1.0, 10.0)}), *steps(USUAL, 10.0)])
    assert measured.speed is not None
    assert measured.speed.step_s == pytest.approx(USUAL.step_s, rel=0.1)


class Answer:
    """A stream from another server whose prompt has 1,000 tokens."""

    metrics = SimpleNamespace(sent_ns=1, ttft_s=0.72, itl_s=[0.02] * 20, prompt_tokens=1000)


def test_the_speed_of_a_server_is_that_of_its_answers() -> None:
    measured = MeasuredSpeed(INFO)
    assert measured.speed is None
    answer: Any = Answer()
    measured.take([RequestEvent("finished", 1, 0, answer)])
    assert measured.speed is not None
    assert measured.speed.step_s == 0.02
    assert measured.speed.token_s == pytest.approx(0.0007)
    measured.take(RequestEvent("finished", 1, 0, answer) for _ in range(3))
    assert measured.speed.step_s == pytest.approx(0.02)


@pytest.mark.parametrize(("budget", "seconds"), [(None, 87 + 6 + 40), (50, 90 + 18 + 40), (1000, 87 + 6 + 40)])
def test_the_time_of_a_burst_is_that_of_its_steps(budget: int | None, seconds: float) -> None:
    """168 prompt tokens in two rounds: one step a round, or as many as the budget needs; then 10 steps a round."""
    size = Size(requests=4, answer=10, mix=PromptMix())
    under = Conditions(places=2, others=1, budget=budget, sharing=False, interval=3)
    assert answered_s(size, Speed(1.0, 0.5), under) == seconds
