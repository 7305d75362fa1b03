"""The Lab of a simulated GPU: two GPUs are compared, and a search says that no limit is needed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Page, expect

from roseplay import Engine
from tests.extras.lab.browser.conftest import serving
from tests.extras.lab.browser.test_lab import open_lab, row
from tests.pages import Served


@pytest.fixture(scope="module")
def simulated() -> Iterator[Served]:
    with serving(Engine("qwen3-8b", run_as="h100", max_model_len=4096)) as served:
        yield served


def test_two_gpus_are_compared_and_a_search_finds_no_limit_needed(
    open_page: Callable[..., Page], simulated: Served
) -> None:
    page = open_page(simulated, expected="422")  # a refusal
    open_lab(page)
    gpu = page.get_by_label("Run as, B")
    expect(gpu).to_have_value("h100")
    assert gpu.locator("option").all_inner_texts()[:2] == ["this machine", "h100"]
    gpu.select_option("h200")
    expect(page.locator(".rp-lab-top .rp-sub")).to_contain_text("each simulated once, order A B")
    page.locator("#lab-run").click()
    expect(row(page, "itl_p50_ms").locator("td").nth(1)).to_have_text(re.compile(r"\d"))
    said = page.locator(".rp-lab-look li").all_inner_texts()
    assert said[-1].startswith("Simulated: A: H100 SXM, calibrated on ")
    assert "; B: H200 SXM, uncalibrated" in said[-1]
    assert not any("repeat it" in line for line in said)
    expect(page.locator("#rp-lab-result .rp-sub")).to_have_text("each simulated once")
    gpu.select_option("this machine")
    page.locator("#lab-run").click()
    expect(page.locator(".rp-lab-error")).to_contain_text("Arm B: this engine is simulated")

    page.locator("[data-mode=find]").click()
    page.locator("#lab-run").click()
    answer = page.locator(".rp-lab-answer")
    expect(answer).to_contain_text("No prefill budget is needed: both limits are kept without one.")
    expect(page.locator("#lab-apply")).to_be_hidden()
    expect(answer).to_contain_text(
        re.compile(r"TTFT p95 is [\d.]+ ms \(limit 500 ms\) and ITL p99 is [\d.]+ ms \(limit 50 ms\)")
    )
