"""The page while the engine starts, as it goes live, and when it could not be started."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Page, expect

from roseplay.play.terms import CONTROLS
from tests.pages import DESKTOP, PHONE, ready
from tests.play.conftest import serving_slow_start
from tests.play.model_host import COMMAND, SlowStart

MB = 1_000_000


# Whether the progress bar is inside its strip, and the strip on the screen.
INSIDE = """() => {
  const strip = document.querySelector('#rp-story').getBoundingClientRect();
  const bar = document.querySelector('.rp-start [role=progressbar]').getBoundingClientRect();
  return bar.bottom <= strip.bottom && bar.right <= innerWidth && document.documentElement.scrollWidth <= innerWidth;
}"""


@pytest.fixture
def slow() -> Iterator[SlowStart]:
    with serving_slow_start() as slow:
        slow.at("libraries")
        slow.at("weights", 0, 548 * MB, "bytes")
        yield slow


def stages(page: Page) -> list[str]:
    """The state of each stage in the list."""
    found: list[str] = page.evaluate(
        "() => [...document.querySelectorAll('.rp-start-list li')].map((li) => li.dataset.state)"
    )
    return found


def test_a_page_opened_early_shows_the_start_and_goes_live_by_itself(
    slow: SlowStart, open_page: Callable[..., Page]
) -> None:
    page = open_page(slow, live=False)
    bar, strip = page.locator("[role=progressbar]"), page.locator(".rp-start p")
    expect(bar).to_have_attribute("aria-label", "Weights")
    expect(bar).to_have_attribute("aria-valuenow", "0")
    heard = page.locator(".rp-start [role=status]")
    expect(heard).to_have_text("gpt2 is loading. Weights, stage 3 of 5.")
    page.evaluate(
        """() => {
             window.changes = 0;
             const status = document.querySelector('.rp-start [role=status]');
             new MutationObserver(() => window.changes++).observe(status, {childList: true, subtree: true, characterData: true});
           }"""
    )
    for done in (100, 274):
        slow.at("weights", done * MB, 548 * MB, "bytes")
        expect(strip).to_contain_text(f"{done} of 548 MB")
    assert page.evaluate("() => window.changes") == 0, "screen readers hear each stage once"
    expect(strip).to_contain_text("gpt2 is loading. Weights, 274 of 548 MB.")
    expect(bar).to_have_attribute("aria-valuenow", "50")
    expect(bar).to_have_attribute("aria-valuetext", re.compile("274 of 548 MB"))
    expect(page.locator(".rp-start-list li")).to_have_count(5)
    assert stages(page) == ["done", "skipped", "running", "waiting", "waiting"]

    # The page is laid out as on the first screen, and every control that needs the engine is inactive.
    expect(page.locator(".rp-live")).to_have_text("starting")
    expect(page.locator(".rp-kpi.tps b")).to_have_text("–")
    expect(page.locator("#max-batch input[type=number]")).to_have_value("8")  # the value the engine will start with
    for part in ("#rp-rail", "#rp-say"):
        assert page.evaluate("(part) => document.querySelector(part).inert", part)
    expect(page.locator("#burst")).to_have_attribute("title", re.compile("^gpt2 is loading"))
    page.keyboard.press("b")
    page.keyboard.press("d")

    page.set_viewport_size(PHONE["viewport"])
    page.wait_for_function("() => innerWidth === 390")
    assert page.evaluate(INSIDE), "nothing is cut off on a phone"
    page.set_viewport_size(DESKTOP["viewport"])

    slow.at("warm-up")
    expect(heard).to_have_text("gpt2 is loading. Warm-up, stage 5 of 5.")
    page.evaluate("() => (window.before = true)")
    slow.go_live()
    ready(page)
    assert page.evaluate("() => window.before")  # the page was not reloaded
    expect(page.locator(".rp-start, .rp-start-list")).to_have_count(0)
    assert page.evaluate("() => Rose.store.requests.size") == 0  # the key presses had no effect
    expect(page.locator("#burst")).to_have_attribute("title", CONTROLS["burst"])
    page.locator("#burst").click()
    expect(page.locator(".rp-kpi.tps b")).not_to_have_text("–")


def test_a_failed_start_is_shown_and_stays_when_the_server_has_ended(open_page: Callable[..., Page]) -> None:
    with serving_slow_start() as slow:
        slow.at("weights", 274 * MB, 548 * MB, "bytes")
        page = open_page(slow, live=False, expected="ERR_CONNECTION_REFUSED")
        expect(page.locator("[role=progressbar]")).to_have_attribute("aria-valuenow", "50")
        slow.fail(ValueError("gpt2 cannot be served: a file ends too early"))
        shows_failure(page)
    page.wait_for_function("() => Rose.poll.failures > 3")
    shows_failure(page)
    assert page.locator("#rp-banner").count() == 0 or page.locator("#rp-banner").is_hidden()


def shows_failure(page: Page) -> None:
    expect(page.locator(".rp-live")).to_have_text("not started")
    expect(page.locator(".rp-start p")).to_contain_text("gpt2 could not be started.")
    expect(page.locator(".rp-start-list")).to_contain_text("a file ends too early")
    expect(page.locator(".rp-start-list code")).to_have_text(COMMAND)
    expect(page.locator("[role=progressbar]")).to_have_attribute("aria-valuenow", "50")
    assert stages(page)[2] == "failed"
