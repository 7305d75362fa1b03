"""What a reasoning model thinks before it answers: visible while it is generated, folded to one line afterwards."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.test_replay import download, idle, open_recording, to_the_end
from tests.pages import Served, answer_at_most, ask, ready, reload, serving, text
from tests.play.fake_engine import FakeEngine

CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))
THOUGHT = re.compile(r"^thought for [\d.]+ m?s, 5 tokens$")
ANSWER = (
    "<think>",
    "\n",
    "A step",
    " packs",
    " prompts,",
    " I",
    " guess.",
    "\n</think>",
    "\n\n",
    "It is",
    " so.",
    " Really.",
)


class Thinking:
    """Decodes the tokens of a model that thinks before it answers."""

    words = ANSWER

    def push(self, token_id: int) -> str:
        return self.words[min(token_id, len(self.words) - 1)]

    def flush(self) -> str:
        return ""


class Begun(Thinking):
    """The same for a prompt template that has already written the opening tag."""

    words = ANSWER[2:]


class Tokenizer:
    """A tokenizer with a token per character, whose template opens the thinking part if the question is hard."""

    chat_template = "yes"

    def apply_chat_template(self, messages: Any, **how: Any) -> str:
        said = str(messages[-1]["content"])
        return f"{said}<think>\n" if "hard" in said else said

    def __call__(self, text: str, **how: Any) -> dict[str, list[int]]:
        return {"input_ids": [CHARACTERS.index(char) for char in text]}

    def decode(self, ids: list[int], **how: Any) -> str:
        return "".join(CHARACTERS[number] for number in ids)


class Reasoner(FakeEngine):
    """Thinks before each answer; if the question is hard, the template writes the opening tag."""

    def submit(self, prompt: Any, *args: Any, **how: Any) -> Any:
        self.detokenizer = Begun if "<think>" in self.tokenizer.decode(prompt) else Thinking
        return super().submit(prompt, *args, **how)


@pytest.fixture(scope="module")
def _reasoner() -> Iterator[Served]:
    engine = Reasoner()
    engine.tokenizer = Tokenizer()  # type: ignore[assignment]
    with serving(engine) as served:
        yield served


@pytest.fixture
def reasoner(_reasoner: Served) -> Iterator[Served]:
    """Makes a step only when a test says so."""
    yield _reasoner
    _reasoner.rest()


@pytest.fixture
def page_of(reasoner: Served) -> Served:
    return reasoner


ANSWERED, PROMPTED = "why?", "a hard one"  # the tag that opens the thinking part is in the answer, or in the prompt


def head(page: Page) -> Locator:
    return page.locator("#rp-lane-1 .rp-thought-head")


def thought(page: Page) -> Locator:
    return page.locator("#rp-lane-1 .rp-thought-text")


def think(page: Page, served: Served, question: str, steps: int) -> None:
    """Ask, and let the engine make ``steps`` steps after the tag that opens the thinking part."""
    answer_at_most(page, 12 if question == ANSWERED else 10)
    ask(page, question)
    expect(page.locator("#rp-lane-4 h4")).to_have_text(question)
    served.engine.step(steps + (2 if question == ANSWERED else 0))


@pytest.mark.parametrize("question", [ANSWERED, PROMPTED])
def test_it_is_seen_while_it_is_written_and_folds_when_it_ends(reasoner: Served, page: Page, question: str) -> None:
    think(page, reasoner, question, 3)
    expect(head(page)).to_have_text("thinking…")
    expect(thought(page)).to_have_text("A step packs prompts,")
    reasoner.engine.step(6)
    expect(head(page)).to_have_text(THOUGHT)
    expect(head(page)).to_have_attribute("aria-expanded", "false")
    expect(thought(page)).to_be_hidden()
    assert page.locator("#rp-lane-1 .rp-a").inner_text().split("\n")[-1] == "It is so."
    head(page).click()
    expect(thought(page)).to_be_visible()
    assert thought(page).inner_text() == "A step packs prompts, I guess."
    head(page).press("Enter")
    expect(thought(page)).to_be_hidden()
    reasoner.engine.step(1)
    expect(text(page, 1)).to_contain_text("It is so. Really.")
    assert "think>" not in text(page, 1).inner_text()


def test_a_reload_shows_the_same(reasoner: Served, page: Page) -> None:
    think(page, reasoner, PROMPTED, 3)
    expect(thought(page)).to_have_text("A step packs prompts,")
    expect(page.locator("#prompt input")).to_have_value("")
    reload(page)
    ready(page)
    expect(head(page)).to_have_text("thinking…")
    expect(thought(page)).to_have_text("A step packs prompts,")
    reasoner.engine.step(7)
    expect(head(page)).to_have_text(THOUGHT)
    reload(page)
    ready(page)
    expect(head(page)).to_have_text(THOUGHT)
    expect(thought(page)).to_be_hidden()


def test_a_replay_shows_the_same(reasoner: Served, page: Page, tmp_path: Path) -> None:
    think(page, reasoner, ANSWERED, 20)
    idle(page)
    expect(head(page)).to_have_text(THOUGHT)
    words = head(page).inner_text()
    open_recording(page, download(page, "recording.jsonl", tmp_path))
    to_the_end(page)
    expect(head(page).last).to_have_text(words)  # the recording has the tab's earlier chats, too
    expect(thought(page).last).to_be_hidden()
    assert page.locator("#rp-lane-1 .rp-a").last.inner_text().endswith("It is so. Really.")


def test_what_is_never_closed_stays_open(reasoner: Served, page: Page) -> None:
    think(page, reasoner, ANSWERED, 3)
    expect(head(page)).to_have_text("thinking…")
    page.get_by_role("button", name="Stop lane 1").click()
    expect(head(page)).to_have_text(re.compile(r"^thought for [\d.]+ m?s, 3 tokens, unfinished$"))
    expect(thought(page)).to_be_visible()


def test_arrow_keys_pass_over_what_is_folded(reasoner: Served, page: Page) -> None:
    think(page, reasoner, ANSWERED, 20)
    expect(head(page)).to_have_text(THOUGHT)
    lane = page.locator("#rp-lane-1")
    lane.focus()
    for _ in range(5):  # three tokens of the answer, with nothing before them
        lane.press("ArrowLeft")
    expect(page.locator("#rp-lane-1 .rp-cursor")).to_have_text("It is")
    expect(thought(page)).to_be_hidden()
    head(page).click()
    lane.focus()
    for _ in range(4):
        lane.press("ArrowLeft")
    expect(page.locator("#rp-lane-1 .rp-cursor")).to_have_text("guess.")
