"""A run's report is drawn in the page's type, though it needs nothing of the page."""

from __future__ import annotations

import re

from roseplay.formats.report_page import report_page
from roseplay.play.web.assets import STATIC


def test_a_report_brings_the_page_s_type_along() -> None:
    """It is one file: what it shows must not depend on where it is opened."""
    page = next(STATIC.rglob("base.css")).read_text(encoding="utf-8")
    faces = re.findall(r'font-family: "(RP \w+)";\s+font-weight: (\d+)', page)
    report = report_page("title", [])
    assert re.findall(r'font-family: "(RP \w+)";\s+font-weight: (\d+)', report) == faces
    assert report.count("src: url(data:font/woff2;base64,d09GMg") == len(faces) == 4
    assert "http" not in report
