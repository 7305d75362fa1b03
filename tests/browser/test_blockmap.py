"""The block map, checked by its pixels, and what it says about one block; mostly fed with made-up deltas."""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.modules import STYLES, bare_page, without_errors

FREE, CACHED, ACTIVE, SHARED = [0, -1, 0], [0, -1, 1], [1, 1, 0], [3, 2, 1]
MIDDLE, FOOT, EDGE = (0.5, 0.25), (0.1, 0.96), (0.04, 0.5)


class Map:
    """A block map of 448 blocks, alone on a page."""

    _boots = itertools.count(1)

    def __init__(self, page: Page) -> None:
        self.page = page

    def fill(
        self,
        blocks: dict[int, list[int]],
        total: int = 448,
        info: dict[str, int] | None = None,
        states: dict[int, list[int]] | None = None,
        rows: Sequence[list[int]] = (),
        used: int = 0,
    ) -> None:
        """Request 1 is lane 1; 2 and 3 are another tab's burst. ``rows`` are block rows that precede ``blocks``."""
        requests = [[rid, {"kind": "lane", "lane": 1} if rid == 1 else {"kind": "burst"}] for rid in (1, 2, 3)]
        snapshot = {
            "info": {"num_blocks": total + 1, "block_size": 16, **(info or {})},
            "states": [[slot, *state] for slot, state in (states or {}).items()],
            "knobs": {},
            "requests": requests,
            "blocks": [*rows, *([block, *state] for block, state in blocks.items())],
            "blocks_used": used,
        }
        self.feed({"reset": True, "snapshot": snapshot, "frames": [], "boot_id": f"boot-{next(self._boots)}"})

    def change(self, blocks: dict[int, list[int]], states: dict[int, list[int]] | None = None) -> None:
        boot = self.page.evaluate("Rose.store.bootId")
        frame: dict[str, Any] = {"t": 2000.0, "blocks": [[block, *state] for block, state in blocks.items()]}
        if states:
            frame["states"] = [[slot, *state] for slot, state in states.items()]
        self.feed({"reset": False, "frames": [frame], "boot_id": boot})

    def feed(self, delta: dict[str, Any]) -> None:
        self.page.evaluate("d => Rose.apply(JSON.parse(d))", json.dumps({"next": 1, "now": 1000.0, **delta}))
        self.drawn()

    def drawn(self) -> None:
        self.page.evaluate("window.before = Rose.panels[0].draws; Rose.panels[0].soon()")
        self.page.wait_for_function("Rose.panels[0].draws > before")

    def pixel(self, index: int, at: tuple[float, float] = MIDDLE) -> list[int]:
        """The colour at a position within a cell, given as fractions of its size. Cells count from 0."""
        return self.at(38 + (index % 64) * 8 + at[0] * 7, 2 + (index // 64) * 15 + at[1] * 13)

    def state_pixel(self, top: int, index: int, at: tuple[float, float] = MIDDLE) -> list[int]:
        """The same for a cell of the state slots or kept states, whose rows begin at ``top``."""
        return self.at(38 + index * 8 + at[0] * 7, top + at[1] * 11)

    def at(self, x: float, y: float) -> list[int]:
        """The colour at a point, with its alpha if that is not full."""
        rgba = self.page.evaluate(
            "([x, y]) => [...document.querySelector('canvas').getContext('2d').getImageData(x, y, 1, 1).data]", [x, y]
        )
        return rgba[:3] if rgba[3] == 255 else rgba

    def painted(self, color: str, x: int = 0, y: int = 0, width: int = 800, height: int = 200) -> int:
        """The number of pixels of a palette's colour in a part of the canvas."""
        return self.page.evaluate(
            """([wanted, x, y, width, height]) => {
              const { data } = document.querySelector('canvas').getContext('2d').getImageData(x, y, width, height);
              let count = 0;
              for (let i = 0; i < data.length; i += 4) count += wanted.every((value, k) => data[i + k] === value);
              return count;
            }""",
            [self.color(color), x, y, width, height],
        )

    def joined(self, block: int, per: int) -> list[int]:
        """The colour of a block's cell when each cell is a square of 3 px that represents ``per`` blocks."""
        row, column = divmod((block - 1) // per, 170)
        return self.at(38 + 3 * column + 0.5, 2 + 3 * row + 0.5)

    def sub(self) -> str:
        return self.page.locator(".rp-sub").inner_text().replace("\u202f", "")

    def picture(self) -> str:
        return self.page.evaluate("document.querySelector('canvas').toDataURL()")

    def color(self, name: str) -> list[int]:
        value = self.page.evaluate(f"Rose.palette().{name}")
        return [int(value[i : i + 2], 16) for i in (1, 3, 5)]

    def cell(self, index: int) -> dict[str, float]:
        return {"x": 38 + (index % 64) * 8 + 3, "y": 2 + (index // 64) * 15 + 6}


@pytest.fixture(scope="module")
def page(browser: Browser) -> Iterator[Page]:
    page = bare_page(
        browser,
        f"<style>{STYLES}</style><body style='margin:0'>"
        '<section style="width:556px;height:172px;display:flex;flex-direction:column"><div class="rp-ph" style="height:30px">'
        '<span class="rp-sub"></span><span class="rp-rt"></span></div><div class="rp-plot"></div></section>',
        viewport={"width": 600, "height": 500},
    )
    page.evaluate("Rose.load('live/blockmap.js').then(({ mount }) => mount(document.querySelector('section')))")
    yield page
    page.close()


@pytest.fixture
def blocks(page: Page) -> Iterator[Map]:
    """An empty map. An error on its page fails the test."""
    with without_errors(page):
        page.mouse.move(590, 490)
        page.keyboard.press("Escape")
        page.get_by_role("button", name="physical").click()
        blocks = Map(page)
        blocks.fill({})
        yield blocks


def count(page: Page, name: str) -> str:
    return page.locator(f"[data-of={name}] b").inner_text()


STATEFUL = {"state_slots": 3, "state_snapshots": 5}
SLOTS, KEPT = 90, 106  # y in px at which they begin: below seven rows of blocks, each now 12 px high


@pytest.fixture
def wide(blocks: Map) -> Iterator[Map]:
    """A page wide enough to show the counts of states in the panel's header."""
    blocks.page.set_viewport_size({"width": 900, "height": 500})
    yield blocks
    blocks.page.set_viewport_size({"width": 600, "height": 500})


def test_a_map_without_room_leaves_the_page_alive(blocks: Map) -> None:
    blocks.fill(dict.fromkeys(range(1, 449), CACHED))
    for height in range(55, 62):  # its head and its counts take 54 px
        blocks.page.evaluate("(height) => { document.querySelector('section').style.height = `${height}px`; }", height)
        blocks.page.evaluate("Rose.panels[0].soon(), new Promise((done) => setTimeout(done, 100))")
    blocks.page.evaluate("document.querySelector('section').style.height = '172px'")
    blocks.drawn()


def test_states_of_recurrent_layers_are_counted(blocks: Map) -> None:
    head, foot = blocks.page.locator(".rp-sub"), blocks.page.locator(".rp-narrow")

    def shown() -> list[str]:
        blocks.page.set_viewport_size({"width": 900, "height": 500})
        wide = [head.inner_text(), foot.inner_text() if foot.is_visible() else ""]
        blocks.page.set_viewport_size({"width": 600, "height": 500})
        return [*wide, head.inner_text(), foot.inner_text()]

    size = "448 × 16 tokens"
    blocks.fill({1: ACTIVE}, info={"state_slots": 64, "state_snapshots": 32}, states={2: [1, 0], 65: [1, 48]})
    counted = "state slots 1 / 64, kept 1 / 32"
    assert shown() == [f"{size} · {counted}", "", size, counted], "the counts are in the header where there is room"
    blocks.fill({1: ACTIVE}, info={"state_slots": 64, "state_snapshots": 0})
    assert shown() == [f"{size} · state slots 0 / 64", "", size, "state slots 0 / 64"]
    blocks.fill({1: ACTIVE})
    assert shown() == [size, "", size, ""]


def test_states_have_cells_of_their_own(wide: Map) -> None:
    wide.fill({1: ACTIVE, 448: ACTIVE}, info=STATEFUL, states={1: [1, 0], 3: [2, 0], 5: [1, 48], 6: [2, 16]})
    free, hollow, surface = (wide.color(name) for name in ("free", "cachedline", "surface"))
    assert wide.state_pixel(SLOTS, 0) == wide.color("hues[0]"), "lane 1's slot"
    assert wide.state_pixel(SLOTS, 1) == free
    assert wide.state_pixel(SLOTS, 2)[3] == pytest.approx(0.74 * 255, abs=2), "others are paler than lanes"
    assert wide.state_pixel(SLOTS, 3)[3] == 0, "there are three slots"
    assert [wide.state_pixel(KEPT, index) for index in range(4)] == [free, surface, surface, free]
    assert wide.state_pixel(KEPT, 1, EDGE) == hollow, "a kept state looks like a cached block"
    assert wide.at(38 + 63 * 8 + 3, 2 + 6 * 12 + 5) == wide.color("hues[0]"), "the last block"
    wide.change({}, states={1: [-1, 0], 2: [1, 0], 5: [-1, 0]})
    assert wide.state_pixel(SLOTS, 0) == free
    assert wide.state_pixel(SLOTS, 1) == wide.color("hues[0]")
    assert wide.state_pixel(KEPT, 1) == free
    wide.page.locator("canvas").hover(position={"x": 38 + 2 * 8 + 3, "y": SLOTS + 5})
    wide.page.wait_for_function("Rose.pointing.rid === 2")


def test_what_is_known_of_a_state_is_told(wide: Map) -> None:
    page, popover = wide.page, wide.page.get_by_role("dialog")
    wide.fill({1: ACTIVE}, info=STATEFUL, states={1: [2, 0], 5: [3, 1048]})
    page.locator("canvas").click(position={"x": 41, "y": SLOTS + 5})
    expect(page.get_by_role("dialog", name="State slot 1")).to_contain_text("held by#2")
    wide.change({}, states={1: [-1, 0]})
    expect(popover).to_contain_text("No request holds it")
    page.keyboard.press("Escape")
    page.locator("canvas").focus()
    page.keyboard.press("End")
    expect(page.get_by_role("status")).to_have_text("Kept state 5: free")
    for key in ("ArrowLeft", "ArrowLeft", "ArrowLeft"):
        page.keyboard.press(key)
    expect(page.get_by_role("status")).to_have_text("Kept state 2: after 1\u202f048 tokens of #3")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog", name="Kept state 2")).to_contain_text("afterits first 1\u202f048 tokens")
    for key, said in (
        ("ArrowUp", "State slot 2: free"),
        ("ArrowUp", "Block 386: free"),
        ("ArrowDown", "State slot 2: free"),
    ):
        page.keyboard.press(key)
        expect(page.get_by_role("status")).to_have_text(said)
    expect(popover).to_be_hidden()
    button = page.get_by_role("button", name="as table")
    button.click()
    expect(page.locator("caption")).to_contain_text("0 of 3 state slots are in use, 1 of 5 states are kept.")
    button.click()


def test_blocks_are_coloured_by_what_they_are(blocks: Map) -> None:
    assert blocks.pixel(0) == blocks.color("free")
    blocks.fill({1: ACTIVE, 2: CACHED, 3: SHARED, 66: [1, 2, 0]})
    assert blocks.pixel(0) == blocks.color("hues[0]"), "lane 1's block"
    assert blocks.pixel(1) == blocks.color("surface"), "a cached block is hollow"
    assert blocks.pixel(1, EDGE) == blocks.color("cachedline")
    assert blocks.pixel(2, EDGE) == blocks.color("shared"), "a shared block is inverted"
    assert blocks.pixel(2, FOOT) == blocks.color("hues[10]"), "a foot in its owner's colour: request 2 is of a burst"
    assert blocks.pixel(65)[:3] != blocks.color("free"), "the block is in the second row"
    assert blocks.pixel(65)[3] == pytest.approx(0.74 * 255, abs=2), "others are paler than lanes"
    assert [count(blocks.page, name) for name in ("active", "shared", "cached", "free", "saved")] == [
        "2", "1", "1", "444", "2",
    ]  # fmt: skip
    blocks.change({1: FREE, 2: ACTIVE})
    assert blocks.pixel(0) == blocks.color("free")
    assert blocks.pixel(1) == blocks.color("hues[0]")


def test_a_shared_block_shows_its_count(blocks: Map) -> None:
    def bright(references: int) -> int:
        blocks.fill({1: [references, 2, 1]})
        return blocks.painted("surface", 38, 2, 7, 11)

    assert [bright(n) for n in (2, 3, 8, 9, 10, 40)] == [11, 11, 13, 12, 5, 5]


def test_a_pick_dims_the_rest_and_pointing_does_not(blocks: Map) -> None:
    blocks.fill({1: ACTIVE, 2: [1, 2, 0], 3: SHARED})
    blocks.page.locator("canvas").hover(position=blocks.cell(1))
    blocks.page.wait_for_function("Rose.pointing.rid === 2")
    blocks.drawn()
    assert blocks.pixel(0) == blocks.color("hues[0]")
    assert blocks.pixel(1)[:3] == blocks.color("hues[6]")
    blocks.page.evaluate("Rose.emit('select', {rid: 2, step: null})")  # as selecting a table row does
    blocks.drawn()
    assert blocks.pixel(1) == blocks.color("hues[6]")
    assert blocks.pixel(0)[3] == pytest.approx(0.25 * 255, abs=2)
    assert blocks.pixel(2, (0.9, 0.5)) == blocks.color("shared"), "including a shared block of which it is an owner"
    blocks.page.evaluate("Rose.emit('select', null)")
    blocks.drawn()
    assert blocks.pixel(0) == blocks.color("hues[0]")


def test_blocks_without_room_were_never_used_and_are_one_bar(blocks: Map) -> None:
    blocks.fill({1: ACTIVE, 90: CACHED}, total=15_522)
    free, nothing = blocks.color("free"), [0, 0, 0, 0]
    assert blocks.pixel(0) == blocks.color("hues[0]")
    assert blocks.pixel(1) == free, "blocks before the last used one have been used too"
    assert blocks.pixel(89, EDGE) == blocks.color("cachedline")
    assert blocks.pixel(90) == free
    height = int(blocks.page.evaluate("document.querySelector('canvas').clientHeight"))
    assert blocks.at(545, height - 3) == free
    assert blocks.sub() == "15522 × 16 tokens"
    assert blocks.page.get_by_role("group", name="zoom").is_hidden(), "all used blocks are in view"
    blocks.change({200: ACTIVE})
    assert blocks.pixel(199) == blocks.color("hues[0]")
    blocks.fill({}, total=15_522, used=600)
    assert blocks.at(38 + 3, 2 + 7) == nothing, "cells are lower now"
    button = blocks.page.get_by_role("button", name="as table")
    button.click()
    expect(blocks.page.locator("caption")).to_contain_text("15\u202f522 free, 14\u202f922 of these never used")
    button.click()


def test_where_cells_would_be_too_small_each_stands_for_several_blocks(blocks: Map) -> None:
    blocks.fill(
        {}, total=200_000, rows=[[1, *CACHED, 200_000], [70_017, *ACTIVE, 32], [70_050, *ACTIVE], [70_120, *SHARED]]
    )
    assert blocks.sub() == "200000 × 16 tokens, 32 a cell"
    assert blocks.joined(1, 32) == blocks.color("cached")
    assert blocks.joined(70_017, 32) == blocks.color("hues[0]"), "all 32 blocks are lane 1's"
    few = blocks.joined(70_050, 32)
    assert few not in (blocks.color("hues[0]"), blocks.color("cached")), "only one block is lane 1's"
    assert blocks.joined(70_120, 32) not in (few, blocks.color("cached"))
    assert count(blocks.page, "cached") == "199\u202f966"
    blocks.page.get_by_role("button", name="by request").click()
    blocks.drawn()
    assert blocks.joined(1, 32) == blocks.color("hues[0]")
    assert blocks.joined(65, 32) == blocks.color("cached")


def test_zooming_in_leads_to_single_blocks(blocks: Map) -> None:
    page, status = blocks.page, blocks.page.get_by_role("status")
    blocks.fill({}, total=200_000, rows=[[1, *CACHED, 200_000], [70_017, *ACTIVE, 32], [70_050, *SHARED]])
    everything = blocks.sub()
    row, column = divmod(70_017 // 32, 170)
    at = {"x": 38 + 3 * column + 1, "y": 2 + 3 * row + 1}
    page.locator("canvas").hover(position=at)
    page.wait_for_function("Rose.pointing.rid === 1")
    page.mouse.wheel(0, -100)
    page.wait_for_function("document.querySelector('.rp-sub').textContent.endsWith(', 16 a cell')")
    page.get_by_role("button", name="Show more blocks").click()
    blocks.drawn()
    assert blocks.sub() == everything
    page.locator("canvas").click(position=at)
    popover = page.get_by_role("dialog", name="Blocks 70017–70048")
    expect(popover).to_contain_text("32 blocks in one cell: 32 with one owner.")
    blocks.change({70_018: CACHED})
    expect(popover).to_contain_text("#170017, 70019–70048")
    popover.get_by_role("button", name="Zoom in").click()
    expect(popover).to_be_hidden()
    blocks.drawn()
    first, last = (int(number) for number in blocks.sub().removesuffix(" of 200000").split("–"))
    assert first <= 70_017 < 70_050 <= last < first + 500
    assert blocks.pixel(70_017 - first) == blocks.color("hues[0]")
    assert blocks.pixel(70_018 - first) == blocks.color("surface"), "cached by now"
    for key, said in (("ArrowRight", "Block 70018: cached"), ("ArrowLeft", "Block 70017: one owner, #1"), ("End", "Block 200000: cached")):  # fmt: skip
        page.keyboard.press(key)
        expect(status).to_have_text(said)
    blocks.drawn()
    assert blocks.sub().endswith("–200000 of 200000"), "the window follows the cursor"
    page.keyboard.press("-")
    blocks.drawn()
    assert blocks.sub() != everything
    page.keyboard.press("Escape")
    blocks.drawn()
    assert blocks.sub() == everything


def test_a_map_that_is_zoomed_can_be_dragged(blocks: Map) -> None:
    page = blocks.page
    blocks.fill({}, total=15_522, used=15_522)
    assert blocks.sub() == "15522 × 16 tokens, 4 a cell"
    page.locator("canvas").focus()
    for _ in range(6):
        page.keyboard.press("+")
    blocks.drawn()
    before = int(blocks.sub().split("–")[0])
    box = page.locator("canvas").bounding_box()
    assert box
    page.mouse.move(box["x"] + 300, box["y"] + 80)
    page.mouse.down()
    page.mouse.move(box["x"] + 300, box["y"] + 48)
    page.mouse.up()
    blocks.drawn()
    assert int(blocks.sub().split("–")[0]) == before + 2 * 64
    expect(page.get_by_role("dialog")).to_be_hidden()
    page.keyboard.press("PageDown")
    blocks.drawn()
    assert int(blocks.sub().split("–")[0]) > before + 2 * 64


@pytest.mark.parametrize("total", [448, 3000, 20_000])
def test_cells_that_are_painted_again_look_as_if_all_were(blocks: Map, total: int) -> None:
    draw = random.Random(total)
    blocks.fill({}, total=total)
    for _ in range(6):
        at = [draw.randint(1, total) for _ in range(40)]
        blocks.change({block: draw.choice([FREE, CACHED, ACTIVE, SHARED, [1, 2, 1], [40, 3, 1]]) for block in at})
    picture = blocks.picture()
    blocks.page.evaluate("document.querySelector('section').style.width = '500px'")
    blocks.page.wait_for_function("document.querySelector('canvas').width === 500")
    blocks.page.evaluate("document.querySelector('section').style.width = '556px'")
    blocks.page.wait_for_function("document.querySelector('canvas').width === 556")
    blocks.drawn()
    assert blocks.picture() == picture


def answer(page: Page, body: dict[str, Any], status: int = 200) -> None:
    page.evaluate(
        "([body, status]) => { window.asked = []; window.fetch = async (url) => { asked.push(url); return new Response(body, {status}); }; }",
        [json.dumps(body), status],
    )


def test_keys_choose_and_open_a_block(blocks: Map) -> None:
    page = blocks.page
    blocks.fill({1: ACTIVE, 66: SHARED})
    answer(page, {"block": 66, "state": "shared", "holders": [2, 3], "depth": 4, "tokens": 16, "text": "<b>hi</b>", "last_use": 9, "findable": True})  # fmt: skip
    page.locator("canvas").focus()
    for key in ("Home", "ArrowRight", "ArrowDown"):
        page.keyboard.press(key)
    expect(page.get_by_role("status")).to_have_text("Block 66: shared by 3, #2")
    page.keyboard.press("Enter")
    popover = page.get_by_role("dialog", name="Block 66")
    expect(popover.locator("blockquote")).to_have_text("<b>hi</b>")
    expect(popover).to_contain_text("2 requests read it")
    expect(popover).to_contain_text("block 5, tokens 64–79")
    assert page.evaluate("asked") == [f"/ui/block/66?tab={page.evaluate('Rose.tab')}"]
    page.keyboard.press("Escape")
    expect(popover).to_be_hidden()
    expect(
        page.get_by_role("application", name=re.compile(r"KV blocks. Of 448 blocks \d+ have one owner"))
    ).to_be_visible()


def test_the_map_as_a_table(blocks: Map) -> None:
    page = blocks.page
    blocks.fill({1: ACTIVE, 2: [1, 1, 1], 3: SHARED, 4: CACHED})
    button = page.get_by_role("button", name="as table")
    button.click()
    table = page.get_by_role("region", name="KV blocks as a table").locator("table")
    expect(page.locator("canvas")).to_be_hidden()
    expect(table.locator("caption")).to_contain_text(
        "Of 448 blocks 2 have one owner, 1 are shared, 1 cached, 444 free, 444 of these never used; sharing saves 2."
    )

    def rows() -> list[list[str]]:
        return [row.locator("th, td").all_inner_texts() for row in table.locator("tbody tr").all()]

    nobody = [["none, cached", "1", "0", "1"], ["none, free", "444", "0", "0"]]
    assert rows() == [*nobody, ["#1 lane 1", "2", "0", "1"], ["#2", "1", "1", "1"]]
    blocks.change({1: FREE, 2: FREE})
    expect(table.locator("tbody tr")).to_have_count(3)
    assert rows()[2] == ["#2", "1", "1", "1"]
    button.click()
    expect(page.locator("canvas")).to_be_visible()


def test_a_refusal_is_said(blocks: Map) -> None:
    answer(blocks.page, {"detail": "the engine is closed"}, 503)
    blocks.page.locator("canvas").click(position=blocks.cell(0))
    expect(blocks.page.get_by_role("dialog")).to_contain_text("The engine is closed.")
