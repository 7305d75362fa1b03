"""The comparison with other engines: the same work for all, and a clear message when one fails."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import transformers

from roseplay.bench import compare
from roseplay.bench.main import main

FAKE = f"{sys.executable} -c 'import json,sys; print(json.dumps(dict(output_tokens_per_s=len(json.load(open(sys.argv[1]))[\"prompts\"]))))' {{spec}}"


@pytest.fixture
def shape(tmp_path: Path) -> Path:
    config = transformers.GPT2Config(vocab_size=96, n_embd=32, n_layer=2, n_head=4, n_positions=128)
    config.save_pretrained(tmp_path)
    return tmp_path


def run(shape: Path, *flags: str) -> int:
    return main(["compare", "--model", str(shape), "--random-weights", "--threads", "1", *flags])


@pytest.mark.slow
def test_all_contestants_give_the_tokens_that_were_asked_for(shape: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = shape / "figures.json"
    flags = ["--num-requests", "4", "--max-new-tokens", "6", "--prompt-tokens", "3", "--prompt-repeats", "1,5"]
    assert run(shape, *flags, "--repeat-runs", "2", "--command", f"mine={FAKE}", "--json", str(file)) == 0
    document = json.loads(file.read_text())
    assert list(document["engines"]) == ["roseplay", "generate_batch", "generate", "generate_static", "mine"]
    assert document["prompt_tokens"] == 2 * 3 + 2 * 15
    assert all(len(told["runs"]) == 2 for told in document["engines"].values())
    assert document["engines"]["mine"]["output_tokens_per_s"] == 4
    ours = document["engines"]["roseplay"]["output_tokens_per_s"]
    assert document["engines"]["mine"]["ratio"] == pytest.approx(ours / 4)
    assert "roseplay is" in capsys.readouterr().out


def test_prompts_and_arrivals_follow_the_flags_and_the_seed(shape: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    contests = []

    class Peer:
        def __init__(self, name: str, contest: compare.Contest, time_limit_s: float) -> None:
            contests.append(contest)

        def run(self) -> dict[str, float]:
            return {"tokens": 1, "wall_s": 1.0}

        def close(self) -> None: ...

    monkeypatch.setattr(compare, "Peer", Peer)
    flags = ["--peers", "roseplay", "--num-requests", "3", "--prompt-repeats", "1,4", "--submit-interval-ms", "20"]
    for seed in ("1", "1", "2"):
        assert run(shape, *flags, "--prompt-tokens", "2", "--seed", seed) == 0
    first, again, other = contests
    assert [len(prompt) for prompt in first.prompts] == [2, 8, 2]
    assert first.arrivals_s == [0.0, 0.02, 0.04]
    assert first.prompts == again.prompts != other.prompts


def test_a_contestant_that_takes_too_long_is_given_up(shape: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(shape, "--peers", "generate", "--time-limit-s", "0.05") == 1
    assert "generate was given up after 0.05 s" in capsys.readouterr().err


def test_a_contestant_that_is_unknown_is_told_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["compare", "--peers", "roseplay,odd"])
    assert "use some of roseplay" in capsys.readouterr().err


def test_a_command_that_prints_no_figure_is_named(shape: Path) -> None:
    code = f"{sys.executable} -c 'print(5)'"
    with pytest.raises(compare.BenchmarkError, match="did not print JSON with output_tokens_per_s"):
        compare._run_command(code, shape / "config.json")
