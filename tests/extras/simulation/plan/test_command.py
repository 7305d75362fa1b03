from __future__ import annotations

import json
import random
import re
import shlex
import subprocess
import sys
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from roseplay.clock import VirtualClock
from roseplay.config import SETTINGS
from roseplay.extras.simulation.calibrated import Calibration
from roseplay.extras.simulation.cost import CostModel
from roseplay.extras.simulation.gpus import find_gpu
from roseplay.extras.simulation.hardware import deployment
from roseplay.extras.simulation.models import find_shape
from roseplay.extras.simulation.plan.command import main
from roseplay.extras.simulation.plan.limits import Limits
from roseplay.extras.simulation.plan.load import read_load, uniform_load
from roseplay.extras.simulation.plan.search import Tried, best
from roseplay.extras.simulation.plan.text import table
from roseplay.extras.simulation.published import published
from roseplay.extras.simulation.runner import SimulatedRunner
from roseplay.extras.simulation.summary import summarize
from roseplay.extras.simulation.virtual import VirtualServer
from roseplay.play.options import parse

LITTLE = ["--kv-cache-memory", "1000"]
SMALL = ["--requests", "25", "--prompt-tokens", "200", "--answer-tokens", "40"]


def plan(*arguments: str) -> int:
    try:
        return main(["--gpu", "h100", "--model", "qwen3-8b", *arguments])
    except SystemExit as left:
        return int(str(left.code))


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = plan(*arguments, "--json")
    return code, json.loads(capsys.readouterr().out)


def test_a_table_a_sentence_and_the_flags(capsys: pytest.CaptureFixture[str]) -> None:
    assert plan("--rate", "12", "--ttft-p95", "500", "--itl-p95", "50", *SMALL) == 0
    out = capsys.readouterr().out
    assert out.startswith("GPUs  max-num-seqs  max-num-batched-tokens  TTFT p95  ITL p95")
    assert "Simulated: 1 x H100 SXM holds 12 requests/s of qwen3-8b within TTFT p95 500 ms and ITL p95 50 ms" in out
    assert "calibrated on 46 published points of qwen3-32b, qwen3-8b (error: median" in out
    assert "TTFT under load: within about 40\u202f% of published figures" in out
    assert "Published: vLLM 0.30.0" in out
    assert "times real time" in out


def printed(out: str, start: str) -> list[str]:
    """The words of the command on the line that begins so."""
    return shlex.split(next(line for line in out.splitlines() if line.startswith(start)).removeprefix(start))


def flags(words: list[str]) -> dict[str, str]:
    return {flag.removeprefix("--"): value for flag, value in pairwise(words) if flag.startswith("--")}


