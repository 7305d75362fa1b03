"""The search on simulated machines: its answer, and that its sentences agree with its measurements."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from roseplay.extras.lab.find import grid_between
from roseplay.extras.lab.findings.search import Search, is_sure, votes
from roseplay.extras.lab.points import misses
from roseplay.extras.lab.results import parse_result, summary_of
from roseplay.extras.lab.words import sentences
from tests.extras.lab.findings import finding, has, point

SETTINGS = ("prefill_max_tokens", "max_batch_size")
VALUES = grid_between(16, 1024)
GRIDS: dict[str, tuple[int | None, ...]] = {SETTINGS[0]: (*VALUES, None), SETTINGS[1]: VALUES}
Machine = Callable[[float], tuple[float, float]]  # ITL p99 and TTFT p95 for a value, infinite without a limit


def tried(value: int | None, itl: Sequence[float], ttft: Sequence[float]) -> dict[str, Any]:
    return point(value, itl_p99_ms=itl, ttft_p95_ms=ttft)


def found(setting: str, machine: Machine, most: tuple[float, float], noise: float = 0, seed: int = 0) -> Any:
    """The result of a search; each of three or more runs deviates by at most the fraction ``noise``."""
    rng = random.Random(seed)
    limits = dict(zip(("itl_ms", "ttft_ms"), most, strict=True))

    def measure(value: int | None) -> dict[str, Any]:
        made = tried(value, [], [])
        while len(made["runs"]) < 3 or (len(made["runs"]) < 9 and not is_sure(made, limits, 3)):
            itl, ttft = ([of * (1 + rng.uniform(-noise, noise))] for of in machine(value or 4096))
            made["runs"] += tried(value, itl, ttft)["runs"]
        return made

    search, tries = Search(GRIDS[setting], limits), []
    while (place := search.next) is not None:
        tries.append(measure(GRIDS[setting][place]))
        search.record(tries[-1])
    document = {
        **dict.fromkeys(("title", "model", "device"), "x"),
        "kind": "find",
        "setting": setting,
        "grid": list(GRIDS[setting]),
        "limits": limits,
        "points": tries,
        "seed": 0,
        "repeats": 3,
        "arms": {"A": {"knobs": {}, "config": {}}},
    }
    return document, summary_of(document)


def value_of(document: Any, name: str = "answer") -> int | None:
    """The value of the search's answer, or of what comes closest to one."""
    place = summary_of(document)[name]
    value: int | None = document["points"][place]["value"]
    return value


def rising(scale: float) -> Machine:
    """From one grid value to the next, ITL rises by a third or more and TTFT falls by as much."""
    return lambda value: (value * scale, 1000 / (value * scale))


@given(st.sampled_from(SETTINGS), st.floats(0.1, 10), st.floats(1, 2000), st.floats(0.1, 100))
def test_on_a_monotone_machine_it_is_the_value_that_trying_all_gives(
    setting: str, scale: float, itl: float, ttft: float
) -> None:
    machine = rising(scale)
    kept = [v for v in GRIDS[setting] if machine(v or 4096)[0] <= itl and machine(v or 4096)[1] <= ttft]
    document, summary = found(setting, machine, (itl, ttft))
    assert (summary["answer"] is None) == (not kept)
    if kept:
        assert value_of(document) == kept[-1]
        assert (len(document["points"]) == 1) == (kept[-1] == GRIDS[setting][-1])
    assert len(document["points"]) <= 5  # of 13 or 14 values


@given(st.sampled_from(SETTINGS), st.lists(st.tuples(st.floats(1, 99), st.floats(1, 99)), min_size=14, max_size=14))
def test_on_any_machine_the_answer_was_tried_and_its_sentences_say_what_its_table_says(
    setting: str, figures: list[tuple[float, float]]
) -> None:
    table = dict(zip((*VALUES, 4096), figures, strict=True))
    grid = GRIDS[setting]
    document, summary = found(setting, table.__getitem__, (50, 50))
    rows = {row["value"]: row for row in summary["points"]}
    assert summary["ended"]
    assert len(rows) == len(summary["points"])  # no duplicates
    assert summary["points"][0]["value"] == grid[-1]
    assert set(rows) <= set(grid)
    if summary["answer"] is None:
        closest = value_of(document, "closest")
        assert not any(row["kept"] for row in rows.values())
        worst = {value: max(row["misses"].values()) for value, row in rows.items()}
        assert worst[closest] == min(worst.values())
        vain = finding(summary, "NoAnswer")
        assert vain and (vain["closest"], vain["miss_pct"]) == (closest, worst[closest])
        assert (vain["low"], vain["high"]) == (16, grid[-1])
        return
    answer, told = value_of(document), finding(summary, "Answer")
    assert rows[answer]["kept"] and told and told["value"] == answer
    limited = finding(summary, "Limited")
    for level in limited["levels"]:
        assert level["median"] == rows[answer]["figures"][level["figure"]]["median"]
    assert answer == max((value for value, row in rows.items() if row["kept"]), key=grid.index)
    place = grid.index(answer) + 1
    if place < len(grid):
        assert not rows[grid[place]]["kept"]
        beyond = finding(summary, "Beyond")
        assert beyond and (beyond["value"], beyond["miss_pct"]) == (
            grid[place],
            max(rows[grid[place]]["misses"].values()),
        )


