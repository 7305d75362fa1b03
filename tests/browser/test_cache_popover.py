"""Why was my prompt not cached: the sentences for all reasons, and the popover of real prompts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from roseplay.core.cache_miss import MissReason
from tests.browser.conftest import DESKTOP, PHONE, Served, answer_at_most, state
from tests.browser.modules import bare_page

NOTHING = {"request": None, "step": None, "position": None}


@pytest.fixture(scope="module")
def page(browser: Browser) -> Iterator[Page]:
    page = bare_page(browser, "<body></body>")
    page.evaluate("async () => { window.words = await Rose.load('live/cachewords.js'); }")
    step = [41, 1000.0, 1020.0, 0, 1, 0, 0, 1, 0, 400, 0, 48, 0, 9, 1, 0, [], [], []]
    delta = {"boot_id": "one", "next": 2, "reset": True, "now": 3530.0, "frames": [{"steps": [step]}]}
    page.evaluate("delta => Rose.apply(delta)", delta)
    page.evaluate("Rose.time.follow(() => 3520)")
    yield page
    page.close()


def about(page: Page, name: str, prompt: int, cached: int, miss: dict[str, Any] | None) -> Any:
    told = {"prompt": prompt, "cached": cached, "block": 16, "miss": miss and {**NOTHING, **miss}}
    return page.evaluate(f"about => words.{name}(about)", told)


def sentence(page: Page, prompt: int, cached: int, miss: dict[str, Any] | None) -> str:
    parts = about(page, "sentenceOf", prompt, cached, miss)
    return "".join(p if isinstance(p, str) else p.get("bold") or f"#{p['rid']}" for p in parts)


@pytest.mark.parametrize(
    ("miss", "expected"),
    [
        ({"reason": "differs", "found": 48, "position": 51}, "it differs from what is cached at token 52."),
        ({"reason": "differs", "found": 48}, "it differs from what is cached within its 4th block."),
        ({"reason": "short", "found": 48}, "its last 35 tokens do not fill a block of 16."),
        ({"reason": "unfilled", "found": 48, "position": 50}, "a block of 16 tokens was never filled."),
        ({"reason": "computing", "found": 48, "request": 5}, "it was still being computed by request #5."),
        ({"reason": "evicted", "found": 48, "step": 41}, "its blocks were given to others 2.5 s ago."),
        ({"reason": "cleared", "found": 48, "step": 41}, "the cache was cleared 2.5 s ago."),
        ({"reason": "evicted", "found": 48, "step": 11}, "its blocks were given to others 30 steps ago."),
        ({"reason": "off", "found": 48}, "the prefix cache was off."),
        (
            {"reason": "logprobs", "found": 48},
            "log-probabilities of its tokens were asked for, and only computing them gives these.",
        ),
        ({"reason": "ends", "found": 48}, "what is cached ends at token 48."),
        ({"reason": "new", "found": 48}, "nothing that is cached begins like it."),
    ],
)
def test_each_reason_is_a_sentence(page: Page, miss: dict[str, Any], expected: str) -> None:
    there = "48 of 83 tokens were there already. The rest was computed, because "
    assert sentence(page, 83, 48, miss) == there + expected
    assert about(page, "helps", 0, 0, None) == ""
    assert len(page.evaluate("miss => words.helps(miss)", miss)) > 20


def test_no_reason_is_forgotten(page: Page) -> None:
    for reason in MissReason:
        assert "not known" not in sentence(
            page, 83, 48, {"reason": str(reason), "found": 48, "position": 50, "step": 41}
        )


def test_other_sentences(page: Page) -> None:
    assert sentence(page, 14, 14, None) == "All 14 tokens were there already. Nothing of it was computed."
    assert sentence(page, 14, 13, {"reason": "logits", "found": 13}).startswith(
        "13 of 14 tokens were there already. The last one was computed again"
    )
    assert sentence(page, 14, 0, {"reason": "short", "found": 0}) == (
        "0 of 14 tokens were there already. The prompt was computed, because it is shorter than a block of 16 tokens."
    )
    for unknown in (None, {"reason": "of a later version", "found": 0}):
        assert sentence(page, 14, 3, unknown).endswith("The rest was computed; why is not known here.")


@pytest.mark.parametrize(
    ("prompt", "cached", "miss", "expected"),
    [
        (83, 48, {"reason": "differs", "found": 48}, (6, 3, 3, "3 whole blocks of 16 found · the 4th differs inside · 2 after it")),
        (83, 80, {"reason": "short", "found": 80}, (6, 5, 5, "5 whole blocks of 16 found · the 6th is not full")),
        (83, 0, {"reason": "new", "found": 0}, (6, 0, -1, "no whole block of 16 found · 6 computed")),
        (83, 83, None, (6, 6, -1, "all 6 blocks found")),
    ],
)  # fmt: skip
def test_blocks(page: Page, prompt: int, cached: int, miss: Any, expected: tuple[Any, ...]) -> None:
    told = about(page, "blocksOf", prompt, cached, miss)
    assert (told["total"], told["found"], told["at"], told["words"]) == expected


# ---- on the page


HEAD = "You are a helpful assistant who explains LLM serving in short, plain sentences to people who know Python. "


def send(page: Page, served: Served, lane: int, prompt: str) -> list[int]:
    """Ask in one lane of the page's tab and wait for the answer; returns the prompt's tokens."""
    tab = page.evaluate("Rose.tab")
    data = [prompt, lane, 12, 0, None, tab, True, *[None] * 6, False]  # as the endpoint takes them
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


def test_two_lanes_that_begin_alike(live: Served, open_page: Callable[..., Page]) -> None:
    live.engine.clear_cache()
    page = open_page(live)
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
        f"{found} of {len(dog)} tokens were there already. The rest was computed, because it differs from what is cached "
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
    # Another tab's prompt begins the same: how many whole blocks, and nothing more.
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
    assert "nearest" not in popover.locator("dl").inner_text(), "not even whose it is"


def test_from_the_table(live: Served, open_page: Callable[..., Page]) -> None:
    live.engine.clear_cache()
    page = open_page(live)
    answer_at_most(page, 12)
    send(page, live, 1, "What is a KV block?")
    page.locator("#rp-steps").get_by_role("button", name="requests", exact=True).click()
    row = page.locator(".rp-requests tbody tr").filter(has_text="lane 1").first
    cell = row.locator(".rp-ask")
    expect(cell).to_have_text("·")
    row.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    popover = page.get_by_role("dialog", name="Why was my prompt not cached?")
    expect(popover).to_contain_text("tokens were there already. The prompt was computed, because ")
    assert apart(page, popover, cell)
    assert page.evaluate("Rose.pointing.selected") is None, "asking is not selecting"
    page.keyboard.press("Escape")
    page.keyboard.press("ArrowLeft")
    assert row.evaluate("element => document.activeElement === element")


@pytest.mark.parametrize("view", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_the_word_that_was_clicked_stays_uncovered(
    live: Served, open_page: Callable[..., Page], view: dict[str, Any]
) -> None:
    page = open_page(live, **view)
    answer_at_most(page, 12)
    send(page, live, 1, "What is a KV block?")
    box = page.locator("#rp-lane-1 .rp-a").bounding_box()
    assert box
    page.mouse.click(box["x"] + 30, box["y"] + 8)
    popover = page.get_by_role("dialog")
    expect(popover).to_be_visible()
    chosen = page.locator("#rp-lane-1 .rp-chosen")
    expect(chosen).to_have_count(1)
    assert apart(page, popover, chosen)
