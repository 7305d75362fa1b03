"""Bursts, sliders, switches, keys: what the user does reaches the engine, and changes made elsewhere reach the page."""

from __future__ import annotations

import re
from collections.abc import Callable

from playwright.sync_api import Page, expect

from tests.pages import REFUSED, Served, answer_at_most, ask, settled, state
from tests.waiting import wait_until


def test_knobs_turned_elsewhere_show_here(mock: Served, page: Page) -> None:
    mock.engine.set_knobs(prefill_max_tokens=100, prefix_cache=False, max_batch_size=7, slow_motion=3)
    expect(page.locator("#budget-value input")).to_have_value("100")
    expect(page.locator("#prefix-cache input")).not_to_be_checked()
    expect(page.locator("#max-batch input[type=range]")).to_have_js_property("value", "7")
    expect(page.locator("#slow input")).to_be_checked()
    expect(page.locator("#slow-factor input")).to_have_value("×3")


def test_keys(mock: Served, page: Page) -> None:
    page.locator("#rp-lane-1").click()
    page.keyboard.press("b")
    expect(page.locator("#rp-traffic-head h3 span")).to_contain_text("last seed")
    page.keyboard.press("3")
    expect(page.locator("#rp-lane-3")).to_be_focused()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    answer_at_most(page, 900)  # so that they can be stopped, however busy the machine is
    ask(page, "b.3?")
    expect(page.locator("#rp-lane-1 h4")).to_have_text("b.3?")
    page.keyboard.press("Escape")  # leaves the prompt
    page.keyboard.press(".")
    expect(state(page, 1)).to_have_text(re.compile("stopped"))
    wait_until(lambda: all(stream.finished for stream in mock.engine.streams.values()))


def test_values_are_the_places_of_a_slider_or_typed(
    mock: Served, page: Page, expect_error: Callable[[str], None]
) -> None:
    expect_error(REFUSED)
    box, slider = page.locator("#budget-value input"), page.locator("#budget input[type=range]")
    for _ in range(4):  # ∞ ∞ 2048 1024 512
        slider.press("ArrowLeft")
    wait_until(lambda: mock.engine.knobs.prefill_max_tokens == 512)
    expect(box).to_have_value("512")
    expect(slider).to_have_attribute("aria-valuetext", "512")
    slider.press("End")
    wait_until(lambda: mock.engine.knobs.prefill_max_tokens is None)
    expect(box).to_have_value("∞")
    box.fill("300")
    box.press("Enter")
    wait_until(lambda: mock.engine.knobs.prefill_max_tokens == 300)
    expect(slider).to_have_js_property("value", "4")
    box.fill("unlimited")
    box.press("Enter")
    wait_until(lambda: mock.engine.knobs.prefill_max_tokens is None)
    expect(box).to_have_value("∞")
    box.fill("nonsense")
    box.press("Enter")
    expect(page.get_by_text("use an integer of at least 1")).to_be_visible()
    expect(box).to_have_value("∞")
    page.locator("#prefill-requests-value input").fill("5")
    page.locator("#prefill-requests-value input").press("Enter")
    wait_until(lambda: mock.engine.knobs.prefill_max_batch_size == 5)


def test_leaving_a_box_does_not_undo_a_change_made_elsewhere(mock: Served, page: Page) -> None:
    usual = mock.engine.knobs.prefill_max_batch_size  # to which the engine was just set back: it may have been 5
    page.wait_for_function("(usual) => Rose.store.knobs.prefill_max_batch_size === usual", arg=usual)
    box = page.locator("#prefill-requests-value input")
    box.fill("5")
    mock.engine.set_knobs(prefill_max_batch_size=6)  # nor does such a change undo what is being typed
    page.wait_for_function("() => Rose.store.knobs.prefill_max_batch_size === 6")
    box.press("Enter")
    wait_until(lambda: mock.engine.knobs.prefill_max_batch_size == 5)
    box.hover()
    page.mouse.down()  # the page leaves the controls alone meanwhile
    mock.engine.set_knobs(prefill_max_batch_size=7)
    page.wait_for_function("() => Rose.store.knobs.prefill_max_batch_size === 7")
    assert box.input_value() == "5"
    box.blur()
    page.mouse.up()
    expect(box).to_have_value("7")
    settled(page)
    assert mock.engine.knobs.prefill_max_batch_size == 7


