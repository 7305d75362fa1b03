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


def limit(page: Page, name: str) -> Locator:
    return page.locator("#rp-stage").get_by_role("slider", name=name)


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


def test_a_limit_is_dragged_on_an_untouched_page_and_its_slider_follows(open_page: Callable[..., Page]) -> None:
    engine = FakeEngine(run=True)
    with serving(engine) as served:
        page = open_page(served)
        budget, slider = limit(page, "Prefill budget"), page.locator("#budget input[type=range]")
        expect(mark(page)).to_have_text("recorded")
        expect(budget).to_have_attribute("aria-disabled", "false")
        budget.press("ArrowDown")  # from unlimited
        wait_until(lambda: engine.knobs.prefill_max_tokens == 2048)
        expect(mark(page)).to_have_text("")
        expect(budget).to_have_attribute("aria-valuetext", "2048")
        expect(slider).to_have_attribute("aria-valuetext", "2048")
        box = budget.bounding_box()
        assert box
        page.mouse.move(box["x"] + 20, box["y"] + 8)
        page.mouse.down()
        page.mouse.move(box["x"] + 20, box["y"] + 150, steps=5)
        page.mouse.up()
        wait_until(lambda: (engine.knobs.prefill_max_tokens or 0) < 2048)
        for control in (budget, slider):
            expect(control).to_have_attribute("aria-valuetext", str(engine.knobs.prefill_max_tokens))
        batch = limit(page, "Max batch")
        batch.press("ArrowLeft")
        wait_until(lambda: engine.knobs.max_batch_size == 31)
        expect(page.locator("#max-batch input[type=range]")).to_have_js_property("value", "31")
        expect(batch).to_have_attribute("aria-valuetext", "31")
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


def test_a_step_of_the_past_has_the_limits_that_it_had(mock: Served, page: Page) -> None:
    answer_at_most(page, 3)
    events, ended = mock.engine.telemetry.reader(), []
    ask(page, "hello")

    def all_ended() -> bool:
        ended.extend(event for event in events.read() if getattr(event, "kind", "") == "finished")
        return len(ended) == 4

    wait_until(all_ended)  # so that no step comes after the change
    about = page.locator("#rp-stage .rp-sub")
    expect(about).to_contain_text("the slowest shown")
    mock.engine.set_knobs(max_batch_size=11)  # which no other test sets
    expect(about).to_have_text(re.compile(r"the slowest shown.*, batch \d+$"))


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
