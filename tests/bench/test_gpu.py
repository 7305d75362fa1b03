"""``roseplay bench gpu`` where there is no GPU: all of it runs on small models, and what fails stops nothing else."""

from __future__ import annotations

import argparse
import importlib.util
import json
import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from roseplay.bench import gpu, gpu_checks
from roseplay.bench.gpu_kernels import TINY as TINY_SHAPE
from roseplay.bench.gpu_kernels import attention
from roseplay.bench.gpu_machine import Group, Machine, Part, Row, measure
from roseplay.bench.gpu_steps import compilations
from roseplay.bench.main import main
from roseplay.bench.runs import BenchmarkError
from roseplay.kernels.cuda.attention.backend import TritonBackend
from roseplay.model import shapes

TINY = ["gpu", "--device", "cpu", "--tiny"]
interpreted = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None or os.environ.get("TRITON_INTERPRET") != "1",
    reason="Triton is not installed, or does not interpret",
)


def bench(tmp_path: Path, *flags: str, code: int = 0) -> dict[str, Any]:
    file = tmp_path / "figures.json"
    assert main([*TINY, "--json", str(file), *flags]) == code
    return json.loads(file.read_text())


def run_rows(tmp_path: Path, *groups: Group, **settings: Any) -> dict[str, Any]:
    """Runs a command of one part behind the device's."""
    args = {"device": "cpu", "tiny": True, "only": "", "repeat_runs": 1, "time_limit_s": 100.0, **settings}
    options = argparse.Namespace(json=tmp_path / "figures.json", **args)
    device = Part("device", 10, [Group([Row("device", lambda *_: {"bandwidth": 1e9, "matmul_flops": 1e9})])])
    return gpu.run_parts(
        options, [device, Part("rows", 10, list(groups))], lambda part, machine, _: measure(part, machine)
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["gpu"], "there is no CUDA device here"),
        (["gpu", "--device", "cpu"], "only --tiny runs"),
        (["gpu", "--device", "tpu"], "use cuda, cuda:N, or cpu with --tiny"),
    ],
)
def test_without_a_gpu_it_says_so_in_one_line(flags: list[str], message: str, capsys: pytest.CaptureFixture[str]):
    assert main(flags) == 2
    said = capsys.readouterr()
    assert message in said.err
    assert said.err.count("\n") == 1
    assert not said.out


def test_a_model_is_started_and_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    found = bench(tmp_path, "--only", "qwen3-8b", "--one-process")
    assert list(found["parts"]) == ["device", "qwen3-8b"]
    names = ["start", "batch 1", "batch 32", "batch 256", "prefill 8k"]
    assert list(found["rows"]) == ["device", *(f"qwen3-8b {name}" for name in names)]
    start = found["rows"]["qwen3-8b start"]
    assert start["graphs"] > 0 and start["steps"] > 40 and start["compiled_while_serving"] == []
    decode = found["rows"]["qwen3-8b batch 32"]
    assert list(decode["settings"]) == ["all on", "overlap off", "graphs off"]
    assert [setting["replayed"] for setting in decode["settings"].values()] == [1.0, 1.0, 0.0]
    for setting in decode["settings"].values():
        assert setting["roofline"] == pytest.approx(decode["floor_ms"] / setting["step_ms"])
        assert setting["host_gap_ms"] == pytest.approx(setting["step_ms"] - setting["device_ms"])
    assert [line.split(" | ")[0] for line in found["table"][2:]] == [
        f"| qwen3-8b batch {size}" for size in (1, 32, 256)
    ]
    assert os.environ["HF_HUB_OFFLINE"] == "1"
    said = capsys.readouterr().out
    assert said.startswith(gpu.STAND_IN) and "device  " in said.splitlines()[1] and "-- qwen3-8b: " in said


def test_a_row_that_fails_is_told_and_the_rest_goes_on(tmp_path: Path):
    written = []

    def breaks(machine: Machine, engine: Any) -> dict[str, Any]:
        raise RuntimeError("out of luck\nand more")

    def works(machine: Machine, engine: Any) -> dict[str, Any]:
        written.append(json.loads((tmp_path / "figures.json").read_text())["rows"])
        return {"figure": "1 tok/s"}

    groups = [
        Group([Row("one", breaks), Row("two", works)]),
        Group([Row("three", works)], "qwen3-8b", {"block_size": 0}),
        Group([Row("four", works)]),
    ]
    with pytest.raises(BenchmarkError, match="without figures: one, three"):
        run_rows(tmp_path, *groups)
    rows = json.loads((tmp_path / "figures.json").read_text())["rows"]
    assert rows["one"]["error"] == "RuntimeError: out of luck"
    assert rows["two"]["figure"] == rows["four"]["figure"] == "1 tok/s"
    assert rows["three"]["error"].startswith("SettingError: block_size is 0")
    assert [list(before)[1:] for before in written] == [["one"], ["one", "two", "three"]]  # row by row


