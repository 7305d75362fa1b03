"""The page's explanations: of terms, in place, by click, tap and keyboard, never covering the term itself; of what has
happened, in Traces; of what the page does, in the help; and of what shades mean."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from roseplay.play import playground
from tests.pages import Served, ready, reload


def popover(page: Page, name: str) -> Any:
    return page.get_by_role("dialog", name=name, exact=True)


def term(page: Page, name: str) -> Any:
    return page.get_by_role("button", name=name, exact=True)


def rows(page: Page) -> dict[str, str]:
    found = page.locator(".rp-pop")
    return dict(zip(found.locator("dt").all_inner_texts(), found.locator("dd").all_inner_texts(), strict=True))


def overlap(one: Locator, other: Locator) -> bool:
    a, b = one.bounding_box(), other.bounding_box()
    assert a and b
    wide = a["x"] < b["x"] + b["width"] and b["x"] < a["x"] + a["width"]
    return wide and a["y"] < b["y"] + b["height"] and b["y"] < a["y"] + a["height"]


def test_a_knob_says_what_it_is_what_to_watch_and_how_it_stands(mock: Served, page: Page) -> None:
    mock.engine.set_knobs(max_batch_size=8)
    page.wait_for_function("() => Rose.store.knobs.max_batch_size === 8")
    term(page, "Max batch").click()
    expect(popover(page, "Max batch")).to_contain_text("Maximum number of requests that run at once.")
    found = rows(page)
    assert list(found) == ["watch", "costs", "vLLM", "now"]
    assert found["vLLM"] == "--max-num-seqs"
    assert re.fullmatch(r"8, changed .* m?s ago from 32", found["now"])
    mock.engine.set_knobs(max_batch_size=9)
    expect(page.locator(".rp-pop dd").last).to_have_text(re.compile("^9, changed "))  # while the popover is open
    term(page, "Prefill budget").click()
    expect(popover(page, "Max batch")).to_be_hidden()
    assert rows(page)["vLLM"] == "no equivalent; nearest: --max-num-batched-tokens"
    page.locator("#rp-more-button").click()  # where what cannot act here is
    term(page, "CUDA graphs").click()
    assert rows(page)["now"] == "on", "nothing has changed it"
    page.locator("#rp-more-button").click()


def test_by_keyboard(mock: Served, page: Page) -> None:
    label = term(page, "Prefix cache")
    for key in ("Enter", "Space"):
        label.press(key)
        expect(popover(page, "Prefix cache")).to_be_focused()
        expect(label).to_have_attribute("aria-expanded", "true")
        page.keyboard.press("Escape")
        expect(popover(page, "Prefix cache")).to_be_hidden()
        expect(label).to_be_focused()
        expect(label).to_have_attribute("aria-expanded", "false")
    assert mock.engine.knobs.prefix_cache, "the switch was not toggled"
    expect(page.get_by_role("checkbox", name="Prefix cache")).to_be_checked()  # still labelled by the term


def test_every_word_has_one_and_none_covers_its_word(page: Page) -> None:
    expect(term(page, "Rate")).to_be_visible()
    expect(page.get_by_role("button", name="What is same start?")).to_be_visible()
    terms = page.locator(".rp-term:visible")
    names = terms.all_inner_texts()
    for word in ("Scheduler", "Step tokens", "Slow motion", "Answer length", "tokens/s", "KV in use", "Steps", "TTFT"):
        assert word in names
    box = page.locator(".rp-pop")
    terms.first.hover()
    expect(box).not_to_be_visible()  # hovering does not open it
    for i in range(len(names)):
        word = terms.nth(i)
        word.click()
        expect(box).to_be_visible()
        assert box.locator("p").inner_text(), names[i]
        where = box.bounding_box()
        assert not overlap(box, word), names[i]
        assert where["x"] >= 0 and where["y"] >= 0 and where["y"] + where["height"] <= 900, names[i]
        page.keyboard.press("Escape")
        expect(box).to_be_hidden()
    word.dblclick()  # the second click closes what the first one opens
    expect(box).to_be_hidden()


def test_the_kind_of_prompts_that_is_chosen(page: Page) -> None:
    page.locator("#mix label", has_text="equal").click()
    page.get_by_role("button", name="What is equal?").click()
    expect(popover(page, "equal")).to_contain_text("one of them is computed")
    expect(page.locator("#mix label.selected")).to_have_text("equal")


def test_words_can_be_asked_while_the_controls_are_locked(page: Page) -> None:
    page.evaluate("async () => (await Rose.load('shared/lock.js')).lock('test', 'not now', '#rp-sched')")
    expect(page.locator("#max-batch input[type=range]")).to_be_disabled()
    term(page, "Max batch").click()
    expect(popover(page, "Max batch")).to_be_visible()
    page.evaluate("async () => (await Rose.load('shared/lock.js')).lock('test', null, '#rp-sched')")


def test_what_happened_lists_bursts_and_changed_settings_and_the_timeline_by_itl_has_a_legend(
    mock: Served, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(playground, "SNAPSHOT_MS", 0)  # a page that is reloaded gets nothing of what was before
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
    rows = page.locator(".rp-contents tbody tr")
    for again in (False, True):
        if again:
            reload(page)
            ready(page)
        page.get_by_role("tab", name="Traces").click()
        expect(rows.filter(has_text=re.compile(r"burst \d+, \d+ requests"))).not_to_have_count(0)
        expect(rows.filter(has_text=re.compile("→ 7"))).to_have_count(1)
        expect(rows.filter(has_text=re.compile(r"\d+ of \d+.* ms"))).not_to_have_count(0)
        expect(page.locator(".rp-contents-none")).to_be_hidden()


def test_what_is_computed_on_a_machine_that_lacks_nothing_has_no_mark(page: Page) -> None:
    expect(page.locator(".rp-model-chip")).to_contain_text("fake-chat")
    expect(page.locator(".rp-slower")).to_have_count(0)
    expect(page.locator(".rp-sim-mark")).to_be_hidden()
    assert page.locator("#rp-itl .rp-sub").evaluate("(one) => getComputedStyle(one, '::before').content") == "none"
