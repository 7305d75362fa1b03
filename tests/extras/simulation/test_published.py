"""How far the cost model can be trusted: its errors at the published points that come with the package."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from roseplay.extras.simulation.calibration import Errors, fit, fit_first_tokens, predict_held_out
from roseplay.extras.simulation.cost import CostModel, Parameters
from roseplay.extras.simulation.gpus import find_gpu
from roseplay.extras.simulation.published import Point, published


def points(**wanted: object) -> list[Point]:
    return [point for point in published() if all(getattr(point, name) == value for name, value in wanted.items())]


def defaults(point: Point) -> Parameters:
    return Parameters.default(find_gpu(point.gpu), point.weights)


def terms(chosen: Sequence[Point]) -> np.ndarray:
    return np.array([point.terms() for point in chosen])


def seconds(chosen: Sequence[Point]) -> np.ndarray:
    return np.array([point.seconds for point in chosen])


def errors(chosen: Sequence[Point], parameters: Callable[[Point], Parameters] = defaults) -> Errors:
    predicted = np.array([point.terms() @ parameters(point).as_vector() for point in chosen])
    return Errors.of(predicted, seconds(chosen))


def test_every_group_names_its_source_and_an_engine() -> None:
    assert len(published()) > 180
    for point in published():
        assert " at " in point.source
        assert point.engine
        assert point.seconds > 0


def test_decode_steps_calibrated_on_three_points() -> None:
    """Qwen3-8B on one H100: three points in bf16 predict all of bf16 and fp8."""
    decode = points(measured="itl", model="qwen3-8b")
    assert len(decode) == 53
    chosen = [(128, 1024, 1), (128, 1024, 64), (8192, 512, 16)]
    three = [p for p in decode if p.weights == "bf16" and (p.prompt, p.answer, p.streams) in chosen]
    fitted = fit(terms(three), seconds(three), Parameters())
    found = errors(decode, lambda point: fitted)
    assert found.median <= 0.05
    assert found.within_10 >= 0.9
    assert errors(three, lambda point: fitted).median < errors(three).median
    assert (fitted.compute_share, fitted.link_share) == pytest.approx((0.67, 0.43))  # decode steps say nothing of these


def test_steps_of_one_to_eight_gpus_with_one_set_of_parameters() -> None:
    steps = points(measured="step")
    assert {point.tensor_parallel for point in steps} == {1, 2, 4, 8}
    fitted = fit(terms(steps), seconds(steps), Parameters())
    found = errors(steps, lambda point: fitted)
    assert found.median <= 0.06
    assert found.within_10 >= 0.8
    predicted = predict_held_out(terms(steps), seconds(steps), Parameters())
    assert Errors.of(predicted, seconds(steps)).median <= 0.06
    without_link = np.delete(np.arange(len(steps)), [i for i, p in enumerate(steps) if p.tensor_parallel < 8])
    prompts = [steps[i] for i in without_link if steps[i].prompt >= 1024]
    free = dataclasses.replace(fitted, link_share=1e9)
    assert errors(prompts, lambda point: free).median > 0.2  # the exchange between the GPUs is needed


def test_settings_are_ranked_without_calibration() -> None:
    """Throughput per GPU of two deployments of one model that differ in GPU or number of GPUs, apart by more than 5%."""
    rows = points(measured="tpot")

    def per_gpu(point: Point, one_token_s: float) -> float:
        return point.streams / one_token_s / point.tensor_parallel

    right = []
    for one, other in itertools.combinations(rows, 2):
        same = (one.gpu, one.tensor_parallel) == (other.gpu, other.tensor_parallel)
        measured = per_gpu(one, one.seconds) / per_gpu(other, other.seconds)
        if one.model != other.model or same or abs(measured - 1) <= 0.05:
            continue
        predicted = [per_gpu(p, float(p.terms() @ defaults(p).as_vector())) for p in (one, other)]
        right.append((measured > 1) == (predicted[0] > predicted[1]))
    assert len(right) > 1000
    assert np.mean(right) >= 0.95


def test_end_to_end_rows_without_calibration() -> None:
    found = errors(points(measured="tpot"))
    assert found.within_10 >= 0.4
    assert found.within_20 >= 0.7


def first_tokens_s(costs: Sequence[CostModel], chosen: Sequence[Point]) -> np.ndarray:
    """Returns the seconds to the first token of each point's prompt, alone on an idle server."""
    pairs = zip(costs, chosen, strict=True)
    return np.array([cost.seconds(cost.prompt(point.prompt)) + cost.parameters.server_s for cost, point in pairs])


@pytest.mark.parametrize("weights", ["bf16", "fp8"])
def test_unloaded_first_tokens_from_1024_tokens_on(weights: str) -> None:
    long = [point for point in points(measured="unloaded ttft", weights=weights) if point.prompt >= 1024]
    assert len(long) == 3
    costs = [point.cost_model() for point in long]
    assert np.abs(first_tokens_s(costs, long) / seconds(long) - 1).max() <= 0.1

    parts = np.array([cost.terms(cost.prompt(p.prompt)) for cost, p in zip(costs, long, strict=True)])
    start = costs[0].parameters
    parts *= start.as_vector()
    fitted = fit_first_tokens(parts, np.ones(3), seconds(long), start)
    again = [CostModel(cost.shape, cost.gpu, 1, fitted) for cost in costs]
    assert np.abs(first_tokens_s(again, long) / seconds(long) - 1).max() <= 0.05


def test_few_points_leave_what_they_do_not_say_at_the_defaults() -> None:
    chosen = points(measured="itl", model="qwen3-8b", weights="bf16", streams=1)[:1]
    fitted = fit(terms(chosen), seconds(chosen), Parameters())
    before, after = Parameters().as_vector(), fitted.as_vector()
    assert np.abs(after / before - 1).max() < 0.1
    assert errors(chosen, lambda point: fitted).median < 0.005


def test_a_fit_stays_near_its_start_whatever_the_points_say() -> None:
    chosen = points(measured="itl", model="qwen3-8b", weights="bf16")
    fitted = fit(terms(chosen), seconds(chosen) * 1000, Parameters())
    assert np.all(fitted.as_vector() / Parameters().as_vector() <= 4.0001)
