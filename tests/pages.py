"""The real page in a real Chromium. After every test, no console error and no request to another host is allowed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.sync_api import BrowserContext, Page, Route, expect

from roseplay import Engine
from roseplay.config import Knobs
from roseplay.play.playground import Playground
from tests.browsers import DESKTOP, PHONE, TIMEOUT_MS
from tests.play.conftest import serving as serve
from tests.play.fake_engine import FakeEngine
from tests.quiet import QuietMachine

REFUSED = "the server responded with a status of 422"  # the browser logs this on its console
expect.set_options(timeout=TIMEOUT_MS)
# Runs first in each page. Counts the calls of endpoints that are unanswered, and reports requests to other hosts. Listening to
# Playwright's request events instead would take a tenth of a core for each page that polls.
WATCH = """
(() => {
  const call = (url) => new URL(url, document.baseURI).pathname.startsWith("/ui/call/");
  const { fetch } = window;
  window.unanswered = 0;
  window.fetch = (what, ...options) => {
    unanswered += call(what.url ?? what);
    return fetch(what, ...options);
  };
  new PerformanceObserver((list) => {
    for (const { name, initiatorType } of list.getEntries()) {
      if (!/^(data|blob):/.test(name) && !name.startsWith(ADDRESS)) console.error(`a request to another host: ${name}`);
      if (initiatorType === "fetch" && call(name)) unanswered -= 1;
    }
  }).observe({ type: "resource", buffered: true });
})()
"""


class Served:
    """A server: its address, its engine, and what tests do to them."""

    def __init__(self, address: str, engine: Any, playground: Playground | None = None) -> None:
        self.address, self.engine, self._playground = address, engine, playground

    def rest(self) -> None:
        """Stop everything, including the steady traffic of closed tabs, and reset all knobs."""
        if self._playground is not None:
            self._playground.stop()
        self.engine.set_knobs(**Knobs().to_dict())


@contextmanager
def serving(engine: Any, playground: Playground | None = None) -> Iterator[Served]:
    """Serve the page of an engine, then close it."""
    playground = playground or Playground(engine, machine=QuietMachine())
    with serve(engine, playground) as address:
        yield Served(address, engine, playground)
    engine.close()


@pytest.fixture(scope="session")
def _live() -> Iterator[Served]:
    with serving(Engine("tiny-chat", num_blocks=449)) as served:
        yield served


@pytest.fixture(scope="session")
def _mock() -> Iterator[Served]:
    with serving(FakeEngine(run=True, step_s=0.02)) as served:
        yield served


@pytest.fixture
def live(_live: Served) -> Iterator[Served]:
    """The embedded model on the real engine."""
    yield _live
    _live.rest()


@pytest.fixture
def mock(_mock: Served) -> Iterator[Served]:
    """An engine that says the same few words, HTML among them, at a known pace."""
    yield _mock
    _mock.rest()


def forget(pages: Sequence[Page]) -> None:
    """Close pages of one context. Clear what they stored, unless other pages use it too, but keep the cached files."""
    context, origin = pages[0].context, "origin"
    origins = {page.evaluate(origin) for page in pages if not page.is_closed()}
    for page in pages:
        page.close()
    session = context.new_cdp_session(context.pages[0])
    for stored in origins - {page.evaluate(origin) for page in context.pages}:
        session.send("Storage.clearDataForOrigin", {"origin": stored, "storageTypes": "all"})
    session.detach()
    context.clear_permissions()


def watch(page: Page, address: str, complaints: list[str], expected: str = "") -> None:
    """Collect what a page reports as errors, except on its console what contains the text ``expected``, if any."""
    # Software rendering logs warnings of its own; any error on the console is the page's.
    ours = lambda m: m.type == "error" and not (expected and expected in m.text)  # noqa: E731
    page.on("console", lambda m: ours(m) and complaints.append(f"console: {m.text} {m.location['url']}"))
    page.on("pageerror", lambda error: complaints.append(f"pageerror: {error}"))
    page.add_init_script(WATCH.replace("ADDRESS", json.dumps(address)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[pytest.TestReport]:
    report = yield
    if report.failed:
        item.failed = True  # type: ignore[attr-defined]
    return report


# Stops a replay, closes what is open, and returns chats, their settings and the time that is shown to what they were.
RESET = """async () => {
  if (Rose.replay.on) document.querySelector(".rp-leave").click();
  Rose.popover.close();
  for (const dialog of document.querySelectorAll("dialog[open]")) dialog.close();
  document.querySelector("#rp-sampling.rp-shown #rp-sampling-head button")?.click();
  document.querySelector("#rp-message button")?.click();
  Rose.view.setSpan(15000);
  Rose.emit("select", null);
  scrollTo(0, 0);
  const { ask } = await Rose.load("shared/ask.js"), patience = { ms: 60_000 };
  const { forget, sendTo } = await Rose.load("lanes/lanes.js");
  forget();
  sendTo();
  await ask("/call/new_chat", { body: { tab: Rose.tab }, ...patience });
  const body = { tab: Rose.tab, changes: {}, reset: true };
  await Promise.all([0, 1, 2, 3, 4].map((lane) => ask("/sampling", { body: { ...body, lane }, ...patience })));
  Rose.emit("replaced"); // the controls show the settings again, after any that they still wait for
  await (await Rose.load("lanes/sampling.js")).sent();
}"""
IS_RESET = """(knobs) => JSON.stringify(Rose.store.knobs) === knobs && !document.querySelector(".rp-turn, #rp-message:not([hidden])")
  && !document.querySelector("#sampling-reset")?.textContent.includes("changed")"""
# Controls that do not follow the engine: lists, boxes, and rows of words, of which the chosen one is marked.
LISTS = ("#to input", "#lane-count input")
BOXES = ("#burst-size input[type=number]", "#answer-length input[type=number]", "#steady-rate-value input")
PRESSED = "[aria-pressed=true]"
WORDS = {"#mix label": ".selected", "#rp-steady button": PRESSED, "#rp-steps [aria-label=view] button": PRESSED}
OTHERS = ("#sampling-lane input", "#slow-factor input")  # not set back: where these differ, the page is loaded again
CONTROLS = (*LISTS, *BOXES, *(row + chosen for row, chosen in WORDS.items()), *OTHERS)
VALUES = """(controls) => controls.map((control) => document.querySelector(control))
  .map((element) => element && (element.value || element.textContent.trim()))"""


class SharedPage:
    """A page that the tests of a file use one after another: loading one takes two seconds of CPU time.

    Attributes:
        complaints: the errors it has reported.
        expected: text that allowed console errors contain; "" for none.
    """

    def __init__(self) -> None:
        self.complaints: list[str] = []
        self.expected = ""
        self._page: Page | None = None
        self._address = self._knobs = ""
        self._values: list[str | None] = []

    def get(self, context: BrowserContext, address: str) -> Page:
        """Returns the page without chats, with nothing open and its usual settings; loads it if it is not there."""
        if self._page is not None and self._address == address:
            try:
                self._reset(self._page)
                if self._page.evaluate(VALUES, CONTROLS) == self._values:
                    return self._page
            except BaseException:  # only this test fails
                self.close()
                raise
        self.close()
        page = self._page = context.new_page()
        self._address = address
        watch(page, address, self.complaints)
        page.goto(address)
        ready(page)
        self._knobs, self._values = page.evaluate("JSON.stringify(Rose.store.knobs)"), page.evaluate(VALUES, CONTROLS)
        return page

    def _reset(self, page: Page) -> None:
        page.unroute_all(behavior="ignoreErrors")  # such as of a request that the page has given up
        page.evaluate(RESET)
        page.mouse.move(0, 0)
        page.get_by_role("tab", name="Live").click()
        page.locator("#prompt input").fill("")
        page.evaluate("document.activeElement.blur()")  # keys are not for the prompt
        page.wait_for_function(IS_RESET, arg=self._knobs)
        for control, now, value in zip(CONTROLS, page.evaluate(VALUES, CONTROLS), self._values, strict=True):
            if now != value and page.locator(control).is_visible():  # otherwise the page is loaded again
                self._restore(page, control, value or "")

    def _restore(self, page: Page, control: str, value: str) -> None:
        if control in LISTS:
            page.locator(control).click()
            page.get_by_role("option").filter(has_text=re.compile(f"{value}$")).click()
            expect(page.locator(control)).to_have_value(value)
        elif control in BOXES:
            page.locator(control).fill(value)
            page.locator(control).press("Enter")
        for row, chosen in WORDS.items():
            if control == row + chosen:
                page.locator(row, has_text=value).click()

    def lend(self, node: pytest.Item, context: BrowserContext, served: Served) -> Iterator[Page]:
        """The page for one test, which fails if the page reports an error that is not expected."""
        yield self.get(context, served.address)
        context.clear_permissions()
        complaints = [told for told in self.complaints if not (self.expected and self.expected in told)]
        self.complaints.clear()
        self.expected = ""
        if complaints or getattr(node, "failed", False):
            self.close()
        assert complaints == []

    def close(self, address: str | None = None) -> None:
        """Close the page, if it is that of this server; ``None`` is any."""
        if self._page is not None and address in (None, self._address):
            forget([self._page])
            self._page = None


@pytest.fixture(scope="module")
def _shared_page() -> Iterator[SharedPage]:
    shared = SharedPage()
    yield shared
    shared.close()


@pytest.fixture(scope="module")
def _shared_phone() -> Iterator[SharedPage]:
    shared = SharedPage()
    yield shared
    shared.close()


@pytest.fixture
def page_of(mock: Served) -> Served:
    """The server of ``page`` and ``phone``; a file may override it with one that lasts as long as the file's tests."""
    return mock


