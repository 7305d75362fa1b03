"""Traffic from a file: selected or dropped in the rail, played, stopped, and refused with a message."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from roseplay.play.open_loop import MOST_WAITING
from tests.browser.conftest import PHONE, Served, ready, reload, serving
from tests.play.fake_engine import FakeEngine

Open = Callable[..., Page]
OWN = "() => [...Rose.store.requests.values()].filter((one) => one.kind === 'own')"
REFUSED = "the server responded with a status of 422"  # the browser logs this on its console


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Forty requests, two per second."""
    path = tmp_path / "monday.jsonl"
    path.write_text("".join(line(index / 2) for index in range(40)))
    return path


def line(at_s: float) -> str:
    return json.dumps({"arrival_s": at_s, "prompt": "What is a block?", "answer_tokens": 4}) + "\n"


def choose(page: Page, path: Path) -> None:
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Choose file…").click()
    chooser.value.set_files(path)


def row(page: Page) -> Any:
    return page.get_by_role("group", name="Your own traffic")


def said(page: Page) -> Any:
    return row(page).locator(".rp-file span")


def player(page: Page) -> Any:
    return row(page).locator(".rp-play")


def test_a_file_is_chosen_played_and_stopped(live: Served, open_page: Open, file: Path) -> None:
    page = open_page(live)
    expect(player(page)).to_be_hidden()
    choose(page, file)
    expect(row(page).locator("b")).to_have_text("monday.jsonl")
    expect(said(page)).to_have_text("40 requests, 20 s")
    assert page.evaluate(f"() => ({OWN})().length") == 0, "choosing a file does not play it yet"
    page.get_by_role("button", name="Play monday.jsonl").click()
    expect(said(page)).to_have_text(re.compile(r"^([3-9]|[1-3]\d) of 40 sent$"))
    page.wait_for_function(f"() => ({OWN})().length >= 3")
    page.get_by_role("button", name="Stop your own traffic").click()
    expect(page.get_by_role("button", name="Play monday.jsonl")).to_be_visible()
    page.wait_for_function(  # the last one may still be on its way to the page
        f"""() => {{
            const told = `${{({OWN})().length}} of 40 sent`;
            return [...document.querySelectorAll(".rp-file span")].some((span) => span.textContent === told);
        }}"""
    )
    page.wait_for_function("() => [...Rose.store.requests.values()].every((one) => one.finished !== null)")
    assert page.evaluate(f"() => ({OWN})().every((one) => one.reason !== 'abort' && one.lane === null)")
    expect(row(page).locator(".rp-refused")).to_be_empty()
    page.locator("#rp-steps").get_by_role("button", name="requests").click()
    expect(page.locator("#rp-steps table")).to_contain_text("own file")


def test_it_ends_when_all_are_sent_and_plays_again(mock: Served, open_page: Open, tmp_path: Path) -> None:
    short = tmp_path / "short.csv"
    short.write_text("arrival_s,prompt_tokens,answer_tokens\n0,8,4\n0.2,8,4\n")
    page = open_page(mock)
    choose(page, short)
    expect(said(page)).to_have_text("2 requests, 0.2 s")
    for _ in range(2):
        player(page).click()  # waits until it is enabled, which it is not while the server is slow to answer
        expect(said(page)).to_have_text("2 of 2 sent")
        expect(player(page)).to_have_text("Play")
    page.wait_for_function(f"() => ({OWN})().length === 4")


def test_a_bad_file_is_refused_by_its_line_and_the_file_before_it_stays(
    mock: Served, open_page: Open, file: Path, tmp_path: Path
) -> None:
    page = open_page(mock, expected=REFUSED)
    choose(page, file)
    expect(said(page)).to_have_text("40 requests, 20 s")
    bad = tmp_path / "bad.jsonl"
    refused = row(page).get_by_role("status")
    long = json.dumps({"arrival_s": 1, "prompt_tokens": 5000, "answer_tokens": 1})
    for content, sentence in (
        (line(0) + '{"arrival_s": "soon"}', "Line 2 has no prompt: give its text as prompt, or its length as prompt_tokens."),
        ("", "The traffic file has no requests: give each arrival_s, prompt (or prompt_tokens) and answer_tokens."),
        (line(0) + long, "Request 2 of the traffic has 5000 prompt tokens"),
        (line(0) * 150_000, "It is larger than 8 MiB: use a part of it."),
    ):  # fmt: skip
        bad.write_text(content)
        choose(page, bad)
        expect(refused).to_contain_text(f"bad.jsonl: {sentence}")
    expect(said(page)).to_have_text("40 requests, 20 s")
    choose(page, file)
    expect(refused).to_be_empty()


