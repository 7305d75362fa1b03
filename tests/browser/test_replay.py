"""Replay in a browser: a recording shows what the run showed, at any speed and from any position."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from roseplay.play.replay_server import ReplayServer
from roseplay.recording import charts
from roseplay.recording.exports import export
from roseplay.recording.reader import read
from roseplay.recording.recorded_run import RecordedRun
from tests.pages import DESKTOP, PHONE, Served, SharedPage, answer_at_most, ask, serving, state, text
from tests.play.conftest import serving as serving_page
from tests.play.fake_engine import FakeEngine

# What the store holds at the end of a run. A recording leaves out requests that ended before its snapshot.
HOLDS = """() => {
  const { steps, tokens, entries, requests, bursts, marks, knobs } = Rose.store;
  const rows = (ring, names) => {
    const list = [];
    for (let i = ring.first; i < ring.end; i++) list.push(names.map((name) => ring[name][i & ring.mask] ?? null));
    return list;
  };
  const plain = ({ rid, kind, lane, burst, submitted, scheduled, first, finished, reason, tokens, computed, cached, shared, preempted }) =>
    ({ rid, kind, lane, burst, submitted, scheduled, first, finished, reason, tokens, computed, cached, shared, preempted });
  const total = Rose.blocks.total;
  return JSON.stringify({
    steps: rows(steps, ["step_id", "t0", "t1", "prompt_tokens", "decode_tokens", "cached_tokens", "shared_tokens", "running", "waiting", "blocks_free", "blocks_active", "block_copies"]),
    tokens: rows(tokens, ["request_id", "t", "itl_ms", "step_id"]), entries: entries.end, marks, knobs,
    requests: [...requests.values()].map(plain), bursts: [...bursts.values()].map((b) => [b.id, b.requests.length]),
    blocks: Array.from({ length: total }, (_, i) => [Rose.blocks.references[i + 1], Rose.blocks.owner[i + 1], Rose.blocks.findable[i + 1]]),
    lanes: [1, 2, 3, 4].map((n) => document.querySelector(`#rp-lane-${n} .rp-text`).textContent),
    saved: JSON.stringify([Rose.store.burst, document.querySelector(".rp-kpi.saved").innerText]),
  });
}"""
# The step timeline of the whole run, at a zoom and size that both pages can have: the replay bar takes some height.
CANVAS = """async ([x0, x1]) => {
  document.body.classList.remove("rp-replaying");
  Rose.view.set(x0, x1);
  Rose.view.zoom.now = x1;
  const panel = Rose.panels.find((one) => one.name === "steps"), before = panel.draws;
  panel.soon();
  while (panel.draws <= before) await new Promise((done) => setTimeout(done, 50));
  const picture = document.querySelector("canvas.rp-steps").toDataURL();
  Rose.view.clear();
  return picture;
}"""
SPAN = """() => {
  const { steps } = Rose.store, at = (i) => i & steps.mask;
  return [Rose.time.x(steps.t0[at(steps.first)]) - 50, Rose.time.x(steps.t1[at(steps.end - 1)]) + 50];
}"""


ENDED = re.compile("^(done|cut)")
CHARTS = (charts.itl, charts.step_tokens, charts.kv_blocks, charts.ttft)  # of a report


def idle(page: Page) -> None:
    page.wait_for_function("() => Rose.store.tokens.end > 0 && Rose.store.open.size === 0 && Rose.time.idle()")


def open_recording(page: Page, path: Path) -> None:
    page.get_by_role("tab", name="Traces").click()
    page.locator("#rp-traces-all input[type=file]").set_input_files(path)
    expect(page.locator("#rp-replay")).to_be_visible()


def to_the_end(page: Page, speed: str = "16") -> None:
    page.locator("#rp-replay select").select_option(speed)
    page.wait_for_function("() => !Rose.replay.playing && Rose.replay.at() >= Rose.replay.recording.length")


def download(page: Page, name: str, folder: Path) -> Path:
    page.get_by_role("tab", name="Traces").click()
    link = page.locator(f'a[data-file="{name}"]')
    expect(link).not_to_have_attribute("aria-disabled", "true")
    with page.expect_download() as begun:
        link.click()
    path = folder / begun.value.suggested_filename
    begun.value.save_as(path)
    return path


@pytest.fixture(scope="module")
def _own() -> Iterator[Served]:
    with serving(FakeEngine(run=True, step_s=0.02)) as served:
        yield served


@pytest.fixture
def page_of(_own: Served) -> Iterator[Served]:
    """A server of the file's own: a recording reaches further back than a page that has just been opened."""
    yield _own
    _own.rest()


