"""The stage in a browser: what it shows of steps, of the queue and of a recording, and the limits that are dragged there."""

from __future__ import annotations

import re
from collections.abc import Callable

from playwright.sync_api import Locator, Page, expect

from tests.pages import Served, answer_at_most, ask, serving
from tests.play.fake_engine import FakeEngine
from tests.waiting import wait_until

DESCRIBED = "document.querySelector('#rp-stage canvas').getAttribute('aria-label')"


def mark(page: Page) -> Locator:
    return page.locator("#rp-stage .rp-mark")


def test_a_recording_plays_until_something_runs_here(open_page: Callable[..., Page]) -> None:
    engine = FakeEngine(run=True)
    with serving(engine) as served:
        page = open_page(served)
        expect(mark(page)).to_have_text("recorded")
        expect(page.locator("#rp-stage .rp-rt b")).to_have_text(re.compile(r"[\d.]+ m?s"))
        page.locator("#burst").click()  # it finds chats to interrupt
        expect(mark(page)).to_have_text("")
        for lane in range(1, 5):
            expect(page.locator(f"#rp-lane-{lane} h4")).to_have_text(re.compile("[?.]$"))
        wait_until(lambda: len(engine.streams) > 4)
        expect(page.locator("#rp-stage .rp-sub")).to_have_text(re.compile(r"^#\d+"))
        page.close()  # before its server


def test_a_cell_of_an_answer_explains_its_token_and_readers_hear_of_the_step(page: Page) -> None:
    answer_at_most(page, 900)
    ask(page, "hello")
    page.wait_for_function(f"() => /4 answers (got|waited)|Each of 4 answers/.test({DESCRIBED})")
    canvas = page.locator("#rp-stage canvas")
    box = canvas.bounding_box()
    assert box
    canvas.click(position={"x": 12 + 104 + 16 + 6, "y": 14})  # the first slot
    expect(page.locator(".rp-pop")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator(".rp-pop")).to_be_hidden()


def test_a_lane_says_that_its_reader_waits(mock: Served, page: Page) -> None:
    answer_at_most(page, 900, lane=1)
    ask(page, "hello")
    frozen = page.locator("#rp-lane-1 .rp-frozen")
    page.wait_for_function("() => document.querySelector('#rp-lane-1 .rp-itl').textContent.startsWith('ITL')")
    expect(frozen).to_have_text("")
    mock.engine.pause()
    try:
        expect(frozen).to_have_text(re.compile(r"^frozen \d\.\d s$"))  # it counts on
    finally:
        mock.engine.resume()
    expect(frozen).to_have_text("")
