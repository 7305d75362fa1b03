"""The charts of sweeps and searches: which values kept their promises, levels, ranges and axes."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from roseplay.lab.report import html_report
from tests.lab.test_points_report import BATCHES, FIND, RATES, drawn, level, measured


@pytest.mark.parametrize(("ttft_ms", "kept"), [(1e5, True), (0.01, False)])
def test_tries_that_kept_their_promises_are_named(ttft_ms: float, kept: bool) -> None:
    document = measured({**FIND, "find": {**FIND["find"], "itl_p99_ms": 1e5, "ttft_p95_ms": ttft_ms}})
    assert {row["kept"] for row in document["summary"]["points"]} == {kept}
    for chart in drawn(html_report(document)):
        full, empty = chart["traces"][:2] if kept else chart["traces"][1::-1]
        assert (full["name"], empty["name"]) == (("kept", "broken") if kept else ("broken", "kept"))
        assert (full["showlegend"], empty["showlegend"]) == (True, False)
        assert len(full["x"]) == len(document["points"])


def test_ranges_are_drawn_beside_medians_and_axes_leave_room() -> None:
    figures = {"ttft_p95_ms": [100.0] * 5, "itl_p99_ms": [40.0] * 5, "goodput_req_s": [1.0] * 5}
    document = measured(RATES, **figures, output_tokens_per_s=[10.0, 20.0, 30.0, 40.0, 50.0])
    ttft, itl, goodput = drawn(html_report(document))
    errors = ttft["traces"][0]
    assert errors["error_y"]["array"] == pytest.approx([1] * 5) == errors["error_y"]["arrayminus"]
    assert errors["error_x"]["array"] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])
    assert not errors["error_y"]["symmetric"]
    assert "error_x" not in goodput["traces"][0] or goodput["traces"][0]["error_x"] == {}
    assert errors["text"] == [f"{rate} req/s" for rate in (50, 60, 70, 80, 90)]
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


def test_settings_that_only_a_gpu_has_are_off_elsewhere() -> None:
    report = html_report(measured(BATCHES))
    assert "<td>cuda_graphs</td><td>off</td>" in report
    assert "<td>max_batch_size</td>" not in report  # this setting varies
