"""The summary of a sweep: the knee, the peak of goodput, and values that contradict each other."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roseplay.extras.lab.results import parse_result, summary_of
from roseplay.extras.lab.words import sentences
from tests.extras.lab.findings import finding, point

Runs = list[list[float]]
LIMITS = {"ttft_ms": 500, "itl_ms": 50}
VALUES = (10, 25.7, 41.4, 57.1, 72.9, 88.6, 104.3, 120)


def summed(setting: str = "rate_per_s", values: Any = VALUES, **figures: Any) -> dict[str, Any]:
    """The summary of a sweep with these results in the runs of its values, and 5 for all others."""
    points = []
    for value, *runs in zip(values, *figures.values(), strict=False):
        lengths = {"prompt_tokens": [value] * len(runs[0])}
        points.append(point(value, **{**lengths, **dict(zip(figures, runs, strict=True))}))
    arms = {"A": {"knobs": {}, "config": {}}}
    return summary_of({"kind": "sweep", "points": points, "setting": setting, "limits": LIMITS, "arms": arms})


def thrice(*medians: float | None) -> list[list[Any]]:
    """Three runs each, 2 % apart."""
    return [[None] * 3 if median is None else [median, median * 0.99, median * 1.01] for median in medians]


def test_prompts_whose_mean_length_is_off_by_more_than_a_twentieth_are_mentioned() -> None:
    found = summed("prompt_tokens", (100, 200, 400), prompt_tokens=[[105.0], [189.0], [421.0]])
    assert "Prompts consist of whole texts, so their mean lengths differ: 189 at 200, 421 at 400." in sentences(found)


# -- the knee of a rate


@pytest.mark.parametrize(
    ("ttft", "knee", "said"),
    [
        ((30, 40, 60, 480, 900, 1500, 2600, 4000), 3, "The knee is at 57.1 requests/s: every rate up to it keeps both limits; there, TTFT p95 is 480 ms (475–485, limit 500 ms) and ITL p99 is 5 ms (limit 50 ms). At 72.9 requests/s, TTFT p95 is 900 ms (891–909, limit 500 ms)."),
        # 88.6 requests/s keeps the limits and latency turns up after it, but two lower rates do not.
        ((30, 40, 60, 800, 700, 90, 2600, 4000), 2, "The knee is at 41.4 requests/s: every rate up to it keeps both limits; there, TTFT p95 is 60 ms (59.4–60.6, limit 500 ms) and ITL p99 is 5 ms (limit 50 ms). At 57.1 requests/s, TTFT p95 is 800 ms (792–808, limit 500 ms). The rates disagree: both limits are kept at 88.6 requests/s, but not at 57.1 and 72.9 requests/s."),
        # A value equal to the limit keeps it.
        ((30, 40, 500), None, "No knee up to 41.4 requests/s: every rate keeps both limits; at 41.4 requests/s, TTFT p95 is 500 ms (495–505, limit 500 ms) and ITL p99 is 5 ms (limit 50 ms)."),
        ((501, 800, 900), None, "No knee from 10 requests/s to 41.4 requests/s: the lowest rate exceeds a limit already, TTFT p95 is 501 ms (496–506, limit 500 ms)."),
        ((600, 800, 400, 900, 450), None, "No knee from 10 requests/s to 72.9 requests/s: the lowest rate exceeds a limit already, TTFT p95 is 600 ms (594–606, limit 500 ms). The rates disagree: both limits are kept at 41.4 and 72.9 requests/s, but not at 10, 25.7 and 57.1 requests/s."),
    ],
)  # fmt: skip
def test_the_knee_is_the_largest_rate_up_to_which_every_rate_keeps_the_limits(
    ttft: tuple[float, ...], knee: int | None, said: str
) -> None:
    found = summed(ttft_p95_ms=thrice(*ttft))
    assert (found["knee"], sentences(found)[0]) == (knee, said)


def test_either_figure_exceeds_its_limit() -> None:
    found = summed(ttft_p95_ms=thrice(30, 40, 60), itl_p99_ms=thrice(10, 50, 51))
    assert found["knee"] == 1
    assert sentences(found)[0].endswith(" At 41.4 requests/s, ITL p99 is 51 ms (50.5–51.5, limit 50 ms).")
    both = summed(ttft_p95_ms=thrice(30, 501), itl_p99_ms=thrice(10, 51))
    assert (
        "TTFT p95 is 501 ms (496–506, limit 500 ms) and ITL p99 is 51 ms (50.5–51.5, limit 50 ms)."
        in sentences(both)[0]
    )


def test_the_median_of_the_runs_keeps_the_limits_and_a_ttft_that_is_not_known_does_not() -> None:
    kept = summed(ttft_p95_ms=[[10.0] * 3, [400.0, 900.0, 500.0], [400.0, 900.0, 501.0]])
    assert [row["kept"] for row in kept["points"]] == [True, True, False]
    unknown = summed(ttft_p95_ms=thrice(30, None), itl_p99_ms=thrice(None, None))
    assert [row["kept"] for row in unknown["points"]] == [True, False], "answers of one token have no gaps"
    assert unknown["knee"] == 0


RUNS = st.lists(st.lists(st.sampled_from([40, 90, 499, 500, 501, 900]), min_size=1, max_size=3), min_size=1, max_size=8)


@given(RUNS)
def test_the_knee_never_contradicts_the_table(ttft: Runs) -> None:
    found = summed(ttft_p95_ms=ttft)
    kept = [statistics.median(runs) <= 500 for runs in ttft]
    assert [row["kept"] for row in found["points"]] == kept
    knee, told = found["knee"], finding(found, "Knee")
    assert told and told["knee"] == (None if knee is None else VALUES[knee])
    if knee is not None:
        assert all(kept[: knee + 1]) and not kept[knee + 1]
    else:
        assert all(kept) or not kept[0]
    overtaken = any(not low and high for place, high in enumerate(kept) for low in kept[:place])
    assert bool(told["keeping"]) == bool(told["breaking"]) == overtaken


def test_a_figure_that_falls_is_told_only_beyond_the_spread_and_the_largest_of_them() -> None:
    for ttft in (
        [[20.0, 30.0], [19.0, 21.0]],  # the ranges overlap
        [[20.0, 20.0], [19.2, 19.3]],  # a ratio below 1.05
        [[20.0], [18.0]],  # only one run each
        thrice(20, 30),
    ):
        assert finding(summed(ttft_p95_ms=ttft), "Falling") is None
    figures = {"ttft_p95_ms": thrice(20, 30, 15, 40), "itl_p99_ms": thrice(40, 10, 20, 45)}
    assert sentences(summed(**figures))[-1] == (
        "ITL p99 does not rise with the rate throughout: it is 40 ms (39.6–40.4) at 10 requests/s and 10 ms (9.90–10.1) at 25.7"
        " requests/s."
    )
    assert finding(summed(setting="max_batch_size", **figures), "Falling") is None


# -- the bend of a setting

POWERS = [float(2**power) for power in range(9)]


def test_the_knee_of_a_setting_is_where_itl_turns_up() -> None:
    found = summed("max_batch_size", POWERS, itl_p99_ms=thrice(*[10] * 6, 60, 120, 180))
    assert found["knee"] == 5
    assert sentences(found)[0] == (
        "The knee is at max batch 32: ITL p99 is 10 ms (9.90–10.1) there, 180 ms (178–182) at max batch 256."
    )


@pytest.mark.parametrize(
    "latency",
    [
        thrice(*range(10, 19)),  # a straight line
        [[10.0, 12.0, 11.0]] * 9,  # no change
        [[10.0, 30.0, 12.0], [9.0, 28.0, 10.0], [9.5, 31.0, 10.0], [10.0, 33.0, 20.0]],  # within the spread
        thrice(40, 20, 10),  # falling
        thrice(10, 90),  # two points have no bend
        thrice(10, 10, 60, 11, 100),  # the bend would be at 8, but 4 is worse
    ],
)
def test_there_may_be_no_knee_of_a_setting(latency: Runs) -> None:
    found = summed("max_batch_size", POWERS, itl_p99_ms=latency)
    assert found["knee"] is None
    assert sentences(found)[0].startswith(f"No knee up to max batch {2 ** (len(latency) - 1)}: ")


@pytest.mark.parametrize(("bent", "knee"), [(33.9, 1), (34.1, None)])
def test_a_knee_of_a_setting_lies_a_fifth_of_the_range_below_the_line(bent: float, knee: int | None) -> None:
    """Halfway from 1 to 4 on a log scale, the line from 10 to 90 is at 50; a fifth of the range below that is 34."""
    found = summed("max_batch_size", [1.0, 2.0, 4.0], itl_p99_ms=[[value] * 2 for value in (10.0, bent, 90.0)])
    assert found["knee"] == knee


# -- goodput


@given(st.lists(st.lists(st.floats(0.1, 9), min_size=2, max_size=2), min_size=1, max_size=8))
def test_goodput_peaks_only_where_it_clearly_rises_up_to_there_and_falls_after(goodput: Runs) -> None:
    found = summed(goodput_req_s=goodput)
    peak, told = found["peak"], finding(found, "Peak")
    medians = [row["figures"]["goodput_req_s"]["median"] for row in found["points"]]
    if peak is None:
        assert told["ties"] or told["dips"] or told["value"] in (VALUES[0], VALUES[len(goodput) - 1])
        return
    assert medians[peak] == max(medians)
    assert 0 < peak < len(goodput) - 1
    assert told["value"] == VALUES[peak]
    assert all(max(goodput[place]) < min(goodput[peak]) for place in range(len(goodput)) if place != peak)


@pytest.mark.parametrize(
    ("goodput", "said"),
    [
        ([0.0, 0.0, 0.0], "No request stays within the limits from 10 requests/s to 41.4 requests/s."),
        ([7.0], "Goodput is 7 requests/s (6.93–7.07) at 10 requests/s."),
        ([7.0, 7.1, 7.0], "Goodput is 7.10 requests/s (7.03–7.17) at 25.7 requests/s; every other value is within the spread of 3 repeats."),
        ([10.0, 25.0, 40.0, 5.0, 6.0, 60.0, 20.0, 10.0], "Goodput is highest at 88.6 requests/s: 60 requests/s (59.4–60.6); it has a dip at 57.1 requests/s, 72.9 requests/s."),
        ([10.0, 25.0, 40.0, 5.0, 6.0], "Goodput is highest at 41.4 requests/s: 40 requests/s (39.6–40.4); it has a dip at 57.1 requests/s."),
        ([3.0, 9.0, 5.0], "Goodput peaks at 25.7 requests/s: 9 requests/s (8.91–9.09)."),
        ([3.0, 5.0, 9.0], "Goodput is highest at 41.4 requests/s, an end of the range: 9 requests/s (8.91–9.09)."),
        ([9.0, 5.0, 3.0], "Goodput is highest at 10 requests/s, an end of the range: 9 requests/s (8.91–9.09)."),
        ([3.0, 9.0, 8.9], "Goodput is highest at 25.7 requests/s: 9 requests/s (8.91–9.09); 41.4 requests/s: within the spread of 3 repeats."),
    ],
)  # fmt: skip
def test_what_is_said_of_goodput(goodput: list[float], said: str) -> None:
    found = summed(goodput_req_s=thrice(*goodput))
    assert (sentences(found)[1], found["peak"]) == (said, 1 if " peaks " in said else None)


def test_the_ends_are_compared_and_a_single_value_is_not() -> None:
    said = sentences(summed(ttft_p95_ms=thrice(20, 30, 60)))
    assert said[2].startswith("From 10 requests/s to 41.4 requests/s: ") and "TTFT p95 ×3.00" in said[2]
    assert len(sentences(summed(ttft_p95_ms=thrice(20)))) == 2


def test_a_sweep_that_was_saved_before_is_summed_anew() -> None:
    """It contains what each run measured, and a summary that says something else."""
    saved = json.loads((Path(__file__).parent / "sweep.json").read_text(encoding="utf-8"))
    saved["summary"] = {**saved["summary"], "knee": 3, "findings": []}
    opened = parse_result(json.dumps(saved).encode())
    assert opened["points"] == saved["points"]
    assert [row["kept"] for row in opened["summary"]["points"]] == [False, True, False, False, False]
    assert opened["summary"]["knee"] is None
    assert sentences(opened["summary"])[0].endswith("both limits are kept at 11.5 requests/s, but not at 2 requests/s.")
