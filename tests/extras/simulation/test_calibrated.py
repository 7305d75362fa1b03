"""A deployment's own points: what is fitted to them, and the file that keeps it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from roseplay.clock import VirtualClock
from roseplay.config import EngineConfig, Knobs
from roseplay.extras.simulation.calibrated import Calibration, find_hardware
from roseplay.extras.simulation.calibration import Errors
from roseplay.extras.simulation.cost import CostModel, Parameters, StepLoad
from roseplay.extras.simulation.evidence import cost_model
from roseplay.extras.simulation.gpus import GPU, SimulationError, find_gpu
from roseplay.extras.simulation.models import find_shape
from roseplay.extras.simulation.outcome import SimulatedRequest
from roseplay.extras.simulation.points import Measurement
from roseplay.extras.simulation.runner import SimulatedRunner
from roseplay.extras.simulation.virtual import VirtualServer
from roseplay.model.speed import STEP_S

CPU = GPU(
    name="cpu", title="a CPU, 2 cores", memory_gib=32, bandwidth_tb_s=0.02, bf16_tflops=0.1, cpu=True, source="a test"
)
LOADS = ((1, 64), (32, 64), (8, 768))


def deployment(gpu: GPU = CPU, model: str = "smollm-135m", parameters: Parameters | None = None) -> CostModel:
    return CostModel(find_shape(model), gpu, 1, parameters)


def changed(start: Parameters, *factors: float) -> Parameters:
    """The parameters with KV cache, layer, sequence and prompts slower by these factors."""
    kv, layer, sequence, prompt = factors
    return dataclasses.replace(
        start,
        cpu_kv_share=start.cpu_kv_share / kv,
        layer_s=start.layer_s * layer,
        sequence_s=start.sequence_s * sequence,
        compute_share=start.compute_share / prompt,
    )


def measured(true: CostModel, streams: int, prompt: int, answer: int = 32) -> Measurement:
    decode_s = true.seconds(true.decode(streams, prompt + answer / 2))
    prompts_s = true.seconds(true.prompt(prompt, streams))
    sizes = {"streams": streams, "prompt": prompt, "answer": answer}
    return Measurement(measured="itl", **sizes, seconds=decode_s, prompts_s=prompts_s)


@pytest.mark.parametrize("factors", [(0.7, 2.0, 1.5, 1.8), (9.0, 0.5, 3.0, 0.6), (1.0, 6.0, 0.2, 5.0)])
def test_three_points_of_a_cpu_predict_other_loads(factors: tuple[float, ...]) -> None:
    start = deployment()
    true = deployment(parameters=changed(start.parameters, *factors))
    found = Calibration.of(start, [measured(true, *load) for load in LOADS])
    fitted, evidence = cost_model(start.shape, CPU, 1, found)
    assert str(evidence).startswith("calibrated on 3 own points of smollm-135m on a CPU, 2 cores (error: median")
    for streams, prompt in ((2, 100), (16, 256), (32, 500), (4, 1500)):
        load, prompts = true.decode(streams, prompt), true.prompt(prompt, streams)
        assert fitted.seconds(load) == pytest.approx(true.seconds(load), rel=0.1)
        assert fitted.seconds(prompts) == pytest.approx(true.seconds(prompts), rel=0.1)


def test_unloaded_first_tokens_calibrate_prompts_and_the_server() -> None:
    start = deployment(find_gpu("h100"), "qwen3-8b")
    true = deployment(start.gpu, "qwen3-8b", dataclasses.replace(start.parameters, compute_share=0.5, server_s=0.03))
    points = [
        dataclasses.replace(
            measured(true, streams, prompt), prompts_s=None, ttft_s=true.seconds(true.prompt(prompt)) + 0.03
        )
        for streams, prompt in ((1, 128), (1, 4096), (64, 128))
    ]
    points[2] = dataclasses.replace(points[2], ttft_s=1e-3)  # of 64 clients: not used
    fitted = Calibration.of(start, points).parameters
    assert fitted.compute_share == pytest.approx(0.5, rel=0.05)
    assert fitted.server_s == pytest.approx(0.03, rel=0.1)
    alone = Calibration.of(start, [dataclasses.replace(point, ttft_s=None) for point in points]).parameters
    assert (alone.compute_share, alone.server_s) == pytest.approx((0.67, 0.008))


def test_each_point_is_predicted_from_the_others_alone() -> None:
    start = deployment(find_gpu("h100"), "qwen3-8b")
    points = [dataclasses.replace(measured(start, *load), prompts_s=None) for load in LOADS]
    points[1] = dataclasses.replace(points[1], seconds=3 * points[1].seconds)
    found = Calibration.of(start, points)
    assert found.predicted_s[1] == pytest.approx(points[1].seconds / 3, rel=0.01)


def test_errors_are_shares_of_the_points() -> None:
    found = Errors.of(np.array([1.0, 1.0, 1.0, 1.05, 0.95, 1.1, 0.85, 1.15, 1.3, 1.5]), np.ones(10))
    assert (found.points, found.within_20) == (10, 0.8)
    assert (found.median, found.p90) == pytest.approx((0.075, 0.32))


def test_results_at_one_load_count_once() -> None:
    start = deployment()
    points = [measured(start, *load) for load in LOADS]
    slow = dataclasses.replace(points[0], prompt=points[0].prompt + 1, seconds=points[0].seconds * 9)
    assert Calibration.of(start, [points[0], slow, *points]).points == tuple(points)
    mean = dataclasses.replace(points[0], measured="tpot")  # ITL and TPOT of a load are two quantities
    assert Calibration.of(start, [*points, mean]).points == (*points, mean)
    one = dataclasses.replace(points[0], prompt=100, answer=40)
    shorter = dataclasses.replace(one, prompt=110, answer=20)  # as many tokens of context halfway through the answer
    assert Calibration.of(start, [*points[1:], one, shorter]).points == (*points[1:], one)
    with pytest.raises(SimulationError, match="at least 3 different loads, .* but there are 4 measurements at 2 loads"):
        Calibration.of(start, points[:2] * 2)
    with pytest.raises(SimulationError, match="there are 0 measurements"):
        Calibration.of(start, [])


@pytest.mark.parametrize("gpu", [CPU, find_gpu("h100")])
def test_a_file_holds_everything(gpu: GPU, tmp_path: Path) -> None:
    start = deployment(gpu)
    found = Calibration.of(start, [measured(start, *load) for load in LOADS])
    found.write(tmp_path / "mine.json")
    assert Calibration.read(tmp_path / "mine.json") == found
    assert find_hardware(str(tmp_path / "mine.json")) == (gpu, found)
    assert find_hardware("h100") == (find_gpu("h100"), None)
    fp8 = find_shape("qwen3-8b", "fp8")
    with pytest.raises(SimulationError, match="was measured with bf16 weights, but qwen3-8b has fp8"):
        cost_model(fp8, gpu, 1, found)


def test_steps_of_a_cpu_neither_overlap_nor_are_padded() -> None:
    cost = deployment()
    clock = VirtualClock()
    _, evidence = cost_model(cost.shape, find_gpu("h100"))
    runner = SimulatedRunner(cost, evidence, EngineConfig(max_model_len=512, num_blocks=200), clock)
    assert (runner.runs_ahead, runner.info().cuda_graphs) == (False, 0)
    assert runner.memory_limit is None
    most = runner.max_step_tokens
    assert cost.seconds(StepLoad(1, most, most, 0, 2 * 256 * most, eager=True)) == pytest.approx(STEP_S, rel=0.01)
    for skip in (True, False):
        clock = VirtualClock()
        runner = SimulatedRunner(cost, evidence, EngineConfig(max_model_len=512, num_blocks=200), clock)
        server = VirtualServer(runner, clock, Knobs(), skip=skip)
        played = server.play([SimulatedRequest(0.0, [n + 1] * 10, 20) for n in range(5)])
        step_s = cost.seconds(StepLoad(5, 5, 0, 5 * 11, 0))
        assert (played.ends_ns[1] - played.ends_ns[0]) / 1e9 == pytest.approx(step_s, rel=1e-6)
        assert len(played.ends_ns) == 20
