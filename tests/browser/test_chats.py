"""Conversations in lanes: turns, a lane's buttons, sampling settings, and tokens that can be selected."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.browser.modules import bare_page
from tests.pages import Held, Served, answer_at_most, ask, ready, reload, state, text
from tests.play.fake_engine import WORDS
from tests.waiting import wait_until

RUNNING = re.compile(r"decode · [1-9]\d* tok")
ENDED = re.compile(r"((done|stopped) ·|cut at) [\d\s]+ tok")
WIDTH = "() => document.documentElement.scrollWidth - innerWidth"


def count(number: int) -> str:
    """Formatted as the page does it."""
    return f"{number:,}".replace(",", "\u202f")


def turns(page: Page, lane: int = 1) -> Any:
    return page.locator(f"#rp-lane-{lane} .rp-turn")


def tool(page: Page, name: str) -> Any:
    return page.get_by_role("button", name=re.compile(f"^{name} .*lane 1$"))


def ask_lane_1(page: Page, prompt: str, *, tokens: int | None = None) -> None:
    if tokens is not None:
        answer_at_most(page, tokens, lane=1)
    page.locator("#to input").click()
    page.get_by_role("option", name=re.compile("lane 1$")).click()
    say(page, prompt)


def say(page: Page, prompt: str) -> None:
    ask(page, prompt)
    expect(page.locator("#prompt input")).to_have_value("")
    expect(page.locator("#rp-lane-1 h4")).to_have_text(prompt.strip())


# ---- turns


def test_what_no_longer_fits_is_said(page: Page) -> None:
    ask_lane_1(page, "a" * 900, tokens=4)
    expect(state(page, 1)).to_have_text(ENDED)
    say(page, "b" * 900)
    expect(state(page, 1)).to_have_text(ENDED)
    say(page, "c" * 900)
    expect(turns(page).nth(2).locator(".rp-left")).to_have_text("The oldest turn was left out: no room.")
    expect(turns(page)).to_have_count(3)
    expect(turns(page).nth(1).locator(".rp-left")).to_be_empty()


def test_a_long_prompt_shows_how_far_it_is(mock: Served, page: Page) -> None:
    mock.engine.set_knobs(prefill_max_tokens=4)
    ask_lane_1(page, "word " * 150)
    expect(state(page, 1)).to_have_text(re.compile(r"prefill \d+/749"))
    expect(page.locator("#rp-lane-1 .rp-prefill")).to_have_text(re.compile(r"0 cached \+ \d+ computed, \d+ to go"))
    track = page.locator("#rp-lane-1 .rp-prefill i").nth(1)
    page.wait_for_function("i => parseFloat(i.style.width) > 20", arg=track.element_handle())
    expect(page.locator("#rp-lane-1 .rp-prefill")).to_be_visible()


# ---- the lane's buttons


def test_edit_regenerate_and_clear(mock: Served, page: Page) -> None:
    ask_lane_1(page, "one", tokens=5)
    expect(state(page, 1)).to_have_text(ENDED)
    say(page, "two")
    expect(state(page, 1)).to_have_text(ENDED)
    rid = turns(page).nth(1).get_attribute("data-rid")

    page.locator("#rp-lane-1").hover()
    tool(page, "Edit").click()
    field = page.get_by_role("textbox", name="Last question of lane 1")
    expect(field).to_have_value("two")
    field.press("Escape")
    expect(field).to_have_count(0)
    tool(page, "Edit").click()
    field.fill("deux")
    field.press("Enter")
    expect(page.locator("#rp-lane-1 h4")).to_have_text("deux")
    expect(turns(page)).to_have_count(2)
    expect(state(page, 1)).to_have_text(ENDED)
    edited = turns(page).nth(1).get_attribute("data-rid")
    assert edited != rid

    tool(page, "Generate").click()
    page.wait_for_function(
        "rid => ![rid, null].includes(document.querySelector('#rp-lane-1 .rp-turn:nth-child(2)')?.dataset.rid ?? null)",
        arg=edited,
    )
    expect(turns(page)).to_have_count(2)
    again = int(turns(page).nth(1).get_attribute("data-rid") or 0)
    streams = mock.engine.streams
    assert streams[again].prompt_token_ids == streams[int(edited or 0)].prompt_token_ids
    assert streams[again].params.seed != streams[int(edited or 0)].params.seed

    tool(page, "Clear").click()
    expect(turns(page)).to_have_count(0)
    expect(page.locator("#rp-lane-1 .rp-hint")).to_be_visible()
    expect(page.locator("#rp-lane-1 .rp-tools")).to_be_hidden()
    expect(state(page, 1)).to_be_empty()
    page.locator("#rp-lane-1 .rp-hint button").first.click()
    expect(turns(page)).to_have_count(1)


def test_the_buttons_show_when_they_are_wanted(page: Page) -> None:
    ask_lane_1(page, "one", tokens=5)
    page.mouse.move(700, 800)
    tools = page.locator("#rp-lane-1 .rp-tools")
    expect(tools).to_have_css("opacity", "0")
    page.locator("#rp-lane-1").hover()
    expect(tools).to_have_css("opacity", "1")
    page.mouse.move(700, 800)
    tool(page, "Edit").focus()
    expect(tools).to_have_css("opacity", "1")
    for button in tools.locator("button").all():
        box = button.bounding_box()
        assert box and box["width"] >= 24 and box["height"] >= 24
        assert button.get_attribute("title")


def test_copy(page: Page) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    ask_lane_1(page, "<b>one</b>", tokens=8)
    expect(state(page, 1)).to_have_text(ENDED)
    page.locator("#rp-lane-1").hover()
    tool(page, "Copy").click()
    expect(page.locator("#rp-lanes .rp-said")).to_have_text("Lane 1: copied the answer.")
    assert page.evaluate("navigator.clipboard.readText()") == "".join(WORDS)
    tool(page, "Copy").click(modifiers=["Shift"])
    expect(page.locator("#rp-lanes .rp-said")).to_have_text("Lane 1: copied the chat.")
    assert page.evaluate("navigator.clipboard.readText()") == "> <b>one</b>\n\n" + "".join(WORDS)


# ---- sampling


def choose_lane(page: Page, name: str) -> None:
    """Show the settings of a lane, or of "all lanes"."""
    page.locator("#sampling-lane input").click()
    page.locator("#rp-sampling").get_by_role("option", name=re.compile(f"{name}$")).click()


def test_settings_reach_the_engine_and_survive_a_reload(mock: Served, page: Page) -> None:
    page.locator("#sampling").click()
    panel = page.locator("#rp-sampling")
    expect(panel).to_be_visible()
    assert page.evaluate("() => document.documentElement.scrollHeight - innerHeight") == 0
    page.locator("#sampling-system textarea").fill("be brief")
    page.locator("#sampling-new-tokens input[type=number]").fill("12")
    page.locator("#sampling-stop textarea").fill("END\nline\\n")
    page.locator("#sampling-stop textarea").blur()
    expect(page.locator("#sampling-reset")).to_have_text("Defaults (3 changed)")
    choose_lane(page, "lane 2")
    expect(page.locator("#sampling-reset")).to_have_text("As all lanes")
    page.locator("#sampling-temperature input[type=number]").fill("1.5")
    page.locator("#sampling-seed input").fill("77")
    page.locator("#sampling-seed input").press("Enter")
    expect(page.locator("#sampling-reset")).to_have_text("As all lanes (2 changed)")
    before = max(mock.engine.streams, default=0)
    ask(page, "hello")
    expect(state(page, 4)).to_have_text(ENDED)
    by_lane = dict(enumerate((mock.engine.streams[i] for i in sorted(mock.engine.streams) if i > before), 1))
    one, two = by_lane[1].params, by_lane[2].params
    assert (one.temperature, one.max_new_tokens, one.stop) == (0.6, 12, ("END", "line\n"))
    assert (two.temperature, two.max_new_tokens, two.stop, two.seed) == (1.5, 12, ("END", "line\n"), 77)
    assert by_lane[1].prompt_token_ids == [1 + b % 99 for b in b"be brief\n\nhello"]

    reload(page)
    ready(page)
    expect(page.locator("#sampling-system textarea")).to_have_value("be brief")
    expect(page.locator("#sampling-new-tokens input[type=number]")).to_have_value("12")
    expect(page.locator("#sampling-temperature input[type=number]")).to_have_value("0.6")
    page.locator("#sampling").click()
    choose_lane(page, "lane 2")
    expect(page.locator("#sampling-temperature input[type=number]")).to_have_value("1.5")
    expect(page.locator("#sampling-seed input")).to_have_value("77")
    page.locator("#sampling-reset").click()
    expect(page.locator("#sampling-temperature input[type=number]")).to_have_value("0.6")
    expect(page.locator("#sampling-seed input")).to_have_value("")
    choose_lane(page, "all lanes")
    page.locator("#sampling-seed input").press("Escape")
    expect(panel).to_be_hidden()
    expect(page.locator("#sampling")).to_be_focused()


def test_settings_typed_while_answers_are_under_way_are_kept(page: Page) -> None:
    page.locator("#sampling").click()
    reset, temperature = page.locator("#sampling-reset"), page.locator("#sampling-temperature input[type=number]")
    held = Held(page, "**/ui/sampling")

    def sent() -> dict[str, Any]:
        """The one request in flight."""
        return dict(held.wait().request.post_data_json)

    page.locator("#sampling-min-p input[type=number]").fill("0.1")
    assert sent()["changes"] == {"min_p": 0.1}
    page.locator("#sampling-min-p input[type=number]").fill("0.2")
    page.locator("#sampling-seed input").fill("5")
    page.locator("#sampling-seed input").press("Enter")
    choose_lane(page, "lane 2")
    page.wait_for_timeout(500)  # Gradio reports the choice a little later, and nothing shows when it has
    temperature.fill("1.5")
    page.locator("#sampling-seed input").fill("77")  # not submitted yet
    held.go_on()
    assert (sent()["lane"], sent()["changes"]) == (0, {"min_p": 0.2, "seed": "5"})
    held.go_on()
    assert (sent()["lane"], sent()["changes"]) == (2, {})  # asks for the settings in effect there
    expect(reset).to_have_text("Defaults")  # nothing is shown before everything is known
    held.go_on()
    assert (sent()["lane"], sent()["changes"]) == (2, {"temperature": 1.5})
    held.go_on()
    expect(reset).to_have_text("As all lanes (1 changed)")
    expect(temperature).to_have_value("1.5")
    expect(page.locator("#sampling-min-p input[type=number]")).to_have_value("0.2")
    expect(page.locator("#sampling-seed input")).to_have_value("77")
    held.end()
    page.locator("#sampling-seed input").press("Enter")
    expect(reset).to_have_text("As all lanes (2 changed)")
    reset.click()
    expect(reset).to_have_text("As all lanes")
    expect(temperature).to_have_value("0.6")
    expect(page.locator("#sampling-seed input")).to_have_value("5")
    choose_lane(page, "all lanes")


def test_a_prompt_waits_for_the_settings_typed_before_it(mock: Served, page: Page) -> None:
    page.locator("#sampling").click()
    held = Held(page, "**/ui/sampling")
    page.locator("#sampling-new-tokens input[type=number]").fill("7")
    before = max(mock.engine.streams, default=0)
    ask(page, "hello")
    page.evaluate("async () => { for (let i = 0; i < 30; i++) await new Promise(requestAnimationFrame); }")
    assert max(mock.engine.streams, default=0) == before
    held.go_on()
    expect(state(page, 1)).to_have_text(ENDED)
    assert {stream.params.max_new_tokens for i, stream in mock.engine.streams.items() if i > before} == {7}


def test_a_bad_setting_is_told_in_a_line(page: Page) -> None:
    page.locator("#sampling").click()
    page.locator("#sampling-seed input").fill("twelve")
    page.locator("#sampling-seed input").press("Enter")
    expect(page.locator("#rp-sampling-said")).to_contain_text("seed is 'twelve'")
    expect(page.locator("#sampling-seed input")).to_have_value("")
    page.locator("#sampling-seed input").fill("12")
    page.locator("#sampling-seed input").press("Enter")
    expect(page.locator("#rp-sampling-said")).to_be_hidden()
    expect(page.locator("#sampling-reset")).to_have_text("Defaults (1 changed)")
    page.locator("#sampling-temperature input[type=number]").fill("99")
    expect(page.locator("#sampling-temperature input[type=number]")).to_have_value("2")


# ---- tokens


class Loose:
    """A turn outside the page, with tokens of three letters."""

    def __init__(self, page: Page) -> None:
        self.page, self.tokens = page, 0
        page.evaluate(
            """async () => { const { Turn } = await Rose.load('lanes/turn.js');
                 window.turn = new Turn(7); document.body.replaceChildren(turn.root); }"""
        )

    def take(self, gaps: list[float], *, state: str = "decode", word: str = "abc", late: Sequence[Any] = ()) -> None:
        first = [100_000] if self.tokens == 0 else []
        news = {
            "rid": 7, "question": "q", "left_out": 0, "text_from": 3 * self.tokens, "text": word * (len(gaps) + len(first)),
            "tokens_from": self.tokens, "widths": [len(word)] * (len(gaps) + len(first)),
            "times": first + [round(100 * gap) for gap in gaps], "late": late, "state": state, "prompt": 3, "cached": 0, "error": None,
        }  # fmt: skip
        self.tokens += len(news["widths"])  # type: ignore[arg-type]
        self.page.evaluate("news => turn.take(JSON.parse(news))", json.dumps(news))

    def tinted(self) -> dict[str, str]:
        """Highlighted text and its tint."""
        spans = "() => [...turn.answer.querySelectorAll('.rp-slow')].map((s) => [s.textContent, s.style.getPropertyValue('--tint')])"
        return dict(self.page.evaluate(spans))

    def nodes(self) -> int:
        return int(self.page.evaluate("() => turn.answer.childNodes.length"))


@pytest.fixture(scope="module")
def bare(browser: Browser) -> Iterator[Page]:
    page = bare_page(browser, "<body></body>")
    yield page
    page.close()


def test_only_slow_tokens_are_tinted(bare: Page) -> None:
    turn = Loose(bare)
    turn.take([20.0] * 20)
    assert (turn.tinted(), turn.nodes()) == ({}, 1)
    turn.take([29.0, 31.0], word="def", late=[[1460.0, 20.0]])
    assert turn.tinted() == {"def": "2%"}
    turn.take([20.0, 500.0, 20.0, 20.0], word="ghi")
    turn.take([], late=[[1980.0, 20.0]])  # known after it was drawn
    assert turn.tinted() == {"def": "2%", "ghi": "30%"}
    assert turn.nodes() == 5
    assert bare.evaluate("turn.answer.textContent") == "abc" * 21 + "def" * 2 + "ghi" * 4


def test_a_marked_token_stands_alone(bare: Page) -> None:
    turn = Loose(bare)
    turn.take([20.0] * 9)
    for k in (0, 4, 9):
        bare.evaluate("k => turn.mark(k, 'chosen')", k)
        assert bare.evaluate("turn.answer.querySelectorAll('.rp-chosen').length") == 1
        assert bare.evaluate("turn.marked('chosen').textContent") == "abc"
        box = "(() => { const b = turn.marked('chosen').getBoundingClientRect(); return [(b.left + b.right) / 2, (b.top + b.bottom) / 2]; })()"
        assert bare.evaluate(f"turn.tokenAt(...{box})") == k
    turn.take([20.0])
    assert bare.evaluate("turn.answer.textContent") == "abc" * 11
    bare.evaluate("turn.mark(-1, 'chosen')")
    assert turn.nodes() == 1
    assert bare.evaluate("turn.at(1000 + 3 * 20)") == 3
    assert bare.evaluate("turn.at(1000 + 3 * 20 + 7)") == -1


def test_bold_is_shown_as_such_and_markup_as_text(bare: Page) -> None:
    turn = Loose(bare)
    for word in ("1. ", "**<", "b>*", "* c"):
        turn.take([20.0], word=word)
    assert bare.evaluate("turn.answer.textContent") == "1. 1. <b> c"
    assert bare.evaluate("turn.answer.querySelector('b')") is None
    assert bare.evaluate("turn.answer.querySelector('.rp-bold').textContent") == "<b>"
    bare.evaluate("turn.mark(3, 'chosen')")
    assert bare.evaluate("turn.marked('chosen').textContent") == "b>", "its mark is not shown"


def test_a_token_without_text_changes_nothing(bare: Page) -> None:
    turn = Loose(bare)
    turn.take([20.0] * 4)
    turn.take([20.0], word="")
    turn.take([20.0] * 2)
    assert bare.evaluate("turn.answer.textContent") == "abc" * 7
    assert bare.evaluate("turn.next(4, 1)") == 6
    assert bare.evaluate("turn.next(6, -1)") == 4


def slow_answer(mock: Served, page: Page) -> None:
    """Get an answer in lane 1 with one token that had to wait."""
    before = set(mock.engine.streams)
    mock.engine.pause()  # the page may be slower than the answer
    try:
        ask_lane_1(page, "hello", tokens=120)
    finally:
        mock.engine.resume()
    (rid,) = set(mock.engine.streams) - before
    wait_until(lambda: len(mock.engine.streams[rid].token_ids) >= 20)
    mock.engine.pause()
    time.sleep(1.0)  # the gap itself
    mock.engine.resume()
    expect(state(page, 1)).to_have_text(ENDED)


def slowest(page: Page) -> dict[str, int]:
    """Request, step and token index of the longest gap in lane 1 that the page has received."""
    return page.evaluate(
        """() => {
          const rid = Number(document.querySelector('#rp-lane-1 .rp-turn:last-child').dataset.rid), { tokens } = Rose.store;
          let best = null, token = -1;
          for (let i = tokens.first; i < tokens.end; i++) {
            const s = i & tokens.mask;
            if (tokens.request_id[s] !== rid) continue;
            if (++token === 0) continue; // the first has no gap
            if (!best || tokens.itl_ms[s] > best.itl) best = { rid, step: tokens.step_id[s], token, itl: tokens.itl_ms[s] };
          }
          return best;
        }"""
    )


def click_text(page: Page, text: Locator) -> None:
    """Click the beginning of a text. It may wrap, and then the centre of its box can lie outside it."""
    text.scroll_into_view_if_needed()
    page.mouse.click(*text.evaluate("(e) => { const [r] = e.getClientRects(); return [r.x + 6, r.y + 6]; }"))


def test_a_click_on_a_slow_token_asks_why_until_another_selection_takes_its_place(mock: Served, page: Page) -> None:
    slow_answer(mock, page)
    worst = slowest(page)
    word = WORDS[worst["token"] % len(WORDS)].strip()
    strongest = page.locator('#rp-lane-1 .rp-slow[style*="30%"]', has_text=word)
    expect(strongest.last).to_be_visible()
    popover = page.get_by_role("dialog", name="Why was this token slow?")
    for slow in strongest.all():  # on a busy machine, other tokens with the same text may be tinted as strongly
        page.keyboard.press("Escape")
        click_text(page, slow)
        expect(popover).to_contain_text("lane 1 · ")
        if page.evaluate("Rose.pointing.selected.step") == worst["step"]:
            break
    expect(popover).to_contain_text(f"step {count(worst['step'])}")
    expect(popover).to_contain_text(f"lane 1 · {worst['token'] + 1}")
    assert page.evaluate("[Rose.pointing.selected.rid, Rose.pointing.selected.step]") == [worst["rid"], worst["step"]]
    chosen = page.locator(".rp-chosen")
    expect(page.locator("#rp-lane-1 .rp-chosen")).to_have_text(word)
    # It stays open until Esc, whatever the pointer does.
    page.locator("#rp-kvtime").click()
    page.locator("#rp-steps canvas").click(position={"x": 200, "y": 20})
    expect(popover).to_be_visible()
    expect(chosen).to_have_count(1)
    page.keyboard.press("Escape")
    expect(popover).to_be_hidden()
    expect(chosen).to_have_count(0)
    # As selecting a dot of the ITL chart does.
    click_text(page, page.locator("#rp-lane-1 .rp-slow").first)
    expect(chosen).to_have_count(1)
    page.evaluate("what => Rose.emit('select', what)", {"rid": worst["rid"], "step": worst["step"] - 5})
    expect(page.locator("#rp-lane-1 .rp-chosen")).to_have_text(WORDS[(worst["token"] - 5) % len(WORDS)].strip())
    expect(page.locator(".rp-pop")).to_contain_text(f"step {count(worst['step'] - 5)}")
    assert page.evaluate("Rose.pointing.selected.step") == worst["step"] - 5
    page.get_by_role("button", name="Close").click()
    expect(chosen).to_have_count(0)
    # The tint is still there after a reload, and after another turn, which leaves the history as it is.
    reload(page)
    ready(page)
    expect(strongest.last).to_be_visible()
    page.evaluate("() => { window.kept = [...document.querySelector('.rp-turn .rp-a').childNodes]; }")
    say(page, "again")
    expect(state(page, 1)).to_have_text(ENDED)
    assert page.evaluate("() => kept.every((node) => node.isConnected)"), "the history was rebuilt"
    expect(text(page, 1)).to_contain_text("again")
    # An old token says what is left of it.
    page.evaluate("Rose.store.tokens.clear()")
    click_text(page, strongest.last)
    expect(page.locator(".rp-pop")).to_contain_text("Its step is no longer kept")
    expect(page.locator(".rp-pop")).to_contain_text(re.compile(r"It took [\d\s.]+\sms instead of \d"))
    expect(page.locator("#rp-lane-1 .rp-chosen")).to_have_count(1)


def test_arrow_keys_and_enter(page: Page) -> None:
    ask_lane_1(page, "hello", tokens=12)
    expect(state(page, 1)).to_have_text(ENDED)
    page.locator("#rp-lane-1").focus()
    page.keyboard.press("ArrowLeft")
    expect(page.locator("#rp-lane-1 .rp-cursor")).to_have_text(WORDS[11 % len(WORDS)].strip())
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#rp-lane-1 .rp-cursor")).to_have_count(1)
    at = page.evaluate("() => document.querySelector('.rp-cursor').textContent")
    page.keyboard.press("Enter")
    expect(page.locator("#rp-lane-1 .rp-chosen")).to_have_text(at.strip())
    expect(page.get_by_role("dialog", name=re.compile("token"))).to_be_visible()
