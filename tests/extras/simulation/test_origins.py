"""What is said of where simulated numbers come from agrees with what the engine computes with."""

from __future__ import annotations

from pathlib import Path

import pytest

from roseplay.config import EngineConfig
from roseplay.extras.simulation.calibrated import Calibration
from roseplay.extras.simulation.hardware import deployment
from roseplay.extras.simulation.origins import origins
from roseplay.extras.simulation.points import Measurement
from roseplay.extras.simulation.published import published

CONFIG = EngineConfig(run_as="h100", tensor_parallel_size=2)


def test_the_terms_add_up_to_the_time_of_the_example_steps() -> None:
    cost, evidence = deployment("qwen3-32b", CONFIG)
    found = origins(cost, evidence, CONFIG, 1000)
    loads = [cost.decode(32, 2048), cost.prompt(2048)]
    for index, load in enumerate(loads):
        total = sum(term["ms"][index] for term in found["terms"])
        assert total == pytest.approx(1e3 * cost.seconds(load), abs=0.05)
    assert all("fitted" in term["origin"] for term in found["terms"])
    assert "no facts about the hardware" in found["formula"]


def test_published_points_stand_beside_what_the_cost_model_gives() -> None:
    cost, evidence = deployment("qwen3-32b", CONFIG)
    rows = origins(cost, evidence, CONFIG, 1000)["points"]
    measured = [p for p in published() if (p.gpu, p.model, p.tensor_parallel) == ("h100", "qwen3-32b", 2)]
    assert [row["measured_ms"] for row in rows] == [round(1e3 * point.seconds, 2) for point in measured]
    assert all(row["source"] and row["engine"] for row in rows)
    for row in rows:
        if row["predicted_ms"] is None:
            assert "too few KV blocks" in row["measures"], "only there the scheduler decides"
        else:
            assert abs(row["off_percent"]) < 20
            assert row["off_percent"] == pytest.approx(100 * (row["predicted_ms"] / row["measured_ms"] - 1), abs=0.2)
    assert [row["ttft_s"] for row in rows if row["predicted_ms"] is None] == [18.957]


def test_without_points_of_its_own_a_deployment_is_uncalibrated() -> None:
    config = EngineConfig(run_as="l4", num_blocks=500)
    cost, evidence = deployment("qwen3-8b", config)
    found = origins(cost, evidence, config, 500)
    assert (found["label"], found["points"]) == ("uncalibrated", [])
    assert [label["label"] for label in found["labels"] if label["now"]] == ["uncalibrated"]
    assert all(term["origin"] == "default" for term in found["terms"])
    assert not any("GPUs" in term["name"] for term in found["terms"]), "one GPU exchanges nothing"
    assert dict(found["memory"])["KV cache"].endswith("as set: 499 blocks of 16 tokens")


def test_the_points_of_a_calibration_stand_beside_what_the_others_predict(tmp_path: Path) -> None:
    cost, _ = deployment("qwen3-8b", EngineConfig(run_as="l4"))
    times = {(1, 64): 0.09, (16, 64): 0.1, (64, 512): 0.2}
    points = [Measurement(measured="itl", streams=n, prompt=k, answer=32, seconds=s) for (n, k), s in times.items()]
    own = Calibration.of(cost, points)
    own.write(tmp_path / "mine.json")
    config = EngineConfig(run_as=str(tmp_path / "mine.json"))
    rows = origins(*deployment("qwen3-8b", config), config, 500)["points"]
    assert [row["measured_ms"] for row in rows] == [90, 100, 200]
    assert [row["predicted_ms"] for row in rows] == [round(1e3 * seconds, 2) for seconds in own.predicted_s]
    assert {row["source"] for row in rows} == {"measured on qwen3-8b on L4"}
