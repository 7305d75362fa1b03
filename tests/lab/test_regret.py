"""The regret of a search's answer, from runs that were made up."""

from __future__ import annotations

from typing import Any

import pytest

from roseplay.lab.points import FIGURES_OF_A_RUN
from roseplay.lab.regret import Regret, regret

PROMISES = {"itl_p99_ms": 20.0, "ttft_p95_ms": 200.0}


def run(itl: float, ttft: float, rate: float = 100.0, **more: Any) -> dict[str, Any]:
    figures = {"itl_p99_ms": itl, "ttft_p95_ms": ttft, "output_tokens_per_s": rate}
    return {**dict.fromkeys(FIGURES_OF_A_RUN, 1.0), **figures, **more}


def point(value: int, *runs: dict[str, Any], **cases: dict[str, Any]) -> dict[str, Any]:
    return {"value": value, "requests": 8, "runs": list(runs), **cases}


def of(*points: dict[str, Any], setting: Any = "prefill_max_tokens", error_pct: float | None = None) -> Regret:
    """The regret of the first point."""
    simulated = {"error_pct": error_pct, "label": "uncalibrated"} if "saturated" in points[0]["runs"][0] else None
    return regret(setting, PROMISES, points[0], points, simulated)


def test_measured_it_is_the_worst_run_against_the_best_of_a_value_that_may_keep_both() -> None:
    answer = point(64, run(14, 190), run(15, 180), run(15, 185))
    closer = point(48, run(11, 210), run(12, 198), run(12, 220))  # kept both promises in one run
    found = of(answer, closer, point(96, run(18, 90), run(18, 91), run(18, 92)))
    assert (found.pct, found.against) == (pytest.approx(36.4), 48)
    assert found.sentences == [
        "Regret: at most 36.4 % of ITL p99: within the spread of their runs, prefill budget 48 may keep both promises too,"
        " with ITL p99 11 against 15 ms."
    ]


def test_measured_it_is_nothing_if_no_other_value_may_be_better() -> None:
    answer = point(64, run(14, 190), run(15, 180))
    found = of(answer, point(48, run(11, 210), run(12, 205)), point(96, run(18, 90), run(19, 95)))
    assert (found.pct, found.against) == (0, None)
    assert found.sentences == ["Regret: 0 % of ITL p99 among the values tried, within the spread of their runs."]


def test_a_large_batch_is_for_throughput() -> None:
    answer = point(16, run(14, 190, 400), run(15, 180, 410))
    found = of(answer, point(24, run(19, 210, 480), run(21, 190, 500)), setting="max_batch_size")
    assert (found.pct, found.against) == (20, 24)
    assert (
        "at most 20 % of throughput" in found.sentences[0] and "throughput 500 against 400 tok/s" in found.sentences[0]
    )


def test_one_measured_run_shows_no_spread() -> None:
    found = of(point(64, run(14, 190)), point(48, run(11, 201)))
    assert (found.pct, found.against) == (None, None)
    assert found.sentences == ["Regret: not known from one run a value, which shows no spread."]


def simulated(value: int, *figures: tuple[float, float]) -> dict[str, Any]:
    """A value with its figures as simulated, and with shorter and with longer durations."""
    usual, shorter, longer = (run(*each, saturated=False) for each in figures)
    return point(value, usual, shorter=shorter, longer=longer)


def test_simulated_each_case_of_the_error_is_compared_with_itself() -> None:
    answer = simulated(64, (14, 190), (12, 150), (16, 240))
    closer = simulated(48, (12, 220), (10, 185), (13.5, 260))
    safer = simulated(96, (18, 90), (16, 80), (19, 110))
    found = of(answer, closer, safer, error_pct=12.5)
    assert (found.pct, found.against) == (20, 48)
    assert found.sentences == [
        "Regret: at most 20 % of ITL p99: with durations 12.5 % shorter, prefill budget 48 keeps both promises too, with"
        " ITL p99 10 against 12 ms; uncalibrated.",
        "But with durations 12.5 % longer, it misses TTFT p95 by 20 %; prefill budget 96 keeps both.",
    ]
    alone = of(answer, simulated(48, (12, 220), (10, 205), (13.5, 260)), error_pct=12.5)
    assert (alone.pct, alone.against) == (0, None)
    assert alone.sentences == [
        "Regret: 0 % of ITL p99 among the values tried, with durations up to 12.5 % shorter or longer; uncalibrated.",
        "But with durations 12.5 % longer, it misses TTFT p95 by 20 %; no value tried keeps both.",
    ]


def test_simulated_there_is_none_without_a_bound_of_the_error() -> None:
    answer, other = (simulated(value, (14, 190), (12, 150), (16, 240)) for value in (64, 48))
    assert of(answer, other).sentences == ["Regret: not known, because the error of the simulation is not bounded."]
    saturated = {**answer, "runs": [{**answer["runs"][0], "saturated": True}]}
    said = ["Regret: not known, because this value is saturated, grows with the run."]
    assert (of(saturated, other, error_pct=10).pct, of(saturated, other, error_pct=10).sentences) == (None, said)
    del other["longer"]
    said = ["Regret: not known, because the values were not simulated with other durations."]
    assert of(answer, other, error_pct=10).sentences == said
