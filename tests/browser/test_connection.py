"""A server or an engine stops responding: the page says so, shows nothing as current, and recovers by itself.

Also what every test in a browser relies on: requests to other hosts are reported, and unanswered calls are counted.
"""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import uvicorn
from playwright.sync_api import Page, expect

from roseplay.play.playground import Playground
from roseplay.play.server import create_app
from roseplay.serve.guard import allowed_hosts
from tests.pages import DESKTOP, PHONE, Held, Served, answer_at_most, ask, settled, state, text
from tests.play.fake_engine import FakeEngine
from tests.waiting import wait_until

Open = Callable[..., Page]
NO_ANSWER = "Failed to load resource"
# What must not change while no data arrives: the clock, the time axis, and the rates.
STANDS = "() => JSON.stringify([Rose.clock(), Rose.time.now(), document.querySelector('.rp-kpi.tps b').innerText])"


class Restartable(Served):
    """A server that can be stopped and started again at the same port."""

    def __init__(self) -> None:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            self._port = listener.getsockname()[1]
        super().__init__(f"http://127.0.0.1:{self._port}", None)
        self.start()

    def start(self) -> None:
        self.engine = FakeEngine(run=True, step_s=0.05)
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self._port))
        app = create_app(Playground(self.engine), allowed_hosts("127.0.0.1"))
        self._server = uvicorn.Server(uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=1))
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [listener]}, daemon=True)
        self._thread.start()
        wait_until(lambda: self._server.started, "the server's start")

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(timeout=20)
        self.engine.close()


@pytest.fixture
def server() -> Iterator[Restartable]:
    server = Restartable()
    yield server
    server.stop()


def banner(page: Page) -> Any:
    return page.locator("#rp-banner")


def answering(page: Page) -> None:
    """Wait until all lanes are in the middle of a long answer."""
    answer_at_most(page, 1500)
    ask(page, "a long story")
    expect(state(page, 1)).to_have_text(re.compile("tok"))
    page.wait_for_function("() => Rose.store.tokens.end > 12 && Rose.store.stats && Rose.store.stats.tok_s > 0")
    expect(page.locator(".rp-kpi.tps b")).to_have_text(re.compile(r"^\d"))


def stands_still(page: Page) -> None:
    """Wait until nothing changes any more. A poll in flight may still cause one change."""
    standing = f"""async () => {{
      const before = ({STANDS})();
      await new Promise((done) => setTimeout(done, 500));
      return ({STANDS})() === before;
    }}"""
    page.wait_for_function(standing)


def test_a_server_that_ended_and_another_one_in_its_place(server: Restartable, open_page: Open) -> None:
    page = open_page(server, expected=NO_ANSWER)
    answering(page)
    expect(banner(page)).to_be_hidden()
    caret = "() => getComputedStyle(document.querySelector('#rp-lane-1 .rp-turn:last-child .rp-a'), '::after').content"
    assert page.evaluate(caret) != "none"
    page.locator("#sampling-temperature input[type=number]").evaluate(
        "(box) => { box.value = 0.1; box.dispatchEvent(new InputEvent('input', { bubbles: true })); }"
    )
    expect(page.locator("#sampling-temperature")).to_have_attribute("data-source", "tab")
    page.locator("#prompt input").focus()
    server.stop()
    expect(banner(page)).to_have_text(re.compile(r"The server does not answer\. Reconnecting\. ?Last seen \d+ s ago\."))
    expect(page.locator(".rp-kpi.tps b")).to_have_text("–")
    expect(page.locator(".rp-kpi.rw b")).to_have_text("–/–")
    expect(page.locator("#rp-lane-1 .rp-stall")).to_have_text("The server does not answer.")
    expect(state(page, 1)).to_have_text("no news")
    assert page.evaluate(caret) == "none"
    stands_still(page)
    for control in ("#send", "#burst", "#stop", "#budget input[type=range]", "#budget-value input", "#prompt input",
                    "#prefix-cache input", "#max-batch input[type=number]", "#rp-lane-1 .rp-halt"):  # fmt: skip
        expect(page.locator(control)).to_be_disabled()
        expect(page.locator(control)).to_have_attribute("title", "The server does not answer.")
        expect(page.locator(control)).to_have_attribute("aria-description", "The server does not answer.")
    expect(page.locator("#graphs input")).to_be_disabled()  # disabled as before: it needs a GPU
    first = page.locator("#rp-banner .rp-age").inner_text()
    expect(page.locator("#rp-banner .rp-age")).not_to_have_text(first)  # its seconds keep counting
    boot = page.evaluate("Rose.store.bootId")

    server.start()
    expect(banner(page)).to_be_hidden()
    expect(page.locator(".rp-live")).to_have_text("connected")
    assert page.evaluate("Rose.store.bootId") != boot
    for control in ("#send", "#burst", "#stop", "#budget input[type=range]", "#prompt input"):
        expect(page.locator(control)).to_be_enabled()
        expect(page.locator(control)).not_to_have_attribute("title", "The server does not answer.")
    expect(page.locator("#graphs input")).to_be_disabled()
    expect(page.locator("#prompt input")).to_be_focused()
    expect(page.locator("#rp-lane-1 .rp-stall")).to_be_hidden()
    expect(page.locator("#sampling-temperature")).to_have_attribute("data-source", "page")  # the new one knows no tab's
    expect(page.locator("#sampling-temperature input[type=number]")).not_to_have_value("0.1")
    answer_at_most(page, 12)
    ask(page, "and again")
    expect(text(page, 1)).to_contain_text("and again")
    expect(state(page, 1)).to_have_text(re.compile("^cut"))