def test_the_policy_is_chosen_in_a_section_that_opens(mock: Served, page: Page) -> None:
    button = page.locator("#rp-more-button")
    expect(page.locator("#policy")).to_be_hidden()
    button.click()
    expect(button).to_have_attribute("aria-expanded", "true")
    page.locator("#policy label", has_text="fair").click()
    wait_until(lambda: mock.engine.knobs.scheduling_policy == "fair")
    expect(button).to_contain_text("fair")
    mock.engine.set_knobs(scheduling_policy="priority")
    expect(page.locator("#policy input:checked")).to_have_value("priority")
    page.locator("#policy .rp-term").click()
    expect(page.get_by_role("dialog", name="Policy")).to_contain_text("--scheduling-policy")


def test_a_number_beyond_the_range_is_clamped(mock: Served, page: Page) -> None:
    page.locator("#max-batch input[type=number]").fill("999")
    wait_until(lambda: mock.engine.knobs.max_batch_size == 64)
    page.locator("#max-batch input[type=range]").press("Home")
    wait_until(lambda: mock.engine.knobs.max_batch_size == 1)


def test_switches_act(mock: Served, page: Page) -> None:
    for name, knob in {
        "prefix-cache": "prefix_cache", "sharing": "same_step_sharing", "chunked": "chunked_prefill", "append": "batched_append",
    }.items():  # fmt: skip
        page.locator(f"#{name} input").press("Space")
        wait_until(lambda knob=knob: getattr(mock.engine.knobs, knob) is False)
    expect(page.locator("#rp-opt-head h3 span")).to_have_text("0 of 4 on")
    expect(page.locator("#graphs input")).to_be_disabled()


def test_slow_motion_is_labelled_while_it_is_on(mock: Served, page: Page) -> None:
    chip = page.locator(".rp-slow-chip")
    expect(chip).to_be_hidden()
    page.locator("#slow input").press("Space")
    expect(chip).to_have_text("×10")
    page.locator("#slow-factor input").fill("4")
    page.locator("#slow-factor input").press("Enter")
    expect(chip).to_have_text("×4")
    assert mock.engine.knobs.slow_motion == 4
    page.locator("#slow input").press("Space")
    expect(chip).to_be_hidden()


def test_the_hand_on_a_slider_goes_first(mock: Served, page: Page) -> None:
    track = page.locator("#max-batch input[type=range]").bounding_box()
    assert track
    page.mouse.move(track["x"] + track["width"] / 2, track["y"] + 8)
    page.mouse.down()
    page.mouse.move(track["x"] + track["width"] / 4, track["y"] + 8, steps=4)
    held = page.locator("#max-batch input[type=range]").input_value()
    wait_until(lambda: mock.engine.knobs.max_batch_size == int(held))
    mock.engine.set_knobs(max_batch_size=60)
    page.wait_for_function("() => Rose.store.knobs.max_batch_size === 60")
    polls = page.evaluate("Rose.poll.count")
    page.wait_for_function("(polls) => Rose.poll.count > polls + 5", arg=polls)
    assert page.locator("#max-batch input[type=range]").input_value() == held
    page.mouse.up()
    expect(page.locator("#max-batch input[type=range]")).to_have_js_property("value", "60")


