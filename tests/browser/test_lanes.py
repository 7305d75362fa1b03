"""Chats in lanes: they stream, survive a reload, and belong to their tab."""

from __future__ import annotations

import re
from collections.abc import Callable

from playwright.sync_api import Page, expect

from tests.browser.test_looks import OVERFLOW
from tests.pages import DESKTOP, REFUSED, Held, answer_at_most, ask, ready, reload, settled, state, text

RUNNING = re.compile(r"decode · [1-9]\d* tok")


def test_the_prompt_says_which_lanes_it_asks_and_one_can_be_stopped(page: Page) -> None:
    prompt = page.locator("#prompt input")
    expect(prompt).to_have_attribute("placeholder", "Ask all four lanes…")
    page.locator("#to input").click()
    page.get_by_role("option", name=re.compile("lane 3")).click()
    expect(prompt).to_have_attribute("placeholder", "Ask lane 3…")
    answer_at_most(page, 900, lane=3)  # so that it can be stopped, however busy the machine is
    ask(page, "hello")
    expect(state(page, 3)).to_have_text(RUNNING)
    expect(state(page, 1)).to_be_empty()
    page.get_by_role("button", name="Stop lane 3").click()
    expect(state(page, 3)).to_have_text(re.compile(r"stopped · \d+ tok"))
    page.locator("#lane-count input").click()
    page.get_by_role("option", name="2 lanes").click()
    expect(prompt).to_have_attribute("placeholder", "Ask both lanes…")


def test_a_click_in_a_lane_sends_what_is_typed_there(page: Page) -> None:
    prompt = page.locator("#prompt input")
    answer_at_most(page, 4)
    page.locator("#rp-lane-3 .rp-text").click(position={"x": 200, "y": 90})
    expect(prompt).to_have_attribute("placeholder", "Ask lane 3…")
    expect(page.locator("#to input")).to_have_value("lane 3")
    page.keyboard.type("burst b? 1")  # of which keys are shortcuts elsewhere
    expect(prompt).to_have_value("burst b? 1")
    page.keyboard.press("Enter")
    expect(page.locator("#rp-lane-3 h4")).to_have_text("burst b? 1")
    page.keyboard.press("Escape")
    expect(prompt).to_have_attribute("placeholder", "Ask all four lanes…")
    ask(page, "all")
    for lane in (1, 2, 3, 4):
        expect(page.locator(f"#rp-lane-{lane} h4")).to_have_text("all")


def test_prompts_wait_for_the_end_of_a_lane_s_answer(page: Page) -> None:
    waits = [page.locator(f"#rp-lane-{lane} .rp-next") for lane in (1, 2)]
    answer_at_most(page, 900, lane=1)
    answer_at_most(page, 4, lane=2)
    ask(page, "first")
    expect(state(page, 1)).to_have_text(RUNNING)
    expect(state(page, 2)).to_contain_text("cut at 4")
    for prompt in ("second", "third"):
        ask(page, prompt)
        expect(page.locator("#rp-lane-2 h4")).to_have_text(prompt)  # it was free
        expect(state(page, 2)).to_contain_text("cut at 4")
    expect(waits[0]).to_have_text("Next: second · third")
    expect(waits[1]).to_be_hidden()
    waits[0].click()
    expect(waits[0]).to_have_text("Next: second")
    expect(page.locator("#prompt input")).to_have_value("third")
    reload(page)
    ready(page)
    expect(waits[0]).to_have_text("Next: second")
    page.get_by_role("button", name="Stop lane 1").click()
    expect(page.locator("#rp-lane-1 h4")).to_have_text("second")
    expect(page.locator("#rp-lane-1 .rp-turn")).to_have_count(2)
    expect(state(page, 1)).to_have_text(RUNNING)
    ask(page, "never")
    expect(waits[0]).to_have_text("Next: never")
    page.locator("#stop").click()  # ends that, too
    expect(state(page, 1)).to_contain_text("stopped")
    expect(waits[0]).to_be_hidden()
    expect(page.locator("#rp-lane-1 .rp-turn")).to_have_count(2)


def test_a_new_chat_leaves_those_that_are_there(page: Page) -> None:
    answer_at_most(page, 4)
    ask(page, "hello")
    for lane in (1, 4):
        expect(state(page, lane)).to_contain_text("cut at 4")
    page.locator("#rp-lane-2").hover()
    page.get_by_role("button", name="New chat beside lane 2").click()
    expect(page.locator(".rp-lane:visible")).to_have_count(5)
    expect(page.locator("#prompt input")).to_be_focused()
    page.keyboard.type("another")
    page.keyboard.press("Enter")
    expect(page.locator("#rp-lane-5 h4")).to_have_text("another")
    for lane in (1, 2, 3, 4):
        expect(page.locator(f"#rp-lane-{lane} h4")).to_have_text("hello")


