from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

import roseplay.engine.client
from roseplay.cli import main
from roseplay.config import EngineConfig, Knobs
from roseplay.core.request import FinishReason
from roseplay.engine.errors import EngineStartError
from roseplay.traffic.environment import environment
from tests.fake_engine import FakeEngine, FakeStream

LATENCIES = ("submit", "queue", "ttft", "ttft_from_arrival", "tpot", "itl", "e2e")


class Engines(list[FakeEngine]):
    """The fake engines that the benchmark creates in place of real ones, which answer by ``answer``."""

    answer: Callable[[FakeStream], None] | None = None

    def make(self, model: str, **settings: Any) -> FakeEngine:
        if model == "nowhere":
            raise EngineStartError("model 'nowhere' not found")
        self.append(FakeEngine(model, answer=self.answer, **settings))
        return self[-1]


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> Engines:
    made = Engines()
    monkeypatch.setattr(roseplay.engine.client, "Engine", made.make)
    return made


def bench(*argv: str) -> int:
    return main(["bench", "streaming", *argv])


def failing(error: Exception) -> Callable[..., Any]:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise error

    return fail


def test_it_prints_a_line_for_each_figure(engines: Engines, capsys: pytest.CaptureFixture[str]) -> None:
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


def test_answers_that_end_early_are_counted_with_the_reason_and_the_flag(
    engines: Engines, capsys, tmp_path: Path
) -> None:
    def answer(stream: FakeStream) -> None:
        if stream.request_id % 2:
            stream.finish([0.001, 0.002], FinishReason.STOP)
        else:
            stream.finish([0.001, 0.002, 0.003, 0.004], FinishReason.LENGTH)

    engines.answer = answer
    file = tmp_path / "figures.json"
    assert bench("--num-requests", "4", "--max-new-tokens", "4", "--json", str(file)) == 0
    told = capsys.readouterr().out
    assert "output tokens   12\n" in told
    assert "2 of 4 answers ended before 4 tokens, at an end-of-sequence token; --no-stop-on-eos keeps going" in told
    assert json.loads(file.read_text())["ended_early"] == 2


def test_nothing_is_said_of_answers_that_have_all_their_tokens(engines: Engines, capsys) -> None:
    engines.answer = lambda stream: stream.finish([0.001, 0.002], FinishReason.STOP)  # the last one is the end
    assert bench("--num-requests", "4", "--max-new-tokens", "2") == 0
    assert "end-of-sequence" not in capsys.readouterr().out


def test_the_json_has_the_promised_keys(engines: Engines, tmp_path: Path) -> None:
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


def test_undefined_figures_are_null(engines: Engines, tmp_path: Path, capsys) -> None:
    file = tmp_path / "figures.json"
    assert bench("--max-new-tokens", "1", "--json", str(file)) == 0
    figures = json.loads(file.read_text())
    assert figures["tpot_ms"] == figures["itl_ms"] == {"p50": None, "p95": None, "p99": None}
    assert "TPOT            p50/p95/p99 -/-/- ms/token" in capsys.readouterr().out


def test_flags_reach_the_engine(engines: Engines) -> None:
    assert bench("--model", "gpt2-124m", "--random-weights", "--threads", "1", "--max-batch-size", "8") == 0
    (engine,) = engines
    assert engine.model == "gpt2-124m"
    assert engine.config == EngineConfig(random_weights=True, threads=1)
    assert engine.knobs == Knobs(max_batch_size=8)


def test_a_model_without_a_tokenizer_gets_token_ids_of_exact_lengths(engines: Engines) -> None:
    assert bench("--prompt-repeats", "1,1,1,64", "--unique-prompts", "--num-requests", "4", "--warmup-runs", "0") == 0
    assert [len(prompt) for prompt in engines[0].prompts] == [4, 4, 4, 67]


def test_warm_up_runs_are_played_and_not_counted(engines: Engines, tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    assert bench("--num-requests", "2", "--warmup-runs", "2", "--repeat-runs", "3", "--json", str(file)) == 0
    assert len(engines[0].streams) == 2 * (2 + 3)
    figures = json.loads(file.read_text())
    assert len(figures["runs"]) == 3
    rates = sorted(run["output_tokens_per_s"] for run in figures["runs"])
    assert figures["output_tokens_per_s"] == rates[1]


def test_each_run_starts_with_an_empty_cache_unless_told_to_keep_it(engines: Engines) -> None:
    run = ["clear_cache", "submit", "submit"]
    assert bench("--num-requests", "2", "--repeat-runs", "2") == 0
    assert engines[0].calls == [*run * 3, "close"]
    assert bench("--num-requests", "2", "--repeat-runs", "2", "--keep-cache") == 0
    assert "clear_cache" not in engines[1].calls


@pytest.mark.parametrize(
    ("flags", "answer", "code", "words"),
    [
        ("--max-batch-size 0", None, 2, "max_batch_size"),
        ("--threads 0", None, 2, "threads"),
        ("--max-new-tokens 0", None, 2, ""),
        ("--submit-interval-ms -1", None, 2, ""),
        ("--device tpu", None, 2, "tpu"),
        ("--time-limit-s 0", None, 2, "time limit"),
        ("--slow-motion 4", None, 2, "slow motion"),
        ("--model nowhere", None, 2, "model 'nowhere' not found"),
        ("", failing(ValueError("the prompt is too long")), 2, "16 of 16 requests were refused: the prompt is"),
        ("", failing(TimeoutError()), 1, "it took too long"),
        ("", failing(httpx.ConnectError("no connection")), 1, "no connection"),
        ("", lambda stream: stream.finish([], FinishReason.ERROR, "out of luck"), 1, "16 requests failed and 0"),
        ("", lambda stream: stream.finish([], FinishReason.ERROR, "out of luck"), 1, "out of luck"),
        ("--time-limit-s 0.05", lambda stream: None, 1, "given up"),
    ],
)
def test_a_failure_is_one_line_and_gives_no_figures(
    flags: str, answer: Any, code: int, words: str, engines: Engines, capsys, tmp_path: Path
) -> None:
    engines.answer, file = answer, tmp_path / "figures.json"
    try:
        ended = bench(*flags.split(), "--json", str(file))
    except SystemExit as stopped:  # by the parser of the flags
        ended = stopped.code
    assert ended == code
    out, err = capsys.readouterr()
    assert (out, err.count("\n"), file.exists()) == ("", 1, False)
    assert err.startswith("roseplay bench streaming: ") and words in err


def test_the_environment_names_versions_and_nobody() -> None:
    import getpass
    import socket

    told = environment(threads=2, device="cpu")
    assert {"roseplay", "python", "torch", "transformers", "cpu", "cores", "threads", "device"} <= set(told)
    assert told["torch"] and told["transformers"]
    assert socket.gethostname() not in map(str, told.values())
    assert getpass.getuser() not in map(str, told.values())
