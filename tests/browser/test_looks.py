"""Sizes and themes."""

from __future__ import annotations

import re
from collections.abc import Callable

import httpx
from playwright.sync_api import Page, expect

from roseplay.config import SamplingParams
from tests.browser.test_real_engine import saved_by_sharing
from tests.pages import Served, ready, reload, serving
from tests.play.fake_engine import FakeEngine

Open = Callable[..., Page]
MOST_REQUESTS = 80  # a first visit makes 74, of which 28 fetch style sheets of Gradio
MOST_CONTROLS, MOST_WORDS = 35, 150  # that a first visitor sees
# How many controls can be focused, and how many words have a letter, of those in view.
SEEN = """() => {
  const shown = (it) => it.checkVisibility({ visibilityProperty: true }) && !it.closest(".visually-hidden, .sr-only, .rp-said");
  const inView = ({ width, height, top, bottom }) => width > 1 && height > 1 && bottom > 0 && top < innerHeight;
  const controls = [...document.querySelectorAll("a[href], button, input, select, textarea, [tabindex]")]
    .filter((it) => it.tabIndex >= 0 && !it.disabled && shown(it) && inView(it.getBoundingClientRect()));
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), range = new Range(), words = [];
  for (let text = texts.nextNode(); text; text = texts.nextNode()) {
    range.selectNodeContents(text);
    if (shown(text.parentElement) && inView(range.getBoundingClientRect())) words.push(...text.data.split(/\\s+/));
  }
  return [controls.length, words.filter((word) => /\\p{L}/u.test(word)).length];
}"""
OVERFLOW = (
    "() => [document.documentElement.scrollWidth - innerWidth, document.documentElement.scrollHeight - innerHeight]"
)


def test_the_first_screen_needs_no_scrolling_and_says_what_becomes_of_its_engine(open_page: Open) -> None:
    engine = FakeEngine(run=True)
    with serving(engine) as served:
        page = open_page(served, path="/?view=simple")
        expect(page.locator(".rp-demos li").first).to_be_visible()
        expect(page.locator("#stop")).to_be_hidden()  # nothing runs
        controls, words = page.evaluate(SEEN)
        assert controls <= MOST_CONTROLS and words <= MOST_WORDS
        page.route("**/ui/delta*", lambda route: route.fulfill(status=200, body="not json"))
        reload(page)
        expect(page.locator("#rp-lane-4")).to_be_visible()
        expect(page.locator(":is(.rp-demos, .rp-hint) button")).to_have_count(0)  # which ones is not known yet
        page.unroute("**/ui/delta*")
        expect(page.locator(".rp-demos li").first).to_be_visible()
        page.get_by_role("button", name="All controls").click()
        first_screen(page)
        for column in (0, 1):
            assert {*saved_by_sharing(page, column).values()} <= {"none yet", "–", "0", ""}
        fetched = page.evaluate("performance.getEntriesByType('resource').map(({ name }) => name)")
        assert sum("/ui/static/" in address for address in fetched) == 1, "the page's modules are loaded as one script"
        polls = [address for address in fetched if "/ui/delta" in address]
        assert len(fetched) - len(polls) < MOST_REQUESTS, f"{len(fetched) - len(polls)} requests"

        page.get_by_role("tab", name="Traces").click()
        expect(page.locator(".rp-empty")).to_have_text("Nothing yet: press Burst on Live.")
        expect(page.locator(".rp-empty")).to_be_visible()
        run = page.locator(".rp-traces > section").first.bounding_box()
        assert run and (run["x"], run["width"]) == (0, 232) and run["y"] < 60, "it stands at the left, from the top"
        expect(page.locator('a[data-file="trace.json"]')).to_have_attribute("aria-disabled", "true")
        engine.submit(list(range(20)), SamplingParams(max_new_tokens=5)).result(timeout=20)
        expect(page.locator("td[data-of=tokens]")).to_have_text("5")
        expect(page.locator(".rp-empty")).to_be_hidden()
        for kind in ("recording.jsonl", "trace.json", "tokens.csv", "requests.csv", "report.html"):
            link = page.locator(f'a[data-file="{kind}"]')
            expect(link).not_to_have_attribute("aria-disabled", "true")
            assert httpx.get(served.address + (link.get_attribute("href") or ""), timeout=60).status_code == 200

        engine.close()
        expect(page.locator(".rp-live")).to_have_text("engine stopped")
        box, brand = (page.locator(part).bounding_box() for part in (".rp-live", "#rp-brand"))
        assert box and brand and box["x"] + box["width"] <= brand["x"] + brand["width"]
        page.close()  # close the page before its server


def first_screen(page: Page) -> None:
    assert page.evaluate(OVERFLOW) == [0, 0]
    for part in "#rp-rail #rp-lanes #rp-say #rp-stage #rp-itl #rp-tokens #rp-blockmap #rp-ttft #rp-kvtime #rp-steps #rp-foot".split():
        box = page.locator(part).bounding_box()
        assert box and box["width"] > 100 and box["y"] + box["height"] <= 901, part
    for chart in ("rp-itl", "rp-tokens", "rp-ttft", "rp-kvtime"):
        expect(page.locator(f"#{chart} .rp-nothing")).to_be_visible()


def test_the_system_chooses_the_theme_of_a_first_visit_until_another_is_chosen(mock: Served, open_page: Open) -> None:
    page = open_page(mock, color_scheme="dark")
    expect(page.locator("body")).to_have_class(re.compile("dark"))
    background = "() => getComputedStyle(document.querySelector('#rp-charts')).backgroundColor"
    assert page.evaluate(background) == "rgb(16, 19, 23)"
    page.get_by_role("button", name="Light or dark").click()
    page.wait_for_function(f"() => ({background})() === 'rgb(255, 255, 255)'")
    reload(page)
    ready(page)
    assert page.evaluate(background) == "rgb(255, 255, 255)"
