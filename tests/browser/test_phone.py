"""The page on a phone: what is where, what folds, and that everything can be pressed."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.browser.test_chats import RUNNING, WIDTH
from tests.browser.test_looks import OVERFLOW
from tests.browser.test_terms import popover, term
from tests.browser.test_traffic import MONDAY, is_on, player, row, said, switch
from tests.pages import answer_at_most, ask, state


def test_a_lanes_buttons_are_large_and_settings_are_a_sheet(phone: Page) -> None:
    answer_at_most(phone, 1800)  # still running at the end, even on a busy machine
    ask(phone, "hello " * 40)
    expect(state(phone, 1)).to_have_text(RUNNING)
    buttons = phone.locator("#rp-lane-1 header button:visible")
    expect(buttons).to_have_count(6)  # one of them ends the answer
    for button in buttons.all():
        box = button.bounding_box()
        assert box and box["width"] >= 44 and box["height"] >= 44
    assert phone.evaluate(WIDTH) == 0
    phone.locator("#rp-knobs-button").tap()
    phone.locator("#sampling").tap()
    expect(phone.locator("#rp-sampling")).to_be_visible()
    box = phone.locator("#rp-sampling").bounding_box()
    assert box and box["x"] == 0 and box["width"] == 390 and box["y"] + box["height"] == pytest.approx(844, abs=1)
    assert phone.evaluate(WIDTH) == 0
    phone.get_by_role("button", name="Close").tap()
    expect(phone.locator("#rp-sampling")).to_be_hidden()
    phone.locator("#rp-knobs-button").tap()  # folds them again


def test_steady_traffic_and_that_of_a_file_are_among_the_knobs(phone: Page, choose: Callable[..., None]) -> None:
    expect(switch(phone)).to_be_hidden()
    expect(row(phone)).to_be_hidden()
    phone.locator("#rp-knobs-button").tap()
    choose(phone, MONDAY, "monday.jsonl")
    expect(said(phone)).to_have_text("40 requests, 20 s")
    for part in (phone.locator("#rp-steady"), player(phone), phone.get_by_role("button", name="Choose file…")):
        box = part.bounding_box()
        assert box and box["width"] >= 44 and box["height"] >= 44
    assert phone.evaluate("document.documentElement.scrollWidth - innerWidth") == 0
    player(phone).tap()
    expect(player(phone)).to_have_text("Stop")
    player(phone).tap()
    expect(player(phone)).to_have_text("Play")
    switch(phone).tap()
    is_on(phone, True)
    assert phone.evaluate("document.documentElement.scrollWidth - innerWidth") == 0
    switch(phone).tap()
    is_on(phone, False)
    phone.locator("#rp-knobs-button").tap()


def test_an_explanation_is_a_sheet(phone: Page) -> None:
    term(phone, "KV in use").tap()
    box = popover(phone, "KV in use").bounding_box()
    assert box and box["width"] == 390 and round(box["y"] + box["height"]) == 844
    phone.get_by_role("button", name="Close").tap()
    expect(popover(phone, "KV in use")).to_be_hidden()


def test_the_help_opens_at_its_top(phone: Page) -> None:
    phone.locator("#rp-help-button").click()
    help = phone.locator("#rp-help")
    expect(help).to_be_visible()
    assert help.evaluate("(dialog) => dialog.scrollTop") == 0
    expect(phone.locator("#rp-help-title")).to_be_in_viewport()


def top(page: Page, selector: str) -> float:
    box = page.locator(selector).bounding_box()
    assert box, selector
    return box["y"]


def test_the_parts_stand_below_each_other_and_knobs_fold(phone: Page) -> None:
    """The last one here: the size of a burst, which it changes, cannot be set back while it is out of sight."""
    burst = phone.locator("#burst")
    expect(burst).to_have_attribute("data-what", re.compile("^20 × "))
    phone.wait_for_function(  # Gradio may write its own value at first
        """() => { const size = document.querySelector("#burst-size input[type=number]");
             size.value = 7;
             size.dispatchEvent(new Event("input", { bubbles: true }));
             return document.querySelector("#burst").dataset.what.startsWith("7 × "); }"""
    )
    parts = "#rp-brand #rp-kpis #rp-say #burst #rp-knobs #rp-lanes #rp-itl #rp-blockmap #rp-steps #rp-tokens #rp-ttft"
    tops = [top(phone, part) for part in parts.split()]
    assert tops == sorted(tops)
    assert phone.evaluate(OVERFLOW)[0] == 0
    expect(phone.locator("#budget")).to_be_hidden()
    expect(phone.locator("#rp-knobs-button")).to_contain_text("budget ∞ · batch 32 · all optimisations on")
    phone.locator("#rp-knobs-button").tap()
    expect(phone.locator("#budget")).to_be_visible()
    assert phone.evaluate(OVERFLOW)[0] == 0
    phone.locator("#rp-knobs-button").tap()
    expect(phone.locator("#budget")).to_be_hidden()
    for target in ("#prompt input", "#send", "#burst", "#rp-knobs-button"):
        assert phone.locator(target).bounding_box()["height"] >= 44, target  # type: ignore[index]
    ask(phone, "hello")
    expect(state(phone, 1)).to_have_text(re.compile("decode"))
    phone.locator(".rp-lanes").evaluate("lanes => lanes.scrollTo(2 * lanes.clientWidth, 0)")
    expect(phone.locator(".rp-dots i").nth(2)).to_have_class("rp-on")
