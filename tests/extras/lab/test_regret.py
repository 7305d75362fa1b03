"""The regret of a search's answer, from runs that were made up."""

from __future__ import annotations

import math
import random
from statistics import median
from typing import Any, get_args

import numpy as np
import pytest

from roseplay.extras.lab.findings.regret import regret
from roseplay.extras.lab.types import FigureName
from roseplay.extras.lab.words import words_of
from roseplay.extras.simulation.calibration import Errors
from roseplay.extras.simulation.evidence import Evidence
from roseplay.formats.segments import plain

UNKNOWN = "Whether TTFT p95 is lower at another value: not known, as "
LIMITS = {"itl_ms": 20.0, "ttft_ms": 200.0}


def run(itl: float, ttft: float, rate: float = 100.0, **more: Any) -> dict[str, Any]:
    figures = {"itl_p99_ms": itl, "ttft_p95_ms": ttft, "output_tokens_per_s": rate}
    return {**dict.fromkeys(get_args(FigureName), 1.0), **figures, **more}


def point(value: int, *runs: dict[str, Any], **cases: dict[str, Any]) -> dict[str, Any]:
    return {"value": value, "requests": 8, "runs": list(runs), **cases}


def of(*points: dict[str, Any], setting: Any = "prefill_max_tokens", error_pct: float | None = None) -> list[Any]:
    """The regret of the first point, and doubts about it."""
    simulated = {"error_pct": error_pct, "label": "uncalibrated"} if "saturated" in points[0]["runs"][0] else None
    return [*regret(setting, LIMITS, points[0], points, simulated)]


def said(findings: list[Any]) -> list[str]:
    return [plain(words_of(finding)) for finding in findings]


def test_measured_it_is_the_worst_run_against_the_best_of_a_value_that_may_keep_both() -> None:
    answer = point(64, run(17, 140), run(18, 150), run(17, 145))
    closer = point(96, run(21, 110), run(19.9, 120), run(22, 120))  # kept both limits in one run
    found = of(answer, closer, point(48, run(12, 180), run(12, 181), run(12, 182)))
    assert (found[0].pct, found[0].against) == (pytest.approx(36.4), 96)
    assert said(found) == [
        "Another value may be better: within the spread of the runs, prefill budget 96 may keep both limits too, and TTFT p95 is"
        " up to 36.4\u202f% higher here, 150 ms instead of 110 ms."
    ]


def test_it_is_nothing_without_another_value() -> None:
    for alone in (of(point(64, run(17, 150))), of(simulated(64, *[(17, 150)] * 3), error_pct=9)):
        assert alone == []
    doubt = "But if durations are 9\u202f% longer, ITL p99 is 10\u202f% above its limit; then no value tried keeps both limits."
    assert said(of(simulated(64, (17, 150), (17, 150), (22, 150)), error_pct=9)) == [doubt]


def test_simulated_repeats_with_a_warm_cache_count_as_measured() -> None:
    answer, other = (point(value, *[run(17, ttft, saturated=False)] * 2) for value, ttft in ((64, 150), (96, 100)))
    assert said(of(answer, other))[0].startswith("Another value may be better: within the spread of the runs, ")


def test_the_bound_is_that_within_which_nine_in_ten_points_are() -> None:
    """Eleven points that are off by 0 to 10 %: at most 9 % in ten of them, 5 % in the middle."""
    errors = Errors.of(np.arange(1, 1.105, 0.01), np.ones(11))
    assert (errors.p90, errors.median) == (pytest.approx(0.09), pytest.approx(0.05))
    assert Evidence(11, errors, (), validated=True).bound == 0.09
    assert Evidence(11, errors, (), validated=False).bound is None


def test_measured_it_is_nothing_if_no_other_value_may_be_better() -> None:
    answer = point(64, run(14, 190), run(15, 180))
    found = of(answer, point(96, run(21, 110), run(22, 105)), point(48, run(10, 195), run(11, 198)))
    assert (found[0].pct, found[0].against) == (0, None)
    assert said(found) == ["The best of the values tried: none has a lower TTFT p95, whatever the spread of its runs."]


def test_a_large_batch_is_for_throughput() -> None:
    answer = point(16, run(14, 190, 400), run(15, 180, 410))
    found = of(answer, point(24, run(19, 210, 480), run(21, 190, 500)), setting="max_batch_size")
    assert (found[0].pct, found[0].against) == (20, 24)
    assert "throughput is up to 20\u202f% lower here, 400 tok/s instead of 500 tok/s." in said(found)[0]


def test_one_measured_run_shows_no_spread() -> None:
    found = of(point(64, run(14, 190)), point(48, run(11, 201)))
    assert (found[0].pct, found[0].against) == (None, None)
    assert said(found) == [UNKNOWN + "each has one run, which shows no spread."]


def simulated(value: int, *figures: tuple[float, float]) -> dict[str, Any]:
    """A value with its figures as simulated, and with shorter and with longer durations."""
    usual, shorter, longer = (run(*each, saturated=False) for each in figures)
    return point(value, usual, shorter=shorter, longer=longer)


