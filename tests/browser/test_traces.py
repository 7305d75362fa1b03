"""The page's explanations: Traces lists what the run has, the help what the page does, a legend what shades mean."""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect

from tests.browser.conftest import Served


def test_what_happened_lists_bursts_and_changed_settings_and_the_timeline_by_itl_has_a_legend(
    mock: Served, page: Page
) -> None:
    page.locator("#burst").click()
    page.wait_for_function(
        "() => [...Rose.store.bursts.values()].some((one) => one.requests.some((r) => r.ttft_ms !== null))"
    )
    mock.engine.set_knobs(max_batch_size=7)
    page.wait_for_function("() => Rose.knobMarks().some((mark) => mark.text.endsWith('→ 7'))")
    legend = page.locator("#rp-steps .rp-shades")
    expect(legend).to_be_hidden()
    page.locator("#rp-steps .rp-tg").get_by_role("button", name="ITL", exact=True).click()
    expect(legend).to_be_visible()
    expect(legend).to_have_text(re.compile(r"step ≤ [\d.]+≥ [\d.]+ ms"))
    page.get_by_role("tab", name="Traces").click()
    rows = page.locator(".rp-contents tbody tr")
    expect(rows.filter(has_text=re.compile(r"burst \d+, \d+ requests"))).not_to_have_count(0)
    expect(rows.filter(has_text=re.compile("→ 7"))).to_have_count(1)
    expect(rows.filter(has_text=re.compile(r"\d+ of \d+.* ms"))).not_to_have_count(0)
    expect(page.locator(".rp-contents-none")).to_be_hidden()


def test_the_help_opens_at_its_top(phone: Page) -> None:
    phone.locator("#rp-help-button").click()
    help = phone.locator("#rp-help")
    expect(help).to_be_visible()
    assert help.evaluate("(dialog) => dialog.scrollTop") == 0
    expect(phone.locator("#rp-help-title")).to_be_in_viewport()