@pytest.fixture
def page(
    request: pytest.FixtureRequest,
    page_of: Served,
    visitors: Callable[[bool], BrowserContext],
    _shared_page: SharedPage,
) -> Iterator[Page]:
    """A page that the tests of a file share, with empty lanes and the usual knobs and settings.

    What else a test changes stays, such as the theme, and what the Lab shows. Where a test leaves a control that cannot
    be set back, the next one gets a new page.
    """
    yield from _shared_page.lend(request.node, visitors(False), page_of)


@pytest.fixture
def phone(
    request: pytest.FixtureRequest,
    page_of: Served,
    visitors: Callable[[bool], BrowserContext],
    _shared_phone: SharedPage,
) -> Iterator[Page]:
    """The same on a phone."""
    yield from _shared_phone.lend(request.node, visitors(True), page_of)


@pytest.fixture
def expect_error(_shared_page: SharedPage) -> Callable[[str], None]:
    """Allows a test's ``page`` to report errors that contain a text."""
    return lambda text: setattr(_shared_page, "expected", text)


@pytest.fixture
def open_page(
    request: pytest.FixtureRequest, visitors: Callable[[bool], BrowserContext], _shared_page: SharedPage
) -> Iterator[Callable[..., Page]]:
    """Opens the page of a server, as a new visitor or, in a test that has a ``page``, in another tab of the same one.

    Fails the test afterwards if the page reported an error.
    """
    opened: list[Page] = []
    complaints: list[str] = []

    def open_page(
        served: Any,
        *,
        path: str = "",
        expected: str = "",
        live: bool = True,
        color_scheme: Literal["light", "dark"] = "light",
        **screen: Any,
    ) -> Page:
        """``expected``: text that allowed console errors contain. ``live``: wait until the page is live."""
        assert screen in ({}, DESKTOP, PHONE)
        if screen != PHONE and "page" not in request.fixturenames:
            _shared_page.close(served.address)  # its storage is that of the new visitor
        page = visitors(screen == PHONE).new_page()
        opened.append(page)
        page.emulate_media(color_scheme=color_scheme)
        watch(page, served.address, complaints, expected)
        page.goto(served.address + path)
        if live:
            ready(page)
        return page

    yield open_page
    for context in {page.context for page in opened}:
        forget([page for page in opened if page.context == context])
    assert complaints == []


