"""A setting that is added on the server appears on the page, although no script names it."""

from __future__ import annotations

from playwright.sync_api import Browser

from roseplay.config import catalogue
from roseplay.settings import Setting, Whole
from tests.browser.modules import bare_page


def test_a_knob_that_the_server_adds_has_a_mark(browser: Browser) -> None:
    knob = Setting(values=Whole(2, 9), label="Patience", hint="mood", help="It waits.", short="calm").to_dict()
    settings = {group: dict(known) for group, known in catalogue().items()}
    settings["knobs"] |= {"patience": knob}
    page = bare_page(browser, "<body></body>", settings=settings)
    snapshot = {"info": {"num_blocks": 9}, "knobs": {"patience": 3}}
    frames = [{"knobs": [[5, 1, {"patience": [3, 7]}]]}]
    delta = {"boot_id": "one", "next": 7, "now": 1000, "reset": True, "frames": frames, "snapshot": snapshot}
    page.evaluate("delta => Rose.apply(delta)", delta)
    assert page.evaluate("Rose.knobMarks().map((mark) => mark.text)") == ["calm 3 → 7"]
    page.close()
