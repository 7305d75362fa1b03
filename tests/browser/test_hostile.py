"""Markup in every place where the page shows text from elsewhere: it is displayed as text and never run."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from roseplay.config import SamplingParams
from roseplay.core.request import FinishReason
from roseplay.engine.stream import Stream
from roseplay.play.playground import Playground
from roseplay.recording.exports import export
from tests.browser.test_replay import open_recording, to_the_end
from tests.browsers import new_page
from tests.pages import REFUSED, Served, answer_at_most, ask, serving, text
from tests.play.fake_engine import INFO, FakeEngine
from tests.recording.test_hostile import Lines, encoded, hostile
from tests.recording.test_recording import MINE, run

IMAGE = "<img src=x onerror=window.pwned=1>"
SCRIPT = f"{IMAGE}</script><svg onload=window.pwned=1><!--`${{window.pwned=1}}`{{{{x}}}}<script>window.pwned=1</script>"
# Opens every view in turn: the canvases' tables, the popovers of a token and of a block, hover, the help.
EVERYWHERE = """async () => {
  const wait = (ms) => new Promise((done) => setTimeout(done, ms));
  for (const button of document.querySelectorAll("#rp-live .rp-as-table")) button.click();
  const views = document.querySelectorAll("#rp-steps [aria-label=view] button");
  for (const button of views) button.click();
  const { tokens } = Rose.store, last = (tokens.end - 1) & tokens.mask;
  for (const rid of Rose.store.requests.keys()) Rose.emit("hover", rid);
  if (tokens.end) Rose.emit("select", { rid: tokens.request_id[last], step: tokens.step_id[last] });
  await wait(300);
  Rose.emit("select", null);
  Rose.popover.open({ ...(await Rose.load("live/cellinfo.js")).about([1]), x: 700, y: 400 });
  await wait(300);
  Rose.popover.close();
  Rose.panels.forEach((panel) => panel.soon());
  await wait(600);
  for (const button of document.querySelectorAll("#rp-live .rp-as-table")) button.click();
  views[0].click();
}"""


def unharmed(page: Page) -> None:
    """Nothing ran, and no element was created. An image's error event comes a moment after the image."""
    page.evaluate("() => new Promise((done) => setTimeout(done, 200))")
    assert page.evaluate("window.pwned") is None
    assert page.evaluate("document.querySelectorAll('img[src=x], svg[onload]').length") == 0


class Odd(FakeEngine):
    """Its model's name, architecture, device, dtype and attention are markup.

    Attributes:
        refusal: why it takes no request, if it does not.
    """

    refusal = ""

    def __init__(self) -> None:
        super().__init__(run=True, step_s=0.02)
        names = dict.fromkeys(("model", "architecture", "device", "dtype", "attention"), SCRIPT)
        self.info = dataclasses.replace(INFO, **names)

    def submit(self, *args: Any, **how: Any) -> Stream:
        if self.refusal:
            raise ValueError(self.refusal)
        return super().submit(*args, **how)

    def fail_all(self, error: str) -> None:
        for stream in list(self.streams.values()):
            if not stream.finished:
                self._finish(stream, FinishReason.ERROR, error)


@pytest.fixture(scope="module")
def odd() -> Iterator[Served]:
    with serving(Odd()) as served:
        yield served


@pytest.fixture
def page_of(odd: Served) -> Iterator[Served]:
    yield odd
    odd.engine.refusal = ""
    odd.rest()


@pytest.fixture(scope="module")
def lines() -> Lines:
    """A run with lanes, a burst and a knob change, in which every text is markup."""
    engine = FakeEngine()
    playground = Playground(engine)
    asked = {"tab_id": MINE, "params": SamplingParams(max_new_tokens=5)}
    playground.chats.send(SCRIPT, lanes=[1, 2], **asked)
    playground.traffic.burst(size=2, kind="equal", max_new_tokens=3, seed=1, tab_id=MINE)
    playground.set_knobs({"prefill_max_tokens": 128})
    run(engine, playground)
    return hostile([json.loads(line) for line in playground.recording(MINE)])


@pytest.fixture(scope="module")
def hostile_file(lines: Lines, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hostile") / f"{IMAGE}`${{window.pwned=1}}.jsonl"
    path.write_bytes(b"".join(encoded(lines)))
    return path


def test_an_opened_recording(hostile_file: Path, page: Page) -> None:
    open_recording(page, hostile_file)
    to_the_end(page, "1")
    expect(text(page, 1)).to_contain_text(IMAGE)
    expect(page.locator("#rp-replay .rp-name")).to_contain_text(IMAGE)
    page.evaluate(EVERYWHERE)
    unharmed(page)


def test_what_the_views_draw_is_text_even_if_nobody_checked_it(page: Page, lines: Lines) -> None:
    """A recording's burst id was once a way in. Here the data bypasses the readers that check it."""
    delta = {
        "boot_id": "elsewhere", "next": 1, "reset": True, "now": 5000.0,
        "snapshot": {"info": lines[0]["info"], "knobs": lines[0]["knobs"], "requests": []},
        "frames": [
            {"requests": [
                [SCRIPT, "submitted", 1.0, {"kind": SCRIPT, "burst": SCRIPT, "lane": 1, "prompt_tokens": SCRIPT}],
                [SCRIPT, "first", 2.0, {"ttft_ms": 1.0}],
                [SCRIPT, "finished", 3.0, {"reason": SCRIPT, "tokens": 3, "error": SCRIPT}],
            ],
             "knobs": [[1.0, 1, {SCRIPT: [SCRIPT, SCRIPT], "slow_motion": [1, SCRIPT]}]],
             "burst": {"size": SCRIPT, "label": SCRIPT, "seed": SCRIPT, "done": 0, "ttft_p50": None}}
        ],
    }  # fmt: skip
    page.evaluate("(delta) => { Rose.poll.hold(true); Rose.apply(delta); }", delta)
    expect(page.locator("#rp-ttft .rp-rt")).to_contain_text(f"burst {IMAGE}")
    page.get_by_role("button", name="saved by sharing").click()
    expect(page.locator(".rp-savings")).to_contain_text(IMAGE)
    page.evaluate(EVERYWHERE)
    unharmed(page)
    page.evaluate("() => Rose.poll.hold(false)")


def test_a_live_engine_with_a_hostile_name_and_texts(
    odd: Served, page: Page, expect_error: Callable[[str], None]
) -> None:
    expect_error(REFUSED)
    expect(page.locator(".rp-model-chip")).to_contain_text(IMAGE)
    answer_at_most(page, 1800)  # still running when it fails, even on a busy machine
    ask(page, SCRIPT)
    expect(text(page, 1)).to_contain_text(IMAGE)
    page.wait_for_function("() => Rose.store.tokens.end > 8")
    odd.engine.fail_all(SCRIPT)
    expect(page.locator("#rp-lane-1 .rp-error")).to_contain_text(IMAGE)
    odd.engine.refusal = f"{SCRIPT} is refused"
    ask(page, "again")
    expect(page.locator("#rp-message")).to_contain_text(f"{SCRIPT} is refused")
    page.evaluate(EVERYWHERE)
    unharmed(page)


def test_a_report_of_a_hostile_run(lines: Lines, browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_bytes(export("report", encoded(lines)))
    page = new_page(browser)
    page.goto(path.as_uri())
    page.locator("#chart-3 svg").first.wait_for()
    assert page.evaluate("window.pwned") is None
    assert page.locator("img").count() == 0
    expect(page.locator("body")).to_contain_text(IMAGE)
    page.close()
