"""How this machine computes steps: shown in the help, with a mark beside the model if something makes them slow."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Page, expect

from roseplay.core.info import Choice
from tests.browser.conftest import PHONE, Served, serving
from tests.play.fake_engine import FakeEngine

Open = Callable[..., Page]
REASON = "Numba is not installed: <b>install</b> it"
CHOICES = (
    Choice("linear layers", "oneDNN", "AMX tiles 9/9/9/9", REASON),
    Choice("attention", "KV blocks gathered first", slow=REASON),
    Choice("steps", "recorded and replayed"),
)


@pytest.fixture(scope="module")
def slow() -> Iterator[Served]:
    engine = FakeEngine(run=True, step_s=0.02)
    engine.info = dataclasses.replace(engine.info, choices=CHOICES)
    with serving(engine) as served:
        yield served


@pytest.mark.parametrize("device", ["desktop", "phone"])
def test_what_makes_steps_slow_is_marked_and_told(slow: Served, open_page: Open, device: str) -> None:
    page = open_page(slow, **(PHONE if device == "phone" else {}))
    chip = page.locator(".rp-model-chip")
    mark = chip.locator(".rp-slower")
    expect(mark).to_be_in_viewport()
    expect(mark).to_have_text("slower than it could be")
    assert (chip.get_attribute("title") or "").count(REASON) == 1
    page.locator("#rp-help-button").click()
    told = page.locator("#rp-help .machine dl > div")
    expect(told).to_have_count(3)
    expect(told.nth(0)).to_contain_text("oneDNN")
    expect(told.nth(0)).to_contain_text("9/9/9/9")
    expect(told.nth(1).locator("em")).to_have_text(REASON)
    expect(told.nth(2).locator("em")).to_have_count(0)
    dialog = page.locator("#rp-help")
    assert dialog.evaluate("(element) => element.scrollWidth <= element.clientWidth"), "nothing is cut off"


def test_a_machine_that_lacks_nothing_has_no_mark(mock: Served, live: Served, open_page: Open) -> None:
    page = open_page(mock)
    expect(page.locator(".rp-model-chip")).to_be_visible()
    expect(page.locator(".rp-slower")).to_have_count(0)
    expect(page.locator("#rp-help .machine")).to_be_hidden()
    page = open_page(live)
    page.locator("#rp-help-button").click()
    expect(page.locator("#rp-help .machine dl > div")).to_have_count(len(live.engine.info.choices))
