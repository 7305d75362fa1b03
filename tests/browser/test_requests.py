"""The table of requests: which rows in which order, their contents, and what a selection does to the other views."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.browser.modules import panels
from tests.browser.test_charts import Traffic, Views
from tests.pages import DESKTOP


@pytest.fixture(scope="module")
def page(browser: Browser) -> Iterator[Page]:
    """The steps panel and the block map, on a page without anything else."""
    page = panels(browser, {"steps": (652, 463), "blockmap": (652, 172)}, **DESKTOP)
    yield page
    page.close()


@pytest.fixture
def views(page: Page) -> Iterator[Views]:
    """Shows the table, with nothing under the pointer."""
    page.mouse.move(1400, 880)
    press(page, "requests")
    yield Views(page)
    page.evaluate("document.activeElement.blur(); Rose.view.clear(); Rose.emit('select', null)")
    press(page, "all")
    press(page, "timeline")


def press(page: Page, name: str) -> None:
    page.locator("#steps, #rp-steps").get_by_role("button", name=name, exact=True).click()


def table(page: Page) -> Locator:
    return page.get_by_role("region", name="Requests")


def rows(page: Page) -> Locator:
    return table(page).locator("tbody tr[data-rid]")


def ids(page: Page) -> list[int]:
    return [int(rid) for rid in rows(page).evaluate_all("rows => rows.map((row) => row.dataset.rid)")]


def cells(page: Page, rid: int) -> dict[str, str]:
    names = table(page).locator("thead th").all_inner_texts()
    texts = table(page).locator(f"tr[data-rid='{rid}']").locator("th, td").all_inner_texts()
    return dict(zip(names, (text.strip() for text in texts), strict=True))


def test_heads_sort_words_filter_and_what_is_shown_is_saved(views: Views) -> None:
    page, traffic = views.page, Traffic()
    traffic.burst(3, steps=3, ms=10)
    traffic.burst(2, steps=15, ms=20)
    live = traffic.burst(1, steps=1, ends=False)
    views.apply(traffic)
    assert ids(page) == [5, 4, 3, 2, 1, 6]
    assert cells(page, 5).items() >= {"state": "done", "answer": "20", "worst gap": "80", "finish": "length"}.items()
    assert table(page).locator("caption").inner_text() == "6 requests, 1 of them unfinished. Times in ms."
    heads = table(page).locator("thead th")
    assert heads.filter(has_text="worst gap").get_attribute("aria-sort") == "descending"
    for expected in ([6, 5, 4, 3, 2, 1], [1, 2, 3, 4, 5, 6]):
        press(page, "id")
        views.drawn()
        assert ids(page) == expected
        page.evaluate("document.activeElement.blur()")
    assert [name for name in heads.evaluate_all("list => list.map((th) => th.ariaSort)") if name] == ["ascending"]
    assert page.locator("#steps .rp-sub").inner_text().startswith("sorted by id, reversed")
    press(page, "live")
    views.drawn()
    assert ids(page) == live
    with page.expect_download() as download:
        press(page, "CSV")
    assert download.value.suggested_filename == "roseplay-requests.csv"
    lines = Path(download.value.path()).read_text().splitlines()
    assert [line.split(",")[0] for line in lines] == ["request", str(live[0])]
    press(page, "waiting")
    views.drawn()
    assert ids(page) == []
    assert table(page).get_by_text("None now.").is_visible()
    press(page, "worst gap")


@pytest.mark.parametrize("hand", ["pointer", "focus"])
def test_rows_stay_where_they_are_under_a_hand(views: Views, hand: str) -> None:
    page, traffic = views.page, Traffic()
    first = traffic.burst(2, steps=3, ms=10)
    views.apply(traffic)
    before = ids(page)
    if hand == "pointer":
        rows(page).first.hover()
    else:
        rows(page).first.focus()
    slower = traffic.burst(1, steps=15, ms=50)
    views.apply(traffic)
    assert ids(page) == [*before, *slower], "new rows are added below"
    assert "order held" in page.locator("#steps .rp-sub").inner_text()
    page.mouse.move(1400, 880)
    page.evaluate("document.activeElement.blur()")
    expect(rows(page).first).to_have_attribute("data-rid", str(slower[0]))
    assert set(ids(page)) == {*first, *slower}


def test_a_zoom_leaves_those_of_its_time(views: Views) -> None:
    page, traffic = views.page, Traffic()
    traffic.burst(2, steps=5)
    begun = traffic.t
    later = traffic.burst(2, steps=5)
    views.apply(traffic)
    page.evaluate("t => Rose.view.set(Rose.time.x(t) + 5, Rose.time.x(t) + 50)", begun)
    views.drawn()
    assert set(ids(page)) == set(later)
    page.keyboard.press("Escape")
    views.drawn()
    assert len(ids(page)) == 4


def test_keys(views: Views) -> None:
    page = views.page
    views.after_burst(5, steps=3)
    page.evaluate("window.chosen = null, Rose.on('select', (what) => window.chosen = what), 0")
    focused = "Number(document.activeElement.dataset.rid)"
    assert rows(page).evaluate_all("rows => rows.filter((row) => row.tabIndex === 0).length") == 1, "a single tab stop"
    rows(page).first.focus()
    for key, expected in (
        ("ArrowDown", 4),
        ("ArrowDown", 3),
        ("ArrowUp", 4),
        ("End", 1),
        ("ArrowDown", 1),
        ("Home", 5),
    ):
        page.keyboard.press(key)
        assert page.evaluate(focused) == expected
        assert page.evaluate("Rose.pointing.rid") == expected, "highlighted in all views"
    page.keyboard.press("Enter")
    assert page.evaluate("chosen") == {"rid": 5, "step": None}
    expect(rows(page).first).to_have_attribute("aria-current", "true")
    page.keyboard.press("Escape")
    assert page.evaluate("chosen") is None
    assert table(page).locator("tr[aria-current]").count() == 0


def test_a_selection_is_outlined_in_the_other_views(views: Views) -> None:
    page, traffic = views.page, Traffic()
    (rid, other) = traffic.burst(2, steps=4, ends=False)
    traffic.frame["blocks"] = [[3, 1, rid, 0], [4, 1, other, 0], [9, 1, rid, 0]]
    views.apply(traffic)
    page.evaluate("""() => {
      const list = CanvasRenderingContext2D.prototype, strokes = (window.strokes = []), real = list.strokeRect;
      list.strokeRect = function (...args) { strokes.push([this.canvas.className, this.strokeStyle, this.lineWidth, ...args].join(' ')); real.apply(this, args); };
    }""")
    ink = page.evaluate("Rose.palette().ink.toLowerCase()")
    table(page).locator(f"tr[data-rid='{rid}']").click()
    page.evaluate("strokes.length = 0")
    views.drawn()
    outlined = lambda view: {one for one in page.evaluate("strokes") if one.startswith(f"{view} {ink} 1.5")}  # noqa: E731
    assert len(outlined("rp-blocks")) == 2, "its two blocks"
    page.evaluate("strokes.length = 0")
    press(page, "timeline")
    page.wait_for_function("(start) => strokes.some((one) => one.startsWith(start))", arg=f"rp-steps {ink} 1.5")
    page.keyboard.press("Escape")
    page.evaluate("strokes.length = 0")
    views.drawn()
    assert not outlined("rp-steps")
    press(page, "requests")


def test_only_a_few_hundred_rows_at_first(views: Views) -> None:
    page, traffic = views.page, Traffic()
    for _ in range(5):
        traffic.burst(64, steps=2)
    views.apply(traffic)
    assert len(ids(page)) == 200
    press(page, "120 more of 320")
    views.drawn()
    assert len(set(ids(page))) == 320


def test_nothing_is_written_while_it_is_not_shown(views: Views) -> None:
    page, traffic = views.page, views.after_burst(2, steps=3)
    press(page, "timeline")
    drawn = "Rose.panels.find(({name}) => name === 'requests').draws"
    before = page.evaluate(drawn)
    traffic.burst(3, steps=3)
    views.apply(traffic)
    assert page.evaluate(drawn) == before
    press(page, "requests")
    expect(rows(page)).to_have_count(5)
