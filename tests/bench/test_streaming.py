from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

import roseplay.engine.client
from roseplay.cli import main
from roseplay.config import EngineConfig, Knobs
from roseplay.core.request import FinishReason
from roseplay.model import shapes
from roseplay.traffic.environment import environment
from tests.fake_engine import FakeEngine, FakeStream

LATENCIES = ("submit", "queue", "ttft", "ttft_from_arrival", "tpot", "itl", "e2e")


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> list[FakeEngine]:
    """The fake engines that the benchmark creates in place of real ones."""
    made: list[FakeEngine] = []

    def make(*args, **kwargs) -> FakeEngine:
        made.append(FakeEngine(*args, **kwargs))
        return made[-1]

    monkeypatch.setattr(roseplay.engine.client, "Engine", make)
    return made


def bench(*argv: str) -> int:
    return main(["bench", "streaming", *argv])


def use(monkeypatch: pytest.MonkeyPatch, answer) -> None:
    monkeypatch.setattr(
        roseplay.engine.client, "Engine", lambda *args, **kwargs: FakeEngine(*args, answer=answer, **kwargs)
    )


def test_it_prints_a_line_for_each_figure(engines: list[FakeEngine], capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("--num-requests", "4", "--max-new-tokens", "3") == 0
    out = capsys.readouterr().out
    for line in (
        "model           tiny-chat (FakeForCausalLM, 1.0M parameters)",
        "device          cpu, float32, 2 threads, attention none",
        "requests        4",
        "prompt tokens   4",
        "output tokens   12",
        "TTFT            p50/p95/p99 1.00/1.00/1.00 ms",
        "TPOT            p50/p95/p99 1.00/1.00/1.00 ms/token",
        "ITL             p50/p95/p99 1.00/1.00/1.00 ms",
    ):
        assert line in out
    assert "submit wall " in out
    assert "submit latency" in out
    assert "tokens/s" in out


def test_answers_that_end_early_are_counted_with_the_reason_and_the_flag(monkeypatch, capsys, tmp_path: Path) -> None:
    def answer(stream: FakeStream) -> None:
        if stream.request_id % 2:
            stream.finish([0.001, 0.002], FinishReason.STOP)
        else:
            stream.finish([0.001, 0.002, 0.003, 0.004], FinishReason.LENGTH)

    use(monkeypatch, answer)
    file = tmp_path / "figures.json"
    assert bench("--num-requests", "4", "--max-new-tokens", "4", "--json", str(file)) == 0
    told = capsys.readouterr().out
    assert "output tokens   12\n" in told
    assert "2 of 4 answers ended before 4 tokens, at an end-of-sequence token; --no-stop-on-eos keeps going" in told
    assert json.loads(file.read_text())["ended_early"] == 2


def test_nothing_is_said_of_answers_that_have_all_their_tokens(monkeypatch, capsys) -> None:
    use(monkeypatch, lambda stream: stream.finish([0.001, 0.002], FinishReason.STOP))  # the last one is the end
    assert bench("--num-requests", "4", "--max-new-tokens", "2") == 0
    assert "end-of-sequence" not in capsys.readouterr().out


def test_the_json_has_the_promised_keys(engines: list[FakeEngine], tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    assert bench("--num-requests", "4", "--max-new-tokens", "3", "--no-prefix-cache", "--json", str(file)) == 0
    figures = json.loads(file.read_text())
    assert {"submit_wall_s", "output_tokens_per_s", "knobs", "environment"} <= set(figures)
    assert (figures["prompt_tokens"], figures["completion_tokens"], figures["requests"]) == (4, 12, 4)
    for name in LATENCIES:
        assert set(figures[f"{name}_ms"]) == {"p50", "p95", "p99"}
        assert all(isinstance(value, float) for value in figures[f"{name}_ms"].values())
    assert figures["knobs"] == Knobs(prefix_cache=False).to_dict()
    assert figures["environment"]["threads"] == 2
    assert figures["model"]["architecture"] == "FakeForCausalLM"
    assert len(figures["runs"]) == 1


def test_undefined_figures_are_null(engines: list[FakeEngine], tmp_path: Path, capsys) -> None:
    file = tmp_path / "figures.json"
    assert bench("--max-new-tokens", "1", "--json", str(file)) == 0
    figures = json.loads(file.read_text())
    assert figures["tpot_ms"] == figures["itl_ms"] == {"p50": None, "p95": None, "p99": None}
    assert "TPOT            p50/p95/p99 -/-/- ms/token" in capsys.readouterr().out


def test_flags_reach_the_engine(engines: list[FakeEngine]) -> None:
    assert bench("--model", "gpt2-124m", "--random-weights", "--threads", "1", "--max-batch-size", "8") == 0
    (engine,) = engines
    assert engine.model == "gpt2-124m"
    assert engine.config == EngineConfig(random_weights=True, threads=1)
    assert engine.knobs == Knobs(max_batch_size=8)


def test_a_model_without_a_tokenizer_gets_token_ids_of_exact_lengths(engines: list[FakeEngine]) -> None:
    assert bench("--prompt-repeats", "1,1,1,64", "--unique-prompts", "--num-requests", "4", "--warmup-runs", "0") == 0
    assert [len(prompt) for prompt in engines[0].prompts] == [4, 4, 4, 67]


def test_warm_up_runs_are_played_and_not_counted(engines: list[FakeEngine], tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    assert bench("--num-requests", "2", "--warmup-runs", "2", "--repeat-runs", "3", "--json", str(file)) == 0
    assert len(engines[0].streams) == 2 * (2 + 3)
    figures = json.loads(file.read_text())
    assert len(figures["runs"]) == 3
    rates = sorted(run["output_tokens_per_s"] for run in figures["runs"])
    assert figures["output_tokens_per_s"] == rates[1]


def test_each_run_starts_with_an_empty_cache_unless_told_to_keep_it(engines: list[FakeEngine]) -> None:
    run = ["clear_cache", "submit", "submit"]
    assert bench("--num-requests", "2", "--repeat-runs", "2") == 0
    assert engines[0].calls == [*run * 3, "close"]
    assert bench("--num-requests", "2", "--repeat-runs", "2", "--keep-cache") == 0
    assert "clear_cache" not in engines[1].calls


def test_slow_motion_is_refused(engines: list[FakeEngine], capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("--slow-motion", "4") == 2
    assert "slow motion" in capsys.readouterr().err
    assert not engines[0].streams


@pytest.mark.parametrize(
    "argv",
    [
        "--max-batch-size 0",
        "--threads 0",
        "--max-new-tokens 0",
        "--submit-interval-ms -1",
        "--device tpu",
        "--time-limit-s 0",
    ],
)
def test_a_bad_value_is_one_line_and_exit_code_2(
    argv: str, engines: list[FakeEngine], capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(*argv.split()) == 2
    captured = capsys.readouterr()
    assert len(captured.err.strip().splitlines()) == 1
    assert captured.err.startswith("roseplay bench streaming: ")
    assert captured.out == ""


def test_a_model_that_cannot_start_is_one_line_and_exit_code_2(monkeypatch, capsys) -> None:
    from roseplay.engine.errors import EngineStartError

    def fail(*args, **kwargs):
        raise EngineStartError("model 'nowhere' not found")

    monkeypatch.setattr(roseplay.engine.client, "Engine", fail)
    assert bench("--model", "nowhere") == 2
    assert capsys.readouterr().err == "roseplay bench streaming: model 'nowhere' not found\n"


def test_a_refused_request_is_one_line_and_exit_code_2(monkeypatch, capsys) -> None:
    def refuse(stream: FakeStream) -> None:
        raise ValueError("the prompt has 5000 tokens and the pool 1024")

    use(monkeypatch, refuse)
    assert bench() == 2
    assert "16 of 16 requests were refused: the prompt has 5000" in capsys.readouterr().err


@pytest.mark.parametrize("error", [TimeoutError(), httpx.ConnectError("it took too long")])
def test_a_benchmark_whose_server_fails_is_one_line_and_exit_code_1(error: Exception, monkeypatch, capsys) -> None:
    def fail(stream: FakeStream) -> None:
        raise error

    use(monkeypatch, fail)
    assert bench() == 1
    assert capsys.readouterr().err == "roseplay bench streaming: it took too long\n"


def test_failed_requests_give_no_figures_and_exit_code_1(monkeypatch, capsys, tmp_path: Path) -> None:
    use(monkeypatch, lambda stream: stream.finish([], FinishReason.ERROR, "the step failed"))
    file = tmp_path / "figures.json"
    assert bench("--json", str(file)) == 1
    captured = capsys.readouterr()
    assert "16 requests failed" in captured.err
    assert "the step failed" in captured.err
    assert captured.out == ""
    assert not file.exists()


def test_a_run_over_the_time_limit_gives_no_figures(monkeypatch, capsys) -> None:
    use(monkeypatch, lambda stream: None)
    assert bench("--time-limit-s", "0.05") == 1
    assert "given up" in capsys.readouterr().err


def test_the_shape_of_gpt2_is_at_hand() -> None:
    config = json.loads((Path(shapes.resolve("gpt2-124m")) / "config.json").read_text())
    wide, vocabulary, positions = config["n_embd"], config["vocab_size"], config["n_positions"]
    block = 12 * wide * wide + 13 * wide
    assert (vocabulary + positions) * wide + config["n_layer"] * block + 2 * wide == 124_439_808
    assert shapes.resolve("some/path") == "some/path"


def test_the_environment_names_versions_and_nobody() -> None:
    import getpass
    import socket

    told = environment(threads=2, device="cpu")
    assert {"roseplay", "python", "torch", "transformers", "cpu", "cores", "threads", "device"} <= set(told)
    assert told["torch"] and told["transformers"]
    assert socket.gethostname() not in map(str, told.values())
    assert getpass.getuser() not in map(str, told.values())