@pytest.mark.parametrize(
    "given",
    [
        [],
        ["--num-blocks", "300", "--block-size", "32", "--gpu-memory-utilization", "0.8"],
        ["--max-model-len", "512", "--tensor-parallel-size", "2"],
    ],
)
def test_what_is_printed_reproduces_what_was_simulated(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--rate", "12", "--ttft-p95", "500", "--itl-p95", "50", *SMALL, *given]
    _, found = document(capsys, *asked)
    assert plan(*asked) == 0
    out = capsys.readouterr().out
    ours = parse(printed(out, "To watch: roseplay play"))
    sizes = (ours.config.tensor_parallel_size, ours.knobs.max_batch_size, ours.knobs.step_max_tokens)
    assert sizes == tuple(found["best"][name] for name in ("gpus", "max_batch_size", "step_max_tokens"))
    runner = SimulatedRunner(*deployment(ours.model, ours.config), ours.config, clock := VirtualClock())
    load = uniform_load(25, 12.0, 200, 40, runner.cost.shape.vocab)
    again = summarize(VirtualServer(runner, clock, ours.knobs).play(load), runner.cost.parameters.server_s)
    assert json.loads(json.dumps(asdict(again))) == found["best"]["figures"]
    theirs, settings = flags(printed(out, "vLLM:")), {**asdict(ours.config), **asdict(ours.knobs)}
    always = ["max_model_len", "max_batch_size", "step_max_tokens", "gpu_memory_utilization"]
    for name in {*always, *(flag[2:].replace("-", "_") for flag in given[::2])}:
        assert theirs.pop(str(SETTINGS[name].vllm_name).replace("_", "-")) == str(settings[name])
    assert not theirs
    assert "vllm serve Qwen/Qwen3-8B --" in out and "--model-path Qwen/Qwen3-8B --" in out
    sent = flags(printed(out, "Load:"))
    assert [sent[name] for name in ("num-prompts", "random-input-len", "random-output-len", "request-rate")] == [
        "25", "200", "40", "12",
    ]  # fmt: skip
    assert sent["seed"] == "12000", "each load has a seed of its own, or its prompts would be cached from another"


def test_other_formats_than_the_checkpoint_s_get_their_flags(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--rate", "12", "--itl-p95", "50", *SMALL]
    assert plan(*asked, "--weights", "fp8", "--kv", "fp8", "--num-blocks", "300") == 0
    out = capsys.readouterr().out
    assert flags(printed(out, "vLLM:")).items() >= {"quantization": "fp8", "kv-cache-dtype": "fp8"}.items()
    sglang = flags(printed(out, "SGLang:"))
    assert sglang.items() >= {"quantization": "fp8", "kv-cache-dtype": "fp8_e4m3", "max-total-tokens": "4784"}.items()
    assert "--run-as" not in out, "that is another model there"
    assert plan(*asked, "--weights", "int4") == 0
    out = capsys.readouterr().out
    assert "--quantization" not in out
    assert "a checkpoint with int4 weights in place of Qwen/Qwen3-8B" in out


def test_the_error_of_the_simulation_is_the_margin(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A limit that is met by less than that is not held, and more GPUs are tried."""
    cost = CostModel(find_shape("qwen3-8b"), find_gpu("h100"))
    sure = Calibration.of(cost, [point for point in published() if point.gpu == "h100" and point.measured == "itl"][:6])
    unsure = replace(sure, predicted_s=tuple(1.45 * point.seconds for point in sure.points))
    load = ["--rate", "5", "--max-gpus", "1", *SMALL]
    found = {}
    for name, calibration in (("sure", sure), ("unsure", unsure)):
        calibration.write(tmp_path / f"{name}.json")
        gpu = ["--gpu", str(tmp_path / f"{name}.json")]
        itl_s = document(capsys, *load, *gpu, "--itl-p95", "1000")[1]["best"]["figures"]["itl_s"][1]
        found[name] = document(capsys, *load, *gpu, "--itl-p95", f"{itl_s / 0.925 * 1e3:.4f}")
    assert found["sure"][0] == 0
    assert found["sure"][1]["best"]["longer"]["itl_s"][1] > found["sure"][1]["best"]["figures"]["itl_s"][1]
    code, plan_of_unsure = found["unsure"]
    assert (code, plan_of_unsure["best"]["holds"], round(plan_of_unsure["best"]["margin"], 2)) == (1, False, 0.45)
    assert "with the error of the simulation, 45.0\u202f%, as margin" in plan_of_unsure["said"]


def test_hardware_without_points_is_warned_about_whatever_the_outcome(capsys: pytest.CaptureFixture[str]) -> None:
    for limit, code in (("1000", 0), ("1", 1)):
        asked = ["--gpu", "l4", "--weights", "fp8", "--rate", "1", "--itl-p95", limit, "--max-gpus", "1", *SMALL]
        assert plan(*asked) == code
        out, err = capsys.readouterr()
        assert "Warning: no measured points of L4 with fp8 weights are known" in (err if code else out)
        assert ("TTFT under load: not compared with measurements" in out) is (code == 0)
        assert "of published figures" not in out
        assert "no measured points" in document(capsys, *asked)[1]["warnings"][0]


def test_a_kind_of_model_that_was_not_compared_is_warned_about(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 96}
    mixture = {"model_type": "mixtral", "vocab_size": 320, "num_local_experts": 8, "num_experts_per_tok": 2}
    (tmp_path / "config.json").write_text(json.dumps(sizes | mixture))
    assert plan("--model", str(tmp_path), "--rate", "1", "--itl-p95", "1000", *SMALL) == 0
    assert "Warning: mixtures of experts were not compared with measurements" in capsys.readouterr().out


def test_clients_send_when_they_are_answered(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--concurrency", "3", "--itl-p95", "50", *SMALL]
    _, found = document(capsys, *asked)
    assert (found["concurrency"], found["rate_per_s"]) == (3, None)
    assert {one["figures"]["busiest"] for one in found["tried"]} == {3}
    assert plan(*asked) == 0
    out = capsys.readouterr().out
    assert "holds 3 clients of qwen3-8b" in out
    assert flags(printed(out, "Load:"))["max-concurrency"] == "3"


def test_the_fewest_gpus_that_hold_the_limits(capsys: pytest.CaptureFixture[str]) -> None:
    limits = ["--rate", "5", "--itl-p95", "5.8", "--max-gpus", "8", *SMALL]
    code, found = document(capsys, *limits)
    assert (code, found["simulated"]) == (0, True)
    assert found["best"]["gpus"] == 2
    assert {one["gpus"] for one in found["tried"]} == {1, 2}
    assert not any(one["holds"] for one in found["tried"] if one["gpus"] == 1)
    only, fixed = document(capsys, *limits, "--tensor-parallel-size", "1")
    assert (only, fixed["best"]["gpus"]) == (1, 1)
    half, smaller = document(capsys, "--rate", "5", "--itl-p95", "5.8", "--weights", "fp8", *SMALL)
    assert (half, smaller["best"]["gpus"]) == (0, 1)


def test_numbers_of_gpus_that_are_left_out_are_named_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = {"num_hidden_layers": 50, "hidden_size": 7168, "num_attention_heads": 28, "intermediate_size": 30000}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 32000, **sizes}))
    asked = ["--model", str(tmp_path), "--rate", "5", "--itl-p95", "0.1", "--max-gpus", "16", *SMALL]
    code, found = document(capsys, *asked)
    assert (code, {one["gpus"] for one in found["tried"]}) == (1, {2, 4})
    left_out = [line for line in found["warnings"] if line.startswith("Left out: ")]
    for line, reason in zip(left_out, ("does not fit on H100 SXM: ", "among 8 GPUs", "among 16 GPUs"), strict=True):
        assert reason in line
    assert plan(*asked) == 1
    assert all(line in capsys.readouterr().err for line in left_out[:1])


def test_answers_of_one_token_run_and_take_blocks_too(capsys: pytest.CaptureFixture[str]) -> None:
    """So that a smaller batch, which makes some of them wait, is tried as well."""
    load = ["--requests", "300", "--prompt-tokens", "64", "--answer-tokens", "1"]
    _, found = document(capsys, "--rate", "100000", "--ttft-p95", "10000", *load)
    by_setting = {(one["max_batch_size"], one["step_max_tokens"]): one["figures"] for one in found["tried"]}
    assert by_setting[256, 8192]["busiest"] >= 8192 // 64
    assert by_setting[64, 8192]["busiest"] == 64
    assert by_setting[64, 8192]["ttft_s"][1] > by_setting[256, 8192]["ttft_s"][1]
    assert (64, 512) not in by_setting, "8 prompts fill its steps: a batch of 64 does not bind"
    assert all(figures["kv_use"] > 0 for figures in by_setting.values())


def test_a_setting_that_refuses_requests_holds_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"arrival_s": n, "prompt_tokens": 400 if n == 3 else 40, "answer_tokens": 8} for n in range(8)]
    (tmp_path / "trace.jsonl").write_text("\n".join(map(json.dumps, rows)))
    load = ["--trace", str(tmp_path / "trace.jsonl"), "--ttft-p95", "10000", "--num-blocks", "20", "--max-gpus", "1"]
    code, found = document(capsys, *load)
    assert (code, found["best"]["holds"], found["best"]["figures"]["refused"]) == (1, False, 1)


def test_requests_without_times_arrive_at_the_rate(tmp_path: Path) -> None:
    (tmp_path / "trace.jsonl").write_text('{"arrival_s": 0, "prompt_tokens": 40, "answer_tokens": 8}\n' * 200)
    times = [one.at_s for one in read_load(tmp_path / "trace.jsonl", 5.0, 1000)]
    assert times == sorted(times) and len(set(times)) == 200
    assert times[-1] == pytest.approx(200 / 5, rel=0.3)


def test_limits_that_nothing_holds_are_one_line_with_the_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    assert plan("--rate", "12", "--ttft-p95", "5", "--itl-p95", "1", "--max-gpus", "2", *SMALL) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert "holds TTFT p95 5 ms and ITL p95 1 ms for 12 requests/s of qwen3-8b with the error of the simulation" in err
    assert "the nearest is 2 x H100 SXM" in err


def test_a_saturated_run_promises_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    load = ["--requests", "50", "--prompt-tokens", "4000", "--answer-tokens", "20", "--max-gpus", "1"]
    assert plan("--rate", "100", "--ttft-p95", "100000", "--itl-p95", "10000", *load) == 1
    assert "saturated, the queue keeps growing" in capsys.readouterr().err


def test_a_larger_share_of_memory_or_a_given_number_of_blocks(capsys: pytest.CaptureFixture[str]) -> None:
    load = ["--rate", "12", "--ttft-p95", "5000", *SMALL]
    _, given = document(capsys, *load, "--num-blocks", "100")
    assert given["best"]["num_blocks"] == 100
    sizes = [
        document(capsys, *load, "--gpu-memory-utilization", share)[1]["best"]["num_blocks"] for share in ("0.6", "0.9")
    ]
    assert sizes[0] < sizes[1]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--gpu", "h1000", "--rate", "1", "--itl-p95", "5"], "no GPU is called 'h1000': did you mean h100?"),
        (["--model", "llama-3.1-70b", "--rate", "1", "--itl-p95", "5", "--max-gpus", "1"], "131.4 GiB"),
        (["--rate", "1"], "give --ttft-p95, --itl-p95 or both"),
        (["--rate", "1", "--itl-p95", "0"], "in ms above 0"),
        (["--rate", "0", "--itl-p95", "5"], "argument --rate: it is 0: use 0.0001 to 1,000,000,000"),
        (["--itl-p95", "5"], "give --rate, --concurrency, or --trace"),
        (["--rate", "1", "--concurrency", "2", "--itl-p95", "5"], "use --concurrency or --rate"),
        (["--concurrency", "0", "--itl-p95", "5"], "argument --concurrency: it is 0: use 1 to 5,000"),
        (["--itl-p95", "5", "--trace", "/no/such/file"], "/no/such/file: No such file"),
        (["--rate", "1", "--itl-p95", "5", "--prompt-tokens", "50000"], "longest request has 50,256 tokens"),
        (["--rate", "1", "--itl-p95", "5", "--tensor-parallel-size", "3"], "cannot be divided among 3 GPUs"),
        (["--rate", "1", "--itl-p95", "5", "--tensor-parallel-size", "0"], "argument --tensor-parallel-size: it is 0"),
        (["--rate", "1", "--itl-p95", "5", "--max-gpus", "0"], "argument --max-gpus: it is 0: use 1 to 16"),
        (["--rate", "1", "--itl-p95", "5", "--kv-cache-memory", "1000"], "kv_cache_memory is 1,000, but one request"),
        (
            ["--rate", "1", "--itl-p95", "5", "--model", "smollm-135m", "--max-gpus", "16", *LITTLE],
            "kv_cache_memory is",
        ),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plan(*arguments) == 2
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert said in err


def test_a_trace_keeps_its_pattern_and_shares_beginnings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "trace.jsonl"
    shared = "You are a helpful assistant. " * 40
    lines = [{"arrival_s": 2 * i, "prompt": f"{shared}{i} {i} {i}", "answer_tokens": 20} for i in range(10)]
    file.write_text("\n".join(map(json.dumps, lines)))
    load = read_load(file, 5.0, 1000)
    assert [one.at_s for one in load] == pytest.approx([0.2 * i for i in range(10)])
    assert load[0].token_ids[:200] == load[9].token_ids[:200]
    assert load[0].token_ids != load[9].token_ids
    assert all(0 <= token < 1000 for token in load[0].token_ids)
    code, found = document(capsys, "--trace", str(file), "--ttft-p95", "1000")
    assert code == 0
    assert found["rate_per_s"] == pytest.approx(0.5)
    assert found["best"]["figures"]["cached"] > 0.8


def test_it_starts_without_torch() -> None:
    script = (
        "import sys\nfrom roseplay.cli import main\n"
        "assert main('plan --gpu h100 --model qwen3-8b --rate 5 --itl-p95 50 --requests 5'.split()) == 0\n"
        "assert not {'torch', 'transformers', 'gradio'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60, capture_output=True)


@pytest.mark.parametrize("seed", range(40))
def test_the_best_of_settings_drawn_at_random_holds_the_limits_on_the_fewest_gpus(seed: int) -> None:
    draw, limits = random.Random(seed), Limits(ttft_ms=100.0, itl_ms=None)

    def drawn() -> Any:
        ttft_s, saturated, refused = draw.choice([0.01, 0.05, 0.1, 0.2]), draw.random() < 0.3, draw.choice([0, 0, 2])
        return SimpleNamespace(
            ttft_s=(0, ttft_s, 1), itl_s=(0, 0.005, 1), saturated=saturated, refused=refused, output_tokens_per_s=1234.5,
            busiest=77, kv_use=0.375,
        )  # fmt: skip

    def holds(figures: Any) -> bool:
        return figures is not None and figures.ttft_s[1] <= 0.1 and not figures.saturated and not figures.refused

    settings = []
    for gpus in (1, 1, 2, 2, 4, 4):
        figures = drawn()
        longer = drawn() if holds(figures) else None
        settings.append(Tried(gpus, 64, 512, 10, figures, longer, 0.125, None, 1, 1.0))
    holding = [one for one in settings if holds(one.longer)]
    fewest = [one for one in holding if one.gpus == min(other.gpus for other in holding)]
    least = min((one.longer or one.figures).ttft_s[1] for one in fewest or settings)
    chosen = best(settings, limits)
    assert chosen in (fewest or settings) and (chosen.longer or chosen.figures).ttft_s[1] == least
    head, *rows = table(settings, limits)
    for one, row in zip(settings, rows, strict=True):
        cells = re.split(r"\s{2,}", row.strip())
        ttft = (
            f"{1000 * one.figures.ttft_s[1]:.0f} ms"
            if one.figures.ttft_s[1] >= 0.1
            else f"{1000 * one.figures.ttft_s[1]:.1f} ms"
        )
        assert cells[:8] == [str(one.gpus), "64", "512", ttft, "5.0 ms", "1,234", "77", "38\u202f%"]
        assert (cells[8] == "holds") == holds(one.longer)
        assert row.index(cells[8]) >= len(head), "the last column stands beside the others"
