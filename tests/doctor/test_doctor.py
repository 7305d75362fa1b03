"""``roseplay doctor``: what it prints, and that wrong answers are noticed."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from roseplay.cli import main
from roseplay.core.step import TokenLogprobs
from roseplay.doctor import answers as checks
from roseplay.doctor import machine


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roseplay.doctor.ceilings._BYTES", 2**20)
    monkeypatch.setattr(machine, "_CPU_MATRIX", 64)


def answers(*tokens: tuple[int, float, list[tuple[int, float]]]) -> list[Any]:
    """One answer: its tokens, each with its log-probability and the likeliest ones."""
    logprobs = [TokenLogprobs(logprob, top) for _, logprob, top in tokens]
    return [SimpleNamespace(token_ids=[token for token, *_ in tokens], logprobs=logprobs)]


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


def test_it_says_what_was_found(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(checks, "_answers", lambda *_: PLAIN)
    monkeypatch.setattr("roseplay.own_models.smollm2_is_here", lambda: False)
    assert main(["doctor", "--num-blocks", "32", "--no-pack-weights"]) == 0
    out, err = capsys.readouterr()
    assert "the model is tiny-chat" in err, "the one that the page would take"
    for words in ("torch ", "GB/s", "tiny-chat on cpu", "pack_weights is off", "same as plain torch", "missing"):
        assert words in out
    assert all(len(line) <= 118 for line in out.splitlines())


def test_json_has_the_same_and_wrong_answers_end_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = answers((9, -0.5, [(9, -0.5)]), TIE)
    monkeypatch.setattr(checks, "_answers", lambda device, dtype, settings: PLAIN if settings else wrong)
    assert main(["doctor", "--json", "--model", "tiny-chat", "--num-blocks", "32"]) == 1
    document = json.loads(capsys.readouterr().out)
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
    assert capsys.readouterr().err.startswith("roseplay doctor: ")


def test_without_numba_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("roseplay.kernels.cpu.choices.numba", None)
    monkeypatch.setattr(checks, "_answers", lambda *_: PLAIN)
    assert main(["doctor", "--model", "tiny-chat", "--num-blocks", "32"]) == 0
    assert 'pip install "roseplay[cpu]"' in capsys.readouterr().out
