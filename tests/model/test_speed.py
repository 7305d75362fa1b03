"""How long steps take: measured at the start, updated while they run, and used to limit steps on a CPU."""

from __future__ import annotations

import time
from typing import Any

import pytest

from roseplay import Engine, SamplingParams
from roseplay.config import Knobs
from roseplay.core.request import Request
from roseplay.core.scheduler import Scheduler
from roseplay.core.step import Step, StepEntry
from roseplay.engine.telemetry import StepEvent
from roseplay.model import speed
from roseplay.model.forward import PackedForward
from roseplay.model.speed import StepTimes
from tests.model.families import FAMILIES, tiny_model
from tests.model.harness import make_runner, random_tokens

TOKEN_S = 0.001
ONE = SamplingParams(max_new_tokens=1)


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_model(FAMILIES["llama"]())


class SlowModel:
    """A model that needs at least ``step_s`` seconds and ``token_s`` per token for a step, and a limit of steps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.step_s, self.token_s = 0.0, TOKEN_S
        self._patch, forward = monkeypatch, PackedForward.__call__

        def slowly(packed: PackedForward, paged: Any) -> Any:
            time.sleep(self.step_s + self.token_s * paged.batch.num_tokens)
            return forward(packed, paged)

        monkeypatch.setattr(PackedForward, "__call__", slowly)
        self.limit_steps(200)

    def limit_steps(self, most_tokens: int) -> None:
        """Let steps take the time of so many tokens."""
        self._patch.setattr(speed, "STEP_S", most_tokens * TOKEN_S)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> SlowModel:
    return SlowModel(monkeypatch)


def steps_of(engine: Engine) -> list[int]:
    """The prompt tokens of each step."""
    events = engine.telemetry.since(0)[1]
    return [
        event.record.prompt_tokens for event in events if isinstance(event, StepEvent) and event.record.prompt_tokens
    ]


def step_of(*parts: tuple[int, int]) -> Step:
    """A step of prompts, each given as (start, tokens)."""
    entries = [StepEntry(Request(i, [3] * (start + n), ONE), start, n, n) for i, (start, n) in enumerate(parts)]
    return Step(0, entries, prompt_tokens=sum(n for _, n in parts))


def test_a_burst_of_long_prompts_on_a_slow_cpu_is_computed_in_steps_of_bounded_time(model: Any, slow: SlowModel):
    prompts = [random_tokens(60, 97, seed) for seed in range(12)]
    with Engine(model, block_size=4, num_blocks=400) as engine:
        assert engine.info.max_step_tokens is not None
        streams = [engine.submit(prompt, ONE) for prompt in prompts]
        assert {stream.result(60).finish_reason for stream in streams} == {"length"}
        steps = steps_of(engine)
    assert sum(steps) == 12 * 60
    assert max(steps) <= 12 * 60 / 2  # 200, but a busy machine may distort the measurement


def test_a_prompt_computed_whole_may_take_longer(model: Any, slow: SlowModel):
    slow.limit_steps(20)
    with Engine(model, block_size=4, num_blocks=400, chunked_prefill=False) as engine:
        assert engine.submit(random_tokens(60, 97, 1), ONE).result(60).finish_reason == "length"
        assert steps_of(engine) == [60]
        engine.set_knobs(chunked_prefill=True)
        assert engine.submit(random_tokens(60, 97, 2), ONE).result(60).finish_reason == "length"
        assert max(steps_of(engine)[1:]) < 60


@pytest.mark.parametrize(("memory", "computed"), [(None, [30]), (12, [12, 12, 6])])
def test_what_memory_does_not_hold_is_computed_in_parts_all_the_same(memory: int | None, computed: list[int]):
    scheduler = Scheduler(
        num_blocks=50,
        block_size=4,
        max_model_len=100,
        max_saved_logits=1,
        knobs=Knobs(chunked_prefill=False),
        token_limit=memory,
        step_limit=8,
    )
    scheduler.add(Request(0, [3] * 30, ONE))
    assert [scheduler.schedule().prompt_tokens for _ in computed] == computed


def test_the_limit_follows_a_machine_that_slows_down(model: Any, slow: SlowModel):
    runner = make_runner(model)
    before = runner.max_step_tokens
    assert before is not None
    slow.token_s = 5 * TOKEN_S
    request = Request(0, random_tokens(40, 97, 3), ONE)
    request.block_table = list(range(1, 11))
    step = Step(0, [StepEntry(request, 0, 40, 40)], prompt_tokens=40)
    for _ in range(8):
        runner.execute(step)
    assert runner.max_step_tokens is not None
    assert runner.max_step_tokens < before / 2
    assert runner.predict_s(step) > 40 * 4 * TOKEN_S


def test_a_cpu_computes_a_block_at_least(model: Any, slow: SlowModel):
    slow.limit_steps(0)
    assert make_runner(model).max_step_tokens == 16


def measured(seconds_of: Any, **settings: Any) -> StepTimes:
    """The estimates on a machine whose steps of n tokens take ``seconds_of(n)``."""
    times = StepTimes(**{"even_context": 1000.0, "max_model_len": 2000, **settings})
    clock = [0.0]

    def run(tokens: int) -> None:
        clock[0] += seconds_of(tokens)

    times.measure(run, {1: 3.0, 2: 3.0, 64: 3.0}, lambda: clock[0])  # the first runs include compilation
    times.spent = clock[0]  # type: ignore[attr-defined]
    return times


def test_the_start_is_not_kept_waiting_by_a_large_model():
    assert measured(lambda tokens: 0.5 + 0.1 * tokens).spent == 0.6  # type: ignore[attr-defined]
    assert measured(lambda tokens: 0.01 + 0.0001 * tokens).spent < speed.MEASURE_S  # type: ignore[attr-defined]


def test_a_start_beside_other_programs_measures_the_machine_itself():
    stalls = iter([0.2, 0.2])
    times = measured(lambda tokens: 0.01 + 0.0001 * tokens + next(stalls, 0.0))
    assert times.base_s == pytest.approx(0.0101)


def test_predictions_grow_with_tokens_and_context():
    times = measured(lambda tokens: 0.01 + 0.0001 * tokens)
    short, long, late = step_of((0, 10)), step_of((0, 500)), step_of((1500, 500))
    assert 0.01 <= times.predict_s(short) < times.predict_s(long) < times.predict_s(late)
    assert 0.5 < times.predict_s(long) / (0.01 + 0.0001 * 500 * 1.25) < 1.5
    assert times.predict_s(late) / times.predict_s(long) > 1.5  # its tokens see a context of 1,750 rather than 250
    assert times.predict_s(step_of((0, times.tokens_in(10.0)))) > 5


def test_one_step_that_was_suspended_does_not_spoil_the_estimate():
    times = measured(lambda tokens: 0.01 + 0.0001 * tokens)
    step = step_of((0, 500))
    before, cost = times.predict_s(step), times.token_cost
    times.observe(step, 3600.0)
    assert times.predict_s(step) < 4 * before
    assert times.token_cost == cost, "or nothing would be guessed after it"
    for _ in range(40):
        times.observe(step, before)
    assert times.predict_s(step) < 1.1 * before


def test_an_answer_too_slow_to_be_watched_is_told_and_a_faster_model_offered(model: Any, slow: SlowModel):
    with Engine(model, block_size=4, num_blocks=40, record_steps=False) as engine:
        assert engine.info.decode_s >= TOKEN_S
        assert not [choice for choice in engine.info.choices if choice.part == "one answer"]
    slow.step_s, slow.token_s = 0.15, 0.0
    with Engine(model, block_size=4, num_blocks=40, record_steps=False) as engine:
        (said,) = [choice.slow for choice in engine.info.choices if choice.part == "one answer"]
    assert "tokens/s on this machine, too slow to watch: --model tiny-chat is faster" in str(said)
    assert speed.too_slow("tiny-chat", 0.2)[0].slow == (
        "answers come at 5.0 tokens/s on this machine, too slow to watch"
    )


@pytest.mark.parametrize("base_s", [0.002, 0.05, 0.15])
def test_what_the_first_runs_compiled_is_not_taken_for_a_slow_model(base_s: float):
    times = measured(lambda tokens: base_s * (1 + tokens / 20))
    assert times.base_s == pytest.approx(base_s, rel=0.1)
    assert times.token_s == pytest.approx(base_s / 20, rel=0.3)


def test_a_run_that_was_slow_by_chance_does_not_count():
    slow = iter([9.0])
    times = measured(lambda tokens: 0.002 * (1 + tokens / 20) * next(slow, 1.0))
    assert times.base_s == pytest.approx(0.002, rel=0.1)
