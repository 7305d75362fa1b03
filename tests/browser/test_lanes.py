"""Chats in lanes: they stream, survive a reload, and belong to their tab."""

from __future__ import annotations

import re
from collections.abc import Callable

from playwright.sync_api import Page, Route, expect

from roseplay.engine.records import COLUMNS
from tests.browser.conftest import Served, answer_at_most, ask, ready, reload, settled, state, text

Open = Callable[..., Page]
RUNNING = re.compile(r"decode · \d+\+[1-9]\d* tok")


def test_a_prompt_streams_in_all_lanes(live: Served, open_page: Open) -> None:
    page = open_page(live)
    ask(page, "What is a KV block?")
    for lane in range(1, 5):
        expect(page.locator(f"#rp-lane-{lane} h4")).to_have_text("What is a KV block?")
        expect(state(page, lane)).to_have_text(re.compile(r"(done|length) · \d+\+[1-9]\d* tok"))
        expect(text(page, lane)).to_have_text(re.compile(r"\w+ \w+ \w+"))
        expect(page.locator(f"#rp-lane-{lane} .rp-ttft")).to_have_text(re.compile(r"TTFT [\d.]+ m?s"))
        expect(page.locator(f"#rp-lane-{lane} .rp-itl")).to_have_text(re.compile(r"ITL [\d.]+ ms"))
    expect(page.locator("#prompt input")).to_have_value("")


def test_one_lane_can_be_asked_and_stopped(mock: Served, open_page: Open) -> None:
    page = open_page(mock)
    page.locator("#to input").click()
    page.get_by_role("option", name=re.compile("lane 3")).click()
    ask(page, "hello")
    expect(state(page, 3)).to_have_text(RUNNING)
    expect(state(page, 1)).to_be_empty()
    page.get_by_role("button", name="Stop lane 3").click()
    expect(state(page, 3)).to_have_text(re.compile(r"stopped · \d+\+\d+ tok"))


def test_two_tabs_do_not_fight(mock: Served, open_page: Open) -> None:
    mine, yours = open_page(mock), open_page(mock)
    for page in (mine, yours):
        answer_at_most(page, 1800)  # still running when it is stopped, even on a busy machine
    ask(mine, "mine")
    ask(yours, "yours")
    expect(state(mine, 1)).to_have_text(RUNNING)
    expect(state(yours, 1)).to_have_text(RUNNING)
    mine.locator("#stop").click()
    for lane in range(1, 5):
        expect(state(mine, lane)).to_have_text(re.compile("stopped"))
    expect(state(yours, 1)).to_have_text(RUNNING)
    expect(mine.locator("#rp-lane-1 h4")).to_have_text("mine")
    expect(yours.locator("#rp-lane-1 h4")).to_have_text("yours")


def test_one_to_eight_lanes(mock: Served, open_page: Open) -> None:
    page = open_page(mock)
    for count in (1, 8):
        page.locator("#lane-count input").click()
        page.get_by_role("option", name=re.compile(f"^\\W*{count} lane")).click()
        expect(page.locator(".rp-lane:visible")).to_have_count(count)
    ask(page, "hello")
    expect(state(page, 8)).to_have_text(RUNNING)
    overflow = (
        "() => document.documentElement.scrollHeight > innerHeight || document.documentElement.scrollWidth > innerWidth"
    )
    assert not page.evaluate(overflow)
    expect(page.locator("#prompt input")).to_have_value("")  # Gradio reports an error if a reload cuts a call off
    reload(page)
    ready(page)
    expect(page.locator(".rp-lane:visible")).to_have_count(8)
    expect(page.locator("#lane-count input")).to_have_value("8 lanes")


def test_a_question_in_an_empty_lane_can_be_asked(page: Page) -> None:
    page.locator("#rp-lane-2 .rp-hint button").first.click()
    expect(state(page, 2)).to_have_text(RUNNING)
    expect(state(page, 1)).to_be_empty()


