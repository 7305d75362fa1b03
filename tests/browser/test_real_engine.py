"""The whole page with the embedded model on the real engine: what it computes reaches every view."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, Page, expect

from roseplay.config import SamplingParams
from tests.browser.test_demos import RINGED, UNDER_WAY, caption
from tests.browser.test_replay import idle
from tests.browser.test_requests import cells, press, rows, table
from tests.browser.test_terms import overlap
from tests.pages import Served, answer_at_most, ask, ready, reload, state, text

ENDED = re.compile(r"(done ·|cut at) [1-9]\d* tok")
CHARTS = ("rp-itl", "rp-tokens", "rp-kvtime")
SHORT = SamplingParams(max_new_tokens=4, ignore_eos=True)
# The first findable block whose text contains the words; a pool in use hands out its blocks in any order.
BLOCK_WITH = """async (words) => {
  for (let block = 1; block < Rose.blocks.findable.length; block++) {
    if (!Rose.blocks.findable[block]) continue;
    const { text } = await (await fetch(`/ui/block/${block}?tab=${Rose.tab}`)).json();
    if (text && text.includes(words)) return block;
  }
}"""
# Whether something is drawn in a chart, and a line where a setting has changed.
DRAWN = """([id, marked]) => {
  const { data, layout } = document.querySelector(`#${id} .rp-plot`)?.drawn ?? { data: [], layout: {} };
  return data.some((trace) => trace.x.length) && (!marked || layout.shapes.some((shape) => shape.name === 'knob'));
}"""


@pytest.fixture
def page_of(live: Served) -> Served:
    return live


def test_a_conversation_streams_fills_blocks_uses_the_cache_and_survives_a_reload(live: Served, page: Page) -> None:
    live.engine.clear_cache()  # drop what other tests cached
    answer_at_most(page, 40)
    question = "What is a KV block? Tell me all about it."
    ask(page, question)
    for lane in range(1, 5):
        expect(page.locator(f"#rp-lane-{lane} h4")).to_have_text(question)
        expect(state(page, lane)).to_have_text(ENDED)
        expect(text(page, lane)).to_have_text(re.compile(r"\w+ \w+ \w+"))
        expect(page.locator(f"#rp-lane-{lane} .rp-ttft")).to_have_text(re.compile(r"TTFT [\d.]+ m?s"))
        expect(page.locator(f"#rp-lane-{lane} .rp-itl")).to_have_text(re.compile(r"ITL [\d.]+ ms"))
    expect(page.locator("#prompt input")).to_have_value("")

    page.wait_for_function("Rose.blocks.counts().cached > 0")
    block = page.evaluate(BLOCK_WITH, "KV block")
    assert block, "no findable block holds the prompt"
    box = page.locator("#rp-blockmap canvas").bounding_box()
    assert box
    page.mouse.click(box["x"] + 38 + ((block - 1) % 64) * 8 + 3, box["y"] + 2 + ((block - 1) // 64) * 15 + 5)
    popover = page.get_by_role("dialog", name=f"Block {block}")
    expect(popover.locator("blockquote")).to_contain_text("KV block")
    expect(popover).to_contain_text("No request holds it. It is")
    expect(popover).to_contain_text(re.compile(r"last usestep \d+"))
    page.keyboard.press("Escape")

    ask(page, "And what does the prefix cache do?")
    turns = page.locator("#rp-lane-1 .rp-turn")
    expect(turns).to_have_count(2)
    expect(state(page, 1)).to_have_text(ENDED)
    expect(turns.nth(1).locator(".rp-q .rp-ask")).to_have_text(re.compile(r"[1-9]\d* of \d+ cached"))
    expect(state(page, 1)).to_have_attribute("title", re.compile(r"\([1-9]\d* of them cached"))
    before = turns.all_inner_texts()
    reload(page)
    ready(page)
    expect(turns).to_have_count(2)
    assert turns.all_inner_texts() == before
    at_end = "t => t.scrollHeight - t.scrollTop - t.clientHeight < 30"
    page.wait_for_function(at_end, arg=page.query_selector("#rp-lane-1 .rp-text"))
    page.locator("#rp-lane-1 .rp-text").evaluate("(text) => (text.style.cssText = 'flex: none; height: 60px')")
    page.wait_for_function(at_end, arg=page.query_selector("#rp-lane-1 .rp-text"))
    page.locator("#rp-lane-1 .rp-text").evaluate("(text) => (text.style.cssText = '')")


def saved_by_sharing(page: Page, column: int) -> dict[str, str]:
    """A column of the table in the figure's popover, which is opened and closed by keyboard: 0 last burst, 1 in all."""
    figure = page.get_by_role("button", name="saved by sharing")
    figure.press("Enter")
    popover = page.get_by_role("dialog", name="saved by sharing")
    expect(popover).to_be_focused()
    rows = popover.locator("tbody tr")
    facts = dict(
        zip(
            rows.locator("th").all_inner_texts(),
            rows.locator(f"td:nth-of-type({column + 1})").all_inner_texts(),
            strict=True,
        )
    )
    page.keyboard.press("Escape")
    expect(popover).to_be_hidden()
    return facts


