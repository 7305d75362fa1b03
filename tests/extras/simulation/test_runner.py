from __future__ import annotations

import pytest

from roseplay.clock import VirtualClock
from roseplay.config import SIMULATED_GPUS, EngineConfig, SamplingParams
from roseplay.core.request import PLACEHOLDER, Request
from roseplay.core.step import Step, StepEntry
from roseplay.extras.simulation.cost import CostModel
from roseplay.extras.simulation.evidence import cost_model
from roseplay.extras.simulation.gpus import SimulationError, find_gpu, gpus
from roseplay.extras.simulation.models import find_shape
from roseplay.extras.simulation.runner import NO_LOGPROBS, SimulatedRunner

TEXT = (11, 12, 13, 14, 15)


def make(
    gpu: str = "h100", parts: int = 1, model: str = "qwen3-8b", clock: VirtualClock | None = None, **settings: object
) -> SimulatedRunner:
    cost, evidence = cost_model(find_shape(model), find_gpu(gpu), parts)
    return SimulatedRunner(cost, evidence, EngineConfig(**settings), clock or VirtualClock(), TEXT)


def decoding(tokens: int, number: int = 0, answer: int = 0, **params: object) -> StepEntry:
    request = Request(number, [1] * (tokens - answer), SamplingParams(**params))
    request.token_ids += [2] * answer
    return StepEntry(request, tokens - 1, 1, samples=True)


def step(*entries: StepEntry) -> Step:
    return Step(0, entries=list(entries), decode_tokens=len(entries))


def test_a_step_ends_after_its_cost_and_not_before() -> None:
    clock = VirtualClock()
    runner = make(clock=clock)
    launched = runner.launch(step(decoding(1000)))
    assert clock.now_ns() == 0  # the host goes on while the device computes
    result = launched.result()
    cost_s = runner.cost.seconds(runner.cost.decode(1, 1000))
    assert clock.now_ns() == result.device_ns == round(cost_s * 1e9)


def test_steps_run_one_after_the_other_on_the_device() -> None:
    clock = VirtualClock()
    runner = make(clock=clock)
    one = step(decoding(1000))
    took_ns = round(runner.predict_s(one) * 1e9)
    launched = [runner.launch(one) for _ in range(3)]
    launched[2].result()
    assert clock.now_ns() == 3 * took_ns
    clock.advance_to(10**9)
    runner.execute(one)
    assert clock.now_ns() == 10**9 + took_ns


def test_nothing_computed_takes_no_time() -> None:
    clock = VirtualClock()
    runner = make(clock=clock)
    cached = decoding(10)
    cached.num_tokens = 0
    result = runner.execute(step(cached))
    assert (clock.now_ns(), result.replayed, result.token_ids) == (0, None, [11])


def test_answers_are_the_text_from_its_beginning_or_from_a_seeds_place() -> None:
    runner = make()
    entries = [decoding(9, answer=answer) for answer in (0, 1, 7)]
    assert runner.execute(step(*entries)).token_ids == [11, 12, 13]
    seeded = decoding(9, temperature=1.0, seed=3)
    assert runner.execute(step(seeded)).token_ids == [14]
    assert runner.execute(step(seeded)).token_ids == [14]
    ahead = decoding(9, answer=1)
    ahead.request.token_ids[-1] = PLACEHOLDER  # a step in flight draws the first token
    assert runner.execute(step(ahead)).token_ids == [12]
    prompt = StepEntry(Request(5, [1] * 8, SamplingParams()), 0, 4, 4)
    assert runner.execute(step(prompt)).token_ids == [None]


def test_log_probabilities_are_refused() -> None:
    result = make().execute(step(decoding(5), decoding(6, 1, logprobs=2)))
    assert result.errors == {1: NO_LOGPROBS}


def test_graphs_pad_decode_steps() -> None:
    runner = make()
    three = step(*(decoding(100, number) for number in range(3)))
    padded = runner.execute(three)
    three.cuda_graphs = False
    plain = make().execute(three)
    assert (padded.replayed, plain.replayed) == (True, False)
    assert padded.device_ns > plain.device_ns
    sizes = (257, 512, 513)
    assert [runner.execute(step(*[decoding(9)] * size)).replayed for size in sizes] == [True, True, False]


def test_information_says_that_it_is_simulated() -> None:
    info = make("a100", 4, "llama-3.1-70b").info()
    assert info.device == "simulated 4 x A100 SXM 80GB"
    assert info.simulated is not None
    assert info.simulated.startswith("4 x A100 SXM 80GB, uncalibrated (error at")
    assert info.kv_bytes_per_token == 80 * 2 * 8 * 128 * 2
    assert info.max_step_tokens == 8192
    calibrated = make().info().simulated
    assert calibrated is not None
    assert "calibrated on 46 published points of qwen3-32b, qwen3-8b (error: median" in calibrated


def test_settings_of_the_engine() -> None:
    runner = make(max_model_len=4096, block_size=32, num_blocks=50)
    assert (runner.max_model_len, runner.block_size, runner.num_blocks) == (4096, 32, 50)
    with pytest.raises(SimulationError, match="max_model_len is 50,000, but qwen3-8b allows 40,960"):
        make(max_model_len=50_000)


def test_the_catalogue_names_exactly_the_gpus_that_are_described() -> None:
    assert tuple(gpus()) == SIMULATED_GPUS


def test_a_calibrated_model_is_closer_to_its_gpus_points() -> None:
    shape, gpu = find_shape("qwen3-8b", "fp8"), find_gpu("h100")
    fitted, evidence = cost_model(shape, gpu)
    assert evidence.calibrated_on == 36
    assert evidence.errors.median < 0.05
    assert fitted.parameters != CostModel(shape, gpu).parameters
    mixture = find_shape("qwen3-8b")
    assert "experts" not in str(cost_model(mixture, gpu)[1])
