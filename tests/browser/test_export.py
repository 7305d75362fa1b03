"""Settings and results that can be copied."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from roseplay.formats.report_page import report_page, table
from roseplay.lab.report import html_report
from roseplay.lab.results import parse_result
from tests.browser.conftest import Served
from tests.lab.test_points_report import BATCHES, FIND, measured

COMPARISON = Path(__file__).parents[1] / "lab" / "result.json"


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
        "prompts: shared head",
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
    page = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
    rows = [("max_model_len", "1024"), ("durations of steps", "word " * 400), ("cpu", "x" * 4000)]
    page.set_content(report_page("A run", ['<div class="two"><div></div><div>', table(rows), "</div></div>"]))
    lines = "(cell) => { const range = document.createRange(); range.selectNodeContents(cell); return range.getClientRects().length }"
    assert page.locator("td:first-child").first.evaluate(lines) == 1
    assert page.locator("td:first-child").first.evaluate("(cell) => cell.clientWidth") > 60
    assert page.evaluate("() => document.documentElement.scrollWidth - innerWidth") <= 0
    page.context.close()


# What the views of a report say for who cannot see them, by the kind of its result.
VIEWS = {
    "compare": (
        "94.2 → 14.0 ms",
        "worst 104 ms of 1488",
        "p95 289 ms of 48",
        "A: 1 of 48, B: 24 of 48",
        "A, repeat 1: ",
    ),
    "sweep": ("p95. 1: 5 ms, .*4: 5 ms, .*16: 5 ms", "p99. 1: 5 ms", "1: 30.9 requests/s, 100"),
    "find": ("p99. ∞: 5 ms", "p95. ∞: 5 ms", "at first 16 – ∞, after try 1 ∞"),
}


@pytest.mark.parametrize("kind", VIEWS)
def test_a_report_of_the_lab_opens_from_a_file_and_shows_all_its_views(
    kind: str, browser: Browser, tmp_path: Path
) -> None:
    if kind == "compare":
        document = parse_result(COMPARISON.read_bytes())
    else:
        document = measured(BATCHES if kind == "sweep" else FIND)
    path = tmp_path / "report.html"
    path.write_text(html_report(document), encoding="utf-8")
    page, complaints = browser.new_page(), list[str]()
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda r: not r.url.startswith(("file:", "data:", "blob:")) and complaints.append(r.url))
    page.goto(path.as_uri())
    views = page.locator("canvas")
    for view, words in zip(views.all(), VIEWS[kind], strict=True):
        expect(view).to_have_attribute("aria-label", re.compile(words))  # those out of sight, too
    first = page.locator(".view canvas").first
    first.press("ArrowRight" if kind != "compare" else "ArrowUp")
    expect(page.locator(".view .rp-sub").first).to_have_text(re.compile(r"^(1: 5 ms|∞: 5 ms|p\d+.*: A .* ms · B)"))
    page.close()
    assert complaints == []
