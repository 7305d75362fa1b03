"""A run's report is drawn in the page's colours, though it needs nothing of the page."""

from __future__ import annotations

import re

from roseplay.play.web.assets import STATIC
from roseplay.report_page import COLOURS


def test_a_report_has_the_colours_of_the_page() -> None:
    light = next(STATIC.rglob("tokens.css")).read_text(encoding="utf-8").partition("body.dark")[0]
    page = dict(re.findall(r"--rp-(\w+): (#[0-9A-Fa-f]{6})", light))
    assert {name: page.get(name) for name in COLOURS} == COLOURS