def test_a_server_that_hangs_and_goes_on(page: Page) -> None:
    """Polls are neither answered nor refused, as when the server's process is suspended."""
    answering(page)
    held = Held(page, "**/ui/delta*")
    expect(banner(page)).to_be_visible()
    page.set_viewport_size(PHONE["viewport"])
    page.wait_for_function("() => innerWidth === 390")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.set_viewport_size(DESKTOP["viewport"])
    stands_still(page)
    expect(page.locator("#burst")).to_be_disabled()
    expect(page.locator(".rp-live")).to_have_attribute("data-state", "lost")
    expect(page.locator(".rp-live")).to_have_text("reconnecting")
    held.end()  # the held polls continue
    expect(banner(page)).to_be_hidden()
    expect(page.locator("#burst")).to_be_enabled()
    expect(page.locator(".rp-kpi.tps b")).to_have_text(re.compile(r"^\d"))


def test_an_engine_that_is_overdue_or_has_ended(page: Page) -> None:
    answering(page)
    head: dict[str, Any] = {}
    page.route("**/ui/delta*", lambda route: route.fulfill(json={**route.fetch().json(), **head}))
    sentence = "The engine's step has taken 12 s and should have taken 2."
    head |= {"health": sentence, "overdue": True}
    expect(banner(page).locator("[role=alert]")).to_have_text(sentence)
    expect(page.locator("#rp-lane-2 .rp-stall")).to_have_text(sentence)
    expect(page.locator("#burst")).to_be_enabled()
    expect(page.locator(".rp-live")).to_have_text("no answer")
    head |= {"alive": False, "health": None}
    expect(banner(page).locator("[role=alert]")).to_have_text("The engine has stopped: restart it.")
    expect(page.locator("#burst")).to_be_disabled()
    expect(page.locator(".rp-kpi.tps b")).to_have_text("–")
    expect(page.locator("#rp-lane-2 .rp-stall")).to_have_text("The engine has stopped: restart it.")
    head |= {"alive": True}
    expect(banner(page)).to_be_hidden()
    expect(page.locator("#burst")).to_be_enabled()
    expect(page.locator("#rp-lane-2 .rp-stall")).to_be_hidden()


def test_a_request_to_another_host_is_an_error_on_the_console(page: Page, expect_error: Callable[[str], None]) -> None:
    expect_error("a request to another host: http://192.0.2.1/x")
    page.route("http://192.0.2.1/*", lambda route: route.fulfill(body=""))  # so that the failure itself is no error
    with page.expect_console_message(lambda message: message.type == "error") as reported:
        page.evaluate("fetch('http://192.0.2.1/x', { mode: 'no-cors' }).then(() => null)")
    assert reported.value.text == "a request to another host: http://192.0.2.1/x"


def test_a_call_counts_until_it_is_answered(page: Page) -> None:
    held = Held(page, "**/ui/call/*")
    ask(page, "hello")
    page.wait_for_function("unanswered === 1")
    held.go_on()
    settled(page)
