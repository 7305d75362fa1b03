"""Starting the server: flags, and the messages when it cannot start."""

from __future__ import annotations

import socket

import pytest

from roseplay.play.main import main
from roseplay.play.options import parse
from roseplay.play.stops import BUDGET, REQUESTS


def test_defaults() -> None:
    options = parse(["--model", "tiny-chat"])
    assert (options.model, options.server.host, options.server.port) == ("tiny-chat", "127.0.0.1", 7860)
    assert options.knobs.prefill_max_tokens is None


def test_every_setting_is_a_flag() -> None:
    options = parse(
        "--model gpt2 --device cpu --dtype bfloat16 --port 0 --num-blocks 99 --prefill-max-tokens 64 --max-batch-size 8"
        " --prefill-max-batch-size unlimited --no-prefix-cache --slow-motion 2.5 --admission blocking".split()
    )
    config = options.config
    assert (options.model, options.server.port, config.dtype, config.num_blocks) == ("gpt2", 0, "bfloat16", 99)
    knobs = options.knobs
    assert (knobs.prefill_max_tokens, knobs.max_batch_size, knobs.prefill_max_batch_size) == (64, 8, None)
    assert (knobs.prefix_cache, knobs.slow_motion, knobs.admission) == (False, 2.5, "blocking")


@pytest.mark.parametrize("flags", ["--port many", "--port 99999", "--max-batch-size 0", "--dtype int4", "--nothing"])
def test_a_flag_that_makes_no_sense_is_one_line(capsys: pytest.CaptureFixture[str], flags: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(flags.split())
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1


def test_a_taken_port_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert main(["--port", str(taken.getsockname()[1])]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "--port" in told


def test_a_model_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--port", "0", "--worker", "thread", "--model", "./no-such-model"]) == 2
    *progress, last = capsys.readouterr().err.splitlines()
    assert all(line.startswith("roseplay: ./no-such-model is loading.") for line in progress)
    assert last.startswith("roseplay: ") and "no-such-model" in last and "no such directory" in last


def test_places_and_values() -> None:
    assert [BUDGET.values[BUDGET.place(v)] for v in (1, 16, 300, 2048, 10**6, None)] == [16, 16, 256, 2048, 2048, None]
    assert [REQUESTS.values[REQUESTS.place(v)] for v in (1, 7, 99, None)] == [1, 8, 32, None]
