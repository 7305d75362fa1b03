"""Hand-written recordings: each mistake is reported in one line, and no text in a recording is treated as markup."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from roseplay.engine.records import COLUMNS
from roseplay.play.page import build_page, page_head
from roseplay.play.playground import Playground
from roseplay.play.replay_server import ReplayServer
from roseplay.recording.command import main as export_command
from roseplay.recording.exports import export
from roseplay.recording.reader import RecordingError, parse
from tests.play.fake_engine import FakeEngine
from tests.recording.test_recording import MINE, run, send

SCRIPT = "</script><img src=x onerror=window.pwned=1><!--`${window.pwned=1}`{{x}}\\x3cimg\\x3e"
Lines = list[dict[str, Any]]


def recorded() -> Lines:
    """A valid recording, line by line: the header, then frames of a lane, a burst and a knob change."""
    engine = FakeEngine()
    playground = Playground(engine)
    send(playground, MINE, "Why?")
    playground.traffic.burst(size=2, kind="equal", max_new_tokens=3, seed=1, tab_id=MINE)
    playground.set_knobs({"prefill_max_tokens": 128})
    run(engine, playground)
    return [json.loads(line) for line in playground.recording(MINE)]


@pytest.fixture
def lines() -> Lines:
    return recorded()


def encoded(lines: Lines) -> list[bytes]:
    return [json.dumps(line).encode() + b"\n" for line in lines]


def header(**changes: Any) -> Callable[[Lines], Any]:
    return lambda lines: lines[0].update(changes)


def info(**changes: Any) -> Callable[[Lines], Any]:
    return lambda lines: lines[0]["info"].update(changes)


def columns(**changes: list[str]) -> Callable[[Lines], Any]:
    return header(columns={**COLUMNS, **changes})


def row(name: str, column: str, value: Any) -> Callable[[Lines], Any]:
    """Change a value in the first row of this name in any frame."""

    def change(lines: Lines) -> None:
        next(line[name] for line in lines[1:] if line[name])[0][COLUMNS[name].index(column)] = value

    return change


def event(place: int, value: Any) -> Callable[[Lines], Any]:
    return lambda lines: next(line["requests"] for line in lines[1:] if line["requests"])[0].__setitem__(place, value)


def about(kind: str, **changes: Any) -> Callable[[Lines], Any]:
    def change(lines: Lines) -> None:
        next(event for line in lines[1:] for event in line["requests"] if event[1] == kind)[3].update(changes)

    return change


BAD: dict[str, tuple[Callable[[Lines], Any], str]] = {
    "parameters in words": (info(num_parameters="many"), "info, num_parameters should be a whole number"),
    "no blocks": (info(num_blocks=None), "info, num_blocks should be a whole number"),
    "too many blocks": (info(num_blocks=10**12), "info, num_blocks should be a whole number from 1 to 16,777,216"),
    "a boolean for a number": (info(block_size=True), "info, block_size"),
    "blocks of nothing": (info(block_size=0), "info, block_size"),
    "a list for a name": (info(model=["x"]), "info, model should be text"),
    "a missing name": (lambda lines: lines[0]["info"].pop("dtype"), "info, dtype is missing"),
    "a missing knob": (lambda lines: lines[0]["knobs"].pop("slow_motion"), "knobs, slow_motion is missing"),
    "a knob in words": (lambda lines: lines[0]["knobs"].update(prefill_max_tokens="512"), "prefill_max_tokens should"),
    "knobs as a list": (header(knobs=[1]), "knobs should be an object"),
    "columns of numbers": (header(columns={"steps": [1], "entries": [], "tokens": []}), "columns, steps should be text"),
    "no column of times": (columns(steps=["step_id"]), "columns, steps should have 't0' once"),
    "two columns of one name": (columns(tokens=["t", *COLUMNS["tokens"]]), "columns, tokens should have 't' once"),
    "a column too many": (columns(tokens=[*COLUMNS["tokens"], "more"]), "tokens should have rows of 7 columns"),
    "an environment of lists": (header(environment={"cpu": [[]]}), "environment, cpu should be"),
    "a snapshot without a time": (lambda lines: lines[0]["snapshot"].pop("t"), "snapshot, t is missing"),
    "requests by the word": (lambda lines: lines[0]["snapshot"].update(requests=[[1, "x"]]), "about should be an object"),
    "a time in words": (row("steps", "t0", "soon"), "line 2: steps, t0 should be a number"),
    "a time without end": (row("steps", "t0", 1e300), "line 2: steps, t0 should be a number"),
    "a count below nothing": (row("steps", "prompt_tokens", -1), "steps, prompt_tokens should be a whole number from 0"),
    "a count of a half": (row("steps", "prompt_tokens", 0.5), "steps, prompt_tokens should be a whole number"),
    "entries of three": (row("steps", "entries", [[1, 2, 3]]), "steps, entries should have rows of 7 columns"),
    "entries of words": (row("steps", "entries", [[1, 2, 3, 4, "x", 6, 7]]), "steps, entries, target should be"),
    "nested too deep": (row("steps", "preempted", [[1]]), "steps, preempted should be a whole number"),
    "a token of nobody": (row("tokens", "request_id", None), "tokens, request_id should be a whole number"),
    "a gap in words": (row("tokens", "itl_ms", "long"), "tokens, itl_ms should be a number"),
    "a cause of lists": (row("tokens", "cause", [SCRIPT]), "tokens, cause should be text"),
    "an event of no kind": (event(1, "exploded"), "requests, event should be one of submitted"),
    "a burst of markup": (about("submitted", burst=SCRIPT), "requests, about, burst should be a whole number"),
    "a lane far out": (about("submitted", lane=10**9), "requests, about, lane should be a whole number from 1 to 8"),
    "an error of lists": (about("finished", error=[[SCRIPT]]), "requests, about, error should be text"),
    "a knob change of one": (lambda lines: lines[1]["knobs"].append([1.0, 1, {"overlap": [True]}]), "rows of 2 columns"),
    "a knob change of lists": (lambda lines: lines[1]["knobs"].append([1.0, 1, {"new": [[], {}]}]), "changes, new, old should"),
    "a block of three": (lambda lines: lines[1]["blocks"].append([1, 2, 3]), "blocks should have rows of 5 columns"),
    "a run of blocks without end": (lambda lines: lines[1]["blocks"].append([2**24 - 1, 0, -1, 1, 2**24]), "line 2: blocks, count should end at block 16,777,216 at most"),
    "a run of blocks without end at the start": (lambda lines: lines[0]["snapshot"].update(blocks=[[2, 0, -1, 1, 2**24]]), "the header: blocks, count should end at block 16,777,216 at most"),
    "a state of two": (lambda lines: lines[1].update(states=[[1, 2]]), "states should have rows of 3 columns"),
    "figures in words": (lambda lines: lines[1].update(stats={"tok_s": "fast"}), "stats, tok_s should be a number"),
    "a burst's label of lists": (lambda lines: lines[1].update(burst={"burst": 1}), "burst, kind is missing"),
    "a title of numbers": (lambda lines: lines[1].update(titles=[[1, 2]]), "titles, title should be text"),
    "a text without its place": (lambda lines: lines[1].update(texts=[[1, 2]]), "texts should have rows of 3"),
    "no tokens at all": (lambda lines: lines[2].pop("tokens"), "line 3: tokens is missing"),
    "a frame that is a list": (lambda lines: lines.__setitem__(3, [1]), "line 4: it should be an object"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_is_said_in_one_line(lines: Lines, name: str) -> None:
    change, said = BAD[name]
    parse(encoded(lines), "bad.jsonl")
    change(lines)
    with pytest.raises(RecordingError) as error:
        parse(encoded(lines), "bad.jsonl")
    assert said in str(error.value)
    assert len(str(error.value).splitlines()) == 1


def test_the_page_and_the_command_line_say_what_is_wrong(lines: Lines, tmp_path: Path, capsys: Any) -> None:
    change, said = BAD["no tokens at all"]
    change(lines)
    path, report = tmp_path / "bad.jsonl", tmp_path / "report.html"
    path.write_bytes(b"".join(encoded(lines)))
    with pytest.raises(RecordingError, match=re.escape(said)):
        ReplayServer(path)
    assert export_command([str(path), "--report", str(report)]) == 2
    assert said in capsys.readouterr().err
    assert not report.exists()


@pytest.mark.parametrize(
    "text", (b'{"t": NaN}', b'{"t": 1e999}', b"[" * 100_000, b'"\xff"', b'{"t": 1' + b"0" * 5000 + b"}")
)
def test_what_is_no_json_is_said_in_one_line(lines: Lines, text: bytes) -> None:
    for bad in ([text + b"\n", *encoded(lines)[1:]], [encoded(lines)[0], text + b"\n", *encoded(lines)[1:]]):
        with pytest.raises(RecordingError) as error:
            parse(bad, "bad.jsonl")
        assert len(str(error.value).splitlines()) == 1


def hostile(lines: Lines) -> Lines:
    """The recording with markup and script wherever it may contain text."""
    lines[0]["info"].update(
        dict.fromkeys(("model", "architecture", "device", "dtype", "attention", "no_cuda_graphs"), SCRIPT)
    )
    lines[0].update(dict.fromkeys(("version", "created"), SCRIPT), environment={SCRIPT[:180]: SCRIPT})
    lines[0]["knobs"][SCRIPT[:180]] = SCRIPT
    lines[0]["knobs"]["admission"] = SCRIPT
    lines[1]["knobs"].append([1.0, 1, {SCRIPT[:180]: [SCRIPT, SCRIPT]}])
    for line in lines[1:]:
        line["titles"] = [[request, SCRIPT] for request, _ in line.get("titles", ())]
        line["texts"] = [[request, index, SCRIPT] for request, index, _ in line.get("texts", ())]
        for event in line["requests"]:
            if event[1] == "finished":
                event[3].update(reason=SCRIPT[:100], error=SCRIPT)
    return lines


class Markup(HTMLParser):
    """A page's tags and the names of all its attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.comments = 0
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_comment(self, data: str) -> None:
        self.comments += 1


