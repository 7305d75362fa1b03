"""The real page in a real Chromium. After every test, no console error and no request to another host is allowed."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Playwright, expect, sync_playwright

from roseplay import Engine
from roseplay.config import EngineConfig, Knobs
from roseplay.lab.arms import open_engine
from roseplay.lab.lab import Lab
from roseplay.play.playground import Playground
from tests.play.conftest import serving as serve
from tests.play.fake_engine import FakeEngine

# One process for all pages: each new page finds the scripts of the one before compiled in memory. Pages of several
# servers share it, so the tests also fail if a page loads the scripts of another server.
ARGUMENTS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking", "--disable-component-update",
    "--renderer-process-limit=1",
)  # fmt: skip
DESKTOP = {"viewport": {"width": 1440, "height": 900}}
USUAL: dict[str, Any] = {**DESKTOP, "color_scheme": "light"}
PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}
TIMEOUT_MS = 120_000  # the machine may be busy
expect.set_options(timeout=TIMEOUT_MS)
# Runs first in each page. Counts the calls to Gradio that are unanswered, and reports requests to other hosts. Listening to
# Playwright's request events instead would take a tenth of a core for each page that polls.
WATCH = """
(() => {
  const call = (url) => new URL(url, document.baseURI).pathname.startsWith("/gradio_api/");
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
def serving(engine: Any) -> Iterator[Served]:
    """Serve the page of an engine, then close it. The lab's engines are threads: processes take long to start."""
    playground = Playground(engine)
    playground.lab = Lab(engine, open_engine=_in_a_thread)
    with serve(engine, playground) as address:
        yield Served(address, engine, playground)
    engine.close()


def _in_a_thread(model: Any, config: EngineConfig, knobs: Knobs, cancelled: threading.Event) -> Any:
    return open_engine(model, dataclasses.replace(config, worker="thread"), knobs, cancelled)


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


@pytest.fixture(scope="session")
def playwright() -> Iterator[Playwright]:
    """Its event loop counts as running in the tests' thread while it is open, so browser tests run last."""
    with sync_playwright() as playwright:
        yield playwright


@pytest.fixture(scope="session")
def browser(playwright: Playwright, chromium_path: str) -> Iterator[Browser]:
    browser = playwright.chromium.launch(executable_path=chromium_path, args=list(ARGUMENTS))
    yield browser
    browser.close()


@pytest.fixture(scope="session")
def visitors(
    playwright: Playwright, chromium_path: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[bool], BrowserContext]]:
    """The contexts that tests share in turn: a desktop's and, if asked for True, a phone's.

    Their disk caches keep compiled scripts, which halves the cost of a page.
    """
    contexts: dict[bool, BrowserContext] = {}

    def visitor(phone: bool) -> BrowserContext:
        if phone not in contexts:
            screen: Any = {**USUAL, **(PHONE if phone else {})}
            contexts[phone] = playwright.chromium.launch_persistent_context(
                tmp_path_factory.mktemp("chromium"), executable_path=chromium_path, args=list(ARGUMENTS), **screen
            )
            contexts[phone].set_default_timeout(TIMEOUT_MS)
        return contexts[phone]

    yield visitor
    for context in contexts.values():
        context.close()


def forget(context: BrowserContext) -> None:
    """Close all pages but the blank one and clear everything they stored, but keep the cached files."""
    empty, *opened = context.pages
    session = context.new_cdp_session(empty)
    for origin in {page.evaluate("origin") for page in opened if page.url.startswith("http")}:
        session.send("Storage.clearDataForOrigin", {"origin": origin, "storageTypes": "all"})
    for page in opened:
        page.close()
    session.detach()
    context.clear_cookies()
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


class SharedPage:
    """A page that the tests of a file use one after another: loading one takes two seconds of CPU time.

    Attributes:
        complaints: the errors it has reported.
    """

    def __init__(self) -> None:
        self.complaints: list[str] = []
        self._page: Page | None = None
        self._knobs = ""

    def get(self, context: BrowserContext, address: str) -> Page:
        """Returns the page without chats and with nothing open; loads it if it is not there."""
        if self._page is None:
            page = context.new_page()
            watch(page, address, self.complaints)
            page.goto(address)
            ready(page)
            self._page, self._knobs = page, page.evaluate("JSON.stringify(Rose.store.knobs)")
            return page
        try:
            self._reset(self._page)
        except BaseException:  # only this test fails
            self.close()
            raise
        return self._page

    def _reset(self, page: Page) -> None:
        page.evaluate(
            """async () => {
              if (Rose.replay.on) document.querySelector(".rp-leave").click();
              Rose.popover.close();
              const { call } = await Rose.load("shared/endpoints.js");
              for (const lane of [1, 2, 3, 4]) await call("new_chat", { lane });
            }"""
        )
        page.get_by_role("tab", name="Live").click()
        page.locator("#prompt input").fill("")
        page.wait_for_function(
            "(knobs) => JSON.stringify(Rose.store.knobs) === knobs && !document.querySelector('.rp-turn')",
            arg=self._knobs,
        )

    def close(self) -> None:
        if self._page is not None:
            forget(self._page.context)
            self._page = None


@pytest.fixture(scope="module")
def _shared_page() -> Iterator[SharedPage]:
    shared = SharedPage()
    yield shared
    shared.close()


@pytest.fixture
def page_of(mock: Served) -> Served:
    """The server of ``page``; a file may override it with another that lasts as long as the file's tests."""
    return mock


@pytest.fixture
def page(
    request: pytest.FixtureRequest,
    page_of: Served,
    visitors: Callable[[bool], BrowserContext],
    _shared_page: SharedPage,
) -> Iterator[Page]:
    """A page that the tests of a file share, with empty lanes and the usual knobs.

    What else a test changes stays: settings of answers, traffic and charts, the number of lanes, and which of them are
    asked. A test that depends on these, or has an ``open_page``, loads a page of its own.
    """
    yield _shared_page.get(visitors(False), page_of.address)
    complaints, _shared_page.complaints[:] = [*_shared_page.complaints], []
    if complaints or getattr(request.node, "failed", False):
        _shared_page.close()
    assert complaints == []


@pytest.fixture
def open_page(
    request: pytest.FixtureRequest, visitors: Callable[[bool], BrowserContext], _shared_page: SharedPage
) -> Iterator[Callable[..., Page]]:
    """Opens the page of a server as a new visitor. Fails the test afterwards if the page reported an error."""
    contexts: list[BrowserContext] = []
    second: list[BrowserContext] = []  # those of them that no other test uses
    complaints: list[str] = []

    def open_page(
        served: Any,
        *,
        path: str = "",
        expected: str = "",
        live: bool = True,
        color_scheme: Literal["light", "dark"] = "light",
        permissions: Sequence[str] = (),
        **screen: Any,
    ) -> Page:
        """``expected``: text that allowed console errors contain. ``live``: wait until the page is live."""
        assert screen in ({}, DESKTOP, PHONE)
        if screen != PHONE:
            _shared_page.close()  # its storage is that of the new visitor
        context = visitors(screen == PHONE)
        if context in contexts:  # a second visitor
            context = request.getfixturevalue("browser").new_context(**{**USUAL, **screen})
            context.set_default_timeout(TIMEOUT_MS)
            second.append(context)
        contexts.append(context)
        context.grant_permissions(list(permissions))
        page = context.new_page()
        page.emulate_media(color_scheme=color_scheme)
        watch(page, served.address, complaints, expected)
        page.goto(served.address + path)
        if live:
            ready(page)
        return page

    yield open_page
    for context in contexts:
        if context in second:
            context.close()
        else:
            forget(context)
    assert complaints == []


def ready(page: Page) -> None:
    """Wait until the page is live and all of its parts exist, except Plotly's axes, which come last."""
    page.wait_for_function(
        """() => ['.rp-live[data-state=live]', '#rp-lane-1', '#burst', '#send', '#answer-length input[type=range]']
             .every((part) => document.querySelector(part)) && window.Rose && Rose.panels && Rose.panels.length >= 6"""
    )


def settled(page: Page) -> None:
    """Wait until Gradio has answered all of the page's calls."""
    page.wait_for_function("unanswered === 0", polling=50)


def reload(page: Page) -> None:
    """Reload the page once Gradio has answered all calls: a call that is cut off logs an error on the console."""
    settled(page)
    page.reload()


def answer_at_most(page: Page, tokens: int) -> None:
    """Limit answers in all lanes: the default of 256 tokens takes a while."""
    asked = {"lane": 0, "changes": {"max_new_tokens": tokens}}
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
