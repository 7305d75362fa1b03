"""The script that ``roseplay bench browser`` runs in a page, on a page that streams."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from roseplay.extras.bench import probe
from tests.pages import Served, ask, state


@pytest.mark.slow
def test_it_follows_tokens_to_the_screen(live: Served, open_page: Callable[..., Page]) -> None:
    page = open_page(live)
    live.engine.set_knobs(slow_motion=24.0)  # so that an answer spans several polls
    page.evaluate(probe.SCRIPT)
    page.evaluate("roseProbe.start()")
    ask(page, "What is a KV block? Tell me all about it.")
    for lane in range(1, 5):
        expect(state(page, lane)).to_have_text(re.compile("done"), timeout=60_000)
    figures = probe.figures(page.evaluate("roseProbe.read()"))
    assert figures["tokens_to_screen"] > 20
    assert figures["to_screen_ms"]["p50"] < 10_000
    assert figures["frames_per_s"] > 0
    assert figures["polls_per_s"] > 0