def test_rows_stand_beside_their_goals_and_what_others_published(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    rows = [
        Row("one", lambda machine, engine: {"share": 0.7, "figure": "70% of roofline"}, 0.7, "others: 66%"),
        Row("two", lambda machine, engine: {"share": 0.49, "figure": "49% of the rate"}, 0.5),
        Row("three", lambda machine, engine: {"share": 0.3, "figure": "30% of roofline"}),
    ]
    found = run_rows(tmp_path, Group(rows))
    assert found["rows"]["one"]["reached"] and not found["rows"]["two"]["reached"]
    assert "reached" not in found["rows"]["three"]
    said = capsys.readouterr().out
    assert "goal 70%, reached; others: 66%" in said and "goal 50%, missed\n" in said


def test_what_is_wrong_is_said_and_the_rest_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    rows = [Row("one", lambda *_: {"wrong": True, "figure": "3 errors"}), Row("two", lambda *_: {"figure": "1 ms"})]
    with pytest.raises(BenchmarkError, match="one"):
        run_rows(tmp_path, Group(rows))
    assert json.loads((tmp_path / "figures.json").read_text())["rows"]["two"]["figure"] == "1 ms"
    assert "WRONG: 3 errors" in capsys.readouterr().out


def test_without_a_device_nothing_else_is_tried(tmp_path: Path):
    failing = Part("device", 10, [Group([Row("device", lambda *_: {"error": "RuntimeError: no driver"})])])
    args = argparse.Namespace(device="cpu", tiny=True, only="", repeat_runs=1, time_limit_s=100.0, json=None)
    with pytest.raises(BenchmarkError, match="the device cannot be used: RuntimeError: no driver"):
        gpu.run_parts(args, [failing], lambda part, machine, _: measure(part, machine))


def test_when_the_time_is_up_no_part_is_begun(tmp_path: Path):
    found = run_rows(tmp_path, Group([Row("one", lambda *_: pytest.fail("it is measured"))]), time_limit_s=0)
    assert found["parts"]["rows"] == {"skipped": "the time was up"}


def test_a_part_is_ended_after_its_time(tmp_path: Path):
    (part,) = (part for part in gpu.parts() if part.name == "tiles")
    before = set(multiprocessing.active_children())
    context = multiprocessing.get_context("spawn")
    rows = list(gpu.measure_apart(part, Machine("cpu", True, tmp_path), 0.1, context))
    assert rows == [("tiles", {"error": "tiles was given up after 0.1 s"})]
    assert set(multiprocessing.active_children()) == before


@pytest.mark.slow
def test_everything_runs(tmp_path: Path):
    found = bench(tmp_path)
    assert list(found["parts"]) == [part.name for part in gpu.parts()]
    assert all("seconds" in part for part in found["parts"].values())
    assert {name for name, row in found["rows"].items() if "figure" not in row or row.get("wrong")} == set()
    assert set(found["rows"]["gpt2 64 x 512"]["runs"]) == {"roseplay", "generate_batch"}
    assert found["rows"]["qwen3-8b replay"]["batches"]["1"]["kernels"] > 100


# -- its checks


@pytest.mark.parametrize(
    ("printed", "code", "wrong", "figure"),
    [
        ("========= ERROR SUMMARY: 0 errors", 0, False, "launched: errors: 0; replayed: errors: 0"),
        ("========= ERROR SUMMARY: 2 errors", 86, True, "launched: errors: 2; replayed: errors: 2"),
        ("no such device", 1, True, "launched: code 1: ['no such device']; replayed: code 1: ['no such device']"),
    ],
)
def test_the_sanitizers_errors_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: str, code: int, wrong: bool, figure: str
):
    program = tmp_path / "compute-sanitizer"
    program.write_text(f"#!/bin/sh\necho '{printed}'\nexit {code}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = gpu_checks.sanitized(Machine("cpu", True, tmp_path), None)
    assert (found["wrong"], found["figure"]) == (wrong, figure)


@interpreted
def test_what_the_sanitizer_watches_runs():
    gpu_checks.exercise("cpu", replay=True)


@interpreted
def test_a_wrong_kernel_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    attend = TritonBackend.attend
    monkeypatch.setattr(TritonBackend, "attend", lambda *args: 1.1 * attend(*args))
    found = gpu_checks.against_torch(TINY_SHAPE, Machine("cpu", True, tmp_path), None)
    assert found["wrong"] and found["difference"] == pytest.approx(0.1, rel=1e-3) and found["graph_is_eager"]


def test_compilations_are_noted_while_they_are_asked_for():
    knobs = pytest.importorskip("triton").knobs
    with compilations() as names:
        knobs.runtime.jit_post_compile_hook(repr="attend_kernel[num_warps=4]", key="", already_compiled=False)
    assert names == ["attend_kernel[num_warps=4]"]
    assert knobs.runtime.jit_post_compile_hook is None


def test_shapes_are_those_of_the_models_they_are_named_after():
    from transformers import AutoConfig, AutoModelForCausalLM

    millions = {
        "gpt2-124m": 124.4,
        "qwen3-8b": 8190.7,
        "qwen3-32b": 32762.1,
        "llama-3.1-8b": 8030.3,
        "llama-3.1-70b": 70553.7,
        "llama-3.2-1b": 1235.8,
        "qwen3-0.6b": 596.0,
        "qwen3.5-0.8b": 752.4,  # without the part for images
        "smollm-135m": 134.5,
    }
    assert shapes.names() == sorted(millions)
    assert shapes.resolve("some/path") == "some/path"
    for name, expected in millions.items():
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(shapes.resolve(name)))
        assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(expected, abs=0.1)


@interpreted
def test_kernels_give_all_their_figures_on_tiny_shapes(tmp_path: Path):
    document = attention(Machine("cpu", True, tmp_path, bandwidth=1e9, matmul_flops=1e9), None)
    assert document["figure"].startswith("tiny 0%; ")
    for kind in ("decode", "append", "prefill"):
        assert document[kind][0]["share"] > 0
