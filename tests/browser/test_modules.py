"""The page's pure logic: its modules, imported into an empty page, without a server."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from roseplay.formats.text import number_text, range_text, ratio_text
from roseplay.play.terms import SETTINGS
from roseplay.settings import Setting, Switch, Whole
from tests.browser.modules import bare_page

NOW = 1_000.0
INFO = {"num_blocks": 9, "block_size": 16, "max_model_len": 64, "model": "m"}


@pytest.fixture(scope="module")
def page(browser: Browser) -> Iterator[Page]:
    page = bare_page(browser, "<body></body>")
    yield page
    page.close()


def call(page: Page, module: str, expression: str, argument: Any = None) -> Any:
    """The value of ``expression``, in which the module is ``it`` and the argument ``given``."""
    script = f"async ([path, given]) => {{ const it = await Rose.load(path); return {expression}; }}"
    return page.evaluate(script, [module, argument])


def step(number: int, t0: float, t1: float, *parts: list[int], preempted: tuple[int, ...] = ()) -> list[Any]:
    """A step's row with these parts: [rid, prompt, decode, computed, target, cached, shared]."""
    prompt, decode = sum(part[1] for part in parts), sum(part[2] for part in parts)
    counts = [prompt, decode, 0, 0, len(parts), 0, 4, 1, 2, 1]
    return [number, t0, t1, *counts, 0.5, 0.25, 0, list(parts), list(preempted), [], None]


def submitted(rid: int, t: float, **more: Any) -> list[Any]:
    return [rid, "submitted", t, {"prompt_tokens": 8, **more}]


def apply(
    page: Page, *frames: dict[str, Any], boot: str = "one", reset: bool = False, now: float = NOW, **snapshot: Any
) -> None:
    delta = {"boot_id": boot, "next": 7, "now": now, "reset": reset, "frames": frames}
    if reset:
        delta["snapshot"] = {"info": INFO, "knobs": {"max_batch_size": 4}, **snapshot}
    page.evaluate("delta => Rose.apply(delta)", delta)


@pytest.fixture
def story(page: Page) -> Page:
    """Two requests: the first is answered with two tokens, the second is preempted once."""
    apply(page, reset=True)
    first = {"requests": [submitted(1, 0, lane=2), submitted(2, 1, burst=5)]}
    first["steps"] = [step(1, 2, 12, [1, 8, 0, 8, 8, 0, 0], [2, 4, 0, 4, 8, 0, 0])]
    second: dict[str, Any] = {
        "steps": [step(2, 12, 20, [1, 0, 1, 8, 8, 0, 0], preempted=(2,)), step(3, 20, 30, [2, 8, 0, 8, 8, 0, 0])]
    }
    second["tokens"] = [[1, 12, None, 1], [1, 20, 8.0, 2]]
    second["requests"] = [
        [1, "first", 12, {"ttft_ms": 12.0}],
        [1, "finished", 20, {"reason": "stop", "tokens": 2, "e2e_ms": 20.0}],
    ]
    second["knobs"] = [[15, 2, {"max_batch_size": [4, 2]}]]
    apply(page, first)
    apply(page, second)
    return page


def test_a_request_is_put_together_from_its_events(story: Page) -> None:
    known = story.evaluate("Rose.store.requests.get(1)")
    wanted = {
        "lane": 2,
        "submitted": 0,
        "first": 12,
        "ttft": 12,
        "finished": 20,
        "reason": "stop",
        "tokens": 2,
        "computed": 8,
    }
    assert {name: known[name] for name in wanted} == wanted
    other = story.evaluate("Rose.store.requests.get(2)")
    assert (other["finished"], other["burst"], other["preempted"], other["resumed"]) == (None, 5, [12], [20])
    assert story.evaluate("[[...Rose.store.open], [...Rose.store.bursts.keys()]]") == [[2], [5]]


def test_steps_tokens_and_knobs_are_kept(story: Page) -> None:
    store = story.evaluate(
        "(({steps, tokens, knobs, marks, cursor}) => [steps.size, tokens.size, knobs, marks.length, cursor])(Rose.store)"
    )
    assert store == [3, 2, {"max_batch_size": 2}, 1, 7]
    columns = ("t0", "t1", "decode_tokens", "blocks_free", "preempted")
    row = story.evaluate(
        "(names) => names.map((name) => Rose.store.steps[name][Rose.store.stepRow(2) & Rose.store.steps.mask])", columns
    )
    assert row == [12, 20, 1, 4, [2]]
    assert story.evaluate("Rose.store.stepRow(99)") == -1
    parts = story.evaluate("Rose.store.entriesOf(Rose.store.stepRow(1) & Rose.store.steps.mask)")
    assert [(part["rid"], part["prompt_tokens"]) for part in parts] == [(1, 8), (2, 4)]
    assert story.evaluate("[...Rose.store.tokens.itl_ms.slice(0, 2)].map(Number.isNaN)") == [True, False]


