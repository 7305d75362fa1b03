"""What is measured of a server, on a simulated one, whose steps take what its cost model says."""

from __future__ import annotations

import pytest

from roseplay import Engine
from roseplay.clock import VirtualClock
from roseplay.extras.simulation.calibrate.server_points import Load, measure_server
from roseplay.extras.simulation.hardware import deployment


def test_steps_that_computed_only_prompts_are_points_of_their_own() -> None:
    with Engine("qwen3-8b", run_as="h100", clock=VirtualClock()) as engine:
        points = list(measure_server(engine, [Load(1, 256, 8), Load(4, 256, 8)], 60))
        cost, _ = deployment("qwen3-8b", engine.config)
    steps = [point for point in points if point.measured == "step"]
    assert [point.streams for point in points if point.measured == "itl"] == [1, 4]
    assert {point.streams for point in steps} >= {1}  # of four prompts, some may have come after a step began
    for point in steps:
        assert point.prompt == pytest.approx(256, rel=0.1)
        assert (
            point.seconds
            == point.prompts_s
            == pytest.approx(cost.seconds(cost.prompt(point.prompt, point.streams)), rel=0.02)
        )
