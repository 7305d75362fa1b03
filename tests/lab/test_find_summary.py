"""The search on simulated machines: its answer, and that its sentences agree with its measurements."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from roseplay.formats.numbers import number_text
from roseplay.lab.find import grid_between
from roseplay.lab.find_summary import Search, find_summary, is_kept, is_sure, misses, votes, wants_more
from roseplay.lab.points import FIGURES_OF_A_RUN

SETTINGS = ("prefill_max_tokens", "max_batch_size")
GRID = grid_between(16, 1024)
Machine = Callable[[int], tuple[float, float]]  # ITL p99 and TTFT p95 for a value


def point(value: int | None, itl: list[float], ttft: list[float]) -> dict[str, Any]:
    runs = [
        {**dict.fromkeys(FIGURES_OF_A_RUN, 10.0), "kept_pct": 100.0, "itl_p99_ms": a, "ttft_p95_ms": b}
        for a, b in zip(itl, ttft, strict=True)
    ]
    return {"value": value, "requests": 8, "runs": runs}


def found(setting: str, machine: Machine, promises: tuple[float, float], noise: float = 0, seed: int = 0) -> Any:
    """The result of a search; each of three or more runs deviates by at most the fraction ``noise``."""
    rng = random.Random(seed)
    limits = dict(zip(("itl_p99_ms", "ttft_p95_ms"), promises, strict=True))

    def measure(value: int) -> dict[str, Any]:
        made = point(value, [], [])
        while len(made["runs"]) < 3 or (len(made["runs"]) < 9 and not is_sure(made, limits, 3)):
            itl, ttft = ([of * (1 + rng.uniform(-noise, noise))] for of in machine(value))
            made["runs"] += point(value, itl, ttft)["runs"]
        return made

    search, tries = Search(GRID, setting), []
    while (value := search.next) is not None:
        tries.append(measure(value))
        search.record(is_kept(tries[-1], limits), more=wants_more(tries[-1], limits))
    document = {
        **dict.fromkeys(("title", "model", "device"), "x"),
        "setting": setting,
        "grid": list(GRID),
        "promises": limits,
        "points": tries,
        "seed": 0,
        "repeats": 3,
        "arms": {"A": {"knobs": {}, "config": {}}},
        "baseline": {**measure(GRID[-1]), "value": None if setting == SETTINGS[0] else GRID[-1]},
    }
    return document, find_summary(document)


def rising(scale: float) -> Machine:
    """From one grid value to the next, ITL rises by a third or more and TTFT falls by as much."""
    return lambda value: (value * scale, 1000 / (value * scale))


@given(st.sampled_from(SETTINGS), st.floats(0.1, 10), st.floats(1, 2000), st.floats(0.1, 100))
def test_on_a_monotone_machine_it_is_the_value_that_trying_all_gives(
    setting: str, scale: float, itl: float, ttft: float
) -> None:
    machine = rising(scale)
    kept = [value for value in GRID if machine(value)[0] <= itl and machine(value)[1] <= ttft]
    document, summary = found(setting, machine, (itl, ttft))
    assert summary["answer"] == ((min if setting == SETTINGS[0] else max)(kept) if kept else None)
    assert len(document["points"]) <= 5  # of 13 values


@given(st.sampled_from(SETTINGS), st.lists(st.tuples(st.floats(1, 99), st.floats(1, 99)), min_size=13, max_size=13))
def test_on_any_machine_the_answer_was_tried_and_its_sentences_say_what_its_table_says(
    setting: str, figures: list[tuple[float, float]]
) -> None:
    table = dict(zip(GRID, figures, strict=True))
    _, summary = found(setting, table.__getitem__, (50, 50))
    rows = {row["value"]: row for row in summary["points"]}
    assert summary["ended"]
    assert len(rows) == len(summary["points"])  # no duplicates
    assert set(rows) <= set(GRID)
    first, answer = summary["sentences"][0], summary["answer"]
    label = {"prefill_max_tokens": "prefill budget", "max_batch_size": "max batch"}[setting]
    if answer is None:
        assert not any(row["kept"] for row in rows.values())
        worst = {value: max(row["misses"].values()) for value, row in rows.items()}
        assert worst[summary["closest"]] == min(worst.values())
        assert first.startswith(f"No value between 16 and 1\u202f024 keeps both: {label} ")
        assert f"{label} {number_text(summary['closest'])} comes closest but misses " in first
        assert f"by {number_text(worst[summary['closest']])} %" in first
        return
    assert rows[answer]["kept"]
    assert f"{label} {number_text(answer)} is the ".capitalize() in first
    for name in ("itl_p99_ms", "ttft_p95_ms"):
        assert f"is {number_text(rows[answer]['figures'][name]['median'])} ms" in first
    best = (min if setting == SETTINGS[0] else max)(value for value, row in rows.items() if row["kept"])
    assert answer == best
    beside = GRID.index(answer) + (-1 if setting == SETTINGS[0] else 1)
    if 0 <= beside < len(GRID):
        assert not rows[GRID[beside]]["kept"]
        assert any(
            line.startswith(f"{label} {number_text(GRID[beside])} misses ".capitalize())
            for line in summary["sentences"]
        )


@given(st.sampled_from(SETTINGS), st.floats(0.1, 10), st.floats(5, 900), st.integers(0, 10**6))
def test_two_searches_agree_within_a_step_under_noise(setting: str, scale: float, itl: float, seed: int) -> None:
    """The spread at one value does not reach the next one."""
    machine = rising(scale)
    limits = (itl, 1e5) if setting == SETTINGS[1] else (1e5, 1000 / itl)
    answers = [found(setting, machine, limits, noise=0.12, seed=seed + run)[1]["answer"] for run in range(2)]
    assume(None not in answers)
    places = [GRID.index(answer) for answer in answers]
    assert abs(places[0] - places[1]) <= 1


def test_a_search_that_was_cut_off_says_what_is_left() -> None:
    document, _ = found(SETTINGS[0], rising(1), (100, 20))
    document["points"] = document["points"][:2]
    summary = find_summary(document)
    assert (summary["answer"], summary["ended"]) == (None, False)
    assert summary["sentences"] == ["No answer yet: 48 to 96 are left."]
    assert [row["left"] for row in summary["points"]][-1] == [48, 96]


def test_more_runs_make_two_searches_agree_though_they_are_far_apart() -> None:
    """With a spread over several grid values, three runs per value would make one pair in seven disagree."""
    agree = 0
    for number in range(100):
        limits = (1e5, 1000 / (20 + 9 * number))
        answers = [found(SETTINGS[0], rising(1), limits, 0.6, 2 * number + run)[1]["answer"] for run in range(2)]
        places = [len(GRID) if answer is None else GRID.index(answer) for answer in answers]
        agree += abs(places[0] - places[1]) <= 1
    assert agree >= 93


@given(st.lists(st.tuples(st.floats(1, 30), st.floats(1, 30)), min_size=3, max_size=9))
def test_a_verdict_is_sure_once_one_side_of_each_limit_outnumbers_the_other(runs: list[tuple[float, float]]) -> None:
    limits = {"itl_p99_ms": 15, "ttft_p95_ms": 15}
    one = point(16, *map(list, zip(*runs, strict=True)))
    leads = [sum(1 if run[side] <= 15 else -1 for run in runs) for side in (0, 1)]
    assert [within for within, _ in votes(one, limits).values()] == [(len(runs) + lead) // 2 for lead in leads]
    assert is_sure(one, limits, 3) == (min(leads) <= -3 or min(leads) >= 3)
    if is_sure(one, limits, 3):
        assert is_kept(one, limits) == (min(leads) >= 3)


def test_an_answer_that_was_not_kept_in_every_run_says_in_how_many() -> None:
    assert misses(point(64, [10, 12, 30], [5, 5, 5]), {"itl_p99_ms": 20, "ttft_p95_ms": 9}) == {}
    document, _ = found(SETTINGS[0], lambda value: (10, 5), (20, 9))
    document["points"][-1] = point(16, [10, 12, 30, 11, 12], [5] * 5)
    said = find_summary(document)["sentences"]
    assert "Not in every run: ITL p99 is within its limit in 4 of 5 runs." in said
    assert said[-1].endswith("medians of 3 to 5 runs.")
    assert not any("Another search" in line for line in said)
    document["points"][-1] = point(16, [10, 12, 30, 11, 30, 12, 30, 9, 30], [5] * 9)
    said = find_summary(document)["sentences"]
    assert "Not in every run: ITL p99 is within its limit in 5 of 9 runs." in said
    assert "Another search may find another value: the runs of prefill budget 16 do not agree." in said


def test_what_is_exactly_as_long_as_its_limit_is_within_it() -> None:
    limits = {"itl_p99_ms": 20, "ttft_p95_ms": 9}
    at_limits = point(64, [20] * 3, [9] * 3)
    assert is_kept(at_limits, limits)
    assert votes(at_limits, limits) == {"itl_p99_ms": (3, 3), "ttft_p95_ms": (3, 3)}
    assert set(misses(point(64, [20.01] * 3, [9.01] * 3), limits)) == set(limits)


@pytest.mark.parametrize(
    ("itl", "close"), [([20, 20, 21], True), ([10, 20, 20], False), ([10, 20, 20.1], True), ([10, 12, 19], False)]
)
def test_not_in_every_run_is_said_only_where_a_run_is_over_the_limit(itl: list[float], close: bool) -> None:
    document, _ = found(SETTINGS[0], lambda value: (10, 5), (20, 9))
    document["points"][-1] = point(16, itl, [5] * 3)
    assert any(said.startswith("Not in every run") for said in find_summary(document)["sentences"]) == close


def test_a_greater_value_is_wanted_only_where_ttft_misses_by_more() -> None:
    limits = {"itl_p99_ms": 20, "ttft_p95_ms": 10}
    by_as_much, by_more, by_less = (point(64, [30], [ttft]) for ttft in (15, 15.1, 14.9))
    assert [wants_more(one, limits) for one in (by_as_much, by_more, by_less)] == [False, True, False]


@pytest.mark.parametrize(
    ("low", "high", "grid"), [(1, 8, (1, 2, 3, 4, 6, 8)), (5, 5, (5,)), (9, 4, ()), (10, 20, (10, 12, 16, 20))]
)
def test_the_grid_has_the_powers_of_two_and_halves_between(low: int, high: int, grid: tuple[int, ...]) -> None:
    assert grid_between(low, high) == (grid or (9,))


def test_a_search_in_vain_says_where_the_repeats_disagree() -> None:
    document, _ = found(SETTINGS[0], lambda value: (30, 5), (20, 9))
    assert not any("Not sure" in line for line in find_summary(document)["sentences"])
    document["points"][-1] = point(16, [10, 25, 90], [5, 5, 5])
    said = find_summary(document)["sentences"]
    assert (
        "Not sure: at prefill budget 16, ITL p99 is within its limit in 1 of 3 runs, so another search may find one."
        in said
    )


def test_the_sentences_of_a_search() -> None:
    document = json.loads((Path(__file__).with_name("find.json")).read_text())
    assert find_summary(document)["sentences"] == [
        "Prefill budget 32 is the smallest that keeps both promises: ITL p99 is 24.8 ms (23.4–26.2) of 70, TTFT p95 is"
        " 1\u202f116 ms (1\u202f043–1\u202f190) of 1\u202f500.",
        "Regret: 0 % of ITL p99 among the values tried, within the spread of their runs.",
        "Prefill budget 24 misses TTFT p95 by 47.2 %.",
        "The price of prefill budget 32, against no limit: TTFT p95 3.49×, TTFT p99 3.38×, E2E p99 2.39×, throughput 0.48×."
        " In return: ITL p99 0.19×.",
        "This holds for Token budget, 12 requests, seed 0, tiny-chat on cpu, medians of 2 to 6 runs.",
    ]


def test_the_sentences_of_a_search_without_an_answer() -> None:
    document = json.loads((Path(__file__).with_name("find.json")).read_text())
    document["promises"] = {"itl_p99_ms": 5.0, "ttft_p95_ms": 100.0}
    first, *_, last = find_summary(document)["sentences"]
    assert first.startswith("No value between 16 and 512 keeps both: ")
    assert " of 5, TTFT p95 is " in first and first.endswith(" of 100.")
    assert last.startswith("This holds for Token budget, 12 requests")
