"""The popover "Why was my prompt not cached?", with real prompts."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.conftest import Served, answer_at_most, state


@pytest.fixture
def page_of(live: Served) -> Served:
    return live


HEAD = "You are a helpful assistant who explains LLM serving in short, plain sentences to people who know Python. "


def send(page: Page, served: Served, lane: int, prompt: str) -> list[int]:
    """Ask in one lane of the page's tab and wait for the answer; returns the prompt's tokens."""
    tab = page.evaluate("Rose.tab")
    data = [prompt, lane, 12, 0, None, tab, True, *[None] * 6, False, None, None]  # in the endpoint's order
    answer = page.request.post(f"{served.address}/gradio_api/run/submit", data={"data": data})
    (rid,) = answer.json()["data"][0]["ids"]
    expect(state(page, lane)).to_contain_text(re.compile("done|length"))
    page.wait_for_function("rid => Rose.store.requests.get(rid)?.finished != null", arg=rid)
    messages = [{"role": "user", "content": prompt}]
    return list(served.engine.tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"])


def chip(page: Page, lane: int) -> Locator:
    return page.locator(f"#rp-lane-{lane} .rp-turn:last-child .rp-ask")


def apart(page: Page, one: Locator, other: Locator) -> bool:
    a, b = one.bounding_box(), other.bounding_box()
    assert a
    assert b
    return (
        a["x"] + a["width"] <= b["x"]
        or b["x"] + b["width"] <= a["x"]
        or a["y"] + a["height"] <= b["y"]
        or b["y"] + b["height"] <= a["y"]
    )


def test_two_lanes_that_begin_alike(live: Served, page: Page, open_page: Callable[..., Page]) -> None:
    live.engine.clear_cache()
    answer_at_most(page, 12)
    fox = send(page, live, 1, HEAD + "Why did ITL spike in the last step of this run, and who had to wait?")
    dog = send(page, live, 2, HEAD + "What does the prefix cache do for a prompt that begins like another?")
    k = next(i for i, (a, b) in enumerate(zip(fox, dog, strict=False)) if a != b)
    found = k - k % 16
    expect(chip(page, 1)).to_have_text(f"0 of {len(fox)} cached")
    expect(chip(page, 2)).to_have_text(f"{found} of {len(dog)} cached")
    chip(page, 2).click()
    popover = page.get_by_role("dialog", name="Why was my prompt not cached?")
    expect(popover.locator("p").first).to_have_text(
        f"{found} of {len(dog)} tokens were reused. The rest was computed, because it differs from what is cached "
        f"at token {k + 1}."
    )
    decode = live.engine.tokenizer.decode
    expect(popover.locator("mark")).to_have_text(decode(dog[:found]))
    expect(popover.locator("u")).to_have_text(decode(dog[k : k + 1]).strip(), use_inner_text=True)
    assert decode(dog) in popover.locator("blockquote").inner_text().replace("\n", " ")
    nearest = popover.locator("dl").inner_text()
    assert "lane 1" in nearest
    assert decode(fox[k : k + 2]) in nearest
    assert popover.locator(".rp-cells .rp-found").count() == found // 16
    assert apart(page, popover, chip(page, 2))
    assert chip(page, 2).get_attribute("aria-expanded") == "true"
    page.keyboard.press("Escape")
    expect(popover).to_be_hidden()
    assert chip(page, 2).evaluate("element => document.activeElement === element"), "the focus returns"
    # A prompt of another tab begins the same way: the popover gives the number of whole blocks, and nothing more.
    other = open_page(live)
    answer_at_most(other, 12)
    cat = send(other, live, 3, HEAD + "What does the prefix cache cost?")
    chip(other, 3).click()
    popover = other.get_by_role("dialog", name="Why was my prompt not cached?")
    expect(popover.locator("blockquote")).to_contain_text("cost?")
    same = next(i for i, (a, b) in enumerate(zip(cat, dog, strict=False)) if a != b)
    block = {0: "1st", 1: "2nd", 2: "3rd"}.get(same // 16, f"{same // 16 + 1}th")
    expect(popover.locator("p").first).to_contain_text(re.compile(f"within its {block} block|do not fill a block"))
    assert popover.locator("u").count() == 0
    assert "nearest" not in popover.locator("dl").inner_text(), "nor even whose prompt it is"


def test_from_the_table(live: Served, page: Page) -> None:
    live.engine.clear_cache()
    answer_at_most(page, 12)
    send(page, live, 1, "What is a KV block?")
    page.locator("#rp-steps").get_by_role("button", name="requests", exact=True).click()
    newest = page.evaluate("Math.max(...Rose.store.requests.keys())")  # other tabs have a lane 1, too
    row = page.locator(f".rp-requests tbody tr[data-rid='{newest}']")
    cell = row.locator(".rp-ask")
    expect(cell).to_have_text("·")
    row.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    popover = page.get_by_role("dialog", name="Why was my prompt not cached?")
    expect(popover).to_contain_text("tokens were reused. The prompt was computed, because ")
    assert apart(page, popover, cell)
    assert page.evaluate("Rose.pointing.selected") is None, "asking does not select the row"
    page.keyboard.press("Escape")
    page.keyboard.press("ArrowLeft")
    assert row.evaluate("element => document.activeElement === element")


def check_chosen(page: Page, served: Served) -> None:
    """Click a word of an answer: the popover leaves it uncovered."""
    answer_at_most(page, 12)
    send(page, served, 1, "What is a KV block?")
    box = page.locator("#rp-lane-1 .rp-a").bounding_box()
    assert box
    page.mouse.click(box["x"] + 30, box["y"] + 8)
    popover = page.get_by_role("dialog")
    expect(popover).to_be_visible()
    chosen = page.locator("#rp-lane-1 .rp-chosen")
    expect(chosen).to_have_count(1)
    assert apart(page, popover, chosen)


def test_the_word_that_was_clicked_stays_uncovered(live: Served, page: Page) -> None:
    check_chosen(page, live)


def test_the_word_that_was_tapped_stays_uncovered_on_a_phone(live: Served, phone: Page) -> None:
    check_chosen(phone, live)
