"""The comparison with other engines: the same work for all, and a clear message when one fails."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import transformers

from roseplay.arguments import Parser
from roseplay.extras.bench import compare
from roseplay.extras.bench.main import main

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
    assert document["environment"]["threads"] == 1
    assert all(len(told["runs"]) == 2 for told in document["engines"].values())
    assert document["engines"]["mine"]["output_tokens_per_s"] == 4
    ours = document["engines"]["roseplay"]["output_tokens_per_s"]
    assert document["engines"]["mine"]["ratio"] == pytest.approx(ours / 4)
    assert "roseplay is" in capsys.readouterr().out


def contest(shape: Path, *flags: str) -> compare.Contest:
    parser = Parser()
    compare.add_flags(parser)
    return compare.contest_of(parser.parse_args(["--model", str(shape), "--random-weights", *flags]))


def test_prompts_and_arrivals_follow_the_flags_and_the_seed(shape: Path) -> None:
    flags = ["--num-requests", "3", "--prompt-repeats", "1,4", "--submit-interval-ms", "20", "--prompt-tokens", "2"]
    first, again, other = (contest(shape, *flags, "--seed", seed) for seed in ("1", "1", "2"))
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
        compare.play_in_turn(contest(shape), [], {"mine": code}, runs=1)
