"""Recordings: what is kept, what is left out, and the message for a file that is not a recording."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from roseplay.config import SamplingParams
from roseplay.engine.records import COLUMNS, TokenRow
from roseplay.play.playground import Playground
from roseplay.recording.reader import Recording, RecordingError, parse, read
from roseplay.recording.run import Run
from roseplay.recording.schema import EventRow
from tests.play.fake_engine import WORDS, FakeEngine

MINE, OTHERS = "a-tab-of-mine", "a-tab-of-others"


def send(playground: Playground, tab: str, prompt: str = "hello", tokens: int = 5, lane: int = 1) -> int:
    (request_id,) = playground.chats.send(
        prompt, lanes=[lane], tab_id=tab, params=SamplingParams(max_new_tokens=tokens)
    )
    return request_id


def run(engine: FakeEngine, playground: Playground, steps: int = 6) -> None:
    """Make some steps, with a frame after each."""
    for _ in range(steps):
        engine.step()
        playground.tick()


def text_of(recording: Recording, request_id: int) -> str:
    pieces = [piece for frame in recording.frames for piece in frame["texts"] if piece[0] == request_id]
    assert [index for _, index, _ in pieces] == sorted(index for _, index, _ in pieces)
    return "".join(text for *_, text in pieces)


def recorded(playground: Playground, tab: str = "") -> Recording:
    return parse(playground.recording(tab), "this run")


def test_a_recording_has_the_frames_and_the_words(engine: FakeEngine, playground: Playground) -> None:
    request_id = send(playground, MINE, "Why?")
    run(engine, playground)
    recording = recorded(playground, MINE)
    assert recording.info.model == "fake-chat"
    assert recording.header["knobs"] == playground.knobs()
    assert recording.header["environment"]["roseplay"] == recording.header["version"]
    assert text_of(recording, request_id) == engine.streams[request_id].text == "".join(WORDS[:5])
    titles = [title for frame in recording.frames for title in frame["titles"]]
    assert titles == [[request_id, "Why?"]]
    assert [token.request_id for frame in recording.frames for token in frame["tokens"]] == [request_id] * 5


def test_rows_are_read_by_the_names_of_their_columns(engine: FakeEngine, playground: Playground) -> None:
    request_id = send(playground, MINE, "Why?")
    run(engine, playground)
    lines = [json.loads(line) for line in playground.recording(MINE)]
    expected = parse((json.dumps(line).encode() for line in lines), "as it is")
    lines[0]["columns"] = {name: [*reversed(names), "new"] for name, names in lines[0]["columns"].items()}
    for frame in lines[1:]:
        for step in frame["steps"]:
            entries = COLUMNS["steps"].index("entries")
            step[entries] = [[*reversed(entry), "?"] for entry in step[entries]]
        frame["steps"] = [[*reversed(row), {"any": [1]}] for row in frame["steps"]]
        frame["tokens"] = [[*reversed(row), None] for row in frame["tokens"]]
    turned = parse((json.dumps(line).encode() for line in lines), "turned")
    assert turned.frames == expected.frames
    assert [token.request_id for frame in turned.frames for token in frame["tokens"]] == [request_id] * 5


def test_each_token_has_its_own_text(engine: FakeEngine, playground: Playground) -> None:
    request_id = send(playground, MINE, tokens=4)
    engine.step(4)  # all of them are in one frame
    playground.tick()
    texts = [piece for frame in recorded(playground, MINE).frames for piece in frame["texts"]]
    assert texts == [[request_id, i, WORDS[i]] for i in range(4)]


def test_texts_of_others_are_left_out(engine: FakeEngine, playground: Playground) -> None:
    mine, others = send(playground, MINE, "mine?"), send(playground, OTHERS, "secret?")
    program = playground.chats.ask("a program asks", SamplingParams(max_new_tokens=3)).request_id
    burst = playground.traffic.burst(size=2, kind="equal", max_new_tokens=2, seed=1, tab_id=OTHERS)
    run(engine, playground)
    everyone = {mine, others, program, *(tracked.request_id for tracked in burst.requests)}
    for tab, readable in (
        (MINE, {mine}),
        (OTHERS, everyone - {mine, program}),
        ("", set()),
        ("nobody-knows-it", set()),
    ):
        lines, recording = list(playground.recording(tab)), recorded(playground, tab)
        said = {piece[0] for frame in recording.frames for piece in (*frame["texts"], *frame["titles"])}
        assert said == readable, tab
        assert {event[0] for frame in recording.frames for event in frame["requests"]} == everyone
        assert (b"secret?" in b"".join(lines)) == (tab == OTHERS)
        assert recording.header["words"] == "of one tab"


def test_live_polls_do_not_grow(engine: FakeEngine, playground: Playground) -> None:
    send(playground, MINE, "Why?")
    run(engine, playground)
    delta = playground.delta(0, tab_id=OTHERS)
    assert b"texts" not in delta
    assert b"titles" not in delta
    assert WORDS[0].encode() not in delta


@pytest.mark.parametrize("bound", ["bytes", "minutes"])
def test_the_oldest_frames_go_and_the_opening_says_what_they_told(engine: FakeEngine, bound: str) -> None:
    playground = Playground(engine, keep={"keep_bytes": 3000} if bound == "bytes" else {"keep_s": 0.0})
    request_id = send(playground, MINE, "Why?", tokens=30)
    ended = send(playground, MINE, "Short.", tokens=1, lane=2)
    playground.set_knobs({"prefill_max_tokens": 64})
    run(engine, playground, 20)
    lines = list(playground.recording(MINE))
    assert sum(map(len, lines[1:])) < 3000
    recording = parse(lines, "kept")
    snapshot, told = recording.header["snapshot"], len(recording.frames)
    assert 1 <= told < 20
    assert recording.header["knobs"]["prefill_max_tokens"] == 64
    ((alive, about),) = snapshot["requests"]
    assert (alive, about["lane"]) == (request_id, 1)
    assert about["computed"] == about["target"] == len("Why?")
    assert about["tokens"] == 20 - told
    assert about["first"] is not None
    ((_, title, so_far),) = snapshot["words"]
    assert title == "Why?"
    assert so_far + text_of(recording, request_id) == engine.streams[request_id].text
    assert ended not in [request for request, _ in snapshot["requests"]]
    assert recorded(playground, OTHERS).header["snapshot"]["words"] == []


@pytest.mark.parametrize("keep_ms", [0, math.inf])
def test_a_token_in_a_frame_after_its_requests_end_is_not_counted_again(keep_ms: float) -> None:
    state = Run({}, {"t": 0.0, "requests": [[1, {"tokens": 3}], [2, {}]]}, keep_ms=keep_ms)
    first, ended = EventRow(2, "first", 5.0, {}), EventRow(1, "finished", 6.0, {"tokens": 5, "reason": "stop"})
    tokens = [TokenRow(request, 5.0, None, 0) for request in (1, 2)]
    nothing: dict[str, Any] = {"steps": [], "knobs": [], "blocks": []}
    state.take({"t": 6.0, **nothing, "requests": [first, ended], "tokens": tokens})
    state.take({"t": 7.0, **nothing, "requests": [], "tokens": tokens})
    counts = {number: (request.tokens, request.skipped) for number, request in state.requests.items()}
    assert counts == ({1: (5, 3), 2: (2, 0)} if keep_ms else {2: (2, 0)})


def test_a_file_has_all_words_line_by_line(engine: FakeEngine, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    playground = Playground(engine, record=str(path))
    mine, others = send(playground, MINE, "mine?"), send(playground, OTHERS, "theirs?")
    for count in range(1, 6):
        engine.step()
        playground.tick()
        assert path.read_bytes().count(b"\n") == 1 + count  # on disk at once, whatever happens next
    recording = read(path)
    assert recording.header["words"] == "all"
    assert {title for frame in recording.frames for _, title in frame["titles"]} == {"mine?", "theirs?"}
    assert text_of(recording, mine) == text_of(recording, others) == "".join(WORDS[:5])
    assert playground.recorded()["file"] == "run.jsonl"
    playground.close()
    with pytest.raises(FileExistsError):
        Playground(engine, record=str(path))


def test_figures_of_what_is_kept(engine: FakeEngine, playground: Playground) -> None:
    assert playground.recorded()["frames"] == 0
    send(playground, MINE, tokens=4)
    run(engine, playground, 5)
    figures = playground.recorded()
    assert (figures["steps"], figures["requests"], figures["tokens"]) == (4, 1, 4)
    assert figures["bytes"] == pytest.approx(sum(map(len, list(playground.recording(MINE))[1:])), abs=300)


@pytest.fixture
def file(engine: FakeEngine, playground: Playground, tmp_path: Path) -> Path:
    """A valid recording of seven lines."""
    send(playground, MINE, tokens=8)
    run(engine, playground, 8)
    path = tmp_path / "run.jsonl"
    path.write_bytes(b"".join(list(playground.recording(MINE))[:7]))
    return path


def test_a_cut_off_last_line_is_left_out(file: Path) -> None:
    whole = file.read_bytes()
    assert not read(file).cut
    for end in (len(whole) - 1, len(whole) - 40):
        file.write_bytes(whole[:end])
        recording = read(file)
        assert recording.cut == (end < len(whole) - 1)
        assert len(recording.frames) == 5 + (not recording.cut)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda lines: [b"hello\n", *lines[1:]], "not a recording of roseplay"),
        (lambda lines: [b'{"traceEvents": []}\n'], "not a recording of roseplay"),
        (lambda lines: [b"\x89PNG\r\n\x1a\n\xff\xfe"], "not a recording of roseplay"),
        (lambda lines: [], "is empty"),
        (lambda lines: [lines[0].replace(b'"roseplay_recording":2', b'"roseplay_recording":9')], "reads format 2"),
        (lambda lines: [lines[0].replace(b'"snapshot"', b'"snapshots"')], "snapshot is missing"),
        (lambda lines: [*lines[:2], lines[2][:-20] + b"\n", *lines[3:]], "line 3: it is not JSON"),
        (lambda lines: [b'{"info":{},' + lines[0][1:]], "the header: 'info' occurs twice in one object"),
        (lambda lines: [*lines[:2], b'{"t": 1.0}\n'], "line 3: steps is missing"),  # the last line, but a whole one
        (lambda lines: [*lines[:2], b'{"seq":1,' + lines[2][1:], *lines[3:]], "line 3: 'seq' occurs twice in one object"),
    ],
)  # fmt: skip
def test_a_bad_file_is_refused_in_one_line(file: Path, damage: Any, said: str) -> None:
    file.write_bytes(b"".join(damage(file.read_bytes().splitlines(keepends=True))))
    with pytest.raises(RecordingError, match=said) as error:
        read(file)
    assert "\n" not in str(error.value)
    assert "run.jsonl" in str(error.value)


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="no file"):
        read(tmp_path / "nothing.jsonl")
    with pytest.raises(RecordingError, match="cannot be read"):
        read(tmp_path)
