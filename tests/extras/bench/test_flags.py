from __future__ import annotations

import dataclasses

import pytest

from roseplay.arguments import Parser
from roseplay.config import EngineConfig, Knobs
from roseplay.extras.bench import flags
from roseplay.traffic.prompts import TextPrompts, TokenPrompts


def parse(*argv: str):
    parser = Parser(prog="bench")
    for add in (flags.add_traffic_flags, flags.add_knob_flags, flags.add_engine_flags, flags.add_run_flags):
        add(parser)
    return parser.parse_args(argv)


def test_without_flags_knobs_and_config_are_the_engines_own() -> None:
    assert flags.knobs(parse()) == Knobs()
    assert flags.engine_config(parse()) == EngineConfig()


@pytest.mark.parametrize(
    ("argv", "changes"),
    [
        ("--max-batch-size 8", {"max_batch_size": 8}),
        ("--no-prefix-cache", {"prefix_cache": False}),
        ("--admission blocking", {"admission": "blocking"}),
    ],
)
def test_each_flag_sets_its_knob_and_no_other(argv: str, changes: dict) -> None:
    assert flags.knobs(parse(*argv.split())) == Knobs(**changes)


def test_engine_flags_reach_the_config() -> None:
    argv = "--device cpu --dtype bfloat16 --num-blocks 99 --threads 1 --seed 7 --random-weights"
    assert flags.engine_config(parse(*argv.split())) == EngineConfig(
        device="cpu", dtype="bfloat16", num_blocks=99, threads=1, seed=7, random_weights=True
    )


def test_traffic_flags_reach_the_workload() -> None:
    argv = "--prompt Hi --prompt-repeats 1,3 --unique-prompts --num-requests 3 --submit-interval-ms 20"
    workload = flags.workload(parse(*argv.split(), "--max-new-tokens", "5", "--no-stop-on-eos"), TextPrompts("Hi"))
    assert [arrival.prompt for arrival in workload] == ["Hi [0]", "Hi Hi Hi [1]", "Hi [2]"]
    assert [arrival.at_s for arrival in workload] == pytest.approx([0, 0.02, 0.04])
    assert {(arrival.params.max_new_tokens, arrival.params.ignore_eos) for arrival in workload} == {(5, True)}


def test_prompts_are_equal_and_end_of_sequence_counts_unless_told_otherwise() -> None:
    workload = flags.workload(parse("--num-requests", "4"), TokenPrompts(100))
    assert len({tuple(arrival.prompt) for arrival in workload}) == 1
    assert not any(arrival.params.ignore_eos for arrival in workload)


@pytest.mark.parametrize(
    "argv",
    [
        "--prompt-repeats 1,x",
        "--prompt-repeats 0",
        "--num-requests 0",
        "--num-requests many",
        "--repeat-runs 0",
        "--warmup-runs -1",
        "--json /no/such/directory/figures.json",
        "--admission sometimes",
        "--num-req 3",
        "--turbo",
    ],
)
def test_a_bad_flag_is_one_line_and_exit_code_2(argv: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        parse(*argv.split())
    assert exit_.value.code == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_there_is_a_flag_for_each_knob() -> None:
    assert {field.name for field in dataclasses.fields(Knobs)} <= vars(parse()).keys()