@given(st.sampled_from(SETTINGS), st.floats(0.1, 10), st.floats(5, 900), st.integers(0, 10**6))
def test_two_searches_agree_within_a_step_under_noise(setting: str, scale: float, itl: float, seed: int) -> None:
    """The spread at one value does not reach the next one."""
    machine = rising(scale)
    limits = (itl, 1e5) if setting == SETTINGS[1] else (1e5, 1000 / itl)
    searches = [found(setting, machine, limits, noise=0.12, seed=seed + run) for run in range(2)]
    assume(all(summary["answer"] is not None for _, summary in searches))
    places = [GRIDS[setting].index(value_of(document)) for document, _ in searches]
    assert abs(places[0] - places[1]) <= 1


def test_a_search_that_was_cut_off_says_what_is_left() -> None:
    document, _ = found(SETTINGS[0], rising(1), (100, 20))
    document["points"] = document["points"][:2]
    summary = summary_of(document)
    assert (summary["answer"], summary["closest"], summary["ended"]) == (None, None, False)
    assert sentences(summary) == ["No answer yet: 16 to 96 are left."]
    assert [row["left"] for row in summary["points"]] == [[16, 1024], [16, 96]]


def test_more_runs_make_two_searches_agree_though_they_are_far_apart() -> None:
    """With a spread over several grid values, three runs per value would make one pair in seven disagree."""
    agree = 0
    for number in range(100):
        limits = (20 + 9 * number, 1e5)
        searches = [found(SETTINGS[0], rising(1), limits, 0.6, 2 * number + run) for run in range(2)]
        places = [
            -1 if summary["answer"] is None else GRIDS[SETTINGS[0]].index(value_of(document))
            for document, summary in searches
        ]
        agree += abs(places[0] - places[1]) <= 1
    assert agree >= 93


