"""What every browser test relies on: requests to other hosts are reported, and unanswered calls are counted."""

from __future__ import annotations

from collections.abc import Callable

from playwright.sync_api import Page, Route

from tests.browser.conftest import Served, ask, settled


def test_a_request_to_another_host_is_an_error_on_the_console(mock: Served, open_page: Callable[..., Page]) -> None:
    page = open_page(mock, expected="a request to another host: http://192.0.2.1/x")
    page.route("http://192.0.2.1/*", lambda route: route.fulfill(body=""))  # so that the failure itself is no error
    with page.expect_console_message(lambda message: message.type == "error") as reported:
        page.evaluate("fetch('http://192.0.2.1/x', { mode: 'no-cors' }).then(() => null)")
    assert reported.value.text == "a request to another host: http://192.0.2.1/x"


def test_a_call_counts_until_it_is_answered(mock: Served, open_page: Callable[..., Page]) -> None:
    page = open_page(mock)
    held: list[Route] = []
    page.route("**/gradio_api/queue/join*", lambda route: held.append(route))
    ask(page, "hello")
    page.wait_for_function("unanswered === 1")
    while not held:
        page.wait_for_timeout(20)
    held[0].continue_()
    settled(page)
