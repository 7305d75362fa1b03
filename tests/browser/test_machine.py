"""What the page says about its engine: how it computes steps, what was made of its checkpoint, its author's settings."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from roseplay.core.info import Choice
from tests.pages import DESKTOP, PHONE, Served, serving
from tests.play.fake_engine import FakeEngine

REASON = "Numba is not installed: <b>install</b> it"
CHOICES = (
    Choice("checkpoint", "mxfp4, dequantized to bfloat16 while it was read"),
    Choice("linear layers", "oneDNN", "AMX tiles 9/9/9/9", REASON),
    Choice("attention", "KV blocks gathered first", slow=REASON),
    Choice("steps", "recorded and replayed"),
)


@pytest.fixture(scope="module")
def slow() -> Iterator[Served]:
    """An engine whose steps are slow, and whose checkpoint was dequantized and recommends a temperature."""
    engine = FakeEngine(run=True, step_s=0.02)
    engine.info = dataclasses.replace(engine.info, choices=CHOICES, sampling_defaults={"temperature": 1.2})
    with serving(engine) as served:
        yield served


@pytest.fixture
def page_of(slow: Served) -> Served:
    return slow


def test_what_makes_steps_slow_is_marked_and_told(page: Page) -> None:
    chip = page.locator(".rp-model-chip")
    title = chip.get_attribute("title") or ""
    assert "448 KV blocks of 16 tokens. mxfp4, dequantized to bfloat16 while it was read" in title
    assert title.count(REASON) == 1
    mark, dialog = chip.locator(".rp-slower"), page.locator("#rp-help")
    expect(mark).to_have_text("slower than it could be")
    for screen in (PHONE, DESKTOP):
        page.set_viewport_size(screen["viewport"])
        page.wait_for_function("(width) => innerWidth === width", arg=screen["viewport"]["width"])
        expect(mark).to_be_in_viewport()
        page.locator("#rp-help-button").click()
        assert dialog.evaluate("(element) => element.scrollWidth <= element.clientWidth"), "nothing is cut off"
        page.keyboard.press("Escape")
    page.locator("#rp-help-button").click()
    with page.expect_popup() as opened:
        dialog.get_by_role("link", name="The doctor's page").click()
    told = opened.value.locator("table").first.locator("tr:has(td)")
    expect(told).to_have_count(len(CHOICES))
    expect(told.nth(1)).to_contain_text("oneDNN")
    expect(told.nth(1)).to_contain_text("9/9/9/9")
    expect(told.nth(2).locator("b")).to_have_text(REASON)
    expect(told.nth(3).locator("b")).to_have_text("")
    opened.value.close()


def test_controls_say_where_their_values_come_from(page: Page) -> None:
    page.locator("#sampling").click()
    temperature, top_k = page.locator("#sampling-temperature"), page.locator("#sampling-top-k")
    expect(temperature.locator("input[type=number]")).to_have_value("1.2")
    expect(temperature).to_have_attribute(
        "title", "temperature: recommended by the model's author, in its generation_config.json"
    )
    expect(top_k).to_have_attribute("title", "top_k: this program's default")
    top_k.locator("input[type=number]").fill("5")
    temperature.locator("input[type=number]").fill("0.3")
    expect(temperature).to_have_attribute("title", "temperature: changed for all lanes")
    page.locator("#sampling-reset").click()
    expect(temperature).to_have_attribute("data-source", "model")
    expect(temperature.locator("input[type=number]")).to_have_value("1.2")
