"""A setting that is added on the server has a row in the Lab's table, although no script names it."""

from __future__ import annotations

from playwright.sync_api import Browser

from roseplay.config import catalogue
from roseplay.settings import Setting, Switch, Whole
from tests.browser.modules import bare_page


def test_it_has_a_row(browser: Browser) -> None:
    knob = Setting(values=Whole(2, 9), label="Patience", hint="mood", help="It waits.", short="calm").to_dict()
    engine = Setting(values=Switch(), label="Zeal", hint="engine: mood", help="It tries hard.").to_dict()
    hidden = Setting(values=Switch(), label="Secret", hint="engine: mood", help="It hides.", compared="name").to_dict()
    settings = {group: dict(known) for group, known in catalogue().items()}
    settings["knobs"] |= {"patience": knob}
    settings["config"] |= {"zeal": engine, "secret": hidden}
    head = "<span class='rp-sub'></span><span class='rp-rt'></span><div class='rp-plot'></div>"
    page = bare_page(browser, f"<body><div id='table'>{head}</div></body>", settings=settings)
    page.evaluate(
        """async () => {
          const { mount } = await Rose.load('lab/settings.js');
          const arm = (patience) => ({ knobs: { patience }, config: { zeal: true, secret: true }, given: new Set() });
          Rose.lab.plan = { A: arm(3), B: arm(7) };
          mount(document.getElementById('table'));
        }"""
    )
    rows = page.locator("#table tbody tr")
    assert rows.locator("th").all_inner_texts() == ["Patience", "Zeal", "Slow motion"]
    assert rows.nth(0).locator("td").nth(2).inner_text() == "mood"
    assert page.get_by_label("Zeal, B").inner_text() == "on"
    page.get_by_label("Patience, A").fill("1")
    page.get_by_label("Patience, A").press("Enter")
    assert page.evaluate("Rose.lab.message") == "Patience of A must be a whole number of at least 2."
    page.get_by_label("Patience, A").fill("4")
    page.get_by_label("Patience, A").press("Enter")
    assert page.evaluate("Rose.lab.plan.A.knobs.patience") == 4
    page.close()