@given(st.lists(st.tuples(st.floats(1, 30), st.floats(1, 30)), min_size=3, max_size=9))
def test_a_verdict_is_sure_once_one_side_of_each_limit_outnumbers_the_other(runs: list[tuple[float, float]]) -> None:
    limits = {"itl_ms": 15, "ttft_ms": 15}
    one = tried(16, *map(list, zip(*runs, strict=True)))
    leads = [sum(1 if run[side] <= 15 else -1 for run in runs) for side in (1, 0)]  # TTFT first
    assert [within for within, _ in votes(one, limits).values()] == [(len(runs) + lead) // 2 for lead in leads]
    assert is_sure(one, limits, 3) == (min(leads) <= -3 or min(leads) >= 3)
    if is_sure(one, limits, 3):
        assert (not misses(one, limits)) == (min(leads) >= 3)


def test_where_repeats_disagree_is_told() -> None:
    def said(*runs: float) -> list[str]:
        """The sentences of a search that ends with its first try, which had these gaps."""
        document, _ = found(SETTINGS[0], lambda value: (10, 5), (20, 9))
        document["points"][-1] = tried(None, runs, [5] * len(runs))
        return sentences(summary_of(document))

    kept = said(10, 12, 30, 11, 12)
    assert "Not in every run: ITL p99 is within its limit in 4 of 5 runs." in kept
    assert kept[-1].endswith("medians of 5 runs.")
    assert not any("Another search" in line for line in kept)
    unsure = said(10, 12, 30, 11, 30, 12, 30, 9, 30)
    assert "Not in every run: ITL p99 is within its limit in 5 of 9 runs." in unsure
    assert "Another search may find another value: the runs of an unlimited prefill budget do not agree." in unsure
    document, summary = found(SETTINGS[0], lambda value: (30, 5), (20, 9))
    assert not has(summary, "Disagreement")
    document["points"][-1] = tried(None, [10, 25, 90], [5, 5, 5])
    assert sentences(summary_of(document))[2] == (
        "Not sure: at an unlimited prefill budget, ITL p99 is within its limit in 1 of 3 runs, so another search may find one."
    )


def test_what_is_exactly_as_long_as_its_limit_is_within_it() -> None:
    limits = {"itl_ms": 20, "ttft_ms": 9}
    at_limits = tried(64, [20] * 3, [9] * 3)
    assert misses(at_limits, limits) == {}
    assert votes(at_limits, limits) == {"itl_p99_ms": (3, 3), "ttft_p95_ms": (3, 3)}
    assert set(misses(tried(64, [20.01] * 3, [9.01] * 3), limits)) == {"itl_p99_ms", "ttft_p95_ms"}


@pytest.mark.parametrize(
    ("itl", "close"), [([20, 20, 21], True), ([10, 20, 20], False), ([10, 20, 20.1], True), ([10, 12, 19], False)]
)
def test_not_in_every_run_is_said_only_where_a_run_is_over_the_limit(itl: list[float], close: bool) -> None:
    document, _ = found(SETTINGS[0], lambda value: (10, 5), (20, 9))
    document["points"][-1] = tried(None, itl, [5] * 3)
    assert has(summary_of(document), "Disagreement", of="answer") == close


def test_a_greater_value_is_wanted_only_where_ttft_misses_by_more() -> None:
    for ttft, greater in ((15, False), (15.1, True), (14.9, False)):
        search = Search((16, 32, 64, None), {"itl_ms": 20, "ttft_ms": 10})
        for value in (None, 32):
            search.record(tried(value, [30], [ttft]))
        assert search.left == ((2, 2) if greater else (0, 0))


def test_the_sentences_of_a_search() -> None:
    document = json.loads((Path(__file__).with_name("find.json")).read_text())
    assert sentences(summary_of(document)) == [
        "Prefill budget 32 is the largest that keeps both limits.",
        "TTFT p95 is 1.12 s (1.04–1.19, limit 1.50 s) and ITL p99 is 24.8 ms (23.4–26.2, limit 50 ms).",
        "Another value may be better: within the spread of the runs, prefill budget 96 may keep both limits too, and TTFT p95 is"
        " up to 237\u202f% higher here, 1.19 s instead of 353 ms.",
        "At prefill budget 96, ITL p99 is 17.8\u202f% above its limit.",
        "The price of prefill budget 32, against an unlimited prefill budget: TTFT p95 ×3.49, TTFT p99 ×3.38, E2E p99 ×2.39, throughput ×0.48."
        " In return: ITL p99 ×0.19.",
        "This holds with max batch 8, prefill requests 32, prefix cache off and same-step sharing off, for Token budget, 12 requests,"
        " seed 0, tiny-chat on cpu, medians of 2 to 6 runs.",
    ]


def test_no_limit_is_needed_where_both_limits_are_kept_without_one() -> None:
    _, summary = found(SETTINGS[0], lambda value: (10 if value < 999 else 12, 5), (20, 9))
    assert [row["value"] for row in summary["points"]] == [None]
    assert (summary["answer"], summary["closest"], has(summary, "SearchPrice")) == (0, None, False)
    assert sentences(summary) == [
        "No prefill budget is needed: both limits are kept without one.",
        "TTFT p95 is 5 ms (limit 9 ms) and ITL p99 is 12 ms (limit 20 ms).",
        "This holds for x, 8 requests, seed 0, x on x, medians of 3 runs.",
    ]
    _, summary = found(SETTINGS[1], lambda value: (10, 5), (20, 9))
    assert sentences(summary)[0] == "Max batch 1\u202f024 is the largest that keeps both limits."
    assert sentences(summary)[2] == "Nothing larger was tried."


@pytest.mark.parametrize(
    ("itl", "ttft", "gain", "many"),
    [(20.6, 8.0, 1.0, True), (40.0, 6.0, 2.0, True), (40.0, 5.9, 2.0, False), (20.6, 1.0, 1.0, False)],
)
def test_a_price_that_is_many_times_its_gain_is_in_the_first_sentence(
    itl: float, ttft: float, gain: float, many: bool
) -> None:
    _, summary = found(SETTINGS[0], lambda value: (20, ttft) if value < 999 else (itl, 1), (20, 9))
    price, said = finding(summary, "SearchPrice"), sentences(summary)
    assert (price["figure"], price["factor"], price["gain"], price["many"]) == ("ttft_p95_ms", ttft, gain, many)
    assert [row["name"] for row in price["gains"]] == ["itl_p99_ms"]
    assert (
        (", at a price many times its gain (TTFT p95 " in said[0]) == many == bool(finding(summary, "Answer")["price"])
    )


def test_throughput_is_a_price_too_and_what_was_gained_is_none() -> None:
    document, _ = found(SETTINGS[1], lambda value: (5, 5) if value < 1024 else (5, 10), (20, 9))
    for run in document["points"][-1]["runs"]:
        run["output_tokens_per_s"] = 0.5
    summary = summary_of(document)
    assert has(summary, "SearchPrice", figure="output_tokens_per_s", factor=10, gain=2, many=True)
    assert any(line.endswith("throughput ×0.10. In return: TTFT p95 ×0.50.") for line in sentences(summary))


@pytest.mark.parametrize("grid", [[None], [96, None, 16], [64, 32, 16], [16, 16, None]])
def test_a_file_whose_grid_no_search_has_is_refused(grid: list[int | None]) -> None:
    document = json.loads((Path(__file__).with_name("find.json")).read_text())
    with pytest.raises(ValueError, match="its values must increase"):
        parse_result(json.dumps({**document, "grid": grid}).encode())


def test_the_sentences_of_a_search_without_an_answer() -> None:
    document = json.loads((Path(__file__).with_name("find.json")).read_text())
    document["limits"] = {"itl_ms": 5.0, "ttft_ms": 100.0}
    document["points"] = [document["points"][place] for place in (0, 2, 1)]
    document["grid"] = [24, 32, None]
    first, second, *_, last = sentences(summary_of(document))
    assert first.startswith("No value from 24 to unlimited keeps both limits: ")
    assert second.startswith("There, TTFT p95 is ") and second.endswith("limit 5 ms).")
    assert "off, for Token budget, 12 requests" in last
