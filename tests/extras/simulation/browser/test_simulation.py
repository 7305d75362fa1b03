"""A simulated engine's figures are marked, and the mark says where every number comes from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from roseplay import Engine
from tests.pages import Served, serving


@pytest.fixture(scope="module")
def simulated() -> Iterator[Served]:
    with serving(Engine("qwen3-32b", run_as="h100", tensor_parallel_size=2)) as served:
        yield served


@pytest.fixture
def page_of(simulated: Served) -> Served:
    return simulated


def dialog(page: Page) -> Any:
    return page.get_by_role("dialog", name="Where every number comes from")


CUT = """() => [...document.querySelectorAll("#rp-chip :is(.rp-model-chip, .rp-sim-mark, .rp-sim-mark span)")]
    .filter(({ scrollWidth, clientWidth }) => scrollWidth > clientWidth).map(({ innerText }) => innerText)"""


def test_the_mark_names_hardware_and_label_and_opens_the_origins(page: Page) -> None:
    mark = page.locator(".rp-sim-mark")
    expect(mark).to_contain_text("simulated 2 x H100 SXM")
    expect(mark).to_contain_text("calibrated on 46 points")
    for panel in ("itl", "ttft", "steps"):
        words = page.locator(f"#rp-{panel} .rp-sub").evaluate("(one) => getComputedStyle(one, '::before').content")
        assert words == '"simulated"', panel
    for width in (1280, 1440):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate(CUT) == [], "the names in the header are whole"
    mark.focus()
    page.keyboard.press("Enter")
    expect(dialog(page)).to_be_visible()
    row = dialog(page).get_by_role("row", name="TPOT, mean, with too few KV blocks")
    expect(row).to_contain_text("128 × 4\u202f096 + 128 tokens")
    expect(row.get_by_role("cell").nth(2)).to_have_text("157")
    expect(row.get_by_role("cell").nth(3)).to_have_text("–")
    expect(dialog(page).locator("ol")).to_contain_text("ai-dynamo/aiconfigurator")
    expect(dialog(page)).to_contain_text("3.35 TB/s")
    page.keyboard.press("Escape")
    expect(dialog(page)).to_be_hidden()
    expect(mark).to_be_focused()


def test_the_origins_fit_on_a_phone(phone: Page) -> None:
    assert phone.evaluate(CUT) == []
    phone.locator(".rp-sim-mark").tap()
    expect(dialog(phone).get_by_role("heading", name="Sources")).to_be_attached()
    assert dialog(phone).evaluate("(one) => one.scrollWidth <= one.clientWidth"), "only its tables scroll sideways"
    dialog(phone).get_by_role("button", name="Close").tap()
    expect(dialog(phone)).to_be_hidden()
    assert phone.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