def test_reload_keeps_the_text(page: Page) -> None:
    ask(page, "hello")
    expect(state(page, 4)).to_have_text(RUNNING)
    expect(text(page, 4)).to_contain_text("packs prompts")
    expect(page.locator("#prompt input")).to_have_value("")  # Gradio reports an error for a call that a reload cuts off
    before = page.locator("#rp-lane-4 .rp-a").inner_text()
    reload(page)
    ready(page)
    expect(text(page, 4)).to_contain_text(before[:40])
    expect(state(page, 4)).to_have_text(re.compile(r"(decode|length) · 5\+[1-9]\d* tok"))
    expect(page.locator("#rp-lane-4 h4")).to_have_text("hello")


def test_html_of_a_model_is_text(page: Page) -> None:
    ask(page, "<img src=x onerror=alert(1)> & <b>bold</b>")
    expect(text(page, 1)).to_contain_text("waits <b>long</b> für 🌹")
    expect(page.locator("#rp-lane-1 h4")).to_have_text("<img src=x onerror=alert(1)> & <b>bold</b>")
    assert page.locator(".rp-lanes :is(img, .rp-text b, h4 b)").count() == 0


def test_the_text_stays_where_the_reader_scrolled(page: Page) -> None:
    answer_at_most(page, 1800)  # still growing when the reader has scrolled, even on a busy machine
    ask(page, "hello")
    box = text(page, 1)
    expect(box).to_have_js_property("scrollTop", 0)
    page.wait_for_function(
        "() => { const t = document.querySelector('#rp-lane-1 .rp-text'); return t.scrollHeight > t.clientHeight + 100; }"
    )
    follows = "() => { const t = document.querySelector('#rp-lane-1 .rp-text'); return t.scrollHeight - t.scrollTop - t.clientHeight < 30; }"
    page.wait_for_function(follows)
    box.evaluate("t => t.scrollTo(0, 10)")
    length = len(box.inner_text())
    page.wait_for_function("n => document.querySelector('#rp-lane-1 .rp-text').textContent.length > n + 50", arg=length)
    assert box.evaluate("t => t.scrollTop") == 10


def test_an_empty_prompt_is_told_and_nothing_is_lost(page: Page) -> None:
    ask(page, "   ")
    expect(page.get_by_text("the prompt is empty")).to_be_visible()
    ask(page, "x" * 4000)
    expect(page.get_by_text("do not fit")).to_be_visible()
    expect(page.locator("#prompt input")).to_have_value("x" * 4000)
    expect(page.locator(".rp-live")).to_have_attribute("data-state", "live")


def test_what_is_typed_while_a_prompt_is_sent_is_kept(mock: Served, open_page: Open) -> None:
    page, prompt, held = open_page(mock), "#prompt input", list[Route]()
    page.route("**/gradio_api/queue/join*", lambda route: held.append(route))
    for first, then in (("one", "two"), ("   ", "three")):  # the second is refused
        ask(page, first)
        expect(page.locator(prompt)).to_have_value("")
        page.locator(prompt).fill(then)
        while not held:
            page.wait_for_timeout(20)
        held.pop().continue_()
        if first == "one":
            expect(page.locator("#rp-lane-1 h4")).to_have_text("one")
            settled(page)
            expect(page.locator(prompt)).to_have_value("two")
        else:
            expect(page.get_by_text("the prompt is empty")).to_be_visible()
            expect(page.locator(prompt)).to_have_value(re.compile(r"\s+three"))
    page.unroute("**/gradio_api/queue/join*")
    page.locator(prompt).press("Enter")
    expect(page.locator("#rp-lane-1 h4")).to_have_text(re.compile("three"))


def test_the_prompt_says_which_lanes_it_asks(mock: Served, open_page: Open) -> None:
    page = open_page(mock)
    prompt = page.locator("#prompt input")
    expect(prompt).to_have_attribute("placeholder", "Ask all four lanes…")
    page.locator("#to input").click()
    page.get_by_role("option", name="lane 3").click()
    expect(prompt).to_have_attribute("placeholder", "Ask lane 3…")
    page.locator("#lane-count input").click()
    page.get_by_role("option", name="2 lanes").click()
    expect(prompt).to_have_attribute("placeholder", "Ask both lanes…")


