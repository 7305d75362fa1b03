"""The popover "Why was this token slow?", in made-up steps and in real ones."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from roseplay.engine.records import StepRow
from tests.browser.modules import bare_page

LAST = 10  # the step with prompts


@pytest.fixture(scope="module")
def page(browser: Browser) -> Iterator[Page]:
    """Requests 1 and 2 decode in ten quiet steps, then in one that also computes prompts of requests 3 and 4."""
    page = bare_page(browser, "<body></body>")
    requests, steps, tokens = [], [], []
    for rid in (1, 2, 3, 4):
        about = {"kind": "lane" if rid == 1 else "burst", "lane": 1 if rid == 1 else None, "prompt_tokens": 8}
        requests += [[rid, "submitted", 999.0, about], [rid, "scheduled", 1000.0, {"queue_ms": 1.0}]]
    for number in range(LAST + 1):
        ms, prompts = (141, {3: 500, 4: 12}) if number == LAST else (20, {})
        t0, t1 = 1000.0 + 20 * number, 1000.0 + 20 * number + ms
        parts = [[rid, 0, 1, 8, 8, 0, 0] for rid in (1, 2)] + [[rid, n, 0, n, n, 0, 0] for rid, n in prompts.items()]
        step = StepRow(
            number, t0=t0, t1=t1, prompt_tokens=sum(prompts.values()), decode_tokens=2, cached_tokens=5, shared_tokens=6,
            running=len(parts), usual_batch=2, blocks_free=400, blocks_active=48, device_ms=ms - 2, host_ms=1.5, entries=parts, replayed=True,
        )  # fmt: skip
        steps.append(step.values())
        cause = "prompts" if number == LAST else None
        tokens += [[rid, t1, ms if number else None, number, 20.0, cause] for rid in (1, 2)]
    frame = {"t": 1.0, "steps": steps, "tokens": tokens, "requests": requests, "knobs": []}
    snapshot = {"knobs": {"slow_motion": 1.0}, "info": {"num_blocks": 449}}
    delta = {"boot_id": "one", "next": 2, "reset": True, "now": t1, "frames": [frame], "snapshot": snapshot}
    page.evaluate("delta => Rose.apply(delta)", delta)
    yield page
    page.close()


def test_the_popover_says_why(page: Page) -> None:
    """All causes are covered by ``tests/play/static/why.test.js``."""
    page.evaluate("step => Rose.emit('select', {rid: 1, step})", LAST)
    expect(page.locator(".rp-pop-body p").first).to_have_text(
        "Its step also computed 512 prompt tokens for #3 and #4, so it took 141\xa0ms instead of 20."
    )
    assert page.locator(".rp-pop-body p").first.locator("b").all_inner_texts() == ["512 prompt tokens", "141\xa0ms"]
    facts = page.locator(".rp-pop dl").inner_text().replace("\n", " ")
    for words in ("lane 1 · 11", "2 decode + 2 prompts", "queue wait 1.0\xa0ms", "preempted no", "replayed yes"):
        assert words in facts
    bar = page.locator(".rp-share i").evaluate_all("parts => parts.map((i) => parseFloat(i.style.width))")
    assert bar == pytest.approx([100 * 2 / 514, 100 * 512 / 514], abs=0.01)
    assert page.locator(".rp-pop .rp-hand").all_inner_texts() == ["With budget 256: about 81\xa0ms."]
