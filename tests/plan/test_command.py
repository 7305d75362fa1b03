from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from roseplay.plan.command import main
from roseplay.plan.load import read_load
from roseplay.plan.slo import SLO

SMALL = ["--requests", "25", "--prompt-tokens", "200", "--answer-tokens", "40"]


def plan(*arguments: str) -> int:
    return main(["--gpu", "h100", "--model", "qwen3-8b", *arguments])


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = plan(*arguments, "--json")
    return code, json.loads(capsys.readouterr().out)


def test_a_table_a_sentence_and_the_flags(capsys: pytest.CaptureFixture[str]) -> None:
    assert plan("--rate", "12", "--slo", "ttft=500ms,itl=50ms", *SMALL) == 0
    out = capsys.readouterr().out
    assert out.startswith("GPUs  max-num-seqs  max-num-batched-tokens  TTFT p95  ITL p95")
    assert "Simulated: 1 x H100 SXM holds 12 requests/s of qwen3-8b within TTFT p95 500 ms and ITL p95 50 ms" in out
    assert "vllm serve qwen3-8b --tensor-parallel-size 1 --max-num-seqs" in out
    assert "--tp-size 1 --max-running-requests" in out
    assert "--max-model-len 1024" in out
    assert "calibrated on 46 published points of qwen3-32b, qwen3-8b (error: median" in out
    assert "TTFT under load: within about 40\u202f% of published figures" in out
    assert "Published: vLLM 0.30.0" in out
    assert "times real time" in out


def test_the_fewest_gpus_that_hold_the_limits(capsys: pytest.CaptureFixture[str]) -> None:
    limits = ["--rate", "5", "--slo", "itl=5ms", "--max-gpus", "8", *SMALL]
    code, found = document(capsys, *limits)
    assert (code, found["simulated"]) == (0, True)
    assert found["best"]["gpus"] == 2
    assert {one["gpus"] for one in found["tried"]} == {1, 2}
    assert not any(one["holds"] for one in found["tried"] if one["gpus"] == 1)
    only, fixed = document(capsys, *limits, "--tensor-parallel-size", "1")
    assert (only, fixed["best"]["gpus"]) == (1, 1)
    half, smaller = document(capsys, "--rate", "5", "--slo", "itl=5.5ms", "--weights", "fp8", *SMALL)
    assert (half, smaller["best"]["gpus"]) == (0, 1)


def test_answers_of_one_token_run_and_take_blocks_too(capsys: pytest.CaptureFixture[str]) -> None:
    """So that a smaller batch, which makes some of them wait, is tried as well."""
    load = ["--requests", "300", "--prompt-tokens", "64", "--answer-tokens", "1"]
    _, found = document(capsys, "--rate", "100000", "--slo", "ttft=10s", *load)
    by_setting = {(one["max_batch_size"], one["step_max_tokens"]): one["figures"] for one in found["tried"]}
    assert by_setting[256, 8192]["busiest"] >= 8192 // 64
    assert by_setting[64, 8192]["busiest"] == 64
    assert by_setting[64, 8192]["ttft_s"][1] > by_setting[256, 8192]["ttft_s"][1]
    assert (64, 512) not in by_setting, "8 prompts fill its steps: a batch of 64 does not bind"
    assert all(figures["kv_use"] > 0 for figures in by_setting.values())


def test_a_setting_that_refuses_requests_holds_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"arrival_s": n, "prompt_tokens": 400 if n == 3 else 40, "answer_tokens": 8} for n in range(8)]
    (tmp_path / "trace.jsonl").write_text("\n".join(map(json.dumps, rows)))
    load = ["--trace", str(tmp_path / "trace.jsonl"), "--slo", "ttft=10s", "--num-blocks", "20", "--max-gpus", "1"]
    code, found = document(capsys, *load)
    assert (code, found["best"]["holds"], found["best"]["figures"]["refused"]) == (1, False, 1)


def test_requests_without_times_arrive_at_the_rate(tmp_path: Path) -> None:
    (tmp_path / "trace.jsonl").write_text('{"arrival_s": 0, "prompt_tokens": 40, "answer_tokens": 8}\n' * 200)
    times = [one.at_s for one in read_load(tmp_path / "trace.jsonl", 5.0, 1000)]
    assert times == sorted(times) and len(set(times)) == 200
    assert times[-1] == pytest.approx(200 / 5, rel=0.3)


def test_limits_that_nothing_holds_are_one_line_with_the_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    assert plan("--rate", "12", "--slo", "ttft=5ms,itl=1ms", "--max-gpus", "2", *SMALL) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert "holds TTFT p95 5 ms and ITL p95 1 ms at 12 requests/s of qwen3-8b; the nearest is 2 x H100 SXM" in err


def test_a_saturated_run_promises_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    load = ["--requests", "50", "--prompt-tokens", "4000", "--answer-tokens", "20", "--max-gpus", "1"]
    assert plan("--rate", "100", "--slo", "ttft=100s,itl=10s", *load) == 1
    assert "saturated, the queue keeps growing" in capsys.readouterr().err


def test_a_larger_share_of_memory_or_a_given_number_of_blocks(capsys: pytest.CaptureFixture[str]) -> None:
    load = ["--rate", "12", "--slo", "ttft=5s", *SMALL]
    _, given = document(capsys, *load, "--num-blocks", "100")
    assert given["best"]["num_blocks"] == 100
    sizes = [
        document(capsys, *load, "--gpu-memory-utilization", share)[1]["best"]["num_blocks"] for share in ("0.6", "0.9")
    ]
    assert sizes[0] < sizes[1]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--gpu", "h1000", "--rate", "1", "--slo", "itl=5ms"], "no GPU is called 'h1000': did you mean h100?"),
        (["--model", "llama-3.1-70b", "--rate", "1", "--slo", "itl=5ms", "--max-gpus", "1"], "131.4 GiB"),
        (["--rate", "1", "--slo", "itl=fast"], "write ttft=500ms,itl=50ms"),
        (["--rate", "1", "--slo", "itl=0ms"], "is 0: nothing can hold it"),
        (["--rate", "0", "--slo", "itl=5ms"], "the rate is 0"),
        (["--slo", "itl=5ms"], "give --rate, or --trace"),
        (["--slo", "itl=5ms", "--trace", "/no/such/file"], "/no/such/file: No such file"),
        (["--rate", "1", "--slo", "itl=5ms", "--prompt-tokens", "50000"], "longest request has 50,256 tokens"),
        (["--rate", "1", "--slo", "itl=5ms", "--tensor-parallel-size", "3"], "cannot be divided among 3 GPUs"),
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
    code, found = document(capsys, "--trace", str(file), "--slo", "ttft=1s")
    assert code == 0
    assert found["rate_per_s"] == pytest.approx(0.5)
    assert found["best"]["figures"]["cached"] > 0.8


def test_limits_are_read_in_seconds() -> None:
    assert SLO.parse("TTFT=0.5s, itl=50ms") == SLO(0.5, 0.05)
    assert SLO.parse("itl=50ms") == SLO(None, 0.05)
    assert str(SLO.parse("ttft=1s")) == "TTFT p95 1000 ms"


def test_it_starts_without_torch() -> None:
    script = (
        "import sys\nfrom roseplay.cli import main\n"
        "assert main('plan --gpu h100 --model qwen3-8b --rate 5 --slo itl=50ms --requests 5'.split()) == 0\n"
        "assert not {'torch', 'transformers', 'gradio'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60, capture_output=True)
