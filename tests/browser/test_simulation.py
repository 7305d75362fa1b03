"""A simulated engine's figures are marked, and the mark says where every number comes from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from roseplay import Engine
from tests.browser.conftest import PHONE, Served, serving

Open = Callable[..., Page]


@pytest.fixture(scope="module")
def simulated() -> Iterator[Served]:
    with serving(Engine("qwen3-32b", run_as="h100", tensor_parallel_size=2)) as served:
        yield served


def dialog(page: Page) -> Any:
    return page.get_by_role("dialog", name="Where every number comes from")


def test_the_mark_names_hardware_and_label_and_opens_the_origins(simulated: Served, open_page: Open) -> None:
    page = open_page(simulated)
    mark = page.locator(".rp-sim-mark")
    expect(mark).to_contain_text("simulated 2 x H100 SXM")
    expect(mark).to_contain_text("calibrated on 46 points")
    for panel in ("itl", "ttft", "steps"):
        words = page.locator(f"#rp-{panel} .rp-sub").evaluate("(one) => getComputedStyle(one, '::before').content")
        assert words == '"simulated"', panel
    mark.focus()
    page.keyboard.press("Enter")
    expect(dialog(page)).to_be_visible()
    row = dialog(page).get_by_role("row", name="TPOT, mean, with too few KV blocks")
    expect(row).to_contain_text("128 x 4,096 + 128 tokens")
    expect(row.get_by_role("cell").nth(2)).to_have_text("157")
    expect(row.get_by_role("cell").nth(3)).to_have_text("–")
    expect(dialog(page).locator("ol")).to_contain_text("ai-dynamo/aiconfigurator")
    expect(dialog(page)).to_contain_text("3.35 TB/s")
    page.keyboard.press("Escape")
    expect(dialog(page)).to_be_hidden()
    expect(mark).to_be_focused()


@pytest.mark.parametrize("scheme", [pytest.param("light", marks=pytest.mark.slow), "dark"])
def test_the_origins_fit_on_a_phone(simulated: Served, open_page: Open, scheme: str) -> None:
    page = open_page(simulated, **PHONE, color_scheme=scheme)
    page.locator(".rp-sim-mark").tap()
    expect(dialog(page).get_by_role("heading", name="Sources")).to_be_attached()
    assert dialog(page).evaluate("(one) => one.scrollWidth <= one.clientWidth"), "only its tables scroll sideways"
    dialog(page).get_by_role("button", name="Close").tap()
    expect(dialog(page)).to_be_hidden()
    assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")


def test_what_is_computed_has_no_mark(mock: Served, open_page: Open) -> None:
    page = open_page(mock)
    expect(page.locator(".rp-model-chip")).to_contain_text("fake-chat")
    expect(page.locator(".rp-sim-mark")).to_be_hidden()
    assert page.locator("#rp-itl .rp-sub").evaluate("(one) => getComputedStyle(one, '::before').content") == "none"
