"""The Lab beside what else the page does: an engine that starts or is replaced, and markup in results."""

# ruff: noqa: F811 (fixtures that are imported)

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.browser.test_hostile import IMAGE, SCRIPT, Odd, unharmed
from tests.browser.test_models import _host, chip, models, radio  # noqa: F401
from tests.browser.test_start import slow  # noqa: F401
from tests.extras.lab.browser.conftest import serving
from tests.extras.lab.browser.test_lab import DOCUMENT, open_file, open_lab
from tests.pages import Served
from tests.play.model_host import FIRST, ModelHost, SlowStart

Open = Callable[..., Page]


@pytest.fixture
def odd() -> Iterator[Served]:
    with serving(Odd()) as served:
        yield served


def hostile_document() -> dict[str, Any]:
    """A result of the Lab in which every text is markup."""

    def rewrite(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {name: rewrite(one, name) for name, one in value.items()}
        if isinstance(value, list):
            return [rewrite(one, key) for one in value]
        kept = key in ("kind", "order", "arm", "id", "created", "reason", "differs")
        return value if kept or not isinstance(value, str) else SCRIPT

    document: dict[str, Any] = rewrite(json.loads(DOCUMENT.read_text()))
    del document["summary"]
    document["name"] = SCRIPT
    for arm in document["arms"].values():
        arm["knobs"][SCRIPT] = SCRIPT
        arm["differs"] += [SCRIPT, "nothing at all"]
    document["params"][SCRIPT] = 1
    document["environment"][SCRIPT] = SCRIPT
    return document


def test_a_link_to_a_result_that_is_not_kept_is_one_line(mock: Served, open_page: Open) -> None:
    page = open_page(mock, expected="404")
    page.evaluate("location.hash = 'lab=%3Cb%3E/'")
    expect(page.get_by_role("alert").filter(has_text="this result is no longer kept here")).to_be_visible()


def test_a_result_of_the_lab(odd: Served, open_page: Open, tmp_path: Path) -> None:
    path = tmp_path / f"{IMAGE}.json"
    path.write_text(json.dumps(hostile_document()))
    page = open_page(odd)
    open_lab(page)
    open_file(page, path)
    expect(page.get_by_role("dialog")).to_be_hidden()
    expect(page.locator("#rp-lab-progress h3")).to_contain_text(IMAGE)
    expect(page.locator("#rp-lab-settings")).to_contain_text(IMAGE)
    for canvas in page.locator(".rp-lab-canvas:visible").all():
        canvas.hover()
    page.locator("#lab-results").click()
    expect(page.locator("#rp-lab-results li")).to_contain_text(IMAGE)
    unharmed(page)
    identity = page.evaluate("Rose.load('lab/document.js').then(({ idOnServer }) => idOnServer(Rose.lab.document))")
    report = httpx.get(f"{odd.address}/ui/lab/result/{identity}/report.html", timeout=60)
    assert report.status_code == 200
    away = page.context.new_page()
    away.set_content(report.text)
    expect(away.locator("h1")).to_contain_text(IMAGE)
    unharmed(away)
    away.close()


def test_the_lab_and_steady_traffic_follow_to_another_engine(models: ModelHost, open_page: Open) -> None:
    page = open_page(models, expected="the server responded with a status of")
    open_lab(page)
    planned = "() => Rose.lab.plan.A.config.model"
    assert page.evaluate(planned) == FIRST
    page.get_by_role("tab", name="Live").click()
    page.get_by_role("switch", name=re.compile("^Steady traffic")).click()
    expect(page.locator("#steady-rate .rp-sent")).to_have_text(re.compile("sent"))
    chip(page).click()
    radio(page, "other").check()
    page.get_by_role("button", name="Load", exact=True).click()
    expect(chip(page)).to_contain_text("other·cpu")
    page.wait_for_function(f"() => ({planned})() === 'other'")
    expect(page.get_by_role("switch", name=re.compile("^Steady traffic"))).to_have_attribute("aria-checked", "false")
    expect(page.get_by_text("Steady traffic stopped")).to_have_count(0)  # nothing stopped it but the change of model


def test_the_lab_opened_early_is_filled_once_the_engine_is_live(slow: SlowStart, open_page: Open) -> None:
    page = open_page(slow, path="/#lab", live=False)
    expect(page.locator("#rp-lab-button.selected")).to_be_attached()
    expect(page.locator(".rp-live")).to_have_text("starting")
    expect(page.locator("#rp-lab-cards [role=radio]")).to_have_count(0)
    slow.go_live()
    expect(page.locator("#rp-lab-cards [role=radio]").first).to_be_visible()
