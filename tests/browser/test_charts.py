"""The live views in a browser, mostly fed with made-up deltas: what is drawn, kept, marked and bounded."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, expect

from roseplay.engine.records import COLUMNS, StepRow
from tests.browser.modules import panels, without_errors

PANELS = {"itl": (556, 330), "tokens": (556, 160), "ttft": (278, 186), "kvtime": (278, 186), "steps": (652, 463)}
TIMED = ("itl", "tokens", "kvtime")
CHARTS = (*TIMED, "ttft")
EMPTY = {
    "itl": "One dot per token: how long its reader waited.",
    "tokens": "One bar per step: how many tokens it computed.",
    "kvtime": "How much memory is held.",
    "ttft": "How soon answers begin.",
}
KNOBS = {"prefill_max_tokens": 512, "max_batch_size": 32, "step_max_tokens": None, "slow_motion": 1.0}


class Traffic:
    """Makes deltas in the form of ``/ui/delta``: bursts of requests that decode together, step by step."""

    _boots = itertools.count(1)

    def __init__(self, boot: str | None = None, *, info: dict[str, int] | None = None) -> None:
        self.info = {"num_blocks": 449, **(info or {})}
        self.boot, self.t, self.seq = boot or f"boot-{next(self._boots)}", 1000.0, 0
        self.rid, self.step, self.burst_id = itertools.count(1), itertools.count(0), itertools.count(1)
        self.itls: list[float] = []
        self.reset = True
        self._clear()

    def _clear(self) -> None:
        self.frame: dict[str, Any] = {"steps": [], "tokens": [], "requests": [], "knobs": [], "stats": None}

    def burst(
        self,
        size: int = 4,
        *,
        steps: int = 20,
        ms: float = 20.0,
        lane: bool = False,
        prompt: int = 100,
        ends: bool = True,
        states: tuple[int, int] | None = None,
    ) -> list[int]:
        """A prefill step of ``size`` requests, then decode steps of about ``ms``; every tenth takes four times that."""
        burst = None if lane else next(self.burst_id)
        rids = [next(self.rid) for _ in range(size)]
        kind = "lane" if lane else "burst"
        begun = self.t
        for i, rid in enumerate(rids):
            about = {"kind": kind, "lane": i + 1 if lane else None, "burst": burst, "prompt_tokens": prompt}
            self.frame["requests"].append([rid, "submitted", begun, about])
        last: dict[int, float] = {}
        for n in range(steps):
            took = ms * (4 if n % 10 == 0 else 1)
            t0, t1, number = self.t, self.t + took, next(self.step)
            parts = [[rid, 0 if n else prompt, 1 if n else 0, prompt, prompt, 0, 0] for rid in rids]
            step = StepRow(
                number, t0=t0, t1=t1, prompt_tokens=0 if n else prompt * size, decode_tokens=size if n else 0, running=size,
                blocks_free=448 - 8 * size, blocks_cached=10, blocks_active=8 * size - 14, blocks_shared=4, device_ms=took,
                host_ms=1.0, entries=parts, **dict(zip(("state_slots", "states_kept"), states or (), strict=False)),
            )  # fmt: skip
            self.frame["steps"].append(step.values())
            for rid in rids:
                itl = t1 - last[rid] if rid in last else None
                last[rid] = t1
                self.frame["tokens"].append([rid, t1, itl, number])
                if itl is not None:
                    self.itls.append(itl)
                else:
                    self.frame["requests"].append([rid, "first", t1, {"ttft_ms": t1 - begun + rid}])
            self.t = t1
        if ends:
            self.end(rids)
        return rids

    def end(self, rids: list[int]) -> None:
        for rid in rids:
            self.frame["requests"].append(
                [rid, "finished", self.t, {"reason": "length", "tokens": 20, "e2e_ms": 400.0}]
            )

    def idle(self, ms: float) -> None:
        self.t += ms

    def knob(self, name: str, before: Any, after: Any) -> None:
        self.frame["knobs"].append([self.t, 0, {name: [before, after]}])

    def delta(self) -> dict[str, Any]:
        """Everything that has happened since the last delta."""
        self.seq += 1
        frame, reset = {"seq": self.seq, "t": self.t, **self.frame}, self.reset
        self._clear()
        self.reset = False
        snapshot = {"snapshot": {"info": self.info, "knobs": KNOBS, "requests": []}} if reset else {}
        return {
            "boot_id": self.boot,
            "next": self.seq + 1,
            "reset": reset,
            "now": self.t + 160,
            "frames": [frame],
            **snapshot,
        }


class Views:
    """The panels, on a page without anything else."""

    def __init__(self, page: Page) -> None:
        self.page = page

    def apply(self, traffic: Traffic) -> None:
        """Feed a delta and wait until every panel that can be seen has drawn it."""
        self.feed(traffic)
        self.drawn()

    def after_burst(self, size: int, **how: Any) -> Traffic:
        """Show an engine that has just begun, after one burst (see ``Traffic.burst``); returns its traffic."""
        traffic = Traffic()
        traffic.burst(size, **how)
        self.apply(traffic)
        return traffic

    def feed(self, traffic: Traffic) -> None:
        self.page.evaluate("delta => Rose.apply(JSON.parse(delta))", json.dumps(traffic.delta()))

    def drawn(self) -> None:
        """Wait until every visible panel has been drawn once more."""
        self.page.evaluate(
            "window.before = Rose.panels.map((panel) => panel.draws); Rose.panels.forEach((panel) => panel.soon())"
        )
        self.page.wait_for_function(
            "Rose.panels.every((panel, i) => !panel.onScreen || !panel.box.clientWidth || panel.draws > before[i])"
        )

    def plot(self, name: str, path: str) -> Any:
        return self.page.evaluate(f"document.querySelector('#{name} .rp-plot').drawn.{path}")

    def points(self, name: str) -> int:
        return self.page.evaluate(
            f"document.querySelector('#{name} .rp-plot').drawn.data.reduce((n, trace) => n + trace.x.length, 0)"
        )

    def names(self, name: str, what: str = "shapes") -> list[str]:
        return [one.get("name") for one in self.plot(name, f"layout.{what}")]

    def words(self, name: str) -> list[str]:
        said = self.page.locator(f"#{name} .rp-nothing:visible").all_inner_texts()
        labels = self.plot(name, "layout.annotations")
        return [*said, *("\n".join(line["words"] for line in label["lines"]) for label in labels)]

    def range(self, name: str) -> list[float]:
        return self.plot(name, "layout.xaxis.range.slice()")

    def colors(self, *, wanted: str) -> int:
        """The number of pixels in the step timeline that have this #rrggbb colour."""
        return self.page.evaluate(
            """wanted => {
              const canvas = document.querySelector('#steps canvas');
              const pixels = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
              const [r, g, b] = [1, 3, 5].map((i) => parseInt(wanted.slice(i, i + 2), 16));
              let n = 0;
              for (let i = 0; i < pixels.length; i += 4)
                n += Math.abs(pixels[i] - r) + Math.abs(pixels[i + 1] - g) + Math.abs(pixels[i + 2] - b) < 12 && pixels[i + 3] > 200;
              return n;
            }""",
            wanted,
        )


