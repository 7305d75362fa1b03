"""The Lab: two settings of a scenario are run, overlaid, judged by other limits, kept, exported and opened again."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from roseplay.extras.lab.words import sentences
from roseplay.formats.numbers import range_text
from tests.pages import Served, reload

DOCUMENT = Path(__file__).parents[1] / "result.json"
RUN_MS = 180_000  # a run starts two engines, and the machine may be busy
OVERFLOW = (
    "() => [document.documentElement.scrollWidth - innerWidth, document.documentElement.scrollHeight - innerHeight]"
)
# The controls of the Lab that have no name.
UNNAMED = """() => [...document.querySelectorAll('#rp-lab :is(button, input, select, canvas)')].filter((e) => e.offsetParent
  && !e.labels?.length && !e.textContent.trim() && !e.getAttribute('aria-label')).map((e) => e.outerHTML.slice(0, 120))"""
# The number of pixels in a canvas with exactly the colour of A's and of B's curve; antialiased edges do not count.
CURVES = """(id) => {
  const canvas = document.querySelector(`#${id} canvas`), T = Rose.palette(), counts = [0, 0];
  const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
  const colours = [T.ink, T.rose].map((c) => [1, 3, 5].map((i) => parseInt(c.slice(i, i + 2), 16)));
  for (let i = 0; i < data.length; i += 4)
    colours.forEach((c, arm) => { if (data[i + 3] > 200 && c.every((v, k) => Math.abs(v - data[i + k]) < 12)) counts[arm]++; });
  return counts;
}"""


# As in a page that has just been loaded: nothing was measured, opened, kept or typed, and the first scenario is chosen.
ANEW = """async () => {
  const { lab } = Rose;
  history.replaceState(null, "", location.pathname);
  if (!lab.catalogue) return;
  const [{ listKept, removeKept }, { forgetDocument }, { setMode }, { chooseScenario }, { tell }] = await Promise.all(
    ["database", "document", "mode", "plan", "state"].map((name) => Rose.load(`lab/${name}.js`)));
  for (const { id } of await listKept()) {
    await removeKept(id);
    forgetDocument(id);
  }
  const sweep = { setting: "rate_per_s", from: 1, to: 12, points: 8, seconds: 4, both: false };
  const asked = { sweep, find: { setting: "prefill_max_tokens", from: 16, to: 1024 } };
  const nothing = { points: { sweep: null, find: null }, earlierSweep: null };
  Object.assign(lab, { numbers: { seed: 0, repeats: 3 }, asked, length: 1, maxSpread: null, ...nothing });
  setMode("compare");
  chooseScenario(lab.catalogue.scenarios[0].name, { fresh: true });
  for (const what of ["asked", "numbers", "points"]) tell(what);
}"""


def new_lab(page: Page) -> Page:
    """Open the Lab of a shared page, in which nothing was done yet."""
    page.evaluate(ANEW)
    open_lab(page)
    return page


@pytest.fixture
def page_of(live: Served) -> Served:
    return live


@pytest.fixture
def page(page: Page) -> Page:
    return new_lab(page)


def open_lab(page: Page) -> None:
    page.get_by_role("tab", name="Lab").click()
    page.locator("#rp-lab-cards [aria-checked=true]").wait_for()
    expect(page.locator("#lab-run")).to_be_enabled()
    page.wait_for_function("() => Rose.lab.plan && document.querySelector('#rp-lab-goodput canvas')")
    expect(page.locator("#lab-num_requests input")).to_have_value(re.compile(r"\d"))


def open_file(page: Page, path: Path) -> None:
    page.locator("#lab-results").click()
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Open a file…").click()
    chooser.value.set_files(path)


def exported(page: Page, folder: Path) -> Path:
    """Export what is shown; returns the file."""
    with page.expect_download() as download:
        page.locator("#lab-export").click()
    path = folder / download.value.suggested_filename
    download.value.save_as(path)
    return path


def show_document(page: Page) -> None:
    open_file(page, DOCUMENT)
    expect(page.get_by_role("dialog")).to_be_hidden()
    expect(row(page, "itl_p99_ms").locator("td").nth(1)).to_have_text(re.compile(r"\d"))


def row(page: Page, metric: str) -> Locator:
    return page.locator(f"#rp-lab-result tr[data-metric={metric}]")


def table(page: Page) -> list[str]:
    return page.locator("#rp-lab-result tbody tr").all_inner_texts()


def shown(page: Page) -> Any:
    """The document that the Lab shows."""
    return page.wait_for_function("() => Rose.lab.document").json_value()


def number(page: Page, name: str, value: float) -> None:
    page.locator(f"#lab-{name} input").fill(str(value))
    page.wait_for_function("([name, value]) => Rose.lab.numbers[name] === value", arg=[name, value])


def small(page: Page) -> None:
    page.get_by_role("radio", name=re.compile("^Token budget")).click()
    for name, value in (("repeats", 1), ("num_requests", 6), ("max_new_tokens", 5), ("seed", 23)):
        number(page, name, value)


def test_a_run_shows_both_arms_and_has_a_link(page: Page) -> None:
    small(page)
    expect(page.locator("#rp-lab-look li")).to_have_count(2)
    assert page.evaluate(CURVES, "rp-lab-itl")[1] == 0
    cell = page.get_by_label("Max batch, B")
    cell.fill("3")
    cell.press("Enter")
    page.get_by_label("Prefix cache, A").click()
    for label, value in (("Block size, A", "8"), ("KV blocks, B", "300")):
        page.get_by_label(label).fill(value)
        page.get_by_label(label).press("Enter")
    expect(page.locator("#rp-lab-settings .rp-differs")).to_have_count(5)
    page.locator("#rp-lab-progress h3").click()
    page.keyboard.press("r")
    expect(page.locator("#lab-run")).to_be_disabled()
    chip = page.locator(".rp-lab-chip")
    expect(chip).to_have_text("paused by the lab")
    expect(chip).to_be_visible()
    expect(page.locator(".rp-lab-bar")).to_have_count(2)
    expect(page.locator(".rp-lab-left")).to_have_text(re.compile("starting|run 1 of 2"))
    expect(page.locator(".rp-lab-bar em").nth(1)).to_have_text(re.compile(r"\d m?s"), timeout=RUN_MS)
    expect(row(page, "output_tokens_per_s").locator("td").first).to_have_text(re.compile(r"\d"))
    expect(chip).to_be_hidden()
    document = shown(page)
    assert document["seed"] == 23
    assert document["params"]["num_requests"] == 6
    a, b = document["arms"]["A"], document["arms"]["B"]
    assert (a["knobs"]["prefill_max_tokens"], b["knobs"]["prefill_max_tokens"]) == (None, 64)
    assert b["knobs"]["max_batch_size"] == 3
    assert a["knobs"]["prefix_cache"] is not b["knobs"]["prefix_cache"]
    assert (a["config"]["block_size"], b["config"]["num_blocks"]) == (8, 300)
    expect(page.locator("#rp-lab-pair .rp-pair-picture")).to_have_accessible_name(re.compile("A|B"))
    page.get_by_role("button", name="Distributions").click()
    page.wait_for_function(f"() => ({CURVES})('rp-lab-itl').every((count) => count > 40)")
    page.wait_for_function(f"() => ({CURVES})('rp-lab-ttft').every((count) => count > 40)")
    expect(page.locator("#rp-lab-itl canvas")).to_have_attribute(
        "aria-label", re.compile(r"A p50 .* of 24 pauses · B p50")
    )
    expect(row(page, "output_tokens_per_s").locator("td").first).to_have_text(re.compile(r"\d"))
    expect(row(page, "same_tokens").locator("td")).to_have_text("yes")
    expect(page.locator("#rp-lab-look li").first).to_have_text(sentences(document["summary"])[0])
    before = row(page, "ttft_p95_ms").inner_text()
    new_lab(page)
    page.evaluate("(id) => history.replaceState(null, '', `#lab=${id}`)", document["id"])
    reload(page)
    expect(row(page, "ttft_p95_ms")).to_have_text(before, use_inner_text=True)


def test_the_table_shows_the_verdict_and_the_ranges_of_the_result(page: Page) -> None:
    show_document(page)
    for metric in shown(page)["summary"]["metrics"]:
        line, verdict = row(page, metric["name"]), metric["verdict"]
        words = {"better": "B is better", "worse": "B is worse", "within": "no clear difference", "unknown": ""}
        expect(line.locator(".rp-said")).to_have_text(words[verdict])
        weights = line.locator("td").evaluate_all("cells => cells.map((e) => getComputedStyle(e).fontWeight)")
        bold = {"better": ["400", "700", "700"], "worse": ["700", "400", "700"]}
        assert weights[:3] == bold.get(verdict, ["400"] * 3), metric["name"]
        expect(line.locator("svg rect[fill=none]")).to_have_count(int(verdict == "worse"))
        for cell, name in enumerate(("a_range", "b_range")):
            expect(line.locator("td").nth(cell).locator(".rp-range")).to_have_text(range_text(*metric[name]))


def test_a_run_can_be_stopped(page: Page) -> None:
    page.get_by_role("radio", name=re.compile("^Batched append")).click()
    number(page, "repeats", 20)
    expect(page.locator("#lab-stop")).to_be_disabled()
    page.locator("#lab-run").click()
    expect(page.locator("#lab-stop")).to_be_enabled()
    expect(page.locator(".rp-lab-chip")).to_be_visible()
    page.locator("#lab-stop").click()
    expect(page.get_by_role("alert").filter(has_text=re.compile("^Stopped[.:]"))).to_be_visible(timeout=RUN_MS)
    expect(page.locator("#lab-run")).to_be_enabled()
    expect(page.locator(".rp-lab-chip")).to_be_hidden()


def test_other_limits_count_again(page: Page) -> None:
    show_document(page)
    all_of_them = sum(len(run["requests"]) for run in shown(page)["runs"] if run["arm"] == "A")
    counts = page.locator("#rp-lab-goodput .rp-lg")
    goodput = row(page, "goodput_req_s").locator("td").nth(1)
    page.locator("#lab-ttft-limit input").fill("100000")
    page.locator("#lab-itl-limit input").fill("100000")
    expect(counts).to_have_text([f"{all_of_them} of {all_of_them}"] * 2)
    generous = goodput.inner_text()
    page.locator("#lab-itl-limit input").fill("0.001")
    expect(counts).to_have_text([f"0 of {all_of_them}"] * 2)
    expect(goodput).to_have_text("0")
    assert generous != "0"


def test_a_result_is_kept_and_named(page: Page) -> None:
    show_document(page)
    before = table(page)
    page.get_by_label("Name of this result").fill("before the change")
    page.get_by_label("Name of this result").press("Enter")
    page.wait_for_function(
        "async () => (await (await Rose.load('lab/database.js')).listKept())[0].name === 'before the change'"
    )
    reload(page)
    expect(page.get_by_label("Name of this result")).to_have_value("before the change")
    assert table(page) == before
    page.get_by_role("radio", name=re.compile("^Poisson")).click()
    expect(row(page, "itl_p99_ms").locator("td").first).to_have_text("–")
    page.locator("#lab-results").click()
    page.get_by_role("button", name="Open before the change").click()
    expect(page.locator("#rp-lab-cards [aria-checked=true]")).to_contain_text("Token budget")
    assert table(page) == before
    page.locator("#lab-results").click()
    page.get_by_role("button", name="Delete before the change").click()
    expect(page.locator("#rp-lab-results li")).to_have_count(0)
    expect(page.locator(".rp-lab-said")).to_contain_text("None yet")


def test_a_full_browser_says_so(page: Page) -> None:
    page.evaluate(
        """async (text) => { const { MOST_KEPT, putKept } = await Rose.load('lab/database.js');
             for (let i = 0; i < MOST_KEPT; i++) await putKept({ ...JSON.parse(text), id: `r${i}`, runs: [] }); }""",
        DOCUMENT.read_text(encoding="utf-8"),
    )
    open_file(page, DOCUMENT)
    expect(page.get_by_role("alert").filter(has_text="delete one under Results")).to_be_visible()


def test_an_exported_file_opens_again(page: Page, tmp_path: Path) -> None:
    show_document(page)
    path = exported(page, tmp_path)
    assert json.loads(path.read_text(encoding="utf-8"))["runs"] == shown(page)["runs"]
    before = table(page)
    new_lab(page)
    page.evaluate(
        """(text) => { const data = new DataTransfer(); data.items.add(new File([text], 'result.json'));
             document.querySelector('#rp-lab-mid').dispatchEvent(new DragEvent('drop', { dataTransfer: data, bubbles: true, cancelable: true })); }""",
        path.read_text(encoding="utf-8"),
    )
    expect(row(page, "itl_p99_ms").locator("td").nth(1)).to_have_text(re.compile(r"\d"))
    assert table(page) == before
    with page.expect_popup() as popup:
        page.locator("#lab-report").click()
    expect(popup.value).to_have_title("Token budget: A and B")
    popup.value.close()


def test_what_is_refused_is_said(page: Page, tmp_path: Path) -> None:
    alert = page.locator(".rp-lab-error")
    page.get_by_label("Max batch, A").fill("many")
    page.get_by_label("Max batch, A").press("Enter")
    expect(alert).to_have_text("Max batch of A must be a whole number of at least 1.")
    page.locator("#lab-seed input").fill("")
    page.locator("#lab-run").click()
    expect(alert).to_have_text("Seed is empty: give a number.")
    page.locator("#lab-seed input").fill("1")
    bad = tmp_path / "bad.json"
    bad.write_text("no JSON")
    open_file(page, bad)
    expect(page.locator(".rp-lab-said")).to_have_text("bad.json is not a result of the Lab: it is not JSON.")


def test_charts_are_read_by_pointer_and_keys(page: Page) -> None:
    show_document(page)
    distributions = page.get_by_role("button", name="Distributions")
    if distributions.is_visible():  # the choice is remembered
        distributions.click()
    said = {"itl": r"p\d.*: A .* ms · B .* ms", "ttft": r"within .* ms: A \d+\s% · B \d+\s%", "steps": r"s: A .* · B ", "goodput": r"#\d+: TTFT .*both limits"}  # fmt: skip
    bursts = page.evaluate("() => Rose.store.bursts.size")
    keys = {"itl": "ArrowUp", "ttft": "ArrowRight", "steps": "ArrowRight", "goodput": "ArrowRight"}
    for name, words in said.items():
        canvas = page.locator(f"#rp-lab-{name} canvas")
        canvas.focus()
        canvas.press(keys[name])
        expect(page.locator(f"#rp-lab-{name} .rp-sub")).to_have_text(re.compile(words))
        canvas.press("Escape")
        expect(page.locator(f"#rp-lab-{name} .rp-sub")).not_to_have_text(re.compile(words))
    page.keyboard.press("b")
    assert page.evaluate("() => Rose.store.bursts.size") == bursts, "b is not a key of the Lab"
    page.locator("#rp-lab-itl canvas").hover(position={"x": 300, "y": 60})
    expect(page.locator("#rp-lab-itl .rp-sub")).to_have_text(re.compile(said["itl"]))


def test_it_fits_the_screen(page: Page) -> None:
    show_document(page)
    assert page.evaluate(OVERFLOW) == [0, 0]
    for part, width in {"rail": 232, "mid": 732, "right": 476}.items():
        box = page.locator(f"#rp-lab-{part}").bounding_box()
        assert box and abs(box["width"] - width) < 1 and box["y"] + box["height"] <= 901, part
    assert page.locator("#rp-lab-outcome .rp-lab-res tbody tr").count() >= 16
    assert page.locator("#rp-lab-result .rp-lab-scroll").evaluate("e => e.scrollHeight - e.clientHeight") <= 0
    lines = "() => [...document.querySelectorAll('.rp-lab-card span')].map((e) => Math.round(e.offsetHeight / 14))"
    assert max(page.evaluate(lines)) == 2
    untold = "() => [...document.querySelectorAll('#rp-lab h3, #rp-lab th[scope=row]')].filter((e) => !e.title && !e.querySelector('.rp-term')).length"
    assert page.evaluate(untold) == 0
    assert page.evaluate(UNNAMED) == []
