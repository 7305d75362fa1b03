"""A page that contains only what a test puts there and that can import the page's own modules."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, Page, Route

from roseplay.play.web import assets, scripts
from tests.play.static.given import given

SITE = "http://page.test"
STYLES = re.sub(r"@font-face {.*?}", "", assets.styles())  # without the fonts, which need a server


def bare_page(browser: Browser, content: str, *, settings: Any = None, **options: Any) -> Page:
    """Open a page with ``content`` and the object ``Rose``; its ``load('live/why.js')`` returns a module's exports."""
    about = f'<script type="application/json" id="rose-given">{json.dumps(given(settings))}</script>'
    page = browser.new_page(**options)

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
