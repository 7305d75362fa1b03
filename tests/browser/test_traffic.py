"""Steady traffic, and traffic from a file: started, changed, followed, and ended, by whatever ends it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from playwright.sync_api import Locator, Page, expect

from roseplay.play.open_loop import MOST_WAITING
from tests.pages import REFUSED, Served, ready, reload

ALL_ENDED = "() => [...Rose.store.requests.values()].every((one) => one.finished !== null)"


def requests(page: Page, kind: str, condition: str = "true") -> int:
    """The number of requests of a kind for which a condition on ``one`` holds."""
    return page.evaluate(
        f"() => [...Rose.store.requests.values()].filter((one) => one.kind === '{kind}' && {condition}).length"
    )


def wait_for(page: Page, condition: str) -> None:
    """Wait for a poll in which a condition on the state ``it`` of steady traffic holds."""
    page.evaluate("() => Rose.on('own', (own) => (window.steady = own.steady))")
    page.wait_for_function(f"() => window.steady && ((it) => {condition})(window.steady)")


def switch(page: Page) -> Locator:
    return page.get_by_role("switch", name=re.compile("^Steady traffic, .* requests per second$"))


def is_on(page: Page, on: bool) -> None:
    expect(switch(page)).to_have_attribute("aria-checked", str(on).lower())


def rate(page: Page) -> Locator:
    return page.locator("#steady-rate-value input")


def type_rate(page: Page, value: str) -> None:
    rate(page).fill(value)
    rate(page).press("Enter")


def note(page: Page) -> Locator:
    return page.locator("#steady-rate .rp-sent")


def turn_on(page: Page) -> None:
    """Turn steady traffic on and wait until requests have arrived."""
    switch(page).click()
    expect(note(page)).to_have_text(re.compile(r"^[1-9]\d* sent$"))


def line(at_s: float) -> str:
    return json.dumps({"arrival_s": at_s, "prompt": "What is a block?", "answer_tokens": 4}) + "\n"


MONDAY = "".join(line(index / 2) for index in range(40))


def row(page: Page) -> Locator:
    return page.get_by_role("group", name="Your own traffic")


def said(page: Page) -> Locator:
    return row(page).locator(".rp-file span")


def player(page: Page) -> Locator:
    return row(page).locator(".rp-play")


def test_a_file_is_chosen_played_and_stopped(page: Page, choose: Callable[..., None]) -> None:
    expect(player(page)).to_be_hidden()
    choose(page, MONDAY, "monday.jsonl")
    expect(row(page).locator("b")).to_have_text("monday.jsonl")
    expect(said(page)).to_have_text("40 requests, 20 s")
    assert requests(page, "own") == 0, "choosing a file does not play it yet"
    page.get_by_role("button", name="Play monday.jsonl").click()
    expect(said(page)).to_have_text(re.compile(r"^([3-9]|[1-3]\d) of 40 sent$"))
    page.get_by_role("button", name="Stop your own traffic").click()
    expect(page.get_by_role("button", name="Play monday.jsonl")).to_be_visible()
    page.wait_for_function(  # the last one may still be on its way to the page
        """() => {
            const own = [...Rose.store.requests.values()].filter((one) => one.kind === "own");
            const told = `${own.length} of 40 sent`;
            return [...document.querySelectorAll(".rp-file span")].some((span) => span.textContent === told);
        }"""
    )
    page.wait_for_function(ALL_ENDED)
    assert requests(page, "own", "(one.reason === 'abort' || one.lane !== null)") == 0
    expect(row(page).locator(".rp-refused")).to_be_empty()
    page.locator("#rp-steps").get_by_role("button", name="requests").click()
    expect(page.locator("#rp-steps table")).to_contain_text("own file")


def test_it_ends_when_all_are_sent_and_plays_again(page: Page, choose: Callable[..., None]) -> None:
    choose(page, "arrival_s,prompt_tokens,answer_tokens\n0,8,4\n0.2,8,4\n", "short.csv")
    expect(said(page)).to_have_text("2 requests, 0.2 s")
    before = requests(page, "own")
    for _ in range(2):
        player(page).click()  # waits until it is enabled, which it is not while the server is slow to answer
        expect(said(page)).to_have_text("2 of 2 sent")
        expect(player(page)).to_have_text("Play")
    page.wait_for_function(
        "(count) => [...Rose.store.requests.values()].filter((one) => one.kind === 'own').length === count",
        arg=before + 4,
    )


def test_a_bad_file_is_refused_by_its_line_and_the_file_before_it_stays(
    page: Page, choose: Callable[..., None], expect_error: Callable[[str], None]
) -> None:
    expect_error(REFUSED)
    choose(page, MONDAY, "monday.jsonl")
    expect(said(page)).to_have_text("40 requests, 20 s")
    refused = row(page).get_by_role("status")
    long = json.dumps({"arrival_s": 1, "prompt_tokens": 5000, "answer_tokens": 1})
    for content, sentence in (
        (line(0) + '{"arrival_s": "soon"}', "Line 2 has no prompt"),
        ("", "The traffic file has no requests"),
        (line(0) + long, "Request 2 of the traffic has 5000 prompt tokens"),
        (line(0) * 150_000, "It is larger than 8 MiB"),
    ):
        choose(page, content, "bad.jsonl")
        expect(refused).to_contain_text(f"bad.jsonl: {sentence}")
    expect(said(page)).to_have_text("40 requests, 20 s")
    choose(page, MONDAY, "monday.jsonl")
    expect(refused).to_be_empty()


def test_stop_pressed_before_the_server_has_answered_stops(page: Page, choose: Callable[..., None]) -> None:
    choose(page, "".join(line(600 * index) for index in range(3)), "sparse.jsonl")
    player(page).evaluate("(button) => { button.click(); button.click(); }")
    expect(row(page)).to_have_attribute("aria-busy", "false")
    expect(said(page)).to_have_text(re.compile(r"^[01] of 3 sent$"))
    expect(player(page)).to_have_text("Play")


def test_a_file_can_be_dropped_on_the_row_which_has_room(page: Page) -> None:
    fits = (
        "() => { const rail = document.querySelector('#rp-rail'); return rail.scrollHeight - rail.clientHeight <= 1; }"
    )
    page.wait_for_function(fits)  # not at once: on a busy machine the page may show that it waits for the server
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
    page.wait_for_function(fits)


def test_the_word_says_what_a_file_is(page: Page) -> None:
    row(page).get_by_role("button", name="Your own traffic", exact=True).click()
    dialog = page.get_by_role("dialog", name="Your own traffic")
    expect(dialog.locator("code")).to_have_text('{"arrival_s": 0.5, "prompt": "Why?", "answer_tokens": 32}')
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()


def test_steady_requests_arrive_while_it_is_on_and_the_lanes_stay_free(page: Page) -> None:
    is_on(page, False)
    turn_on(page)
    is_on(page, True)
    page.wait_for_function("() => [...Rose.store.requests.values()].some((one) => one.kind === 'steady')")
    expect(page.locator("#rp-lane-1 .rp-hint")).to_be_visible()
    switch(page).click()
    is_on(page, False)
    expect(note(page)).to_be_hidden()
    page.wait_for_function(ALL_ENDED)
    assert requests(page, "steady", "(one.reason === 'abort' || one.lane !== null)") == 0


def test_stop_all_ends_both_without_a_message(page: Page, choose: Callable[..., None]) -> None:
    choose(page, MONDAY, "monday.jsonl")
    player(page).click()
    turn_on(page)
    expect(said(page)).to_have_text(re.compile(r"^([2-9]|[123]\d) of 40 sent$"))
    page.locator("#stop").click()
    is_on(page, False)
    expect(player(page)).to_have_text("Play")
    page.wait_for_function(ALL_ENDED)
    expect(page.get_by_text("Steady traffic stopped")).to_have_count(0)
    expect(row(page).locator(".rp-refused")).to_be_empty()


def test_a_rate_that_cannot_be_is_said_and_not_taken(page: Page) -> None:
    type_rate(page, "a lot")
    expect(page.get_by_text("The rate must be from 0.1 to 50.")).to_be_visible()
    expect(rate(page)).to_have_value("4")


def test_changes_apply_while_it_is_on_and_a_page_that_is_loaded_again_shows_what_runs(
    page: Page, choose: Callable[..., None]
) -> None:
    turn_on(page)
    wait_for(page, "it.rate === 4 && it.spacing === 'poisson' && it.kind === 'shared_head'")
    seed, sent = page.evaluate("() => [steady.seed, steady.sent]")
    type_rate(page, "7.5")
    expect(page.get_by_role("switch", name="Steady traffic, 7.5 requests per second")).to_be_visible()
    wait_for(page, "it.rate === 7.5")
    page.get_by_role("button", name="even").click()
    page.locator("#mix label", has_text="equal").click()
    page.locator("#answer-length input[type=range]").press("Home")
    wait_for(page, "it.spacing === 'even' && it.kind === 'equal' && it.max_new_tokens === 16")
    page.locator("#steady-rate input[type=range]").press("ArrowRight")
    wait_for(page, "it.rate === 12")
    type_rate(page, "2.5")
    wait_for(page, "it.rate === 2.5")
    assert page.evaluate("() => [steady.on, steady.seed]") == [True, seed]
    assert page.evaluate("() => steady.sent") >= sent
    choose(page, line(0) + line(600), "slow.jsonl")
    player(page).click()
    expect(said(page)).to_have_text("1 of 2 sent")

    reload(page)
    ready(page)
    is_on(page, True)
    expect(rate(page)).to_have_value("2.5")
    expect(page.get_by_role("button", name="even")).to_have_attribute("aria-pressed", "true")
    expect(page.locator("#mix label.selected")).to_have_text("equal")
    wait_for(page, "it.on && it.rate === 2.5 && it.kind === 'equal'")
    switch(page).click()
    is_on(page, False)
    expect(row(page).locator("b")).to_have_text("slow.jsonl")
    expect(said(page)).to_have_text("1 of 2 sent")
    player(page).click()
    expect(player(page)).to_be_hidden()  # the reloaded page has no file to play


def test_why_they_stopped_is_said_once(mock: Served, page: Page, choose: Callable[..., None]) -> None:
    mock.engine.pause()  # so that all requests wait
    reason = f"{MOST_WAITING} requests were waiting, the limit is {MOST_WAITING}"
    try:
        choose(page, line(0) * 100, "many.jsonl")
        player(page).click()
        expect(row(page).locator(".rp-refused")).to_have_text(f"Stopped: {reason}.")
        expect(said(page)).to_have_text(f"{MOST_WAITING} of 100 sent")
        mock.engine.abort_all()
        type_rate(page, "50")
        page.get_by_role("button", name="even").click()
        switch(page).click()
        expect(page.get_by_text(f"Steady traffic stopped: {reason}.")).to_be_visible()
    finally:
        mock.engine.resume()
    is_on(page, False)
    expect(note(page)).to_have_text("stopped")
    expect(note(page)).to_have_attribute("title", reason)
    reload(page)
    ready(page)
    expect(note(page)).to_have_text("stopped")
    expect(page.get_by_text("Steady traffic stopped")).to_have_count(0)
