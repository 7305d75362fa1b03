"""Reports of results, which are pages of their own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from roseplay.extras.lab.report import html_report
from roseplay.extras.lab.results import parse_result
from tests.browsers import new_page
from tests.extras.lab.browser.test_lab import DOCUMENT
from tests.extras.lab.test_points_report import BATCHES, FIND, measured

# What the views of a report say for who cannot see them, by the kind of its result.
VIEWS = {
    "compare": (
        "94.2 → 14.0 ms",
        "worst 104 ms of 1488",
        "p95 289 ms of 48",
        "A: 1 of 48, B: 24 of 48",
        "A, repeat 1: ",
    ),
    "sweep": ("p95. 1: 5 ms, .*4: 5 ms, .*16: 5 ms", "p99. 1: 5 ms", "1: 30.9 requests/s, 100"),
    "find": ("p99. ∞: 5 ms", "p95. ∞: 5 ms", "at first 16 – ∞, after try 1 ∞"),
}


@pytest.mark.parametrize("kind", VIEWS)
def test_a_report_of_the_lab_opens_from_a_file_and_shows_all_its_views(
    kind: str, browser: Browser, tmp_path: Path
) -> None:
    if kind == "compare":
        document = parse_result(DOCUMENT.read_bytes())
    else:
        document = measured(BATCHES if kind == "sweep" else FIND)
    path = tmp_path / "report.html"
    path.write_text(html_report(document), encoding="utf-8")
    page, complaints = new_page(browser), list[str]()
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda r: not r.url.startswith(("file:", "data:", "blob:")) and complaints.append(r.url))
    page.goto(path.as_uri())
    views = page.locator("canvas")
    for view, words in zip(views.all(), VIEWS[kind], strict=True):
        expect(view).to_have_attribute("aria-label", re.compile(words))  # those out of sight, too
    first = page.locator(".view canvas").first
    first.press("ArrowRight" if kind != "compare" else "ArrowUp")
    expect(page.locator(".view .rp-sub").first).to_have_text(re.compile(r"^(1: 5 ms|∞: 5 ms|p\d+.*: A .* ms · B)"))
    page.close()
    assert complaints == []