def test_a_burst_is_seen_everywhere(page: Page) -> None:
    page.locator("#answer-length input[type=number]").fill("16")
    page.locator("#answer-length input[type=number]").press("Tab")
    page.locator("#burst").click()
    expect(page.locator(".rp-kpi.saved b")).not_to_have_text("–")
    expect(page.locator(".rp-kpi.ttft b")).to_have_text(re.compile(r"\d+.*/.*\d+.*ms"))
    page.wait_for_function("() => Rose.store.steps.size > 0 && Rose.store.tokens.size >= 320")
    page.wait_for_function("() => Rose.store.burst?.done === 20")
    page.wait_for_function("() => Rose.store.stats?.in_all?.prompt_tokens >= Rose.store.burst.prompt_tokens")
    expect(page.locator(".rp-strip[data-burst] .rp-story-text p").first).to_contain_text("20 prompts")
    facts, in_all = saved_by_sharing(page, 0), saved_by_sharing(page, 1)
    assert (facts[""], in_all[""].endswith(" requests"), in_all["TTFT p50 / p95"]) == ("20 × same start", True, "")
    names = ("prompt tokens", "computed", "from the prefix cache", "from the same step", "blocks saved")
    prompt, computed, cached, shared, blocks = (int(re.sub(r"\D", "", facts[name])) for name in names)
    assert prompt == computed + cached + shared <= int(re.sub(r"\D", "", in_all["prompt tokens"]))
    assert cached + shared > 19 * 512 - 20 * 16
    assert blocks >= 19 * 31
    assert re.fullmatch(r"[\d\u202f.]+ / [\d\u202f.]+ ms", facts["TTFT p50 / p95"])


def test_the_table_of_requests_is_the_same_after_a_reload(live: Served, page: Page) -> None:
    answer_at_most(page, 12)
    ask(page, "What is a KV block?")
    expect(state(page, 4)).to_contain_text(re.compile("done|cut"))
    stream = live.engine.submit([7] * 40, SHORT)
    stream.result(timeout=60)
    press(page, "requests")
    program = table(page).locator(f"tr[data-rid='{stream.request_id}']")
    expect(program).to_contain_text("program")
    expect(program.locator(".rp-of-answer")).to_have_text("4")
    expect(program.locator(".rp-of-finish")).to_have_text("length")
    own = page.locator("#rp-lane-2 [data-rid]").get_attribute("data-rid")  # other tabs have a lane 2 too
    lane = table(page).locator(f"tr[data-rid='{own}']")
    expect(lane).to_contain_text("lane 2")
    lane.click()
    expect(page.locator("#rp-lane-2")).to_have_class(re.compile("rp-selected"))
    assert page.locator(".rp-lane.rp-selected").count() == 1
    expect(page.get_by_role("dialog")).to_be_hidden()
    before = cells(page, int(own or 0))
    lane.click()
    expect(page.locator(".rp-lane.rp-selected")).to_have_count(0)
    reload(page)
    page.wait_for_function("window.Rose && Rose.store.requests.size >= 5")
    for chart in CHARTS:
        page.wait_for_function(DRAWN, arg=[chart, False])
    press(page, "requests")
    expect(lane).to_be_visible()
    assert cells(page, int(own or 0)) == before


# ---- why a prompt was not cached

HEAD = "You are a helpful assistant who explains LLM serving in short, plain sentences to people who know Python. "


