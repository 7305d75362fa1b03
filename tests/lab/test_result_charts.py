"""The two charts of a comparison: the distributions of gaps and of first tokens in either arm."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest

from roseplay.lab.report import html_report
from roseplay.lab.results import parse_result
from tests.lab.test_points_report import drawn

FILE = Path(__file__).with_name("result.json")


@pytest.fixture
def document() -> dict[str, Any]:
    return parse_result(FILE.read_bytes())


def pooled(document: dict[str, Any], arm: str) -> list[float]:
    return sorted(gap for run in document["runs"] if run["arm"] == arm for gap in run["itl_ms"])


def test_gaps_are_drawn_by_the_share_that_is_longer(document: dict[str, Any]) -> None:
    chart, _ = drawn(html_report(document))
    for trace, arm in zip(chart["traces"], "AB", strict=True):
        gaps = pooled(document, arm)
        assert (trace["name"], trace["x"]) == (arm, gaps)
        assert trace["y"] == pytest.approx(
            [-math.log10(1 - place / (len(gaps) + 1)) for place in range(1, len(gaps) + 1)]
        )
    axis = chart["layout"]["yaxis"]
    known = (0, 50, 90, 99, 99.9, 99.99)
    longest = max(len(pooled(document, arm)) for arm in "AB")
    shown = [percent for percent in known if -math.log10(1 - percent / 100) <= math.log10(longest + 1)]
    assert axis["tickvals"] == pytest.approx([-math.log10(1 - percent / 100) for percent in shown])
    assert axis["ticktext"] == ["0", *(f"p{percent:g}" for percent in shown[1:])]
    assert [shape["x0"] for shape in chart["layout"]["shapes"]] == [document["limits"]["itl_ms"]]


def test_first_tokens_are_drawn_by_the_share_of_requests(document: dict[str, Any]) -> None:
    _, chart = drawn(html_report(document))
    for trace, arm in zip(chart["traces"], "AB", strict=True):
        runs = [run for run in document["runs"] if run["arm"] == arm]
        times = sorted(request["ttft_ms"] for run in runs for request in run["requests"])
        assert (trace["name"], trace["x"]) == (arm, times)
        assert trace["y"] == pytest.approx([100 * place / len(times) for place in range(1, len(times) + 1)])
    assert chart["layout"]["yaxis"]["range"] == [0, 101]
    assert [shape["x0"] for shape in chart["layout"]["shapes"]] == [document["limits"]["ttft_ms"]]


def test_a_curve_of_many_gaps_is_thinned_but_not_its_tail(document: dict[str, Any]) -> None:
    run = document["runs"][0]
    run["itl_ms"] = [float(gap) for gap in range(1, 5001)]
    document["runs"] = [run, *(other for other in document["runs"] if other["arm"] != run["arm"])]
    chart, _ = drawn(html_report(document))
    (trace,) = (trace for trace in chart["traces"] if trace["name"] == run["arm"])
    assert trace["x"] == [*range(1, 4001, 4), *range(4001, 5001)]
    assert len(trace["y"]) == len(trace["x"])


def test_settings_that_differ_come_first(document: dict[str, Any]) -> None:
    document["arms"]["B"]["knobs"]["prefill_max_tokens"] = None
    report = html_report(document)
    table = report[report.index("<h2>Settings ") :]
    names = re.findall(r'<tr[^>]*><td>[^<]* <span class="quiet">(\w+)</span></td>', table)
    differs = document["arms"]["A"]["differs"]
    assert differs and names[: len(differs)] == differs
    assert "<td>unlimited</td>" in table
