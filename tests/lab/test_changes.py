"""The results of one value of a setting compared with those of another, in words."""

from __future__ import annotations

from typing import Any

from roseplay.lab.findings.finding import Level, rows_between
from roseplay.lab.measures import FIGURES_OF_A_RUN
from roseplay.lab.words import changes, level_text


def point(**figures: tuple[float | None, ...]) -> dict[str, Any]:
    """A point of two runs with these results, and 5 for all others."""
    runs = [
        {**dict.fromkeys(FIGURES_OF_A_RUN, 5.0), **{name: values[number] for name, values in figures.items()}}
        for number in (0, 1)
    ]
    return {"value": 1.0, "requests": 4, "runs": runs}


def test_what_changed_is_told_as_a_ratio_and_what_did_not_is_marked() -> None:
    before, after = point(ttft_p95_ms=(100, 110)), point(ttft_p95_ms=(205, 215), itl_p99_ms=(4.9, 5.1))
    names = ("ttft_p95_ms", "itl_p99_ms")
    assert changes(rows_between(before, after, names)) == "TTFT p95 2.00×, ITL p99 1.00× (within the spread)"
    assert changes(rows_between(after, before, names[:1])) == "TTFT p95 0.50×"


def test_what_could_not_be_measured_is_left_out() -> None:
    before, after = point(ttft_p95_ms=(None, None)), point()
    assert changes(rows_between(before, after, ("ttft_p95_ms",))) == "nothing that could be measured"
    assert changes(rows_between(before, after, ("ttft_p95_ms", "itl_p99_ms"))) == "ITL p99 1.00× (within the spread)"


def test_a_figure_has_its_median_and_range() -> None:
    assert level_text(Level.of(point(ttft_p95_ms=(170, 190)), "ttft_p95_ms")) == "180 ms (170–190)"
