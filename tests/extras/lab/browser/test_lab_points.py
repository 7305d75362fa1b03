"""The Lab's sweeps and searches on the page: started, drawn while they run, kept, exported, opened, applied."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from roseplay.extras.lab.words import sentences
from tests.extras.lab.browser.test_lab import (
    OVERFLOW,
    RUN_MS,
    UNNAMED,
    exported,
    new_lab,
    number,
    open_file,
    show_document,
)
from tests.pages import Served, reload

DOCUMENTS = Path(__file__).parents[1]

# The cells of the Lab's tables whose words begin before those of the cell to their left have ended.
TOUCHING = """() => {
  const words = (cell) => { const range = new Range(); range.selectNodeContents(cell); return range.getBoundingClientRect(); };
  return [...document.querySelectorAll('#rp-lab :is(td, th) + :is(td, th)')].filter((cell) => cell.textContent
    && cell.offsetParent && words(cell).left < words(cell.previousSibling).right + 1).map((cell) => cell.textContent);
}"""


@pytest.fixture
def page_of(live: Served) -> Served:
    return live


@pytest.fixture
def page(page: Page) -> Page:
    return new_lab(page)


def choose(page: Page, mode: str) -> None:
    page.get_by_role("radio", name=mode, exact=True).click()
    expect(page.locator("#rp-lab")).to_have_attribute("data-mode", mode.lower())


def fill(page: Page, name: str, value: float) -> None:
    page.locator(f"#lab-asked-{name}").fill(str(value))


def run(page: Page) -> None:
    page.locator("#lab-run").click()
    expect(page.locator("#lab-run")).to_be_disabled()
    expect(page.locator("#lab-run")).to_be_enabled(timeout=RUN_MS)


def loaded(page: Page, what: str, but: str = "") -> Any:
    """The result of a run, which the page fetches once the run has ended. ``but`` is the id of the result before it."""
    script = f"(but) => Rose.lab.{what} && Rose.lab.{what}.id !== but && Rose.lab.{what}"
    return page.wait_for_function(script, arg=but).json_value()


def small_sweep(page: Page) -> dict[str, Any]:
    """Run a sweep of two rates; returns its document."""
    page.get_by_role("radio", name=re.compile("^Poisson")).click()
    choose(page, "Sweep")
    for name, value in (("from", 4), ("to", 8), ("points", 2), ("seconds", 1)):
        fill(page, name, value)
    for name, value in (("repeats", 1), ("max_new_tokens", 4), ("seed", 5)):
        number(page, name, value)
    run(page)
    return loaded(page, "points.sweep")


def cells(page: Page) -> list[list[str]]:
    lines = page.locator("#rp-lab-points tbody tr")
    return [lines.nth(i).locator("th, td").all_inner_texts() for i in range(lines.count())]


def panel(page: Page, name: str) -> Locator:
    return page.locator(f"#rp-lab-{name}")


def test_a_sweep_is_run_shown_kept_and_sent(live: Served, page: Page, tmp_path: Path) -> None:
    document = small_sweep(page)
    assert (document["asked"], document["seed"], document["repeats"]) == ([4, 8], 5, 1)
    assert document["arms"]["A"]["knobs"]["max_batch_size"] == live.engine.knobs.max_batch_size, "as the engine is set"
    table = cells(page)
    assert [line[0] for line in table] == ["4", "8"]
    expect(panel(page, "look").locator("li").first).to_have_text(sentences(document["summary"])[0])
    for name in ("curve-ttft", "curve-itl", "kept"):
        canvas = panel(page, name).locator("canvas")
        expect(canvas).to_have_attribute("aria-label", re.compile("4 requests/s: .*8 requests/s: "))
        canvas.press("ArrowRight")
        expect(panel(page, name).locator(".rp-sub")).to_have_text(re.compile("^4 requests/s: "))
    expect(panel(page, "itl")).to_be_hidden()
    expect(panel(page, "before").locator("li button")).to_have_attribute("aria-pressed", "true")

    with page.expect_download() as download:
        page.get_by_role("button", name="save as CSV").click()
    rows = list(csv.DictReader(download.value.path().read_text().splitlines()))
    assert [float(line["rate_per_s"]) for line in rows] == [4, 8]
    with page.expect_popup() as popup:
        page.locator("#lab-report").click()
    goodput = popup.value.get_by_role("img", name="Goodput by value. 4 requests/s: ")
    expect(goodput).to_have_attribute("aria-label", re.compile("8 requests/s: "))
    popup.value.close()
    path = exported(page, tmp_path)

    reload(page)
    expect(panel(page, "points").locator("tbody tr")).to_have_count(2)
    assert cells(page) == table, "the newest result is shown again"
    open_file(new_lab(page), path)
    expect(page.locator("#rp-lab")).to_have_attribute("data-mode", "sweep")
    expect(page.locator("#lab-asked-to")).to_have_value("8")
    assert cells(page) == table


@pytest.mark.slow
def test_a_sweep_of_the_prompt_length_measures_a_and_b_and_opens_with_both(
    live: Served, page: Page, tmp_path: Path
) -> None:
    page.get_by_role("radio", name=re.compile("^Swap")).click()
    choose(page, "Sweep")
    page.get_by_label("Change", exact=True).select_option("prompt_tokens")
    page.get_by_label("Other settings").select_option("arms")
    expect(panel(page, "look").locator("li").first).to_contain_text("Where A and B cross")
    for name, value in (("from", 64), ("to", 128), ("points", 2)):
        fill(page, name, value)
    for name, value in (("repeats", 1), ("num_requests", 2), ("max_new_tokens", 4)):
        number(page, name, value)
    run(page)
    document = loaded(page, "points.sweep")
    modes = [document["arms"][arm]["knobs"]["preemption_mode"] for arm in "AB"]
    assert (document["asked"], modes) == ([64, 128], ["recompute", "swap"])
    assert all(point["runs"][0]["prompt_tokens"] > 50 for point in document["points"] + document["b_points"])
    rows = ["64 A", "64 B", "128 A", "128 B"]
    assert [line[0] for line in cells(page)] == rows
    expect(panel(page, "look").locator("li").first).to_have_text(sentences(document["summary"])[0])
    for name in ("curve-ttft", "curve-itl", "kept"):
        expect(panel(page, name).locator("canvas")).to_have_attribute("aria-label", re.compile("A, 64: .*B, 128: "))
    expect(panel(page, "curve-itl").locator(".rp-lg")).to_have_text(["A", "B"])
    canvas = panel(page, "kept").locator("canvas")
    canvas.press("ArrowRight")
    expect(panel(page, "kept").locator(".rp-sub")).to_have_text(re.compile("^A, 64: .*; B, 64: "))

    path = exported(page, tmp_path)
    open_file(new_lab(page), path)
    expect(panel(page, "points").locator("tbody th")).to_have_text(rows)
    expect(page.get_by_label("Other settings")).to_have_value("arms")
    assert page.evaluate("() => Rose.lab.plan.B.knobs.preemption_mode") == "swap"


def test_a_search_finds_a_value_and_applies_it(live: Served, page: Page) -> None:
    page.get_by_role("radio", name=re.compile("^Token budget")).click()
    choose(page, "Find")
    for label, limit in (("Limit of ITL p99 in ms", 90_000), ("Limit of TTFT p95 in ms", 90_000)):
        page.get_by_label(label).fill(str(limit))
        page.get_by_label(label).press("Tab")
    fill(page, "from", 48)
    fill(page, "to", 64)
    for name, value in (("repeats", 1), ("num_requests", 3), ("max_new_tokens", 4)):
        number(page, name, value)
    run(page)
    document = loaded(page, "points.find")
    assert document["limits"] == {"itl_ms": 90_000, "ttft_ms": 90_000}
    assert [point["value"] for point in document["points"]] == [None], "no budget is needed for such limits"
    expect(page.locator(".rp-lab-found")).to_have_text("No prefill budget is needed: both limits are kept without one.")
    expect(page.locator(".rp-lab-why")).to_have_text(re.compile(r"^TTFT p95 is \S+ ms \(limit 90 s\) and ITL p99 is"))
    assert cells(page)[-1][-1] == "the answer"
    expect(panel(page, "left").locator("canvas")).to_have_attribute("aria-label", re.compile("at first 48 – ∞"))
    expect(page.locator("#lab-asked-to")).to_have_value("64")
    differing = panel(page, "base").locator(".rp-differs")
    expect(differing).to_have_count(0)
    expect(page.locator("#lab-apply")).to_be_hidden()
    live.engine.set_knobs(prefill_max_tokens=48)
    expect(differing).to_have_attribute("data-knob", "prefill_max_tokens")
    page.get_by_role("button", name="Remove the limit").click()
    expect(page.locator(".rp-lab-done")).to_have_text(re.compile("^Prefill budget is now ∞"))
    assert live.engine.knobs.prefill_max_tokens is None
    expect(differing).to_have_count(0)
    page.get_by_role("button", name="Undo").click()
    expect(page.locator(".rp-lab-done")).to_have_text("")
    assert live.engine.knobs.prefill_max_tokens == 48
    live.engine.set_knobs(prefill_max_tokens=None)
    open_file(page, Path(__file__).parents[1] / "find.json")
    expect(page.locator(".rp-lab-found")).to_have_text("Prefill budget 32 is the largest that keeps both limits.")
    expect(page.locator(".rp-lab-regret")).to_contain_text("TTFT p95 is up to 237 % higher here")
    expect(page.locator(".rp-lab-why")).to_contain_text(
        "The price of prefill budget 32, against an unlimited prefill budget"
    )
    expect(page.get_by_role("button", name="Apply 32")).to_be_enabled()


def test_a_sweep_grows_while_it_is_measured_and_stopping_keeps_its_values(live: Served, page: Page) -> None:
    page.get_by_role("radio", name=re.compile("^Batched append")).click()
    choose(page, "Sweep")
    page.get_by_label("Change", exact=True).select_option("max_batch_size")
    expect(page.locator("#lab-asked-seconds")).to_have_count(0)
    fill(page, "from", 16)
    fill(page, "points", 12)
    number(page, "repeats", 2)
    page.locator("#lab-run").click()
    expect(panel(page, "points").locator("tbody tr")).not_to_have_count(0, timeout=RUN_MS)
    expect(panel(page, "progress").locator(".rp-lab-left")).to_have_text(
        re.compile(r"^round [12] of 2 · \d+ runs? of \d+")
    )
    page.locator("#lab-stop").click()
    stopped = page.get_by_role("alert").filter(has_text="the values that were measured are kept")
    expect(stopped).to_be_visible(timeout=RUN_MS)
    page.wait_for_function("() => Rose.lab.points.sweep")
    kept = page.evaluate("() => Rose.lab.points.sweep.points.map((point) => point.value)")
    assert kept and kept == sorted(kept)
    expect(panel(page, "points").locator("tbody tr")).to_have_count(len(kept))


@pytest.mark.slow
def test_traffic_of_a_file_is_swept_and_compared(
    page: Page, expect_error: Callable[[str], None], tmp_path: Path
) -> None:
    expect_error("422")
    path = tmp_path / "mine.csv"

    def choose_file(*requests: str) -> None:
        path.write_text("\n".join(["arrival_s,prompt_tokens,answer_tokens", *requests, ""]))
        with page.expect_file_chooser() as chooser:
            page.get_by_role("radio", name="Your own traffic: choose a file").click()
        chooser.value.set_files(path)

    choose_file("0,12,3", "0.1,8,3", "0.2,30,3")
    expect(page.locator("#rp-lab-cards [aria-checked=true]")).to_contain_text("mine.csv")
    expect(page.locator("#lab-num_requests")).to_be_hidden()
    number(page, "repeats", 1)
    run(page)
    document = loaded(page, "document")
    assert [request[1:] for request in document["traffic"]["requests"]] == [[12, 3], [8, 3], [30, 3]]
    choose_file("0,5,3", "0.1,6,3", "0.2,7,3")
    expect(page.locator(".rp-lab-name")).to_be_hidden()
    number(page, "repeats", 1)
    run(page)
    document = loaded(page, "document", but=document["id"])
    assert [request[1] for request in document["traffic"]["requests"]] == [5, 6, 7], "the new file, not the one before"
    choose(page, "Sweep")
    page.get_by_label("Change", exact=True).select_option("max_batch_size")
    for name, value in (("from", 1), ("to", 2), ("points", 2)):
        fill(page, name, value)
    run(page)
    sweep = loaded(page, "points.sweep")
    assert sweep["traffic"]["name"] == "mine.csv"
    assert [point["requests"] for point in sweep["points"]] == [3, 3]
    choose_file("0,12,many")
    page.locator("#lab-run").click()
    expect(page.locator(".rp-lab-error")).to_have_text(re.compile("line 2"))


def test_what_is_refused_is_said(page: Page, expect_error: Callable[[str], None]) -> None:
    expect_error("422")
    choose(page, "Sweep")
    alert = page.locator(".rp-lab-error")
    fill(page, "from", 9)
    fill(page, "to", 3)
    page.locator("#lab-run").click()
    expect(alert).to_have_text("A sweep from 9 to 3 has no values: the last must be larger than the first.")
    page.locator("#lab-asked-from").fill("")
    page.locator("#lab-run").click()
    expect(alert).to_have_text("“from” is empty: give a number.")
    choose(page, "Compare")
    expect(page.locator("#rp-lab-itl")).to_be_visible()


def test_modes_are_changed_by_keys_and_kept(live: Served, page: Page) -> None:
    page.get_by_role("radio", name="Compare", exact=True).press("ArrowRight")
    expect(page.get_by_role("radio", name="Sweep", exact=True)).to_be_focused()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#lab-run")).to_have_text("Find")
    reload(page)
    expect(page.locator("#rp-lab")).to_have_attribute("data-mode", "find")


@pytest.mark.parametrize("mode", ["sweep", "find"])
def test_it_fits_the_screen(page: Page, mode: str) -> None:
    open_file(page, DOCUMENTS / f"{mode}.json")
    expect(page.locator("#rp-lab")).to_have_attribute("data-mode", mode)
    assert page.evaluate(OVERFLOW) == [0, 0]
    assert page.evaluate(UNNAMED) == []
    assert page.evaluate(TOUCHING) == []


def test_the_sweep_before_stays_as_a_dashed_line(live: Served, page: Page) -> None:
    open_file(page, DOCUMENTS / "sweep.json")
    page.wait_for_function("() => Rose.lab.points.sweep")
    legend = panel(page, "curve-ttft").locator(".rp-rt")
    expect(legend).to_have_text("")
    page.evaluate(
        """async (text) => { const { showResult } = await Rose.load('lab/document.js');
             showResult({ ...JSON.parse(text), id: 'another', summary: Rose.lab.points.sweep.summary }); }""",
        (DOCUMENTS / "sweep.json").read_text(encoding="utf-8"),
    )
    expect(legend).to_contain_text("previous sweep")


def test_on_a_phone_a_comparison_is_one_column(phone: Page) -> None:
    new_lab(phone)
    show_document(phone)
    assert phone.evaluate("() => document.documentElement.scrollWidth - innerWidth") == 0
    parts = ["cards", "run", "progress", "outcome", "look", "settings", "pair", "goodput", "steps", "foot"]
    tops = [phone.locator(f"#rp-lab-{part}").bounding_box()["y"] for part in parts]  # type: ignore[index]
    assert tops == sorted(tops)


def test_on_a_phone_the_lab_can_be_read_and_pressed(phone: Page) -> None:
    small = """() => [...document.querySelectorAll('#rp-lab :is(button:not(.rp-term), input, select)')].filter((e) => e.offsetParent
        && e.type !== 'file' && e.getBoundingClientRect().height < 43.5).map((e) => e.outerHTML.slice(0, 120))"""
    new_lab(phone)
    for mode in ("sweep", "find"):
        open_file(phone, DOCUMENTS / f"{mode}.json")
        expect(phone.locator("#rp-lab")).to_have_attribute("data-mode", mode)
        assert phone.evaluate(OVERFLOW)[0] <= 0
        assert phone.evaluate(small) == []