@pytest.fixture(scope="module")
def page(browser: Browser) -> Iterator[Page]:
    """All panels at their usual sizes, on a page without anything else."""
    usual = {"viewport": {"width": 1240, "height": 900}, "reduced_motion": "no-preference"}
    page = panels(browser, PANELS, plotly=True, **usual)
    yield page
    page.close()


@pytest.fixture
def views(page: Page) -> Iterator[Views]:
    """Empty panels. An error on their page fails the test."""
    views = Views(page)
    with without_errors(page):
        page.mouse.move(0, 0)
        page.evaluate("document.body.classList.remove('dark')")
        page.get_by_role("button", name="lin", exact=True).click()
        page.keyboard.press("Escape")
        views.apply(Traffic("empty"))
        yield views


def test_traffic_is_drawn_in_every_panel(views: Views) -> None:
    traffic = Traffic()
    traffic.burst(3, lane=True)
    traffic.burst(8, steps=30)
    views.apply(traffic)
    for name in CHARTS:
        assert views.points(name) > 0, name
        assert EMPTY[name] not in views.words(name), name
    blue = views.page.evaluate("Rose.palette().hues[0]")
    assert views.colors(wanted=blue) > 20, "lane 1's row"
    assert views.page.locator("#itl .rp-plot").get_attribute("aria-label"), "screen readers get a summary"