def test_every_control_says_what_it_is(page: Page) -> None:
    terms = "() => Object.keys(JSON.parse(document.getElementById('rose-given').textContent).terms).filter((id) => !document.getElementById(id)?.title)"
    page.wait_for_function(f"() => ({terms})().length === 0")
    untold = """() => [...document.querySelectorAll('.rp-kpi, .rp-ph h3, .rp-sechead h3, #rp-rail .rp-slider, #rp-rail .rp-switch')]
        .filter((e) => !e.title && !e.querySelector('.rp-term')).map((e) => e.outerHTML.slice(0, 120))"""
    page.wait_for_function(f"() => ({untold})().length === 0")
    unnamed = """() => [...document.querySelectorAll('button, input')].filter((e) => e.offsetParent && !e.labels?.length && !e.title
        && !e.textContent.trim() && !e.getAttribute('aria-label')).map((e) => e.outerHTML.slice(0, 120))"""
    assert page.evaluate(unnamed) == []


ENDED = """(budget) => {
  const bursts = [...Rose.store.bursts.values()].filter(({ figures }) => figures?.answer === 3);
  return bursts.length === (budget ? 2 : 1) && bursts.every(({ figures }) => figures.done === 4);
}"""


def test_two_bursts_are_shown_before_and_after_until_dismissed(
    mock: Served, page: Page, open_page: Callable[..., Page]
) -> None:
    picture, line = page.locator("#rp-pair .rp-plot"), page.locator(".rp-pair-line")
    for budget in (None, 64):
        mock.engine.set_knobs(prefill_max_tokens=budget)
        page.evaluate(
            "Rose.load('shared/ask.js').then(({ call }) => call('burst', { tab: Rose.tab, size: 4, max_new_tokens: 3 }))"
        )
        page.wait_for_function(ENDED, arg=budget or 0)
    expect(picture.get_by_role("img")).to_have_accessible_name(re.compile(r"^With budget 64, .* prompts, same start, "))
    expect(page.locator("#rp-itl")).to_be_hidden()
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy this result").click()
    expect(page.get_by_role("button", name="Picture and link copied")).to_be_visible()
    link = page.evaluate("navigator.clipboard.readText()")
    assert page.evaluate("navigator.clipboard.read().then(([it]) => it.types.includes('image/png'))")
    page.reload()
    expect(picture).to_be_visible()
    expect(page.get_by_role("button", name="Check")).to_be_visible()
    ask(page, "What now?")
    expect(page.locator("#rp-itl")).to_be_visible()
    line.get_by_role("button", name="Before and after").click()
    expect(picture).to_be_visible()
    page.locator("#rp-pair .rp-rt").get_by_role("button", name="Dismiss").click()
    expect(page.locator("#rp-itl")).to_be_visible()
    expect(line).to_be_hidden()
    mock.engine.set_knobs(prefix_cache=False)
    other = open_page(mock, path=link[link.index("#") :])
    expect(other.locator("#budget-value input")).to_have_value("64")
    expect(other.locator("#prefix-cache input")).not_to_be_checked()
    expect(other.locator("#rp-pair .rp-plot")).to_be_visible()
    expect(other.locator("#rp-demos")).to_be_hidden()  # it would cover a part of the picture
    other.reload()
    expect(other.locator("#rp-pair .rp-plot")).to_be_visible()
    for gone in (other.get_by_role("button", name="Check"), other.locator("#rp-pair a")):
        expect(gone).to_be_hidden()  # the bursts of a link ran elsewhere
    other.evaluate("(cut) => { location.hash = cut }", link[link.index("#") : -9])
    expect(other.get_by_role("alert").filter(has_text="copy it again")).to_be_visible()
    other.locator(".rp-pair-line").get_by_role("button", name="Before and after").click()
    expect(other.locator("#rp-pair .rp-plot")).to_be_visible()


def test_a_cut_link_is_one_line_in_a_new_tab(mock: Served, open_page: Callable[..., Page]) -> None:
    page = open_page(mock, path="#pair=H4sIAAAA", expected="404")
    page.wait_for_function("() => Rose.poll.count > 3")
    expect(page.get_by_role("alert").filter(has_text="copy it again")).to_be_visible()
    ask(page, "What now?")
    expect(page.locator("#rp-lane-1 h4")).to_have_text("What now?")
    page.locator(".rp-pair-line").get_by_role("button", name="Dismiss").click()
    expect(page.locator(".rp-pair-line")).to_be_hidden()
