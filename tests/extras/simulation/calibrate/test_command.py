"""``roseplay calibrate``: from result files and servers to a file that simulations take."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from roseplay import Engine
from roseplay.clock import VirtualClock
from roseplay.config import SamplingParams
from roseplay.engine.errors import EngineStartError
from roseplay.extras.lab.command import main as lab
from roseplay.extras.simulation.calibrate.command import main
from roseplay.extras.simulation.calibrate.result_files import read_results
from roseplay.extras.simulation.calibrated import Calibration
from roseplay.extras.simulation.cost import Parameters
from roseplay.extras.simulation.plan.command import main as plan
from tests.at_a_port import at_a_port
from tests.extras.servers.servers import Script, words
from tests.serve.conftest import serving

HERE = Path(__file__).parent
QWEN = ["--gpu", "h100", "--model", "qwen3-8b"]
VLLM = [str(HERE / name) for name in ("vllm.json", "vllm.jsonl")]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "mine.json"


def test_vllms_results_calibrate_a_deployment(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*VLLM, *QWEN, "--out", str(out)]) == 0
    said, left_out = capsys.readouterr()
    assert "ITL p50 of 4 points of qwen3-8b on H100 SXM, each held out in turn: error median" in said
    assert "100\u202f% within 20\u202f%" in said
    assert "share" not in said  # a fitted share is no fact about the hardware
    assert f"roseplay play --run-as {out} --model qwen3-8b" in said
    assert "vllm.jsonl, result 4 is left out: of 512 clients only 33.8 received answers at once" in left_out
    found = Calibration.read(out)
    assert [(p.streams, p.prompt, p.answer, round(p.seconds * 1e3, 2)) for p in found.points] == [
        (16, 128, 1024, 7.53),
        (1, 128, 1024, 6.86),
        (64, 128, 1024, 9.49),
        (16, 8192, 512, 13.76),
    ]
    assert found.errors.median < 0.05
    assert found.parameters != Parameters()


def test_the_file_takes_the_place_of_a_gpus_name(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*VLLM, *QWEN, "--out", str(out)]) == 0
    label = "calibrated on 4 own points of qwen3-8b on H100 SXM (error: median"
    capsys.readouterr()
    load = ["--rate", "5", "--itl-p95", "50", "--requests", "20", "--prompt-tokens", "100", "--answer-tokens", "20"]
    assert plan(["--gpu", str(out), "--model", "qwen3-8b", *load]) == 0
    assert label in capsys.readouterr().out
    with Engine("qwen3-8b", run_as=str(out), clock=VirtualClock()) as engine:
        assert engine.info.device == "simulated H100 SXM"
        assert label in str(engine.info.simulated)
        stream = engine.submit([5] * 128, SamplingParams(max_new_tokens=1024)).result(60)
    assert stream.metrics.tpot_s == pytest.approx(0.00686, rel=0.01)  # as measured with one client
    with pytest.raises(EngineStartError, match="was measured with bf16 weights, but small has fp8"):
        config = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 300}
        (out.parent / "small").mkdir()
        quantized = {**config, "quantization_config": {"quant_method": "fp8"}}
        (out.parent / "small" / "config.json").write_text(json.dumps(quantized))
        Engine(str(out.parent / "small"), run_as=str(out))


def test_sglangs_results(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The second is an open loop whose pieces have several tokens; the last uses speculative decoding."""
    assert main([str(HERE / "sglang.jsonl"), *QWEN, "--out", str(out)]) == 0
    said, left_out = capsys.readouterr()
    assert "ITL p50 and TPOT of 3 points" in said
    assert "result 4 is left out: speculative decoding is not modelled" in left_out
    one, some, many = Calibration.read(out).points
    assert (one.streams, one.measured, one.ttft_s) == (1, "itl", 0.0146)
    assert (some.streams, some.measured, some.seconds) == (32, "tpot", pytest.approx(0.0098))
    assert (many.streams, many.measured) == (64, "itl")


