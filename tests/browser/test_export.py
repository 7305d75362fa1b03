"""Settings and results that can be copied."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from roseplay.formats.report_page import report_page, table
from tests.browsers import new_page
from tests.pages import Served


def copied(page: Page, what: str) -> str:
    page.get_by_role("button", name=what).click()
    expect(page.locator(".rp-pop [role=status]")).to_contain_text("Copied")
    return str(page.evaluate("() => navigator.clipboard.readText()"))


@pytest.fixture
def page(page: Page) -> Page:
    """With the popover of what can be copied open."""
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.wait_for_function("() => Rose.store.info && 'prefix_cache' in Rose.store.knobs")
    page.get_by_role("button", name="copy settings").click()
    return page


def set_knobs(page: Page, served: Served, **changes: Any) -> None:
    served.engine.set_knobs(**changes)
    page.wait_for_function(
        "(changes) => Object.entries(changes).every(([name, value]) => Rose.store.knobs[name] === value)", arg=changes
    )


def test_settings_as_vllms_flags(mock: Served, page: Page) -> None:
    set_knobs(page, mock, max_batch_size=12, step_max_tokens=256, prefix_cache=False)
    flags = copied(page, "as vLLM flags")
    assert "--max-num-seqs 12 --max-num-batched-tokens 256 --enable-chunked-prefill --no-enable-prefix-caching" in flags
    info = mock.engine.info
    assert f"--block-size {info.block_size} --max-model-len {info.max_model_len}" in flags
    assert "eager" not in flags, "without a GPU there are no CUDA graphs to switch off"
    said = f"Copied {flags.count('--')} vLLM flags."
    expect(page.locator(".rp-pop [role=status]")).to_have_text(said)
    expect(page.locator(".rp-pop blockquote")).to_have_text(flags)


def test_settings_and_figures_as_one_text(mock: Served, page: Page) -> None:
    set_knobs(page, mock, prefill_max_tokens=64)
    text = copied(page, "settings and figures")
    for line in (
        "Prefill budget (prefill_max_tokens): 64",
        "Prefix cache (prefix_cache): on",
        "burst size: 20",
        "prompts: same start",
        "steady requests/s: off",
        "tokens/s: ",
        "ITL p50 / p99: ",
    ):
        assert f"\n  {line}" in text, line
    assert mock.engine.info.model in text


def test_where_the_browser_does_not_let_the_page_copy(page: Page) -> None:
    page.evaluate(
        "() => { navigator.clipboard.writeText = () => Promise.reject(new Error('no')); document.execCommand = () => false; }"
    )
    page.get_by_role("button", name="as vLLM flags").click()
    expect(page.locator(".rp-pop [role=status]")).to_have_text(
        "The browser does not let the page copy: here is the text."
    )
    expect(page.locator(".rp-pop blockquote")).to_contain_text("--max-num-seqs")
    page.evaluate("() => { delete navigator.clipboard.writeText; delete document.execCommand; }")


def test_the_names_in_a_report_are_not_squeezed_by_long_values(browser: Browser) -> None:
    page = new_page(browser, viewport={"width": 1440, "height": 900})
    rows = [("max_model_len", "1024"), ("durations of steps", "word " * 400), ("cpu", "x" * 4000)]
    page.set_content(report_page("A run", ['<div class="two"><div></div><div>', table(rows), "</div></div>"]))
    lines = "(cell) => { const range = document.createRange(); range.selectNodeContents(cell); return range.getClientRects().length }"
    assert page.locator("td:first-child").first.evaluate(lines) == 1
    assert page.locator("td:first-child").first.evaluate("(cell) => cell.clientWidth") > 60
    assert page.evaluate("() => document.documentElement.scrollWidth - innerWidth") <= 0
    page.context.close()