def test_why_it_stopped_stands_in_the_row_and_after_a_reload(open_page: Open, tmp_path: Path) -> None:
    many = tmp_path / "many.jsonl"
    many.write_text("".join(line(0) for _ in range(100)))
    with serving(FakeEngine()) as served:  # it computes nothing, so all requests wait
        page = open_page(served)
        choose(page, many)
        player(page).click()
        reason = f"Stopped: {MOST_WAITING} requests were waiting, the limit is {MOST_WAITING}."
        expect(row(page).locator(".rp-refused")).to_have_text(reason)
        expect(said(page)).to_have_text(f"{MOST_WAITING} of 100 sent")
        page.close()


def test_a_page_that_is_loaded_again_shows_what_plays(mock: Served, open_page: Open, tmp_path: Path) -> None:
    slow = tmp_path / "slow.jsonl"
    slow.write_text(line(0) + line(600))
    page = open_page(mock)
    choose(page, slow)
    player(page).click()
    expect(said(page)).to_have_text("1 of 2 sent")
    reload(page)
    ready(page)
    expect(row(page).locator("b")).to_have_text("slow.jsonl")
    expect(said(page)).to_have_text("1 of 2 sent")
    player(page).click()
    expect(player(page)).to_be_hidden()  # the reloaded page has no file to play


def test_stop_pressed_before_the_server_has_answered_stops(page: Page, tmp_path: Path) -> None:
    sparse = tmp_path / "sparse.jsonl"
    sparse.write_text("".join(line(600 * index) for index in range(3)))
    choose(page, sparse)
    player(page).evaluate("(button) => { button.click(); button.click(); }")
    expect(row(page)).to_have_attribute("aria-busy", "false")
    expect(said(page)).to_have_text(re.compile(r"^[01] of 3 sent$"))
    expect(player(page)).to_have_text("Play")


def test_stop_all_ends_it(page: Page, file: Path) -> None:
    choose(page, file)
    player(page).click()
    expect(said(page)).to_have_text(re.compile(r"^([2-9]|[123]\d) of 40 sent$"))
    page.locator("#stop").click()
    expect(player(page)).to_have_text("Play")
    page.wait_for_function("() => [...Rose.store.requests.values()].every((one) => one.finished !== null)")
    expect(row(page).locator(".rp-refused")).to_be_empty()  # no message is needed


def test_a_file_can_be_dropped_on_the_row(page: Page) -> None:
    carried = page.evaluate_handle(
        """(text) => { const carried = new DataTransfer(); carried.items.add(new File([text], "dropped.jsonl"));
             return carried; }""",
        line(0) + line(12),
    )
    row(page).dispatch_event("dragover", {"dataTransfer": carried})
    expect(row(page)).to_have_class(re.compile("rp-over"))
    row(page).dispatch_event("drop", {"dataTransfer": carried})
    expect(said(page)).to_have_text("2 requests, 12 s")
    expect(row(page).locator("b")).to_have_text("dropped.jsonl")


def test_the_word_says_what_a_file_is(page: Page) -> None:
    row(page).get_by_role("button", name="Your own traffic", exact=True).click()
    dialog = page.get_by_role("dialog", name="Your own traffic")
    expect(dialog.locator("code")).to_have_text('{"arrival_s": 0.5, "prompt": "Why?", "answer_tokens": 32}')
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()


def test_the_rail_has_room_for_it(page: Page, file: Path) -> None:
    fits = (
        "() => { const rail = document.querySelector('#rp-rail'); return rail.scrollHeight - rail.clientHeight <= 1; }"
    )
    page.wait_for_function(fits)  # not at once: on a busy machine the page may show that it waits for the server
    choose(page, file)
    expect(said(page)).to_be_visible()
    page.wait_for_function(fits)


def test_on_a_phone_it_is_among_the_knobs(mock: Served, open_page: Open, file: Path) -> None:
    page = open_page(mock, **PHONE)
    expect(row(page)).to_be_hidden()
    page.locator("#rp-knobs-button").tap()
    choose(page, file)
    expect(said(page)).to_have_text("40 requests, 20 s")
    for button in (player(page), page.get_by_role("button", name="Choose file…")):
        box = button.bounding_box()
        assert box["width"] >= 44 and box["height"] >= 44
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") == 0
    player(page).tap()
    expect(player(page)).to_have_text("Stop")
    player(page).tap()
    expect(player(page)).to_have_text("Play")
