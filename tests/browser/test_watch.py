"""What every browser test relies on: requests to other hosts are reported, and unanswered calls are counted."""

from __future__ import annotations

from collections.abc import Callable

from playwright.sync_api import Page

from tests.browser.conftest import Held, ask, settled


def test_a_request_to_another_host_is_an_error_on_the_console(page: Page, expect_error: Callable[[str], None]) -> None:
    expect_error("a request to another host: http://192.0.2.1/x")
    page.route("http://192.0.2.1/*", lambda route: route.fulfill(body=""))  # so that the failure itself is no error
    with page.expect_console_message(lambda message: message.type == "error") as reported:
        page.evaluate("fetch('http://192.0.2.1/x', { mode: 'no-cors' }).then(() => null)")
    assert reported.value.text == "a request to another host: http://192.0.2.1/x"


def test_a_call_counts_until_it_is_answered(page: Page) -> None:
    held = Held(page, "**/gradio_api/queue/join*")
    ask(page, "hello")
    page.wait_for_function("unanswered === 1")
    held.go_on()
    settled(page)
