"""``roseplay lab`` as a program: without the page, and with numbers that cannot be meant."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest

from roseplay.cli import main
from roseplay.extras.lab.flags import parser
from roseplay.extras.lab.results import parse_result
from tests.extras.test_number_flags import check_numbers
from tests.test_cli import PAGE, run_without

POISSON = "lab poisson --run-as h100 --model qwen3-8b"


def test_it_needs_no_page(tmp_path: Path) -> None:
    simulated = "--run-as h100 --model qwen3-0.6b --num-requests 2 --max-new-tokens 2".split()
    printed = run_without(PAGE, ["lab", "dedup", *simulated, "--json", "--report", "lab.html"], tmp_path)
    assert parse_result(printed)["scenario"] == "dedup"
    assert (tmp_path / "lab.html").stat().st_size


@pytest.mark.parametrize(
    "given",
    [POISSON, f"{POISSON} --sweep rate --from 1 --to 2", f"{POISSON} --find batch --itl-p99 20 --ttft-p95 250"],
)
def test_a_number_that_cannot_be_meant_is_one_line(
    given: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        raise ValueError("it would run")

    monkeypatch.setattr("roseplay.extras.lab.command.ClosedEngine", SimpleNamespace(of=refuse))
    monkeypatch.setattr("roseplay.extras.lab.command.parser", cache(parser))
    check_numbers(main, parser, given, capsys)
