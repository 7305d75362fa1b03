"""The button "Show me": a demo plays to its end, and its captions agree with the telemetry."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from roseplay.play.demos import player
from roseplay.play.demos.catalog import BUDGET, DEMOS
from tests.pages import DESKTOP, PHONE, Served, answer_at_most, ask, serving
from tests.play.fake_engine import FakeEngine

Open = Callable[..., Page]
BURST_MS = 60_000  # for a burst to be answered on a busy machine

# What a burst did to the answers in the lanes, computed from the tokens that the page received: their longest gap that
# began before the burst's last first token, and the median of its TTFT.
FACTS = """(burst) => {
  const { store } = Rose, { tokens } = store;
  const own = [...store.requests.values()].filter((one) => one.burst === burst);
  if (!own.length || own.some((one) => one.first === null)) return null;
  const ids = new Set(own.map((one) => one.rid)), ttft = own.map((one) => one.ttft_ms).sort((a, b) => a - b);
  const arrived = Math.min(...own.map((one) => one.submitted));
  const streams = (one) => one && one.first !== null && one.first < arrived && (one.finished ?? Infinity) > arrived;
  const done = Math.max(...own.map((one) => one.first));
  let pause = 0;
  for (let i = tokens.first; i < tokens.end; i++) {
    const slot = i & tokens.mask, id = tokens.request_id[slot], t = tokens.t[slot], gap = tokens.itl_ms[slot];
    const meanwhile = t > arrived && t - gap < done;
    if (meanwhile && !ids.has(id) && streams(store.requests.get(id))) pause = Math.max(pause, gap);
  }
  const median = (ttft[Math.floor((ttft.length - 1) / 2)] + ttft[Math.ceil((ttft.length - 1) / 2)]) / 2;
  return { pause, first_token: median };
}"""


# Captions of the first demo before its end. On a busy page, the first one may be gone before it is looked at.
UNDER_WAY = re.compile("20 prompts|The ringed dot")
BEGUN = re.compile("rp-(now|done)")  # a scene that ends with its burst may be over when it is looked at


def caption(page: Page) -> Any:
    return page.locator(".rp-story-text p").first


def figures(words: str) -> set[int]:
    """The whole numbers in a sentence, which may contain thin spaces."""
    return {int(number) for number in re.findall(r"\d+", re.sub(r"[\u202f\s](?=\d{3}\b)", "", words))}


def newest_burst(page: Page) -> int:
    return page.evaluate("() => Math.max(0, ...[...Rose.store.requests.values()].map((one) => one.burst ?? 0))")


def facts(page: Page, burst: int) -> dict[str, float]:
    page.wait_for_function(f"(burst) => ({FACTS})(burst)", arg=burst, timeout=BURST_MS)
    return page.evaluate(FACTS, burst)


def near(value: float, told: set[int]) -> bool:
    """Whether a sentence contains this number; the page's copy of a time may be rounded differently."""
    return any(abs(one - value) <= 1 for one in told)