def test_empty_panels_say_what_they_will_show_as_do_those_of_an_engine_that_begins_anew(views: Views) -> None:
    for name, words in EMPTY.items():
        assert words in views.words(name), name
        assert views.page.locator(f"#{name} .xtick").count() > 1, "the axes are drawn"
    assert views.colors(wanted="#c2184f") == 0


def test_the_axis_holds_the_longest_gap_and_is_logarithmic_only_by_choice(views: Views) -> None:
    traffic = Traffic()
    traffic.burst(2, steps=300, ms=10)
    traffic.burst(1, steps=2, ms=90)  # one gap of 90 ms among about 600
    views.apply(traffic)
    assert views.plot("itl", "layout.yaxis.type") == "linear"
    assert 90 < views.plot("itl", "layout.yaxis.range[1]") < 200
    assert views.page.locator("#itl .rp-sub").inner_text() == "ms, one dot per token"
    traffic.burst(1, steps=2, ms=900)
    views.apply(traffic)
    assert views.plot("itl", "layout.yaxis.type") == "linear"
    assert 900 < views.plot("itl", "layout.yaxis.range[1]") < 2000
    for word, kind in (("log", "log"), ("lin", "linear"), ("log", "log")):
        button = views.page.get_by_role("button", name=word, exact=True)
        button.click()
        views.drawn()
        assert views.plot("itl", "layout.yaxis.type") == kind
        assert button.get_attribute("aria-pressed") == "true"
    assert np.log10(900) < views.plot("itl", "layout.yaxis.range[1]") < np.log10(2000)
    assert "log" in views.page.locator("#itl .rp-sub").inner_text()
    views.page.get_by_role("button", name="lin", exact=True).click()


def test_percentiles_in_header_and_chart_are_those_of_all_gaps_even_after_slow_motion(views: Views) -> None:
    traffic = Traffic()
    for gap in (300.0, 5.0):  # a slow answer long before a fast one, as slow motion leaves them
        traffic.burst(1, ms=gap, steps=40)
        traffic.idle(20_000)
    views.apply(traffic)
    views.page.evaluate("Rose.view.setSpan(60000)")
    views.drawn()
    header = views.page.evaluate(
        "Rose.load('live/gaps.js').then(({ percentiles }) => percentiles('itl', Rose.view.latest(Rose.time.now())))"
    )

    def ms(text: str) -> float:
        number, _, unit = text.partition(" ")
        return float(number.replace("\u202f", "")) * (1000 if unit == "s" else 1)

    shown = {text.split("\n")[0]: ms(text.split("\n")[1]) for text in views.words("itl") if text.startswith("p")}
    assert [ms(f"{part} {header['unit']}") for part in header["parts"]] == pytest.approx(
        [shown["p50"], shown["p99"]], rel=0.1
    )
    for q in (50, 95, 99):
        assert shown[f"p{q}"] == pytest.approx(float(np.percentile(traffic.itls, q)), rel=0.01)
    views.page.evaluate("Rose.view.setSpan(15000)")