def send(page: Page, served: Served, lane: int, prompt: str) -> list[int]:
    """Ask in one lane of the page's tab and wait for the answer; returns the prompt's tokens."""
    tab = page.evaluate("Rose.tab")
    data = [prompt, lane, 12, 0, None, tab, True, None, False, *[None] * 8]  # in the endpoint's order
    answer = page.request.post(f"{served.address}/gradio_api/run/submit", data={"data": data})
    (rid,) = answer.json()["data"][0]["ids"]
    expect(state(page, lane)).to_contain_text(re.compile("done|cut"))
    page.wait_for_function("rid => Rose.store.requests.get(rid)?.finished != null", arg=rid)
    messages = [{"role": "user", "content": prompt}]
    return list(served.engine.tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"])


def chip(page: Page, lane: int) -> Locator:
    return page.locator(f"#rp-lane-{lane} .rp-turn:last-child .rp-ask")


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
    assert not overlap(popover, chip(page, 2))
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
    expect(popover.locator("p").first).to_contain_text(re.compile(f"same as its {block} block|do not fill a block"))
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
    assert not overlap(popover, cell)
    assert page.evaluate("Rose.pointing.selected") is None, "asking does not select the row"
    page.keyboard.press("Escape")
    page.keyboard.press("ArrowLeft")
    assert row.evaluate("element => document.activeElement === element")


def check_chosen(page: Page, served: Served) -> None:
    """Click a word of an answer: the popover leaves it uncovered."""
    answer_at_most(page, 12)
    send(page, served, 1, "What is a KV block?")
    page.locator("#rp-lane-1 .rp-a").click(position={"x": 30, "y": 8})
    popover = page.get_by_role("dialog")
    expect(popover).to_be_visible()
    chosen = page.locator("#rp-lane-1 .rp-chosen")
    expect(chosen).to_have_count(1)
    assert not overlap(popover, chosen)


def test_the_word_that_was_clicked_stays_uncovered(live: Served, page: Page) -> None:
    check_chosen(page, live)


# ---- on a phone: its page is loaded once


def test_on_a_phone_a_tap_unfolds_the_rest_of_a_row(live: Served, phone: Page) -> None:
    live.engine.submit([7] * 40, SHORT).result(timeout=60)
    press(phone, "requests")
    table(phone).scroll_into_view_if_needed()  # what is out of view is not filled
    row = rows(phone).first
    expect(row).to_be_visible()
    heads = table(phone).locator("thead th:visible").all_inner_texts()
    assert heads == ["id", "state", "TTFT", "worst gap"]
    box = row.bounding_box()
    assert box and box["height"] >= 44
    row.tap()
    told = table(phone).locator(".rp-unfolded dt").all_inner_texts()
    assert {"source", "TPOT"} <= set(told) and "state" not in told
    assert phone.evaluate("document.documentElement.scrollWidth <= innerWidth")
    row.tap()
    expect(table(phone).locator(".rp-unfolded")).to_have_count(0)


def test_the_word_that_was_tapped_stays_uncovered_on_a_phone(live: Served, phone: Page) -> None:
    check_chosen(phone, live)


def test_on_a_phone_the_caption_is_a_sheet_and_the_label_of_a_ring_stays_inside_its_panel(phone: Page) -> None:
    answer_at_most(phone, 4)
    ask(phone, "What is TTFT?")
    expect(phone.locator("#rp-lane-1 .rp-state")).to_contain_text(re.compile("done|cut"))  # a prompt ends a demo
    phone.get_by_role("button", name="Show me", exact=True).click()
    phone.locator(".rp-pop").get_by_role("button", name=re.compile("Burst and budget")).click()
    expect(caption(phone)).to_contain_text(UNDER_WAY)
    answer = phone.locator(".rp-story-answers button").nth(2).bounding_box()
    assert answer and answer["height"] >= 44 and answer["x"] + answer["width"] <= 390
    phone.locator(".rp-story-answers button").first.tap()
    expect(phone.locator(".rp-story-answers")).to_be_hidden()
    box = phone.locator(".rp-strip").bounding_box()
    assert box and box["y"] + box["height"] == pytest.approx(844, abs=1)
    for name in ("Next", "Stop"):
        button = phone.get_by_role("button", name=name, exact=False).last.bounding_box()
        assert button and button["height"] >= 44
    phone.locator(".rp-story-controls").get_by_role("button", name="Stop").click()
    expect(phone.locator(".rp-strip")).not_to_have_attribute("data-about", "demo")

    idle(phone)  # otherwise its step may leave the view
    words = "1,234,567 prompt tokens in one step of the engine"
    last = phone.evaluate("() => Rose.store.steps.step_id[(Rose.store.steps.end - 1) & Rose.store.steps.mask]")
    phone.evaluate(RINGED, {"of": "step", "step": last, "label": words})
    label = phone.locator(".rp-ring:visible > span")
    expect(label).to_contain_text(words)
    panel, box = phone.locator("#rp-tokens").bounding_box(), label.bounding_box()
    assert panel and box
    assert box["x"] >= panel["x"] and box["x"] + box["width"] <= panel["x"] + panel["width"]
    assert label.evaluate("(one) => one.scrollWidth <= one.clientWidth"), "words are cut"
