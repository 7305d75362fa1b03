"""The report of a sweep or a search says what the document says and loads nothing."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from roseplay.extras.lab.report import html_report
from roseplay.extras.lab.results import parse_result
from roseplay.formats.segments import as_html
from tests.extras.lab.fake_arms import ran

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