def test_the_time_that_is_shown_can_be_chosen_and_ends_at_the_same_now_everywhere(views: Views) -> None:
    traffic = Traffic()
    traffic.burst(3, steps=400, ms=10)  # it ends, so the views stand still
    traffic.idle(5000)
    views.apply(traffic)
    for span in (3, 60, 15):
        views.page.evaluate(f"Rose.view.setSpan({span} * 1000)")
        views.drawn()
        ranges = [views.range(name) for name in TIMED]
        assert ranges[0][1] - ranges[0][0] == pytest.approx(span)
        assert all(other == pytest.approx(ranges[0], abs=0.001) for other in ranges)


def test_a_knob_change_marks_every_view(views: Views) -> None:
    traffic = Traffic()
    traffic.burst(6)
    traffic.knob("prefill_max_tokens", 512, 256)
    traffic.burst(6)
    traffic.frame["story"] = {"about": "burst", "t": traffic.t, "lines": [], "figures": [], "burst": 2, "compared": 1}
    views.apply(traffic)
    for name in TIMED:
        assert "knob" in views.names(name), name
    assert "knob" not in views.names("ttft"), "it has no time axis"
    assert len(views.plot("ttft", "data")) == 3, "the two bursts, and the last one's median"
    assert "budget 512 → 256" in views.words("itl")
    assert views.plot("tokens", "data[2].y") == [512, 512, 256, 256], "the budget is drawn at its value"
    assert views.colors(wanted="#c2184f") > 100, "the line across the timeline"
    assert set(views.plot("tokens", "data[2].y")) & {512, 518} and set(views.plot("tokens", "data[2].y")) & {256, 262}
    assert any("256" in text for text in views.words("tokens"))


def test_first_tokens_of_bursts_before_a_demo_are_not_shown_beside_it(views: Views) -> None:
    traffic = views.after_burst(4)
    legend = views.page.locator("#ttft .rp-lg")
    expect(legend).to_have_text("burst 1")
    caption = "async (caption) => void ((await Rose.load('live/demos.js')).demos.caption = caption)"
    begun = traffic.t
    traffic.burst(2, lane=True)
    views.apply(traffic)
    views.page.evaluate(caption, {"begun": begun})
    views.drawn()
    expect(legend).to_have_text("last 15 s")
    views.page.evaluate(caption, None)
    traffic.burst(4)
    views.apply(traffic)
    expect(legend).to_have_text("burst 2")


def test_the_tokens_of_lanes_and_the_time_of_the_same_steps(views: Views) -> None:
    traffic = Traffic()
    traffic.burst(2, ms=20.0, lane=True)
    traffic.burst(12, ms=20.0)
    views.apply(traffic)
    panel = views.page.locator("#tokens")
    rows = [views.plot("tokens", f"data[{trace}]") for trace in (4, 5, 6)]
    assert [len(row["x"]) > 5 for row in rows] == [True, True, False], "dots for the tokens of the two lanes"
    assert rows[1]["y"][0] < rows[0]["y"][0] < 0, "below the bars"
    panel.get_by_role("button", name="ms").click()
    views.drawn()
    assert max(views.plot("tokens", "data[1].y")) == pytest.approx(80), "the device's time"
    assert max(views.plot("tokens", "data[0].y")) == pytest.approx(81), "the device's and the host's time"
    expect(
        panel.get_by_role("img", name=re.compile("The longest step took 81.0 ms: host 1.0, device 80.0"))
    ).to_have_count(1)
    panel.get_by_role("button", name="tokens").click()
    views.drawn()
    assert max(views.plot("tokens", "data[0].y")) == 1200