def test_a_prompt_sent_during_an_answer_keeps_its_lane_s_row(mock: Served, open_page: Open) -> None:
    page = open_page(mock)
    answer_at_most(page, 1000)
    rid = "() => document.querySelector('#rp-lane-1 .rp-turn:last-child')?.dataset.rid"
    ask(page, "first")
    expect(text(page, 1)).to_contain_text("packs prompts")
    first = page.evaluate(rid)
    ask(page, "second")
    page.wait_for_function(f"(first) => ({rid})() !== first", arg=first)
    second = page.evaluate(rid)
    since = "Rose.store.requests.get(Number(rid))?.submitted ?? Infinity"
    page.wait_for_function(f"(rid) => Rose.time.now() - Rose.time.x({since}) > 800", arg=second)
    page.evaluate("Rose.view.set(Rose.time.now() - 400, Rose.time.now())")  # only its own steps, and they stand still
    page.wait_for_function("() => document.querySelector('#rp-steps .rp-sub').textContent.includes('0.40 s')")  # drawn
    canvas = page.locator("canvas.rp-steps")
    size = canvas.bounding_box()
    assert size
    canvas.hover(position={"x": size["width"] / 2, "y": 58})  # the first lane's row
    assert page.evaluate("String(Rose.pointing.rid)") == second


def test_header_and_chart_have_the_same_gaps_after_slow_motion(mock: Served, open_page: Open) -> None:
    page = open_page(mock)
    for gap in (300.0, 5.0):  # a slow answer long before a fast one, as slow motion leaves them
        page.evaluate(SLOW_FRAMES, [gap, COLUMNS["steps"]])
    page.wait_for_function("() => Rose.time.idle()")
    chart = page.locator("#rp-itl .rp-plot")
    expect(chart).to_have_attribute("aria-label", re.compile("p99"), timeout=20_000)
    panel = "Rose.panels.find((panel) => panel.name === 'itl')"
    drawn = page.evaluate(f"{panel}.draws")
    page.evaluate(f"{panel}.soon()")
    page.wait_for_function(f"(drawn) => {panel}.draws > drawn", arg=drawn)
    labels = page.evaluate(
        "document.querySelector('#rp-itl .rp-plot').drawn.layout.annotations.map(({ lines }) => lines)"
    )
    p99 = next(
        figure["words"] for name, figure in (label for label in labels if len(label) == 2) if name["words"] == "p99"
    )
    expect(page.locator(".rp-kpi.itl b")).to_have_text(re.compile(rf"/{re.escape(p99)}ms$"))
    assert float(p99) > 250


# A frame of 20 tokens with this gap, 20 s after everything before it.
SLOW_FRAMES = """([gap, columns]) => {
  Rose.poll.hold(true);
  const { steps } = Rose.store, from = (window.madeUp = (window.madeUp || Rose.clock()) + 20000), frame = { steps: [], tokens: [], requests: [], knobs: [] };
  const rid = 1e6 + Math.round(from), lane = { kind: "api", lane: null, burst: null, prompt_tokens: 10 };
  frame.requests.push([rid, "submitted", from, lane]);
  let t = from;
  for (let n = 0; n < 20; n++) {
    const number = 1e6 + steps.end + n;
    const empty = { preempted: [], copied: [], graph: null, limit: null }, entries = [[rid, 0, 1, 10, 10, 0, 0]];
    const busy = { decode_tokens: 1, running: 1, blocks_free: 440, blocks_active: 8, device_ms: gap, host_ms: 1 };
    const step = { ...empty, ...busy, step_id: number, t0: t, t1: t + gap, entries };
    frame.steps.push(columns.map((name) => (name in step ? step[name] : 0)));
    t += gap;
    frame.tokens.push([rid, t, n ? gap : null, number]);
  }
  frame.requests.push([rid, "finished", t, { reason: "length", tokens: 20 }]);
  window.madeUp = t;
  const stats = { tok_s: 1, running: 0, waiting: 0, itl_p50: 5, itl_p99: 5, kv_total: 448, kv_active: 0, kv_shared: 0, saved_tokens: 0, step: 1 };
  Rose.time.follow(() => t + 5000);
  Rose.apply({ boot_id: Rose.store.bootId, next: Rose.store.cursor, reset: false, now: t, frames: [{ ...frame, stats }] });
}"""