def test_rows_are_read_by_the_names_of_their_columns(page: Page) -> None:
    columns = {
        "steps": ["entries", "colour", "t1", "t0", "step_id", "running"],
        "entries": ["decode_tokens", "request_id"],
        "tokens": ["itl_ms", "step_id", "request_id", "t"],
    }
    apply(page, reset=True, columns=columns)
    apply(page, {"steps": [[[[1, 9]], "red", 20, 10, 4, 3]], "tokens": [[None, 4, 9, 20]]})
    columns_read = ["step_id", "t0", "t1", "running", "blocks_free", "graph", "preempted"]
    row = "(names) => names.map((name) => Rose.store.steps[name][0])"
    assert page.evaluate(row, columns_read) == [4, 10, 20, 3, 0, None, None]
    assert page.evaluate("Rose.store.entriesOf(0)") == [{"rid": 9, "prompt_tokens": 0, "decode_tokens": 1}]
    assert page.evaluate("(({request_id, t, step_id}) => [request_id[0], t[0], step_id[0]])(Rose.store.tokens)") == [
        9,
        20,
        4,
    ]
    assert page.evaluate("'colour' in Rose.store.steps") is False


def test_another_server_starts_anew(story: Page) -> None:
    apply(story, boot="two")
    assert story.evaluate("[Rose.store.steps.size, Rose.store.requests.size, Rose.store.info, Rose.store.bootId]") == [
        0,
        0,
        None,
        "two",
    ]


def test_rings_forget_their_oldest_rows(page: Page) -> None:
    apply(page, reset=True)
    count = page.evaluate("Rose.store.steps.capacity") + 10
    apply(page, {"steps": [step(n, n, n + 0.5) for n in range(count)]})
    assert page.evaluate("[Rose.store.steps.size, Rose.store.stepRow(9), Rose.store.stepRow(10)]") == [
        count - 10,
        -1,
        10,
    ]


def test_idle_time_is_cut_out_of_the_views(page: Page) -> None:
    apply(page, reset=True, now=60_000)
    apply(page, {"steps": [step(1, 100, 200)]}, {"steps": [step(2, 50_200, 50_300)]}, now=60_000)
    cuts = page.evaluate("Rose.time.cuts")
    assert cuts == [{"from": 900, "to": 49_900, "before": 0}]
    assert [page.evaluate("t => Rose.time.x(t)", t) for t in (100, 900, 30_000, 49_900, 50_300)] == [
        100,
        900,
        900,
        900,
        1300,
    ]
    assert page.evaluate("Rose.time.idle()") is True


def test_a_stall_is_no_idle_time(page: Page) -> None:
    apply(page, reset=True, now=60_000)
    apply(
        page,
        {"requests": [submitted(1, 90)], "steps": [step(1, 100, 200)]},
        {"steps": [step(2, 50_200, 50_300)]},
        now=60_000,
    )
    assert page.evaluate("Rose.time.cuts") == []
    assert page.evaluate("Rose.time.idle()") is False


@pytest.mark.parametrize(
    ("values", "q", "expected"),
    [([5.0], 0.99, 5), ([1, 2, 3, 4], 0.5, 2.5), ([1, 2, 3, 4], 0, 1), ([1, 2, 3, 4], 1, 4), ([0, 10], 0.95, 9.5)],
)
def test_quantiles_lie_between_neighbours(page: Page, values: list[float], q: float, expected: float) -> None:
    assert call(page, "shared/numbers.js", "it.quantile(...given)", [values, q]) == pytest.approx(expected)


def test_figures_of_nothing(page: Page) -> None:
    assert call(page, "shared/numbers.js", "[it.quantile([], 0.5), it.median([])].map(Number.isNaN)") == [True, True]
    assert call(page, "shared/numbers.js", "it.median([3, 1, 2])") == 2


@pytest.mark.parametrize(
    ("most", "parts", "expected"), [(160, 4, 160), (161, 4, 200), (0.9, 3, 0.9), (7, 3, 7.5), (0, 2, 1e-6)]
)
def test_axes_have_round_parts(page: Page, most: float, parts: int, expected: float) -> None:
    axis = call(page, "shared/numbers.js", "it.niceAxis(...given)", [most, parts])
    assert axis["max"] == pytest.approx(expected)
    assert axis["step"] * parts == pytest.approx(axis["max"])


