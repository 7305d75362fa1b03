"""Why a token was slow: the causes told for made-up steps, and the popover of a real one."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from roseplay import Engine
from roseplay.config import SamplingParams
from tests.browser.conftest import serving
from tests.browser.modules import bare_page

_boots = itertools.count(1)


class Story:
    """Requests 1 to 4 decode in steps of 20 ms; a test adds what happens besides."""

    def __init__(self, page: Page, *, quiet: int = 10) -> None:
        self.page, self.t, self.number, self.last = page, 1000.0, 0, {}  # type: ignore[var-annotated]
        self.frame: dict[str, Any] = {"t": 1.0, "steps": [], "tokens": [], "requests": [], "knobs": []}
        for rid in (1, 2, 3, 4):
            about = {"kind": "lane" if rid == 1 else "burst", "lane": 1 if rid == 1 else None, "prompt_tokens": 8}
            self.frame["requests"] += [[rid, "submitted", 999.0, about], [rid, "scheduled", 1000.0, {"queue_ms": 1.0}]]
        for _ in range(quiet):
            self.step()

    def step(
        self,
        ms: float = 20,
        *,
        decode: tuple[int, ...] = (1, 2),
        prompt: dict[int, int] | None = None,
        copies: int = 0,
        preempted: tuple[int, ...] = (),
        graph: bool | None = None,
    ) -> int:
        prompt = prompt or {}
        t0, self.t, number = self.t, self.t + ms, self.number
        self.number += 1
        parts = [[rid, 0, 1, 8, 8, 0, 0] for rid in decode] + [[rid, n, 0, n, n, 0, 0] for rid, n in prompt.items()]
        counts = [sum(prompt.values()), len(decode), 5, 6, len(parts), 0, 400, 0, 48, 0, ms - 2, 1.5, copies]
        self.frame["steps"].append([number, t0, self.t, *counts, parts, list(preempted), [], graph])
        for rid in decode:
            itl = self.t - self.last[rid] if rid in self.last else None
            self.frame["tokens"].append([rid, self.t, itl, number])
            self.last[rid] = self.t
        return number

    def why(self, step: int, rid: int = 1) -> str:
        """The sentence about a token, its bold parts in stars."""
        delta = {
            "boot_id": f"story-{next(_boots)}",
            "next": 2,
            "reset": True,
            "now": self.t,
            "frames": [self.frame],
            "snapshot": {"knobs": {"slow_motion": 1.0}, "info": {"num_blocks": 449}},
        }
        self.page.evaluate("d => Rose.apply(JSON.parse(d))", json.dumps(delta))
        self.page.evaluate("what => Rose.emit('select', what)", {"rid": rid, "step": step})
        body = self.page.locator(".rp-pop-body")
        body = body.locator("p:not(.rp-hand)")
        assert body.locator("b").count() == 2, "two figures"
        return body.evaluate(
            "p => [...p.childNodes].map((n) => n.nodeName === 'B' ? `*${n.textContent}*` : n.textContent).join('')"
        )


@pytest.fixture(scope="module")
def page(browser: Browser) -> Iterator[Page]:
    page = bare_page(browser, "<body></body>")
    yield page
    page.close()


def test_prompts_in_its_step(page: Page) -> None:
    story = Story(page)
    step = story.step(141, prompt={3: 500, 4: 12})
    sentence = story.why(step)
    assert sentence == "Its step also computed *512 prompt tokens* for #3 and #4, so it took *141\xa0ms* instead of 20."
    facts = page.locator(".rp-pop dl").inner_text().replace("\n", " ")
    for words in (
        "lane 1 · 11",
        "2 decode + 2 prompts",
        "queue wait 1.0 ms",
        "preempted no",
        "5, 6 prompt",
        "1.5, 139 ms",
    ):
        assert words in facts
    assert "computed" not in facts, "nobody told how"
    bar = page.locator(".rp-share i").evaluate_all("parts => parts.map((i) => parseFloat(i.style.width))")
    assert bar == pytest.approx([100 * 2 / 514, 100 * 512 / 514], abs=0.01)


@pytest.mark.parametrize(("graph", "told"), [(True, "as a replay"), (False, "eagerly")])
def test_how_its_step_was_computed(page: Page, graph: bool, told: str) -> None:
    story = Story(page)
    story.why(story.step(20, graph=graph))
    assert f"computed {told}" in page.locator(".rp-pop dl").inner_text().replace("\n", " ")


def test_without_quiet_steps_nothing_is_made_up(page: Page) -> None:
    story = Story(page, quiet=1)
    assert story.why(story.step(141, prompt={3: 512})).endswith("for #3, so it took *141\xa0ms*.")


def test_a_preemption(page: Page) -> None:
    story = Story(page)
    story.step(20, decode=(2,), preempted=(1,))
    story.step(100, decode=(2,))
    story.step(30, prompt={1: 40}, decode=(2,))
    assert story.why(story.step(20)) == (
        "The KV pool was full: it was preempted, waited *120\xa0ms* and was computed again, so this token took *170\xa0ms* instead of 20."
    )
    assert "preempted\nonce" in page.locator(".rp-pop dl").inner_text()


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({"ms": 21}, "Nothing unusual: it took *21\xa0ms*, and the usual is *20\xa0ms*."),
        ({"ms": 90, "copies": 1}, "Its step copied *1 block* before writing, and it took *90\xa0ms* instead of 20."),
        (
            {"ms": 90, "decode": (1, 2, 3, 4)},
            "Its step decoded for *4 requests* instead of 2, and it took *90\xa0ms* instead of 20.",
        ),
        (
            {"ms": 90},
            "Nothing in its step explains it: it took *90\xa0ms* instead of 20, *88\xa0ms* of it in the model.",
        ),
    ],
)
def test_other_causes(page: Page, told: dict[str, Any], expected: str) -> None:
    story = Story(page)
    assert story.why(story.step(**told)) == expected


def helped(page: Page) -> list[str]:
    return page.locator(".rp-pop .rp-hand").all_inner_texts()


def test_what_a_lower_budget_would_have_made_of_it(page: Page) -> None:
    """512 prompt tokens took 121 ms beyond the usual 20."""
    story = Story(page)
    story.why(story.step(141, prompt={3: 500, 4: 12}))
    assert helped(page) == ["With budget 256: about 81 ms."]
    story = Story(page)
    story.frame["knobs"] = [[900.0, 0, {"chunked_prefill": [True, False]}]]
    story.why(story.step(141, prompt={3: 512}))
    assert helped(page) == ["With chunked prefill and budget 256: about 81 ms."]


@pytest.mark.parametrize(
    ("quiet", "told"),
    [
        (1, {"ms": 141, "prompt": {3: 512}}),  # the usual is not known
        (10, {"ms": 141}),  # no prompt
        (10, {"ms": 24, "prompt": {3: 512}}),  # not slow
        (10, {"ms": 141, "prompt": {3: 24}}),  # no budget is that low
        (10, {"ms": 141, "prompt": {3: 512}, "preempted": (1,)}),
    ],
)
def test_nothing_is_said_of_what_cannot_be_known(page: Page, quiet: int, told: dict[str, Any]) -> None:
    story = Story(page, quiet=quiet)
    story.why(story.step(**told))
    assert helped(page) == []


def test_left_out_of_steps(page: Page) -> None:
    story = Story(page)
    story.step(30, decode=(2,))
    story.step(30, decode=(2,))
    sentence = story.why(story.step(20))
    assert sentence == "It was left out of *2 steps* that computed others, so it took *80\xa0ms* instead of 20."


def test_a_step_without_a_token(page: Page) -> None:
    story = Story(page)
    sentence = story.why(story.step(60, prompt={3: 40}), 3)
    assert sentence == "This step computed *40 prompt tokens* of it and took *60\xa0ms*; no token came of that."


def test_closing_deselects(page: Page) -> None:
    story = Story(page)
    story.why(story.step(50))
    for close in (lambda: page.keyboard.press("Escape"), lambda: page.get_by_role("button", name="Close").click()):
        page.evaluate("step => Rose.emit('select', {rid: 1, step})", story.number - 1)
        expect(page.get_by_role("dialog")).to_be_visible()
        close()
        expect(page.get_by_role("dialog")).to_be_hidden()


def test_a_click_on_the_timeline_of_the_real_engine(open_page: Callable[..., Page]) -> None:
    with serving(Engine("tiny-chat", num_blocks=449)) as served:  # of its own: in the shared one others' rows lie above
        page = open_page(served)
        served.engine.set_knobs(slow_motion=10.0)  # so that the step is not two pixels wide
        served.engine.submit([5] * 600, SamplingParams(max_new_tokens=2, ignore_eos=True)).result(timeout=60)
        page.wait_for_function("Rose.store.steps.size > 1 && Rose.time.idle()")
        page.evaluate(
            "window.view = Rose.panels.find(({name}) => name === 'steps'), window.before = view.draws; view.soon()"
        )
        page.wait_for_function("view.draws > before")  # what is clicked is what was drawn when time stood still
        canvas = page.locator("#rp-steps canvas")
        box = canvas.bounding_box()
        assert box
        popover = page.get_by_role("dialog")
        middle, now = page.evaluate(
            "(({x0, x1}) => [(x0 + x1) / 2, Rose.time.now()])(Rose.stepSpan(Rose.store.steps.prompt_tokens.findIndex((n) => n > 0)))"
        )
        width = box["width"] - 44 - 12
        x = 44 + width * (1 - (now - middle) / (round(width * 8 / 596) * 1000))
        canvas.click(position={"x": x, "y": 52 + 13 * 4 + 8 + 6})  # the first row behind the lanes
        expect(popover).to_contain_text("Why did the first token take so long?")
        expect(popover).to_contain_text("0 decode + 1 prompt")
        page.wait_for_function("Rose.pointing.selected !== null")
        page.close()