@pytest.fixture(scope="module")
def run_on_disk(mock_run: tuple[Path, dict[str, Any]]) -> Path:
    return mock_run[0]


@pytest.fixture(scope="module")
def mock_run(
    tmp_path_factory: pytest.TempPathFactory,
    visitors: Callable[[bool], BrowserContext],
    _own: Served,
    _shared_page: SharedPage,
) -> tuple[Path, dict[str, Any]]:
    """A recorded run of lanes, a burst and a knob change, and what the page held at its end."""
    page = _shared_page.get(visitors(False), _own.address)
    answer_at_most(page, 100)
    ask(page, "What is <i>this</i>?")
    page.wait_for_function("() => Rose.store.tokens.end > 20")
    _own.engine.set_knobs(prefill_max_tokens=128)
    page.locator("#burst").click()
    page.wait_for_function("() => Rose.store.bursts.size === 1")
    idle(page)
    span = page.evaluate(SPAN)
    held = {"store": json.loads(page.evaluate(HOLDS)), "span": span, "canvas": page.evaluate(CANVAS, span)}
    path = download(page, "recording.jsonl", tmp_path_factory.mktemp("run"))
    _own.rest()
    return path, held


def test_a_replay_ends_where_the_run_did(mock_run: tuple[Path, dict[str, Any]], page: Page) -> None:
    path, held = mock_run
    open_recording(page, path)
    to_the_end(page)
    again = json.loads(page.evaluate(HOLDS))
    for what, value in held["store"].items():
        assert again[what] == value, what
    assert len(again["tokens"]) > 1000
    assert held["store"]["marks"][0]["changes"] == {"prefill_max_tokens": [None, 128]}
    span = page.evaluate(SPAN)
    assert span == pytest.approx(held["span"], abs=1.0)
    assert page.evaluate(CANVAS, held["span"]) == held["canvas"]
    # Back, and to the end again: nothing is duplicated.
    page.evaluate("Rose.replay.seek(500)")
    assert page.evaluate("Rose.store.steps.end") < len(held["store"]["steps"])
    page.evaluate("Rose.replay.seek(1e9)")
    again = json.loads(page.evaluate(HOLDS))
    for what, value in held["store"].items():
        assert again[what] == value, what


def test_the_bar_and_its_keys(run_on_disk: Path, page: Page) -> None:
    open_recording(page, run_on_disk)
    bar = page.locator("#rp-replay")
    expect(bar).to_contain_text("roseplay-recording.jsonl")
    expect(page.locator(".rp-live")).to_have_text("replay")
    expect(page.locator("#rp-steps")).to_be_visible()  # the Live tab has come to the front
    page.wait_for_function("() => Rose.replay.at() > 300")
    page.keyboard.press(" ")
    page.wait_for_function("() => !Rose.replay.playing")
    at, clock = page.evaluate("[Rose.replay.at(), Rose.clock()]")
    time.sleep(0.4)
    assert page.evaluate("[Rose.replay.at(), Rose.clock()]") == [at, clock], "time stands still"
    page.locator("#rp-replay input").focus()
    page.locator("#rp-replay input").press("Home")
    page.wait_for_function("() => Rose.replay.at() === 0 && Rose.store.tokens.end === 0")
    page.evaluate("document.activeElement.blur()")
    for key, ms in (("ArrowRight", 1000), ("ArrowLeft", 0)):
        page.keyboard.press(key)
        page.wait_for_function(f"() => Math.abs(Rose.replay.at() - {ms}) < 1")
    page.locator("#rp-replay select").select_option("0.25")
    ran = page.evaluate(
        """async () => {
          Rose.replay.play();
          const real = performance.now(), clock = Rose.clock(), at = Rose.replay.at();
          await new Promise((done) => setTimeout(done, 600));
          const took = performance.now() - real;
          return [(Rose.clock() - clock) / took, (Rose.replay.at() - at) / took];
        }"""
    )
    assert ran == pytest.approx([0.25, 0.25], abs=0.05)
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press(" ")
    page.wait_for_function("() => !Rose.replay.playing")
    expect(bar.locator(".rp-at")).to_have_text(re.compile(r"^\d:\d\d\.\d / \d:\d\d\.\d$"))


