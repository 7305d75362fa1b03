"""The browsers that all tests of pages share, as fixtures: two of Playwright's event loops cannot run in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:  # a machine with a GPU may lack it
    from playwright.sync_api import Browser, BrowserContext, Page, Playwright

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


@pytest.fixture(scope="session")
def playwright() -> Iterator[Playwright]:
    """Its event loop counts as running in the tests' thread while it is open, so browser tests run last."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        yield playwright


@pytest.fixture(scope="session")
def browser(playwright: Playwright, chromium_path: str) -> Iterator[Browser]:
    browser = playwright.chromium.launch(executable_path=chromium_path, args=list(ARGUMENTS))
    yield browser
    browser.close()


def new_page(browser: Browser, **options: Any) -> Page:
    """Opens a page that waits as long as those of the tests' own contexts do."""
    page = browser.new_page(**options)
    page.set_default_timeout(TIMEOUT_MS)
    return page


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