@pytest.mark.parametrize(
    "marks",
    [
        {"spec_decode_acceptance_length": 3.1},
        {"spec_decode_num_drafts": 500, "spec_decode_acceptance_rate": 0.0, "spec_decode_acceptance_length": 1.0},
        {"spec_decode_num_drafts": 500},
        {"accept_length": 2.4},
        {"accept_length": 1.0},
    ],
)
def test_speculative_decoding_is_left_out_whoever_measured_it(
    marks: dict[str, float], out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Even if nothing was accepted: the steps verified tokens."""
    rows = [json.loads(line) for line in (HERE / "vllm.jsonl").read_text().splitlines()[:3]]
    (out.parent / "rows.jsonl").write_text("\n".join(json.dumps(row | marks) for row in rows))
    assert main([str(out.parent / "rows.jsonl"), *QWEN, "--out", str(out)]) == 2
    said = capsys.readouterr().err.splitlines()
    assert [line.partition(", ")[2] for line in said[:3]] == [
        f"result {number} is left out: speculative decoding is not modelled" for number in (1, 2, 3)
    ]
    assert "there are 0 measurements" in said[3]
    without = [row | dict.fromkeys(marks, None) for row in rows]
    (out.parent / "rows.jsonl").write_text("\n".join(map(json.dumps, without)))
    assert main([str(out.parent / "rows.jsonl"), *QWEN, "--out", str(out)]) == 0


def test_the_number_of_streams_is_what_the_clients_held(tmp_path: Path) -> None:
    """Of a closed loop no more than there were requests, and of an open loop the mean, whatever its limit."""
    row = json.loads((HERE / "vllm.jsonl").read_text().splitlines()[1])
    changes = [{}, {"max_concurrency": 500, "completed": 100}, {"request_rate": 50.0, "max_concurrency": 500}]
    (tmp_path / "rows.json").write_text(json.dumps([row | change for change in changes]))
    points, left_out = read_results([tmp_path / "rows.json"])
    assert ([point.streams for point in points], left_out) == ([64, 100, 63], [])


def test_a_failed_row_is_left_out_and_named(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    failed = {"completed": 0, "duration": 0.1, "total_input_tokens": 0, "total_output_tokens": 0, "mean_tpot_ms": 0.0}
    rows = [json.dumps(failed), (HERE / "vllm.jsonl").read_text()]
    (out.parent / "rows.jsonl").write_text("\n".join(rows))
    assert main([str(out.parent / "rows.jsonl"), *QWEN, "--out", str(out)]) == 0
    assert "result 1 is left out: completed is 0: none of its requests was answered" in capsys.readouterr().err
    assert len(Calibration.read(out).points) == 3


def test_results_of_our_own_benchmark_calibrate_prompts_as_well(out: Path) -> None:
    assert main([str(HERE / "grid.json"), *QWEN, "--out", str(out)]) == 0
    found = Calibration.read(out)
    assert [(p.streams, p.prompt, p.answer) for p in found.points] == [(1, 128, 64), (32, 128, 64), (32, 2048, 64)]
    assert found.points[1].prompts_s == pytest.approx(32 * 128 / 38000)
    assert found.parameters.compute_share != Parameters().compute_share
    assert found.parameters.server_s == pytest.approx(Parameters().server_s)  # no server was measured


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with Engine("qwen3-8b", run_as="h100", max_model_len=4096, num_blocks=4000) as engine, serving(engine) as address:
        yield f"{address}/v1"


def test_a_server_is_measured(url: str, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--clients", "1,4", "--prompt-tokens", "60", "--long-prompt-tokens", "400", "--answer-tokens", "16"]
    assert main(["--url", url, "--gpu", "h100", *sizes, "--out", str(out)]) == 0
    assert "points of qwen3-8b on H100 SXM" in capsys.readouterr().out
    found = Calibration.read(out)
    assert [point.streams for point in found.points] == [1, 4, 1, 4]
    assert found.points[2].prompt > 3 * found.points[0].prompt
    assert all(point.seconds > 0 and point.ttft_s for point in found.points)


def test_the_model_is_what_a_server_serves_under_its_name(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Or its name, where that is a directory of the server's machine."""
    for card in ({"root": "qwen3-8b"}, {"id": "qwen3-8b", "root": "/of/another/machine"}):
        with at_a_port(Script(words("a"), card=card).app) as address:
            assert main(["--url", f"{address}/v1", "--gpu", "h100", "--clients", "1", "--out", str(out)]) == 1
        assert "the answers ended after" in capsys.readouterr().err  # it was found, and then measured


def test_a_load_is_measured_until_two_rounds_agree(out: Path) -> None:
    """Here the server is held up in its second round, the first that would count."""
    script = Script(lambda: answer(0.05 if len(script.bodies) == 2 else 0.005))

    async def answer(gap_s: float) -> AsyncIterator[bytes]:
        for event in words(*"abcdefgh"):
            await asyncio.sleep(gap_s)
            yield event

    sizes = ["--clients", "1,2,3", "--prompt-tokens", "60", "--long-prompt-tokens", "60", "--answer-tokens", "8"]
    with at_a_port(script.app) as address:
        assert main(["--url", f"{address}/v1", *QWEN, *sizes, "--out", str(out)]) == 0
    assert len(script.bodies) > 3 * (1 + 2 + 3) + 3 * (1 + 2)  # three rounds of each load are not enough


def test_a_server_that_makes_clients_wait_is_not_measured(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--clients", "8", "--prompt-tokens", "60", "--long-prompt-tokens", "99", "--answer-tokens", "8"]
    with Engine("qwen3-8b", run_as="h100", max_model_len=4096, num_blocks=4000) as engine, serving(engine) as address:
        engine.set_knobs(max_batch_size=1)
        assert main(["--url", f"{address}/v1", "--gpu", "h100", *sizes, "--out", str(out)]) == 1
    (said,) = capsys.readouterr().err.splitlines()
    assert "8 requests of 60 + 8 tokens: only " in said
    assert said.endswith("streamed at once, the others waited: ask for fewer clients")


def test_a_server_that_sends_several_tokens_at_once_is_not_measured(
    out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As with speculative decoding. This one counts its tokens at the end."""
    usage = {"prompt_tokens": 250, "completion_tokens": 60, "total_tokens": 310}
    with at_a_port(Script(words(*"ab" * 10, usage=usage)).app) as address:
        assert main(["--url", f"{address}/v1", *QWEN, "--out", str(out)]) == 1
    assert "tokens arrived at once on average, as with speculative decoding" in capsys.readouterr().err
    assert not out.exists()


def test_a_server_that_goes_away_is_one_line(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--gpu", "h100", "--model", "qwen3-8b", "--clients", "1", "--out", str(out)]

    async def broken() -> AsyncIterator[bytes]:
        yield words("a")[0]
        raise ConnectionError

    with at_a_port(Script(broken).app) as address:
        assert main(["--url", f"{address}/v1", *arguments]) == 1
    failed = capsys.readouterr().err
    assert main(["--url", f"{address}/v1", *arguments]) == 2
    gone = capsys.readouterr().err
    assert len(failed.splitlines()) == len(gone.splitlines()) == 1
    assert "1 of 1 requests of 256 + 64 tokens failed" in failed
    assert not out.exists()


SAME_LOAD = {"cells": [{"batch": 8, "context": 9, "step_ms": {"p50": ms}} for ms in (1, 2, 3, 4)]}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "No such file or directory"),
        ("", "has no results"),
        ("[1, 2]", "has no results"),
        ("{}\nnonsense", "line 2 is not JSON"),
        ('{"throughput": 5}', "has no results: give the JSON of vllm bench serve"),
        ('{"completed": 3, "duration": 1}', "result 1 cannot be used: total_input_tokens is missing"),
        ('{"cells": [{"batch": 0, "context": 9, "step_ms": {"p50": 1}}]}', "cells 1, batch should be greater"),
        ('{"cells": [{"batch": 1, "context": 9, "step_ms": {"p50": 1}}]}', "but there is 1 measurement"),
        (json.dumps(SAME_LOAD), "such as 1, 16 and 64 streams, but there are 4 measurements at 1 load"),
    ],
)
def test_bad_results_are_one_line(
    content: str | None, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "results.json"
    if content is not None:
        file.write_text(content)
    check_mistake([str(file), *QWEN, "--out", str(tmp_path / "out.json")], said, capsys)
    assert not (tmp_path / "out.json").exists()


def check_mistake(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code: object = main(arguments)
    except SystemExit as left:
        code = left.code
    out, err = capsys.readouterr()
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert said in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (QWEN, "give result files"),
        ([*VLLM, "--gpu", "h100"], "give --model"),
        ([*VLLM, *QWEN, "--out", "/no/such/place.json"], "in a directory that exists"),
        ([*VLLM, *QWEN, "--out", "mine.txt"], "ends with .json"),
        ([*VLLM, *QWEN, "--gpu", "h1000"], "no GPU is called 'h1000'"),
        ([*VLLM, *QWEN, "--tensor-parallel-size", "3"], "cannot be divided among 3 GPUs"),
        (["--url", "nonsense", *QWEN], "nonsense"),
        (
            ["--url", "http://localhost:1/v1", *QWEN, "--answer-tokens", "7"],
            "argument --answer-tokens: it is 7: use 8 to",
        ),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    check_mistake(arguments, said, capsys)


def test_a_file_that_is_no_calibration_is_refused(out: Path) -> None:
    assert main([*VLLM, *QWEN, "--out", str(out)]) == 0
    whole = json.loads(out.read_text())
    for content, said in (
        (None, "No such file"),
        ("nonsense", "it is not JSON"),
        ("{}", "is not a calibration file: make one with roseplay calibrate"),
        (json.dumps({"roseplay_calibration": 1, "gpu": "h100"}), "is damaged: model is missing"),
        (json.dumps({**whole, "predicted_s": [1, 2]}), "is damaged: predicted_s has 2 values, but there are 4 points"),
        ("[" * 10**5, "it is not JSON"),
        (json.dumps({**whole, "gpu": "h1000"}), "no GPU is called 'h1000'"),
    ):
        out.unlink(missing_ok=True)
        if content is not None:
            out.write_text(content)
        with pytest.raises(EngineStartError, match=said):
            Engine("qwen3-8b", run_as=str(out))
    for name in ("~nosuchuser/mine.json", "a\0.json"):
        with pytest.raises(EngineStartError, match="No such file|null"):
            Engine("qwen3-8b", run_as=name)


def test_a_search_on_a_calibration_that_says_little_has_no_regret(
    out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With an error of 100% or more, durations shorter by it would be negative."""
    cells = [(1, 64, 2.0), (8, 64, 2.0), (32, 64, 40.0), (4, 512, 3.0)]
    rows = [{"batch": batch, "context": context, "step_ms": {"p50": ms}} for batch, context, ms in cells]
    (out.parent / "grid.json").write_text(json.dumps({"cells": rows}))
    assert main([str(out.parent / "grid.json"), *QWEN, "--out", str(out)]) == 0
    assert Calibration.read(out).errors.p90 > 1
    limits = ["--find", "prefill-budget", "--itl-p99", "200", "--ttft-p95", "2000", "--from", "256", "--to", "512"]
    assert lab(["token-budget", "--run-as", str(out), "--model", "qwen3-8b", *limits]) == 0
    said = capsys.readouterr().out
    assert ": not known, as the error of the simulation is not bounded." in said
    assert "shorter" not in said
