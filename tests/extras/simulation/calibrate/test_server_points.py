"""What is measured of a server, on a simulated one, whose steps take what its cost model says."""

from __future__ import annotations

import pytest

from roseplay import Engine
from roseplay.clock import VirtualClock
from roseplay.extras.simulation.calibrate.server_points import Load, measure_server
from roseplay.extras.simulation.hardware import deployment


def test_steps_that_computed_only_prompts_are_points_of_their_own() -> None:
    with Engine("qwen3-8b", run_as="h100", clock=VirtualClock()) as engine:
        points = list(measure_server(engine, [Load(1, 256, 8), Load(1, 2048, 8)], 60))
        cost, _ = deployment("qwen3-8b", engine.config)
    assert [point.measured for point in points] == ["itl", "step", "itl", "step"]
    for gaps, step in (points[:2], points[2:]):
        assert (step.prompt, step.streams, step.prompts_s) == (gaps.prompt, 1, step.seconds)
        assert step.seconds == pytest.approx(cost.seconds(cost.prompt(step.prompt)), rel=0.01)
