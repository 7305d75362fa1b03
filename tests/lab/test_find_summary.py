"""The search on machines that only pretend: what it answers, and that its sentences say what its tries say."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from roseplay.lab.find import grid_between
from roseplay.lab.find_summary import Search, find_summary, is_kept, misses, wants_more
from roseplay.lab.points import FIGURES_OF_A_RUN
from roseplay.texts import number_text

SETTINGS = ("prefill_max_tokens", "max_batch_size")
GRID = grid_between(16, 1024)
Machine = Callable[[int], tuple[float, float]]  # ITL p99 and TTFT p95 of a value


def point(value: int | None, itl: list[float], ttft: list[float]) -> dict[str, Any]:
    runs = [
        {**dict.fromkeys(FIGURES_OF_A_RUN, 10.0), "kept_pct": 100.0, "itl_p99_ms": a, "ttft_p95_ms": b}
        for a, b in zip(itl, ttft, strict=True)
    ]
    return {"value": value, "requests": 8, "runs": runs}


def found(setting: str, machine: Machine, promises: tuple[float, float], noise: float = 0, seed: int = 0) -> Any:
    """The result of a search; each of three repeats is off by at most ``noise``, as a share."""
    rng = random.Random(seed)
    limits = dict(zip(("itl_p99_ms", "ttft_p95_ms"), promises, strict=True))

    def measure(value: int) -> dict[str, Any]:
        itl, ttft = ([of * (1 + rng.uniform(-noise, noise)) for _ in range(3)] for of in machine(value))
        return point(value, itl, ttft)

    search, tries = Search(GRID, setting), []
    while (value := search.next) is not None:
        tries.append(measure(value))
        search.record(is_kept(tries[-1], limits), more=wants_more(tries[-1], limits))
    document = {
        **dict.fromkeys(("title", "model", "device"), "x"),
        "setting": setting,
        "grid": list(GRID),
        "promises": limits,
        "tries": tries,
        "seed": 0,
        "repeats": 3,
        "baseline": {**measure(GRID[-1]), "value": None if setting == SETTINGS[0] else GRID[-1]},
    }
    return document, find_summary(document)


def rising(scale: float) -> Machine:
    """ITL rises by a third or more from stop to stop, TTFT falls by as much."""
    return lambda value: (value * scale, 1000 / (value * scale))


@given(st.sampled_from(SETTINGS), st.floats(0.1, 10), st.floats(1, 2000), st.floats(0.1, 100))
def test_on_a_monotone_machine_it_is_the_value_that_trying_all_gives(
    setting: str, scale: float, itl: float, ttft: float
) -> None:
    machine = rising(scale)
    kept = [value for value in GRID if machine(value)[0] <= itl and machine(value)[1] <= ttft]
    document, summary = found(setting, machine, (itl, ttft))
    assert summary["answer"] == ((min if setting == SETTINGS[0] else max)(kept) if kept else None)
    assert len(document["tries"]) <= 5  # of 13


@given(st.sampled_from(SETTINGS), st.lists(st.tuples(st.floats(1, 99), st.floats(1, 99)), min_size=13, max_size=13))
def test_on_any_machine_the_answer_was_tried_and_its_sentences_say_what_its_table_says(
    setting: str, figures: list[tuple[float, float]]
) -> None:
    table = dict(zip(GRID, figures, strict=True))
    _, summary = found(setting, table.__getitem__, (50, 50))
    rows = {row["value"]: row for row in summary["tries"]}
    assert summary["ended"]
    assert len(rows) == len(summary["tries"])  # none twice
    assert set(rows) <= set(GRID)
    first, answer = summary["sentences"][0], summary["answer"]
    label = {"prefill_max_tokens": "prefill budget", "max_batch_size": "max batch"}[setting]
    if answer is None:
        assert not any(row["kept"] for row in rows.values())
        worst = {value: max(row["misses"].values()) for value, row in rows.items()}
        assert worst[summary["closest"]] == min(worst.values())
        assert first.startswith(f"No value between 16 and 1\u202f024 keeps both: {label} ")
        assert f"{label} {number_text(summary['closest'])} comes closest, it misses " in first
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
    """The spread of one value does not reach that of the next stop."""
    machine = rising(scale)
    limits = (itl, 1e5) if setting == SETTINGS[1] else (1e5, 1000 / itl)
    answers = [found(setting, machine, limits, noise=0.12, seed=seed + run)[1]["answer"] for run in range(2)]
    assume(None not in answers)
    places = [GRID.index(answer) for answer in answers]
    assert abs(places[0] - places[1]) <= 1


def test_a_search_that_was_cut_off_says_what_is_left() -> None:
    document, _ = found(SETTINGS[0], rising(1), (100, 20))
    document["tries"] = document["tries"][:2]
    summary = find_summary(document)
    assert (summary["answer"], summary["ended"]) == (None, False)
    assert summary["sentences"] == ["The search ended early: 48 to 96 are left."]
    assert [row["left"] for row in summary["tries"]][-1] == [48, 96]


def test_an_answer_whose_range_crosses_a_limit_says_so() -> None:
    assert misses(point(64, [10, 12, 30], [5, 5, 5]), {"itl_p99_ms": 20, "ttft_p95_ms": 9}) == {}
    document, _ = found(SETTINGS[0], lambda value: (10, 5), (20, 9))
    document["tries"][-1] = point(16, [10, 12, 30], [5, 5, 5])
    assert "Not in every repeat: the range of ITL p99 crosses the limit." in find_summary(document)["sentences"]


@pytest.mark.parametrize(
    ("low", "high", "grid"), [(1, 8, (1, 2, 3, 4, 6, 8)), (5, 5, (5,)), (9, 4, ()), (10, 20, (10, 12, 16, 20))]
)
def test_the_grid_has_the_powers_of_two_and_halves_between(low: int, high: int, grid: tuple[int, ...]) -> None:
    assert grid_between(low, high) == (grid or (9,))


def test_a_search_in_vain_says_where_the_repeats_disagree() -> None:
    document, _ = found(SETTINGS[0], lambda value: (30, 5), (20, 9))
    assert not any("Not in every repeat" in line for line in find_summary(document)["sentences"])
    document["tries"][-1] = point(16, [10, 25, 90], [5, 5, 5])
    said = find_summary(document)["sentences"]
    assert "Not in every repeat: at prefill budget 16 the ranges cross a limit, so more repeats may find one." in said