def test_state_slots_and_kept_states_have_strips_of_their_own(views: Views) -> None:
    def paint(up: int) -> list[int]:
        """The colour near the plot's right edge, ``up`` px above its bottom."""
        return views.page.evaluate(
            """(up) => {
              const canvas = document.querySelector('#kvtime .rp-marks'), x = canvas.width - 16;
              return [...canvas.getContext('2d').getImageData(x, canvas.height - 18 - up, 1, 1).data].slice(0, 3);
            }""",
            up,
        )

    def color(name: str) -> list[int]:
        value = views.page.evaluate(f"Rose.palette().{name}")
        return [int(value[i : i + 2], 16) for i in (1, 3, 5)]

    said = views.page.locator("#kvtime .rp-plot")
    traffic = Traffic(info={"state_slots": 8, "state_snapshots": 40})
    traffic.burst(4, states=(4, 10))
    views.apply(traffic)
    assert {"slots", "kept"} <= set(views.words("kvtime"))
    nothing, held, kept = [0, 0, 0], color("ink3"), color("cached")
    assert [paint(up) for up in (2, 5, 11)] == [kept, nothing, nothing], "a quarter of the kept states' places"
    assert [paint(up) for up in (20, 24, 30)] == [held, held, nothing], "half of the slots are used"
    assert paint(16) == color("surface"), "the gap between the strips"
    expect(said).to_have_attribute(
        "aria-label", re.compile(r"free\. 4 of 8 state slots are in use\. 10 of 40 states are kept\.$")
    )
    traffic = views.after_burst(4)
    assert views.words("kvtime") == []
    assert views.plot("kvtime", "layout.yaxis.range[0]") == 0


def test_zoom_is_kept_over_updates_and_shared_until_esc_or_a_double_click(views: Views) -> None:
    traffic = views.after_burst(4, steps=200, ends=False)
    box, begun = views.page.locator("#itl .rp-plot").bounding_box(), views.range("itl")[0]
    assert box is not None
    views.page.mouse.move(box["x"] + 200, box["y"] + 150)
    views.page.mouse.down()
    views.page.mouse.move(box["x"] + 350, box["y"] + 150, steps=4)
    views.page.mouse.up()
    views.page.wait_for_function("Rose.view.zoom")
    views.drawn()
    zoomed = views.range("itl")
    per_px = 15 / (PANELS["itl"][0] - 38 - 48)
    assert zoomed == pytest.approx([begun + (x - 38) * per_px for x in (200, 350)], abs=0.5), (
        "what the box was drawn over"
    )
    for _ in range(3):
        traffic.burst(2, steps=10)
        views.apply(traffic)
    for name in TIMED:
        assert views.range(name) == pytest.approx(zoomed), name
    assert views.page.get_by_text("back to now").first.is_visible()
    views.page.keyboard.press("Escape")
    views.drawn()
    first, last = views.range("itl")
    assert last - first == pytest.approx(15)
    views.page.evaluate("() => { const now = Rose.time.now(); Rose.view.set(now - 2000, now - 1000); }")
    views.drawn()
    first, last = views.range("itl")
    assert last - first == pytest.approx(1)
    views.page.locator("#itl .rp-plot").dblclick(position={"x": 200, "y": 150})
    views.drawn()
    first, last = views.range("itl")
    assert last - first == pytest.approx(15)


def test_idle_time_is_cut_out_and_marked(views: Views) -> None:
    traffic = views.after_burst(4)
    first = views.range("itl")[1]
    traffic.idle(60000)
    traffic.burst(4)
    views.apply(traffic)
    assert views.range("itl")[1] - first < 5, "an idle minute takes no room"
    assert "idle" in views.names("itl")


def test_the_theme_redraws(views: Views) -> None:
    views.after_burst(4)
    color = "getComputedStyle(document.querySelector('#itl svg text')).fill"
    light = views.page.evaluate(color)
    pixels = views.page.evaluate("Rose.palette().hues[0]")
    views.page.evaluate("document.body.classList.add('dark')")
    views.page.wait_for_function(f"light => {color} !== light", arg=light)
    views.drawn()
    assert views.page.evaluate("Rose.palette().hues[0]") != pixels
    assert views.colors(wanted=views.page.evaluate("Rose.palette().hues[8]")) > 0


