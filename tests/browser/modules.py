"""A page that contains only what a test puts there and that can import the page's own modules."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, Page, Route

from roseplay.play.web import assets, scripts
from tests.browsers import new_page
from tests.play.static.given import given

SITE = "http://page.test"
STYLES = re.sub(r"@font-face {.*?}", "", assets.styles())  # without the fonts, which need a server


def bare_page(browser: Browser, content: str, *, settings: Any = None, **options: Any) -> Page:
    """Open a page with ``content`` and the object ``Rose``; its ``load('live/why.js')`` returns a module's exports."""
    about = f'<script type="application/json" id="rose-given">{json.dumps(given(settings))}</script>'
    page = new_page(browser, **options)

    def answer(route: Route) -> None:
        name = urlsplit(route.request.url).path.removeprefix("/static/")
        if name in scripts.joined():
            route.fulfill(body=scripts.joined()[name], content_type="text/javascript")
        else:
            route.fulfill(body=f"<!doctype html>{about}{content}", content_type="text/html")

    page.route(f"{SITE}/**", answer)
    page.goto(SITE)
    page.evaluate("import('/static/page.js').then(() => null)")
    return page


def panels(browser: Browser, sizes: Mapping[str, tuple[int, int]], *, plotly: bool = False, **options: Any) -> Page:
    """Open a page with the panels of Live that have these names, each of its size."""
    boxes = "".join(
        f'<section id="{name}" style="width:{width}px;height:{height}px;display:flex;flex-direction:column;float:left">'
        f'<div class="rp-ph"><h3>{name}</h3><span class="rp-sub"></span><span class="rp-rt"></span></div>'
        '<div class="rp-plot"></div></section>'
        for name, (width, height) in sizes.items()
    )
    page = bare_page(browser, f"<style>{STYLES}</style><body>{boxes}</body>", **options)
    if plotly:
        page.add_script_tag(path=assets.plotly_file())
    for name in sizes:
        page.evaluate(f"Rose.load('live/{name}.js').then(({{ mount }}) => mount(document.getElementById('{name}')))")
    return page


@contextmanager
def without_errors(page: Page) -> Iterator[None]:
    """Fails if the page reports an error meanwhile."""
    wrong: list[str] = []
    listeners: dict[str, Callable[[Any], Any]] = {
        "pageerror": lambda error: wrong.append(str(error)),
        "console": lambda message: message.type == "error" and wrong.append(message.text),
    }
    for event, listener in listeners.items():
        page.on(event, listener)  # type: ignore[call-overload]
    yield
    for event, listener in listeners.items():
        page.remove_listener(event, listener)
    assert not wrong