@pytest.mark.parametrize(
    ("function", "value", "expected"),
    [
        ("count", 1936, "1\u202f936"), ("count", 1234567.4, "1\u202f234\u202f567"), ("count", None, "–"), ("ms", 99.94, "99.9"),
        ("ms", 1234.5, "1\u202f235"), ("limit", None, "∞"), ("short", 448, "448"), ("short", 15_523, "15.5k"),
        ("short", 200_000, "200k"), ("seconds", 999, "999 ms"), ("seconds", 1500, "1.5 s"),
    ],
)  # fmt: skip
def test_figures_in_words(page: Page, function: str, value: float | None, expected: str) -> None:
    assert call(page, "shared/format.js", f"it.format.{function}(given)", value) == expected


def test_one_and_many(page: Page) -> None:
    assert call(page, "shared/format.js", "[1, 2].map((n) => it.format.many(n, 'step'))") == ["1 step", "2 steps"]


def test_a_slow_token_is_explained_in_one_sentence(story: Page) -> None:
    """``test_why.py`` has all causes, as the popover shows them."""
    answer = call(story, "live/why.js", "it.why(1, 2)")
    assert answer["title"] == "Why was this token slow?", "too few gaps for a usual one"
    assert answer["sentence"] == [
        "Nothing in its step explains it: it took ",
        {"bold": "8.0 ms"},
        ", ",
        {"bold": "0.5 ms"},
        " of it in the model.",
    ]
    assert dict(answer["facts"])["token"] == ["lane 2", " · 2"]
    first = call(story, "live/why.js", "it.why(1, 1)")
    assert first["sentence"][:2] == ["The first token came after ", {"bold": "12 ms"}]
    assert call(story, "live/why.js", "it.why(1, 77)") is None


def test_a_sliders_drag_is_one_mark(page: Page) -> None:
    apply(page, reset=True)
    drag = [[100 + 50 * n, 1, {"max_batch_size": [32 - n, 31 - n]}] for n in range(4)]
    apply(page, {"knobs": [*drag, [5_000, 9, {"prefill_max_tokens": [None, 256], "prefix_cache": [True, False]}]]})
    marks = page.evaluate("Rose.knobMarks()")
    assert [mark["text"] for mark in marks] == ["max batch 32 → 28", "budget ∞ → 256, prefix cache on → off"]


def test_a_setting_that_the_server_adds_has_a_mark_and_rows_in_the_lab(browser: Browser) -> None:
    knob = Setting(values=Whole(2, 9), label="Patience", hint="mood", help="It waits.", short="calm").to_dict()
    engine = Setting(values=Switch(), label="Zeal", hint="engine: mood", help="It tries hard.").to_dict()
    hidden = Setting(values=Switch(), label="Secret", hint="engine: mood", help="It hides.", lab="name").to_dict()
    settings = {group: dict(known) for group, known in SETTINGS.items()}
    settings["knobs"] |= {"patience": knob}
    settings["config"] |= {"zeal": engine, "secret": hidden}
    head = "<span class='rp-sub'></span><span class='rp-rt'></span><div class='rp-plot'></div>"
    page = bare_page(browser, f"<body><div id='table'>{head}</div></body>", settings=settings)
    apply(page, reset=True)
    apply(page, {"knobs": [[5, 1, {"patience": [3, 7]}]]})
    assert call(page, "live/knobmarks.js", "it.knobMarks().map((mark) => mark.text)") == ["calm 3 → 7"]
    page.evaluate(
        """async () => {
          const { lab } = await Rose.load('lab/state.js'), { mount } = await Rose.load('lab/settings.js');
          const arm = (patience) => ({ knobs: { patience }, config: { zeal: true, secret: true }, given: new Set() });
          lab.plan = { A: arm(3), B: arm(7) };
          mount(document.getElementById('table'));
        }"""
    )
    rows = page.locator("#table tbody tr")
    assert rows.locator("th").all_inner_texts() == ["Patience", "Zeal", "Slow motion"]
    assert rows.nth(0).locator("td").nth(2).inner_text() == "mood"
    assert page.get_by_label("Zeal, B").inner_text() == "on"
    page.get_by_label("Patience, A").fill("1")
    page.get_by_label("Patience, A").press("Enter")
    assert call(page, "lab/state.js", "it.lab.message") == "Patience of A takes a whole number of at least 2."
    page.get_by_label("Patience, A").fill("4")
    page.get_by_label("Patience, A").press("Enter")
    assert call(page, "lab/state.js", "it.lab.plan.A.knobs.patience") == 4
    page.close()