@pytest.fixture
def choose(tmp_path: Path) -> Callable[..., None]:
    """Chooses a file with a text on a page."""

    def choose(page: Page, text: str, name: str) -> None:
        path = tmp_path / name
        path.write_text(text)
        with page.expect_file_chooser() as chooser:
            page.get_by_role("button", name="Choose file…").click()
        chooser.value.set_files(path)

    return choose


class Held:
    """Holds a page's requests to some addresses until the test lets them go on."""

    def __init__(self, page: Page, addresses: str) -> None:
        self._page, self._addresses = page, addresses
        self._routes: list[Route] = []
        page.route(addresses, lambda route: self._routes.append(route))

    def wait(self) -> Route:
        """Wait for a request, the only one; returns it."""
        while not self._routes:
            self._page.wait_for_timeout(10)
        (route,) = self._routes
        return route

    def go_on(self) -> None:
        """Let a request go on once it is there."""
        self.wait().continue_()
        self._routes.clear()

    def end(self) -> None:
        """Hold no more."""
        self._page.unroute(self._addresses)


def ready(page: Page) -> None:
    """Wait until the page is live and all of its parts exist, except Plotly's axes, which come last."""
    page.wait_for_function(
        """() => ['.rp-live[data-state=live]', '#rp-lane-1', '#burst', '#send', '#answer-length input[type=range]']
             .every((part) => document.querySelector(part)) && window.Rose && Rose.panels && Rose.panels.length >= 6"""
    )


def settled(page: Page) -> None:
    """Wait until the server has answered all of the page's calls."""
    page.wait_for_function("unanswered === 0", polling=50)


def reload(page: Page) -> None:
    """Reload the page once the server has answered all calls: a call that is cut off logs an error on the console."""
    settled(page)
    page.reload()


def answer_at_most(page: Page, tokens: int, *, lane: int = 0) -> None:
    """Limit answers in a lane, or in all: the default of 256 tokens takes a while."""
    asked = {"lane": lane, "changes": {"max_new_tokens": tokens}}
    page.evaluate(
        """(asked) => fetch('/ui/sampling', {method: 'POST', headers: {'Content-Type': 'application/json'},
             body: JSON.stringify({tab: Rose.tab, ...asked})})""",
        asked,
    )


def ask(page: Page, prompt: str) -> None:
    box = page.locator("#prompt input")
    box.fill(prompt)
    expect(box).to_be_enabled()  # a page that waits for its server is locked, and a key would be lost
    box.press("Enter")


def state(page: Page, lane: int) -> Any:
    """The chip that shows a lane's state."""
    return page.locator(f"#rp-lane-{lane} .rp-state")


def text(page: Page, lane: int) -> Any:
    return page.locator(f"#rp-lane-{lane} .rp-text")