def test_nothing_is_sent_while_a_replay_is_shown(run_on_disk: Path, page_of: Served, page: Page) -> None:
    open_recording(page, run_on_disk)
    to_the_end(page)
    asked: list[str] = []
    listen = lambda request: request.method == "POST" and asked.append(request.url)  # noqa: E731
    page.on("request", listen)
    before = len(page_of.engine.streams)
    for key in ("b", ".", "d"):
        page.keyboard.press(key)
    page.locator("#burst").click(force=True)
    for button in page.locator(".rp-show-me").all():  # of the demos
        expect(button).to_be_disabled()
    expect(page.locator("#rp-lane-1 .rp-hint:visible, #rp-lane-1 header button:visible")).to_have_count(0)
    page.evaluate("async () => { for (let i = 0; i < 30; i++) await new Promise(requestAnimationFrame); }")
    page.remove_listener("request", listen)
    assert asked == []
    assert len(page_of.engine.streams) == before
    expect(page.locator("#budget-value input")).to_have_value("128")  # the recorded value, whatever the engine has
    assert page_of.engine.knobs.prefill_max_tokens is None


def test_back_to_live(run_on_disk: Path, page: Page) -> None:
    answer_at_most(page, 20)
    ask(page, "live words")
    expect(state(page, 1)).to_have_text(ENDED)
    said = text(page, 1).text_content()
    open_recording(page, run_on_disk)
    to_the_end(page)
    expect(page.locator("#rp-lane-1 h4")).to_have_text("What is <i>this</i>?")
    page.locator(".rp-leave").click()
    expect(page.locator("#rp-replay")).to_be_hidden()
    expect(page.locator(".rp-live")).to_have_text("connected")
    expect(page.locator("#rp-lane-1 h4")).to_have_text("live words")
    expect(text(page, 1)).to_have_text(said or "")
    expect(page.locator("#budget-value input")).to_have_value("∞")
    ask(page, "and on it goes")
    expect(page.locator("#rp-lane-2 h4")).to_have_text("and on it goes")
    expect(state(page, 2)).to_have_text(ENDED)


def test_views_work_from_a_recording(run_on_disk: Path, page: Page) -> None:
    open_recording(page, run_on_disk)
    to_the_end(page)
    slow = page.evaluate(
        "(() => { const t = Rose.store.tokens, i = t.end - 5; return [t.request_id[i], t.step_id[i]]; })()"
    )
    page.evaluate("([rid, step]) => Rose.emit('select', { rid, step })", slow)
    expect(page.locator(".rp-pop h4")).to_contain_text("slow")
    page.locator(".rp-pop header button").click()
    page.evaluate(
        "Rose.load('live/cellinfo.js').then(({ about }) => Rose.popover.open({ ...about([3]), x: 700, y: 400 }))"
    )
    expect(page.locator(".rp-pop")).to_contain_text("A recording does not contain what is in blocks")
    page.keyboard.press("Escape")


def test_a_bad_file(page: Page, tmp_path: Path) -> None:
    page.get_by_role("tab", name="Traces").click()
    path = tmp_path / "some.jsonl"
    path.write_text("notes")
    page.locator("#rp-traces-all input[type=file]").set_input_files(path)
    expect(page.locator(".rp-open-said")).to_contain_text("is not a recording")
    assert page.evaluate("Rose.replay.on") is False
    expect(page.locator(".rp-live")).to_have_text("connected")