def test_simulated_each_case_of_the_error_is_compared_with_itself() -> None:
    answer = simulated(64, (19, 140), (15, 120), (24, 160))
    closer = simulated(96, (22, 120), (18.5, 100), (26, 130))
    safer = simulated(48, (9, 180), (8, 160), (11, 190))
    found = of(answer, closer, safer, error_pct=12.5)
    assert (found[0].pct, found[0].against) == (20, 96)
    assert said(found) == [
        "Another value may be better: if durations are 12.5\u202f% shorter, prefill budget 96 keeps both limits too, and TTFT p95 is"
        " up to 20\u202f% higher here, 120 ms instead of 100 ms; uncalibrated.",
        "But if durations are 12.5\u202f% longer, ITL p99 is 20\u202f% above its limit; prefill budget 48 keeps both limits then.",
    ]
    alone = of(answer, simulated(96, (22, 120), (20.5, 100), (26, 130)), error_pct=12.5)
    assert (alone[0].pct, alone[0].against) == (0, None)
    assert said(alone) == [
        "The best of the values tried: none has a lower TTFT p95, even if durations are 12.5\u202f% shorter or longer; uncalibrated.",
        "But if durations are 12.5\u202f% longer, ITL p99 is 20\u202f% above its limit; then no value tried keeps both limits.",
    ]


def test_simulated_there_is_none_without_a_bound_of_the_error() -> None:
    answer, other = (simulated(value, (14, 190), (12, 150), (16, 240)) for value in (64, 48))
    assert said(of(answer, other)) == [UNKNOWN + "the error of the simulation is not bounded."]
    saturated = {**answer, "runs": [{**answer["runs"][0], "saturated": True}]}
    found = of(saturated, other, error_pct=10)
    assert (found[0].pct, found[0].unknown) == (None, "saturated")
    assert said(found) == [UNKNOWN + "this one is saturated, the queue keeps growing."]
    del other["longer"]
    assert of(answer, other, error_pct=10)[0].unknown == "not_simulated"


@pytest.mark.parametrize("seed", range(150))
def test_the_regret_of_values_drawn_at_random(seed: int) -> None:
    draw = random.Random(seed)
    setting = draw.choice(["prefill_max_tokens", "max_batch_size"])
    figure, sign = ("ttft_p95_ms", 1) if setting == "prefill_max_tokens" else ("output_tokens_per_s", -1)
    is_simulated, repeats = draw.random() < 0.5, draw.choice([2, 3])

    def drawn_point(value: int) -> dict[str, Any]:
        ttft = draw.choice([[None], [100, 150, 200, 201], [100, 200]])
        figures = [
            (draw.choice([10, 19, 20, 21]), draw.choice(ttft), draw.choice([0, 80, 100, 120]))
            for _ in range(3 if is_simulated else repeats)
        ]
        return simulated(value, *figures) if is_simulated else point(value, *(run(*each) for each in figures))

    points = [drawn_point(value) for value in range(1, draw.randint(3, 6))]
    simulation = {"error_pct": 9.0, "label": "uncalibrated"} if is_simulated else None
    found, *doubts = regret(setting, LIMITS, points[0], points, simulation)

    def known(name: str, runs: list[dict[str, Any]]) -> list[float]:
        return [one[name] for one in runs if one[name] is not None]

    expected, expected_doubts = (0.0, None, None, None, "runs"), []
    for case in ("runs", "shorter", "longer") if is_simulated else ("runs",):
        answer, *others = ((one["value"], one["runs"] if case == "runs" else [one[case]]) for one in points)
        keeping = {
            value: min((sign * number for number in known(figure, runs)), default=math.inf)  # the best one
            for value, runs in others
            if min(known("itl_p99_ms", runs)) <= 20 and min(known("ttft_p95_ms", runs), default=0) <= 200
        }
        instead = min(keeping, key=keeping.__getitem__, default=None)
        worst = max((sign * number for number in known(figure, answer[1])), default=None)
        best = None if instead is None else keeping[instead]
        if worst is not None and best and math.isfinite(best):
            pct = round(100 * sign * (worst / best - 1), 1)
            if pct > expected[0]:
                expected = pct, instead, sign * best, sign * worst, case
        limits = {"itl_p99_ms": 20, "ttft_p95_ms": 200}
        miss = {name: median(known(name, answer[1]) or [0]) / limit for name, limit in limits.items()}
        if max(miss.values()) > 1:
            worst_name = max(reversed(miss), key=miss.__getitem__)  # TTFT, if both miss by as much
            pct = round(100 * (miss[worst_name] - 1), 1)
            expected_doubts.append((case, 9.0 * is_simulated, worst_name, pct, bool(keeping), instead))
    assert (found.pct, found.against, found.best, found.worst, found.case) == expected
    assert [
        (one.case, one.error_pct, one.figure, one.miss_pct, one.any_keeps, one.instead) for one in doubts
    ] == expected_doubts