def test_figures_read_as_in_the_sentences_of_the_server(page: Page) -> None:
    """The table of the lab is written by a script, the sentences beside it by the server."""
    draw = random.Random(7)
    values = [0, 0.004, 0.125, 9.995, 94.25, 99.95, 99.96, 100.5, 1234.5, 8.0, 1e6]
    values += [round(10 ** draw.uniform(-3, 6), draw.choice([0, 1, 2, 4])) for _ in range(400)]
    pairs = list(zip(values, sorted(values), strict=True))
    assert call(page, "lab/words.js", "given.map(it.figureText)", values) == [number_text(value) for value in values]
    assert call(page, "lab/words.js", "given.map(it.ratioText)", values) == [ratio_text(value) for value in values]
    assert call(page, "lab/words.js", "given.map(it.rangeText)", pairs) == [range_text(*pair) for pair in pairs]
    assert call(page, "lab/words.js", "[it.figureText(null), it.ratioText(null), it.rangeText([null, null])]") == [
        number_text(None), ratio_text(None), range_text(None, None),
    ]  # fmt: skip


def test_words_beside_marks_of_changes_never_collide(page: Page) -> None:
    """Neither with one another nor with another mark; the newest keep theirs."""
    draw = random.Random(3)
    for _ in range(60):
        at = sorted(draw.uniform(0, 470) for _ in range(draw.randint(1, 6)))
        marks = [{"text": "x" * draw.randint(5, 24), "at": x} for x in at]
        placed = call(page, "live/knobmarks.js", "it.flagWords(given, (mark) => mark.at, 0, 518, [])", marks)
        spans = []
        for one in placed:
            long = 6 + 6.1 * len(one["mark"]["text"])
            spans.append((one["x"] - long, one["x"]) if one["left"] else (one["x"], one["x"] + long))
        assert all(begin >= 0 and end <= 518 for begin, end in spans)
        spans.sort()
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans))
        older = [one for one in placed if one["x"] != at[-1]]
        for one in older:
            long, x = 6 + 6.1 * len(one["mark"]["text"]), one["x"]
            begin, end = (x - long, x) if one["left"] else (x, x + long)
            assert not any(begin < other < end for other in at if other != x)
        assert any(one["x"] == at[-1] for one in placed)
    lone = [{"text": "budget 512 → 256", "at": 200}]
    assert len(call(page, "live/knobmarks.js", "it.flagWords(given, (mark) => mark.at, 0, 518, [])", lone)) == 1
    taken = [[150, 360]]
    script = "it.flagWords(given[0], (mark) => mark.at, 0, 518, given[1])"
    assert call(page, "live/knobmarks.js", script, [lone, taken]) == []


LAID_OUT = """((given) => {
  const [width, height, total, used, below, zoom] = given, numbers = (n, from) => Int32Array.from({ length: n }, (_, i) => from + i + 1);
  const groups = below.map((n, i) => numbers(n, total + 1000 * i));
  const { grids, bar, ...more } = it.layOut(width, height, { order: numbers(total, 0), used }, groups, zoom);
  const about = ({ left, top, columns, rows, dx, dy, per, numbers, count, bottom }) =>
    ({ left, top, columns, rows, dx, dy, per, count, bottom, first: numbers[0], shown: numbers.length });
  return { grids: grids.map(about), bar, ...more, order: more.order.length };
})(given)"""


def laid_out(page: Page, *given: Any) -> dict[str, Any]:
    return call(page, "live/cellgrid.js", LAID_OUT, given)


