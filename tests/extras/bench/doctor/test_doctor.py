"""``roseplay doctor``: what it prints, and that wrong answers are noticed."""

from __future__ import annotations

import json
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from roseplay.cli import main
from roseplay.core.step import TokenLogprobs
from roseplay.extras.bench.doctor import answers as checks


def answers(*tokens: tuple[int, float, list[tuple[int, float]]]) -> list[Any]:
    """One answer: its tokens, each with its log-probability and the likeliest ones."""
    logprobs = [TokenLogprobs(logprob, top) for _, logprob, top in tokens]
    return [SimpleNamespace(token_ids=[token for token, *_ in tokens], logprobs=logprobs)]


NO_KERNELS = "There are no kernels for float16"
FIRST = (7, -0.5, [(7, -0.5), (8, -1.0)])
TIE = (3, -0.7, [(3, -0.7), (4, -0.7002)])
PLAIN = answers(FIRST, TIE)


@pytest.mark.parametrize(
    ("fast", "ok", "compared"),
    [
        (answers(FIRST, TIE), True, 2),
        (answers(FIRST, (4, -0.7, [(4, -0.7), (3, -0.7002)])), True, 2),
        (answers((8, -1.0, [(8, -1.0)]), TIE), False, 1),
        (answers((7, -0.6, [(7, -0.6)]), TIE), False, 2),
        (answers((9, -0.5, [(9, -0.5)]), TIE), False, 0),
    ],
    ids=["the same", "a tie", "an unlikelier token", "another probability", "a token out of nowhere"],
)
def test_answers_are_compared_up_to_rounding(fast: list[Any], ok: bool, compared: int) -> None:
    found = checks.compare("cpu", "float32", PLAIN, fast)
    assert (found.ok, found.compared) == (ok, compared)
    assert ("WRONG" in str(found)) is not ok


def test_the_fast_path_of_this_machine_is_right() -> None:
    found = checks.check("cpu", "float32")
    assert found.ok
    assert found.compared > 48, "of three answers of 24 tokens; two that are equally likely end one"


@pytest.fixture
def wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fast path answers wrongly, and nothing is computed."""
    unlikely = answers((9, -0.5, [(9, -0.5)]), TIE)
    monkeypatch.setattr(checks, "_answers", lambda device, dtype, settings: PLAIN if settings else unlikely)


def test_it_says_what_was_found(wrong: None, capsys: pytest.CaptureFixture[str]) -> None:
    """What is slow is said too; wrong answers end it with 1."""
    flags = ["--model", "tiny-chat", "--num-blocks", "32", "--dtype", "float16", "--no-pack-weights"]
    assert main(["doctor", *flags]) == 1
    out = capsys.readouterr().out
    for words in ("torch ", "GB/s", "tiny-chat on cpu", "pack_weights is off", "WRONG", "missing", NO_KERNELS):
        assert words in out
    assert all(len(line) <= 118 for line in out.splitlines())


def test_json_has_the_same(wrong: None, capsys: pytest.CaptureFixture[str]) -> None:
    threads = set(threading.enumerate())
    assert main(["doctor", "--json", "--model", "tiny-chat"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["engine"]["num_blocks"] == checks.BLOCKS, "it serves nobody: a larger pool only takes time"
    started = set(threading.enumerate()) - threads
    assert all(thread.daemon for thread in started), f"the program would wait for {started}"
    assert document["devices"][0]["bandwidth"] > 0
    assert {choice["part"] for choice in document["engine"]["choices"]} >= {"linear layers", "attention", "steps"}
    assert [check["ok"] for check in document["checks"]] == [False, False]


@pytest.mark.parametrize("flags", [["--block-size", "0"], ["--model", "no/such/model/here"], ["--jsno"]])
def test_bad_flags_and_models_end_with_2(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = main(["doctor", *flags])
    except SystemExit as stop:
        code = stop.code
    assert code == 2
    err = capsys.readouterr().err
    assert err.startswith("roseplay doctor: ")
    assert ("the model is" in err) == (flags == ["--block-size", "0"]), "said if none was asked for"