def test_many_tokens_stay_few_points_but_no_slow_one_is_lost(views: Views) -> None:
    traffic = Traffic()
    traffic.burst(32, steps=900, ms=12)  # about 2,000 tokens/s for 14 s
    views.apply(traffic)
    assert 500 < views.points("itl") <= 4000
    p95 = float(np.percentile(traffic.itls, 95))
    limit = views.plot("itl", "layout.yaxis.range[1]")
    slow = [itl for itl in traffic.itls if p95 < itl <= limit]
    drawn = views.page.evaluate(
        "p95 => document.querySelector('#itl .rp-plot').drawn.data.flatMap((trace) => [...trace.y]).filter((y) => y > p95 + .01).length",
        p95,
    )
    assert drawn == len(slow)


def test_a_hidden_panel_is_not_drawn(views: Views) -> None:
    views.page.evaluate("document.getElementById('itl').style.display = 'none'")
    views.after_burst(4, ends=False)
    before = views.page.evaluate("Rose.panels.find((panel) => panel.name === 'itl').draws")
    for _ in range(3):
        views.drawn()  # the others
    assert views.page.evaluate("Rose.panels.find((panel) => panel.name === 'itl').draws") == before
    views.page.evaluate("document.getElementById('itl').style.display = 'flex'")
    views.page.wait_for_function("n => Rose.panels.find((panel) => panel.name === 'itl').draws > n", arg=before)
    assert views.points("itl") > 0


def test_nothing_is_drawn_while_nothing_changes(views: Views) -> None:
    traffic = Traffic()
    traffic.burst(4)
    traffic.idle(3000)
    views.apply(traffic)
    views.page.wait_for_function("Rose.time.idle()")
    views.drawn()
    before = views.page.evaluate("Rose.panels.map((panel) => panel.draws)")
    views.page.wait_for_timeout(800)
    assert views.page.evaluate("Rose.panels.map((panel) => panel.draws)") == before


def test_pointing_at_the_timeline(views: Views) -> None:
    views.after_burst(3, steps=200, lane=True)
    views.page.evaluate(
        "window.seen = []; Rose.on('hover', (rid) => seen.push(rid)); Rose.on('select', (what) => { window.chosen = what; }); null"
    )
    canvas = views.page.locator("#steps canvas")
    canvas.hover(position={"x": 550, "y": 52 + 13 + 6})  # the second lane's row
    views.page.wait_for_function("seen.includes(2)")
    views.drawn()
    of_another = "Rose.palette().hues[0]"
    pointed_at = views.colors(wanted=views.page.evaluate(of_another))
    canvas.click(position={"x": 550, "y": 52 + 13 + 6})
    assert views.page.evaluate("chosen.rid") == 2 and views.page.evaluate("chosen.step") > 0
    views.page.mouse.move(0, 0)
    views.drawn()
    picked = views.colors(wanted=views.page.evaluate(of_another))
    assert picked < pointed_at, "a selection dims the others"
    views.page.evaluate("Rose.emit('select', null)")
    views.drawn()
    assert views.colors(wanted=views.page.evaluate(of_another)) == pytest.approx(pointed_at, rel=0.02), (
        "pointing does not dim anything"
    )


def test_wheel_drag_and_keys_steer_all_time_views(views: Views) -> None:
    views.after_burst(4, steps=200, ends=False)
    canvas = views.page.locator("#steps canvas")
    canvas.hover(position={"x": 400, "y": 200})
    views.page.mouse.wheel(0, -240)
    views.page.wait_for_function("Rose.view.zoom")
    span = views.page.evaluate("Rose.view.zoom.x1 - Rose.view.zoom.x0")
    assert span < 8000
    views.drawn()
    assert views.range("itl")[1] - views.range("itl")[0] == pytest.approx(span / 1000)
    begun = views.page.evaluate("Rose.view.zoom.x0")
    box = canvas.bounding_box()
    assert box is not None
    views.page.mouse.move(box["x"] + 300, box["y"] + 200)
    views.page.mouse.down()
    views.page.mouse.move(box["x"] + 400, box["y"] + 200, steps=3)
    views.page.mouse.up()
    assert views.page.evaluate("Rose.view.zoom.x0") < begun
    canvas.focus()
    begun = views.page.evaluate("Rose.view.zoom.x0")
    views.page.keyboard.press("Shift+ArrowRight")
    assert views.page.evaluate("Rose.view.zoom.x0") > begun
    views.page.keyboard.press("Escape")
    assert views.page.evaluate("Rose.view.zoom") is None


