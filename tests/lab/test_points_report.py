"""The report of a sweep or a search: its charts, and that it says what the document says and loads nothing."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import pytest

from roseplay.formats.segments import as_html
from roseplay.lab.report import html_report
from roseplay.lab.results import parse_result
from tests.lab.fake_arms import ran

BODY = {"scenario": "poisson", "repeats": 2, "params": {"num_requests": 2, "max_new_tokens": 3}, "name": "<b>mine"}
RATES = {**BODY, "sweep": {"setting": "rate_per_s", "from": 50, "to": 90, "points": 5}}
BATCHES = {**BODY, "sweep": {"setting": "max_batch_size", "from": 1, "to": 16, "points": 3}}
FIND = {**BODY, "find": {"setting": "prefill_max_tokens", "itl_p99_ms": 40, "ttft_p95_ms": 300}}


def measured(body: dict[str, Any], **figures: list[float]) -> dict[str, Any]:
    """The document of a job, with ``figures`` in place of what was measured at its values."""
    document, _ = ran(body)
    for name, values in figures.items():
        for point, value in zip(document["points"], values, strict=True):
            for run, off in zip(point["runs"], (0.99, 1.01), strict=True):
                run[name] = value * off
    return parse_result(json.dumps(document).encode())


def drawn(report: str) -> list[dict[str, Any]]:
    """The charts of a report, each with its traces and its layout."""
    found = []
    for call in re.finditer(r"Plotly\.newPlot\(\s*\"chart-\d+\",\s*", report):
        traces, end = json.JSONDecoder().raw_decode(report[call.end() :])
        layout, _ = json.JSONDecoder().raw_decode(report[call.end() + end :].lstrip(", \n"))
        found.append({"traces": traces, "layout": layout, "names": [trace.get("name") for trace in traces]})
    return found


def level(chart: dict[str, Any]) -> list[float]:
    return [shape["y0"] for shape in chart["layout"].get("shapes", [])]


def test_a_sweep_of_the_rate_is_drawn_against_throughput_with_its_knee_and_its_limits() -> None:
    document = measured(
        RATES,
        ttft_p95_ms=[100, 100, 100, 100, 900],
        itl_p99_ms=[5, 5, 5, 5, 5],
        goodput_req_s=[1, 2, 5, 2, 1],
        output_tokens_per_s=[10, 20, 30, 40, 41],
    )
    ttft, itl, goodput = drawn(html_report(document))
    assert ttft["traces"][0]["x"] == [10, 20, 30, 40, 41]
    assert ttft["traces"][0]["y"] == pytest.approx([100, 100, 100, 100, 900])
    assert (ttft["traces"][1]["x"], ttft["traces"][1]["name"]) == ([40], "knee at 80 requests/s")
    assert ("limit 500" in ttft["names"], level(ttft)) == (True, [500])
    assert ("limit 50, above the chart" in itl["names"], level(itl)) == (True, [])
    assert goodput["traces"][0]["x"] == [50, 60, 70, 80, 90]
    assert goodput["names"][1] == "peak at 70 requests/s"


def test_a_sweep_of_a_knob_is_drawn_against_its_values() -> None:
    for chart in drawn(html_report(measured(BATCHES))):
        assert chart["traces"][0]["x"] == [1, 4, 16]
        assert chart["layout"]["xaxis"]["type"] == "log"
        assert chart["layout"]["xaxis"]["ticktext"] == ["1", "4", "16"]


def test_a_search_is_drawn_with_its_tries_numbered_and_its_limits() -> None:
    document = measured({**FIND, "find": {**FIND["find"], "itl_p99_ms": 1e4, "ttft_p95_ms": 0.01}})
    tries = len(document["points"])
    for chart, limit in zip(drawn(html_report(document)), ("limit 0.01", "limit 10000"), strict=True):
        kept, broken = chart["traces"][:2]
        assert (kept["name"], kept["showlegend"]) == ("kept", False)
        assert (broken["name"], broken["showlegend"]) == ("exceeded", True)
        assert broken["text"] == [str(number + 1) for number in range(tries)]
        assert kept["marker"]["color"] != broken["marker"]["color"]
        assert any(name.startswith(limit) for name in chart["names"])
        assert chart["layout"]["xaxis"]["ticktext"][-1] == "unlimited"
        assert max(broken["x"]) == chart["layout"]["xaxis"]["tickvals"][-1] == 2 * 2048
    for chart in drawn(html_report(measured(FIND))):
        kept, broken = chart["traces"][:2]
        assert (len(kept["x"]), kept["showlegend"], broken["showlegend"]) == (1, True, False)


@pytest.mark.parametrize("body", [RATES, BATCHES, FIND])
def test_a_report_says_what_the_document_says_and_loads_nothing(body: dict[str, Any]) -> None:
    document = measured(body)
    report = html_report(document)
    page = re.sub(r"<script.*?</script>", "", report, flags=re.DOTALL)
    assert all(as_html(found["words"]) in page for found in document["summary"]["findings"])
    assert "&lt;b&gt;mine" in page and "<b>mine" not in page
    assert "http" not in page and "src=" not in re.sub(r"src: url\(data:", "", page)
    rows = document["summary"]["points"]
    assert page.count(">kept</td>") + page.count(">broken</td>") == len(rows)
    assert body is RATES or f"<td>{document['setting']}</td>" not in page  # the settings are those of all values


def test_ranges_are_drawn_beside_medians_and_axes_leave_room() -> None:
    figures = {"ttft_p95_ms": [100.0] * 5, "itl_p99_ms": [40.0] * 5, "goodput_req_s": [1.0] * 5}
    document = measured(RATES, **figures, output_tokens_per_s=[10.0, 20.0, 30.0, 40.0, 50.0])
    ttft, itl, goodput = drawn(html_report(document))
    errors = ttft["traces"][0]
    assert errors["error_y"]["array"] == pytest.approx([1] * 5) == errors["error_y"]["arrayminus"]
    assert errors["error_x"]["array"] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])
    assert not errors["error_y"]["symmetric"]
    assert "error_x" not in goodput["traces"][0] or goodput["traces"][0]["error_x"] == {}
    assert errors["text"] == [f"{rate} requests/s" for rate in (50, 60, 70, 80, 90)]
    assert ttft["layout"]["yaxis"]["range"] == pytest.approx([0, 1.08 * 101])  # its limit is far above
    assert (level(itl), itl["layout"]["yaxis"]["range"]) == ([50], pytest.approx([0, 1.08 * 50]))
    assert goodput["layout"]["yaxis"]["range"] == pytest.approx([0, 1.08 * 1.01])
    assert ttft["layout"]["xaxis"]["rangemode"] == "tozero"


def test_a_level_is_drawn_up_to_half_above_the_data() -> None:
    top = 500 / 1.5 / 1.08 / 1.01  # the limit for TTFT is 500 ms
    for factor, shown in ((1.01, [500]), (0.99, [])):
        document = measured(BATCHES, ttft_p95_ms=[factor * top] * 3)
        assert level(drawn(html_report(document))[0]) == shown


def test_values_of_a_knob_are_on_a_logarithmic_axis_with_few_words() -> None:
    body: dict[str, Any] = {**BATCHES, "sweep": {"setting": "max_batch_size", "from": 1, "to": 32, "points": 24}}
    axis = drawn(html_report(measured(body)))[0]["layout"]["xaxis"]
    assert axis["range"] == pytest.approx([-0.1, 1.60515], abs=1e-4)
    assert axis["tickvals"][:3] == [1, 2, 3]
    least = 32 ** (1 / 12)
    words = [float(word) for word in axis["ticktext"] if word]
    assert words[0] == 1 and all(high / low >= least for low, high in itertools.pairwise(words))
    assert 6 < len(words) < len(axis["tickvals"])