def test_a_report_has_no_markup_of_its_recording(lines: Lines) -> None:
    good = Markup(export("report", encoded(lines)).decode())
    bad = Markup(export("report", encoded(hostile(lines))).decode())
    assert (bad.tags, bad.attributes, bad.comments) == (good.tags, good.attributes, good.comments)
    assert "img" not in bad.tags


def test_every_export_of_odd_text_can_be_made(lines: Lines) -> None:
    for line in hostile(lines)[1:]:
        line["texts"] = [[request, index, "\ud800=1+1"] for request, index, _ in line["texts"]]
    for kind in ("trace", "tokens", "report"):
        assert export(kind, encoded(lines)), kind


def test_the_page_has_no_markup_of_its_recording(lines: Lines, tmp_path: Path) -> None:
    path = tmp_path / "</title><script>window.pwned=1<`${x}`.jsonl".replace("/", "∕")
    path.write_bytes(b"".join(encoded(hostile(lines))))
    replay = ReplayServer(path)
    templates = [
        part["props"]["html_template"] for part in build_page(replay).get_config_file()["components"]
        if "html_template" in part.get("props", ())
    ]  # fmt: skip
    for template in templates:
        assert not Markup(template).tags & {"img", "script", "title"}
        assert not re.search(r"[`\\]|\$\{|\{\{", template), "Gradio would run this as a template"
    assert Markup(page_head(replay)).tags == {"link", "meta", "style", "script"}  # meta: the page's own view
