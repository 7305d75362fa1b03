"""Chats in lanes: they stream, survive a reload, and belong to their tab."""

from __future__ import annotations

import re
from collections.abc import Callable

from playwright.sync_api import Page, expect

from tests.browser.conftest import Served, ask, ready, state, text

Open = Callable[..., Page]
RUNNING = re.compile(r"decode · \d+\+[1-9]\d* tok")


def test_a_prompt_streams_in_all_lanes(live: Served, open_page: Open) -> None:
    page = open_page(live)
    ask(page, "What is a KV block?")
    for lane in range(1, 5):
        expect(page.locator(f"#rp-lane-{lane} h4")).to_have_text("What is a KV block?")
        expect(state(page, lane)).to_have_text(re.compile(r"(done|length) · \d+\+[1-9]\d* tok"), timeout=60_000)
        expect(text(page, lane)).to_have_text(re.compile(r"\w+ \w+ \w+"))
        expect(page.locator(f"#rp-lane-{lane} .rp-ttft")).to_have_text(re.compile(r"TTFT [\d.]+ m?s"))
        expect(page.locator(f"#rp-lane-{lane} .rp-itl")).to_have_text(re.compile(r"ITL [\d.]+ ms"))
    expect(page.locator("#prompt input")).to_have_value("")


def test_a_question_in_an_empty_lane_can_be_asked(mock: Served, open_page: Open) -> None:
    page = open_page(mock)
    page.locator("#rp-lane-2 .rp-hint button").click()
    expect(state(page, 2)).to_have_text(RUNNING)
    expect(state(page, 1)).to_be_empty()


def test_one_lane_can_be_asked_and_stopped(mock: Served, open_page: Open) -> None:
    page = open_page(mock)
    page.locator("#to input").click()
    page.get_by_role("option", name=re.compile("lane 3")).click()
    ask(page, "hello")
    expect(state(page, 3)).to_have_text(RUNNING)
    expect(state(page, 1)).to_be_empty()
    page.get_by_role("button", name="Stop lane 3").click()
    expect(state(page, 3)).to_have_text(re.compile(r"stopped · \d+\+\d+ tok"))


def test_reload_keeps_the_text(mock: Served, open_page: Open) -> None:
    page = open_page(mock)
    ask(page, "hello")
    expect(state(page, 4)).to_have_text(RUNNING)
    expect(text(page, 4)).to_contain_text("packs prompts")
    expect(page.locator("#prompt input")).to_have_value("")  # Gradio complains of what a reload cuts off
    before = page.locator("#rp-lane-4 .rp-a").inner_text()
    page.reload()
    ready(page)
    expect(text(page, 4)).to_contain_text(before[:40])
    expect(state(page, 4)).to_have_text(re.compile(r"(decode|length) · 5\+[1-9]\d* tok"))
    expect(page.locator("#rp-lane-4 h4")).to_have_text("hello")


def test_two_tabs_do_not_fight(mock: Served, open_page: Open) -> None:
    mine, yours = open_page(mock), open_page(mock)
    ask(mine, "mine")
    ask(yours, "yours")
    expect(state(mine, 1)).to_have_text(RUNNING)
    expect(state(yours, 1)).to_have_text(RUNNING)
    mine.locator("#stop").click()
    for lane in range(1, 5):
        expect(state(mine, lane)).to_have_text(re.compile("stopped"))
    expect(state(yours, 1)).to_have_text(RUNNING)
    expect(mine.locator("#rp-lane-1 h4")).to_have_text("mine")
    expect(yours.locator("#rp-lane-1 h4")).to_have_text("yours")


def test_html_of_a_model_is_text(mock: Served, open_page: Open) -> None:
    page = open_page(mock)
    ask(page, "<img src=x onerror=alert(1)> & <b>bold</b>")
    expect(text(page, 1)).to_contain_text("waits <b>long</b> für 🌹")
    expect(page.locator("#rp-lane-1 h4")).to_have_text("<img src=x onerror=alert(1)> & <b>bold</b>")
    assert page.locator(".rp-lanes :is(img, .rp-text b, h4 b)").count() == 0


def test_the_text_stays_where_the_reader_scrolled(mock: Served, open_page: Open) -> None:
    page = open_page(mock)
    ask(page, "hello")
    box = text(page, 1)
    expect(box).to_have_js_property("scrollTop", 0)
    page.wait_for_function(
        "() => { const t = document.querySelector('#rp-lane-1 .rp-text'); return t.scrollHeight > t.clientHeight + 100; }"
    )
    follows = "() => { const t = document.querySelector('#rp-lane-1 .rp-text'); return t.scrollHeight - t.scrollTop - t.clientHeight < 30; }"
    page.wait_for_function(follows)
    box.evaluate("t => t.scrollTo(0, 10)")
    length = len(box.inner_text())
    page.wait_for_function("n => document.querySelector('#rp-lane-1 .rp-text').textContent.length > n + 50", arg=length)
    assert box.evaluate("t => t.scrollTop") == 10


def test_one_to_eight_lanes(mock: Served, open_page: Open) -> None:
    page = open_page(mock)
    for count in (1, 8):
        page.locator("#lane-count input").click()
        page.get_by_role("option", name=re.compile(f"^\\W*{count} lane")).click()
        expect(page.locator(".rp-lane:visible")).to_have_count(count)
    ask(page, "hello")
    expect(state(page, 8)).to_have_text(RUNNING)
    overflow = (
        "() => document.documentElement.scrollHeight > innerHeight || document.documentElement.scrollWidth > innerWidth"
    )
    assert not page.evaluate(overflow)
    expect(page.locator("#prompt input")).to_have_value("")  # answered: Gradio complains of a reload before that
    page.reload()
    ready(page)
    expect(page.locator(".rp-lane:visible")).to_have_count(8)
    expect(page.locator("#lane-count input")).to_have_value("8 lanes")


def test_an_empty_prompt_is_told_and_nothing_is_lost(mock: Served, open_page: Open) -> None:
    page = open_page(mock)
    ask(page, "   ")
    expect(page.get_by_text("the prompt is empty")).to_be_visible()
    ask(page, "x" * 4000)
    expect(page.get_by_text("do not fit")).to_be_visible()
    expect(page.locator("#prompt input")).to_have_value("x" * 4000)
    expect(page.locator(".rp-live")).to_have_attribute("data-state", "live")
