"""``roseplay bench gpu`` without a GPU: every part runs on small models, and a failing one does not stop the rest."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from roseplay.bench import gpu
from roseplay.bench.answers import Check
from roseplay.bench.gpu_kernels import measure
from roseplay.bench.gpu_machine import Group, Machine, Row
from roseplay.bench.gpu_rows import idle_of
from roseplay.bench.main import main
from roseplay.model import shapes

TINY = ["gpu", "--device", "cpu", "--tiny"]


def bench(tmp_path: Path, *flags: str, code: int = 0) -> dict[str, Any]:
    file = tmp_path / "figures.json"
    assert main([*TINY, "--json", str(file), *flags]) == code
    return json.loads(file.read_text())


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


def test_rows_of_an_engine(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    found = bench(tmp_path, "--only", "qwen3-0.6b batch 8,prefill", "--no-checks")
    assert list(found["rows"]) == ["qwen3-0.6b batch 8", "qwen3-8b prefill 8k"]
    decode = found["rows"]["qwen3-0.6b batch 8"]
    assert list(decode["settings"]) == ["all on", "overlap off", "graphs off"]
    assert [setting["replayed"] for setting in decode["settings"].values()] == [1.0, 1.0, 0.0]
    for setting in decode["settings"].values():
        assert setting["roofline"] == pytest.approx(decode["floor_ms"] / setting["step_ms"])
    assert found["ceilings"]["copy_gb_s"] > 0
    assert "qwen3-0.6b batch 8" in capsys.readouterr().out


def test_a_row_that_fails_is_told_and_the_rest_goes_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    written = []

    def breaks(machine: Machine, engine: Any) -> dict[str, Any]:
        raise RuntimeError("out of luck\nand more")

    def works(machine: Machine, engine: Any) -> dict[str, Any]:
        written.append(json.loads((tmp_path / "figures.json").read_text())["rows"])
        return {"figure": "1 tok/s"}

    monkeypatch.setattr(
        gpu,
        "groups",
        lambda: [
            Group([Row("one", breaks), Row("two", works)]),
            Group([Row("three", works)], shape="no such shape"),
            Group([Row("four", works)]),
        ],
    )
    monkeypatch.setattr(Machine, "engine", lambda *args, **knobs: (_ for _ in ()).throw(ValueError("no engine")))
    rows = bench(tmp_path, "--no-checks")["rows"]
    assert rows["one"]["error"] == "RuntimeError: out of luck"
    assert rows["two"]["figure"] == rows["four"]["figure"] == "1 tok/s"
    assert rows["three"]["error"] == "ValueError: no engine"
    assert [list(before) for before in written] == [["one"], ["one", "two", "three"]]  # written after each row


def test_rows_stand_beside_their_goals_and_what_others_published(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    checked = []

    def right(device: str, dtype: str) -> Check:
        checked.append((device, dtype))
        return Check(device, dtype, True, 0.01, 72)

    monkeypatch.setattr(gpu.answers, "check", right)
    rows = [
        Row("one", lambda machine, engine: {"share": 0.7, "figure": "70% of roofline"}, 0.7, "others: 66%"),
        Row("two", lambda machine, engine: {"share": 0.49, "figure": "49% of the rate"}, 0.5),
        Row("three", lambda machine, engine: {"share": 0.3, "figure": "30% of roofline"}),
    ]
    monkeypatch.setattr(gpu, "groups", lambda: [Group(rows)])
    found = bench(tmp_path)
    assert [(check["dtype"], check["ok"]) for check in found["checks"]] == [("float32", True), ("bfloat16", True)]
    assert checked == [("cpu", "float32"), ("cpu", "bfloat16")]
    assert found["rows"]["one"]["reached"] and not found["rows"]["two"]["reached"]
    assert "reached" not in found["rows"]["three"]
    said = capsys.readouterr().out
    assert "goal 70%, reached; others: 66%" in said and "goal 50%, missed\n" in said


def test_where_answers_are_wrong_nothing_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(gpu.answers, "check", lambda device, dtype: Check(device, dtype, dtype == "float32", 3.0, 72))
    monkeypatch.setattr(gpu, "groups", lambda: pytest.fail("it measures"))
    assert main(TINY) == 1
    said = capsys.readouterr()
    assert "WRONG" in said.out and "nothing is measured" in said.err


def test_when_the_time_is_up_no_row_is_begun(tmp_path: Path):
    rows = bench(tmp_path, "--no-checks", "--time-limit-s", "0")["rows"]
    assert len(rows) == sum(len(group.rows) for group in gpu.groups())
    assert all(row["skipped"] for row in rows.values())


@pytest.mark.slow
def test_everything_runs(tmp_path: Path):
    found = bench(tmp_path)
    assert {name for name, row in found["rows"].items() if "figure" not in row} == set()
    assert set(found["rows"]["gpt2 64 x 512"]["runs"]) == {"roseplay", "generate_batch"}


@pytest.mark.parametrize(
    ("spans", "share"),
    [([(0, 10)], 0.0), ([(0, 4), (6, 10)], 0.2), ([(0, 8), (2, 4), (8, 10)], 0.0), ([(0, 5), (1, 2), (6, 10)], 0.1)],
)
def test_idle_time_is_what_no_span_covers(spans: list[tuple[float, float]], share: float):
    assert idle_of(spans) == pytest.approx(share)


def test_shapes_are_those_of_the_models_they_are_named_after():
    from transformers import AutoConfig, AutoModelForCausalLM

    millions = {
        "gpt2-124m": 124.4,
        "qwen3-8b": 8190.7,
        "llama-3.2-1b": 1235.8,
        "qwen3-0.6b": 596.0,
        "qwen3.5-0.8b": 752.4,  # without the part for images
        "smollm-135m": 134.5,
    }
    assert shapes.names() == sorted(millions)
    for name, expected in millions.items():
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(shapes.resolve(name)))
        assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(expected, abs=0.1)


@pytest.mark.skipif(
    importlib.util.find_spec("triton") is None or os.environ.get("TRITON_INTERPRET") != "1",
    reason="Triton is not installed, or does not interpret",
)
def test_kernels_give_all_their_figures_on_tiny_shapes(tmp_path: Path):
    document = measure(Machine("cpu", True, tmp_path, bandwidth=1e9, matmul_flops=1e9), None)
    assert document["figure"].startswith("tiny at ")
    assert document["decode"][0]["bandwidth_fraction"] > 0
    assert document["append"][0]["bandwidth_fraction"] > 0
    assert document["prefill"][0]["matmul_fraction"] > 0