@pytest.mark.parametrize(("width", "height"), [(556, 118), (700, 400), (366, 140)])
@pytest.mark.parametrize("below", [[], [64, 32]])
def test_the_block_map_has_room_for_every_used_block(page: Page, width: int, height: int, below: list[int]) -> None:
    for total in (12, 448, 900, 15_522, 200_000, 2_000_000):
        for used in {0, 1, min(total, 90), total // 2, total - 1, total}:
            layout = laid_out(page, width, height, total, used, below, None)
            blocks, *others = layout["grids"]
            folded = layout["bar"] is not None
            assert blocks["shown"] == (used if folded or used == total else total), "each in a cell, or in the bar"
            assert (layout["bar"] or {"count": 0})["count"] == (total - used if folded else 0)
            assert blocks["count"] <= blocks["columns"] * blocks["rows"]
            assert min(blocks["dx"], blocks["dy"]) >= 3
            assert blocks["per"] == 1 or blocks["dx"] == 3, "joined only where cells would be smaller"
            assert [other["shown"] for other in others] == below
            tops = [layout["bar"]["top"] + layout["bar"]["height"] if folded else blocks["bottom"]]
            tops += [other["bottom"] for other in others]
            assert tops == sorted(tops)
            assert tops[-1] <= height, (total, used)


def test_a_small_pool_has_a_cell_for_unused_blocks_too(page: Page) -> None:
    layout = laid_out(page, 556, 118, 448, 0, [], None)
    assert layout["bar"] is None
    assert layout["most"] == 0, "nothing to zoom"
    (grid,) = layout["grids"]
    assert (grid["columns"], grid["rows"], grid["dx"], grid["dy"], grid["shown"]) == (64, 7, 8, 15, 448)


def test_each_step_of_the_zoom_shows_about_half_as_many_blocks(page: Page) -> None:
    everything = laid_out(page, 556, 118, 200_000, 200_000, [], None)
    shown = [200_000]
    for level in range(everything["most"] - 1, -1, -1):
        layout = laid_out(page, 556, 118, 200_000, 200_000, [], {"level": level, "first": 100_000})
        (grid,) = layout["grids"]
        assert layout["level"] == level
        assert layout["first"] <= 100_000 < layout["first"] + grid["shown"], "what it is zoomed to is in view"
        assert layout["first"] == grid["first"] - 1
        assert 0.35 < grid["shown"] / shown[-1] < 0.6 or level == everything["most"] - 1
        shown.append(grid["shown"])
    assert shown[-1] == 448
    last = laid_out(page, 556, 118, 200_000, 200_000, [], {"level": 0, "first": 10**9})
    assert last["first"] + last["grids"][0]["shown"] == 200_000, "no further than the last row"
    assert laid_out(page, 556, 118, 200_000, 90, [], {"level": 3, "first": 0})["most"] == 0, "all are in view anyway"


def test_numbers_of_blocks_in_few_words(page: Page) -> None:
    ranges = [[7], [1, 2, 3, 9], [1, 3, 5, 7, 8, 9], list(range(1, 40, 2))]
    assert call(page, "live/cellinfo.js", "given.map((numbers) => it.ranges(numbers, 3))", ranges) == [
        "7", "1–3, 9", "1, 3, 5 and 3 more", "1, 3, 5 and 17 more",
    ]  # fmt: skip
    names = "given.map((members) => it.cellName(Int32Array.from(members)))"
    assert call(page, "live/cellinfo.js", names, [[33, 34, 35], [2, 9]]) == ["Blocks 33–35", "2 blocks"]


def test_blocks_by_request(page: Page) -> None:
    draw = random.Random(4)
    info = {**INFO, "num_blocks": 301}
    states = {block: draw.choice([(1, draw.randint(0, 9), 0), (0, -1, 1), (0, -1, 0)]) for block in range(1, 250)}
    apply(page, reset=True, info=info, blocks=[[block, *state] for block, state in states.items()])

    def place(block: int) -> tuple[float, float, int]:
        references, owner, findable = states.get(block, (0, -1, 0))
        return (0, owner, block) if references else (1, 0, block) if findable else (2, 0, block)

    order = call(page, "live/blockorder.js", "[...it.blockOrder(true)]")
    assert order == sorted(range(1, 301), key=place)
    assert call(page, "live/blockorder.js", "[...it.blockOrder(false)]") == list(range(1, 301))


def test_a_run_of_blocks_is_taken_as_one_row(page: Page) -> None:
    apply(
        page,
        reset=True,
        info={**INFO, "num_blocks": 1001},
        blocks=[[1, 0, -1, 1, 900], [5, 3, 2, 1, 2]],
        blocks_used=950,
    )
    apply(page, {"blocks": [[11, 0, -1, 0, 10], [999, 1, 4, 0, 500], [1, 1, 4, 1]]})
    counts = page.evaluate("Rose.blocks.counts()")
    assert counts == {"free": 108, "cached": 887, "active": 3, "shared": 2, "unused": 0, "saved": 4}
    apply(page, reset=True, boot="two", info={**INFO, "num_blocks": 1001}, blocks=[[7, 1, 4, 0]], blocks_used=950)
    assert page.evaluate("Rose.blocks.counts()") == {
        "free": 999, "cached": 0, "active": 1, "shared": 0, "unused": 50, "saved": 0,
    }  # fmt: skip