def test_keys_go_from_cell_to_cell(views: Views) -> None:
    page, traffic = views.page, Traffic()
    first, second = traffic.burst(2, steps=12, lane=True, prompt=64)
    views.apply(traffic)
    page.evaluate("window.chosen = null; Rose.on('select', (what) => { window.chosen = what; }); null")
    canvas, said = page.locator("#steps canvas"), page.locator("#steps span.rp-said")
    canvas.focus()
    plain = views.colors(wanted=page.evaluate("Rose.palette().ink"))
    page.keyboard.press("ArrowRight")
    assert said.inner_text() == f"Request {first}, lane 1, step 11: 1 decode token, ITL 20.0 ms"
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowDown")
    assert said.inner_text() == f"Request {second}, lane 2, step 10: 1 decode token, ITL 80.0 ms"
    assert page.evaluate("[Rose.pointing.rid, Rose.pointing.step]") == [second, 10], (
        "highlighted as if the pointer were there"
    )
    page.keyboard.press("ArrowDown")  # there is no row below
    assert "lane 2" in said.inner_text()
    views.drawn()
    assert views.colors(wanted=page.evaluate("Rose.palette().ink")) > plain + 8, "the cell is outlined"
    page.keyboard.press("Enter")
    chosen, box = page.evaluate("chosen"), canvas.bounding_box()
    assert (chosen["rid"], chosen["step"]) == (second, 10)
    assert box and box["y"] < chosen["y"] < box["y"] + box["height"]
    page.keyboard.press("Home")
    assert said.inner_text() == f"Request {second}, lane 2, step 0: 64 prompt tokens, first token"
    page.keyboard.press("ArrowLeft")
    assert "step 0" in said.inner_text(), "there is no earlier cell"
    page.keyboard.press("Escape")
    assert said.inner_text() == ""
    assert page.evaluate("[Rose.pointing.rid, Rose.pointing.step, chosen]") == [None, None, None]


def test_keys_go_on_beyond_what_is_in_view(views: Views) -> None:
    views.after_burst(1, steps=30, lane=True)
    views.page.locator("#steps canvas").focus()
    views.page.keyboard.press("ArrowRight")
    row = "(Rose.store.stepRow(15) & Rose.store.steps.mask)"
    views.page.evaluate(f"(() => {{ const span = Rose.stepSpan({row}); Rose.view.set(span.x0 - 5, span.x1 + 5); }})()")
    views.drawn()
    views.page.keyboard.press("ArrowLeft")
    assert "step 28" in views.page.locator("#steps span.rp-said").inner_text()
    shown = views.page.evaluate("[Rose.view.zoom.x0, Rose.stepSpan(Rose.store.stepRow(28)).x0, Rose.view.zoom.x1]")
    assert shown == sorted(shown), "the view has followed"


def test_a_copied_block_is_marked(views: Views) -> None:
    legend = views.page.locator("#steps .rp-copied")
    traffic = Traffic()
    (rid,) = traffic.burst(1)
    views.apply(traffic)
    ink, before = views.page.evaluate("Rose.palette().ink"), legend.is_visible()
    inked = views.colors(wanted=ink)
    traffic.burst(1)
    traffic.frame["steps"][-1][COLUMNS["steps"].index("copied")] = [rid + 1]
    views.apply(traffic)
    assert (before, legend.is_visible()) == (False, True)
    assert views.colors(wanted=ink) > inked + 8
