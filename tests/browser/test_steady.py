"""Steady traffic: its switch starts, changes and ends it, and follows what happens to it elsewhere."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from playwright.sync_api import Page, expect

from roseplay.play.open_loop import MOST_WAITING
from tests.browser.conftest import PHONE, Served, ready, reload, serving
from tests.play.fake_engine import FakeEngine

Open = Callable[..., Page]
STEADY = "() => [...Rose.store.requests.values()].filter((one) => one.kind === 'steady')"


def switch(page: Page) -> Any:
    return page.get_by_role("switch", name=re.compile("^Steady traffic, .* requests per second$"))


def turned_on(page: Page) -> Any:
    """Turn the switch on, wait until requests have arrived, and return it."""
    switch(page).click()
    expect(page.locator("#steady-rate .rp-sent")).to_have_text(re.compile(r"^[1-9]\d* sent$"))
    return switch(page)


def type_rate(page: Page, rate: str) -> None:
    page.locator("#steady-rate-value input").fill(rate)
    page.locator("#steady-rate-value input").press("Enter")


def wait_for_plan(page: Page, plan: str) -> None:
    """Wait for a poll in which ``plan``, a condition on the traffic's state ``it``, holds."""
    page.evaluate("() => Rose.on('own', (own) => (window.steady = own.steady))")
    page.wait_for_function(f"() => window.steady && ((it) => {plan})(window.steady)")


def test_requests_arrive_while_it_is_on_and_the_lanes_stay_free(live: Served, open_page: Open) -> None:
    page = open_page(live)
    expect(switch(page)).to_have_attribute("aria-checked", "false")
    turned_on(page)
    expect(switch(page)).to_have_attribute("aria-checked", "true")
    page.wait_for_function(f"() => ({STEADY})().length >= 3")
    assert page.evaluate(f"() => ({STEADY})().every((one) => one.lane === null)")
    expect(page.locator("#rp-lane-1 .rp-hint")).to_be_visible()
    switch(page).click()
    expect(switch(page)).to_have_attribute("aria-checked", "false")
    expect(page.locator("#steady-rate .rp-sent")).to_be_hidden()
    page.wait_for_function("() => [...Rose.store.requests.values()].every((one) => one.finished !== null)")
    assert page.evaluate(f"() => ({STEADY})().every((one) => one.reason !== 'abort')")


def test_stop_all_ends_it(mock: Served, open_page: Open) -> None:
    page = open_page(mock)
    turned_on(page)
    page.locator("#stop").click()
    expect(switch(page)).to_have_attribute("aria-checked", "false")
    page.wait_for_function("() => [...Rose.store.requests.values()].every((one) => one.finished !== null)")
    expect(page.get_by_text("Steady traffic stopped")).to_have_count(0)  # no message is needed


def test_what_is_changed_while_it_is_on_applies(mock: Served, open_page: Open) -> None:
    page = open_page(mock)
    turned_on(page)
    wait_for_plan(page, "it.rate === 4 && it.spacing === 'poisson' && it.kind === 'shared_head'")
    seed, sent = page.evaluate("() => [steady.seed, steady.sent]")
    type_rate(page, "7.5")
    expect(page.get_by_role("switch", name="Steady traffic, 7.5 requests per second")).to_be_visible()
    wait_for_plan(page, "it.rate === 7.5")
    page.get_by_role("button", name="even").click()
    page.locator("#mix label", has_text="equal").click()
    page.locator("#answer-length input[type=range]").press("Home")
    wait_for_plan(page, "it.spacing === 'even' && it.kind === 'equal' && it.max_new_tokens === 16")
    page.locator("#steady-rate input[type=range]").press("ArrowRight")
    wait_for_plan(page, "it.rate === 12")
    assert page.evaluate("() => steady.on")
    assert page.evaluate("() => steady.seed") == seed
    assert page.evaluate("() => steady.sent") >= sent


def test_a_rate_that_cannot_be_is_said_and_not_taken(mock: Served, open_page: Open) -> None:
    page = open_page(mock)
    type_rate(page, "a lot")
    expect(page.get_by_text("The rate must be from 0.1 to 50.")).to_be_visible()
    expect(page.locator("#steady-rate-value input")).to_have_value("4")


def test_why_it_stopped_is_said_once(open_page: Open) -> None:
    with serving(FakeEngine()) as served:  # it computes nothing, so all requests wait
        page = open_page(served)
        type_rate(page, "50")
        page.get_by_role("button", name="even").click()
        switch(page).click()
        reason = f"{MOST_WAITING} requests were waiting, the limit is {MOST_WAITING}"
        expect(page.get_by_text(f"Steady traffic stopped: {reason}.")).to_be_visible()
        expect(switch(page)).to_have_attribute("aria-checked", "false")
        expect(page.locator("#steady-rate .rp-sent")).to_have_text("stopped")
        expect(page.locator("#steady-rate .rp-sent")).to_have_attribute("title", reason)
        reload(page)
        ready(page)
        expect(page.locator("#steady-rate .rp-sent")).to_have_text("stopped")
        expect(page.get_by_text("Steady traffic stopped")).to_have_count(0)
        page.close()


def test_a_page_that_is_loaded_again_shows_what_runs(mock: Served, open_page: Open) -> None:
    page = open_page(mock)
    type_rate(page, "2.5")
    page.locator("#mix label", has_text="unique").click()
    page.get_by_role("button", name="even").click()
    turned_on(page)
    wait_for_plan(page, "it.sent >= 5")  # no call is in flight by then that a reload would abort
    reload(page)
    ready(page)
    expect(switch(page)).to_have_attribute("aria-checked", "true")
    expect(page.locator("#steady-rate-value input")).to_have_value("2.5")
    expect(page.get_by_role("button", name="even")).to_have_attribute("aria-pressed", "true")
    expect(page.locator("#mix label.selected")).to_have_text("unique")
    wait_for_plan(page, "it.on && it.rate === 2.5 && it.kind === 'unique'")
    switch(page).click()
    expect(switch(page)).to_have_attribute("aria-checked", "false")


def test_on_a_phone_it_is_among_the_knobs(mock: Served, open_page: Open) -> None:
    page = open_page(mock, **PHONE)
    expect(switch(page)).to_be_hidden()
    page.locator("#rp-knobs-button").tap()
    row = page.locator("#rp-steady").bounding_box()
    assert row and row["height"] >= 44
    switch(page).tap()
    expect(switch(page)).to_have_attribute("aria-checked", "true")
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") == 0
    switch(page).tap()
    expect(switch(page)).to_have_attribute("aria-checked", "false")