def test_one_to_eight_lanes_keep_their_text_and_traffic_its_size_over_a_reload(page: Page) -> None:
    size = page.locator("#burst-size input[type=number]")
    size.fill("7")
    for count in (1, 8):
        page.locator("#lane-count input").click()
        page.get_by_role("option", name=re.compile(f"^\\W*{count} lane")).click()
        expect(page.locator(".rp-lane:visible")).to_have_count(count)
    ask(page, "hello")
    expect(state(page, 8)).to_have_text(RUNNING)
    expect(text(page, 8)).to_contain_text("packs prompts")
    assert max(page.evaluate(OVERFLOW)) <= 0
    before = page.locator("#rp-lane-8 .rp-a").inner_text()
    reload(page)
    ready(page)
    expect(page.locator(".rp-lane:visible")).to_have_count(8)
    expect(page.locator("#lane-count input")).to_have_value("8 lanes")
    expect(text(page, 8)).to_contain_text(before[:40])
    expect(state(page, 8)).to_have_text(re.compile(r"(decode ·|cut at) [1-9]\d* tok"))
    expect(page.locator("#rp-lane-8 h4")).to_have_text("hello")
    expect(size).to_have_value("7")


def test_a_question_in_an_empty_lane_can_be_asked(page: Page) -> None:
    page.locator("#rp-lane-2 .rp-hint button").first.click()
    expect(state(page, 2)).to_have_text(RUNNING)
    expect(state(page, 1)).to_be_empty()


def test_the_text_stays_where_the_reader_scrolled(page: Page) -> None:
    answer_at_most(page, 1800)  # still growing when the reader has scrolled, even on a busy machine
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


def test_an_empty_prompt_is_told_and_nothing_is_lost(page: Page, expect_error: Callable[[str], None]) -> None:
    expect_error(REFUSED)
    ask(page, "   ")
    expect(page.get_by_text("the prompt is empty")).to_be_visible()
    ask(page, "x" * 4000)
    expect(page.get_by_text("do not fit")).to_be_visible()
    expect(page.locator("#prompt input")).to_have_value("x" * 4000)
    expect(page.locator(".rp-live")).to_have_attribute("data-state", "live")


def test_what_is_typed_while_a_prompt_is_sent_is_kept(page: Page, expect_error: Callable[[str], None]) -> None:
    expect_error(REFUSED)
    answer_at_most(page, 4)
    prompt, held = "#prompt input", Held(page, "**/ui/call/submit")
    for first, then in (("one", "two"), ("   ", "three")):  # the second is refused
        ask(page, first)
        expect(page.locator(prompt)).to_have_value("")
        page.locator(prompt).fill(then)
        held.go_on()
        if first == "one":
            expect(page.locator("#rp-lane-1 h4")).to_have_text("one")
            settled(page)
            expect(page.locator(prompt)).to_have_value("two")
        else:
            expect(page.get_by_text("the prompt is empty").first).to_be_visible()
            expect(page.locator(prompt)).to_have_value(re.compile(r"\s+three"))
    held.end()
    expect(state(page, 1)).to_contain_text("cut at 4")
    page.locator(prompt).press("Enter")
    expect(page.locator("#rp-lane-1 h4")).to_have_text(re.compile("three"))


def test_an_answer_in_place_of_an_unfinished_one_keeps_its_lane_s_row(page: Page) -> None:
    answer_at_most(page, 1000)
    rid = "() => document.querySelector('#rp-lane-1 .rp-turn:last-child')?.dataset.rid"
    ask(page, "first")
    expect(text(page, 1)).to_contain_text("packs prompts")
    first = page.evaluate(rid)
    page.locator("#rp-lane-1").hover()
    page.get_by_role("button", name=re.compile("^Generate .*lane 1$")).click()
    page.wait_for_function(f"(first) => ({rid})() !== first", arg=first)
    second = page.evaluate(rid)
    since = "Rose.store.requests.get(Number(rid))?.submitted ?? Infinity"
    page.wait_for_function(f"(rid) => Rose.time.now() - Rose.time.x({since}) > 800", arg=second)
    page.evaluate("Rose.view.set(Rose.time.now() - 400, Rose.time.now())")  # only its own steps, and they stand still
    page.wait_for_function("() => document.querySelector('#rp-steps .rp-sub').textContent.includes('0.40 s')")  # drawn
    canvas = page.locator("canvas.rp-steps")
    size = canvas.bounding_box()
    assert size
    canvas.hover(position={"x": size["width"] / 2, "y": 58})  # the first lane's row
    assert page.evaluate("String(Rose.pointing.rid)") == second


def test_no_size_overflows_sideways(page: Page) -> None:
    for width, height in ((1920, 1080), (1100, 800), (760, 1000), (1440, 720)):
        page.set_viewport_size({"width": width, "height": height})
        page.wait_for_function("width => innerWidth === width", arg=width)
        assert page.evaluate(OVERFLOW)[0] == 0, width
        assert page.locator("#rp-lanes").bounding_box()["width"] > 300, width  # type: ignore[index]
    page.set_viewport_size(DESKTOP["viewport"])
