"""Whatever stands in a file from outside, one line names the field that is wrong, or everything works with it."""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from roseplay.config import EngineConfig, Knobs, SamplingParams
from roseplay.extras.lab.measuring import RunTerms
from roseplay.extras.lab.simulated_arm import SimulatedArm
from roseplay.extras.simulation.calibrate.result_files import read_results
from roseplay.extras.simulation.calibrated import Calibration, find_hardware
from roseplay.extras.simulation.cost import CostModel
from roseplay.extras.simulation.gpus import GPU, SimulationError, find_gpu
from roseplay.extras.simulation.hardware import HARDWARE, deployment
from roseplay.extras.simulation.models import find_shape
from roseplay.extras.simulation.plan import text
from roseplay.extras.simulation.plan.limits import Limits
from roseplay.extras.simulation.plan.load import uniform_load
from roseplay.extras.simulation.plan.search import search
from roseplay.extras.simulation.points import Measurement
from roseplay.traffic.workload import Arrival

HERE = Path(__file__).parent
MODEL = "smollm-135m"
CPU = GPU(name="cpu", title="a CPU", memory_gib=32, bandwidth_tb_s=0.02, bf16_tflops=0.1, cpu=True, source="a test")
MISSING = object()
WRONG: list[Any] = [
    MISSING, None, True, "text", "7", "two\nlines", "x" * 9999, -1, 0, 0.5, 1e-320, 1e308, 10**30, 10**400,
    float("nan"), float("inf"), [], [1], {}, {"a": 1},
]  # fmt: skip


def written(gpu: GPU, folder: Path) -> dict[str, Any]:
    """The content of a calibration file, each of whose optional fields has a value in some point."""
    cost = CostModel(find_shape(MODEL), gpu)
    points = [
        Measurement(measured="itl", streams=1, prompt=64, answer=32, seconds=0.01, ttft_s=0.02),
        Measurement(measured="tpot", streams=8, prompt=64, answer=32, seconds=0.012),
        Measurement(measured="itl", streams=32, prompt=512, answer=32, seconds=0.02, prompts_s=0.5),
    ]
    Calibration.of(cost, points).write(folder / "whole.json")
    document: dict[str, Any] = json.loads((folder / "whole.json").read_text())
    return document


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every field and of every item of a list."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from places(inner, (*path, key))


def mutants(document: dict[str, Any], every: int = 1) -> Iterator[tuple[str, dict[str, Any]]]:
    """The document with one field missing or wrong, in each way or in every nth, and that field's name."""
    for path in places(document):
        for wrong in WRONG[::every]:
            mutant = copy.deepcopy(document)
            holder: Any = mutant
            for key in path[:-1]:
                holder = holder[key]
            if wrong is MISSING:
                del holder[path[-1]]
            else:
                holder[path[-1]] = wrong
            yield next(key for key in reversed(path) if isinstance(key, str)), mutant


def use(file: Path) -> None:
    """Do with a calibration what the page, plans and the lab do; all that comes out must be finite."""
    config = EngineConfig(run_as=str(file), max_model_len=128, num_blocks=64)
    evidence = deployment(MODEL, config)[1]
    json.dumps(HARDWARE.origins(MODEL, config, 64), allow_nan=False)
    assert "\n" not in f"{evidence} {evidence.label}"

    gpu, own = find_hardware(str(file))
    shape, limits = find_shape(MODEL), Limits(1e5, 1e5)
    (tried, *_), _ = search(shape, gpu, uniform_load(4, 10.0, 30, 4, shape.vocab), limits, config, [1], own)
    assert 0 < tried.figures.ttft_s[0] < float("inf")
    assert all("\n" not in line for line in text.trust(tried, shape, gpu))

    arm = SimulatedArm(MODEL, config, Knobs())
    workload = [Arrival(0.01 * n, [n + 1] * 30, SamplingParams(max_new_tokens=4)) for n in range(4)]
    bound = evidence.bound or 0.0
    took = []
    for durations in (1 - bound, 1.0, 1 + bound):
        run = arm.run(workload, RunTerms(threading.Event(), 60, durations=durations))
        assert all(gap > 0 for answer in run.answers for gap in answer.metrics.itl_ns)
        took.append(run.answers[0].metrics.ttft_s or 0.0)
    assert 0 < took[0] <= took[1] <= took[2]


@pytest.mark.parametrize(("gpu", "every"), [(CPU, 1), (find_gpu("h100"), 3)], ids=["described", "named"])
def test_a_wrong_field_is_named_or_does_no_harm(gpu: GPU, every: int, tmp_path: Path) -> None:
    used, refused = set(), 0
    tried = list(mutants(written(gpu, tmp_path), every))
    for field, mutant in tried:
        content = json.dumps(mutant).encode()
        try:
            own = Calibration.parse(content, "mutant.json")
            if repr(own) not in used:
                used.add(repr(own))
                (tmp_path / "mutant.json").write_bytes(content)
                use(tmp_path / "mutant.json")
        except SimulationError as error:
            refused += 1
            assert field in str(error) or field == "roseplay_calibration"
            assert len(str(error).splitlines()) == 1 and len(str(error)) < 900
        except Exception as error:
            error.add_note(f"{field} in {mutant}"[:3000])
            raise
    assert refused > len(tried) // 2 and len(used) > len(tried) // 60


@pytest.mark.parametrize("name", ["vllm.jsonl", "sglang.jsonl", "grid.json"])
def test_a_wrong_field_of_a_result_is_named_or_leaves_a_file_that_can_be_read(name: str, tmp_path: Path) -> None:
    """The first result of a file is changed; three others suffice to calibrate."""
    first, *_ = from_lines(name)
    others, file = from_lines("vllm.jsonl")[:3], tmp_path / "results.json"
    cost = CostModel(find_shape("qwen3-8b"), find_gpu("h100"))
    used, refused = set(), 0
    for field, mutant in mutants(first):
        file.write_text(json.dumps([mutant, *others]))
        try:
            points, _ = read_results([file])
        except ValueError as error:
            refused += 1
            assert field in str(error) or (field == "cells" and "has no results" in str(error))
            assert len(str(error).splitlines()) == 1
            continue
        if repr(points) not in used:
            used.add(repr(points))
            found = Calibration.of(cost, points)
            found.write(file)
            assert Calibration.read(file) == found
    assert refused > 50 and len(used) > 5


def from_lines(name: str) -> list[dict[str, Any]]:
    content = (HERE / name).read_text()
    return [json.loads(line) for line in (content.splitlines() if name.endswith("l") else [content])]
