"""What the real scheduler buys: where requests need more KV blocks than there are, first tokens come late.

Published rows with as many clients as named, each of which sends one request after the other. Nothing is fitted. The
figures are printed beside the measured ones (``pytest -rP``) and not bounded, as they depend on the exact number of blocks.
TensorRT-LLM reserves room for whole answers, where this scheduler admits by prompt and preempts: with long answers its
first tokens come much earlier, and its answers are interrupted instead.
"""

from __future__ import annotations

import random

import numpy as np
import pytest

from roseplay.clock import VirtualClock
from roseplay.config import EngineConfig, Knobs
from roseplay.extras.simulation.evidence import cost_model
from roseplay.extras.simulation.outcome import Simulated, SimulatedRequest
from roseplay.extras.simulation.published import Point, published
from roseplay.extras.simulation.runner import SimulatedRunner
from roseplay.extras.simulation.virtual import VirtualServer

ROUNDS = 2
ROWS = [point for point in published() if point.measured == "saturated"]
OF_VLLM = [point for point in ROWS if point.engine.startswith("vLLM")]


def simulate(point: Point, num_blocks: int | None) -> tuple[int, Simulated]:
    default = point.cost_model()
    _, evidence = cost_model(default.shape, default.gpu, point.tensor_parallel)
    clock, rng = VirtualClock(), random.Random(0)
    runner = SimulatedRunner(default, evidence, EngineConfig(max_model_len=16384, num_blocks=num_blocks), clock)
    traffic = [
        SimulatedRequest(0, rng.choices(range(32000), k=point.prompt), point.answer)
        for _ in range(ROUNDS * point.streams)
    ]
    played = VirtualServer(runner, clock, Knobs(max_batch_size=point.streams)).play(traffic, point.streams)
    return runner.num_blocks, played


def figures(played: Simulated) -> tuple[float, float]:
    """Mean TTFT in seconds and mean TPOT in ms."""
    times = [played.token_times_ns(i) for i in range(len(played.requests))]
    ttft = [(t[0] - r.arrived_ns) / 1e9 for t, r in zip(times, played.requests, strict=True)]
    return float(np.mean(ttft)), float(np.mean([(t[-1] - t[0]) / 1e6 / (len(t) - 1) for t in times]))


def check(point: Point) -> None:
    num_blocks, capped = simulate(point, None)
    (ttft_s, tpot_ms), (free_ttft_s, free_tpot_ms) = figures(capped), figures(simulate(point, 2**18)[1])
    assert point.ttft_s is not None
    print(
        f"{point.tensor_parallel} x {point.gpu}, {point.engine}, {point.model} {point.weights},"
        f" {point.prompt} + {point.answer} tokens, {point.streams} clients: TTFT / TPOT measured {point.ttft_s:.1f} s /"
        f" {point.seconds * 1e3:.0f} ms, simulated {ttft_s:.1f} / {tpot_ms:.0f} with {num_blocks:,} blocks,"
        f" {free_ttft_s:.1f} / {free_tpot_ms:.0f} with any number"
    )
    assert ttft_s > 1.5 * free_ttft_s
    interrupted = sum(times.preemptions for times in capped.requests)
    assert capped.busiest < point.streams or interrupted > 0


@pytest.mark.parametrize("point", OF_VLLM, ids=lambda point: f"{point.gpu}-{point.prompt}")
def test_first_tokens_are_late_where_the_blocks_run_out(point: Point) -> None:
    check(point)


@pytest.mark.slow
@pytest.mark.parametrize(
    "point", [p for p in ROWS if p not in OF_VLLM], ids=lambda p: f"{p.gpu}-{p.weights}-{p.prompt}-{p.streams}"
)
def test_other_engines_rows(point: Point) -> None:
    check(point)