@pytest.fixture
def page_of(live: Served) -> Served:
    return live


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the first demo wait for Next or for its bursts, so that a busy machine skips no caption and no number."""
    monkeypatch.setattr(player, "LONGEST", 100)
    scenes = tuple(replace(scene, read_s=0.2 if scene.burst else 600.0) for scene in BUDGET.scenes)
    monkeypatch.setitem(DEMOS, "budget", replace(BUDGET, scenes=scenes))


def go_on(page: Page, number: int) -> str:
    """Wait for this caption, after pressing Next unless a burst ends the scene before it; returns its text."""
    if BUDGET.scenes[number - 1].burst is None:
        page.get_by_role("button", name="Next").click()
    expect(page.locator(".rp-story-course i").nth(number)).to_have_class(BEGUN, timeout=BURST_MS)
    return str(caption(page).inner_text())


def test_show_me_says_what_the_telemetry_says(live: Served, page: Page, patient: None) -> None:
    live.engine.set_knobs(prefill_max_tokens=512)
    page.wait_for_function("() => Rose.store.knobs.prefill_max_tokens === 512")
    demo, listed = page.locator(".rp-demos li").first, page.get_by_role("button", name="All demos")
    expect(demo.or_(listed).filter(visible=True).first).to_be_visible()  # requests displace the list
    page.keyboard.press("d")
    expect(caption(page)).to_contain_text("20 prompts will interrupt four readers.")
    expect(page.get_by_role("button", name="Next")).to_be_focused()
    expect(page.locator(".rp-demos")).to_be_hidden()
    for lane in range(1, 5):
        expect(page.locator(f"#rp-lane-{lane} h4")).to_contain_text("Tell me a story")
    # The charts show 3 s, or 15 s on a machine so slow that a burst takes longer.
    planned = page.evaluate("async () => (await Rose.load('live/demos.js')).demos.caption.span_ms")
    assert planned in (3000, 15000) and page.evaluate("() => Rose.view.span") == planned

    expect(page.locator(".rp-story-answers button")).to_have_count(3)
    page.keyboard.press("2")
    expect(page.locator(".rp-story-course i").nth(1)).to_have_class(BEGUN, timeout=BURST_MS)
    guess = BUDGET.scenes[0].answers["worst_falls"]
    expect(page.locator(".rp-story-course")).to_contain_text(f"your guess: {guess}")
    pause = go_on(page, 2)
    first = facts(page, newest_burst(page))
    assert near(first["pause"], figures(pause)), (pause, first)
    ring = page.locator(".rp-ring:visible", has_text="a pause of")  # the step may have its ring earlier
    expect(ring).to_be_visible()
    assert near(first["pause"], figures(ring.inner_text())), (ring.inner_text(), first)

    go_on(page, 3)
    page.wait_for_function("() => Rose.store.knobs.prefill_max_tokens === 64")
    last = go_on(page, len(BUDGET.scenes) - 1)
    second = facts(page, newest_burst(page))
    expect(page.locator("#rp-pair")).to_contain_text("Copy this result")
    expect(page.locator("#rp-live")).to_have_attribute("data-pair", "open")
    assert near(first["pause"], figures(last)) and near(second["pause"], figures(last)), (last, first, second)
    if second["pause"] * 1.15 < first["pause"] * 0.99:
        assert last.startswith("You guessed right. ") and "instead of" in last, (last, first, second)
    if "The price" in last:
        assert second["first_token"] > first["first_token"]

    page.get_by_role("button", name="Next").click()
    expect(page.locator(".rp-strip")).not_to_have_attribute("data-about", "demo")
    expect(caption(page)).to_have_text(last)
    expect(page.locator(".rp-story-text p").nth(1)).to_have_text(BUDGET.after)
    expect(page.get_by_role("button", name="Next demo: Prefix cache")).to_be_visible()
    page.wait_for_function("() => Rose.store.knobs.prefill_max_tokens === 512 && Rose.view.span === 15000")
    expect(page.locator("#rp-lane-1 .rp-hint")).to_be_visible()
    expect(page.locator(".rp-ring:visible")).to_have_count(0)
    page.reload()
    expect(caption(page)).to_have_text(last)


def test_stop_leaves_the_chats_as_they_were_and_other_tabs_are_told(live: Served, page: Page, open_page: Open) -> None:
    other = open_page(live)
    expect(caption(other)).to_contain_text("Four chats share one engine.")  # nothing ran in it
    answer_at_most(page, 12)
    ask(page, "What is a KV block?")
    for lane in (2, 4):
        expect(page.locator(f"#rp-lane-{lane} .rp-state")).to_contain_text(re.compile("done|cut"))
    page.wait_for_function("() => Rose.store.open.size === 0")
    polls = page.evaluate("Rose.poll.count")  # the cached tokens arrive a poll after the end
    page.wait_for_function("(polls) => Rose.poll.count > polls + 2", arg=polls)
    before = page.locator("#rp-lane-2 .rp-text").inner_text()
    page.get_by_role("button", name="Show me").click()
    page.locator(".rp-pop").get_by_role("button", name=re.compile("Batch size")).click()
    expect(caption(page)).to_contain_text("share steps with room for 6 answers")
    expect(page.locator("#rp-lane-2 h4")).to_contain_text("robot")
    expect(caption(other)).to_have_text(re.compile(r"Another tab is playing a demo\. It ends in about \d+ s\."))
    page.keyboard.press("Escape")
    expect(page.locator("#rp-lane-2 h4")).to_have_text("What is a KV block?")
    expect(page.locator("#rp-lane-2 .rp-text")).to_have_text(before, use_inner_text=True)
    expect(caption(other)).not_to_contain_text("Another tab")
    page.wait_for_function("() => Rose.store.knobs.max_batch_size === 32")
    expect(page.locator("#rp-rail .rp-was")).to_have_count(0)  # nothing marks what was changed back


# Show a caption with one ring.
RINGED = """async (ring) => {
    const [{ demos }, { emit }] = await Promise.all(["live/demos.js", "shared/events.js"].map(Rose.load));
    const caption = { scene: 0, scenes: 1, caption: [["", ""]], span_ms: 3000, rings: [ring] };
    Object.assign(demos, { own: true, caption });
    emit("demo");
}"""


def test_on_a_low_screen_what_is_ringed_is_scrolled_into_view_below_its_caption(page: Page) -> None:
    page.set_viewport_size({"width": 1280, "height": 720})
    page.evaluate(RINGED, {"of": "element", "id": "rp-ttft"})
    expect(page.locator("#rp-ttft")).to_be_in_viewport(ratio=1)
    expect(page.locator("#rp-story")).to_be_in_viewport(ratio=1)
    page.set_viewport_size(DESKTOP["viewport"])


@pytest.mark.parametrize(
    "screen", [pytest.param(DESKTOP, id="desktop", marks=pytest.mark.slow), pytest.param(PHONE, id="phone")]
)
def test_every_demo_can_be_reached_from_the_first_screen(open_page: Open, screen: dict[str, Any]) -> None:
    with serving(FakeEngine()) as served:  # a new one, whose page shows its first screen
        page = open_page(served, **screen)
        rows, last = page.locator(".rp-demos li button"), len(DEMOS) - 2  # one of them needs a GPU
        expect(rows.nth(last)).to_be_visible()
        for row in rows.all():
            row.click(trial=True)
            assert row.evaluate("(row) => row.scrollWidth <= row.clientWidth")
        end = page.get_by_role("button", name="Watch a recording of the first one").bounding_box()
        assert end and (screen is PHONE or end["y"] + end["height"] <= screen["viewport"]["height"])
        page.get_by_role("button", name="1 demo cannot be played here: why?").click()
        expect(page.locator(".rp-demos .rp-not-here")).to_contain_text("KV cliff")
        title = rows.nth(last).locator("b").inner_text()
        rows.nth(last).click()
        expect(page.locator(".rp-story-course span")).to_have_text(title)
        expect(page.locator("#rp-demos")).to_be_hidden()
        served.engine.abort_all()
        page.close()