def test_a_recording_of_a_large_pool(run_on_disk: Path, page: Page, tmp_path: Path) -> None:
    """The beginning was dropped, and one row of the rest says that most blocks are cached."""
    header, *lines = run_on_disk.read_text().splitlines(keepends=True)
    about, last = json.loads(header), json.loads(lines[-1])
    about["info"]["num_blocks"] = 200_001
    about["snapshot"] |= {"blocks": [[1, 0, -1, 1, 150_000], [77, 1, 1, 0, 3]], "blocks_used": 180_000}
    last["blocks"] = [[78, 0, -1, 0], [180_001, 0, -1, 1, 500]]
    path = tmp_path / "large.jsonl"
    path.write_text("".join([json.dumps(about) + "\n", *lines[:-1], json.dumps(last) + "\n"]))
    assert read(path).header["snapshot"]["blocks_used"] == 180_000
    open_recording(page, path)
    to_the_end(page)
    counts = {"free": 49_501, "cached": 150_497, "active": 2, "shared": 0, "pinned": 0, "unused": 19_500, "saved": 0}
    assert page.evaluate("Rose.blocks.counts()") == counts
    page.evaluate("Rose.replay.seek(0)")
    counts |= {"free": 50_000, "cached": 149_997, "active": 3, "unused": 20_000}
    assert page.evaluate("Rose.blocks.counts()") == counts


def test_a_page_without_an_engine(mock_run: tuple[Path, dict[str, Any]], open_page: Callable[..., Page]) -> None:
    path, held = mock_run
    with serving_page(None, ReplayServer(path)) as address:
        page = open_page(Served(address, None), live=False)
        page.wait_for_function("() => window.Rose && Rose.panels && Rose.panels.length >= 4 && Rose.replay.on")
        expect(page.locator(".rp-live")).to_have_attribute("data-state", "replay")
        for control in (
            "#budget input[type=range]",
            "#budget-value input",
            "#prefix-cache input",
            "#prefill-interval input[type=range]",
            "#burst",
            "#send",
        ):
            expect(page.locator(control)).to_be_disabled()
            expect(page.locator(control)).to_have_attribute("title", re.compile("recorded settings"))
        expect(page.locator("#rp-sched-head")).to_contain_text("as recorded")
        to_the_end(page)
        assert json.loads(page.evaluate(HOLDS))["tokens"] == held["store"]["tokens"]
        expect(page.locator(".rp-leave")).to_be_hidden()
        page.get_by_role("tab", name="Traces").click()
        expect(page.locator("#rp-traces-all")).to_contain_text("This recording")
        for screen in (DESKTOP, PHONE):
            page.set_viewport_size(screen["viewport"])
            page.wait_for_function("(width) => innerWidth === width", arg=screen["viewport"]["width"])
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        asked = page.evaluate("performance.getEntriesByType('resource').map(({ name }) => name)")
        assert asked and not [address for address in asked if "/ui/delta" in address]
        page.close()


def test_the_report_opens_from_a_file_and_shows_every_point(
    run_on_disk: Path, visitors: Callable[[bool], BrowserContext], tmp_path: Path
) -> None:
    path = tmp_path / "report.html"
    path.write_bytes(export("report", run_on_disk.read_bytes().splitlines(keepends=True)))
    run = RecordedRun(read(run_on_disk))
    page = visitors(False).new_page()
    complaints: list[str] = []
    page.on("console", lambda m: m.type == "error" and complaints.append(m.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda r: not r.url.startswith(("file:", "data:", "blob:")) and complaints.append(r.url))
    page.goto(path.as_uri())
    page.locator("#chart-3 svg").first.wait_for()
    assert "Prefill budget ∞ → 128" in page.inner_text("body")
    assert page.locator("#chart-0 svg").first.is_visible()
    page.close()
    assert complaints == []
    points = [[len(trace.x) for trace in chart(run).data] for chart in CHARTS]
    assert sum(points[0]) == len(run.gaps()) > 1000
    assert points[1] == [len(run.steps)] * 2
    assert points[2][:4] == [len(run.steps)] * 4
    assert sum(n - 1 for n in points[3]) == sum(request.ttft is not None for request in run.requests.values())
